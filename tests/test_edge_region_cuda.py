"""Generated CUDA kernels of edge regions: source, policy, and emulated runs of random functions."""

import functools
import re
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz import regions
from op_spec import setting
from op_suite import KERNELS
from region_cases import MODELS, Edges, Model

import jax_gnn
from jax_gnn import Edge, Graph, Node, program
from jax_gnn._core import ffi
from jax_gnn._core.op import Operand
from jax_gnn._ops.edge_region import cuda, cuda_compile, cuda_text
from jax_gnn._ops.edge_region.cuda_codegen import kernel_of
from jax_gnn._ops.edge_region.jaxpr_lowering import from_jaxpr
from jax_gnn._ops.edge_region.primitive import edge_region, region_op
from jax_gnn._ops.edge_region.row_program import RowProgram, Unsupported
from jax_gnn._ops.edge_region.slot_loads import Limits, SlotLoads

needs_cuda = pytest.mark.skipif(
    "cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU"
)


def program_of(model, dtype="float32"):
    rows = [jax.ShapeDtypeStruct(shape, dtype) for _, shape in model.rows]
    return from_jaxpr(jax.make_jaxpr(model.function)(*rows), model.accesses, model.outputs)


def generate(model):
    return kernel_of(program_of(model))


def pairwise(width, outputs=(("row", "sum"),)):
    return Model(lambda x, y: [x * y], [("row", (width,)), ("col", (width,))], outputs)


# --- Source --------------------------------------------------------------------------------------


def test_wide_rows_move_in_wide_words():
    kernel = generate(pairwise(64))
    assert (kernel.slots, kernel.vec, kernel.lanes) == (64, 4, 16)
    assert kernel.words == (16, 16, 16)
    assert generate(pairwise(63)).words == (4, 4, 4)


def test_vectors_of_a_feature_share_a_slot():
    """PaiNN's message: three numbers for each feature of an edge."""
    rows = [("edge", (64,)), ("col", (64, 3)), ("edge", (3,))]
    kernel = generate(Model(lambda a, v, r: [a[:, None] * (v + r)], rows, [("row", "sum")]))
    assert (kernel.slots, kernel.parts) == (64, 3 * kernel.vec)
    assert "table" not in kernel.source


def test_sums_over_features_use_shuffles():
    rows = [("row", (4, 16)), ("col", (4, 16))]
    model = Model(lambda x, y: [jnp.sum(x * y, 1)[:, None] * y], rows, [("row", "sum")])
    assert "join_lanes<Join::kSum, 4>" in generate(model).source


def test_source_is_reproducible():
    assert generate(MODELS["gated_gcn"]) == generate(MODELS["gated_gcn"])


