"""Graph neural networks in Flax NNX: GCN, GIN and GraphSAGE."""

from __future__ import annotations

from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers._base import (
    Activation,
    Convolution,
    Ends,
    LinearOptions,
    Stack,
    aggregated,
    check_activation,
    check_among_sources,
    check_ends,
    check_positive,
    check_vector,
    end_sizes,
    end_values,
    epilogue,
    finished,
    in_one_dtype,
    inverse_root,
    linear,
    num_rows,
    of_destinations,
    scaled,
    sums_first,
    unit_rows,
)
from jax_gnn import Graph, segment_sum, spmm
from jax_gnn.extend import (
    accumulator_dtype,
    as_array,
    check_choice,
    check_instance,
    check_number,
    row_wise,
    take,
)
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import HostRows

Aggregation = Literal["mean", "max", "sum"]

glorot_init = nnx.initializers.glorot_uniform()


def gcn_norm(
    graph: Graph, edge_weight: ArrayLike | None = None, *, add_self_loops: bool = True
) -> Any:
    """The scales ``D^-1/2`` of the nodes, which make A of a graph ``D^-1/2 (A + I) D^-1/2``.

    ``D`` holds the (weighted) in-degrees, plus one for the self-loop. `GCNConv` computes the scales
    by itself; for weights that do not change, they can be computed once and passed to it.

    Of a bipartite graph, whose destinations are the first of its sources, those of sources are of
    the degrees out of them.

    Args:
        graph: The graph.
        edge_weight: ``(num_edges,)``, in the graph's order; None means ones.
        add_self_loops: Whether I is added.

    Returns:
        ``(num_nodes,)`` in float32, or in float64 where 64 bits are on; 0 where the degree is not
        positive. Of a bipartite graph a pair, ``(num_src,)`` and ``(num_dst,)``.

    Raises:
        ValueError: The weights have another shape, or there are more destinations than sources.

    Example:
        >>> graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
        >>> gcn_norm(graph)
        Array([0.70710677, 0.70710677], dtype=float32)
    """
    check_instance("graph", graph, Graph)
    own = int(add_self_loops)
    weight = _edge_weight(graph, edge_weight)
    if weight is None:
        degree = graph.in_degrees().astype(float)
    else:
        weight = weight.astype(float)
        degree = segment_sum(weight, graph.rows, graph.num_dst, True)
    scale = inverse_root(degree + own)
    if num_rows(graph) == graph.num_dst:
        return scale
    check_among_sources(graph)
    if weight is None:
        degree = graph.out_degrees().astype(float)
    else:
        degree = segment_sum(take(weight, graph.t_order), graph.t_rows, graph.num_src, True)
    return inverse_root(degree.at[: graph.num_dst].add(own)), scale


