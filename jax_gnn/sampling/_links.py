"""Neighbourhoods of the ends of edges to predict, from which these edges are excluded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import KeyWords, key_words
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._excluded import exclude_edges
from jax_gnn.sampling._neighbors import EdgeLists, SampleOptions, layer_sizes, parse_graph, sample
from jax_gnn.sampling._relational import total
from jax_gnn.sampling._rows import Ids, as_nodes, num_nodes_of
from jax_gnn.sampling._search import check_graph_kind, check_links, distinct

Exclude = Literal["edges", "both"] | None


@public
def link_blocks(
    graph: Graph | RelationalGraph,
    src: Ids,
    dst: Ids,
    fanouts: Sequence[int | Mapping[object, int]],
    key: Array,
    *,
    rel: Ids | None = None,
    exclude: Exclude = "edges",
    replace: bool = False,
    capacity: int | Sequence[int | None] | None = None,
) -> tuple[Blocks, Array, Array]:
    """Sample neighbourhoods of the ends of edges that are to be predicted, without these edges.

    Works inside ``jax.jit`` and outside. The seeds are the distinct ends of all edges, positive and
    negative ones concatenated. Draws have the distribution of :func:`sample_neighbors` on a graph
    without the given edges: a model that saw them in its messages would learn to look for them.

    Args:
        graph: one kind of nodes, or a relational graph: ``graph.relational`` of a
            :class:`jax_gnn.HeteroGraph`. Copies of an edge must be adjacent, as
            :meth:`jax_gnn.Graph.from_edges` puts them.
        src: ``(count,)`` integers, sources of the edges. -1, as any id out of range, is padding.
        dst: ``(count,)`` integers, destinations of the edges.
        fanouts: as for :func:`sample_neighbors`.
        key: key of ``jax.random``.
        rel: ``(count,)`` integers, relations of the edges, if the graph has relations; those out of
            range are padding.
        exclude: edges that take no part in draws: ``"edges"``, all copies of the given ones;
            ``"both"``, also their reverses, as in a graph of undirected edges; None for nothing.
            With relations, a reverse is of the inverse relation, which the graph must have: the
            second half of the relations, as ``inverse=True`` numbers them.
        replace: whether one edge may be drawn twice.
        capacity: as for :func:`sample_neighbors`; the seeds are twice the edges, or all nodes if
            these are fewer.

    Returns:
        The blocks, and the places of each edge's source and destination among the seeds,
        ``(count,)`` each, -1 for padding: ``y[src_place]`` and ``y[dst_place]`` of a model's ``y``.

    Raises:
        TypeError: An argument is of another type, or ``rel`` is missing or must not be given.
        ValueError: Lengths differ, ``exclude`` is unknown, there are no inverse relations, or as
            for :func:`sample_neighbors`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 3, 3], num_nodes=4)
        >>> blocks, src, dst = link_blocks(graph, [2, 3], [3, 1], (5,), jax.random.key(0))
        >>> blocks.node_ids[src], blocks.node_ids[dst]
        (Array([2, 3], dtype=int32), Array([3, 1], dtype=int32))
        >>> blocks.graphs[0].in_degrees()  # of nodes 1, 2 and 3, whose edge from 2 is left out
        Array([1, 1, 1, 0], dtype=int32)
    """
    graph = check_graph_kind(graph)
    links = check_links(graph, src, dst, rel)
    edges, types, relations, by_layer = parse_graph(graph, fanouts)
    num_nodes = num_nodes_of(edges)
    arguments.check_choice("exclude", exclude, ("edges", "both", None))
    num_inverse = 0
    if exclude == "both" and isinstance(graph, RelationalGraph):
        num_inverse = _num_inverse_relations(graph)
    replace = arguments.check_flag("replace", replace)
    num_seeds = min(2 * links[0].shape[0], num_nodes)
    totals = tuple(total(fanout, relations) for fanout in by_layer)
    sizes = layer_sizes(num_seeds, totals, edges, capacity, replace=replace, tree=False)
    options = SampleOptions(by_layer, sizes, relations, replace)
    words = key_words("key", key)
    return _sample_links(edges, types, links, words, exclude, num_inverse, num_seeds, options)


def _num_inverse_relations(graph: RelationalGraph) -> int:
    """Return the number of relations that have an inverse, which come first."""
    count = graph.num_relations - graph.self_relation
    names, half = graph.relation_names or (), count // 2
    pairs = zip(names[:half], names[half:], strict=False)
    # Names that are (source type, relation, destination type) must be swapped in the inverse.
    matches = (
        isinstance(name, str) or (name[0], name[2]) == (inverse[2], inverse[0])
        for name, inverse in pairs
    )
    if count % 2 or not all(matches):
        raise ValueError(
            "exclude must not be 'both' for a graph without inverse relations: build it with "
            f"inverse=True, got {graph.num_relations} relations"
        )
    return half


@jit("exclude", "num_inverse", "num_seeds", "options")
def _sample_links(
    graph: Graph,
    types: Array | None,
    links: tuple[Array, ...],
    key: KeyWords,
    exclude: Exclude,
    num_inverse: int,
    num_seeds: int,
    options: SampleOptions,
) -> tuple[Blocks, Array, Array]:
    count, num_nodes, dtype = links[0].shape[0], graph.num_dst, graph.indptr.dtype
    src, dst = (as_nodes(ids, num_nodes, dtype) for ids in links[:2])
    valid = (src >= 0) & (dst >= 0)
    rel = None
    if options.relations is not None:
        rel = as_nodes(links[2], options.relations.num_relations, dtype)
        valid &= rel >= 0
    src, dst = jnp.where(valid, src, PADDING), jnp.where(valid, dst, PADDING)
    nodes, places = distinct(jnp.concatenate([src, dst]), num_seeds)
    rule = None
    if exclude is not None:
        heads, tails = src, dst
        if exclude == "both":
            heads, tails = jnp.concatenate([src, dst]), jnp.concatenate([dst, src])
            if rel is not None:
                inverse = jnp.where(rel < num_inverse, rel + num_inverse, rel - num_inverse)
                has_inverse = in_range(rel, 2 * num_inverse)  # not that of nodes to themselves
                rel = jnp.concatenate([rel, jnp.where(has_inverse, inverse, PADDING)])
        rule = exclude_edges(graph, types, heads, tails, rel)
    edges = EdgeLists(graph.indptr, graph.cols, types)
    blocks = sample(edges, nodes, key, rule, None, options)
    return blocks, places[:count], places[count:]
