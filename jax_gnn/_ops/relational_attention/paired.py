"""Attention of HGT by destination pair, with gradients that meet at the destination.

``paired_attention``, y[v] = Σ c[p] · (s[p] W[relation of p] + b) over the pairs p = (v, relation),
where s[p] is the sum of the values of p's edges under their own softmax, and c[p] what the pair
counts in the softmax of all edges into v. It is ``keyed_attention`` into pairs, a product and a
weighted sum; what is its own are the derivatives. With g[v] the cotangent of y,

* s[p] has the cotangent c[p] · g[v] Wᵀ, which is a product that gathers rows of g and scales them,
  as those of W and b are: no array of pairs is made of g;
* the cotangent of an edge's score is w · (⟨cotangent of s[p], value⟩ - δ[p]), where w is the weight
  within the pair, and what the softmaxes of edges and of pairs take away adds up to
  δ[p] = c[p] · ⟨g[v], y[v] - b⟩: a dot for each destination, in place of two for each pair.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.batching import batch_apart
from jax_gnn._core.op import Bind, Op, define
from jax_gnn._core.relations import RelationalMatrix
from jax_gnn._ops.edge_attention.keyed import keyed_attention, keyed_attention_vjp
from jax_gnn._ops.edge_attention.primitive import jvp_of_tangents
from jax_gnn._ops.edge_attention.sums import shares
from jax_gnn._ops.edge_attention.xla import row_dots
from jax_gnn._ops.relational_attention.primitive import by_head, part, product_of_heads
from jax_gnn._ops.segment_matmul.primitive import segment_matmul, segment_outer
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total


class Paired(NamedTuple):
    """Operands of ``paired_attention``.

    Attributes:
        value: ``(sources, heads · k)``, in the dtype of all that has no other.
        key: likewise, or None where it is ``value``.
        query: ``(destination pairs, heads · k)``.
        kernel: ``(relations, k, heads · n)``, behind the sums.
        bias: ``(relations, heads · n)``, or None.
        shift: ``(destination pairs, heads)`` in the accumulator type, what is added to all scores
            of a pair; or None.
        matrix: the graph, with the part "to_pairs".
    """

    value: Any
    key: Any
    query: Any
    kernel: Any
    bias: Any
    shift: Any
    matrix: RelationalMatrix


class PairedTangents(NamedTuple):
    """Operands of ``paired_attention_jvp``: those above, what is known of the result, and tangents.

    Attributes:
        y: the result.
        sums: s.
        stats: of ``keyed_attention``.
        share: c, ``(destination pairs, heads)``.
        dvalue: tangent of ``value``; of these tangents None stands for zeros.
        dkey: of ``key``.
        dquery: of ``query``.
        dkernel: of ``kernel``.
        dbias: of ``bias``.
        dshift: of ``shift``.
    """

    value: Any
    key: Any
    query: Any
    kernel: Any
    bias: Any
    shift: Any
    y: Any
    sums: Any
    stats: Any
    share: Any
    dvalue: Any
    dkey: Any
    dquery: Any
    dkernel: Any
    dbias: Any
    dshift: Any
    matrix: RelationalMatrix


_MOVING = Paired._fields[:-1]
_TANGENTS = tuple(f"d{name}" for name in _MOVING)


def _one(value: Array) -> Array:
    return jnp.ones((1, 1), accumulator_dtype(value.dtype))


def _steps(
    operands: Paired, *, heads: int, precision: Any, implementation: str | None = None
) -> tuple[Array, Array, Array, Array]:
    """The result, the sums, their statistics, and what each counts."""
    value, key, query, kernel, bias, shift, matrix = operands
    pairs, into = part(matrix.pair_dst), part(matrix.to_pairs)
    options: Any = {"heads": heads, "implementation": implementation}
    scores = query, key, None, _one(value), None
    sums, stats = keyed_attention(value, *scores, into, slope=1.0, **options)
    share = shares(stats, pairs.node_segments, shift, implementation)
    z = product_of_heads(sums, kernel, bias, pairs, precision=precision, **options)
    return (
        segment_reduce(z, share, pairs.node_segments, reduce="sum", **options),
        sums,
        stats,
        share,
    )


def _composed(**by_name: Any) -> Array:
    operands = {name: by_name.pop(name) for name in Paired._fields}
    return _steps(Paired(**operands), **by_name)[0]


def _moving(operands: PairedTangents) -> tuple[Paired, dict[str, Any]]:
    """What has tangents, and those that there are."""
    given = {name: getattr(operands, f"d{name}") for name in _MOVING}
    held = Paired(*(getattr(operands, name) for name in Paired._fields))
    return held, {name: each for name, each in given.items() if each is not None}


def _composed_jvp(**by_name: Any) -> Array:
    operands = PairedTangents(**{name: by_name.pop(name) for name in PairedTangents._fields})
    held, tangents = _moving(operands)

    def result(moving: dict[str, Any]) -> Array:
        return _steps(held._replace(**moving), **by_name)[0]

    return jax.jvp(result, ({name: getattr(held, name) for name in tangents},), (tangents,))[1]


def _jvp(bind: Bind, primals: Paired, tangents: Paired) -> tuple[Array, Array]:
    options: Any = {**bind.attributes, "implementation": bind.implementation}
    known = _steps(primals, **options)
    return known[0], paired_attention_jvp(
        *(*primals[:-1], *known, *tangents[:-1], primals.matrix), **options
    )


def _transpose(bind: Bind, ct: Array, operands: PairedTangents) -> tuple[Array | None, ...]:
    value, key, query, kernel, bias, _, y, sums, stats, share, *_, matrix = operands
    heads, implementation = bind.attributes["heads"], bind.implementation
    options: Any = {"heads": heads, "implementation": implementation}
    pairs, into = part(matrix.pair_dst), part(matrix.to_pairs)
    groups = pairs.sizes, jnp.zeros((1,), jnp.int32)
    in_order = pairs.numbering  # as the products have them
    scale = share if in_order is None else total(share, in_order, implementation)
    form: Any = {
        "precision": bind.attributes["precision"],
        "implementation": implementation,
        "dtype": value.dtype,
    }

    def to_sums(ct: Array, kernel: Array, scale: Array) -> Array:
        scatter = pairs.to_node_order if pairs.by_node else None
        return segment_matmul(
            *(ct, kernel, None, None, scale[:, 0], *groups, pairs.gather, scatter),
            **form,
            transposed=True,
            activation=None,
        )

    def to_kernel(sums: Array, ct: Array, scale: Array) -> Array:
        return segment_outer(
            *(sums, ct, scale[:, 0], *groups, in_order, pairs.gather),
            **form,
            num_groups=kernel.shape[0],
            deterministic=True,
        )

    of_sums = by_head(to_sums, heads, ct, kernel, scale)
    away = gather(row_dots(ct, y, heads), pairs.node_segments, implementation)
    if bias is not None:
        away -= sddmm(ct, bias, pairs.incidence, **options)
    away *= share
    to_value, to_key, to_score, _ = keyed_attention_vjp(
        *(value, query, key, None, _one(value), None, None, stats, of_sums, -away, into),
        **options,
        slope=1.0,
    )
    found: dict[str, Any] = {"dvalue": to_value, "dkey": None if key is None else to_key}
    if operands.dquery is not None:
        keys = value if key is None else key
        found["dquery"] = segment_reduce(keys, to_score, into, reduce="sum", **options)
    if operands.dkernel is not None:
        found["dkernel"] = by_head(to_kernel, heads, sums, ct, scale)
    if operands.dbias is not None:
        to_bias = segment_reduce(ct, share, pairs.incidence.T, reduce="sum", **options)
        found["dbias"] = to_bias.astype(bias.dtype)
    if operands.dshift is not None:
        found["dshift"] = row_dots(of_sums, sums, heads) - away
    return tuple(found.get(name) for name in _TANGENTS)


def _result(operands: Paired | PairedTangents, **attributes: Any) -> jax.ShapeDtypeStruct:
    del attributes
    num_rows = part(operands.matrix.pair_dst).num_nodes
    return jax.ShapeDtypeStruct((num_rows, operands.kernel.shape[2]), operands.value.dtype)


def _flops(operands: Any, **attributes: Any) -> int:
    del attributes
    edges, pairs = operands.matrix.types.shape[0], operands.query.shape[0]
    _, k, n = operands.kernel.shape
    return 4 * edges * operands.value.shape[1] + 2 * pairs * (k + 1) * n


# Attributes: heads, precision.
paired_attention = define(
    Op(
        name="paired_attention",
        operands=Paired,
        result=_result,
        xla=_composed,
        platforms=(),
        jvp=_jvp,
        transpose={},
        batch=batch_apart,
        flops=_flops,
    )
)


# The tangent of the result.
paired_attention_jvp = define(
    Op(
        name="paired_attention_jvp",
        operands=PairedTangents,
        result=_result,
        xla=_composed_jvp,
        platforms=(),
        jvp=functools.partial(jvp_of_tangents, _TANGENTS),
        transpose={_TANGENTS: _transpose},
        batch=batch_apart,
        flops=lambda operands, **_: 2 * _flops(operands),
    )
)
