"""Segmented matrix multiplication: each row times the weight of its group."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core.activation import Activation
from jax_gnn._core.arguments import (
    argument_errors,
    as_array,
    as_ids,
    check_choice,
    check_flag,
    check_size,
    precision_level,
    to_array,
)
from jax_gnn._core.arrays import FLOATS, accumulator_dtype, promoted
from jax_gnn._core.csr import SparseMatrix, inverse_permutation, permutation
from jax_gnn._core.ffi import Implementation
from jax_gnn._core.ids import as_signed, at_most
from jax_gnn._core.public import public
from jax_gnn._core.sort import sorted_segments
from jax_gnn._ops.segment_matmul import primitive, xla
from jax_gnn._ops.segment_reduce.index import SegmentIndex

TALL = 50_000
_NARROW = 128
"""From so many rows of at most so many float32 on, this library's products are not slower than
XLA's, on an H200 and on CPUs, and their gradients to weights up to twice as fast."""


def is_tall(x: Any, kernel: Any, precision: Any) -> bool:
    """Whether ``x @ kernel`` is to be the product of one segment."""
    is_tall = x.ndim == 2 and at_most(TALL, x.shape[0]) and max(kernel.shape) <= _NARROW
    return is_tall and precision is None and x.dtype == np.float32


@public
def segment_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    lhs_rows: ArrayLike | SegmentIndex | None = None,
    out_rows: ArrayLike | SegmentIndex | None = None,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
    implementation: Implementation | None = None,
) -> Array:
    """Multiplies rows that are sorted by group with the weight of their group.

    What :func:`jax.lax.ragged_dot` computes (FASTEN's segmented matrix multiplication, Zhou et al.,
    ICS 2024), each row with one weight only, and nothing retraced when sizes change. Rows may be
    gathered, scaled and scattered on the way, which forms no further array (Hector's typed GEMM, Wu
    et al., ASPLOS 2024, section 3.2): ``out[out_rows[i]] = scale[i] · lhs[lhs_rows[i]] @ rhs[g]``
    for the rows i of group g. Linear in ``lhs``, ``rhs`` and ``scale``, with exact derivatives of
    any order to them, to ``bias`` and to ``residual``.

    Args:
        lhs: ``(rows, k)``, sorted by group; any number of rows in any order with ``lhs_rows``.
        rhs: ``(groups, k, n)``, the weights; ``(groups, n, k)`` with ``transpose_rhs``.
        group_sizes: ``(num_sizes,)`` integers, how many rows each group has. Sizes below 0 count as
            0; rows past their sum are zero in the result whatever they hold, and what sizes exceed
            the rows by is left out.
        precision: of products in float32, as in :func:`jax.lax.dot`; None means
            ``jax.default_matmul_precision``. The default and ``HIGH`` are tf32 on CUDA, ``HIGHEST``
            is float32. On CPU all are float32.
        preferred_element_type: dtype of the result, which must hold what lhs and rhs hold. Floats
            are added up in float32 if they have fewer bits, else in their own dtype, and then
            converted; integers and complex numbers are added up in the dtype of the result (in
            float32 for half types).
        group_offset: an integer or ``(1,)``: rhs and bias hold the groups from this one on, where
            weights are sharded; rows of the other groups are zero. None: rhs has all groups.
        lhs_rows: ``(rows,)`` integers in any order, the row of lhs that each row reads, sorted by
            group; zeros where that is out of range. The gradient to lhs sorts them, which
            ``jax.jit`` drops where it is not asked for; a :class:`SegmentIndex` of the rows of lhs
            is sorted already.
        out_rows: ``(rows,)`` integers or a :class:`SegmentIndex`, where each row of the product is
            written: a permutation. Ids out of range are left out, and rows of the result that are
            not written are zero, but for ``residual``; where ids are equal, numbers of these rows
            are written, of any.
        scale: ``(rows,)``, what products are multiplied with, before bias and activation; converted
            to the dtype that is added up in. That of a row whose ids are out of range counts as 0.
        bias: ``(groups, n)``, converted to the dtype that products are taken in, added to the rows
            of its group.
        residual: ``(rows, n)``, converted to the dtype of the result, added to its rows before the
            activation; to those too that no product is written to.
        activation: applied to the result: ``"relu"``, ``"silu"``, ``"gelu"`` (the approximation by
            tanh) or ``"tanh"``.
        transpose_rhs: whether the weights are given transposed.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(rows, n)`` in ``preferred_element_type``, by default in the dtype that lhs and rhs
        promote to. Kernels take float16, bfloat16, float32 and float64, and floats of 8 and 4 bits
        as bfloat16, which holds them; plain XLA does integers and complex numbers.

    Raises:
        TypeError: an argument has the wrong dtype.
        ValueError: an argument has the wrong shape, or an option is unknown.

    Example:
        >>> weights = jnp.array([[[1.0], [0.0]], [[0.0], [10.0]]])  # two groups, k = 2, n = 1
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> segment_matmul(x, weights, jnp.array([1, 2]))
        Array([[ 1.],
               [40.],
               [60.]], dtype=float32)
        >>> rows, places = jnp.array([2, 0, 2]), jnp.array([1, -1, 0])
        >>> segment_matmul(x, weights, jnp.array([1, 2]), lhs_rows=rows, out_rows=places)
        Array([[60.],
               [ 5.],
               [ 0.]], dtype=float32)
    """
    product = _product_of(
        *(lhs, "(rows, k)", rhs, "(groups, k, n)"), precision, preferred_element_type
    )
    lhs, rhs = product.lhs, product.rhs
    transpose_rhs = check_flag("transpose_rhs", transpose_rhs)
    num_groups, k, n = rhs.shape
    if transpose_rhs:
        k, n = n, k
    if k != lhs.shape[1]:
        shape = "(groups, n, k)" if transpose_rhs else "(groups, k, n)"
        raise ValueError(
            f"rhs must be {shape} with the k = {lhs.shape[1]} of lhs, got shape {rhs.shape}"
        )
    gather = _gather_of("lhs_rows", lhs_rows, "lhs", lhs, implementation)
    rows = lhs.shape[0] if gather is None else gather.by_row.count
    scatter = _scatter_of(out_rows, rows)
    scale = _scale_of(scale, lhs.dtype, rows, gather, scatter and scatter.T)
    sizes, offset = _groups(group_sizes, group_offset, num_groups)
    if group_offset is None and sizes.shape[0] != num_groups:
        raise ValueError(
            f"rhs must have a weight for each of the {sizes.shape[0]} group_sizes, got shape "
            f"{rhs.shape}; to hold some of them only, give group_offset"
        )
    check_choice("activation", activation, (None, *get_args(Activation)))
    if bias is not None:
        bias = as_array("bias", bias)
        if bias.shape != (num_groups, n):
            raise ValueError(f"bias must be (groups, n) = {num_groups, n}, got shape {bias.shape}")
        if not np.can_cast(bias.dtype, lhs.dtype, "same_kind"):
            raise TypeError(f"bias must be numbers like lhs and rhs, {lhs.dtype}, got {bias.dtype}")
        bias = bias.astype(lhs.dtype)
    if residual is not None:
        residual = as_array("residual", residual)
        if residual.shape != (rows, n):
            raise ValueError(f"residual must be (rows, n) = {rows, n}, got shape {residual.shape}")
        if not np.can_cast(residual.dtype, product.dtype, "same_kind"):
            raise TypeError(
                f"residual must be numbers like the result, {product.dtype}, got {residual.dtype}"
            )
        residual = residual.astype(product.dtype)
    if activation is not None and not jnp.issubdtype(product.dtype, np.floating):
        raise TypeError(f"activation={activation!r} needs real lhs and rhs, got {lhs.dtype}")
    result = primitive.segment_matmul(
        *(lhs, rhs, bias, residual, scale, sizes, offset, gather, scatter),
        transposed=transpose_rhs,
        precision=product.precision,
        activation=activation,
        dtype=product.dtype,
        implementation=implementation,
    )
    return result.astype(product.result)


