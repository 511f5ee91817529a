"""Attention within each type of edges, and over these types (HAN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import attention_init
from flax_layers._declaration import LinearOptions, ParameterFactory, option_names, option_values
from flax_layers.hetero import HeteroLinear
from flax_layers.program_conv import EdgeDropout, dropout_key
from jax_gnn import HeteroGraph, Node, program
from jax_gnn.extend import check_flag, check_instance, described
from jax_gnn.relational import EdgeType


@program
def _node_attention(
    g: Any,
    z_src: Node,
    z_dst: Node,
    src_attention: Array,
    dst_attention: Array,
    negative_slope: float,
    dropout: EdgeDropout,
) -> Any:
    score = g.src(jnp.sum(z_src * src_attention, -1)) + g.dst(jnp.sum(z_dst * dst_attention, -1))
    share = dropout(g, g.softmax(jax.nn.leaky_relu(score, negative_slope)))
    return jax.nn.relu(g.sum(share[:, None] * g.src(z_src)).reshape(-1))


class HANOptions(LinearOptions):
    """Options of `HANConv`, and of `HAN` for its convolutions.

    Attributes:
        edge_types: Types of edges, ``(source type, relation, destination type)`` each, such as
            `HeteroGraph.edge_types`, or of meta-paths.
        heads: Number of heads, which share `out_features`.
        negative_slope: Slope of the LeakyReLU of the scores.
        attention_dropout_rate: Share of the attention weights of edges dropped in training, in
            [0, 1].
    """

    edge_types: Sequence[EdgeType]
    heads: int = 1
    negative_slope: float = 0.2
    attention_dropout_rate: float = 0.0


class HANConv(HANOptions):
    """Attention over the edges of each type, as GAT's, then over the types into a node type.

    A type of edges gets the softmax of ``mean_i ⟨q, tanh(W y_i + b)⟩``, over the nodes it runs to.
    Wang et al., "Heterogeneous graph attention network", WWW 2019, as PyTorch Geometric's layer of
    this name.

    Attributes:
        in_features: Features per node by type; for a type without features, its number of nodes.
        out_features: Features per node of the output.
        input: Maps by type of nodes, `HeteroLinear`.
        src_attention: Vectors of the sources' scores by type of edges, ``(heads, width)``.
        dst_attention: Vectors of the destinations' scores, likewise.
        semantic: Map W, b of the attention over types.
        query: Vector q, ``(1, out_features)``.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1], [0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}).with_graphs()
        >>> sizes, types = {"author": 4, "paper": 5}, graph.edge_types
        >>> conv = HANConv(sizes, 8, edge_types=types, heads=2, rngs=nnx.Rngs(0))
        >>> y = conv(graph, {"author": jnp.ones((2, 4)), "paper": jnp.ones((3, 5))})
        >>> {name: rows.shape for name, rows in y.items()}
        {'paper': (3, 8)}
    """

    in_features: Mapping[str, int] = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        base.check_heads(self.heads, self.out_features)
        self.input = HeteroLinear(self.in_features, self.out_features, **factory._asdict())
        self.in_features = self.input.in_features
        self.edge_types = _checked_types(self.edge_types, self.in_features)
        shape = self.heads, self.out_features // self.heads
        self.src_attention, self.dst_attention = (
            base.Named(
                {key: factory.kernel(*shape, init=attention_init) for key in self.edge_types}
            )
            for _ in range(2)
        )
        self.semantic = factory.linear(self.out_features, self.out_features)
        self.query = factory.kernel(1, self.out_features, init=attention_init)
        self.dropout = nnx.Dropout(self.attention_dropout_rate, rngs=factory.rngs)

    def __call__(
        self,
        graph: HeteroGraph,
        x_dict: Mapping[str, ArrayLike | None],
        *,
        return_attention: bool = False,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Any:
        """Return the new features of each type of nodes that edges run to.

        Args:
            graph: Graph with these types of edges, with a graph of each (`with_graphs`).
            x_dict: Features by type, ``(nodes of the type, in_features)``, or None for nodes
                without features.
            return_attention: Whether to return the shares of the types of edges, too, by type of
                nodes.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.

        Returns:
            By type ``(nodes of the type, out_features)``; and with `return_attention` by type
            ``(types of edges into it,)``, in the order of `edge_types`.

        Raises:
            ValueError: A type is unknown or missing, or a shape does not fit.
        """
        check_instance("graph", graph, HeteroGraph)
        check_flag("return_attention", return_attention)
        z, streams = (
            graph.check_features(self.input(x_dict)),
            base.dropout_arguments(rngs=rngs)["rngs"],
        )
        results: dict[str, list[Array]] = {name: [] for name in self.in_features}
        for key in self.edge_types:
            vectors = self.src_attention[key][...], self.dst_attention[key][...]
            src, dst = (
                z[name].reshape(len(z[name]), *vectors[0].shape) for name in (key[0], key[2])
            )
            src, dst, *vectors = base.promote((src, dst, *vectors), self.dtype)
            dropout = EdgeDropout(
                dropout_key(self.dropout, deterministic, streams), self.attention_dropout_rate
            )
            y = _node_attention(
                graph.graph(key), src, dst, *vectors, float(self.negative_slope), dropout
            )
            results[key[2]].append(y)
        combined = {name: self._combined(rows) for name, rows in results.items() if rows}
        y = {name: rows for name, (rows, _) in combined.items()}
        return (
            (y, {name: share for name, (_, share) in combined.items()}) if return_attention else y
        )

    def _combined(self, rows: list[Array]) -> tuple[Array, Array]:
        """Return the sum of results by their shares, and these."""
        y, query = base.promote((jnp.stack(rows), self.query[...]), self.dtype)
        keys = jnp.tanh(base.linear(self.semantic, y))
        keys = keys.mean(1) if y.shape[1] else keys.sum(1)  # a type without nodes has no mean
        share = jax.nn.softmax(keys @ query[0])
        return jnp.tensordot(share, y, 1), share


class HAN(HANOptions):
    """Heterogeneous graph attention network: a `HANConv`, dropout, and a linear map.

    Its call takes the arguments of `HANConv`'s.

    Attributes:
        in_features: Features per node by type; for a type without features, its number of nodes.
        hidden_features: Features per node of the convolution.
        out_features: Features per node of the output, the number of classes.
        dropout_rate: Share of hidden features dropped in training, in [0, 1].
        conv: The convolution.
        output: The linear map, of nodes of all types.

    Example:
        >>> edges = {("author", "writes", "paper"): [[0, 1], [0, 2]]}
        >>> graph = HeteroGraph.from_edges(edges, {"author": 2, "paper": 3}).with_graphs()
        >>> sizes, types = {"author": 4, "paper": 3}, graph.edge_types
        >>> model = HAN(sizes, 8, 2, edge_types=types, rngs=nnx.Rngs(0))  # three papers
        >>> model(graph, {"author": jnp.ones((2, 4)), "paper": None})["paper"].shape
        (3, 2)
    """

    in_features: Mapping[str, int] = field(kw_only=False)
    hidden_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)
    dropout_rate: float = 0.5

    def _make_parameters(self, factory: ParameterFactory) -> None:
        base.check_heads(self.heads, self.hidden_features, "hidden_features")
        values = option_values(self) | factory._asdict()
        options = {name: values[name] for name in option_names(HANConv)}
        self.conv = HANConv(self.in_features, self.hidden_features, **options)
        self.in_features, self.edge_types = self.conv.in_features, self.conv.edge_types
        self.output = factory.linear(self.hidden_features, self.out_features)
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def __call__(
        self,
        graph: HeteroGraph,
        x_dict: Mapping[str, ArrayLike | None],
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> dict[str, Array]:
        """Return outputs (logits) of each type that edges run to; arguments as of `HANConv`."""
        dropout = base.dropout_arguments(deterministic, rngs)
        y = self.conv(graph, x_dict, **dropout)
        return {
            name: base.linear(self.output, self.dropout(rows, **dropout))
            for name, rows in y.items()
        }


def _checked_types(edge_types: object, sizes: Mapping[str, int]) -> tuple[EdgeType, ...]:
    """Return types of edges between nodes of these types."""
    if isinstance(edge_types, str) or not isinstance(edge_types, Sequence) or not edge_types:
        raise TypeError(f"edge_types must be a sequence of types, got {described(edge_types)}")
    for key in edge_types:
        if not isinstance(key, Sequence) or [type(part) for part in key] != [str, str, str]:
            raise TypeError(
                f"edge_types must be (source type, relation, destination type) each, got {key!r}"
            )
        if not {key[0], key[2]} <= sizes.keys():
            raise ValueError(
                f"edge_types must be between the types of in_features, {', '.join(sizes)}, got "
                f"{key!r}"
            )
    return tuple((src, name, dst) for src, name, dst in edge_types)
