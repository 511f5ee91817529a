"""The (node, relation) pairs of traced edges; pairs of destinations by a kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.csr import inverse_permutation
from jax_gnn._core.ids import PADDING, in_range, row_starts
from jax_gnn._core.op import Call, Op
from jax_gnn._ops.segment_order.primitive import sorted_ids


class TypedRows(NamedTuple):
    """Operands of ``relation_pairs``: edges by row, then relation, padding (row -1) last."""

    rows: Any  # (edges,), the row of each edge
    types: Any  # (edges,), the relation of each edge


def _result(operands: TypedRows, *, num_relations: int, num_pairs: int) -> list[Any]:
    num_edges, dtype = operands.rows.shape[0], operands.rows.dtype
    sizes = num_pairs, num_relations, *[num_pairs] * 3, num_pairs + 1, num_edges
    return [jax.ShapeDtypeStruct((size,), dtype) for size in sizes]


def _xla(rows: Array, types: Array, *, num_relations: int, num_pairs: int) -> list[Array]:
    """Return the arrays of `Pairs`, the first edge of each pair, and the pair of each edge."""
    count, dtype = rows.shape[0], rows.dtype
    valid = rows >= 0
    number, first = number_runs(valid, rows, types)
    indptr = row_starts(jnp.where(valid, number, count), count)[: num_pairs + 1]
    types = jnp.where(in_range(types, num_relations), types, num_relations).astype(dtype)
    sorted_nodes = scatter_values(first, rows, PADDING)[:num_pairs]
    relations = scatter_values(first, types, num_relations)[:num_pairs]
    places = sorted_ids(relations, num_relations)[1]
    sizes = relation_sizes(relations, num_relations)
    pairs = sorted_nodes[places], sizes, sorted_nodes, inverse_permutation(places), places
    pair_ids = jnp.where(valid, number, PADDING)
    return [ids.astype(dtype) for ids in (*pairs, indptr, pair_ids)]


def _call(platform: str, operands: TypedRows, *, num_relations: int, num_pairs: int) -> Call | None:
    rows, types = operands
    sizes = rows.shape[0], num_relations, num_pairs + 1
    if rows.dtype != types.dtype or num_relations > _MAX_RELATIONS:
        return None
    if any(map(jax.export.is_symbolic_dim, sizes)):
        return None
    # The size is that of relation_pairs_scratch in C++.
    size = 2 * (num_relations + 2) * -(-max(sizes) // _TILE) + 1
    return Call([rows, types], workspaces=[jax.ShapeDtypeStruct((size,), rows.dtype)])


_TILE = 256  # edges of a block of the kernel
_MAX_RELATIONS = 1024  # each tile counts the edges of all relations


relation_pairs = Op(
    name="relation_pairs",
    operands=TypedRows,
    result=_result,
    xla=_xla,
    platforms=("cuda",),
    call=_call,
    several=True,
)


# --- In plain JAX --------------------------------------------------------------------------------


def number_runs(valid: Array, *keys: Array) -> tuple[Array, Array]:
    """Return the number of each element's run of equal keys; and the same, -1 after the first."""
    change = [key != jnp.roll(key, 1) for key in keys]
    new = valid & (change[0] | change[1] | (jnp.arange(valid.shape[0]) == 0))
    number = jnp.cumsum(new, dtype=keys[0].dtype) - 1
    return number, jnp.where(new, number, PADDING)


def scatter_values(places: Array, values: Array, fill: int) -> Array:
    """Write values to their places, which differ; a place of -1 drops the value."""
    places = jnp.where(places == PADDING, values.shape[0], places)
    return jnp.full_like(values, fill).at[places].set(values, mode="drop")


def relation_sizes(rel: Array, num_relations: int) -> Array:
    """Return the number of elements of each relation."""
    return jnp.zeros(num_relations, rel.dtype).at[rel].add(1, mode="drop")
