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
from jax_gnn._ops.segment_reduce.schedule import FAMILY, Schedule, covering_lanes
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn._tuning.measure import numbers

Op = Literal["sum", "spmm", "softmax"]
OPS: tuple[Op, ...] = get_args(Op)


class Choice(NamedTuple):
    """A schedule in terms that fit every width; what the rule returns."""

    parallel: bool
    narrowing: int
    """How often the lanes that cover a row are halved."""
    threads: int
    blocks: int

    def schedule(self, width: int, itemsize: int) -> Schedule:
        """For rows of so many features of so many bytes."""
        lanes = max(covering_lanes(width, itemsize) >> self.narrowing, 1)
        return Schedule(self.parallel, lanes, self.threads, self.blocks)


# In multiples of the multiprocessors of an H100 or H200, of which each holds two to five blocks.
_BLOCKS = tuple(132 * factor for factor in (1, 2, 3, 4, 5, 6, 8, 16, 32))


def choices(op: Op) -> list[Choice]:
    """What is worth trying."""
    if op == "softmax":  # its kernels have one way to deal out features
        return [Choice(False, 0, 256, blocks) for blocks in _BLOCKS]
    kinds = [(False, 0), (False, 1), (False, 2)]
    if op == "spmm":  # whose kernel for ranges of a team's own gathers
        kinds += [(True, 0), (True, 1)]
    return [
        Choice(*kind, threads, blocks)
        for kind in kinds
        for threads in (128, 256)
        for blocks in _BLOCKS
    ]


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
        """All choices for the op."""
        itemsize = self.shape["itemsize"]
        return [choice.schedule(self.width, itemsize) for choice in choices(self.op)]

    def effective(self, schedule: Schedule) -> Schedule:
        """The same for all schedules that come to the same: teams are no more than entries."""
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
