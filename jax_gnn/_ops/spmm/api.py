"""Sparse times dense over a graph: messages gathered, weighted and reduced in one kernel; SDDMM.

``spmm`` and ``sddmm`` take a :class:`jax_gnn.Graph`, which holds its edges in both directions;
``index_segment_reduce`` takes bare ids, sorted by segment, as GeoT does (section III-B).
"""

from __future__ import annotations

from typing import Literal, get_args

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.activation import Activation, apply_activation
from jax_gnn._core.arrays import accumulator_dtype, as_matrix, promoted, row_wise
from jax_gnn._core.csr import Csr, LastRows, SparseMatrix
from jax_gnn._core.ids import take_ids
from jax_gnn._core.public import Implementation, one_call, public, selects_implementation
from jax_gnn._core.shapes import Float, Integer, Real
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.segment_order.primitive import sorted_ids
from jax_gnn._ops.segment_reduce import primitive
from jax_gnn._ops.segment_reduce.primitive import Messages, gather, reduce_messages, reduce_rows
from jax_gnn.graph import Graph

Reduce = Literal["sum", "mean", "max", "min"]
Op = Literal["dot", "add", "sub", "mul"]


@public
@one_call("reduce", "activation")
def spmm(
    graph: Graph,
    x: Float[Array, "num_src *features"],
    weight: Real[Array, "num_edges"] | Real[Array, "num_edges heads"] | None = None,
    *,
    reduce: Reduce = "sum",
    self_scale: Real[ArrayLike, ""] | Real[ArrayLike, "num_nodes"] | None = None,
    out_scale: Real[ArrayLike, ""] | Real[ArrayLike, "num_dst"] | None = None,
    bias: Real[ArrayLike, "*features"] | None = None,
    activation: Activation | None = None,
    residual: Float[ArrayLike, "num_dst *features"] | None = None,
    result_scale: Real[ArrayLike, ""] | Real[ArrayLike, "num_dst"] | None = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_dst *features"]:
    """Reduce at each destination the weighted features of the sources of its edges.

    ``out[i] = reduce over the edges e = (j → i) of weight[e] · x[j]``; as a sum, the product of the
    sparse matrix of the weights and x. No array of messages is formed, forward or backward. The
    epilogue, ``result_scale[i] · activation(out_scale[i] · (out[i] + self_scale[i] · x[i]) +
    residual[i] + bias)``, is part of the same kernel after a sum or mean, and forms no further
    array. Derivatives of any order exist to all of these.

    Args:
        graph: the graph.
        x: ``(num_src, *features)`` source features: float16, bfloat16, float32 or float64.
        weight: ``(num_edges,)`` in the graph's order of edges, or ``(num_edges, heads)`` with x
            ``(num_src, heads, *features)``.
        reduce: ``"sum"``, ``"mean"`` over the number of edges, ``"max"`` or ``"min"``. Messages
            that tie for the maximum share its gradient equally.
        self_scale: a number or ``(num_nodes,)``, the factor of a node's own features, in a graph
            that is not bipartite: GCN's 1, or GIN's ``1 + eps``. None adds no own features.
        out_scale: a number or ``(num_dst,)``, a factor of each reduced row: GCN's ``D^-1/2``.
        bias: ``(*features)``, added to all rows.
        activation: applied to the result: ``"relu"``, ``"silu"``, ``"gelu"`` (the approximation by
            tanh) or ``"tanh"``. Only the first is part of the kernel.
        residual: ``(num_dst, *features)``, added to the rows; converted to the dtype of ``x``.
        result_scale: a number or ``(num_dst,)``, a factor of each row after the activation: what
            the next layer of a GCN multiplies its rows by.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, *features)`` in the dtype of ``x``; half types accumulate in float32, to which
        scales and bias are converted. Destinations without edges get 0, or -inf of a maximum and
        inf of a minimum, before the epilogue.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``reduce`` is none of these.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)  # sources, destinations
        >>> spmm(graph, jnp.array([1.0, 2.0, 3.0]))
        Array([5., 1., 0.], dtype=float32)
        >>> spmm(graph, jnp.array([1.0, 2.0, 3.0]), graph.edge_values([0.5, 1.0, 2.0]))
        Array([8. , 0.5, 0. ], dtype=float32)
        >>> spmm(graph, jnp.array([1.0, 2.0, 3.0]), self_scale=1, bias=-4, activation="relu")
        Array([2., 0., 0.], dtype=float32)
    """
    return spmm_with_halo(
        graph,
        x,
        weight,
        reduce=reduce,
        self_scale=self_scale,
        out_scale=out_scale,
        bias=bias,
        activation=activation,
        residual=residual,
        result_scale=result_scale,
    )


@selects_implementation
def spmm_with_halo(
    graph: Graph,
    x: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    reduce: Reduce = "sum",
    self_scale: ArrayLike | None = None,
    out_scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
    residual: ArrayLike | None = None,
    result_scale: ArrayLike | None = None,
    halo: Array | None = None,
    halo_rows: LastRows | None = None,
) -> Array:
    """Apply `spmm` where the last sources lie in an array of their own: see `Messages`."""
    graph = arguments.check_container("graph", graph, Graph)
    num_dst, num_src = graph.num_dst, graph.num_src - (0 if halo is None else halo.shape[0])
    x = arguments.check_features("x", x, "num_src", num_src)
    residual = arguments.check_residual(residual, "num_dst", num_dst, x)
    bias = arguments.check_bias(bias, x)
    weight = arguments.check_weight(
        "weight", weight, "num_edges", graph.num_edges, x, "x", "num_src"
    )
    arguments.check_choice("reduce", reduce, get_args(Reduce))
    arguments.check_choice("activation", activation, (None, *get_args(Activation)))
    if self_scale is not None and num_src != num_dst:
        raise ValueError(
            f"self_scale needs a graph that is not bipartite, got one of num_src={num_src} and "
            f"num_dst={num_dst}"
        )
    # Gates of attributions become factors of the messages, before the graph's matrix is taken.
    acc = accumulator_dtype(x.dtype)
    graph, weight = graph._gated(weight, acc)
    matrix = graph.matrix(weighted=weight is not None)
    self_scale = arguments.check_row_scale("self_scale", self_scale, "num_nodes", num_dst, acc)
    out_scale = arguments.check_row_scale("out_scale", out_scale, "num_dst", num_dst, acc)
    result_scale = arguments.check_row_scale("result_scale", result_scale, "num_dst", num_dst, acc)
    relu = activation == "relu"
    # The scale of the result follows an activation that kernels lack.
    scale = result_scale if relu or activation is None else None
    epilogue = self_scale, out_scale, residual, bias, scale
    messages = Messages(x, weight, matrix, *epilogue, halo, halo_rows)
    result = reduce_rows(messages, reduce, relu)
    return apply_activation(result, activation, result_scale)


@public
@one_call("op")
def sddmm(
    graph: Graph,
    a: Float[Array, "num_dst *features"],
    b: Float[Array, "num_src *features"],
    *,
    op: Op = "dot",
    implementation: Implementation | None = None,
) -> Float[Array, "num_edges ..."]:
    """Combine for each edge a row of its destination with a row of its source.

    ``out[e] = a[i] op b[j]`` for the edge e = (j → i).

    Args:
        graph: the graph.
        a: ``(num_dst, *features)`` destination features: float16, bfloat16, float32 or float64.
        b: ``(num_src, *features)`` source features, of the same features.
        op: ``"add"``, ``"sub"``, ``"mul"``, or ``"dot"`` for the sum of the products over the last
            axis, with features ``(d,)`` or ``(heads, d)``.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_edges, *features)`` in the common dtype of ``a`` and ``b``, without the last axis for
        ``"dot"``; in the graph's order of edges, 0 for padding.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``op`` is none of these.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> x = jnp.array([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
        >>> sddmm(graph, x, x)  # in the graph's order of edges: 1 → 0, 2 → 0, 0 → 1
        Array([2., 0., 2.], dtype=float32)
    """
    graph = arguments.check_container("graph", graph, Graph)
    a = arguments.check_features("a", a, "num_dst", graph.num_dst)
    b = arguments.check_features("b", b, "num_src", graph.num_src)
    arguments.check_choice("op", op, get_args(Op))
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"a and b must have equal features, got shapes {a.shape} and {b.shape}")
    if op == "dot" and a.ndim not in (2, 3):
        shapes = "(num_dst, d) or (num_dst, heads, d)"
        raise ValueError(f"op='dot' needs a of shape {shapes}, got shape {a.shape}")
    dtype = promoted(a.dtype, b.dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    if op != "dot":
        # Both ends are gathered to the edges, and padding is masked once, after the operation.
        at_dst, at_src = graph.ends()
        a, b = gather(a, at_dst), gather(b, at_src)
        combine = {"add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply}[op]
        valid = graph.matrix().by_row.valid(graph.num_src)
        return jnp.where(row_wise(valid, a), combine(a, b), 0)
    heads = a.shape[1:-1]
    if heads == (0,):  # kernels have one head at least
        return jnp.zeros((graph.num_edges, 0), dtype)
    dots = primitive.sddmm(
        as_matrix(a),
        as_matrix(b),
        graph.matrix(weighted=True),
        heads=heads[0] if heads else 1,
    )
    return reshape(dots, graph.num_edges, *heads).astype(dtype)


@public
def index_segment_reduce(
    x: Float[Array, "num_rows *features"],
    index: Integer[Array, "num_edges"],
    segment_ids: Integer[Array, "num_edges"],
    num_segments: int,
    weight: Real[Array, "num_edges"] | Real[Array, "num_edges heads"] | None = None,
    reduce: Reduce = "sum",
    *,
    implementation: Implementation | None = None,
) -> Float[Array, "num_segments *features"]:
    """Reduce the gathered rows ``weight · x[index]`` in sorted segments, without forming them.

    The counterpart of :func:`spmm` for edges given by bare ids (GeoT's ``index_segment_reduce`` and
    ``index_weight_segment_reduce``). The gradient to ``x`` sorts ``index``; ``jax.jit`` drops the
    sort where that gradient is not used.

    Args:
        x: ``(num_rows, *features)``: float16, bfloat16, float32 or float64.
        index: ``(num_edges,)`` integers, the row of x that each edge reads.
        segment_ids: ``(num_edges,)`` integers in ascending order, the segment of each edge. Edges
            with one of their ids out of range are dropped.
        num_segments: number of segments.
        weight: ``(num_edges,)``, or ``(num_edges, heads)`` with x ``(num_rows, heads, *features)``.
        reduce: as in :func:`spmm`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_segments, *features)`` in the dtype of ``x``, as :func:`spmm`.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``reduce`` is none of these.

    Example:
        >>> x = jnp.array([1.0, 2.0, 3.0])
        >>> index_segment_reduce(x, jnp.array([1, 2, 0]), jnp.array([0, 0, 1]), num_segments=2)
        Array([5., 1.], dtype=float32)
    """
    x = arguments.check_features("x", x)
    num_segments = arguments.check_size("num_segments", num_segments)
    index, segment_ids = (
        arguments.as_ids("index", index),
        arguments.as_ids("segment_ids", segment_ids),
    )
    if index.shape != segment_ids.shape:
        raise ValueError(
            "index and segment_ids must have the same length, got "
            f"{index.shape[0]} and {segment_ids.shape[0]}"
        )
    dtype = promoted(index.dtype, segment_ids.dtype)
    index, segment_ids = index.astype(dtype), segment_ids.astype(dtype)
    weight = arguments.check_weight(
        "weight", weight, "num_edges", index.shape[0], x, "x", "num_rows"
    )
    arguments.check_choice("reduce", reduce, get_args(Reduce))
    # The matrix by column is read only by the gradient to x: jax.jit drops its sort elsewhere.
    sources, order = sorted_ids(index, x.shape[0])
    by_row = Csr(segment_ids, index, num_rows=num_segments)
    by_col = Csr(sources, take_ids(segment_ids, order), order, num_rows=x.shape[0])
    matrix = SparseMatrix(by_row, by_col)
    return reduce_messages(x, weight, matrix, reduce)
