"""Common subexpression elimination: equal operations of equal rows become one row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Input,
    Operation,
    Row,
    rewrite,
    topological_order,
)


def cse(results: Sequence[Row]) -> list[Row]:
    """Return the program with equal rows merged."""
    unique: dict[Hashable, Row] = {}
    read_by: dict[Row, frozenset[str] | None] = {}

    def merge(row: Row) -> Row:
        key = _key(row.op), row.space, row.shape, row.dtype, *map(id, row.operands)
        first = unique.setdefault(key, row)
        if isinstance(row.op, Apply | Contract):
            read_by[first] = _union(read_by.get(first, row.op.read_by), row.op.read_by)
        return first

    merged = rewrite(results, merge)
    # A merged row is read by the ways of all rows that it replaces.
    new: dict[Row, Row] = {}
    for row in topological_order(merged):
        moved = row.with_operands([new[operand] for operand in row.operands])
        if isinstance(row.op, Apply | Contract) and row.op.read_by != read_by[row]:
            moved = replace(moved, op=replace(row.op, read_by=read_by[row]))
        new[row] = moved
    return [new[row] for row in merged]


def content_of(results: Sequence[Row]) -> Hashable:
    """Return a key that programs share if they do the same on rows that the same edges read."""
    indices: dict[Row, int] = {}
    keys: list[Hashable] = []
    for row in topological_order(results):
        read_by = row.op.read_by if isinstance(row.op, Apply | Contract) else None
        operands = tuple(indices[operand] for operand in row.operands)
        keys.append((_key(row.op), read_by, row.space, row.shape, row.dtype, operands))
        indices[row] = len(indices)
    return *keys, *(indices[row] for row in results)


def _union(a: frozenset[str] | None, b: frozenset[str] | None) -> frozenset[str] | None:
    """Return the ways by which either row is read; None if every row counts."""
    return None if a is None or b is None else a | b


def _key(op: Operation) -> Hashable:
    match op:
        case Input(index=index):
            return "input", index
        case Constant():
            return "constant", op.key
        case Apply(index=index, key=key) if key is not None:
            return "apply", key, index
        case Apply():
            return "apply", id(op.function), op.index
        case Contract(terms=terms, out=out, precision=precision):
            # Labels are numbered in the order of their appearance.
            numbers: dict[int, int] = {}
            labels = [[numbers.setdefault(i, len(numbers)) for i in term] for term in (*terms, out)]
            return "contract", tuple(map(tuple, labels)), str(precision)
    return op
