"""Padding of programs' arguments, and where weights multiply on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_gnn import Edge, Graph, Node, program
from jax_gnn._program.backend import backend

# The models belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.edge_models import MODELS


@jax.custom_jvp
def relu(x):
    """Return 1 / x, under the name of a function of JAX that is finite at 0."""
    return 1 / x


relu.defjvp(lambda x, t: (1 / x[0], -t[0] / x[0] ** 2))


@program
def network(g, x: Node, e: Edge, w, v):
    """Multiply arguments that are as wide as the product, narrower and wider, then by ``v``."""
    z = e @ w + e[:2] @ w[:2] + g.src(x)
    distance = jnp.sqrt(z**2 + e**2) ** 3 + jnp.log(e**2) + relu(e) + (e**2) ** -0.5
    m = jax.nn.relu(jnp.logaddexp(z, 0.0) / distance) @ v
    gate = jax.nn.sigmoid(m)
    y = g.sum(g.softmax(m) * gate) + g.sum(gate * g.src(x)) / (g.sum(gate) + 1e-6)
    return y + g.mean(e @ v), jnp.tanh(z)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("differentiated", [(0, 1, 2, 3), (1,), (2,), (3,)])
def test_nan_in_padding_is_ignored(differentiated, order, rng):
    """NaN in padding reaches no result, gradient or Hessian, whichever arguments are constant."""
    graph = Graph.from_edges(*rng.integers(9, size=(2, 30)), num_nodes=12)
    padded = graph.pad(num_edges=35, num_nodes=12)
    x, e, w, v = (rng.normal(size=(n, 5)) for n in (12, 30, 5, 5))
    arguments = [jnp.asarray(array, jnp.float32) for array in (x, e, w, v)]
    with_nan = jnp.concatenate([arguments[1], jnp.full((5, 5), np.nan, jnp.float32)])

    def results(graph, e):
        def loss(*varied):
            given = [arguments[0], e, *arguments[2:]]
            for i, array in zip(differentiated, varied, strict=True):
                given[i] = array
            y, z = network(graph, *given)
            return (y * jnp.cos(y)).sum() + (z[:30] ** 3).sum()

        varied = [[arguments[0], e, *arguments[2:]][i] for i in differentiated]
        argnums = tuple(range(len(varied)))
        if order == 1:
            return jax.jit(jax.value_and_grad(loss, argnums))(*varied)
        gradient = jax.grad(loss, argnums)
        return jax.jit(lambda *xs: jax.jvp(gradient, xs, xs))(*varied)

    for want, got in zip(
        *map(jax.tree.leaves, (results(graph, arguments[1]), results(padded, with_nan))),
        strict=True,
    ):
        if got.shape != want.shape:  # the gradient to e
            assert not got[30:].any()
            got = got[:30]
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * float(jnp.abs(want).max()))


@pytest.mark.skipif(backend() != "cpu", reason="kernels of GPUs weigh values in registers")
@pytest.mark.parametrize(
    ("name", "is_attention"),
    [("deeper_gcn", False), ("transformer", False), ("gat", True), ("gatv2", True)],
)
def test_values_that_functions_make_are_weighted_at_edges(name, is_attention, rng):
    graph = Graph.from_edges(*rng.integers(50, size=(2, 400)), num_nodes=50)
    shapes = {"deeper_gcn": [(50, 8), (400, 8), (1,), (8, 8), (8, 8)]}
    shapes["transformer"] = [(50, 8), (400, 4), *3 * [(8, 8)], (4, 8), (8, 8)]
    shapes["gat"] = [(50, 8), (400, 4), (8, 8), (4, 8), *3 * [(4, 2)]]
    shapes["gatv2"] = [(50, 8), (8, 8), (8, 8), (4, 2)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes[name]]
    assert ("attention" in program(MODELS[name]).explain(graph, *arrays)) == is_attention
