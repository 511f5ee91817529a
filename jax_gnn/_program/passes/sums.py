"""Linear maps go behind sums where a term can then be computed for fewer rows.

(x_u - x_v) W becomes x_u W - x_v W, products of nodes; aᵀ[z_u ‖ z_v] becomes a₁ᵀz_u + a₂ᵀz_v; a
choice of x_u or x_v, by a mask that all edges share, becomes one of x_u W or x_v W; and a sum over
edges of two terms becomes two sums. Terms of long sums are added up by the space that suffices for
them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jax_gnn._program.normal import settled, summed
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
    rewritten,
    sizes_of,
)
from jax_gnn._program.spaces import Parts, Space

_NONE: frozenset[str] = frozenset()
_SUMS = {"add": jnp.add, "sub": jnp.subtract}


def sums(results: Sequence[Row], parts: Parts) -> list[Row]:
    """The same program with sums behind products, where that makes a product smaller."""
    return rewritten(results, lambda row: _grouped(_apart(settled(row), parts), parts))


def _apart(row: Row, parts: Parts) -> Row:
    """A linear map of a sum as the sum of what it makes of the terms, where that pays."""
    found = _behind_product(row, parts) or _behind_push(row, parts)
    return row if found is None else found


def ways_over(row: Row, known: dict[Row, frozenset[str]] | None = None) -> frozenset[str]:
    """By which ways what a row depends on is read; "" where it depends on itself."""
    if row.space is Space.SHARED:
        return _NONE
    if isinstance(row.op, Pull):
        return frozenset([row.op.way])
    if not isinstance(row.op, Apply | Contract):
        return frozenset([""])
    known = {} if known is None else known
    if row not in known:
        known[row] = _NONE.union(*(ways_over(each, known) for each in row.operands))
    return known[row]


def _moves(space: Space, rows: Iterable[Row], parts: Parts) -> bool:
    """Whether fewer rows suffice for what depends on all of these."""
    over = _NONE.union(*map(ways_over, rows))
    return bool(over) and parts.home(space, over) is not None


def _behind_product(row: Row, parts: Parts) -> Row | None:
    """A product of a sum as a sum of products, or None."""
    if not isinstance(row.op, Contract) or _moves(row.space, [row], parts):
        return None
    for place, each in enumerate(row.operands):
        others = [other for i, other in enumerate(row.operands) if i != place]
        if not isinstance(each.op, Apply) or each.space is Space.SHARED or not others:
            continue
        if each.op.name in _SUMS and each.shape == each.operands[0].shape == each.operands[1].shape:
            terms = [(term, others) for term in each.operands]
            combine = functools.partial(_combined, each.op.name)
        elif each.op.name == "concatenate":
            found = _sliced(row, place)
            if found is None:
                continue
            terms, combine = found, functools.partial(_combined, "add")
        elif each.op.name == "select_n" and len(each.operands) == 3:
            mask = _kept_mask(row, place)
            if mask is None:
                continue
            terms = [(term, others) for term in each.operands[1:]]
            combine = functools.partial(apply, "select_n", jax.lax.select_n, mask)
        else:
            continue
        varying = [(term, rest) for term, rest in terms if term.space is not Space.SHARED]
        if not any(_moves(row.space, [term, *rest], parts) for term, rest in varying):
            continue
        products = [_apart(_with(row, place, *each), parts) for each in terms]
        return functools.reduce(combine, products)
    return None


def _combined(name: str, a: Row, b: Row) -> Row:
    return apply(name, _SUMS[name], a, b)


def _with(row: Row, place: int, term: Row, others: Sequence[Row]) -> Row:
    """A product with another factor in a place."""
    assert isinstance(row.op, Contract)
    operands = [*others[:place], term, *others[place:]]
    return settled(contract(operands, row.op.terms, row.op.out, row, row.op.precision))


def _kept_mask(row: Row, place: int) -> Row | None:
    """The mask of a choice between factors as one between products: it is not summed over."""
    mask = row.operands[place].operands[0]
    factors, out = factors_of(row)
    if mask.space is not Space.SHARED or not isinstance(mask.op, Contract):
        return None
    if len(mask.operands) != 1 or mask.shape != row.operands[place].shape:
        return None
    names = dict(zip(mask.op.out, factors[place].labels, strict=True))
    labels = tuple(names.get(label, -1) for label in mask.op.terms[0])
    if not set(labels) <= set(out):
        return None
    return contract(mask.operands, [labels], out, mask, sizes=sizes_of([row], [out]))


def _sliced(row: Row, place: int) -> list[tuple[Row, list[Row]]] | None:
    """The parts of a concatenation, each with the other factors' parts that belong to it."""
    each = row.operands[place]
    assert isinstance(each.op, Apply) and isinstance(row.op, Contract)
    axis = each.op.params["dimension"]
    factors, _ = factors_of(row)
    label = factors[place].labels[axis]
    if label not in summed(row) or sum(label in factor.labels for factor in factors) < 2:
        return None
    found = []
    ends = list(itertools.accumulate(part.shape[axis] for part in each.operands))
    for part, end in zip(each.operands, ends, strict=True):
        others = []
        for i, factor in enumerate(factors):
            if i == place:
                continue
            whole = factor.row
            if label in factor.labels:
                at = factor.labels.index(label)
                whole = _slice(whole, end - part.shape[axis], end, at)
            others.append(whole)
        found.append((part, others))
    return found


def _slice(row: Row, start: int, stop: int, axis: int) -> Row:
    """A part of an axis."""
    if isinstance(row.op, Pull):
        return pull(_slice(row.operands[0], start, stop, axis), row.space, row.op.way)

    def function(x: Any) -> Any:
        return jax.lax.slice_in_dim(x, start, stop, axis=axis)

    return apply("slice", function, row, key=(start, stop, axis))


def _behind_push(row: Row, parts: Parts) -> Row | None:
    """A sum over edges of two terms as two sums, or None."""
    if not isinstance(row.op, Push) or row.op.reduce != "sum":
        return None
    (of,) = row.operands
    if not isinstance(of.op, Apply) or of.op.name not in _SUMS or of.space is Space.SHARED:
        return None
    if any(each.shape != of.shape for each in of.operands):
        return None
    if _moves(of.space, [of], parts):
        return None
    if not any(
        each.space is not Space.SHARED and _moves(of.space, [each], parts) for each in of.operands
    ):
        return None
    pushed = [_apart(replace(row, operands=(each,)), parts) for each in of.operands]
    return _combined(of.op.name, *pushed)


def _grouped(row: Row, parts: Parts) -> Row:
    """A long sum with those terms added up first that one smaller space suffices for."""
    if not isinstance(row.op, Apply) or row.op.name != "add" or row.space is Space.SHARED:
        return row
    terms = _terms(row)
    if len(terms) < 3:
        return row
    groups: list[list[Row]] = []
    for term in terms:
        for group in groups:
            if _moves(row.space, [*group, term], parts):
                group.append(term)
                break
        else:
            groups.append([term])
    if len(groups) == len(terms) or len(groups) == 1:
        return row
    add = functools.partial(_combined, "add")
    return functools.reduce(add, [functools.reduce(add, group) for group in groups])


def _terms(row: Row) -> list[Row]:
    is_sum = isinstance(row.op, Apply) and row.op.name == "add" and row.space is not Space.SHARED
    if not is_sum or any(each.shape != row.shape for each in row.operands):
        return [row]
    return [term for each in row.operands for term in _terms(each)]
