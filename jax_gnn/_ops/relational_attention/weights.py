"""Weights of RGAT and HGT: products of weights that do not depend on nodes."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.arguments import check_features, check_shape
from jax_gnn._core.arrays import promoted
from jax_gnn._core.public import public
from jax_gnn._core.sharding import replicate


@public
class RelationMaps(NamedTuple):
    """Linear maps by relation: of rows of k features, or of heads with k features each.

    Attributes:
        kernel: ``(relations, k, heads · n)`` weights.
        bias: ``(relations, heads · n)``, or None.

    Example:
        >>> RelationMaps(jnp.ones((3, 4, 10)), jnp.zeros((3, 10))).kernel.shape
        (3, 4, 10)
    """

    kernel: Array
    bias: Array | None = None


@public
class RGATWeights(NamedTuple):
    """Weights of RGAT, multiplied with each other where the product does not depend on nodes.

    Attributes:
        kernel: ``(num_relations, k, heads · n)`` weights of the values.
        src: ``(num_relations, heads, n)`` vectors of values at sources.
        dst: ``(num_relations, heads, k)`` vectors of features at destinations.
        vectors: ``(num_relations, 2 · heads, k)`` vectors of features at destinations, then at
            sources.

    Example:
        >>> kernel, vectors = jnp.ones((3, 4, 10)), jnp.ones((3, 2, 5))  # two heads of five
        >>> RGATWeights.of(kernel, vectors, vectors).vectors.shape
        (3, 4, 4)
    """

    kernel: Array
    src: Array
    dst: Array
    vectors: Array

    @staticmethod
    def of(kernel: ArrayLike, dst: ArrayLike, src: ArrayLike) -> RGATWeights:
        """Return the products of the paper's weights.

        Args:
            kernel: W, ``(num_relations, k, heads · n)``.
            dst: a, ``(num_relations, heads, n)`` vectors of destinations.
            src: a', ``(num_relations, heads, n)`` vectors of sources.

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
        check_shape("kernel", kernel, "(num_relations, k, heads · n)", None, None, None)
        for name, x in (("dst", dst), ("src", src)):
            has_relations = x.ndim == 3 and x.shape[0] == kernel.shape[0]
            if (
                not has_relations
                or x.shape[1] * x.shape[2] != kernel.shape[2]
                or x.shape != dst.shape
            ):
                raise ValueError(
                    f"{name} must be (num_relations, heads, n), with kernel being "
                    f"(num_relations, k, heads · n) = {kernel.shape}, got shape {x.shape}"
                )
        relations, k, _ = kernel.shape
        heads = dst.shape[1]
        by_head = kernel.reshape(relations, k, heads, -1)
        dst_products = jnp.sum(by_head * dst[:, None], -1).swapaxes(1, 2)
        # XLA fuses this choice into the sum, which it would not do with a stack. The products that
        # a method does not use are dead code.
        is_dst = (np.arange(2) == 0)[:, None, None]
        vectors = jnp.where(is_dst, dst[:, None], src[:, None])
        products = jnp.sum(by_head.swapaxes(1, 2)[:, None] * vectors[..., None, :], axis=-1)
        return RGATWeights(kernel, src, dst_products, products.reshape(relations, 2 * heads, k))


@public
class HGTWeights(NamedTuple):
    """Maps of HGT by relation: products of its weights.

    Attributes:
        key: map of sources' features to keys, ``(num_relations, k, heads · d)``.
        value: map of sources' features to values, ``(num_relations, k, heads · d)``.
        query: map of destinations' features to queries that meet sources' features,
            ``(num_relations, j, heads · k)``.
        shift: map of destinations' features to the term of keys' biases in a score,
            ``(num_relations, j, heads)``; or None.

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
        """Return the maps of the paper's weights, for queries, keys and values of nodes.

        Args:
            attention: A, ``(num_relations, heads, d, d)``.
            message: M, ``(num_relations, heads, d, d)``.
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
        factor: Array | float = 1 / math.sqrt(max(depth, 1))
        if prior is not None:
            prior = replicate(check_features("prior", prior))
            axes = f"(num_relations={relations}, heads={heads})"
            check_shape("prior", prior, axes, relations, heads)
            factor = (prior * jnp.asarray(factor, prior.dtype))[..., None, None]
        a = a * factor
        key, value, query = (
            RelationMaps(maps.transpose(0, *axes).reshape(relations, depth, heads * depth))
            for maps, axes in ((a, (2, 1, 3)), (m, (2, 1, 3)), (a, (3, 1, 2)))
        )
        return HGTWeights(key, value, query)
