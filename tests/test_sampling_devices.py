"""Sampling on several devices: equal draws, and seeds that are split over a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from sampling_checks import key_of, lumpy_edges, lumpy_graph

from jax_gnn import Graph, RelationalGraph, spmm
from jax_gnn.sampling import sample_neighbors

DEVICES = 4
MESH = Mesh(np.array(jax.devices("cpu")[:DEVICES]), ("seeds",))


@pytest.mark.parametrize(
    ("fanouts", "options"), [((3, 2), {}), ((35,), {"capacity": 10}), ((3, 2), {"tree": True})]
)
def test_shard_map(rng, fanouts, options):
    """Blocks, and the gradient of a loss over all seeds, equal those of each device's seeds."""
    src, dst = rng.integers(0, 30, (2, 200))
    graph = Graph.from_edges(src, dst, num_nodes=30)
    x = jnp.asarray(rng.normal(size=(30, 2)), jnp.float32)
    seeds = jnp.asarray(rng.integers(-1, 31, 4 * DEVICES))
    key = jax.random.key(int(rng.integers(100)))

    def loss(x: Array, seeds: Array, number) -> tuple[Array, Array]:
        words = jax.random.fold_in(key, number)
        blocks = sample_neighbors(graph, seeds, fanouts, words, **options)
        y = blocks.node_values(x)
        for block in blocks.graphs:
            y = spmm(block, y, reduce="mean")
        return (y**2).sum(), blocks.node_ids

    # The key is folded with the device's number, as users do it.
    def everywhere(x: Array, seeds: Array) -> tuple[Array, Array]:
        value, node_ids = loss(x, seeds, jax.lax.axis_index("seeds"))
        return jax.lax.psum(value, "seeds"), node_ids

    split = P("seeds")
    sharded = jax.shard_map(everywhere, mesh=MESH, in_specs=(P(), split), out_specs=(P(), split))
    (_, node_ids), gradient = jax.jit(jax.value_and_grad(sharded, has_aux=True))(x, seeds)

    # The same samples one after another, on a single device.
    with jax.default_device(jax.devices("cpu")[0]):
        step = jax.jit(jax.value_and_grad(loss, has_aux=True))
        shares = jnp.split(seeds, DEVICES)
        results = [step(x, share, jnp.int32(number)) for number, share in enumerate(shares)]
    np.testing.assert_array_equal(node_ids, jnp.concatenate([ids for (_, ids), _ in results]))
    want = np.sum([dx for _, dx in results], axis=0)
    np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-5)


def test_same_batch(rng):
    """The host, a CPU and the default device draw the same; all kinds compile as one program."""
    graph = lumpy_graph(rng, 40, 200)
    src, dst = lumpy_edges(rng, 40, 200)
    relational = RelationalGraph.from_triples(src, rng.integers(0, 3, 200), dst, 40, 3)
    edges = graph.num_edges
    data = {
        "graph": graph,
        "relational": relational,
        "seeds": jnp.asarray([*rng.integers(-1, 41, 6), 0, 3, 0], jnp.int32),
        "weights": jnp.asarray(rng.choice([0, 1e-30, 0.5, 1, 3, 1e20], edges), jnp.float32),
        "times": jnp.asarray(rng.integers(0, 20, edges), jnp.int32),
        "limits": jnp.asarray(rng.integers(-1, 22, 9), jnp.int32),
        "key": jax.random.key_data(key_of(rng)),
    }

    def drawn(data):
        arguments, key = (data["graph"], data["seeds"]), data["key"]
        # Times and weights as raw arrays, which are sorted or summed on the device.
        timed = {"edge_time": data["times"], "seed_time": data["limits"]}
        return {
            "tree": sample_neighbors(*arguments, (3, 2), key, tree=True),
            "distinct": sample_neighbors(*arguments, (3, 2), key, capacity=(11, 30)),
            "weighted": sample_neighbors(*arguments, (3,), key, edge_probability=data["weights"]),
            "timed": sample_neighbors(*arguments, (3,), key, **timed),
            "relations": sample_neighbors(data["relational"], arguments[1], ({0: 2, 2: 1},), key),
        }

    # The host's result is the reference.
    want = drawn(jax.tree.map(np.asarray, data))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(want))
    assert all((blocks.node_ids >= 0).sum() >= 3 for blocks in want.values())
    for device in {jax.devices("cpu")[0], jax.devices()[0]}:
        result = jax.jit(drawn)(jax.device_put(data, device))
        for kind, blocks in result.items():
            pairs = zip(jax.tree.leaves(blocks), jax.tree.leaves(want[kind]), strict=True)
            for actual, expected in pairs:
                np.testing.assert_array_equal(actual, expected, err_msg=f"{kind} on {device}")
