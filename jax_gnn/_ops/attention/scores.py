"""Kinds of attention scores: small pytrees with methods that compute entries' scores.

A kind computes the scores of entries in other primitives, turns their cotangents into gradients of
its fields, and names the arrays that a kernel reads. A *raw* score is the argument of attention's
LeakyReLU; without a LeakyReLU it is the score.

Fields called ``row`` belong to the rows of the matrix, which are destinations; ``col`` to its
columns, which are sources. Arrays of one number for each head are in the accumulator type of the
values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

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
from jax_gnn._ops.attention.schedule import Shaped, holds_whole_heads
from jax_gnn._ops.attention.xla import end_matrices
from jax_gnn._ops.segment_reduce.primitive import gather, sddmm, total, weighted_sum


class Entries(NamedTuple):
    """Entries whose scores are computed."""

    value: Array  # (columns, heads · features) values, which may be keys
    matrix: SparseMatrix  # matrix of the entries
    heads: int  # number of heads
    slope: float = 1.0  # slope of attention's LeakyReLU


class Tangents(NamedTuple):
    """Tangents or gradients of values and of fields of scores; None for those that do not exist.

    Attributes:
        value: tangent of the values; a gradient includes the terms of scores that read values.
        row: tangent of the field ``row``.
        col: tangent of the field ``col``; a kernel's gradient of `TypedScores` is that of dots,
            ``(columns, heads)``.
        vector: tangent of ``vector``, ``scale`` or ``of_value``.
        score: ``(entries, heads)``, tangent of raw scores; the gradient of `DotScores` is that of
            unscaled dots, and absent where ``row`` has its gradient.
    """

    value: Any = None
    row: Any = None
    col: Any = None
    vector: Any = None
    score: Any = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Base of all kinds.

    A kind without a kernel needs only its fields, `tangent_fields` and `raw`.

    Attributes:
        number: number of the kind in handlers, as ``ScoreKind`` in kernels/attention.h.
        keys: number of arrays of keys that scores read; 0 for scores of numbers, which all
            kernels take; None where the step kernel does not compute them.
        tangent_fields: for names in `Tangents`, the fields of these tangents.
        shared: names of fields without features or heads that a batch could join.
        is_leaky: whether scores are the LeakyReLU of raw scores.
        is_kept: whether raw scores are stored for the backward pass.
    """

    number: ClassVar[int]
    keys: ClassVar[int | None] = None
    tangent_fields: ClassVar[dict[str, str]]
    shared: ClassVar[tuple[str, ...]] = ()
    is_leaky: ClassVar[bool] = False
    is_kept: ClassVar[bool] = False

    def raw(self, entries: Entries) -> Array:
        """Return the raw scores, ``(entries, heads)``; any number for padding."""
        raise NotImplementedError

    def gradients(self, ct: Array, entries: Entries) -> Tangents:
        """Return a kernel's gradients, without ``row``, from the cotangent of raw scores."""
        return Tangents(score=ct)

    def row_gradient(self, ct: Array, entries: Entries) -> Array | None:
        """Return the gradient of ``row``, if any, from the cotangent of unscaled scores."""
        return None

    def finish(self, grads: Tangents, entries: Entries) -> Tangents:
        """Return the gradients of all fields, from those of a kernel."""
        if grads.row is not None:
            return grads
        return grads._replace(row=self.row_gradient(grads.score, entries))

    def shapes(self, value: Shaped, matrix: SparseMatrix, heads: int) -> Tangents:
        """Return the shapes of a kernel's gradients without ``value``, by default the fields'."""
        fields = {name: getattr(self, name, None) for name in ("row", "col", "vector")}
        shapes = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype)
            for name, x in fields.items()
            if x is not None
        }
        return Tangents(**shapes, score=_per_head(value, matrix.by_row.count, heads))

    def arrays(self, value: Operand, heads: int, raw: Operand | None = None) -> dict[str, Any]:
        """Return a kernel's operands by name; ``raw``: the raw scores, for gradients."""
        raise NotImplementedError

    def has_one_pass(self, value: Shaped, heads: int) -> bool:
        """Return whether CUDA computes the gradients by column in one pass over the entries."""
        return False

    def has_kernel(self, platform: str, value: Shaped, heads: int, for_vjp: bool = False) -> bool:
        """Return whether a platform has attention with such scores, or its gradients by column."""
        return platform == "cuda" and self.has_one_pass(value, heads)


