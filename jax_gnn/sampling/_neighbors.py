"""Neighbours of seeds, drawn at static shapes inside ``jax.jit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, bounded, in_range, index_dtype, is_traced, signed
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.sampling import _host
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._native import Drawn, block, uniform
from jax_gnn.sampling._random import key_words


@public
def sample_neighbors(
    graph: Graph,
    seeds: Any,
    fanouts: Sequence[int],
    key: Any,
    *,
    replace: bool = False,
    tree: bool = False,
    capacity: int | Sequence[int | None] | None = None,
) -> Blocks:
    """Draws neighbours of seeds, neighbours of these, and so on: a bipartite graph for each layer.

    Works inside ``jax.jit`` and outside, on the device where the graph lies. A graph of the host,
    built inside :func:`jax_gnn.host_arrays` or with memory maps, stays there: for seeds of numpy it
    gives numpy's blocks, by compiled threads, and no device is asked. All shapes follow from the
    number of seeds, ``fanouts`` and ``capacity``, so that an epoch is one compiled program.
    Edges are drawn into each node, as messages run: each of a node's edges is equally likely, or
    all are taken where there are no more than ``fanout``. All nodes of a layer are sampled anew for
    the next one. The same key gives the same blocks on every device.

    Args:
        graph: of one kind of nodes, :class:`jax_gnn.Graph`.
        seeds: ``(num_seeds,)`` integers, the nodes whose outputs are wanted. -1, as any id out of
            range, is padding: it has no neighbours. A seed may be given twice.
        fanouts: how many edges to draw into each node, for each layer, that of the seeds first.
        key: of ``jax.random``; or its words, uint32 of numpy, which need no device.
        replace: whether one edge may be drawn twice; then a node with an edge has ``fanout``.
        tree: whether each drawn edge has a source of its own. This needs no sort, but a node that
            several edges start from is computed for each. By default nodes are distinct.
        capacity: at most so many sources of each block, in the order of ``fanouts``; None leaves
            the bound that follows from ``fanouts`` and the graph. Edges from nodes beyond it are
            left out, and ``overflow`` is set. One number is for all layers.

    Returns:
        The blocks, the outermost layer's first.

    Raises:
        TypeError: ``graph``, ``seeds`` or ``key`` is something else, or a number is no integer.
        ValueError: there are no fanouts, one is not positive, a capacity is smaller than the nodes
            that the layer is sampled for, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> blocks = sample_neighbors(graph, jnp.array([2]), (2, 2), jax.random.key(0))
        >>> features = jnp.arange(4.0)[:, None]
        >>> x = features.at[blocks.node_ids].get(mode="fill", fill_value=0)

    Source:
        Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS
        2017.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a jax_gnn.Graph, got {type(graph).__name__}")
    graph.check_arrays()
    if graph.num_src != graph.num_dst:
        raise ValueError(
            "graph must have one kind of nodes, whose neighbours have neighbours, got "
            f"num_src={graph.num_src} and num_dst={graph.num_dst}"
        )
    arrays = graph.indptr, graph.cols
    on_host = all(isinstance(ids, np.ndarray) for ids in arrays)
    on_host &= not isinstance(seeds, jax.Array) and not is_traced(key)
    seeds = arguments.check_ids("seeds", seeds, traced=not on_host)
    fanouts = check_fanouts("fanouts", fanouts)
    replace = arguments.check_flag("replace", replace)
    tree = arguments.check_flag("tree", tree)
    sizes = layer_sizes(seeds.shape[0], fanouts, graph, capacity, replace=replace, tree=tree)
    if on_host:
        words = _host.host_words("key", key)
        return _host.sample(*arrays, seeds, words, fanouts, replace, tree, sizes)
    words = key_words("key", key)
    sample = _sample if is_traced(graph, seeds, words) else _compiled
    # Only what is read: a graph's other half is not moved to where it is sampled.
    return sample(*map(signed, arrays), seeds, words, fanouts, replace, tree, sizes)


