"""Sums of finer rows than those of the softmax.

Of edges that go into finer rows, attention has the softmax of each by itself. That of a destination
differs from those of its finer rows by a factor of each, which follows from the statistics.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_gnn._core.csr import SparseMatrix
from jax_gnn._ops.segment_softmax.primitive import segment_softmax


def shares(
    stats: Array,
    matrix: SparseMatrix,
    shift: Array | None = None,
    implementation: str | None = None,
) -> Array:
    """What finer rows count in the softmax of their destination, ``(finer rows, heads)``.

    Their logarithms are rounded as scores of that size are.

    Args:
        stats: Of attention over the finer rows, ``(finer rows, heads, 2)``.
        matrix: What sums these in their destinations.
        shift: What is added to all scores of a finer row, ``(finer rows, heads)``; or None.
        implementation: Of the kernels.
    """
    logarithms = logsumexp(stats)
    logarithms = logarithms if shift is None else logarithms + shift.astype(logarithms.dtype)
    least = jnp.finfo(stats.dtype).min / 4  # differences of -inf are no number
    scores = jnp.maximum(logarithms, least)
    return segment_softmax(scores, matrix, implementation=implementation)


def logsumexp(stats: Array) -> Array:
    """Of the scores of each row, of the statistics of its softmax; -inf where it has none."""
    top, log_sum = stats[..., 0], stats[..., 1]
    empty = log_sum == jnp.inf
    return jnp.where(empty, -jnp.inf, top + jnp.where(empty, 0, log_sum))
