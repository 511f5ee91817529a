"""Exchange of node rows between devices: rounds of collectives, and their transfers.

The *owner* of a row is the device of its node; a *reader* is another device with an edge from that
node. Rows travel in *rounds*, one collective each. A *slot* is room for one row of the exchange, on
the sender as on the receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import STATIC, add_rows, take
from jax_gnn._core.linear import Linear

MAX_SENT_RATIO = 1.12
"""Upper bound of the rows that are sent, padding included, for each row that is needed."""

PADDING_COST = 0.5
"""Cost of a row of padding, in needed rows, where the pairs of a round are chosen."""

COPY_ENGINES = {"xla_gpu_collective_permute_mode": "COLLECTIVES_PEER_MEMORY"}
"""Compiler options by which XLA sends rows with copy engines of GPUs, from jaxlib 0.11 on."""

MAX_CANDIDATES = 32
"""Number of sizes that are tried for a round."""


class Round(NamedTuple):
    """One collective.

    Attributes:
        size: number of rows that a device sends, to its receiver or to each device.
        pairs: (sender, receiver), each device at most once on either side; None if all devices
            send to all.
    """

    size: int
    pairs: tuple[tuple[int, int], ...] | None

    def slots(self, num_parts: int) -> int:
        """Return the number of slots of a device."""
        return self.size if self.pairs is not None else self.size * num_parts

    def rows(self, num_parts: int) -> int:
        """Return the number of rows that all devices together send to other devices."""
        pairs = num_parts * (num_parts - 1) if self.pairs is None else len(self.pairs)
        return self.size * pairs


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Exchange:
    """Plan by which the devices of a mesh axis fetch rows; called inside `jax.shard_map`.

    Its transpose sends gradients of the received rows back to the owners, which add them in a fixed
    order.
    """

    send: Array  # (slots,), the local row that is sent in each slot; -1 is padding
    # The collectives, which share the slots out in order.
    rounds: tuple[Round, ...] = field(metadata=STATIC)
    axis: str = field(metadata=STATIC)  # name of the mesh axis
    num_own: int = field(metadata=STATIC)  # number of local rows
    # Whether copy engines of GPUs send the rows (see `COPY_ENGINES`).
    by_copies: bool = field(default=False, metadata=STATIC)

    def __call__(self, x: Array, sent: Array | None = None) -> tuple[Array, Array]:
        """Return the local rows, and the halo: the rows that arrive from other devices.

        Users of the first result are differentiated before returned gradients are added to it.

        Args:
            x: ``(num_own, *features)``, the local rows.
            sent: ``(slots, *features)``, the result of :meth:`gather_sent` of x, if it is computed
                earlier than x. It is not differentiated.

        Returns:
            x, and ``(slots, *features)`` in its dtype, zeros in slots without a row.

        Raises:
            ValueError: the call is not in `jax.shard_map`, or ``sent`` has another shape or dtype.
        """
        self.check()
        if not self.rounds:
            return x, jnp.zeros((0, *x.shape[1:]), x.dtype)
        shape = (*self.send.shape, *x.shape[1:])
        if sent is not None and (sent.shape, sent.dtype) != (shape, x.dtype):
            raise ValueError(
                f"sent must be {shape} in {x.dtype}, as what Part.ahead gives for x, got "
                f"{sent.shape} in {sent.dtype}"
            )
        # Rows that were mapped early are not differentiated: their gradient goes to x.
        local, halo = _fetch(self, (x,)) if sent is None else _send(self, x, sent)
        return local, halo

    def check(self) -> None:
        """Raise ValueError outside `jax.shard_map`, where devices cannot exchange rows."""
        try:
            jax.lax.axis_size(self.axis)
        except NameError:
            raise ValueError(
                f"part must be within ShardedGraph.apply, or jax.shard_map over {self.axis!r}, to "
                "fetch rows of other devices"
            ) from None

    def gather_sent(self, x: Array) -> Array:
        """Return the row of each slot, ``(slots, *features)``, zeros in slots without a row."""
        return take(x, self.send)

    def transfer(self, rows: Array, reverse: bool = False) -> Array:
        """Run the collectives: return the row that arrives in each slot, or reversed."""
        size, start, arrived = jax.lax.axis_size(self.axis), 0, []
        for step in self.rounds:
            stop = start + step.slots(size)
            if step.pairs is None:
                arrived.append(jax.lax.all_to_all(rows[start:stop], self.axis, 0, 0, tiled=True))
            else:
                pairs = [pair[::-1] for pair in step.pairs] if reverse else step.pairs
                arrived.append(jax.lax.ppermute(rows[start:stop], self.axis, pairs))
            start = stop
        return jnp.concatenate(arrived)

    def add(self, x: Array, rows: Array) -> Array:
        """Add returned rows, ``(slots, *features)``, to the local rows x that they were sent from.

        The order of the sum is that of the slots.
        """
        # Within the piece of one receiver a row occurs once: XLA can add in place.
        size, start = jax.lax.axis_size(self.axis), 0
        for step in self.rounds:
            for _ in range(size if step.pairs is None else 1):
                stop = start + step.size
                x = add_rows(x, self.send[start:stop], rows[start:stop])
                start = stop
        return x


def _fetch_transpose(
    exchange: Exchange, operands: Sequence[Array | None], cotangents: list[Array | None]
) -> tuple[Array | None]:
    local, halo = cotangents
    if halo is None:
        return (local,)
    rows = exchange.transfer(halo, reverse=True)
    # Only the halo has a gradient, so it is added to zeros.
    if local is None:
        local = jnp.zeros((exchange.num_own, *rows.shape[1:]), rows.dtype)
    return (exchange.add(local, rows),)


_fetch = Linear(
    name="fetch_rows",
    result=lambda exchange, operands: [
        operands[0],
        jax.ShapeDtypeStruct((*exchange.send.shape, *operands[0].shape[1:]), operands[0].dtype),
    ],
    function=lambda exchange, operands: [
        operands[0],
        exchange.transfer(exchange.gather_sent(operands[0])),
    ],
    transpose=_fetch_transpose,
)


@jax.custom_jvp
def _send(exchange: Exchange, x: Array, sent: Array) -> tuple[Array, Array]:
    return x, exchange.transfer(sent)


@_send.defjvp
def _send_jvp(
    primals: tuple[Exchange, Array, Array], tangents: tuple[object, Array, object]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    # The tangent of ``sent`` is that of x at the same rows, so it is fetched from x.
    local, halo = _fetch(primals[0], (tangents[1],))
    return _send(*primals), (local, halo)


# --- Plans ---------------------------------------------------------------------------------------


def plan_rounds(counts: np.ndarray) -> tuple[Round, ...]:
    """Choose few rounds that send at most `MAX_SENT_RATIO` rows for each row that is needed.

    All devices send to all at once if their counts, of rows of the first that the second needs, are
    similar. Otherwise each round is a matching of senders and receivers; pairs with more rows than
    the round's size send the others later.
    """
    num_parts, needed = len(counts), int(counts.sum())
    if not needed:
        return ()
    all_to_all = Round(int(counts.max()), None)
    if num_parts > 2 and all_to_all.rows(num_parts) <= MAX_SENT_RATIO * needed:
        return (all_to_all,)
    # Greedy: each round sends as many needed rows as possible.
    rounds, remaining = [], counts.copy()
    while remaining.any():
        step = _largest_round(remaining)
        rounds.append(step)
        for pair in step.pairs or ():
            remaining[pair] = max(remaining[pair] - step.size, 0)
    return tuple(rounds)


def _largest_round(counts: np.ndarray) -> Round:
    """Return the round that sends the most needed rows within `MAX_SENT_RATIO`."""
    from scipy.optimize import linear_sum_assignment

    sizes = np.unique(counts[counts > 0])
    if len(sizes) > MAX_CANDIDATES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, MAX_CANDIDATES).astype(int)]
    best, most = Round(1, ()), 0
    for size in sizes.tolist():
        sent = np.minimum(counts, size)
        gain = np.maximum(sent - PADDING_COST * (size - sent), 0)
        matching = zip(*linear_sum_assignment(gain, maximize=True), strict=True)
        pairs = [(int(sender), int(receiver)) for sender, receiver in matching]
        pairs = sorted((pair for pair in pairs if gain[pair] > 0), key=lambda pair: -sent[pair])
        # Pairs with the fewest rows are dropped until the padding is within bounds.
        while size * len(pairs) > MAX_SENT_RATIO * sum(int(sent[pair]) for pair in pairs):
            pairs.pop()
        useful = sum(int(sent[pair]) for pair in pairs)
        if useful >= most:
            best, most = Round(size, tuple(sorted(pairs))), useful
    return best


class Share(NamedTuple):
    """Part of the rows that one device sends to another, in one round."""

    start: int  # position of the first row in the pair's list of rows
    stop: int  # position after the last row
    sender: int  # first slot at the sender
    receiver: int  # first slot at the receiver


def plan_shares(
    rounds: tuple[Round, ...], num_parts: int, owner: int, reader: int, count: int
) -> Iterator[Share]:
    """Deal ``count`` rows, which an owner sends to a reader, out to the slots of the rounds."""
    start = slot = 0
    for step in rounds:
        stop = min(start + step.size, count)
        if step.pairs is None:
            yield Share(start, stop, slot + reader * step.size, slot + owner * step.size)
            start = stop
        elif (owner, reader) in step.pairs:
            yield Share(start, stop, slot, slot)
            start = stop
        slot += step.slots(num_parts)
