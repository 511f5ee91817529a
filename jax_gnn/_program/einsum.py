"""Einsums of arrays whose axes have labels, with or without a first axis of rows."""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import as_matrix
from jax_gnn._ops.segment_matmul.api import is_tall, tall_matmul
from jax_gnn._program.backend import backend
from jax_gnn._program.rows import Contract, Labels, Row


class Labelled(NamedTuple):
    """An array with labels.

    Attributes:
        array: The array.
        labels: Labels of its axes.
        has_rows: Whether an axis of rows, without a label, comes first.
    """

    array: Array
    labels: Labels
    has_rows: bool


def einsum(row: Row, operands: Sequence[tuple[Array, bool]]) -> Array:
    """Compute an einsum, two factors after another.

    Args:
        row: The einsum.
        operands: For each operand the array, and whether it has an axis of rows.
    """
    assert isinstance(row.op, Contract)
    out, precision = row.op.out, row.op.precision
    factors = [
        Labelled(x, labels, has_rows)
        for (x, has_rows), labels in zip(operands, row.op.terms, strict=True)
    ]
    while len(factors) > 2:
        sizes = {
            label: size
            for x in factors
            for label, size in zip(x.labels, x.array.shape[int(x.has_rows) :], strict=True)
        }
        options = []
        for a, b in itertools.combinations(factors, 2):
            later = [factor for factor in factors if factor is not a and factor is not b]
            needed = {label for factor in later for label in factor.labels} | set(out)
            every = dict.fromkeys((*a.labels, *b.labels))
            labels = tuple(label for label in every if label in needed)
            options.append((a, b, later, labels))
        # The pair with the smallest product goes first: others would multiply rows into matrices.
        a, b, later, labels = min(
            options,
            key=lambda option: (
                option[0].has_rows or option[1].has_rows,
                math.prod(sizes[label] for label in option[3]),
            ),
        )
        product = multiply(a, b, labels, precision)
        factors = [Labelled(product, labels, a.has_rows or b.has_rows), *later]
    present = {label for factor in factors for label in factor.labels}
    labels = tuple(label for label in out if label in present)
    second = factors[1] if len(factors) == 2 else None
    product = multiply(factors[0], second, labels, precision)
    has_rows = any(factor.has_rows for factor in factors)
    return arranged(Labelled(product, labels, has_rows), out, row.shape)


def multiply(a: Labelled, b: Labelled | None, out: Labels, precision: Any = None) -> Array:
    """Multiply one or two arrays, summed over the labels that are not in the result."""
    factors = [a] if b is None else [a, b]
    labels = dict.fromkeys(label for factor in factors for label in factor.labels)
    summed = [label for label in labels if label not in out]
    has_rows = any(factor.has_rows for factor in factors)
    if b is not None and _is_elementwise(a, b, out):
        order = (*out, *summed)
        product = _aligned(a, order, has_rows) * _aligned(b, order, has_rows)
        return jnp.sum(product, tuple(range(-len(summed), 0))) if summed else product
    if b is not None:
        x, weight = (a, b) if a.has_rows else (b, a)
        tall = _multiply_tall(x, weight, out, precision)
        if tall is not None:
            return tall
    letters = dict(zip(labels, string.ascii_letters[1:], strict=False))

    def term(labels: Labels, has_rows: bool) -> str:
        return ("a" if has_rows else "") + "".join(letters[label] for label in labels)

    spec = ",".join(term(factor.labels, factor.has_rows) for factor in factors)
    arrays = (factor.array for factor in factors)
    return jnp.einsum(f"{spec}->{term(out, has_rows)}", *arrays, precision=precision)


def _multiply_tall(x: Labelled, weight: Labelled, out: Labels, precision: Any) -> Array | None:
    """Multiply many rows with a shared matrix as layers do, or return None."""
    new = [label for label in weight.labels if label not in x.labels]
    is_map = not set(x.labels) - set(weight.labels) and sorted(new) == sorted(out)
    if not x.has_rows or weight.has_rows or not is_map:
        return None
    order = [weight.labels.index(label) for label in (*x.labels, *out)]
    kernel = weight.array.transpose(order)
    shape, rows = kernel.shape[len(x.labels) :], as_matrix(x.array)
    kernel = kernel.reshape(rows.shape[1], math.prod(shape))
    if min(kernel.shape) == 1:
        return None  # XLA fuses products with a vector into their neighbours
    if not is_tall(rows, kernel, precision):
        return None
    if backend() == "cuda":
        # XLA joins products of the same rows, and copies each out of the joined one. A barrier for
        # the rows alone would be the same for both.
        rows, kernel = jax.lax.optimization_barrier((rows, kernel))  # type: ignore[no-untyped-call,unused-ignore]
    y = tall_matmul(rows, kernel)
    return y.reshape(y.shape[0], *shape)


def _is_elementwise(a: Labelled, b: Labelled, out: Labels) -> bool:
    """Whether a product contains no matrix product."""
    if {*a.labels, *b.labels} <= set(out):
        return True
    return a.has_rows and b.has_rows and set(a.labels) == set(b.labels)


def _aligned(x: Labelled, order: Labels, has_rows: bool) -> Array:
    """Return an array with an axis for each label in order, of size 1 where it has none."""
    array, lead = _transposed(x, order), int(x.has_rows)
    sizes = iter(array.shape[lead:])
    shape = [next(sizes) if i in x.labels else 1 for i in order]
    rows = array.shape[:1] if x.has_rows else (1,) if has_rows else ()
    return array if array.shape == (*rows, *shape) else array.reshape(*rows, *shape)


def _transposed(x: Labelled, order: Labels) -> Array:
    """Return an array with its axes in an order, which may have other labels, too."""
    array, labels, has_rows = x
    if labels == tuple(label for label in order if label in labels):
        return array  # transposes and reshapes that change nothing take long to trace
    lead = int(has_rows)
    return array.transpose(*range(lead), *(lead + labels.index(i) for i in order if i in labels))


def arranged(x: Labelled, out: Labels, shape: tuple[int, ...]) -> Array:
    """Return an array with its axes in the order of `out`, broadcast to a shape of rows."""
    array, lead = _transposed(x, out), int(x.has_rows)
    if array.shape[lead:] == shape and isinstance(array, Array):
        return array
    sizes = [size if i in x.labels else 1 for i, size in zip(out, shape, strict=True)]
    array = jnp.reshape(array, (*array.shape[:lead], *sizes))  # constants may be numpy arrays
    return jnp.broadcast_to(array, (*array.shape[:lead], *shape))
