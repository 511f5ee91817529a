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
from jax_gnn._core.ids import PADDING, in_range, index_dtype, take_ids
from jax_gnn._core.relations import Pairs, RelationalMatrix
from jax_gnn._core.sharding import auto_axes_like
from jax_gnn._ops.attention.primitive import attend
from jax_gnn._ops.attention.scores import Dots, Given, Typed, typed_dots
from jax_gnn._ops.attention.xla import ends, leaky, shares
from jax_gnn._ops.relational_aggregate.xla import counts
from jax_gnn._ops.relational_attention.pair_attention import pair_attention
from jax_gnn._ops.relational_attention.primitive import (
    Projections,
    each_head,
    of_types,
    part,
    product,
    product_of_heads,
    relation_dots,
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
    found = counts(kernel, kernel, graph._plain.matrix(), transposed=False)
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
        self.num_relations = graph.num_relations
        self.matrix: RelationalMatrix = graph.matrix(weighted=True)
        self.precision = precision
        self._from_pairs = graph.from_pairs

    @property
    def pair_src(self) -> Pairs:
        """Those of sources, of a method that goes through them."""
        return part(self.matrix.pair_src)

    @property
    def pair_dst(self) -> Pairs:
        """Those of destinations, likewise."""
        return part(self.matrix.pair_dst)

    def of_pairs(self, pairs: Pairs, x: Array, maps: RelationMaps, **options: Any) -> Array:
        """``(pairs, n)``, rows of x as the relations map them; with options of `product`."""
        kernel = maps.kernel
        if not options.get("transposed"):
            kernel = _of_width(kernel, x.shape[1])
        options |= {"bias": maps.bias, "precision": self.precision}
        return product(x, kernel, pairs, pairs.gather, **options)

    def end_scores(self, x: Array, x_dst: Array, vectors: Array) -> tuple[Array, Array]:
        """``(edges, heads)`` twice: what ``(relations, 2 · heads, k)`` give at both ends.

        The first half of the vectors is that of destinations. Where these are the sources, they are
        the same array.
        """
        heads, acc = vectors.shape[1] // 2, accumulator_dtype(x.dtype)
        at_src = ends(part(self.matrix.from_pairs))[1]
        if dense_scores_pay(counts(x, vectors, self.matrix, transposed=True), heads):
            form: Any = {"precision": "highest", "preferred_element_type": acc}  # as dots are

            def numbers(x: Array, vectors: Array) -> Array:
                table = jnp.einsum("nk,mk->nm", x, vectors.reshape(-1, x.shape[1]), **form)
                return table.reshape(-1, vectors.shape[1])

            if x_dst is x:
                of_dst, of_src = jnp.split(numbers(x, vectors), 2, axis=1)
            else:
                of_dst, of_src = numbers(x_dst, vectors[:, :heads]), numbers(x, vectors[:, heads:])
            of_src_pairs = gather(of_src, self._lookup_of_source_pairs())
            return gather(of_dst, self._lookup_of_destinations()), gather(of_src_pairs, at_src)
        dst, src = jnp.split(vectors, 2, axis=1)
        of_src_pairs, of_dst_pairs = (
            relation_dots(rows, half, pairs.incidence, by_relation=not pairs.by_node)
            for rows, half, pairs in ((x, src, self.pair_src), (x_dst, dst, self.pair_dst))
        )
        at_dst = ends(part(self.matrix.to_pairs))[0]
        return gather(of_dst_pairs, at_dst), gather(of_src_pairs, at_src)

    def types_of_source_pairs(self) -> Array:
        """``(source pairs,)``, the relation of each, that of its first edge."""
        edges = part(self._from_pairs)
        return take_ids(self.matrix.types, take_ids(edges.t_order, edges.t_indptr[:-1]))

    def _lookup_of_destinations(self) -> SparseMatrix:
        """What sums numbers of edges at ``node · relations + relation``, which ascends."""
        nodes = self.matrix.nodes.by_row
        return segments(*self._places(nodes.rows, self.matrix.types, nodes.num_rows))

    def _lookup_of_source_pairs(self) -> SparseMatrix:
        """The same of (source, relation) pairs; the transposes look up."""
        pairs = self.pair_src
        ids, size = self._places(pairs.nodes, self.types_of_source_pairs(), pairs.num_nodes)
        order = pairs.order.astype(ids.dtype)
        return SparseMatrix(
            Csr(take_ids(ids, order), order, num_rows=size),
            Csr(None, ids, num_rows=pairs.num_pairs),
        )

    def _places(self, nodes: Array, types: Array, num_nodes: int) -> tuple[Array, int]:
        """Where numbers of nodes and relations are, and how many these have."""
        size = num_nodes * self.num_relations
        dtype = promoted(types.dtype, index_dtype(size))
        place = nodes.astype(dtype) * self.num_relations + types.astype(dtype)
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


# --- RGAT ----------------------------------------------------------------------------------------


class RGATScores(NamedTuple):
    """How scores are made of what both ends give, and what becomes of their softmax.

    Attributes:
        multiplicative: Whether what the ends give is multiplied, else added up before a LeakyReLU.
        slope: Of the LeakyReLU.
        edge_bias: ``(edges, heads)``, what edges add, or multiply by; or None.
        within_relations: Whether the softmax runs within each relation, else over all edges.
        edge_scale: ``(edges, heads)``, factors after the softmax, or None.
    """

    multiplicative: bool
    slope: float
    edge_bias: Array | None
    within_relations: bool
    edge_scale: Array | None

    def of(self, dst: Array, src: Array) -> Array:
        """Of edges, of what their ends give."""
        if self.multiplicative:
            return dst * src if self.edge_bias is None else dst * src * self.edge_bias
        return leaky(
            dst + src if self.edge_bias is None else dst + src + self.edge_bias, self.slope
        )


@auto_axes_like(2)
def attend_rgat(
    graph: RelationalGraph,
    x: Array,
    x_dst: Array,
    weights: RGATWeights,
    scores: RGATScores,
    *,
    method: Method,
    precision: Any,
) -> Array:
    """Attention of RGAT, ``(destinations, heads · n)``.

    Args:
        graph: With the parts of the method.
        x: ``(sources, k)``.
        x_dst: ``(destinations, k)``; where these are the sources, x itself.
        weights: Of values, and of what both ends give.
        scores: What they make.
        method: The method.
        precision: Of the products.
    """
    edges, heads = TypedEdges(graph, precision), weights.dst.shape[1]
    if method == "source_pairs":
        return _rgat_by_source(edges, x, x_dst, weights, scores)
    score = scores.of(*edges.end_scores(x, x_dst, weights.both))
    value, into = each_head(x, heads * x.shape[1]), part(edges.matrix.to_pairs)
    sums, stats = attend(value, Given(score), scores.edge_scale, into, heads=heads)
    pairs = edges.pair_dst
    z = product_of_heads(sums, weights.kernel, None, pairs, heads=heads, precision=precision)
    share = None if scores.within_relations else shares(stats, pairs.node_segments)
    by_share = 1 if share is None else heads
    return segment_reduce(z, share, pairs.node_segments, reduce="sum", heads=by_share)


def _rgat_by_source(
    edges: TypedEdges, x: Array, x_dst: Array, weights: RGATWeights, scores: RGATScores
) -> Array:
    kernel, from_pairs = weights.kernel, part(edges.matrix.from_pairs)
    heads, scale, types = weights.dst.shape[1], scores.edge_scale, edges.matrix.types
    if scores_by_edge_pay(counts(x, kernel, edges.matrix, transposed=False)):
        if x_dst is x:
            maps = Projections(kernel, weights.dst, edges.matrix)
            value, at_dst = typed_values(maps, (x,), precision=edges.precision)
        else:
            value = edges.of_pairs(edges.pair_src, x, RelationMaps(kernel))
            at_dst = relation_dots(x_dst, weights.dst, of_types(edges.matrix, len(kernel)))
        of_value, col_types = weights.src.reshape(len(kernel), -1), edges.types_of_source_pairs()
        if not (scores.multiplicative or scores.within_relations):
            typed = Typed(of_value, at_dst, x_dst, weights.dst, types, col_types)
            if scores.edge_bias is not None:
                at_dst += scores.edge_bias
                typed = replace(typed, at_row=at_dst, row=None, of_row=None)
            options: Any = {"heads": heads, "slope": scores.slope}
            return attend(value, typed, scale, from_pairs, **options)[0]
        score = scores.of(at_dst, typed_dots(value, of_value, col_types, from_pairs, heads=heads))
    else:
        score = scores.of(*edges.end_scores(x, x_dst, weights.both))
        value = edges.of_pairs(edges.pair_src, x, RelationMaps(kernel))
    if not scores.within_relations:
        return attend(value, Given(score), scale, from_pairs, heads=heads)[0]
    rows = part(edges.matrix.to_pairs).by_row
    weight = segment_softmax(score, segments(rows.rows, rows.num_rows))
    weight = weight if scale is None else weight * scale
    return segment_reduce(value, weight, from_pairs, reduce="sum", heads=heads)


# --- HGT -----------------------------------------------------------------------------------------


@auto_axes_like(3)
def attend_hgt(
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
    scale: Array | None = None,
) -> Array:
    """Attention of HGT, ``(destinations, heads · d)``.

    Args:
        graph: With the parts of the method.
        key: ``(sources, k)`` or ``(sources, heads · k)``, what keys are made of.
        value: Likewise of values.
        query: ``(destinations, j)`` or ``(destinations, heads · j)``, what queries are made of, or
            by source pair ``(destinations, heads · d)``, these.
        weights: The maps.
        heads: Number of heads.
        method: The method.
        precision: Of the products.
        made: Whether by source pair the queries are made; else keys are multiplied with their maps,
            too, which there are of one head that has no biases.
        scale: ``(edges, heads)``, factors after the softmax, or None.
    """
    edges, acc = TypedEdges(graph, precision), accumulator_dtype(value.dtype)
    if method == "source_pairs":
        pairs, one = edges.pair_src, jnp.ones((1, 1), acc)
        maps = weights.key if made else weights.query
        keys = edges.of_pairs(pairs, key, maps, transposed=not made)
        values = edges.of_pairs(pairs, value, weights.value)
        from_pairs = part(edges.matrix.from_pairs)
        return attend(values, Dots(query, keys, one), scale, from_pairs, heads=heads)[0]
    queries = edges.of_pairs(edges.pair_dst, query, weights.query)
    shift = None
    if weights.shift is not None:
        shift = edges.of_pairs(edges.pair_dst, query, weights.shift, dtype=acc)
    keys = each_head(key, queries.shape[1])
    same = value is key
    values = keys if same else each_head(value, heads * weights.value.kernel.shape[1])
    return pair_attention(
        *(values, None if same else keys, queries, *weights.value, shift, edges.matrix),
        heads=heads,
        precision=precision,
        scale=scale,
    )
