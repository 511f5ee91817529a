"""The normal form of products: whatever multiplies, sums over axes or moves them is an einsum.

``*``, ``@``, ``jnp.einsum``, ``.sum()``, ``.T``, ``[:, None]`` and division by a constant become
`Contract`, for floating-point rows. Axes of size 1 have no label. A *view* is an einsum that only
moves axes; einsums that read it absorb it. All other operations stay as they are written.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.ids import is_traced
from jax_gnn._program.einsum import einsum
from jax_gnn._program.indexing import constant_gather
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
    pull,
    rewrite,
    topological_order,
)


def normal_form(results: Sequence[Row]) -> list[Row]:
    """Return the program with products as einsums, and LeakyReLUs as functions of one row."""
    return list(_normal_form(tuple(results)))


@functools.lru_cache(maxsize=16)  # plans are compared that differ in their passes alone
def _normal_form(results: tuple[Row, ...]) -> list[Row]:
    return rewrite(rewrite(results, _simplify), _as_einsum)


def may_reorder(dtype: object) -> bool:
    """Whether products and sums may be evaluated in another order.

    Not in float16: its largest number is 65,504, which another order may exceed.
    """
    return bool(dtype != np.float16)


# --- Constants and LeakyReLU ---------------------------------------------------------------------


def _simplify(row: Row) -> Row:
    """Fold constants, drop copies and whole slices, recognize constant gathers and LeakyReLUs."""
    if not isinstance(row.op, Apply):
        return row
    name, operands = row.op.name, row.operands
    if name == "copy" or (name == "convert_element_type" and operands[0].dtype == row.dtype):
        return operands[0]
    if name == "slice" and operands[0].shape == row.shape:
        return operands[0]
    if not row.shape:
        value = constant_of(row)
        if value is not None:
            return constant(value, row.dtype, row.line)
    if (constant_row := folded(row)) is not row:
        return constant_row
    if name == "add":  # Python's sum starts with 0
        for term, other in (operands, operands[::-1]):
            is_same = other.space is row.space and other.shape == row.shape
            if is_same and other.dtype == row.dtype and number_of(term) == 0:
                return other
    if name == "gather" and not row.is_shared and jnp.issubdtype(row.dtype, np.floating):
        ids = constant_of(operands[1])
        function = None if ids is None else constant_gather(operands[0].shape, ids, row.op.params)
        if ids is not None and function is not None:
            key = row.op.key, ids.shape, ids.tobytes()
            return replace(apply("take", function, operands[0], key=key), line=row.line)
    if name == "select_n" and len(operands) == 3:
        condition, below, above = operands
        slope = _slope(condition, below, above)
        if slope is not None and isinstance(condition.op, Apply):
            return leaky_relu(above, slope, condition.op.name)
    return row


def leaky_relu(row: Row, slope: float, comparison: str) -> Row:
    """Return the LeakyReLU of a row.

    Args:
        row: The operand.
        slope: Slope below 0.
        comparison: ``"ge"`` or ``"gt"``: whether the slope at 0 is 1, for derivatives.
    """
    is_above = getattr(jax.lax, comparison)

    def function(x: Array) -> list[Array]:
        return [jnp.where(is_above(x, jnp.zeros_like(x)), x, jnp.asarray(slope, x.dtype) * x)]

    params = {"slope": slope, "comparison": comparison}
    op = Apply("leaky_relu", function, key=("leaky_relu", slope, comparison), params=params)
    return replace(row, op=op, operands=(row,))


def _slope(condition: Row, below: Row, above: Row) -> float | None:
    """Return the slope if the rows are ``where(x > 0, x, slope * x)`` (or ``>=``), else None."""
    if not isinstance(condition.op, Apply) or condition.op.name not in ("ge", "gt"):
        return None
    x, zero = condition.operands
    if x is not above or number_of(zero) != 0:
        return None
    if not isinstance(below.op, Apply) or below.op.name != "mul" or x not in below.operands:
        return None
    factors = [factor for factor in below.operands if factor is not x]
    return number_of(factors[0]) if factors else None


def number_of(row: Row) -> float | None:
    """Return the number of a constant, or of an array of copies of it; None for other rows."""
    if isinstance(row.op, Constant):
        is_number = row.op.value.ndim == 0 and jnp.issubdtype(row.dtype, np.number)
        return float(row.op.value) if is_number else None
    if is_view(row) or (isinstance(row.op, Apply) and row.op.name == "broadcast_in_dim"):
        return number_of(row.operands[0])
    return None


def constant_of(row: Row) -> np.ndarray | None:
    """Return the value of a row that depends on constants alone; None for other rows."""
    values: dict[Row, np.ndarray] = {}
    for node in topological_order([row]):
        if isinstance(node.op, Constant):
            values[node] = node.op.value
            continue
        is_number = not jnp.issubdtype(node.dtype, jax.dtypes.extended)
        if not isinstance(node.op, Apply | Contract) or not node.is_shared or not is_number:
            return None
        if node.size > MAX_CONSTANT:
            return None
        with jax.ensure_compile_time_eval():
            operands = [values[operand] for operand in node.operands]
            if isinstance(node.op, Contract):
                value = einsum(node, [(jnp.asarray(x), False) for x in operands])
            else:
                value = node.op.function(*operands)[node.op.index]
        if is_traced(value):  # in `jax.shard_map` outside of `jax.jit`
            return None
        values[node] = np.asarray(value)
    return np.asarray(values[row])


# --- Products ------------------------------------------------------------------------------------


def settle(row: Row) -> Row:
    """Return a row that has absorbed the views it reads; views move behind reads."""
    if isinstance(row.op, Pull) and isinstance(row.operands[0].op, Pull):
        return pull(row.operands[0], row.space, row.op.way)
    if isinstance(row.op, Pull) and is_view(row.operands[0]):
        (view,) = row.operands
        assert isinstance(view.op, Contract)
        read = pull(view.operands[0], row.space, row.op.way)
        return contract([read], view.op.terms, view.op.out, row)
    row = folded(row)
    return _absorb_views(row) if isinstance(row.op, Contract) else row


def folded(row: Row) -> Row:
    """Return a function of constant arrays as a constant array, other rows as they are."""
    are_constant = [isinstance(operand.op, Constant) for operand in row.operands]
    has_array = any(operand.shape for operand in row.operands)
    if not row.is_shared or not all(are_constant) or not has_array:
        return row
    value = constant_of(row) if jnp.issubdtype(row.dtype, np.floating) else None
    return row if value is None else constant(value, row.dtype, row.line)


def _as_einsum(row: Row) -> Row:
    if not isinstance(row.op, Apply):
        return settle(row)
    rule = _RULES.get(row.op.name)
    product = None if rule is None else rule(row, *row.operands)
    return row if product is None else settle(product)


def _axes(row: Row, start: int = 0) -> Labels:
    return tuple(range(start, start + len(row.shape)))


def _is_float(row: Row) -> bool:
    return jnp.issubdtype(row.dtype, np.floating) and all(
        operand.dtype == row.dtype for operand in row.operands
    )


def _mul(row: Row, a: Row, b: Row) -> Row | None:
    if not _is_float(row):
        return None
    rank = len(row.shape)
    terms = [  # an axis of size 1 gets a label of its own, and is broadcast
        tuple(i if size == row.shape[i] else rank + i for i, size in enumerate(operand.shape))
        for operand in (a, b)
    ]
    return contract([a, b], terms, _axes(row), row)


def _neg(row: Row, a: Row) -> Row | None:
    return _mul(row, a, constant(-1, row.dtype)) if _is_float(row) else None


def _div(row: Row, a: Row, b: Row) -> Row | None:
    """Multiply with the reciprocal of a constant, as XLA does."""
    number = number_of(b) if _is_float(row) else None
    limits: Any = jnp.finfo(row.dtype) if number else None
    if not number or not limits.tiny <= abs(1 / number) <= limits.max:
        return None
    return _mul(row, a, constant(1 / number, row.dtype))


def _dot_general(row: Row, a: Row, b: Row) -> Row | None:
    params = _params(row)
    a, b = _promoted(a, row.dtype), _promoted(b, row.dtype)
    is_float = jnp.issubdtype(row.dtype, np.floating) and a.dtype == b.dtype == row.dtype
    if not is_float or params["preferred_element_type"] not in (None, row.dtype):
        return None
    (sum_a, sum_b), (batch_a, batch_b) = params["dimension_numbers"]
    labels_a, labels_b = list(_axes(a)), list(_axes(b, len(a.shape)))
    for i, j in zip((*sum_a, *batch_a), (*sum_b, *batch_b), strict=True):
        labels_b[j] = labels_a[i]
    out = [labels_a[i] for i in batch_a]
    out += [label for i, label in enumerate(labels_a) if i not in (*sum_a, *batch_a)]
    out += [label for j, label in enumerate(labels_b) if j not in (*sum_b, *batch_b)]
    terms = [tuple(labels_a), tuple(labels_b)]
    return contract([a, b], terms, tuple(out), row, params["precision"])


def _promoted(row: Row, dtype: Any) -> Row:
    """Return a row of a shorter floating type in the type of a product of mixed types."""
    if row.dtype == dtype or jnp.promote_types(row.dtype, dtype) != dtype:
        return row
    if not jnp.issubdtype(row.dtype, np.floating):
        return row
    return apply("convert_element_type", lambda x: x.astype(dtype), row, key=str(dtype))


def _broadcast_in_dim(row: Row, a: Row, *sizes: Row) -> Row | None:
    if sizes:
        return None
    out, term = _axes(row), []
    for axis, result_axis in enumerate(_params(row)["broadcast_dimensions"]):
        is_same = a.shape[axis] == row.shape[result_axis]
        term.append(out[result_axis] if is_same else len(row.shape) + axis)
    return contract([a], [tuple(term)], out, row)


def _reduce_sum(row: Row, a: Row) -> Row | None:
    if not _is_float(row):
        return None
    labels = _axes(a)
    out = tuple(label for label in labels if label not in _params(row)["axes"])
    return contract([a], [labels], out, row)


def _transpose(row: Row, a: Row) -> Row:
    return contract([a], [_axes(a)], tuple(_params(row)["permutation"]), row)


def _reshape(row: Row, a: Row, *sizes: Row) -> Row | None:
    """Convert a reshape that only adds and removes axes of size 1."""
    long_axes = [[size for size in operand.shape if size != 1] for operand in (a, row)]
    has_dimensions = _params(row).get("dimensions") is not None
    if sizes or long_axes[0] != long_axes[1] or has_dimensions:
        return None
    term = _axes(a)
    long_labels = [label for label, size in zip(term, a.shape, strict=True) if size != 1]
    fresh = itertools.count(len(term))
    out = tuple(next(fresh) if size == 1 else long_labels.pop(0) for size in row.shape)
    return contract([a], [term], out, row)


_RULES: dict[str, Callable[..., Row | None]] = {
    "mul": _mul,
    "neg": _neg,
    "div": _div,
    "dot_general": _dot_general,
    "broadcast_in_dim": _broadcast_in_dim,
    "reduce_sum": _reduce_sum,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
}


def _params(row: Row) -> Any:
    assert isinstance(row.op, Apply)
    return row.op.params


# Elementwise functions, which apply to rows of any shape.
_ELEMENTWISE = frozenset(
    ("leaky_relu", "add", "sub", "max", "min", "exp", "log", "tanh", "logistic", "sqrt", "rsqrt")
)

# --- Einsums of einsums --------------------------------------------------------------------------


def is_view(row: Row) -> bool:
    """Whether a row is another one with its axes moved, repeated or of size 1."""
    return isinstance(row.op, Contract) and len(row.operands) == 1 and not summed_labels(row)


def summed_labels(row: Row) -> set[int]:
    """Return the labels that an einsum sums over."""
    assert isinstance(row.op, Contract)
    return {label for term in row.op.terms for label in term} - set(row.op.out)


def _absorb_views(row: Row) -> Row:
    """Return an einsum that has absorbed views, without axes of size 1."""
    return _without_ones(absorb(row, is_view))


def absorb(row: Row, which: Callable[[Row], bool]) -> Row:
    """Return an einsum with the factors of the inner einsums that `which` selects, if possible."""
    assert isinstance(row.op, Contract)
    op = row.op
    labels = [*op.out, *(label for term in op.terms for label in term)]
    fresh = itertools.count(1 + max(labels, default=-1))
    operands: list[Row] = []
    terms: list[Labels] = []
    precision = op.precision
    for operand, term in zip(row.operands, op.terms, strict=True):
        inner = operand.op
        is_absorbed = (
            isinstance(inner, Contract)
            and operand.dtype == row.dtype
            and which(operand)
            and (inner.precision in (None, precision) or precision is None)
            and not _sums_copies(row, operand, term)
        )
        if not is_absorbed:
            operands.append(operand)
            terms.append(term)
            continue
        assert isinstance(inner, Contract)
        precision = inner.precision if precision is None else precision
        renamed = dict(zip(inner.out, term, strict=True))
        for factor, inner_term in zip(operand.operands, inner.terms, strict=True):
            operands.append(factor)
            terms.append(tuple(renamed.setdefault(label, next(fresh)) for label in inner_term))
    is_unchanged = len(operands) == len(row.operands) and all(
        a is b for a, b in zip(operands, row.operands, strict=True)
    )
    return row if is_unchanged else contract(operands, terms, op.out, row, precision)


def _sums_copies(row: Row, factor: Row, term: Labels) -> bool:
    """Whether an einsum sums over an axis that its factor broadcasts: absorption would drop it."""
    assert isinstance(row.op, Contract) and isinstance(factor.op, Contract)
    sources = {label for inner_term in factor.op.terms for label in inner_term}
    copies = {
        label
        for inner, label, size in zip(factor.op.out, term, factor.shape, strict=True)
        if inner not in sources and size != 1
    }
    elsewhere = {
        label
        for operand, labels in zip(row.operands, row.op.terms, strict=True)
        if operand is not factor
        for label in labels
    }
    return bool(copies - set(row.op.out) - elsewhere)


def _without_ones(row: Row) -> Row:
    """Return an einsum whose factors have no axes of size 1, which others may have longer."""
    assert isinstance(row.op, Contract)
    if not any(1 in operand.shape for operand in row.operands):
        return row
    operands = [_squeezed(operand) for operand in row.operands]
    terms = [
        _long_labels(term, operand)
        for term, operand in zip(row.op.terms, row.operands, strict=True)
    ]
    return contract(operands, terms, row.op.out, row, row.op.precision)


def _long_labels(labels: Labels, row: Row) -> Labels:
    return tuple(label for label, size in zip(labels, row.shape, strict=True) if size != 1)


def _squeezed(row: Row) -> Row:
    """Return a row without its axes of size 1, pushed towards the leaves."""
    if 1 not in row.shape:
        return row
    shape = tuple(size for size in row.shape if size != 1)
    if isinstance(row.op, Constant):
        return constant(row.op.value.reshape(shape), row.dtype, row.line)
    if isinstance(row.op, Pull):
        return pull(_squeezed(row.operands[0]), row.space, row.op.way)
    if isinstance(row.op, Contract):
        sizes = dict(zip(row.op.out, row.shape, strict=True))
        out = _long_labels(row.op.out, row)
        return contract(row.operands, row.op.terms, out, row, row.op.precision, sizes)
    is_alike = all(operand.shape in (row.shape, ()) for operand in row.operands)
    is_elementwise = isinstance(row.op, Apply) and row.op.name in _ELEMENTWISE
    if isinstance(row.op, Softmax) or (is_alike and is_elementwise):
        return replace(row, operands=tuple(map(_squeezed, row.operands)), shape=shape)
    return apply("squeeze", lambda x: x.reshape(shape), row, key=row.shape)
