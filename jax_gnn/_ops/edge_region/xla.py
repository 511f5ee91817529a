"""An edge region in plain ``jax.numpy``: gathers, ``jax.vmap``, and reductions by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import JAX_OPS, accumulator_dtype, as_matrix, row_wise, scatter_rows, take
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._ops.edge_region.region import ACCESS_OF, ExtremeMasks, Region, Sink
from jax_gnn._ops.edge_region.row_program import Access, Dest
from jax_gnn._ops.segment_reduce.primitive import segment_reduce

NEUTRAL = {"sum": 0, "max": -jnp.inf, "min": jnp.inf}


def edge_region(arrays: Sequence[Array], matrix: SparseMatrix, *, region: Region) -> list[Array]:
    """Return the results of a region.

    Barriers keep XLA from sharing values with another region, as under `jax.checkpoint`.
    """
    arrays = _barrier(list(arrays))
    edges = Edges(matrix)
    rows = [edges.gather(x, access) for x, access in zip(arrays, region.accesses, strict=True)]
    if region.masks is not None:
        flags = _attained(edges, region.masks, rows)
        for i, flag in zip(region.masks.arguments, flags, strict=True):
            rows[i] = flag
        region = region.masks.region
    return edges.reduced(edges.apply(region, region.accesses, rows), region.outputs)


def _barrier(arrays: list[Array]) -> list[Array]:
    results: list[Array] = jax.lax.optimization_barrier(arrays)  # type: ignore[no-untyped-call,unused-ignore]
    return results


def _attained(edges: Edges, masks: ExtremeMasks, rows: Sequence[Array]) -> list[Array]:
    """Return, for each extreme, which entries attain it."""
    source = masks.source
    values = _barrier(edges.apply(source, source.accesses, rows[: len(source.accesses)]))
    flags = []
    for i in source.extremes:
        dest, reduce = source.outputs[i]
        flags.append(
            values[i] == edges.gather(edges.reduce(values[i], dest, reduce), ACCESS_OF[dest])
        )
    return flags


class Edges:
    """Gathers to the entries of a matrix, and reductions of what they make."""

    def __init__(self, matrix: SparseMatrix) -> None:
        csr, by_col = matrix.by_row, matrix.by_col
        entries = jnp.arange(csr.count, dtype=csr.ids.dtype)
        rows, cols = (entries if ids is None else ids for ids in (csr.rows, csr.cols))
        self.count = csr.count
        self.valid = csr.valid(by_col.num_rows)
        self.order = csr.order
        self._ids = {"row": rows, "col": cols, "edge": csr.order}
        self._sizes = {"row": csr.num_rows, "col": by_col.num_rows}
        # Matrices that sum rows of entries by a kernel, where ids are sorted.
        sum_to_cols = None
        if by_col.rows is not None and by_col.order is not None:
            of_entries = Csr(None, cols, num_rows=csr.count)
            sum_to_cols = SparseMatrix(
                Csr(by_col.rows, by_col.order, num_rows=by_col.num_rows), of_entries
            )
        sum_to_rows = None if csr.rows is None else segments(csr.rows, csr.num_rows)
        self._sums = {"row": sum_to_rows, "col": sum_to_cols}

    def gather(self, x: Array, access: Access) -> Array:
        """Return the row that each entry reads; a shared row as it is."""
        return x if access == "shared" else take(x, self._ids[access])

    def apply(
        self,
        function: Callable[..., list[Array]],
        accesses: Sequence[Access],
        rows: Sequence[Array],
    ) -> list[Array]:
        """Apply a function of rows to all entries."""
        axes = [None if access == "shared" else 0 for access in accesses]
        return jax.vmap(function, axes, axis_size=self.count)(*rows)

    def reduced(self, values: Sequence[Array], outputs: Sequence[Sink]) -> list[Array]:
        """Reduce rows of entries to the results of a region."""
        results = []
        for x, (dest, reduce) in zip(values, outputs, strict=True):
            if reduce == "exp_sum":
                (scores,) = (
                    s for s, (_, kind) in zip(values, outputs, strict=True) if kind == "max"
                )
                maxima = self.reduce(scores, dest, "max")
                shift = jnp.where(jnp.isfinite(maxima), maxima, 0)
                x = x * jnp.exp(scores - self.gather(shift, ACCESS_OF[dest]))
            results.append(self.reduce(x, dest, "sum" if reduce == "exp_sum" else reduce))
        return results

    def reduce(self, x: Array, dest: Dest, reduce: str) -> Array:
        """Reduce rows of entries to a result; padding does not count."""
        if reduce.endswith("_ties"):
            (x,) = _barrier([x])  # XLA compares the same bits
            extreme = self.reduce(x, dest, reduce.removesuffix("_ties"))
            attained = x == self.gather(extreme, ACCESS_OF[dest])
            return self.reduce(attained.astype(x.dtype), dest, "sum")
        valid = row_wise(self.valid, x)
        if dest == "edge":
            x = jnp.where(valid, x, jnp.zeros_like(x))
            return x if self.order is None else self._in_order(x)
        wide = x.astype(accumulator_dtype(x.dtype))
        neutral = NEUTRAL[reduce]
        if dest == "all":
            wide = jnp.where(valid, wide, jnp.full_like(wide, neutral))
            total: Array = getattr(jnp, reduce)(wide, 0, initial=neutral)
            return total.astype(x.dtype)
        matrix = self._sums[dest]
        if matrix is None:
            ids = jnp.where(self.valid, self._ids[dest], self._sizes[dest])
            result: Array = JAX_OPS[reduce](wide, ids, self._sizes[dest])
            return result.astype(x.dtype)
        x = jnp.where(valid, x, jnp.full_like(x, neutral))
        if dest == "col" and self.order is not None:
            x = self._in_order(x)
        result = segment_reduce(as_matrix(x), None, matrix, reduce=reduce, heads=1)
        return result.reshape(-1, *x.shape[1:])

    def _in_order(self, x: Array) -> Array:
        """Return rows of entries in the order of the edges' own rows."""
        return scatter_rows(x, jnp.where(self.valid, self.order, self.count))
