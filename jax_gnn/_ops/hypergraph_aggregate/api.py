"""Hypergraph aggregation: node features to hyperedges and back to nodes, and each of the stages.

Sums and means without weights of incidences are one call of the primitive. All else is two segment
reductions over the bipartite graph, since a maximum must know all nodes of a hyperedge before any
node can hear of it (HyperGef's hyperedge partition).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.activation import Activation, apply_activation
from jax_gnn._core.arguments import (
    check_bias,
    check_choice,
    check_container,
    check_features,
    check_residual,
    check_row_scale,
    check_scale_column,
    check_weight,
)
from jax_gnn._core.arrays import accumulator_dtype, as_matrix
from jax_gnn._core.csr import SparseMatrix, permutation, segments
from jax_gnn._core.ffi import Implementation
from jax_gnn._core.public import one_call, public
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.hypergraph_aggregate.primitive import aggregate
from jax_gnn._ops.hypergraph_aggregate.xla import ones
from jax_gnn._ops.segment_reduce.primitive import reduce_messages, total
from jax_gnn._ops.segment_reduce.xla import epilogue
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

Normalization = Literal["symmetric", "row"]
"""The degrees that `hypergraph_norm` divides by: of both sides, or of the result's."""
Reduce = Literal["sum", "mean", "max", "min"]
"""What the nodes of a hyperedge, or the hyperedges of a node, are reduced by."""
Side = Literal["node", "hyperedge"]
"""Which end of an incidence."""


