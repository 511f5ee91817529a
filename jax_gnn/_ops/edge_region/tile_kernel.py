"""Kernels of programs with products: a warp computes the rows of its entries together, by tiles.

The code of the rows is :mod:`jax_gnn._ops.edge_region.tile_codegen`'s. It leaves the rows that are
reduced in tiles of shared memory, from where the lanes of the walk read them: a lane owns four
neighbouring columns of each *chunk* of a row, and reduces them over the entries of its team.
"""

from __future__ import annotations

import functools

from jax_gnn._core import ffi
from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    JOINS,
    SHARED_BYTES,
    STORED_TYPES,
    THREADS,
    TILE_ENTRIES,
    WARP,
    Infeasible,
    Kernel,
    function,
    join_of_part,
    struct,
)
from jax_gnn._ops.edge_region.row_program import RowProgram
from jax_gnn._ops.edge_region.tile_codegen import TileCode, tile_code

_VEC = 4  # columns of a lane in a chunk
_ENTRY_WORDS = 4  # of ``TileEntry`` in ``edge_tiles.cuh``
_MAX_PARTS = 32  # columns of a lane in all chunks
# Registers of the walk, beside the rows of a tile and the parts of a row.
_WALK_REGISTERS = 56
_REGISTERS_OF_THREE = 168  # of a lane, with three blocks of a multiprocessor

# The place of a lane in fragments, by which the code of tiles finds its columns and entries.
_PLACES = (
    "[[maybe_unused]] const int t = static_cast<int>(threadIdx.x % 4);",
    "[[maybe_unused]] const int g = static_cast<int>(threadIdx.x % 32 / 4);",
    "[[maybe_unused]] const auto scratch_row = [&](int k) {",
    "return memory + kScratchStart + (g + 8 * k) * kScratch;",
    "};",
    "[[maybe_unused]] const auto block_row = [&](int k, int start, int stride) {",
    "return block + start + (static_cast<int>(threadIdx.x / 32) * 16 + g + 8 * k) * stride;",
    "};",
)
_FINISH = "finish(const Arrays& out, float* block, const Sums& sums)"
_IDS = "Index row, Index col, Index place, unsigned first, "


@functools.lru_cache(maxsize=256)
def generate_tiles(program: RowProgram) -> Kernel:
    """Generate the kernel of a program whose outputs are by edge or by row.

    Raises:
        Infeasible: A value, or the whole, is beyond what a kernel can hold.
    """
    code = tile_code(program)
    widest = max((width for _, width in code.tiles), default=1)
    # A team of lanes holds a chunk, and a step of the warp has the entries of one tile.
    slots = next(n for n in (16, 32, 64) if n >= min(widest, 64))
    lanes, unroll = slots // _VEC, slots // 8
    words = list(code.words)
    parts, joins, values, stores = _walk_text(program, code, slots, words)
    if parts > _MAX_PARTS:
        raise Infeasible(f"sums of {parts} numbers for each lane")
    types, memory = _memory(code)
    shared = 4 * (code.matrix_size + code.block_memory + code.outer_sums + code.warps * memory)
    blocks = _blocks(code, parts, shared, lanes)
    arrays = "const Arrays& in, "
    lines = [
        *code.tables,
        "struct Text {",
        *types,
        "using Acc = float;",
        f"static constexpr int kVec = {_VEC}, kParts = {parts};",
        f"static constexpr int kUnroll = {unroll}, kMinBlocks = {blocks};",
        f"static constexpr int kMatrices = {code.matrix_size}, kMemory = {memory};",
        f"static constexpr int kOuterSums = {code.block_memory}, kThreads = {WARP * code.warps};",
        f"static constexpr int kBlockMemory = {code.block_memory + code.outer_sums};",
        f"static constexpr bool kSums = {'true' if code.finish else 'false'};",
        *struct("Sums", code.sums),
        "static __device__ constexpr Join kind([[maybe_unused]] int part) {",
        f"return {join_of_part(joins)};",
        "}",
        *struct("Entry", ()),
        *struct("Once", ()),
        *function(f"load_once({arrays}bool active, unsigned first, Once& once)", ()),
        *function(f"load({arrays}bool valid, {_IDS}Entry& entry)", ()),
        *function(
            f"value(const Entry& entry, const Once& once, {arrays}const Arrays& out, bool active, "
            f"bool there, bool valid, {_IDS}float* memory, unsigned in_warp, Acc (&parts)[kParts])",
            values,
        ),
        *function(f"load_matrices({arrays}float* matrices)", code.matrices),
        *function(
            f"compute({arrays}const Arrays& out, const float* matrices, float* block, "
            "float* memory, const TileEntry (&entries)[2], Sums& sums)",
            (*_PLACES, *code.lines),
        ),
        *(function(_FINISH, code.finish) if code.finish else ()),
        *function(
            "store(const Arrays& out, Index row, unsigned first, const Acc (&run)[kParts])", stores
        ),
        "};",
    ]
    return Kernel(
        source="\n".join(lines) + "\n",
        slots=slots,
        vec=_VEC,
        lanes=lanes,
        unroll=unroll,
        parts=parts,
        threads=WARP * code.warps,
        blocks=blocks,
        shared=shared,
        acc="float32",
        words=tuple(words),
        exact=code.exact,
        cost=0,  # there is one kernel of a program
    )


