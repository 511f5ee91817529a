"""Edge regions of programs: functions of edges that no op computes, up to reductions.

A region contains rows of edges that its own rows and reductions into one end of edges read, so that
none of them needs an array of all edges, but for those that others read, too: these it stores.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS, accumulator_dtype
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.op import align_varying
from jax_gnn._ops.edge_region.cuda import flops_of_walks
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._ops.edge_region.region import Region, Sink
from jax_gnn._ops.edge_region.row_program import Access, abstract_row
from jax_gnn._program.backend import backend
from jax_gnn._program.einsum import einsum
from jax_gnn._program.match import Matcher
from jax_gnn._program.matrices import Matrices
from jax_gnn._program.patterns import Sum
from jax_gnn._program.region_rows import fits_region, is_number, linear_maps_of
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Index,
    Pull,
    Push,
    Row,
    pull,
    topological_order,
)
from jax_gnn._program.spaces import Space

if TYPE_CHECKING:
    from jax_gnn._program.lower import Lowering

# Ways of edges that read columns, and the ways of a column: nodes, or (source, relation) pairs.
_COLUMN_WAYS = {
    Space.NODE: {"src": ""},
    Space.SOURCE_PAIR: {way: way for way in ("src", "relation", "src_type")} | {"src_pair": ""},
}

# Ways of edges that read rows, and the ways of a row: nodes, or (destination, relation) pairs.
_ROW_WAYS = {
    Space.NODE: {"dst": ""},
    Space.DESTINATION_PAIR: {"dst": "dst", "relation": "relation", "dst_pair": ""},
}


@dataclass(frozen=True, eq=False)
class EdgeRegion:
    """The rows of one region.

    Attributes:
        members: Rows of edges inside the region, each after its operands.
        pushes: Reductions of members.
        edge_results: Members that are stored by edge: results of the program, or read by others.
        columns: Space of the columns that edges read: nodes, or (source, relation) pairs.
        rows: Space of the rows that they read: nodes, or (destination, relation) pairs if there are
            no reductions.
    """

    members: tuple[Row, ...]
    pushes: tuple[Row, ...]
    edge_results: tuple[Row, ...]
    columns: Space = Space.NODE
    rows: Space = Space.NODE

    space: ClassVar[Space] = Space.EDGE

    @property
    def way(self) -> str:
        """The end of edges that are the rows: "src" if the reductions are along reverse edges."""
        return self.pushes[0].op.way if self.pushes else "dst"  # type: ignore[union-attr]

    @functools.cached_property
    def _operands(self) -> dict[Row, tuple[Row, Access]]:
        """For each operand outside of the region, the row whose array is read, and the access."""
        members, ends = set(self.members), dict[tuple[Row, Space, str], Row]()
        operands: dict[Row, tuple[Row, Access]] = {}
        ways: dict[str, tuple[Access, Space, str]] = {}
        access: Access = "row" if self.way == "src" else "col"
        for way, inner in _COLUMN_WAYS[self.columns].items():
            ways[way] = access, self.columns, inner
        access = "col" if self.way == "src" else "row"
        for way, inner in _ROW_WAYS[self.rows].items():
            ways[way] = access, self.rows, inner
        # A region reads rows at their home: a pull becomes an access of the walk, so that no
        # gathered rows are in memory. All other operands are read as rows of edges.
        for row in dict.fromkeys(x for member in self.members for x in member.operands):
            if row in members or isinstance(row.op, Constant):
                continue
            way = row.op.way if isinstance(row.op, Pull) else ""
            if row.is_shared:
                operands[row] = row, "shared"
            elif way in ways:
                access, space, inner = ways[way]
                key = row.operands[0], space, inner
                operands[row] = ends.setdefault(key, pull(*key)), access
            else:
                operands[row] = row, "edge"
        return operands

    @functools.cached_property
    def inputs(self) -> tuple[tuple[Row, Access], ...]:
        """The rows that the region takes, and how edges read them."""
        return tuple(dict.fromkeys(self._operands.values()))

    @property
    def input_rows(self) -> list[Row]:
        """The rows whose arrays the region takes."""
        return [row for row, _ in self.inputs]

    @functools.cached_property
    def linear_maps(self) -> frozenset[Row]:
        """The shared matrices that tensor cores multiply with."""
        return frozenset(matrix for row in self.members for matrix in linear_maps_of(row))

    @functools.cached_property
    def has_channels(self) -> bool:
        """Whether a product has a constant array: its kernels go through rows by channel."""
        operands = (x for row in self.members if isinstance(row.op, Contract) for x in row.operands)
        return any(isinstance(x.op, Constant) and x.size > 1 for x in operands)

    @property
    def reads_pairs(self) -> bool:
        """Whether edges read what their (source, relation) pair has, and their source does not."""
        ways = _COLUMN_WAYS[Space.SOURCE_PAIR].keys() - _COLUMN_WAYS[Space.NODE].keys()
        reads = any(isinstance(row.op, Pull) and row.op.way in ways for row in self._operands)
        return reads and self.way == "dst"

    @property
    def results(self) -> tuple[Row, ...]:
        """The rows that the region makes."""
        return self.pushes + self.edge_results

    def function(self, *rows: Array) -> list[Array]:
        """Compute an edge's results from the rows that it reads."""
        extra = rows[len(self.inputs) :]
        share = extra[0] if self.share_dtype else None
        input_values = dict(zip(self.inputs, rows, strict=False))
        values: dict[Row, Array] = {}
        functions: dict[Any, Sequence[Array]] = {}

        def value_of(row: Row) -> Array:
            if isinstance(row.op, Constant):
                return jnp.asarray(row.op.value)  # of numpy, still: `Region` may take it in
            return values[row] if row in values else input_values[self._operands[row]]

        for row in self.members:
            operands = self._safe_operands(row, map(value_of, row.operands), extra)
            if isinstance(row.op, Contract):
                operands = align_varying(operands)
                values[row] = einsum(row, [(operand, False) for operand in operands])
            else:
                assert isinstance(row.op, Apply)
                # Functions of several results have one row for each result, and are called once.
                key = row.op.function, row.operands
                if key not in functions:
                    functions[key] = row.op.function(*row.op.align(operands))
                values[row] = functions[key][row.op.index]
        results = [values[push.operands[0]] for push in self.pushes]
        for i, push in enumerate(self.pushes):
            if _is_mean(push):  # of half types, sums that are divided may exceed float16
                x = results[i]
                results[i] = x.astype(accumulator_dtype(x.dtype)) if share is None else x * share
        return results + [values[row] for row in self.edge_results]

    def _safe_operands(
        self, row: Row, operands: Iterable[Array], extra: Sequence[Array]
    ) -> list[Array]:
        """Return the operands of a member; `extra` are the rows after those of `inputs`."""
        del row, extra
        return list(operands)

    @functools.cached_property
    def share_dtype(self) -> Any:
        """Dtype of an edge's share 1/degree, a last input by which means are sums; else None.

        Shares of half types are not precise enough: their sums are divided.
        """
        dtypes = {np.dtype(push.dtype) for push in self.pushes if _is_mean(push)}
        return dtypes.pop() if len(dtypes) == 1 and min(dtypes).itemsize >= 4 else None

    @property
    def outputs(self) -> list[Sink]:
        """Destination and reduction of each result."""
        sinks: list[Sink] = []
        for push in self.pushes:
            assert isinstance(push.op, Push)
            sinks.append(("row", "sum" if _is_mean(push) else push.op.reduce))
        return sinks + [("edge", "none")] * len(self.edge_results)

    def matrix(self, matrices: Matrices) -> SparseMatrix:
        """Return the edges as a matrix from the columns to the rows."""
        if self.way == "src":
            return matrices.edges("dst", self.rows, "src")
        return matrices.edges("src" if self.columns is Space.NODE else "src_pair", self.rows)

    @functools.cached_property
    def region(self) -> Region:
        """The region of the primitive."""
        rows = [abstract_row(row.shape, row.dtype) for row in self.input_rows]
        rows += [abstract_row((), self.share_dtype)] if self.share_dtype else []
        return Region.closing(self.function, rows, self.accesses, self.outputs)[0]

    @property
    def accesses(self) -> list[Access]:
        """The access by which an edge reads each array."""
        accesses: list[Access] = [access for _, access in self.inputs]
        return [*accesses, "row"] if self.share_dtype else accesses

    def has_kernels(self) -> bool:
        """Whether a GPU has kernels for the region."""
        return backend() != "cuda" or math.isfinite(self.flops())

    def flops(self) -> float:
        """Return the time of an edge in the region's walk, in flops; infinite without a kernel."""
        return flops_of_walks(self.region)

    def gradient_flops(self) -> float:
        """Return the time of an edge in the walks of gradients to all rows of floats, in flops.

        It is infinite if a GPU has no kernels for them.
        """
        rows = self.region.rows[: len(self.input_rows)]  # shares of means have no gradient
        active = tuple(i for i, row in enumerate(rows) if row.dtype in FLOATS)
        return flops_of_walks(self.region.cotangent(active, tuple(range(len(self.outputs)))))

    def lower(self, lowering: Lowering) -> list[Array]:
        """Compute the array of each result."""
        matrices = lowering.matrices
        arrays = [lowering.as_passed(row) for row in self.input_rows]  # padding is not read
        if self.share_dtype:
            arrays.append(1 / jnp.maximum(matrices.degrees(self.share_dtype, self.way), 1))
        matrix = self.matrix(matrices)
        results = edge_region(self.function, arrays, self.accesses, self.outputs, matrix)
        for i, push in enumerate(self.pushes):
            if _is_mean(push) and not self.share_dtype:
                counts = jnp.maximum(matrices.degrees(results[i].dtype, self.way), 1)
                mean = results[i] / counts.reshape(-1, *[1] * len(push.shape))
                results[i] = mean.astype(push.dtype)
        return results


