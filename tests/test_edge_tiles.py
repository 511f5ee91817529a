"""Edge tiles: rows of entries in fragments, and products on tensor cores, in emulated kernels."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz import regions
from jax import nn
from op_suite import KERNELS
from region_cases import Edges, Model

from jax_gnn._core import ffi
from jax_gnn._ops.edge_region import (
    cuda,
    cuda_codegen,
    cuda_text,
    tile_codegen,
    tile_kernel,
    walks,
)
from jax_gnn._ops.edge_region.cuda_codegen import kernel_of
from jax_gnn._ops.edge_region.jaxpr_lowering import from_jaxpr
from jax_gnn._ops.edge_region.row_program import Unsupported

needs_cuda = pytest.mark.skipif(
    "cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU"
)


def egnn(width):
    """Two products in turn, one with a single column, and a vector of three numbers."""

    def function(hd, hs, xd, xs, e, wd, we, w2, w3, w4):
        difference = xd - xs
        distance = jnp.sum(difference**2, keepdims=True)
        m = nn.silu(nn.silu(hd + hs + distance @ wd + e @ we) @ w2)
        return [m, difference * (nn.silu(m @ w3) @ w4)]

    rows = [("row", (width,)), ("col", (width,)), ("row", (3,)), ("col", (3,)), ("edge", (4,))]
    rows += [("shared", (1, width)), ("shared", (4, width)), ("shared", (width, width))]
    rows += [("shared", (width, width)), ("shared", (width, 1))]
    return Model(function, rows, [("row", "sum"), ("row", "sum")])


def painn(width):
    """Gates of three parts, of which a product is wider than registers; vectors of features."""

    def function(phi, v, r, w, b):
        basis = jnp.sin(jnp.arange(1, 21) * jnp.sum(r**2)) / (1 + jnp.sum(r**2))
        first, second, third = jnp.split(phi * (basis @ w + b), 3)
        return [first, v * second + r[:, None] * third]

    rows = [("col", (3 * width,)), ("col", (3, width)), ("edge", (3,))]
    rows += [("shared", (20, 3 * width)), ("shared", (3 * width,))]
    return Model(function, rows, [("row", "sum"), ("row", "sum")])


def nnconv(width):
    """A matrix for each edge, times what the edge reads."""

    def function(x, e, w1, w2):
        return [x @ (nn.relu(e @ w1) @ w2).reshape(width, width)]

    rows = [("col", (width,)), ("edge", (9,)), ("shared", (9, 16)), ("shared", (16, width**2))]
    return Model(function, rows, [("row", "sum")])


def edge_conv(width):
    """The maximum of a perceptron, whose gradient compares entries with it to the same bits."""

    def function(a, b, w, s):
        y = nn.relu(a + b) @ w
        return [y, jnp.sum(y.reshape(-1, 5), 1) * s]

    rows = [("row", (12,)), ("col", (12,)), ("shared", (12, width)), ("edge", (width // 5,))]
    return Model(function, rows, [("row", "max"), ("row", "sum")])


def heads(width):
    """Sums within heads, a softmax of them, and numbers that change places between lanes."""

    def function(q, k, v, w):
        k = (k.reshape(3, -1) @ w).reshape(-1)
        scores = jnp.sum((q * k).reshape(3, -1), 1)
        y = v.reshape(3, -1) * nn.softmax(scores)[:, None]
        moved = jnp.concatenate([y.T.reshape(-1)[::-1], scores, jnp.roll(q, 3)])
        return [y, moved, jnp.max(y, 0), y > 0, scores]

    rows = [("row", (3 * width,)), ("col", (3 * width,)), ("col", (3 * width,))]
    rows += [("shared", (width, width))]
    sinks = [("row", "sum"), ("edge", "none"), ("row", "min"), ("edge", "none"), ("row", "sum")]
    return Model(function, rows, sinks)


def cg_conv(width):
    """Two products of one concatenation, whose gradients are sums of four outer products' size."""

    def function(xd, xs, e, wf, ws, b):
        z = jnp.concatenate([xd, xs, e])
        return [nn.sigmoid(z @ wf) * nn.softplus(z @ ws + b)]

    rows = [("row", (width,)), ("col", (width,)), ("edge", (width,))]
    rows += [("shared", (3 * width, width)), ("shared", (3 * width, width)), ("shared", (width,))]
    return Model(function, rows, [("row", "sum")])


