"""Outputs of slots: the elements that each slot stores, or reduces over the entries of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import (
    FLOATS,
    REGISTER_TYPES,
    STORED_TYPES,
    Infeasible,
    Parts,
)
from jax_gnn._ops.edge_region.row_program import Output, RowProgram
from jax_gnn._ops.edge_region.slot_instructions import SlotInstructions
from jax_gnn._ops.edge_region.slot_loads import Limits, SlotValue

MAX_COMPONENTS = 16
"""Elements of an output for each slot."""


class Layout(NamedTuple):
    """The distribution of outputs over slots.

    Attributes:
        interleaved: For rows of several elements a slot: whether a slot has neighbouring ones.
        grouped: For rows of fewer elements than slots: whether neighbouring slots share an element;
            else each slot has all.
    """

    interleaved: bool
    grouped: bool


class _Placement(NamedTuple):
    """The elements of an output by slot.

    Attributes:
        components: For each element of a slot, the index in the output's row for all slots.
        start: C++ expression of a lane's first index.
        width: Number of neighbouring elements of a lane for each store.
        condition: C++ condition of the lanes that store; "" if all do.
        interleaved: Whether components are neighbours, and stored together.
    """

    components: list[np.ndarray]
    start: str
    width: int
    condition: str
    interleaved: bool


class SlotCodegen(SlotInstructions):
    """Code of a program for a number of slots, slots of a lane, and layout.

    Attributes:
        acc: Dtype of sums.
        stores: Lines that store the reduced elements of a row.
        parts: The numbers of a row that a lane reduces.
    """

    def __init__(
        self, program: RowProgram, slots: int, vec: int, layout: Layout, limits: Limits
    ) -> None:
        super().__init__(program, slots, vec, limits)
        self.stores: list[str] = []
        self.parts = Parts(program)
        self._layout = layout
        self._generate()

    def _generate(self) -> None:
        program = self.program
        if any(output.dest not in ("edge", "row") for output in program.outputs):
            raise ValueError("the outputs of a kernel are by edge or by row")
        dtypes = {self._dtype(output.value) for output in program.outputs if output.dest == "row"}
        if not dtypes <= set(FLOATS):
            raise Infeasible(f"sums of {', '.join(sorted(dtypes))}")
        self.acc = "float64" if "float64" in dtypes else "float32"
        acc_type = REGISTER_TYPES[self.acc]
        # An output by edge is stored while its entry is visited. An output by row is a part of the
        # walk's reduction: the entry's code sets `parts`, the walk joins them over entries into
        # `run`, and code in `stores` writes `run` once for each row.
        for number, output in enumerate(program.outputs):
            placement = self._placement(output)
            values = [self._value(output.value, indices) for indices in placement.components]
            if output.dest == "edge":
                stored = [SlotValue(f"(valid ? {v.text} : 0)", v.is_vector) for v in values]
                self._store(number, output, placement, stored)
                continue
            stored = []
            is_vector = placement.width > 1 or placement.condition == ""
            for chunk, value in enumerate(values):
                for first, is_count in self.parts.add(output, chunk, self.vec if is_vector else 1):
                    part = f"parts[{first} + i]" if is_vector else f"parts[{first}]"
                    number_of_entry = "1" if is_count else value.at("i")
                    line = f"{part} = static_cast<{acc_type}>({number_of_entry});"
                    self.body.append(self._for_slots(line) if is_vector else line)
                stored.append(
                    SlotValue(f"run[{first} + {{i}}]" if is_vector else f"run[{first}]", is_vector)
                )
            self._store(number, output, placement, stored)
        if not self.parts.joins:  # the walk needs at least one part
            self.parts.fill()
            self.body.append("parts[0] = 0;")

    def _placement(self, output: Output) -> _Placement:
        width, slots, vec = self._width(output.value), self.slots, self.vec
        index = self._all_slots
        # Wide rows: a slot has `count` elements, either neighbours or `slots` apart. The second
        # layout lets neighbouring lanes store neighbouring words.
        if width % slots == 0 and width // slots <= MAX_COMPONENTS:
            count = width // slots
            if self._layout.interleaved and count > 1:
                components = [count * index + i for i in range(count)]
                return _Placement(components, f"{count} * first", count * vec, "", True)
            return _Placement([i * slots + index for i in range(count)], "first", vec, "", False)
        # Narrow rows: `group` neighbouring slots share an element, and the first lane of the group
        # stores it. A group must hold whole lanes, since a lane stores as one.
        group = slots // width
        if slots % width == 0 and (self._layout.grouped or width > MAX_COMPONENTS):
            if group % vec:
                raise Infeasible("an output has fewer numbers than lanes")
            condition = f"first % {group} == 0"
            return _Placement([index // group], f"first / {group}", 1, condition, False)
        if width > MAX_COMPONENTS:
            raise Infeasible("rows of outputs have too many numbers")
        components = [np.full_like(index, i) for i in range(width)]
        return _Placement(components, "0", 1, "first == 0", False)

    def _store(
        self, number: int, output: Output, placement: _Placement, values: Sequence[SlotValue]
    ) -> None:
        """Append the code that stores a lane's elements of output `number`."""
        by_entry = output.dest == "edge"
        lines, row = (self.body, "place") if by_entry else (self.stores, "row")
        width, dtype = self._width(output.value), self._dtype(output.value)
        kind, array = STORED_TYPES[dtype], number + len(self.program.inputs)
        conditions = " && ".join(filter(None, ("there" if by_entry else "", placement.condition)))
        lines.append(f"if ({conditions}) {{" if conditions else "{")
        lines.append(f"{kind}* const to = row_of<{kind}, {width}>(out.at[{number}], {row});")
        count = len(values)
        if placement.interleaved:
            lines.append(f"{kind} words[{placement.width}];")
            for i, value in enumerate(values):
                word = f"words[{count} * i + {i}] = cast<{kind}>({value.at('i')});"
                lines.append(self._for_slots(word))
            word_size = self._word_size(array, width, dtype, placement.width, 0)
            lines.append(f"store_numbers<{word_size}>(to + {placement.start}, words);")
        elif placement.condition == "":
            word_size = self._word_size(array, width, dtype, self.vec, self.slots)
            for i, value in enumerate(values):
                lines.append(f"{kind} words{i}[kVec];")
                lines.append(self._for_slots(f"words{i}[i] = cast<{kind}>({value.at('i')});"))
                start = f"{i * self.slots} + {placement.start}"
                lines.append(f"store_numbers<{word_size}>(to + {start}, words{i});")
        else:
            for i, value in enumerate(values):
                start = f"{placement.start} + {i}" if count > 1 else placement.start
                lines.append(f"to[{start}] = cast<{kind}>({value.at('0')});")
        lines.append("}")
        self.work += 4 * width
