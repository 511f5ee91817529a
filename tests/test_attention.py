"""The op of attention, over all kinds of scores: results, derivatives, batches, and any ids."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    SLOPE,
    check_batch,
    check_derivatives,
    compare,
    loss,
    on_cuda,
    picked,
    softmax,
)
from op_spec import same_bits, setting, stack, wide
from op_suite import IMPLEMENTATIONS, KERNELS
from primitive_cases import ids, needs_kernels

from jax_gnn import schedules
from jax_gnn._core import ffi, schedule_cache
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._ops.attention import schedule, scores
from jax_gnn._ops.attention.primitive import attention

RELATIONS = 3
KINDS: dict[str, type[scores.Scores]] = {
    "given": scores.EntryScores,
    "ends": scores.AdditiveScores,
    "dots": scores.DotScores,
    "dots of values": scores.DotScores,
    "leaky": scores.GATv2Scores,
    "leaky of values": scores.GATv2Scores,
    "typed": scores.TypedScores,
    "typed of rows": scores.TypedScores,
}
each_kind = pytest.mark.parametrize("kind", KINDS)
on_first = pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
everywhere = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


class Form(NamedTuple):
    """Static options of attention; ``k``: features of keys, 0 for those of values."""

    kind: str
    heads: int = 2
    features: int = 4
    k: int = 0
    is_scaled: bool = True
    slope: float = SLOPE
    keeps_raw: bool = False

    @property
    def keys(self) -> int:
        return self.k or self.features

    @property
    def differentiated(self) -> list[str]:
        """Operands that kernels have gradients of: all but factors."""
        shapes = shapes_of(self, 1, 1, 1)
        return [name for name in shapes if name not in ("scale", "entry_scale")]


class Entries(NamedTuple):
    """Matrix, with the relations of its entries and columns."""

    matrix: SparseMatrix
    types: Any
    col_types: Any

    @property
    def valid(self) -> Any:
        return self.matrix.by_row.valid(self.matrix.by_col.num_rows)


# The distribution of entries over rows and columns, and their number.
Graph = tuple[str, int]


def entries_of(
    rng: np.random.Generator, graph: Graph = ("even", 45), sizes: tuple[int, int] | None = None
) -> Entries:
    """Draw entries; padding has ids out of range of rows, of columns, or of both."""
    spread, count = graph
    num_rows, num_cols = sizes or (
        int(n) for n in rng.integers(1, min(max(2 * count, 1), 70) + 1, 2)
    )
    rows, cols = rng.integers(0, num_rows, count), rng.integers(0, num_cols, count)
    if spread == "rows of many":
        rows = np.where(rng.random(count) < 0.7, num_rows // 2, rows)
    elif spread == "columns of many":
        cols = np.where(rng.random(count) < 0.7, num_cols // 2, cols)
    elif spread == "one row":
        rows[:], cols[:] = num_rows // 2, num_cols - 1
    elif spread == "sparse":
        rows, cols = rows // 7 * 7, cols // 5 * 5
    rows, numbers = np.sort(rows), np.arange(count)
    # Half of the graphs have no padding at all, as those of users.
    padding = rng.random(count) < rng.choice([0, 0.2] if sizes is None else [0.2])
    # Ids below 0 and past the end, in one array.
    by_row = np.where(padding, np.where(numbers % 2, -1, num_cols), cols)
    col_ids = np.where(padding & (numbers % 3 == 0), -1, cols)
    order = np.argsort(col_ids, kind="stable")
    by_col = np.where(padding, num_rows + 5, rows)[order]
    matrix = SparseMatrix(
        Csr(ids(*rows), ids(*by_row), num_rows=num_rows),
        Csr(ids(*col_ids[order]), ids(*by_col), ids(*order), num_rows=num_cols),
    )
    col_types = np.sort(rng.integers(0, RELATIONS, num_cols))
    # Columns of no relation, as padded nodes are.
    col_types[num_cols - num_cols // 8 :] = -1
    types = np.where(rng.random(count) < 0.1, rng.choice([-1, RELATIONS]), col_types[cols])
    return Entries(matrix, ids(*types), ids(*col_types))


def shapes_of(form: Form, rows: int, cols: int, count: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all float operands."""
    heads, width, keys = form.heads, form.heads * form.features, form.heads * form.keys
    fields = {
        "given": {"score": (count, heads)},
        "ends": {"row": (rows, heads), "col": (cols, heads)},
        "dots": {"row": (rows, keys), "col": (cols, keys), "scale": (1, 1)},
        "leaky": {"row": (rows, keys), "col": (cols, keys), "vector": (1, keys)},
        "typed": {"of_value": (RELATIONS, width), "at_row": (count, heads)},
    }[form.kind.split()[0]]
    if form.kind.endswith("of values"):
        del fields["col"]
    if form.kind == "typed of rows":
        del fields["at_row"]
        fields |= {"x": (rows, form.keys), "of_x": (RELATIONS, heads, form.keys)}
    return {"value": (cols, width), **fields, "entry_scale": (count, heads)}