@public
def segment_outer(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    lhs_rows: ArrayLike | SegmentIndex | None = None,
    rhs_rows: ArrayLike | SegmentIndex | None = None,
    scale: ArrayLike | None = None,
    num_groups: int | None = None,
    deterministic: bool = True,
    implementation: Implementation | None = None,
) -> Array:
    """Sums the outer products of the rows of each group: a product that contracts ragged rows.

    ``out[g] = Σ scale[i] · lhs[lhs_rows[i]]ᵀ rhs[rhs_rows[i]]`` over the rows i of group g. The
    gradient to the weights of :func:`segment_matmul`; linear in ``lhs``, ``rhs`` and ``scale``,
    with exact derivatives of any order.

    Args:
        lhs: ``(rows, k)``, sorted by group; any number of rows in any order with ``lhs_rows``.
        rhs: ``(rows, n)``, likewise with ``rhs_rows``.
        group_sizes: as in :func:`segment_matmul`; rows of no group are not read.
        precision: as in :func:`segment_matmul`.
        preferred_element_type: as in :func:`segment_matmul`.
        group_offset: an integer or ``(1,)``: the first group of the result.
        lhs_rows: ``(rows,)`` integers or a :class:`SegmentIndex`, as in :func:`segment_matmul`.
            Rows for which an id is out of range are left out.
        rhs_rows: ``(rows,)``, the same for rhs.
        scale: ``(rows,)``, factors of the outer products, as in :func:`segment_matmul`.
        num_groups: number of groups in the result, by default all.
        deterministic: False allows CUDA kernels to add in any order where that is faster.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_groups, k, n)``, zeros for groups without rows.

    Raises:
        TypeError: an argument has the wrong dtype.
        ValueError: an argument has the wrong shape, or an option is unknown.

    Example:
        >>> lhs = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> segment_outer(lhs, jnp.ones((3, 1)), jnp.array([1, 2])).shape
        (2, 2, 1)
        >>> segment_outer(lhs, jnp.ones((3, 1)), jnp.array([1, 2]))[1].ravel()
        Array([ 8., 10.], dtype=float32)
        >>> rows, scale = jnp.array([0, 2, 0]), jnp.array([1.0, 1.0, 0.5])
        >>> rhs, sizes = jnp.ones((3, 1)), jnp.array([1, 2])
        >>> segment_outer(lhs, rhs, sizes, lhs_rows=rows, scale=scale)[1].ravel()
        Array([5.5, 7. ], dtype=float32)
    """
    product = _product_of(*(lhs, "(rows, k)", rhs, "(rows, n)"), precision, preferred_element_type)
    lhs, rhs = product.lhs, product.rhs
    left = _gather_of("lhs_rows", lhs_rows, "lhs", lhs, implementation)
    right = _gather_of("rhs_rows", rhs_rows, "rhs", rhs, implementation)
    rows, others = (
        (x.shape[0] if gather is None else gather.by_row.count)
        for x, gather in ((lhs, left), (rhs, right))
    )
    if rows != others:
        if left is None and right is None:
            raise ValueError(
                f"lhs and rhs must have the same rows, got shapes {lhs.shape} and {rhs.shape}"
            )
        names = ("lhs" if left is None else "lhs_rows"), ("rhs" if right is None else "rhs_rows")
        raise ValueError(f"{' and '.join(names)} must have as many rows, got {rows} and {others}")
    scale = _scale_of(scale, lhs.dtype, rows, left, right)
    if num_groups is not None:
        num_groups = check_size("num_groups", num_groups)
    sizes, offset = _groups(group_sizes, group_offset, num_groups)
    result = primitive.segment_outer(
        *(lhs, rhs, scale, sizes, offset, left, right),
        num_groups=sizes.shape[0] if num_groups is None else num_groups,
        precision=product.precision,
        deterministic=check_flag("deterministic", deterministic),
        dtype=product.dtype,
        implementation=implementation,
    )
    return result.astype(product.result)


