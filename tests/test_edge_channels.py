"""Products by channel, as in equivariant models: polynomials, and emulated kernels."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_suite import KERNELS
from region_cases import Edges, Model

import jax_gnn
from jax_gnn import Edge, Graph, Node
from jax_gnn._ops.edge_region import channel_kernel, cuda
from jax_gnn._ops.edge_region.channels import channels_of
from jax_gnn._ops.edge_region.cuda_codegen import kernel_of
from jax_gnn._ops.edge_region.cuda_text import has_tiles

needs_cuda = pytest.mark.skipif(
    "cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU"
)


def sparse_array(*shape):
    """Return numbers like those of a Clebsch-Gordan array, of which most are zero."""
    rng, size = np.random.default_rng(shape), math.prod(shape)
    places = rng.choice(size, max(1, size * 3 // 10), replace=False)
    return np.bincount(places, rng.normal(size=len(places)), size).reshape(shape)


def split(x, channels, sizes, side_by_side):
    """Return the blocks ``(channels, size)`` of a row, one after the other or by channel."""
    stops = np.cumsum(sizes)[:-1]
    if side_by_side:
        return jnp.split(x.reshape(channels, sum(sizes)), stops, axis=1)
    return [part.reshape(channels, -1) for part in jnp.split(x, channels * stops)]


def tensor_product(channels, sizes=(1, 3, 5), outs=(1, 3, 5), side_by_side=False, weighted=True):
    """Return the product of features and harmonics, with weights by path and channel."""
    paths = [(i, j, k) for i in sizes for j in sizes for k in outs if (i + j + k) % 4 == 3]

    def function(x, y, w):
        blocks = dict(zip(sizes, split(x, channels, sizes, side_by_side), strict=True))
        harmonics = dict(zip(sizes, jnp.split(y, np.cumsum(sizes)[:-1]), strict=True))
        results = []
        for weight, (i, j, k) in zip(w.reshape(-1, channels), paths, strict=True):
            constant = sparse_array(i, j, k).astype(x.dtype)
            m = jnp.einsum("ui,j,ijk->uk", blocks[i], harmonics[j], constant)
            results.append((m * weight[:, None] if weighted else m).reshape(-1))
        return [jnp.concatenate(results)]

    rows = [("col", (channels * sum(sizes),)), ("edge", (sum(sizes),))]
    return Model(function, [*rows, ("edge", (len(paths) * channels,))], [("row", "sum")])


def with_functions(channels):
    """Return a model with functions of channels, a sum over them, and what all entries share."""
    constant = sparse_array(3, 3, 3)

    def function(x, y, w, mask):
        v = jnp.einsum("ui,j,ijk->uk", x, y, constant.astype(x.dtype)) * jnp.tanh(w)[:, None] / 3
        norms = jnp.sqrt(1 + jnp.sum(v**2, 1)) - jnp.where(mask, 1, w)
        return [v, norms, jnp.sum(v * norms[:, None], 0) + y]

    rows = [("col", (channels, 3)), ("row", (3,)), ("shared", (channels,)), ("edge", ())]
    return Model(function, rows, [("row", "sum"), ("edge", "none"), ("edge", "none")])


MODELS = {
    "blocks": tensor_product(32),
    "side by side": tensor_product(16, (1, 3), (1, 3, 5), side_by_side=True),
    "without weights": tensor_product(20, (1, 3), (1, 3), weighted=False),
    "two warps, one of them in part": tensor_product(40, (1, 3), (1, 3, 5)),
}


def programs(model):
    """Return the row programs of the walks of a region and of its gradient."""
    region = model.region()
    gradient = region.cotangent(tuple(range(len(model.rows))), tuple(range(len(model.outputs))))
    return [[walk.program for walk in cuda.walks_of(x.program, False)] for x in (region, gradient)]


def test_channels_are_found_in_any_layout():
    for name, count in (("blocks", 32), ("side by side", 16), ("without weights", 20)):
        (forward,), (backward, sums) = programs(MODELS[name])
        assert channels_of(forward).size == channels_of(backward).size == count
        # Gradients by source are stored by edge, as they are narrower than messages.
        assert [output.dest for output in backward.outputs].count("edge") == len(backward.outputs)
        assert channels_of(sums) is None
        assert [x.access for x in sums.inputs] == ["edge"]


def test_constants_leave_out_zeros():
    """No more multiplications than nonzero coefficients, pairs of factors, and weights."""
    (program,), _ = programs(MODELS["blocks"])
    source = channel_kernel.generate_channels(program).source
    value = source.split("void value")[1].split("template")[0]
    sizes = (1, 3, 5)
    arrays = [
        sparse_array(i, j, k)
        for i in sizes for j in sizes for k in sizes if (i + j + k) % 4 == 3
    ]  # fmt: skip
    most = (
        sum(np.count_nonzero(x) for x in arrays) + sum(sizes) ** 2 + sum(x.shape[2] for x in arrays)
    )
    assert 0 < value.count(" * ") <= most


def test_wide_results_are_cut_into_groups():
    model = tensor_product(16, (5, 7, 9), (5, 7, 9))
    (program,), _ = programs(model)
    kernel = channel_kernel.generate_channels(program)
    width = program.values[program.outputs[0].value].width
    assert kernel.parts <= 64 < width // 16
    assert kernel.slots // 32 >= width / 16 / kernel.parts


def test_products_that_mix_channels_have_none():
    model = Model(
        lambda x, y: [jnp.roll(x @ sparse_array(3, 3).astype(x.dtype), 1, 0) * jnp.sum(x * y)],
        [("col", (32, 3)), ("edge", ())],
        [("row", "sum")],
    )
    with pytest.raises(channel_kernel.Infeasible):
        channel_kernel.generate_channels(model.region().program)


def test_products_with_weights_are_left_to_tensor_cores():
    """A radial network beside a product with constants: no channel multiplies with its matrix."""

    def function(x, y, e, w):
        weights = jnp.tanh(e @ w)
        v = jnp.einsum("ui,j,ijk->uk", x, y, sparse_array(3, 3, 3).astype(x.dtype))
        return [v * weights[:, None]]

    rows = [("col", (16, 3)), ("edge", (3,)), ("edge", (8,)), ("shared", (8, 16))]
    for programs_of_region in programs(Model(function, rows, [("row", "sum")])):
        for program in programs_of_region:
            assert channels_of(program) is None
            assert kernel_of(program).source.count("\n") < 500
    assert has_tiles(programs(Model(function, rows, [("row", "sum")]))[0][0])


def test_programs_read_sparse_constants(rng):
    """Arrays of numpy are part of the kernel, not operands."""
    model = MODELS["blocks"]

    @jax_gnn.program
    def product(g, x: Node, y: Edge, w: Edge):
        return g.sum(model.function(g.src(x), y, w)[0])

    graph = Graph.from_edges(*rng.integers(200, size=(2, 2000)), num_nodes=200)
    rows = {"col": 200, "edge": 2000}
    shapes = [
        jax.ShapeDtypeStruct((rows[access], *shape), "float32") for access, shape in model.rows
    ]
    with jax_gnn.implementation("xla"):
        text = str(product.explain(graph, *shapes))
    (reads,) = re.findall(r"reads (.*)", text)
    operands = {
        place: {*names.split(", ")} for names, place in re.findall(r"(.+?) by (\w+)(?:; |$)", reads)
    }
    assert operands == {"source": {"x"}, "edge": {"y", "w"}}


# --- Emulated runs -------------------------------------------------------------------------------


def gradients(function, order, cotangents, tangents):
    """Return a function's results, its gradients, or the gradients of these along tangents."""
    if order == 0:
        return function

    def first(*x):
        return jax.vjp(function, *x)[1](
            [c.astype(y.dtype) for c, y in zip(cotangents, function(*x), strict=True)]
        )

    if order == 1:
        return first
    return lambda *x: jax.vjp(first, *x)[1](
        tuple(t.astype(v.dtype) for t, v in zip(tangents, x, strict=True))
    )


