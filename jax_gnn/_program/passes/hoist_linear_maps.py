"""Hoisting of linear maps out of sums, where a term can then be computed for fewer rows.

By default, aᵀ[z_u ‖ z_v] becomes a₁ᵀz_u + a₂ᵀz_v: the terms of one product are added in another
order. The pass ``distribute`` goes further, and loses digits where terms cancel: (x_u - x_v) W
becomes x_u W - x_v W, products of nodes; a choice of x_u or x_v by a shared mask becomes one of
x_u W or x_v W; a sum over edges of two terms becomes two sums; and terms of long sums are added up
by the space that suffices for them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_gnn._program.normal import may_reorder, settle, summed_labels
from jax_gnn._program.patterns import factors_of
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Pull,
    Push,
    Row,
    apply,
    contract,
    pull,
    rewrite,
    sizes_of,
    slice_in_dim,
)
from jax_gnn._program.spaces import Parts, Space

_NO_WAYS: frozenset[str] = frozenset()
_SUMS = {"add": jnp.add, "sub": jnp.subtract}

Splitter = Callable[[Row, int], "_Split | None"]
"""Maps a product and the index of a factor to the terms of the factor; None if it has none."""


def hoist_linear_maps(results: Sequence[Row], parts: Parts) -> list[Row]:
    """Return the program with products of concatenations as sums of smaller products."""
    return rewrite(results, lambda row: _hoist(settle(row), parts, _split_concatenation))


def distribute(results: Sequence[Row], parts: Parts) -> list[Row]:
    """Return the program with products and reductions distributed over sums, if it gains."""
    return rewrite(results, lambda row: _regroup(_hoist(settle(row), parts, _split_sum), parts))


def _hoist(row: Row, parts: Parts, split: Splitter) -> Row:
    """Return a linear map of a sum as the sum of its results for the terms, if it gains."""
    hoisted = _distribute_product(row, parts, split)
    if hoisted is None and split is _split_sum:
        hoisted = _distribute_push(row, parts)
    return hoisted or row


def ways_of(row: Row, cache: dict[Row, frozenset[str]] | None = None) -> frozenset[str]:
    """Return the ways by which the leaves of a row are read; "" for leaves that are not read."""
    if row.is_shared:
        return _NO_WAYS
    if isinstance(row.op, Pull):
        return frozenset([row.op.way])
    if not isinstance(row.op, Apply | Contract):
        return frozenset([""])
    cache = {} if cache is None else cache
    if row not in cache:
        cache[row] = _NO_WAYS.union(*(ways_of(operand, cache) for operand in row.operands))
    return cache[row]


def _is_movable(space: Space, rows: Iterable[Row], parts: Parts) -> bool:
    """Whether a smaller space suffices for a function of rows."""
    ways = _NO_WAYS.union(*map(ways_of, rows))
    return bool(ways) and parts.home(space, ways) is not None


class _Split(NamedTuple):
    """A factor of a product as terms.

    Attributes:
        terms: Each term, with the other factors of its product.
        combine: Combines the products of two terms.
    """

    terms: list[tuple[Row, list[Row]]]
    combine: Callable[[Row, Row], Row]


# --- Products ------------------------------------------------------------------------------------


def _distribute_product(row: Row, parts: Parts, split: Splitter) -> Row | None:
    """Return a product of a sum as a sum of products, or None."""
    if not isinstance(row.op, Contract) or _is_movable(row.space, [row], parts):
        return None
    if len(row.operands) < 2 or not may_reorder(row.dtype):
        return None
    for index, operand in enumerate(row.operands):
        if not isinstance(operand.op, Apply) or operand.is_shared:
            continue
        # A split gains only if some term has its product in a smaller space than edges, such as
        # nodes: the product is then computed once per node in place of once per edge.
        parted = split(row, index)
        if parted is None or not any(
            not term.is_shared and _is_movable(row.space, [term, *others], parts)
            for term, others in parted.terms
        ):
            continue
        products = [
            _hoist(_with_factor(row, index, term, others), parts, split)
            for term, others in parted.terms
        ]
        return functools.reduce(parted.combine, products)
    return None


def _with_factor(row: Row, index: int, factor: Row, others: Sequence[Row]) -> Row:
    """Return a product with another factor at an index."""
    assert isinstance(row.op, Contract)
    operands = [*others[:index], factor, *others[index:]]
    return settle(contract(operands, row.op.terms, row.op.out, row, row.op.precision))


def _split_sum(row: Row, index: int) -> _Split | None:
    """Split a sum, a difference, a choice by a shared mask, or a concatenation."""
    operand = row.operands[index]
    assert isinstance(operand.op, Apply)
    name, others = operand.op.name, [x for i, x in enumerate(row.operands) if i != index]
    if name in _SUMS and operand.shape == operand.operands[0].shape == operand.operands[1].shape:
        terms = [(term, others) for term in operand.operands]
        return _Split(terms, functools.partial(_combine, name))
    if name == "concatenate":
        return _split_concatenation(row, index)
    mask = None
    if name == "select_n" and len(operand.operands) == 3:
        mask = _mask_of_products(row, index)
    if mask is None:
        return None
    select = functools.partial(apply, "select_n", jax.lax.select_n, mask)
    return _Split([(term, others) for term in operand.operands[1:]], select)


def _combine(name: str, a: Row, b: Row) -> Row:
    return apply(name, _SUMS[name], a, b)


def _mask_of_products(row: Row, index: int) -> Row | None:
    """Return the mask of a choice between factors as a mask of products, if not summed over."""
    mask = row.operands[index].operands[0]
    factors, out = factors_of(row)
    if not mask.is_shared or not isinstance(mask.op, Contract):
        return None
    if len(mask.operands) != 1 or mask.shape != row.operands[index].shape:
        return None
    renamed = dict(zip(mask.op.out, factors[index].labels, strict=True))
    labels = tuple(renamed.get(label, -1) for label in mask.op.terms[0])
    if not set(labels) <= set(out):
        return None
    return contract(mask.operands, [labels], out, mask, sizes=sizes_of([row], [out]))


def _split_concatenation(row: Row, index: int) -> _Split | None:
    """Split a concatenation along a summed axis, with the slices of other factors."""
    operand = row.operands[index]
    assert isinstance(operand.op, Apply)
    if operand.op.name != "concatenate":
        return None
    axis = operand.op.params["dimension"]
    factors, _ = factors_of(row)
    label = factors[index].labels[axis]
    if label not in summed_labels(row) or sum(label in f.labels for f in factors) < 2:
        return None
    terms = []
    stops = itertools.accumulate(part.shape[axis] for part in operand.operands)
    for part, stop in zip(operand.operands, stops, strict=True):
        others = [
            _slice(factor.row, stop - part.shape[axis], stop, factor.labels.index(label))
            if label in factor.labels
            else factor.row
            for i, factor in enumerate(factors)
            if i != index
        ]
        terms.append((part, others))
    return _Split(terms, functools.partial(_combine, "add"))


def _slice(row: Row, start: int, stop: int, axis: int) -> Row:
    """Return a slice of an axis, taken before a read."""
    if isinstance(row.op, Pull):
        return pull(_slice(row.operands[0], start, stop, axis), row.space, row.op.way)
    return slice_in_dim(row, start, stop, axis)


# --- Sums ----------------------------------------------------------------------------------------


def _distribute_push(row: Row, parts: Parts) -> Row | None:
    """Return a sum over edges of two terms as two sums, or None."""
    if not isinstance(row.op, Push) or row.op.reduce != "sum" or not may_reorder(row.dtype):
        return None
    (operand,) = row.operands
    if not isinstance(operand.op, Apply) or operand.op.name not in _SUMS or operand.is_shared:
        return None
    if any(term.shape != operand.shape for term in operand.operands):
        return None
    if _is_movable(operand.space, [operand], parts):
        return None
    # Two sums over edges cost more than one, unless one of the terms can be computed in a smaller
    # space.
    terms = [term for term in operand.operands if not term.is_shared]
    if not any(_is_movable(operand.space, [term], parts) for term in terms):
        return None
    a, b = (_hoist(replace(row, operands=(x,)), parts, _split_sum) for x in operand.operands)
    return _combine(operand.op.name, a, b)


def _regroup(row: Row, parts: Parts) -> Row:
    """Return a long sum that first adds up the terms for which one smaller space suffices."""
    terms = _terms(row)
    if len(terms) < 3:
        return row
    # First fit: each term joins the first group that it leaves movable. Terms of one group are
    # added in their smaller space, and edges add one row per group.
    groups: list[list[Row]] = []
    for term in terms:
        for group in groups:
            if _is_movable(row.space, [*group, term], parts):
                group.append(term)
                break
        else:
            groups.append([term])
    if len(groups) == len(terms) or len(groups) == 1:
        return row
    add = functools.partial(_combine, "add")
    return functools.reduce(add, [functools.reduce(add, group) for group in groups])


def _terms(row: Row) -> list[Row]:
    is_sum = isinstance(row.op, Apply) and row.op.name == "add" and not row.is_shared
    if not is_sum or any(operand.shape != row.shape for operand in row.operands):
        return [row]
    return [term for operand in row.operands for term in _terms(operand)]
