"""Row programs for an interpreter, which pays for each number that it moves.

On a GPU a `take` only says which lane reads what. An interpreter copies, number by number where
they lie in no order. So what moves numbers goes ahead of what computes with them, where it meets
other moves, and often nothing is left of both. All numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_gnn._ops.edge_region.row_program import (
    FUNCTIONS,
    SLOW,
    Builder,
    Input,
    Instruction,
    Output,
    RowProgram,
    without_dead_code,
)

_MOST_PARTS = 8  # of a row that is put together


def with_fewer_moves(program: RowProgram) -> RowProgram:
    """The same program."""
    build = _Moves(program.inputs)
    values = list(range(len(program.inputs)))
    for each in program.instructions:
        values.append(build.again(each, [values[i] for i in each.operands]))
    outputs = [
        Output(build.summed(values[each.value], each), each.into, each.reduce)
        for each in program.outputs
    ]
    return without_dead_code(build.inputs, build.instructions, outputs)


class _Moves(Builder):
    """Writes instructions again."""

    def again(self, each: Instruction, operands: Sequence[int]) -> int:
        """An instruction of other operands."""
        if each.name == "take":
            return self.take(operands[0], np.asarray(each.params, int))
        if each.name == "concatenate":
            return self.concatenated(operands)
        if each.name == "reduce" and each.params[1] <= 4:
            of = self.value(operands[0])
            if self._has_moves(operands[0]) or (isinstance(of, Instruction) and of.name == "take"):
                return self._joined(each, operands[0])
        if each.name == "dot" and each.params[0] == 1:
            width = self.value(operands[1]).width
            x = self.take(operands[0], np.arange(each.width) // width)
            y = self.take(operands[1], np.arange(each.width) % width)
            return self.emit("mul", (x, y), each.width, each.dtype)
        if each.name == "select_n" and self._is_softplus(operands):
            return self.emit("softplus", operands[2:], each.width, each.dtype)
        if each.name == "exp" and (inner := self._with_slope(operands[0])) is not None:
            return self.emit("logistic", (inner,), each.width, each.dtype)
        return self._emitted(each.name, operands, each)

    def _is_softplus(self, operands: Sequence[int]) -> bool:
        """Whether a choice is what `jax.nn.softplus` is, of its last operand."""
        which, found, x = operands
        of, width = self.value(x), self.value(x).width
        if self.emit("ne", (x, x), width, bool) != which:
            return False
        t = x
        for name in ("abs", "neg", "exp", "log1p"):
            t = self.emit(name, (t,), width, of.dtype)
        larger = self.emit("max", (x, self._filled(of, 0)), width, of.dtype)
        return self.emit("add", (larger, t), width, of.dtype) == found

    def _with_slope(self, difference: int) -> int | None:
        """That of which a difference is the logarithm of softplus's derivative, as JAX has it."""
        parts: list[Any] = [self.value(i) for i in getattr(self.value(difference), "operands", ())]
        if len(parts) != 2 or any(getattr(each, "name", "") != "select_n" for each in parts):
            return None
        made: Any = self.value(parts[1].operands[1])
        if getattr(made, "name", "") != "softplus":
            return None
        of, both = made, []
        for value in (*made.operands, parts[1].operands[1]):
            endless = self.emit("eq", (value, self._filled(of, np.inf)), of.width, bool)
            case = endless, value, self._filled(of, 0)
            both.append(self.emit("select_n", case, of.width, of.dtype))
        same = self.emit("sub", both, of.width, of.dtype) == difference
        return made.operands[0] if same else None

    def _filled(self, like: Input | Instruction, number: float) -> int:
        return self.constant(np.full(like.width, number, like.dtype))

    def take(self, value: int, places: np.ndarray) -> int:
        """Numbers of a value; of what is computed or put together, from what that is made of."""
        of, places = self.value(value), places.ravel()
        if isinstance(of, Instruction) and places.size:
            if of.name == "concatenate":
                parts = self._taken_apart(of, places)
                if parts is not None:
                    return self.concatenated(parts)
            if places.size <= of.width and of.name not in SLOW and self._has_moves(value):
                return self._emitted(of.name, [self.take(i, places) for i in of.operands], of)
        return super().take(value, places)

    def _emitted(self, name: str, operands: Sequence[int], like: Instruction) -> int:
        """An instruction; sums with zeros, and sums of rows that have zeros, are less than that."""
        width = self.value(operands[0]).width if name in FUNCTIONS else like.width
        if name == "add":
            for value, other in (operands, operands[::-1]):
                known = self.constant_of(other)
                if known is not None and not known.any():
                    return value
            found = self._sum_of_parts(operands, like)
            if found is not None:
                return found
        return self.emit(name, operands, width, like.dtype, like.params)

    def summed(self, value: int, output: Output) -> int:
        """What is added up over all entries; of all products of two rows, an instruction.

        That is the gradient of a matrix: the interpreter makes it a product of blocks of entries.
        """
        of = self.value(value)
        if output.into != "all" or output.reduce != "sum" or not isinstance(of, Instruction):
            return value
        takes: list[Any] = [self.value(i) for i in of.operands]
        if of.name != "mul" or any(getattr(each, "name", "") != "take" for each in takes):
            return value
        for x, y in (takes, takes[::-1]):
            rows, columns = (self.value(each.operands[0]).width for each in (x, y))
            at = np.arange(of.width)
            ways = zip((x, y), (at // columns, at % columns), strict=True)
            if of.width == rows * columns and all(np.array_equal(z.params, way) for z, way in ways):
                operands = (*x.operands, *y.operands)
                return self.emit("outer", operands, of.width, of.dtype)
        return value

    def _joined(self, each: Instruction, value: int) -> int:
        """A reduction of few numbers, one after the other."""
        kind, count = each.params
        name = {"sum": "add", "prod": "mul"}.get(kind, kind)
        found, *rest = (
            self.take(value, np.arange(i, each.width * count, count)) for i in range(count)
        )
        for other in rest:
            found = self.emit(name, (found, other), each.width, each.dtype)
        return found

    def _has_moves(self, value: int) -> bool:
        """Whether it is a function of numbers of which some are moved."""
        of = self.value(value)
        if not isinstance(of, Instruction) or of.name not in FUNCTIONS:
            return False
        operands = [self.value(i) for i in of.operands]
        return any(
            isinstance(x, Instruction) and x.name in ("take", "concatenate") for x in operands
        )

    def _ends(self, of: Instruction) -> np.ndarray:
        return np.cumsum([self.value(i).width for i in of.operands])

    def _taken_apart(self, of: Instruction, places: np.ndarray) -> list[int] | None:
        """Parts of what is put together, if few of them are that."""
        ends = self._ends(of)
        part = np.searchsorted(ends, places, side="right")
        cuts = np.flatnonzero(np.diff(part)) + 1
        if len(cuts) >= _MOST_PARTS:
            return None
        found = []
        for piece in np.split(places, cuts):
            i = int(np.searchsorted(ends, piece[0], side="right"))
            operand = of.operands[i]
            found.append(self.take(operand, piece - (ends[i] - self.value(operand).width)))
        return found

    def _sum_of_parts(self, operands: Sequence[int], like: Instruction) -> int | None:
        """A sum of rows that are put together of parts: the sums of these."""
        rows: list[Any] = [self.value(i) for i in operands]
        if not all(isinstance(x, Instruction) and x.name == "concatenate" for x in rows):
            return None
        cuts = np.unique(np.concatenate([self._ends(x) for x in rows]))
        if len(cuts) > _MOST_PARTS:
            return None
        found, start = [], 0
        for end in cuts:
            pair = [self.take(i, np.arange(start, end)) for i in operands]
            found.append(self._emitted("add", pair, like))
            start = end
        return self.concatenated(found)
