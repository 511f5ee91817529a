"""Parts of a graph as batches: chosen nodes and all edges among them, at static shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import jax
import jax.export
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, compaction_targets, in_range, take_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.sampling._random import below, bits, key_words
from jax_gnn.sampling._rows import as_nodes, one_kind, row_bounds, values_of
from jax_gnn.sampling._search import distinct, redrawn
from jax_gnn.sampling._walks import _walk_plain

SaintMethod = Literal["node", "edge", "walk"]
_ROUNDS = 256  # draws for a node that has an edge
CHUNK = 2**14  # edges that are looked at together, at least


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Subgraph:
    """Chosen nodes of a graph, and the edges among them.

    Attributes:
        graph: the edges among the nodes, which are numbered by their places in ``node_ids``; a
            :class:`jax_gnn.Graph`, or of :func:`hgt_subgraph` a :class:`jax_gnn.HeteroGraph`. A
            Graph's ``edge_ids`` are places in the whole graph's order of edges:
            ``graph.edge_values(values)`` takes values from there.
        node_ids: ``(graph.num_nodes,)``, which nodes of the whole graph they are, to gather
            features by; -1 is padding, which has no edges.
        overflow: ``()`` bool, whether there was too little room, so that nodes or edges were left
            out.

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

    def node_values(self, values: Any) -> Any:
        """Rows of the whole graph's nodes, such as features, of the subgraph's nodes.

        Args:
            values: ``(num_nodes, *features)``, one row for each node of the whole graph.

        Returns:
            ``(graph.num_nodes, *features)`` in the dtype of ``values``, zeros for padding. Where
            ``values`` has too few rows, the rest are NaN (of integers, the extreme value). Of
            arrays of numpy it is one.

        Raises:
            TypeError: ``values`` are not numbers.
            ValueError: ``values`` is a scalar.
        """
        return values_of(self.node_ids, values)

    def __repr__(self) -> str:
        if getattr(self.node_ids, "shape", None) is None:  # a pytree of something else than arrays
            return f"Subgraph({self.graph}, {self.node_ids}, {self.overflow})"
        return f"Subgraph({repr(self.graph).removeprefix('Hetero').removeprefix('Graph(')}"


@public
def induced_subgraph(graph: Graph, nodes: Any, *, num_edges: int | None = None) -> Subgraph:
    """Some nodes of a graph, and all edges among them.

    Works inside ``jax.jit`` and outside. The time is that of the edges into the nodes; a table of
    all nodes is made.

    Args:
        graph: of one kind of nodes.
        nodes: ``(count,)`` integers. -1, as any id out of range, is padding; so is a node that was
            given before.
        num_edges: room for edges; by default for all of the graph's. Where there are more, those
            that are last by destination are left out, and ``overflow`` is set.

    Returns:
        A graph of ``count`` nodes, in the order that they were given in.

    Raises:
        TypeError: ``graph`` is something else, ``nodes`` are no integers, or ``num_edges`` is none.
        ValueError: ``num_edges`` is negative, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
        >>> induced_subgraph(graph, jnp.array([1, 2])).graph.edges()
        (array([0]), array([1]))
    """
    graph = arguments.check_container("graph", graph, Graph)
    one_kind(graph)
    nodes = arguments.as_ids("nodes", nodes)
    return _induced(graph, nodes, _room("num_edges", num_edges, graph.num_edges))


@public
def cluster_batch(
    graph: Graph,
    parts: Any,
    chosen: Any,
    *,
    num_nodes: int | None = None,
    num_edges: int | None = None,
) -> Subgraph:
    """The nodes of some parts of a graph, and all edges among them: those between parts, too.

    Works inside ``jax.jit`` and outside. A batch of several parts, chosen anew each time, has edges
    between parts that no part alone would have (Cluster-GCN, algorithm 1). A layer that normalises
    by degrees takes those of the batch, as there.

    Args:
        graph: of one kind of nodes.
        parts: ``(num_nodes,)`` integers, which part each node is in; a node of none, -1, is in no
            batch.
        chosen: ``(count,)`` integers, which parts are wanted. -1 is padding.
        num_nodes: room for nodes; by default for all of the graph's. Nodes beyond it, those of the
            largest ids, are left out, and ``overflow`` is set.
        num_edges: room for edges, as for :func:`induced_subgraph`.

    Returns:
        The subgraph of the nodes, by id ascending.

    Raises:
        TypeError: ``graph`` is something else, ``parts`` or ``chosen`` are no integers, or a number
            is none.
        ValueError: ``parts`` has not one element for each node, a number is negative, or the graph
            is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> cluster_batch(graph, [0, 0, 1, 2], [0, 1], num_nodes=3, num_edges=4).node_ids
        Array([0, 1, 2], dtype=int32)

    Source:
        Chiang et al., "Cluster-GCN: an efficient algorithm for training deep and large graph
        convolutional networks", KDD 2019.
    """
    graph = arguments.check_container("graph", graph, Graph)
    size = one_kind(graph)
    parts = arguments.as_ids("parts", parts)
    chosen = arguments.as_ids("chosen", chosen)
    if parts.shape != (size,):
        raise ValueError(f"parts must be (num_nodes={size},), got shape {parts.shape}")
    nodes = _room("num_nodes", num_nodes, size)
    return _cluster(graph, parts, chosen, nodes, _room("num_edges", num_edges, graph.num_edges))


