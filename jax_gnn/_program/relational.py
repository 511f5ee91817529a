"""Attention over typed edges: sums that are RGAT's or HGT's attention as a whole.

Their values are products by (source, relation) pair. Their op chooses a method, as the layers do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn._core.schedule import concrete_size
from jax_gnn._ops.relational_aggregate.schedule import (
    Counts,
    Launch,
    between,
    gathered,
    in_turn,
    once,
)
from jax_gnn._ops.relational_attention.methods import (
    RGATScores,
    attend_hgt,
    attend_rgat,
    choose_method,
)
from jax_gnn._ops.relational_attention.schedule import (
    ID,
    SECTOR,
    Method,
    expected,
    scores_by_edge_pay,
)
from jax_gnn._ops.relational_attention.weights import HGTWeights, RelationMaps, RGATWeights
from jax_gnn._program.derivatives import differentiated_as, zero_where_uncounted
from jax_gnn._program.normal import absorb, may_reorder
from jax_gnn._program.patterns import (
    HGT,
    RGAT,
    Arranged,
    DotScores,
    EdgeScores,
    Factor,
    NodeDots,
    Sum,
    TypedDots,
    TypedScores,
    factors_of,
    leaky_of,
    with_labels,
)
from jax_gnn._program.rows import Apply, Contract, Labels, Pull, Row, contract, sizes_of
from jax_gnn._program.spaces import Parts, Space
from jax_gnn.relational import RelationalGraph

if TYPE_CHECKING:
    from jax_gnn._program.match import Matcher


# --- Matching ------------------------------------------------------------------------------------


def match_scores(program: Matcher, score: Row, value: Factor, heads: Labels) -> TypedScores | None:
    """Match scores that contain dot products of the value with a vector of its relation.

    Args:
        program: The program.
        score: The scores of edges.
        value: The value that they weight.
        heads: Labels of the value that scores have.
    """
    if value.way != "src_pair" or not set(heads) <= set(value.labels):
        return None
    slope, inner = leaky_of(score)
    if inner is not score and not program.is_internal(inner):
        return None
    terms = list(_terms(inner, program))
    for i, term in enumerate(terms):
        vector = _vector_of_value(program, term, value, heads)
        if vector is not None:
            return TypedScores(vector, (*terms[:i], *terms[i + 1 :]), slope)
    return None


def _terms(row: Row, program: Matcher) -> Iterator[Row]:
    """Yield the terms of a sum; nested sums of the row's shape are split further."""
    if not isinstance(row.op, Apply) or row.op.name != "add":
        yield row
        return
    for operand in row.operands:
        if program.is_internal(operand) and operand.shape == row.shape:
            yield from _terms(operand, program)
        else:
            yield operand


def _dots_of_pairs(program: Matcher, term: Row, way: str) -> Row | None:
    """Return the row of pairs that a term reads, if nothing else reads either; else None."""
    if not isinstance(term.op, Pull) or term.op.way != way:
        return None
    (dots,) = term.operands
    return dots if program.is_internal(term) and program.is_internal(dots) else None


def _vector_of_value(program: Matcher, term: Row, value: Factor, heads: Labels) -> Arranged | None:
    """Return the vector whose dot products with the values are a term of scores."""
    dots = _dots_of_pairs(program, term, "src_pair")
    if dots is None or not isinstance(dots.op, Contract):
        return None
    factors, out = factors_of(dots)
    if len(factors) != 2:
        return None
    of_value, vector = factors if factors[0].row is value.base else factors[::-1]
    if of_value.row is not value.base or set(vector.labels) - set(of_value.labels):
        return None
    if vector.way != "relation" and not vector.row.is_shared:
        return None
    renamed = dict(zip(value.labels, of_value.labels, strict=True))
    head_labels = tuple(renamed[label] for label in heads)
    features = tuple(renamed[label] for label in value.labels if label not in heads)
    if out != head_labels or not set(features) <= set(vector.labels):
        return None
    sizes = sizes_of(dots.operands, dots.op.terms)
    order = (*head_labels, *features)
    row = with_labels(Factor(vector.base, vector.labels), order, sizes)
    count = len(heads)
    return Arranged(row, (tuple(range(count)), tuple(range(count, len(order)))))


