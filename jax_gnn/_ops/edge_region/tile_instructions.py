"""Instructions of edge tiles: functions, reductions and products of rows.

See :mod:`jax_gnn._ops.edge_region.tile_codegen` for the layout of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import (
    HALVES,
    JOINS,
    Infeasible,
    dot_sizes,
    elementwise,
    matrix_layout,
    on_tensor_cores,
    product_terms,
    stored_type,
    tree,
)
from jax_gnn._ops.edge_region.row_program import Instruction, RowProgram
from jax_gnn._ops.edge_region.tile_plan import BLOCK, MAX_NARROW, MAX_STORED, blocks_of
from jax_gnn._ops.edge_region.tile_rows import COLUMN, UNROLL, Rows, TileRows
from jax_gnn._ops.edge_region.tile_stages import Staging

_MAX_TERMS = 64  # of a reduction within a lane


class TileInstructions(TileRows):
    """Code of instructions.

    Attributes:
        precise: Whether products have full precision.
        matrices: Lines that load matrices to shared memory.
        matrix_size: Numbers of the matrices.
    """

    def __init__(self, program: RowProgram, *, recompute: bool, staging: Staging) -> None:
        super().__init__(program, recompute=recompute, staging=staging)
        self.precise = any(
            len(x.params) > 1 for x in program.instructions if x.name in ("dot", "outer")
        )
        self.matrices: list[str] = []
        self.matrix_size = 0
        self._matrix_offsets: dict[tuple[int, ...], int] = {}

    def _written_out(self, number: int, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        is_scalar = step.name == "dot" and self.plan.method(step) == "scalar"
        if step.name == "outer" or (is_scalar and number not in self.plan.virtual):
            return self._terms_text(step, indices, wide)
        if step.name == "dot":
            return self._product_text(number, step, indices, wide)
        operands = (f"({self._text(operand, indices, wide)})" for operand in step.operands)
        return elementwise(self.program, step)(*operands)

    def _compute(self, number: int, step: Instruction) -> None:
        """Append the code of an instruction."""
        if step.name == "concatenate":
            self._concatenate(number, step)
        elif step.name == "reduce":
            self._reduce(number, step)
        elif step.name == "dot":
            self._dot(number, step)
        elif step.name == "outer":
            wide = step.width > MAX_NARROW
            self._define(number, self._terms_text(step, np.arange(step.width), wide), wide)
        else:
            wide = self.plan.is_wide(number)
            expression = elementwise(self.program, step)
            indices = np.arange(step.width)
            texts = [f"({self._text(i, indices, wide)})" for i in step.operands]
            self._define(number, expression(*texts), wide)

    def _concatenate(self, number: int, step: Instruction) -> None:
        widths = [self.plan.width(i) for i in step.operands]
        starts = np.cumsum([0, *widths])[:-1].tolist()
        wide = self.plan.is_wide(number)
        dtype, varies = step.dtype_name, self.program.varies[number]
        # A text may append the lines of a load or a move, which precede the loop that reads them.
        texts = [self._text(i, np.arange(self.plan.width(i)), wide) for i in step.operands]
        if not wide or all(start % BLOCK == 0 for start in starts):
            self.rows[number] = self._joined(dtype, starts, widths, texts, wide, varies)
            return
        pieces = []
        for start, operand, text in zip(starts, step.operands, texts, strict=True):
            piece = self._declare(dtype, self.plan.width(operand), True, varies)
            self._loop(f"{piece.name}[j][e] = {text};", piece.width, True, varies)
            pieces.append((start, piece))
        self._write_scratch(pieces, dtype)
        self.rows[number] = self._read_scratch(dtype, np.arange(step.width), varies)

    def _joined(
        self,
        dtype: str,
        starts: Sequence[int],
        widths: Sequence[int],
        texts: Sequence[str],
        wide: bool,
        varies: bool,
    ) -> Rows:
        """Return rows of the numbers of several texts, in a wide row from whole blocks on."""
        rows = self._declare(dtype, sum(widths), wide, varies)
        for start, width, text in zip(starts, widths, texts, strict=True):
            element = f"[j + {start // BLOCK}][e]" if wide else f"[k][{start} + q]"
            self._loop(f"{rows.name}{element} = {text};", width, wide, varies)
        return rows

    def _reduce(self, number: int, step: Instruction) -> None:
        kind, count, operand = str(step.params[0]), int(step.params[1]), step.operands[0]
        wide, places = step.width > MAX_NARROW, np.arange(step.width) * count
        in_lanes = not self.plan.is_wide(operand) or (
            wide
            and (
                self.plan.keeps_lanes(operand, places)
                or not self.plan.keeps_lanes(operand, np.arange(count))
            )
        )
        if not in_lanes:
            self._reduce_over_lanes(number, step, kind, count)
            return
        if count > _MAX_TERMS:
            raise Infeasible(f"a reduction over {count} numbers within a lane")
        if self.plan.exact or not wide:
            terms = [f"({self._text(operand, places + i, wide)})" for i in range(count)]
            self._define(number, tree(kind, terms), wide)
            return
        # Term by term: the columns that a term reads may be computed for it alone.
        rows = self._declare(step.dtype_name, step.width, True, self.program.varies[number])
        for i in range(count):
            term = f"({self._text(operand, places + i, True)})"
            total = tree(kind, ["@", term]).replace("@", f"{rows.name}[j][e]") if i else term
            self._loop(f"{rows.name}[j][e] = {total};", step.width, True, rows.varies)
        self.rows[number] = rows

    def _reduce_over_lanes(self, number: int, step: Instruction, kind: str, count: int) -> None:
        """Reduce runs of columns, of which all lanes of a quad have some."""
        dtype, operand = step.dtype_name, step.operands[0]
        if kind not in JOINS or dtype not in ("float32", *HALVES):
            raise Infeasible(f"a {kind} of {dtype} over lanes")
        wide, varies, join = step.width > MAX_NARROW, self.program.varies[number], JOINS[kind]
        rows = self._declare(dtype, step.width, wide, varies)
        neutral = f"neutral_of<{join}, float>()"
        for q in range(step.width):
            term = f"({self._text(operand, q * count + np.arange(count), True)})"
            if count % BLOCK:
                term = f"select({COLUMN} < {count}, static_cast<float>({term}), {neutral})"
            total = self._declare(dtype, 1, False, varies)
            if self.plan.exact:
                self._join_in_order(total, term, kind, blocks_of(count))
            else:
                place = f"{total.name}[{'e / 2' if varies else '0'}][0]"
                self._narrow_loop(f"{total.name}[k][q] = {neutral};", 1, varies)
                self._loop(f"{place} = join<{join}>({place}, {term});", count, True, varies)
                line = f"{total.name}[k][q] = quad_join<{join}>({total.name}[k][q]);"
                self._narrow_loop(line, 1, varies)
            target = f"{rows.name}[k][{q}]"
            if wide:  # one lane of the quad has the column
                target = f"if (t == {q % BLOCK // 2}) {rows.name}[{q // BLOCK}][2 * k + {q % 2}]"
            self._narrow_loop(f"{target} = {total.name}[k][q];", 1, varies)
        self.rows[number] = rows

    def _join_in_order(self, total: Rows, term: str, kind: str, blocks: int) -> None:
        """Reduce in the order of `tree`: neighbouring columns, lanes, and then blocks."""
        join, entries = JOINS[kind], 2 if total.varies else 1
        self.lines += [
            "{",
            f"float parts[{entries}][{blocks}], pair[2];",
            f"{UNROLL} for (int k = 0; k < {entries}; ++k) "
            f"{UNROLL} for (int j = 0; j < {blocks}; ++j) {{",
            f"{UNROLL} for (int c = 0; c < 2; ++c) {{",
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
        dtype, wide = step.dtype_name, step.width > MAX_NARROW
        places = np.arange(columns)
        if wide and columns % BLOCK:
            self._write_scratch([(i * columns, rows) for i, rows in enumerate(pieces)], dtype)
            self.rows[number] = self._read_scratch(dtype, np.arange(step.width), True)
            return
        texts = [self._row_text(rows, dtype, places, wide) for rows in pieces]
        starts = [i * columns for i in range(count)]
        self.rows[number] = self._joined(dtype, starts, [columns] * count, texts, wide, True)

    def _product_text(self, number: int, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of a product of which only the columns that are read are computed."""
        columns = dot_sizes(self.program, step)[1]
        start = int(indices.min()) // BLOCK * BLOCK
        stop = min(-(-int(indices.max() + 1) // BLOCK) * BLOCK, step.width)
        row, first = divmod(start, columns)
        if stop - start > MAX_STORED or first + stop - start > columns:
            raise Infeasible(f"a product whose reader takes {stop - start} numbers at once")
        key = "product", number, start, stop
        if key not in self._moved:
            self._moved[key] = self._product(step, row, first, stop - start)
        return self._row_text(self._moved[key], step.dtype_name, indices - start, wide)

    def _check_shared(self, step: Instruction) -> None:
        left, right = step.operands
        if self.program.varies[right] or not self.program.varies[left]:
            raise Infeasible("a product whose matrix is not shared")

    def _matrix_layout(self, step: Instruction) -> tuple[int, ...]:
        """Return the layout of the matrix of a product on tensor cores, see `matrix_layout`."""
        self._check_shared(step)
        if self.plan.exact and not on_tensor_cores(self.program, step):
            inner = dot_sizes(self.program, step)[0]
            raise Infeasible(f"a product of {inner} terms in an order of its own")
        return matrix_layout(self.program, step)

    def _product(self, step: Instruction, row: int, first: int, count: int) -> Rows:
        """Return columns of the product of a row of the left operand.

        Args:
            step: The product.
            row: The row, of those that an entry has.
            first: The first column, a multiple of eight.
            count: The number of columns.
        """
        self._check_shared(step)
        left = step.operands[0]
        inner, columns = dot_sizes(self.program, step)
        indices, places = row * inner + np.arange(inner), first + np.arange(count)
        method = self.plan.method(step)
        if method == "scalar":
            return self._scalar_product(step, row * columns + places)
        if method == "quad":
            return self._few_columns(step, indices, columns)
        array, *strides = self._matrix_layout(step)
        precise = "true" if self.precise else "false"
        start, down, across, *groups = strides
        key = array, start, down, across, *groups, inner, columns
        # Products with the same matrix, or its transpose, share one copy of it in shared memory,
        # padded to blocks of 8 x 8, the fragments that tensor cores read.
        swapped = array, start, across, down, inner, 0, columns, inner
        is_transposed = groups == [columns, 0] and swapped in self._matrix_offsets
        if not is_transposed and key not in self._matrix_offsets:
            kind = stored_type(self.program.inputs[array].dtype_name)
            self._matrix_offsets[key] = self.matrix_size
            self.matrices.append(
                f"load_matrix<{inner}, {columns}, {precise}>(static_cast<const {kind}*>"
                f"(in.at[{array}]), {', '.join(map(str, strides))}, matrices + {self.matrix_size});"
            )
            self.matrix_size += blocks_of(inner) * blocks_of(columns) * BLOCK * BLOCK
        text = self._text(left, indices, True)
        if inner % BLOCK:  # what is beyond the row may be no number
            text = f"or_zero({COLUMN} < {inner}, static_cast<float>({text}))"
        rows = self._declare(step.dtype_name, count, True, True)
        if is_transposed:  # the columns of the product are rows of what is in memory
            offset, blocks, transposed = self._matrix_offsets[swapped], blocks_of(inner), "true"
            offset += first * BLOCK * blocks
        else:
            offset, blocks, transposed = self._matrix_offsets[key], blocks_of(columns), "false"
            offset += first * BLOCK
        self.lines.append(
            f"multiply_tile<{blocks_of(inner)}, {blocks}, {precise}, {transposed}>"
            f"(matrices + {offset}, [&](int j, int e) {{ return static_cast<float>({text}); }}, "
            f"{rows.name});"
        )
        self.phase += 1
        return rows

    def _scalar_product(self, step: Instruction, indices: np.ndarray) -> Rows:
        """Return numbers of a product with a matrix of few rows."""
        width, wide = len(indices), len(indices) > MAX_NARROW
        text = self._terms_text(step, indices, wide)
        rows = self._declare(step.dtype_name, width, wide, True)
        self._loop(f"{rows.name}{'[j][e]' if wide else '[k][q]'} = {text};", width, wide, True)
        return rows

    def _terms_text(self, step: Instruction, indices: np.ndarray, wide: bool) -> str:
        """Return numbers of a product as C++, all terms of which a lane adds up."""
        left, right = step.operands
        terms = [
            f"({self._text(left, i, wide)}) * ({self._text(right, j, wide)})"
            for i, j in product_terms(self.program, step, indices)
        ]
        return f"({' + '.join(terms)})"

    def _few_columns(self, step: Instruction, indices: np.ndarray, columns: int) -> Rows:
        """Return a product with a matrix of few columns, each a sum over the lanes of a quad."""
        left, right = step.operands
        inner, places = len(indices), np.arange(len(indices))
        x = self._text(left, indices, True)
        weights = [self._text(right, places * columns + q, True) for q in range(columns)]
        rows = self._declare(step.dtype_name, columns, False, True)
        self._narrow_loop(f"{rows.name}[k][q] = 0;", columns, True)
        inside = "true" if inner % BLOCK == 0 else f"{COLUMN} < {inner}"
        for q, weight in enumerate(weights):
            term = f"or_zero({inside}, static_cast<float>(({x}) * ({weight})))"
            self._loop(f"{rows.name}[e / 2][{q}] += {term};", inner, True, True)
        line = f"{rows.name}[k][q] = quad_join<Join::kSum>({rows.name}[k][q]);"
        self._narrow_loop(line, columns, True)
        return rows
