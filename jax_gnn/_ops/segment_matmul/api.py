"""Segmented matrix multiplication: each row times the weight of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.activation import Activation
from jax_gnn._core.arrays import FLOATS, accumulator_dtype, feature_wise, promoted, row_wise
from jax_gnn._core.csr import SparseMatrix, inverse_permutation, permutation
from jax_gnn._core.ids import as_signed, at_most
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import gradients_at_once
from jax_gnn._core.public import Implementation, public
from jax_gnn._core.shapes import Integer, Num
from jax_gnn._ops.segment_matmul import primitive, xla
from jax_gnn._ops.segment_order.primitive import sorted_segments
from jax_gnn._ops.segment_reduce.index import SegmentIndex

# Least rows, and least and most features, of float32 products whose gradients of weights are those
# of `segment_outer`, up to twice as fast as XLA's.
MIN_ROWS = {"cpu": 50_000, "gpu": 25_000}
_MIN_FEATURES, _MAX_FEATURES = {"cpu": 32, "gpu": 16}, 256


def is_tall(x: Array, kernel: Array, precision: jax.lax.PrecisionLike) -> bool:
    """Return whether ``x @ kernel`` should be `tall_matmul`."""
    platform = jax.default_backend()
    if platform not in MIN_ROWS or precision is not None or x.ndim != 2:
        return False
    fits = _MIN_FEATURES[platform] <= min(kernel.shape) and max(kernel.shape) <= _MAX_FEATURES
    fits = fits and x.dtype == kernel.dtype == np.float32
    return fits and at_most(MIN_ROWS[platform], x.shape[0])


def tall_matmul(x: Array, kernel: Array) -> Array:
    """Return ``x @ kernel`` by XLA, whose gradients of the kernel are `segment_outer`'s."""
    level = arguments.precision_level(None)
    return _product_of_weights([x], [kernel], precision=level)[0]


def _weights_gradient(
    residuals: Sequence[Array], moving: object, cts: Sequence[Array], precision: jax.lax.Precision
) -> list[Array]:
    (x,), (ct,) = residuals, cts
    rows = jnp.full((1,), x.shape[0], jnp.int32)
    (gradient,) = primitive.grouped_outer(
        x, ct, rows, lhs_rows=None, rhs_rows=None, scale=None, precision=precision
    )
    return [gradient]


_product_of_weights = Linear(
    name="product_of_weights",
    result=lambda residuals, moving, precision: [
        jax.ShapeDtypeStruct((residuals[0].shape[0], moving[0].shape[1]), residuals[0].dtype)
    ],
    function=lambda residuals, moving, precision: [
        jnp.matmul(residuals[0], moving[0], precision=precision)
    ],
    transpose=_weights_gradient,
)


def row_matmul(
    x: Array,
    kernel: Array,
    precision: jax.lax.PrecisionLike = None,
    *,
    scale: Array | None = None,
    bias: Array | None = None,
    activation: Activation | None = None,
) -> Array:
    """Return ``activation(scale * (x @ kernel) + bias)``.

    Across devices, the gradients of x and of the kernel are scheduled together.

    Args:
        x: ``(rows, *batch, k)`` features.
        kernel: ``(k, n)`` weights.
        precision: precision of the product, as in `jax.lax.dot`.
        scale: ``(rows,)`` factors; None means ones.
        bias: ``(n,)`` biases; None means zeros.
        activation: "relu", or None.

    Example:
        >>> row_matmul(jnp.ones((2, 3)), jnp.ones((3, 1)), scale=jnp.array([1.0, -1.0])).ravel()
        Array([ 3., -3.], dtype=float32)
    """
    x, kernel = gradients_at_once(x, kernel)
    # Scaling the narrower of x and y costs less. XLA fuses a scaling of x with the operation that
    # made x, such as a dropout.
    narrows = kernel.shape[0] > kernel.shape[1]
    if scale is not None and not narrows:
        x = row_wise(scale.astype(x.dtype), x) * x
    if is_tall(x, kernel, precision):
        y = tall_matmul(x, kernel)
    else:
        y = jnp.matmul(x, kernel, precision=precision)
    if scale is not None and narrows:
        y = row_wise(scale.astype(y.dtype), y) * y
    if bias is not None:
        y = y + feature_wise(bias.astype(y.dtype), y)
    return y if activation is None else jax.nn.relu(y)


