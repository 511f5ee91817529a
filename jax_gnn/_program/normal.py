"""One form for all products: whatever multiplies, sums over axes or moves them is an einsum.

``*``, ``@``, ``jnp.einsum``, ``.sum()``, ``.T``, ``[:, None]`` and division become `Contract`, if
numbers are floats. Axes of size 1 are left out of its labels. What only moves axes costs nothing,
and is taken into whatever reads it. All else about a program stays as it was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Labels,
    Pull,
    Row,
    Softmax,
    apply,
    constant,
    contract,
    pull,
    rewritten,
)


def normal(results: Sequence[Row]) -> list[Row]:
    """The same program with its products as einsums, and LeakyReLUs as functions of one row."""
    return rewritten(rewritten(results, _named), _normal)


# --- LeakyReLU -----------------------------------------------------------------------------------


def _named(row: Row) -> Row:
    """A LeakyReLU as one function, however it is written with `where`; numbers as constants."""
    if not isinstance(row.op, Apply):
        return row
    name, operands = row.op.name, row.operands
    if name == "convert_element_type":
        (of,) = operands
        if of.dtype == row.dtype:
            return of
        if isinstance(of.op, Constant) and jnp.issubdtype(row.dtype, np.number):
            return constant(of.op.value, row.dtype, row.line)
    if name == "copy":
        return operands[0]
    if name == "add":  # Python's sum begins with 0
        for each, other in (operands, operands[::-1]):
            same = other.space is row.space and other.shape == row.shape
            if same and other.dtype == row.dtype and number_of(each) == 0:
                return other
    if name == "select_n" and len(operands) == 3:
        slope = _slope(*operands)
        if slope is not None:
            return leaky_relu(operands[2], slope)
    return row


def leaky_relu(row: Row, slope: float) -> Row:
    """The LeakyReLU of a row."""

    def function(x: Any) -> list[Any]:
        return [jnp.where(x >= 0, x, jnp.asarray(slope, x.dtype) * x)]

    op = Apply("leaky_relu", function, key=("leaky_relu", slope), params={"slope": slope})
    return replace(row, op=op, operands=(row,))


def _slope(condition: Row, below: Row, above: Row) -> float | None:
    """That of where(x > 0, x, slope · x)."""
    if not isinstance(condition.op, Apply) or condition.op.name not in ("ge", "gt"):
        return None
    x, zero = condition.operands
    if x is not above or number_of(zero) != 0:
        return None
    if not isinstance(below.op, Apply) or below.op.name != "mul" or x not in below.operands:
        return None
    (other,) = [each for each in below.operands if each is not x] or [x]
    return number_of(other)


def number_of(row: Row) -> float | None:
    """What a constant of one number is."""
    if isinstance(row.op, Constant) and row.op.value.ndim == 0:
        return float(row.op.value)
    single = isinstance(row.op, Apply) and row.op.name in (
        "broadcast_in_dim",
        "convert_element_type",
    )
    if single or (isinstance(row.op, Contract) and len(row.operands) == 1):
        return number_of(row.operands[0])
    return None


# --- Products ------------------------------------------------------------------------------------


def settled(row: Row) -> Row:
    """A row whose views are taken in by what reads them."""
    if isinstance(row.op, Pull) and isinstance(row.operands[0].op, Pull):
        return pull(row.operands[0], row.space, row.op.way)
    if isinstance(row.op, Pull) and is_view(row.operands[0]):
        (of,) = row.operands  # what is moved after it is read is the same
        read = pull(of.operands[0], row.space, row.op.way)
        return contract([read], of.op.terms, of.op.out, row)  # type: ignore[union-attr]
    return tidy(row) if isinstance(row.op, Contract) else row


def _normal(row: Row) -> Row:
    if not isinstance(row.op, Apply):
        return settled(row)
    rule = _RULES.get(row.op.name)
    if rule is None:
        return row
    found = rule(row, *row.operands)
    return row if found is None else tidy(found)


def _axes(row: Row, start: int = 0) -> Labels:
    return tuple(range(start, start + len(row.shape)))


def _floats(row: Row) -> bool:
    return jnp.issubdtype(row.dtype, np.floating) and all(
        each.dtype == row.dtype for each in row.operands
    )


def _mul(row: Row, a: Row, b: Row) -> Row | None:
    if not _floats(row):
        return None
    rank = len(row.shape)
    terms = [  # an axis of size 1 is stretched
        tuple(i if size == row.shape[i] else rank + i for i, size in enumerate(each.shape))
        for each in (a, b)
    ]
    return contract([a, b], terms, _axes(row), row)


def _neg(row: Row, a: Row) -> Row | None:
    return _mul(row, a, constant(-1, row.dtype)) if _floats(row) else None


def _div(row: Row, a: Row, b: Row) -> Row | None:
    if not _floats(row):
        return None
    number = number_of(b)
    if number is None:
        return _mul(row, a, apply("reciprocal", lambda x: 1 / x, b))
    return _mul(row, a, constant(1 / number, row.dtype)) if number else None


def _dot(row: Row, a: Row, b: Row) -> Row | None:
    params = _params(row)
    if not _floats(row) or params["preferred_element_type"] not in (None, row.dtype):
        return None
    (over_a, over_b), (batch_a, batch_b) = params["dimension_numbers"]
    of_a, of_b = list(_axes(a)), list(_axes(b, len(a.shape)))
    for i, j in zip((*over_a, *batch_a), (*over_b, *batch_b), strict=True):
        of_b[j] = of_a[i]
    out = [of_a[i] for i in batch_a]
    out += [of_a[i] for i in range(len(of_a)) if i not in (*over_a, *batch_a)]
    out += [of_b[j] for j in range(len(of_b)) if j not in (*over_b, *batch_b)]
    return contract([a, b], [tuple(of_a), tuple(of_b)], tuple(out), row, params["precision"])


def _broadcast(row: Row, a: Row, *sizes: Row) -> Row | None:
    if sizes:
        return None
    out, term = list(_axes(row)), []
    for axis, at in enumerate(_params(row)["broadcast_dimensions"]):
        same = a.shape[axis] == row.shape[at]
        term.append(out[at] if same else len(row.shape) + axis)
    return contract([a], [tuple(term)], tuple(out), row)


def _reduce_sum(row: Row, a: Row) -> Row | None:
    if not _floats(row):
        return None
    labels = _axes(a)
    out = tuple(label for label in labels if label not in _params(row)["axes"])
    return contract([a], [labels], out, row)


def _transpose(row: Row, a: Row) -> Row:
    return contract([a], [_axes(a)], tuple(_params(row)["permutation"]), row)


def _reshape(row: Row, a: Row, *sizes: Row) -> Row | None:
    """One that only adds and removes axes of size 1."""
    kept = [[size for size in each.shape if size != 1] for each in (a, row)]
    if sizes or kept[0] != kept[1] or _params(row).get("dimensions") is not None:
        return None
    term = _axes(a)
    long = [label for label, size in zip(term, a.shape, strict=True) if size != 1]
    fresh = itertools.count(len(term))
    out = tuple(next(fresh) if size == 1 else long.pop(0) for size in row.shape)
    return contract([a], [term], out, row)


_RULES: dict[str, Callable[..., Row | None]] = {
    "mul": _mul,
    "neg": _neg,
    "div": _div,
    "dot_general": _dot,
    "broadcast_in_dim": _broadcast,
    "reduce_sum": _reduce_sum,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
}


def _params(row: Row) -> Any:
    assert isinstance(row.op, Apply)
    return row.op.params


# Functions of each number by itself, which are the same for rows of any shape.
_BY_NUMBER = frozenset(
    ("leaky_relu", "add", "sub", "max", "min", "exp", "log", "tanh", "logistic", "sqrt", "rsqrt")
)

# --- Einsums of einsums --------------------------------------------------------------------------


def is_view(row: Row) -> bool:
    """Whether a row is another one with its axes moved, repeated or of size 1."""
    return isinstance(row.op, Contract) and len(row.operands) == 1 and not summed(row)


def summed(row: Row) -> set[int]:
    """The labels of an einsum that it sums over."""
    assert isinstance(row.op, Contract)
    return {label for term in row.op.terms for label in term} - set(row.op.out)


def tidy(row: Row) -> Row:
    """An einsum that takes in views, without axes of size 1."""
    return without_ones(taken_in(row, is_view))


def taken_in(row: Row, which: Callable[[Row], bool]) -> Row:
    """An einsum with the factors of those of its factors that are einsums, if they may be."""
    assert isinstance(row.op, Contract)
    op = row.op
    fresh = itertools.count(
        1 + max([*op.out, *(label for term in op.terms for label in term)], default=-1)
    )
    operands: list[Row] = []
    terms: list[Labels] = []
    precision = op.precision
    for each, term in zip(row.operands, op.terms, strict=True):
        inner = each.op
        if not (isinstance(inner, Contract) and each.dtype == row.dtype and which(each)):
            operands.append(each)
            terms.append(term)
            continue
        same = inner.precision in (None, precision) or precision is None
        if not same or _loses(row, each, term):
            operands.append(each)
            terms.append(term)
            continue
        precision = inner.precision if precision is None else precision
        names = dict(zip(inner.out, term, strict=True))
        for factor, labels in zip(each.operands, inner.terms, strict=True):
            operands.append(factor)
            terms.append(tuple(names.setdefault(label, next(fresh)) for label in labels))
    if len(operands) == len(row.operands) and all(
        a is b for a, b in zip(operands, row.operands, strict=True)
    ):
        return row
    return contract(operands, terms, op.out, row, precision)


def _loses(row: Row, factor: Row, term: Labels) -> bool:
    """Whether an axis of copies is summed over, which would be forgotten."""
    assert isinstance(row.op, Contract) and isinstance(factor.op, Contract)
    kept = {label for each in factor.op.terms for label in each}
    copies = {
        label
        for inner, label, size in zip(factor.op.out, term, factor.shape, strict=True)
        if inner not in kept and size != 1
    }
    others = {
        label
        for each, labels in zip(row.operands, row.op.terms, strict=True)
        if each is not factor
        for label in labels
    }
    return bool(copies - set(row.op.out) - others)


def without_ones(row: Row) -> Row:
    """An einsum none of whose factors has an axis of size 1, which another may have longer."""
    assert isinstance(row.op, Contract)
    if not any(1 in each.shape for each in row.operands):
        return row
    operands = [squeezed(each) for each in row.operands]
    terms = [
        tuple(label for label, size in zip(term, each.shape, strict=True) if size != 1)
        for term, each in zip(row.op.terms, row.operands, strict=True)
    ]
    return contract(operands, terms, row.op.out, row, row.op.precision)


def squeezed(row: Row) -> Row:
    """A row without its axes of size 1."""
    if 1 not in row.shape:
        return row
    shape = tuple(size for size in row.shape if size != 1)
    if isinstance(row.op, Pull):
        return pull(squeezed(row.operands[0]), row.space, row.op.way)
    if isinstance(row.op, Contract):
        out = [label for label, size in zip(row.op.out, row.shape, strict=True) if size != 1]
        sizes = dict(zip(row.op.out, row.shape, strict=True))
        return contract(row.operands, row.op.terms, tuple(out), row, row.op.precision, sizes)
    alike = all(each.shape in (row.shape, ()) for each in row.operands)
    by_number = alike and isinstance(row.op, Apply) and row.op.name in _BY_NUMBER
    if isinstance(row.op, Softmax) or by_number:
        return replace(row, operands=tuple(map(squeezed, row.operands)), shape=shape)
    return apply("squeeze", lambda x: x.reshape(shape), row, key=row.shape)
