"""The representation of programs: a graph of rows, each made of other rows by an operation.

A `Row` stands for an array with a row for each member of its space. Rows are immutable: a pass
makes new rows of old ones. Rows that no result needs are not part of a program.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from jax_gnn._core.op import align_varying
from jax_gnn._ops.edge_region.row_program import abstract_row
from jax_gnn._program.spaces import READS, Space

Labels = tuple[int, ...]
"""Labels of axes, as in an einsum."""

RowFunction = Callable[..., Sequence[Any]]
"""A function of one row of each operand that returns a list of rows."""


@dataclass(frozen=True)
class Input:
    """An argument, or an array that the program closes over.

    Attributes:
        index: Index among all of them.
        name: Name in errors and explanations.
    """

    index: int
    name: str


@dataclass(frozen=True)
class Constant:
    """A constant array."""

    value: np.ndarray

    @property
    def key(self) -> Hashable:
        """A key that equal constants share."""
        return str(self.value.dtype), self.value.tobytes()


@dataclass(frozen=True)
class Index:
    """The index of each row of a space."""


@dataclass(frozen=True)
class Pull:
    """The row that each row of a space reads by a way."""

    way: str


@dataclass(frozen=True)
class Push:
    """A reduction of edges into nodes, or of nodes into graphs.

    Attributes:
        reduce: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``.
        way: The way from a row to what it is reduced into: ``"dst"``, ``"src"`` or ``"graph"``.
    """

    reduce: str
    way: str = "dst"


@dataclass(frozen=True)
class Softmax:
    """The softmax over what a `Push` reduces into one row, by the way "dst" or "graph"."""

    way: str = "dst"


@dataclass(frozen=True)
class Contract:
    """An einsum of rows.

    Attributes:
        terms: Labels of the axes of each operand.
        out: Labels of the axes of the result; one that no operand has is broadcast.
        precision: Precision of matrix products.
        read_by: As in `Apply`.
    """

    terms: tuple[Labels, ...]
    out: Labels
    precision: Any = None
    read_by: frozenset[str] | None = None


@dataclass(frozen=True)
class Apply:
    """A function of rows.

    Attributes:
        name: Name in explanations.
        function: Maps the operands to a list of results.
        index: Index of the result.
        key: A key that equal functions share; None if it is unknown.
        params: Parameters of the JAX primitive.
        read_by: The ways by which edges read the result, if a pass moved it to another space; rows
            that no edge reads do not count then. None if all rows count.
        varies: For each operand, whether it varies over manual mesh axes where the function's own
            jaxprs were traced, which cast the other ones; None if the function has no jaxprs.
    """

    name: str
    function: RowFunction = field(compare=False)
    index: int = 0
    key: Hashable = None
    params: Any = field(default=None, compare=False)
    read_by: frozenset[str] | None = None
    varies: tuple[bool, ...] | None = None

    def align(self, operands: Sequence[Array]) -> list[Array]:
        """Cast operands to vary over the same mesh axes, but those that the function casts."""
        varies = self.varies or (True,) * len(operands)
        pairs = [*zip(operands, varies, strict=True)]
        aligned = iter(align_varying([x for x, is_varying in pairs if is_varying]))
        return [next(aligned) if is_varying else x for x, is_varying in pairs]


Operation = Input | Constant | Index | Pull | Push | Softmax | Contract | Apply


@dataclass(frozen=True, eq=False)
class Row:
    """An array with a row for each member of a space.

    Attributes:
        op: The operation that makes it.
        operands: Operands of the operation.
        space: The space.
        shape: Shape of one row.
        dtype: Dtype of the elements.
        line: The user's line that it comes from.
    """

    op: Operation
    operands: tuple[Row, ...]
    space: Space
    shape: tuple[int, ...]
    dtype: Any
    line: str = ""

    @property
    def size(self) -> int:
        """Number of elements of one row."""
        return math.prod(self.shape)

    @property
    def is_shared(self) -> bool:
        """Whether all members of all spaces share the row."""
        return self.space is Space.SHARED

    def with_operands(self, operands: Sequence[Row]) -> Row:
        """Return the row with other operands; itself if these are its own."""
        if all(a is b for a, b in zip(operands, self.operands, strict=True)):
            return self
        return replace(self, operands=tuple(operands))


# --- Constructors --------------------------------------------------------------------------------


def pull(row: Row, space: Space, way: str) -> Row:
    """Return what the rows of a space read of a row by a way; shared rows need no read."""
    if row.is_shared or not way:
        return row
    assert READS[space][way] is row.space, (space, way, row.space)
    if isinstance(row.op, Pull):  # two reads in turn that are one way
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
    """Return an einsum of operands in one space, or shared.

    Args:
        operands: The factors.
        terms: Labels of each factor.
        out: Labels of the result.
        like: A row with the result's dtype, line and readers.
        precision: Precision of matrix products.
        sizes: Sizes of labels that no operand has; by default from the shape of `like`.
    """
    if sizes is None:
        sizes = dict(zip(out, like.shape, strict=True)) if len(out) == len(like.shape) else {}
    sizes = {**sizes, **sizes_of(operands, terms)}
    space = common_space(operands)
    read_by = None
    if isinstance(like.op, Apply | Contract) and space is like.space:
        read_by = like.op.read_by
    op = Contract(tuple(terms), tuple(out), precision, read_by)
    shape = tuple(sizes[label] for label in out)
    return Row(op, tuple(operands), space, shape, like.dtype, like.line)


def apply(name: str, function: Callable[..., Any], *operands: Row, key: Hashable = None) -> Row:
    """Return a function with one result, of operands in one space, or shared."""
    out = jax.eval_shape(function, *(abstract_row(x.shape, x.dtype) for x in operands))

    def list_of_one(*rows: Array) -> list[Any]:
        return [function(*rows)]

    op = Apply(name, list_of_one, key=(name, key))
    return Row(op, operands, common_space(operands), out.shape, out.dtype, operands[0].line)


def slice_in_dim(row: Row, start: int, stop: int, axis: int) -> Row:
    """Return a slice of an axis of a row."""

    def function(x: Array) -> Array:
        return jax.lax.slice_in_dim(x, start, stop, axis=axis)

    return apply("slice", function, row, key=(start, stop, axis))


MAX_CONSTANT = 1 << 16
"""Largest number of elements of a constant that is evaluated while a program is traced."""

REACHED = "reached"
"""Name of the function that zeroes rows that nothing is reduced into."""


SOFTMAX_SHIFT = "softmax_shift"
"""Name of the function of a maximum of scores, which has no gradient."""
SOFTMAX_EXP = "softmax_exp"
"""Name of the function of scores and shifts."""


def reached(row: Row, way: str) -> Row:
    """Return a row, zero where a `Push` by this way reduces nothing into it."""
    op = Apply(REACHED, lambda x: [x], key=(REACHED, way))
    return Row(op, (row,), row.space, row.shape, row.dtype, row.line)


def constant(value: object, dtype: DTypeLike, line: str = "") -> Row:
    """Return a constant row."""
    array = np.asarray(value, dtype)
    return Row(Constant(array), (), Space.SHARED, array.shape, array.dtype, line)


def common_space(operands: Iterable[Row]) -> Space:
    """Return the space of the operands that are not shared."""
    spaces = {operand.space for operand in operands} - {Space.SHARED}
    assert len(spaces) <= 1, spaces
    return spaces.pop() if spaces else Space.SHARED


def sizes_of(operands: Iterable[Row], terms: Iterable[Labels]) -> dict[int, int]:
    """Return the size of the axis of each label."""
    return {
        label: size
        for row, labels in zip(operands, terms, strict=True)
        for label, size in zip(labels, row.shape, strict=True)
    }


def fingerprint(row: Row, cache: dict[Row, int]) -> int:
    """Return a number that equal rows share, the same in each process."""
    for node in [] if row in cache else topological_order([row]):
        if node not in cache:
            operands = [cache[operand] for operand in node.operands]
            text = f"{title(node.op)} {node.space} {node.shape} {operands}"
            cache[node] = zlib.crc32(text.encode())
    return cache[row]


# --- Traversal -----------------------------------------------------------------------------------


def topological_order(
    results: Iterable[Row], operands: Callable[[Row], Sequence[Row]] = lambda row: row.operands
) -> list[Row]:
    """Return all rows that results need, each after its operands.

    Args:
        results: The results.
        operands: Maps a row to the rows that it needs.
    """
    visited: dict[Row, None] = {}
    stack = [(row, False) for row in reversed(list(results))]
    while stack:
        row, is_ready = stack.pop()
        if row in visited:
            continue
        if is_ready:
            visited[row] = None
            continue
        stack.append((row, True))
        stack += [(operand, False) for operand in reversed(operands(row))]
    return list(visited)


def count_uses(results: Sequence[Row]) -> dict[Row, int]:
    """Return how often each row is an operand or a result."""
    rows = topological_order(results)
    operands = (operand for row in rows for operand in row.operands)
    uses = dict.fromkeys(rows, 0)
    for row in itertools.chain(results, operands):
        uses[row] += 1
    return uses


def rewrite(results: Sequence[Row], rule: Callable[[Row], Row]) -> list[Row]:
    """Apply a rule to each row, after its operands."""
    new: dict[Row, Row] = {}
    for row in topological_order(results):
        new[row] = rule(row.with_operands([new[operand] for operand in row.operands]))
    return [new[row] for row in results]


@functools.singledispatch
def title(op: Operation) -> str:
    """Return the name of an operation in explanations."""
    return type(op).__name__.lower()


@title.register
def _(op: Apply | Input) -> str:
    return op.name


@title.register
def _(op: Constant) -> str:
    return f"{op.value:g}" if op.value.ndim == 0 else f"constant{op.value.shape}"


@title.register
def _(op: Push | Softmax) -> str:
    name = op.reduce if isinstance(op, Push) else "softmax"
    return name if op.way == "dst" else f"{name} by {op.way}"


@title.register
def _(op: Pull) -> str:
    return op.way


class DisjointSets:
    """Disjoint sets of hashable members, by union-find."""

    def __init__(self) -> None:
        self._parents: dict[Any, Any] = {}

    def of(self, member: Any) -> Any:
        """Return the representative of a member's set."""
        while member in self._parents:
            member = self._parents[member]
        return member

    def join(self, a: Any, b: Any) -> None:
        """Make one set of two."""
        a, b = self.of(a), self.of(b)
        if a != b:
            self._parents[a] = b