@public
@one_call("activation", "normalization", "hyperedge_reduce", "node_reduce", "implementation")
def hypergraph_aggregate(
    hypergraph: Hypergraph,
    x: Array,
    hyperedge_weight: Array | None = None,
    *,
    incidence_weight: Array | None = None,
    head_weight: Array | None = None,
    node_scale_in: Array | None = None,
    node_scale_out: Array | None = None,
    hyperedge_scale: Array | None = None,
    own_scale: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
    normalization: Normalization | None = None,
    hyperedge_reduce: Reduce = "sum",
    node_reduce: Reduce = "sum",
    implementation: Implementation | None = None,
) -> Array:
    """Reduces node features over hyperedges, and the hyperedges' features over nodes.

    Computes ``Y = Dv_out H (W De) Hᵀ Dv_in X`` (HyperGef, equation 5 and listing 3) with the
    incidence matrix H and the diagonal matrices of ``node_scale_out``, ``hyperedge_weight``,
    ``hyperedge_scale`` and ``node_scale_in``; of a directed hypergraph, the first H is that of the
    heads and the second that of the tails. What layers do next may be asked for in the same call:
    ``activation(Y + own_scale · X + residual + bias)``. All factors are optional and multiply with
    those of the other options. As sums or means linear in ``x`` and in each given factor, but for
    what comes next; exact derivatives of any order to all of these. Sums and means without weights
    of incidences are one fused call, which holds one ``num_hyperedges × features`` intermediate.

    Args:
        hypergraph: the hypergraph.
        x: ``(num_nodes, *features)`` node features: float16, bfloat16, float32 or float64.
        hyperedge_weight: ``(num_hyperedges,)`` W, the hyperedges' weights.
        incidence_weight: ``(num_incidences,)`` the entries of H, in the hypergraph's order
            (:meth:`Hypergraph.incidence_values`), or ``(num_incidences, heads)`` with x
            ``(num_nodes, heads, *features)``; ones by default. Of a directed hypergraph, those of
            the tails.
        head_weight: the entries of the first H, where they are others than those of the second; of
            a directed hypergraph ``(num_head_incidences,)``, in the order of ``hypergraph.head``.
            By default ``incidence_weight``, or ones if the hypergraph is directed.
        node_scale_in: ``(num_nodes,)`` Dv_in, multiplies the features before the first reduction.
        node_scale_out: ``(num_nodes,)`` Dv_out, multiplies the result.
        hyperedge_scale: ``(num_hyperedges,)`` De, multiplies the hyperedges' features.
        own_scale: ``()`` or ``(num_nodes,)``, what ``x`` is multiplied by and then added to the
            result, whatever the reductions, the normalization and ``node_scale_out``: GIN's
            ``1 + eps``. Nothing is added by default.
        residual: ``(num_nodes, *features)``, added likewise; converted to the dtype of ``x``.
        bias: ``(*features)``, added to all rows.
        activation: applied to the result: ``"relu"``, ``"silu"``, ``"gelu"`` (the approximation by
            tanh) or ``"tanh"``. Only the first is part of the kernel.
        normalization: ``"symmetric"`` for HGNN's ``Dv^-1/2 H W De^-1 Hᵀ Dv^-1/2`` (Feng et al.
            2019, arXiv 1809.09401, equation 10), ``"row"`` for ``Dv^-1 H W De^-1 Hᵀ`` (Bai et al.
            2021; HGNN+). De are the column sums of H, the sizes of the hyperedges; Dv are the row
            sums of H W. Where a degree is not positive its inverse counts as 0. As the degrees
            depend on the weights, so do their gradients. Of a directed hypergraph, each side has
            the degrees of its own H, and De are those of the tails.
        hyperedge_reduce: how a hyperedge's nodes are reduced; ``"mean"`` divides the sum by their
            number. What ties for a maximum or minimum shares its gradient equally.
        node_reduce: how a node's hyperedges are reduced, likewise.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_nodes, *features)`` in the dtype of ``x``; half types accumulate in float32. Isolated
        nodes get zeros before what is added; a maximum or minimum over nothing is 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or options exclude each other.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> x = jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> hypergraph_aggregate(hypergraph, x)
        Array([ 6.,  6., 13.,  7.], dtype=float32)
        >>> hypergraph_aggregate(hypergraph, x, hyperedge_reduce="mean", node_reduce="mean")
        Array([2.  , 2.  , 2.75, 3.5 ], dtype=float32)
        >>> hypergraph_aggregate(hypergraph, x, own_scale=1, bias=-9, activation="relu")
        Array([0., 0., 7., 2.], dtype=float32)
    """
    hypergraph = check_container("hypergraph", hypergraph, Hypergraph)
    x = check_features("x", x, "num_nodes", hypergraph.num_nodes)
    acc = accumulator_dtype(x.dtype)
    nodes, hyperedges = (
        ("num_nodes", hypergraph.num_nodes),
        ("num_hyperedges", hypergraph.num_hyperedges),
    )
    weight = check_scale_column("hyperedge_weight", hyperedge_weight, *hyperedges, acc)
    scale_in = [check_scale_column("node_scale_in", node_scale_in, *nodes, acc)]
    scale_out = [check_scale_column("node_scale_out", node_scale_out, *nodes, acc)]
    scale_edge = [weight, check_scale_column("hyperedge_scale", hyperedge_scale, *hyperedges, acc)]
    own = check_row_scale("own_scale", own_scale, *nodes, acc)
    residual, bias = check_residual(residual, *nodes, x), check_bias(bias, x)
    check_choice("activation", activation, (None, *get_args(Activation)))
    check_choice("hyperedge_reduce", hyperedge_reduce, get_args(Reduce))
    check_choice("node_reduce", node_reduce, get_args(Reduce))
    check_choice("normalization", normalization, (None, *get_args(Normalization)))
    if normalization is not None and (hyperedge_reduce, node_reduce) != ("sum", "sum"):
        raise ValueError(
            f"normalization={normalization!r} divides by the degrees already: "
            "hyperedge_reduce and node_reduce must be 'sum' with it, got "
            f"{hyperedge_reduce!r} and {node_reduce!r}"
        )
    into, back = _both(hypergraph, incidence_weight, head_weight, x)
    if normalization is not None:
        norm = _norm(into, back, weight, normalization, acc, implementation)
        for scale, factor in zip((scale_in, scale_edge, scale_out), norm, strict=True):
            scale.append(factor)
    if hyperedge_reduce == "mean":
        scale_edge.append(power(into.counts.astype(acc)[:, None], -1.0))
    if node_reduce == "mean":
        scale_out.append(power(back.counts.astype(acc)[:, None], -1.0))
    reduces = ["sum" if reduce == "mean" else reduce for reduce in (hyperedge_reduce, node_reduce)]
    # Whose scales matter: nodes that send, hyperedges that receive and send, nodes that receive.
    ends = (into.swapped,), (into, back.swapped), (back,)
    given = (scale_in, scale_edge, scale_out)
    scales = [_product(each, *users) for each, users in zip(given, ends, strict=True)]
    residual = None if residual is None else as_matrix(residual)
    bias = None if bias is None else bias.ravel()
    relu = activation == "relu"
    is_weighted = any(end.messages(acc).weight is not None for end in (into, back))
    if reduces == ["sum", "sum"] and not is_weighted:
        is_linear = residual is None and bias is None and not relu
        y = aggregate(
            as_matrix(x),
            *(ones(acc) if each is None else each.ravel() for each in scales),
            own,
            hypergraph.graph.matrix(slots=True),
            hypergraph.receiving.matrix(slots=True).T,
            residual,
            bias,
            **({} if is_linear else {"relu": relu}),
            implementation=implementation,
        )
        return reshape(apply_activation(y, activation), *x.shape)
    h = as_matrix(x)
    goes_on = own is not None or residual is not None or bias is not None
    rounds = goes_on or is_weighted or reduces[0] == "sum"
    if rounds or any(s is not None for s in scales):
        h = h.astype(acc)  # else rounded between the stages; a bare maximum is exact in any type
    h = into.reduce(_times(h, scales[0], *ends[0]), reduces[0], implementation)
    y = back.reduce(_times(h, scales[1], *ends[1]), reduces[1], implementation)
    y = _times(y, scales[2], *ends[2])
    y = epilogue(y, as_matrix(x), own, None, residual, bias, relu=relu).astype(x.dtype)
    return reshape(apply_activation(y, activation), *x.shape)


