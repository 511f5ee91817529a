"""Conversions of ``GraphsTuple`` of jraph, with its batches and padding graphs."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np

from jax_gnn.convert._data import Data, as_data, check_counts, check_rows, edges_of, package
from jax_gnn.graph import Graph

GraphsTuple: TypeAlias = Any
"""A ``jraph.GraphsTuple``; jraph is imported only on use."""


def from_jraph(graphs: GraphsTuple) -> Data:
    """Read a ``jraph.GraphsTuple``: one graph, or a batch of graphs.

    Padding graphs remain the last graphs of the batch.

    Args:
        graphs: the graphs, of concrete arrays. ``nodes``, ``edges`` and ``globals`` may be trees.

    Returns:
        ``Data`` with ``n_node`` and ``n_edge``, as a ``GraphsTuple`` is always a batch.
    """
    fields = ("nodes", "edges", "senders", "receivers", "globals", "n_node", "n_edge")
    if not all(hasattr(graphs, name) for name in fields):
        raise TypeError(f"graphs must be a jraph.GraphsTuple, got {type(graphs).__name__}")
    arrays = {name: jax.tree.map(np.asarray, getattr(graphs, name)) for name in fields}
    n_node, n_edge = arrays["n_node"], arrays["n_edge"]
    senders, receivers = (
        np.zeros(0, np.int32) if arrays[name] is None else arrays[name]
        for name in ("senders", "receivers")
    )
    leaves = jax.tree.leaves(arrays["nodes"])
    rows = np.shape(leaves[0])[:1] if leaves else ()
    check_counts("n_node", n_node, "nodes", rows[0] if rows else int(n_node.sum()))
    check_counts("n_edge", n_edge, "edges", len(senders), len(n_node))
    check_rows("globals", arrays["globals"], "graphs", len(n_node))
    check_rows("edges", arrays["edges"], "edges", len(senders))
    graph = Graph.from_edges(senders, receivers, num_nodes=int(n_node.sum()))
    nodes, edges, values = (
        {} if arrays[name] is None else arrays[name] for name in ("nodes", "edges", "globals")
    )
    return Data(graph, nodes, edges, globals=values, n_node=n_node, n_edge=n_edge)


def to_jraph(data: Data | Graph) -> GraphsTuple:
    """Make a ``jraph.GraphsTuple`` of arrays of numpy, without names.

    Args:
        data: a ``Graph``, or ``Data`` of one.
    """
    jraph = package("jraph", "jraph")
    data = as_data(data, Graph)
    edges = edges_of(data.graph)
    n_node = np.array([data.graph.num_nodes], np.int32)
    n_edge = np.array([len(edges.src)], np.int32)
    values = data.globals
    if data.n_node is None:
        values = jax.tree.map(lambda value: np.asarray(value)[None], values)
    else:
        n_node, n_edge = np.asarray(data.n_node), np.asarray(data.n_edge)
    # Text fits networkx and PyG as a value of the graph, but no array.
    for path, value in jax.tree_util.tree_leaves_with_path(values):
        if np.asarray(value).dtype.kind in "OSU":
            key = jax.tree_util.keystr(path)
            raise ValueError(f"globals{key} must be numbers for jraph, got {value!r}")
    check_rows("globals", values, "graphs", len(n_node))
    trees = (data.nodes, edges.values("edges", data.edges), values)
    # jraph's None stands for a tree without arrays.
    node_tree, edge_tree, global_tree = (tree if jax.tree.leaves(tree) else None for tree in trees)
    return jraph.GraphsTuple(
        nodes=node_tree,
        edges=edge_tree,
        senders=edges.src,
        receivers=edges.dst,
        globals=global_tree,
        n_node=n_node,
        n_edge=n_edge,
    )
