"""Readouts, norms and GIN of batches: beside PyTorch Geometric, and that padding counts nowhere."""

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
def made(rng: np.random.Generator) -> Batch[Graph]:
    ends = [rng.integers(0, max(size, 1), (2, 2 * size)) for size in SIZES]
    return Batch.from_edges(ends, SIZES)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(sum(SIZES), WIDTH)).astype(np.float32)


def padded(made: Batch[Graph]) -> Batch[Graph]:
    """The same graphs in a batch of larger capacities."""
    return batch(unbatch(made), num_nodes=20, num_edges=40, num_graphs=8)


def with_parameters(rng: np.random.Generator, layer: Any) -> Any:
    """The layer, with random parameters, factors and biases included."""
    state = nnx.state(layer, nnx.Param)
    nnx.update(layer, jax.tree.map(lambda p: rng.uniform(0.2, 1, p.shape).astype("f"), state))
    return layer


RNGS: dict[str, Any] = {"rngs": nnx.Rngs(0)}
LAYERS: dict[str, Callable[[], Any]] = {
    "readout": lambda: flax_layers.readout,
    "mean": lambda: lambda made, x: flax_layers.readout(made, x, "mean"),
    "max": lambda: lambda made, x: flax_layers.readout(made, x, "max"),
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
    "GINBlock": lambda: flax_layers.GINBlock(WIDTH, 3, learn_eps=True, **RNGS),
    "GINClassifier": lambda: flax_layers.GINClassifier(
        WIDTH, 3, 2, num_layers=2, dropout_rate=0.0, **RNGS
    ),
}


# --- Padding -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("name", LAYERS)
def test_padding_counts_nowhere(
    rng: np.random.Generator, made: Batch[Graph], x: np.ndarray, name: str
) -> None:
    """Values and all gradients are those without it, also where its rows hold NaN."""
    layer = LAYERS[name]()
    is_module = isinstance(layer, nnx.Module)
    state: Any = {}
    if is_module:
        definition, params, rest = nnx.split(with_parameters(rng, layer), nnx.Param, ...)
        state = params
    graph_level = name in ("readout", "mean", "max", "GINClassifier") or "Readout" in name
    graph_level |= name == "Set2Set"
    probes = np.random.default_rng(0).normal(size=100).astype("f")

    def loss(state: Any, made: Batch[Graph], x: Any) -> tuple[Any, Any]:
        call = nnx.merge(definition, state, rest, copy=True) if is_module else layer
        y = call(made, x)
        rows = len(SIZES) if graph_level else sum(SIZES)
        return jnp.vdot(y[:rows], jnp.resize(probes, y[:rows].shape)), y[:rows]

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 2), has_aux=True))
    more = np.full((20 - len(x), WIDTH), np.nan, np.float32)
    (_, want), wanted = gradient(state, made, x)
    (_, got), found = gradient(state, padded(made), np.concatenate([x, more]))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert not np.asarray(found[1][len(x) :]).any()
    ours = [*jax.tree.leaves(found[0]), found[1][: len(x)]]
    for a, b in zip(ours, [*jax.tree.leaves(wanted[0]), wanted[1]], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["readout", "mean", "max"])
def test_graphs_without_nodes_read_zeros(made: Batch[Graph], name: str, x: np.ndarray) -> None:
    y = LAYERS[name]()(made, x)
    assert not y[3].any() and y[2].any()


# --- PyTorch Geometric ---------------------------------------------------------------------------


def torch_state(layer: Any, own: dict[str, Any], torch: Any) -> None:
    """Copies arrays into parameters by name."""
    state = dict(layer.state_dict())
    for name, array in own.items():
        assert state[name].numel() == np.size(array), name
        state[name] = torch.tensor(np.array(array)).reshape(state[name].shape)
    layer.load_state_dict(state)