@public
class HypergraphNorm(NamedTuple):
    """What a normalization multiplies by, see :func:`hypergraph_norm`.

    Attributes:
        node_in: ``(num_nodes,)``, what nodes send is multiplied by; None for ones.
        hyperedge: ``(num_hyperedges,)``, the hyperedges' weights among the factors.
        node_out: ``(num_nodes,)``, what nodes receive is multiplied by.
    """

    node_in: Any
    hyperedge: Any
    node_out: Any

    @property
    def scales(self) -> dict[str, Any]:
        """As the arguments of :func:`hypergraph_aggregate` that they are, by name."""
        return {
            "node_scale_in": self.node_in,
            "hyperedge_scale": self.hyperedge,
            "node_scale_out": self.node_out,
        }


@public
def hypergraph_norm(
    hypergraph: Hypergraph,
    hyperedge_weight: Array | None = None,
    *,
    incidence_weight: Array | None = None,
    head_weight: Array | None = None,
    normalization: Normalization = "symmetric",
    implementation: Implementation | None = None,
) -> HypergraphNorm:
    """The factors of a ``normalization`` of :func:`hypergraph_aggregate`.

    For a hypergraph that does not change they can be computed once:
    ``hypergraph_aggregate(hypergraph, x, **norm.scales)`` equals a call with the ``normalization``
    and ``hyperedge_weight``.

    Args:
        hypergraph: the hypergraph.
        hyperedge_weight: ``(num_hyperedges,)`` the hyperedges' weights; ones by default.
        incidence_weight: ``(num_incidences,)`` the entries of H, as there, of a single head.
        head_weight: likewise.
        normalization: ``"symmetric"`` or ``"row"``.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        Factors in float32, or in float64 where 64 bits are on.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or there is no such normalization.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> norm = hypergraph_norm(hypergraph, normalization="row")
        >>> norm.node_out
        Array([1. , 1. , 0.5, 1. ], dtype=float32)
        >>> hypergraph_aggregate(hypergraph, jnp.array([1.0, 2.0, 3.0, 4.0]), **norm.scales)
        Array([2.  , 2.  , 2.75, 3.5 ], dtype=float32)
    """
    hypergraph = check_container("hypergraph", hypergraph, Hypergraph)
    check_choice("normalization", normalization, get_args(Normalization))
    acc = jax.dtypes.canonicalize_dtype(float)
    x = jax.ShapeDtypeStruct((hypergraph.num_nodes, 1), acc)  # as if for such features
    weight = check_scale_column(
        "hyperedge_weight", hyperedge_weight, "num_hyperedges", hypergraph.num_hyperedges, acc
    )
    into, back = _both(hypergraph, incidence_weight, head_weight, x)
    norm = _norm(into, back, weight, normalization, acc, implementation)
    hyperedge = _product([weight, norm.hyperedge], into, back.swapped)
    return HypergraphNorm(
        *(None if f is None else f.ravel() for f in (norm.node_in, hyperedge, norm.node_out))
    )


