"""Sampled neighbourhoods on the parts of a graph: owners of nodes draw and answer.

Blocks are built of places, the rows of nodes in the concatenated rows of all devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, take
from jax_gnn._core.ids import PADDING, in_range, is_traced, take_ids
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import threefry
from jax_gnn.graph import Graph
from jax_gnn.relational import edges_of
from jax_gnn.sampling import Blocks, SeedBatch
from jax_gnn.sampling._loader import import_grain
from jax_gnn.sampling._neighbors import (
    Capacity,
    DrawnLayer,
    EdgeLists,
    FanoutLike,
    SampleOptions,
    build_blocks,
    check_fanouts,
    draw_edges,
    layer_sizes,
    with_all_neighbors,
)
from jax_gnn.sampling._relational import Relations, check_relation_fanouts, total
from jax_gnn.sampling._rows import Ids, as_nodes, check_positive
from jax_gnn.sharding._cached_rows import (
    CachedRows,
    choose_places,
    copy_rows,
    expected_requests,
    round_up,
)
from jax_gnn.sharding._host_rows import HostRows
from jax_gnn.sharding._owners import Owners
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart

if TYPE_CHECKING:
    from jax_gnn.sharding._sharded import ShardedGraph

_NO_ROW = np.uint32(2**32 - 1)  # in the counter of no draw


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class ShardedSeeds:
    """Batch of seeds of :meth:`ShardedGraph.neighbor_batches`, which :meth:`sample` draws for.

    All arrays have a leading axis of devices: pass the batch to :meth:`ShardedGraph.apply`.

    Attributes:
        seeds: ``(devices, batch_size)``, rows of own nodes on their device; -1 is padding.
        keys: ``(devices, 2)`` uint32, a key for each device.
        places: ``(devices, num_src)``, for each source of a part its owner's number times the
            capacity of owners, plus its row there; the same array in all batches.
        node_ids: ``(devices, capacity)``, the ``node_ids`` of the graph.
        options: fanouts and sizes.
        seed_rates: ``(devices, capacity)``, how often each node is a seed of a batch, on average.
        expected: for each layer, and the rows of the sources, the expected number of nodes of one
            device that another one asks about in a batch.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> x = sharded.shard(jnp.array([1.0, 2.0, 3.0]))
        >>> batch = sharded.neighbor_batches([0], 1, (2,))[0]
        >>> sharded.apply(lambda part, batch, x: batch.sample(part, x=x).x, batch, x)
        Array([[1., 2., 3.]], dtype=float32)
    """

    seeds: Any
    keys: Any
    places: Array
    node_ids: Array
    seed_rates: Array
    options: SampleOptions = field(metadata=STATIC)
    expected: tuple[int, ...] = field(metadata=STATIC)

    def sample(self, part: Part | RelationalPart, *, x: Any = None, y: Any = None) -> SeedBatch:
        """Draw the neighbourhoods of a device's seeds. Only inside :meth:`ShardedGraph.apply`.

        Args:
            part: the device's part.
            x: ``(capacity, *features)`` of own nodes, or a pytree of such; rows of all sources are
                fetched from their owners, and gradients return to them. Or :class:`CachedRows`,
                which have no gradient. Rows in memory of the host are fetched by
                :meth:`ShardedGraph.fetch_ahead` instead.
            y: ``(capacity, *features)`` of own nodes, or a pytree of such; rows of the seeds are
                taken.

        Returns:
            Blocks with ids of nodes and edges in the whole graph, with ``x`` and ``y`` as of
            `neighbor_batches`. ``seeds`` are rows of own nodes.

        Raises:
            TypeError: rows are in memory of the host.
            ValueError: the call is not in `jax.shard_map`, a number of rows does not fit, or
                `CachedRows` are differentiated.
        """
        return self.sample_places(part, x, y)[0]

    def sample_places(
        self, part: Part | RelationalPart, x: Any, y: Any
    ) -> tuple[SeedBatch, Owners, Array]:
        """Return the result of :meth:`sample`, and places of the sources with their owners."""
        for name, rows in (("x", x.rows if isinstance(x, CachedRows) else x), ("y", y)):
            check_rows(name, rows, (edges_of(part).num_dst,))
        owners, blocks, seeds = self._draw(part)
        places = blocks.node_ids
        if isinstance(x, CachedRows):
            node_ids, rows = x.fetch(owners, places, self.node_ids)
        else:
            leaves, structure = jax.tree.flatten(x)
            ids, *rows = owners.fetch(places, [self.node_ids + 1, *leaves])
            node_ids, rows = ids - 1, jax.tree.unflatten(structure, rows)
        labels = jax.tree.map(lambda rows: take(rows, seeds), y)
        blocks = replace(blocks, node_ids=node_ids)
        return SeedBatch(blocks, cast(Any, seeds), rows, labels), owners, places

    def _draw(self, part: Part | RelationalPart) -> tuple[Owners, Blocks, Array]:
        """Return the owners of the sources, blocks whose ``node_ids`` are places, and the seeds."""
        exchange, edges = part.exchange, edges_of(part)
        exchange.check()
        by_layer = [Owners.of(exchange, expected) for expected in self.expected]
        owners = by_layer[-1]
        types = part.edge_types if isinstance(part, RelationalPart) else None
        lists = EdgeLists(edges.indptr, edges.cols, types)

        def answer(rows: Array, turn: ArrayLike, layer: int) -> list[Array]:
            key = threefry((self.keys[0], self.keys[1]), jnp.uint32(turn), _NO_ROW)  # type: ignore[arg-type]
            starts, offsets, counts = draw_edges(lists, rows, key, None, None, layer, self.options)
            valid = jnp.arange(offsets.shape[1], dtype=counts.dtype) < counts[:, None]
            drawn = jnp.where(valid, starts[:, None] + offsets, np.iinfo(counts.dtype).max)
            # Places in the answer are drawn in order: a block's edges by relation ascend.
            drawn = drawn if types is None else jnp.sort(drawn, axis=1)
            drawn = jnp.where(in_range(drawn, edges.num_edges), drawn, PADDING)
            results = [take_ids(self.places, take_ids(edges.cols, drawn))]
            results.append(take_ids(edges.edge_ids, drawn))
            return results if types is None else [*results, take_ids(types, drawn)]

        def draw(nodes: Array, seed_ids: Array | None, layer: int) -> DrawnLayer:
            ask = partial(answer, layer=layer)
            # Seeds are own nodes.
            drawn = by_layer[layer].ask_all(nodes, ask) if layer else ask(owners.own_rows(nodes), 0)
            size = drawn[0].shape[1]
            starts = jnp.arange(len(nodes), dtype=nodes.dtype) * size
            offsets = jnp.broadcast_to(jnp.arange(size, dtype=nodes.dtype), drawn[0].shape)
            counts = (drawn[0] >= 0).sum(axis=1, dtype=nodes.dtype)
            cols, edge_ids, *relations = (ids.reshape(-1) for ids in drawn)
            types = relations[0] if relations else None
            return DrawnLayer(starts, offsets, counts, cols, types, edge_ids)

        seeds = as_nodes(self.seeds, exchange.num_own, edges.indptr.dtype)
        places = jnp.where(seeds < 0, PADDING, seeds + owners.first_place(seeds.dtype))
        blocks = build_blocks(places, owners.num_places, draw, self.options)
        graphs = tuple(_with_count(graph, edges.num_input_edges) for graph in blocks.graphs)
        return owners, replace(blocks, graphs=graphs), seeds

    def __repr__(self) -> str:
        return f"ShardedSeeds(seeds={getattr(self.seeds, 'shape', self.seeds)})"


def check_rows(name: str, rows: Any, shape: tuple[int, ...]) -> None:
    """Raise an error unless rows are arrays whose leading axes have this shape."""
    for leaf in jax.tree.leaves(rows, is_leaf=lambda node: isinstance(node, HostRows | CachedRows)):
        if isinstance(leaf, HostRows | CachedRows):
            raise TypeError(
                f"{name} must be arrays of the device, got {leaf}: ShardedGraph.fetch_ahead "
                "fetches rows of the host, and CachedRows are made of a whole pytree"
            )
        if leaf.shape[: len(shape)] != shape:
            axes = ", ".join(map(str, shape))
            raise ValueError(f"{name} must be ({axes}, *features), got {leaf.shape}")


def _with_count(graph: Any, num_input_edges: Array | None) -> Any:
    """Return a block that knows the number of edges of the whole graph."""
    if isinstance(graph, Graph):
        return replace(graph, num_input_edges=num_input_edges)
    return replace(graph, nodes=replace(graph.nodes, num_input_edges=num_input_edges))


# --- Batches -------------------------------------------------------------------------------------


def neighbor_batches(
    sharded: ShardedGraph,
    seeds: Ids,
    batch_size: int,
    fanouts: Sequence[FanoutLike],
    *,
    seed: int = 0,
    replace: bool = False,
    tree: bool = False,
    disjoint: bool = False,
    capacity: Capacity = None,
) -> Any:
    """Return an epoch of batches of seeds, as a ``grain.MapDataset`` of :class:`ShardedSeeds`.

    Each device has its own nodes among the seeds, shuffled anew in each epoch of
    ``.repeat(epochs)``, and dealt out evenly to the batches: those of a device with fewer seeds
    have more padding. A batch is a function of its number and ``seed`` alone. Neighbourhoods are
    drawn in the step, by :meth:`ShardedSeeds.sample`, as :func:`sample_neighbors` draws them. Host
    only; all processes call this.

    Args:
        sharded: the graph.
        seeds: ``(count,)`` integers, the nodes of an epoch, which may repeat.
        batch_size: number of seeds of a device in a batch.
        fanouts: as for :func:`sample_neighbors`.
        seed: random seed of the order of seeds, and of the draws.
        replace: as for :func:`sample_neighbors`.
        tree: as for :func:`sample_neighbors`.
        disjoint: as for :func:`sample_neighbors`.
        capacity: as for :func:`sample_neighbors`, for the blocks of one device.

    Returns:
        A ``grain.MapDataset`` of :class:`ShardedSeeds`.

    Raises:
        ImportError: grain is not installed.
        TypeError: the graph is a hypergraph or traced, or a number is no integer.
        ValueError: a seed is out of range, a size does not fit, or as :func:`sample_neighbors`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> epoch = sharded.neighbor_batches([0, 1, 2], 2, (2, 2))
        >>> [batch.seeds.shape for batch in epoch]
        [(1, 2), (1, 2)]
    """
    part = sharded.part
    if isinstance(part, HypergraphPart) or is_traced(sharded.places):
        raise TypeError("sharded must be a graph of nodes, outside jax.jit, to draw neighbours of")
    edges = edges_of(part)
    num_parts, num_own = sharded.node_ids.shape
    nodes = arguments.check_ids("seeds", seeds)
    if not in_range(nodes, sharded.num_nodes).all():
        raise ValueError(f"seeds must be below num_nodes = {sharded.num_nodes}, got {nodes}")
    batch_size = check_positive("batch_size", batch_size)
    seed = arguments.check_integer("seed", seed) % 2**32
    flags = {
        name: arguments.check_flag(name, flag)
        for name, flag in (("replace", replace), ("tree", tree), ("disjoint", disjoint))
    }
    fanouts = with_all_neighbors(fanouts, edges)
    relations = Relations.from_graph(part) if isinstance(part, RelationalPart) else None
    if isinstance(part, RelationalPart):
        by_layer = check_relation_fanouts("fanouts", fanouts, part)
        relations = cast(Relations, relations)._replace(type_sizes=part.whole_type_sizes or None)
    else:
        by_layer = check_fanouts("fanouts", fanouts)
    totals = tuple(total(fanout, relations) for fanout in by_layer)
    # Bounds of the whole graph, padding included.
    bounds = {"num_edges": num_parts * edges.rows.shape[1], "num_dst": num_parts * num_own}
    whole: Any = SimpleNamespace(**bounds)
    sizes = layer_sizes(batch_size, totals, whole, capacity, **flags)
    options = SampleOptions(by_layer, sizes, relations, **flags)
    grain = import_grain()
    everywhere = NamedSharding(sharded.mesh, PartitionSpec())
    gather = jax.jit(lambda places, ids: places.ravel()[ids], out_shardings=everywhere)
    owners, rows = np.divmod(np.asarray(gather(sharded.places, nodes)), num_own)
    by_owner = [rows[owners == owner] for owner in range(num_parts)]
    length = -(-max(map(len, by_owner)) // batch_size)
    places = jax.jit(lambda sharded: sharded.apply(_places))(sharded)
    counts = [np.bincount(rows, minlength=num_own) for rows in by_owner]
    rates = jax.jit(lambda rates: rates, out_shardings=sharded.sharding)(
        np.stack(counts).astype(np.float32) / max(length, 1)
    )
    expected = tuple(map(round_up, expected_requests(sharded, rates, options)))
    template = ShardedSeeds(None, None, places, sharded.node_ids, rates, options, expected)
    batches = _Batches(by_owner, batch_size, length, seed, template)
    return grain.MapDataset.range(length).map_with_index(batches)


def cached(sharded: ShardedGraph, batch: ShardedSeeds, x: Any, num_rows: int) -> CachedRows:
    """Copy rows of other devices' nodes to each device whose samples need them most often.

    Which rows these are follows from the probabilities by which seeds and edges are drawn, on each
    device. :meth:`ShardedSeeds.sample` of the batches takes the result as ``x``: it reads these
    rows locally, and asks for the others in shorter messages. Host only; all processes call this.

    Args:
        sharded: the graph.
        batch: any batch of :meth:`neighbor_batches`, for its seeds, ``batch_size`` and ``fanouts``.
        x: ``(devices, capacity, *features)``, as of :meth:`shard`, or a pytree of such.
        num_rows: number of rows that a device copies, at most the number of other devices' rows.

    Returns:
        :class:`CachedRows`, which have no gradient.

    Raises:
        TypeError: ``batch`` is of another type, ``num_rows`` no integer, or an array is traced.
        ValueError: ``num_rows`` is below 1, or ``x`` has other leading axes.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> batch = sharded.neighbor_batches([0], 1, (2,))[0]
        >>> sharded.cached(batch, sharded.shard(jnp.ones((3, 4))), 1)
        CachedRows(num_copies=1)
    """
    arguments.check_instance("batch", batch, ShardedSeeds)
    num_rows = check_positive("num_rows", num_rows)
    leaves = jax.tree.leaves(x)
    for leaf in leaves:
        sharded._check_axes("x", leaf, sharded.node_ids.shape)
    if is_traced(sharded.node_ids, *leaves):
        raise TypeError("x must be known, as rows are copied once, got a traced array")
    count, num_own = sharded.node_ids.shape
    num_rows = min(num_rows, max(count - 1, 1) * num_own)
    places, remaining = choose_places(sharded, batch.seed_rates, batch.options, num_rows)
    copies, node_ids = copy_rows(sharded, x, places)
    return CachedRows(x, copies, places, node_ids, round_up(remaining))


def _places(part: Part | RelationalPart) -> Array:
    """Return the place of each source of a part."""
    exchange, dtype = part.exchange, edges_of(part).indptr.dtype
    first = Owners(exchange.axis, exchange.num_own, 0).first_place(dtype)
    places = first + jnp.arange(exchange.num_own, dtype=dtype)
    if not exchange.rounds:
        return places
    return jnp.concatenate(exchange(places + 1)) - 1


@dataclass(eq=False)
class _Batches:
    """Function from the number of a batch, over all epochs, to the batch."""

    seeds: list[np.ndarray]  # for each device, rows of its seeds
    batch_size: int
    length: int  # number of batches of an epoch
    seed: int
    template: ShardedSeeds
    order: tuple[int, np.ndarray] | None = None  # an epoch, and its batches of seeds

    def __call__(self, index: int, _: object) -> ShardedSeeds:
        epoch, number = divmod(int(index), self.length)
        order = self.order  # threads may set it
        if order is None or order[0] != epoch:
            order = self.order = epoch, self._shuffle(epoch)
        rng = np.random.default_rng([self.seed, epoch, number, len(self.seeds)])
        keys = rng.integers(2**32, size=(len(self.seeds), 2), dtype=np.uint32)
        return replace(self.template, seeds=order[1][number], keys=keys)

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Return the seeds of all batches of an epoch, ``(length, devices, batch_size)``."""
        size = self.length * self.batch_size
        batches = np.full((len(self.seeds), size), PADDING, np.int32)
        for device, rows in enumerate(self.seeds):
            rng = np.random.default_rng([self.seed, epoch, device])
            batches[device, : len(rows)] = rng.permutation(rows)
        # The seeds of a device are dealt out: all batches have equally many, up to one.
        dealt = batches.reshape(len(self.seeds), self.batch_size, self.length)
        return np.ascontiguousarray(dealt.transpose(2, 0, 1))
