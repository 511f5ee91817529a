"""The reduction of entries into rows, and the linear primitives that its derivatives consist of.

* ``segment_reduce``, out[r] = reduce of w[e] · x[cols[e]] over the entries e of row r. A sum or
  mean is linear in the features and in the weights: its transposes are itself with the transposed
  matrix, and ``sddmm``. Derivatives of the other reductions are in ``derivatives.py``. Kernels of
  sums and means may apply an epilogue to each row, see `Messages`: with own features and scales
  alone, it is linear in the features, too.
* ``sddmm``, w[e] = ⟨a[rows[e]], b[cols[e]]⟩. Its transposes are ``segment_reduce``.
* ``segment_reduce_jvp``, the derivative of a sum or mean where both x and w have tangents, and
  ``segment_reduce_vjp``, its transpose: both gradients from one pass over the entries.

Where a matrix has no rows, the primitive is a gather, which plain XLA computes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import (
    DTYPES,
    accumulator_dtype,
    as_matrix,
    feature_wise,
    row_width,
    row_wise,
    scatter_rows,
    take,
)
from jax_gnn._core.batching import batch_features
from jax_gnn._core.csr import Csr, LastRows, SparseMatrix, orient_by_weights
from jax_gnn._core.ids import PADDING, at_most, in_range
from jax_gnn._core.kernels import csr_operands, like_first, narrow_ids, per_entry, per_row
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_batch, composed_jvp, multilinear_jvp
from jax_gnn._core.schedule import L2_BYTES
from jax_gnn._core.sharding import UNSPLIT, Piece, Sharding, reshape
from jax_gnn._core.types import Attribute, PyTree
from jax_gnn._ops.matrix_sharding import matrix_sharding
from jax_gnn._ops.segment_order.primitive import sorted_segments
from jax_gnn._ops.segment_reduce import derivatives, xla
from jax_gnn._ops.segment_reduce.schedule import FAMILY, plan
from jax_gnn._ops.segment_reduce.unsorted import REDUCTIONS, composition

# From so many weights on, they are permuted into the order of the entries before a kernel, which
# would else read them, and write their gradients, all over a memory that exceeds L2.
_MIN_PERMUTED_WEIGHTS = L2_BYTES // 16


class Messages(NamedTuple):
    """Operands of ``segment_reduce``.

    The epilogue maps a reduced row to ``result_scale · relu(out_scale · (row + self_scale · x) +
    residual + bias)``, without the terms that are None.
    """

    # (rows, *features) as users gave it, since plain XLA copies what is reshaped; with a weight
    # (rows, features).
    x: Any
    weight: Any  # (entries, heads) in the accumulator type, or None
    matrix: SparseMatrix  # the entries of each row, and the row of x that each entry reads
    self_scale: Any = None  # (rows,) or (1,) in the accumulator type, or None
    out_scale: Any = None  # (rows,) or (1,) in the accumulator type, or None
    residual: Any = None  # an array like the result, or None
    bias: Any = None  # the features of a row in the accumulator type, or None
    result_scale: Any = None  # (rows,) or (1,) in the accumulator type, or None
    # (halo rows, *features), rows that columns number after those of x, for sums; or None. Own
    # features are those of x alone.
    halo: Any = None
    # Entries by row of the halo, which the matrix has last by column.
    halo_rows: LastRows | None = None
    num_valid: Any = None  # (1,), the number of entries before the padding; or None

    @property
    def message(self) -> tuple[Any, Any, SparseMatrix]:
        """The reduced operands, without the halo."""
        return self[:3]

    @property
    def without_epilogue(self) -> Messages:
        """The reduced operands, with the halo."""
        return Messages(*self.message, halo=self.halo, halo_rows=self.halo_rows)

    @property
    def epilogue(self) -> tuple[Any, Any, Any, Any, Any]:
        """The operands of the epilogue, in their order."""
        return self[3:8]

    @property
    def scale(self) -> Any:
        """The factor of sums, where there is no ReLU between both scales."""
        return _product(self.out_scale, self.result_scale)


def _product(scale: Array | None, factor: Array | None) -> Any:
    """Return the product of row scales, of which None is 1."""
    return factor if scale is None else scale if factor is None else scale * factor


def _has_epilogue(operands: Messages, relu: bool = False) -> bool:
    return relu or any(operand is not None for operand in operands.epilogue)


def _reduce_call(
    platform: str, operands: Messages, *, reduce: str, heads: int, relu: bool = False
) -> Call | None:
    x, weight, matrix = operands.message
    csr, halo, num_valid = matrix.by_row, operands.halo, operands.num_valid
    if _permutes_weights(platform, csr, weight):
        csr, weight = _in_entry_order(csr, weight)
    index = csr_operands(csr, x.shape[0] + (0 if halo is None else halo.shape[0]))
    if index is None or x.dtype not in DTYPES:  # such as the gradient of a complex bias
        return None
    ids, flags = index
    schedule, workspaces = plan(
        "segment_reduce",
        csr,
        x,
        sums=reduce in ("sum", "mean") and jnp.issubdtype(x.dtype, jnp.floating),
        heads=heads,
        epilogue=_has_epilogue(operands, relu),
        weight=weight,
        # The gradient to own rows runs while the gradient to the halo is sent.
        beside=num_valid is not None,
    )
    # Only the CUDA kernel "gather" reads rows of two arrays.
    if halo is not None and not (platform == "cuda" and schedule["kernel"] == "gather"):
        x, halo = Operand.of(_concatenated, x, halo), None
    optional = weight, *operands.epilogue
    names = "weighted", "has_own", *(f"has_{name}" for name in Messages._fields[4:8])
    flags |= {
        "reduce": np.int64(REDUCTIONS.index(reduce)),
        "relu": np.bool_(relu),
        "has_halo": np.bool_(halo is not None),
        "has_end": np.bool_(num_valid is not None),
        **{name: np.bool_(value is not None) for name, value in zip(names, optional, strict=True)},
    }
    limit = ids[0] if num_valid is None else narrow_ids(num_valid, csr.count)
    arrays = [x, *(operand or x for operand in (*optional, halo)), *ids, limit]
    return Call(arrays, flags | schedule, workspaces)


def _concatenated(x: Array, halo: Array) -> Array:
    return jnp.concatenate([x, halo])


def _permutes_weights(platform: str, csr: Csr, weight: Operand | None) -> bool:
    """Whether weights are put into the order of the entries before a kernel."""
    if platform != "cuda" or weight is None or csr.order is None or csr.cols is None:
        return False
    return at_most(_MIN_PERMUTED_WEIGHTS, weight.shape[0] * weight.shape[1])


def _in_entry_order(csr: Csr, weight: Operand) -> tuple[Csr, Operand]:
    """Return the entries and their weights, permuted; entries without a weight are padding."""

    def mask_cols(cols: Array, order: Array) -> Array:
        return jnp.where(in_range(order, csr.count), cols, PADDING)

    cols = Operand.of(mask_cols, csr.cols, csr.order)
    return replace(csr, cols=cols, order=None), Operand.of(take, weight, csr.order)


def _reduce_prefers_xla(
    platform: str, operands: Messages, *, reduce: str, heads: int, relu: bool = False
) -> bool:
    """Prefer XLA on a CPU for unsorted ids, small arrays, and rows of few entries."""
    x, weight, matrix = operands.message
    csr, count, width = matrix.by_row, x.shape[0], row_width(x)
    if platform != "cpu" or weight is not None or reduce == "logsumexp":
        return False
    if matrix.unsorted is not None:
        return True
    if csr.cols is not None or reduce == "mean":
        return False
    # With few entries to a row, neither tiles of wide rows nor wider numbers are worth their cost.
    costly = (width >= 256 and count * width >= 2**21) or (width < 8 and x.dtype.itemsize == 2)
    few_entries = count < 4 * csr.num_rows
    return cast(bool, (few_entries and costly) or (count + csr.num_rows) * width < 2**13)


def _reduce_flops(operands: Messages, **attributes: object) -> int:
    csr, self_scale = operands.matrix.by_row, operands.self_scale
    per_entry = 1 if operands.weight is None else 2
    per_row = sum(operand is not None for operand in (self_scale, *operands.epilogue))
    return (per_entry * csr.count + per_row * csr.num_rows) * row_width(operands.x)


def _reduce_jvp(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    rules: dict[str, Callable[[Bind, Messages, Messages], tuple[Array, Array | None]]] = {
        "sum": _sum_jvp,
        "mean": _sum_jvp,
        "max": derivatives.extremum_jvp,
        "min": derivatives.extremum_jvp,
        "prod": derivatives.prod_jvp,
        "logsumexp": derivatives.logsumexp_jvp,
    }
    return rules[bind.attributes["reduce"]](bind, primals, tangents)


def _sum_jvp(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    if primals.halo is not None or _has_epilogue(primals, _relu(bind)):
        return _epilogue_jvp(bind, primals, tangents)
    if tangents.x is None or tangents.weight is None:
        return multilinear_jvp(("x", "weight"), bind, primals, tangents)
    (tangent,) = segment_reduce_jvp(
        (primals.x, primals.weight, primals.matrix),
        (tangents.x, tangents.weight),
        **bind.attributes,
    )
    return bind(primals), tangent


def _epilogue_jvp(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    x, result_scale = primals.x, primals.result_scale
    factors = tangents.weight, tangents.out_scale, tangents.result_scale
    if any(tangent is not None for tangent in factors):
        return composed_jvp(_composed, bind, primals, tangents)
    # Only additions and the ReLU follow the sum and its scales. The slope of the ReLU follows from
    # its result.
    result, terms = bind(primals), []
    if tangents.x is not None or tangents.halo is not None:
        dx, dhalo = (
            jnp.zeros_like(value) if value is not None and tangent is None else tangent
            for value, tangent in ((x, tangents.x), (primals.halo, tangents.halo))
        )
        message = primals._replace(x=dx, halo=dhalo, residual=None, bias=None)
        terms.append(_without_relu(bind)(message))
    if tangents.self_scale is not None:
        scales = _product(tangents.self_scale, primals.scale)
        terms.append(row_wise(scales, x) * x.astype(scales.dtype))
    for tangent in (tangents.residual, tangents.bias):
        if tangent is not None:
            term = feature_wise(tangent, result)
            terms.append(term if result_scale is None else row_wise(result_scale, result) * term)
    return result, tangent_after(result, terms, _relu(bind))


def tangent_after(result: Array, terms: list[Array], relu: bool) -> Array | None:
    """Return the sum of tangents, after the ReLU if there is one."""
    if not terms:
        return None
    acc = accumulator_dtype(result.dtype)
    tangent = functools.reduce(
        operator.add, (feature_wise(term, result).astype(acc) for term in terms)
    )
    if relu:  # a negative scale after it turns the sign of the result
        tangent = jnp.where((result > 0) | (result < 0), tangent, 0)
    return jnp.broadcast_to(tangent, result.shape).astype(result.dtype)


def _composed(bind: Bind, operands: Messages) -> Array:
    """Reduce messages, those of the halo among them, and then apply the epilogue."""
    message = operands.without_epilogue
    if operands.halo is not None:
        x = _concatenated(operands.x, operands.halo)
        message = message._replace(x=x, halo=None, halo_rows=None)
    return _with_epilogue(bind, _without_relu(bind)(message), operands)


def _relu(bind: Bind) -> bool:
    return cast(bool, bind.attributes.get("relu", False))


def _without_relu(bind: Bind) -> Bind:
    attributes = {name: bind.attributes[name] for name in ("reduce", "heads")}
    return replace(bind, attributes=attributes)


def _with_epilogue(bind: Bind, result: Array, operands: Messages) -> Array:
    """Apply the epilogue to a result that lacks it."""
    wide = xla.epilogue(result, operands.x, *operands.epilogue, relu=_relu(bind))
    return wide.astype(result.dtype)


def _reduce_transpose_x(bind: Bind, ct: Array, operands: Messages) -> Array:
    _, weight, matrix = operands.message
    self_scale, counts = operands.self_scale, _mean_counts(bind, ct, matrix)
    if self_scale is not None and counts is not None:  # undoes the division of own features
        self_scale *= counts
    ct, transposed = _scaled(ct, operands, counts), matrix.T
    message, halo_rows = Messages(ct, weight, transposed, self_scale), operands.halo_rows
    if halo_rows is not None:
        by_row = transposed.by_row
        own_rows = replace(by_row, num_rows=by_row.num_rows - halo_rows.csr.num_rows)
        transposed = transposed._replace(by_row=own_rows)
        message = message._replace(matrix=transposed, num_valid=halo_rows.first)
    return cast(Array, _without_relu(bind)(message, reduce="sum"))


def _reduce_transpose_halo(bind: Bind, ct: Array, operands: Messages) -> Array:
    _, weight, matrix = operands.message
    (to_halo,) = halo_gradient(
        (weight, matrix, operands.halo_rows),
        (_scaled(ct, operands, None),),
        heads=bind.attributes["heads"],
    )
    return to_halo


def _reduce_transpose_weight(bind: Bind, ct: Array, operands: Messages) -> Array:
    x, _, matrix = operands.message
    ct = _scaled(ct, operands, _mean_counts(bind, ct, matrix))
    return _gradient_to_weight(x, ct, matrix, bind.attributes["heads"])


def _mean_counts(bind: Bind, ct: Array, matrix: SparseMatrix) -> Array | None:
    """Return the divisors of a mean's rows; None for a sum."""
    if bind.attributes["reduce"] == "sum":
        return None
    ones = jnp.ones((matrix.by_col.num_rows,), accumulator_dtype(ct.dtype))
    return jnp.maximum(total(ones, matrix), 1)


