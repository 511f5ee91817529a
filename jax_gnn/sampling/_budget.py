"""Subgraphs with several node types by HGT's budget sampling: a number of nodes of each type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, take_ids
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import KeyWords, key_words
from jax_gnn._ops.sample_block.api import weighted
from jax_gnn.hetero import HeteroGraph
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._relational import Relations, is_sequence, join_seeds, relation_start
from jax_gnn.sampling._rows import Ids, as_nodes, row_bounds
from jax_gnn.sampling._search import without_repeats
from jax_gnn.sampling._subgraphs import CHUNK, Subgraph, check_room, induce, visit_edges
from jax_gnn.sampling._weights import prefix_sums

_SHARE_BITS = 28  # of 1 / degree, as an integer
_WORD_BITS = 16  # of a budget's lower word, which a chunk's edges cannot overflow


@public
def hgt_subgraph(
    graph: HeteroGraph,
    seeds: Mapping[str, Ids],
    num_nodes: Sequence[int | Mapping[str, int]],
    key: Array,
    *,
    num_edges: int | None = None,
) -> Subgraph:
    """Draw seeds and nodes around them, some of each type: HGT's budget sampling (HGSampling).

    Hu, Dong, Wang and Sun, "Heterogeneous graph transformer", WWW 2020, algorithm 1, but for all
    types at once. Works inside ``jax.jit`` and outside; all shapes follow from the numbers of seeds
    and nodes. A node's budget is the sum of 1 / (edges into v by the relation) over its edges into
    chosen nodes v. In each layer, nodes of each type are drawn one after another in proportion to
    the square of their budget: their edges count from the next layer on. Takes time in proportion
    to the edges into the nodes, and to all nodes for each layer. The same key gives the same nodes
    on every device.

    Args:
        graph: graph with several types of nodes.
        seeds: by node type ``(count,)`` integers. -1, as any id out of range, is padding; so is a
            repeated node.
        num_nodes: for each layer the number of nodes to draw of each type: a number for all types,
            or a mapping by type, 0 for others.
        key: key of ``jax.random``.
        num_edges: room for edges; by default for all of the graph's. Further edges, the last by
            destination, are left out, and ``overflow`` is set.

    Returns:
        A :class:`Subgraph` whose ``graph`` is a :class:`jax_gnn.HeteroGraph` of the same types. The
        nodes of a type are its seeds, then those of each layer, padded if fewer can be drawn.
        ``node_ids`` are ids of rows of ``graph.join(x_dict)``. Values of edges are given by type,
        as for the whole graph.

    Raises:
        ValueError: A number is negative, there is no layer, or a type is none of the graph's.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1, 1], [0, 0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> part = hgt_subgraph(graph, {"paper": [0]}, (2, 2), jax.random.key(0), num_edges=6)
        >>> part.graph.num_nodes
        {'author': 4, 'paper': 5}
        >>> part.node_ids[part.graph.slices["paper"]]
        Array([ 2, -1, -1,  4, -1], dtype=int32)
    """
    arguments.check_instance("graph", graph, HeteroGraph)
    graph = replace(graph, relational=graph.relational.check(), graphs=())
    joined = join_seeds(graph, seeds)
    types = [name for name in graph.node_types if name in seeds]  # the order of `join_seeds`
    stops = np.cumsum([np.shape(seeds[name])[0] for name in types], dtype=int)
    by_type = dict(zip(types, jnp.split(joined, stops[:-1]), strict=True)) if types else {}
    columns = tuple(by_type.get(name, joined[:0]) for name in graph.node_types)
    layers = _check_layers("num_nodes", num_nodes, graph.node_types)
    words = key_words("key", key)
    room = check_room("num_edges", num_edges, graph.relational.num_edges)
    return _sample(graph, columns, words, layers, room)


def _check_layers(name: str, layers: Any, types: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return for each layer the number of nodes of each type."""
    expected = f"{name} must be a sequence with a number for each layer, or a mapping by node type"
    if not is_sequence(layers):
        raise TypeError(f"{expected}, got {arguments.described(layers)}")
    checked = []
    for i, layer in enumerate(layers):
        by_type = layer if isinstance(layer, Mapping) else dict.fromkeys(types, layer)
        for node_type in by_type:
            if node_type not in types:
                raise ValueError(
                    f"{name}[{i}] has the node type {node_type!r}, which is none of the graph's: "
                    f"{', '.join(map(repr, types))}, got {layer!r}"
                )
        sizes = {k: arguments.check_size(f"{name}[{i}]", size) for k, size in by_type.items()}
        checked.append(tuple(sizes.get(node_type, 0) for node_type in types))
    if not checked:
        raise ValueError(f"{expected}, got none")
    return tuple(checked)


