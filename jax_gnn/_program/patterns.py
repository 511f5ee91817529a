"""What ops make of rows: each pattern is a named tuple of the rows that its op takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax_gnn._ops.attention.xla import LEAKY_COMPARISON
from jax_gnn._program.rows import Apply, Contract, Labels, Pull, Row, contract, pull
from jax_gnn._program.spaces import Space


class Factor(NamedTuple):
    """A factor of a product.

    Attributes:
        row: As the product reads it.
        labels: Of its axes.
    """

    row: Row
    labels: Labels

    @property
    def way(self) -> str:
        """How it is read; "" is the row itself."""
        return self.row.op.way if isinstance(self.row.op, Pull) else ""

    @property
    def base(self) -> Row:
        """What is read."""
        return self.row.operands[0] if isinstance(self.row.op, Pull) else self.row


class Einsum(NamedTuple):
    """An einsum of rows that are there in full; the fallback."""

    factors: tuple[Factor, ...]


class TypedProduct(NamedTuple):
    """Rows times the weights of their relation or type: ``segment_matmul``.

    Attributes:
        x: The rows.
        weight: The weights.
        batch: Labels that both have and the result: products of their own.
        summed: Labels that both have.
        more: Labels that only x has.
        out: Labels that only weights have.
    """

    x: Factor
    weight: Factor
    batch: Labels
    summed: Labels
    more: Labels
    out: Labels


class TypedDots(NamedTuple):
    """Dot products of rows with those of their relation: ``sddmm``.

    Attributes:
        x: The rows.
        vector: Those of relations.
        heads: Labels of the result.
        summed: The others.
    """

    x: Factor
    vector: Factor
    heads: Labels
    summed: Labels


class EdgeDots(NamedTuple):
    """Dot products of rows of both ends: ``sddmm``.

    Attributes:
        dst: Of destinations.
        src: Of sources.
        heads: Labels of the result.
        summed: The others.
    """

    dst: Factor
    src: Factor
    heads: Labels
    summed: Labels


class Arranged(NamedTuple):
    """A row whose axes are put in groups, each of which is one axis of an array.

    Attributes:
        row: As it is, not as it is read.
        groups: Of its axes, by number.
    """

    row: Row
    groups: tuple[tuple[int, ...], ...]


class Ends(NamedTuple):
    """Scores LeakyReLU(row + col) of numbers at both ends."""

    row: Any
    col: Any
    slope: float


class Given(NamedTuple):
    """Scores of edges alone."""

    score: Any


class Dots(NamedTuple):
    """Scores scale · ⟨row_key, col_key⟩."""

    row_key: Any
    col_key: Any
    scale: Any


class Leaky(NamedTuple):
    """Scores ⟨vector, LeakyReLU(row_key + col_key)⟩."""

    row_key: Any
    col_key: Any
    vector: Any
    slope: float


class Typed(NamedTuple):
    """Scores LeakyReLU(⟨value, vector of the relation⟩ + numbers).

    Attributes:
        vector: Of relations or shared, (heads, features).
        numbers: Of edges, added up.
        slope: Of the LeakyReLU.
    """

    vector: Arranged
    numbers: tuple[Row, ...]
    slope: float


Scores = Ends | Given | Dots | Leaky | Typed


class Sum(NamedTuple):
    """Weighted rows reduced at each destination, or (destination, relation): ``spmm``, attention.

    Attributes:
        value: What is reduced, read by sources, their pairs, or an edge's own.
        weight: Of edges, or None.
        scores: Of the softmax that weights it, too, or None.
        heads: Labels of weights.
        out: Labels of the result.
        after: Shared factors of the result.
        reduce: How.
        into: The space of the result.
    """

    value: Factor
    weight: Row | None
    scores: Scores | None
    heads: Labels
    out: Labels
    after: tuple[Factor, ...]
    reduce: str
    into: Space


class RGAT(NamedTuple):
    """All of RGAT's attention: ``rgat_attention``.

    Attributes:
        sum: What it is as a sum of values.
        x: Of nodes, (k,).
        kernel: Of relations, (k, heads, n).
        src: Of relations or shared, (heads, n).
        dst: Of relations, (heads, k).
        numbers: Of edges, added to scores before the LeakyReLU.
        slope: Of that.
    """

    sum: Sum
    x: Arranged
    kernel: Arranged
    src: Arranged
    dst: Arranged
    numbers: tuple[Row, ...]
    slope: float


class HGT(NamedTuple):
    """All of HGT's attention: ``hgt_attention``.

    Attributes:
        sum: What it is as a sum of values.
        query: Of nodes, (heads · d,).
        key: Of nodes, (k,) or (heads · k,).
        to_key: Of relations, (k, heads, d).
        value: Of nodes, likewise.
        to_value: Of relations, likewise.
        scale: Shared, or None.
    """

    sum: Sum
    query: Arranged
    key: Arranged
    to_key: Arranged
    value: Arranged
    to_value: Arranged
    scale: Row | None


class RelationalSum(NamedTuple):
    """Weighted products by relation, summed up: ``relational_aggregate``.

    Attributes:
        x: Of sources.
        weight: Of relations.
        edge_weight: Of edges, one number each; or None.
        summed: Labels that both have.
        rest: Labels that weights have.
        out: Labels of the result.
        after: Shared factors of the result.
    """

    x: Factor
    weight: Factor
    edge_weight: Row | None
    summed: Labels
    rest: Labels
    out: Labels
    after: tuple[Factor, ...]


class Count(NamedTuple):
    """A reduction of what does not vary over the edges of a destination."""

    row: Row
    reduce: str


class PairSum(NamedTuple):
    """The sum of (destination, relation) pairs at each destination."""

    row: Row


Product = Einsum | TypedProduct | TypedDots | EdgeDots
Reduction = Sum | RGAT | HGT | RelationalSum | Count | PairSum
Pattern = Product | Reduction | None


# --- Factors -------------------------------------------------------------------------------------


def factors_of(row: Row) -> tuple[list[Factor], Labels]:
    """The factors of an einsum and the labels of its result."""
    assert isinstance(row.op, Contract)
    return list(map(Factor, row.operands, row.op.terms)), row.op.out


def leaky_of(row: Row) -> tuple[float, Row]:
    """The slope of a LeakyReLU of attention's kernels, and its operand; otherwise 1 and the row.

    These have the same derivative at 0, and -inf, which masks scores, stays -inf.
    """
    if isinstance(row.op, Apply) and row.op.name == "leaky_relu":
        slope = row.op.params["slope"]
        if row.op.params["comparison"] == LEAKY_COMPARISON and 0 < slope < math.inf:
            return slope, row.operands[0]
    return 1.0, row


def in_order_of(factor: Factor, labels: Labels, sizes: Mapping[int, int]) -> Row:
    """A row with its axes in another order, and copies where it lacks one."""
    if factor.labels == labels:
        return factor.row
    row = factor.row
    if isinstance(row.op, Pull):
        base = in_order_of(Factor(row.operands[0], factor.labels), labels, sizes)
        return pull(base, row.space, row.op.way)
    return contract([row], [factor.labels], labels, row, sizes=sizes)


def rows_in(fields: Any) -> list[Row]:
    """The rows in a named tuple and the tuples in it."""
    if isinstance(fields, Row):
        return [fields]
    return [row for each in fields for row in rows_in(each)] if isinstance(fields, tuple) else []


def width(labels: Labels, sizes: Mapping[int, int]) -> int:
    """How many numbers axes have together."""
    return math.prod(sizes[label] for label in labels)


def is_read(value: Factor, into: Space) -> bool:
    """Whether a sum reads a value where it is, at sources or their pairs."""
    return value.way == "src" or (value.way == "src_pair" and into is Space.NODE)
