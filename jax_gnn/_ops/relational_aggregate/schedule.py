"""Methods of summing products by relation, a model of their time, and the choice of one.

The lengths of a graph's arrays, which compilation knows, say how many bytes each launch of a method
moves, how many of them miss L2, and how much it multiplies: the largest of the three times counts.
Rates were measured on an H200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from jax_gnn._core.schedule import L2_BYTES, Family

Method = Literal["edges", "source_pairs", "destination_pairs"]
METHODS: tuple[Method, ...] = get_args(Method)

# The method of the gradient of the features, which needs the same parts of a graph.
_TRANSPOSED_METHOD: dict[Method, Method] = {
    "edges": "edges",
    "source_pairs": "destination_pairs",
    "destination_pairs": "source_pairs",
}

# Bytes from memory, bytes from L2, and flops in a microsecond.
_MEMORY, _CACHE, _FLOPS = 4.28e6, 9e6, 360e6
# Microseconds of a launch, and of waiting for the launch before.
_LAUNCH, _WAIT = 1.7, 4.0
# Rows of sums that a node may keep where a graph is split over devices.
_MAX_SUMS = 4
# Bytes of both ids of an edge and its weight, and of a row's id.
_EDGE_BYTES, _ID_BYTES = 12, 4


class Counts(NamedTuple):
    """Sizes that decide how long a sum of products by relation takes."""

    num_src: int  # number of sources
    num_dst: int  # number of destinations
    edges: int  # number of edges
    relations: int  # number of relations
    source_pairs: int  # number of (source, relation) pairs, at least 1; 0 without that part
    # Number of (destination, relation) pairs, at least 1; 0 without that part.
    destination_pairs: int
    k: int  # features of a source
    n: int  # features of a destination
    itemsize: int  # bytes of a feature

    @property
    def T(self) -> Counts:
        """Sizes of the transpose: edges reversed and weights transposed."""
        return self._replace(
            num_src=self.num_dst,
            num_dst=self.num_src,
            source_pairs=self.destination_pairs,
            destination_pairs=self.source_pairs,
            k=self.n,
            n=self.k,
        )


class RelationalSchedule(NamedTuple):
    """Method of a sum of products by relation.

    Attributes:
        method: ``"edges"``, ``"source_pairs"`` or ``"destination_pairs"``, see
            :func:`jax_gnn.relational_aggregate`.
    """

    method: Method


# --- Times of launches ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """Work of a launch; ``+`` joins the work of one launch."""

    missed: float = 0  # bytes that miss L2
    moved: float = 0  # all bytes read and written
    flops: float = 0  # additions and multiplications
    extra: float = 0  # microseconds that are not hidden behind these

    def __add__(self, work: Launch) -> Launch:
        missed_bytes, moved_bytes = self.missed + work.missed, self.moved + work.moved
        flops, extra = self.flops + work.flops, self.extra + work.extra
        return Launch(missed_bytes, moved_bytes, flops, extra)

    @property
    def time(self) -> float:
        """Microseconds."""
        hidden = max(self.missed / _MEMORY, self.moved / _CACHE, self.flops / _FLOPS)
        return hidden + self.extra + _LAUNCH


def once(size: float) -> Launch:
    """Return the work of reading or writing an array that is not in L2, once."""
    return Launch(size, size)


def gathered(rows: int, row_bytes: float, num_rows: int) -> Launch:
    """Return the work of gathering rows of an array of ``num_rows``, which is not in L2 before."""
    size, array = rows * row_bytes, num_rows * row_bytes
    return Launch(max(min(size, array), size * _missing_share(array)), size)


def between(rows: int, row_bytes: float, num_rows: int | None = None) -> Launch:
    """Return the work of writing or reading rows of an array that the next launch reads.

    The array has ``num_rows`` rows, by default ``rows``.
    """
    size = rows * row_bytes
    return Launch(size * _missing_share(size if num_rows is None else num_rows * row_bytes), size)


def _missing_share(size: float) -> float:
    """Return the share of an array that L2 does not hold."""
    return max(0.0, 1 - L2_BYTES / size) if size else 0.0


def in_turn(*launches: Launch) -> float:
    """Return the microseconds of launches that wait for each other."""
    return sum(launch.time for launch in launches) + _WAIT * (len(launches) - 1)


class _Bytes(NamedTuple):
    """Sizes in bytes: of a source's row, a destination's row, the weights, and the edges."""

    k: int
    n: int
    rhs: int
    edges: int

    @classmethod
    def of(cls, c: Counts) -> _Bytes:
        rhs = c.relations * c.k * c.n * c.itemsize
        return cls(c.k * c.itemsize, c.n * c.itemsize, rhs, c.edges * _EDGE_BYTES)


def multiplied(c: Counts, rows: int) -> Launch:
    """Return the work of multiplying rows with the weights, which are read once."""
    return once(_Bytes.of(c).rhs) + Launch(0, rows * _ID_BYTES, 2 * rows * c.k * c.n)


def _destination_pair_sums(c: Counts) -> Launch:
    size = _Bytes.of(c)
    sums = between(c.destination_pairs, size.k)
    return once(size.edges) + gathered(c.edges, size.k, c.num_src) + sums


def expected(c: Counts) -> dict[Method, float]:
    """Return the expected microseconds of each method that the graph has the parts for."""
    size = _Bytes.of(c)
    result, edges = once(c.num_dst * size.n), once(size.edges)
    messages = between(c.edges, size.n)
    by_edge = in_turn(
        gathered(c.edges, size.k, c.num_src) + multiplied(c, c.edges) + messages + edges,
        messages + result,
    )
    # Products of source pairs come first, then the sum over edges.
    times: dict[Method, float] = {"edges": by_edge}
    if pairs := c.source_pairs:
        times["source_pairs"] = in_turn(
            gathered(pairs, size.k, c.num_src) + multiplied(c, pairs) + between(pairs, size.n),
            edges + between(c.edges, size.n, pairs) + result,
        )
    # Sums into destination pairs come first, then their products, then the sum over pairs.
    if pairs := c.destination_pairs:
        times["destination_pairs"] = in_turn(
            _destination_pair_sums(c),
            between(pairs, size.k) + multiplied(c, pairs) + between(pairs, size.n),
            between(pairs, size.n) + result,
        )
    return times


def expected_in_training(c: Counts) -> dict[Method, float]:
    """Return the expected microseconds of each method with the gradients of features and weights.

    The gradient of the features is the sum over reversed edges by the mirror image of the method,
    whose sums by pair the gradient of the weights reads.
    """
    size, gradients = _Bytes.of(c), expected(c.T)
    times: dict[Method, float] = {}
    for method, time in expected(c).items():
        if method == "destination_pairs":
            rows = c.destination_pairs
            outer = gathered(rows, size.n, c.num_dst) + between(rows, size.k)
        else:
            rows = c.edges if method == "edges" else c.source_pairs
            outer = gathered(rows, size.k, c.num_src) + between(rows, size.n)
        outer += multiplied(c, rows)
        times[method] = time + gradients[_TRANSPOSED_METHOD[method]] + in_turn(outer)
    return times


# --- The choice ----------------------------------------------------------------------------------


def _from_rule(op: str, **counts: int) -> RelationalSchedule:
    return RelationalSchedule(_best(Counts(**counts)))


def _best(c: Counts) -> Method:
    """Return the method with the least product of its times in inference and in training.

    It is ``"edges"`` only without pairs, which never move more.
    """
    times, in_training = expected(c), expected_in_training(c)
    return min(times, key=lambda name: (name == "edges", times[name] * in_training[name]))


_EXACT = ("k", "n", "itemsize")

FAMILY = Family(
    schedule=RelationalSchedule,
    allowed=(METHODS,),
    ops=("relational_aggregate",),
    exact=_EXACT,
    sizes=tuple(name for name in Counts._fields if name not in _EXACT),
    rule=_from_rule,
    describe=lambda s: f"by {s.method.replace('_', ' ')}",
)


def chosen(counts: Counts) -> Method:
    """Return the method to take, among those that the graph has the parts for."""
    c = Counts(**FAMILY.known(**counts._asdict()))
    method = FAMILY.choose("relational_aggregate", **c._asdict()).method
    return method if method in expected(c) else _best(c)


def halo_is_summed_apart(counts: Counts) -> bool:
    """Return whether destination pairs pay where rows of the last sources have an own array.

    Sums into destination pairs read both arrays. Other methods need one array: copies of all rows,
    forward and backward. Times are those of training, for which graphs are split over devices. The
    sums are kept for the gradient of the weights, so they may not be many.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    if c.destination_pairs > _MAX_SUMS * c.num_dst:
        return not c.source_pairs
    times, copy = expected_in_training(c), once(2 * c.num_src * c.k * c.itemsize).time
    others = (time for name, time in times.items() if name != "destination_pairs")
    return times.get("destination_pairs", math.inf) <= min(others) + 2 * copy


