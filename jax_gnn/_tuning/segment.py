"""What is tuned of the segment kernels: calls, and the schedules that are worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._ops.segment_reduce.primitive import segment_reduce
from jax_gnn._ops.segment_reduce.schedule import (
    FAMILY,
    Kernel,
    Schedule,
    covering_lanes,
    one_step,
)
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn._tuning.measure import numbers

Op = Literal["sum", "spmm", "softmax"]
OPS: tuple[Op, ...] = get_args(Op)


# In multiples of the multiprocessors of an H100 or H200, of which each holds two to five blocks.
_BLOCKS = tuple(132 * factor for factor in (1, 2, 3, 4, 5, 6, 8, 16, 32))


# Four times the entries that the rule has for one step.
_FEW = 2**20


@dataclass(frozen=True, eq=False)
class Edges:
    """The ids that calls share: entries sorted by row, and the row of the input that each reads."""

    rows: np.ndarray
    cols: np.ndarray
    num_rows: int
    num_cols: int

    @cached_property
    def on_device(self) -> tuple[jax.Array, jax.Array]:
        """Rows and columns."""
        return jax.device_put((self.rows, self.cols))


class Call(NamedTuple):
    """What is measured: an op on some edges, with features of a width and a dtype."""

    op: Op
    edges: Edges
    width: int
    dtype: str

    @property
    def _kernel(self) -> str:
        """What schedules know the op as."""
        return "softmax" if self.op == "softmax" else "segment_reduce"

    @property
    def shape(self) -> dict[str, Any]:
        """What schedules are chosen by."""
        return {
            "entries": len(self.edges.rows),
            "rows": self.edges.num_rows,
            "width": self.width,
            "itemsize": jnp.dtype(self.dtype).itemsize,
            "gather": self.op == "spmm",
        }

    @property
    def key(self) -> str:
        """In the cache."""
        return FAMILY.key(self._kernel, **self.shape)

    def rule(self) -> Schedule:
        """What the rule says, whatever is in the cache."""
        return FAMILY.rule(self._kernel, **self.shape)

    def candidates(self) -> list[Schedule]:
        """All that is worth trying."""
        lanes = covering_lanes(self.width, self.shape["itemsize"])
        if self.op == "softmax":  # its kernels have one way to deal out features
            return [Schedule("walk", lanes, 256, blocks) for blocks in _BLOCKS]
        kinds: list[tuple[Kernel, int, int]] = [
            ("walk", lanes >> halvings, threads) for halvings in range(3) for threads in (128, 256)
        ]
        if self.op == "spmm":
            kinds += [("gather", lanes >> halvings, 128) for halvings in range(2)]
        found = [
            Schedule(kernel, max(lanes, 1), threads, blocks)
            for kernel, lanes, threads in kinds
            for blocks in _BLOCKS
        ]
        few = len(self.edges.rows) <= _FEW
        return [*found, one_step(len(self.edges.rows))] if few else found

    def effective(self, schedule: Schedule) -> Schedule:
        """The same for all schedules that come to the same: teams are no more than entries."""
        schedule = FAMILY.possible(schedule, self._kernel, **self.shape)
        teams = max(schedule.threads // schedule.lanes, 1)
        most = max(1, -(-len(self.edges.rows) // teams))
        return schedule._replace(blocks=min(schedule.blocks, most))

    def operands(self) -> tuple[jax.Array, ...]:
        """Features and ids. Not zeros, on which a GPU is faster than on real data."""
        edges, dtype = self.edges, jnp.dtype(self.dtype)
        gathers = self.op == "spmm"
        shape = edges.num_cols if gathers else len(edges.rows), self.width
        x = numbers(shape, dtype)
        rows, cols = edges.on_device
        if not gathers:
            return x, rows
        weight = numbers((*rows.shape, 1), jnp.promote_types(dtype, jnp.float32))
        return x, rows, cols, weight

    def function(
        self,
        x: jax.Array,
        rows: jax.Array,
        cols: jax.Array | None = None,
        weight: jax.Array | None = None,
    ) -> jax.Array:
        """What is timed, of the operands."""
        by_row = Csr(rows, cols, num_rows=self.edges.num_rows)
        matrix = SparseMatrix(by_row, by_row)  # nothing asks for the transpose
        if self.op == "softmax":
            return segment_softmax(x, matrix)
        return segment_reduce(x, weight, matrix, reduce="sum", heads=1)
