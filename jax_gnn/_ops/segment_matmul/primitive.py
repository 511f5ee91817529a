"""The primitives of segmented matrix multiplication, closed under differentiation.

* ``segment_matmul``, out[r] = activation(scale[r] · lhs[r] rhs[g] + bias[g] + residual[r]) for the
  rows r of group g. Without bias, residual and activation it is linear in lhs, where its transpose
  is itself with the weights transposed, and in rhs, where it is
* ``segment_outer``, out[g] = Σ scale[r] · lhs[r]ᵀ rhs[r] over the rows r of group g, whose
  transposes are the first.

Rows may be gathered from lhs, and results scattered: the transpose in lhs has these two swapped,
where it is no permutation that gathers with the segment sum after it. The transpose in scale is a
row dot with the product.

Where an activation is differentiated it is taken out of the primitive; a bias's derivative is a
gather, whose transpose is the sum over segments. Groups are sizes and an offset into them: weight 0
belongs to the group of size ``group_sizes[group_offset]``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.activation import Activation
from jax_gnn._core.arrays import FLOATS, accumulator_dtype, as_column, promoted
from jax_gnn._core.batching import broadcast_batch, map_batch
from jax_gnn._core.csr import SparseMatrix, segments
from jax_gnn._core.ids import MAX_SIZE, at_most
from jax_gnn._core.kernels import narrow_ids
from jax_gnn._core.op import Bind, Call, Op, Operand, define
from jax_gnn._core.pieces import half_factors, unread
from jax_gnn._core.sharding import UNSPLIT, Pieces, Sharding, replicate, reshape
from jax_gnn._ops.segment_matmul import xla
from jax_gnn._ops.segment_matmul.schedule import FAMILY
from jax_gnn._ops.segment_reduce.primitive import gather, total


class Rows(NamedTuple):
    """Operands of ``segment_matmul``, of one dtype; the result has that or the accumulator's.

    Attributes:
        lhs: ``(rows, k)``, or with ``gather`` any number of rows.
        rhs: ``(groups, k, n)``, or if ``transposed`` ``(groups, n, k)``.
        bias: ``(groups, n)``, or None.
        residual: ``(rows, n)`` in the dtype of the result, or None; added to all rows of the
            result, those without a product too.
        scale: ``(rows,)`` factors in the accumulator type, or None.
        sizes: ``(num_sizes,)``, how many rows each group has.
        offset: ``(1,)``, which of these is the first of the weights.
        gather: ``(rows, rows of lhs)``, the row that each row reads, zeros where it is out of
            range; None: row i reads row i. Its transpose sums up, or has no rows: a permutation.
        scatter: a permutation, by row which row of the product each row of the result is, zeros
            where that is out of range, by column where each row is written; None: at its place.
    """

    lhs: Any
    rhs: Any
    bias: Any
    residual: Any
    scale: Any
    sizes: Any
    offset: Any
    gather: SparseMatrix | None = None
    scatter: SparseMatrix | None = None


class Factors(NamedTuple):
    """Operands of ``segment_outer``, of one dtype.

    Rows for which an id is out of range are left out, whatever the other one's row holds.

    Attributes:
        lhs: ``(rows, k)``, or with ``left`` any number of rows.
        rhs: ``(rows, n)``, or with ``right`` any number of rows.
        scale: as of `Rows`.
        sizes: likewise.
        offset: likewise.
        left: which row of lhs each row reads, as ``gather`` of `Rows`.
        right: the same of rhs.
    """

    lhs: Any
    rhs: Any
    scale: Any
    sizes: Any
    offset: Any
    left: SparseMatrix | None = None
    right: SparseMatrix | None = None


def _num_rows(x: Any, *gathers: SparseMatrix | None) -> Any:
    """How many rows a product has: those of its lists, or of a factor."""
    return next((each.by_row.count for each in gathers if each is not None), x.shape[0])


# --- What kernels get ----------------------------------------------------------------------------


def _call(
    platform: str,
    op: str,
    operands: Rows | Factors,
    rows: Any,
    shape: tuple[int, int, int],
    precision: jax.lax.Precision,
    dtype: Any,
    bias: Sequence[Operand],
    lists: Sequence[tuple[Operand | None, Any]],
    **attributes: Any,
) -> Call | None:
    """A call of a kernel, None where there is none.

    Args:
        platform: which.
        op: which.
        operands: of the op.
        rows: of the product.
        shape: the (groups, k, n) of the weights.
        precision: of the product.
        dtype: of the result.
        bias: operands after the offset.
        lists: ids of rows, and how many rows they index; sizes stand for those that are absent.
        attributes: of the handler.
    """
    lhs, sizes, scale = operands.lhs, operands.sizes, operands.scale
    if lhs.dtype not in FLOATS:
        return None
    if sizes.dtype != np.int32:
        if not at_most(rows, MAX_SIZE):
            return None
        sizes = Operand.of(lambda wide: jnp.clip(wide, 0, rows).astype(jnp.int32), sizes)
    for ids, size in lists:
        if ids is not None and ids.dtype != np.int32 and not at_most(size, MAX_SIZE - 1):
            return None
    num_groups, k, n = shape
    itemsize = np.dtype(lhs.dtype).itemsize
    exact = precision is jax.lax.Precision.HIGHEST
    schedule = FAMILY.choose(
        op,
        rows=rows,
        groups=num_groups,
        k=k,
        n=n,
        itemsize=itemsize,
        sizes=sizes.shape[0],
        gathers=lists[0][0] is not None,
        exact=exact,
        widens=np.dtype(dtype) != lhs.dtype,
    )
    size = 1
    if platform == "cuda" and op == "segment_outer":  # as outer_workspace_bytes in segment_matmul.h
        acc_itemsize = np.dtype(accumulator_dtype(lhs.dtype)).itemsize
        size = -(-2 * schedule.blocks * k * n * acc_itemsize // 16) * 16 + 8 * schedule.blocks
    attributes |= {
        "exact": np.bool_(exact),
        "scaled": np.bool_(scale is not None),
        "chunk": np.int64(schedule.chunk),
        "blocks": np.int64(schedule.blocks),
    }
    if op == "segment_matmul":
        attributes |= {"kernel": schedule.kernel, "tile": np.int64(schedule.tile)}
    arrays = [lhs, operands.rhs, sizes, operands.offset, *bias, scale or lhs]
    arrays += [sizes if ids is None else narrow_ids(ids, size) for ids, size in lists]
    return Call(arrays, attributes, [jax.ShapeDtypeStruct((size,), np.uint8)])


def _matmul_call(
    platform: str,
    operands: Rows,
    *,
    transposed: bool,
    precision: Any,
    activation: str | None,
    dtype: Any,
) -> Call | None:
    lhs, gather, scatter = operands.lhs, operands.gather, operands.scatter
    rows = _num_rows(lhs, gather)
    return _call(
        *(platform, "segment_matmul", operands, rows, _shape(operands, transposed)),
        *(precision, dtype),
        [operands.bias or operands.rhs, operands.residual or operands.rhs],
        [
            (gather and gather.by_row.cols, lhs.shape[0]),
            (scatter and scatter.by_col.cols, rows),
            (scatter and scatter.by_row.cols, rows),
        ],
        transposed=np.bool_(transposed),
        has_bias=np.bool_(operands.bias is not None),
        has_residual=np.bool_(operands.residual is not None),
        gathers=np.bool_(gather is not None),
        scatters=np.bool_(scatter is not None),
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
    lhs, rhs, left, right = operands.lhs, operands.rhs, operands.left, operands.right
    return _call(
        *(platform, "segment_outer", operands, _num_rows(lhs, left, right)),
        (num_groups, lhs.shape[1], rhs.shape[1]),
        *(precision, dtype),
        [],
        [
            (left and left.by_row.cols, lhs.shape[0]),
            (right and right.by_row.cols, rhs.shape[0]),
        ],
        deterministic=np.bool_(deterministic),
        left=np.bool_(left is not None),
        right=np.bool_(right is not None),
    )


def _shape(operands: Rows, transposed: bool) -> tuple[int, int, int]:
    """The groups, k and n of the weights."""
    num_groups, k, n = operands.rhs.shape
    return (num_groups, n, k) if transposed else (num_groups, k, n)


# --- Widths that Hopper's copies do not take -----------------------------------------------------

_WORD = 16  # bytes, of which a row must have a whole number
_MOST_BYTES = 1024  # of a row of lhs, for the kernels of `segment_matmul` that copy so


def _missing(platform: str, x: Any, axis: int, precision: jax.lax.Precision) -> int:
    """How many features make the rows of an operand whole words; 0 where no kernel asks for it."""
    itemsize, width = np.dtype(x.dtype).itemsize, x.shape[axis]
    exact = precision is jax.lax.Precision.HIGHEST and itemsize == 4
    if platform != "cuda" or x.dtype not in FLOATS or itemsize > 4 or exact:
        return 0
    return 0 if jax.export.is_symbolic_dim(width) else -width % (_WORD // itemsize)


def _widened(x: Array, axis: int, new: int) -> Array:
    return jnp.pad(x, [(0, new if each == axis else 0) for each in range(x.ndim)])


def _matmul_composition(
    platform: str, implementation: str | None, operands: Rows, **attributes: Any
) -> Callable[..., Array] | None:
    """With zeros behind the features that are summed over."""
    lhs, lists = operands.lhs, (operands.gather, operands.scatter)
    new = _missing(platform, lhs, 1, attributes["precision"])
    widens = attributes["dtype"] != lhs.dtype and any(each is not None for each in lists)
    if not new or widens or lhs.shape[1] * np.dtype(lhs.dtype).itemsize > _MOST_BYTES:
        return None

    def composed(**operands: Any) -> Array:
        rows = Rows(**operands)
        lhs = _widened(rows.lhs, 1, new)
        rhs = _widened(rows.rhs, 2 if attributes["transposed"] else 1, new)
        wide = rows._replace(lhs=lhs, rhs=rhs)
        return segment_matmul(*wide, **attributes, implementation=implementation)

    return composed


def _outer_composition(
    platform: str, implementation: str | None, operands: Factors, **attributes: Any
) -> Callable[..., Array] | None:
    """With zeros behind the features, and so in results that nobody reads."""
    sides = operands.lhs, operands.rhs
    new = [_missing(platform, side, 1, attributes["precision"]) for side in sides]
    if not any(new):
        return None

    def composed(**operands: Any) -> Array:
        factors = Factors(**operands)
        lhs, rhs = (_widened(x, 1, more) for x, more in zip(factors[:2], new, strict=True))
        wide = factors._replace(lhs=lhs, rhs=rhs)
        found = segment_outer(*wide, **attributes, implementation=implementation)
        return found[:, : factors.lhs.shape[1], : factors.rhs.shape[1]]

    return composed


# --- Derivatives ---------------------------------------------------------------------------------


def _matmul_jvp(bind: Bind, primals: Rows, tangents: Rows) -> tuple[Array, Array | None]:
    activation = bind.attributes["activation"]
    product = functools.partial(bind, activation=None)
    plain = primals._replace(bias=None, residual=None)
    terms = [
        product(plain._replace(**{name: tangent}))
        for name in ("lhs", "rhs", "scale")
        if (tangent := getattr(tangents, name)) is not None
    ]
    if tangents.bias is not None:
        num_groups = primals.rhs.shape[0]
        groups = primals.sizes, primals.offset, num_groups
        num_rows = _num_rows(primals.lhs, primals.gather)
        if num_groups == 1:  # XLA joins the sum of a gradient's rows to what makes them
            rows = jnp.where(as_column(xla.in_groups(*groups, num_rows)), tangents.bias, 0)
        else:
            ids = segments(xla.row_groups(*groups, num_rows), num_groups)
            rows = gather(tangents.bias, ids, bind.implementation)
        rows = _listed(bind, rows, primals.scatter)
        terms.append(rows.astype(bind.attributes["dtype"]))
    if tangents.residual is not None:
        terms.append(tangents.residual)
    if not terms:
        return bind(primals), None
    result, tangent = product(primals), functools.reduce(operator.add, terms)
    if activation is None:
        return result, tangent
    # All activations are 0 at 0: rows of no group, and those that are not written, stay so.
    return jax.jvp(xla.ACTIVATIONS[activation], (result,), (tangent,))


def _listed(bind: Bind, x: Array, matrix: SparseMatrix | None) -> Array:
    """The rows of x that a gather names, or for a transposed one their sums; None: all of x."""
    return x if matrix is None else total(x, matrix, bind.implementation)


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


def _rows_times(
    bind: Bind,
    lhs: Any,
    rhs: Any,
    groups: Any,
    gather: SparseMatrix | None,
    to: SparseMatrix | None,
    *,
    transposed: bool,
) -> Array:
    """The product of rows of lhs, by ``gather``, summed up where ``to`` reads."""
    scatter = to.T if to is not None and to.by_col.rows is None else None
    operands = Rows(
        *(lhs, rhs, None, None, groups.scale, groups.sizes, groups.offset, gather, scatter)
    )
    options = {"transposed": transposed, "activation": None}
    product = _widening(segment_matmul, bind, operands, **options)
    return product if to is None or scatter is not None else _listed(bind, product, to.T)


def _matmul_transpose_lhs(bind: Bind, ct: Array, operands: Rows) -> Array:
    transposed = not bind.attributes["transposed"]
    scatter = operands.scatter and operands.scatter.T
    lists = scatter, operands.gather
    return _rows_times(bind, ct, operands.rhs, operands, *lists, transposed=transposed)


def _matmul_transpose_rhs(bind: Bind, ct: Array, operands: Rows) -> Array:
    sides = [(operands.lhs, operands.gather), (ct, operands.scatter and operands.scatter.T)]
    (lhs, left), (rhs, right) = sides[::-1] if bind.attributes["transposed"] else sides
    factors = Factors(lhs, rhs, operands.scale, operands.sizes, operands.offset, left, right)
    num_groups = operands.rhs.aval.shape[0]
    return _widening(segment_outer, bind, factors, num_groups=num_groups, deterministic=True)


def _matmul_transpose_scale(bind: Bind, ct: Array, operands: Rows) -> Array:
    rows = operands._replace(bias=None, residual=None, scale=None)
    dots = _row_dots(bind, rows, ct, transposed=bind.attributes["transposed"])
    return _of_groups(rows, _listed(bind, dots, rows.scatter and rows.scatter.T))


def _outer_transpose_scale(bind: Bind, ct: Array, operands: Factors) -> Array:
    lhs, rhs, _, sizes, offset, left, right = operands
    rows = Rows(lhs, ct, None, None, None, sizes, offset, left)
    dots = _row_dots(bind, rows, _listed(bind, rhs, right), transposed=False)
    return _of_groups(rows, dots)


def _row_dots(bind: Bind, rows: Rows, others: Array, *, transposed: bool) -> Array:
    """The dots of the rows of a product and of another matrix, in the accumulator type."""
    wide = promoted(rows.lhs.dtype, rows.rhs.dtype)
    acc = np.dtype(accumulator_dtype(wide))
    product = segment_matmul(
        *rows._replace(lhs=rows.lhs.astype(wide), rhs=rows.rhs.astype(wide)),
        transposed=transposed,
        precision=bind.attributes["precision"],
        activation=None,
        dtype=acc,
        implementation=bind.implementation,
    )
    return jnp.sum(product * others.astype(acc), axis=1)


def _of_groups(rows: Rows, values: Array) -> Array:
    """A number for each row of a product, 0 for rows of no group."""
    groups = rows.sizes, rows.offset, rows.rhs.shape[0], values.shape[0]
    return jnp.where(xla.in_groups(*groups), values, 0)


def _outer_transpose_lhs(bind: Bind, ct: Array, operands: Factors) -> Array:
    lists = operands.right, operands.left
    return _rows_times(bind, operands.rhs, ct, operands, *lists, transposed=True)


def _outer_transpose_rhs(bind: Bind, ct: Array, operands: Factors) -> Array:
    lists = operands.left, operands.right
    return _rows_times(bind, operands.lhs, ct, operands, *lists, transposed=False)


# --- Batching ------------------------------------------------------------------------------------


def _fold(x: Array, is_batched: bool, size: int, axis: int) -> Array:
    """Joins the batch, which is the first axis where there is one, to another."""
    if not is_batched:
        x = jnp.broadcast_to(x, (size, *x.shape))
    x = jnp.moveaxis(x, 0, axis)
    return reshape(x, *x.shape[:axis], size * x.shape[axis + 1], *x.shape[axis + 2 :])


def _unfold(x: Array, size: int, axis: int) -> Array:
    """The inverse of :func:`_fold`."""
    x = reshape(x, *x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def _matmul_batch(bind: Bind, operands: Rows, batched: Rows, size: int) -> Array:
    if operands.residual is not None:  # is added after
        return _add_batched(bind, operands, batched, size)
    features = batched.rhs or batched.bias
    others = batched._replace(rhs=False, bias=None)
    if size == 1:
        return _join_groups(bind, operands, batched, size)
    if not any(jax.tree.leaves(others)):  # the batch joins the features
        rhs, bias = operands.rhs, operands.bias
        rhs = _fold(rhs, batched.rhs, size, 1 if bind.attributes["transposed"] else 2)
        if bias is not None:
            bias = _fold(bias, batched.bias, size, 1)
        return _unfold(bind(operands._replace(rhs=rhs, bias=bias)), size, 1)
    if operands.gather is not None or operands.scatter is not None:
        return _matmul_apart(bind, operands, batched, size)
    if features or batched.sizes or batched.offset:
        return _join_groups(bind, operands, batched, size)
    # The batch joins the rows: those of one row stay together.
    rows = operands.lhs.shape[1 if batched.lhs else 0]
    batch = broadcast_batch((operands.lhs, operands.scale), (batched.lhs, batched.scale), size)
    if not at_most(size * rows, MAX_SIZE):
        return map_batch(lambda one: bind(operands._replace(lhs=one[0], scale=one[1])), batch)
    lhs, scale = jax.tree.map(
        lambda x: reshape(jnp.moveaxis(x, 0, 1), rows * size, *x.shape[2:]), batch
    )
    sizes = jnp.clip(operands.sizes, 0, rows) * size
    result = bind(operands._replace(lhs=lhs, scale=scale, sizes=sizes))
    return jnp.moveaxis(reshape(result, rows, size, result.shape[1]), 1, 0)


def _add_batched(bind: Bind, operands: Rows, batched: Rows, size: int) -> Array:
    """The batch of products, and then residual and activation, rounded once."""
    dtype, activation = (bind.attributes[name] for name in ("dtype", "activation"))
    wide = np.dtype(accumulator_dtype(dtype))

    def product(*rows: Any) -> Array:
        return bind(Rows(*rows), activation=None, dtype=wide)

    rows, plain = (each._replace(residual=None) for each in (operands, batched))
    is_batched = any(jax.tree.leaves(plain))
    result = _mapped(product, size, *plain)(*rows) if is_batched else product(*rows)
    return xla.finished(result, operands.residual, activation, dtype)


def _matmul_apart(bind: Bind, operands: Rows, batched: Rows, size: int) -> Array:
    """The batch of products with lists of rows: gathers and scatters are products' no more."""
    listed = functools.partial(_listed, bind)
    plain, plain_batched = (
        each._replace(gather=None, scatter=None) for each in (operands, batched)
    )
    if any(jax.tree.leaves((batched.lhs, batched.gather))):
        lhs = _mapped(listed, size, batched.lhs, batched.gather)(operands.lhs, operands.gather)
        plain_batched = plain_batched._replace(lhs=True)
    else:
        lhs = listed(operands.lhs, operands.gather)
    plain = plain._replace(lhs=lhs)
    is_batched = any(jax.tree.leaves(plain_batched))
    result = _matmul_batch(bind, plain, plain_batched, size) if is_batched else bind(plain)
    return _mapped(listed, size, is_batched, batched.scatter)(result, operands.scatter)


