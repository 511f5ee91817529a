"""Scores of edges with relations: the kernel beside the dots, whatever widths and ids are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import assert_close, setting, wide
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM, TOLERANCE

from jax_gnn import RelationalGraph
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_attention.primitive import Scored, typed_scores

NODES, RELATIONS, SLOPE = 40, 5, 0.2
WIDTHS = [(1, 1), (3, 5), (8, 4), (16, 17), (64, 64), (130, 33)]  # of x, and of a head of values


def matrix_of(rng: np.random.Generator, edges: int) -> tuple[RelationalMatrix, np.ndarray]:
    """With padding, and the relation of each source pair."""
    src, dst = rng.geometric(0.1, edges) % NODES, rng.integers(NODES, size=edges)
    rel = rng.integers(RELATIONS, size=edges)
    graph = RelationalGraph.from_triples(src, rel, dst, NODES, RELATIONS).with_parts()
    sizes = {"num_src_pairs": graph.pair_src.num_pairs + 2}
    padded = graph.pad(num_nodes=NODES + 2, num_edges=graph.num_edges + 5, **sizes)
    types = np.repeat(np.arange(RELATIONS), np.asarray(graph.pair_src.sizes))
    return padded.matrix(weighted=True), np.append(types, [-1, -1]).astype(np.int32)


def floats_of(
    rng: np.random.Generator, matrix: RelationalMatrix, heads: int, k: int, n: int
) -> list[np.ndarray]:
    """Values, their vectors, x and its vectors."""
    assert matrix.pair_src is not None
    shapes = [(matrix.pair_src.num_pairs, heads * n), (RELATIONS, heads * n)]
    return [rng.normal(size=s) for s in (*shapes, (NODES + 2, k), (RELATIONS, heads, k))]


def picked(x: Any, ids: np.ndarray) -> Any:
    """Rows, zeros where an id is out of range."""
    valid = (ids >= 0) & (ids < len(x))
    rows = jnp.asarray(x)[np.where(valid, ids, 0)]
    return jnp.where(valid.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def dots(matrix: RelationalMatrix, x: Any, of_x: Any) -> Any:
    """Of the destinations."""
    rows, types = np.asarray(matrix.nodes.by_row.rows), np.asarray(matrix.types)
    return jnp.sum(picked(x, rows)[:, None] * picked(of_x, types), -1)


def scores(matrix: RelationalMatrix, value: Any, of_value: Any, x: Any, of_x: Any) -> Any:
    """In plain jax.numpy, with arrays of edges; 0 for padding."""
    assert matrix.from_pairs is not None
    cols, types = np.asarray(matrix.from_pairs.by_row.cols), np.asarray(matrix.types)
    terms = picked(value, cols) * picked(of_value, types)
    heads = of_x.shape[1]
    z = dots(matrix, x, of_x) + terms.reshape(len(terms), heads, -1).sum(-1)
    return jnp.where(z > 0, z, SLOPE * z)


def valid(matrix: RelationalMatrix) -> np.ndarray:
    """Edges that are no padding: what scores others have does not matter."""
    assert matrix.from_pairs is not None
    csr, types = matrix.from_pairs.by_row, np.asarray(matrix.types)
    is_edge = np.asarray(csr.valid(matrix.from_pairs.by_col.num_rows))
    return is_edge & (types >= 0) & (types < RELATIONS)


def operands_of(matrix: RelationalMatrix, types: Any, floats: list[Any]) -> Scored:
    value, of_value, x, of_x = floats
    at_dst = dots(matrix, x, of_x).astype(jnp.promote_types(x.dtype, jnp.float32))
    return Scored(value, of_value, x, of_x, at_dst, types, matrix)


@jax.jit
def call(operands: Scored) -> Any:
    heads = operands.of_x.shape[1]
    return typed_scores(*operands, heads=heads, slope=SLOPE)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("heads", [1, 3])
def test_values(rng, heads, dtype, implementation):
    for k, n in WIDTHS:
        matrix, types = matrix_of(rng, 300)
        floats = floats_of(rng, matrix, heads, k, n)
        with setting(implementation, dtype):
            typed = [jnp.asarray(x, dtype) for x in floats]
            got = call(operands_of(matrix, types, typed))
            assert got.dtype == jnp.promote_types(dtype, jnp.float32)
            want = scores(matrix, *wide(typed))
            tolerance = max(TOLERANCE[dtype], 1e-5 if dtype == "bfloat16" else 0)
            is_edge = valid(matrix)
            assert_close(got[is_edge], np.asarray(want)[is_edge], tolerance, f"{k} and {n}")


@pytest.mark.skipif("cuda" not in (*KERNELS, PLATFORM), reason="there is a kernel on CUDA alone")
def test_the_kernel_and_any_ids(rng):
    """No edges, ids of any size, and rows that nobody names."""
    matrix, types = matrix_of(rng, 300)
    floats = floats_of(rng, matrix, 2, 8, 4)
    with setting("cuda", "float32"):
        typed = [jnp.asarray(x, jnp.float32) for x in floats]
        operands = operands_of(matrix, types, typed)
        assert "typed_scores" in call.lower(operands).as_text()
        want = call(operands)
        np.testing.assert_array_equal(call(operands), want)
        assert not np.asarray(want)[~valid(matrix)].any()

        def corrupt(ids: Any) -> Any:
            if not jnp.issubdtype(ids.dtype, jnp.integer):
                return ids
            extremes = np.array([-(2**31), 2**31 - 1, -1, 10**6], np.int32)
            at = rng.choice(ids.size, min(ids.size, 20), replace=False)
            flat = np.array(ids).ravel()
            flat[at] = rng.choice(extremes, len(at))
            return jnp.asarray(flat.reshape(ids.shape))

        broken = jax.tree.map(corrupt, matrix)
        got = np.asarray(call(operands._replace(matrix=broken)))
        assert np.isfinite(got).all()
        named = valid(broken) & (np.asarray(broken.types) == np.asarray(matrix.types))
        for part in ("rows", "cols"):
            ours, theirs = (
                np.asarray(getattr(m.from_pairs.by_row, part)) for m in (broken, matrix)
            )
            named &= ours == theirs
        np.testing.assert_array_equal(got[named], np.asarray(want)[named])
        assert not got[~valid(broken)].any()
    nothing, types = matrix_of(rng, 0)
    with setting("cuda", "float32"):
        floats = [jnp.asarray(x, jnp.float32) for x in floats_of(rng, nothing, 2, 8, 4)]
        assert not call(operands_of(nothing, types, floats)).any()


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_derivatives(rng, slope):
    """Of the destinations' part those of what it is handed: ``at_dst``."""
    matrix, types = matrix_of(rng, 60)
    is_edge = jnp.asarray(valid(matrix))[:, None]
    with jax.enable_x64(True):
        value, of_value, x, of_x = (jnp.asarray(a) for a in floats_of(rng, matrix, 2, 3, 4))
        at_dst = dots(matrix, x, of_x)
        options: dict[str, Any] = {"heads": 2, "slope": slope}

        def ours(value: Any, of_value: Any, at_dst: Any) -> Any:
            operands = value, of_value, x, of_x, at_dst, types, matrix
            return jnp.sum(jnp.sin(jnp.where(is_edge, typed_scores(*operands, **options), 0)))

        def plain(value: Any, of_value: Any, at_dst: Any) -> Any:
            assert matrix.from_pairs is not None
            cols, of = np.asarray(matrix.from_pairs.by_row.cols), np.asarray(matrix.types)
            terms = picked(value, cols) * picked(of_value, of)
            z = at_dst + terms.reshape(len(terms), 2, -1).sum(-1)
            return jnp.sum(jnp.sin(jnp.where(is_edge, jnp.where(z > 0, z, slope * z), 0)))

        operands = value, of_value, at_dst

        def second(function: Any) -> Any:
            gradient = jax.grad(function, (0, 1, 2))
            return jax.jvp(gradient, operands, tuple(map(jnp.cos, operands)))

        for got, want in zip(
            *(jax.tree.leaves(jax.jit(lambda f=f: second(f))()) for f in (ours, plain)), strict=True
        ):
            assert_close(got, want, 1e-10, "derivatives")