@public
def saint_subgraph(
    graph: Graph,
    num: int,
    key: Any,
    *,
    method: SaintMethod = "walk",
    walk_length: int = 2,
    num_edges: int | None = None,
) -> Subgraph:
    """A random subgraph to train on, by one of GraphSAINT's samplers.

    Works inside ``jax.jit`` and outside, and builds no table of probabilities. Nodes that have many
    edges are there more often: :func:`saint_norms` says by how much losses and messages are to be
    scaled.

    Args:
        graph: of one kind of nodes.
        num: how many nodes, edges or walks to draw, with replacement.
        key: of ``jax.random``.
        method: ``"node"``: nodes in proportion to the edges out of them, as the authors' program
            draws them. ``"edge"``: both ends of edges, an edge from u to v in proportion to
            1 / (u's out-degree) + 1 / (v's in-degree). ``"walk"``: all nodes of walks along
            edges, from starts that are equally likely.
        walk_length: how many steps the walks have.
        num_edges: room for edges, as for :func:`induced_subgraph`.

    Returns:
        The subgraph of the distinct nodes that were drawn, by id ascending. It has room for
        ``num`` of them, ``2 * num`` or ``num * (walk_length + 1)``, or for all nodes if these are
        fewer.

    Raises:
        TypeError: ``graph`` or ``key`` is something else, or a number is no integer.
        ValueError: a number is negative, ``method`` is unknown, or the graph is bipartite.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> saint_subgraph(graph, 1, jax.random.key(0), method="walk", walk_length=1)
        Subgraph(num_nodes=2, num_edges=4)

    Source:
        Zeng et al., "GraphSAINT: graph sampling based inductive learning method", ICLR 2020.
    """
    graph = arguments.check_container("graph", graph, Graph)
    size = one_kind(graph)
    num = arguments.check_size("num", num)
    arguments.check_choice("method", method, get_args(SaintMethod))
    walk_length = arguments.check_size("walk_length", walk_length)
    room = _room("num_edges", num_edges, graph.num_edges)
    drawn = num * {"node": 1, "edge": 2, "walk": walk_length + 1}[method]
    words = key_words("key", key)
    return _saint(graph, words, num, method, walk_length, min(drawn, size), room)


