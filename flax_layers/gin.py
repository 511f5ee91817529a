"""Graph isomorphism networks in Flax NNX, with perceptrons of their own or of the user."""

from __future__ import annotations

import inspect
from dataclasses import field
from typing import Any

import jax
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, ParameterLayer
from flax_layers.graph import sum_with_self
from flax_layers.mlp import Norm, make_norm
from flax_layers.norms import NodeBatchNorm, check_mask, check_nodes
from jax_gnn import Batch, Graph
from jax_gnn.extend import as_array, check_callable, check_instance, described
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import Part


class GINOptions(LinearOptions):
    """Options of `GINConv`, and of `GIN` for its convolutions.

    Attributes:
        mlp_features: Features inside the MLP; None means `out_features`.
        mlp_norm: "batch_norm" after the MLP's first map, over nodes that are no padding, as in
            PyG's `MLP`; None without.
        mlp: MLP in place of the built-in one: a module of rows ``(num_dst, *batch, in_features)``,
            or a function ``mlp(in_features, out_features, rngs)`` that makes one, which a `GIN`
            calls for each layer. Of `mask`, `deterministic` and `rngs`, the module gets those that
            its call names, as that of `MLP` does; without `deterministic` its mode is that of
            `train()` and `eval()`. None builds an MLP.
        eps: Weight of a node's own features beyond 1; the initial value if it is learnable.
        learn_eps: Whether eps is learnable.
    """

    mlp_features: int | None = None
    mlp_norm: Norm | None = None
    mlp: Any = None
    eps: float = 0.0
    learn_eps: bool = False


class GINConv(GINOptions, base.Convolution):
    """Graph isomorphism convolution: ``MLP((1 + eps) X + A X)``.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019, equation 4.1. The built-in MLP
    has one hidden layer with ReLU. Its first map is linear, hence the aggregation runs on the
    narrower side of it. The destinations of a bipartite graph are the first of its sources.

    Attributes:
        kernel: Weights of the built-in MLP's first map, ``(in_features, mlp_features)``.
        bias: Biases of its first map, ``(mlp_features,)``, or None without biases.
        output: Second map of the built-in MLP.
        batch_norm: Norm of the built-in MLP; None without.
        learned_eps: The learnable eps, ``()``; None if it is fixed.

    Example:
        >>> graph, rngs = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3), nnx.Rngs(0)
        >>> GINConv(4, 8, mlp_norm="batch_norm", rngs=rngs)(graph, jnp.ones((3, 4))).shape
        (3, 8)
        >>> mlp = nnx.Sequential(nnx.Linear(4, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs))
        >>> GINConv(4, 8, mlp=mlp, rngs=rngs)(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = Graph
    has_activation = True

    def _make_parameters(self, factory: ParameterFactory) -> None:
        is_built, width = self.mlp is None, self.mlp_features or self.out_features
        self.kernel = factory.kernel(self.in_features, width, when=is_built)
        self.bias = factory.bias(width) if is_built else nnx.data(None)
        self.output = factory.linear(width, self.out_features, when=is_built)
        has_norm = is_built and self.mlp_norm is not None
        self.batch_norm: Any = make_norm(width, factory) if has_norm else nnx.data(None)
        self.mlp = nnx.data(None if is_built else users_mlp(self, self.in_features, factory))
        self.learned_eps = factory.full(self.eps, when=self.learn_eps)

    def __call__(
        self,
        graph: Graph,
        x: ArrayLike,
        edge_weight: ArrayLike | None = None,
        *,
        node_mask: ArrayLike | None = None,
        activation: base.Activation | None = None,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph. A device's part of a larger one has no statistics of its own: batch
                norms must use running ones.
            x: Features of the sources, ``(num_src, *batch, in_features)``.
            edge_weight: Weights, ``(num_edges,)``, in the graph's order (`Graph.edge_values`); None
                means ones.
            node_mask: ``(num_src,)`` bool, which nodes are no padding, such as
                `jax_gnn.Batch.node_mask`: the others do not count in statistics of batch norms.
                None means all.
            activation: "relu" for a ReLU at the end.
            deterministic: Whether norms use running statistics, and nothing is dropped in `mlp`;
                None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout in `mlp`; None means that of `mlp` itself.

        Raises:
            ValueError: A shape does not fit, or a batch norm would take statistics of padding, as
                the call of `mlp` has no `mask`, or of a part.
        """
        base.check_activation(activation)
        check_instance("graph", graph, Graph)
        mask = None
        if node_mask is not None:
            mask = check_mask("node_mask", node_mask, base.num_rows(graph))[: graph.num_dst]
        weight = base.check_edge_weight(graph, edge_weight)
        # In half types 1 + eps would be rounded; the kernel adds this term in the sum's precision.
        eps = self.eps if self.learned_eps is None else self.learned_eps[...].astype(float)

        def aggregate(x: Array, **options: Any) -> Array:
            return sum_with_self(graph, x, weight, 1 + eps, **options)

        check_statistics(self, self.mlp, graph, mask, deterministic)
        if self.mlp is not None:
            rows = as_array("x", base.check_sources(graph, x, self.in_features))
            (rows,) = base.promote((rows,), self.dtype)
            y = apply_mlp(self.mlp, aggregate(rows), self.out_features, mask, deterministic, rngs)
            return base.finished(y, None, activation)
        x, kernel, bias = self._operands(x, graph)
        first: base.Activation | None = None if self.batch_norm is not None else "relu"
        hidden = self._aggregate_narrow(aggregate, x, kernel, bias, first, graph=graph)
        if self.batch_norm is not None:
            hidden = self.batch_norm(mask, hidden, use_running_average=deterministic)
            hidden = jax.nn.relu(hidden)
        return base.linear(self.output, hidden, activation)


