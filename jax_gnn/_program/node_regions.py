"""Node regions: linear maps of the rows of nodes, with the functions between them, in one kernel.

XLA has a launch for each product and each of its gradients, copies slices out of products that it
joins, adds up the gradients to rows that several maps read, and reduces those to biases. A region
reads the rows once, and its gradients are sums in registers. It is a region of a matrix with one
entry for each node.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import Access, abstract_row
from jax_gnn._program.cost import Costs
from jax_gnn._program.lower import LINEAR, Lowering, may_be_unread
from jax_gnn._program.match import Matcher, needed_rows, rows_taken
from jax_gnn._program.matrices import Matrices
from jax_gnn._program.region_rows import fits_region, linear_maps_of
from jax_gnn._program.regions import EdgeRegion
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    DisjointSets,
    Input,
    Row,
)
from jax_gnn._program.spaces import Space

_MIN_MAPS = 2  # XLA's product is the faster one where there is nothing to share


@dataclass(frozen=True, eq=False)
class NodeRegion(EdgeRegion):
    """Rows of nodes that one kernel makes; `members` and `edge_results` are of nodes."""

    space: ClassVar[Space] = Space.NODE

    @functools.cached_property
    def _operands(self) -> dict[Row, tuple[Row, Access]]:
        members = set(self.members)
        operands = dict.fromkeys(x for member in self.members for x in member.operands)
        return {
            x: (x, "shared" if x.is_shared else "edge")
            for x in operands
            if x not in members and not isinstance(x.op, Constant)
        }

    @functools.cached_property
    def _ways(self) -> tuple[tuple[str, ...], ...]:
        """The ways by which edges read products, of which other rows do not count."""
        return tuple(dict.fromkeys(_ways_of(row) for row in self.members if _is_masked(row)))

    def _safe_operands(
        self, row: Row, operands: Iterable[Array], extra: Sequence[Array]
    ) -> list[Array]:
        """Return the operands, zero in rows that no edge reads: they may hold anything."""
        if not _is_masked(row):
            return list(operands)
        mask = extra[self._ways.index(_ways_of(row))]
        return [
            x if operand.is_shared else jnp.where(mask, x, jnp.zeros((), x.dtype))
            for operand, x in zip(row.operands, operands, strict=True)
        ]

    @property
    def accesses(self) -> list[Access]:
        """The access by which a node reads each array."""
        masks: list[Access] = ["edge"] * len(self._ways)
        return [*(access for _, access in self.inputs), *masks]

    @functools.cached_property
    def region(self) -> Region:
        """The region of the primitive."""
        rows = [abstract_row(row.shape, row.dtype) for row in self.input_rows]
        rows += [abstract_row((), bool)] * len(self._ways)
        return Region.closing(self.function, rows, self.accesses, self.outputs)[0]

    def has_kernels(self) -> bool:
        """Whether a GPU has kernels; plans ask only `Plan.run`, since generated code takes long."""
        return True

    def matrix(self, matrices: Matrices) -> SparseMatrix:
        """Return a matrix with one entry for each node."""
        return _diagonal(matrices.parts.num_dst)

    def lower(self, lowering: Lowering) -> list[Array]:
        """Compute the array of each result."""
        arrays = [lowering.array(row) for row in self.input_rows]
        count = next(
            x.shape[0]
            for x, (_, access) in zip(arrays, self.inputs, strict=True)
            if access == "edge"
        )
        masks: list[Any] = [lowering.matrices.counted(Space.NODE, ways) for ways in self._ways]
        matrix = _diagonal(count)
        return edge_region(self.function, [*arrays, *masks], self.accesses, self.outputs, matrix)


def _diagonal(count: int) -> SparseMatrix:
    ids = jnp.arange(count, dtype=jnp.int32)
    return SparseMatrix(Csr(ids, ids, num_rows=count), Csr(ids, ids, num_rows=count))


def _is_masked(row: Row) -> bool:
    return isinstance(row.op, Contract) and may_be_unread(row)


def _ways_of(row: Row) -> tuple[str, ...]:
    assert isinstance(row.op, Contract) and row.op.read_by is not None
    return tuple(sorted(row.op.read_by))


def node_regions(results: Sequence[Row], matcher: Matcher) -> dict[Row, EdgeRegion]:
    """Return the regions of nodes' rows that are counted to gain, by each of their results."""
    rows = needed_rows(results, matcher)
    fitting = {row for row in rows if _fits(row, matcher)}
    if sum(len(linear_maps_of(row)) for row in fitting) < _MIN_MAPS:
        return {}
    # Rows that a path through other ops leads to have a higher level than those it begins at.
    levels: dict[Row, int] = {}
    readers: dict[Row, list[Row]] = {row: [] for row in rows}
    for row in rows:
        operands = rows_taken(row, matcher)
        before = max((levels[x] for x in operands), default=0)
        levels[row] = before + (row not in fitting and not isinstance(row.op, Input | Constant))
        for operand in operands:
            readers[operand].append(row)
    groups = DisjointSets()
    for row in fitting:
        for operand in row.operands:
            same = [x for x in (operand, *readers[operand]) if x in fitting]
            for other in same if not operand.is_shared else ():
                if levels[other] == levels[row]:
                    groups.join(row, other)
    members: dict[object, list[Row]] = {}
    for row in rows:
        if row in fitting:
            members.setdefault(groups.of(row), []).append(row)
    regions: dict[Row, EdgeRegion] = {}
    for group in members.values():
        if sum(len(linear_maps_of(row)) for row in group) < _MIN_MAPS:
            continue
        inner, outer = set(group), set(results)
        stored = tuple(
            row for row in group if row in outer or any(x not in inner for x in readers[row])
        )
        region = NodeRegion(tuple(group), (), stored)
        if (
            stored
            and all(row.dtype in FLOATS for row in stored)
            and _gains(region, matcher, results)
        ):
            regions |= dict.fromkeys(stored, region)
    return regions


def _fits(row: Row, matcher: Matcher) -> bool:
    if row in matcher.regions or not fits_region(row, matcher, True, Space.NODE):
        return False
    is_safe = not may_be_unread(row) or (isinstance(row.op, Apply) and row.op.name in LINEAR)
    return is_safe or isinstance(row.op, Contract)


def _gains(region: NodeRegion, matcher: Matcher, results: Sequence[Row]) -> bool:
    """Whether a region is counted to take less than ops, gradients included."""
    costs = Costs(matcher, results)
    ops = sum(costs.of(row).time + costs.gradient(row).time for row in region.members)
    return costs.node_region(region).time + costs.node_region(region, gradients=True).time < ops
