"""Row programs: a function of one entry's rows as a list of instructions, for CUDA code generation.

A value is a flat row of numbers. The shapes of JAX's equations are gone: an instruction is an
elementwise function, a ``take`` that moves numbers, a ``reduce`` over the last axis, or a product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

Access = Literal["edge", "row", "col", "shared"]
"""The row of an array that an entry reads: its own, its row's, its column's, or the only one."""

Dest = Literal["edge", "row", "col", "all"]
"""Destination of a result: the entry itself, or a reduction by row, by column or over all."""

Params = tuple[Any, ...]

abstract_row: Callable[[Sequence[int], object], jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
"""Make the abstract value of a row from its shape and dtype."""


def _hash_once(record: Any) -> int:
    """Return the hash of a frozen record; programs are keys of caches, and long."""
    if "_hash" not in record.__dict__:
        values = tuple([getattr(record, name) for name in record.__dataclass_fields__])
        record.__dict__["_hash"] = hash(values)
    return int(record.__dict__["_hash"])


class _Value:
    """Base of inputs and instructions."""

    dtype: np.dtype[Any]

    @functools.cached_property
    def dtype_name(self) -> str:
        """Name of the dtype, such as ``"float32"``, which numpy takes long to make."""
        return str(self.dtype.name)


@dataclass(frozen=True)
class Input(_Value):
    """An operand of a program.

    Attributes:
        access: The row that an entry reads.
        width: Number of elements of a row.
        dtype: Dtype of the elements.
    """

    access: Access
    width: int
    dtype: np.dtype[Any]
    __hash__ = _hash_once


@dataclass(frozen=True)
class Instruction(_Value):
    """An operation that makes one value.

    Attributes:
        name: A key of `FUNCTIONS` (elementwise, operands of equal width), or one of
            ``"constant"`` (params: the elements), ``"take"`` (params: an index into the operand for
            each element), ``"concatenate"``, ``"reduce"`` (params ``(kind, n)``: reduces an operand
            ``(width, n)`` over its last axis), ``"dot"`` (operands ``(m, k)`` and a shared
            ``(k, n)``; params ``(k,)``, or ``(k, "highest")`` for full precision), and ``"outer"``
            (operands ``(m, k)`` and ``(m, n)``, of which rows are multiplied to ``(k, n)`` and
            added up; params ``(m,)`` or ``(m, "highest")``).
        operands: Indices of values: inputs first, then instructions in order.
        width: Number of elements of the result.
        dtype: Dtype of the result.
        params: Static parameters, see `name`.
    """

    name: str
    operands: tuple[int, ...]
    width: int
    dtype: np.dtype[Any]
    params: Params = ()
    __hash__ = _hash_once

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Index into the operand for each element of a ``"take"``."""
        return np.asarray(self.params, np.int64)

    def renumbered(self, indices: Sequence[int] | Mapping[int, int]) -> Instruction:
        """Return the instruction with each operand ``i`` replaced by ``indices[i]``."""
        operands = tuple([indices[i] for i in self.operands])
        if operands == self.operands:
            return self
        return Instruction(self.name, operands, self.width, self.dtype, self.params)


@dataclass(frozen=True)
class Output:
    """A result of a program.

    Attributes:
        value: Index of the value.
        dest: Destination of the result.
        reduce: ``"sum"``, ``"max"`` or ``"min"``; ``"none"`` for results by entry.
    """

    value: int
    dest: Dest
    reduce: str