def pair(name: str, layer: Any, torch: Any, geometric: Any) -> Callable[..., Any]:
    """What PyTorch Geometric has for a layer, with its parameters."""
    nn = geometric.nn
    if name in ("readout", "mean", "max"):
        return getattr(nn, f"global_{'add' if name == 'readout' else name}_pool")
    if name == "AttentionReadout":
        gate, transform = torch.nn.Linear(WIDTH, 1), torch.nn.Linear(WIDTH, 3)
        for theirs, ours in ((gate, layer.gate), (transform, layer.transform)):
            torch_state(theirs, {"weight": ours.kernel[...].T, "bias": ours.bias[...]}, torch)
        return nn.aggr.AttentionalAggregation(gate, transform)
    if name == "Set2Set":
        other = nn.aggr.Set2Set(WIDTH, 3)
        own = {"weight_ih_l0": layer.kernel[...].T, "weight_hh_l0": layer.recurrent_kernel[...].T}
        own |= {"bias_ih_l0": layer.bias[...], "bias_hh_l0": np.zeros(4 * WIDTH, "f")}
        torch_state(other, {f"lstm.{key}": value for key, value in own.items()}, torch)
        return other
    if name == "NodeBatchNorm":
        other = nn.BatchNorm(WIDTH)
        torch_state(other.module, {"weight": layer.scale[...], "bias": layer.bias[...]}, torch)
        return lambda x, ids: other(x)
    if name.startswith("PairNorm"):
        return nn.PairNorm(scale=layer.scale, scale_individually=layer.individually)
    other = nn.GraphNorm(WIDTH) if name == "GraphNorm" else nn.LayerNorm(WIDTH, mode="graph")
    own = {"weight": layer.scale[...], "bias": layer.bias[...]}
    if name == "GraphNorm":
        own["mean_scale"] = layer.mean_scale[...]
    torch_state(other, own, torch)
    return other


@pytest.mark.parametrize(
    "name", [n for n in LAYERS if n not in ("TopKReadout",) and "GIN" not in n]
)
def test_equals_pytorch_geometric(
    rng: np.random.Generator, made: Batch[Graph], x: np.ndarray, name: str
) -> None:
    geometric = pytest.importorskip("torch_geometric")
    torch = pytest.importorskip("torch")
    layer = LAYERS[name]()
    if isinstance(layer, nnx.Module):
        with_parameters(rng, layer)
    with torch.no_grad():
        other = pair(name, layer, torch, geometric)
        given = torch.tensor(x), torch.tensor(np.asarray(made.graph_ids, np.int64))
        want = other(*given).numpy()
    got = np.asarray(layer(made, x))
    assert len(want) == len(got)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_top_k_equals_pytorch_geometric(
    rng: np.random.Generator, made: Batch[Graph], x: np.ndarray
) -> None:
    geometric = pytest.importorskip("torch_geometric")
    torch = pytest.importorskip("torch")
    layer = with_parameters(rng, LAYERS["TopKReadout"]())
    other = geometric.nn.TopKPooling(WIDTH, ratio=3)
    torch_state(other, {"select.weight": layer.vector[...]}, torch)
    ids = torch.tensor(np.asarray(made.graph_ids, np.int64))
    with torch.no_grad():
        rows, _, _, owners, *_ = other(
            torch.tensor(x), torch.zeros((2, 0), dtype=torch.int64), batch=ids
        )
    got = np.asarray(layer(made, x))
    for graph in range(len(SIZES)):
        own = rows[owners == graph].numpy()
        np.testing.assert_allclose(got[graph, : len(own)], own, rtol=1e-4, atol=1e-5)
        assert not got[graph, len(own) :].any()


