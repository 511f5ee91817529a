"""One form for all products: whatever multiplies, sums over axes or moves them is an einsum.

``*``, ``@``, ``jnp.einsum``, ``.sum()``, ``.T``, ``[:, None]`` and division by a constant become
`Contract`, if numbers are floats. Axes of size 1 are left out of its labels. What only moves axes
costs nothing, and is taken into whatever reads it. All else about a program stays as it was
written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._program.indexing import indexed
from jax_gnn._program.rows import (
    MAX_CONSTANT,
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
    in_order,
    pull,
    rewritten,
)
from jax_gnn._program.spaces import Space


def normal(results: Sequence[Row]) -> list[Row]:
    """The same program with its products as einsums, and LeakyReLUs as functions of one row."""
    return rewritten(rewritten(results, _named), _normal)


def may_reorder(dtype: Any) -> bool:
    """Whether factors of products, and parts of their sums, may be taken in another order.

    Not those of float16: its largest number is 65,504, which a product in another order may exceed.
    """
    return dtype != np.float16


# --- Constants and LeakyReLU ---------------------------------------------------------------------


def _named(row: Row) -> Row:
    """A LeakyReLU as one function, however it is written with `where`; numbers as constants."""
    if not isinstance(row.op, Apply):
        return row
    name, operands = row.op.name, row.operands
    if name == "convert_element_type" and operands[0].dtype == row.dtype:
        return operands[0]
    if not row.shape:
        value = constant_of(row)
        if value is not None:
            return constant(value, row.dtype, row.line)
    if name == "copy":
        return operands[0]
    if name == "add":  # Python's sum begins with 0
        for each, other in (operands, operands[::-1]):
            same = other.space is row.space and other.shape == row.shape
            if same and other.dtype == row.dtype and number_of(each) == 0:
                return other
    if (
        name == "gather"
        and row.space is not Space.SHARED
        and jnp.issubdtype(row.dtype, np.floating)
    ):
        ids = constant_of(operands[1])
        function = None if ids is None else indexed(operands[0].shape, ids, row.op.params)
        if function is not None:
            key = row.op.key, ids.shape, ids.tobytes()  # type: ignore[union-attr]
            return replace(apply("take", function, operands[0], key=key), line=row.line)
    if name == "select_n" and len(operands) == 3:
        slope = _slope(*operands)
        if slope is not None:
            return leaky_relu(operands[2], slope, operands[0].op.name)  # type: ignore[union-attr]
    return row


def leaky_relu(row: Row, slope: float, comparison: str) -> Row:
    """The LeakyReLU of a row.

    Args:
        row: The row.
        slope: The slope below 0.
        comparison: Where the slope is 1: where the row is ``"ge"`` or ``"gt"`` 0. The derivative
            at 0 depends on it.
    """
    is_above = getattr(jax.lax, comparison)

    def function(x: Any) -> list[Any]:
        return [jnp.where(is_above(x, jnp.zeros_like(x)), x, jnp.asarray(slope, x.dtype) * x)]

    params = {"slope": slope, "comparison": comparison}
    op = Apply("leaky_relu", function, key=("leaky_relu", slope, comparison), params=params)
    return replace(row, op=op, operands=(row,))


def _slope(condition: Row, below: Row, above: Row) -> float | None:
    """The slope of where(x > 0, x, slope · x) or where(x >= 0, x, slope · x)."""
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
    """The number that a constant, or an array of copies of it, has; None of all other rows."""
    if isinstance(row.op, Constant):
        is_number = row.op.value.ndim == 0 and jnp.issubdtype(row.dtype, np.number)
        return float(row.op.value) if is_number else None
    if isinstance(row.op, Apply) and row.op.name == "broadcast_in_dim":
        return number_of(row.operands[0])
    if isinstance(row.op, Contract) and is_view(row):
        return number_of(row.operands[0])
    return None


def constant_of(row: Row) -> np.ndarray | None:
    """The numbers of a row that is a function of constants alone; None of all other rows."""
    found: dict[Row, Any] = {}
    for each in in_order([row]):
        if isinstance(each.op, Constant):
            found[each] = each.op.value
            continue
        is_plain = isinstance(each.op, Apply) and each.space is Space.SHARED
        is_number = not jnp.issubdtype(each.dtype, jax.dtypes.extended)
        if not is_plain or not is_number or each.size > MAX_CONSTANT:
            return None
        with jax.ensure_compile_time_eval():
            values = [found[operand] for operand in each.operands]
            found[each] = np.asarray(each.op.function(*values)[each.op.index])  # type: ignore[union-attr]
    return np.asarray(found[row])


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
    number = number_of(b)  # XLA multiplies with the reciprocal of a constant, too
    limits = jnp.finfo(row.dtype)
    if not number or not limits.tiny <= abs(1 / number) <= limits.max:
        return None
    return _mul(row, a, constant(1 / number, row.dtype))


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
