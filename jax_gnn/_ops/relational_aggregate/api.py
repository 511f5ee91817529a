"""Sums at destinations: of products by relation, and of rows of (relation, source) tables."""

from __future__ import annotations

from typing import Literal, get_args

import jax
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arguments import (
    check_choice,
    check_container,
    check_features,
    check_flag,
    check_real,
    precision_level,
)
from jax_gnn._core.arrays import accumulator_dtype, promoted
from jax_gnn._core.ffi import Implementation
from jax_gnn._core.public import public
from jax_gnn._core.shapes import Float, Real
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.relational_aggregate import primitive
from jax_gnn._ops.relational_aggregate.schedule import Counts, Method
from jax_gnn._ops.relational_aggregate.xla import counts, lookup_matrix, types_matrix
from jax_gnn._ops.segment_reduce.primitive import gather, reduce_messages
from jax_gnn.relational import RelationalGraph

# Parts of a graph that a method needs.
_NEEDS = {"source_pairs": "from_pairs", "destination_pairs": "to_pairs"}


@public
def relational_aggregate(
    graph: RelationalGraph,
    x: Float[ArrayLike, "num_src k"],
    rhs: Float[ArrayLike, "num_relations k n"] | Float[ArrayLike, "num_relations n k"],
    weight: Real[ArrayLike, "num_edges"] | None = None,
    *,
    transpose_rhs: bool = False,
    method: Method | Literal["auto"] = "auto",
    precision: jax.lax.PrecisionLike = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_dst n"]:
    """Sum at each destination the sources' features times the weights of the edges' relations.

    ``out[i] = sum over the edges e = (j → i) of weight[e] · x[j] rhs[relation of e]``: the
    propagation of R-GCN (Schlichtkrull et al., ESWC 2018, equation 2). Linear in ``x``, ``rhs`` and
    ``weight``, with exact derivatives of any order to each.

    Three methods differ in the rows that they multiply: edges; existing (source, relation) pairs,
    whose products edges gather; or existing (destination, relation) pairs, into which edges are
    summed first. The numbers of these decide which one is fastest. Derivatives choose methods of
    their own.

    Args:
        graph: the graph, with at least one of its parts.
        x: ``(num_src, k)`` source features: float16, bfloat16, float32 or float64.
        rhs: ``(num_relations, k, n)``, a weight for each relation; ``(num_relations, n, k)`` with
            ``transpose_rhs``.
        weight: ``(num_edges,)`` in the graph's order of edges (`RelationalGraph.edge_values`); None
            means ones.
        transpose_rhs: whether ``rhs`` holds transposed weights.
        method: ``"edges"``, ``"source_pairs"`` or ``"destination_pairs"`` demands one method, and
            its mirror image for derivatives; ``"auto"`` chooses by counts.
        precision: precision of products in float32, as in :func:`jax_gnn.segment_matmul`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, n)`` in the dtype that x and rhs promote to; half types accumulate in float32.
        Destinations without edges get 0.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, an option is unknown, or the graph lacks the
            part that ``method`` needs.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1], [0, 1], [2, 2], num_nodes=3)
        >>> x = jnp.array([[1.0], [2.0], [3.0]])
        >>> relational_aggregate(graph, x, jnp.array([[[1.0]], [[10.0]]]))
        Array([[ 0.],
               [ 0.],
               [21.]], dtype=float32)
    """
    graph = check_container("graph", graph, RelationalGraph)
    x = check_features("x", x, "num_src", graph.num_src)
    rhs = check_features("rhs", rhs, "num_relations", graph.num_relations)
    if x.ndim != 2:
        raise ValueError(f"x must be (num_src={graph.num_src}, k), got shape {x.shape}")
    transpose_rhs = check_flag("transpose_rhs", transpose_rhs)
    if rhs.ndim != 3 or rhs.shape[2 if transpose_rhs else 1] != x.shape[1]:
        shape = "(num_relations, n, k)" if transpose_rhs else "(num_relations, k, n)"
        raise ValueError(
            f"rhs must be {shape} with num_relations={graph.num_relations} and the k = "
            f"{x.shape[1]} of x, got shape {rhs.shape}"
        )
    check_choice("method", method, ("auto", *get_args(Method)))
    part = _NEEDS.get(method)
    if part is not None and getattr(graph, part) is None:
        raise ValueError(
            f"method={method!r} goes through {part!r}, which the graph lacks: add it by "
            f"graph.with_parts({part!r}), got {graph}"
        )
    dtype = promoted(x.dtype, rhs.dtype)
    graph, weight = _messages(graph, weight, dtype)
    result: Array = primitive.relational_aggregate(
        x.astype(dtype),
        rhs.astype(dtype),
        weight,
        graph.matrix(weighted=True),
        transposed=transpose_rhs,
        method=None if method == "auto" else method,
        precision=precision_level(precision),
        implementation=implementation,
    )
    return result


@public
def relational_lookup(
    graph: RelationalGraph,
    table: Float[ArrayLike, "num_relations num_src n"],
    weight: Real[ArrayLike, "num_edges"] | None = None,
    *,
    implementation: Implementation | None = None,
) -> Float[Array, "num_dst n"]:
    """Sum at each destination the rows of a table for its edges' relations and sources.

    ``out[i] = sum over the edges e = (j → i) of weight[e] · table[relation of e, j]``: one sum that
    equals :func:`relational_aggregate` of nodes without features, that is, of one-hot nodes.
    Linear in ``table`` and ``weight``, with exact derivatives of any order.

    Args:
        graph: the graph; with its part ``"from_pairs"``, gradients need no sort.
        table: ``(num_relations, num_src, n)``: float16, bfloat16, float32 or float64.
        weight: ``(num_edges,)`` in the graph's order of edges; None means ones.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, n)`` in the dtype of ``table``; half types accumulate in float32.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, or ``num_relations * num_src`` needs ids of 64
            bits, which are not enabled.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1], [0, 1], [2, 2], num_nodes=3)
        >>> relational_lookup(graph, jnp.arange(6.0).reshape(2, 3, 1)).ravel()
        Array([0., 0., 4.], dtype=float32)
    """
    graph = check_container("graph", graph, RelationalGraph)
    table = check_features("table", table, "num_relations", graph.num_relations)
    if table.ndim != 3 or table.shape[1] != graph.num_src:
        raise ValueError(
            f"table must be (num_relations={graph.num_relations}, num_src={graph.num_src}, n), got "
            f"shape {table.shape}"
        )
    graph, weight = _messages(graph, weight, table.dtype)
    matrix = lookup_matrix(graph.matrix(weighted=True), graph.num_relations)
    rows = reshape(table, graph.num_relations * graph.num_src, table.shape[2])
    column = None if weight is None else weight[:, None]
    return reduce_messages(rows, column, matrix, "sum", implementation)


def _messages(
    graph: RelationalGraph, weight: ArrayLike | None, dtype: object
) -> tuple[RelationalGraph, Array | None]:
    """Return the graph without gates, and weights, with gates, in the accumulator type."""
    acc = accumulator_dtype(dtype)
    column = None
    if weight is not None:
        weight = check_real("weight", weight)
        if weight.shape != (graph.num_edges,):
            raise ValueError(
                f"weight must be (num_edges={graph.num_edges},), got shape {weight.shape}"
            )
        column = weight.astype(acc)[:, None]
    graph, column = graph._gated(column, acc)
    return graph, None if column is None else column[:, 0]


def of_relations(
    graph: RelationalGraph, values: Array, implementation: Implementation | None = None
) -> Array:
    """Return ``(num_edges, *features)``: the row of ``values`` of each edge's relation.

    Args:
        graph: the graph.
        values: ``(num_relations, *features)``, whose gradient is a segment sum.
        implementation: implementation of the kernels.
    """
    matrix = types_matrix(graph._plain.matrix(weighted=True), graph.num_relations)
    return gather(values, matrix, implementation)


def counts_of(graph: RelationalGraph, rhs: Array | jax.ShapeDtypeStruct) -> Counts:
    """Return the sizes that decide between methods."""
    return counts(rhs, rhs, graph._plain.matrix(weighted=True), transposed=False)
