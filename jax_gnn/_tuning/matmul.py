"""Tuned calls of segmented products, and the schedules to measure for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn import segment_matmul, segment_outer
from jax_gnn._ops.segment_matmul.schedule import FAMILY, MatmulSchedule
from jax_gnn._tuning import measure
from jax_gnn._tuning.measure import numbers

Op = Literal["segment_matmul", "segment_outer"]
OPS: tuple[Op, ...] = get_args(Op)

_FILL = 4096
"""Blocks of a launch; the kernel runs as many of them as the GPU holds at once."""

_GROUP_COST = 2
"""Cost of a group in tiles, beyond its own tiles (``kGroupCost`` of the kernel)."""

_MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200."""


@dataclass(frozen=True, eq=False)
class Call(measure.Call[MatmulSchedule]):
    """Product of rows with k features, and weights of k x n."""

    op: Op  # `"segment_matmul"` or `"segment_outer"`
    group_sizes: np.ndarray  # (groups,), the number of rows of each group
    k: int  # features of a row of the first operand
    n: int  # features of a row of the result, or of the second operand of `segment_outer`
    dtype: str  # name of the dtype of the operands

    family = FAMILY

    @property
    def kernel(self) -> str:
        """Name of the op in the cache."""
        return self.op

    @cached_property
    def num_rows(self) -> int:
        """Number of rows of all groups."""
        return int(self.group_sizes.sum())

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments by which the family chooses a schedule."""
        return {
            "rows": self.num_rows,
            "groups": len(self.group_sizes),
            "k": self.k,
            "n": self.n,
            "itemsize": self.itemsize,
        }

    def candidates(self) -> list[MatmulSchedule]:
        """Return schedules in the order of measuring.

        Kernels of the two tile sizes alternate: a kernel that runs right after itself finds its
        code in the instruction cache, and is up to 2.5 µs faster.
        """
        if self.op == "segment_outer":
            return [MatmulSchedule("persistent", 64, 0, blocks) for blocks in (66, 132, 198, 264)]
        persistent = [
            MatmulSchedule("persistent", tile, chunk, _FILL)
            for chunk in (0, 4, 8, 16, 32)
            for tile in (64, 128)
        ]
        return [*persistent, MatmulSchedule("single", 64, 0, _FILL)]

    def effective(self, schedule: MatmulSchedule) -> MatmulSchedule:
        """Map schedules with the same effect on this call to one of them.

        All blocks of ``segment_outer`` have rows. If there are fewer tiles than a chunk for each
        multiprocessor, the kernel assigns tiles to blocks as ranges.
        """
        schedule = super().effective(schedule)
        if schedule.kernel == "single":  # tiles have one size, and each is a block
            return schedule._replace(tile=64, chunk=0, blocks=_FILL)
        if self.op == "segment_outer":
            return schedule._replace(blocks=max(1, min(schedule.blocks, self.num_rows // 128)))
        sizes = self.group_sizes[self.group_sizes > 0]
        tiles = int((-(-sizes // schedule.tile) + _GROUP_COST).sum())
        if tiles < schedule.chunk * min(schedule.blocks, _MULTIPROCESSORS):
            return schedule._replace(chunk=0)
        return schedule

    def operands(self) -> tuple[jax.Array, ...]:
        """Return the two factors, and the sizes."""
        rows, groups, dtype = self.num_rows, len(self.group_sizes), jnp.dtype(self.dtype)
        lhs, sizes = numbers((rows, self.k), dtype), jnp.asarray(self.group_sizes, jnp.int32)
        if self.op == "segment_outer":
            return lhs, numbers((rows, self.n), dtype), sizes
        return lhs, numbers((groups * self.k, self.n), dtype).reshape(groups, self.k, self.n), sizes

    def function(self, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
        """Multiply the operands."""
        product = segment_outer if self.op == "segment_outer" else segment_matmul
        return product(lhs, rhs, sizes)
