"""Pattern matching: the op that makes a row, for lowering, costs and explanations.

Patterns are found by structure: the factors of products, and the ways by which they are read.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jax_gnn._program import relational
from jax_gnn._program.backend import backend
from jax_gnn._program.normal import absorb, may_reorder
from jax_gnn._program.patterns import (
    HGT,
    RGAT,
    Count,
    DotScores,
    EdgeDots,
    EdgeScores,
    Einsum,
    Factor,
    LeakyScores,
    NodeDots,
    PairSum,
    Pattern,
    Scores,
    Sum,
    SumScores,
    TypedDots,
    TypedProduct,
    factors_of,
    leaky_of,
    other_ends,
    rows_in,
    with_labels,
)
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Input,
    Labels,
    Pull,
    Push,
    Row,
    Softmax,
    contract,
    pull,
    sizes_of,
    topological_order,
)
from jax_gnn._program.spaces import Parts, Space

if TYPE_CHECKING:
    from jax_gnn._program.online_softmax import OnlineSoftmax
    from jax_gnn._program.regions import EdgeRegion

_SOURCES = {"src": Space.NODE, "src_pair": Space.SOURCE_PAIR}
_DESTINATIONS = {"dst": Space.NODE, "dst_pair": Space.DESTINATION_PAIR}


class Matcher:
    """Finds the patterns of a program.

    Attributes:
        uses: How often each row is read; rows that are missing are read once.
        parts: The spaces of the graph.
        compact: Whether products that a pattern introduces move to the smallest space.
        regions: The edge regions by their results, which have no patterns.
        softmaxes: Pairs of regions that one walk computes, by each of them.
        training_times: Times of rows, which `Costs` of one program share for all `regions`.
    """

    def __init__(self, uses: Mapping[Row, int], parts: Parts, compact: bool = True) -> None:
        """Make a matcher.

        Args:
            uses: See above, as for the others.
            parts: See there.
            compact: See there.
        """
        self.parts = parts
        self.compact = compact
        self.regions: Mapping[Row, EdgeRegion] = {}
        self.softmaxes: Mapping[EdgeRegion, OnlineSoftmax] = {}
        self.uses = uses
        self.training_times: dict[Hashable, float] = {}
        self._patterns: dict[Row, Pattern] = {}

    def __call__(self, row: Row) -> Pattern:
        """Return the pattern of a product or reduction; None for other rows."""
        if row not in self._patterns:
            self._patterns[row] = self._match(row)
        return self._patterns[row]

    def _match(self, row: Row) -> Pattern:
        if isinstance(row.op, Contract):
            return self._product(row)
        if isinstance(row.op, Push):
            if row.operands[0].space is Space.DESTINATION_PAIR:
                return PairSum(row.operands[0])
            return self._reduction(row)
        return None

    def is_internal(self, row: Row, uses: int = 1) -> bool:
        """Whether a row is read at most `uses` times, so that a pattern may contain it."""
        return self.uses.get(row, 1) <= uses

    def flat(self, row: Row) -> Row:
        """Return an einsum with the factors of its internal factors."""
        new = absorb(row, lambda inner: self.is_internal(inner) and inner.space is row.space)
        return row if new is row else self.flat(new)

    # --- Products ------------------------------------------------------------------------------

    def _product(self, row: Row) -> Pattern:
        factors, out = factors_of(row)
        if len(factors) == 2 and not any(factor.row.is_shared for factor in factors):
            product = self._typed_product(row, factors, out) or _edge_dots(row, factors, out)
            if isinstance(product, TypedDots):
                return relational.match_node_dots(self, row, product) or product
            if product is not None:
                return product
        return Einsum(tuple(factors))

    def _typed_product(self, row: Row, factors: Sequence[Factor], out: Labels) -> Pattern:
        way = "type" if row.space is Space.NODE else "relation"
        for weight, x in (factors, factors[::-1]):
            if weight.way != way or x.way == way:
                continue
            of_x, of_weight = set(x.labels), set(weight.labels)
            common = of_x & of_weight
            summed = tuple(label for label in weight.labels if label in common - set(out))
            if not summed or (of_x ^ of_weight) - set(out):
                return None
            batch = tuple(label for label in weight.labels if label in common & set(out))
            x_only = tuple(label for label in x.labels if label not in of_weight)
            weight_only = tuple(label for label in weight.labels if label not in of_x)
            if weight_only:
                return TypedProduct(x, weight, batch, summed, x_only, weight_only)
            if not x_only and way == "relation":
                return TypedDots(x, weight, batch, summed)
        return None

    # --- Reductions ----------------------------------------------------------------------------

    def _reduction(self, row: Row) -> Pattern:
        assert isinstance(row.op, Push)
        operand, reduce, way = row.operands[0], row.op.reduce, row.op.way
        if operand.is_shared or (isinstance(operand.op, Pull) and operand.op.way == way):
            return Count(operand, reduce, way)
        is_product = isinstance(operand.op, Contract) and self.is_internal(operand)
        if reduce not in ("max", "min") and is_product and row.space is not Space.GRAPH:
            pattern = self._weighted(row, self.flat(operand), reduce)
            if pattern is not None and not (backend() == "cpu" and _is_weighted_at_edges(pattern)):
                return pattern
        labels = tuple(range(len(operand.shape)))
        return Sum(Factor(operand, labels), None, None, (), labels, (), reduce, row.space, way)

    def _weighted(self, row: Row, product: Row, reduce: str) -> Pattern:
        """Return the pattern of a reduced product: some factors are the value, others weights."""
        assert isinstance(row.op, Push)
        way = row.op.way
        factors, result_labels = factors_of(product)
        sizes = sizes_of(product.operands, [factor.labels for factor in factors])
        if any(
            label not in sizes and size != 1
            for label, size in zip(result_labels, product.shape, strict=True)
        ):
            return None  # an axis of copies
        out = tuple(label for label in result_labels if label in sizes)
        # Shared factors without summed labels multiply the result; others are values or weights.
        after = [f for f in factors if f.row.is_shared and set(f.labels) <= set(out)]
        inside = [factor for factor in factors if factor not in after]
        softmaxes = [factor for factor in inside if isinstance(factor.row.op, Softmax)]
        values = [factor for factor in inside if factor.way in other_ends(way, row.space)]
        summed = set(sizes) - set(out)
        if summed:
            values += [f for f in inside if f not in values and set(f.labels) & summed]
        if not values and way == "src":
            return None  # weights and values in the edges' order are multiplied before
        if not values:
            candidates = [factor for factor in inside if factor not in softmaxes] or inside
            values = [max(candidates, key=lambda factor: len(factor.labels))]
        weights = [factor for factor in inside if all(factor is not value for value in values)]
        missing = set(out) - {label for value in values for label in value.labels}
        heads = tuple(label for label in out if any(label in f.labels for f in weights))
        if missing - set(heads):
            return None
        is_forward = way == "dst"
        if not may_reorder(product.dtype) and (after or len(values) > 1 or len(weights) > 1):
            return None
        value = self._value(values, out, product)
        softmax = softmaxes[0] if len(softmaxes) == 1 and softmaxes[0] in weights else None
        scores = None
        if (
            softmax is not None
            and self.is_internal(softmax.row)
            and row.space is Space.NODE
            and reduce == "sum"
            and is_forward
            and softmax.row.op == Softmax()
        ):
            weights.remove(softmax)
            scores = self._scores(softmax, heads, value, sizes)
        weight = self._weight(weights, heads, row, sizes)
        pattern = Sum(
            value, weight, scores, heads, result_labels, tuple(after), reduce, row.space, way
        )
        if not (is_forward or pattern.source[1]):
            return None
        if scores is None or softmax is None:
            return pattern
        return relational.match_attention(self, pattern, softmax.row.operands[0])

    def _value(self, values: Sequence[Factor], out: Labels, product: Row) -> Factor:
        """Return the product of the values, made in the smallest space."""
        labels = tuple(label for label in out if any(label in f.labels for f in values))
        if len(values) == 1 and set(values[0].labels) == set(labels):
            return values[0]
        assert isinstance(product.op, Contract)
        rows, terms = [f.row for f in values], [f.labels for f in values]
        value = contract(rows, terms, labels, product, product.op.precision)
        return Factor(at_home(value, self.parts) if self.compact else value, labels)

    def _weight(
        self, weights: Sequence[Factor], heads: Labels, row: Row, sizes: Mapping[int, int]
    ) -> Row | None:
        """Return the product of weights: for each edge, a number for each head."""
        if not weights:
            return None
        if len(weights) == 1 and weights[0].labels == heads:
            return weights[0].row
        rows, terms = [f.row for f in weights], [f.labels for f in weights]
        return contract(rows, terms, heads, row, sizes=sizes)

    # --- Scores --------------------------------------------------------------------------------

    def _scores(
        self, softmax: Factor, heads: Labels, value: Factor, sizes: Mapping[int, int]
    ) -> Scores:
        """Return the scores of a softmax, as far as attention's kernels compute them."""
        score = softmax.row.operands[0]
        if softmax.labels != heads:  # in another order, or shared by heads
            return EdgeScores(contract([score], [softmax.labels], heads, score, sizes=sizes))
        scores: Scores | None = None
        if value.way in _SOURCES and self.is_internal(score):
            scores = (
                self._sum_scores(score, value)
                or self._dot_scores(score, value)
                or self._leaky_scores(score, value)
                or relational.match_scores(self, score, value, heads)
            )
        return scores or EdgeScores(score)

    def _terms_of_ends(self, row: Row, value: Factor) -> tuple[Row, Row] | None:
        """Return the terms of destinations and of the values' sources, if a row is their sum."""
        if not isinstance(row.op, Apply) or row.op.name != "add":
            return None
        for dst, src in (row.operands, row.operands[::-1]):
            at_dst, at_src = _read_at_destination(dst), _read_at_source(src, value.way)
            if at_dst is not None and at_src is not None:
                return at_dst, at_src
        return None

    def _sum_scores(self, score: Row, value: Factor) -> SumScores | None:
        slope, inner = leaky_of(score)
        if inner is not score and not self.is_internal(inner):
            return None
        terms = self._terms_of_ends(inner, value)
        return None if terms is None else SumScores(terms[0], terms[1], slope)

    def _dot_scores(self, score: Row, value: Factor) -> DotScores | None:
        if not isinstance(score.op, Contract):
            return None
        flat = self.flat(score)
        factors, out = factors_of(flat)
        scales = [factor for factor in factors if factor.row.is_shared and not factor.labels]
        keys = [factor for factor in factors if factor not in scales]
        if len(keys) != 2 or (len(scales) > 1 and not may_reorder(score.dtype)):
            return None
        dots = _edge_dots(flat, keys, out)
        if dots is None or dots.heads != out or dots.dst.way != "dst":
            return None
        assert isinstance(flat.op, Contract)
        labels = (*dots.heads, *dots.summed)
        sizes = sizes_of(flat.operands, flat.op.terms)
        col_key = _read_at_source(with_labels(dots.src, labels, sizes), value.way)
        if col_key is None:
            return None
        row_key = with_labels(Factor(dots.dst.base, dots.dst.labels), labels, sizes)
        scale = None
        if scales:
            scale = contract([f.row for f in scales], [()] * len(scales), (), score)
        return DotScores(row_key, col_key, scale)

    def _leaky_scores(self, score: Row, value: Factor) -> LeakyScores | None:
        if not isinstance(score.op, Contract):
            return None
        factors, out = factors_of(score)
        if len(factors) != 2:
            return None
        vector, leaky = sorted(factors, key=lambda factor: not factor.row.is_shared)
        if not vector.row.is_shared or leaky.row.space is not Space.EDGE:
            return None
        slope, inner = leaky_of(leaky.row)
        is_leaky = inner is not leaky.row
        if not (is_leaky and self.is_internal(inner) and self.is_internal(leaky.row)):
            return None
        summed = [label for label in leaky.labels if label not in out]
        if leaky.labels != (*out, *summed) or set(vector.labels) != set(leaky.labels):
            return None
        terms = self._terms_of_ends(inner, value)
        if terms is None or not summed:
            return None
        return LeakyScores(terms[0], terms[1], with_labels(vector, leaky.labels, {}), slope)


