"""Lifted functions equal the functions: values, gradients, order, and what is left to JAX."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from processes import run_fuzzer

import jax_gnn
from jax_gnn import Graph, lift
from jax_gnn._program import lift_order

NODES, EDGES, WIDTH, GRAPHS = 7, 23, 5, 2
FUNCTIONS = 10
Arrays = dict[str, Any]
sum_by = jax.ops.segment_sum


def draw(dtype: Any = np.float64, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Return arguments of floats, and ids."""
    rng = np.random.default_rng(seed)
    shapes = {
        "x": (NODES, WIDTH),
        "pos": (NODES, 3),
        "e": (EDGES, 3),
        "w": (WIDTH, WIDTH),
        "w1": (2 * WIDTH + 3, WIDTH),
        "w2": (WIDTH, 1),
        "w3": (2, 3, WIDTH),
    }
    floats = {name: (rng.normal(size=shape) * 0.4).astype(dtype) for name, shape in shapes.items()}
    ids = {
        "s": rng.integers(NODES, size=EDGES),
        "r": rng.integers(NODES - 1, size=EDGES),
        "g": np.sort(rng.integers(GRAPHS, size=NODES)),
        "charge": rng.integers(1, 5, NODES),
        "pairs": rng.integers(EDGES, size=9),
    }
    return floats, {name: array.astype(np.int32) for name, array in ids.items()}


def graph_network(x, e, w1, w, s, r, **_):
    m = jax.nn.relu(jnp.concatenate([x[s], x[r], e], -1) @ w1)
    sent, received = sum_by(m, s, NODES), sum_by(m, r, NODES)
    return jnp.tanh(x @ w + sent - received), m


def gcn(x, w, s, r, **_):
    degree = sum_by(jnp.ones(EDGES, x.dtype), r, NODES)
    mean = sum_by((x @ w)[s], r, NODES) / jnp.maximum(degree, 1)[:, None]
    maximum = jax.ops.segment_max(jnp.tanh(x)[s], r, NODES)
    return mean + jnp.where(jnp.isfinite(maximum), maximum, 0)


def gat(x, w, w2, s, r, **_):
    h = x @ w
    score = jax.nn.leaky_relu(((h[s] + h[r]) @ w2)[:, 0])
    exp = jnp.exp(score - jax.lax.stop_gradient(jax.ops.segment_max(score, r, NODES))[r])
    weight = exp / sum_by(exp, r, NODES)[r]
    return sum_by(h[s] * weight[:, None], r, NODES), weight


def schnet(x, pos, w, w3, s, r, **_):
    distance = jnp.sqrt(((pos[s] - pos[r]) ** 2).sum(-1) + 0.1)
    radial = jnp.exp(-((distance[:, None] - jnp.linspace(0.0, 3.0, 3, dtype=x.dtype)) ** 2))
    return sum_by((x @ w)[s] * jax.nn.softplus(radial @ w3[0]), r, NODES)


def egnn(x, pos, w1, w2, s, r, **_):
    for _ in range(2):
        difference = pos[s] - pos[r]
        m = jax.nn.silu(jnp.concatenate([x[s], x[r], difference**2], -1) @ w1)
        pos = pos.at[r].add(difference * jnp.tanh(m @ w2))
        x = x + sum_by(m, r, NODES)
    return x, pos


def energy_and_forces(x, pos, w, w3, s, r, g, **_):
    def energy(pos):
        y = schnet(x, pos, w, w3, s, r)
        return sum_by(jnp.sin(y).sum(-1), g, GRAPHS).sum()

    return jax.value_and_grad(energy)(pos)


def layers_by_scan(x, w3, w, s, r, **_):
    def layer(x, kernel):
        m = jnp.tanh(x[s] * (x[r] @ w)) * kernel.sum()
        return jnp.tanh(x + sum_by(m, r, NODES)), m.sum()

    return jax.lax.scan(layer, x, w3)


def branch_and_loop(x, s, r, **_):
    def layer(x):
        return jnp.tanh(x + sum_by(x[s] * x[r][:, :1], r, NODES))

    y = jax.lax.cond(x.sum() > 0, layer, lambda x: layer(-x), x)
    return jax.lax.fori_loop(0, 2, lambda i, x: layer(x), y)


