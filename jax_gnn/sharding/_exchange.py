"""Rows of nodes that go to other devices: when each is sent, and the sending itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import STATIC, add_rows, take
from jax_gnn._core.linear import Linear

MOST_ROWS = 1.12
"""How many times the rows that are wanted may be sent, padding included."""

PADDING_COSTS = 0.5
"""What a row of padding counts against a row that is wanted, where a round's pairs are chosen."""

COPY_ENGINES = {"xla_gpu_collective_permute_mode": "COLLECTIVES_PEER_MEMORY"}
"""What tells XLA to send rows by the copy engines of GPUs, from jaxlib 0.11 on."""

CANDIDATES = 32
"""How many sizes of a round are tried."""


class Round(NamedTuple):
    """One collective.

    Attributes:
        size: rows that each device sends, or sends to each.
        pairs: (from, to), each device at most once on either side; None where all send to all.
    """

    size: int
    pairs: tuple[tuple[int, int], ...] | None

    def slots(self, num_parts: int) -> int:
        """Rows that a device has room for."""
        return self.size if self.pairs is not None else self.size * num_parts

    def rows(self, num_parts: int) -> int:
        """Rows that travel, of all devices together; what a device sends to itself does not."""
        pairs = num_parts * (num_parts - 1) if self.pairs is None else len(self.pairs)
        return self.size * pairs


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Exchange:
    """How the devices of a mesh's axis fetch rows from each other; called in `jax.shard_map`.

    Its transpose sends back, and adds what comes to the gradients of own rows, in a fixed order.

    Attributes:
        send: ``(slots,)``, the own row that goes to each slot; -1 where none does.
        rounds: what is sent when; they share the slots out, in order.
        axis: the mesh's axis.
        num_own: number of own rows.
        by_copies: whether copy engines of GPUs send, as `COPY_ENGINES` tells XLA.
    """

    send: Array
    rounds: tuple[Round, ...] = field(metadata=STATIC)
    axis: str = field(metadata=STATIC)
    num_own: int = field(metadata=STATIC)
    by_copies: bool = field(default=False, metadata=STATIC)

    def __call__(self, x: Array, sent: Array | None = None) -> tuple[Array, Array]:
        """Own rows, and those that other devices send, zeros where they send none.

        What goes on with the first is differentiated before what came back is added to it.

        Args:
            x: ``(num_own, *features)``, this device's rows.
            sent: ``(slots, *features)``, of these what :meth:`picked` gives, if that is there
                sooner. It is not differentiated.

        Returns:
            x, and ``(slots, *features)`` in its dtype.

        Raises:
            ValueError: the call is not in `jax.shard_map`, or ``sent`` is of other rows.
        """
        self.check()
        if not self.rounds:
            return x, jnp.zeros((0, *x.shape[1:]), x.dtype)
        wanted = *self.send.shape, *x.shape[1:]
        if sent is not None and (sent.shape, sent.dtype) != (wanted, x.dtype):
            raise ValueError(
                f"sent must be {wanted} in {x.dtype}, as what Part.ahead gives for x, got "
                f"{sent.shape} in {sent.dtype}"
            )
        own, halo = _fetch(self, (x,)) if sent is None else _send(self, x, sent)
        return own, halo

    def check(self) -> None:
        """Raise ValueError where devices cannot exchange rows: outside of `jax.shard_map`."""
        try:
            jax.lax.axis_size(self.axis)
        except NameError:
            raise ValueError(
                f"part must be within ShardedGraph.apply, or jax.shard_map over {self.axis!r}, to "
                "fetch rows of other devices"
            ) from None

    def picked(self, x: Array) -> Array:
        """The row in each slot: ``(slots, *features)``, zeros where there is none."""
        return take(x, self.send)

    def travel(self, rows: Array, back: bool = False) -> Array:
        """What arrives in each slot of what all devices send, or send back."""
        size, found, start = jax.lax.axis_size(self.axis), [], 0
        for each in self.rounds:
            stop = start + each.slots(size)
            if each.pairs is None:
                found.append(jax.lax.all_to_all(rows[start:stop], self.axis, 0, 0, tiled=True))
            else:
                pairs = [pair[::-1] for pair in each.pairs] if back else each.pairs
                found.append(jax.lax.ppermute(rows[start:stop], self.axis, pairs))
            start = stop
        return jnp.concatenate(found)

    def add(self, own: Array, back: Array) -> Array:
        """Own rows, and to each what comes back from the slots that it went to, in their order."""
        # A piece is of one device, which a row goes to once: so XLA adds in place.
        size, start = jax.lax.axis_size(self.axis), 0
        for each in self.rounds:
            for _ in range(size if each.pairs is None else 1):
                ids, rows = (of[start : start + each.size] for of in (self.send, back))
                own = add_rows(own, ids, rows)
                start += each.size
        return own


