"""Models of several edge types made of homogeneous ones."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, field
from numbers import Integral
from typing import Any, Literal, get_args

import jax
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import Layer, check_options, option_values
from flax_layers.graph import SAGEConv
from flax_layers.graph_attention import GATConv, GATv2Conv, TransformerConv
from flax_layers.hetero import HeteroConv
from jax_gnn import HeteroGraph
from jax_gnn.extend import as_array, check_choice, check_instance, described
from jax_gnn.relational import EdgeType

Reduce = Literal["sum", "mean", "max", "min"]
HiddenActivation = Literal["relu", "elu"]
PAIRED = SAGEConv, GATConv, GATv2Conv, TransformerConv
"""Convolutions that take features of sources and of destinations."""


class HeteroStack(Layer):
    """Stack of `HeteroConv`, with an activation and dropout between them, such as of `to_hetero`.

    Attributes:
        layers: The `HeteroConv`, by name and in order.
        hidden_activation: Function between two layers, for each node type: "relu" or "elu".
        dropout_rate: Share of hidden activations dropped in training, in [0, 1].
        input_dropout_rate: Share of input features dropped in training, in [0, 1].
        rngs: Source of the dropout's keys, stream "dropout".

    Example:
        >>> edges = {("a", "to", "b"): [[0, 1], [0, 0]]}
        >>> graph = HeteroGraph.from_edges(edges, {"a": 2, "b": 1}).with_graphs()
        >>> conv = HeteroConv({graph.edge_types[0]: SAGEConv((4, 3), 8, rngs=nnx.Rngs(0))})
        >>> model = HeteroStack({"conv1": conv}, rngs=nnx.Rngs(0))
        >>> model(graph, {"a": jnp.ones((2, 4)), "b": jnp.ones((1, 3))})["b"].shape
        (1, 8)
    """

    layers: InitVar[Mapping[str, HeteroConv]] = field(kw_only=False)
    hidden_activation: HiddenActivation = "relu"
    dropout_rate: float = 0.0
    input_dropout_rate: float = 0.0
    rngs: InitVar[nnx.Rngs]

    def __post_init__(self, layers: Mapping[str, HeteroConv], rngs: nnx.Rngs) -> None:
        check_options(self)
        check_instance("layers", layers, Mapping)
        for name, layer in layers.items():
            check_instance(f"layers[{name!r}]", layer, HeteroConv)
        self.layers = base.Named(layers)  # type: ignore[attr-defined]  # an argument of this name
        rates = self.dropout_rate, self.input_dropout_rate
        self.dropout, self.input_dropout = (nnx.Dropout(rate, rngs=rngs) for rate in rates)

    def __call__(
        self,
        graph: HeteroGraph,
        x_dict: Mapping[str, ArrayLike],
        arguments: Mapping[EdgeType, Mapping[str, object]] | None = None,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> dict[str, Array]:
        """Apply the layers; arguments and errors are those of `HeteroConv`.

        Args:
            graph: Graph with the edge types of the layers.
            x_dict: Features by node type, ``(nodes of the type, *batch, features)``.
            arguments: Further arguments of all layers' convolutions by edge type, such as
                `edge_weight`.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.

        Returns:
            By destination type of the last layer ``(nodes of the type, *batch, out_features)``.
        """
        check_instance("graph", graph, HeteroGraph)
        check_instance("x_dict", x_dict, Mapping)
        arguments = {} if arguments is None else arguments
        check_instance("arguments", arguments, Mapping)
        layers: base.Named = self.layers  # type: ignore[attr-defined]  # see __post_init__
        for key in arguments:
            if not any(key in layer.edge_types for layer in layers.members):
                raise ValueError(f"arguments must be by edge types of the layers, got {key!r}")
        dropout: Any = base.dropout_arguments(deterministic, rngs)
        activate = getattr(jax.nn, self.hidden_activation)
        y: Any = {
            name: self.input_dropout(as_array(f"x_dict[{name!r}]", x), **dropout)
            for name, x in x_dict.items()
        }
        for number, layer in enumerate(layers.members):
            if number:
                y = {key: self.dropout(activate(rows), **dropout) for key, rows in y.items()}
            options: dict[EdgeType, Mapping[str, object]] = {}
            for key in layer.edge_types:
                # Arguments keep convolutions from running as one product.
                takes = inspect.signature(layer.convolutions[key]).parameters
                values = {k: v for k, v in dropout.items() if k in takes and v is not None}
                values |= arguments.get(key, {})
                options |= {key: values} if values else {}
            y = layer(graph, y, options)
        return dict(y)


def to_hetero(
    model: Any,
    graph: HeteroGraph | Iterable[EdgeType],
    in_features: Mapping[str, int | ArrayLike],
    *,
    reduce: Reduce = "sum",
    rngs: nnx.Rngs,
) -> HeteroStack:
    """Make a model of several edge types from a homogeneous one, as PyG's `to_hetero` does.

    Each convolution becomes one for each edge type, with parameters of its own, and a reduction of
    the results for each node type. Types that no edge leads to have no features after a layer, so
    that their edges end with the first.

    Args:
        model: `SAGE`, `GAT`, `GATv2` or `GraphTransformer`, or one of their convolutions. Its
            options, hidden and output sizes count, not its parameters and `in_features`.
        graph: The graph, or its edge types: ``data.edge_types`` of PyG.
        in_features: Features per node by type, or arrays of features, whose sizes count.
        reduce: Reduction of the results of a destination type: "sum", "mean", "max" or "min".
        rngs: Source of the keys, streams "params" and "dropout".

    Returns:
        The model, whose call takes a `jax_gnn.HeteroGraph` and features by type.

    Raises:
        TypeError: The model's layers take no pair of features, or an edge type is no triple.
        ValueError: A node type of an edge has no features, the reduction is unknown, or no edge
            type joins nodes with features in a layer.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1], [0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}, inverse=True)
        >>> graph = graph.with_graphs()  # as widths differ, so that sums are not taken together
        >>> x_dict = {"author": jnp.ones((2, 4)), "paper": jnp.ones((3, 6))}
        >>> homogeneous = SAGE(1, 16, 5, num_layers=2, rngs=nnx.Rngs(0))
        >>> model = to_hetero(homogeneous, graph, x_dict, rngs=nnx.Rngs(0))
        >>> model(graph, x_dict, deterministic=True)["paper"].shape
        (3, 5)
    """
    check_choice("reduce", reduce, get_args(Reduce))
    check_instance("in_features", in_features, Mapping)
    stack = model if isinstance(model, base.Stack) else None
    convolutions = [model] if stack is None else stack.convolutions
    if not isinstance(convolutions[0], PAIRED):
        raise TypeError(
            "model must be a SAGE, GAT, GATv2 or GraphTransformer, or a convolution of these, "
            f"which take features of sources and destinations, got {described(model)}"
        )
    edge_types = graph.edge_types if isinstance(graph, HeteroGraph) else tuple(graph)
    for key in edge_types:
        if not isinstance(key, tuple) or len(key) != 3:
            raise TypeError(
                f"graph must be edge types (source type, relation, destination type), got {key!r}"
            )
    widths: dict[str, Any] = {
        name: x if isinstance(x, Integral) else as_array(f"in_features[{name!r}]", x).shape[-1]
        for name, x in in_features.items()
    }
    for key in edge_types:
        for name in (key[0], key[2]):
            if name not in widths:
                raise ValueError(f"in_features lacks the type {name!r}, got {', '.join(widths)}")
    layers = {}
    for number, conv in enumerate(convolutions, start=1):
        options = option_values(conv) | {"rngs": rngs}
        del options["in_features"], options["out_features"]
        convs: dict[EdgeType, Any] = {}
        for key in edge_types:
            if "add_self_loops" in options:  # nodes of two types are never the same
                options["add_self_loops"] = conv.add_self_loops and key[0] == key[2]
            if key[0] in widths and key[2] in widths:
                sizes = widths[key[0]], widths[key[2]]
                convs[key] = type(conv)(sizes, conv.out_features, **options)
        if not convs:
            raise ValueError(f"graph must have edge types for layer {number}, got {edge_types}")
        layers[f"conv{number}"] = HeteroConv(convs, reduce=reduce)
        widths = {key[2]: conv.out_features for key in convs}
    if stack is None:
        return HeteroStack(layers, rngs=rngs)
    uses_relu = type(stack)._activate is base.Stack._activate
    return HeteroStack(
        layers,
        hidden_activation="relu" if uses_relu else "elu",
        dropout_rate=stack.dropout_rate,
        input_dropout_rate=stack.input_dropout_rate,
        rngs=rngs,
    )