class GCNConv(Convolution):
    """Graph convolution: ``D^-1/2 (A + I) D^-1/2 X Theta + b``.

    Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017,
    equation 2. The self-loops are an addition, no edges: an edge from a node to itself that the
    graph has counts beside. The aggregation runs on the narrower side of Theta.

    Of a bipartite graph, such as a sampled block, the destinations are the first of the sources.
    Where these are many more, the aggregation comes first.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GCNConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph
    has_activation = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        normalize: bool = True,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            normalize: Whether to scale by ``D^-1/2`` on both sides.
            add_self_loops: Whether to add I to A.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`; kernel_init is Glorot's by default, as in the paper.

        Raises:
            ValueError: A size is not positive.
        """
        options.setdefault("kernel_init", glorot_init)
        super().__init__(in_features, out_features, rngs=rngs, **options)
        self.normalize = normalize
        self.add_self_loops = add_self_loops

    def __call__(
        self,
        graph: Graph,
        x: ArrayLike,
        edge_weight: ArrayLike | None = None,
        node_scale: ArrayLike | None = None,
        *,
        activation: Activation | None = None,
        is_scaled: bool = False,
        scales_result: bool = False,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``.
            edge_weight: ``(num_edges,)``, in the graph's order (`Graph.edge_values`); None means
                ones.
            node_scale: What `gcn_norm` gives for graph and weights, ``(num_src,)``, or a pair for
                sources and destinations; None computes it where the layer normalizes. For a block
                it may be what it gives for the whole graph's nodes.
            activation: "relu" for a ReLU after all, which is part of the last kernel where that
                aggregates.
            is_scaled: Whether x has been multiplied by `node_scale`, as the layer does first.
            scales_result: Whether the result is, after the activation: for the next layer.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the graph, or the activation is unknown.
        """
        check_activation(activation)
        x, kernel, bias = self._operands(x, graph)
        weight = _edge_weight(graph, edge_weight)
        src_scale = dst_scale = None
        if self.normalize:
            if node_scale is None:
                node_scale = gcn_norm(graph, weight, add_self_loops=self.add_self_loops)
            src_scale, dst_scale = end_values("node_scale", node_scale, graph).values()

        def aggregate(features: Array, **last: Any) -> Array:
            own = 1 if self.add_self_loops else None
            return _sum_with_own(graph, features, weight, own, out_scale=dst_scale, **last)

        # Scales of nodes, unlike such of edges, need no weights to be read.
        first, last = None if is_scaled else src_scale, dst_scale if scales_result else None
        if sums_first(graph, *kernel.shape, x=x):
            sums = aggregate(scaled(x, first))
            return scaled(self._product(sums, kernel, bias=bias, activation=activation), last)
        y, sent = self._product_ahead(graph, x, kernel, scale=first)
        return aggregate(y, result_scale=last, **sent, **epilogue(y, bias, activation))


class GINConv(Convolution):
    """Graph isomorphism convolution: ``MLP((1 + eps) X + A X)``.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019, equation 4.1. The MLP has one
    hidden layer with ReLU. Its first map is linear, hence the aggregation runs on the narrower side
    of it. Of a bipartite graph, the destinations are the first of the sources.

    Attributes:
        kernel: Of the MLP's first map, ``(in_features, mlp_features)``.
        bias: Of its first map, ``(mlp_features,)``, or None without biases.
        output: Its second map.
        learned_eps: The learnable eps, ``()``; None if it is fixed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GINConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph
    has_activation = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        mlp_features: int | None = None,
        eps: float = 0.0,
        learn_eps: bool = False,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output.
            mlp_features: Features inside the MLP; None for `out_features`.
            eps: How much more than 1 a node's own features count; the initial value if it is
                learnable.
            learn_eps: Whether eps is learnable.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive.
        """
        check_number("eps", eps)
        if mlp_features is not None:
            check_positive(mlp_features=mlp_features)
        width = mlp_features or out_features
        super().__init__(in_features, out_features, width=width, rngs=rngs, **options)
        self.output = nnx.Linear(width, out_features, rngs=rngs, **options)
        self.learned_eps: nnx.Param[Array] | None = nnx.data(None)
        if learn_eps:
            self.learned_eps = nnx.Param(jnp.array(eps, self.param_dtype))
        self.mlp_features = mlp_features
        self.eps = eps
        self.learn_eps = learn_eps

    def __call__(
        self,
        graph: Graph,
        x: ArrayLike,
        edge_weight: ArrayLike | None = None,
        *,
        activation: Activation | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``.
            edge_weight: ``(num_edges,)``, in the graph's order (`Graph.edge_values`); None means
                ones.
            activation: "relu" for a ReLU after all.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the graph, or the activation is unknown.
        """
        check_activation(activation)
        x, kernel, bias = self._operands(x, graph)
        weight = _edge_weight(graph, edge_weight)
        own = 1 + (self.eps if self.learned_eps is None else self.learned_eps[...].astype(float))

        def aggregate(features: Array, **last: Any) -> Array:
            return _sum_with_own(graph, features, weight, own, **last)

        hidden = self._aggregate_narrow(aggregate, x, kernel, bias, "relu", graph=graph)
        return linear(self.output, hidden, activation)


class SAGEConv(Convolution):
    """GraphSAGE convolution: ``X Theta_root + agg(X) Theta + b``.

    Hamilton et al., "Inductive representation learning on large graphs", NeurIPS 2017, algorithm 1,
    over all neighbours. ``agg`` is the mean, maximum or sum over the sources of a node's edges, 0
    where there are none. Mean and sum run on the narrower side of Theta.

    Of a bipartite graph, x is a pair of features, of sources and of destinations, or an array of
    the sources, of which the destinations are the first.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.
        bias: ``(out_features,)``, or None without a bias.
        root: The map of a node's own features; None without.
        projection: The map before the aggregation; None without.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> SAGEConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph
    has_activation = True

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        aggregation: Aggregation = "mean",
        root_weight: bool = True,
        project: bool = False,
        normalize: bool = False,
        rngs: nnx.Rngs,
        **options: Unpack[LinearOptions],
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input; a pair for those of sources and of
                destinations.
            out_features: Features per node of the output.
            aggregation: "mean", "max" or "sum".
            root_weight: Whether a node's own features count, by a map of their own.
            project: Whether features go through a map and ReLU before they are aggregated, as in
                the pooling aggregator (equation 3).
            normalize: Whether each row of the result is divided by its Euclidean norm.
            rngs: Source of the keys for initialisation (stream "params").
            **options: See `LinearOptions`.

        Raises:
            ValueError: A size is not positive or the aggregation is unknown.
        """
        check_choice("aggregation", aggregation, get_args(Aggregation))
        src_features, dst_features = end_sizes(in_features)
        super().__init__(src_features, out_features, rngs=rngs, **options)
        self.in_features: Any = in_features
        self.root: nnx.Linear | None = nnx.data(None)
        if root_weight:
            without_bias: Any = {**options, "use_bias": False}
            self.root = nnx.Linear(dst_features, out_features, rngs=rngs, **without_bias)
        self.projection: nnx.Linear | None = nnx.data(None)
        if project:
            self.projection = nnx.Linear(src_features, src_features, rngs=rngs, **options)
        self.aggregation: Aggregation = aggregation
        self.root_weight = root_weight
        self.project = project
        self.normalize = normalize

    def __call__(
        self,
        graph: Graph,
        x: Ends,
        edge_weight: ArrayLike | None = None,
        *,
        activation: Activation | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_weight: ``(num_edges,)``, in the graph's order (`Graph.edge_values`), by which
                messages are multiplied before they are aggregated; None means ones.
            activation: "relu" for a ReLU after all, which is part of the last kernel where that
                aggregates.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape does not fit the layer or the graph, or the activation is unknown.
        """
        check_activation(activation)
        check_instance("graph", graph, Graph)
        src, dst = check_ends(graph, x, *end_sizes(self.in_features))
        params = self.kernel[...], None if self.bias is None else self.bias[...]
        src, dst, kernel, bias = in_one_dtype((src, dst, *params), self.dtype)
        weight = _edge_weight(graph, edge_weight)
        messages = src
        if self.projection is not None:
            messages = jax.nn.relu(linear(self.projection, src))
        root = None if self.root is None else linear(self.root, dst)
        is_square = len(kernel) == self.out_features and not isinstance(messages, HostRows)

        def aggregate(features: Array, **last: Any) -> Array:
            # A sum over a known degree, while the gradient of a mean counts edges. Sums of half
            # types may overflow.
            if self.aggregation == "mean" and features.dtype.itemsize >= 4:
                share = 1 / jnp.maximum(graph.in_degrees(), 1).astype(features.dtype)
                return aggregated(graph, features, weight, out_scale=share, **last)
            return aggregated(graph, features, weight, reduce=self.aggregation, **last)

        if self.aggregation == "max":
            y = aggregate(as_array("x", messages))
            y = jnp.where(row_wise(graph.in_degrees() == 0, y), 0, y)  # -inf there
        elif is_square or sums_first(graph, *kernel.shape, x=messages):
            y = aggregate(messages)
        else:
            # Without the barrier XLA joins both maps of x on a GPU, and copies what comes of either
            # out of their product.
            y = self._product(jax.lax.optimization_barrier(messages), kernel)
            if self.normalize:
                y = unit_rows(aggregate(y, residual=root, **epilogue(y, bias, None)))
                return finished(y, None, activation)
            return aggregate(y, residual=root, **epilogue(y, bias, activation))
        y = self._product(y, kernel)  # whose kernel would add the root term more slowly
        y = finished(y if root is None else y + root, bias)
        return finished(unit_rows(y) if self.normalize else y, None, activation)


class GCN(Stack):
    """Graph convolutional network: three `GCNConv` (or more, or less).

    Its call takes the arguments of `GCNConv`'s; the scales of the nodes are computed once.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GCN(4, 16, 3, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = GCNConv

    def __call__(  # type: ignore[override]  # names arguments that Stack leaves open
        self,
        graph: Graph | Blocks,
        x: ArrayLike,
        edge_weight: ArrayLike | None = None,
        node_scale: ArrayLike | None = None,
        **dropout: Any,
    ) -> Array:
        """Computes one row of outputs (logits) per node.

        Args:
            graph: The graph, or blocks, see `Stack`.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            edge_weight: ``(num_edges,)``, see `GCNConv`.
            node_scale: ``(num_nodes,)``, see `GCNConv`. Of blocks those of the first one's sources,
                such as the whole graph's, ``take(gcn_norm(whole), blocks.node_ids)``; None means
                that each block's degrees count.
            **dropout: `deterministic` and `rngs`, see `Stack`.

        Returns:
            ``(num_nodes, *batch, out_features)``; of blocks, for the seeds.

        Raises:
            ValueError: A shape does not fit a layer or the graph.
        """
        first = self.convolutions[0]
        if first.normalize and node_scale is None and not isinstance(graph, Blocks):
            node_scale = gcn_norm(graph, edge_weight, add_self_loops=first.add_self_loops)
        given: dict[str, Any] = {"edge_weight": edge_weight, "node_scale": node_scale}
        return super().__call__(graph, x, **given, **dropout)

    def _convolve(self, number: int, graph: Any, x: Array, *arguments: Any, **named: Any) -> Array:
        # The kernel of the layer before applies a layer's scales of what it sums up, which are the
        # same at both ends of edges. They pass through a dropout.
        scale = named.get("node_scale")
        if scale is not None and not isinstance(scale, tuple):
            named |= {"is_scaled": number > 1, "scales_result": number < self.num_layers}
        return super()._convolve(number, graph, x, *arguments, **named)


class GIN(Stack):
    """Graph isomorphism network: three `GINConv` (or more, or less).

    Its call takes the arguments of `GINConv`'s. Its classifier is the last convolution's MLP.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GIN(4, 16, 3, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = GINConv


class SAGE(Stack):
    """GraphSAGE: three `SAGEConv` (or more, or less).

    Its call takes the arguments of `SAGEConv`'s.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> SAGE(4, 16, 3, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = SAGEConv


def _sum_with_own(
    graph: Graph, x: Array, weight: Array | None, own_scale: Any, **options: Any
) -> Array:
    """Sums rows over edges, and adds that of the destination itself times a number, or None."""
    if own_scale is None or num_rows(graph) == graph.num_dst:
        return aggregated(graph, x, weight, own_scale=own_scale, **options)
    acc = accumulator_dtype(x.dtype)
    own = of_destinations(graph, x).astype(acc) * jnp.asarray(own_scale, acc)
    own = scaled(own, options.get("out_scale")).astype(x.dtype)
    return spmm(graph, x, weight, residual=own, **options)


def _edge_weight(graph: Graph, weight: ArrayLike | None) -> Any:
    if weight is None:
        return None
    return check_vector("edge_weight", weight, "num_edges", graph.num_edges)
