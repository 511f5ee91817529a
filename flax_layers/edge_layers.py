"""Convolutions with functions of edges, each a program of a few lines (`ProgramConv`).

Arguments of a program are inputs of the call, options and parameters of the layer; `x_src` and
`x_dst` are features of sources and destinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory
from flax_layers.gin import GIN, GINOptions, apply_mlp, check_statistics, users_mlp
from flax_layers.mlp import MLP, Norm
from flax_layers.norms import check_mask
from flax_layers.program_conv import NODE_MLP, ProgramLayer, Reduction, axes, dense
from jax_gnn import Edge, Graph, Node
from jax_gnn.extend import accumulator_dtype, check_choice, check_instance, check_integer, described


def joined(*rows: Array | None) -> Array:
    """Concatenate the features of rows, without rows that are None."""
    return jnp.concatenate([row for row in rows if row is not None], -1)


def reduced(g: Any, row: Array, reduce: str) -> Array:
    """Reduce a row of edges; 0 without edges."""
    y: Array = getattr(g, reduce)(row)
    return jnp.where(g.degree() > 0, y, 0) if reduce in ("max", "min") else y


def summed(*rows: Array | None) -> Array:
    """Add rows, without those that are None."""
    first, *others = (row for row in rows if row is not None)
    return sum(others, start=first)


def check_one_width(layer: ProgramLayer) -> int:
    """Return the features of both ends; raise ValueError if they differ."""
    src, dst = base.endpoint_sizes(layer.in_features)
    if src != dst:
        raise ValueError(
            f"in_features must be the same of both ends, which are combined, got {(src, dst)}"
        )
    return src


def check_same_width(layer: ProgramLayer, of: str, width: int) -> None:
    """Raise ValueError if the result is not as wide as features that are added to it."""
    if layer.out_features != width:
        raise ValueError(
            f"out_features must be the features of {of}, {width}, got {layer.out_features}"
        )


# --- Perceptrons after an aggregation ------------------------------------------------------------


class _MLPLayer(ProgramLayer):
    """Base of convolutions that apply a perceptron to the nodes after the program.

    Attributes:
        built_mlp: The perceptron, unless the layer has an option `mlp` with another one.
    """

    built_mlp: MLP | None = field(init=False)
    _mlp_in_program: ClassVar[bool] = False

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self,
        graph: Graph,
        x: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
        *,
        edge_weight: ArrayLike | None = None,
        node_mask: ArrayLike | None = None,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph. A device's part of a larger one has no statistics of its own: batch
                norms must use running ones.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order (`Graph.edge_values`).
            edge_weight: Factors of the messages, ``(num_edges, *batch)``, of a `GINEConv`; None
                means 1.
            node_mask: ``(num_src,)`` bool, which nodes are no padding, such as
                `jax_gnn.Batch.node_mask`: the others do not count in statistics of batch norms. Of
                a pair x, nodes are destinations. None means all.
            deterministic: Whether norms use running statistics, and nothing is dropped in `mlp`;
                None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout in `mlp`; None means that of `mlp` itself.
        """
        weights: Any = {} if edge_weight is None else {"edge_weight": edge_weight}
        y = super().__call__(graph, x, edge_features, **weights)
        mask = None
        if node_mask is not None:
            count = graph.num_dst if isinstance(x, tuple) else base.num_rows(graph)
            mask = check_mask("node_mask", node_mask, count)[: graph.num_dst]
        if self._mlp_in_program and NODE_MLP.value(self.built_mlp) is not None:
            return y
        mlp = self.built_mlp if getattr(self, "mlp", None) is None else self.mlp  # type: ignore[attr-defined]
        check_statistics(self, mlp, graph, mask, deterministic)
        return apply_mlp(mlp, y, self.out_features, mask, deterministic, rngs)


class GINEOptions(GINOptions):
    """Options of `GINEConv`, and of `GINE` for its convolutions.

    Attributes:
        edge_in_features: Features per edge; None if edges have none.
        edge_map: Whether features of edges go through a linear map to `in_features`; without it
            they must be as wide.
    """

    edge_in_features: int | None = None
    edge_map: bool = True