def _mapped(function: Callable[..., Any], size: int, *batched: Any) -> Callable[..., Any]:
    axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, batched)
    return jax.vmap(function, in_axes=axes, axis_size=size)


def _outer_batch(bind: Bind, operands: Factors, batched: Factors, size: int) -> Array:
    others = batched._replace(lhs=False, rhs=False)
    if size > 1 and batched.lhs != batched.rhs and not any(jax.tree.leaves(others)):
        # The batch joins the features.
        if batched.lhs:
            operands, axis = operands._replace(lhs=_fold(operands.lhs, True, size, 1)), 1
        else:
            operands, axis = operands._replace(rhs=_fold(operands.rhs, True, size, 1)), 2
        return _unfold(bind(operands), size, axis)
    if size > 1 and (operands.left is not None or operands.right is not None):

        def rows_of(lhs: Array, rhs: Array, left: Any, right: Any) -> list[Array]:
            valid = as_column(xla.listed_rows(left, right))
            rows = ((lhs, left), (rhs, right))
            return [jnp.where(valid, _listed(bind, *each), 0) for each in rows]

        of_rows = operands.lhs, operands.rhs, operands.left, operands.right
        axes = batched.lhs, batched.rhs, batched.left, batched.right
        lhs, rhs = _mapped(rows_of, size, *axes)(*of_rows)
        operands = operands._replace(lhs=lhs, rhs=rhs, left=None, right=None)
        batched = batched._replace(lhs=True, rhs=True, left=None, right=None)
    return _join_groups(bind, operands, batched, size)


