"""Neighbours of seeds, drawn at static shapes inside ``jax.jit``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, as_signed, index_dtype, is_traced, namespace, take_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling import _time, _weights
from jax_gnn.sampling._blocks import Blocks, seeds_of_sources
from jax_gnn.sampling._left_out import LeftOut
from jax_gnn.sampling._native import Drawn, block, uniform, weighted
from jax_gnn.sampling._random import host_words, key_words
from jax_gnn.sampling._relational import (
    Fanout,
    Relations,
    by_relation,
    check_relation_fanouts,
    is_sequence,
    joined_seeds,
    total,
)
from jax_gnn.sampling._rows import as_nodes, one_kind, row_bounds, values_at


class Rule(NamedTuple):
    """What draws need to know of edges: ``sums`` of weights, ``order`` and ``times``, or others."""

    sums: Any = None
    order: Any = None
    times: Any = None
    gone: LeftOut | None = None


@public
def sample_neighbors(
    graph: Graph | RelationalGraph | HeteroGraph,
    seeds: Any,
    fanouts: Sequence[Any],
    key: Any,
    *,
    replace: bool = False,
    edge_probability: Any = None,
    edge_time: Any = None,
    seed_time: Any = None,
    tree: bool = False,
    disjoint: bool = False,
    capacity: int | Sequence[int | None] | None = None,
) -> Blocks:
    """Draws neighbours of seeds, neighbours of these, and so on: a bipartite graph for each layer.

    Works inside ``jax.jit`` and outside, on the device where the graph lies. A graph of the host,
    built inside :func:`jax_gnn.host_arrays` or with memory maps, stays there: for seeds of numpy it
    gives numpy's blocks, by compiled threads, and no device is asked. All shapes follow from the
    number of seeds, ``fanouts`` and ``capacity``, so that an epoch is one compiled program.
    Edges are drawn into each node, as messages run: each of a node's edges is equally likely, or
    all are taken where there are no more than ``fanout``. All nodes of a layer are sampled anew for
    the next one. The same key gives the same blocks on every device.

    Args:
        graph: of one kind of nodes, :class:`jax_gnn.Graph`; or with relations, whose blocks are
            relational graphs of the same parts. Blocks of a :class:`jax_gnn.HeteroGraph` have the
            nodes that ``graph.relational`` has: ``graph.join(x_dict)[blocks.node_ids]``.
        seeds: ``(num_seeds,)`` integers, the nodes whose outputs are wanted. -1, as any id out of
            range, is padding: it has no neighbours. A seed may be given twice. Of a
            :class:`jax_gnn.HeteroGraph` a mapping of such by node type, one after the other.
        fanouts: how many edges to draw into each node, for each layer, that of the seeds first.
            With relations a number is for all of them together, and the edges of a
            ``self_relation`` are there beside; a mapping says how many of each, by name or number,
            and none of others.
        key: of ``jax.random``; or its words, uint32 of numpy, which need no device.
        replace: whether one edge may be drawn twice; then a node with an edge has ``fanout``.
        edge_probability: how likely edges are to be drawn, in proportion within those of a node;
            an edge of weight 0 never is. ``(num_edges,)`` real numbers from 0 in the graph's order,
            or :class:`EdgeProbability`, which is made of them once. Without replacement edges are
            drawn one after another, each in proportion to what is left.
        edge_time: ``(num_edges,)`` real numbers in the graph's order, or :class:`EdgeTime`, which
            sorts them once. Only edges whose time is no later than the seed's are drawn, in all
            layers, and as likely each. Neighbourhoods are disjoint then.
        seed_time: ``(num_seeds,)``, the times of the seeds, integers for times that are integers.
        tree: whether each drawn edge has a source of its own. This needs no sort, but a node that
            several edges start from is computed for each. By default nodes are distinct.
        disjoint: whether neighbourhoods of two seeds have no source in common: a node that both
            reach is two sources. ``seed_ids`` of the result says whose each is.
        capacity: at most so many sources of each block, in the order of ``fanouts``; None leaves
            the bound that follows from ``fanouts`` and the graph. Edges from nodes beyond it are
            left out, and ``overflow`` is set. One number is for all layers.

    Returns:
        The blocks, the outermost layer's first.

    Raises:
        TypeError: ``graph``, ``seeds`` or ``key`` is something else, or a number is no integer.
        ValueError: there are no fanouts, one is not positive, a capacity is smaller than the nodes
            that the layer is sampled for, the graph is bipartite, weights are negative or NaN,
            times are NaN, lengths do not fit, or there are times of edges without those of seeds,
            the other way round, or together with weights, fanouts by relation or a
            ``self_relation``; a relation or a node type is none of the graph's.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> blocks = sample_neighbors(graph, jnp.array([2]), (2, 2), jax.random.key(0))
        >>> features = jnp.arange(4.0)[:, None]
        >>> x = blocks.node_values(features)

    Source:
        Hamilton, Ying and Leskovec, "Inductive representation learning on large graphs", NeurIPS
        2017.
    """
    if isinstance(graph, HeteroGraph):
        seeds, graph = joined_seeds(graph, seeds), graph.relational
    graph, types, relations, by_layer = of_edges(graph, fanouts)
    arrays = graph.indptr, graph.cols
    disjoint = arguments.check_flag("disjoint", disjoint)
    rule = _rule(graph, edge_probability, edge_time)
    known = *arrays, *jax.tree.leaves((types, rule))
    on_host = namespace(*known) is np and not is_traced(key)
    on_host &= not any(isinstance(each, jax.Array) for each in (seeds, seed_time))
    seeds = arguments.check_ids("seeds", seeds, traced=not on_host)
    limits = _limits(rule, seed_time, seeds.shape[0])
    if limits is not None and relations is not None and relations.self_relation:
        raise ValueError(
            "graph must have no self_relation where edge_time is given, as these edges have no "
            "time, got self_relation=True"
        )
    if limits is not None and any(not isinstance(fanout, int) for fanout in by_layer):
        raise ValueError(
            f"fanouts must be numbers over all relations where edge_time is given, got {fanouts!r}"
        )
    replace = arguments.check_flag("replace", replace)
    tree = arguments.check_flag("tree", tree)
    disjoint = disjoint or limits is not None
    totals = tuple(total(fanout, relations) for fanout in by_layer)
    sizes = layer_sizes(
        *(seeds.shape[0], totals, graph, capacity), replace=replace, tree=tree, disjoint=disjoint
    )
    static = relations, by_layer, replace, tree, disjoint, sizes
    if on_host:  # a subclass of arrays, a memory map, would be one after every step
        start, col = (np.ascontiguousarray(ids).view(np.ndarray) for ids in arrays)
        types, rule, limits = jax.tree.map(np.asarray, (types, rule, limits))
        return sample(start, col, types, seeds, host_words("key", key), rule, limits, *static)
    words = key_words("key", key)
    traced = is_traced(*jax.tree.leaves((arrays, types, seeds, words, rule, limits)))
    draw = sample if traced else _compiled
    # Only what is read: a graph's other half is not moved to where it is sampled.
    types = None if types is None else as_signed(types)
    seeds, rule, limits = jax.tree.map(jnp.asarray, (seeds, rule, limits))
    indptr, cols = map(as_signed, arrays)
    return draw(indptr, cols, types, seeds, words, rule, limits, *static)


def of_edges(graph: Any, fanouts: Any) -> tuple[Graph, Any, Relations | None, tuple[Fanout, ...]]:
    """A graph's edges, their relations, what blocks have of these, and fanouts; all checked."""
    types = relations = None
    by_layer: tuple[Fanout, ...]
    if isinstance(graph, RelationalGraph):
        graph.check_arrays()
        by_layer = check_relation_fanouts("fanouts", fanouts, graph)
        types, relations, graph = graph.edge_types, Relations.of(graph), graph.nodes
    else:
        arguments.check_instance("graph", graph, Graph)
        by_layer = check_fanouts("fanouts", fanouts)
    check_whole(graph)
    return graph, types, relations, by_layer


