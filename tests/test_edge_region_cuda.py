"""Texts of edge regions for CUDA: what they say, when there is none, and random ones emulated."""

from __future__ import annotations

import re
import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz import regions
from op_suite import KERNELS
from region_cases import MODELS, Edges, Model

import jax_gnn
from jax_gnn import Edge, Graph, Node, program
from jax_gnn._core.op import Operand
from jax_gnn._ops.edge_region import cuda, cuda_compile, cuda_text
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import RowProgram, Unsupported, from_jaxpr


def program_of(model: Model, dtype: str = "float32") -> RowProgram:
    rows = [jax.ShapeDtypeStruct(shape, dtype) for _, shape in model.rows]
    return from_jaxpr(jax.make_jaxpr(model.function)(*rows), model.reads, model.outputs)


def pairwise(width: int, outputs: Any = (("row", "sum"),)) -> Model:
    rows: Any = [("row", (width,)), ("col", (width,))]
    return Model(lambda x, y: [x * y], rows, outputs)


def test_wide_rows_move_in_wide_words() -> None:
    text = cuda_text.message_text(program_of(pairwise(64)))
    assert (text.slots, text.vec, text.lanes) == (64, 4, 16)
    assert text.words == (16, 16, 16)
    assert cuda_text.message_text(program_of(pairwise(63))).words == (4, 4, 4)


def test_a_slot_has_the_numbers_that_belong_together() -> None:
    """As of PaiNN's message, whose vectors have three numbers for each feature of an edge."""
    rows: Any = [("edge", (64,)), ("col", (64, 3)), ("edge", (3,))]
    model = Model(lambda a, v, r: [a[:, None] * (v + r)], rows, [("row", "sum")])
    text = cuda_text.message_text(program_of(model))
    assert (text.slots, text.parts) == (64, 3 * text.vec)
    assert "table" not in text.source


def test_sums_of_rows_are_made_by_lanes() -> None:
    rows: Any = [("row", (4, 16)), ("col", (4, 16))]
    model = Model(lambda x, y: [jnp.sum(x * y, 1)[:, None] * y], rows, [("row", "sum")])
    assert "join_lanes<Join::kSum, 4>" in cuda_text.message_text(program_of(model)).source


def test_a_program_has_one_text() -> None:
    first, second = (cuda_text.message_text(program_of(MODELS["gated_gcn"])) for _ in range(2))
    assert first == second


