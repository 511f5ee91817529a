"""Neighbours of seeds, drawn at static shapes inside ``jax.jit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, as_signed, index_dtype, is_traced, namespace, take_ids
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import KeyWords, host_key_words, key_words
from jax_gnn._ops.sample_block.api import BlockOptions, block, uniform, weighted
from jax_gnn._ops.sample_block.primitive import BlockOperands
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling import _time, _weights
from jax_gnn.sampling._blocks import Blocks, source_seeds
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._excluded import ExcludedEdges
from jax_gnn.sampling._relational import (
    Fanout,
    Relations,
    check_relation_fanouts,
    draw_by_relation,
    is_sequence,
    join_seeds,
    total,
)
from jax_gnn.sampling._rows import Ids, as_nodes, check_edges, num_nodes_of, row_bounds, values_at
from jax_gnn.sampling._time import EdgeTime
from jax_gnn.sampling._weights import EdgeProbability

Capacity = int | Sequence[int | None] | None
FanoutLike = int | Mapping[object, int]
Rule = EdgeProbability | EdgeTime | ExcludedEdges | None
"""Rule by which edges are drawn; None is uniform."""

_CAPACITY_STEP = 64


class EdgeLists(NamedTuple):
    """Half of a graph that sampling reads: row pointers, sources and relations of the edges."""

    indptr: Array
    cols: Array
    types: Array | None


class SampleOptions(NamedTuple):
    """Static options of a sample; hashable."""

    fanouts: tuple[Fanout, ...]  # for each layer, the seeds' first
    sizes: tuple[tuple[int, int], ...]  # room for edges and for sources of each layer's block
    relations: Relations | None = None  # description of the relations, if there are any
    replace: bool = False  # whether an edge may be drawn again
    tree: bool = False  # whether each edge has a source of its own
    disjoint: bool = False  # whether a node is one source for each seed


@public
def sample_neighbors(
    graph: Graph | RelationalGraph | HeteroGraph,
    seeds: Ids | Mapping[str, Ids],
    fanouts: Sequence[FanoutLike],
    key: Array | np.ndarray,
    *,
    replace: bool = False,
    edge_probability: EdgeProbability | ArrayLike | Sequence[float] | None = None,
    edge_time: EdgeTime | ArrayLike | Sequence[float] | None = None,
    seed_time: ArrayLike | Sequence[float] | None = None,
    tree: bool = False,
    disjoint: bool = False,
    capacity: Capacity = None,
) -> Blocks:
    """Draw neighbours of seeds, neighbours of these, and so on: a bipartite graph for each layer.

    Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017.
    Works inside ``jax.jit`` and outside, on the device of the graph. A graph of the host, built
    inside :func:`jax_gnn.host_arrays` or with memory maps, stays there: for seeds of numpy the
    blocks are numpy's, by compiled threads, and no device is used. All shapes follow from the
    number of seeds, ``fanouts`` and ``capacity``, so that an epoch is one compiled program.
    Edges are drawn into each node, as messages run: all edges of a node are equally likely, or all
    are taken if there are no more than ``fanout``. All nodes of a layer are sampled anew for the
    next layer. The same key gives the same blocks on every device.

    Args:
        graph: one kind of nodes, :class:`jax_gnn.Graph`; or with relations, whose blocks are
            relational graphs of the same parts. Blocks of a :class:`jax_gnn.HeteroGraph` have the
            nodes of ``graph.relational``: ``graph.join(x_dict)[blocks.node_ids]``.
        seeds: ``(num_seeds,)`` integers, the nodes whose outputs are computed. -1, as any id out of
            range, is padding and has no neighbours. Seeds may repeat. For a
            :class:`jax_gnn.HeteroGraph` a mapping by node type, whose seeds are concatenated in the
            order of ``graph.node_types``, which results and ``seed_time`` have, too.
        fanouts: number of edges to draw into each node, for each layer, that of the seeds first;
            -1 is as many as any node has, for a graph that is not traced.
            With relations, a number is for all relations together, and edges of a
            ``self_relation`` come in addition; a mapping has the number for each relation, by name
            or number, and 0 for others.
        key: key of ``jax.random``; or its words, uint32 of numpy, which need no device.
        replace: whether one edge may be drawn twice; then any node with an edge has ``fanout``.
        edge_probability: ``(num_edges,)`` real numbers from 0 in the graph's order, or
            :class:`EdgeProbability`, prepared once. Edges of a node are drawn in proportion to
            them; an edge of weight 0 never is. Without replacement edges are drawn one after
            another, in proportion to the remaining weights.
        edge_time: ``(num_edges,)`` real numbers in the graph's order, or :class:`EdgeTime`, sorted
            once. Only edges whose time is no later than the seed's are drawn, in all layers, all
            equally likely. Implies ``disjoint``.
        seed_time: ``(num_seeds,)``, times of the seeds, integers if the edges' times are.
        tree: whether each drawn edge has a source of its own. This needs no sort, but a node from
            which several edges start is computed for each. By default nodes are distinct.
        disjoint: whether neighbourhoods of two seeds share no source: a node that both reach is two
            sources. ``seed_ids`` of the result has the seed of each source.
        capacity: bound on the sources of each block, in the order of ``fanouts``; one number is for
            all layers. None leaves the bound that follows from ``fanouts`` and the graph. Edges
            from further nodes are left out, and ``overflow`` is set.

    Returns:
        The blocks, the outermost layer's first.

    Raises:
        ValueError: A number or a length does not fit, a relation or a node type is none of the
            graph's, the graph is bipartite, or times are given for edges or seeds alone, or
            together with weights or fanouts by relation.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> blocks = sample_neighbors(graph, jnp.array([2]), (2, 2), jax.random.key(0))
        >>> features = jnp.arange(4.0)[:, None]
        >>> x = blocks.node_values(features)
    """
    if isinstance(graph, HeteroGraph):
        seeds, graph = join_seeds(graph, seeds), graph.relational
    edges, types, relations, by_layer = parse_graph(graph, fanouts)
    disjoint = arguments.check_flag("disjoint", disjoint)
    rule = parse_rule(graph, edge_probability, edge_time)
    arrays = jax.tree.leaves((edges.indptr, edges.cols, types, rule))
    on_host = namespace(*arrays) is np and not is_traced(key)
    on_host &= not any(isinstance(array, jax.Array) for array in (seeds, seed_time))
    nodes = arguments.check_ids("seeds", seeds, traced=not on_host)
    num_seeds = nodes.shape[0]
    limits = check_seed_time(rule, seed_time, num_seeds)
    if limits is not None and any(not isinstance(fanout, int) for fanout in by_layer):
        raise ValueError(
            f"fanouts must be numbers over all relations where edge_time is given, got {fanouts!r}"
        )
    replace = arguments.check_flag("replace", replace)
    tree = arguments.check_flag("tree", tree)
    disjoint = disjoint or limits is not None
    totals = tuple(total(fanout, relations) for fanout in by_layer)
    sizes = layer_sizes(
        num_seeds, totals, edges, capacity, replace=replace, tree=tree, disjoint=disjoint
    )
    options = SampleOptions(by_layer, sizes, relations, replace, tree, disjoint)
    if on_host:  # arrays of a subclass, a memory map, would give the subclass at every step
        lists = EdgeLists(edges.indptr, edges.cols, types)
        lists, rule, limits = jax.tree.map(np.ascontiguousarray, (lists, rule, limits))
        return sample(lists, nodes, host_key_words("key", key), rule, limits, options)
    # Only the arrays that are read: a graph's other half is not moved to the device.
    types = None if types is None else as_signed(types)
    lists = EdgeLists(as_signed(edges.indptr), as_signed(edges.cols), types)
    nodes, rule, limits = jax.tree.map(jnp.asarray, (nodes, rule, limits))
    words = key_words("key", key)
    traced = is_traced(*jax.tree.leaves((lists, nodes, words, rule, limits)))
    return (sample if traced else _compiled_sample)(lists, nodes, words, rule, limits, options)


@public
def block_capacity(
    graph: Graph | RelationalGraph | HeteroGraph,
    seeds: Sequence[Ids | Mapping[str, Ids]] | np.ndarray,
    fanouts: Sequence[FanoutLike],
    key: Array,
    *,
    slack: float = 0.1,
    **options: Any,
) -> tuple[int, ...]:
    """Return a ``capacity`` that some batches need, plus a little slack.

    Room for whatever may be drawn is often several times what is drawn, as neighbourhoods overlap
    and nodes have fewer edges than ``fanouts``; and a model computes all of it.
    :attr:`Blocks.overflow` says whether a batch needed more: sample it again without a capacity,
    by the same key. Not inside ``jax.jit``, as it counts.

    Args:
        graph: as for :func:`sample_neighbors`.
        seeds: a few batches of equally many seeds, each as for :func:`sample_neighbors`.
        fanouts: as for :func:`sample_neighbors`.
        key: key of ``jax.random``; each batch gets a key made of it.
        slack: share of new sources that is added to the maximum over the batches.
        **options: further options of :func:`sample_neighbors`.

    Returns:
        For each of ``fanouts`` a number of sources, a multiple of 64 above its destinations.

    Raises:
        TypeError: ``seeds`` are traced, or an argument is of another type.
        ValueError: Batches are missing or of several lengths, or an argument does not fit.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> block_capacity(graph, [[2], [3]], (2, 2), jax.random.key(0))
        (65, 129)
    """
    slack = arguments.check_finite("slack", slack)
    if not slack >= 0:
        raise ValueError(f"slack must be at least 0, got {slack}")
    key_words("key", key)
    if not is_sequence(seeds):
        raise TypeError(f"seeds must be a sequence of batches, got {arguments.described(seeds)}")
    new_sources: list[list[int]] = []
    num_seeds: set[int] = set()
    for number, batch in enumerate(seeds):
        blocks = sample_neighbors(graph, batch, fanouts, jax.random.fold_in(key, number), **options)
        if is_traced(blocks.node_ids):
            raise TypeError("seeds must be known, as sources are counted, got traced ones")
        is_source = np.asarray(blocks.node_ids) >= 0
        graphs = reversed(blocks.graphs)
        new_sources.append([int(is_source[g.num_dst : g.num_src].sum()) for g in graphs])
        num_seeds.add(blocks.num_seeds)
    if len(num_seeds) != 1:
        raise ValueError(f"seeds must be batches of one length, got {sorted(num_seeds)}")
    steps = np.ceil(np.max(new_sources, axis=0) * (1 + slack) / _CAPACITY_STEP)
    room = np.maximum(steps, 1).astype(int) * _CAPACITY_STEP
    return tuple((num_seeds.pop() + np.cumsum(room)).tolist())


# --- Arguments -----------------------------------------------------------------------------------


def parse_graph(
    graph: Any, fanouts: object
) -> tuple[Graph, Array | None, Relations | None, tuple[Fanout, ...]]:
    """Return a graph's edges, their relations and these relations' description, and fanouts."""
    edges = check_edges(graph)
    num_nodes_of(edges, ", whose neighbours have neighbours")
    fanouts = with_all_neighbors(fanouts, edges)
    if isinstance(graph, RelationalGraph):
        by_layer = check_relation_fanouts("fanouts", fanouts, graph)
        return edges, graph.edge_types, Relations.from_graph(graph), by_layer
    return edges, None, None, check_fanouts("fanouts", fanouts)


def with_all_neighbors(fanouts: Any, graph: Graph) -> Any:
    """Return fanouts with the largest number of edges into a node in place of -1."""
    if not is_sequence(fanouts) or not any(isinstance(n, int) and n == -1 for n in fanouts):
        return fanouts
    if is_traced(graph.indptr):
        raise ValueError(
            "fanouts must be positive inside jax.jit, where the number of all neighbours is not "
            f"known, got {fanouts!r}"
        )
    most = int(np.max(graph.in_degrees(), initial=1))
    return [most if isinstance(n, int) and n == -1 else n for n in fanouts]


def parse_rule(graph: Graph | RelationalGraph, edge_probability: object, edge_time: object) -> Rule:
    """Return the rule by which edges are drawn, from weights, times or neither."""
    if edge_probability is not None and edge_time is not None:
        raise ValueError(
            "edge_probability must be None where edge_time is given: edges before a time are all "
            f"as likely, got {arguments.described(edge_probability)}"
        )
    if edge_probability is not None:
        return _weights.edge_probability("edge_probability", edge_probability, edges_of(graph))
    if edge_time is not None:
        return _time.edge_time("edge_time", edge_time, graph)
    return None


def check_seed_time(rule: Rule, seed_time: object, num_seeds: int) -> Array | None:
    """Return the times of seeds, given if and only if edges have times, in the edges' dtype."""
    if isinstance(rule, EdgeTime) != (seed_time is not None):
        present, missing = ("edge_time", "seed_time")[:: 1 if seed_time is None else -1]
        raise ValueError(f"{present} needs {missing}, which must be given, too, got None")
    if not isinstance(rule, EdgeTime):
        return None
    return _time.check_limits("seed_time", seed_time, "num_seeds", num_seeds, rule)


