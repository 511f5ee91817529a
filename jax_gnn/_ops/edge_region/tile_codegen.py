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

import math
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
    Infeasible,
    affine,
    dot_sizes,
    elementwise,
    literal,
    loaded,
    matrix_layout,
    needs_exact_bits,
    on_tensor_cores,
    register_type,
    stored_type,
    tree,
)
from jax_gnn._ops.edge_region.row_program import Input, Instruction, RowProgram

MAX_REGISTERS = 200
"""Registers of the rows of a lane, as counted here."""

_BLOCK = 8  # columns of a block
_MAX_NARROW = 8  # numbers of a narrow row
_MAX_STORED = 128  # numbers of a row in registers; of wider ones, readers compute their part
_CHUNK = 64  # columns of a result that are computed and stored together
_MAX_TERMS = 64  # of a reduction within a lane
_MAX_SCALAR_TERMS = 4  # of a product that takes no tensor cores, and columns of one

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


@dataclass(frozen=True)
class TileCode:
    """Code of the rows of 16 entries.

    Attributes:
        lines: The body of the function ``tile`` of a text.
        matrices: Lines that load matrices to shared memory.
        matrix_size: Numbers of the matrices.
        tables: Definitions of constant arrays.
        tiles: Value and width of each tile that the code fills.
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
    return _TileCodegen(program).code()


class _TileCodegen:
    """The code of one program."""

    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self.first = len(program.inputs)
        self.exact = needs_exact_bits(program)
        self.precise = any(len(x.params) > 1 for x in program.instructions if x.name == "dot")
        self.lines: list[str] = []
        self.tables: list[str] = []
        self.matrices: list[str] = []
        self.matrix_offsets: dict[tuple[int, ...], int] = {}
        self.matrix_size = 0
        self.rows: dict[int, Rows] = {}  # of each value that is in registers
        self.moved: dict[tuple[object, ...], Rows] = {}  # loads and moves, by what they hold
        self.scratch_width = 0
        self.work = 0.0
        arrays = [*program.inputs, *(program.values[output.value] for output in program.outputs)]
        self.words = [array.dtype.itemsize for array in arrays]
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
        # Results are stored as soon as they are known, so that their registers are free again.
        ready: dict[int, list[int]] = {}
        for number, output in enumerate(program.outputs):
            ready.setdefault(max(self._stored_values(output.value), default=-1), []).append(number)
        for index in [-1, *range(len(program.values))]:
            if index >= self.first:
                self._compute(index, program.instructions[index - self.first])
            for number in ready.get(index, ()):
                self._store(number)
        registers = self._registers()
        if registers > MAX_REGISTERS:
            raise Infeasible(f"rows of entries that take {registers} registers")
        scratch = -(-self.scratch_width // _BLOCK) * _BLOCK + 4 if self.scratch_width else 0
        return TileCode(
            lines=tuple(self.lines),
            matrices=tuple(self.matrices),
            matrix_size=self.matrix_size,
            tables=tuple(self.tables),
            tiles=tuple((value, self._width(value)) for value in self.tile_of),
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

    def _stored_values(self, number: int) -> set[int]:
        """Return the inputs, and the instructions with registers, from which a value is read."""
        step = self._step(number)
        if step is None or not self._is_lazy(number):
            return {number}
        return set().union(*(self._stored_values(i) for i in step.operands))

    def _virtual_values(self) -> set[int]:
        """Return the values too wide to be stored, whose readers compute what they read."""
        virtual = set[int]()
        for index, step in enumerate(self.program.instructions, self.first):
            if step.width <= _MAX_STORED or step.name in (
                "take",
                "constant",
                "concatenate",
                "reduce",
            ):
                continue
            if step.name == "dot":
                columns = dot_sizes(self.program, step)[1]
                if columns != step.width and columns % _CHUNK:
                    continue  # the columns of a chunk would be of several rows
            virtual.add(index)
        return virtual

    def _is_wide(self, number: int) -> bool:
        """Whether a value's numbers, wherever they are stored, are spread over lanes."""
        for stored in self._stored_values(number):
            if stored in self.rows:
                if self.rows[stored].is_wide:
                    return True
            elif stored < self.first and self.program.varies[stored]:
                is_wide = self._width(stored) > _MAX_NARROW
                if is_wide:
                    return True
        return False

    def _registers(self) -> int:
        """Return the registers of rows where most are alive."""
        program = self.program
        last: dict[int, int] = {}
        for index, step in enumerate(program.instructions, self.first):
            if not self._is_lazy(index):
                for operand in step.operands:
                    for stored in self._stored_values(operand):
                        last[stored] = index

        def size(number: int) -> int:
            value = program.values[number]
            if isinstance(value, Input) and value.access == "shared":
                return 0
            rows = self.rows.get(number)
            is_wide = rows.is_wide if rows else value.width > _MAX_NARROW
            numbers = 2 * _blocks(value.width) if is_wide else value.width
            return numbers * (2 if program.varies[number] else 1)

        # Inputs are loaded where they are first read.
        start = {i: i for i in last if i >= self.first}
        for index, step in enumerate(program.instructions, self.first):
            for operand in step.operands:
                for stored in self._stored_values(operand):
                    if stored < self.first and not self._is_lazy(index):
                        start.setdefault(stored, index)
        return max(
            (
                sum(size(i) for i in last if start[i] <= index <= last[i])
                + (size(index) if index not in last and not self._is_lazy(index) else 0)
                for index in range(self.first, len(program.values))
            ),
            default=0,
        )

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
        if number in self.virtual:
            return elementwise(self.program, step)(
                *(f"({self._text(operand, indices, wide)})" for operand in step.operands)
            )
        if step.name == "concatenate" and number not in self.rows:
            raise AssertionError("values are computed in order")
        return self._row_text(self.rows[number], self._dtype(number), indices, wide)

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
        key = number, wide, indices.tobytes()
        if key in self.moved:
            return self.moved[key]
        source, count = self.program.inputs[number], len(indices)
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
        """Append the code of an instruction, unless its readers compute it."""
        if self._is_lazy(number):
            return
        if step.name == "concatenate":
            self._concatenate(number, step)
        elif step.name == "reduce":
            self._reduce(number, step)
        elif step.name == "dot":
            self._dot(number, step)
        else:
            wide = step.width > _MAX_NARROW or any(
                self._width(i) == step.width and self._is_wide(i) for i in step.operands
            )
            expression = elementwise(self.program, step)
            indices = np.arange(step.width)
            texts = [f"({self._text(i, indices, wide)})" for i in step.operands]
            self._define(number, expression(*texts), wide)
            self.work += step.width * 2

    def _concatenate(self, number: int, step: Instruction) -> None:
        widths = [self._width(i) for i in step.operands]
        starts = np.cumsum([0, *widths])[:-1].tolist()
        wide = step.width > _MAX_NARROW or any(map(self._is_wide, step.operands))
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
        kind, count = str(step.params[0]), int(step.params[1])
        operand, dtype, width = step.operands[0], step.dtype.name, step.width
        varies = self.program.varies[number]
        wide = width > _MAX_NARROW
        self.work += 2 * width * count
        if wide or not self._is_wide(operand):
            if count > _MAX_TERMS:
                raise Infeasible(f"a reduction over {count} numbers within a lane")
            places = np.arange(width) * count
            if self.exact or not wide:
                terms = [f"({self._text(operand, places + i, wide)})" for i in range(count)]
                self._define(number, tree(kind, terms), wide)
                return
            # Term by term: the columns that a term reads may be computed for it alone.
            rows = self._declare(dtype, width, True, varies)
            for i in range(count):
                term = f"({self._text(operand, places + i, True)})"
                total = tree(kind, ["@", term]).replace("@", f"{rows.name}[j][e]") if i else term
                self._loop(f"{rows.name}[j][e] = {total};", width, True, varies)
            self.rows[number] = rows
            return
        if kind not in JOINS or dtype not in ("float32", *HALVES):
            raise Infeasible(f"a {kind} of {dtype} over lanes")
        join, blocks = JOINS[kind], _blocks(count)
        texts = [self._text(operand, q * count + np.arange(count), True) for q in range(width)]
        rows = self._declare(dtype, width, False, varies)
        neutral = f"neutral_of<{join}, float>()"
        for q, text in enumerate(texts):
            inside = "" if count % _BLOCK == 0 else f"{_COLUMN} < {count}"
            term = f"({inside} ? {text} : {neutral})" if inside else f"({text})"
            place = "e / 2" if varies else "0"
            if self.exact:
                # The order of `tree`: neighbouring columns, lanes, and then blocks.
                self._exact_reduce(rows, q, term, kind, blocks)
                continue
            self._narrow_loop(f"{rows.name}[k][{q}] = {neutral};", 1, varies)
            total = f"{rows.name}[{place}][{q}]"
            self._loop(f"{total} = join<{join}>({total}, {term});", count, True, varies)
            line = f"{rows.name}[k][{q}] = quad_join<{join}>({rows.name}[k][{q}]);"
            self._narrow_loop(line, 1, varies)
        self.rows[number] = rows

    def _exact_reduce(self, rows: Rows, q: int, term: str, kind: str, blocks: int) -> None:
        join, entries = JOINS[kind], 2 if rows.varies else 1
        self.lines += ["{", f"float parts[{entries}][{blocks}], pair[2];"]
        self.lines += [
            f"{_UNROLL} for (int k = 0; k < {entries}; ++k) "
            f"{_UNROLL} for (int j = 0; j < {blocks}; ++j) {{",
            f"{_UNROLL} for (int c = 0; c < 2; ++c) {{",
            f"const int e = 2 * k + c; pair[c] = {term};",
            "}",
            f"parts[k][j] = quad_join<{join}>(join<{join}>(pair[0], pair[1]));",
            "}",
        ]
        total = tree(kind, [f"parts[k][{j}]" for j in range(blocks)])
        self._narrow_loop(f"{rows.name}[k][{q}] = {total};", 1, rows.varies)
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
        small = not on_tensor_cores(self.program, step)
        if inner <= _MAX_SCALAR_TERMS or (small and inner <= _MAX_NARROW):
            return self._scalar_product(step, indices, columns, places)
        if columns <= _MAX_SCALAR_TERMS and not (self.exact and small):
            return self._few_columns(step, indices, columns)
        if small and self.exact:
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
        return rows

    def _scalar_product(
        self, step: Instruction, indices: np.ndarray, columns: int, places: np.ndarray
    ) -> Rows:
        """Return columns of a product with a matrix of few rows."""
        left, right = step.operands
        wide = len(places) > _MAX_NARROW
        terms = []
        for i, index in enumerate(indices.tolist()):
            x = self._text(left, np.full(len(places), index), wide)
            terms.append(f"({x}) * ({self._text(right, i * columns + places, wide)})")
        rows = self._declare(step.dtype.name, len(places), wide, True)
        element = "[j][e]" if wide else "[k][q]"
        self._loop(f"{rows.name}{element} = {' + '.join(terms)};", len(places), wide, True)
        return rows

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
            self.lines += [
                f"{_UNROLL} for (int j = 0; j < {_blocks(len(columns))}; ++j) "
                f"{_UNROLL} for (int k = 0; k < 2; ++k) {{",
                f"{kind} pair[2];",
                f"{_UNROLL} for (int c = 0; c < 2; ++c) {{ const int e = 2 * k + c; "
                f"pair[c] = {element.format(text)}; }}",
                f"store_pair<{limit}, {word}>({condition}, {base} + {start}, 8 * j + 2 * t, pair);",
                "}",
            ]
        self.work += 2 * width

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
