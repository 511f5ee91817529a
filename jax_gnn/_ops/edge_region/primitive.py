"""The primitive ``edge_region``, whose derivatives and batches are regions again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.batching import all_batched, one_by_one
from jax_gnn._core.csr import SparseMatrix, block_diagonal, joinable
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Op, align_varying, define, shaped
from jax_gnn._core.pieces import by_matrix
from jax_gnn._core.sharding import WHOLE, Sharding, reshape
from jax_gnn._ops.edge_region import cuda, xla
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import Into, Read, Unsupported


class Operands(NamedTuple):
    """Arrays by row, column or entry of the matrix, or shared, and the matrix."""

    arrays: tuple[Any, ...]
    matrix: SparseMatrix


class Known(NamedTuple):
    """What a derivative is taken at: arrays of the region, results of it, and the matrix.

    Results are its maxima, and what it has kept of each entry.
    """

    arrays: tuple[Any, ...]
    maxima: tuple[Any, ...]
    kept: tuple[Any, ...]
    matrix: SparseMatrix


def edge_region(
    function: Callable[..., Sequence[Any]],
    arrays: Sequence[Any],
    reads: Sequence[Read],
    outputs: Sequence[tuple[Into, str]],
    matrix: SparseMatrix,
    *,
    implementation: str | None = None,
) -> list[Array]:
    """A function of each entry of a matrix between gathers and reductions.

    Entries whose ids are out of range count for nothing, whatever arrays hold.

    Args:
        function: Maps rows to a list of rows; it may close over arrays, which are shared.
        arrays: Of rows; a shared one is one row.
        reads: For each whether an entry reads the row of its ``"row"``, ``"col"`` or ``"edge"``, or
            it is ``"shared"``.
        outputs: For each result where it goes, ``"row"``, ``"col"``, ``"edge"`` or ``"all"``; and
            ``"sum"``, ``"max"`` or ``"min"``, but ``"none"`` of edges.
        matrix: Its entries are the edges, and with an ``order`` the numbers of their rows.
        implementation: See :func:`jax_gnn.implementation`.

    Returns:
        For each result ``(rows, …)``, ``(columns, …)``, ``(entries, …)`` or one row. A maximum of
        nothing is -inf.
    """
    *arrays, _ = align_varying([*map(jnp.asarray, arrays), matrix.by_row.ids])
    rows = [
        shaped(x, jax.ShapeDtypeStruct(x.shape if read == "shared" else x.shape[1:], x.dtype))
        for x, read in zip(map(jax.typeof, arrays), reads, strict=True)
    ]
    region, consts = Region.closing(function, rows, reads, outputs)
    both = (*map(jnp.asarray, consts), *arrays)
    return region_op(both, matrix, region=region, implementation=implementation)


def _result(operands: Any, *, region: Region) -> list[Any]:
    matrix = operands.matrix
    sizes = {
        "row": (matrix.by_row.num_rows,),
        "col": (matrix.by_col.num_rows,),
        "edge": (matrix.by_row.count,),
        "all": (),
    }
    return [
        jax.ShapeDtypeStruct((*sizes[into], *row.shape), row.dtype)
        for row, (into, _) in zip(region.results, region.outputs, strict=True)
    ]


# --- Derivatives ---------------------------------------------------------------------------------


def _jvp(bind: Bind, primals: Operands, tangents: Operands) -> tuple[Any, Any]:
    region: Region = bind.attributes["region"]
    results = bind(primals)
    moving = tuple(region.varying(tangents.arrays))
    if all(each is None for each in moving):
        return results, None
    maxima = tuple(results[i] for i in region.extremes)
    kept = tuple(results[i] for i in region.kept)
    known = Known(tuple(primals.arrays), maxima, kept, primals.matrix)
    found = region_jvp(known, moving, region=region, implementation=bind.implementation)
    if maxima:  # those that attain a maximum share its tangent; none does of nothing and of NaN
        both = Operands((*primals.arrays, *maxima), primals.matrix)
        for i, ties in zip(region.extremes, bind(both, region=region.ties), strict=True):
            found[i] = found[i] / jnp.maximum(ties, 1)
    return results, found


def _transpose(bind: Bind, cts: Sequence[Any], operands: Operands) -> tuple[Any, ...]:
    """Of a region that is linear in the arrays that are missing, together."""
    region: Region = bind.attributes["region"]
    places = range(len(operands.arrays))
    known = tuple(i for i in places if hasattr(operands.arrays[i], "dtype"))
    undefined = tuple(i for i in places if i not in known)
    given = _moving(cts)
    arrays = (*(operands.arrays[i] for i in known), *(cts[i] for i in given))
    found = bind(Operands(arrays, operands.matrix), region=region.transposed(undefined, given))
    by_place: dict[int, Any] = dict(zip(undefined, found, strict=True))
    return tuple(by_place.get(i) for i in places)


def _moving(moving: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, each in enumerate(moving) if each is not None)


def _tangent(known: Known, moving: Sequence[Any], *, region: Region) -> list[Array]:
    there = _moving(moving)
    arrays = (*known.arrays, *known.maxima, *(moving[i] for i in there))
    return region_op(arrays, known.matrix, region=region.tangent(there))


def _cotangent(
    known: Known, moving: Sequence[Any], cts: Sequence[Any], *, region: Region
) -> list[Any]:
    there, given = _moving(moving), _moving(cts)
    cotangent, kept = region.cheapest_cotangent(there, given)
    results = dict(zip(region.kept, known.kept, strict=True))
    read = (*known.maxima, *(results[i] for i in kept), *(cts[i] for i in given))
    found = region_op((*known.arrays, *read), known.matrix, region=cotangent)
    by_place: dict[int, Any] = dict(zip(there, found, strict=True))
    return [by_place.get(i) for i in range(len(moving))]


def _tangent_result(known: Known, moving: Any, *, region: Region) -> list[Any]:
    del moving
    return _result(known, region=region)


# --- Batches -------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Operands, batched: Any, size: int) -> list[Array]:
    region: Region = bind.attributes["region"]
    if any(jax.tree.leaves(batched.matrix)):
        return _apart(bind, operands, batched, size)
    axes = region.together(batched.arrays)
    every = (
        jnp.broadcast_to(x, (size, *x.shape)) if wants and not has else x
        for x, has, wants in zip(operands.arrays, batched.arrays, axes, strict=True)
    )
    arrays = tuple(
        jnp.moveaxis(x, 0, 1) if has and read != "shared" else x
        for x, has, read in zip(every, axes, region.reads, strict=True)
    )
    found = bind(operands._replace(arrays=arrays), region=region.batched(axes, size))
    return [
        x if into == "all" else jnp.moveaxis(x, 1, 0)
        for x, (into, _) in zip(found, region.outputs, strict=True)
    ]


def _apart(bind: Bind, operands: Operands, batched: Any, size: int) -> list[Array]:
    """Matrices joined to one without common rows."""
    region: Region = bind.attributes["region"]
    every = all_batched(operands, batched, size)
    num_rows = operands.matrix.by_row.num_rows
    by_row = [
        has and read == "shared" for has, read in zip(batched.arrays, region.reads, strict=True)
    ]

    def joined(x: Array, moved: bool) -> Array:
        if moved:
            x = jnp.broadcast_to(x[:, None], (size, num_rows, *x.shape[1:]))
        return reshape(x, size * x.shape[1], *x.shape[2:])

    apart = region.apart(by_row)
    if apart is None or not joinable(size, every.matrix):
        return one_by_one(bind, every)
    arrays = tuple(
        one if read == "shared" and not moved else joined(x, moved)
        for one, x, read, moved in zip(
            operands.arrays, every.arrays, region.reads, by_row, strict=True
        )
    )
    found = bind(Operands(arrays, block_diagonal(every.matrix)), region=apart)

    def split(x: Array, into: str, reduce: str) -> Array:
        x = reshape(x, size, x.shape[0] // size, *x.shape[1:])
        if into != "all":
            return x
        least = {"sum": 0, "max": -jnp.inf, "min": jnp.inf}[reduce]
        return getattr(jnp, reduce)(x, 1, initial=least).astype(x.dtype)

    return [split(x, *to) for x, to in zip(found, region.outputs, strict=True)]


# --- Several devices -----------------------------------------------------------------------------

_LIES = {"row": ["rows"], "col": ["cols"], "edge": ["entries"], "shared": [], "all": []}


def _sharding(operands: Operands, results: Any, *, region: Region) -> Sharding:
    """Of a matrix that is a batch each device has its blocks, of another a run of entries."""

    def text(of: str, row: Any) -> str:
        return " ".join([*_LIES[of], *[WHOLE] * len(row.shape)])

    by_row = operands.matrix.by_row
    into = [place for place, _ in region.outputs]
    runs = by_row.order is None and region.attained is None  # XLA finds maxima of all entries
    arrays = enumerate(zip(region.reads, region.rows, strict=True))
    rule = by_matrix(
        {f"arrays.{i}": text(*each) for i, each in arrays},
        *map(text, into, region.results),
        runs=runs,
        transposed="col" in into,
        reduces=["sum" if reduce == "none" else reduce for _, reduce in region.outputs],
    )
    return rule(operands, results, region=region)


# --- The record ----------------------------------------------------------------------------------


def _flops(operands: Operands, *, region: Region) -> int:
    program = region.program
    if isinstance(program, Unsupported):
        return 0
    width = sum(
        each.width * (2 * each.params[0] if each.name == "dot" else 1)
        for each in program.instructions
        if each.name not in ("constant", "take", "concatenate")
    )
    return operands.matrix.by_row.count * (width + sum(math.prod(r.shape) for r in region.results))


region_op = define(
    Op(
        name="edge_region",
        operands=Operands,
        result=_result,
        xla=xla.edge_region,
        transpose={"arrays": _transpose},
        jvp=_jvp,
        batch=_batch,
        several=True,
        composition=cuda.composition,
        flops=_flops,
        platforms=(),
        sharding=_sharding,
    )
)

region_jvp = Linear(
    name="edge_region_jvp",
    result=_tangent_result,
    function=_tangent,
    transpose=_cotangent,
)
