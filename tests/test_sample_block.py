"""Sampling by kernels, and on arrays of the host: equal bits as plain ``jax.numpy``."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_checks import in_range, key_of, lumpy_edges, lumpy_graph

import jax_gnn
from jax_gnn import Graph, RelationalGraph
from jax_gnn._core.ffi import host_function
from jax_gnn._ops.sample_block.primitive import sample_uniform, sample_weighted
from jax_gnn.sampling import sample_neighbors

INT32 = np.iinfo(np.int32)
FANOUTS, KEY = (2, 3, 4), jax.random.key(0)


KINDS = ("tree", "distinct", "capacity", "replace", "disjoint", "disjoint capacity")
RULES = ("weighted", "weighted replace", "weighted tree", "times", "times capacity")


def options_of(rng: np.random.Generator, kind: str, num_edges: int):
    """Return options for a sample of nine seeds by FANOUTS."""
    options = {
        "replace": "replace" in kind or (kind == "tree" and bool(rng.integers(2))),
        "tree": "tree" in kind,
        "disjoint": "disjoint" in kind,
    }
    if "capacity" in kind:
        options["capacity"] = (11, 20, int(rng.integers(20, 60)))
    if "weighted" in kind:
        options["edge_probability"] = rng.choice([0, 1e-30, 0.5, 1, 3, 1e20], num_edges)
    if "times" in kind:
        options["edge_time"] = rng.integers(0, 20, num_edges)
        options["seed_time"] = rng.integers(-1, 22, 9)
    return options


def garbage(rng: np.random.Generator, num_nodes: int, num_edges: int) -> Graph:
    """Return a graph with random row pointers and sources, also out of range."""

    def random_ids(count: int, size: int):
        # A fifth of the ids are extremes.
        values = rng.integers(-3, size + 3, count)
        extremes = rng.choice([INT32.min, INT32.max, -1, size], count)
        return jnp.asarray(np.where(rng.random(count) < 0.2, extremes, values), jnp.int32)

    graph = Graph.from_edges(*rng.integers(0, num_nodes, (2, num_edges)), num_nodes=num_nodes)
    indptr, cols = random_ids(num_nodes + 1, num_edges), random_ids(num_edges, num_nodes)
    return replace(graph, indptr=indptr, cols=cols)


def assert_same(actual, expected) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def in_both(function, *arguments):
    """Return a result of the kernels, after comparing it with that of plain XLA."""
    result = jax.jit(function)(*arguments)
    # The emulated CUDA kernels are compared where they are built.
    for implementation in ("xla", *(["cuda"] if emulation.WANTED else [])):
        with jax_gnn.implementation(implementation):
            assert_same(result, jax.jit(function)(*arguments))
    return result


def random_seeds(rng: np.random.Generator, count: int, num_nodes: int) -> np.ndarray:
    """Return ids, some repeated, and some out of range."""
    ids = rng.integers(-2, num_nodes + 2, count)
    return np.where(rng.random(count) < 0.1, rng.choice([-1, INT32.max, INT32.min], count), ids)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("fanout", [1, 7, 40])
@pytest.mark.parametrize("replace", [False, True])
def test_draws(rng, dtype, fanout, replace):
    """Degrees around the fanout and large ones; few rows, and more than one tile has."""
    for rows in (0, 5, 100):
        # Degrees where the algorithm changes, and where a product overflows 32 bits.
        degrees = rng.choice([0, 1, fanout, fanout + 1, 50, 10**6, 2**31 - 1], rows)
        words = rng.integers(0, 2**32, 2, dtype=np.uint32)
        with jax.enable_x64(dtype == "int64"):
            offsets, counts = in_both(
                lambda degrees, words: sample_uniform(
                    degrees, words, fanout=fanout, stream=3, replace=replace
                ),
                jnp.asarray(degrees, dtype),
                jnp.asarray(words),
            )
        assert offsets.dtype == counts.dtype == dtype
        valid = np.arange(fanout) < np.asarray(counts)[:, None]
        assert (np.asarray(offsets) < degrees[:, None])[valid].all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("fanout", [1, 7, 40])
@pytest.mark.parametrize("replace", [False, True])
def test_weighted_draws(rng, dtype, fanout, replace):
    """Overlapping rows, with weights of 0 and large ones, and rows of weight 0."""
    for rows, num_edges in ((0, 0), (5, 1), (100, 300)):
        # Prefix sums of shares, as EdgeProbability has them.
        sums = np.append(0, rng.choice([0, 1, 2, 2**22], num_edges)).cumsum().astype(np.uint32)
        starts = rng.integers(0, num_edges + 1, rows)
        degrees = np.minimum(rng.choice([0, 1, fanout, fanout + 1, 50], rows), num_edges - starts)
        words = rng.integers(0, 2**32, 2, dtype=np.uint32)
        with jax.enable_x64(dtype == "int64"):
            offsets, counts = in_both(
                functools.partial(sample_weighted, fanout=fanout, stream=3, replace=replace),
                jnp.asarray(sums),
                *(jnp.asarray(ids, dtype) for ids in (starts, degrees)),
                jnp.asarray(words),
            )
        assert offsets.dtype == counts.dtype == dtype
        sizes = np.diff(sums, append=0)[starts[:, None] + np.asarray(offsets)]
        valid = np.arange(fanout) < np.asarray(counts)[:, None]
        assert (np.asarray(offsets) < degrees[:, None])[valid].all() and (sizes[valid] > 0).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks(rng, dtype, kind):
    """Three layers of a padded graph, with repeated seeds and seeds out of range."""
    with jax.enable_x64(dtype == "int64"):
        graph = jax.tree.map(lambda ids: ids.astype(dtype), lumpy_graph(rng, 40, 200))
        seeds = jnp.asarray(random_seeds(rng, 9, 40), dtype)
        options = options_of(rng, kind, graph.num_edges)
        blocks = in_both(
            lambda graph, seeds, key: sample_neighbors(graph, seeds, FANOUTS, key, **options),
            graph,
            seeds,
            key_of(rng),
        )
    assert blocks.node_ids.dtype == dtype


@pytest.mark.parametrize("kind", ["distinct", "capacity", "disjoint", "disjoint capacity"])
def test_long_blocks(rng, kind):
    """More edges than a GPU's kernel has in one tile, from few nodes and from many."""
    num_nodes = int(rng.choice([5, 1000]))
    graph = lumpy_graph(rng, num_nodes, 4000)
    seeds = jnp.asarray(random_seeds(rng, 1100, num_nodes), jnp.int32)
    options = options_of(rng, kind, graph.num_edges) | {"replace": True}
    if "capacity" in kind:
        options["capacity"] = 1100 + int(rng.integers(2, 200))
    blocks = in_both(
        lambda graph, seeds, key: sample_neighbors(graph, seeds, (2,), key, **options),
        graph,
        seeds,
        key_of(rng),
    )
    assert blocks.graphs[0].num_edges == 2200