@public
def segment_matmul(
    lhs: Num[ArrayLike, "lhs_size k"],
    rhs: Num[ArrayLike, "groups k n"] | Num[ArrayLike, "groups n k"],
    group_sizes: Integer[ArrayLike, "num_sizes"],
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: Integer[ArrayLike, ""] | Integer[ArrayLike, "1"] | None = None,
    *,
    lhs_rows: Integer[ArrayLike, "rows"] | SegmentIndex | None = None,
    out_rows: Integer[ArrayLike, "rows"] | SegmentIndex | None = None,
    scale: Num[ArrayLike, "rows"] | None = None,
    bias: Num[ArrayLike, "groups n"] | None = None,
    residual: Num[ArrayLike, "rows n"] | None = None,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
    implementation: Implementation | None = None,
) -> Num[Array, "rows n"]:
    """Multiply rows that are sorted by group with the weight of their group.

    Equals :func:`jax.lax.ragged_dot` (FASTEN's segmented matrix multiplication, Zhou et al., ICS
    2024), but multiplies each row with one weight only, and retraces nothing when sizes change. The
    same kernel gathers, scales and scatters rows (Hector's typed GEMM, Wu et al., ASPLOS 2024,
    section 3.2): ``out[out_rows[i]] = scale[i] · lhs[lhs_rows[i]] @ rhs[g]`` for the rows i of
    group g. Linear in ``lhs``, ``rhs`` and ``scale``, with exact derivatives of any order to them,
    to ``bias`` and to ``residual``.

    Args:
        lhs: ``(rows, k)``, sorted by group; any number of rows in any order with ``lhs_rows``.
        rhs: ``(groups, k, n)``, the weights; ``(groups, n, k)`` with ``transpose_rhs``.
        group_sizes: ``(num_sizes,)`` integers, the number of rows of each group. Sizes below 0
            count as 0. Rows past the sum of sizes are zero in the result, even if they hold NaN;
            sizes are cut where their sum exceeds the rows.
        precision: precision of products in float32, as in :func:`jax.lax.dot`; None means
            ``jax.default_matmul_precision``. The default and ``HIGH`` are tf32 on CUDA, ``HIGHEST``
            is float32. On CPU all are float32.
        preferred_element_type: dtype of the result, which must hold all numbers of lhs and rhs.
            Floats accumulate in float32 if they have fewer bits, else in their own dtype, and are
            then converted; integers and complex numbers accumulate in the dtype of the result (in
            float32 for half types).
        group_offset: an integer or ``(1,)``, the first group that rhs and bias hold, where weights
            are sharded; rows of other groups are zero. None: rhs has all groups.
        lhs_rows: ``(rows,)`` integers in any order, the row of lhs that each row reads, sorted by
            group; rows read zeros where ids are out of range. The gradient to lhs sorts the ids,
            which ``jax.jit`` drops if there is no such gradient; a :class:`SegmentIndex` of the
            rows of lhs is sorted already.
        out_rows: ``(rows,)`` integers or a :class:`SegmentIndex`, a permutation: the row of the
            result of each row. Rows with ids out of range are left out; rows of the result without
            an id are zero, except for ``residual``; of equal ids, any one's row is written.
        scale: ``(rows,)`` factors of the products, before bias and activation; converted to the
            accumulator type. Factors of rows whose ids are out of range count as 0.
        bias: ``(groups, n)``, added to the rows of its group; converted to the dtype of products.
        residual: ``(rows, n)``, added to all rows of the result before the activation, also to
            rows without a product; converted to the dtype of the result.
        activation: applied to the result: ``"relu"``, ``"silu"``, ``"gelu"`` (the approximation by
            tanh) or ``"tanh"``.
        transpose_rhs: whether ``rhs`` holds transposed weights.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(rows, n)`` in ``preferred_element_type``, by default in the dtype that lhs and rhs
        promote to. Kernels take float16, bfloat16, float32 and float64, and floats of 8 and 4 bits
        as bfloat16, which holds them; plain XLA multiplies integers and complex numbers.

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
    args = _parse_product(
        lhs, "(rows, k)", rhs, "(groups, k, n)", precision, preferred_element_type
    )
    lhs, rhs = args.lhs, args.rhs
    transpose_rhs = arguments.check_flag("transpose_rhs", transpose_rhs)
    num_groups, k, n = rhs.shape
    if transpose_rhs:
        k, n = n, k
    if k != lhs.shape[1]:
        shape = "(groups, n, k)" if transpose_rhs else "(groups, k, n)"
        raise ValueError(
            f"rhs must be {shape} with the k = {lhs.shape[1]} of lhs, got shape {rhs.shape}"
        )
    gather = _parse_gather("lhs_rows", lhs_rows, "lhs", lhs)
    rows = lhs.shape[0] if gather is None else gather.by_row.count
    scatter = _parse_scatter(out_rows, rows)
    scale = _parse_scale(scale, lhs.dtype, rows, gather, scatter and scatter.T)
    sizes, offset = _parse_groups(group_sizes, group_offset, num_groups)
    if group_offset is None and sizes.shape[0] != num_groups:
        raise ValueError(
            f"rhs must have a weight for each of the {sizes.shape[0]} group_sizes, got shape "
            f"{rhs.shape}; to hold some of them only, give group_offset"
        )
    arguments.check_choice("activation", activation, (None, *get_args(Activation)))
    bias = _parse_term("bias", bias, "(groups, n)", (num_groups, n), "lhs and rhs", lhs.dtype)
    residual = _parse_term("residual", residual, "(rows, n)", (rows, n), "the result", args.dtype)
    if activation is not None and not jnp.issubdtype(args.dtype, np.floating):
        raise TypeError(f"activation={activation!r} needs real lhs and rhs, got {lhs.dtype}")
    result: Array = primitive.segment_matmul(
        lhs,
        rhs,
        bias,
        residual,
        scale,
        sizes,
        offset,
        gather,
        scatter,
        transposed=transpose_rhs,
        precision=args.precision,
        activation=activation,
        dtype=args.dtype,
    )
    return result.astype(args.result_dtype)


@public
def segment_outer(
    lhs: Num[ArrayLike, "lhs_size k"],
    rhs: Num[ArrayLike, "rhs_size n"],
    group_sizes: Integer[ArrayLike, "num_sizes"],
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: Integer[ArrayLike, ""] | Integer[ArrayLike, "1"] | None = None,
    *,
    lhs_rows: Integer[ArrayLike, "rows"] | SegmentIndex | None = None,
    rhs_rows: Integer[ArrayLike, "rows"] | SegmentIndex | None = None,
    scale: Num[ArrayLike, "rows"] | None = None,
    num_groups: int | None = None,
    deterministic: bool = True,
    implementation: Implementation | None = None,
) -> Num[Array, "num_groups k n"]:
    """Sum the outer products of the rows of each group: a product that contracts ragged rows.

    ``out[g] = Σ scale[i] · lhs[lhs_rows[i]]ᵀ rhs[rhs_rows[i]]`` over the rows i of group g. This is
    the gradient to the weights of :func:`segment_matmul`; linear in ``lhs``, ``rhs`` and ``scale``,
    with exact derivatives of any order.

    Args:
        lhs: ``(rows, k)``, sorted by group; any number of rows in any order with ``lhs_rows``.
        rhs: ``(rows, n)``, sorted by group; any number of rows in any order with ``rhs_rows``.
        group_sizes: as in :func:`segment_matmul`; rows of no group are not read.
        precision: as in :func:`segment_matmul`.
        preferred_element_type: as in :func:`segment_matmul`.
        group_offset: an integer or ``(1,)``, the first group of the result.
        lhs_rows: ``(rows,)`` integers or a :class:`SegmentIndex`, as in :func:`segment_matmul`.
            Rows for which an id is out of range are left out.
        rhs_rows: ``(rows,)`` integers or a :class:`SegmentIndex`, the row of rhs of each row.
        scale: ``(rows,)`` factors of the outer products, as in :func:`segment_matmul`.
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
    args = _parse_product(lhs, "(rows, k)", rhs, "(rows, n)", precision, preferred_element_type)
    lhs, rhs = args.lhs, args.rhs
    lhs_gather = _parse_gather("lhs_rows", lhs_rows, "lhs", lhs)
    rhs_gather = _parse_gather("rhs_rows", rhs_rows, "rhs", rhs)
    rows, num_rhs_rows = (
        (x.shape[0] if gather is None else gather.by_row.count)
        for x, gather in ((lhs, lhs_gather), (rhs, rhs_gather))
    )
    if rows != num_rhs_rows:
        if lhs_gather is None and rhs_gather is None:
            raise ValueError(
                f"lhs and rhs must have the same rows, got shapes {lhs.shape} and {rhs.shape}"
            )
        names = "lhs" if lhs_rows is None else "lhs_rows", "rhs" if rhs_rows is None else "rhs_rows"
        raise ValueError(
            f"{' and '.join(names)} must have as many rows, got {rows} and {num_rhs_rows}"
        )
    scale = _parse_scale(scale, lhs.dtype, rows, lhs_gather, rhs_gather)
    if num_groups is not None:
        num_groups = arguments.check_size("num_groups", num_groups)
    sizes, offset = _parse_groups(group_sizes, group_offset, num_groups)
    result: Array = primitive.segment_outer(
        lhs,
        rhs,
        scale,
        sizes,
        offset,
        lhs_gather,
        rhs_gather,
        num_groups=sizes.shape[0] if num_groups is None else num_groups,
        precision=args.precision,
        deterministic=arguments.check_flag("deterministic", deterministic),
        dtype=args.dtype,
    )
    return result.astype(args.result_dtype)


