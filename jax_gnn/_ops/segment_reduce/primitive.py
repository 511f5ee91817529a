"""The reduction of entries into rows, and the linear primitives that a sum's derivatives are.

* ``segment_reduce``, out[r] = reduce of w[e] · x[cols[e]] over the entries e of row r. As a sum or
  mean it is linear in the features and in the weights: its transposes are itself with the
  transposed matrix, and ``sddmm``. Derivatives of the other reductions are in ``derivatives.py``.
  Kernels of sums and means may go on with each row, see `Messages`: of own features and scales
  alone that is linear in the features, too.
* ``sddmm``, w[e] = ⟨a[rows[e]], b[cols[e]]⟩. Its transposes are ``segment_reduce``.
* ``segment_reduce_jvp``, the derivative of a sum or mean where both x and w have tangents, and
  ``segment_reduce_vjp``, its transpose: both gradients from one pass over the entries.

Where a matrix has no rows, the primitive is a gather: plain XLA does that.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

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
from jax_gnn._core.batching import batch_composition, batch_features
from jax_gnn._core.csr import Csr, LastRows, SparseMatrix, orient_by_weights
from jax_gnn._core.ids import PADDING, at_most, in_range
from jax_gnn._core.kernels import csr_operands, like_first, narrow_ids, per_entry, per_row
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Call, Op, Operand, composed_jvp, define, multilinear_jvp
from jax_gnn._core.pieces import matrix_sharding
from jax_gnn._core.schedule import L2_BYTES
from jax_gnn._core.sharding import UNSPLIT, Piece, Sharding, reshape
from jax_gnn._core.sort import sorted_segments
from jax_gnn._ops.segment_reduce import derivatives, xla
from jax_gnn._ops.segment_reduce.schedule import FAMILY, plan
from jax_gnn._ops.segment_reduce.unsorted import REDUCTIONS, composition

# Numbers from which on weights are put into the order of the entries ahead of a kernel, which would
# read, and write the gradients to them, all over a memory that no L2 holds.
_MOVED = L2_BYTES // 16


class Messages(NamedTuple):
    """Operands of ``segment_reduce``.

    Attributes:
        x: ``(rows, *features)`` as users gave it, since plain XLA copies what was made a matrix; of
            a weight ``(rows, features)``.
        weight: ``(entries, heads)`` in the accumulator type, or None.
        matrix: what is summed up where.
        own_scale: s, ``(rows,)`` or ``(1,)`` in the accumulator type, or None. All from here on is
            the epilogue: a row is p · relu(o · (sum + s · x) + residual + bias), of what there is.
        out_scale: o, likewise.
        residual: like the result, or None.
        bias: the features of a row in the accumulator type, or None.
        result_scale: p, as s.
        halo: ``(more rows, *features)``, which columns name behind those of x, of a sum; or None.
            Own features are those of x alone.
        far: entries by row of the halo, which the matrix has last by column.
        end: ``(1,)``, from where on entries are padding; or None.
    """

    x: Any
    weight: Any
    matrix: SparseMatrix
    own_scale: Any = None
    out_scale: Any = None
    residual: Any = None
    bias: Any = None
    result_scale: Any = None
    halo: Any = None
    far: LastRows | None = None
    end: Any = None

    @property
    def message(self) -> tuple[Any, Any, SparseMatrix]:
        """What is summed up, but for the halo."""
        return self[:3]

    @property
    def alone(self) -> Messages:
        """All that is summed up, without the epilogue."""
        return Messages(*self.message, halo=self.halo, far=self.far)

    @property
    def epilogue(self) -> tuple[Any, Any, Any, Any, Any]:
        """What rows go on with."""
        return self[3:8]

    @property
    def scale(self) -> Any:
        """What sums are multiplied by in all, where there is no ReLU between."""
        return _times(self.out_scale, self.result_scale)


def _times(scale: Any, other: Any) -> Any:
    """A product of row scales that may not be there."""
    return other if scale is None else scale if other is None else scale * other


def _has_epilogue(operands: Messages, relu: bool = False) -> bool:
    return relu or any(each is not None for each in operands.epilogue)


def _reduce_call(
    platform: str, operands: Messages, *, reduce: str, heads: int, relu: bool = False
) -> Call | None:
    x, weight, matrix = operands.message
    csr, halo, end = matrix.by_row, operands.halo, operands.end
    if _moves_weights(platform, csr, weight):
        csr, weight = _in_order(csr, weight)
    found = csr_operands(csr, x.shape[0] + (0 if halo is None else halo.shape[0]))
    if found is None or x.dtype not in DTYPES:  # such as a complex bias's gradient
        return None
    ids, flags = found
    sums = reduce in ("sum", "mean") and jnp.issubdtype(x.dtype, jnp.floating)
    has_epilogue = _has_epilogue(operands, relu)
    schedule, workspaces = plan(
        "segment_reduce",
        *(csr, x, sums, heads, has_epilogue, weight),
        beside=end is not None,  # the gradient to own rows, while that to others' travels
    )
    if halo is not None and not (platform == "cuda" and schedule["kernel"] == "gather"):
        x, halo = Operand.of(_joined_rows, x, halo), None
    last = "own", "out_scale", "residual", "bias", "result_scale"
    names = "weighted", *(f"has_{name}" for name in last)
    optional = weight, *operands.epilogue
    flags |= {
        "reduce": np.int64(REDUCTIONS.index(reduce)),
        "relu": np.bool_(relu),
        "has_halo": np.bool_(halo is not None),
        "has_end": np.bool_(end is not None),
        **{name: np.bool_(each is not None) for name, each in zip(names, optional, strict=True)},
    }
    end = None if end is None else narrow_ids(end, csr.count)
    given = [x, *(each or x for each in (*optional, halo)), *ids, end or ids[0]]
    return Call(given, flags | schedule, workspaces)


def _joined_rows(x: Array, halo: Array) -> Array:
    return jnp.concatenate([x, halo])


def _joined(operands: Messages) -> Messages:
    """The same with the halo's rows behind those of x."""
    if operands.halo is None:
        return operands
    x = _joined_rows(operands.x, operands.halo)
    return operands._replace(x=x, halo=None, far=None)


