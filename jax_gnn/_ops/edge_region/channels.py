"""Channels of row programs, and values as polynomials: the products of equivariant models.

A row ``(channels, 2 l + 1)`` of an equivariant model has *channels*, which no product mixes: each
number of a result depends on numbers of one channel, and on narrow rows that all channels share,
such as spherical harmonics. Channels of several blocks of a row are found by connectivity, so that
any layout will do. A channel's numbers are then polynomials: products with constants
(Clebsch-Gordan arrays) keep nonzero coefficients alone, in whatever order they were written.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jax_gnn._ops.edge_region.row_program import Input, Instruction, RowProgram

MIN_CHANNELS = 16
"""Fewest channels, and terms of a sum that is a sum over channels."""
MAX_UNROLLED_WEIGHTS = 64
"""Weights of a matrix whose product is written out; larger ones run on tensor cores."""
SUM = -1
"""Factor of a monomial that is summed over channels."""

Monomial = tuple[int, ...]
"""Sorted indices of leaves; a leaf that is squared stands twice."""
Polynomial = dict[Monomial, float]

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_MAX_MONOMIALS = 1 << 13  # of one value
_MAX_LIMITS = 4  # widths of rows up to which rows may be shared by channels


class NoPolynomial(Exception):
    """A value that differs between channels in more than what they read."""


class Channels(NamedTuple):
    """The channel of each number of a program.

    Attributes:
        size: Number of channels.
        starts: For each value, the place of its first number below.
        channel: The channel of each number; -1 for numbers that all channels share.
        block: Which of the numbers of a channel that depend on each other it belongs to; -1.
    """

    size: int
    starts: np.ndarray
    channel: np.ndarray
    block: np.ndarray

    def of(self, value: int, indices: np.ndarray) -> np.ndarray:
        """Return the channels of a value's numbers."""
        channels: np.ndarray = self.channel[self.starts[value] + indices]
        return channels


@functools.lru_cache(maxsize=256)
def channels_of(program: RowProgram) -> Channels | None:
    """Return the channels of a program that has products with constants; None for others.

    A program that also multiplies with a large matrix of weights has none: every channel would
    multiply anew, and hold what comes out.
    """
    if not any(_multiplies_constant(program, step) for step in program.instructions):
        return None
    if any(_multiplies_weights(program, step) for step in program.instructions):
        return None
    widths = sorted({x.width for x in program.inputs if x.access != "shared"})
    # Rows that all channels read are narrow. The fewest such rows leave several channels.
    for limit in (0, *widths[:_MAX_LIMITS]):
        channels = _connected(program, limit)
        if channels is not None:
            return channels
    return None


def _multiplies_constant(program: RowProgram, step: Instruction) -> bool:
    matrix = program.values[step.operands[-1]] if step.name == "dot" else None
    return isinstance(matrix, Instruction) and matrix.name == "constant"


def _multiplies_weights(program: RowProgram, step: Instruction) -> bool:
    """Whether an instruction is a product with an array that all entries share."""
    if step.name != "dot" or program.values[step.operands[1]].width <= MAX_UNROLLED_WEIGHTS:
        return False
    matrix = program.values[step.operands[1]]
    while isinstance(matrix, Instruction) and matrix.name in ("take", "convert_element_type"):
        matrix = program.values[matrix.operands[0]]
    return isinstance(matrix, Input) and matrix.access == "shared"


def _connected(program: RowProgram, limit: int) -> Channels | None:
    """Return the channels if rows of at most `limit` numbers are shared by all of them."""
    from scipy import sparse

    values = program.values
    starts = np.cumsum([0, *(value.width for value in values)])
    shared: list[np.ndarray] = []  # for each number of a value, whether all channels share it
    links: list[tuple[np.ndarray, np.ndarray]] = []
    for number, value in enumerate(values):
        is_narrow = isinstance(value, Input) and (value.access == "shared" or value.width <= limit)
        shared.append(np.full(value.width, is_narrow or isinstance(value, Instruction)))
        if isinstance(value, Input) or _sums_channels(program, value):
            continue
        for operand, source, target in _links(program, value):
            varies = ~shared[operand][source]
            shared[-1][target] &= ~varies
            links.append((starts[operand] + source[varies], starts[number] + target[varies]))
    if not links:
        return None
    sources, targets = (np.concatenate(ends) for ends in zip(*links, strict=True))
    size = int(starts[-1])
    graph = sparse.coo_matrix((np.ones(len(sources), bool), (sources, targets)), (size, size))
    labels = sparse.csgraph.connected_components(graph, directed=False)[1]
    # Channels look alike: as many numbers of each value. Components of one kind are channels, in
    # the order of their first numbers.
    weights = np.random.default_rng(0).random(len(values))
    of_number = np.repeat(weights, [value.width for value in values])
    sizes, kinds = np.bincount(labels), np.bincount(labels, of_number).round(6)
    firsts = np.unique(labels, return_index=True)[1]
    components = np.argsort(firsts)
    components = components[sizes[components] > 1]
    groups = [components[kinds[components] == kind] for kind in dict.fromkeys(kinds[components])]
    count = math.gcd(*(len(group) for group in groups))
    if count < MIN_CHANNELS:
        return None
    channel, block = np.full((2, len(sizes)), -1)
    blocks = [part for group in groups for part in group.reshape(-1, count)]
    for i, part in enumerate(blocks):
        channel[part], block[part] = np.arange(count), i
    return Channels(count, starts, channel[labels], block[labels])