def check_fanouts(name: str, fanouts: Any) -> tuple[int, ...]:
    """Return positive integers, one for each layer."""
    expected = f"{name} must be a sequence of positive integers, one for each layer"
    if not is_sequence(fanouts):
        raise TypeError(f"{expected}, got {arguments.described(fanouts)}")
    checked = tuple(arguments.check_integer(f"{name}[{i}]", f) for i, f in enumerate(fanouts))
    if not checked or min(checked) < 1:
        raise ValueError(f"{expected}, got {list(checked)}")
    return checked


def layer_sizes(
    num_seeds: int,
    fanouts: tuple[int, ...],
    graph: Graph,
    capacity: Any,
    *,
    replace: bool,
    tree: bool,
    disjoint: bool = False,
) -> tuple[tuple[int, int], ...]:
    """Return the room for edges and for sources of each block, the seeds' block first."""
    bounds: Any = tuple(capacity) if is_sequence(capacity) else (capacity,) * len(fanouts)
    if len(bounds) != len(fanouts):
        raise ValueError(
            f"capacity must be an integer, or one for each of {len(fanouts)} fanouts, got "
            f"{len(bounds)}"
        )
    sizes = []
    count = num_seeds
    for i, (fanout, bound) in enumerate(zip(fanouts, bounds, strict=True)):
        edges = count * fanout
        sources = count + edges
        # Distinct nodes, of which only seeds may repeat, have each edge once without replacement.
        if not (tree or disjoint):
            if not replace:
                edges = min(edges, graph.num_edges + num_seeds * fanout)
            sources = count + min(edges, graph.num_dst)
        if bound is not None:
            bound = arguments.check_integer(f"capacity[{i}]", bound)
            if tree:
                raise ValueError("capacity bounds distinct nodes: it must be None for tree=True")
            if bound < count:
                raise ValueError(
                    f"capacity[{i}] must be at least {count}, the nodes that are sampled for, got "
                    f"{bound}"
                )
            sources = min(sources, bound)
        index_dtype(count * fanout, sources)  # raises an error if indices need 64 bits
        sizes.append((edges, sources))
        count = sources
    return tuple(sizes)


