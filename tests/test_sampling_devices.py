"""Sampling of seeds that are split over the devices of a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jax_gnn import Graph, spmm
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
