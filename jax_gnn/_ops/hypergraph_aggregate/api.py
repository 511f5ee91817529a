"""Hypergraph aggregation: node features to hyperedges and back to nodes, and each stage alone.

A *stage* is one reduction over incidences, the (node, hyperedge) pairs of a hypergraph. Sums and
means without weights of incidences are one call of the primitive, which runs both stages. All other
cases are two segment reductions over the bipartite graph, since a maximum must know all nodes of a
hyperedge before any node can read it (HyperGef's hyperedge partition).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.activation import Activation, apply_activation
from jax_gnn._core.arrays import accumulator_dtype, as_matrix, row_wise
from jax_gnn._core.csr import SparseMatrix, permutation, segments
from jax_gnn._core.public import Implementation, one_call, public
from jax_gnn._core.shapes import Float, Real
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.hypergraph_aggregate.primitive import aggregate
from jax_gnn._ops.hypergraph_aggregate.xla import ones
from jax_gnn._ops.segment_reduce.primitive import reduce_messages, total
from jax_gnn._ops.segment_reduce.xla import epilogue
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph

Normalization = Literal["symmetric", "row"]
"""Degrees that `hypergraph_norm` divides by: those of both sides, or of the result's side."""
Reduce = Literal["sum", "mean", "max", "min"]
"""Reduction over the nodes of a hyperedge, or over the hyperedges of a node."""
Side = Literal["node", "hyperedge"]
"""Endpoint of an incidence."""


