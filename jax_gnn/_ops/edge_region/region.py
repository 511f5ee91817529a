"""What an edge region computes, and the regions that its derivatives and its batches are.

An entry of a sparse matrix reads rows of arrays, a function makes others of them, and what entries
make is kept for each of them or reduced by row, by column or over all. What an input of a region
reads is where its cotangent goes, and the other way around: so the transpose is a region, too.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core as jex

from jax_gnn._core.op import replace_items
from jax_gnn._core.sharding import without_mesh
from jax_gnn._ops.edge_region.row_program import (
    Into,
    Read,
    RowProgram,
    Unsupported,
    from_jaxpr,
)

INTO: dict[Read, Into] = {"edge": "edge", "row": "row", "col": "col", "shared": "all"}
READ: dict[Into, Read] = {into: read for read, into in INTO.items()}


class Attained(NamedTuple):
    """What compares entries with maxima, made anew.

    Kernels compare what entries make with the maxima that they have made of the same instructions.
    XLA rounds one function differently in two programs: there both are made in the same one.

    Attributes:
        of: The region whose maxima are attained; its arguments are the first of the other's.
        places: The arguments that are these maxima.
        region: The other region, where these are truth values of each entry.
    """

    of: Region
    places: tuple[int, ...]
    region: Region


def _with(jaxpr: jex.Jaxpr, **parts: Any) -> jex.Jaxpr:
    return jaxpr.replace(**parts, debug_info=jaxpr.debug_info.with_unknown_names())


@jax.custom_jvp
def _stands_for(made: Array, kept: Array) -> Array:
    """What was kept, with the derivative of what would be made again."""
    del made
    return kept


@_stands_for.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return primals[1], tangents[0]


def _read_of(output: tuple[Into, str]) -> Read:
    into, reduce = output
    if reduce in ("max", "min"):
        raise TypeError(f"edge_region is transposed, but a {reduce} is not linear")
    return READ[into]


def _traced(function: Callable[..., Sequence[Any]], rows: Sequence[Any]) -> Any:
    """Return the closed jaxpr of a function of one entry's rows.

    Rows are on no mesh, unless within `jax.shard_map`, whose axes the function may name.
    """
    is_manual = jax.sharding.get_abstract_mesh().manual_axes
    with contextlib.nullcontext() if is_manual else without_mesh():
        return jax.make_jaxpr(lambda *rows: list(function(*rows)))(*rows)


@dataclass(frozen=True, eq=False)
class Region:
    """A function of rows, and what it reads and makes.

    Two are equal that make the same of arrays of the same shapes.

    Attributes:
        jaxpr: The function of rows, closed over nothing.
        reads: How each argument is read.
        outputs: For each result where it goes, and how it is reduced.
        attained: Where it compares entries with maxima, how XLA does that.
    """

    jaxpr: jex.ClosedJaxpr
    reads: tuple[Read, ...]
    outputs: tuple[tuple[Into, str], ...]
    attained: Attained | None = None

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
            rows: An abstract row of each argument.
            reads: How each is read.
            outputs: For each result where it goes, and how it is reduced.
        """
        closed = _traced(function, rows)
        assert not closed.consts, closed
        return Region(closed, tuple(reads), tuple(outputs))

    @staticmethod
    def closing(
        function: Callable[..., Sequence[Any]],
        rows: Sequence[Any],
        reads: Sequence[Read],
        outputs: Sequence[tuple[Into, str]],
    ) -> tuple[Region, list[Any]]:
        """Likewise of any function; what it closes over come first of its arguments, shared."""
        closed = _traced(function, rows)
        jaxpr = closed.jaxpr
        jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
        alone = closed.replace(jaxpr=jaxpr, consts=[])
        shared: list[Read] = ["shared"] * len(closed.consts)
        return Region(alone, (*shared, *reads), tuple(outputs)), list(closed.consts)

    @property
    def rows(self) -> list[Any]:
        """The abstract row of each argument."""
        return [aval.update(weak_type=False) for aval in self.jaxpr.in_avals]

    @property
    def results(self) -> list[Any]:
        """The abstract row of each result."""
        return [aval.update(weak_type=False) for aval in self.jaxpr.out_avals]

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

        def function(_: Region, rows: Any, attained: Any, more: Any) -> list[Array]:
            del rows, more
            like = (self.results[i] for i in self.extremes)
            return [at.astype(x.dtype) for at, x in zip(attained, like, strict=True)]

        outputs = [(self.outputs[i][0], "sum") for i in self.extremes]
        return self._derivative(function, (), outputs)

    def tangent(self, moving: tuple[int, ...]) -> Region:
        """The derivative along some arguments.

        Arguments are the region's, its maxima, and the tangents. Of a maximum it is the sum over
        those entries that attain it.
        """

        def function(region: Region, rows: Any, attained: Any, tangents: Any) -> list[Array]:
            at = [rows[i] for i in moving]
            _, found = jax.jvp(region._of(rows, moving), at, list(tangents))
            return self._where(attained, found)

        along: list[Any] = [(self.reads[i], self.rows[i]) for i in moving]
        outputs = [(into, "none" if into == "edge" else "sum") for into, _ in self.outputs]
        return self._derivative(function, along, outputs)

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """The results that are numbers of each entry, each made by an equation of its own."""
        single = {eqn.outvars[0] for eqn in self.jaxpr.jaxpr.eqns if len(eqn.outvars) == 1}
        return tuple(
            i
            for i, (var, row, (into, _)) in enumerate(
                zip(self.jaxpr.jaxpr.outvars, self.results, self.outputs, strict=True)
            )
            if into == "edge" and var in single and jnp.issubdtype(row.dtype, jnp.floating)
        )

    def cheapest_cotangent(
        self, moving: tuple[int, ...], given: tuple[int, ...]
    ) -> tuple[Region, tuple[int, ...]]:
        """The transpose of `tangent`, and the kept results that it reads.

        It reads them where entries then read fewer bytes in all.
        """
        alone = self.cotangent(moving, given)
        if not self.kept:
            return alone, ()
        other = self.cotangent(moving, given, self.kept)
        return (other, self.kept) if other._moved < alone._moved else (alone, ())

    @property
    def _moved(self) -> float:
        """Bytes that an entry reads, where rows are made by row and columns by column."""
        if isinstance(self.program, Unsupported):
            return math.inf
        places: dict[bool, list[int]] = {False: [], True: []}
        for i, (into, _) in enumerate(self.outputs):
            places[into == "col"].append(i)
        by_row, by_col = (self.program.only(places[by]) for by in (False, True))
        return by_row.moved + by_col.transposed().moved

    def cotangent(
        self, moving: tuple[int, ...], given: tuple[int, ...], kept: tuple[int, ...] = ()
    ) -> Region:
        """The transpose of `tangent`.

        Arguments are the region's, its maxima, the kept results that are named, which are not made
        again, and the cotangents of the results that are given; results the cotangents of some
        arguments.
        """

        def function(region: Region, rows: Any, attained: Any, more: Any) -> list[Array]:
            there, cotangents = dict(zip(kept, more, strict=False)), more[len(kept) :]
            results, pull = jax.vjp(region._of(rows, moving, there), *(rows[i] for i in moving))
            by_place = dict(zip(given, cotangents, strict=True))
            every = [by_place.get(i, jnp.zeros_like(x)) for i, x in enumerate(results)]
            return list(pull(self._where(attained, every)))

        along: list[Any] = [(READ[self.outputs[i][0]], self.results[i]) for i in (*kept, *given)]
        into = [INTO[self.reads[i]] for i in moving]
        outputs = [(each, "none" if each == "edge" else "sum") for each in into]
        return self._derivative(function, along, outputs)

    def varying(self, tangents: Sequence[Any]) -> list[Any]:
        """Tangents, of which those of maxima to compare with change nothing: None."""
        places = () if self.attained is None else self.attained.places
        return [None if i in places else each for i, each in enumerate(tangents)]

    def _derivative(
        self,
        function: Callable[[Region, Any, Any, Any], list[Array]],
        along: Sequence[tuple[Read, Any]],
        outputs: Sequence[tuple[Into, str]],
    ) -> Region:
        """A region of a function of rows, of what attains maxima, and of what is read, too."""
        first = len(self.reads)
        last = first + len(self.extremes)

        def masked(*rows: Any) -> list[Array]:
            return function(self, rows[:first], rows[first:last], rows[last:])

        def compared(*rows: Any) -> list[Array]:
            made = self(*rows[:first])  # as the region makes them, whatever derivatives make
            at = [made[i] == y for i, y in zip(self.extremes, rows[first:last], strict=True)]
            return function(self, rows[:first], at, rows[last:])

        more_reads, more_rows = [read for read, _ in along], [row for _, row in along]
        maxima = [self.results[i] for i in self.extremes]
        masks = [each.update(dtype=np.dtype(bool)) for each in maxima]
        own: list[Read] = [READ[self.outputs[i][0]] for i in self.extremes]
        edges: list[Read] = ["edge"] * len(masks)
        reads = (*self.reads, *own, *more_reads)
        found = Region.of(compared, [*self.rows, *maxima, *more_rows], reads, outputs)
        if maxima:
            reads = (*self.reads, *edges, *more_reads)
            by_mask = Region.of(masked, [*self.rows, *masks, *more_rows], reads, outputs)
            return replace(found, attained=Attained(self, tuple(range(first, last)), by_mask))
        if self.attained is not None:
            by_mask = self.attained.region._derivative(function, along, outputs)
            return replace(found, attained=self.attained._replace(region=by_mask))
        return found

    def transposed(self, undefined: tuple[int, ...], given: tuple[int, ...]) -> Region:
        """The transpose of a region that is linear in some arguments together.

        Arguments are the others and the cotangents of the results that are given; results the
        cotangents of those arguments.
        """
        known = [i for i in range(len(self.reads)) if i not in undefined]
        shapes = [self.rows[i] for i in undefined]

        def function(*rows: Any) -> list[Array]:
            at = replace_items([None] * len(self.reads), known, rows[: len(known)])

            def some(*values: Any) -> list[Array]:
                found = self(*replace_items(at, undefined, values))
                return [found[i] for i in given]

            return list(jax.linear_transpose(some, *shapes)(list(rows[len(known) :])))

        reads = [self.reads[i] for i in known] + [_read_of(self.outputs[i]) for i in given]
        rows = [self.rows[i] for i in known] + [self.results[i] for i in given]
        into = [INTO[self.reads[i]] for i in undefined]
        outputs = [(each, "none" if each == "edge" else "sum") for each in into]
        found = Region.of(function, rows, reads, outputs)
        if self.attained is None:
            return found
        by_mask = self.attained.region.transposed(undefined, given)
        return replace(found, attained=self.attained._replace(region=by_mask))

    def _of(
        self, rows: Sequence[Any], moving: Sequence[int], kept: Mapping[int, Any] | None = None
    ) -> Callable[..., list[Any]]:
        """The function of some arguments, and of results that are there."""
        return lambda *values: self._reading(kept or {}, replace_items(rows, moving, values))

    def _reading(self, kept: Mapping[int, Any], rows: Sequence[Any]) -> list[Any]:
        """The function, where some results stand for what would be made of them again."""
        if not kept:
            return self(*rows)
        jaxpr = self.jaxpr.jaxpr
        given = {jaxpr.outvars[i]: x for i, x in kept.items()}
        there, values = list(given), list(given.values())
        others = [eqn for eqn in jaxpr.eqns if eqn.outvars[0] not in there]
        made = jex.ClosedJaxpr(_with(jaxpr, outvars=there), ())
        rest = jex.ClosedJaxpr(_with(jaxpr, invars=[*jaxpr.invars, *there], eqns=others), ())
        stand = map(_stands_for, jex.jaxpr_as_fun(made)(*rows), values)
        return jex.jaxpr_as_fun(rest)(*rows, *stand)

    def _where(self, attained: Sequence[Any], values: Sequence[Any]) -> list[Array]:
        """What belongs to results, zeros where an entry does not attain a maximum."""
        found = list(values)
        for i, at in zip(self.extremes, attained, strict=True):
            found[i] = jnp.where(at, found[i], jnp.zeros_like(found[i]))
        return found

    # --- Batches -------------------------------------------------------------------------------

    def together(self, axes: Sequence[bool]) -> list[bool]:
        """Which arguments have a batch, where maxima have one as what they are maxima of."""
        found = list(axes)
        if self.attained is not None:
            of, places, _ = self.attained
            given = range(len(of.reads))
            has = any(found[i] for i in (*given, *places))
            for i in places:
                found[i] = has
            if has and not any(found[i] for i in given):
                found[0] = True
        return found

    def batched(self, axes: Sequence[bool], size: int) -> Region:
        """A batch whose axis is the first of rows, of the arguments that have one `together`."""
        rows = [
            row.update(shape=(size, *row.shape)) if has else row
            for row, has in zip(self.rows, axes, strict=True)
        ]
        function = jax.vmap(self, [0 if has else None for has in axes], axis_size=size)
        found = Region.of(function, rows, self.reads, self.outputs)
        if self.attained is None:
            return found
        of, places, region = self.attained
        own = axes[: len(of.reads)]
        of = of.batched(own, size) if any(own) else of
        return replace(found, attained=Attained(of, places, region.batched(axes, size)))

    def apart(self, by_row: Sequence[bool]) -> Region | None:
        """With arguments read by row that were shared; what goes to all goes to rows, too.

        None where it has a maximum of all, or compares with one: both are made alike.
        """
        if any(self.outputs[i][0] == "all" for i in self.extremes):
            return None
        reads: list[Read] = [
            "row" if moved else read for read, moved in zip(self.reads, by_row, strict=True)
        ]
        outputs: list[tuple[Into, str]] = [
            ("row" if into == "all" else into, reduce) for into, reduce in self.outputs
        ]
        found = Region(self.jaxpr, tuple(reads), tuple(outputs))
        if self.attained is None:
            return found
        of, places, region = self.attained
        own, other = of.apart(by_row[: len(of.reads)]), region.apart(by_row)
        if own is None or other is None:
            return None
        return replace(found, attained=Attained(own, places, other))
