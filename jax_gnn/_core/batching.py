"""Batching rules: a batch joins the features, or its matrices become one matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.csr import SparseMatrix, block_diagonal, fits_block_diagonal
from jax_gnn._core.op import Bind
from jax_gnn._core.sharding import replicate, reshape
from jax_gnn._core.types import PyTree


def batch_features(
    # Names of the operands that are (entries, heads); the others are features.
    weights: Sequence[str],
    bind: Bind,  # the primitive
    operands: PyTree,  # its operands; the name of the matrix is `matrix`
    batched: PyTree,  # for each array of the operands, whether it is batched
    size: int,  # of the batch
    *,
    per_entry: bool = False,  # whether a result is (entries, heads), too: the batch joins the heads
    # Names of operands, or of their fields, that are not batched and have no features.
    shared: Sequence[str] = (),
) -> Any:
    """Apply a primitive on features and one matrix to a batch."""
    if any(jax.tree.leaves(batched.matrix)):
        return disjoint_union(bind, operands, batched, size)
    # All share one matrix: the batch joins the features of each head, or the heads.
    heads = bind.attributes.get("heads", 1)
    as_heads = per_entry or any(getattr(batched, name) for name in weights)
    outer = 1 if as_heads else heads

    def fold(path: Any, value: Array, is_batched: bool) -> Any:
        if path[0].name == "matrix" or path[-1].name in shared:
            return value
        if path[0].name in weights and not as_heads:
            return value
        if not is_batched:
            value = jnp.broadcast_to(value, (size, *value.shape))
        # (batch, rows, outer, width, …) becomes (rows, outer · batch · width, …).
        _, rows, *features = value.shape
        width, inner = math.prod(features[:1]), features[1:]
        value = reshape(value, size, rows, outer, width // outer, *inner)
        return reshape(jnp.moveaxis(value, 0, 2), rows, size * width, *inner)

    folded = jax.tree_util.tree_map_with_path(fold, operands, batched)
    is_vector = operands[0].ndim - batched[0] == 1  # it has no features but the batch

    def unfold(result: Array) -> Array:
        rows, width, *inner = result.shape
        split = reshape(result, rows, outer, size, width // size // outer, *inner)
        features = [] if is_vector else [width // size]
        return reshape(jnp.moveaxis(split, 2, 0), size, rows, *features, *inner)

    result = bind(folded, **({"heads": heads * size} if as_heads else {}))
    return jax.tree.map(unfold, result)


def disjoint_union(bind: Bind, operands: PyTree, batched: PyTree, size: int) -> Any:
    """Apply a primitive to the block-diagonal matrix of a batch of matrices."""
    operands = broadcast_batch(operands, batched, size)
    if size == 1:
        result = bind(jax.tree.map(lambda x: x[0], operands))
        return jax.tree.map(lambda x: x[None], result)
    if not fits_block_diagonal(size, *(x for x in operands if isinstance(x, SparseMatrix))):
        return map_batch(bind, operands)

    # Rows of one element of the batch follow those of another, as blocks of the matrix do.
    def join(x: Array) -> Array:
        return reshape(x, size * x.shape[1], *x.shape[2:])

    joined = [
        block_diagonal(operand)
        if isinstance(operand, SparseMatrix)
        else jax.tree.map(join, operand)
        for operand in operands
    ]
    results = bind(type(operands)(*joined))
    return jax.tree.map(lambda y: reshape(y, size, y.shape[0] // size, *y.shape[1:]), results)


def map_batch(bind: Callable[[Any], Any], operands: PyTree) -> Any:
    """Apply a primitive to each element of a batch in turn."""
    return jax.lax.map(bind, jax.tree.map(replicate, operands))


def broadcast_batch(operands: PyTree, batched: PyTree, size: int) -> Any:
    """Return the operands, with arrays that are not batched repeated along a first axis."""

    def repeat(x: Array, is_batched: bool) -> Array:
        return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

    return jax.tree.map(repeat, operands, batched)
