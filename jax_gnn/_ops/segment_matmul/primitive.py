"""The primitives of segmented matrix multiplication, closed under differentiation.

* ``segment_matmul`` is out[r] = activation(scale[r] · lhs[r] rhs[g] + bias[g] + residual[r]) for
  the rows r of group g. Without bias, residual and activation it is linear in lhs and in rhs. Its
  transpose in lhs is itself with transposed weights; its transpose in rhs is
* ``segment_outer``, out[g] = Σ scale[r] · lhs[r]ᵀ rhs[r] over the rows r of group g, whose
  transposes are ``segment_matmul``.

Rows may be gathered from lhs, and results scattered. The transpose in lhs swaps gather and scatter;
if the gather is no permutation, a segment sum follows the product instead. The transpose in scale
is a row dot with the product.

The JVP computes activations outside of the primitive. The tangent of a bias is gathered, and the
transpose of that is a segment sum. Groups are sizes and an offset into them: weight 0 belongs to
the group of size ``group_sizes[group_offset]``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast, get_args

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jax_gnn._core.activation import ACTIVATIONS, Activation
from jax_gnn._core.arrays import FLOATS, accumulator_dtype, as_column, promoted
from jax_gnn._core.batching import broadcast_batch, map_batch
from jax_gnn._core.csr import SparseMatrix, segments
from jax_gnn._core.ids import MAX_SIZE, at_most
from jax_gnn._core.kernels import narrow_ids
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_batch
from jax_gnn._core.sharding import UNSPLIT, Pieces, Sharding, replicate, reshape
from jax_gnn._ops.matrix_sharding import half_factors, unread
from jax_gnn._ops.segment_matmul import xla
from jax_gnn._ops.segment_matmul.schedule import FAMILY
from jax_gnn._ops.segment_reduce.primitive import gather, total


class Rows(NamedTuple):
    """Operands of ``segment_matmul``, of one dtype; the result has that or the accumulator's."""

    lhs: Any  # rows, (rows, k), or with `gather` any number of rows
    rhs: Any  # weights, (groups, k, n), or if `transposed` (groups, n, k)
    bias: Any  # (groups, n), or None
    residual: Any  # (rows, n) in the dtype of the result, added to all of its rows; or None
    scale: Any  # (rows,) factors in the accumulator type, or None
    sizes: Any  # (num_sizes,) numbers of rows of the groups
    offset: Any  # (1,), the first group with a weight
    # Matrix (rows, rows of lhs) of the row that each row reads, zeros if out of range; None: row i
    # reads row i. Its transpose sums; that of a permutation has no rows.
    gather: SparseMatrix | None = None
    # Permutation: by row, the row of the product of each row of the result, zeros if out of range;
    # by column, the row that each row of the product is written to. Or None.
    scatter: SparseMatrix | None = None


class Factors(NamedTuple):
    """Operands of ``segment_outer``, of one dtype.

    Rows for which an id is out of range are left out, even if the factor in range is NaN.
    """

    lhs: Any  # left rows, (rows, k), or with `lhs_gather` any number of rows
    rhs: Any  # right rows, (rows, n), or with `rhs_gather` any number of rows
    scale: Any  # factors, as in `Rows`
    sizes: Any  # numbers of rows, as in `Rows`
    offset: Any  # first group of the result, as in `Rows`
    lhs_gather: SparseMatrix | None = None  # row of lhs that each row reads, as `gather` in `Rows`
    rhs_gather: SparseMatrix | None = None  # row of rhs that each row reads, as `gather` in `Rows`


def _num_rows(x: Array, *gathers: SparseMatrix | None) -> int:
    """Return the number of rows of a product: that of its gathers, or of a factor."""
    return next((gather.by_row.count for gather in gathers if gather is not None), x.shape[0])


# --- Operands of kernels -------------------------------------------------------------------------


