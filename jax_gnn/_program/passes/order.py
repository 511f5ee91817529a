"""The order of products, and of the sum over edges above them.

A tree of products is one einsum over row axes and over what its factors are read by; each order of
it is priced by the ops that it hits, not by its flops. Trees are found by dynamic programming over
sets of factors; of a sum over edges, each set of factors that a destination, or its pair, has for
all of its edges may come after the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jax_gnn._program.cost import Costs
from jax_gnn._program.match import Matcher, at_home
from jax_gnn._program.normal import may_reorder, settled, taken_in
from jax_gnn._program.patterns import Einsum, Factor, factors_of
from jax_gnn._program.rows import (
    Contract,
    Labels,
    Pull,
    Push,
    Row,
    Softmax,
    contract,
    fingerprint,
    in_order,
    pull,
    reached,
    uses_of,
)
from jax_gnn._program.spaces import Parts, Space

EXHAUSTIVE = 6
"""Most factors of a product whose orders are all looked at; of more, some are joined first."""


def order(results: Sequence[Row], parts: Parts, *, compact: bool) -> list[Row]:
    """The same program with its products in the order that is expected to take least.

    Args:
        results: The program.
        parts: What the graph has.
        compact: Whether products are made in the space that suffices.
    """
    search = _Search(results, parts, compact=compact)
    new: dict[Row, Row] = {}
    for row in in_order(search.results):
        moved = settled(row.with_operands([new[each] for each in row.operands]))
        new[row] = search.ordered(row, moved, new)
        search.uses[new[row]] = max(search.uses[row], search.uses.get(new[row], 0))
    return [new[row] for row in search.results]


class _Tree(NamedTuple):
    """A product of some factors."""

    factor: Factor
    time: float


class _Search:
    """Finds the orders of a program's products.

    Attributes:
        results: The program, its products as large as they can be.
    """

    def __init__(self, results: Sequence[Row], parts: Parts, *, compact: bool) -> None:
        self.parts = parts
        self.compact = compact
        self.results = _grown(results)
        self.uses = uses_of(self.results)
        self.costs = Costs(parts, Matcher({}, parts, compact), apart=True)
        self.fingerprints: dict[Row, int] = {}
        self.inner = self._inner()
        self.scores = {
            row.operands[0]
            for row in self.uses
            if isinstance(row.op, Softmax) and self.uses[row] == self.uses[row.operands[0]] == 1
        }

    def _inner(self) -> set[Row]:
        """The products that others take in: these are ordered with them."""
        found = set()
        for row in self.uses:
            if isinstance(row.op, Contract):
                found |= {
                    each
                    for each in row.operands
                    if isinstance(each.op, Contract)
                    and self.uses[each] == 1
                    and each.space is row.space
                }
            elif isinstance(row.op, Push) and row.op.reduce == "sum":
                (of,) = row.operands
                if isinstance(of.op, Contract) and self.uses[of] == 1:
                    found.add(of)
        return found

    def ordered(self, old: Row, row: Row, new: dict[Row, Row]) -> Row:
        """A row in its best order."""
        if old in self.inner or not may_reorder(row.dtype):
            return row
        if isinstance(row.op, Contract):
            return self._product(self._flat(old, new), fused=old in self.scores)
        if isinstance(row.op, Push) and row.op.reduce == "sum" and old.operands[0] in self.inner:
            return self._sum(row, self._flat(old.operands[0], new))
        return row

    def _flat(self, old: Row, new: dict[Row, Row]) -> Row:
        """A product with all factors, which are in order themselves."""
        flat = old
        while True:
            more = taken_in(flat, lambda each: each in self.inner)
            if more is flat:
                break
            flat = more
        return settled(flat.with_operands([new.get(each, each) for each in flat.operands]))

    def _sorted(self, factors: Sequence[Factor]) -> list[Factor]:
        """In an order that the product's does not matter for: of equal times the first wins."""
        return sorted(factors, key=lambda each: fingerprint(each.row, self.fingerprints))

    # --- Products ------------------------------------------------------------------------------

    def _product(self, row: Row, *, fused: bool) -> Row:
        factors, out = factors_of(row)
        if len(factors) < 3:
            return at_home(row, self.parts) if self.compact else row
        factors = self._sorted(factors)
        return self._tree(factors, out, row, fused=fused).row

    def _time(self, row: Row, *, fused: bool) -> float:
        """Of one product, and of gathers that it needs."""
        of = row.operands[0] if isinstance(row.op, Pull) else row
        time = self.costs.of(of).time
        if isinstance(self.costs.matcher(of), Einsum):
            time += sum(
                self.costs.of(each).time for each in of.operands if isinstance(each.op, Pull)
            )
        return time - self.costs.spared(of) if fused else time

    def _tree(
        self, factors: Sequence[Factor], out: Labels, like: Row, *, fused: bool = False
    ) -> Factor:
        """The best order of a product; `fused`: of one that attention may take as its scores."""
        trees = {
            1 << i: _Tree(each, 0.0) for i, each in enumerate(self._joined(factors, out, like))
        }
        count = len(trees)
        full = (1 << count) - 1
        labels = [set(trees[1 << i].factor.labels) for i in range(count)]
        for mask in sorted(range(1, full + 1), key=int.bit_count):
            if mask in trees:
                continue
            outside = set(out).union(*(labels[i] for i in range(count) if not mask >> i & 1))
            splits = [(a, mask ^ a) for a in _halves(mask) if a in trees and mask ^ a in trees]
            near = [pair for pair in splits if self._near(*(trees[each].factor for each in pair))]
            best: _Tree | None = None
            for a, b in near or splits:
                left, right = trees[a], trees[b]
                kept = out if mask == full else _kept(left.factor, right.factor, outside)
                made = _product([left.factor, right.factor], kept, like)
                if self.compact:
                    made = at_home(made, self.parts)
                time = left.time + right.time + self._time(made, fused=fused and mask == full)
                if best is None or time < best.time:
                    best = _Tree(Factor(made, kept), time)
            if best is not None:
                trees[mask] = best
        return trees[full].factor

    def _joined(self, factors: Sequence[Factor], out: Labels, like: Row) -> list[Factor]:
        """At most so many factors: numbers that are shared come last, in one."""
        found = list(factors)
        while len(found) > EXHAUSTIVE:
            pairs = itertools.combinations(range(len(found)), 2)
            near = [(i, j) for i, j in pairs if self._near(found[i], found[j])] or [(0, 1)]

            def size(pair: tuple[int, int], found: list[Factor] = found) -> tuple[int, int]:
                a, b = (found[each] for each in pair)
                return len({a.row.space, b.row.space}), a.row.size * b.row.size

            i, j = min(near, key=size)
            a, b = found[i], found[j]
            rest = [each for k, each in enumerate(found) if k not in (i, j)]
            outside = set(out).union(*(each.labels for each in rest))
            kept = _kept(a, b, outside)
            made = _product([a, b], kept, like)
            made = at_home(made, self.parts) if self.compact else made
            found = [*rest, Factor(made, kept)]
        return found

    @staticmethod
    def _near(a: Factor, b: Factor) -> bool:
        """Whether a product of two factors is no outer one."""
        return not a.labels or not b.labels or bool(set(a.labels) & set(b.labels))

    # --- Sums over edges -----------------------------------------------------------------------

    def _sum(self, push: Row, product: Row) -> Row:
        """The best of all ways to sum a product over edges."""
        best, least = None, float("inf")
        for made in self._ways(push, product):
            results = [made]
            costs = Costs(self.parts, Matcher(self._uses_in(made), self.parts, self.compact))
            time = costs.total(results)
            if time < least:
                best, least = made, time
        assert best is not None
        return best

    def _uses_in(self, row: Row) -> dict[Row, int]:
        """How often rows are read: as in the program; those that are new, here."""
        own = uses_of([row])
        return {each: max(count, self.uses.get(each, 0)) for each, count in own.items()}

    def _ways(self, push: Row, product: Row) -> Iterator[Row]:
        factors, out = factors_of(product)
        factors = self._sorted(factors)
        yield from self._inside(push, factors, out, product)
        later = [i for i, each in enumerate(factors) if self._of_destination(each)]
        for chosen in _subsets(later):
            after = [factors[i] for i in chosen]
            inside = [each for i, each in enumerate(factors) if i not in chosen]
            if not inside:
                continue
            if chosen:
                yield from self._then(push, inside, after, out, product)
            if self.compact and Space.DESTINATION_PAIR in self.parts.rows:
                yield from self._by_pairs(push, inside, after, out, product)

    @staticmethod
    def _of_destination(factor: Factor) -> bool:
        """Whether all edges into a destination have the same of a factor."""
        return factor.row.space is Space.SHARED or factor.way == "dst"

    def _then(
        self,
        push: Row,
        inside: Sequence[Factor],
        after: Sequence[Factor],
        out: Labels,
        like: Row,
    ) -> Iterator[Row]:
        """The sum of some factors, and then times the others."""
        kept = _through(inside, after, out)
        for summed in self._inside(push, inside, kept, like):
            yield self._times(Factor(summed, kept), after, out, like)

    def _by_pairs(
        self,
        push: Row,
        inside: Sequence[Factor],
        after: Sequence[Factor],
        out: Labels,
        like: Row,
    ) -> Iterator[Row]:
        """The sum at (destination, relation) pairs, times what these have, summed up, times."""
        space = Space.DESTINATION_PAIR
        of_relation = [i for i, each in enumerate(inside) if each.way == "relation"]
        for chosen in _subsets(of_relation):
            between = [inside[i] for i in chosen]
            first = [each for i, each in enumerate(inside) if i not in chosen]
            if not chosen or not first:
                continue
            at_nodes = _through(inside, after, out)
            kept = _through(first, between, at_nodes)
            moved = [Factor(pull(each.base, space, "relation"), each.labels) for each in between]
            for summed in self._inside(push, first, kept, like, space):
                made = self._times(Factor(summed, kept), moved, at_nodes, like)
                total = Row(Push("sum"), (made,), Space.NODE, made.shape, push.dtype, push.line)
                yield self._times(Factor(total, at_nodes), after, out, like)

    def _times(self, factor: Factor, others: Sequence[Factor], out: Labels, like: Row) -> Row:
        """A sum times factors of where it is."""
        if not others and factor.labels == out:
            return factor.row
        at = factor.row.space
        moved = [
            Factor(each.base if at is Space.NODE else each.row, each.labels) for each in others
        ]
        made = _product([factor, *moved], out, like)
        made = self._tree(*factors_of(made), made).row if len(moved) > 1 else made
        return reached(made) if at is Space.NODE else made  # 0 times what is not finite

    def _inside(
        self,
        push: Row,
        factors: Sequence[Factor],
        out: Labels,
        like: Row,
        space: Space = Space.NODE,
    ) -> Iterator[Row]:
        """Ways to sum a product at once: as it is, or its value made first."""

        def pushed(factors: Sequence[Factor]) -> Row:
            made = settled(_product(factors, out, like))
            return Row(Push("sum"), (made,), space, made.shape, push.dtype, push.line)

        yield pushed(factors)
        apart = [each for each in factors if self._is_weight(each, factors, out)]
        value = [each for each in factors if each not in apart]
        if len(value) > 1:
            outside = set(out).union(*(each.labels for each in apart))
            kept = tuple(dict.fromkeys(i for each in value for i in each.labels if i in outside))
            tree = self._tree(value, kept, _product(value, kept, like))
            yield pushed([*apart, tree])

    @staticmethod
    def _is_weight(factor: Factor, factors: Sequence[Factor], out: Labels) -> bool:
        """Whether a factor weights a value, which others make."""
        if isinstance(factor.row.op, Softmax):
            return True
        if factor.way in ("src", "src_pair"):
            return False
        summed = {i for each in factors for i in each.labels} - set(out)
        return not set(factor.labels) & summed


