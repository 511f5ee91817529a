"""Which edges of each node are drawn: places among the edges of a row, in as many columns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn.sampling._random import below, bits

_UNROLLED = 32  # rounds up to so many are one fused loop over rows, without a pass for each


def uniform(
    degrees: Array, fanout: int, key: tuple[Any, Any], stream: int, *, replace: bool
) -> tuple[Array, Array]:
    """Draws edges of each row, all equally likely.

    Without replacement by Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM
    1987): round j draws among the first ``degree - fanout + j + 1`` edges, and takes the last of
    these where it draws one that it had. Each subset is equally likely, and a row of a million
    edges takes as long as one of ten.

    Args:
        degrees: ``(rows,)`` integers from 0.
        fanout: how many edges are wanted of each.
        key: two words.
        stream: which numbers of the key are used.
        replace: whether an edge may be drawn again.

    Returns:
        ``(rows, fanout)`` places from 0, of the type of ``degrees``; and how many of them count,
        ``(rows,)``: the first ones.
    """
    shape = fanout, degrees.shape[0]
    rows = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.uint32)[None], shape)
    steps = jnp.broadcast_to(jnp.arange(fanout, dtype=jnp.uint32)[:, None], shape)
    random, sizes = bits(key, stream, rows, steps), degrees.astype(jnp.uint32)[None]
    if replace:
        counts = jnp.where(degrees > 0, fanout, 0).astype(degrees.dtype)
        return below(random, sizes).T.astype(degrees.dtype), counts

    wanted = jnp.uint32(fanout)
    last = jnp.where(sizes > wanted, sizes - wanted, 0) + steps
    drawn = below(random, last + 1)
    if fanout <= _UNROLLED:
        columns: list[Array] = []
        for step in range(fanout):
            column = drawn[step]
            for other in columns:
                column = jnp.where(other == column, last[step], column)
            columns.append(column)
        drawn = jnp.stack(columns)
    else:

        def body(step: Array, drawn: Array) -> Array:
            had = ((drawn == drawn[step][None]) & (steps < step.astype(jnp.uint32))).any(axis=0)
            return drawn.at[step].set(jnp.where(had, last[step], drawn[step]))

        drawn = jax.lax.fori_loop(0, fanout, body, drawn)
    places = jnp.where(sizes <= wanted, steps, drawn).T.astype(degrees.dtype)
    return places, jnp.minimum(degrees, fanout)
