"""Instructions of slots: functions, reductions and products of elements.

Code is generated backwards from the outputs: a ``take`` only changes the indices of the elements
that slots need, so that nothing moves between lanes except in a ``reduce``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import (
    JOINS,
    Infeasible,
    elementwise,
    literal,
    literals,
    needs_exact_bits,
    product_terms,
    register_type,
    tree,
)
from jax_gnn._ops.edge_region.row_program import SLOW, Instruction, RowProgram
from jax_gnn._ops.edge_region.slot_loads import Limits, SlotLoads, SlotValue


class SlotInstructions(SlotLoads):
    """Code of instructions.

    Attributes:
        exact: Whether another kernel must produce the same bits.
    """

    def __init__(self, program: RowProgram, slots: int, vec: int, limits: Limits) -> None:
        super().__init__(program, slots, vec, limits)
        self.exact = needs_exact_bits(program)
        self._values: dict[tuple[int, bytes], SlotValue] = {}

    def _value(self, number: int, indices: np.ndarray) -> SlotValue:
        """Return elements of a value: ``indices[s]`` for each slot s."""
        # Values are memoised by their elements: the same value at other elements is other code.
        key = number, indices.tobytes()
        if key not in self._values:
            first = len(self.program.inputs)
            if number < first:
                value = self._load(number, indices)
            else:
                value = self._compute(self.program.instructions[number - first], indices)
            self._values[key] = value
        return self._values[key]

    def _compute(self, step: Instruction, indices: np.ndarray) -> SlotValue:
        name, operands = step.name, step.operands
        if name == "take":
            return self._value(operands[0], step.places[indices])
        if name in ("dot", "outer"):
            return self._product(step, indices)
        if name in ("constant", "concatenate", "reduce"):
            rule: Callable[[Instruction, np.ndarray], SlotValue] = getattr(self, f"_{name}")
            return rule(step, indices)
        # Operands of width 1 broadcast: every slot reads their only element.
        zeros = np.zeros_like(indices)
        values = [self._value(i, zeros if self._width(i) == 1 else indices) for i in operands]
        expression = elementwise(self.program, step)
        is_vector = any(value.is_vector for value in values)

        def text(i: str) -> str:
            return expression(*(value.at(i) for value in values))

        return self._define(step.dtype_name, text, is_vector, 4 if name in SLOW else 1)

    def _define(
        self, dtype: str, text: Callable[[str], str], is_vector: bool, work: float
    ) -> SlotValue:
        """Define a variable, whose expression for slot ``i`` is ``text(i)``."""
        kind, name = register_type(dtype), f"v{len(self._values)}_{len(self.body)}"
        if is_vector:
            self.body.append(f"{kind} {name}[kVec];")
            self.body.append(self._for_slots(f"{name}[i] = {text('i')};"))
        else:
            self.body.append(f"const {kind} {name} = {text('0')};")
        self.statements += work
        if self.statements > self._limits.statements:
            raise Infeasible(f"more than {self._limits.statements} operations on a number")
        self.work += work * (self.slots if is_vector else self.slots / self.vec)
        return SlotValue(f"{name}[{{i}}]" if is_vector else name, is_vector)

    @staticmethod
    def _for_slots(line: str) -> str:
        """Return a loop of a line over the slots ``i`` of a lane."""
        return f"JAX_GNN_EACH_SLOT(i) {line}"

    def _constant(self, step: Instruction, indices: np.ndarray) -> SlotValue:
        numbers = np.asarray(step.params)
        if numbers.size == 1:
            indices = np.zeros_like(indices)
        chosen, dtype = numbers[indices], step.dtype_name
        # A constant with one number for all slots is a literal; others are tables in global memory,
        # read by slot.
        texts = literals(chosen, dtype)
        if len(texts) == 1:
            return SlotValue(texts[0], False)
        name = self._table(register_type(dtype), texts)
        self.work += 2 * self.slots
        if self._is_by_lane(indices):
            return self._define(dtype, lambda i: f"{name}[first]", False, 1)
        return self._define(dtype, lambda i: f"{name}[first + {i}]", True, 1)

    def _concatenate(self, step: Instruction, indices: np.ndarray) -> SlotValue:
        widths = [self._width(i) for i in step.operands]
        stops = np.cumsum(widths)
        pieces = np.searchsorted(stops, indices, side="right")
        used = sorted(set(pieces.tolist()))
        values = []
        for piece in used:
            inside = np.clip(indices - (stops[piece] - widths[piece]), 0, widths[piece] - 1)
            values.append(self._value(step.operands[piece], inside))
        if len(used) == 1:
            return values[0]
        by_lane = self._is_by_lane(pieces)

        def text(i: str) -> str:
            piece = self._index(pieces, "first" if by_lane else f"(first + {i})", by_lane)
            chosen = values[-1].at(i)
            for number, value in reversed(list(zip(used[:-1], values[:-1], strict=True))):
                chosen = f"({piece} == {number} ? {value.at(i)} : {chosen})"
            return chosen

        is_vector = not by_lane or any(value.is_vector for value in values)
        return self._define(step.dtype_name, text, is_vector, len(used))

    def _reduce(self, step: Instruction, indices: np.ndarray) -> SlotValue:
        kind, count = str(step.params[0]), int(step.params[1])
        operand, dtype = step.operands[0], step.dtype_name
        run = _run_length(indices)
        is_joinable = kind in JOINS and dtype in ("float32", "float64")
        if self._is_by_lane(indices) and is_joinable and count > 2 and run % self.vec == 0:
            # Lanes share the elements of a reduction only if all slots of a group need the same
            # result: each slot then reduces its share, and shuffles join the lanes.
            for group in (count, run):
                even = run % group == count % group == 0 and count // group <= self._limits.terms
                if even and self._lanes_of(group):
                    return self._reduce_over_lanes(step, indices, group)
        if count > self._limits.terms:
            raise Infeasible(f"a reduction over {count} numbers that lanes do not share evenly")
        values = [self._value(operand, indices * count + i) for i in range(count)]
        is_vector = any(value.is_vector for value in values)
        return self._define(
            dtype, lambda i: tree(kind, [value.at(i) for value in values]), is_vector, count
        )

    def _lanes_of(self, group: int) -> int:
        """Return the lanes of a group of neighbouring slots; 0 if shuffles cannot join them."""
        if group == self.slots:
            return self.lanes if self.lane_tiles == 1 else 0
        lanes, remainder = divmod(group, self.vec)
        is_in_team = self.lane_tiles == 1 or _is_power_of_2(lanes)
        return lanes if remainder == 0 and is_in_team and lanes <= self.lanes else 0

    def _reduce_over_lanes(self, step: Instruction, indices: np.ndarray, group: int) -> SlotValue:
        """Reduce over groups of slots, which share the elements evenly.

        The order is that of `tree`, if a lane or the lanes have a power of two of the elements.
        """
        kind, count = str(step.params[0]), int(step.params[1])
        operand, dtype = step.operands[0], step.dtype_name
        inside, terms_per_slot = self._all_slots % group, count // group
        side_by_side = _is_power_of_2(terms_per_slot * self.vec)
        in_order = side_by_side or (_is_power_of_2(group) and _is_power_of_2(self.vec))
        of_each_lane = self.exact and kind == "sum" and not in_order
        lanes = self._lanes_of(group)
        if side_by_side or of_each_lane:
            offsets = [terms_per_slot * inside + i for i in range(terms_per_slot)]
        else:
            offsets = [group * i + inside for i in range(terms_per_slot)]
        values = [self._value(operand, indices * count + offset) for offset in offsets]
        by_slot = [[value.at(str(i)) for value in values] for i in range(self.vec)]
        if of_each_lane or not _is_power_of_2(lanes):
            flat = [text for slot in by_slot for text in slot]
            terms = flat if of_each_lane else [tree(kind, flat)]
            return self._reduce_lane_by_lane(kind, dtype, terms, group // self.vec)
        if side_by_side:
            terms = [tree(kind, [text for slot in by_slot for text in slot])]
        else:
            terms = [tree(kind, [slot[i] for slot in by_slot]) for i in range(terms_per_slot)]
        join, kind_of_lane = JOINS[kind], register_type(dtype)
        # Lanes beyond the slots take part in shuffles, and must not change the result.
        if self.lanes * self.vec > self.slots:
            neutral = f"neutral_of<{join}, {kind_of_lane}>()"
            terms = [f"(active ? {term} : {neutral})" for term in terms]
        self.work += count / group * self.slots + 8 * len(terms) * self.slots / self.vec
        joined = [f"join_lanes<{join}, {lanes}>({term})" for term in terms]
        names = [self._define(dtype, SlotValue(x, False).at, False, 1).text for x in joined]
        return self._define(dtype, lambda i: tree(kind, names), False, 1)

    def _reduce_lane_by_lane(
        self, kind: str, dtype: str, terms: Sequence[str], lanes: int
    ) -> SlotValue:
        """Reduce terms over any number of neighbouring lanes, each of which reads all of them."""
        names = [self._define(dtype, SlotValue(x, False).at, False, 1).text for x in terms]
        first = f"threadIdx.x % {self.lanes} / {lanes} * {lanes}"
        others = [
            f"__shfl_sync(kWholeWarp, {name}, {first} + {lane}, {self.lanes})"
            for lane in range(lanes)
            for name in names
        ]
        return self._define(dtype, lambda _: tree(kind, others), False, 2 * len(others))

    def _product(self, step: Instruction, indices: np.ndarray) -> SlotValue:
        """Write out a product of few terms."""
        count, (left, right) = int(step.params[0]), step.operands
        if count > self._limits.terms:
            raise Infeasible(f"a product of {count} terms")
        dtype = step.dtype_name
        zero = literal(0.0, dtype)
        terms = [
            (self._value(left, i), self._value(right, j))
            for i, j in product_terms(self.program, step, indices)
        ]
        terms = [term for term in terms if term[1].text != zero] or terms[:1]
        is_vector = any(factor.is_vector for term in terms for factor in term)
        return self._define(
            dtype,
            lambda i: " + ".join(f"{a.at(i)} * {b.at(i)}" for a, b in terms),
            is_vector,
            len(terms),
        )


def _run_length(indices: np.ndarray) -> int:
    """Return the length of the runs of equal indices if all have the same; else 1."""
    breaks = np.flatnonzero(np.diff(indices))
    if not len(breaks):
        return len(indices)
    run = int(breaks[0]) + 1
    if len(indices) % run:
        return 1
    runs = indices.reshape(-1, run)
    return run if (runs == runs[:, :1]).all() else 1


def _is_power_of_2(n: int) -> bool:
    return n & (n - 1) == 0
