"""What a program is made of: rows, each made of others by an operation, up to its arguments.

A program is a graph of `Row`: what no result needs is not in it. Passes make new rows of old ones.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jax_gnn._program.spaces import READS, Space

Labels = tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """An argument, or an array that the program closes over: number ``index`` of all of them."""

    index: int
    name: str


@dataclass(frozen=True)
class Constant:
    """A number that the program names."""

    value: Any

    @property
    def key(self) -> Any:
        """What is equal of equal numbers."""
        return str(self.value.dtype), self.value.tobytes()


@dataclass(frozen=True)
class Place:
    """The number of each row of a space."""


@dataclass(frozen=True)
class Pull:
    """The row that each row of a space reads by a way."""

    way: str


@dataclass(frozen=True)
class Push:
    """Reduces rows: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``."""

    reduce: str


@dataclass(frozen=True)
class Softmax:
    """Over the edges into each destination."""


@dataclass(frozen=True)
class Contract:
    """A product of rows summed over some axes: one einsum over their axes.

    Attributes:
        terms: For each operand the labels of its axes.
        out: The labels of the result's axes; one that no operand has is an axis of copies.
        precision: Of products of matrices.
        read_by: The same as in `Apply`.
    """

    terms: tuple[Labels, ...]
    out: Labels
    precision: Any = None
    read_by: frozenset[str] | None = None


@dataclass(frozen=True)
class Apply:
    """A function of rows.

    Attributes:
        name: What it is called, for reading.
        function: Maps the operands to a list of results.
        index: Which of these.
        key: What is equal of equal functions.
        params: Of the JAX primitive that it is.
        read_by: The ways by which edges read the result, where a pass moved it. Rows that no edge
            reads do not count then.
    """

    name: str
    function: Callable[..., Sequence[Any]] = field(compare=False)
    index: int = 0
    key: Any = None
    params: Any = field(default=None, compare=False)
    read_by: frozenset[str] | None = None


Operation = Given | Constant | Place | Pull | Push | Softmax | Contract | Apply


@dataclass(frozen=True, eq=False)
class Row:
    """What a space has for each of its members.

    Attributes:
        op: How it is made.
        operands: Of what.
        space: Where it lives.
        shape: Of one row.
        dtype: Of its numbers.
        line: The user's, which it comes from.
    """

    op: Operation
    operands: tuple[Row, ...]
    space: Space
    shape: tuple[int, ...]
    dtype: Any
    line: str = ""

    @property
    def size(self) -> int:
        """Numbers in one row."""
        return math.prod(self.shape)

    def with_operands(self, operands: Sequence[Row]) -> Row:
        """The same of other operands; itself if they are the same."""
        if all(a is b for a, b in zip(operands, self.operands, strict=True)):
            return self
        return replace(self, operands=tuple(operands))


# --- Making rows ---------------------------------------------------------------------------------


def pull(row: Row, space: Space, way: str) -> Row:
    """What rows of a space read by a way; shared rows need none, nor does the space itself."""
    if row.space is Space.SHARED or not way:
        return row
    assert READS[space][way] is row.space, (space, way, row.space)
    if isinstance(row.op, Pull):  # an end's type: by one way
        base = row.operands[0]
        joined = {"src": "src_type", "dst": "dst_type"} if row.op.way == "type" else {}
        joined |= {"relation": row.op.way} if row.space is Space.RELATION else {}
        joined |= {"src_pair": row.op.way, "dst_pair": row.op.way}
        if way in joined:
            return pull(base, space, joined[way])
    return Row(Pull(way), (row,), space, row.shape, row.dtype, row.line)


def contract(
    operands: Sequence[Row],
    terms: Sequence[Labels],
    out: Labels,
    like: Row,
    precision: Any = None,
    sizes: Mapping[int, int] | None = None,
) -> Row:
    """An einsum, whose operands live in one space or are shared.

    Args:
        operands: The factors.
        terms: Their labels.
        out: Those of the result.
        like: What has its dtype and its line, and is read by the same ways.
        precision: Of products.
        sizes: Of labels that no operand has; by default the shape of `like`.
    """
    if sizes is None:
        sizes = dict(zip(out, like.shape, strict=True)) if len(out) == len(like.shape) else {}
    known = {**sizes, **sizes_of(operands, terms)}
    space = common_space(operands)
    is_alike = isinstance(like.op, Apply | Contract) and space is like.space
    read_by = like.op.read_by if is_alike else None  # type: ignore[union-attr]
    op = Contract(tuple(terms), tuple(out), precision, read_by)
    shape = tuple(known[label] for label in out)
    return Row(op, tuple(operands), space, shape, like.dtype, like.line)


def apply(name: str, function: Callable[..., Any], *operands: Row, key: Any = None) -> Row:
    """A function of one result of rows of one space, or shared."""
    structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands]
    out = jax.eval_shape(function, *structs)

    def listed(*rows: Any) -> list[Any]:
        return [function(*rows)]

    op = Apply(name, listed, key=(name, key))
    space = common_space(operands)
    return Row(op, operands, space, out.shape, out.dtype, operands[0].line)


MAX_CONSTANT = 1 << 16
"""Most numbers of a constant array that is evaluated while a program is traced."""

REACHED = "reached"
"""The name of the function that is 0 at nodes without edges, and the identity elsewhere."""


def reached(row: Row) -> Row:
    """A row of nodes that is 0 where a node has no edges."""
    op = Apply(REACHED, lambda x: [x], key=REACHED)
    return Row(op, (row,), row.space, row.shape, row.dtype, row.line)


def constant(value: Any, dtype: Any, line: str = "") -> Row:
    """A number."""
    array = np.asarray(value, dtype)
    return Row(Constant(array), (), Space.SHARED, array.shape, array.dtype, line)


def common_space(operands: Iterable[Row]) -> Space:
    """Where rows live that are not shared."""
    found = {each.space for each in operands} - {Space.SHARED}
    assert len(found) <= 1, found
    return found.pop() if found else Space.SHARED


def sizes_of(operands: Iterable[Row], terms: Iterable[Labels]) -> dict[int, int]:
    """How long the axis of each label is."""
    return {
        label: size
        for row, labels in zip(operands, terms, strict=True)
        for label, size in zip(labels, row.shape, strict=True)
    }


def fingerprint(row: Row, known: dict[Row, int]) -> int:
    """A number that equal rows share, the same in each process."""
    for each in [] if row in known else in_order([row]):
        if each not in known:
            of = [known[operand] for operand in each.operands]
            text = f"{title(each.op)} {each.space} {each.shape} {of}"
            known[each] = zlib.crc32(text.encode())
    return known[row]


# --- Walking -------------------------------------------------------------------------------------


def in_order(
    results: Iterable[Row], operands: Callable[[Row], Sequence[Row]] = lambda row: row.operands
) -> list[Row]:
    """All rows, each after its operands, or after what else it is said to need."""
    found: dict[Row, None] = {}
    stack = [(row, False) for row in reversed(list(results))]
    while stack:
        row, ready = stack.pop()
        if row in found:
            continue
        if ready:
            found[row] = None
            continue
        stack.append((row, True))
        stack += [(each, False) for each in reversed(operands(row))]
    return list(found)


def uses_of(results: Sequence[Row]) -> dict[Row, int]:
    """How often each row is an operand or a result."""
    found = dict.fromkeys(in_order(results), 0)
    for each in [*results, *(each for row in found for each in row.operands)]:
        found[each] += 1
    return found


def rewritten(results: Sequence[Row], rule: Callable[[Row], Row]) -> list[Row]:
    """The same where each row, its operands being rewritten, is what a rule makes of it."""
    new: dict[Row, Row] = {}
    for row in in_order(results):
        new[row] = rule(row.with_operands([new[each] for each in row.operands]))
    return [new[row] for row in results]


@functools.singledispatch
def title(op: Any) -> str:
    """What an operation is called."""
    return type(op).__name__.lower()


@title.register
def _(op: Apply) -> str:
    return op.name


@title.register
def _(op: Given) -> str:
    return op.name


@title.register
def _(op: Constant) -> str:
    return f"{op.value:g}" if op.value.ndim == 0 else f"constant{op.value.shape}"


@title.register
def _(op: Push) -> str:
    return op.reduce


@title.register
def _(op: Pull) -> str:
    return op.way
