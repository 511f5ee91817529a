"""Sums at destinations: of products by relation, and of rows of (relation, source) tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import accumulator_dtype, promoted
from jax_gnn._core.csr import LastRows, segments
from jax_gnn._core.public import Implementation, public, selects_implementation
from jax_gnn._core.shapes import Float, Real
from jax_gnn._core.sharding import reshape
from jax_gnn._ops.relational_aggregate.schedule import (
    Counts,
    Method,
    halo_is_summed_apart,
    sums_by_basis_pay,
)
from jax_gnn._ops.relational_aggregate.xla import (
    counts,
    existing,
    lookup_matrix,
    types_matrix,
)
from jax_gnn._ops.relational_aggregate.xla import relational_aggregate as composed
from jax_gnn._ops.segment_reduce.primitive import gather, reduce_messages, total
from jax_gnn._ops.spmm.api import spmm_with_halo
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph

# Parts of a graph that a method needs.
_NEEDS = {"source_pairs": "from_pairs", "destination_pairs": "to_pairs"}


@public
def relational_aggregate(
    graph: RelationalGraph,
    x: Float[ArrayLike, "num_src *batch k"],
    rhs: Float[ArrayLike, "num_relations k n"] | Float[ArrayLike, "num_relations n k"],
    weight: Real[ArrayLike, "num_edges"] | None = None,
    *,
    coefficients: Float[ArrayLike, "num_relations num_bases"] | None = None,
    transpose_rhs: bool = False,
    method: Method | Literal["auto"] = "auto",
    precision: jax.lax.PrecisionLike = None,
    implementation: Implementation | None = None,
) -> Float[Array, "num_dst *batch n"]:
    """Sum at each destination the sources' features times the weights of the edges' relations.

    ``out[i] = sum over the edges e = (j → i) of weight[e] · x[j] rhs[relation of e]``: the
    propagation of R-GCN (Schlichtkrull et al., ESWC 2018, equation 2). Linear in ``x``, ``rhs`` and
    ``weight``, with exact derivatives of any order to each.

    Three methods differ in the rows that they multiply: edges; existing (source, relation) pairs,
    whose products edges gather; or existing (destination, relation) pairs, into which edges are
    summed first. The numbers of these decide which one is fastest. Derivatives take the mirror
    image of the method.

    Args:
        graph: the graph, with at least one of its parts.
        x: ``(num_src, *batch, k)`` source features: float16, bfloat16, float32 or float64.
        rhs: ``(num_relations, k, n)``, a weight for each relation; ``(num_relations, n, k)`` with
            ``transpose_rhs``.
        weight: ``(num_edges,)`` in the graph's order of edges (`RelationalGraph.edge_values`); None
            means ones.
        coefficients: ``(num_relations, num_bases)`` shares of bases in the weights of relations:
            ``rhs`` then holds a matrix for each basis (R-GCN, equation 3). Either weights are mixed
            from bases first, or messages are summed once for each basis; counts decide. None means
            a weight for each relation.
        transpose_rhs: whether ``rhs`` holds transposed weights.
        method: ``"edges"``, ``"source_pairs"`` or ``"destination_pairs"``, or ``"auto"``: chosen by
            counts.
        precision: precision of products in float32, as in :func:`jax_gnn.segment_matmul`.
        implementation: see :func:`jax_gnn.implementation`.

    Returns:
        ``(num_dst, *batch, n)`` in the dtype that x and rhs promote to; half types accumulate in
        float32. Destinations without edges get 0.

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
    return aggregate_with_halo(
        graph,
        x,
        rhs,
        weight,
        coefficients=coefficients,
        transpose_rhs=transpose_rhs,
        method=method,
        precision=precision,
    )


class Halo(NamedTuple):
    """Rows of the last sources of a graph, which are on other devices."""

    fetch: Callable[[Array], tuple[Array, Array]]  # returns rows of the first sources and of these
    num_own: int  # number of the first sources
    num_edges: int  # largest number of edges from the last sources

    def rows_of(self, graph: Graph) -> LastRows:
        """Return the edges from the last sources, which come last by source."""
        by_source = graph.matrix(weighted=True).by_col
        return LastRows.of(by_source, self.num_own, graph.t_indptr[self.num_own], self.num_edges)


