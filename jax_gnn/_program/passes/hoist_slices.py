"""Hoisting of slices into the maps that make what they slice.

``a, b = split(silu(x @ W), 2)`` becomes silu(x W₀) and silu(x W₁), with slices of the matrix: a row
of 192 numbers has no room in the registers of a region's kernel, three rows of 64 have.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from jax_gnn._ops.edge_region.tile_plan import MAX_STORED
from jax_gnn._program.backend import backend
from jax_gnn._program.normal import is_view, settle, summed_labels
from jax_gnn._program.reference import ELEMENTWISE
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Pull,
    Row,
    contract,
    pull,
    slice_in_dim,
    topological_order,
)


class _Span(NamedTuple):
    """Indices of a slice along an axis."""

    axis: int
    start: int
    stop: int

    def moved(self, axis: int, offset: int = 0) -> _Span:
        """Return the span along another axis, and from another index on."""
        return _Span(axis, self.start + offset, self.stop + offset)


_Read = tuple[Row, _Span | None]
"""A row of which a slice is read; None stands for all of the row."""


def hoist_slices(results: Sequence[Row]) -> list[Row]:
    """Return the program with slices of wide products as products with slices of matrices."""
    rows = topological_order(results)
    # XLA fuses slices on a CPU, where no kernel has registers for rows.
    if backend() == "cpu" or not any(map(_span_of, rows)):
        return list(results)
    spans = _sliced(rows, results)
    new: dict[Row, Row] = {}
    slices: dict[_Read, Row] = {}

    def read(row: Row, span: _Span | None) -> Row:
        if span is None:
            return new[row]
        if (row, span) not in slices:
            is_hoisted = row in spans or (row.is_shared and is_view(row))
            reads = _reads(row, span) if is_hoisted else None
            if reads is None:
                piece = slice_in_dim(new[row], span.start, span.stop, span.axis)
            else:
                piece = _rebuilt(row, span, [read(*operand) for operand in reads])
            slices[row, span] = settle(piece)
        return slices[row, span]

    for row in rows:
        if row in spans:  # its operands have their slices, so that `read` is not deep
            for span in spans[row]:
                read(row, span)
        elif row.operands and row.operands[0] in spans and (sliced := _span_of(row)):
            new[row] = read(row.operands[0], sliced)
        else:
            new[row] = row.with_operands([new[operand] for operand in row.operands])
    return [new[row] for row in results]


def _sliced(rows: Sequence[Row], results: Sequence[Row]) -> dict[Row, set[_Span]]:
    """Return the slices of the rows that are made in slices alone.

    All readers of such a row read slices of it, which are disjoint, so that no number is computed
    twice; and its slices are those of a product, or of a concatenation.

    Args:
        rows: The rows of the program, each after its operands.
        results: The results.
    """
    demands: dict[Row, set[_Span | None]] = {row: set() for row in rows}
    for row in results:
        demands[row].add(None)
    spans: dict[Row, set[_Span]] = {}
    for row in reversed(rows):
        wanted = {span for span in demands[row] if span is not None}
        reads = [_reads(row, span) for span in wanted]
        if None in demands[row] or None in reads or not _are_disjoint(wanted):
            reads = [[(operand, _span_of(row)) for operand in row.operands]]
        else:
            spans[row] = wanted
        for operand, span in itertools.chain.from_iterable(filter(None, reads)):
            demands[operand].add(span)
    # Slices stay behind rows that no product or concatenation needs in slices.
    gaining = set[Row]()
    for row in filter(spans.__contains__, rows):
        if _gains(row, spans[row]) or not gaining.isdisjoint(row.operands):
            gaining.add(row)
    return {row: spans[row] for row in gaining}


def _are_disjoint(spans: set[_Span]) -> bool:
    ordered = sorted(spans)
    is_one_axis = len({span.axis for span in ordered}) == 1
    pairs = itertools.pairwise(ordered)
    return is_one_axis and all(a.start < a.stop <= b.start < b.stop for a, b in pairs)


def _gains(row: Row, spans: set[_Span]) -> bool:
    """Whether slices of a row fit into registers in its place, and are no copies."""
    if row.size <= MAX_STORED or isinstance(row.op, Pull):
        return False
    if not isinstance(row.op, Contract):
        return _is(row, "concatenate")
    fits = all(span.stop - span.start <= MAX_STORED for span in spans)
    return fits and bool(summed_labels(row))


def _is(row: Row, *names: str) -> bool:
    """Whether a row is made by one of these JAX primitives."""
    return isinstance(row.op, Apply) and isinstance(row.op.key, tuple) and row.op.key[0] in names


def _span_of(row: Row) -> _Span | None:
    """Return what a slice along one axis reads of its operand; None for other rows."""
    if not _is(row, "slice", "split") or row.is_shared:
        return None
    assert isinstance(row.op, Apply)
    (operand,) = row.operands
    params = row.op.params
    if params is None:
        return None
    if _is(row, "split"):
        start = sum(params["sizes"][: row.op.index])
        return _Span(params["axis"], start, start + params["sizes"][row.op.index])
    axes = [i for i, size in enumerate(operand.shape) if size != row.shape[i]]
    if len(axes) != 1 or params["strides"] is not None:
        return None
    (axis,) = axes
    return _Span(axis, params["start_indices"][axis], params["limit_indices"][axis])


def _reads(row: Row, span: _Span) -> list[_Read] | None:
    """Return what a slice of a row reads of its operands, if their slices are enough."""
    op, axis = row.op, span.axis
    if isinstance(op, Pull):
        return [(row.operands[0], span)]
    if isinstance(op, Contract):
        label = op.out[axis]
        reads: list[_Read] = []
        for operand, term in zip(row.operands, op.terms, strict=True):
            is_cut = label in term
            # Products by relation are left as they are: no region contains them.
            if term.count(label) > 1 or (is_cut and summed_labels(row) and not operand.is_shared):
                return None
            reads.append((operand, span.moved(term.index(label)) if is_cut else None))
        return reads
    if _is(row, "concatenate") and isinstance(op, Apply) and op.params["dimension"] == axis:
        start = 0
        for part in row.operands:
            stop = start + part.shape[axis]
            if start <= span.start and span.stop <= stop:
                is_whole = span == (axis, start, stop)
                return [(part, None if is_whole else span.moved(axis, -start))]
            start = stop
        return None
    outer = _span_of(row)
    if outer is not None:
        return [(row.operands[0], span.moved(axis, outer.start))] if outer.axis == axis else None
    shapes = {operand.shape for operand in row.operands}
    if _is(row, "leaky_relu", *ELEMENTWISE) and shapes <= {row.shape, ()}:
        return [(x, span if x.shape == row.shape else None) for x in row.operands]
    return None


def _rebuilt(row: Row, span: _Span, operands: Sequence[Row]) -> Row:
    """Return a slice of a row, made of what `_reads` says."""
    shape = tuple(span.stop - span.start if i == span.axis else n for i, n in enumerate(row.shape))
    if isinstance(row.op, Pull):
        return pull(operands[0], row.space, row.op.way)
    if isinstance(row.op, Contract):
        op, like = row.op, replace(row, shape=shape)
        return contract(operands, op.terms, op.out, like, op.precision)
    if _is(row, "concatenate", "slice", "split"):
        return operands[0]
    return replace(row, operands=tuple(operands), shape=shape)
