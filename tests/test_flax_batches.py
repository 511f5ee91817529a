"""Readouts, norms and GIN of batches, compared with PyTorch Geometric and without padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import flax_layers
from jax_gnn import Batch, Graph, batch, unbatch

SIZES = (3, 1, 5, 0, 4)
WIDTH = 4


@pytest.fixture
def graphs(rng: np.random.Generator) -> Batch[Graph]:
    edges = [rng.integers(0, max(size, 1), (2, 2 * size)) for size in SIZES]
    return Batch.from_edges(edges, SIZES)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(sum(SIZES), WIDTH)).astype(np.float32)


def padded(graphs: Batch[Graph]) -> Batch[Graph]:
    """Return a batch of the same graphs with larger capacities."""
    return batch(unbatch(graphs), num_nodes=20, num_edges=40, num_graphs=8)


def with_parameters(rng: np.random.Generator, layer):
    """Return the layer with random parameters, also factors and biases."""
    state = nnx.state(layer, nnx.Param)
    nnx.update(layer, jax.tree.map(lambda p: rng.uniform(0.2, 1, p.shape).astype("f"), state))
    return layer


RNGS = {"rngs": nnx.Rngs(0)}
LAYERS: dict[str, Callable[[], Any]] = {
    "readout": lambda: flax_layers.readout,
    "mean": lambda: lambda graphs, x: flax_layers.readout(graphs, x, "mean"),
    "max": lambda: lambda graphs, x: flax_layers.readout(graphs, x, "max"),
    "AttentionReadout": lambda: flax_layers.AttentionReadout(
        WIDTH, transform=nnx.Linear(WIDTH, 3, **RNGS), **RNGS
    ),
    "Set2Set": lambda: flax_layers.Set2Set(WIDTH, num_steps=3, **RNGS),
    "TopKReadout": lambda: flax_layers.TopKReadout(WIDTH, k=3, **RNGS),
    "NodeBatchNorm": lambda: flax_layers.NodeBatchNorm(WIDTH, **RNGS),
    "GraphLayerNorm": lambda: flax_layers.GraphLayerNorm(WIDTH, **RNGS),
    "GraphNorm": lambda: flax_layers.GraphNorm(WIDTH, **RNGS),
    "PairNorm": lambda: flax_layers.PairNorm(WIDTH, scale=2.0),
    "PairNorm-SI": lambda: flax_layers.PairNorm(WIDTH, individually=True),
    "GPSConv": lambda: flax_layers.GPSConv(
        WIDTH, flax_layers.GINEConv(WIDTH, WIDTH, mlp_norm="batch_norm", **RNGS), heads=2, **RNGS
    ),
    "GINBlock": lambda: flax_layers.GINBlock(WIDTH, 3, learn_eps=True, **RNGS),
    "GINClassifier": lambda: flax_layers.GINClassifier(
        WIDTH, 3, 2, num_layers=2, dropout_rate=0.0, **RNGS
    ),
    "GraphClassifier-GIN": lambda: flax_layers.GraphClassifier(
        WIDTH, 6, 3, layers="GIN", mlp_norm="batch_norm", dropout_rate=0.0, **RNGS
    ),
}


# --- Padding -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("name", LAYERS)
def test_padding_changes_nothing(rng, graphs, x, name):
    """Values and gradients equal those without padding, also if its rows hold NaN."""
    layer = LAYERS[name]()
    is_module = isinstance(layer, nnx.Module)
    state = {}
    if is_module:
        definition, params, statistics = nnx.split(with_parameters(rng, layer), nnx.Param, ...)
        state = params
    of_graphs = "eadout", "mean", "max", "Classifier", "Set2Set"
    graph_level = any(part in name for part in of_graphs)
    # A random projection of the result, so that all gradients are tested.
    probes = np.random.default_rng(0).normal(size=100).astype("f")

    def loss(state, graphs: Batch[Graph], x):
        call = nnx.merge(definition, state, statistics, copy=True) if is_module else layer
        y = call(graphs, x)
        rows = len(SIZES) if graph_level else sum(SIZES)
        return jnp.vdot(y[:rows], jnp.resize(probes, y[:rows].shape)), y[:rows]

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 2), has_aux=True))
    # Padding holds NaN, which any use would spread.
    padding = np.full((20 - len(x), WIDTH), np.nan, np.float32)
    (_, want), gradients = gradient(state, graphs, x)
    (_, got), padded_gradients = gradient(state, padded(graphs), np.concatenate([x, padding]))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert not np.asarray(padded_gradients[1][len(x) :]).any()
    # Gradients to parameters and to real rows.
    ours = [*jax.tree.leaves(padded_gradients[0]), padded_gradients[1][: len(x)]]
    for a, b in zip(ours, [*jax.tree.leaves(gradients[0]), gradients[1]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_batches_of_the_host(graphs, name, x):
    layer = LAYERS[name]()
    y, expected = (layer(structure, x) for structure in (jax.tree.map(np.asarray, graphs), graphs))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("name", ["readout", "mean", "max"])
def test_readout_of_graphs_without_nodes(graphs, name, x):
    y = LAYERS[name]()(graphs, x)
    assert not y[3].any() and y[2].any()


# --- PyTorch Geometric ---------------------------------------------------------------------------


def torch_state(layer, arrays, torch) -> None:
    """Copy arrays into parameters by name."""
    state = dict(layer.state_dict())
    for name, array in arrays.items():
        assert state[name].numel() == np.size(array), name
        state[name] = torch.tensor(np.array(array)).reshape(state[name].shape)
    layer.load_state_dict(state)


def pair(name: str, layer, torch, geometric):
    """Return PyTorch Geometric's counterpart of a layer, with the same parameters."""
    nn = geometric.nn
    if name in ("readout", "mean", "max"):
        return getattr(nn, f"global_{'add' if name == 'readout' else name}_pool")
    if name == "AttentionReadout":
        gate, transform = torch.nn.Linear(WIDTH, 1), torch.nn.Linear(WIDTH, 3)
        for theirs, ours in ((gate, layer.gate), (transform, layer.transform)):
            torch_state(theirs, {"weight": ours.kernel[...].T, "bias": ours.bias[...]}, torch)
        return nn.aggr.AttentionalAggregation(gate, transform)
    if name == "Set2Set":
        module = nn.aggr.Set2Set(WIDTH, 3)
        arrays = {
            "weight_ih_l0": layer.kernel[...].T,
            "weight_hh_l0": layer.recurrent_kernel[...].T,
        }
        arrays |= {"bias_ih_l0": layer.bias[...], "bias_hh_l0": np.zeros(4 * WIDTH, "f")}
        torch_state(module, {f"lstm.{key}": value for key, value in arrays.items()}, torch)
        return module
    if name == "NodeBatchNorm":
        module = nn.BatchNorm(WIDTH)
        torch_state(module.module, {"weight": layer.scale[...], "bias": layer.bias[...]}, torch)
        return lambda x, ids: module(x)
    if name.startswith("PairNorm"):
        return nn.PairNorm(scale=layer.scale, scale_individually=layer.individually)
    module = nn.GraphNorm(WIDTH) if name == "GraphNorm" else nn.LayerNorm(WIDTH, mode="graph")
    arrays = {"weight": layer.scale[...], "bias": layer.bias[...]}
    if name == "GraphNorm":
        arrays["mean_scale"] = layer.mean_scale[...]
    torch_state(module, arrays, torch)
    return module


