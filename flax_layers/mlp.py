"""Perceptrons of rows, with batch norms that leave out padding, and decoders of pairs of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, check_positive
from flax_layers.norms import NodeBatchNorm, check_mask
from jax_gnn.extend import as_array

Norm = Literal["batch_norm"]


def make_norm(num_features: int, factory: ParameterFactory) -> NodeBatchNorm:
    """Return a batch norm with PyTorch's momentum."""
    return NodeBatchNorm(
        num_features,
        momentum=0.9,
        dtype=factory.dtype,
        param_dtype=factory.param_dtype,
        rngs=factory.rngs,
    )


class MLP(LinearOptions):
    """Perceptron: linear maps, and between them batch norm, ReLU and dropout, as PyG's `MLP`.

    Attributes:
        features: Features of the input, of each hidden layer, and of the output.
        mlp_norm: "batch_norm" after each map but the last, over the rows that are no padding; None
            without.
        dropout_rate: Share of hidden activations dropped in training, in [0, 1].
        layers: The linear maps.
        norms: The batch norms.

    Example:
        >>> MLP([4, 16, 2], rngs=nnx.Rngs(0))(jnp.ones((3, 4))).shape
        (3, 2)
    """

    features: Sequence[int] = field(kw_only=False)
    mlp_norm: Norm | None = "batch_norm"
    dropout_rate: float = 0.0

    def _make_parameters(self, factory: ParameterFactory) -> None:
        if not isinstance(self.features, Sequence) or len(self.features) < 2:
            raise ValueError(
                f"features must be sizes of the input and of each layer, got {self.features!r}"
            )
        self.features = tuple(self.features)
        for number, size in enumerate(self.features):
            check_positive(**{f"features[{number}]": size})
        self.layers = nnx.List([factory.linear(*sizes) for sizes in pairwise(self.features)])
        hidden = self.features[1:-1] if self.mlp_norm else ()
        self.norms = nnx.List([make_norm(size, factory) for size in hidden])
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def __call__(
        self,
        x: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Apply the perceptron to each row.

        Args:
            x: Features, ``(rows, *batch, features[0])``.
            mask: ``(rows,)`` bool, which rows count in the statistics of batch norms, such as those
                that are no padding; None means all.
            deterministic: Whether nothing is dropped, and norms use running statistics; None leaves
                it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.

        Returns:
            ``(rows, *batch, features[-1])`` in `dtype`.

        Raises:
            ValueError: x has another number of features, or the mask another shape.
        """
        y: Any = as_array("x", x)
        if y.ndim < 2 or y.shape[-1] != self.features[0]:
            raise ValueError(f"x must be (rows, ..., {self.features[0]}), got shape {y.shape}")
        if mask is not None:
            mask = check_mask("mask", mask, y.shape[0])
        dropout = base.dropout_arguments(deterministic, rngs)
        for number, layer in enumerate(self.layers[:-1]):
            # The ReLU is part of the product's kernel unless a norm comes between.
            y = base.linear(layer, y, None if self.mlp_norm else "relu")
            if self.mlp_norm:
                norm = self.norms[number]
                y = jax.nn.relu(norm(mask, y, use_running_average=deterministic))
            y = self.dropout(y, **dropout)
        return base.linear(self.layers[-1], y)


class InnerProductDecoder(nnx.Module):
    """Decoder of edges: the score of (u, v) is ``⟨x_u, x_v⟩``, as in Kipf and Welling's GAE.

    Example:
        >>> InnerProductDecoder()(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]]))
        Array([11.], dtype=float32)
    """

    def __call__(self, src: ArrayLike, dst: ArrayLike) -> Array:
        """Return the scores, ``(*pairs,)``, of features of both ends, ``(*pairs, features)``."""
        x, y = as_array("src", src), as_array("dst", dst)
        if not x.ndim or x.shape != y.shape:
            raise ValueError(f"src and dst must be of one shape, got {x.shape} and {y.shape}")
        return (x * y).sum(-1)


class MLPDecoder(LinearOptions):
    """Decoder of edges: the score of (u, v) is an `MLP` of both ends' features, concatenated.

    Attributes:
        in_features: Features of a node, or a pair for sources and destinations.
        hidden_features: Features inside the MLP.
        mlp: The MLP, of two maps, without norm.

    Example:
        >>> decoder = MLPDecoder(4, 8, rngs=nnx.Rngs(0))
        >>> decoder(jnp.ones((3, 4)), jnp.ones((3, 4))).shape
        (3,)
    """

    in_features: int | tuple[int, int] = field(kw_only=False)
    hidden_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        features = [sum(base.endpoint_sizes(self.in_features)), self.hidden_features, 1]
        self.mlp = MLP(features, mlp_norm=None, **factory._asdict())

    def __call__(self, src: ArrayLike, dst: ArrayLike) -> Array:
        """Return the scores, ``(pairs,)``, of features of both ends, ``(pairs, in_features)``."""
        x, y = as_array("src", src), as_array("dst", dst)
        pairs, sizes = x.shape[:-1], base.endpoint_sizes(self.in_features)
        if not pairs or (x.shape, y.shape) != tuple((*pairs, size) for size in sizes):
            raise ValueError(
                f"src and dst must be (pairs, {sizes}), got shapes {x.shape} and {y.shape}"
            )
        return self.mlp(jnp.concatenate(base.promote((x, y), self.dtype), -1))[..., 0]
