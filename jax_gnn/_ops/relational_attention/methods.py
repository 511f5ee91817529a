"""Attention over typed edges, in the primitives that each method is made of.

By source pair, rows are multiplied with their relation's weights once for each existing (source,
relation), and edges gather the products. By destination pair, all that is linear in the source is
left until after the reduction: edges gather nodes' own features, which are summed under the softmax
of each (destination, relation); the softmax of those softmaxes' logarithms over a destination says
what each pair counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype, promoted
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.ids import PADDING, ids_at, in_range, index_dtype
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._ops.attention.primitive import attend
from jax_gnn._ops.attention.scores import Dots, Given, Typed, typed_dots
from jax_gnn._ops.attention.sums import shares
from jax_gnn._ops.attention.xla import ends, leaky
from jax_gnn._ops.relational_aggregate.xla import counts
from jax_gnn._ops.relational_attention.paired import paired_attention
from jax_gnn._ops.relational_attention.primitive import (
    Projections,
    each_head,
    numbers_of_destinations,
    numbers_of_pairs,
    part,
    product,
    product_of_heads,
    typed_values,
)
from jax_gnn._ops.relational_attention.schedule import (
    Method,
    chosen,
    dense_scores_pay,
    scores_by_edge_pay,
)
from jax_gnn._ops.relational_attention.weights import HGTWeights, RelationMaps, RGATWeights
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn.relational import Part, RelationalGraph

_NEEDS: dict[str, tuple[tuple[Part, ...], tuple[Part, ...]]] = {
    "source_pairs": (("from_pairs", "to_pairs"), ("from_pairs",)),
    "destination_pairs": (("from_pairs", "to_pairs"), ("to_pairs",)),
}
"""The parts of a graph that a method goes through: where ends have numbers, and where keys."""


def choose_method(
    graph: RelationalGraph, method: str, kernel: Any, heads: int, *, dots: bool
) -> Method:
    """The method demanded or, of "auto", the one that counts choose.

    Raises:
        ValueError: The graph lacks a part that it goes through.
    """
    found = counts(kernel, kernel, graph.matrix(), transposed=False)
    if method == "auto":
        there = {each for each, needs in _NEEDS.items() if not _missing(graph, needs[dots])}
        found = found._replace(
            source_pairs=found.source_pairs if "source_pairs" in there else 0,
            destination_pairs=found.destination_pairs if "destination_pairs" in there else 0,
        )
        if there:
            return chosen(found, heads, dots=dots)
        method = "source_pairs"
    missing = _missing(graph, _NEEDS[method][dots])
    if missing:
        raise ValueError(
            f"method={method!r} goes through {missing[0]!r}, which the graph lacks: add it by "
            f"graph.with_parts({missing[0]!r}), got {graph}"
        )
    return method  # type: ignore[return-value]  # is one of its keys


def _missing(graph: RelationalGraph, parts: tuple[Part, ...]) -> list[Part]:
    return [part for part in parts if getattr(graph, part) is None]


class TypedEdges:
    """A graph's edges and pairs, as all methods take them."""

    def __init__(self, graph: RelationalGraph, precision: Any) -> None:
        self.graph = graph
        self.matrix: RelationalMatrix = graph.matrix(weighted=True)
        self.precision = precision

    @property
    def pair_src(self) -> Pairs:
        """Those of sources, of a method that goes through them."""
        return part(self.matrix.pair_src)

    @property
    def pair_dst(self) -> Pairs:
        """Those of destinations, likewise."""
        return part(self.matrix.pair_dst)

    # --- Softmaxes ---------------------------------------------------------------------------

    def shares_within(self, score: Array) -> Array:
        """The softmax of edges' scores into each destination by the same relation."""
        rows = part(self.matrix.to_pairs).by_row
        return segment_softmax(score, segments(rows.rows, rows.num_rows))

    def shares_of_pairs(self, stats: Array) -> Array:
        """What each destination's pairs count in its softmax, of the pairs' own."""
        return shares(stats, self.pair_dst.node_segments)

    # --- Products by relation ----------------------------------------------------------------

    def of_sources(self, x: Array, rows: RelationMaps, *, transposed: bool = False) -> Array:
        """``(source pairs, n)``."""
        return self._of_pairs(x, rows, self.pair_src, transposed=transposed)

    def of_destinations(self, x: Array, rows: RelationMaps, dtype: Any = None) -> Array:
        """``(destination pairs, n)``."""
        return self._of_pairs(x, rows, self.pair_dst, dtype)

    def _of_pairs(
        self,
        x: Array,
        rows: RelationMaps,
        pairs: Pairs,
        dtype: Any = None,
        *,
        transposed: bool = False,
    ) -> Array:
        if not transposed:
            rows = rows._replace(kernel=_of_width(rows.kernel, x.shape[1]))
        return self._product(x, rows, pairs, pairs.gather, dtype, transposed=transposed)

    def multiplied(self, sums: Array, rows: RelationMaps, heads: int) -> Array:
        """``(destination pairs, n)`` of ``(destination pairs, heads · k)``: each head by itself."""
        options: Any = {"heads": heads, "precision": self.precision}
        return product_of_heads(sums, *rows, self.pair_dst, **options)

    def _product(
        self,
        x: Array,
        rows: RelationMaps,
        pairs: Pairs,
        lines: Any,
        dtype: Any = None,
        *,
        transposed: bool = False,
    ) -> Array:
        options: Any = {"precision": self.precision, "dtype": dtype, "transposed": transposed}
        return product(x, rows.kernel, pairs, lines, bias=rows.bias, **options)

    def into_nodes(self, z: Array, share: Array | None) -> Array:
        """``(destinations, n)``, the sum over their pairs."""
        matrix = self.pair_dst.node_segments
        heads = 1 if share is None else share.shape[1]
        return segment_reduce(z, share, matrix, reduce="sum", heads=heads)

    # --- Numbers of both ends ------------------------------------------------------------------

    def by_source_pairs(self, x: Array, weights: RGATWeights, scores: Scores) -> Array:
        """``(destinations, heads · n)``, of RGAT."""
        kernel = weights.kernel
        options: Any = {"heads": weights.dst.shape[1]}
        if not scores_by_edge_pay(counts(x, kernel, self.matrix, transposed=False)):
            score = scores.of(*self.numbers(x, weights.both))
            return self._of_scores(
                self.of_sources(x, RelationMaps(kernel)), score, scores, **options
            )
        maps = Projections(kernel, weights.dst, self.matrix)
        value, at_dst = typed_values(maps, (x,), precision=self.precision)
        of_value, types = weights.src.reshape(len(kernel), -1), self.types_of_pairs()
        matrix = part(self.matrix.from_pairs)
        if not (scores.multiplied or scores.within):
            scale = None if scores.scale is None else scores.scale.astype(at_dst.dtype)
            typed = Typed(of_value, at_dst, x, weights.dst, self.matrix.types, types)
            if scores.of_edges is not None:
                at_dst += scores.of_edges.astype(at_dst.dtype)
                typed = replace(typed, at_row=at_dst, row=None, of_row=None)
            return attend(value, typed, scale, matrix, slope=scores.slope, **options)[0]
        at_src = typed_dots(value, of_value, types, matrix, **options)
        return self._of_scores(value, scores.of(at_dst, at_src), scores, **options)

    def _of_scores(self, value: Array, score: Array, scores: Scores, *, heads: int) -> Array:
        """Sums of values by source pair under the softmax of edges' scores."""
        matrix, scale = part(self.matrix.from_pairs), scores.scale
        scale = None if scale is None else scale.astype(score.dtype)
        if scores.within:
            weight = self.shares_within(score)
            weight = weight if scale is None else weight * scale
            return segment_reduce(value, weight, matrix, reduce="sum", heads=heads)
        return attend(value, Given(score), scale, matrix, heads=heads)[0]

    def numbers(self, x: Array, vectors: Array) -> tuple[Array, Array]:
        """``(edges, heads)`` twice: what ``(relations, 2 · heads, k)`` give at both ends.

        The first half of the vectors is that of destinations.
        """
        heads, acc = vectors.shape[1] // 2, accumulator_dtype(x.dtype)
        at_src = ends(part(self.matrix.from_pairs))[1]
        if dense_scores_pay(counts(x, vectors, self.matrix, transposed=True), heads):
            form: Any = {"precision": "highest", "preferred_element_type": acc}  # as dots are
            table = jnp.einsum("nk,mk->nm", x, vectors.reshape(-1, x.shape[1]), **form)
            of_dst, of_src = jnp.split(table.reshape(-1, 2 * heads), 2, axis=1)
            of_src_pairs = gather(of_src, self._lookup_of_source_pairs())
            return gather(of_dst, self._lookup_of_destinations()), gather(of_src_pairs, at_src)
        dst, src = jnp.split(vectors, 2, axis=1)
        of_src_pairs = numbers_of_pairs(x, src, self.pair_src)
        at_dst = numbers_of_destinations(x, dst, self.matrix)
        return at_dst, gather(of_src_pairs, at_src)

    def types_of_pairs(self) -> Array:
        """``(source pairs,)``, the relation of each, that of its first edge."""
        edges = part(self.graph.from_pairs)
        return ids_at(self.matrix.types, ids_at(edges.t_order, edges.t_indptr[:-1]))

    def _lookup_of_destinations(self) -> SparseMatrix:
        """What sums numbers of edges at ``node · relations + relation``, which ascends."""
        rows = self.matrix.nodes.by_row.rows
        return segments(*self._places(rows, self.matrix.types, self.matrix.nodes.by_row.num_rows))

    def _lookup_of_source_pairs(self) -> SparseMatrix:
        """The same of (source, relation) pairs; the transposes look up."""
        pairs = self.pair_src
        ids, size = self._places(pairs.nodes, self.types_of_pairs(), pairs.num_nodes)
        order = pairs.order.astype(ids.dtype)
        return SparseMatrix(
            Csr(ids_at(ids, order), order, num_rows=size),
            Csr(None, ids, num_rows=pairs.num_pairs),
        )

    def _places(self, nodes: Array, types: Array, num_nodes: int) -> tuple[Array, int]:
        """Where numbers of nodes and relations are, and how many these have."""
        size = num_nodes * self.graph.num_relations
        dtype = promoted(types.dtype, index_dtype(size))
        place = nodes.astype(dtype) * self.graph.num_relations + types.astype(dtype)
        return jnp.where(in_range(nodes, num_nodes), place, PADDING), size


