"""The primitive of hypergraph aggregation: both linear stages in one call.

``hypergraph_aggregate``, Y = diag(o) B diag(e) A diag(i) X + diag(s) X, where A sums nodes into
hyperedges and B hyperedges into nodes. Its transpose in X is itself with i and o, and Aᵀ and Bᵀ, in
each other's place, and the same s; in e it is the row dot of two hyperedge sums, in the primitives
of :mod:`jax_gnn.segments`.

Scales are vectors in the accumulator type; where there is none, a single 1 stands for it (not an
empty array: the compiler of jax 0.11 crashes on those under ``shard_map``). The own scale s is a
vector, a single number for all nodes, or None. A node scale that is itself differentiated is taken
out of the primitive and multiplied in ``jax.numpy``, so that features and scale share one call of
the kernel; s X is then added there, too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _ffi, _index, schedules, segments
from jax_gnn._index import EdgeSplit
from jax_gnn.views import JAX_OPS, View, Views, accumulator_dtype, in_range, take


class Sorted(NamedTuple):
    """The entries of a sparse matrix of ones, sorted by row; ids out of range are padding."""

    indptr: Any  # (num_rows + 1,), where each row starts
    rows: Any  # (entries,), ascending
    cols: Any  # (entries,)
    split: Any  # an EdgeSplit: the same rows and columns in slots


class Stage(NamedTuple):
    """A matrix and its transpose: a sum of gathered rows, and what its gradient sums."""

    forward: Sorted
    backward: Sorted

    @property
    def swapped(self) -> Stage:
        """For the transpose."""
        return Stage(self.backward, self.forward)

    @property
    def views(self) -> Views:
        """For the primitives of :mod:`jax_gnn.segments`."""
        forward, backward = (
            View(entries.rows, entries.cols, None, entries.indptr.shape[0] - 1) for entries in self
        )
        return Views(forward, backward)


def ones(acc: Any) -> Array:
    """What stands for no scale."""
    return jnp.ones((1,), acc)


def mask_empty(scale: Array, indptr: Array) -> Array:
    """The scale of an empty row may be anything, as 1 / degree is: makes it 0."""
    return jnp.where(jnp.diff(indptr) == 0, 0, scale)


def _scale_rows(x: Array, scale: Array, indptr: Array) -> Array:
    """``(…, rows, features)`` times ``(…, rows)``; empty rows are 0, whatever both hold there."""
    x = jnp.where((jnp.diff(indptr) == 0)[:, None], 0, x)
    return (x.astype(scale.dtype) * mask_empty(scale, indptr)[..., None]).astype(x.dtype)


def add_own(y: Array | None, x: Array, own_scale: Array) -> Array:
    """``y + own_scale · x`` with one rounding; None is 0."""
    acc = own_scale.dtype
    own = own_scale[..., None] * x.astype(acc)
    return (own if y is None else y.astype(acc) + own).astype(x.dtype)


# --- Plain XLA -----------------------------------------------------------------------------------


def _gather_reduce(entries: Sorted, x: Array, col_scale: Array, row_scale: Array) -> Array:
    """``row_scale[r] · Σ col_scale[c] · x[c]`` over the columns c of row r."""
    indptr, rows, cols, _ = entries
    num_rows = indptr.shape[0] - 1
    messages = take(x, cols)
    if col_scale.shape[0] == x.shape[0]:
        messages *= take(col_scale, cols)[:, None]
    rows = jnp.where(in_range(rows, num_rows), rows, num_rows)  # out of range: dropped
    sums = JAX_OPS["sum"](messages, rows, num_rows, indices_are_sorted=True)
    return sums * mask_empty(row_scale, indptr)[:, None]


def _xla(
    x: Array,
    node_scale_in: Array,
    hyperedge_scale: Array,
    node_scale_out: Array,
    own_scale: Array | None,
    to_hyperedges: Stage,
    to_nodes: Stage,
) -> Array:
    wide = x.astype(accumulator_dtype(x.dtype))
    h = _gather_reduce(to_hyperedges.forward, wide, node_scale_in, hyperedge_scale)
    y = _gather_reduce(to_nodes.forward, h, ones(h.dtype), node_scale_out)
    return y.astype(x.dtype) if own_scale is None else add_own(y, x, own_scale)


# --- Derivatives ---------------------------------------------------------------------------------


def _pull_out(
    x: Array, dx: Array | None, scale: Array, dscale: Array | None, indptr: Array
) -> tuple[Array, Array | None, Array]:
    """Multiplies features and tangent by a scale that has a tangent; ones are left as scale."""
    if dscale is None:
        return x, dx, scale
    terms = [_scale_rows(x, dscale, indptr)]
    terms += [] if dx is None else [_scale_rows(dx, scale, indptr)]
    return _scale_rows(x, scale, indptr), functools.reduce(operator.add, terms), ones(scale.dtype)


def _jvp(
    bind: _ffi.Bind, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Array, Array | None]:
    x, scale_in, scale_edge, scale_out, own_scale, to_hyperedges, to_nodes = primals
    dx, dscale_in, dscale_edge, dscale_out, down_scale, *_ = tangents
    is_inside = dscale_in is None and dscale_out is None
    inner_x, inner_dx, scale_in = _pull_out(
        x, dx, scale_in, dscale_in, to_hyperedges.backward.indptr
    )
    inner_scale_out = scale_out if dscale_out is None else ones(scale_out.dtype)

    def apply(x: Array, scale_edge: Array, own_scale: Array | None) -> Array:
        return bind(x, scale_in, scale_edge, inner_scale_out, own_scale, to_hyperedges, to_nodes)

    inner_own_scale = own_scale if is_inside else None
    y = apply(inner_x, scale_edge, inner_own_scale)
    terms = [] if inner_dx is None else [apply(inner_dx, scale_edge, inner_own_scale)]
    terms += [] if dscale_edge is None else [apply(inner_x, dscale_edge, None)]
    dy = functools.reduce(operator.add, terms) if terms else None
    y, dy, _ = _pull_out(y, dy, scale_out, dscale_out, to_nodes.forward.indptr)
    if own_scale is not None and not is_inside:
        y = add_own(y, x, own_scale)
        dy = dy if dx is None else add_own(dy, dx, own_scale)
    return y, dy if down_scale is None else add_own(dy, x, down_scale)


def _backward(
    bind: _ffi.Bind,
    ct: Array,
    operands: Sequence[Any],
    last_scale: Array,
    own_scale: Array | None,
) -> Array:
    """The aggregation that leads back to the nodes that sent."""
    _, _, scale_edge, scale_out, _, to_hyperedges, to_nodes = operands
    stages = to_nodes.swapped, to_hyperedges.swapped
    return bind(ct, scale_out, scale_edge, last_scale, own_scale, *stages)


def _transpose_x(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    return _backward(bind, ct, operands, operands[1], operands[4])


def _transpose_scale_in(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, _, scale_edge, _, _, to_hyperedges, _ = operands
    other = _backward(bind, ct, operands, ones(scale_edge.dtype), None)
    return _row_dot(x, other, to_hyperedges.backward.indptr)


def _transpose_scale_out(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, scale_in, scale_edge, _, _, to_hyperedges, to_nodes = operands
    y = bind(x, scale_in, scale_edge, ones(scale_edge.dtype), None, to_hyperedges, to_nodes)
    return _row_dot(ct, y, to_nodes.forward.indptr)


def _row_dot(x: Array, y: Array, indptr: Array) -> Array:
    acc = accumulator_dtype(x.dtype)
    x = jnp.where((jnp.diff(indptr) == 0)[:, None], 0, x)
    return jnp.sum(x.astype(acc) * y.astype(acc), 1)


def _transpose_hyperedge_scale(bind: _ffi.Bind, ct: Array, operands: Sequence[Any]) -> Array:
    x, scale_in, _, scale_out, _, to_hyperedges, to_nodes = operands

    def sums(stage: Stage, x: Array, scale: Array) -> Array:
        x = x.astype(accumulator_dtype(x.dtype))  # half types would lose or overflow the sums
        if scale.shape[0] == x.shape[0]:
            x = _scale_rows(x, scale, stage.backward.indptr)
        return segments.total(x, stage.views, bind.implementation)

    sent = sums(to_hyperedges, x, scale_in)
    return jnp.sum(sent * sums(to_nodes.swapped, ct, scale_out), 1)


# --- Batching ------------------------------------------------------------------------------------


def _batch(bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int) -> Array:
    x, scale_in, scale_edge, scale_out, own_scale, to_hyperedges, to_nodes = operands
    x_batched, in_batched, edge_batched, out_batched, own_batched, *indices_batched = batched
    if edge_batched or any(jax.tree.leaves(indices_batched)):
        return _disjoint_union(bind, operands, batched, size)
    if own_scale is not None and (in_batched or out_batched or own_batched):
        without, without_batched = ([*of[:4], None, *of[5:]] for of in (operands, batched))
        return add_own(_batch(bind, without, without_batched, size), x, own_scale)
    # One hypergraph for all: the batch joins the features, and batched node scales go outside.
    if in_batched:
        x = _scale_rows(x, scale_in, to_hyperedges.backward.indptr)
        x_batched, scale_in = True, ones(scale_in.dtype)
    inner = (scale_in, scale_edge, ones(scale_out.dtype) if out_batched else scale_out)
    if x_batched:
        nodes, features = x.shape[1:]
        x = jnp.moveaxis(x, 0, 1).reshape(nodes, size * features)
    y = bind(x, *inner, own_scale, to_hyperedges, to_nodes)
    if x_batched:
        y = jnp.moveaxis(y.reshape(nodes, size, features), 1, 0)
    return _scale_rows(y, scale_out, to_nodes.forward.indptr) if out_batched else y


def _disjoint_union(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    """Joins a batch of hypergraphs to one without common nodes, and applies the primitive to it."""
    operands = segments.all_batched(operands, batched, size)
    x, *scales, own_scale, to_hyperedges, to_nodes = operands
    num_nodes, width = x.shape[1:]
    num_hyperedges = to_hyperedges.forward.indptr.shape[1] - 1
    ids = [entries.cols for stage in (to_hyperedges, to_nodes) for entries in stage]
    sizes = num_nodes, num_hyperedges, *(i.shape[1] for i in ids)
    if not all(_index.at_most(size * each, _max_id(ids[0])) for each in sizes):
        return jax.lax.map(lambda one: bind(*one), operands)
    # A single 1 becomes a scale for each row, of which the joined hypergraph has more; rows that
    # are empty now may get padding and not seem so then.
    indptrs = (
        to_hyperedges.backward.indptr,
        to_hyperedges.forward.indptr,
        to_nodes.forward.indptr,
    )
    if own_scale is not None:
        own_scale = jnp.broadcast_to(own_scale, (size, num_nodes)).ravel()
    joined = bind(
        x.reshape(size * num_nodes, width),
        *(mask_empty(*both).ravel() for both in zip(scales, indptrs, strict=True)),
        own_scale,
        _join_stage(to_hyperedges, num_hyperedges, num_nodes),
        _join_stage(to_nodes, num_nodes, num_hyperedges),
    )
    return joined.reshape(size, num_nodes, width)


def _max_id(ids: Array) -> int:
    return int(jnp.iinfo(ids.dtype).max)


def _join_stage(stage: Stage, num_rows: int, num_cols: int) -> Stage:
    return Stage(_join(stage.forward, num_cols), _join(stage.backward, num_rows))


def _join(entries: Sorted, num_cols: int) -> Sorted:
    """The block-diagonal matrix of a batch."""
    indptr, rows, cols, split = entries
    (size, count), num_rows = cols.shape, indptr.shape[1] - 1
    batch = jnp.arange(size, dtype=indptr.dtype)[:, None]
    # The last row of each block runs on over the block's padding, which is marked in the columns.
    within = jnp.arange(count, dtype=indptr.dtype) < indptr[:, -1:]
    rows = jnp.where(within, rows, num_rows - 1) + batch * num_rows
    cols = jnp.where(within & in_range(cols, num_cols), cols + batch * num_cols, -1)
    starts = indptr[:, :-1] + batch * count
    end = jnp.full((1,), size * count, indptr.dtype)
    return Sorted(
        jnp.concatenate([starts.ravel(), end]),
        rows.ravel(),
        cols.ravel(),
        _join_split(split, num_rows, num_cols),
    )


def _join_split(split: EdgeSplit, num_rows: int, num_cols: int) -> EdgeSplit:
    """Each block's surplus slots stay where they are, of a row that there is not, but not -1."""
    ids, places = split
    batch = jnp.arange(ids.shape[0], dtype=ids.dtype)[:, None]
    rows, place = places[..., 0], places[..., 1]
    rows = jnp.where(in_range(rows, num_rows), rows + batch * num_rows, len(ids) * num_rows)
    ids = jnp.where(in_range(ids, num_cols), ids + batch[..., None] * num_cols, -1)
    return EdgeSplit(ids.reshape(-1, ids.shape[-1]), jnp.stack([rows.ravel(), place.ravel()], 1))


