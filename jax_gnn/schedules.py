"""How kernels deal out their work: chosen when a computation is compiled, from shapes alone."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import jax


class Schedule(NamedTuple):
    """How a kernel deals out entries and features to its threads (GeoT, table I).

    Attributes:
        parallel: whether the entries of a warp's step lie side by side in its teams, rather than
            one behind another.
        lanes: threads of a team, which holds a tile of the features; a power of two up to 32.
        threads: threads of a block.
        blocks: largest number of blocks that share the entries.
    """

    parallel: bool
    lanes: int
    threads: int
    blocks: int


# A user context is part of the keys of JAX's caches: a change compiles anew.
_forced = jax.make_user_context(default_value=None)


def use(schedule: Schedule | None) -> AbstractContextManager[None]:
    """Makes all that is compiled inside a ``with`` block use one schedule; None chooses again."""
    return _forced(schedule)


def choose(
    op: str,
    *,
    count: int,
    num_rows: int,
    width: int,
    itemsize: int,
    gather: bool,
    average_degree: float | None = None,
    max_degree: int | None = None,
) -> Schedule:
    """The schedule for a call of a kernel, a pure function of shapes and static hints.

    Args:
        op: ``"segment_reduce"``, ``"segment_select"`` or ``"softmax"``.
        count: number of entries.
        num_rows: number of rows that entries are reduced into.
        width: number of features.
        itemsize: bytes of a feature.
        gather: whether entries name the row that they read.
        average_degree: entries of a row on average; by default ``count / num_rows``.
        max_degree: entries of the longest row, where known.
    """
    del op, gather, num_rows, average_degree, max_degree  # not looked at yet
    if _forced.value is not None:
        return _forced.value
    lanes = 1
    while lanes < 32 and lanes * 16 < width * itemsize:  # 16 bytes a thread
        lanes *= 2
    threads = 256
    # Each team ought to have some dozens of entries before more blocks pay.
    blocks = min(2048, max(1, count * lanes // (threads * 32)))
    return Schedule(parallel=lanes < 32, lanes=lanes, threads=threads, blocks=blocks)
