"""Inference of a model for all nodes of a large graph: layer by layer, in chunks of nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import check_positive
from flax_layers.gin import GIN
from flax_layers.graph import GCN, SAGE, gcn_norm
from flax_layers.graph_attention import GAT, GATv2, GraphTransformer
from flax_layers.hetero import HeteroModel
from flax_layers.relational import RGCN
from flax_layers.relational_attention import HGT, RGAT
from jax_gnn import Graph, HeteroGraph, RelationalGraph
from jax_gnn.extend import as_array, check_instance, described, take
from jax_gnn.sampling import Blocks, NodeChunks, fetch_rows, node_chunks
from jax_gnn.sharding import PartFiles

STACKS = GCN, GIN, SAGE, GAT, GATv2, GraphTransformer, RGCN, RGAT, HGT

Values = Mapping[str, Array]
"""Arrays by the name of an argument of the model's call."""

ModuleDef = nnx.GraphDef[Any]
ModuleState = nnx.State[Any, Any]


def layerwise_inference(
    model: base.Stack | HeteroModel,
    graph: Graph | RelationalGraph | HeteroGraph | PartFiles,
    x: ArrayLike | Mapping[str, ArrayLike] | None,
    *,
    chunk_edges: int = 2**20,
    **edge_values: ArrayLike | None,
) -> Any:
    """Return ``model(graph, x)`` without dropout, for graphs that are too large for one call.

    A layer is computed for all nodes before the next layer, in chunks of nodes, each with all edges
    into its nodes. So nothing is sampled, and nothing is computed twice. Chunks have one shape: a
    layer is compiled once.

    Args:
        model: A `GCN`, `GIN`, `SAGE`, `GAT`, `GATv2`, `GraphTransformer`, `RGCN`, `RGAT` or `HGT`,
            or a `HeteroModel` of one.
        graph: The graph, as the model takes it. A `Graph` of the host (`jax_gnn.host_arrays`) stays
            there. Of `jax_gnn.sharding.PartFiles`, each part is a chunk, read from its file in each
            layer; x is then an array of numpy, perhaps a memory map.
        x: Node features, as the model takes them. If they are of numpy, they and the results of
            each layer are in the host's memory, and only the rows that a chunk reads on the device.
        chunk_edges: Approximate number of edges of a chunk: see `jax_gnn.sampling.node_chunks`.
        **edge_values: Values of edges such as `edge_weight` or `edge_features`, as the model takes
            them, ``(num_edges, …)`` in the graph's order.

    Returns:
        ``(num_nodes, *batch, out_features)``, of numpy if x is; a mapping by type if the graph is a
        `HeteroGraph` and x by type.

    Raises:
        TypeError: The model is none of these, or does not take the graph.
        ValueError: A shape does not fit, `chunk_edges` is not positive, or the graph is traced.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> model = SAGE(4, 16, 3, rngs=nnx.Rngs(0))
        >>> layerwise_inference(model, graph, jnp.ones((3, 4)), chunk_edges=2).shape
        (3, 3)
    """
    edges: Any = graph.relational if isinstance(graph, HeteroGraph) else graph
    in_files = isinstance(graph, PartFiles)
    on_host = any(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(x))
    if in_files and not isinstance(x, np.ndarray):
        raise TypeError(f"x must be an array of numpy for PartFiles, got {described(x)}")
    stack: Any = model.model if isinstance(model, HeteroModel) else model
    if type(stack) not in STACKS:
        names = ", ".join(kind.__name__ for kind in STACKS)
        raise TypeError(f"model must be one of {names}, got {described(model)}")
    if in_files and isinstance(model, HeteroModel):
        raise TypeError("model must be a model of nodes of one width for PartFiles")
    structure = edges.block(0).graphs[0] if in_files else edges
    check_instance("graph", structure, stack.convolution.structure)
    check_positive(chunk_edges=chunk_edges)
    # Features of all nodes as one array, of the host or of the device.
    rows: Any = x
    if isinstance(model, HeteroModel):
        rows = model.joined(edges, rows)
        rows = np.asarray(rows) if on_host else rows
    elif isinstance(graph, HeteroGraph) and isinstance(x, Mapping):
        rows = graph.join(x)
    if rows is not None:
        rows = rows if on_host else as_array("x", rows)
        base.check_features(rows, edges.num_nodes, stack.in_features)
    values: dict[str, Any] = {
        name: array for name, array in edge_values.items() if array is not None
    }
    for name, array in values.items():
        if np.shape(array)[:1] != (edges.num_edges,):
            raise ValueError(
                f"{name} must have num_edges = {edges.num_edges} rows, got shape {np.shape(array)}"
            )
    chunks = edges if in_files else node_chunks(edges, chunk_edges)
    y: Any
    # A single chunk is the whole graph.
    if in_files or len(chunks) > 1:
        run = _run_on_host if on_host else _run_on_device
        y = run(*nnx.split(stack), chunks, rows, values)
    else:
        y = stack(edges, rows, **values, deterministic=True)
        y = np.asarray(y) if on_host else y
    if isinstance(graph, HeteroGraph) and isinstance(x, Mapping):
        return graph.split(jnp.asarray(y))
    return y


