"""Schedules of the kernels that go through sorted entries (GeoT, table I)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.export
import numpy as np

from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.csr import Csr
from jax_gnn._core.kernels import block_workspace
from jax_gnn._core.op import Operand
from jax_gnn._core.schedule import (
    L2_BYTES,
    MANY,
    THREADS,
    Family,
    concrete_width,
    from_tree,
    sum_features,
)

Kernel = Literal["walk", "gather", "step"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)


class Schedule(NamedTuple):
    """The kernel that reduces entries, and how it deals entries and features out to threads.

    Attributes:
        kernel: ``"walk"`` does all reductions; the teams of a warp take the entries of its steps
            one after another. Sums, means and both gradients of weighted sums have two more:
            ``"gather"``, where each team has a range of entries, and ``"step"``, where each team
            has 8 entries, in blocks of 256 threads: teams of 8 lanes, with both gradients up to 32.
            Where a kernel cannot do a call, the walk does it.
        lanes: Threads of a team, which holds a tile of the features; a power of two up to 32.
        threads: Threads of a block.
        blocks: Largest number of blocks that share the entries; ``"step"`` ignores it.
    """

    kernel: Kernel
    lanes: int
    threads: int
    blocks: int


# The kernel of one step (segment_step.cuh): lanes of a team (more for both gradients), threads of
# a block, entries of a team; limits of entries, features and weights.
_STEP_LANES, _STEP_THREADS, _STEP_ENTRIES = 8, 256, 8
_MAX_ENTRIES, _MAX_FEATURES, _MAX_WEIGHTS = 2**30, 2**20, 2**32

MAX_MEASURED_STEP = 2**20
"""Entries up to which the kernel of one step is measured: four times the limit of the rule."""

# Measured on an H200: the largest product of entries and tiles of a team for which one step is
# faster, in general, for rows with an epilogue, and for both gradients of a weighted sum.
_SMALL = 2**18
_SMALL_WITH_EPILOGUE = 2**19
_SMALL_GRADIENTS = 3 * 2**16

# The same for contiguous rows of at most so many lanes; the bytes of those that a lane holds, and
# the schedule of their walk.
_SMALL_NARROW, _NARROW_LANES = 2**17, 4
_SHORT_BYTES, _SHORT = 8, Schedule("walk", 1, 64, 4224)

# Factor of the blocks where other kernels run beside: blocks that end make room for these.
_BESIDE = 8

# Least entries of a sum, and gathered bytes, for which the walk of each team by itself is faster on
# an H200. Most bytes of contiguous rows for which the walk has as many blocks as where it gathers.
_MIN_GATHER_ENTRIES = 2**17
_MIN_GATHER_BYTES = 25_000_000
_MAX_CONTIGUOUS_BYTES = 20_766_152


def by_hand(
    op: str,  # `"segment_reduce"`, `"segment_reduce_vjp"`, `"segment_select"` or `"softmax"`
    *,
    entries: int,  # number of entries
    rows: int,  # number of rows that entries are reduced into
    width: int,  # number of features
    itemsize: int,  # bytes of a feature
    gather: bool,  # whether entries name the row that they read
    sums: bool = True,  # whether it is a sum or a mean of floating-point numbers
    # Features of a head, which words do not cross; None for all of a row, 0 if unknown.
    depth: int | None = None,
    cols: int | None = None,  # number of rows that entries read; None for `rows`
    epilogue: bool = False,  # whether rows have an epilogue
    ordered: bool = False,  # whether weights are in another order than entries
    weights: int | None = None,  # number of weights, of all heads; None where there are none
) -> Schedule:
    """Return the schedule of a call by hand-written limits, from measurements on an H200."""
    lanes = covering_lanes(width, itemsize)
    if op == "softmax":  # its kernel deals out features in one way
        return Schedule("walk", lanes, 256, 396)
    sums = sums and op == "segment_reduce"
    word = word_features(width if depth is None else depth, itemsize)
    if op == "segment_reduce_vjp" and lanes * word >= width:
        tiles = max(lanes // _STEP_LANES, 1)  # of the step kernel's for sums, in a team
        if entries * tiles <= _SMALL_GRADIENTS:
            return one_step(entries, _STEP_LANES * tiles)
        # Weights in another order are scattered reads, and dots scattered writes. They cost more
        # than the kernel gains unless the gathered rows take at most half of L2.
        fits_l2 = 2 * (rows if cols is None else cols) * width * itemsize <= L2_BYTES
        gains = lanes == 16 and fits_l2 if ordered else lanes >= 8
        if gather and itemsize == 4 and word > 1 and gains:
            return Schedule("gather", lanes, 128, 660)
    short = op == "segment_reduce" and is_short(width, itemsize, gather)
    narrow = op == "segment_reduce" and not gather and word > 1 and lanes <= _NARROW_LANES
    small_rows = _SMALL_NARROW if narrow or short else _SMALL
    small = _SMALL_WITH_EPILOGUE if epilogue else small_rows
    if sums and entries * -(-width // (_STEP_LANES * word)) <= small:
        return one_step(entries)
    if short or narrow:
        return _SHORT if short else Schedule("walk", lanes, 64, 1584)
    num_bytes = entries * width * itemsize
    is_large = entries >= _MIN_GATHER_ENTRIES and num_bytes >= _MIN_GATHER_BYTES
    if gather and sums and word > 1 and lanes >= 8 and is_large:
        # Tiles are half as wide where L2 holds a tile of 8 words of all rows, but not of 16.
        rows_bytes = 16 * (rows if cols is None else cols)
        widest = 8 if 8 * rows_bytes <= L2_BYTES < 16 * rows_bytes else 16
        return Schedule("gather", min(lanes, widest), 128, 660)
    few_blocks = not gather and num_bytes > _MAX_CONTIGUOUS_BYTES
    return Schedule("walk", lanes, *((256, 264) if few_blocks else (128, 528)))


def is_short(width: int, itemsize: int, gather: bool) -> bool:
    """Whether a lane of the walk holds a contiguous row."""
    return not gather and width in (1, 2, 4) and width * itemsize <= _SHORT_BYTES


def tree_of(op: str, *, gather: bool, itemsize: int, sums: bool = True, **call: Any) -> str | None:
    """Return the kind by which trees of calls as in `by_hand` are named, or None without trees."""
    if itemsize > 4 or is_short(call["width"], itemsize, gather):
        return None
    if op == "segment_reduce" and sums:
        return "spmm" if gather else "segment_sum"
    return "spmm_vjp" if op == "segment_reduce_vjp" and gather else None


def tree_features(
    *,
    entries: int,
    rows: int,
    width: int,
    itemsize: int,
    depth: int | None = None,
    cols: int | None = None,
    epilogue: bool = False,
    ordered: bool = False,
    weights: int | None = None,
    **call: Any,
) -> dict[str, float]:
    """Return the inputs of a tree for a call as in `by_hand`."""
    word = word_features(width if depth is None else depth, itemsize)
    return sum_features(
        entries,
        rows,
        rows if cols is None else cols,
        width * itemsize,
        words=-(-width // word),
        word_bytes=word * itemsize,
        heads=width // depth if depth else 1,
        epilogue=epilogue,
        ordered=ordered,
        weighted=weights is not None,
    )


def from_leaf(leaf: str, *, entries: int, width: int, itemsize: int, **call: Any) -> Schedule:
    """Return the schedule of a tree's leaf for a call.

    A leaf names the kernel, how often the lanes that hold a row are halved, the threads of a block
    and the largest number of blocks; or ``"step tile"`` or ``"step row"``, the kernel of one step
    with teams of 8 lanes or of those that hold a row.
    """
    kernel, halvings, *sizes = leaf.split()
    lanes = covering_lanes(width, itemsize)
    if kernel == "step":
        return one_step(entries, max(lanes, _STEP_LANES) if halvings == "row" else _STEP_LANES)
    return Schedule(cast(Kernel, kernel), max(lanes >> int(halvings), 1), *map(int, sizes))


def _from_rule(op: str, **call: Any) -> Schedule:
    """Return the schedule of the tree of this process's GPUs, else that by hand.

    A tree may name a kernel that cannot do the call, or was not measured for so many entries.
    """
    kind = tree_of(op, **call)
    if kind and (leaf := from_tree(kind, tree_features(**call))):
        schedule = from_leaf(leaf, **call)
        is_measured = schedule.kernel != "step" or call["entries"] <= MAX_MEASURED_STEP
        if is_measured and _possible(schedule, op, **call) == schedule:
            return schedule
    return by_hand(op, **call)


def one_step(entries: int, lanes: int = _STEP_LANES) -> Schedule:
    """Return the schedule of the kernel of one step."""
    blocks = -(-entries // _step_block(lanes))
    return Schedule("step", lanes, _STEP_THREADS, max(blocks, 1))


def _step_block(lanes: int) -> int:
    """Return the entries of a block of the kernel of one step."""
    return _STEP_THREADS // lanes * _STEP_ENTRIES


def _possible(
    schedule: Schedule,
    op: str,
    *,
    entries: int,
    width: int,
    itemsize: int,
    gather: bool,
    sums: bool = True,
    depth: int | None = None,
    epilogue: bool = False,
    weights: int | None = None,
    **call: object,
) -> Schedule:
    """Return the schedule, or that of the walk where its kernel cannot do the call."""
    both_gradients = op == "segment_reduce_vjp"
    kernel, lanes, threads, _ = schedule
    depth = width if depth is None else depth
    word = word_features(depth, itemsize)
    possible = both_gradients or (op == "segment_reduce" and sums)
    one_pass = both_gradients and holds_heads(lanes, width, depth, itemsize)
    if one_pass:  # takes whole rows
        possible = lanes * word >= width
    if kernel == "step":
        sizes = entries <= _MAX_ENTRIES and width <= _MAX_FEATURES
        sizes = sizes and (weights or 0) <= _MAX_WEIGHTS
        teams = lanes >= _STEP_LANES if one_pass else lanes == _STEP_LANES
        possible = possible and sizes and teams and threads == _STEP_THREADS
    if kernel == "gather":  # words of half types leave no registers for dots
        reads = gather or both_gradients or epilogue or weights is not None
        possible = possible and word > 1 and reads and (itemsize == 4 or not one_pass)
    return schedule if possible else schedule._replace(kernel="walk")


FAMILY = Family(
    schedule=Schedule,
    allowed=(KERNELS, (1, 2, 4, 8, 16, 32), THREADS, MANY),
    ops=("segment_reduce", "segment_reduce_vjp", "segment_select", "softmax"),
    exact=("gather", "width", "itemsize"),
    sizes=("entries", "rows"),
    rule=_from_rule,
    possible=_possible,
    describe=lambda s: f"{s.kernel}, {s.lanes} lanes, {s.threads} threads, {s.blocks} blocks",
)


def covering_lanes(width: int, itemsize: int) -> int:
    """Return the lanes of a team that holds all features of a row, or of a whole warp.

    A lane reads 16 bytes where rows are aligned to that, else one feature.
    """
    width = concrete_width(width)
    return _lanes_of(width, word_features(width, itemsize))


def _lanes_of(features: int, word: int) -> int:
    lanes = 1
    while lanes < 32 and lanes * word < features:
        lanes *= 2
    return lanes


def word_features(width: int, itemsize: int) -> int:
    """Return the number of features that a lane reads at once."""
    return 16 // itemsize if width * itemsize % 16 == 0 else 1


def holds_heads(lanes: int, width: int, depth: int, itemsize: int) -> bool:
    """Whether one pass computes dots, too: a team of ``lanes`` holds whole heads of ``depth``."""
    word = word_features(depth, itemsize)
    if depth == 0 or word * itemsize < 4:  # copies into shared memory are of 4 bytes at least
        return False
    words, team = depth // word, min(lanes, _lanes_of(width, word))
    return words <= team and (depth == width or words & (words - 1) == 0)


def plan(
    op: str,
    csr: Csr,
    x: Operand,
    sums: bool = False,
    heads: int = 1,
    epilogue: bool = False,
    weight: Operand | None = None,
    beside: bool = False,
) -> tuple[dict[str, Any], list[Any]]:
    """Return the attributes of a kernel's schedule, and its workspace.

    Arguments are as in `_from_rule`. Kernels of other streams may run ``beside``.
    """
    width, itemsize = row_width(x), np.dtype(x.dtype).itemsize
    depth = concrete_width(width) // max(heads, 1)
    if op == "segment_reduce_vjp" and jax.export.is_symbolic_dim(width):
        depth = 0  # unknown: two passes
    schedule = FAMILY.choose(
        op,
        entries=csr.count,
        rows=csr.num_rows,
        width=width,
        itemsize=itemsize,
        gather=csr.cols is not None,
        sums=sums,
        depth=depth,
        cols=x.shape[0],
        epilogue=epilogue,
        ordered=csr.order is not None,
        weights=None if weight is None else weight.shape[0] * weight.shape[1],
    )
    if beside and schedule.kernel == "gather":
        schedule = schedule._replace(blocks=_BESIDE * schedule.blocks)
    attributes: dict[str, Any] = {
        "kernel": schedule.kernel,
        "lanes": np.int64(schedule.lanes),
        "threads": np.int64(schedule.threads),
    }
    if op == "segment_reduce_vjp":
        one_pass = holds_heads(schedule.lanes, concrete_width(width), depth, itemsize)
        attributes["one_pass"] = np.bool_(one_pass)
    # jax.core.min_dim and max_dim work for symbolic sizes, too.
    if schedule.kernel == "step":
        blocks = jax.core.max_dim(1, -(-csr.count // _step_block(schedule.lanes)))
    else:
        teams = schedule.threads // schedule.lanes
        blocks = jax.core.min_dim(schedule.blocks, jax.core.max_dim(1, -(-csr.count // teams)))
    return attributes, [block_workspace(blocks, width, np.dtype(accumulator_dtype(x.dtype)))]