def _grown(results: Sequence[Row]) -> list[Row]:
    """Products of nodes and pairs that only one product reads, as products where it is."""
    while True:
        uses = uses_of(results)

        def is_lone(row: Row, uses: dict[Row, int] = uses) -> bool:
            """Whether a row reads a product that nothing else reads."""
            if not isinstance(row.op, Pull):
                return False
            (of,) = row.operands
            moves = isinstance(of.op, Contract) and may_reorder(of.dtype)
            return moves and uses[of] == 1 and uses[row] == 1

        lone = {
            each
            for row in uses
            if isinstance(row.op, Contract) or _is_sum(row)
            for each in row.operands
            if is_lone(each)
        }
        if not lone:
            return list(results)
        new: dict[Row, Row] = {}
        for row in in_order(results):
            moved = row.with_operands([new[each] for each in row.operands])
            new[row] = _grown_at(moved) if row in lone else moved
        results = [new[row] for row in results]


def _is_sum(row: Row) -> bool:
    return isinstance(row.op, Push) and row.op.reduce == "sum"


def _grown_at(row: Row) -> Row:
    """What is read of a product, as a product of what is read."""
    (of,) = row.operands
    assert isinstance(row.op, Pull) and isinstance(of.op, Contract)
    way = row.op.way
    operands = [pull(each, row.space, way) for each in of.operands]
    return contract(operands, of.op.terms, of.op.out, of, of.op.precision)


def _product(factors: Sequence[Factor], out: Labels, like: Row) -> Row:
    """A product of some of the factors of another one."""
    assert isinstance(like.op, Contract)
    rows, labels = [each.row for each in factors], [each.labels for each in factors]
    sizes = dict(zip(like.op.out, like.shape, strict=True))
    return contract(rows, labels, out, like, like.op.precision, sizes)


def _kept(a: Factor, b: Factor, outside: set[int]) -> Labels:
    return tuple(dict.fromkeys(label for label in (*a.labels, *b.labels) if label in outside))


def _through(inside: Sequence[Factor], after: Sequence[Factor], out: Labels) -> Labels:
    """The labels that a sum must keep for what comes after it."""
    own = dict.fromkeys(label for each in inside for label in each.labels)
    needed = set(out).union(*(each.labels for each in after))
    return tuple(label for label in own if label in needed)


def _halves(mask: int) -> Iterator[int]:
    """Subsets that hold a mask's lowest bit, itself not."""
    low = mask & -mask
    rest = mask ^ low
    part = rest
    while part:
        part = (part - 1) & rest
        yield part | low


def _subsets(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(places) + 1):
        yield from itertools.combinations(places, size)
