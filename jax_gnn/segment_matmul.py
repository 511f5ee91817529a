"""Segmented matrix multiplication: each row times the weight of its group.

Two primitives, closed under differentiation:

* ``segment_matmul``, out[r] = activation(lhs[r] rhs[g] + bias[g]) for the rows r of group g. With
  neither bias nor activation it is linear in lhs, where its transpose is itself with the weights
  transposed, and in rhs, where it is
* ``segment_outer``, out[g] = Σ lhs[r]ᵀ rhs[r] over the rows r of group g, whose transposes are the
  first.

Where an activation is differentiated it is taken out of the primitive; a bias's derivative is a
gather, whose transpose is the sum over segments. Groups are sizes and an offset into them: weight 0
belongs to the group of size ``group_sizes[group_offset]``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn import _ffi, _index, schedules, segments
from jax_gnn._arguments import check_choice
from jax_gnn.views import FLOATS, accumulator_dtype, as_ids, column, promoted

Activation = Literal["relu", "silu", "gelu", "tanh"]  # in the order of segment_matmul.h

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=True),
    "tanh": jnp.tanh,
}
_MAX_ROWS = 2**31 - 1  # kernels take int32 sizes


def segment_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
    transpose_rhs: bool = False,
    implementation: _ffi.Implementation | None = None,
) -> Array:
    """Multiplies rows that are sorted by group with the weight of their group.

    What :func:`jax.lax.ragged_dot` computes (FASTEN's segmented matrix multiplication, Zhou et al.,
    ICS 2024), each row with one weight only, and nothing retraced when sizes change. Linear in
    ``lhs`` and ``rhs``, with exact derivatives of any order to them and to ``bias``.

    Args:
        lhs: ``(rows, k)``, sorted by group.
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
        bias: ``(groups, n)``, converted to the dtype that products are taken in, added to the rows
            of its group.
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
    """
    product = _product_of(
        *(lhs, "(rows, k)", rhs, "(groups, k, n)"), precision, preferred_element_type
    )
    lhs, rhs = product.lhs, product.rhs
    transpose_rhs = _index.check_flag("transpose_rhs", transpose_rhs)
    num_groups, k, n = rhs.shape
    if transpose_rhs:
        k, n = n, k
    if k != lhs.shape[1]:
        shape = "(groups, n, k)" if transpose_rhs else "(groups, k, n)"
        raise ValueError(
            f"rhs must be {shape} with the k = {lhs.shape[1]} of lhs, got shape {rhs.shape}"
        )
    sizes, offset = _groups(group_sizes, group_offset, num_groups)
    if group_offset is None and sizes.shape[0] != num_groups:
        raise ValueError(
            f"rhs must have a weight for each of the {sizes.shape[0]} group_sizes, got shape "
            f"{rhs.shape}; to hold some of them only, give group_offset"
        )
    check_choice("activation", activation, (None, *get_args(Activation)))
    if bias is not None:
        bias = _index.as_array("bias", bias)
        if bias.shape != (num_groups, n):
            raise ValueError(f"bias must be (groups, n) = {num_groups, n}, got shape {bias.shape}")
        if not np.can_cast(bias.dtype, lhs.dtype, "same_kind"):
            raise TypeError(f"bias must be numbers like lhs and rhs, {lhs.dtype}, got {bias.dtype}")
        bias = bias.astype(lhs.dtype)
    if activation is not None and not jnp.issubdtype(product.dtype, np.floating):
        raise TypeError(f"activation={activation!r} needs real lhs and rhs, got {lhs.dtype}")
    result = _matmul(
        *(lhs, rhs, bias, sizes, offset),
        transposed=transpose_rhs,
        precision=product.precision,
        activation=activation,
        dtype=product.dtype,
        implementation=implementation,
    )
    return result.astype(product.result)


def segment_outer(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    *,
    num_groups: int | None = None,
    deterministic: bool = True,
    implementation: _ffi.Implementation | None = None,
) -> Array:
    """Sums the outer products of the rows of each group: a product that contracts ragged rows.

    The gradient to the weights of :func:`segment_matmul`; linear in ``lhs`` and in ``rhs``, with
    exact derivatives of any order.

    Args:
        lhs: ``(rows, k)``, sorted by group.
        rhs: ``(rows, n)``, likewise.
        group_sizes: as in :func:`segment_matmul`; rows of no group are not read.
        precision: as in :func:`segment_matmul`.
        preferred_element_type: as in :func:`segment_matmul`.
        group_offset: an integer or ``(1,)``: the first group of the result.
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
    """
    product = _product_of(*(lhs, "(rows, k)", rhs, "(rows, n)"), precision, preferred_element_type)
    lhs, rhs = product.lhs, product.rhs
    if lhs.shape[0] != rhs.shape[0]:
        raise ValueError(
            f"lhs and rhs must have the same rows, got shapes {lhs.shape} and {rhs.shape}"
        )
    if num_groups is not None:
        num_groups = _index.check_size("num_groups", num_groups)
    sizes, offset = _groups(group_sizes, group_offset, num_groups)
    result = _outer(
        *(lhs, rhs, sizes, offset),
        num_groups=sizes.shape[0] if num_groups is None else num_groups,
        precision=product.precision,
        deterministic=_index.check_flag("deterministic", deterministic),
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
    lhs, rhs = _index.as_array("lhs", lhs), _index.as_array("rhs", rhs)
    for name, array, shape in (("lhs", lhs, lhs_shape), ("rhs", rhs, rhs_shape)):
        if not jnp.issubdtype(array.dtype, np.number):
            raise TypeError(f"{name} must be an array of numbers, got {array.dtype}")
        if array.ndim != shape.count(",") + 1:
            raise ValueError(f"{name} must be {shape}, got shape {array.shape}")
    level = _precision(precision)
    wide = promoted(_widened(lhs.dtype), _widened(rhs.dtype))
    given = lhs.dtype if lhs.dtype == rhs.dtype else wide
    result = given
    if preferred is not None:
        with _index.blame("preferred_element_type", "a dtype"):
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
    offset = _index.to_array("group_offset", offset)
    if not jnp.issubdtype(offset.dtype, np.integer):
        raise TypeError(f"group_offset must be an integer, got {offset.dtype}")
    if offset.shape not in ((), (1,)):
        raise ValueError(f"group_offset must be a scalar or (1,), got shape {offset.shape}")
    limits = -(sizes.shape[0] if num_groups is None else num_groups), sizes.shape[0]
    return sizes, jnp.clip(_index.signed(offset), *limits).astype(jnp.int32).reshape(1)


_EXACT_PRESETS = ("F32_F32_F32", "F64_F64_F64", "TF32_TF32_F32_X3", "BF16_BF16_F32_X9")


def _precision(precision: Any) -> jax.lax.Precision:
    """One of JAX's three levels, for whatever JAX calls a precision."""
    if precision is None:
        precision = jax.default_matmul_precision.value
    if isinstance(precision, tuple | list):  # for each operand
        return max(map(_precision, precision), key=operator.attrgetter("value"))
    try:
        return jax.lax.Precision(precision)
    except (TypeError, ValueError):
        pass
    name = getattr(precision, "name", precision)
    if not isinstance(name, str) or name not in jax.lax.DotAlgorithmPreset.__members__:
        raise ValueError(f"precision must be what jax.lax.dot takes, got {precision!r}")
    return jax.lax.Precision.HIGHEST if name in _EXACT_PRESETS else jax.lax.Precision.DEFAULT


