"""Batches of sampled neighbourhoods from graphs and rows of the host, on the way to a device.

``grain`` shuffles, shards, prefetches and restarts; what is here is what it does not know: how a
batch of seeds is sampled, and how its rows are fetched.
"""

from __future__ import annotations

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
from jax_gnn.sampling._neighbors import check_fanouts, check_whole, layer_sizes, sample_neighbors
from jax_gnn.sampling._rows import fetch_rows


@public
class FeatureCache:
    """Rows of the host, of which those that are used most stay on the device.

    What is fetched is exact: the same numbers as ``rows[ids]``. Neighbours are drawn along edges,
    so that nodes of many edges are wanted most: ``np.argsort(np.diff(graph.t_indptr))[-count:]``.

    Args:
        rows: ``(num_rows, *features)``, an array of numpy, such as a memory map.
        kept: ``(count,)`` integers, which rows stay on the device.
        device: where they stay; by default where JAX puts arrays.

    Raises:
        TypeError: ``rows`` is no array of numpy, or ``kept`` are no integers.
        ValueError: a row that is to be kept is out of range.

    Example:
        >>> import numpy as np
        >>> rows = np.arange(6.0, dtype=np.float32).reshape(3, 2)
        >>> cache = FeatureCache(rows, [1])
        >>> cache.fetch([1, 2, -1])
        Array([[2., 3.],
               [4., 5.],
               [0., 0.]], dtype=float32)
    """

    def __init__(self, rows: np.ndarray, kept: Any, *, device: Any = None):
        kept = arguments.check_ids("kept", kept)
        found = fetch_rows(rows, kept)
        if not in_range(kept, len(rows)).all():
            raise ValueError(
                f"kept must be below num_rows={len(rows)}, got {_first_bad(kept, rows)}"
            )
        self._rows = rows
        self._slots = np.full(len(rows), PADDING, np.int32)
        self._slots[kept] = np.arange(len(kept), dtype=np.int32)
        self._kept = jax.device_put(found, device)
        self._device = device

    def fetch(self, ids: Any) -> Array:
        """Rows on the device, zeros where an id is out of range.

        Of the others as many as the next power of two are copied there, so that few programs are
        compiled.

        Args:
            ids: ``(count,)`` integers of the host.

        Returns:
            ``(count, *features)``.

        Raises:
            TypeError: ``ids`` are no integers.
            ValueError: ``ids`` is not one-dimensional.
        """
        ids = arguments.check_ids("ids", ids)
        there = in_range(ids, len(self._rows))
        slots = self._slots[np.where(there, ids, 0)] if len(self._rows) else np.zeros(0, np.int32)
        slots = np.where(there, slots, PADDING) if len(self._rows) else np.full(len(ids), PADDING)
        places = np.flatnonzero(there & (slots < 0))
        room = min(len(ids), 1 << max(4, (len(places) - 1).bit_length()))
        padding = (0, room - len(places))
        others = fetch_rows(self._rows, np.pad(ids[places], padding, constant_values=PADDING))
        places = np.pad(places, padding, constant_values=len(ids))
        given = jax.device_put(
            (slots.astype(np.int32), places.astype(np.int32), others), self._device
        )
        return _merged(self._kept, *given)


@jax.jit
def _merged(kept: Array, slots: Array, places: Array, others: Array) -> Array:
    if kept.shape[0]:
        x = kept.at[slots].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    else:
        x = jnp.zeros((slots.shape[0], *kept.shape[1:]), kept.dtype)
    return x.at[places].set(others, mode="drop")


def _first_bad(kept: np.ndarray, rows: np.ndarray) -> int:
    return int(kept[~in_range(kept, len(rows))][0])


# --- Batches -------------------------------------------------------------------------------------


@public
class SeedBatch(NamedTuple):
    """A batch of :func:`neighbor_batches`, all of numpy.

    Attributes:
        blocks: the sampled neighbourhoods.
        seeds: ``(batch_size,)``, the seeds; -1 is padding.
        x: rows of ``blocks.node_ids``, zeros for padding; None if there were none.
        y: rows of the seeds, likewise.

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
    seeds: Any,
    batch_size: int,
    fanouts: Sequence[int],
    *,
    x: Any = None,
    y: Any = None,
    seed: int = 0,
    shard: tuple[int, int] = (0, 1),
    replace: bool = False,
    tree: bool = False,
    capacity: int | Sequence[int | None] | None = None,
) -> Any:
    """An epoch of sampled batches on the host, as a ``grain.MapDataset``.

    The seeds are shuffled, anew in each epoch of ``.repeat(epochs)``; the last batch is filled up
    with -1, so that all have one shape. A batch is a function of its number and ``seed`` alone:
    training that starts again anywhere has the same ones. ``.to_iter_dataset`` samples ahead while
    a step runs, ``grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)`` one batch.

    Args:
        graph: of one kind of nodes, of arrays of the host: built inside
            :func:`jax_gnn.host_arrays`, or of memory maps.
        seeds: ``(count,)`` integers, the nodes of an epoch.
        batch_size: seeds of a batch.
        fanouts: as for :func:`sample_neighbors`.
        x: ``(num_nodes, *features)`` of numpy, or a pytree of such, of which rows of all sources
            are fetched.
        y: the same, of which rows of the seeds are fetched, such as labels. Worker processes must
            be able to import the classes of both pytrees.
        seed: of the order of seeds, and of what is drawn.
        shard: the number of this process, and how many there are. Each seed is in one shard; all
            shards have equally many batches.
        replace: as for :func:`sample_neighbors`.
        tree: likewise.
        capacity: likewise.

    Returns:
        A ``grain.MapDataset`` of :class:`SeedBatch`.

    Raises:
        ImportError: grain is not installed.
        TypeError: ``graph``, ``x`` or ``y`` are not of the host, or a number is no integer.
        ValueError: a size does not fit, or what :func:`sample_neighbors` raises.

    Example:
        >>> import numpy as np
        >>> with host_arrays():
        ...     graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
        >>> features = np.arange(8.0).reshape(4, 2)
        >>> epoch = neighbor_batches(graph, [0, 1, 2], 2, (2, 2), x=features)
        >>> [batch.x.shape for batch in epoch]
        [(10, 2), (10, 2)]
    """
    check_whole(graph)
    if not isinstance(graph.indptr, np.ndarray) or not isinstance(graph.cols, np.ndarray):
        raise TypeError("graph must be of the host: build it inside jax_gnn.host_arrays()")
    seeds = arguments.check_ids("seeds", seeds)
    batch_size = arguments.check_integer("batch_size", batch_size)
    if batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")
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
    padding = np.full(-len(seeds) % count, PADDING)
    options = {"replace": replace, "tree": tree, "capacity": capacity}
    source: Any = np.concatenate([seeds, padding])
    dataset = grain.MapDataset.source(source).shuffle(seed % 2**32)[index::count]
    dataset = dataset.batch(batch_size, batch_fn=_Stack(batch_size))
    sample = _Sample(graph, checked, x, y, options)
    draws = np.random.SeedSequence([seed % 2**32, index]).generate_state(1)
    return dataset.random_map(sample, seed=int(draws[0]))


@dataclass(frozen=True)
class _Stack:
    batch_size: int

    def __call__(self, seeds: Sequence[Any]) -> np.ndarray:
        batch = np.full(self.batch_size, PADDING)
        batch[: len(seeds)] = seeds
        return batch


@dataclass(frozen=True)
class _Sample:
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
        self.__dict__.update(state)
        import multiprocessing  # not with `import jax_gnn`

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