@public
def saint_norms(
    graph: Graph, sample: Callable[[Array], Subgraph], key: Any, *, num_samples: int = 100
) -> tuple[Array, Array]:
    """Factors that make sums over random subgraphs unbiased, counted in subgraphs drawn ahead.

    With C(v) how many of ``num_samples`` subgraphs have node v, and C(e) how many have edge e, a
    node's loss is divided by the estimate C(v) / num_samples of the probability of v, and a message
    along an edge into v by C(e) / C(v). What was never drawn counts as drawn once.

    Args:
        graph: the whole graph.
        sample: gives a :class:`Subgraph` of it for a key; traced once.
        key: of ``jax.random``.
        num_samples: how many subgraphs are drawn, one after the other.

    Returns:
        - Factors of nodes, ``(num_nodes,)`` float32. The sum of a subgraph's losses by these is on
          average that over all nodes: divide it by how many there are, or have labels.
        - Factors of messages, ``(num_edges,)`` float32, in the graph's order; 0 for padding.
          ``part.graph.edge_values(factors)`` are the weights of a subgraph's edges, in a mean over
          neighbours beside 1 / degree of the whole graph.

    Raises:
        TypeError: ``graph`` or ``key`` is something else, ``sample`` is no function or gives no
            Subgraph, or ``num_samples`` is no integer.
        ValueError: ``num_samples`` is not positive, or a subgraph is larger than the graph.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> sample = lambda key: saint_subgraph(graph, 4, key, method="edge")
        >>> node_norm, edge_norm = saint_norms(graph, sample, jax.random.key(0))
        >>> part = sample(jax.random.key(1))
        >>> weights = part.graph.edge_values(edge_norm)

    Source:
        Zeng et al., "GraphSAINT: graph sampling based inductive learning method", ICLR 2020,
        sections 3.2 and 3.3.
    """
    graph = arguments.check_container("graph", graph, Graph)
    num_nodes, num_edges, dtype = one_kind(graph), graph.num_edges, graph.indptr.dtype
    arguments.check_callable("sample", sample)
    num_samples = arguments.check_integer("num_samples", num_samples)
    if num_samples < 1:
        raise ValueError(f"num_samples must be positive, got {num_samples}")
    key_words("key", key)

    def count(counts: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], None]:
        part = sample(jax.random.fold_in(key, number))
        if not isinstance(part, Subgraph):
            raise TypeError(f"sample must give a Subgraph, got {type(part).__name__}")
        if part.graph.num_edges > num_edges:
            raise ValueError(
                f"sample must give parts of graph, of num_edges={num_edges}, got {part!r}"
            )
        ids = part.node_ids, part.graph.edge_ids
        added = (_added(*each) for each in zip(counts, ids, strict=True))
        return tuple(added), None  # type: ignore[return-value]

    none = jnp.zeros(num_nodes, dtype), jnp.zeros(num_edges, dtype)
    numbers = jnp.arange(num_samples, dtype=jnp.uint32)
    (nodes, edges), _ = jax.lax.scan(count, none, numbers)
    by_node, by_edge = (jnp.maximum(each, 1).astype(jnp.float32) for each in (nodes, edges))
    there = in_range(graph.rows, num_nodes)
    into = by_node.at[jnp.where(there, graph.rows, 0)].get(mode="clip") if num_nodes else by_edge
    return jnp.float32(num_samples) / by_node, jnp.where(there, into / by_edge, jnp.float32(0))


def _added(counts: Array, ids: Array) -> Array:
    size = counts.shape[0]
    return counts.at[jnp.where(in_range(ids, size), ids, size)].add(1, mode="drop")


def _room(name: str, given: Any, most: int) -> int:
    return most if given is None else min(arguments.check_size(name, given), most)


# --- Nodes ---------------------------------------------------------------------------------------


def _cluster_plain(
    graph: Graph, parts: Array, chosen: Array, num_nodes: int, num_edges: int
) -> Subgraph:
    # Parts have any numbers: looked up among the chosen ones, of which there are few.
    size, dtype = parts.shape[0], graph.indptr.dtype
    wanted = jnp.sort(chosen)
    place = jnp.searchsorted(wanted, parts)
    found = wanted.at[place].get(mode="fill", fill_value=PADDING) if chosen.shape[0] else -1
    keep = (parts >= 0) & (parts == found)
    target = jnp.minimum(compaction_targets(keep), num_nodes)
    nodes = jnp.full(num_nodes, PADDING, dtype)
    nodes = nodes.at[target].set(jnp.arange(size, dtype=dtype), mode="drop")
    part = _induced_plain(graph, nodes, num_edges)
    return replace(part, overflow=part.overflow | (keep.sum() > num_nodes))


_cluster = jax.jit(_cluster_plain, static_argnums=(3, 4))


