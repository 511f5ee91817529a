"""Edge regions, and the regions of their derivatives and batches.

In a *region*, each entry of a sparse matrix reads rows of arrays and applies a function; results
are stored by entry or reduced by row, by column or over all entries. A cotangent goes where its
input was read, and is read where its result went: so the transpose is a region, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.extend import core as jex

from jax_gnn._core.op import replace_items
from jax_gnn._core.sharding import without_mesh
from jax_gnn._ops.edge_region.jaxpr_lowering import from_jaxpr
from jax_gnn._ops.edge_region.row_program import (
    Access,
    Dest,
    RowProgram,
    Unsupported,
    abstract_row,
)

Sink = tuple[Dest, str]
"""Destination and reduction of a result."""

Rows = Sequence[Any]
"""Rows of one entry, abstract or traced."""

# Numbers of an array, and of a matrix, that is part of a function.
_MAX_CONSTANT, _MAX_CONSTANT_MATRIX = 1 << 12, 1 << 8

DEST_OF: dict[Access, Dest] = {"edge": "edge", "row": "row", "col": "col", "shared": "all"}
ACCESS_OF: dict[Dest, Access] = {dest: access for access, dest in DEST_OF.items()}


class ExtremeMasks(NamedTuple):
    """XLA's form of a region that compares entries with maxima or minima.

    CUDA kernels compare what an entry makes with an extreme made by the same instructions, to the
    same bits. XLA may round a function differently in two programs, so its form recomputes both
    in one program and passes masks.

    Attributes:
        source: The region of the extremes, whose arguments come first in the comparing region.
        arguments: Indices of the extremes among the arguments.
        region: The comparing region, with masks of entries in place of the extremes.
    """

    source: Region
    arguments: tuple[int, ...]
    region: Region


@jax.custom_jvp
def _stand_in(recomputed: Array, stored: Array) -> Array:
    """Return `stored`, with the derivative of `recomputed`."""
    del recomputed
    return stored


@_stand_in.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return primals[1], tangents[0]


def sum_sinks(accesses: Sequence[Access]) -> list[Sink]:
    """Return the destinations of the cotangents of arguments."""
    return [(DEST_OF[access], "none" if access == "edge" else "sum") for access in accesses]


def _cotangent_access(sink: Sink) -> Access:
    dest, reduce = sink
    if reduce in ("max", "min"):
        raise TypeError(f"edge_region is transposed, but a {reduce} is not linear")
    return ACCESS_OF[dest]


def _trace(function: Callable[..., Sequence[Any]], rows: Rows) -> jex.ClosedJaxpr:
    """Return the jaxpr of a function of one entry's rows.

    Rows are on no mesh, unless inside `jax.shard_map`, whose axes the function may name.
    """
    make = jax.make_jaxpr(lambda *rows: list(function(*rows)))
    if jax.sharding.get_abstract_mesh().manual_axes:
        return make(*rows)
    with without_mesh():  # types made outside name a mesh with explicit axes
        return make(*(abstract_row(row.shape, row.dtype) for row in rows))


def is_constant(value: Any) -> bool:
    """Whether an array that a function closes over is part of it: of numpy, small and sparse.

    Dense matrices are weights, which other kernels read from memory.
    """
    if isinstance(value, Array) or not 0 < np.size(value) <= _MAX_CONSTANT:
        return False
    numbers = np.asarray(value)
    is_small = numbers.ndim > 2 or numbers.size <= _MAX_CONSTANT_MATRIX
    is_sparse = numbers.size == 1 or 2 * np.count_nonzero(numbers) <= numbers.size
    return bool(is_small and is_sparse and jnp.issubdtype(numbers.dtype, jnp.floating))


def _updated(aval: Any, **fields: Any) -> ShapedArray:
    row: ShapedArray = aval.update(**fields)
    return row


@dataclass(frozen=True, eq=False)
class Region:
    """A function of one entry's rows, its reads and its results.

    Regions with the same instructions on rows of the same shapes are equal.

    Attributes:
        jaxpr: The function, whose consts are arrays of numpy.
        accesses: The row that an entry reads of each argument.
        outputs: Destination and reduction of each result.
        masks: XLA's form if the region compares entries with extremes, else None.
    """

    jaxpr: jex.ClosedJaxpr
    accesses: tuple[Access, ...]
    outputs: tuple[Sink, ...]
    masks: ExtremeMasks | None = None

    @staticmethod
    def of(
        function: Callable[..., Sequence[Any]],
        rows: Rows,
        accesses: Sequence[Access],
        outputs: Sequence[Sink],
    ) -> Region:
        """Return the region of a function that closes over no arrays but constants.

        Args:
            function: Maps rows to a list of rows.
            rows: An abstract row of each argument.
            accesses: The row that an entry reads of each argument.
            outputs: Destination and reduction of each result.
        """
        closed = _trace(function, rows)
        assert all(map(is_constant, closed.consts)), closed
        return Region(closed, tuple(accesses), tuple(outputs))

    @staticmethod
    def closing(
        function: Callable[..., Sequence[Any]],
        rows: Rows,
        accesses: Sequence[Access],
        outputs: Sequence[Sink],
    ) -> tuple[Region, list[Array]]:
        """Return the region of any function, and the arrays that it closes over.

        These become shared arguments before the others, but for constants. Arguments: as in `of`.
        """
        closed: Any = _trace(function, rows)
        jaxpr, consts = closed.jaxpr, closed.consts
        pairs = list(zip(jaxpr.constvars, consts, strict=True))
        constants = [(var, x) for var, x in pairs if is_constant(x)]
        closed_over = [(var, x) for var, x in pairs if not is_constant(x)]
        variables, arrays = [var for var, _ in closed_over], [x for _, x in closed_over]
        jaxpr = jaxpr.replace(
            constvars=[var for var, _ in constants], invars=[*variables, *jaxpr.invars]
        )
        shared: list[Access] = ["shared"] * len(arrays)
        closed = closed.replace(jaxpr=jaxpr, consts=[x for _, x in constants])
        return Region(closed, (*shared, *accesses), tuple(outputs)), arrays

    @property
    def rows(self) -> list[ShapedArray]:
        """The abstract row of each argument."""
        return [_updated(aval, weak_type=False) for aval in self.jaxpr.in_avals]

    @property
    def results(self) -> list[ShapedArray]:
        """The abstract row of each result."""
        return [_updated(aval, weak_type=False) for aval in self.jaxpr.out_avals]

    def __call__(self, *rows: Array) -> list[Array]:
        """Apply the function to one entry's rows."""
        results: list[Array] = jex.jaxpr_as_fun(self.jaxpr)(*rows)
        return results

    @functools.cached_property
    def program(self) -> RowProgram | Unsupported:
        """The instructions, or the reason why there are none."""
        try:
            return from_jaxpr(self.jaxpr, self.accesses, self.outputs)
        except Unsupported as error:
            return error

    @functools.cached_property
    def _key(self) -> object:
        if isinstance(self.program, Unsupported):
            return id(self.jaxpr)
        shapes = tuple(map(str, (*self.jaxpr.in_avals, *self.jaxpr.out_avals)))
        return repr(self.program), shapes  # unlike ==, distinguishes -0.0 from 0.0

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and self._key == other._key

    def __repr__(self) -> str:
        """Return the form in printed programs: reads, then reductions and destinations."""
        sinks = " ".join(f"{reduce}→{dest}" for dest, reduce in self.outputs)
        return f"{' '.join(self.accesses)} ↦ {sinks}"

    @property
    def extremes(self) -> list[int]:
        """Indices of the results that are maxima or minima."""
        return [i for i, (_, reduce) in enumerate(self.outputs) if reduce in ("max", "min")]

    # --- Derivatives ---------------------------------------------------------------------------
    #
    # Regions of derivatives take, in this order: the arguments of the region, its extremes, and the
    # rows at which the derivative is evaluated (tangents; or residuals and cotangents).

    @functools.cached_property
    def with_ties(self) -> Region | None:
        """The region that also counts the entries attaining each extreme; None if no walk can.

        Its last results are these counts, in the order of the extremes.
        """
        sinks = [self.outputs[i] for i in self.extremes]
        if self.masks is not None or any(dest == "all" for dest, _ in sinks):
            return None  # sums of blocks know no extreme of all blocks
        variables = self.jaxpr.jaxpr.outvars
        ties: list[Sink] = [(dest, f"{reduce}_ties") for dest, reduce in sinks]
        variables = [*variables, *(variables[i] for i in self.extremes)]
        return self._with_results(variables, (*self.outputs, *ties))

    @property
    def has_softmax(self) -> bool:
        """Whether results are sums of numbers times exponentials of scores, the result "max"."""
        return any(reduce == "exp_sum" for _, reduce in self.outputs)

    @property
    def num_ties(self) -> int:
        """The number of results that count entries that attain extremes."""
        return sum(reduce.endswith("_ties") for _, reduce in self.outputs)

    @property
    def without_ties(self) -> Region:
        """The region of the other results."""
        if not self.num_ties:
            return self
        count = len(self.outputs) - self.num_ties
        return self._with_results(self.jaxpr.jaxpr.outvars[:count], self.outputs[:count])

    def _with_results(self, variables: Sequence[Any], outputs: Sequence[Sink]) -> Region:
        jaxpr = self.jaxpr.jaxpr
        debug_info = jaxpr.debug_info.with_unknown_names()
        jaxpr = jaxpr.replace(outvars=list(variables), debug_info=debug_info)
        return replace(self, jaxpr=self.jaxpr.replace(jaxpr=jaxpr), outputs=tuple(outputs))

    @functools.cached_property
    def ties(self) -> Region:
        """The region that counts the entries attaining each extreme."""

        def count(_: Region, rows: Rows, attained: Rows, extra: Rows) -> list[Array]:
            del rows, extra
            like = (self.results[i] for i in self.extremes)
            return [mask.astype(x.dtype) for mask, x in zip(attained, like, strict=True)]

        return self._derivative(count, (), [(self.outputs[i][0], "sum") for i in self.extremes])

    def tangent(self, active: tuple[int, ...]) -> Region:
        """Return the derivative along the `active` arguments; takes their tangents.

        The tangent of an extreme is the sum over the entries that attain it.
        """

        def jvp(region: Region, rows: Rows, attained: Rows, tangents: Rows) -> list[Array]:
            primals = [rows[i] for i in active]
            _, results = jax.jvp(region._partial(rows, active), primals, list(tangents))
            return self._where_attained(attained, results)

        along = [(self.accesses[i], self.rows[i]) for i in active]
        outputs = [(dest, "none" if dest == "edge" else "sum") for dest, _ in self.outputs]
        return self._derivative(jvp, along, outputs)

    @functools.cached_property
    def residuals(self) -> tuple[int, ...]:
        """Indices of results by entry that gradients may read in place of recomputing them."""
        single = {eqn.outvars[0] for eqn in self.jaxpr.jaxpr.eqns if len(eqn.outvars) == 1}
        return tuple(
            i
            for i, (var, row, (dest, _)) in enumerate(
                zip(self.jaxpr.jaxpr.outvars, self.results, self.outputs, strict=True)
            )
            if dest == "edge" and var in single and jnp.issubdtype(row.dtype, jnp.floating)
        )

    def cheapest_cotangent(
        self, active: tuple[int, ...], ct_results: tuple[int, ...]
    ) -> tuple[Region, tuple[int, ...]]:
        """Return `cotangent` with or without residuals, whichever reads less; and the residuals."""
        recomputing = self.cotangent(active, ct_results)
        if not self.residuals:
            return recomputing, ()
        reading = self.cotangent(active, ct_results, self.residuals)
        if reading._bytes_per_entry < recomputing._bytes_per_entry:
            return reading, self.residuals
        return recomputing, ()

    @property
    def _bytes_per_entry(self) -> float:
        """Bytes that an entry reads, in a walk by row and one by column."""
        if isinstance(self.program, Unsupported):
            return math.inf
        by_col = [i for i, (dest, _) in enumerate(self.outputs) if dest == "col"]
        by_row = [i for i in range(len(self.outputs)) if i not in by_col]
        rows, cols = self.program.only(by_row), self.program.only(by_col)
        return rows.bytes_per_entry + cols.transposed().bytes_per_entry

    def cotangent(
        self, active: tuple[int, ...], ct_results: tuple[int, ...], residuals: tuple[int, ...] = ()
    ) -> Region:
        """Return the transpose of `tangent`: the cotangents of the `active` arguments.

        Args:
            active: Indices of arguments.
            ct_results: Indices of the results whose cotangents it takes; others are zero.
            residuals: Indices of the results that it takes before them, and does not recompute.
        """

        def vjp(region: Region, rows: Rows, attained: Rows, extra: Rows) -> list[Array]:
            stored, cotangents = dict(zip(residuals, extra, strict=False)), extra[len(residuals) :]
            primals = (rows[i] for i in active)
            results, pullback = jax.vjp(region._partial(rows, active, stored), *primals)
            by_result = dict(zip(ct_results, cotangents, strict=True))
            full = [by_result.get(i, jnp.zeros_like(x)) for i, x in enumerate(results)]
            return list(pullback(self._where_attained(attained, full)))

        along = [
            (ACCESS_OF[self.outputs[i][0]], self.results[i]) for i in (*residuals, *ct_results)
        ]
        return self._derivative(vjp, along, sum_sinks([self.accesses[i] for i in active]))

    def without_extremes(self, tangents: Sequence[Array | None]) -> list[Array | None]:
        """Return tangents, None for those of extremes that entries are compared with."""
        extremes = () if self.masks is None else self.masks.arguments
        return [None if i in extremes else tangent for i, tangent in enumerate(tangents)]

    def _derivative(
        self,
        function: Callable[[Region, Rows, Rows, Rows], list[Array]],
        along: Sequence[tuple[Access, ShapedArray]],
        outputs: Sequence[Sink],
    ) -> Region:
        """Return a region of derivatives.

        Args:
            function: Maps the region, its rows, masks of the entries that attain the extremes, and
                the rows of `along` to results.
            along: Access and abstract row of each further argument.
            outputs: Destination and reduction of each result.
        """
        first = len(self.accesses)
        stop = first + len(self.extremes)

        def masked(*rows: Array) -> list[Array]:
            return function(self, rows[:first], rows[first:stop], rows[stop:])

        def compared(*rows: Array) -> list[Array]:
            # The region as it is, whatever `function` recomputes: equal instructions, equal bits.
            results = self(*rows[:first])
            pairs = zip(self.extremes, rows[first:stop], strict=True)
            attained = [results[i] == extreme for i, extreme in pairs]
            return function(self, rows[:first], attained, rows[stop:])

        along_accesses, along_rows = [access for access, _ in along], [row for _, row in along]
        extremes = [self.results[i] for i in self.extremes]
        extreme_accesses: list[Access] = [ACCESS_OF[self.outputs[i][0]] for i in self.extremes]
        accesses = (*self.accesses, *extreme_accesses, *along_accesses)
        region = Region.of(compared, [*self.rows, *extremes, *along_rows], accesses, outputs)
        if extremes:
            # The form for XLA reads masks as arguments: XLA need not produce the same bits twice,
            # so that a comparison with recomputed entries is unsafe there.
            flags = [_updated(row, dtype=np.dtype(bool)) for row in extremes]
            flag_accesses: list[Access] = ["edge"] * len(flags)
            accesses = (*self.accesses, *flag_accesses, *along_accesses)
            by_mask = Region.of(masked, [*self.rows, *flags, *along_rows], accesses, outputs)
            return replace(region, masks=ExtremeMasks(self, tuple(range(first, stop)), by_mask))
        return self._with_masks(region, lambda inner: inner._derivative(function, along, outputs))

    def _with_masks(self, region: Region, transform: Callable[[Region], Region]) -> Region:
        """Return a transformed region, its XLA form transformed alike."""
        if self.masks is None:
            return region
        return replace(region, masks=self.masks._replace(region=transform(self.masks.region)))

    def transposed(self, linear: tuple[int, ...], ct_results: tuple[int, ...]) -> Region:
        """Return the transpose of a region that is linear in some arguments together.

        Takes the other arguments and the cotangents of the results `ct_results`.
        """
        fixed = [i for i in range(len(self.accesses)) if i not in linear]
        shapes = [self.rows[i] for i in linear]

        def transpose(*rows: Array) -> list[Array]:
            arguments = replace_items([None] * len(self.accesses), fixed, rows[: len(fixed)])

            def some_results(*values: Array) -> list[Array]:
                results = self(*replace_items(arguments, linear, values))
                return [results[i] for i in ct_results]

            return list(jax.linear_transpose(some_results, *shapes)(list(rows[len(fixed) :])))

        accesses = [self.accesses[i] for i in fixed]
        accesses += [_cotangent_access(self.outputs[i]) for i in ct_results]
        rows = [self.rows[i] for i in fixed] + [self.results[i] for i in ct_results]
        region = Region.of(transpose, rows, accesses, sum_sinks([self.accesses[i] for i in linear]))
        return self._with_masks(region, lambda inner: inner.transposed(linear, ct_results))

    def _partial(
        self, rows: Rows, active: Sequence[int], stored: Mapping[int, Array] | None = None
    ) -> Callable[..., list[Array]]:
        """Return the function of the `active` arguments, with results that are `stored`."""
        return lambda *values: self._call_with(stored or {}, replace_items(rows, active, values))

    def _call_with(self, stored: Mapping[int, Array], rows: Rows) -> list[Array]:
        """Apply the function; equations read stored results, whose derivatives are recomputed."""
        if not stored:
            return self(*rows)
        jaxpr = self.jaxpr.jaxpr
        debug_info = jaxpr.debug_info.with_unknown_names()
        # The jaxpr is cut at the stored results: `before` computes them for their derivatives, and
        # `after` reads stand-ins that have the stored values.
        cut = [jaxpr.outvars[i] for i in stored]
        eqns = [eqn for eqn in jaxpr.eqns if eqn.outvars[0] not in cut]
        before = jaxpr.replace(outvars=cut, debug_info=debug_info)
        after = jaxpr.replace(invars=[*jaxpr.invars, *cut], eqns=eqns, debug_info=debug_info)
        consts = self.jaxpr.consts
        recomputed = jex.jaxpr_as_fun(jex.ClosedJaxpr(before, consts))(*rows)
        stand_ins = map(_stand_in, recomputed, stored.values())
        results: list[Array] = jex.jaxpr_as_fun(jex.ClosedJaxpr(after, consts))(*rows, *stand_ins)
        return results

    def _where_attained(self, attained: Rows, values: Sequence[Array]) -> list[Array]:
        """Return values of results, zero where an entry does not attain an extreme."""
        masked = list(values)
        for i, mask in zip(self.extremes, attained, strict=True):
            masked[i] = jnp.where(mask, masked[i], jnp.zeros_like(masked[i]))
        return masked

    # --- Batches -------------------------------------------------------------------------------

    def batched_arguments(self, is_batched: Sequence[bool]) -> list[bool]:
        """Return which arguments must have a batch axis: extremes and their sources, together."""
        batched = list(is_batched)
        if self.masks is not None:
            sources = range(len(self.masks.source.accesses))
            extremes = self.masks.arguments
            any_batched = any(batched[i] for i in (*sources, *extremes))
            for i in extremes:
                batched[i] = any_batched
            if any_batched and not any(batched[i] for i in sources):
                batched[0] = True
        return batched

    def batched(self, is_batched: Sequence[bool], size: int) -> Region:
        """Return the region on rows whose first axis is the batch, for `batched_arguments`."""
        rows = [
            _updated(row, shape=(size, *row.shape)) if batched else row
            for row, batched in zip(self.rows, is_batched, strict=True)
        ]
        axes = [0 if batched else None for batched in is_batched]
        function = jax.vmap(self, axes, axis_size=size)
        region = Region.of(function, rows, self.accesses, self.outputs)
        if self.masks is None:
            return region
        source, arguments, by_mask = self.masks
        own_axes = is_batched[: len(source.accesses)]
        source = source.batched(own_axes, size) if any(own_axes) else source
        masks = ExtremeMasks(source, arguments, by_mask.batched(is_batched, size))
        return replace(region, masks=masks)

    @property
    def is_by_entry(self) -> bool:
        """Whether entries read and write rows of their own, and shared ones, alone."""
        places = {*self.accesses, *(dest for dest, _ in self.outputs)}
        return places.isdisjoint(("row", "col"))

    def per_row(self, is_by_row: Sequence[bool]) -> Region | None:
        """Return the region with some shared arguments, and all results over all, by row.

        Returns None for regions with an extreme over all entries, whose entries would be compared
        with extremes of rows.
        """
        if any(self.outputs[i][0] == "all" for i in self.extremes):
            return None
        accesses: list[Access] = [
            "row" if by_row else access
            for access, by_row in zip(self.accesses, is_by_row, strict=True)
        ]
        outputs: list[Sink] = [
            ("row" if dest == "all" else dest, reduce) for dest, reduce in self.outputs
        ]
        region = Region(self.jaxpr, tuple(accesses), tuple(outputs))
        if self.masks is None:
            return region
        source, arguments, by_mask = self.masks
        source_by_row = source.per_row(is_by_row[: len(source.accesses)])
        mask_by_row = by_mask.per_row(is_by_row)
        if source_by_row is None or mask_by_row is None:
            return None
        return replace(region, masks=ExtremeMasks(source_by_row, arguments, mask_by_row))