@public
@one_call("activation", "normalization", "hyperedge_reduce", "node_reduce")
def hypergraph_aggregate(
    hypergraph: Hypergraph,
    x: Float[Array, "num_nodes *features"],
    hyperedge_weight: Real[Array, "num_hyperedges"] | None = None,
    *,
    incidence_weight: Real[Array, "num_incidences"]
    | Real[Array, "num_incidences heads"]
    | None = None,
    head_weight: Real[Array, "num_head_incidences"]
    | Real[Array, "num_head_incidences heads"]
    | None = None,
    node_scale_in: Real[Array, "num_nodes"] | None = None,
    node_scale_out: Real[Array, "num_nodes"] | None = None,
    hyperedge_scale: Real[Array, "num_hyperedges"] | None = None,
    self_scale: Real[ArrayLike, ""] | Real[ArrayLike, "num_nodes"] | None = None,
    residual: Float[ArrayLike, "num_nodes *features"] | None = None,
    bias: Real[ArrayLike, "*features"] | None = None,
    activation: Activation | None = None,
    normalization: Normalization | None = None,
    hyperedge_reduce: Reduce = "sum",
    node_reduce: Reduce = "sum",
    implementation: Implementation | None = None,
) -> Float[Array, "num_nodes *features"]:
    """Reduce node features over hyperedges, and the hyperedges' features over nodes.

    Computes ``Y = Dv_out H (W De) Hᵀ Dv_in X`` (HyperGef, equation 5 and listing 3) with the
    incidence matrix H and the diagonal matrices of ``node_scale_out``, ``hyperedge_weight``,
    ``hyperedge_scale`` and ``node_scale_in``; of a directed hypergraph, the first H is that of the
    heads and the second that of the tails. The epilogue of a layer runs in the same call:
    ``activation(Y + self_scale · X + residual + bias)``. All factors are optional, and multiply. As
    sums or means the stages are linear in ``x`` and in each factor; derivatives of any order are
    exact. Sums and means without weights of incidences are one fused call, which holds one
    ``num_hyperedges × features`` intermediate.

    Args:
        hypergraph: the hypergraph.
        x: ``(num_nodes, *features)`` node features: float16, bfloat16, float32 or float64.
        hyperedge_weight: ``(num_hyperedges,)`` W, the hyperedges' weights.
        incidence_weight: ``(num_incidences,)`` the entries of H, in the hypergraph's order
            (:meth:`Hypergraph.incidence_values`), or ``(num_incidences, heads)`` with x
            ``(num_nodes, heads, *features)``; ones by default. Of a directed hypergraph, those of
            the tails.
        head_weight: the entries of the first H where they differ from those of the second; of a
            directed hypergraph ``(num_head_incidences,)``, in the order of ``hypergraph.head``. By
            default ``incidence_weight``, or ones if the hypergraph is directed.
        node_scale_in: ``(num_nodes,)`` Dv_in, multiplies the features before the first reduction.
        node_scale_out: ``(num_nodes,)`` Dv_out, multiplies the result.
        hyperedge_scale: ``(num_hyperedges,)`` De, multiplies the hyperedges' features.
        self_scale: ``()`` or ``(num_nodes,)``, factor of ``x`` in the term that is added to the
            result after reductions, normalization and ``node_scale_out``: GIN's ``1 + eps``.
            Nothing is added by default.
        residual: ``(num_nodes, *features)``, added to the result; converted to the dtype of ``x``.
        bias: ``(*features)``, added to all rows.
        activation: applied to the result: ``"relu"``, ``"silu"``, ``"gelu"`` (the approximation by
            tanh) or ``"tanh"``. Only ``"relu"`` is part of the kernel.
        normalization: ``"symmetric"`` for HGNN's ``Dv^-1/2 H W De^-1 Hᵀ Dv^-1/2`` (Feng et al.
            2019, arXiv 1809.09401, equation 10), ``"row"`` for ``Dv^-1 H W De^-1 Hᵀ`` (Bai et al.
            2021; HGNN+). De are the column sums of H, the sizes of the hyperedges; Dv are the row
            sums of H W. The inverse of a degree that is not positive counts as 0. As the degrees
            depend on the weights, so do their gradients. Of a directed hypergraph, each side has
            the degrees of its own H, and De are those of the tails.
        hyperedge_reduce: reduction over a hyperedge's nodes; ``"mean"`` divides the sum by their
            number. Values that tie for a maximum or minimum share its gradient equally.
        node_reduce: reduction over a node's hyperedges, with the same options.
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
        >>> hypergraph_aggregate(hypergraph, x, self_scale=1, bias=-9, activation="relu")
        Array([0., 0., 7., 2.], dtype=float32)
    """
    hypergraph = arguments.check_container("hypergraph", hypergraph, Hypergraph)
    num_nodes, num_hyperedges = hypergraph.num_nodes, hypergraph.num_hyperedges
    x = arguments.check_features("x", x, "num_nodes", num_nodes)
    residual = arguments.check_residual(residual, "num_nodes", num_nodes, x)
    bias = arguments.check_bias(bias, x)
    acc = accumulator_dtype(x.dtype)
    wide = jax.ShapeDtypeStruct(x.shape, acc)
    by_node, by_hyperedge = ("num_nodes", num_nodes, acc), ("num_hyperedges", num_hyperedges, acc)
    check_scale = arguments.check_scale_column
    weight = check_scale("hyperedge_weight", hyperedge_weight, *by_hyperedge)
    scale_in = check_scale("node_scale_in", node_scale_in, *by_node)
    scale_edge = check_scale("hyperedge_scale", hyperedge_scale, *by_hyperedge)
    scale_out = check_scale("node_scale_out", node_scale_out, *by_node)
    self_scale = arguments.check_row_scale("self_scale", self_scale, *by_node)
    arguments.check_choice("activation", activation, (None, *get_args(Activation)))
    arguments.check_choice("hyperedge_reduce", hyperedge_reduce, get_args(Reduce))
    arguments.check_choice("node_reduce", node_reduce, get_args(Reduce))
    arguments.check_choice("normalization", normalization, (None, *get_args(Normalization)))
    if normalization is not None and not hyperedge_reduce == node_reduce == "sum":
        raise ValueError(
            f"normalization={normalization!r} divides by the degrees already: "
            "hyperedge_reduce and node_reduce must be 'sum' with it, got "
            f"{hyperedge_reduce!r} and {node_reduce!r}"
        )
    to_hyperedges, to_nodes = _parse_stages(hypergraph, incidence_weight, head_weight, wide)
    # All factors fold into one scale for each of senders, hyperedges and receivers.
    factors_in, factors_edge, factors_out = [scale_in], [weight, scale_edge], [scale_out]
    if normalization is not None:
        norm = _norm(to_hyperedges, to_nodes, weight, normalization)
        factors_in.append(norm.node_in)
        factors_edge.append(norm.hyperedge)
        factors_out.append(norm.node_out)
    if hyperedge_reduce == "mean":
        factors_edge.append(power(to_hyperedges.counts.astype(acc)[:, None], -1.0))
    if node_reduce == "mean":
        factors_out.append(power(to_nodes.counts.astype(acc)[:, None], -1.0))
    args = _AggregateArgs(
        x=as_matrix(x),
        shape=x.shape,
        to_hyperedges=to_hyperedges,
        to_nodes=to_nodes,
        reduces=(
            "sum" if hyperedge_reduce == "mean" else hyperedge_reduce,
            "sum" if node_reduce == "mean" else node_reduce,
        ),
        node_scale_in=_product(factors_in, to_hyperedges.reversed),
        hyperedge_scale=_product(factors_edge, to_hyperedges, to_nodes.reversed),
        node_scale_out=_product(factors_out, to_nodes),
        self_scale=self_scale,
        residual=None if residual is None else as_matrix(residual),
        bias=None if bias is None else bias.ravel(),
        activation=activation,
    )
    # The primitive has both stages in one call, of sums without weights.
    in_one_call = args.reduces == ("sum", "sum") and not args.is_weighted
    y = _aggregate_in_one_call(args) if in_one_call else _aggregate_by_stage(args)
    return reshape(apply_activation(y, args.activation), *args.shape)