def _scaled(ct: Array, operands: Messages | None, counts: Array | None) -> Array:
    wide = ct.astype(accumulator_dtype(ct.dtype))
    # One scale after another, as the gradient to a residual has the result's scale alone.
    for scale in (operands.result_scale, operands.out_scale) if operands else ():
        if scale is not None:
            wide *= row_wise(scale, ct)
    if counts is not None:
        wide /= row_wise(counts, ct)
    return wide.astype(ct.dtype)


def _reduce_batch(bind: Bind, operands: Messages, batched: Messages, size: int) -> Array:
    if operands.halo is not None or _has_epilogue(operands, _relu(bind)):
        return cast(Array, composed_batch(_composed, bind, operands, batched, size))
    operands, batched = operands.without_epilogue, batched.without_epilogue
    if operands.weight is None and not any(jax.tree.leaves(batched.matrix)):
        # The batch is an axis of the features, so that either may be split over devices.
        result = bind(operands._replace(x=jnp.moveaxis(operands.x, 0, 1)))
        return jnp.moveaxis(result, 1, 0)
    return cast(Array, batch_features(("weight",), bind, operands, batched, size))


def _reduce_across(bind: Bind, operands: Messages, piece: Piece) -> Array:
    """Return the rows of all devices, each of which has a run of the entries."""
    message, matrix = operands.without_epilogue, operands.matrix
    if matrix.by_row.resorted:
        ids, num_rows = matrix.by_col.cols, matrix.by_row.num_rows
        matrix = sorted_segments(ids, num_rows, False)
        message = message._replace(matrix=matrix)
    result = _ACROSS[bind.attributes["reduce"]](_without_relu(bind), message, piece)
    if not _has_epilogue(operands, _relu(bind)):
        return result
    # Own features are of the device's rows.
    operands = operands._replace(x=piece.own(operands.x, result.shape[0]))
    return _with_epilogue(bind, result, operands)


