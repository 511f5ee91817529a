"""Segment reductions as primitives: what segment ops and sparse products are made of.

One structure of indices and a few primitives on ``(rows, features)`` arrays, closed under
differentiation:

* ``segment_reduce``, out[r] = reduce of w[e] · x[cols[e]] over the entries e of row r. As a sum or
  mean it is linear: its transpose in x is itself with the views swapped, in w it is ``sddmm``.
  Derivatives of the other reductions are written in the primitives of this list.
* ``sddmm``, w[e] = ⟨a[rows[e]], b[cols[e]]⟩. Its transposes are ``segment_reduce``.
* ``segment_select``, a sum over those entries whose message is the row's maximum: derivatives of
  maximum and minimum. Its transposes are itself with the sides swapped, and
* ``sddmm_select``, the dot of those features that are the row's maximum.
* ``segment_softmax``, and its derivative ``segment_softmax_tangent``, which is its own transpose.
* ``segment_order``, a stable sort of ids.

Where a view has no rows, the primitive is a gather: plain XLA does that.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _ffi, schedules
from jax_gnn import _segments_xla as _xla
from jax_gnn.views import View, Views, accumulator_dtype, column, in_range, take

# --- What kernels get ----------------------------------------------------------------------------

_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "logsumexp")  # as in segments.h
_MAX_SIZE = 2**31 - 1  # kernels take int32 ids


def _view_operands(view: Any, num_cols: int) -> tuple[list[_ffi.Operand], dict[str, Any]] | None:
    """Index operands of a kernel; those that are absent get another in their place.

    None where no kernel serves: a gather, or ids that do not fit int32.
    """
    sizes = view.num_rows, num_cols, view.count
    if view.rows is None or (view.rows.dtype != np.int32 and max(sizes) >= _MAX_SIZE):
        return None
    attributes = {
        "gather": np.bool_(view.cols is not None),
        "ordered": np.bool_(view.order is not None),
    }
    ids = [
        _narrow(ids or view.rows, size)
        for ids, size in zip((view.rows, view.cols, view.order), sizes, strict=True)
    ]
    return ids, attributes


def _narrow(ids: _ffi.Operand, size: int) -> _ffi.Operand:
    """Makes ids int32; those out of range stay so, on their side."""
    if ids.dtype == np.int32:
        return ids
    return ids.map(lambda wide: jnp.clip(wide, -1, size).astype(jnp.int32), np.int32)


def _scheduled(op: str, view: View, x: _ffi.Operand) -> tuple[Any, list[Any]]:
    """The schedule's attributes, and the workspace: what blocks of entries leave to others."""
    width, acc = x.shape[1], np.dtype(accumulator_dtype(x.dtype))
    schedule = schedules.choose(
        op,
        count=view.count,
        num_rows=view.num_rows,
        width=width,
        itemsize=np.dtype(x.dtype).itemsize,
        gather=view.cols is not None,
        max_degree=view.max_degree,
    )
    attributes = {
        "parallel": np.bool_(schedule.parallel),
        "lanes": np.int64(schedule.lanes),
        "threads": np.int64(schedule.threads),
    }
    teams = schedule.threads // schedule.lanes
    blocks = min(schedule.blocks, max(1, math.ceil(view.count / teams)))
    # As workspace_bytes in segments.h.
    block_bytes = 64 + 2 * (math.ceil(2 * width * acc.itemsize / 16) * 16)
    return attributes, [jax.ShapeDtypeStruct((blocks, block_bytes), np.uint8)]


def _reduce_call(
    platform: str,
    x: _ffi.Operand,
    weight: _ffi.Operand | None,
    views: Views,
    *,
    reduce: str,
    heads: int,
) -> _ffi.Call | None:
    del platform, heads
    view = views.forward
    found = _view_operands(view, x.shape[0])
    if found is None:
        return None
    ids, flags = found
    schedule, workspaces = _scheduled("segment_reduce", view, x)
    flags |= {
        "reduce": np.int64(_REDUCTIONS.index(reduce)),
        "weighted": np.bool_(weight is not None),
    }
    return _ffi.Call([x, weight or x, *ids], flags | schedule, workspaces)


