"""Rows and batches of the host: exact rows, each seed once, reproducible after a restart."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest
from sampling_checks import lumpy_graph

from jax_gnn import Graph, HeteroGraph, host_arrays
from jax_gnn.sampling import (
    FeatureCache,
    SeedBatch,
    fetch_ahead,
    fetch_rows,
    neighbor_batches,
    sample_neighbors,
)

GRAPH = jax.tree.map(np.asarray, Graph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3))


def rows_at(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    valid = (ids >= 0) & (ids < len(rows))
    return np.stack([rows[i] if ok else 0 * rows[0] for i, ok in zip(ids, valid, strict=True)])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex128"])
def test_fetched_rows(rng, tmp_path, dtype):
    for shape in ((7,), (50, 3), (9, 2, 5), (40, 33)):
        rows = rng.integers(-9, 9, shape).astype(dtype)
        # Ids out of range, also beyond 32 bits.
        ids = rng.choice([*range(-2, shape[0] + 2), 2**40, -(2**40)], 23)
        want = rows_at(rows, ids)
        # Strided ids in int32.
        narrow = np.repeat(ids.clip(-9, 99).astype(np.int32), 2)[::2]
        np.save(tmp_path / "rows.npy", rows)
        mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
        out = np.full_like(want, 1)
        assert fetch_rows(rows, ids, out=out) is out
        # Memory maps, and rows that are not contiguous.
        copies = fetch_rows(mapped, ids), fetch_rows(np.asfortranarray(rows), ids)
        for result in (out, *copies, fetch_rows(rows, narrow)):
            assert result.dtype == dtype and type(result) is np.ndarray
            np.testing.assert_array_equal(result, want)


def test_fetched_rows_of_nothing():
    assert fetch_rows(np.zeros((0, 3)), [0, 1]).tolist() == [[0] * 3] * 2
    assert fetch_rows(np.ones((2, 3)), []).shape == (0, 3)
    assert fetch_rows(np.ones((2, 0)), [1]).shape == (1, 0)


def test_rows_fetched_by_several_threads(rng):
    rows, ids = rng.normal(size=(3000, 64)), rng.integers(-1, 3000, 20_000)
    want = np.where(ids[:, None] < 0, 0, rows[ids])
    np.testing.assert_array_equal(fetch_rows(rows, ids), want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_rows_fetched_ahead(rng, dtype):
    """Buffers are reused for other sizes, and rows fetched before do not change."""
    rows = rng.integers(-99, 99, (50, 3)).astype(dtype)
    for depth in (1, 2, 5):
        # Sizes change, so that buffers are made anew; then one is reused.
        ids = [rng.integers(-2, 53, count) for count in (90, 90, 0, 7, *[90] * 9)]
        batches = [batch if i % 2 else jax.numpy.asarray(batch) for i, batch in enumerate(ids)]
        results = [*fetch_ahead(iter(batches), rows, ahead=depth)]
        for expected_ids, (batch, x) in zip(ids, results, strict=True):
            np.testing.assert_array_equal(batch, expected_ids)
            want = rows_at(rows, expected_ids) if len(expected_ids) else rows[:0]
            assert isinstance(x, jax.Array) and x.dtype == jax.numpy.asarray(rows).dtype
            np.testing.assert_array_equal(x, want)
    assert [*fetch_ahead([], rows)] == []
    scalars = [x for _, x in fetch_ahead([np.array([2, -1])], rows[:, 0])]
    np.testing.assert_array_equal(scalars[0], [rows[2, 0], 0])


def test_blocks_fetched_ahead(rng):
    """Blocks of the device and of the host, also in batches, are sent with their rows."""
    rows = rng.normal(size=(3, 2)).astype(np.float32)
    blocks = sample_neighbors(GRAPH, np.array([2, -1]), (2,), np.array([0, 1], np.uint32))
    batches = blocks, jax.device_put(blocks), SeedBatch(blocks, np.array([2, -1]), None, None)
    for batch, x in fetch_ahead(batches, rows):
        leaves = jax.tree.leaves(batch)
        assert leaves and all(isinstance(leaf, jax.Array) for leaf in leaves)
        np.testing.assert_array_equal(x, rows_at(rows, np.asarray(blocks.node_ids)))


def test_errors_while_prefetching():
    """Errors are raised for their batch, and threads end when a loop is left early."""
    rows, started = np.ones((3, 2), np.float32), []

    def batches():
        for i in range(9):
            started.append(i)
            yield np.array([i]) if i < 4 else np.array([0.5])

    results = fetch_ahead(batches(), rows, ahead=1)
    assert not started  # an iterator starts lazily
    # Row 3 is out of range, hence zeros.
    assert [float(next(results)[1][0, 0]) for _ in range(4)] == [1, 1, 1, 0]
    with pytest.raises(TypeError, match=r"^ids must be an array of integers"):
        next(results)
    # Depth 1: one batch is in flight beside the failed one.
    assert len(started) == 6
    for _, x in fetch_ahead(batches(), rows):
        assert x.shape == (1, 2)
        break


def test_cached_rows(rng):
    rows = rng.normal(size=(60, 5)).astype(np.float32)
    for num_cached in (0, 1, 30, 60):
        cache = FeatureCache(rows, rng.permutation(60)[:num_cached])
        for count in (0, 1, 90):
            ids = rng.integers(-2, 63, count)
            want = rows_at(rows, ids) if count else rows[:0]
            np.testing.assert_array_equal(cache.fetch(ids), want)


# --- Batches -------------------------------------------------------------------------------------


def batches(rng: np.random.Generator, **options):
    graph = jax.tree.map(np.asarray, lumpy_graph(rng, 40, 200))
    x, y = rng.normal(size=(43, 3)), np.arange(43)
    return lambda **kwargs: neighbor_batches(
        graph, np.arange(5, 38), 8, (3, 2), x={"x": x}, y=y, **options, **kwargs
    )


def same(actual, expected) -> bool:
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def test_an_epoch(rng):
    """Each seed comes once, with its rows; batches have one shape; epochs differ in order."""
    pytest.importorskip("grain")
    options = [{}, {"tree": True}, {"replace": True}, {"capacity": (16, 30)}][rng.integers(4)]
    make = batches(rng, seed=int(rng.integers(2**31)), **options)
    # All seeds, in batches of one shape.
    epoch = list(make())
    seeds = np.concatenate([batch.seeds for batch in epoch])
    assert sorted(seeds[seeds >= 0]) == [*range(5, 38)]
    assert len({tuple(x.shape for x in jax.tree.leaves(batch)) for batch in epoch}) == 1
    for batch in epoch:
        np.testing.assert_array_equal(batch.blocks.node_ids[:8], batch.seeds)
        np.testing.assert_array_equal(batch.y, np.where(batch.seeds < 0, 0, batch.seeds))
        assert ((batch.x["x"] == 0).all(1) == (batch.blocks.node_ids < 0)).all()
    two_epochs = list(make().repeat(2))
    assert same(two_epochs[: len(epoch)], epoch)
    assert not same([b.seeds for b in two_epochs[len(epoch) :]], [b.seeds for b in epoch])


def test_a_seed_sees_its_past(rng):
    """Edges of a batch are no later than their seed; each time of a seed has its own values."""
    pytest.importorskip("grain")
    graph = jax.tree.map(np.asarray, lumpy_graph(rng, 40, 200))
    times, seeds = rng.integers(0, 50, graph.num_edges), rng.integers(0, 40, 21)
    seed_time = rng.integers(0, 50, 21)
    epoch = neighbor_batches(
        graph,
        seeds,
        8,
        (3, -1),
        edge_time=times,
        seed_time=seed_time,
        seed_values={"seed": seeds, "time": seed_time, "place": np.arange(21) + 1},
    )
    places = []
    for batch in epoch:
        valid = batch.seeds >= 0
        np.testing.assert_array_equal(batch.seed_values["seed"][valid], batch.seeds[valid])
        places.append(batch.seed_values["place"][valid])
        assert (batch.seed_values["place"][~valid] == 0).all()
        of_source = batch.blocks.seed_ids
        for block in batch.blocks.graphs:
            count = int(block.indptr[-1])
            limits = batch.seed_values["time"][of_source[block.cols[:count]]]
            assert (times[block.edge_ids[:count]] <= limits).all()
    assert sorted(np.concatenate(places)) == [*range(1, 22)]


def test_all_neighbors_are_drawn(rng):
    """A fanout of -1 draws each edge into the seeds; weights of 0 draw none."""
    pytest.importorskip("grain")
    graph = jax.tree.map(np.asarray, lumpy_graph(rng, 40, 200))
    (batch,) = neighbor_batches(graph, np.arange(40), 40, [-1])
    edges = np.sort(batch.blocks.graphs[0].edge_ids)
    np.testing.assert_array_equal(edges[edges >= 0], np.arange(int(graph.indptr[-1])))
    weights = (rng.random(graph.num_edges) < 0.5).astype(np.float32)
    (batch,) = neighbor_batches(graph, np.arange(40), 40, [-1], edge_probability=weights)
    drawn = batch.blocks.graphs[0].edge_ids
    assert weights[drawn[drawn >= 0]].all()
    with pytest.raises(ValueError, match=r"fanouts must be positive inside jax.jit"):
        jax.jit(lambda graph, key: sample_neighbors(graph, np.arange(3), [-1], key))(
            graph, jax.random.key(0)
        )


def test_batches_by_type(rng):
    """Seeds and features are by type; blocks have the relations; batches of a key are the same."""
    pytest.importorskip("grain")
    pairs = rng.integers(0, 20, (2, 90))
    with host_arrays():
        graph = HeteroGraph.from_edges(
            {("user", "rates", "film"): pairs}, {"user": 20, "film": 20}, inverse=True
        )
    x = {"user": None, "film": rng.normal(size=(20, 3))}
    y, options = np.arange(40), {"disjoint": bool(rng.integers(2))}
    epoch = neighbor_batches(graph, {"film": np.arange(20)}, 8, (4, 4), x=x, y=y, **options)
    seeds = []
    for batch in epoch:
        seeds.append(batch.seeds[batch.seeds >= 0])
        np.testing.assert_array_equal(batch.y, np.where(batch.seeds < 0, 0, batch.seeds))
        want = batch.blocks.node_values(x)
        assert want["user"] is None and batch.x["user"] is None
        np.testing.assert_array_equal(batch.x["film"], want["film"])
        assert batch.blocks.graphs[0].num_relations == 2
    assert sorted(np.concatenate(seeds)) == [*range(20, 40)]
    assert same([*epoch], [*epoch])
    with pytest.raises(ValueError, match=r"x must be a mapping by the types user, film, got film"):
        neighbor_batches(graph, {"film": [0]}, 1, (1,), x={"film": x["film"]})
    with pytest.raises(ValueError, match=r"x\['film'\] must be \(20, \*features\), got"):
        neighbor_batches(graph, {"film": [0]}, 1, (1,), x={"user": None, "film": np.ones(3)})


def test_restart(rng):
    grain = pytest.importorskip("grain")
    make = batches(rng, seed=3)
    want = list(make().repeat(2))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
    running = iter(make().repeat(2).to_iter_dataset(options))
    first = [next(running) for _ in range(4)]
    # The state after four batches restores the rest of the epochs.
    state = running.get_state()
    again = iter(make().repeat(2).to_iter_dataset(options))
    again.set_state(state)
    assert same([*first, *again], want)


def test_shards(rng):
    """Processes share an epoch: each seed comes once, in equally many batches."""
    pytest.importorskip("grain")
    make = batches(rng)
    for count in (2, 3):
        shards = [list(make(shard=(i, count))) for i in range(count)]
        assert len({len(shard) for shard in shards}) == 1
        # Shards partition the seeds.
        seeds = np.concatenate([batch.seeds for shard in shards for batch in shard])
        assert sorted(seeds[seeds >= 0]) == [*range(5, 38)]


WORKERS = """
import sys
from typing import Any, NamedTuple
import absl.flags
import grain
import jax_gnn
import numpy as np