def _sum_across(bind: Bind, message: Messages, piece: Piece) -> Array:
    return piece.reduce(bind(message, reduce="sum"))


def _mean_across(bind: Bind, message: Messages, piece: Piece) -> Array:
    ones = jnp.ones(message.x.shape[:1], accumulator_dtype(message.x.dtype))
    count = piece.reduce(bind(Messages(ones, None, message.matrix), reduce="sum", heads=1))
    return _scaled(_sum_across(bind, message, piece), None, jnp.maximum(count, 1))


def _logsumexp_across(bind: Bind, message: Messages, piece: Piece) -> Array:
    result = bind(message).astype(accumulator_dtype(message.x.dtype))
    maximum = piece.whole.reduce(result, "max")
    maximum = jnp.where(jnp.isfinite(maximum), maximum, 0)
    sums = piece.reduce(jnp.exp(result - maximum))
    return (jnp.log(sums) + piece.own(maximum, sums.shape[0])).astype(message.x.dtype)


# The reductions whose results over runs of entries can be combined.
_ACROSS: dict[str, Callable[[Bind, Messages, Piece], Array]] = {
    "sum": _sum_across,
    "mean": _mean_across,
    "max": lambda bind, message, piece: piece.reduce(bind(message), "max"),
    "min": lambda bind, message, piece: piece.reduce(bind(message), "min"),
    "logsumexp": _logsumexp_across,
}


