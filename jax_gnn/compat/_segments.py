"""Segments as ``jax.ops`` takes them, if this library takes them too; and what is known of ids."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import GatherScatterMode

from jax_gnn import SegmentIndex
from jax_gnn._core.arrays import DTYPES, FLOATS, row_width, row_wise
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import MAX_SIZE, as_signed, is_traced
from jax_gnn._core.sort import sorted_segments
from jax_gnn._ops.segment_reduce.primitive import segment_reduce

ARGUMENTS = ("data", "segment_ids", "num_segments", "indices_are_sorted", "unique_indices")
_DROPS = (None, "drop", "fill", "promise_in_bounds")
_DROPPING = (GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS)


@dataclass(frozen=True, eq=False)
class Known:
    """What a look at concrete ids has shown.

    Attributes:
        is_sorted: whether they ascend.
        in_range: whether all of them name a segment.
        counts: how many elements each segment has.
        index: the sorted ids, where that is of use: not on a CPU.
    """

    is_sorted: bool
    in_range: bool
    counts: np.ndarray
    index: SegmentIndex | None


# On a CPU, from so many elements of a segment, or bytes of an element, kernels for sorted ids are
# not slower than XLA's scatter. Of maxima and products that holds of narrow elements, too, where
# both are a little larger than these.
_MANY, _WIDE_BYTES = 32, 128
_SOME, _NARROW_BYTES = 8, 32
# On a GPU, bytes of an element from which a sum by ids in any order is not slower than XLA's
# atomics, which run in one kernel with what reads or makes the elements.
_WIDE_BYTES_GPU = 768


@dataclass(frozen=True, eq=False)
class Segments:
    """Which segment each element belongs to; ids out of range are dropped.

    Attributes:
        ids: ``(elements,)`` integers.
        size: number of segments.
        is_sorted: whether ids ascend, as somebody says or a look has shown.
        known: None where ids are traced, or not worth a look.
    """

    ids: Array
    size: int
    is_sorted: bool
    known: Known | None

    def pays(self, name: str, x: Any, several: bool = False) -> bool:
        """Whether this library's reduction, with its derivatives, or several, is not slower.

        Of ids in any order, maxima and products on a CPU are not: a derivative wants them sorted.
        Beyond a CPU, ids in a program are sorted once; sums of narrow elements do not gain by it.
        """
        if jax.default_backend() != "cpu":
            wide = row_width(x) * x.dtype.itemsize >= _WIDE_BYTES_GPU
            gains = wide or several or name != "sum"
            return self.is_sorted or (self.known is not None and gains)
        return name == "sum" or self._by_sorted(name, x)

    def _by_sorted(self, name: str, x: Any) -> bool:
        """Whether the kernel for sorted ids does it."""
        if jax.default_backend() != "cpu":
            return self.is_sorted
        row_bytes, count = row_width(x) * x.dtype.itemsize, self.ids.shape[0]
        narrow = name != "sum" and count >= _SOME * self.size and row_bytes >= _NARROW_BYTES
        many = count >= _MANY * self.size
        return self.is_sorted and (many or row_bytes >= _WIDE_BYTES or narrow)

    def reduce(self, name: str, x: Array) -> Array:
        """The reduction of each segment."""
        if self.known is not None and self.known.index is not None:
            return _reduced(x, self.known.index.matrix, name)
        return _segment(x, self.ids, self.size, self._by_sorted(name, x), name)

    def sum(self, x: Array) -> Array:
        """The sum of each segment."""
        return self.reduce("sum", x)

    def counts(self, x: Array) -> Array:
        """Number of elements of each segment, with the axes and the dtype of ``x``."""
        if self.known is not None:
            return row_wise(jnp.asarray(self.known.counts, x.dtype), x)
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        counts = self.sum(jnp.ones(self.ids.shape, dtype))
        return row_wise(counts, x).astype(x.dtype)

    def gather(self, x: Array) -> Array:
        """``x[ids]``, whatever JAX makes of ids out of range."""
        known = self.known
        if known is None or not known.in_range or x.dtype not in DTYPES:
            return x[self.ids]
        if known.index is not None:
            return known.index.gather(x)
        return _gather(x, self.ids, self.size, self._by_sorted("sum", x))


def _reduced(x: Array, matrix: SparseMatrix, reduce: str) -> Array:
    return segment_reduce(x, None, matrix, reduce=reduce, heads=1)


# Compiled, also where called eagerly: a sort that nothing needs is dropped.


@functools.partial(jax.jit, static_argnames=("size", "is_sorted", "reduce"))
def _segment(x: Array, ids: Array, size: int, is_sorted: bool, reduce: str) -> Array:
    return _reduced(x, sorted_segments(ids, size, is_sorted), reduce)


@functools.partial(jax.jit, static_argnames=("size", "is_sorted"))
def _gather(x: Array, ids: Array, size: int, is_sorted: bool) -> Array:
    return _reduced(x, sorted_segments(ids, size, is_sorted).T, "sum")


def segments_of(
    data: Any,
    ids: Any,
    size: Any,
    is_sorted: Any = False,
    *,
    dtypes: Any = DTYPES,
    mode: Any = None,
) -> Segments | None:
    """The segments, if this library takes them; None leaves all to the function replaced."""
    arrays = (np.ndarray, jax.Array)
    if not (isinstance(data, arrays) and isinstance(ids, arrays) and isinstance(is_sorted, bool)):
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
    known = None
    if not is_traced(ids) and _is_staged():
        known = _look(ids, int(size))
    is_sorted = is_sorted if known is None else known.is_sorted
    return Segments(as_signed(jnp.asarray(ids)), int(size), is_sorted, known)


def _drops(mode: Any) -> bool:
    """Whether what is out of range is dropped, or said not to be there."""
    return mode in _DROPS if mode is None or isinstance(mode, str) else mode in _DROPPING


def is_sharded(*arrays: Any) -> bool:
    """Whether it is for the compiler to spread the work over devices."""
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


def _is_staged() -> bool:
    """Whether this is traced for a program, and so but once."""
    return is_traced(jnp.zeros(()))


_seen: dict[int, tuple[Any, dict[int, Known]]] = {}
"""What is known of an array of JAX, by its id while it lives, and by the number of segments."""


def _look(ids: Any, size: int) -> Known:
    if not isinstance(ids, jax.Array):  # of numpy: may change
        return _known(ids, size)
    key = id(ids)
    if key not in _seen:
        _seen[key] = weakref.ref(ids, lambda _: _seen.pop(key, None)), {}
    found = _seen[key][1]
    if size not in found:
        found[size] = _known(np.asarray(ids), size)
    return found[size]


def _known(ids: np.ndarray, size: int) -> Known:
    with jax.ensure_compile_time_eval():
        ids = np.asarray(jnp.asarray(ids))  # as narrow as JAX has it
        inside = (ids >= 0) & (ids < size)
        counts = np.bincount(ids[inside], minlength=size)
        sorts = jax.default_backend() != "cpu"
        index = SegmentIndex.from_ids(ids, size) if sorts else None
        return Known(not (ids[1:] < ids[:-1]).any(), bool(inside.all()), counts, index)


def by_name(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Arguments by name; None if there are others, or any twice: the original complains."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if len(given) != len(args) + len(kwargs) or not given.keys() <= set(names):
        return None
    return given


def replacing(
    original: Callable[..., Any], names: tuple[str, ...], ours: Callable[..., Any]
) -> Callable[..., Any]:
    """``ours`` in the place of a function; where it gives None, and for others' arguments, that."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        given = by_name(names, args, kwargs)
        result = None if given is None else ours(**given)
        return original(*args, **kwargs) if result is None else result

    return replacement


def reduction(name: str) -> Callable[..., Array | None]:
    """A reduction with the arguments of ``jax.ops``, which gives None where it is not for us."""

    def reduce(
        data: Any = None,
        segment_ids: Any = None,
        num_segments: Any = None,
        indices_are_sorted: Any = False,
        unique_indices: Any = False,
        bucket_size: Any = None,
        mode: Any = None,
    ) -> Array | None:
        del unique_indices
        if bucket_size is not None:
            return None
        segments = segments_of(data, segment_ids, num_segments, indices_are_sorted, mode=mode)
        if segments is None or not segments.pays(name, data):
            return None
        return segments.reduce(name, jnp.asarray(data))

    return reduce


__all__ = ["ARGUMENTS", "FLOATS", "Segments", "reduction", "replacing", "segments_of"]