def _reduce_prefers_xla(
    platform: str,
    x: _ffi.Operand,
    weight: _ffi.Operand | None,
    views: Views,
    *,
    reduce: str,
    heads: int,
) -> bool:
    """On a CPU: unsorted ids, what is too small for a custom call, and rows of few entries."""
    del heads
    view, (count, width) = views.forward, x.shape
    if platform != "cpu" or weight is not None or reduce == "logsumexp":
        return False
    if views.unsorted is not None:
        return True
    if view.cols is not None or reduce == "mean":
        return False
    # Few entries to a row do not pay for going through wide rows in tiles, nor for widening.
    costly = (width >= 256 and count * width >= 2**21) or (width < 8 and x.dtype.itemsize == 2)
    few = count < 4 * view.num_rows
    return (few and costly) or (count + view.num_rows) * width < 2**13


def _select_call(
    platform: str,
    row_key: _ffi.Operand,
    col_key: _ffi.Operand,
    value: _ffi.Operand | None,
    weight: _ffi.Operand | None,
    factor: _ffi.Operand | None,
    views: Views,
    *,
    weight_on_row: bool,
    heads: int,
) -> _ffi.Call | None:
    del platform
    view = views.forward
    found = _view_operands(view, col_key.shape[0])
    if found is None:
        return None
    ids, flags = found
    schedule, workspaces = _scheduled("segment_select", view, col_key)
    flags |= {
        "has_value": np.bool_(value is not None),
        "weighted": np.bool_(weight is not None),
        "factored": np.bool_(factor is not None),
        "weight_on_row": np.bool_(weight_on_row),
        "heads": np.int64(heads),
    }
    optional = [operand or col_key for operand in (value, weight, factor)]
    return _ffi.Call([row_key, col_key, *optional, *ids], flags | schedule, workspaces)


def _sddmm_call(
    platform: str, a: _ffi.Operand, b: _ffi.Operand, views: Views, *, heads: int
) -> _ffi.Call | None:
    del platform
    found = _view_operands(views.forward, b.shape[0])
    if found is None:
        return None
    (rows, cols, _), flags = found
    return _ffi.Call([a, b, rows, cols], {"gather": flags["gather"], "heads": np.int64(heads)})


def _sddmm_select_call(
    platform: str,
    a: _ffi.Operand,
    b: _ffi.Operand,
    row_key: _ffi.Operand,
    col_key: _ffi.Operand,
    weight: _ffi.Operand | None,
    views: Views,
    *,
    weight_on_row: bool,
    heads: int,
) -> _ffi.Call | None:
    del platform
    found = _view_operands(views.forward, b.shape[0])
    if found is None:
        return None
    ids, flags = found
    flags |= {
        "weighted": np.bool_(weight is not None),
        "weight_on_row": np.bool_(weight_on_row),
        "heads": np.int64(heads),
    }
    return _ffi.Call([a, b, row_key, col_key, weight or a, *ids], flags)


def _softmax_call(platform: str, *operands: Any) -> _ffi.Call | None:
    """For the softmax and its tangent."""
    del platform
    *arrays, views = operands
    view = views.forward
    found = _view_operands(view, view.count)
    if found is None:
        return None
    (rows, *_), _ = found
    _, workspaces = _scheduled("softmax", view, arrays[0])
    return _ffi.Call([*arrays, rows], {"num_rows": np.int64(view.num_rows)}, workspaces)


def _order_call(platform: str, ids: _ffi.Operand, *, num_segments: int) -> _ffi.Call | None:
    if platform == "cuda":  # XLA has a fast sort there
        return None
    return _ffi.Call([ids], {"num_segments": np.int64(num_segments)})


# --- Derivatives ---------------------------------------------------------------------------------


def _reduce_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    rules = {"max": _extremum_jvp, "min": _extremum_jvp, "prod": _prod_jvp}
    rules["logsumexp"] = _logsumexp_jvp
    linear = functools.partial(_ffi.multilinear_jvp, (0, 1))
    return rules.get(bind.attributes["reduce"], linear)(bind, primals, tangents)