@public
def node_to_hyperedge(
    hypergraph: Hypergraph,
    x: Array,
    incidence_weight: Array | None = None,
    *,
    reduce: Reduce = "sum",
    implementation: Implementation | None = None,
) -> Array:
    """Reduces over each hyperedge the weighted features of its nodes: the first stage alone.

    ``out[e] = reduce over the nodes v of e of incidence_weight[v, e] · x[v]``. No array of messages
    is formed; derivatives of any order, to ``x`` and ``incidence_weight``.

    Args:
        hypergraph: the hypergraph; of a directed one, the nodes of the tails send.
        x: ``(num_nodes, *features)`` node features: float16, bfloat16, float32 or float64.
        incidence_weight: ``(num_incidences,)`` in the hypergraph's order
            (:meth:`Hypergraph.incidence_values`), or ``(num_incidences, heads)`` with x
            ``(num_nodes, heads, *features)``.
        reduce: ``"sum"``, ``"mean"`` over the number of nodes, ``"max"`` or ``"min"``. What ties
            for a maximum or minimum shares its gradient equally.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_hyperedges, *features)`` in the dtype of ``x``, 0 for hyperedges without nodes; half
        types accumulate in float32.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``reduce`` is none of these.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> node_to_hyperedge(hypergraph, jnp.array([1.0, 2.0, 3.0, 4.0]))
        Array([6., 7.], dtype=float32)
    """
    hypergraph = check_container("hypergraph", hypergraph, Hypergraph)
    x = check_features("x", x, "num_nodes", hypergraph.num_nodes)
    weight = _check_weight("incidence_weight", incidence_weight, hypergraph, x)
    check_choice("reduce", reduce, get_args(Reduce))
    return _Incidences(hypergraph.graph, weight).reduce(x, reduce, implementation)


@public
def hyperedge_to_node(
    hypergraph: Hypergraph,
    h: Array,
    incidence_weight: Array | None = None,
    *,
    reduce: Reduce = "sum",
    implementation: Implementation | None = None,
) -> Array:
    """Reduces at each node the weighted features of its hyperedges: the second stage alone.

    ``out[v] = reduce over the hyperedges e of v of incidence_weight[v, e] · h[e]``. No array of
    messages is formed; derivatives of any order, to ``h`` and ``incidence_weight``.

    Args:
        hypergraph: the hypergraph; of a directed one, the nodes of the heads receive.
        h: ``(num_hyperedges, *features)`` hyperedge features: float16, bfloat16, float32 or
            float64.
        incidence_weight: ``(num_incidences,)`` in the hypergraph's order
            (:meth:`Hypergraph.incidence_values`), or ``(num_incidences, heads)`` with h
            ``(num_hyperedges, heads, *features)``; of a directed hypergraph, of the incidences of
            the heads and in the order of ``hypergraph.head``.
        reduce: ``"sum"``, ``"mean"`` over the number of hyperedges, ``"max"`` or ``"min"``. What
            ties for a maximum or minimum shares its gradient equally.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_nodes, *features)`` in the dtype of ``h``, 0 for nodes without hyperedges; half types
        accumulate in float32.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``reduce`` is none of these.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> hyperedge_to_node(hypergraph, jnp.array([10.0, 1.0]), reduce="max")
        Array([10., 10., 10.,  1.], dtype=float32)
    """
    hypergraph = check_container("hypergraph", hypergraph, Hypergraph)
    h = check_features("h", h, "num_hyperedges", hypergraph.num_hyperedges)
    name = "incidence_weight"
    weight = _check_head_weight(name, incidence_weight, hypergraph, h, "h", "num_hyperedges")
    check_choice("reduce", reduce, get_args(Reduce))
    back = _Incidences(hypergraph.receiving, weight, to_nodes=True)
    return back.reduce(h, reduce, implementation)


