"""Segmented matrix products: shared checks of the ops and their variants, and tests of options."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from op_spec import (
    OUT_OF_RANGE,
    Case,
    OpSpec,
    all_pairs,
    assert_close,
    same_bits,
    setting,
    stack,
    wide,
)
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM, TOLERANCE, CoreChecks, OpSuite, check_vmap

import jax_gnn
from jax_gnn import segment_matmul, segment_outer
from jax_gnn.schedules import MatmulSchedule, use

EXACT = jax.lax.Precision.HIGHEST  # float32 on every platform
K = 5
OFFSET, UNHELD = 2, 3  # the first group with a weight, and the number of groups without one
LIMITS = np.iinfo(np.int32)

# (rows, groups) of the scenarios of op_spec.
_SIZES = {
    "no_entries": (0, 6),
    "no_left": (0, 6),
    "no_right": (9, 0),
    "more_right_than_left": (24, 31),
    "large": (15000, 50),  # enough for several threads
}


# --- Inputs --------------------------------------------------------------------------------------


def sizes_of(rng, scenario, rows: int, groups: int) -> np.ndarray:
    """Return ``(groups,)`` sizes, whose sum is the number of rows without padding."""
    if groups == 0:
        return np.zeros(0, np.int32)
    shares = rng.dirichlet(np.ones(groups))
    if scenario == "empty":  # the last group, and others
        shares[rng.permutation(groups - 1)[: groups // 2]] = shares[-1] = 0
    if scenario == "giant":
        shares = np.eye(groups)[rng.integers(groups)]
    if scenario == "padding":
        rows = rows * 2 // 3
    sizes = rng.multinomial(rows, shares / shares.sum()).astype(np.int32)
    if scenario == "duplicates":  # groups of one row
        sizes = np.ones(groups, np.int32)
        sizes[rng.integers(groups)] += rows - groups
    if scenario == "padding":  # sizes below 0 are empty groups
        where = rng.integers(groups)
        sizes[where] = rng.choice([-1, -7, LIMITS.min])
    return sizes


def membership(sizes, rows: int, first: int, groups: int) -> np.ndarray:
    """Return ``(rows, groups)``: 1 where a row belongs to a group, counted from group ``first``."""
    stops = np.minimum(np.cumsum(np.clip(sizes, 0, rows).astype(np.int64)), rows)
    result, start = np.zeros((rows, groups)), 0
    for group, stop in enumerate(stops):
        if 0 <= group - first < groups:
            result[start:stop, group - first] = 1
        start = max(start, stop)
    return result


def case_maker(
    operands: tuple[str, ...],
    ids: tuple[str, ...] = (),
    *,
    outer: bool = False,
    offset: bool = True,
    indexed: bool = False,
    transposed: bool = False,
):
    """Return a function that makes cases of a product.

    Args:
        operands: names of the float operands.
        ids: names of the arguments that are ids: any for gathers, permutations for ``out_rows``.
        outer: whether the op is `segment_outer`.
        offset: whether weights are held for some groups only.
        indexed: whether ids are instances of `SegmentIndex`.
        transposed: whether weights are transposed.
    """
    first, absent = (OFFSET, UNHELD) if offset else (0, 0)

    def make_case(rng, scenario, features) -> Case:
        rows, groups = _SIZES.get(scenario, (24, 6))
        sizes = sizes_of(rng, scenario, rows, groups + absent)
        members = membership(sizes, rows, first, groups)
        n = int(np.prod(features))
        counts = dict.fromkeys(("lhs_rows", "rhs_rows", "out_rows"), rows)
        arrays = {}
        for name in ids:
            if name != "out_rows":
                counts[name] = 0 if scenario == "no_left" else rows // 2 + 7
            repeated = rng.integers(0, max(counts[name], 1), rows)
            arrays[name] = rng.permutation(rows) if name == "out_rows" else repeated
            if scenario == "padding":
                where = rng.choice(rows, rows // 5, replace=False)
                outside = [*OUT_OF_RANGE, counts[name], counts[name] + 3]
                arrays[name][where] = rng.choice(outside, len(where))
        live = members.sum(1) > 0
        for name, array in arrays.items():
            live &= (array >= 0) & (array < counts[name])
        weights = (groups, n, K) if transposed else (groups, K, n)
        shapes = {
            "lhs": (counts["lhs_rows"], K),
            "rhs": (counts["rhs_rows"], n) if outer else weights,
            "bias": (groups, n),
            "residual": (rows, n),
            "scale": (rows,),
        }

        def padding(name):
            """Mask the rows of an operand that no row of a group reads."""
            if name == "scale":
                return ~live
            if f"{name}_rows" not in counts or (name == "rhs" and not outer):
                return None
            is_read = np.zeros(counts[f"{name}_rows"], bool)
            is_read[arrays.get(f"{name}_rows", np.arange(rows))[live]] = True
            return ~is_read[:, None]

        index = {name: array.astype(np.int32) for name, array in arrays.items()}
        if indexed:
            index = {
                name: jax.tree.map(np.asarray, jax_gnn.SegmentIndex.from_ids(array, counts[name]))
                for name, array in index.items()
            }
        if offset:
            index["offset"] = np.int32(first)
        values = tuple(rng.normal(size=shapes[name]) for name in operands)
        plain = members, arrays
        return Case({"sizes": sizes, **index}, plain, values, tuple(map(padding, operands)))

    return make_case


# --- The plain reference -------------------------------------------------------------------------

ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": lambda x: np.where(x.real > 0, x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "tanh": np.tanh,
}


def reference(members, lhs, rhs, bias=None) -> np.ndarray:
    result = np.zeros((lhs.shape[0], rhs.shape[2]), np.result_type(lhs, rhs, 0.0))
    for g, weight in enumerate(rhs):
        result += members[:, g : g + 1] * (lhs @ weight)
    return result if bias is None else result + members @ bias


def outer_reference(members, lhs, rhs) -> np.ndarray:
    columns = [(lhs * members[:, g : g + 1]).T @ rhs for g in range(members.shape[1])]
    shape = members.shape[1], lhs.shape[1], rhs.shape[1]
    return np.reshape(columns, shape) if columns else np.zeros(shape)


def gathered(x, ids) -> np.ndarray:
    """Return the rows of x at ``ids``, zeros where ids are out of range."""
    if ids is None:
        return x
    valid = (ids >= 0) & (ids < len(x))
    rows = np.concatenate([x, np.zeros((1, *x.shape[1:]))])
    return rows[np.where(valid, ids, len(x))]


def scattered(x, ids) -> np.ndarray:
    """Return row i of x at row ``ids[i]``, zeros in rows without an id."""
    if ids is None:
        return x
    places = np.full(len(x), -1)
    valid = (ids >= 0) & (ids < len(x))
    places[ids[valid]] = np.flatnonzero(valid)
    return gathered(x, places)


def product_spec(
    *operands: str,
    ids: tuple[str, ...] = (),
    outer: bool = False,
    offset: bool = True,
    indexed: bool = False,
    transposed: bool = False,
    activation: str | None = None,
    feature_axis: tuple[int | None, ...] = (),
    result_axis: int | None = None,
) -> OpSpec:
    """Describe `segment_matmul` or `segment_outer`; the options are those of `case_maker`."""
    names = "lhs", "rhs", *operands

    def function(index, *values) -> jax.Array:
        options = dict(zip(names, values, strict=True)) | {name: index[name] for name in ids}
        lhs, rhs, sizes = options.pop("lhs"), options.pop("rhs"), index["sizes"]
        options |= {"group_offset": index.get("offset"), "precision": EXACT}
        if outer:
            num_groups = len(sizes) - UNHELD if offset else None
            return segment_outer(lhs, rhs, sizes, num_groups=num_groups, **options)
        options |= {"activation": activation, "transpose_rhs": transposed}
        return segment_matmul(lhs, rhs, sizes, **options)

    def product_reference(plain, lhs, rhs, *values) -> np.ndarray:
        members, arrays = plain
        terms = dict(zip(operands, values, strict=True))
        lhs = gathered(lhs, arrays.get("lhs_rows"))
        if "scale" in terms:
            lhs = terms["scale"][:, None] * lhs
        if outer:
            return outer_reference(members, lhs, gathered(rhs, arrays.get("rhs_rows")))
        rhs = rhs.transpose(0, 2, 1) if transposed else rhs
        product = reference(members, lhs, rhs, terms.get("bias"))
        product = scattered(product, arrays.get("out_rows")) + terms.get("residual", 0)
        return ACTIVATIONS[activation](product)

    options = {"outer": outer, "offset": offset, "indexed": indexed, "transposed": transposed}
    return OpSpec(
        function=function,
        reference=product_reference,
        make_case=case_maker(names, ids, **options),
        operands=names,
        linear=() if activation or {"bias", "residual"} & {*operands} else names,
        composed=bool(ids) or bool({"scale", "residual"} & {*operands}),
        feature_axis=feature_axis,
        result_axis=result_axis,
    )


# --- The shared checks ---------------------------------------------------------------------------

LHS, RHS = np.ones((6, 3), np.float32), np.ones((2, 3, 4), np.float32)
SIZES = np.array([2, 3], np.int32)
IDS = np.arange(5)


class TestSegmentMatmul(OpSuite):
    spec = product_spec(offset=False, feature_axis=(None, 2), result_axis=1)


class TestSegmentOuter(OpSuite):
    spec = product_spec(outer=True, offset=False, feature_axis=(None, 1), result_axis=2)


class TestIds(OpSuite):
    spec = product_spec(
        "scale", ids=("lhs_rows", "out_rows"), feature_axis=(None, 2, None), result_axis=1
    )


VARIANTS = {
    "Bias": product_spec("bias", offset=False),
    "Relu": product_spec("bias", offset=False, activation="relu"),
    "Silu": product_spec("bias", offset=False, activation="silu"),
    "Gelu": product_spec("bias", offset=False, activation="gelu"),
    "Tanh": product_spec(offset=False, activation="tanh"),
    "TransposedWeights": product_spec(offset=False, transposed=True),
    "GatheredRows": product_spec(ids=("lhs_rows",), indexed=True),
    "ScatteredRows": product_spec("bias", ids=("out_rows",), activation="silu"),
    "ScaledRows": product_spec("bias", "scale", activation="tanh"),
    "GatheredOuter": product_spec(ids=("rhs_rows",), outer=True, indexed=True),
    "ScaledOuter": product_spec("scale", outer=True),
}
# Variants whose rules differ by implementation; a residual is added to rows without a product, too.
VARIANTS_EVERYWHERE = {
    "OuterIds": product_spec("scale", ids=("lhs_rows", "rhs_rows"), outer=True),
    "Offset": product_spec("bias", activation="silu"),
    "OuterOffset": product_spec(outer=True),
    "AllIds": product_spec(
        "bias", "scale", ids=("lhs_rows", "out_rows"), indexed=True, activation="gelu"
    ),
    "Residual": product_spec("bias", "residual", activation="gelu"),
    "ResidualOfIds": product_spec(
        "bias", "residual", "scale", ids=("lhs_rows", "out_rows"), activation="relu"
    ),
}
for name, spec in (VARIANTS | VARIANTS_EVERYWHERE).items():
    implementations = IMPLEMENTATIONS if name in VARIANTS_EVERYWHERE else IMPLEMENTATIONS[:1]
    attributes = {"spec": spec, "implementations": implementations}
    globals()[f"Test{name}"] = type(f"Test{name}", (CoreChecks,), attributes)


def mapped_subsets(count: int) -> list[tuple[int | None, ...]]:
    """Return all choices of axes for `jax.vmap` that map at least one operand."""
    return [axes for axes in itertools.product((None, 0), repeat=count) if 0 in axes]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_all_arguments_under_vmap(rng, implementation):
    """Compare batches of subsets that cover all pairs of arguments with a loop."""
    size, rows, inputs, groups, k, n = 3, 20, 9, 4, 3, 5
    columns = [
        rng.normal(size=(size, inputs, k)).astype(np.float32),
        rng.normal(size=(size, groups, k, n)).astype(np.float32),
        rng.normal(size=(size, groups, n)).astype(np.float32),
        rng.normal(size=(size, rows)).astype(np.float32),
        stack([sizes_of(rng, "padding", rows, groups + 2) for _ in range(size)]),
        rng.integers(-1, 4, size).astype(np.int32),
        rng.integers(-1, inputs + 1, (size, rows)).astype(np.int32),
        stack([rng.permutation(rows) for _ in range(size)]).astype(np.int32) - 1,
    ]

    def function(lhs, rhs, bias, scale, sizes, offset, lhs_rows, out_rows):
        options = {"group_offset": offset, "precision": EXACT}
        ids = {"lhs_rows": lhs_rows, "scale": scale}
        y = segment_matmul(
            lhs, rhs, sizes, bias=bias, out_rows=out_rows, activation="gelu", **ids, **options
        )
        transposed = segment_matmul(y, rhs, sizes, transpose_rhs=True, **options)
        outer = segment_outer(lhs, y, sizes, num_groups=groups, rhs_rows=out_rows, **ids, **options)
        return y, transposed, outer

    with setting(implementation):
        jitted = jax.jit(function)
        for in_axes in all_pairs(rng, mapped_subsets(len(columns))):
            check_vmap(function, jitted, in_axes, columns, TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", ["int32", "uint8", "complex64", "float8_e4m3fn", "bfloat16"])
def test_ids_of_any_dtype(rng, dtype):
    """Products with ids equal gathers and scatters outside of the op; half types widen."""
    rows, inputs, groups, k, n = 30, 11, 3, 4, 5
    lhs, rhs, scale = (
        rng.integers(0, 4, shape).astype(jnp.dtype(dtype))
        for shape in ((inputs, k), (groups, k, n), (rows,))
    )
    ids = rng.integers(-1, inputs + 1, rows)
    places = rng.permutation(rows) - 1
    sizes = sizes_of(rng, "padding", rows, groups)
    members = membership(sizes, rows, 0, groups)
    widest = {"bfloat16": jnp.float32, "float8_e4m3fn": jnp.float32}.get(dtype)
    options = {"preferred_element_type": widest, "scale": scale}
    got = segment_matmul(lhs, rhs, sizes, lhs_rows=ids, out_rows=places, **options)
    assert got.dtype == (widest or dtype)
    kind = np.complex64 if dtype == "complex64" else np.float64
    lhs, rhs, scale = (x.astype(kind) for x in (lhs, rhs, scale))
    product = reference(members, scale[:, None] * gathered(lhs, ids), rhs)
    want = scattered(product, places)
    np.testing.assert_array_equal(np.asarray(got).astype(kind), want)


# --- Shapes and sizes ----------------------------------------------------------------------------


def operands_of(
    rng: np.random.Generator, rows: int, groups: int, k: int, n: int, dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw lhs, rhs and a cotangent of the result."""
    shapes = (rows, k), (groups, k, n), (rows, n)
    lhs, rhs, ct = (rng.normal(size=shape).astype(jnp.dtype(dtype)) for shape in shapes)
    return lhs, rhs, ct


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 17), (17, 3), (64, 64), (130, 33), (1000, 8)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
def test_shapes(rng, k, n, dtype, implementation):
    rows, groups = 300, 7
    lhs, rhs, ct = operands_of(rng, rows, groups, k, n, dtype)
    matmul = jax.jit(functools.partial(segment_matmul, precision=EXACT))
    transposed = jax.jit(functools.partial(segment_matmul, precision=EXACT, transpose_rhs=True))
    outer = jax.jit(functools.partial(segment_outer, precision=EXACT))
    with setting(implementation, dtype):
        for scenario in ("random", "empty", "giant", "padding", "duplicates"):
            sizes = sizes_of(rng, scenario, rows, groups)
            members = membership(sizes, rows, 0, groups)
            wide = [x.astype(np.float64) for x in (lhs, rhs, ct)]
            want = reference(members, *wide[:2])
            assert_close(matmul(lhs, rhs, sizes), want, TOLERANCE[dtype], f"{scenario}, matmul")
            got = transposed(lhs, rhs.transpose(0, 2, 1), sizes)
            assert_close(got, want, TOLERANCE[dtype], f"{scenario}, transposed")
            want = outer_reference(members, wide[0], wide[2])
            assert_close(outer(lhs, ct, sizes), want, TOLERANCE[dtype], f"{scenario}, outer")


