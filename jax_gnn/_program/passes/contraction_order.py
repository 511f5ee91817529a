"""The order of products, and of the sum over edges above them.

A tree of products is one einsum over row axes. Each order is priced by the ops that it uses, not
by its flops. Orders are found by dynamic programming over sets of factors. For a sum over edges,
each set of factors that all edges of a destination, or of its pair, share may follow the sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jax_gnn._program.cost import Costs
from jax_gnn._program.match import Matcher, at_home
from jax_gnn._program.normal import absorb, folded, may_reorder, settle
from jax_gnn._program.patterns import Einsum, Factor, factors_of, other_ends
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Labels,
    Pull,
    Push,
    Row,
    Softmax,
    apply,
    contract,
    count_uses,
    fingerprint,
    pull,
    reached,
    topological_order,
)
from jax_gnn._program.spaces import Parts, Space

MAX_EXHAUSTIVE = 6
"""Largest number of factors whose orders are all tried; of more, some are joined greedily."""


def contraction_order(results: Sequence[Row], parts: Parts, *, compact: bool) -> list[Row]:
    """Return the program with its products in the cheapest order.

    Args:
        results: The program.
        parts: The spaces of the graph.
        compact: Whether products are made in the smallest sufficient space.
    """
    search = _Search(results, parts, compact=compact)
    new: dict[Row, Row] = {}
    for row in topological_order(search.results):
        moved = settle(row.with_operands([new[operand] for operand in row.operands]))
        new[row] = search.reorder(row, moved, new)
        search.uses[new[row]] = max(search.uses[row], search.uses.get(new[row], 0))
    return [new[row] for row in search.results]


def _is_reshape(row: Row) -> bool:
    return (
        isinstance(row.op, Apply)
        and row.op.name == "reshape"
        and len(row.operands) == 1
        and isinstance(row.operands[0].op, Contract)
    )


def _reshaped(row: Row, shape: tuple[int, ...]) -> Row:
    return apply("reshape", lambda x: x.reshape(shape), row, key=shape)


def _labels_of_parts(
    product: Row, reshaped: Row, term: Labels
) -> dict[int, tuple[int, ...]] | None:
    """Return the labels of a reshaped product's axes, by the label of the axis that they split.

    None if an axis is no split of one axis, or if other factors than one shared one have it.
    """
    assert isinstance(product.op, Contract)
    sizes = dict(zip(term, reshaped.shape, strict=True))
    rest, parts = list(term), dict[int, tuple[int, ...]]()
    for label, size in zip(product.op.out, product.shape, strict=True):
        group: list[int] = []
        while rest and math.prod(sizes[x] for x in group) < size:
            group.append(rest.pop(0))
        factors = zip(product.operands, product.op.terms, strict=True)
        are_shared = [factor.is_shared for factor, labels in factors if label in labels]
        if math.prod(sizes[x] for x in group) != size or (len(group) > 1 and are_shared != [True]):
            return None
        parts[label] = tuple(group)
    return None if rest or len(sizes) < len(term) else parts


class _Tree(NamedTuple):
    """The product of some factors.

    Attributes:
        factor: The product as a factor.
        time: Time of its tree in microseconds.
    """

    factor: Factor
    time: float


class _Search:
    """Finds the orders of a program's products.

    Attributes:
        results: The program, with products as large as possible.
        uses: How often each row is read.
    """

    def __init__(self, results: Sequence[Row], parts: Parts, *, compact: bool) -> None:
        self.parts = parts
        self.compact = compact
        self.results = _enlarge_products(results)
        self.uses = count_uses(self.results)
        self._costs = Costs(Matcher({}, parts, compact), separate=True)
        self._fingerprints: dict[Row, int] = {}
        self._inner = self._inner_products()
        # Products that attention may compute as its scores.
        self._scores = {
            row.operands[0]
            for row in self.uses
            if row.op == Softmax() and self.uses[row] == self.uses[row.operands[0]] == 1
        }

    def _inner_products(self) -> set[Row]:
        """Return the products that are ordered with the product or sum that reads them."""
        inner = set()
        for row in self.uses:
            if isinstance(row.op, Contract):
                inner |= {
                    operand
                    for operand in row.operands
                    if isinstance(operand.op, Contract)
                    and self.uses[operand] == 1
                    and operand.space is row.space
                }
            elif _is_sum(row):
                (operand,) = row.operands
                if isinstance(operand.op, Contract) and self.uses[operand] == 1:
                    inner.add(operand)
        return inner

    def reorder(self, old: Row, row: Row, new: dict[Row, Row]) -> Row:
        """Return a row in its cheapest order.

        Args:
            old: The row of the original program.
            row: The same with reordered operands.
            new: The reordered rows.
        """
        if old in self._inner or not may_reorder(row.dtype):
            return row
        if isinstance(row.op, Contract):
            return self._reorder_product(self._flat(old, new), is_score=old in self._scores)
        if _is_sum(row) and old.operands[0] in self._inner:
            product = self._flat(old.operands[0], new)
            return min(self._sums(row, product), key=self._time_of_sum)
        return row

    def _flat(self, old: Row, new: dict[Row, Row]) -> Row:
        """Return a product of all factors, with reordered rows."""
        flat = old
        # `absorb` returns its argument when it can absorb no factor: then the product is as large
        # as it gets, and the search below may order all factors.
        while (larger := absorb(flat, lambda inner: inner in self._inner)) is not flat:
            flat = larger
        flat = self._with_reshaped_weights(flat, new)
        return settle(flat.with_operands([new.get(row, row) for row in flat.operands]))

    def _with_reshaped_weights(self, row: Row, new: dict[Row, Row]) -> Row:
        """Return a product of shared factors and a reshaped row, with what that is a product of.

        Weights are reshaped instead of rows of edges: of heads, ``(e @ w).reshape(h, k) * a``.
        """
        assert isinstance(row.op, Contract)
        others = [operand for operand in row.operands if not operand.is_shared]
        if len(others) != 1 or not _is_reshape(others[0]) or others[0].space is not Space.EDGE:
            return row
        (reshaped,) = others
        (product,) = reshaped.operands
        assert isinstance(product.op, Contract)
        if self.uses[reshaped] > 1 or self.uses[product] > 1 or product.dtype != row.dtype:
            return row
        place = row.operands.index(reshaped)
        labels = _labels_of_parts(product, reshaped, row.op.terms[place])
        if labels is None or product.op.precision != row.op.precision is not None:
            return row
        fresh = itertools.count(1 + max(itertools.chain(row.op.out, *row.op.terms)))
        names = {label: (next(fresh),) for term in product.op.terms for label in term} | labels
        operands = [x for x in row.operands if x is not reshaped]
        terms = [term for i, term in enumerate(row.op.terms) if i != place]
        sizes = dict(zip(row.op.terms[place], reshaped.shape, strict=True))
        for factor, term in zip(product.operands, product.op.terms, strict=True):
            if any(len(names[label]) > 1 for label in term):
                old_sizes = dict(zip(term, factor.shape, strict=True))
                shape = [
                    sizes[part] if len(names[label]) > 1 else old_sizes[label]
                    for label in term
                    for part in names[label]
                ]
                factor = _reshaped(new.get(factor, factor), tuple(shape))
            operands.append(factor)
            terms.append(tuple(part for label in term for part in names[label]))
        return contract(operands, terms, row.op.out, row, row.op.precision)

    def _sorted_factors(self, row: Row) -> tuple[list[Factor], Labels]:
        """Return factors in an order independent of the program's: the first of equals wins."""
        factors, out = factors_of(row)
        factors.sort(key=lambda factor: fingerprint(factor.row, self._fingerprints))
        return factors, out

    def _compacted(self, row: Row) -> Row:
        return at_home(row, self.parts) if self.compact else row

    # --- Products ------------------------------------------------------------------------------

    def _reorder_product(self, row: Row, *, is_score: bool) -> Row:
        if len(row.operands) < 3:
            return self._compacted(row)
        factors, out = self._sorted_factors(row)
        return self._tree(factors, out, row, is_score=is_score).row

    def _time(self, row: Row, *, is_score: bool) -> float:
        """Return the time of one product, with the gathers that it needs."""
        # A product that a library call computes as an einsum reads gathered rows from memory, so
        # that its gathers count. Kernels for patterns gather rows themselves.
        product = row.operands[0] if isinstance(row.op, Pull) else row
        time = self._costs.of(product).time
        if isinstance(self._costs.matcher(product), Einsum):
            gathers = (x for x in product.operands if isinstance(x.op, Pull))
            time += sum(self._costs.of(gather).time for gather in gathers)
        return time - self._costs.saved_by_attention(product) if is_score else time

    def _tree(
        self, factors: Sequence[Factor], out: Labels, like: Row, *, is_score: bool = False
    ) -> Factor:
        """Return the cheapest order of a product.

        Args:
            factors: The factors.
            out: Labels of the result.
            like: A product with the dtype and the precision.
            is_score: Whether attention may compute the product as its scores.
        """
        leaves = self._join_greedily(factors, out, like)
        count = len(leaves)
        # Dynamic programming over sets of factors, as bit masks in the order of their sizes: the
        # best tree of a set joins those of two complementary subsets. Outer products are tried
        # only if every split is one.
        trees = {1 << i: _Tree(factor, 0.0) for i, factor in enumerate(leaves)}
        full = (1 << count) - 1
        # Subsets precede their supersets, so that both halves of a split have their trees.
        for mask in sorted(range(1, full + 1), key=int.bit_count):
            if mask in trees:
                continue
            # Labels that neither the result nor a factor outside the set has are summed here:
            # intermediate results are as narrow as they can be.
            outside = set(out).union(*(leaves[i].labels for i in range(count) if not mask >> i & 1))
            splits = [(a, mask ^ a) for a in _halves(mask) if a in trees and mask ^ a in trees]
            inner = [(a, b) for a, b in splits if _is_inner(trees[a].factor, trees[b].factor)]
            best: _Tree | None = None
            for a, b in inner or splits:
                left, right = trees[a], trees[b]
                labels = out if mask == full else _needed(left.factor, right.factor, outside)
                product = self._compacted(_product([left.factor, right.factor], labels, like))
                time = left.time + right.time
                time += self._time(product, is_score=is_score and mask == full)
                if best is None or time < best.time:
                    best = _Tree(Factor(product, labels), time)
            if best is not None:
                trees[mask] = best
        return trees[full].factor

    def _join_greedily(self, factors: Sequence[Factor], out: Labels, like: Row) -> list[Factor]:
        """Return at most `MAX_EXHAUSTIVE` factors; joins factors of one space, small ones first."""
        factors = list(factors)
        while len(factors) > MAX_EXHAUSTIVE:
            pairs = list(itertools.combinations(factors, 2))
            # Outer products grow the result, and are the last resort here as in `_tree`.
            inner = [(a, b) for a, b in pairs if _is_inner(a, b)] or pairs[:1]
            a, b = min(
                inner,
                key=lambda pair: (
                    len({factor.row.space for factor in pair}),
                    pair[0].row.size * pair[1].row.size,
                ),
            )
            factors = [factor for factor in factors if factor is not a and factor is not b]
            outside = set(out).union(*(factor.labels for factor in factors))
            labels = _needed(a, b, outside)
            factors.append(Factor(self._compacted(_product([a, b], labels, like)), labels))
        return factors

    # --- Sums over edges -----------------------------------------------------------------------

    def _time_of_sum(self, row: Row) -> float:
        uses = {
            node: max(count, self.uses.get(node, 0)) for node, count in count_uses([row]).items()
        }
        return Costs(Matcher(uses, self.parts, self.compact)).total([row])

    def _sums(self, push: Row, product: Row) -> Iterator[Row]:
        """Yield the ways to sum a product over edges, or over the nodes of graphs."""
        assert isinstance(push.op, Push)
        way = push.op.way
        factors, out = self._sorted_factors(product)
        yield from self._sum(push, factors, out, product)
        # Factors that all edges of an end, or nodes of a graph, share may follow the sum: it adds
        # fewer or narrower rows, and the product has one row per node in place of one per edge.
        shared = [i for i, f in enumerate(factors) if f.row.is_shared or f.way == way]
        for chosen in _subsets(shared):
            after = [factors[i] for i in chosen]
            inside = [factor for i, factor in enumerate(factors) if i not in chosen]
            if not inside:
                continue
            if chosen:
                labels = _labels_through(inside, after, out)
                for summed in self._sum(push, inside, labels, product):
                    yield self._multiply(Factor(summed, labels), after, out, product, way)
            if way == "dst" and self.compact and Space.DESTINATION_PAIR in self.parts.rows:
                # Weights of relations may follow a sum over the edges of one relation: pairs of a
                # destination and a relation are often far fewer than edges.
                yield from self._sums_by_pairs(push, inside, after, out, product)

    def _sums_by_pairs(
        self,
        push: Row,
        inside: Sequence[Factor],
        after: Sequence[Factor],
        out: Labels,
        like: Row,
    ) -> Iterator[Row]:
        """Yield sums at (destination, relation) pairs, multiplied there, and summed at nodes."""
        space = Space.DESTINATION_PAIR
        of_relations = [i for i, factor in enumerate(inside) if factor.way == "relation"]
        for chosen in _subsets(of_relations):
            at_pairs = [inside[i] for i in chosen]
            at_edges = [factor for i, factor in enumerate(inside) if i not in chosen]
            if not at_pairs or not at_edges:
                continue
            node_labels = _labels_through(inside, after, out)
            labels = _labels_through(at_edges, at_pairs, node_labels)
            # All edges of a pair have one relation, so that reading a relation's row at the pair is
            # the same factor as at each edge.
            moved = [Factor(pull(f.base, space, "relation"), f.labels) for f in at_pairs]
            for summed in self._sum(push, at_edges, labels, like, space):
                pairs = self._multiply(Factor(summed, labels), moved, node_labels, like)
                op = Push("sum")
                total = Row(op, (pairs,), Space.NODE, pairs.shape, push.dtype, push.line)
                yield self._multiply(Factor(total, node_labels), after, out, like)

    def _multiply(
        self,
        summed: Factor,
        others: Sequence[Factor],
        out: Labels,
        like: Row,
        way: str = "dst",
    ) -> Row:
        """Return a sum by a way times factors of its space."""
        if not others and summed.labels == out:
            return summed.row
        is_pair = summed.row.space is Space.DESTINATION_PAIR
        moved = [Factor(f.row if is_pair else f.base, f.labels) for f in others]
        product = _product([summed, *moved], out, like)
        if len(moved) > 1:
            factors, _ = factors_of(product)
            product = self._tree(factors, out, product).row
        return product if is_pair else reached(product, way)  # 0 edges times infinity is 0

    def _sum(
        self,
        push: Row,
        factors: Sequence[Factor],
        out: Labels,
        like: Row,
        space: Space | None = None,
    ) -> Iterator[Row]:
        """Yield a sum of a product: of all factors, and of a value that is multiplied first."""
        assert isinstance(push.op, Push)
        op, target = push.op, space or push.space
        gathered = other_ends(op.way, Space.NODE)

        def push_product(factors: Sequence[Factor]) -> Row:
            product = settle(_product(factors, out, like))
            return Row(op, (product,), target, product.shape, push.dtype, push.line)

        yield push_product(factors)
        # Kernels of sums take a weight for each head and a value for each feature. The value is
        # multiplied first, and weights stay apart so that the kernel applies them.
        weights = [factor for factor in factors if _is_weight(factor, factors, out, gathered)]
        value = [factor for factor in factors if factor not in weights]
        if len(value) > 1:
            outside = set(out).union(*(factor.labels for factor in weights))
            labels = tuple(
                dict.fromkeys(label for f in value for label in f.labels if label in outside)
            )
            yield push_product([*weights, self._tree(value, labels, _product(value, labels, like))])


