"""Raw custom calls of attention: handlers refuse buffers that do not fit.

`READ` lists the operands that a kind of scores reads. Every wrong shape and dtype of these must be
an error; operands that are not read may be anything.
"""

from __future__ import annotations

from typing import Any

import emulation
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import SLOPE, on_cuda
from primitive_cases import MATRIX, floats, ids

from jax_gnn._ops.attention.primitive import attention, attention_vjp
from jax_gnn._ops.attention.scores import (
    AdditiveScores,
    DotScores,
    EntryScores,
    GATv2Scores,
    Scores,
    TypedScores,
)

# Five destinations, three sources, four entries, two heads of four features; two relations.
ROWS, COLS, COUNT, HEADS, WIDTH = 5, 3, 4, 2, 8
BY_ROW = (MATRIX.by_row.rows, MATRIX.by_row.cols, ids(0, 1, 2, 3))
BY_COL = (MATRIX.by_col.rows, MATRIX.by_col.cols, MATRIX.by_col.order)
VALUE, SCALE, TYPES, COL_TYPES = (
    floats(COLS, WIDTH),
    floats(COUNT, HEADS),
    ids(0, 1, 1, 0),
    ids(1, 0, 0),
)
ANY = floats(0)

# Operands that each kind reads.
KINDS = ("given", "ends", "dots", "leaky", "typed")
ENDS = (floats(ROWS, HEADS), floats(COLS, HEADS))
KEYS = (floats(ROWS, WIDTH), floats(COLS, WIDTH))
VECTORS = floats(2, WIDTH)
READ: dict[str, dict[str, Any]] = {
    "given": {"entry": floats(COUNT, HEADS)},
    "ends": {"row": ENDS[0], "col": ENDS[1]},
    "dots": {"row": KEYS[0], "col": KEYS[1], "factor": floats(1)},
    "leaky": {"row": KEYS[0], "col": KEYS[1], "factor": floats(WIDTH)},
    "typed": {"col": VECTORS, "entry": floats(COUNT, HEADS), "types": TYPES},
}
SCORE_NAMES = ("row", "col", "factor", "entry", "edge_scale", "types")
FORWARD = ("value", *SCORE_NAMES, "rows", "cols", "order")
BACK = ("ct", "value", "y", "stats", "log_sum_ct", *SCORE_NAMES)
BACK += ("rows", "cols", "order", "dst_rows", "dst_cols")
WHOLE = ("ends", "dots", "leaky")  # kinds with all gradients in one launch


def workspace(width: int, blocks: int = 1) -> tuple[Any, str]:
    return (blocks, 64 + 2 * 4 * 2 * width), "uint8"


def operands_of(kind: str, direction: str) -> dict[str, Any]:
    operands = dict.fromkeys(SCORE_NAMES, ANY) | {"value": VALUE, "edge_scale": SCALE} | READ[kind]
    if direction == "forward":
        indices = BY_ROW
        operands |= {"order": ANY}
    else:
        indices = BY_COL
        operands |= {"ct": floats(ROWS, WIDTH), "y": floats(ROWS, WIDTH)}
        operands |= {"stats": floats(ROWS, HEADS, 2), "log_sum_ct": floats(ROWS, HEADS)}
        operands |= {"dst_rows": ANY, "dst_cols": ANY, "order": indices[2]}
        if kind == "typed":
            operands["types"] = COL_TYPES
    operands |= {"rows": indices[0], "cols": indices[1]}
    if direction == "whole":
        operands |= dict(zip(("dst_rows", "dst_cols"), BY_ROW[:2], strict=True))
    return operands


def read_by(kind: str, direction: str) -> set[str]:
    names = {"value", "edge_scale", "rows", "cols", *READ[kind]}
    if direction == "forward":
        return names
    names |= {"ct", "y", "stats", "log_sum_ct", "order"}
    return names | ({"dst_rows", "dst_cols"} if direction == "whole" else set())