class _NumberScores(Scores):
    """Base of scores computed from one number for each head at entries, rows or columns."""

    keys = 0

    def has_one_pass(self, value: Shaped, heads: int) -> bool:
        return holds_whole_heads(value, heads)

    def has_kernel(self, platform: str, value: Shaped, heads: int, for_vjp: bool = False) -> bool:
        return concrete_width(row_width(value)) != 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EntryScores(_NumberScores):
    """Scores that are an array of the entries."""

    score: Any  # (entries, heads); -inf leaves an entry out

    number = 0
    tangent_fields: ClassVar = {"score": "score"}

    def raw(self, entries: Entries) -> Array:
        return cast(Array, self.score)

    def arrays(self, value: Operand, heads: int, raw: Operand | None = None) -> dict[str, Any]:
        return {"entry": self.score}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class AdditiveScores(_NumberScores):
    """Scores of GAT: LeakyReLU(row + col)."""

    row: Any  # (rows, heads)
    col: Any  # (columns, heads)

    number = 1
    tangent_fields: ClassVar = {"row": "row", "col": "col"}
    is_leaky = True

    def raw(self, entries: Entries) -> Array:
        at_row, at_col = end_matrices(entries.matrix)
        return gather(self.row, at_row) + gather(self.col, at_col)

    def gradients(self, ct: Array, entries: Entries) -> Tangents:
        return Tangents(col=total(ct, end_matrices(entries.matrix)[1]), score=ct)

    def row_gradient(self, ct: Array, entries: Entries) -> Array:
        return total(ct, end_matrices(entries.matrix)[0])

    def arrays(self, value: Operand, heads: int, raw: Operand | None = None) -> dict[str, Any]:
        return {"row": self.row, "col": self.col}


