"""Patterns: for each op, a named tuple of the rows that it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from jax_gnn._ops.attention.xla import LEAKY_COMPARISON
from jax_gnn._program.rows import Apply, Contract, Labels, Pull, Row, contract, pull
from jax_gnn._program.spaces import Space


class Factor(NamedTuple):
    """A factor of a product.

    Attributes:
        row: The row as the product reads it.
        labels: Labels of its axes.
    """

    row: Row
    labels: Labels

    @property
    def way(self) -> str:
        """The way by which it is read; "" if it is not a read."""
        return self.row.op.way if isinstance(self.row.op, Pull) else ""

    @property
    def base(self) -> Row:
        """The row that is read, or the row itself."""
        return self.row.operands[0] if isinstance(self.row.op, Pull) else self.row


class Einsum(NamedTuple):
    """An einsum of materialized rows; the fallback."""

    factors: tuple[Factor, ...]


class TypedProduct(NamedTuple):
    """Rows times the weights of their relation or type: ``segment_matmul``.

    Attributes:
        x: The rows.
        weight: The weights.
        batch: Labels of x, weights and result: independent products.
        summed: Labels of x and weights that are summed over.
        x_only: Labels of x and result.
        out: Labels of weights and result.
    """

    x: Factor
    weight: Factor
    batch: Labels
    summed: Labels
    x_only: Labels
    out: Labels


class TypedDots(NamedTuple):
    """Dot products of rows with those of their relation: ``sddmm``.

    Attributes:
        x: The rows.
        vector: The rows of relations.
        heads: Labels of the result.
        summed: Labels that are summed over.
    """

    x: Factor
    vector: Factor
    heads: Labels
    summed: Labels


class NodeDots(TypedDots):
    """Dot products of pairs, looked up in a table of all nodes with the vectors of all relations.

    They have the attributes of `TypedDots`; `x` is read from nodes, `vector` is no read.
    """


class EdgeDots(NamedTuple):
    """Dot products of rows of destinations and sources: ``sddmm``.

    Attributes:
        dst: The rows of destinations.
        src: The rows of sources.
        heads: Labels of the result.
        summed: Labels that are summed over.
    """

    dst: Factor
    src: Factor
    heads: Labels
    summed: Labels


class Arranged(NamedTuple):
    """A row whose axes are grouped; each group is one axis of an array.

    Attributes:
        row: The row, not a read of it.
        groups: Axes of each group.
    """

    row: Row
    groups: tuple[tuple[int, ...], ...]


class SumScores(NamedTuple):
    """Scores LeakyReLU(row + col) of numbers of destinations and sources."""

    row: Row
    col: Row
    slope: float


class EdgeScores(NamedTuple):
    """Scores that are a row of edges."""

    score: Row


class DotScores(NamedTuple):
    """Scores scale · ⟨row_key, col_key⟩."""

    row_key: Row
    col_key: Row
    scale: Row | None


class LeakyScores(NamedTuple):
    """Scores ⟨vector, LeakyReLU(row_key + col_key)⟩."""

    row_key: Row
    col_key: Row
    vector: Row
    slope: float


class TypedScores(NamedTuple):
    """Scores LeakyReLU(⟨value, vector of the relation⟩ + terms).

    Attributes:
        vector: Vectors of relations or shared, (heads, features).
        terms: Rows of edges that are added.
        slope: Slope of the LeakyReLU.
    """

    vector: Arranged
    terms: tuple[Row, ...]
    slope: float


Scores = SumScores | EdgeScores | DotScores | LeakyScores | TypedScores


class Sum(NamedTuple):
    """Weighted rows reduced at an end of edges, a pair or a graph: ``spmm``, or attention.

    Attributes:
        value: The reduced rows, read from the other end, its pairs, or by edge.
        weight: Weights of edges, or None.
        scores: Scores whose softmax is a further weight, or None.
        heads: Labels of weights.
        out: Labels of the result.
        after: Shared factors of the result.
        reduce: The reduction.
        dest: Space of the result.
        way: The way from a reduced row to its result.
    """

    value: Factor
    weight: Row | None
    scores: Scores | None
    heads: Labels
    out: Labels
    after: tuple[Factor, ...]
    reduce: str
    dest: Space
    way: str = "dst"

    @property
    def source(self) -> tuple[Row, str]:
        """The row that the kernel reads, and the way by which it gathers it, or "" if by edge."""
        gathers = self.value.way in other_ends(self.way, self.dest)
        return (self.value.base, self.value.way) if gathers else (self.value.row, "")


class RGAT(NamedTuple):
    """RGAT's attention as a whole: ``rgat_attention``.

    Attributes:
        sum: The same as a sum of values.
        x: Features of nodes, (k,).
        kernel: Weights of relations, (k, heads, n).
        src: Vectors of relations or shared, (heads, n).
        dst: Vectors of relations, (heads, k).
        terms: Rows of edges that are added to scores before the LeakyReLU.
        slope: Slope of the LeakyReLU.
    """

    sum: Sum
    x: Arranged
    kernel: Arranged
    src: Arranged
    dst: Arranged
    terms: tuple[Row, ...]
    slope: float


class HGT(NamedTuple):
    """HGT's attention as a whole: ``hgt_attention``.

    Attributes:
        sum: The same as a sum of values.
        query: Queries of nodes, (heads · d,).
        key: Keys of nodes, (k,) or (heads · k,).
        to_key: Weights of relations, (k, heads, d).
        value: Values of nodes, (k,) or (heads · k,).
        to_value: Weights of relations, (k, heads, d).
        scale: Shared scale of scores, or None.
    """

    sum: Sum
    query: Arranged
    key: Arranged
    to_key: Arranged
    value: Arranged
    to_value: Arranged
    scale: Row | None


class Count(NamedTuple):
    """A reduction of rows that are the same for all that a row is reduced of."""

    row: Row
    reduce: str
    way: str


class PairSum(NamedTuple):
    """The sum of (destination, relation) pairs at each destination."""

    row: Row


Product = Einsum | TypedProduct | TypedDots | EdgeDots
Reduction = Sum | RGAT | HGT | Count | PairSum
Pattern = Product | Reduction | None


# --- Factors -------------------------------------------------------------------------------------


def factors_of(row: Row) -> tuple[list[Factor], Labels]:
    """Return the factors of an einsum, and the labels of its result."""
    assert isinstance(row.op, Contract)
    return list(map(Factor, row.operands, row.op.terms)), row.op.out


def leaky_of(row: Row) -> tuple[float, Row]:
    """Return slope and operand of a LeakyReLU that attention's kernels compute; else 1 and the row.

    These have the same derivative at 0, and leave the -inf of masked scores.
    """
    if isinstance(row.op, Apply) and row.op.name == "leaky_relu":
        slope = row.op.params["slope"]
        if row.op.params["comparison"] == LEAKY_COMPARISON and 0 < slope < math.inf:
            return slope, row.operands[0]
    return 1.0, row


def with_labels(factor: Factor, labels: Labels, sizes: Mapping[int, int]) -> Row:
    """Return a factor's row with its axes in another order, broadcast where it lacks a label."""
    if factor.labels == labels:
        return factor.row
    row = factor.row
    if isinstance(row.op, Pull):
        base = with_labels(Factor(row.operands[0], factor.labels), labels, sizes)
        return pull(base, row.space, row.op.way)
    return contract([row], [factor.labels], labels, row, sizes=sizes)


def rows_in(fields: object) -> list[Row]:
    """Return the rows in a tuple and the tuples in it."""
    if isinstance(fields, Row):
        return [fields]
    return [row for item in fields for row in rows_in(item)] if isinstance(fields, tuple) else []


def width(labels: Labels, sizes: Mapping[int, int]) -> int:
    """Return the product of the sizes of labels."""
    return math.prod(sizes[label] for label in labels)


def other_ends(way: str, dest: Space) -> tuple[str, ...]:
    """Return the ways by which kernels of reductions gather rows, from the other ends of edges."""
    if way != "dst":
        return ("dst",) if way == "src" else ()
    return ("src", "src_pair") if dest is Space.NODE else ("src",)
