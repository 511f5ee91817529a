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
import jax_gnn
from flax_layers import ProgramConv, ProgramModel, axes, dense
from jax_gnn import Batch, Edge, Global, Graph, Hypergraph, Node, Relation, RelationalGraph

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
    widths: Any = {"function": gated, "widths": {"hidden": 5}, "edge_in_features": 2}
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


def test_programs_of_batches_of_graphs(rng: np.random.Generator) -> None:
    def pooled(g: Any, x_src: Node, u: Global = axes("of_graphs"), *, w: Any = axes("src")) -> Any:
        shares = g.graph.softmax(g.sum(g.src(x_src)) @ w + g.graph(u).sum())
        return g.graph.sum(shares * x_src) + u.sum()

    layer = ProgramConv(4, 4, function=pooled, widths={"of_graphs": 3}, rngs=nnx.Rngs(0))
    edges = [rng.integers(n, size=(2, 9)) for n in (3, 5)]
    batch = Batch.from_edges(edges, (3, 5), num_nodes=10, num_edges=20, num_graphs=3)
    x, u = rng.normal(size=(10, 2, 4)), rng.normal(size=(3, 3))
    for i in range(2):
        want = jax_gnn.program(pooled)(batch, x[:, i], u, w=layer.w[...])
        np.testing.assert_allclose(layer(batch, x, u=u)[:, i], want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"u must have shape \(num_graphs, ..., 3\) = \(3, ..., 3"):
        layer(batch, x, u=u[:2])
    with pytest.raises(ValueError, match=r"graph must be a Batch for u, rows of graphs, got Graph"):
        layer(batch.graph, x, u=u)


def test_programs_of_hypergraphs(rng: np.random.Generator) -> None:
    def means(g: Any, x_src: Node, x_dst: Node, *, w: Any = axes("src", "out")) -> Any:
        h = g.mean(g.src(x_src @ w)) + x_dst
        return g.reverse.sum(g.dst(h))

    layer = ProgramConv((3, 4), 4, function=means, rngs=nnx.Rngs(0))
    hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3], [0, 3, 4, 4]], num_nodes=6)
    x, y = rng.normal(size=(6, 3)), np.zeros((3, 4))
    want = jax_gnn.hypergraph_aggregate(
        hypergraph, x @ np.asarray(layer.w[...]), hyperedge_reduce="mean"
    )
    np.testing.assert_allclose(layer(hypergraph, (x, y)), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"x\[1\] must be an array of the program's input"):
        layer(hypergraph, x)


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
    options: Any = {"function": relational, "widths": {"relations": 2}, "rngs": nnx.Rngs(0)}
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
        (ValueError, "argument rows must be named …_src or …_dst", {"function": unnamed}),
        (ValueError, "argument weight must have axes", {"function": undeclared}),
        (TypeError, "function must be callable", {"function": 3}),
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


# --- Layers that PyG lacks, beside their formulas ------------------------------------------------


def applied(maps: Any, x: Any, activation: Any = jax.nn.relu) -> np.ndarray:
    """Apply linear maps one after another, with a function between two."""
    for number, linear in enumerate(maps):
        x = linear(activation(jnp.asarray(x)) if number else x)
    return np.asarray(x)


def summed(messages: Any) -> np.ndarray:
    """Sum rows of edges, in the graph's order, into nodes."""
    messages = np.asarray(messages)
    y = np.zeros((6, *messages.shape[1:]))
    np.add.at(y, np.asarray(GRAPH.rows), messages)
    return y


@pytest.mark.parametrize("unit", [False, True])
def test_egnn_is_its_formula_and_equivariant(rng: np.random.Generator, unit: bool) -> None:
    options: Any = {"edge_in_features": 2, "mlp_features": 5, "unit_differences": unit}
    layer = layers.EGNNConv(4, 4, **options, rngs=nnx.Rngs(0))
    layer.shift_kernel[...] = rng.normal(size=(5, 1))  # initially all but 0
    x, e, pos = operands(rng)
    y, moved = layer(GRAPH, x, pos, e)
    rows, cols = np.asarray(GRAPH.rows), np.asarray(GRAPH.cols)
    step = pos[rows] - pos[cols]
    square = (step**2).sum(-1, keepdims=True)
    z = np.concatenate([x[rows], x[cols], square, e], -1)
    m = np.asarray(jax.nn.silu(applied(layer.message, z, jax.nn.silu)))
    size = np.asarray(jax.nn.silu(applied(layer.shift, m))) @ np.asarray(layer.shift_kernel[...])
    if unit:
        step = step / np.where(square > 0, np.sqrt(square), 1)
    expected = x + applied(layer.update, np.concatenate([x, summed(m)], -1), jax.nn.silu)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    degrees = np.maximum(np.bincount(rows, minlength=6), 1)[:, None]
    np.testing.assert_allclose(moved, pos + summed(step * size) / degrees, rtol=1e-4, atol=1e-5)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0].astype(np.float32)
    turned, turned_pos = layer(GRAPH, x, pos @ turn + 1, e)
    np.testing.assert_allclose(turned, y, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(turned_pos, moved @ turn + 1, rtol=1e-3, atol=1e-4)


def test_painn_is_its_formula_and_equivariant(rng: np.random.Generator) -> None:
    layer = layers.PaiNNConv(4, 4, num_basis=6, cutoff=2.0, rngs=nnx.Rngs(0))
    x, _, pos = operands(rng)
    pos[GRAPH.cols[0]] = pos[GRAPH.rows[0]] + 3  # beyond the cutoff
    v = rng.normal(size=(6, 3, 4)).astype(np.float32)
    y, vectors = layer(GRAPH, x, v, pos)
    rows, cols = np.asarray(GRAPH.rows), np.asarray(GRAPH.cols)
    step = pos[cols] - pos[rows]
    d = np.sqrt((step**2).sum(-1, keepdims=True) + 1e-12)
    basis = np.sin(np.arange(1, 7) * np.pi / 2 * d) / d
    near = np.where(d < 2, 0.5 * (np.cos(np.pi * d / 2) + 1), 0)
    m = applied(layer.context, x, jax.nn.silu)[cols] * (applied(layer.filters, basis) * near)
    to_x, turned, scale = np.split(m, 3, -1)
    s = x + summed(to_x)
    u = v + summed(v[cols] * scale[:, None] + (step / d)[..., None] * turned[:, None])
    a, b = np.split(u @ np.asarray(layer.mix[...]), 2, -1)
    context = np.concatenate([s, np.sqrt((a * a).sum(1) + 1e-8)], -1)
    to_x, scale, dots = np.split(applied(layer.update, context, jax.nn.silu), 3, -1)
    close = {"rtol": 1e-3, "atol": 1e-4}
    np.testing.assert_allclose(y, s + to_x + dots * (a * b).sum(1), **close)
    np.testing.assert_allclose(vectors, u + scale[:, None] * b, **close)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0].astype(np.float32)
    other = layer(GRAPH, x, np.einsum("nif,ij->njf", v, turn), pos @ turn + 1)
    np.testing.assert_allclose(other[0], y, **close)
    np.testing.assert_allclose(other[1], np.einsum("nif,ij->njf", vectors, turn), **close)


