"""Graph convolutions that embed relations beside nodes, in Flax NNX: CompGCN."""

from __future__ import annotations

from dataclasses import InitVar, field, replace
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, glorot_init
from flax_layers.relational import check_relations, takes_hetero
from jax_gnn import Graph, RelationalGraph, spmm
from jax_gnn.extend import accumulator_dtype, feature_wise, source_pair_rows
from jax_gnn.sharding import RelationalPart

Composition = Literal["sub", "mult", "corr"]
CompGCNNorm = Literal["symmetric", "mean", "sum"]


class CompGCNOptions(LinearOptions):
    """Options of `CompGCNConv`, and of `CompGCN` for its convolutions.

    Attributes:
        num_relations: Number of relations, of which the second half are the inverse relations, as
            ``inverse=True`` of `RelationalGraph.from_triples` numbers them.
        composition: φ: "sub", ``x - z``; "mult", ``x z`` by features; or "corr",
            ``Σ_i x_i z_(k + i)``.
        normalization: a_e: "symmetric", the inverse root of the number of edges of e's direction
            into its destination times the number out of its source; "mean", the inverse of the
            former; "sum", 1.
        kernel_init: Initializer of each weight and of ``z_own``, Glorot's by default.
    """

    num_relations: int
    composition: Composition = "mult"
    normalization: CompGCNNorm = "symmetric"
    kernel_init: InitVar[nnx.Initializer] = glorot_init


