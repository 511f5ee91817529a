"""Attention over edges with relations in Flax NNX: RGAT and HGT."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._attention import AttentionStack, attention_init, check_heads, dots, dropped
from flax_layers._base import (
    Ends,
    Named,
    TwoLayerStack,
    check_ends,
    check_features,
    check_positive,
    check_rates,
    default_bias_init,
    dropout_arguments,
    end_values,
    finished,
    linear_options,
    num_rows,
    of_destinations,
    of_sources,
    product,
    summed_by_rows,
)
from flax_layers.graph import glorot_init
from flax_layers.graph_attention import Rngs
from flax_layers.relational import (
    block_diagonal,
    each_of,
    kernel_shape,
    over_batch,
    takes_hetero,
)
from jax_gnn import (
    HeteroGraph,
    HGTWeights,
    RelationalGraph,
    RGATWeights,
    TypePlan,
    hgt_attention,
    rgat_attention,
    segment_matmul,
)
from jax_gnn.extend import (
    METHODS,
    Method,
    RelationMaps,
    as_array,
    as_ids,
    check_choice,
    check_distinct,
    check_finite,
    check_flag,
    check_instance,
    choose_method,
    feature_wise,
    row_wise,
)
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import RelationalPart

Attention = Literal["additive", "multiplicative"]
Softmax = Literal["across", "within"]
Features = Ends | Mapping[str, ArrayLike]


class RGATConv(nnx.Module):
    """Relational graph attention: a softmax over a node's edges, whose relations have weights.

    ``y_i = Σ softmax(s_e) x_j W_r`` over the edges ``e = (j → i)`` of relations r, for each head,
    with scores ``s_e = LeakyReLU(⟨x_i W_r, a_r⟩ + ⟨x_j W_r, a'_r⟩)``, or the product of both dots:
    Busbridge et al., "Relational graph attention networks", 2019 (arXiv 1904.05811), equations 2 to
    9, with one dimension of queries and keys a head. There is no own weight: of a graph with a
    ``self_relation``, which counts among the relations, nodes attend to themselves, too.

    Features of edges add a score of theirs before the LeakyReLU, or multiply by it.

    Attributes:
        kernel: ``(num_relations, in_features, heads · width)``, or the bases, ``(num_bases, …)``.
            Of blocks ``(num_relations, num_blocks, …)``, as `RGCNConv` has them.
        coefficients: ``(num_relations, num_bases)``; None without bases.
        src_attention: a', ``(num_relations, heads, width)``.
        dst_attention: a, likewise.
        edge_kernel: ``(edge_features, heads · width)``, or None where edges have no features.
        edge_attention: ``(heads, width)``, or None likewise.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3)
        >>> conv = RGATConv(4, 8, num_relations=2, heads=2, rngs=nnx.Rngs(0))
        >>> conv(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_relations: int,
        heads: int = 1,
        concat: bool = True,
        attention: Attention = "additive",
        softmax: Softmax = "across",
        num_bases: int | None = None,
        num_blocks: int | None = None,
        edge_features: int | None = None,
        negative_slope: float = 0.2,
        attention_dropout_rate: float = 0.0,
        method: Method = "auto",
        rngs: nnx.Rngs,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = glorot_init,
        bias_init: nnx.Initializer = default_bias_init,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input.
            out_features: Features per node of the output, whatever the number of heads.
            num_relations: Number of relations of the graph, inverse ones and that of nodes to
                themselves included.
            heads: Number of heads.
            concat: Whether the heads' features lie side by side, each of ``out_features / heads``
                features; else the result is their mean.
            attention: "additive" or "multiplicative" scores.
            softmax: Whether it runs "across" all edges into a node, or "within" each relation, the
                sums of which are added up then.
            num_bases: How many bases the weights of relations are mixed from; None for weights of
                their own.
            num_blocks: Number of blocks of block-diagonal weights, which divides in_features and
                the features of all heads; None for full ones.
            edge_features: Features per edge; None where edges have none.
            negative_slope: Of the LeakyReLU of additive scores.
            attention_dropout_rate: Share of the attention weights dropped in training, in [0, 1].
            method: How it is computed: "source_pairs" or "destination_pairs", as told in
                docs/relational.md; "auto" chooses by counts.
            rngs: Source of the keys, streams "params" and "dropout".
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the products.
            kernel_init: Initialiser of each weight, basis or block.
            bias_init: Initialiser of the biases.

        Raises:
            ValueError: A size is not positive, heads do not divide the features that they share, an
                option is unknown, a rate is outside [0, 1], the slope is not finite, there are
                bases and blocks, or blocks do not divide the features.
        """
        check_positive(
            in_features=in_features, out_features=out_features, num_relations=num_relations
        )
        check_heads(heads, out_features if check_flag("concat", concat) else None)
        check_choice("attention", attention, get_args(Attention))
        check_choice("softmax", softmax, get_args(Softmax))
        check_choice("method", method, METHODS)
        check_rates(attention_dropout_rate=attention_dropout_rate)
        check_finite("negative_slope", negative_slope)
        width = out_features // heads if concat else out_features
        sizes = num_relations, in_features, heads * width
        lead, shape = kernel_shape(*sizes, num_bases, num_blocks)
        self.kernel = nnx.Param(each_of(kernel_init, rngs, lead, shape, param_dtype))
        self.coefficients: nnx.Param[Array] | None = nnx.data(None)
        if num_bases is not None:
            mixture = kernel_init(rngs.params(), (num_relations, num_bases), param_dtype)
            self.coefficients = nnx.Param(mixture)

        def vectors(*lead: int) -> nnx.Param[Array]:
            return nnx.Param(each_of(attention_init, rngs, lead, (heads, width), param_dtype))

        self.src_attention = vectors(num_relations)
        self.dst_attention = vectors(num_relations)
        self.edge_kernel: nnx.Param[Array] | None = nnx.data(None)
        self.edge_attention: nnx.Param[Array] | None = nnx.data(None)
        if edge_features is not None:
            check_positive(edge_features=edge_features)
            shape = edge_features, heads * width
            self.edge_kernel = nnx.Param(kernel_init(rngs.params(), shape, param_dtype))
            self.edge_attention = vectors()
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype))
        self.attention_dropout = nnx.Dropout(attention_dropout_rate, rngs=rngs)
        self.in_features = in_features
        self.out_features = out_features
        self.num_relations = num_relations
        self.heads = heads
        self.concat = concat
        self.attention: Attention = attention
        self.softmax: Softmax = softmax
        self.num_bases = num_bases
        self.num_blocks = num_blocks
        self.edge_features = edge_features
        self.negative_slope = negative_slope
        self.attention_dropout_rate = attention_dropout_rate
        self.method: Method = method
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    def folded(self, dtype: DTypeLike | None = None) -> RGATWeights:
        """What is made of the weights alone: for inference, computed once and passed to calls.

        Args:
            dtype: Of the computation; None: the layer's, or that of the parameters.
        """
        params = self.kernel, self.coefficients, self.dst_attention, self.src_attention
        values: Any = (None if param is None else param[...] for param in params)
        kernel, mixture, dst, src = dtypes.promote_dtype(tuple(values), dtype=dtype or self.dtype)
        if mixture is not None:
            kernel = jnp.tensordot(mixture, kernel, 1, precision=self.precision)
        if self.num_blocks is not None:
            kernel = block_diagonal(kernel)
        return RGATWeights.of(kernel, dst, src)

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: Ends,
        edge_attr: ArrayLike | None = None,
        *,
        folded: RGATWeights | None = None,
        deterministic: bool | None = None,
        rngs: Rngs = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph, with its parts "from_pairs" and "to_pairs". Of a `HeteroGraph`, x and
                the result may be by type of nodes.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``.
            edge_attr: Features of edges, ``(num_edges, edge_features)``, in the graph's order
                (`RelationalGraph.edge_values`), of a layer with `edge_features`.
            folded: What :meth:`folded` gave, where weights do not change between calls.
            deterministic: Switches dropout off (True) or on (False); None leaves it to `train()`
                and `eval()`.
            rngs: Randomness of the dropout; None uses the stream given at construction.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape or the graph's relations do not fit the layer, or the graph lacks a
                part that the `method` goes through.
        """
        _check_relations(graph, self.num_relations)
        src, dst = check_ends(graph, x, self.in_features, self.in_features)
        ends: tuple[Array, ...] = (src,) if dst is src else (src, dst)
        if (edge_attr is None) != (self.edge_features is None):
            given = "none" if edge_attr is None else "some"
            raise ValueError(
                f"edge_attr must be given if edge_features is, got {given} and {self.edge_features}"
            )
        if folded is None:
            params = self.kernel[...]
            folded = self.folded(dtypes.canonicalize_dtype(*ends, params, dtype=self.dtype))
        operands: tuple[tuple[Array, ...], RGATWeights] = _promoted((ends, folded), self.dtype)
        ends, weights = operands
        count = graph.num_edges, self.heads
        options: Any = {
            "negative_slope": self.negative_slope,
            "multiplicative": self.attention == "multiplicative",
            "within_relations": self.softmax == "within",
            "edge_scale": dropped(
                self.attention_dropout, *count, dropout_arguments(deterministic, rngs)
            ),
            "method": self.method,
            "precision": self.precision,
        }
        if edge_attr is not None:
            options["edge_bias"] = self._of_edges(graph, edge_attr, ends[0].dtype)

        def attend(src: Array, dst: Array | None = None) -> Array:
            y = rgat_attention(graph, src, weights, x_dst=dst, **options)
            return y.reshape(graph.num_dst, math.prod(y.shape[1:]))

        y = over_batch(attend, *ends)
        if not self.concat:
            y = _split(y, self.heads).mean(axis=-2)
        return finished(y, _value(self.bias))

    def _of_edges(self, graph: RelationalGraph, attr: ArrayLike, dtype: Any) -> Array:
        """``(num_edges, heads)``, by a product as wide as there are heads."""
        assert self.edge_features is not None
        assert self.edge_kernel is not None
        assert self.edge_attention is not None
        found = check_features(attr, graph.num_edges, self.edge_features, "edge_attr", "num_edges")
        if found.ndim != 2:
            raise ValueError(
                f"edge_attr must have shape (num_edges, edge_features), got {found.shape}"
            )
        kernel, vector = (
            each[...].astype(dtype) for each in (self.edge_kernel, self.edge_attention)
        )
        return product(
            found.astype(dtype), dots(_split(kernel, self.heads), vector), self.precision
        )


def _split(x: Array, heads: int) -> Array:
    """``(…, heads · width)`` to ``(…, heads, width)``."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)


def _check_relations(graph: RelationalGraph, num_relations: int) -> None:
    check_instance("graph", graph, RelationalGraph)
    if graph.num_relations != num_relations:
        own = ", that of nodes to themselves included" if graph.self_relation else ""
        raise ValueError(
            f"graph must have num_relations = {num_relations}, got {graph.num_relations}{own}"
        )


class HGTConv(nnx.Module):
    """Heterogeneous graph transformer: attention whose maps are those of types and relations.

    Scores are ``⟨q_i, k_j A_r⟩ μ_r / √d``, values ``v_j M_r``, for each head, where queries, keys
    and values are maps of a node by its type. A softmax over all edges into a node, GELU, a map by
    type, and a skip connection that has a gate for each type (of types whose input is as wide as
    the output): Hu et al., "Heterogeneous graph transformer", WWW 2020 (arXiv 2003.01332),
    equations 3 to 5, as PyTorch Geometric has it. Nodes without edges get what zeros give.

    The maps of a type and of a relation are multiplied with each other first, where all types have
    features of one width.

    Attributes:
        key: ``(num_types, in_features, out_features)``, or where types have features of different
            widths by name of the type ``(in_features, out_features)``; likewise `query`, `value`.
        key_bias: ``(num_types, out_features)``, or None without biases; likewise those of the
            others.
        attention: A, ``(num_relations, heads, d, d)``.
        message: M, likewise.
        prior: μ, ``(num_relations, heads)``.
        output: ``(num_types, out_features, out_features)``.
        output_bias: ``(num_types, out_features)``, or None.
        skip: ``(num_types,)``, of which the gate is the sigmoid.

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

    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        *,
        node_types: Sequence[str] | int = 1,
        num_relations: int,
        relation_ends: Sequence[Sequence[Any]] | None = None,
        heads: int = 1,
        method: Method = "auto",
        rngs: nnx.Rngs,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
        kernel_init: nnx.Initializer = glorot_init,
        bias_init: nnx.Initializer = default_bias_init,
    ) -> None:
        """Initialises the parameters.

        Args:
            in_features: Features per node of the input, or those of each type by its name.
            out_features: Features per node of the output, which heads share.
            node_types: The names of the types, in the order in which the graph has them, or their
                number.
            num_relations: Number of relations of the graph, inverse ones included.
            relation_ends: Of each relation the types that it runs from and to, by name or number;
                names of relations in between, as in PyTorch Geometric's edge types, may be there,
                and are those of the graph then.
                None where there is one type.
            heads: Number of heads.
            method: As of `RGATConv`.
            rngs: Source of the keys for initialisation (stream "params").
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the products.
            kernel_init: Initialiser of each map.
            bias_init: Initialiser of the biases.

        Raises:
            TypeError: node_types are not names, or relation_ends no pairs.
            ValueError: A size is not positive, heads do not divide out_features, the method is
                unknown, in_features are not those of the types, or a relation has no ends among
                them.
        """
        check_positive(out_features=out_features, num_relations=num_relations)
        check_heads(heads, out_features)
        check_choice("method", method, METHODS)
        self.type_names = _type_names(node_types)
        widths = _widths(in_features, self.type_names)
        self.ends = _ends_of(relation_ends, self.type_names, num_relations)
        count, width = len(self.type_names), out_features // heads

        def maps(*shape: int) -> nnx.Param[Array]:
            lead = shape[:-2]
            return nnx.Param(each_of(kernel_init, rngs, lead, shape[-2:], param_dtype))

        def of_types() -> Any:
            if len(set(widths)) == 1:
                return maps(count, widths[0], out_features)
            named = zip(self.type_names, widths, strict=True)
            return Named({name: maps(size, out_features) for name, size in named})

        def biases() -> Any:
            lead = (count,)
            found = each_of(bias_init, rngs, lead, (out_features,), param_dtype)
            return nnx.Param(found) if use_bias else nnx.data(None)

        self.key, self.query, self.value = of_types(), of_types(), of_types()
        self.key_bias, self.query_bias, self.value_bias = biases(), biases(), biases()
        self.attention = maps(num_relations, heads, width, width)
        self.message = maps(num_relations, heads, width, width)
        self.prior = nnx.Param(jnp.ones((num_relations, heads), param_dtype))
        self.output = maps(count, out_features, out_features)
        self.output_bias = biases()
        self.skip = nnx.Param(jnp.ones((count,), param_dtype))
        self.widths = widths
        self.in_features: Any = in_features
        self.out_features = out_features
        self.node_types: Any = node_types if isinstance(node_types, int) else self.type_names
        self.num_relations = num_relations
        self.relation_ends: Any = None
        if relation_ends is not None:
            self.relation_ends = tuple(map(tuple, relation_ends))
        self.heads = heads
        self.method: Method = method
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    @property
    def _one_width(self) -> bool:
        return len(set(self.widths)) == 1

    @property
    def _keys_take_queries(self) -> bool:
        """Whether keys times queries' maps meet x itself: rows as wide as values, of one head."""
        return self.heads == 1 and not self.use_bias and set(self.widths) == {self.out_features}

    def folded(self, dtype: DTypeLike | None = None) -> HGTWeights:
        """What is made of the weights alone: for inference, computed once and passed to calls.

        Args:
            dtype: Of the computation; None: the layer's, or that of the parameters.
        """
        named = {
            name: None if param is None else param[...]
            for name, param in (
                *((name, getattr(self, name)) for name in ("attention", "message", "prior")),
                *(
                    (name, getattr(self, name) if self._one_width else None)
                    for name in ("key", "query", "value", "key_bias", "query_bias", "value_bias")
                ),
            )
        }
        values = dtypes.promote_dtype(tuple(named.values()), dtype=dtype or self.dtype)
        p: dict[str, Any] = dict(zip(named, values, strict=True))
        depth = self.out_features // self.heads
        if not self._one_width:
            return HGTWeights.of(p["attention"], p["message"], p["prior"])
        attention = p["attention"] * (p["prior"] / math.sqrt(depth))[..., None, None]

        def times(a: Array | None, b: Array | None) -> Any:
            return None if a is None or b is None else jnp.matmul(a, b, precision=self.precision)

        def of_ends(name: str, end: int) -> Any:
            """``(relations, heads, k, n)`` of the types at one end; of biases k = 1.

            A batch by relation, of one type too: no product then, and no gradient of one, has an
            array in an order that is not its own.
            """
            if p[name] is None:
                return None
            matrices = p[name] if p[name].ndim == 3 else p[name][:, None]
            if len(self.type_names) > 1:
                matrices = _of_types(matrices, [ends[end] for ends in self.ends])
            by_head = jnp.moveaxis(_split(matrices, self.heads), -2, 1)
            return jnp.broadcast_to(by_head, (self.num_relations, *by_head.shape[1:]))

        maps = {"key": attention, "value": p["message"]}
        found = {
            name: (times(of_ends(name, 0), each), times(of_ends(f"{name}_bias", 0), each))
            for name, each in maps.items()
        }
        queries = of_ends("query", 1), of_ends("query_bias", 1)
        meet = (None if each is None else each.swapaxes(-1, -2) for each in found["key"])
        query, shift = ([times(each, other) for each in queries] for other in meet)
        return HGTWeights(
            _side_by_side(*found["key"]),
            _side_by_side(*found["value"]),
            _side_by_side(*query),
            None if shift[0] is None else _side_by_side(*shift),
        )

    def __call__(
        self,
        graph: RelationalGraph | HeteroGraph,
        x: Features,
        *,
        node_types: Any = None,
        folded: HGTWeights | None = None,
    ) -> Any:
        """Applies the convolution.

        Args:
            graph: The graph, whose nodes have the types of the layer, with the part "from_pairs" or
                "to_pairs", as the `method` asks.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``; or
                by name of the type ``(nodes of the type, *batch, in_features)``; a type without
                nodes may be missing.
            node_types: ``(num_src,)`` integers, the type of each source, where nodes are not
                numbered type by type, as in a sampled block; -1 is padding. A pair where x is. By
                type, x has a row for each source then, which counts where the source is of the
                type. A device's part of a sharded graph has its own types, in no order.
            folded: What :meth:`folded` gave, where weights do not change between calls.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`, or where x is by type, and there are no
            `node_types`, the same by type.

        Raises:
            TypeError: x is neither an array nor a mapping of arrays.
            ValueError: A shape, the graph's relations or its types do not fit the layer, x has a
                type that the layer has not, lacks one that has nodes, or the graph lacks a part
                that the method goes through.
        """
        graph = graph.relational if isinstance(graph, HeteroGraph) else graph
        _check_relations(graph, self.num_relations)
        if node_types is None and isinstance(graph, RelationalPart) and len(self.type_names) > 1:
            self._check_count(len(graph.whole_type_sizes))
            node_types = graph.node_types
        sizes, src_types, dst_types = self._types(graph, node_types)
        by_type = self._by_type(x, sizes)
        if by_type is not None and not self._one_width:
            y = self._of_widths(graph, by_type, src_types, dst_types, folded)
        elif by_type is not None:
            src = src_types.joined([*by_type.values()])
            ends = of_sources(graph, src), of_destinations(graph, src)
            y = self._of_nodes(graph, *ends, dst_types, folded)
        elif self._one_width:
            given: Any = x
            ends = check_ends(graph, given, self.widths[0], self.widths[0])
            y = self._of_nodes(graph, *ends, dst_types, folded)
        else:
            raise ValueError(
                f"x must be by type, as in_features={dict(self.in_features)} are, got an array"
            )
        if by_type is None or node_types is not None:
            return y
        return _by_types(y, self.type_names, sizes)

    # --- Arguments -------------------------------------------------------------------------------

    def sizes(self, graph: RelationalGraph) -> tuple[int, ...]:
        """How many nodes each type has, of a graph whose types and relations are the layer's."""
        sizes = graph.node_type_sizes
        if len(self.type_names) == 1:
            sizes = (graph.num_nodes,)
        self._check_count(0 if sizes is None else len(sizes))
        self._check_names(graph)
        return sizes or ()

    def _check_count(self, found: int) -> None:
        """Raises ValueError for a graph with another number of types."""
        count = len(self.type_names)
        if found != count:
            raise ValueError(f"graph must have {count} types of nodes, got {found or 'none'}")

    def _types(self, graph: RelationalGraph, node_types: Any) -> tuple[tuple[int, ...], Any, Any]:
        """How many rows x has of each type, and the types of sources and of destinations."""
        count = len(self.type_names)
        if node_types is not None:
            self._check_names(graph)
            each, at_dst = (
                _TypeOfEach(as_ids(name, ids), count)
                for name, ids in end_values("node_types", node_types, graph).items()
            )
            return (num_rows(graph),) * count, each, at_dst
        if graph.num_src != graph.num_dst:
            if count > 1:
                raise ValueError(
                    f"node_types must be given for a bipartite graph of {count} types, got None"
                )
            rows = num_rows(graph)
            src, dst = (_TypeByType((size,), size) for size in (rows, graph.num_dst))
            return (rows,), src, dst
        sizes = self.sizes(graph)
        types = _TypeByType(sizes, graph.num_src)
        return sizes, types, types

    def _check_names(self, graph: RelationalGraph) -> None:
        """Raises ValueError for a graph whose types or relations have other names."""
        names = graph.node_type_names if len(self.type_names) > 1 else None
        if names is not None and not isinstance(self.node_types, int):
            for own, name in zip(self.type_names, names, strict=True):
                if own != name:
                    raise ValueError(
                        f"graph must have the node types {self.type_names} in that order, got "
                        f"{name!r} for {own!r}"
                    )
        if names is not None and graph.relation_names is not None:
            for relation, (src, dst) in zip(graph.relation_names, self.ends, strict=True):
                if relation[::2] != (names[src], names[dst]):
                    raise ValueError(
                        f"relation {relation!r} of the graph must run from {names[src]!r} to "
                        f"{names[dst]!r}, as relation_ends say"
                    )
        for own, relation in zip(
            self.relation_ends or (), graph.relation_names or (), strict=False
        ):
            if len(own) == 3 and own[1] != relation[1]:
                raise ValueError(
                    f"graph must have the relations of relation_ends in that order, got "
                    f"{relation!r} for {own!r}"
                )

    def _by_type(self, x: Any, sizes: tuple[int, ...]) -> dict[str, Array] | None:
        """The features of each type, or None of an array."""
        if not isinstance(x, Mapping):
            return None
        unknown = [name for name in x if name not in self.type_names]
        if unknown:
            raise ValueError(
                f"x has the type {unknown[0]!r}, which is none of {self.type_names}, got {[*x]}"
            )
        found: dict[str, Array] = {}
        batch: tuple[int, ...] = ()
        for name, like in [*x.items()][:1]:
            batch = as_array(f"x[{name!r}]", like).shape[1:-1]
        for name, size, width in zip(self.type_names, sizes, self.widths, strict=True):
            if name in x:
                rows_name = f"nodes of type {name!r}"
                found[name] = check_features(x[name], size, width, f"x[{name!r}]", rows_name)
                if found[name].shape[1:-1] != batch:
                    raise ValueError(
                        f"all of x must have the same batch axes, {batch}, got shape "
                        f"{found[name].shape} of type {name!r}"
                    )
            elif size == 0:
                found[name] = jnp.zeros((0, *batch, width))
            else:
                raise ValueError(f"x lacks the type {name!r}, which has {size} nodes, got {[*x]}")
        return found

    # --- The computation -------------------------------------------------------------------------

    def _of_nodes(
        self,
        graph: RelationalGraph,
        src: Array,
        dst: Array,
        types: NodeTypes,
        folded: HGTWeights | None,
    ) -> Array:
        """Of an array of sources and one of destinations: keys and values go by pair."""
        # Maps of queries and keys were multiplied beforehand; here a product of nodes is as much.
        of_keys = folded is not None and self._keys_take_queries
        ends: tuple[Array, ...] = (src,) if dst is src else (src, dst)
        folded = self._folded(*ends) if folded is None else folded
        operands = ends, self.query[...], _value(self.query_bias), folded
        ends, query, bias, folded = _promoted(operands, self.dtype)
        kernel = folded.value.kernel
        method = choose_method(graph, self.method, kernel, self.heads, dots=True)
        makes = method == "source_pairs" and not of_keys

        def of_nodes(src: Array, dst: Array | None = None) -> Array:
            dst = src if dst is None else dst
            made = types.times(dst, query, bias, self.precision) if makes else None
            y = self._attend(
                *(graph, dst, src, src, folded, method), made_query=made, keys_take_queries=of_keys
            )
            return self._finish(y, dst if dst.shape[1] == y.shape[1] else None, types)

        return over_batch(of_nodes, *ends)

    def _of_widths(
        self,
        graph: RelationalGraph,
        x: dict[str, Array],
        src_types: NodeTypes,
        dst_types: NodeTypes,
        folded: HGTWeights | None,
    ) -> Array:
        """Of types of different widths: keys, values and queries are nodes' own first."""
        folded = self._folded(*x.values()) if folded is None else folded
        params = [
            ({of: getattr(self, name)[of][...] for of in x}, _value(getattr(self, f"{name}_bias")))
            for name in ("key", "value", "query")
        ]
        x, params, folded = _promoted((x, params, folded), self.dtype)

        # In a block, rows of each type are those of all sources, the destinations' first.
        at_dst = {
            of: each if dst_types is src_types else each[: graph.num_dst] for of, each in x.items()
        }

        def mapped(
            x: dict[str, Array], types: NodeTypes, kernels: dict[str, Array], bias: Array | None
        ) -> Array:
            parts = [
                product(
                    *(x[of], kernels[of], self.precision),
                    bias=None if bias is None else bias[i],
                )
                for i, of in enumerate(self.type_names)
            ]
            return types.joined(parts)

        def of_nodes(key: Array, value: Array, query: Array, own: Array) -> Array:
            y = self._attend(graph, query, key, value, folded, self.method)
            return self._finish(y, own, dst_types)

        own = [
            each if each.shape[-1] == self.out_features else jnp.zeros(shape, each.dtype)
            for each in (at_dst[of] for of in self.type_names)
            for shape in [(*each.shape[:-1], self.out_features)]
        ]
        key, value = (of_sources(graph, mapped(x, src_types, *each)) for each in params[:2])
        query = mapped(at_dst, dst_types, *params[2])
        return over_batch(of_nodes, key, value, query, dst_types.joined(own))

    def _folded(self, *x: Array) -> HGTWeights:
        """In the dtype of the computation with such features."""
        return self.folded(dtypes.canonicalize_dtype(*x, self.attention[...], dtype=self.dtype))

    def _attend(
        self,
        graph: RelationalGraph,
        query: Array,
        key: Array,
        value: Array,
        folded: HGTWeights,
        method: Method,
        **options: Any,
    ) -> Array:
        y = hgt_attention(
            *(graph, query, key, value, folded),
            **options,
            heads=self.heads,
            method=method,
            precision=self.precision,
        )
        return y.reshape(graph.num_dst, math.prod(y.shape[1:]))

    def _finish(self, y: Array, own: Array | None, types: NodeTypes) -> Array:
        """GELU, the map by type, and the skip connection of types that are as wide."""
        operands = y, own, self.output[...], _value(self.output_bias), self.skip[...]
        y, own, output, bias, skip = _promoted(operands, y.dtype)
        y = types.times(y * _normal(y), output, bias, self.precision)
        if own is None:
            return y
        gate = jax.nn.sigmoid(skip)
        gate = jnp.where(np.array(self.widths) == self.out_features, gate, 1)
        if len(gate) > 1:
            gate = types.of_rows(gate)
        return own + feature_wise(gate, y) * (y - own)  # in this form part of the product


