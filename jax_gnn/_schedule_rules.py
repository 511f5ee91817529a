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
    max_degree: int | None,
) -> tuple[bool, int, int, int]:
    """Returns parallel, halvings of the covering lanes, threads, blocks."""
    if count * width * itemsize < 1 << 23:
        return False, 0, 128, 396
    if softmax:
        return False, 0, 256, 1056
    return False, 0, 256, 264 if gather else 396
