"""Row programs for the interpreter on a CPU: a list of whole numbers, and one of others."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    without_dead_code,
)

_STORAGES = {
    np.dtype(dtype): place
    for place, dtype in enumerate((jnp.float32, jnp.float64, jnp.float16, jnp.bfloat16, jnp.bool_))
}
_ACCESSES = ("edge", "row", "col", "shared")
_REDUCES = ("sum", "max", "min")
_KINDS = ("sum", "prod", "max", "min")

# In the order of enum Code in edge_region.h.
CODES = (
    *("abs", "ceil", "convert_element_type", "exp", "expm1", "floor", "is_finite", "log"),
    *("log1p", "logistic", "neg", "not", "rsqrt", "sign", "softplus", "sqrt", "square", "tanh"),
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

    Results by column are made in a second walk. There edges make again what that needs, or read
    what the first walk has made of them, as a result or for this: whatever takes less time.
    """
    outputs, values = program.outputs, program.values
    by_col = [i for i, each in enumerate(outputs) if each.into == "col"]
    rest = [i for i in range(len(outputs)) if i not in by_col]
    if not any(each.into == "row" for each in outputs):
        by_col, rest = ([*by_col, *rest], []) if by_col else ([], rest)
    if not rest or not by_col:
        return _Walk(program.only(rest), rest), _Walk(program.only(by_col), by_col), ()
    known = {each.value: i for i, each in enumerate(outputs) if each.into == "edge"}
    stored: dict[int, int] = {}  # values that are read, by their places among the first's results
    made = outputs
    second, least = _after(program, made, by_col, stored), np.inf
    for value in dict.fromkeys([-1, *known, *(outputs[i].value for i in by_col)]):
        is_new = value >= 0 and value not in known
        more = (*made, Output(value, "edge", "none")) if is_new else made
        read = stored | ({value: known.get(value, len(made))} if value >= 0 else {})
        other = _after(program, more, by_col, read)
        time = _time(other) + _WRITTEN * sum(values[x.value].width for x in more[len(outputs) :])
        if time < least:
            second, least, made, stored = other, time, more, read
    kept = [*rest, *range(len(outputs), len(made))]
    first = RowProgram(program.inputs, program.instructions, made)
    workspaces = tuple((values[x.value].width, values[x.value].dtype) for x in made[len(outputs) :])
    return _Walk(first.only(kept), kept), _Walk(second, by_col), workspaces


_READ: dict[Into, Read] = {"edge": "edge", "row": "row", "col": "col", "all": "shared"}


def _after(
    program: RowProgram, made: Sequence[Output], by_col: Sequence[int], stored: Mapping[int, int]
) -> RowProgram:
    """The walk by column after one that has made some results, of which it reads stored values."""
    values, count = program.values, len(program.inputs)
    arrays = (Input(_READ[x.into], values[x.value].width, values[x.value].dtype) for x in made)
    numbers = [i if i < count else i + len(made) for i in range(len(values))]
    for value, place in stored.items():
        numbers[value] = count + place
    instructions = [
        replace(each, operands=tuple(numbers[i] for i in each.operands))
        for each in program.instructions
    ]
    sums = [replace(x, value=numbers[x.value]) for x in (program.outputs[i] for i in by_col)]
    return without_dead_code((*program.inputs, *arrays), instructions, sums)


# Times of a number of an edge, in that of one that is read from memory in no order.
_READING = {"edge": 1.0, "row": 0.5, "col": 0.25, "shared": 0.0}  # by column
_WRITTEN = 3.0  # to memory that is mapped afresh


def _time(program: RowProgram) -> float:
    """What a walk by column takes."""
    read = sum(x.width * _READING[x.read] for x in map(program.inputs.__getitem__, program.used))
    return read + sum(map(_made, program.instructions))


def _made(each: Instruction) -> float:
    """What it takes to make a value."""
    if each.name in ("dot", "outer"):
        terms = each.params[0] if each.name == "dot" else 1
        return each.width * max(terms / _TERMS, 0.125)
    return each.width * (0 if each.name == "constant" else 1 if each.name in SLOW else 0.125)


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
