"""Views of segment ids, which may have to be sorted first, and of graphs, which are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn import _ffi, _index
from jax_gnn.graph import Graph
from jax_gnn.segments import _xla
from jax_gnn.segments._kernels import like_first
from jax_gnn.views import View, Views, in_range, take


def _order_call(platform: str, ids: _ffi.Operand, *, num_segments: int) -> _ffi.Call | None:
    if platform == "cuda" or jax.export.is_symbolic_dim(num_segments):
        return None  # XLA has a fast sort there; the other counts ids into as many buckets
    return _ffi.Call([ids], {"num_segments": np.int64(num_segments)})


def _order_batch(
    bind: _ffi.Bind, operands: Sequence[Any], batched: Sequence[Any], size: int
) -> Array:
    del batched  # there is only one operand
    (ids,) = operands
    num_segments, count = bind.attributes["num_segments"], ids.shape[1]
    block = num_segments + 1  # the last is for padding
    limit = jnp.iinfo(ids.dtype).max
    if not all(_index.at_most(size * each, limit) for each in (block, count)):
        return jax.lax.map(bind, ids)
    number = jnp.arange(size, dtype=ids.dtype)[:, None]
    ids = jnp.where(in_range(ids, num_segments), ids, num_segments) + number * block
    order = bind(ids.ravel(), num_segments=size * block)
    return order.reshape(size, count) - number * count


# (ids, *, num_segments): the stable order of ids, those out of range last.
segment_order = _ffi.define_primitive(
    "segment_order",
    _ffi.Rules(
        result=like_first,
        xla=_xla.segment_order,
        call=_order_call,
        transpose={},
        batch=_order_batch,
    ),
)


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


def edge_views(graph: Graph, weighted: bool) -> Views:
    """The views of a reduction of messages at a graph's destinations; swapped, at its sources."""
    order = graph.t_order if weighted else None  # without weights nothing asks for it
    return Views(
        View(graph.rows, graph.cols, None, graph.num_dst, graph.max_in_degree),
        View(graph.t_rows, graph.t_cols, order, graph.num_src, graph.max_out_degree),
    )