class Rows(NamedTuple):
    values: Any

def batches(x):
    with jax_gnn.host_arrays():
        graph = jax_gnn.Graph.from_edges(np.arange(9), np.arange(9)[::-1], num_nodes=9)
    epoch = jax_gnn.sampling.neighbor_batches(graph, np.arange(9), 4, (2,), x=x)
    options = grain.MultiprocessingOptions(num_workers=1)
    return len([*epoch.to_iter_dataset().mp_prefetch(options)])

if __name__ == "__main__":
    absl.flags.FLAGS(sys.argv[:1])
    rows = np.ones((9, 1))
    try:
        batches(Rows(rows))
    except TypeError as error:
        print(error)
    print(batches({"rows": rows}))
"""


def test_worker_processes(tmp_path):
    """Workers send all batches, or raise if they cannot import a class of the rows."""
    pytest.importorskip("grain")
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    process = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    error, count = process.stdout.splitlines() or [process.stderr, ""]
    assert error.startswith("x must be a pytree of classes that a worker process can import"), error
    assert count == "3", process.stderr


ARGUMENTS = {
    fetch_rows: {"rows": np.ones(3), "ids": [0]},
    fetch_ahead: {"batches": [], "rows": np.ones(3)},
    FeatureCache: {"rows": np.ones(3), "cached_ids": [0]},
    neighbor_batches: {"graph": GRAPH, "seeds": [0], "batch_size": 1, "fanouts": (1,)},
}
DEVICE_GRAPH = Graph.from_edges([0], [0], num_nodes=1)
BAD_ARGUMENTS = [
    (fetch_rows, {"rows": np.array([None])}, "^rows must be an array of numpy"),
    (fetch_ahead, {"rows": [[1.0]]}, "^rows must be an array of numpy"),
    (fetch_ahead, {"ahead": 0}, "^ahead must be positive, got 0"),
    (fetch_ahead, {"ahead": 0.5}, "^ahead must be an int"),
    (FeatureCache, {"cached_ids": [3]}, "^cached_ids must be below num_rows=3"),
    (neighbor_batches, {"graph": DEVICE_GRAPH}, "^graph must be of the host"),
    (neighbor_batches, {"batch_size": 0}, "^batch_size must be positive, got 0"),
    (neighbor_batches, {"fanouts": ()}, "^fanouts must be a sequence"),
    (neighbor_batches, {"batch_size": 2, "capacity": 1}, r"^capacity\[0\] must be at least 2"),
    (neighbor_batches, {"x": [1.0]}, "^x must be of numpy"),
    (neighbor_batches, {"y": np.ones(2)}, r"^y must be \(3, \*features\), got shape \(2,\)"),
    (neighbor_batches, {"shard": (2, 2)}, "^shard must be "),
    (neighbor_batches, {"seed_values": np.ones(2)}, r"^seed_values must be \(1, \*features\)"),
    (neighbor_batches, {"edge_time": np.zeros(3)}, "^edge_time needs seed_time"),
    (neighbor_batches, {"fanouts": (-2,)}, "^fanouts must be a sequence"),
]


@pytest.mark.parametrize(("function", "changes", "message"), BAD_ARGUMENTS)
def test_bad_arguments(function, changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        function(**ARGUMENTS[function] | changes)
