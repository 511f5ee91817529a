"""The primitives of segmented matrix multiplication, closed under differentiation.

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
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS, accumulator_dtype, promoted
from jax_gnn._core.batching import all_batched
from jax_gnn._core.csr import segments
from jax_gnn._core.ids import MAX_SIZE, at_most
from jax_gnn._core.op import Bind, Call, Op, Operand, define
from jax_gnn._ops.segment_matmul import xla
from jax_gnn._ops.segment_matmul.schedule import FAMILY
from jax_gnn._ops.segment_matmul.xla import Activation
from jax_gnn._ops.segment_reduce.primitive import gather


class Rows(NamedTuple):
    """Operands of ``segment_matmul``, of one dtype; the result has that or the accumulator's.

    Attributes:
        lhs: ``(rows, k)``.
        rhs: ``(groups, k, n)``, or if ``transposed`` ``(groups, n, k)``.
        bias: ``(groups, n)``, or None.
        sizes: ``(num_sizes,)``, how many rows each group has.
        offset: ``(1,)``, which of these is the first of the weights.
    """

    lhs: Any
    rhs: Any
    bias: Any
    sizes: Any
    offset: Any


class Factors(NamedTuple):
    """Operands of ``segment_outer``: ``(rows, k)``, ``(rows, n)``, and groups as of `Rows`."""

    lhs: Any
    rhs: Any
    sizes: Any
    offset: Any


# --- What kernels get ----------------------------------------------------------------------------


def _call(
    platform: str,
    op: str,
    operands: Rows | Factors,
    shape: tuple[int, int, int],
    precision: jax.lax.Precision,
    *optional: Operand,
    **attributes: Any,
) -> Call | None:
    """A call of a kernel, given the (groups, k, n) of its weights; None where there is none."""
    lhs, sizes = operands.lhs, operands.sizes
    rows = lhs.shape[0]
    if lhs.dtype not in FLOATS or (sizes.dtype != np.int32 and not at_most(rows, MAX_SIZE)):
        return None
    if sizes.dtype != np.int32:
        sizes = sizes.map(lambda wide: jnp.clip(wide, 0, rows).astype(jnp.int32), np.int32)
    num_groups, k, n = shape
    itemsize = np.dtype(lhs.dtype).itemsize
    schedule = FAMILY.choose(op, rows=rows, groups=num_groups, k=k, n=n, itemsize=itemsize)
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
    workspace = jax.ShapeDtypeStruct((size,), np.uint8)
    return Call([lhs, operands.rhs, sizes, operands.offset, *optional], attributes, [workspace])


def _matmul_call(
    platform: str,
    operands: Rows,
    *,
    transposed: bool,
    precision: Any,
    activation: str | None,
    dtype: Any,
) -> Call | None:
    del dtype
    return _call(
        *(platform, "segment_matmul", operands, _shape(operands, transposed), precision),
        operands.bias or operands.rhs,
        transposed=np.bool_(transposed),
        has_bias=np.bool_(operands.bias is not None),
        activation=np.int64((None, *get_args(Activation)).index(activation)),
    )


def _outer_call(
    platform: str,
    operands: Factors,
    *,
    num_groups: int,
    precision: Any,
    deterministic: bool,
    dtype: Any,
) -> Call | None:
    del dtype
    shape = num_groups, operands.lhs.shape[1], operands.rhs.shape[1]
    attributes = {"deterministic": np.bool_(deterministic)}
    return _call(platform, "segment_outer", operands, shape, precision, **attributes)


def _shape(operands: Rows, transposed: bool) -> tuple[int, int, int]:
    """The groups, k and n of the weights."""
    num_groups, k, n = operands.rhs.shape
    return (num_groups, n, k) if transposed else (num_groups, k, n)


# --- Derivatives ---------------------------------------------------------------------------------


def _matmul_jvp(bind: Bind, primals: Rows, tangents: Rows) -> tuple[Array, Array | None]:
    activation = bind.attributes["activation"]
    product, plain = functools.partial(bind, activation=None), primals._replace(bias=None)
    terms = []
    if tangents.lhs is not None:
        terms.append(product(plain._replace(lhs=tangents.lhs)))
    if tangents.rhs is not None:
        terms.append(product(plain._replace(rhs=tangents.rhs)))
    if tangents.bias is not None:
        num_groups = primals.rhs.shape[0]
        ids = xla.row_groups(primals.sizes, primals.offset, num_groups, primals.lhs.shape[0])
        rows = gather(tangents.bias, segments(ids, num_groups), bind.implementation)
        terms.append(rows.astype(bind.attributes["dtype"]))
    if not terms:
        return bind(primals), None
    result, tangent = product(primals), functools.reduce(operator.add, terms)
    if activation is None:
        return result, tangent
    # All activations are 0 at 0: rows of no group stay so.
    return jax.jvp(xla.ACTIVATIONS[activation], (result,), (tangent,))


def _widening(op: Op, bind: Bind, operands: Rows | Factors, **attributes: Any) -> Array:
    """An op on factors that may differ in dtype: what transposes a widening product.

    The result has the dtype of the narrower factor.
    """
    dtypes = operands.lhs.dtype, operands.rhs.dtype
    wide = promoted(*dtypes)
    result = op(
        *operands._replace(lhs=operands.lhs.astype(wide), rhs=operands.rhs.astype(wide)),
        precision=bind.attributes["precision"],
        dtype=np.dtype(wide),
        implementation=bind.implementation,
        **attributes,
    )
    return result.astype(min(dtypes, key=operator.attrgetter("itemsize")))


def _rows_times(bind: Bind, lhs: Any, rhs: Any, groups: Any, *, transposed: bool) -> Array:
    operands = Rows(lhs, rhs, None, groups.sizes, groups.offset)
    return _widening(segment_matmul, bind, operands, transposed=transposed, activation=None)


def _matmul_transpose_lhs(bind: Bind, ct: Array, operands: Rows) -> Array:
    transposed = not bind.attributes["transposed"]
    return _rows_times(bind, ct, operands.rhs, operands, transposed=transposed)


def _matmul_transpose_rhs(bind: Bind, ct: Array, operands: Rows) -> Array:
    lhs = operands.lhs
    left, right = (ct, lhs) if bind.attributes["transposed"] else (lhs, ct)
    factors = Factors(left, right, operands.sizes, operands.offset)
    num_groups = operands.rhs.aval.shape[0]
    return _widening(segment_outer, bind, factors, num_groups=num_groups, deterministic=True)


def _outer_transpose_lhs(bind: Bind, ct: Array, operands: Factors) -> Array:
    return _rows_times(bind, operands.rhs, ct, operands, transposed=True)


def _outer_transpose_rhs(bind: Bind, ct: Array, operands: Factors) -> Array:
    return _rows_times(bind, operands.lhs, ct, operands, transposed=False)


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


def _matmul_batch(bind: Bind, operands: Rows, batched: Rows, size: int) -> Array:
    lhs, rhs, bias, sizes, _ = operands
    any_groups = batched.sizes or batched.offset
    if size == 1 or any_groups or (batched.lhs and (batched.rhs or batched.bias)):
        return _join_groups(bind, operands, batched, size)
    if batched.lhs:  # the batch joins the rows: those of one row stay together
        rows, k = lhs.shape[1:]
        if not at_most(size * rows, MAX_SIZE):
            return jax.lax.map(lambda one: bind(operands._replace(lhs=one)), lhs)
        folded = jnp.moveaxis(lhs, 0, 1).reshape(rows * size, k)
        result = bind(operands._replace(lhs=folded, sizes=jnp.clip(sizes, 0, rows) * size))
        return jnp.moveaxis(result.reshape(rows, size, result.shape[1]), 1, 0)
    # The batch joins the features.
    rhs = _fold(rhs, batched.rhs, size, 1 if bind.attributes["transposed"] else 2)
    if bias is not None:
        bias = _fold(bias, batched.bias, size, 1)
    return _unfold(bind(operands._replace(rhs=rhs, bias=bias)), size, 1)


def _outer_batch(bind: Bind, operands: Factors, batched: Factors, size: int) -> Array:
    any_groups = batched.sizes or batched.offset
    if size == 1 or any_groups or (batched.lhs and batched.rhs):
        return _join_groups(bind, operands, batched, size)
    # The batch joins the features.
    name, axis = ("lhs", 1) if batched.lhs else ("rhs", 2)
    folded = _fold(getattr(operands, name), True, size, 1)
    return _unfold(bind(operands._replace(**{name: folded})), size, axis)


def _join_groups(bind: Bind, operands: Rows | Factors, batched: Rows | Factors, size: int) -> Array:
    """The batch joins the groups; of both primitives."""
    operands = all_batched(operands, batched, size)
    if size == 1:
        return bind(jax.tree.map(lambda x: x[0], operands))[None]
    is_outer = "num_groups" in bind.attributes
    num_groups = bind.attributes["num_groups"] if is_outer else operands.rhs.shape[1]
    rows = operands.lhs.shape[1]
    if not at_most(size * rows, MAX_SIZE):
        return jax.lax.map(bind, operands)
    cover = functools.partial(xla.cover, num_groups=num_groups, rows=rows)
    sizes, valid = jax.vmap(cover)(operands.sizes, operands.offset)
    valid = valid[:, :, None]
    if is_outer:
        lhs, rhs = (jnp.where(valid, x, 0) for x in (operands.lhs, operands.rhs))
        operands = operands._replace(lhs=lhs, rhs=rhs)
    joined = jax.tree.map(
        lambda x: x.reshape(size * x.shape[1], *x.shape[2:]), operands._replace(sizes=sizes)
    )
    result = bind(
        joined._replace(offset=jnp.zeros((1,), jnp.int32)),
        **({"num_groups": size * num_groups} if is_outer else {}),
    )
    result = result.reshape(size, result.shape[0] // size, *result.shape[1:])
    return result if is_outer else jnp.where(valid, result, 0)


# --- Primitives ----------------------------------------------------------------------------------


def _matmul_result(
    operands: Rows, *, transposed: bool, dtype: Any, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del attributes
    _, _, n = _shape(operands, transposed)
    return jax.ShapeDtypeStruct((operands.lhs.shape[0], n), dtype)


def _outer_result(
    operands: Factors, *, num_groups: int, dtype: Any, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del attributes
    shape = num_groups, operands.lhs.shape[1], operands.rhs.shape[1]
    return jax.ShapeDtypeStruct(shape, dtype)


def _matmul_flops(operands: Rows, *, transposed: bool, **attributes: Any) -> int:
    del attributes
    _, k, n = _shape(operands, transposed)
    return 2 * operands.lhs.shape[0] * k * n


def _outer_flops(operands: Factors, **attributes: Any) -> int:
    del attributes
    return 2 * operands.lhs.shape[0] * operands.lhs.shape[1] * operands.rhs.shape[1]


# Attributes: transposed, precision, activation, dtype.
segment_matmul = define(
    Op(
        name="segment_matmul",
        operands=Rows,
        result=_matmul_result,
        xla=xla.segment_matmul,
        call=_matmul_call,
        jvp=_matmul_jvp,
        transpose={"lhs": _matmul_transpose_lhs, "rhs": _matmul_transpose_rhs},
        batch=_matmul_batch,
        flops=_matmul_flops,
        family=FAMILY,
    )
)
# Attributes: num_groups, precision, deterministic, dtype.
segment_outer = define(
    Op(
        name="segment_outer",
        operands=Factors,
        result=_outer_result,
        xla=xla.segment_outer,
        call=_outer_call,
        transpose={"lhs": _outer_transpose_lhs, "rhs": _outer_transpose_rhs},
        batch=_outer_batch,
        flops=_outer_flops,
        family=FAMILY,
    )
)
