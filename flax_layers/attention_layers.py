"""Attention and weights of edges made by small functions, each a program (`ProgramConv`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import AttentionOptions, MultiHead, attention_init
from flax_layers._declaration import ParameterFactory
from flax_layers.edge_layers import check_one_width, check_same_width, reduced, summed
from flax_layers.graph import GCNNormalization, gcn_norm
from flax_layers.program_conv import ProgramLayer, Reduction, axes, dense
from jax_gnn import Edge, Graph, Node, dot_attention, program
from jax_gnn.extend import accumulator_dtype, as_array, check_instance

SuperGATScores = Literal["MX", "SD"]


def softmax_with_self(
    g: Any,
    scores: Array,
    values: Array,
    self_scores: Array,
    self_values: Array,
    dropout: Any = None,
) -> Array:
    """Weigh values of edges, and one of the node itself, by the softmax of their scores.

    A dropout drops weights of edges, and not the node's own. Half types add up in float32: a sum of
    many exponentials exceeds float16.
    """
    wide = accumulator_dtype(scores.dtype)
    scores, self_scores = scores.astype(wide), self_scores.astype(wide)
    top = jax.lax.stop_gradient(jnp.maximum(g.max(scores), self_scores))
    power, own = jnp.exp(scores - g.dst(top)), jnp.exp(self_scores - top)
    kept = power if dropout is None else dropout(g, power)
    sums = g.sum(kept * values.astype(wide)) + own * self_values.astype(wide)
    return (sums / (g.sum(power) + own)).astype(values.dtype)


def _agnn(
    g: Any,
    x_src: Node,
    x_dst: Node,
    *,
    beta: Any = axes(init=1.0, when="learn_beta"),
) -> Any:
    src, dst = base.unit_rows(x_src), base.unit_rows(x_dst)
    score = (1 if beta is None else beta) * jnp.sum(g.src(src) * g.dst(dst), -1, keepdims=True)
    return g.sum(g.softmax(score) * g.src(x_src))


def _agnn_with_self(graph: Graph, *, x_src: Array, beta: Array | None) -> Array:
    """Compute `_agnn` by the op of attention, whose logsumexp gives a node's weight for itself."""
    wide = accumulator_dtype(x_src.dtype)
    scale = jnp.ones((), wide) if beta is None else beta.astype(wide)
    unit = base.unit_rows(x_src)
    query, value = unit[:, None], x_src[:, None]
    y, lse = dot_attention(graph, query, query, value, scale=scale, return_lse=True)
    self_score = scale * jnp.square(unit.astype(wide)).sum(-1, keepdims=True)
    share = jax.nn.sigmoid(self_score - lse)
    return ((1 - share) * y[:, 0].astype(wide) + share * x_src.astype(wide)).astype(x_src.dtype)


class AGNNConv(ProgramLayer, program=_agnn):
    """Attention by cosines: ``Σ softmax(beta cos(x_i, x_j)) x_j``.

    Thekumparampil et al., "Attention-based graph neural network for semi-supervised learning",
    2018. The result is as wide as the input.

    Attributes:
        learn_beta: Whether beta is learnable, from 1.
        add_self_loops: Whether nodes attend to themselves, unless x is a pair.
        beta: Factor of the cosines, ``()``; None if it is 1.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> AGNNConv(4, 4, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 4)
    """

    learn_beta: bool = True
    add_self_loops: bool = True

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_same_width(self, "both ends", check_one_width(self))
        super()._make_parameters(factory)

    def _function(self, is_bipartite: bool) -> Callable[..., Any]:
        has_self = self.add_self_loops and not is_bipartite
        return _agnn_with_self if has_self else super()._function(is_bipartite)