def _call(
    platform: str,
    op: str,
    operands: Rows | Factors,
    rows: int,
    shape: tuple[int, int, int],
    ids: Sequence[tuple[Operand | None, int]],
    terms: Sequence[Operand] = (),
    *,
    precision: jax.lax.Precision,
    dtype: DTypeLike,
    **attributes: Any,
) -> Call | None:
    """Return the call of a kernel, or None if there is none.

    ``shape`` is (groups, k, n) of the weights. ``ids`` are ids of rows, and the number of rows they
    index; sizes stand for absent ids. ``terms`` are bias and residual, for the op that has them.
    """
    lhs, sizes, scale = operands.lhs, operands.sizes, operands.scale
    if lhs.dtype not in FLOATS:
        return None
    # Kernels take int32: sizes are clipped to the rows, and ids narrowed if rows are few enough.
    if sizes.dtype != np.int32:
        if not at_most(rows, MAX_SIZE):
            return None
        sizes = Operand.of(lambda wide: jnp.clip(wide, 0, rows).astype(jnp.int32), sizes)
    for array, size in ids:
        if array is not None and array.dtype != np.int32 and not at_most(size, MAX_SIZE - 1):
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
        gathers=ids[0][0] is not None,
        exact=exact,
        widens=np.dtype(dtype) != lhs.dtype,
    )
    workspace_bytes = 1
    if platform == "cuda" and op == "segment_outer":  # as outer_workspace_bytes in segment_matmul.h
        acc_itemsize = np.dtype(accumulator_dtype(lhs.dtype)).itemsize
        partial_sums = -(-2 * schedule.blocks * k * n * acc_itemsize // 16) * 16
        workspace_bytes = partial_sums + 8 * schedule.blocks
    attributes |= {
        "exact": np.bool_(exact),
        "scaled": np.bool_(scale is not None),
        "chunk": np.int64(schedule.chunk),
        "blocks": np.int64(schedule.blocks),
    }
    if op == "segment_matmul":
        attributes |= {"kernel": schedule.kernel, "tile": np.int64(schedule.tile)}
    arrays = [lhs, operands.rhs, sizes, operands.offset, *terms, scale or lhs]
    arrays += [sizes if array is None else narrow_ids(array, size) for array, size in ids]
    return Call(arrays, attributes, [jax.ShapeDtypeStruct((workspace_bytes,), np.uint8)])


def _matmul_call(
    platform: str, operands: Rows, *, transposed: bool, activation: str | None, **options: Any
) -> Call | None:
    lhs, gather, scatter = operands.lhs, operands.gather, operands.scatter
    rows = _num_rows(lhs, gather)
    ids = [
        (gather and gather.by_row.cols, lhs.shape[0]),
        (scatter and scatter.by_col.cols, rows),
        (scatter and scatter.by_row.cols, rows),
    ]
    return _call(
        platform,
        "segment_matmul",
        operands,
        rows,
        _shape(operands, transposed),
        ids,
        [operands.bias or operands.rhs, operands.residual or operands.rhs],
        **options,
        transposed=np.bool_(transposed),
        has_bias=np.bool_(operands.bias is not None),
        has_residual=np.bool_(operands.residual is not None),
        gathers=np.bool_(gather is not None),
        scatters=np.bool_(scatter is not None),
        activation=np.int64((None, *get_args(Activation)).index(activation)),
    )


def _outer_call(
    platform: str, operands: Factors, *, num_groups: int, deterministic: bool, **options: Any
) -> Call | None:
    lhs, rhs, *_, lhs_gather, rhs_gather = operands
    gathers = (lhs_gather, lhs), (rhs_gather, rhs)
    return _call(
        platform,
        "segment_outer",
        operands,
        _num_rows(lhs, lhs_gather, rhs_gather),
        (num_groups, lhs.shape[1], rhs.shape[1]),
        [(gather and gather.by_row.cols, x.shape[0]) for gather, x in gathers],
        **options,
        deterministic=np.bool_(deterministic),
        left=np.bool_(lhs_gather is not None),
        right=np.bool_(rhs_gather is not None),
    )


def _shape(operands: Rows, transposed: bool) -> tuple[int, int, int]:
    """Return the number of groups, k and n of the weights."""
    num_groups, k, n = operands.rhs.shape
    return (num_groups, n, k) if transposed else (num_groups, k, n)


# --- Padding of features for Hopper's copies -----------------------------------------------------

# Bytes of a word, of which rows must be multiples, and the largest bytes of a row of lhs for which
# kernels of `segment_matmul` copy by such words.
_WORD, _MAX_BYTES = 16, 1024


def _padding(platform: str, x: Array, precision: jax.lax.Precision) -> int:
    """Return the number of features that fill rows to whole words; 0 if kernels need none."""
    itemsize, width = np.dtype(x.dtype).itemsize, x.shape[1]
    exact = precision is jax.lax.Precision.HIGHEST and itemsize == 4
    if platform != "cuda" or x.dtype not in FLOATS or itemsize > 4 or exact:
        return 0
    return 0 if jax.export.is_symbolic_dim(width) else -width % (_WORD // itemsize)


def _padded(x: Array, axis: int, count: int) -> Array:
    return jnp.pad(x, [(0, count if i == axis else 0) for i in range(x.ndim)])


def _matmul_composition(
    platform: str, implementation: str | None, operands: Rows, **attributes: Any
) -> Callable[..., Array] | None:
    """Return the product with zeros appended to the features that are summed over."""
    lhs = operands.lhs
    padding = _padding(platform, lhs, attributes["precision"])
    has_ids = operands.gather is not None or operands.scatter is not None
    widens = attributes["dtype"] != lhs.dtype and has_ids
    if not padding or widens or lhs.shape[1] * np.dtype(lhs.dtype).itemsize > _MAX_BYTES:
        return None

    def composed(*, lhs: Array, rhs: Array, **operands: Any) -> Array:
        lhs = _padded(lhs, 1, padding)
        rhs = _padded(rhs, 2 if attributes["transposed"] else 1, padding)
        rows = Rows(lhs=lhs, rhs=rhs, **operands)
        return cast(Array, segment_matmul(*rows, **attributes))

    return composed


def _outer_composition(
    platform: str, implementation: str | None, operands: Factors, **attributes: Any
) -> Callable[..., Array] | None:
    """Return the outer products with zeros appended to the features, cut off in the result."""
    precision = attributes["precision"]
    padding = [_padding(platform, x, precision) for x in (operands.lhs, operands.rhs)]
    if not any(padding):
        return None

    def composed(*, lhs: Array, rhs: Array, **operands: Any) -> Array:
        k, n = lhs.shape[1], rhs.shape[1]
        lhs, rhs = (_padded(x, 1, count) for x, count in zip((lhs, rhs), padding, strict=True))
        factors = Factors(lhs=lhs, rhs=rhs, **operands)
        result: Array = segment_outer(*factors, **attributes)
        return result[:, :k, :n]

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
        if num_groups == 1:  # XLA fuses the sum over rows with the computation of the rows
            rows = jnp.where(as_column(xla.in_groups(*groups, num_rows)), tangents.bias, 0)
        else:
            ids = segments(xla.row_groups(*groups, num_rows), num_groups)
            rows = gather(tangents.bias, ids)
        rows = _apply(primals.scatter, rows)
        terms.append(rows.astype(bind.attributes["dtype"]))
    if tangents.residual is not None:
        terms.append(tangents.residual)
    if not terms:
        return bind(primals), None
    result, tangent = product(primals), functools.reduce(operator.add, terms)
    if activation is None:
        return result, tangent
    # All activations are 0 at 0: rows of no group, and rows that are not written, stay 0.
    return jax.jvp(ACTIVATIONS[activation], (result,), (tangent,))


def _apply(matrix: SparseMatrix | None, x: Array) -> Array:
    """Return the product of a gather, or of the transpose of one, with x; None is the identity."""
    return x if matrix is None else total(x, matrix)


def _widening(op: Op, bind: Bind, operands: Rows | Factors, **attributes: Any) -> Array:
    """Apply an op to factors of two dtypes, in a transpose of a product that widens.

    The result has the dtype of the narrower factor.
    """
    dtypes = operands.lhs.dtype, operands.rhs.dtype
    wide = promoted(*dtypes)
    result = op(
        *operands._replace(lhs=operands.lhs.astype(wide), rhs=operands.rhs.astype(wide)),
        precision=bind.attributes["precision"],
        dtype=np.dtype(wide),
        **attributes,
    )
    return cast(Array, result.astype(min(dtypes, key=operator.attrgetter("itemsize"))))


def _product_at(
    bind: Bind,
    lhs: Array,
    rhs: Array,
    groups: Rows | Factors,
    gather: SparseMatrix | None,
    target: SparseMatrix | None,
    *,
    transposed: bool,
) -> Array:
    """Return the products of gathered rows of lhs, summed by the transpose of ``target``."""
    # The transpose of a permutation is a scatter in the kernel; other gathers need a segment sum.
    scatter = target.T if target is not None and target.by_col.rows is None else None
    scale, sizes, offset = groups.scale, groups.sizes, groups.offset
    operands = Rows(lhs, rhs, None, None, scale, sizes, offset, gather, scatter)
    options = {"transposed": transposed, "activation": None}
    product = _widening(segment_matmul, bind, operands, **options)
    return product if target is None or scatter is not None else _apply(target.T, product)


def _matmul_transpose_lhs(bind: Bind, ct: Array, operands: Rows) -> Array:
    transposed = not bind.attributes["transposed"]
    rhs, ct_gather = operands.rhs, operands.scatter and operands.scatter.T
    gather = operands.gather
    return _product_at(bind, ct, rhs, operands, ct_gather, gather, transposed=transposed)


def _matmul_transpose_rhs(bind: Bind, ct: Array, operands: Rows) -> Array:
    lhs, gather, ct_gather = operands.lhs, operands.gather, operands.scatter
    ct_gather = ct_gather and ct_gather.T
    # The gradient of transposed weights has the factors of the outer product exchanged.
    if bind.attributes["transposed"]:
        lhs, gather, ct, ct_gather = ct, ct_gather, lhs, gather
    scale, sizes, offset = operands.scale, operands.sizes, operands.offset
    factors = Factors(lhs, ct, scale, sizes, offset, gather, ct_gather)
    num_groups = operands.rhs.aval.shape[0]
    return _widening(segment_outer, bind, factors, num_groups=num_groups, deterministic=True)


def _matmul_transpose_scale(bind: Bind, ct: Array, operands: Rows) -> Array:
    rows = operands._replace(bias=None, residual=None, scale=None)
    dots = _row_dots(bind, rows, ct, transposed=bind.attributes["transposed"])
    return _mask_groups(rows, _apply(rows.scatter and rows.scatter.T, dots))


def _outer_transpose_scale(bind: Bind, ct: Array, operands: Factors) -> Array:
    lhs, rhs, _, sizes, offset, lhs_gather, rhs_gather = operands
    rows = Rows(lhs, ct, None, None, None, sizes, offset, lhs_gather)
    dots = _row_dots(bind, rows, _apply(rhs_gather, rhs), transposed=False)
    return _mask_groups(rows, dots)


def _row_dots(bind: Bind, rows: Rows, x: Array, *, transposed: bool) -> Array:
    """Return the dots of the rows of a product with the rows of x, in the accumulator type."""
    wide = promoted(rows.lhs.dtype, rows.rhs.dtype)
    acc = np.dtype(accumulator_dtype(wide))
    product = segment_matmul(
        *rows._replace(lhs=rows.lhs.astype(wide), rhs=rows.rhs.astype(wide)),
        transposed=transposed,
        precision=bind.attributes["precision"],
        activation=None,
        dtype=acc,
    )
    return jnp.sum(product * x.astype(acc), axis=1)


def _mask_groups(rows: Rows, values: Array) -> Array:
    """Return the values of a product's rows, 0 for rows of no group."""
    mask = xla.in_groups(rows.sizes, rows.offset, rows.rhs.shape[0], values.shape[0])
    return jnp.where(mask, values, 0)


def _outer_transpose(of_lhs: bool, bind: Bind, ct: Array, operands: Factors) -> Array:
    """Return the gradient of one factor: products of the other factor with the cotangent."""
    factor, gather, target = operands.lhs, operands.lhs_gather, operands.rhs_gather
    if of_lhs:
        factor, gather, target = operands.rhs, operands.rhs_gather, operands.lhs_gather
    return _product_at(bind, factor, ct, operands, gather, target, transposed=of_lhs)


# --- Batching ------------------------------------------------------------------------------------


def _fold(x: Array, is_batched: bool, size: int, axis: int) -> Array:
    """Join the batch, the first axis if ``is_batched``, with another axis."""
    if not is_batched:
        x = jnp.broadcast_to(x, (size, *x.shape))
    x = jnp.moveaxis(x, 0, axis)
    return reshape(x, *x.shape[:axis], size * x.shape[axis + 1], *x.shape[axis + 2 :])


def _unfold(x: Array, size: int, axis: int) -> Array:
    """Split the batch from an axis: the inverse of :func:`_fold`."""
    x = reshape(x, *x.shape[:axis], size, x.shape[axis] // size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def _matmul_batch(bind: Bind, operands: Rows, batched: Rows, size: int) -> Array:
    if operands.residual is not None:
        return cast(Array, composed_batch(_with_residual_after, bind, operands, batched, size))
    if size == 1:
        return _join_groups(bind, operands, batched, size)
    if not any(jax.tree.leaves(batched._replace(rhs=False, bias=None))):
        # The batch joins the features.
        rhs, bias = operands.rhs, operands.bias
        rhs = _fold(rhs, batched.rhs, size, 1 if bind.attributes["transposed"] else 2)
        if bias is not None:
            bias = _fold(bias, batched.bias, size, 1)
        return _unfold(bind(operands._replace(rhs=rhs, bias=bias)), size, 1)
    if operands.gather is not None or operands.scatter is not None:
        return cast(Array, composed_batch(_with_ids_outside, bind, operands, batched, size))
    if batched.rhs or batched.bias or batched.sizes or batched.offset:
        return _join_groups(bind, operands, batched, size)
    # The batch joins the rows, as the inner axis: groups stay contiguous.
    rows = operands.lhs.shape[1 if batched.lhs else 0]
    batch = broadcast_batch((operands.lhs, operands.scale), (batched.lhs, batched.scale), size)
    if not at_most(size * rows, MAX_SIZE):
        output: Array = map_batch(
            lambda rows: bind(operands._replace(lhs=rows[0], scale=rows[1])), batch
        )
        return output
    lhs, scale = jax.tree.map(
        lambda x: reshape(jnp.moveaxis(x, 0, 1), rows * size, *x.shape[2:]), batch
    )
    sizes = jnp.clip(operands.sizes, 0, rows) * size
    result = bind(operands._replace(lhs=lhs, scale=scale, sizes=sizes))
    return jnp.moveaxis(reshape(result, rows, size, result.shape[1]), 1, 0)


def _with_residual_after(bind: Bind, operands: Rows) -> Array:
    """Multiply, then add the residual and apply the activation, rounding once."""
    dtype, activation = bind.attributes["dtype"], bind.attributes["activation"]
    wide = np.dtype(accumulator_dtype(dtype))
    result = bind(operands._replace(residual=None), activation=None, dtype=wide)
    return xla.finished(result, operands.residual, activation, dtype)


def _with_ids_outside(bind: Bind, operands: Rows) -> Array:
    """Gather, multiply, then scatter: each a primitive of its own."""
    lhs = _apply(operands.gather, operands.lhs)
    return _apply(operands.scatter, bind(operands._replace(lhs=lhs, gather=None, scatter=None)))


def _outer_with_ids_outside(bind: Bind, factors: Factors) -> Array:
    lhs_gather, rhs_gather = factors.lhs_gather, factors.rhs_gather
    valid = as_column(xla.valid_rows(lhs_gather, rhs_gather))
    lhs, rhs = _apply(lhs_gather, factors.lhs), _apply(rhs_gather, factors.rhs)
    lhs, rhs = jnp.where(valid, lhs, 0), jnp.where(valid, rhs, 0)
    result: Array = bind(factors._replace(lhs=lhs, rhs=rhs, lhs_gather=None, rhs_gather=None))
    return result


def _outer_batch(bind: Bind, operands: Factors, batched: Factors, size: int) -> Array:
    shares_groups = not any(jax.tree.leaves(batched._replace(lhs=False, rhs=False)))
    if size > 1 and batched.lhs != batched.rhs and shares_groups:
        # The batch joins the features.
        if batched.lhs:
            operands, axis = operands._replace(lhs=_fold(operands.lhs, True, size, 1)), 1
        else:
            operands, axis = operands._replace(rhs=_fold(operands.rhs, True, size, 1)), 2
        return _unfold(bind(operands), size, axis)
    if size > 1 and (operands.lhs_gather is not None or operands.rhs_gather is not None):
        return cast(Array, composed_batch(_outer_with_ids_outside, bind, operands, batched, size))
    return _join_groups(bind, operands, batched, size)


def _join_groups(bind: Bind, operands: Rows | Factors, batched: Rows | Factors, size: int) -> Array:
    """Join the batch with the groups, for both primitives."""
    operands = broadcast_batch(operands, batched, size)
    if size == 1:
        return cast(Array, bind(jax.tree.map(lambda x: x[0], operands))[None])
    is_outer = "num_groups" in bind.attributes
    num_groups = bind.attributes["num_groups"] if is_outer else operands.rhs.shape[1]
    rows = operands.lhs.shape[1]
    if not at_most(size * rows, MAX_SIZE):
        return cast(Array, map_batch(bind, operands))
    # Extend the first and the last group of each element over its rows of no group, so that groups
    # of all elements are contiguous; such rows are masked.
    cover = functools.partial(xla.cover, num_groups=num_groups, rows=rows)
    sizes, valid = jax.vmap(cover)(operands.sizes, operands.offset)
    if is_outer:
        lhs, rhs, scale = jax.tree.map(
            lambda x: jnp.where(valid.reshape(*valid.shape, *[1] * (x.ndim - 2)), x, 0),
            (operands.lhs, operands.rhs, operands.scale),
        )
        operands = operands._replace(lhs=lhs, rhs=rhs, scale=scale)
    joined = jax.tree.map(
        lambda x: reshape(x, size * x.shape[1], *x.shape[2:]), operands._replace(sizes=sizes)
    )
    joined = joined._replace(sizes=replicate(joined.sizes), offset=jnp.zeros((1,), jnp.int32))
    changes = {"num_groups": size * num_groups} if is_outer else {}
    result = bind(joined, **changes)
    result = reshape(result, size, result.shape[0] // size, *result.shape[1:])
    return result if is_outer else jnp.where(valid[:, :, None], result, 0)


# --- Several devices -----------------------------------------------------------------------------

# Devices split one of three axes: rows, with the sizes of their groups cut to each device's rows;
# the contracted axis, with a sum of results; or groups, with an offset and a sum of results.


def _gather_factors(matrix: SparseMatrix | None, rows: str) -> SparseMatrix | None:
    if matrix is None:
        return None
    if rows == UNSPLIT:
        return cast(SparseMatrix | None, jax.tree.map(lambda _: UNSPLIT, matrix))
    return SparseMatrix(half_factors(matrix.by_row, rows), unread(matrix.by_col))


def _matmul_sharding(
    operands: Rows, results: Any, *, transposed: bool, activation: str | None, **attributes: object
) -> Sharding:
    _, _, bias, residual, scale, _, _, gather, scatter = operands
    is_product = bias is None and residual is None and activation is None
    rows = "m" if scatter is None else UNSPLIT
    # Rows of other devices' groups are 0, also after an activation. A residual may be added once
    # only. Upper case: an axis that is not split.
    groups, inner = "g" if residual is None else "G", "k" if is_product else "K"
    named = Rows(
        f"{rows if gather is None else UNSPLIT} {inner}",
        f"{groups} n {inner}" if transposed else f"{groups} {inner} n",
        None if bias is None else f"{groups} n",
        None if residual is None else f"{rows} n",
        None if scale is None else rows,
        UNSPLIT,
        UNSPLIT,
        _gather_factors(gather, rows),
        _gather_factors(scatter, UNSPLIT),
    )
    return _split(named, f"{rows} n")


def _outer_sharding(operands: Factors, results: Any, **attributes: object) -> Sharding:
    _, _, scale, _, _, lhs_gather, rhs_gather = operands
    named = Factors(
        "m k" if lhs_gather is None else f"{UNSPLIT} k",
        "m n" if rhs_gather is None else f"{UNSPLIT} n",
        None if scale is None else "m",
        UNSPLIT,
        UNSPLIT,
        _gather_factors(lhs_gather, "m"),
        _gather_factors(rhs_gather, "m"),
    )
    return _split(named, "g k n")


def _split(named: Rows | Factors, result: str) -> Sharding:
    def local(bind: Bind, operands: Any, pieces: Pieces) -> list[Array]:
        sizes, offset = operands.sizes, operands.offset
        names = "gather", "lhs_gather", "rhs_gather"
        gathers = {name: getattr(operands, name, None) for name in names}
        if (piece := pieces.get("m")) is not None:
            rows = _num_rows(operands.lhs, *gathers.values())
            # Cumulative sizes, relative to the device's first row and clipped to its rows.
            sums = jnp.clip(jnp.cumsum(jnp.maximum(sizes, 0)) - piece.index * rows, 0, rows)
            sizes = jnp.diff(sums, prepend=0).astype(sizes.dtype)
            for name, matrix in gathers.items():
                if matrix is not None:
                    by_row = replace(matrix.by_row, num_rows=rows)
                    operands = operands._replace(**{name: matrix._replace(by_row=by_row)})
        changes = {}
        if (piece := pieces.get("g")) is not None:
            is_outer = "num_groups" in bind.attributes
            count = bind.attributes["num_groups"] if is_outer else operands.rhs.shape[0]
            count = count // piece.count if is_outer else count
            # A device's groups start at its multiple of their number.
            offset += (piece.index * count).astype(offset.dtype)
            changes = {"num_groups": count} if is_outer else {}
        return rule.joined([bind(operands._replace(sizes=sizes, offset=offset), **changes)], pieces)

    rule = Sharding(jax.tree.leaves(named), [result], local)
    return rule


# --- Primitives ----------------------------------------------------------------------------------


def _matmul_result(
    operands: Rows, *, transposed: bool, dtype: DTypeLike, **attributes: object
) -> jax.ShapeDtypeStruct:
    _, _, n = _shape(operands, transposed)
    return jax.ShapeDtypeStruct((_num_rows(operands.lhs, operands.gather), n), dtype)


def _matmul_flops(operands: Rows, *, transposed: bool, **attributes: object) -> int:
    _, k, n = _shape(operands, transposed)
    scaling = 0 if operands.scale is None else n
    return _num_rows(operands.lhs, operands.gather) * (2 * k * n + scaling)


def _outer_flops(operands: Factors, **attributes: object) -> int:
    k, n = operands.lhs.shape[1], operands.rhs.shape[1]
    scaling = 0 if operands.scale is None else k
    num_rows = _num_rows(operands.lhs, operands.lhs_gather, operands.rhs_gather)
    return int(num_rows * (2 * k * n + scaling))


# Attributes: transposed, precision, activation, dtype.
segment_matmul = Op(
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
# Attributes: num_groups, precision, deterministic, dtype.
segment_outer = Op(
    name="segment_outer",
    operands=Factors,
    result=lambda operands, *, num_groups, dtype, **attributes: jax.ShapeDtypeStruct(
        (num_groups, operands.lhs.shape[1], operands.rhs.shape[1]), dtype
    ),
    xla=xla.segment_outer,
    composition=_outer_composition,
    call=_outer_call,
    transpose={
        "lhs": functools.partial(_outer_transpose, True),
        "rhs": functools.partial(_outer_transpose, False),
        "scale": _outer_transpose_scale,
    },
    batch=_outer_batch,
    flops=_outer_flops,
    family=FAMILY,
    sharding=_outer_sharding,
)


def grouped_product(
    lhs: Array,
    rhs: Array,
    sizes: Array,
    *,
    gather: SparseMatrix | None = None,
    scatter: SparseMatrix | None = None,
    bias: Array | None = None,
    scale: Array | None = None,
    transposed: bool = False,
    precision: jax.lax.Precision | None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Return ``segment_matmul`` with a weight for each group; ``dtype`` is that of ``lhs``."""
    operands = Rows(lhs, rhs, bias, None, scale, sizes, jnp.zeros((1,), jnp.int32), gather, scatter)
    product: Array = segment_matmul(
        *operands,
        transposed=transposed,
        precision=precision,
        activation=None,
        dtype=lhs.dtype if dtype is None else np.dtype(dtype),
    )
    return product


def grouped_outer(
    lhs: Array,
    rhs: Array,
    sizes: Array,
    *,
    lhs_rows: SparseMatrix | None,
    rhs_rows: SparseMatrix | None,
    scale: Array | None,
    precision: jax.lax.Precision,
) -> Array:
    """Return ``segment_outer`` with a result for each group."""
    factors = Factors(lhs, rhs, scale, sizes, jnp.zeros((1,), jnp.int32), lhs_rows, rhs_rows)
    product: Array = segment_outer(
        *factors,
        num_groups=sizes.shape[0],
        precision=precision,
        deterministic=True,
        dtype=lhs.dtype,
    )
    return product
