"""What is computed twice is computed once; what nothing needs is no part of a program anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_gnn._program.rows import Apply, Constant, Contract, Given, Row, rewritten


def equal(results: Sequence[Row]) -> list[Row]:
    """The same program where equal operations of equal rows are one row."""
    found: dict[Any, Row] = {}

    def rule(row: Row) -> Row:
        key = _key(row.op), row.space, row.shape, str(row.dtype), *map(id, row.operands)
        return found.setdefault(key, row)

    return rewritten(results, rule)


def _key(op: Any) -> Any:
    match op:
        case Given(index=index):
            return "given", index
        case Constant():
            return "constant", op.key
        case Apply(index=index, key=key, read_by=way) if key is not None:
            return "apply", key, index, way
        case Apply():
            return "apply", id(op.function), op.index
        case Contract(terms=terms, out=out, precision=precision):
            names: dict[int, int] = {}
            labels = [[names.setdefault(i, len(names)) for i in term] for term in (*terms, out)]
            return "contract", tuple(map(tuple, labels)), str(precision)
    return op
