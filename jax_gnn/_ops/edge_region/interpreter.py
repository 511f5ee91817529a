"""Row programs for the interpreter on a CPU: a list of whole numbers, and one of others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import RowProgram, Unsupported

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
    *("constant", "take", "concatenate", "reduce", "dot"),
)

# Numbers of a row's values together: beyond these a block leaves the caches.
MAX_WIDTH = 1 << 16


class Code(NamedTuple):
    """What a call of the interpreter is told.

    Attributes:
        by_row: The program of a walk by row; where there is none, a single number.
        by_col: Likewise by column.
        numbers: The constants of both.
    """

    by_row: np.ndarray
    by_col: np.ndarray
    numbers: np.ndarray


@functools.lru_cache(maxsize=1024)
def code_of(region: Region) -> Code | Unsupported:
    """A region for the interpreter, or why it has no instructions for that.

    Results by column are made in a walk of their own, in which edges make all that they make again;
    others in that by row, if there is one.
    """
    program = region.program
    if isinstance(program, Unsupported):
        return program
    by_col = [i for i, (into, _) in enumerate(region.outputs) if into == "col"]
    rest = [i for i in range(len(region.outputs)) if i not in by_col]
    if by_col and all(into != "row" for into, _ in region.outputs):
        by_col, rest = [*by_col, *rest], []
    numbers = [0.0]
    try:
        codes = [
            _encoded(program, kept, numbers, is_by_col) if kept else [0]
            for kept, is_by_col in ((rest, False), (by_col, True))
        ]
    except Unsupported as error:
        return error
    walks = [np.asarray(code, np.int64) for code in codes]
    return Code(walks[0], walks[1], np.asarray(numbers))


def _encoded(
    program: RowProgram, kept: Sequence[int], numbers: list[float], by_col: bool
) -> list[int]:
    """The program of some results; by column, rows and columns change places."""
    program = program.only(kept)
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
        params = list(step.params)
        if step.name == "constant":
            params = [len(numbers)]
            numbers += map(float, step.params)
        elif step.name == "reduce":
            params[0] = _KINDS.index(params[0])
        code += CODES.index(step.name), step.width, _STORAGES[step.dtype]
        code += len(step.operands), *step.operands, len(params), *params
    for result, output in zip(kept, program.outputs, strict=True):
        into = "shared" if output.into == "all" else output.into
        reduce = 0 if into == "edge" else _REDUCES.index(output.reduce)
        dtype = program.values[output.value].dtype
        code += result, output.value, access(into), reduce, _STORAGES[dtype]
    return code