def _moves_weights(platform: str, csr: Csr, weight: Any) -> bool:
    """Whether weights are put into the order of the entries ahead of a kernel."""
    if platform != "cuda" or weight is None or csr.order is None or csr.cols is None:
        return False
    return at_most(_MOVED, weight.shape[0] * weight.shape[1])


def _in_order(csr: Csr, weight: Operand) -> tuple[Csr, Operand]:
    """The same entries with weights one after another; without weights they are padding."""

    def kept(cols: Array, order: Array) -> Array:
        return jnp.where(in_range(order, csr.count), cols, PADDING)

    cols = Operand.of(kept, csr.cols, csr.order)
    return replace(csr, cols=cols, order=None), Operand.of(take, weight, csr.order)


def _reduce_prefers_xla(
    platform: str, operands: Messages, *, reduce: str, heads: int, relu: bool = False
) -> bool:
    """On a CPU: unsorted ids, what is too small for a custom call, and rows of few entries."""
    del heads, relu
    x, weight, matrix = operands.message
    csr, count, width = matrix.by_row, x.shape[0], row_width(x)
    if platform != "cpu" or weight is not None or reduce == "logsumexp":
        return False
    if matrix.unsorted is not None:
        return True
    if csr.cols is not None or reduce == "mean":
        return False
    # Few entries to a row do not pay for going through wide rows in tiles, nor for widening.
    costly = (width >= 256 and count * width >= 2**21) or (width < 8 and x.dtype.itemsize == 2)
    few = count < 4 * csr.num_rows
    return (few and costly) or (count + csr.num_rows) * width < 2**13


def _reduce_flops(operands: Messages, **attributes: Any) -> int:
    del attributes
    csr, own_scale = operands.matrix.by_row, operands.own_scale
    each = 1 if operands.weight is None else 2
    last = sum(operand is not None for operand in (own_scale, *operands.epilogue))
    return (each * csr.count + last * csr.num_rows) * row_width(operands.x)


