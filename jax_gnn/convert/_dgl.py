"""Conversions of graphs of DGL: of one type or several, and batches of the former."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, TypeAlias

import numpy as np

from jax_gnn.convert import _data
from jax_gnn.convert._data import Data, Edges, Tree
from jax_gnn.convert._torch import Tensor, from_tensor, to_tensor
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph

DGLGraph: TypeAlias = Any
"""A ``dgl.DGLGraph``; DGL is imported only on use."""

ONE_TYPE = ["_N"], ["_E"]  # DGL's names for the types of a graph without types


def from_dgl(graph: DGLGraph) -> Data:
    """Read a ``DGLGraph`` with PyTorch's tensors: of one type, of several, or a batch.

    Args:
        graph: the graph, not a block. The number of bits of its ids is not kept.

    Returns:
        ``Data`` of a ``Graph``, or of a ``HeteroGraph`` if types have names.
    """
    if not all(hasattr(graph, name) for name in ("canonical_etypes", "batch_size", "ntypes")):
        raise TypeError(f"graph must be a DGLGraph, got {type(graph).__name__}")
    if graph.is_block:
        raise ValueError("graph must be no block, got one: dgl.block_to_graph makes a graph of it")

    def read(frame: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        return {key: from_tensor(f"graph's {key!r}", value) for key, value in frame.items()}

    # DGL keeps edges by type in the order of insertion.
    types = graph.canonical_etypes
    edges = {
        key: [from_tensor("graph.edges()", ids) for ids in graph.edges(etype=key, order="eid")]
        for key in types
    }
    if (graph.ntypes, graph.etypes) == ONE_TYPE:
        counts: dict[str, Any] = {}
        if graph.batch_size != 1:
            counts["n_node"] = from_tensor("graph.batch_num_nodes()", graph.batch_num_nodes())
            counts["n_edge"] = from_tensor("graph.batch_num_edges()", graph.batch_num_edges())
        structure = Graph.from_edges(*edges[types[0]], num_nodes=graph.num_nodes())
        return Data(structure, nodes=read(graph.ndata), edges=read(graph.edata), **counts)
    if graph.batch_size != 1:
        raise ValueError(f"graph must be one of several types, got a batch of {graph.batch_size}")
    return Data(
        HeteroGraph.from_edges(edges, {kind: graph.num_nodes(kind) for kind in graph.ntypes}),
        nodes={kind: read(graph.nodes[kind].data) for kind in graph.ntypes},
        edges={key: read(graph.edges[key].data) for key in types},
    )


def to_dgl(data: Data | Graph | HeteroGraph) -> DGLGraph:
    """Make a ``DGLGraph``, a batch if ``data`` is one. Ids have 64 bits.

    Names, ``globals`` and the edges of a self-relation are left out.

    Args:
        data: a ``Graph`` or a ``HeteroGraph``, or ``Data`` of one.
    """
    dgl = _data.package("dgl", "dgl")
    data = _data.as_data(data, Graph, HeteroGraph)

    def write(frame: MutableMapping[str, Tensor], name: str, columns: Tree) -> None:
        for key, value in _data.named(name, columns).items():
            if np.asarray(value).dtype == object:
                raise TypeError(f"{name}[{key!r}] must be numbers for DGL, got objects")
            frame[key] = to_tensor(value)

    def pair(edges: Edges) -> tuple[Tensor, Tensor]:
        return to_tensor(edges.src), to_tensor(edges.dst)

    if isinstance(data.graph, HeteroGraph):
        by_type = _data.edges_by_type(data.graph)
        pairs = {key: pair(edges) for key, edges in by_type.items()}
        graph = dgl.heterograph(pairs, num_nodes_dict=data.graph.num_nodes)
        for kind in data.graph.num_nodes:
            write(graph.nodes[kind].data, f"nodes[{kind!r}]", data.nodes.get(kind, {}))
        for key, edges in by_type.items():
            name = f"edges[{key!r}]"
            write(graph.edges[key].data, name, edges.values(name, data.edges.get(key, {})))
        return graph
    edges = _data.edges_of(data.graph)
    graph = dgl.graph(pair(edges), num_nodes=data.graph.num_nodes)
    write(graph.ndata, "nodes", data.nodes)
    write(graph.edata, "edges", edges.values("edges", data.edges))
    if data.n_node is not None:
        # DGL marks batches by counts alone.
        graph.set_batch_num_nodes(to_tensor(data.n_node))
        graph.set_batch_num_edges(to_tensor(data.n_edge))
    return graph
