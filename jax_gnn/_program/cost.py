"""Costs of rows: time, bytes and flops of their ops, as the schedules of ops estimate for an H200.

Bytes and flops of each launch follow from the sizes of spaces; gathers count what misses L2. Times
serve to compare alternatives, not to predict.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jax_gnn._core.arguments import precision_level
from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.schedule import concrete_size
from jax_gnn._ops.edge_region.row_program import SLOW
from jax_gnn._ops.edge_region.walks import (
    EXACT_FLOPS,
    FLOPS,
    FLOPS_PER_BYTE,
    FUNCTION_FLOPS,
    SLOW_FUNCTION_FLOPS,
)
from jax_gnn._ops.relational_aggregate.schedule import (
    Launch,
    between,
    gathered,
    in_turn,
    once,
)
from jax_gnn._program import patterns, relational
from jax_gnn._program.match import Matcher, needed_rows, rows_taken
from jax_gnn._program.patterns import HGT, RGAT, Factor, Pattern, rows_in
from jax_gnn._program.region_rows import linear_maps_of
from jax_gnn._program.regions import EdgeRegion
from jax_gnn._program.rows import (
    SOFTMAX_SHIFT,
    Apply,
    Constant,
    Contract,
    Index,
    Input,
    Pull,
    Push,
    Row,
    Softmax,
    sizes_of,
    topological_order,
)
from jax_gnn._program.spaces import Space

_ID_BYTES = 4
_BLOCKS = 396  # that sum gradients of shared matrices separately
_SCALAR_FLOP = 8  # in flops of matrix units
_SLOW_FUNCTION = 12  # in additions
_EXACT = 4.3  # flops of matrix units that one of an op in full precision is worth
_SLOW = SLOW | {"gelu", "reciprocal", "silu", "softplus"}
# Walks with products, fitted to eight models on an H100, within 15 %. Arithmetic is not hidden
# behind loads, as few warps issue both. Gradients make each product again, its transpose and its
# sum over entries: the multiples of products and functions.
_TILE_GRADIENT_PRODUCTS, _TILE_GRADIENT_FUNCTIONS = 4.5, 2.3
# Time of regions of nodes over that of their walks as counted, where maps share rows: XLA, which
# copies and adds up results, takes 1.6 times what is counted for these.
_SHARED_MAPS = 0.5
_NODE_GRADIENTS = 3  # times the values: products again, their transposes, and gradients to matrices
_MOVES = {"broadcast_in_dim", "concatenate", "expand_dims", "reshape", "slice", "split", "squeeze"}
_REACHED = 0.6  # share of the rates of memory, caches and matrix units that ops have in programs
_MAX_HEADS = 8  # of weights by edge that are no rows
_TIE_BREAK = 1e-10  # microseconds of a byte or a flop, where only launches count


class Cost(NamedTuple):
    """Cost of a row.

    Attributes:
        op: Name of the op.
        time: Estimated time in microseconds.
        bytes: Bytes that are moved.
        flops: Additions and multiplications.
    """

    op: str
    time: float
    bytes: float = 0
    flops: float = 0

    @classmethod
    def of(cls, op: str, *launches: Launch) -> Cost:
        """Return the cost of launches in turn."""
        moved, flops = sum(x.moved for x in launches), sum(x.flops for x in launches)
        time = _queued(in_turn(*map(_slower, launches)))
        return cls(op, time + _TIE_BREAK * (moved + flops), moved, flops)

    def times(self, count: int) -> Cost:
        """Return the cost of several ops."""
        return Cost(self.op, count * self.time, count * self.bytes, count * self.flops)


class Costs:
    """Costs of the rows of a program, for a graph of given sizes.

    Attributes:
        matcher: The patterns and regions.
        parts: The spaces of the graph, with typical sizes in place of symbolic ones.
        results: The results of the program; without them, each row counts as stored.
        separate: Whether each product has a launch of its own, if its operands are unknown.
    """

    def __init__(self, matcher: Matcher, results: Sequence[Row] = (), separate: bool = False):
        parts = matcher.parts
        rows = {space: concrete_size(size) for space, size in parts.rows.items()}
        num_src, num_dst = concrete_size(parts.num_src), concrete_size(parts.num_dst)
        self.parts = parts._replace(rows=rows, num_src=num_src, num_dst=num_dst)
        self.matcher = matcher
        self.results = results
        self.separate = separate

    def total(self, results: Sequence[Row]) -> float:
        """Return the microseconds of all rows that results need."""
        maxima = {softmax.maxima.results[0] for softmax in self.matcher.softmaxes.values()}
        rows = (row for row in needed_rows(results, self.matcher) if row not in maxima)
        return sum(self.of(row).time for row in rows)

    def training(self) -> float:
        """Return the microseconds of all rows that the results need, and of their gradients."""
        return sum(map(self._training_time, self._needed))

    def _training_time(self, row: Row) -> float:
        regions, times = self.matcher.regions, self.matcher.training_times
        # All that the choice of regions changes for a row.
        key: Hashable = row, regions.get(row)
        if row not in regions:
            key = row, row in self._in_registers, *(x in regions for x in row.operands)
        if key not in times:
            times[key] = self.of(row).time + self.gradient(row).time
        return times[key]

    @functools.cached_property
    def _needed(self) -> list[Row]:
        return needed_rows(self.results, self.matcher)

    @functools.cached_property
    def _differentiated(self) -> frozenset[Row]:
        """Rows that have gradients."""

        def operands(row: Row) -> Sequence[Row]:
            is_shift = isinstance(row.op, Apply) and row.op.name == SOFTMAX_SHIFT
            return () if is_shift else row.operands

        return frozenset(topological_order(self.results, operands))

    def of(self, row: Row) -> Cost:
        """Return the cost of a row's op; that of a region belongs to its first result."""
        if row in self.matcher.regions:
            return self._region(row, self.matcher.regions[row])
        written = Launch() if row in self._in_registers else self._stored(row)
        match row.op:
            case Input() | Constant() | Index():
                return Cost("", 0.0)
            case Pull():
                return _fused("gather", self._gather(row.operands[0], row) + written)
            case Softmax():
                score = self._stored(row)
                return Cost.of("segment_softmax", score, score)
            case Apply(name="squeeze" | "reshape"):
                return Cost("reshape", 0.0)
        if self._is_elementwise(row):
            is_fused = self._is_elementwise
            operands = (x for x in row.operands if not (is_fused(x) or isinstance(x.op, Pull)))
            launch = sum(map(self._stored, operands), Launch())
            return self._elementwise(row, launch + written + _flops(self._work(row)))
        return self._pattern(row, self.matcher(row))

    def gradient(self, row: Row) -> Cost:
        """Return the cost of the gradients of a row to its operands.

        Functions read operands again and write gradients. Ops that regions may replace are
        counted; others take twice the op.
        """
        if row not in self._differentiated and self.results:
            return Cost("", 0.0)
        if row in self.matcher.regions:
            return self._region_gradient(row, self.matcher.regions[row])
        match row.op:
            case Input() | Constant() | Index() | Apply(name="squeeze" | "reshape"):
                return Cost("", 0.0)
            case Pull():
                sums = self._stored(row) + self._whole(row.operands[0])
                return Cost.of("segment_sum", sums + once(self.rows(row) * _ID_BYTES))
        if self._is_elementwise(row):
            operands = (x for x in row.operands if not self._is_elementwise(x))
            launch = sum(map(self._stored, operands), Launch())
            return self._elementwise(row, launch + launch + self._stored(row))
        pattern = self.matcher(row)
        if isinstance(pattern, patterns.Sum) and pattern.scores is None:
            return self._sum_gradient(row, pattern)
        if isinstance(pattern, patterns.Einsum):
            return self.of(row).times(max(sum(x in self._differentiated for x in row.operands), 1))
        return self.of(row).times(2)

    def saved_by_attention(self, row: Row) -> float:
        """Return the microseconds of dot products that attention computes itself as scores."""
        pattern = self.matcher(row)
        if not isinstance(pattern, patterns.EdgeDots) or pattern.dst.way != "dst":
            return 0.0
        return self.of(row).time - self._factor(pattern.src, row).time

    def _pattern(self, row: Row, pattern: Pattern) -> Cost:
        out = self._stored(row)
        match pattern:
            case patterns.TypedProduct(x, weight):
                launch = self._factor(x, row) + self._whole(weight.base)
                return Cost.of("segment_matmul", launch + out + self._product(row))
            case patterns.NodeDots():
                return Cost.of("node_dots", relational.node_dots_launch(self.parts, row, pattern))
            case patterns.TypedDots(x, weight):
                launch = self._factor(x, row) + self._factor(weight, row)
                return Cost.of("sddmm", launch + out + self._product(row))
            case patterns.EdgeDots(dst, src):
                launch = self._factor(dst, row) + self._factor(src, row) + self._edge_ids()
                return Cost.of("sddmm", launch + out + self._product(row))
            case patterns.Sum():
                return self._sum(row, pattern)
            case RGAT() | HGT():
                method, time = relational.cheapest_method(self.parts, pattern)
                return Cost(f"{type(pattern).__name__.lower()}_attention ({method})", _queued(time))
            case patterns.Count():
                return Cost.of("count", out)
            case patterns.PairSum(pairs):
                return Cost.of("segment_sum", self._stored(pairs) + out)
        launch = sum(map(self._stored, row.operands), Launch())
        return Cost.of("einsum", launch + out + self._product(row))

    def _is_elementwise(self, row: Row) -> bool:
        """Whether XLA makes a row elementwise, in one launch with others like it."""
        if row in self.matcher.regions:
            return False
        if isinstance(row.op, Apply):
            return True
        if self.separate or not isinstance(row.op, Contract) or row.space is not Space.EDGE:
            return False
        summed = set(sizes_of(row.operands, row.op.terms)) - set(row.op.out)
        return not summed and isinstance(self.matcher(row), patterns.Einsum)

    def _elementwise(self, row: Row, launch: Launch) -> Cost:
        """Return the cost of a function, which XLA fuses with those of its operands."""
        fused = any(map(self._is_elementwise, row.operands))
        op = row.op.name if isinstance(row.op, Apply) else "einsum"
        return (_fused if fused else Cost.of)(op, launch)

    # --- Bytes and flops -----------------------------------------------------------------------

    def rows(self, row: Row) -> int:
        """Return the number of rows."""
        return self.parts.rows.get(row.space, 1)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.parts.rows[Space.EDGE]

    def _bytes(self, row: Row) -> int:
        return max(row.size, 1) * int(row.dtype.itemsize)

    def _stored(self, row: Row) -> Launch:
        """Return the moves of an array that one launch writes and the next one reads."""
        return between(self.rows(row), self._bytes(row))

    @functools.cached_property
    def _in_registers(self) -> set[Row]:
        """The rows of which XLA stores no array, as only functions in the same launch read them."""
        stored = set(self.results)
        for row in reversed(self._needed):
            is_view = isinstance(row.op, Apply) and row.op.name in ("squeeze", "reshape")
            if not self._is_elementwise(row) or (is_view and row in stored):
                stored.update(rows_taken(row, self.matcher))
        return set(self._needed) - stored

    def _whole(self, row: Row) -> Launch:
        """Return the moves of an array that is read or written once."""
        return once(self.rows(row) * self._bytes(row))

    def _gather(self, source: Row, row: Row) -> Launch:
        """Return the moves of a gather from `source` to the rows of `row`."""
        if source.is_shared:
            return self._whole(source)
        count = self.rows(row)
        return gathered(count, self._bytes(source), self.rows(source)) + once(count * _ID_BYTES)

    def _gather_to_edges(self, source: Row) -> Launch:
        return gathered(self.num_edges, self._bytes(source), max(self.rows(source), 1))

    def _factor(self, factor: Factor, row: Row) -> Launch:
        return self._gather(factor.base, row) if factor.way else self._stored(factor.row)

    def _edge_ids(self) -> Launch:
        return once(2 * _ID_BYTES * self.num_edges)

    def _product(self, row: Row) -> Launch:
        """Return the flops of a product, as many of matrix units as take its time."""
        return _flops(self._flops(row) * (_EXACT if _is_exact(row) else 1))

    def _flops(self, row: Row) -> float:
        assert isinstance(row.op, Contract)
        return 2.0 * self.rows(row) * math.prod(sizes_of(row.operands, row.op.terms).values())

    # --- Reductions ----------------------------------------------------------------------------

    def _sum(self, row: Row, pattern: patterns.Sum) -> Cost:
        weight, scores = pattern.weight, pattern.scores
        source, _ = pattern.source
        if row.space is Space.GRAPH:
            return Cost.of(f"segment_{pattern.reduce}", self._stored(source) + self._whole(row))
        launch = self._edge_ids() + self._whole(row) + self._gather_to_edges(source)
        launch += _flops(2.0 * self.num_edges * max(row.size, source.size))
        if weight is not None:
            launch += self._stored(weight)
        if scores is None:
            return Cost.of("spmm", launch)
        for key in rows_in(scores):
            if key is source or key.is_shared:
                continue
            is_edge = key.space is Space.EDGE
            launch += self._stored(key) if is_edge else self._gather_to_edges(key)
        kind = type(scores).__name__.removesuffix("Scores").lower()
        return Cost.of(f"attention ({kind})", launch)

    def _sum_gradient(self, row: Row, pattern: patterns.Sum) -> Cost:
        value, weight = pattern.value, pattern.weight
        source, gathers = pattern.source
        if row.space is Space.GRAPH:
            return self._sum(row, pattern)
        launch = self._edge_ids() + self._gather_to_edges(row)
        launch += self._whole(source) if gathers else self._stored(source)
        if weight is not None:
            launch += self._whole(source) + self._stored(weight) + self._stored(weight)
        if pattern.reduce in ("max", "min"):  # which edges attain the extremes comes first
            values = self._gather(source, value.row) if gathers else self._stored(source)
            attained = self._whole(row) + values
            return Cost.of("select", attained, launch + attained)
        if weight is not None and weight.size > _MAX_HEADS:
            # Rows of edges come into the order of sources, and their gradients back.
            permuted = self._stored(weight)
            return Cost.of("spmm", permuted, launch, permuted)
        return Cost.of("spmm", launch)

    # --- Regions -------------------------------------------------------------------------------

    def _region(self, row: Row, region: EdgeRegion) -> Cost:
        if row is not region.results[0]:
            return Cost("edge_region", 0.0)
        if region.space is Space.NODE:
            return self.node_region(region)
        launch = self._walk(region, "row") + self._all(region.results)
        if region.linear_maps:
            products, functions = self._tile_work(region)
            return Cost.of("edge_region", launch + _arithmetic(products + functions))
        return Cost.of("edge_region", launch + _flops(self._work(*region.members)))

    def _region_gradient(self, row: Row, region: EdgeRegion) -> Cost:
        """Return the cost of a walk by row and one by column, and of the counts of ties."""
        if row is not region.results[0]:
            return Cost("edge_region", 0.0)
        if region.space is Space.NODE:
            return self.node_region(region, gradients=True)
        work = _flops(self._work(*region.members))
        floats = [(x, access) for x, access in region.inputs if x.dtype in FLOATS]
        launches = []
        for order in ("row", "col"):
            # Gradients of rows that edges read by column are sums over columns, hence the second
            # walk. The first walk gives the gradients of all other arguments.
            outputs = [x for x, access in floats if access == order]
            if order == "row":
                outputs += [x for x, access in region.inputs if access in ("edge", "shared")]
                cotangents = self._all(region.results)
            else:
                cotangents = self._all(region.edge_results)
                cotangents += sum(map(self._gather_to_edges, region.pushes), Launch())
            # The first walk may store these gradients by edge, and the second one adds them up.
            size = sum(map(self._bytes, outputs))
            stored = between(self.num_edges, size)
            by_entry = sum(map(self._bytes, (*region.pushes, *region.input_rows)))
            is_stored = region.linear_maps or (region.has_channels and 2 * size < by_entry)
            if outputs and order == "col" and is_stored:
                launches.append(stored + stored + self._edge_ids() + self._all(outputs))
            elif outputs:
                walk = self._walk(region, order) + cotangents + self._all(outputs)
                if region.linear_maps:
                    products, functions = self._tile_work(region)
                    products *= _TILE_GRADIENT_PRODUCTS
                    functions *= _TILE_GRADIENT_FUNCTIONS
                    launches.append(walk + _arithmetic(products + functions))
                else:
                    launches.append(walk + work + work + work)
        # Gradients of shared rows are summed by destination, or by block, and then in all.
        shared = {x for x, access in floats if access == "shared"}
        for rows, count in (
            (shared - region.linear_maps, self.parts.num_dst),
            (shared & region.linear_maps, _BLOCKS),
        ):
            if rows:
                size = sum(map(self._bytes, rows))
                launches += [between(count, size), between(count, size)]
        extremes = [
            x for x in region.pushes if isinstance(x.op, Push) and x.op.reduce in ("max", "min")
        ]
        if launches and extremes:
            launches[0] += self._all(extremes) + self._all(extremes)
        return Cost.of("edge_region", *launches) if launches else Cost("edge_region", 0.0)

    def node_region(self, region: EdgeRegion, gradients: bool = False) -> Cost:
        """Return the cost of a region of nodes, or that of its gradients."""
        moved = self._all(x for x in (*region.input_rows, *region.results) if not x.is_shared)
        work = sum(self._tile_work(region)) + FLOPS_PER_BYTE * moved.moved
        rows = [x for row in region.members if linear_maps_of(row) for x in row.operands]
        rows = [x for x in rows if not x.is_shared]
        work *= _SHARED_MAPS if len(set(rows)) < len(rows) else 1
        launch = _arithmetic(work * (_NODE_GRADIENTS if gradients else 1))
        return Cost.of("node_region", launch)

    def gradient_of_walks(self, region: EdgeRegion) -> float:
        """Return the microseconds that a region's gradients take beyond `gradient`, as walks.

        The walks are those whose kernels a GPU has room for.
        """
        if not region.linear_maps or region.space is Space.NODE:
            return 0.0
        time = _arithmetic(region.gradient_flops() * self.num_edges).extra
        return time - self.gradient(region.results[0]).time

    def time_of_walks(self, region: EdgeRegion) -> float:
        """Return the microseconds that a region takes beyond `of`, as a walk; 0 if it is less.

        It is infinite if a GPU has no kernel for the region.
        """
        if region.space is Space.NODE:
            return 0.0
        time = _arithmetic(region.flops() * self.num_edges).extra
        if not region.linear_maps and math.isfinite(time):  # `of` counts what is read once
            return 0.0
        return max(0.0, time - self.of(region.results[0]).time)

    def _walk(self, region: EdgeRegion, order: str) -> Launch:
        """Return what edges read, in the order of their rows or of their columns."""
        launch = self._edge_ids()
        for source, access in region.inputs:
            # Arrays in the order of the walk are read once from end to end; other rows are
            # gathered, some of them repeatedly.
            is_streamed = access in ("edge", "shared", order)
            launch += self._stored(source) if is_streamed else self._gather_to_edges(source)
        return launch

    def _all(self, rows: Iterable[Row]) -> Launch:
        return sum(map(self._whole, rows), Launch())

    def _work(self, *rows: Row) -> float:
        """Return the work of elementwise functions and products, in flops of matrix units."""
        return sum(self._weighed(rows, _SCALAR_FLOP, _SCALAR_FLOP * _SLOW_FUNCTION))

    def _tile_work(self, region: EdgeRegion) -> tuple[float, float]:
        """Return the flops of products with matrices, and those that functions are worth."""
        return self._weighed(region.members, FUNCTION_FLOPS, SLOW_FUNCTION_FLOPS)

    def _weighed(
        self, rows: Iterable[Row], function: float, slow_function: float
    ) -> tuple[float, float]:
        """Return the flops of products with matrices, and those that functions are worth.

        Args:
            rows: The rows.
            function: Weight of a function of a number, or of a flop of other products.
            slow_function: Weight of a slow function.
        """
        products = functions = 0.0
        for row in rows:
            if isinstance(row.op, Contract):
                flops = self._flops(row) * _density(row)
                if linear_maps_of(row):
                    products += flops * (EXACT_FLOPS if _is_exact(row) else 1)
                else:
                    functions += function * flops
            elif isinstance(row.op, Apply) and row.op.name not in _MOVES:
                is_slow = row.op.name.removeprefix("custom_jvp ") in _SLOW
                weight = slow_function if is_slow else function
                functions += weight * float(self.rows(row) * row.size)
        return products, functions