def _gine(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    edge_weight: Edge = axes(optional=True, exact=True),
    *,
    eps: float,
    learned_eps: Any = axes(init="eps", when="learn_eps"),
    edge: Any = dense("edge", "src", when="edge_map"),
    built_mlp: Any = NODE_MLP,
) -> Any:
    e = edge_features if edge is None else edge(edge_features)
    m = jax.nn.relu(summed(g.src(x_src), e))
    m = m if edge_weight is None else edge_weight.astype(m.dtype) * m
    y = (1 + (eps if learned_eps is None else learned_eps)) * x_dst + g.sum(m)
    return y if built_mlp is None else built_mlp(y)


class GINEConv(GINEOptions, _MLPLayer, program=_gine):
    """GIN's convolution with features of edges: ``MLP((1 + eps) x_i + Σ ReLU(x_j + e_ij W))``.

    Hu et al., "Strategies for pre-training graph neural networks", ICLR 2020, and PyTorch
    Geometric's `GINEConv`. Sources and destinations have features of one width.

    Attributes:
        edge: Map of the features of edges, or None.
        built_mlp: MLP of the sums; None with `mlp`.
        learned_eps: The learnable eps, ``()``; None if it is fixed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = GINEConv(4, 8, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), jnp.ones((3, 2))).shape
        (3, 8)
    """

    _mlp_in_program = True

    def _make_parameters(self, factory: ParameterFactory) -> None:
        src = check_one_width(self)
        if not self.edge_map and self.edge_in_features not in (None, src):
            raise ValueError(
                f"edge_in_features must be in_features = {src} without edge_map, got "
                f"{self.edge_in_features}"
            )
        super()._make_parameters(factory)
        if self.mlp is None:
            widths = src, self.mlp_features or self.out_features, self.out_features
            self.built_mlp = MLP(widths, mlp_norm=self.mlp_norm, **factory._asdict())
        else:
            self.built_mlp = nnx.data(None)
            self.mlp = nnx.data(users_mlp(self, src, factory))


class GINE(GINEOptions, GIN):
    """Graph isomorphism network with features of edges: three `GINEConv` by default.

    Its call takes the arguments of `GINEConv`'s. Padding of blocks does not count in the statistics
    of norms.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> model = GINE(4, 16, 3, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4)), jnp.ones((3, 2))).shape
        (3, 3)
    """

    convolution = GINEConv  # type: ignore[assignment]  # of another base


# --- Gates ---------------------------------------------------------------------------------------


def _res_gated(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    key: Any = dense(("dst", "edge"), "out"),
    query: Any = dense(("src", "edge"), "out"),
    value: Any = dense(("src", "edge"), "out"),
    root: Any = axes("dst", "out", when="self_weight"),
    bias: Any = axes("out"),
) -> Any:
    dst, src = (joined(rows, edge_features) for rows in (g.dst(x_dst), g.src(x_src)))
    m = jax.nn.sigmoid(key(dst) + query(src)) * value(src)
    return summed(g.sum(m), None if root is None else x_dst @ root, bias)