@public
class HypergraphNorm(NamedTuple):
    """Factors of a normalization, see :func:`hypergraph_norm`.

    Attributes:
        node_in: ``(num_nodes,)`` factors of the features that nodes send; None for ones.
        hyperedge: ``(num_hyperedges,)`` factors of hyperedges, with their weights.
        node_out: ``(num_nodes,)`` factors of the features that nodes receive.
    """

    node_in: Array | None
    hyperedge: Array
    node_out: Array

    @property
    def scales(self) -> dict[str, Array | None]:
        """Factors as keyword arguments of :func:`hypergraph_aggregate`."""
        return {
            "node_scale_in": self.node_in,
            "hyperedge_scale": self.hyperedge,
            "node_scale_out": self.node_out,
        }


@public
def hypergraph_norm(
    hypergraph: Hypergraph,
    hyperedge_weight: Real[Array, "num_hyperedges"] | None = None,
    *,
    incidence_weight: Real[Array, "num_incidences"] | None = None,
    head_weight: Real[Array, "num_head_incidences"] | None = None,
    normalization: Normalization = "symmetric",
    implementation: Implementation | None = None,
) -> HypergraphNorm:
    """Return the factors of a ``normalization`` of :func:`hypergraph_aggregate`.

    For a hypergraph that does not change they can be computed once:
    ``hypergraph_aggregate(hypergraph, x, **norm.scales)`` equals a call with the ``normalization``
    and ``hyperedge_weight``.

    Args:
        hypergraph: the hypergraph.
        hyperedge_weight: ``(num_hyperedges,)`` the hyperedges' weights; ones by default.
        incidence_weight: ``(num_incidences,)`` the entries of H, of a single head.
        head_weight: ``(num_incidences,)`` or ``(num_head_incidences,)`` the entries of the first H,
            by default as in :func:`hypergraph_aggregate`.
        normalization: ``"symmetric"`` or ``"row"``.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        Factors in float32, or in float64 where 64 bits are on.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``normalization`` is unknown.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> norm = hypergraph_norm(hypergraph, normalization="row")
        >>> norm.node_out
        Array([1. , 1. , 0.5, 1. ], dtype=float32)
        >>> hypergraph_aggregate(hypergraph, jnp.array([1.0, 2.0, 3.0, 4.0]), **norm.scales)
        Array([2.  , 2.  , 2.75, 3.5 ], dtype=float32)
    """
    hypergraph = arguments.check_container("hypergraph", hypergraph, Hypergraph)
    arguments.check_choice("normalization", normalization, get_args(Normalization))
    # Degrees do not depend on features: parse weights as for features of a single head.
    acc = jax.dtypes.canonicalize_dtype(float)
    single_head = jax.ShapeDtypeStruct((hypergraph.num_nodes, 1), acc)
    weight = arguments.check_scale_column(
        "hyperedge_weight", hyperedge_weight, "num_hyperedges", hypergraph.num_hyperedges, acc
    )
    to_hyperedges, to_nodes = _parse_stages(hypergraph, incidence_weight, head_weight, single_head)
    norm = _norm(to_hyperedges, to_nodes, weight, normalization)
    hyperedge = _product([weight, norm.hyperedge], to_hyperedges, to_nodes.reversed)
    assert hyperedge is not None
    node_in = None if norm.node_in is None else norm.node_in.ravel()
    return HypergraphNorm(node_in, hyperedge.ravel(), norm.node_out.ravel())


