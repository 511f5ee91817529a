"""HostRows: features in host memory, sent by block, with the results and gradients of an array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

import flax_layers
from flax_layers import GCN, RGCN, SAGE, GATv2Conv, HGNNConv
from jax_gnn import Graph, Hypergraph, RelationalGraph
from jax_gnn.sharding import HostRows, shard_graph

pytestmark = pytest.mark.usefixtures("float64")

NODES, FEATURES = 50, 6


def assert_close(got, want, tolerance: float) -> None:
    """Compare pytrees; error bounds are relative to the largest number of each array."""
    got, want = (list(map(np.asarray, jax.tree.leaves(tree))) for tree in (got, want))
    for actual, expected in zip(got, want, strict=True):
        bound = tolerance * max(1, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=bound, strict=True)


@pytest.fixture
def graph(rng: np.random.Generator) -> Graph:
    return Graph.from_edges(*rng.integers(0, NODES, (2, 300)), num_nodes=NODES)


def loss_and_gradients(model, apply) -> tuple[Any, Any]:
    """Return loss and gradients of a model under `jax.jit`; `apply` calls the model."""
    definition, params, state = nnx.split(model, nnx.Param, ...)

    def loss(params) -> Any:
        y = apply(nnx.merge(definition, params, state))
        return jnp.sum(jnp.sin(y.astype(float)))

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize("hidden", [FEATURES, 8])
@pytest.mark.parametrize("name", ["GCN", "GIN", "SAGE", "GAT", "GraphTransformer"])
def test_models_train_as_with_an_array(
    name: str, hidden: int, graph: Graph, rng: np.random.Generator
) -> None:
    values = rng.normal(size=(NODES, FEATURES))
    # The last block may be short, or all rows may be in one block.
    x = HostRows.put(values, block_rows=int(rng.integers(1, NODES + 5)))
    options = {"num_layers": 2, "param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}
    model = getattr(flax_layers, name)(FEATURES, hidden, 3, **options)
    model.eval()
    want = loss_and_gradients(model, lambda model: model(graph, values))
    assert_close(loss_and_gradients(model, lambda model: model(graph, x)), want, 1e-10)


@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("name", ["GCN", "SAGE"])
def test_over_devices(name: str, num_parts: int, graph: Graph, rng: np.random.Generator) -> None:
    values = rng.normal(size=(NODES, FEATURES))
    # Hosts with one GPU take their CPU devices for two parts.
    devices = jax.devices() if jax.device_count() >= num_parts else jax.devices("cpu")
    mesh = Mesh(np.array(devices[:num_parts]), ("nodes",))
    sharded = shard_graph(graph, mesh, "nodes", rng.integers(0, num_parts, NODES))
    x = sharded.host_rows(values, block_rows=4)
    assert x.shape == (num_parts, sharded.node_ids.shape[1], FEATURES)
    options = {"num_layers": 2, "param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}
    model = getattr(flax_layers, name)(FEATURES, 4, 3, **options)
    model.eval()
    apply = lambda model: sharded.unshard(sharded.apply(model, x))  # noqa: E731
    want = loss_and_gradients(model, lambda model: model(graph, values))
    assert_close(loss_and_gradients(model, apply), want, 1e-10)


def test_convolutions_that_map_before_aggregating(graph: Graph, rng: np.random.Generator) -> None:
    values = rng.normal(size=(NODES, FEATURES))
    x = HostRows.put(values, block_rows=9)
    layer = GATv2Conv(FEATURES, 8, heads=2, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    assert_close(layer(graph, x), layer(graph, values), 1e-12)
    pool = flax_layers.SAGEConv(
        FEATURES, 3, reduce="max", project=True, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
    )
    assert_close(pool(graph, x), pool(graph, values), 1e-12)


@pytest.mark.parametrize("num_rows", [0, 1, 13])
def test_map(num_rows: int, rng: np.random.Generator) -> None:
    values, kernel = rng.normal(size=(num_rows, 3)), rng.normal(size=(3, 2))
    x = HostRows.put(values, block_rows=5)

    def double_and_project(rows, kernels) -> Any:
        return {"twice": 2 * rows, "product": rows @ kernels["first"] + 1}

    mapped = x.map(double_and_project, {"first": kernel})
    assert_close(mapped, {"twice": 2 * values, "product": values @ kernel + 1}, 1e-12)
    bias, ct = rng.normal(size=2), rng.normal(size=(num_rows, 2))

    def loss(x, kernel, bias) -> Any:
        return jnp.sum(ct * x.map(lambda rows, k, b: jnp.sin(rows @ k + b), kernel, bias))

    slope = jax.grad(loss, argnums=(0, 1, 2))(x, kernel, bias)
    # The gradient is computed by hand; rows of the host have none.
    along = ct * np.cos(values @ kernel + bias)
    assert_close(slope[1:], (values.T @ along, along.sum(0)), 1e-12)
    assert not np.asarray(slope[0].blocks).any()
    # A batch of kernels shares the blocks.
    several = jax.vmap(jax.grad(loss, argnums=1), (None, 0, None))(x, kernel[None], bias)
    assert_close(several[0], slope[1], 1e-12)


def test_half_types_are_summed_up_in_float32(rng: np.random.Generator) -> None:
    values = np.ones((4096, 1), np.float32)
    x = HostRows.put(values, block_rows=1).astype(jnp.bfloat16)
    slope = jax.jit(jax.grad(lambda k: x.map(jnp.matmul, k).astype(jnp.float32).sum()))
    assert slope(jnp.ones((1, 1), jnp.bfloat16)) == 4096  # sums in bfloat16 would end at 256


def test_device_memory_holds_one_block() -> None:
    """The compiled program has room for results and one block, and none for all rows."""
    cpu = jax.devices("cpu")[0]  # on a GPU products have room of their own
    values, kernel = np.ones((4096, 128), np.float32), jax.device_put(np.ones((128, 2)), cpu)
    x = HostRows.put(values, block_rows=256, device=cpu)
    loss = jax.jit(jax.grad(lambda k, x: jnp.sin(x.map(jnp.matmul, k)).sum()))
    memory = loss.lower(kernel, x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < values.nbytes / 4


def test_bad_arguments(graph: Graph) -> None:
    x = HostRows.put(np.ones((NODES, FEATURES), np.float32))
    model = GCN(FEATURES, 4, 3, input_dropout_rate=0.5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="input_dropout_rate must be 0 for rows of the host"):
        model(graph, x)
    with pytest.raises(ValueError, match=r"x must have shape \(num_nodes, \.\.\., in_features\)"):
        GCN(FEATURES + 1, 4, 3, rngs=nnx.Rngs(0))(graph, x)
    refused = "x must be an array of numbers, got HostRows"
    with pytest.raises(TypeError, match=refused):
        SAGE(FEATURES, 4, 3, reduce="max", rngs=nnx.Rngs(0))(graph, x)
    relational = RelationalGraph.from_triples([0], [0], [1], num_nodes=NODES)
    with pytest.raises(TypeError, match=refused):
        RGCN(FEATURES, 4, 3, num_relations=1, rngs=nnx.Rngs(0))(relational, x)
    hypergraph = Hypergraph.from_hyperedges([[0, NODES - 1]])
    with pytest.raises(TypeError, match=refused):
        HGNNConv(FEATURES, 4, rngs=nnx.Rngs(0))(hypergraph, x)
    with pytest.raises(TypeError, match="values must be floating-point numbers, got int32"):
        HostRows.put(np.ones((3, 2), np.int32))
    with pytest.raises(ValueError, match=r"values must be \(rows, features\), got shape \(3,\)"):
        HostRows.put(np.ones(3))
    with pytest.raises(ValueError, match="block_rows must be positive, got 0"):
        HostRows.put(np.ones((3, 2)), block_rows=0)
    with pytest.raises(ValueError, match=r"function must return 50 rows .* got \(\)"):
        x.map(jnp.sum)
    sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
    with pytest.raises(ValueError, match=r"values must be \(num_nodes = 50, ...\)"):
        sharded.host_rows(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"x must be of one device, as in ShardedGraph.apply"):
        sharded.host_rows(np.ones((NODES, 2))).map(jnp.sin)
    with pytest.raises(ValueError, match="values must have the shape"):
        sharded.apply(
            lambda part, x: x.map(jnp.sin), HostRows.put(np.ones((NODES, 2)), block_rows=5)
        )