def _is_inner(a: Factor, b: Factor) -> bool:
    """Whether the product of two factors is no outer product."""
    return not a.labels or not b.labels or bool(set(a.labels) & set(b.labels))


def _is_weight(
    factor: Factor, factors: Sequence[Factor], out: Labels, gathered: Sequence[str]
) -> bool:
    """Whether a factor weights the value that others form; those that are gathered do not."""
    if isinstance(factor.row.op, Softmax):
        return True
    if factor.way in gathered:
        return False
    summed = {label for other in factors for label in other.labels} - set(out)
    return not set(factor.labels) & summed


def _is_sum(row: Row) -> bool:
    return isinstance(row.op, Push) and row.op.reduce == "sum"


def _enlarge_products(results: Sequence[Row]) -> list[Row]:
    """Return the program with products of nodes and pairs inside the only product reading them."""
    # A new product of reads may itself be the only reader of another product: repeat until none is.
    while True:
        uses = count_uses(results)
        single = {
            read
            for row in uses
            if isinstance(row.op, Contract) or _is_sum(row)
            for read in row.operands
            if isinstance(read.op, Pull)
            and isinstance(read.operands[0].op, Contract)
            and may_reorder(read.dtype)
            and uses[read.operands[0]] == uses[read] == 1
        }
        if not single:
            return list(results)
        new: dict[Row, Row] = {}
        for row in topological_order(results):
            moved = row.with_operands([new[operand] for operand in row.operands])
            new[row] = _product_of_reads(moved) if row in single else moved
        results = [new[row] for row in results]


