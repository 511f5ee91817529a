"""Reductions over segments: drop-in for ``jax.ops.segment_*``, and more of their kind.

Segments are given by an id for each element, sorted or not, or by a row pointer. Kernels are those
of :mod:`jax_gnn.segments`; where a kernel wants them sorted, unsorted ids are sorted first, and
elements read in that order.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.lax import GatherScatterMode

from jax_gnn import _ffi, _index, segments
from jax_gnn.views import (
    DTYPES,
    FLOATS,
    JAX_OPS,
    STATIC,
    View,
    Views,
    accumulator_dtype,
    as_ids,
    flat,
    in_range,
    spread,
)

# --- The signature of all reductions -------------------------------------------------------------

_ARGUMENTS = """
    Args:
        data: ``(num_elements, *features)`` elements. float16, bfloat16 (which accumulate in
            float32), float32, float64, int32 and int64 go to kernels, other dtypes to plain XLA.
        segment_ids: ``(num_elements,)`` integers, the segment of each element. Elements with an id
            outside ``[0, num_segments)`` are dropped: they are not read, and their gradient is 0.
        num_segments: number of segments; by default the largest id plus one, which must be
            concrete then.
        indices_are_sorted: whether ids ascend; otherwise they are sorted first, or plain XLA does
            the work.
        unique_indices: whether no id occurs twice; of no use to kernels.
        bucket_size: where given, a positive integer, sums, products, maxima and minima are left to
            ``jax.ops``, where what ties for a maximum shares its gradient within each bucket.
        mode: a :class:`jax.lax.GatherScatterMode` or its name: ``"clip"`` takes an id out of range
            for the nearest segment.
        indptr: ``(num_segments + 1,)`` integers in place of ``segment_ids``: where each segment
            starts, and where the last one ends.
        implementation: see :func:`jax_gnn.implementation`.

    Raises:
        TypeError: ids are not integers, not exactly one of ``segment_ids`` and ``indptr`` is given,
            ``num_segments`` is missing where ids are traced, or a dtype makes no sense.
        ValueError: wrong shapes, or a size out of range.
