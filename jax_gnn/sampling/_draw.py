"""Which edges of each node are drawn: places among the edges of a row, in as many columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.op import align_varying
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
    rows = jnp.arange(degrees.shape[0], dtype=jnp.uint32)
    sizes = degrees.astype(jnp.uint32)
    if replace:
        steps = jnp.arange(fanout, dtype=jnp.uint32)
        shape = degrees.shape[0], fanout
        index = jnp.broadcast_to(rows[:, None], shape)
        random = bits(key, stream, index, jnp.broadcast_to(steps, shape))
        counts = jnp.where(degrees > 0, fanout, 0).astype(degrees.dtype)
        return below(random, sizes[:, None]).astype(degrees.dtype), counts

    wanted = jnp.uint32(fanout)
    first = jnp.where(sizes > wanted, sizes - wanted, 0)  # what round 0 draws among, less one
    is_all = sizes <= wanted

    def draw(step: Any) -> tuple[Array, Array]:
        last = first + jnp.asarray(step).astype(jnp.uint32)
        return last, below(bits(key, stream, rows, step), last + 1)

    if fanout <= _UNROLLED:
        columns: list[Array] = []
        for step in range(fanout):
            last, drawn = draw(step)
            for other in columns:
                drawn = jnp.where(other == drawn, last, drawn)
            columns.append(jnp.where(is_all, jnp.uint32(step), drawn))
        places = jnp.stack(columns, axis=1)
    else:
        steps = jnp.arange(fanout)[:, None]

        def body(step: Array, places: Array) -> Array:
            last, drawn = draw(step)
            had = ((places == drawn[None]) & (steps < step)).any(axis=0)
            drawn = jnp.where(had, last, drawn)
            return places.at[step].set(jnp.where(is_all, step.astype(jnp.uint32), drawn))

        none = jnp.zeros((fanout, degrees.shape[0]), jnp.uint32)
        none = align_varying([none, sizes, *key])[0]  # a loop's state varies as what it becomes
        places = jax.lax.fori_loop(0, fanout, body, none).T
    return places.astype(degrees.dtype), jnp.minimum(degrees, fanout)


def first_place(starts: Array, ends: Array, holds: Callable[[Array], Array]) -> Array:
    """The first place from which on something holds, by binary search; ``ends`` if nowhere.

    Args:
        starts: ``(rows,)``, where to begin.
        ends: ``(rows,)``, where to end: the place before is the last one to look at.
        holds: tells of places, ``(rows,)``, whether it does.
    """

    def once(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        found, goes_on = holds(middle), low < high
        return (
            jnp.where(goes_on & ~found, middle + 1, low),
            jnp.where(goes_on & found, middle, high),
        )

    return jax.lax.while_loop(lambda bounds: (bounds[0] < bounds[1]).any(), once, (starts, ends))[0]
