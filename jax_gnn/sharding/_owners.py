"""Questions of devices to the owners of nodes, by all-to-alls of static shapes.

The *place* of a node is its row in the concatenated rows of all devices: owner times capacity, plus
the row on the owner. A device asks about places in as many rounds as the device with the most
questions to one owner needs: whatever was drawn, every question is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arrays import row_wise, take
from jax_gnn._core.ids import PADDING, in_range, row_starts
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import align_varying
from jax_gnn._ops.segment_order.primitive import sorted_ids
from jax_gnn._ops.segment_reduce.api import segment_sum
from jax_gnn.sharding._exchange import Exchange, narrowed

Answer = Callable[[Array, ArrayLike], list[Array]]
"""Function of rows of own nodes, -1 for padding, and a round's number; a row of results for each.

Round 0 has the device's questions about its own nodes.
"""

MAX_SLOTS = 2**16
"""Largest number of slots of a message of ids that has room for all questions to every owner."""


@dataclass(frozen=True)
class Owners:
    """Owners of places, on the devices of a mesh axis; inside `jax.shard_map`."""

    axis: str
    num_own: int  # number of rows of each device
    expected: int  # expected number of places of one owner that a device asks about
    wire_dtype: str | None = None  # as of `Exchange`

    @classmethod
    def of(cls, exchange: Exchange, expected: int) -> Owners:
        """Return the owners between which rows travel as in an exchange."""
        return cls(exchange.axis, exchange.num_own, expected, exchange.wire_dtype)

    @property
    def count(self) -> int:
        """Number of devices."""
        return int(jax.lax.axis_size(self.axis))

    @property
    def num_places(self) -> int:
        return self.count * self.num_own

    def first_place(self, dtype: Any) -> Array:
        """Return the place of the first row of this device."""
        return jax.lax.axis_index(self.axis).astype(dtype) * self.num_own

    def own_rows(self, places: Array) -> Array:
        """Return the rows of places that this device owns, -1 for others."""
        rows = places - self.first_place(places.dtype)
        return jnp.where((places >= 0) & in_range(rows, self.num_own), rows, PADDING)

    def swap(self, *arrays: Array) -> list[Array]:
        """Send each device its slots of arrays; numbers of one size share a message, as bits."""
        results = [narrowed(self.wire_dtype, rows) for rows in arrays]
        kinds = [
            x.dtype if x.dtype.kind in "bc" else jnp.dtype(f"uint{8 * x.dtype.itemsize}")
            for x in results
        ]
        for kind in dict.fromkeys(kinds):
            members = [i for i, other in enumerate(kinds) if other == kind]
            rows = [
                results[i].reshape(len(results[i]), prod(results[i].shape[1:])) for i in members
            ]
            bits = jnp.concatenate([jax.lax.bitcast_convert_type(x, kind) for x in rows], 1)
            bits = jax.lax.all_to_all(bits, self.axis, 0, 0, tiled=True)
            pieces = jnp.split(bits, np.cumsum([x.shape[1] for x in rows])[:-1].tolist(), 1)
            for i, piece in zip(members, pieces, strict=True):
                piece = jax.lax.bitcast_convert_type(piece, results[i].dtype)
                results[i] = piece.reshape(arrays[i].shape).astype(arrays[i].dtype)
        return results

    def ask(self, places: Array, answer: Answer, known: list[Array]) -> list[Array]:
        """Return what the owner of each place answers; ``known`` has the results of other places.

        These are own places and padding.
        """
        questions = Questions.of(self, places)

        def step(number: Array, state: list[Array]) -> list[Array]:
            answers = answer(questions.sent(number), number)
            return questions.received(number, state, answers)

        return cast(list[Array], questions.run(known, step))

    def ask_all(self, places: Array, answer: Answer) -> list[Array]:
        """Return what the owner of each place answers, this device among the owners.

        Few places are asked about in one message, whatever was drawn: then there is neither a sort
        by owner, nor a round whose need the devices must agree on.
        """
        size, count = self.count, len(places)
        if size == 1 or size * count > MAX_SLOTS:
            return self.ask(places, answer, answer(self.own_rows(places), 0))
        owner = jnp.where(places < 0, 0, places // self.num_own)  # for padding, all answer alike
        is_asked = (places >= 0) & (owner == jnp.arange(size, dtype=owner.dtype)[:, None])
        (asked,) = self.swap(jnp.where(is_asked, places % self.num_own, PADDING).ravel())
        slots = owner * count + jnp.arange(count, dtype=owner.dtype)
        return [rows[slots] for rows in self.swap(*answer(asked, 0))]

    def fetch(self, places: Array, rows: Sequence[Array]) -> list[Array]:
        """Return the row of each place, zeros for padding, of each array of rows of own nodes."""
        types = tuple((x.shape[1:], str(x.dtype)) for x in rows)
        return _fetch(places, tuple(rows), owners=self, types=types)


@dataclass(frozen=True)
class Questions:
    """Places of other devices, each in a slot of one round; inside `jax.shard_map`."""

    owners: Owners
    rows: Array  # (count,), row of each place on its owner
    numbers: Array  # (count,), round of each place, from 1; 0 for own places and padding
    slots: Array  # (count,), slot of each place in its round
    room: int  # number of slots for each owner
    num_rounds: Array  # (), the same on all devices

    @classmethod
    def of(cls, owners: Owners, places: Array) -> Questions:
        """Deal places out to rounds; those of one owner in order."""
        size, count, num_own = owners.count, len(places), owners.num_own
        is_remote = (places >= 0) & (owners.own_rows(places) < 0)
        owner = jnp.where(is_remote, places // num_own, PADDING).astype(jnp.int32)
        keys, order = sorted_ids(owner, size)  # padding comes last, as owner `size`
        keys = keys.astype(jnp.int32)
        starts = row_starts(keys, size)
        ranks = jnp.arange(count, dtype=jnp.int32) - starts[keys]
        rank = jnp.zeros_like(owner).at[order].set(ranks, unique_indices=True)
        # One round suffices but rarely: draws of neighbours are not independent, hence the tenth.
        expected = owners.expected
        room = min(count, expected + expected // 10 + 4 * isqrt(expected) + 8)
        most = jax.lax.pmax((starts[1:] - starts[:-1]).max(initial=0), owners.axis)
        numbers = jnp.where(is_remote, rank // max(room, 1) + 1, 0)
        slots = owner * room + rank % max(room, 1)
        return cls(owners, places % num_own, numbers, slots, room, -(-most // max(room, 1)))

    @property
    def num_slots(self) -> int:
        """Number of slots of a round."""
        return self.owners.count * self.room

    def _slots(self, number: ArrayLike) -> tuple[Array, Array]:
        """Return which places are asked about in a round, and their slots."""
        is_now = self.numbers == number
        return is_now, jnp.where(is_now, self.slots, self.num_slots)

    def sent(self, number: ArrayLike) -> Array:
        """Return the rows of own nodes that other devices ask about in a round, -1 for none."""
        return self.returned(number, self.rows, fill=PADDING)[0]

    def received(
        self, number: ArrayLike, results: Sequence[Array], answers: Sequence[Array]
    ) -> list[Array]:
        """Return results with the answers to a round's questions, which owners have by slot."""
        is_now, slots = self._slots(number)
        slots = jnp.where(is_now, slots, 0)
        return [
            jnp.where(row_wise(is_now, old), new[slots], old)
            for old, new in zip(results, self.owners.swap(*answers), strict=True)
        ]

    def returned(self, number: ArrayLike, *arrays: Array, fill: int = 0) -> list[Array]:
        """Return what owners get by slot: rows of each place that was asked about in a round."""
        slots, sent = self._slots(number)[1], []
        for rows in arrays:
            empty = jnp.full((self.num_slots, *rows.shape[1:]), fill, rows.dtype)
            sent.append(empty.at[slots].set(rows, mode="drop", unique_indices=True))
        return self.owners.swap(*sent)

    def run(self, state: Any, step: Callable[[Any, Any], Any]) -> Any:
        """Run ``step(number, state)`` for all rounds. The first is no part of a loop."""
        if self.owners.count == 1 or not self.room:
            return state

        def body(carry: tuple[Array, Any]) -> tuple[Array, Any]:
            return carry[0] + 1, step(*carry)

        # A loop's state must vary over the mesh axes over which its results do.
        state = step(1, state)
        state = jax.tree.map(lambda leaf: align_varying([leaf, self.rows])[0], state)
        first = jnp.full((), 2, jnp.int32)
        return jax.lax.while_loop(lambda carry: carry[0] <= self.num_rounds, body, (first, state))[
            1
        ]


