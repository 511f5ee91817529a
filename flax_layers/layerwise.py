"""Models over all nodes of a large graph: layer by layer, in chunks of nodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from flax_layers._base import Stack, check_features, check_positive, linear
from flax_layers.graph import GCN, GIN, SAGE, gcn_norm
from flax_layers.graph_attention import GAT, GATv2, GraphTransformer
from flax_layers.hetero import HeteroModel
from flax_layers.relational import RGCN
from flax_layers.relational_attention import HGT, RGAT
from jax_gnn import Graph, HeteroGraph, RelationalGraph
from jax_gnn.extend import as_array, check_instance, described, take
from jax_gnn.sampling import Blocks, NodeChunks, fetch_rows, node_chunks

TAKEN = GCN, GIN, SAGE, GAT, GATv2, GraphTransformer, RGCN, RGAT, HGT


def layerwise_inference(
    model: Stack | HeteroModel,
    graph: Graph | RelationalGraph | HeteroGraph,
    x: Any,
    *,
    chunk_edges: int = 2**20,
    **edge_values: Any,
) -> Any:
    """What ``model(graph, x)`` gives without dropout, of graphs that are too large for that.

    A layer is computed for all nodes before the next one, in chunks of nodes, each with all edges
    into its nodes. So nothing is sampled, and nothing is computed twice. Chunks have one shape: a
    layer is compiled once.

    Args:
        model: A `GCN`, `GIN`, `SAGE`, `GAT`, `GATv2`, `GraphTransformer`, `RGCN`, `RGAT` or `HGT`,
            perhaps one after maps by type.
        graph: What it takes. A `Graph` of the host (`jax_gnn.host_arrays`) stays there.
        x: Node features, as the model takes them. Where they are of numpy, they and the results of
            each layer are in the host's memory, and only what a chunk reads is on the device.
        chunk_edges: About how many edges a chunk has: see `jax_gnn.sampling.node_chunks`.
        **edge_values: Such as `edge_weight` or `edge_attr`, as the model takes them, ``(num_edges,
            …)`` in the graph's order.

    Returns:
        ``(num_nodes, *batch, out_features)``, of numpy where x is; of a `HeteroGraph` and x by type
        the same by type.

    Raises:
        TypeError: The model is none of these, or the graph is none that it takes.
        ValueError: A shape does not fit, `chunk_edges` is not positive, or the graph is traced.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> model = SAGE(4, 16, 3, rngs=nnx.Rngs(0))
        >>> layerwise_inference(model, graph, jnp.ones((3, 4)), chunk_edges=2).shape
        (3, 3)
    """
    relational: Any = graph.relational if isinstance(graph, HeteroGraph) else graph
    by_type = isinstance(graph, HeteroGraph) and isinstance(x, Mapping)
    on_host = any(isinstance(each, np.ndarray) for each in jax.tree.leaves(x))
    stack: Any = model.model if isinstance(model, HeteroModel) else model
    if type(stack) not in TAKEN:
        names = ", ".join(each.__name__ for each in TAKEN)
        raise TypeError(f"model must be one of {names}, got {described(model)}")
    check_instance("graph", relational, stack.convolution.structure)
    check_positive(chunk_edges=chunk_edges)
    if isinstance(model, HeteroModel):
        x = model.joined(relational, x)
        x = np.asarray(x) if on_host else x
    elif by_type:
        x = graph.join(x)  # type: ignore[union-attr]
    if x is not None and not on_host:
        x = as_array("x", x)
    if x is not None:
        check_features(x, relational.num_nodes, stack.in_features)
    values = {name: each for name, each in edge_values.items() if each is not None}
    for name, each in values.items():
        if np.shape(each)[:1] != (relational.num_edges,):
            raise ValueError(
                f"{name} must have num_edges = {relational.num_edges} rows, got shape "
                f"{np.shape(each)}"
            )
    chunks = node_chunks(relational, chunk_edges)
    if len(chunks) > 1:
        run = _on_host if on_host else _on_device
        y = run(*nnx.split(stack), chunks, x, values)
    else:
        y = stack(relational, x, **values, deterministic=True)
        y = np.asarray(y) if on_host else y
    return graph.split(jnp.asarray(y)) if by_type else y  # type: ignore


def by_layer(model: Any, chunks: NodeChunks, x: Any, values: Any) -> Array:
    """A stack over all nodes, also inside ``jax.jit``.

    Args:
        model: The stack.
        chunks: Those of the graph.
        x: Features of all nodes, or None.
        values: Such as weights, of all edges, by name.
    """
    graph, of_nodes = chunks.graph, _node_values(model, chunks.graph, values)
    for number in range(1, model.num_layers + 1):
        if x is None:  # rows of weights are summed, by the numbers of nodes
            x = _layer(model, number, graph, x, values)
            continue

        def of_chunk(i: Array, number: int = number, x: Array = x) -> Array:
            block = chunks.block(i)
            return _of_block(model, number, block, *_taken(take, block, x, of_nodes, values))

        x = chunks.joined(jax.lax.map(of_chunk, jnp.arange(len(chunks))))
    return x


@functools.partial(jax.jit, static_argnums=0)
def _on_device(graphdef: Any, state: Any, *operands: Any) -> Array:
    return by_layer(nnx.merge(graphdef, state), *operands)


def _on_host(graphdef: Any, state: Any, chunks: NodeChunks, x: Any, values: Any) -> np.ndarray:
    """The same of features on the host, where results go, too."""
    model = nnx.merge(graphdef, state)
    of_nodes = _node_values(model, chunks.graph, values)
    of_nodes, values, starts = jax.device_get((of_nodes, values, chunks.starts))
    for number in range(1, model.num_layers + 1):
        y: Any = None
        for i, (start, stop) in enumerate(pairwise(starts)):
            block = chunks.block(i)
            own = _taken(fetch_rows, jax.device_get(block), x, of_nodes, values)
            rows = _compiled(graphdef, number, state, block, *own)
            y = np.empty((starts[-1], *rows.shape[1:]), rows.dtype) if y is None else y
            y[start:stop] = rows[: stop - start]
        x = y
    return x


def _taken(take: Any, block: Blocks, x: Any, of_nodes: Any, values: Any) -> Any:
    """What a chunk reads of arrays of all nodes and edges."""
    nodes, (edges,) = block.node_ids, block.edge_ids
    return (
        take(x, nodes),
        {name: take(each, nodes) for name, each in of_nodes.items()},
        {name: take(each, edges) for name, each in values.items()},
    )


def _of_block(
    model: Any,
    number: int,
    block: Blocks,
    x: Array,
    of_nodes: Any,
    values: Any,
) -> Array:
    """A layer of a chunk: a row for each of its nodes."""
    if isinstance(model, HGT):
        of_nodes = {**of_nodes, "node_types": block.node_types}
    return _layer(model, number, block.graphs[0], x, {**values, **of_nodes})


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled(graphdef: Any, number: int, state: Any, *given: Any) -> Array:
    return _of_block(nnx.merge(graphdef, state), number, *given)


def _layer(model: Any, number: int, graph: Any, x: Any, values: Any) -> Array:
    """A layer of a stack, and what follows it."""
    if model.dropout_in_convolutions:
        values = {**values, "deterministic": True}
    is_last = number == model.num_layers
    convolve = model._convolve if is_last and model.output is None else model._convolve_and_relu
    y = convolve(number, graph, x, **values)
    return linear(model.output, y) if is_last and model.output is not None else y


def _node_values(model: Any, graph: Any, values: Any) -> dict[str, Array]:
    """What a chunk must be told of its nodes: of a GCN, scales of the whole graph."""
    first = model.convolutions[0]
    if isinstance(model, GCN) and first.normalize:
        weight, loops = values.get("edge_weight"), first.add_self_loops
        return {"node_scale": gcn_norm(graph, weight, add_self_loops=loops)}
    return {}