def sizes_of(entries: Entries) -> tuple[int, int, int]:
    by_row, by_col = entries.matrix
    return by_row.num_rows, by_col.num_rows, by_row.count


def operands_of(
    rng: np.random.Generator, form: Form, entries: Entries, *batch: int
) -> dict[str, np.ndarray]:
    shapes = shapes_of(form, *sizes_of(entries))
    operands = {name: rng.normal(size=(*batch, *shape)) for name, shape in shapes.items()}
    for name, factor in (("row", form.keys**-0.25), ("col", form.keys**-0.25)):
        if name in operands and form.kind != "ends":
            operands[name] *= factor
    for name, n in (("vector", form.keys), ("of_value", form.features), ("of_x", form.keys)):
        if name in operands:
            operands[name] *= n**-0.5
    return operands


def typed(operands, form, dtype) -> dict[str, Any]:
    """Convert operands to the dtype, or to its accumulator type."""
    acc = jnp.promote_types(dtype, jnp.float32)
    of_rows = {"value", "x", "of_x", "of_value", *(() if form.kind == "ends" else ("row", "col"))}
    return {
        name: x.astype(jnp.dtype(dtype) if name in of_rows else acc) for name, x in operands.items()
    }


def dots(entries, x, of_x):
    """Return dots of the rows with the vectors of the entries' relations."""
    acc = jnp.promote_types(x.dtype, jnp.float32)
    x, of_x = x.astype(acc), of_x.astype(acc)
    terms = picked(x, entries.matrix.by_row.rows)[:, None] * picked(of_x, entries.types)
    return jnp.sum(terms, -1)


def scores_of(form, entries, operands) -> scores.Scores:
    fields = {k: x for k, x in operands.items() if k not in ("value", "entry_scale")}
    if form.kind.endswith("of values"):
        fields["col"] = None
    if KINDS[form.kind] is not scores.TypedScores:
        return KINDS[form.kind](**fields)
    x, of_x = fields.get("x"), fields.get("of_x")
    at_row = fields["at_row"] if x is None else dots(entries, x, of_x)
    return scores.TypedScores(fields["of_value"], at_row, x, of_x, entries.types, entries.col_types)


def ours(form, entries, operands) -> tuple[Any, ...]:
    """Return sums, logarithms of the softmax's denominators, and raw scores if they are kept.

    Rows without entries have logarithm 0.
    """
    y, stats, raw = attention(
        operands["value"],
        scores_of(form, entries, operands),
        operands["entry_scale"] if form.is_scaled else None,
        entries.matrix,
        **{"heads": form.heads, "slope": form.slope, "keeps_raw": form.keeps_raw},
    )
    log_sum = stats[..., 1]
    lse = jnp.where(log_sum == jnp.inf, 0, stats[..., 0] + jnp.where(log_sum < 9e9, log_sum, 0))
    if not form.keeps_raw:
        return y, lse
    return y, lse, jnp.where(entries.valid[:, None] & (raw > -jnp.inf), raw, 0)


