"""All layers of a graph and features: dtypes, batch axes, gradients, dropout, biases."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import ATTR, GRAPH, LAYERS, LayerCase, layer_case
from op_suite import IMPLEMENTATIONS

import flax_layers as layers
import jax_gnn
from flax_layers import RGAT
from flax_layers._attention import AttentionStack
from flax_layers.edge_layers import reduced
from jax_gnn import Graph, Node

CASES = {name: case for name, case in LAYERS.items() if case.kind is not None}
# The first case of each class.
CLASSES = {case.kind: case for case in reversed(CASES.values())}
every_case = pytest.mark.parametrize("name", CASES)
every_class = pytest.mark.parametrize("kind", CLASSES)


def make(case: LayerCase, **changes) -> Any:
    return case.kind(**case.options | changes, rngs=nnx.Rngs(0))


def call(case: LayerCase, layer, x, named, **options) -> Any:
    """Return the nodes' results of a layer; CompGCN returns those of relations beside them."""
    results = case.call(layer, x, **named, **options)
    return results[0] if isinstance(results, tuple) else results


def as_dtype(tree, dtype) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


@every_class
def test_dtypes_are_those_of_the_option_or_else_of_parameters_and_features(kind):
    case = CLASSES[kind]
    (x,), named = as_dtype((case.operands, case.named), jnp.float32)
    single, half = make(case), make(case, dtype=jnp.bfloat16)
    stored = make(case, param_dtype=jnp.float16)
    for layer, dtype in ((single, "float32"), (half, "float32"), (stored, "float16")):
        layer.eval()
        assert {p.dtype for p in jax.tree.leaves(nnx.state(layer, nnx.Param))} == {jnp.dtype(dtype)}

    def dtypes(layer, dtype) -> set[Any]:
        operands = as_dtype((x, named), dtype)
        results = jax.eval_shape(functools.partial(call, case, layer), *operands)
        return {result.dtype for result in jax.tree.leaves(results)}

    assert dtypes(stored, jnp.float32) == dtypes(single, jnp.int32) == {jnp.dtype("float32")}
    assert dtypes(stored, jnp.float16) == {jnp.dtype("float16")}
    # Only what is computed tells whether bfloat16 loses more than its own rounding.
    compute = nnx.jit(lambda *layers: [call(case, layer, x, named) for layer in layers])
    for expected, y in zip(*map(jax.tree.leaves, compute(single, half)), strict=True):
        assert (expected.dtype, y.dtype) == (jnp.float32, jnp.bfloat16)
        np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=0.1, atol=0.1)


@every_case
def test_batch_axes_and_vmap_equal_separate_calls(name):
    case = CASES[name]
    layer = make(case)
    layer.eval()

    def pair(x) -> jax.Array:
        # The second element differs in sign as well, on which slopes and maxima depend.
        return jnp.stack([x, jnp.cos(3 * x)], axis=1)

    x = jax.tree.map(pair, as_dtype(case.operands[0], jnp.float32))
    # Features of edges have the batch axes of nodes, except those of RGAT, whose scores they are.
    has_batches = case.kind is not RGAT
    of_batch = {
        key: pair(rows) for key, rows in case.named.items() if "features" in key and has_batches
    }
    shared = {key: value for key, value in case.named.items() if key not in of_batch}

    def single(x, of_batch) -> Any:
        return call(case, layer, x, shared | of_batch)

    @jax.jit
    def results(x, of_batch) -> Any:
        mapped = jax.vmap(single, in_axes=1, out_axes=1)(x, of_batch)
        parts = [single(*jax.tree.map(lambda x, i=i: x[:, i], (x, of_batch))) for i in range(2)]
        return single(x, of_batch), mapped, jax.tree.map(lambda *ys: jnp.stack(ys, 1), *parts)

    whole, mapped, expected = results(x, of_batch)
    close = functools.partial(np.testing.assert_allclose, rtol=3e-5, atol=3e-5)
    for actual in (whole, mapped):
        jax.tree.map(close, actual, expected)


