"""Methods of summing products by relation, what each is expected to take, and the choice of one.

What is known of a graph when a computation is compiled are the lengths of its arrays. They say how
many bytes each launch of a method moves, how many of them miss L2, and how much it multiplies: the
largest of the three decides. The rates are those measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from jax_gnn._core.schedule import L2_BYTES, Family, define_family

Method = Literal["edges", "source_pairs", "destination_pairs"]
METHODS: tuple[Method, ...] = get_args(Method)

# The method of the transpose that needs the same parts.
TRANSPOSED_METHOD: dict[Method, Method] = {
    "edges": "edges",
    "source_pairs": "destination_pairs",
    "destination_pairs": "source_pairs",
}

_MEMORY, _CACHE, _FLOPS = 4.28e6, 9e6, 360e6  # bytes, bytes and operations in a microsecond
_LAUNCH, _WAIT = 1.7, 4.0  # microseconds of a launch, and more of one that waits for another
_EDGE_BYTES, _ID_BYTES = 12, 4  # both ids of an edge and its weight; a row's id


class Counts(NamedTuple):
    """What decides how long a sum of products by relation takes.

    Attributes:
        num_src: Number of sources.
        num_dst: Number of destinations.
        edges: Number of edges.
        relations: Number of relations.
        source_pairs: Number of (source, relation) pairs, at least 1; 0: that part is not there.
        destination_pairs: Number of (destination, relation) pairs; likewise.
        k: Features of a source.
        n: Features of a destination.
        itemsize: Bytes of a feature.
    """

    num_src: int
    num_dst: int
    edges: int
    relations: int
    source_pairs: int
    destination_pairs: int
    k: int
    n: int
    itemsize: int

    @property
    def T(self) -> Counts:
        """Of the transpose: all edges reversed, and the weights."""
        return Counts(
            *(self.num_dst, self.num_src, self.edges, self.relations),
            *(self.destination_pairs, self.source_pairs, self.n, self.k, self.itemsize),
        )


class RelationalSchedule(NamedTuple):
    """How a sum of products by relation is taken.

    Attributes:
        method: ``"edges"``, ``"source_pairs"`` or ``"destination_pairs"``, see
            :func:`jax_gnn.relational_aggregate`.
    """

    method: Method


# --- What launches take --------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """Bytes that miss L2, all bytes, and flops; sums of those of what a launch does."""

    missed: float = 0
    moved: float = 0
    flops: float = 0

    def __add__(self, other: Launch) -> Launch:
        missed, moved = self.missed + other.missed, self.moved + other.moved
        return Launch(missed, moved, self.flops + other.flops)

    @property
    def time(self) -> float:
        """Microseconds."""
        return max(self.missed / _MEMORY, self.moved / _CACHE, self.flops / _FLOPS) + _LAUNCH


def once(size: float) -> Launch:
    """Of an array that is read or written once, and not there in L2."""
    return Launch(size, size)


def gathered(rows: int, row_bytes: float, of: int) -> Launch:
    """Of rows of an array of so many rows, which is read from memory once at least."""
    size, array = rows * row_bytes, of * row_bytes
    return Launch(max(min(size, array), size * _outside(array)), size)


def between(rows: int, row_bytes: float, of: int | None = None) -> Launch:
    """Of rows of an array that one launch writes and the next one reads."""
    size = rows * row_bytes
    return Launch(size * _outside(size if of is None else of * row_bytes), size)


def _outside(size: float) -> float:
    """The share of an array that L2 does not hold."""
    return max(0.0, 1 - L2_BYTES / size) if size else 0.0


def in_turn(*launches: Launch) -> float:
    """Microseconds of launches that wait for each other."""
    return sum(each.time for each in launches) + _WAIT * (len(launches) - 1)


class _Parts(NamedTuple):
    """Sizes in bytes, of a row on either side and of the weights."""

    k: int
    n: int
    rhs: int
    edges: int

    @classmethod
    def of(cls, c: Counts) -> _Parts:
        return cls(c.k * c.itemsize, c.n * c.itemsize, _rhs_bytes(c), c.edges * _EDGE_BYTES)


def _rhs_bytes(c: Counts) -> int:
    return c.relations * c.k * c.n * c.itemsize


def multiplied(c: Counts, rows: int) -> Launch:
    """The weights, and as many products."""
    return once(_rhs_bytes(c)) + Launch(0, rows * _ID_BYTES, 2 * rows * c.k * c.n)


def _sums_by_destination_pair(c: Counts) -> Launch:
    p = _Parts.of(c)
    sums = between(c.destination_pairs, p.k)
    return once(p.edges) + gathered(c.edges, p.k, c.num_src) + sums


def expected(c: Counts) -> dict[Method, float]:
    """What each method that the graph has the parts for is expected to take, in microseconds."""
    p = _Parts.of(c)
    result, edges = once(c.num_dst * p.n), once(p.edges)
    messages = between(c.edges, p.n)
    by_edge = in_turn(
        gathered(c.edges, p.k, c.num_src) + multiplied(c, c.edges) + messages + edges,
        messages + result,
    )
    found: dict[Method, float] = {"edges": by_edge}
    if pairs := c.source_pairs:
        found["source_pairs"] = in_turn(
            gathered(pairs, p.k, c.num_src) + multiplied(c, pairs) + between(pairs, p.n),
            edges + between(c.edges, p.n, pairs) + result,
        )
    if pairs := c.destination_pairs:
        found["destination_pairs"] = in_turn(
            _sums_by_destination_pair(c),
            between(pairs, p.k) + multiplied(c, pairs) + between(pairs, p.n),
            between(pairs, p.n) + result,
        )
    return found


def expected_of_gradients(c: Counts) -> dict[tuple[Method, Method], float]:
    """What both gradients take, by the methods for features and for weights.

    That of the features is the transpose of the sum; its sums by pair serve the weights, too.
    """
    p = _Parts.of(c)
    to_weights: dict[Method, list[Launch]] = {}
    if pairs := c.source_pairs:
        sums = _sums_by_destination_pair(c.T)
        outer = gathered(pairs, p.k, c.num_src) + between(pairs, p.n) + multiplied(c, pairs)
        to_weights["source_pairs"] = [sums, outer]
    if pairs := c.destination_pairs:
        sums = _sums_by_destination_pair(c)
        outer = between(pairs, p.k) + gathered(pairs, p.n, c.num_dst) + multiplied(c, pairs)
        to_weights["destination_pairs"] = [sums, outer]
    if not to_weights:
        both = gathered(c.edges, p.k, c.num_src) + gathered(c.edges, p.n, c.num_dst)
        to_weights["edges"] = [once(p.edges) + both + multiplied(c, c.edges)]
    found: dict[tuple[Method, Method], float] = {}
    for to_x, time in expected(c.T).items():
        for method, launches in to_weights.items():
            shared = to_x == "destination_pairs" and method == "source_pairs"
            if (to_x == "edges") == (method == "edges"):
                found[to_x, method] = time + in_turn(*launches[shared:])
    return found


# --- The choice ----------------------------------------------------------------------------------


def _from_rule(op: str, **counts: int) -> RelationalSchedule:
    del op
    return RelationalSchedule(_fastest(_before_gradients(Counts(**counts))))


def _before_gradients(c: Counts) -> dict[Method, float]:
    """What each method takes, but for sums by pair that the gradient of the weights takes anyway.

    Of a whole graph both ends have alike many pairs, and that gradient takes those of sources. A
    sampled block has fewer destinations.
    """
    times = expected(c)
    if c.destination_pairs and _for_gradients(c)[1] == "destination_pairs":
        times["destination_pairs"] -= _sums_by_destination_pair(c).time + _WAIT
    return times


def _for_gradients(c: Counts) -> tuple[Method, Method]:
    times = expected_of_gradients(c)
    return min(times, key=lambda methods: times[methods])


def _fastest(times: dict[Method, float]) -> Method:
    """By edge only where there are no pairs: with a pair an edge, source pairs move as much."""
    return min(times, key=lambda method: (method == "edges", times[method]))


_EXACT = ("k", "n", "itemsize")

FAMILY = define_family(
    Family(
        schedule=RelationalSchedule,
        allowed=(METHODS,),
        ops=("relational_aggregate",),
        exact=_EXACT,
        sizes=tuple(name for name in Counts._fields if name not in _EXACT),
        rule=_from_rule,
        describe=lambda s: f"by {s.method.replace('_', ' ')}",
    )
)


def chosen(counts: Counts) -> Method:
    """The method to take, among those that the graph has the parts for."""
    known = Counts(**FAMILY.known(**counts._asdict()))
    method = FAMILY.choose("relational_aggregate", **known._asdict()).method
    times = _before_gradients(known)
    return method if method in times else _fastest(times)


def chosen_for_gradients(counts: Counts) -> tuple[Method, Method]:
    """The methods to take for the gradients of the features and of the weights."""
    return _for_gradients(Counts(**FAMILY.known(**counts._asdict())))


def sums_by_basis_pay(counts: Counts, num_bases: int, *, lookup: bool = False) -> bool:
    """Whether weights that are mixed from bases are better left apart: one sum for each basis.

    Args:
        counts: of the product with mixed weights.
        num_bases: number of bases.
        lookup: whether sources have no features, so that weights have a row for each.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    p, edges = _Parts.of(c), once(c.edges * (_EDGE_BYTES + 4 * num_bases))
    basis = c.k * c.n * c.itemsize
    products = between(c.num_src, num_bases * p.n)
    flops = 2 * c.num_src * num_bases * c.k * c.n
    if lookup:  # bases are only brought into the order of sources
        basis, flops = c.num_src * p.n, 0
    apart = in_turn(
        once(num_bases * basis) + products + Launch(0, 0, flops) + once(c.num_src * p.k),
        edges + between(c.edges, num_bases * p.n, c.num_src) + once(c.num_dst * num_bases * p.n),
    )
    mixed = once((num_bases + c.relations) * basis) + Launch(
        0, 0, 2 * c.relations * num_bases * basis / c.itemsize
    )
    table = gathered(c.edges, p.n, c.relations * c.num_src) + once(p.edges + c.num_dst * p.n)
    if lookup:
        return apart < in_turn(mixed, table)
    return apart < mixed.time + expected(c)[_fastest(expected(c))]


def blocks_pay(counts: Counts) -> bool:
    """Whether block-diagonal weights are better left in blocks: rows of a few features for each.

    That takes 2 to 7 times as long as a product with the weights in full (a CPU, MUTAG, 2 to 20
    blocks of 5 to 32 features). In full they are only too large where they are more than all rows.

    Args:
        counts: of the product with the weights in full.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    rows = [pairs for pairs in (c.source_pairs, c.destination_pairs) if pairs] or [c.edges]
    return c.relations * c.k * c.n > 2 * min(rows) * (c.k + c.n)
