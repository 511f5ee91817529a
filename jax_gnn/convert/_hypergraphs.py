"""Conversions of hypergraphs of HyperNetX and DHG (DeepHypergraph), and of DHG's graphs."""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np

from jax_gnn.convert import _data
from jax_gnn.convert._data import Data
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

HypernetxHypergraph: TypeAlias = Any
"""A ``hypernetx.Hypergraph``; HyperNetX is imported only on use."""
DhgGraph: TypeAlias = Any
"""A ``Hypergraph``, ``Graph`` or ``DiGraph`` of DHG, which is imported only on use."""
DataFrame: TypeAlias = Any

WEIGHT, MISC = "weight", "misc_properties"  # HyperNetX's columns for all elements
LEVEL = "_level"  # property that HyperNetX adds itself


def from_hypernetx(hypergraph: HypernetxHypergraph) -> Data:
    """Read a hypergraph of HyperNetX 2.

    Args:
        hypergraph: ``hypernetx.Hypergraph`` with any names of nodes and hyperedges.

    Returns:
        ``Data``, where weights and properties of nodes, hyperedges and incidences are columns of
        ``nodes``, ``edges`` and ``incidences``; missing properties are None.
    """
    if not all(hasattr(hypergraph, name) for name in ("dataframe", "nodes", "edges")):
        kind = type(hypergraph).__name__
        raise TypeError(f"hypergraph must be a hypernetx.Hypergraph, got {kind}")

    def properties(frame: DataFrame) -> list[dict[str, Any]]:
        weights, misc = frame[WEIGHT].tolist(), frame[MISC].tolist()
        return [
            {WEIGHT: weight, **{key: value for key, value in items.items() if key != LEVEL}}
            for weight, items in zip(weights, misc, strict=True)
        ]

    names, tables, numbers = [], [], []
    for part in (hypergraph.nodes, hypergraph.edges):
        # Rows of the data frame are in another order than nodes.
        rows = dict(zip(part.dataframe.index, properties(part.dataframe), strict=True))
        names.append(list(part))
        tables.append(_data.columns("properties", [rows[name] for name in names[-1]]))
        numbers.append({name: i for i, name in enumerate(names[-1])})
    frame = hypergraph.dataframe
    structure = Hypergraph.from_incidence(
        np.array([numbers[0][name] for name in frame["nodes"]], np.int64),
        np.array([numbers[1][name] for name in frame["edges"]], np.int64),
        num_nodes=len(names[0]),
        num_hyperedges=len(names[1]),
    )
    return Data(
        structure,
        nodes=tables[0],
        edges=tables[1],
        incidences=_data.columns("properties of incidences", properties(frame)),
        node_names=_data.names_of(names[0]),
        edge_names=_data.names_of(names[1]),
    )


def to_hypernetx(data: Data | Hypergraph) -> HypernetxHypergraph:
    """Make a hypergraph of HyperNetX 2.

    HyperNetX has no nodes without hyperedges, no hyperedges without nodes, and no repeated
    incidences: a warning counts those that were left out.

    Args:
        data: an undirected ``Hypergraph``, or ``Data`` of one.
    """
    hypernetx = _data.package("hypernetx", "hypernetx 'pandas<3'")
    pandas = _data.package("pandas", "'pandas<3'")
    data = _data.as_data(data, Hypergraph)
    graph, edges = data.graph, _data.incidences_of(data.graph)
    node_names = _data.distinct("node_names", data.node_names, graph.num_nodes)
    edge_names = _data.distinct("edge_names", data.edge_names, graph.num_hyperedges)
    pairs = np.stack([edges.dst, edges.src])
    chosen = np.sort(np.unique(pairs, axis=1, return_index=True)[1])
    omitted = {
        "nodes in no hyperedge": graph.num_nodes - len(np.unique(edges.src)),
        "hyperedges without nodes": graph.num_hyperedges - len(np.unique(edges.dst)),
        "incidences given before": len(edges.src) - len(chosen),
    }
    if any(omitted.values()):
        counts = ", ".join(f"{count} {what}" for what, count in omitted.items() if count)
        warnings.warn(f"left out, as HyperNetX does not hold them: {counts}", stacklevel=2)
    values = edges.values("incidences", _data.named("incidences", data.incidences))
    rows = _data.attributes(values, len(edges.src))
    weights = [rows[i].pop(WEIGHT, 1) for i in chosen]
    frame = pandas.DataFrame(
        {
            "edges": _data.objects([edge_names[i] for i in edges.dst[chosen]]),
            "nodes": _data.objects([node_names[i] for i in edges.src[chosen]]),
            WEIGHT: weights,
            MISC: [rows[i] for i in chosen],
        }
    )
    if frame.empty:
        return hypernetx.Hypergraph({})
    properties = {}
    for part, names in (("node", node_names), ("edge", edge_names)):
        columns = _data.named(f"{part}s", getattr(data, f"{part}s"))
        rows = _data.attributes(columns, len(names))
        properties[f"{part}_properties"] = dict(zip(names, rows, strict=True))
    return hypernetx.Hypergraph(
        frame,
        edge_col="edges",
        node_col="nodes",
        cell_weight_col=WEIGHT,
        misc_cell_properties_col=MISC,
        **properties,
    )


