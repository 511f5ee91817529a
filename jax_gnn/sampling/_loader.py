"""Loading batches on the host: sampled neighbourhoods with rows of the host's arrays.

``grain`` shuffles, shards, prefetches and restarts; this module samples the neighbourhoods of a
batch of seeds and fetches their rows.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
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
from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._compile import jit
from jax_gnn.sampling._neighbors import (
    Capacity,
    check_fanouts,
    check_homogeneous,
    layer_sizes,
    sample_neighbors,
)
from jax_gnn.sampling._rows import Ids, check_positive, fetch_rows

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


@public
def neighbor_batches(
    graph: Graph,
    seeds: Ids,
    batch_size: int,
    fanouts: Sequence[int],
    *,
    x: object = None,
    y: object = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    replace: bool = False,
    tree: bool = False,
    capacity: Capacity = None,
) -> Any:
    """Return an epoch of sampled batches on the host, as a ``grain.MapDataset``.

    The seeds are shuffled, anew in each epoch of ``.repeat(epochs)``; the final batch is padded
    with -1, so that all have one shape. A batch is a function of its number and ``seed`` alone:
    training that restarts anywhere gets the same batches. ``.to_iter_dataset`` samples ahead while
    a step runs, ``grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)`` one batch.

    Args:
        graph: graph of one kind of nodes, with arrays of the host: built inside
            :func:`jax_gnn.host_arrays`, or of memory maps.
        seeds: ``(count,)`` integers, the nodes of an epoch.
        batch_size: number of seeds of a batch.
        fanouts: as for :func:`sample_neighbors`.
        x: ``(num_nodes, *features)`` of numpy, or a pytree of such; rows of all sources are
            fetched.
        y: ``(num_nodes, *features)`` of numpy, or a pytree of such, such as labels; rows of the
            seeds are fetched. Worker processes must be able to import the classes of both pytrees.
        seed: random seed of the order of seeds, and of the draws.
        shard: number of this process, and number of processes. Each seed is in one shard; all
            shards have equally many batches.
        replace: as for :func:`sample_neighbors`.
        tree: as for :func:`sample_neighbors`.
        capacity: as for :func:`sample_neighbors`.

    Returns:
        A ``grain.MapDataset`` of :class:`SeedBatch`.

    Raises:
        ImportError: grain is not installed.
        TypeError: ``graph``, ``x`` or ``y`` are not of the host, or a number is no integer.
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
    arguments.check_instance("graph", graph, Graph)
    check_homogeneous(graph)
    if not isinstance(graph.indptr, np.ndarray) or not isinstance(graph.cols, np.ndarray):
        raise TypeError("graph must be of the host: build it inside jax_gnn.host_arrays()")
    nodes = arguments.check_ids("seeds", seeds)
    batch_size = check_positive("batch_size", batch_size)
    checked = check_fanouts("fanouts", fanouts)
    layer_sizes(batch_size, checked, graph, capacity, replace=replace, tree=tree)
    for name, rows in (("x", x), ("y", y)):
        for leaf in jax.tree.leaves(rows):
            if not isinstance(leaf, np.ndarray):
                raise TypeError(f"{name} must be of numpy, got {type(leaf).__name__}")
            if leaf.shape[:1] != (graph.num_dst,):
                raise ValueError(
                    f"{name} must be ({graph.num_dst}, *features), got shape {leaf.shape}"
                )
    index, count = (arguments.check_integer(f"shard[{i}]", n) for i, n in enumerate(shard))
    if not 0 <= index < count:
        raise ValueError(f"shard must be (index, count), index below count, got {shard}")
    seed = arguments.check_integer("seed", seed)
    try:
        import grain
    except ImportError as error:
        raise ImportError(
            "neighbor_batches needs grain: pip install 'jax-gnn-kernels[loader]'"
        ) from error
    # Padded to a multiple of the number of shards, so that these are equally long.
    source: Any = np.concatenate([nodes, np.full(-len(nodes) % count, PADDING)])
    dataset = grain.MapDataset.source(source).shuffle(seed % 2**32)[index::count]
    dataset = dataset.batch(batch_size, batch_fn=functools.partial(_padded, batch_size))
    sample = _Sample(graph, checked, x, y, {"replace": replace, "tree": tree, "capacity": capacity})
    draws = np.random.SeedSequence([seed % 2**32, index]).generate_state(1)
    return dataset.random_map(sample, seed=int(draws[0]))


def _padded(batch_size: int, seeds: Sequence[int]) -> np.ndarray:
    batch = np.full(batch_size, PADDING)
    batch[: len(seeds)] = seeds
    return batch


@dataclass(frozen=True)
class _Sample:
    """Samples the neighbourhoods of a batch of seeds, and fetches its rows."""

    graph: Graph
    fanouts: tuple[int, ...]
    x: Any
    y: Any
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
        for name in ("x", "y"):
            try:
                pickle.dumps(jax.tree.map(lambda rows: rows[:0], state[name]))
            except (pickle.PicklingError, AttributeError) as error:
                raise TypeError(
                    f"{name} must be a pytree of classes that a worker process can import, such as "
                    f"those of a module beside the script, got one that it cannot pickle: {error}"
                ) from error

    def __call__(self, seeds: np.ndarray, rng: np.random.Generator) -> SeedBatch:
        key = rng.integers(2**32, size=2, dtype=np.uint32)
        blocks = sample_neighbors(self.graph, seeds, self.fanouts, key, **self.options)
        x = jax.tree.map(lambda rows: fetch_rows(rows, blocks.node_ids), self.x)
        y = jax.tree.map(lambda rows: fetch_rows(rows, seeds), self.y)
        return SeedBatch(blocks, seeds, x, y)
