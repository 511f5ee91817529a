"""Exchange of node rows between devices: rounds of collectives, and their transfers.

The *owner* of a row is the device of its node; a *reader* is another device with an edge from that
node. Rows travel in *rounds*, one collective each. A *slot* is room for one row of the exchange, on
the sender as on the receiver.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arrays import STATIC, add_rows, row_wise, take
from jax_gnn._core.linear import Linear

LATENCY = 10e-6
"""Seconds of a collective without rows: NCCL's within a host, as JAX's profiler shows it."""

ROW_BYTES = 1024
"""Bytes of a row: 256 numbers in float32, or 512 in bfloat16."""

HOST_BANDWIDTH, NETWORK_BANDWIDTH = 450e9, 50e9
"""Bytes a second from a GPU: NVLink 4 of an H100 or H200, and one 400 Gbit/s adapter for each."""

DEVICES_PER_HOST = 8
"""Number of consecutive devices of a mesh axis that are taken for one host."""

MAX_PERMUTES = 8
"""Largest number of permutations of an exchange, or of one hop."""

MIN_GAIN = 0.9
"""Permutations are tried where they may reduce the time to this share."""

SIZE_COST = 0.3
"""Cost of a row of a permutation's size, in rows that a device sends, where sizes are compared."""

COPY_ENGINES = {"xla_gpu_collective_permute_mode": "COLLECTIVES_PEER_MEMORY"}
"""Compiler options by which XLA sends rows with copy engines of GPUs, from jaxlib 0.11 on."""

MAX_CANDIDATES = 16
"""Number of sizes that are tried for a permutation."""

MAX_UNROLLED = 8
"""Number of messages of an all-to-all up to which a program has instructions for each."""


class Round(NamedTuple):
    """One collective.

    Attributes:
        size: number of rows that a device sends, to its receiver or to each device.
        pairs: (sender, receiver), each device at most once on either side; None if devices send to
            all of their group.
        groups: groups of devices, each device in one, all of one size; None for one group of all.
        relays: whether slots may send rows that arrived in a round without this flag.
    """

    size: int
    pairs: tuple[tuple[int, int], ...] | None
    groups: tuple[tuple[int, ...], ...] | None = None
    relays: bool = False

    def messages(self, num_parts: int) -> int:
        """Return the number of pieces that a device's slots consist of, its own included."""
        if self.pairs is not None:
            return 1
        return num_parts if self.groups is None else len(self.groups[0])

    def slots(self, num_parts: int) -> int:
        """Return the number of slots of a device."""
        return self.size * self.messages(num_parts)

    def position(self, device: int) -> int:
        """Return the position of a device in its group."""
        if self.groups is None:
            return device
        return next(group.index(device) for group in self.groups if device in group)

    def rows(self, num_parts: int) -> int:
        """Return the number of rows that all devices together send to other devices."""
        pairs = (
            num_parts * (self.messages(num_parts) - 1) if self.pairs is None else len(self.pairs)
        )
        return self.size * pairs

    def seconds(self, num_parts: int) -> float:
        """Estimate the time; links of a host and of the network work at the same time."""
        if self.pairs is not None:
            near = all(_host(sender) == _host(receiver) for sender, receiver in self.pairs)
            num_near, num_far = int(near), int(not near)
        else:
            group = range(num_parts) if self.groups is None else self.groups[0]
            num_near = sum(_host(device) == _host(group[0]) for device in group) - 1
            num_far = len(group) - 1 - num_near
        slowest = max(num_near / HOST_BANDWIDTH, num_far / NETWORK_BANDWIDTH)
        return LATENCY + self.size * ROW_BYTES * slowest

    def run(self, rows: Array, axis: str, reverse: bool = False) -> Array:
        """Run the collective: return the row that arrives in each slot, or reversed."""
        if self.pairs is None:
            groups = self.groups and [list(group) for group in self.groups]
            options: Any = {"axis_index_groups": groups, "tiled": True}
            return cast(Array, jax.lax.all_to_all(rows, axis, 0, 0, **options))
        pairs = [pair[::-1] for pair in self.pairs] if reverse else self.pairs
        return cast(Array, jax.lax.ppermute(rows, axis, pairs))


