"""Methods of attention over typed edges, what each is expected to take, and the choice of one.

Counted as sums of products by relation are (``relational_aggregate/schedule.py``), and at the same
rates. What differs is how many rows an edge gathers: one, or two where scores are dot products and
keys and values were multiplied by source pair; and the numbers that scores are added up from.
"""

from __future__ import annotations

from typing import Literal, get_args

from jax_gnn._ops.relational_aggregate.schedule import (
    FAMILY,
    Counts,
    Launch,
    between,
    gathered,
    in_turn,
    multiplied,
    once,
)

Method = Literal["source_pairs", "destination_pairs"]
METHODS: tuple[Method, ...] = get_args(Method)

_IDS, _ID, _SCORE, _SECTOR = 8, 4, 4, 32
"""Bytes: both ids of an edge, its relation, a score, the least that is read."""


def expected(counts: Counts, heads: int, *, dots: bool) -> dict[Method, float]:
    """What each method that the graph has the parts for is expected to take, in microseconds.

    What no method is without is left out, such as the product after the sums of HGT.

    Args:
        counts: Of the graph, and of the product with the values' weights of all heads.
        heads: Number of heads.
        dots: Whether scores are dot products of rows, so that an edge gathers two by source pair;
            else they are sums of a number at either end.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    k, n = c.k * c.itemsize, c.n * c.itemsize
    ids, result = once(c.edges * _IDS), once(c.num_dst * n)
    scores = Launch(0, c.edges * heads * _SCORE)
    found: dict[Method, float] = {}
    if pairs := c.source_pairs:
        product = gathered(pairs, k, c.num_src) + multiplied(c, pairs) + between(pairs, n)
        rows = between(c.edges, n, pairs)
        if dots:
            queries = once(c.num_dst * (k + n)) + Launch(0, 0, 2 * c.num_dst * c.k * c.n)
            before, rows = [queries, product], rows + rows + once(c.num_dst * n)
        elif not scores_by_edge_pay(c):
            before, rows = _of_ends(c, heads), rows + scores
        else:
            before = _of_destinations(c, heads)
            # Vectors are read where another destination pair begins.
            vectors = Launch(0, c.edges * _ID + (1 if before else 2) * c.destination_pairs * n)
            rows += vectors + (scores if before else once(c.num_dst * k))
        found["source_pairs"] = in_turn(product, *before, ids + rows + result)
    if pairs := c.destination_pairs:
        # Sources are as wide as all heads here, each of which sums them for itself.
        wide = between(pairs, heads * k)
        rows = gathered(c.edges, heads * k, c.num_src)
        if dots:
            queries = multiplied(c._replace(n=heads * c.k), pairs) + wide
            before, rows = [gathered(pairs, k, c.num_dst) + queries], rows + wide
        else:
            before, rows = _of_ends(c, heads), rows + scores
        shares = Launch(0, 3 * pairs * heads * _SCORE)
        product = wide + multiplied(c, pairs) + between(pairs, n)
        last = between(pairs, n) + shares + result
        found["destination_pairs"] = in_turn(*before, ids + rows + wide, shares, product, last)
    return found


def _of_destinations(c: Counts, heads: int) -> list[Launch]:
    """Numbers at the destinations of edges that have values at their source.

    None for one head as wide as x, whose rows go through the kernel of attention.
    """
    if heads == 1 and c.k == c.n:
        return []
    rows = gathered(c.destination_pairs, c.k * c.itemsize, c.num_src)
    read = Launch(0, c.edges * (_IDS + heads * _SCORE))
    if heads == 1:
        return [rows + read + Launch(0, c.edges * _ID)]
    return [*_of_pairs(c, heads)[1:], read + Launch(0, c.edges * _SECTOR)]


def _of_ends(c: Counts, heads: int) -> list[Launch]:
    """Scores of edges that are made of a number of each pair at either end."""
    read = Launch(0, c.edges * (_IDS + 2 * _SECTOR + heads * _SCORE))
    return [*(_of_nodes(c, heads) if dense_scores_pay(c, heads) else _of_pairs(c, heads)), read]


def _of_nodes(c: Counts, heads: int) -> list[Launch]:
    """One product of all nodes with the vectors of all relations."""
    columns = 2 * c.relations * heads
    size = c.num_src * c.k * c.itemsize
    flops = 2 * c.num_src * c.k * columns
    return [once(size) + between(c.num_src, columns * _SCORE) + Launch(0, 0, flops)]


def _of_pairs(c: Counts, heads: int) -> list[Launch]:
    """A product for each existing pair."""
    row = c.k * c.itemsize
    narrow = c._replace(n=heads)
    return [
        gathered(pairs, row, c.num_src) + multiplied(narrow, pairs) + between(pairs, heads * _SCORE)
        for pairs in (c.source_pairs, c.destination_pairs)
    ]


def scores_by_edge_pay(counts: Counts) -> bool:
    """Whether edges had better take dots of the rows they read than numbers of the pairs there are.

    Measured on an H200, 64 features, one head: with 1.8 edges a pair (FB15k-237) that takes as long
    in inference and 0.8 of the time in training, with 2.9 (biokg) and 3.1 (mag) 1.2 to 1.3 times as
    long in both.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    return c.edges <= 2 * (c.source_pairs + c.destination_pairs)


def dense_scores_pay(counts: Counts, heads: int) -> bool:
    """Whether numbers of all nodes and relations come sooner than those of the pairs there are."""
    c = Counts(**FAMILY.known(**counts._asdict()))
    return in_turn(*_of_nodes(c, heads)) < in_turn(*_of_pairs(c, heads))


def chosen(counts: Counts, heads: int, *, dots: bool) -> Method:
    """The method to take, among those that the graph has the parts for."""
    times = expected(counts, heads, dots=dots)
    return min(times, key=lambda method: times[method])