# --- Arguments -----------------------------------------------------------------------------------


class _Product(NamedTuple):
    """What a product is taken of, and how.

    Attributes:
        lhs: in the dtype that a primitive takes.
        rhs: in the same.
        precision: of the product.
        dtype: what the primitive gives.
        result: what that is converted to.
    """

    lhs: Array
    rhs: Array
    precision: jax.lax.Precision
    dtype: Any
    result: Any


def _product_of(
    lhs: Any, lhs_shape: str, rhs: Any, rhs_shape: str, precision: Any, preferred: Any
) -> _Product:
    """Checks two arrays of numbers with these dimensions, and converts them to one dtype."""
    lhs, rhs = as_array("lhs", lhs), as_array("rhs", rhs)
    for name, array, shape in (("lhs", lhs, lhs_shape), ("rhs", rhs, rhs_shape)):
        if not jnp.issubdtype(array.dtype, np.number):
            raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
        if array.ndim != shape.count(",") + 1:
            raise ValueError(f"{name} must be {shape}, got shape {array.shape}")
    level = precision_level(precision)
    wide = promoted(_widened(lhs.dtype), _widened(rhs.dtype))
    given = lhs.dtype if lhs.dtype == rhs.dtype else wide
    result = given
    if preferred is not None:
        with argument_errors("preferred_element_type", "a dtype", preferred):
            result = jax.dtypes.canonicalize_dtype(preferred)
    if result != given and not _holds(result, given, wide):
        raise TypeError(
            f"preferred_element_type must hold what lhs and rhs, {given}, hold; got {result}"
        )
    if jnp.issubdtype(wide, np.floating):
        dtype = wide if wide == result else accumulator_dtype(wide)
    else:  # added up in the dtype of the result, where integers stay exact
        dtype = wide = accumulator_dtype(_widened(result))
        level = jax.lax.Precision.HIGHEST
    return _Product(lhs.astype(wide), rhs.astype(wide), level, np.dtype(dtype), result)