def _reduce_sharding(operands: Messages, results: PyTree, **attributes: Attribute) -> Sharding:
    runs = attributes["reduce"] in _ACROSS or operands.matrix.by_row.rows is None
    rule = matrix_sharding(
        {
            "x": "cols features",
            "weight": "weights h",
            **dict.fromkeys(("self_scale", "out_scale", "result_scale"), "out"),
            "residual": "out features",
            "bias": "features",
            "halo": f"{UNSPLIT} features",
            **{f"halo_rows.csr.{name}": UNSPLIT for name in ("rows", "cols", "order")},
            **dict.fromkeys(("halo_rows.first", "num_valid"), UNSPLIT),
        },
        "rows features",
        runs=runs,
        across=_reduce_across,
    )
    return rule(operands, results, **attributes)


# Attributes: reduce, heads, and relu where there is an epilogue.
segment_reduce = Op(
    name="segment_reduce",
    operands=Messages,
    result=per_row,
    xla=xla.segment_reduce,
    call=_reduce_call,
    composition=composition,
    prefers_xla=_reduce_prefers_xla,
    jvp=_reduce_jvp,
    transpose={
        "x": _reduce_transpose_x,
        "halo": _reduce_transpose_halo,
        "weight": _reduce_transpose_weight,
    },
    batch=_reduce_batch,
    flops=_reduce_flops,
    family=FAMILY,
    sharding=_reduce_sharding,
)


