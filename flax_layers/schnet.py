"""SchNet: energies of molecules from atomic numbers and positions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import ParameterFactory
from flax_layers.norms import check_nodes
from flax_layers.point_layers import CFConv, shifted_softplus
from flax_layers.readout import Readout, _Classifier, readout
from jax_gnn import Batch, Graph, Node, program
from jax_gnn.extend import accumulator_dtype

MAX_ATOMIC_NUMBER = 99


@program
def edge_lengths(g: Any, pos: Node) -> Any:
    """Return the distance between the ends of each edge; at equal positions, the gradient is 0."""
    square = jnp.sum((g.src(pos) - g.dst(pos)) ** 2)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


class SchNet(_Classifier):
    """SchNet: atoms are embedded, interact by `CFConv`, and add up their energies.

    Schütt et al., "SchNet: a continuous-filter convolutional neural network for modeling quantum
    interactions", NeurIPS 2017, as PyTorch Geometric's model of this name. The graph has an edge
    for each ordered pair of atoms within the cutoff, as `jax_gnn.transforms.radius_graph` makes it.

    Attributes:
        in_features: Features per node: an atomic number, 0 for padding, and the position; 4.
        hidden_features: Features per atom.
        out_features: Numbers per molecule.
        num_layers: Number of interactions.
        num_filters: Number of filters of each interaction.
        num_gaussians: Number of Gaussians of the distance, evenly from 0 to the cutoff.
        cutoff: Largest distance of atoms that interact.
        graph_reduce: Reduction over atoms: "sum", "mean" or "max".
        dropout_rate: Share of the atoms' last hidden features dropped in training, in [0, 1].
        embedding: Features by atomic number, ``(100, hidden_features)``.
        convs: The convolutions; maps are the linear maps after them.
        hidden: Map to half of the features, before the last one, `output`.

    Example:
        >>> water = Graph.from_edges([0, 1, 0, 2], [1, 0, 2, 0], num_nodes=3)
        >>> atoms = jnp.array([[8, 0, 0, 0], [1, 0.76, 0.59, 0], [1, -0.76, 0.59, 0.0]])
        >>> model = SchNet(4, 16, 1, num_layers=2, rngs=nnx.Rngs(0))
        >>> model(batch([water]), atoms).shape, model.forces(batch([water]), atoms).shape
        ((1, 1), (3, 3))
    """

    num_layers: int = 6
    num_filters: int = 128
    num_gaussians: int = 50
    cutoff: float = 10.0
    graph_reduce: Readout = "sum"
    dropout_rate: float = 0.0

    def _make_parameters(self, factory: ParameterFactory) -> None:
        if self.in_features != 4:
            got = f"got {self.in_features}"
            raise ValueError(f"in_features must be 4, a number and a position, {got}")
        if self.num_gaussians < 2:
            raise ValueError(f"num_gaussians must be 2 or more, got {self.num_gaussians}")
        if self.cutoff <= 0:
            raise ValueError(f"cutoff must be a positive number, got {self.cutoff}")
        width, half = self.hidden_features, max(self.hidden_features // 2, 1)
        shape = MAX_ATOMIC_NUMBER + 1, width
        self.embedding = factory.kernel(*shape, init=nnx.initializers.normal(1.0))
        filters: Any = {"edge_in_features": self.num_gaussians, "mlp_features": self.num_filters}
        filters |= {"cutoff": float(self.cutoff), **factory._asdict()}
        self.convs = nnx.List([CFConv(width, width, **filters) for _ in range(self.num_layers)])
        self.maps = nnx.List([factory.linear(width, width) for _ in self.convs])
        self.hidden = factory.linear(width, half)
        self.output = factory.linear(half, self.out_features)
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def _classify(self, batch: Batch[Graph], x: Array, *edges: ArrayLike, **dropout: Any) -> Array:
        del edges
        numbers, embedding = x[:, :1], self.embedding[...]
        dtype = jnp.promote_types(x.dtype, embedding.dtype)
        # Distances keep 32 bits beside half types.
        distance = edge_lengths(batch.graph, x[:, 1:].astype(accumulator_dtype(dtype)))
        centres = np.linspace(0, self.cutoff, self.num_gaussians).astype(np.float32)
        scale = -0.5 / float(centres[1] - centres[0]) ** 2
        offsets = distance[:, None] - centres[None].astype(distance.dtype)
        basis = jnp.exp(scale * offsets**2).astype(dtype)
        is_element = (numbers >= 1) & (numbers <= MAX_ATOMIC_NUMBER)
        rows = embedding[jnp.where(is_element, numbers, 0)[:, 0].astype(jnp.int32)]
        # Other numbers than those of elements and padding show as NaN.
        h = jnp.where(is_element, rows, jnp.where(numbers == 0, 0, jnp.nan)).astype(dtype)
        for conv, last in zip(self.convs, self.maps, strict=True):
            y = conv(batch.graph, h, basis, distance=distance)
            h = h + base.linear(last, shifted_softplus(y))
        hidden = shifted_softplus(base.linear(self.hidden, h))
        y = base.linear(self.output, self.dropout(hidden, **dropout))
        return readout(batch, y, self.graph_reduce)

    def forces(self, batch: Batch[Graph], x: ArrayLike) -> Array:
        """Return the negative gradient of the molecules' numbers to the positions of atoms.

        Args:
            batch: The molecules.
            x: Atomic numbers and positions, ``(num_nodes, 4)``.

        Returns:
            ``(num_nodes, 3)``; nothing is dropped.
        """
        rows = check_nodes(batch, x, self.in_features)
        gradient: Array = jax.grad(lambda x: self(batch, x, deterministic=True).sum())(rows)
        return -gradient[:, 1:]
