"""Linear maps go behind sums where a term can then be computed for fewer rows.

By default aᵀ[z_u ‖ z_v] becomes a₁ᵀz_u + a₂ᵀz_v: the terms of one product are added in another
order. The pass "distribute" goes further, and loses digits where terms cancel: (x_u - x_v) W
becomes x_u W - x_v W, products of nodes; a choice of x_u or x_v, by a mask that all edges share,
becomes one of x_u W or x_v W; a sum over edges of two terms becomes two sums; and terms of long
sums are added up by the space that suffices for them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_gnn._program.normal import may_reorder, settled, summed
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
    """The same program with products of concatenations as sums of smaller products."""
    return rewritten(results, lambda row: _apart(settled(row), parts, _concatenated))


def distribute(results: Sequence[Row], parts: Parts) -> list[Row]:
    """The program with sums behind products and reductions, where that makes them smaller."""
    return rewritten(results, lambda row: _grouped(_apart(settled(row), parts, _added), parts))


def _apart(row: Row, parts: Parts, apart: Callable[[Row, int], _Apart | None]) -> Row:
    """A linear map of a sum as the sum of its results for the terms, where that pays."""
    found = _behind_product(row, parts, apart)
    if found is None and apart is _added:
        found = _behind_push(row, parts)
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


class _Apart(NamedTuple):
    """A product whose factor in a place is made of terms.

    Attributes:
        terms: Each term, with the other factors of its product.
        combine: Makes the result of two products.
    """

    terms: list[tuple[Row, list[Row]]]
    combine: Callable[[Row, Row], Row]


def _behind_product(
    row: Row, parts: Parts, apart: Callable[[Row, int], _Apart | None]
) -> Row | None:
    """A product of a sum as a sum of products, or None."""
    if not isinstance(row.op, Contract) or _moves(row.space, [row], parts):
        return None
    if len(row.operands) < 2 or not may_reorder(row.dtype):
        return None
    for place, each in enumerate(row.operands):
        if not isinstance(each.op, Apply) or each.space is Space.SHARED:
            continue
        found = apart(row, place)
        if found is None:
            continue
        varying = [(term, rest) for term, rest in found.terms if term.space is not Space.SHARED]
        if not any(_moves(row.space, [term, *rest], parts) for term, rest in varying):
            continue
        products = [_apart(_with(row, place, *each), parts, apart) for each in found.terms]
        return functools.reduce(found.combine, products)
    return None


def _concatenated(row: Row, place: int) -> _Apart | None:
    """The parts of a concatenation, each with the parts of other factors that belong to it."""
    each = row.operands[place]
    if each.op.name != "concatenate":  # type: ignore[union-attr]
        return None
    terms = _sliced(row, place)
    return None if terms is None else _Apart(terms, functools.partial(_combined, "add"))


def _added(row: Row, place: int) -> _Apart | None:
    """The terms of a sum or a difference, or what a shared mask chooses from, or parts."""
    each = row.operands[place]
    name = each.op.name  # type: ignore[union-attr]
    others = [other for i, other in enumerate(row.operands) if i != place]
    if name in _SUMS and each.shape == each.operands[0].shape == each.operands[1].shape:
        terms = [(term, others) for term in each.operands]
        return _Apart(terms, functools.partial(_combined, name))
    if name == "concatenate":
        return _concatenated(row, place)
    mask = _kept_mask(row, place) if name == "select_n" and len(each.operands) == 3 else None
    if mask is None:
        return None
    select = functools.partial(apply, "select_n", jax.lax.select_n, mask)
    return _Apart([(term, others) for term in each.operands[1:]], select)


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
    if not isinstance(row.op, Push) or row.op.reduce != "sum" or not may_reorder(row.dtype):
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
    pushed = [_apart(replace(row, operands=(each,)), parts, _added) for each in of.operands]
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
