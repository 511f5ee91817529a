"""The primitive ``edge_region``, whose derivatives and batches are regions again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.batching import broadcast_batch, map_batch
from jax_gnn._core.csr import SparseMatrix, block_diagonal, fits_block_diagonal
from jax_gnn._core.linear import Linear
from jax_gnn._core.op import Bind, Op, abstract_like, align_varying
from jax_gnn._core.sharding import UNSPLIT, Sharding, reshape
from jax_gnn._ops.edge_region import cuda, xla
from jax_gnn._ops.edge_region.region import Region, Sink
from jax_gnn._ops.edge_region.row_program import Access, Dest, Unsupported, abstract_row
from jax_gnn._ops.matrix_sharding import matrix_sharding


class Operands(NamedTuple):
    """Operands of a region.

    Attributes:
        arrays: Arrays by row, column or entry of the matrix, or shared rows.
        matrix: The sparse matrix.
    """

    arrays: tuple[Any, ...]
    matrix: SparseMatrix


class LinearizationPoint(NamedTuple):
    """Operands and results of a region at which a derivative is evaluated.

    Attributes:
        arrays: The region's arrays.
        extremes: Results of the region that are maxima or minima.
        residuals: Results by entry that gradients may read.
        matrix: The sparse matrix.
    """

    arrays: tuple[Any, ...]
    extremes: tuple[Array, ...]
    residuals: tuple[Array, ...]
    matrix: SparseMatrix


def edge_region(
    function: Callable[..., Sequence[Any]],
    arrays: Sequence[ArrayLike],
    accesses: Sequence[Access],
    outputs: Sequence[Sink],
    matrix: SparseMatrix,
    *,
    implementation: str | None = None,
) -> list[Array]:
    """Apply a function to each entry of a matrix, between gathers and reductions.

    Padding entries (ids out of range) do not count, whatever arrays hold for them.

    Args:
        function: Maps rows to a list of rows; may close over arrays, which are shared.
        arrays: The arrays of rows; a shared one is one row.
        accesses: For each array, the row that an entry reads: that of its ``"row"``, ``"col"`` or
            ``"edge"``, or ``"shared"``.
        outputs: For each result, its destination (``"row"``, ``"col"``, ``"edge"`` or ``"all"``)
            and its reduction (``"sum"``, ``"max"`` or ``"min"``; ``"none"`` for edges).
        matrix: The entries; with an ``order``, their numbers as edges.
        implementation: See :func:`jax_gnn.implementation`.

    Returns:
        For each result ``(rows, …)``, ``(columns, …)``, ``(entries, …)`` or one row. The maximum
        of no entries is -inf.
    """
    *inputs, _ = align_varying([*map(jnp.asarray, arrays), matrix.by_row.ids])
    rows = [
        abstract_like(x, abstract_row(x.shape if access == "shared" else x.shape[1:], x.dtype))
        for x, access in zip(map(jax.typeof, inputs), accesses, strict=True)
    ]
    region, consts = Region.closing(function, rows, accesses, outputs)
    operands = (*map(jnp.asarray, consts), *inputs)
    results: list[Array] = region_op(operands, matrix, region=region, implementation=implementation)
    return results


def _result_shapes(operands: Operands | LinearizationPoint, region: Region) -> list[Any]:
    matrix = operands.matrix
    sizes = {
        "row": (matrix.by_row.num_rows,),
        "col": (matrix.by_col.num_rows,),
        "edge": (matrix.by_row.count,),
        "all": (),
    }
    return [
        abstract_row((*sizes[dest], *row.shape), row.dtype)
        for row, (dest, _) in zip(region.results, region.outputs, strict=True)
    ]


def _result(operands: Operands, *, region: Region) -> list[Any]:
    cuda.start_compilers(operands.matrix, region)
    return _result_shapes(operands, region)


# --- Derivatives ---------------------------------------------------------------------------------


def _jvp(
    bind: Bind, primals: Operands, tangents: Operands
) -> tuple[list[Array], list[Array] | None]:
    has_ties = bind.attributes["region"].num_ties > 0
    region: Region = bind.attributes["region"].without_ties
    active = tuple(region.without_extremes(tangents.arrays))
    if all(tangent is None for tangent in active):
        return bind(primals), None
    with_ties = region.with_ties if region.extremes else None
    values = bind(primals, region=with_ties or region)
    results, ties = values[: len(region.outputs)], values[len(region.outputs) :]
    extremes = tuple(results[i] for i in region.extremes)
    residuals = tuple(results[i] for i in region.residuals)
    point = LinearizationPoint(tuple(primals.arrays), extremes, residuals, primals.matrix)
    out = region_jvp(point, active, region=region, implementation=bind.implementation)
    if extremes:  # the entries that attain an extreme share its tangent equally
        if with_ties is None:
            operands = Operands((*primals.arrays, *extremes), primals.matrix)
            ties = bind(operands, region=region.ties)
        for i, count in zip(region.extremes, ties, strict=True):
            out[i] = out[i] / jnp.maximum(count, 1)  # no entry attains NaN, nor a maximum of none
    return (values, [*out, *map(jnp.zeros_like, ties)]) if has_ties else (results, out)


def _transpose(
    bind: Bind, cotangents: Sequence[Array | None], operands: Operands
) -> tuple[Array | None, ...]:
    """Transpose a region in all of its undefined arrays, in which it is linear together."""
    region: Region = bind.attributes["region"]
    indices = range(len(operands.arrays))
    fixed = tuple(i for i in indices if hasattr(operands.arrays[i], "dtype"))
    linear = tuple(i for i in indices if i not in fixed)
    ct_results = _present(cotangents)
    arrays = (*(operands.arrays[i] for i in fixed), *(cotangents[i] for i in ct_results))
    results = bind(Operands(arrays, operands.matrix), region=region.transposed(linear, ct_results))
    by_argument = dict(zip(linear, results, strict=True))
    return tuple(by_argument.get(i) for i in indices)


def _present(arrays: Sequence[Array | None]) -> tuple[int, ...]:
    return tuple(i for i, array in enumerate(arrays) if array is not None)


def _tangent(
    point: LinearizationPoint, tangents: Sequence[Array | None], *, region: Region
) -> list[Array]:
    active = _present(tangents)
    arrays = (*point.arrays, *point.extremes, *(tangents[i] for i in active))
    results: list[Array] = region_op(arrays, point.matrix, region=region.tangent(active))
    return results


def _cotangent(
    point: LinearizationPoint,
    tangents: Sequence[Array | None],
    cotangents: Sequence[Array | None],
    *,
    region: Region,
) -> list[Array | None]:
    active, ct_results = _present(tangents), _present(cotangents)
    cotangent, residuals = region.cheapest_cotangent(active, ct_results)
    stored = dict(zip(region.residuals, point.residuals, strict=True))
    extra = (*(stored[i] for i in residuals), *(cotangents[i] for i in ct_results))
    results = region_op((*point.arrays, *point.extremes, *extra), point.matrix, region=cotangent)
    by_argument = dict(zip(active, results, strict=True))
    return [by_argument.get(i) for i in range(len(tangents))]


def _tangent_result(point: LinearizationPoint, tangents: object, *, region: Region) -> list[Any]:
    del tangents
    return _result_shapes(point, region)


# --- Batches -------------------------------------------------------------------------------------


def _batch(bind: Bind, operands: Operands, batched: Operands, size: int) -> list[Array]:
    region: Region = bind.attributes["region"]
    if any(jax.tree.leaves(batched.matrix)) or region.is_by_entry:
        return _batch_matrices(bind, operands, batched, size)
    # One matrix: the batch becomes the first axis of rows.
    is_batched = region.batched_arguments(batched.arrays)
    arrays = []
    for x, has_batch, needs_batch, access in zip(
        operands.arrays, batched.arrays, is_batched, region.accesses, strict=True
    ):
        if needs_batch and not has_batch:
            x = jnp.broadcast_to(x, (size, *x.shape))
        arrays.append(jnp.moveaxis(x, 0, 1) if needs_batch and access != "shared" else x)
    operands = operands._replace(arrays=tuple(arrays))
    results = bind(operands, region=region.batched(is_batched, size))
    return [
        x if dest == "all" else jnp.moveaxis(x, 1, 0)
        for x, (dest, _) in zip(results, region.outputs, strict=True)
    ]


def _batch_matrices(bind: Bind, operands: Operands, batched: Operands, size: int) -> list[Array]:
    """Batch over matrices, as one block-diagonal matrix."""
    region: Region = bind.attributes["region"]
    every = broadcast_batch(operands, batched, size)
    num_rows = operands.matrix.by_row.num_rows
    # A shared array that differs between matrices becomes one by row.
    is_by_row = [
        has_batch and access == "shared"
        for has_batch, access in zip(batched.arrays, region.accesses, strict=True)
    ]
    # Kernels have no sums by row of products of two rows, such as gradients to matrices.
    has_sums = region.is_by_entry and any(dest == "all" for dest, _ in region.outputs)
    by_row = None if has_sums else region.per_row(is_by_row)
    if by_row is None or not fits_block_diagonal(size, every.matrix):
        results: list[Array] = map_batch(bind, every)
        return results
    arrays = []
    for original, x, access, spread in zip(
        operands.arrays, every.arrays, region.accesses, is_by_row, strict=True
    ):
        if access == "shared" and not spread:
            arrays.append(original)
            continue
        if spread:
            x = jnp.broadcast_to(x[:, None], (size, num_rows, *x.shape[1:]))
        arrays.append(reshape(x, size * x.shape[1], *x.shape[2:]))
    joined = bind(Operands(tuple(arrays), block_diagonal(every.matrix)), region=by_row)

    def split(x: Array, dest: Dest, reduce: str) -> Array:
        x = reshape(x, size, x.shape[0] // size, *x.shape[1:])
        if dest != "all":
            return x
        total: Array = getattr(jnp, reduce)(x, 1, initial=xla.NEUTRAL[reduce])
        return total.astype(x.dtype)

    return [
        split(x, dest, reduce) for x, (dest, reduce) in zip(joined, region.outputs, strict=True)
    ]


# --- Several devices -----------------------------------------------------------------------------

_AXES = {"row": ["rows"], "col": ["cols"], "edge": ["entries"], "shared": [], "all": []}


def _sharding(operands: Operands, results: object, *, region: Region) -> Sharding:
    """Split blocks of a batch of matrices, or runs of entries of one matrix, over devices."""

    def axes(key: Access | Dest, row: jax.core.ShapedArray) -> str:
        return " ".join([*_AXES[key], *[UNSPLIT] * len(row.shape)])

    destinations = [dest for dest, _ in region.outputs]
    # XLA's form of a region with extremes finds them over all entries, and so it counts their ties.
    has_runs = region.masks is None and not region.num_ties and not region.has_softmax
    runs = operands.matrix.by_row.order is None and has_runs
    rule = matrix_sharding(
        {
            f"arrays.{i}": axes(access, row)
            for i, (access, row) in enumerate(zip(region.accesses, region.rows, strict=True))
        },
        *map(axes, destinations, region.results),
        runs=runs,
        transposed="col" in destinations,
        reduces=["sum" if reduce == "none" else reduce for _, reduce in region.outputs],
    )
    sharding: Sharding = rule(operands, results, region=region)
    return sharding


# --- The record ----------------------------------------------------------------------------------


def _flops(operands: Operands, *, region: Region) -> int:
    program = region.program
    if isinstance(program, Unsupported):
        return 0
    per_entry = sum(math.prod(row.shape) for row in region.results)
    per_entry += sum(
        step.width * (2 * step.params[0] if step.name == "dot" else 1)
        for step in program.instructions
        if step.name not in ("constant", "take", "concatenate")
    )
    flops: int = operands.matrix.by_row.count * per_entry
    return flops


region_op = Op(
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

region_jvp = Linear(
    name="edge_region_jvp",
    result=_tangent_result,
    function=_tangent,
    transpose=_cotangent,
)