# --- Arguments -----------------------------------------------------------------------------------


class _ProductArgs(NamedTuple):
    """Parsed factors and dtypes of a product."""

    lhs: Array  # left factor, in the dtype of the primitive
    rhs: Array  # right factor, in the dtype of the primitive
    precision: jax.lax.Precision  # precision of the product
    dtype: DTypeLike  # dtype of the primitive's result
    result_dtype: DTypeLike  # dtype of the public function's result


def _parse_product(
    lhs: ArrayLike,
    lhs_shape: str,
    rhs: ArrayLike,
    rhs_shape: str,
    precision: jax.lax.PrecisionLike,
    preferred: DTypeLike | None,
) -> _ProductArgs:
    """Check two arrays of numbers with these dimensions, and convert them to one dtype."""
    lhs, rhs = arguments.as_array("lhs", lhs), arguments.as_array("rhs", rhs)
    for name, array, shape in (("lhs", lhs, lhs_shape), ("rhs", rhs, rhs_shape)):
        if not jnp.issubdtype(array.dtype, np.number):
            raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
        if array.ndim != shape.count(",") + 1:
            raise ValueError(f"{name} must be {shape}, got shape {array.shape}")
    # `wide` is a dtype that products can be taken in, `common` what the factors promote to.
    level = arguments.precision_level(precision)
    wide = promoted(_widened(lhs.dtype), _widened(rhs.dtype))
    common = lhs.dtype if lhs.dtype == rhs.dtype else wide
    result = common
    if preferred is not None:
        with arguments.argument_errors("preferred_element_type", "a dtype", preferred):
            result = jax.dtypes.canonicalize_dtype(preferred)
    if result != common and not _holds(result, common, wide):
        raise TypeError(
            f"preferred_element_type must hold what lhs and rhs, {common}, hold; got {result}"
        )
    if jnp.issubdtype(wide, np.floating):
        dtype = wide if wide == result else accumulator_dtype(wide)
    else:  # integers stay exact in the dtype of the result
        dtype = wide = accumulator_dtype(_widened(result))
        level = jax.lax.Precision.HIGHEST
    return _ProductArgs(lhs.astype(wide), rhs.astype(wide), level, np.dtype(dtype), result)


