"""Lowering of jaxprs to row programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jax_gnn._ops.edge_region.row_builder import Builder, flat_indices
from jax_gnn._ops.edge_region.row_program import (
    FUNCTIONS,
    Access,
    Dest,
    Input,
    Output,
    Params,
    RowProgram,
    Unsupported,
    primitive_names,
    without_dead_code,
)

_MAX_PRODUCT = 1 << 15  # weights of a `dot`, and terms of a product that is written out

# The second operand that leaves the first one unchanged. x - (-0.0) is x, too.
_NEUTRAL = {"sub": 0, "mul": 1, "div": 1}

_ALIASES = {"add_any": "add"}
_IDENTITIES = primitive_names(
    "copy copy_p name optimization_barrier pcast pvary reshape reshard squeeze stop_gradient"
)
_CALLS = primitive_names(
    "checkpoint closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr jit "
    "pjit remat remat2"
)
_INNER_JAXPRS = ("call_jaxpr", "fun_jaxpr", "jaxpr")
_DEFAULT_PRECISIONS = None, lax.Precision.DEFAULT, (lax.Precision.DEFAULT, lax.Precision.DEFAULT)


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
    lowering = _Lowering(inputs)
    results = lowering.walk(jaxpr, closed_jaxpr.consts, list(range(len(inputs))))
    sinks = [
        Output(value, dest, reduce) for value, (dest, reduce) in zip(results, outputs, strict=True)
    ]
    return without_dead_code(lowering.inputs, lowering.instructions, sinks)


class _Equation(NamedTuple):
    """A JAX equation, the values of its operands, their shapes, and its first result."""

    eqn: jex.JaxprEqn
    operands: list[int]
    shapes: list[tuple[int, ...]]
    result: jax.core.ShapedArray


class _Lowering(Builder):
    """Emits the equations of jaxprs."""

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
            parts = np.split(flat_indices(shapes[0]), starts, axis)
            return [self.take(operands[0], part) for part in parts]
        if name == "unstack":
            slices = np.moveaxis(flat_indices(shapes[0]), eqn.params["axis"], 0)
            return [self.take(operands[0], indices) for indices in slices]
        # Data movement is a `take`: the same move, applied to an array of indices on the host,
        # tells which element of the operand each element of the result is.
        if name in _MOVES:
            indices = _MOVES[name](flat_indices(shapes[0]), result.shape, eqn.params)
            return [self.take(operands[0], indices)]
        if name.startswith("reduce_") and name.removeprefix("reduce_") in _REDUCED:
            kind = _REDUCED[name.removeprefix("reduce_")]
            return [self.reduce(kind, operands[0], shapes[0], eqn.params["axes"])]
        # Other primitives have a method named after them; a new one needs no entry in a table.
        rule: Callable[[_Equation], int] | None = getattr(self, f"_emit_{name}", None)
        if rule is None:
            raise Unsupported(eqn, f"{name} has no instruction for rows of edges")
        return [rule(equation)]

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
            self.take(value, np.broadcast_to(flat_indices(shape), result.shape))
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

    # --- Primitives with a rule of their own ---------------------------------------------------

    def _emit_concatenate(self, equation: _Equation) -> int:
        joined = self.concatenate(equation.operands)
        starts = np.cumsum([0, *(math.prod(shape) for shape in equation.shapes)])
        parts = [
            flat_indices(shape) + start
            for shape, start in zip(equation.shapes, starts, strict=False)
        ]
        return self.take(joined, np.concatenate(parts, equation.eqn.params["dimension"]))

    def _emit_stack(self, equation: _Equation) -> int:
        indices = flat_indices((len(equation.operands), *equation.shapes[0]))
        joined = self.concatenate(equation.operands)
        return self.take(joined, np.moveaxis(indices, 0, equation.eqn.params["axis"]))

    def _emit_one_minus_square(self, equation: _Equation) -> int:
        """Emit the derivative of tanh, a primitive since JAX 0.11."""
        width, dtype = math.prod(equation.result.shape), equation.result.dtype
        one = self.constant(np.ones(width, dtype))
        square = self.emit("square", equation.operands, width, dtype)
        return self.emit("sub", (one, square), width, dtype)

    def _emit_iota(self, equation: _Equation) -> int:
        axis, shape = equation.eqn.params["dimension"], equation.result.shape
        steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return self.constant(np.broadcast_to(steps, shape).astype(equation.result.dtype))

    def _emit_pad(self, equation: _Equation) -> int:
        """Emit a padded row: a take from the row and, behind it, the fill value."""
        shape, result_shape = equation.shapes[0], equation.result.shape
        indices = np.full(result_shape, math.prod(shape))
        # Along each axis, element i of the row lands at positions[i], perhaps outside.
        config = equation.eqn.params["padding_config"]
        positions = [
            low + np.arange(size) * (step + 1)
            for size, (low, _, step) in zip(shape, config, strict=True)
        ]
        inside = [(x >= 0) & (x < n) for x, n in zip(positions, result_shape, strict=True)]
        targets = [x[mask] for x, mask in zip(positions, inside, strict=True)]
        indices[np.ix_(*targets)] = flat_indices(shape)[np.ix_(*inside)]
        return self.take(self.concatenate(equation.operands), indices)

    def _emit_dot_general(self, equation: _Equation) -> int:
        """Emit a product: a ``dot`` with a shared matrix if possible, else written out."""
        eqn, operands, shapes, result = equation
        dtype = np.dtype(result.dtype)
        (summed, batch) = eqn.params["dimension_numbers"]
        operands = [self._convert(value, dtype) for value in operands]
        program = RowProgram(self.inputs, tuple(self.instructions), ())
        varies = [program.varies[value] for value in operands]
        free = [
            [axis for axis in range(len(shape)) if axis not in (*summed[i], *batch[i])]
            for i, shape in enumerate(shapes)
        ]
        sizes = [math.prod(shapes[i][axis] for axis in free[i]) for i in range(2)]
        count = math.prod(shapes[0][axis] for axis in summed[0])
        batches = math.prod(shapes[0][axis] for axis in batch[0])
        width = sizes[0] * sizes[1]
        params = (count,) if eqn.params["precision"] in _DEFAULT_PRECISIONS else (count, "highest")
        # A product of a varying row with a shared matrix is one `dot`, which tensor cores may
        # compute. If the matrix is on the left, the transposed product is emitted, and a take
        # transposes its result.
        if batches == 1 and varies[0] != varies[1] and min(count, *sizes) > 0:
            lhs = 0 if varies[0] else 1
            rhs = 1 - lhs
            if count * sizes[rhs] > _MAX_PRODUCT:
                raise Unsupported(eqn, f"dot_general with {count * sizes[rhs]} weights")
            rows = flat_indices(shapes[lhs]).transpose(*batch[lhs], *free[lhs], *summed[lhs])
            weights = flat_indices(shapes[rhs]).transpose(*batch[rhs], *summed[rhs], *free[rhs])
            pair = self.take(operands[lhs], rows), self.take(operands[rhs], weights)
            product = self.emit("dot", pair, width, dtype, params)
            if lhs == 0:
                return product
            return self.take(product, np.arange(width).reshape(sizes[lhs], sizes[rhs]).T)
        # A product of two rows of an entry is an `outer`, such as the gradient of a shared matrix.
        if batches == 1 and min(sizes) > 1 and width <= _MAX_PRODUCT:
            axes = ((*batch[i], *summed[i], *free[i]) for i in range(2))
            moved = (flat_indices(x).transpose(y) for x, y in zip(shapes, axes, strict=True))
            return self.emit("outer", map(self.take, operands, moved), width, dtype, params)
        total = batches * width * count
        if total > _MAX_PRODUCT:
            raise Unsupported(eqn, f"dot_general of {total} products")
        terms = []
        for i in range(2):
            order = (*batch[i], *free[i], *summed[i])
            indices = flat_indices(shapes[i]).transpose(order).reshape(batches, sizes[i], count)
            indices = indices[:, :, None] if i == 0 else indices[:, None]
            full = np.broadcast_to(indices, (batches, sizes[0], sizes[1], count))
            terms.append(self.take(operands[i], full))
        product = self.emit("mul", terms, total, dtype)
        return self.reduce("sum", product, (total // max(count, 1), count), (1,))

    def _convert(self, index: int, dtype: np.dtype[Any]) -> int:
        value = self.value(index)
        if value.dtype == dtype:
            return index
        return self.emit("convert_element_type", (index,), value.width, dtype)


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