def check_fanouts(name: str, fanouts: Any) -> tuple[int, ...]:
    """Positive integers, one for each layer."""
    wanted = f"{name} must be a sequence of positive integers, one for each layer"
    if isinstance(fanouts, str) or not hasattr(fanouts, "__iter__"):
        raise TypeError(f"{wanted}, got {arguments.described(fanouts)}")
    checked = tuple(arguments.check_integer(f"{name}[{i}]", f) for i, f in enumerate(fanouts))
    if not checked or min(checked) < 1:
        raise ValueError(f"{wanted}, got {list(checked)}")
    return checked


def layer_sizes(
    num_seeds: int,
    fanouts: tuple[int, ...],
    graph: Graph,
    capacity: Any,
    *,
    replace: bool,
    tree: bool,
) -> tuple[tuple[int, int], ...]:
    """How much room each block has, of edges and of sources, the seeds' block first."""
    if capacity is None or not hasattr(capacity, "__iter__"):
        capacity = (capacity,) * len(fanouts)
    capacity = tuple(capacity)
    if len(capacity) != len(fanouts):
        raise ValueError(
            f"capacity must be an integer, or one for each of {len(fanouts)} fanouts, got "
            f"{len(capacity)}"
        )
    sizes = []
    count = num_seeds
    for i, (fanout, bound) in enumerate(zip(fanouts, capacity, strict=True)):
        edges = count * fanout
        sources = count + edges
        if not tree:  # nodes are distinct, but seeds may come twice
            if not replace:  # and have each edge once
                edges = min(edges, graph.num_edges + num_seeds * fanout)
            sources = count + min(edges, graph.num_dst)
        if bound is not None:
            bound = arguments.check_integer(f"capacity[{i}]", bound)
            if tree:
                raise ValueError("capacity bounds distinct nodes: it must be None for tree=True")
            if bound < count:
                raise ValueError(
                    f"capacity[{i}] must be at least {count}, the nodes that are sampled for, got "
                    f"{bound}"
                )
            sources = min(sources, bound)
        index_dtype(count * fanout, sources)  # numbers below these are computed with
        sizes.append((edges, sources))
        count = sources
    return tuple(sizes)


def _sample(
    indptr: Array,
    cols: Array,
    seeds: Array,
    key: tuple[Array, Array],
    fanouts: tuple[int, ...],
    replace: bool,
    tree: bool,
    sizes: tuple[tuple[int, int], ...],
) -> Blocks:
    num_nodes, num_whole = indptr.shape[0] - 1, cols.shape[0]
    nodes = bounded(seeds, num_nodes).astype(indptr.dtype)
    nodes = jnp.where(in_range(nodes, num_nodes), nodes, PADDING)
    overflow = jnp.zeros((), bool)
    graphs: list[Graph] = []
    for layer, (fanout, (num_edges, num_src)) in enumerate(zip(fanouts, sizes, strict=True)):
        starts, degrees = row_bounds(indptr, nodes, num_whole)
        offsets, counts = uniform(degrees, fanout, key, layer, replace=replace)
        drawn = Drawn(nodes, starts, offsets, counts, cols)
        graph, nodes, over = block(drawn, num_nodes, num_edges, num_src, tree=tree)
        overflow |= over
        graphs.insert(0, graph)
    return Blocks(tuple(graphs), nodes, overflow)


_compiled = jax.jit(_sample, static_argnums=(4, 5, 6, 7))


def row_bounds(indptr: Array, nodes: Array, num_edges: int) -> tuple[Array, Array]:
    """Where the rows of nodes start, and how long they are; padding has an empty one.

    Whatever ``indptr`` holds, they lie within the edges.
    """
    there = in_range(nodes, indptr.shape[0] - 1)
    place = jnp.where(there, nodes, 0)
    starts = jnp.clip(indptr[place], 0, num_edges)
    ends = jnp.clip(indptr[place + 1], starts, num_edges)
    return starts, jnp.where(there, ends - starts, 0)