@jax.custom_jvp
def _normal(x: Array) -> Array:
    """The standard normal distribution's function, of which GELU's exact form is a product.

    JAX 0.12 has no derivative of ``erfc`` within ``jax.shard_map``.
    """
    return 0.5 * jax.lax.erfc(-x * math.sqrt(0.5))


_normal.defjvps(lambda t, y, x: t * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


# --- What is by type -----------------------------------------------------------------------------


class _TypeByType(NamedTuple):
    """Nodes that are numbered type by type, so many of each, and padding behind them."""

    sizes: tuple[int, ...]
    rows: int

    def joined(self, parts: list[Array]) -> Array:
        """One array, of one for the nodes of each type."""
        return _with_padding(parts, self.rows)

    def of_rows(self, values: Array) -> Array:
        """``(rows, 1)``, that of each node's type."""
        columns = [jnp.broadcast_to(values[i], (size, 1)) for i, size in enumerate(self.sizes)]
        return _with_padding(columns, self.rows)

    def times(self, x: Array, kernel: Array, bias: Array | None, precision: Any) -> Array:
        """The map of each node's type."""
        if len(kernel) == 1:
            return _of_one_type(x, kernel, bias, precision)
        sizes = jnp.array(self.sizes, jnp.int32)
        return segment_matmul(x, kernel, sizes, bias=bias, precision=precision)


class _TypeOfEach(NamedTuple):
    """Nodes in any order, whose types are given; those out of range are padding."""

    ids: Array
    num_types: int

    def joined(self, parts: list[Array]) -> Array:
        """One array, of one for all nodes as they were of each type."""
        zeros = jnp.zeros_like(parts[0])
        return functools.reduce(
            lambda y, part: jnp.where(row_wise(self.ids == part[0], y), part[1], y),
            enumerate(parts),
            zeros,
        )

    def of_rows(self, values: Array) -> Array:
        """``(rows, 1)``, that of each node's type."""
        return _of_types(values, self.ids)[:, None]

    def times(self, x: Array, kernel: Array, bias: Array | None, precision: Any) -> Array:
        """The map of each node's type."""
        if self.num_types == 1:
            return _of_one_type(x, kernel, bias, precision)
        plan = TypePlan.from_types(self.ids, self.num_types)
        y = segment_matmul(plan.sort(x), kernel, plan.group_sizes, bias=bias, precision=precision)
        return plan.unsort(y)


NodeTypes = _TypeByType | _TypeOfEach


def _of_one_type(x: Array, kernel: Array, bias: Array | None, precision: Any) -> Array:
    # XLA joins to it what goes on with its rows, in both directions.
    y = summed_by_rows(x, kernel[0], precision)
    return finished(y, None if bias is None else bias[0])


def _value(param: nnx.Param[Array] | None) -> Array | None:
    return None if param is None else param[...]


def _promoted(tree: Any, dtype: Any) -> Any:
    """The same with all arrays in the dtype of the computation."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, dtypes.promote_dtype(tuple(leaves), dtype=dtype))


def _side_by_side(kernel: Array, bias: Array | None) -> RelationMaps:
    """Of ``(relations, heads, k, n)``, and biases with k = 1."""
    kernel = kernel.swapaxes(1, 2)
    return RelationMaps(
        kernel.reshape(*kernel.shape[:2], -1), None if bias is None else bias.reshape(len(bias), -1)
    )


def _with_padding(parts: list[Array], rows: int) -> Array:
    """Rows type by type, and zeros for nodes of none."""
    joined = jnp.concatenate(parts)
    return jnp.pad(joined, ((0, rows - len(joined)), *[(0, 0)] * (joined.ndim - 1)))


def _by_types(y: Array, names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, Array]:
    stops = np.cumsum(sizes).tolist()
    return {
        name: y[stop - size : stop] for name, size, stop in zip(names, sizes, stops, strict=True)
    }


def _of_types(array: Array, types: Any) -> Array:
    """``array[types]``, by a product, whose gradient adds up in one order; 0 out of range."""
    types = np.array(types) if isinstance(types, list) else types
    chosen = types[:, None] == np.arange(len(array), dtype=types.dtype)[None]
    return jnp.tensordot(chosen.astype(array.dtype), array, 1, precision=jax.lax.Precision.HIGHEST)


def _type_names(node_types: Any) -> tuple[str, ...]:
    if isinstance(node_types, int) and not isinstance(node_types, bool):
        check_positive(node_types=node_types)
        return tuple(map(str, range(node_types)))
    names = tuple(node_types) if isinstance(node_types, tuple | list) else ()
    if not names or any(not isinstance(name, str) for name in names):
        raise TypeError(f"node_types must be names, or their number, got {node_types!r}")
    check_distinct("node_types", names)
    return names


def _widths(in_features: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """Of each type."""
    if not isinstance(in_features, Mapping):
        check_positive(in_features=in_features)
        return (in_features,) * len(names)
    for name in in_features:
        if name not in names:
            raise ValueError(
                f"in_features has the type {name!r}, which is none of {names}, got {in_features}"
            )
    for name in names:
        if name not in in_features:
            raise ValueError(f"in_features lacks the type {name!r}, got {in_features}")
        check_positive(**{f"in_features[{name!r}]": in_features[name]})
    return tuple(in_features[name] for name in names)


def _ends_of(
    relation_ends: Any, names: tuple[str, ...], num_relations: int
) -> tuple[tuple[int, int], ...]:
    """Of each relation the numbers of the types at its ends."""
    if relation_ends is None:
        if len(names) > 1:
            raise ValueError(
                f"relation_ends must be given where there are {len(names)} node types, got None"
            )
        return ((0, 0),) * num_relations
    if not isinstance(relation_ends, tuple | list) or any(
        not isinstance(of, tuple | list) or len(of) < 2 for of in relation_ends
    ):
        raise TypeError(f"relation_ends must be pairs of node types, got {relation_ends!r}")
    if len(relation_ends) != num_relations:
        raise ValueError(
            f"relation_ends must be those of num_relations = {num_relations}, got "
            f"{len(relation_ends)}"
        )
    check_distinct("relation_ends", [tuple(of) for of in relation_ends if len(of) == 3])
    found = []
    for relation, of in enumerate(relation_ends):
        ends = []
        for end in (of[0], of[-1]):
            known = range(len(names)) if isinstance(end, int) else names
            if end not in known:
                raise ValueError(
                    f"relation_ends[{relation}] must be node types, of {names}, got {tuple(of)}"
                )
            ends.append(known.index(end))
        found.append((ends[0], ends[1]))
    return tuple(found)


# --- The models ----------------------------------------------------------------------------------


class RGAT(AttentionStack):
    """Relational graph attention network: two `RGATConv`, or more; the last has one head.

    Its call takes the arguments of `RGATConv`'s, and a `HeteroGraph` likewise.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, self_relation=True)
        >>> model = RGAT(4, 16, 2, num_relations=3, heads=4, rngs=nnx.Rngs(0))
        >>> model(graph, jnp.ones((3, 4))).shape
        (3, 2)
    """

    convolution = RGATConv
    __call__ = takes_hetero(AttentionStack.__call__)


class HGT(TwoLayerStack):
    """Heterogeneous graph transformer: two `HGTConv` (or more), dropout, and a linear map.

    All convolutions have `hidden_features`; between them is dropout alone, as each has its GELU
    inside. Features of types may have different widths, for the first.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3)
        >>> HGT(4, 16, 2, num_relations=2, heads=4, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 2)
    """

    convolution = HGTConv
    takes_types = True

    def _build(self, *, rngs: nnx.Rngs, **options: Any) -> None:
        for number in range(1, self.num_layers + 1):
            inputs = self.in_features if number == 1 else self.hidden_features
            layer = HGTConv(inputs, self.hidden_features, rngs=rngs, **options)
            setattr(self, f"conv{number}", layer)
        last = linear_options(options)
        self.output = nnx.Linear(self.hidden_features, self.out_features, rngs=rngs, **last)

    def __call__(  # type: ignore[override]  # takes features by type, too
        self,
        graph: RelationalGraph | HeteroGraph | Blocks,
        x: Features,
        node_types: ArrayLike | None = None,
        **dropout: Any,
    ) -> Any:
        """Computes one row of outputs (logits) per node.

        Args:
            graph: The graph, as `HGTConv` takes it, or blocks of one.
            x: Node features, ``(num_nodes, *batch, in_features)``, or by name of the type. Of
                blocks, ``blocks.node_values`` of these.
            node_types: Of blocks, see `HGTConv`: of the sources of the first; None: the blocks'.
            **dropout: `deterministic` and `rngs`, see `Stack`.

        Returns:
            ``(num_nodes, *batch, out_features)``, or where x is by type the same by type.

        Raises:
            ValueError: A shape, or the graph's relations or types, do not fit a layer.
        """
        graph = graph.relational if isinstance(graph, HeteroGraph) else graph
        if isinstance(graph, Blocks) and node_types is None:
            node_types = graph.node_types
            names = self.convolutions[0].type_names
            if node_types is not None and isinstance(x, Mapping) and {*x} == {*names}:
                x = graph.source_rows({name: x[name] for name in names})
        if node_types is not None:
            dropout["node_types"] = node_types
        y = super().__call__(graph, x, **dropout)  # type: ignore[arg-type]  # may be by type
        if (
            not isinstance(x, Mapping)
            or node_types is not None
            or isinstance(graph, RelationalPart)
        ):
            return y
        first = self.convolutions[0]
        return _by_types(y, first.type_names, first.sizes(graph))

    def _input(self, x: Any, **dropout: Any) -> Any:
        if not isinstance(x, Mapping):
            return super()._input(x, **dropout)
        given = {name: as_array(f"x[{name!r}]", each) for name, each in x.items()}
        return {name: super(HGT, self)._input(each, **dropout) for name, each in given.items()}

    def _convolve(self, number: int, graph: Any, x: Any, *arguments: Any, **named: Any) -> Array:
        y = super()._convolve(number, graph, x, *arguments, **named)
        if not isinstance(y, dict):
            return y
        return _with_padding([y[name] for name in self.conv1.type_names], graph.num_nodes)

    def _convolve_and_relu(self, *arguments: Any, **named: Any) -> Array:
        return self._convolve(*arguments, **named)
