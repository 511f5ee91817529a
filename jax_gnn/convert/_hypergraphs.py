"""HyperNetX and DHG (DeepHypergraph): hypergraphs, and DHG's graphs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from jax_gnn.convert._data import (
    Data,
    as_data,
    attributes,
    columns,
    distinct,
    edges_of,
    incidences_of,
    named,
    names_of,
    objects,
    package,
)
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

WEIGHT, MISC = "weight", "misc_properties"  # what HyperNetX has of everything
OWN = "_level"  # which it adds to the properties that somebody looked at


def from_hypernetx(hypergraph: Any) -> Data:
    """Reads a hypergraph of HyperNetX 2.

    Args:
        hypergraph: ``hypernetx.Hypergraph``; nodes and hyperedges may be named by anything.

    Returns:
        Weights and properties of nodes, hyperedges and incidences are columns of ``nodes``,
        ``edges`` and ``incidences``; what not all of them have is None where it is missing.

    Raises:
        TypeError: it is no hypergraph of HyperNetX 2.
    """
    if not all(hasattr(hypergraph, name) for name in ("dataframe", "nodes", "edges")):
        given = type(hypergraph).__name__
        raise TypeError(f"hypergraph must be a hypernetx.Hypergraph, got {given}")

    def rows(frame: Any) -> list[dict[str, Any]]:
        weights, misc = (frame[name].tolist() for name in (WEIGHT, MISC))
        return [
            {WEIGHT: weight, **{key: value for key, value in more.items() if key != OWN}}
            for weight, more in zip(weights, misc, strict=True)
        ]

    names, members = [], []
    for part in (hypergraph.nodes, hypergraph.edges):
        names.append(list(part))
        found = dict(zip(part.dataframe.index, rows(part.dataframe), strict=True))
        members.append(columns("properties", [found[name] for name in names[-1]]))
    number = [{name: i for i, name in enumerate(each)} for each in names]
    frame = hypergraph.dataframe
    made = Hypergraph.from_incidence(
        [number[0][name] for name in frame["nodes"]],
        [number[1][name] for name in frame["edges"]],
        num_nodes=len(names[0]),
        num_hyperedges=len(names[1]),
    )
    return Data(
        made,
        nodes=members[0],
        edges=members[1],
        incidences=columns("properties of incidences", rows(frame)),
        node_names=names_of(names[0]),
        edge_names=names_of(names[1]),
    )


def to_hypernetx(data: Any) -> Any:
    """Makes a hypergraph of HyperNetX 2.

    It holds neither nodes in no hyperedge, nor hyperedges without nodes, nor a node twice in one:
    a warning says how many were left out.

    Args:
        data: ``Data`` of an undirected ``Hypergraph``, or one alone.

    Raises:
        ImportError: hypernetx is not installed.
        TypeError: ``data`` is none of these, or its arrays have no names.
        ValueError: the hypergraph is directed, two nodes or hyperedges have one name, or a number
            of values is wrong.
    """
    hypernetx = package("hypernetx", "hypernetx 'pandas<3'")
    pandas = package("pandas", "'pandas<3'")
    data = as_data(data, Hypergraph)
    graph, edges = data.graph, incidences_of(data.graph)
    node_names = distinct("node_names", data.node_names, graph.num_nodes)
    edge_names = distinct("edge_names", data.edge_names, graph.num_hyperedges)
    pairs = np.stack([edges.dst, edges.src])
    once = np.sort(np.unique(pairs, axis=1, return_index=True)[1])
    lacking = {
        "nodes in no hyperedge": graph.num_nodes - len(np.unique(edges.src)),
        "hyperedges without nodes": graph.num_hyperedges - len(np.unique(edges.dst)),
        "incidences given before": len(edges.src) - len(once),
    }
    if any(lacking.values()):
        left = ", ".join(f"{count} {what}" for what, count in lacking.items() if count)
        warnings.warn(f"left out, as HyperNetX does not hold them: {left}", stacklevel=2)
    values = edges.values("incidences", named("incidences", data.incidences))
    found = attributes(values, len(edges.src))
    weights = [found[i].pop(WEIGHT, 1) for i in once]
    frame = pandas.DataFrame(
        {
            "edges": objects([edge_names[i] for i in edges.dst[once]]),
            "nodes": objects([node_names[i] for i in edges.src[once]]),
            WEIGHT: weights,
            MISC: [found[i] for i in once],
        }
    )
    if frame.empty:
        return hypernetx.Hypergraph({})
    nodes, hyperedges = (
        dict(zip(names, attributes(named(part, getattr(data, part)), len(names)), strict=True))
        for part, names in (("nodes", node_names), ("edges", edge_names))
    )
    return hypernetx.Hypergraph(
        frame,
        edge_col="edges",
        node_col="nodes",
        cell_weight_col=WEIGHT,
        misc_cell_properties_col=MISC,
        node_properties=nodes,
        edge_properties=hyperedges,
    )


def from_dhg(graph: Any) -> Data:
    """Reads a ``Hypergraph``, ``Graph`` or ``DiGraph`` of DHG.

    An edge of a ``Graph`` becomes two, one each way, a self-loop one: first all edges as they are
    given, then the other ways.

    Args:
        graph: of DHG.

    Returns:
        ``edges["weight"]`` are float32; of a hypergraph ``nodes["weight"]``, too.

    Raises:
        TypeError: it is none of these.
    """
    kind = type(graph).__name__
    if not hasattr(graph, "num_v") or kind not in ("Hypergraph", "Graph", "DiGraph"):
        raise TypeError(f"graph must be a Hypergraph, Graph or DiGraph of DHG, got {kind}")
    found, given = graph.e
    weights = np.array(given, np.float32)
    if kind == "Hypergraph":
        sizes = [len(nodes) for nodes in found]
        made = Hypergraph.from_incidence(
            np.array([node for nodes in found for node in nodes], np.int64),
            np.repeat(np.arange(len(found)), sizes),
            num_nodes=graph.num_v,
            num_hyperedges=len(found),
        )
        node_weights = np.array(graph.v_weight, np.float32)
        return Data(made, nodes={WEIGHT: node_weights}, edges={WEIGHT: weights})
    src, dst = np.array(found, np.int64).reshape(-1, 2).T
    if kind == "Graph":
        back = np.flatnonzero(src != dst)
        src, dst = np.append(src, dst[back]), np.append(dst, src[back])
        weights = np.append(weights, weights[back])
    return Data(Graph.from_edges(src, dst, num_nodes=graph.num_v), edges={WEIGHT: weights})


def to_dhg(data: Any, *, directed: bool = True) -> Any:
    """Makes a ``Hypergraph`` of DHG, or, for a graph, a ``DiGraph`` or ``Graph``.

    DHG holds weights of hyperedges or edges alone, and of a hypergraph's nodes: ``"weight"``, by
    default 1. Equal edges or hyperedges are one there: a warning says how many were left out.

    Args:
        data: ``Data`` of a ``Graph`` or of an undirected ``Hypergraph``, or one alone.
        directed: whether edges have a direction; if not, an edge and one back are one edge.

    Raises:
        ImportError: dhg is not installed.
        TypeError: ``data`` is none of these.
        ValueError: the hypergraph is directed, or a number of values is wrong.
    """
    dhg = package("dhg", "dhg")
    data = as_data(data, Graph, Hypergraph)
    graph = data.graph
    if isinstance(graph, Hypergraph):
        edges = incidences_of(graph)
        order = np.lexsort((edges.src, edges.dst))
        ends = np.cumsum(np.bincount(edges.dst, minlength=graph.num_hyperedges))
        groups = np.split(edges.src[order], ends[:-1])[: graph.num_hyperedges]
        found = [tuple(nodes.tolist()) for nodes in groups]
        weights = data.edges.get(WEIGHT, np.ones(len(found)))
        options = (
            {"v_weight": np.asarray(data.nodes[WEIGHT]).tolist()} if WEIGHT in data.nodes else {}
        )
        kind = dhg.Hypergraph
    else:
        edges, options = edges_of(graph), {}
        ends = np.stack([edges.src, edges.dst])
        pairs: Any = ends if directed else np.sort(ends, axis=0)
        found = [*map(tuple, pairs.T.tolist())]
        weights = edges.values("edges", data.edges).get(WEIGHT, np.ones(len(found)))
        kind = dhg.DiGraph if directed else dhg.Graph
    first = {nodes: i for i, nodes in reversed([*enumerate(found)])}
    chosen = sorted(first.values())
    if len(chosen) < len(found) and (directed or kind is dhg.Hypergraph):
        count = len(found) - len(chosen)
        warnings.warn(f"left out, as DHG does not hold them: {count} equal edges", stacklevel=2)
    values = np.asarray(weights)[chosen].tolist()
    return kind(graph.num_nodes, [found[i] for i in chosen], values, **options)
