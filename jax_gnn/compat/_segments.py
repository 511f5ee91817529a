"""Segments of calls to replaced functions, and the cached analysis of their ids.

A *look* reads concrete ids while a program is traced: whether they ascend, and their counts. It
decides which kernels serve the call, and whether they are faster than the original function.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import GatherScatterMode

from jax_gnn import SegmentIndex
from jax_gnn._core.arrays import DTYPES, FLOATS, row_width, row_wise
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import MAX_SIZE, as_signed, is_traced
from jax_gnn._ops.segment_order.primitive import sorted_segments
from jax_gnn._ops.segment_reduce.primitive import segment_reduce
from jax_gnn._program.lift import is_tracing

ARGUMENTS = ("data", "segment_ids", "num_segments", "indices_are_sorted", "unique_indices")
_DROPS = (None, "drop", "fill", "promise_in_bounds")
_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


@dataclass(frozen=True, eq=False)
class Look:
    """Result of a look at concrete ids."""

    is_sorted: bool  # whether the ids ascend
    in_range: bool  # whether all ids name a segment
    counts: np.ndarray  # number of elements of each segment
    index: SegmentIndex | None  # the sorted ids; None on a CPU, whose kernels do not gain by them


# On a CPU, kernels for sorted ids are not slower than XLA's scatter from 32 elements of a segment
# or 128 bytes of an element on. Maxima and products also gain from 8 elements and 32 bytes on.
_MANY, _WIDE_BYTES = 32, 128
_SOME, _NARROW_BYTES = 8, 32
# On a GPU, bytes of an element from which a sum by ids in any order is not slower than XLA's
# atomics, which XLA fuses with the producer of the elements.
_WIDE_BYTES_GPU = 768


@dataclass(frozen=True, eq=False)
class Segments:
    """Segment of each element; ids out of range are dropped."""

    ids: Array  # (elements,) integers
    size: int  # number of segments
    is_sorted: bool  # whether ids ascend, as the caller says or a look has shown
    look: Look | None  # none if ids are traced, or a look does not pay

    def pays(self, name: str, x: Any, is_composite: bool = False) -> bool:
        """Return whether a replacement, with its derivatives, is not slower than the original.

        On a CPU, maxima and products of unsorted ids are slower, as their derivatives need sorted
        ids. On a GPU, ids of a program are sorted once, which sums of narrow elements do not gain
        by, unless the replacement is a composite of several reductions.
        """
        if jax.default_backend() != "cpu":
            is_wide = row_width(x) * x.dtype.itemsize >= _WIDE_BYTES_GPU
            gains = is_wide or is_composite or name != "sum"
            return self.is_sorted or (self.look is not None and gains)
        return name == "sum" or self._by_sorted(name, x)

    def _by_sorted(self, name: str, x: Any) -> bool:
        """Return whether to use the kernel for sorted ids."""
        if jax.default_backend() != "cpu":
            return self.is_sorted
        row_bytes, count = row_width(x) * x.dtype.itemsize, self.ids.shape[0]
        is_narrow = name != "sum" and count >= _SOME * self.size and row_bytes >= _NARROW_BYTES
        has_many = count >= _MANY * self.size
        return self.is_sorted and (has_many or row_bytes >= _WIDE_BYTES or is_narrow)

    def reduce(self, name: str, x: Array) -> Array:
        """Reduce each segment."""
        if self.look is not None and self.look.index is not None:
            return _reduced(x, self.look.index.matrix, name)
        return cast(Array, _segment(x, self.ids, self.size, self._by_sorted(name, x), name))

    def sum(self, x: Array) -> Array:
        """Sum each segment."""
        return self.reduce("sum", x)

    def counts(self, x: Array) -> Array:
        """Return the number of elements of each segment, with the axes and the dtype of ``x``."""
        if self.look is not None:
            return row_wise(jnp.asarray(self.look.counts, x.dtype), x)
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        counts = self.sum(jnp.ones(self.ids.shape, dtype))
        return row_wise(counts, x).astype(x.dtype)

    def gather(self, x: Array) -> Array:
        """Return ``x[ids]``, with JAX's result for ids out of range."""
        look = self.look
        if look is None or not look.in_range or x.dtype not in DTYPES:
            return x[self.ids]
        if look.index is not None:
            return look.index.gather(x)
        return cast(Array, _gather(x, self.ids, self.size, self._by_sorted("sum", x)))


def _reduced(x: Array, matrix: SparseMatrix, reduce: str) -> Array:
    return cast(Array, segment_reduce(x, None, matrix, reduce=reduce, heads=1))


# Jitted also for eager calls, since XLA then drops a sort that nothing needs.


@functools.partial(jax.jit, static_argnames=("size", "is_sorted", "reduce"))
def _segment(x: Array, ids: Array, size: int, is_sorted: bool, reduce: str) -> Array:
    return _reduced(x, sorted_segments(ids, size, is_sorted), reduce)


