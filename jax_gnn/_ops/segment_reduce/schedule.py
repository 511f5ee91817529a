"""Schedules of the kernels that go through sorted entries (GeoT, table I)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.csr import Csr
from jax_gnn._core.kernels import workspace_of
from jax_gnn._core.op import Operand
from jax_gnn._core.schedule import L2_BYTES, MANY, THREADS, Family, define_family, known_width
from jax_gnn._ops.segment_reduce import rule


class Schedule(NamedTuple):
    """How a kernel deals out entries and features to its threads.

    Sums and means have a kernel of one step, for teams of 8 lanes in blocks of 256 threads, so many
    that no team has more than 8 entries; both gradients of a weighted sum have it for teams of 8,
    16 or 32 lanes that hold all features.

    Attributes:
        parallel: Whether each team goes through a range of entries of its own, where sums and means
            gather; so with both gradients in float32. Others have the entries of a warp's step one
            after another in its teams.
        lanes: Threads of a team, which holds a tile of the features; a power of two up to 32.
        threads: Threads of a block.
        blocks: Largest number of blocks that share the entries.
    """

    parallel: bool
    lanes: int
    threads: int
    blocks: int


# The kernel of one step (segment_step.cuh): lanes of a team, threads and entries of a block.
_STEP_LANES, _STEP_THREADS, _STEP_ENTRIES = 8, 256, 256

# Entries times tiles of a team's lanes up to which one step is faster on an H200; the second where
# rows have an epilogue.
_SMALL = 2**18
_SMALL_WITH_EPILOGUE = 2**19

# The first of these where rows of at most so many lanes lie one after another; lanes that read one
# feature each.
_SMALL_NARROW, _NARROW_LANES, _NARROW_FEATURES = 2**17, 4, 2

# The first of these for both gradients of a weighted sum.
_SMALL_GRADIENTS = 3 * 2**16

# Entries of a sum, and bytes that it gathers, from which on the walk of each team by itself is
# faster on an H200.
_MANY = 2**17
_LARGE = 25_000_000


def _from_rule(
    op: str,
    *,
    entries: int,
    rows: int,
    width: int,
    itemsize: int,
    gather: bool,
    sums: bool = True,
    depth: int | None = None,
    cols: int | None = None,
    epilogue: bool = False,
    ordered: bool = False,
) -> Schedule:
    """The fitted rule, and what was found by hand for small sums and large ones that gather.

    Args:
        op: ``"segment_reduce"``, ``"segment_reduce_vjp"``, ``"segment_select"`` or ``"softmax"``.
        entries: Number of entries.
        rows: Number of rows that entries are reduced into.
        width: Number of features.
        itemsize: Bytes of a feature.
        gather: Whether entries name the row that they read.
        sums: Whether it is a sum or a mean of floating-point numbers.
        depth: Features of a head, of which words have no other; all of a row where not given.
        cols: Number of rows that entries read, where known; else as many as they are reduced into.
        epilogue: Whether rows have one.
        ordered: Whether weights are in another order than entries.
    """
    features: dict[str, Any] = {
        "softmax": op == "softmax",
        "gather": gather,
        **{"count": entries, "num_rows": rows, "width": width, "itemsize": itemsize},
        "average_degree": entries / max(rows, 1),
        "num_bytes": entries * width * itemsize,
    }
    asked = {name: features[name] for name in rule.FEATURES}
    parallel, narrowing, threads, blocks = rule.choose(**asked)
    lanes = covering_lanes(width, itemsize)
    sums = sums and op == "segment_reduce"
    word = word_features(width if depth is None else depth, itemsize)
    if op == "segment_reduce_vjp" and lanes * word >= width:
        tiles = max(lanes // _STEP_LANES, 1)  # of the step kernel's for sums, in a team
        if entries * tiles <= _SMALL_GRADIENTS:
            blocks = max(-(-entries * tiles // _STEP_ENTRIES), 1)
            return Schedule(False, _STEP_LANES * tiles, _STEP_THREADS, blocks)
        # Through an order weights are read, and dots written, all over the place: that costs more
        # than is gained unless the rows that are gathered take half of L2 at most.
        stays = 2 * (rows if cols is None else cols) * width * itemsize <= L2_BYTES
        gains = lanes == 16 and stays if ordered else lanes >= 8
        if gather and itemsize == 4 and word > 1 and gains:
            return Schedule(True, lanes, 128, 660)
    narrowest = _NARROW_LANES if word > 1 else _NARROW_FEATURES
    narrow = op == "segment_reduce" and not gather and lanes <= narrowest
    small_rows = _SMALL_NARROW if narrow and word > 1 else _SMALL
    small = _SMALL_WITH_EPILOGUE if epilogue else small_rows
    if sums and entries * -(-width // (_STEP_LANES * word)) <= small:
        return Schedule(False, _STEP_LANES, _STEP_THREADS, max(-(-entries // _STEP_ENTRIES), 1))
    if narrow:
        return Schedule(False, lanes, 64, 1584)
    is_large = entries >= _MANY and features["num_bytes"] >= _LARGE
    if gather and sums and word > 1 and lanes >= 8 and is_large:
        # Half as wide where a tile of 8 words of all rows stays in L2, one of 16 not.
        rows_bytes = 16 * (rows if cols is None else cols)
        widest = 8 if 8 * rows_bytes <= L2_BYTES < 16 * rows_bytes else 16
        return Schedule(True, min(lanes, widest), 128, 660)
    return Schedule(parallel, max(lanes >> narrowing, 1), threads, blocks)


def _describe(schedule: Schedule) -> str:
    kind = "parallel" if schedule.parallel else "sequential"
    return f"{kind}, {schedule.lanes} lanes, {schedule.threads} threads, {schedule.blocks} blocks"


FAMILY = define_family(
    Family(
        schedule=Schedule,
        allowed=((False, True), (1, 2, 4, 8, 16, 32), THREADS, MANY),
        ops=("segment_reduce", "segment_reduce_vjp", "segment_select", "softmax"),
        exact=("gather", "width", "itemsize"),
        sizes=("entries", "rows"),
        rule=_from_rule,
        describe=_describe,
    )
)


def covering_lanes(width: int, itemsize: int) -> int:
    """Lanes of a team that holds all features of a row, as far as a warp goes.

    A lane reads 16 bytes where rows are aligned to that, else one feature.
    """
    width = known_width(width)
    features = word_features(width, itemsize)
    lanes = 1
    while lanes < 32 and lanes * features < width:
        lanes *= 2
    return lanes


def word_features(width: int, itemsize: int) -> int:
    """Features that a lane reads at once."""
    return 16 // itemsize if width * itemsize % 16 == 0 else 1


def scheduled(
    op: str,
    csr: Csr,
    x: Operand,
    sums: bool = False,
    depth: int | None = None,
    epilogue: bool = False,
) -> tuple[Any, list[Any]]:
    """The schedule's attributes, and the workspace. For the flags and ``depth``, see the rule."""
    schedule = FAMILY.choose(
        op,
        entries=csr.count,
        rows=csr.num_rows,
        width=row_width(x),
        itemsize=np.dtype(x.dtype).itemsize,
        gather=csr.cols is not None,
        sums=sums,
        depth=depth,
        cols=x.shape[0],
        epilogue=epilogue,
        ordered=csr.order is not None,
    )
    attributes = {
        "parallel": np.bool_(schedule.parallel),
        "lanes": np.int64(schedule.lanes),
        "threads": np.int64(schedule.threads),
    }
    teams = schedule.threads // schedule.lanes
    # Not min and max, as sizes may be symbolic.
    blocks = jax.core.min_dim(schedule.blocks, jax.core.max_dim(1, -(-csr.count // teams)))
    return attributes, [workspace_of(blocks, row_width(x), np.dtype(accumulator_dtype(x.dtype)))]