# --- Plain XLA -----------------------------------------------------------------------------------


def _bounds(sizes: Array, offset: Array, num_groups: int, rows: int) -> Array:
    """``(num_groups + 1,)``, the rows where the groups of the weights begin, and where they end."""
    reason = "plain XLA adds them up in steps"
    _index.check_concrete("the number of group_sizes", sizes.shape[0], reason)
    sizes = sizes.astype(promoted(sizes.dtype, _index.index_dtype(rows)))
    ends = jax.lax.associative_scan(
        lambda a, b: a + jnp.minimum(b, rows - a), jnp.clip(sizes, 0, rows)
    )
    starts = jnp.concatenate([jnp.zeros((1,), ends.dtype), ends])
    return starts[
        jnp.clip(offset + jnp.arange(num_groups + 1, dtype=offset.dtype), 0, sizes.shape[0])
    ]


def _cover(sizes: Array, offset: Array, num_groups: int, rows: int) -> tuple[Array, Array]:
    """Groups without offset that cover all rows, and which rows truly belong to a group.

    Returns:
        ``(num_groups,)`` sizes whose sum is ``rows``: the first and the last group are extended
        over rows of no group; and ``(rows,)``.
    """
    bounds = _bounds(sizes, offset, num_groups, rows)
    row = jnp.arange(rows, dtype=bounds.dtype)
    valid = (row >= bounds[0]) & (row < bounds[-1])
    return jnp.diff(bounds.at[0].set(0).at[-1].set(rows)), valid