def _is_exact(row: Row) -> bool:
    """Whether a product of float32 has full precision, and not that of tensor cores."""
    level = precision_level(row.op.precision) if isinstance(row.op, Contract) else None
    return level is jax.lax.Precision.HIGHEST and row.dtype == np.float32


def _density(row: Row) -> float:
    """Return the share of a product's terms that constants do not make zero."""
    constants = (x.op.value for x in row.operands if isinstance(x.op, Constant) and x.size)
    return math.prod(np.count_nonzero(value) / value.size for value in constants)


def _arithmetic(flops: float) -> Launch:
    """Return the arithmetic of walks, which no memory traffic hides."""
    return Launch(extra=flops / FLOPS)


def _flops(flops: float) -> Launch:
    return Launch(0, 0, flops)


def _fused(op: str, launch: Launch) -> Cost:
    """Return the cost of what XLA does in the launch of a producer or consumer."""
    time = _slower(launch).time - Launch().time + _TIE_BREAK * (launch.moved + launch.flops)
    return Cost(op, time, launch.moved, launch.flops)


def _slower(launch: Launch) -> Launch:
    """Return a launch that reaches the share of the card's rates which was measured."""
    missed, moved, flops = (x / _REACHED for x in (launch.missed, launch.moved, launch.flops))
    return Launch(missed, moved, flops, launch.extra)


def _queued(time: float) -> float:
    """Return the time of what waits for another launch."""
    return time + in_turn(Launch(), Launch()) - 2 * Launch().time