Sums = tuple[Array | None, SparseMatrix, LastRows]  # weight, matrix, rows of the halo


def _to_halo(residuals: Sums, moving: tuple[Array], **attributes: Attribute) -> list[Array]:
    weight, matrix, (csr, _) = residuals
    weight = None if weight is None else take(weight, csr.order)
    matrix = SparseMatrix(replace(csr, order=None), matrix.by_row)
    return [segment_reduce(*moving, weight, matrix, reduce="sum", **attributes)]


def _to_halo_transpose(
    residuals: Sums, moving: PyTree, cts: list[Array], **attributes: Attribute
) -> tuple[Array]:
    (halo,), (weight, matrix, halo_rows) = cts, residuals
    num_own = matrix.by_col.num_rows - halo_rows.csr.num_rows
    x = jnp.zeros((num_own, *halo.shape[1:]), halo.dtype)
    message = Messages(x, weight, matrix, halo=halo, halo_rows=halo_rows)
    return (segment_reduce(*message, reduce="sum", **attributes),)


# The gradient of a sum to its halo, of few entries: it is computed, and sent, before that to x.
halo_gradient = Linear(
    name="halo_gradient",
    result=lambda residuals, moving, **_: [
        jax.ShapeDtypeStruct((residuals[2].csr.num_rows, *moving[0].shape[1:]), moving[0].dtype)
    ],
    function=_to_halo,
    transpose=_to_halo_transpose,
)


def weighted_sum(x: Array, weight: Array | None, matrix: SparseMatrix, heads: int = 1) -> Array:
    """Return the sums of rows of x times ``weight``, ``(entries, heads)``; None is 1."""
    return cast(Array, segment_reduce(x, weight, matrix, reduce="sum", heads=heads))


def total(x: Array, matrix: SparseMatrix) -> Array:
    """Return the sums of rows of x."""
    return weighted_sum(x, None, matrix)


def gather(x: Array, matrix: SparseMatrix) -> Array:
    """Return the row of x of each entry, zeros for padding: the transpose of :func:`total`."""
    return total(x, matrix.T)


