"""Attention over typed edges, composed of the primitives of each method.

By source pair, rows are multiplied with their relation's weights once for each existing (source,
relation), and edges gather the products. By destination pair, maps that are linear in the source
follow the reduction: edges gather nodes' features, which are summed under the softmax of each
(destination, relation). A second softmax over a destination's pairs, of the logarithms of the first
ones' denominators, then weighs the pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arguments import check_choice
from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.csr import Csr, segments
from jax_gnn._core.ids import take_ids
from jax_gnn._core.relations import Pairs, RelationalMatrix, table_rows
from jax_gnn._core.sharding import auto_axes_like
from jax_gnn._ops.attention.primitive import attend
from jax_gnn._ops.attention.scores import DotScores, EntryScores, TypedScores, typed_dots
from jax_gnn._ops.attention.xla import end_matrices, leaky, shares
from jax_gnn._ops.relational_aggregate.xla import counts, existing, product
from jax_gnn._ops.relational_attention.pair_attention import pair_attention
from jax_gnn._ops.relational_attention.primitive import (
    Projections,
    each_head,
    product_of_heads,
    relation_dots,
    typed_matrix,
    typed_values,
)
from jax_gnn._ops.relational_attention.schedule import (
    METHODS,
    Method,
    chosen,
    dense_scores_pay,
    scores_by_edge_pay,
)
from jax_gnn._ops.relational_attention.weights import HGTWeights, RelationMaps, RGATWeights
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, weighted_sum
from jax_gnn._ops.segment_softmax.primitive import segment_softmax
from jax_gnn.relational import Part, RelationalGraph

# Parts of a graph that a method needs where scores are sums of terms of both ends, and where they
# are dot products.
_NEEDS: dict[str, tuple[tuple[Part, ...], tuple[Part, ...]]] = {
    "source_pairs": (("from_pairs", "to_pairs"), ("from_pairs",)),
    "destination_pairs": (("from_pairs", "to_pairs"), ("to_pairs",)),
}


def choose_method(
    graph: RelationalGraph, method: str, kernel: Array, heads: int, *, dots: bool
) -> Method:
    """Return the method, chosen by counts if it is "auto"."""
    check_choice("method", method, ("auto", *METHODS))

    def missing(method: str) -> list[Part]:
        return [part for part in _NEEDS[method][dots] if getattr(graph, part) is None]

    if method == "auto":
        sizes = counts(kernel, kernel, graph._plain.matrix(), transposed=False)
        sizes = sizes._replace(**{name: 0 for name in _NEEDS if missing(name)})
        if not all(map(missing, _NEEDS)):
            return chosen(sizes, heads, dots=dots)
        method = "source_pairs"
    if parts := missing(method):
        raise ValueError(
            f"method={method!r} goes through {parts[0]!r}, which the graph lacks: add it by "
            f"graph.with_parts({parts[0]!r}), got {graph}"
        )
    return cast(Method, method)


class TypedEdges:
    """Edges and pairs of a graph, with the precision of products."""

    def __init__(self, graph: RelationalGraph, precision: jax.lax.Precision | None) -> None:
        self.num_relations = graph.num_relations
        self.matrix: RelationalMatrix = graph.matrix(weighted=True)
        self.precision = precision
        self._from_pairs = graph.from_pairs

    @property
    def pair_src(self) -> Pairs:
        """(source, relation) pairs, which a method needs."""
        return existing(self.matrix.pair_src)

    @property
    def pair_dst(self) -> Pairs:
        """(destination, relation) pairs, which a method needs."""
        return existing(self.matrix.pair_dst)

    def pair_products(self, pairs: Pairs, x: Array, maps: RelationMaps, **options: Any) -> Array:
        """Return ``(pairs, n)``: rows of x mapped by relation; options are those of `product`."""
        kernel = maps.kernel
        if not options.get("transposed"):
            kernel = _block_diagonal(kernel, x.shape[1])
        options |= {"bias": maps.bias, "precision": self.precision}
        return product(x, kernel, pairs, pairs.gather, **options)

    def end_scores(self, x: Array, x_dst: Array, vectors: Array) -> tuple[Array, Array]:
        """Return ``(edges, heads)`` dots at destinations and at sources.

        ``vectors`` are ``(relations, 2 · heads, k)``, those of destinations first.
        """
        heads, acc = vectors.shape[1] // 2, accumulator_dtype(x.dtype)
        at_src = end_matrices(existing(self.matrix.from_pairs))[1]
        if dense_scores_pay(counts(x, vectors, self.matrix, transposed=True), heads):
            # Dots of all nodes with all relations' vectors, exact as `sddmm`; edges look them up.
            exact: Any = {"precision": "highest", "preferred_element_type": acc}

            def dots(x: Array, vectors: Array) -> Array:
                # Each reshape joins or splits axes alone, as explicit axes of a batch ask.
                table = jnp.einsum("nk,rhk->nrh", x, vectors, **exact)
                return table.reshape(-1, vectors.shape[1])

            if x_dst is x:
                dst_dots, src_dots = jnp.split(dots(x, vectors), 2, axis=1)
            else:
                dst_dots, src_dots = dots(x_dst, vectors[:, :heads]), dots(x, vectors[:, heads:])
            pair_dots = gather(src_dots, self.pair_src.table)
            nodes, num_relations = self.matrix.nodes.by_row, self.num_relations
            rows = table_rows(nodes.rows, self.matrix.types, nodes.num_rows, num_relations)
            return gather(dst_dots, segments(*rows)), gather(pair_dots, at_src)
        # Dots of the existing pairs only; edges look up those of their two pairs.
        dst_vectors, src_vectors = jnp.split(vectors, 2, axis=1)
        src_dots, dst_dots = (
            relation_dots(rows, half, pairs.incidence, by_relation=not pairs.by_node)
            for rows, half, pairs in (
                (x, src_vectors, self.pair_src),
                (x_dst, dst_vectors, self.pair_dst),
            )
        )
        at_dst = end_matrices(existing(self.matrix.to_pairs))[0]
        return gather(dst_dots, at_dst), gather(src_dots, at_src)

    def types_of_source_pairs(self) -> Array:
        """Return ``(source pairs,)`` relations: those of the pairs' first edges."""
        edges = existing(self._from_pairs)
        result: Array = take_ids(self.matrix.types, take_ids(edges.t_order, edges.t_indptr[:-1]))
        return result


