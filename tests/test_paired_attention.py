"""Attention by destination pair: its own derivatives beside those of the definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import assert_close, setting
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM

from jax_gnn import RelationalGraph
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_attention.paired import Paired, paired_attention

NODES, RELATIONS = 30, 4
FORMS = {  # which operands there are beside the values, queries and weights
    "same": (),
    "keys": ("key",),
    "biases": ("bias", "shift"),
    "all": ("key", "bias", "shift"),
}
PRECISION = jax.lax.Precision.HIGHEST


def matrix_of(rng: np.random.Generator, edges: int, extra: int = 0) -> RelationalMatrix:
    """With a destination of half of all edges, others of none, and padding."""
    src = rng.integers(NODES, size=edges)
    dst = np.where(rng.random(edges) < 0.5, 3, rng.integers(NODES // 2, size=edges))
    rel = rng.integers(RELATIONS, size=edges)
    graph = RelationalGraph.from_triples(src, rel, dst, NODES, RELATIONS).with_parts()
    pairs = {"num_dst_pairs": graph.pair_dst.num_pairs + extra}
    padded = graph.pad(num_nodes=NODES + extra, num_edges=graph.num_edges + 3 * extra, **pairs)
    return padded.matrix(weighted=True)


def operands_of(
    rng: np.random.Generator, matrix: RelationalMatrix, heads: int, k: int, n: int, form: str
) -> dict[str, np.ndarray]:
    assert matrix.pair_dst is not None
    pairs, nodes = matrix.pair_dst.num_pairs, matrix.nodes.by_col.num_rows
    shapes = {
        "value": (nodes, heads * k),
        "key": (nodes, heads * k),
        "query": (pairs, heads * k),
        "kernel": (RELATIONS, k, heads * n),
        "bias": (RELATIONS, heads * n),
        "shift": (pairs, heads),
    }
    absent = {"key", "bias", "shift"} - set(FORMS[form])
    return {name: rng.normal(size=s) for name, s in shapes.items() if name not in absent}


def ours(matrix: RelationalMatrix, heads: int, given: dict[str, Any]) -> Any:
    operands = Paired(*(given.get(name) for name in Paired._fields[:-1]), matrix)
    return paired_attention(*operands, heads=heads, precision=PRECISION)


def definition(matrix: RelationalMatrix, heads: int, given: dict[str, Any]) -> Any:
    """One softmax over all edges into a node, with arrays of edges."""
    assert matrix.to_pairs is not None
    csr, pairs = matrix.to_pairs.by_row, matrix.pair_dst
    assert pairs is not None
    with jax.ensure_compile_time_eval():
        is_edge = np.asarray(csr.valid(matrix.to_pairs.by_col.num_rows))
    pair, src = np.asarray(csr.rows)[is_edge], np.asarray(csr.cols)[is_edge]
    rel, dst = np.asarray(matrix.types)[is_edge], np.asarray(matrix.nodes.by_row.rows)[is_edge]
    num_nodes = pairs.num_nodes

    def split(x: Any) -> Any:
        return x.reshape(*x.shape[:-1], heads, -1)

    value = split(given["value"])[src]
    key = split(given["key"])[src] if "key" in given else value
    score = jnp.sum(split(given["query"])[pair] * key, -1)
    if "shift" in given:
        score += given["shift"][pair]
    top = jax.ops.segment_max(score, dst, num_nodes)
    powers = jnp.exp(score - jax.lax.stop_gradient(top)[dst])
    share = powers / jax.ops.segment_sum(powers, dst, num_nodes)[dst]
    product = jnp.einsum("ehk,ekhn->ehn", value, split(given["kernel"])[rel])
    if "bias" in given:
        product += split(given["bias"])[rel]
    y = jax.ops.segment_sum(share[..., None] * product, dst, num_nodes)
    return y.reshape(num_nodes, -1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("heads", "k", "n"), [(1, 4, 4), (1, 3, 5), (2, 4, 3), (4, 8, 2)])
def test_derivatives(rng: np.random.Generator, heads: int, k: int, n: int, form: str) -> None:
    """The result, its gradients, forward mode, and the derivative of the gradients."""
    matrix = matrix_of(rng, 90, extra=2)
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, operands_of(rng, matrix, heads, k, n, form))
        along = jax.tree.map(jnp.cos, given)

        def all_of(function: Any) -> Any:
            def loss(given: Any) -> Any:
                return jnp.sum(jnp.sin(function(matrix, heads, given)))

            gradient = jax.grad(loss)
            return (
                function(matrix, heads, given),
                jax.jvp(loss, (given,), (along,)),
                jax.jvp(gradient, (given,), (along,)),
                jax.grad(lambda x: jnp.vdot(x["query"], gradient(x)["query"]))(given),
            )

        found = (jax.tree.leaves(jax.jit(lambda f=f: all_of(f))()) for f in (ours, definition))
        for got, want in zip(*found, strict=True):
            assert_close(got, want, 1e-10, form)


@pytest.mark.parametrize("form", ["same", "all"])
def test_gradients_to_some(rng: np.random.Generator, form: str) -> None:
    """Each operand alone, and what is known by the others."""
    matrix = matrix_of(rng, 60)
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, operands_of(rng, matrix, 2, 3, 2, form))
        for name in given:
            got, want = (
                jax.grad(lambda x, f=f, n=name: jnp.sum(jnp.sin(f(matrix, 2, {**given, n: x}))))(
                    given[name]
                )
                for f in (ours, definition)
            )
            assert_close(got, want, 1e-10, name)


def test_vmap(rng: np.random.Generator) -> None:
    """Of each operand and of all."""
    matrix = matrix_of(rng, 50)
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, operands_of(rng, matrix, 2, 4, 2, "all"))
        for moved in (*((name,) for name in given), tuple(given)):
            batch = {name: jnp.stack([given[name], jnp.sin(given[name])]) for name in moved}

            def gradient(one: Any) -> Any:
                return jax.grad(lambda x: jnp.sum(jnp.sin(ours(matrix, 2, {**given, **x}))))(one)

            got = jax.vmap(gradient)(batch)
            for i in range(2):
                want = gradient({name: each[i] for name, each in batch.items()})
                for name in moved:
                    assert_close(got[name][i], want[name], 1e-10, f"{name} of {moved}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("heads", "k"), [(1, 64), (4, 16), (1, 20), (3, 5)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_kernels(
    rng: np.random.Generator, dtype: str, heads: int, k: int, implementation: str
) -> None:
    """Against float64, with large scores; the same bits; no values that nobody reads."""
    matrix = matrix_of(rng, 400, extra=3)
    given = operands_of(rng, matrix, heads, k, 8, "all")
    given["query"] *= 3 / np.sqrt(k)
    ct = rng.normal(size=(NODES + 3, heads * 8)).astype(np.float16)
    with setting(implementation, dtype):
        typed = {
            name: jnp.asarray(x, "float32" if name == "shift" else dtype)
            for name, x in given.items()
        }

        @jax.jit
        def call(given: Any) -> Any:
            y, pull = jax.vjp(lambda x: ours(matrix, heads, x), given)
            return y, pull(jnp.asarray(ct, y.dtype))[0]

        got = call(typed)
        for one, other in zip(*map(jax.tree.leaves, (got, call(typed))), strict=True):
            np.testing.assert_array_equal(one, other)
    with jax.enable_x64(True):
        exact = {name: jnp.asarray(np.asarray(x, np.float64)) for name, x in typed.items()}
        y, pull = jax.vjp(lambda x: definition(matrix, heads, x), exact)
        want = y, pull(jnp.asarray(np.asarray(jnp.asarray(ct, dtype), np.float64)))[0]
        tolerance = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 5e-3}[dtype]
        for one, other in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            assert_close(np.asarray(one, np.float64), other, tolerance, f"{dtype}, {one.shape}")


@pytest.mark.skipif("cuda" not in (*KERNELS, PLATFORM), reason="of kernels on CUDA")
def test_launches_are_kernels(rng: np.random.Generator) -> None:
    """One pass each way, in which keys are values, and records read no rows."""
    matrix = matrix_of(rng, 300)
    given = jax.tree.map(jnp.asarray, operands_of(rng, matrix, 1, 64, 64, "same"))
    with setting("cuda", "float32"):
        given = {name: x.astype(jnp.float32) for name, x in given.items()}
        loss = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(ours(matrix, 1, x)))))
        text = loss.lower(given).as_text()
    assert "has_y = false" in text
    assert "same = true" in text


def test_no_edges(rng: np.random.Generator) -> None:
    matrix = matrix_of(rng, 0)
    given = operands_of(rng, matrix, 1, 4, 4, "same")
    assert not np.asarray(ours(matrix, 1, jax.tree.map(jnp.float32, given))).any()