@pytest.mark.parametrize("kernel", ["persistent", "single"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("k", "n"), [(32, 64), (64, 70), (16, 200), (64, 33), (128, 128), (256, 24)]
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
def test_few_and_many_blocks(rng, k, n, dtype, kernel, implementation):
    """Kernels with all ids: blocks that take tiles in turn, and a block for each tile.

    On Hopper, rows are written in words of 16, 8, 4 and 2 bytes, and in several pieces.
    """
    rows, nodes, groups = 900, 250, 9
    # The default precision, as a block for each tile has no exact variant.
    tolerance = 3e-3 if dtype == "float32" else TOLERANCE[dtype]  # of TF32
    _, rhs, _ = operands_of(rng, 1, groups, k, n, dtype)
    lhs, all_rows = (rng.normal(size=(of, k)).astype(rhs.dtype) for of in (nodes, rows))
    arrays = {
        "lhs_rows": rng.integers(-3, nodes + 3, rows).astype(np.int32),
        "out_rows": rng.permutation(rows).astype(np.int32),
        "scale": rng.normal(size=rows).astype(np.float32),
        "bias": rng.normal(size=(groups, n)).astype(rhs.dtype),
        "residual": rng.normal(size=(rows, n)).astype(rhs.dtype),
    }
    arrays["out_rows"][rng.choice(rows, 20, replace=False)] = rng.choice([*OUT_OF_RANGE, rows], 20)
    wide = {name: x if x.dtype == np.int32 else x.astype(np.float64) for name, x in arrays.items()}
    with setting(implementation, dtype), use(MatmulSchedule(kernel, 64, 0, 3)):
        subsets = (), ("lhs_rows",), ("residual",), ("out_rows", "bias"), tuple(arrays)
        for names in subsets:
            sizes = sizes_of(rng, "padding" if len(names) < 2 else "empty", rows, groups)
            members = membership(sizes, rows, 0, groups)
            x = lhs if "lhs_rows" in names else all_rows
            options = {name: arrays[name] for name in names}
            want = gathered(x.astype(np.float64), options.get("lhs_rows"))
            if "scale" in names:
                want = want * wide["scale"][:, None]
            bias = wide["bias"] if "bias" in names else None
            want = reference(members, want, rhs.astype(np.float64), bias)
            want = scattered(want, options.get("out_rows"))
            if "residual" in names:
                want = want + wide["residual"]
            for transposed, weights in ((False, rhs), (True, rhs.transpose(0, 2, 1))):
                got = segment_matmul(x, weights, sizes, transpose_rhs=transposed, **options)
                assert_close(got, want, tolerance, f"{names}, transposed: {transposed}")


@pytest.mark.skipif(not KERNELS, reason="plain XLA multiplies all rows with all weights")
@pytest.mark.parametrize(
    ("rows", "groups"), [(1, 1), (5000, 1), (3000, 2000), (20, 3000), (4000, 4)]
)
def test_many_and_few_groups(rng, rows, groups):
    k, n = 33, 40
    lhs, rhs, ct = operands_of(rng, rows, groups, k, n, "float32")
    # Even groups, then a few that have nearly all rows.
    for shares in (rng.dirichlet(np.ones(groups)), rng.dirichlet(np.full(groups, 0.02))):
        sizes = rng.multinomial(rows, shares).astype(np.int32)
        of_row = np.repeat(np.arange(groups), sizes)
        want = np.einsum("rk,rkn->rn", lhs.astype(np.float64), rhs[of_row])
        got = segment_matmul(lhs, rhs, sizes, precision=EXACT, implementation=KERNELS[0])
        assert_close(got, want, TOLERANCE["float32"], "matmul")
        want = np.zeros((groups, k, n))
        np.add.at(want, of_row, np.einsum("rk,rn->rkn", lhs.astype(np.float64), ct))
        got = segment_outer(lhs, ct, sizes, precision=EXACT, implementation=KERNELS[0])
        assert_close(got, want, TOLERANCE["float32"], "outer")


def test_hundreds_of_size_vectors(rng):
    """All sizes share one trace; errors are those of float32 sums in any order."""
    rows, groups, k, n = 700, 13, 32, 24
    lhs, rhs, ct = operands_of(rng, rows, groups, k, n, "float32")
    traces = 0

    @jax.jit
    def both(lhs, rhs, sizes, ct):
        nonlocal traces
        traces += 1
        product = functools.partial(segment_matmul, group_sizes=sizes, precision=EXACT)
        y, vjp = jax.vjp(product, lhs, rhs)
        return y, *vjp(ct)

    for _ in range(200):
        shares = rng.dirichlet(np.full(groups, rng.choice([0.05, 1.0, 50.0])))
        sizes = rng.multinomial(int(rng.integers(rows + 1)), shares).astype(np.int32)
        members = membership(sizes, rows, 0, groups)
        wide = [x.astype(np.float64) for x in (lhs, rhs, ct)]

        def results(lhs, rhs, ct, members=members) -> tuple[Any, ...]:
            return (
                reference(members, lhs, rhs),
                reference(members, ct, rhs.transpose(0, 2, 1)),
                outer_reference(members, lhs, ct),
            )

        sums = zip((k, n, rows), results(*wide), results(*map(np.abs, wide)), strict=True)
        for got, (terms, want, absolute) in zip(both(lhs, rhs, sizes, ct), sums, strict=True):
            bound = terms * 2.0**-24 * absolute  # a product and a sum for each term
            assert (np.abs(np.asarray(got, np.float64) - want) <= 2 * bound).all(), sizes
    assert traces == 1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "uint32", "uint64"])