# Widths of values, and of gradients, which take more registers.
MODELS = {
    "egnn": (egnn, (24, 37, 64), (24, 37)),
    "painn": (painn, (16, 24, 64), (16, 24)),
    "nnconv": (nnconv, (8, 12, 16), (8, 12)),
    "edge_conv": (edge_conv, (10, 25, 40), (10, 25)),
    "cg_conv": (cg_conv, (12, 21), (12, 48)),
    "heads": (heads, (9, 13, 16), (9,)),
}


def shapes(model, dtype="float32"):
    return [jax.ShapeDtypeStruct(shape, dtype) for _, shape in model.rows]


def results_of(model):
    return jax.eval_shape(model.function, *shapes(model))


def kernel(model, dtype="float32"):
    rows = shapes(model, dtype)
    program = from_jaxpr(jax.make_jaxpr(model.function)(*rows), model.accesses, model.outputs)
    return tile_kernel.generate_tiles(program)


def arrays_of(rng, model, edges):
    """Draw arrays, with matrices that keep the scale of rows."""
    return [
        np.asarray(x, np.float64) / (np.sqrt(len(x)) if access == "shared" and x.ndim > 1 else 1)
        for x, access in zip(edges.arrays(rng, model, "float32"), model.accesses, strict=True)
    ]


# --- Text ----------------------------------------------------------------------------------------


def test_a_product_reads_the_accumulators_of_another():
    """Between two products nothing passes through memory."""
    source = kernel(egnn(64)).source
    assert source.count("multiply_tile<8, 8, false, false>") == 2
    assert "scratch_row(" not in source.split("scratch_row = ")[1]


def test_text_is_of_the_size_of_the_program():
    """A function is written once, not once for each number of the row that reads it."""
    assert kernel(egnn(64)).source.count("logistic(") == 3


def test_wide_products_are_computed_in_chunks(monkeypatch):
    """In blocks of few warps where a GPU has less shared memory than Hopper's."""
    monkeypatch.setattr(ffi, "shared_memory", lambda: 99 << 10)
    assert kernel(painn(64)).threads < 128
    assert "multiply_tile<3, 24, false, false>" in kernel(painn(64)).source


def cotangent(model):
    """Return the row programs of the walks of a region's gradient to all arguments."""
    gradient = model.region().cotangent(tuple(range(len(model.rows))), (0,))
    return [walk.program for walk in cuda.walks_of(gradient.program, False)]


def test_rows_of_the_next_tile_are_copied_once_those_of_this_one_are_read():
    source = kernel(egnn(64)).source
    compute = source.split("static __device__ __forceinline__ void compute")[1]
    assert "kStages = 1" in source and source.count("ids.copy<16, 288>") >= 1
    assert compute.rindex("staged_row<") < compute.index("prefetch();") < compute.rindex("multiply")


def test_a_matrix_and_its_transpose_share_a_copy():
    model = Model(
        lambda x, w: [nn.silu(x @ w)], [("row", (16,)), ("shared", (16, 16))], [("row", "sum")]
    )
    (program,) = cotangent(model)
    source = tile_kernel.generate_tiles(program).source
    assert source.count("load_matrix<") == 1
    assert source.count("multiply_tile<2, 2, false, true>") == 1


@pytest.mark.parametrize("name", MODELS)
def test_lanes_exchange_numbers_outside_of_branches(name):
    """A shuffle that some lanes of a warp do not reach waits for these for ever."""
    model, widths = MODELS[name][0], MODELS[name][2]
    for program in [p for width in widths for p in cotangent(model(width))]:
        if cuda_text.has_tiles(program):
            for line in tile_kernel.generate_tiles(program).source.splitlines():
                assert "?" not in line.partition("quad_read")[0] or "quad_read" not in line


def test_sums_over_stored_rows_are_left_to_the_second_walk():
    """The first walk stores the gradient of a source's row, of which a bias has the sum."""
    model = Model(
        lambda x, y, w, b: [nn.silu((x + y + b) @ w)],
        [("row", (16,)), ("col", (16,)), ("shared", (16, 16)), ("shared", (16,))],
        [("row", "sum")],
    )
    first, second = cotangent(model)
    assert [output.dest for output in first.outputs] == ["row", "all", "edge"]
    assert [output.dest for output in second.outputs] == ["row", "row"]


