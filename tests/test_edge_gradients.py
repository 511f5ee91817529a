"""All gradients of attention over edges together: the ops, and the kernels that have one launch."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SLOPE, Case, check_gradients, on_cuda
from op_spec import assert_close, same_bits, setting, wide
from primitive_cases import ids

from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._ops.attention.primitive import Cotangents, attend
from jax_gnn._ops.attention.primitive import gradients as back
from jax_gnn._ops.attention.scores import Dots, Ends, Leaky

OF_KEYS = "gatv2", "gatv2 of values", "dot", "dot of values"
KINDS = "gat", *OF_KEYS
NAMES = "value", "left", "right", "factor"  # gradients, of "gat" all but the last
TOLERANCE = {"float32": 3e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 0.06}


class Edges(NamedTuple):
    """Of a matrix with padding that looks like entries by row, by column, or neither."""

    rows: np.ndarray
    cols: np.ndarray
    num_rows: int
    num_cols: int
    is_padding: np.ndarray

    @property
    def matrix(self) -> SparseMatrix:
        rows, cols, padding = self.rows, self.cols, self.is_padding
        count = len(rows)
        by_row = np.where(padding, np.where(np.arange(count) % 2, -1, self.num_cols), cols)
        # Of half of the padding the column is known by column, of the rest it is not.
        known = np.where(padding & (np.arange(count) % 3 == 0), -1, cols)
        order = np.argsort(known, kind="stable")
        by_col = np.where(padding, self.num_rows + 5, rows)[order]
        return SparseMatrix(
            Csr(ids(*rows), ids(*by_row), num_rows=self.num_rows),
            Csr(ids(*known[order]), ids(*by_col), ids(*order), num_rows=self.num_cols),
        )


def edges_of(rng: np.random.Generator, graph: str, count: int) -> Edges:
    num_rows, num_cols = (int(n) for n in rng.integers(1, min(2 * count, 70) + 1, 2))
    rows, cols = rng.integers(0, num_rows, count), rng.integers(0, num_cols, count)
    if graph == "rows of many":
        rows = np.where(rng.random(count) < 0.7, num_rows // 2, rows)
    elif graph == "columns of many":
        cols = np.where(rng.random(count) < 0.7, num_cols // 2, cols)
    elif graph == "one row":
        rows[:], cols[:] = num_rows // 2, num_cols - 1
    elif graph == "sparse":
        rows, cols = rows // 7 * 7, cols // 5 * 5
    rows = np.sort(rows)
    return Edges(rows, cols, num_rows, num_cols, rng.random(count) < rng.choice([0, 0.2]))


def operands_of(
    rng: np.random.Generator, kind: str, edges: Edges, heads: int, features: int
) -> tuple[Any, ...]:
    """Of the forward pass, but for the matrix, in float64."""
    width = heads * features

    def rows(size: int) -> np.ndarray:
        return rng.normal(size=(size, width)) / features**0.25

    scale = rng.uniform(0.5, 2, (len(edges.rows), heads)) if rng.random() < 0.5 else None
    value = rows(edges.num_cols)
    if kind == "gat":
        scores = (2 * rng.normal(size=(size, heads)) for size in (edges.num_rows, edges.num_cols))
        return value, Ends(*scores), scale
    ends = rows(edges.num_rows), None if kind.endswith("values") else rows(edges.num_cols)
    if kind.startswith("dot"):
        return value, Dots(*ends, np.full((1, 1), 0.75)), scale
    return value, Leaky(*ends, rows(1)), scale


def case_of(kind: str, edges: Edges, operands: Any, heads: int) -> Case:
    """In numpy, of edges that count."""
    value, scores, scale = jax.tree.map(lambda x: wide([x])[0], operands)
    left, right = scores.row, value if scores.col is None else scores.col
    if kind != "gat":
        left, right = (x.reshape(len(x), heads, -1) for x in (left, right))
    factor = scores.vector.reshape(heads, -1) if isinstance(scores, Leaky) else 0.75
    at = ~edges.is_padding
    value = value.reshape(len(value), heads, -1)
    scale = 1 if scale is None else scale[at]
    ends = edges.rows[at], edges.cols[at]
    return Case(kind.split()[0], *ends, value, left, right, factor, scale)


def cotangents_of(
    rng: np.random.Generator, edges: Edges, heads: int, features: int
) -> tuple[np.ndarray, np.ndarray | None]:
    ct = rng.normal(size=(edges.num_rows, heads * features))
    return ct, rng.normal(size=(edges.num_rows, heads)) if rng.random() < 0.5 else None


def results_of(case: Case, dtype: str) -> list[np.ndarray]:
    """What attention gives, as kernels have it."""
    y, lse, _ = case.results()
    empty = np.isneginf(lse)
    stats = np.stack([np.where(empty, 0, lse), np.where(empty, np.inf, 0)], -1)
    acc = np.float64 if dtype == "float64" else np.float32
    return [y.reshape(len(y), -1).astype(jnp.dtype(dtype)), stats.astype(acc)]


@functools.partial(jax.jit, static_argnums=1)
def gradients(operands: Cotangents, heads: int) -> Any:
    return back(*operands, heads=heads, slope=SLOPE, whole=True)[:4]


def check(
    kind: str, case: Case, got: Any, y: Any, ct: Any, log_sum_ct: Any, tolerance: float
) -> None:
    """Gradients, of which those that are absent have no rows."""
    shapes = {"value": case.value.shape, "left": case.left.shape, "right": case.right.shape}
    shapes["factor"] = np.shape(case.factor)
    found = [
        (n, x.reshape(shapes[n]))
        for n, x in zip(NAMES, got, strict=False)
        if x is not None and x.size
    ]
    names, values = zip(*found, strict=True)
    is_key = kind.endswith("values")
    assert not (is_key and "right" in names)
    y, ct = (x.reshape(len(x), *case.value.shape[1:]) for x in (y, ct))
    same = "value" if is_key else ""
    check_gradients(case, names, values, y, ct, tolerance, log_sum_ct, same=same)


def typed(operands: Any, dtype: str) -> Any:
    """In the dtype, or the accumulator's."""
    acc = np.dtype(np.float64 if dtype == "float64" else np.float32)
    value, scores, scale = jax.tree.map(lambda x: x.astype(acc), operands)
    if not isinstance(scores, Ends):
        keys = {"row": scores.row, "col": scores.col}
        scores = replace(scores, **jax.tree.map(lambda x: x.astype(jnp.dtype(dtype)), keys))
    return value.astype(jnp.dtype(dtype)), scores, scale


