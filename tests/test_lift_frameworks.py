"""Lifted functions inside of other libraries' transformations; equal bits from run to run."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_gnn import lift

NODES, EDGES, WIDTH = 7, 23, 5


def layer(w, x, s, r):
    return jax.ops.segment_sum(jnp.tanh(x[s] @ w) * x[r], r, NODES)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=(n, WIDTH)), jnp.float32) for n in (WIDTH, NODES))
    return w, x, *jnp.asarray(rng.integers(NODES, size=(2, EDGES)))


@pytest.fixture
def lifted():
    return lift(layer, deterministic=True)


def assert_close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_donated_arguments(arrays, lifted):
    expected = layer(*arrays)
    w, x, s, r = arrays
    step = jax.jit(lambda x, w: lifted(w, x, s, r), donate_argnums=0)
    assert_close(step(x + 0, w), expected)


def test_sharded_arguments(arrays, lifted):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    assert_close(jax.jit(lifted)(*jax.device_put(arrays, everywhere)), layer(*arrays))


def test_equinox(arrays, lifted):
    eqx = pytest.importorskip("equinox")
    w, *rest = arrays

    class Model(eqx.Module):
        w: jax.Array

        def __call__(self, *rest):
            return lifted(self.w, *rest)

    model, outside = Model(w), lift(lambda model, *rest: model(*rest), deterministic=True)
    assert_close(eqx.filter_jit(model)(*rest), layer(*arrays))
    assert_close(eqx.filter_jit(outside)(model, *rest), layer(*arrays))
    gradient = eqx.filter_grad(lambda model: outside(model, *rest).sum())(model)
    assert_close(gradient.w, jax.grad(lambda w: layer(w, *rest).sum())(w))


def test_nnx(arrays, lifted):
    nnx = pytest.importorskip("flax.nnx")
    w, *rest = arrays

    class Model(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(w)

        def __call__(self):
            return lifted(self.w[...], *rest)

    assert_close(nnx.jit(lambda model: model())(Model()), layer(*arrays))
    (gradient,) = jax.tree.leaves(nnx.grad(lambda model: model().sum())(Model()))
    assert_close(gradient, jax.grad(lambda w: layer(w, *rest).sum())(w))


def test_haiku(arrays, lifted):
    hk = pytest.importorskip("haiku")
    w, *rest = arrays

    def forward():
        parameter = hk.get_parameter("w", w.shape, init=lambda *_: w)
        return lifted(parameter, *rest)

    model = hk.transform(forward)
    parameters = model.init(jax.random.key(0))
    assert_close(jax.jit(model.apply)(parameters, None), layer(*arrays))
    outside = lift(model.apply, deterministic=True)
    assert_close(outside(parameters, None), layer(*arrays))


@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
def test_bits_are_equal_in_every_run(arrays, is_traced):
    w, x, s, r = arrays

    def step():
        jax.clear_caches()
        lifted = lift(layer, deterministic=True)

        def loss(w, x, *ids):
            return jnp.sin(lifted(w, x, *(ids or (s, r)))).sum()

        ids = (s, r) if is_traced else ()
        return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, (0, 1)))(w, x, *ids))

    first = step()
    for _ in range(3):
        for a, b in zip(step(), first, strict=True):
            np.testing.assert_array_equal(a, b)
