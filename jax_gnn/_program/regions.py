"""Functions of edges that no op makes, each group as one edge region.

A region is what edges make of what they read, up to reductions into destinations: rows that nothing
else takes, so that none of them needs an array of all edges.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ffi import chosen_implementation
from jax_gnn._core.op import align_varying
from jax_gnn._ops.edge_region import cuda_compile
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import Access, Dest, Unsupported
from jax_gnn._program.einsum import einsum
from jax_gnn._program.maps import Maps
from jax_gnn._program.match import Matcher
from jax_gnn._program.patterns import Einsum, Sum, is_read, width
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Given,
    Place,
    Pull,
    Push,
    Row,
    in_order,
    pull,
    sizes_of,
)
from jax_gnn._program.spaces import Space

_OF_SOURCES = {
    Space.NODE: {"src": ""},
    Space.SOURCE_PAIR: {way: way for way in ("src", "relation", "src_type")} | {"src_pair": ""},
}
"""What edges read of their source, or of their (source, relation) pair, and how that reads it."""

_MOST_WEIGHTS = 64
"""Of a shared matrix of which each edge makes the gradient."""
_MOST_ON_TENSOR_CORES = 1 << 12
"""Of one that blocks of edges are multiplied with on a GPU; others are left to XLA."""


def makers() -> str:
    """Who makes regions: ``"cuda"`` with linear maps, ``"xla"`` without, ``"cpu"`` none at all."""
    backend = {"cpu": "cpu", "gpu": "cuda"}.get(jax.default_backend(), "xla")
    chosen: str = chosen_implementation.value or backend
    return "xla" if chosen == "cuda" and not cuda_compile.supports_linear_maps() else chosen


_LOOPS = frozenset({"cond", "scan", "while"})


@dataclass(frozen=True, eq=False)
class EdgeRegion:
    """Rows that one region makes.

    Attributes:
        members: What edges make, each after its operands.
        pushes: What they are reduced to.
        kept: Members that are results of the program.
        sources: What edges read columns of: nodes, or (source, relation) pairs.
    """

    members: tuple[Row, ...]
    pushes: tuple[Row, ...]
    kept: tuple[Row, ...]
    sources: Space = Space.NODE

    @functools.cached_property
    def _reads(self) -> dict[Row, tuple[Row, Access]]:
        """Of each operand that is no member the row whose array is read, and how."""
        inner, pulled = set(self.members), dict[Any, Row]()
        found: dict[Row, tuple[Row, Access]] = {}
        for row in dict.fromkeys(each for member in self.members for each in member.operands):
            way = row.op.way if isinstance(row.op, Pull) else ""
            if row in inner or isinstance(row.op, Constant):
                continue
            if row.space is Space.SHARED:
                found[row] = row, "shared"
            elif way == "dst":
                found[row] = row.operands[0], "row"
            elif way in _OF_SOURCES[self.sources]:
                of, at = row.operands[0], _OF_SOURCES[self.sources][way]
                found[row] = pulled.setdefault((of, at), pull(of, self.sources, at)), "col"
            else:
                found[row] = row, "edge"
        return found

    @functools.cached_property
    def inputs(self) -> tuple[tuple[Row, Access], ...]:
        """What the region takes, and how edges read it."""
        return tuple(dict.fromkeys(self._reads.values()))

    @property
    def taken(self) -> list[Row]:
        """The rows whose arrays it takes."""
        return [row for row, _ in self.inputs]

    @functools.cached_property
    def maps(self) -> frozenset[Row]:
        """The shared matrices that blocks of edges are multiplied with."""
        return frozenset(each for row in self.members for each in maps_of(row))

    @property
    def reads_pairs(self) -> bool:
        """Whether edges read what (source, relation) pairs suffice for, and sources do not."""
        ways = _OF_SOURCES[Space.SOURCE_PAIR].keys() - _OF_SOURCES[Space.NODE].keys()
        return any(isinstance(row.op, Pull) and row.op.way in ways for row in self._reads)

    @property
    def results(self) -> tuple[Row, ...]:
        """The rows that it gives."""
        return self.pushes + self.kept

    def function(self, *rows: Any) -> list[Any]:
        """What an edge makes of the rows that it reads: a row for each result."""
        *of_rows, share = rows if self.shares else (*rows, None)
        read: dict[Any, Any] = dict(zip(self.inputs, of_rows, strict=True))
        found: dict[Row, Any] = {}
        several: dict[Any, Sequence[Any]] = {}

        def value(row: Row) -> Any:
            if isinstance(row.op, Constant):
                return jnp.asarray(row.op.value)
            return found[row] if row in found else read[self._reads[row]]

        for row in self.members:
            operands = align_varying([value(each) for each in row.operands])
            if isinstance(row.op, Contract):
                found[row] = einsum(row, [(each, False) for each in operands])
            else:
                assert isinstance(row.op, Apply)
                key = row.op.function, row.operands
                if key not in several:
                    several[key] = row.op.function(*operands)
                found[row] = several[key][row.op.index]
        made = [found[push.operands[0]] for push in self.pushes]
        if share is not None:
            made = [x * share if _is_mean(y) else x for x, y in zip(made, self.pushes, strict=True)]
        return made + [found[row] for row in self.kept]

    @functools.cached_property
    def shares(self) -> Any:
        """Dtype of what edges read last, the part of a mean that they are; None without.

        Of half types, whose parts are not precise enough, sums are divided.
        """
        dtypes = {np.dtype(push.dtype) for push in self.pushes if _is_mean(push)}
        return dtypes.pop() if len(dtypes) == 1 and min(dtypes).itemsize >= 4 else None

    @property
    def outputs(self) -> list[tuple[Dest, str]]:
        """Of each result where it goes, and how."""
        found: list[tuple[Dest, str]] = [
            ("row", "sum" if _is_mean(push) else push.op.reduce)  # type: ignore[union-attr]
            for push in self.pushes
        ]
        return found + [("edge", "none")] * len(self.kept)

    def matrix(self, maps: Maps) -> SparseMatrix:
        """The edges, with what they read as columns."""
        return maps.edges("src" if self.sources is Space.NODE else "src_pair", Space.NODE)

    @functools.cached_property
    def region(self) -> Region:
        """What the primitive gets."""
        rows = [jax.ShapeDtypeStruct(row.shape, row.dtype) for row in self.taken]
        rows += [jax.ShapeDtypeStruct((), self.shares)] if self.shares else []
        return Region.closing(self.function, rows, self.ways, self.outputs)[0]

    @property
    def ways(self) -> list[Access]:
        """How edges read all that they take."""
        ways: list[Access] = [read for _, read in self.inputs]
        return [*ways, "row"] if self.shares else ways

    def lowered(self, lowering: Any) -> list[Array]:
        """An array of each result."""
        maps = lowering.maps

        def array(row: Row) -> Array:
            if isinstance(row.op, Given) and row.space is Space.EDGE:
                return jnp.asarray(lowering.given[row.op.index])  # what padding holds is not read
            found: Array = lowering.array(row)
            return found

        arrays = [array(row) for row in self.taken]
        if self.shares:
            arrays.append(1 / jnp.maximum(maps.degrees(self.shares), 1))
        found = edge_region(self.function, arrays, self.ways, self.outputs, self.matrix(maps))
        for i, push in enumerate(self.pushes):
            if _is_mean(push) and not self.shares:
                counts = jnp.maximum(maps.degrees(found[i].dtype), 1)
                found[i] = found[i] / counts.reshape(-1, *[1] * len(push.shape))
        return found


def _is_mean(push: Row) -> bool:
    return push.op.reduce == "mean"  # type: ignore[union-attr]


# --- Finding them --------------------------------------------------------------------------------


class Candidates:
    """The regions that a program may have, for each choice of reductions that are in some.

    Attributes:
        pushes: The reductions that may be in one.
        has_pairs: Whether the graph has (source, relation) pairs.
    """

    def __init__(self, results: Sequence[Row], matcher: Matcher, maps: bool = True) -> None:
        self.has_pairs = Space.SOURCE_PAIR in matcher.parts.rows
        self._wanted = set(results)
        self._matcher = matcher
        self._rows = in_order(results)
        self._readers: dict[Row, list[Row]] = {row: [] for row in self._rows}
        for row in self._rows:
            for each in row.operands:
                self._readers[each].append(row)
        self._edges = {
            row
            for row in self._rows
            if (row.dtype in FLOATS or row not in self._wanted)  # results are no truth values
            and _is_of_edges(row, matcher, maps)
        }
        self._edges -= self._drawn()
        self.pushes = self._with_members(row for row in self._rows if _is_reduction(row, matcher))

    def _drawn(self) -> set[Row]:
        """Keys, random bits and functions of such alone, up to truth values: regions read these."""
        found: set[Row] = set()
        for row in self._rows:
            varying = [each for each in row.operands if each.space is not Space.SHARED]
            if isinstance(row.op, Place) or (
                isinstance(row.op, Apply | Contract)
                and row.space is Space.EDGE
                and (not _is_number(row) or all(x in found and x.dtype != bool for x in varying))
            ):
                found.add(row)
        return found

    def found(self, pushes: Iterable[Row], by_pairs: Collection[Row] = ()) -> dict[Row, EdgeRegion]:
        """The regions of these reductions, by each of their results.

        Args:
            pushes: The reductions.
            by_pairs: Those whose regions read rows of (source, relation) pairs.
        """
        kept = self._with_members(pushes)
        return self._grouped(kept, self._members(kept), by_pairs)

    def _with_members(self, pushes: Iterable[Row]) -> tuple[Row, ...]:
        """Those reductions whose operand only they read."""
        found = tuple(pushes)
        while True:
            members = self._members(found)
            kept = tuple(push for push in found if push.operands[0] in members)
            if kept == found:
                return kept
            found = kept

    def _members(self, pushes: Iterable[Row]) -> set[Row]:
        """What edges make that only others of these and the reductions read."""
        given, found = set(pushes), set[Row]()
        for row in reversed(self._rows):
            if row in self._edges and all(
                each in found or each in given for each in self._readers[row]
            ):
                found.add(row)
        return found

    def _grouped(
        self, pushes: Sequence[Row], members: set[Row], by_pairs: Collection[Row]
    ) -> dict[Row, EdgeRegion]:
        """Reductions that have members in common are one region, unless one needs another."""
        level: dict[Row, int] = {}
        for row in self._rows:
            level[row] = max((level[each] for each in row.operands), default=0) + (row in pushes)
        groups: list[tuple[int, list[Row], set[Row]]] = []
        for push in pushes:
            inner = set(_closure(push.operands[0], members))
            same = [each for each in groups if each[0] == level[push] and each[2] & inner]
            joined = [each for _, more, _ in same for each in more] + [push]
            inner = inner.union(*(each[2] for each in same))
            groups = [each for each in groups if each not in same] + [(level[push], joined, inner)]
        found: dict[Row, EdgeRegion] = {}
        given: set[Row] = set()
        for _, joined, inner in sorted(groups, key=lambda each: each[0]):
            if all(_is_served(push, self._matcher) for push in joined):
                continue
            ordered = tuple(row for row in self._rows if row in inner)
            kept = tuple(row for row in ordered if row in self._wanted and row not in given)
            given |= set(kept)
            sources = Space.SOURCE_PAIR if set(joined) <= set(by_pairs) else Space.NODE
            region = EdgeRegion(ordered, tuple(joined), kept, sources)
            found |= dict.fromkeys(region.results, region)
        return found


def chosen(
    candidates: Candidates, count: Callable[[Mapping[Row, EdgeRegion]], float]
) -> dict[Row, EdgeRegion]:
    """The regions that pay, by each of their results.

    Args:
        candidates: Those that there may be.
        count: What the program takes with given ones.
    """
    pushes = candidates.pushes
    found = candidates.found(pushes)
    if not found:
        return found
    least = count(found)
    whole = [region.pushes for region in dict.fromkeys(found.values())]
    single = [(push,) for group in whole if len(group) > 1 for push in group]
    for group in [*whole, *single]:
        fewer = tuple(push for push in pushes if push not in group)
        other = candidates.found(fewer)
        if (time := count(other)) <= least:
            pushes, found, least = fewer, other, time
    by_pairs: tuple[Row, ...] = ()
    for region in dict.fromkeys(found.values()) if candidates.has_pairs else ():
        if region.reads_pairs:
            more = *by_pairs, *region.pushes
            other = candidates.found(pushes, more)
            if (time := count(other)) < least:
                by_pairs, found, least = more, other, time
    return found


def _is_reduction(row: Row, matcher: Matcher) -> bool:
    """Whether edges are reduced to it as they are."""
    if not isinstance(row.op, Push) or row.space is not Space.NODE:
        return False
    pattern = matcher(row)
    return isinstance(pattern, Sum) and pattern.scores is None and row.dtype in FLOATS


def _is_served(push: Row, matcher: Matcher) -> bool:
    """Whether an op takes a sum, but for weights that are much smaller than what it reads."""
    pattern = matcher(push)
    assert isinstance(pattern, Sum)
    if not is_read(pattern.value, pattern.into):
        return False
    return pattern.weight is None or pattern.weight.size * 4 <= push.size


def _is_of_edges(row: Row, matcher: Matcher, maps: bool) -> bool:
    """Whether it is a function of edges that a region can hold, linear maps only if they may be."""
    if row.space is not Space.EDGE or not _is_number(row):
        return False
    if isinstance(row.op, Apply):
        return missing(row) is None
    pattern = matcher(row)
    if not isinstance(row.op, Contract) or not isinstance(pattern, Einsum):
        return False
    sizes = sizes_of(row.operands, row.op.terms)
    summed = set(sizes) - set(row.op.out)
    weights = [
        width(each.labels, sizes)
        for each in pattern.factors
        if each.row.space is Space.SHARED and set(each.labels) & summed
    ]
    reads = all(each.way or each.row.space is Space.SHARED for each in pattern.factors)
    if not weights:
        return True
    few = max(weights) <= (_most_weights(row, pattern) if maps else _MOST_WEIGHTS)
    return few and not reads  # what edges read is multiplied where it is read


def _most_weights(row: Row, product: Einsum) -> int:
    """Of a shared matrix inside a region: more where blocks of edges are multiplied with it."""
    if len(product.factors) == 2:
        matrix, x = sorted(product.factors, key=lambda each: each.row.space is not Space.SHARED)
        if x.row.space is not Space.SHARED and set(x.labels) < set(matrix.labels):
            sides = x.row.size, matrix.row.size // max(x.row.size, 1)
            if makers() == "cuda" and row.dtype != np.float64 and _lanes_share(sides):
                return _MOST_ON_TENSOR_CORES
    return _MOST_WEIGHTS


def _lanes_share(sides: Sequence[int]) -> bool:
    """Whether a warp's lanes have rows of these sizes in full, and evenly."""
    return all(side <= 32 or (side <= 128 and side % 4 == 0) for side in sides)