@needs_cuda
@pytest.mark.parametrize("name", [*MODELS, "with functions"])
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_gradients(name, order, dtype, rng):
    model = with_functions(32) if name == "with functions" else MODELS[name]
    if name == "with functions" and order:
        model = model._replace(
            rows=model.rows[:3], function=lambda *x: with_functions(32).function(*x, False)
        )
    edges = Edges.random(rng, str(rng.choice(["random", "giant", "padding"])))
    exact = edges.arrays(rng, model, "float32")
    if name == "with functions" and not order:
        exact[3] = exact[3] > 0
    inputs = [jnp.asarray(x, x.dtype if x.dtype == bool else dtype) for x in exact]
    kernels, plain = edges.region(model, "cuda"), lambda *x: edges.plain(model, x)
    valid = [np.where(np.isnan(x), 0, x) if x.dtype != bool else x for x in inputs]
    with jax.enable_x64(True):
        wide = [np.asarray(x, bool if x.dtype == bool else np.float64) for x in valid]
        cotangents = [rng.normal(size=x.shape) for x in plain(*wide)]
        tangents = [rng.normal(size=x.shape) for x in wide]
        want = jax.tree.map(np.asarray, gradients(plain, order, cotangents, tangents)(*wide))
    args = order, *([jnp.asarray(x, dtype) for x in y] for y in (cotangents, tangents))
    got = jax.jit(gradients(kernels, *args))(*inputs)
    bound = 1e-5 if dtype == "float32" else 0.05
    for x, y in zip(got, want, strict=True):
        scale = max(1.0, float(np.max(np.abs(y), initial=0)))
        np.testing.assert_allclose(np.asarray(x, np.float64) / scale, y / scale, rtol=0, atol=bound)


@needs_cuda
def test_runs_across_blocks(rng):
    """Blocks hand on sums of a row that has most of the entries."""
    model = MODELS["side by side"]
    dst = np.sort(np.where(rng.random(300) < 0.6, 5, rng.integers(40, size=300)))
    graph = Graph.from_edges(rng.integers(20, size=300), dst, num_src=20, num_dst=40)
    matrix = graph.matrix(weighted=True)
    edges = Edges(matrix, np.asarray(matrix.by_row.rows), np.asarray(matrix.by_row.cols), 300)
    inputs = edges.arrays(rng, model, "float32")
    kernels, plain = edges.region(model, "cuda"), lambda *x: edges.plain(model, x)
    with jax.default_matmul_precision("highest"):
        (got,), (want,) = kernels(*inputs), plain(*inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
