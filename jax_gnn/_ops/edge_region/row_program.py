"""Row programs: a function of one entry's rows as a list of instructions, for CUDA code generation.

A value is a flat row of numbers. The shapes of JAX's equations are gone: an instruction is an
elementwise function, a ``take`` that moves numbers, a ``reduce`` over the last axis, or a product.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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

MAX_PRODUCT = 1 << 15
"""Largest number of weights of a ``dot``, and of terms of a product that is written out."""

Params = tuple[Any, ...]

abstract_row: Callable[[Sequence[int], object], jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
"""Make the abstract value of a row from its shape and dtype."""


@dataclass(frozen=True)
class Input:
    """An operand of a program.

    Attributes:
        access: The row that an entry reads.
        width: Number of elements of a row.
        dtype: Dtype of the elements.
    """

    access: Access
    width: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Instruction:
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

    @property
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


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _functions(arity: int, names: str) -> dict[str, Function]:
    """Return the functions that have the same name in `jax.lax` and, if it has them, in numpy."""
    return {
        name: Function(arity, getattr(lax, name), getattr(np, name, None)) for name in names.split()
    }


FUNCTIONS: dict[str, Function] = {
    **_functions(1, "abs cbrt ceil cos cosh erf erfc erf_inv exp exp2 expm1 floor log log1p"),
    **_functions(1, "logistic rsqrt sign sin sinh sqrt square tan tanh"),
    "acos": Function(1, lax.acos, np.arccos),
    "acosh": Function(1, lax.acosh, np.arccosh),
    "add": Function(2, lax.add, np.add),
    "and": Function(2, lax.bitwise_and, np.bitwise_and),
    "asin": Function(1, lax.asin, np.arcsin),
    "asinh": Function(1, lax.asinh, np.arcsinh),
    "atan": Function(1, lax.atan, np.arctan),
    "atan2": Function(2, lax.atan2, np.arctan2),
    "atanh": Function(1, lax.atanh, np.arctanh),
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

SLOW = _names(
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

# The second operand that leaves the first one unchanged. x - (-0.0) is x, too.
_NEUTRAL = {"sub": 0, "mul": 1, "div": 1}

_ALIASES = {"add_any": "add"}
_IDENTITIES = _names(
    "copy copy_p name optimization_barrier pcast pvary reshape reshard squeeze stop_gradient"
)
_CALLS = _names(
    "checkpoint closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit "
    "pjit remat remat2"
)
_INNER_JAXPRS = ("call_jaxpr", "fun_jaxpr", "jaxpr")
_DEFAULT_PRECISIONS = None, lax.Precision.DEFAULT, (lax.Precision.DEFAULT, lax.Precision.DEFAULT)


# --- From JAX ------------------------------------------------------------------------------------


def from_jaxpr(
    closed_jaxpr: jex.ClosedJaxpr, accesses: Sequence[Access], outputs: Sequence[tuple[Dest, str]]
) -> RowProgram:
    """Return the instructions of a function of rows.

    Args:
        closed_jaxpr: The function, on rows of any shapes; its consts become constants.
        accesses: The row that an entry reads of each argument.
        outputs: Destination and reduction of each result.

    Raises:
        Unsupported: An equation has no instruction.
    """
    jaxpr = closed_jaxpr.jaxpr
    inputs = [
        Input(access, math.prod(var.aval.shape), np.dtype(var.aval.dtype))
        for access, var in zip(accesses, jaxpr.invars, strict=True)
    ]
    builder = Builder(inputs)
    results = builder.walk(jaxpr, closed_jaxpr.consts, list(range(len(inputs))))
    sinks = [
        Output(value, dest, reduce) for value, (dest, reduce) in zip(results, outputs, strict=True)
    ]
    return without_dead_code(builder.inputs, builder.instructions, sinks)


class _Equation(NamedTuple):
    """A JAX equation, the values of its operands, their shapes, and its first result."""

    eqn: jex.JaxprEqn
    operands: list[int]
    shapes: list[tuple[int, ...]]
    result: jax.core.ShapedArray

    @property
    def params(self) -> dict[str, Any]:
        """The equation's static parameters."""
        return dict(self.eqn.params)