def masked(x, e, w1, s, r, **_):
    m = jnp.where((s != r)[:, None], jnp.concatenate([x[s], x[r], e], -1) @ w1, 0)
    few = sum_by(x[s[:9]] * x[r[:9]], r[:9], NODES)
    return sum_by(m, jnp.where(e[:, 0] > 0, r, NODES), NODES) + few


def rows_of_one_array(x, w, s, r, **_):
    edge_index = jnp.stack([s, r])
    m = jnp.tanh(x[edge_index[0]] @ w) * x[edge_index[1]]
    y = jnp.zeros_like(x).at[edge_index[1]].add(m)
    return y + sum_by(y[edge_index[0]] * m, edge_index[1], NODES)


def mixed_types(x, e, s, r, charge, pairs, g, **_):
    total = sum_by(charge[s], r, NODES)  # integers
    m = x[s] * charge[r][:, None] + e[:, :1]
    angles = sum_by(m[pairs] * m[pairs[::-1]], pairs, EDGES)  # edges by edges
    y = sum_by(m + angles, r, NODES)
    readout = sum_by(y, g, GRAPHS)
    return total, y + readout[g], y.T[:, s[:4]]


def random_and_constant_ids(x, e, s, r, **_):
    key = jax.random.key(0)
    m = jnp.where(jax.random.bernoulli(key, 0.5, (EDGES, WIDTH)), x[s] * x[r], e[:, :1])
    noise = jax.vmap(jax.random.normal)(jax.random.split(key, EDGES)).astype(x.dtype)
    y = sum_by(m * noise[:, None], r, NODES)
    return y + x[jnp.arange(NODES)[::-1]], x.at[jnp.arange(NODES)].add(y)


def with_rules(x, e, s, r, **_):
    @jax.custom_vjp
    def doubled(x):
        return jnp.sin(x)

    doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * jnp.cos(x),))
    m = doubled(x[s]) * jax.vmap(lambda row: row.at[0].set(row[1]))(x[r]) + jax.nn.relu(e[:, :1])
    m = jax.checkpoint(lambda m: jnp.cumsum(m[:, ::-1], -1) + m.T.sum(0)[:, None])(m)
    return sum_by(m, r, NODES)


MODELS: list[Callable[..., Any]] = [
    graph_network,
    gcn,
    gat,
    schnet,
    egnn,
    energy_and_forces,
    layers_by_scan,
    branch_and_loop,
    masked,
    rows_of_one_array,
    mixed_types,
    random_and_constant_ids,
    with_rules,
]
KEPT = {with_rules: 1}
"""Scatters of floats that stay: into columns of a row."""


def called(function: Callable[..., Any], floats: Arrays, ids: Arrays) -> Any:
    return function(**floats, **ids)


def loss(function: Callable[..., Any], floats: Arrays, ids: Arrays) -> tuple[Array, Any]:
    results = called(function, floats, ids)
    return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(results)), results  # type: ignore[return-value]


def gradients(function: Callable[..., Any], floats: Arrays, ids: Arrays) -> Any:
    return jax.value_and_grad(lambda x: loss(function, x, ids), has_aux=True)(floats)


def assert_equal(actual: Any, expected: Any, tolerance: float) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        scale = 1 + np.abs(b)[np.isfinite(b)].max(initial=0)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def scatters(jaxpr: Any) -> int:
    """Return the number of scatters of floats, also in inner jaxprs but for custom calls'."""
    count = 0
    for eqn in jaxpr.eqns:
        is_float = jnp.issubdtype(getattr(eqn.outvars[0].aval, "dtype", int), jnp.floating)
        count += eqn.primitive.name.startswith("scatter") and is_float
        if not eqn.primitive.name.startswith("jax_gnn"):
            for value in jax.tree.leaves(eqn.params):
                inner = getattr(value, "jaxpr", value)
                count += scatters(inner) if hasattr(inner, "eqns") else 0
    return count


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("function", MODELS, ids=lambda f: f.__name__)
def test_values_and_gradients(function, is_traced, dtype):
    with jax.enable_x64(dtype is np.float64):
        floats, ids = jax.tree.map(jnp.asarray, draw(dtype))
        lifted = lift(function, deterministic=True)
        expected = jax.jit(lambda x: gradients(function, x, ids))(floats)
        if is_traced:
            actual = jax.jit(lambda x, ids: gradients(lifted, x, ids))(floats, ids)
        else:
            actual = jax.jit(lambda x: gradients(lifted, x, ids))(floats)
        assert_equal(actual, expected, 1e-12 if dtype is np.float64 else 2e-5)


