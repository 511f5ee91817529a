"""Attention over edges with relations in Flax NNX: RGAT and HGT."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers import _base as base
from flax_layers._attention import AttentionOptions, AttentionStack, MultiHead, dropout_mask
from flax_layers._declaration import (
    LinearOptions,
    ParameterFactory,
    check_positive,
    default_kernel_init,
    glorot_init,
)
from flax_layers.relational import (
    RelationOptions,
    block_diagonal,
    check_relations,
    over_batch,
    takes_hetero,
)
from jax_gnn import (
    HeteroGraph,
    HGTWeights,
    RelationalGraph,
    RelationMaps,
    RGATWeights,
    TypePlan,
    hgt_attention,
    rgat_attention,
    segment_matmul,
)
from jax_gnn.extend import as_array, as_ids, feature_wise, row_wise
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import RelationalPart

T = TypeVar("T")

Attention = Literal["additive", "multiplicative"]
Softmax = Literal["across", "within"]
Method = Literal["auto", "source_pairs", "destination_pairs"]
TypedFeatures = base.NodeFeatures | Mapping[str, ArrayLike]
"""Features of nodes, or by node type."""


class RGATOptions(RelationOptions, AttentionOptions):
    """Options of `RGATConv`, and of `RGAT` for its convolutions.

    Attributes:
        num_relations: Number of relations of the graph, inverse relations and the relation of nodes
            to themselves included.
        attention: Scores, "additive" or "multiplicative".
        softmax: Whether the softmax runs "across" all edges into a node, or "within" each relation,
            whose results are summed.
        edge_in_features: Features per edge; None if edges have none.
        method: Order of the computation, "source_pairs" or "destination_pairs", see
            docs/relational.md; "auto" chooses by counts.
    """

    attention: Attention = "additive"
    softmax: Softmax = "across"
    edge_in_features: int | None = None
    method: Method = "auto"


class RGATConv(RGATOptions, MultiHead):
    """Relational graph attention: a softmax over a node's edges, whose relations have weights.

    ``y_i = Σ softmax(s_e) x_j W_r`` over the edges ``e = (j → i)`` of relations r, for each head,
    with scores ``s_e = LeakyReLU(⟨x_i W_r, a_r⟩ + ⟨x_j W_r, a'_r⟩)``, or the product of both dots:
    Busbridge et al., "Relational graph attention networks", 2019 (arXiv 1904.05811), equations 2 to
    9, with one dimension of queries and keys a head. A node's own features have no separate weight:
    if the graph has a ``self_relation``, one of its relations, nodes attend to themselves, too.

    Features of edges add a score before the LeakyReLU, or a factor to multiplicative scores.

    Attributes:
        in_features: Features per node of the input.
        out_features: Features per node of the output, for any number of heads.
        kernel: Weights, ``(num_relations, in_features, heads · width)``, or the bases,
            ``(num_bases, …)``, or blocks, ``(num_relations, num_blocks, …)``, as in `RGCNConv`.
        coefficients: Shares of bases in relations, ``(num_relations, num_bases)``; None without
            bases.
        src_attention: a', ``(num_relations, heads, width)``.
        dst_attention: a, ``(num_relations, heads, width)``.
        edge_kernel: Map of the edges, ``(edge_in_features, heads · width)``, or None.
        edge_attention: Vectors of the edges' scores, ``(heads, width)``, or None.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3)
        >>> conv = RGATConv(4, 8, num_relations=2, heads=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        self._check_heads()
        self.kernel = factory.kernel(*self._kernel_shape(self.in_features, self._width))
        self.coefficients = factory.kernel(self.num_relations, self.num_bases)
        self.src_attention = self._attention_vector(factory, self.num_relations)
        self.dst_attention = self._attention_vector(factory, self.num_relations)
        self.edge_kernel = factory.kernel(self.edge_in_features, self._width)
        has_edges = self.edge_in_features is not None
        self.edge_attention = self._attention_vector(factory, when=has_edges)
        self.bias = factory.bias(self.out_features)
        self.attention_dropout = self._dropout(factory)

    def folded(self, dtype: DTypeLike | None = None) -> RGATWeights:
        """Return products of the weights: for inference, computed once and passed to calls.

        Args:
            dtype: Dtype of the computation; None means the layer's, or that of the parameters.
        """
        params = self.kernel, self.coefficients, self.dst_attention, self.src_attention
        values: Any = tuple(map(base.parameter_value, params))
        kernel, coefficients, dst, src = dtypes.promote_dtype(values, dtype=dtype or self.dtype)
        if coefficients is not None:
            # Weights are mixed from bases once, and scores use the products of weights and vectors.
            kernel = jnp.tensordot(coefficients, kernel, 1, precision=self.precision)
        if self.num_blocks is not None:
            kernel = block_diagonal(kernel)
        return RGATWeights.of(kernel, dst, src)

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: base.NodeFeatures,
        edge_features: ArrayLike | None = None,
        *,
        folded: RGATWeights | None = None,
        deterministic: bool | None = None,
        rngs: base.DropoutKeys = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: Graph with its parts "from_pairs" and "to_pairs". With a `HeteroGraph`, x and the
                result may be by node type.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_features: Features of edges, ``(num_edges, edge_in_features)``, in the graph's
                order (`RelationalGraph.edge_values`), of a layer with `edge_in_features`.
            folded: Result of :meth:`folded`, if weights do not change between calls.
            deterministic: Whether dropout is off; None leaves it to `train()` and `eval()`.
            rngs: Randomness of the dropout; None means the stream given at construction.
        """
        check_relations(graph, self.num_relations)
        src, dst = base.check_endpoint_features(graph, x, self.in_features, self.in_features)
        endpoints: tuple[Array, ...] = (src,) if dst is src else (src, dst)
        attr = base.check_edge_features(graph, edge_features, self.edge_in_features)
        if attr is not None and attr.ndim != 2:
            raise ValueError(
                f"edge_features must have shape (num_edges, edge_in_features), got {attr.shape}"
            )
        if folded is None:
            dtype = dtypes.canonicalize_dtype(*endpoints, self.kernel[...], dtype=self.dtype)
            folded = self.folded(dtype)
        endpoints, weights = _promote((endpoints, folded), self.dtype)
        edge_bias = None
        if attr is not None:
            attr = attr.astype(endpoints[0].dtype)
            edge_bias = self._scores(attr, self.edge_kernel, self.edge_attention)
        dropout = base.dropout_arguments(deterministic, rngs)
        # One mask for any method, as it belongs to edges in the graph's order.
        edge_scale = dropout_mask(self.attention_dropout, graph.num_edges, self.heads, dropout)

        def attend(src: Array, dst: Array | None = None) -> Array:
            y = rgat_attention(
                graph,
                src,
                weights,
                x_dst=dst,
                negative_slope=self.negative_slope,
                multiplicative=self.attention == "multiplicative",
                within_relations=self.softmax == "within",
                edge_bias=edge_bias,
                edge_scale=edge_scale,
                method=self.method,
                precision=self.precision,
            )
            return y.reshape(graph.num_dst, math.prod(y.shape[1:]))

        y = over_batch(attend, *endpoints)
        if not self.concat:
            y = self._split(y).mean(axis=-2)
        return base.finished(y, base.parameter_value(self.bias))


NodeTypeId = str | int
"""Name or number of a node type."""


class HGTOptions(LinearOptions):
    """Options of `HGTConv`, and of `HGT` for its convolutions.

    Attributes:
        node_types: Names of the node types, in the graph's order, or their number.
        num_relations: Number of relations of the graph, inverse relations included.
        relation_ends: For each relation the types that it runs from and to, by name or number, or
            an edge type as in PyTorch Geometric, with the relation's name in between, which must
            be the graph's. None means a single node type.
        heads: Number of heads, which share the features.
        method: Order of the computation, as in `RGATConv`.
        kernel_init: Initializer of each map, Glorot's by default.
    """

    node_types: Sequence[str] | int = 1
    num_relations: int
    relation_ends: Sequence[Sequence[NodeTypeId]] | None = None
    heads: int = 1
    method: Method = "auto"
    kernel_init: InitVar[nnx.Initializer] = glorot_init


class HGTConv(HGTOptions):
    """Heterogeneous graph transformer: attention with maps of node types and of relations.

    Scores are ``⟨q_i, k_j A_r⟩ μ_r / √d``, values ``v_j M_r``, for each head. Queries, keys and
    values are maps of a node by its type. A softmax over all edges into a node, GELU, a map by type
    and a gated skip connection follow; each type has a gate if its input is as wide as the output:
    Hu et al., "Heterogeneous graph transformer", WWW 2020 (arXiv 2003.01332), equations 3 to 5, as
    in PyTorch Geometric. A node without edges attends to zeros.

    The maps of a type and of a relation are multiplied with each other first, if all types have
    features of one width.

    Attributes:
        in_features: Features per node of the input, or by node type.
        out_features: Features per node of the output, which heads share.
        key: Maps of the keys, ``(num_types, in_features, out_features)``; for types with features
            of different widths, maps by name, ``(in_features, out_features)``.
        query: Maps of the queries, like `key`.
        value: Maps of the values, like `key`.
        key_bias: Biases of the keys, ``(num_types, out_features)``, or None without biases.
        query_bias: Biases of the queries, like `key_bias`.
        value_bias: Biases of the values, like `key_bias`.
        attention: A, ``(num_relations, heads, d, d)``.
        message: M, ``(num_relations, heads, d, d)``.
        prior: μ, ``(num_relations, heads)``.
        output: Maps of the results, ``(num_types, out_features, out_features)``.
        output_bias: Biases of the results, ``(num_types, out_features)``, or None.
        skip: Numbers whose sigmoid is the gate, ``(num_types,)``.

    Example:
        >>> edges = {("author", "writes", "paper"): ([0, 1], [0, 0])}
        >>> graph = RelationalGraph.from_edge_dict(edges, {"author": 2, "paper": 1}, inverse=True)
        >>> ends = [("author", "paper"), ("paper", "author")]
        >>> conv = HGTConv(
        ...     {"author": 4, "paper": 3},
        ...     8,
        ...     node_types=("author", "paper"),
        ...     num_relations=2,
        ...     relation_ends=ends,
        ...     rngs=nnx.Rngs(0),
        ... )
        >>> conv(graph, {"author": jnp.ones((2, 4)), "paper": jnp.ones((1, 3))})["paper"].shape
        (1, 8)
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    in_features: int | Mapping[str, int] = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        base.check_heads(self.heads, self.out_features)
        self.type_names = _type_names(self.node_types)
        self.widths = widths = _widths(self.in_features, self.type_names)
        self.ends = _endpoint_types(self.relation_ends, self.type_names, self.num_relations)
        # Static attributes must be hashable.
        if isinstance(self.in_features, Mapping):
            self.in_features = base.Sizes(self.in_features)
        if not isinstance(self.node_types, int):
            self.node_types = self.type_names
        count, width = len(self.type_names), self.out_features
        head_width = width // self.heads

        def type_maps() -> Any:
            if self._has_one_width:
                return factory.kernel(count, widths[0], width)
            pairs = zip(self.type_names, widths, strict=True)
            return base.Named({name: factory.kernel(size, width) for name, size in pairs})

        self.key, self.query, self.value = type_maps(), type_maps(), type_maps()
        self.key_bias = factory.bias(count, width)
        self.query_bias = factory.bias(count, width)
        self.value_bias = factory.bias(count, width)
        relation_shape = self.num_relations, self.heads, head_width, head_width
        self.attention = factory.kernel(*relation_shape)
        self.message = factory.kernel(*relation_shape)
        self.prior = factory.full(1, self.num_relations, self.heads)
        self.output = factory.kernel(count, width, width)
        self.output_bias = factory.bias(count, width)
        self.skip = factory.full(1, count)

    @property
    def _has_one_width(self) -> bool:
        """Whether all types have features of one width."""
        return len(set(self.widths)) == 1

    def folded(self, dtype: DTypeLike | None = None) -> HGTWeights:
        """Return products of the weights: for inference, computed once and passed to calls.

        Args:
            dtype: Dtype of the computation; None means the layer's, or that of the parameters.
        """
        names = ["attention", "message", "prior"]
        roles = ("key", "value", "query") if self._has_one_width else ()
        names += [name for role in roles for name in (role, f"{role}_bias")]
        params: Any = tuple(base.parameter_value(getattr(self, name)) for name in names)
        params = dtypes.promote_dtype(params, dtype=dtype or self.dtype)
        attention, message, prior = params[:3]
        if not roles:
            return HGTWeights.of(attention, message, prior)
        of_types = dict(zip(names[3:], params[3:], strict=True))
        # μ / √d is a factor of A.
        depth = self.out_features // self.heads
        attention = attention * (prior / math.sqrt(depth))[..., None, None]

        def endpoint_maps(role: str, end: int) -> list[Array | None]:
            """Return map and bias of the types at one end, ``(relations, heads, k, n)``.

            They are a batch by relation, also of a single type: else a product, or the gradient of
            one, would need a copy in another layout. Biases have k = 1.
            """
            maps = []
            for x in (of_types[role], of_types[f"{role}_bias"]):
                if x is not None:
                    x = x if x.ndim == 3 else x[:, None]
                    if len(self.type_names) > 1:
                        x = _select(x, [types[end] for types in self.ends])
                    x = x.reshape(*x.shape[:-1], self.heads, depth)
                    x = jnp.moveaxis(x, -2, 1)
                    x = jnp.broadcast_to(x, (self.num_relations, *x.shape[1:]))
                maps.append(x)
            return maps

        def times(maps: list[Array | None], factor: Array | None) -> list[Any]:
            return [
                None
                if x is None or factor is None
                else jnp.matmul(x, factor, precision=self.precision)
                for x in maps
            ]

        key = times(endpoint_maps("key", 0), attention)
        value = times(endpoint_maps("value", 0), message)
        # Queries in the space of x: ⟨x_i Q + q, x_j K + k⟩ = ⟨x_i (Q K^T) + q K^T, x_j⟩ + …
        query = endpoint_maps("query", 1)
        key_t, bias_t = (None if x is None else x.swapaxes(-1, -2) for x in key)
        to_key, shift = times(query, key_t), times(query, bias_t)
        of_key, of_value, of_query = (_side_by_side(*maps) for maps in (key, value, to_key))
        shifts = None if bias_t is None else _side_by_side(*shift)
        return HGTWeights(of_key, of_value, of_query, shifts)

    def __call__(
        self,
        graph: RelationalGraph | HeteroGraph,
        x: TypedFeatures,
        *,
        node_types: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
        folded: HGTWeights | None = None,
    ) -> Any:
        """Apply the convolution.

        Args:
            graph: Graph whose nodes have the types of the layer, with the part "from_pairs" or
                "to_pairs", as the `method` needs.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``; or
                by node type, ``(nodes of the type, *batch, in_features)``; a type without nodes may
                be missing.
            node_types: Types of the sources, ``(num_src,)`` integers, if nodes are not numbered
                type by type, as in a sampled block; -1 is padding. A pair if x is a pair. If x is
                by node type, each type then has a row for each source, which counts for sources
                of the type. A device's part of a sharded graph has node types of its own.
            folded: Result of :meth:`folded`, if weights do not change between calls.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`, or, if x is by node type and
            `node_types` is None, the same by node type.

        Raises:
            TypeError: x is neither an array nor a mapping of arrays.
            ValueError: A shape, the graph's relations or its types do not fit the layer, x has an
                unknown type or lacks a type that has nodes, or the graph lacks a part that the
                method needs.
        """
        graph = graph.relational if isinstance(graph, HeteroGraph) else graph
        check_relations(graph, self.num_relations)
        if node_types is None and isinstance(graph, RelationalPart) and len(self.type_names) > 1:
            self._check_count(len(graph.whole_type_sizes))
            node_types = graph.node_types
        src_types, dst_types = self._types(graph, node_types)
        if not isinstance(x, Mapping):
            if not self._has_one_width:
                widths = dict(self.in_features) if isinstance(self.in_features, Mapping) else {}
                raise ValueError(f"x must be by type, as in_features={widths} are, got an array")
            src, dst = base.check_endpoint_features(graph, x, self.widths[0], self.widths[0])
            return self._of_one_width(graph, src, dst, dst_types, folded)
        by_type = self._check_by_type(x, src_types.sizes)
        if self._has_one_width:
            # Types of one width are one array, whose keys and values are mapped by pair.
            src = src_types.joined([*by_type.values()])
            dst = base.destination_rows(graph, src)
            y = self._of_one_width(graph, base.source_rows(graph, src), dst, dst_types, folded)
        else:
            y = self._of_widths(graph, by_type, src_types, dst_types, folded)
        return y if node_types is not None else _by_type(y, self.type_names, src_types.sizes)

    # --- Arguments -------------------------------------------------------------------------------

    def sizes(self, graph: RelationalGraph) -> tuple[int, ...]:
        """Return the number of nodes of each type; the graph's types must be the layer's."""
        sizes = graph.node_type_sizes
        if len(self.type_names) == 1:
            sizes = (graph.num_nodes,)
        self._check_count(0 if sizes is None else len(sizes))
        self._check_names(graph)
        return sizes or ()

    def _check_count(self, num_types: int) -> None:
        count = len(self.type_names)
        if num_types != count:
            raise ValueError(f"graph must have {count} types of nodes, got {num_types or 'none'}")

    def _types(
        self, graph: RelationalGraph, node_types: ArrayLike | tuple[ArrayLike, ...] | None
    ) -> list[_NodeTypes]:
        count, rows = len(self.type_names), base.num_rows(graph)
        if node_types is not None:
            self._check_names(graph)
            ids = base.endpoint_values("node_types", node_types, graph)
            return [_NodeTypes((rows,) * count, rows, as_ids("node_types", x)) for x in ids]
        if graph.num_src == graph.num_dst:
            return [_NodeTypes(self.sizes(graph), graph.num_src)] * 2
        if count > 1:
            raise ValueError(
                f"node_types must be given for a bipartite graph of {count} types, got None"
            )
        return [_NodeTypes((size,), size) for size in (rows, graph.num_dst)]

    def _check_names(self, graph: RelationalGraph) -> None:
        """Raise ValueError for a graph whose types or relations have other names."""
        names = graph.node_type_names if len(self.type_names) > 1 else None
        if names is not None and not isinstance(self.node_types, int):
            for expected, name in zip(self.type_names, names, strict=True):
                if expected != name:
                    raise ValueError(
                        f"graph must have the node types {self.type_names} in that order, got "
                        f"{name!r} for {expected!r}"
                    )
        if names is not None and graph.relation_names is not None:
            for relation, (src, dst) in zip(graph.relation_names, self.ends, strict=True):
                if relation[::2] != (names[src], names[dst]):
                    raise ValueError(
                        f"relation {relation!r} of the graph must run from {names[src]!r} to "
                        f"{names[dst]!r}, as relation_ends say"
                    )
        for types, relation in zip(
            self.relation_ends or (), graph.relation_names or (), strict=False
        ):
            if len(types) == 3 and types[1] != relation[1]:
                raise ValueError(
                    f"graph must have the relations of relation_ends in that order, got "
                    f"{relation!r} for {types!r}"
                )

    def _check_by_type(
        self, x: Mapping[str, ArrayLike], sizes: tuple[int, ...]
    ) -> dict[str, Array]:
        """Check features by node type; types without nodes get empty arrays."""
        empty = [name for name, size in zip(self.type_names, sizes, strict=True) if size == 0]
        base.check_types("x", x, self.type_names, optional=empty, note=", which has nodes")
        features: dict[str, Array] = {}
        batch = next((as_array(f"x[{name!r}]", x[name]).shape[1:-1] for name in x), ())
        for name, size, width in zip(self.type_names, sizes, self.widths, strict=True):
            if name in x:
                rows_name = f"nodes of type {name!r}"
                features[name] = base.check_features(
                    x[name], size, width, f"x[{name!r}]", rows_name
                )
                if features[name].shape[1:-1] != batch:
                    raise ValueError(
                        f"all of x must have the same batch axes, {batch}, got shape "
                        f"{features[name].shape} of type {name!r}"
                    )
            else:
                features[name] = jnp.zeros((0, *batch, width))
        return features

    # --- The computation -------------------------------------------------------------------------

    def _of_one_width(
        self,
        graph: RelationalGraph,
        src: Array,
        dst: Array,
        types: _NodeTypes,
        folded: HGTWeights | None,
    ) -> Array:
        """Return the result for types of one width: keys and values are computed by pair."""
        # Keys times queries' maps meet x itself where its rows are as wide as values, of one head.
        # Folding pays only if the products of weights were computed before: else the product of
        # all nodes with the queries' maps costs as much.
        folds_query = folded is not None and self.heads == 1 and not self.use_bias
        folds_query = folds_query and self.widths[0] == self.out_features
        endpoints: tuple[Array, ...] = (src,) if dst is src else (src, dst)
        folded = self._fold(*endpoints) if folded is None else folded
        operands = endpoints, self.query[...], base.parameter_value(self.query_bias), folded
        endpoints, query, bias, weights = _promote(operands, self.dtype)

        def attend(src: Array, dst: Array | None = None) -> Array:
            dst = src if dst is None else dst

            # Only the method by source pair asks for queries; by destination pair they are part
            # of the maps of relations.
            def pair_query() -> Array:
                return types.product(dst, query, bias, self.precision)

            options = {"fold_query_into_key": True} if folds_query else {"pair_query": pair_query}
            y = self._attend(graph, dst, src, src, weights, **options)
            return self._finish(y, dst if dst.shape[1] == y.shape[1] else None, types)

        return over_batch(attend, *endpoints)

    def _of_widths(
        self,
        graph: RelationalGraph,
        x: dict[str, Array],
        src_types: _NodeTypes,
        dst_types: _NodeTypes,
        folded: HGTWeights | None,
    ) -> Array:
        """Return the result for types of different widths: nodes are mapped by type first."""
        folded = self._fold(*x.values()) if folded is None else folded
        params = [
            (
                [getattr(self, role)[name][...] for name in self.type_names],
                base.parameter_value(getattr(self, f"{role}_bias")),
            )
            for role in ("key", "value", "query")
        ]
        x, params, weights = _promote((x, params, folded), self.dtype)
        src = dst = [x[name] for name in self.type_names]
        if dst_types is not src_types:
            # In a block, each type has a row for every source, the destinations first.
            dst = [rows[: graph.num_dst] for rows in src]

        def map_by_type(x: list[Array], types: _NodeTypes, kernels: Any, bias: Any) -> Array:
            biases = [None] * len(x) if bias is None else bias
            maps = zip(x, kernels, biases, strict=True)
            return types.joined([base.product(x, w, self.precision, bias=b) for x, w, b in maps])

        def attend(key: Array, value: Array, query: Array, skip: Array) -> Array:
            return self._finish(self._attend(graph, query, key, value, weights), skip, dst_types)

        def skip_input(rows: Array) -> Array:
            """Return the rows if they are as wide as the output; else zeros, which a gate drops."""
            if rows.shape[-1] == self.out_features:
                return rows
            return jnp.zeros((*rows.shape[:-1], self.out_features), rows.dtype)

        key, value = (
            base.source_rows(graph, map_by_type(src, src_types, *maps)) for maps in params[:2]
        )
        query, skip = map_by_type(dst, dst_types, *params[2]), map(skip_input, dst)
        return over_batch(attend, key, value, query, dst_types.joined([*skip]))

    def _fold(self, *x: Array) -> HGTWeights:
        """Return products of the weights in the dtype of the computation with these features."""
        return self.folded(dtypes.canonicalize_dtype(*x, self.attention[...], dtype=self.dtype))

    def _attend(
        self,
        graph: RelationalGraph,
        query: Array,
        key: Array,
        value: Array,
        weights: HGTWeights,
        **options: Any,
    ) -> Array:
        """Return `hgt_attention` with the options of the layer, heads side by side."""
        options |= {"heads": self.heads, "method": self.method, "precision": self.precision}
        y = hgt_attention(graph, query, key, value, weights, **options)
        return y.reshape(graph.num_dst, math.prod(y.shape[1:]))

    def _finish(self, y: Array, x: Array | None, types: _NodeTypes) -> Array:
        """Apply GELU, the map by type, and the skip connection from x to types as wide as it."""
        params = self.output[...], base.parameter_value(self.output_bias), self.skip[...]
        y, x, output, bias, skip = _promote((y, x, *params), y.dtype)
        y = types.product(y * _normal_cdf(y), output, bias, self.precision)
        if x is None:
            return y
        gate = jax.nn.sigmoid(skip)
        # Without a skip connection the result counts alone, as with a gate of 1.
        gate = jnp.where(np.array(self.widths) == self.out_features, gate, 1)
        if len(gate) > 1:
            gate = types.column(gate)
        return x + feature_wise(gate, y) * (y - x)  # XLA fuses this form with the product


@jax.custom_jvp
def _normal_cdf(x: Array) -> Array:
    """Return the distribution function of the standard normal; GELU is its product with x.

    JAX 0.12 has no derivative of ``erfc`` within ``jax.shard_map``, hence a derivative here.
    """
    return 0.5 * jax.lax.erfc(-x * math.sqrt(0.5))


_normal_cdf.defjvps(lambda t, y, x: t * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


# --- Nodes by type -------------------------------------------------------------------------------


class _NodeTypes(NamedTuple):
    """Types of nodes that are numbered type by type, with padding after them, or in any order.

    Attributes:
        sizes: Number of rows for each type.
        rows: Number of nodes with padding.
        ids: Type of each node, out of range for padding; None if nodes are numbered type by type.
    """

    sizes: tuple[int, ...]
    rows: int
    ids: Array | None = None

    def joined(self, parts: list[Array]) -> Array:
        """Return one array of all nodes, of an array for each type.

        If nodes are in any order, arrays have a row for each of them.
        """
        if self.ids is None:
            return _pad_rows(jnp.concatenate(parts), self.rows)
        # Selection by `where` keeps rows of padding zero.
        y = jnp.zeros_like(parts[0])
        for number, part in enumerate(parts):
            y = jnp.where(row_wise(self.ids == number, y), part, y)
        return y

    def column(self, values: Array) -> Array:
        """Return the value of each node's type, ``(rows, 1)``."""
        if self.ids is not None:
            return _select(values, self.ids)[:, None]
        return self.joined([jnp.broadcast_to(values[i], (n, 1)) for i, n in enumerate(self.sizes)])

    def product(
        self, x: Array, kernel: Array, bias: Array | None, precision: jax.lax.PrecisionLike
    ) -> Array:
        """Apply the map of each node's type."""
        if len(kernel) == 1:
            # XLA fuses this product with operations on its rows, in both directions.
            y = base.matmul_with_segmented_gradient(x, kernel[0], precision)
            return base.finished(y, None if bias is None else bias[0])
        plan = TypePlan(jnp.array(self.sizes, jnp.int32))
        if self.ids is not None:
            # Rows are sorted by type for a segmented product, and sorted back.
            plan = TypePlan.from_types(self.ids, len(kernel))
        y = segment_matmul(plan.sort(x), kernel, plan.group_sizes, bias=bias, precision=precision)
        return plan.unsort(y)


def _promote(tree: T, dtype: DTypeLike | None) -> T:
    """Return the tree with all arrays in the dtype of the computation."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, dtypes.promote_dtype(tuple(leaves), dtype=dtype))


def _side_by_side(kernel: Array, bias: Array | None) -> RelationMaps:
    """Return maps ``(relations, heads, k, n)`` with the heads' columns side by side."""
    kernel = kernel.swapaxes(1, 2)
    return RelationMaps(
        kernel.reshape(*kernel.shape[:2], -1), None if bias is None else bias.reshape(len(bias), -1)
    )


def _pad_rows(x: Array, rows: int) -> Array:
    return jnp.pad(x, ((0, rows - len(x)), *[(0, 0)] * (x.ndim - 1)))


def _by_type(y: Array, names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, Array]:
    """Split rows that are sorted by type."""
    stops = np.cumsum(sizes).tolist()
    return {
        name: y[stop - size : stop] for name, size, stop in zip(names, sizes, stops, strict=True)
    }


def _select(array: Array, types: Array | list[int]) -> Array:
    """Return ``array[types]``, 0 out of range, by a product: its gradient sums in a fixed order."""
    ids = np.array(types) if isinstance(types, list) else types
    one_hot = ids[:, None] == np.arange(len(array), dtype=ids.dtype)[None]
    return jnp.tensordot(one_hot.astype(array.dtype), array, 1, precision=jax.lax.Precision.HIGHEST)


def _type_names(node_types: object) -> tuple[str, ...]:
    """Return the names of node types; a number means numbered types."""
    if isinstance(node_types, int) and not isinstance(node_types, bool):
        check_positive(node_types=node_types)
        return tuple(map(str, range(node_types)))
    names = tuple(node_types) if isinstance(node_types, tuple | list) else ()
    if not names or any(not isinstance(name, str) for name in names):
        raise TypeError(f"node_types must be names, or their number, got {node_types!r}")
    _check_distinct("node_types", names)
    return names


def _check_distinct(name: str, values: Sequence[object]) -> None:
    if len({*values}) < len(values):
        raise ValueError(f"{name} must differ from each other, got {values}")


def _widths(in_features: int | Mapping[str, int], names: tuple[str, ...]) -> tuple[int, ...]:
    if not isinstance(in_features, Mapping):
        check_positive(in_features=in_features)
        return (in_features,) * len(names)
    base.check_types("in_features", in_features, names)
    for name in names:
        check_positive(**{f"in_features[{name!r}]": in_features[name]})
    return tuple(in_features[name] for name in names)


def _endpoint_types(
    relation_ends: object, names: tuple[str, ...], num_relations: int
) -> tuple[tuple[int, int], ...]:
    """Return for each relation the numbers of the types of its sources and destinations."""
    if relation_ends is None:
        if len(names) > 1:
            raise ValueError(
                f"relation_ends must be given where there are {len(names)} node types, got None"
            )
        return ((0, 0),) * num_relations
    if not isinstance(relation_ends, tuple | list) or any(
        not isinstance(types, tuple | list) or len(types) < 2 for types in relation_ends
    ):
        raise TypeError(f"relation_ends must be pairs of node types, got {relation_ends!r}")
    if len(relation_ends) != num_relations:
        raise ValueError(
            f"relation_ends must be those of num_relations = {num_relations}, got "
            f"{len(relation_ends)}"
        )
    _check_distinct("relation_ends", [tuple(types) for types in relation_ends if len(types) == 3])

    def number(relation: int, name: NodeTypeId) -> int:
        types = range(len(names)) if isinstance(name, int) else names
        if name not in types:
            raise ValueError(
                f"relation_ends[{relation}] must be node types, of {names}, got "
                f"{tuple(relation_ends[relation])}"
            )
        return types.index(name)  # type: ignore[arg-type]  # numbers in a range, names in a tuple

    return tuple(
        (number(relation, types[0]), number(relation, types[-1]))
        for relation, types in enumerate(relation_ends)
    )


# --- The models ----------------------------------------------------------------------------------


class RGAT(RGATOptions, AttentionStack):
    """Relational graph attention network: two `RGATConv` by default; the last has one head.

    Its call takes the arguments of `RGATConv`'s, and a `HeteroGraph`, too.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, self_relation=True)
        >>> model = RGAT(4, 16, 2, num_relations=3, heads=4, rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4))).shape
        (3, 2)
    """

    convolution = RGATConv
    __call__ = takes_hetero(AttentionStack.__call__)


class HGT(HGTOptions, base.TwoLayerStack):
    """Heterogeneous graph transformer: two `HGTConv` by default, dropout, and a linear map.

    All convolutions have `hidden_features`. Between them is dropout without a ReLU, as each has a
    GELU inside. Input features of node types may have different widths.

    Attributes:
        in_features: Features per node of the input, or by node type.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3)
        >>> HGT(4, 16, 2, num_relations=2, heads=4, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 2)
    """

    convolution = HGTConv

    in_features: int | Mapping[str, int] = field(kw_only=False)  # type: ignore[assignment]  # wider

    def _make_layers(self, factory: ParameterFactory) -> None:
        for number in range(1, self.num_layers + 1):
            in_features: Any = self.in_features if number == 1 else self.hidden_features
            self._make_convolution(number, in_features, self.hidden_features, factory=factory)
        # The first convolution made these hashable, as static attributes must be.
        first = self.convolutions[0]
        self.in_features = first.in_features
        self.node_types = first.node_types
        self.relation_ends = first.relation_ends
        # The map of the result is no map of a relation: its default is that of `nnx.Linear`.
        is_default = factory.kernel_init is glorot_init
        init = default_kernel_init if is_default else factory.kernel_init
        head = factory._replace(kernel_init=init)
        self.output = head.linear(self.hidden_features, self.out_features)

    def __call__(  # type: ignore[override]  # takes features by type, too
        self,
        graph: RelationalGraph | HeteroGraph | Blocks,
        x: TypedFeatures,
        node_types: ArrayLike | None = None,
        **dropout: Any,
    ) -> Any:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: The graph, as `HGTConv` takes it, or blocks of one.
            x: Node features, ``(num_nodes, *batch, in_features)``, or by node type. For blocks,
                their ``blocks.node_values``.
            node_types: Types of the sources of the first block, see `HGTConv`; None means the
                blocks' own.
            **dropout: `deterministic` and `rngs`, see `Stack`.

        Returns:
            ``(num_nodes, *batch, out_features)``, or the same by node type if x is.
        """
        graph = graph.relational if isinstance(graph, HeteroGraph) else graph
        first = self.convolutions[0]
        if isinstance(graph, Blocks) and node_types is None:
            node_types = graph.node_types
            names = first.type_names
            if node_types is not None and isinstance(x, Mapping) and {*x} == {*names}:
                x = graph.source_rows({name: as_array(name, x[name]) for name in names})
        if node_types is not None:
            dropout["node_types"] = node_types
        y = super().__call__(graph, x, **dropout)  # type: ignore[arg-type]  # may be by type
        is_joined = node_types is not None or isinstance(graph, RelationalPart)
        if is_joined or not isinstance(x, Mapping):
            return y
        return _by_type(y, first.type_names, first.sizes(graph))

    def _activate(self, y: Array) -> Array:
        return y

    def _input(self, x: TypedFeatures, **dropout: Unpack[base.DropoutCall]) -> Any:
        if not isinstance(x, Mapping):
            return super()._input(x, **dropout)
        features = {name: as_array(f"x[{name!r}]", rows) for name, rows in x.items()}
        return {name: super(HGT, self)._input(rows, **dropout) for name, rows in features.items()}

    def _convolve(
        self, number: int, graph: base.Structure, x: Array, *arguments: object, **named: object
    ) -> Array:
        y = super()._convolve(number, graph, x, *arguments, **named)
        if not isinstance(y, dict):
            return y
        rows = jnp.concatenate([y[name] for name in self.conv1.type_names])
        return _pad_rows(rows, graph.num_nodes)