def match_attention(program: Matcher, pattern: Sum, score: Row) -> Sum | RGAT | HGT:
    """Return the attention that a sum under the softmax of a score is, or the sum."""
    parts, scores = program.parts, pattern.scores
    reorders = may_reorder(pattern.value.row.dtype)
    is_square = parts.num_src == parts.num_dst
    if isinstance(scores, TypedScores):
        has_pairs = parts.rows.keys() >= {Space.SOURCE_PAIR, Space.DESTINATION_PAIR}
        if has_pairs and reorders and is_square:
            rgat = _match_rgat(program, pattern, scores)
            if rgat is not None:
                return rgat
        if not scores_by_edge_pay(counts(parts, 1, 1, 1)):
            return pattern._replace(scores=EdgeScores(score))
        return pattern
    may_be_hgt = pattern.value.way == "src_pair" and pattern.weight is None
    if isinstance(scores, DotScores) and may_be_hgt and reorders and is_square:
        return _match_hgt(program, pattern, scores) or pattern
    return pattern


def _match_rgat(program: Matcher, pattern: Sum, scores: TypedScores) -> RGAT | None:
    value = pattern.value
    if not program.is_internal(value.row):
        return None
    heads = tuple(value.labels.index(label) for label in pattern.heads)
    maps = _linear_maps(program, value.base, heads, uses=2)
    if maps is None or len(maps[0].groups[0]) > len(maps[1].groups[0]):  # each head has features
        return None
    for i, term in enumerate(scores.terms):
        dst = _vector_of_destination(program, term, maps[0])
        if dst is not None:
            terms = (*scores.terms[:i], *scores.terms[i + 1 :])
            return RGAT(pattern, *maps, scores.vector, dst, terms, scores.slope)
    return None


def _vector_of_destination(program: Matcher, term: Row, x: Arranged) -> Arranged | None:
    """Return the vector whose dot products with destinations' rows are a term of scores."""
    dots = _dots_of_pairs(program, term, "dst_pair")
    product = None if dots is None else _node_product(program, dots, "dst")
    if product is None or product.x.base is not x.row or product.per_head:
        return None
    summed = tuple(product.x.labels[axis] for group in x.groups for axis in group)
    return product.arranged_maps((product.out, summed))


def _match_hgt(program: Matcher, pattern: Sum, scores: DotScores) -> HGT | None:
    value, count = pattern.value, len(pattern.heads)
    if not set(pattern.heads) <= set(value.labels) or not program.is_internal(value.row, uses=2):
        return None
    uses = 2 if scores.col_key is value.base else 1
    heads = tuple(value.labels.index(label) for label in pattern.heads)
    of_value = _linear_maps(program, value.base, heads, uses=uses)
    of_key = _linear_maps(program, scores.col_key, tuple(range(count)), uses=uses)
    if of_value is None or of_key is None:
        return None
    query = Arranged(scores.row_key, (tuple(range(len(scores.row_key.shape))),))
    return HGT(pattern, query, *of_key, *of_value, scores.scale)


def _linear_maps(
    program: Matcher, row: Row, heads: tuple[int, ...], uses: int
) -> tuple[Arranged, Arranged] | None:
    """Return features of sources and weights of relations, whose product by pair a row is.

    Features are (k,), or (heads · k,) if each head has its own, weights (k, heads, n). None if the
    row is no such product, or is read elsewhere.
    """
    product = _node_product(program, row, "src") if program.is_internal(row, uses) else None
    if product is None:
        return None
    head_labels = tuple(product.out[axis] for axis in heads)
    if product.per_head and set(product.per_head) != set(head_labels):
        return None
    per_head = head_labels if product.per_head else ()
    axes = tuple(map(product.x.labels.index, (*per_head, *product.summed)))
    features = tuple(label for label in product.out if label not in head_labels)
    kernel = product.arranged_maps((product.summed, head_labels, features))
    return Arranged(product.x.base, (axes,)), kernel


class _NodeProduct(NamedTuple):
    """A product of rows of nodes with linear maps of relations, by pair.

    Attributes:
        x: The rows of nodes, as they are read.
        maps: The maps of relations.
        summed: Labels of x that are summed over.
        per_head: Labels of x that the result has, too.
        out: Labels of the result.
    """

    x: Factor
    maps: Factor
    summed: Labels
    per_head: Labels
    out: Labels

    def arranged_maps(self, groups: tuple[Labels, ...]) -> Arranged:
        """Return the maps with their axes grouped by labels."""
        index = self.maps.labels.index
        return Arranged(self.maps.row, tuple(tuple(map(index, group)) for group in groups))


