"""Weights of RGAT and HGT, multiplied with each other as far as they can be without nodes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arguments import check_features
from jax_gnn._core.arrays import promoted
from jax_gnn._core.public import public
from jax_gnn._core.sharding import replicate


class RelationMaps(NamedTuple):
    """Linear maps by relation: of rows of k features, or of heads that have k features each.

    Attributes:
        kernel: ``(relations, k, heads · n)``.
        bias: ``(relations, heads · n)``, or None.
    """

    kernel: Array
    bias: Array | None = None


@public
class RGATWeights(NamedTuple):
    """Weights of RGAT, multiplied with each other as far as they can be before any node is seen.

    Attributes:
        kernel: ``(num_relations, k, heads · n)``, of the values.
        src: ``(num_relations, heads, n)``, of the values' numbers at sources.
        dst: ``(num_relations, heads, k)``, of the features' numbers at destinations.
        both: ``(num_relations, 2 · heads, k)``, of the features' numbers at destinations, and then
            at sources.

    Example:
        >>> kernel, vectors = jnp.ones((3, 4, 10)), jnp.ones((3, 2, 5))  # two heads of five
        >>> RGATWeights.of(kernel, vectors, vectors).both.shape
        (3, 4, 4)
    """

    kernel: Array
    src: Array
    dst: Array
    both: Array

    @staticmethod
    def of(kernel: ArrayLike, dst: ArrayLike, src: ArrayLike) -> RGATWeights:
        """Of the weights as the paper has them.

        Args:
            kernel: W, ``(num_relations, k, heads · n)``.
            dst: a, ``(num_relations, heads, n)``, of destinations.
            src: a', likewise of sources.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: the shapes do not fit one another.
        """
        kernel, dst, src = (
            replicate(check_features(name, x))
            for name, x in (("kernel", kernel), ("dst", dst), ("src", src))
        )
        dtype = promoted(promoted(kernel.dtype, dst.dtype), src.dtype)
        kernel, dst, src = (x.astype(dtype) for x in (kernel, dst, src))
        if kernel.ndim != 3:
            raise ValueError(
                f"kernel must be (num_relations, k, heads · n), got shape {kernel.shape}"
            )
        for name, x in (("dst", dst), ("src", src)):
            wrong = x.ndim != 3 or x.shape[0] != kernel.shape[0]
            if wrong or x.shape[1] * x.shape[2] != kernel.shape[2] or x.shape != dst.shape:
                raise ValueError(
                    f"{name} must be (num_relations, heads, n), with kernel being "
                    f"(num_relations, k, heads · n) = {kernel.shape}, got shape {x.shape}"
                )
        relations, k, _ = kernel.shape
        heads = dst.shape[1]
        by_head = kernel.reshape(relations, k, heads, -1)
        of_dst = jnp.sum(by_head * dst[:, None], -1).swapaxes(1, 2)
        # A choice in place of a stack is part of the sum, no launch of its own. What the method has
        # no use for, this or the above, is dead code.
        is_dst = (np.arange(2) == 0)[:, None, None]
        both = jnp.where(is_dst, dst[:, None], src[:, None])
        of_both = jnp.sum(by_head.swapaxes(1, 2)[:, None] * both[..., None, :], axis=-1)
        return RGATWeights(kernel, src, of_dst, of_both.reshape(relations, 2 * heads, k))


@public
class HGTWeights(NamedTuple):
    """Maps of HGT by relation, of weights that are multiplied with each other first.

    Attributes:
        key: of sources' features to what meets queries: ``(num_relations, k, heads · d)``.
        value: likewise to values.
        query: of destinations' features to what meets sources' features:
            ``(num_relations, j, heads · k)``.
        shift: likewise to what keys' biases add to a score: ``(num_relations, j, heads)``; or None.

    Example:
        >>> maps = jnp.ones((3, 2, 5, 5))  # three relations, two heads of five features
        >>> HGTWeights.of(maps, maps).key.kernel.shape
        (3, 5, 10)
    """

    key: RelationMaps
    value: RelationMaps
    query: RelationMaps
    shift: RelationMaps | None = None

    @staticmethod
    def of(attention: ArrayLike, message: ArrayLike, prior: ArrayLike | None = None) -> HGTWeights:
        """Of the weights as the paper has them; queries, keys and values are the nodes' own.

        Args:
            attention: A, ``(num_relations, heads, d, d)``.
            message: M, likewise.
            prior: μ, ``(num_relations, heads)``; None: ones.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: the shapes do not fit one another.
        """
        a, m = (
            replicate(check_features(name, x))
            for name, x in (("attention", attention), ("message", message))
        )
        if a.shape != m.shape:
            raise ValueError(
                f"attention and message must have one shape, got {a.shape} and {m.shape}"
            )
        for name, x in (("attention", a), ("message", m)):
            if x.ndim != 4 or x.shape[2] != x.shape[3]:
                raise ValueError(
                    f"{name} must be (num_relations, heads, d, d), got shape {x.shape}"
                )
        relations, heads, depth, _ = a.shape
        factor: Any = 1 / math.sqrt(max(depth, 1))
        if prior is not None:
            prior = replicate(check_features("prior", prior))
            if prior.shape != (relations, heads):
                raise ValueError(
                    f"prior must be (num_relations={relations}, heads={heads}), got shape "
                    f"{prior.shape}"
                )
            factor = (prior * jnp.asarray(factor, prior.dtype))[..., None, None]
        a = a * factor
        key, value, query = (
            RelationMaps(each.transpose(0, *axes).reshape(relations, depth, heads * depth))
            for each, axes in (
                (a, (2, 1, 3)),
                (m, (2, 1, 3)),
                (a, (3, 1, 2)),
            )
        )
        return HGTWeights(key, value, query)
