"""Softmax over edges as a maximum, exponentials and sums, which regions compute with other rows.

The sum of ``softmax(s) * m`` over the edges into a node is the sum of ``exp(s - max) * m``, divided
by that of ``exp(s - max)``: one walk for the maximum, and one for both sums, in which scores and
messages are computed where they are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._program.rows import (
    SOFTMAX_EXP,
    SOFTMAX_SHIFT,
    Apply,
    Contract,
    Labels,
    Push,
    Row,
    Softmax,
    apply,
    contract,
    pull,
    rewrite,
)
from jax_gnn._program.spaces import Space

_SHARE = "softmax_share"


def split_softmax(results: Sequence[Row]) -> list[Row]:
    """Return the program with softmaxes over edges, in single or double precision, split."""
    return rewrite(results, _split)


def _split(row: Row) -> Row:
    if row.op == Softmax() and row.dtype in (np.float32, np.float64):
        return _share(row)
    if row.op in (Push("sum"), Push("mean")):
        return _sum_of_shares(row)
    return row


def _share(row: Row) -> Row:
    """Return the softmax as a quotient of exponentials and their sums."""
    (scores,) = row.operands
    maxima = Row(Push("max"), (scores,), Space.NODE, row.shape, row.dtype, row.line)
    # Like `segment_softmax`: a node whose scores are all -inf has shares of zero.
    shift = apply(SOFTMAX_SHIFT, _shift, maxima)
    exponentials = apply(
        SOFTMAX_EXP, lambda x, shift: jnp.exp(x - shift), scores, pull(shift, Space.EDGE, "dst")
    )
    total = Row(Push("sum"), (exponentials,), Space.NODE, row.shape, row.dtype, row.line)
    inverse = apply("softmax_inverse", _inverse, total)
    return replace(
        apply(_SHARE, jnp.multiply, exponentials, pull(inverse, Space.EDGE, "dst")), line=row.line
    )


def _shift(maxima: Array) -> Array:
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(maxima), maxima, 0))


def _inverse(total: Array) -> Array:
    return 1 / jnp.where(total == 0, 1, total)


def _sum_of_shares(row: Row) -> Row:
    """Return a sum of shares times messages as the quotient of two sums, if it is one."""
    (message,) = row.operands
    if _is_share(message):
        labels: Labels = tuple(range(len(message.shape)))
        message = contract([message], [labels], labels, message)
    if not isinstance(message.op, Contract):
        return row
    for i, (factor, labels) in enumerate(zip(message.operands, message.op.terms, strict=True)):
        if not _is_share(factor) or not set(labels) <= set(message.op.out):
            continue
        exponentials, inverse = factor.operands
        operands = [*message.operands[:i], exponentials, *message.operands[i + 1 :]]
        term, out = message.op.terms, message.op.out
        weighted = contract(operands, term, out, message, message.op.precision)
        total = _sum_of_shares(replace(row, operands=(weighted,)))
        (node,) = inverse.operands
        return contract([total, node], [out, labels], out, row)
    return row


def _is_share(row: Row) -> bool:
    return isinstance(row.op, Apply) and row.op.name == _SHARE
