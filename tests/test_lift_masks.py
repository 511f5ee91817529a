"""Ids that a mask sends out of range are those ids with a mask, in lifted functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_gnn import lift

NODES, EDGES, WIDTH = 9, 31, 5
OUT = np.iinfo(np.int32).max
sum_by = jax.ops.segment_sum


def masked(flags, ids, out=OUT):
    return jnp.where(flags, ids, out)


def read(x, ids, mode):
    return x[ids] if mode is None else x.at[ids].get(mode=mode, fill_value=0.5)


def energies(x, pos, w, s, r, flags, mode=None, ids_of=masked):
    """Return energies of an interaction whose messages and differences have other ids."""
    r_ij = pos[r] - pos[s]
    radial = jnp.exp(-jnp.sum(r_ij**2, -1, keepdims=True))
    senders, receivers = ids_of(flags, s), ids_of(flags, r)
    for _ in range(2):
        m = jnp.tanh(read(x, senders, mode) @ w) * radial
        x = x + sum_by(m, receivers, NODES)
    return jnp.sum(jnp.sin(x), -1)


def model(x, pos, w, s, r, flags, **options):
    def total(pos):
        y = energies(x, pos, w, s, r, flags, **options)
        return jnp.sum(y), y

    (_, y), forces = jax.value_and_grad(total, has_aux=True)(pos)
    ids_of = options.get("ids_of", masked)
    largest = jax.ops.segment_max(jnp.sin(x[s] + x[r]), ids_of(flags, r), NODES)
    return y, forces, jnp.where(jnp.isfinite(largest), largest, 0)


def draw(seed=0):
    rng = np.random.default_rng(seed)
    floats = [rng.normal(size=shape) * 0.4 for shape in ((NODES, WIDTH), (NODES, 3), (WIDTH,) * 2)]
    s, r = rng.integers(NODES - 1, size=(2, EDGES)).astype(np.int32)
    flags = rng.random(EDGES) < 0.7
    s[-4:], r[-4:], flags[-4:] = NODES - 1, NODES - 1, False  # padded edges
    return [jnp.asarray(x) for x in floats], [jnp.asarray(x) for x in (s, r, flags)]


def gradients(function, floats, ids):
    def loss(floats):
        y = function(*floats, *ids)
        return sum(jnp.sum(jnp.sin(a)) for a in jax.tree.leaves(y)), y

    return jax.value_and_grad(loss, has_aux=True)(floats)


MASKS = {
    "mlip": {},
    "num_nodes": {"ids_of": lambda flags, ids: masked(flags, ids, NODES)},
    "inverse": {"ids_of": lambda flags, ids: jnp.where(~flags, NODES + 1, ids)},
    "fill": {"mode": "fill"},
}


@pytest.mark.parametrize("is_traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("name", MASKS)
def test_masked_ids_have_the_ends_of_the_ids(name, is_traced):
    def function(*arguments):
        return model(*arguments, **MASKS[name])

    with jax.enable_x64(True):
        floats, ids = draw()
        lifted = lift(function, deterministic=True)
        text = lifted.explain(*floats, *ids)
        assert ", 0 gathers or scatters left" in text.splitlines()[0]
        if is_traced:
            actual = jax.jit(lambda x, ids: gradients(lifted, x, ids))(floats, ids)
        else:
            actual = gradients(lifted, floats, ids)
        leaves = map(jax.tree.leaves, (actual, gradients(function, floats, ids)))
        for a, b in zip(*leaves, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


OTHERS = {
    "in range": {"ids_of": lambda flags, ids: jnp.where(flags, ids, NODES - 1)},
    "negative": {"ids_of": lambda flags, ids: jnp.where(flags, ids, -1)},
    "other ids": {"ids_of": lambda flags, ids: jnp.where(flags, ids[::-1], NODES)},
    "two arrays": {"ids_of": lambda flags, ids: jnp.where(flags, ids, ids[::-1])},
    "three arrays": {
        "ids_of": lambda flags, ids: jax.lax.select_n(flags.astype("int32"), ids, ids[::-1], ids)
    },
    "clip": {"mode": "clip"},  # negative ids are clipped, too
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ids_are_another_end(name):
    def function(*arguments):
        return model(*arguments, **OTHERS[name])

    with jax.enable_x64(True):
        floats, ids = draw(1)
        lifted = lift(function, deterministic=True)
        assert " 0 gathers" not in lifted.explain(*floats, *ids).splitlines()[0]
        leaves = (jax.tree.leaves(gradients(f, floats, ids)) for f in (lifted, function))
        for a, b in zip(*leaves, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