def is_one_launch(operands: Any, heads: int) -> bool:
    text = gradients.lower(operands, heads).as_text()
    return emulation.target("attention_vjp") in text and "whole = true" in text


each_kind = pytest.mark.parametrize("kind", KINDS)
GRAPHS = [
    *(("even", 1), ("even", 48), ("even", 700), ("sparse", 49), ("one row", 130)),
    *(("rows of many", 300), ("columns of many", 300), ("rows of many", 1700)),
]
WIDTHS = [
    *(("float32", 1, 64), ("float32", 8, 8), ("float32", 1, 20), ("float32", 16, 4)),
    *(("float32", 3, 16), ("float32", 2, 64), ("float16", 1, 64), ("float16", 8, 16)),
    *(("bfloat16", 8, 8), ("bfloat16", 1, 72), ("float64", 1, 32), ("float64", 8, 4)),
]


@on_cuda
@pytest.mark.parametrize(
    ("kind", "dtype", "heads", "features", "graph", "count"),
    [
        (kind, *widths, *graph)
        for i, kind in enumerate(KINDS)
        for j, widths in enumerate(WIDTHS)
        for k, graph in enumerate(GRAPHS)
        if (i + j + k) % 3 == 0
    ],
)
def test_one_launch(
    rng: np.random.Generator,
    kind: str,
    dtype: str,
    heads: int,
    features: int,
    graph: str,
    count: int,
) -> None:
    """Rows and columns that span blocks, some without edges; no padding is read."""
    edges = edges_of(rng, graph, count)
    matrix, counted = edges.matrix, ~edges.is_padding
    operands = typed(operands_of(rng, kind, edges, heads, features), dtype)
    ct, log_sum_ct = cotangents_of(rng, edges, heads, features)
    case = case_of(kind, edges, operands, heads)
    y, stats = results_of(case, dtype)
    of_log_sum = None if log_sum_ct is None else log_sum_ct.astype(stats.dtype)
    results = y.copy(), stats, None, ct.astype(y.dtype), of_log_sum
    every = Cotangents(*operands, *results, matrix)
    ct = every.ct.copy()
    # What nobody reads may hold anything.
    no_row = np.setdiff1d(np.arange(edges.num_rows), edges.rows[counted])
    no_col = np.setdiff1d(np.arange(edges.num_cols), edges.cols[counted])
    keys = () if kind == "gat" else (every.scores.row, every.scores.col)
    arrays = every.ct, every.value, every.y, *keys
    for array, rows in zip(arrays, (no_row, no_col, no_row, no_row, no_col), strict=False):
        if array is not None:
            array[rows] = np.nan
    with setting("cuda", dtype):
        assert is_one_launch(every, heads)
        got = gradients(every, heads)
        assert same_bits(got, gradients(every, heads))
    check(kind, case, got, y, ct, of_log_sum, TOLERANCE[dtype])
    for one, none in zip(got, (no_col, no_row, no_col), strict=False):
        assert one is None or not one.size or not np.any(np.asarray(one)[none])


@on_cuda
@each_kind
def test_a_row_of_many_blocks(rng: np.random.Generator, kind: str) -> None:
    """It is handed on by relays."""
    count, heads, features = 5000, 1, 8
    edges = Edges(
        np.sort(np.where(rng.random(count) < 0.7, 7, rng.integers(0, 30, count))),
        np.where(rng.random(count) < 0.7, 5, rng.integers(0, 20, count)),
        *(30, 20, np.zeros(count, bool)),
    )
    operands = typed(operands_of(rng, kind, edges, heads, features), "float64")
    ct, log_sum_ct = cotangents_of(rng, edges, heads, features)
    case = case_of(kind, edges, operands, heads)
    y, stats = results_of(case, "float64")
    every = Cotangents(*operands, y, stats, None, ct, log_sum_ct, edges.matrix)
    with setting("cuda", "float64"):
        got = gradients(every, heads)
        assert same_bits(got, gradients(every, heads))
    check(kind, case, got, y, ct, log_sum_ct, 1e-11)