@pytest.mark.parametrize("kind", ["tree", "replace", "capacity", "disjoint"])
def test_relational_blocks(rng, kind):
    """Edges of a node ascend, and belong to pairs; some graphs have a self-relation."""
    fanouts = [(4, 3), ({0: 2, 2: 1}, 40)][rng.integers(2)]
    src, dst = lumpy_edges(rng, 40, 200)
    graph = RelationalGraph.from_triples(
        src,
        rng.integers(0, 3, 200),
        dst,
        **{"num_nodes": 40, "num_relations": 3, "self_relation": bool(rng.integers(2))},
    )
    options = options_of(rng, kind, graph.num_edges)
    options |= {"capacity": (11, 30)} if kind == "capacity" else {}
    blocks = in_both(
        lambda graph, seeds, key: sample_neighbors(graph, seeds, fanouts, key, **options),
        graph,
        jnp.asarray(random_seeds(rng, 9, 40), jnp.int32),
        key_of(rng),
    )
    for block in blocks.graphs:
        # Places ascend within a destination.
        rows, places = block.nodes.rows, block.nodes.edge_ids
        same = (rows[1:] == rows[:-1]) & (rows[1:] >= 0)
        assert (places[1:] >= places[:-1])[same].all()


GARBAGE = {
    "tree": {"tree": True},
    "distinct": {},
    "capacity": {"capacity": (10, 12)},
    "disjoint": {"disjoint": True},
    "weighted": {"edge_probability": np.linspace(0, 2, 50)},
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage(rng, kind):
    """Garbage in a graph gives the same bits, in range, and nothing out of range is read."""
    options = GARBAGE[kind]
    graph, seeds = garbage(rng, 12, 50), jnp.asarray(random_seeds(rng, 8, 12), jnp.int32)
    blocks = in_both(
        lambda graph, seeds, key: sample_neighbors(graph, seeds, (4, 3), key, **options),
        graph,
        seeds,
        key_of(rng),
    )
    in_range(blocks.node_ids, 12)
    for block in blocks.graphs:
        in_range(block.edge_ids, 50)
        in_range(block.rows, block.num_dst)
        in_range(block.cols, block.num_src)


def on_host(graph: Graph) -> Graph:
    return jax.tree.map(np.asarray, graph)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("kind", KINDS + RULES)
def test_host(rng, tmp_path, dtype, kind):
    """Graphs of the host and memory maps give arrays of the host, equal to those of devices."""
    with jax.enable_x64(dtype == "int64"):
        graph = jax.tree.map(lambda ids: ids.astype(dtype), lumpy_graph(rng, 40, 200))
        seeds, key = random_seeds(rng, 9, 40), key_of(rng)
        options = options_of(rng, kind, graph.num_edges)
        want = on_devices(graph, jnp.asarray(seeds), FANOUTS, key, **options)
    host = on_host(graph)
    words = np.asarray(jax.random.key_data(key))
    blocks = sample_neighbors(host, seeds, FANOUTS, words, **options)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(blocks))
    assert_same(blocks, want)
    assert_same(sample_neighbors(host, seeds, FANOUTS, key, **options), want)
    # Memory maps are a subclass of arrays; results must be plain.
    maps = {name: mapped(tmp_path / name, getattr(host, name)) for name in ("indptr", "cols")}
    assert_same(sample_neighbors(replace(host, **maps), seeds, FANOUTS, words, **options), want)


