"""Layers of a user's program: inputs, parameters, batches, blocks, padding, dropout, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from flax import nnx

import flax_layers as layers
from flax_layers import ProgramConv, ProgramModel, axes, dense
from jax_gnn import Edge, Graph, Node, Relation, RelationalGraph

SRC, DST = np.array([0, 1, 2, 3, 3, 4, 5]), np.array([1, 0, 0, 0, 3, 3, 2])
GRAPH = Graph.from_edges(SRC, DST, num_nodes=6)


def gated(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    pos_src: Node = axes(3, exact=True),
    pos_dst: Node = axes(3, exact=True),
    *,
    gate: Any = dense(("src", "edge"), "hidden", "out", activation=jnp.tanh),
    value: Any = axes("src", "out"),
    bias: Any = axes("out"),
    dropout: Any = None,
) -> Any:
    near = jnp.sum((g.dst(pos_dst) - g.src(pos_src)) ** 2, -1, keepdims=True).astype(x_src.dtype)
    rows = [g.src(x_src)] if edge_features is None else [g.src(x_src), edge_features]
    z = gate(jnp.concatenate(rows, -1)) * dropout(g, jnp.exp(-near))
    y = g.sum(z * g.src(x_src @ value)) + x_dst.sum(-1, keepdims=True)
    return y if bias is None else y + bias


def relational(
    g: Any, x_src: Node, *, w: Relation = axes("relations", "src", "out"), b: Any = axes("out")
) -> Any:
    return g.mean(g.src(x_src) @ g.relation(w)) + b


def conv(**options: Any) -> ProgramConv:
    widths: Any = {"program": gated, "widths": {"hidden": 5}, "edge_in_features": 2}
    return ProgramConv(4, 8, **{**widths, **options}, rngs=nnx.Rngs(0))


def operands(rng: np.random.Generator, *batch: int) -> tuple[np.ndarray, ...]:
    shapes = (6, *batch, 4), (7, *batch, 2), (6, 3)
    x, e, pos = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, e, pos


def expected_of(layer: Any, x: Any, e: Any, pos: Any) -> np.ndarray:
    """Return the convolution of `gated` in numpy, in float64."""
    x, e, pos, value = (np.asarray(v, np.float64) for v in (x, e, pos, layer.value[...]))
    z = np.concatenate([x[GRAPH.cols], e], -1)
    for number, linear in enumerate(layer.gate):
        z = (np.tanh(z) if number else z) @ np.asarray(linear.kernel[...], np.float64)
        z = z + np.asarray(linear.bias[...])
    near = ((pos[GRAPH.rows] - pos[GRAPH.cols]) ** 2).sum(-1)
    y = np.zeros((6, 8))
    np.add.at(y, np.asarray(GRAPH.rows), z * np.exp(-near)[:, None] * (x @ value)[GRAPH.cols])
    return y + x.sum(-1, keepdims=True) + np.asarray(layer.bias[...])


def test_program_of_a_user(rng: np.random.Generator) -> None:
    layer = conv()
    layer.bias[...] = rng.normal(size=8)
    x, e, pos = operands(rng)
    y = layer(GRAPH, x, e, pos=pos)
    np.testing.assert_allclose(y, expected_of(layer, x, e, pos), rtol=1e-5, atol=1e-5)
    # A pair of rows of the ends, and a block whose destinations are the first sources.
    np.testing.assert_allclose(layer(GRAPH, (x, x), e, pos=(pos, pos)), y, rtol=1e-5, atol=1e-5)
    keep = DST < 4
    block = Graph.from_edges(SRC[keep], DST[keep], num_src=6, num_dst=4)
    order = GRAPH.edge_values(np.arange(7))
    np.testing.assert_allclose(
        layer(block, x, block.edge_values(e[np.argsort(order)]), pos=pos), y[:4], 1e-5, 1e-5
    )
    padded = GRAPH.pad(num_nodes=9, num_edges=12)
    rows = [
        np.concatenate([v, np.full((n, v.shape[1]), 9.0)]) for v, n in ((x, 3), (e, 5), (pos, 3))
    ]
    np.testing.assert_allclose(layer(padded, *rows[:2], pos=rows[2])[:6], y, rtol=1e-5, atol=1e-5)


def test_inputs_without_batch_axes_are_shared(rng: np.random.Generator) -> None:
    layer = conv(edge_dropout_rate=0.5)
    x, e, pos = operands(rng, 2, 3)
    y = layer(GRAPH, x, e, pos=pos, deterministic=True)
    one = layer(GRAPH, x[:, 1, 2], e[:, 1, 2], pos=pos, deterministic=True)
    assert y.shape == (6, 2, 3, 8)
    np.testing.assert_allclose(y[:, 1, 2], one, rtol=1e-5, atol=1e-5)
    # Each entry of the batch draws for itself.
    same = layer(GRAPH, np.stack([x[:, 0, 0]] * 8, 1), e[:, 0, 0], pos=pos)
    assert np.ptp(same, axis=1).any()


def test_dropout_of_everything(rng: np.random.Generator) -> None:
    layer = conv(edge_dropout_rate=1.0, use_bias=False)
    x, e, pos = operands(rng)
    y = layer(GRAPH, x, e, pos=pos)
    np.testing.assert_allclose(y, np.tile(x.sum(-1, keepdims=True), 8), rtol=1e-5)


def test_exact_inputs_keep_their_digits(rng: np.random.Generator) -> None:
    """Positions near 1,000 differ by 1, which bfloat16 would round away."""
    x, e, pos = operands(rng)
    shifted = (1000 + pos).astype(np.float32)
    layer, half = conv(), conv(dtype=jnp.bfloat16)
    y = half(GRAPH, x, e, pos=shifted)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        y.astype(np.float32), layer(GRAPH, x, e, pos=pos), rtol=0.1, atol=0.1
    )


def test_programs_of_relations_and_stacks(rng: np.random.Generator) -> None:
    graph = RelationalGraph.from_triples(SRC, SRC % 2, DST, num_nodes=6, num_relations=2)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    options: Any = {"program": relational, "widths": {"relations": 2}, "rngs": nnx.Rngs(0)}
    layer = ProgramConv(4, 8, **options)
    kernels = np.asarray(layer.w[...])
    messages = np.einsum("ei,eio->eo", x[SRC], kernels[SRC % 2])
    sums, counts = np.zeros((6, 8)), np.maximum(np.bincount(DST, minlength=6), 1)[:, None]
    np.add.at(sums, DST, messages)
    np.testing.assert_allclose(layer(graph, x), sums / counts, rtol=1e-4, atol=1e-5)
    model = ProgramModel(4, 8, 3, num_layers=2, dropout_rate=0.0, **options)
    hidden = jax.nn.relu(model.conv1(graph, x))
    np.testing.assert_allclose(model(graph, x), model.conv2(graph, hidden), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_reference(rng: np.random.Generator) -> None:
    with jax.enable_x64(True):
        layer = conv(param_dtype=jnp.float64)
        x, e, pos = (v.astype(np.float64) for v in operands(rng))
        graphdef, params = nnx.split(layer, nnx.Param, ...)[:2]
        rest = nnx.split(layer, nnx.Param, ...)[2]

        def loss(params: Any, x: Any, e: Any, pos: Any) -> Any:
            return jnp.sin(nnx.merge(graphdef, params, rest)(GRAPH, x, e, pos=pos)).sum()

        jax.test_util.check_grads(loss, (params, x, e, pos), order=1, modes=("rev",))


def unnamed(g: Any, rows: Node, *, w: Any = axes("src", "out")) -> Any:
    return g.sum(g.src(rows @ w))


def undeclared(g: Any, x_src: Node, weight: Edge) -> Any:
    return g.sum(g.src(x_src) * weight)


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (ValueError, "widths must have 'hidden', an axis of the program's gate", {"widths": {}}),
        (ValueError, "argument rows must be named …_src or …_dst", {"program": unnamed}),
        (ValueError, "argument weight must have axes", {"program": undeclared}),
        (TypeError, "program must be callable", {"program": 3}),
        (ValueError, "edge_dropout_rate must lie in", {"edge_dropout_rate": 2.0}),
    ],
)
def test_wrong_declarations(error: Any, message: str, make: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        conv(**make)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("pos must be an array of the program's input, got None", {"pos": None}),
        (
            r"pos must have shape \(num_nodes, ..., 3\) = \(6, ..., 3\), got \(6, 2\)",
            {"pos": (6, 2)},
        ),
        (r"x must have shape \(num_nodes, ..., 4\) = \(6, ..., 4\), got \(5, 4\)", {"x": (5, 4)}),
        (r"edge_features must have shape \(num_edges, ..., 2\)", {"edge_features": (6, 2)}),
        ("speed must be an input of the program, which are x, pos, edge_features", {"speed": (1,)}),
        (
            r"edge_features must have no batch axes, or \(2,\)",
            {"x": (6, 2, 4), "edge_features": (7, 3, 2)},
        ),
    ],
)
def test_wrong_inputs(message: str, changes: dict[str, Any]) -> None:
    right: dict[str, Any] = {"x": (6, 4), "edge_features": (7, 2), "pos": (6, 3)}
    arrays = {k: None if v is None else np.ones(v) for k, v in (right | changes).items()}
    with pytest.raises((TypeError, ValueError), match=message):
        conv()(GRAPH, **arrays)


def test_gated_gcn_is_its_formula(rng: np.random.Generator) -> None:
    layer = layers.GatedGCNConv(4, 4, edge_in_features=4, rngs=nnx.Rngs(0))
    x, e = (rng.normal(size=(n, 4)).astype(np.float32) for n in (6, 7))
    y, new = layer(GRAPH, x, e, activation="relu")
    ax, bx, dx, ex = (v[0](x) for v in (layer.a, layer.b, layer.d, layer.e))
    score = dx[GRAPH.rows] + ex[GRAPH.cols] + layer.c[0](e)
    gate = np.asarray(jax.nn.sigmoid(score))
    sums, gates = np.zeros((2, 6, 4))
    np.add.at(sums, np.asarray(GRAPH.rows), gate * np.asarray(bx)[GRAPH.cols])
    np.add.at(gates, np.asarray(GRAPH.rows), gate)
    np.testing.assert_allclose(new, e + np.maximum(score, 0), rtol=1e-5, atol=1e-5)
    expected = x + np.maximum(ax + sums / (gates + 1e-6), 0)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    plain = layers.GatedGCNConv(4, 4, edge_in_features=4, residual=False, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(plain(GRAPH, x, e)[1], score, rtol=1e-5, atol=1e-5)