def _host(device: int) -> int:
    return device // DEVICES_PER_HOST


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Exchange:
    """Plan by which the devices of a mesh axis fetch rows; called inside `jax.shard_map`.

    Its transpose sends gradients of the received rows back to the owners, which add them in a fixed
    order.
    """

    # (slots,), the local row that is sent in each slot, or num_own plus the slot of the row that is
    # relayed; -1 is padding.
    send: Array
    # The collectives, which share the slots out in order.
    rounds: tuple[Round, ...] = field(metadata=STATIC)
    axis: str = field(metadata=STATIC)  # name of the mesh axis
    num_own: int = field(metadata=STATIC)  # number of local rows
    # Whether copy engines of GPUs send the rows (see `COPY_ENGINES`).
    by_copies: bool = field(default=False, metadata=STATIC)
    # Dtype in which rows of features travel (see `narrowed`); None for their own.
    wire_dtype: str | None = field(default=None, metadata=STATIC)

    def __call__(self, x: Array, sent: Array | None = None) -> tuple[Array, Array]:
        """Return the local rows, and the halo: the rows that arrive from other devices.

        Users of the first result are differentiated before returned gradients are added to it.

        Args:
            x: ``(num_own, *features)``, the local rows.
            sent: ``(slots, *features)``, the result of :meth:`gather_sent` of x, if it is computed
                earlier than x. It is not differentiated.

        Returns:
            x, and ``(slots, *features)`` in its dtype, zeros in slots without a row. Rows of the
            halo are rounded to ``wire_dtype``, and so are their gradients.

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
        """Return the local row of each slot, ``(slots, *features)``, zeros in all other slots."""
        return take(x, self.send)

    def fetch(self, x: Array, sent: Array | None = None) -> Array:
        """Return the row that arrives in each slot; ``sent`` is `gather_sent` of x if known."""
        sent = self.gather_sent(x) if sent is None else sent
        arrived: list[Array] = []
        num_direct = sum(not step.relays for step in self.rounds)
        for step, span in self._spans():
            rows = sent[span]
            if step.relays:
                ids = self.send[span] - self.num_own
                relayed = take(jnp.concatenate(arrived[:num_direct]), ids)
                rows = jnp.where(row_wise(ids >= 0, rows), relayed, rows)
            arrived.append(self._run(step, rows))
        return jnp.concatenate(arrived)

    def _run(self, step: Round, rows: Array, reverse: bool = False) -> Array:
        sent = narrowed(self.wire_dtype, rows)
        return step.run(sent, self.axis, reverse).astype(rows.dtype)

    def give_back(self, local: Array, rows: Array) -> Array:
        """Add returned rows, ``(slots, *features)``, to the local rows that they were sent from.

        The order of the sum is that of the slots; relayed rows come first.
        """
        spans = list(self._spans())
        direct = rows[: sum(s.stop - s.start for step, s in spans if not step.relays)]
        for step, span in spans:
            if step.relays:
                back, ids = self._run(step, rows[span], reverse=True), self.send[span]
                local = self._add(local, ids, back, step)
                direct = self._add(direct, jnp.maximum(ids - self.num_own, -1), back, step)
        for step, span in spans:
            if not step.relays:
                back = self._run(step, direct[span], reverse=True)
                local = self._add(local, self.send[span], back, step)
        return local

    def _spans(self) -> Iterator[tuple[Round, slice]]:
        """Yield the rounds and their slots."""
        size, start = jax.lax.axis_size(self.axis), 0
        for step in self.rounds:
            stop = start + step.slots(size)
            yield step, slice(start, stop)
            start = stop

    def _add(self, x: Array, ids: Array, rows: Array, step: Round) -> Array:
        # Within the piece of one receiver a row occurs once: XLA can add in place.
        def add_piece(i: ArrayLike, x: Array) -> Array:
            start = i * step.size
            piece = (jax.lax.dynamic_slice_in_dim(array, start, step.size) for array in (ids, rows))
            return add_rows(x, *piece)

        count = step.messages(jax.lax.axis_size(self.axis))
        if count > MAX_UNROLLED:
            return cast(Array, jax.lax.fori_loop(0, count, add_piece, x))
        for i in range(count):
            x = add_piece(i, x)
        return x


def narrowed(dtype: str | None, rows: Array) -> Array:
    """Return rows of features in the dtype in which they travel.

    Vectors of a number for each row, such as degrees, keep their dtype.
    """
    wide = jnp.issubdtype(rows.dtype, jnp.floating) and rows.dtype.itemsize > 2
    return rows if dtype is None or rows.ndim < 2 or not wide else rows.astype(dtype)


def _fetch_transpose(
    exchange: Exchange, operands: Sequence[Array | None], cotangents: list[Array | None]
) -> tuple[Array | None]:
    local, halo = cotangents
    if halo is None:
        return (local,)
    # Only the halo has a gradient, so it is added to zeros.
    if local is None:
        local = jnp.zeros((exchange.num_own, *halo.shape[1:]), halo.dtype)
    return (exchange.give_back(local, halo),)


_fetch = Linear(
    name="fetch_rows",
    result=lambda exchange, operands: [
        operands[0],
        jax.ShapeDtypeStruct((*exchange.send.shape, *operands[0].shape[1:]), operands[0].dtype),
    ],
    function=lambda exchange, operands: [
        operands[0],
        exchange.fetch(operands[0]),
    ],
    transpose=_fetch_transpose,
)


@jax.custom_jvp
def _send(exchange: Exchange, x: Array, sent: Array) -> tuple[Array, Array]:
    return x, exchange.fetch(x, sent)


@_send.defjvp
def _send_jvp(
    primals: tuple[Exchange, Array, Array], tangents: tuple[object, Array, object]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    # The tangent of ``sent`` is that of x at the same rows, so it is fetched from x.
    local, halo = _fetch(primals[0], (tangents[1],))
    return _send(*primals), (local, halo)


# --- Plans ---------------------------------------------------------------------------------------


def plan_rounds(
    counts: np.ndarray, groups: tuple[tuple[int, ...], ...] | None = None, relays: bool = False
) -> tuple[Round, ...]:
    """Choose the fastest rounds by `Round.seconds`: at most `MAX_PERMUTES`, and an all-to-all.

    Args:
        counts: ``(num_parts, num_parts)``, rows of the first device that the second needs.
        groups: groups of devices that exchange rows, as of :class:`Round`; None for all devices.
        relays: as of :class:`Round`.
    """
    num_parts, remaining = len(counts), counts.copy()
    group_size = num_parts if groups is None else len(groups[0])
    permutes: list[Round] = []
    best: tuple[Round, ...] = ()
    least = math.inf
    while True:
        size = int(remaining.max(initial=0))
        rest = (Round(size, None, groups, relays),) * (size > 0)
        rounds = (*permutes, *rest)
        seconds = time_rounds(rounds, num_parts)
        # Of equal times the later one is taken: two devices permute, as they keep no own slots.
        if seconds <= least:
            best, least = rounds, seconds
        num_more = MAX_PERMUTES - len(permutes)
        if not size or not num_more:
            return best
        # A permutation takes one pair of each device: the next largest count is sent in any case.
        index = min(num_more * num_parts, remaining.size - 1)
        smaller = int(-np.partition(-remaining, index, axis=None)[index])
        bound = time_rounds((*permutes, rest[0]._replace(size=smaller)), num_parts)
        if group_size > 2 and bound > MIN_GAIN * least:
            return best
        permutes.append(_largest_permute(remaining, relays))
        for pair in permutes[-1].pairs or ():
            remaining[pair] = max(remaining[pair] - permutes[-1].size, 0)


def time_rounds(rounds: tuple[Round, ...], num_parts: int) -> float:
    """Return the seconds of rounds, one after the other."""
    return sum(step.seconds(num_parts) for step in rounds)


def _largest_permute(counts: np.ndarray, relays: bool) -> Round:
    """Return the permutation that takes the most rows of loaded devices for its size."""
    from scipy.optimize import linear_sum_assignment

    sizes = np.unique(counts[counts > 0])
    if len(sizes) > MAX_CANDIDATES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, MAX_CANDIDATES).astype(int)]
    loads = (counts.sum(1)[:, None] + counts.sum(0)) / (2 * counts.sum())
    best, most = Round(1, (), None, relays), -math.inf
    for size in sizes.tolist():
        sent = np.minimum(counts, size)
        gain = sent * loads
        senders, receivers = linear_sum_assignment(gain, maximize=True)
        score = gain[senders, receivers].sum() - SIZE_COST * size
        if score >= most:
            matching = zip(senders.tolist(), receivers.tolist(), strict=True)
            pairs = tuple(pair for pair in matching if sent[pair] > 0)
            best, most = Round(size, pairs, None, relays), score
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
            sender, receiver = (slot + step.position(i) * step.size for i in (reader, owner))
            yield Share(start, stop, sender, receiver)
            start = stop
        elif (owner, reader) in step.pairs:
            yield Share(start, stop, slot, slot)
            start = stop
        slot += step.slots(num_parts)