def _row_groups(sizes: Array, offset: Array, num_groups: int, rows: int) -> Array:
    """``(rows,)``, the group of each row, ascending; -1 and ``num_groups`` at the ends: none."""
    bounds = _bounds(sizes, offset, num_groups, rows)
    return jnp.cumsum(jnp.zeros((rows + 1,), bounds.dtype).at[bounds].add(1))[:rows] - 1


def _ragged_dot(
    contracted: tuple[int, int], lhs: Array, rhs: Array, sizes: Array, precision: Any
) -> Array:
    if jnp.issubdtype(lhs.dtype, np.complexfloating):
        # XLA's own product of ragged complex rows ends the process on a GPU (jax 0.11).
        def real(a: Array, b: Array) -> Array:
            return _ragged_dot(contracted, a, b, sizes, precision)

        return jax.lax.complex(
            real(lhs.real, rhs.real) - real(lhs.imag, rhs.imag),
            real(lhs.real, rhs.imag) + real(lhs.imag, rhs.real),
        )
    numbers = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([contracted[0]], [contracted[1]]), ([], [])),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0] if rhs.ndim == 3 else [],
    )
    acc = accumulator_dtype(lhs.dtype)
    return jax.lax.ragged_dot_general(
        lhs, rhs, sizes, numbers, precision=precision, preferred_element_type=acc
    )


def _matmul_xla(
    lhs: Array,
    rhs: Array,
    bias: Array | None,
    sizes: Array,
    offset: Array,
    *,
    transposed: bool,
    precision: Any,
    activation: str | None,
    dtype: Any,
) -> Array:
    rows, num_groups = lhs.shape[0], rhs.shape[0]
    shape = rows, rhs.shape[1 if transposed else 2]
    if num_groups == 0 or 0 in shape:
        return jnp.zeros(shape, dtype)
    sizes, valid = _cover(sizes, offset, num_groups, rows)
    result = _ragged_dot((1, 2 if transposed else 1), lhs, rhs, sizes, precision)
    if bias is not None:
        groups = jnp.repeat(jnp.arange(num_groups), sizes, total_repeat_length=rows)
        result += bias[groups].astype(result.dtype)
    if activation is not None:
        result = _ACTIVATIONS[activation](result)
    return jnp.where(column(valid), result, 0).astype(dtype)