def reduce_messages(x: Array, weight: Array | None, matrix: SparseMatrix, reduce: str) -> Array:
    """Reduce rows of features, whose first axis are heads if ``weight`` is ``(entries, heads)``."""
    return reduce_rows(Messages(x, weight, matrix), reduce)


def reduce_rows(messages: Messages, reduce: str, relu: bool = False) -> Array:
    """Reduce messages with features of any shape, and apply the epilogue after any reduction."""
    x, weight, matrix = messages.message
    dtype, features, heads = x.dtype, x.shape[1:], 1
    # Weights are by head, so that kernels need features as a matrix of heads and their features.
    if weight is not None:
        heads = weight.shape[1]
        if reduce in ("max", "min"):  # rounding would hide which message is the maximum
            x = x.astype(accumulator_dtype(dtype))
        residual, halo = (
            None if rows is None else as_matrix(rows) for rows in (messages.residual, messages.halo)
        )
        bias = None if messages.bias is None else messages.bias.ravel()
        messages = messages._replace(x=as_matrix(x), residual=residual, halo=halo, bias=bias)
    options: Any = {"reduce": reduce, "heads": heads}
    if not _has_epilogue(messages, relu):
        result = segment_reduce(*messages, **options)
    elif reduce in ("sum", "mean"):
        result = segment_reduce(*messages, **options, relu=relu)
    else:
        result = segment_reduce(*messages.message, **options)
        result = xla.epilogue(result, messages.x, *messages.epilogue, relu=relu)
    return reshape(result.astype(dtype), matrix.by_row.num_rows, *features)


# --- Dots ----------------------------------------------------------------------------------------


class Dots(NamedTuple):
    """Operands of ``sddmm``: a ``(rows, features)`` and b ``(columns, features)``."""

    a: Any
    b: Any
    matrix: SparseMatrix


def _sddmm_call(platform: str, operands: Dots, *, heads: int) -> Call | None:
    a, b, matrix = operands
    index = csr_operands(matrix.by_row, b.shape[0])
    if index is None:
        return None
    (rows, cols, _), flags = index
    return Call([a, b, rows, cols], {"gather": flags["gather"], "heads": np.int64(heads)})


def _sddmm_transpose_a(bind: Bind, ct: Array, operands: Dots) -> Array:
    return weighted_sum(operands.b, ct, operands.matrix, bind.attributes["heads"])


# Attribute: heads.
sddmm = Op(
    name="sddmm",
    operands=Dots,
    result=per_entry,
    xla=xla.sddmm,
    call=_sddmm_call,
    transpose={
        "a": _sddmm_transpose_a,
        # The transposed matrix exchanges the sides of the dots.
        "b": lambda bind, ct, dots: _sddmm_transpose_a(bind, ct, Dots(None, dots.a, dots.matrix.T)),
    },
    batch=functools.partial(batch_features, (), per_entry=True),
    flops=lambda operands, heads: 2 * operands.matrix.by_row.count * row_width(operands.a),
    sharding=matrix_sharding({"a": "rows features", "b": "cols features"}, "entries h"),
)


# --- Both tangents and both gradients of a weighted sum or mean ----------------------------------

# Each is the transpose of the other. Their derivatives in their remaining operands are sums of
# segment_reduce and sddmm.


class Cotangents(NamedTuple):
    """Operands of ``segment_reduce_vjp``: operands of ``segment_reduce``, and its cotangent."""

    x: Any
    weight: Any
    ct: Any
    matrix: SparseMatrix


def _vjp_call(platform: str, operands: Cotangents) -> Call | None:
    x, weight, ct, matrix = operands
    csr, order = matrix.by_col, matrix.by_col.order
    is_permuted = _permutes_weights(platform, csr, weight)
    if is_permuted:
        csr, weight = _in_entry_order(csr, weight)
    index = csr_operands(csr, ct.shape[0])
    if index is None:
        return None
    ids, flags = index
    schedule, workspaces = plan("segment_reduce_vjp", csr, ct, heads=weight.shape[1], weight=weight)
    if not is_permuted:
        return Call([ct, weight, x, *ids], flags | schedule, workspaces)
    ids[-1] = order  # the kernel does not read it, `_scatter_dots` does
    return Call([ct, weight, x, *ids], flags | schedule, workspaces, _scatter_dots)


