"""Which CUDA kernel attention gets: chosen here, from shapes alone. C++ refuses what it cannot do.

Forward a walk goes through the entries, or a kernel where a team of lanes has one step of them and
no more. Backward it is one pass by source, or in one step all gradients. Where heads are no whole
words of 16 bytes, the gradients of scores that are numbers take passes of segments' kernels.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.export
import numpy as np

from jax_gnn._core import ffi
from jax_gnn._core.arrays import accumulator_dtype, row_width
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._core.ids import at_most
from jax_gnn._core.schedule import concrete_width
from jax_gnn._ops.segment_reduce.schedule import word_features

# The kernel of one step (segment_step.cuh): threads of a block, entries of a team, and its lanes,
# where scores are numbers and where they are made of keys, of which it has whole heads.
_THREADS, _ENTRIES, _LANES, _KEYED_LANES = 256, 8, 8, 16
_MOST_TILES, _MOST_FEATURES, _MOST_WEIGHTS = 2**16 - 1, 2**20, 2**32

# Entries times tiles of 8 lanes, up to which one step is faster on an H200. Keys apart from values
# take twice the shared memory: of those a multiprocessor has one block.
_SMALL, _SMALL_SAME = 2**16, 3 * 2**15

# Entries up to which the walk of leaky_sum is faster than that where each team has its own.
_FEW = 2**17

# The kernel that has all gradients in one launch (attention_gradients.cuh): words of 16 bytes in a
# tile, and entries of a block. And entries times tiles up to which it is the faster one on an H100;
# half as many where scores are numbers of several heads.
_TILE_WORDS, _GRADIENTS_BLOCK, _SMALL_GRADIENTS = 16, 48, 2**15


def holds_whole_heads(value: Any, heads: int) -> bool:
    """Whether a team of lanes does, in words of 16 bytes; as in ffi/attention.h."""
    width = row_width(value)
    if jax.export.is_symbolic_dim(width):
        return False
    words, rest = divmod(width * np.dtype(value.dtype).itemsize, 16 * max(heads, 1))
    return rest == 0 and 1 <= words <= 32 and (heads == 1 or words.bit_count() == 1)


def choose_sum(
    csr: Csr, value: Any, heads: int, keys: int | None, weights: Any
) -> Literal["walk", "step"]:
    """The kernel of sums under a softmax.

    Args:
        csr: The entries by row.
        value: ``(columns, heads · features)``.
        heads: Number of heads.
        keys: Rows that an entry's score is made of, besides values; None: scores have no kernel of
            one step.
        weights: Numbers that entries have for themselves, of each head.
    """
    width, dtype = row_width(value), np.dtype(value.dtype)
    if keys is None or not at_most(width, _MOST_FEATURES):
        return "walk"
    word = word_features(width // heads, dtype.itemsize)
    lanes = _KEYED_LANES if keys else _LANES
    if keys and width // heads > lanes * word:
        return "walk"
    tiles = -(-width // (lanes * word))
    small = _SMALL_SAME if keys == 1 else _SMALL
    few = at_most(csr.count * tiles * (lanes // _LANES), small) and tiles <= _MOST_TILES
    few = few and at_most(weights * heads, _MOST_WEIGHTS)
    return (
        "step" if few and _step_bytes(lanes, word, dtype, keys) <= ffi.shared_memory() else "walk"
    )


def _step_bytes(lanes: int, word: int, dtype: Any, keys: int) -> int:
    """Shared memory of a block of the kernel of one step, but for what aligns it."""
    acc = np.dtype(accumulator_dtype(dtype)).itemsize
    window = 2 * _THREADS // lanes * _ENTRIES
    teams = (2 * _THREADS + lanes) * (word + 2) * acc  # what they leave
    # Of the block's entries and of those before: numbers that scores are made of, and keys.
    of_entry = 2 * ((2 if keys else 3) * acc + keys * word * dtype.itemsize)
    return 3 * 4 * window + teams + _THREADS * _ENTRIES * of_entry


def choose_slopes(csr: Csr, key: Any, heads: int) -> Literal["walk", "gather"]:
    """The kernel of ``leaky_sum``, whose keys are ``(columns, heads · features)``."""
    depth = concrete_width(row_width(key)) // max(heads, 1)
    wide = not jax.export.is_symbolic_dim(row_width(key))
    wide = wide and word_features(depth, np.dtype(key.dtype).itemsize) > 1
    return "gather" if wide and not at_most(csr.count, _FEW) else "walk"


def blocks_in_step(matrix: SparseMatrix, value: Any, heads: int, keys: int | None) -> int | None:
    """Blocks of the kernel that has all gradients in one launch, or None where others have them.

    It is for few entries, of which none is left out by an order, and for whole heads.
    """
    by_row, by_col = matrix
    if by_row.order is not None or by_row.cols is None or by_col.cols is None:
        return None
    if not holds_whole_heads(value, heads):
        return None
    words = row_width(value) * np.dtype(value.dtype).itemsize // 16
    of_head = words // heads
    # Many heads of double precision would want more shared memory than all GPUs have.
    if of_head > _TILE_WORDS or (value.dtype == np.float64 and heads > 1 and of_head < 2):
        return None
    count, tiles = by_row.count, -(-words // _TILE_WORDS)
    # Where most rows are empty they are filled by launches of their own.
    sizes = by_row.num_rows, by_col.num_rows
    if not (at_most(1, count) and all(at_most(size, 2 * count) for size in sizes)):
        return None
    small = _SMALL_GRADIENTS if keys or heads == 1 else _SMALL_GRADIENTS // 2
    if not at_most(count * tiles, small):
        return None
    return 3 * -(-count // _GRADIENTS_BLOCK)  # of both ends, and of parts of a vector