def _of_width(kernel: Array, width: int) -> Array:
    """Maps of rows that wide: those of heads with columns of their own are block-diagonal."""
    relations, k, n = kernel.shape
    if k == width:
        return kernel
    heads = width // k
    own = jnp.eye(heads, dtype=bool)[:, None, :, None]
    split = kernel.reshape(relations, 1, k, heads, n // heads)
    return jnp.where(own, split, 0).reshape(relations, width, n)


# --- Scores of numbers at both ends --------------------------------------------------------------


class Scores(NamedTuple):
    """How scores are made of the numbers of both ends.

    Attributes:
        multiplied: Whether numbers are multiplied, else added up before a LeakyReLU.
        slope: Of the LeakyReLU.
        of_edges: ``(edges, heads)``, what edges add, or multiply by; or None.
        within: Whether the softmax runs within each relation, else over all edges.
        scale: ``(edges, heads)``, factors after the softmax, or None.
    """

    multiplied: bool
    slope: float
    of_edges: Array | None
    within: bool
    scale: Array | None

    def of(self, dst: Array, src: Array) -> Array:
        """Of edges, of the numbers at their ends."""
        own = None if self.of_edges is None else self.of_edges.astype(dst.dtype)
        if self.multiplied:
            return dst * src if own is None else dst * src * own
        return leaky(dst + src if own is None else dst + src + own, self.slope)


def attend_by_numbers(
    graph: RelationalGraph,
    x: Array,
    weights: RGATWeights,
    scores: Scores,
    *,
    method: Method,
    precision: Any,
) -> Array:
    """Attention of RGAT.

    Args:
        graph: With the parts of the method.
        x: ``(nodes, k)``.
        weights: Of values, and of the numbers at both ends.
        scores: What they make.
        method: The method.
        precision: Of the products.

    Returns:
        ``(nodes, heads · n)``.
    """
    typed, heads, rows = (
        TypedEdges(graph, precision),
        weights.dst.shape[1],
        RelationMaps(weights.kernel),
    )
    if method == "source_pairs":
        return typed.by_source_pairs(x, weights, scores)
    score = scores.of(*typed.numbers(x, weights.both))
    scale = None if scores.scale is None else scores.scale.astype(score.dtype)
    value, into = each_head(x, heads * x.shape[1]), part(typed.matrix.to_pairs)
    sums, stats = attend(value, Given(score), scale, into, heads=heads)
    share = None if scores.within else typed.shares_of_pairs(stats)
    return typed.into_nodes(typed.multiplied(sums, rows, heads), share)


# --- Scores of keys ------------------------------------------------------------------------------


def attend_by_keys(
    graph: RelationalGraph,
    key: Array,
    value: Array,
    query: Array,
    weights: HGTWeights,
    *,
    heads: int,
    method: Method,
    precision: Any,
    made: bool = True,
) -> Array:
    """Attention of HGT.

    Args:
        graph: With the parts of the method.
        key: ``(nodes, k)`` or ``(nodes, heads · k)``, what keys are made of.
        value: Likewise of values.
        query: ``(nodes, j)`` or ``(nodes, heads · j)``, what queries are made of, or by source pair
            ``(nodes, heads · d)``, these.
        weights: The maps.
        heads: Number of heads.
        method: The method.
        precision: Of the products.
        made: Whether by source pair the queries are made; else keys are multiplied with their maps,
            too, which there are of one head that has no biases.

    Returns:
        ``(nodes, heads · d)``.
    """
    typed, acc = TypedEdges(graph, precision), accumulator_dtype(value.dtype)
    one: Any = jnp.ones((1, 1), acc)
    if method == "source_pairs":
        if made:
            keys = typed.of_sources(key, weights.key)
        else:
            keys = typed.of_sources(key, weights.query, transposed=True)
        values = typed.of_sources(value, weights.value)
        matrix = part(typed.matrix.from_pairs)
        return attend(values, Dots(query, keys, one), None, matrix, heads=heads)[0]
    queries = typed.of_destinations(query, weights.query)
    shift = None
    if weights.shift is not None:
        shift = typed.of_destinations(query, weights.shift, acc)
    keys = each_head(key, queries.shape[1])
    same = value is key
    values = keys if same else each_head(value, heads * weights.value.kernel.shape[1])
    return paired_attention(
        *(values, None if same else keys, queries, *weights.value, shift, typed.matrix),
        heads=heads,
        precision=precision,
    )
