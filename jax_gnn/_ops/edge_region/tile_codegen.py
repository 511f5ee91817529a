"""Edge tiles: CUDA code that computes the rows of 16 entries of a warp together, with products.

Rows lie as tensor cores hold them. Lane ``4 g + t`` of a warp has columns ``8 j + 2 t`` and
``8 j + 2 t + 1`` of entries g and g + 8, for each *block* j of eight columns: a *wide* row is an
array ``x[j][e]``, where e counts the two columns of the first entry, then those of the second one.
The accumulators of a product are then the operands of the next one, and a row of numbers moves
between lanes only where a ``take`` asks for another order. Rows of at most eight numbers are
*narrow*: all four lanes of a quad hold both entries' rows whole, as ``x[k][q]``.

Each value is computed once, in the order of the program, and what entries share is loaded where it
is used. The code fills tiles of shared memory with the rows that the walk reduces
(:mod:`jax_gnn._ops.edge_region.cuda_codegen`), and stores results by entry itself.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    FLOATS,
    HALVES,
    JOINS,
    STORED_TYPES,
    THREADS,
    TILE_ENTRIES,
    WARP,
    Infeasible,
    affine,
    dot_sizes,
    elementwise,
    literal,
    loaded,
    matrix_layout,
    needs_exact_bits,
    on_tensor_cores,
    outer_sizes,
    register_type,
    stored_type,
    tree,
)
from jax_gnn._ops.edge_region.row_program import FUNCTIONS, Instruction, RowProgram

MAX_REGISTERS = 256
"""Registers of the rows of a lane, as counted here."""

_BLOCK = 8  # columns of a block
_MAX_NARROW = 8  # numbers of a narrow row
_MAX_STORED = 128  # numbers of a row in registers; of wider ones, readers compute their part
_CHUNK = 64  # columns of a result that are computed and stored together
_MAX_TEXT = 4000  # characters of a function that is written where it is read
_MAX_TERMS = 64  # of a reduction within a lane
_MAX_SCALAR_TERMS = 4  # of a product that takes no tensor cores, and columns of one

_NEVER_VIRTUAL = ("take", "constant", "concatenate", "reduce")

# C++ of a column of a wide row.
_COLUMN = "(8 * j + 2 * t + e % 2)"


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


class _Factor(NamedTuple):
    """A side of an outer product: a value, and the width of its rows."""

    operand: int
    width: int


class _Factors(NamedTuple):
    """An outer product, a sum over `count` rows of both factors."""

    count: int
    left: _Factor
    right: _Factor


@dataclass(frozen=True)
class TileCode:
    """Code of the rows of 16 entries.

    Attributes:
        lines: The body of the function ``tile`` of a text.
        matrices: Lines that load matrices to shared memory.
        matrix_size: Numbers of the matrices.
        tables: Definitions of constant arrays.
        tiles: Value and width of each tile that the code fills.
        sums: Members of the struct of sums over all entries of a block.
        finish: Lines that write these sums.
        block_memory: Words of shared memory for them.
        warps: Warps of a block.
        scratch: Numbers between rows of the warp's scratch memory; 0 if there is none.
        words: Required alignment in bytes of the rows of each input, then of each output.
        exact: Whether another kernel must produce the same bits.
        registers: Registers of a lane for rows, where most are alive.
        work: Estimated operations for an entry.
    """

    lines: tuple[str, ...]
    matrices: tuple[str, ...]
    matrix_size: int
    tables: tuple[str, ...]
    tiles: tuple[tuple[int, int], ...]
    sums: tuple[str, ...]
    finish: tuple[str, ...]
    block_memory: int
    warps: int
    scratch: int
    words: list[int]
    exact: bool
    registers: int
    work: float


def tile_code(program: RowProgram) -> TileCode:
    """Return the code of a program.

    Raises:
        Infeasible: A value, or the whole, is beyond what a warp can hold.
    """
    code = _TileCodegen(program, recompute=False).code()
    # Gradients read rows of the forward pass again. What one row in registers tells is computed
    # again from it where all do not fit.
    if code.registers > MAX_REGISTERS:
        code = _TileCodegen(program, recompute=True).code()
    if code.registers > MAX_REGISTERS:
        raise Infeasible(f"rows of entries that take {code.registers} registers")
    return code


class _TileCodegen:
    """The code of one program."""

    def __init__(self, program: RowProgram, *, recompute: bool) -> None:
        self.program, self.recompute = program, recompute
        self.first = len(program.inputs)
        self.exact = needs_exact_bits(program)
        self.precise = any(len(x.params) > 1 for x in program.instructions if x.name == "dot")
        self.lines: list[str] = []
        self.tables: list[str] = []
        self.matrices: list[str] = []
        self.matrix_offsets: dict[tuple[int, ...], int] = {}
        self.matrix_size = 0
        self.rows: dict[int, Rows] = {}  # of each value that is in registers
        # The phase in which rows were read last. A phase ends with a product, over which no rows
        # are kept that other rows in registers tell.
        self.phase_of: dict[str, int] = {}
        self.phase = 0
        self.uniform = set[str]()  # names of rows that entries share
        self.moved: dict[tuple[object, ...], Rows] = {}  # loads and moves, by what they hold
        self.sums: list[str] = []
        self.finish: list[str] = []
        self.block_memory = 0
        self.sum_registers = 0
        # A larger block shares out its sums, and what they need of shared memory, over more warps.
        has_sums = any(output.dest == "all" for output in program.outputs)
        self.warps = (2 if has_sums else 1) * THREADS // WARP
        self.scratch_width = 0
        self.work = 0.0
        arrays = [*program.inputs, *(program.values[output.value] for output in program.outputs)]
        self.words = [array.dtype.itemsize for array in arrays]
        self.layouts: dict[int, bool] = {}
        self.readers: dict[int, list[str]] = {}  # names of instructions
        for step in program.instructions:
            for operand in set(step.operands):
                self.readers.setdefault(operand, []).append(step.name)
        for output in program.outputs:
            self.readers.setdefault(output.value, []).append("output")
        self.sources: dict[int, frozenset[int]] = {}
        self.virtual = self._virtual_values()
        self.tile_of: dict[int, int] = {}
        for output in program.outputs:
            if output.dest == "row":
                self.tile_of.setdefault(output.value, len(self.tile_of))
        for array in arrays:
            if array.dtype.name in ("float64", "int64"):
                raise Infeasible(f"a tile with {array.dtype}")

    def code(self) -> TileCode:
        """Generate the code."""
        program = self.program
        # In the order of the program, so that gradients follow the rows that they need. Results are
        # stored as soon as they are known: their registers are free again.
        ready: dict[int, list[int]] = {}
        for number, output in enumerate(program.outputs):
            ready.setdefault(output.value, []).append(number)
        for index in range(len(program.values)):
            if index >= self.first and self._is_kept(index):
                self._rows_of(index)
            for number in ready.get(index, ()):
                self._store(number)
        registers = self._registers() + self.sum_registers
        scratch = -(-self.scratch_width // _BLOCK) * _BLOCK + 4 if self.scratch_width else 0
        return TileCode(
            lines=tuple(self.lines),
            matrices=tuple(self.matrices),
            matrix_size=self.matrix_size,
            tables=tuple(self.tables),
            tiles=tuple((value, self._width(value)) for value in self.tile_of),
            sums=tuple(self.sums),
            finish=tuple(self.finish),
            block_memory=self.block_memory,
            warps=self.warps,
            scratch=scratch,
            words=self.words,
            exact=self.exact,
            registers=registers,
            work=self.work,
        )

    # --- Values ----------------------------------------------------------------------------------

    def _width(self, number: int) -> int:
        return self.program.values[number].width

    def _dtype(self, number: int) -> str:
        return str(self.program.values[number].dtype.name)

    def _step(self, number: int) -> Instruction | None:
        """Return the instruction of a value; None for an input."""
        return self.program.instructions[number - self.first] if number >= self.first else None

    def _is_lazy(self, number: int) -> bool:
        """Whether a value is in no registers of its own: its readers compute it, or move it."""
        step = self._step(number)
        return step is not None and (step.name in ("take", "constant") or number in self.virtual)

    def _virtual_values(self) -> set[int]:
        """Return the values too wide to be stored, whose readers compute what they read."""
        virtual = set[int]()
        for index, step in enumerate(self.program.instructions, self.first):
            if step.name == "outer" and on_tensor_cores(self.program, step):
                virtual.add(index)
            if step.width <= _MAX_STORED or step.name in _NEVER_VIRTUAL:
                continue
            if step.name == "dot":
                columns = dot_sizes(self.program, step)[1]
                if columns != step.width and columns % _CHUNK:
                    continue  # the columns of a chunk would be of several rows
            virtual.add(index)
        return virtual

    def _is_wide(self, number: int) -> bool:
        """Whether the numbers of a value are spread over the lanes of a quad."""
        if number not in self.layouts:
            self.layouts[number] = self._find_layout(number)
        return self.layouts[number]

    def _find_layout(self, number: int) -> bool:
        step, width = self._step(number), self._width(number)
        if step is None:
            return width > _MAX_NARROW and self.program.varies[number]
        if step.name == "take":
            return self._is_wide(step.operands[0])
        if step.name == "constant":
            return False
        if width > _MAX_NARROW or step.name in ("reduce", "outer"):
            return width > _MAX_NARROW
        if step.name == "dot":
            return width == dot_sizes(self.program, step)[1] and self._method(step) == "tensor"
        # A lane computes what it has: the rest of a quad does not need another lane's numbers.
        return any(
            self._is_wide(i)
            for i in step.operands
            if self._width(i) == width or step.name[0] == "c"
        )

    def _registers(self) -> int:
        """Return the registers of rows where most are alive."""
        sizes, first, last = dict[str, int](), dict[str, int](), dict[str, int]()
        for place, line in enumerate(self.lines):
            declaration = re.fullmatch(r"\w+ (v\d+)\[(\d+)\]\[(\d+)\];", line)
            if declaration:
                name, blocks, elements = declaration.groups()
                # Of what entries share, a lane needs a few numbers at a time.
                sizes[name] = 0 if name in self.uniform else int(blocks) * int(elements)
            else:
                for name in re.findall(r"\bv\d+\b", line):
                    first.setdefault(name, place)
                    last[name] = place
        changes = [0] * (len(self.lines) + 1)
        for name in first:
            changes[first[name]] += sizes[name]
            changes[last[name] + 1] -= sizes[name]
        return max(itertools.accumulate(changes))

    # --- Values that are computed again ----------------------------------------------------------

    def _is_kept(self, number: int) -> bool:
        """Whether an instruction has registers from its place in the program to its last reader.

        Others are computed where they are read. Where rows must be computed again, these are the
        functions of a single wide row that is kept itself.
        """
        if self._is_lazy(number):
            return False
        is_free = not self._is_wide(number) or not self.program.varies[number]
        return not self.recompute or is_free or number in self._sources(number)

    def _sources(self, number: int) -> frozenset[int]:
        """Return the kept wide rows of which a value is a function."""
        if number not in self.sources:
            self.sources[number] = self._find_sources(number)
        return self.sources[number]

    def _find_sources(self, number: int) -> frozenset[int]:
        step = self._step(number)
        if not self.program.varies[number] or not self._is_wide(number):
            return frozenset()
        if step is None:
            return frozenset([number])
        sources: frozenset[int] = frozenset().union(*map(self._sources, step.operands))
        is_cheap = step.name in FUNCTIONS or (step.name == "dot" and self._method(step) == "scalar")
        if self._is_lazy(number) or (
            is_cheap and (len(sources) <= 1 or self._is_read_by_a_function(number))
        ):
            return sources
        return frozenset([number])

    def _is_read_by_a_function(self, number: int) -> bool:
        """Whether one elementwise function alone reads a value: both are then computed together."""
        readers = self.readers.get(number, [])
        return len(readers) == 1 and readers[0] in FUNCTIONS

    def _rows_of(self, number: int) -> Rows:
        """Return the rows of an instruction, computed where they are first read."""
        step = self._step(number)
        assert step is not None
        if number not in self.rows:
            self._compute(number, step)
            self.phase_of[self.rows[number].name] = self.phase
        rows = self.rows[number]
        if self.recompute and rows.is_wide and self.phase_of[rows.name] != self.phase:
            # Else a compiler would keep functions of the rows that it computed in another phase.
            self.phase_of[rows.name] = self.phase
            self._loop(f"hide({rows.name}[j][e]);", rows.width, True, rows.varies)
        return rows

    # --- C++ of a value's numbers ----------------------------------------------------------------

    def _text(self, number: int, indices: np.ndarray, wide: bool) -> str:
        """Return the numbers of a value at indices, as C++ of ``j`` and ``e``, or ``k`` and ``q``.

        Args:
            number: Index of the value.
            indices: The element for each column, or for each number of a narrow row.
            wide: Whether the reader's row is wide.
        """
        step = self._step(number)
        if self._width(number) == 1:
            indices = np.zeros_like(indices)
        if step is None:
            return self._input_text(number, indices, wide)
        if step.name == "take":
            return self._text(step.operands[0], np.asarray(step.params, np.int64)[indices], wide)
        if step.name == "constant":
            return self._constant_text(step, indices, wide)
        if number in self.virtual and step.name == "dot":
            return self._product_text(number, step, indices, wide)
        if number in self.virtual and step.name == "outer":
            return self._outer_text(step, indices, wide)
        if number in self.virtual:
            return elementwise(self.program, step)(
                *(f"({self._text(operand, indices, wide)})" for operand in step.operands)
            )
        if not self._is_kept(number) and number not in self.rows:
            if step.name == "dot":
                return self._scalar_text(step, 0, indices, wide)
            text = elementwise(self.program, step)(
                *(f"({self._text(operand, indices, wide)})" for operand in step.operands)
            )
            if len(text) < _MAX_TEXT:
                return text
        return self._row_text(self._rows_of(number), self._dtype(number), indices, wide)

    def _row_text(self, rows: Rows, dtype: str, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of rows in registers, moved between lanes if they must be."""
        name, starts = rows.name, indices[::_BLOCK]
        if not rows.is_wide:
            entry = ("e / 2" if wide else "k") if rows.varies else "0"
            if not wide:
                return f"{name}[{entry}][{_lookup(indices, 'q')}]"
            if self._is_by_block(indices):
                return f"{name}[{entry}][{_lookup(starts, 'j')}]"
            return f"chosen({name}[{entry}], {self._index(indices)})"
        if not wide:
            return self._gathered_narrow(rows, dtype, indices)
        offsets = np.arange(len(indices)) % _BLOCK
        if (indices - offsets == np.repeat(starts, _BLOCK)[: len(indices)]).all() and not (
            starts % _BLOCK
        ).any():
            element = "e" if rows.varies else "e % 2"
            return f"{name}[{_lookup(starts // _BLOCK, 'j')}][{element}]"
        if self._is_by_block(indices):
            # One number for all columns of a block: the lane that has it tells the others.
            entry = "e / 2 * 2 + " if rows.varies else ""
            element = f"{entry}{_lookup(starts % 2, 'j')}"
            lane = _lookup(starts % _BLOCK // 2, "j")
            return f"quad_read({name}[{_lookup(starts // _BLOCK, 'j')}][{element}], {lane})"
        return self._row_text(self._exchanged(rows, dtype, indices), dtype, _all(indices), True)

    def _gathered_narrow(self, rows: Rows, dtype: str, indices: np.ndarray) -> str:
        """Return numbers of wide rows for all lanes of a quad."""
        key = rows.name, "narrow", indices.tobytes()
        if key not in self.moved:
            moved = self._declare(dtype, len(indices), False, rows.varies)
            for q, index in enumerate(indices.tolist()):
                element = f"2 * k + {index % 2}" if rows.varies else str(index % 2)
                source = f"{rows.name}[{index // _BLOCK}][{element}]"
                read = f"quad_read({source}, {index % _BLOCK // 2})"
                self._narrow_loop(f"{moved.name}[k][{q}] = {read};", 1, rows.varies)
            self.moved[key] = moved
        return self._row_text(self.moved[key], dtype, _all(indices), False)

    def _is_by_block(self, indices: np.ndarray) -> bool:
        return bool((indices == np.repeat(indices[::_BLOCK], _BLOCK)[: len(indices)]).all())

    def _index(self, indices: np.ndarray) -> str:
        """Return an index for each column of a wide row as C++."""
        text = affine(indices, _COLUMN)
        if text is not None:  # columns beyond the row give the last index
            inside = len(indices) % _BLOCK == 0
            return text if inside else f"min({text}, {int(indices.max())})"
        padded = np.pad(indices, (0, -len(indices) % _BLOCK), mode="edge")
        return f"{self._table('int', [str(int(i)) for i in padded])}[{_COLUMN}]"

    def _table(self, kind: str, elements: Sequence[str]) -> str:
        definition = f"[] = {{{', '.join(elements)}}};"
        for number, line in enumerate(self.tables):
            if line.endswith(definition) and f" {kind} " in line:
                return f"constants{number}"
        name = f"constants{len(self.tables)}"
        self.tables.append(f"__device__ const {kind} {name}{definition}")
        return name

    def _constant_text(self, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        numbers, dtype = np.asarray(step.params)[indices], step.dtype.name
        if all(x == numbers[0] or (x != x and numbers[0] != numbers[0]) for x in numbers):
            return literal(numbers[0], dtype)
        if len(numbers) > 1 << 12:
            raise Infeasible("a constant of too many numbers")
        if wide:
            numbers = np.pad(numbers, (0, -len(numbers) % _BLOCK), mode="edge")
        name = self._table(register_type(dtype), [literal(x, dtype) for x in numbers])
        return f"{name}[{_COLUMN if wide else 'q'}]"

    # --- Inputs ----------------------------------------------------------------------------------

    def _input_text(self, number: int, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of an input, which are loaded where they are first read."""
        source = self.program.inputs[number]
        is_shared = source.access == "shared"
        is_run = (indices == indices[0] + np.arange(len(indices))).all()
        # Entries' rows are loaded whole, or a run of their columns: other orders are moves in
        # registers. A shared row is in the cache, from where it is read in any order.
        if not is_shared and (source.width <= _MAX_NARROW or not (wide and is_run)):
            rows = self._loaded(number, np.arange(source.width), source.width > _MAX_NARROW)
            return self._row_text(rows, source.dtype.name, indices, wide)
        if is_shared and not wide and len(indices) > 4 * _MAX_NARROW:
            raise Infeasible(f"a row of {len(indices)} numbers for each lane")
        rows = self._loaded(number, indices, wide)
        return self._row_text(rows, source.dtype.name, _all(indices), wide)

    def _loaded(self, number: int, indices: np.ndarray, wide: bool) -> Rows:
        """Return the rows of an input at indices, from memory."""
        source, count = self.program.inputs[number], len(indices)
        # What entries share is in the cache: it is loaded again rather than kept.
        is_reloaded = self.recompute and source.access == "shared"
        key = number, wide, indices.tobytes(), self.phase if is_reloaded else 0
        if key in self.moved:
            return self.moved[key]
        dtype, kind = source.dtype.name, stored_type(source.dtype.name)
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
                    f"{_UNROLL} for (int q = 0; q < {count}; ++q) "
                    f"{rows.name}[{k}][q] = {loaded('words[q]', dtype)};",
                    "}",
                ]
            else:
                index = self._index(indices) if wide else _lookup(indices, "q")
                element = f"[j][e + {2 * k}]" if wide else f"[{k}][q]"
                line = f"{rows.name}{element} = {loaded(f'({base})[{index}]', dtype)};"
                assert not varies
                self._loop(line, count, wide, False)
        self.moved[key] = rows
        self.work += 4 * count
        return rows

    # --- Registers -------------------------------------------------------------------------------

    def _declare(self, dtype: str, width: int, wide: bool, varies: bool) -> Rows:
        name = f"v{len(self.lines)}"
        sizes = (_blocks(width), 4 if varies else 2) if wide else (2 if varies else 1, width)
        self.lines.append(f"{register_type(dtype)} {name}[{sizes[0]}][{sizes[1]}];")
        if not varies:
            self.uniform.add(name)
        return Rows(name, width, wide, varies)

    def _loop(self, line: str, width: int, wide: bool, varies: bool) -> None:
        """Append a line for all numbers of a row."""
        if wide:
            elements = 4 if varies else 2
            self.lines.append(f"JAX_GNN_WIDE({_blocks(width)}, {elements}) {line}")
        else:
            self._narrow_loop(line, width, varies)

    def _narrow_loop(self, line: str, width: int, varies: bool) -> None:
        self.lines.append(f"JAX_GNN_NARROW({2 if varies else 1}, {width}) {line}")

    def _define(self, number: int, text: str, wide: bool) -> None:
        """Store a value whose numbers have the C++ text."""
        width, varies = self._width(number), self.program.varies[number]
        rows = self._declare(self._dtype(number), width, wide, varies)
        element = "[j][e]" if wide else "[k][q]"
        self._loop(f"{rows.name}{element} = {text};", width, wide, varies)
        self.rows[number] = rows

    def _exchanged(self, rows: Rows, dtype: str, indices: np.ndarray) -> Rows:
        """Return wide rows in another order, by way of the warp's scratch memory."""
        key = rows.name, "wide", indices.tobytes()
        if key not in self.moved:
            self._write_scratch([(0, rows)], dtype)
            self.moved[key] = self._read_scratch(dtype, indices, rows.varies)
        return self.moved[key]

    def _write_scratch(self, pieces: Sequence[tuple[int, Rows]], dtype: str) -> None:
        """Write rows to scratch memory, each from a column on."""
        if dtype not in ("bool", *FLOATS):
            raise Infeasible(f"numbers of {dtype} in another order")
        for start, rows in pieces:
            self.scratch_width = max(self.scratch_width, start + _blocks(rows.width) * _BLOCK)
            if rows.is_wide:
                element = "e" if rows.varies else "e % 2"
                column = f"{start} + {_COLUMN}" if start else _COLUMN
                condition = "" if rows.width % _BLOCK == 0 else f"if ({_COLUMN} < {rows.width}) "
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

    # --- Instructions ----------------------------------------------------------------------------

    def _compute(self, number: int, step: Instruction) -> None:
        """Append the code of an instruction."""
        if step.name == "concatenate":
            self._concatenate(number, step)
        elif step.name == "reduce":
            self._reduce(number, step)
        elif step.name == "dot":
            self._dot(number, step)
        elif step.name == "outer":
            wide = step.width > _MAX_NARROW
            self._define(number, self._outer_text(step, np.arange(step.width), wide), wide)
        else:
            wide = self._is_wide(number)
            expression = elementwise(self.program, step)
            indices = np.arange(step.width)
            texts = [f"({self._text(i, indices, wide)})" for i in step.operands]
            self._define(number, expression(*texts), wide)
            self.work += step.width * 2

    def _concatenate(self, number: int, step: Instruction) -> None:
        widths = [self._width(i) for i in step.operands]
        starts = np.cumsum([0, *widths])[:-1].tolist()
        wide = self._is_wide(number)
        dtype, varies = step.dtype.name, self.program.varies[number]
        # A text may append the lines of a load or a move, which precede the loop that reads them.
        texts = [self._text(i, np.arange(self._width(i)), wide) for i in step.operands]
        if not wide or all(start % _BLOCK == 0 for start in starts):
            rows = self._declare(dtype, step.width, wide, varies)
            for start, width, text in zip(starts, widths, texts, strict=True):
                element = f"[j + {start // _BLOCK}][e]" if wide else f"[k][{start} + q]"
                self._loop(f"{rows.name}{element} = {text};", width, wide, varies)
            self.rows[number] = rows
            return
        pieces = []
        for start, operand, text in zip(starts, step.operands, texts, strict=True):
            piece = self._declare(dtype, self._width(operand), True, varies)
            self._loop(f"{piece.name}[j][e] = {text};", piece.width, True, varies)
            pieces.append((start, piece))
        self._write_scratch(pieces, dtype)
        self.rows[number] = self._read_scratch(dtype, np.arange(step.width), varies)

    def _reduce(self, number: int, step: Instruction) -> None:
        kind, count, operand = str(step.params[0]), int(step.params[1]), step.operands[0]
        wide, places = step.width > _MAX_NARROW, np.arange(step.width) * count
        self.work += 2 * step.width * count
        in_lanes = not self._is_wide(operand) or (
            wide
            and (
                self._keeps_lanes(operand, places)
                or not self._keeps_lanes(operand, np.arange(count))
            )
        )
        if not in_lanes:
            self._reduce_over_lanes(number, step, kind, count)
            return
        if count > _MAX_TERMS:
            raise Infeasible(f"a reduction over {count} numbers within a lane")
        if self.exact or not wide:
            terms = [f"({self._text(operand, places + i, wide)})" for i in range(count)]
            self._define(number, tree(kind, terms), wide)
            return
        # Term by term: the columns that a term reads may be computed for it alone.
        rows = self._declare(step.dtype.name, step.width, True, self.program.varies[number])
        for i in range(count):
            term = f"({self._text(operand, places + i, True)})"
            total = tree(kind, ["@", term]).replace("@", f"{rows.name}[j][e]") if i else term
            self._loop(f"{rows.name}[j][e] = {total};", step.width, True, rows.varies)
        self.rows[number] = rows

    def _keeps_lanes(self, number: int, indices: np.ndarray) -> bool:
        """Whether a wide row has numbers of a value, at indices, that need not change places."""
        step, count = self._step(number), len(indices)
        if self._width(number) == 1 or not self._is_wide(number):
            return True
        if step is not None and step.name == "take":
            return self._keeps_lanes(step.operands[0], np.asarray(step.params, np.int64)[indices])
        if step is not None and step.name in FUNCTIONS and not self._is_kept(number):
            return all(self._keeps_lanes(i, indices) for i in step.operands)
        starts = indices[::_BLOCK]
        in_order = np.repeat(starts, _BLOCK)[:count] + np.arange(count) % _BLOCK
        is_aligned = not (starts % _BLOCK).any() or step is None
        return (is_aligned and np.array_equal(indices, in_order)) or self._is_by_block(indices)

    def _reduce_over_lanes(self, number: int, step: Instruction, kind: str, count: int) -> None:
        """Reduce runs of columns, of which all lanes of a quad have some."""
        dtype, operand = step.dtype.name, step.operands[0]
        if kind not in JOINS or dtype not in ("float32", *HALVES):
            raise Infeasible(f"a {kind} of {dtype} over lanes")
        wide, varies, join = step.width > _MAX_NARROW, self.program.varies[number], JOINS[kind]
        rows = self._declare(dtype, step.width, wide, varies)
        neutral = f"neutral_of<{join}, float>()"
        for q in range(step.width):
            term = f"({self._text(operand, q * count + np.arange(count), True)})"
            if count % _BLOCK:
                term = f"({_COLUMN} < {count} ? {term} : {neutral})"
            total = self._declare(dtype, 1, False, varies)
            if self.exact:
                self._join_in_order(total, term, kind, _blocks(count))
            else:
                place = f"{total.name}[{'e / 2' if varies else '0'}][0]"
                self._narrow_loop(f"{total.name}[k][q] = {neutral};", 1, varies)
                self._loop(f"{place} = join<{join}>({place}, {term});", count, True, varies)
                line = f"{total.name}[k][q] = quad_join<{join}>({total.name}[k][q]);"
                self._narrow_loop(line, 1, varies)
            target = f"{rows.name}[k][{q}]"
            if wide:  # one lane of the quad has the column
                target = f"if (t == {q % _BLOCK // 2}) {rows.name}[{q // _BLOCK}][2 * k + {q % 2}]"
            self._narrow_loop(f"{target} = {total.name}[k][q];", 1, varies)
        self.rows[number] = rows

    def _join_in_order(self, total: Rows, term: str, kind: str, blocks: int) -> None:
        """Reduce in the order of `tree`: neighbouring columns, lanes, and then blocks."""
        join, entries = JOINS[kind], 2 if total.varies else 1
        self.lines += [
            "{",
            f"float parts[{entries}][{blocks}], pair[2];",
            f"{_UNROLL} for (int k = 0; k < {entries}; ++k) "
            f"{_UNROLL} for (int j = 0; j < {blocks}; ++j) {{",
            f"{_UNROLL} for (int c = 0; c < 2; ++c) {{",
            f"const int e = 2 * k + c; pair[c] = {term};",
            "}",
            f"parts[k][j] = quad_join<{join}>(join<{join}>(pair[0], pair[1]));",
            "}",
        ]
        sum_of_blocks = tree(kind, [f"parts[k][{j}]" for j in range(blocks)])
        self._narrow_loop(f"{total.name}[k][q] = {sum_of_blocks};", 1, total.varies)
        self.lines.append("}")

    # --- Products --------------------------------------------------------------------------------

    def _dot(self, number: int, step: Instruction) -> None:
        """Append a product of rows with a shared matrix."""
        columns = dot_sizes(self.program, step)[1]
        count = step.width // columns
        pieces = [self._product(step, i, 0, columns) for i in range(count)]
        if count == 1:
            self.rows[number] = pieces[0]
            return
        dtype, wide = step.dtype.name, step.width > _MAX_NARROW
        places = np.arange(columns)
        if wide and columns % _BLOCK:
            self._write_scratch([(i * columns, rows) for i, rows in enumerate(pieces)], dtype)
            self.rows[number] = self._read_scratch(dtype, np.arange(step.width), True)
            return
        texts = [self._row_text(rows, dtype, places, wide) for rows in pieces]
        joined = self._declare(dtype, step.width, wide, True)
        for i, text in enumerate(texts):
            start = i * columns
            element = f"[j + {start // _BLOCK}][e]" if wide else f"[k][{start} + q]"
            self._loop(f"{joined.name}{element} = {text};", columns, wide, True)
        self.rows[number] = joined

    def _method(self, step: Instruction) -> str:
        """Return what computes a product: ``"scalar"`` code, a ``"quad"`` or ``"tensor"`` cores."""
        inner, columns = dot_sizes(self.program, step)
        is_small = not on_tensor_cores(self.program, step)
        if inner <= _MAX_SCALAR_TERMS or (is_small and inner <= _MAX_NARROW):
            return "scalar"
        in_order = self.exact and is_small
        return "quad" if columns <= _MAX_SCALAR_TERMS and not in_order else "tensor"

    def _product_text(self, number: int, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of a product of which only the columns that are read are computed."""
        columns = dot_sizes(self.program, step)[1]
        start = int(indices.min()) // _BLOCK * _BLOCK
        stop = min(-(-int(indices.max() + 1) // _BLOCK) * _BLOCK, step.width)
        row, first = divmod(start, columns)
        if stop - start > _MAX_STORED or first + stop - start > columns:
            raise Infeasible(f"a product whose reader takes {stop - start} numbers at once")
        key = "product", number, start, stop
        if key not in self.moved:
            self.moved[key] = self._product(step, row, first, stop - start)
        return self._row_text(self.moved[key], step.dtype.name, indices - start, wide)

    def _product(self, step: Instruction, row: int, first: int, count: int) -> Rows:
        """Return columns of the product of a row of the left operand.

        Args:
            step: The product.
            row: The row, of those that an entry has.
            first: The first column, a multiple of eight.
            count: The number of columns.
        """
        left, right = step.operands
        if self.program.varies[right] or not self.program.varies[left]:
            raise Infeasible("a product whose matrix is not shared")
        inner, columns = dot_sizes(self.program, step)
        self.work += count * inner / 8
        indices, places = row * inner + np.arange(inner), first + np.arange(count)
        method = self._method(step)
        if method == "scalar":
            return self._scalar_product(step, row, places)
        if method == "quad":
            return self._few_columns(step, indices, columns)
        if self.exact and not on_tensor_cores(self.program, step):
            raise Infeasible(f"a product of {inner} terms in an order of its own")
        array, *strides = matrix_layout(self.program, step)
        precise = "true" if self.precise else "false"
        key = array, *strides, inner, columns
        # Products with the same matrix share one copy of it in shared memory. The copy is padded
        # to blocks of 8 x 8, the fragments that tensor cores read.
        if key not in self.matrix_offsets:
            kind = stored_type(self.program.inputs[array].dtype.name)
            self.matrix_offsets[key] = self.matrix_size
            self.matrices.append(
                f"load_matrix<{inner}, {columns}, {precise}>(static_cast<const {kind}*>"
                f"(in.at[{array}]), {', '.join(map(str, strides))}, matrices + {self.matrix_size});"
            )
            self.matrix_size += _blocks(inner) * _blocks(columns) * _BLOCK * _BLOCK
        text = self._text(left, indices, True)
        if inner % _BLOCK:  # what is beyond the row may be no number
            text = f"({_COLUMN} < {inner} ? {text} : 0.0f)"
        rows = self._declare(step.dtype.name, count, True, True)
        offset = self.matrix_offsets[key] + first // _BLOCK * _BLOCK * _BLOCK
        self.lines.append(
            f"multiply_tile<{_blocks(inner)}, {_blocks(columns)}, {precise}>(matrices + {offset}, "
            f"[&](int j, int e) {{ return static_cast<float>({text}); }}, {rows.name});"
        )
        self.phase += 1
        return rows

    def _scalar_product(self, step: Instruction, row: int, places: np.ndarray) -> Rows:
        """Return columns of a product with a matrix of few rows."""
        wide = len(places) > _MAX_NARROW
        text = self._scalar_text(step, row, places, wide)
        rows = self._declare(step.dtype.name, len(places), wide, True)
        self._loop(
            f"{rows.name}{'[j][e]' if wide else '[k][q]'} = {text};", len(places), wide, True
        )
        return rows

    def _scalar_text(self, step: Instruction, row: int, places: np.ndarray, wide: bool) -> str:
        """Return columns of a product with a matrix of few rows, as C++."""
        left, right = step.operands
        inner, columns = dot_sizes(self.program, step)
        terms = []
        for i in range(inner):
            x = self._text(left, np.full(len(places), row * inner + i), wide)
            terms.append(f"({x}) * ({self._text(right, i * columns + places, wide)})")
        return f"({' + '.join(terms)})"

    def _few_columns(self, step: Instruction, indices: np.ndarray, columns: int) -> Rows:
        """Return a product with a matrix of few columns, each a sum over the lanes of a quad."""
        left, right = step.operands
        inner, places = len(indices), np.arange(len(indices))
        x = self._text(left, indices, True)
        weights = [self._text(right, places * columns + q, True) for q in range(columns)]
        rows = self._declare(step.dtype.name, columns, False, True)
        self._narrow_loop(f"{rows.name}[k][q] = 0;", columns, True)
        inside = "" if inner % _BLOCK == 0 else f"if ({_COLUMN} < {inner}) "
        for q, weight in enumerate(weights):
            self._loop(f"{inside}{rows.name}[e / 2][{q}] += ({x}) * ({weight});", inner, True, True)
        line = f"{rows.name}[k][q] = quad_join<Join::kSum>({rows.name}[k][q]);"
        self._narrow_loop(line, columns, True)
        return rows

    # --- Results ---------------------------------------------------------------------------------

    def _store(self, number: int) -> None:
        """Append the code that stores a result, or fills the tile of a reduced one."""
        output = self.program.outputs[number]
        if output.dest == "all":
            self._accumulate(number)
            return
        value, width, dtype = output.value, self._width(output.value), self._dtype(output.value)
        wide = width > _MAX_NARROW or self._is_wide(value)
        by_entry = output.dest == "edge"
        if by_entry:
            kind, array = STORED_TYPES[dtype], number + self.first
            base = f"row_of<{kind}, {width}>(out.at[{number}], entries[k].place)"
            element = f"cast<{kind}>(entries[k].valid() ? {{}} : 0)"
            condition = "entries[k].there()"
        else:
            if any(self.program.outputs[i].value == value for i in self._earlier_tiles(number)):
                return
            kind, tile = "float", self.tile_of[value]
            base = f"Tile{tile}::row(memory, g + 8 * k)"
            element, condition = "static_cast<float>({})", "true"
        if not wide:
            text = self._text(value, np.arange(width), False)
            condition = f"t == 0 && {condition}" if condition != "true" else "t == 0"
            line = f"if ({condition}) ({base})[q] = {element.format(text)};"
            self._narrow_loop(line, width, True)
            return
        word = 2  # rows of tiles are padded
        if by_entry:
            word = math.gcd(2, width) if dtype != "bool" else 1
            self.words[array] = max(self.words[array], word * BYTES[dtype])
        # Chunk by chunk, so that the inputs and products of one are not in registers for another.
        for start in range(0, width, _CHUNK):
            columns = np.arange(start, min(start + _CHUNK, width))
            text = self._text(value, columns, True)
            limit = len(columns) if by_entry else _blocks(len(columns)) * _BLOCK
            call = f"store_pair<{limit}, {word}>({condition}, {base} + {start}"
            self._store_pairs(kind, len(columns), element.format(text), call)
        self.work += 2 * width

    def _store_pairs(self, kind: str, width: int, number: str, call: str) -> None:
        """Append a call for each two neighbouring numbers of a wide row."""
        self.lines += [
            f"{_UNROLL} for (int j = 0; j < {_blocks(width)}; ++j) "
            f"{_UNROLL} for (int k = 0; k < 2; ++k) {{",
            f"{kind} pair[2];",
            f"{_UNROLL} for (int c = 0; c < 2; ++c) {{",
            f"const int e = 2 * k + c; pair[c] = {number};",
            "}",
            f"{call}, 8 * j + 2 * t, pair);",
            "}",
        ]

    def _accumulate(self, number: int) -> None:
        """Append the code that adds a result to the sum over all entries."""
        value = self.program.outputs[number].value
        place = f"static_cast<float*>(out.at[{number}]) + static_cast<int64_t>(blockIdx.x) * "
        products = self._outer_products(value, np.arange(self._width(value)))
        if products:
            self._accumulate_outer(products, f"{place}{self._width(value)}")
            return
        width = self._width(value)
        wide = width > _MAX_NARROW or self._is_wide(value)
        if width > _MAX_STORED:
            raise Infeasible(f"a sum over all entries of {width} numbers")
        name = f"sum{len(self.sums)}"
        blocks, elements = (_blocks(width), 2) if wide else (1, width)
        self.sums.append(f"float {name}[{blocks}][{elements}];")
        self.sum_registers += blocks * elements
        self.block_memory = max(self.block_memory, self.warps * width)
        text = self._text(value, np.arange(width), wide)
        entry, element = ("e / 2", "[j][e % 2]") if wide else ("k", "[0][q]")
        line = f"sums.{name}{element} += entries[{entry}].valid() ? static_cast<float>({text}) : 0;"
        self._loop(line, width, wide, True)
        is_wide = "true" if wide else "false"
        self.finish.append(
            f"store_columns<{self.warps}, {width}, {is_wide}>({place}{width}, block, sums.{name});"
        )

    def _outer_products(self, number: int, indices: np.ndarray) -> list[_Factors]:
        """Return the outer products of which a value, at indices, is the sum; none if it is not."""
        step = self._step(number)
        if step is None or len(indices) != step.width:
            return []
        if step.name == "take":
            return self._outer_products(
                step.operands[0], np.asarray(step.params, np.int64)[indices]
            )
        if step.name == "add":
            terms = [self._outer_products(operand, indices) for operand in step.operands]
            return [term for products in terms for term in products] if all(terms) else []
        if step.name != "outer" or not on_tensor_cores(self.program, step):
            return []
        count, rows, columns = outer_sizes(self.program, step)
        factors = [_Factor(i, n) for i, n in zip(step.operands, (rows, columns), strict=True)]
        in_order = np.arange(step.width).reshape(rows, columns)
        if np.array_equal(indices, in_order.ravel()):
            return [_Factors(count, *factors)]
        is_transposed = np.array_equal(indices, in_order.T.ravel())
        return [_Factors(count, *reversed(factors))] if is_transposed else []

    def _accumulate_outer(self, products: Sequence[_Factors], place: str) -> None:
        """Append products of rows of all warps of a block, with entries as the inner axis."""
        rows, columns = products[0].left.width, products[0].right.width
        if any((x.left.width, x.right.width) != (rows, columns) for x in products):
            raise Infeasible("a sum of outer products of several shapes")
        name = f"sum{len(self.sums)}"
        fragments = -(-(-(-rows // 16) * _blocks(columns)) // self.warps)
        self.sums.append(f"float {name}[{fragments}][4];")
        self.sum_registers += 4 * fragments
        precise = "true" if self.precise else "false"
        # A stride of 8 modulo 32 words puts the rows of four entries into different banks.
        strides = [-(-width // WARP) * WARP + 8 for width in (rows, columns)]
        entries = self.warps * TILE_ENTRIES
        starts = 0, entries * strides[0]
        self.block_memory = max(self.block_memory, entries * sum(strides))
        self.phase += 1
        for count, *factors in products:
            for i in range(count):
                for factor, start, stride in zip(factors, starts, strides, strict=True):
                    first = i * factor.width
                    self._put_block_row(factor.operand, first, factor.width, start, stride)
                self.lines += [
                    "__syncthreads();",
                    f"accumulate_outer<{self.warps}, {rows}, {columns}, {strides[0]}, "
                    f"{strides[1]}, {precise}>(block, block + {starts[1]}, sums.{name});",
                    "__syncthreads();",
                ]
            self.work += count * rows * columns / 8
        self.finish.append(f"store_outer<{rows}, {columns}>({place}, sums.{name});")

    def _put_block_row(self, operand: int, first: int, width: int, start: int, stride: int) -> None:
        """Append the code that shows a row of each entry to all warps of the block."""
        wide = width > _MAX_NARROW or self._is_wide(operand)
        text = self._text(operand, first + np.arange(width), wide)
        precise = "true" if self.precise else "false"
        number = f"entries[k].valid() ? Split<{precise}>::kept({text}) : 0"
        row = f"block_row(k, {start}, {stride})"
        if not wide:
            self._narrow_loop(f"if (t == 0) {row}[q] = {number};", width, True)
            return
        limit = _blocks(width) * _BLOCK
        self._store_pairs("float", width, number, f"store_pair<{limit}, 2>(true, {row}")

    def _outer_text(self, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of an outer product of an entry."""
        count, rows, columns = outer_sizes(self.program, step)
        left, right = step.operands
        terms = [
            f"({self._text(left, i * rows + indices // columns, wide)}) * "
            f"({self._text(right, i * columns + indices % columns, wide)})"
            for i in range(count)
        ]
        return f"({' + '.join(terms)})"

    def _earlier_tiles(self, number: int) -> list[int]:
        return [i for i in range(number) if self.program.outputs[i].dest == "row"]


_UNROLL = '_Pragma("unroll")'


def _blocks(width: int) -> int:
    return -(-width // _BLOCK)


def _all(indices: np.ndarray) -> np.ndarray:
    return np.arange(len(indices))


def _lookup(numbers: np.ndarray, variable: str) -> str:
    """Return ``numbers[i]`` as C++ of i, a variable that is constant where loops are unrolled."""
    text = affine(numbers, variable)
    return text or f"lookup<{', '.join(str(int(i)) for i in numbers)}>({variable})"