# --- Draws ---------------------------------------------------------------------------------------


class DrawnLayer(NamedTuple):
    """Edges drawn into the nodes of a layer, as places in lists of edges."""

    starts: Array  # (nodes,), first edge of each node
    offsets: Array  # (nodes, fanout), drawn edges, as offsets from `starts`
    counts: Array  # (nodes,), number of valid draws, which come first
    cols: Array  # (edges,), sources of the edges
    types: Array | None  # (edges,), relations of the edges, if there are any
    edge_ids: Array | None = None  # (edges,), ids of the edges; None if these are their places


def sample(
    edges: EdgeLists,
    seeds: Array,
    key: KeyWords,
    rule: Rule,
    limits: Array | None,
    options: SampleOptions,
) -> Blocks:
    """Return the blocks of seeds, from checked arguments; in numpy for arrays of numpy."""
    num_nodes = edges.indptr.shape[0] - 1

    def draw(nodes: Array, seed_ids: Array | None, layer: int) -> DrawnLayer:
        until = None if limits is None or seed_ids is None else values_at(limits, seed_ids)
        drawn = draw_edges(edges, nodes, key, rule, until, layer, options)
        return DrawnLayer(*drawn, edges.cols, edges.types)

    nodes = as_nodes(seeds, num_nodes, edges.indptr.dtype)
    return build_blocks(nodes, num_nodes, draw, options)


