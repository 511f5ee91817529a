"""Schedules of the kernels of segmented matrix products."""

from __future__ import annotations

from typing import NamedTuple

from jax_gnn._core.schedule import Family, define_family


class MatmulSchedule(NamedTuple):
    """How the kernels of segmented matrix products deal out rows.

    Attributes:
        tile: Largest number of rows of a tile, 64 or 128.
        chunk: How many neighbouring tiles a block takes of every ``chunk * blocks``, so that all
            blocks work in the same part of memory; 0: one contiguous range for each. For
            ``"segment_outer"``: 0, or 1 where no two blocks may share a group.
        blocks: Number of blocks that share the rows, for ``"segment_matmul"`` at most; 4096 and
            more are no limit. Few tiles have a block for each tile where that are enough.
    """

    tile: int
    chunk: int
    blocks: int


def _from_rule(op: str, *, rows: int, groups: int, k: int, n: int, itemsize: int) -> MatmulSchedule:
    """The rule, fitted by hand to an H200.

    Args:
        op: ``"segment_matmul"`` or ``"segment_outer"``.
        rows: Number of rows.
        groups: Number of weights.
        k: Features of the left factor.
        n: Features of the right factor.
        itemsize: Bytes of a feature.
    """
    larger = max(k, n)
    if op == "segment_outer":
        blocks = 264 if rows >= 200_000 else 132
        if larger > 64:  # tiles of 128 by 128 of a weight have blocks of their own
            blocks = -(-132 // max(1, -(-k // 128) * -(-n // 128)))
        return MatmulSchedule(64, 0, max(1, min(blocks, rows // 128)))
    scattered = rows * (k + n) * itemsize > 1.2e9 and rows > 4096 * groups
    return MatmulSchedule(128 if rows > 100_000 else 64, 16 if scattered else 0, 4096)


FAMILY = define_family(
    Family(
        schedule=MatmulSchedule,
        allowed=((64, 128), range(2**16), range(1, 2**13)),  # a block has two weights of workspace
        ops=("segment_matmul", "segment_outer"),
        exact=("k", "n", "itemsize"),
        sizes=("rows", "groups"),
        rule=_from_rule,
        describe=lambda s: f"tiles of {s.tile}, chunks of {s.chunk}, {s.blocks} blocks",
    )
)