@dataclass(frozen=True)
class RowProgram:
    """The instructions of one entry.

    Attributes:
        inputs: Values 0, 1, …
        instructions: The values after the inputs.
        outputs: The results.
    """

    inputs: tuple[Input, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Output, ...]
    __hash__ = _hash_once

    @functools.cached_property
    def values(self) -> tuple[Input | Instruction, ...]:
        """All values by index."""
        return self.inputs + self.instructions

    @functools.cached_property
    def varies(self) -> tuple[bool, ...]:
        """Whether each value may differ between entries."""
        varies = [source.access != "shared" for source in self.inputs]
        for instruction in self.instructions:
            varies.append(any(varies[i] for i in instruction.operands))
        return tuple(varies)

    @functools.cached_property
    def used(self) -> tuple[int, ...]:
        """Indices of the inputs that the program reads."""
        access = {i for instruction in self.instructions for i in instruction.operands}
        access |= {output.value for output in self.outputs}
        return tuple(i for i in range(len(self.inputs)) if i in access)

    @functools.cached_property
    def bytes_per_entry(self) -> int:
        """Bytes that an entry reads and its neighbours do not, in a walk by row."""
        inputs = (self.inputs[i] for i in self.used)
        return sum(x.width * x.dtype.itemsize for x in inputs if x.access in ("edge", "col"))

    def transposed(self) -> RowProgram:
        """Return the program with row reads and column reads swapped; outputs stay."""
        swap: dict[Access, Access] = {"row": "col", "col": "row"}
        inputs = (replace(x, access=swap.get(x.access, x.access)) for x in self.inputs)
        return RowProgram(tuple(inputs), self.instructions, self.outputs)

    def only(self, indices: Sequence[int]) -> RowProgram:
        """Return the program of some results; all inputs stay."""
        outputs = [self.outputs[i] for i in indices]
        return without_dead_code(self.inputs, self.instructions, outputs)


def without_dead_code(
    inputs: tuple[Input, ...], instructions: Sequence[Instruction], outputs: Sequence[Output]
) -> RowProgram:
    """Return the program without instructions that no output needs."""
    count = len(inputs)
    needed = {output.value for output in outputs}
    # Backwards, since operands precede their readers: one pass finds all needed values.
    for i in range(len(instructions) - 1, -1, -1):
        if count + i in needed:
            needed.update(instructions[i].operands)
    indices = {i: i for i in range(count)}
    live: list[Instruction] = []
    for i, instruction in enumerate(instructions):
        if count + i in needed:
            indices[count + i] = count + len(live)
            live.append(instruction.renumbered(indices))
    sinks = tuple(replace(output, value=indices[output.value]) for output in outputs)
    return RowProgram(inputs, tuple(live), sinks)


class Unsupported(Exception):
    """An equation without an instruction.

    Attributes:
        equation: The JAX equation, which holds the user's line; None if there is no single one.
        reason: Description of the problem.
    """

    def __init__(self, equation: jex.JaxprEqn | None, reason: str) -> None:
        super().__init__(reason)
        self.equation = equation
        self.reason = reason


def described(error: Unsupported) -> str:
    """Return the reason, with the user's line if it is known."""
    traceback = None if error.equation is None else error.equation.source_info.traceback
    frames: Sequence[Any] = () if traceback is None else traceback.frames
    for frame in frames:
        path = Path(frame.file_name)
        if not _LIBRARY_FOLDERS & set(path.parts):
            return f"{error.reason} ({path.name}:{frame.line_num})"
    return error.reason


_LIBRARY_FOLDERS = {"jax", "_ops", "_core", "_program"}


# --- Elementwise functions -----------------------------------------------------------------------


class Function(NamedTuple):
    """An elementwise function.

    Attributes:
        arity: Number of operands.
        lax: The function in JAX.
        numpy: The same on the host, to fold constants; None if numpy lacks it.
        params: Names of the equation's params that the function takes.
    """

    arity: int
    lax: Callable[..., Array]
    numpy: Callable[..., np.ndarray] | None = None
    params: tuple[str, ...] = ()


def _round(x: Array, mode: int) -> Array:
    """Round to the nearest integer; ties to even, or away from zero if `mode` is 0."""
    return jnp.round(x) if mode else lax.sign(x) * lax.floor(lax.abs(x) + 0.5)


def primitive_names(names: str) -> frozenset[str]:
    """Return names of JAX's primitives from a text with spaces between them."""
    return frozenset(names.split())