"""


class Reduction(Protocol):
    """A function of data and segments, called like those of ``jax.ops``."""

    def __call__(
        self,
        data: Array,
        segment_ids: Array | None = None,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
        *,
        indptr: Array | None = None,
        implementation: _ffi.Implementation | None = None,
        **options: Any,
    ) -> Array:
        """Reduces ``(num_elements, *features)``."""


def _reduction(rule: Callable[..., Array]) -> Reduction:
    """Makes a public reduction of a function of a :class:`_Problem` and static options."""
    # Compiled as a whole, also when called eagerly: the same roundings everywhere.
    options_of_rule = tuple(inspect.signature(rule).parameters)[1:]
    compiled = jax.jit(rule, static_argnames=options_of_rule)

    def function(
        data: Array,
        segment_ids: Array | None = None,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: Any = None,
        *,
        indptr: Array | None = None,
        implementation: _ffi.Implementation | None = None,
        **options: Any,
    ) -> Array:
        data = _check_data(data)
        ids, size, is_sorted = _check_segments(
            data.shape, segment_ids, num_segments, indices_are_sorted, mode, indptr
        )
        _ffi.check_implementation(implementation)
        groups = _Segments(ids, size, is_sorted, implementation)
        unique_indices = _index.check_flag("unique_indices", unique_indices)
        bucket_size = _check_bucket_size(bucket_size, data.shape[0])
        for name in options.keys() & set(options_of_rule):
            options[name] = _index.check_integer(name, options[name])
        return compiled(_Problem(data, groups, unique_indices, bucket_size), **options)

    function.__name__ = function.__qualname__ = rule.__name__
    function.__doc__ = f"{rule.__doc__}{_ARGUMENTS}"
    return function


# --- Reductions ----------------------------------------------------------------------------------


@_reduction
def segment_sum(problem: _Problem) -> Array:
    """Sums the elements of each segment: :func:`jax.ops.segment_sum`.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, 0 for empty segments.

    Example:
        >>> segment_sum(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([4., 0., 2.], dtype=float32)
    """
    return problem.reduce("sum")


@_reduction
def segment_mean(problem: _Problem) -> Array:
    """The mean of each segment.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers; 0 for empty
        segments.

    Example:
        >>> segment_mean(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([2., 0., 2.], dtype=float32)
    """
    if jnp.issubdtype(problem.data.dtype, jnp.complexfloating):
        counts = jnp.maximum(problem.groups.counts, 1).astype(problem.data.dtype)
        return problem.reduce("sum") / problem.spread(counts)
    return _real(problem).reduce("mean")


@_reduction
def segment_max(problem: _Problem) -> Array:
    """The maximum of each segment: :func:`jax.ops.segment_max`.

    Elements that tie for the maximum share its gradient equally.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``: NaN where there is one, the least
        value of the dtype (-inf) for empty segments.

    Example:
        >>> segment_max(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([  3., -inf,   2.], dtype=float32)
    """
    return problem.reduce("max")


@_reduction
def segment_min(problem: _Problem) -> Array:
    """The minimum of each segment: :func:`jax.ops.segment_min`.

    Elements that tie for the minimum share its gradient equally.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``: NaN where there is one, the largest
        value of the dtype (inf) for empty segments.

    Example:
        >>> segment_min(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([ 1., inf,  2.], dtype=float32)
    """
    return problem.reduce("min")


@_reduction
def segment_prod(problem: _Problem) -> Array:
    """The product of each segment: :func:`jax.ops.segment_prod`.

    Gradients are right where elements are 0, too. There are none where plain XLA does the work, of
    complex numbers or with a ``bucket_size``.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, 1 for empty segments.

    Example:
        >>> segment_prod(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([3., 1., 2.], dtype=float32)
    """
    return problem.reduce("prod")


@_reduction
def segment_var(problem: _Problem, *, ddof: int = 0) -> Array:
    """The variance of each segment: the mean of the squared distances from its mean.

    The sum of squares is divided by the number of elements minus the integer ``ddof``.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers; 0 for segments
        of no more than ``ddof`` elements.

    Example:
        >>> segment_var(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([1., 0., 0.], dtype=float32)
    """
    problem = _real(problem)
    return _variance(problem, ddof).astype(problem.data.dtype)


@_reduction
def segment_std(problem: _Problem, *, ddof: int = 0) -> Array:
    """The standard deviation of each segment: the root of :func:`segment_var`.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers. Where it is 0,
        so is its gradient.

    Example:
        >>> segment_std(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([1., 0., 0.], dtype=float32)
    """
    problem = _real(problem)
    variance = _variance(problem, ddof)
    positive = variance > 0
    root = jnp.sqrt(jnp.where(positive, variance, 1))
    return jnp.where(positive, root, variance).astype(problem.data.dtype)  # NaN stays


@_reduction
def segment_logsumexp(problem: _Problem) -> Array:
    """The logarithm of the sum of exponentials of each segment, without overflow.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers; -inf for empty
        segments.

    Example:
        >>> segment_logsumexp(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([3.126928,     -inf, 2.      ], dtype=float32)
    """
    return _real(problem).reduce("logsumexp")


@_reduction
def segment_softmax(problem: _Problem) -> Array:
    """The softmax over the elements of each segment.

    Returns:
        ``(num_elements, *features)`` in the dtype of ``data``, float32 for integers: exp(data) over
        its sum in the segment; 0 where an id is out of range.

    Example:
        >>> segment_softmax(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([0.11920293, 0.88079715, 1.        ], dtype=float32)
    """
    problem = _real(problem)
    groups, x = problem.groups, flat(problem.data)
    if groups.is_sorted:
        y = segments.segment_softmax(x, groups.views, implementation=groups.implementation)
    else:
        rows, order = groups.views.forward.rows, groups.views.forward.cols
        assert rows is not None
        assert order is not None
        count = order.shape[0]
        inverse = (
            jnp.zeros_like(order)
            .at[order]
            .set(jnp.arange(count, dtype=order.dtype), unique_indices=True)
        )
        sort = Views(View(None, order, None, count), View(None, inverse, None, count))
        y = segments.segment_softmax(
            segments.total(x, sort, groups.implementation),
            segments.segment_views(rows, groups.size, True),
            implementation=groups.implementation,
        )
        y = segments.total(y, sort.swapped, groups.implementation)
    return y.reshape(problem.data.shape)


@_reduction
def segment_argmax(problem: _Problem) -> Array:
    """Which element is the maximum of each segment; of several, the first.

    Returns:
        ``(num_segments, *features)`` integers: positions in ``data``, where a NaN counts as the
        maximum; -1 for empty segments.

    Example:
        >>> segment_argmax(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([ 1, -1,  2], dtype=int32)
    """
    data = jax.lax.stop_gradient(problem.data)
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        raise TypeError(f"data must be real numbers, got {data.dtype}")
    problem = problem.with_data(data)
    top = problem.gather(problem.reduce("max"))
    attained = (data == top) | ((data != data) & (top != top))
    count = data.shape[0]
    positions = problem.spread(jnp.arange(count, dtype=problem.groups.ids.dtype))
    first = problem.with_data(jnp.where(attained, positions, count)).reduce("min")
    return jnp.where(first < count, first, -1)


def _variance(problem: _Problem, ddof: int) -> Array:
    # Half types would lose the differences.
    data = problem.data.astype(accumulator_dtype(problem.data.dtype))
    counts = problem.spread(problem.groups.counts)
    means = problem.gather(problem.with_data(data).reduce("mean"))
    differences = jnp.where(problem.spread(problem.groups.valid), data - means, 0)
    squares = problem.with_data(differences**2).reduce("sum")
    divisors = jnp.maximum(counts - ddof, 1).astype(squares.dtype)
    return jnp.where(counts > ddof, squares / divisors, 0)


# --- Static indices ------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SegmentIndex:
    """Ids known beforehand: gather and segment sum as each other's transpose, both by kernels.

    For code that closes over the senders and receivers of a fixed mesh, as weather models do. Ids
    are sorted once, on the host; nothing is sorted or scattered later, forward or backward::

        senders = SegmentIndex.from_ids(senders, num_nodes)
        receivers = SegmentIndex.from_ids(receivers, num_nodes)

        def step(nodes, edges):
            messages = mlp(edges, senders.gather(nodes), receivers.gather(nodes))
            return receivers.segment_sum(messages)

    A pytree: close over it, or pass it through ``jax.jit``. Elements with an id out of range are
    padding: they get zeros, and are not summed.

    Example:
        >>> senders = SegmentIndex.from_ids([2, 0, 2], num_segments=3)
        >>> senders.gather(jnp.array([1.0, 2.0, 3.0]))
        Array([3., 1., 3.], dtype=float32)
        >>> senders.segment_sum(jnp.array([1.0, 2.0, 3.0]))
        Array([2., 0., 4.], dtype=float32)
    """

    views: Views

    @classmethod
    def from_ids(cls, ids: Any, num_segments: int) -> SegmentIndex:
        """Builds the index.

        Args:
            ids: ``(num_elements,)`` concrete integers, the segment of each element, in any order.
            num_segments: number of segments, which are the rows that :meth:`gather` reads.

        Raises:
            TypeError: ids are traced or not integers, or ``num_segments`` is not an integer.
            ValueError: ids are not one-dimensional, or ``num_segments`` is negative.
        """
        if isinstance(ids, jax.core.Tracer):
            raise TypeError("ids must be concrete: build the SegmentIndex outside of jax.jit")
        num_segments = _index.check_size("num_segments", num_segments)
        ids = np.asarray(as_ids("ids", ids))
        backward = View(None, jnp.asarray(ids), None, ids.shape[0])
        if (ids[1:] >= ids[:-1]).all():
            return cls(Views(View(backward.cols, None, None, num_segments), backward))
        order = np.argsort(ids, kind="stable").astype(ids.dtype)
        rows = jnp.asarray(ids[order])
        return cls(Views(View(rows, jnp.asarray(order), None, num_segments), backward))

    def gather(self, x: Array, *, implementation: _ffi.Implementation | None = None) -> Array:
        """The rows of x that the ids name.

        Args:
            x: ``(num_segments, *features)``, of a dtype that :func:`segment_sum` has kernels for.
            implementation: see :func:`jax_gnn.implementation`.

        Returns:
            ``(num_elements, *features)``.

        Raises:
            TypeError: another dtype.
            ValueError: another number of rows.
        """
        return self._total("x", x, self.views.swapped, implementation)

    def segment_sum(
        self, data: Array, *, implementation: _ffi.Implementation | None = None
    ) -> Array:
        """The sum of each segment.

        Args:
            data: ``(num_elements, *features)``, of a dtype that :func:`segment_sum` has kernels
                for.
            implementation: see :func:`jax_gnn.implementation`.

        Returns:
            ``(num_segments, *features)``.

        Raises:
            TypeError: another dtype.
            ValueError: another number of rows.
        """
        return self._total("data", data, self.views, implementation)

    @staticmethod
    def _total(
        name: str, x: Any, views: Views, implementation: _ffi.Implementation | None
    ) -> Array:
        x = _index.as_array(name, x)
        if x.dtype not in DTYPES:
            names = ", ".join(jnp.dtype(dtype).name for dtype in DTYPES)
            raise TypeError(f"{name} must be one of {names}, got {x.dtype}")
        size = views.backward.num_rows
        if x.ndim == 0 or x.shape[0] != size:
            raise ValueError(f"{name} must be ({size}, *features), got shape {x.shape}")
        return segments.total(x, views, implementation)


# --- Arguments -----------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Segments:
    """Which segment each element belongs to."""

    ids: Array
    size: int = field(metadata=STATIC)
    is_sorted: bool = field(metadata=STATIC)
    implementation: _ffi.Implementation | None = field(metadata=STATIC)

    @functools.cached_property
    def views(self) -> Views:
        return segments.segment_views(self.ids, self.size, self.is_sorted, self.implementation)

    @property
    def valid(self) -> Array:
        return in_range(self.ids, self.size)

    @property
    def counts(self) -> Array:
        """Number of elements of each segment."""
        return segments.total(jnp.ones_like(self.ids), self.views, self.implementation)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Problem:
    """Checked arguments of a reduction."""

    data: Array
    groups: _Segments
    unique_indices: bool = field(metadata=STATIC)
    bucket_size: int | None = field(metadata=STATIC)

    def with_data(self, data: Array) -> _Problem:
        return replace(self, data=data)

    def reduce(self, reduce: str) -> Array:
        groups = self.groups
        if reduce in ("sum", "prod") and self.data.dtype == bool:
            raise TypeError(f"data must be numbers, got {self.data.dtype}")
        if reduce in ("sum", "prod", "max", "min") and (
            self.data.dtype not in DTYPES or self.bucket_size is not None
        ):
            if groups.size == 0:
                return self.data[:0]  # for no segments, jax.ops has neither buckets nor gradients
            return JAX_OPS[reduce](
                self.data,
                _index.bounded(groups.ids, groups.size),
                groups.size,
                groups.is_sorted,
                self.unique_indices,
                self.bucket_size,
            )
        return segments.segment_reduce(
            *(self.data, None, groups.views),
            reduce=reduce,
            heads=1,
            implementation=groups.implementation,
        )

    def gather(self, x: Array) -> Array:
        """What the segment of each element has."""
        return segments.gather(x, self.groups.views, self.groups.implementation)

    def spread(self, x: Array) -> Array:
        """Adds axes to a vector, to work with data."""
        return spread(x, self.data)


def _real(problem: _Problem) -> _Problem:
    dtype = problem.data.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"data must be real numbers, got {dtype}")
    return problem if dtype in FLOATS else problem.with_data(problem.data.astype(jnp.float32))


def _check_data(data: Any) -> Array:
    data = _index.as_array("data", data)
    if data.ndim == 0:
        raise ValueError("data must be (num_elements, *features), got shape ()")
    return data


def _check_bucket_size(bucket_size: int | None, num_elements: int) -> int | None:
    if bucket_size is None:
        return None
    bucket_size = _index.check_integer("bucket_size", bucket_size)
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
    is_sorted = _index.check_flag("indices_are_sorted", is_sorted)
    if not (mode is None or isinstance(mode, str | GatherScatterMode)):
        raise TypeError(f"mode must be a GatherScatterMode or its name, got {type(mode).__name__}")
    with _index.blame("mode", "a GatherScatterMode or its name"):
        clip = mode is not None and GatherScatterMode.from_any(mode) == GatherScatterMode.CLIP
    if (segment_ids is None) == (indptr is None):
        raise TypeError("exactly one of segment_ids and indptr must be given")
    if indptr is not None:
        indptr = as_ids("indptr", indptr)
        if indptr.shape[0] == 0:
            raise ValueError("indptr must have at least one element")
        size = indptr.shape[0] - 1
        if num_segments is not None and _index.check_size("num_segments", num_segments) != size:
            raise ValueError(f"num_segments must be {size} as indptr says, got {num_segments}")
        return _index.row_ids(_index.bounded(indptr, shape[0]), shape[0]), size, True
    ids = as_ids("segment_ids", segment_ids)
    if ids.shape[0] != shape[0]:
        raise ValueError(
            f"segment_ids must be (num_elements={shape[0]},) as data has shape {shape}, "
            f"got shape {ids.shape}"
        )
    size = _index.check_size("num_segments", num_segments, ids)
    if clip:
        ids = jnp.clip(ids, 0, max(size - 1, 0))
    return ids, size, is_sorted