class ResGatedGraphConv(ProgramLayer, program=_res_gated):
    """Residual gated convolution: ``x_i W + Σ sigmoid(k(x_i) + q(x_j)) v(x_j) + b``.

    Bresson and Laurent, "Residual gated graph ConvNets", 2017, as PyTorch Geometric's layer of this
    name. Features of edges are beside those of nodes in the maps k, q and v.

    Attributes:
        edge_in_features: Features per edge; None if edges have none.
        self_weight: Whether a node's own features count, by a map of their own.
        key: Map k of the destinations.
        query: Map q of the sources.
        value: Map v of the sources.
        root: Map of a node's own features, ``(in_features, out_features)``; None without.
        bias: Biases, ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> ResGatedGraphConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    edge_in_features: int | None = None
    self_weight: bool = True


class GatedGCNOptions(LinearOptions):
    """Options of `GatedGCNConv`, and of `GatedGCN` for its convolutions.

    Attributes:
        edge_in_features: Features per edge.
        residual: Whether features that are as wide as the results are added to them.
    """

    edge_in_features: int
    residual: bool = True


def _gated_gcn(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    a: Any = dense("dst", "out"),
    b: Any = dense("src", "out"),
    c: Any = dense("edge", "out"),
    d: Any = dense("dst", "out"),
    e: Any = dense("src", "out"),
    residual: bool,
    activation: base.Activation | None = None,
) -> Any:
    score = g.dst(d(x_dst)) + g.src(e(x_src)) + c(edge_features)
    # Sums of half types exceed float16 before the division.
    wide = accumulator_dtype(score.dtype)
    gate = jax.nn.sigmoid(score.astype(wide))
    sums = g.sum(gate * g.src(b(x_src)).astype(wide))
    y = a(x_dst) + (sums / (g.sum(gate) + 1e-6)).astype(score.dtype)

    def finished(y: Array, features: Array) -> Array:
        y = y if activation is None else jax.nn.relu(y)
        return y + features if residual and y.shape == features.shape else y

    return finished(y, x_dst), finished(score, edge_features)


class GatedGCNConv(GatedGCNOptions, ProgramLayer, program=_gated_gcn):
    """Gated convolution with features of edges, which have new ones, too.

    ``e'_ij = C e_ij + D x_i + E x_j``, of which the gates ``s = sigmoid(e')`` weigh messages:
    ``x'_i = A x_i + Σ s_ij B x_j / (Σ s_ij + 1e-6)``. Dwivedi et al., "Benchmarking graph neural
    networks", JMLR 2023, and DGL's layer of this name, without its batch norm.

    Attributes:
        a: Map A of a node's own features; b to e likewise.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = GatedGCNConv(4, 8, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> x, e = conv(graph, jnp.ones((3, 4)), jnp.ones((3, 2)))
        >>> x.shape, e.shape
        ((3, 8), (3, 8))
    """

    has_activation: ClassVar[bool] = True
    _call_options = ("activation",)

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self,
        graph: Graph,
        x: base.NodeFeatures,
        edge_features: ArrayLike,
        *,
        activation: base.Activation | None = None,
    ) -> tuple[Array, Array]:
        """Return the new features of nodes and of edges, ``(…, *batch, out_features)``.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order (`Graph.edge_values`).
            activation: "relu" for a ReLU of both results, before the residual.
        """
        base.check_activation(activation)
        y: tuple[Array, Array] = super().__call__(graph, x, edge_features, activation=activation)
        return y


class GatedGCN(GatedGCNOptions, base.Stack):
    """Gated graph convolutional network: three `GatedGCNConv` by default.

    Features of edges go from layer to layer, with ReLU and dropout as those of nodes.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> model = GatedGCN(4, 16, 3, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4)), jnp.ones((3, 2))).shape
        (3, 3)
    """

    convolution = GatedGCNConv

    def _overrides(self, number: int) -> dict[str, Any]:
        return {} if number == 1 else {"edge_in_features": self.hidden_features}

    def __call__(  # type: ignore[override]  # names arguments that Stack leaves open
        self,
        graph: Graph,
        x: ArrayLike,
        edge_features: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: The graph; no blocks, whose layers have edges of their own.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        check_instance("graph", graph, Graph)
        dropout = base.dropout_arguments(deterministic, rngs)
        h, e = self._input(x, **dropout), edge_features
        for number, conv in enumerate(self.convolutions, start=1):
            is_last = number == self.num_layers
            h, e = conv(graph, h, e, activation=None if is_last else "relu")
            if not is_last:
                h, e = (self.dropout(y, **dropout) for y in (h, e))
        return h


def _cg(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    gate: Any = dense(("dst", "src", "edge"), "out"),
    core: Any = dense(("dst", "src", "edge"), "out"),
    reduce: str,
) -> Any:
    z = joined(g.dst(x_dst), g.src(x_src), edge_features)
    return x_dst + reduced(g, jax.nn.sigmoid(gate(z)) * jax.nn.softplus(core(z)), reduce)


class CGConv(ProgramLayer, program=_cg):
    """Crystal graph convolution: ``x_i + Σ sigmoid(z_ij W + b) softplus(z_ij W' + b')``.

    ``z_ij`` are the features of both ends and of the edge side by side. Xie and Grossman, "Crystal
    graph convolutional neural networks", Physical Review Letters 2018. The result is as wide as the
    features of destinations.

    Attributes:
        edge_in_features: Features per edge; None if edges have none.
        reduce: Reduction of the messages: "sum", "mean", "max" or "min".
        gate: Map of the gates.
        core: Map of the messages.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> CGConv(4, 4, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 4)
    """

    edge_in_features: int | None = None
    reduce: Reduction = "sum"

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_same_width(self, "destinations", base.endpoint_sizes(self.in_features)[1])
        super()._make_parameters(factory)


# --- Functions of both ends and of edges ---------------------------------------------------------


def _edge_conv(
    g: Any,
    x_src: Node,
    x_dst: Node,
    *,
    mlp: Any = dense(("dst", "src"), "hidden", "out"),
    reduce: str,
) -> Any:
    end = g.dst(x_dst)
    return reduced(g, mlp(joined(end, g.src(x_src) - end)), reduce)


class EdgeConv(ProgramLayer, program=_edge_conv):
    """Edge convolution: the maximum of ``MLP(x_i, x_j - x_i)`` over a node's edges.

    Wang et al., "Dynamic graph CNN for learning on point clouds", ACM Transactions on Graphics
    2019, equation 8. The MLP has one hidden layer with ReLU. Without edges the result is 0.

    Attributes:
        mlp_features: Features inside the MLP; None means `out_features`.
        reduce: Reduction of the messages: "sum", "mean", "max" or "min".
        mlp: The MLP.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> EdgeConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    mlp_features: int | None = None
    reduce: Reduction = "max"

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_one_width(self)
        super()._make_parameters(factory)