def from_dhg(graph: DhgGraph) -> Data:
    """Read a ``Hypergraph``, ``Graph`` or ``DiGraph`` of DHG.

    Edges of a ``Graph`` become two directed ones, except self-loops: first all edges, then their
    reverses.

    Args:
        graph: the graph.

    Returns:
        ``Data``, where ``edges["weight"]`` and ``nodes["weight"]`` of a hypergraph are float32.
    """
    kind = type(graph).__name__
    if not hasattr(graph, "num_v") or kind not in ("Hypergraph", "Graph", "DiGraph"):
        raise TypeError(f"graph must be a Hypergraph, Graph or DiGraph of DHG, got {kind}")
    edges, edge_weights = graph.e
    weights = np.array(edge_weights, np.float32)
    if kind == "Hypergraph":
        structure = Hypergraph.from_incidence(
            np.array([node for nodes in edges for node in nodes], np.int64),
            np.repeat(np.arange(len(edges)), [len(nodes) for nodes in edges]),
            num_nodes=graph.num_v,
            num_hyperedges=len(edges),
        )
        node_weights = np.array(graph.v_weight, np.float32)
        return Data(structure, nodes={WEIGHT: node_weights}, edges={WEIGHT: weights})
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    if kind == "Graph":
        reversible = np.flatnonzero(src != dst)
        src, dst = np.append(src, dst[reversible]), np.append(dst, src[reversible])
        weights = np.append(weights, weights[reversible])
    return Data(Graph.from_edges(src, dst, num_nodes=graph.num_v), edges={WEIGHT: weights})


def to_dhg(data: Data | Graph | Hypergraph, *, directed: bool = True) -> DhgGraph:
    """Make a ``Hypergraph`` of DHG, or, for a graph, a ``DiGraph`` or ``Graph``.

    DHG keeps only weights, the columns ``"weight"``, by default 1: of edges or hyperedges, and of a
    hypergraph's nodes. It has no repeated edges or hyperedges: a warning counts those left out.

    Args:
        data: a ``Graph`` or an undirected ``Hypergraph``, or ``Data`` of one.
        directed: whether edges have a direction; if not, an edge and its reverse are one edge.
    """
    dhg = _data.package("dhg", "dhg")
    data = _data.as_data(data, Graph, Hypergraph)
    graph = data.graph
    if isinstance(graph, Hypergraph):
        edges = _data.incidences_of(graph)
        # Incidences are grouped by hyperedge.
        order = np.lexsort((edges.src, edges.dst))
        stops = np.cumsum(np.bincount(edges.dst, minlength=graph.num_hyperedges))
        groups = np.split(edges.src[order], stops[:-1])[: graph.num_hyperedges]
        members = [tuple(nodes.tolist()) for nodes in groups]
        weights = data.edges.get(WEIGHT, np.ones(len(members)))
        node_weights = data.nodes.get(WEIGHT)
        options = {} if node_weights is None else {"v_weight": np.asarray(node_weights).tolist()}
        kind = dhg.Hypergraph
    else:
        edges, options = _data.edges_of(graph), {}
        pairs: Any = np.stack([edges.src, edges.dst])
        pairs = pairs if directed else np.sort(pairs, axis=0)
        members = [*map(tuple, pairs.T.tolist())]
        weights = edges.values("edges", data.edges).get(WEIGHT, np.ones(len(members)))
        kind = dhg.DiGraph if directed else dhg.Graph
    # The first of equal edges keeps its weight.
    first = {nodes: i for i, nodes in reversed([*enumerate(members)])}
    chosen = sorted(first.values())
    if len(chosen) < len(members) and (directed or kind is dhg.Hypergraph):
        count = len(members) - len(chosen)
        warnings.warn(f"left out, as DHG does not hold them: {count} equal edges", stacklevel=2)
    values = np.asarray(weights)[chosen].tolist()
    return kind(graph.num_nodes, [members[i] for i in chosen], values, **options)
