"""Attention over typed edges: sums that are RGAT's or HGT's, whose op chooses its method.

They are found where values are products by (source, relation) pair, and computed as the layers do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.schedule import concrete_size
from jax_gnn._ops.relational_aggregate.schedule import Counts
from jax_gnn._ops.relational_attention.methods import (
    RGATScores,
    attend_hgt,
    attend_rgat,
    choose_method,
)
from jax_gnn._ops.relational_attention.schedule import Method, expected, scores_by_edge_pay
from jax_gnn._ops.relational_attention.weights import HGTWeights, RelationMaps, RGATWeights
from jax_gnn._program.normal import may_reorder
from jax_gnn._program.patterns import (
    HGT,
    RGAT,
    Arranged,
    Dots,
    Factor,
    Given,
    Sum,
    Typed,
    factors_of,
    in_order_of,
    leaky_of,
)
from jax_gnn._program.rows import Apply, Contract, Labels, Pull, Row, contract, sizes_of
from jax_gnn._program.spaces import Parts, Space
from jax_gnn.relational import RelationalGraph


class Program(Protocol):
    """What is asked of the rows of a program."""

    parts: Parts

    def is_lone(self, row: Row, uses: int = 1) -> bool:
        """Whether nothing else reads a row that is read so often."""

    def flat(self, row: Row) -> Row:
        """An einsum with the factors of its factors, as far as nothing else reads these."""


# --- Finding it ----------------------------------------------------------------------------------


def typed_scores(program: Program, score: Row, value: Factor, heads: Labels) -> Typed | None:
    """Scores that a value's dots with a vector of its relation are part of, or None.

    Args:
        program: Whose rows they are.
        score: Of edges.
        value: What the scores weight.
        heads: The value's labels of scores.
    """
    if value.way != "src_pair" or not set(heads) <= set(value.labels):
        return None
    slope, of = leaky_of(score)
    if of is not score and not program.is_lone(of):
        return None
    terms = list(_terms(of, program))
    for i, term in enumerate(terms):
        vector = _vector(program, term, value, heads)
        if vector is not None:
            return Typed(vector, (*terms[:i], *terms[i + 1 :]), slope)
    return None


def _terms(row: Row, program: Program) -> Iterator[Row]:
    """What is added up to a row, of its shape."""
    if isinstance(row.op, Apply) and row.op.name == "add":
        for each in row.operands:
            if program.is_lone(each) and each.shape == row.shape:
                yield from _terms(each, program)
            else:
                yield each
    else:
        yield row


def _vector(program: Program, term: Row, value: Factor, heads: Labels) -> Arranged | None:
    """The vector whose dots with the values are a term of scores."""
    if not isinstance(term.op, Pull) or term.op.way != "src_pair":
        return None
    (dots,) = term.operands
    if not isinstance(dots.op, Contract) or not (program.is_lone(term) and program.is_lone(dots)):
        return None
    factors, out = factors_of(dots)
    if len(factors) != 2:
        return None
    of_value, vector = factors if factors[0].row is value.base else factors[::-1]
    if of_value.row is not value.base or set(vector.labels) - set(of_value.labels):
        return None
    if vector.way != "relation" and vector.row.space is not Space.SHARED:
        return None
    names = dict(zip(value.labels, of_value.labels, strict=True))
    at_heads = tuple(names[label] for label in heads)
    features = tuple(names[label] for label in value.labels if label not in heads)
    if out != at_heads or not set(features) <= set(vector.labels):
        return None
    sizes = sizes_of(dots.operands, dots.op.terms)
    order = (*at_heads, *features)
    row = in_order_of(Factor(vector.base, vector.labels), order, sizes)
    count = len(heads)
    return Arranged(row, (tuple(range(count)), tuple(range(count, len(order)))))


def attention(program: Program, found: Sum, score: Row) -> Sum | RGAT | HGT:
    """A sum under the softmax of a score as the attention that it is, or itself."""
    parts = program.parts
    there = parts.rows.keys() >= {Space.SOURCE_PAIR, Space.DESTINATION_PAIR}
    there = there and may_reorder(found.value.row.dtype)
    made: RGAT | HGT | None = None
    if isinstance(found.scores, Typed):
        if there and parts.num_src == parts.num_dst:
            made = _rgat(program, found, found.scores)
        if made is None and not scores_by_edge_pay(counts(parts, 1, 1, 1)):
            return found._replace(scores=Given(score))
    elif (
        isinstance(found.scores, Dots)
        and found.weight is None
        and found.value.way == "src_pair"
        and parts.num_src == parts.num_dst
        and may_reorder(found.value.row.dtype)
    ):
        made = _hgt(program, found, found.scores)
    return found if made is None else made


def _rgat(program: Program, found: Sum, scores: Typed) -> RGAT | None:
    value = found.value
    if not program.is_lone(value.row):
        return None
    heads = tuple(value.labels.index(label) for label in found.heads)
    maps = _maps(program, value.base, heads, uses=2)
    if maps is None or maps.is_own:
        return None
    for i, term in enumerate(scores.numbers):
        dst = _destinations(program, term, maps.x)
        if dst is not None:
            rest = (*scores.numbers[:i], *scores.numbers[i + 1 :])
            return RGAT(found, maps.x, maps.kernel, scores.vector, dst, rest, scores.slope)
    return None


def _destinations(program: Program, term: Row, x: Arranged) -> Arranged | None:
    """The vectors whose dots with destinations' rows are a term of scores."""
    if not isinstance(term.op, Pull) or term.op.way != "dst_pair":
        return None
    (dots,) = term.operands
    if not (program.is_lone(term) and program.is_lone(dots)):
        return None
    found = _of_nodes(program, dots, "dst")
    if found is None or found.x.base is not x.row or found.own:
        return None
    summed = tuple(found.x.labels[axis] for group in x.groups for axis in group)
    return found.arranged((found.out, summed))