def on_devices(graph, seeds, fanouts, key, **options):
    """Return the default device's blocks, after comparing them with a CPU's."""
    sample = jax.jit(lambda *arrays: sample_neighbors(*arrays[:2], fanouts, arrays[2], **options))
    blocks = sample(graph, seeds, key)
    if jax.default_backend() != "cpu":
        with jax.default_device(jax.devices("cpu")[0]):
            arrays = jax.device_put((graph, seeds, key), jax.devices("cpu")[0])
            assert_same(sample(*arrays), blocks)
    return blocks


RELATIONAL: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "all": ((3, 4), (), {}),
    "by relation": (({0: 2, 1: 1, 3: 4}, {2: 3, 1: 3}), (), {}),
    "parts": ((3, {1: 2, 2: 2}), ("from_pairs", "to_pairs"), {}),
    "tree": (({0: 2, 1: 2}, 3), ("from_pairs",), {"tree": True}),
    "disjoint": ((3, 2), ("to_pairs",), {"disjoint": True, "capacity": (20, 60)}),
    "weighted": (({0: 3, 1: 3}, 2), (), {"edge_probability": np.linspace(0, 2, 95)}),
}


@pytest.mark.parametrize("kind", RELATIONAL)
def test_host_relational(rng, kind):
    """Relational graphs of the host give the blocks of devices, with the graphs of pairs."""
    fanouts, parts, options = RELATIONAL[kind]
    src, dst = lumpy_edges(rng, 12, 90)
    graph = RelationalGraph.from_triples(
        src, rng.integers(0, 4, 90), dst, num_nodes=12, num_relations=4, parts=parts
    )
    # Weights are given for 95 edges, padding included.
    if rng.integers(2) or "weighted" in kind:
        graph = graph.pad(num_nodes=15, num_edges=95)
    seeds, key = random_seeds(rng, 9, 12), key_of(rng)
    want = on_devices(graph, jnp.asarray(seeds), fanouts, key, **options)
    blocks = sample_neighbors(on_host(graph), seeds, fanouts, key, **options)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(blocks))
    assert_same(blocks, want)


def mapped(path: Path, array: np.ndarray) -> np.ndarray:
    np.save(path.with_suffix(".npy"), array)
    return np.load(path.with_suffix(".npy"), mmap_mode="r")


def test_host_garbage(rng):
    # The host's kernels check ids, too.
    for options in GARBAGE.values():
        graph = on_host(garbage(rng, 12, 50))
        seeds, key = random_seeds(rng, 8, 12), key_of(rng)
        want = on_devices(graph, jnp.asarray(seeds), (4, 3), key, **options)
        assert_same(sample_neighbors(graph, seeds, (4, 3), key, **options), want)


def test_host_without_nodes():
    with jax_gnn.host_arrays():
        graph = Graph.from_edges([], [], num_nodes=0)
    blocks = sample_neighbors(graph, [0, -1], (2, 2), np.zeros(2, np.uint32))
    assert (blocks.node_ids == -1).all() and not blocks.overflow


