"""Reductions over segments: drop-in for ``jax.ops.segment_*``, and more of their kind.

Segments are given by an id for each element, sorted or not, or by row pointers. Kernels that want
sorted ids get them sorted first, and read the elements in that order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import GatherScatterMode
from jax.typing import ArrayLike

from jax_gnn._core.arguments import check_integer
from jax_gnn._core.arrays import accumulator_dtype, as_matrix
from jax_gnn._core.csr import inverse_permutation, permutation, segments
from jax_gnn._core.public import Implementation, public
from jax_gnn._core.shapes import Float, Inexact, Int, Integer, Num, Real, Shaped
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.segment_reduce.arguments import SegmentArgs, as_floating, parse
from jax_gnn._ops.segment_reduce.primitive import total
from jax_gnn._ops.segment_softmax import primitive

F = TypeVar("F", bound=Callable[..., Array])

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
        mode: a :class:`jax.lax.GatherScatterMode` or its name: ``"clip"`` takes an id out of range
            for the nearest segment.
        indptr: ``(num_segments + 1,)`` integers in place of ``segment_ids``: the first element of
            each segment, and the end of the last segment.
        implementation: see :func:`jax_gnn.implementation`.
"""

_DROP_IN_ARGUMENTS = """        unique_indices: whether no id occurs twice; kernels do not use it.
        bucket_size: a positive integer leaves the reduction to ``jax.ops``, where elements that tie
            for a maximum share its gradient within each bucket.
"""

_ERRORS = """
    Raises:
        TypeError: ids are not integers, not exactly one of ``segment_ids`` and ``indptr`` is given,
            ``num_segments`` is missing where ids are traced, or a dtype makes no sense.
        ValueError: wrong shapes, a size out of range, or ``indptr`` of the host that descends.
"""


def _documented(function: F) -> F:
    """Append the arguments and errors that all reductions share to the docstring."""
    in_jax_ops = hasattr(jax.ops, function.__name__)
    arguments = _ARGUMENTS + (_DROP_IN_ARGUMENTS if in_jax_ops else "")
    function.__doc__ = f"{function.__doc__}{arguments}{_ERRORS}"
    return function


