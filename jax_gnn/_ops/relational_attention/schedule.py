"""Methods of attention over typed edges, a model of their time, and the choice of one.

The model is that of sums of products by relation (``relational_aggregate/schedule.py``), with the
same rates. In addition, it counts the rows that an edge gathers (two where scores are dot products
and keys and values were multiplied by source pair, else one) and the terms of scores.
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

# Bytes of both ids of an edge, its relation, a score, and a sector, the unit of reads.
_IDS, ID, _SCORE, SECTOR = 8, 4, 4, 32


def expected(counts: Counts, heads: int, *, dots: bool) -> dict[Method, float]:
    """Return the expected microseconds of each method that the graph has the parts for.

    Work that all methods share is left out, such as the product after the sums of HGT.

    Args:
        counts: Sizes of the graph, and of the product with the values' weights of all heads.
        heads: Number of heads.
        dots: Whether scores are dot products of rows, so that an edge gathers two by source pair;
            else they are sums of a term at either end.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    k, n = c.k * c.itemsize, c.n * c.itemsize
    # Each launch adds what it reads, multiplies and writes; launches run in turn.
    ids, result = once(c.edges * _IDS), once(c.num_dst * n)
    scores = Launch(0, c.edges * heads * _SCORE)
    times: dict[Method, float] = {}
    if pairs := c.source_pairs:
        product = gathered(pairs, k, c.num_src) + multiplied(c, pairs) + between(pairs, n)
        rows = between(c.edges, n, pairs)
        if dots:
            queries = once(c.num_dst * (k + n)) + Launch(0, 0, 2 * c.num_dst * c.k * c.n)
            before, rows = [queries, product], rows + rows + once(c.num_dst * n)
        elif not scores_by_edge_pay(c):
            before, rows = _end_terms(c, heads), rows + scores
        else:
            # Edges are sorted by destination pair: each pair reads its vector once. Several heads
            # and other widths have a launch more, for terms at destinations, which is not counted.
            before = []
            rows += Launch(0, c.edges * ID + 2 * c.destination_pairs * n) + once(c.num_dst * k)
        times["source_pairs"] = in_turn(product, *before, ids + rows + result)
    if pairs := c.destination_pairs:
        # Each head sums all features of the sources, which are repeated for all heads.
        wide = between(pairs, heads * k)
        rows = gathered(c.edges, heads * k, c.num_src)
        if dots:
            queries = multiplied(c._replace(n=heads * c.k), pairs) + wide
            before, rows = [gathered(pairs, k, c.num_dst) + queries], rows + wide
        else:
            before, rows = _end_terms(c, heads), rows + scores
        shares = Launch(0, 3 * pairs * heads * _SCORE)
        product = wide + multiplied(c, pairs) + between(pairs, n)
        weighted_sum = between(pairs, n) + shares + result
        times["destination_pairs"] = in_turn(
            *before, ids + rows + wide, shares, product, weighted_sum
        )
    return times


def _end_terms(c: Counts, heads: int) -> list[Launch]:
    """Return the launches of scores that are sums of a term of each pair at either end."""
    reads = Launch(0, c.edges * (_IDS + 2 * SECTOR + heads * _SCORE))
    return [
        *(_node_terms(c, heads) if dense_scores_pay(c, heads) else _pair_terms(c, heads)),
        reads,
    ]


def _node_terms(c: Counts, heads: int) -> list[Launch]:
    """Return the launch of one product of all nodes with the vectors of all relations."""
    columns = 2 * c.relations * heads
    size = c.num_src * c.k * c.itemsize
    flops = 2 * c.num_src * c.k * columns
    return [once(size) + between(c.num_src, columns * _SCORE) + Launch(0, 0, flops)]


def _pair_terms(c: Counts, heads: int) -> list[Launch]:
    """Return the launches of products for all existing pairs, of sources and of destinations."""
    row = c.k * c.itemsize
    narrow = c._replace(n=heads)
    return [
        gathered(pairs, row, c.num_src) + multiplied(narrow, pairs) + between(pairs, heads * _SCORE)
        for pairs in (c.source_pairs, c.destination_pairs)
    ]


def scores_by_edge_pay(counts: Counts) -> bool:
    """Return whether edges should take dots of the rows they read, in place of terms of pairs.

    Measured on an H200, 64 features, one head: with 1.8 edges a pair (FB15k-237) dots of edges take
    as long in inference and 0.8 of the time in training; with 2.9 (biokg) and 3.1 (mag), 1.2 to 1.3
    times as long in both.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    return c.edges <= 2 * (c.source_pairs + c.destination_pairs)


def dense_scores_pay(counts: Counts, heads: int) -> bool:
    """Return whether terms of all nodes and relations are faster than those of existing pairs."""
    c = Counts(**FAMILY.known(**counts._asdict()))
    return in_turn(*_node_terms(c, heads)) < in_turn(*_pair_terms(c, heads))


def chosen(counts: Counts, heads: int, *, dots: bool) -> Method:
    """Return the method to take, among those that the graph has the parts for."""
    times = expected(counts, heads, dots=dots)
    return min(times, key=lambda method: times[method])
