"""Convolutions of points in space, each a program of a few lines (`ProgramConv`)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import ParameterFactory
from flax_layers.attention_layers import softmax_with_self
from flax_layers.edge_layers import check_same_width, joined, reduced
from flax_layers.program_conv import ProgramLayer, axes, dense
from jax_gnn import Edge, Graph, Node


def shifted_softplus(x: Array) -> Array:
    """Return ``softplus(x) - log 2``, which is 0 at 0."""
    return jax.nn.softplus(x) - math.log(2)


def half_cosine(distance: Array, cutoff: float) -> Array:
    """Return a factor that falls from 1 at distance 0 to 0 at the cutoff, and rises again."""
    return 0.5 * (jnp.cos(distance * (math.pi / cutoff)) + 1)


def cosine_cutoff(distance: Array, cutoff: float) -> Array:
    """Return a factor that falls from 1 at distance 0 to 0 at the cutoff, and stays 0."""
    return jnp.where(distance < cutoff, half_cosine(distance, cutoff), 0)


def _cf(
    g: Any,
    x_src: Node,
    edge_features: Edge,
    distance: Edge = axes(exact=True),
    *,
    kernel: Any = axes("src", "hidden"),
    filters: Any = dense("edge", "hidden", "hidden", activation=shifted_softplus),
    output: Any = dense("hidden", "out"),
    cutoff: float,
) -> Any:
    near = half_cosine(distance, cutoff).astype(x_src.dtype)
    return output(g.sum(g.src(x_src @ kernel) * filters(edge_features) * near))


class CFConv(ProgramLayer, program=_cf):
    """Continuous-filter convolution: ``Σ (x_j W) MLP(e_ij) (cos(π d_ij / cutoff) + 1) / 2``.

    Schütt et al., "SchNet", NeurIPS 2017, as in PyTorch Geometric's SchNet: the MLP has a shifted
    softplus between its two maps, and a linear map follows the sum. Features of edges are radial
    functions of the distance; edges beyond the cutoff are not to be in the graph.

    Attributes:
        edge_in_features: Features per edge.
        mlp_features: Number of filters; None means `out_features`.
        cutoff: Distance at which filters become 0.
        kernel: W, ``(in_features, mlp_features)``.
        filters: MLP of the edges' features.
        output: Map after the sum.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = CFConv(4, 8, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), jnp.ones((3, 2)), distance=jnp.ones(3)).shape
        (3, 8)
    """

    edge_in_features: int
    mlp_features: int | None = None
    cutoff: float = 10.0

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self, graph: Graph, x: base.NodeFeatures, edge_features: ArrayLike, *, distance: ArrayLike
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, or a pair.
            edge_features: Radial functions of the edges' lengths, ``(num_edges, *batch,
                edge_in_features)``, in the graph's order (`Graph.edge_values`).
            distance: Lengths of the edges, ``(num_edges, *batch)``, in the unit of `cutoff`.
        """
        return super().__call__(graph, x, edge_features, distance=distance)


_SMALL = jax.nn.initializers.variance_scaling(1e-6, "fan_avg", "uniform")


def _egnn(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    pos_src: Node = axes("dimensions", exact=True),
    pos_dst: Node = axes("dimensions", exact=True),
    *,
    message: Any = dense(("dst", "src", 1, "edge"), "hidden", "hidden", activation=jax.nn.silu),
    shift: Any = dense("hidden", "hidden"),
    shift_kernel: Any = axes("hidden", 1, init=_SMALL),
    update: Any = dense(("dst", "hidden"), "hidden", "out", activation=jax.nn.silu),
    unit_differences: bool,
    residual: bool,
) -> Any:
    difference = g.dst(pos_dst) - g.src(pos_src)
    square = jnp.sum(difference**2, -1, keepdims=True)
    m = message(joined(g.dst(x_dst), g.src(x_src), square.astype(x_dst.dtype), edge_features))
    m = jax.nn.silu(m)
    step = difference * base.inverse_root(square) if unit_differences else difference
    size = (jax.nn.silu(shift(m)) @ shift_kernel).astype(step.dtype)
    y = update(joined(x_dst, g.sum(m)))
    return x_dst + y if residual and y.shape == x_dst.shape else y, pos_dst + g.mean(step * size)