def _widened(dtype: Any) -> Any:
    """Return a dtype of products that holds all numbers of ``dtype``."""
    if jnp.issubdtype(dtype, np.integer) and jnp.iinfo(dtype).bits < 8:
        return jnp.int8 if jnp.iinfo(dtype).min < 0 else jnp.uint8
    if jnp.issubdtype(dtype, np.floating) and dtype not in FLOATS:
        return jnp.bfloat16
    return dtype


def _holds(result: Any, common: Any, wide: Any) -> bool:
    """Return whether a dtype of results holds all numbers of the factors' common dtype."""
    if not jnp.issubdtype(result, np.number) or result.itemsize < np.dtype(wide).itemsize:
        return False
    if promoted(wide, _widened(result)) == result:
        return True
    if not all(jnp.issubdtype(dtype, np.floating) for dtype in (common, result)):
        return False
    # JAX does not promote floats of 8 and 4 bits: compare their mantissas and ranges.
    small, large = jnp.finfo(common), jnp.finfo(result)
    return bool(
        small.nmant <= large.nmant
        and float(small.max) <= float(large.max)
        and float(small.smallest_subnormal) >= float(large.smallest_subnormal)
    )


def _parse_term(
    name: str,
    term: ArrayLike | None,
    axes: str,
    shape: tuple[int, ...],
    like: str,
    dtype: DTypeLike,
) -> Array | None:
    """Check an array that is added to products, and convert it to ``dtype``."""
    if term is None:
        return None
    term = arguments.as_array(name, term)
    arguments.check_shape(name, term, f"{axes} = {shape}", *shape)
    if not np.can_cast(term.dtype, dtype, "same_kind"):
        raise TypeError(f"{name} must be numbers like {like}, {dtype}, got {term.dtype}")
    return term.astype(dtype)