class CompGCNConv(CompGCNOptions):
    """CompGCN convolution: ``y_i = (Σ_e a_e φ(x_j, z_r) W_dir(r) + φ(x_i, z_own) W_own) / 3 + b``.

    Vashishth et al., "Composition-based multi-relational graph convolutional networks", ICLR 2020,
    equations 2 to 5. Relations have embeddings z beside the nodes' x; φ composes the two by
    subtraction, product or circular correlation. There are three weights, for edges, for inverse
    edges and for nodes themselves, and one for the embeddings, ``z W_rel``.

    Each (source, relation) pair of the graph is composed once, the results are summed by
    destination and direction, and multiplied last: there is no row for each edge. Correlations are
    summed as their Fourier transforms.

    Attributes:
        in_features: Features per node and relation of the input.
        out_features: Features per node and relation of the output.
        kernel: Weights of edges, inverse edges and nodes themselves,
            ``(3, in_features, out_features)``.
        relation_kernel: ``W_rel``, ``(in_features, out_features)``.
        own_relation: ``z_own``, ``(in_features,)``.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, inverse=True)
        >>> conv = CompGCNConv(4, 8, num_relations=4, rngs=nnx.Rngs(0))  # inverse ones included
        >>> y, z = conv(graph, jnp.ones((3, 4)), jnp.ones((4, 4)))
        >>> y.shape, z.shape
        ((3, 8), (4, 8))
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        if self.num_relations % 2:
            raise ValueError(
                "num_relations must be even, relations and their inverses, got "
                f"{self.num_relations}"
            )
        self.kernel = factory.kernel(3, self.in_features, self.out_features)
        self.relation_kernel = factory.kernel(self.in_features, self.out_features)
        # Initializers expect two axes.
        self.own_relation = nnx.Param(factory.kernel(1, self.in_features)[0])
        self.bias = factory.bias(self.out_features)

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: ArrayLike,
        relations: ArrayLike,
        edge_weight: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Return the new features of nodes and relations, in `dtype`.

        They are ``(num_nodes, *batch, out_features)`` and ``(num_relations, out_features)``.

        Args:
            graph: Graph with inverse edges and the part "from_pairs", without a self_relation.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            relations: Embeddings of the relations, ``(num_relations, in_features)``.
            edge_weight: Weights, ``(num_edges,)``, in the graph's order, in place of the norm's
                factors; for a graph that does not change, those of :meth:`factors`, computed once.
                A part of a split graph needs those of the whole graph if the norm is "symmetric".
        """
        self._check_graph(graph)
        weight = base.check_edge_weight(graph, edge_weight)
        if edge_weight is None:
            weight = self.factors(graph)
        x = base.check_features(x, graph.num_dst, self.in_features)
        relations = base.check_features(
            relations, self.num_relations, self.in_features, "relations", "num_relations"
        )
        if relations.ndim != 2:
            raise ValueError(
                f"relations must be (num_relations, in_features), got {relations.shape}"
            )
        params = self.kernel[...], self.relation_kernel[...], self.own_relation[...]
        operands = x, relations, *params, base.parameter_value(self.bias)
        values: Any = dtypes.promote_dtype(operands, dtype=self.dtype)
        nodes, z, kernel, relation_kernel, self_relation, bias = values
        codes = self._encode(nodes)
        sums = self._decode(self._composition_sums(graph, codes, z, weight), nodes.dtype)
        # Sums of edges and of inverse edges side by side, for one product.
        sums = sums.reshape(graph.num_dst, 2, *nodes.shape[1:])
        sums = jnp.moveaxis(sums, 1, -2).reshape(*nodes.shape[:-1], 2 * self.in_features)
        self_code = feature_wise(self._encode(self_relation), codes)
        self_rows = self._decode(self._compose(codes, self_code), nodes.dtype)
        edge_kernel = kernel[:2].reshape(2 * self.in_features, self.out_features)
        y = (self._product(sums, edge_kernel) + self._product(self_rows, kernel[2])) / 3
        return base.finished(y, bias), self._product(z, relation_kernel)

    def _composition_sums(
        self, graph: RelationalGraph, codes: Array, z: Array, edge_weight: Array | None
    ) -> Array:
        """Return weighted sums of compositions, ``(2 * num_nodes, *batch, code width)``.

        Args:
            graph: The graph.
            codes: Encoded node features, ``(num_nodes, *batch, code width)``.
            z: Embeddings of the relations, ``(num_relations, in_features)``.
            edge_weight: Weights of edges, ``(num_edges,)``; None means ones.
        """
        # Compositions depend on source and relation alone, hence a row for each pair in the graph.
        codes = base.source_rows(graph, codes)
        sources, relations = source_pair_rows(graph, codes, self._encode(z))
        relations = jnp.expand_dims(relations, tuple(range(1, codes.ndim - 1)))
        compositions = self._compose(sources, relations)
        return spmm(_by_direction(graph), compositions, edge_weight)

    def factors(self, graph: RelationalGraph) -> Array | None:
        """Return the norm's factors of edges, ``(num_edges,)``; None for ones.

        They are in float32, or in float64 where 64 bits are on.
        """
        self._check_graph(graph)
        if self.normalization == "sum":
            return None
        directed = _by_direction(graph)
        rows = directed.rows
        valid = (rows >= 0) & (rows < directed.num_dst)

        def count(ids: Array) -> Array:
            """Return, for each edge, the number of edges with the same id."""
            increments = valid.astype(ids.dtype)
            sizes = jnp.zeros(directed.num_dst, ids.dtype).at[ids].add(increments, mode="drop")
            return sizes[ids].astype(float)

        # Padding counts for no node.
        ids = jnp.where(valid, rows, directed.num_dst)
        counts = count(ids)
        if self.normalization == "mean":
            return jnp.where(valid, 1 / counts, 0)
        if isinstance(graph, RelationalPart):
            raise ValueError(
                "edge_weight must be given for a part of a graph, as edges out of its nodes are in "
                "other parts, too: those of factors on the whole graph, by shard_edges"
            )
        out_counts = count(jnp.where(valid, 2 * graph.nodes.cols + ids % 2, directed.num_dst))
        return jnp.where(valid, jax.lax.rsqrt(counts * out_counts), 0)

    def _check_graph(self, graph: RelationalGraph) -> None:
        check_relations(graph, self.num_relations)
        if graph.num_src != graph.num_dst and not isinstance(graph, RelationalPart):
            raise ValueError(f"graph must not be bipartite, got {graph}")
        if graph.self_relation:
            raise ValueError(f"graph must have no self_relation, got {graph}")
        if graph.pair_src is None:
            raise ValueError(
                f"graph lacks the part 'from_pairs': call with_parts('from_pairs'), got {graph}"
            )

    # A circular correlation is a product of Fourier transforms. Correlations are
    # summed as transforms, real and imaginary parts side by side, and transformed back once per
    # node.

    def _encode(self, x: Array) -> Array:
        """Return x, or its Fourier transform for correlations."""
        if self.composition != "corr":
            return x
        transform = jnp.fft.rfft(x.astype(accumulator_dtype(x.dtype)))
        return jnp.concatenate([transform.real, transform.imag], -1)

    def _compose(self, x: Array, z: Array) -> Array:
        """Return φ of encoded features and embeddings."""
        if self.composition == "sub":
            return x - z
        if self.composition == "mult":
            return x * z
        a, b = jnp.split(x, 2, -1)
        c, d = jnp.split(z, 2, -1)
        return jnp.concatenate([a * c + b * d, a * d - b * c], -1)  # conj(x) z

    def _decode(self, x: Array, dtype: DTypeLike) -> Array:
        """Return the features of an encoding."""
        if self.composition != "corr":
            return x
        real, imaginary = jnp.split(x, 2, -1)
        y = jnp.fft.irfft(jax.lax.complex(real, imaginary), self.in_features)
        return y.astype(dtype)

    def _product(self, x: Array, kernel: Array) -> Array:
        return base.product(x, kernel, self.precision)


