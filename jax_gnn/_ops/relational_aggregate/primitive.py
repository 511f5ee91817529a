"""The primitive ``relational_aggregate``, out[v] = Σ w[e] · x[u] rhs[rel e] over edges e = (u → v).

It is linear in the features, the weights of relations and those of edges. Its transpose in the
features is itself over the reversed edges with the weights transposed; what it is in the others
is put together of segmented products and sums, as is the sum itself: no platform has a kernel for
it. What both gradients sum up by pair is the same expression, which XLA computes once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import Array

from jax_gnn._core.batching import batch_composition
from jax_gnn._core.op import Bind, Op, define
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_aggregate import xla
from jax_gnn._ops.relational_aggregate.schedule import (
    FAMILY,
    TRANSPOSED_METHOD,
    Method,
    chosen_for_gradients,
)


class Relations(NamedTuple):
    """Operands of ``relational_aggregate``, x and rhs of one dtype, which is that of the result.

    Attributes:
        x: ``(sources, k)``.
        rhs: ``(relations, k, n)``, or if ``transposed`` ``(relations, n, k)``.
        weight: ``(edges,)`` in the accumulator type, or None.
        matrix: the edges.
    """

    x: Any
    rhs: Any
    weight: Any
    matrix: RelationalMatrix


def _result(operands: Relations, *, transposed: bool, **attributes: Any) -> jax.ShapeDtypeStruct:
    del attributes
    shape = operands.matrix.nodes.by_row.num_rows, operands.rhs.shape[1 if transposed else 2]
    return jax.ShapeDtypeStruct(shape, operands.x.dtype)


def _flops(operands: Relations, *, transposed: bool, **attributes: Any) -> int:
    """Of the fewest products that the parts at hand allow; sums are few beside them."""
    del attributes
    counts = xla.counts(operands.x, operands.rhs, operands.matrix, transposed=transposed)
    rows = [pairs for pairs in (counts.source_pairs, counts.destination_pairs) if pairs]
    return 2 * min([counts.edges, *rows]) * counts.k * counts.n


def _gradient_methods(bind: Bind, operands: Relations, x: Any, rhs: Any) -> tuple[Method, Method]:
    """The methods for the gradients of x and of rhs, of which one is known by its aval."""
    method = bind.attributes["method"]
    if method is None:
        counts = xla.counts(x, rhs, operands.matrix, transposed=bind.attributes["transposed"])
        return chosen_for_gradients(counts)
    return TRANSPOSED_METHOD[method], method


def _transpose_x(bind: Bind, ct: Array, operands: Relations) -> Array:
    to_x, _ = _gradient_methods(bind, operands, operands.x.aval, operands.rhs)
    return bind(
        Relations(ct, operands.rhs, operands.weight, operands.matrix.T),
        transposed=not bind.attributes["transposed"],
        method=to_x,
    )


def _transpose_rhs(bind: Bind, ct: Array, operands: Relations) -> Array:
    x, weight, matrix = operands.x, operands.weight, operands.matrix
    rhs = operands.rhs.aval
    _, to_rhs = _gradient_methods(bind, operands, x, rhs)
    return xla.gradient_to_rhs(
        *(x, ct, weight, matrix),
        transposed=bind.attributes["transposed"],
        method=to_rhs,
        num_relations=rhs.shape[0],
        precision=bind.attributes["precision"],
        implementation=bind.implementation,
    )


def _transpose_weight(bind: Bind, ct: Array, operands: Relations) -> Array:
    x, rhs, _, matrix = operands
    return xla.gradient_to_weight(
        *(x, rhs, ct, matrix), **bind.attributes, implementation=bind.implementation
    )


# Attributes: transposed, method, precision.
relational_aggregate = define(
    Op(
        name="relational_aggregate",
        operands=Relations,
        result=_result,
        xla=xla.relational_aggregate,
        platforms=(),
        transpose={"x": _transpose_x, "rhs": _transpose_rhs, "weight": _transpose_weight},
        batch=batch_composition,
        flops=_flops,
        family=FAMILY,
    )
)