def maps_of(row: Row) -> list[Row]:
    """The shared matrices of a region's product that blocks of edges are multiplied with."""
    shared = row.operands if isinstance(row.op, Contract) else ()
    return [each for each in shared if each.space is Space.SHARED and each.size > _MOST_WEIGHTS]


def missing(row: Row) -> str | None:
    """Why kernels for regions do not know a function; None if they do."""
    op = row.op
    assert isinstance(op, Apply)
    if op.name in _LOOPS:
        return f"{op.name} is a loop"
    for each in (row, *row.operands):
        if not _is_number(each):
            return f"regions have no {each.dtype}"
    operands = tuple((each.shape, each.dtype, each.space is Space.SHARED) for each in row.operands)
    return _missing(op.function, op.index, operands)


@functools.lru_cache(maxsize=1024)
def _missing(
    function: Callable[..., Sequence[Any]], index: int, operands: tuple[Any, ...]
) -> str | None:
    """Why a function of operands, each with whether it is shared, has no instructions."""
    rows = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in operands]
    reads: list[Access] = ["shared" if shared else "edge" for _, _, shared in operands]
    region = Region.of(lambda *x: [function(*x)[index]], rows, reads, [("edge", "none")])
    return region.program.reason if isinstance(region.program, Unsupported) else None


def _is_number(row: Row) -> bool:
    return row.dtype in FLOATS or row.dtype == bool or isinstance(row.op, Constant)


def _closure(row: Row, members: set[Row]) -> list[Row]:
    """The members that one is made of, and itself."""
    return in_order([row], lambda each: [x for x in each.operands if x in members])