@public
def node_to_hyperedge(
    hypergraph: Hypergraph,
    x: Float[Array, "num_nodes *features"],
    incidence_weight: Real[Array, "num_incidences"]
    | Real[Array, "num_incidences heads"]
    | None = None,
    *,
    reduce: Reduce = "sum",
    implementation: Implementation | None = None,
) -> Float[Array, "num_hyperedges *features"]:
    """Reduce the weighted features of each hyperedge's nodes: the first stage alone.

    ``out[e] = reduce over the nodes v of e of incidence_weight[v, e] · x[v]``. No array of messages
    is formed; derivatives of any order, to ``x`` and ``incidence_weight``.

    Args:
        hypergraph: the hypergraph; of a directed one, the nodes of the tails send.
        x: ``(num_nodes, *features)`` node features: float16, bfloat16, float32 or float64.
        incidence_weight: ``(num_incidences,)`` in the hypergraph's order
            (:meth:`Hypergraph.incidence_values`), or ``(num_incidences, heads)`` with x
            ``(num_nodes, heads, *features)``.
        reduce: ``"sum"``, ``"mean"`` over the number of nodes, ``"max"`` or ``"min"``. Values that
            tie for a maximum or minimum share its gradient equally.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_hyperedges, *features)`` in the dtype of ``x``, 0 for hyperedges without nodes; half
        types accumulate in float32.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``reduce`` is unknown.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> node_to_hyperedge(hypergraph, jnp.array([1.0, 2.0, 3.0, 4.0]))
        Array([6., 7.], dtype=float32)
    """
    hypergraph = arguments.check_container("hypergraph", hypergraph, Hypergraph)
    x = arguments.check_features("x", x, "num_nodes", hypergraph.num_nodes)
    arguments.check_choice("reduce", reduce, get_args(Reduce))
    name, size = "incidence_weight", hypergraph.num_incidences
    weight = arguments.check_weight(
        name, incidence_weight, "num_incidences", size, x, "x", "num_nodes"
    )
    stage = _Stage(hypergraph.graph, weight, accumulator_dtype(x.dtype))
    return stage.reduce(x, reduce)


@public
def hyperedge_to_node(
    hypergraph: Hypergraph,
    h: Float[Array, "num_hyperedges *features"],
    incidence_weight: Real[Array, "num_incidences"]
    | Real[Array, "num_incidences heads"]
    | None = None,
    *,
    reduce: Reduce = "sum",
    implementation: Implementation | None = None,
) -> Float[Array, "num_nodes *features"]:
    """Reduce the weighted features of each node's hyperedges: the second stage alone.

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
        reduce: ``"sum"``, ``"mean"`` over the number of hyperedges, ``"max"`` or ``"min"``. Values
            that tie for a maximum or minimum share its gradient equally.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_nodes, *features)`` in the dtype of ``h``, 0 for nodes without hyperedges; half types
        accumulate in float32.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``reduce`` is unknown.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> hyperedge_to_node(hypergraph, jnp.array([10.0, 1.0]), reduce="max")
        Array([10., 10., 10.,  1.], dtype=float32)
    """
    hypergraph = arguments.check_container("hypergraph", hypergraph, Hypergraph)
    h = arguments.check_features("h", h, "num_hyperedges", hypergraph.num_hyperedges)
    arguments.check_choice("reduce", reduce, get_args(Reduce))
    name, acc = "incidence_weight", accumulator_dtype(h.dtype)
    weight = _check_head_weight(name, incidence_weight, hypergraph, h, "h", "num_hyperedges")
    stage = _Stage(hypergraph.receiving, weight, acc, to_nodes=True)
    return stage.reduce(h, reduce)