@pytest.mark.parametrize("function", MODELS, ids=lambda f: f.__name__)
def test_no_scatter_of_messages_is_left(function):
    floats, ids = draw(np.float32)
    jaxpr = jax.make_jaxpr(lambda x: called(lift(function, deterministic=True), x, ids))(floats)
    assert scatters(jaxpr.jaxpr) == KEPT.get(function, 0)


@pytest.mark.parametrize("function", [schnet, layers_by_scan], ids=lambda f: f.__name__)
def test_second_derivatives(function):
    with jax.enable_x64(True):
        floats, ids = jax.tree.map(jnp.asarray, draw())

        def squares(function, floats):
            gradient = jax.grad(lambda x: loss(function, x, ids)[0])(floats)
            return sum(jnp.vdot(x, x) for x in jax.tree.leaves(gradient))

        expected = jax.jit(jax.grad(lambda x: squares(function, x)))(floats)
        actual = jax.jit(jax.grad(lambda x: squares(lift(function, deterministic=True), x)))(floats)
        assert_equal(actual, expected, 1e-11)


@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("function", [graph_network, gcn, gat], ids=lambda f: f.__name__)
def test_ids_that_are_negative_or_too_large(function, is_traced):
    floats, ids = draw(np.float32)
    ids["s"][:3], ids["r"][2:7] = (-1, -NODES, 2), (-2, NODES, NODES + 5, -40, 0)
    lifted = lift(function, deterministic=True)
    call = (lambda x, ids: called(lifted, x, ids)) if is_traced else None
    actual = jax.jit(call)(floats, ids) if call else called(lifted, floats, ids)
    assert_equal(actual, called(function, jax.tree.map(jnp.asarray, floats), ids), 2e-5)


@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
def test_ids_without_a_sign(is_traced):
    with jax.enable_x64(True):
        floats, ids = jax.tree.map(jnp.asarray, draw())
        ids = {**ids, **{name: ids[name].at[3].set(NODES + 5).astype("uint64") for name in "sr"}}
        lifted = lift(graph_network, deterministic=True)
        call = jax.jit(lambda ids: called(lifted, floats, ids))
        actual = call(ids) if is_traced else called(lifted, floats, ids)
        assert_equal(actual, called(graph_network, floats, ids), 1e-12)


def test_padded_edges_of_traced_ids_have_no_effect():
    floats, ids = draw(np.float32)
    ids["s"][-5:] = ids["r"][-5:] = NODES  # as jax-md pads
    floats["e"][-5:] = 1e3
    jitted = jax.jit(lambda x: gradients(lift(egnn, deterministic=True), x, ids)[1])
    traced = jax.jit(lambda x, ids: gradients(lift(egnn, deterministic=True), x, ids)[1])
    few = {**ids, "s": ids["s"][:-5], "r": ids["r"][:-5]}
    expected = gradients(egnn, floats, few)[1]
    for actual in (jitted(floats), traced(floats, ids)):
        for name in ("x", "pos", "w1", "w2"):
            np.testing.assert_allclose(actual[name], expected[name], rtol=2e-4, atol=2e-5)


def test_rows_by_a_third_array_are_summed_at_senders():
    def model(x, s, r, other):
        m = jnp.tanh(x[s]) * x[r]
        y = sum_by(m, r, NODES) + sum_by(jnp.sin(m), r, NODES)
        return y + sum_by(x[other], s, NODES)

    floats, ids = draw(np.float32)
    arguments = floats["x"], ids["s"], ids["r"], ids["s"][::-1].copy()
    lifted = lift(model, deterministic=True)
    assert_equal(jax.jit(lifted)(*arguments), jax.jit(model)(*arguments), 2e-5)


