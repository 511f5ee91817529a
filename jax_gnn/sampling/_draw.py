"""Uniform draws among the edges of each node, as offsets into the node's row of edges."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn.sampling._random import KeyWords, bits, integers_below

_MAX_UNROLLED = 32  # rounds up to this fanout are one fused loop over rows, without a pass for each


def uniform(
    degrees: Array, key: KeyWords | Array, *, fanout: int, stream: int, replace: bool
) -> list[Array]:
    """Draw edges of each row, all equally likely.

    Without replacement this is Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM
    1987): round j draws among the first ``degree - fanout + j + 1`` edges, and takes the last of
    these if the edge was drawn before. All subsets are equally likely, and a row of a million edges
    takes as long as one of ten.

    Args:
        degrees: ``(rows,)`` integers from 0.
        key: two words.
        fanout: number of edges to draw from each row.
        stream: number of the random stream.
        replace: whether an edge may be drawn again.

    Returns:
        ``(rows, fanout)`` offsets from 0, in the dtype of ``degrees``; and the number of valid
        draws of each row, ``(rows,)``, which come first.
    """
    shape = fanout, degrees.shape[0]
    rows = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.uint32)[None], shape)
    steps = jnp.broadcast_to(jnp.arange(fanout, dtype=jnp.uint32)[:, None], shape)
    random = bits((key[0], key[1]), stream, rows, steps)
    sizes = degrees.astype(jnp.uint32)[None]
    if replace:
        counts = jnp.where(degrees > 0, fanout, 0).astype(degrees.dtype)
        return [integers_below(random, sizes).T.astype(degrees.dtype), counts]

    size = jnp.uint32(fanout)
    # Round j may take edges up to `limits[j]`; that edge itself has not been drawn before.
    limits = jnp.where(sizes > size, sizes - size, 0) + steps
    drawn = integers_below(random, limits + 1)
    if fanout <= _MAX_UNROLLED:
        columns: list[Array] = []
        for step in range(fanout):
            column = drawn[step]
            for earlier in columns:
                column = jnp.where(earlier == column, limits[step], column)
            columns.append(column)
        drawn = jnp.stack(columns)
    else:

        def body(step: Array, drawn: Array) -> Array:
            repeats = (drawn == drawn[step][None]) & (steps < step.astype(jnp.uint32))
            return drawn.at[step].set(jnp.where(repeats.any(axis=0), limits[step], drawn[step]))

        drawn = jax.lax.fori_loop(0, fanout, body, drawn)
    # Rows of no more than `fanout` edges are taken whole, in order.
    offsets = jnp.where(sizes <= size, steps, drawn).T.astype(degrees.dtype)
    return [offsets, jnp.minimum(degrees, fanout)]
