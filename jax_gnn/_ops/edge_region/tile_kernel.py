"""Kernels of programs with products: a warp computes the rows of its entries together, by tiles.

The code of the rows is :mod:`jax_gnn._ops.edge_region.tile_codegen`'s. It leaves the rows that are
reduced in tiles of shared memory, from where the lanes of the walk read them: a lane owns two
neighbouring columns of each 64 of a row, and reduces them over the entries of its warp.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator

from jax_gnn._core import ffi
from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    SHARED_BYTES,
    STORED_TYPES,
    TILE_ENTRIES,
    WARP,
    Infeasible,
    Kernel,
    Parts,
    function,
    struct,
)
from jax_gnn._ops.edge_region.row_program import RowProgram
from jax_gnn._ops.edge_region.tile_codegen import MAX_REGISTERS, TileCodegen, tile_code
from jax_gnn._ops.edge_region.tile_plan import blocks_of
from jax_gnn._ops.edge_region.tile_stages import Staging, staging

_VEC = 2  # columns of a lane in each 64
# Words of a warp's memory ahead of staged rows: two ``TileEntries``, rows around a range.
_FIXED_WORDS = 2 * TILE_ENTRIES * 7 + 4
# Inputs that are staged, by access, for how many tiles, and the speed. Rows of destinations are
# often those of the entry before, and in the cache.
_STAGINGS = (
    (("edge", "col", "row"), 2, 1.0),
    (("edge", "col", "row"), 1, 0.97),
    (("edge", "col"), 2, 0.95),
    (("edge", "col"), 1, 0.92),
    ((), 1, 0.6),
)
_BLOCK_WARPS = 1, 2, 4, 6, 8, 10, 12, 14, 16
# Fewer warps share a matrix too seldom, and are for GPUs with less shared memory than Hopper's.
_SHARING_WARPS = 4
# Warps of a multiprocessor, and the registers of rows, as counted, for which a lane has enough
# then: a compiler keeps few rows whole.
_WARPS_AND_REGISTERS = (16, 104), (12, 200), (8, MAX_REGISTERS)
_SPEED_OF_OWN_SUMS = 2.5  # against barriers, and sums in shared memory
_MAX_PARTS = 32  # columns of a lane in all chunks

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


def generate_tiles(program: RowProgram) -> Kernel:
    """Generate the kernel of a program whose outputs are by edge or by row.

    Raises:
        Infeasible: A value, or the whole, is beyond what a kernel can hold.
    """
    stagings = [
        (staging(program, accesses, stages), speed) for accesses, stages, speed in _STAGINGS
    ]

    @functools.cache
    def code_of(number: int, own_sums: bool) -> TileCodegen:
        return tile_code(program, stagings[number][0], own_sums)

    choices, reason = list[tuple[float, bool, int, int]](), ""
    has_outer_sums = any(step.name == "outer" for step in program.instructions)
    for own_sums in (True, False) if has_outer_sums else (False,):
        try:
            code = code_of(0, own_sums)  # the code of one staging tells the memory of all
        except Infeasible as error:
            reason = str(error)
            continue
        parts = len(_walk_text(code)[0])
        if parts > _MAX_PARTS:
            raise Infeasible(f"sums of {parts} numbers for each lane")
        for (number, (staged, speed)), warps in itertools.product(
            enumerate(stagings), _BLOCK_WARPS
        ):
            # Sums of outer products are shared out evenly over a power of two.
            if code.outer_sums and not own_sums and warps & (warps - 1):
                continue
            blocks = _resident_blocks(code, parts, _memory(code, staged, parts)[1], warps)
            rate = speed * (_SPEED_OF_OWN_SUMS if own_sums else 1)
            rate /= 2 if warps < _SHARING_WARPS else 1
            if blocks:
                choices.append((blocks * warps * rate, own_sums, number, warps))
    for _, own_sums, number, warps in sorted(choices, key=operator.itemgetter(0), reverse=True):
        with contextlib.suppress(Infeasible):
            code = code_of(number, own_sums)
            if _resident_blocks(code, parts, _memory(code, code.staging, parts)[1], warps):
                return _kernel(code, warps)
    raise Infeasible(reason or "linear maps beyond the shared memory of a GPU")


def _kernel(code: TileCodegen, warps: int) -> Kernel:
    parts, reads, stores = _walk_text(code)
    types, memory = _memory(code, code.staging, len(parts))
    block_memory, shared = _shared_words(code, memory, warps)
    blocks = _resident_blocks(code, len(parts), memory, warps)
    arrays = "const Arrays& in, "
    lines = [
        *code.tables,
        "struct Text {",
        *types,
        "using Acc = float;",
        f"static constexpr int kVec = {_VEC}, kParts = {len(parts)}, kUnroll = {TILE_ENTRIES};",
        f"static constexpr int kWarps = {warps}, kThreads = {WARP * warps}, kMinBlocks = {blocks};",
        f"static constexpr int kMatrices = {code.matrix_size}, kMemory = {memory};",
        f"static constexpr int kOuterSums = {warps * code.block_memory};",
        f"static constexpr int kBlockMemory = {block_memory};",
        f"static constexpr bool kSums = {'true' if code.finish else 'false'};",
        f"static constexpr bool kReduces = {'true' if stores else 'false'};",
        *struct("Sums", code.sums),
        *parts.functions(),
        *function(f"load_matrices({arrays}float* matrices)", code.matrices),
        *function(
            f"stage({arrays}const TileEntries& tile, int lane, float* staged)",
            code.staging.lines(code.program),
        ),
        "template <class Prefetch>",
        *function(
            f"compute({arrays}const Arrays& out, const float* matrices, float* block, float* "
            "memory, const float* staged, const TileEntry (&entries)[2], Sums& sums, "
            "const Prefetch& prefetch)",
            (*_PLACES, *code.lines),
        ),
        *(function(_FINISH, code.finish) if code.finish else ()),
        *function("read(float* memory, int entry, int64_t first, Acc (&parts)[kParts])", reads),
        *function(
            "store(const Arrays& out, Index row, unsigned first, const Acc (&run)[kParts])", stores
        ),
        "};",
    ]
    return Kernel(
        source="\n".join(lines) + "\n",
        slots=_VEC * WARP,
        vec=_VEC,
        lanes=WARP,
        unroll=TILE_ENTRIES,
        parts=len(parts),
        threads=WARP * warps,
        blocks=blocks,
        shared=4 * shared,
        own_sums=code.own_sums,
        acc="float32",
        words=tuple(code.words),
        exact=code.plan.exact,
        cost=0,  # there is one kernel of a program
    )


def _walk_text(code: TileCodegen) -> tuple[Parts, list[str], list[str]]:
    """Return the parts of a lane, and the lines of ``read`` and ``store``.

    Raises the alignment of results in `code.words`.
    """
    program, words = code.program, code.words
    parts, reads, stores = Parts(program), list[str](), list[str]()
    for number, output in enumerate(program.outputs):
        if output.dest != "row":
            continue  # stored by the code of the tile
        width, dtype = program.values[output.value].width, program.values[output.value].dtype_name
        kind, tile = STORED_TYPES[dtype], code.tiles.index(output.value)
        array = len(program.inputs) + number
        word = math.gcd(width, _VEC)
        words[array] = max(words[array], word * BYTES[dtype])
        for start in range(0, width, _VEC * WARP):
            place = f"first + {start}" if start else "first"
            for part, is_count in parts.add(output, start, _VEC):
                read = f"read_tile<Tile{tile}, {width}>(memory, entry, {place}, parts, {part});"
                ones = (f"parts[{part + i}] = 1;" for i in range(_VEC))
                reads += ones if is_count else [read]
            stores.append(
                f"store_chunk<{width}>(row_of<{kind}, {width}>(out.at[{number}], row), "
                f"{place}, run, {part});"
            )
    if not parts.joins:  # the walk needs at least one part
        parts.fill()
        return parts, ["parts[0] = 0;"], []
    return parts, reads, stores


def _memory(code: TileCodegen, staging: Staging, parts: int) -> tuple[list[str], int]:
    """Return the types in a warp's shared memory, and its size in words."""
    start = _FIXED_WORDS + WARP * parts
    offset = start + staging.stages * staging.words
    lines = [
        f"static constexpr int kStaged = {start}, kStages = {staging.stages};",
        f"static constexpr int kStageWords = {staging.words};",
        f"static constexpr int kScratch = {code.scratch}, kScratchStart = {offset};",
    ]
    offset += TILE_ENTRIES * code.scratch
    for i, value in enumerate(code.tiles):
        # Lanes write pairs of columns of eight rows: a stride of 8 modulo 16 words puts those of
        # four rows into different banks.
        stride = -(-code.plan.width(value) // 16) * 16 + 8
        lines.append(f"using Tile{i} = EntryTile<{offset}, {stride}>;")
        offset += TILE_ENTRIES * stride
    return lines, offset


def _shared_words(code: TileCodegen, memory: int, warps: int) -> tuple[int, int]:
    """Return the words of shared memory for sums of a block, and those of all in a block."""
    fragments = (-(-rows // 16) * blocks_of(columns) for rows, columns in code.outer_sums)
    if code.own_sums:  # which take turns in the memory of the factors
        block = max([warps * code.block_memory, *(4 * WARP * count for count in fragments)])
    else:
        block = warps * code.block_memory
        block += sum(warps * -(-count // warps) * 4 * WARP for count in fragments)
    block = -(-block // 4) * 4
    return block, code.matrix_size + block + warps * memory


def _resident_blocks(code: TileCodegen, parts: int, memory: int, warps: int) -> int:
    """Return the number of blocks that a multiprocessor has room for.

    Args:
        code: The code.
        parts: Elements of reduced rows that a lane holds.
        memory: Words of a warp's shared memory.
        warps: Warps of a block.
    """
    # Dynamic shared memory of open runs, and some of the walk's own.
    runs = 4 * 2 * warps * WARP * parts + (2 << 10)
    shared = 4 * _shared_words(code, memory, warps)[1] + runs
    # A GPU may have less for a block than a multiprocessor of Hopper has.
    if shared > min(SHARED_BYTES, ffi.shared_memory()):
        return 0
    most = next(n for n, limit in _WARPS_AND_REGISTERS if code.registers <= limit)
    return min(SHARED_BYTES // shared, most // warps)