def _nn_conv(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    mlp: Any = dense("edge", "hidden", "matrix"),
    root: Any = axes("dst", "out", when="self_weight"),
    bias: Any = axes("out"),
    reduce: str,
) -> Any:
    matrix = mlp(edge_features).reshape(x_src.shape[-1], -1)
    return summed(
        reduced(g, g.src(x_src) @ matrix, reduce), None if root is None else x_dst @ root, bias
    )


class NNConv(ProgramLayer, program=_nn_conv):
    """Convolution whose weights are a function of the edge: ``x_i W + Σ x_j MLP(e_ij) + b``.

    Gilmer et al., "Neural message passing for quantum chemistry", ICML 2017. The MLP has one hidden
    layer with ReLU, and returns a matrix.

    Attributes:
        edge_in_features: Features per edge.
        mlp_features: Features inside the MLP; None means `out_features`.
        reduce: Reduction of the messages: "sum", "mean", "max" or "min".
        self_weight: Whether a node's own features count, by a map of their own.
        mlp: The MLP of the edges' features.
        root: Map of a node's own features, ``(in_features, out_features)``; None without.
        bias: Biases, ``(out_features,)``, or None without biases.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> conv = NNConv(4, 8, edge_in_features=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), jnp.ones((3, 2))).shape
        (3, 8)
    """

    edge_in_features: int
    mlp_features: int | None = None
    reduce: Reduction = "sum"
    self_weight: bool = True

    def _widths(self) -> dict[str, int | None]:
        src, _ = base.endpoint_sizes(self.in_features)
        return super()._widths() | {"matrix": src * self.out_features}


# --- Several reductions --------------------------------------------------------------------------

PNAReduction = Literal["sum", "mean", "min", "max", "var", "std"]
PNAScaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]


class PNAOptions(LinearOptions):
    """Options of `PNAConv`, and of `PNA` for its convolutions.

    Attributes:
        degree_histogram: Number of nodes of each in-degree, from 0, in the training's graphs:
            ``np.bincount(graph.in_degrees())``.
        edge_in_features: Features per edge; None if edges have none.
        reductions: Reductions of the messages, side by side: "sum", "mean", "min", "max", "var" or
            "std".
        scalers: Functions of the degree that scale all of them, side by side: "identity",
            "amplification", "attenuation", "linear" or "inverse_linear".
        towers: Number of towers, which share `out_features`.
        divide_input: Whether towers share the input's features, too; else each has all.
        pre_layers: Linear maps of the messages, with ReLU between them.
        post_layers: Linear maps after the reductions, with ReLU between them.
    """

    degree_histogram: Sequence[int]
    edge_in_features: int | None = None
    reductions: Sequence[PNAReduction] = ("mean", "min", "max", "std")
    scalers: Sequence[PNAScaler] = ("identity", "amplification", "attenuation")
    towers: int = 1
    divide_input: bool = False
    pre_layers: int = 1
    post_layers: int = 1


