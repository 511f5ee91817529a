"""Rewrites of row programs to equal ones with fewer instructions, ahead of code generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._ops.edge_region.cuda_text import has_tiles
from jax_gnn._ops.edge_region.row_builder import Builder
from jax_gnn._ops.edge_region.row_program import (
    Input,
    Instruction,
    RowProgram,
    without_dead_code,
)

_MAX_COLUMNS, _MIN_TERMS = 4, 8  # of products that are sums over lanes


def simplified(program: RowProgram) -> RowProgram:
    """Return the program with fewer selects, and sums that lanes share.

    - Nested selects of zero, ``where(a, where(b, x, 0), 0)``, become one.
    - ``jax.nn.softplus`` needs no case for NaN, as each of its terms is NaN then.
    - The derivative of softplus is a logistic function.
    - A product of a row with a matrix of few columns becomes sums over the row, of which each lane
      computes its share. Tiles have such products themselves.
    """
    builder = _Simplifier(program.inputs, has_tiles(program))
    values = list(range(len(program.inputs)))
    for instruction in program.instructions:
        operands = [values[i] for i in instruction.operands]
        values.append(builder.simplified(instruction, operands))
    outputs = [replace(output, value=values[output.value]) for output in program.outputs]
    return without_dead_code(builder.inputs, builder.instructions, outputs)


class _Simplifier(Builder):
    """Emits instructions in simpler forms."""

    def __init__(self, inputs: Iterable[Input], has_tiles: bool) -> None:
        super().__init__(inputs)
        self._has_tiles = has_tiles

    def simplified(self, step: Instruction, operands: list[int]) -> int:
        """Emit an instruction and return its value."""
        if step.name == "select_n" and len(operands) == 3:
            x = self._softplus_operand(operands[1])
            if x is not None and self._operands("ne", operands[0]) == (x, x):
                return operands[1]
            operands = self._without_inner_select(operands)
        if step.name == "exp" and (difference := self._operands("sub", operands[0])):
            x, softplus = map(self._without_infinity, difference)
            if self._softplus_operand(softplus) == x:
                return self.emit("logistic", (x,), step.width, step.dtype)
        if step.name == "dot" and not self._has_tiles:
            return self._sums_over_lanes(step, *operands)
        return self.emit(step.name, operands, step.width, step.dtype, step.params)

    def _sums_over_lanes(self, step: Instruction, left: int, right: int) -> int:
        """Emit a product; that of one row with few columns as a sum for each column."""
        inner, columns = int(step.params[0]), step.width
        is_row = self.value(left).width == inner and self.value(right).width == inner * columns
        is_read = isinstance(self.value(left), Input)
        if not is_row or is_read or columns > _MAX_COLUMNS or inner < _MIN_TERMS:
            return self.emit("dot", (left, right), step.width, step.dtype, step.params)
        wide = np.dtype(accumulator_dtype(step.dtype))
        sums = []
        for column in range(columns):
            weights = self.take(right, np.arange(column, inner * columns, columns))
            factors = [self._converted(left, wide), self._converted(weights, wide)]
            terms = self.emit("mul", factors, inner, wide)
            total = self.emit("reduce", (terms,), 1, wide, ("sum", inner))
            sums.append(self._converted(total, step.dtype))
        return self.concatenate(sums)

    def _converted(self, index: int, dtype: np.dtype[Any]) -> int:
        value = self.value(index)
        if value.dtype == dtype:
            return index
        return self.emit("convert_element_type", (index,), value.width, dtype)

    def _operands(self, name: str, index: int) -> tuple[int, ...]:
        """Return the operands of a value if an instruction of that name computes it, else ()."""
        value = self.value(index)
        is_named = isinstance(value, Instruction) and value.name == name
        return value.operands if isinstance(value, Instruction) and is_named else ()

    def _is_constant(self, index: int, number: float) -> bool:
        constant = self.constant_of(index)
        return constant is not None and bool((constant == number).all())

    def _softplus_operand(self, index: int) -> int | None:
        """Return x of max(x, 0) + log1p(exp(-abs(x))), in either order; None for other values."""
        terms = self._operands("add", index)
        for top, rest in (terms, terms[::-1]) if len(terms) == 2 else ():
            x: int | None = rest
            for name in ("log1p", "exp", "neg", "abs"):
                x = next(iter(self._operands(name, x)), None) if x is not None else None
            bounded = self._operands("max", top)
            if x in bounded and any(self._is_constant(i, 0) for i in bounded):
                return x
        return None

    def _without_infinity(self, index: int) -> int:
        """Return x of where(x == inf, 0, x), by which derivatives avoid inf - inf."""
        operands = self._operands("select_n", index)
        if len(operands) == 3 and self._is_constant(operands[2], 0):
            which = self._operands("eq", operands[0])
            if which and which[0] == operands[1] and self._is_constant(which[1], np.inf):
                return operands[1]
        return index

    def _without_inner_select(self, operands: list[int]) -> list[int]:
        """Return the operands of a select of zero, merged with a select that it reads."""
        inner = self._operands("select_n", operands[2])
        if not (self._selects_zero(operands) and self._selects_zero(inner)):
            return operands
        outer_mask, inner_mask = (self.value(i) for i in (operands[0], inner[0]))
        if outer_mask.width != inner_mask.width:
            return operands
        mask = self.emit("and", (operands[0], inner[0]), outer_mask.width, np.dtype(bool))
        return [mask, operands[1], inner[2]]

    def _selects_zero(self, operands: Sequence[int]) -> bool:
        """Whether a select, by its operands, is zero where its mask does not hold."""
        if len(operands) != 3 or self.value(operands[0]).dtype != bool:
            return False
        zeros = self.constant_of(operands[1])
        return zeros is not None and not zeros.any() and not np.signbit(zeros).any()