@public
def block_capacity(
    graph: Graph | RelationalGraph | HeteroGraph,
    seeds: Any,
    fanouts: Sequence[Any],
    key: Any,
    *,
    slack: float = 0.1,
    **options: Any,
) -> tuple[int, ...]:
    """How many sources blocks have in some batches, and a little more: a ``capacity``.

    Room for whatever may be drawn is often several times what is drawn, as neighbourhoods overlap
    and nodes have fewer edges than ``fanouts``; and a model computes all of it.
    :attr:`Blocks.overflow` says whether a batch needed more: sample it again without a capacity,
    by the same key. Not inside ``jax.jit``, as it counts.

    Args:
        graph: as for :func:`sample_neighbors`.
        seeds: a few batches of equally many seeds, each as for :func:`sample_neighbors`.
        fanouts: likewise.
        key: likewise; each batch has another one, made of it.
        slack: the share of new sources that is added to the most that a batch had.
        **options: likewise.

    Returns:
        For each of ``fanouts`` a number of sources, a multiple of 64 above its destinations.

    Raises:
        TypeError: ``seeds`` are traced, ``slack`` is no number, or as :func:`sample_neighbors`.
        ValueError: there are no batches, they are not equally long, ``slack`` is negative, or as
            :func:`sample_neighbors`.

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
    most: Any = 0
    num_seeds: set[int] = set()
    for number, batch in enumerate(seeds):
        own = jax.random.fold_in(key, number)
        blocks = sample_neighbors(graph, batch, fanouts, own, **options)
        if is_traced(blocks.node_ids):
            raise TypeError("seeds must be known, as sources are counted, got traced ones")
        ids, parts = np.asarray(blocks.node_ids), blocks.graphs[::-1]
        new = [int((ids[each.num_dst : each.num_src] >= 0).sum()) for each in parts]
        most, num_seeds = np.maximum(most, new), num_seeds | {blocks.num_seeds}
    if len(num_seeds) != 1:
        raise ValueError(f"seeds must be batches of one length, got {sorted(num_seeds)}")
    room = np.maximum(np.ceil(np.asarray(most) * (1 + slack) / _UNIT), 1).astype(int) * _UNIT
    return tuple((num_seeds.pop() + np.cumsum(room)).tolist())


_UNIT = 64


def check_whole(graph: Any) -> None:
    """Refuses what is no graph of one kind of nodes; where it lies does not matter."""
    arguments.check_instance("graph", graph, Graph)
    graph.check_arrays()
    one_kind(graph, ", whose neighbours have neighbours")


def _rule(graph: Graph, edge_probability: Any, edge_time: Any) -> Rule | None:
    """What is to be known of edges, to draw them otherwise than all alike."""
    if edge_probability is not None and edge_time is not None:
        raise ValueError(
            "edge_probability must be None where edge_time is given: edges before a time are all "
            f"as likely, got {arguments.described(edge_probability)}"
        )
    if edge_probability is not None:
        return Rule(_weights.prepared("edge_probability", edge_probability, graph))
    if edge_time is not None:
        order, times = _time.prepared("edge_time", edge_time, graph)
        return Rule(order=order, times=times)
    return None


def _limits(rule: Rule | None, seed_time: Any, num_seeds: int) -> Any:
    """The times of seeds, which there must be just where edges have times."""
    times = None if rule is None else rule.times
    if (times is None) != (seed_time is None):
        given, missing = ("seed_time", "edge_time") if times is None else ("edge_time", "seed_time")
        raise ValueError(f"{given} needs {missing}, which must be given, too, got None")
    if times is None:
        return None
    limits = _time.check_times("seed_time", seed_time, "num_seeds", num_seeds)
    kinds = [jnp.issubdtype(each.dtype, np.integer) for each in (times, limits)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"seed_time must be integers or not as edge_time are, got {limits.dtype} for "
            f"{times.dtype}"
        )
    dtype = jnp.promote_types(times.dtype, limits.dtype)
    if dtype != times.dtype:
        raise TypeError(f"seed_time must fit edge_time of {times.dtype}, got {limits.dtype}")
    return limits.astype(dtype)


def check_fanouts(name: str, fanouts: Any) -> tuple[int, ...]:
    """Positive integers, one for each layer."""
    wanted = f"{name} must be a sequence of positive integers, one for each layer"
    if not is_sequence(fanouts):
        raise TypeError(f"{wanted}, got {arguments.described(fanouts)}")
    checked = tuple(arguments.check_integer(f"{name}[{i}]", f) for i, f in enumerate(fanouts))
    if not checked or min(checked) < 1:
        raise ValueError(f"{wanted}, got {list(checked)}")
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
    """How much room each block has, of edges and of sources, the seeds' block first."""
    if not is_sequence(capacity):
        capacity = (capacity,) * len(fanouts)
    capacity = tuple(capacity)
    if len(capacity) != len(fanouts):
        raise ValueError(
            f"capacity must be an integer, or one for each of {len(fanouts)} fanouts, got "
            f"{len(capacity)}"
        )
    sizes = []
    count = num_seeds
    for i, (fanout, bound) in enumerate(zip(fanouts, capacity, strict=True)):
        edges = count * fanout
        sources = count + edges
        if not (tree or disjoint):  # nodes are distinct, but seeds may come twice
            if not replace:  # and have each edge once
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
        index_dtype(count * fanout, sources)  # numbers below these are computed with
        sizes.append((edges, sources))
        count = sources
    return tuple(sizes)