def _saint_plain(
    graph: Graph,
    key: tuple[Array, Array],
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
        place = below(bits(key, 0, index, 0), count.astype(jnp.uint32)).astype(dtype)
        drawn = take_ids(graph.t_rows, jnp.where(count > 0, place, PADDING))
    elif method == "edge":
        drawn = _edge_ends(graph, key, index)
    else:
        starts = below(bits(key, 255, index, 0), jnp.full(num, size, jnp.uint32)).astype(dtype)
        starts = starts if size else jnp.full_like(starts, PADDING)
        drawn = _walk_plain(graph, starts, key, walk_length, 1.0, 1.0, False).reshape(-1)
    nodes, _ = distinct(jnp.where(in_range(drawn, size), drawn, PADDING), num_nodes)
    return _induced_plain(graph, nodes, num_edges)


_saint = jax.jit(_saint_plain, static_argnums=(2, 3, 4, 5, 6))


def _edge_ends(graph: Graph, key: tuple[Array, Array], index: Array) -> Array:
    """Both ends of edges, by 1 / out-degree of the source + 1 / in-degree of the destination.

    A node is drawn, as a source or as a destination, and one of its edges there: all pairs of a
    node with an edge, and a side, are equally likely.
    """
    size, dtype, num_edges = graph.num_dst, graph.indptr.dtype, graph.num_edges
    if not size:
        return jnp.full(2 * index.shape[0], PADDING, dtype)

    def draw(step: Array) -> tuple[tuple[Array, ...], Array]:
        random = bits(key, 0, index, step)
        node = below(random, jnp.full(index.shape, size, jnp.uint32)).astype(dtype)
        other = bits(key, 1, index, step)
        forward = (bits(key, 2, index, step)[0] >> jnp.uint32(31)) == 0
        by_src, by_dst = (
            row_bounds(each, node, num_edges) for each in (graph.t_indptr, graph.indptr)
        )
        starts, degrees = (jnp.where(forward, *pair) for pair in zip(by_src, by_dst, strict=True))
        place = starts + below(other, degrees.astype(jnp.uint32)).astype(dtype)
        place = jnp.where(degrees > 0, place, PADDING)
        end = jnp.where(forward, take_ids(graph.t_cols, place), take_ids(graph.cols, place))
        return (node, end), degrees > 0

    none = jnp.full(index.shape, PADDING, dtype)
    ends, _ = redrawn(draw, (none, none), jnp.zeros(index.shape, bool), _ROUNDS)
    return jnp.concatenate(ends)


# --- Edges among nodes ---------------------------------------------------------------------------


def edges_into(
    graph: Graph, nodes: Array, chunk: int, visit: Callable[[Any, Array, Array], Any], state: Any
) -> Any:
    """Looks at all edges into nodes, a chunk at a time, so that only time depends on how many.

    Args:
        graph: the whole graph.
        nodes: ``(count,)``, -1 for padding.
        chunk: how many edges are looked at together.
        visit: of a state, the edges' places among ``nodes``, and their places in the graph, -1 for
            none, gives the next state.
        state: the first one.
    """
    dtype, num_whole = graph.indptr.dtype, graph.num_edges
    starts, degrees = row_bounds(graph.indptr, nodes, num_whole)
    stops = jnp.cumsum(degrees, dtype=dtype)  # of each node's edges, one behind the other
    shift = starts - (stops - degrees)
    total = stops[-1] if nodes.shape[0] else jnp.zeros((), dtype)
    chunk = max(1, min(num_whole, chunk))
    lanes = jnp.arange(chunk, dtype=dtype)

    def once(state: Any) -> Any:
        first, own = state
        ahead = jnp.zeros(chunk, dtype).at[jnp.maximum(stops - first, 0)].add(1, mode="drop")
        row = jnp.cumsum(ahead, dtype=dtype)
        edge = jnp.where(lanes < total - first, take_ids(shift, row) + first + lanes, PADDING)
        return first + jnp.asarray(chunk, dtype), visit(own, row, edge)

    zero = jnp.zeros((), dtype)
    return jax.lax.while_loop(lambda state: state[0] < total, once, (zero, state))[1]


def _induced_plain(graph: Graph, nodes: Array, room: int) -> Subgraph:
    num_nodes, count, num_whole = graph.num_dst, nodes.shape[0], graph.num_edges
    dtype = graph.indptr.dtype
    nodes = as_nodes(nodes, num_nodes, dtype)
    steps = jnp.arange(count, dtype=dtype)
    # Where each node is: of equal ones the first counts.
    place = jnp.where(nodes < 0, num_nodes, nodes)
    table = jnp.full(num_nodes, count, dtype).at[place].min(steps, mode="drop")
    table = jnp.where(table < count, table, PADDING)
    nodes = jnp.where(take_ids(table, nodes) == steps, nodes, PADDING)

    def keep(state: Any, row: Array, edge: Array) -> Any:
        """Keeps the edges that come from nodes."""
        kept, columns = state
        source = take_ids(table, take_ids(graph.cols, edge))
        there = source >= 0
        target = jnp.where(there, kept + compaction_targets(there).astype(dtype), room)
        new = row, source, edge
        columns = tuple(
            column.at[target].set(each, mode="drop")
            for column, each in zip(columns, new, strict=True)
        )
        return kept + there.sum(dtype=dtype), columns

    zero, none = jnp.zeros((), dtype), jnp.full(room, PADDING, dtype)
    chunk = max(room, CHUNK)
    kept, (rows, cols, places) = edges_into(graph, nodes, chunk, keep, (zero, (none, none, none)))
    part = Graph.from_sorted(cols, rows, num_nodes=count, validate=False)
    part = jax.tree.map(lambda ids: ids.astype(dtype), part)
    part = replace(part, edge_ids=places, num_input_edges=jnp.asarray(num_whole, dtype))
    return Subgraph(part, nodes, kept > room)


_induced = jax.jit(_induced_plain, static_argnums=(2,))

jax.export.register_pytree_node_serialization(
    Subgraph,
    serialized_name="jax_gnn.Subgraph",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: (),
)