@every_class
def test_definitions_are_static_arguments(kind):
    layers = (nnx.eval_shape(functools.partial(make, CLASSES[kind])) for _ in range(2))
    assert len({hash(nnx.split(layer)[0]) for layer in layers}) == 1


@every_class
def test_gradients_reach_all_parameters(kind):
    case = CLASSES[kind]
    layer = make(case)
    layer.eval()
    x = jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape), case.operands[0])

    def loss(layer) -> jax.Array:
        results = jax.tree.leaves(case.call(layer, x, **case.named))
        return sum(jnp.mean(jnp.sin(3 * y)) for y in results)

    for path, gradient in nnx.to_flat_state(nnx.jit(nnx.grad(loss))(layer)):
        assert np.isfinite(gradient[...]).all(), path
        # A softmax takes away what all its scores have in common.
        if path[-1] != "node_attention" and path[-2:] != ("key", "bias"):
            assert np.any(gradient[...]), path


# Convolutions of these take or return more than the features of nodes.
OTHERS = (layers.CompGCN, layers.GatedGCN, layers.HGT, layers.SimpleHGN, layers.UniGCNII)
STACKS = [kind for kind in CLASSES if issubclass(kind, layers.Stack) and kind not in OTHERS]


@pytest.mark.parametrize("kind", STACKS)
def test_models_stack_convolutions(kind):
    """Convolutions follow each other, with an activation between them; some end with a map."""
    case = CLASSES[kind]
    # GAT's paper has an ELU between convolutions.
    activate = jax.nn.elu if kind in (layers.GAT, layers.GATv2) else jax.nn.relu
    (x,), named = as_dtype((case.operands, case.named), jnp.float32)
    for depth in (1, 3):
        model = make(case, num_layers=depth)
        model.eval()
        convolutions = [getattr(model, f"conv{number}") for number in range(1, depth + 1)]
        assert model.convolutions == convolutions
        if issubclass(kind, AttentionStack):
            heads = case.options.get("heads", 1)
            assert [conv.heads for conv in convolutions] == [heads] * (depth - 1) + [1]
        y = x
        for number, convolution in enumerate(convolutions):
            y = convolution(case.structure, activate(y) if number else y, **named)
        y = y if model.output is None else model.output(activate(y))
        np.testing.assert_allclose(call(case, model, x, named), y, rtol=1e-5, atol=1e-5)


def dropout_rates(kind) -> list[str]:
    return [name for name in kind.__init__.__annotations__ if "dropout_rate" in name]


@pytest.mark.parametrize(
    ("kind", "rate"), [(kind, rate) for kind in CLASSES for rate in dropout_rates(kind)]
)
def test_dropout_masks_depend_on_keys_alone(kind, rate):
    """Each rate by itself, as another one would hide a mask that is missing."""
    case = CLASSES[kind]
    no_dropout = dict.fromkeys(dropout_rates(kind), 0.0)
    layer, without = make(case, **no_dropout | {rate: 0.5}), make(case, **no_dropout)
    (x,), key = as_dtype(case.operands, jnp.float32), jax.random.key(1)

    @nnx.jit
    def results(layer, without):
        run = functools.partial(call, case, layer, x, case.named)
        # A key given to a call decides the mask, whatever the layer's own stream.
        masked = run(rngs=key), run(rngs=key, deterministic=False)
        evaluating = nnx.clone(layer)
        evaluating.eval()
        evaluated = [call(case, model, x, case.named) for model in (evaluating, without)]
        return (run(), run()), masked, (*evaluated, run(deterministic=True))

    def equal(first, *others) -> bool:
        return all(jax.tree.all(jax.tree.map(np.array_equal, first, y)) for y in others)

    drawn, masked, evaluated = results(layer, without)
    assert not equal(*drawn)
    assert equal(*masked) and equal(*evaluated)