def _outer_xla(
    lhs: Array,
    rhs: Array,
    sizes: Array,
    offset: Array,
    *,
    num_groups: int,
    precision: Any,
    deterministic: bool,
    dtype: Any,
) -> Array:
    del deterministic
    if num_groups == 0 or 0 in (*lhs.shape, *rhs.shape):
        return jnp.zeros((num_groups, lhs.shape[1], rhs.shape[1]), dtype)
    sizes, valid = _cover(sizes, offset, num_groups, lhs.shape[0])
    lhs, rhs = (jnp.where(column(valid), x, 0) for x in (lhs, rhs))
    return _ragged_dot((0, 0), lhs, rhs, sizes, precision).astype(dtype)


# --- What kernels get ----------------------------------------------------------------------------


def _call(
    platform: str,
    op: str,
    operands: Sequence[_ffi.Operand],
    groups: tuple[_ffi.Operand, _ffi.Operand],
    shape: tuple[int, int, int],
    precision: jax.lax.Precision,
    **attributes: Any,
) -> _ffi.Call | None:
    """A call of a kernel, given the (groups, k, n) of its weights; None where there is none."""
    lhs, *others = operands
    sizes, offset = groups
    rows = lhs.shape[0]
    if lhs.dtype not in FLOATS or (sizes.dtype != np.int32 and not _index.at_most(rows, _MAX_ROWS)):
        return None
    if sizes.dtype != np.int32:
        sizes = sizes.map(lambda wide: jnp.clip(wide, 0, rows).astype(jnp.int32), np.int32)
    num_groups, k, n = shape
    itemsize = np.dtype(lhs.dtype).itemsize
    schedule = schedules.choose_matmul(
        op, rows=rows, groups=num_groups, k=k, n=n, itemsize=itemsize
    )
    size = 1
    if platform == "cuda" and op == "segment_outer":  # as outer_workspace_bytes in segment_matmul.h
        acc_itemsize = np.dtype(accumulator_dtype(lhs.dtype)).itemsize
        size = -(-2 * schedule.blocks * k * n * acc_itemsize // 16) * 16 + 8 * schedule.blocks
    attributes |= {
        "exact": np.bool_(precision is jax.lax.Precision.HIGHEST),
        "chunk": np.int64(schedule.chunk),
        "blocks": np.int64(schedule.blocks),
    }
    if op == "segment_matmul":
        attributes["tile"] = np.int64(schedule.tile)
    rhs, *bias = others
    workspace = jax.ShapeDtypeStruct((size,), np.uint8)
    return _ffi.Call([lhs, rhs, sizes, offset, *bias], attributes, [workspace])


def _matmul_call(
    platform: str,
    lhs: _ffi.Operand,
    rhs: _ffi.Operand,
    bias: _ffi.Operand | None,
    sizes: _ffi.Operand,
    offset: _ffi.Operand,
    *,
    transposed: bool,
    precision: Any,
    activation: str | None,
    dtype: Any,
) -> _ffi.Call | None:
    del dtype
    num_groups, k, n = rhs.shape
    return _call(
        *(platform, "segment_matmul", [lhs, rhs, bias or rhs], (sizes, offset)),
        (num_groups, n, k) if transposed else (num_groups, k, n),
        precision,
        transposed=np.bool_(transposed),
        has_bias=np.bool_(bias is not None),
        activation=np.int64((None, *get_args(Activation)).index(activation)),
    )


def _outer_call(
    platform: str,
    lhs: _ffi.Operand,
    rhs: _ffi.Operand,
    sizes: _ffi.Operand,
    offset: _ffi.Operand,
    *,
    num_groups: int,
    precision: Any,
    deterministic: bool,
    dtype: Any,
) -> _ffi.Call | None:
    del dtype
    return _call(
        *(platform, "segment_outer", [lhs, rhs], (sizes, offset)),
        (num_groups, lhs.shape[1], rhs.shape[1]),
        precision,
        deterministic=np.bool_(deterministic),
    )


# --- Derivatives ---------------------------------------------------------------------------------


def _matmul_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    lhs, rhs, _, *groups = primals
    d_lhs, d_rhs, d_bias, *_ = tangents
    activation = bind.attributes["activation"]
    product = functools.partial(bind, activation=None)
    terms = []
    if d_lhs is not None:
        terms.append(product(d_lhs, rhs, None, *groups))
    if d_rhs is not None:
        terms.append(product(lhs, d_rhs, None, *groups))
    if d_bias is not None:
        sizes, offset = groups
        ids = _row_groups(sizes, offset, rhs.shape[0], lhs.shape[0])
        views = segments.segment_views(ids, rhs.shape[0], is_sorted=True)
        rows = segments.gather(d_bias, views, bind.implementation)
        terms.append(rows.astype(bind.attributes["dtype"]))
    if not terms:
        return bind(*primals), None
    result, tangent = product(*primals), functools.reduce(operator.add, terms)
    if activation is None:
        return result, tangent
    # All activations are 0 at 0: rows of no group stay so.
    return jax.jvp(_ACTIVATIONS[activation], (result,), (tangent,))


def _product(
    function: Callable[..., Array],
    bind: _ffi.Bind,
    lhs: Any,
    rhs: Any,
    *others: Any,
    **attributes: Any,
) -> Array:
    """A primitive on operands that may differ in dtype: what transposes a widening product.

    The result has the dtype of the narrower operand.
    """
    dtypes = lhs.dtype, rhs.dtype
    wide = promoted(*dtypes)
    result = function(
        *(lhs.astype(wide), rhs.astype(wide), *others),
        precision=bind.attributes["precision"],
        dtype=np.dtype(wide),
        implementation=bind.implementation,
        **attributes,
    )
    return result.astype(min(dtypes, key=operator.attrgetter("itemsize")))


def _rows_times(
    bind: _ffi.Bind, lhs: Any, rhs: Any, groups: Sequence[Any], *, transposed: bool
) -> Array:
    return _product(_matmul, bind, lhs, rhs, None, *groups, transposed=transposed, activation=None)


def _matmul_transpose_lhs(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, rhs, _, *groups = operands
    return _rows_times(bind, ct, rhs, groups, transposed=not bind.attributes["transposed"])


def _matmul_transpose_rhs(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    lhs, rhs, _, *groups = operands
    pair = (ct, lhs) if bind.attributes["transposed"] else (lhs, ct)
    num_groups = rhs.aval.shape[0]
    return _product(_outer, bind, *pair, *groups, num_groups=num_groups, deterministic=True)


def _outer_transpose_lhs(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, rhs, *groups = operands
    return _rows_times(bind, rhs, ct, groups, transposed=True)


def _outer_transpose_rhs(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    lhs, _, *groups = operands
    return _rows_times(bind, lhs, ct, groups, transposed=False)


# --- Batching ------------------------------------------------------------------------------------


def _fold(x: Array, is_batched: bool, size: int, axis: int) -> Array:
    """Joins the batch, which is the first axis where there is one, to another."""
    if not is_batched:
        x = jnp.broadcast_to(x, (size, *x.shape))
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], size * x.shape[axis + 1], *x.shape[axis + 2 :])


def _unfold(x: Array, size: int, axis: int) -> Array:
    """The inverse of :func:`_fold`."""
    x = x.reshape(*x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def _matmul_batch(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    lhs, rhs, bias, sizes, offset = operands
    lhs_batched, rhs_batched, bias_batched, *groups_batched = batched
    if size == 1 or any(groups_batched) or (lhs_batched and (rhs_batched or bias_batched)):
        return _join_groups(bind, operands, batched, size)
    if lhs_batched:  # the batch joins the rows: those of one row stay together
        rows, k = lhs.shape[1:]
        if not _index.at_most(size * rows, _MAX_ROWS):
            return jax.lax.map(lambda one: bind(one, rhs, bias, sizes, offset), lhs)
        folded = jnp.moveaxis(lhs, 0, 1).reshape(rows * size, k)
        result = bind(folded, rhs, bias, jnp.clip(sizes, 0, rows) * size, offset)
        return jnp.moveaxis(result.reshape(rows, size, result.shape[1]), 1, 0)
    # The batch joins the features.
    rhs = _fold(rhs, rhs_batched, size, 1 if bind.attributes["transposed"] else 2)
    if bias is not None:
        bias = _fold(bias, bias_batched, size, 1)
    return _unfold(bind(lhs, rhs, bias, sizes, offset), size, 1)


def _outer_batch(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    lhs, rhs, *groups = operands
    lhs_batched, rhs_batched, *groups_batched = batched
    if size == 1 or any(groups_batched) or (lhs_batched and rhs_batched):
        return _join_groups(bind, operands, batched, size)
    # The batch joins the features.
    if lhs_batched:
        return _unfold(bind(_fold(lhs, True, size, 1), rhs, *groups), size, 1)
    return _unfold(bind(lhs, _fold(rhs, True, size, 1), *groups), size, 2)


def _join_groups(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    """The batch joins the groups; of both primitives."""
    *arrays, sizes, offset = jax.tree.map(
        lambda x, is_batched: x if is_batched else jnp.broadcast_to(x, (size, *x.shape)),
        tuple(operands),
        tuple(batched),
    )
    if size == 1:
        return bind(*jax.tree.map(lambda x: x[0], (*arrays, sizes, offset)))[None]
    is_outer = "num_groups" in bind.attributes
    num_groups = bind.attributes["num_groups"] if is_outer else arrays[1].shape[1]
    rows = arrays[0].shape[1]
    if not _index.at_most(size * rows, _MAX_ROWS):
        return jax.lax.map(lambda one: bind(*one), (*arrays, sizes, offset))
    cover = functools.partial(_cover, num_groups=num_groups, rows=rows)
    sizes, valid = jax.vmap(cover)(sizes, offset)
    valid = valid[:, :, None]
    if is_outer:
        arrays = [jnp.where(valid, x, 0) for x in arrays]
    joined = bind(
        *(x if x is None else x.reshape(size * x.shape[1], *x.shape[2:]) for x in arrays),
        sizes.ravel(),
        jnp.zeros((1,), jnp.int32),
        **({"num_groups": size * num_groups} if is_outer else {}),
    )
    result = joined.reshape(size, joined.shape[0] // size, *joined.shape[1:])
    return result if is_outer else jnp.where(valid, result, 0)


# --- Primitives ----------------------------------------------------------------------------------


def _matmul_result(
    lhs: Any, rhs: Any, *others: Any, transposed: bool, dtype: Any, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del others, attributes
    return jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1 if transposed else 2]), dtype)


def _outer_result(
    lhs: Any, rhs: Any, *groups: Any, num_groups: int, dtype: Any, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del groups, attributes
    return jax.ShapeDtypeStruct((num_groups, lhs.shape[1], rhs.shape[1]), dtype)


# (lhs, rhs, bias or None, sizes, offset, *, transposed, precision, activation, dtype): all arrays
# have one dtype; that of the result is the same or that of the accumulator.
_matmul = _ffi.define_primitive(
    "segment_matmul",
    _ffi.Rules(
        result=_matmul_result,
        xla=_matmul_xla,
        call=_matmul_call,
        jvp=_matmul_jvp,
        transpose={0: _matmul_transpose_lhs, 1: _matmul_transpose_rhs},
        batch=_matmul_batch,
    ),
)
# (lhs, rhs, sizes, offset, *, num_groups, precision, deterministic, dtype): likewise.
_outer = _ffi.define_primitive(
    "segment_outer",
    _ffi.Rules(
        result=_outer_result,
        xla=_outer_xla,
        call=_outer_call,
        transpose={0: _outer_transpose_lhs, 1: _outer_transpose_rhs},
        batch=_outer_batch,
    ),
)
