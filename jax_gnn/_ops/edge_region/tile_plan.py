"""Plans of edge tiles: the rows in registers, their layouts, and the units of products.

See :mod:`jax_gnn._ops.edge_region.tile_codegen` for the layout of rows.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.cuda_text import dot_sizes, needs_exact_bits, on_tensor_cores
from jax_gnn._ops.edge_region.row_program import FUNCTIONS, Instruction, RowProgram

BLOCK = 8
"""Columns of a block."""
MAX_NARROW = 8
"""Numbers of a narrow row."""
MAX_STORED = 128
"""Numbers of a row in registers; of wider ones, readers compute what they read."""
CHUNK = 64
"""Columns of a result that are computed and stored together."""
MAX_SCALAR_TERMS = 4
"""Terms of a product that takes no tensor cores, and columns of one that a quad adds up."""

_NEVER_VIRTUAL = ("take", "constant", "concatenate", "reduce")


def blocks_of(width: int) -> int:
    """Return the blocks of a row."""
    return -(-width // BLOCK)


class Order(NamedTuple):
    """Order of the indices of a row's columns.

    Attributes:
        in_runs: Whether each block of columns is a run of the indexed row.
        is_aligned: Whether these runs are blocks.
        by_block: Whether all columns of a block have the same index.
    """

    in_runs: bool
    is_aligned: bool
    by_block: bool

    @classmethod
    def of(cls, indices: np.ndarray) -> Order:
        """Return the order of indices."""
        return _order_of(np.asarray(indices, np.int64).tobytes())


@functools.lru_cache(maxsize=1024)
def _order_of(index_bytes: bytes) -> Order:
    indices = np.frombuffer(index_bytes, np.int64)
    starts = np.repeat(indices[::BLOCK], BLOCK)[: len(indices)]
    in_runs = bool((indices == starts + np.arange(len(indices)) % BLOCK).all())
    is_aligned = in_runs and not (indices[::BLOCK] % BLOCK).any()
    return Order(in_runs, is_aligned, bool((indices == starts).all()))


class TilePlan:
    """Properties of the values of a program.

    Attributes:
        program: The program.
        recompute: Whether functions of one wide row are computed again where they are read.
        first: Index of the first instruction's value.
        exact: Whether another kernel must produce the same bits.
        virtual: Values too wide for registers, of which readers compute what they read.
    """

    def __init__(self, program: RowProgram, *, recompute: bool) -> None:
        self.program, self.recompute = program, recompute
        self.first = len(program.inputs)
        self.exact = needs_exact_bits(program)
        self._layouts: dict[int, bool] = {}
        self._sources: dict[int, frozenset[int]] = {}
        self._readers: dict[int, list[str]] = {}  # names of instructions
        for step in program.instructions:
            for operand in set(step.operands):
                self._readers.setdefault(operand, []).append(step.name)
        for output in program.outputs:
            self._readers.setdefault(output.value, []).append("output")
        self.virtual = self._virtual_values()

    def width(self, number: int) -> int:
        return self.program.values[number].width

    def dtype(self, number: int) -> str:
        return self.program.values[number].dtype_name

    def step(self, number: int) -> Instruction | None:
        """Return the instruction of a value; None for an input."""
        return self.program.instructions[number - self.first] if number >= self.first else None

    def is_lazy(self, number: int) -> bool:
        """Whether a value is in no registers of its own: its readers compute it, or move it."""
        step = self.step(number)
        return step is not None and (step.name in ("take", "constant") or number in self.virtual)

    def _virtual_values(self) -> set[int]:
        """Return the values too wide to be stored, whose readers compute what they read."""
        virtual = set[int]()
        for index, step in enumerate(self.program.instructions, self.first):
            if step.name == "outer" and on_tensor_cores(self.program, step):
                virtual.add(index)
            if step.width <= MAX_STORED or step.name in _NEVER_VIRTUAL:
                continue
            if step.name == "dot":
                columns = dot_sizes(self.program, step)[1]
                if columns != step.width and columns % CHUNK:
                    continue  # the columns of a chunk would be of several rows
            virtual.add(index)
        return virtual

    def is_wide(self, number: int) -> bool:
        """Whether the numbers of a value are spread over the lanes of a quad."""
        if number not in self._layouts:
            self._layouts[number] = self._layout(number)
        return self._layouts[number]

    def _layout(self, number: int) -> bool:
        step, width = self.step(number), self.width(number)
        if step is None:
            return width > MAX_NARROW and self.program.varies[number]
        if step.name == "take":
            return self.is_wide(step.operands[0])
        if step.name == "constant":
            return False
        if width > MAX_NARROW or step.name in ("reduce", "outer"):
            return width > MAX_NARROW
        if step.name == "dot":
            return width == dot_sizes(self.program, step)[1] and self.method(step) == "tensor"
        # A lane computes what it has: the rest of a quad does not need another lane's numbers.
        return any(
            self.is_wide(i) for i in step.operands if self.width(i) == width or step.name[0] == "c"
        )

    def is_kept(self, number: int) -> bool:
        """Whether an instruction has registers from its place in the program to its last reader.

        Others are computed where they are read. Where rows must be computed again, these are the
        functions of a single wide row that is kept itself.
        """
        if self.is_lazy(number):
            return False
        is_free = not self.is_wide(number) or not self.program.varies[number]
        return not self.recompute or is_free or number in self.sources(number)

    def sources(self, number: int) -> frozenset[int]:
        """Return the kept wide rows of which a value is a function."""
        if number not in self._sources:
            self._sources[number] = self._find_sources(number)
        return self._sources[number]

    def _find_sources(self, number: int) -> frozenset[int]:
        step = self.step(number)
        if not self.program.varies[number] or not self.is_wide(number):
            return frozenset()
        if step is None:
            return frozenset([number])
        sources: frozenset[int] = frozenset().union(*map(self.sources, step.operands))
        is_cheap = step.name in FUNCTIONS or (step.name == "dot" and self.method(step) == "scalar")
        if self.is_lazy(number) or (
            is_cheap and (len(sources) <= 1 or self._is_read_by_a_function(number))
        ):
            return sources
        return frozenset([number])

    def _is_read_by_a_function(self, number: int) -> bool:
        """Whether one elementwise function alone reads a value: both are then computed together."""
        readers = self._readers.get(number, [])
        return len(readers) == 1 and readers[0] in FUNCTIONS

    def keeps_lanes(self, number: int, indices: np.ndarray) -> bool:
        """Whether a wide row has numbers of a value, at indices, that need not change places."""
        step = self.step(number)
        if self.width(number) == 1 or not self.is_wide(number):
            return True
        if step is not None and step.name == "take":
            return self.keeps_lanes(step.operands[0], step.places[indices])
        if step is not None and step.name in FUNCTIONS and not self.is_kept(number):
            return all(self.keeps_lanes(i, indices) for i in step.operands)
        order = Order.of(indices)
        return order.is_aligned or order.by_block or (order.in_runs and step is None)

    def method(self, step: Instruction) -> str:
        """Return what computes a product: ``"scalar"`` code, a ``"quad"`` or ``"tensor"`` cores."""
        inner, columns = dot_sizes(self.program, step)
        is_small = not on_tensor_cores(self.program, step)
        if inner <= MAX_SCALAR_TERMS or (is_small and inner <= MAX_NARROW):
            return "scalar"
        in_order = self.exact and is_small
        return "quad" if columns <= MAX_SCALAR_TERMS and not in_order else "tensor"
