"""Whether lifting edges pays: the counted times of their programs, and of plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jax_gnn._core.arrays import FLOATS
from jax_gnn._ops.relational_aggregate.schedule import Launch, between, gathered, once
from jax_gnn._program.backend import backend
from jax_gnn._program.cost import Cost, Costs
from jax_gnn._program.match import Matcher, needed_rows
from jax_gnn._program.normal import normal_form
from jax_gnn._program.patterns import Count, Einsum, Pattern, factors_of
from jax_gnn._program.plan import Plan
from jax_gnn._program.region_rows import linear_maps_of
from jax_gnn._program.rows import Constant, Contract, Pull, Push, Row, Softmax, count_uses
from jax_gnn._program.spaces import Space

# Nanoseconds on one core of a CPU with AVX-512: of a byte that is moved, of a flop of a matrix
# product, and of a row that is permuted, scattered by XLA, or summed by a kernel.
_BYTE, _FLOP, _PERMUTED, _SCATTERED, _SUMMED = 0.02, 0.005, 0.6, 0.6, 1.7
# Microseconds of a sort by receiver, and of one by both ends: in all, and of 1,000 edges. Those of
# GPUs are of an H200.
_SORTED = {"cpu": ((5.0, 6.0), (5.0, 10.0)), "cuda": ((45.0, 0.11), (70.0, 0.1))}
# On an H200, microseconds of a sort by 9 bits of ids, in all and of 1,000 ids; nanoseconds that an
# addition of a row, and each of its features, waits for others into the same row in XLA's scatter.
_DIGIT_BITS, _DIGIT, _ADDED = 9, (11.0, 0.05), (2.0, 0.12)
_FUSED = 0.85  # of the counted time of values as written, which XLA takes on a GPU at most
_CACHE_BYTES = 32 << 20  # of a result, to which XLA adds in the second-level cache of a GPU

_MARGIN = 1.1  # counts are right within 10 % where they are close


class Times(NamedTuple):
    """Counted microseconds.

    Attributes:
        forward: Of values.
        training: Of values and gradients.
    """

    forward: float = 0.0
    training: float = 0.0

    def __str__(self) -> str:
        return f"{self.forward:.0f} µs, {self.training:.0f} with gradients"

    def plus(self, times: Times) -> Times:
        """Return the sum."""
        return Times(self.forward + times.forward, self.training + times.training)


def pays(lifted: Times, plain: Times) -> bool:
    """Whether lifted edges are counted to take less, with and without gradients."""
    return all(_MARGIN * x < y for x, y in zip(lifted, plain, strict=True))


class _PlainMatcher(Matcher):
    """A matcher that finds no patterns: products are einsums, and reductions scatters."""

    def _match(self, row: Row) -> Pattern:
        return Einsum(tuple(factors_of(row)[0])) if isinstance(row.op, Contract) else None


class _PlainCosts(Costs):
    """Costs of gathers and scatters as XLA computes them."""

    def of(self, row: Row) -> Cost:
        if isinstance(row.op, Softmax):  # a maximum and a sum, and what edges read of them
            stored = self._stored(row)
            reads = [self._gather_to_edges(row)] * 3
            return Cost.of("softmax", *reads, *reads, stored, stored)
        return self._scatter(row.operands[0], row) if isinstance(row.op, Push) else super().of(row)

    def _is_elementwise(self, row: Row) -> bool:
        # XLA on a CPU makes what it scatters row by row. On a GPU it fuses small products of edges,
        # but for those with constants, such as Clebsch-Gordan arrays.
        if backend() == "cpu":
            is_fused = isinstance(row.op, Push)
        else:
            is_edge = isinstance(row.op, Contract) and row.space is Space.EDGE
            reads_constant = any(isinstance(x.op, Constant) for x in row.operands)
            is_fused = is_edge and not (reads_constant or linear_maps_of(row))
        return is_fused or super()._is_elementwise(row)

    def _scatter(self, x: Row, row: Row) -> Cost:
        moved = self._whole(row) + once(4 * self.num_edges)
        if backend() != "cpu":
            moved += self._stored(x)
            if self.rows(row) * self._bytes(row) > _CACHE_BYTES:
                moved += self._stored(x)  # atomic additions
            return Cost.of("scatter", moved)
        moved += self._gather_to_edges(row) + self._gather_to_edges(row)
        if not self._is_elementwise(x):
            moved += self._stored(x)
        return Cost.of("scatter", moved)

    def gradient(self, row: Row) -> Cost:
        if row in self._differentiated or not self.results:
            if isinstance(row.op, Pull):
                return self._scatter(row, row.operands[0])
            if isinstance(row.op, Push):
                return Cost.of("gather", self._gather_to_edges(row) + self._stored(row.operands[0]))
        return super().gradient(row)


def program_times(plan: Plan) -> tuple[Times, Times]:
    """Return the times of a program, and of the same functions in plain JAX."""
    written = normal_form(plan.traced.results)
    plain = _PlainCosts(_PlainMatcher(count_uses(written), plan.parts), written)
    num_edges = plan.costs.num_edges

    def lifted_sum(row: Row, pattern: Pattern) -> float:
        return 0.0 if isinstance(pattern, Count) else _SUMMED * num_edges

    as_written = _times(plain, written, lambda *_: _SCATTERED * num_edges)
    if backend() != "cpu":
        as_written = as_written._replace(forward=_FUSED * as_written.forward)
    lifted = _times(plan.costs, plan.results, lifted_sum)
    if backend() == "cuda":
        beyond = plan.time_in_kernels - plan.time
        lifted = lifted.plus(Times(beyond, beyond))
    return lifted, as_written


def _times(costs: Costs, results: list[Row], of_sum: Callable[[Row, Pattern], float]) -> Times:
    forward = backward = 0.0
    is_cpu = backend() == "cpu"
    for row in needed_rows(results, costs.matcher):
        value, gradient = costs.of(row), costs.gradient(row)
        forward += _cpu_time(value) if is_cpu else value.time
        backward += _cpu_time(gradient) if is_cpu else gradient.time
        if is_cpu and isinstance(row.op, Push):
            forward += of_sum(row, costs.matcher(row)) / 1e3
        if is_cpu and isinstance(row.op, Pull) and gradient.bytes:
            backward += of_sum(row, None) / 1e3
    return Times(forward, forward + backward)


def _cpu_time(cost: Cost) -> float:
    return (_BYTE * cost.bytes + _FLOP * cost.flops) / 1e3


def sum_times(num_edges: int, aval: Any) -> tuple[Times, Times]:
    """Return the times of a sum at the senders by a kernel, and by a scatter."""
    size = aval.size * aval.dtype.itemsize
    if backend() != "cpu":
        kernel, scatter = (Cost.of("", once(4 * num_edges) + once(n * size)).time for n in (1, 2))
    else:
        kernel, scatter = ((x * num_edges + _BYTE * size) / 1e3 for x in (_SUMMED, _SCATTERED))
    return Times(kernel, 2 * kernel), Times(scatter, 2 * scatter)


def sum_pays(num_edges: int, num_rows: int, aval: Any) -> bool:
    """Return whether a sum by ids, which are sorted for it, gains time over a scatter."""
    kernel, scatter = (times.forward for times in sum_times(num_edges, aval))
    if backend() == "cpu":
        kernel += sort_times(num_edges).forward
    else:
        digits = -(-num_rows.bit_length() // _DIGIT_BITS)
        kernel += digits * (_DIGIT[0] + _DIGIT[1] * num_edges / 1e3)
        scatter += (_ADDED[0] * num_edges + _ADDED[1] * aval.size) / num_rows / 1e3
    return _MARGIN * kernel < scatter


def product_times(num_edges: int, num_segments: int, aval: Any) -> Times:
    """Return the times of one-hot rows, and of their product with rows of edges."""
    moved = (2 * num_edges * num_segments + aval.size) * aval.dtype.itemsize
    flops = 2 * num_segments * aval.size
    if backend() == "cpu":
        time = (_BYTE * moved + _FLOP * flops) / 1e3
    else:
        time = Cost.of("", once(moved) + Launch(flops=flops)).time
    return Times(time, 2 * time)


def permutation_times(num_edges: int, avals: Iterable[Any]) -> Times:
    """Return the times of bringing arrays of edges into another order."""
    forward = training = 0.0
    for aval in avals:
        row_bytes = aval.size * aval.dtype.itemsize // num_edges
        if backend() == "cpu":
            time = (_PERMUTED + 0.075 * row_bytes) * num_edges / 1e3
        else:
            moved = gathered(num_edges, row_bytes, num_edges) + between(num_edges, row_bytes)
            time = Cost.of("permutation", moved).time
        forward += time
        training += time * (2 if aval.dtype in FLOATS else 1)
    return Times(forward, training)


def sort_times(num_edges: int) -> Times:
    """Return the times of sorting edges in a program."""
    constants = _SORTED["cpu" if backend() == "cpu" else "cuda"]
    return Times(*(fixed + by_thousand * num_edges / 1e3 for fixed, by_thousand in constants))