class EGNNConv(ProgramLayer, program=_egnn):
    """Equivariant convolution: messages know distances, and move points along their differences.

    ``m_ij = MLP(x_i, x_j, |p_i - p_j|², e_ij)``, ``x'_i = x_i + MLP(x_i, Σ m_ij)`` and
    ``p'_i = p_i + mean (p_i - p_j) MLP(m_ij)``. Satorras, Hoogeboom and Welling, "E(n) equivariant
    graph neural networks", ICML 2021, equations 3 to 6.

    Attributes:
        edge_in_features: Features per edge; None if edges have none.
        mlp_features: Features inside the MLPs and of messages; None means `out_features`.
        dimensions: Number of coordinates of a position.
        residual: Whether features that are as wide as the result are added to it.
        unit_differences: Whether differences are divided by their length, as in DGL's layer.
        message: MLP of the messages.
        shift: First map of the steps; shift_kernel is the second, ``(mlp_features, 1)``.
        update: MLP of the nodes.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> x, pos = EGNNConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4)), jnp.ones((3, 3)))
        >>> x.shape, pos.shape
        ((3, 8), (3, 3))
    """

    edge_in_features: int | None = None
    mlp_features: int | None = None
    dimensions: int = 3
    residual: bool = True
    unit_differences: bool = False

    def _widths(self) -> dict[str, int | None]:
        return super()._widths() | {"dimensions": self.dimensions}

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self,
        graph: Graph,
        x: base.NodeFeatures,
        pos: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Return new features, ``(num_dst, *batch, out_features)``, and positions.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            pos: Positions, ``(num_src, *batch, dimensions)``, or a pair.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order (`Graph.edge_values`), of a layer with `edge_in_features`.
        """
        return super().__call__(graph, x, edge_features, pos=pos)


def sine_basis(distance: Array, num_basis: int, cutoff: float) -> Array:
    """Return ``sin(n pi d / cutoff) / d`` of distances ``(..., 1)``, for n up to `num_basis`."""
    waves = (np.arange(1, num_basis + 1) * (math.pi / cutoff)).astype(distance.dtype)
    return jnp.sin(waves * distance) / distance


def _painn(
    g: Any,
    x_src: Node,
    x_dst: Node,
    vectors_src: Node = axes(3, "out"),
    vectors_dst: Node = axes(3, "out"),
    pos_src: Node = axes(3, exact=True),
    pos_dst: Node = axes(3, exact=True),
    *,
    context: Any = dense("src", "out", "triple", activation=jax.nn.silu),
    filters: Any = dense("num_basis", "triple"),
    mix: Any = axes("out", "double"),
    update: Any = dense("double", "out", "triple", activation=jax.nn.silu),
    num_basis: int,
    cutoff: float,
) -> Any:
    # Messages: scalars, and vectors that are turned into the edge's direction.
    difference = g.src(pos_src) - g.dst(pos_dst)
    distance = jnp.sqrt(jnp.sum(difference**2, -1, keepdims=True) + 1e-12)
    near = cosine_cutoff(distance, cutoff).astype(x_src.dtype)
    weights = filters(sine_basis(distance, num_basis, cutoff).astype(x_src.dtype)) * near
    to_x, turned, scale = jnp.split(g.src(context(x_src)) * weights, 3)
    direction = (difference / distance).astype(x_src.dtype)[:, None]
    x = x_dst + g.sum(to_x)
    v = vectors_dst + g.sum(g.src(vectors_src) * scale[None] + direction * turned[None])
    # Update: norms of vectors change scalars, scalars scale vectors.
    a, b = jnp.split(v @ mix, 2, -1)
    norm = jnp.sqrt(jnp.sum(a * a, -2) + 1e-8)
    to_x, scale, dots = jnp.split(update(joined(x, norm)), 3)
    return x + to_x + dots * jnp.sum(a * b, -2), v + scale[None] * b


class PaiNNConv(ProgramLayer, program=_painn):
    """Polarizable interaction: scalar features, and vectors that turn with the points.

    Schütt, Unke and Gastegger, "Equivariant message passing for the prediction of tensorial
    properties and molecular spectra", ICML 2021: the message and the update block, figure 2.

    Attributes:
        num_basis: Number of Bessel functions of the distance.
        cutoff: Distance beyond which edges send nothing.
        context: MLP of the sources.
        filters: Map of the Bessel functions.
        mix: Map of the vectors before the update, ``(out_features, 2 · out_features)``.
        update: MLP of the scalars and the vectors' norms.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = PaiNNConv(4, 4, rngs=nnx.Rngs(0))
        >>> x, v = conv(graph, jnp.ones((3, 4)), jnp.zeros((3, 3, 4)), jnp.eye(3))
        >>> x.shape, v.shape
        ((3, 4), (3, 3, 4))
    """

    num_basis: int = 20
    cutoff: float = 5.0

    def _make_parameters(self, factory: ParameterFactory) -> None:
        for size in base.endpoint_sizes(self.in_features):
            check_same_width(self, "both ends", size)
        super()._make_parameters(factory)

    def _widths(self) -> dict[str, int | None]:
        sizes = {"double": 2 * self.out_features, "triple": 3 * self.out_features}
        return super()._widths() | sizes | {"num_basis": self.num_basis}

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self, graph: Graph, x: base.NodeFeatures, vectors: base.NodeFeatures, pos: base.NodeFeatures
    ) -> tuple[Array, Array]:
        """Return new features, ``(num_dst, *batch, out_features)``, and vectors.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            vectors: Vectors, ``(num_src, *batch, 3, out_features)``, or a pair; zeros at first.
            pos: Positions, ``(num_src, *batch, 3)``, in the unit of `cutoff`, or a pair.
        """
        return super().__call__(graph, x, vectors=vectors, pos=pos)


class _PointLayer(ProgramLayer):
    """Base of convolutions of points without features of edges."""

    dimensions: int = 3

    def _widths(self) -> dict[str, int | None]:
        return super()._widths() | {"dimensions": self.dimensions}

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self, graph: Graph, x: base.NodeFeatures, pos: base.NodeFeatures
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            pos: Positions, ``(num_src, *batch, dimensions)``, or a pair.
        """
        return super().__call__(graph, x, pos=pos)