def test_results_of_edges_are_in_the_order_of_the_input():
    def products(x, s, r):
        return sum_by(x[s], r, NODES), x[s] * 10 + x[r]

    x = np.arange(NODES, dtype=np.float32)[:, None]
    _, ids = draw()
    s, r = ids["s"], ids["r"]
    np.testing.assert_array_equal(lift(products, deterministic=True)(x, s, r)[1][:, 0], s * 10 + r)


def test_a_graph_is_sorted_once(monkeypatch):
    floats, ids = draw(np.float32, seed=7)
    calls, traces = [], []
    build = Graph.from_edges
    monkeypatch.setattr(Graph, "from_edges", lambda *a, **k: calls.append(a) or build(*a, **k))

    def model(**arrays):
        traces.append(1)
        x = gcn(**arrays)
        return jax.lax.scan(lambda x, _: (gcn(**arrays | {"x": x}), None), x, length=2)[0]

    lifted = lift(model, deterministic=True)
    first = called(lifted, floats, ids)
    assert (len(calls), len(traces)) == (1, 1)
    np.testing.assert_array_equal(called(lifted, floats, ids), first)
    others = {**ids, "s": ids["s"][::-1].copy()}
    called(lifted, floats, others)
    assert (len(calls), len(traces)) == (2, 1)  # not traced again for a graph of equal sizes
    jax.jit(lambda ids: called(lifted, floats, ids))(ids)
    assert (len(calls), len(traces)) == (3, 1)  # once for all layers, outside of the loop


def test_threads_may_call_one_function(monkeypatch):
    """Whose orders of edges are more than are kept."""
    monkeypatch.setattr(lift_order, "_MAX_GRAPHS", 2)
    floats, _ = draw(np.float32)
    lifted, graphs = lift(gcn, deterministic=True), [draw(seed=i)[1] for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(lambda i: called(lifted, floats, graphs[i % 6]), range(90)))
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, results[i % 6])


@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_caller_sorts(is_traced, reverse):
    floats, ids = draw(np.float32)
    graph = Graph.from_edges(ids["s"], ids["r"], num_nodes=NODES).pad(num_edges=EDGES + 4)
    functions = (schnet, gcn) if is_traced else (schnet, gcn, graph_network)
    for function in functions:
        lifted = lift(
            function,
            graph=graph.transpose() if reverse and not is_traced else graph,
            deterministic=True,
        )
        if is_traced:
            jaxpr = jax.make_jaxpr(lambda ids: called(lifted, floats, ids))(ids)  # noqa: B023
            assert " sort[" not in str(jaxpr) and "segment_order" not in str(jaxpr)
        assert_equal(called(lifted, floats, ids), called(function, floats, ids), 2e-5)


def test_graphs_of_other_edges_are_not_used():
    floats, ids = draw(np.float32)
    graph = Graph.from_edges(ids["s"][::-1], ids["r"], num_nodes=NODES)
    actual = called(lift(gcn, graph=graph, deterministic=True), floats, ids)
    assert_equal(actual, called(gcn, floats, ids), 2e-5)


def test_transformations():
    floats, ids = draw(np.float32)
    lifted = lift(schnet, deterministic=True)

    def of(function, w):
        return called(function, {**floats, "w": w}, ids)

    w = jnp.stack([floats["w"], floats["w"] * 2])
    for transform in (
        lambda f: jax.vmap(f)(w),
        lambda f: jax.jvp(f, (w[0],), (w[1],)),
        lambda f: jax.jacrev(f)(w[0]),
        lambda f: jax.grad(lambda w: jax.checkpoint(f)(w).sum())(w[0]),
    ):
        expected = transform(lambda w: of(schnet, w))
        assert_equal(transform(lambda w: of(lifted, w)), expected, 2e-5)
    exported = jax.export.export(
        jax.jit(lambda w: of(lifted, w)), disabled_checks=jax_gnn.EXPORT_CHECKS
    )(w[0])
    assert_equal(exported.call(w[0]), of(schnet, w[0]), 2e-5)
    rows, count = jax.export.symbolic_shape("n, e")
    shapes = [jax.ShapeDtypeStruct(x, y) for x, y in (((rows, 5), "float32"), ((count,), "int32"))]
    exported = jax.export.export(jax.jit(lift(lambda x, s: x[s] - x[s[::-1]])))(*shapes)
    g = ids["g"]
    np.testing.assert_array_equal(exported.call(w[0], g), w[0][g] - w[0][g[::-1]])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="regions store nothing of edges on GPUs")
