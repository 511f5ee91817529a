"""An edge region in plain ``jax.numpy``: gathers, ``jax.vmap``, and reductions by id."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import JAX_OPS, accumulator_dtype, put, spread, take
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._ops.edge_region.region import Region


def edge_region(arrays: Sequence[Array], matrix: SparseMatrix, *, region: Region) -> list[Array]:
    """The results; XLA shares nothing of it with another region, as under `jax.checkpoint`."""
    arrays = jax.lax.optimization_barrier(tuple(arrays))
    csr, num_cols = matrix.by_row, matrix.by_col.num_rows
    entries = jnp.arange(csr.count, dtype=csr.ids.dtype)
    rows = entries if csr.rows is None else csr.rows
    cols = entries if csr.cols is None else csr.cols
    ids = {"row": rows, "col": cols, "edge": csr.order}
    sizes = {"row": csr.num_rows, "col": num_cols}
    valid = csr.valid(num_cols)
    read = [
        x if by == "shared" else take(x, ids[by])
        for x, by in zip(arrays, region.reads, strict=True)
    ]
    axes = [None if by == "shared" else 0 for by in region.reads]
    made = jax.vmap(region, axes, axis_size=csr.count)(*read)

    def result(x: Array, into: str, reduce: str) -> Array:
        if into == "edge":
            x = jnp.where(spread(valid, x), x, 0)
            return x if csr.order is None else put(x, jnp.where(valid, csr.order, csr.count))
        wide = x.astype(accumulator_dtype(x.dtype))
        if into == "all":
            least = {"sum": 0, "max": -jnp.inf, "min": jnp.inf}[reduce]
            wide = jnp.where(spread(valid, x), wide, least)
            return getattr(jnp, reduce)(wide, 0, initial=least).astype(x.dtype)
        into_ids = jnp.where(valid, ids[into], sizes[into])
        return JAX_OPS[reduce](wide, into_ids, sizes[into]).astype(x.dtype)

    return [result(x, *to) for x, to in zip(made, region.outputs, strict=True)]