def test_indices_are_expressions(rng):
    """Strides, groups and repetitions are computed; other indices are looked up in a table."""
    slots, num_tables = 24, 0
    loads = SlotLoads(program_of(pairwise(slots)), slots, 2, Limits(np.inf, 400))
    slot_numbers = np.arange(slots)
    groups = (2, 3, 4, 6, 8, 12, 24)
    for _ in range(100):
        start, outer, inner = rng.integers(-3, 4, 3)
        group = int(rng.choice(groups))
        affine = 100 + start + outer * (slot_numbers // group) + inner * (slot_numbers % group)
        drawn = rng.integers(0, 50, slots)
        for indices in (affine, affine[rng.permutation(groups) % slots][slot_numbers % 7], drawn):
            text = loads._index(indices, "slot", False)
            num_tables += text.startswith("table")
            tables = {
                f"table{i}": list(map(int, re.findall(r"-?\d+", line.split("{")[1])))
                for i, line in enumerate(loads.tables)
            }
            python = text.replace("static_cast<int>", "").replace("/", "//")
            assert [eval(python, {"slot": slot, **tables}) for slot in range(slots)] == list(
                indices
            ), text
    assert 100 <= num_tables <= 200


@pytest.mark.parametrize("count", range(1, 18))
def test_sums_have_the_order_of_shuffles(count, rng):
    """Neighbours first, as if padded with zeros to a power of two."""
    numbers = rng.normal(size=count).astype(np.float32)
    lanes = np.pad(numbers, (0, (1 << (count - 1).bit_length()) - count))
    while len(lanes) > 1:
        lanes = lanes[::2] + lanes[1::2]
    terms = {f"x{i}": number for i, number in enumerate(numbers)}
    assert eval(cuda_text.tree("sum", list(terms)), terms) == lanes[0]


def test_unsupported_width():
    with pytest.raises(Unsupported, match="521 numbers"):
        generate(Model(lambda x: [jnp.sum(x) * x], [("row", (521,))], [("row", "sum")]))


# --- Walks ---------------------------------------------------------------------------------------


def test_walks_cover_all_results(rng):
    """Results by row and by column, and more of them than one kernel can hold."""
    count = cuda_text.MAX_ARRAYS + 2
    sinks = [("row", "sum"), ("col", "max"), ("edge", "none"), ("all", "sum")]
    outputs = [sinks[int(i)] for i in rng.integers(4, size=4)] + [("row", "sum")] * count
    model = Model(lambda x, y: [x * y * i for i in range(len(outputs))], pairwise(3).rows, outputs)
    walks = cuda.walks_of(program_of(model), False)
    assert sorted(i for walk in walks for i in walk.results) == list(range(len(outputs)))
    assert all(walk.by_col == (outputs[i][0] == "col") for walk in walks for i in walk.results)
    assert sum(not walk.by_col for walk in walks) == 2
    for walk in walks:
        assert len(walk.program.inputs) == len(walk.used) + len(walk.stored)
        assert walk.stored or len(walk.used) == 2
        assert kernel_of(walk.program)


def stores_and_sums(x, y, e):
    z = jnp.tanh(x * y + e)
    return [z, z, z * x, z]


STORED = Model(
    stores_and_sums,
    [("row", (4,)), ("col", (4,)), ("edge", (4,))],
    [("edge", "none"), ("col", "sum"), ("col", "max"), ("row", "sum")],
)


def test_second_walk_reads_stored_results(rng):
    first, second = cuda.walks_of(program_of(STORED), False)
    assert (first.by_col, first.used, first.stored) == (False, (0, 1, 2), ())
    assert (second.by_col, second.used, second.stored) == (True, (0,), (0,))
    assert [step.name for step in second.program.instructions] == ["mul"]


def test_first_walk_stores_masks_of_extremes(rng):
    """The second walk reads one boolean in place of all that is compared."""
    model = Model(lambda x, y: [jax.nn.relu(x - y)], pairwise(4).rows, [("row", "max")])
    gradient = model.region().cotangent((0, 1), (0,))
    assert isinstance(gradient.program, RowProgram)
    first, second = cuda.walks_of(gradient.program, False)
    assert (first.results, second.results, second.stored) == ((0, 2), (1,), (2,))
    assert [source.dtype for source in second.program.inputs] == [np.float32, bool]
    assert [step.name for step in second.program.instructions] == ["constant", "select_n", "neg"]


# --- Policy --------------------------------------------------------------------------------------


@pytest.fixture
def fake_gpu(monkeypatch):
    """A machine with a GPU and a compiler that accepts all sources."""
    monkeypatch.setattr(ffi, "shared_memory", lambda: 227 << 10)
    monkeypatch.setattr(cuda_compile, "missing", lambda: None)
    monkeypatch.setattr(cuda_compile, "architecture", lambda: "90")
    monkeypatch.setattr(cuda_compile, "_binaries", {})
    monkeypatch.setattr(cuda_compile, "compiler", lambda *_: cuda_compile.Binary(b"code", "name"))


def composition(edges, model, implementation):
    matrix = jax.tree.map(lambda x: Operand(jax.typeof(x), lambda ctx: x), edges.matrix)
    operands = types.SimpleNamespace(matrix=matrix)
    return cuda.composition("cuda", implementation, operands, region=model.region())


def sorts(x, y):
    return [jax.lax.sort(x) * y]  # the user's line


SORTS = Model(sorts, pairwise(4).rows, [("row", "sum")])


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("model", [STORED, MODELS["gated_gcn"], MODELS["sums_to_sources"]])
def test_walks_compute_the_region(model, rng):
    edges = Edges.random(rng, "random")
    arrays = edges.arrays(rng, model, "float32")
    run = composition(edges, model, "xla")  # walks by plain XLA
    results = run(list(map(jnp.asarray, arrays)), edges.matrix)
    for x, y in zip(results, edges.plain(model, arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize(("width", "layers"), [(20, 1), (128, 5)])
def test_gradients_of_linear_maps_are_in_regions_that_hold_them(width, layers, rng):
    """The gradients of five maps of 128 columns take more registers than a lane has."""

    @program
    def convolution(g, x: Node, e: Edge, w, key):
        mask = jax.random.bernoulli(g.key(key), 0.5, (1,))
        for _ in range(layers):
            e = jnp.tanh(jnp.tanh(e) @ w)
        return g.sum(g.src(x) * jnp.where(mask, e, 0.0))

    graph = Graph.from_edges(*rng.integers(0, 40, size=(2, 3000)), num_nodes=40)
    arrays = [jnp.ones(shape) for shape in ((40, width), (3000, width), (width, width))]

    def count_products(function):
        with jax_gnn.implementation("cuda"):
            return str(jax.make_jaxpr(function)(*arrays)).count("dot_general")

    def total(x, e, w):
        return jnp.sum(convolution(graph, x, e, w, jax.random.key(0)) ** 2)

    assert count_products(total) == count_products(jax.jit(total)) == 0
    is_outside = layers == 5
    assert (count_products(jax.grad(total)) > 0) == is_outside
    assert (count_products(jax.jit(jax.grad(total, (0, 1, 2)))) > 0) == is_outside


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("vectors", [0, 9])
def test_linear_maps_whose_kernels_are_slow_are_ops(vectors, rng):
    """Sums of 832 numbers beside matrices leave room for one warp of a multiprocessor."""

    @program
    def convolution(g, x: Node, y: Node, z: Node, e: Edge, w, v):
        a, b, c = jnp.split(jnp.tanh(jnp.tanh(e @ w) @ v), 3)
        more = [g.sum(g.src(y) * b), g.sum(g.src(z) * c)] if vectors else []
        return [g.sum(g.src(x) * a), *more]

    graph = Graph.from_edges(*rng.integers(0, 4000, size=(2, 60_000)), num_nodes=4000)
    nodes = (4000, 64), (4000, 3, 64), (4000, max(vectors, 1), 64)
    shapes = *nodes, (60_000, 64), (64, 64), (64, 192)
    with jax_gnn.implementation("cuda"):
        text = convolution.explain(graph, *map(jnp.ones, shapes))
    assert ("v by all" in text) == (not vectors)


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("precision", ["default", "highest"])
def test_linear_maps_in_full_precision_are_ops(precision, rng):
    """Tensor cores make such a product of several others, cuBLAS in float32."""

    @program
    def convolution(g, x: Node, e: Edge, w):
        for matrix in w:
            e = jnp.tanh(e @ matrix)
        return g.sum(g.src(x) * e)

    graph = Graph.from_edges(*rng.integers(0, 4000, size=(2, 60_000)), num_nodes=4000)
    arrays = map(jnp.ones, ((4000, 64), (60_000, 64), (3, 64, 64)))
    with jax_gnn.implementation("cuda"), jax.default_matmul_precision(precision):
        text = convolution.explain(graph, *arrays)
    _, _, regions = text.partition("edge regions")
    assert ("einsum" in regions.partition("fell back")[0]) == (precision == "default")


@pytest.mark.usefixtures("fake_gpu")
def test_compilers_run_side_by_side(rng, monkeypatch):
    """Kernels of a function and of its gradients are compiled at once, from the trace on."""
    edges, model = Edges.random(rng, "random"), pairwise(4)
    arrays = edges.arrays(rng, model, "float32")
    active, is_traced, sources = tuple(range(len(arrays))), threading.Event(), set()

    def compiler(source, *_):
        assert is_traced.wait(60)
        sources.add(source)
        return cuda_compile.Binary(b"code", "name")

    def loss(*arrays):
        (x,) = edge_region(model.function, arrays, model.accesses, model.outputs, edges.matrix)
        return jnp.sum(jnp.sin(x))

    monkeypatch.setattr(cuda_compile, "compiler", compiler)
    with jax_gnn.implementation("cuda"):
        jax.make_jaxpr(jax.grad(loss, active))(*arrays)
    is_traced.set()
    for binary in cuda_compile._binaries.values():
        binary.result()
    region = model.region()
    want = [*cuda.sources(region, edges.matrix)]
    want += cuda.sources(region.cotangent(active, (0,)), edges.matrix)
    assert sources == set(want) and len(sources) == 3


@pytest.mark.usefixtures("fake_gpu")
def test_function_without_instructions(rng):
    """A warning or, if kernels are demanded, an error names the equation and the user's line."""
    edges = Edges.random(rng, "random")
    line = r"sort.*test_edge_region_cuda\.py:\d+"
    with warnings.catch_warnings(action="error"):
        assert composition(edges, pairwise(4), None) is not None
    with pytest.warns(RuntimeWarning, match=line) as records:
        assert composition(edges, SORTS, None) is None
    assert len(records) == 1
    with pytest.raises(ValueError, match=line):
        composition(edges, SORTS, "cuda")


@pytest.mark.usefixtures("fake_gpu")
def test_compiler_error_is_a_warning(rng, monkeypatch):
    def reject(definition, arch, fma):
        raise cuda_compile.CompilerError("line 3: no")

    monkeypatch.setattr(cuda_compile, "compiler", reject)
    with pytest.warns(RuntimeWarning, match="line 3: no"):
        assert composition(Edges.random(rng, "random"), pairwise(4), None) is None


@pytest.mark.usefixtures("fake_gpu")
def test_missing_compiler_is_silent_unless_demanded(rng, monkeypatch):
    edges = Edges.random(rng, "random")
    monkeypatch.setattr(cuda_compile, "missing", lambda: "no compiler")
    with warnings.catch_warnings(action="error"):
        assert composition(edges, pairwise(4), None) is None
    with pytest.raises(ValueError, match="no compiler"):
        composition(edges, pairwise(4), "cuda")


def test_threads_that_look_for_the_compiler_wait_for_its_import(monkeypatch):
    """One of several threads that import a package may see it without its attributes."""
    attributes, is_first = types.SimpleNamespace(), threading.Lock()

    def import_module(name):
        if name == "cuda.core" and is_first.acquire(blocking=False):
            threading.Event().wait(0.2)
            attributes.Program = object
        return attributes if name == "cuda.core" else types.SimpleNamespace(nvrtcVersion=tuple)

    monkeypatch.setattr(cuda_compile.importlib, "import_module", import_module)
    cuda_compile._missing.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(lambda _: cuda_compile.missing(), range(4))] == [None] * 4
    finally:
        cuda_compile._missing.cache_clear()


def test_damaged_cache_file_is_compiled_again(monkeypatch):
    class Cache(dict):
        def __enter__(self):
            return self

        def __exit__(self, *error): ...

    files, builds = Cache(), []
    utils = types.SimpleNamespace(
        FileStreamProgramCache=lambda folder, max_size_bytes: files,
        make_program_cache_key=lambda **options: options["code"],
    )
    monkeypatch.setattr(cuda_compile.importlib, "import_module", lambda name: utils)

    def build():
        builds.append(1)
        return b"the code of a kernel"

    for damage, count in ((None, 1), (None, 1), (b"", 2), (b"short", 3), ("flip", 4), (None, 4)):
        if damage == "flip":
            files["source"] = files["source"][:-1] + b"?"
        elif damage is not None:
            files["source"] = damage
        assert cuda_compile._cached("source", None, build) == b"the code of a kernel"
        assert len(builds) == count


def test_headers_that_kernels_include_are_installed():
    """NVRTC has the installed headers alone: device headers, and those that CMake names."""
    root = Path(__file__).parents[1]
    folder = root / "cpp/kernels/cuda"
    cmake = (root / "CMakeLists.txt").read_text()
    named = re.search(r"install\(FILES (.*) DESTINATION jax_gnn/include/kernels\)", cmake)
    installed = {*folder.glob("*.cuh"), *(root / name for name in named[1].split())}
    stack = [folder / name for name in re.findall('"(.*)"', cuda_compile.source_of(""))]
    included = set()
    while stack:
        header = stack.pop()
        if header not in included:
            included.add(header)
            names = re.findall(r'#include "(.*)"', header.read_text())
            stack += [(header.parent / name).resolve() for name in names if "emulator" not in name]
    assert len(included) > 10 and included <= installed


# --- Emulated runs -------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("gradients", [False, True])
def test_random_functions(gradients, rng):
    assert regions.check(rng, "cuda", "float64", gradients) == []


def heads_of_odd_rows(x, y):
    s = jax.nn.softmax(x * y)
    return [s * y, jnp.maximum(s, y).mean(-1), s.max()]


@pytest.mark.parametrize(("heads", "width"), [(2, 33), (3, 33), (5, 7)])
def test_sums_over_any_number_of_lanes(heads, width, rng):
    """Lanes of a team share rows of 33 numbers, and add them up in one order."""
    row, outputs = (heads, width), [("row", "sum"), ("col", "sum"), ("edge", "none")]
    model = Model(heads_of_odd_rows, [("row", row), ("col", row)], outputs)
    edges = Edges.random(rng, "random")
    region = model.region()
    text = "".join(cuda.sources(region, edges.matrix))
    text += "".join(cuda.sources(region.cotangent((0, 1), (0, 1, 2)), edges.matrix))
    assert heads == 3 or "__shfl_sync(kWholeWarp" in text
    if not KERNELS or KERNELS[0] != "cuda":
        return
    arrays = edges.arrays(rng, model, "float64")

    def with_gradients(function):
        def loss(*x):
            return sum(jnp.sum(jnp.sin(y)) for y in function(*x))

        return jax.jit(lambda *x: (function(*x), jax.grad(loss, (0, 1))(*x)))(*arrays)

    with setting(None, "float64"):
        got = with_gradients(edges.region(model, "cuda"))
        want = with_gradients(lambda *x: edges.plain(model, x))
    assert regions.relative_error(got, want) < 1e-12


def gaussians(e, mean, x):
    return [jnp.exp(-jnp.sum((e - mean) ** 2, -1)) @ x]


GAUSSIANS = Model(
    gaussians, [("edge", (3,)), ("shared", (3, 3)), ("col", (3, 65))], [("row", "sum")]
)


def test_functions_of_few_numbers_are_stored_first():
    """Lanes of a row of 65 numbers would all compute the Gaussians of an entry."""
    first, second = cuda.walks_of(program_of(GAUSSIANS), False)
    assert [step.name for step in first.program.instructions][-1] == "exp"
    assert all(step.name != "exp" for step in second.program.instructions)
    assert (first.results, second.results, second.stored) == ((1,), (0,), (1,))
    narrow = Model(gaussians, [*GAUSSIANS.rows[:2], ("col", (3, 5))], GAUSSIANS.outputs)
    assert len(cuda.walks_of(program_of(narrow), False)) == 1


@needs_cuda
@pytest.mark.parametrize("scenario", ["random", "giant"])
def test_stored_functions(scenario, rng):
    edges = Edges.random(rng, scenario)
    arrays = edges.arrays(rng, GAUSSIANS, "float64")

    def with_gradients(function):
        def loss(*x):
            return sum(jnp.sum(jnp.sin(y)) for y in function(*x))

        return jax.jit(lambda *x: (function(*x), jax.grad(loss, (0, 1, 2))(*x)))(*arrays)

    with setting(None, "float64"):
        got = with_gradients(edges.region(GAUSSIANS, "cuda"))
        want = with_gradients(lambda *x: edges.plain(GAUSSIANS, x))
    assert regions.relative_error(got, want) < 1e-12


@needs_cuda
@pytest.mark.parametrize("name", ["gated_gcn", "sums_to_sources"])
def test_same_bits(name, rng):
    model, edges = MODELS[name], Edges.random(rng, "giant")
    arrays = edges.arrays(rng, model, "float32")
    op = edges.region(model, "cuda")
    first = jax.device_get(jax.jit(op)(*arrays))
    for _ in range(3):
        again = jax.device_get(jax.jit(op)(*arrays))
        assert all(x.tobytes() == y.tobytes() for x, y in zip(first, again, strict=True))


@needs_cuda
@pytest.mark.parametrize("scenario", ["random", "giant"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [3, 67, (16, 24)])
def test_ties_are_counted_beside_extremes(width, dtype, scenario, rng):
    """Also beside sums, next to NaN, and of extremes that another kernel has."""
    inner, columns = width if isinstance(width, tuple) else (width, width)

    def function(x, w):
        x = jnp.round(x)
        y = x if inner == columns else x @ w
        y = jnp.where(y > 7, jnp.nan, y)  # few
        return [y, y, y * 2]

    rows = [("col", (inner,)), ("shared", (inner, columns))]
    model = Model(function, rows, [("row", "max"), ("row", "min"), ("row", "sum")])
    edges = Edges.random(rng, scenario)
    x, w = edges.arrays(rng, model, "float32")
    arrays = [jnp.asarray(x, dtype), jnp.asarray(np.sign(np.round(w)), dtype)]
    region = model.region(dtype).with_ties
    alone = region._with_results(region.jaxpr.jaxpr.outvars[3:], region.outputs[3:])
    values = jax.vmap(lambda x: function(x, arrays[1])[0])(arrays[0])[edges.cols]
    with jax_gnn.implementation("cuda"):
        *results, _, first, last = region_op(tuple(arrays), edges.matrix, region=region)
        again = region_op(tuple(arrays), edges.matrix, region=alone)
    for extreme, ties, same in zip(results, (first, last), again, strict=True):
        want = np.zeros(ties.shape)
        np.add.at(want, edges.rows, np.asarray(values == extreme[edges.rows], float))
        np.testing.assert_array_equal(np.asarray(ties, float), want)
        np.testing.assert_array_equal(ties, same)
        assert want.max() > 1


@needs_cuda
@pytest.mark.parametrize("scenario", ["random", "giant"])
@pytest.mark.parametrize(
    ("width", "dtype"), [(3, "float64"), (67, "float32"), ((16, 24), "float32")]
)
def test_exponentials_are_summed_while_their_maximum_is_found(width, dtype, scenario, rng):
    """Large scores, and infinities of both signs, are those of two passes."""
    inner, columns = width if isinstance(width, tuple) else (width, width)

    def function(x, w, v):
        scores = x if inner == columns else x @ w
        scores = jnp.where(scores > 40, jnp.inf, jnp.where(scores < -20, -jnp.inf, scores))
        return [scores, v, jnp.ones_like(scores)]

    rows = [("col", (inner,)), ("shared", (inner, columns)), ("edge", (columns,))]
    model = Model(function, rows, [("row", "max"), ("row", "exp_sum"), ("row", "exp_sum")])
    edges = Edges.random(rng, scenario)
    x, w, v = edges.arrays(rng, model, dtype)
    numbers = np.round(8 * x), np.sign(np.round(w)), v  # whose products are exact in TF32
    with jax_gnn.implementation("cuda"), jax.enable_x64(dtype == "float64"):
        arrays = tuple(jnp.asarray(y, dtype) for y in numbers)
        scores = jax.vmap(lambda x: function(x, arrays[1], arrays[2][0])[0])(arrays[0])
        scores = np.asarray(scores[edges.cols], np.float64)
        largest, *sums = region_op(arrays, edges.matrix, region=model.region(dtype))
    maxima = np.full(largest.shape, -np.inf)
    np.maximum.at(maxima, edges.rows, scores)
    np.testing.assert_array_equal(largest, maxima)
    with np.errstate(invalid="ignore"):  # zero times infinity
        terms = np.exp(scores - np.where(np.isfinite(maxima), maxima, 0)[edges.rows])
        for got, factor in zip(sums, (v[: len(edges.rows)], 1.0), strict=True):
            want = np.zeros(maxima.shape)
            np.add.at(want, edges.rows, terms * factor)
            finite = np.isfinite(want)
            bound = {"rtol": 1e-5, "atol": 1e-5}
            np.testing.assert_allclose(got, np.where(finite, want, got), **bound)
            assert not np.isfinite(np.asarray(got)[~finite]).any()


def gated(x, y, w, v):
    """Two scores of a row of functions, and a message that they scale."""
    m = jnp.tanh(x + y)
    scores = m @ w
    return [m * scores[0], jnp.tanh(scores), jnp.exp(-m) @ v]


@pytest.mark.parametrize("width", [9, 64, 70])
def test_lanes_share_products_with_few_columns(width):
    """No lane computes all functions of a row, as the length of the text tells."""
    rows = [("row", (width,)), ("col", (width,)), ("shared", (width, 2)), ("shared", (width,))]
    sinks = [("row", "sum"), ("row", "sum"), ("edge", "none")]
    model = Model(gated, rows, sinks)
    gradient = model.region().cotangent((0, 1, 2, 3), (0, 1, 2)).program
    for instructions in (program_of(model), gradient):
        for walk in cuda.walks_of(instructions, False):
            source = kernel_of(walk.program).source
            assert source.count("tanh(") <= 12, source


@needs_cuda
@pytest.mark.parametrize(("width", "dtype"), [(9, "float64"), (64, "bfloat16"), (70, "float32")])
def test_products_with_few_columns(width, dtype, rng):
    rows = [("row", (width,)), ("col", (width,)), ("shared", (width, 2)), ("shared", (width,))]
    sinks = [("row", "sum"), ("row", "sum"), ("edge", "none")]
    model, edges = Model(gated, rows, sinks), Edges.random(rng, "random")
    with jax.enable_x64(True):
        arrays = [jnp.asarray(x, dtype) for x in edges.arrays(rng, model, "float32")]
        exact = [np.asarray(x, np.float64) for x in arrays]

        def loss(function):
            return lambda *x: sum(jnp.sum(jnp.sin(y.astype(float))) for y in function(*x))

        plain, region = functools.partial(edges.plain, model), edges.region(model, "cuda")
        want = plain(exact), jax.grad(loss(lambda *x: plain(x)), (0, 1, 2, 3))(*exact)
        got = region(*arrays), jax.grad(loss(region), (0, 1, 2, 3))(*arrays)
    bound = {"float64": 1e-10, "float32": 5e-3, "bfloat16": 0.1}[dtype]  # TF32 at 70
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * max(1.0, np.abs(b).max()))


@needs_cuda
def test_sines(rng):
    """Arguments of any size; those within 1e5 are reduced without a call."""
    function = lambda x: [jnp.sin(x), jnp.cos(x)]  # noqa: E731
    model = Model(function, [("edge", (64,))], [("edge", "none")] * 2)
    assert "sine<0>" in generate(model).source
    edges = Edges.random(rng, "random")
    x = np.float32(rng.normal(size=(edges.count, 64)) * np.exp(rng.normal(size=64) * 4))
    x[0, :6] = 0, -0.0, 1e5, -3e5, 1e30, np.inf
    with np.errstate(invalid="ignore"):
        want = [f(x.astype(np.float64)) for f in (np.sin, np.cos)]
    for got, expected in zip(edges.region(model, "cuda")(x), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-7)


@needs_cuda
def test_softplus(rng):
    """In float32, its logarithm is a polynomial, and its exponential has the error of its power."""
    model = Model(lambda x: [jax.nn.softplus(x)], [("edge", (64,))], [("edge", "none")])
    assert "log1p_of_fraction" in generate(model).source
    edges = Edges.random(rng, "random")
    x = np.float32(rng.normal(size=(edges.count, 64)) * np.exp(rng.normal(size=64) * 2))
    x[0, :4] = 0, -100, 100, np.inf
    (got,) = edges.region(model, "cuda")(x)
    want = np.logaddexp(x.astype(np.float64), 0)
    written = np.asarray(got).any(1)  # padding is zero
    assert written.sum() >= len(edges.rows) - 1
    np.testing.assert_allclose(np.asarray(got)[written], want[written], rtol=5e-6, atol=1e-37)