def results_of(kind: str, direction: str) -> dict[str, Any]:
    """Return the shape and dtype of each result."""
    if direction == "forward":
        return {
            "out": ((ROWS, WIDTH), "float32"),
            "stats": ((ROWS, HEADS, 2), "float32"),
            "raw": ((0, HEADS), "float32"),
            "workspace": workspace(2 * WIDTH),
        }
    with_row, keyed = direction == "whole", kind in ("dots", "leaky")
    row_width = WIDTH if keyed else HEADS
    return {
        "out": ((COLS, WIDTH), "float32"),
        "to_row": ((ROWS if with_row else 0, row_width), "float32"),
        "to_col": ((0 if kind == "given" else COLS, row_width), "float32"),
        "to_vector": ((1 if kind == "leaky" else 0, WIDTH), "float32"),
        "to_score": ((0 if with_row else COUNT, HEADS), "float32"),
        "workspace": workspace(WIDTH, 3) if with_row else workspace(2 * WIDTH),
        "scratch": ((2, 0, HEADS), "float32"),
        "records": ((0 if with_row else ROWS, HEADS, 4), "float32"),
        "parts": ((1 if kind == "leaky" and not with_row else 0, WIDTH), "float32"),
    }


def attributes_of(kind: str, direction: str) -> dict[str, Any]:
    flags = {"scaled": True, "gather": True, "ordered": direction != "forward"}
    if direction == "forward":
        flags |= {"has_rows": False, "keeps_raw": False}
    else:
        flags |= {"whole": direction == "whole", "same": False, "has_y": True}
        flags |= {"has_log_sum_ct": True, "by_passes": False, "one_pass": True}
    numbers = {"kind": KINDS.index(kind)}
    numbers |= {} if direction == "forward" else {"lanes": 1, "threads": 32}
    return {
        **{name: np.bool_(flag) for name, flag in flags.items()},
        **{name: np.int64(number) for name, number in numbers.items()},
        "slope": np.float64(SLOPE),
        "kernel": "walk",
    }


class RawCall:
    """A raw call with its operands, results and attributes."""

    def __init__(self, kind: str, direction: str) -> None:
        self.kind, self.direction = kind, direction
        self.operands = operands_of(kind, direction)
        self.results = results_of(kind, direction)
        self.attributes = attributes_of(kind, direction)

    def __call__(self, **changes) -> dict[str, np.ndarray]:
        """Call with operands and attributes changed by name, and results by ``to``."""
        names = FORWARD if self.direction == "forward" else BACK
        results = {**self.results, **changes.pop("to", {})}
        operands = {**self.operands, **{k: v for k, v in changes.items() if k in names}}
        attributes = {**self.attributes, **{k: v for k, v in changes.items() if k not in names}}
        shapes = [
            jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results.values()
        ]
        name = "attention" if self.direction == "forward" else "attention_vjp"
        call = jax.ffi.ffi_call(emulation.target(name), shapes)
        arrays = call(*(operands[operand] for operand in names), **attributes)
        return dict(zip(results, map(np.asarray, arrays), strict=True))


CALLS = [
    (kind, direction)
    for kind in KINDS
    for direction in ("forward", "back", "whole")
    if direction != "whole" or kind in WHOLE
]
each_call = pytest.mark.parametrize(("kind", "direction"), CALLS)


def scores_of(kind: str) -> Scores:
    fields = READ[kind]
    if kind == "given":
        return EntryScores(fields["entry"])
    if kind == "ends":
        return AdditiveScores(fields["row"], fields["col"])
    if kind == "dots":
        return DotScores(fields["row"], fields["col"], fields["factor"][None])
    if kind == "leaky":
        return GATv2Scores(fields["row"], fields["col"], fields["factor"][None])
    return TypedScores(fields["col"], fields["entry"], None, None, TYPES, COL_TYPES)


