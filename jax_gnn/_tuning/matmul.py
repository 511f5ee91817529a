"""What is tuned of segmented products: calls, schedules worth trying, and a model of their time.

The model follows section 6 of FASTEN (Zhou et al., ICS 2024): time is that of the waves of tiles,
each bound by memory or by the tensor cores, and that of fetching a weight whenever a block comes to
another group. It is coarse, and only there to leave out what cannot be the fastest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn import segment_matmul, segment_outer
from jax_gnn._ops.segment_matmul.schedule import FAMILY, MatmulSchedule
from jax_gnn._tuning.measure import numbers

Op = Literal["segment_matmul", "segment_outer"]
OPS: tuple[Op, ...] = get_args(Op)

_FILL = 4096
"""Blocks of which the kernel runs as many as the GPU holds at once."""

_GROUP_COST = 2
"""Tiles that a group counts for beyond its own (``kGroupCost`` of the kernel)."""

SLACK = 1.1
"""Schedules that the model says take longer than this many times the best are not measured."""


class Machine(NamedTuple):
    """What the model knows of a GPU.

    Attributes:
        multiprocessors: How many there are.
        residents: Blocks that one of them holds at once.
        bandwidth: Bytes per second from and to memory.
        l2_bandwidth: Bytes per second from the L2, where weights are after their first use.
        flops: Multiplications and additions per second, by bytes of a feature.
        fetch: Seconds until the first byte of a weight has come.
        launch: Seconds of a kernel without work.
    """

    multiprocessors: int = 132
    residents: int = 2
    bandwidth: float = 4.28e12
    l2_bandwidth: float = 9e12
    flops: tuple[tuple[int, float], ...] = ((2, 688e12), (4, 360e12), (8, 60e12))
    fetch: float = 0.8e-6
    launch: float = 2e-6


H200 = Machine()
"""Bandwidths and rates as measured by large copies and products."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """How many rows each group has."""

    of_groups: np.ndarray

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.of_groups.sum())

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.of_groups)


class Call(NamedTuple):
    """What is measured: a product of rows with k features, and weights with k x n."""

    op: Op
    sizes: Sizes
    k: int
    n: int
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of a feature."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def shape(self) -> dict[str, Any]:
        """What schedules are chosen by."""
        return {
            "rows": self.sizes.rows,
            "groups": self.sizes.groups,
            "k": self.k,
            "n": self.n,
            "itemsize": self.itemsize,
        }

    @property
    def key(self) -> str:
        """In the cache."""
        return FAMILY.key(self.op, **self.shape)

    def rule(self) -> MatmulSchedule:
        """What the rule says, whatever is in the cache."""
        return FAMILY.rule(self.op, **self.shape)

    def candidates(self) -> list[MatmulSchedule]:
        """Choices that the model does not rule out, on a GPU like an H200."""
        times = {choice: predict(self, choice) for choice in choices(self.op)}
        return [choice for choice, time in times.items() if time <= SLACK * min(times.values())]

    def effective(self, schedule: MatmulSchedule) -> MatmulSchedule:
        """The same for all schedules that come to the same.

        All blocks of ``segment_outer`` have rows. Where there are fewer tiles than a chunk for each
        multiprocessor of an H200, all are dealt out as ranges.
        """
        schedule = FAMILY.possible(schedule, self.op, **self.shape)
        if schedule.kernel == "single":  # of tiles of one size, as many as there are
            return schedule._replace(tile=64, chunk=0, blocks=_FILL)
        if self.op == "segment_outer":
            return schedule._replace(blocks=max(1, min(schedule.blocks, self.sizes.rows // 128)))
        sizes = self.sizes.of_groups[self.sizes.of_groups > 0]
        tiles = int((-(-sizes // schedule.tile) + _GROUP_COST).sum())
        if tiles < schedule.chunk * min(schedule.blocks, H200.multiprocessors):
            return schedule._replace(chunk=0)
        return schedule

    def operands(self) -> tuple[jax.Array, ...]:
        """Two factors, and the sizes."""
        rows, groups, dtype = self.sizes.rows, self.sizes.groups, jnp.dtype(self.dtype)
        lhs, sizes = numbers((rows, self.k), dtype), jnp.asarray(self.sizes.of_groups, jnp.int32)
        if self.op == "segment_outer":
            return lhs, numbers((rows, self.n), dtype), sizes
        return lhs, numbers((groups * self.k, self.n), dtype).reshape(groups, self.k, self.n), sizes

    def function(self, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        """What is timed, of the operands."""
        product = segment_outer if self.op == "segment_outer" else segment_matmul
        return product(lhs, rhs, sizes)


def choices(op: Op) -> list[MatmulSchedule]:
    """What is worth trying, measured in this order.

    Tiles of either size have a kernel, and take turns: after its like, a kernel would find its code
    in the instruction cache and be up to 2.5 µs faster.
    """
    if op == "segment_outer":
        return [MatmulSchedule("persistent", 64, 0, blocks) for blocks in (66, 132, 198, 264)]
    persistent = [
        MatmulSchedule("persistent", tile, chunk, _FILL)
        for chunk in (0, 4, 8, 16, 32)
        for tile in (64, 128)
    ]
    return [*persistent, MatmulSchedule("single", 64, 0, _FILL)]


def predict(call: Call, schedule: MatmulSchedule, machine: Machine = H200) -> float:
    """Microseconds of a call under a schedule, as the model sees it.

    A wave is a tile for each block. Where a block takes ``chunk`` tiles at a time, it holds on to a
    group's weight until its chunks have passed through the group.
    """
    sizes = call.sizes.of_groups[call.sizes.of_groups > 0]
    if not len(sizes):
        return machine.launch * 1e6
    tiles = -(-sizes // schedule.tile)
    num_tiles = int(tiles.sum())
    outer = call.op == "segment_outer"
    whole_groups = outer and schedule.chunk > 0
    most = machine.multiprocessors * machine.residents
    blocks = min(schedule.blocks, most, len(sizes) if whole_groups else num_tiles)
    waves = max(math.ceil(num_tiles / blocks), int(tiles.max()) if whole_groups else 0)
    row_bytes = (call.k + call.n) * call.itemsize
    flops = dict(machine.flops)[call.itemsize]
    # Half of all blocks suffice to keep the memory busy.
    busy = min(blocks / (most / 2), 1.0)
    wave_bytes = blocks * call.sizes.rows / num_tiles * row_bytes
    wave_flops = blocks * schedule.tile * 2 * call.k * call.n
    wave = max(wave_bytes / (machine.bandwidth * busy), wave_flops / (flops * busy))

    if whole_groups:
        visits = len(sizes)
    elif schedule.chunk and schedule.chunk * blocks <= num_tiles:
        visits = int(np.minimum(-(-tiles // schedule.chunk), blocks).sum())
    else:
        visits = min(len(sizes) + blocks - 1, num_tiles)
    weight_bytes = call.k * call.n * (4 if outer else call.itemsize)
    bandwidth = machine.bandwidth if outer else machine.l2_bandwidth
    visits_time = visits / blocks * machine.fetch + visits * weight_bytes / (bandwidth * busy)
    launches = 1
    if outer and not whole_groups:  # another adds up the parts of shared groups
        launches = 2
        visits_time += 2 * blocks * weight_bytes / machine.bandwidth
    return 1e6 * (launches * machine.launch + waves * wave + visits_time)
