"""Graph neural networks in Flax NNX: GCN and GraphSAGE."""

from __future__ import annotations

import warnings
from dataclasses import InitVar, field
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, glorot_init
from jax_gnn import Graph, segment_sum, spmm
from jax_gnn.extend import accumulator_dtype, as_array, check_instance, row_wise, take
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import HostRows

Aggregation = Literal["mean", "max", "sum"]
GCNNormalization = Literal["symmetric"]


def gcn_norm(
    graph: Graph, edge_weight: ArrayLike | None = None, *, add_self_loops: bool = True
) -> Any:
    """Return the scales ``D^-1/2`` of the nodes, by which A becomes ``D^-1/2 (A + I) D^-1/2``.

    ``D`` holds the (weighted) in-degrees, plus one for the self-loop. `GCNConv` computes the scales
    by itself; for weights that do not change, they can be computed once and passed to it.

    The destinations of a bipartite graph are the first of its sources; the scales of its sources
    come from their out-degrees.

    Args:
        graph: The graph.
        edge_weight: Weights, ``(num_edges,)``, in the graph's order; None means ones.
        add_self_loops: Whether I is added.

    Returns:
        ``(num_nodes,)`` in float32, or in float64 where 64 bits are on; 0 where the degree is not
        positive. For a bipartite graph a pair, ``(num_src,)`` and ``(num_dst,)``.

    Raises:
        ValueError: The weights have another shape, or there are more destinations than sources.

    Example:
        >>> graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
        >>> gcn_norm(graph)
        Array([0.70710677, 0.70710677], dtype=float32)
    """
    check_instance("graph", graph, Graph)
    self_loop = int(add_self_loops)
    weight = base.check_edge_weight(graph, edge_weight)
    if weight is None:
        degree = graph.in_degrees().astype(float)
    else:
        weight = weight.astype(float)
        degree = segment_sum(weight, graph.rows, graph.num_dst, True)
    # In-degrees scale both endpoints unless the graph is bipartite.
    scale = base.inverse_root(degree + self_loop)
    if base.num_rows(graph) == graph.num_dst:
        return scale
    base.check_destinations_are_sources(graph)
    if weight is None:
        degree = graph.out_degrees().astype(float)
    else:
        degree = segment_sum(take(weight, graph.t_order), graph.t_rows, graph.num_src, True)
    return base.inverse_root(degree.at[: graph.num_dst].add(self_loop)), scale


class GCNOptions(LinearOptions):
    """Options of `GCNConv`, and of `GCN` for its convolutions.

    Attributes:
        normalization: Scaling by degrees: "symmetric", ``D^-1/2`` on both sides, or None.
        add_self_loops: Whether to add I to A.
        kernel_init: Initializer of the kernels, Glorot's as in the paper.
    """

    normalization: GCNNormalization | None = "symmetric"
    add_self_loops: bool = True
    kernel_init: InitVar[nnx.Initializer] = glorot_init


