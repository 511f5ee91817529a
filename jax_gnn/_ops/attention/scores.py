"""The kinds of scores that attention takes: a small pytree each.

A kind says how the scores of entries are made in other primitives, what their cotangents make of
its fields, and what a kernel gets. A *raw* score is what the LeakyReLU of attention is applied to,
where the kind has that; else it is the score.

Fields called ``row`` belong to the rows of the matrix, which are destinations, ``col`` to its
columns, which are sources. Numbers of heads are in the accumulator type of the values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import FLOATS, accumulator_dtype, row_width
from jax_gnn._core.csr import SparseMatrix, segments
from jax_gnn._core.ids import in_range
from jax_gnn._core.kernels import narrow
from jax_gnn._core.op import Operand
from jax_gnn._core.schedule import known_width
from jax_gnn._ops.attention.leaky import leaky_scores, leaky_sum
from jax_gnn._ops.attention.schedule import holds_whole_heads
from jax_gnn._ops.attention.xla import ends
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total


class Gradients(NamedTuple):
    """What the cotangents of attention make of values and scores; None: there is no such thing.

    Attributes:
        value: like the values; with what scores make of it, if they are made of values.
        row: of the field ``row``.
        col: of the field ``col``; of `Typed`, of the sources' numbers, ``(columns, heads)``.
        vector: of the field ``vector``.
        score: ``(entries, heads)``, of raw scores, but of `Dots` before they are scaled. Absent
            where there is ``row``.
    """

    value: Any = None
    row: Any = None
    col: Any = None
    vector: Any = None
    score: Any = None


class Arrays(NamedTuple):
    """What a kernel gets of scores, by the handlers' names; None: absent."""

    row: Any = None
    col: Any = None
    factor: Any = None
    entry: Any = None
    types: Any = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Base of all kinds; the methods' options are heads, slope and implementation.

    Attributes:
        number: that handlers know the kind by, as ``ScoreKind`` in kernels/attention.h.
        moving: names of the fields that have tangents, in order.
        shared: names of the fields that have no features or heads for a batch to join.
        is_leaky: whether a LeakyReLU, of the slope of attention, makes scores of raw scores.
        is_kept: whether raw scores are kept for the backward pass.
        is_simple: whether the fields are numbers of heads, which all kernels take.
    """

    number: ClassVar[int]
    moving: ClassVar[tuple[str, ...]]
    shared: ClassVar[tuple[str, ...]] = ()
    is_leaky: ClassVar[bool] = False
    is_kept: ClassVar[bool] = False
    is_simple: ClassVar[bool] = False

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        """``(entries, heads)``; padding may have any number."""
        raise NotImplementedError

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Gradients:
        """Of the cotangent of raw scores: all but ``row``."""
        raise NotImplementedError

    def cotangents(
        self, found: Gradients, value: Array, matrix: SparseMatrix, **options: Any
    ) -> dict[str, Any]:
        """Of each moving field, by name; ``row`` is added up where it is absent."""
        raise NotImplementedError

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Gradients:
        """Of all gradients of fields, those of heads in the accumulator type."""
        raise NotImplementedError

    def of_numbers(self) -> Scores:
        """The same without rows that heads share, where there are numbers of heads, too."""
        return self

    def arrays(self, value: Any, heads: int) -> Arrays:
        """For the kernel of attention."""
        raise NotImplementedError

    def arrays_back(self, value: Any, raw: Any, heads: int) -> Arrays:
        """For the kernels of its gradients."""
        del raw
        return self.arrays(value, heads)

    @property
    def keys(self) -> int | None:
        """Rows besides values that scores are made of; None: no kernel of one step makes them."""
        return None

    def read_width(self, value: Any) -> int:
        """Features that an entry reads of rows and columns, besides values."""
        del value
        return 0

    def has_one_pass(self, value: Any, heads: int) -> bool:
        """Whether CUDA has the gradients by column in one pass over the entries.

        A kind without a kernel needs its fields, `moving` and `raw`, and no more.
        """
        del value, heads
        return False

    def has_kernel(self, platform: str, value: Any, matrix: SparseMatrix, heads: int) -> bool:
        """Whether a platform has attention with such scores."""
        del matrix
        return platform == "cuda" and self.has_one_pass(value, heads)

    def has_kernel_back(self, platform: str, value: Any, heads: int) -> bool:
        """Whether it has the gradients by column."""
        return platform == "cuda" and self.has_one_pass(value, heads)


class _Simple(Scores):
    is_simple = True
    keys = 0

    def has_one_pass(self, value: Any, heads: int) -> bool:
        return holds_whole_heads(value, heads)

    def has_kernel(self, platform: str, value: Any, matrix: SparseMatrix, heads: int) -> bool:
        del platform, matrix, heads
        return known_width(row_width(value)) != 0

    def has_kernel_back(self, platform: str, value: Any, heads: int) -> bool:
        del platform, heads
        return known_width(row_width(value)) != 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Given(_Simple):
    """Scores that entries have.

    Attributes:
        score: ``(entries, heads)``; -inf leaves an entry out.
    """

    score: Any

    number = 0
    moving = ("score",)

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del value, matrix, options
        return self.score

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Gradients:
        del value, matrix, options
        return Gradients(score=ct)

    def cotangents(
        self, found: Gradients, value: Array, matrix: SparseMatrix, **options: Any
    ) -> dict[str, Any]:
        del value, matrix, options
        return {"score": found.score}

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Gradients:
        return Gradients(score=_per_head(value, matrix.by_row.count, heads))

    def arrays(self, value: Any, heads: int) -> Arrays:
        del value, heads
        return Arrays(entry=self.score)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Ends(_Simple):
    """GAT's: LeakyReLU(row + col).

    Attributes:
        row: ``(rows, heads)``.
        col: ``(columns, heads)``.
    """

    row: Any
    col: Any

    number = 1
    moving = ("row", "col")
    is_leaky = True

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del value
        at_row, at_col = ends(matrix)
        chosen = options["implementation"]
        return gather(self.row, at_row, chosen) + gather(self.col, at_col, chosen)

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Gradients:
        del value
        return Gradients(col=total(ct, ends(matrix)[1], options["implementation"]), score=ct)

    def cotangents(
        self, found: Gradients, value: Array, matrix: SparseMatrix, **options: Any
    ) -> dict[str, Any]:
        del value
        row = found.row
        if row is None:
            row = total(found.score, ends(matrix)[0], options["implementation"])
        return {"row": row, "col": found.col}

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Gradients:
        rows, count = matrix.by_row.num_rows, matrix.by_row.count
        row, col, score = (_per_head(value, n, heads) for n in (rows, value.shape[0], count))
        return Gradients(row=row, col=col, score=score)

    def arrays(self, value: Any, heads: int) -> Arrays:
        del value, heads
        return Arrays(row=self.row, col=self.col)


class _Keyed(Scores):
    """Made of rows of both ends, keys, of as many heads as values."""

    row: Any
    col: Any

    @property
    def keys(self) -> int:
        """Those of rows, and of columns where they are not the values."""
        return 1 if self.col is None else 2

    def key(self, value: Any) -> Any:
        """The columns' keys."""
        return value if self.col is None else self.col

    def has_one_pass(self, value: Any, heads: int) -> bool:
        return row_width(self.row) == row_width(value) and holds_whole_heads(value, heads)

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Gradients:
        names = ["col", *({"vector"} & set(self.moving))]

        def raw(moved: dict[str, Array]) -> Array:
            return replace(self, **moved).raw(value, matrix, **options)

        held = {name: getattr(self, name) for name in names} | {"col": self.key(value)}
        (found,) = jax.vjp(raw, held)[1](ct)
        to_key = found.pop("col")
        side = {"value": to_key} if self.col is None else {"col": to_key}
        return Gradients(**side, **found, score=self.unscaled(ct))

    def unscaled(self, ct: Array) -> Array:
        """The cotangent of what is scaled."""
        return ct

    def row_gradient(self, ct: Array, key: Array, matrix: SparseMatrix, **options: Any) -> Array:
        """What the rows' keys get of the cotangent of unscaled scores."""
        raise NotImplementedError

    def cotangents(
        self, found: Gradients, value: Array, matrix: SparseMatrix, **options: Any
    ) -> dict[str, Any]:
        row = found.row
        if row is None:
            row = self.row_gradient(found.score, self.key(value), matrix, **options)
        return {"row": row, "col": found.col, "vector": found.vector}

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Gradients:
        row, key = (jax.ShapeDtypeStruct(x.shape, value.dtype) for x in (self.row, self.key(value)))
        return Gradients(
            row=row,
            col=None if self.col is None else key,
            score=_per_head(value, matrix.by_row.count, heads),
        )

    def read_width(self, value: Any) -> int:
        del value
        return row_width(self.row)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Dots(_Keyed):
    """Dot products: scale · ⟨row, col⟩ of each head.

    Attributes:
        row: ``(rows, heads · key features)``, in the dtype of the values.
        col: ``(columns, heads · key features)``, likewise; None: the values.
        scale: ``(1, 1)``.
    """

    row: Any
    col: Any
    scale: Any

    number = 2
    moving = ("row", "col", "scale")
    shared = ("scale",)

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del options["slope"]
        return sddmm(self.row, self.key(value), matrix, **options) * self.scale

    def unscaled(self, ct: Array) -> Array:
        return ct * self.scale

    def row_gradient(self, ct: Array, key: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del options["slope"]
        return segment_reduce(key, ct, matrix, reduce="sum", **options)

    def arrays(self, value: Any, heads: int) -> Arrays:
        del heads
        return Arrays(self.row, self.key(value), Operand.of(jnp.ravel, self.scale))

    def has_kernel_back(self, platform: str, value: Any, heads: int) -> bool:
        there = platform == "cuda" or self.col is not None
        return there and self.has_one_pass(value, heads)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Leaky(_Keyed):
    """GATv2's: ⟨vector, LeakyReLU(row + col)⟩ of each head; the slope is that of attention.

    Attributes:
        row: ``(rows, heads · key features)``, in the dtype of the values.
        col: ``(columns, heads · key features)``, likewise; None: the values.
        vector: ``(1, heads · key features)`` in the accumulator type.
    """

    row: Any
    col: Any
    vector: Any

    number = 3
    moving = ("row", "col", "vector")

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        return leaky_scores(self.row, self.key(value), self.vector, matrix, **options)

    def row_gradient(self, ct: Array, key: Array, matrix: SparseMatrix, **options: Any) -> Array:
        return leaky_sum(self.row, key, ct, self.vector, matrix, **options)

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Gradients:
        vector = jax.ShapeDtypeStruct(self.vector.shape, accumulator_dtype(value.dtype))
        return super().shapes(value, matrix, heads)._replace(vector=vector)

    def arrays(self, value: Any, heads: int) -> Arrays:
        del heads
        return Arrays(self.row, self.key(value), Operand.of(jnp.ravel, self.vector))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Typed(Scores):
    """RGAT's: LeakyReLU(⟨row, of_row⟩ + ⟨value, of_value⟩), of vectors that each relation has.

    Columns are (source, relation) pairs.

    Attributes:
        of_value: ``(relations, heads · n)``, with which values make the sources' numbers.
        at_row: ``(entries, heads)``, the destinations' numbers. Only these have a derivative, not
            the two next; a kernel that can makes them of these again and does not read them.
        row: ``(rows, k)``, or None where numbers are more than dots.
        of_row: ``(relations, heads, k)``, likewise.
        types: ``(entries,)``, the relation of each. Entries out of range are left out.
        col_types: ``(columns,)``, likewise.
    """

    of_value: Any
    at_row: Any
    row: Any
    of_row: Any
    types: Any
    col_types: Any

    number = 4
    moving = ("of_value", "at_row")
    shared = ("types", "col_types")
    is_leaky = True
    is_kept = True

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del options["slope"]
        found = typed_dots(value, self.of_value, self.col_types, matrix, **options) + self.at_row
        return jnp.where(in_range(self.types, len(self.of_value))[:, None], found, -jnp.inf)

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Gradients:
        del value
        to_number = total(ct, ends(matrix)[1], options["implementation"])
        of_types = segments(self.col_types, len(self.of_value)).T
        del options["slope"]
        to_value = segment_reduce(self.of_value, to_number, of_types, reduce="sum", **options)
        return Gradients(value=to_value, col=to_number, score=ct)

    def cotangents(
        self, found: Gradients, value: Array, matrix: SparseMatrix, **options: Any
    ) -> dict[str, Any]:
        del matrix, options["slope"]
        of_types = segments(self.col_types, len(self.of_value))
        of_value = segment_reduce(value, found.col, of_types, reduce="sum", **options)
        return {"of_value": of_value, "at_row": found.score}

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Gradients:
        col, score = (_per_head(value, n, heads) for n in (value.shape[0], matrix.by_row.count))
        return Gradients(col=col, score=score)

    def has_one_pass(self, value: Any, heads: int) -> bool:
        return value.dtype in FLOATS and holds_whole_heads(value, heads)

    def has_kernel(self, platform: str, value: Any, matrix: SparseMatrix, heads: int) -> bool:
        csr = matrix.by_row
        in_order = csr.cols is not None and csr.order is None
        return in_order and super().has_kernel(platform, value, matrix, heads)

    def arrays(self, value: Any, heads: int) -> Arrays:
        types = narrow(self.types, self.of_value.shape[0])
        # Of one head the dots of destinations are taken along with those of values as wide.
        if self.row is None or heads != 1 or row_width(self.row) != row_width(value):
            return Arrays(col=self.of_value, entry=self.at_row, types=types)
        of_row = Operand.of(lambda vectors: vectors[:, 0], self.of_row)
        return Arrays(self.row, self.of_value, of_row, types=types)

    def arrays_back(self, value: Any, raw: Any, heads: int) -> Arrays:
        del value, heads
        types = narrow(self.col_types, self.of_value.shape[0])
        return Arrays(col=self.of_value, entry=raw, types=types)

    def read_width(self, value: Any) -> int:
        return row_width(value)

    def of_numbers(self) -> Typed:
        return replace(self, row=None, of_row=None)


def typed_dots(
    value: Array,
    vectors: Array,
    types: Array,
    matrix: SparseMatrix,
    *,
    heads: int,
    implementation: str | None = None,
) -> Array:
    """``(entries, heads)``, dots of the columns' values with vectors of the columns' relations.

    Args:
        value: ``(columns, heads · n)``.
        vectors: ``(relations, heads · n)``.
        types: ``(columns,)``, the relation of each.
        matrix: the entries.
        heads: number of heads.
        implementation: of the kernels.
    """
    of_types = segments(types, len(vectors)).T
    dots = sddmm(value, vectors, of_types, heads=heads, implementation=implementation)
    return gather(dots, ends(matrix)[1], implementation)


def _per_head(value: Any, size: Any, heads: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, heads), accumulator_dtype(value.dtype))