def test_sizes_may_be_anything(rng, dtype, implementation):
    """Sizes whose sum exceeds the rows or the type are cut; negative sizes are empty groups."""
    rows, groups = 60, 9
    lhs, rhs, ct = operands_of(rng, rows, groups, 4, 6, "float32")
    limits = np.iinfo(dtype)
    # Five draws of sizes in each mode.
    for x64 in 5 * ("int64", "float32"):
        sizes = rng.choice(np.array([0, 3, 10, 70, limits.max, limits.min], dtype), groups)
        members = membership(sizes, rows, 0, groups)
        with setting(implementation, x64):
            got = segment_matmul(lhs, rhs, sizes, precision=EXACT)
            assert_close(got, reference(members, lhs, rhs), 1e-6, f"matmul, {sizes}")
            got = segment_outer(lhs, ct, sizes, precision=EXACT)
            assert_close(got, outer_reference(members, lhs, ct), 1e-6, f"outer, {sizes}")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_of_no_group_are_zero(rng, implementation):
    lhs, rhs, ct = operands_of(rng, 40, 5, 8, 9, "float32")
    sizes = np.array([7, 0, -3, 9, 4], np.int32)
    for unread in (np.nan, np.inf):
        # Sizes of 7, 9 and 4 leave the last 20 rows to no group.
        lhs[20:] = ct[20:] = unread
        rhs[1:3] = unread  # the weights of groups without rows
        with setting(implementation):
            for activation in (None, "relu", "silu", "gelu", "tanh"):
                bias = np.ones((5, 9), np.float32)
                y = segment_matmul(lhs, rhs, sizes, bias=bias, activation=activation)
                assert same_bits(y[20:], np.zeros((20, 9), np.float32))
                assert np.isfinite(y).all()
            assert np.isfinite(segment_outer(lhs, ct, sizes)).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "offset", [0, 1, 4, 6, -2, -9, 100, LIMITS.max, LIMITS.min, 2**32, -(2**32) - 1, 2**63 - 1]
)
def test_any_offset(rng, offset, implementation):
    rows, groups = 50, 3
    lhs, rhs, ct = operands_of(rng, rows, groups, 4, 6, "float32")
    sizes = sizes_of(rng, "padding", rows, 7)
    members = membership(sizes, rows, offset, groups)
    with setting(implementation):
        # Offsets of Python are checked before JAX narrows them.
        fits = LIMITS.min <= offset <= LIMITS.max
        for argument in (
            offset,
            np.array([offset]),
            np.int32(offset) if fits else np.int64(offset),
        ):
            got = segment_matmul(lhs, rhs, sizes, group_offset=argument, precision=EXACT)
            assert_close(got, reference(members, lhs, rhs), 1e-6, "matmul")
        got = segment_outer(lhs, ct, sizes, group_offset=offset, num_groups=groups, precision=EXACT)
        assert_close(got, outer_reference(members, lhs, ct), 1e-6, "outer")


