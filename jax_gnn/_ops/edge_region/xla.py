"""An edge region in plain ``jax.numpy``: gathers, ``jax.vmap``, and reductions by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import JAX_OPS, accumulator_dtype, as_matrix, row_wise, scatter_rows, take
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._ops.edge_region.region import READ, Attained, Region
from jax_gnn._ops.edge_region.row_program import Into, Read
from jax_gnn._ops.segment_reduce.primitive import segment_reduce


def edge_region(arrays: Sequence[Array], matrix: SparseMatrix, *, region: Region) -> list[Array]:
    """The results; XLA shares nothing of it with another region, as under `jax.checkpoint`."""
    arrays = jax.lax.optimization_barrier(tuple(arrays))
    edges = Edges(matrix)
    read = [edges.read(x, by) for x, by in zip(arrays, region.reads, strict=True)]
    if region.attained is not None:
        masks = _masks(edges, region.attained, read)
        for place, mask in zip(region.attained.places, masks, strict=True):
            read[place] = mask
        region = region.attained.region
    made = edges.applied(region, region.reads, read)
    return [edges.reduced(x, *to) for x, to in zip(made, region.outputs, strict=True)]


def _masks(edges: Edges, attained: Attained, read: Sequence[Array]) -> list[Array]:
    """Which entries attain maxima, of rows that entries have read."""
    of = attained.of
    made = jax.lax.optimization_barrier(edges.applied(of, of.reads, read[: len(of.reads)]))
    found = []
    for i in of.extremes:
        into, reduce = of.outputs[i]
        found.append(made[i] == edges.read(edges.reduced(made[i], into, reduce), READ[into]))
    return found


class Edges:
    """What entries of a matrix read, and where what they make goes."""

    def __init__(self, matrix: SparseMatrix) -> None:
        csr, num_cols = matrix.by_row, matrix.by_col.num_rows
        entries = jnp.arange(csr.count, dtype=csr.ids.dtype)
        rows, cols = (entries if ids is None else ids for ids in (csr.rows, csr.cols))
        self.count = csr.count
        self.valid = csr.valid(num_cols)
        self.order = csr.order
        self._ids = {"row": rows, "col": cols, "edge": csr.order}
        self._sizes = {"row": csr.num_rows, "col": num_cols}
        by_col = matrix.by_col
        at_col = None
        if by_col.rows is not None and by_col.order is not None:
            of_edges = Csr(None, cols, num_rows=csr.count)
            at_col = SparseMatrix(Csr(by_col.rows, by_col.order, num_rows=num_cols), of_edges)
        at_row = None if csr.rows is None else segments(csr.rows, csr.num_rows)
        self._at = {"row": at_row, "col": at_col}  # what sums rows of edges

    def read(self, x: Array, by: Read) -> Array:
        """The row of each entry; a shared one as it is."""
        return x if by == "shared" else take(x, self._ids[by])

    def applied(
        self, function: Callable[..., list[Array]], reads: Sequence[Read], read: Sequence[Array]
    ) -> list[Array]:
        """What a function of rows makes of each entry."""
        axes = [None if by == "shared" else 0 for by in reads]
        return jax.vmap(function, axes, axis_size=self.count)(*read)

    def reduced(self, x: Array, into: Into, reduce: str) -> Array:
        """A result of rows of entries."""
        if into == "edge":
            x = jnp.where(row_wise(self.valid, x), x, jnp.zeros_like(x))
            if self.order is None:
                return x
            return scatter_rows(x, jnp.where(self.valid, self.order, self.count))
        wide = x.astype(accumulator_dtype(x.dtype))
        least = {"sum": 0, "max": -jnp.inf, "min": jnp.inf}[reduce]
        if into == "all":
            wide = jnp.where(row_wise(self.valid, x), wide, jnp.full_like(wide, least))
            return getattr(jnp, reduce)(wide, 0, initial=least).astype(x.dtype)
        at = self._at[into]
        if at is not None:  # by a kernel, if there is one
            x = jnp.where(row_wise(self.valid, x), x, jnp.full_like(x, least))
            if into == "col" and self.order is not None:
                x = scatter_rows(x, jnp.where(self.valid, self.order, self.count))
            found = segment_reduce(as_matrix(x), None, at, reduce=reduce, heads=1)
            return found.reshape(-1, *x.shape[1:])
        ids = jnp.where(self.valid, self._ids[into], self._sizes[into])
        return JAX_OPS[reduce](wide, ids, self._sizes[into]).astype(x.dtype)
