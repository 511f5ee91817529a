"""Slices of wide rows become products with slices of matrices, where no number is made twice."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from program_cases import Sizes, random_graph

import jax_gnn
from jax_gnn import Edge, Node, program
from jax_gnn._program.normal import summed_labels
from jax_gnn._program.rows import Contract, topological_order


@pytest.fixture
def narrow_rows(monkeypatch):
    """Registers for rows of eight numbers, and regions in plain XLA."""
    module = importlib.import_module("jax_gnn._program.passes.hoist_slices")
    monkeypatch.setattr(module, "MAX_STORED", 8)
    with jax_gnn.implementation("xla"), jax.enable_x64(True):
        yield


def painn(g, x: Node, e: Edge, w, b):
    phi = jax.nn.silu(x @ w[:, :4]) @ w[:4]
    s, t, u = jnp.split(g.src(phi) * (e @ w + b), 3, -1)
    return g.sum(s), g.sum(jnp.tanh(t)[:, None] * u[None])


def unequal_parts(g, x: Node, e: Edge, w, b):
    y = jnp.where(g.dst(x)[:1] > 0, (g.src(x) * e) @ w + b, 2.0)
    return g.sum(y[:3] * y[9:]), g.max(y[3:9])


def joined(g, x: Node, e: Edge, w, b):
    y = jnp.concatenate([g.src(x) @ w, e])
    return g.sum(jnp.sin(y[:4])), g.sum(y[4:12] + y[12:13])


def overlapping(g, x: Node, e: Edge, w, b):
    y = (g.src(x) * e) @ w
    return g.sum(y[:8]), g.sum(y[4:])


def read_whole(g, x: Node, e: Edge, w, b):
    y = (g.src(x) * e) @ w
    return g.sum(y[:4]), g.sum(jnp.cumsum(y))


def sliced_vectors(g, x: Node, e: Edge, w, b):
    y = jnp.stack([g.src(x), e, g.dst(x)]) @ w
    return g.sum(y[:, :4] * y[:, 8:]), g.sum(y[:, 4:8])


HOISTED = [painn, unequal_parts, joined, sliced_vectors]


@pytest.mark.usefixtures("narrow_rows")
@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("function", [*HOISTED, overlapping, read_whole])
def test_values_and_gradients(function, padding, rng):
    graph = random_graph(rng, Sizes(9, 40, padding=padding))
    shapes = (graph.num_nodes, 5), (graph.num_edges, 5), (5, 12), (12,)
    arrays = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
    compiled = program(function)
    rows = topological_order(compiled.planned(graph, *arrays).results)
    maps = [x for x in rows if isinstance(x.op, Contract) and summed_labels(x) and not x.is_shared]
    widths = [row.shape[-1] for row in maps]
    assert (max(widths) < 12) == (function in HOISTED)

    def all_of(run):
        def loss(*arrays):
            results = run(graph, *arrays)
            return sum(jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, 0))) for y in results), results

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*arrays)

    got, want = (
        jax.tree.leaves(jax.jit(all_of, static_argnums=0)(run))
        for run in (compiled, compiled.reference)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