def _is_mean(push: Row) -> bool:
    return isinstance(push.op, Push) and push.op.reduce == "mean"


# --- Search --------------------------------------------------------------------------------------


class Candidates:
    """The regions that a program may have, for each choice of their results.

    Attributes:
        pushes: The reductions that may be in a region.
        stored: The rows of edges that a region may store.
        has_pairs: Whether the graph has (source, relation) pairs.
    """

    def __init__(self, results: Sequence[Row], matcher: Matcher, linear_maps: bool = True) -> None:
        self.has_pairs = Space.SOURCE_PAIR in matcher.parts.rows
        self._results = set(results)
        self._matcher = matcher
        self._rows = topological_order(results)
        self._regions: dict[Hashable, EdgeRegion] = {}
        self._readers: dict[Row, list[Row]] = {row: [] for row in self._rows}
        for row in self._rows:
            for operand in row.operands:
                self._readers[operand].append(row)
        self._edges = {
            row
            for row in self._rows
            if (row.dtype in FLOATS or row not in self._results)  # results are no booleans
            and fits_region(row, matcher, linear_maps)
        }
        self._edges -= self._random_rows()
        pushes = [row for row in self._rows if _is_reduction(row, matcher)]
        sinks = self._feasible([*pushes, *self._stored_rows(pushes)])
        self.pushes = [row for row in sinks if isinstance(row.op, Push)]
        self.stored = [row for row in sinks if row in self._edges]

    def _random_rows(self) -> set[Row]:
        """Return keys, random bits and functions of these up to booleans, which regions read."""
        drawn: set[Row] = set()
        for row in self._rows:
            varying = [operand for operand in row.operands if not operand.is_shared]
            if isinstance(row.op, Index) or (
                isinstance(row.op, Apply | Contract)
                and row.space is Space.EDGE
                and (not is_number(row) or all(x in drawn and x.dtype != bool for x in varying))
            ):
                drawn.add(row)
        return drawn

    def _stored_rows(self, pushes: Collection[Row]) -> list[Row]:
        """Return the rows of edges that a region may store, each after its operands.

        These are results, rows that ops read, the last rows that several regions need, and rows
        that an earlier region can make for a later one, which reads them more than once.
        """
        depth = self._depths(pushes, ())
        uses: dict[Row, set[int]] = {}  # depths of the regions that need a row; -1 for all else
        stored = []
        for row in reversed(self._rows):
            readers = self._readers[row]
            if row not in self._edges:
                uses[row] = {depth[row] if row in pushes else -1}
                continue
            is_read_by_ops = any(x not in self._edges and x not in pushes for x in readers)
            uses[row] = {-1} if row in self._results else set()
            uses[row] = uses[row].union(*(uses[x] for x in readers))
            is_last = all(uses[x] != uses[row] for x in readers)
            is_early = len(readers) > 1 and depth[row] + 1 not in uses[row]
            is_read = is_last or is_early or is_read_by_ops or row in self._results
            if row.dtype in FLOATS and is_read:
                stored.append(row)
        return stored[::-1]

    def _depths(self, sinks: Collection[Row], members: Collection[Row]) -> dict[Row, int]:
        """Return the number of regions on the longest path to each row."""
        depth: dict[Row, int] = {}
        for row in self._rows:
            is_push = row in sinks and isinstance(row.op, Push)
            reads_stored = any(x in sinks and x in members for x in row.operands)
            leaves_region = is_push or (reads_stored and row not in members)
            depth[row] = max((depth[x] for x in row.operands), default=0) + leaves_region
        return depth

    def regions(
        self, sinks: Iterable[Row], by_pairs: Collection[Row] = ()
    ) -> dict[Row, EdgeRegion]:
        """Return the regions of some results, by result; those `by_pairs` read rows of pairs."""
        regions: dict[Row, EdgeRegion] = {}
        for results, inner in self._groups(self._feasible(sinks)):
            pushes = tuple(row for row in results if isinstance(row.op, Push))
            if pushes and all(map(self._is_spmm, pushes)):
                continue
            ordered = tuple(row for row in self._rows if row in inner)
            stored = tuple(row for row in ordered if row in results)
            columns = Space.SOURCE_PAIR if set(pushes) <= set(by_pairs) else Space.NODE
            rows = Space.NODE if pushes else Space.DESTINATION_PAIR
            key = ordered, pushes, stored, columns, rows
            region = self._regions.setdefault(key, EdgeRegion(*key))
            regions |= dict.fromkeys(region.results, region)
        return regions

    def _feasible(self, sinks: Iterable[Row]) -> dict[Row, None]:
        """Return the results of regions whose members only results and other members read."""
        # Dropping one result makes its operand's rows readable from outside, which may make
        # others infeasible: the loop runs to the fixed point.
        chosen = dict.fromkeys(sinks)
        while True:
            grouped = {row for results, _ in self._groups(chosen) for row in results}
            if grouped.issuperset(chosen):
                return chosen
            chosen = {row: None for row in chosen if row in grouped}

    def _members(self, sinks: Collection[Row]) -> set[Row]:
        """Return the rows of edges that are stored, or that only results and members read."""
        members = set[Row]()
        # Rows come after their operands; the reversed order meets all readers of a row before it.
        for row in reversed(self._rows):
            is_inner = all(x in members or x in sinks for x in self._readers[row])
            is_member = row in sinks or (is_inner and row not in self._results)
            if row in self._edges and is_member:
                members.add(row)
        return members

    def _groups(self, sinks: Collection[Row]) -> list[tuple[list[Row], set[Row]]]:
        """Return the results and members of each region, after those of regions that it reads."""
        members = self._members(sinks)
        inside = members.union(sinks)
        depth = self._depths(sinks, members)
        all_groups: list[tuple[list[Row], set[Row]]] = []
        # Groups of equal depth have disjoint members: a result joins all groups whose members it
        # shares. Different depths mean that one result may need another, which one walk over the
        # edges cannot give. Rows that a group stores are no members of later ones, but read.
        # A walk has one end of the edges as its rows. The walk by sources comes after.
        walks = {(depth[row], row.op.way) for row in sinks if isinstance(row.op, Push)}
        for level, way in sorted(walks):
            ends = Push, level, way
            pushes = [x for x in sinks if (type(x.op), depth[x], getattr(x.op, "way", "")) == ends]
            tops = {push: push.operands[0] for push in pushes if push.operands[0] in members}
            for row in (x for x in sinks if x in members and depth[x] < level):
                if depth[row] + 1 == level or inside.issuperset(self._readers[row]):
                    tops[row] = row
            groups: list[tuple[list[Row], set[Row]]] = []
            for row, top in tops.items():
                inner = self._inside(top, members)
                same = [group for group in groups if group[1] & inner]
                if same or row is not top:
                    joined = [x for results, _ in same for x in results]
                    groups = [group for group in groups if group not in same]
                    groups.append(([*joined, row], inner.union(*(group[1] for group in same))))
            members.difference_update(*(results for results, _ in groups))
            all_groups += groups
        # Other rows are functions of pairs at both ends, which no op makes without rows of edges.
        for row in (x for x in sinks if x in members):
            inner = self._inside(row, members)
            operands = {operand for member in inner for operand in member.operands}
            ways = {x.op.way for x in operands if isinstance(x.op, Pull) and x.size > 1}
            if ways >= {"src_pair", "dst_pair"}:
                all_groups.append(([row], inner))
        return all_groups

    def _is_spmm(self, push: Row) -> bool:
        """Whether ``spmm`` takes a sum of rows, with weights much smaller than its values."""
        pattern = self._matcher(push)
        assert isinstance(pattern, Sum)
        if not pattern.source[1]:
            return False
        return pattern.weight is None or pattern.weight.size * 4 <= push.size

    @staticmethod
    def _inside(top: Row, members: Collection[Row]) -> set[Row]:
        """Return the members that a row needs."""
        return set(topological_order([top], lambda row: [x for x in row.operands if x in members]))