@pytest.mark.parametrize(("saves", "implementation"), [(False, None), (True, None), (False, "xla")])
def test_checkpoints_store_no_rows_of_edges(saves, implementation):
    rng = np.random.default_rng(0)
    x, kernels = (jnp.asarray(rng.normal(size=n), "float32") for n in ((50, 32), (6, 32, 32)))
    s, r = jnp.asarray(rng.integers(50, size=(2, 2000)))

    def layer(x, w):
        m = jnp.tanh(x[s] @ w) * jnp.sin(x[r])
        m = jnp.cumsum(m, 1) if implementation else m  # regions have no such sums
        return jnp.tanh(x + sum_by(m, r, 50))

    def bytes_stored(layer):
        lifted = lift(
            lambda ws: jax.lax.scan(lambda x, w: (layer(x, w), 0), x, ws)[0].sum(),
            deterministic=True,
        )
        with jax_gnn.implementation(implementation):
            compiled = jax.jit(jax.grad(lifted)).lower(kernels).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    policy = jax.checkpoint_policies.everything_saveable if saves else None
    again = bytes_stored(jax.checkpoint(layer, policy=policy))
    assert (again < bytes_stored(layer) / 2) != saves


def test_maps_over_graphs_and_over_devices():
    floats, ids = jax.tree.map(jnp.asarray, draw(np.float32))
    x = jnp.stack([floats["x"], floats["x"] / 2])
    s = jnp.stack([ids["s"], ids["s"][::-1]])

    def nodes_of(function):
        return lambda x, s: called(function, {**floats, "x": x}, {**ids, "s": s})[0]

    expected = jax.vmap(nodes_of(egnn))(x, s)
    assert_equal(jax.vmap(nodes_of(lift(egnn, deterministic=True)))(x, s), expected, 2e-5)
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("batch")

    def on_devices(x, s):
        return nodes_of(lift(egnn, deterministic=True))(x[0], s[0])[None]

    split = jax.jit(jax.shard_map(on_devices, mesh=mesh, in_specs=spec, out_specs=spec))
    np.testing.assert_allclose(split(x, s), expected, rtol=2e-5, atol=2e-5)


def test_explanations_name_programs_and_lines_of_what_is_left():
    floats, ids = draw(np.float32)
    text = lift(mixed_types, deterministic=True).explain(**floats, **ids)
    assert "program mixed_types on" in text and "%0" in text
    assert "test_lift.py" in text and "int32 is summed exactly in any order" in text
    assert "runs as it is" in lift(lambda x: x[:, ::2]).explain(floats["x"])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), {**floats, **ids})
    assert (
        text.splitlines()[0]
        == lift(mixed_types, deterministic=True).explain(**abstract).splitlines()[0]
    )


def test_edges_that_gain_nothing_run_as_they_are():
    def messages(x, s, r, w):
        return sum_by(jnp.tanh(x[s] @ w) * x[r], r, len(x))

    def sums(x, s, r, w):
        return sum_by(jnp.exp(x[:, 0][s] - x[:, 0][r]), r, len(x))

    x, w = jnp.ones((2000, 64)), jnp.ones((64, 64))
    s, r = jnp.asarray(np.random.default_rng(0).integers(2000, size=(2, 30_000)))
    for function, is_lifted in ((messages, True), (sums, False)):
        lifted = lift(function)
        np.testing.assert_allclose(jax.jit(lifted)(x, s, r, w), function(x, s, r, w), rtol=2e-5)
        assert ("jax_gnn" in str(jax.make_jaxpr(lifted)(x, s, r, w))) == is_lifted
    text = lifted.explain(x, s, r, w)
    assert text.startswith("sums runs as it is") or " 0 programs of edges" in text
    assert re.search(r"test_lift.py:.*: its edges are counted to take [1-9]\d* µs, [1-9]", text)
    assert "jax_gnn" in str(jax.make_jaxpr(lift(sums, deterministic=True))(x, s, r, w))