def _fetch_function(
    places: Array, rows: Sequence[Array | None], *, owners: Owners, types: Any
) -> list[Array]:
    present = [x for x in rows if x is not None]

    def answer(ids: Array, _: object) -> list[Array]:
        return [take(x, ids) for x in present]

    results = iter(owners.ask(places, answer, answer(owners.own_rows(places), 0)))
    return [
        jnp.zeros((*places.shape, *shape), dtype) if x is None else next(results)
        for x, (shape, dtype) in zip(rows, types, strict=True)
    ]


def _fetch_transpose(
    places: Array,
    rows: Sequence[Any],
    cotangents: Sequence[Array | None],
    *,
    owners: Owners,
    types: Any,
) -> list[Array | None]:
    questions = Questions.of(owners, places)
    present, num_own = [ct for ct in cotangents if ct is not None], owners.num_own
    # Several places, or several devices, may name one row: sums in a fixed order.
    own = owners.own_rows(places)
    totals = [segment_sum(ct, own, num_own) for ct in present]

    def step(number: ArrayLike, totals: list[Array]) -> list[Array]:
        ids = questions.sent(number)
        sums = [segment_sum(ct, ids, num_own) for ct in questions.returned(number, *present)]
        return [total + rows for total, rows in zip(totals, sums, strict=True)]

    sums = iter(questions.run(totals, step))
    return [None if ct is None else next(sums) for ct in cotangents]


_fetch = Linear(
    name="fetch_sampled_rows",
    result=lambda places, rows, *, types, **_: [
        jax.ShapeDtypeStruct((*places.shape, *shape), dtype) for shape, dtype in types
    ],
    function=_fetch_function,
    transpose=_fetch_transpose,
)