def _hgt(program: Program, found: Sum, scores: Dots) -> HGT | None:
    value, count = found.value, len(found.heads)
    if not set(found.heads) <= set(value.labels) or not program.is_lone(value.row, uses=2):
        return None
    uses = 2 if scores.col_key is value.base else 1
    heads = tuple(value.labels.index(label) for label in found.heads)
    of_value = _maps(program, value.base, heads, uses=uses)
    of_key = _maps(program, scores.col_key, tuple(range(count)), uses=uses)
    if of_value is None or of_key is None:
        return None
    query = Arranged(scores.row_key, (tuple(range(len(scores.row_key.shape))),))
    rows = of_key.x, of_key.kernel, of_value.x, of_value.kernel
    return HGT(found, query, *rows, scores.scale)


class _Maps(NamedTuple):
    """What makes rows of (source, relation) pairs.

    Attributes:
        x: Of sources, (k,) or, if each head has its own, (heads · k,).
        kernel: Of relations, (k, heads, n).
        is_own: See above.
    """

    x: Arranged
    kernel: Arranged
    is_own: bool


def _maps(program: Program, row: Row, heads: tuple[int, ...], uses: int) -> _Maps | None:
    """Of a product; None if it is none, or something else needs it."""
    found = _of_nodes(program, row, "src") if program.is_lone(row, uses) else None
    if found is None:
        return None
    at_heads = tuple(found.out[axis] for axis in heads)
    if found.own and set(found.own) != set(at_heads):
        return None
    own = at_heads if found.own else ()
    x = Arranged(found.x.base, (tuple(map(found.x.labels.index, (*own, *found.summed))),))
    rest = tuple(label for label in found.out if label not in at_heads)
    return _Maps(x, found.arranged((found.summed, at_heads, rest)), bool(own))


class _OfNodes(NamedTuple):
    """A product of rows of nodes with what relations have, at pairs of both.

    Attributes:
        x: Of nodes, as they are read.
        maps: Of relations.
        summed: Labels of x that are summed over.
        own: Those that the result has, too.
        out: Of the result.
    """

    x: Factor
    maps: Factor
    summed: Labels
    own: Labels
    out: Labels

    def arranged(self, groups: tuple[Labels, ...]) -> Arranged:
        """The maps, in groups of labels."""
        of = tuple(tuple(map(self.maps.labels.index, group)) for group in groups)
        return Arranged(self.maps.row, of)