def _walk_text(
    program: RowProgram, code: TileCode, slots: int, words: list[int]
) -> tuple[int, list[str], list[str], list[str]]:
    """Return the parts of a lane, their joins, and the lines of ``value`` and ``store``.

    Raises the alignment of results in `words`.
    """
    parts, joins, values, stores = 0, list[str](), list[str](), list[str]()
    tiles = [value for value, _ in code.tiles]
    for number, output in enumerate(program.outputs):
        if output.dest != "row":
            continue  # stored by the code of the tile
        width, dtype = program.values[output.value].width, program.values[output.value].dtype.name
        kind, tile = STORED_TYPES[dtype], tiles.index(output.value)
        array = len(program.inputs) + number
        word = next(n for n in (4, 2, 1) if width % n == 0 and n * BYTES[dtype] <= 16)
        words[array] = max(words[array], word * BYTES[dtype])
        for start in range(0, width, slots):
            place = f"first + {start}" if start else "first"
            values.append(
                f"read_tile<Tile{tile}, {width}>(memory, in_warp, {place}, parts, {parts});"
            )
            stores.append(
                f"store_chunk<{width}, {word}>(row_of<{kind}, {width}>(out.at[{number}], row), "
                f"{place}, run, {parts});"
            )
            parts += _VEC
            joins += [JOINS[output.reduce]] * _VEC
    if not parts:  # the walk needs at least one part
        return 1, [JOINS["sum"]], ["parts[0] = 0;"], []
    return parts, joins, values, stores


def _memory(code: TileCode) -> tuple[list[str], int]:
    """Return the types in a warp's shared memory, and its size in words."""
    offset = TILE_ENTRIES * _ENTRY_WORDS
    lines = [
        f"static constexpr int kScratch = {code.scratch}, kScratchStart = {offset};",
    ]
    offset += TILE_ENTRIES * code.scratch
    for i, (_, width) in enumerate(code.tiles):
        # A stride of 4 modulo 8 words puts neighbouring rows into different banks.
        stride = -(-width // 8) * 8 + 4
        lines.append(f"using Tile{i} = EntryTile<{offset}, {stride}>;")
        offset += TILE_ENTRIES * stride
    return lines, offset


def _blocks(code: TileCode, parts: int, shared: int, lanes: int) -> int:
    """Return the blocks of a multiprocessor, as registers and shared memory allow."""
    walk = 4 * 2 * code.warps * lanes * parts + (2 << 10)
    # A GPU may have less for a block than a multiprocessor of Hopper has.
    if shared + walk > min(SHARED_BYTES, ffi.shared_memory()):
        raise Infeasible("linear maps have too many numbers for the shared memory of a GPU")
    fitting = SHARED_BYTES // (shared + walk)
    if code.warps * WARP > THREADS:
        return 1
    has_room = code.registers + _WALK_REGISTERS + parts <= _REGISTERS_OF_THREE
    return min(fitting, 3 if has_room else 2)
