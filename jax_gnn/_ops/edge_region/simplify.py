"""Rewrites of row programs to equal ones with fewer instructions, ahead of code generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jax_gnn._ops.edge_region.row_builder import Builder
from jax_gnn._ops.edge_region.row_program import Instruction, RowProgram, without_dead_code


def simplified(program: RowProgram) -> RowProgram:
    """Return the program with fewer selects.

    - Nested selects of zero, ``where(a, where(b, x, 0), 0)``, become one.
    - ``jax.nn.softplus`` needs no case for NaN, as each of its terms is NaN then.
    - The derivative of softplus is a logistic function.
    """
    builder = _Simplifier(program.inputs)
    values = list(range(len(program.inputs)))
    for instruction in program.instructions:
        operands = [values[i] for i in instruction.operands]
        values.append(builder.simplified(instruction, operands))
    outputs = [replace(output, value=values[output.value]) for output in program.outputs]
    return without_dead_code(builder.inputs, builder.instructions, outputs)


class _Simplifier(Builder):
    """Emits instructions in simpler forms."""

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
        return self.emit(step.name, operands, step.width, step.dtype, step.params)

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
