"""Graph autoencoders: edges as products of what an encoder makes of their ends."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._base import check_model, dropout_arguments
from jax_gnn.extend import as_array, as_ids, check_real

MAX_LOG_STD = 10.0  # as PyG has it


class GAE(nnx.Module):
    """Graph autoencoder: the score of an edge from u to v is ``⟨z_u, z_v⟩``.

    Kipf and Welling, "Variational graph auto-encoders", NeurIPS workshop 2016 (arXiv 1611.07308).
    A score is the logit of there being an edge. It has no direction.

    Attributes:
        encoder: A model that takes a graph and features of nodes, such as `GCN`.

    Example:
        >>> graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1])
        >>> model = GAE(GCN(4, 8, 2, num_layers=2, rngs=nnx.Rngs(0)))
        >>> z = model.encode(graph, jnp.ones((3, 4)), deterministic=True)
        >>> model.scores(z, jnp.array([[0, 0], [1, 2]])).shape
        (2,)
    """

    def __init__(self, encoder: Any) -> None:
        """Takes an encoder.

        Args:
            encoder: See the class.

        Raises:
            TypeError: It is no model, such as the name or the class of one.
        """
        check_model("encoder", encoder)
        self.encoder = encoder

    def encode(
        self,
        graph: Any,
        x: ArrayLike,
        *arguments: Any,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        **named: Any,
    ) -> Array:
        """What edges are scored by.

        Args:
            graph: What the encoder takes: of the edges that may be known.
            x: ``(num_nodes, in_features)``.
            *arguments: Further arguments of the encoder, such as weights of edges.
            deterministic: Switches dropout, and the noise of a `VGAE`, off (True) or on (False).
            rngs: Randomness of both.
            **named: Further arguments of the encoder, by name.

        Returns:
            ``(num_nodes, features)``.
        """
        given = arguments, named | dropout_arguments(deterministic, rngs)
        return self._encode(graph, x, *given)[0]

    def __call__(self, graph: Any, x: ArrayLike, *arguments: Any, **named: Any) -> Array:
        """The same as :meth:`encode`."""
        return self.encode(graph, x, *arguments, **named)

    def _encode(
        self, graph: Any, x: ArrayLike, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Array, Array]:
        """What edges are scored by, and a penalty of it."""
        z = self.encoder(graph, x, *arguments, **named)
        return z, jnp.zeros((), z.dtype)

    def scores(self, z: ArrayLike, edges: ArrayLike) -> Array:
        """Logits of edges.

        Args:
            z: What :meth:`encode` gives.
            edges: ``(2, num_edges)`` integers, sources first.

        Returns:
            ``(num_edges,)``.

        Raises:
            ValueError: A shape is another one.
        """
        z = check_real("z", z)
        edges = as_array("edges", edges)
        if z.ndim != 2 or edges.ndim != 2 or len(edges) != 2:
            raise ValueError(
                f"z must be (num_nodes, features) and edges (2, num_edges), got shapes {z.shape} "
                f"and {edges.shape}"
            )
        src, dst = (as_ids("edges", ids) for ids in edges)
        return (z[src] * z[dst]).sum(1)

    def loss(
        self,
        graph: Any,
        x: ArrayLike,
        edges: ArrayLike,
        negatives: ArrayLike,
        *arguments: Any,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        **named: Any,
    ) -> Array:
        """Binary cross-entropy: its mean over edges, plus its mean over pairs without one.

        Args:
            graph: See :meth:`encode`.
            x: Likewise.
            edges: ``(2, num_edges)``.
            negatives: ``(2, num_negatives)``, see `jax_gnn.datasets.negative_edges`.
            *arguments: See :meth:`encode`.
            deterministic: Likewise.
            rngs: Likewise.
            **named: Likewise.

        Returns:
            ``()``; of a `VGAE` with the divergence of its normal distributions from the standard
            one, divided by the number of nodes.
        """
        given = arguments, named | dropout_arguments(deterministic, rngs)
        z, penalty = self._encode(graph, x, *given)
        right, wrong = self.scores(z, edges), self.scores(z, negatives)
        return jax.nn.softplus(-right).mean() + jax.nn.softplus(wrong).mean() + penalty


class VGAE(GAE):
    """Variational graph autoencoder: in training ``z`` is drawn from normal distributions.

    Source as of `GAE`. The first half of the encoder's features are means, the second half
    logarithms of standard deviations, at most 10. In evaluation ``z`` is the mean.

    Example:
        >>> graph = Graph.from_edges([0, 1, 1, 2], [1, 0, 2, 1])
        >>> model = VGAE(GCN(4, 8, 4, num_layers=2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
        >>> model.encode(graph, jnp.ones((3, 4)), deterministic=True).shape
        (3, 2)
    """

    def __init__(self, encoder: Any, *, rngs: nnx.Rngs) -> None:
        """Takes an encoder.

        Args:
            encoder: See the class.
            rngs: Source of the noise, stream "dropout".

        Raises:
            TypeError: The encoder is no model.
        """
        super().__init__(encoder)
        self.deterministic = False  # which train() and eval() set
        self.rngs = rngs["dropout"].fork()

    def _encode(
        self, graph: Any, x: ArrayLike, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Array, Array]:
        y = self.encoder(graph, x, *arguments, **named)
        if y.ndim != 2 or y.shape[1] % 2:
            raise ValueError(
                "encoder must give means and deviations, (num_nodes, an even number), got shape "
                f"{y.shape}"
            )
        mean, log_std = jnp.split(y, 2, 1)
        log_std = jnp.minimum(log_std, MAX_LOG_STD)
        divergence = (mean**2 + jnp.exp(2 * log_std) - 1 - 2 * log_std).sum(1).mean() / 2
        deterministic, rngs = named["deterministic"], named["rngs"]
        if self.deterministic if deterministic is None else deterministic:
            return mean, divergence / y.shape[0]
        rngs = self.rngs if rngs is None else rngs
        key = rngs["dropout"]() if isinstance(rngs, nnx.Rngs) else rngs()
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        return mean + noise * jnp.exp(log_std), divergence / y.shape[0]
