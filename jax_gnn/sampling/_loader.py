"""Loading batches on the host: sampled neighbourhoods with rows of the host's arrays.

``grain`` shuffles, shards, prefetches and restarts; this module samples the neighbourhoods of a
batch of seeds and fetches their rows.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._neighbors import (
    Capacity,
    FanoutLike,
    check_seed_time,
    layer_sizes,
    parse_graph,
    parse_rule,
    sample_neighbors,
    with_all_neighbors,
)
from jax_gnn.sampling._relational import join_seeds, total
from jax_gnn.sampling._rows import Ids, check_positive, fetch_rows
from jax_gnn.sampling._time import EdgeTime
from jax_gnn.sampling._weights import EdgeProbability

_MIN_FETCHED = 16  # rows of a transfer of a cache


@public
class FeatureCache:
    """Rows of the host, of which the most used ones stay on the device.

    Fetched rows are exact: the same numbers as ``rows[ids]``. Neighbours are drawn along edges, so
    nodes of many edges are used most: ``np.argsort(np.diff(graph.t_indptr))[-count:]``.

    Args:
        rows: ``(num_rows, *features)``, an array of numpy, such as a memory map.
        cached_ids: ``(count,)`` integers, ids of the rows that stay on the device.
        device: device of these rows; by default where JAX puts arrays.

    Raises:
        TypeError: ``rows`` is no array of numpy, or ``cached_ids`` are no integers.
        ValueError: an id of ``cached_ids`` is out of range.

    Example:
        >>> import numpy as np
        >>> rows = np.arange(6.0, dtype=np.float32).reshape(3, 2)
        >>> cache = FeatureCache(rows, [1])
        >>> cache.fetch([1, 2, -1])
        Array([[2., 3.],
               [4., 5.],
               [0., 0.]], dtype=float32)
    """

    def __init__(self, rows: np.ndarray, cached_ids: Ids, *, device: jax.Device | None = None):
        row_ids = arguments.check_ids("cached_ids", cached_ids)
        cached_rows = fetch_rows(rows, row_ids)
        bad = row_ids[~in_range(row_ids, len(rows))]
        if bad.size:
            raise ValueError(f"cached_ids must be below num_rows={len(rows)}, got {bad[0]}")
        self._rows = rows
        # For each row its place in the cache; one more element, of padding, for ids out of range.
        self._slots = np.full(len(rows) + 1, PADDING, np.int32)
        self._slots[row_ids] = np.arange(len(row_ids), dtype=np.int32)
        self._cached = jax.device_put(cached_rows, device)
        self._device = device

    def fetch(self, ids: Ids) -> Array:
        """Return rows on the device, zeros where an id is out of range.

        The number of rows that are sent is rounded up to a power of two, so that few programs are
        compiled.

        Args:
            ids: ``(count,)`` integers of the host.

        Returns:
            ``(count, *features)``.

        Raises:
            TypeError: ``ids`` are no integers.
            ValueError: ``ids`` is not one-dimensional.
        """
        indices = arguments.check_ids("ids", ids)
        count, num_rows = len(indices), len(self._rows)
        valid = in_range(indices, num_rows)
        slots = self._slots[np.where(valid, indices, num_rows)]
        places = np.flatnonzero(valid & (slots < 0))
        size = min(count, max(_MIN_FETCHED, 1 << (len(places) - 1).bit_length()))
        padding = (0, size - len(places))
        sent = fetch_rows(self._rows, np.pad(indices[places], padding, constant_values=PADDING))
        places = np.pad(places, padding, constant_values=count).astype(np.int32)
        arrays = jax.device_put((slots, places, sent), self._device)
        return _merge(self._cached, *arrays)


@jit()
def _merge(cached: Array, slots: Array, places: Array, sent: Array) -> Array:
    if cached.shape[0]:
        x = cached.at[slots].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    else:
        x = jnp.zeros((slots.shape[0], *cached.shape[1:]), cached.dtype)
    return x.at[places].set(sent, mode="drop")


# --- Batches -------------------------------------------------------------------------------------


@public
class SeedBatch(NamedTuple):
    """A batch of :func:`neighbor_batches`; all arrays are numpy's.

    Attributes:
        blocks: the sampled neighbourhoods.
        seeds: ``(batch_size,)``, the seeds; -1 is padding.
        x: rows of ``blocks.node_ids``, zeros for padding; None if there were none.
        y: rows of the seeds, zeros for padding; None if there were none.
        seed_values: values of the seeds, zeros for padding; None if there were none.

    Example:
        >>> with host_arrays():
        ...     graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
        >>> batch, *_ = neighbor_batches(graph, [1], 2, (3,))
        >>> batch.seeds, batch.blocks
        (array([ 1, -1]), Blocks(num_seeds=2, graphs=[4 -> 2], num_edges=[6]))
    """

    blocks: Blocks
    seeds: np.ndarray
    x: Any
    y: Any
    seed_values: Any = None


@public
def neighbor_batches(
    graph: Graph | RelationalGraph | HeteroGraph,
    seeds: Ids | Mapping[str, Ids],
    batch_size: int,
    fanouts: Sequence[FanoutLike],
    *,
    x: object = None,
    y: object = None,
    seed_values: object = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    replace: bool = False,
    edge_probability: EdgeProbability | np.ndarray | None = None,
    edge_time: EdgeTime | np.ndarray | None = None,
    seed_time: np.ndarray | None = None,
    tree: bool = False,
    disjoint: bool = False,
    capacity: Capacity = None,
) -> Any:
    """Return an epoch of sampled batches on the host, as a ``grain.MapDataset``.

    The seeds are shuffled, anew in each epoch of ``.repeat(epochs)``; the final batch is padded
    with -1, so that all have one shape. A batch is a function of its number and ``seed`` alone:
    training that restarts anywhere gets the same batches. ``.to_iter_dataset`` samples ahead while
    a step runs, ``grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)`` one batch.
    A graph in parts over devices has batches of its own: :meth:`ShardedGraph.neighbor_batches`.

    Args:
        graph: graph with arrays of the host: built inside :func:`jax_gnn.host_arrays`, or of memory
            maps. Nodes of a :class:`jax_gnn.HeteroGraph` are those of ``graph.relational``.
        seeds: ``(count,)`` integers, the nodes of an epoch, which may repeat; for a
            :class:`jax_gnn.HeteroGraph` a mapping by node type, whose seeds are concatenated in the
            order of ``graph.node_types``.
        batch_size: number of seeds of a batch.
        fanouts: as for :func:`sample_neighbors`.
        x: ``(num_nodes, *features)`` of numpy, or a pytree of such; rows of all sources are
            fetched. For a :class:`jax_gnn.HeteroGraph` a mapping by node type, with None for types
            without features: rows as :meth:`Blocks.node_values` gives them.
        y: ``(num_nodes, *features)`` of numpy, or a pytree of such, such as labels; rows of the
            seeds are fetched. Worker processes must be able to import the classes of both pytrees.
            For a :class:`jax_gnn.HeteroGraph` rows of the nodes of ``graph.relational``.
        seed_values: ``(count, *features)`` of numpy, or a pytree of such: values of seeds, not of
            nodes, such as the answer at a seed's time.
        seed: random seed of the order of seeds, and of the draws.
        shard: number of this process, and number of processes. Each seed is in one shard; all
            shards have equally many batches.
        replace: as for :func:`sample_neighbors`.
        edge_probability: as for :func:`sample_neighbors`, of the host.
        edge_time: as for :func:`sample_neighbors`, of the host.
        seed_time: ``(count,)``, times of the seeds, as for :func:`sample_neighbors`.
        tree: as for :func:`sample_neighbors`.
        disjoint: as for :func:`sample_neighbors`.
        capacity: as for :func:`sample_neighbors`.

    Returns:
        A ``grain.MapDataset`` of :class:`SeedBatch`.

    Raises:
        ImportError: grain is not installed.
        TypeError: ``graph``, weights, times or values are not of the host, or a number is no
            integer.
        ValueError: a size does not fit, or as :func:`sample_neighbors`.

    Example:
        >>> import numpy as np
        >>> with host_arrays():
        ...     graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> features = np.arange(8.0).reshape(4, 2)
        >>> epoch = neighbor_batches(graph, [0, 1, 2], 2, (2, 2), x=features)
        >>> [batch.x.shape for batch in epoch]
        [(10, 2), (10, 2)]
    """
    sizes = None
    if isinstance(graph, HeteroGraph):
        sizes, seeds, graph = graph.num_nodes, join_seeds(graph, seeds), graph.relational
    edges, types, relations, by_layer = parse_graph(graph, fanouts)
    if not all(isinstance(a, np.ndarray | None) for a in (edges.indptr, edges.cols, types)):
        raise TypeError("graph must be of the host: build it inside jax_gnn.host_arrays()")
    nodes = arguments.check_ids("seeds", seeds)
    batch_size = check_positive("batch_size", batch_size)
    rule = parse_rule(graph, edge_probability, edge_time)
    times = check_seed_time(rule, seed_time, len(nodes))
    if not all(isinstance(a, np.ndarray) for a in jax.tree.leaves((rule, times))):
        raise TypeError("edge_probability, edge_time and seed_time must be of numpy")
    replace, tree, disjoint = (
        arguments.check_flag(name, flag)
        for name, flag in (("replace", replace), ("tree", tree), ("disjoint", disjoint))
    )
    options: dict[str, Any] = {"replace": replace, "tree": tree}
    totals = tuple(total(fanout, relations) for fanout in by_layer)
    disjoint = disjoint or times is not None
    layer_sizes(batch_size, totals, edges, capacity, disjoint=disjoint, **options)
    options |= {"disjoint": disjoint, "capacity": capacity}
    if sizes is None:
        _check_rows("x", x, edges.num_dst)
    elif x is not None:
        _check_types(x, sizes)
    _check_rows("y", y, edges.num_dst)
    _check_rows("seed_values", seed_values, len(nodes))
    index, count = (arguments.check_integer(f"shard[{i}]", n) for i, n in enumerate(shard))
    if not 0 <= index < count:
        raise ValueError(f"shard must be (index, count), index below count, got {shard}")
    seed = arguments.check_integer("seed", seed)
    grain = import_grain()
    if isinstance(rule, EdgeTime):
        options["edge_time"] = rule
    elif rule is not None:
        options["edge_probability"] = rule
    # Places of seeds, padded to a multiple of the number of shards, so that these are equally long.
    places: Any = np.concatenate([np.arange(len(nodes)), np.full(-len(nodes) % count, PADDING)])
    dataset = grain.MapDataset.source(places).shuffle(seed % 2**32)[index::count]
    dataset = dataset.batch(batch_size, batch_fn=functools.partial(_padded, batch_size))
    fanouts = with_all_neighbors(fanouts, edges)
    sample = _Sample(graph, nodes, fanouts, x, y, seed_values, times, sizes is not None, options)
    draws = np.random.SeedSequence([seed % 2**32, index]).generate_state(1)
    return dataset.random_map(sample, seed=int(draws[0]))


def import_grain() -> Any:
    """Return the package that loads batches."""
    try:
        import grain
    except ImportError as error:
        raise ImportError(
            "neighbor_batches needs grain: pip install 'jax-gnn-kernels[loader]'"
        ) from error
    return grain


def _check_rows(name: str, values: object, size: int) -> None:
    """Raise an error unless all leaves are arrays of numpy with so many rows."""
    for leaf in jax.tree.leaves(values):
        if not isinstance(leaf, np.ndarray):
            raise TypeError(f"{name} must be of numpy, got {type(leaf).__name__}")
        if leaf.shape[:1] != (size,):
            raise ValueError(f"{name} must be ({size}, *features), got shape {leaf.shape}")


def _check_types(x: object, sizes: Mapping[str, int]) -> None:
    """Raise an error unless x has rows of all node types."""
    if not isinstance(x, Mapping) or {*x} != {*sizes}:
        got = ", ".join(map(str, x)) if isinstance(x, Mapping) else type(x).__name__
        raise ValueError(f"x must be a mapping by the types {', '.join(sizes)}, got {got}")
    for name, rows in x.items():
        _check_rows(f"x[{name!r}]", rows, sizes[name])


def _padded(batch_size: int, seeds: Sequence[int]) -> np.ndarray:
    batch = np.full(batch_size, PADDING)
    batch[: len(seeds)] = seeds
    return batch


@dataclass(frozen=True)
class _Sample:
    """Samples the neighbourhoods of a batch of seeds, and fetches its rows."""

    graph: Graph | RelationalGraph
    nodes: np.ndarray  # (count,), the seeds of an epoch
    fanouts: Sequence[FanoutLike]
    x: Any
    y: Any
    seed_values: Any
    times: Any  # (count,), times of the seeds, or None
    by_type: bool  # whether x is by type of node
    options: dict[str, Any]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Check in a worker process that its batches can be sent back.

        `multiprocessing.Queue` drops what it cannot pickle, and only prints a traceback: the epoch
        would end without a batch, and without an exception.
        """
        import multiprocessing  # brings ten modules, which the import of jax_gnn does without

        self.__dict__.update(state)
        if multiprocessing.parent_process() is None:
            return
        for name in ("x", "y", "seed_values"):
            try:
                pickle.dumps(jax.tree.map(lambda rows: rows[:0], state[name]))
            except (pickle.PicklingError, AttributeError) as error:
                raise TypeError(
                    f"{name} must be a pytree of classes that a worker process can import, such as "
                    f"those of a module beside the script, got one that it cannot pickle: {error}"
                ) from error

    def __call__(self, places: np.ndarray, rng: np.random.Generator) -> SeedBatch:
        key = rng.integers(2**32, size=2, dtype=np.uint32)
        seeds = np.where(places < 0, PADDING, self.nodes[places])
        options = self.options
        if self.times is not None:
            options = options | {"seed_time": self.times[places]}
        blocks = sample_neighbors(self.graph, seeds, self.fanouts, key, **options)
        if self.by_type and self.x is not None:
            x: Any = blocks.node_values(self.x)
        else:
            x = jax.tree.map(lambda rows: fetch_rows(rows, blocks.node_ids), self.x)
        y = jax.tree.map(lambda rows: fetch_rows(rows, seeds), self.y)
        values = jax.tree.map(lambda rows: fetch_rows(rows, places), self.seed_values)
        return SeedBatch(blocks, seeds, x, y, values)
