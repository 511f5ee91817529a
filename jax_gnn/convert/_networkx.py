"""Conversions of the four classes of graphs of networkx."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from jax_gnn.convert import _data
from jax_gnn.convert._data import Data, Edges
from jax_gnn.graph import Graph

NetworkxGraph: TypeAlias = Any
"""A graph of networkx, which is imported only on use."""


def from_networkx(graph: NetworkxGraph) -> Data:
    """Read a graph of networkx, of any of its four classes.

    Undirected edges become two directed ones, except self-loops: first all edges, then their
    reverses. Attributes become columns: numbers and lists of one length are arrays of numbers, all
    others of objects, in which None means missing.

    Args:
        graph: a ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph`` of any nodes.

    Returns:
        ``Data``, where ``edge_names`` are the keys of a multigraph's edges and ``globals`` the
        graph's attributes.
    """
    if not all(hasattr(graph, name) for name in ("is_multigraph", "adj", "is_directed")):
        raise TypeError(f"graph must be one of networkx, got {type(graph).__name__}")
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    keyed = {"keys": True} if graph.is_multigraph() else {}
    edges = list(graph.edges(data=True, **keyed))
    src, dst = (np.array([number[edge[i]] for edge in edges], np.int64) for i in (0, 1))
    # Reverses come after all edges, with the same attributes.
    order = np.arange(len(edges))
    if not graph.is_directed():
        reversible = np.flatnonzero(src != dst)
        src, dst = np.append(src, dst[reversible]), np.append(dst, src[reversible])
        order = np.append(order, reversible)
    keys = _data.column([edge[2] for edge in edges]) if keyed and edges else None
    edge_attributes = _data.columns("attributes of edges", [edge[-1] for edge in edges])
    return Data(
        Graph.from_edges(src, dst, num_nodes=len(nodes)),
        nodes=_data.columns("attributes of nodes", [graph.nodes[node] for node in nodes]),
        edges={name: values[order] for name, values in edge_attributes.items()},
        globals=dict(_data.named("attributes of the graph", graph.graph)),
        node_names=_data.names_of(nodes),
        edge_names=keys if keys is None else keys[order],
    )


def to_networkx(
    data: Data | Graph, *, directed: bool = True, multigraph: bool | None = None
) -> NetworkxGraph:
    """Make a graph of networkx, whose attributes are numbers and lists of Python.

    Args:
        data: a ``Graph``, or ``Data`` of one.
        directed: whether edges have a direction. If not, an edge and its reverse are one edge, with
            the attributes of the first.
        multigraph: whether edges may be parallel; by default if some are, or edges have keys.
    """
    networkx = _data.package("networkx", "networkx")
    data = _data.as_data(data, Graph)
    edges = _data.edges_of(data.graph)
    chosen = np.arange(len(edges.src)) if directed else _one_way(edges)
    pairs = np.stack([edges.src, edges.dst])[:, chosen]
    pairs = pairs if directed else np.sort(pairs, axis=0)
    # Only a multigraph holds parallel edges.
    parallel = chosen.size - np.unique(pairs, axis=1).shape[1]
    if parallel and multigraph is False:
        raise ValueError(f"multigraph must be True: {parallel} edges are parallel, got False")
    if multigraph is None:
        multigraph = bool(parallel) or data.edge_names is not None
    kind = f"{'Multi' * multigraph}{'Di' * directed}Graph"
    graph = getattr(networkx, kind)(**data.globals)
    names = _data.distinct("node_names", data.node_names, data.graph.num_nodes)
    nodes = _data.named("nodes", data.nodes)
    graph.add_nodes_from(zip(names, _data.attributes(nodes, len(names)), strict=True))
    rows = _data.attributes(edges.values("edges", _data.named("edges", data.edges)), len(edges.src))
    keys = edges.values("edge_names", data.edge_names) if multigraph else None
    parts = [[names[i] for i in ids[chosen]] for ids in (edges.src, edges.dst)]
    parts += [] if keys is None else [_data.as_list(keys[chosen], 0)]
    graph.add_edges_from(zip(*parts, [rows[i] for i in chosen], strict=True))
    return graph


def _one_way(edges: Edges) -> np.ndarray:
    """Return the first edge of each pair of an edge and its reverse, and all edges without one."""
    src, dst = edges.src, edges.dst
    size = max(src.max(initial=0), dst.max(initial=0)) + 1
    key = src * size + dst
    # Parallel edges are counted, so that the k-th edge pairs with the k-th reverse.
    order = np.argsort(key, kind="stable")
    rank = np.empty(len(src), np.int64)
    rank[order] = np.arange(len(src)) - np.searchsorted(key[order], key[order])
    pairs = np.stack([np.minimum(src, dst), np.maximum(src, dst), rank])
    return np.sort(np.unique(pairs, axis=1, return_index=True)[1])