@pytest.mark.parametrize(
    "name", [n for n in LAYERS if n not in ("TopKReadout", "GPSConv") and "GIN" not in n]
)
def test_equals_pytorch_geometric(rng, graphs, x, name):
    geometric = pytest.importorskip("torch_geometric")
    torch = pytest.importorskip("torch")
    layer = LAYERS[name]()
    if isinstance(layer, nnx.Module):
        with_parameters(rng, layer)
    with torch.no_grad():
        module = pair(name, layer, torch, geometric)
        arguments = torch.tensor(x), torch.tensor(np.asarray(graphs.graph_ids, np.int64))
        want = module(*arguments).numpy()
    got = np.asarray(layer(graphs, x))
    assert len(want) == len(got)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_top_k_equals_pytorch_geometric(rng, graphs, x):
    geometric = pytest.importorskip("torch_geometric")
    torch = pytest.importorskip("torch")
    layer = with_parameters(rng, LAYERS["TopKReadout"]())
    module = geometric.nn.TopKPooling(WIDTH, ratio=3)
    torch_state(module, {"select.weight": layer.vector[...]}, torch)
    ids = torch.tensor(np.asarray(graphs.graph_ids, np.int64))
    with torch.no_grad():
        rows, _, _, owners, *_ = module(
            torch.tensor(x), torch.zeros((2, 0), dtype=torch.int64), batch=ids
        )
    got = np.asarray(layer(graphs, x))
    for graph in range(len(SIZES)):
        expected = rows[owners == graph].numpy()
        np.testing.assert_allclose(got[graph, : len(expected)], expected, rtol=1e-4, atol=1e-5)
        assert not got[graph, len(expected) :].any()


