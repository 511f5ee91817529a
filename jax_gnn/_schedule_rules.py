"""Which schedule fits which shape."""

from __future__ import annotations


def choose(
    *,
    softmax: bool,
    gather: bool,
    count: int,
    num_rows: int,
    width: int,
    itemsize: int,
    average_degree: float,
) -> tuple[bool, int, int, int]:
    """Returns parallel, halvings of the covering lanes, threads, blocks."""
    return False, 0, 256, max(132, min(2112, count * width * itemsize // (1 << 17)))