class GCNConv(GCNOptions, base.Convolution):
    """Graph convolution: ``D^-1/2 (A + I) D^-1/2 X Theta + b``.

    Kipf and Welling, "Semi-supervised classification with graph convolutional networks", ICLR 2017,
    equation 2. A self-loop is a term of the sum, not an edge: the graph's own edges from a node to
    itself count as well. The aggregation runs on the narrower side of Theta.

    The destinations of a bipartite graph, such as a sampled block, are the first of its sources. If
    there are many more sources than destinations, the aggregation comes first.

    Attributes:
        kernel: Theta, ``(in_features, out_features)``.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GCNConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph
    has_activation = True

    def __call__(
        self,
        graph: Graph,
        x: ArrayLike,
        edge_weight: ArrayLike | None = None,
        node_scale: ArrayLike | None = None,
        *,
        activation: base.Activation | None = None,
        is_scaled: bool = False,
        scales_result: bool = False,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``.
            edge_weight: Weights, ``(num_edges,)``, in the graph's order (`Graph.edge_values`); None
                means ones.
            node_scale: Scales from `gcn_norm` for graph and weights, ``(num_src,)``, or a pair for
                sources and destinations; None computes them if the layer normalizes. A block may
                have the scales that its nodes have in the whole graph.
            activation: "relu" for a ReLU at the end, fused into the last kernel if that aggregates.
            is_scaled: Whether x has been multiplied by `node_scale` already.
            scales_result: Whether to multiply the result by `node_scale`, after the activation, as
                the next layer would.
        """
        base.check_activation(activation)
        x, kernel, bias = self._operands(x, graph)
        weight = base.check_edge_weight(graph, edge_weight)
        # D^-1/2 on both sides: the input is scaled by source, sums by destination.
        src_scale = dst_scale = None
        if self.normalization:
            if node_scale is None:
                node_scale = gcn_norm(graph, weight, add_self_loops=self.add_self_loops)
            src_scale, dst_scale = base.endpoint_values("node_scale", node_scale, graph)

        def aggregate(x: Array, **options: Any) -> Array:
            self_scale = 1 if self.add_self_loops else None
            return sum_with_self(graph, x, weight, self_scale, out_scale=dst_scale, **options)

        # Node scales are applied where rows are stored. Edge scales would be read once per edge.
        input_scale = None if is_scaled else src_scale
        result_scale = dst_scale if scales_result else None
        if base.aggregates_first(graph, *kernel.shape, x=x):
            sums = aggregate(base.scaled(x, input_scale))
            y = self._product(sums, kernel, bias=bias, activation=activation)
            return base.scaled(y, result_scale)
        y, halo = self._product_with_halo(graph, x, kernel, scale=input_scale)
        last_steps = base.epilogue(y, bias, activation)
        return aggregate(y, result_scale=result_scale, **halo, **last_steps)


class SAGEOptions(LinearOptions):
    """Options of `SAGEConv`, and of `SAGE` for its convolutions.

    Attributes:
        reduce: Reduction over the neighbours: "mean", "max" or "sum".
        self_weight: Whether a node's own features count, by a map of their own.
        project: Whether features go through a map and ReLU before they are aggregated, as in the
            pooling aggregator (equation 3).
        l2_normalize: Whether each row of the result is divided by its Euclidean norm.
    """

    reduce: Aggregation = "mean"
    self_weight: bool = True
    project: bool = False
    l2_normalize: bool = False


class SAGEConv(SAGEOptions, base.Convolution):
    """GraphSAGE convolution: ``X Theta_root + agg(X) Theta + b``.

    Hamilton et al., "Inductive representation learning on large graphs", NeurIPS 2017, algorithm 1,
    over all neighbours. ``agg`` is the mean, maximum or sum over the sources of a node's edges, 0
    for a node without edges. Mean and sum run on the narrower side of Theta.

    For a bipartite graph, x is a pair of features, of sources and of destinations, or an array of
    the sources, of which the destinations are the first.

    Attributes:
        in_features: Features per node of the input; a pair for sources and destinations.
        kernel: Theta, ``(in_features, out_features)``.
        root: Map of a node's own features; None without.
        projection: Map before the aggregation; None without.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> SAGEConv(4, 8, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph
    has_activation = True

    in_features: int | tuple[int, int] = field(kw_only=False)  # type: ignore[assignment]  # wider

    def _make_parameters(self, factory: ParameterFactory) -> None:
        src_features, dst_features = base.endpoint_sizes(self.in_features)
        self.kernel = factory.kernel(src_features, self.out_features)
        self.bias = factory.bias(self.out_features)
        self.root = factory.linear(
            dst_features, self.out_features, use_bias=False, when=self.self_weight
        )
        self.projection = factory.linear(src_features, src_features, when=self.project)

    def __call__(
        self,
        graph: Graph,
        x: base.NodeFeatures,
        edge_weight: ArrayLike | None = None,
        *,
        activation: base.Activation | None = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_weight: Factors of messages before the aggregation, ``(num_edges,)``, in the
                graph's order (`Graph.edge_values`); None means ones.
            activation: "relu" for a ReLU at the end, fused into the last kernel if that aggregates.
        """
        base.check_activation(activation)
        check_instance("graph", graph, Graph)
        src, dst = base.check_endpoint_features(graph, x, *base.endpoint_sizes(self.in_features))
        params = self.kernel[...], base.parameter_value(self.bias)
        src, dst, kernel, bias = base.promote((src, dst, *params), self.dtype)
        weight = base.check_edge_weight(graph, edge_weight)
        messages = src
        if self.projection is not None:
            messages = jax.nn.relu(base.linear(self.projection, src))
        root = None if self.root is None else base.linear(self.root, dst)
        # A mean or sum commutes with Theta and runs on its narrower side; a maximum comes first.
        is_square = len(kernel) == self.out_features and not isinstance(messages, HostRows)

        def aggregate(x: Array, **options: Any) -> Array:
            # A mean is a sum with a known degree: the gradient of `reduce="mean"` counts edges
            # again. Sums of half types may overflow.
            if self.reduce == "mean" and x.dtype.itemsize >= 4:
                share = 1 / jnp.maximum(graph.in_degrees(), 1).astype(x.dtype)
                return base.aggregate_edges(graph, x, weight, out_scale=share, **options)
            return base.aggregate_edges(graph, x, weight, reduce=self.reduce, **options)

        if self.reduce == "max":
            y = aggregate(as_array("x", messages))
            y = jnp.where(row_wise(graph.in_degrees() == 0, y), 0, y)  # -inf without edges
        elif is_square or base.aggregates_first(graph, *kernel.shape, x=messages):
            y = aggregate(messages)
        else:
            # Without the barrier XLA joins both maps of x on a GPU, and copies the results of both
            # out of their common product.
            y = self._product(jax.lax.optimization_barrier(messages), kernel)
            if self.l2_normalize:
                y = base.unit_rows(aggregate(y, residual=root, **base.epilogue(y, bias, None)))
                return base.finished(y, None, activation)
            return aggregate(y, residual=root, **base.epilogue(y, bias, activation))
        # XLA adds the root term faster than an epilogue of this product does.
        y = self._product(y, kernel)
        y = base.finished(y if root is None else y + root, bias)
        return base.finished(base.unit_rows(y) if self.l2_normalize else y, None, activation)


