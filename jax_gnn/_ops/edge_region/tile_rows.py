"""Rows of edge tiles in registers: loads, moves between lanes, and the C++ of their numbers.

See :mod:`jax_gnn._ops.edge_region.tile_codegen` for the layout of rows.
"""

from __future__ import annotations

import abc
import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    FLOATS,
    Infeasible,
    affine,
    literals,
    loaded,
    register_type,
    stored_type,
)
from jax_gnn._ops.edge_region.row_program import Instruction, RowProgram
from jax_gnn._ops.edge_region.tile_plan import BLOCK, MAX_NARROW, Order, TilePlan, blocks_of
from jax_gnn._ops.edge_region.tile_stages import StagedRows, Staging

COLUMN = "(8 * j + 2 * t + e % 2)"
"""C++ of a column of a wide row."""
UNROLL = '_Pragma("unroll")'

_DECLARATION = re.compile(r"\w+ (v\d+)\[(\d+)\]\[(\d+)\];")
_NAME = re.compile(r"\bv\d+\b")
_MAX_TEXT = 4000  # characters of a function that is written where it is read


class Rows(NamedTuple):
    """An array of registers with the rows of a value.

    Attributes:
        name: The C++ array.
        width: Numbers of a row.
        is_wide: Whether the lanes of a quad share a row.
        varies: Whether rows differ between entries.
    """

    name: str
    width: int
    is_wide: bool
    varies: bool