def _reduce_jvp(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    rules = {
        "max": derivatives.extremum_jvp,
        "min": derivatives.extremum_jvp,
        "prod": derivatives.prod_jvp,
        "logsumexp": derivatives.logsumexp_jvp,
    }
    return rules.get(bind.attributes["reduce"], _sum_jvp)(bind, primals, tangents)


def _sum_jvp(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    if primals.halo is not None or _has_epilogue(primals, _relu(bind)):
        return _epilogue_jvp(bind, primals, tangents)
    if tangents.x is None or tangents.weight is None:
        return multilinear_jvp(("x", "weight"), bind, primals, tangents)
    (tangent,) = segment_reduce_jvp(
        (primals.x, primals.weight, primals.matrix),
        (tangents.x, tangents.weight),
        **bind.attributes,
        implementation=bind.implementation,
    )
    return bind(primals), tangent


def _epilogue_jvp(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    x, result_scale = primals.x, primals.result_scale
    moving = tangents.weight, tangents.out_scale, tangents.result_scale
    if any(each is not None for each in moving):
        return _jvp_apart(bind, primals, tangents)
    # Behind the sum and its scales only additions and the ReLU, whose slope its result tells.
    result, terms = bind(primals), []
    if tangents.x is not None or tangents.halo is not None:
        own, halo = (
            jnp.zeros_like(value) if value is not None and tangent is None else tangent
            for value, tangent in ((x, tangents.x), (primals.halo, tangents.halo))
        )
        message = primals._replace(x=own, halo=halo, residual=None, bias=None)
        terms.append(_plain(bind)(message))
    if tangents.own_scale is not None:
        scales = _times(tangents.own_scale, primals.scale)
        terms.append(row_wise(scales, x) * x.astype(scales.dtype))
    for each in (tangents.residual, tangents.bias):
        if each is not None:
            term = feature_wise(each, result)
            terms.append(term if result_scale is None else row_wise(result_scale, result) * term)
    return result, tangent_after(result, terms, _relu(bind))


def tangent_after(result: Array, terms: list[Array], relu: bool) -> Array | None:
    """The sum of tangents, after the ReLU if there is one."""
    if not terms:
        return None
    acc = accumulator_dtype(result.dtype)
    tangent = functools.reduce(
        operator.add, (feature_wise(term, result).astype(acc) for term in terms)
    )
    if relu:  # of which a scale after it may have turned the sign
        tangent = jnp.where((result > 0) | (result < 0), tangent, 0)
    return jnp.broadcast_to(tangent, result.shape).astype(result.dtype)


def _jvp_apart(bind: Bind, primals: Messages, tangents: Messages) -> tuple[Array, Array | None]:
    """The same with the epilogue in ``jax.numpy``, after the primitive."""

    def apart(operands: Messages) -> Array:
        return _finished(bind, _plain(bind)(_joined(operands.alone)), operands)

    return composed_jvp(apart, primals, tangents)


def _relu(bind: Bind) -> bool:
    return bind.attributes.get("relu", False)


def _plain(bind: Bind) -> Bind:
    """The primitive without the ReLU."""
    attributes = {name: bind.attributes[name] for name in ("reduce", "heads")}
    return replace(bind, attributes=attributes)


def _finished(bind: Bind, result: Array, operands: Messages) -> Array:
    """The epilogue of a result that has none."""
    wide = xla.epilogue(result, operands.x, *operands.epilogue, relu=_relu(bind))
    return wide.astype(result.dtype)


def _reduce_transpose_x(bind: Bind, ct: Array, operands: Messages) -> Array:
    _, weight, matrix = operands.message
    own_scale, counts = operands.own_scale, _counts_of(bind, ct, matrix)
    if own_scale is not None and counts is not None:  # what is divided by these below
        own_scale *= counts
    ct, back = _scaled(ct, operands, counts), matrix.T
    message, far = Messages(ct, weight, back, own_scale), operands.far
    if far is not None:
        own = replace(back.by_row, num_rows=back.by_row.num_rows - far.csr.num_rows)
        message = message._replace(matrix=back._replace(by_row=own), end=far.first)
    return _plain(bind)(message, reduce="sum")


def _reduce_transpose_halo(bind: Bind, ct: Array, operands: Messages) -> Array:
    _, weight, matrix = operands.message
    (to_halo,) = halo_gradient(
        (weight, matrix, operands.far),
        (_scaled(ct, operands, None),),
        heads=bind.attributes["heads"],
        implementation=bind.implementation,
    )
    return to_halo


def _reduce_transpose_weight(bind: Bind, ct: Array, operands: Messages) -> Array:
    x, _, matrix = operands.message
    ct = _scaled(ct, operands, _counts_of(bind, ct, matrix))
    heads, implementation = bind.attributes["heads"], bind.implementation
    return _gradient_to_weight(x, ct, matrix, heads, implementation=implementation)


def _counts_of(bind: Bind, ct: Array, matrix: SparseMatrix) -> Array | None:
    return _counts(bind.attributes["reduce"], ct, matrix, bind.implementation)


def _counts(
    reduce: str, ct: Array, matrix: SparseMatrix, implementation: str | None
) -> Array | None:
    """What a mean divides its rows by."""
    if reduce == "sum":
        return None
    ones = jnp.ones((matrix.by_col.num_rows,), accumulator_dtype(ct.dtype))
    return jnp.maximum(total(ones, matrix, implementation), 1)


def _scaled(ct: Array, operands: Messages | None, counts: Array | None) -> Array:
    wide = ct.astype(accumulator_dtype(ct.dtype))
    # One after the other, as a residual's gradient has the result's alone.
    for scale in (operands.result_scale, operands.out_scale) if operands else ():
        if scale is not None:
            wide *= row_wise(scale, ct)
    if counts is not None:
        wide /= row_wise(counts, ct)
    return wide.astype(ct.dtype)


def _reduce_batch(bind: Bind, operands: Messages, batched: Messages, size: int) -> Array:
    messages, are_batched = operands.alone, batched.alone
    if operands.halo is not None:
        axes = [0 if each else None for each in (batched.x, batched.halo)]
        moves = any(axis == 0 for axis in axes)
        join = jax.vmap(_joined_rows, axes) if moves else _joined_rows
        x = join(operands.x, operands.halo)
        messages = messages._replace(x=x, halo=None, far=None)
        are_batched = are_batched._replace(x=moves, halo=None, far=None)
    if not _has_epilogue(operands, _relu(bind)):
        return _batch_of_sums(bind, messages, are_batched, size)
    if any(jax.tree.leaves(are_batched)):
        result = _batch_of_sums(_plain(bind), messages, are_batched, size)
    else:
        result = jnp.broadcast_to((once := _plain(bind)(messages)), (size, *once.shape))
    axes = [0 if each else None for each in (batched.x, *batched.epilogue)]

    def finish(result: Array, x: Array, *epilogue: Any) -> Array:
        return _finished(bind, result, Messages(x, None, operands.matrix, *epilogue))

    return jax.vmap(finish, (0, *axes))(result, operands.x, *operands.epilogue)


def _batch_of_sums(bind: Bind, operands: Messages, batched: Messages, size: int) -> Array:
    if operands.weight is None and not any(jax.tree.leaves(batched.matrix)):
        # The batch is an axis of the features, so that either may be split over devices.
        result = bind(operands._replace(x=jnp.moveaxis(operands.x, 0, 1)))
        return jnp.moveaxis(result, 1, 0)
    return batch_features(("weight",), bind, operands, batched, size)


def _across(bind: Bind, operands: Messages, piece: Piece) -> Array:
    """Of runs of entries: what their results are together."""
    message, matrix = operands.alone, operands.matrix
    if matrix.by_row.resorted:
        ids, num_rows = matrix.by_col.cols, matrix.by_row.num_rows
        matrix = sorted_segments(ids, num_rows, False, bind.implementation)
        message = message._replace(matrix=matrix)
    result = _ACROSS[bind.attributes["reduce"]](_plain(bind), message, piece)
    return _finished(bind, result, operands) if _has_epilogue(operands, _relu(bind)) else result


def _sum_across(bind: Bind, message: Messages, piece: Piece) -> Array:
    return piece.sum(bind(message, reduce="sum"))


def _mean_across(bind: Bind, message: Messages, piece: Piece) -> Array:
    ones = jnp.ones(message.x.shape[:1], accumulator_dtype(message.x.dtype))
    count = piece.sum(bind(Messages(ones, None, message.matrix), reduce="sum", heads=1))
    return _scaled(_sum_across(bind, message, piece), None, jnp.maximum(count, 1))


def _log_sum_across(bind: Bind, message: Messages, piece: Piece) -> Array:
    result = bind(message).astype(accumulator_dtype(message.x.dtype))
    top = piece.max(result)
    top = jnp.where(jnp.isfinite(top), top, 0)
    return (jnp.log(piece.sum(jnp.exp(result - top))) + top).astype(message.x.dtype)


# Reductions that pieces of the entries can be put together to.
_ACROSS: dict[str, Callable[[Bind, Messages, Piece], Array]] = {
    "sum": _sum_across,
    "mean": _mean_across,
    "max": lambda bind, message, piece: piece.max(bind(message)),
    "min": lambda bind, message, piece: piece.min(bind(message)),
    "logsumexp": _log_sum_across,
}


def _reduce_sharding(operands: Messages, results: Any, **attributes: Any) -> Sharding:
    runs = attributes["reduce"] in _ACROSS or operands.matrix.by_row.rows is None
    rule = matrix_sharding(
        {
            "x": "cols features",
            "weight": "weights h",
            **dict.fromkeys(("own_scale", "out_scale", "result_scale"), "rows"),
            "residual": "rows features",
            "bias": "features",
            "halo": f"{UNSPLIT} features",
            **{f"far.csr.{name}": UNSPLIT for name in ("rows", "cols", "order")},
            **dict.fromkeys(("far.first", "end"), UNSPLIT),
        },
        "rows features",
        runs=runs,
        across=_across,
    )
    return rule(operands, results, **attributes)


# Attributes: reduce, heads, and relu where there is an epilogue.
segment_reduce = define(
    Op(
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
)


def _to_halo(known: Any, moving: tuple[Array], **attributes: Any) -> list[Array]:
    weight, matrix, (far, _) = known
    weight = None if weight is None else take(weight, far.order)
    matrix = SparseMatrix(replace(far, order=None), matrix.by_row)
    return [segment_reduce(*moving, weight, matrix, reduce="sum", **attributes)]


def _to_halo_transpose(known: Any, moving: Any, cts: list[Any], **attributes: Any) -> tuple[Array]:
    (halo,), (weight, matrix, far) = cts, known
    num_own = matrix.by_col.num_rows - far.csr.num_rows
    message = Messages(
        jnp.zeros((num_own, *halo.shape[1:]), halo.dtype), weight, matrix, halo=halo, far=far
    )
    return (segment_reduce(*message, reduce="sum", **attributes),)


# The gradient of a sum to its halo: of few entries, so that it comes before that to x.
halo_gradient = Linear(
    name="halo_gradient",
    result=lambda known, moving, **_: [
        jax.ShapeDtypeStruct((known[2].csr.num_rows, *moving[0].shape[1:]), moving[0].dtype)
    ],
    function=_to_halo,
    transpose=_to_halo_transpose,
)


def total(x: Array, matrix: SparseMatrix, implementation: str | None = None) -> Array:
    """The sums of rows of x."""
    return segment_reduce(x, None, matrix, reduce="sum", heads=1, implementation=implementation)


def gather(x: Array, matrix: SparseMatrix, implementation: str | None = None) -> Array:
    """The transpose of :func:`total`: rows of x for each entry, zeros for padding."""
    return total(x, matrix.T, implementation)


def reduce_messages(
    x: Array,
    weight: Array | None,
    matrix: SparseMatrix,
    reduce: str,
    implementation: str | None = None,
    epilogue: tuple[Array | None, ...] = (None,) * 5,
    relu: bool = False,
    halo: Array | None = None,
    far: LastRows | None = None,
) -> Array:
    """Reduces ``(rows, *features)`` with weights ``(entries, heads)`` of the first axis.

    The epilogue is what `Messages` has of it: of all reductions. Halo and ``far`` are those there.
    """
    dtype, features = x.dtype, x.shape[1:]
    if weight is not None and reduce in ("max", "min"):
        x = x.astype(accumulator_dtype(dtype))  # else rounding would hide which was the maximum
    own_scale, out_scale, residual, bias, result_scale = epilogue
    if weight is not None:
        x = as_matrix(x)
        halo = None if halo is None else as_matrix(halo)
        residual = None if residual is None else as_matrix(residual)
        bias = None if bias is None else bias.ravel()
    last = own_scale, out_scale, residual, bias, result_scale
    operands = Messages(x, weight, matrix, *last, halo, far)
    has_epilogue, has_kernel = _has_epilogue(operands, relu), reduce in ("sum", "mean")
    options = {"reduce": reduce, "heads": 1 if weight is None else weight.shape[1]}
    if has_epilogue and has_kernel:
        options["relu"] = relu
    result = segment_reduce(
        *(operands if has_kernel else operands.message), **options, implementation=implementation
    )
    if has_epilogue and not has_kernel:
        result = xla.epilogue(result, x, *operands.epilogue, relu=relu)
    return reshape(result.astype(dtype), matrix.by_row.num_rows, *features)


# --- Dots ----------------------------------------------------------------------------------------


class Dots(NamedTuple):
    """Operands of ``sddmm``: a ``(rows, features)``, b ``(columns, features)`` of the matrix."""

    a: Any
    b: Any
    matrix: SparseMatrix


def _sddmm_call(platform: str, operands: Dots, *, heads: int) -> Call | None:
    del platform
    a, b, matrix = operands
    found = csr_operands(matrix.by_row, b.shape[0])
    if found is None:
        return None
    (rows, cols, _), flags = found
    return Call([a, b, rows, cols], {"gather": flags["gather"], "heads": np.int64(heads)})


def _sddmm_transpose_a(bind: Bind, ct: Array, operands: Dots) -> Array:
    return segment_reduce(
        *(operands.b, ct, operands.matrix),
        reduce="sum",
        heads=bind.attributes["heads"],
        implementation=bind.implementation,
    )


def _sddmm_transpose_b(bind: Bind, ct: Array, operands: Dots) -> Array:
    return _sddmm_transpose_a(bind, ct, Dots(None, operands.a, operands.matrix.T))


# Attribute: heads.
sddmm = define(
    Op(
        name="sddmm",
        operands=Dots,
        result=per_entry,
        xla=xla.sddmm,
        call=_sddmm_call,
        transpose={"a": _sddmm_transpose_a, "b": _sddmm_transpose_b},
        batch=functools.partial(batch_features, (), per_entry=True),
        flops=lambda operands, heads: 2 * operands.matrix.by_row.count * row_width(operands.a),
        sharding=matrix_sharding({"a": "rows features", "b": "cols features"}, "entries h"),
    )
)


# --- Both tangents and both gradients of a weighted sum or mean ----------------------------------

# Each is the other's transpose, and their derivatives in the other operands are sums of
# segment_reduce and sddmm.


class Cotangents(NamedTuple):
    """Operands of ``segment_reduce_vjp``: those of ``segment_reduce``, and its cotangent."""

    x: Any
    weight: Any
    ct: Any
    matrix: SparseMatrix


def _vjp_call(platform: str, operands: Cotangents) -> Call | None:
    x, weight, ct, matrix = operands
    csr, order = matrix.by_col, matrix.by_col.order
    moved = _moves_weights(platform, csr, weight)
    if moved:
        csr, weight = _in_order(csr, weight)
    found = csr_operands(csr, ct.shape[0])
    if found is None:
        return None
    ids, flags = found
    heads = weight.shape[1]
    schedule, workspaces = plan("segment_reduce_vjp", csr, ct, heads=heads, weight=weight)
    if not moved:
        return Call([ct, weight, x, *ids], flags | schedule, workspaces)
    ids[-1] = order  # which the kernel does not read
    return Call([ct, weight, x, *ids], flags | schedule, workspaces, _dots_moved_back)


def _dots_moved_back(to_x: Array, dots: Array, *operands: Array) -> list[Array]:
    return [to_x, scatter_rows(dots, operands[-1])]


def _both_tangents(
    known: tuple[Array, Array, SparseMatrix],
    moving: tuple[Array | None, Array | None],
    **attributes: Any,
) -> list[Array]:
    x, weight, matrix = known
    dx, dweight = moving
    terms = [
        segment_reduce(values, weights, matrix, **attributes)
        for values, weights in ((dx, weight), (x, dweight))
        if values is not None and weights is not None
    ]
    return [functools.reduce(operator.add, terms)]


def _both_tangents_transpose(
    known: tuple[Array, Array, SparseMatrix],
    moving: Any,
    cts: list[Array | None],
    *,
    reduce: str,
    heads: int,
) -> list[Array]:
    del moving, heads
    x, weight, matrix = known
    (ct,) = cts
    assert ct is not None
    ct = _scaled(ct, None, _counts(reduce, ct, matrix, None))
    return segment_reduce_vjp(x, weight, ct, matrix)


# The derivative of a sum or mean in both. Known are x, weight and the matrix.
segment_reduce_jvp = Linear(
    name="segment_reduce_jvp",
    result=lambda known, moving, **_: [per_row(Messages(known[0], known[1], known[2]))],
    function=_both_tangents,
    transpose=_both_tangents_transpose,
)


def _both_gradients(
    x: Array, weight: Array, ct: Array, matrix: SparseMatrix, **options: Any
) -> list[Array]:
    return [
        _gradient_to_x(weight, ct, matrix, **options),
        _gradient_to_weight(x, ct, matrix, weight.shape[1], **options),
    ]


def _gradient_to_x(weight: Array, ct: Array, matrix: SparseMatrix, **options: Any) -> Array:
    heads = weight.shape[1]
    return segment_reduce(ct, weight, matrix.T, reduce="sum", heads=heads, **options)


def _gradient_to_weight(
    x: Array, ct: Array, matrix: SparseMatrix, heads: int, **options: Any
) -> Array:
    a, b, matrix = orient_by_weights(ct, x, matrix)
    return sddmm(a, b, matrix, heads=heads, **options)


def _both_gradients_jvp(
    bind: Bind, primals: Cotangents, tangents: Cotangents
) -> tuple[list[Array], list[Array]]:
    x, weight, ct, matrix = primals
    options = {"implementation": bind.implementation}
    zeros = [jnp.zeros_like(x), jnp.zeros_like(weight)]
    to_x, to_weight = zeros if tangents.ct is None else bind(primals._replace(ct=tangents.ct))
    if tangents.weight is not None:
        to_x += _gradient_to_x(tangents.weight, ct, matrix, **options)
    if tangents.x is not None:
        to_weight += _gradient_to_weight(tangents.x, ct, matrix, weight.shape[1], **options)
    return bind(primals), [to_x, to_weight]


def _both_gradients_transpose(bind: Bind, cts: list[Array | None], operands: Cotangents) -> Array:
    x, weight, _, matrix = operands
    to_x, to_weight = cts
    attributes = {"reduce": "sum", "heads": weight.shape[1], "implementation": bind.implementation}
    if to_x is None:
        return segment_reduce(x, to_weight, matrix, **attributes)
    if to_weight is None:
        return segment_reduce(to_x, weight, matrix, **attributes)
    return segment_reduce_jvp((x, weight, matrix), (to_x, to_weight), **attributes)[0]


# The gradients of a sum to x and to weight.
segment_reduce_vjp = define(
    Op(
        name="segment_reduce_vjp",
        operands=Cotangents,
        result=lambda operands: [like_first(operands), like_first((operands.weight,))],
        xla=_both_gradients,
        platforms=("cuda",),
        call=_vjp_call,
        jvp=_both_gradients_jvp,
        transpose={"ct": _both_gradients_transpose},
        batch=batch_composition,
        several=True,
        flops=lambda operands: 4 * operands.matrix.by_row.count * row_width(operands.x),
        family=FAMILY,
        sharding=matrix_sharding(
            {"x": "cols (h k)", "weight": "weights h", "ct": "rows (h k)"},
            *("cols (h k)", "weights h"),
            transposed=True,
        ),
    )
)