@public
@_documented
def segment_sum(
    data: Num[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: GatherScatterMode | str | None = None,
    *,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Num[Array, "num_segments *features"]:
    """Return the sum of each segment: :func:`jax.ops.segment_sum`.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, 0 for empty segments.

    Example:
        >>> segment_sum(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([4., 0., 2.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    args = args.with_jax_options(unique_indices, bucket_size)
    return _reduce(args, "sum")


@public
@_documented
def segment_mean(
    data: Num[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    mode: GatherScatterMode | str | None = None,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Inexact[Array, "num_segments *features"]:
    """Return the mean of each segment.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers; 0 for empty
        segments.

    Example:
        >>> segment_mean(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([2., 0., 2.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    return _mean(args)


@public
@_documented
def segment_max(
    data: Shaped[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: GatherScatterMode | str | None = None,
    *,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Shaped[Array, "num_segments *features"]:
    """Return the maximum of each segment: :func:`jax.ops.segment_max`.

    Elements that tie for the maximum share its gradient equally.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``: NaN if an element is NaN, the
        least value of the dtype (-inf) for empty segments.

    Example:
        >>> segment_max(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([  3., -inf,   2.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    args = args.with_jax_options(unique_indices, bucket_size)
    return _reduce(args, "max")


@public
@_documented
def segment_min(
    data: Shaped[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: GatherScatterMode | str | None = None,
    *,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Shaped[Array, "num_segments *features"]:
    """Return the minimum of each segment: :func:`jax.ops.segment_min`.

    Elements that tie for the minimum share its gradient equally.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``: NaN if an element is NaN, the
        largest value of the dtype (inf) for empty segments.

    Example:
        >>> segment_min(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([ 1., inf,  2.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    args = args.with_jax_options(unique_indices, bucket_size)
    return _reduce(args, "min")


@public
@_documented
def segment_prod(
    data: Num[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: GatherScatterMode | str | None = None,
    *,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Num[Array, "num_segments *features"]:
    """Return the product of each segment: :func:`jax.ops.segment_prod`.

    Gradients are right where elements are 0, too. Complex numbers and products with a
    ``bucket_size``, which are left to plain XLA, have no gradients.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, 1 for empty segments.

    Example:
        >>> segment_prod(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([3., 1., 2.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    args = args.with_jax_options(unique_indices, bucket_size)
    return _reduce(args, "prod")


@public
@_documented
def segment_var(
    data: Real[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    mode: GatherScatterMode | str | None = None,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    ddof: int = 0,
    implementation: Implementation | None = None,
) -> Float[Array, "num_segments *features"]:
    """Return the variance of each segment: the mean of the squared distances from its mean.

    The sum of squares is divided by the number of elements minus the integer ``ddof``.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers; 0 for segments
        of no more than ``ddof`` elements.

    Example:
        >>> segment_var(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([1., 0., 0.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    return _var(args, check_integer("ddof", ddof))


@public
@_documented
def segment_std(
    data: Real[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    mode: GatherScatterMode | str | None = None,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    ddof: int = 0,
    implementation: Implementation | None = None,
) -> Float[Array, "num_segments *features"]:
    """Return the standard deviation of each segment: the root of :func:`segment_var`.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers. Where it is 0,
        so is its gradient.

    Example:
        >>> segment_std(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([1., 0., 0.], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    return _std(args, check_integer("ddof", ddof))


@public
@_documented
def segment_logsumexp(
    data: Real[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    mode: GatherScatterMode | str | None = None,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_segments *features"]:
    """Return the logarithm of the sum of exponentials of each segment, without overflow.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``data``, float32 for integers; -inf for empty
        segments.

    Example:
        >>> segment_logsumexp(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([3.126928,     -inf, 2.      ], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    return _logsumexp(args)


@public
@_documented
def segment_softmax(
    data: Real[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    mode: GatherScatterMode | str | None = None,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_elements *features"]:
    """Return the softmax over the elements of each segment.

    Returns:
        ``(num_elements, *features)`` in the dtype of ``data``, float32 for integers: exp(data) over
        its sum in the segment; 0 where an id is out of range.

    Example:
        >>> segment_softmax(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([0.11920293, 0.88079715, 1.        ], dtype=float32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    return _softmax(args)


@public
@_documented
def segment_argmax(
    data: Real[ArrayLike, "num_elements *features"],
    segment_ids: Integer[ArrayLike, "num_elements"] | None = None,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    *,
    mode: GatherScatterMode | str | None = None,
    indptr: Integer[ArrayLike, "num_segments+1"] | None = None,
    implementation: Implementation | None = None,
) -> Int[Array, "num_segments *features"]:
    """Return the position of the maximum of each segment; the first one of several.

    Returns:
        ``(num_segments, *features)`` integers: positions in ``data``, where a NaN counts as the
        maximum; -1 for empty segments.

    Example:
        >>> segment_argmax(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 2]), num_segments=3)
        Array([ 1, -1,  2], dtype=int32)
    """
    args = parse(data, segment_ids, num_segments, indices_are_sorted, mode, indptr)
    return _argmax(args)


# --- Compiled as a whole, also where called eagerly: the same roundings everywhere ---------------


def _compiled(function: F) -> F:
    """Compile a function of parsed arguments, whose further arguments are static."""
    static = [*inspect.signature(function).parameters][1:]
    return cast(F, jax.jit(function, static_argnames=static))


@_compiled
def _reduce(args: SegmentArgs, reduce: str) -> Array:
    return args.reduce(reduce)


@_compiled
def _mean(args: SegmentArgs) -> Array:
    if jnp.issubdtype(args.data.dtype, jnp.complexfloating):
        counts = jnp.maximum(args.segments.counts, 1).astype(args.data.dtype)
        return args.reduce("sum") / args.row_wise(counts)
    return as_floating(args).reduce("mean")


@_compiled
def _var(args: SegmentArgs, ddof: int) -> Array:
    args = as_floating(args)
    return _variance(args, ddof).astype(args.data.dtype)


@_compiled
def _std(args: SegmentArgs, ddof: int) -> Array:
    args = as_floating(args)
    variance = _variance(args, ddof)
    # The root of 0 has an infinite derivative: such variances, and NaN, bypass it.
    positive = variance > 0
    root = jnp.sqrt(jnp.where(positive, variance, 1))
    return jnp.where(positive, root, variance).astype(args.data.dtype)


def _variance(args: SegmentArgs, ddof: int) -> Array:
    # Half types would lose the differences from the mean.
    data = args.data.astype(accumulator_dtype(args.data.dtype))
    counts = args.row_wise(args.segments.counts)
    means = args.gather(args.with_data(data).reduce("mean"))
    differences = jnp.where(args.row_wise(args.segments.valid), data - means, 0)
    squares = args.with_data(differences**2).reduce("sum")
    divisors = jnp.maximum(counts - ddof, 1).astype(squares.dtype)
    return jnp.where(counts > ddof, squares / divisors, 0)


@_compiled
def _logsumexp(args: SegmentArgs) -> Array:
    return as_floating(args).reduce("logsumexp")


@_compiled
def _softmax(args: SegmentArgs) -> Array:
    args = as_floating(args)
    x, matrix = as_matrix(args.data), args.segments.matrix
    if args.segments.is_sorted:
        y = primitive.segment_softmax(x, matrix)
    else:
        rows, order = matrix.by_row.rows, matrix.by_row.cols
        sort = permutation(order, inverse_permutation(order))
        x, sorted_segments = total(x, sort), segments(rows, args.segments.size)
        y = total(primitive.segment_softmax(x, sorted_segments), sort.T)
    return reshape(y, *args.data.shape)


@_compiled
def _argmax(args: SegmentArgs) -> Array:
    data = jax.lax.stop_gradient(args.data)
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        raise TypeError(f"data must be real numbers, got {data.dtype}")
    args = args.with_data(data)
    maximum = args.gather(args.reduce("max"))
    attains_maximum = (data == maximum) | ((data != data) & (maximum != maximum))
    count = data.shape[0]
    positions = args.row_wise(jnp.arange(count, dtype=args.segments.ids.dtype))
    first = args.with_data(jnp.where(attains_maximum, positions, count)).reduce("min")
    return jnp.where(first < count, first, -1)