class TileRows(abc.ABC):
    """Code that loads rows and moves their numbers.

    Attributes:
        program: The program.
        plan: Properties of its values.
        lines: The lines so far.
        tables: Definitions of constant arrays.
        rows: The rows of each value that is in registers.
        phase: Number of products so far, over which no rows are kept that other rows tell.
        scratch_width: Numbers of a row of the warp's scratch memory.
        words: Required alignment in bytes of the rows of each input, then of each output.
        staging: Inputs whose rows are copied to shared memory a tile ahead.
    """

    def __init__(self, program: RowProgram, *, recompute: bool, staging: Staging) -> None:
        self.program = program
        self.staging = staging
        self.plan = TilePlan(program, recompute=recompute)
        self.lines: list[str] = []
        self.tables: list[str] = []
        self.rows: dict[int, Rows] = {}
        self.phase = 0
        self.scratch_width = 0
        arrays = [*program.inputs, *(program.values[output.value] for output in program.outputs)]
        self.words = [array.dtype.itemsize for array in arrays]
        self._moved: dict[tuple[object, ...], Rows] = {}  # loads and moves, by what they hold
        self._phase_of: dict[str, int] = {}  # in which rows were read last
        self._uniform = set[str]()  # names of rows that entries share

    @abc.abstractmethod
    def _compute(self, number: int, step: Instruction) -> None:
        """Append the code of an instruction, which sets its rows."""

    @abc.abstractmethod
    def _written_out(self, number: int, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of an instruction without rows as C++, see `_text`."""

    # --- C++ of a value's numbers ----------------------------------------------------------------

    def _rows_of(self, number: int) -> Rows:
        """Return the rows of an instruction, computed where they are first read."""
        step = self.plan.step(number)
        assert step is not None
        if number not in self.rows:
            self._compute(number, step)
            self._phase_of[self.rows[number].name] = self.phase
        rows = self.rows[number]
        if self.plan.recompute and rows.is_wide and self._phase_of[rows.name] != self.phase:
            # Else a compiler would keep functions of the rows that it computed in another phase.
            self._phase_of[rows.name] = self.phase
            self._loop(f"hide({rows.name}[j][e]);", rows.width, True, rows.varies)
        return rows

    def _text(self, number: int, indices: np.ndarray, wide: bool) -> str:
        """Return the numbers of a value at indices, as C++ of ``j`` and ``e``, or ``k`` and ``q``.

        Args:
            number: Index of the value.
            indices: The element for each column, or for each number of a narrow row.
            wide: Whether the reader's row is wide.
        """
        step = self.plan.step(number)
        if self.plan.width(number) == 1:
            indices = np.zeros_like(indices)
        if step is None:
            return self._input_text(number, indices, wide)
        if step.name == "take":
            return self._text(step.operands[0], step.places[indices], wide)
        if step.name == "constant":
            return self._constant_text(step, indices, wide)
        if number not in self.rows and not self.plan.is_kept(number):
            text = self._written_out(number, step, indices, wide)
            if number in self.plan.virtual or len(text) < _MAX_TEXT:
                return text
        return self._row_text(self._rows_of(number), self.plan.dtype(number), indices, wide)

    def _row_text(self, rows: Rows, dtype: str, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of rows in registers, moved between lanes if they must be."""
        name, starts = rows.name, indices[::BLOCK]
        if not rows.is_wide:
            entry = ("e / 2" if wide else "k") if rows.varies else "0"
            if not wide:
                return f"{name}[{entry}][{lookup(indices, 'q')}]"
            if Order.of(indices).by_block:
                return f"{name}[{entry}][{lookup(starts, 'j')}]"
            return f"chosen({name}[{entry}], {self._index(indices)})"
        if not wide:
            return self._gathered_narrow(rows, dtype, indices)
        order = Order.of(indices)
        if order.is_aligned:
            element = "e" if rows.varies else "e % 2"
            return f"{name}[{lookup(starts // BLOCK, 'j')}][{element}]"
        if order.by_block:
            # One number for all columns of a block: the lane that has it tells the others.
            entry = "e / 2 * 2 + " if rows.varies else ""
            element = f"{entry}{lookup(starts % 2, 'j')}"
            lane = lookup(starts % BLOCK // 2, "j")
            return f"quad_read({name}[{lookup(starts // BLOCK, 'j')}][{element}], {lane})"
        return self._row_text(self._exchanged(rows, dtype, indices), dtype, _all(indices), True)

    def _gathered_narrow(self, rows: Rows, dtype: str, indices: np.ndarray) -> str:
        """Return numbers of wide rows for all lanes of a quad."""
        key = rows.name, "narrow", indices.tobytes()
        if key not in self._moved:
            moved = self._declare(dtype, len(indices), False, rows.varies)
            for q, index in enumerate(indices.tolist()):
                element = f"2 * k + {index % 2}" if rows.varies else str(index % 2)
                source = f"{rows.name}[{index // BLOCK}][{element}]"
                read = f"quad_read({source}, {index % BLOCK // 2})"
                self._narrow_loop(f"{moved.name}[k][{q}] = {read};", 1, rows.varies)
            self._moved[key] = moved
        return self._row_text(self._moved[key], dtype, _all(indices), False)

    def _index(self, indices: np.ndarray) -> str:
        """Return an index for each column of a wide row as C++."""
        text = affine(indices, COLUMN)
        if text is not None and len(indices) % BLOCK == 0:
            return text
        if text is not None:  # columns beyond the row stay within it
            return f"min(max({text}, {int(indices.min())}), {int(indices.max())})"
        padded = np.pad(indices, (0, -len(indices) % BLOCK), mode="edge")
        return f"{self._table('int', [str(int(i)) for i in padded])}[{COLUMN}]"

    def _table(self, kind: str, elements: Sequence[str]) -> str:
        definition = f"[] = {{{', '.join(elements)}}};"
        for number, line in enumerate(self.tables):
            if line.endswith(definition) and f" {kind} " in line:
                return f"constants{number}"
        name = f"constants{len(self.tables)}"
        self.tables.append(f"__device__ const {kind} {name}{definition}")
        return name

    def _constant_text(self, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        dtype = step.dtype_name
        texts = literals(np.asarray(step.params)[indices], dtype)
        if len(texts) == 1:
            return texts[0]
        if wide:
            texts += texts[-1:] * (-len(texts) % BLOCK)
        name = self._table(register_type(dtype), texts)
        return f"{name}[{COLUMN if wide else 'q'}]"

    # --- Inputs ----------------------------------------------------------------------------------

    def _input_text(self, number: int, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of an input, which are loaded where they are first read."""
        source = self.program.inputs[number]
        is_shared = source.access == "shared"
        is_run = (indices == indices[0] + np.arange(len(indices))).all()
        # Entries' rows are loaded whole, or a run of their columns: other orders are moves in
        # registers. A shared row is in the cache, from where it is read in any order.
        is_run &= number not in self.staging.rows or indices[0] % 2 == 0  # pairs are read at once
        if not is_shared and (source.width <= MAX_NARROW or not (wide and is_run)):
            rows = self._loaded(number, np.arange(source.width), source.width > MAX_NARROW)
            return self._row_text(rows, source.dtype_name, indices, wide)
        if is_shared and not wide and len(indices) > 4 * MAX_NARROW:
            raise Infeasible(f"a row of {len(indices)} numbers for each lane")
        rows = self._loaded(number, indices, wide)
        return self._row_text(rows, source.dtype_name, _all(indices), wide)

    def _loaded(self, number: int, indices: np.ndarray, wide: bool) -> Rows:
        """Return the rows of an input at indices, from memory."""
        source, count = self.program.inputs[number], len(indices)
        # Staged rows are read again rather than kept, and so is what entries share if registers are
        # scarce: it is in the cache.
        staged = self.staging.rows.get(number)
        is_reloaded = staged or (self.plan.recompute and source.access == "shared")
        key = number, wide, indices.tobytes(), self.phase if is_reloaded else 0
        if key in self._moved:
            return self._moved[key]
        dtype, kind = source.dtype_name, stored_type(source.dtype_name)
        varies = source.access != "shared"
        rows = self._declare(dtype, count, wide, varies)
        place = {"edge": "place", "row": "row", "col": "col"}
        streams = "true" if source.access == "edge" else "false"
        start = int(indices[0])
        is_run = (indices == start + np.arange(count)).all()
        word = 1
        if is_run:
            limit = 2 if wide else 4
            word = math.gcd(limit, 16 // BYTES[dtype], count, source.width, start)
            if dtype == "bool":
                word = 1
            self.words[number] = max(self.words[number], word * BYTES[dtype])
        if staged:
            self._read_staged(rows, staged, int(indices[0]), source.dtype_name)
            self.words[number] = max(self.words[number], staged.word)
            self._moved[key] = rows
            return rows
        for k in range(2 if varies else 1):
            row = f"entries[{k}].{place[source.access]}" if varies else "0"
            valid = f"entries[{k}].valid()" if varies else "true"
            base = f"row_of<const {kind}, {source.width}>(in.at[{number}], {row})"
            if is_run and wide:
                self.lines.append(
                    f"load_wide<{count}, {word}, {streams}, {2 * k}>({valid}, {base} + {start}, t, "
                    f"{rows.name});"
                )
            elif is_run:
                self.lines += [
                    "{",
                    f"{kind} words[{count}];",
                    f"load_numbers<{word}, {streams}>({valid}, {base} + {start}, words);",
                    f"{UNROLL} for (int q = 0; q < {count}; ++q) "
                    f"{rows.name}[{k}][q] = {loaded('words[q]', dtype)};",
                    "}",
                ]
            else:
                index = self._index(indices) if wide else lookup(indices, "q")
                element = f"[j][e + {2 * k}]" if wide else f"[{k}][q]"
                line = f"{rows.name}{element} = {loaded(f'({base})[{index}]', dtype)};"
                assert not varies
                self._loop(line, count, wide, False)
        self._moved[key] = rows
        return rows

    def _read_staged(self, rows: Rows, staged: StagedRows, start: int, dtype: str) -> None:
        """Append the code that reads columns of each entry's row from shared memory."""
        for k in range(2):
            kind = stored_type(dtype)
            row = f"staged_row<{kind}, {staged.start}, {staged.stride}>(staged, g + {8 * k})"
            if rows.is_wide:
                call = f"read_wide<{rows.width}, {2 * k}>({row} + {start}, t, {rows.name});"
                self.lines.append(call)
            else:
                number = loaded(f"({row})[q]", dtype)
                self.lines.append(
                    f"{UNROLL} for (int q = 0; q < {rows.width}; ++q) "
                    f"{rows.name}[{k}][q] = {number};"
                )

    # --- Registers -------------------------------------------------------------------------------

    def _declare(self, dtype: str, width: int, wide: bool, varies: bool) -> Rows:
        name = f"v{len(self.lines)}"
        sizes = (blocks_of(width), 4 if varies else 2) if wide else (2 if varies else 1, width)
        self.lines.append(f"{register_type(dtype)} {name}[{sizes[0]}][{sizes[1]}];")
        if not varies:
            self._uniform.add(name)
        return Rows(name, width, wide, varies)

    def _loop(self, line: str, width: int, wide: bool, varies: bool) -> None:
        """Append a line for all numbers of a row."""
        if wide:
            elements = 4 if varies else 2
            self.lines.append(f"JAX_GNN_WIDE({blocks_of(width)}, {elements}) {line}")
        else:
            self._narrow_loop(line, width, varies)

    def _narrow_loop(self, line: str, width: int, varies: bool) -> None:
        self.lines.append(f"JAX_GNN_NARROW({2 if varies else 1}, {width}) {line}")

    def _define(self, number: int, text: str, wide: bool) -> None:
        """Store a value whose numbers have the C++ text."""
        width, varies = self.plan.width(number), self.program.varies[number]
        rows = self._declare(self.plan.dtype(number), width, wide, varies)
        element = "[j][e]" if wide else "[k][q]"
        self._loop(f"{rows.name}{element} = {text};", width, wide, varies)
        self.rows[number] = rows

    def _exchanged(self, rows: Rows, dtype: str, indices: np.ndarray) -> Rows:
        """Return wide rows in another order, by way of the warp's scratch memory."""
        key = rows.name, "wide", indices.tobytes()
        if key not in self._moved:
            self._write_scratch([(0, rows)], dtype)
            self._moved[key] = self._read_scratch(dtype, indices, rows.varies)
        return self._moved[key]

    def _write_scratch(self, pieces: Sequence[tuple[int, Rows]], dtype: str) -> None:
        """Write rows to scratch memory, each from a column on."""
        if dtype not in ("bool", *FLOATS):
            raise Infeasible(f"numbers of {dtype} in another order")
        for start, rows in pieces:
            self.scratch_width = max(self.scratch_width, start + blocks_of(rows.width) * BLOCK)
            if rows.is_wide:
                element = "e" if rows.varies else "e % 2"
                column = f"{start} + {COLUMN}" if start else COLUMN
                condition = "" if rows.width % BLOCK == 0 else f"if ({COLUMN} < {rows.width}) "
                line = f"{condition}scratch_row(e / 2)[{column}] = {rows.name}[j][{element}];"
                self._loop(line, rows.width, True, True)
            else:
                entry = "k" if rows.varies else "0"
                line = f"if (t == 0) scratch_row(k)[{start} + q] = {rows.name}[{entry}][q];"
                self._narrow_loop(line, rows.width, True)
        self.lines.append("__syncwarp();")

    def _read_scratch(self, dtype: str, indices: np.ndarray, varies: bool) -> Rows:
        moved = self._declare(dtype, len(indices), True, varies)
        number = f"scratch_row(e / 2)[{self._index(indices)}]"
        text = f"({number} != 0)" if dtype == "bool" else number
        self._loop(f"{moved.name}[j][e] = {text};", len(indices), True, varies)
        self.lines.append("__syncwarp();")
        return moved

    def _registers(self) -> int:
        """Return the registers of rows where most are alive."""
        sizes, first, last = dict[str, int](), dict[str, int](), dict[str, int]()
        for place, line in enumerate(self.lines):
            declaration = _DECLARATION.fullmatch(line)
            if declaration:
                name, blocks, elements = declaration.groups()
                # Of what entries share, a lane needs a few numbers at a time.
                sizes[name] = 0 if name in self._uniform else int(blocks) * int(elements)
            else:
                for name in _NAME.findall(line):
                    first.setdefault(name, place)
                    last[name] = place
        changes = [0] * (len(self.lines) + 1)
        for name in first:
            changes[first[name]] += sizes[name]
            changes[last[name] + 1] -= sizes[name]
        return max(itertools.accumulate(changes))


def _all(indices: np.ndarray) -> np.ndarray:
    return np.arange(len(indices))


def lookup(numbers: np.ndarray, variable: str) -> str:
    """Return ``numbers[i]`` as C++ of i, a variable that is constant where loops are unrolled."""
    text = affine(numbers, variable)
    return text or f"lookup<{', '.join(str(int(i)) for i in numbers)}>({variable})"
