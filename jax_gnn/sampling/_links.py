"""Neighbourhoods of both ends of edges, of which these edges are no part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import ids_at
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._native import Drawn, block, uniform
from jax_gnn.sampling._neighbors import check_fanouts, layer_sizes
from jax_gnn.sampling._random import key_words
from jax_gnn.sampling._rows import as_nodes, one_kind, row_bounds
from jax_gnn.sampling._search import distinct, edge_runs

Exclude = Literal["edges", "both"] | None


@public
def link_blocks(
    graph: Graph,
    src: Any,
    dst: Any,
    fanouts: Sequence[int],
    key: Any,
    *,
    exclude: Exclude = "edges",
    replace: bool = False,
    capacity: int | Sequence[int | None] | None = None,
) -> tuple[Blocks, Array, Array]:
    """Neighbourhoods of the ends of edges that are to be predicted, without these edges.

    Works inside ``jax.jit`` and outside. The seeds are the distinct ends of all edges, positive
    ones and negative ones one behind the other. What is drawn of a node has the distribution that
    :func:`sample_neighbors` has on a graph without the given edges: a model that saw them in its
    messages would learn to look for them there.

    Args:
        graph: of one kind of nodes. Of an edge that it has several times, copies must stand side by
            side, as :meth:`jax_gnn.Graph.from_edges` puts them.
        src: ``(count,)`` integers, where the edges start. -1, as any id out of range, is padding.
        dst: ``(count,)`` integers, where they end.
        fanouts: as for :func:`sample_neighbors`.
        key: of ``jax.random``.
        exclude: what takes no part: ``"edges"``, the given ones, all copies of each; ``"both"``,
            these and their reverses, as in a graph of undirected edges; None for nothing.
        replace: as for :func:`sample_neighbors`.
        capacity: likewise; the seeds are twice the edges, or all nodes where that is less.

    Returns:
        The blocks, and where the ends of each edge are among the seeds, ``(count,)`` each, -1 for
        padding: ``y[src_place]`` and ``y[dst_place]`` of the model's ``y``.

    Raises:
        TypeError: ``graph``, ``src``, ``dst`` or ``key`` is something else, or a number is no
            integer.
        ValueError: lengths differ, ``exclude`` is unknown, or as for :func:`sample_neighbors`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 3, 3], num_nodes=4)
        >>> blocks, src, dst = link_blocks(graph, [2, 3], [3, 1], (5,), jax.random.key(0))
        >>> blocks.node_ids[src], blocks.node_ids[dst]
        (Array([2, 3], dtype=int32), Array([3, 1], dtype=int32))
        >>> blocks.graphs[0].in_degrees()  # of nodes 1, 2 and 3: an edge of the last is left out
        Array([1, 1, 1, 0], dtype=int32)
    """
    graph = arguments.check_container("graph", graph, Graph)
    num_nodes = one_kind(graph)
    ends = [arguments.as_ids(name, each) for name, each in (("src", src), ("dst", dst))]
    if ends[0].shape != ends[1].shape:
        raise ValueError(
            f"src and dst must have the same length, got {ends[0].shape[0]} and {ends[1].shape[0]}"
        )
    fanouts = check_fanouts("fanouts", fanouts)
    arguments.check_choice("exclude", exclude, ("edges", "both", None))
    replace = arguments.check_flag("replace", replace)
    num_seeds = min(2 * ends[0].shape[0], num_nodes)
    sizes = layer_sizes(num_seeds, fanouts, graph, capacity, replace=replace, tree=False)
    words = key_words("key", key)
    return _sampled(graph, *ends, words, fanouts, exclude, replace, num_seeds, sizes)


class LeftOut(NamedTuple):
    """Edges that take no part: runs of the places that they have in the graph, ascending.

    Attributes:
        starts: ``(runs,)``, where they start; runs that there are not start behind all edges.
        before: ``(runs + 1,)``, how many edges are in the runs before.
    """

    starts: Array
    before: Array

    def ahead_of(self, place: Array) -> Array:
        """How many are ahead of a place between two runs."""
        return self.before[jnp.searchsorted(self.starts, place)]

    def place_of(self, number: Array) -> Array:
        """Where the edge is that has this number among those which take part."""
        return (
            number
            + self.before[jnp.searchsorted(self.starts - self.before[:-1], number, side="right")]
        )


def left_out(graph: Graph, src: Array, dst: Array) -> LeftOut:
    """All edges between given ends; an edge may be named several times."""
    dtype, num_edges = graph.indptr.dtype, graph.num_edges
    first, counts = edge_runs(graph, None, src, dst, None)
    starts = ids_at(graph.t_order, jnp.where(counts > 0, first, -1))
    starts = jnp.where((starts >= 0) & (starts < num_edges), starts, num_edges)
    starts, counts = jax.lax.sort((starts, counts.astype(dtype)), num_keys=1)
    again = jnp.concatenate([jnp.zeros(1, bool), starts[1:] == starts[:-1]])[: starts.shape[0]]
    starts = jnp.where(again, num_edges, starts)
    counts = jnp.where(starts < num_edges, counts, 0)
    starts, counts = jax.lax.sort((starts, counts), num_keys=1)
    before = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts, dtype=dtype)])
    return LeftOut(starts, before)


def _sampled_plain(
    graph: Graph,
    src: Array,
    dst: Array,
    key: tuple[Array, Array],
    fanouts: tuple[int, ...],
    exclude: Exclude,
    replace: bool,
    num_seeds: int,
    sizes: tuple[tuple[int, int], ...],
) -> tuple[Blocks, Array, Array]:
    count, num_nodes, num_whole = src.shape[0], graph.num_dst, graph.num_edges
    src, dst = (as_nodes(each, num_nodes, graph.indptr.dtype) for each in (src, dst))
    there = (src >= 0) & (dst >= 0)
    src, dst = jnp.where(there, src, -1), jnp.where(there, dst, -1)
    nodes, places = distinct(jnp.concatenate([src, dst]), num_seeds)
    gone = None
    if exclude == "edges":
        gone = left_out(graph, src, dst)
    elif exclude == "both":
        gone = left_out(graph, jnp.concatenate([src, dst]), jnp.concatenate([dst, src]))
    overflow = jnp.zeros((), bool)
    graphs: list[Graph] = []
    for layer, (fanout, (num_edges, num_src)) in enumerate(zip(fanouts, sizes, strict=True)):
        starts, degrees = row_bounds(graph.indptr, nodes, num_whole)
        ahead = jnp.zeros_like(starts)
        if gone is not None:
            ahead = gone.ahead_of(starts)
            degrees = jnp.clip(degrees - gone.ahead_of(starts + degrees) + ahead, 0, degrees)
        offsets, counts = uniform(degrees, fanout, key, layer, replace=replace)
        if gone is not None:
            offsets = gone.place_of((starts - ahead)[:, None] + offsets) - starts[:, None]
        drawn = Drawn(nodes, starts, offsets, counts, graph.cols)
        layer_graph, nodes, over = block(drawn, num_nodes, num_edges, num_src, tree=False)
        graphs.insert(0, layer_graph)
        overflow |= over
    return Blocks(tuple(graphs), nodes, overflow), places[:count], places[count:]


_sampled = jax.jit(_sampled_plain, static_argnums=(4, 5, 6, 7, 8))