def test_many_threads(rng):
    """Work that is split over threads gives the bits of one thread."""
    graph = lumpy_graph(rng, 5000, 60_000)
    seeds, key = rng.integers(0, 5000, 3000), key_of(rng)
    host = on_host(graph)
    weights = rng.random(graph.num_edges)
    with jax_gnn.implementation("xla"):
        for options in ({}, {"tree": True}, {"disjoint": True}, {"edge_probability": weights}):
            want = on_devices(graph, jnp.asarray(seeds), (9, 8), key, **options)
            assert_same(sample_neighbors(host, seeds, (9, 8), key, **options), want)


@pytest.mark.parametrize("tree", [False, True])
def test_many_rows(rng, tree):
    """More rows than a GPU's thread block scans at once."""
    graph = lumpy_graph(rng, 500, 3000)
    seeds = jnp.asarray(rng.integers(-1, 500, 8200), jnp.int32)
    in_both(lambda seeds, key: sample_neighbors(graph, seeds, (2,), key, tree=tree), seeds, KEY)


def test_many_nodes(rng):
    """Far more nodes than a block has, some of them repeated."""
    # Few distinct nodes with large ids.
    src, dst = rng.integers(0, 9000, (2, 60)) // 300 * 300
    graph = Graph.from_edges(src, dst, num_nodes=9000)
    seeds = jnp.asarray(np.append(rng.choice(dst, 6), -1), jnp.int32)
    in_both(lambda seeds, key: sample_neighbors(graph, seeds, (3, 2), key), seeds, key_of(rng))


FORKED = """
import os, sys
import numpy as np
import jax
import jax_gnn
from jax_gnn.sampling import sample_neighbors

def stop(*_, **__):
    raise AssertionError("a device was requested")

with jax_gnn.host_arrays():
    graph = jax_gnn.Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4)
    edges = {("a", "r", "a"): [[0, 1, 2, 3], [1, 2, 3, 0]]}
    relations = jax_gnn.HeteroGraph.from_edges(edges, {"a": 4})
jax.devices = jax.local_devices = jax.default_backend = stop
jax._src.xla_bridge.backends = stop
child = os.fork()
for options in ({}, {"edge_probability": [1, 2, 3, 4]}, {"edge_time": [1, 2, 3, 4]}):
    limits = {"seed_time": [9, 9]} if "edge_time" in options else {}
    key = np.array([1, 2], np.uint32)
    blocks = sample_neighbors(graph, np.array([2, -1]), (2, 2), key, **options, **limits)
typed = sample_neighbors(relations, {"a": [2, -1]}, ({("a", "r", "a"): 1}, 2), key)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert blocks.node_ids.tolist()[:3] == [2, -1, 1], blocks.node_ids
"""


def test_forked_workers_use_no_device():
    subprocess.run([sys.executable, "-P", "-c", FORKED], check=True)


@pytest.mark.parametrize("key", [3, np.zeros(2), np.zeros(4, np.uint32)])
def test_keys_of_the_host(key):
    graph = on_host(Graph.from_edges([0], [1], num_nodes=2))
    with pytest.raises(TypeError, match=r"^key must be a key of jax.random or \(2,\) uint32, got"):
        sample_neighbors(graph, [0], (1,), key)


def test_vmap(rng):
    """A batch of seeds and keys equals single calls."""
    graph = lumpy_graph(rng, 20, 80)
    seeds = jnp.asarray(rng.integers(-1, 20, (3, 4)), jnp.int32)
    keys = jax.random.split(key_of(rng), 3)

    def sample(seeds, key):
        return sample_neighbors(graph, seeds, (3, 2), key)

    # Keys alone, and seeds with keys, are batched.
    for axes, arguments in (((0, 0), (seeds, keys)), ((None, 0), (seeds[0], keys))):
        batched = in_both(jax.vmap(sample, axes), *arguments)
        for i in range(3):
            row = seeds[i if axes[0] == 0 else 0]
            assert_same(jax.tree.map(lambda x, i=i: x[i], batched), sample(row, keys[i]))


def test_instruction_sets(rng):
    graph, seeds = on_host(lumpy_graph(rng, 200, 9000)), rng.integers(0, 200, 100)
    words, sets = rng.integers(0, 2**32, 2, dtype=np.uint32), host_function("instruction_sets")()
    results = []
    # Each instruction set has kernels of its own.
    try:
        for name in sets:
            host_function("limit_instruction_set")(name)
            results.append(sample_neighbors(graph, seeds, (7, 5), words))
    finally:
        host_function("limit_instruction_set")(sets[-1])
    for blocks in results:
        assert_same(blocks, results[0])
