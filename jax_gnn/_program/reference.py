"""The reference of a program: ``jax.vmap`` of each function, gathers, and ``jax.ops.segment_…``.

Tests compare with it, and it can be stepped through in a debugger: nothing is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.sharding import is_explicit, replicate
from jax_gnn._program.matrices import Matrices
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Index,
    Input,
    Pull,
    Push,
    Row,
    Softmax,
    topological_order,
)
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Space

ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp
    clz complex conj convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp
    exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite le lgamma log log1p logistic lt
    max min mul name ne neg nextafter not or population_count pow real reduce_precision rem
    round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt
    square stop_gradient sub tan tanh xor
    """.split()  # noqa: SIM905 (a list would take a line for each name)
)


def evaluate(
    results: Sequence[Row], matrices: Matrices, inputs: Sequence[ArrayLike], sides: Sides
) -> list[Array]:
    """Return the results of a program to which no pass was applied.

    Args:
        results: The program.
        matrices: The graph.
        inputs: The arguments and the arrays that the program closes over.
        sides: Sides of nodes' rows.
    """
    rows = matrices.parts.rows
    valid = matrices.edge_ids("dst") >= 0
    arrays: dict[Row, Array] = {}

    def reduced(row: Row, way: str) -> tuple[Array, Array, int]:
        """Return what is reduced, into which row each goes, and the number of these."""
        (operand,) = row.operands
        if way == "graph":
            ids, size, count = matrices.graph_ids, rows[Space.GRAPH], rows[Space.NODE]
        else:
            size, count = matrices.size(Space.NODE, way), rows[Space.EDGE]
            ids = jnp.where(valid, matrices.edge_ids(way), size)
        x = arrays[operand]
        x = jnp.broadcast_to(x, (count, *operand.shape)) if operand.is_shared else x
        return x, ids, size

    def gather(x: Array, ids: Array) -> Array:
        """Gather rows; padding, which comes last, reads what the first edge reads."""
        if is_empty(x) or is_empty(ids):
            return jnp.zeros((*ids.shape, *x.shape[1:]), x.dtype)
        return x[jnp.where(ids >= 0, ids, jnp.maximum(ids[:1], 0))]

    def pull(row: Row, way: str) -> Array:
        x = arrays[row.operands[0]]
        if way == "type":
            return x[jnp.minimum(matrices.type_of_nodes(sides.of(row)), len(x) - 1)]
        if way == "graph":
            is_node = spread(matrices.graph_ids < len(x), x)
            return jnp.where(is_node, gather(x, matrices.graph_ids), jax.lax.stop_gradient(x[:1]))
        if way.endswith("_type"):
            side = way.removesuffix("_type")
            types = jnp.minimum(matrices.type_of_nodes(side), len(x) - 1)
            return gather(x[types], matrices.edge_ids(side))
        return gather(x, matrices.edge_ids(way))

    def push(row: Row, reduce: str, way: str) -> Array:
        x, ids, size = reduced(row, way)
        if reduce in ("max", "min"):
            extreme: Array = getattr(jax.ops, f"segment_{reduce}")(x, ids, size)
            return extreme
        total = jax.ops.segment_sum(x, ids, size)
        if reduce == "sum":
            return total
        counts = jax.ops.segment_sum(jnp.ones(len(x), x.dtype), ids, size)
        return total / jnp.maximum(spread(counts, total), 1)

    def softmax(row: Row, way: str) -> Array:
        x, ids, size = reduced(row, way)
        maxima = jax.ops.segment_max(jax.lax.stop_gradient(x), ids, size)
        maxima = jnp.where(jnp.isfinite(maxima), maxima, 0)
        is_reduced = spread(ids < size, x)
        below = x - maxima[jnp.minimum(ids, size - 1)] if size else x
        exp = jnp.where(is_reduced, jnp.exp(jnp.where(is_reduced, below, 0)), 0)
        sums = jax.ops.segment_sum(exp, ids, size)
        sums = jnp.where(sums == 0, 1, sums)
        return exp / sums[jnp.minimum(ids, size - 1)] if size else x

    for row in topological_order(results):
        match row.op:
            case Input(index=index):
                value = jnp.asarray(inputs[index])
                if row.space is Space.EDGE and not is_empty(value):
                    value = jnp.where(spread(valid, value), value, value[:1])
            case Constant(value=number):
                value = jnp.asarray(number)
            case Index():
                value = jnp.arange(rows[Space.EDGE], dtype=row.dtype)
            case Pull(way=way):
                value = pull(row, way)
            case Push(reduce=reduce, way=way):
                value = push(row, reduce, way)
            case Softmax(way=way):
                value = softmax(row, way)
            case Apply():
                operands = [arrays[operand] for operand in row.operands]
                value = apply_to_rows(row, operands)[row.op.index]
            case _:
                raise AssertionError(row.op)
        arrays[row] = value
    return [without_padding(row, arrays[row], matrices) for row in results]


def apply_to_rows(row: Row, operands: Sequence[Array]) -> Sequence[Array]:
    """Apply a function to all rows; returns all of its results."""
    assert isinstance(row.op, Apply)
    operands = row.op.align(operands)  # inside `jax.shard_map`, a count varies as its graph does
    if row.is_shared:
        return row.op.function(*operands)
    axes = [None if operand.is_shared else 0 for operand in row.operands]
    mapped = [jax.typeof(x) for x, axis in zip(operands, axes, strict=True) if axis == 0]
    if is_explicit(mapped) and len({x.sharding.spec[:1] for x in mapped}) > 1:
        operands = [
            x if axis is None else replicate(x, 1) for x, axis in zip(operands, axes, strict=True)
        ]
    is_primitive = row.op.params is not None and isinstance(row.op.key, tuple)
    kind = row.op.key[0] if is_primitive else None  # type: ignore[index]
    is_alike = len({(x.is_shared, x.shape) for x in row.operands}) == 1
    if kind in ELEMENTWISE and is_alike and not is_explicit(mapped):
        return row.op.function(*operands)  # as by jax.vmap, which takes longer to trace
    return jax.vmap(row.op.function, axes)(*operands)


def is_empty(x: Array) -> bool:
    """Whether there are no rows; symbolic sizes count as positive."""
    size: Any = x.shape[0]
    return not jax.export.is_symbolic_dim(size) and size == 0


def without_padding(row: Row, value: Array, matrices: Matrices) -> Array:
    """Return a result, zero at padding edges."""
    if row.space is not Space.EDGE:
        return value
    valid = matrices.counted(Space.EDGE)
    if valid is None:
        return value
    return jnp.where(spread(valid, value), value, jnp.zeros((), value.dtype))


def spread(mask: Array, x: Array) -> Array:
    """Return a value per row with axes of size 1, to broadcast against rows."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))
