"""Graph autoencoders: logits of edges are dot products of encoded nodes."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import Layer
from jax_gnn.extend import as_array, as_ids, check_real

MAX_LOG_STD = 10.0  # as in PyG


class GAE(Layer):
    """Graph autoencoder: the logit of an edge from u to v is ``⟨z_u, z_v⟩``, in either direction.

    Kipf and Welling, "Variational graph auto-encoders", NeurIPS workshop 2016 (arXiv 1611.07308).

    Attributes:
        encoder: A model that takes a graph and features of nodes, such as `GCN`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1])
        >>> model = GAE(GCN(4, 8, 2, num_layers=2, rngs=nnx.Rngs(0)))
        >>> z = model.encode(graph, jnp.ones((3, 4)), deterministic=True)
        >>> model.scores(z, jnp.array([[0, 0], [1, 2]])).shape
        (2,)
    """

    encoder: Any = field(kw_only=False)

    def __post_init__(self) -> None:
        base.check_model("encoder", self.encoder)

    def encode(
        self,
        graph: object,
        x: ArrayLike,
        *arguments: object,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
        **named: object,
    ) -> Array:
        """Return encoded nodes.

        Args:
            graph: Graph of the known edges, as the encoder takes it.
            x: Features of nodes, ``(num_nodes, in_features)``.
            *arguments: Further arguments of the encoder, such as weights of edges.
            deterministic: Switches dropout, and the noise of a `VGAE`, off (True) or on (False).
            rngs: Randomness of dropout and noise.
            **named: Further arguments of the encoder, by name.

        Returns:
            ``(num_nodes, features)``.
        """
        named |= base.dropout_arguments(deterministic, rngs)
        return self._encode(graph, x, arguments, named)[0]

    def __call__(self, graph: object, x: ArrayLike, *arguments: object, **named: Any) -> Array:
        """Return :meth:`encode`."""
        return self.encode(graph, x, *arguments, **named)

    def _encode(
        self, graph: object, x: ArrayLike, arguments: tuple[object, ...], named: dict[str, Any]
    ) -> tuple[Array, Array]:
        """Return encoded nodes, and the regulariser of the loss, a scalar."""
        z = self.encoder(graph, x, *arguments, **named)
        return z, jnp.zeros((), z.dtype)

    def scores(self, z: ArrayLike, edges: ArrayLike) -> Array:
        """Return logits of edges.

        Args:
            z: Encoded nodes, ``(num_nodes, features)``.
            edges: ``(2, num_edges)`` integers, sources first.

        Returns:
            ``(num_edges,)``.
        """
        nodes, ids = check_real("z", z), as_array("edges", edges)
        if nodes.ndim != 2 or ids.ndim != 2 or len(ids) != 2:
            raise ValueError(
                "z must be (num_nodes, features) and edges (2, num_edges), got shapes "
                f"{nodes.shape} and {ids.shape}"
            )
        src, dst = as_ids("edges", ids[0]), as_ids("edges", ids[1])
        # No matrix of all pairs is made.
        return (nodes[src] * nodes[dst]).sum(1)

    def loss(
        self,
        graph: object,
        x: ArrayLike,
        edges: ArrayLike,
        negatives: ArrayLike,
        *arguments: object,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
        **named: object,
    ) -> Array:
        """Return the binary cross-entropy: its mean over edges plus its mean over negatives.

        Args:
            graph: Graph of the known edges, as the encoder takes it.
            x: Features of nodes, ``(num_nodes, in_features)``.
            edges: ``(2, num_edges)`` integers.
            negatives: Pairs without an edge, ``(2, num_negatives)`` integers, see
                `jax_gnn.datasets.negative_edges`.
            *arguments: Further arguments of the encoder.
            deterministic: Switches dropout and noise off (True) or on (False).
            rngs: Randomness of dropout and noise.
            **named: Further arguments of the encoder, by name.

        Returns:
            ``()``; of a `VGAE` plus the divergence of its normal distributions from the standard
            one, divided by the number of nodes.
        """
        named |= base.dropout_arguments(deterministic, rngs)
        z, regularizer = self._encode(graph, x, arguments, named)
        positive_loss = jax.nn.softplus(-self.scores(z, edges)).mean()
        return positive_loss + jax.nn.softplus(self.scores(z, negatives)).mean() + regularizer


class VGAE(GAE):
    """Variational graph autoencoder: in training ``z`` is drawn from normal distributions.

    Same paper as `GAE`. The first half of the encoder's features are means, the second half
    logarithms of standard deviations, at most 10. In evaluation ``z`` is the mean.

    Example:
        >>> graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1])
        >>> model = VGAE(GCN(4, 8, 4, num_layers=2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
        >>> model.encode(graph, jnp.ones((3, 4)), deterministic=True).shape
        (3, 2)
    """

    # Not declared as fields: `rngs` is an argument, and then the stream that is forked from it.
    def __init__(self, encoder: Any, *, rngs: nnx.Rngs) -> None:
        """Make the model.

        Args:
            encoder: A model that takes a graph and features of nodes.
            rngs: Source of the noise, stream "dropout".

        Raises:
            TypeError: The encoder is no model.
        """
        super().__init__(encoder)
        self.deterministic = False  # set by train() and eval()
        self.rngs = rngs["dropout"].fork()

    def _encode(
        self, graph: object, x: ArrayLike, arguments: tuple[object, ...], named: dict[str, Any]
    ) -> tuple[Array, Array]:
        y = self.encoder(graph, x, *arguments, **named)
        if y.ndim != 2 or y.shape[1] % 2:
            raise ValueError(
                "encoder must give means and deviations, (num_nodes, an even number), got shape "
                f"{y.shape}"
            )
        mean, log_std = jnp.split(y, 2, 1)
        # Bounded, so that the exponentials below stay finite.
        log_std = jnp.minimum(log_std, MAX_LOG_STD)
        # KL divergence of N(mean, std²) from N(0, 1), a mean over nodes.
        divergence = (mean**2 + jnp.exp(2 * log_std) - 1 - 2 * log_std).sum(1).mean() / 2
        deterministic, rngs = named["deterministic"], named["rngs"]
        if self.deterministic if deterministic is None else deterministic:
            return mean, divergence / y.shape[0]
        # Reparameterised, so that gradients reach mean and deviation.
        rngs = self.rngs if rngs is None else rngs
        key = rngs["dropout"]() if isinstance(rngs, nnx.Rngs) else rngs()
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + noise * jnp.exp(log_std), divergence / y.shape[0]
