"""A function of one row as a list of instructions: what kernels for edge regions are made of.

Values are flat rows of numbers. What JAX writes with shapes becomes one of few forms: functions of
numbers, `take` for all that moves numbers, `reduce` over the last axis, and small products.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import Literal as JaxLiteral

Read = Literal["edge", "row", "col", "shared"]
Into = Literal["edge", "row", "col", "all"]

# Numbers of the shared operand of a `dot`, or of a product that is written out.
MAX_PRODUCT = 1 << 13


@dataclass(frozen=True)
class Input:
    """An operand.

    Attributes:
        read: What an entry reads of it: the row of its own number, of its row or column in the
            matrix, or the one row that all share.
        width: Numbers in a row.
        dtype: Of these.
    """

    read: Read
    width: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Instruction:
    """Makes a value of others.

    Attributes:
        name: One of `FUNCTIONS`, of operands of the same width; or ``"constant"``, whose params are
            its numbers; ``"take"``, whose params say which number of the operand each one is;
            ``"concatenate"``; ``"reduce"``, with params ``(kind, n)``, over the n last numbers of
            an operand ``(width, n)``; ``"dot"``, with params ``(k,)``, of operands ``(outer, k)``
            and ``(k, n)``, where the second one is shared, with a second one, ``"highest"``, where
            it must not be rounded to less than its dtype.
        operands: Numbers of values: inputs first, then instructions in their order.
        width: Of the result.
        dtype: Of the result.
        params: What belongs to the name.
    """

    name: str
    operands: tuple[int, ...]
    width: int
    dtype: np.dtype[Any]
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Output:
    """A result.

    Attributes:
        value: The number of the value.
        into: A row of each entry, or what entries of a row or a column, or all, make together.
        reduce: ``"sum"``, ``"max"`` or ``"min"``; of entries ``"none"``.
    """

    value: int
    into: Into
    reduce: str


@dataclass(frozen=True)
class RowProgram:
    """What becomes of an entry.

    Attributes:
        inputs: Values 0, 1, …
        instructions: The values that follow.
        outputs: The results.
    """

    inputs: tuple[Input, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Output, ...]

    @property
    def values(self) -> tuple[Input | Instruction, ...]:
        """All values by number."""
        return self.inputs + self.instructions

    @functools.cached_property
    def varies(self) -> tuple[bool, ...]:
        """Of each value whether it may differ between entries."""
        found = [each.read != "shared" for each in self.inputs]
        for each in self.instructions:
            found.append(any(found[i] for i in each.operands))
        return tuple(found)

    @functools.cached_property
    def used(self) -> tuple[int, ...]:
        """The inputs that it reads."""
        read = {i for each in self.instructions for i in each.operands}
        read |= {each.value for each in self.outputs}
        return tuple(i for i in range(len(self.inputs)) if i in read)

    @functools.cached_property
    def moved(self) -> int:
        """Bytes that an entry reads and its neighbours do not, where entries go by row."""
        read = (self.inputs[i] for i in self.used)
        return sum(x.width * x.dtype.itemsize for x in read if x.read in ("edge", "col"))

    def transposed(self) -> RowProgram:
        """With rows read as columns, and columns as rows; results stay."""
        other: dict[str, Any] = {"row": "col", "col": "row"}
        inputs = (replace(x, read=other.get(x.read, x.read)) for x in self.inputs)
        return RowProgram(tuple(inputs), self.instructions, self.outputs)

    def only(self, kept: Sequence[int]) -> RowProgram:
        """The program with some of its results, by their numbers; all inputs stay."""
        outputs = [self.outputs[i] for i in kept]
        return without_dead_code(self.inputs, self.instructions, outputs)


class Unsupported(Exception):
    """An equation that has no instruction.

    Attributes:
        equation: JAX's, which knows the user's line; None where no single one is meant.
        reason: What is wrong with it.
    """

    def __init__(self, equation: Any, reason: str) -> None:
        super().__init__(reason)
        self.equation = equation
        self.reason = reason


def described(error: Unsupported) -> str:
    """What has no instruction, and the line of the user's that asks for it."""
    if error.equation is None or error.equation.source_info.traceback is None:
        return error.reason
    for frame in error.equation.source_info.traceback.frames:
        path = Path(frame.file_name)
        if not _OWN & set(path.parts):
            return f"{error.reason} ({path.name}:{frame.line_num})"
    return error.reason


