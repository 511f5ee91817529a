"""The matrix of segments that are not sorted."""

from __future__ import annotations

from jax import Array

from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.sort import sorted_ids


def sorted_segments(
    ids: Array, num_segments: int, is_sorted: bool, implementation: str | None = None
) -> SparseMatrix:
    """The matrix of a reduction of ``(len(ids), features)`` into segments, sorted if need be."""
    if is_sorted:
        return segments(ids, num_segments)
    rows, order = sorted_ids(ids, num_segments, implementation)
    by_segment = Csr(rows, order, num_rows=num_segments, resorted=True)
    return SparseMatrix(by_segment, segments(ids, num_segments).by_col)
