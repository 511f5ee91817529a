"""Samples over parts with rows of the host: each owner reads the rows that devices ask it for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, is_traced, take_ids
from jax_gnn.sampling import SeedBatch, fetch_rows
from jax_gnn.sampling._prefetch import PinnedBuffers, prefetch
from jax_gnn.sampling._rows import check_positive
from jax_gnn.sharding._cached_rows import CachedRows
from jax_gnn.sharding._host_rows import HostRows
from jax_gnn.sharding._owners import Owners, Questions
from jax_gnn.sharding._processes import check_same, local_rows
from jax_gnn.sharding._samples import ShardedSeeds

if TYPE_CHECKING:
    from jax_gnn.sharding._sharded import ShardedGraph


@dataclass(frozen=True, eq=False, repr=False)
class FileRows:
    """Values of nodes in the files of parts, of which only rows that are fetched are read.

    Attributes:
        files: memory maps ``(capacity, *features)`` of the parts of this process, by number.
        places: ``(num_nodes,)``, row of each node in the concatenated rows of all parts.
    """

    files: Mapping[int, np.ndarray]
    places: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """``(num_nodes, *features)``."""
        return (len(self.places), *next(iter(self.files.values())).shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the values."""
        return next(iter(self.files.values())).dtype

    def fetch(self, ids: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the rows of nodes of these parts, zeros for -1, as `fetch_rows` does."""
        capacity, places = len(next(iter(self.files.values()))), take_ids(self.places, ids)
        parts, rows = np.divmod(places, capacity)
        rows[places < 0] = PADDING
        numbers = np.unique(parts[places >= 0]).tolist()
        if len(numbers) == 1:
            return fetch_rows(self.files[numbers[0]], rows, out=out)
        results = np.zeros((len(ids), *self.shape[1:]), self.dtype) if out is None else out
        results[places < 0] = 0
        for number in numbers:
            is_here = parts == number
            results[is_here] = fetch_rows(self.files[number], rows[is_here])
        return results

    def __repr__(self) -> str:
        return f"FileRows(shape={self.shape}, dtype={self.dtype})"


def fetch_ahead(
    sharded: ShardedGraph,
    batches: Iterable[ShardedSeeds],
    *,
    x: Any = None,
    y: Any = None,
    ahead: int = 2,
) -> Iterator[SeedBatch]:
    """Yield a sample for each batch, with rows of the host, fetched while earlier ones are used.

    A program draws neighbourhoods. Threads gather the rows that all devices ask of this process's
    nodes and send them to the nodes' owners, and another program exchanges them. So a step takes
    the longest of its own work, the gather and the transfer. All processes take all batches; each
    reads rows of its own nodes alone.

    Args:
        sharded: the graph.
        batches: those of :meth:`neighbor_batches`.
        x: values of the sources: an array of numpy, ``(num_nodes, *features)`` in the order of the
            whole graph, such as a memory map; :class:`HostRows` of :meth:`host_rows`; values that
            :func:`load_parts` leaves ``on_disk``; an array of the devices, as of :meth:`shard`; or
            a pytree of these. Of an array of numpy, a process needs the rows of its own nodes only.
        y: values of the seeds, of the same kinds.
        ahead: number of batches on their way; devices hold as many more samples.

    Returns:
        An iterator over :class:`SeedBatch`, as of :meth:`ShardedSeeds.sample`, whose arrays have a
        leading axis of devices: pass them to :meth:`apply`. They have no gradient.

    Raises:
        TypeError: an argument is of another type.
        ValueError: values have another number of rows, or ``ahead`` is below 1.

    Example:
        >>> import numpy as np
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> epoch = sharded.neighbor_batches([0], 1, (2,))
        >>> for sample in sharded.fetch_ahead(epoch, x=np.array([1.0, 2.0, 3.0], np.float32)):
        ...     print(sample.x)
        [[1. 2. 3.]]
    """
    ahead = check_positive("ahead", ahead)
    values = [_Values.parse(sharded, name, tree) for name, tree in (("x", x), ("y", y))]
    shapes = [[(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (x, y)]
    check_same(sharded.mesh, ahead=ahead, x=str(shapes[0]), y=str(shapes[1]))
    fetch = _Fetch(sharded, *values)
    return itertools.starmap(fetch.join, prefetch(map(fetch.draw, batches), fetch, ahead))


class _HostLeaf(NamedTuple):
    """Values of the host, and how a device's rows of them are read."""

    # Function of a device's index, own rows of it, -1 for padding, and a buffer: their values.
    read: Callable[[int, np.ndarray, np.ndarray | None], np.ndarray]
    features: tuple[int, ...]  # shape of a row
    dtype: np.dtype  # in which rows travel
    result_dtype: np.dtype

    def fetch(self, device: int, rows: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """Return the values with a leading axis of one device, as ``out`` has."""
        return self.read(device, rows, None if out is None else out[0])[None]


class _Values(NamedTuple):
    """Leaves of a pytree of values: arrays of the devices, and values of the host."""

    on_devices: list[Array]
    on_host: list[_HostLeaf]
    are_on_host: list[bool]  # for each leaf
    structure: Any

    @classmethod
    def parse(cls, sharded: ShardedGraph, name: str, values: Any) -> _Values:
        kinds = HostRows | CachedRows
        leaves, structure = jax.tree.flatten(values, is_leaf=lambda leaf: isinstance(leaf, kinds))
        lists: tuple[list[Any], list[Any]] = [], []
        for leaf in (parsed := [_parse_leaf(sharded, name, leaf) for leaf in leaves]):
            lists[isinstance(leaf, _HostLeaf)].append(leaf)
        return cls(*lists, [isinstance(leaf, _HostLeaf) for leaf in parsed], structure)

    def join(self, on_devices: Iterable[Array], on_host: Iterable[Array]) -> Any:
        """Return the pytree of results for arrays of the devices, and for values of the host."""
        results = iter(on_devices), iter(on_host)
        return self.structure.unflatten(next(results[on_host]) for on_host in self.are_on_host)


def _parse_leaf(sharded: ShardedGraph, name: str, leaf: Any) -> Array | _HostLeaf:
    """Check values, and find how rows of the host are read."""
    if isinstance(leaf, HostRows) or (isinstance(leaf, jax.Array) and not is_traced(leaf)):
        sharded._check_axes(name, leaf, sharded.node_ids.shape)
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, HostRows):
        blocks = local_rows(leaf.blocks)
        matrices = {device: rows.reshape(-1, rows.shape[-1]) for device, rows in blocks.items()}
        size = leaf.blocks.shape[-2]
        spare = leaf.blocks.shape[-3] * size - leaf.num_rows  # zeros at the end of the first block

        def read_blocks(device: int, rows: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            shift = np.where(rows >= size - spare, spare, 0).astype(rows.dtype)
            return fetch_rows(matrices[device], rows + shift, out=out)

        return _HostLeaf(read_blocks, leaf.shape[2:], leaf.blocks.dtype, leaf.dtype)
    if not isinstance(leaf, np.ndarray | FileRows):
        raise TypeError(
            f"{name} must be arrays of numpy or of the devices, HostRows, or values that "
            f"load_parts leaves on disk, got {arguments.described(leaf)}"
        )
    arguments.check_rows(name, cast(Any, leaf), "num_nodes", sharded.num_nodes)
    fetch = leaf.fetch if isinstance(leaf, FileRows) else functools.partial(fetch_rows, leaf)
    node_ids = local_rows(sharded.node_ids)

    def read(device: int, rows: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        return fetch(take_ids(node_ids[device], rows), out=out)

    return _HostLeaf(read, leaf.shape[1:], leaf.dtype, jax.dtypes.canonicalize_dtype(leaf.dtype))


# --- Programs ------------------------------------------------------------------------------------


class _Drawn(NamedTuple):
    """Samples without rows of the host, and what owners must read for them."""

    sample: SeedBatch
    places: Array  # (devices, count), of the sources
    own: Array  # (devices, count), own rows among the sources
    asked: Array  # (devices, slots), own rows that devices ask for in the first round
    num_rounds: Array  # (devices,)


@jax.jit
def _draw(sharded: ShardedGraph, batch: ShardedSeeds, x: list[Array], y: list[Array]) -> _Drawn:
    def draw(part: Any, batch: ShardedSeeds, x: list[Array], y: list[Array]) -> _Drawn:
        sample, owners, places = batch.sample_places(part, x, y)
        questions = Questions.of(owners, places)
        num_rounds = jax.lax.pcast(questions.num_rounds, owners.axis, to="varying")
        return _Drawn(sample, places, owners.own_rows(places), questions.sent(1), num_rounds)

    return sharded.apply(draw, batch, x, y)


@functools.partial(jax.jit, static_argnames="owners")
def _ask(sharded: ShardedGraph, places: Array, number: Array, owners: Owners) -> Array:
    """Return the rows that are asked in a round."""
    return sharded.apply(
        lambda _, places, number: Questions.of(owners, places).sent(number), places, number=number
    )


@functools.partial(jax.jit, static_argnames="owners", donate_argnames="results")
def _receive(
    sharded: ShardedGraph,
    places: Array,
    number: Array,
    results: list[Array],
    answers: list[Array],
    owners: Owners,
) -> list[Array]:
    """Return the results with the answers of a round."""

    def receive(_: Any, places: Array, results: Any, answers: Any, number: Array) -> list[Array]:
        return Questions.of(owners, places).received(number, results, answers)

    return sharded.apply(receive, places, results, answers, number=number)


class _Fetch:
    """Draws samples, and reads the rows of the host that they need."""

    def __init__(self, sharded: ShardedGraph, x: _Values, y: _Values) -> None:
        self._sharded, self._x, self._y, self._buffers = sharded, x, y, PinnedBuffers()

    def draw(self, batch: ShardedSeeds) -> tuple[_Drawn, Owners]:
        """Start the program that draws a batch."""
        arguments.check_instance("batches", batch, ShardedSeeds)
        part: Any = self._sharded.part
        owners = Owners.of(part.exchange, batch.expected[-1])
        return _draw(self._sharded, batch, self._x.on_devices, self._y.on_devices), owners

    def __call__(self, item: tuple[_Drawn, Owners]) -> tuple[Any, ...]:
        """Read the rows of a batch, in a thread: of own sources, of the first round, of seeds."""
        drawn, x = item[0], self._x.on_host
        seeds: Any = drawn.sample.seeds
        own, asked = self._read("own", drawn.own, x), self._read("asked", drawn.asked, x)
        labels = self._read("seeds", seeds, self._y.on_host)
        return (*item, *jax.block_until_ready((own, asked, labels)))

    def join(
        self,
        drawn: _Drawn,
        owners: Owners,
        own: list[Array],
        answers: list[Array],
        labels: list[Array],
    ) -> SeedBatch:
        """Exchange the rows of a batch, and ask for those of further rounds."""
        sharded, rows, sample = self._sharded, own, drawn.sample
        num_rounds = int(np.asarray(drawn.num_rounds.addressable_shards[0].data)[0]) if rows else 0
        for number in range(1, num_rounds + 1):
            if number > 1:
                asked = _ask(sharded, drawn.places, number, owners)
                answers = jax.block_until_ready(self._read("asked", asked, self._x.on_host))
            rows = _receive(sharded, drawn.places, number, rows, answers, owners)
        dtypes = [leaf.result_dtype for leaf in self._x.on_host]
        rows = [x.astype(dtype) for x, dtype in zip(rows, dtypes, strict=True)]
        x, y = self._x.join(sample.x, rows), self._y.join(sample.y, labels)
        return sample._replace(x=x, y=y)

    def _read(self, name: str, ids: Array, leaves: list[_HostLeaf]) -> list[Array]:
        """Return values of own rows on their devices; the buffers' names tell them apart."""
        results: list[Array] = []
        for i, leaf in enumerate(leaves):
            arrays = []
            for shard in ids.addressable_shards:
                index, rows = shard.index[0].start or 0, np.asarray(shard.data)[0]
                spec = jax.ShapeDtypeStruct((1, len(rows), *leaf.features), leaf.dtype)
                fetch = functools.partial(leaf.fetch, index, rows)
                arrays.append(self._buffers.send((name, i), fetch, spec, shard.device))
            shape = (*ids.shape, *leaf.features)
            split = self._sharded.sharding
            results.append(jax.make_array_from_single_device_arrays(shape, split, arrays))
        return results
