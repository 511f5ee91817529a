"""Edges in tiles, and the CUDA kernel that sums typed edges by them."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_gnn._core import ffi
from jax_gnn._core.csr import Csr
from jax_gnn._core.op import Operand
from jax_gnn._core.tiles import ITEM_COST, TILE_ROWS, Tiles, build_tiles
from jax_gnn._ops.relational_aggregate.tiles import tiles_call

TARGETS = [
    name
    for name in ffi.STATUS["cuda"].targets
    if name in ("relational_aggregate", "emulated_relational_aggregate")
]
needs_kernel = pytest.mark.skipif(
    not TARGETS or not (emulation.WANTED or jax.default_backend() == "gpu"),
    reason="CUDA kernels are neither emulated nor on a GPU here",
)


class Edges:
    """Edges by destination, and in any order of weights."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        count: int = 300,
        num_rows: int = 150,
        num_cols: int = 40,
        num_types: int = 5,
        hub: int = 0,
        one_type: bool = False,
        ordered: bool = False,
    ) -> None:
        self.num_cols, self.num_types = num_cols, num_types
        rows = rng.integers(0, num_rows, count)
        rows[:hub] = num_rows // 2
        types = rng.integers(0, num_types, count)
        if one_type:
            types[:] = num_types - 1
        cols = rng.integers(0, num_cols, count)
        by = np.lexsort([cols, types, rows])
        order = rng.permutation(count) if ordered else None
        rows, cols, types = rows[by], cols[by], types[by]
        self.csr = Csr(
            *(ids if ids is None else ids.astype(np.int32) for ids in (rows, cols, order)),
            num_rows=num_rows,
        )
        self.types = np.empty(count, np.int32)
        self.types[np.arange(count) if order is None else order] = types

    def tiles(self, **options: Any) -> Tiles:
        return build_tiles(
            self.csr, self.types, num_cols=self.num_cols, num_types=self.num_types, **options
        )

    def valid_edges(self) -> tuple[Any, ...]:
        """Destination, relation, source and weight of all edges that are no padding."""
        rows, cols = np.asarray(self.csr.rows), np.asarray(self.csr.cols)
        order = np.arange(len(rows)) if self.csr.order is None else np.asarray(self.csr.order)
        good = (rows >= 0) & (rows < self.csr.num_rows) & (cols >= 0) & (cols < self.num_cols)
        rows, cols, order = rows[good], cols[good], order[good]
        types = np.asarray(self.types)[order]
        good = (types >= 0) & (types < self.num_types)
        return rows[good], types[good], cols[good], order[good]