def _fetched(exchange: Exchange, moving: tuple[Array]) -> list[Array]:
    (x,) = moving
    return [x, exchange.travel(exchange.picked(x))]


def _brought_back(exchange: Exchange, moving: Any, cts: list[Array | None]) -> tuple[Array | None]:
    del moving
    own, halo = cts
    if halo is None:
        return (own,)
    back = exchange.travel(halo, back=True)
    own = jnp.zeros((exchange.num_own, *back.shape[1:]), back.dtype) if own is None else own
    return (exchange.add(own, back),)


_fetch = Linear(
    name="fetch_rows",
    result=lambda exchange, moving: [
        moving[0],
        jax.ShapeDtypeStruct((*exchange.send.shape, *moving[0].shape[1:]), moving[0].dtype),
    ],
    function=_fetched,
    transpose=_brought_back,
)


@jax.custom_jvp
def _send(exchange: Exchange, x: Array, sent: Array) -> tuple[Array, Array]:
    return x, exchange.travel(sent)


@_send.defjvp
def _send_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    return _send(*primals), tuple(_fetch(primals[0], (tangents[1],)))


def rounds_of(counts: np.ndarray) -> tuple[Round, ...]:
    """The fewest rounds found that send no more than `MOST_ROWS` times what is wanted.

    All send to all at once where pairs are much alike. Else each round is a matching of senders and
    receivers of which most rows can be sent, where those with more rows send the rest later.

    Args:
        counts: ``(num_parts, num_parts)``, how many rows of the first the second wants.
    """
    num_parts, wanted = len(counts), int(counts.sum())
    if not wanted:
        return ()
    everything = Round(int(counts.max()), None)
    if num_parts > 2 and everything.rows(num_parts) <= MOST_ROWS * wanted:
        return (everything,)
    rounds, left = [], counts.copy()
    while left.any():
        best = _best_round(left)
        rounds.append(best)
        for pair in best.pairs or ():
            left[pair] = max(left[pair] - best.size, 0)
    return tuple(rounds)


def _best_round(left: np.ndarray) -> Round:
    """Of several sizes the round that gets most rows through without too much padding."""
    from scipy.optimize import linear_sum_assignment

    sizes = np.unique(left[left > 0])
    if len(sizes) > CANDIDATES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, CANDIDATES).astype(int)]
    best, most = Round(1, ()), 0
    for size in sizes.tolist():
        sent = np.minimum(left, size)
        gain = np.maximum(sent - PADDING_COSTS * (size - sent), 0)
        matching = zip(*linear_sum_assignment(gain, maximize=True), strict=True)
        kept = [(int(a), int(b)) for a, b in matching if gain[a, b] > 0]
        kept.sort(key=lambda pair: -sent[pair])
        while size * len(kept) > MOST_ROWS * sum(int(sent[pair]) for pair in kept):
            kept.pop()
        useful = sum(int(sent[pair]) for pair in kept)
        if useful >= most:
            best, most = Round(size, tuple(sorted(kept))), useful
    return best


class Share(NamedTuple):
    """Rows of a pair's list, ``start`` to ``stop``, and their first slots at both ends."""

    start: int
    stop: int
    sender: int
    receiver: int


def shares_of(
    rounds: tuple[Round, ...], num_parts: int, owner: int, reader: int, count: int
) -> Iterator[Share]:
    """Where the rows that an owner sends to a reader stand."""
    start = first = 0
    for each in rounds:
        stop = min(start + each.size, count)
        if each.pairs is None:
            yield Share(start, stop, first + reader * each.size, first + owner * each.size)
            start = stop
        elif (owner, reader) in each.pairs:
            yield Share(start, stop, first, first)
            start = stop
        first += each.slots(num_parts)
