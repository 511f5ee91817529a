"""Row programs for the interpreter on a CPU: a list of whole numbers, and one of others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jax_gnn._ops.edge_region.moves import with_fewer_moves
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import (
    SLOW,
    Input,
    Instruction,
    Into,
    Output,
    Read,
    RowProgram,
    Unsupported,
)

_STORAGES = {
    np.dtype(dtype): place
    for place, dtype in enumerate((jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16, bool))
}
_ACCESSES = ("edge", "row", "col", "shared")
_REDUCES = ("sum", "max", "min")
_KINDS = ("sum", "prod", "max", "min")

# In the order of enum Code in edge_region.h.
CODES = (
    *("abs", "ceil", "convert_element_type", "exp", "expm1", "floor", "is_finite", "log"),
    *("log1p", "logistic", "neg", "not", "rsqrt", "sign", "sqrt", "square", "tanh"),
    *("add", "and", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "or", "sub"),
    "xor",
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "erf", "erfc"),
    *("exp2", "round", "sin", "sinh", "tan"),
    *("atan2", "pow", "rem"),
    *("clamp", "select_n", "integer_pow"),
    *("constant", "take", "concatenate", "reduce", "dot", "outer"),
)

# Numbers of a row's values together: beyond these a block leaves the caches.
MAX_WIDTH = 1 << 16


_TERMS = 32  # of a product, in the time in which a number is read


class Code(NamedTuple):
    """What a call of the interpreter is told.

    Attributes:
        by_row: The program of a walk by row; where there is none, a single number.
        by_col: Likewise by column.
        numbers: The constants of both.
        workspaces: What the first walk makes of each edge for the second one: the width and dtype
            of each array.
    """

    by_row: np.ndarray
    by_col: np.ndarray
    numbers: np.ndarray
    workspaces: tuple[tuple[int, np.dtype[Any]], ...]


@functools.lru_cache(maxsize=1024)
def code_of(region: Region) -> Code | Unsupported:
    """A region for the interpreter, or why it has no instructions for that."""
    program = region.program
    if isinstance(program, Unsupported):
        return program
    numbers = [0.0]
    try:
        first, second, workspaces = _walks(with_fewer_moves(program))
        by_row = _encoded(first, numbers, by_col=False)
        by_col = _encoded(second, numbers, by_col=True)
    except Unsupported as error:
        return error
    walks = [np.asarray(code, np.int64) for code in (by_row, by_col)]
    return Code(walks[0], walks[1], np.asarray(numbers), workspaces)


class _Walk(NamedTuple):
    """A program, and the numbers of its results."""

    program: RowProgram
    results: Sequence[int]


def _walks(program: RowProgram) -> tuple[_Walk, _Walk, tuple[tuple[int, np.dtype[Any]], ...]]:
    """The walks by row and by column, and the workspaces between them.

    Results by column are made in a second walk. There edges make all that they make again, or they
    read what they have made in the first one: whatever moves fewer bytes.
    """
    outputs, values = program.outputs, program.values
    by_col = [i for i, each in enumerate(outputs) if each.into == "col"]
    rest = [i for i in range(len(outputs)) if i not in by_col]
    if not any(each.into == "row" for each in outputs):
        by_col, rest = ([*by_col, *rest], []) if by_col else ([], rest)
    again = program.only(by_col)
    stored = {each.value: i for i, each in enumerate(outputs) if each.into == "edge"}
    new = [
        value for value in dict.fromkeys(outputs[i].value for i in by_col) if value not in stored
    ]
    passed = sum(values[outputs[i].value].width for i in by_col)
    passed += 2 * sum(values[value].width for value in new)
    if not rest or not by_col or _moved(again) <= passed:
        return _Walk(program.only(rest), rest), _Walk(again, by_col), ()
    stored |= {value: len(outputs) + i for i, value in enumerate(new)}
    more = tuple(Output(value, "edge", "none") for value in new)
    first = RowProgram(program.inputs, program.instructions, outputs + more)
    kept = [*rest, *range(len(outputs), len(first.outputs))]
    made = tuple(
        Input(_READ[each.into], values[each.value].width, values[each.value].dtype)
        for each in first.outputs
    )
    read = [len(program.inputs) + stored[outputs[i].value] for i in by_col]
    sums = (Output(v, "col", outputs[i].reduce) for v, i in zip(read, by_col, strict=True))
    second = RowProgram(program.inputs + made, (), tuple(sums))
    workspaces = tuple((values[value].width, values[value].dtype) for value in new)
    return _Walk(first.only(kept), kept), _Walk(second, by_col), workspaces


_READ: dict[Into, Read] = {"edge": "edge", "row": "row", "col": "col", "all": "shared"}


def _moved(program: RowProgram) -> float:
    """Numbers that an edge reads, and, as some, those that it makes."""
    used = {i for each in program.instructions for i in each.operands}
    used |= {each.value for each in program.outputs}
    read = sum(
        each.width for i, each in enumerate(program.inputs) if i in used and each.read != "shared"
    )
    return read + sum(map(_made, program.instructions))


def _made(each: Instruction) -> float:
    """What it takes to make a value, in numbers that are read in no order."""
    if each.name in ("dot", "outer"):
        terms = each.params[0] if each.name == "dot" else 1
        return each.width * max(terms / _TERMS, 0.25)
    return each.width * (0 if each.name == "constant" else 1 if each.name in SLOW else 0.25)


def _encoded(walk: _Walk, numbers: list[float], *, by_col: bool) -> list[int]:
    """A walk as whole numbers; by column, rows and columns change places."""
    program, results = walk
    if not results:
        return [0]
    dtypes = {each.dtype for each in program.values}
    floats = {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
    wide = np.dtype(np.float64) in floats
    if not dtypes <= _STORAGES.keys() or (wide and len(floats) > 1):
        raise Unsupported(None, f"numbers of {', '.join(sorted(map(str, dtypes)))} on a CPU")
    if sum(each.width for each in program.values) > MAX_WIDTH:
        raise Unsupported(None, f"more than {MAX_WIDTH} numbers for an edge")
    swapped = {"row": "col", "col": "row"} if by_col else {}

    def access(name: str) -> int:
        return _ACCESSES.index(swapped.get(name, name))

    code = [int(wide), *map(len, (program.inputs, program.instructions, program.outputs))]
    for each in program.inputs:
        code += access(each.read), each.width, _STORAGES[each.dtype]
    for step in program.instructions:
        if step.name not in CODES:
            raise Unsupported(None, f"{step.name} has no instruction on a CPU")
        params = list(step.params[:1] if step.name == "dot" else step.params)
        if step.name == "constant":
            params = [len(numbers)]
            numbers += map(float, step.params)
        elif step.name == "reduce":
            params[0] = _KINDS.index(params[0])
        code += CODES.index(step.name), step.width, _STORAGES[step.dtype]
        code += len(step.operands), *step.operands, len(params), *params
    for result, output in zip(results, program.outputs, strict=True):
        into = "shared" if output.into == "all" else output.into
        reduce = 0 if into == "edge" else _REDUCES.index(output.reduce)
        dtype = program.values[output.value].dtype
        code += result, output.value, access(into), reduce, _STORAGES[dtype]
    return code