@public
def incidence_softmax(
    hypergraph: Hypergraph,
    scores: Float[Array, "num_incidences *heads"],
    by: Side,
    *,
    implementation: Implementation | None = None,
) -> Float[Array, "num_incidences *heads"]:
    """Return the softmax of incidences' scores, over those of each node or of each hyperedge.

    Turns attention scores into weights of :func:`node_to_hyperedge` (``by="hyperedge"``) or of
    :func:`hyperedge_to_node` (``by="node"``).

    Args:
        hypergraph: the hypergraph.
        scores: ``(num_incidences, *heads)`` in the hypergraph's order: float16, bfloat16, float32
            or float64; of a directed hypergraph and ``by="node"``, of the incidences of the heads
            and in the order of ``hypergraph.head``.
        by: ``"node"`` or ``"hyperedge"``, the receiver, over whose incidences weights sum to 1.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        The shape and dtype of ``scores``; 0 for padding.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``by`` is unknown.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1], [1, 2]])
        >>> scores = hypergraph.incidence_values([0.0, 0.0, 1.0, 1.0])
        >>> incidence_softmax(hypergraph, scores, by="hyperedge")
        Array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    hypergraph = arguments.check_container("hypergraph", hypergraph, Hypergraph)
    arguments.check_choice("by", by, get_args(Side))
    graph = hypergraph.graph if by == "hyperedge" else hypergraph.receiving
    size_name = "num_incidences" if graph is hypergraph.graph else "num_head_incidences"
    scores = arguments.check_features("scores", scores, size_name, graph.num_edges)
    # Scores are in the order of edges by hyperedge; the softmax by node sorts them and back.
    ids, size, y = graph.rows, graph.num_dst, as_matrix(scores)
    if by == "node":
        ids, size = graph.t_rows, graph.num_src
        sort = permutation(graph.t_order, graph.transpose().t_order)
        y = total(y, sort)
    y = segment_softmax(y, segments(ids, size))
    if by == "node":
        y = total(y, sort.T)
    return reshape(y, *scores.shape)


# --- Arguments -----------------------------------------------------------------------------------


class _Stage(NamedTuple):
    """One reduction over incidences, which are sorted by receiver: hyperedge or node."""

    graph: Graph  # bipartite graph from nodes to hyperedges
    weight: Array | None  # (num_incidences, heads) in the accumulator type, or None for ones
    acc: DTypeLike  # accumulator type
    to_nodes: bool = False  # whether nodes receive

    @property
    def reversed(self) -> _Stage:
        """Stage with senders and receivers exchanged."""
        return self._replace(to_nodes=not self.to_nodes)

    @property
    def matrix(self) -> SparseMatrix:
        """Matrix with a row for each receiver and a column for each sender."""
        matrix = self.graph._plain.matrix(weighted=self.weight is not None)
        return matrix.T if self.to_nodes else matrix

    @property
    def counts(self) -> Array:
        """Number of incidences of each receiver."""
        return self.graph.out_degrees() if self.to_nodes else self.graph.in_degrees()

    @property
    def gated(self) -> _Stage:
        """Stage whose weights include the graph's gates, which degrees leave out."""
        graph, weight = self.graph._gated(self.weight, self.acc)
        return self._replace(graph=graph, weight=weight)

    def reduce(self, x: Array, reduce: str) -> Array:
        """Reduce the senders' rows ``x`` at each receiver; a maximum over nothing is 0."""
        gated = self.gated
        y = reduce_messages(x, gated.weight, gated.matrix, reduce)
        if reduce in ("max", "min"):
            y = jnp.where(row_wise(_is_unused(self), y), 0, y)
        return y

    def degrees(self, values: Array | None = None) -> Array:
        """Return ``(num_rows, heads)`` sums of weights, times ``values`` of the senders, if any."""
        if self.weight is None and values is None:
            return self.counts.astype(self.acc)[:, None]
        if values is None:
            values = jnp.ones((self.matrix.by_col.num_rows, 1), self.acc)
        if self.weight is not None:
            values = jnp.broadcast_to(values, (values.shape[0], self.weight.shape[1]))
        return reduce_messages(values, self.weight, self.matrix, "sum")


