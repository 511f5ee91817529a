"""Conversions of PyTorch Geometric: ``Data``, ``HeteroData``, and ``Batch`` of the former."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from jax_gnn.convert._data import Data, as_data, edges_by_type, edges_of, named, objects, package
from jax_gnn.convert._torch import from_tensor, to_tensor
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph

PygData: TypeAlias = Any
"""``Data``, ``HeteroData`` or ``Batch`` of PyTorch Geometric, which is imported only on use."""
Store: TypeAlias = Any
"""Attributes of such data, of one type of nodes or edges if there are several."""

STRUCTURE = "edge_index", "num_nodes"


def from_pyg(data: PygData) -> Data:
    """Read a ``Data``, a ``HeteroData``, or a ``Batch`` of the former, of PyTorch Geometric.

    Args:
        data: the data, with ``edge_index``, or without edges.

    Returns:
        ``Data``. Attributes with a row for each node are ``nodes``, with a row for each edge
        ``edges``; if both fit, the word "edge" in the name decides. All others are ``globals``; of
        a batch they have a row for each graph, or are lists. ``report`` names attributes of types
        of a ``HeteroData`` that were dropped, as they have no rows.
    """
    pyg = package("torch_geometric.data", "torch-geometric")
    is_batch = isinstance(data, pyg.Batch)
    if isinstance(data, pyg.HeteroData) and not is_batch:
        return _from_hetero(data)
    if not isinstance(data, pyg.Data):
        kind = type(data).__name__
        raise TypeError(f"data must be PyG's Data, HeteroData or Batch of Data, got {kind}")
    if not is_batch:
        return _from_graphs([data], is_batch=False)
    graphs = data.to_data_list()
    n_node, n_edge = (
        np.array([getattr(graph, name) for graph in graphs], np.int64)
        for name in ("num_nodes", "num_edges")
    )
    return replace(_from_graphs(graphs, is_batch=True), n_node=n_node, n_edge=n_edge)


def _from_graphs(graphs: list[PygData], is_batch: bool) -> Data:
    """Read one graph, or join several, whose nodes follow one another."""
    sizes = {
        "nodes": [graph.num_nodes or 0 for graph in graphs],
        "edges": [graph.num_edges for graph in graphs],
    }
    starts = np.cumsum([0, *sizes["nodes"]])
    edges = [
        _edge_index("data", g._store) + start for g, start in zip(graphs, starts, strict=False)
    ]
    parts: dict[str, Any] = {"nodes": {}, "edges": {}, "globals": {}}
    for key, first in graphs[0]._store.items():
        if key in STRUCTURE:
            continue
        # An attribute must have rows in all graphs of a batch to be of nodes or edges.
        values = [_read(f"data[{key!r}]", graph[key]) for graph in graphs]
        by_row = graphs[0].__cat_dim__(key, first) == 0
        lengths = [_length(value) if by_row else None for value in values]
        fitting = [part for part, counts in sizes.items() if lengths == counts]
        part = fitting[-("edge" in key)] if fitting else "globals"
        if part == "globals" and not is_batch:
            parts[part][key] = values[0]
        else:
            parts[part][key] = _joined(values, by_row=part != "globals")
    # Ids of each graph were shifted by the nodes before it.
    edge_index = np.concatenate(edges, axis=1)
    return Data(Graph.from_edges(*edge_index, num_nodes=int(starts[-1])), **parts)


def _from_hetero(data: PygData) -> Data:
    sizes = {key: int(store.num_nodes or 0) for key, store in data.node_items()}
    edges = {key: _edge_index(f"data[{key!r}]", store) for key, store in data.edge_items()}
    rows = {**sizes, **{key: index.shape[1] for key, index in edges.items()}}
    columns: dict[Any, dict[str, Any]] = {key: {} for key in rows}
    report = []
    # Attributes without a row for each node or edge of their type are reported.
    for key, store in (*data.node_items(), *data.edge_items()):
        for name, value in store.items():
            if name in STRUCTURE:
                continue
            value = _read(f"data[{key!r}][{name!r}]", value)
            if _length(value) == rows[key] and data.__cat_dim__(name, value, store) == 0:
                columns[key][name] = _joined([value], by_row=True)
            else:
                report.append(f"data[{key!r}][{name!r}] has not {rows[key]} rows: dropped")
    return Data(
        HeteroGraph.from_edges(edges, sizes),
        nodes={key: columns[key] for key in sizes},
        edges={key: columns[key] for key in edges},
        globals={key: _read(f"data[{key!r}]", value) for key, value in data._global_store.items()},
        report=tuple(report),
    )


def _edge_index(name: str, store: Store) -> np.ndarray:
    """Read the edges, ``(2, num_edges)``, sources first."""
    for key in ("adj", "adj_t"):
        if key in store:
            raise ValueError(f"{name} must have its edges as edge_index, got {key}")
    if store.get("edge_index") is None:
        return np.zeros((2, 0), np.int64)
    return from_tensor(f"{name}.edge_index", store["edge_index"])


def _read(name: str, value: object) -> Any:
    """Convert a tensor to an array; return other values unchanged."""
    return from_tensor(name, value) if hasattr(value, "detach") else value


def _length(value: object) -> int | None:
    """Return the number of rows; None for values without rows."""
    if isinstance(value, np.ndarray):
        return len(value) if value.ndim else None
    return len(value) if isinstance(value, list | tuple) else None


def _joined(values: list[Any], by_row: bool) -> Any:
    """Concatenate the rows of several graphs, or list values of graphs that are not one row."""
    # Arrays of one row for each graph become one array; other values of graphs stay a list.
    if all(isinstance(value, np.ndarray) and value.ndim for value in values):
        if by_row or all(len(value) == 1 for value in values):
            return np.concatenate(values)
    elif by_row:
        return objects([item for value in values for item in value])
    return values


def to_pyg(data: Data | Graph | HeteroGraph) -> PygData:
    """Make a ``Data``, a ``HeteroData`` for a ``HeteroGraph``, or a ``Batch`` for a batch.

    Arrays become tensors on the host in their dtypes, and arrays of objects lists. Names and the
    edges of a self-relation are left out.

    Args:
        data: a ``Graph`` or a ``HeteroGraph``, or ``Data`` of one.
    """
    pyg = package("torch_geometric.data", "torch-geometric")
    data = as_data(data, Graph, HeteroGraph)
    if isinstance(data.graph, HeteroGraph):
        hetero = pyg.HeteroData()
        _write(hetero, data.globals)
        for kind, size in data.graph.num_nodes.items():
            _write(hetero[kind], data.nodes.get(kind, {}), size)
        for key, edges in edges_by_type(data.graph).items():
            hetero[key].edge_index = to_tensor(np.stack([edges.src, edges.dst]))
            _write(hetero[key], edges.values(f"edges[{key!r}]", data.edges.get(key, {})))
        return hetero
    edges = edges_of(data.graph)
    edge_index = np.stack([edges.src, edges.dst])
    nodes, global_values = named("nodes", data.nodes), named("globals", data.globals)
    values = edges.values("edges", named("edges", data.edges))
    # PyG has one namespace for all attributes.
    for name, count in Counter([*nodes, *values, *global_values]).items():
        if count > 1:
            raise ValueError(
                f"nodes, edges and globals must share no name for PyG, got {name!r} in {count}"
            )
    if data.n_node is None or data.n_edge is None:
        attributes = {**values, **global_values}
        return _graph(pyg, edge_index, attributes, nodes, data.graph.num_nodes)
    for name, value in global_values.items():
        if _length(np.asarray(value) if hasattr(value, "shape") else value) != len(data.n_node):
            raise ValueError(
                f"globals[{name!r}] must have a row for each of {len(data.n_node)} graphs, got "
                f"{value!r:.80}"
            )
    # A batch is split into its graphs, from which PyG makes one of its own.
    graphs = []
    node_starts, edge_starts = (np.cumsum([0, *n]) for n in (data.n_node, data.n_edge))
    for i, num_nodes in enumerate(data.n_node):
        node_rows = slice(node_starts[i], node_starts[i + 1])
        edge_rows = slice(edge_starts[i], edge_starts[i + 1])
        local = edge_index[:, edge_rows] - node_starts[i]
        if local.size and not 0 <= local.min() <= local.max() < num_nodes:
            raise ValueError(
                f"n_edge must count edges within their graphs, got {data.n_edge[i]} for graph {i}, "
                "of which some leave it"
            )
        attributes = {key: value[edge_rows] for key, value in values.items()}
        for name, value in global_values.items():
            attributes[name] = value[i : i + 1] if hasattr(value, "shape") else value[i]
        node_values = {key: value[node_rows] for key, value in nodes.items()}
        graphs.append(_graph(pyg, local, attributes, node_values, int(num_nodes)))
    return pyg.Batch.from_data_list(graphs)


def _graph(
    pyg: ModuleType,
    edge_index: np.ndarray,
    attributes: Mapping[str, Any],
    nodes: Mapping[str, Any],
    num_nodes: int,
) -> PygData:
    data = pyg.Data(edge_index=to_tensor(edge_index))
    _write(data, attributes)
    _write(data, nodes, num_nodes)
    return data


def _write(store: Store, columns: Mapping[str, Any], num_nodes: int | None = None) -> None:
    """Set attributes, and the number of nodes unless PyG infers it from them."""
    for key, value in columns.items():
        if not hasattr(value, "shape"):
            store[key] = value
        else:
            store[key] = value.tolist() if value.dtype == object else to_tensor(value)
    if num_nodes is not None and not {"x", "pos"} & set(columns):
        store["num_nodes"] = num_nodes
