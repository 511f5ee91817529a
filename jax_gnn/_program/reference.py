"""A program as plain JAX: each function under ``jax.vmap``, gathers, and ``jax.ops.segment_…``.

What tests compare with, and what to step through in a debugger: nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.op import align_varying
from jax_gnn._program.maps import Maps
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Given,
    Place,
    Pull,
    Push,
    Row,
    Softmax,
    in_order,
)
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Space


def evaluate(results: Sequence[Row], maps: Maps, given: Sequence[Any], sides: Sides) -> list[Array]:
    """The results of a program that no pass has touched.

    Args:
        results: The program.
        maps: The graph.
        given: The arguments and what is closed over.
        sides: Which nodes rows are of.
    """
    num_dst, edges = maps.parts.num_dst, maps.parts.rows[Space.EDGE]
    valid = maps.edge_ids("dst") >= 0
    into = jnp.where(valid, maps.edge_ids("dst"), num_dst)
    found: dict[Row, Array] = {}

    def spread(row: Row) -> Array:
        """An edge's row, or a shared one at each edge."""
        value = found[row]
        return jnp.broadcast_to(value, (edges, *row.shape)) if _shared(row) else value

    def at(x: Array, ids: Array) -> Array:
        """Padding, which comes last, reads what the first edge reads."""
        if is_empty(x) or is_empty(ids):
            return jnp.zeros((*ids.shape, *x.shape[1:]), x.dtype)
        return x[jnp.where(ids >= 0, ids, jnp.maximum(ids[:1], 0))]

    def pulled(row: Row, way: str) -> Array:
        x = found[row.operands[0]]
        if way == "type":
            return x[jnp.minimum(maps.type_of_nodes(sides.of(row)), len(x) - 1)]
        if way.endswith("_type"):
            end = way.removesuffix("_type")
            return at(x[jnp.minimum(maps.type_of_nodes(end), len(x) - 1)], maps.edge_ids(end))
        return at(x, maps.edge_ids(way))

    def pushed(row: Row, reduce: str) -> Array:
        x = spread(row.operands[0])
        if reduce in ("max", "min"):
            return getattr(jax.ops, f"segment_{reduce}")(x, into, num_dst)
        total = jax.ops.segment_sum(x, into, num_dst)
        if reduce == "sum":
            return total
        counts = jax.ops.segment_sum(valid.astype(x.dtype), into, num_dst)
        return total / jnp.maximum(counts, 1).reshape(-1, *[1] * (x.ndim - 1))

    def softmax(row: Row) -> Array:
        x = spread(row.operands[0])
        top = jax.ops.segment_max(jax.lax.stop_gradient(x), into, num_dst)
        top = jnp.where(jnp.isfinite(top), top, 0)
        exp = jnp.exp(x - top[jnp.minimum(into, num_dst - 1)]) if num_dst else x
        exp = jnp.where(valid.reshape(-1, *[1] * (x.ndim - 1)), exp, 0)
        sums = jax.ops.segment_sum(exp, into, num_dst)
        sums = jnp.where(sums == 0, 1, sums)
        return exp / sums[jnp.minimum(into, num_dst - 1)] if num_dst else x

    for row in in_order(results):
        match row.op:
            case Given(index=index):
                value = jnp.asarray(given[index])
                if row.space is Space.EDGE and not is_empty(value):
                    value = jnp.where(valid.reshape(-1, *[1] * (value.ndim - 1)), value, value[:1])
            case Constant(value=value):
                value = jnp.asarray(value)
            case Place():
                value = jnp.arange(edges, dtype=row.dtype)
            case Pull(way=way):
                value = pulled(row, way)
            case Push(reduce=reduce):
                value = pushed(row, reduce)
            case Softmax():
                value = softmax(row)
            case Apply():
                value = each_row(row, [found[each] for each in row.operands])[row.op.index]
            case _:
                raise AssertionError(row.op)
        found[row] = value
    return [finished(row, found[row], maps) for row in results]


def each_row(row: Row, operands: Sequence[Array]) -> Sequence[Array]:
    """All results of a function of all rows."""
    assert isinstance(row.op, Apply)
    operands = align_varying(operands)  # inside of jax.shard_map a count varies as its graph does
    if _shared(row):
        return row.op.function(*operands)
    axes = [None if _shared(each) else 0 for each in row.operands]
    return jax.vmap(row.op.function, axes)(*operands)


def is_empty(x: Array) -> bool:
    """Whether there are no rows; of symbolic sizes there are."""
    size = x.shape[0]
    return not jax.export.is_symbolic_dim(size) and size == 0


def finished(row: Row, value: Array, maps: Maps) -> Array:
    """A result, zeros for edges that are padding."""
    if row.space is not Space.EDGE:
        return value
    valid = maps.counted(Space.EDGE)
    assert valid is not None
    return jnp.where(valid.reshape(-1, *[1] * len(row.shape)), value, jnp.zeros((), value.dtype))


def _shared(row: Row) -> bool:
    return row.space is Space.SHARED
