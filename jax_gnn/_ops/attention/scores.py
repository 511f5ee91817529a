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
from jax_gnn._core.kernels import narrow_ids
from jax_gnn._core.op import Operand
from jax_gnn._core.schedule import concrete_width
from jax_gnn._ops.attention.leaky import leaky_scores, leaky_sum
from jax_gnn._ops.attention.schedule import holds_whole_heads
from jax_gnn._ops.attention.xla import ends
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, segment_reduce, total


class Moving(NamedTuple):
    """Tangents or gradients of values and of what scores are made of; None: there is no such thing.

    Attributes:
        value: of the values; a gradient with what scores make of it, if they are made of values.
        row: of the field ``row``.
        col: of the field ``col``; as a kernel's gradient of `Typed`, of the sources' numbers,
            ``(columns, heads)``.
        vector: of the field ``vector``, or what stands for it.
        score: ``(entries, heads)``, of raw scores; a gradient of `Dots` before they are scaled,
            and absent where there is ``row``.
    """

    value: Any = None
    row: Any = None
    col: Any = None
    vector: Any = None
    score: Any = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Base of all kinds; the methods' options are heads, slope and implementation.

    A kind without a kernel needs its fields, `moving` and `raw`, and no more.

    Attributes:
        number: that handlers know the kind by, as ``ScoreKind`` in kernels/attention.h.
        keys: rows besides values that scores are made of, 0 where they are of numbers of heads,
            which all kernels take; None: no kernel of one step makes them.
        moving: what has tangents, by the names in `Moving`, and the fields that these are of.
        shared: names of the fields that have no features or heads for a batch to join.
        is_leaky: whether a LeakyReLU, of the slope of attention, makes scores of raw scores.
        is_kept: whether raw scores are kept for the backward pass.
    """

    number: ClassVar[int]
    keys: ClassVar[int | None] = None
    moving: ClassVar[dict[str, str]]
    shared: ClassVar[tuple[str, ...]] = ()
    is_leaky: ClassVar[bool] = False
    is_kept: ClassVar[bool] = False

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        """``(entries, heads)``; padding may have any number."""
        raise NotImplementedError

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        """Of the cotangent of raw scores, as kernels have them: all but ``row``."""
        del value, matrix, options
        return Moving(score=ct)

    def finish(self, found: Moving, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        """Adds to a kernel's gradients, or in place of them, what follows from them."""
        del value, matrix, options
        return found

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Moving:
        """Of all of a kernel's gradients but the values', by default like the fields."""
        fields = {name: getattr(self, name, None) for name in ("row", "col", "vector")}
        there = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype)
            for name, x in fields.items()
            if x is not None
        }
        return Moving(**there, score=_per_head(value, matrix.by_row.count, heads))

    def arrays(self, value: Any, heads: int, raw: Any = None) -> dict[str, Any]:
        """What kernels get, by the handlers' names; ``raw``: of gradients, the raw scores."""
        raise NotImplementedError

    def has_one_pass(self, value: Any, heads: int) -> bool:
        """Whether CUDA has the gradients by column in one pass over the entries."""
        del value, heads
        return False

    def has_kernel(self, platform: str, value: Any, heads: int, *, back: bool = False) -> bool:
        """Whether a platform has attention with such scores, or the gradients by column."""
        del back
        return platform == "cuda" and self.has_one_pass(value, heads)