def _by_direction(graph: RelationalGraph) -> Graph:
    """Return a graph from pairs to two rows for each node: for edges, then for inverse edges.

    A destination's edges are in the order of their relations, so that rows ascend.
    """
    edges, pairs = graph.from_pairs, graph.pair_src
    assert edges is not None and pairs is not None
    # The second half of the relations are inverse, and their edges get odd rows.
    half = graph.num_relations // 2
    is_inverse = (graph.edge_types >= half).astype(edges.rows.dtype)
    rows = jnp.where(edges.rows < 0, edges.rows, 2 * edges.rows + is_inverse)
    num_forward_pairs = pairs.sizes[:half].sum(dtype=rows.dtype)
    from_inverse = (edges.t_rows >= num_forward_pairs).astype(rows.dtype)
    t_cols = jnp.where(edges.t_cols < 0, edges.t_cols, 2 * edges.t_cols + from_inverse)
    # Both rows of a node share its range of edges, and its forward edges come first.
    num_forward = jnp.append(0, jnp.cumsum(1 - is_inverse, dtype=rows.dtype))
    starts, stops = edges.indptr[:-1], edges.indptr[1:]
    middles = starts + (num_forward[stops] - num_forward[starts]).astype(starts.dtype)
    indptr = jnp.append(jnp.stack([starts, middles], 1), edges.indptr[-1:])
    return replace(edges, indptr=indptr, rows=rows, t_cols=t_cols)


class CompGCN(CompGCNOptions, base.TwoLayerStack):
    """Composition-based network of nodes and relations: two `CompGCNConv` by default.

    Its call takes the arguments of `CompGCNConv`'s; factors of edges are computed once.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, inverse=True)
        >>> model = CompGCN(4, 16, 2, num_relations=4, rngs=nnx.Rngs(0))
        >>> y, z = model(graph, jnp.ones((3, 4)), jnp.ones((4, 4)), deterministic=True)
        >>> y.shape, z.shape
        ((3, 2), (4, 2))
    """

    convolution = CompGCNConv
    takes_relations: ClassVar[bool] = True  # in calls, whose results have them, too

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: ArrayLike,
        relations: ArrayLike,
        edge_weight: ArrayLike | None = None,
        **dropout: Unpack[base.DropoutCall],
    ) -> tuple[Array, Array]:
        """Compute one row of outputs per node, and one per relation.

        Args:
            graph: The graph, see `CompGCNConv`. With a `HeteroGraph`, x and the nodes' outputs may
                be by type.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            relations: Embeddings of the relations, ``(num_relations, in_features)``.
            edge_weight: Weights, ``(num_edges,)``, see `CompGCNConv`.
            **dropout: `deterministic` and `rngs`, see `Stack`.

        Returns:
            ``(num_nodes, *batch, out_features)`` and ``(num_relations, out_features)``.
        """
        dropout = base.dropout_arguments(**dropout)
        if edge_weight is None:
            edge_weight = self.convolutions[0].factors(graph)
        y: Any = self._input(x, **dropout)
        z: Any = relations
        for number, conv in enumerate(self.convolutions, start=1):
            y, z = conv(graph, y, z, edge_weight)
            if number < self.num_layers:
                y = self.dropout(jax.nn.relu(y), **dropout)
        return y, z