class _AggregateArgs(NamedTuple):
    """Parsed arguments of `hypergraph_aggregate`: scales hold weights, normalization and means."""

    x: Array  # (num_nodes, width) features, their axes joined
    shape: tuple[int, ...]  # shape of the features, and of the result
    to_hyperedges: _Stage  # stage that reduces over each hyperedge's nodes
    to_nodes: _Stage  # stage that reduces over each node's hyperedges
    reduces: tuple[str, str]  # `"sum"`, `"max"` or `"min"` for each stage
    node_scale_in: Array | None  # (num_nodes, 1 or heads) in the accumulator type, or None for ones
    hyperedge_scale: Array | None  # (num_hyperedges, 1 or heads) in the accumulator type, or None
    node_scale_out: Array | None  # (num_nodes, 1 or heads) in the accumulator type, or None
    self_scale: Array | None  # (num_nodes,) or (1,) in the accumulator type, or None
    residual: Array | None  # (num_nodes, width) in the dtype of x, or None
    bias: Array | None  # (width,) in the accumulator type, or None
    activation: Activation | None  # activation of the result, or None

    @property
    def relu(self) -> bool:
        """Whether the kernel's epilogue applies a ReLU."""
        return self.activation == "relu"

    @property
    def is_weighted(self) -> bool:
        """Whether incidences have weights."""
        return any(stage.gated.weight is not None for stage in (self.to_hyperedges, self.to_nodes))


def _parse_stages(
    hypergraph: Hypergraph,
    incidence_weight: ArrayLike | None,
    head_weight: ArrayLike | None,
    x: jax.ShapeDtypeStruct,
) -> tuple[_Stage, _Stage]:
    """Return the stages to hyperedges and to nodes, with weights that fit features like ``x``."""
    name, size = "incidence_weight", hypergraph.num_incidences
    tail_weight = arguments.check_weight(
        name, incidence_weight, "num_incidences", size, x, "x", "num_nodes"
    )
    if head_weight is None and hypergraph.head is None:
        weight = tail_weight
    else:
        weight = _check_head_weight("head_weight", head_weight, hypergraph, x, "x", "num_nodes")
    return (
        _Stage(hypergraph.graph, tail_weight, x.dtype),
        _Stage(hypergraph.receiving, weight, x.dtype, to_nodes=True),
    )


def _check_head_weight(
    name: str,
    weight: ArrayLike | None,
    hypergraph: Hypergraph,
    x: Array | jax.ShapeDtypeStruct,
    x_name: str,
    rows_name: str,
) -> Array | None:
    """Check weights of the incidences along which nodes receive."""
    size_name = "num_incidences" if hypergraph.head is None else "num_head_incidences"
    size = hypergraph.receiving.num_edges
    return arguments.check_weight(name, weight, size_name, size, x, x_name, rows_name)


# --- Scales --------------------------------------------------------------------------------------