def _extremum_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, weight, views = primals
    dx, dweight, _ = tangents
    result = bind(x, weight, views)

    def select(value: Array | None, factor: Array | None) -> Array:
        return segment_select(
            *(result, x, value, weight, factor, views),
            weight_on_row=False,
            heads=bind.attributes["heads"],
            implementation=bind.implementation,
        )

    terms = [] if dx is None else [select(dx, weight)]
    terms += [] if dweight is None else [select(x, dweight)]
    # All that attain the maximum share its tangent; none does in empty rows and where it is NaN.
    ties = jnp.maximum(select(None, None), 1)
    return result, functools.reduce(operator.add, terms) / ties


def _logsumexp_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, _, views = primals
    wide = x.astype(accumulator_dtype(x.dtype))  # shares want the logarithm unrounded
    result = bind(wide, None, views)
    each = gather(result, views, implementation=bind.implementation)
    counted = _counted(views) & (each > -jnp.inf)
    shares = jnp.where(counted, jnp.exp(jnp.where(counted, wide - each, 0)), 0)
    tangent = total((shares * tangents[0]).astype(x.dtype), views, bind.implementation)
    return result.astype(x.dtype), tangent


def _counted(views: Views) -> Array:
    """``(entries, 1)``, which rows of the input of a plain segment reduction are not padding."""
    assert views.backward.cols is not None
    return column(in_range(views.backward.cols, views.forward.num_rows))


def _prod_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, _, views = primals
    view = views.forward
    valid = column(view.valid(x.shape[0]))
    factors = jnp.where(valid, take(x, view.cols), 1).astype(accumulator_dtype(x.dtype))
    terms = _product_of_others(factors, view.rows) * take(tangents[0], view.cols)
    in_order = Views(replace(view, cols=None), View(None, view.rows, None, view.count))
    terms = jnp.where(valid, terms, 0).astype(x.dtype)
    return bind(x, None, views), total(terms, in_order, bind.implementation)


def _product_of_others(x: Array, rows: Array) -> Array:
    """For each entry the product of all others of its row; no division, as there may be zeros."""
    ends = jnp.concatenate([rows[1:] != rows[:-1], jnp.ones(min(rows.shape[0], 1), bool)])
    before = _exclusive_products(x, jnp.roll(ends, 1), reverse=False)
    return before * _exclusive_products(x, ends, reverse=True)


def _exclusive_products(x: Array, starts: Array, reverse: bool) -> Array:
    """Running products of the entries before each one, which begin anew at the starts."""

    def combine(left: Any, right: Any) -> Any:
        return jnp.where(right[1], right[0], left[0] * right[0]), left[1] | right[1]

    flags = jnp.broadcast_to(column(starts), x.shape)
    products, _ = jax.lax.associative_scan(combine, (x, flags), reverse=reverse)
    return jnp.where(flags, 1, jnp.roll(products, -1 if reverse else 1, axis=0))