def _widened(dtype: Any) -> Any:
    """A dtype that holds all numbers of another, and that products can be taken in."""
    if jnp.issubdtype(dtype, np.integer) and jnp.iinfo(dtype).bits < 8:
        return jnp.int8 if jnp.iinfo(dtype).min < 0 else jnp.uint8
    if jnp.issubdtype(dtype, np.floating) and dtype not in FLOATS:
        return jnp.bfloat16
    return dtype


def _holds(result: Any, given: Any, wide: Any) -> bool:
    """Whether a dtype is one of numbers that others convert to, and has no fewer bits."""
    if not jnp.issubdtype(result, np.number) or result.itemsize < np.dtype(wide).itemsize:
        return False
    if promoted(wide, _widened(result)) == result:
        return True
    if not all(jnp.issubdtype(dtype, np.floating) for dtype in (given, result)):
        return False
    few, many = jnp.finfo(given), jnp.finfo(result)  # JAX does not promote the small ones
    return bool(
        few.nmant <= many.nmant
        and float(few.max) <= float(many.max)
        and float(few.smallest_subnormal) >= float(many.smallest_subnormal)
    )


def _groups(sizes: Any, offset: Any, num_groups: int | None) -> tuple[Array, Array]:
    sizes = as_ids("group_sizes", sizes)
    if offset is None:
        return sizes, jnp.zeros((1,), jnp.int32)
    offset = to_array("group_offset", offset)
    if not jnp.issubdtype(offset.dtype, np.integer):
        raise TypeError(f"group_offset must be an integer, got {offset.dtype}")
    if offset.shape not in ((), (1,)):
        raise ValueError(f"group_offset must be a scalar or (1,), got shape {offset.shape}")
    limits = -(sizes.shape[0] if num_groups is None else num_groups), sizes.shape[0]
    return sizes, jnp.clip(as_signed(offset), *limits).astype(jnp.int32).reshape(1)


def _gather_of(
    name: str,
    rows: ArrayLike | SegmentIndex | None,
    of: str,
    x: Array,
    implementation: Implementation | None,
) -> SparseMatrix | None:
    """Row i reads the row of x that a list names; the transpose is found at run time if need be."""
    if rows is None:
        return None
    if isinstance(rows, SegmentIndex):
        return _checked_index(name, rows, f"the {x.shape[0]} rows of {of}", x.shape[0]).T
    return sorted_segments(as_ids(name, rows), x.shape[0], False, implementation).T


def _scatter_of(out_rows: ArrayLike | SegmentIndex | None, rows: int) -> SparseMatrix | None:
    """Row i of the result is a row of the product, which is written where the list says."""
    if out_rows is None:
        return None
    if isinstance(out_rows, SegmentIndex):
        matrix = _checked_index("out_rows", out_rows, f"the {rows} rows of the result", rows)
        ids = matrix.by_col.cols
    else:
        ids = as_ids("out_rows", out_rows)
    if ids.shape != (rows,):
        raise ValueError(f"out_rows must be (rows,) = {(rows,)}, got shape {ids.shape}")
    return permutation(inverse_permutation(ids), ids)


def _checked_index(name: str, index: SegmentIndex, what: str, size: int) -> SparseMatrix:
    num_segments = index.matrix.by_row.num_rows
    if num_segments != size:
        raise ValueError(f"{name} must be an index of {what}, got one of {num_segments} segments")
    return index.matrix


def _scale_of(scale: Any, dtype: Any, rows: int, *lists: SparseMatrix | None) -> Array | None:
    """Factors of rows in the dtype that is added up in, 0 for those whose ids are out of range."""
    if scale is None:
        return None
    scale = as_array("scale", scale)
    if scale.shape != (rows,):
        raise ValueError(f"scale must be (rows,) = {(rows,)}, got shape {scale.shape}")
    if not np.can_cast(scale.dtype, accumulator_dtype(dtype), "same_kind"):
        raise TypeError(f"scale must be numbers like lhs and rhs, {dtype}, got {scale.dtype}")
    scale = scale.astype(accumulator_dtype(dtype))
    if all(each is None for each in lists):
        return scale
    return jnp.where(xla.listed_rows(*lists), scale, 0)