@pytest.fixture
def hopper(monkeypatch):
    """Kernels for the shared memory of an H100, whatever machine this is."""
    monkeypatch.setattr(ffi, "shared_memory", lambda: 227 << 10)
    caches = cuda_codegen._kernel_or_reason, walks.walks_of
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("hopper")
def test_sums_that_leave_few_warps_have_a_walk_of_their_own():
    """It reads stored factors; the walk that makes these keeps its registers and memory."""
    region = cg_conv(64).region()
    program = region.cotangent(tuple(range(len(region.rows))), (0,)).program
    warps = [
        kernel_of(walk.program).threads // 32 * kernel_of(walk.program).blocks
        for walk in walks.walks_of(program, False)
        if cuda_text.has_tiles(walk.program)
    ]
    assert len(warps) > 1 and min(warps) >= 8
    rest, *sums = [walk.program for walk in walks.walks_of(program, False)]
    assert not any(output.dest == "all" for output in rest.outputs)
    assert not any(step.name == "dot" for walk in sums for step in walk.instructions)


@pytest.mark.usefixtures("hopper")
def test_warps_sum_small_outer_products_in_registers():
    model = Model(lambda x, w: [x @ w], [("row", (64,)), ("shared", (64, 64))], [("row", "sum")])
    (walk,) = walks.walks_of(model.region().cotangent((1,), (0,)).program, False)
    kernel = kernel_of(walk.program)
    compute, _, finish = kernel.source.partition("void finish(")
    assert kernel.own_sums and "accumulate_own_outer<64, 64, 72, 72, false>" in compute
    assert "__syncthreads" not in compute and "store_own_outer<kWarps, 64, 64, 64>" in finish


def test_softplus_and_its_derivative_are_short():
    model = Model(lambda x: [nn.softplus(x)], [("col", (16,))], [("row", "sum")])
    for region in (model.region(), model.region().cotangent((0,), (0,))):
        (walk,) = cuda.walks_of(region.program, False)
        names = [step.name for step in walk.program.instructions]
        assert "select_n" not in names
    assert "logistic" in names and "log1p" not in names


def test_a_gradient_alone_keeps_its_precision():
    """The gradient of a matrix has no other product that could tell the precision."""
    model = Model(lambda x, w: [x @ w], [("row", (16,)), ("shared", (16, 16))], [("row", "sum")])
    with jax.default_matmul_precision("highest"):
        gradient = model.region().cotangent((1,), (0,))
    (walk,) = cuda.walks_of(gradient.program, False)
    assert "16, 16, 40, 40, true>(block" in tile_kernel.generate_tiles(walk.program).source


def test_rows_beyond_registers_have_no_kernel(monkeypatch):
    joined = Model(
        lambda x, y, w: [jnp.concatenate([x, jnp.tanh(y), y, jnp.sin(x), x * y]) @ w],
        [("row", (128,)), ("col", (128,)), ("shared", (640, 16))],
        [("row", "sum")],
    )
    with pytest.raises(cuda_text.Infeasible, match="registers"):
        kernel(joined)
    program = joined.region().program
    for _ in range(2):  # alternatives of a plan ask again: the second time nothing is generated
        with pytest.raises(Unsupported, match="registers"):
            kernel_of(program)
        monkeypatch.setattr(tile_kernel, "generate_tiles", None)


def test_matrices_beyond_shared_memory_have_no_kernel(monkeypatch):
    """A block of a GPU that is not Hopper's has less of it."""
    monkeypatch.setattr(ffi, "shared_memory", lambda: 24 << 10)
    with pytest.raises(cuda_text.Infeasible, match="shared memory"):
        kernel(egnn(61))


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_tiles_have_32_bits(dtype):
    with jax.enable_x64(True), pytest.raises(cuda_text.Infeasible, match=dtype):
        kernel(nnconv(8), dtype)