# --- Dtypes and precision ------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dtypes", "preferred", "result"),
    [
        (("bfloat16", "bfloat16"), "float32", "float32"),
        (("float16", "float16"), "float32", "float32"),
        (("float16", "float16"), "float64", "float64"),
        (("float32", "float32"), "float64", "float64"),
        (("bfloat16", "float32"), None, "float32"),
        (("float32", "float64"), None, "float64"),
        (("int32", "float32"), None, "float32"),
        (("int8", "int8"), "int32", "int32"),
        (("int32", "int32"), None, "int32"),
        (("complex64", "complex64"), None, "complex64"),
    ],
)
def test_dtype_of_result(rng, dtypes, preferred, result, implementation):
    rows, groups, k, n = 40, 4, 12, 10
    sizes = sizes_of(rng, "padding", rows, groups)
    members = membership(sizes, rows, 0, groups)
    shapes = (rows, k), (groups, k, n), (rows, n)
    lhs, rhs, rows_rhs = (
        rng.integers(-4, 5, shape).astype(jnp.dtype(dtype))
        for shape, dtype in zip(shapes, (*dtypes, dtypes[1]), strict=True)
    )
    with setting(implementation, "float64"):
        options = {"preferred_element_type": preferred, "precision": EXACT}
        y = segment_matmul(lhs, rhs, sizes, **options)  # type: ignore[arg-type]
        outer = segment_outer(lhs, rows_rhs, sizes, **options)  # type: ignore[arg-type]
        ragged = jax.eval_shape(
            functools.partial(jax.lax.ragged_dot, preferred_element_type=preferred),
            lhs,
            rhs,
            np.maximum(sizes, 0),
        )
    assert y.dtype == outer.dtype == ragged.dtype == result
    kind = complex if "complex" in result else float
    lhs, rhs, rows_rhs = (x.astype(kind) for x in (lhs, rhs, rows_rhs))
    np.testing.assert_array_equal(y, reference(members, lhs, rhs))  # whole numbers: exact
    np.testing.assert_array_equal(outer, outer_reference(members, lhs, rows_rhs))