def test_functions_without_edges_run_as_they_are():
    assert lift(lambda: 3)() == 3
    assert lift(lambda x, k: x * k)(jnp.ones(2), k=2).tolist() == [2, 2]
    assert lift(lambda x: x if x > 0 else -x)(jnp.float32(-2)) == 2
    x, ids = jnp.ones((3, 2)), jnp.array([0.0, 1.0])
    with pytest.raises(TypeError, match=r"[Ii]ndex"):
        lift(lambda x, ids: x[ids])(x, ids)


def test_functions_are_traced_once():
    traces = []

    def plain(x, y, scale):
        traces.append(1)
        return {"x": jnp.sin(x) * scale, "y": y, "kind": "plain", "count": 3}

    x, y = jnp.ones((3, 2)), jnp.ones(4, jnp.int32)
    kinds = []

    def call(x, y, scale):
        out = lift(plain)(x, y, scale)
        kinds.append((out.pop("kind"), out.pop("count")))
        return out

    jitted = jax.jit(call, static_argnums=2, donate_argnums=1)
    out = jitted(x, y + 0, 2.0)
    assert (len(traces), kinds) == (1, [("plain", 3)])
    assert_equal(out, {"x": jnp.sin(x) * 2.0, "y": y}, 1e-6)
    gradient = jax.jit(jax.grad(lambda x: lift(plain)(x, y + 0, 2.0)["x"].sum()))
    assert_equal(gradient(x), 2 * jnp.cos(x), 1e-6)
    assert len(traces) == 2
    assert isinstance(lift(plain)(np.ones(2), np.ones(2), 3)["y"], np.ndarray)  # eagerly


def test_arrays_that_a_function_closes_over_may_change():
    floats, ids = draw(np.float32)
    for ones in (jnp.ones, np.ones):
        weights = [ones(WIDTH, "float32")]

        def function(x, s, r, weights=weights):
            return sum_by(weights[0] * x[s] * x[r], r, NODES)

        lifted = lift(function, deterministic=True)
        first = lifted(floats["x"], ids["s"], ids["r"])
        weights[0] = 2 * weights[0]
        second = lifted(floats["x"], ids["s"], ids["r"])
        np.testing.assert_allclose(second, 2 * first, rtol=1e-6)


def test_results_have_the_types_of_the_call():
    def function(x, s, r):
        return sum_by(x[s] * jnp.linspace(0, 1, WIDTH) * x[r], r, NODES)

    floats, ids = draw(np.float32)
    lifted = lift(function, deterministic=True)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            actual = lifted(floats["x"], ids["s"], ids["r"])
            assert_equal(actual, function(jnp.asarray(floats["x"]), ids["s"], ids["r"]), 1e-5)


class Model:
    weight = 2.0

    @lift
    def __call__(self, x, s, r):
        return sum_by(self.weight * x[s] * x[r], r, NODES)


@lift
@jax.jit
def in_this_module(x, s, r):
    return sum_by(x[s] * x[r], r, NODES)


def test_lifted_functions_are_copied_and_pickled_after_a_call():
    floats, ids = draw(np.float32)
    by_value = lift(gcn, deterministic=True)
    first = called(by_value, floats, ids)
    for lifted in (by_value, in_this_module, Model.__call__):
        again = pickle.loads(pickle.dumps(lifted))
        assert copy.deepcopy(lifted) is copy.copy(lifted) is lifted
        assert (again is lifted) == (lifted is not by_value)
    again = pickle.loads(pickle.dumps(by_value))
    np.testing.assert_array_equal(called(again, floats, ids), first)


def test_methods_are_lifted():
    floats, ids = draw(np.float32)
    x, s, r = floats["x"], ids["s"], ids["r"]
    np.testing.assert_allclose(Model()(x, s, r), sum_by(2 * x[s] * x[r], r, NODES), rtol=1e-5)


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((3,), {}, "lift takes a function, got int"),
        ((graph_network,), {"graph": 3}, "graph must be a Graph or None, got int"),
        ((graph_network,), {"deterministic": None}, "deterministic must be True or False, got"),
    ],
)
def test_bad_input(arguments, options, message):
    with pytest.raises(TypeError, match=message):
        lift(*arguments, **options)


def test_random_functions_equal_themselves_lifted(request):
    output = run_fuzzer("lift", functions=FUNCTIONS, seed=request.config.option.seed)
    assert f" {FUNCTIONS} functions" in output