def _point_net(
    g: Any,
    x_src: Node,
    x_dst: Node,
    pos_src: Node = axes("dimensions", exact=True),
    pos_dst: Node = axes("dimensions", exact=True),
    *,
    local: Any = dense(("src", "dimensions"), "hidden", "hidden"),
    output: Any = dense("hidden", "out"),
    add_self_loops: bool,
) -> Any:
    offset = (g.src(pos_src) - g.dst(pos_dst)).astype(x_src.dtype)
    m = local(joined(g.src(x_src), offset))
    if add_self_loops:
        origin = jnp.zeros_like(pos_dst).astype(x_dst.dtype)
        return output(jnp.maximum(g.max(m), local(joined(x_dst, origin))))
    return output(reduced(g, m, "max"))


class PointNetConv(_PointLayer, program=_point_net):
    """PointNet++'s set layer: ``(max MLP(x_j, p_j - p_i)) W + b`` over a point's neighbours.

    Qi et al., "PointNet++", NeurIPS 2017, as PyTorch Geometric's layer of this name, with an MLP of
    two maps as its `local_nn` and a linear map as its `global_nn`.

    Attributes:
        mlp_features: Features inside and of the MLP; None means `out_features`.
        dimensions: Number of coordinates of a position.
        add_self_loops: Whether points are their own neighbours, unless x is a pair.
        local: The MLP.
        output: Map of the maxima.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> PointNetConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4)), jnp.eye(3)).shape
        (3, 8)
    """

    mlp_features: int | None = None
    dimensions: int = 3
    add_self_loops: bool = True


def _point_transformer(
    g: Any,
    x_src: Node,
    x_dst: Node,
    pos_src: Node = axes("dimensions", exact=True),
    pos_dst: Node = axes("dimensions", exact=True),
    *,
    value: Any = axes("src", "out"),
    key: Any = axes("src", "out"),
    query: Any = axes("dst", "out"),
    position: Any = dense("dimensions", "out"),
    attention: Any = dense("out", "hidden", "out", when="attention_mlp"),
    add_self_loops: bool,
) -> Any:
    def scores(query: Array, key: Array, delta: Array) -> Any:
        score = query - key + delta
        return score if attention is None else attention(score)

    k, q, v = x_src @ key, x_dst @ query, x_src @ value
    delta = position((g.dst(pos_dst) - g.src(pos_src)).astype(x_src.dtype))
    score = scores(g.dst(q), g.src(k), delta)
    if not add_self_loops:
        return g.sum(g.softmax(score) * (g.src(v) + delta))
    at_self = position(jnp.zeros_like(pos_dst).astype(x_src.dtype))
    # The node's own row of its sources, which are the destinations, too.
    own = x_dst @ value, scores(q, x_dst @ key, at_self)
    return softmax_with_self(g, score, g.src(v) + delta, own[1], own[0] + at_self)


class PointTransformerConv(_PointLayer, program=_point_transformer):
    """Vector attention of points: ``Σ softmax(f(q_i - k_j + d_ij)) (v_j + d_ij)``, by feature.

    Zhao et al., "Point transformer", ICCV 2021, where ``d_ij`` is a linear map of ``p_i - p_j``,
    and f an MLP of one hidden layer, as PyTorch Geometric's layer of this name.

    Attributes:
        attention_mlp: Whether scores go through the MLP f.
        mlp_features: Features inside f; None means `out_features`.
        dimensions: Number of coordinates of a position.
        add_self_loops: Whether points attend to themselves, unless x is a pair.
        value: Map of the sources, ``(in_features, out_features)``; key likewise.
        query: Map of the destinations, ``(in_features, out_features)``.
        position: Map of the differences.
        attention: MLP f, or None.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = PointTransformerConv(4, 8, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), jnp.eye(3)).shape
        (3, 8)
    """

    mlp_features: int | None = None
    dimensions: int = 3
    attention_mlp: bool = False
    add_self_loops: bool = True