def test_indices_are_computed(rng: np.random.Generator) -> None:
    """Whatever takes are made of: strides, groups, repetitions; else they are looked up."""
    slots, looked_up = 24, 0
    writer = cuda_text._Writer(
        program_of(pairwise(slots)), slots, 2, cuda_text._Layout(False, True), cuda_text._LIMITS[0]
    )
    places = np.arange(slots)
    groups = (2, 3, 4, 6, 8, 12, 24)
    for _ in range(100):
        start, outer, inner = rng.integers(-3, 4, 3)
        group = int(rng.choice(groups))
        wanted = 100 + start + outer * (places // group) + inner * (places % group)
        drawn = rng.integers(0, 50, slots)
        for index in (wanted, wanted[rng.permutation(groups) % slots][places % 7], drawn):
            text = writer.index(index, "slot", False)
            looked_up += text.startswith("table")
            known = {
                f"table{i}": list(map(int, re.findall(r"-?\d+", line.split("{")[1])))
                for i, line in enumerate(writer.tables)
            }
            python = text.replace("static_cast<int>", "").replace("/", "//")
            found = [eval(python, {"slot": slot, **known}) for slot in range(slots)]
            assert found == list(index), text
    assert 100 <= looked_up <= 200


@pytest.mark.parametrize("count", range(1, 18))
def test_sums_are_in_one_order(count: int, rng: np.random.Generator) -> None:
    """That of neighbouring lanes: of a power of two, filled up with zeros."""
    numbers = rng.normal(size=count).astype(np.float32)
    lanes = np.pad(numbers, (0, (1 << (count - 1).bit_length()) - count))
    while len(lanes) > 1:
        lanes = lanes[::2] + lanes[1::2]
    known = {f"x{i}": number for i, number in enumerate(numbers)}
    assert eval(cuda_text._tree("sum", list(known)), known) == lanes[0]


def test_what_no_text_has() -> None:
    model = Model(lambda x: [jnp.sum(x) * x], [("row", (197,))], [("row", "sum")])
    with pytest.raises(Unsupported, match="197 numbers"):
        cuda_text.message_text(program_of(model))


def test_walks_have_all_results(rng: np.random.Generator) -> None:
    """By row, by column, and divided where they are too many for one."""
    count = cuda_text.MOST_ARRAYS + 2
    outputs: Any = [("row", "sum"), ("col", "max"), ("edge", "none"), ("all", "sum")]
    several = [outputs[int(i)] for i in rng.integers(4, size=4)] + [("row", "sum")] * count
    model = Model(lambda x, y: [x * y * i for i in range(len(several))], pairwise(3).rows, several)
    walks = cuda._walks(program_of(model), Edges.random(rng, "random").matrix)
    assert sorted(place for walk in walks for place in walk.places) == list(range(len(several)))
    assert all(walk.by_col == (several[i][0] == "col") for walk in walks for i in walk.places)
    assert sum(not walk.by_col for walk in walks) == 2
    for walk in walks:
        assert len(walk.program.inputs) == len(walk.used) + len(walk.stored)
        assert walk.stored or len(walk.used) == 2
        assert cuda_text.message_text(walk.program)


def kept_and_summed(x: Any, y: Any, e: Any) -> list[Any]:
    z = jnp.tanh(x * y + e)
    return [z, z, z * x, z]


KEPT = Model(
    kept_and_summed,
    [("row", (4,)), ("col", (4,)), ("edge", (4,))],
    [("edge", "none"), ("col", "sum"), ("col", "max"), ("row", "sum")],
)


def test_a_walk_reads_what_the_one_before_kept(rng: np.random.Generator) -> None:
    """Rather than to make it again, of more numbers."""
    edges = Edges.random(rng, "random")
    first, second = cuda._walks(program_of(KEPT), edges.matrix)
    assert (first.by_col, first.used, first.stored) == (False, (0, 1, 2), ())
    assert (second.by_col, second.used, second.stored) == (True, (0,), (0,))
    assert [each.name for each in second.program.instructions] == ["mul"]


def test_a_walk_keeps_what_attains_maxima(rng: np.random.Generator) -> None:
    """The other walk then reads one truth value in place of all that is compared."""
    model = Model(lambda x, y: [jax.nn.relu(x - y)], pairwise(4).rows, [("row", "max")])
    rows = [jax.ShapeDtypeStruct(shape, "float32") for _, shape in model.rows]
    region = Region.of(model.function, rows, model.reads, model.outputs).cotangent((0, 1), (0,))
    assert isinstance(region.program, RowProgram)
    first, second = cuda._walks(region.program, Edges.random(rng, "random").matrix)
    assert (first.places, second.places, second.stored) == ((0, 2), (1,), (2,))
    assert [each.dtype for each in second.program.inputs] == [np.float32, bool]
    assert [each.name for each in second.program.instructions] == ["constant", "select_n", "neg"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and a compiler that takes all texts."""
    monkeypatch.setattr(cuda_compile, "missing", lambda: None)
    monkeypatch.setattr(cuda_compile, "architecture", lambda: "90")
    monkeypatch.setattr(cuda_compile, "_binaries", {})
    monkeypatch.setattr(cuda_compile, "compiler", lambda *_: cuda_compile.Binary(b"code", "name"))


def composition(rng: np.random.Generator, model: Model, implementation: str | None) -> Any:
    edges = Edges.random(rng, "random")
    rows = [jax.ShapeDtypeStruct(shape, "float32") for _, shape in model.rows]
    region = Region.of(model.function, rows, model.reads, model.outputs)
    matrix = jax.tree.map(lambda x: Operand(jax.typeof(x), lambda ctx: x), edges.matrix)
    operands = types.SimpleNamespace(matrix=matrix)
    return cuda.composition("cuda", implementation, operands, region=region)


def sorts(x: Any, y: Any) -> list[Any]:
    return [jax.lax.sort(x) * y]  # the user's line


SORTS = Model(sorts, pairwise(4).rows, [("row", "sum")])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["kept", "gated_gcn", "both_ends"])
def test_walks_make_the_region(name: str, rng: np.random.Generator) -> None:
    """Whoever makes the walks: here plain XLA does."""
    model = KEPT if name == "kept" else MODELS[name]
    edges = Edges.random(rng, "random")
    arrays = edges.arrays(rng, model, "float32")
    rows = [jax.ShapeDtypeStruct(shape, "float32") for _, shape in model.rows]
    region = Region.of(model.function, rows, model.reads, model.outputs)
    matrix = jax.tree.map(lambda x: Operand(jax.typeof(x), lambda ctx: x), edges.matrix)
    operands = types.SimpleNamespace(matrix=matrix)
    function = cuda.composition("cuda", "xla", operands, region=region)
    assert function is not None
    found = function(list(map(jnp.asarray, arrays)), edges.matrix)
    for x, y in zip(found, edges.plain(model, arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("here")
def test_gradients_of_programs_have_maps_outside(rng: np.random.Generator) -> None:
    """Of what is differentiated only, whatever else is done with it."""

    @program
    def convolution(g: Any, x: Node, e: Edge, w: Any, key: Any) -> Any:
        kept = jax.random.bernoulli(g.key(key), 0.5, (1,))
        return g.sum(g.src(x) * jnp.where(kept, jnp.tanh(jnp.tanh(e) @ w), 0.0))

    graph = Graph.from_edges(*rng.integers(0, 40, size=(2, 3000)), num_nodes=40)
    arrays = [jnp.ones(shape) for shape in ((40, 20), (3000, 12), (12, 20))]

    def products(function: Any) -> int:
        with jax_gnn.implementation("cuda"):
            return str(jax.make_jaxpr(function)(*arrays)).count("dot_general")

    def total(x: Any, e: Any, w: Any) -> Any:
        return jnp.sum(convolution(graph, x, e, w, jax.random.key(0)) ** 2)

    assert products(total) == products(jax.jit(total)) == 0
    assert products(jax.grad(total)) > 0 and products(jax.jit(jax.grad(total, (0, 1, 2)))) > 0


@pytest.mark.usefixtures("here")
class TestPolicy:
    def test_texts_that_compile_are_used(self, rng: np.random.Generator) -> None:
        with warnings.catch_warnings(action="error"):
            assert composition(rng, pairwise(4), None) is not None

    def test_a_warning_names_the_equation_and_the_line(self, rng: np.random.Generator) -> None:
        with pytest.warns(RuntimeWarning, match=r"sort.*test_edge_region_cuda\.py:\d+") as seen:
            assert composition(rng, SORTS, None) is None
        assert len(seen) == 1

    def test_demanded_kernels_are_errors(self, rng: np.random.Generator) -> None:
        with pytest.raises(ValueError, match="sort"):
            composition(rng, SORTS, "cuda")

    def test_an_error_of_the_compiler(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(text: str, arch: str, fma: bool) -> Any:
            raise cuda_compile.CompilerError("line 3: no")

        monkeypatch.setattr(cuda_compile, "compiler", refuse)
        with pytest.warns(RuntimeWarning, match="line 3: no"):
            assert composition(rng, pairwise(4), None) is None

    def test_without_a_compiler_there_is_no_warning(
        self, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cuda_compile, "missing", lambda: "no compiler")
        with warnings.catch_warnings(action="error"):
            assert composition(rng, pairwise(4), None) is None
        with pytest.raises(ValueError, match="no compiler"):
            composition(rng, pairwise(4), "cuda")


def test_a_damaged_file_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cache(dict[str, bytes]):
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: Any) -> None: ...

    files = Cache()
    utils = types.SimpleNamespace(
        FileStreamProgramCache=lambda folder, max_size_bytes: files,
        make_program_cache_key=lambda **given: given["code"],
    )
    monkeypatch.setattr(cuda_compile.importlib, "import_module", lambda name: utils)
    built = []

    def build() -> bytes:
        built.append(1)
        return b"the code of a kernel"

    for damage, times in ((None, 1), (None, 1), (b"", 2), (b"short", 3), ("flip", 4), (None, 4)):
        if damage == "flip":
            files["text"] = files["text"][:-1] + b"?"
        elif damage is not None:
            files["text"] = damage
        assert cuda_compile._kept("text", None, build) == b"the code of a kernel"
        assert len(built) == times


@pytest.mark.skipif("cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU")
@pytest.mark.parametrize("gradients", [False, True])
def test_random_functions(gradients: bool, rng: np.random.Generator) -> None:
    assert regions.check(rng, "cuda", "float64", gradients) == []


@pytest.mark.skipif("cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU")
@pytest.mark.parametrize("name", ["gated_gcn", "both_ends"])
def test_same_bits(name: str, rng: np.random.Generator) -> None:
    model, edges = MODELS[name], Edges.random(rng, "giant")
    arrays = edges.arrays(rng, model, "float32")
    op = cuda_region(model, edges)
    first = jax.device_get(jax.jit(op)(*arrays))
    for _ in range(3):
        again = jax.device_get(jax.jit(op)(*arrays))
        assert all(x.tobytes() == y.tobytes() for x, y in zip(first, again, strict=True))


def cuda_region(model: Model, edges: Edges) -> Any:
    return lambda *x: regions.edge_region(
        model.function, x, model.reads, model.outputs, edges.matrix, implementation="cuda"
    )


def maps(inner: int, width: int) -> Model:
    """Two linear maps one after the other of what edges make, and one of what they read."""

    def function(x: Any, e: Any, w: Any, v: Any, u: Any) -> list[Any]:
        y = jnp.tanh(x + e) @ w
        z = jnp.tanh(y * v) @ u
        return [z * x, jnp.sin(y) + v, jnp.tanh(e @ w)]

    row, out = (inner,), (width,)
    rows: Any = [("row", row), ("edge", row), ("shared", (inner, width))]
    rows += [("col", out), ("shared", (width, inner))]
    return Model(function, rows, [("row", "sum"), ("edge", "none"), ("col", "sum")])


SIZES = (12, 20), (33, 5), (8, 66)  # few, as texts are compiled for each


@pytest.mark.skipif("cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU")
@pytest.mark.parametrize("dtype", ["float32", "highest", "bfloat16"])
def test_linear_maps(dtype: str, rng: np.random.Generator) -> None:
    model, edges = maps(*SIZES[int(rng.integers(len(SIZES)))]), Edges.random(rng, "random")
    arrays = [np.asarray(x, np.float64) for x in edges.arrays(rng, model, "float32")]
    arrays = [
        x / np.sqrt(len(x)) if read == "shared" else x
        for x, read in zip(arrays, model.reads, strict=True)
    ]
    stored = "float32" if dtype == "highest" else dtype
    given = [jnp.asarray(x, stored) for x in arrays]
    with jax.enable_x64(True):
        exact = [np.asarray(x, np.float64) for x in given]
        want = jax.tree.map(np.asarray, edges.plain(model, exact))
    with jax.default_matmul_precision("highest" if dtype == "highest" else None):
        found = cuda_region(model, edges)(*given)
    bound = {"float32": 5e-3, "highest": 1e-5, "bfloat16": 0.1}[dtype]
    for got, expected in zip(found, want, strict=True):
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        np.testing.assert_allclose(
            np.asarray(got, np.float64) / scale, expected / scale, rtol=0, atol=bound
        )


@pytest.mark.skipif("cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU")
def test_softplus(rng: np.random.Generator) -> None:
    """Of float32 its logarithm has a polynomial of its own."""
    model = Model(lambda x: [jax.nn.softplus(x)], [("edge", (64,))], [("edge", "none")])
    assert "log1p_of_fraction" in cuda_text.message_text(program_of(model)).source
    edges = Edges.random(rng, "random")
    x = np.float32(rng.normal(size=(edges.count, 64)) * np.exp(rng.normal(size=64) * 2))
    x[0, :4] = 0, -100, 100, np.inf
    (found,) = cuda_region(model, edges)(x)
    want = np.logaddexp(x.astype(np.float64), 0)
    there = np.asarray(found).any(1)  # of no padding
    assert there.sum() >= len(edges.rows) - 1
    np.testing.assert_allclose(np.asarray(found)[there], want[there], rtol=5e-7, atol=1e-37)