class GCN(GCNOptions, base.Stack):
    """Graph convolutional network: three `GCNConv` by default.

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
        **dropout: Unpack[base.DropoutCall],
    ) -> Array:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: The graph, or blocks, see `Stack`.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            edge_weight: Weights, ``(num_edges,)``, see `GCNConv`.
            node_scale: Scales, ``(num_nodes,)``, see `GCNConv`. For blocks, scales of the sources
                of the first one, such as those in the whole graph,
                ``take(gcn_norm(whole), blocks.node_ids)``; None means that each block's degrees
                count, which are those of its sampled edges: a warning says so.
            **dropout: `deterministic` and `rngs`, see `Stack`.
        """
        if self.normalization and node_scale is None:
            if isinstance(graph, Blocks):
                warnings.warn(
                    "GCN scales blocks by the degrees of their sampled edges; for those of the "
                    "whole graph pass node_scale=take(gcn_norm(graph), blocks.node_ids)",
                    stacklevel=2,
                )
            else:
                node_scale = gcn_norm(graph, edge_weight, add_self_loops=self.add_self_loops)
        return super().__call__(graph, x, edge_weight=edge_weight, node_scale=node_scale, **dropout)

    def _convolve(
        self, number: int, graph: base.Structure, x: Array, *arguments: object, **named: object
    ) -> Array:
        # Both ends of an edge have the same scale. The kernel of a layer applies the scale that the
        # next layer's input needs, so that no multiplication runs between them. Scales commute
        # with the dropout.
        scale = named.get("node_scale")
        if scale is not None and not isinstance(scale, tuple):
            named |= {"is_scaled": number > 1, "scales_result": number < self.num_layers}
        return super()._convolve(number, graph, x, *arguments, **named)


class SAGE(SAGEOptions, base.Stack):
    """GraphSAGE: three `SAGEConv` by default.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> SAGE(4, 16, 3, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = SAGEConv


def sum_with_self(
    graph: Graph, x: Array, weight: Array | None, self_scale: ArrayLike | None, **options: Any
) -> Array:
    """Sum rows over edges, and add `self_scale` times the destination's own row; None adds none."""
    if self_scale is None or base.num_rows(graph) == graph.num_dst:
        return base.aggregate_edges(graph, x, weight, self_scale=self_scale, **options)
    # The kernel reads a node's own row among the sums; here it is another array, in the dtype in
    # which rows are summed.
    acc = accumulator_dtype(x.dtype)
    self_term = base.destination_rows(graph, x).astype(acc) * jnp.asarray(self_scale, acc)
    self_term = base.scaled(self_term, options.get("out_scale")).astype(x.dtype)
    return spmm(graph, x, weight, residual=self_term, **options)
