"""Which part each node of a graph belongs to: few edges between parts, and equal parts."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import numpy as np

from jax_gnn._core import arguments
from jax_gnn._core.ffi import host_function
from jax_gnn._core.ids import is_traced
from jax_gnn._core.public import public
from jax_gnn.graph import Graph

Method = Literal["stream", "metis", "contiguous", "hash"]
"""How nodes are dealt out, see :func:`partition`."""

MOST_NODES, MOST_EDGES = 1.25, 1.05
"""How many times the mean a part may have of both."""

ROUNDS = 8
"""How often each node may move, at most."""


@public
def partition(graph: Graph, num_parts: int, method: Method = "stream") -> np.ndarray:
    """Deals the nodes of a graph out to parts. Host only.

    An edge belongs to the part of its destination. "stream" and "metis" keep the edges of a part
    below 1.05 of the mean and its nodes below 1.25, unless single nodes have too many edges.

    - "stream": each node goes where most of its neighbours are, by linear deterministic greedy
      (Stanton and Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012) in
      the order of a breadth-first search, and then moves if that is better (Nishimura and Ugander,
      "Restreaming graph partitioning", KDD 2013).
    - "metis": Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning
      irregular graphs", SIAM J. Sci. Comput. 1998; then nodes move as above. Needs `pymetis`.
    - "contiguous": ranges of ids, for graphs whose ids are such that neighbours are near.
    - "hash": at random, the same in each run.

    Args:
        graph: the graph, which is not bipartite.
        num_parts: number of parts.
        method: see above.

    Returns:
        ``(num_nodes,)`` int32, the part of each node.

    Raises:
        TypeError: called inside ``jax.jit``, or ``num_parts`` is not an integer.
        ValueError: the graph is bipartite, there are more parts than nodes, or the method is
            another.
        ImportError: the method is "metis", and `pymetis` is not installed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 0, 3, 2], num_nodes=4)
        >>> partition(graph, 2, "contiguous")
        array([0, 0, 1, 1], dtype=int32)
    """
    arguments.check_instance("graph", graph, Graph)
    num_nodes = graph.num_nodes
    num_parts = arguments.check_integer("num_parts", num_parts)
    if not 1 <= num_parts <= num_nodes:
        raise ValueError(f"num_parts must be 1 to num_nodes = {num_nodes}, got {num_parts}")
    arguments.check_choice("method", method, get_args(Method))
    if is_traced(graph.indptr):
        raise TypeError("graph must be partitioned before jax.jit")
    if method == "hash":
        return (np.random.default_rng(0).permutation(num_nodes) % num_parts).astype(np.int32)
    indptr = np.asarray(graph.indptr)
    if method == "contiguous":
        nodes, edges = np.arange(num_nodes) + 0.5, (indptr[1:] + indptr[:-1]) / 2
        share = (nodes / num_nodes + edges / max(indptr[-1], 1)) / (2 if indptr[-1] else 1)
        return np.minimum(share * num_parts, num_parts - 1).astype(np.int32)
    halves = jax.device_get((graph.indptr, graph.cols, graph.t_indptr, graph.t_cols))
    parts = np.empty(num_nodes, np.int32)
    if method == "metis":
        parts[:] = _metis(halves, num_parts)
    if all(map(np.array_equal, halves[:2], halves[2:])):
        halves = (*halves[:2], None, None)  # the neighbours are the same both ways
    most_nodes = max(MOST_NODES * num_nodes / num_parts, -(-num_nodes // num_parts))
    limits = most_nodes, MOST_EDGES * float(indptr[-1]) / num_parts
    host_function("partition")(*halves, num_parts, *limits, ROUNDS, method == "metis", parts)
    return parts


def _metis(halves: Any, num_parts: int) -> Any:
    """Parts by METIS, which balances one number: of a node its edges and the mean of all."""
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "method='metis' needs pymetis: pip install 'jax-gnn-kernels[scale]'; 'stream' does not"
        ) from error
    import scipy.sparse

    indptr, cols, *_ = halves
    size = len(indptr) - 1
    ones = np.ones(indptr[-1], bool)
    matrix = scipy.sparse.csr_array((ones, cols[: indptr[-1]], indptr), shape=(size, size))
    both = (matrix + matrix.T).tocsr()
    both.setdiag(0)
    both.eliminate_zeros()
    _, parts = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(both.indptr, both.indices),
        vweights=np.diff(indptr) + max(int(indptr[-1]) // size, 1),
        options=pymetis.Options(seed=0),
    )
    return parts