@public
def incidence_softmax(
    hypergraph: Hypergraph,
    scores: Array,
    by: Side,
    *,
    implementation: Implementation | None = None,
) -> Array:
    """The softmax of scores of incidences, over those of each node or of each hyperedge.

    Makes attention scores to weights of :func:`node_to_hyperedge` (``by="hyperedge"``) or of
    :func:`hyperedge_to_node` (``by="node"``).

    Args:
        hypergraph: the hypergraph.
        scores: ``(num_incidences, *heads)`` in the hypergraph's order: float16, bfloat16, float32
            or float64; of a directed hypergraph and ``by="node"``, of the incidences of the heads
            and in the order of ``hypergraph.head``.
        by: ``"node"`` or ``"hyperedge"``, what receives.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        The shape and dtype of ``scores``; 0 for padding.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``by`` is none of these.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1], [1, 2]])
        >>> scores = hypergraph.incidence_values([0.0, 0.0, 1.0, 1.0])
        >>> incidence_softmax(hypergraph, scores, by="hyperedge")
        Array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    hypergraph = check_container("hypergraph", hypergraph, Hypergraph)
    check_choice("by", by, get_args(Side))
    graph = hypergraph.graph if by == "hyperedge" else hypergraph.receiving
    size_name = "num_incidences" if graph is hypergraph.graph else "num_head_incidences"
    scores = check_features("scores", scores, size_name, graph.num_edges)
    ids, size, y = graph.rows, graph.num_dst, as_matrix(scores)
    if by == "node":
        ids, size = graph.t_rows, graph.num_src
        sort = permutation(graph.t_order, graph.transpose().t_order)
        y = total(y, sort, implementation)
    y = segment_softmax(y, segments(ids, size), implementation=implementation)
    if by == "node":
        y = total(y, sort.T, implementation)
    return reshape(y, *scores.shape)


# --- Stages --------------------------------------------------------------------------------------


class _Incidences(NamedTuple):
    """Incidences of one stage, sorted by who receives: hyperedges, or nodes.

    Attributes:
        graph: from nodes to hyperedges.
        weight: ``(num_incidences, heads)``, or None.
        to_nodes: whether nodes receive.
    """

    graph: Graph
    weight: Array | None
    to_nodes: bool = False

    @property
    def swapped(self) -> _Incidences:
        return self._replace(to_nodes=not self.to_nodes)

    @property
    def matrix(self) -> SparseMatrix:
        matrix = self.graph._plain.matrix(weighted=self.weight is not None)
        return matrix.T if self.to_nodes else matrix

    @property
    def counts(self) -> Array:
        """How many incidences each of those who receive has."""
        return self.graph.out_degrees() if self.to_nodes else self.graph.in_degrees()

    def messages(self, acc: Any) -> _Incidences:
        """With the factors that messages have, which degrees do not have."""
        graph, weight = self.graph._gated(self.weight, acc)
        return self._replace(graph=graph, weight=weight)

    def reduce(self, x: Array, reduce: str, implementation: str | None) -> Array:
        gated = self.messages(accumulator_dtype(x.dtype))
        y = reduce_messages(x, gated.weight, gated.matrix, reduce, implementation)
        if reduce in ("max", "min"):
            y = jnp.where(_unused(self).reshape(-1, *[1] * (y.ndim - 1)), 0, y)
        return y

    def degrees(self, values: Array | None, acc: Any, implementation: str | None) -> Array:
        """``(num_rows, heads)`` sums of weights, times values of those who send if given."""
        if self.weight is None and values is None:
            return self.counts.astype(acc)[:, None]
        if values is None:
            values = jnp.ones((self.matrix.by_col.num_rows, 1), acc)
        if self.weight is not None:
            values = jnp.broadcast_to(values, (values.shape[0], self.weight.shape[1]))
        return reduce_messages(values, self.weight, self.matrix, "sum", implementation)


def _both(
    hypergraph: Hypergraph, incidence_weight: Any, head_weight: Any, x: Any
) -> tuple[_Incidences, _Incidences]:
    """The incidences of both stages, with weights that fit the features."""
    into_weight = _check_weight("incidence_weight", incidence_weight, hypergraph, x)
    back_weight = _check_head_weight("head_weight", head_weight, hypergraph, x, "x", "num_nodes")
    if head_weight is None and hypergraph.head is None:
        back_weight = into_weight
    return (
        _Incidences(hypergraph.graph, into_weight),
        _Incidences(hypergraph.receiving, back_weight, to_nodes=True),
    )


def _norm(
    into: _Incidences,
    back: _Incidences,
    weight: Array | None,
    normalization: Normalization,
    acc: Any,
    implementation: str | None,
) -> HypergraphNorm:
    """The factors but for the hyperedges' weights, ``(rows, heads)``."""
    received = back.degrees(weight, acc, implementation)
    hyperedge = power(into.degrees(None, acc, implementation), -1.0)
    if normalization == "row":
        return HypergraphNorm(None, hyperedge, power(received, -1.0))
    sent = received  # where both H are one
    if into.graph is not back.graph or back.weight is not into.weight:
        sent = into.swapped.degrees(weight, acc, implementation)
    return HypergraphNorm(power(sent, -0.5), hyperedge, power(received, -0.5))