def _block_diagonal(kernel: Array, width: int) -> Array:
    """Return maps of rows of a width: block-diagonal if each head has features of its own."""
    relations, k, n = kernel.shape
    if k == width:
        return kernel
    heads = width // k
    is_block = jnp.eye(heads, dtype=bool)[:, None, :, None]
    by_head = kernel.reshape(relations, k, heads, n // heads)[:, None]
    blocks = jnp.where(is_block, by_head, 0).reshape(relations, width, heads, n // heads)
    return blocks.reshape(relations, width, n)


# --- RGAT ----------------------------------------------------------------------------------------


class RGATScores(NamedTuple):
    """Form of RGAT's scores and softmax."""

    # Whether scores are products of both ends' dots, else the LeakyReLU of sums.
    multiplicative: bool
    slope: float  # slope of the LeakyReLU
    edge_bias: Array | None  # (edges, heads) terms of the sums, or factors of the products; or None
    within_relations: bool  # whether the softmax runs within each relation, else over all edges
    edge_scale: Array | None  # (edges, heads) factors after the softmax, or None

    def of(self, dst: Array, src: Array) -> Array:
        """Return ``(edges, heads)`` scores from the dots at destinations and sources."""
        if self.multiplicative:
            return dst * src if self.edge_bias is None else dst * src * self.edge_bias
        terms = dst + src
        return leaky(terms if self.edge_bias is None else terms + self.edge_bias, self.slope)


@auto_axes_like(2)
def attend_rgat(
    graph: RelationalGraph,
    x: Array,
    x_dst: Array,
    weights: RGATWeights,
    scores: RGATScores,
    *,
    method: Method,
    precision: jax.lax.Precision,
    returns_weights: bool = False,
) -> Array:
    """Return attention of RGAT by a method, ``(destinations, heads · n)``.

    ``x_dst`` are features of destinations; x itself if these are the sources. If
    ``returns_weights``, the result is the weights of values, ``(edges, heads)``.
    """
    edges, heads = TypedEdges(graph, precision), weights.dst.shape[1]
    if returns_weights:
        score = scores.of(*edges.end_scores(x, x_dst, weights.vectors))
        return _rgat_weights(edges, score, scores)
    if method == "source_pairs":
        return _rgat_by_source(edges, x, x_dst, weights, scores)
    # Sum sources under the softmax of each destination pair, then multiply each sum once. All heads
    # of a source have the same features until the product.
    score = scores.of(*edges.end_scores(x, x_dst, weights.vectors))
    value, to_pairs = each_head(x, heads * x.shape[1]), existing(edges.matrix.to_pairs)
    sums, stats = attend(value, EntryScores(score), scores.edge_scale, to_pairs, heads=heads)
    pairs = edges.pair_dst
    z = product_of_heads(sums, weights.kernel, None, pairs, heads=heads, precision=precision)
    # Softmaxes within relations are those of the pairs: their sums are added without weights.
    share = None if scores.within_relations else shares(stats, pairs.node_segments)
    share_heads = 1 if share is None else heads
    return weighted_sum(z, share, pairs.node_segments, share_heads)


def _rgat_by_source(
    edges: TypedEdges, x: Array, x_dst: Array, weights: RGATWeights, scores: RGATScores
) -> Array:
    kernel, from_pairs = weights.kernel, existing(edges.matrix.from_pairs)
    heads, scale, types = weights.dst.shape[1], scores.edge_scale, edges.matrix.types
    if scores_by_edge_pay(counts(x, kernel, edges.matrix, transposed=False)):
        # Each edge takes the dots of rows that it reads, in the kernel of attention if it can.
        if x_dst is x:
            maps = Projections(kernel, weights.dst, edges.matrix)
            value, dst_dots = typed_values(maps, (x,), precision=edges.precision)
        else:
            value = edges.pair_products(edges.pair_src, x, RelationMaps(kernel))
            by_type = typed_matrix(edges.matrix, len(kernel))
            dst_dots = relation_dots(x_dst, weights.dst, by_type)
        vectors, pair_types = weights.src.reshape(len(kernel), -1), edges.types_of_source_pairs()
        if not (scores.multiplicative or scores.within_relations):
            typed = TypedScores(vectors, dst_dots, x_dst, weights.dst, types, pair_types)
            if scores.edge_bias is not None:
                at_row = dst_dots + scores.edge_bias
                typed = replace(typed, at_row=at_row, row=None, of_row=None)
            return attend(value, typed, scale, from_pairs, heads=heads, slope=scores.slope)[0]
        src_dots = typed_dots(value, vectors, pair_types, from_pairs, heads=heads)
        score = scores.of(dst_dots, src_dots)
    else:
        score = scores.of(*edges.end_scores(x, x_dst, weights.vectors))
        value = edges.pair_products(edges.pair_src, x, RelationMaps(kernel))
    # The kernel of attention has one softmax for each destination. Softmaxes within relations are
    # computed apart, over destination pairs, as weights of a plain sum.
    if not scores.within_relations:
        return attend(value, EntryScores(score), scale, from_pairs, heads=heads)[0]
    return weighted_sum(value, _rgat_weights(edges, score, scores), from_pairs, heads)


def _rgat_weights(edges: TypedEdges, score: Array, scores: RGATScores) -> Array:
    """Return the weights of values, ``(edges, heads)``."""
    of_pairs, of_nodes = existing(edges.matrix.to_pairs), edges.matrix.nodes
    rows = (of_pairs if scores.within_relations else of_nodes).by_row
    return _weights(score, rows, scores.edge_scale)


def _weights(score: Array, rows: Csr, scale: Array | None) -> Array:
    """Return the softmax of scores over the entries of each row, times `scale` if not None."""
    weight: Array = segment_softmax(score, segments(rows.rows, rows.num_rows))
    return weight if scale is None else weight * scale


# --- HGT -----------------------------------------------------------------------------------------


@auto_axes_like(3)
def attend_hgt(
    graph: RelationalGraph,  # graph with the parts that the method needs
    key: Array,  # inputs of keys, (sources, k) or (sources, heads · k)
    value: Array,  # inputs of values, (sources, k) or (sources, heads · k)
    # By source pair queries, (destinations, heads · d); else inputs of queries, (destinations, j)
    # or (destinations, heads · j).
    query: Array,
    weights: HGTWeights,  # maps by relation
    scale: Array | None = None,  # (edges, heads) factors after the softmax, or None
    *,
    heads: int,  # number of heads
    method: Method,  # method
    precision: jax.lax.Precision,  # precision of products
    # Whether keys by source pair are mapped by the maps of keys; else by the transposed maps of
    # queries, for one head without biases.
    maps_keys: bool = True,
    returns_weights: bool = False,  # whether the result is the weights of values, (edges, heads)
) -> Array:
    """Return attention of HGT, ``(destinations, heads · d)``."""
    edges, acc = TypedEdges(graph, precision), accumulator_dtype(value.dtype)
    # By source pair: A and M are applied to sources, and queries are read as they are. The factor
    # μ / √d is part of A, so that dots are scores.
    if method == "source_pairs":
        pairs, unit = edges.pair_src, jnp.ones((1, 1), acc)
        maps = weights.key if maps_keys else weights.query
        keys = edges.pair_products(pairs, key, maps, transposed=not maps_keys)
        from_pairs = existing(edges.matrix.from_pairs)
        if returns_weights:
            score = sddmm(query, keys, from_pairs, heads=heads)
            return _weights(score, edges.matrix.nodes.by_row, scale)
        values = edges.pair_products(pairs, value, weights.value)
        return attend(values, DotScores(query, keys, unit), scale, from_pairs, heads=heads)[0]
    # By destination pair: Aᵀ is applied to queries, and M after the sums, so that edges gather keys
    # and values of nodes.
    queries = edges.pair_products(edges.pair_dst, query, weights.query)
    shift = None
    if weights.shift is not None:
        shift = edges.pair_products(edges.pair_dst, query, weights.shift, dtype=acc)
    keys = each_head(key, queries.shape[1])
    if returns_weights:
        to_pairs = existing(edges.matrix.to_pairs)
        score = sddmm(queries, keys, to_pairs, heads=heads)
        score += 0 if shift is None else gather(shift, end_matrices(to_pairs)[0])
        return _weights(score, edges.matrix.nodes.by_row, scale)
    # Keys that are values are gathered once.
    if value is key:
        values, separate_keys = keys, None
    else:
        values, separate_keys = each_head(value, heads * weights.value.kernel.shape[1]), keys
    return pair_attention(
        values,
        separate_keys,
        queries,
        weights.value.kernel,
        weights.value.bias,
        shift,
        edges.matrix,
        heads=heads,
        precision=precision,
        scale=scale,
    )