def _scatter_dots(to_x: Array, dots: Array, *operands: Array) -> list[Array]:
    return [to_x, scatter_rows(dots, operands[-1])]


Pair = tuple[Array | None, Array | None]  # tangents of x and weight


def _both_tangents(
    residuals: tuple[Array, Array, SparseMatrix], moving: Pair, **attributes: Attribute
) -> list[Array]:
    x, weight, matrix = residuals
    dx, dweight = moving
    terms = [
        segment_reduce(values, weights, matrix, **attributes)
        for values, weights in ((dx, weight), (x, dweight))
        if values is not None and weights is not None
    ]
    return [functools.reduce(operator.add, terms)]


def _both_tangents_transpose(
    residuals: tuple[Array, Array, SparseMatrix],
    moving: Pair,
    cts: list[Array],
    **attributes: Attribute,
) -> list[Array]:
    x, weight, matrix = residuals
    bind = Bind(segment_reduce, None, attributes)
    ct = _scaled(cts[0], None, _mean_counts(bind, cts[0], matrix))
    return cast(list[Array], segment_reduce_vjp(x, weight, ct, matrix))


# The derivative of a sum or mean in both. Its residuals are x, weight and the matrix.
segment_reduce_jvp = Linear(
    name="segment_reduce_jvp",
    result=lambda residuals, moving, **_: [per_row(Messages(*residuals))],
    function=_both_tangents,
    transpose=_both_tangents_transpose,
)


def _both_gradients(x: Array, weight: Array, ct: Array, matrix: SparseMatrix) -> list[Array]:
    heads = weight.shape[1]
    return [
        weighted_sum(ct, weight, matrix.T, heads),
        _gradient_to_weight(x, ct, matrix, heads),
    ]


def _gradient_to_weight(x: Array, ct: Array, matrix: SparseMatrix, heads: int) -> Array:
    a, b, matrix = orient_by_weights(ct, x, matrix)
    return cast(Array, sddmm(a, b, matrix, heads=heads))


def _both_gradients_jvp(
    bind: Bind, primals: Cotangents, tangents: Cotangents
) -> tuple[list[Array], list[Array]]:
    x, weight, ct, matrix = primals
    zeros = [jnp.zeros_like(x), jnp.zeros_like(weight)]
    to_x, to_weight = zeros if tangents.ct is None else bind(primals._replace(ct=tangents.ct))
    if tangents.weight is not None:
        to_x += weighted_sum(ct, tangents.weight, matrix.T, weight.shape[1])
    if tangents.x is not None:
        to_weight += _gradient_to_weight(tangents.x, ct, matrix, weight.shape[1])
    return bind(primals), [to_x, to_weight]


def _both_gradients_transpose(bind: Bind, cts: list[Array | None], operands: Cotangents) -> Array:
    x, weight, _, matrix = operands
    to_x, to_weight = cts
    heads = weight.shape[1]
    if to_x is None:
        return weighted_sum(x, to_weight, matrix, heads)
    if to_weight is None:
        return weighted_sum(to_x, weight, matrix, heads)
    residuals = x, weight, matrix
    return segment_reduce_jvp(residuals, (to_x, to_weight), reduce="sum", heads=heads)[0]


# The gradients of a sum to x and to weight.
segment_reduce_vjp = Op(
    name="segment_reduce_vjp",
    operands=Cotangents,
    result=lambda operands: [like_first(operands), like_first((operands.weight,))],
    xla=_both_gradients,
    platforms=("cuda",),
    call=_vjp_call,
    jvp=_both_gradients_jvp,
    transpose={"ct": _both_gradients_transpose},
    several=True,
    flops=lambda operands: 4 * operands.matrix.by_row.count * row_width(operands.x),
    family=FAMILY,
    sharding=matrix_sharding(
        {"x": "cols (h k)", "weight": "weights h", "ct": "rows (h k)"},
        "cols (h k)",
        "weights h",
        transposed=True,
    ),
)
