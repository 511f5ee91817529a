"""Schedules of the kernels of segmented matrix products."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from jax_gnn._core.schedule import Family

Kernel = Literal["persistent", "single"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)


class MatmulSchedule(NamedTuple):
    """Kernel of a segmented matrix product, and the distribution of rows to its blocks.

    Attributes:
        kernel: ``"persistent"``, whose blocks take tiles in turn; or, for ``"segment_matmul"`` on
            Hopper, ``"single"``, with a block for each tile of 64 rows of at most 256 bytes. Calls
            that this kernel cannot take run on the persistent one.
        tile: Largest number of rows of a tile, 64 or 128.
        chunk: Number of neighbouring tiles of every ``chunk * blocks`` that a block takes, so that
            all blocks work in the same part of memory; 0: a contiguous range for each block. For
            ``"segment_outer"``: 0, or 1 where no two blocks may share a group.
        blocks: Number of blocks that share the rows, at most for ``"segment_matmul"``.
    """

    kernel: Kernel
    tile: int
    chunk: int
    blocks: int


# Largest bytes of a row and number of groups that the kernel of single tiles takes, and the number
# of tiles up to which it is faster on an H200 (132 multiprocessors), without and with a gather.
_MAX_BYTES, _MAX_GROUPS = 256, 1024
_MAX_TILES, _MAX_GATHERED_TILES = 6 * 132, 16 * 132


def _from_rule(
    op: str,
    *,
    rows: int,
    groups: int,
    k: int,
    n: int,
    itemsize: int,
    sizes: int | None = None,
    gathers: bool = False,
    **call: Any,
) -> MatmulSchedule:
    """Return the schedule of a rule fitted by hand to an H200.

    ``sizes`` counts groups without a weight, too; by default it is the number of weights.
    """
    larger = max(k, n)
    if op == "segment_outer":
        blocks = 264 if rows >= 200_000 else 132
        if larger > 64:  # tiles of 128 by 128 of a weight have blocks of their own
            blocks = -(-132 // max(1, -(-k // 128) * -(-n // 128)))
        return MatmulSchedule("persistent", 64, 0, max(1, min(blocks, rows // 128)))
    tiles = -(-rows // 64) + (groups if sizes is None else sizes) + 1
    max_tiles = _MAX_GATHERED_TILES if gathers else _MAX_TILES
    kernel: Kernel = "single" if tiles * -(-n // 64) <= max_tiles else "persistent"
    scattered = rows * (k + n) * itemsize > 1.2e9 and rows > 4096 * groups
    return MatmulSchedule(kernel, 128 if rows > 100_000 else 64, 16 if scattered else 0, 4096)


def _possible(
    schedule: MatmulSchedule,
    op: str,
    *,
    groups: int,
    k: int,
    itemsize: int,
    sizes: int | None = None,
    exact: bool = False,
    widens: bool = False,
    **call: Any,
) -> MatmulSchedule:
    """Return the schedule, for the persistent kernel if the call does not fit the single tiles'.

    Arguments: as in `_from_rule`.
    """
    row_bytes, num_sizes = k * itemsize, groups if sizes is None else sizes
    fits_dtype = op == "segment_matmul" and itemsize <= 4 and not widens
    fits_dtype = fits_dtype and not (exact and itemsize == 4)
    fits_rows = 0 < row_bytes <= _MAX_BYTES and row_bytes % 16 == 0 and num_sizes <= _MAX_GROUPS
    return schedule if fits_dtype and fits_rows else schedule._replace(kernel="persistent")


FAMILY = Family(
    schedule=MatmulSchedule,
    # Blocks are bounded, as each has two weights of workspace.
    allowed=(KERNELS, (64, 128), range(2**16), range(1, 2**13)),
    ops=("segment_matmul", "segment_outer"),
    exact=("k", "n", "itemsize"),
    sizes=("rows", "groups"),
    rule=_from_rule,
    possible=_possible,
    describe=lambda s: f"{s.kernel}, tiles of {s.tile}, chunks of {s.chunk}, {s.blocks} blocks",
)
