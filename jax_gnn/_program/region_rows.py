"""Rows of edges that a region may contain: functions and products that its kernels compute."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_gnn._core.arrays import FLOATS
from jax_gnn._ops.edge_region.channels import MAX_UNROLLED_WEIGHTS
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import Access, Unsupported, abstract_row
from jax_gnn._program.backend import backend
from jax_gnn._program.match import Matcher
from jax_gnn._program.normal import summed_labels
from jax_gnn._program.patterns import Einsum, Factor, TypedDots, factors_of, width
from jax_gnn._program.rows import Apply, Constant, Contract, Row, RowFunction, sizes_of
from jax_gnn._program.spaces import Space

# Weights of a matrix in a region that tensor cores multiply with; larger ones are left to XLA.
_MAX_TENSOR_CORE_WEIGHTS = 1 << 15

_LOOPS = frozenset({"cond", "scan", "while"})


def fits_region(row: Row, matcher: Matcher, linear_maps: bool, space: Space = Space.EDGE) -> bool:
    """Whether a row is a function of edges, or of nodes, that a region may contain."""
    if row.space is not space or not is_number(row):
        return False
    if any(x.size == 0 for x in (row, *row.operands)):
        return False  # kernels read and write rows of a number at least
    if isinstance(row.op, Apply):
        return unsupported_reason(row) is None
    pattern = matcher(row)
    is_dot = isinstance(pattern, TypedDots) and not pattern.x.way
    if not isinstance(row.op, Contract) or not (is_dot or isinstance(pattern, Einsum)):
        return False
    factors, _ = factors_of(row)
    sizes = sizes_of(row.operands, row.op.terms)
    summed = set(sizes) - set(row.op.out)
    weights = [
        width(factor.labels, sizes)
        for factor in factors
        if factor.row.is_shared
        and set(factor.labels) & summed
        and not isinstance(factor.row.op, Constant)
    ]
    if not weights:
        return True
    # What edges only read is multiplied where it is read.
    only_reads = all(factor.way or factor.row.is_shared for factor in factors)
    limit = _max_weights(row, factors) if linear_maps else MAX_UNROLLED_WEIGHTS
    return max(weights) <= limit and not only_reads


def _max_weights(row: Row, factors: Sequence[Factor]) -> int:
    """Return the most weights of a product in a region; more for tensor cores."""
    if len(factors) == 2:
        matrix, x = sorted(factors, key=lambda factor: not factor.row.is_shared)
        is_map = not x.row.is_shared and set(x.labels) < set(matrix.labels)
        if is_map and backend() == "cuda" and row.dtype != np.float64:
            return _MAX_TENSOR_CORE_WEIGHTS
    return MAX_UNROLLED_WEIGHTS


def linear_maps_of(row: Row) -> list[Row]:
    """Return the shared matrices of a region's product that tensor cores multiply with."""
    operands = row.operands if isinstance(row.op, Contract) and summed_labels(row) else ()
    return [
        x
        for x in operands
        if x.is_shared and x.size > MAX_UNROLLED_WEIGHTS and not isinstance(x.op, Constant)
    ]


def unsupported_reason(row: Row) -> str | None:
    """Return why regions cannot contain a function; None if they can."""
    assert isinstance(row.op, Apply)
    if row.op.name in _LOOPS:
        return f"{row.op.name} is a loop"
    for operand in (row, *row.operands):
        if not is_number(operand):
            return f"regions have no {operand.dtype}"
    operands = tuple((x.shape, x.dtype, x.is_shared) for x in row.operands)
    return _unsupported_reason(row.op.function, row.op.index, operands)


@functools.lru_cache(maxsize=1024)
def _unsupported_reason(
    function: RowFunction, index: int, operands: tuple[tuple[tuple[int, ...], Any, bool], ...]
) -> str | None:
    rows = [abstract_row(shape, dtype) for shape, dtype, _ in operands]
    accesses: list[Access] = ["shared" if is_shared else "edge" for _, _, is_shared in operands]
    region = Region.of(lambda *x: [function(*x)[index]], rows, accesses, [("edge", "none")])
    return region.program.reason if isinstance(region.program, Unsupported) else None


def is_number(row: Row) -> bool:
    return row.dtype in FLOATS or row.dtype == bool or isinstance(row.op, Constant)
