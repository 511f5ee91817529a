"""Factoring of polynomials: the order of products in which several sums share the most terms."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jax_gnn._ops.edge_region.channels import Monomial, Polynomial

Node = Hashable
"""A value: the index of a leaf, or the key of a sum of products."""

Term = tuple[float, Node | None, Node | None]
"""A coefficient, and up to two factors."""

_MAX_ORDERED = 4  # groups of leaves of which all orders are tried
_MAX_OPTIONS = 12  # of a family, that are compared with those of others


class _Option(NamedTuple):
    """The sums of a family, for one order in which groups are factored out.

    Attributes:
        nodes: Terms of each inner sum, after those of its factors.
        terms: Terms of each polynomial.
        costs: Operations of each inner sum, and of the family's polynomials.
    """

    nodes: dict[Node, list[Term]]
    terms: dict[int, list[Term]]
    costs: dict[Node, int]


class Sums:
    """Polynomials as sums of products, each of which is computed once.

    Attributes:
        nodes: Terms of each inner sum, after those of its factors.
        terms: Terms of each polynomial.
    """

    def __init__(self, polynomials: Sequence[Polynomial], group_of: Callable[[int], int]) -> None:
        """Choose the order in which groups of leaves are factored out.

        A *family* is the monomials that have one factor of each of the same groups. Gradients to
        several arrays share inner sums, so that the orders of two families are chosen together.
        """
        self._group_of = group_of
        families: dict[tuple[int, ...], dict[int, Polynomial]] = {}
        for number, polynomial in enumerate(polynomials):
            for monomial, x in polynomial.items():
                family = families.setdefault(tuple(sorted(map(group_of, monomial))), {})
                family.setdefault(number, {})[monomial] = x
        self.nodes: dict[Node, list[Term]] = {}
        self.terms: list[list[Term]] = [[] for _ in polynomials]
        options = [
            sorted(self._options(*family), key=lambda x: sum(x.costs.values()))[:_MAX_OPTIONS]
            for family in families.items()
        ]
        for option in _cheapest(options):
            self.nodes = option.nodes | self.nodes
            for number, terms in option.terms.items():
                self.terms[number] += terms

    def _options(
        self, groups: tuple[int, ...], polynomials: Mapping[int, Polynomial]
    ) -> Iterator[_Option]:
        longest = max(len(groups) - 1, 0) if len(groups) <= _MAX_ORDERED else 1
        orders = (itertools.permutations(groups, n) for n in range(longest + 1))
        for order in dict.fromkeys(itertools.chain.from_iterable(orders)):
            nodes: dict[Node, list[Term]] = {}
            terms = {i: self._factored(x, order, nodes) for i, x in polynomials.items()}
            costs: dict[Node, int] = {key: _operations(node) for key, node in nodes.items()}
            costs[groups, tuple(polynomials)] = sum(map(_operations, terms.values()))
            yield _Option(nodes, terms, costs)

    def _factored(
        self, polynomial: Polynomial, order: tuple[int, ...], nodes: dict[Node, list[Term]]
    ) -> list[Term]:
        """Return the terms of a polynomial, and add the sums that they need to `nodes`."""
        if len(polynomial) == 1:
            ((monomial, x),) = polynomial.items()
            return [(x, _product(monomial[:-1], nodes), monomial[-1] if monomial else None)]
        if not order:
            return [(x, _product(monomial, nodes), None) for monomial, x in polynomial.items()]
        parts: dict[int, Polynomial] = {}
        for monomial, x in polynomial.items():
            i = next(i for i, leaf in enumerate(monomial) if self._group_of(leaf) == order[0])
            parts.setdefault(monomial[i], {})[monomial[:i] + monomial[i + 1 :]] = x
        terms: list[Term] = []
        for leaf, part in parts.items():
            if len(part) == 1:
                ((monomial, x),) = part.items()
                terms.append((x, leaf, _product(monomial, nodes)))
                continue
            key = order[1:], frozenset(part.items())
            if key not in nodes:
                inner = self._factored(part, order[1:], nodes)
                nodes[key] = inner  # after what it reads
            terms.append((1.0, leaf, key))
        return terms


def _product(monomial: Monomial, nodes: dict[Node, list[Term]]) -> Node | None:
    if len(monomial) < 2:
        return monomial[0] if monomial else None
    if monomial not in nodes:
        first = _product(monomial[:-1], nodes)
        nodes[monomial] = [(1.0, first, monomial[-1])]
    return monomial


def _operations(terms: Sequence[Term]) -> int:
    return sum(2 if abs(x) != 1 and a is not None and b is not None else 1 for x, a, b in terms)


def _cheapest(options: Sequence[Sequence[_Option]]) -> list[_Option]:
    """Return an option of each family, such that the operations of different sums are few.

    Pairs of families are compared in turn: what two of them share may pay only for both.
    """

    def cost(chosen: Sequence[int]) -> int:
        merged: dict[Node, int] = {}
        for of_family, i in zip(options, chosen, strict=True):
            merged.update(of_family[i].costs)
        return sum(merged.values())

    best = [0] * len(options)
    for i, j in itertools.combinations(range(len(options)), 2):
        pairs = itertools.product(range(len(options[i])), range(len(options[j])))
        trials = ([*best[:i], a, *best[i + 1 : j], b, *best[j + 1 :]] for a, b in pairs)
        best = min([best, *trials], key=cost)
    return [of_family[i] for of_family, i in zip(options, best, strict=True)]
