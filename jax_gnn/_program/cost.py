"""What the op of a row takes: counted as the ops' own schedules count, on an H200.

Bytes and flops of each launch follow from how many rows spaces have; a gather counts what misses
L2. Times are there to compare ways, not to predict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.schedule import known_size
from jax_gnn._ops.edge_region.row_program import SLOW
from jax_gnn._ops.relational_aggregate.schedule import (
    Launch,
    between,
    expected,
    gathered,
    in_turn,
    once,
)
from jax_gnn._program import patterns, relational
from jax_gnn._program.match import Matcher, needed
from jax_gnn._program.patterns import HGT, RGAT, Factor, Pattern, is_read, rows_in, width
from jax_gnn._program.regions import EdgeRegion, maps_of
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Given,
    Place,
    Pull,
    Row,
    Softmax,
    sizes_of,
)
from jax_gnn._program.spaces import Parts, Space

_ID = 4  # bytes
_BLOCKS = 396  # that make sums of their own
_PLAIN = 8  # flops of matrix units in the time of one of another unit
_SLOWER = 12  # times longer than a sum takes a function that is a series
_SLOW = SLOW | {"gelu", "reciprocal", "silu", "softplus"}
_BREAK_TIES = 1e-10  # microseconds of a byte or of a flop, where launches are all that counts


class Cost(NamedTuple):
    """What a row takes.

    Attributes:
        op: What makes it.
        time: Microseconds.
        bytes: That move.
        flops: Additions and multiplications.
    """

    op: str
    time: float
    bytes: float = 0
    flops: float = 0

    def times(self, count: int) -> Cost:
        """Of so many."""
        return Cost(self.op, count * self.time, count * self.bytes, count * self.flops)


class Costs:
    """Costs of rows of a program on graphs of given sizes.

    Attributes:
        parts: What the graph has, with typical numbers in the place of symbolic ones.
        matcher: Finds patterns.
        apart: Whether each product has a launch, as where it is not known what comes before it.
    """

    def __init__(self, parts: Parts, matcher: Matcher, *, apart: bool = False) -> None:
        """Of the rows that a matcher finds the ops of."""
        rows = {space: known_size(size) for space, size in parts.rows.items()}
        num_src, num_dst = map(known_size, (parts.num_src, parts.num_dst))
        self.parts = parts._replace(rows=rows, num_src=num_src, num_dst=num_dst)
        self.matcher = matcher
        self.apart = apart

    def total(self, results: Any) -> float:
        """Microseconds of all that results need."""
        return sum(self.of(row).time for row in needed(results, self.matcher))

    def training(self, results: Any) -> float:
        """Microseconds of all that results need, and of gradients to all of it."""
        rows = needed(results, self.matcher)
        return sum(self.of(row).time + self.gradient(row).time for row in rows)

    def of(self, row: Row) -> Cost:
        """Of the op of a row alone; of a region, of the first of its results."""
        if row in self.matcher.regions:
            return self._region(row, self.matcher.regions[row])
        match row.op:
            case Given() | Constant() | Place():
                return Cost("", 0.0)
            case Pull():
                launch = self._read(row.operands[0], row) + self._stored(row)
                return _fused("gather", launch)
            case Softmax():
                score = self._stored(row)
                return _cost("segment_softmax", score, score)
            case Apply(name="squeeze" | "reshape"):
                return Cost("reshape", 0.0)
        if self._is_fused(row):
            apart = [each for each in row.operands if not self._is_made(each)]
            read = sum((self._stored(each) for each in apart), Launch())
            return self._made(row, read + self._stored(row) + Launch(0, 0, self._work(row)))
        return self._of_pattern(row, self.matcher(row))

    def gradient(self, row: Row) -> Cost:
        """Of what takes the gradient of a row to those that it is made of.

        What a row's function needs again is read once more, what it gives is written. Of ops that
        no region has in its place it is twice the op.
        """
        if row in self.matcher.regions:
            return self._region_gradient(row, self.matcher.regions[row])
        match row.op:
            case Given() | Constant() | Place() | Apply(name="squeeze" | "reshape"):
                return Cost("", 0.0)
            case Pull():
                sums = self._stored(row) + self._whole(row.operands[0]) + once(self.rows(row) * _ID)
                return _cost("segment_sum", sums)
        if self._is_fused(row):
            apart = [each for each in row.operands if not self._is_fused(each)]
            read = sum((self._stored(each) for each in apart), Launch())
            return self._made(row, read + read + self._stored(row))
        pattern = self.matcher(row)
        if isinstance(pattern, patterns.Sum) and pattern.scores is None:
            return self._sum_gradient(row, pattern)
        if isinstance(pattern, patterns.Einsum):
            varying = [each for each in row.operands if each.space is not Space.SHARED]
            return self.of(row).times(max(len(varying), 1))
        return self.of(row).times(2)

    def spared(self, row: Row) -> float:
        """Microseconds of dot products that attention takes itself: all but the sources' rows."""
        pattern = self.matcher(row)
        if not isinstance(pattern, patterns.EdgeDots) or pattern.dst.way != "dst":
            return 0.0
        return self.of(row).time - self._factor(pattern.src, row).time

    def _of_pattern(self, row: Row, pattern: Pattern) -> Cost:
        out = self._stored(row)
        match pattern:
            case patterns.TypedProduct(x, weight):
                read = self._factor(x, row) + self._whole(weight.base)
                return _cost("segment_matmul", read + out + self._flops(row))
            case patterns.TypedDots(x, weight):
                read = self._factor(x, row) + self._factor(weight, row)
                return _cost("sddmm", read + out + self._flops(row))
            case patterns.EdgeDots(dst, src):
                read = self._factor(dst, row) + self._factor(src, row)
                return _cost("sddmm", read + self._edges() + out + self._flops(row))
            case patterns.RelationalSum():
                return self._relational(row, pattern)
            case patterns.Sum():
                return self._sum(row, pattern)
            case RGAT() | HGT():
                method, time = relational.choice(self.parts, pattern)
                op = f"{type(pattern).__name__.lower()}_attention ({method})"
                return Cost(op, _after(time))
            case patterns.Count():
                return _cost("count", out)
            case patterns.PairSum(of):
                return _cost("segment_sum", self._stored(of) + out)
        read = sum((self._stored(each) for each in row.operands), Launch())
        return _cost("einsum", read + out + self._flops(row))

    def _is_fused(self, row: Row) -> bool:
        """Whether XLA makes it of numbers, in one launch with others like it."""
        if isinstance(row.op, Apply):
            return True
        if self.apart or not isinstance(row.op, Contract) or row.space is not Space.EDGE:
            return False
        sums = set(sizes_of(row.operands, row.op.terms)) - set(row.op.out)
        return not sums and isinstance(self.matcher(row), patterns.Einsum)

    def _is_made(self, row: Row) -> bool:
        return self._is_fused(row) or isinstance(row.op, Pull)

    def _made(self, row: Row, launch: Launch) -> Cost:
        """Of a function, which XLA takes into the launch of what made its operands."""
        fused = any(map(self._is_fused, row.operands))
        op = row.op.name if isinstance(row.op, Apply) else "einsum"
        return (_fused if fused else _cost)(op, launch)

    # --- What moves ----------------------------------------------------------------------------

    def rows(self, row: Row) -> int:
        """How many rows it has."""
        return self.parts.rows.get(row.space, 1)

    def _bytes(self, row: Row) -> int:
        return max(row.size, 1) * int(row.dtype.itemsize)

    def _numbers(self, row: Row) -> float:
        return float(self.rows(row) * row.size)

    def _stored(self, row: Row) -> Launch:
        """Written by one launch and read by the next."""
        return between(self.rows(row), self._bytes(row))

    def _whole(self, row: Row) -> Launch:
        return once(self.rows(row) * self._bytes(row))

    def _read(self, of: Row, at: Row) -> Launch:
        """Rows of one array at the rows of another."""
        if of.space is Space.SHARED:
            return self._whole(of)
        return gathered(self.rows(at), self._bytes(of), self.rows(of)) + once(self.rows(at) * _ID)

    def _factor(self, factor: Factor, at: Row) -> Launch:
        if factor.way:
            return self._read(factor.base, at)
        return self._stored(factor.row)

    def _edges(self) -> Launch:
        return once(2 * _ID * self.parts.rows[Space.EDGE])

    def _flops(self, row: Row) -> Launch:
        assert isinstance(row.op, Contract)
        sizes = sizes_of(row.operands, row.op.terms)
        flops = 2.0 * self.rows(row)
        for size in sizes.values():
            flops *= size
        return Launch(0, 0, flops)

    # --- Reductions ----------------------------------------------------------------------------

    def _sum(self, row: Row, pattern: patterns.Sum) -> Cost:
        value, weight, scores, *_ = pattern
        edges = self.parts.rows[Space.EDGE]
        of = value.base if is_read(value, pattern.into) else value.row
        launch = self._edges() + self._whole(row)
        launch += gathered(edges, self._bytes(of), max(self.rows(of), 1))
        launch += Launch(0, 0, 2.0 * edges * max(row.size, of.size))
        if weight is not None:
            launch += self._stored(weight)
        if scores is None:
            return _cost("spmm", launch)
        for key in (each for each in rows_in(scores) if each is not of):
            if key.space is Space.EDGE:
                launch += self._stored(key)
            elif key.space is not Space.SHARED:
                launch += gathered(edges, self._bytes(key), self.rows(key))
        return _cost(f"attention ({type(scores).__name__.lower()})", launch)

    def _sum_gradient(self, row: Row, pattern: patterns.Sum) -> Cost:
        value, weight, *_ = pattern
        edges = self.parts.rows[Space.EDGE]
        read = is_read(value, pattern.into)
        of = value.base if read else value.row
        launch = self._edges() + gathered(edges, self._bytes(row), max(self.rows(row), 1))
        launch += self._whole(of) if read else self._stored(of)
        if weight is not None:
            launch += self._whole(of) + self._stored(weight) + self._stored(weight)
        if pattern.reduce in ("max", "min"):  # and which entries attain them
            attained = self._whole(row) + (self._read(of, value.row) if read else self._stored(of))
            return _cost("select", attained, launch + attained)
        return _cost("spmm", launch)

    def _region(self, row: Row, region: EdgeRegion) -> Cost:
        if row is not region.results[0]:
            return Cost("edge_region", 0.0)
        launch = self._walk(region, "row") + self._all(region.results)
        return _cost("edge_region", launch + Launch(0, 0, self._work(*region.members)))

    def _region_gradient(self, row: Row, region: EdgeRegion) -> Cost:
        """A walk by row, one by column, and one that finds what attains maxima."""
        if row is not region.results[0]:
            return Cost("edge_region", 0.0)
        edges, work = self.parts.rows[Space.EDGE], Launch(0, 0, self._work(*region.members))
        launches = []
        for by in ("row", "col"):
            into = [of for of, read in region.inputs if read == by and of.dtype in FLOATS]
            if by == "row":
                into += [of for of, read in region.inputs if read in ("edge", "shared")]
            if not into:
                continue
            cotangents = (
                self._all(region.results)
                if by == "row"
                else self._all(region.kept)
                + sum((self._gathered(edges, each) for each in region.pushes), Launch())
            )
            walk = self._walk(region, by) + cotangents + self._all(into)
            launches.append(walk + work + work + work)
        shared = {of for of, read in region.inputs if read == "shared" and of.dtype in FLOATS}
        for given, parts in (
            (shared - region.maps, self.parts.num_dst),
            (shared & region.maps, _BLOCKS),
        ):
            if given:  # sums by row or by block, which are added up
                size = sum(map(self._bytes, given))
                launches += [between(parts, size), between(parts, size)]
        if any(push.op.reduce in ("max", "min") for push in region.pushes):  # type: ignore[union-attr]
            launches.append(self._walk(region, "row") + self._all(region.results) + work)
        return _cost("edge_region", *launches) if launches else Cost("edge_region", 0.0)

    def _walk(self, region: EdgeRegion, by: str) -> Launch:
        """What edges read, in the order of their rows or of their columns."""
        edges, launch = self.parts.rows[Space.EDGE], self._edges()
        for of, read in region.inputs:
            in_turn = read in ("edge", "shared", by)
            launch += self._stored(of) if in_turn else self._gathered(edges, of)
        return launch

    def _gathered(self, rows: int, of: Row) -> Launch:
        return gathered(rows, self._bytes(of), max(self.rows(of), 1))

    def _all(self, rows: Iterable[Row]) -> Launch:
        return sum(map(self._whole, rows), Launch())

    def _work(self, *rows: Row) -> float:
        """What functions of numbers take, in flops of matrix units."""
        found = 0.0
        for row in rows:
            if isinstance(row.op, Contract):
                found += (1 if maps_of(row) else _PLAIN) * self._flops(row).flops
            else:
                slow = row.op.name.removeprefix("custom_jvp ") in _SLOW  # type: ignore[union-attr]
                found += self._numbers(row) * _PLAIN * (_SLOWER if slow else 1)
        return found

    def _relational(self, row: Row, pattern: patterns.RelationalSum) -> Cost:
        sizes = sizes_of(
            [pattern.x.row, pattern.weight.row], [pattern.x.labels, pattern.weight.labels]
        )
        k, n = width(pattern.summed, sizes), width(pattern.rest, sizes)
        counts = relational.counts(self.parts, k, n, np.dtype(row.dtype).itemsize)
        times = expected(counts)
        method = min(times, key=lambda each: times[each])
        return Cost(f"relational_aggregate ({method})", _after(times[method]))


def _cost(op: str, *launches: Launch) -> Cost:
    moved, flops = sum(each.moved for each in launches), sum(each.flops for each in launches)
    return Cost(op, _after(in_turn(*launches)) + _BREAK_TIES * (moved + flops), moved, flops)


def _fused(op: str, launch: Launch) -> Cost:
    """Of what XLA does in the launch of what reads or made it."""
    time = launch.time - Launch().time + _BREAK_TIES * (launch.moved + launch.flops)
    return Cost(op, time, launch.moved, launch.flops)


def _after(time: float) -> float:
    """Of what waits for another launch."""
    return time + in_turn(Launch(), Launch()) - 2 * Launch().time