def _sums_channels(program: RowProgram, step: Instruction) -> bool:
    """Whether an instruction adds up so many numbers that these are of several channels."""
    count = {"reduce": -1, "dot": 0, "outer": 0}.get(step.name)
    if count is None or int(step.params[count]) < MIN_CHANNELS:
        return False
    return not _multiplies_constant(program, step)


def _links(program: RowProgram, step: Instruction) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield operands of an instruction, and which of their numbers each result depends on."""
    numbers = np.arange(step.width)
    widths = [program.values[i].width for i in step.operands]
    match step.name:
        case "take":
            yield step.operands[0], step.places, numbers
        case "concatenate":
            for operand, width, stop in zip(step.operands, widths, np.cumsum(widths), strict=True):
                yield operand, np.arange(width), np.arange(stop - width, stop)
        case "reduce" | "dot" | "outer":
            for terms in _terms(program, step, numbers):
                yield from ((i, x, numbers) for i, x in terms)
        case _:
            for operand, width in zip(step.operands, widths, strict=True):
                yield operand, numbers if width == step.width else 0 * numbers, numbers


def _terms(
    program: RowProgram, step: Instruction, indices: np.ndarray
) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Yield the factors of each term of a sum: values, and the index of each result's number."""
    widths = [program.values[i].width for i in step.operands]
    count = int(step.params[-1 if step.name == "reduce" else 0])
    columns = widths[-1] // count
    for i in range(count):
        if step.name == "reduce":
            places = [indices * count + i]
        elif step.name == "dot":
            places = [indices // columns * count + i, i * columns + indices % columns]
        else:
            rows = widths[0] // count
            places = [i * rows + indices // columns, i * columns + indices % columns]
        yield list(zip(step.operands, places, strict=True))


# --- Polynomials ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Leaf:
    """A variable of polynomials: an input's number in each channel, or what is computed before.

    Attributes:
        value: The value.
        indices: Its number for each channel.
        operands: Operands of a function.
        is_shared: Whether all channels have the same number.
        is_function: Whether the value's function is applied to the operands; else the only operand
            is the number.
    """

    value: int
    indices: np.ndarray
    operands: tuple[Polynomial, ...]
    is_shared: bool
    is_function: bool


class Polynomials:
    """The numbers of a program's values as polynomials, equal in all channels."""

    def __init__(self, program: RowProgram, channels: Channels) -> None:
        self.program, self.channels = program, channels
        self.leaves: list[Leaf] = []
        self._values: dict[tuple[int, bytes], Polynomial] = {}
        self._variables: dict[tuple[int, bytes], Polynomial] = {}
        self._params: dict[int, np.ndarray] = {}

    def of(self, number: int, indices: np.ndarray) -> Polynomial:
        """Return a number of a value, by its index for each channel.

        Raises:
            NoPolynomial: Channels differ.
        """
        value = self.program.values[number]
        indices = indices if value.width > 1 else np.zeros_like(indices)
        key = number, indices.tobytes()
        if key not in self._values:
            polynomial = (
                self._leaf(number, indices)
                if isinstance(value, Input)
                else self._computed(number, value, indices)
            )
            if len(polynomial) > _MAX_MONOMIALS:
                raise NoPolynomial("products of too many terms")
            self._values[key] = polynomial
        return self._values[key]

    def block_of(self, monomial: Monomial) -> int:
        """Return the block of a monomial that is summed over channels; 0 if it has none."""
        for leaf in (self.leaves[i] for i in monomial if i != SUM):
            if not leaf.is_shared:
                return max(0, int(self._block(leaf)))
        return 0

    def _block(self, leaf: Leaf) -> int:
        start = self.channels.starts[leaf.value]
        return int(self.channels.block[start + leaf.indices[0]])

    def _leaf(
        self,
        number: int,
        indices: np.ndarray,
        operands: tuple[Polynomial, ...] = (),
        is_function: bool = True,
    ) -> Polynomial:
        is_shared = bool((indices == indices[0]).all())
        self.leaves.append(Leaf(number, indices, operands, is_shared, is_function))
        return {(len(self.leaves) - 1,): 1.0}

    def _computed(self, number: int, step: Instruction, indices: np.ndarray) -> Polynomial:
        name, operands = step.name, step.operands
        match name:
            case "take":
                return self.of(operands[0], self._params_of(number, step)[indices])
            case "constant":
                numbers = self._params_of(number, step)[indices]
                if (numbers != numbers[0]).any():
                    raise NoPolynomial("a constant that differs between channels")
                return {(): float(numbers[0])} if numbers[0] else {}
            case "concatenate":
                widths = [self.program.values[i].width for i in operands]
                stops = np.cumsum(widths)
                pieces = np.searchsorted(stops, indices, side="right")
                piece = int(pieces[0])
                if (pieces != piece).any():
                    raise NoPolynomial("channels in different parts of a row")
                return self.of(operands[piece], indices - (stops[piece] - widths[piece]))
            case "reduce" | "dot" | "outer" if name != "reduce" or step.params[0] == "sum":
                if _sums_channels(self.program, step) and self._varies(operands):
                    return self._sum_over_channels(step, indices)
                total: Polynomial = {}
                for factors in _terms(self.program, step, indices):
                    total = _sum(total, self._product(factors))
                return total
        values = [self.of(i, indices) for i in operands]
        dtypes = [self.program.values[i].dtype_name for i in operands]
        if step.dtype_name in _FLOATS and all(dtype in _FLOATS for dtype in dtypes):
            match name:
                case "convert_element_type":
                    return values[0]
                case "add" | "sub":
                    return _sum(values[0], values[1], 1.0 if name == "add" else -1.0)
                case "neg":
                    return _sum({}, values[0], -1.0)
                case "mul":
                    return self._product([(i, indices) for i in operands])
                case "square":
                    return self._product([(operands[0], indices)] * 2)
                case "div" if list(values[1]) == [()]:
                    return _sum({}, values[0], 1 / values[1][()])
        if any(map(_has_sum, values)):
            raise NoPolynomial("a function of a sum over channels")
        return self._leaf(number, indices, tuple(values))

    def _varies(self, values: Iterable[int]) -> bool:
        """Whether numbers of some values belong to channels."""
        starts, channel = self.channels.starts, self.channels.channel
        return any((channel[starts[i] : starts[i + 1]] >= 0).any() for i in values)

    def _sum_over_channels(self, step: Instruction, indices: np.ndarray) -> Polynomial:
        if (indices != indices[0]).any():
            raise NoPolynomial("a sum over channels that channels read")
        terms = list(_terms(self.program, step, indices[:1]))
        places = [np.concatenate([term[i][1] for term in terms]) for i in range(len(terms[0]))]
        channel = np.max(
            [self.channels.of(i, x) for i, x in zip(step.operands, places, strict=True)], 0
        )
        count = self.channels.size
        order = np.argsort(channel, kind="stable")
        share, rest = divmod(len(order), count)
        if rest or (channel[order] != np.repeat(np.arange(count), share)).any():
            raise NoPolynomial("a sum that channels do not share evenly")
        total: Polynomial = {}
        for places_of_term in zip(*(x[order].reshape(count, -1).T for x in places), strict=True):
            places = [np.ascontiguousarray(x) for x in places_of_term]
            total = _sum(total, self._product(list(zip(step.operands, places, strict=True))))
        if _has_sum(total):
            raise NoPolynomial("a sum over channels of another")
        return {(SUM, *monomial): coefficient for monomial, coefficient in total.items()}

    def _product(self, places: Sequence[tuple[int, np.ndarray]]) -> Polynomial:
        factors = [self.of(number, indices) for number, indices in places]
        if len(factors) == 1:
            return factors[0]
        # Sums are not multiplied out, but for sums over channels, whose terms must be of a channel.
        if all(len(factor) > 1 for factor in factors):
            factors = [
                factor if _has_sum(factor) else self._variable(*place)
                for factor, place in zip(factors, places, strict=True)
            ]
        total: Polynomial = {}
        for (a, x), (b, y) in itertools.product(factors[0].items(), factors[1].items()):
            monomial = tuple(sorted(a + b))
            if monomial[:1] == (SUM,):
                outside = b if a[:1] == (SUM,) else a
                if not all(i != SUM and self.leaves[i].is_shared for i in outside):
                    raise NoPolynomial("a product with a sum over channels")
            total[monomial] = total.get(monomial, 0.0) + x * y
        if len(total) > _MAX_MONOMIALS:
            raise NoPolynomial("products of too many terms")
        return {monomial: x for monomial, x in total.items() if x}

    def _variable(self, number: int, indices: np.ndarray) -> Polynomial:
        """Return a number that is computed before as a variable of its own."""
        key = number, indices.tobytes()
        if key not in self._variables:
            operand = self.of(number, indices)
            self._variables[key] = self._leaf(number, indices, (operand,), is_function=False)
        return self._variables[key]

    def _params_of(self, number: int, step: Instruction) -> np.ndarray:
        if number not in self._params:
            self._params[number] = np.asarray(step.params)
        return self._params[number]


def _has_sum(polynomial: Polynomial) -> bool:
    return any(SUM in monomial for monomial in polynomial)


def _sum(a: Polynomial, b: Polynomial, factor: float = 1.0) -> Polynomial:
    total = dict(a)
    for monomial, x in b.items():
        total[monomial] = total.get(monomial, 0.0) + factor * x
    return {monomial: x for monomial, x in total.items() if x}