def choose_regions(
    candidates: Candidates, cost: Callable[[Mapping[Row, EdgeRegion]], float]
) -> dict[Row, EdgeRegion]:
    """Return the regions that gain, by each of their results.

    Args:
        candidates: The regions that there may be.
        cost: Maps regions to the time of the program.
    """
    sinks = [*candidates.pushes, *candidates.stored]
    regions = candidates.regions(sinks)
    if not regions:
        return regions
    best = cost(regions)
    # Stored rows leave regions, then reductions, whole or one by one, where ops take no longer,
    # and no product with a matrix is made in two regions.
    wholes = [region.pushes for region in dict.fromkeys(regions.values())]
    singles = [(push,) for group in wholes if len(group) > 1 for push in group]
    for group in [*((row,) for row in candidates.stored), *wholes, *singles]:
        fewer = [row for row in sinks if row not in group]
        trial = candidates.regions(fewer)
        members = [row for region in set(trial.values()) for row in region.members]
        products = [row for row in members if linear_maps_of(row)]
        if len(products) == len(set(products)) and (time := cost(trial)) <= best:
            sinks, regions, best = fewer, trial, time
    by_pairs: tuple[Row, ...] = ()
    for region in dict.fromkeys(regions.values()) if candidates.has_pairs else ():
        if region.reads_pairs:
            extended = *by_pairs, *region.pushes
            trial = candidates.regions(sinks, extended)
            if (time := cost(trial)) < best:
                by_pairs, regions, best = extended, trial, time
    return regions


def _is_reduction(row: Row, matcher: Matcher) -> bool:
    """Whether a row is a plain reduction of edges into nodes, of either end."""
    if not isinstance(row.op, Push) or row.space is not Space.NODE:
        return False
    pattern = matcher(row)
    return isinstance(pattern, Sum) and row.dtype in FLOATS