def plain(form, entries, operands) -> tuple[Any, ...]:
    """Return the results of ``ours`` in plain jax.numpy, with arrays of entries."""
    csr, value = entries.matrix.by_row, operands["value"]
    rows, cols, valid = csr.rows, csr.cols, entries.valid[:, None]

    def split(x):
        return x.reshape(len(x), form.heads, x.shape[1] // form.heads)

    key = operands.get("col", value)
    if form.kind == "given":
        raw = operands["score"]
    elif form.kind == "ends":
        raw = picked(operands["row"], rows) + picked(operands["col"], cols)
    elif KINDS[form.kind] is scores.DotScores:
        raw = operands["scale"] * split(picked(operands["row"], rows) * picked(key, cols)).sum(-1)
    elif KINDS[form.kind] is scores.GATv2Scores:
        z = picked(operands["row"], rows) + picked(key, cols)
        raw = split(operands["vector"] * jnp.where(z >= 0, z, form.slope * z)).sum(-1)
    else:
        valid &= ((entries.types >= 0) & (entries.types < RELATIONS))[:, None]
        raw = split(picked(value, cols) * picked(operands["of_value"], entries.types)).sum(-1)
        raw += (
            operands["at_row"]
            if "at_row" in operands
            else dots(entries, operands["x"], operands["of_x"])
        )
    valid &= raw > -jnp.inf
    raw = score = jnp.where(valid, raw, 0)
    if KINDS[form.kind] in (scores.AdditiveScores, scores.TypedScores):
        score = jnp.where(raw >= 0, raw, form.slope * raw)
    weight, lse = softmax(score, valid, rows, csr.num_rows)
    weight *= jnp.where(valid, operands["entry_scale"], 0) if form.is_scaled else 1
    terms = weight[..., None] * split(picked(value, cols))
    y = jax.ops.segment_sum(terms.reshape(len(rows), value.shape[1]), rows, csr.num_rows)
    return (y, lse, raw) if form.keeps_raw else (y, lse)


# --- Derivatives ---------------------------------------------------------------------------------

SIZES = 12, 9  # rows and columns
FORMS = [
    *(Form(kind) for kind in KINDS),
    # Keys of other widths than values, numbers that kernels do not take, and no factors.
    Form("dots", k=3),
    Form("leaky", 1, 3, 5),
    Form("given", 3, 1, is_scaled=False),
    Form("ends", 1, is_scaled=False),
    Form("typed", 1, 8, 4, is_scaled=False, keeps_raw=True),
    Form("typed of rows", 1, 8, keeps_raw=True),
    Form("typed of rows", 1, 3, slope=0.0),
]


def case_of(rng: np.random.Generator, form: Form) -> tuple[Entries, Any, Any]:
    """Return entries, operands, and directions."""
    entries = entries_of(rng, sizes=SIZES)
    return entries, operands_of(rng, form, entries), operands_of(rng, form, entries)


def names_of(form: Form) -> list[str]:
    names = list(shapes_of(form, 1, 1, 1))
    return names if form.is_scaled else names[:-1]


@everywhere
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_derivatives(rng, form, implementation):
    """Derivatives with and without those of factors, for which rules differ.

    Second derivatives are the same composition for all implementations.
    """
    subsets = [names_of(form), form.differentiated]
    of_gradients = implementation == IMPLEMENTATIONS[0] and not form.keeps_raw
    with setting(implementation, "float64"):
        check_derivatives(
            ours, plain, form, *case_of(rng, form), subsets, of_gradients=of_gradients
        )


@on_first
@each_kind
def test_in_each_operand_alone(rng, kind, implementation):
    form = Form(kind)
    alone = [(name,) for name in names_of(form)]
    with setting(implementation, "float64"):
        check_derivatives(ours, plain, form, *case_of(rng, form), alone, of_gradients=False)


BATCHED = [
    (form, batched)
    for form in (*FORMS[: len(KINDS)], Form("typed of rows", 1, 8))
    for batched in ("all", "but the first", "graph", *names_of(form))
]


@on_first
@pytest.mark.parametrize(("form", "batched"), BATCHED, ids=str)
def test_batches(rng, form, batched, implementation):
    """Values and gradients of batches: of one operand, of several, and of graphs."""
    size, every = 3, names_of(form)
    names = {"all": every, "graph": every, "but the first": every[1:]}.get(batched, [batched])
    graphs = [entries_of(rng, sizes=SIZES) for _ in range(size)]
    single, batch = operands_of(rng, form, graphs[0]), operands_of(rng, form, graphs[0], size)
    operands = {name: batch[name] if name in names else x for name, x in single.items()}
    of_graphs = batched == "graph"
    # All gradients are composed; those without factors are a kernel's.
    to = every if batched == "all" else form.differentiated
    with setting(implementation, "float64"):
        check_batch(
            ours,
            plain,
            form,
            stack(graphs) if of_graphs else graphs[0],
            operands,
            names,
            to,
            graph_axis=0 if of_graphs else None,
        )


@each_kind
def test_batches_of_one_graph_join_the_heads(rng, kind):
    """One call of the kernel computes a batch."""
    form, entries = Form(kind), entries_of(rng)
    shared = "scale", "vector"  # not batched
    operands = {
        name: x[0] if name in shared else x
        for name, x in operands_of(rng, form, entries, 3).items()
    }
    axes = {name: None if name in shared else 0 for name in operands}
    jaxpr = jax.make_jaxpr(jax.vmap(functools.partial(ours, form, entries), (axes,)))(operands)
    calls = [call for call in jaxpr.eqns if call.primitive.name == "jax_gnn_attention"]
    assert [call.params["heads"] for call in calls] == [3 * form.heads]


# --- Kernels -------------------------------------------------------------------------------------

WALKED = 2801  # features, too many for the step kernel with some hundreds of entries
GRAPHS: list[Graph] = [
    ("even", 1),
    ("even", 700),
    ("rows of many", 300),
    ("columns of many", 300),
    ("even", 48),
    ("sparse", 49),
    ("one row", 130),
    ("rows of many", 1700),
    ("rows of many", 9000),
    ("even", 0),
]
WIDTHS = [
    ("float32", 1, 64),
    ("float32", 8, 8),
    ("float32", 1, 20),
    ("float32", 16, 4),
    ("float32", 3, 16),
    ("float32", 3, 128),
    ("float32", 3, 5),
    ("float16", 1, 64),
    ("float16", 8, 16),
    ("bfloat16", 8, 8),
    ("bfloat16", 1, 72),
    ("bfloat16", 2, 256),
    ("float64", 1, 32),
    ("float64", 8, 4),
]
ERRORS = {"float32": 3e-5, "float64": 1e-11, "float16": 1e-2, "bfloat16": 0.06}


@functools.partial(jax.jit, static_argnums=(0, 1))
def with_gradients(attend, form, entries, operands, cts):
    """Return results with a cotangent, and the gradients that a kernel computes."""

    def results(moving):
        return attend(form, entries, {**operands, **moving})[: len(cts)]

    y, pull = jax.vjp(results, {name: operands[name] for name in form.differentiated})
    return y, pull(tuple(ct.astype(x.dtype) for ct, x in zip(cts, y, strict=True)))[0]


def check_kernels(
    rng: np.random.Generator,
    form: Form,
    entries: Entries,
    dtype: str,
    implementation: str,
    error: float = 0.0,
) -> None:
    """Compare with the definition in float64; rows that no entry reads are NaN; bits repeat."""
    operands = typed(operands_of(rng, form, entries), form, dtype)
    rows, cols, _ = sizes_of(entries)
    cts = rng.normal(size=(rows, form.heads * form.features)), rng.normal(size=(rows, form.heads))
    # The logarithms of denominators have a gradient in half of the draws.
    cts = cts[: rng.integers(1, 3)]
    cts = tuple(x.astype(np.float16).astype(jnp.dtype(dtype)) for x in cts)
    dirty, csr = {name: x.copy() for name, x in operands.items()}, entries.matrix.by_row
    for name, size, read_ids in (
        ("row", rows, csr.rows),
        ("col", cols, csr.cols),
        ("value", cols, csr.cols),
    ):
        if (
            name in dirty and KINDS[form.kind] is not scores.TypedScores
        ):  # whose vectors have all values' sums
            dirty[name][np.setdiff1d(np.arange(size), read_ids[entries.valid])] = np.nan
    with setting(implementation, dtype):
        got = with_gradients(ours, form, entries, dirty, cts)
        again = with_gradients(ours, form, entries, dirty, cts)
    # XLA sums the gradients of x and of_x, in any order on a GPU.
    kernel_results = [
        (y, {k: x for k, x in grads.items() if k not in ("x", "of_x")}) for y, grads in (got, again)
    ]
    assert same_bits(*kernel_results)
    with setting("xla", "float64"):
        exact = dict(zip(operands, wide(list(operands.values())), strict=True))
        want = with_gradients(plain, form, entries, exact, wide(cts))
    bound = max(ERRORS[dtype], error if dtype == "float32" else 0)
    (results, grads), (exact_results, gradients) = got, want
    compare(results, exact_results, f"{form}", bound)
    cancellation = of_rounding(dtype, entries, exact, exact_results[0], cts[0])
    for name, gradient in gradients.items():
        factor = 1 if name in ("row", "score", "at_row") else len(exact_results[0]) ** 0.5
        compare(grads[name], gradient, f"{form}, {name}", bound + cancellation * factor)


def of_rounding(dtype, entries, operands, y, ct) -> float:
    """Bound the error of scores' gradients, where ⟨ct, y⟩ cancels, by the rounding of y.

    y is rounded to a half type, or as often as a block sums entries of a row.
    """
    rows = np.asarray(entries.matrix.by_row.rows)[entries.valid]
    added = min(np.bincount(rows).max(initial=0), 256) if jnp.dtype(dtype).itemsize > 2 else 1
    terms = np.asarray(y, np.float64) * np.asarray(ct, np.float64)
    names = "row", "col", "value", "vector", "of_value"
    largest = max(np.abs(operands[name]).max(initial=1) for name in names if name in operands)
    return (
        4 * added * float(jnp.finfo(dtype).eps) * (terms**2).sum(1).max(initial=0) ** 0.5 * largest
    )


@on_first
@pytest.mark.parametrize(
    ("kind", "dtype", "heads", "features", "graph"),
    [
        *(
            (kind, *widths, GRAPHS[(3 * i + j) % len(GRAPHS)])
            for i, kind in enumerate(KINDS)
            for j, widths in enumerate(WIDTHS)
        ),
        *(
            (kind, *widths, ("rows of many", 900))
            for kind in ("given", "ends")
            for widths in (("float32", 2, WALKED), ("bfloat16", 1, 2 * WALKED + 6))
        ),
    ],
    ids=str,
)
def test_kernels(rng, kind, dtype, heads, features, graph, implementation):
    """Values and gradients, with rows and columns that span blocks, and some without entries."""
    # Half types round a few scores across 0, where slopes near 1 change gradients little.
    slope = 0.97 if kind.startswith("typed") and jnp.dtype(dtype).itemsize == 2 else SLOPE
    form = Form(kind, heads, features, is_scaled=bool(rng.integers(2)), slope=slope)
    check_kernels(rng, form, entries_of(rng, graph), dtype, implementation)


@on_first
@pytest.mark.parametrize("features", [9, 17])
@pytest.mark.parametrize("kind", ["given", "ends"])
def test_passes_in_one_step(rng, kind, features, implementation):
    """Gradients of one head that 16 or 32 lanes hold, in words of one feature."""
    check_kernels(rng, Form(kind, 1, features), entries_of(rng), "float32", implementation)


@on_first
@pytest.mark.parametrize("kind", ["leaky", "leaky of values"])
@pytest.mark.parametrize(("dtype", "features"), [("float32", 4), ("bfloat16", 8), ("float64", 2)])
def test_many_entries(rng, dtype, features, kind, implementation):
    """More than 2^17 entries take another kernel of slopes."""
    entries = entries_of(rng, ("rows of many", 2**17 + 1001), (700, 600))
    check_kernels(rng, Form(kind, 2, features), entries, dtype, implementation, 3e-4)


SCHEDULES = [
    ("step", 8, 256, 4),
    ("walk", 16, 256, 8),
    ("walk", 32, 256, 15),
    ("walk", 16, 128, 5),
    ("gather", 8, 128, 6),
    ("gather", 16, 128, 2),
    ("walk", 1, 64, 3),
]


@needs_kernels
@pytest.mark.parametrize(
    ("schedule", "heads", "features", "dtype"),
    [
        (schedule, *widths, dtype)
        for i, schedule in enumerate(SCHEDULES)
        for j, widths in enumerate([(1, 64), (4, 8), (3, 5), (8, 4), (1, 300)])
        for k, dtype in enumerate(("float32", "float64", "bfloat16"))
        if dtype == "float32" or (i + j + k) % 3 == 0
    ],
    ids=str,
)
def test_schedules(rng, schedule, heads, features, dtype):
    """Every kernel that a schedule may choose, with a row that spans blocks."""
    with schedules.use(schedules.Schedule(*schedule)):
        form = Form(("ends", "given")[rng.integers(2)], heads, features)
        check_kernels(rng, form, entries_of(rng, ("rows of many", 900)), dtype, KERNELS[0])


def launches(form: Form, rows: int, count: int, *, is_ordered: bool = False) -> tuple[int, int]:
    """Count the calls of attention's kernels in a training step, and those with all gradients."""
    entries = jax.ShapeDtypeStruct((count,), np.int32)
    matrix = SparseMatrix(
        Csr(entries, entries, entries if is_ordered else None, num_rows=rows),
        Csr(entries, entries, entries, num_rows=rows),
    )
    index = Entries(matrix, entries, jax.ShapeDtypeStruct((rows,), np.int32))
    operands = {
        name: jax.ShapeDtypeStruct(shape, np.float32)
        for name, shape in shapes_of(form, rows, rows, count).items()
    }

    def train(entries, operands):
        moving = {name: operands[name] for name in form.differentiated}
        return jax.grad(lambda x: loss(ours(form, entries, {**operands, **x})))(moving)

    with setting("cuda"):
        text = jax.jit(train).lower(index, operands).as_text()
    calls = [emulation.target(name) + "(" for name in ("attention", "attention_vjp")]
    return sum(text.count(call) for call in calls), text.count("whole = true")


@pytest.fixture
def by_hand(monkeypatch):
    """Leave the choice of kernels to the rule by hand."""
    monkeypatch.setattr(schedule_cache, "compute_capability", lambda: None)


@on_cuda
@each_kind
def test_which_launches(kind, by_hand):
    """Each direction is one launch.

    The launch of all gradients needs few entries, without an order, rows that are mostly not empty,
    and heads that a team of lanes holds.
    """
    wide, form = Form(kind, 1, 64), Form(kind, 8, 8)
    is_simple = kind in ("given", "ends")
    has_rows = not kind.startswith("typed") and kind != "given"
    assert launches(wide, 1000, 1 << 15) == (2, has_rows)
    assert launches(wide, 1000, (1 << 15) + 1) == (2, False)
    assert launches(form, 1000, 1 << 14) == (2, has_rows)
    assert launches(form, 1000, 1 << 15) == (2, has_rows and not is_simple)
    assert launches(Form(kind, 4, 64), 1000, 1 << 14) == (2, False)
    assert launches(wide, 1001, 500)[1] == launches(wide, 1, 0)[1] == 0
    assert launches(Form(kind, 1, 128), 1000, 1000)[1] == 0
    assert launches(Form(kind, 3, 6), 1000, 1000) == (2, False)
    assert launches(wide, 1000, 1000, is_ordered=True)[1] == 0


def test_small_sums_get_the_kernel_of_one_step(monkeypatch, by_hand):
    """The bound is on entries times tiles of 8 lanes, or 16 for keys, and on shared memory."""

    def step(count: int, width: int, dtype: str = "float32", *, keys: int | None = 0) -> bool:
        entries = Csr(jax.ShapeDtypeStruct((count,), np.int32), None, num_rows=9)
        value = jax.ShapeDtypeStruct((9, width), jnp.dtype(dtype))
        return schedule.choose_sum(entries, value, 1, keys, count) == "step"

    for kilobytes, kinds in ((227, 3), (163, 2), (99, 1)):
        monkeypatch.setattr(ffi, "shared_memory", lambda size=kilobytes: size << 10)
        assert step(1 << 16, 32) and not step((1 << 16) + 1, 32)
        assert step(1 << 16, 8 * 2, "float64") == (kinds > 1)
        assert not step(1 << 16, 33) and not step(1, 1 << 21)  # a lane reads one of 33 features
        assert step(3 << 14, 64, keys=1) == (kinds > 1)
        assert step(1 << 15, 64, keys=2) == (kinds > 2)
        assert not step((3 << 14) + 1, 64, keys=1) and not step((1 << 15) + 1, 64, keys=2)
        assert not step(1, 68, keys=1) and not step(1, 64, keys=None)


# --- Scores of all sizes -------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("kind", ["ends", "dots", "leaky"])
def test_large_scores(rng, kind, implementation):
    """Scores up to 10,000 are exact: the backward pass recomputes the bits of the forward pass.

    Values are not keys, since large values would cancel in the scores' gradients.
    """
    form = Form(kind, 2, 8, is_scaled=False, slope=0.25)
    entries = entries_of(rng, ("even", 300))
    operands = operands_of(rng, form, entries)

    def rounded(x):  # what scores are made of
        return np.round(8 * x * (3000 if kind == "ends" else 30)) / 8

    exact = {name: rounded(x) for name, x in operands.items() if name in ("row", "col")}
    if "vector" in operands:
        exact["vector"] = np.round(32 * operands["vector"]) / 8
    if "scale" in operands:
        exact["scale"] = np.full((1, 1), 2.0)
    operands |= exact
    rows, _, _ = sizes_of(entries)
    cts = (rng.integers(-9, 10, (rows, 16)) / 8.0,)
    with setting(implementation):
        single = typed(operands, form, "float32")
        got = with_gradients(ours, form, entries, single, cts)
    with setting("xla", "float64"):
        exact = dict(zip(single, wide(list(single.values())), strict=True))
        want = with_gradients(plain, form, entries, exact, cts)
    (results, grads), (exact_results, gradients) = got, want
    compare(results, exact_results, kind, 1e-4)
    for name, gradient in gradients.items():
        is_key = kind != "ends" and name in ("row", "col")  # of dots that cancel, times large keys
        compare(grads[name], gradient, f"{kind}, {name}", 1e-3 if is_key else 1e-4)


@everywhere
@pytest.mark.parametrize("kind", ["ends", "leaky", "typed"])
def test_derivative_at_zero(rng, kind, implementation):
    """LeakyReLUs have slope 1 at 0, as `jax.nn.leaky_relu`."""
    entries = entries_of(rng, ("even", 90), SIZES)
    operands = operands_of(rng, Form(kind), entries)
    nonzero = "value", "vector", "entry_scale"
    operands = {name: x if name in nonzero else 0 * x for name, x in operands.items()}
    cts = tuple(rng.normal(size=(SIZES[0], n)) for n in (Form(kind).heads * 4, Form(kind).heads))
    with setting(implementation, "float64"):
        leaky, linear = (
            with_gradients(ours, Form(kind)._replace(slope=slope), entries, operands, cts)
            for slope in (0.2, 1.0)
        )
    compare(leaky, linear, kind)


@everywhere
@pytest.mark.parametrize(
    ("form", "slope"),
    [
        *((Form(kind), slope) for kind in ("given", "ends", "typed") for slope in (0.0, 0.2, -0.5)),
        (Form("ends", 1), 0.0),
    ],
)
def test_scores_of_minus_infinity(rng, form, slope, implementation):
    """A score of -inf leaves an entry out at any slope; rows without other entries are 0."""
    form, entries = form._replace(slope=slope), entries_of(rng, ("even", 90), SIZES)
    operands = operands_of(rng, form, entries)
    rows = np.asarray(entries.matrix.by_row.rows)
    masked = [name for name in ("score", "row", "col", "at_row") if name in operands]
    for name in masked:
        x = operands[name]
        x[rng.random(x.shape) < 0.3] = -np.inf
        x[rows < 3 if len(x) == len(rows) else slice(3)] = -np.inf
    cts = tuple(rng.normal(size=(SIZES[0], n)) for n in (form.heads * 4, form.heads))
    with setting(implementation, "float64"):
        (y, lse), grads = got = with_gradients(ours, form, entries, operands, cts)
    with setting("xla", "float64"):
        compare(got, with_gradients(plain, form, entries, operands, cts), f"{slope}")
    assert not np.any(np.asarray(y)[:3]) and not np.any(np.asarray(lse)[:3])
    for name in masked:
        assert not np.any(np.asarray(grads[name])[operands[name] == -np.inf])


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "heads", "features"),
    [
        ("float32", 1, 32),
        ("float32", 1, 64),
        ("float32", 8, 64),
        ("float32", 2, 128),
        ("float16", 1, 64),
        ("bfloat16", 2, 256),
        ("float64", 1, 64),
    ],
)
@pytest.mark.parametrize("kind", ["dots", "leaky"])
def test_scores_made_anew_have_the_same_bits(rng, kind, dtype, heads, features):
    """A single-entry row has weight 1 for any score, also in the gradient of the values."""
    count, size = 900, 905
    cols, rows = rng.integers(0, size, count), np.arange(count)
    order = np.argsort(cols, kind="stable")
    matrix = SparseMatrix(
        Csr(ids(*rows), ids(*cols), num_rows=size),
        Csr(ids(*cols[order]), ids(*rows[order]), ids(*order), num_rows=size),
    )
    form, types = Form(kind, heads, features, is_scaled=False), np.zeros(count, np.int32)
    entries = Entries(matrix, types, types)
    operands = operands_of(rng, form, entries)
    operands |= {name: 80 * features**0.25 * operands[name] for name in ("row", "col")}
    operands = typed(operands, form, dtype)
    ct = rng.integers(-2, 3, (size, heads * features))

    @jax.jit
    def to_value(value, ct):
        return jax.vjp(lambda x: ours(form, entries, {**operands, "value": x})[0], value)[1](ct)[0]

    with setting(KERNELS[0], dtype):
        got = to_value(operands["value"], ct.astype(jnp.dtype(dtype)))
    want = np.zeros_like(ct)
    np.add.at(want, cols, ct[rows])
    assert np.array_equal(np.asarray(got, np.float64), want)