def sample(
    indptr: Any,
    cols: Any,
    types: Any,
    seeds: Any,
    key: tuple[Any, Any],
    rule: Rule | None,
    limits: Any,
    relations: Relations | None,
    fanouts: tuple[Fanout, ...],
    replace: bool,
    tree: bool,
    disjoint: bool,
    sizes: tuple[tuple[int, int], ...],
) -> Blocks:
    """Blocks of what was checked; of arrays of numpy in numpy."""
    xp, num_nodes, num_whole = namespace(indptr, seeds), indptr.shape[0] - 1, cols.shape[0]
    nodes = as_nodes(seeds, num_nodes, indptr.dtype)
    owners = None
    if tree or disjoint:
        owners = xp.where(nodes < 0, PADDING, xp.arange(nodes.shape[0], dtype=nodes.dtype))
    overflow = xp.zeros((), bool)
    graphs: list[Any] = []
    for layer, (fanout, (num_edges, num_src)) in enumerate(zip(fanouts, sizes, strict=True)):
        starts, degrees = row_bounds(indptr, nodes, num_whole)
        until = None if limits is None or owners is None else values_at(limits, owners)

        def draw(
            starts: Any,
            degrees: Any,
            fanout: int,
            key: tuple[Any, Any],
            until: Any = until,
            layer: int = layer,
        ) -> tuple[Any, Any]:
            return _draw(rule, starts, degrees, until, fanout, key, layer, replace)

        if types is None or relations is None:
            offsets, counts = draw(starts, degrees, total(fanout), key)
        else:
            offsets, counts = by_relation(draw, types, starts, degrees, fanout, key, relations.own)
        apart = owners if disjoint and not tree else None
        drawn = Drawn(nodes, starts, offsets, counts, cols, apart)
        shape = num_nodes, num_edges, num_src
        # Edges into a node are in the whole graph's order where that is by relation.
        graph, nodes, over = block(drawn, *shape, tree=tree, ascending=relations is not None)
        owners = None if owners is None else seeds_of_sources(graph, owners)
        overflow |= over
        if relations is None or types is None:
            graphs.insert(0, graph)
        else:
            graphs.insert(0, relations.block(graph, take_ids(types, graph.edge_ids)))
    sizes_by_type = None if relations is None else relations.type_sizes
    return Blocks(tuple(graphs), nodes, overflow, owners, node_type_sizes=sizes_by_type)


_compiled = jax.jit(sample, static_argnums=(7, 8, 9, 10, 11, 12))


def _draw(
    rule: Rule | None,
    starts: Any,
    degrees: Any,
    limits: Any,
    fanout: int,
    key: tuple[Any, Any],
    layer: int,
    replace: bool,
) -> tuple[Any, Any]:
    """Places of edges in rows, ``(rows, fanout)``, and how many of them count."""
    if rule is not None and rule.sums is not None:
        return weighted(rule.sums, starts, degrees, fanout, key, layer, replace=replace)
    if rule is not None and rule.gone is not None:
        return rule.gone.draw(starts, degrees, fanout, key, layer, replace=replace)
    if rule is None or rule.order is None or rule.times is None or limits is None:
        return uniform(degrees, fanout, key, layer, replace=replace)
    known = _time.earlier(rule.times, starts, degrees, limits)
    places, counts = uniform(known, fanout, key, layer, replace=replace)
    return _time.in_rows(rule.order, places, starts, degrees), counts
