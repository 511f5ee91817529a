"""Slots of rows: elements of inputs in registers, and their indices as C++.

A lane of the walk (``cpp/kernels/cuda/segment_walk.cuh``) owns a few neighbouring *slots*, and a
slot a few elements of each row. An array ``indices`` says which element every slot needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import BYTES, WARP, affine, loaded, stored_type
from jax_gnn._ops.edge_region.row_program import RowProgram

_MAX_SHARED_REGISTERS = 24  # for values that all entries share
_WORD_BYTES = 16


class Limits(NamedTuple):
    """Limits of a kernel.

    Attributes:
        registers: Registers of an entry's elements that are loaded before their use.
        statements: Operations on an element; some hundreds take a second to compile.
        terms: Terms of a reduction within a slot.
    """

    registers: float
    statements: int
    terms: int = 64


class SlotValue(NamedTuple):
    """A C++ expression of a value.

    Attributes:
        text: The expression, in which ``{i}`` stands for the slot of a lane.
        is_vector: Whether slots of a lane differ.
    """

    text: str
    is_vector: bool

    def at(self, slot: str) -> str:
        return self.text.replace("{i}", slot)


class SlotLoads:
    """Code that loads elements of inputs.

    Attributes:
        program: The program.
        slots: Number of slots that are distributed over lanes.
        vec: Slots of a lane.
        lanes: Lanes of a team, a power of two up to 32.
        lane_tiles: Teams side by side that have all slots.
        entry: Members of the struct of what an entry loads ahead, and `loads` their code.
        once: Members of the struct of what all entries share, and `loads_once` their code.
        body: Lines that compute the values of an entry.
        tables: Definitions of constant arrays.
        words: Required alignment in bytes of the rows of each input, then of each output.
        registers: Registers of `entry`, and `registers_once` of `once`.
        statements: Operations on an element so far.
        work: Operations of all slots so far.
    """

    def __init__(self, program: RowProgram, slots: int, vec: int, limits: Limits) -> None:
        self.program, self.slots, self.vec = program, slots, vec
        self.lanes = 1
        while self.lanes < WARP and self.lanes * vec < slots:
            self.lanes *= 2
        self.lane_tiles = -(-slots // (self.lanes * vec))
        self.entry: list[str] = []
        self.loads: list[str] = []
        self.once: list[str] = []
        self.loads_once: list[str] = []
        self.body: list[str] = []
        self.tables: list[str] = []
        arrays = [*program.inputs, *(program.values[output.value] for output in program.outputs)]
        self.words = [array.dtype.itemsize for array in arrays]
        self.registers = self.registers_once = self.statements = self.work = 0.0
        self._limits = limits
        self._all_slots = np.arange(slots)
        self._fields: dict[tuple[object, ...], str] = {}
        self._num_fields = 0

    def _width(self, value: int) -> int:
        return self.program.values[value].width

    def _dtype(self, value: int) -> str:
        return self.program.values[value].dtype_name

    def _load(self, number: int, indices: np.ndarray) -> SlotValue:
        """Return elements of an input, loaded once, in wide words where they are contiguous."""
        width, dtype = self._width(number), self._dtype(number)
        if width == 1:
            indices = np.zeros_like(indices)
        if self._is_by_lane(indices):
            index = self._index(indices, "first", True)
            field = self._field(number, ("lane", index), 1, [index], 1)
            return SlotValue(loaded(f"{field}[0]", dtype), False)
        step = int(indices[1] - indices[0])
        if 1 <= step <= 8 and (indices == indices[0] + step * self._all_slots).all():
            start = int(indices[0]) // step * step
            if start + step * self.slots <= width:
                count = step * self.vec
                word = self._word_size(number, width, dtype, count, start)
                place = f"{start} + {step} * first"
                field = self._field(number, ("block", start, step), count, [place], word)
                offset = int(indices[0]) - start
                return SlotValue(loaded(f"{field}[{step} * {{i}} + {offset}]", dtype), True)
        places = [
            self._index(indices, f"(first + {i})" if self.vec > 1 else "first", False)
            for i in range(self.vec)
        ]
        field = self._field(number, ("each", *places), self.vec, places, 1)
        return SlotValue(loaded(f"{field}[{{i}}]", dtype), True)

    def _field(
        self, number: int, key: tuple[object, ...], count: int, places: Sequence[str], word: int
    ) -> str:
        """Return the name of loaded elements of an input.

        Args:
            number: Index of the input.
            key: Identifies the elements.
            count: Number of elements.
            places: C++ index of the first element, or of each.
            word: Elements of a word.
        """
        if (number, *key) in self._fields:
            return self._fields[number, *key]
        source = self.program.inputs[number]
        dtype = source.dtype_name
        kind, shared = stored_type(dtype), source.access == "shared"
        self._num_fields += 1
        name = f"x{self._num_fields}"
        registers = max(1.0, count * BYTES[dtype] / 4)
        declaration = f"{kind} {name}[{count}];"
        if shared and self.registers_once + registers <= _MAX_SHARED_REGISTERS:
            lines, condition = self.loads_once, "active"
            self.once.append(declaration)
            self.registers_once += registers
            name = f"once.{name}"
        elif not shared and self.registers + registers <= self._limits.registers:
            lines, condition = self.loads, "valid"
            self.entry.append(declaration)
            self.registers += registers
            name = f"entry.{name}"
        else:  # loaded at its use
            lines, condition = self.body, "active" if shared else "valid"
            self.body.append(declaration)
            self.statements += count
        row = {"edge": "place", "row": "row", "col": "col", "shared": "0"}[source.access]
        base = f"row_of<const {kind}, {source.width}>(in.at[{number}], {row})"
        streams = "true" if source.access == "edge" else "false"
        if len(places) == 1:
            address = f"{base} + {places[0]}"
            lines.append(f"load_numbers<{word}, {streams}>({condition}, {address}, {name});")
        else:
            lines += [
                f"load_number<{streams}>({condition}, {base} + {place}, {name}[{i}]);"
                for i, place in enumerate(places)
            ]
        self.work += (4 if len(places) == 1 else 6) * self.slots * count / self.vec
        self._fields[number, *key] = name
        return name

    def _word_size(self, array: int, width: int, dtype: str, count: int, start: int) -> int:
        """Return the elements of the widest aligned word; records the alignment of the array."""
        divisor = math.gcd(_WORD_BYTES // BYTES[dtype], count, width, start)
        word = divisor & -divisor
        self.words[array] = max(self.words[array], word * BYTES[dtype])
        return word

    def _index(self, indices: np.ndarray, slot: str, by_lane: bool) -> str:
        """Return `indices` as a C++ expression of a slot, or of a lane's first slot."""
        step = self.vec if by_lane else 1
        text = affine(indices[::step].astype(np.int64), slot, step, "static_cast<int>")
        if text is not None:
            return text
        return f"{self._table('int', [str(int(i)) for i in indices])}[{slot}]"

    def _table(self, kind: str, elements: Sequence[str]) -> str:
        name = f"table{len(self.tables)}"
        self.tables.append(f"__device__ const {kind} {name}[] = {{{', '.join(elements)}}};")
        return name

    def _is_by_lane(self, indices: np.ndarray) -> bool:
        """Whether the slots of each lane need the same element."""
        lanes = indices.reshape(-1, self.vec)
        return bool((lanes == lanes[:, :1]).all())