def _pna(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    edge: Any = dense("edge", "tower_in"),
    pre: Any = dense("pair", "tower_in", layers="pre_layers", copies="towers"),
    post: Any = dense("reduced", "tower_out", layers="post_layers", copies="towers"),
    output: Any = dense("out", "out"),
    reductions: Sequence[str],
    scalers: Sequence[str],
    divide_input: bool,
    mean_degree: float,
    mean_log_degree: float,
) -> Any:
    dtype = x_dst.dtype
    degree = g.sum(jnp.ones((1,), accumulator_dtype(dtype)))  # may exceed float16
    factors = _degree_factors(degree, mean_degree, mean_log_degree)
    factors = {name: factor.astype(dtype) for name, factor in factors.items()}
    e, results = None if edge is None else edge(edge_features), []
    for tower, (message, update) in enumerate(zip(pre, post, strict=True)):
        own, other = (jnp.split(x, len(pre))[tower] if divide_input else x for x in (x_dst, x_src))
        m = message(joined(g.dst(own), g.src(other), e))
        y = joined(*(_pna_reduced(g, m, reduce) for reduce in reductions))
        results.append(update(joined(own, *(y * factors[scaler] for scaler in scalers))))
    return output(joined(*results))


def _degree_factors(degree: Array, mean: float, mean_log: float) -> dict[str, Array]:
    """Return the scalers of a node; degrees that divide are at least 1."""
    at_least_1 = jnp.maximum(degree, 1)
    return {
        "identity": jnp.ones_like(degree),
        "amplification": jnp.log1p(degree) / mean_log,
        "attenuation": mean_log / jnp.log1p(at_least_1),
        "linear": degree / mean,
        "inverse_linear": mean / at_least_1,
    }


def _pna_reduced(g: Any, m: Array, reduce: str) -> Any:
    if reduce not in ("var", "std"):
        return reduced(g, m, reduce)
    wide = m.astype(accumulator_dtype(m.dtype))  # half types may not hold squares
    variance = g.mean(wide * wide) - g.mean(wide) ** 2
    # Below the least variance the deviation is 0, and so is its gradient, as in PyG.
    is_least = variance <= 1e-5
    root = jnp.sqrt(jnp.where(is_least, 1, variance))
    return (variance if reduce == "var" else jnp.where(is_least, 0, root)).astype(m.dtype)


class PNAConv(PNAOptions, ProgramLayer, program=_pna):
    """Principal neighbourhood aggregation: several reductions, each scaled by functions of degree.

    Corso et al., "Principal neighbourhood aggregation for graph nets", NeurIPS 2020, as PyTorch
    Geometric's layer of this name. Sources and destinations have features of one width.

    Attributes:
        edge: Map of the features of edges, or None.
        pre: Map of the messages, for each tower.
        post: Map after the reductions, for each tower.
        output: Map of all towers' results.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> degrees = np.bincount(graph.in_degrees())
        >>> PNAConv(4, 8, degree_histogram=degrees, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    def _make_parameters(self, factory: ParameterFactory) -> None:
        check_one_width(self)
        for name, kinds in (("reductions", PNAReduction), ("scalers", PNAScaler)):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise TypeError(f"{name} must be a sequence of names, got {values!r}")
            for value in values:
                check_choice(name, value, get_args(kinds))
        histogram = self.degree_histogram
        if not isinstance(histogram, Sequence):
            raise TypeError(f"degree_histogram must be a sequence, got {described(histogram)}")
        counts = np.array(
            [check_integer(f"degree_histogram[{i}]", count) for i, count in enumerate(histogram)]
        )
        if not counts[1:].sum() > 0:
            raise ValueError(
                "degree_histogram must be numbers of nodes by degree, some of which is not 0, got "
                f"{self.degree_histogram!r}"
            )
        degrees = np.arange(len(counts))
        self.mean_degree = float(counts @ degrees / counts.sum())
        self.mean_log_degree = float(counts @ np.log1p(degrees) / counts.sum())
        sizes = {"out_features": self.out_features}
        if self.divide_input:
            sizes["in_features"] = base.endpoint_sizes(self.in_features)[0]
        for name, size in sizes.items():
            if size % self.towers:
                raise ValueError(
                    f"towers must divide {name}, which they share, got {self.towers} and {size}"
                )
        super()._make_parameters(factory)

    def _widths(self) -> dict[str, int | None]:
        width, _ = base.endpoint_sizes(self.in_features)
        width //= self.towers if self.divide_input else 1
        copies = len(self.reductions) * len(self.scalers) + 1
        return super()._widths() | {
            "tower_in": width,
            "tower_out": self.out_features // self.towers,
            "pair": width * (2 if self.edge_in_features is None else 3),
            "reduced": width * copies,
        }


class PNA(PNAOptions, base.Stack):
    """Network of principal neighbourhood aggregations: three `PNAConv` by default.

    Its call takes the arguments of `PNAConv`'s.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> model = PNA(4, 16, 3, degree_histogram=[1, 1, 1], rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = PNAConv
    dropout_in_convolutions = True


