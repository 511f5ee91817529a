"""Staged rows of edge tiles: inputs that are copied to shared memory a tile ahead.

The copies of a tile are on their way while the rows of the tile before it are computed
(``edge_tile_walk.cuh``). They are asynchronous copies of 4, 8 or 16 bytes, which need no registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from jax_gnn._ops.edge_region.cuda_text import BYTES, TILE_ENTRIES, WARP
from jax_gnn._ops.edge_region.row_program import Access, RowProgram
from jax_gnn._ops.edge_region.tile_plan import BLOCK, MAX_NARROW

_IDS = {"row": "Id::kRow", "col": "Id::kCol", "edge": "Id::kPlace"}


class StagedRows(NamedTuple):
    """Rows of an input in shared memory.

    Attributes:
        start: Words ahead of them in a stage.
        stride: Bytes between rows.
        word: Bytes of a copy.
        pieces: Copies of a row.
    """

    start: int
    stride: int
    word: int
    pieces: int


@dataclass(frozen=True)
class Staging:
    """Inputs that are staged.

    Attributes:
        stages: Number of tiles for which there is room.
        rows: The rows of each staged input, by its place among the inputs.
        words: Words of a stage.
    """

    stages: int
    rows: dict[int, StagedRows]
    words: int

    def lines(self, program: RowProgram) -> list[str]:
        """Return the body of the function ``stage`` of a text."""
        groups: dict[tuple[Access, int], list[int]] = {}  # inputs whose lanes copy for the same ids
        for number, rows in self.rows.items():
            access = program.inputs[number].access
            groups.setdefault((access, rows.pieces), []).append(number)
        lines = []
        for (access, pieces), numbers in groups.items():
            lines.append(f"{{ const StagedIds<{_IDS[access]}, {pieces}> ids(tile, lane);")
            for number in numbers:
                rows = self.rows[number]
                copy = f"ids.copy<{rows.word}, {rows.stride}>"
                lines.append(f"{copy}(in.at[{number}], staged + {rows.start});")
            lines.append("}")
        return lines


def staging(program: RowProgram, accesses: Collection[str], stages: int) -> Staging:
    """Stage the inputs of some accesses whose rows have a multiple of four bytes."""
    rows: dict[int, StagedRows] = {}
    words = 0
    for number, source in enumerate(program.inputs):
        size = source.width * BYTES[source.dtype_name]
        if source.access not in accesses or size % 4 or source.dtype == bool:
            continue
        word = math.gcd(size, 16)
        stride = size
        if source.width > MAX_NARROW:
            # Lanes read two columns of eight rows at once: these rows begin in different banks.
            banks = 2 * BYTES[source.dtype_name] * (BLOCK // 2) // 4  # words of a row's part
            padded = -(-source.width // BLOCK) * BLOCK * BYTES[source.dtype_name] // 4
            stride = 4 * next(
                n for n in range(padded, padded + WARP + 1) if n % (2 * banks) == banks
            )
        rows[number] = StagedRows(words, stride, word, size // word)
        words += -(-TILE_ENTRIES * stride // 16) * 4
    return Staging(stages, rows, words)