@jit("layers", "room")
def _sample(
    graph: HeteroGraph,
    seeds: tuple[Array, ...],
    key: KeyWords,
    layers: tuple[tuple[int, ...], ...],
    room: int,
) -> Subgraph:
    relational = graph.relational
    nodes, slices = relational.nodes, relational.node_slices
    num_nodes, dtype = relational.num_nodes, nodes.indptr.dtype
    # Nodes of a type are consecutive: types are the rows of a CSR structure of nodes.
    starts = jnp.asarray([rows.start for rows in slices], dtype)
    degrees = jnp.asarray([rows.stop - rows.start for rows in slices], dtype)
    bounds = jnp.asarray([0, *(rows.stop for rows in slices)], dtype)
    node_types = np.full(num_nodes, PADDING)
    for number, rows in enumerate(slices):
        node_types[rows] = number
    columns = [[as_nodes(ids, num_nodes, dtype)] for ids in seeds]
    is_chosen = jnp.zeros(num_nodes, bool)
    budget = jnp.zeros((2, num_nodes), jnp.uint32)
    new = jnp.concatenate([column[0] for column in columns])
    for layer, counts in enumerate(layers):
        fanout = max(counts, default=0)
        if not fanout:
            continue
        new, _ = without_repeats(new, num_nodes)  # a repeated seed counts once
        is_chosen = is_chosen.at[jnp.where(new < 0, num_nodes, new)].set(True, mode="drop")
        budget = _add_budget(graph, new, budget)
        high, low = budget.astype(jnp.float32)
        total = high * jnp.float32(2**_WORD_BITS) + low
        weights = jnp.where(is_chosen, jnp.float32(0), total * total)
        sums = prefix_sums(bounds, jnp.asarray(node_types, dtype), weights)
        offsets, num_drawn = weighted(sums, starts, degrees, fanout, key, layer, replace=False)
        steps = jnp.arange(fanout, dtype=dtype)[None]
        drawn = jnp.where(steps < num_drawn[:, None], starts[:, None] + offsets, PADDING)
        parts = [drawn[number, :count].astype(dtype) for number, count in enumerate(counts)]
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
        new = jnp.concatenate(parts)
    by_type = [jnp.concatenate(column) for column in columns]
    subgraph = induce(nodes, jnp.concatenate(by_type), room)
    edge_types = take_ids(relational.edge_types, subgraph.graph.edge_ids)
    result = Relations.from_graph(relational).block(subgraph.graph, edge_types)
    inner = replace(
        result.nodes,
        edge_ids=take_ids(nodes.edge_ids, subgraph.graph.edge_ids),
        num_input_edges=jnp.asarray(nodes.num_input_edges, dtype),
    )
    result = replace(
        result,
        nodes=inner,
        node_type_sizes=tuple(ids.shape[0] for ids in by_type),
        node_type_names=graph.node_types,
    )
    typed = replace(graph, relational=result, graphs=(None,) * len(graph.edge_types))
    return replace(subgraph, graph=typed)


def _add_budget(graph: HeteroGraph, new: Array, budget: Array) -> Array:
    """Return the budgets, ``(2, num_nodes)`` words, plus the shares of edges into new nodes.

    Integer sums do not depend on the order of the edges.
    """
    nodes, types = graph.relational.nodes, graph.relational.edge_types
    num_nodes, num_edges = nodes.num_src, nodes.num_edges
    mask = jnp.uint32(2**_WORD_BITS - 1)

    def visit(budget: Array, row: Array, edge: Array) -> Array:
        starts, degrees = row_bounds(nodes.indptr, take_ids(new, row), num_edges)
        rel = take_ids(types, edge)
        begin = relation_start(types, starts, starts + degrees, rel)
        stop = relation_start(types, begin, starts + degrees, rel + 1)
        count = jnp.maximum(stop - begin, 1).astype(jnp.uint32)
        share = jnp.uint32(2**_SHARE_BITS) // count
        source = take_ids(nodes.cols, edge)
        valid = in_range(source, num_nodes) & in_range(rel, graph.relational.num_relations)
        source = jnp.where(valid, source, num_nodes)
        high = budget[0].at[source].add(share >> _WORD_BITS, mode="drop")
        low = budget[1].at[source].add(share & mask, mode="drop")
        high = jnp.minimum(high + (low >> _WORD_BITS), jnp.uint32(2**31))  # saturates
        return jnp.stack([high, low & mask])

    return visit_edges(nodes, new, CHUNK, visit, budget)
