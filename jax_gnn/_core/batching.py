"""Batching rules: a batch joins the features, or its matrices become one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.csr import SparseMatrix, block_diagonal, fits_block_diagonal
from jax_gnn._core.op import Bind
from jax_gnn._core.sharding import replicate, reshape


def batch_features(
    weights: Sequence[str],
    bind: Bind,
    operands: Any,
    batched: Any,
    size: int,
    *,
    per_entry: bool = False,
    shared: Sequence[str] = (),
) -> Any:
    """Batching of all primitives on features and one matrix.

    Args:
        weights: names of the operands that are ``(entries, heads)``; the others are features.
        bind: the primitive.
        operands: its operands, of which one is called ``matrix``.
        batched: which arrays of theirs are.
        size: of the batch.
        per_entry: whether a result is ``(entries, heads)``, too: the batch joins the heads.
        shared: names of operands, or of their fields, that are not batched and have no features.
    """
    if any(jax.tree.leaves(batched.matrix)):
        return disjoint_union(bind, operands, batched, size)
    # One matrix for all: the batch joins the features of each head, or the heads.
    heads = bind.attributes.get("heads", 1)
    as_heads = per_entry or any(getattr(batched, name) for name in weights)
    outer = 1 if as_heads else heads

    def fold(path: Any, value: Any, is_batched: bool) -> Any:
        if path[0].name == "matrix" or path[-1].name in shared:
            return value
        if path[0].name in weights and not as_heads:
            return value
        if not is_batched:
            value = jnp.broadcast_to(value, (size, *value.shape))
        _, rows, *features = value.shape
        width, others = math.prod(features[:1]), features[1:]
        value = reshape(value, size, rows, outer, width // outer, *others)
        return reshape(jnp.moveaxis(value, 0, 2), rows, size * width, *others)

    folded = jax.tree_util.tree_map_with_path(fold, operands, batched)
    is_vector = operands[0].ndim - batched[0] == 1  # the batch is all of its features

    def unfold(result: Array) -> Array:
        rows, width, *others = result.shape
        split = reshape(result, rows, outer, size, width // size // outer, *others)
        features = [] if is_vector else [width // size]
        return reshape(jnp.moveaxis(split, 2, 0), size, rows, *features, *others)

    result = bind(folded, **({"heads": heads * size} if as_heads else {}))
    return jax.tree.map(unfold, result)


def batch_composition(bind: Bind, operands: Any, batched: Any, size: int) -> Any:
    """Batching of a primitive by that of the primitives that it stands for."""
    del size
    axes = tuple(jax.tree.map(lambda is_batched: 0 if is_batched else None, batched))
    apart = functools.partial(bind.op.xla, **bind.attributes, implementation=bind.implementation)
    names = operands._fields
    return jax.vmap(lambda *each: apart(**dict(zip(names, each, strict=True))), axes)(*operands)


def disjoint_union(bind: Bind, operands: Any, batched: Any, size: int) -> Any:
    """Joins a batch of matrices to one without common rows, and applies a primitive to that."""
    operands = broadcast_batch(operands, batched, size)
    if size == 1:
        one = bind(jax.tree.map(lambda x: x[0], operands))
        return jax.tree.map(lambda each: each[None], one)
    if not fits_block_diagonal(
        size, *(each for each in operands if isinstance(each, SparseMatrix))
    ):
        return map_batch(bind, operands)
    joined = [
        block_diagonal(each)
        if isinstance(each, SparseMatrix)
        else jax.tree.map(lambda x: reshape(x, size * x.shape[1], *x.shape[2:]), each)
        for each in operands
    ]
    return jax.tree.map(
        lambda each: reshape(each, size, each.shape[0] // size, *each.shape[1:]),
        bind(type(operands)(*joined)),
    )


def map_batch(bind: Callable[[Any], Any], operands: Any) -> Any:
    """A batch of calls, one after the other."""
    return jax.lax.map(bind, jax.tree.map(replicate, operands))


def broadcast_batch(operands: Any, batched: Any, size: int) -> Any:
    """Return the operands, of which those arrays that are not batched are repeated."""

    def repeated(x: Array, is_batched: bool) -> Array:
        return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

    return jax.tree.map(repeated, operands, batched)
