"""networkx: graphs of all four kinds."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_gnn.convert._data import (
    Data,
    Edges,
    as_data,
    attributes,
    column,
    columns,
    distinct,
    edges_of,
    listed,
    named,
    names_of,
    package,
)
from jax_gnn.graph import Graph


def from_networkx(graph: Any) -> Data:
    """Reads a graph of networkx, of any of its four kinds.

    An edge of an undirected graph becomes two, one each way, a self-loop one: first all edges as
    they are given, then the other ways. Attributes become columns: numbers and lists of one length
    are arrays of numbers, all others of objects, in which None means missing.

    Args:
        graph: a ``Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``. Nodes may be anything.

    Returns:
        ``edge_names`` are the keys of a multigraph's edges, ``globals`` the graph's attributes.

    Raises:
        TypeError: it is no graph of networkx, or the name of an attribute is no text.
    """
    if not all(hasattr(graph, name) for name in ("is_multigraph", "adj", "is_directed")):
        raise TypeError(f"graph must be one of networkx, got {type(graph).__name__}")
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    keyed = {"keys": True} if graph.is_multigraph() else {}
    found = list(graph.edges(data=True, **keyed))
    src, dst = (np.array([number[edge[i]] for edge in found], np.int64) for i in (0, 1))
    order = np.arange(len(found))
    if not graph.is_directed():
        back = np.flatnonzero(src != dst)
        src, dst = np.append(src, dst[back]), np.append(dst, src[back])
        order = np.append(order, back)
    keys = column([edge[2] for edge in found]) if keyed and found else None
    attributes_of_edges = columns("attributes of edges", [edge[-1] for edge in found])
    return Data(
        Graph.from_edges(src, dst, num_nodes=len(nodes)),
        nodes=columns("attributes of nodes", [graph.nodes[node] for node in nodes]),
        edges={name: values[order] for name, values in attributes_of_edges.items()},
        globals=dict(named("attributes of the graph", graph.graph)),
        node_names=names_of(nodes),
        edge_names=keys if keys is None else keys[order],
    )


def to_networkx(data: Any, *, directed: bool = True, multigraph: bool | None = None) -> Any:
    """Makes a graph of networkx, with arrays as attributes: numbers and lists of Python.

    Args:
        data: ``Data`` of a ``Graph``, or one alone.
        directed: whether edges have a direction. If not, an edge and one back are one edge, with
            the attributes of the first.
        multigraph: whether edges may be parallel; by default where there are some, or keys.

    Raises:
        ImportError: networkx is not installed.
        TypeError: ``data`` is none of these.
        ValueError: there are parallel edges, and ``multigraph`` is False; or two nodes have one
            name, or a number of values is wrong.
    """
    networkx = package("networkx", "networkx")
    data = as_data(data, Graph)
    edges = edges_of(data.graph)
    chosen = np.arange(len(edges.src)) if directed else _one_way(edges)
    pairs = np.stack([edges.src, edges.dst])[:, chosen]
    pairs = pairs if directed else np.sort(pairs, axis=0)
    parallel = chosen.size - np.unique(pairs, axis=1).shape[1]
    if parallel and multigraph is False:
        raise ValueError(f"multigraph must be True: {parallel} edges are parallel, got False")
    if multigraph is None:
        multigraph = bool(parallel) or data.edge_names is not None
    kind = f"{'Multi' * multigraph}{'Di' * directed}Graph"
    graph = getattr(networkx, kind)(**data.globals)
    names = distinct("node_names", data.node_names, data.graph.num_nodes)
    nodes = named("nodes", data.nodes)
    graph.add_nodes_from(zip(names, attributes(nodes, len(names)), strict=True))
    rows = attributes(edges.values("edges", named("edges", data.edges)), len(edges.src))
    keys = edges.values("edge_names", data.edge_names) if multigraph else None
    parts = [[names[i] for i in ids[chosen]] for ids in (edges.src, edges.dst)]
    parts += [] if keys is None else [listed(keys[chosen], 0)]
    graph.add_edges_from(zip(*parts, [rows[i] for i in chosen], strict=True))
    return graph


def _one_way(edges: Edges) -> np.ndarray:
    """Which edges are left where each is one with an edge back, if there is one: the first."""
    src, dst = edges.src, edges.dst
    size = max(src.max(initial=0), dst.max(initial=0)) + 1
    way = src * size + dst
    order = np.argsort(way, kind="stable")
    copy = np.empty(len(src), np.int64)  # the how-manyth of its ends
    copy[order] = np.arange(len(src)) - np.searchsorted(way[order], way[order])
    pairs = np.stack([np.minimum(src, dst), np.maximum(src, dst), copy])
    return np.sort(np.unique(pairs, axis=1, return_index=True)[1])
