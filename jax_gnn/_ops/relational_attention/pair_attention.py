"""Attention of HGT by destination pair, with gradients that meet at the destination.

``pair_attention``, y[v] = Σ c[p] · (s[p] W[relation of p] + b) over the pairs p = (v, relation),
where s[p] is the sum of the values of p's edges under their own softmax, and c[p] what the pair
counts in the softmax of all edges into v. It is ``attention`` into pairs, a product and a
weighted sum; what is its own are the derivatives. With g[v] the cotangent of y,

* s[p] has the cotangent c[p] · g[v] Wᵀ, which is a product that gathers rows of g and scales them,
  as those of W and b are: no array of pairs is made of g;
* the cotangent of an edge's score is w · (⟨cotangent of s[p], value⟩ - δ[p]), where w is the weight
  within the pair, and what the softmaxes of edges and of pairs take away adds up to
  δ[p] = c[p] · ⟨g[v], y[v] - b⟩: a dot for each destination, in place of two for each pair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core import ffi
from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.linear import Linear
from jax_gnn._ops.attention.primitive import attend, gradients
from jax_gnn._ops.attention.scores import DotScores
from jax_gnn._ops.attention.xla import row_dots, shares
from jax_gnn._ops.relational_attention.primitive import (
    by_head,
    outer,
    part,
    product,
    product_of_heads,
)
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total


class Operands(NamedTuple):
    """Operands of ``pair_attention``; or tangents or cotangents of them, without a matrix.

    Attributes:
        value: ``(sources, heads · k)``, in the dtype of all that has no other.
        key: likewise, or None where it is ``value``.
        query: ``(destination pairs, heads · k)``.
        kernel: ``(relations, k, heads · n)``, after the sums.
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
    matrix: Any = None


def _dots(value: Array, key: Array | None, query: Array) -> DotScores:
    return DotScores(query, key, jnp.ones((1, 1), accumulator_dtype(value.dtype)))


class Residuals(NamedTuple):
    """What is known of ``pair_attention_jvp``.

    Attributes:
        operands: those of ``pair_attention``.
        y: the result.
        sums: s.
        stats: of ``attention``.
        share: c, ``(destination pairs, heads)``.
    """

    operands: Operands
    y: Any
    sums: Any
    stats: Any
    share: Any


def _steps(
    operands: Operands, *, heads: int, precision: Any, scale: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """The result, the sums, their statistics, and what each counts."""
    value, key, query, kernel, bias, shift, matrix = operands
    pairs, into = part(matrix.pair_dst), part(matrix.to_pairs)
    sums, stats = attend(value, _dots(value, key, query), scale, into, heads=heads)
    share = shares(stats, pairs.node_segments, shift)
    z = product_of_heads(sums, kernel, bias, pairs, heads=heads, precision=precision)
    y = segment_reduce(z, share, pairs.node_segments, reduce="sum", heads=heads)
    return y, sums, stats, share


def _tangent(known: Residuals, moving: Operands, **attributes: Any) -> list[Array]:
    held = known.operands
    tangents = {name: each for name, each in moving._asdict().items() if each is not None}

    def result(moved: dict[str, Any]) -> Array:
        return _steps(held._replace(**moved), **attributes)[0]

    return [jax.jvp(result, ({name: getattr(held, name) for name in tangents},), (tangents,))[1]]


def _transpose(
    known: Residuals,
    moving: Operands,
    cts: list[Array | None],
    *,
    heads: int,
    precision: Any,
) -> Operands:
    (value, key, query, kernel, bias, _, matrix), y, sums, stats, share = known
    (ct,) = cts
    assert ct is not None
    options: Any = {"heads": heads}
    pairs, into = part(matrix.pair_dst), part(matrix.to_pairs)
    in_order = pairs.numbering  # as the products have them
    scale = share if in_order is None else total(share, in_order)

    def to_sums(ct: Array, kernel: Array, scale: Array) -> Array:
        form: Any = {"scale": scale[:, 0], "precision": precision}
        return product(ct, kernel, pairs, pairs.gather, transposed=True, **form)

    def to_kernel(sums: Array, ct: Array, scale: Array) -> Array:
        form: Any = {"scale": scale[:, 0], "precision": precision}
        return outer(sums, ct, pairs, kernel.shape[0], **form)

    of_sums = by_head(to_sums, heads, ct, kernel, scale)
    away = gather(row_dots(ct, y, heads), pairs.node_segments)
    if bias is not None:
        away -= sddmm(ct, bias, pairs.incidence, **options)
    away *= share
    operands = value, _dots(value, key, query), None, None, stats, None, of_sums, -away, into
    to = gradients(*operands, **options, slope=1.0)
    found = Operands(to.value, None if key is None else to.col, *[None] * 4)
    if moving.query is not None:
        keys = value if key is None else key
        to_query = segment_reduce(keys, to.score, into, reduce="sum", **options)
        found = found._replace(query=to_query)
    if moving.kernel is not None:
        found = found._replace(kernel=by_head(to_kernel, heads, sums, ct, scale))
    if moving.bias is not None:
        to_bias = segment_reduce(ct, share, pairs.incidence.T, reduce="sum", **options)
        found = found._replace(bias=to_bias.astype(bias.dtype))
    if moving.shift is not None:
        found = found._replace(shift=row_dots(of_sums, sums, heads) - away)
    return found


# The tangent of the result.
pair_attention_jvp = Linear(
    name="pair_attention_jvp",
    result=lambda known, moving, **_: [jax.ShapeDtypeStruct(known.y.shape, known.y.dtype)],
    function=_tangent,
    transpose=_transpose,
)


def pair_attention(
    *operands: Any,
    heads: int,
    precision: Any,
    scale: Array | None = None,
    implementation: str | None = None,
) -> Array:
    """The sums of ``Operands`` operands, in their order.

    With factors of edges after the softmax, ``(edges, heads)``, derivatives are those of the steps.
    """
    chosen = implementation or ffi.chosen_implementation.value
    attributes: Any = {"heads": heads, "precision": precision}
    if scale is not None:
        with ffi.chosen_implementation(chosen):
            return _steps(Operands(*operands), **attributes, scale=scale)[0]

    @jax.custom_jvp
    def attend(*operands: Any) -> Array:
        with ffi.chosen_implementation(chosen):
            return _steps(Operands(*operands), **attributes)[0]

    def attend_jvp(operands: Any, tangents: Any) -> tuple[Array, Array]:
        with ffi.chosen_implementation(chosen):
            found = _steps(Operands(*operands), **attributes)
        known = Residuals(Operands(*operands), *found)
        moving = Operands(*map(_known_tangent, tangents[:-1]))
        (tangent,) = pair_attention_jvp(known, moving, **attributes, implementation=chosen)
        return known.y, tangent

    attend.defjvp(attend_jvp, symbolic_zeros=True)
    return attend(*operands)


def _known_tangent(tangent: Any) -> Array | None:
    return None if isinstance(tangent, SymbolicZero | None) else tangent
