"""Copies of other devices' rows that samples need often, chosen by counted probabilities."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core.arrays import STATIC, row_wise, take
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.public import public
from jax_gnn._ops.spmm.api import spmm
from jax_gnn.relational import edges_of
from jax_gnn.sampling._neighbors import SampleOptions
from jax_gnn.sampling._relational import total
from jax_gnn.sharding._owners import Owners
from jax_gnn.sharding._parts import Part, RelationalPart

if TYPE_CHECKING:
    from jax_gnn.sharding._sharded import ShardedGraph


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class CachedRows:
    """Rows of own nodes, with copies of rows of other devices that samples need most often.

    :meth:`ShardedGraph.cached` makes them, and :meth:`ShardedSeeds.sample` takes them as ``x``,
    with the same results. Copies do not follow later changes of ``rows``, and neither has a
    gradient.

    Attributes:
        rows: ``(devices, capacity, *features)``, or a pytree of such.
        copies: ``(devices, num_copies, *features)``, the same pytree.
        places: ``(devices, num_copies)``, ascending places of the copies (see `ShardedSeeds`), then
            padding, the largest integer.
        node_ids: ``(devices, num_copies)``, ids of their nodes in the whole graph.
        expected: expected number of other rows that a device asks of another one in a batch.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> batch = sharded.neighbor_batches([0], 1, (2,))[0]
        >>> x = sharded.cached(batch, sharded.shard(jnp.array([1.0, 2.0, 3.0])), 2)
        >>> sharded.apply(lambda part, batch, x: batch.sample(part, x=x).x, batch, x)
        Array([[1., 2., 3.]], dtype=float32)
    """

    rows: Any
    copies: Any
    places: Array
    node_ids: Array
    expected: int = field(metadata=STATIC)

    def fetch(self, owners: Owners, places: Array, node_ids: Array) -> tuple[Array, Any]:
        """Return node ids and rows of places, -1 and zeros for padding, from copies and owners."""
        leaves, structure = jax.tree.flatten(self.rows)
        rows, copies = _without_gradient((leaves, jax.tree.leaves(self.copies)))
        rows, copies = [node_ids + 1, *rows], [self.node_ids + 1, *copies]
        slots = jnp.searchsorted(self.places, places, method="scan_unrolled")
        has_copy = (places >= 0) & (take(self.places, slots) == places)

        def answer(ids: Array, _: object) -> list[Array]:
            return [take(x, ids) for x in rows]

        known = [
            jnp.where(row_wise(has_copy, row), take(copy, slots), row)
            for copy, row in zip(copies, answer(owners.own_rows(places), 0), strict=True)
        ]
        owners = replace(owners, expected=self.expected)
        ids, *fetched = owners.ask(jnp.where(has_copy, PADDING, places), answer, known)
        return ids - 1, jax.tree.unflatten(structure, fetched)

    def __repr__(self) -> str:
        return f"CachedRows(num_copies={getattr(self.places, 'shape', (self.places,))[-1]})"


@jax.custom_jvp
def _without_gradient(tree: Any) -> Any:
    """Return the arrays; differentiation by them raises ValueError."""
    return tree


@functools.partial(_without_gradient.defjvp, symbolic_zeros=True)
def _refuse_gradient(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    if not all(isinstance(tangent, SymbolicZero) for tangent in jax.tree.leaves(tangents)):
        raise ValueError(
            "x must have no gradient if it is CachedRows, whose copies would not follow its "
            "changes: pass the array of rows itself to ShardedSeeds.sample"
        )
    return primals[0], tangents[0]


@functools.partial(jax.jit, static_argnames=("options", "num_rows"))
def choose_places(
    sharded: ShardedGraph, seed_rates: Array, options: SampleOptions, num_rows: int
) -> tuple[Array, Array]:
    """Return the places whose rows each device copies, and the largest expected number of others.

    The latter is that of a pair of devices.
    """

    def choose(part: Any, rates: Array) -> tuple[Array, Array]:
        chances, exchange = source_chances(part, rates, options)[-1], part.exchange
        owners, num_own = Owners(exchange.axis, exchange.num_own, 0), exchange.num_own
        dtype, size = edges_of(part).indptr.dtype, min(num_rows, num_own)
        # Each owner names its best rows for each device, which takes the best of all owners'.
        best, rows = jax.lax.top_k(chances.T, size)
        places = rows.astype(dtype) + owners.first_place(dtype)
        best, places = (rows.ravel() for rows in owners.swap(best, places))
        chosen, slots = jax.lax.top_k(best, num_rows)
        last = np.iinfo(dtype).max
        places = jnp.sort(jnp.where(chosen > 0, places[slots], last))
        others = owners.swap(chances.sum(0))[0].at[slots // size].add(-chosen)
        return places, others.max()

    places, others = sharded.apply(choose, seed_rates)
    return places, others.max()


@jax.jit
def copy_rows(sharded: ShardedGraph, x: Any, places: Array) -> tuple[Any, Array]:
    """Return the rows and node ids of places, fetched from their owners."""

    def copy(part: Any, x: Any, ids: Array, places: Array) -> tuple[Any, Array]:
        exchange = part.exchange
        expected = -(-len(places) // int(jax.lax.axis_size(exchange.axis)))
        owners = Owners.of(exchange, expected)
        is_place = in_range(places, owners.num_places)
        leaves, structure = jax.tree.flatten(x)
        ids, *rows = owners.fetch(jnp.where(is_place, places, PADDING), [ids + 1, *leaves])
        return jax.tree.unflatten(structure, rows), ids - 1

    return sharded.apply(copy, x, sharded.node_ids, places)


# --- Expected numbers ----------------------------------------------------------------------------


def source_chances(
    part: Part | RelationalPart, seed_rates: Array, options: SampleOptions
) -> list[Array]:
    """Return how often own nodes are among other devices' sources in a batch, as expected.

    Inside `ShardedGraph.apply`. A node's draws count as independent, and edges of all relations as
    equally likely.

    Args:
        part: the device's part.
        seed_rates: ``(num_own,)``, how often each own node is a seed of a batch.
        options: options of the batches.

    Returns:
        ``(num_own, devices)`` for the seeds and the sources of each layer; 0 for the own device.
    """
    exchange, edges = part.exchange, edges_of(part)
    count, device = int(jax.lax.axis_size(exchange.axis)), jax.lax.axis_index(exchange.axis)
    zeros = jax.lax.pcast(jnp.zeros((exchange.num_own, count)), exchange.axis, to="varying")
    rates = zeros.at[:, device].set(seed_rates)
    degrees = jnp.maximum(edges.in_degrees(), 1)
    _, to_sources = jax.vjp(lambda x: spmm(edges, part.with_halo(x)), zeros)
    repeats = options.tree or options.disjoint
    chances = []
    for fanout in (*options.fanouts, None):
        # A node that is drawn several times is one source, unless sources repeat.
        distinct = rates if repeats else -jnp.expm1(-rates)
        chances.append(distinct.at[:, device].set(0))
        if fanout is not None:
            drawn = total(fanout, options.relations)
            share = drawn / (degrees if options.replace else jnp.maximum(degrees, drawn))
            rates += to_sources(distinct * share[:, None])[0]
    return chances


@functools.partial(jax.jit, static_argnames="options")
def expected_requests(sharded: ShardedGraph, seed_rates: Array, options: SampleOptions) -> Array:
    """Return for each layer, and the last sources, the largest expected number of a pair's nodes.

    ``(layers + 1,)``: so many nodes of one device a batch of another one asks about.
    """

    def requests(part: Any, rates: Array) -> Array:
        sums = [chances.sum(0).max() for chances in source_chances(part, rates, options)]
        return jnp.stack(sums)

    return jnp.max(sharded.apply(requests, seed_rates), axis=0)


def round_up(number: Any) -> int:
    """Round up to two significant digits, so that few programs are compiled."""
    value = max(round(float(number)), 0)
    step = 10 ** max(len(str(value)) - 2, 0)
    return int(-(-value // step) * step)
