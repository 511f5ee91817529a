"""The parsed arguments of segment reductions, and the reductions that results are composed of."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import GatherScatterMode
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import DTYPES, FLOATS, JAX_OPS, STATIC, row_wise
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import clip_ids, in_range, row_ids
from jax_gnn._ops.segment_order.primitive import sorted_segments
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce, total


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Segments:
    """The segment of each element, ``(num_elements,)``, of ``size`` segments."""

    ids: Array
    size: int = field(metadata=STATIC)
    is_sorted: bool = field(metadata=STATIC)

    @functools.cached_property
    def matrix(self) -> SparseMatrix:
        return sorted_segments(self.ids, self.size, self.is_sorted)

    @property
    def valid(self) -> Array:
        return cast(Array, in_range(self.ids, self.size))

    @property
    def counts(self) -> Array:
        """Number of elements of each segment."""
        return total(jnp.ones_like(self.ids), self.matrix)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SegmentArgs:
    """Parsed arguments of a reduction: ``data`` is ``(num_elements, *features)``."""

    data: Array
    segments: Segments
    unique_indices: bool = field(default=False, metadata=STATIC)
    bucket_size: int | None = field(default=None, metadata=STATIC)

    def with_data(self, data: Array) -> SegmentArgs:
        return replace(self, data=data)

    def with_jax_options(self, unique_indices: object, bucket_size: int | None) -> SegmentArgs:
        """Add the parsed options that only the reductions of ``jax.ops`` have."""
        unique_indices = arguments.check_flag("unique_indices", unique_indices)
        if bucket_size is not None:
            bucket_size = arguments.check_integer("bucket_size", bucket_size)
            if bucket_size < 1:
                raise ValueError(f"bucket_size must be positive, got {bucket_size}")
        # jax.ops cannot put an empty array into buckets.
        bucket_size = bucket_size if self.data.shape[0] else None
        return replace(self, unique_indices=unique_indices, bucket_size=bucket_size)

    def reduce(self, reduce: str) -> Array:
        """Reduce the data by a kernel, or by ``jax.ops`` where kernels lack dtype or buckets."""
        segments, dtype = self.segments, self.data.dtype
        if reduce in ("sum", "prod") and dtype == jnp.bool_:
            raise TypeError(f"data must be numbers, got {dtype}")
        if reduce in JAX_OPS and (dtype not in DTYPES or self.bucket_size is not None):
            if segments.size == 0:  # jax.ops has neither buckets nor gradients for no segments
                return self.data[:0]
            result: Array = JAX_OPS[reduce](
                self.data,
                clip_ids(segments.ids, segments.size),
                segments.size,
                segments.is_sorted,
                self.unique_indices,
                self.bucket_size,
            )
            return result
        return cast(Array, segment_reduce(self.data, None, segments.matrix, reduce=reduce, heads=1))

    def gather(self, x: Array) -> Array:
        """Return for each element the row of ``x`` of its segment."""
        return gather(x, self.segments.matrix)

    def row_wise(self, x: Array) -> Array:
        """Add axes to a vector, so that it broadcasts against the data."""
        return row_wise(x, self.data)


def as_floating(args: SegmentArgs) -> SegmentArgs:
    """Convert the data to floating-point numbers; complex numbers are refused."""
    dtype = args.data.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"data must be real numbers, got {dtype}")
    return args if dtype in FLOATS else args.with_data(args.data.astype(jnp.float32))


def parse(
    data: ArrayLike,
    segment_ids: ArrayLike | None,
    num_segments: int | None,
    indices_are_sorted: object,
    mode: GatherScatterMode | str | None,
    indptr: ArrayLike | None,
) -> SegmentArgs:
    """Check the arguments that all reductions share, and convert them to one record."""
    data = arguments.as_array("data", data)
    if data.ndim == 0:
        raise ValueError("data must be (num_elements, *features), got shape ()")
    count, is_sorted = data.shape[0], arguments.check_flag("indices_are_sorted", indices_are_sorted)
    if not (mode is None or isinstance(mode, str | GatherScatterMode)):
        raise TypeError(f"mode must be a GatherScatterMode or its name, got {type(mode).__name__}")
    with arguments.argument_errors("mode", "a GatherScatterMode or its name", mode):
        clip = mode is not None and GatherScatterMode.from_any(mode) == GatherScatterMode.CLIP
    if (segment_ids is None) == (indptr is None):
        got = "none" if segment_ids is None else "both"
        raise TypeError(f"exactly one of segment_ids and indptr must be given, got {got}")
    # Row pointers become sorted ids, the form that all reductions take.
    if indptr is not None:
        starts = arguments.to_array("indptr", indptr)
        indptr = arguments.as_ids("indptr", indptr)
        if isinstance(starts, np.ndarray) and (starts[1:] < starts[:-1]).any():
            raise ValueError(f"indptr must ascend, got {starts}")
        if indptr.shape[0] == 0:
            raise ValueError(f"indptr must have at least one element, got shape {indptr.shape}")
        size, is_sorted = indptr.shape[0] - 1, True
        if num_segments is not None and arguments.check_size("num_segments", num_segments) != size:
            raise ValueError(f"num_segments must be {size} as indptr says, got {num_segments}")
        ids = row_ids(clip_ids(indptr, count), count)
    else:
        ids = arguments.as_ids("segment_ids", segment_ids)
        if ids.shape[0] != count:
            raise ValueError(
                f"segment_ids must be (num_elements={count},) as data has shape {data.shape}, "
                f"got shape {ids.shape}"
            )
        size = arguments.check_size("num_segments", num_segments, ids)
        ids = jnp.clip(ids, 0, max(size - 1, 0)) if clip else ids
    return SegmentArgs(data, Segments(ids, size, is_sorted))