def _is_weighted_at_edges(pattern: Pattern) -> bool:
    """Whether XLA weighs values where it makes them, or reads them, faster than a CPU's kernel.

    These are values of edges that a function makes, and values of which each feature has a weight.
    """
    if not isinstance(pattern, Sum) or (pattern.weight is None and pattern.scores is None):
        return False
    value, labels = pattern.value, set(pattern.value.labels)
    is_made = not pattern.source[1] and not isinstance(value.row.op, Input)
    return bool(labels) and (is_made or labels <= set(pattern.heads))


def _read_at_destination(row: Row) -> Row | None:
    """Return the row of nodes that edges read at their destinations; None for other rows."""
    return row.operands[0] if isinstance(row.op, Pull) and row.op.way == "dst" else None


def _read_at_source(row: Row, way: str) -> Row | None:
    """Return the row of sources, or of their pairs, that edges read; None for other rows."""
    if not isinstance(row.op, Pull):
        return None
    if row.op.way == way:
        return row.operands[0]
    if way == "src_pair" and row.op.way in ("src", "relation"):
        return pull(row.operands[0], Space.SOURCE_PAIR, row.op.way)
    return None


def at_home(row: Row, parts: Parts) -> Row:
    """Return a function or product made in the smallest sufficient space, and read from there."""
    ways: list[str] = []
    for operand in row.operands:
        if isinstance(operand.op, Pull):
            ways.append(operand.op.way)
        elif not operand.is_shared:
            return row
    home = parts.home(row.space, ways) if ways else None
    if home is None:
        return row
    operands = [
        pull(operand.operands[0], home.space, home.ways[operand.op.way])
        if isinstance(operand.op, Pull)
        else operand
        for operand in row.operands
    ]
    assert isinstance(row.op, Apply | Contract)
    op = replace(row.op, read_by=_read_by(row.op.read_by, home.way))
    moved = Row(op, tuple(operands), home.space, row.shape, row.dtype, row.line)
    return pull(at_home(moved, parts), row.space, home.way)


