"""jraph: a ``GraphsTuple``, with its batches and padding graphs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_gnn.convert._data import Data, as_data, check_counts, check_rows, edges_of, package
from jax_gnn.graph import Graph


def from_jraph(graphs: Any) -> Data:
    """Reads a ``jraph.GraphsTuple``: one graph, or a batch of them.

    Padding graphs stay what they are for jraph: the last graphs of the batch.

    Args:
        graphs: of concrete arrays. ``nodes``, ``edges`` and ``globals`` may be trees.

    Returns:
        ``n_node`` and ``n_edge`` are given; a ``GraphsTuple`` is always a batch.

    Raises:
        TypeError: it is no ``GraphsTuple``.
        ValueError: its counts do not add up, or an id is out of range.
    """
    fields = ("nodes", "edges", "senders", "receivers", "globals", "n_node", "n_edge")
    if not all(hasattr(graphs, name) for name in fields):
        raise TypeError(f"graphs must be a jraph.GraphsTuple, got {type(graphs).__name__}")
    given = {name: jax.tree.map(np.asarray, getattr(graphs, name)) for name in fields}
    n_node, n_edge = given["n_node"], given["n_edge"]
    none = np.zeros(0, np.int32)
    senders, receivers = (none if given[k] is None else given[k] for k in ("senders", "receivers"))
    leaves = jax.tree.leaves(given["nodes"])
    rows = np.shape(leaves[0])[:1] if leaves else ()
    check_counts("n_node", n_node, "nodes", rows[0] if rows else int(n_node.sum()))
    check_counts("n_edge", n_edge, "edges", len(senders), len(n_node))
    check_rows("globals", given["globals"], "graphs", len(n_node))
    check_rows("edges", given["edges"], "edges", len(senders))
    graph = Graph.from_edges(senders, receivers, num_nodes=int(n_node.sum()))
    trees = {k: {} if given[k] is None else given[k] for k in ("nodes", "edges", "globals")}
    return Data(graph, **trees, n_node=n_node, n_edge=n_edge)


def to_jraph(data: Any) -> Any:
    """Makes a ``jraph.GraphsTuple`` of arrays of numpy.

    Names are left out.

    Args:
        data: ``Data`` of a ``Graph``, or one alone.

    Raises:
        ImportError: jraph is not installed.
        TypeError: ``data`` is none of these.
        ValueError: ``globals`` have not a row for each graph of a batch, or are not numbers, or the
            graph is bipartite.
    """
    jraph = package("jraph", "jraph")
    data = as_data(data, Graph)
    edges = edges_of(data.graph)
    n_node = np.array([data.graph.num_nodes], np.int32)
    n_edge = np.array([len(edges.src)], np.int32)
    whole = data.globals
    if data.n_node is None:
        whole = jax.tree.map(lambda value: np.asarray(value)[None], whole)
    else:
        n_node, n_edge = np.asarray(data.n_node), np.asarray(data.n_edge)
    for path, value in jax.tree_util.tree_leaves_with_path(whole):
        if np.asarray(value).dtype.kind in "OSU":
            where = jax.tree_util.keystr(path)
            raise ValueError(f"globals{where} must be numbers for jraph, got {value!r}")
    check_rows("globals", whole, "graphs", len(n_node))
    trees = (data.nodes, edges.values("edges", data.edges), whole)
    nodes, values, whole = (tree if jax.tree.leaves(tree) else None for tree in trees)
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=values,
        senders=edges.src,
        receivers=edges.dst,
        globals=whole,
        n_node=n_node,
        n_edge=n_edge,
    )