@on_cuda
@each_call
def test_raw_call(kind, direction):
    """Results equal plain XLA's with any placeholder of operands that are not read."""
    call, scores = RawCall(kind, direction), scores_of(kind)
    options: Any = {"heads": HEADS, "slope": SLOPE, "implementation": "xla"}
    if direction == "forward":
        want = attention(VALUE, scores, SCALE, MATRIX, keeps_raw=False, **options)[:1]
    else:
        operands = call.operands
        results = (
            operands["y"],
            operands["stats"],
            operands["entry"],
            operands["ct"],
            operands["log_sum_ct"],
        )
        with_row = direction == "whole"
        want = attention_vjp(VALUE, scores, SCALE, *results, MATRIX, with_row=with_row, **options)
    read_names = read_by(kind, direction)
    names = FORWARD if direction == "forward" else BACK
    for placeholder in (ANY, floats(7, 3).astype(np.float16), ids(1, 2)):
        got = call(**{name: placeholder for name in names if name not in read_names})
        for result, like in zip(got.values(), want, strict=False):
            if like.size or result.size:  # absent results have no rows, of any width
                np.testing.assert_allclose(result, like, rtol=2e-5, atol=2e-6)


def mutations(value: np.ndarray) -> list[np.ndarray]:
    """Return arrays of wrong shapes and dtypes."""
    shape = value.shape
    wrong = [
        np.zeros((*shape[:-1], shape[-1] + 1), value.dtype),
        np.zeros((shape[0] + 1, *shape[1:]), value.dtype),
        np.zeros((*shape, 1), value.dtype),
        np.zeros(value.size, value.dtype) if value.ndim > 1 else np.zeros((), value.dtype),
        value.astype(np.uint32 if value.dtype == np.int32 else np.float16),
        value.astype(np.float32 if value.dtype == np.int32 else np.int32),
    ]
    return wrong


@on_cuda
@each_call
def test_wrong_operands(kind, direction):
    """Every wrong shape and dtype of an operand that is read is an error."""
    call = RawCall(kind, direction)
    longer = set()  # arrays that ids index, of any number of rows
    if kind == "typed":
        longer.add(("col", (3, WIDTH)))
    if direction == "forward" and kind in ("given", "typed"):
        longer.add(("value", (COLS + 1, WIDTH)))
    for name in sorted(read_by(kind, direction)):
        for wrong in mutations(call.operands[name]):
            what = f"{name}: {wrong.dtype}{list(wrong.shape)}"
            if (name, wrong.shape) in longer:
                continue
            with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
                call(**{name: wrong})
                pytest.fail(what)


@on_cuda
@each_call
def test_wrong_results(kind, direction):
    call = RawCall(kind, direction)
    for name, (shape, dtype) in call.results.items():
        if name == "scratch":
            continue
        has_rows = 0 not in shape
        wrong: list[Any] = [((shape[0] + 1, *shape[1:]), dtype)]
        if name == "workspace":  # more blocks are allowed
            wrong = [((0, shape[1]), dtype), ((shape[0], 96), dtype), (shape, "int8")]
        elif has_rows:
            wrong_dtype = "float16" if dtype == "float32" else "int32"
            wrong += [
                ((*shape[:-1], shape[-1] + 1), dtype),
                (shape, wrong_dtype),
                (shape[1:], dtype),
            ]
        if direction == "whole" and name in ("records", "parts"):
            continue  # not looked at
        if kind != "leaky" and name == "parts":
            continue
        for result in wrong:
            with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
                call(to={name: result})
                pytest.fail(f"{name}: {result}")