class _OfNumbers(Scores):
    keys = 0

    def has_one_pass(self, value: Any, heads: int) -> bool:
        return holds_whole_heads(value, heads)

    def has_kernel(self, platform: str, value: Any, heads: int, *, back: bool = False) -> bool:
        del platform, heads, back
        return concrete_width(row_width(value)) != 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Given(_OfNumbers):
    """Scores that entries have.

    Attributes:
        score: ``(entries, heads)``; -inf leaves an entry out.
    """

    score: Any

    number = 0
    moving: ClassVar = {"score": "score"}

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del value, matrix, options
        return self.score

    def arrays(self, value: Any, heads: int, raw: Any = None) -> dict[str, Any]:
        del value, heads, raw
        return {"entry": self.score}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Ends(_OfNumbers):
    """GAT's: LeakyReLU(row + col).

    Attributes:
        row: ``(rows, heads)``.
        col: ``(columns, heads)``.
    """

    row: Any
    col: Any

    number = 1
    moving: ClassVar = {"row": "row", "col": "col"}
    is_leaky = True

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del value
        at_row, at_col = ends(matrix)
        chosen = options["implementation"]
        return gather(self.row, at_row, chosen) + gather(self.col, at_col, chosen)

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        del value
        return Moving(col=total(ct, ends(matrix)[1], options["implementation"]), score=ct)

    def finish(self, found: Moving, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        del value
        if found.row is not None:
            return found
        return found._replace(row=total(found.score, ends(matrix)[0], options["implementation"]))

    def arrays(self, value: Any, heads: int, raw: Any = None) -> dict[str, Any]:
        del value, heads, raw
        return {"row": self.row, "col": self.col}


class _OfKeys(Scores):
    """Made of rows of both ends, keys, of as many heads as values."""

    row: Any
    col: Any

    @property
    def keys(self) -> int:  # type: ignore[override]  # depends on whether values are keys
        return 1 if self.col is None else 2

    def key(self, value: Any) -> Any:
        """The columns' keys."""
        return value if self.col is None else self.col

    def has_one_pass(self, value: Any, heads: int) -> bool:
        return row_width(self.row) == row_width(value) and holds_whole_heads(value, heads)

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        def raw(moved: dict[str, Array]) -> Array:
            return replace(self, **moved).raw(value, matrix, **options)

        held = {"col": self.key(value)}
        held |= {"vector": self.vector} if isinstance(self, Leaky) else {}
        (found,) = jax.vjp(raw, held)[1](ct)
        if self.col is None:
            found["value"] = found.pop("col")
        return Moving(**found, score=self.unscaled(ct))

    def unscaled(self, ct: Array) -> Array:
        """The cotangent of what is scaled."""
        return ct

    def row_gradient(self, ct: Array, key: Array, matrix: SparseMatrix, **options: Any) -> Array:
        """What the rows' keys get of the cotangent of unscaled scores."""
        raise NotImplementedError

    def finish(self, found: Moving, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        if found.row is not None:
            return found
        row = self.row_gradient(found.score, self.key(value), matrix, **options)
        return found._replace(row=row)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Dots(_OfKeys):
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
    moving: ClassVar = {"row": "row", "col": "col", "vector": "scale"}
    shared = ("scale",)

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del options["slope"]
        return sddmm(self.row, self.key(value), matrix, **options) * self.scale

    def unscaled(self, ct: Array) -> Array:
        return ct * self.scale

    def row_gradient(self, ct: Array, key: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del options["slope"]
        return segment_reduce(key, ct, matrix, reduce="sum", **options)

    def arrays(self, value: Any, heads: int, raw: Any = None) -> dict[str, Any]:
        del heads, raw
        scale = Operand.of(jnp.ravel, self.scale)
        return {"row": self.row, "col": self.key(value), "factor": scale}

    def has_kernel(self, platform: str, value: Any, heads: int, *, back: bool = False) -> bool:
        there = platform == "cuda" or (back and self.col is not None)
        return there and self.has_one_pass(value, heads)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Leaky(_OfKeys):
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
    moving: ClassVar = {"row": "row", "col": "col", "vector": "vector"}

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        return leaky_scores(self.row, self.key(value), self.vector, matrix, **options)

    def row_gradient(self, ct: Array, key: Array, matrix: SparseMatrix, **options: Any) -> Array:
        return leaky_sum(self.row, key, ct, self.vector, matrix, **options)

    def arrays(self, value: Any, heads: int, raw: Any = None) -> dict[str, Any]:
        del heads, raw
        vector = Operand.of(jnp.ravel, self.vector)
        return {"row": self.row, "col": self.key(value), "factor": vector}


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
    moving: ClassVar = {"vector": "of_value", "score": "at_row"}
    shared = ("types", "col_types")
    is_leaky = True
    is_kept = True

    def raw(self, value: Array, matrix: SparseMatrix, **options: Any) -> Array:
        del options["slope"]
        found = typed_dots(value, self.of_value, self.col_types, matrix, **options) + self.at_row
        return jnp.where(in_range(self.types, len(self.of_value))[:, None], found, -jnp.inf)

    def gradients(self, ct: Array, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        del value
        to_number = total(ct, ends(matrix)[1], options["implementation"])
        of_types = segments(self.col_types, len(self.of_value)).T
        del options["slope"]
        to_value = segment_reduce(self.of_value, to_number, of_types, reduce="sum", **options)
        return Moving(value=to_value, col=to_number, score=ct)

    def finish(self, found: Moving, value: Array, matrix: SparseMatrix, **options: Any) -> Moving:
        del matrix, options["slope"]
        of_types = segments(self.col_types, len(self.of_value))
        of_value = segment_reduce(value, found.col, of_types, reduce="sum", **options)
        return found._replace(col=None, vector=of_value)

    def shapes(self, value: Any, matrix: SparseMatrix, heads: int) -> Moving:
        col, score = (_per_head(value, n, heads) for n in (value.shape[0], matrix.by_row.count))
        return Moving(col=col, score=score)

    def has_one_pass(self, value: Any, heads: int) -> bool:
        return value.dtype in FLOATS and holds_whole_heads(value, heads)

    def arrays(self, value: Any, heads: int, raw: Any = None) -> dict[str, Any]:
        back = raw is not None
        types = narrow_ids(self.col_types if back else self.types, self.of_value.shape[0])
        found = {"col": self.of_value, "types": types}
        # Of one head the dots of destinations are taken along with those of values as wide.
        if back or self.row is None or heads != 1 or row_width(self.row) != row_width(value):
            return found | {"entry": raw if back else self.at_row}
        of_row = Operand.of(lambda vectors: vectors[:, 0], self.of_row)
        return found | {"row": self.row, "factor": of_row}


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