@on_cuda
@each_kind
def test_other_compositions(rng: np.random.Generator, kind: str) -> None:
    """Of many edges, of mostly empty rows, in an order, and of heads that no team holds."""

    def shapes(
        count: int, size: int, heads: int = 1, features: int = 64, ordered: bool = False
    ) -> tuple[Any, int]:
        edges = Edges(*(np.zeros(1, np.int64),) * 2, size, size, np.zeros(1, bool))
        each = operands_of(rng, kind, edges, heads, features)
        entries = jax.ShapeDtypeStruct((count,), np.int32)
        by_row = Csr(entries, entries, entries if ordered else None, num_rows=size)
        matrix = SparseMatrix(by_row, Csr(entries, entries, entries, num_rows=size))
        y, stats = (size, heads * features), (size, heads, 2)
        cotangents = (jax.ShapeDtypeStruct(shape, np.float32) for shape in (y, stats, y))
        each = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, np.float32), each[:2])
        y, stats, ct = cotangents
        return Cotangents(*each, None, y, stats, None, ct, None, matrix), heads

    with setting("cuda"):
        assert is_one_launch(*shapes(1 << 15, 1000))
        assert not is_one_launch(*shapes((1 << 15) + 1, 1000))
        assert not is_one_launch(*shapes(1 << 14, 1000, heads=4))
        small = {"heads": 8, "features": 8}
        assert is_one_launch(*shapes(1 << 14, 1000, **small))
        assert is_one_launch(*shapes(1 << 15, 1000, **small)) == (kind != "gat")
        assert not is_one_launch(*shapes(500, 1001))
        assert not is_one_launch(*shapes(0, 0))
        assert not is_one_launch(*shapes(1000, 1000, features=128))
        assert not is_one_launch(*shapes(1000, 1000, heads=3, features=6))
        assert not is_one_launch(*shapes(1000, 1000, ordered=True))


@on_cuda
@pytest.mark.parametrize("heads", [1, 2])
def test_masked_edges(rng: np.random.Generator, heads: int) -> None:
    """Scores of -inf leave edges out, and destinations that have no others."""
    edges = edges_of(rng, "even", 90)
    value, scores, _ = operands_of(rng, "gat", edges, heads, 4)
    row_score, col_score = scores.row, scores.col
    row_score[::3], col_score[::2] = -np.inf, -np.inf
    ct, _ = cotangents_of(rng, edges, heads, 4)

    def total(value: Any, row_score: Any, col_score: Any) -> Any:
        operands = value, Ends(row_score, col_score), None, edges.matrix
        return jnp.sum(attend(*operands, heads=heads, slope=SLOPE)[0] * ct)

    gradient = jax.jit(jax.grad(total, (0, 1, 2)))
    with setting("xla", "float64"):
        want = gradient(value, row_score, col_score)
    with setting("cuda", "float64"):
        got = gradient(value, row_score, col_score)
    for name, one, other in zip(NAMES[:3], got, want, strict=True):
        assert_close(one, other, 1e-12, name)
    assert not np.any(np.asarray(got[1])[::3]) and not np.any(np.asarray(got[2])[::2])


@on_cuda
@pytest.mark.parametrize("kind", ["gat", "gatv2", "dot"])
def test_large_scores(rng: np.random.Generator, kind: str) -> None:
    """Up to 10,000; weights are made of the bits that the forward pass has."""
    heads, features = 2, 8
    edges = edges_of(rng, "even", 300)
    value, scores, _ = operands_of(rng, kind, edges, heads, features)

    def rounded(x: Any) -> Any:  # what scores are made of
        return np.round(8 * x * (3000 if kind == "gat" else 30)) / 8

    scores = replace(scores, row=rounded(scores.row), col=rounded(scores.col))
    if kind == "gatv2":
        scores = replace(scores, vector=np.round(32 * scores.vector) / 8)
    if kind == "dot":
        scores = replace(scores, scale=np.full((1, 1), 2.0))
    ct, _ = cotangents_of(rng, edges, heads, features)

    def total(value: Any, moving: Any) -> Any:
        operands = value, replace(scores, **moving), None, edges.matrix
        return jnp.sum(attend(*operands, heads=heads, slope=SLOPE)[0] * ct)

    def run(dtype: str) -> Any:
        names = [name for name in scores.moving if name != "scale"]
        moving = value, {name: getattr(scores, name) for name in names}
        typed = jax.tree.map(lambda x: x.astype(dtype), moving)
        return jax.tree.leaves(jax.jit(jax.grad(total, (0, 1)))(*typed))

    with setting("xla", "float64"):
        want = run("float64")
    with setting("cuda"):
        got = run("float32")
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        assert_close(one, other, 1e-4, f"{i}")
