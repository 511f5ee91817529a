"""Attention by destination pair: its derivatives and those of the definition."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import check_batch, check_derivatives, compare, on_cuda
from op_spec import same_bits, setting
from op_suite import IMPLEMENTATIONS

from jax_gnn import RelationalGraph
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_attention.pair_attention import Operands, pair_attention

NODES, RELATIONS = 30, 4
OPERANDS = {  # in addition to values, queries and weights
    "same": (),
    "keys": ("key",),
    "biases": ("bias", "shift"),
    "all": ("key", "bias", "shift"),
}
PRECISION = jax.lax.Precision.HIGHEST


def matrix_of(rng: np.random.Generator, edges: int, extra: int = 0) -> RelationalMatrix:
    """Draw a matrix: one destination has half of all edges, many have none; with padding."""
    src = rng.integers(NODES, size=edges)
    # Node 3 is a hub, beside destinations of few edges and of none.
    dst = np.where(rng.random(edges) < 0.5, 3, rng.integers(NODES // 2, size=edges))
    rel = rng.integers(RELATIONS, size=edges)
    graph = RelationalGraph.from_triples(src, rel, dst, NODES, RELATIONS)
    pairs = edges + extra  # for any edges, so that graphs share programs
    padded = graph.pad(num_nodes=NODES + extra, num_edges=edges + 3 * extra, num_dst_pairs=pairs)
    return padded.matrix(weighted=True)


class Form(NamedTuple):
    heads: int
    k: int
    n: int
    operands: str = "all"


def operands_of(
    rng: np.random.Generator, matrix: RelationalMatrix, form: Form, *batch: int
) -> dict[str, np.ndarray]:
    assert matrix.pair_dst is not None
    heads, k, n, extra = form
    pairs, nodes = matrix.pair_dst.num_pairs, matrix.nodes.by_col.num_rows
    shapes = {
        "value": (nodes, heads * k),
        "key": (nodes, heads * k),
        "query": (pairs, heads * k),
        "kernel": (RELATIONS, k, heads * n),
        "bias": (RELATIONS, heads * n),
        "shift": (pairs, heads),
    }
    absent = {"key", "bias", "shift"} - set(OPERANDS[extra])
    return {name: rng.normal(size=(*batch, *s)) for name, s in shapes.items() if name not in absent}


def ours(form, matrix, operands) -> tuple[Any]:
    operands = Operands(*(operands.get(name) for name in Operands._fields[:-1]), matrix)
    return (pair_attention(*operands, heads=form.heads, precision=PRECISION),)


def definition(form, matrix, operands) -> tuple[Any]:
    """Compute one softmax over all edges into a node, with arrays of edges."""
    assert matrix.to_pairs is not None and matrix.pair_dst is not None
    csr, num_nodes = matrix.to_pairs.by_row, matrix.pair_dst.num_nodes
    valid = csr.valid(matrix.to_pairs.by_col.num_rows)
    pair, src, rel = (jnp.where(valid, ids, 0) for ids in (csr.rows, csr.cols, matrix.types))
    dst = jnp.where(valid, matrix.nodes.by_row.rows, num_nodes)

    def split(x):
        return x.reshape(*x.shape[:-1], form.heads, -1)

    value = split(operands["value"])[src]
    key = split(operands["key"])[src] if "key" in operands else value
    score = jnp.sum(split(operands["query"])[pair] * key, -1)
    if "shift" in operands:
        score += operands["shift"][pair]
    top = jax.lax.stop_gradient(jax.ops.segment_max(score, dst, num_nodes + 1))
    powers = jnp.exp(score - top[dst])
    share = powers / jax.ops.segment_sum(powers, dst, num_nodes + 1)[dst]
    product = jnp.einsum("ehk,ekhn->ehn", value, split(operands["kernel"])[rel])
    if "bias" in operands:
        product += split(operands["bias"])[rel]
    y = jax.ops.segment_sum(share[..., None] * product, dst, num_nodes + 1)
    return (y[:-1].reshape(num_nodes, -1),)


FORMS = [
    *(Form(1, 4, 4, operands) for operands in OPERANDS),
    Form(2, 4, 3, "same"),
    Form(2, 4, 3, "all"),
    Form(4, 8, 2, "biases"),
]


@pytest.mark.parametrize("form", FORMS)
def test_derivatives(rng, form):
    """Results, tangents, gradients, and both derivatives of the gradients."""
    matrix = matrix_of(rng, 90, extra=2)
    operands, directions = operands_of(rng, matrix, form), operands_of(rng, matrix, form)
    with setting(None, "float64"):
        check_derivatives(ours, definition, form, matrix, operands, directions, [operands])


@pytest.mark.parametrize("extra", ["same", "all"])
def test_in_each_operand_alone(rng, extra):
    matrix, form = matrix_of(rng, 90, extra=2), Form(2, 4, 3, extra)
    operands, directions = operands_of(rng, matrix, form), operands_of(rng, matrix, form)
    alone = [(name,) for name in operands]
    with setting(None, "float64"):
        check_derivatives(
            ours, definition, form, matrix, operands, directions, alone, of_gradients=False
        )


def test_vmap(rng):
    """Batches of each operand and of all operands."""
    matrix, form = matrix_of(rng, 90, extra=2), Form(2, 4, 3)
    single, batch = operands_of(rng, matrix, form), operands_of(rng, matrix, form, 2)
    with setting(None, "float64"):
        for names in (*((name,) for name in single), tuple(single)):
            operands = {name: batch[name] if name in names else x for name, x in single.items()}
            check_batch(ours, definition, form, matrix, operands, names, names)


@functools.partial(jax.jit, static_argnums=(0, 1))
def with_gradients(function, form, matrix, operands, ct):
    y, pull = jax.vjp(lambda x: function(form, matrix, x)[0], operands)
    return y, pull(ct.astype(y.dtype))[0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("heads", "k"), [(1, 64), (4, 16), (1, 20), (3, 5)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_kernels(rng, dtype, heads, k, implementation):
    """Compare with float64, with large scores; bits repeat."""
    matrix, form = matrix_of(rng, 400, extra=3), Form(heads, k, 8)
    operands = operands_of(rng, matrix, form)
    # Scores have a deviation of 3, so that weights differ by orders of magnitude.
    operands["query"] *= 3 / np.sqrt(k)
    ct = rng.normal(size=(NODES + 3, heads * 8)).astype(np.float16).astype(jnp.dtype(dtype))
    typed = {
        name: x.astype(jnp.dtype("float32" if name == "shift" else dtype))
        for name, x in operands.items()
    }
    with setting(implementation, dtype):
        got = with_gradients(ours, form, matrix, typed, ct)
        assert same_bits(got, with_gradients(ours, form, matrix, typed, ct))
    with setting("xla", "float64"):
        exact = {name: x.astype(np.float64) for name, x in typed.items()}
        want = with_gradients(definition, form, matrix, exact, ct.astype(np.float64))
    compare(got, want, dtype, {"float32": 1e-5, "bfloat16": 4e-2, "float16": 1e-2}[dtype])


@on_cuda
def test_launches_are_kernels(rng):
    """Each direction is one pass; keys are values, and no sums are read for ⟨ct, y⟩."""
    matrix = matrix_of(rng, 300)
    operands = jax.tree.map(jnp.asarray, operands_of(rng, matrix, Form(1, 64, 64, "same")))
    with setting("cuda", "float32"):
        operands = {name: x.astype(jnp.float32) for name, x in operands.items()}
        loss = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(ours(Form(1, 64, 64), matrix, x)[0]))))
        text = loss.lower(operands).as_text()
    # Forward sums are not read again, and no second array of keys is.
    assert "has_y = false" in text
    assert "same = true" in text


def test_no_edges(rng):
    matrix, form = matrix_of(rng, 0), Form(1, 4, 4, "same")
    operands = jax.tree.map(np.float32, operands_of(rng, matrix, form))
    assert not np.asarray(ours(form, matrix, operands)[0]).any()