@on_cuda
@each_call
def test_wrong_flags(kind, direction):
    call = RawCall(kind, direction)
    wrong: list[dict[str, Any]] = [{"kind": np.int64(5)}, {"kind": np.int64(-1)}]
    wrong.append({"gather": np.bool_(False)})
    if direction == "forward":
        wrong += [{"keeps_raw": np.bool_(True)}]  # the results have no rows for them
        wrong += [{"kernel": "gather"}, {"kernel": ""}]
        if kind == "typed":
            wrong.append({"kernel": "step"})
    else:
        wrong_kinds = {"given": "ends", "ends": "given", "dots": "leaky", "leaky": "dots"}
        wrong.append({"kind": np.int64(KINDS.index(wrong_kinds.get(kind, "given")))})
        wrong.append({"same": np.bool_(True)})
        if direction == "whole":
            wrong.append({"has_y": np.bool_(False)})
        if kind in ("given", "ends") and direction == "back":
            wrong.append({"by_passes": np.bool_(True)})
    for flags in wrong:
        with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
            call(**flags)
            pytest.fail(f"{flags}")


@on_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_of_one_step(kind):
    """The step kernel equals the walk, and is refused where blocks cannot hold all entries."""
    call = RawCall(kind, "forward")
    if kind == "typed":  # has none
        with pytest.raises(jax.errors.JaxRuntimeError, match='"step" cannot do this call'):
            call(kernel="step")
        return
    want, got = call(), call(kernel="step")
    np.testing.assert_allclose(got["out"], want["out"], rtol=2e-5, atol=2e-6)
    padding = np.full(2000, -1, np.int32)
    many: dict[str, Any] = {"rows": padding, "cols": padding, "order": ids(*range(2000))}
    names = {"edge_scale", "entry"} if kind == "given" else {"edge_scale"}
    many |= dict.fromkeys(names, floats(2000, HEADS))
    call(**many)
    with pytest.raises(jax.errors.JaxRuntimeError, match='"step" cannot do this call'):
        call(**many, kernel="step")


@on_cuda
def test_kernels_of_leaky_sum():
    """The kernel of gathers is for whole words of 16 bytes."""

    def run(width: int, kernel: str) -> Any:
        operands = floats(ROWS, width), floats(COLS, width), floats(COUNT, HEADS), floats(width)
        shapes = (ROWS, width), "float32"
        results = [jax.ShapeDtypeStruct(*result) for result in (shapes, workspace(width))]
        flags = {name: np.bool_(name != "ordered") for name in ("has_vector", "gather", "ordered")}
        function = jax.ffi.ffi_call(emulation.target("leaky_sum"), results)
        attributes: Any = {**flags, "slope": np.float64(SLOPE), "kernel": kernel}
        return jax.block_until_ready(function(*operands, *BY_ROW, **attributes))[0]

    np.testing.assert_allclose(run(8, "gather"), run(8, "walk"), rtol=2e-5, atol=2e-6)
    run(6, "walk")
    for width, kernel in ((6, "gather"), (8, "step"), (8, "")):
        with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
            run(width, kernel)


@on_cuda
@pytest.mark.parametrize("width", [6, 24, 264])
@pytest.mark.parametrize("direction", ["forward", "back"])
def test_wrong_heads(width, direction):
    """Heads of 0.75, 3 and 33 words of 16 bytes are refused."""
    call = RawCall("leaky", direction)
    by_name = {name: floats(len(call.operands[name]), width) for name in ("value", "row", "col")}
    by_name["factor"] = floats(width)
    per_block = workspace(2 * width)[0][1] // 16 * 16
    to = {"out": ((ROWS, width), "float32"), "workspace": ((1, per_block), "uint8")}
    if direction == "back":
        by_name |= {name: floats(ROWS, width) for name in ("ct", "y")}
        to |= {"out": ((COLS, width), "float32"), "to_col": ((COLS, width), "float32")}
        to |= {name: ((1, width), "float32") for name in ("to_vector", "parts")}
    with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: the heads are not up to 32"):
        call(**by_name, to=to)


@on_cuda
@pytest.mark.parametrize("kind", WHOLE)
def test_too_few_blocks(kind):
    with pytest.raises(jax.errors.JaxRuntimeError, match="CUDA error"):
        RawCall(kind, "whole")(to={"workspace": workspace(WIDTH, 2)})