def users_mlp(layer: Any, in_features: int, factory: ParameterFactory) -> nnx.Module:
    """Return the module of the option `mlp` of a layer, made if it is a function."""
    mlp: Any = layer.mlp
    check_callable("mlp", mlp)
    if layer.mlp_features is not None or layer.mlp_norm is not None:
        raise ValueError(
            "mlp_features and mlp_norm must be None with an mlp, which has its own, got "
            f"{layer.mlp_features} and {layer.mlp_norm!r}"
        )
    if not isinstance(mlp, nnx.Module):
        mlp = mlp(in_features, layer.out_features, factory.rngs)
    check_instance("mlp(in_features, out_features, rngs)", mlp, nnx.Module)
    return mlp


def apply_mlp(
    mlp: Any,
    x: Array,
    out_features: int,
    mask: Array | None,
    deterministic: bool | None,
    rngs: base.DropoutKeys,
) -> Array:
    """Apply a perceptron to rows, with those arguments that its call names."""
    options = {"mask": mask, **base.dropout_arguments(deterministic, rngs)}
    names = inspect.signature(mlp).parameters
    y: Array = mlp(x, **{k: v for k, v in options.items() if k in names})
    if y.shape[-1:] != (out_features,):
        raise ValueError(f"mlp must return out_features = {out_features}, got shape {y.shape}")
    return y


def check_statistics(
    layer: nnx.Module, mlp: Any, graph: Graph, mask: Array | None, deterministic: bool | None
) -> None:
    """Raise ValueError where a batch norm of a layer would take statistics that are wrong."""
    takes = {"mask", "deterministic"}
    if mlp is not None:
        takes &= inspect.signature(mlp).parameters.keys()
    ignores_mask = mask is not None and "mask" not in takes
    if not isinstance(graph, Part) and not ignores_mask:
        return
    for _, module in nnx.iter_modules(layer):
        if isinstance(module, NodeBatchNorm | nnx.BatchNorm):
            # `ShardedGraph.apply` names the axis for the norms of a model that it calls.
            if module.axis_name is not None and not ignores_mask:
                continue
            # Modules whose call has no `deterministic` keep their own mode.
            is_given = deterministic is not None and "deterministic" in takes
            if not (deterministic if is_given else module.use_running_average):
                raise ValueError(
                    "batch norms must use running statistics, by eval(), where graph is a "
                    "device's part and apply does not call the model itself, or node_mask is given "
                    "for an mlp whose call has no mask, "
                    f"got {described(graph)} and {described(mlp)}"
                )