def _read_by(outer: frozenset[str] | None, way: str) -> frozenset[str]:
    """Return the ways by which edges read a row that rows read by `outer` read by a way."""
    if way != "type" or outer is None:
        return frozenset([way])
    return frozenset(f"{side}_type" if side in ("src", "dst") else way for side in outer)


def _edge_dots(row: Row, factors: Sequence[Factor], out: Labels) -> EdgeDots | None:
    if row.space is not Space.EDGE:
        return None
    for dst, src in (factors, factors[::-1]):
        is_pair_by_pair = (dst.way, src.way) == ("dst_pair", "src_pair")
        if dst.way not in _DESTINATIONS or src.way not in _SOURCES or is_pair_by_pair:
            continue
        heads = tuple(label for label in out if label in (*dst.labels, *src.labels))
        summed = tuple(label for label in dst.labels if label not in out)
        is_dot = set(summed) <= set(src.labels) <= {*heads, *summed}
        return EdgeDots(dst, src, heads, summed) if summed and is_dot else None
    return None


def needed_rows(results: Sequence[Row], matcher: Matcher) -> list[Row]:
    """Return the rows that are materialized, each after the rows that its op takes."""
    return topological_order(results, lambda row: rows_taken(row, matcher))


def rows_taken(row: Row, matcher: Matcher) -> list[Row]:
    """Return the rows whose arrays the op of a row takes."""
    if row in matcher.regions:
        return matcher.regions[row].input_rows
    pattern = matcher(row)
    match pattern:
        case NodeDots(x, vector):
            return [x.base, vector.row]
        case TypedProduct(x, weight) | TypedDots(x, weight):
            gathers = x.way in ("src", "dst") and row.space is not Space.NODE
            return [x.base if gathers else x.row, weight.base]
        case EdgeDots(dst, src):
            return [dst.base, src.base]
        case Count(operand):
            return [operand if operand.is_shared else operand.operands[0]]
        case Sum(_, weight, scores, _, _, after):
            rows = [pattern.source[0], *rows_in((weight, scores))]
            return rows + [factor.row for factor in after]
        case RGAT() | HGT():
            of_sum = pattern.sum.weight, tuple(factor.row for factor in pattern.sum.after)
            return rows_in((of_sum, pattern[1:]))
    return list(row.operands)