def _gen(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    source: Any = dense("src", "out", when="maps_source"),
    root: Any = dense("dst", "out", when="maps_destination"),
    edge: Any = dense("edge", "out", when="maps_edge"),
    learned_t: Any = axes(init="t", when="learn_t"),
    learned_p: Any = axes(init="p", when="learn_p"),
    learned_scale: Any = axes(init=1.0, when="learn_msg_scale"),
    reduce: str,
    t: float,
    p: float,
    msg_norm: bool,
    eps: float,
) -> Any:
    x = x_src if source is None else source(x_src)
    e = edge_features if edge is None else edge(edge_features)
    m = jax.nn.relu(summed(g.src(x), e)) + eps
    if reduce == "softmax":
        y = g.sum(g.softmax(m * (t if learned_t is None else learned_t)) * m)
    elif reduce == "power":
        y = _power_mean(g, m, p if learned_p is None else learned_p)
    else:
        y = reduced(g, m, reduce)
    if msg_norm:
        y = _message_norm(y, x_dst, learned_scale)
    return y + (x_dst if root is None else root(x_dst))


def _power_mean(g: Any, messages: Array, power: Any) -> Any:
    """Reduce messages to their mean power's root; both lie in [1e-4, 100]."""
    mean = g.mean(jnp.clip(messages, 1e-4, 100.0) ** power)
    return jnp.clip(mean, 1e-4, 100.0) ** (1 / power)


def _message_norm(y: Array, x: Array, scale: Array | None) -> Array:
    """Give messages the norm of the node's features, times a learned scale if there is one."""
    wide = x.astype(accumulator_dtype(x.dtype))
    square = jnp.sum(wide * wide, -1, keepdims=True)
    y = base.unit_rows(y) * (square * base.inverse_root(square)).astype(y.dtype)
    return y if scale is None else y * scale


GENReduction = Literal["softmax", "power", "sum", "mean", "max", "min"]


class GENConv(_MLPLayer, program=_gen):
    """Generalized aggregation: ``MLP(x_i + agg(ReLU(x_j + e_ij) + eps))``.

    Li et al., "DeeperGCN: all you need to train deeper GCNs", 2020, as PyTorch Geometric's layer of
    this name. The aggregation is a softmax of each feature, a power mean or a plain reduction.
    Features that are not as wide as the result go through a linear map first.

    Attributes:
        edge_in_features: Features per edge; None if edges have none.
        reduce: "softmax", "power", "sum", "mean", "max" or "min".
        t: Inverse temperature of the softmax; the initial value if it is learnable.
        learn_t: Whether t is learnable.
        p: Power of the power mean; the initial value if it is learnable.
        learn_p: Whether p is learnable.
        msg_norm: Whether aggregated messages get the norm of the node's features.
        learn_msg_scale: Whether that norm has a learnable factor.
        mlp_norm: "batch_norm" between the maps of the MLP; None without.
        mlp_layers: Number of linear maps of the MLP.
        expansion: Features inside the MLP for each of the output.
        eps: Least message.
        use_bias: Whether to add biases.
        built_mlp: The MLP.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GENConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    edge_in_features: int | None = None
    reduce: GENReduction = "softmax"
    t: float = 1.0
    learn_t: bool = False
    p: float = 1.0
    learn_p: bool = False
    msg_norm: bool = False
    learn_msg_scale: bool = False
    mlp_norm: Norm | None = "batch_norm"
    mlp_layers: int = 2
    expansion: int = 2
    eps: float = 1e-7
    use_bias: bool = False

    def _make_parameters(self, factory: ParameterFactory) -> None:
        src, dst = base.endpoint_sizes(self.in_features)
        self.maps_source, self.maps_destination = (size != self.out_features for size in (src, dst))
        self.maps_edge = self.edge_in_features != self.out_features
        super()._make_parameters(factory)
        if self.learn_msg_scale and not self.msg_norm:
            raise ValueError("learn_msg_scale must be False without msg_norm, got True")
        hidden = [self.expansion * self.out_features] * (self.mlp_layers - 1)
        widths = self.out_features, *hidden, self.out_features
        self.built_mlp = MLP(widths, mlp_norm=self.mlp_norm, **factory._asdict())
