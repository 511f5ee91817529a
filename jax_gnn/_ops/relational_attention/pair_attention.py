"""Attention of HGT by destination pair, whose gradients share sums at the destination.

``pair_attention`` is y[v] = Σ c[p] · (s[p] W[relation of p] + b) over the pairs p = (v, relation).
s[p] is the sum of the values of p's edges under their softmax, and c[p] the pair's weight in the
softmax of all edges into v. It composes ``attention`` into pairs, a product and a weighted sum, and
has derivatives of its own. With g[v] the cotangent of y,

* s[p] has the cotangent c[p] · g[v] Wᵀ: a product that gathers and scales rows of g, as in the
  gradients of W and b, so that g is never copied for each pair;
* the score of an edge has the cotangent w · (⟨cotangent of s[p], value⟩ - δ[p]), where w is its
  weight within the pair. The terms of both softmaxes add up to δ[p] = c[p] · ⟨g[v], y[v] - b⟩: a
  dot for each destination, in place of two for each pair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.linear import Linear
from jax_gnn._core.public import chosen_implementation
from jax_gnn._ops.attention.primitive import attend, gradients
from jax_gnn._ops.attention.scores import DotScores
from jax_gnn._ops.attention.xla import row_dots, shares
from jax_gnn._ops.relational_aggregate.xla import existing, product
from jax_gnn._ops.relational_attention.primitive import by_head, product_of_heads
from jax_gnn._ops.segment_matmul.primitive import grouped_outer
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, total, weighted_sum


class Operands(NamedTuple):
    """Operands of ``pair_attention``; or tangents or cotangents of them, without a matrix."""

    value: Any  # (sources, heads · k) values
    key: Any  # (sources, heads · k) keys, or None where they are the values
    query: Any  # (destination pairs, heads · k) queries
    kernel: Any  # (relations, k, heads · n) weights of the sums
    bias: Any  # (relations, heads · n), or None
    # (destination pairs, heads) in the accumulator type, terms of all scores of a pair; or None.
    shift: Any
    matrix: Any = None  # matrix of the graph, with the part "to_pairs"


def _dots(value: Array, key: Array | None, query: Array) -> DotScores:
    return DotScores(query, key, jnp.ones((1, 1), accumulator_dtype(value.dtype)))


class Residuals(NamedTuple):
    """Constants of ``pair_attention_jvp``."""

    operands: Operands  # operands of `pair_attention`
    y: Any  # result
    sums: Any  # sums s, (destination pairs, heads · k)
    stats: Any  # statistics of `attention`
    share: Any  # weights c, (destination pairs, heads)


def _steps(
    operands: Operands, *, heads: int, precision: jax.lax.Precision, scale: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """Return the result, the sums, their statistics, and the weights of the pairs."""
    value, key, query, kernel, bias, shift, matrix = operands
    pairs, to_pairs = existing(matrix.pair_dst), existing(matrix.to_pairs)
    sums, stats = attend(value, _dots(value, key, query), scale, to_pairs, heads=heads)
    share = shares(stats, pairs.node_segments, shift)
    z = product_of_heads(sums, kernel, bias, pairs, heads=heads, precision=precision)
    y = weighted_sum(z, share, pairs.node_segments, heads)
    return y, sums, stats, share


def _tangent(residuals: Residuals, tangents: Operands, **attributes: Any) -> list[Array]:
    operands = residuals.operands
    by_name = {name: x for name, x in tangents._asdict().items() if x is not None}

    def result(arrays: dict[str, Array]) -> Array:
        return _steps(operands._replace(**arrays), **attributes)[0]

    primals = {name: getattr(operands, name) for name in by_name}
    return [jax.jvp(result, (primals,), (by_name,))[1]]


def _transpose(
    residuals: Residuals,
    tangents: Operands,
    cts: list[Array | None],
    *,
    heads: int,
    precision: jax.lax.Precision,
) -> Operands:
    (value, key, query, kernel, bias, _, matrix), y, sums, stats, share = residuals
    (ct,) = cts
    assert ct is not None
    pairs, to_pairs = existing(matrix.pair_dst), existing(matrix.to_pairs)
    # Products take their scale in the order of relations.
    scale = share if pairs.numbering is None else total(share, pairs.numbering)

    def sums_gradient(ct: Array, kernel: Array, scale: Array) -> Array:
        options: Any = {"scale": scale[:, 0], "transposed": True, "precision": precision}
        return product(ct, kernel, pairs, pairs.gather, **options)

    def kernel_gradient(sums: Array, ct: Array, scale: Array) -> Array:
        return grouped_outer(
            sums,
            ct,
            pairs.sizes,
            lhs_rows=pairs.numbering,
            rhs_rows=pairs.gather,
            scale=scale[:, 0],
            precision=precision,
        )

    # The cotangent of s: c · g Wᵀ, where the product gathers rows of g at the pairs' destinations.
    to_sums = by_head(sums_gradient, heads, ct, kernel, scale)
    delta = gather(row_dots(ct, y, heads), pairs.node_segments)
    if bias is not None:
        delta -= sddmm(ct, bias, pairs.incidence, heads=heads)
    delta *= share
    # The kernel needs no y: δ takes the place of ⟨ct, y⟩ in the gradients of attention, as the
    # negative cotangent of the softmax's logarithm.
    scores = _dots(value, key, query)
    attended = value, scores, None, None, stats, None, to_sums, -delta, to_pairs
    to = gradients(*attended, heads=heads, slope=1.0)
    grads = Operands(to.value, None if key is None else to.col, None, None, None, None)
    if tangents.query is not None:
        keys = value if key is None else key
        to_query = weighted_sum(keys, to.score, to_pairs, heads)
        grads = grads._replace(query=to_query)
    if tangents.kernel is not None:
        grads = grads._replace(kernel=by_head(kernel_gradient, heads, sums, ct, scale))
    if tangents.bias is not None:
        to_bias = weighted_sum(ct, share, pairs.incidence.T, heads)
        grads = grads._replace(bias=to_bias.astype(bias.dtype))
    if tangents.shift is not None:
        grads = grads._replace(shift=row_dots(to_sums, sums, heads) - delta)
    return grads


# The result is the tangent of y; linear operands are tangents of the operands.
pair_attention_jvp = Linear(
    name="pair_attention_jvp",
    result=lambda residuals, _, **attributes: [
        jax.ShapeDtypeStruct(residuals.y.shape, residuals.y.dtype)
    ],
    function=_tangent,
    transpose=_transpose,
)


def pair_attention(
    *operands: Any,
    heads: int,
    precision: jax.lax.Precision,
    scale: Array | None = None,
) -> Array:
    """Return the attention of `Operands`, in their order.

    With ``scale``, ``(edges, heads)`` factors after the softmax, JAX differentiates the steps.
    """
    implementation = chosen_implementation.value  # rules may run outside of the context
    attributes: Any = {"heads": heads, "precision": precision}

    def steps(*operands: Any, scale: Array | None = None) -> tuple[Array, Array, Array, Array]:
        with chosen_implementation(implementation):
            return _steps(Operands(*operands), **attributes, scale=scale)

    if scale is not None:
        return steps(*operands, scale=scale)[0]

    # custom_jvp, not a primitive: the value is composed of other ops, only the tangent has a rule.
    @jax.custom_jvp
    def attend(*operands: Any) -> Array:
        return steps(*operands)[0]

    def attend_jvp(operands: Any, tangents: Any) -> tuple[Array, Array]:
        y, sums, stats, share = steps(*operands)
        residuals = Residuals(Operands(*operands), y, sums, stats, share)
        moving = [None if isinstance(t, SymbolicZero | None) else t for t in tangents[:-1]]
        (tangent,) = pair_attention_jvp(
            residuals, Operands(*moving), **attributes, implementation=implementation
        )
        return y, tangent

    attend.defjvp(attend_jvp, symbolic_zeros=True)
    return attend(*operands)
