"""The primitive ``relational_aggregate``, out[v] = Σ w[e] · x[u] rhs[rel e] over edges e = (u → v).

It is linear in the features, the weights of relations and those of edges. Its transpose in the
features is itself over the reversed edges with the weights transposed; what it is in the others
is put together of segmented products and sums.

``relational_aggregate_jvp`` is the derivative where features and weights of relations both have
tangents, linear in both together. Its transpose sums up by pair once for both gradients, and puts
the products of these sums where the sums were.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from jax import Array

from jax_gnn._core.batching import batch_apart
from jax_gnn._core.op import Bind, Call, Op, define, multilinear_jvp
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.relational_aggregate import xla
from jax_gnn._ops.relational_aggregate.schedule import (
    FAMILY,
    MIRROR,
    Way,
    chosen,
    chosen_for_gradients,
)
from jax_gnn._ops.relational_aggregate.tiles import tiles_call


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


class Tangents(NamedTuple):
    """Operands of ``relational_aggregate_jvp``: those of the sum, and tangents of two."""

    x: Any
    rhs: Any
    dx: Any
    drhs: Any
    weight: Any
    matrix: RelationalMatrix


def _result(
    operands: Relations | Tangents, *, transposed: bool, **attributes: Any
) -> jax.ShapeDtypeStruct:
    del attributes
    shape = operands.matrix.nodes.by_row.num_rows, operands.rhs.shape[1 if transposed else 2]
    return jax.ShapeDtypeStruct(shape, operands.x.dtype)


def _call(
    platform: str, operands: Relations, *, transposed: bool, method: Way | None, precision: Any
) -> Call | None:
    """Of the one kernel that does all; the other ways are other primitives."""
    del platform
    if method is None:
        method = chosen(
            xla.counts(operands.x, operands.rhs, operands.matrix, transposed=transposed)
        )
    if method != "tiles":
        return None
    dtype = operands.x.dtype
    return tiles_call(operands, transposed=transposed, precision=precision, dtype=dtype)


def _flops(operands: Relations, *, transposed: bool, **attributes: Any) -> int:
    """Of the fewest products that the parts at hand allow; sums are few beside them."""
    del attributes
    counts = xla.counts(operands.x, operands.rhs, operands.matrix, transposed=transposed)
    rows = [pairs for pairs in (counts.source_pairs, counts.destination_pairs) if pairs]
    return 2 * min([counts.edges, *rows]) * counts.k * counts.n


def _jvp(bind: Bind, primals: Relations, tangents: Relations) -> tuple[Array, Array | None]:
    if tangents.x is None or tangents.rhs is None:
        return multilinear_jvp(("x", "rhs", "weight"), bind, primals, tangents)
    tangent = relational_aggregate_jvp(
        *(primals.x, primals.rhs, tangents.x, tangents.rhs, primals.weight, primals.matrix),
        **bind.attributes,
        implementation=bind.implementation,
    )
    if tangents.weight is not None:
        tangent += bind(primals._replace(weight=tangents.weight))
    return bind(primals), tangent


def _gradient_ways(bind: Bind, operands: Relations | Tangents, x: Any, rhs: Any) -> tuple[Way, Way]:
    """The ways to the gradients of x and of rhs, of which one is known by its aval."""
    method = bind.attributes["method"]
    if method in (None, "tiles"):
        counts = xla.counts(x, rhs, operands.matrix, transposed=bind.attributes["transposed"])
        to_x, to_rhs = chosen_for_gradients(counts)
        return method or to_x, to_rhs
    return MIRROR[method], method


def _transpose_x(bind: Bind, ct: Array, operands: Relations) -> Array:
    to_x, _ = _gradient_ways(bind, operands, operands.x.aval, operands.rhs)
    return bind(
        Relations(ct, operands.rhs, operands.weight, operands.matrix.T),
        transposed=not bind.attributes["transposed"],
        method=to_x,
    )


def _transpose_rhs(bind: Bind, ct: Array, operands: Relations) -> Array:
    x, weight, matrix = operands.x, operands.weight, operands.matrix
    rhs = operands.rhs.aval
    _, to_rhs = _gradient_ways(bind, operands, x, rhs)
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
        platforms=("cuda",),
        call=_call,
        jvp=_jvp,
        transpose={"x": _transpose_x, "rhs": _transpose_rhs, "weight": _transpose_weight},
        batch=batch_apart,
        flops=_flops,
        family=FAMILY,
    )
)


# --- Both tangents, and both gradients -----------------------------------------------------------


def _both_tangents(
    x: Array,
    rhs: Array,
    dx: Array,
    drhs: Array,
    weight: Array | None,
    matrix: RelationalMatrix,
    **attributes: Any,
) -> Array:
    return relational_aggregate(dx, rhs, weight, matrix, **attributes) + relational_aggregate(
        x, drhs, weight, matrix, **attributes
    )


def _both_tangents_jvp(
    bind: Bind, primals: Tangents, tangents: Tangents
) -> tuple[Array, Array | None]:
    sums = replace(bind, op=relational_aggregate)
    kept, new = primals.weight, tangents.weight
    given = [
        (tangents.x, primals.drhs, kept),
        (primals.dx, tangents.rhs, kept),
        (tangents.dx, primals.rhs, kept),
        (primals.x, tangents.drhs, kept),
    ]
    if new is not None:
        given += [(primals.dx, primals.rhs, new), (primals.x, primals.drhs, new)]
    terms = [
        sums(Relations(x, rhs, weight, primals.matrix))
        for x, rhs, weight in given
        if x is not None and rhs is not None
    ]
    return bind(primals), functools.reduce(operator.add, terms) if terms else None


def _both_tangents_transpose(bind: Bind, ct: Array, operands: Tangents) -> tuple[Array, Array]:
    x, rhs, dx, _, weight, matrix = operands
    sums = replace(bind, op=relational_aggregate)
    transposed, precision = bind.attributes["transposed"], bind.attributes["precision"]
    to_x, to_rhs = _gradient_ways(bind, operands, x, rhs)
    options = {"precision": precision, "implementation": bind.implementation}
    by_pair = None
    if (to_x, to_rhs) == ("destination_pairs", "source_pairs"):
        by_pair = xla.sums_by_destination_pair(ct, weight, matrix.T, bind.implementation)
    gradient_to_rhs = xla.gradient_to_rhs(
        *(x, ct, weight, matrix),
        transposed=transposed,
        method=to_rhs,
        num_relations=rhs.shape[0],
        sums=by_pair,
        **options,
    )
    if by_pair is None:
        return _transpose_x(sums, ct, Relations(dx, rhs, weight, matrix)), gradient_to_rhs
    after = gradient_to_rhs
    gradient_to_x = xla.sum_of_products(
        by_pair, rhs, matrix.T, after, transposed=not transposed, **options
    )
    return gradient_to_x, gradient_to_rhs


# Attributes: those of relational_aggregate.
relational_aggregate_jvp = define(
    Op(
        name="relational_aggregate_jvp",
        operands=Tangents,
        result=_result,
        xla=_both_tangents,
        platforms=(),
        jvp=_both_tangents_jvp,
        transpose={("dx", "drhs"): _both_tangents_transpose},
        batch=batch_apart,
        flops=lambda operands, **attributes: (
            2
            * _flops(
                Relations(operands.x, operands.rhs, operands.weight, operands.matrix), **attributes
            )
        ),
    )
)