def _super_gat(
    g: Any,
    x_src: Node,
    x_dst: Node,
    *,
    kernel: Any = axes("src", "width"),
    src_attention: Any = axes("heads", "head", init=attention_init, when="is_mixed"),
    dst_attention: Any = axes("heads", "head", init=attention_init, when="is_mixed"),
    bias: Any = axes("out"),
    heads: int,
    concat: bool,
    negative_slope: float,
    add_self_loops: bool,
    dropout: Any,
) -> Any:
    z, t = ((x @ kernel).reshape(heads, -1) for x in (x_src, x_dst))
    mixed = at_self = None
    if src_attention is not None:
        mixed = g.src(jnp.sum(z * src_attention, -1)) + g.dst(jnp.sum(t * dst_attention, -1))
        at_self = jnp.sum(t * (src_attention + dst_attention), -1)
    score = _super_gat_scores(g.dst(t) * g.src(z), mixed, negative_slope)
    if add_self_loops:
        self_score = _super_gat_scores(t * t, at_self, negative_slope)
        y = softmax_with_self(g, score, g.src(z), self_score, t, dropout)
    else:
        y = g.sum(dropout(g, g.softmax(score)) * g.src(z))
    return summed(y.reshape(-1) if concat else y.mean(0), bias)


def _super_gat_scores(products: Array, additive: Array | None, slope: float) -> Array:
    """Return scores of heads by dot products, scaled, or mixed with those of additive attention.

    Args:
        products: Of features of both ends, ``(heads, head)``, whose sums are the dot products.
        additive: Additive scores, which the logistic function of the dots scales; None: only dots.
        slope: Negative slope of the LeakyReLU.
    """
    dots = jnp.sum(products, -1)
    if additive is None:
        score = products.shape[-1] ** -0.5 * dots
    else:
        score = additive * jax.nn.sigmoid(dots)
    return jax.nn.leaky_relu(score, slope)[:, None]


@program
def _edge_dots(g: Any, z: Node) -> Any:
    return jnp.sum(g.dst(z) * g.src(z), -1)


