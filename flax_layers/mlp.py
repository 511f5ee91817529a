"""Perceptron of the rows of features, with batch norms that leave out padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, Literal, get_args

import jax
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._base import DropoutKeys, check_positive, check_rates, dropout_arguments, linear
from flax_layers._declaration import LinearOptions, ParameterFactory
from flax_layers.norms import NodeBatchNorm
from jax_gnn.extend import as_array, check_choice

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
        norm: "batch_norm" after each map but the last, over the rows that are no padding; None
            without.
        dropout_rate: Share of hidden activations dropped in training, in [0, 1].
        layers: The linear maps.
        norms: The batch norms.

    Example:
        >>> MLP([4, 16, 2], rngs=nnx.Rngs(0))(jnp.ones((3, 4))).shape
        (3, 2)
    """

    features: Sequence[int] = field(kw_only=False)
    norm: Norm | None = "batch_norm"
    dropout_rate: float = 0.0

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_choice("norm", self.norm, (None, *get_args(Norm)))
        check_rates(dropout_rate=self.dropout_rate)
        if not isinstance(self.features, Sequence) or len(self.features) < 2:
            raise ValueError(
                f"features must be sizes of the input and of each layer, got {self.features!r}"
            )
        self.features = tuple(self.features)
        for number, size in enumerate(self.features):
            check_positive(**{f"features[{number}]": size})
        self.layers = nnx.List([factory.linear(*sizes) for sizes in pairwise(self.features)])
        hidden = self.features[1:-1] if self.norm else ()
        self.norms = nnx.List([make_norm(size, factory) for size in hidden])
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def __call__(
        self,
        x: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        rngs: DropoutKeys = None,
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
        dropout = dropout_arguments(deterministic, rngs)
        for number, layer in enumerate(self.layers[:-1]):
            # The ReLU is part of the product's kernel unless a norm comes between.
            y = linear(layer, y, None if self.norm else "relu")
            if self.norm:
                norm = self.norms[number]
                y = jax.nn.relu(norm(mask, y, use_running_average=deterministic))
            y = self.dropout(y, **dropout)
        return linear(self.layers[-1], y)
