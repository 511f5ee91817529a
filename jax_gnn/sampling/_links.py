"""Neighbourhoods of both ends of edges, of which these edges are no part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._left_out import left_out
from jax_gnn.sampling._neighbors import Rule, layer_sizes, of_edges, sample
from jax_gnn.sampling._random import key_words
from jax_gnn.sampling._relational import Fanout, Relations, total
from jax_gnn.sampling._rows import as_nodes, one_kind
from jax_gnn.sampling._search import distinct, link_ids

Exclude = Literal["edges", "both"] | None


@public
def link_blocks(
    graph: Graph | RelationalGraph,
    src: Any,
    dst: Any,
    fanouts: Sequence[Any],
    key: Any,
    *,
    rel: Any = None,
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
        graph: of one kind of nodes, or with relations: ``graph.relational`` of a
            :class:`jax_gnn.HeteroGraph`. Of an edge that it has several times, copies must stand
            side by side, as :meth:`jax_gnn.Graph.from_edges` puts them.
        src: ``(count,)`` integers, where the edges start. -1, as any id out of range, is padding.
        dst: ``(count,)`` integers, where they end.
        fanouts: as for :func:`sample_neighbors`.
        key: of ``jax.random``.
        rel: ``(count,)`` integers, the relations of the edges, where the graph has these; those
            out of range are padding.
        exclude: what takes no part: ``"edges"``, the given ones, all copies of each; ``"both"``,
            these and their reverses, as in a graph of undirected edges; None for nothing. With
            relations a reverse is of the inverse relation, which the graph must have: as
            ``inverse=True`` numbers them, the second half.
        replace: as for :func:`sample_neighbors`.
        capacity: likewise; the seeds are twice the edges, or all nodes where that is less.

    Returns:
        The blocks, and where the ends of each edge are among the seeds, ``(count,)`` each, -1 for
        padding: ``y[src_place]`` and ``y[dst_place]`` of the model's ``y``.

    Raises:
        TypeError: ``graph``, ``src``, ``dst`` or ``key`` is something else, a number is no
            integer, or ``rel`` is missing or not wanted.
        ValueError: lengths differ, ``exclude`` is unknown, there are no inverse relations, or as
            for :func:`sample_neighbors`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 3, 3], num_nodes=4)
        >>> blocks, src, dst = link_blocks(graph, [2, 3], [3, 1], (5,), jax.random.key(0))
        >>> blocks.node_ids[src], blocks.node_ids[dst]
        (Array([2, 3], dtype=int32), Array([3, 1], dtype=int32))
        >>> blocks.graphs[0].in_degrees()  # of nodes 1, 2 and 3: an edge of the last is left out
        Array([1, 1, 1, 0], dtype=int32)
    """
    ids = link_ids(graph, src, dst, rel)
    graph = graph.check()
    edges, types, relations, by_layer = of_edges(graph, fanouts)
    num_nodes = one_kind(edges)
    arguments.check_choice("exclude", exclude, ("edges", "both", None))
    half = 0
    if exclude == "both" and isinstance(graph, RelationalGraph):
        half = inverse_relations(graph)
    replace = arguments.check_flag("replace", replace)
    num_seeds = min(2 * ids[0].shape[0], num_nodes)
    totals = tuple(total(fanout, relations) for fanout in by_layer)
    sizes = layer_sizes(num_seeds, totals, edges, capacity, replace=replace, tree=False)
    static = relations, by_layer, exclude, half, replace, num_seeds, sizes
    return _sampled(edges, types, ids, key_words("key", key), *static)


def inverse_relations(graph: RelationalGraph) -> int:
    """How many relations have an inverse, which are the first ones."""
    count = graph.num_relations - graph.self_relation
    names = graph.relation_names
    half, pairs = count // 2, () if names is None else zip(names, names[count // 2 :], strict=False)
    named = [(one, other) for one, other in pairs if not isinstance(one, str)][:half]
    if count % 2 or any((one[0], one[2]) != (other[2], other[0]) for one, other in named):
        raise ValueError(
            "exclude must not be 'both' for a graph without inverse relations: build it with "
            f"inverse=True, got {graph.num_relations} relations"
        )
    return half


def _sampled_plain(
    graph: Graph,
    types: Array | None,
    ids: tuple[Array, ...],
    key: tuple[Array, Array],
    relations: Relations | None,
    fanouts: tuple[Fanout, ...],
    exclude: Exclude,
    half: int,
    replace: bool,
    num_seeds: int,
    sizes: tuple[tuple[int, int], ...],
) -> tuple[Blocks, Array, Array]:
    count, num_nodes, dtype = ids[0].shape[0], graph.num_dst, graph.indptr.dtype
    src, dst = (as_nodes(each, num_nodes, dtype) for each in ids[:2])
    there = (src >= 0) & (dst >= 0)
    rel = None
    if relations is not None:
        rel = as_nodes(ids[2], relations.num_relations, dtype)
        there &= rel >= 0
    src, dst = jnp.where(there, src, PADDING), jnp.where(there, dst, PADDING)
    nodes, places = distinct(jnp.concatenate([src, dst]), num_seeds)
    rule = None
    if exclude is not None:
        heads, tails = src, dst
        if exclude == "both":
            heads, tails = jnp.concatenate([src, dst]), jnp.concatenate([dst, src])
            if rel is not None:
                other = jnp.where(rel < half, rel + half, rel - half)
                own = in_range(rel, 2 * half)  # that of nodes to themselves has no inverse
                rel = jnp.concatenate([rel, jnp.where(own, other, PADDING)])
        rule = Rule(gone=left_out(graph, types, heads, tails, rel))
    options = relations, fanouts, replace, False, False, sizes
    blocks = sample(graph.indptr, graph.cols, types, nodes, key, rule, None, *options)
    return blocks, places[:count], places[count:]


_sampled = jax.jit(_sampled_plain, static_argnums=(4, 5, 6, 7, 8, 9, 10))
