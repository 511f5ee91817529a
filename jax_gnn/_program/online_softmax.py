"""Softmaxes over edges in one walk: a region of maxima, joined with that of sums of exponentials.

`split_softmax` makes two regions, of which the second one reads the maxima of the first one. For
values, one walk finds maxima and adds up exponentials, whose sums shrink where a maximum grows, as
in online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867). Gradients are those of two walks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from jax_gnn._core.csr import SparseMatrix
from jax_gnn._ops.edge_region.cuda import flops_of_walks
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._program.derivatives import differentiated_as
from jax_gnn._program.regions import EdgeRegion
from jax_gnn._program.rows import (
    SOFTMAX_EXP,
    SOFTMAX_SHIFT,
    Apply,
    Contract,
    Pull,
    Push,
    Row,
    constant,
    contract,
    topological_order,
)

if TYPE_CHECKING:
    from jax_gnn._program.lower import Lowering


@dataclass(frozen=True, eq=False)
class OnlineSoftmax:
    """Two regions that one walk computes.

    Attributes:
        maxima: The region with the maxima of scores.
        sums: The region whose sums are of exponentials, or of products with them.
        shift: The shifts of scores, which the second region reads.
        joined: Both regions as one, with results in the order of `maxima` and `sums`.
    """

    maxima: EdgeRegion
    sums: EdgeRegion
    shift: Row
    joined: EdgeRegion

    def lower(self, lowering: Lowering) -> dict[Row, Array]:
        """Compute the array of each result of both regions."""
        rows = self.joined.input_rows

        def run(region: EdgeRegion, arrays: Mapping[Row, Array], matrix: SparseMatrix) -> Any:
            inputs = [arrays[row] for row in region.input_rows]
            return edge_region(region.function, inputs, region.accesses, region.outputs, matrix)

        def online(inputs: Sequence[Array], matrix: SparseMatrix) -> Any:
            return run(self.joined, dict(zip(rows, inputs, strict=True)), matrix)

        def in_two_walks(inputs: Sequence[Array], matrix: SparseMatrix) -> Any:
            assert isinstance(self.shift.op, Apply)
            arrays = dict(zip(rows, inputs, strict=True))
            constants = {row: jax.lax.stop_gradient(x) for row, x in arrays.items()}
            (maxima,) = run(self.maxima, constants, matrix)
            (arrays[self.shift],) = self.shift.op.function(maxima)
            return [maxima, *run(self.sums, arrays, matrix)]

        inputs = [lowering.as_passed(row) for row in rows]
        matrix = self.joined.matrix(lowering.matrices)
        values = differentiated_as(online, in_two_walks)(inputs, matrix)
        return dict(zip((*self.maxima.results, *self.sums.results), values, strict=True))


def online_softmaxes(
    regions: Iterable[EdgeRegion], uses: Mapping[Row, int]
) -> dict[EdgeRegion, OnlineSoftmax]:
    """Return the pairs of regions that one walk computes, by each of both regions.

    Args:
        regions: The regions of a program.
        uses: How often each row is read.
    """
    by_result = {row: region for region in regions for row in region.results}
    found: dict[EdgeRegion, OnlineSoftmax] = {}
    for sums in dict.fromkeys(by_result.values()):
        pair = _pair(sums, by_result, uses)
        if pair is not None and pair.maxima not in found:
            found |= {pair.maxima: pair, pair.sums: pair}
    return found


def _pair(
    sums: EdgeRegion, by_result: Mapping[Row, EdgeRegion], uses: Mapping[Row, int]
) -> OnlineSoftmax | None:
    """Return a region with that of the maxima that it reads, if one walk can compute both."""
    exponentials = [
        row for row in sums.members if isinstance(row.op, Apply) and row.op.name == SOFTMAX_EXP
    ]
    if len(exponentials) != 1 or sums.edge_results or sums.share_dtype:
        return None
    (exponential,) = exponentials
    scores, read = exponential.operands
    shift = read.operands[0] if isinstance(read.op, Pull) else read
    if not isinstance(shift.op, Apply) or shift.op.name != SOFTMAX_SHIFT:
        return None
    (maximum,) = shift.operands
    maxima = by_result.get(maximum)
    if maxima is None or maxima is sums or maxima.results != (maximum,) or uses[maximum] > 1:
        return None
    ends = [(region.columns, region.rows, region.way) for region in (sums, maxima)]
    if maximum.operands != (scores,) or ends[0] != ends[1]:
        return None
    others = [row for row in sums.input_rows if row is not shift]
    if maximum in topological_order(others):
        return None
    factors = {push: _factor(push, exponential) for push in sums.pushes}
    readers = [row for row in sums.members if exponential in row.operands]
    tops = [push.operands[0] for push in sums.pushes]
    if None in factors.values() or any(row not in tops for row in readers):
        return None
    pushes = [
        replace(push, op=Push("exp_sum"), operands=(factor,))
        for push, factor in factors.items()
        if factor is not None
    ]
    members = {*maxima.members, *sums.members, *(push.operands[0] for push in pushes)}
    members -= {exponential, *(row for row in tops if row in readers)}
    ordered = [row for row in topological_order([maximum, *pushes]) if row in members]
    joined = EdgeRegion(tuple(ordered), (maximum, *pushes), (), sums.columns, sums.rows)
    if not math.isfinite(flops_of_walks(joined.region)):
        return None
    return OnlineSoftmax(maxima, sums, shift, joined)


def _factor(push: Row, exponential: Row) -> Row | None:
    """Return what a sum multiplies exponentials with, number by number; None if it does not."""
    (value,) = push.operands
    if not isinstance(push.op, Push) or push.op.reduce != "sum" or value.dtype != exponential.dtype:
        return None
    if value.shape != exponential.shape:
        return None
    labels = tuple(range(len(value.shape)))
    if value is exponential:
        return contract([constant(1, value.dtype)], [()], labels, value)
    if not isinstance(value.op, Contract) or value.operands.count(exponential) != 1:
        return None
    place = value.operands.index(exponential)
    terms = [term for i, term in enumerate(value.op.terms) if i != place]
    operands = [row for i, row in enumerate(value.operands) if i != place]
    if value.op.terms[place] != value.op.out or not set().union(*terms) <= set(value.op.out):
        return None
    return contract(operands, terms, value.op.out, value, value.op.precision)