RELATIONAL = RelationalGraph.from_triples(SRC, SRC % 2, DST, num_nodes=6, num_relations=2)


def test_rgin_is_its_formula(rng: np.random.Generator) -> None:
    layer = layers.RGINConv(4, 8, num_relations=2, mlp_features=5, rngs=nnx.Rngs(0))
    layer.bias1[...], layer.bias2[...] = rng.normal(size=(2, 2, 5))
    x = operands(rng)[0]
    k1, b1, k2, b2 = (
        np.asarray(p[...])[SRC % 2]
        for p in (layer.kernel1, layer.bias1, layer.kernel2, layer.bias2)
    )
    hidden = np.maximum(np.einsum("ei,eio->eo", x[SRC], k1) + b1, 0)
    sums = np.zeros((6, 5))
    np.add.at(sums, DST, np.einsum("ei,eio->eo", hidden, k2) + b2)
    expected = applied(layer.mlp, sums + x @ np.asarray(layer.root[...]))
    np.testing.assert_allclose(layer(RELATIONAL, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("concat", [True, False])
def test_simple_hgn_is_its_formula(rng: np.random.Generator, concat: bool) -> None:
    options: Any = {"num_relations": 2, "relation_features": 3, "heads": 2, "beta": 0.3}
    layer = layers.SimpleHGNConv(4, 8, **options, concat=concat, rngs=nnx.Rngs(0))
    x, previous = operands(rng)[0], rng.uniform(size=(7, 2)).astype(np.float32)
    order = RELATIONAL.edge_values(np.arange(7))
    values = {name: np.asarray(getattr(layer, name)[...]) for name in ("kernel", "root", "bias")}
    z = (x @ values["kernel"]).reshape(6, 2, -1)
    r = (np.asarray(layer.embedding[...]) @ np.asarray(layer.relation_kernel[...])).reshape(2, 2, 3)
    score = (z * np.asarray(layer.src_attention[...])).sum(-1)[SRC]
    score = score + (z * np.asarray(layer.dst_attention[...])).sum(-1)[DST]
    score = score + (r * np.asarray(layer.relation_attention[...])).sum(-1)[SRC % 2]
    powers = np.exp(np.where(score > 0, score, 0.2 * score))
    totals = np.zeros((6, 2))
    np.add.at(totals, DST, powers)
    share = 0.7 * powers / totals[DST] + 0.3 * previous
    y = (x @ values["root"]).reshape(6, 2, -1)
    np.add.at(y, DST, share[..., None] * z[SRC])
    y = (y.reshape(6, -1) if concat else y.mean(1)) + values["bias"]
    call = layer(RELATIONAL, x, RELATIONAL.edge_values(previous), return_attention=True)
    np.testing.assert_allclose(call[0], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(call[1], share[order], rtol=1e-4, atol=1e-5)


def test_attention_goes_through_simple_hgn_but_not_to_the_last_layer(
    rng: np.random.Generator,
) -> None:
    options: Any = {"num_relations": 2, "heads": 2, "beta": 0.3, "dropout_rate": 0.0}
    model = layers.SimpleHGN(4, 8, 3, num_layers=3, l2_normalize=True, **options, rngs=nnx.Rngs(0))
    x = operands(rng)[0]
    h, attention = model.conv1(RELATIONAL, x, return_attention=True)
    h = jax.nn.elu(model.conv2(RELATIONAL, jax.nn.elu(h), attention))
    y = model.conv3(RELATIONAL, h)
    expected = y / np.linalg.norm(y, axis=-1, keepdims=True)
    np.testing.assert_allclose(model(RELATIONAL, x), expected, rtol=1e-5, atol=1e-6)
