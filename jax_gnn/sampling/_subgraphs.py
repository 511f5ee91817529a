"""Subgraphs as batches: chosen nodes and all edges among them, at static shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, compaction_targets, in_range, take_ids
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import KeyWords, bits, integers_below, key_words
from jax_gnn.graph import Graph, register_serialization
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._rows import (
    Ids,
    as_nodes,
    check_positive,
    num_nodes_of,
    row_bounds,
    values_of,
)
from jax_gnn.sampling._search import distinct, rejection_sample, without_repeats
from jax_gnn.sampling._walks import walk

S = TypeVar("S")
SaintMethod = Literal["node", "edge", "walk"]
CHUNK = 2**14  # smallest number of edges that are visited together
_MAX_ROUNDS = 256  # draws for a node that has an edge
_WALK_STREAM = 255  # random stream of the walks' starts


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Subgraph:
    """Chosen nodes of a graph, and the edges among them.

    Attributes:
        graph: edges among the nodes, which are numbered by their places in ``node_ids``; a
            :class:`jax_gnn.Graph`, or of :func:`hgt_subgraph` a :class:`jax_gnn.HeteroGraph`. A
            Graph's ``edge_ids`` are places in the whole graph's order of edges:
            ``graph.edge_values(values)`` takes values from there.
        node_ids: ``(graph.num_nodes,)``, ids of the nodes in the whole graph; -1 is padding, which
            has no edges.
        overflow: ``()`` bool, whether the room was too small, so that nodes or edges were left out.

    Example:
        >>> whole = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> part = induced_subgraph(whole, jnp.array([2, 3, -1]), num_edges=2)
        >>> part
        Subgraph(num_nodes=3, num_edges=2)
        >>> part.graph.cols, part.graph.rows, part.graph.edge_ids
        (Array([ 0, -1], dtype=int32), Array([ 1, -1], dtype=int32), Array([ 3, -1], dtype=int32))
    """

    graph: Any
    node_ids: Array
    overflow: Array

    def node_values(self, values: ArrayLike) -> Array:
        """Select the rows of the subgraph's nodes from rows of the whole graph's nodes.

        Args:
            values: ``(num_nodes, *features)``, one row for each node of the whole graph.

        Returns:
            ``(graph.num_nodes, *features)`` in the dtype of ``values``, zeros for padding. If
            ``values`` has too few rows, missing rows are NaN (of integers, the extreme value).
            Arrays of numpy give one of numpy.

        Raises:
            TypeError: ``values`` are not numbers.
            ValueError: ``values`` is a scalar.
        """
        return values_of(self.node_ids, values)

    def __repr__(self) -> str:
        if getattr(self.node_ids, "shape", None) is None:  # a pytree of something else than arrays
            return f"Subgraph({self.graph}, {self.node_ids}, {self.overflow})"
        return f"Subgraph({repr(self.graph).removeprefix('Hetero').removeprefix('Graph(')}"


register_serialization(Subgraph)


@public
def induced_subgraph(graph: Graph, nodes: Ids, *, num_edges: int | None = None) -> Subgraph:
    """Return some nodes of a graph, and all edges among them.

    Works inside ``jax.jit`` and outside. Takes time in proportion to the edges into the nodes, and
    a table of all nodes.

    Args:
        graph: graph of one kind of nodes.
        nodes: ``(count,)`` integers. -1, as any id out of range, is padding; so is a repeated node.
        num_edges: room for edges; by default for all of the graph's. Further edges, the last by
            destination, are left out, and ``overflow`` is set.

    Returns:
        A graph of ``count`` nodes, in the order of ``nodes``.

    Raises:
        ValueError: ``num_edges`` is negative, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
        >>> induced_subgraph(graph, jnp.array([1, 2])).graph.edges()
        (array([0]), array([1]))
    """
    graph = arguments.check_container("graph", graph, Graph)
    num_nodes_of(graph)
    ids = arguments.as_ids("nodes", nodes)
    return induce(graph, ids, check_room("num_edges", num_edges, graph.num_edges))


@public
def cluster_batch(
    graph: Graph,
    parts: Ids,
    chosen: Ids,
    *,
    num_nodes: int | None = None,
    num_edges: int | None = None,
) -> Subgraph:
    """Return the nodes of some parts of a graph, and all edges among them, also between parts.

    Works inside ``jax.jit`` and outside. A batch of several parts, chosen anew each time, has edges
    between parts that no part alone would have (Chiang et al., "Cluster-GCN", KDD 2019, algorithm
    1). A layer that normalises by degrees uses those of the batch, as there.

    Args:
        graph: graph of one kind of nodes.
        parts: ``(num_nodes,)`` integers, the part of each node; a node of part -1 is in no batch.
        chosen: ``(count,)`` integers, the parts of the batch. -1 is padding.
        num_nodes: room for nodes; by default for all of the graph's. Further nodes, those of the
            largest ids, are left out, and ``overflow`` is set.
        num_edges: room for edges, as for :func:`induced_subgraph`.

    Returns:
        The subgraph of the nodes, by id ascending.

    Raises:
        ValueError: A shape does not fit, a number is negative, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> cluster_batch(graph, [0, 0, 1, 2], [0, 1], num_nodes=3, num_edges=4).node_ids
        Array([0, 1, 2], dtype=int32)
    """
    graph = arguments.check_container("graph", graph, Graph)
    size = num_nodes_of(graph)
    part_ids = arguments.as_ids("parts", parts)
    chosen_ids = arguments.as_ids("chosen", chosen)
    arguments.check_shape("parts", part_ids, f"(num_nodes={size},)", size)
    max_nodes = check_room("num_nodes", num_nodes, size)
    max_edges = check_room("num_edges", num_edges, graph.num_edges)
    return _cluster(graph, part_ids, chosen_ids, max_nodes, max_edges)


@public
def saint_subgraph(
    graph: Graph,
    num: int,
    key: Array,
    *,
    method: SaintMethod = "walk",
    walk_length: int = 2,
    num_edges: int | None = None,
) -> Subgraph:
    """Draw a random subgraph to train on, by one of GraphSAINT's samplers (Zeng et al., ICLR 2020).

    Works inside ``jax.jit`` and outside, and builds no table of probabilities. Nodes that have many
    edges are drawn more often: :func:`saint_norms` estimates the factors of losses and messages
    that correct for it.

    Args:
        graph: graph of one kind of nodes.
        num: number of nodes, edges or walks to draw, with replacement.
        key: key of ``jax.random``.
        method: ``"node"``: nodes in proportion to the edges out of them, as the authors' program
            draws them. ``"edge"``: both ends of edges, an edge from u to v in proportion to
            1 / (u's out-degree) + 1 / (v's in-degree). ``"walk"``: all nodes of walks along
            edges, from starts that are equally likely.
        walk_length: number of steps of a walk.
        num_edges: room for edges, as for :func:`induced_subgraph`.

    Returns:
        The subgraph of the distinct nodes that were drawn, by id ascending. It has room for
        ``num`` of them, ``2 * num`` or ``num * (walk_length + 1)``, or for all nodes if these are
        fewer.

    Raises:
        ValueError: A number is negative, ``method`` is unknown, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> saint_subgraph(graph, 1, jax.random.key(0), method="walk", walk_length=1)
        Subgraph(num_nodes=2, num_edges=4)
    """
    graph = arguments.check_container("graph", graph, Graph)
    size = num_nodes_of(graph)
    num = arguments.check_size("num", num)
    arguments.check_choice("method", method, get_args(SaintMethod))
    walk_length = arguments.check_size("walk_length", walk_length)
    max_edges = check_room("num_edges", num_edges, graph.num_edges)
    num_drawn = num * {"node": 1, "edge": 2, "walk": walk_length + 1}[method]
    words = key_words("key", key)
    return _saint(graph, words, num, method, walk_length, min(num_drawn, size), max_edges)


@public
def saint_norms(
    graph: Graph, sample: Callable[[Array], Subgraph], key: Array, *, num_samples: int = 100
) -> tuple[Array, Array]:
    """Estimate the factors that make sums over random subgraphs unbiased, from drawn subgraphs.

    Zeng et al., "GraphSAINT: graph sampling based inductive learning method", ICLR 2020, section 3.
    If C(v) of ``num_samples`` subgraphs have node v, and C(e) have edge e, a node's loss is divided
    by the estimate C(v) / num_samples of the probability of v, and a message along an edge into v
    by C(e) / C(v). Nodes and edges that were never drawn count as drawn once.

    Args:
        graph: the whole graph.
        sample: function of a key that returns a :class:`Subgraph` of the graph; traced once.
        key: key of ``jax.random``.
        num_samples: number of subgraphs that are drawn, one after the other.

    Returns:
        - Factors of nodes, ``(num_nodes,)`` float32. A subgraph's sum of losses times these is on
          average the sum over all nodes: divide it by the number of nodes, or of labels.
        - Factors of messages, ``(num_edges,)`` float32, in the graph's order; 0 for padding.
          ``part.graph.edge_values(factors)`` are the weights of a subgraph's edges, in a mean over
          neighbours beside 1 / degree of the whole graph.

    Raises:
        TypeError: An argument is of another type, or ``sample`` does not return a Subgraph.
        ValueError: ``num_samples`` is not positive, or a subgraph is larger than the graph.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> sample = lambda key: saint_subgraph(graph, 4, key, method="edge")
        >>> node_norm, edge_norm = saint_norms(graph, sample, jax.random.key(0))
        >>> part = sample(jax.random.key(1))
        >>> weights = part.graph.edge_values(edge_norm)
    """
    graph = arguments.check_container("graph", graph, Graph)
    num_nodes, num_edges, dtype = num_nodes_of(graph), graph.num_edges, graph.indptr.dtype
    arguments.check_callable("sample", sample)
    num_samples = check_positive("num_samples", num_samples)
    key_words("key", key)

    def count(counts: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], None]:
        part = sample(jax.random.fold_in(key, number))
        if not isinstance(part, Subgraph):
            raise TypeError(f"sample must give a Subgraph, got {type(part).__name__}")
        if part.graph.num_edges > num_edges:
            raise ValueError(
                f"sample must give parts of graph, of num_edges={num_edges}, got {part!r}"
            )
        nodes, edges = counts
        return (_increment(nodes, part.node_ids), _increment(edges, part.graph.edge_ids)), None

    zeros = jnp.zeros(num_nodes, dtype), jnp.zeros(num_edges, dtype)
    numbers = jnp.arange(num_samples, dtype=jnp.uint32)
    counts, _ = jax.lax.scan(count, zeros, numbers)
    by_node, by_edge = (jnp.maximum(array, 1).astype(jnp.float32) for array in counts)
    valid = in_range(graph.rows, num_nodes)
    by_dst = by_node.at[jnp.where(valid, graph.rows, 0)].get(mode="clip") if num_nodes else by_edge
    return jnp.float32(num_samples) / by_node, jnp.where(valid, by_dst / by_edge, jnp.float32(0))


def _increment(counts: Array, ids: Array) -> Array:
    size = counts.shape[0]
    return counts.at[jnp.where(in_range(ids, size), ids, size)].add(1, mode="drop")


def check_room(name: str, room: int | None, size: int) -> int:
    """Return the room for nodes or edges: at most all of them, by default for all."""
    return size if room is None else min(arguments.check_size(name, room), size)


# --- Nodes ---------------------------------------------------------------------------------------


@jit("num_nodes", "num_edges")
def _cluster(graph: Graph, parts: Array, chosen: Array, num_nodes: int, num_edges: int) -> Subgraph:
    # Part ids may be any integers, so they are looked up among the few chosen ones.
    size, dtype = parts.shape[0], graph.indptr.dtype
    chosen = jnp.sort(chosen)
    place = jnp.searchsorted(chosen, parts)
    match: Any = chosen.at[place].get(mode="fill", fill_value=PADDING) if chosen.shape[0] else -1
    keep = (parts >= 0) & (parts == match)
    target = jnp.minimum(compaction_targets(keep), num_nodes)
    nodes = jnp.full(num_nodes, PADDING, dtype)
    nodes = nodes.at[target].set(jnp.arange(size, dtype=dtype), mode="drop")
    part = induce(graph, nodes, num_edges)
    return replace(part, overflow=part.overflow | (keep.sum() > num_nodes))


@jit("num", "method", "walk_length", "num_nodes", "num_edges")
def _saint(
    graph: Graph,
    key: KeyWords,
    num: int,
    method: SaintMethod,
    walk_length: int,
    num_nodes: int,
    num_edges: int,
) -> Subgraph:
    size, dtype = graph.num_dst, graph.indptr.dtype
    index = jnp.arange(num, dtype=jnp.uint32)
    if method == "node":  # the source of a random edge
        count = jnp.clip(graph.t_indptr[-1], 0, graph.num_edges)
        place = integers_below(bits(key, 0, index, 0), count.astype(jnp.uint32)).astype(dtype)
        drawn = take_ids(graph.t_rows, jnp.where(count > 0, place, PADDING))
    elif method == "edge":
        drawn = _edge_ends(graph, key, index)
    else:
        random, limits = bits(key, _WALK_STREAM, index, 0), jnp.full(num, size, jnp.uint32)
        starts = integers_below(random, limits).astype(dtype)
        starts = starts if size else jnp.full_like(starts, PADDING)
        drawn = walk(graph, starts, key, walk_length, 1.0, 1.0, False).reshape(-1)
    nodes, _ = distinct(jnp.where(in_range(drawn, size), drawn, PADDING), num_nodes)
    return induce(graph, nodes, num_edges)


def _edge_ends(graph: Graph, key: KeyWords, index: Array) -> Array:
    """Draw both ends of edges, by 1 / out-degree of the source + 1 / in-degree of the destination.

    A node is drawn, as a source or as a destination, and one of its edges in that direction: all
    pairs of a node that has an edge and a direction are equally likely.
    """
    size, dtype, num_edges = graph.num_dst, graph.indptr.dtype, graph.num_edges
    if not size:
        return jnp.full(2 * index.shape[0], PADDING, dtype)

    def propose(step: Array) -> tuple[tuple[Array, ...], Array]:
        limits = jnp.full(index.shape, size, jnp.uint32)
        node = integers_below(bits(key, 0, index, step), limits).astype(dtype)
        random = bits(key, 1, index, step)
        forward = (bits(key, 2, index, step)[0] >> jnp.uint32(31)) == 0
        by_src = row_bounds(graph.t_indptr, node, num_edges)
        by_dst = row_bounds(graph.indptr, node, num_edges)
        starts, degrees = (jnp.where(forward, *pair) for pair in zip(by_src, by_dst, strict=True))
        place = starts + integers_below(random, degrees.astype(jnp.uint32)).astype(dtype)
        place = jnp.where(degrees > 0, place, PADDING)
        neighbor = jnp.where(forward, take_ids(graph.t_cols, place), take_ids(graph.cols, place))
        return (node, neighbor), degrees > 0

    padding = jnp.full(index.shape, PADDING, dtype)
    is_done = jnp.zeros(index.shape, bool)
    ends, _ = rejection_sample(propose, (padding, padding), is_done, _MAX_ROUNDS)
    return jnp.concatenate(ends)


# --- Edges among nodes ---------------------------------------------------------------------------


def visit_edges(
    graph: Graph, nodes: Array, chunk: int, visit: Callable[[S, Array, Array], S], state: S
) -> S:
    """Visit all edges into nodes, a chunk at a time: shapes do not depend on their number.

    ``visit`` maps a state, the edges' places among ``nodes``, and their places in the graph, -1 for
    padding, to the next state. Ids of -1 among ``nodes`` are padding.
    """
    dtype, num_whole = graph.indptr.dtype, graph.num_edges
    starts, degrees = row_bounds(graph.indptr, nodes, num_whole)
    # The visited edges are numbered node by node; `shift` maps a number to a place in the graph.
    stops = jnp.cumsum(degrees, dtype=dtype)
    shift = starts - (stops - degrees)
    total = stops[-1] if nodes.shape[0] else jnp.zeros((), dtype)
    chunk = max(1, min(num_whole, chunk))
    lanes = jnp.arange(chunk, dtype=dtype)

    def visit_chunk(carry: tuple[Array, S]) -> tuple[Array, S]:
        first, state = carry
        # An edge's row is the number of rows that stop at or before it.
        stopped = jnp.zeros(chunk, dtype).at[jnp.maximum(stops - first, 0)].add(1, mode="drop")
        row = jnp.cumsum(stopped, dtype=dtype)
        edge = jnp.where(lanes < total - first, take_ids(shift, row) + first + lanes, PADDING)
        return first + jnp.asarray(chunk, dtype), visit(state, row, edge)

    carry = jnp.zeros((), dtype), state
    return jax.lax.while_loop(lambda carry: carry[0] < total, visit_chunk, carry)[1]


@jit("room")
def induce(graph: Graph, nodes: Array, room: int) -> Subgraph:
    """Return the induced subgraph of nodes, with room for so many edges."""
    num_nodes, count, num_whole = graph.num_dst, nodes.shape[0], graph.num_edges
    dtype = graph.indptr.dtype
    nodes, table = without_repeats(as_nodes(nodes, num_nodes, dtype), num_nodes)

    State = tuple[Array, tuple[Array, ...]]

    def append(state: State, row: Array, edge: Array) -> State:
        num_kept, columns = state
        source = take_ids(table, take_ids(graph.cols, edge))
        is_inner = source >= 0
        target = jnp.where(is_inner, num_kept + compaction_targets(is_inner).astype(dtype), room)
        columns = tuple(
            column.at[target].set(ids, mode="drop")
            for column, ids in zip(columns, (row, source, edge), strict=True)
        )
        return num_kept + is_inner.sum(dtype=dtype), columns

    padding = jnp.full(room, PADDING, dtype)
    state: State = jnp.zeros((), dtype), (padding, padding, padding)
    num_kept, columns = visit_edges(graph, nodes, max(room, CHUNK), append, state)
    rows, cols, places = columns
    part = Graph.from_sorted(cols, rows, num_nodes=count, validate=False)
    part = jax.tree.map(lambda ids: ids.astype(dtype), part)
    part = replace(part, edge_ids=places, num_input_edges=jnp.asarray(num_whole, dtype))
    return Subgraph(part, nodes, num_kept > room)