def _node_product(program: Matcher, row: Row, way: str) -> _NodeProduct | None:
    """Match a product of one row of nodes, read by a way, with factors that relations have."""
    if not isinstance(row.op, Contract):
        return None
    factors, out = factors_of(program.flat(row))
    xs = [factor for factor in factors if factor.way == way]
    maps = [factor for factor in factors if factor.way != way]
    if len(xs) != 1 or all(factor.row.is_shared for factor in maps):
        return None
    if any(factor.way != "relation" and not factor.row.is_shared for factor in maps):
        return None
    (x,) = xs
    labels = dict.fromkeys(label for factor in maps for label in factor.labels)
    outer = tuple(label for label in labels if label in out or label in x.labels)
    summed = tuple(label for label in outer if label in x.labels and label not in out)
    per_head = tuple(label for label in x.labels if label in out)
    if set(x.labels) != {*summed, *per_head} or not summed:
        return None
    if not {*per_head, *out} <= set(outer):
        return None
    if len(maps) == 1 and set(outer) == set(maps[0].labels):
        product = Factor(maps[0].base, maps[0].labels)
    else:
        bases, terms = [factor.base for factor in maps], [factor.labels for factor in maps]
        product = Factor(contract(bases, terms, outer, row, row.op.precision), outer)
    return _NodeProduct(x, product, summed, per_head, out)


# --- Dots of nodes -------------------------------------------------------------------------------


def match_node_dots(program: Matcher, row: Row, dots: TypedDots) -> NodeDots | None:
    """Return dots of pairs as dots of nodes, looked up, if these are counted to take less.

    Dots of products ⟨x W, a⟩ are those of nodes' rows, ⟨x, W a⟩.
    """
    way = {Space.SOURCE_PAIR: "src", Space.DESTINATION_PAIR: "dst"}.get(row.space)
    if way is None or not may_reorder(row.dtype):
        return None
    whole = absorb(row, lambda inner: inner is dots.x.row)
    product = _node_product(program, whole, way)
    if product is None or {*product.maps.labels} != {*product.summed, *product.out}:
        return None
    table = NodeDots(product.x, product.maps, product.out, product.summed)
    return table if table_pays(program.parts, row, dots, table) else None


def table_pays(parts: Parts, row: Row, dots: TypedDots, table: NodeDots) -> bool:
    """Whether dots of all nodes and relations are counted to take less than those of pairs."""
    num_pairs = concrete_size(parts.rows[row.space])
    num_rows = _num_nodes(parts) if dots.x.way else num_pairs
    rows = gathered(num_pairs, dots.x.row.size * np.dtype(row.dtype).itemsize, num_rows)
    before = [] if dots.x.way else [Launch()]  # vectors in front of the maps, W a
    return in_turn(*before, node_dots_launch(parts, row, table)) < in_turn(rows)


def node_dots_launch(parts: Parts, row: Row, table: NodeDots) -> Launch:
    """Return the launch that makes a table of dots; XLA looks up in it where dots are read."""
    counts = parts.rows
    num_pairs, relations = (concrete_size(counts[x]) for x in (row.space, Space.RELATION))
    num_nodes, columns = _num_nodes(parts), relations * row.size
    x_bytes = num_nodes * table.x.row.size * np.dtype(row.dtype).itemsize
    lookup = Launch(0, num_pairs * (max(SECTOR, 4 * row.size) + 2 * ID))
    flops = 2.0 * num_nodes * columns * table.x.row.size
    made = once(x_bytes) + between(num_nodes, 4 * columns) + Launch(0, 0, flops)
    return made + Launch(extra=lookup.time - Launch().time)


def _num_nodes(parts: Parts) -> int:
    return max(concrete_size(parts.num_src), concrete_size(parts.num_dst))


# --- Cost ----------------------------------------------------------------------------------------


def counts(parts: Parts, k: int, n: int, itemsize: int) -> Counts:
    """Return the sizes by which a method is chosen, for maps from k features to n."""
    rows = {space: max(concrete_size(size), 1) for space, size in parts.rows.items()}
    return Counts(
        num_src=concrete_size(parts.num_src),
        num_dst=concrete_size(parts.num_dst),
        edges=rows[Space.EDGE],
        relations=rows[Space.RELATION],
        source_pairs=rows.get(Space.SOURCE_PAIR, 0),
        destination_pairs=rows.get(Space.DESTINATION_PAIR, 0),
        k=k,
        n=n,
        itemsize=itemsize,
    )