# --- Emulated runs -------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["default", "highest", "bfloat16"])
def test_values(name, precision, rng):
    make, widths, _ = MODELS[name]
    model = make(int(rng.choice(widths)))
    edges = Edges.random(rng, str(rng.choice(["random", "giant"])))
    exact = arrays_of(rng, model, edges)
    inputs = [jnp.asarray(x, "bfloat16" if precision == "bfloat16" else "float32") for x in exact]
    with jax.enable_x64(True):
        want = jax.tree.map(
            np.asarray, edges.plain(model, [np.asarray(x, np.float64) for x in inputs])
        )
    with jax.default_matmul_precision("highest" if precision == "highest" else None):
        results = edges.region(model, "cuda")(*inputs)
    bound = {"default": 5e-3, "highest": 1e-5, "bfloat16": 0.1}[precision]
    for got, expected in zip(results, want, strict=True):
        if got.dtype == bool:  # the sign of a number near zero may differ
            assert np.mean(got != expected) < 0.02
            continue
        got, finite = np.asarray(got, np.float64), np.isfinite(expected)
        assert np.array_equal(np.isfinite(got), finite)
        scale = max(1.0, float(np.max(np.abs(expected[finite]), initial=0)))
        np.testing.assert_allclose(
            got[finite] / scale, expected[finite] / scale, rtol=0, atol=bound
        )


@needs_cuda
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["default", "highest", "bfloat16"])
def test_gradients(name, precision, rng):
    """To all arrays at once: rows, columns, edges, and what edges share."""
    make, _, widths = MODELS[name]
    model = make(int(rng.choice(widths)))
    function, is_float = model.function, [x.dtype != bool for x in results_of(model)]
    model = model._replace(
        function=lambda *x: list(itertools.compress(function(*x), is_float)),
        outputs=list(itertools.compress(model.outputs, is_float)),
    )
    edges = Edges.random(rng, str(rng.choice(["random", "giant"])))
    exact = arrays_of(rng, model, edges)
    inputs = [jnp.asarray(x, "bfloat16" if precision == "bfloat16" else "float32") for x in exact]
    bound = {"default": 1e-2, "highest": 2e-5, "bfloat16": 0.2}[precision]
    every = tuple(range(len(inputs)))
    with jax.enable_x64(True):
        wide = [np.asarray(x, np.float64) for x in inputs]
        stable = regions.stable_elements(model, edges, wide, bound)
        cotangents = [
            np.where(mask, np.float32(rng.normal(size=x.shape)), 0)
            for mask, x in zip(stable, edges.plain(model, wide), strict=True)
        ]
        plain = loss(lambda *x: edges.plain(model, x), cotangents)
        want = jax.tree.map(np.asarray, jax.grad(plain, every)(*wide))
    with jax.default_matmul_precision("highest" if precision == "highest" else None):
        got = jax.jit(jax.grad(loss(edges.region(model, "cuda"), cotangents), every))(*inputs)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        x = np.asarray(x, np.float64)
        scale = max(1e-2, float(np.max(np.abs(y), initial=0)))
        np.testing.assert_allclose(x / scale, y / scale, rtol=0, atol=bound, err_msg=f"array {i}")


def loss(function, cotangents):
    """Return a linear function of finite results, whose gradient no large result amplifies."""

    def scalar(*x):
        results = zip(function(*x), cotangents, strict=True)
        return sum(jnp.sum(jnp.where(c != 0, y, 0) * c.astype(y.dtype)) for y, c in results)

    return scalar


@needs_cuda
def test_small_products_of_several_rows_are_computed_again(monkeypatch, rng):
    """Where registers are scarce, readers compute the numbers of six rows of an entry."""
    generate = tile_codegen.TileCodegen

    def recomputing(program, recompute, **options):
        return generate(program, recompute=True, **options)

    monkeypatch.setattr(tile_codegen, "TileCodegen", recomputing)

    def function(x, v, w):
        turned = (x.reshape(6, 3) @ v).reshape(-1)
        return [nn.silu(turned @ w) @ w.T * turned]

    rows = [("row", (18,)), ("shared", (3, 4)), ("shared", (24, 16))]
    model = Model(function, rows, [("row", "sum")])
    edges = Edges.random(rng, "random")
    arrays = [np.float32(x) for x in arrays_of(rng, model, edges)]
    got, want = edges.region(model, "cuda")(*arrays), edges.plain(model, arrays)
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=5e-3 * float(np.max(np.abs(want[0]))))


@needs_cuda
@pytest.mark.parametrize("gradients", [False, True])
def test_random_functions(gradients, monkeypatch, rng):
    """Tiles compute any function of an entry, though only those with products need them."""
    monkeypatch.setattr(cuda, "kernel_of", regions.tiles_if_feasible)
    monkeypatch.setattr(walks, "kernel_of", regions.tiles_if_feasible)
    assert regions.check(rng, "cuda", "float32", gradients) == []