def sums_by_basis_pay(counts: Counts, num_bases: int, *, lookup: bool = False) -> bool:
    """Return whether a sum for each basis is faster than one with weights mixed from bases.

    With ``lookup`` sources have no features, so that weights have a row for each of them.
    """
    c = Counts(**FAMILY.known(**counts._asdict()))
    size, edges = _Bytes.of(c), once(c.edges * (_EDGE_BYTES + 4 * num_bases))
    basis = c.k * c.n * c.itemsize
    flops = 2 * c.num_src * num_bases * c.k * c.n
    if lookup:  # bases are only brought into the order of sources
        basis, flops = c.num_src * size.n, 0
    row_bytes = num_bases * size.n  # of all bases
    products = once(num_bases * basis) + between(c.num_src, row_bytes) + Launch(0, 0, flops)
    # One product of nodes with all bases, then a sum whose edges weigh each basis.
    by_basis = in_turn(
        products + once(c.num_src * size.k),
        edges + between(c.edges, row_bytes, c.num_src) + once(c.num_dst * row_bytes),
    )
    mixing_flops = 2 * c.relations * num_bases * basis / c.itemsize
    mixing = once((num_bases + c.relations) * basis) + Launch(0, 0, mixing_flops)
    if lookup:
        table = gathered(c.edges, size.n, c.relations * c.num_src)
        return by_basis < in_turn(mixing, table + once(size.edges + c.num_dst * size.n))
    return by_basis < mixing.time + expected(c)[_best(c)]
