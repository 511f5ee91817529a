"""Sampled neighbourhoods on the parts of a graph: owners of nodes draw and answer.

The *place* of a node is its row in the concatenated rows of all devices: owner times capacity, plus
the row on the owner. Blocks are built of places. A device asks the owners of places by all-to-alls
of static shapes, in as many rounds as the device with the most questions needs: whatever was drawn,
every question is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, add_rows, take
from jax_gnn._core.ids import PADDING, in_range, is_traced, take_ids
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public
from jax_gnn._core.random_bits import threefry
from jax_gnn._ops.segment_order.primitive import sorted_ids
from jax_gnn.graph import Graph
from jax_gnn.relational import edges_of
from jax_gnn.sampling import SeedBatch
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
from jax_gnn.sharding._exchange import send_in
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart

if TYPE_CHECKING:
    from jax_gnn.sharding._sharded import ShardedGraph

_NO_ROW = np.uint32(2**32 - 1)  # in the counter of no draw
_SLACK = 1.25  # slots of a round over expected questions


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
        halo_share: share of the edges of the graph whose source is another device's.

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
    options: SampleOptions = field(metadata=STATIC)
    halo_share: float = field(metadata=STATIC)

    def sample(self, part: Part | RelationalPart, *, x: Any = None, y: Any = None) -> SeedBatch:
        """Draw the neighbourhoods of a device's seeds. Only inside :meth:`ShardedGraph.apply`.

        Args:
            part: the device's part.
            x: ``(capacity, *features)`` of own nodes, or a pytree of such; rows of all sources are
                fetched from their owners, and gradients return to them.
            y: ``(capacity, *features)`` of own nodes, or a pytree of such; rows of the seeds are
                taken.

        Returns:
            Blocks with ids of nodes and edges in the whole graph, with ``x`` and ``y`` as of
            `neighbor_batches`. ``seeds`` are rows of own nodes.

        Raises:
            ValueError: the call is not in `jax.shard_map`, or a number of rows does not fit.
        """
        exchange, edges = part.exchange, edges_of(part)
        exchange.check()
        num_own, axis = edges.num_dst, exchange.axis
        for name, rows in (("x", x), ("y", y)):
            for leaf in jax.tree.leaves(rows):
                if leaf.shape[:1] != (num_own,):
                    raise ValueError(f"{name} must be ({num_own}, *features), got {leaf.shape}")
        # Share of other devices' nodes at each distance from the seeds, if no path comes back.
        num_layers = len(self.options.fanouts)
        shares = [1 - (1 - self.halo_share) ** distance for distance in range(num_layers + 1)]
        owners = _Owners(axis, num_own, shares[-1], exchange.wire_dtype)
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
            if layer:
                drawn = owners._replace(share=shares[layer]).ask(nodes, ask)
            else:  # seeds are own nodes
                drawn = ask(owners.own_rows(nodes), 0)
            size = drawn[0].shape[1]
            starts = jnp.arange(len(nodes), dtype=nodes.dtype) * size
            offsets = jnp.broadcast_to(jnp.arange(size, dtype=nodes.dtype), drawn[0].shape)
            counts = (drawn[0] >= 0).sum(axis=1, dtype=nodes.dtype)
            cols, edge_ids, *relations = (ids.reshape(-1) for ids in drawn)
            types = relations[0] if relations else None
            return DrawnLayer(starts, offsets, counts, cols, types, edge_ids)

        seeds = as_nodes(self.seeds, num_own, edges.indptr.dtype)
        places = jnp.where(seeds < 0, PADDING, seeds + owners.first_place(seeds.dtype))
        blocks = build_blocks(places, owners.num_places, draw, self.options)
        graphs = tuple(_with_count(graph, edges.num_input_edges) for graph in blocks.graphs)
        fetch = partial(owners.fetch, blocks.node_ids)
        blocks = replace(blocks, graphs=graphs, node_ids=fetch(self.node_ids + 1) - 1)
        labels = jax.tree.map(lambda rows: take(rows, seeds), y)
        return SeedBatch(blocks, cast(Any, seeds), jax.tree.map(fetch, x), labels)

    def __repr__(self) -> str:
        return f"ShardedSeeds(seeds={getattr(self.seeds, 'shape', self.seeds)})"


def _with_count(graph: Any, num_input_edges: Array | None) -> Any:
    """Return a block that knows the number of edges of the whole graph."""
    if isinstance(graph, Graph):
        return replace(graph, num_input_edges=num_input_edges)
    return replace(graph, nodes=replace(graph.nodes, num_input_edges=num_input_edges))


# --- Questions to owners -------------------------------------------------------------------------


class _Owners(NamedTuple):
    """Owners of places, on the devices of a mesh axis; inside `jax.shard_map`."""

    axis: str
    num_own: int  # number of rows of each device
    share: float  # expected share of other devices' places, for the sizes of messages
    wire_dtype: str | None = None  # as of `Exchange`

    @property
    def num_places(self) -> int:
        return int(jax.lax.axis_size(self.axis)) * self.num_own

    def first_place(self, dtype: Any) -> Array:
        """Return the place of the first row of this device."""
        return jax.lax.axis_index(self.axis).astype(dtype) * self.num_own

    def own_rows(self, places: Array) -> Array:
        """Return the rows of places that this device owns, -1 for others."""
        rows = places - self.first_place(places.dtype)
        return jnp.where((places >= 0) & in_range(rows, self.num_own), rows, PADDING)

    def rounds(self, places: Array, state: Any, step: Callable[..., Any]) -> Any:
        """Run rounds until the owner of each place has got it, once.

        ``step`` maps the state, the number of the round from 1, the slot of each place, the number
        of slots if another round has it, the number of slots, and the rows that arrived in each
        slot, -1 for none, to the state.
        """
        size, count = int(jax.lax.axis_size(self.axis)), len(places)
        if size == 1 or not count:
            return state
        is_remote = (places >= 0) & (self.own_rows(places) < 0)
        owner = jnp.where(is_remote, places // self.num_own, PADDING).astype(jnp.int32)
        keys, order = sorted_ids(owner, size)  # padding comes last, as owner `size`
        keys = keys.astype(jnp.int32)
        starts = jnp.searchsorted(keys, jnp.arange(size + 1, dtype=jnp.int32))
        numbers = jnp.arange(count, dtype=jnp.int32)
        rank = jnp.zeros_like(owner).at[order].set(numbers - starts[keys])
        room = min(count, int(_SLACK * self.share * count / (size - 1)) + 8)
        most = jax.lax.pmax((starts[1:] - starts[:-1]).max(), self.axis)

        def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            number, state = carry
            now = is_remote & (rank // room == number)
            slot = jnp.where(now, owner * room + rank % room, size * room)
            rows = jnp.full(size * room, PADDING, places.dtype)
            rows = rows.at[slot].set(places % self.num_own, mode="drop")
            return number + 1, step(state, number + 1, slot, size * room, self.swap(rows))

        first = jnp.zeros((), jnp.int32)
        # A loop's state must vary over the mesh axes over which its results do.
        state = jax.tree.map(lambda leaf: align_varying([leaf, places])[0], state)
        return jax.lax.while_loop(lambda carry: carry[0] * room < most, body, (first, state))[1]

    def swap(self, rows: Array) -> Array:
        """Send the slots of each device to it."""
        return send_in(
            self.wire_dtype,
            rows,
            lambda rows: cast(Array, jax.lax.all_to_all(rows, self.axis, 0, 0, tiled=True)),
        )

    def ask(self, places: Array, answer: Callable[[Array, ArrayLike], list[Array]]) -> list[Array]:
        """Return what the owner of each place answers.

        ``answer`` maps rows of own nodes, -1 for padding, and the number of a turn to arrays with a
        row for each. It is called for own places in turn 0, then for those of others.
        """

        def step(
            state: list[Array], number: Array, slot: Array, num_slots: int, rows: Array
        ) -> list[Array]:
            is_now = slot < num_slots
            results = []
            for old, values in zip(state, answer(rows, number), strict=True):
                mask = is_now.reshape(-1, *(1,) * (old.ndim - 1))
                new = self.swap(values)[jnp.where(is_now, slot, 0)]
                results.append(jnp.where(mask, new, old))
            return results

        return cast(list[Array], self.rounds(places, answer(self.own_rows(places), 0), step))

    def fetch(self, places: Array, x: Array) -> Array:
        """Return the row of each place, zeros for padding, from rows of own nodes."""
        return _fetch(places, (x,), **self._asdict())[0]


def _fetch_function(places: Array, operands: Sequence[Array], **fields: Any) -> list[Array]:
    (x,) = operands
    return _Owners(**fields).ask(places, lambda rows, _: [take(x, rows)])


def _fetch_transpose(
    places: Array, operands: Sequence[Any], cotangents: list[Array | None], **fields: Any
) -> tuple[Array | None]:
    (ct,) = cotangents
    if ct is None:
        return (None,)
    owners = _Owners(**fields)

    def step(total: Array, _: Array, slot: Array, num_slots: int, rows: Array) -> Array:
        sent = jnp.zeros((num_slots, *ct.shape[1:]), ct.dtype).at[slot].set(ct, mode="drop")
        return add_rows(total, rows, owners.swap(sent))

    own = jnp.zeros((owners.num_own, *ct.shape[1:]), ct.dtype)
    own = add_rows(own, owners.own_rows(places), ct)
    return (owners.rounds(places, own, step),)


_fetch = Linear(
    name="fetch_sampled_rows",
    result=lambda places, operands, **_: [
        jax.ShapeDtypeStruct((*places.shape, *operands[0].shape[1:]), operands[0].dtype)
    ],
    function=_fetch_function,
    transpose=_fetch_transpose,
)


# --- Batches -------------------------------------------------------------------------------------


class _WholeSizes(NamedTuple):
    """Bounds of the whole graph, padding included."""

    num_edges: int
    num_dst: int


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
    whole: Any = _WholeSizes(num_parts * edges.rows.shape[1], num_parts * num_own)
    sizes = layer_sizes(batch_size, totals, whole, capacity, **flags)
    options = SampleOptions(by_layer, sizes, relations, **flags)
    grain = import_grain()
    everywhere = NamedSharding(sharded.mesh, PartitionSpec())
    gather = jax.jit(lambda places, ids: places.ravel()[ids], out_shardings=everywhere)
    owners, rows = np.divmod(np.asarray(gather(sharded.places, nodes)), num_own)
    by_owner = [rows[owners == owner] for owner in range(num_parts)]
    length = -(-max(map(len, by_owner)) // batch_size)
    places = jax.jit(lambda sharded: sharded.apply(_places))(sharded)
    starts = edges.t_indptr
    own_edges, all_edges = (float(jnp.sum(starts[:, i], dtype=float)) for i in (num_own, -1))
    halo_share = round(1 - own_edges / max(all_edges, 1), 3)  # few values: it is static
    template = ShardedSeeds(None, None, places, sharded.node_ids, options, halo_share)
    batches = _Batches(by_owner, batch_size, length, seed, template)
    return grain.MapDataset.range(length).map_with_index(batches)


def _places(part: Part | RelationalPart) -> Array:
    """Return the place of each source of a part."""
    exchange, dtype = part.exchange, edges_of(part).indptr.dtype
    first = _Owners(exchange.axis, exchange.num_own, 0.0).first_place(dtype)
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