def _norm(
    to_hyperedges: _Stage, to_nodes: _Stage, weight: Array | None, normalization: Normalization
) -> HypergraphNorm:
    """Return ``(rows, heads)`` factors of a normalization, without the hyperedges' weights."""
    degrees_in = to_nodes.degrees(weight)
    hyperedge = power(to_hyperedges.degrees(), -1.0)
    if normalization == "row":
        return HypergraphNorm(None, hyperedge, power(degrees_in, -1.0))
    degrees_out = degrees_in  # of one incidence matrix for both stages
    if to_hyperedges.graph is not to_nodes.graph or to_nodes.weight is not to_hyperedges.weight:
        degrees_out = to_hyperedges.reversed.degrees(weight)
    return HypergraphNorm(power(degrees_out, -0.5), hyperedge, power(degrees_in, -0.5))


def _is_unused(*stages: _Stage) -> Array:
    """Return ``(num_rows,)``: whether a receiver has no incidence in one of the stages."""
    return functools.reduce(operator.or_, [stage.counts == 0 for stage in stages])


def _product(scales: Sequence[Array | None], *stages: _Stage) -> Array | None:
    """Return the product of the scales that are not None, for the receivers of ``stages``."""
    factors = [scale for scale in scales if scale is not None]
    # An unused row's factor may be infinite. It must not reach the gradients of the other factors.
    if len(factors) > 1:
        factors = [jnp.where(_is_unused(*stages)[:, None], 0, factor) for factor in factors]
    return functools.reduce(operator.mul, factors) if factors else None


def _scale_rows(x: Array, scale: Array | None, *stages: _Stage) -> Array:
    """Return ``(rows, heads · features)`` times ``(rows, heads)``; 0 in unused rows."""
    if scale is None:
        return x
    (rows, width), heads = x.shape, scale.shape[1]
    x, scale = (jnp.where(_is_unused(*stages)[:, None], 0, array) for array in (x, scale))
    return reshape(reshape(x, rows, heads, width // heads) * scale[:, :, None], rows, width)


def power(degrees: Array, exponent: float) -> Array:
    """Return ``degrees ** exponent``, 0 where a degree is 0, with gradients that stay finite."""
    positive = degrees > 0
    return jnp.where(positive, jnp.where(positive, degrees, 1) ** exponent, 0)


# --- Aggregation ---------------------------------------------------------------------------------


def _aggregate_in_one_call(args: _AggregateArgs) -> Array:
    """Apply the primitive, whose epilogue has all but activations other than the ReLU."""
    scales = args.node_scale_in, args.hyperedge_scale, args.node_scale_out
    node_scale_in, hyperedge_scale, node_scale_out = (
        ones(args.to_hyperedges.acc) if scale is None else scale.ravel() for scale in scales
    )
    result: Array = aggregate(
        args.x,
        node_scale_in,
        hyperedge_scale,
        node_scale_out,
        args.self_scale,
        args.to_hyperedges.graph.matrix(slots=True),
        args.to_nodes.graph.matrix(slots=True).T,
        args.residual,
        args.bias,
        relu=args.relu,
    )
    return result


def _aggregate_by_stage(args: _AggregateArgs) -> Array:
    """Reduce stage by stage, in the accumulator type unless nothing is ever rounded."""
    to_hyperedges, to_nodes, dtype = args.to_hyperedges, args.to_nodes, args.x.dtype
    scales = args.node_scale_in, args.hyperedge_scale, args.node_scale_out
    h = args.x
    # A bare maximum is exact in any type; all other results would be rounded between the stages.
    terms = args.self_scale, args.residual, args.bias
    has_terms = any(term is not None for term in terms)
    is_exact = args.reduces[0] != "sum" and not (has_terms or args.is_weighted)
    if not is_exact or any(scale is not None for scale in scales):
        h = h.astype(to_hyperedges.acc)
    h = to_hyperedges.reduce(_scale_rows(h, scales[0], to_hyperedges.reversed), args.reduces[0])
    h = _scale_rows(h, scales[1], to_hyperedges, to_nodes.reversed)
    y = _scale_rows(to_nodes.reduce(h, args.reduces[1]), scales[2], to_nodes)
    y = epilogue(y, args.x, args.self_scale, None, args.residual, args.bias, relu=args.relu)
    return y.astype(dtype)
