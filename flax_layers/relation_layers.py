"""Convolutions of graphs with relations, each a program of a few lines (`ProgramConv`)."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._attention import AttentionOptions, AttentionStack, MultiHead, attention_init
from flax_layers._declaration import ParameterFactory
from flax_layers.edge_layers import joined, summed
from flax_layers.program_conv import ProgramLayer, axes, dense
from flax_layers.relational import takes_hetero
from flax_layers.typed import TypedLinear
from jax_gnn import Edge, Node, Relation, RelationalGraph
from jax_gnn.extend import as_ids, check_flag, check_instance
from jax_gnn.sampling import Blocks

FiLMReduction = Literal["mean", "sum"]


class SimpleHGNOptions(AttentionOptions):
    """Options of `SimpleHGNConv`, and of `SimpleHGN` for its convolutions.

    Attributes:
        num_relations: Number of relations, inverse relations and that of nodes to themselves
            included.
        relation_features: Features of each relation's embedding.
        residual: Whether a node's own features are added, by a linear map if the result is wider or
            narrower.
        beta: Share of the previous layer's attention in this layer's.
    """

    num_relations: int
    relation_features: int = 64
    residual: bool = True
    beta: float = 0.05


def _simple_hgn(
    g: Any,
    x_src: Node,
    x_dst: Node,
    attention: Edge = axes("heads", optional=True),
    *,
    kernel: Any = axes("src", "width"),
    dst_kernel: Any = axes("dst", "width", when="has_ends"),
    src_attention: Any = axes("heads", "head", init=attention_init),
    dst_attention: Any = axes("heads", "head", init=attention_init),
    embedding: Relation = axes("relations", "relation", init=attention_init),
    relation_kernel: Any = axes("relation", "relation_width"),
    relation_attention: Any = axes("heads", "relation", init=attention_init),
    root: Any = axes("dst", "width", when="maps_residual"),
    bias: Any = axes("out"),
    heads: int,
    concat: bool,
    residual: bool,
    negative_slope: float,
    beta: float,
    dropout: Any,
) -> Any:
    right = kernel if dst_kernel is None else dst_kernel
    z, t = (x_src @ kernel).reshape(heads, -1), (x_dst @ right).reshape(heads, -1)
    r = (embedding @ relation_kernel).reshape(heads, -1)
    score = g.src((z * src_attention).sum(-1)) + g.dst((t * dst_attention).sum(-1))
    score = score + g.relation((r * relation_attention).sum(-1))
    share = dropout(g, g.softmax(jax.nn.leaky_relu(score, negative_slope)))
    if attention is not None:
        share = (1 - beta) * share + beta * attention
    y = g.sum(share[:, None] * g.src(z))
    if residual:
        y = y + (x_dst if root is None else x_dst @ root).reshape(y.shape)
    return summed(y.reshape(-1) if concat else y.mean(0), bias), share


class SimpleHGNConv(SimpleHGNOptions, MultiHead, ProgramLayer, program=_simple_hgn):
    """Attention that knows relations by an embedding: GAT's scores and ``⟨a, r W⟩``, r the edge's.

    Lv et al., "Are we really making much progress? Revisiting, benchmarking and refining
    heterogeneous graph neural networks", KDD 2021, section 5: learnable embeddings of relations,
    residual features, and a share of the previous layer's attention.

    Attributes:
        in_features: Features per node of the input; a pair for sources and destinations.
        kernel: Map of the nodes, or of the sources, ``(in_features, heads · width)``.
        dst_kernel: Map of the destinations if `in_features` is a pair, or None.
        src_attention: Vectors of the sources' scores, ``(heads, width)``.
        dst_attention: Vectors of the destinations' scores, ``(heads, width)``.
        embedding: Embeddings of the relations, ``(num_relations, relation_features)``.
        relation_kernel: Their map, ``(relation_features, heads · relation_features)``.
        relation_attention: Vectors of their scores, ``(heads, relation_features)``.
        root: Map of a node's own features, ``(in_features, heads · width)``, or None.
        bias: Biases, ``(out_features,)``, or None without biases.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, num_relations=2)
        >>> conv = SimpleHGNConv(4, 8, num_relations=2, heads=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = RelationalGraph

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self._check_heads()
        self.has_ends = isinstance(self.in_features, tuple)
        width = base.endpoint_sizes(self.in_features)[1]
        self.maps_residual = self.residual and width != self._width
        super()._make_parameters(factory)

    def _widths(self) -> dict[str, int | None]:
        return super()._widths() | {
            "heads": self.heads,
            "head": self._head_features,
            "width": self._width,
            "relations": self.num_relations,
            "relation": self.relation_features,
            "relation_width": self.heads * self.relation_features,
        }

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self,
        graph: RelationalGraph,
        x: base.NodeFeatures,
        attention: ArrayLike | None = None,
        *,
        return_attention: bool = False,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Any:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            attention: Attention of the previous layer, ``(num_edges, *batch, heads)``, which gets
                no gradient; None without one.
            return_attention: Whether to return this layer's attention, too, as a pair.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        check_flag("return_attention", return_attention)
        inputs: Any = {} if attention is None else {"attention": attention}
        y, share = super().__call__(graph, x, deterministic=deterministic, rngs=rngs, **inputs)
        return (y, jax.lax.stop_gradient(share)) if return_attention else y


class SimpleHGN(SimpleHGNOptions, AttentionStack):
    """Simple heterogeneous graph network: two `SimpleHGNConv` by default; the last has one head.

    Between them is an ELU. Attention goes from layer to layer, but not to the last, and not between
    blocks, whose edges differ. Its call takes a `HeteroGraph`, too.

    Attributes:
        l2_normalize: Whether each row of the result is divided by its Euclidean norm, as published.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, num_relations=2)
        >>> model = SimpleHGN(4, 16, 2, num_relations=2, heads=4, rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4))).shape
        (3, 2)
    """

    l2_normalize: bool = False

    convolution = SimpleHGNConv

    def _call(
        self,
        graph: RelationalGraph | Blocks,
        x: ArrayLike,
        *,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: The graph, blocks, see `Stack`, or a `HeteroGraph`.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        structures = [structure for structure, _, _ in self._calls(graph, (), {})]
        dropout = base.dropout_arguments(deterministic, rngs)
        y, attention = self._input(x, **dropout), None
        for number, (structure, conv) in enumerate(
            zip(structures, self.convolutions, strict=True), start=1
        ):
            is_last = number == self.num_layers
            previous = None if is_last or isinstance(graph, Blocks) else attention
            y, attention = conv(structure, y, previous, return_attention=True, **dropout)
            if not is_last:
                y = self.dropout(jax.nn.elu(y), **dropout)
        return base.unit_rows(y) if self.l2_normalize else y

    __call__ = takes_hetero(_call)


class HEATOptions(AttentionOptions):
    """Options of `HEATConv`, and of `HEAT` for its convolutions.

    Attributes:
        num_node_types: Number of types of nodes.
        num_relations: Number of relations.
        relation_features: Features of each relation's embedding.
        edge_in_features: Features per edge; None if edges have none.
        edge_map_features: Features of edges after their map.
        self_weight: Whether a node's own mapped features are added.
    """

    num_node_types: int
    num_relations: int
    relation_features: int = 64
    edge_in_features: int | None = None
    edge_map_features: int = 64
    self_weight: bool = True


def _heat(
    g: Any,
    x_src: Node = axes("head"),
    x_dst: Node = axes("head"),
    edge_features: Edge = axes("edge"),
    *,
    embedding: Relation = axes("relations", "relation", init=attention_init),
    edge: Any = dense("edge", "edge_map", use_bias=False),
    attention: Any = axes(("head", "head", "relation", "edge_map"), "heads"),
    value: Any = dense(("head", "edge_map"), "head"),
    concat: bool,
    self_weight: bool,
    negative_slope: float,
    dropout: Any,
) -> Any:
    def slope(row: Array) -> Array:
        return jax.nn.leaky_relu(row, negative_slope)

    e = None if edge is None else slope(edge(edge_features))
    ends = joined(g.dst(x_dst), g.src(x_src), slope(g.relation(embedding)), e)
    share = dropout(g, g.softmax(slope(ends @ attention)))
    y = g.sum(share[:, None] * value(joined(g.src(x_src), e))[None])
    y = y + x_dst[None] if self_weight else y
    return y.reshape(-1) if concat else y.mean(0)


class HEATConv(HEATOptions, MultiHead, ProgramLayer, program=_heat):
    """Attention that knows types of nodes, relations and features of edges, in its values, too.

    Of ``z_i``, a map of ``x_i`` by its type, heads have scores ``LeakyReLU(⟨a, (z_i, z_j, r_ij,
    e_ij)⟩)``, and all of them the values ``(z_j, e_ij) W + b``. Mo et al., "Heterogeneous
    edge-enhanced graph attention network for multi-agent trajectory prediction", 2021, as PyTorch
    Geometric's layer of this name.

    Attributes:
        in_features: Features per node of the input.
        types: Maps of the types.
        embedding: Embeddings of the relations, ``(num_relations, relation_features)``.
        edge: Map of the features of edges, or None.
        attention: Vectors a by column, ``(…, heads)``.
        value: Map W, b of the values.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, num_relations=2)
        >>> conv = HEATConv(4, 8, num_node_types=2, num_relations=2, heads=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4)), node_types=[0, 0, 1]).shape
        (3, 8)
    """

    structure = RelationalGraph

    in_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self._check_heads()
        options = factory._asdict()
        self.types = TypedLinear(
            self.num_node_types, self.in_features, self._head_features, **options
        )
        super()._make_parameters(factory)

    def _widths(self) -> dict[str, int | None]:
        return super()._widths() | {
            "heads": self.heads,
            "head": self._head_features,
            "relations": self.num_relations,
            "relation": self.relation_features,
            "edge_map": None if self.edge_in_features is None else self.edge_map_features,
        }

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self,
        graph: RelationalGraph,
        x: ArrayLike,
        edge_features: ArrayLike | None = None,
        *,
        node_types: ArrayLike | None = None,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations.
            edge_features: Features of edges, ``(num_edges, *batch, edge_in_features)``, in the
                graph's order, of a layer with `edge_in_features`.
            node_types: Types of the rows of x, ``(num_src,)`` integers; rows of no type have zeros
                in the place of mapped features. None means those of the graph.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        check_instance("graph", graph, RelationalGraph)
        features = base.check_sources(graph, x, self.in_features)
        if node_types is None:
            node_types = getattr(graph, "node_types", None)
        if node_types is None and (sizes := graph.node_type_sizes) is not None:
            node_types = np.repeat(np.arange(len(sizes)), sizes)[: len(features)]
        if node_types is None:
            raise ValueError("node_types must be given for a graph without types, got None")
        types = as_ids("node_types", node_types)
        if types.shape != features.shape[:1]:
            raise ValueError(
                f"node_types must have shape (num_src,) = ({len(features)},), got {types.shape}"
            )
        z, options = self.types(features, types), {"deterministic": deterministic, "rngs": rngs}
        return super().__call__(graph, z, edge_features, **options)  # type: ignore[arg-type]


class HEAT(HEATOptions, AttentionStack):
    """Heterogeneous edge-enhanced graph attention network: two `HEATConv` by default.

    The last has one head. Its call takes the arguments of `HEATConv`'s.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, num_relations=2)
        >>> model = HEAT(4, 8, 3, num_node_types=2, num_relations=2, rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4)), node_types=[0, 0, 1]).shape
        (3, 3)
    """

    convolution = HEATConv

    def _calls(self, graph: Any, arguments: Any, named: dict[str, object]) -> Any:
        if isinstance(graph, Blocks) and named.get("node_types") is None:
            named["node_types"] = graph.node_types
        return super()._calls(graph, arguments, named)


def _film(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_weight: Edge = axes(exact=True, optional=True),
    *,
    kernel: Relation = axes("relations", "src", "out"),
    film: Relation = axes("relations", "dst", "double"),
    film_bias: Relation = axes("relations", "double", init=0.0, when="use_bias"),
    root: Any = axes("dst", "out"),
    root_film: Any = axes("dst", "double"),
) -> Any:
    def modulated(film: Array, x: Array) -> Array:
        shift, scale = jnp.split(film, 2)
        return jax.nn.relu(scale * x + shift)

    by_relation = g.dst(x_dst) @ g.relation(film)
    by_relation = summed(by_relation, None if film_bias is None else g.relation(film_bias))
    m = modulated(by_relation, g.src(x_src) @ g.relation(kernel))
    m = m if edge_weight is None else m * edge_weight.astype(m.dtype)
    return modulated(x_dst @ root_film, x_dst @ root) + g.sum(m)


class FiLMConv(ProgramLayer, program=_film):
    """Convolution whose messages the destination scales and shifts: feature-wise linear modulation.

    ``ReLU(c_i * x_i W + b_i) + Σ_r agg ReLU(c_ri * x_j W_r + b_ri)``, c and b linear in ``x_i``.
    Brockschmidt, "GNN-FiLM", ICML 2020, as PyTorch Geometric's layer of this name.

    Attributes:
        num_relations: Number of relations.
        reduce: "mean" or "sum" of the messages of each relation.
        kernel: Maps of the sources, ``(num_relations, in_features, out_features)``.
        film: Maps to b and c, ``(num_relations, in_features, 2 · out_features)``.
        film_bias: Their biases, ``(num_relations, 2 · out_features)``, or None without biases.
        root: Map of a node's own features, ``(in_features, out_features)``.
        root_film: Map to their b and c, ``(in_features, 2 · out_features)``.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, num_relations=2)
        >>> FiLMConv(4, 8, num_relations=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = RelationalGraph

    num_relations: int
    reduce: FiLMReduction = "mean"

    def _widths(self) -> dict[str, int | None]:
        sizes = {"relations": self.num_relations, "double": 2 * self.out_features}
        return super()._widths() | sizes

    def __call__(  # type: ignore[override]  # names arguments that the base leaves open
        self, graph: RelationalGraph, x: base.NodeFeatures
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: The graph.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
        """
        check_instance("graph", graph, RelationalGraph)
        inputs: Any = {"edge_weight": graph.norm("mean")} if self.reduce == "mean" else {}
        return super().__call__(graph, x, **inputs)


def _rgin(
    g: Any,
    x_src: Node,
    x_dst: Node,
    *,
    kernel1: Relation = axes("relations", "src", "hidden"),
    bias1: Relation = axes("relations", "hidden", init=0.0, when="use_bias"),
    kernel2: Relation = axes("relations", "hidden", "hidden"),
    bias2: Relation = axes("relations", "hidden", init=0.0, when="use_bias"),
    root: Any = axes("dst", "hidden", when="self_weight"),
    mlp: Any = dense("hidden", "hidden", "out"),
) -> Any:
    first = summed(g.src(x_src) @ g.relation(kernel1), None if bias1 is None else g.relation(bias1))
    m = jax.nn.relu(first) @ g.relation(kernel2)
    y = g.sum(summed(m, None if bias2 is None else g.relation(bias2)))
    return mlp(summed(y, None if root is None else x_dst @ root))


class RGINConv(ProgramLayer, program=_rgin):
    """Relational graph isomorphism convolution: ``MLP(Σ_r Σ MLP_r(x_j) + x_i W)``.

    Brockschmidt, "GNN-FiLM", ICML 2020, where a node's own features are a relation. Each MLP has
    one hidden layer with ReLU.

    Attributes:
        num_relations: Number of relations.
        mlp_features: Features inside and of the relations' MLPs; None means `out_features`.
        self_weight: Whether a node's own features count, by a map of their own.
        kernel1: First maps of the relations, ``(num_relations, in_features, mlp_features)``.
        kernel2: Second maps, ``(num_relations, mlp_features, mlp_features)``.
        root: Map of a node's own features, ``(in_features, mlp_features)``; None without.
        mlp: MLP of the sums.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, num_relations=2)
        >>> RGINConv(4, 8, num_relations=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure = RelationalGraph

    num_relations: int
    mlp_features: int | None = None
    self_weight: bool = True

    def _widths(self) -> dict[str, int | None]:
        return super()._widths() | {"relations": self.num_relations}