# --- Any ids -------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("features", [1, 4, 33, 128])
@each_kind
def test_any_ids(rng, kind, features, implementation):
    """Index arrays of any ids read and write nothing out of bounds, and all kernels finish."""
    form = Form(kind, 1 if kind == "typed of rows" else 2, features)
    if features == 128 and kind in ("given", "ends"):
        form = form._replace(features=WALKED)  # which the kernel of one step does not take either
    entries = entries_of(rng, ("even", 500), (40, 50))
    operands = typed(operands_of(rng, form, entries), form, "float32")
    limits = np.iinfo(np.int32)
    pool = ids(limits.min, limits.max, -1, 0, 1, 39, 40, 41, 50, 500)
    cts = np.ones((40, form.heads * form.features), np.float32), np.ones((40, form.heads))

    def broken(x, share):
        return np.where(rng.random(x.shape) < share, rng.choice(pool, x.shape), x)

    with setting(implementation):
        for share in (0.02, 0.5, 1.0):
            bad = jax.tree.map(lambda x, share=share: broken(x, share), entries)
            (y, _), _ = jax.block_until_ready(with_gradients(ours, form, bad, operands, cts))
            assert y.shape == (40, form.heads * form.features)
        # Types alone: those entries are left out.
        bad = rng.choice(ids(limits.min, limits.max, -1, RELATIONS), entries.types.shape)
        bad = np.where(rng.random(bad.shape) < 0.3, bad, entries.types)
        entries = entries._replace(types=bad)
        got = with_gradients(ours, form._replace(is_scaled=False), entries, operands, cts[:1])
    with setting("xla", "float64"):
        exact = dict(zip(operands, wide(list(operands.values())), strict=True))
        form = form._replace(is_scaled=False)
        compare(got[0], with_gradients(plain, form, entries, exact, cts[:1])[0], "types", 3e-5)