def test_running_statistics_equal_those_of_flax(graphs, x):
    """Running statistics over three padded steps equal Flax's, as do results by them."""
    ours = flax_layers.NodeBatchNorm(WIDTH, momentum=0.9, **RNGS)
    theirs = nnx.BatchNorm(WIDTH, momentum=0.9, **RNGS)
    larger, padding = padded(graphs), np.full((20 - len(x), WIDTH), np.nan, np.float32)
    for step in range(3):
        ours(larger, np.concatenate([step + x, padding]))
        theirs(step + x)
    np.testing.assert_allclose(ours.mean[...], theirs.mean[...], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.var[...], theirs.var[...], rtol=1e-4, atol=1e-5)
    ours.eval()
    theirs.eval()
    np.testing.assert_allclose(ours(graphs, x), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [(), (2,)])
def test_batch_norm_has_the_derivatives_of_its_formula(rng, graphs, x, axes):
    """First and second derivatives, forward and reverse, also of the statistics."""
    with jax.enable_x64(True):
        larger = padded(graphs)
        mask = np.asarray(larger.node_mask)
        shape = (len(mask), *axes, WIDTH)
        primals = {"x": rng.normal(size=shape), "scale": rng.normal(size=WIDTH)}
        primals["bias"] = rng.normal(size=WIDTH)
        tangents = {name: rng.normal(size=value.shape) for name, value in primals.items()}
        probes = [rng.normal(size=shape) * mask.reshape(-1, *[1] * (len(axes) + 1))]
        probes += [rng.normal(size=WIDTH) for _ in range(2)]

        def ours(primals):
            norm = flax_layers.NodeBatchNorm(
                WIDTH, momentum=0.0, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
            )
            norm.scale[...], norm.bias[...] = primals["scale"], primals["bias"]
            y = norm(larger, primals["x"])
            return y, norm.mean[...], norm.var[...]

        # The textbook formula over real rows, which JAX differentiates.
        def formula(primals):
            x = primals["x"][mask].reshape(-1, WIDTH)
            mean, var = x.mean(0), x.var(0)
            y = (primals["x"] - mean) / jnp.sqrt(var + 1e-5) * primals["scale"] + primals["bias"]
            return y, mean, var

        def results(function):
            def loss(primals):
                results = zip(function(primals), probes, strict=True)
                return sum(jnp.vdot(jnp.sin(y), probe) for y, probe in results)

            gradient = jax.value_and_grad(loss)
            return jax.jit(lambda *pair: jax.jvp(gradient, *pair))((primals,), (tangents,))

        for got, want in zip(*map(jax.tree.leaves, map(results, (ours, formula))), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


# --- The classifier ------------------------------------------------------------------------------


def test_gin_of_a_batch_equals_single_graphs(rng, graphs, x):
    """Graphs of a batch are independent with running statistics."""
    model = with_parameters(rng, LAYERS["GINClassifier"]())
    # A step changes the initial running statistics.
    nnx.jit(lambda model, graphs, x: model(graphs, x))(model, graphs, x)
    evaluate = nnx.jit(lambda model, graphs, x: model(graphs, x, deterministic=True))
    together = evaluate(model, graphs, x)
    for number, (graph, features) in enumerate(
        zip(unbatch(graphs), graphs.split_nodes(x), strict=True)
    ):
        if len(features):
            alone = evaluate(model, batch([graph]), features)[0]
            np.testing.assert_allclose(together[number], alone, rtol=1e-4, atol=1e-4)


def test_gin_tells_rings_from_trees(rng):
    """Sizes and features are equal: only the number of edges differs."""
    edges, labels = [], []
    sizes = rng.integers(4, 9, 64)
    for size in sizes.tolist():
        label = int(rng.integers(2))
        src = np.arange(1, size)
        dst = np.array([rng.integers(node) for node in src])
        # Label 1 is a ring, label 0 a random tree.
        if label:
            src, dst = np.arange(size), np.roll(np.arange(size), 1)
        edges.append(np.stack([np.r_[src, dst], np.r_[dst, src]]))
        labels.append(label)
    graphs, y = Batch.from_edges(edges, sizes), np.array(labels)
    x = np.ones((graphs.graph.num_nodes, 1), np.float32)
    model = flax_layers.GINClassifier(1, 16, 2, num_layers=3, dropout_rate=0.0, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, graphs, x, y):
        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(graphs, x), y).mean()

        optimizer.update(model, nnx.grad(loss)(model))
        return (model(graphs, x).argmax(-1) == y).mean()

    accuracy = 0.0
    # Trains until all graphs are told apart.
    for _ in range(60):
        accuracy = float(step(model, optimizer, graphs, x, y))
        if accuracy == 1:
            break
    assert accuracy >= 0.99


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("name", ["GraphLayerNorm", "GraphNorm", "PairNorm", "PairNorm-SI"])
def test_norms_of_rows_whose_squares_float16_does_not_hold(graphs, x, name, factor):
    half = jnp.asarray(factor * x, jnp.float16)
    norm = LAYERS[name]()
    if name.startswith("Graph"):
        norm.dtype = jnp.float16
    y = norm(graphs, half)
    assert y.dtype == jnp.float16
    expected = LAYERS[name]()(graphs, half.astype(jnp.float32))
    np.testing.assert_allclose(y, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_set2set_of_half_types(dtype, graphs, x):
    half = flax_layers.Set2Set(WIDTH, num_steps=2, param_dtype=dtype, rngs=nnx.Rngs(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(half))} == {jnp.dtype(dtype)}
    y, single = nnx.jit(half)(graphs, x.astype(dtype)), nnx.clone(half)
    nnx.update(single, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), nnx.state(half)))
    np.testing.assert_allclose(y, nnx.jit(single)(graphs, x), rtol=0.1, atol=0.1)


