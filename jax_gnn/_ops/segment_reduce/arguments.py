"""The arguments of segment reductions, checked, and what reductions are made of."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import GatherScatterMode

from jax_gnn._core.arguments import (
    argument_errors,
    as_array,
    as_ids,
    check_flag,
    check_integer,
    check_size,
)
from jax_gnn._core.arrays import DTYPES, FLOATS, JAX_OPS, STATIC, row_wise
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ffi import Implementation, check_implementation
from jax_gnn._core.ids import clip_ids, in_range, row_ids
from jax_gnn._core.sort import sorted_segments
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce, total


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Segments:
    """Which segment each element belongs to."""

    ids: Array
    size: int = field(metadata=STATIC)
    is_sorted: bool = field(metadata=STATIC)
    implementation: Implementation | None = field(metadata=STATIC)

    @functools.cached_property
    def matrix(self) -> SparseMatrix:
        return sorted_segments(self.ids, self.size, self.is_sorted, self.implementation)

    @property
    def valid(self) -> Array:
        return in_range(self.ids, self.size)

    @property
    def counts(self) -> Array:
        """Number of elements of each segment."""
        return total(jnp.ones_like(self.ids), self.matrix, self.implementation)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SegmentArgs:
    """Checked arguments of a reduction."""

    data: Array
    groups: Segments
    unique_indices: bool = field(metadata=STATIC)
    bucket_size: int | None = field(metadata=STATIC)

    def with_data(self, data: Array) -> SegmentArgs:
        return replace(self, data=data)

    def reduce(self, reduce: str) -> Array:
        groups = self.groups
        if reduce in ("sum", "prod") and self.data.dtype == bool:
            raise TypeError(f"data must be numbers, got {self.data.dtype}")
        if reduce in ("sum", "prod", "max", "min") and (
            self.data.dtype not in DTYPES or self.bucket_size is not None
        ):
            if groups.size == 0:  # for no segments, jax.ops has neither buckets nor gradients
                return self.data[:0]
            return JAX_OPS[reduce](
                self.data,
                clip_ids(groups.ids, groups.size),
                groups.size,
                groups.is_sorted,
                self.unique_indices,
                self.bucket_size,
            )
        return segment_reduce(
            *(self.data, None, groups.matrix),
            reduce=reduce,
            heads=1,
            implementation=groups.implementation,
        )

    def gather(self, x: Array) -> Array:
        """What the segment of each element has."""
        return gather(x, self.groups.matrix, self.groups.implementation)

    def row_wise(self, x: Array) -> Array:
        """Adds axes to a vector, to work with data."""
        return row_wise(x, self.data)


def as_floating(args: SegmentArgs) -> SegmentArgs:
    """With floating-point data; complex numbers are refused."""
    dtype = args.data.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"data must be real numbers, got {dtype}")
    return args if dtype in FLOATS else args.with_data(args.data.astype(jnp.float32))


def parse_segment_args(
    data: Any,
    segment_ids: Any,
    num_segments: Any,
    indices_are_sorted: Any,
    unique_indices: Any,
    bucket_size: Any,
    mode: Any,
    indptr: Any,
    implementation: Any,
) -> SegmentArgs:
    """The arguments that all reductions have, checked."""
    data = as_array("data", data)
    if data.ndim == 0:
        raise ValueError("data must be (num_elements, *features), got shape ()")
    ids, size, is_sorted = _check_segments(
        data.shape, segment_ids, num_segments, indices_are_sorted, mode, indptr
    )
    check_implementation(implementation)
    return SegmentArgs(
        data,
        Segments(ids, size, is_sorted, implementation),
        check_flag("unique_indices", unique_indices),
        _check_bucket_size(bucket_size, data.shape[0]),
    )


def _check_bucket_size(bucket_size: int | None, num_elements: int) -> int | None:
    if bucket_size is None:
        return None
    bucket_size = check_integer("bucket_size", bucket_size)
    if bucket_size < 1:
        raise ValueError(f"bucket_size must be positive, got {bucket_size}")
    return bucket_size if num_elements else None  # of nothing, jax.ops has no buckets


def _check_segments(
    shape: tuple[int, ...],
    segment_ids: Any,
    num_segments: int | None,
    is_sorted: bool,
    mode: Any,
    indptr: Any,
) -> tuple[Array, int, bool]:
    """Gives ids, number of segments and whether ids are sorted."""
    is_sorted = check_flag("indices_are_sorted", is_sorted)
    if not (mode is None or isinstance(mode, str | GatherScatterMode)):
        raise TypeError(f"mode must be a GatherScatterMode or its name, got {type(mode).__name__}")
    with argument_errors("mode", "a GatherScatterMode or its name", mode):
        clip = mode is not None and GatherScatterMode.from_any(mode) == GatherScatterMode.CLIP
    if (segment_ids is None) == (indptr is None):
        given = "none" if segment_ids is None else "both"
        raise TypeError(f"exactly one of segment_ids and indptr must be given, got {given}")
    if indptr is not None:
        indptr = as_ids("indptr", indptr)
        if indptr.shape[0] == 0:
            raise ValueError(f"indptr must have at least one element, got shape {indptr.shape}")
        size = indptr.shape[0] - 1
        if num_segments is not None and check_size("num_segments", num_segments) != size:
            raise ValueError(f"num_segments must be {size} as indptr says, got {num_segments}")
        return row_ids(clip_ids(indptr, shape[0]), shape[0]), size, True
    ids = as_ids("segment_ids", segment_ids)
    if ids.shape[0] != shape[0]:
        raise ValueError(
            f"segment_ids must be (num_elements={shape[0]},) as data has shape {shape}, "
            f"got shape {ids.shape}"
        )
    size = check_size("num_segments", num_segments, ids)
    if clip:
        ids = jnp.clip(ids, 0, max(size - 1, 0))
    return ids, size, is_sorted
