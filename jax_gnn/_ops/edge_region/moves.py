"""Row programs for an interpreter, which pays for each number that it moves.

On a GPU a `take` only says which lane reads what. An interpreter copies, number by number where
they lie in no order. So what moves numbers goes ahead of what computes with them, where it meets
other moves, and often nothing is left of both. All numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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


def with_fewer_selects(program: RowProgram) -> RowProgram:
    """The same program, where a number that one of two masks makes zero has one mask for both."""
    build, count = Builder(program.inputs), len(program.inputs)
    values = list(range(count))

    def masked(each: Instruction, operands: Sequence[int]) -> tuple[int, int, int] | None:
        if each.name != "select_n" or len(operands) != 3 or build.value(operands[0]).dtype != bool:
            return None
        zeros = build.constant_of(operands[1])
        return (operands[0], operands[1], operands[2]) if _all_zero(zeros) else None

    for each in program.instructions:
        operands = [values[i] for i in each.operands]
        outer = masked(each, operands)
        of = build.value(outer[2]) if outer else None
        inner = masked(of, of.operands) if isinstance(of, Instruction) else None
        if outer and inner and build.value(outer[0]).width == build.value(inner[0]).width:
            width, dtype = build.value(outer[0]).width, np.dtype(bool)
            both = build.emit("and", (outer[0], inner[0]), width, dtype)
            operands = [both, outer[1], inner[2]]
        values.append(build.emit(each.name, operands, each.width, each.dtype, each.params))
    outputs = [replace(each, value=values[each.value]) for each in program.outputs]
    return without_dead_code(build.inputs, build.instructions, outputs)


def _all_zero(numbers: np.ndarray | None) -> bool:
    return numbers is not None and not numbers.any() and not np.signbit(numbers).any()


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
        if output.into != "all" or output.reduce != "sum":
            return value
        pairs, of = self._factors(value), self.value(value)
        return self.emit("outer", pairs, of.width, of.dtype) if len(pairs) == 2 else value

    def _factors(self, value: int) -> list[int]:
        """Pairs of rows of which a value has the sum of all products of their numbers.

        So has what a matrix's gradient sums over all entries. None where it is no such sum.
        """
        at = np.arange(self.value(value).width)
        found: list[int] = []
        left = [self._taken(value, at)]
        while left:
            number, places = left.pop()
            of = self.value(number)
            if not isinstance(of, Instruction) or of.name not in ("add", "mul"):
                return []
            sides = [self._taken(i, places) for i in of.operands]
            if of.name == "add":
                left += sides
                continue
            for (x, of_x), (y, of_y) in (sides, sides[::-1]):
                rows, columns = self.value(x).width, self.value(y).width
                if rows * columns == len(at) and not (
                    (of_x != at // columns).any() or (of_y != at % columns).any()
                ):
                    found += x, y
                    break
            else:
                return []
        pairs = zip(found[::2], found[1::2], strict=True)
        shapes = {(self.value(x).width, self.value(y).width) for x, y in pairs}
        return found if len(shapes) == 1 else []

    def _taken(self, number: int, places: np.ndarray) -> tuple[int, np.ndarray]:
        """The value whose numbers are taken, and which they are."""
        of = self.value(number)
        while isinstance(of, Instruction) and of.name == "take":
            number, places = of.operands[0], np.asarray(of.params)[places]
            of = self.value(number)
        return number, places

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