def by_layer(model: Any, chunks: NodeChunks, x: Array | None, edge_values: Values) -> Array:
    """Return the result of a stack for all nodes; works inside ``jax.jit``.

    Args:
        model: The stack.
        chunks: Chunks of the graph.
        x: Features of all nodes, or None.
        edge_values: Values of all edges, such as weights, by name.
    """
    graph, node_values = chunks.graph, _node_values(model, chunks.graph, edge_values)
    for number in range(1, model.num_layers + 1):
        if x is None:  # the first layer reads rows of its weights, by node
            x = _apply_layer(model, number, graph, x, edge_values)
            continue

        def apply_chunk(i: Array, number: int = number, x: Array = x) -> Array:
            block = chunks.block(i)
            operands = _chunk_rows(take, block, x, node_values, edge_values)
            return _apply_to_block(model, number, block, *operands)

        # One compiled body for all chunks, one after another: memory for one chunk's rows.
        x = chunks.joined(jax.lax.map(apply_chunk, jnp.arange(len(chunks))))
    return jnp.asarray(x)


@functools.partial(jax.jit, static_argnums=0)
def _run_on_device(
    graphdef: ModuleDef,
    state: ModuleState,
    chunks: NodeChunks,
    x: Array | None,
    edge_values: Values,
) -> Array:
    return by_layer(nnx.merge(graphdef, state), chunks, x, edge_values)


def _run_on_host(
    graphdef: ModuleDef,
    state: ModuleState,
    chunks: NodeChunks | PartFiles,
    x: np.ndarray,
    edge_values: Values,
) -> np.ndarray:
    """Return the result of `by_layer`, with features and results of each layer on the host."""
    model: Any = nnx.merge(graphdef, state)
    graph, edge_values = getattr(chunks, "graph", chunks), jax.device_get(edge_values)
    node_values = jax.device_get(_node_values(model, graph, edge_values))
    for number in range(1, model.num_layers + 1):
        # The result is allocated once a first chunk shows its width and dtype.
        y: Any = None
        for i in range(len(chunks)):
            block = chunks.block(i)
            # Rows are gathered on the host, so that only these cross to the device.
            on_host = jax.device_get(block)
            operands = _chunk_rows(fetch_rows, on_host, x, node_values, edge_values)
            rows = _compiled_layer(graphdef, number, state, block, *operands)
            y = np.empty((len(x), *rows.shape[1:]), rows.dtype) if y is None else y
            _put_rows(y, on_host, rows)
        x = y
    return x


def _put_rows(y: np.ndarray, block: Blocks, rows: ArrayLike) -> None:
    """Write the rows of a chunk's own nodes, of which padding comes last."""
    ids = np.asarray(block.node_ids)[: block.num_seeds]
    ids = ids[ids >= 0]
    y[ids] = np.asarray(rows)[: len(ids)]


def _chunk_rows(
    take: Callable[..., Any],
    block: Blocks,
    x: Array | np.ndarray,
    node_values: Values,
    edge_values: Values,
) -> tuple[Array, Values, Values]:
    """Return the rows of a chunk's sources and edges from arrays of all nodes and edges."""
    nodes, (edges,) = block.node_ids, block.edge_ids
    return (
        take(x, nodes),
        {name: take(array, nodes) for name, array in node_values.items()},
        {name: take(array, edges) for name, array in edge_values.items()},
    )


def _apply_to_block(
    model: Any, number: int, block: Blocks, x: Array, node_values: Values, edge_values: Values
) -> Array:
    """Apply a layer to a chunk; returns a row for each of its nodes."""
    values: dict[str, Any] = {**edge_values, **node_values}
    if isinstance(model, HGT):
        values["node_types"] = block.node_types
    return _apply_layer(model, number, block.graphs[0], x, values)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled_layer(
    graphdef: ModuleDef,
    number: int,
    state: ModuleState,
    block: Blocks,
    x: Array,
    node_values: Values,
    edge_values: Values,
) -> Array:
    model = nnx.merge(graphdef, state)
    return _apply_to_block(model, number, block, x, node_values, edge_values)


def _apply_layer(
    model: Any, number: int, graph: Graph | RelationalGraph, x: Array | None, values: Values
) -> Array:
    """Apply a convolution of a stack, its activation and, after the final one, its output map."""
    options: dict[str, Any] = dict(values)
    if model.dropout_in_convolutions:
        options["deterministic"] = True
    # The final convolution has no activation, unless an output map follows.
    is_final = number == model.num_layers
    convolve = model._convolve if is_final and model.output is None else model._convolve_and_relu
    y: Array = convolve(number, graph, x, **options)
    return base.linear(model.output, y) if is_final and model.output is not None else y


def _node_values(model: Any, graph: Any, edge_values: Values) -> Values:
    """Return values of nodes that chunks need from the whole graph: the scales of a GCN."""
    # A chunk has all edges into its nodes, but not those out of its sources.
    first = model.convolutions[0]
    if not isinstance(model, GCN) or not first.normalization:
        return {}
    weight = edge_values.get("edge_weight")
    norm: Any = functools.partial(gcn_norm, add_self_loops=first.add_self_loops)
    if not isinstance(graph, PartFiles):
        return {"node_scale": norm(graph, weight)}
    scale: Any = np.empty(graph.num_nodes)
    norm = jax.jit(norm)
    for i in range(len(graph)):
        block = graph.block(i)
        rows = None if weight is None else fetch_rows(np.asarray(weight), block.edge_ids[0])
        scales = norm(block.graphs[0], rows)
        _put_rows(scale, block, scales[1] if isinstance(scales, tuple) else scales)
    return {"node_scale": scale}