@selects_implementation
def aggregate_with_halo(
    graph: RelationalGraph,
    x: ArrayLike,
    rhs: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    coefficients: ArrayLike | None = None,
    transpose_rhs: bool = False,
    method: Method | Literal["auto"] = "auto",
    precision: jax.lax.PrecisionLike = None,
    halo: Halo | None = None,
) -> Array:
    """Apply `relational_aggregate`, where rows of the last sources may be on other devices."""
    graph = arguments.check_container("graph", graph, RelationalGraph)
    num_src = graph.num_src if halo is None else halo.num_own
    x = arguments.check_features("x", x, "num_src", num_src)
    coefficients, size_name, size = _check_coefficients(graph, coefficients)
    rhs = arguments.check_features("rhs", rhs, size_name, size)
    if x.ndim < 2:
        raise ValueError(f"x must be (num_src={graph.num_src}, *batch, k), got shape {x.shape}")
    transpose_rhs = arguments.check_flag("transpose_rhs", transpose_rhs)
    if rhs.ndim != 3 or rhs.shape[2 if transpose_rhs else 1] != x.shape[-1]:
        axes = "n, k" if transpose_rhs else "k, n"
        raise ValueError(
            f"rhs must be ({size_name}, {axes}) with {size_name}={size} and the k = {x.shape[-1]} "
            f"of x, got shape {rhs.shape}"
        )
    arguments.check_choice("method", method, ("auto", *get_args(Method)))
    part = _NEEDS.get(method)
    if part is not None and getattr(graph, part) is None:
        raise ValueError(
            f"method={method!r} goes through {part!r}, which the graph lacks: add it by "
            f"graph.with_parts({part!r}), got {graph}"
        )
    dtype = promoted(x.dtype, rhs.dtype)
    rhs, level = rhs.astype(dtype), arguments.precision_level(precision)
    x = x.astype(dtype)
    # Products with bases are XLA's, with its own default of the precision.
    if coefficients is not None:
        coefficients = coefficients.astype(dtype)
        if method == "auto" and not transpose_rhs and _sums_by_basis(graph, rhs, coefficients):

            def mapped(x: Array) -> Array:
                return jnp.einsum("n...k,bkm->nb...m", x, rhs, precision=precision)

            if halo is None:
                return _sum_by_basis(graph, mapped(x), weight, coefficients)
            # Rows travel on the narrower side of the map.
            is_narrow = rhs.shape[0] * rhs.shape[2] < rhs.shape[1]
            z, halo_z = halo.fetch(mapped(x)) if is_narrow else map(mapped, halo.fetch(x))
            rows: Any = {"halo": halo_z, "halo_rows": halo.rows_of(graph.nodes)}
            return _sum_by_basis(graph, z, weight, coefficients, **rows)
        rhs = jnp.tensordot(coefficients, rhs, 1, precision=precision)
    graph, weight = _messages(graph, weight, dtype)
    matrix = graph.matrix(weighted=True)
    options: Any = {"transposed": transpose_rhs, "precision": level}
    if halo is not None:
        local, halo_x = halo.fetch(x)
        sizes = counts(x, rhs, matrix, transposed=transpose_rhs)
        if x.ndim == 2 and method == "auto" and halo_is_summed_apart(sizes):
            last = halo_x, halo.rows_of(existing(graph.to_pairs))
            operands = local, rhs, weight, matrix, last
            return composed(*operands, method="destination_pairs", **options)
        x = jnp.concatenate([local, halo_x])
    known = None if method == "auto" else method

    def aggregate(x: Array) -> Array:
        return composed(x, rhs, weight, matrix, method=known, **options)

    if x.ndim == 2:
        return aggregate(x)
    batch = x.shape[1:-1]
    y = jax.vmap(aggregate, 1, 1)(x.reshape(x.shape[0], math.prod(batch), x.shape[-1]))
    return y.reshape(y.shape[0], *batch, y.shape[-1])


