"""Schedules of the kernels of segmented matrix products."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from jax_gnn._core.schedule import Family, define_family

Kernel = Literal["persistent", "single"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)


class MatmulSchedule(NamedTuple):
    """Which kernel of segmented matrix products takes the rows, and how it deals them out.

    Attributes:
        kernel: ``"persistent"``, of which a block takes tiles in turn, or for ``"segment_matmul"``
            on Hopper ``"single"``, with a block for each tile of 64 rows, where these are 256 bytes
            wide at most. Where a kernel cannot do a call, the persistent one does it.
        tile: Largest number of rows of a tile, 64 or 128.
        chunk: How many neighbouring tiles a block takes of every ``chunk * blocks``, so that all
            blocks work in the same part of memory; 0: one contiguous range for each. For
            ``"segment_outer"``: 0, or 1 where no two blocks may share a group.
        blocks: Number of blocks that share the rows, for ``"segment_matmul"`` at most.
    """

    kernel: Kernel
    tile: int
    chunk: int
    blocks: int


# Bytes of a row and groups up to which tiles can have a block each; tiles of an H200 up to which
# that is faster, all the more where rows are found by their ids.
_MOST_BYTES, _MOST_GROUPS = 256, 1024
_FEW, _FEW_GATHERED = 6 * 132, 16 * 132


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
    """The rule, fitted by hand to an H200.

    Args:
        op: ``"segment_matmul"`` or ``"segment_outer"``.
        rows: Number of rows.
        groups: Number of weights.
        k: Features of the left factor.
        n: Features of the right factor.
        itemsize: Bytes of a feature.
        sizes: Number of groups that rows are of, those that have no weight among them; as many as
            weights where not given.
        gathers: Whether rows are found by their ids.
        call: What kernels cannot do: ``exact`` products, and those that ``widen``.
    """
    larger = max(k, n)
    if op == "segment_outer":
        blocks = 264 if rows >= 200_000 else 132
        if larger > 64:  # tiles of 128 by 128 of a weight have blocks of their own
            blocks = -(-132 // max(1, -(-k // 128) * -(-n // 128)))
        return MatmulSchedule("persistent", 64, 0, max(1, min(blocks, rows // 128)))
    tiles = -(-rows // 64) + (groups if sizes is None else sizes) + 1
    few = tiles * -(-n // 64) <= (_FEW_GATHERED if gathers else _FEW)
    kernel: Kernel = "single" if few else "persistent"
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
    """The same for the persistent kernel, where no other can do the call; see the rule."""
    del call
    row_bytes = k * itemsize
    single = op == "segment_matmul" and itemsize <= 4 and not widens
    single = single and 0 < row_bytes <= _MOST_BYTES and row_bytes % 16 == 0
    single = single and (groups if sizes is None else sizes) <= _MOST_GROUPS
    single = single and not (exact and itemsize == 4)
    return schedule if single else schedule._replace(kernel="persistent")


def _describe(schedule: MatmulSchedule) -> str:
    kernel, tile, chunk, blocks = schedule
    return f"{kernel}, tiles of {tile}, chunks of {chunk}, {blocks} blocks"


FAMILY = define_family(
    Family(
        schedule=MatmulSchedule,
        allowed=(
            KERNELS,
            (64, 128),
            range(2**16),
            range(1, 2**13),
        ),  # a block has two weights of workspace
        ops=("segment_matmul", "segment_outer"),
        exact=("k", "n", "itemsize"),
        sizes=("rows", "groups"),
        rule=_from_rule,
        possible=_possible,
        describe=_describe,
    )
)