def assert_tiles(edges: Edges, tiles: Tiles) -> None:
    """All that kernels count on."""
    rows, cols, order, items, starts = (
        np.asarray(getattr(tiles, f.name)) for f in fields(tiles) if f.name != "num_rows"
    )
    assert all(ids.dtype == np.int32 for ids in (rows, cols, order, items, starts))
    want_rows, want_types, want_cols, want_order = edges.valid_edges()
    by = np.lexsort([want_order, want_rows, want_types, want_rows // TILE_ROWS])
    if edges.csr.order is not None:  # edges of one kind stay in their order
        by = np.lexsort([np.arange(len(by)), want_rows, want_types, want_rows // TILE_ROWS])
    count = len(want_rows)
    for got, want in ((rows, want_rows), (cols, want_cols), (order, want_order)):
        np.testing.assert_array_equal(got[:count], want[by])
        assert np.all(got[count:] == -1)
    real = items[items[:, 0] >= 0]
    assert np.all(items[len(real) :, 0] == -1)
    assert np.all(np.diff(real[:, 0]) >= 0)
    num_tiles = -(-edges.csr.num_rows // TILE_ROWS)
    np.testing.assert_array_equal(np.unique(real[:, 0]), np.arange(num_tiles))
    assert np.all(real[1:, 2] == real[:-1, 3]) and np.all(items[:, 2] <= items[:, 3])
    assert real[0, 2] == 0 and real[-1, 3] == count
    item = np.repeat(np.arange(len(real)), real[:, 3] - real[:, 2])
    np.testing.assert_array_equal(real[item, 0], rows[:count] // TILE_ROWS)
    np.testing.assert_array_equal(real[item, 1], want_types[by])
    assert starts[0] == 0 and starts[-1] == len(real) and np.all(np.diff(starts) >= 0)


SHAPES: dict[str, dict[str, Any]] = {
    "many": {"count": 2000, "num_rows": 400},
    "hub": {"hub": 250, "num_types": 3},
    "one relation": {"one_type": True},
    "any order": {"ordered": True},
    "no edges": {"count": 0},
    "one destination": {"num_rows": 1, "count": 700, "num_types": 2},
    "more relations than edges": {"num_types": 1000, "count": 100},
}


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_plan(rng: np.random.Generator, options: dict[str, Any]) -> None:
    edges = Edges(rng, **options)
    for corrupt in (False, True):
        if corrupt and options.get("count") != 0:
            cols, types = np.array(edges.csr.cols), np.array(edges.types)
            cols[rng.integers(0, len(cols), 5)] = rng.choice([-1, 10**6, -(2**31)], 5)
            types[rng.integers(0, len(cols), 5)] = rng.choice([-1, 10**6, 2**31 - 1], 5)
            edges.csr, edges.types = replace(edges.csr, cols=cols), types
        for num_shares in (None, 1, 7):
            plan = edges.tiles(num_shares=num_shares)
            assert_tiles(edges, plan)
            costs = [
                sum(item[3] - item[2] + ITEM_COST for item in plan.items[begin:end])
                for begin, end in zip(plan.starts[:-1], plan.starts[1:], strict=True)
            ]
            assert max(costs) <= sum(costs) / len(costs) + 2 * ITEM_COST + 2 * 32

    @jax.jit
    def traced(csr: Csr, types: Any) -> Tiles:
        return build_tiles(
            csr, types, num_cols=edges.num_cols, num_types=edges.num_types, num_shares=7
        )

    assert_tiles(edges, traced(edges.csr, edges.types))


def aggregate(
    x: Any, rhs: Any, tiles: Tiles, *, weight: Any = None, bias: Any = None, **options: Any
) -> Any:
    """Calls the kernel."""

    def operand(array: Any) -> Operand | None:
        if array is None:
            return None
        array = jnp.asarray(array)
        return Operand(jax.core.ShapedArray(array.shape, array.dtype), lambda ctx: array)

    options = {
        "transposed": False,
        "precision": jax.lax.Precision.HIGHEST,
        "dtype": x.dtype,
    } | options
    matrix = SimpleNamespace(
        tiles=Tiles(
            *(operand(getattr(tiles, f.name)) for f in fields(tiles) if f.name != "num_rows"),
            num_rows=tiles.num_rows,
        )
    )
    operands = SimpleNamespace(
        x=operand(x), rhs=operand(rhs), weight=operand(weight), matrix=matrix
    )
    call = tiles_call(operands, bias=operand(bias), **options)
    assert call is not None
    n = rhs.shape[1 if options["transposed"] else 2]
    result = jax.ShapeDtypeStruct((tiles.num_rows, n), options["dtype"])
    function = jax.ffi.ffi_call(ffi.TARGET_PREFIX + TARGETS[0], [result, *call.workspaces])
    return function(*(each.lower(None) for each in call.operands), **call.attributes)[0]


def reference(
    edges: Edges, x: Any, rhs: Any, weight: Any = None, bias: Any = None, transposed: bool = False
) -> np.ndarray[Any, Any]:
    x, rhs = np.asarray(x, np.float64), np.asarray(rhs, np.float64)
    if transposed:
        rhs = np.swapaxes(rhs, 1, 2)
    out = np.zeros((edges.csr.num_rows, rhs.shape[2]))
    rows, types, cols, order = edges.valid_edges()
    for row, kind, col, place in zip(rows, types, cols, order, strict=True):
        factor = 1.0 if weight is None else float(weight[place])
        out[row] += factor * (x[col] @ rhs[kind])
    return out if bias is None else out + np.asarray(bias, np.float64)


@needs_kernel
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    ("dtype", "k", "n", "tolerance"),
    [
        (np.float32, 16, 8, 1e-5),
        (np.float64, 5, 33, 1e-12),
        (np.float64, 128, 128, 1e-12),
        (jnp.bfloat16, 9, 70, 2e-2),
        (np.float16, 40, 3, 4e-3),
    ],
)
def test_value(
    rng: np.random.Generator, options: dict[str, Any], dtype: Any, k: int, n: int, tolerance: float
) -> None:
    with jax.enable_x64(np.dtype(dtype) == np.float64):
        edges = Edges(rng, **options)
        acc = np.float64 if np.dtype(dtype) == np.float64 else np.float32
        x = rng.standard_normal((edges.num_cols, k)).astype(dtype)
        rhs = rng.standard_normal((edges.num_types, k, n)).astype(dtype)
        weight = rng.standard_normal(len(edges.types)).astype(acc)
        bias = rng.standard_normal(n).astype(dtype)
        transposed = bool(rng.integers(2))
        w = np.ascontiguousarray(np.swapaxes(rhs, 1, 2)) if transposed else rhs
        for num_shares in (1, int(rng.integers(2, 60))):
            for scales, added in ((None, bias), (weight, None)):
                got = aggregate(
                    x,
                    w,
                    edges.tiles(num_shares=num_shares),
                    weight=scales,
                    bias=added,
                    transposed=transposed,
                    dtype=np.dtype(acc if num_shares == 1 else dtype),
                )
                want = reference(edges, x, rhs, scales, added)
                error = np.linalg.norm(np.asarray(got, np.float64) - want)
                assert error <= tolerance * max(np.linalg.norm(want), 1e-30)


@needs_kernel
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("k", "n"), [(32, 64), (64, 64), (64, 128), (128, 100), (128, 128), (24, 65), (40, 7), (7, 9)]
)
def test_rounded_products(rng: np.random.Generator, dtype: Any, k: int, n: int) -> None:
    """All shapes of the kernels with matrix instructions, on GPUs that have them."""
    edges = Edges(rng, count=500, num_rows=200, hub=120, num_types=4)
    x = rng.standard_normal((edges.num_cols, k)).astype(dtype)
    rhs = rng.standard_normal((edges.num_types, k, n)).astype(dtype)
    weight = rng.standard_normal(len(edges.types)).astype(np.float32)
    bias = rng.standard_normal(n).astype(dtype)
    want = reference(edges, x, rhs, weight, bias)
    tiles = edges.tiles(num_shares=9)
    for transposed in (False, True):
        w = np.ascontiguousarray(np.swapaxes(rhs, 1, 2)) if transposed else rhs
        options = {"transposed": transposed, "precision": jax.lax.Precision.DEFAULT}
        got = aggregate(x, w, tiles, weight=weight, bias=bias, **options)
        error = np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)
        assert error < (1e-3 if dtype is np.float32 else 1e-2)


@needs_kernel
def test_padding_and_bits(rng: np.random.Generator) -> None:
    """Of what is out of range nothing is read; activations; the same bits on every run."""
    edges = Edges(rng, count=3000, num_rows=500, hub=900)
    cols, types = np.array(edges.csr.cols), np.array(edges.types)
    weight = rng.standard_normal(3000).astype(np.float32)
    bad = rng.integers(0, 3000, 40)
    cols[bad[:20]], types[bad[20:]], weight[bad] = 10**8, -7, np.nan
    edges.csr, edges.types = replace(edges.csr, cols=cols), types
    x = rng.standard_normal((edges.num_cols, 12)).astype(np.float32)
    rhs = rng.standard_normal((edges.num_types, 12, 20)).astype(np.float32)
    tiles = edges.tiles(num_shares=100)
    # Also padding that stands among the edges, as kernels drop what builders do not.
    scattered = np.array(tiles.cols)
    dropped = rng.integers(0, 2900, 30)
    scattered[dropped] = rng.choice([-1, 41, 2**31 - 1, -(2**31)], 30)
    holes = replace(tiles, cols=scattered)
    clean = np.array(weight)
    clean[tiles.order[dropped]] = 0
    for activation in ("relu", "tanh"):
        got = aggregate(x, rhs, holes, weight=weight, activation=activation)
        want = reference(edges, x, rhs, np.nan_to_num(clean))
        want = np.maximum(want, 0) if activation == "relu" else np.tanh(want)
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
        again = aggregate(x, rhs, holes, weight=weight, activation=activation)
        assert np.asarray(got).tobytes() == np.asarray(again).tobytes()


@needs_kernel
@pytest.mark.parametrize("num_shares", [1, 70])
def test_corrupt_plans_are_survived(rng: np.random.Generator, num_shares: int) -> None:
    edges = Edges(rng, count=400, num_rows=300)
    x = rng.standard_normal((edges.num_cols, 4)).astype(np.float32)
    rhs = rng.standard_normal((edges.num_types, 4, 4)).astype(np.float32)
    plan = edges.tiles(num_shares=num_shares)
    for _ in range(6):
        name = rng.choice(["rows", "cols", "order", "items", "starts"])
        ids = np.array(getattr(plan, name))
        wild = rng.choice([-(2**31), -1, 0, 1, 2, 3, 64, 300, 2**31 - 1], ids.shape)
        ids = np.where(rng.random(ids.shape) < rng.choice([0.02, 0.3, 1]), wild, ids)
        weight = np.ones(400, np.float32)
        broken = replace(plan, **{name: ids.astype(np.int32)})
        assert aggregate(x, rhs, broken, weight=weight).shape == (300, 4)