def _join_groups(bind: Bind, operands: Rows | Factors, batched: Rows | Factors, size: int) -> Array:
    """The batch joins the groups; of both primitives."""
    operands = broadcast_batch(operands, batched, size)
    if size == 1:
        return bind(jax.tree.map(lambda x: x[0], operands))[None]
    is_outer = "num_groups" in bind.attributes
    num_groups = bind.attributes["num_groups"] if is_outer else operands.rhs.shape[1]
    rows = operands.lhs.shape[1]
    if not at_most(size * rows, MAX_SIZE):
        return map_batch(bind, operands)
    cover = functools.partial(xla.cover, num_groups=num_groups, rows=rows)
    sizes, valid = jax.vmap(cover)(operands.sizes, operands.offset)
    if is_outer:
        held = operands.lhs, operands.rhs, operands.scale
        lhs, rhs, scale = jax.tree.map(
            lambda x: jnp.where(valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), x, 0), held
        )
        operands = operands._replace(lhs=lhs, rhs=rhs, scale=scale)
    joined = jax.tree.map(
        lambda x: reshape(x, size * x.shape[1], *x.shape[2:]), operands._replace(sizes=sizes)
    )
    result = bind(
        joined._replace(sizes=replicate(joined.sizes), offset=jnp.zeros((1,), jnp.int32)),
        **({"num_groups": size * num_groups} if is_outer else {}),
    )
    result = reshape(result, size, result.shape[0] // size, *result.shape[1:])
    return result if is_outer else jnp.where(valid[:, :, None], result, 0)


# --- Several devices -----------------------------------------------------------------------------

# Rows with the sizes of their groups, the inner axis by a sum, groups by their offset and a sum.


def _list_texts(matrix: SparseMatrix | None, rows: str) -> SparseMatrix | None:
    if matrix is None:
        return None
    if rows == UNSPLIT:
        return jax.tree.map(lambda _: UNSPLIT, matrix)
    return SparseMatrix(half_factors(matrix.by_row, rows), unread(matrix.by_col))


def _matmul_sharding(
    operands: Rows, results: Any, *, transposed: bool, activation: Any, **attributes: Any
) -> Sharding:
    del results, attributes
    _, _, bias, residual, scale, _, _, gather, scatter = operands
    is_product = bias is None and residual is None and activation is None
    rows = "m" if scatter is None else UNSPLIT
    # All activations are 0 at 0, where rows of other groups are; a residual is added once.
    groups, inner = "g" if residual is None else "G", "k" if is_product else "K"
    named = Rows(
        f"{rows if gather is None else UNSPLIT} {inner}",
        f"{groups} n {inner}" if transposed else f"{groups} {inner} n",
        None if bias is None else f"{groups} n",
        None if residual is None else f"{rows} n",
        None if scale is None else rows,
        UNSPLIT,
        UNSPLIT,
        _list_texts(gather, rows),
        _list_texts(scatter, UNSPLIT),
    )
    return _split(named, f"{rows} n")


def _outer_sharding(operands: Factors, results: Any, **attributes: Any) -> Sharding:
    del results, attributes
    _, _, scale, _, _, left, right = operands
    named = Factors(
        "m k" if left is None else f"{UNSPLIT} k",
        "m n" if right is None else f"{UNSPLIT} n",
        None if scale is None else "m",
        UNSPLIT,
        UNSPLIT,
        _list_texts(left, "m"),
        _list_texts(right, "m"),
    )
    return _split(named, "g k n")


def _split(named: Rows | Factors, result: str) -> Sharding:
    def local(bind: Bind, operands: Any, pieces: Pieces) -> list[Array]:
        sizes, offset = operands.sizes, operands.offset
        lists = {name: getattr(operands, name, None) for name in ("gather", "left", "right")}
        if (piece := pieces.get("m")) is not None:
            own = _num_rows(operands.lhs, *lists.values())
            ends = jnp.clip(jnp.cumsum(jnp.maximum(sizes, 0)) - piece.index * own, 0, own)
            sizes = jnp.diff(ends, prepend=0).astype(sizes.dtype)
            for name, matrix in lists.items():
                if matrix is not None:
                    by_row = replace(matrix.by_row, num_rows=own)
                    operands = operands._replace(**{name: matrix._replace(by_row=by_row)})
        changes = {}
        if (piece := pieces.get("g")) is not None:
            is_outer = "num_groups" in bind.attributes
            count = bind.attributes["num_groups"] if is_outer else operands.rhs.shape[0]
            count = count // piece.count if is_outer else count
            offset += (piece.index * count).astype(offset.dtype)
            changes = {"num_groups": count} if is_outer else {}
        return rule.joined([bind(operands._replace(sizes=sizes, offset=offset), **changes)], pieces)

    rule = Sharding(jax.tree.leaves(named), [result], local)
    return rule


# --- Primitives ----------------------------------------------------------------------------------


def _matmul_result(
    operands: Rows, *, transposed: bool, dtype: Any, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del attributes
    _, _, n = _shape(operands, transposed)
    return jax.ShapeDtypeStruct((_num_rows(operands.lhs, operands.gather), n), dtype)


def _outer_result(
    operands: Factors, *, num_groups: int, dtype: Any, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del attributes
    shape = num_groups, operands.lhs.shape[1], operands.rhs.shape[1]
    return jax.ShapeDtypeStruct(shape, dtype)


def _matmul_flops(operands: Rows, *, transposed: bool, **attributes: Any) -> int:
    del attributes
    _, k, n = _shape(operands, transposed)
    scaling = 0 if operands.scale is None else n
    return _num_rows(operands.lhs, operands.gather) * (2 * k * n + scaling)


def _outer_flops(operands: Factors, **attributes: Any) -> int:
    del attributes
    k, n = operands.lhs.shape[1], operands.rhs.shape[1]
    scaling = 0 if operands.scale is None else k
    return _num_rows(operands.lhs, operands.left, operands.right) * (2 * k * n + scaling)


# Attributes: transposed, precision, activation, dtype.
segment_matmul = define(
    Op(
        name="segment_matmul",
        operands=Rows,
        result=_matmul_result,
        xla=xla.segment_matmul,
        composition=_matmul_composition,
        call=_matmul_call,
        jvp=_matmul_jvp,
        transpose={
            "lhs": _matmul_transpose_lhs,
            "rhs": _matmul_transpose_rhs,
            "scale": _matmul_transpose_scale,
        },
        batch=_matmul_batch,
        flops=_matmul_flops,
        family=FAMILY,
        sharding=_matmul_sharding,
    )
)
# Attributes: num_groups, precision, deterministic, dtype.
segment_outer = define(
    Op(
        name="segment_outer",
        operands=Factors,
        result=_outer_result,
        xla=xla.segment_outer,
        composition=_outer_composition,
        call=_outer_call,
        transpose={
            "lhs": _outer_transpose_lhs,
            "rhs": _outer_transpose_rhs,
            "scale": _outer_transpose_scale,
        },
        batch=_outer_batch,
        flops=_outer_flops,
        family=FAMILY,
        sharding=_outer_sharding,
    )
)
