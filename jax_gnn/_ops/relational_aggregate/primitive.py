"""The primitive ``relational_aggregate``, out[v] = Σ w[e] · x[u] rhs[rel e] over edges e = (u → v).

It is linear in the features, the weights of relations and those of edges. Its transpose in the
features is itself over the reversed edges with transposed weights. The sum and its other transposes
are composed of segmented products and sums: no platform has a kernel for it. Both gradients sum the
same rows by pair, in the same expression, so that XLA computes it once.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
from jax import Array

from jax_gnn._core.batching import batch_composition
from jax_gnn._core.op import Bind, Op
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_aggregate import xla
from jax_gnn._ops.relational_aggregate.schedule import (
    FAMILY,
    TRANSPOSED_METHOD,
    Method,
    chosen_for_gradients,
)


class Relations(NamedTuple):
    """Operands of ``relational_aggregate``; x, rhs and the result have one dtype."""

    x: Any  # features, (sources, k)
    rhs: Any  # weights of relations, (relations, k, n), or if `transposed` (relations, n, k)
    weight: Any  # weights of edges, (edges,) in the accumulator type, or None
    matrix: RelationalMatrix  # matrix of the edges


def _result(operands: Relations, *, transposed: bool, **attributes: object) -> jax.ShapeDtypeStruct:
    shape = operands.matrix.nodes.by_row.num_rows, operands.rhs.shape[1 if transposed else 2]
    return jax.ShapeDtypeStruct(shape, operands.x.dtype)


def _flops(operands: Relations, *, transposed: bool, **attributes: object) -> int:
    """Return the flops of the method with the fewest products, without those of sums."""
    counts = xla.counts(operands.x, operands.rhs, operands.matrix, transposed=transposed)
    rows = [pairs for pairs in (counts.source_pairs, counts.destination_pairs) if pairs]
    return int(2 * min([counts.edges, *rows]) * counts.k * counts.n)


def _gradient_methods(bind: Bind, operands: Relations, x: Any, rhs: Any) -> tuple[Method, Method]:
    """Return the methods for the gradients of x and of rhs, of which one may be an aval."""
    method = bind.attributes["method"]
    if method is None:
        counts = xla.counts(x, rhs, operands.matrix, transposed=bind.attributes["transposed"])
        return chosen_for_gradients(counts)
    return TRANSPOSED_METHOD[method], method


def _transpose_x(bind: Bind, ct: Array, operands: Relations) -> Array:
    to_x, _ = _gradient_methods(bind, operands, operands.x.aval, operands.rhs)
    transpose = Relations(ct, operands.rhs, operands.weight, operands.matrix.T)
    return cast(Array, bind(transpose, transposed=not bind.attributes["transposed"], method=to_x))


def _transpose_rhs(bind: Bind, ct: Array, operands: Relations) -> Array:
    x, weight, matrix = operands.x, operands.weight, operands.matrix
    rhs = operands.rhs.aval
    _, to_rhs = _gradient_methods(bind, operands, x, rhs)
    options = {**bind.attributes, "method": to_rhs, "num_relations": rhs.shape[0]}
    implementation = bind.implementation
    return xla.gradient_to_rhs(x, ct, weight, matrix, **options, implementation=implementation)


def _transpose_weight(bind: Bind, ct: Array, operands: Relations) -> Array:
    x, rhs, _, matrix = operands
    options = {**bind.attributes, "implementation": bind.implementation}
    return xla.gradient_to_weight(x, rhs, ct, matrix, **options)


# Attributes: transposed, method, precision.
relational_aggregate = Op(
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
