"""Einsums of arrays whose axes have labels: of all rows at once, and of one row."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import as_matrix
from jax_gnn._ops.segment_matmul.api import is_tall, segment_matmul
from jax_gnn._program.rows import Contract, Labels, Row

Labelled = tuple[Array, Labels, bool]  # whether a first axis of rows is there


def einsum(row: Row, operands: Sequence[tuple[Array, bool]]) -> Array:
    """An einsum, one factor after the other.

    Args:
        row: What is made.
        operands: Of its operands the arrays, and whether these have a first axis of rows.
    """
    assert isinstance(row.op, Contract)
    out, precision = row.op.out, row.op.precision
    left: list[Labelled] = [
        (x, labels, rows) for (x, rows), labels in zip(operands, row.op.terms, strict=True)
    ]
    while len(left) > 2:
        a, b, *rest = left
        later = {label for _, labels, _ in rest for label in labels} | set(out)
        kept = tuple(dict.fromkeys(label for label in (*a[1], *b[1]) if label in later))
        left = [(times(a, b, kept, precision), kept, a[2] or b[2]), *rest]
    present = {label for _, labels, _ in left for label in labels}
    kept = tuple(label for label in out if label in present)
    found = times(left[0], left[1] if len(left) == 2 else None, kept, precision)
    return placed(found, kept, out, row.shape, leading=any(each[2] for each in left))


def times(a: Labelled, b: Labelled | None, out: Labels, precision: Any = None) -> Array:
    """A product of arrays by label, summed over what is not in the result."""
    operands = [each for each in (a, b) if each is not None]
    counts = {
        label: sum(label in each[1] for each in operands) for each in operands for label in each[1]
    }
    summed = [label for label in counts if label not in out]
    varies = any(each[2] for each in operands)
    if len(operands) == 2 and _elementwise(a, operands[1], out):
        order = (*out, *summed)
        x, y = (_aligned(each, order, varies) for each in operands)
        found = x * y
        return jnp.sum(found, tuple(range(-len(summed), 0))) if summed else found
    if len(operands) == 2:
        rows, weight = sorted(operands, key=lambda each: not each[2])
        product = _tall(rows, weight, out, precision)
        if product is not None:
            return product
    names = dict(zip(counts, string.ascii_letters[1:], strict=False))

    def term(labels: Labels, rows: bool) -> str:
        return ("a" if rows else "") + "".join(names[label] for label in labels)

    spec = ",".join(term(labels, rows) for _, labels, rows in operands)
    return jnp.einsum(
        f"{spec}->{term(out, varies)}", *(each[0] for each in operands), precision=precision
    )


def _tall(x: Labelled, weight: Labelled, out: Labels, precision: Any) -> Array | None:
    """A product of many rows with a shared matrix, or None, as layers choose."""
    rest = [label for label in weight[1] if label not in x[1]]
    if not x[2] or weight[2] or set(x[1]) - set(weight[1]) or sorted(rest) != sorted(out):
        return None
    kernel = weight[0].transpose([weight[1].index(label) for label in (*x[1], *out)])
    shape, rows = kernel.shape[len(x[1]) :], as_matrix(x[0])
    kernel = kernel.reshape(rows.shape[1], math.prod(shape))
    if min(kernel.shape) == 1 or not is_tall(rows, kernel, precision):
        return None  # XLA fuses products with a vector with what surrounds them
    y = segment_matmul(rows, kernel[None], jnp.full((1,), rows.shape[0], jnp.int32))
    return y.reshape(y.shape[0], *shape)


def _elementwise(a: Labelled, b: Labelled, out: Labels) -> bool:
    """Whether no matrix product is in it."""
    summed = {label for label in (*a[1], *b[1]) if label not in out}
    if not summed:
        return True
    rows = a[2] and b[2]
    return rows and set(a[1]) == set(b[1])


def _aligned(each: Labelled, order: Labels, varies: bool) -> Array:
    """With an axis for each label, of size 1 where it has none."""
    x, labels, rows = each
    lead = int(rows)
    x = x.transpose(*range(lead), *(lead + labels.index(i) for i in order if i in labels))
    shape = [next(sizes) if i in labels else 1 for sizes in [iter(x.shape[lead:])] for i in order]
    head = x.shape[:1] if rows else (1,) if varies else ()
    return x.reshape(*head, *shape)


def placed(
    x: Array, labels: Labels, out: Labels, shape: tuple[int, ...], *, leading: bool
) -> Array:
    """With its axes in the order of the result's, and those of copies."""
    lead = int(leading)
    x = x.transpose(*range(lead), *(lead + labels.index(i) for i in out if i in labels))
    full = [size if i in labels else 1 for i, size in zip(out, shape, strict=True)]
    x = jnp.reshape(x, (*x.shape[:lead], *full))  # of constants NumPy has the array
    return jnp.broadcast_to(x, (*x.shape[:lead], *shape))