@every_class
def test_layers_without_biases_have_all_other_parameters(kind):
    case = CLASSES[kind]
    if "use_bias" not in kind.__init__.__annotations__:
        return
    paths, with_bias = (
        {path for path, _ in nnx.to_flat_state(nnx.state(nnx.eval_shape(make_it), nnx.Param))}
        for make_it in (functools.partial(make, case, use_bias=value) for value in (False, True))
    )
    assert paths < with_bias or kind in (layers.AGNNConv, layers.FAConv)  # which have no biases
    assert all("bias" in str(path) for path in with_bias - paths)


def reductions(g: Any, x_src: Node, x_dst: Node, *, w: Any = layers.axes("src", "out")) -> Any:
    """Program of reductions that stay small, however many edges there are."""
    m = jnp.tanh(g.src(x_src @ w) + g.dst(x_dst @ w))
    return g.mean(m) + g.logsumexp(m)


OF_MANY = {name: CASES[name] for name in ("AGNNConv", "FAConv", "GatedGCN", "PDNConv", "PNA")}
OF_MANY |= {name: CASES[name] for name in ("PointTransformerConv", "SuperGATConv-MX")}
OF_MANY["EdgeConv"] = layer_case(layers.EdgeConv, GRAPH, options={"reduce": "mean"})
OF_MANY["ProgramConv"] = layer_case(layers.ProgramConv, GRAPH, options={"function": reductions})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", OF_MANY)
def test_sums_over_more_edges_than_float16_holds(name, implementation):
    case, count = OF_MANY[name], 140_000
    ids = np.arange(count)
    graph = Graph.from_edges(ids % GRAPH.num_nodes, 0 * ids, num_nodes=GRAPH.num_nodes)
    named = {
        key: np.resize(rows, (count, *rows.shape[1:])) if len(rows) == len(ATTR) else rows
        for key, rows in case.named.items()
    }
    x, named = as_dtype((case.operands[0], named), jnp.float32)

    def result(dtype) -> Any:
        layer = make(case, dtype=dtype)
        layer.eval()
        return jax.tree.leaves(layer(graph, x, **named))[0].astype(jnp.float32)

    with jax_gnn.implementation(implementation):
        y, expected = result(jnp.float16), result(jnp.float32)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0.03, atol=0.03)


def test_attention_loss_of_more_edges_than_float16_holds():
    ids = np.arange(140_000) % 6
    graph = Graph.from_edges(ids, ids[::-1], num_nodes=6)
    x = jnp.ones((6, 4))
    half, single = (
        layers.SuperGATConv(4, 8, dtype=dtype, rngs=nnx.Rngs(0)).attention_loss(graph, graph, x)
        for dtype in (jnp.float16, jnp.float32)
    )
    assert half.dtype == jnp.float16
    np.testing.assert_allclose(half, single, rtol=0.01)


@pytest.mark.parametrize("factor", [1e-4, 1e3])
@pytest.mark.parametrize("name", ["SAGE", "AGNNConv", "PNA", "GENConv"])
def test_rows_whose_squares_float16_does_not_hold(name, factor):
    case = CASES[name]
    options = {"PNA": {"num_layers": 1}, "GENConv": {"msg_norm": True, "mlp_norm": None}}
    x, named = as_dtype((factor * np.asarray(case.operands[0]), case.named), jnp.float16)

    def result(dtype) -> jax.Array:
        layer = make(case, **options.get(name, {}), dtype=dtype)
        layer.eval()
        return call(case, layer, x, named).astype(jnp.float32)

    y, expected = result(jnp.float16), result(jnp.float32)
    scale = jnp.abs(expected).max()
    np.testing.assert_allclose(y / scale, expected / scale, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_infinite_messages_are_no_missing_ones(reduce):
    def extremum(g: Any, x_src: Node) -> Any:
        return reduced(g, g.src(x_src), reduce)

    conv = layers.ProgramConv(1, 1, function=extremum, rngs=nnx.Rngs(0))
    x = jnp.array([[jnp.inf], [-jnp.inf], [2.0]])
    graph = Graph.from_edges([0, 1], [1, 2], num_nodes=3)
    np.testing.assert_array_equal(conv(graph, x), [[0], [jnp.inf], [-jnp.inf]])