# --- The primitive -------------------------------------------------------------------------------


def _result(x: Any, *others: Any) -> jax.ShapeDtypeStruct:
    del others
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _call(platform: _ffi.Platform, x: Any, *others: Any) -> _ffi.Call | None:
    *scales, own_scale, to_hyperedges, to_nodes = others
    stages = to_hyperedges.forward, to_nodes.forward
    width, acc = x.shape[1], np.dtype(accumulator_dtype(x.dtype))
    hyperedges, nodes = (entries.indptr.shape[0] - 1 for entries in stages)
    # Not max, as sizes may be symbolic.
    incidences = functools.reduce(jax.core.max_dim, (each.cols.shape[0] for each in stages))
    chosen = schedules.choose_hypergraph(
        incidences=incidences,
        nodes=nodes,
        hyperedges=hyperedges,
        width=width,
        itemsize=np.dtype(x.dtype).itemsize,
    )
    blocks = [1, 1]
    if platform == "cuda":
        # Kernels take int32 ids and places there.
        largest = 2 * jax.core.max_dim(nodes, hyperedges) + incidences
        if not _index.at_most(largest, segments.MAX_SIZE - 1):
            return None
        indices = [segments.narrow(ids, largest) for stage in stages for ids in stage.split]
        rounds = chosen.rounds, chosen.next_rounds
        blocks = [
            _blocks(stage.split, chosen.threads // schedules.team_lanes(width, itemsize), most)
            for stage, itemsize, most in zip(
                stages, (x.dtype.itemsize, acc.itemsize), rounds, strict=True
            )
        ]
    else:
        indices = [ids for stage in stages for ids in (stage.indptr, stage.cols)]
    workspaces = [jax.ShapeDtypeStruct((hyperedges, width), acc)]
    workspaces += [segments.workspace_of(each, width, acc) for each in blocks]
    attributes = {
        "threads": np.int64(chosen.threads),
        "has_own": np.bool_(own_scale is not None),
    }
    return _ffi.Call([x, *scales, own_scale or x, *indices], attributes, workspaces)


def _blocks(split: Any, teams: int, rounds: int) -> int:
    """Of a launch, of so many teams that take so many slots each."""
    return jax.core.max_dim(-(-(split.places.shape[0] - 1) // (max(teams, 1) * rounds)), 1)


# (x, node_scale_in, hyperedge_scale, node_scale_out, own_scale or None, to_hyperedges, to_nodes):
# the last two are stages.
aggregate = _ffi.define_primitive(
    "hypergraph_aggregate",
    _ffi.Rules(
        result=_result,
        xla=_xla,
        call=_call,
        jvp=_jvp,
        transpose={
            0: _transpose_x,
            1: _transpose_scale_in,
            2: _transpose_hyperedge_scale,
            3: _transpose_scale_out,
        },
        batch=_batch,
    ),
)