class _KeyScores(Scores):
    """Base of scores computed from keys: rows of both ends, with as many heads as values."""

    row: Any
    col: Any

    @property
    def keys(self) -> int:  # type: ignore[override]  # depends on whether values are keys
        return 1 if self.col is None else 2

    def key(self, value: Any) -> Any:
        """Return the columns' keys."""
        return value if self.col is None else self.col

    def has_one_pass(self, value: Shaped, heads: int) -> bool:
        return row_width(self.row) == row_width(value) and holds_whole_heads(value, heads)

    def gradients(self, ct: Array, entries: Entries) -> Tangents:
        def raw(fields: dict[str, Array]) -> Array:
            return replace(self, **fields).raw(entries)

        fields = {"col": self.key(entries.value)}
        if isinstance(self, GATv2Scores):
            fields["vector"] = self.vector
        (grads,) = jax.vjp(raw, fields)[1](ct)
        if self.col is None:
            grads["value"] = grads.pop("col")
        return Tangents(**grads, score=self.unscaled(ct))

    def unscaled(self, ct: Array) -> Array:
        """Return the cotangent of scores before they are scaled."""
        return ct


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class DotScores(_KeyScores):
    """Dot products: scale · ⟨row, col⟩ of each head."""

    row: Any  # (rows, heads · key features) in the dtype of the values
    col: Any  # (columns, heads · key features) in the dtype of the values; None: the values
    scale: Any  # (1, 1)

    number = 2
    tangent_fields: ClassVar = {"row": "row", "col": "col", "vector": "scale"}
    shared = ("scale",)

    def raw(self, entries: Entries) -> Array:
        return self.unscaled(
            sddmm(self.row, self.key(entries.value), entries.matrix, heads=entries.heads)
        )

    def unscaled(self, ct: Array) -> Array:
        return cast(Array, ct * self.scale)

    def row_gradient(self, ct: Array, entries: Entries) -> Array:
        return weighted_sum(self.key(entries.value), ct, entries.matrix, entries.heads)

    def arrays(self, value: Operand, heads: int, raw: Operand | None = None) -> dict[str, Any]:
        scale = Operand.of(jnp.ravel, self.scale)
        return {"row": self.row, "col": self.key(value), "factor": scale}

    def has_kernel(self, platform: str, value: Shaped, heads: int, for_vjp: bool = False) -> bool:
        is_available = platform == "cuda" or (for_vjp and self.col is not None)
        return is_available and self.has_one_pass(value, heads)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GATv2Scores(_KeyScores):
    """Scores of GATv2: ⟨vector, LeakyReLU(row + col)⟩ of each head, with attention's slope."""

    row: Any  # (rows, heads · key features) in the dtype of the values
    col: Any  # (columns, heads · key features) in the dtype of the values; None: the values
    vector: Any  # (1, heads · key features) in the accumulator type

    number = 3
    tangent_fields: ClassVar = {"row": "row", "col": "col", "vector": "vector"}

    def raw(self, entries: Entries) -> Array:
        value, matrix, heads, slope = entries
        options: Any = {"heads": heads, "slope": slope}
        return cast(Array, leaky_scores(self.row, self.key(value), self.vector, matrix, **options))

    def row_gradient(self, ct: Array, entries: Entries) -> Array:
        value, matrix, heads, slope = entries
        options: Any = {"heads": heads, "slope": slope}
        return cast(Array, leaky_sum(self.row, self.key(value), ct, self.vector, matrix, **options))

    def arrays(self, value: Operand, heads: int, raw: Operand | None = None) -> dict[str, Any]:
        vector = Operand.of(jnp.ravel, self.vector)
        return {"row": self.row, "col": self.key(value), "factor": vector}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class TypedScores(Scores):
    """Scores of RGAT: LeakyReLU(⟨row, of_row⟩ + ⟨value, of_value⟩), with vectors by relation.

    Columns are (source, relation) pairs.
    """

    of_value: Any  # (relations, heads · n) vectors whose dots with values are the columns' terms
    # (entries, heads) terms of the rows. They have a derivative, `row` and `of_row` have none; a
    # kernel may recompute them from these and not read them.
    at_row: Any
    row: Any  # (rows, k), or None where the rows' terms are not dots alone
    of_row: Any  # (relations, heads, k), or None where `row` is None
    types: Any  # (entries,) relations; entries whose relation is out of range are left out
    col_types: Any  # (columns,) relations

    number = 4
    tangent_fields: ClassVar = {"vector": "of_value", "score": "at_row"}
    shared = ("types", "col_types")
    is_leaky = True
    is_kept = True

    def raw(self, entries: Entries) -> Array:
        dots = typed_dots(
            entries.value, self.of_value, self.col_types, entries.matrix, heads=entries.heads
        )
        is_typed = in_range(self.types, len(self.of_value))[:, None]
        return jnp.where(is_typed, dots + self.at_row, -jnp.inf)

    def gradients(self, ct: Array, entries: Entries) -> Tangents:
        to_dots = total(ct, end_matrices(entries.matrix)[1])
        by_type = segments(self.col_types, len(self.of_value)).T
        to_value = weighted_sum(self.of_value, to_dots, by_type, entries.heads)
        return Tangents(value=to_value, col=to_dots, score=ct)

    def finish(self, grads: Tangents, entries: Entries) -> Tangents:
        by_type = segments(self.col_types, len(self.of_value))
        of_value = weighted_sum(entries.value, grads.col, by_type, entries.heads)
        return grads._replace(col=None, vector=of_value)

    def shapes(self, value: Shaped, matrix: SparseMatrix, heads: int) -> Tangents:
        col, score = (_per_head(value, n, heads) for n in (value.shape[0], matrix.by_row.count))
        return Tangents(col=col, score=score)

    def has_one_pass(self, value: Shaped, heads: int) -> bool:
        return value.dtype in FLOATS and holds_whole_heads(value, heads)

    def arrays(self, value: Operand, heads: int, raw: Operand | None = None) -> dict[str, Any]:
        for_vjp = raw is not None
        types = narrow_ids(self.col_types if for_vjp else self.types, self.of_value.shape[0])
        arrays = {"col": self.of_value, "types": types}
        # The kernel computes the rows' dots itself for one head, if rows are as wide as values.
        if for_vjp or self.row is None or heads != 1 or row_width(self.row) != row_width(value):
            return arrays | {"entry": raw if for_vjp else self.at_row}
        of_row = Operand.of(lambda vectors: vectors[:, 0], self.of_row)
        return arrays | {"row": self.row, "factor": of_row}


def typed_dots(
    value: Array, vectors: Array, types: Array, matrix: SparseMatrix, *, heads: int
) -> Array:
    """Return ``(entries, heads)`` dots of columns' values with the vectors of their relations."""
    by_type = segments(types, len(vectors)).T
    dots = sddmm(value, vectors, by_type, heads=heads)
    return gather(dots, end_matrices(matrix)[1])


def _per_head(value: Shaped, size: int, heads: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size, heads), accumulator_dtype(value.dtype))
