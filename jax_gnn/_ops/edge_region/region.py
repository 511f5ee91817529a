"""What an edge region computes, and the regions that its derivatives and its batches are.

An entry of a sparse matrix reads rows of arrays, a function makes others of them, and what entries
make is kept for each of them or reduced by row, by column or over all. What an input of a region
reads is where its cotangent goes, and the other way around: so the transpose is a region, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core as jex

from jax_gnn._core.op import replaced
from jax_gnn._ops.edge_region.row_program import (
    Into,
    Read,
    RowProgram,
    Unsupported,
    from_jaxpr,
)

_INTO: dict[Read, Into] = {"edge": "edge", "row": "row", "col": "col", "shared": "all"}
_READ: dict[Into, Read] = {into: read for read, into in _INTO.items()}


@dataclass(frozen=True, eq=False)
class Region:
    """A function of rows, and what it reads and makes.

    Two are equal that make the same of arrays of the same shapes.

    Attributes:
        jaxpr: The function of rows, closed over nothing.
        reads: How each argument is read.
        outputs: For each result where it goes, and how it is reduced.
    """

    jaxpr: jex.ClosedJaxpr
    reads: tuple[Read, ...]
    outputs: tuple[tuple[Into, str], ...]

    @staticmethod
    def of(
        function: Callable[..., Sequence[Any]],
        rows: Sequence[Any],
        reads: Sequence[Read],
        outputs: Sequence[tuple[Into, str]],
    ) -> Region:
        """The region of a function that closes over nothing.

        Args:
            function: Maps rows to a list of rows.
            rows: Shape and dtype of each argument.
            reads: How each is read.
            outputs: For each result where it goes, and how it is reduced.
        """
        structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in rows]
        closed = jax.make_jaxpr(lambda *rows: list(function(*rows)))(*structs)
        assert not closed.consts, closed
        return Region(closed, tuple(reads), tuple(outputs))

    @property
    def rows(self) -> list[Any]:
        """Shape and dtype of each argument's row."""
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.jaxpr.in_avals]

    @property
    def results(self) -> list[Any]:
        """Shape and dtype of each result's row."""
        return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.jaxpr.out_avals]

    def __call__(self, *rows: Any) -> list[Any]:
        """The function."""
        return jex.jaxpr_as_fun(self.jaxpr)(*rows)

    @functools.cached_property
    def program(self) -> RowProgram | Unsupported:
        """Its instructions, or why there are none."""
        try:
            return from_jaxpr(self.jaxpr, self.reads, self.outputs)
        except Unsupported as error:
            return error

    @functools.cached_property
    def _key(self) -> Any:
        if isinstance(self.program, Unsupported):
            return id(self.jaxpr)
        shapes = tuple(map(str, (*self.jaxpr.in_avals, *self.jaxpr.out_avals)))
        return repr(self.program), shapes  # tells -0.0 from 0.0

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and self._key == other._key

    def __repr__(self) -> str:
        """What a printed program shows."""
        made = " ".join(f"{reduce}→{into}" for into, reduce in self.outputs)
        return f"{' '.join(self.reads)} ↦ {made}"

    @property
    def extremes(self) -> list[int]:
        """The results that are maxima or minima."""
        return [i for i, (_, reduce) in enumerate(self.outputs) if reduce in ("max", "min")]

    # --- Derivatives ---------------------------------------------------------------------------

    @functools.cached_property
    def ties(self) -> Region:
        """How many entries attain each maximum; arguments are the region's and its maxima."""

        def function(*rows: Any) -> list[Array]:
            found = self(*rows[: len(self.reads)])
            at = (found[i] for i in self.extremes)
            attained = zip(at, rows[len(self.reads) :], strict=True)
            return [(x == y).astype(x.dtype) for x, y in attained]

        outputs = [(self.outputs[i][0], "sum") for i in self.extremes]
        return Region.of(function, self._with_maxima(), self._reads_with_maxima(), outputs)

    def tangent(self, moving: tuple[int, ...]) -> Region:
        """The derivative along some arguments.

        Arguments are the region's, its maxima, and the tangents. Of a maximum it is the sum over
        those entries that attain it.
        """
        known = len(self.reads) + len(self.extremes)

        def function(*rows: Any) -> list[Array]:
            along = self._along(rows[:known], moving)
            _, tangents = jax.jvp(along, [rows[i] for i in moving], list(rows[known:]))
            return tangents

        rows = self._with_maxima() + [self.rows[i] for i in moving]
        reads = (*self._reads_with_maxima(), *(self.reads[i] for i in moving))
        return Region.of(function, rows, reads, self._summed())

    def cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> Region:
        """The transpose of `tangent`.

        Arguments are the region's, its maxima, and the cotangents of the results that are given;
        results the cotangents of some arguments.
        """
        known = len(self.reads) + len(self.extremes)

        def function(*rows: Any) -> list[Array]:
            along = self._along(rows[:known], moving)

            def some(*values: Any) -> list[Array]:
                found = along(*values)
                return [found[i] for i in given]

            return list(jax.vjp(some, *(rows[i] for i in moving))[1](list(rows[known:])))

        rows = self._with_maxima() + [self.results[i] for i in given]
        reads = (*self._reads_with_maxima(), *(_READ[self.outputs[i][0]] for i in given))
        into = [_INTO[self.reads[i]] for i in moving]
        outputs = [(each, "none" if each == "edge" else "sum") for each in into]
        return Region.of(function, rows, reads, outputs)

    def _along(self, known: Sequence[Any], moving: Sequence[int]) -> Callable[..., list[Any]]:
        """The function of some arguments; where it is no maximum, a constant."""
        rows, maxima = known[: len(self.reads)], known[len(self.reads) :]

        def function(*values: Any) -> list[Array]:
            found = self(*replaced(rows, moving, values))
            for i, at in zip(self.extremes, maxima, strict=True):
                found[i] = jnp.where(found[i] == at, found[i], 0)
            return found

        return function

    def _with_maxima(self) -> list[Any]:
        return [*self.rows, *(self.results[i] for i in self.extremes)]

    def _reads_with_maxima(self) -> tuple[Read, ...]:
        return (*self.reads, *(_READ[self.outputs[i][0]] for i in self.extremes))

    def _summed(self) -> list[tuple[Into, str]]:
        return [(into, "none" if into == "edge" else "sum") for into, _ in self.outputs]

    # --- Batches -------------------------------------------------------------------------------

    def batched(self, axes: Sequence[bool], size: int) -> Region:
        """A batch whose axis is the first of rows, of the arguments that have one."""
        in_axes = [0 if has else None for has in axes]
        rows = [
            jax.ShapeDtypeStruct((size, *row.shape) if has else row.shape, row.dtype)
            for row, has in zip(self.rows, axes, strict=True)
        ]
        function = jax.vmap(self, in_axes, axis_size=size)
        return Region.of(function, rows, self.reads, self.outputs)

    def apart(self, by_row: Sequence[bool]) -> Region:
        """With arguments read by row that were shared; what goes to all goes to rows, too."""
        reads: list[Read] = [
            "row" if moved else read for read, moved in zip(self.reads, by_row, strict=True)
        ]
        outputs: list[tuple[Into, str]] = [
            ("row" if into == "all" else into, reduce) for into, reduce in self.outputs
        ]
        return Region(self.jaxpr, tuple(reads), tuple(outputs))
