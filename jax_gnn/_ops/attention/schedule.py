"""Choice of the CUDA kernel of attention, from shapes alone; C++ refuses calls that do not fit.

Forward, the *walk* goes through the entries of each row in a loop; the *step* kernel gives each
team of lanes a single step of entries, for small sums. Backward, one pass over the entries by
source has all gradients but those of rows; a kernel of a single step has all of them. Where heads
are not whole words of 16 bytes, gradients of scores of numbers take passes of segment kernels.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import jax
import jax.export
import numpy as np

from jax_gnn._core import ffi
from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import at_most
from jax_gnn._core.kernels import max_blocks
from jax_gnn._core.schedule import Family, concrete_width, from_tree, sum_features
from jax_gnn._ops.segment_reduce.schedule import word_features

# The step kernel (segment_step.cuh): threads of a block, entries of a team, and lanes of a team,
# for scores that are numbers and for scores of keys, of which a team holds whole heads.
_THREADS, _ENTRIES, _LANES, _KEYED_LANES = 256, 8, 8, 16
_MAX_TILES, _MAX_FEATURES, _MAX_WEIGHTS = 2**16 - 1, 2**20, 2**32

# Entries times tiles of 8 lanes, up to which the step kernel is faster on an H200. Keys that are
# not the values take twice the shared memory, so that a multiprocessor holds a single block.
_MAX_STEP, _MAX_STEP_VALUE_KEYS = 2**16, 3 * 2**15

# Entries up to which the walk of leaky_sum is faster than the kernel of a team for each entry.
_MAX_WALK = 2**17

# The kernel of all gradients in one launch (attention_gradients.cuh): words of 16 bytes in a tile,
# entries of a block, and entries times tiles up to which it is faster on an H100; half as many
# where scores are numbers of several heads.
_TILE_WORDS, _GRADIENTS_BLOCK, _MAX_GRADIENTS = 16, 48, 2**15

Kernel = Literal["walk", "step", "gather"]


class AttentionSchedule(NamedTuple):
    """The kernel of attention over edges; where it cannot do a call, the walk does it.

    Attributes:
        kernel: ``"walk"`` goes through the entries of each row in a loop, backward after passes
            over the rows. ``"step"`` gives each team of lanes a single step of entries; backward it
            has all gradients in one launch. ``"gather"`` is for slopes of GATv2 alone: each team
            has a range of entries.
    """

    kernel: Kernel


def by_hand(
    op: str,  # `"attention"`, `"attention_vjp"` or `"leaky_sum"`
    *,
    entries: int,  # number of entries
    rows: int,  # number of rows that entries are reduced into
    cols: int,  # number of rows that entries read
    width: int,  # number of features of values, of all heads
    itemsize: int,  # bytes of a feature
    heads: int,
    keys: int,  # number of arrays from which scores are computed, 0 for scores that are numbers
) -> AttentionSchedule:
    """Return the kernel of a call that all kernels can do, from measurements."""
    if op == "leaky_sum":
        return AttentionSchedule("walk" if entries <= _MAX_WALK else "gather")
    if op == "attention_vjp":
        tiles = -(-width * itemsize // (16 * _TILE_WORDS))
        max_step = _MAX_GRADIENTS if keys or heads == 1 else _MAX_GRADIENTS // 2
    else:
        tiles = -(-width // (_LANES * word_features(width // heads, itemsize)))
        tiles += tiles % 2 if keys else 0
        max_step = _MAX_STEP_VALUE_KEYS if keys == 1 else _MAX_STEP
    return AttentionSchedule("step" if entries * tiles <= max_step else "walk")


def tree_features(
    *, entries: int, rows: int, cols: int, width: int, itemsize: int, heads: int, keys: int
) -> dict[str, float]:
    """Return the inputs of a tree for a call as in `by_hand`."""
    words = -(-width // word_features(width // max(heads, 1), itemsize))
    options = {"words": words, "heads": heads, "keys": keys, "work": entries * words}
    return sum_features(entries, rows, cols, width * itemsize, **options)


def _from_rule(op: str, **call: int) -> AttentionSchedule:
    """Return the kernel of the tree of this process's GPUs, or that by hand without a tree."""
    leaf = from_tree(op, tree_features(**call)) if call["itemsize"] <= 4 else None
    return AttentionSchedule(cast(Kernel, leaf)) if leaf else by_hand(op, **call)


def _possible(schedule: AttentionSchedule, op: str, **call: int) -> AttentionSchedule:
    unknown = "step" if op == "leaky_sum" else "gather"
    return AttentionSchedule("walk") if schedule.kernel == unknown else schedule