def _unused(*ends: _Incidences) -> Array:
    """``(num_rows,)``, which rows have nothing at one end."""
    return functools.reduce(operator.or_, [end.counts == 0 for end in ends])


def _product(scales: Sequence[Array | None], *ends: _Incidences) -> Array | None:
    given = [scale for scale in scales if scale is not None]
    if len(given) > 1:  # what an unused row's factor is must not reach the gradients to the others
        given = [jnp.where(_unused(*ends)[:, None], 0, scale) for scale in given]
    return functools.reduce(operator.mul, given) if given else None


def _times(x: Array, scale: Array | None, *ends: _Incidences) -> Array:
    """``(rows, heads · features)`` times ``(rows, heads)``; 0 in unused rows, whatever is there."""
    if scale is None:
        return x
    (rows, width), heads = x.shape, scale.shape[1]
    x, scale = (jnp.where(_unused(*ends)[:, None], 0, each) for each in (x, scale))
    return reshape(reshape(x, rows, heads, width // heads) * scale[:, :, None], rows, width)


def power(degrees: Array, exponent: float) -> Array:
    """``degrees ** exponent``, 0 where a degree is 0, with gradients that stay finite there."""
    positive = degrees > 0
    return jnp.where(positive, jnp.where(positive, degrees, 1) ** exponent, 0)


# --- Arguments -----------------------------------------------------------------------------------


def _check_weight(name: str, weight: Any, hypergraph: Hypergraph, x: Any) -> Array | None:
    """Weights of incidences from nodes."""
    size = hypergraph.num_incidences
    return check_weight(name, weight, "num_incidences", size, x, "x", "num_nodes")


def _check_head_weight(
    name: str, weight: Any, hypergraph: Hypergraph, x: Any, x_name: str, rows_name: str
) -> Array | None:
    """Weights of incidences along which nodes receive."""
    size_name = "num_incidences" if hypergraph.head is None else "num_head_incidences"
    size = hypergraph.receiving.num_edges
    return check_weight(name, weight, size_name, size, x, x_name, rows_name)