def draw_edges(
    edges: EdgeLists,
    nodes: Array,
    key: KeyWords,
    rule: Rule,
    until: Array | None,
    layer: int,
    options: SampleOptions,
) -> tuple[Array, Array, Array]:
    """Draw edges of each node, up to its time `until`: starts, offsets and counts as drawn."""
    indptr, cols, types = edges
    fanout, relations = options.fanouts[layer], options.relations
    starts, degrees = row_bounds(indptr, nodes, cols.shape[0])
    draw = partial(_draw, rule=rule, limits=until, layer=layer, replace=options.replace)
    if types is None or relations is None:
        return starts, *draw(starts, degrees, total(fanout), key)
    self_relation_id = relations.self_relation_id
    return starts, *draw_by_relation(draw, types, starts, degrees, fanout, key, self_relation_id)


def build_blocks(
    nodes: Array,
    num_nodes: int,
    draw: Callable[[Array, Array | None, int], DrawnLayer],
    options: SampleOptions,
) -> Blocks:
    """Return the blocks of seeds; `draw` maps a layer's nodes, their seeds and its number."""
    xp, relations = namespace(nodes), options.relations
    # The seed of each node of the layer, if neighbourhoods are disjoint.
    seed_ids = None
    if options.tree or options.disjoint:
        seed_ids = xp.where(nodes < 0, PADDING, xp.arange(nodes.shape[0], dtype=nodes.dtype))
    overflow = xp.zeros((), bool)
    graphs: list[Graph | RelationalGraph] = []
    for layer, sizes in enumerate(options.sizes):
        starts, offsets, counts, cols, types, edge_ids = draw(nodes, seed_ids, layer)
        minor = seed_ids if options.disjoint and not options.tree else None
        # Edges into a node are put in the whole graph's order if that is by relation.
        block_options = BlockOptions(
            num_nodes=num_nodes,
            num_edges=sizes[0],
            num_src=sizes[1],
            is_tree=options.tree,
            ascending=relations is not None,
        )
        operands = BlockOperands(nodes, starts, offsets, counts, cols, minor)
        graph, nodes, overflows = block(operands, block_options)
        seed_ids = None if seed_ids is None else source_seeds(graph, seed_ids)
        overflow |= overflows
        types = None if types is None else take_ids(types, graph.edge_ids)
        if edge_ids is not None:
            graph = replace(graph, edge_ids=take_ids(edge_ids, graph.edge_ids))
        if relations is None or types is None:
            graphs.insert(0, graph)
        else:
            graphs.insert(0, relations.block(graph, types))
    type_sizes = None if relations is None else relations.type_sizes
    return Blocks(tuple(graphs), nodes, overflow, seed_ids, node_type_sizes=type_sizes)


_compiled_sample = jit("options")(sample)


def _draw(
    starts: Array,
    degrees: Array,
    fanout: int,
    key: KeyWords,
    *,
    rule: Rule,
    limits: Array | None,
    layer: int,
    replace: bool,
) -> tuple[Array, Array]:
    """Return offsets of drawn edges in rows, ``(rows, fanout)``, and the number of valid ones."""
    if isinstance(rule, EdgeProbability):
        return weighted(rule.sums, starts, degrees, fanout, key, layer, replace=replace)
    if isinstance(rule, ExcludedEdges):
        return rule.draw(starts, degrees, fanout, key, layer, replace=replace)
    if rule is None or limits is None:
        return uniform(degrees, fanout, key, layer, replace=replace)
    num_candidates = _time.num_until(rule.times, starts, degrees, limits)
    offsets, counts = uniform(num_candidates, fanout, key, layer, replace=replace)
    return _time.graph_offsets(rule.order, offsets, starts, degrees), counts
