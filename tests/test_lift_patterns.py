"""Patterns that people write out, which lifted functions compute by one op."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_gnn import implementation, lift
from jax_gnn._program import lift_cost

NODES, EDGES, WIDTH, HEADS = 7, 23, 5, 2
sum_by, max_by = jax.ops.segment_sum, jax.ops.segment_max


def quotient(exp, ids, n=NODES, epsilon=0.0):
    return exp / (sum_by(exp, ids, n) + epsilon)[ids]


def of_package(x, s, r):
    return pytest.importorskip("jraph").segment_softmax(x, r, NODES)


def finite_maxima(x, s, r):
    largest = max_by(x, r, NODES)
    exp = jnp.exp(x - jnp.where(jnp.isfinite(largest), largest, 0)[r])
    return exp / jnp.maximum(sum_by(exp, r, NODES), 1e-9)[r]


def masked(x, s, r):
    x = jnp.where((s != r)[:, None], x, -1e9)
    exp = jnp.exp(x - lax.stop_gradient(max_by(x, r, NODES))[r])
    sums = sum_by(exp, r, NODES)
    return exp / jnp.where(sums == 0, 1, sums)[r]


SOFTMAXES = {
    "jraph": of_package,
    "maxima": lambda x, s, r: quotient(jnp.exp(x - max_by(x, r, NODES)[r]), r),
    "stopped": lambda x, s, r: quotient(jnp.exp(x - lax.stop_gradient(max_by(x, r, NODES)[r])), r),
    "epsilon": lambda x, s, r: quotient(jnp.exp(x - max_by(x, r, NODES)[r]), r, epsilon=1e-16),
    "unshifted": lambda x, s, r: quotient(jnp.exp(x), r),
    "finite": finite_maxima,
    "masked": masked,
}
OTHERS = {
    "large epsilon": lambda x, s, r: quotient(jnp.exp(x - max_by(x, r, NODES)[r]), r, epsilon=1e-6),
    "sums of senders": lambda x, s, r: quotient(jnp.exp(x - max_by(x, r, NODES)[r]), s),
    "maxima of senders": lambda x, s, r: quotient(jnp.exp(x - max_by(x, s, NODES)[r]), r),
    "epsilon, unshifted": lambda x, s, r: quotient(jnp.exp(x), r, epsilon=1e-16),
    "constant shift": lambda x, s, r: quotient(jnp.exp(x - 3), r),
    "other nodes": lambda x, s, r: quotient(jnp.exp(x - max_by(x, r, NODES)[r]), r, NODES + 1),
    "other axis": lambda x, s, r: jax.nn.softmax(x, -1),
    "other sums": lambda x, s, r: jnp.exp(x) / sum_by(2 * jnp.exp(x), r, NODES)[r],
}


@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("name", [*SOFTMAXES, *OTHERS])
def test_softmaxes(name, is_traced):
    softmax = {**SOFTMAXES, **OTHERS}[name]
    rng = np.random.default_rng(0)

    def attention(x, w, a, s, r):
        h = x @ w
        score = jax.nn.leaky_relu(jnp.concatenate([h[s], h[r]], -1) @ a)
        return sum_by(h[s][:, None] * softmax(score, s, r)[:, :, None], r, NODES)

    def gradients(function, arrays, ids):
        return jax.value_and_grad(lambda x: jnp.sin(function(*x, *ids)).sum())(arrays)

    with jax.enable_x64(True):
        shapes = (NODES, WIDTH), (WIDTH, WIDTH), (2 * WIDTH, HEADS)
        arrays = [jnp.asarray(rng.normal(size=shape) * 0.4) for shape in shapes]
        ids = jnp.asarray(rng.integers(NODES - 1, size=(2, EDGES)))
        lifted = lift(attention, deterministic=True)
        if is_traced:
            actual = jax.jit(lambda x, ids: gradients(lifted, x, ids))(arrays, ids)
        else:
            actual = jax.jit(lambda x: gradients(lifted, x, ids))(arrays)
        leaves = map(jax.tree.leaves, (actual, gradients(attention, arrays, ids)))
        for a, b in zip(*leaves, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
        text = lifted.explain(*arrays, *ids)
        assert ("attention (" in text) == (name in SOFTMAXES)


def test_softmaxes_that_are_results_keep_the_values_of_dropped_edges():
    x, ids = jnp.arange(6.0), jnp.array([0, 1, -1, 1, 5, 0])
    with jax.enable_x64(True):
        function = SOFTMAXES["unshifted"]
        lifted = lift(lambda x, ids: function(x, ids, ids), deterministic=True)
        expected = function(x, ids, ids)
        np.testing.assert_allclose(lifted(x, ids), expected, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(lifted)(x, ids), expected, rtol=1e-6)


def test_sparse_constants_are_part_of_programs():
    rng = np.random.default_rng(0)
    sparse = np.where(rng.random((3, 4, 5)) < 0.3, rng.normal(size=(3, 4, 5)), 0)
    dense = rng.normal(size=(3, 4, 5))

    def products(table, x, y, s, r):
        m = jnp.einsum("eci,ej,ijk->eck", x[s], y, jnp.asarray(table, x.dtype) * 2)
        return sum_by(m, r, NODES)

    with jax.enable_x64(True):
        x = jnp.asarray(rng.normal(size=(NODES, 16, 3)))
        y = jnp.asarray(rng.normal(size=(EDGES, 4)))
        s, r = jnp.asarray(rng.integers(NODES, size=(2, EDGES)))
        for table, is_constant in ((sparse, True), (dense, False)):

            def layer(x, y, s, r, table=table):
                return products(table, x, y, s, r)

            def gradients(function):
                return jax.grad(lambda x, y: jnp.sin(function(x, y, s, r)).sum(), (0, 1))(x, y)

            lifted = lift(layer, deterministic=True)
            for a, b in zip(gradients(lifted), gradients(layer), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
            with implementation("xla"):
                text = lifted.explain(x, y, s, r)
            assert ("shared[" not in text) == is_constant
            assert "\nedge regions\n" in text


def one_hot_sum(m, ids, n):
    return jax.nn.one_hot(ids, n, dtype=m.dtype).T @ m


def by_einsum(m, ids, n):
    return jnp.einsum("en,efg->nfg", jax.nn.one_hot(ids, n), m.reshape(len(m), -1, 2)).reshape(
        n, -1
    )


PRODUCTS = {
    "one_hot": one_hot_sum,
    "einsum": by_einsum,
    "rows last": lambda m, ids, n: (m.T @ (ids[:, None] == jnp.arange(n)).astype(m.dtype)).T,
    "transposed": lambda m, ids, n: (jnp.arange(n)[:, None] == ids[None]).astype(m.dtype) @ m,
    "finite": lambda m, ids, n: one_hot_sum(jnp.where(jnp.isfinite(m), m, 0), ids, n),
}
NO_PRODUCTS = {
    "shifted range": lambda m, ids, n: (ids[:, None] == jnp.arange(n) + 1).astype(m.dtype).T @ m,
    "less": lambda m, ids, n: (ids[:, None] < jnp.arange(n)).astype(m.dtype).T @ m,
    "scaled": lambda m, ids, n: (2 * jax.nn.one_hot(ids, n, dtype=m.dtype)).T @ m,
    "over segments": lambda m, ids, n: jax.nn.one_hot(ids, n, dtype=m.dtype) @ m[:n],
    "wrong axis": lambda m, ids, n: (jnp.arange(len(m))[:, None] == ids[:n]).astype(m.dtype).T @ m,
    "few segments": lambda m, ids, n: one_hot_sum(m, ids % 2, 2),
}


@pytest.mark.parametrize("name", [*PRODUCTS, *NO_PRODUCTS])
def test_products_of_one_hot_rows(name):
    product, n = {**PRODUCTS, **NO_PRODUCTS}[name], 300
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        m = jnp.asarray(rng.normal(size=(2000, 16)))
        ids = jnp.asarray(rng.integers(-3, n + 3, 2000))

        def gradients(function):
            return jax.jit(jax.value_and_grad(lambda m, ids: jnp.sin(function(m, ids)).sum()))(
                m, ids
            )

        def function(m, ids):
            return product(jnp.tanh(m), ids, n)

        lifted = lift(function)
        for a, b in zip(gradients(lifted), gradients(function), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
        assert ("jax_gnn" in str(jax.make_jaxpr(lifted)(m, ids))) == (name in PRODUCTS)


def test_sums_by_graph_have_one_order_where_that_is_asked_for():
    rng = np.random.default_rng(0)

    def model(x, w, s, r, graph_ids, few):
        m = jnp.tanh(x[s] @ w) * x[r]
        y = x + sum_by(m, r, NODES)
        by_graph = sum_by(y, graph_ids, 3), jnp.ones((3, WIDTH)).at[graph_ids].add(y)
        of_edges = sum_by(m, graph_ids[s], 3)
        return by_graph, of_edges, sum_by(y[:, :1], few - 1, 4), max_by(y, graph_ids, 3)

    with jax.enable_x64(True):
        x, w = (jnp.asarray(rng.normal(size=(n, WIDTH))) for n in (NODES, WIDTH))
        ids = [jnp.asarray(rng.integers(NODES, size=EDGES)) for _ in range(2)]
        ids += [jnp.array([0, 0, 1, 1, 2, 2, 5]), jnp.arange(NODES, dtype=jnp.uint8)]

        def gradients(function, x, w, ids):
            def loss(x, w):
                y = function(x, w, *ids)
                return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(y)), y

            return jax.value_and_grad(loss, (0, 1), has_aux=True)(x, w)

        expected = gradients(model, x, w, ids)
        for deterministic in (True, False):
            lifted = lift(model, deterministic=deterministic)
            known = jax.jit(lambda x, w: gradients(lifted, x, w, ids))(x, w)  # noqa: B023
            traced = jax.jit(lambda x, w, ids: gradients(lifted, x, w, ids))(x, w, ids)  # noqa: B023
            for actual in (known, traced):
                for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
            jaxpr = str(jax.make_jaxpr(lifted)(x, w, *ids))
            assert ("scatter-add" in jaxpr) != deterministic


@pytest.mark.parametrize("mode", [None, "clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
def test_lookups(is_traced, mode):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        table = jnp.asarray(rng.normal(size=(4, WIDTH)))
        # Where a gather promises that ids are in range, JAX's derivatives of others differ.
        ids = jnp.asarray(rng.integers(-4, 6 if mode in ("clip", "fill") else 4, 19))

        def model(table, ids):
            return jnp.nan_to_num(jnp.sin(table.at[ids].get(mode=mode)))

        def derivatives(function, ids):
            def gradient(table):
                return jax.grad(lambda x: (function(x, ids) ** 3).sum())(table)

            tangents = jax.jvp(lambda x: function(x, ids), (table,), (table + 1,))
            return tangents, gradient(table), jax.grad(lambda x: gradient(x)[1:].sum())(table)

        lifted = lift(model, deterministic=True)
        call = jax.jit(lambda *ids: derivatives(lifted, *(ids or (known,))))
        known, traced = ids, (ids,) if is_traced else ()
        actual, expected = call(*traced), derivatives(model, ids)
        for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        gradient = jax.make_jaxpr(jax.grad(lambda x, ids: lifted(x, ids).sum()))(table, ids)
        assert "scatter-add" not in str(gradient)
        assert "0 gathers or scatters left" in lifted.explain(table, ids)
        default = jax.make_jaxpr(jax.grad(lambda x, ids: lift(model)(x, ids).sum()))(table, ids)
        assert "scatter-add" in str(default)  # on a CPU, where traced ids gain nothing


@pytest.mark.parametrize(
    ("num_rows", "count", "is_lifted"), [(2, 20_000, True), (2, 1000, False), (3000, 20_000, False)]
)
def test_sums_into_few_rows_gain_on_a_gpu(num_rows, count, is_lifted, monkeypatch):
    """Where additions of XLA's scatter would wait for each other."""
    monkeypatch.setattr(lift_cost, "backend", lambda: "cuda")
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(count, 3)), "float32")
    ids = jnp.asarray(rng.integers(num_rows, size=count), "int32")

    def model(x, ids):
        return jnp.zeros((num_rows, 3)).at[ids].add(jnp.sin(x))

    lifted = lift(model)
    assert ("scatter-add" not in str(jax.make_jaxpr(lifted)(x, ids))) == is_lifted
    np.testing.assert_allclose(lifted(x, ids), model(x, ids), rtol=1e-3, atol=1e-3)
    table = jnp.ones((num_rows, 3))
    gradient = jax.make_jaxpr(jax.grad(lambda x, ids: lift(lambda x, i: x[i])(x, ids).sum()))
    assert ("scatter-add" not in str(gradient(table, ids))) == is_lifted


@pytest.mark.parametrize("first", [0, -2])
def test_sums_by_known_ids_that_ascend(first):
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(2000, 64)), np.float32), jnp.eye(64)
    s, r = jnp.asarray(rng.integers(2000, size=(2, 30_000)))
    graph_ids = jnp.sort(jnp.asarray(rng.integers(8, size=2000))).at[0].set(first)

    def model(x, s, r, graph_ids):
        y = sum_by(jnp.tanh(x[s] @ w) * x[r], r, len(x))
        return jnp.ones((8, 64)).at[graph_ids].add(y)

    lifted = lift(model)
    expected = model(x, s, r, graph_ids)
    np.testing.assert_allclose(lifted(x, s, r, graph_ids), expected, rtol=1e-4, atol=1e-3)
    known = str(jax.make_jaxpr(lambda x: lifted(x, s, r, graph_ids))(x))
    traced = str(jax.make_jaxpr(lambda x, ids: lifted(x, s, r, ids))(x, graph_ids))
    assert ("scatter-add" in known) == (first < 0) and "scatter-add" in traced
