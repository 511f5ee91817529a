"""Edge tiles: CUDA code that computes the rows of 16 entries of a warp together, with products.

Rows lie as tensor cores hold them. Lane ``4 g + t`` of a warp has columns ``8 j + 2 t`` and
``8 j + 2 t + 1`` of entries g and g + 8, for each *block* j of eight columns: a *wide* row is an
array ``x[j][e]``, where e counts the two columns of the first entry, then those of the second one.
The accumulators of a product are then the operands of the next one, and a row of numbers moves
between lanes only where a ``take`` asks for another order. Rows of at most eight numbers are
*narrow*: all four lanes of a quad hold both entries' rows whole, as ``x[k][q]``.

Each value is computed once, in the order of the program, and what entries share is loaded where it
is used. The code fills tiles of shared memory with the rows that the walk reduces
(:mod:`jax_gnn._ops.edge_region.tile_kernel`), and stores results by entry itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    STORED_TYPES,
    TILE_ENTRIES,
    WARP,
    Infeasible,
    on_tensor_cores,
    outer_sizes,
)
from jax_gnn._ops.edge_region.row_program import RowProgram
from jax_gnn._ops.edge_region.tile_instructions import TileInstructions
from jax_gnn._ops.edge_region.tile_plan import BLOCK, CHUNK, MAX_NARROW, blocks_of
from jax_gnn._ops.edge_region.tile_rows import UNROLL
from jax_gnn._ops.edge_region.tile_stages import Staging

MAX_REGISTERS = 400
"""Registers of the rows of a lane, as counted here."""

_MAX_SHOWN = 128  # columns of a row that a block's warps are shown at a time
_MAX_COLUMNS = 128  # of a sum over all entries that is no sum of products


class _Factor(NamedTuple):
    """A side of an outer product: a value, and the width of its rows."""

    operand: int
    width: int


class _Factors(NamedTuple):
    """An outer product, a sum over `num_rows` rows of both factors."""

    num_rows: int
    left: _Factor
    right: _Factor


def tile_code(program: RowProgram, staging: Staging, own_sums: bool) -> TileCodegen:
    """Return the code of a program whose inputs are staged in some way.

    Args:
        program: The program.
        staging: Inputs that are staged.
        own_sums: Whether each warp sums outer products in registers.

    Raises:
        Infeasible: A value, or the whole, is beyond what a warp can hold.
    """
    code = TileCodegen(program, recompute=False, staging=staging, own_sums=own_sums)
    # Gradients read rows of the forward pass again. What one row in registers tells is computed
    # again from it where all do not fit.
    if code.registers > MAX_REGISTERS:
        code = TileCodegen(program, recompute=True, staging=staging, own_sums=own_sums)
    if code.registers > MAX_REGISTERS:
        raise Infeasible(f"rows of entries that take {code.registers} registers")
    return code


class TileCodegen(TileInstructions):
    """The code of the rows of 16 entries: the body of the function ``compute`` of a text.

    Attributes:
        tiles: Values of the tiles that the code fills, in their order.
        sums: Members of the struct of sums over all entries of a block.
        finish: Lines that write these sums.
        outer_sums: Rows and columns of sums of outer products.
        own_sums: Whether each warp has these sums in registers; else a block has them in shared
            memory.
        block_memory: Words of shared memory for each warp, for factors of outer products.
        scratch: Numbers between rows of the warp's scratch memory; 0 if there is none.
        registers: Registers of a lane for rows, where most are alive.
    """

    def __init__(
        self, program: RowProgram, *, recompute: bool, staging: Staging, own_sums: bool
    ) -> None:
        super().__init__(program, recompute=recompute, staging=staging)
        self.own_sums = own_sums
        self.sums: list[str] = []
        self.finish: list[str] = []
        self.block_memory = 0
        self.outer_sums: list[tuple[int, int]] = []
        self._sum_registers = 0
        self._products: dict[int, list[_Factors]] = {}  # by result
        self.tiles: list[int] = []
        for value in program.values:
            if value.dtype_name in ("float64", "int64"):
                raise Infeasible(f"a tile with {value.dtype}")
        self._generate()
        self.registers = self._registers() + self._sum_registers
        width = self.scratch_width
        self.scratch = -(-width // BLOCK) * BLOCK + 4 if width else 0

    def _generate(self) -> None:
        program = self.program
        for step in program.instructions:  # before rows are written, which takes much longer
            if step.name == "dot" and self.plan.method(step) == "tensor":
                self._matrix_layout(step)
        for number, output in enumerate(program.outputs):
            if output.dest == "all":
                self._find_products(number)
        if self._sum_registers > MAX_REGISTERS:
            raise Infeasible(f"sums over entries that take {self._sum_registers} registers")
        # In the order of the program, so that gradients follow the rows that they need. Results are
        # stored as soon as they are known: their registers are free again.
        ready: dict[int, list[int]] = {}
        for number, output in enumerate(program.outputs):
            ready.setdefault(output.value, []).append(number)
        for index in range(len(program.values)):
            if index >= self.plan.first and self.plan.is_kept(index):
                self._rows_of(index)
            for number in ready.get(index, ()):
                self._store(number)
        # A stage may be overwritten once it has been read; of two, the other one is free at once.
        reads = [i for i, line in enumerate(self.lines, 1) if "staged_row<" in line]
        self.lines.insert(reads[-1] if reads and self.staging.stages == 1 else 0, "prefetch();")

    # --- Results ---------------------------------------------------------------------------------

    def _store(self, number: int) -> None:
        """Append the code that stores a result, or fills the tile of a reduced one."""
        output = self.program.outputs[number]
        if output.dest == "all":
            self._accumulate(number)
            return
        value = output.value
        width, dtype = self.plan.width(value), self.plan.dtype(value)
        wide = width > MAX_NARROW or self.plan.is_wide(value)
        by_entry = output.dest == "edge"
        if by_entry:
            kind, array = STORED_TYPES[dtype], number + self.plan.first
            base = f"row_of<{kind}, {width}>(out.at[{number}], entries[k].place)"
            element = f"cast<{kind}>(or_zero(entries[k].valid(), {{}}))"
            condition = "entries[k].there()"
        else:
            if value in self.tiles:  # another reduction of the same rows
                return
            base = f"Tile{len(self.tiles)}::row(memory, g + 8 * k)"
            self.tiles.append(value)
            kind = "float"
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
        for start in range(0, width, CHUNK):
            columns = np.arange(start, min(start + CHUNK, width))
            text = self._text(value, columns, True)
            limit = len(columns) if by_entry else blocks_of(len(columns)) * BLOCK
            call = f"store_pair<{limit}, {word}>({condition}, {base} + {start}"
            self._store_pairs(kind, len(columns), element.format(text), call)

    def _store_pairs(self, kind: str, width: int, number: str, call: str) -> None:
        """Append a call for each two neighbouring numbers of a wide row."""
        self.lines += [
            f"{UNROLL} for (int j = 0; j < {blocks_of(width)}; ++j) "
            f"{UNROLL} for (int k = 0; k < 2; ++k) {{",
            f"{kind} pair[2];",
            f"{UNROLL} for (int c = 0; c < 2; ++c) {{",
            f"const int e = 2 * k + c; pair[c] = {number};",
            "}",
            f"{call}, 8 * j + 2 * t, pair);",
            "}",
        ]

    def _accumulate(self, number: int) -> None:
        """Append the code that adds a result to the sum over all entries."""
        value = self.program.outputs[number].value
        place = f"static_cast<float*>(out.at[{number}]) + static_cast<int64_t>(blockIdx.x) * "
        if self._products[number]:
            self._accumulate_outer(self._products[number], f"{place}{self.plan.width(value)}")
            return
        width = self.plan.width(value)
        wide = width > MAX_NARROW or self.plan.is_wide(value)
        if width > _MAX_COLUMNS:
            raise Infeasible(f"a sum over all entries of {width} numbers")
        name = f"sum{len(self.sums)}"
        blocks, elements = (blocks_of(width), 2) if wide else (1, width)
        self.sums.append(f"float {name}[{blocks}][{elements}];")
        self._sum_registers += blocks * elements
        self.block_memory = max(self.block_memory, width)
        text = self._text(value, np.arange(width), wide)
        entry, element = ("e / 2", "[j][e % 2]") if wide else ("k", "[0][q]")
        term = f"or_zero(entries[{entry}].valid(), static_cast<float>({text}))"
        self._loop(f"sums.{name}{element} += {term};", width, wide, True)
        is_wide = "true" if wide else "false"
        self.finish.append(
            f"store_columns<kWarps, {width}, {is_wide}>({place}{width}, block, sums.{name});"
        )

    def _find_products(self, number: int) -> None:
        """Find the outer products of which a result is the sum, and the registers of the sum."""
        value = self.program.outputs[number].value
        products = self._outer_products(value, np.arange(self.plan.width(value)))
        self._products[number] = products
        if products and self.own_sums:
            rows, columns = products[0].left.width, products[0].right.width
            # 4 numbers of a fragment are always alive; few of rows are.
            self._sum_registers += 6 * -(-rows // 16) * blocks_of(columns)

    def _outer_products(self, number: int, indices: np.ndarray) -> list[_Factors]:
        """Return the outer products of which a value, at indices, is the sum; none if it is not."""
        step = self.plan.step(number)
        if step is None or len(indices) != step.width:
            return []
        if step.name == "take":
            return self._outer_products(step.operands[0], step.places[indices])
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
        """Append products of rows of a warp, or of all warps, with entries as the inner axis."""
        rows, columns = products[0].left.width, products[0].right.width
        if any((x.left.width, x.right.width) != (rows, columns) for x in products):
            raise Infeasible("a sum of outer products of several shapes")
        if columns > _MAX_SHOWN and rows < columns:  # the wider side is shown in pieces
            starts = range(0, columns, _MAX_SHOWN)
            pieces = [(start, min(_MAX_SHOWN, columns - start)) for start in starts]
        else:
            pieces = [(0, columns)]
        precise = "true" if self.precise else "false"
        # A stride of 8 modulo 32 words puts the rows of four entries into different banks.
        strides = [-(-width // WARP) * WARP + 8 for width in (rows, pieces[0][1])]
        right = f"kWarps * {TILE_ENTRIES * strides[0]}"
        call = "accumulate_own_outer<" if self.own_sums else "accumulate_outer<kWarps, "
        barrier = "__syncwarp();" if self.own_sums else "__syncthreads();"
        self.block_memory = max(self.block_memory, TILE_ENTRIES * sum(strides))
        sums = []
        for start, width in pieces:
            if self.own_sums:
                fragments = -(-rows // 16) * blocks_of(width)
                name = f"outer{len(self.outer_sums)}"
                self.sums.append(f"float {name}[{fragments}][4];")
                sums.append(f"sums.{name}")
                finish = "store_own_outer"
            else:
                before = (f"outer_words({r}, {c}, kWarps)" for r, c in self.outer_sums)
                sums.append(" + ".join(("block + kOuterSums", *before)))
                finish = "store_outer"
            arguments = "block, " + sums[-1] if self.own_sums else sums[-1]
            self.outer_sums.append((rows, width))
            self.finish.append(
                f"{finish}<kWarps, {rows}, {width}, {columns}>({place} + {start}, {arguments});"
            )
        self.phase += 1
        for count, *factors in products:
            for i, (k, (start, width)) in itertools.product(range(count), enumerate(pieces)):
                if not start:
                    self._put_block_row(factors[0].operand, i * rows, rows, "0", strides[0])
                first = i * columns + start
                self._put_block_row(factors[1].operand, first, width, right, strides[1])
                self.lines += [
                    barrier,
                    f"{call}{rows}, {width}, {strides[0]}, {strides[1]}, "
                    f"{precise}>(block, block + {right}, {sums[k]});",
                    barrier,
                ]

    def _put_block_row(self, operand: int, first: int, width: int, start: str, stride: int) -> None:
        """Append the code that shows a row of each entry to all warps of the block."""
        wide = width > MAX_NARROW or self.plan.is_wide(operand)
        text = self._text(operand, first + np.arange(width), wide)
        precise = "true" if self.precise else "false"
        number = f"or_zero(entries[k].valid(), Split<{precise}>::kept({text}))"
        row = f"block_row(k, {start}, {stride})"
        if not wide:
            self._narrow_loop(f"if (t == 0) {row}[q] = {number};", width, True)
            return
        limit = blocks_of(width) * BLOCK
        self._store_pairs("float", width, number, f"store_pair<{limit}, 2>(true, {row}")
