"""What is computed twice is computed once; what nothing needs is no part of a program anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax_gnn._program.rows import Apply, Constant, Contract, Given, Row, in_order, rewritten


def equal(results: Sequence[Row]) -> list[Row]:
    """The same program where equal operations of equal rows are one row."""
    found: dict[Any, Row] = {}
    ways: dict[Row, frozenset[str] | None] = {}

    def rule(row: Row) -> Row:
        key = _key(row.op), row.space, row.shape, str(row.dtype), *map(id, row.operands)
        one = found.setdefault(key, row)
        if isinstance(row.op, Apply | Contract):
            ways[one] = _either(ways.get(one, row.op.read_by), row.op.read_by)
        return one

    merged = rewritten(results, rule)
    new: dict[Row, Row] = {}
    for row in in_order(merged):
        moved = row.with_operands([new[each] for each in row.operands])
        if isinstance(row.op, Apply | Contract) and row.op.read_by != ways[row]:
            moved = replace(moved, op=replace(row.op, read_by=ways[row]))
        new[row] = moved
    return [new[row] for row in merged]


def _either(a: frozenset[str] | None, b: frozenset[str] | None) -> frozenset[str] | None:
    """The ways by which edges read a row that is read as two rows are; None: every row counts."""
    return None if a is None or b is None else a | b


def _key(op: Any) -> Any:
    match op:
        case Given(index=index):
            return "given", index
        case Constant():
            return "constant", op.key
        case Apply(index=index, key=key) if key is not None:
            return "apply", key, index
        case Apply():
            return "apply", id(op.function), op.index
        case Contract(terms=terms, out=out, precision=precision):
            names: dict[int, int] = {}
            labels = [[names.setdefault(i, len(names)) for i in term] for term in (*terms, out)]
            return "contract", tuple(map(tuple, labels)), str(precision)
    return op