def test_jumping_knowledge():
    layers = [np.full((3, 2), value, np.float32) for value in (1, 3, 2)]
    joined = flax_layers.jumping_knowledge(layers)
    np.testing.assert_array_equal(joined[0], [1, 1, 3, 3, 2, 2])
    np.testing.assert_array_equal(flax_layers.jumping_knowledge(layers, "max"), layers[1])


BAD: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (
        lambda graphs, x: flax_layers.readout(graphs, x, "min"),
        ValueError,
        "reduce must be one of 'sum'",
    ),
    (
        lambda graphs, x: flax_layers.readout(graphs, x[1:]),
        ValueError,
        r"x must be \(num_nodes=13, ",
    ),
    (
        lambda graphs, x: flax_layers.readout(graphs.graph, x),
        TypeError,
        "batch must be a jax_gnn.Batch, got Graph",
    ),
    (
        lambda graphs, x: flax_layers.Set2Set(3, num_steps=1, **RNGS)(graphs, x),
        ValueError,
        r"x must have shape \(num_nodes, ..., in_features\) = \(13, ..., 3\), got \(13, 4\)",
    ),
    (lambda graphs, x: flax_layers.TopKReadout(3, k=0, **RNGS), ValueError, "k must be positive"),
    (
        lambda graphs, x: flax_layers.jumping_knowledge([x, x[1:]]),
        ValueError,
        r"layers\[1\] must fit layers\[0\] of shape \(13, 4\), got \(12, 4\)",
    ),
    (
        lambda graphs, x: flax_layers.jumping_knowledge([]),
        ValueError,
        "layers must be one at least",
    ),
    (
        lambda graphs, x: flax_layers.jumping_knowledge([x], "lstm"),
        ValueError,
        "mode must be one of 'concat', 'max', got 'lstm'",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[case[2] for case in BAD])
def test_bad_input(graphs, x, call, error, message):
    with pytest.raises(error, match=message):
        call(graphs, x)