@functools.partial(jax.jit, static_argnames=("size", "is_sorted"))
def _gather(x: Array, ids: Array, size: int, is_sorted: bool) -> Array:
    return _reduced(x, sorted_segments(ids, size, is_sorted).T, "sum")


def segments_of(
    data: object = None,
    segment_ids: object = None,
    num_segments: object = None,
    indices_are_sorted: object = False,
    unique_indices: object = False,
    *,
    dtypes: Collection[Any] = DTYPES,
    mode: object = None,
) -> Segments | None:
    """Return the segments of a call of ``jax.ops``; None leaves the call to the original."""
    is_sorted, ids, size = indices_are_sorted, segment_ids, num_segments
    if not (is_array(data) and is_array(ids) and isinstance(is_sorted, bool)):
        return None
    count = data.shape[0] if data.ndim else None
    if not isinstance(count, int) or ids.shape != (count,) or ids.dtype.kind not in "iu":
        return None
    if jax.dtypes.canonicalize_dtype(data.dtype) not in dtypes or not _drops(mode):
        return None
    if size is None and count > 0 and not is_traced(ids):
        size = np.max(ids) + 1
    if not isinstance(size, int | np.integer) or isinstance(size, bool):
        return None
    if not (0 <= size < MAX_SIZE and count < MAX_SIZE) or is_sharded(data, ids):
        return None
    # A program is traced once and run often, so that a look pays; an eager call is not.
    look = _look(ids, int(size)) if not is_traced(ids) and is_traced(jnp.zeros(())) else None
    is_sorted = is_sorted if look is None else look.is_sorted
    return Segments(as_signed(jnp.asarray(ids)), int(size), is_sorted, look)


def is_array(value: object) -> TypeGuard[Array]:
    """Return whether a value is an array of numpy or of JAX."""
    return isinstance(value, np.ndarray | jax.Array)


def _drops(mode: object) -> bool:
    """Return whether a scatter's mode drops ids out of range, or promises that there are none."""
    return mode in _DROPS if mode is None or isinstance(mode, str) else mode in _DROPPING


def is_sharded(*arrays: object) -> bool:
    """Return whether XLA partitions the work over several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    if any(str(kind) != "Manual" for kind in mesh.axis_types) and mesh.size > 1:
        return True
    for x in arrays:
        if is_traced(x):
            if any(axis is not None for axis in jax.typeof(x).sharding.spec):
                return True
        elif isinstance(x, jax.Array) and len(x.sharding.device_set) > 1:
            return True
    return False


_looks: dict[int, tuple[weakref.ref[Any], dict[int, Look]]] = {}
"""Looks by number of segments, for each live JAX array of ids by its ``id``."""


def _look(ids: np.ndarray | Array, size: int) -> Look:
    if not isinstance(ids, jax.Array):  # numpy arrays are mutable
        return _new_look(ids, size)
    key = id(ids)
    if key not in _looks:
        _looks[key] = weakref.ref(ids, lambda _: _looks.pop(key, None)), {}
    looks = _looks[key][1]
    if size not in looks:
        looks[size] = _new_look(np.asarray(ids), size)
    return looks[size]


def _new_look(ids: np.ndarray, size: int) -> Look:
    with jax.ensure_compile_time_eval():
        ids = np.asarray(jnp.asarray(ids))  # narrowed as JAX narrows them
        is_valid = (ids >= 0) & (ids < size)
        counts = np.bincount(ids[is_valid], minlength=size)
        index = SegmentIndex.from_ids(ids, size) if jax.default_backend() != "cpu" else None
        return Look(not (ids[1:] < ids[:-1]).any(), bool(is_valid.all()), counts, index)


def replacing(
    original: Callable[..., Any],
    names: tuple[str, ...],
    ours: Callable[..., Any],
    is_reduction: bool = True,
) -> Callable[..., Any]:
    """Make a replacement that calls ``ours``, and the original where ``ours`` returns None.

    Unknown and repeated arguments go to the original, which raises the error. So do reductions
    while a lifted function is traced, as `jax_gnn.lift` finds JAX's scatters.
    """

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        by_name = {**dict(zip(names, args, strict=False)), **kwargs}
        is_valid = len(by_name) == len(args) + len(kwargs) and by_name.keys() <= set(names)
        is_valid = is_valid and not (is_reduction and is_tracing())
        result = ours(**by_name) if is_valid else None
        return original(*args, **kwargs) if result is None else result

    return replacement


def reduction(name: str) -> Callable[..., Array | None]:
    """Make a reduction with the arguments of ``jax.ops``; it returns None if it does not pay."""

    def reduce(data: object = None, bucket_size: object = None, **arguments: Any) -> Array | None:
        segments = None if bucket_size is not None else segments_of(data, **arguments)
        if segments is None or not segments.pays(name, data):
            return None
        return segments.reduce(name, jnp.asarray(data))

    return reduce


__all__ = ["ARGUMENTS", "FLOATS", "Segments", "reduction", "replacing", "segments_of"]
