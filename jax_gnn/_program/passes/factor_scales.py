"""Scales of rows, taken out of products with concatenations.

[a ‖ s·a ‖ t·a] W with numbers s and t of each row, as PNA scales its sums by degrees, becomes
y₀ + s·y₁ + t·y₂ with [y₀ ‖ y₁ ‖ y₂] = a [W₀ ‖ W₁ ‖ W₂]: the product reads a once, and no scaled
copy of it is stored.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jax_gnn._program.normal import may_reorder, settle
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Row,
    apply,
    contract,
    rewrite,
    slice_in_dim,
)
from jax_gnn._program.spaces import Space


class _Part(NamedTuple):
    """A part of a concatenation.

    Attributes:
        row: The part, ``base`` times ``scale``.
        base: A row of the same shape.
        scale: A number of each row; None for 1.
        start: The first index of the part.
    """

    row: Row
    base: Row
    scale: Row | None
    start: int


def factor_scales(results: Sequence[Row]) -> list[Row]:
    """Return the program with products of scaled copies of a row as scaled products of the row."""
    return rewrite(results, _factor)


def _factor(row: Row) -> Row:
    # Edge regions read a row once in any case.
    if not isinstance(row.op, Contract) or row.space in (Space.EDGE, Space.SHARED):
        return row
    op = row.op
    if len(row.operands) != 2 or not op.out or not may_reorder(row.dtype):
        return row
    first, second = zip(row.operands, op.terms, strict=True)
    (x, summed), (weight, labels) = (second, first) if first[0].is_shared else (first, second)
    is_map = weight.is_shared and sorted(labels) == sorted((*summed, *op.out))
    if not is_map or not isinstance(x.op, Apply) or x.op.name != "concatenate" or len(summed) > 1:
        return row
    starts = itertools.accumulate((part.size for part in x.operands), initial=0)
    copies: dict[Row, list[_Part]] = {}
    for part in map(_part, x.operands, starts):
        copies.setdefault(part.base, []).append(part)
    if len(copies) == len(x.operands):
        return row

    along, across = labels.index(summed[0]), labels.index(op.out[0])

    def product(base: Row, parts: Sequence[_Part], axis: int) -> Row:
        slices = [slice_in_dim(weight, p.start, p.start + p.row.size, along) for p in parts]
        factors = [base, _concatenated(slices, axis)]
        return settle(contract(factors, [summed, labels], op.out, row, op.precision, {}))

    groups = [parts for parts in copies.values() if len(parts) > 1]
    single = [parts[0] for parts in copies.values() if len(parts) == 1]
    terms = []
    if single:
        base = _concatenated([part.row for part in single], 0)
        terms.append(product(base, single, along))
    for parts in groups:
        products = product(parts[0].base, parts, across)
        size = row.shape[0]
        for i, part in enumerate(parts):
            term = slice_in_dim(products, i * size, (i + 1) * size, 0)
            terms.append(term if part.scale is None else _scaled(term, part.scale))
    return functools.reduce(functools.partial(apply, "add", jnp.add), terms)


def _part(row: Row, start: int) -> _Part:
    """Return a part of a concatenation as a row times a number."""
    if isinstance(row.op, Contract) and may_reorder(row.dtype):
        factors = list(zip(row.operands, row.op.terms, strict=True))
        whole = [x for x, labels in factors if labels == row.op.out and x.dtype == row.dtype]
        numbers = [x for x, labels in factors if not labels]
        if len(whole) == 1 and numbers and len(factors) == 1 + len(numbers):
            inner = _part(whole[0], start)
            numbers += [] if inner.scale is None else [inner.scale]
            scale = contract(numbers, [()] * len(numbers), (), row, row.op.precision, {})
            return _Part(row, inner.base, numbers[0] if len(numbers) == 1 else scale, start)
    return _Part(row, row, None, start)


def _scaled(row: Row, scale: Row) -> Row:
    labels = tuple(range(len(row.shape)))
    return settle(contract([row, scale], [labels, ()], labels, row))


def _concatenated(rows: Sequence[Row], axis: int) -> Row:
    if len(rows) == 1:
        return rows[0]

    def function(*arrays: Array) -> Array:
        return jnp.concatenate(arrays, axis)

    row = apply("concatenate", function, *rows, key=axis)
    assert isinstance(row.op, Apply)
    return replace(row, op=replace(row.op, params={"dimension": axis}))