_OWN = {"jax", "_ops", "_core", "_program"}  # folders of what is between the user's line and JAX


# --- Functions of numbers ------------------------------------------------------------------------


class Function(NamedTuple):
    """A function of numbers.

    Attributes:
        operands: How many.
        lax: JAX's.
        numpy: The same on the host, for constants; None where there is none.
        params: Names of the equation's params that belong to it.
    """

    operands: int
    lax: Callable[..., Array]
    numpy: Callable[..., Any] | None = None
    params: tuple[str, ...] = ()


def _select(which: Any, *cases: Any) -> Any:
    return np.choose(which.astype(int), cases)


def _rounded(x: Array, mode: int) -> Array:
    """To the nearest integer: of two the even one, or, where the mode is 0, the larger one."""
    return jnp.round(x) if mode else lax.sign(x) * lax.floor(lax.abs(x) + 0.5)


FUNCTIONS: dict[str, Function] = {
    "abs": Function(1, lax.abs, np.abs),
    "acos": Function(1, lax.acos, np.arccos),
    "acosh": Function(1, lax.acosh, np.arccosh),
    "add": Function(2, lax.add, np.add),
    "and": Function(2, lax.bitwise_and, np.bitwise_and),
    "asin": Function(1, lax.asin, np.arcsin),
    "asinh": Function(1, lax.asinh, np.arcsinh),
    "atan": Function(1, lax.atan, np.arctan),
    "atan2": Function(2, lax.atan2, np.arctan2),
    "atanh": Function(1, lax.atanh, np.arctanh),
    "cbrt": Function(1, lax.cbrt, np.cbrt),
    "ceil": Function(1, lax.ceil, np.ceil),
    "clamp": Function(3, lax.clamp, lambda low, x, high: np.clip(x, low, high)),
    "convert_element_type": Function(1, lambda x, dtype: lax.convert_element_type(x, dtype)),
    "cos": Function(1, lax.cos, np.cos),
    "cosh": Function(1, lax.cosh, np.cosh),
    "div": Function(2, lax.div),
    "eq": Function(2, lax.eq, np.equal),
    "erf": Function(1, lax.erf),
    "erfc": Function(1, lax.erfc),
    "erf_inv": Function(1, lax.erf_inv),
    "exp": Function(1, lax.exp, np.exp),
    "exp2": Function(1, lax.exp2, np.exp2),
    "expm1": Function(1, lax.expm1, np.expm1),
    "floor": Function(1, lax.floor, np.floor),
    "ge": Function(2, lax.ge, np.greater_equal),
    "gt": Function(2, lax.gt, np.greater),
    "integer_pow": Function(1, lax.integer_pow, lambda x, y: x**y, ("y",)),
    "is_finite": Function(1, lax.is_finite, np.isfinite),
    "le": Function(2, lax.le, np.less_equal),
    "log": Function(1, lax.log, np.log),
    "log1p": Function(1, lax.log1p, np.log1p),
    "logistic": Function(1, lax.logistic),
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
    "round": Function(1, _rounded, None, ("rounding_method",)),
    "rsqrt": Function(1, lax.rsqrt),
    "select_n": Function(3, lax.select_n, _select),
    "sign": Function(1, lax.sign, np.sign),
    "sin": Function(1, lax.sin, np.sin),
    "sinh": Function(1, lax.sinh, np.sinh),
    "sqrt": Function(1, lax.sqrt, np.sqrt),
    "square": Function(1, lax.square, np.square),
    "sub": Function(2, lax.sub, np.subtract),
    "tan": Function(1, lax.tan, np.tan),
    "tanh": Function(1, lax.tanh, np.tanh),
    "xor": Function(2, lax.bitwise_xor, np.bitwise_xor),
}
"""Those that instructions name, as `jax.lax` calls them."""

SLOW = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "div"}
    | {"erf", "erfc", "erf_inv", "exp", "exp2", "expm1", "log", "log1p", "logistic", "pow", "rem"}
    | {"rsqrt", "sin", "sinh", "sqrt", "tan", "tanh"}
)
"""Those that take as long as several sums: a series, or a division."""

REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": jnp.sum,
    "prod": jnp.prod,
    "max": jnp.max,
    "min": jnp.min,
}

_NEUTRAL = {"sub": 0, "mul": 1, "div": 1}
"""What changes nothing as a second operand; -0.0 is no less a zero."""

_ALIASES = {"add_any": "add"}
_SAME = (
    *("copy", "copy_p", "name", "optimization_barrier", "pcast", "pvary", "reshape", "reshard"),
    *("squeeze", "stop_gradient"),
)
_CALLS = (
    *("checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
    *("custom_vjp_call_jaxpr", "jit", "pjit", "remat", "remat2"),
)
_INNER = ("call_jaxpr", "fun_jaxpr", "jaxpr")
_DEFAULT = None, lax.Precision.DEFAULT, (lax.Precision.DEFAULT, lax.Precision.DEFAULT)


# --- From JAX ------------------------------------------------------------------------------------


def from_jaxpr(
    closed_jaxpr: Any, reads: Sequence[Read], outputs: Sequence[tuple[Into, str]]
) -> RowProgram:
    """The instructions of a function of rows.

    Args:
        closed_jaxpr: The function, of rows of any shapes; what it closes over are constants.
        reads: How each argument is read.
        outputs: For each result where it goes, and how it is reduced.

    Raises:
        Unsupported: an equation has no instruction.
    """
    jaxpr = closed_jaxpr.jaxpr
    inputs = [
        Input(read, math.prod(var.aval.shape), np.dtype(var.aval.dtype))
        for read, var in zip(reads, jaxpr.invars, strict=True)
    ]
    build = Builder(inputs)
    results = build.walk(jaxpr, closed_jaxpr.consts, list(range(len(inputs))))
    found = [Output(value, *rest) for value, rest in zip(results, outputs, strict=True)]
    return without_dead_code(build.inputs, build.instructions, found)


class Builder:
    """Writes instructions, equal ones once; what is constant is computed."""

    def __init__(self, inputs: Iterable[Input]) -> None:
        self.inputs = tuple(inputs)
        self.instructions: list[Instruction] = []
        self._known: dict[str, int] = {}

    def walk(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int]) -> list[int]:
        """The values of a jaxpr's results."""
        numbers: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            numbers[var] = self.constant(np.asarray(const))

        def number(atom: Any) -> int:
            if isinstance(atom, JaxLiteral):
                aval: Any = atom.aval
                return self.constant(np.asarray(atom.val, aval.dtype))
            return numbers[atom]

        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [number(atom) for atom in eqn.invars])
            numbers.update(zip(eqn.outvars, results, strict=True))
        return [number(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, operands: Sequence[int]) -> list[int]:
        """The values of an equation's results."""
        name = _ALIASES.get(eqn.primitive.name, eqn.primitive.name)
        shapes = [atom.aval.shape for atom in eqn.invars]
        if name in _CALLS:
            inner = next(eqn.params[each] for each in _INNER if each in eqn.params)
            consts = getattr(inner, "consts", ())
            try:
                return self.walk(getattr(inner, "jaxpr", inner), consts, operands)
            except Unsupported as error:  # what is called may know another caller's line
                raise Unsupported(eqn, error.reason) from None
        if name in _SAME:
            if name == "reshape" and eqn.params["dimensions"] is not None:
                raise Unsupported(eqn, "reshape with dimensions")
            return list(operands)
        aval = eqn.outvars[0].aval
        if name in FUNCTIONS:
            return [self.function(eqn, name, operands, aval)]
        if name == "split":
            return self.split(operands[0], shapes[0], **eqn.params)
        if name == "unstack":
            places = np.moveaxis(_places(shapes[0]), eqn.params["axis"], 0)
            return [self.take(operands[0], each) for each in places]
        rule = _MOVES.get(name)
        if rule is not None:
            places = rule(_places(shapes[0]), aval.shape, eqn.params)
            return [self.take(operands[0], places)]
        if name.startswith("reduce_") and name.removeprefix("reduce_") in _REDUCED:
            kind = _REDUCED[name.removeprefix("reduce_")]
            return [self.reduced(kind, operands[0], shapes[0], eqn.params["axes"])]
        special: Any = getattr(self, f"_{name}", None)
        if special is None:
            raise Unsupported(eqn, f"{name} has no instruction for rows of edges")
        return [special(eqn, operands, shapes, aval)]

    # --- Instructions --------------------------------------------------------------------------

    def emit(
        self,
        name: str,
        operands: Iterable[int],
        width: int,
        dtype: Any,
        params: Iterable[Any] = (),
    ) -> int:
        """An instruction; one that is there already where there is an equal one."""
        new = Instruction(name, tuple(operands), width, np.dtype(dtype), tuple(params))
        key = repr(new)  # which tells -0.0 from 0.0
        if key not in self._known:
            self._known[key] = len(self.inputs) + len(self.instructions)
            self.instructions.append(new)
        return self._known[key]

    def constant(self, value: np.ndarray) -> int:
        """Numbers."""
        wide = value.astype(np.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value
        return self.emit("constant", (), value.size, value.dtype, wide.ravel().tolist())

    def constant_of(self, value: int) -> np.ndarray | None:
        """The numbers of a value that is constant."""
        of = self.value(value)
        if isinstance(of, Instruction) and of.name == "constant":
            return np.asarray(of.params, of.dtype)
        return None

    def value(self, value: int) -> Input | Instruction:
        """The input or instruction of this number."""
        count = len(self.inputs)
        return self.inputs[value] if value < count else self.instructions[value - count]

    def function(self, eqn: Any, name: str, operands: Sequence[int], aval: Any) -> int:
        """A function of numbers."""
        width, dtype = math.prod(aval.shape), np.dtype(aval.dtype)
        function = FUNCTIONS[name]
        if len(operands) != function.operands:
            raise Unsupported(eqn, f"{name} of {len(operands)} operands")
        params = tuple(eqn.params[each] for each in function.params)
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
        operands = [
            self.take(value, np.broadcast_to(_places(atom.aval.shape), aval.shape))
            for value, atom in zip(operands, eqn.invars, strict=True)
        ]
        constants = [self.constant_of(each) for each in operands]
        if len(operands) == 2 and name in _NEUTRAL:
            known = constants[1]
            if known is not None and np.all(known == _NEUTRAL[name]):
                return operands[0]
        if all(each is not None for each in constants):
            with np.errstate(all="ignore"):
                if name == "convert_element_type":
                    return self.constant(constants[0].astype(dtype))  # type: ignore[union-attr]
                if function.numpy is not None:
                    found = function.numpy(*constants, *params)
                    return self.constant(np.asarray(found).astype(dtype))
        return self.emit(name, operands, width, dtype, params)

    def take(self, value: int, places: np.ndarray) -> int:
        """Numbers of a value, by their places in it."""
        of, places = self.value(value), places.ravel()
        if places.size == of.width and np.array_equal(places, np.arange(of.width)):
            return value
        known = self.constant_of(value)
        if known is not None:
            return self.constant(known[places])
        if isinstance(of, Instruction) and of.name == "take":
            return self.take(of.operands[0], np.asarray(of.params, int)[places])
        return self.emit("take", (value,), places.size, of.dtype, places.tolist())

    def concatenated(self, values: Sequence[int]) -> int:
        """Flat rows, one after the other."""
        values = [each for each in values if self.value(each).width]
        if len(values) == 1:
            return values[0]
        width = sum(self.value(each).width for each in values)
        known = [self.constant_of(each) for each in values]
        if all(each is not None for each in known):
            return self.constant(np.concatenate(known))  # type: ignore[arg-type]
        return self.emit("concatenate", values, width, self.value(values[0]).dtype)

    def split(self, value: int, shape: Sequence[int], *, sizes: Any, axis: int) -> list[int]:
        """Parts along an axis."""
        ends = np.cumsum(sizes)[:-1]
        return [self.take(value, places) for places in np.split(_places(shape), ends, axis)]

    def reduced(self, kind: str, value: int, shape: Sequence[int], axes: Sequence[int]) -> int:
        """A reduction over axes."""
        places = np.moveaxis(_places(shape), tuple(axes), tuple(range(-len(axes), 0)))
        count = math.prod(shape[axis] for axis in axes)
        value = self.take(value, places)
        if count == 1:
            return value
        known = self.constant_of(value)
        if known is not None and count:
            rows = known.reshape(-1, count)
            return self.constant(getattr(np, kind)(rows, 1).astype(known.dtype))
        width = math.prod(size for axis, size in enumerate(shape) if axis not in axes)
        return self.emit("reduce", (value,), width, self.value(value).dtype, (kind, count))

    # --- Equations of their own ----------------------------------------------------------------

    def _concatenate(
        self, eqn: Any, operands: Sequence[int], shapes: Sequence[Any], aval: Any
    ) -> int:
        joined = self.concatenated(operands)
        starts = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
        parts = [_places(shape) + start for shape, start in zip(shapes, starts, strict=False)]
        return self.take(joined, np.concatenate(parts, eqn.params["dimension"]))

    def _stack(self, eqn: Any, operands: Sequence[int], shapes: Sequence[Any], aval: Any) -> int:
        count, axis = len(operands), eqn.params["axis"]
        places = _places((count, *shapes[0]))
        return self.take(self.concatenated(operands), np.moveaxis(places, 0, axis))

    def _one_minus_square(
        self, eqn: Any, operands: Sequence[int], shapes: Sequence[Any], aval: Any
    ) -> int:
        """Of the derivative of a tanh, since JAX 0.11."""
        width = math.prod(aval.shape)
        one = self.constant(np.ones(width, aval.dtype))
        square = self.emit("square", operands, width, aval.dtype)
        return self.emit("sub", (one, square), width, aval.dtype)

    def _iota(self, eqn: Any, operands: Any, shapes: Any, aval: Any) -> int:
        axis = eqn.params["dimension"]
        steps = np.arange(aval.shape[axis]).reshape(
            [-1 if i == axis else 1 for i in range(aval.ndim)]
        )
        return self.constant(np.broadcast_to(steps, aval.shape).astype(aval.dtype))

    def _pad(self, eqn: Any, operands: Sequence[int], shapes: Sequence[Any], aval: Any) -> int:
        fill = math.prod(shapes[0])
        places = np.full(aval.shape, fill)
        kept: Any = []
        for size, (low, _, step) in zip(shapes[0], eqn.params["padding_config"], strict=True):
            kept.append(low + np.arange(size) * (step + 1))
        there = [(at >= 0) & (at < n) for at, n in zip(kept, aval.shape, strict=True)]
        inside = tuple(at[ok] for at, ok in zip(kept, there, strict=True))
        places[np.ix_(*inside)] = _places(shapes[0])[np.ix_(*there)]
        return self.take(self.concatenated(operands), places)

    def _dot_general(
        self, eqn: Any, operands: Sequence[int], shapes: Sequence[Any], aval: Any
    ) -> int:
        """A small product: of a shared matrix, or written out."""
        (summed, batch) = eqn.params["dimension_numbers"]
        operands = [self._converted(each, aval.dtype) for each in operands]
        varies = [self._varies(each) for each in operands]
        free = [
            [axis for axis in range(len(shape)) if axis not in (*summed[i], *batch[i])]
            for i, shape in enumerate(shapes)
        ]
        sizes = [math.prod(shapes[i][axis] for axis in free[i]) for i in range(2)]
        count = math.prod(shapes[0][axis] for axis in summed[0])
        batches = math.prod(shapes[0][axis] for axis in batch[0])
        if batches == 1 and varies[0] != varies[1] and min(count, *sizes) > 0:
            moving = 0 if varies[0] else 1
            fixed = 1 - moving
            if count * sizes[fixed] > MAX_PRODUCT:
                raise Unsupported(eqn, f"dot_general with {count * sizes[fixed]} weights")
            rows = _places(shapes[moving]).transpose(*batch[moving], *free[moving], *summed[moving])
            weights = _places(shapes[fixed]).transpose(*batch[fixed], *summed[fixed], *free[fixed])
            both = self.take(operands[moving], rows), self.take(operands[fixed], weights)
            width = sizes[moving] * sizes[fixed]
            precise = () if eqn.params["precision"] in _DEFAULT else ("highest",)
            found = self.emit("dot", both, width, aval.dtype, (count, *precise))
            if moving == 0:
                return found
            return self.take(found, np.arange(width).reshape(sizes[moving], sizes[fixed]).T)
        total = batches * sizes[0] * sizes[1] * count
        if total > MAX_PRODUCT:
            raise Unsupported(eqn, f"dot_general of {total} products")
        terms = []
        for i in range(2):
            order = (*batch[i], *free[i], *summed[i])
            places = _places(shapes[i]).transpose(order).reshape(batches, sizes[i], count)
            places = places[:, :, None] if i == 0 else places[:, None]
            full = np.broadcast_to(places, (batches, sizes[0], sizes[1], count))
            terms.append(self.take(operands[i], full))
        product = self.emit("mul", terms, total, aval.dtype)
        return self.reduced("sum", product, (total // max(count, 1), count), (1,))

    def _converted(self, value: int, dtype: Any) -> int:
        of = self.value(value)
        if of.dtype == dtype:
            return value
        return self.emit("convert_element_type", (value,), of.width, dtype)

    def _varies(self, value: int) -> bool:
        of = self.value(value)
        if isinstance(of, Input):
            return of.read != "shared"
        return any(map(self._varies, of.operands))


def _places(shape: Sequence[int]) -> np.ndarray:
    """The place of each number of a row in its flat order."""
    return np.arange(math.prod(shape)).reshape(shape)


def _broadcast(places: np.ndarray, shape: Sequence[int], params: Any) -> np.ndarray:
    axes = params["broadcast_dimensions"]
    sizes = [1] * len(shape)
    for axis, size in zip(axes, places.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(places.reshape(sizes), shape)


def _slice(places: np.ndarray, shape: Sequence[int], params: Any) -> np.ndarray:
    del shape
    steps = params["strides"] or [1] * places.ndim
    starts, ends = params["start_indices"], params["limit_indices"]
    return places[tuple(slice(*each) for each in zip(starts, ends, steps, strict=True))]


_MOVES: dict[str, Callable[[np.ndarray, Sequence[int], Any], np.ndarray]] = {
    "broadcast_in_dim": _broadcast,
    "expand_dims": lambda places, shape, params: places.reshape(shape),
    "rev": lambda places, shape, params: np.flip(places, params["dimensions"]),
    "slice": _slice,
    "tile": lambda places, shape, params: np.tile(places, params["reps"]),
    "transpose": lambda places, shape, params: places.transpose(params["permutation"]),
}
_REDUCED = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "and": "min", "or": "max"}


def without_dead_code(
    inputs: tuple[Input, ...], instructions: Sequence[Instruction], outputs: Sequence[Output]
) -> RowProgram:
    """A program of what its results need."""
    count = len(inputs)
    needed = {each.value for each in outputs}
    for place in range(len(instructions) - 1, -1, -1):
        if count + place in needed:
            needed.update(instructions[place].operands)
    numbers = {i: i for i in range(count)}
    kept: list[Instruction] = []
    for place, each in enumerate(instructions):
        if count + place in needed:
            numbers[count + place] = count + len(kept)
            operands = tuple(numbers[i] for i in each.operands)
            kept.append(Instruction(each.name, operands, each.width, each.dtype, each.params))
    found = (Output(numbers[each.value], each.into, each.reduce) for each in outputs)
    return RowProgram(inputs, tuple(kept), tuple(found))


# --- In plain JAX --------------------------------------------------------------------------------


def evaluate(program: RowProgram, rows: Sequence[Any]) -> list[Array]:
    """The results for one row of each input, ``(width,)`` each: what kernels are compared with."""
    found = [jnp.asarray(row) for row in rows]
    for each in program.instructions:
        found.append(_evaluated(each, [found[i] for i in each.operands]))
    return [found[each.value] for each in program.outputs]


def _evaluated(each: Instruction, operands: Sequence[Array]) -> Array:
    match each.name:
        case "constant":
            return jnp.asarray(each.params, each.dtype)
        case "take":
            return operands[0][np.asarray(each.params, int)]
        case "concatenate":
            return jnp.concatenate(operands)
        case "reduce":
            kind, count = each.params
            return REDUCTIONS[kind](operands[0].reshape(each.width, count), 1).astype(each.dtype)
        case "dot":
            count, *precision = each.params
            x, w = operands[0].reshape(-1, count), operands[1].reshape(count, -1)
            return jnp.matmul(x, w, precision=precision[0] if precision else None).ravel()
        case "convert_element_type":
            return lax.convert_element_type(operands[0], each.dtype)
    return FUNCTIONS[each.name].lax(*operands, *each.params)
