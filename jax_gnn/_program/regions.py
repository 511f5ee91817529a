"""Functions of edges that no op makes, each group as one edge region.

A region is what edges make of what they read, up to reductions into destinations: rows that nothing
else takes, so that none of them needs an array of all edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import FLOATS
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import Into, Read, Unsupported
from jax_gnn._program.einsum import einsum
from jax_gnn._program.match import Matcher
from jax_gnn._program.patterns import Einsum, Sum, is_read, width
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Given,
    Pull,
    Push,
    Row,
    in_order,
    sizes_of,
)
from jax_gnn._program.spaces import Space

_READS: dict[str, Read] = {"src": "col", "dst": "row"}
_MOST_WEIGHTS = 64
"""Of a shared matrix inside a region: each edge makes as many numbers of its gradient."""


_LOOPS = frozenset({"cond", "scan", "while"})


@dataclass(frozen=True, eq=False)
class EdgeRegion:
    """Rows that one region makes.

    Attributes:
        members: What edges make, each after its operands.
        pushes: What they are reduced to.
        kept: Members that are results of the program.
        inputs: What the region takes, and how edges read it.
    """

    members: tuple[Row, ...]
    pushes: tuple[Row, ...]
    kept: tuple[Row, ...]
    inputs: tuple[tuple[Row, Read], ...]

    @property
    def taken(self) -> list[Row]:
        """The rows whose arrays it takes."""
        return [row for row, _ in self.inputs]

    @property
    def results(self) -> tuple[Row, ...]:
        """The rows that it gives."""
        return self.pushes + self.kept

    def function(self, *rows: Any) -> list[Any]:
        """What an edge makes of the rows that it reads: a row for each result."""
        read: dict[Any, Any] = dict(zip(self.inputs, rows, strict=True))
        found: dict[Row, Any] = {}
        several: dict[Any, Sequence[Any]] = {}

        def value(row: Row) -> Any:
            if isinstance(row.op, Constant):
                return jnp.asarray(row.op.value)
            return found[row] if row in found else read[_read_by(row)]

        for row in self.members:
            operands = [value(each) for each in row.operands]
            if isinstance(row.op, Contract):
                found[row] = einsum(row, [(each, False) for each in operands])
            else:
                assert isinstance(row.op, Apply)
                key = row.op.function, row.operands
                if key not in several:
                    several[key] = row.op.function(*operands)
                found[row] = several[key][row.op.index]
        given = [*(push.operands[0] for push in self.pushes), *self.kept]
        return [found[row] for row in given]

    def lowered(self, lowering: Any) -> list[Array]:
        """An array of each result."""
        maps = lowering.maps

        def array(row: Row) -> Array:
            if isinstance(row.op, Given) and row.space is Space.EDGE:
                return jnp.asarray(lowering.given[row.op.index])  # what padding holds is not read
            found: Array = lowering.array(row)
            return found

        outputs: list[tuple[Into, str]] = [
            ("row", "sum" if push.op.reduce == "mean" else push.op.reduce)  # type: ignore[union-attr]
            for push in self.pushes
        ]
        outputs += [("edge", "none")] * len(self.kept)
        found = edge_region(
            self.function,
            [array(row) for row, _ in self.inputs],
            [read for _, read in self.inputs],
            outputs,
            maps.nodes.matrix(weighted=True),
        )
        for i, push in enumerate(self.pushes):
            if push.op.reduce == "mean":  # type: ignore[union-attr]
                counts = jnp.maximum(maps.degrees(found[i].dtype), 1)
                found[i] = found[i] / counts.reshape(-1, *[1] * len(push.shape))
        return found


def _read_by(row: Row) -> tuple[Row, Read]:
    """What an edge reads for an operand, and how."""
    if row.space is Space.SHARED:
        return row, "shared"
    if isinstance(row.op, Pull) and row.op.way in _READS:
        return row.operands[0], _READS[row.op.way]
    return row, "edge"


# --- Finding them --------------------------------------------------------------------------------


def found_in(results: Sequence[Row], matcher: Matcher) -> dict[Row, EdgeRegion]:
    """The regions of a program, by each of their results."""
    rows = in_order(results)
    readers: dict[Row, list[Row]] = {row: [] for row in rows}
    for row in rows:
        for each in row.operands:
            readers[each].append(row)
    wanted = set(results)
    pushes = {row for row in rows if _is_reduction(row, matcher)}
    while True:
        members = _members(rows, readers, pushes, matcher)
        kept = {push for push in pushes if _gains(push, members, matcher)}
        if kept == pushes:
            break
        pushes = kept
    return _grouped(rows, pushes, members, wanted)


def _is_reduction(row: Row, matcher: Matcher) -> bool:
    """Whether edges are reduced to it as they are."""
    if not isinstance(row.op, Push) or row.space is not Space.NODE:
        return False
    pattern = matcher(row)
    return isinstance(pattern, Sum) and pattern.scores is None and row.dtype in FLOATS


def _members(
    rows: Sequence[Row],
    readers: Mapping[Row, Sequence[Row]],
    pushes: set[Row],
    matcher: Matcher,
) -> set[Row]:
    """What edges make that only others of these and the reductions read."""
    found: set[Row] = set()
    for row in reversed(rows):
        inside = all(each in found or each in pushes for each in readers[row])
        if inside and _is_of_edges(row, matcher):
            found.add(row)
    return found


def _is_of_edges(row: Row, matcher: Matcher) -> bool:
    """Whether it is a function of edges that a region can hold."""
    if row.space is not Space.EDGE or not _is_number(row):
        return False
    if isinstance(row.op, Apply):
        return all(map(_is_number, row.operands)) and _has_instructions(row)
    pattern = matcher(row)
    if not isinstance(row.op, Contract) or not isinstance(pattern, Einsum):
        return False
    sizes = sizes_of(row.operands, row.op.terms)
    summed = set(sizes) - set(row.op.out)
    return not any(
        each.row.space is Space.SHARED
        and set(each.labels) & summed
        and width(each.labels, sizes) > _MOST_WEIGHTS
        for each in pattern.factors
    )


def _has_instructions(row: Row) -> bool:
    """Whether kernels for regions know its function."""
    op = row.op
    assert isinstance(op, Apply)
    if op.name in _LOOPS:
        return False
    shared = [each.space is Space.SHARED for each in row.operands]
    rows = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in row.operands]
    reads: list[Read] = ["shared" if each else "edge" for each in shared]
    region = Region.of(lambda *x: [op.function(*x)[op.index]], rows, reads, [("edge", "none")])
    return not isinstance(region.program, Unsupported)


def _is_number(row: Row) -> bool:
    return row.dtype in FLOATS or row.dtype == bool or isinstance(row.op, Constant)


def _gains(push: Row, members: set[Row], matcher: Matcher) -> bool:
    """Whether a region spares an array that the op of a reduction would take."""
    (of,) = push.operands
    pattern = matcher(push)
    assert isinstance(pattern, Sum)
    if of not in members or pattern.reduce == "prod":
        return False
    if isinstance(of.op, Apply):
        return True
    inner = [each for each in _closure(of, members) if each is not of]
    if is_read(pattern.value, pattern.into):  # a weight that is much smaller is an array
        weight = pattern.weight
        return bool(inner) and weight is not None and weight.size * 4 > of.size
    return True


def _closure(row: Row, members: set[Row]) -> list[Row]:
    """The members that one is made of, and itself."""
    return in_order([row], lambda each: [x for x in each.operands if x in members])


def _grouped(
    rows: Sequence[Row], pushes: set[Row], members: set[Row], wanted: set[Row]
) -> dict[Row, EdgeRegion]:
    """Reductions that have members in common are one region, unless one needs another."""
    level: dict[Row, int] = {}
    for row in rows:
        level[row] = max((level[each] for each in row.operands), default=0) + (row in pushes)
    groups: list[tuple[int, list[Row], set[Row]]] = []
    for push in (row for row in rows if row in pushes):
        inner = set(_closure(push.operands[0], members))
        same = [each for each in groups if each[0] == level[push] and each[2] & inner]
        joined = [each for _, more, _ in same for each in more] + [push]
        inner = inner.union(*(each[2] for each in same))
        groups = [each for each in groups if each not in same] + [(level[push], joined, inner)]
    found: dict[Row, EdgeRegion] = {}
    given: set[Row] = set()
    for _, joined, inner in sorted(groups, key=lambda each: each[0]):
        kept = tuple(row for row in rows if row in inner and row in wanted and row not in given)
        given |= set(kept)
        ordered = tuple(row for row in rows if row in inner)
        read = [
            _read_by(each)
            for row in ordered
            for each in row.operands
            if each not in inner and not isinstance(each.op, Constant)
        ]
        region = EdgeRegion(ordered, tuple(joined), kept, tuple(dict.fromkeys(read)))
        found |= dict.fromkeys(region.results, region)
    return found
