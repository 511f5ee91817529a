"""Which op makes a row: what the lowering does, costs count and explanations say.

Patterns are found by structure: by what is a product of what, and which ways its factors are read
by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax_gnn._program import relational
from jax_gnn._program.normal import may_reorder, taken_in
from jax_gnn._program.patterns import (
    HGT,
    RGAT,
    Count,
    Dots,
    EdgeDots,
    Einsum,
    Ends,
    Factor,
    Given,
    Leaky,
    PairSum,
    Pattern,
    RelationalSum,
    Scores,
    Sum,
    TypedDots,
    TypedProduct,
    factors_of,
    in_order_of,
    is_read,
    leaky_of,
    rows_in,
)
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Labels,
    Pull,
    Push,
    Row,
    Softmax,
    contract,
    in_order,
    pull,
    sizes_of,
)
from jax_gnn._program.spaces import Parts, Space

_SOURCES = {"src": Space.NODE, "src_pair": Space.SOURCE_PAIR}
_DESTINATIONS = {"dst": Space.NODE, "dst_pair": Space.DESTINATION_PAIR}


class Matcher:
    """Finds patterns in a program.

    Attributes:
        parts: What the graph has.
        compact: Whether products that it makes itself go to the space that suffices.
        regions: The edge regions of the program by their results, of which there are no patterns.
    """

    def __init__(self, uses: Mapping[Row, int], parts: Parts, compact: bool = True) -> None:
        """Of a program whose rows are read as often as `uses` says; others once."""
        self.parts = parts
        self.compact = compact
        self.regions: Mapping[Row, Any] = {}
        self._uses = uses
        self._found: dict[Row, Pattern] = {}

    def __call__(self, row: Row) -> Pattern:
        """The pattern of a row, or None: a function or a softmax or what is only read."""
        if row not in self._found:
            self._found[row] = self._match(row)
        return self._found[row]

    def _match(self, row: Row) -> Pattern:
        if isinstance(row.op, Contract):
            return self._product(row)
        if isinstance(row.op, Push):
            if row.operands[0].space is Space.DESTINATION_PAIR:
                return PairSum(row.operands[0])
            return self._reduction(row)
        return None

    def is_lone(self, row: Row, uses: int = 1) -> bool:
        """Whether nothing else reads a row that is read so often."""
        return self._uses.get(row, 1) <= uses

    def flat(self, row: Row) -> Row:
        """An einsum with the factors of its factors, as far as nothing else reads these."""
        new = taken_in(row, lambda each: self.is_lone(each) and each.space is row.space)
        return row if new is row else self.flat(new)

    # --- Products ------------------------------------------------------------------------------

    def _product(self, row: Row) -> Pattern:
        factors, out = factors_of(row)
        vary = [each for each in factors if each.row.space is not Space.SHARED]
        if len(factors) == 2 and len(vary) == 2:
            typed = self._typed(row, factors, out)
            if typed is not None:
                return typed
            dots = _edge_dots(row, factors, out)
            if dots is not None:
                return dots
        return Einsum(tuple(factors))

    def _typed(self, row: Row, factors: Sequence[Factor], out: Labels) -> Pattern:
        way = "type" if row.space is Space.NODE else "relation"
        for weight, x in (factors, factors[::-1]):
            if weight.way != way or x.way == way:
                continue
            labels, own = set(x.labels), set(weight.labels)
            both = labels & own
            summed = tuple(label for label in weight.labels if label in both - set(out))
            alone = (labels ^ own) - set(out)
            if not summed or alone:
                return None
            batch = tuple(label for label in weight.labels if label in both & set(out))
            more = tuple(label for label in x.labels if label not in own)
            rest = tuple(label for label in weight.labels if label not in labels)
            if rest:
                return TypedProduct(x, weight, batch, summed, more, rest)
            if not more and way == "relation":
                return TypedDots(x, weight, batch, summed)
        return None

    # --- Reductions ----------------------------------------------------------------------------

    def _reduction(self, row: Row) -> Pattern:
        assert isinstance(row.op, Push)
        of, reduce = row.operands[0], row.op.reduce
        if of.space is Space.SHARED or (isinstance(of.op, Pull) and of.op.way == "dst"):
            return Count(of, reduce)
        if reduce in ("max", "min") or not isinstance(of.op, Contract) or not self.is_lone(of):
            return self._plain(row)
        of = self.flat(of)
        found = self._weighted(row, of, reduce)
        return self._plain(row) if found is None else found

    def _plain(self, row: Row) -> Pattern:
        """Of rows as they are."""
        assert isinstance(row.op, Push)
        (of,) = row.operands
        labels = tuple(range(len(of.shape)))
        return Sum(Factor(of, labels), None, None, (), labels, (), row.op.reduce, row.space)

    def _weighted(self, row: Row, product: Row, reduce: str) -> Pattern:
        """Of a product: some factors are the value, the others weights of it."""
        factors, out = factors_of(product)
        sizes = sizes_of(product.operands, [each.labels for each in factors])
        if any(
            label not in sizes and size != 1 for label, size in zip(out, product.shape, strict=True)
        ):
            return None  # an axis of copies
        full, out = out, tuple(label for label in out if label in sizes)
        shared = [each for each in factors if each.row.space is Space.SHARED]
        after = [each for each in shared if set(each.labels) <= set(out)]
        rest = [each for each in factors if each not in after]
        softmax = [each for each in rest if isinstance(each.row.op, Softmax)]
        from_pairs = row.space is Space.NODE
        ways = ("src", "src_pair") if from_pairs else ("src",)
        carried = [each for each in rest if each.way in ways]
        summed = set(sizes) - set(out)
        if summed:
            carried += [each for each in rest if each not in carried and set(each.labels) & summed]
        if not carried:
            others = [each for each in rest if each not in softmax] or rest
            carried = [max(others, key=lambda each: len(each.labels))]
        weights = [each for each in rest if all(each is not other for other in carried)]
        left = set(out) - {label for each in carried for label in each.labels}
        heads = tuple(label for label in out if any(label in each.labels for each in weights))
        if left - set(heads):
            return None
        if summed and not softmax and reduce == "sum" and may_reorder(product.dtype):
            found = self._relational(row, carried, weights, heads, out, after, full)
            if found is not None:
                return found
        if not may_reorder(product.dtype) and (after or len(carried) > 1 or len(weights) > 1):
            return None
        value = self._value(carried, out, product)
        if value is None:
            return None
        scores = None
        one = softmax[0] if len(softmax) == 1 and softmax[0] in weights else None
        if (
            one is not None
            and self.is_lone(one.row)
            and row.space is Space.NODE
            and reduce == "sum"
        ):
            weights.remove(one)
            scores = self._scores(one, heads, value, sizes)
        weight = self._weight(weights, heads, row, sizes)
        found = Sum(value, weight, scores, heads, full, tuple(after), reduce, row.space)
        if scores is None or one is None:
            return found
        return relational.attention(self, found, one.row.operands[0])

    def _relational(
        self,
        row: Row,
        carried: Sequence[Factor],
        weights: Sequence[Factor],
        heads: Labels,
        out: Labels,
        after: Sequence[Factor],
        full: Labels,
    ) -> Pattern:
        """Where the value is a source's row times its relation's weights."""
        if len(carried) != 2 or heads or row.space is not Space.NODE:
            return None
        by_way = {each.way: each for each in carried}
        if set(by_way) != {"src", "relation"}:
            return None
        x, weight = by_way["src"], by_way["relation"]
        summed = tuple(label for label in x.labels if label in weight.labels)
        if set(summed) != set(x.labels) or set(summed) & set(out):
            return None
        rest = tuple(label for label in weight.labels if label not in summed)
        edge_weight = self._weight(weights, (), row, {})
        return RelationalSum(x, weight, edge_weight, summed, rest, full, tuple(after))

    def _value(self, carried: Sequence[Factor], out: Labels, product: Row) -> Factor | None:
        """The product of the factors that are carried, where it is read."""
        labels = tuple(label for label in out if any(label in each.labels for each in carried))
        if len(carried) == 1:
            (only,) = carried
            if set(only.labels) == set(labels):
                return only
        made = contract(
            [each.row for each in carried],
            [each.labels for each in carried],
            labels,
            product,
            product.op.precision,  # type: ignore[union-attr]
        )
        if self.compact:
            made = at_home(made, self.parts)
        return Factor(made, labels)

    def _weight(
        self, weights: Sequence[Factor], heads: Labels, row: Row, sizes: Mapping[int, int]
    ) -> Row | None:
        """The product of weights, a row of each edge with a number for each head."""
        if not weights:
            return None
        if len(weights) == 1 and weights[0].labels == heads:
            return weights[0].row
        operands = [each.row for each in weights]
        return contract(operands, [each.labels for each in weights], heads, row, sizes=sizes)

    # --- Scores --------------------------------------------------------------------------------

    def _scores(
        self, softmax: Factor, heads: Labels, value: Factor, sizes: Mapping[int, int]
    ) -> Scores:
        """What the scores of a softmax are made of, as far as attention makes them itself."""
        score = softmax.row.operands[0]
        if softmax.labels != heads:  # in another order, or some heads have one score
            return Given(contract([score], [softmax.labels], heads, score, sizes=sizes))
        if value.way in _SOURCES and self.is_lone(score):
            found = (
                self._ends(score, value)
                or self._dots(score, value)
                or self._leaky(score, value)
                or relational.typed_scores(self, score, value, heads)
            )
            if found is not None:
                return found
        return Given(score)

    def _sum_of_ends(self, row: Row, value: Factor) -> tuple[Row, Row] | None:
        """The two terms of a sum, of the destination and where values are read from."""
        if not isinstance(row.op, Apply) or row.op.name != "add":
            return None
        for dst, src in (row.operands, row.operands[::-1]):
            at_dst, at_src = self.of_destinations(dst), self.of_sources(src, value.way)
            if at_dst is not None and at_src is not None:
                return at_dst, at_src
        return None

    def _ends(self, score: Row, value: Factor) -> Scores | None:
        slope, of = leaky_of(score)
        if of is not score and not self.is_lone(of):
            return None
        found = self._sum_of_ends(of, value)
        return None if found is None else Ends(*found, slope)

    def _dots(self, score: Row, value: Factor) -> Scores | None:
        if not isinstance(score.op, Contract):
            return None
        flat = self.flat(score)
        factors, out = factors_of(flat)
        scale = [each for each in factors if each.row.space is Space.SHARED and not each.labels]
        rest = [each for each in factors if each not in scale]
        if len(rest) != 2 or (len(scale) > 1 and not may_reorder(score.dtype)):
            return None
        dots = _edge_dots(flat, rest, out)
        if not isinstance(dots, EdgeDots) or dots.heads != out or dots.dst.way != "dst":
            return None
        labels = (*dots.heads, *dots.summed)
        sizes = sizes_of(flat.operands, flat.op.terms)  # type: ignore[union-attr]
        key = self.of_sources(in_order_of(dots.src, labels, sizes), value.way)
        if key is None:
            return None
        row = in_order_of(Factor(dots.dst.base, dots.dst.labels), labels, sizes)
        made = None
        if scale:
            operands = [each.row for each in scale]
            made = contract(operands, [()] * len(operands), (), score)
        return Dots(row, key, made)

    def _leaky(self, score: Row, value: Factor) -> Scores | None:
        if not isinstance(score.op, Contract):
            return None
        factors, out = factors_of(score)
        if len(factors) != 2:
            return None
        vector, inner = sorted(factors, key=lambda each: each.row.space is not Space.SHARED)
        if vector.row.space is not Space.SHARED or inner.row.space is not Space.EDGE:
            return None
        slope, of = leaky_of(inner.row)
        if of is inner.row or not (self.is_lone(of) and self.is_lone(inner.row)):
            return None
        summed = [label for label in inner.labels if label not in out]
        if inner.labels != (*out, *summed) or set(vector.labels) != set(inner.labels) or not summed:
            return None
        found = self._sum_of_ends(of, value)
        if found is None:
            return None
        return Leaky(*found, in_order_of(vector, inner.labels, {}), slope)

    def of_destinations(self, row: Row) -> Row | None:
        """A row of nodes that edges read at their destinations, of one that they read there."""
        if isinstance(row.op, Pull) and row.op.way == "dst":
            return row.operands[0]
        return None

    def of_sources(self, row: Row, way: str) -> Row | None:
        """A row of sources, or of their pairs, likewise."""
        if not isinstance(row.op, Pull):
            return None
        if row.op.way == way:
            return row.operands[0]
        if way == "src_pair" and row.op.way in ("src", "relation"):
            return pull(row.operands[0], Space.SOURCE_PAIR, row.op.way)
        return None


def at_home(row: Row, parts: Parts) -> Row:
    """The same made in the smallest space that suffices, and read from there; or itself."""
    ways: list[str] = []
    for each in row.operands:
        if each.space is Space.SHARED:
            continue
        if not isinstance(each.op, Pull):
            return row
        ways.append(each.op.way)
    home = parts.home(row.space, ways) if ways else None
    if home is None:
        return row
    operands = []
    for each in row.operands:
        if isinstance(each.op, Pull):
            operands.append(pull(each.operands[0], home.space, home.ways[each.op.way]))
        else:
            operands.append(each)
    op: Any = row.op
    op = replace(op, read_by=_read_by(op.read_by, home.way))
    made = Row(op, tuple(operands), home.space, row.shape, row.dtype, row.line)
    return pull(at_home(made, parts), row.space, home.way)


def _read_by(outer: frozenset[str] | None, way: str) -> frozenset[str]:
    """The ways by which edges read rows that other rows, which edges read, read by a way."""
    if way != "type" or outer is None:
        return frozenset([way])
    return frozenset(f"{each}_type" if each in ("src", "dst") else way for each in outer)


def _edge_dots(row: Row, factors: Sequence[Factor], out: Labels) -> EdgeDots | None:
    if row.space is not Space.EDGE:
        return None
    for dst, src in (factors, factors[::-1]):
        if (
            dst.way in _DESTINATIONS
            and src.way in _SOURCES
            and ((dst.way, src.way) != ("dst_pair", "src_pair"))
        ):
            both = set(dst.labels) & set(src.labels)
            heads = tuple(label for label in out if label in (*dst.labels, *src.labels))
            summed = tuple(label for label in dst.labels if label not in out)
            if not summed or not set(summed) <= both or not set(src.labels) <= {*heads, *summed}:
                return None
            return EdgeDots(dst, src, heads, summed)
    return None


def needed(results: Sequence[Row], matcher: Matcher) -> list[Row]:
    """The rows that patterns take, and what these need, each after its operands."""
    return in_order(results, lambda row: taken(row, matcher))


def taken(row: Row, matcher: Matcher) -> list[Row]:
    """The rows whose arrays the op of a row takes."""
    if row in matcher.regions:
        return matcher.regions[row].taken
    pattern = matcher(row)
    match pattern:
        case TypedProduct(x, weight) | TypedDots(x, weight):
            read = x.way in ("src", "dst") and row.space is not Space.NODE
            return [x.base if read else x.row, weight.base]
        case EdgeDots(dst, src):
            return [dst.base, src.base]
        case Count(of):
            return [of if of.space is Space.SHARED else of.operands[0]]
        case RelationalSum(x, weight, edge_weight, _, _, _, after):
            rows = [x.base, weight.base, *(each.row for each in after)]
            return rows if edge_weight is None else [*rows, edge_weight]
        case Sum(value, weight, scores, _, _, after, _, into):
            of = value.base if is_read(value, into) else value.row
            return [of, *rows_in((weight, scores)), *(each.row for each in after)]
        case RGAT() | HGT():
            of_sum = pattern.sum.weight, tuple(each.row for each in pattern.sum.after)
            return rows_in((of_sum, pattern[1:]))
    return list(row.operands)