def _functions(arity: int, names: str) -> dict[str, Function]:
    """Return the functions that have the same name in `jax.lax` and, if it has them, in numpy."""
    return {
        name: Function(arity, getattr(lax, name), getattr(np, name, None)) for name in names.split()
    }


FUNCTIONS: dict[str, Function] = {
    **_functions(1, "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc erf_inv exp"),
    **_functions(1, "exp2 expm1 floor log log1p logistic rsqrt sign sin sinh sqrt square tan tanh"),
    **_functions(2, "add atan2"),
    "and": Function(2, lax.bitwise_and, np.bitwise_and),
    "clamp": Function(3, lax.clamp, lambda low, x, high: np.clip(x, low, high)),
    "convert_element_type": Function(1, lambda x, dtype: lax.convert_element_type(x, dtype)),
    "div": Function(2, lax.div),  # not folded: integers are truncated
    "eq": Function(2, lax.eq, np.equal),
    "ge": Function(2, lax.ge, np.greater_equal),
    "gt": Function(2, lax.gt, np.greater),
    "integer_pow": Function(1, lax.integer_pow, lambda x, y: x**y, ("y",)),
    "is_finite": Function(1, lax.is_finite, np.isfinite),
    "le": Function(2, lax.le, np.less_equal),
    "lt": Function(2, lax.lt, np.less),
    "max": Function(2, lax.max, np.maximum),
    "min": Function(2, lax.min, np.minimum),
    "mul": Function(2, lax.mul, np.multiply),
    "ne": Function(2, lax.ne, np.not_equal),
    "neg": Function(1, lax.neg, np.negative),
    "not": Function(1, lax.bitwise_not, np.invert),
    "or": Function(2, lax.bitwise_or, np.bitwise_or),
    "pow": Function(2, lax.pow),
    "rem": Function(2, lax.rem, np.fmod),
    "round": Function(1, _round, None, ("rounding_method",)),
    "select_n": Function(3, lax.select_n, lambda which, *x: np.choose(which.astype(int), x)),
    "sub": Function(2, lax.sub, np.subtract),
    "xor": Function(2, lax.bitwise_xor, np.bitwise_xor),
}
"""The elementwise functions, by the names of JAX's primitives."""

SLOW = primitive_names(
    "acos acosh asin asinh atan atan2 atanh cbrt cos cosh div erf erfc erf_inv exp exp2 expm1 log "
    "log1p logistic pow rem rsqrt sin sinh sqrt tan tanh"
)
"""Functions that take as long as several additions: a series, or a division."""

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
}


# --- In plain JAX --------------------------------------------------------------------------------


def evaluate(program: RowProgram, rows: Sequence[ArrayLike]) -> list[Array]:
    """Run a program in plain JAX, on one row ``(width,)`` of each input: the kernels' reference."""
    values = [jnp.asarray(row) for row in rows]
    for instruction in program.instructions:
        values.append(_evaluate(instruction, [values[i] for i in instruction.operands]))
    return [values[output.value] for output in program.outputs]


def _evaluate(instruction: Instruction, operands: Sequence[Array]) -> Array:
    width, dtype, params = instruction.width, instruction.dtype, instruction.params
    match instruction.name:
        case "constant":
            return jnp.asarray(params, dtype)
        case "take":
            return operands[0][np.asarray(params, int)]
        case "concatenate":
            return jnp.concatenate(operands)
        case "reduce":
            kind, count = params
            return REDUCTIONS[kind](operands[0].reshape(width, count), 1).astype(dtype)
        case "dot":
            count, *precision = params
            x, w = operands[0].reshape(-1, count), operands[1].reshape(count, -1)
            return jnp.matmul(x, w, precision=precision[0] if precision else None).ravel()
        case "outer":
            count, *precision = params
            x, y = (operand.reshape(count, -1) for operand in operands)
            return jnp.matmul(x.T, y, precision=precision[0] if precision else None).ravel()
        case "convert_element_type":
            return lax.convert_element_type(operands[0], dtype)
    return FUNCTIONS[instruction.name].lax(*operands, *params)