class SuperGATConv(AttentionOptions, MultiHead, ProgramLayer, program=_super_gat):
    """Graph attention whose scores also tell whether an edge exists, for each head.

    Kim and Oh, "How to find your friendly neighborhood: graph attention design with self-
    supervision", ICLR 2021. Scores "MX" are GAT's times ``sigmoid(⟨z_i, z_j⟩)``, scores "SD"
    ``⟨z_i, z_j⟩ / √d``. `attention_loss` is the term of self-supervision.

    Attributes:
        attention_type: Scores: "MX" or "SD".
        add_self_loops: Whether nodes attend to themselves, unless x is a pair; this share is not
            dropped.
        kernel: Map of the nodes, ``(in_features, heads · width)``.
        src_attention: Vectors of the sources' scores, ``(heads, width)``; None with "SD".
        dst_attention: Vectors of the destinations' scores, likewise.
        bias: Biases, ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = SuperGATConv(4, 8, heads=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4))).shape
        (3, 8)
        >>> no_edges = Graph.from_edges([0, 1], [2, 1], num_nodes=3)
        >>> conv.attention_loss(graph, no_edges, jnp.ones((3, 4))).shape
        ()
    """

    attention_type: SuperGATScores = "MX"
    add_self_loops: bool = True

    kernel: nnx.Param[Array] = field(init=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self.is_mixed = self.attention_type == "MX"
        check_one_width(self)
        self._check_heads()
        super()._make_parameters(factory)

    def _widths(self) -> dict[str, int | None]:
        sizes = {"heads": self.heads, "head": self._head_features, "width": self._width}
        return super()._widths() | sizes

    def attention_loss(self, graph: Graph, negative_graph: Graph, x: ArrayLike) -> Array:
        """Return the mean cross-entropy of the scores' logits, averaged over heads.

        Args:
            graph: Graph of edges that exist.
            negative_graph: Graph of edges that do not, such as of `sampling.corrupted_edges`.
            x: Features of the nodes of both, ``(num_nodes, in_features)``.
        """
        check_instance("graph", graph, Graph)
        check_instance("negative_graph", negative_graph, Graph)
        features = base.check_features(x, graph.num_nodes, check_one_width(self))
        features, kernel = base.promote((features, self.kernel[...]), self.dtype)
        z = jnp.matmul(features, kernel, precision=self.precision).reshape(
            len(features), self.heads, -1
        )
        scale = 1 if self.is_mixed else z.shape[-1] ** -0.5
        wide = accumulator_dtype(z.dtype)
        loss, count = jnp.zeros((), wide), jnp.zeros((), int)
        for edges, sign in ((graph, -1), (negative_graph, 1)):
            logits = (scale * _edge_dots(edges, z).mean(-1)).astype(wide)
            is_edge = (edges.rows >= 0) & (edges.rows < edges.num_dst)
            loss += jnp.sum(jnp.where(is_edge, jax.nn.softplus(sign * logits), 0))
            count += is_edge.sum()
        return (loss / jnp.maximum(count, 1).astype(wide)).astype(z.dtype)


def _fa(
    g: Any,
    x_src: Node,
    x_dst: Node,
    x0_dst: Node = axes("dst"),
    scale_src: Node = axes(),
    scale_dst: Node = axes(),
    *,
    src_attention: Any = axes("src", 1),
    dst_attention: Any = axes("dst", 1),
    eps: float,
    add_self_loops: bool,
    dropout: Any,
) -> Any:
    left, right = (x_src @ src_attention)[0], (x_dst @ dst_attention)[0]
    share = dropout(g, jnp.tanh(g.src(left) + g.dst(right)))
    # A sum exceeds float16 before it is scaled.
    wide = accumulator_dtype(x_dst.dtype)
    m = (share * g.src(scale_src * x_src)).astype(wide)
    y = (g.sum(m) * scale_dst.astype(wide)).astype(x_dst.dtype)
    if add_self_loops:
        y = y + jnp.tanh((x_dst @ src_attention)[0] + right) * scale_dst**2 * x_dst
    return y + eps * x0_dst


class FAConv(ProgramLayer, program=_fa):
    """Frequency adaptive convolution: ``eps x0_i + Σ tanh(a x_i + a' x_j) x_j / √(d_i d_j)``.

    Bo et al., "Beyond low-frequency information in graph convolutional networks", AAAI 2021. The
    degrees count self-loops, if there are any. The result is as wide as the input.

    Attributes:
        eps: Weight of the first features.
        attention_dropout_rate: Share of the weights of edges dropped in training, in [0, 1].
        add_self_loops: Whether nodes are their own neighbours; this weight is not dropped.
        src_attention: Vector a' of the sources, ``(in_features, 1)``.
        dst_attention: Vector a of the destinations, ``(in_features, 1)``.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> FAConv(4, 4, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4)), jnp.ones((3, 4))).shape
        (3, 4)
    """

    eps: float = 0.1
    attention_dropout_rate: float = 0.0
    add_self_loops: bool = True

    src_attention: nnx.Param[Array] = field(init=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_same_width(self, "both ends", check_one_width(self))
        super()._make_parameters(factory)

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self,
        graph: Graph,
        x: ArrayLike,
        x0: ArrayLike,
        node_scale: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations.
            x0: Features that the model began with, as x.
            node_scale: Scales ``d^-1/2`` from `gcn_norm`, ``(num_src,)``, or a pair for sources and
                destinations; None computes them.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        check_instance("graph", graph, Graph)
        if node_scale is None:
            node_scale = gcn_norm(graph, add_self_loops=self.add_self_loops)
        parameter = self.src_attention[...]
        dtype = base.promoted_dtype(as_array("x", x), parameter, dtype=self.dtype)
        src_scale, dst_scale = base.endpoint_values("node_scale", node_scale, graph)
        src_scale = base.source_rows(graph, src_scale)
        scale = (src_scale.astype(dtype), dst_scale.astype(dtype))
        options: Any = {"deterministic": deterministic, "rngs": rngs}
        # Scales of one array stay one input.
        scales: Any = scale if graph.num_src != graph.num_dst else scale[0]
        return super().__call__(graph, x, x0=x0, scale=scales, **options)


def _gmm(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    kernel: Any = axes("src", "kernels_out"),
    mean: Any = axes("kernels", "edge", init=attention_init),
    deviation: Any = axes("kernels", "edge", init=attention_init),
    root: Any = axes("dst", "out", when="self_weight"),
    bias: Any = axes("out"),
    kernel_size: int,
    reduce: str,
) -> Any:
    square = (edge_features[None] - mean) ** 2 / (deviation**2 + 1e-15)
    gaussian = jnp.exp(-0.5 * jnp.sum(square, -1))
    m = gaussian @ g.src(x_src @ kernel).reshape(kernel_size, -1)
    return summed(reduced(g, m, reduce), None if root is None else x_dst @ root, bias)


class GMMConv(ProgramLayer, program=_gmm):
    """Convolution by Gaussians: ``x_i W' + agg Σ_k exp(-|(e_ij - m_k) / s_k|² / 2) x_j W_k + b``.

    Monti et al., "Geometric deep learning on graphs and manifolds using mixture model CNNs", CVPR
    2017, with Gaussians that all features share. Features of edges are pseudo-coordinates.

    Attributes:
        edge_in_features: Coordinates per edge.
        kernel_size: Number of Gaussians.
        reduce: Reduction of the messages: "sum", "mean", "max" or "min".
        self_weight: Whether a node's own features count, by a map of their own.
        kernel: W, ``(in_features, kernel_size · out_features)``.
        mean: Means of the Gaussians, ``(kernel_size, edge_in_features)``.
        deviation: Deviations, ``(kernel_size, edge_in_features)``.
        root: Map W' of a node's own features, ``(in_features, out_features)``; None without.
        bias: Biases, ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = GMMConv(4, 8, edge_in_features=2, kernel_size=3, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), jnp.ones((3, 2))).shape
        (3, 8)
    """

    edge_in_features: int
    kernel_size: int
    reduce: Reduction = "mean"
    self_weight: bool = True

    def _widths(self) -> dict[str, int | None]:
        sizes = {"kernels": self.kernel_size, "kernels_out": self.kernel_size * self.out_features}
        return super()._widths() | sizes


def _pdn(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    kernel: Any = axes("src", "out"),
    mlp: Any = dense("edge", "hidden", 1),
    bias: Any = axes("out"),
    normalization: str | None,
    add_self_loops: bool,
) -> Any:
    weight = jax.nn.sigmoid(mlp(edge_features))
    z, t = x_src @ kernel, x_dst @ kernel
    if normalization is None:
        return summed(g.sum(weight * g.src(z)), bias)
    # Sums exceed float16 before they are scaled.
    wide = accumulator_dtype(z.dtype)
    weight = weight.astype(wide)
    wide_scale = base.inverse_root(g.sum(weight) + int(add_self_loops))
    scale = wide_scale.astype(z.dtype)
    y = (g.sum(weight * g.src(scale * z).astype(wide)) * wide_scale).astype(z.dtype)
    return summed(y + scale**2 * t if add_self_loops else y, bias)


class PDNConv(ProgramLayer, program=_pdn):
    """Pathfinder discovery: GCN's convolution whose weights of edges an MLP makes of features.

    Rozemberczki et al., "Pathfinder discovery networks for neural message passing", WWW 2021. The
    MLP has one hidden layer with ReLU, and a sigmoid at its end.

    Attributes:
        edge_in_features: Features per edge.
        mlp_features: Features inside the MLP; None means `out_features`.
        normalization: Scaling by sums of the weights: "symmetric", ``D^-1/2`` at both ends, for
            graphs that are not bipartite, or None.
        add_self_loops: Whether to add I to the weights before they are scaled.
        kernel: Map of the nodes, ``(in_features, out_features)``.
        mlp: MLP of the edges' features.
        bias: Biases, ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = PDNConv(4, 8, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), jnp.ones((3, 2))).shape
        (3, 8)
    """

    edge_in_features: int
    mlp_features: int | None = None
    normalization: GCNNormalization | None = "symmetric"
    add_self_loops: bool = True

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_one_width(self)
        super()._make_parameters(factory)

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self, graph: Graph, x: ArrayLike, edge_features: ArrayLike
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph; with a normalization not bipartite, as sources need degrees.
            x: Features of the nodes, ``(num_nodes, *batch, in_features)``.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order (`Graph.edge_values`).
        """
        check_instance("graph", graph, Graph)
        if self.normalization and (graph.num_src != graph.num_dst or isinstance(x, tuple)):
            raise ValueError(
                "graph must not be bipartite with a normalization, as sources need degrees, got "
                f"num_src={graph.num_src} and num_dst={graph.num_dst}"
            )
        return super().__call__(graph, x, edge_features)
