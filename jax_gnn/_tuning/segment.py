"""Tuned calls of the segment kernels, and the schedules to measure for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._ops.segment_reduce import schedule as segments
from jax_gnn._ops.segment_reduce.primitive import segment_reduce
from jax_gnn._ops.segment_reduce.schedule import FAMILY, Kernel, Schedule, covering_lanes, one_step
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn._tuning import measure
from jax_gnn._tuning.measure import numbers

Op = Literal["sum", "spmm", "softmax"]
OPS: tuple[Op, ...] = get_args(Op)

# Multiples of the multiprocessors of an H100 or H200, each of which holds two to five blocks.
_BLOCKS = tuple(132 * factor for factor in (1, 2, 3, 4, 5, 6, 8, 16, 32))


@dataclass(frozen=True, eq=False)
class Edges:
    """Entries sorted by row, with the input row that each one reads; shared by several calls."""

    rows: np.ndarray
    cols: np.ndarray
    num_rows: int
    num_cols: int

    @cached_property
    def on_device(self) -> tuple[jax.Array, jax.Array]:
        """Rows and columns, on the device."""
        return jnp.asarray(self.rows), jnp.asarray(self.cols)


@dataclass(frozen=True, eq=False)
class Call(measure.Call[Schedule]):
    """Op on some edges, with features of a width and a dtype."""

    op: Op
    edges: Edges
    width: int
    dtype: str

    family = FAMILY

    @property
    def kernel(self) -> str:
        """Name of the op in the cache."""
        return "softmax" if self.op == "softmax" else "segment_reduce"

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments by which the family chooses a schedule."""
        return {
            "entries": len(self.edges.rows),
            "rows": self.edges.num_rows,
            "width": self.width,
            "itemsize": self.itemsize,
            "gather": self.op == "spmm",
        }

    def candidates(self) -> list[Schedule]:
        """Return schedules with several kernels, lanes, threads and numbers of blocks."""
        lanes = covering_lanes(self.width, self.itemsize)
        if self.op == "softmax":  # its kernels assign features to lanes in one way
            return [Schedule("walk", lanes, 256, blocks) for blocks in _BLOCKS]
        kinds: list[tuple[Kernel, int, int]] = [
            ("walk", lanes >> halvings, threads) for halvings in range(3) for threads in (128, 256)
        ]
        if self.op == "spmm":
            kinds += [("gather", lanes >> halvings, 128) for halvings in range(2)]
        schedules = [
            Schedule(kernel, max(lanes, 1), threads, blocks)
            for kernel, lanes, threads in kinds
            for blocks in _BLOCKS
        ]
        num_entries = len(self.edges.rows)
        if num_entries <= segments.MAX_MEASURED_STEP:
            schedules.append(one_step(num_entries))
        return schedules

    def effective(self, schedule: Schedule) -> Schedule:
        """Limit the blocks so that there are no more teams than entries."""
        schedule = super().effective(schedule)
        teams = max(schedule.threads // schedule.lanes, 1)
        max_blocks = max(1, -(-len(self.edges.rows) // teams))
        return schedule._replace(blocks=min(schedule.blocks, max_blocks))

    def operands(self) -> tuple[jax.Array, ...]:
        """Return features and ids; for ``spmm`` also columns and weights."""
        edges, dtype = self.edges, jnp.dtype(self.dtype)
        rows, cols = edges.on_device
        if self.op != "spmm":
            return numbers((len(edges.rows), self.width), dtype), rows
        weight = numbers((*rows.shape, 1), jnp.promote_types(dtype, jnp.float32))
        return numbers((edges.num_cols, self.width), dtype), rows, cols, weight

    def function(
        self,
        x: jax.Array,
        rows: jax.Array,
        cols: jax.Array | None = None,
        weight: jax.Array | None = None,
    ) -> jax.Array:
        """Apply the op to features and ids."""
        by_row = Csr(rows, cols, num_rows=self.edges.num_rows)
        matrix = SparseMatrix(by_row, by_row)  # the transpose is never read
        result: jax.Array = (
            segment_softmax(x, matrix)
            if self.op == "softmax"
            else segment_reduce(x, weight, matrix, reduce="sum", heads=1)
        )
        return result