@public
def relational_lookup(
    graph: RelationalGraph,
    table: Float[ArrayLike, "num_relations num_src n"],
    weight: Real[ArrayLike, "num_edges"] | None = None,
    *,
    coefficients: Float[ArrayLike, "num_relations num_bases"] | None = None,
    precision: jax.lax.PrecisionLike = None,
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
        coefficients: ``(num_relations, num_bases)`` shares of bases in the tables of relations, as
            in :func:`relational_aggregate`: ``table`` then holds a table for each basis.
        precision: precision of the products with coefficients, as in `jax.lax.dot`.
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
    graph = arguments.check_container("graph", graph, RelationalGraph)
    coefficients, size_name, size = _check_coefficients(graph, coefficients)
    table = arguments.check_features("table", table, size_name, size)
    axes = f"({size_name}={size}, num_src={graph.num_src}, n)"
    arguments.check_shape("table", table, axes, size, graph.num_src, None)
    arguments.precision_level(precision)  # checked
    if coefficients is not None:
        coefficients = coefficients.astype(table.dtype)
        if _sums_by_basis(graph, table, coefficients, lookup=True):
            z = table.swapaxes(0, 1)
            return _sum_by_basis(graph, z, weight, coefficients)
        table = jnp.tensordot(coefficients, table, 1, precision=precision)
    graph, weight = _messages(graph, weight, table.dtype)
    matrix = lookup_matrix(graph.matrix(weighted=True), graph.num_relations)
    rows = reshape(table, graph.num_relations * graph.num_src, table.shape[2])
    column = None if weight is None else weight[:, None]
    return reduce_messages(rows, column, matrix, "sum")


def _check_coefficients(
    graph: RelationalGraph, coefficients: ArrayLike | None
) -> tuple[Array | None, str, int]:
    """Return the shares of bases, and the name and the number of the weights beside them."""
    size = graph.num_relations
    if coefficients is None:
        return None, "num_relations", size
    coefficients = arguments.check_features("coefficients", coefficients, "num_relations", size)
    axes = f"(num_relations={size}, num_bases)"
    arguments.check_shape("coefficients", coefficients, axes, size, None)
    return coefficients, "num_bases", coefficients.shape[1]


def _sums_by_basis(
    graph: RelationalGraph, bases: Array, coefficients: Array, *, lookup: bool = False
) -> bool:
    """Return whether a sum for each basis is faster than one with weights mixed from bases."""
    mixed = jax.eval_shape(lambda a, b: jnp.tensordot(a, b, 1), coefficients, bases)
    return sums_by_basis_pay(counts_of(graph, mixed), len(bases), lookup=lookup)


def _sum_by_basis(
    graph: RelationalGraph,
    z: Array,
    weight: ArrayLike | None,
    coefficients: Array,
    **halo: Any,
) -> Array:
    """Return the sums of rows ``(num_src, num_bases, *batch, n)`` over edges and bases."""
    # Σ_r Σ_b c_rb V_b x = Σ_b (Σ_e c_rb V_b x): edges are weighted by their relation's shares.
    types = types_matrix(graph._plain.matrix(weighted=True), graph.num_relations)
    shares = gather(coefficients, types)
    if weight is not None:
        weight = _check_edge_weight(graph, weight)
        dtype = accumulator_dtype(shares.dtype)
        shares = shares.astype(dtype) * weight.astype(dtype)[:, None]
    return spmm_with_halo(graph.nodes, z, shares, **halo).sum(1)


def _messages(
    graph: RelationalGraph, weight: ArrayLike | None, dtype: object
) -> tuple[RelationalGraph, Array | None]:
    """Return the graph without gates, and weights, with gates, in the accumulator type."""
    acc = accumulator_dtype(dtype)
    column = None
    if weight is not None:
        column = _check_edge_weight(graph, weight).astype(acc)[:, None]
    graph, column = graph._gated(column, acc)
    return graph, None if column is None else column[:, 0]


def _check_edge_weight(graph: RelationalGraph, weight: ArrayLike) -> Array:
    weight = arguments.check_real("weight", weight)
    arguments.check_shape("weight", weight, f"(num_edges={graph.num_edges},)", graph.num_edges)
    return weight


def source_pair_rows(graph: RelationalGraph, x: Array, z: Array) -> tuple[Array, Array]:
    """Return rows of x and z for each (source, relation) pair, as ``graph.from_pairs`` reads them.

    Gradients are sums in a fixed order. Padding has rows of zeros.

    Args:
        graph: the graph, with its part ``"from_pairs"``.
        x: ``(num_src, *features)``, rows of the sources.
        z: ``(num_relations, *features)``, rows of the relations.

    Returns:
        ``(num_src_pairs, *features)`` of the sources, and the same of the relations.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 0], [0, 1], [1, 2], num_nodes=3)
        >>> x, z = jnp.array([[5.0], [6.0], [7.0]]), jnp.array([[1.0], [2.0]])
        >>> [rows.ravel() for rows in source_pair_rows(graph, x, z)]
        [Array([5., 5.], dtype=float32), Array([1., 2.], dtype=float32)]
    """
    pairs = graph.pair_src
    if pairs is None:
        raise ValueError(
            f"graph lacks the part 'from_pairs': call with_parts('from_pairs'), got {graph}"
        )
    return total(x, pairs.gather), gather(z, segments(pairs.relations, graph.num_relations))


def counts_of(graph: RelationalGraph, rhs: Array | jax.ShapeDtypeStruct) -> Counts:
    """Return the sizes that decide between methods."""
    return counts(rhs, rhs, graph._plain.matrix(weighted=True), transposed=False)