INTEGERS = ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32")
SMALL_FLOATS = ("float4_e2m1fn", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("dtypes", "preferred"),
    [
        *(((x, x), to) for x in INTEGERS for to in (None, "int32", "int64", "float32", "float64")),
        *(((x, x), to) for x in SMALL_FLOATS for to in (None, "float16", "float32", "float64")),
        (("int8", "int8"), "int16"),
        (("int8", "int8"), "bfloat16"),
        (("uint8", "uint8"), "complex64"),
        (("int8", "uint8"), "int32"),
        (("int4", "int8"), "int32"),
        (("float8_e5m2", "float8_e4m3fn"), "float32"),
        (("float8_e4m3fn", "bfloat16"), "float32"),
        (("int8", "float8_e4m3fn"), "float32"),
    ],
    ids=str,
)
def test_sums_of_small_numbers(rng, dtypes, preferred, implementation):
    """Sums accumulate in the dtype of the result, and round or wrap around once."""
    rows, groups, k, n = 40, 4, 12, 10
    sizes = sizes_of(rng, "padding", rows, groups)
    members = membership(sizes, rows, 0, groups)

    def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        low, high = -4, 4
        if jnp.issubdtype(dtype, jnp.integer):  # as far as sums in float32 are exact
            low, high = max(jnp.iinfo(dtype).min, -600), min(jnp.iinfo(dtype).max, 600)
        return rng.integers(low, high, shape, endpoint=True).astype(jnp.dtype(dtype))

    lhs, rhs = numbers((rows, k), dtypes[0]), numbers((groups, k, n), dtypes[1])
    rows_rhs = numbers((rows, n), dtypes[1])
    with setting(implementation, "float64"):
        y = segment_matmul(lhs, rhs, sizes, EXACT, preferred)
        outer = segment_outer(lhs, rows_rhs, sizes, EXACT, preferred)
    want = reference(members, *wide((lhs, rhs))), outer_reference(members, *wide((lhs, rows_rhs)))
    for got, exact in zip((y, outer), want, strict=True):
        assert got.dtype == (preferred or dtypes[0])
        if jnp.issubdtype(got.dtype, jnp.integer):
            exact = exact.astype(np.int64)
        rounded = exact.astype(got.dtype).astype(complex)  # in which numpy knows NaN
        np.testing.assert_array_equal(np.asarray(got).astype(complex), rounded)


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [
        ("int8", "uint8"),
        ("uint8", "int8"),
        ("int32", "int8"),
        ("int32", "bfloat16"),
        ("int8", "float8_e4m3fn"),
        ("int8", "bool"),
        ("float8_e5m2", "float8_e4m3fn"),
        ("float8_e5m2", "int32"),
        ("float16", "bfloat16"),
        ("complex64", "float32"),
    ],
)
def test_results_that_do_not_hold_the_numbers_are_refused(dtype, preferred):
    lhs, rhs = jnp.ones((6, 3), dtype), jnp.ones((2, 3, 4), dtype)
    for function, rhs_argument in ((segment_matmul, rhs), (segment_outer, lhs)):
        with pytest.raises(TypeError, match=f"preferred_element_type .* {dtype}.* {preferred}"):
            function(lhs, rhs_argument, SIZES, preferred_element_type=preferred)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_of_eight_bits(rng, implementation):
    """Gradients of whole numbers are exact, in the dtype of the operand."""
    lhs, rhs, ct = (
        rng.integers(-2, 3, shape).astype(jnp.float8_e4m3fn)
        for shape in ((20, 3), (4, 3, 2), (20, 2))
    )
    sizes = sizes_of(rng, "padding", 20, 4)
    members = membership(sizes, 20, 0, 4)
    with setting(implementation):
        d_lhs, d_rhs = jax.vjp(lambda x, w: segment_matmul(x, w, sizes), lhs, rhs)[1](ct)
    assert d_lhs.dtype == d_rhs.dtype == jnp.float8_e4m3fn
    lhs, rhs, ct = wide((lhs, rhs, ct))
    want = reference(members, ct, rhs.transpose(0, 2, 1)), outer_reference(members, lhs, ct)
    for got, exact in zip((d_lhs, d_rhs), want, strict=True):
        np.testing.assert_array_equal(np.asarray(got), exact.astype(got.dtype))