class Builder:
    """Emits instructions; merges equal ones and folds constants."""

    def __init__(self, inputs: Iterable[Input]) -> None:
        self.inputs = tuple(inputs)
        self.instructions: list[Instruction] = []
        self._index_of: dict[str, int] = {}

    def walk(
        self, jaxpr: jex.Jaxpr, consts: Sequence[ArrayLike], arguments: Sequence[int]
    ) -> list[int]:
        """Emit a jaxpr and return the values of its results."""
        values: dict[jex.Var, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            values[var] = self.constant(np.asarray(const))

        def value_of(atom: jex.Var | jex.Literal) -> int:
            if isinstance(atom, jex.Literal):
                return self.constant(np.asarray(atom.val, atom.aval.dtype))  # type: ignore[attr-defined]
            return values[atom]

        # Equations of a jaxpr are in topological order: the values of operands exist already.
        for eqn in jaxpr.eqns:
            results = self._emit_equation(eqn, [value_of(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [value_of(atom) for atom in jaxpr.outvars]

    def _emit_equation(self, eqn: jex.JaxprEqn, operands: list[int]) -> list[int]:
        """Emit an equation and return the values of its results."""
        name = _ALIASES.get(eqn.primitive.name, eqn.primitive.name)
        avals: list[Any] = [atom.aval for atom in eqn.invars]
        result: Any = eqn.outvars[0].aval
        equation = _Equation(eqn, operands, [aval.shape for aval in avals], result)
        shapes = equation.shapes
        # Calls are inlined: a program is one list of instructions, and equal ones of several calls
        # are merged.
        if name in _CALLS:
            inner = next(eqn.params[key] for key in _INNER_JAXPRS if key in eqn.params)
            consts = getattr(inner, "consts", ())
            try:
                return self.walk(getattr(inner, "jaxpr", inner), consts, operands)
            except Unsupported as error:  # a cached inner jaxpr may name another caller's line
                raise Unsupported(eqn, error.reason) from None
        # Values are flat rows of elements in row-major order, so that a reshape changes nothing.
        if name in _IDENTITIES:
            if name == "reshape" and eqn.params["dimensions"] is not None:
                raise Unsupported(eqn, "reshape with dimensions")
            return list(operands)
        if name in FUNCTIONS:
            return [self._function(name, equation)]
        if name == "split":
            starts, axis = np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"]
            parts = np.split(_indices(shapes[0]), starts, axis)
            return [self.take(operands[0], part) for part in parts]
        if name == "unstack":
            slices = np.moveaxis(_indices(shapes[0]), eqn.params["axis"], 0)
            return [self.take(operands[0], indices) for indices in slices]
        # Data movement is a `take`: the same move, applied to an array of indices on the host,
        # tells which element of the operand each element of the result is.
        if name in _MOVES:
            indices = _MOVES[name](_indices(shapes[0]), result.shape, eqn.params)
            return [self.take(operands[0], indices)]
        if name.startswith("reduce_") and name.removeprefix("reduce_") in _REDUCED:
            kind = _REDUCED[name.removeprefix("reduce_")]
            return [self._reduce(kind, operands[0], shapes[0], eqn.params["axes"])]
        # Other primitives have a method named after them; a new one needs no entry in a table.
        rule: Callable[[_Equation], int] | None = getattr(self, f"_emit_{name}", None)
        if rule is None:
            raise Unsupported(eqn, f"{name} has no instruction for rows of edges")
        return [rule(equation)]

    # --- Instructions --------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        operands: Iterable[int],
        width: int,
        dtype: np.dtype[Any] | type,
        params: Iterable[object] = (),
    ) -> int:
        """Return the value of an instruction, which is new unless an equal one exists."""
        instruction = Instruction(name, tuple(operands), width, np.dtype(dtype), tuple(params))
        key = repr(instruction)  # unlike ==, distinguishes -0.0 from 0.0
        if key not in self._index_of:
            self._index_of[key] = len(self.inputs) + len(self.instructions)
            self.instructions.append(instruction)
        return self._index_of[key]

    def constant(self, value: np.ndarray) -> int:
        """Emit a constant."""
        # float64 holds all smaller floats exactly. Python floats have a `repr` that is unique,
        # which `emit` needs for its keys.
        wide = value.astype(np.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value
        return self.emit("constant", (), value.size, value.dtype, wide.ravel().tolist())

    def constant_of(self, index: int) -> np.ndarray | None:
        """Return the elements of a constant value; None for other values."""
        value = self.value(index)
        if isinstance(value, Instruction) and value.name == "constant":
            return np.asarray(value.params, value.dtype)
        return None

    def value(self, index: int) -> Input | Instruction:
        """Return the input or instruction with an index."""
        count = len(self.inputs)
        return self.inputs[index] if index < count else self.instructions[index - count]

    def _function(self, name: str, equation: _Equation) -> int:
        """Emit an elementwise function, its operands broadcast to the result's shape."""
        eqn, operands, shapes, result = equation
        width, dtype = math.prod(result.shape), np.dtype(result.dtype)
        function = FUNCTIONS[name]
        if len(operands) != function.arity:
            raise Unsupported(eqn, f"{name} of {len(operands)} operands")
        params: Params = tuple(eqn.params[key] for key in function.params)
        if name == "select_n" and self.value(operands[0]).dtype != bool:
            raise Unsupported(eqn, "select_n by integers")
        if name == "round":
            params = (int(params[0]),)
        if name == "convert_element_type":
            if self.value(operands[0]).dtype == dtype:
                return operands[0]
            if dtype.kind == "b":
                zero = self.constant(np.zeros(width, self.value(operands[0]).dtype))
                return self.emit("ne", (operands[0], zero), width, dtype)
        # Instructions have no broadcasting: operands get the width of the result first.
        operands = [
            self.take(value, np.broadcast_to(_indices(shape), result.shape))
            for value, shape in zip(operands, shapes, strict=True)
        ]
        constants = [self.constant_of(value) for value in operands]
        divisor = constants[-1]
        if name in _NEUTRAL and divisor is not None and np.all(divisor == _NEUTRAL[name]):
            return operands[0]
        if all(numbers is not None for numbers in constants):
            with np.errstate(all="ignore"):
                if name == "convert_element_type":
                    return self.constant(constants[0].astype(dtype))  # type: ignore[union-attr]
                if function.numpy is not None:
                    folded = function.numpy(*constants, *params)
                    return self.constant(np.asarray(folded).astype(dtype))
        return self.emit(name, operands, width, dtype, params)

    def take(self, value: int, indices: np.ndarray) -> int:
        """Emit the elements of a value at flat indices."""
        source, indices = self.value(value), indices.ravel()
        if indices.size == source.width and np.array_equal(indices, np.arange(source.width)):
            return value
        numbers = self.constant_of(value)
        if numbers is not None:
            return self.constant(numbers[indices])
        if isinstance(source, Instruction) and source.name == "take":
            return self.take(source.operands[0], np.asarray(source.params, int)[indices])
        return self.emit("take", (value,), indices.size, source.dtype, indices.tolist())

    def _concatenate(self, values: Sequence[int]) -> int:
        """Emit flat rows one after the other."""
        values = [value for value in values if self.value(value).width]
        if len(values) == 1:
            return values[0]
        width = sum(self.value(value).width for value in values)
        constants = [self.constant_of(value) for value in values]
        if all(numbers is not None for numbers in constants):
            return self.constant(np.concatenate(constants))  # type: ignore[arg-type]
        return self.emit("concatenate", values, width, self.value(values[0]).dtype)

    def _reduce(self, kind: str, value: int, shape: Sequence[int], axes: Sequence[int]) -> int:
        """Emit a reduction over axes."""
        # `reduce` has the last axis only: a take moves the reduced axes there first.
        indices = np.moveaxis(_indices(shape), tuple(axes), tuple(range(-len(axes), 0)))
        count = math.prod(shape[axis] for axis in axes)
        value = self.take(value, indices)
        if count == 1:
            return value
        numbers = self.constant_of(value)
        if numbers is not None and count:
            rows = numbers.reshape(-1, count)
            return self.constant(getattr(np, kind)(rows, 1).astype(numbers.dtype))
        width = math.prod(size for axis, size in enumerate(shape) if axis not in axes)
        return self.emit("reduce", (value,), width, self.value(value).dtype, (kind, count))

    # --- Primitives with a rule of their own ---------------------------------------------------

    def _emit_concatenate(self, equation: _Equation) -> int:
        joined = self._concatenate(equation.operands)
        starts = np.cumsum([0, *(math.prod(shape) for shape in equation.shapes)])
        parts = [
            _indices(shape) + start for shape, start in zip(equation.shapes, starts, strict=False)
        ]
        return self.take(joined, np.concatenate(parts, equation.params["dimension"]))

    def _emit_stack(self, equation: _Equation) -> int:
        indices = _indices((len(equation.operands), *equation.shapes[0]))
        joined = self._concatenate(equation.operands)
        return self.take(joined, np.moveaxis(indices, 0, equation.params["axis"]))

    def _emit_one_minus_square(self, equation: _Equation) -> int:
        """Emit the derivative of tanh, a primitive since JAX 0.11."""
        width, dtype = math.prod(equation.result.shape), equation.result.dtype
        one = self.constant(np.ones(width, dtype))
        square = self.emit("square", equation.operands, width, dtype)
        return self.emit("sub", (one, square), width, dtype)

    def _emit_iota(self, equation: _Equation) -> int:
        axis, shape = equation.params["dimension"], equation.result.shape
        steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return self.constant(np.broadcast_to(steps, shape).astype(equation.result.dtype))

    def _emit_pad(self, equation: _Equation) -> int:
        """Emit a padded row: a take from the row and, behind it, the fill value."""
        shape, result_shape = equation.shapes[0], equation.result.shape
        indices = np.full(result_shape, math.prod(shape))
        # Along each axis, element i of the row lands at positions[i], perhaps outside.
        config = equation.params["padding_config"]
        positions = [
            low + np.arange(size) * (step + 1)
            for size, (low, _, step) in zip(shape, config, strict=True)
        ]
        inside = [(x >= 0) & (x < n) for x, n in zip(positions, result_shape, strict=True)]
        targets = [x[mask] for x, mask in zip(positions, inside, strict=True)]
        indices[np.ix_(*targets)] = _indices(shape)[np.ix_(*inside)]
        return self.take(self._concatenate(equation.operands), indices)

    def _emit_dot_general(self, equation: _Equation) -> int:
        """Emit a product: a ``dot`` with a shared matrix if possible, else written out."""
        eqn, operands, shapes, result = equation
        dtype = np.dtype(result.dtype)
        (summed, batch) = eqn.params["dimension_numbers"]
        operands = [self._convert(value, dtype) for value in operands]
        varies = [self._varies(value) for value in operands]
        free = [
            [axis for axis in range(len(shape)) if axis not in (*summed[i], *batch[i])]
            for i, shape in enumerate(shapes)
        ]
        sizes = [math.prod(shapes[i][axis] for axis in free[i]) for i in range(2)]
        count = math.prod(shapes[0][axis] for axis in summed[0])
        batches = math.prod(shapes[0][axis] for axis in batch[0])
        # A product of a varying row with a shared matrix is one `dot`, which tensor cores may
        # compute. If the matrix is on the left, the transposed product is emitted, and a take
        # transposes its result.
        if batches == 1 and varies[0] != varies[1] and min(count, *sizes) > 0:
            lhs = 0 if varies[0] else 1
            rhs = 1 - lhs
            if count * sizes[rhs] > MAX_PRODUCT:
                raise Unsupported(eqn, f"dot_general with {count * sizes[rhs]} weights")
            rows = _indices(shapes[lhs]).transpose(*batch[lhs], *free[lhs], *summed[lhs])
            weights = _indices(shapes[rhs]).transpose(*batch[rhs], *summed[rhs], *free[rhs])
            pair = self.take(operands[lhs], rows), self.take(operands[rhs], weights)
            width = sizes[lhs] * sizes[rhs]
            precision = () if eqn.params["precision"] in _DEFAULT_PRECISIONS else ("highest",)
            product = self.emit("dot", pair, width, dtype, (count, *precision))
            if lhs == 0:
                return product
            return self.take(product, np.arange(width).reshape(sizes[lhs], sizes[rhs]).T)
        if batches == 1 and min(sizes) > 1 and math.prod(sizes) <= MAX_PRODUCT:
            return self._outer(equation, operands, (summed, free), count)
        total = batches * sizes[0] * sizes[1] * count
        if total > MAX_PRODUCT:
            raise Unsupported(eqn, f"dot_general of {total} products")
        terms = []
        for i in range(2):
            order = (*batch[i], *free[i], *summed[i])
            indices = _indices(shapes[i]).transpose(order).reshape(batches, sizes[i], count)
            indices = indices[:, :, None] if i == 0 else indices[:, None]
            full = np.broadcast_to(indices, (batches, sizes[0], sizes[1], count))
            terms.append(self.take(operands[i], full))
        product = self.emit("mul", terms, total, dtype)
        return self._reduce("sum", product, (total // max(count, 1), count), (1,))

    def _outer(
        self,
        equation: _Equation,
        operands: Sequence[int],
        axes: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]],
        count: int,
    ) -> int:
        """Emit a product of two rows of an entry, such as the gradient of a shared matrix.

        Args:
            equation: The equation.
            operands: Its operands, in the dtype of the result.
            axes: The axes of each operand that are summed, and the other ones.
            count: Number of products in each sum.
        """
        summed, free = axes
        pair = [
            self.take(operands[i], _indices(equation.shapes[i]).transpose(*summed[i], *free[i]))
            for i in range(2)
        ]
        is_default = equation.params["precision"] in _DEFAULT_PRECISIONS
        params = (count,) if is_default else (count, "highest")
        result = equation.result
        return self.emit("outer", pair, math.prod(result.shape), result.dtype, params)

    def _convert(self, index: int, dtype: np.dtype[Any]) -> int:
        value = self.value(index)
        if value.dtype == dtype:
            return index
        return self.emit("convert_element_type", (index,), value.width, dtype)

    def _varies(self, index: int) -> bool:
        value = self.value(index)
        if isinstance(value, Input):
            return value.access != "shared"
        return any(map(self._varies, value.operands))


def _indices(shape: Sequence[int]) -> np.ndarray:
    """Return the flat index of each element of a row."""
    return np.arange(math.prod(shape)).reshape(shape)


def _broadcast(indices: np.ndarray, shape: Sequence[int], params: Mapping[str, Any]) -> np.ndarray:
    sizes = [1] * len(shape)
    for axis, size in zip(params["broadcast_dimensions"], indices.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(indices.reshape(sizes), shape)


def _slice(indices: np.ndarray, shape: Sequence[int], params: Mapping[str, Any]) -> np.ndarray:
    del shape
    steps = params["strides"] or [1] * indices.ndim
    limits = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return indices[tuple(slice(start, stop, step) for start, stop, step in limits)]


# Primitives that only move elements: the flat index of each element of the result.
_MOVES: dict[str, Callable[[np.ndarray, Sequence[int], Mapping[str, Any]], np.ndarray]] = {
    "broadcast_in_dim": _broadcast,
    "expand_dims": lambda indices, shape, params: indices.reshape(shape),
    "rev": lambda indices, shape, params: np.flip(indices, params["dimensions"]),
    "slice": _slice,
    "tile": lambda indices, shape, params: np.tile(indices, params["reps"]),
    "transpose": lambda indices, shape, params: indices.transpose(params["permutation"]),
}
_REDUCED = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "and": "min", "or": "max"}


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