FAMILY = Family(
    schedule=AttentionSchedule,
    allowed=(get_args(Kernel),),
    ops=("attention", "attention_vjp", "leaky_sum"),
    exact=("heads", "keys", "width", "itemsize"),
    sizes=("entries", "rows"),
    rule=_from_rule,
    possible=_possible,
    describe=lambda schedule: schedule.kernel,
)


def _choose(op: str, csr: Csr, value: Shaped, heads: int, keys: int | None) -> Kernel:
    """Return the kernel of a call that all kernels can do."""
    schedule: AttentionSchedule = FAMILY.choose(
        op,
        entries=csr.count,
        rows=csr.num_rows,
        cols=value.shape[0],
        width=row_width(value),
        itemsize=np.dtype(value.dtype).itemsize,
        heads=heads,
        keys=keys or 0,
    )
    return schedule.kernel


class Shaped(Protocol):
    """An array, or an operand or abstract value of its shape and dtype."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


def holds_whole_heads(value: Shaped, heads: int) -> bool:
    """Return whether a team of lanes holds whole heads in words of 16 bytes (ffi/attention.h)."""
    width = row_width(value)
    if jax.export.is_symbolic_dim(width):
        return False
    words, remainder = divmod(width * np.dtype(value.dtype).itemsize, 16 * max(heads, 1))
    return remainder == 0 and 1 <= words <= 32 and (heads == 1 or words.bit_count() == 1)


def choose_sum(csr: Csr, value: Shaped, heads: int, keys: int | None, weights: int) -> Kernel:
    """Choose the kernel of sums under a softmax.

    Scores are computed from so many arrays of ``keys``, None if the step kernel cannot compute
    them. Arrays of edges have ``weights`` rows, with a number for each head.
    """
    width, dtype = row_width(value), np.dtype(value.dtype)
    if keys is None or not at_most(width, _MAX_FEATURES):
        return "walk"
    word = word_features(width // heads, dtype.itemsize)
    lanes = _KEYED_LANES if keys else _LANES
    if keys and width // heads > lanes * word:
        return "walk"
    fits = -(-width // (lanes * word)) <= _MAX_TILES and at_most(weights * heads, _MAX_WEIGHTS)
    # The workspace has a row for each block, as many as the walk has.
    fits = fits and at_most(csr.count, max_blocks(csr) * (_THREADS // lanes * _ENTRIES))
    fits = fits and _step_bytes(lanes, word, dtype, keys) <= ffi.shared_memory()
    return _choose("attention", csr, value, heads, keys) if fits else "walk"


def _step_bytes(lanes: int, word: int, dtype: np.dtype[Any], keys: int) -> int:
    """Return the shared memory of a block of the step kernel, without padding for alignment."""
    acc = np.dtype(accumulator_dtype(dtype)).itemsize
    window = 2 * _THREADS // lanes * _ENTRIES
    partial_sums = (2 * _THREADS + lanes) * (word + 2) * acc
    # Two windows, the block's entries and those before: numbers of the scores, and keys.
    entry_bytes = 2 * ((2 if keys else 3) * acc + keys * word * dtype.itemsize)
    return int(3 * 4 * window + partial_sums + _THREADS * _ENTRIES * entry_bytes)


def choose_slopes(csr: Csr, key: Shaped, heads: int) -> Kernel:
    """Choose the kernel of ``leaky_sum``, whose keys are ``(columns, heads · features)``."""
    depth = concrete_width(row_width(key)) // max(heads, 1)
    has_words = not jax.export.is_symbolic_dim(row_width(key))
    has_words = has_words and word_features(depth, np.dtype(key.dtype).itemsize) > 1
    return _choose("leaky_sum", csr, key, heads, keys=2) if has_words else "walk"


def blocks_in_step(matrix: SparseMatrix, value: Shaped, heads: int, keys: int | None) -> int | None:
    """Return the blocks of the kernel of all gradients in one launch, or None if it does not fit.

    The kernel is for few entries, for whole heads, and for entries that all have columns.
    """
    by_row, by_col = matrix
    if by_row.order is not None or by_row.cols is None or by_col.cols is None:
        return None
    if not holds_whole_heads(value, heads):
        return None
    words = row_width(value) * np.dtype(value.dtype).itemsize // 16
    head_words = words // heads
    # Many narrow heads in double precision need more shared memory than GPUs have.
    if head_words > _TILE_WORDS or (value.dtype == np.float64 and heads > 1 and head_words < 2):
        return None
    count = by_row.count
    # If most rows are empty, separate launches fill them.
    sizes = by_row.num_rows, by_col.num_rows
    if not (at_most(1, count) and all(at_most(size, 2 * count) for size in sizes)):
        return None
    if not at_most(count, 2**31) or _choose("attention_vjp", by_row, value, heads, keys) != "step":
        return None
    # Blocks by row, by column, and for partial gradients of a vector.
    return 3 * -(-count // _GRADIENTS_BLOCK)