@pytest.mark.parametrize("dtype", ["complex64", "float8_e4m3fn", "bfloat16"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_derivatives_to_a_bias_of_any_dtype(dtype, implementation):
    """Kernels that gather and sum rows of a bias do not take all dtypes."""
    lhs, rhs, bias = (jnp.ones(shape, dtype) for shape in ((6, 3), (2, 3, 4), (2, 4)))
    function = functools.partial(segment_matmul, lhs, rhs, np.array([2, 3]))
    with setting(implementation):
        result, pull = jax.vjp(lambda bias: function(bias=bias), bias)
        _, tangent = jax.jvp(lambda bias: function(bias=bias), (bias,), (bias,))
        (gradient,) = pull(jnp.ones_like(result))
    np.testing.assert_array_equal(tangent.astype(complex), np.outer([1, 1, 1, 1, 1, 0], np.ones(4)))
    np.testing.assert_array_equal(gradient.astype(complex), np.outer([2, 3], np.ones(4)))


def test_arguments_in_the_order_of_ragged_dot():
    names = list(inspect.signature(jax.lax.ragged_dot).parameters)[:6]
    for function in (segment_matmul, segment_outer):
        parameters = inspect.signature(function).parameters.values()
        in_order = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert in_order == names


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_widening_products(rng, dtype, implementation):
    lhs, rhs, ct = operands_of(rng, 200, 4, 16, 12, dtype)
    sizes = sizes_of(rng, "padding", 200, 4)
    members = membership(sizes, 200, 0, 4)
    ct = rng.normal(size=ct.shape).astype(np.float32)  # more than the half type holds

    def product(lhs, rhs):
        return segment_matmul(lhs, rhs, sizes, preferred_element_type=np.float32, precision=EXACT)

    with setting(implementation):
        y, vjp = jax.vjp(product, lhs, rhs)
        d_lhs, d_rhs = vjp(ct)
    assert (y.dtype, d_lhs.dtype, d_rhs.dtype) == (np.float32, dtype, dtype)
    wide = [x.astype(np.float64) for x in (lhs, rhs, ct)]
    assert_close(y, reference(members, *wide[:2]), TOLERANCE["float32"], "value")
    rounding = float(jnp.finfo(dtype).eps)
    want = reference(members, wide[2], wide[1].transpose(0, 2, 1))
    assert_close(d_lhs, want, rounding, "lhs")
    assert_close(d_rhs, outer_reference(members, wide[0], wide[2]), rounding, "rhs")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_half_types_add_up_in_float32(rng, implementation):
    """In half types these sums would stop at 2048 or 256."""
    rows = 4096
    lhs = np.ones((rows, rows), jnp.bfloat16)
    sizes = np.array([rows], np.int32)
    with setting(implementation):
        y = segment_matmul(lhs[:3], np.ones((1, rows, 2), jnp.bfloat16), np.array([3], np.int32))
        outer = segment_outer(lhs[:, :3], lhs[:, :2], sizes)
    assert (np.asarray(y, np.float32) == rows).all()
    assert (np.asarray(outer, np.float32) == rows).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("k", "n"), [(0, 0), (0, 200), (200, 0)])
def test_no_features(k, n, implementation):
    lhs, rhs, ct = np.ones((300, k)), np.ones((2, k, n)), np.ones((300, n))
    sizes = np.array([100, 150], np.int32)
    with setting(implementation):
        y, vjp = jax.vjp(lambda x, w: segment_matmul(x, w, sizes), lhs, rhs)
        d_lhs, d_rhs = vjp(jnp.asarray(ct, y.dtype))
        outer = segment_outer(lhs, ct, sizes)
    for got, like in ((y, ct), (d_lhs, lhs), (d_rhs, rhs), (outer, rhs)):
        np.testing.assert_array_equal(got, np.zeros_like(like))


@pytest.mark.parametrize("precision", [None, "default", "tensorfloat32"])
def test_default_precision(rng, precision):
    """Tf32 where there is such a thing, whose rounding is 2^-11."""
    lhs, rhs, ct = operands_of(rng, 500, 5, 64, 48, "float32")
    sizes = sizes_of(rng, "random", 500, 5)
    members = membership(sizes, 500, 0, 5)
    y = segment_matmul(lhs, rhs, sizes, precision=precision)
    assert_close(y, reference(members, lhs, rhs), 1e-3, "matmul")
    outer = segment_outer(lhs, ct, sizes, precision=precision)
    assert_close(outer, outer_reference(members, lhs, ct), 1e-3, "outer")


def lowered_exactness(**options) -> set[str]:
    def both(lhs, rhs):
        return jax.vjp(lambda x, w: segment_matmul(x, w, SIZES, **options), lhs, rhs)[1](
            jnp.ones((6, 4))
        )

    text = jax.jit(both).lower(LHS, RHS).as_text()
    return {value for value in ("true", "false") if f"exact = {value}" in text}


@pytest.mark.skipif(not KERNELS, reason="about what kernels get")
@pytest.mark.parametrize(
    ("precision", "exact"),
    [
        (None, "false"),
        ("highest", "true"),
        ("float32", "true"),
        ("high", "false"),
        (jax.lax.Precision.HIGHEST, "true"),
        (("default", "highest"), "true"),
        (jax.lax.DotAlgorithmPreset.TF32_TF32_F32, "false"),
        (jax.lax.DotAlgorithmPreset.F32_F32_F32, "true"),
    ],
)
def test_precision_reaches_kernels(precision, exact):
    """Forward and backward, from the argument or from JAX's default."""
    assert lowered_exactness(precision=precision) == {exact}
    if isinstance(precision, str):
        with jax.default_matmul_precision(precision):
            assert lowered_exactness() == {exact}
            assert lowered_exactness(precision="default") == {"false"}


@pytest.mark.skipif(not KERNELS, reason="about the memory of kernels")
@pytest.mark.parametrize("use_bias", [False, True])
def test_nothing_is_held_beside_operands_and_results(use_bias):
    """Temporary memory is at most 1 % of operands and results forward, 5 % backward."""
    # So large that a copy of the rows exceeds the share.
    rows, groups, k, n = 1_000_000, 40, 64, 48  # compiled only
    shapes = (rows, k), (groups, k, n), (groups, n), (rows, n)
    lhs, rhs, bias, ct = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((groups,), np.int32)

    def product(lhs, rhs, bias, sizes):
        return segment_matmul(lhs, rhs, sizes, bias=bias if use_bias else None)

    def backward(lhs, rhs, bias, sizes, ct):
        return jax.vjp(product, lhs, rhs, bias, sizes)[1](ct)[:3]

    for function, arguments, share in ((product, (), 0.01), (backward, (ct,), 0.05)):
        compiled = jax.jit(function).lower(lhs, rhs, bias, sizes, *arguments).compile()
        memory = compiled.memory_analysis()
        bias_column = 4 * rows * use_bias  # the column that the bias's gradient is a product with
        total = memory.argument_size_in_bytes + memory.output_size_in_bytes
        assert memory.temp_size_in_bytes <= share * total + bias_column


# --- Derivatives and transformations -------------------------------------------------------------


def test_batch_too_large_to_join(rng, monkeypatch):
    """A batch with more rows than int32 counts runs one element after another."""
    batch = rng.normal(size=(3, 6, 3)).astype(np.float32)
    many = np.array([[2, 3], [0, 6], [1, 1]], np.int32)
    mapped = (
        jax.vmap(lambda x: segment_matmul(x, RHS, SIZES)),
        jax.vmap(lambda x, sizes: segment_matmul(x, RHS, sizes)),
        jax.vmap(lambda x, sizes: segment_outer(x, LHS, sizes)),
    )
    arguments = ((batch,), (batch, many), (batch, many))
    want = [function(*xs) for function, xs in zip(mapped, arguments, strict=True)]
    module = importlib.import_module("jax_gnn._ops.segment_matmul.primitive")
    monkeypatch.setattr(module, "MAX_SIZE", 17)
    for function, xs, expected in zip(mapped, arguments, want, strict=True):
        assert "scan" in str(jax.make_jaxpr(function)(*xs))
        assert_close(function(*xs), expected, 1e-6, "value")


@pytest.mark.skipif(not KERNELS, reason="about what kernels get")
def test_shared_weights_are_not_copied():
    """A batch of rows shares the weights, and a batch of weights the rows."""

    def shapes(in_axes, *arguments) -> str:
        mapped = jax.vmap(lambda *xs: segment_matmul(*xs, SIZES), in_axes=in_axes)
        return str(jax.make_jaxpr(mapped)(*arguments))

    batch = np.ones((7, *LHS.shape), np.float32)
    assert "f32[14,3,4]" not in shapes((0, None), batch, RHS)
    batch = np.ones((7, *RHS.shape), np.float32)
    assert "f32[42,3]" not in shapes((None, 0), LHS, batch)


def test_sizes_have_float0_cotangents(rng):
    lhs, rhs, ct = operands_of(rng, 30, 4, 3, 5, "float32")
    sizes = sizes_of(rng, "random", 30, 4)
    for function in (segment_matmul, jax.jit(segment_matmul)):
        _, vjp = jax.vjp(function, lhs, rhs, sizes)
        assert vjp(jnp.asarray(ct))[2].dtype == jax.dtypes.float0


@pytest.mark.parametrize("activation", ["silu", "gelu", "tanh"])
def test_third_order(rng, activation):
    lhs, rhs, _ = operands_of(rng, 12, 3, 2, 2, "float64")
    sizes = sizes_of(rng, "random", 12, 3)

    def along(implementation: str) -> Any:
        def line(t):
            y = segment_matmul(
                lhs * t, rhs * t, sizes, activation=activation, implementation=implementation
            )
            return jnp.sum(y**2)

        return jax.grad(jax.grad(jax.grad(line)))(1.0)

    with jax.enable_x64(True):
        assert_close(along(IMPLEMENTATIONS[0]), along("xla"), 1e-10, "third derivative")


def test_sums_in_any_order(rng):
    lhs, _, ct = operands_of(rng, 9000, 3, 40, 24, "float32")
    sizes = np.array([8000, 1, 900], np.int32)
    outer = jax.jit(functools.partial(segment_outer, deterministic=False, precision=EXACT))
    want = outer_reference(membership(sizes, 9000, 0, 3), lhs.astype(np.float64), ct)
    assert_close(outer(lhs, ct, sizes), want, TOLERANCE["float32"], "value")


# --- Several devices -----------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_groups_sharded(rng, implementation):
    """Weights are split over devices, each of which computes the rows of its groups."""
    devices, rows, groups = 4, 60, 8
    lhs, rhs, ct = operands_of(rng, rows, groups, 4, 6, "float32")
    bias = rng.normal(size=(groups, 6)).astype(np.float32)
    sizes = sizes_of(rng, "padding", rows, groups)
    split, everywhere = PartitionSpec("devices"), PartitionSpec()

    def local(lhs, rhs, bias, sizes):
        # Each device holds consecutive groups, and counts those before them.
        first = jax.lax.axis_index("devices") * rhs.shape[0]
        y = segment_matmul(lhs, rhs, sizes, bias=bias, group_offset=first, precision=EXACT)
        return jax.lax.psum(y, "devices")

    sharded = jax.jit(
        jax.shard_map(
            local,
            mesh=OpSuite.mesh(),
            in_specs=(everywhere, split, split, everywhere),
            out_specs=everywhere,
        )
    )

    def unsplit(lhs, rhs, bias):
        return segment_matmul(lhs, rhs, sizes, bias=bias, precision=EXACT)

    assert groups % devices == 0
    with setting(implementation):
        want, vjp = jax.vjp(unsplit, lhs, rhs, bias)
        expected = vjp(jnp.asarray(ct))
        got, vjp = jax.vjp(lambda *xs: sharded(*xs, sizes), lhs, rhs, bias)
        gradients = vjp(jnp.asarray(ct))
    assert_close(got, want, TOLERANCE["float32"], "value")
    for a, b in zip(gradients, expected, strict=True):
        assert_close(a, b, TOLERANCE["float32"], "gradient")


# --- Raw calls -----------------------------------------------------------------------------------

MATMUL_ATTRIBUTES = {
    "transposed": np.bool_(False),
    "exact": np.bool_(True),
    "has_bias": np.bool_(True),
    "has_residual": np.bool_(True),
    "scaled": np.bool_(False),
    "gathers": np.bool_(False),
    "scatters": np.bool_(False),
    "activation": np.int64(0),
    "kernel": "persistent",
    "tile": np.int64(64),
    "chunk": np.int64(0),
    "blocks": np.int64(1),
}
RAW_OPERANDS = [LHS, RHS, SIZES, np.zeros(1, np.int32), np.ones((2, 4), np.float32)]
RAW_OPERANDS += [np.ones((6, 4), np.float32)]  # the residual; then scale and ids
RAW_OPERANDS += [np.ones(6, np.float32), *[np.arange(6, dtype=np.int32)] * 3]

WRONG_IDS = [IDS.astype(np.int32), np.ones((6, 1), np.int32), LHS[:, 0]]
ALL_IDS = dict.fromkeys(("scaled", "gathers", "scatters"), np.bool_(True))


def raw_matmul(operands, result=((6, 4), np.float32), **attributes) -> np.ndarray:
    results = [jax.ShapeDtypeStruct(*result), jax.ShapeDtypeStruct((64,), np.uint8)]
    call = jax.ffi.ffi_call("jax_gnn_segment_matmul", results)
    return np.asarray(call(*operands, **MATMUL_ATTRIBUTES | attributes)[0])


@pytest.mark.skipif(PLATFORM != "cpu", reason="the handlers are the same for all platforms")
def test_raw_call_with_wrong_buffers():
    want = reference(membership(SIZES, 6, 0, 2), LHS, RHS, RAW_OPERANDS[4]) + RAW_OPERANDS[5]
    np.testing.assert_array_equal(raw_matmul(RAW_OPERANDS), want)
    np.testing.assert_array_equal(raw_matmul(RAW_OPERANDS, **ALL_IDS), want)
    for position, values in {
        0: [LHS[0], LHS[:, :2], LHS.astype(np.int32), LHS.astype(np.float16)],
        1: [RHS[0], RHS[:, :2], RHS.astype(np.float16)],
        2: [SIZES[None], SIZES.astype(np.float32), SIZES.astype(np.int16)],
        3: [np.zeros(2, np.int32), np.zeros((), np.int32), np.zeros(1, np.float32)],
        4: [np.ones((2, 3), np.float32), np.ones((1, 4), np.float32), np.ones((2, 4), np.float16)],
        5: [np.ones((5, 4), np.float32), np.ones((6, 4), np.float16), np.ones(6, np.float32)],
        6: [np.ones(5, np.float32), np.ones((6, 1), np.float32), np.ones(6, np.float16)],
        **dict.fromkeys((7, 8, 9), WRONG_IDS),
    }.items():
        for value in values:
            operands = [*RAW_OPERANDS[:position], value, *RAW_OPERANDS[position + 1 :]]
            with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
                raw_matmul(operands, **ALL_IDS)
    for result in (((5, 4), np.float32), ((6, 4), np.float64), ((6, 4), np.int32)):
        with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
            raw_matmul(RAW_OPERANDS, result)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the schedule is wrong"):
        raw_matmul(RAW_OPERANDS, kernel="walk")
    for activation in (-1, 5):
        with pytest.raises(jax.errors.JaxRuntimeError, match="no such activation"):
            raw_matmul(RAW_OPERANDS, activation=np.int64(activation))