def _reduce_transpose_x(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, weight, views = operands
    return bind(_divide_by_counts(bind, ct, views), weight, views.swapped, reduce="sum")


def _reduce_transpose_weight(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, _, views = operands
    a, b, views = _entrywise(_divide_by_counts(bind, ct, views), x, views)
    heads = bind.attributes["heads"]
    return sddmm(a, b, views, heads=heads, implementation=bind.implementation)


def _divide_by_counts(bind: _ffi.Bind, ct: Array, views: Views) -> Array:
    if bind.attributes["reduce"] == "sum":
        return ct
    ones = jnp.ones((views.backward.num_rows, 1), accumulator_dtype(ct.dtype))
    counts = total(ones, views, bind.implementation)
    return (ct / jnp.maximum(counts, 1)).astype(ct.dtype)


def _entrywise(a: Any, b: Any, views: Views) -> tuple[Any, Any, Views]:
    """What belongs to rows, to columns and the views, swapped if that puts entries into order."""
    if views.forward.order is None and views.forward.rows is not None:
        return a, b, views
    return b, a, views.swapped


def _sddmm_transpose_a(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, b, views = operands
    heads = bind.attributes["heads"]
    return segment_reduce(
        b, ct, views, reduce="sum", heads=heads, implementation=bind.implementation
    )


def _sddmm_transpose_b(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    a, _, views = operands
    return _sddmm_transpose_a(bind, ct, (None, a, views.swapped))


def _select_transpose_value(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    row_key, col_key, _, weight, factor, views = operands
    flipped = not bind.attributes["weight_on_row"]
    return bind(col_key, row_key, ct, weight, factor, views.swapped, weight_on_row=flipped)


def _select_transpose_factor(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    row_key, col_key, value, weight, _, views = operands
    on_rows, on_cols, entrywise = _entrywise((ct, row_key), (value, col_key), views)
    return sddmm_select(
        *(on_rows[0], on_cols[0], on_rows[1], on_cols[1], weight, entrywise),
        weight_on_row=bind.attributes["weight_on_row"] ^ (entrywise is not views),
        heads=bind.attributes["heads"],
        implementation=bind.implementation,
    )


def _sddmm_select_transpose_a(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    _, b, row_key, col_key, weight, views = operands
    return segment_select(
        *(row_key, col_key, b, weight, ct, views),
        **bind.attributes,
        implementation=bind.implementation,
    )


def _sddmm_select_transpose_b(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    a, _, row_key, col_key, weight, views = operands
    flipped = dict(bind.attributes, weight_on_row=not bind.attributes["weight_on_row"])
    swapped = (None, a, col_key, row_key, weight, views.swapped)
    return _sddmm_select_transpose_a(replace(bind, attributes=flipped), ct, swapped)


def _softmax_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    y = bind(*primals)
    views = primals[-1]
    return y, segment_softmax_tangent(y, tangents[0], views, implementation=bind.implementation)


def _softmax_tangent_jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    y, t, views = primals
    dy, dt, _ = tangents
    terms = [] if dt is None else [bind(y, dt, views)]
    if dy is not None:
        counted = _counted(views)
        y, t, dy = (jnp.where(counted, z, 0).astype(accumulator_dtype(z.dtype)) for z in (y, t, dy))

        def mean(p: Array) -> Array:
            sums = total(p * t, views, bind.implementation)
            return gather(sums, views, bind.implementation)

        terms.append((dy * (t - mean(y)) - y * mean(dy)).astype(primals[0].dtype))
    return bind(*primals), functools.reduce(operator.add, terms) if terms else None


def _softmax_tangent_transpose(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    y, _, views = operands
    return bind(y, ct, views)


# --- Batching ------------------------------------------------------------------------------------


def _batch(
    weights: Sequence[int],
    bind: _ffi.Bind,
    operands: Sequence[Any],
    batched: Sequence[Any],
    size: int,
    *,
    per_entry: bool = False,
) -> Array:
    """Batching of all primitives on features.

    Args:
        weights: positions of the operands that are ``(entries, heads)``; the others are features.
        bind: the primitive.
        operands: its operands, of which the views are the last.
        batched: which arrays of theirs are.
        size: of the batch.
        per_entry: whether the result is ``(entries, heads)`` too.
    """
    *values, views = operands
    *values_batched, views_batched = batched
    if any(jax.tree.leaves(views_batched)):
        return _disjoint_union(bind, operands, batched, size)
    # One structure for all: the batch joins the features of each head, or the heads.
    heads = bind.attributes.get("heads", 1)
    as_heads = per_entry or any(values_batched[i] for i in weights)
    outer = 1 if as_heads else heads

    def fold(i: int, value: Array | None, is_batched: bool) -> Array | None:
        if value is None or (i in weights and not as_heads):
            return value
        if not is_batched:
            value = jnp.broadcast_to(value, (size, *value.shape))
        _, rows, width = value.shape
        value = value.reshape(size, rows, outer, width // outer)
        return value.transpose(1, 2, 0, 3).reshape(rows, size * width)

    folded = [fold(i, *both) for i, both in enumerate(zip(values, values_batched, strict=True))]
    result = bind(*folded, views, **({"heads": heads * size} if as_heads else {}))
    rows, width = result.shape[0], result.shape[1] // size
    result = result.reshape(rows, outer, size, width // outer)
    return result.transpose(2, 0, 1, 3).reshape(size, rows, width)


def _disjoint_union(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    """Joins a batch of structures to one without common rows, and applies a primitive to that."""
    operands = _all_batched(operands, batched, size)
    if size == 1:
        return bind(*jax.tree.map(lambda x: x[0], operands))[None]
    *values, views = operands
    forward, backward = views
    ids = jax.tree.leaves(views)[0]
    if size * max(forward.num_rows, backward.num_rows, ids.shape[1]) > jnp.iinfo(ids.dtype).max:
        return jax.lax.map(lambda one: bind(*one), tuple(operands))
    joined = Views(_join(forward, backward.num_rows), _join(backward, forward.num_rows))
    flat = jax.tree.map(lambda x: x.reshape(size * x.shape[1], x.shape[2]), values)
    result = bind(*flat, joined)
    return result.reshape(size, result.shape[0] // size, result.shape[1])


def _all_batched(operands: Sequence[Any], batched: Sequence[Any], size: int) -> Any:
    return jax.tree.map(
        lambda x, is_batched: x if is_batched else jnp.broadcast_to(x, (size, *x.shape)),
        tuple(operands),
        tuple(batched),
    )


def _join(view: View, num_cols: int) -> View:
    """Block-diagonal view of a batch of views."""
    size, count = jax.tree.leaves(view)[0].shape

    def shifted(ids: Array, block: int) -> Array:
        return ids + jnp.arange(size, dtype=ids.dtype)[:, None] * block

    def joined(ids: Array, valid: Array, block: int) -> Array:
        return jnp.where(valid, shifted(ids, block), -1).ravel()

    rows, cols, order = view.rows, view.cols, view.order
    if order is not None:
        order = joined(order, in_range(order, count), count)
    if rows is None:
        assert cols is not None
        cols = joined(cols, in_range(cols, num_cols), num_cols)
        return replace(view, cols=cols, order=order, num_rows=size * view.num_rows)
    # Rows stay sorted: padding gets the row before it, and is marked in the columns.
    valid = in_range(rows, view.num_rows)
    rows = shifted(jax.lax.cummax(jnp.where(valid, rows, 0), axis=1), view.num_rows).ravel()
    if cols is None:
        cols = jnp.broadcast_to(jnp.arange(count, dtype=rows.dtype), valid.shape)
    cols = joined(cols, valid & in_range(cols, num_cols), num_cols)
    return replace(view, rows=rows, cols=cols, order=order, num_rows=size * view.num_rows)


def _softmax_batch(
    fill: float, bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    if not any(jax.tree.leaves(batched[-1])):
        return _batch((), bind, operands, batched, size)
    # There are no columns to mark padding in: it gets values that change nothing.
    *values, views = _all_batched(operands, batched, size)
    valid = in_range(views.forward.rows, views.forward.num_rows)[:, :, None]
    values = [jnp.where(valid, value, fill) for value in values]
    operands = (*values, views)
    result = _disjoint_union(bind, operands, jax.tree.map(lambda _: True, operands), size)
    return jnp.where(valid, result, 0)


def _order_batch(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    del batched  # there is only one operand
    (ids,) = operands
    num_segments, count = bind.attributes["num_segments"], ids.shape[1]
    block = num_segments + 1  # the last is for padding
    if size * max(block, count) > jnp.iinfo(ids.dtype).max:
        return jax.lax.map(bind, ids)
    number = jnp.arange(size, dtype=ids.dtype)[:, None]
    ids = jnp.where(in_range(ids, num_segments), ids, num_segments) + number * block
    order = bind(ids.ravel(), num_segments=size * block)
    return order.reshape(size, count) - number * count


# --- Primitives ----------------------------------------------------------------------------------


def _per_row(x: Any, *others: Any, **attributes: Any) -> jax.ShapeDtypeStruct:
    del attributes
    views = others[-1]
    return jax.ShapeDtypeStruct((views.forward.num_rows, x.shape[1]), x.dtype)


def _per_entry(x: Any, *others: Any, heads: int, **attributes: Any) -> jax.ShapeDtypeStruct:
    del attributes
    views = others[-1]
    return jax.ShapeDtypeStruct((views.forward.count, heads), accumulator_dtype(x.dtype))


def _like_first(x: Any, *others: Any, **attributes: Any) -> jax.ShapeDtypeStruct:
    del others, attributes
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


# (x, weight or None, views, *, reduce, heads): weight is (entries, heads), in the accumulator type.
segment_reduce = _ffi.define_primitive(
    "segment_reduce",
    _ffi.Rules(
        result=_per_row,
        xla=_xla.segment_reduce,
        call=_reduce_call,
        prefers_xla=_reduce_prefers_xla,
        jvp=_reduce_jvp,
        transpose={0: _reduce_transpose_x, 1: _reduce_transpose_weight},
        batch=functools.partial(_batch, (1,)),
    ),
)
# (row_key, col_key, value, weight, factor, views, *, weight_on_row, heads): the sum of
# factor[e] · value[cols[e]], where None is 1, over those features of the entries of a row for which
# weight[e] · row_key[r] = col_key[cols[e]], or else row_key[r] = weight[e] · col_key[cols[e]].
segment_select = _ffi.define_primitive(
    "segment_select",
    _ffi.Rules(
        result=_per_row,
        xla=_xla.segment_select,
        call=_select_call,
        transpose={2: _select_transpose_value, 4: _select_transpose_factor},
        batch=functools.partial(_batch, (3, 4)),
    ),
)
# (a, b, views, *, heads): a belongs to the rows of the forward view, b to its columns.
sddmm = _ffi.define_primitive(
    "sddmm",
    _ffi.Rules(
        result=_per_entry,
        xla=_xla.sddmm,
        call=_sddmm_call,
        transpose={0: _sddmm_transpose_a, 1: _sddmm_transpose_b},
        batch=functools.partial(_batch, (), per_entry=True),
    ),
)
# (a, b, row_key, col_key, weight, views, *, weight_on_row, heads): sddmm over the features that
# segment_select selects.
sddmm_select = _ffi.define_primitive(
    "sddmm_select",
    _ffi.Rules(
        result=_per_entry,
        xla=_xla.sddmm_select,
        call=_sddmm_select_call,
        transpose={0: _sddmm_select_transpose_a, 1: _sddmm_select_transpose_b},
        batch=functools.partial(_batch, (4,), per_entry=True),
    ),
)
# (x, views): the softmax over each segment of sorted entries.
segment_softmax = _ffi.define_primitive(
    "segment_softmax",
    _ffi.Rules(
        result=_like_first,
        xla=_xla.segment_softmax,
        call=_softmax_call,
        jvp=_softmax_jvp,
        transpose={},
        batch=functools.partial(_softmax_batch, -np.inf),
    ),
)
# (y, t, views): y · (t - sum of the segment's y · t).
segment_softmax_tangent = _ffi.define_primitive(
    "segment_softmax_tangent",
    _ffi.Rules(
        result=_like_first,
        xla=_xla.segment_softmax_tangent,
        call=_softmax_call,
        jvp=_softmax_tangent_jvp,
        transpose={1: _softmax_tangent_transpose},
        batch=functools.partial(_softmax_batch, 0.0),
    ),
)
# (ids, *, num_segments): the stable order of ids, those out of range last.
segment_order = _ffi.define_primitive(
    "segment_order",
    _ffi.Rules(
        result=_like_first,
        xla=_xla.segment_order,
        call=_order_call,
        transpose={},
        batch=_order_batch,
    ),
)


def total(x: Array, views: Views, implementation: str | None = None) -> Array:
    """The sums of rows of x."""
    return segment_reduce(x, None, views, reduce="sum", heads=1, implementation=implementation)


def gather(x: Array, views: Views, implementation: str | None = None) -> Array:
    """The transpose of :func:`total`: rows of x for each entry, zeros for padding."""
    return total(x, views.swapped, implementation)


def sort_ids(ids: Array, size: int, implementation: str | None = None) -> tuple[Array, Array]:
    """Sorts ids stably, those out of range last: (sorted ids, where each of them was)."""
    ids = jnp.where(in_range(ids, size), ids, size)
    order = segment_order(ids, num_segments=size, implementation=implementation)
    return take(ids, order), order


def segment_views(
    ids: Array, num_segments: int, is_sorted: bool, implementation: str | None = None
) -> Views:
    """The views of a reduction of ``(len(ids), features)`` into segments."""
    backward = View(None, ids, None, ids.shape[0])
    if is_sorted:
        return Views(View(ids, None, None, num_segments), backward)
    rows, order = sort_ids(ids, num_segments, implementation)
    return Views(View(rows, order, None, num_segments, resorted=True), backward)