def cheapest_method(parts: Parts, pattern: RGAT | HGT) -> tuple[Method, float]:
    """Return the method that is chosen, and its expected time in microseconds."""
    kernel = pattern.to_value if isinstance(pattern, HGT) else pattern.kernel
    k, heads, n = (math.prod(kernel.row.shape[i] for i in group) for group in kernel.groups)
    sizes = counts(parts, k, heads * n, np.dtype(kernel.row.dtype).itemsize)
    times = expected(sizes, heads, dots=isinstance(pattern, HGT))
    return min(times.items(), key=lambda item: item[1])


# --- Lowering ------------------------------------------------------------------------------------


def rgat(
    pattern: RGAT,
    graph: RelationalGraph,
    arrange: Callable[[Arranged], Array],
    terms: Array | None,
    scale: Array | None,
    precision: Any,
) -> Array:
    """Compute RGAT's attention ``(nodes, heads · n)``.

    Args:
        pattern: The attention.
        graph: The graph.
        arrange: Makes arrays ``(rows, *groups)`` of rows.
        terms: ``(edges, heads)``, added to scores, or None.
        scale: ``(edges, heads)``, factors after the softmax, or None.
        precision: Precision of products.
    """
    x, kernel, src, dst = map(arrange, (pattern.x, pattern.kernel, pattern.src, pattern.dst))
    relations, k, heads, n = kernel.shape
    src = jnp.broadcast_to(src, (relations, heads, n))
    folded_src = jnp.sum(jnp.swapaxes(kernel, 1, 2) * src[:, :, None], -1)
    folded = jnp.concatenate([dst, folded_src], 1)  # dead code in methods that do not fold
    weights = RGATWeights(kernel.reshape(relations, k, -1), src, dst, folded)
    method = choose_method(graph, "auto", weights.kernel, heads, dots=False)
    scores = RGATScores(False, pattern.slope, terms, False, scale)
    y: Array = attend_rgat(graph, x, x, weights, scores, method=method, precision=precision)
    return y


def node_dots(
    nodes: Array, vectors: Array, pattern: NodeDots, precision: Any, *masks: Array | None
) -> Array:
    """Return dots of all nodes with the vectors of all relations, ``(nodes · relations, *heads)``.

    Gradients ignore the rows of nodes and relations that edges do not read, by a mask of each.
    """
    acc = accumulator_dtype(nodes.dtype)
    rows = [1 + max((*pattern.x.labels, *pattern.vector.labels)) + i for i in range(2)]

    def dots(nodes: Array, vectors: Array, *_: object) -> Array:
        x, vector = [rows[0], *pattern.x.labels], [rows[1], *pattern.vector.labels]
        out, options = [*rows, *pattern.heads], {"preferred_element_type": acc}
        table = jnp.einsum(nodes, x, vectors, vector, out, precision=precision, **options)
        return table.reshape(-1, *table.shape[2:])

    def masked_dots(nodes: Array, vectors: Array, *masks: Array) -> Array:
        return dots(*map(zero_where_uncounted, (nodes, vectors), masks))

    table: Array = differentiated_as(dots, masked_dots)(nodes, vectors, *masks)
    return table


def hgt(
    pattern: HGT,
    graph: RelationalGraph,
    arrange: Callable[[Arranged], Array],
    scale: Array | None,
    precision: Any,
) -> Array:
    """Compute HGT's attention ``(nodes, heads · n)``; `scale` multiplies scores, if not None.

    Other arguments: as in `rgat`.
    """
    query, key, value = map(arrange, (pattern.query, pattern.key, pattern.value))
    to_key, to_value = map(arrange, (pattern.to_key, pattern.to_value))
    if scale is not None:
        to_key = to_key * scale.astype(to_key.dtype)
    relations, k, heads, d = to_key.shape
    to_query = to_key.transpose(0, 3, 2, 1).reshape(relations, d, heads * k)
    weights = HGTWeights(
        RelationMaps(to_key.reshape(relations, k, -1)),
        RelationMaps(to_value.reshape(*to_value.shape[:2], -1)),
        RelationMaps(to_query),
    )
    method = choose_method(graph, "auto", weights.value.kernel, heads, dots=True)
    y: Array = attend_hgt(
        graph, key, value, query, weights, heads=heads, method=method, precision=precision
    )
    return y