def _of_nodes(program: Program, row: Row, way: str) -> _OfNodes | None:
    """Of a row of pairs, whose nodes are read by a way; all other factors as one."""
    if not isinstance(row.op, Contract):
        return None
    factors, out = factors_of(program.flat(row))
    xs = [each for each in factors if each.way == way]
    others = [each for each in factors if each.way != way]
    if len(xs) != 1 or all(each.row.space is Space.SHARED for each in others):
        return None
    if any(each.way != "relation" and each.row.space is not Space.SHARED for each in others):
        return None
    (x,) = xs
    held = dict.fromkeys(label for each in others for label in each.labels)
    kept = tuple(label for label in held if label in out or label in x.labels)
    summed = tuple(label for label in kept if label in x.labels and label not in out)
    own = tuple(label for label in x.labels if label in out)
    if set(x.labels) != {*summed, *own} or not summed or not {*own, *out} <= set(kept):
        return None
    if len(others) == 1 and set(kept) == set(others[0].labels):
        return _OfNodes(x, Factor(others[0].base, others[0].labels), summed, own, out)
    bases, terms = [each.base for each in others], [each.labels for each in others]
    precision = row.op.precision
    maps = contract(bases, terms, kept, row, precision)
    return _OfNodes(x, Factor(maps, kept), summed, own, out)


# --- What it takes -------------------------------------------------------------------------------


def counts(parts: Parts, k: int, n: int, itemsize: int) -> Counts:
    """What the choice of a method looks at, of rows of k features to n."""
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


def choice(parts: Parts, found: RGAT | HGT) -> tuple[Method, float]:
    """The method that is taken, and the microseconds that it is expected to take."""
    kernel = found.to_value if isinstance(found, HGT) else found.kernel
    k, heads, n = (math.prod(kernel.row.shape[i] for i in group) for group in kernel.groups)
    known = counts(parts, k, heads * n, np.dtype(kernel.row.dtype).itemsize)
    times = expected(known, heads, dots=isinstance(found, HGT))
    method = min(times, key=lambda each: times[each])
    return method, times[method]


# --- Computing it --------------------------------------------------------------------------------


def rgat(
    found: RGAT,
    graph: RelationalGraph,
    arrays: Callable[[Arranged], Array],
    numbers: Array | None,
    scale: Array | None,
    precision: Any,
) -> Array:
    """``(nodes, heads · n)``.

    Args:
        found: What is attended.
        graph: The graph.
        arrays: Makes arrays of rows, (rows, *groups).
        numbers: ``(edges, heads)``, added to scores, or None.
        scale: ``(edges, heads)``, factors after the softmax, or None.
        precision: Of products.
    """
    x, kernel, src, dst = map(arrays, (found.x, found.kernel, found.src, found.dst))
    relations, k, heads, n = kernel.shape
    src = jnp.broadcast_to(src, (relations, heads, n))
    at_src = jnp.sum(jnp.swapaxes(kernel, 1, 2) * src[:, :, None], -1)
    both = jnp.concatenate([dst, at_src], 1)  # dead where the method does without
    weights = RGATWeights(kernel.reshape(relations, k, -1), src, dst, both)
    method = choose_method(graph, "auto", weights.kernel, heads, dots=False)
    scores = RGATScores(False, found.slope, numbers, False, scale)
    return attend_rgat(graph, x, x, weights, scores, method=method, precision=precision)


def hgt(
    found: HGT,
    graph: RelationalGraph,
    arrays: Callable[[Arranged], Array],
    scale: Array | None,
    precision: Any,
) -> Array:
    """``(nodes, heads · n)``; `scale` is a number by which scores are multiplied, or None."""
    query, key, value = map(arrays, (found.query, found.key, found.value))
    to_key, to_value = map(arrays, (found.to_key, found.to_value))
    if scale is not None:
        to_key = to_key * scale.astype(to_key.dtype)
    relations, k, heads, d = to_key.shape
    to_query = to_key.transpose(0, 3, 2, 1).reshape(relations, d, heads * k)
    maps = to_key.reshape(relations, k, -1), to_value.reshape(*to_value.shape[:2], -1), to_query
    weights = HGTWeights(*map(RelationMaps, maps))
    method = choose_method(graph, "auto", weights.value.kernel, heads, dots=True)
    operands = graph, key, value, query, weights
    return attend_hgt(*operands, heads=heads, method=method, precision=precision)
