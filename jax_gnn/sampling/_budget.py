"""Subgraphs of several types of nodes, as HGT draws them: so many of each type, by layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn._core.public import public
from jax_gnn.hetero import HeteroGraph
from jax_gnn.sampling._native import weighted
from jax_gnn.sampling._random import key_words
from jax_gnn.sampling._relational import Relations, first_of, is_sequence, joined_seeds
from jax_gnn.sampling._rows import as_nodes, row_bounds
from jax_gnn.sampling._subgraphs import CHUNK, Subgraph, _induced_plain, _room, edges_into
from jax_gnn.sampling._weights import running_sums

_SHARE_BITS = 28  # of 1 / degree, as an integer
_WORD = 16  # bits of a sum's lower word: it has room for a chunk's edges


@public
def hgt_subgraph(
    graph: HeteroGraph,
    seeds: Mapping[str, Any],
    num_nodes: Sequence[int | Mapping[str, int]],
    key: Any,
    *,
    num_edges: int | None = None,
) -> Subgraph:
    """Seeds and nodes around them, as many of each type: HGT's budget sampling (HGSampling).

    Works inside ``jax.jit`` and outside; all shapes follow from the numbers of seeds and nodes. A
    node's budget is the sum of 1 / (edges into v by the relation) over its edges into nodes v that
    were chosen. In each layer, of each type, nodes are chosen one after another in proportion to
    the square of their budget, all types at once: their edges count from the next layer on. The
    time is that of the edges into the nodes, and one of all nodes for each layer. The same key
    gives the same nodes on every device.

    Args:
        graph: of several types of nodes.
        seeds: by node type ``(count,)`` integers. -1, as any id out of range, is padding; so is a
            node that was given before.
        num_nodes: for each layer how many nodes to choose of each type: a number for all types, or
            a mapping, none of others.
        key: of ``jax.random``.
        num_edges: room for edges; by default for all of the graph's. Where there are more, those
            that are last by destination are left out, and ``overflow`` is set.

    Returns:
        A :class:`Subgraph` whose ``graph`` is a :class:`jax_gnn.HeteroGraph` of the same types. The
        nodes of a type are its seeds, then those of each layer; where fewer can be chosen, the rest
        is padding. ``node_ids`` are those of ``graph.join(x_dict)``. Values of edges go in as those
        of the whole graph do, by type.

    Raises:
        TypeError: ``graph``, ``seeds`` or ``key`` is something else, or a number is no integer.
        ValueError: a number is negative, there is no layer, or a type is none of the graph's.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1, 1], [0, 0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> part = hgt_subgraph(graph, {"paper": [0]}, (2, 2), jax.random.key(0), num_edges=6)
        >>> part.graph.num_nodes
        {'author': 4, 'paper': 5}
        >>> part.node_ids[part.graph.slices["paper"]]
        Array([ 2, -1, -1,  4, -1], dtype=int32)

    Source:
        Hu, Dong, Wang and Sun, "Heterogeneous graph transformer", WWW 2020, algorithm 1, which goes
        from type to type instead.
    """
    arguments.check_instance("graph", graph, HeteroGraph)
    graph = replace(graph, relational=graph.relational.check(), graphs=())
    joined = joined_seeds(graph, seeds)
    stops = np.cumsum([np.shape(ids)[0] for ids in seeds.values()], dtype=int)
    given = dict(zip(seeds, jnp.split(joined, stops[:-1]), strict=True)) if seeds else {}
    columns = tuple(given.get(name, joined[:0]) for name in graph.node_types)
    layers = _layers("num_nodes", num_nodes, graph.node_types)
    words = key_words("key", key)
    room = _room("num_edges", num_edges, graph.relational.num_edges)
    return _sampled(graph, columns, words, layers, room)


def _layers(name: str, given: Any, types: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """For each layer how many nodes of each type."""
    wanted = f"{name} must be a sequence with a number for each layer, or a mapping by node type"
    if not is_sequence(given):
        raise TypeError(f"{wanted}, got {arguments.described(given)}")
    layers = []
    for i, layer in enumerate(given):
        by_type = layer if isinstance(layer, Mapping) else dict.fromkeys(types, layer)
        for kind in by_type:
            if kind not in types:
                raise ValueError(
                    f"{name}[{i}] has the node type {kind!r}, which is none of the graph's: "
                    f"{', '.join(map(repr, types))}, got {layer!r}"
                )
        sizes = {k: arguments.check_size(f"{name}[{i}]", size) for k, size in by_type.items()}
        layers.append(tuple(sizes.get(kind, 0) for kind in types))
    if not layers:
        raise ValueError(f"{wanted}, got none")
    return tuple(layers)


def _sampled_plain(
    graph: HeteroGraph,
    seeds: tuple[Array, ...],
    key: tuple[Array, Array],
    layers: tuple[tuple[int, ...], ...],
    room: int,
) -> Subgraph:
    relational = graph.relational
    nodes, types = relational.nodes, relational.edge_types
    size, dtype, slices = relational.num_nodes, nodes.indptr.dtype, relational.node_slices
    kinds = [as_nodes(ids, size, dtype) for ids in seeds]
    bounds = jnp.asarray([0, *(rows.stop for rows in slices)], dtype)
    sizes = [rows.stop - rows.start for rows in slices]
    kind_of = np.full(size, PADDING)
    for number, rows in enumerate(slices):
        kind_of[rows] = number
    columns = [[ids] for ids in kinds]
    is_chosen = jnp.zeros(size, bool)
    budget = jnp.zeros((2, size), jnp.uint32)
    new = jnp.concatenate(kinds)
    for layer, wanted in enumerate(layers):
        most = max(wanted, default=0)
        if not most:
            continue
        place = jnp.where(new < 0, size, new)
        steps = jnp.arange(new.shape[0], dtype=dtype)
        first = jnp.full(size, new.shape[0], dtype).at[place].min(steps, mode="drop")
        new = jnp.where(take_ids(first, new) == steps, new, PADDING)  # a seed counts once
        is_chosen = is_chosen.at[place].set(True, mode="drop")
        budget = _added(graph, new, budget)
        high, low = budget.astype(jnp.float32)
        total = high * jnp.float32(2**_WORD) + low
        weights = jnp.where(is_chosen, jnp.float32(0), total * total)
        sums = running_sums(bounds, jnp.asarray(kind_of, dtype), weights)
        starts, degrees = bounds[:-1], jnp.asarray(sizes, dtype)
        places, counts = weighted(sums, starts, degrees, most, key, layer, replace=False)
        steps = jnp.arange(most, dtype=dtype)[None]
        drawn = jnp.where(steps < counts[:, None], starts[:, None] + places, PADDING)
        parts = [drawn[number, :count] for number, count in enumerate(wanted)]
        for column, part in zip(columns, parts, strict=True):
            column.append(part.astype(dtype))
        new = jnp.concatenate([part.astype(dtype) for part in parts])
    by_type = [jnp.concatenate(column) for column in columns]
    own = _induced_plain(nodes, jnp.concatenate(by_type), room)
    found = Relations.of(relational).block(own.graph, take_ids(types, own.graph.edge_ids))
    inner = replace(
        found.nodes,
        edge_ids=take_ids(nodes.edge_ids, own.graph.edge_ids),
        num_input_edges=jnp.asarray(nodes.num_input_edges, dtype),
    )
    found = replace(
        found,
        nodes=inner,
        node_type_sizes=tuple(ids.shape[0] for ids in by_type),
        node_type_names=graph.node_types,
    )
    typed = replace(graph, relational=found, graphs=(None,) * len(graph.edge_types))
    return replace(own, graph=typed)


_sampled = jax.jit(_sampled_plain, static_argnums=(3, 4))


def _added(graph: HeteroGraph, new: Array, budget: Array) -> Array:
    """Budgets with what the edges into new nodes give: integers, whose order of sums is free."""
    nodes, types = graph.relational.nodes, graph.relational.edge_types
    size, num_edges = nodes.num_src, nodes.num_edges
    mask = jnp.uint32(2**_WORD - 1)

    def visit(budget: Array, row: Array, edge: Array) -> Array:
        starts, degrees = row_bounds(nodes.indptr, take_ids(new, row), num_edges)
        rel = take_ids(types, edge)
        begin = first_of(types, starts, starts + degrees, rel)
        end = first_of(types, begin, starts + degrees, rel + 1)
        count = jnp.maximum(end - begin, 1).astype(jnp.uint32)
        share = jnp.uint32(2**_SHARE_BITS) // count
        source = take_ids(nodes.cols, edge)
        there = in_range(source, size) & in_range(rel, graph.relational.num_relations)
        source = jnp.where(there, source, size)
        high = budget[0].at[source].add(share >> _WORD, mode="drop")
        low = budget[1].at[source].add(share & mask, mode="drop")
        high = jnp.minimum(high + (low >> _WORD), jnp.uint32(2**31))  # no sum goes round
        return jnp.stack([high, low & mask])

    return edges_into(nodes, new, CHUNK, visit, budget)