def _parse_groups(sizes: ArrayLike, offset: Any, num_groups: int | None) -> tuple[Array, Array]:
    """Return sizes and an offset of shape ``(1,)``, by default 0."""
    sizes = arguments.as_ids("group_sizes", sizes)
    if offset is None:
        return sizes, jnp.zeros((1,), jnp.int32)
    offset = arguments.to_array("group_offset", offset)
    if not jnp.issubdtype(offset.dtype, np.integer):
        raise TypeError(f"group_offset must be an integer, got {offset.dtype}")
    if offset.shape not in ((), (1,)):
        raise ValueError(f"group_offset must be a scalar or (1,), got shape {offset.shape}")
    # Offsets beyond these limits hold no group, and fit int32 after the cut.
    limits = -(sizes.shape[0] if num_groups is None else num_groups), sizes.shape[0]
    return sizes, jnp.clip(as_signed(offset), *limits).astype(jnp.int32).reshape(1)


def _parse_gather(
    name: str,
    rows: ArrayLike | SegmentIndex | None,
    x_name: str,
    x: Array,
) -> SparseMatrix | None:
    """Return the matrix whose row i reads row ``rows[i]`` of x; its transpose sorts if needed."""
    if rows is None:
        return None
    if isinstance(rows, SegmentIndex):
        return _check_index(name, rows, f"the {x.shape[0]} rows of {x_name}", x.shape[0]).T
    return sorted_segments(arguments.as_ids(name, rows), x.shape[0], False).T


def _parse_scatter(out_rows: ArrayLike | SegmentIndex | None, rows: int) -> SparseMatrix | None:
    """Return the permutation that writes row i of the product to row ``out_rows[i]``."""
    if out_rows is None:
        return None
    if isinstance(out_rows, SegmentIndex):
        matrix = _check_index("out_rows", out_rows, f"the {rows} rows of the result", rows)
        ids = matrix.by_col.cols
    else:
        ids = arguments.as_ids("out_rows", out_rows)
    arguments.check_shape("out_rows", ids, f"(rows,) = {(rows,)}", rows)
    return permutation(inverse_permutation(ids), ids)


def _check_index(name: str, index: SegmentIndex, content: str, size: int) -> SparseMatrix:
    num_segments = index.matrix.by_row.num_rows
    if num_segments != size:
        raise ValueError(
            f"{name} must be an index of {content}, got one of {num_segments} segments"
        )
    return index.matrix


def _parse_scale(
    scale: ArrayLike | None, dtype: DTypeLike, rows: int, *gathers: SparseMatrix | None
) -> Array | None:
    """Return factors of rows in the accumulator type, 0 for rows whose ids are out of range."""
    if scale is None:
        return None
    scale = arguments.as_array("scale", scale)
    arguments.check_shape("scale", scale, f"(rows,) = {(rows,)}", rows)
    if not np.can_cast(scale.dtype, accumulator_dtype(dtype), "same_kind"):
        raise TypeError(f"scale must be numbers like lhs and rhs, {dtype}, got {scale.dtype}")
    scale = scale.astype(accumulator_dtype(dtype))
    if all(gather is None for gather in gathers):
        return scale
    return jnp.where(xla.valid_rows(*gathers), scale, 0)