def test_running_statistics_equal_those_of_flax(made: Batch[Graph], x: np.ndarray) -> None:
    """Of real nodes alone, over three steps, and what is made of them afterwards."""
    ours = flax_layers.NodeBatchNorm(WIDTH, momentum=0.9, **RNGS)
    theirs = nnx.BatchNorm(WIDTH, momentum=0.9, **RNGS)
    larger, more = padded(made), np.full((20 - len(x), WIDTH), np.nan, np.float32)
    for step in range(3):
        ours(larger, np.concatenate([step + x, more]))
        theirs(step + x)
    np.testing.assert_allclose(ours.mean[...], theirs.mean[...], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.var[...], theirs.var[...], rtol=1e-4, atol=1e-5)
    ours.eval()
    theirs.eval()
    np.testing.assert_allclose(ours(made, x), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axes", [(), (2,)])
def test_batch_norm_has_the_derivatives_of_its_formula(
    rng: np.random.Generator, made: Batch[Graph], x: np.ndarray, axes: tuple[int, ...]
) -> None:
    """Those of first and second order, forward and in reverse, statistics among the results."""
    with jax.enable_x64(True):
        larger = padded(made)
        there = np.asarray(larger.node_mask)
        shape = (len(there), *axes, WIDTH)
        given: Any = {"x": rng.normal(size=shape), "scale": rng.normal(size=WIDTH)}
        given["bias"] = rng.normal(size=WIDTH)
        moved = {name: rng.normal(size=value.shape) for name, value in given.items()}
        probes = [rng.normal(size=shape) * there.reshape(-1, *[1] * (len(axes) + 1))]
        probes += [rng.normal(size=WIDTH) for _ in range(2)]

        def ours(given: Any) -> tuple[Any, ...]:
            norm = flax_layers.NodeBatchNorm(
                WIDTH, momentum=0.0, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
            )
            norm.scale[...], norm.bias[...] = given["scale"], given["bias"]
            y = norm(larger, given["x"])
            return y, norm.mean[...], norm.var[...]

        def formula(given: Any) -> tuple[Any, ...]:
            x = given["x"][there].reshape(-1, WIDTH)
            mean, var = x.mean(0), x.var(0)
            y = (given["x"] - mean) / jnp.sqrt(var + 1e-5) * given["scale"] + given["bias"]
            return y, mean, var

        def results(function: Any) -> Any:
            def loss(given: Any) -> Any:
                results = zip(function(given), probes, strict=True)
                return sum(jnp.vdot(jnp.sin(y), probe) for y, probe in results)

            return jax.jvp(jax.value_and_grad(loss), (given,), (moved,))

        for got, want in zip(*map(jax.tree.leaves, map(results, (ours, formula))), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


# --- The classifier ------------------------------------------------------------------------------


def test_gin_of_a_batch_is_that_of_each_graph(
    rng: np.random.Generator, made: Batch[Graph], x: np.ndarray
) -> None:
    """With running statistics no graph sees another."""
    model = with_parameters(rng, LAYERS["GINClassifier"]())
    model(made, x)  # running statistics that are not those it begins with
    together = model(made, x, deterministic=True)
    for number, (graph, own) in enumerate(zip(unbatch(made), made.split_nodes(x), strict=True)):
        if len(own):
            alone = model(batch([graph]), own, deterministic=True)[0]
            np.testing.assert_allclose(together[number], alone, rtol=1e-4, atol=1e-4)


def test_gin_tells_rings_from_trees(rng: np.random.Generator) -> None:
    """Of equal sizes and features: the number of edges alone tells them apart."""
    ends, labels = [], []
    sizes = rng.integers(4, 9, 64)
    for size in sizes.tolist():
        label = int(rng.integers(2))
        src = np.arange(1, size)
        dst = np.array([rng.integers(node) for node in src])
        if label:
            src, dst = np.arange(size), np.roll(np.arange(size), 1)
        ends.append(np.stack([np.r_[src, dst], np.r_[dst, src]]))
        labels.append(label)
    made, y = Batch.from_edges(ends, sizes), np.array(labels)
    x = np.ones((made.graph.num_nodes, 1), np.float32)
    model = flax_layers.GINClassifier(1, 16, 2, num_layers=3, dropout_rate=0.0, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, made: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(made, x), y).mean()

        optimizer.update(model, nnx.grad(loss)(model))
        return (model(made, x).argmax(-1) == y).mean()

    accuracy = 0.0
    for _ in range(60):
        accuracy = float(step(model, optimizer, made, x, y))
        if accuracy == 1:
            break
    assert accuracy >= 0.99


def test_jumping_knowledge() -> None:
    layers = [np.full((3, 2), value, np.float32) for value in (1, 3, 2)]
    joined = flax_layers.jumping_knowledge(layers)
    np.testing.assert_array_equal(joined[0], [1, 1, 3, 3, 2, 2])
    np.testing.assert_array_equal(flax_layers.jumping_knowledge(layers, "max"), layers[1])


BAD: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (lambda made, x: flax_layers.readout(made, x, "min"), ValueError, "kind must be one of 'sum'"),
    (lambda made, x: flax_layers.readout(made, x[1:]), ValueError, r"x must be \(num_nodes=13, "),
    (
        lambda made, x: flax_layers.readout(made.graph, x),
        TypeError,
        "batch must be a jax_gnn.Batch, got Graph",
    ),
    (
        lambda made, x: flax_layers.Set2Set(3, num_steps=1, **RNGS)(made, x),
        ValueError,
        r"x must have shape \(num_nodes, ..., in_features\) = \(13, ..., 3\), got \(13, 4\)",
    ),
    (lambda made, x: flax_layers.TopKReadout(3, k=0, **RNGS), ValueError, "k must be positive"),
    (
        lambda made, x: flax_layers.jumping_knowledge([x, x[1:]]),
        ValueError,
        r"layers\[1\] must fit layers\[0\] of shape \(13, 4\), got \(12, 4\)",
    ),
    (lambda made, x: flax_layers.jumping_knowledge([]), ValueError, "layers must be one at least"),
    (
        lambda made, x: flax_layers.jumping_knowledge([x], "lstm"),  # type: ignore[arg-type]
        ValueError,
        "mode must be one of 'concat', 'max', got 'lstm'",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[each[2] for each in BAD])
def test_bad_input(
    made: Batch[Graph], x: np.ndarray, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(made, x)