def _product_of_reads(row: Row) -> Row:
    """Return a read of a product as a product of reads."""
    (product,) = row.operands
    assert isinstance(row.op, Pull) and isinstance(product.op, Contract)
    operands = [pull(operand, row.space, row.op.way) for operand in product.operands]
    op = product.op
    return contract(operands, op.terms, op.out, product, op.precision)


def _product(factors: Sequence[Factor], out: Labels, like: Row) -> Row:
    """Return a product of some of the factors of `like`."""
    assert isinstance(like.op, Contract)
    rows, labels = [factor.row for factor in factors], [factor.labels for factor in factors]
    sizes = dict(zip(like.op.out, like.shape, strict=True))
    return folded(contract(rows, labels, out, like, like.op.precision, sizes))


def _needed(a: Factor, b: Factor, outside: set[int]) -> Labels:
    """Return the labels of two factors that are needed outside of their product."""
    return tuple(dict.fromkeys(label for label in (*a.labels, *b.labels) if label in outside))


def _labels_through(inside: Sequence[Factor], after: Sequence[Factor], out: Labels) -> Labels:
    """Return the labels that a sum must keep for the factors after it."""
    labels = dict.fromkeys(label for factor in inside for label in factor.labels)
    needed = set(out).union(*(factor.labels for factor in after))
    return tuple(label for label in labels if label in needed)


def _halves(mask: int) -> Iterator[int]:
    """Yield the proper subsets that contain the lowest bit."""
    low = mask & -mask
    high = mask ^ low
    subset = high
    while subset:
        subset = (subset - 1) & high
        yield subset | low


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(items) + 1):
        yield from itertools.combinations(items, size)
