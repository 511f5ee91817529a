"""Functions of rows of pairs, made by each edge that reads them instead of once for each pair.

An edge region reads what the function takes, and computes it where messages are summed: no array of
the function's results is written and read. `compact_pairs` moves such functions to pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_gnn._program.normal import summed_labels
from jax_gnn._program.rows import Apply, Contract, Pull, Row, pull, rewrite
from jax_gnn._program.spaces import Space

_MIN_WIDTH = 8  # numbers of a row that is worth making again


def inline_pairs(results: Sequence[Row]) -> list[Row]:
    """Return the program with wide functions of (source, relation) pairs made by edges."""
    return rewrite(results, _inline)


def _inline(row: Row) -> Row:
    if not is_inlinable(row):
        return row
    (function,) = row.operands
    assert isinstance(function.op, Apply | Contract)
    operands = [_inline(pull(x, Space.EDGE, "src_pair")) for x in function.operands]
    op = replace(function.op, read_by=None)
    return Row(op, tuple(operands), Space.EDGE, row.shape, row.dtype, row.line)


def is_inlinable(row: Row) -> bool:
    """Whether an edge reads what its pair has, and can make it by a function of few operations."""
    if not isinstance(row.op, Pull) or row.op.way != "src_pair" or row.size < _MIN_WIDTH:
        return False
    (function,) = row.operands
    is_product = isinstance(function.op, Contract) and not summed_labels(function)
    return is_product or isinstance(function.op, Apply)