class GIN(GINOptions, base.Stack):
    """Graph isomorphism network: three `GINConv` by default.

    Its call takes the arguments of `GINConv`'s. Its classifier is the last convolution's MLP.
    Padding of blocks does not count in the statistics of norms.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> GIN(4, 16, 3, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 3)
    """

    convolution = GINConv
    dropout_in_convolutions = True

    def _make_parameters(self, factory: ParameterFactory) -> None:
        if isinstance(self.mlp, nnx.Module):
            raise TypeError(
                "mlp must be a function (in_features, out_features, rngs) that makes a module for "
                f"each layer, got a {type(self.mlp).__name__}, which the layers would share"
            )
        super()._make_parameters(factory)

    def _calls(
        self,
        graph: base.Structure | Blocks,
        arguments: tuple[object, ...],
        named: dict[str, object],
    ) -> list[tuple[Any, tuple[object, ...], dict[str, object]]]:
        if not isinstance(graph, Blocks):
            return super()._calls(graph, arguments, named)
        # The sources of a block are the first sources of the block before.
        mask: Any = named.pop("node_mask", None)
        mask = graph.node_ids >= 0 if mask is None else mask
        mask = check_mask("node_mask", mask, len(graph.node_ids))
        calls = super()._calls(graph, arguments, named)
        return [
            (block, values, by_name | {"node_mask": mask[: block.num_src]})
            for block, values, by_name in calls
        ]


class GINBlock(ParameterLayer):
    """GIN's layer as published: ``MLP((1 + eps) X + A X)`` with batch norms, and ReLU last.

    Xu et al., "How powerful are graph neural networks?", ICLR 2019, section 7. For norms over one
    graph use ``batch([graph])``.

    Attributes:
        in_features: Features per node of the input.
        out_features: Features per node of the output, and inside the MLP.
        eps: Weight of a node's own features, less 1; the initial value if it is learnable.
        learn_eps: Whether eps is learnable.
        conv: The convolution, with a batch norm inside its MLP.
        norm: Batch norm after it, which a ReLU follows.

    Example:
        >>> graphs = batch([Graph.from_edges([(0, 1)])])
        >>> GINBlock(4, 8, rngs=nnx.Rngs(0))(graphs, jnp.ones((2, 4))).shape
        (2, 8)
    """

    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)
    eps: float = 0.0
    learn_eps: bool = False

    def _make_parameters(self, factory: ParameterFactory) -> None:
        eps: Any = {"eps": self.eps, "learn_eps": self.learn_eps, "mlp_norm": "batch_norm"}
        self.conv = GINConv(self.in_features, self.out_features, **eps, **factory._asdict())
        self.norm = make_norm(self.out_features, factory)

    def __call__(
        self, batch: Batch[Graph], x: ArrayLike, *, use_running_average: bool | None = None
    ) -> Array:
        """Apply the layer.

        Args:
            batch: The graphs.
            x: Features of nodes, ``(num_nodes, in_features)``.
            use_running_average: Whether the norms use running statistics; None means the mode's.

        Returns:
            ``(num_nodes, out_features)``.
        """
        x = check_nodes(batch, x, self.in_features)
        return self._apply(batch, x, use_running_average)

    def _apply(self, batch: Batch[Graph], x: Array, use_running_average: bool | None) -> Array:
        """Apply the layer to x that is 0, or any finite constant, for padding."""
        mask, mode = batch.node_mask, use_running_average
        y = self.conv(batch.graph, x, node_mask=mask, deterministic=mode)
        return jax.nn.relu(self.norm(batch, y, use_running_average=mode))
