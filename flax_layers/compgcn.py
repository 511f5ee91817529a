"""Graph convolutions that embed relations beside nodes, in Flax NNX: CompGCN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._base import (
    TwoLayerStack,
    check_features,
    check_positive,
    check_vector,
    default_bias_init,
    dropout_arguments,
    finished,
    product,
)
from flax_layers.graph import glorot_init
from flax_layers.relational import each_of, takes_hetero
from jax_gnn import Graph, RelationalGraph, spmm
from jax_gnn.extend import (
    accumulator_dtype,
    check_choice,
    check_flag,
    check_instance,
    feature_wise,
    gather,
    in_range,
    row_starts,
    segments,
    total,
)

Composition = Literal["sub", "mult", "corr"]
CompGCNNorm = Literal["symmetric", "mean", "sum"]


class CompGCNConv(nnx.Module):
    """CompGCN convolution: ``y_i = (Σ_e a_e φ(x_j, z_r) W_dir(r) + φ(x_i, z_own) W_own) / 3 + b``.

    Vashishth et al., "Composition-based multi-relational graph convolutional networks", ICLR 2020,
    equations 2 to 5. Relations have embeddings z beside the nodes' x; φ composes the two by
    subtraction, product or circular correlation. There are three weights, of edges as they are
    given, of inverse edges and of nodes themselves, and one for the embeddings, ``z W_rel``.

    The compositions of the (source, relation) pairs that occur are made once each, summed up by
    destination and direction, and multiplied last: there is no row for each edge. Correlations are
    summed up as their Fourier transforms.

    Attributes:
        kernel: ``(3, in_features, out_features)``: of edges, of inverse ones, of nodes themselves.
        relation_kernel: ``W_rel``, ``(in_features, out_features)``.
        own_relation: ``z_own``, ``(in_features,)``.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, inverse=True)
        >>> conv = CompGCNConv(4, 8, num_relations=4, rngs=nnx.Rngs(0))  # inverse ones included
        >>> y, z = conv(graph, jnp.ones((3, 4)), jnp.ones((4, 4)))
        >>> y.shape, z.shape
        ((3, 8), (4, 8))
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_relations: int,
        composition: Composition = "mult",
        norm: CompGCNNorm = "symmetric",
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
            in_features: Features per node and relation of the input.
            out_features: Features per node and relation of the output.
            num_relations: Number of relations, the second half of which are the inverse ones, as
                ``inverse=True`` of `RelationalGraph.from_triples` has it.
            composition: φ: "sub", ``x - z``; "mult", ``x z`` by features; or "corr",
                ``Σ_i x_i z_(k + i)``.
            norm: What a_e is: "symmetric", the inverse root of the edges of e's direction into its
                destination times those out of its source; "mean", the inverse of the former; "sum".
            rngs: Source of the keys for initialisation (stream "params").
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the products.
            kernel_init: Initialiser of each weight and of ``z_own``.
            bias_init: Initialiser of the biases.

        Raises:
            ValueError: A size is not positive, the number of relations is odd, or the composition
                or norm is unknown.
        """
        check_positive(
            in_features=in_features, out_features=out_features, num_relations=num_relations
        )
        if num_relations % 2:
            raise ValueError(
                f"num_relations must be even, relations and their inverses, got {num_relations}"
            )
        check_choice("composition", composition, get_args(Composition))
        check_choice("norm", norm, get_args(CompGCNNorm))
        shape = in_features, out_features
        self.kernel = nnx.Param(each_of(kernel_init, rngs, (3,), shape, param_dtype))
        self.relation_kernel = nnx.Param(kernel_init(rngs.params(), shape, param_dtype))
        own = kernel_init(rngs.params(), (1, in_features), param_dtype)
        self.own_relation = nnx.Param(own[0])
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if check_flag("use_bias", use_bias):
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype))
        self.in_features = in_features
        self.out_features = out_features
        self.num_relations = num_relations
        self.composition: Composition = composition
        self.norm: CompGCNNorm = norm
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: ArrayLike,
        relations: ArrayLike,
        edge_weight: ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Applies the convolution.

        Args:
            graph: The graph, with inverse edges, without a self_relation and with its part
                "from_pairs".
            x: Node features, ``(num_nodes, *batch, in_features)``.
            relations: Embeddings of the relations, ``(num_relations, in_features)``.
            edge_weight: ``(num_edges,)``, in the graph's order, in the place of the norm's factors:
                for what does not change, :meth:`factors` can be computed once and passed here.

        Returns:
            ``(num_nodes, *batch, out_features)`` and ``(num_relations, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape or the graph does not fit the layer.
        """
        self._check_graph(graph)
        if edge_weight is None:
            edge_weight = self.factors(graph)
        else:
            edge_weight = check_vector("edge_weight", edge_weight, "num_edges", graph.num_edges)
        x = check_features(x, graph.num_nodes, self.in_features)
        relations = check_features(
            relations, self.num_relations, self.in_features, "relations", "num_relations"
        )
        if relations.ndim != 2:
            raise ValueError(
                f"relations must be (num_relations, in_features), got {relations.shape}"
            )
        bias = None if self.bias is None else self.bias[...]
        params = self.kernel[...], self.relation_kernel[...], self.own_relation[...]
        values: Any = dtypes.promote_dtype((x, relations, *params, bias), dtype=self.dtype)
        nodes, z, kernel, relation_kernel, own_relation, bias = values
        y = self._of(graph, nodes, z, edge_weight, kernel, own_relation, bias)
        return y, self._times(z, relation_kernel)

    def _of(
        self,
        graph: RelationalGraph,
        x: Array,
        z: Array,
        edge_weight: Array | None,
        kernel: Array,
        own_relation: Array,
        bias: Array | None,
    ) -> Array:
        """What becomes of nodes."""
        batch = x.shape[1:-1]
        nodes, of_relations = self._encoded(x), self._encoded(z)
        pairs = graph.pair_src
        assert pairs is not None  # checked above
        rows = gather(of_relations, segments(pairs.relations, self.num_relations))
        rows = rows.reshape(len(rows), *[1] * len(batch), *rows.shape[1:])
        composed = self._composed(total(nodes, pairs.gather), rows)
        summed = spmm(_by_direction(graph), composed, edge_weight)  # (num_nodes * 2, ...)
        summed = self._decoded(summed, x.dtype).reshape(
            graph.num_nodes, 2, *batch, self.in_features
        )
        summed = jnp.moveaxis(summed, 1, -2).reshape(graph.num_nodes, *batch, 2 * self.in_features)
        of_own = feature_wise(self._encoded(own_relation), nodes)
        own = self._decoded(self._composed(nodes, of_own), x.dtype)
        both = kernel[:2].reshape(2 * self.in_features, self.out_features)
        y = (self._times(summed, both) + self._times(own, kernel[2])) / 3
        return finished(y, bias)

    def factors(self, graph: RelationalGraph) -> Array | None:
        """The norm's factors of edges, ``(num_edges,)``; None for ones.

        They are in float32, or in float64 where 64 bits are on.

        Raises:
            ValueError: The graph does not fit the layer.
        """
        self._check_graph(graph)
        if self.norm == "sum":
            return None
        directed = _by_direction(graph)
        rows = directed.rows
        valid = in_range(rows, directed.num_dst)

        def count(ids: Array) -> Array:
            """Of each edge, how many have its id."""
            ones = valid.astype(ids.dtype)
            sizes = jnp.zeros(directed.num_dst, ids.dtype).at[ids].add(ones, mode="drop")
            return sizes[ids].astype(float)

        ids = jnp.where(valid, rows, directed.num_dst)
        counts = count(ids)
        if self.norm == "mean":
            return jnp.where(valid, 1 / counts, 0)
        out = count(jnp.where(valid, 2 * graph.nodes.cols + ids % 2, directed.num_dst))
        return jnp.where(valid, jax.lax.rsqrt(counts * out), 0)

    def _check_graph(self, graph: RelationalGraph) -> None:
        check_instance("graph", graph, RelationalGraph)
        if graph.num_relations != self.num_relations or graph.self_relation:
            more = " and a self_relation" if graph.self_relation else ""
            raise ValueError(
                f"graph must have num_relations = {self.num_relations}, inverse ones included, and "
                f"no self_relation, got {graph.num_relations - graph.self_relation}{more}"
            )
        if graph.pair_src is None:
            raise ValueError(
                f"graph lacks the part 'from_pairs': call with_parts('from_pairs'), got {graph}"
            )

    # Correlation is a product of Fourier transforms, and these are linear: sums are taken of them.

    def _encoded(self, x: Array) -> Array:
        if self.composition != "corr":
            return x
        transformed = jnp.fft.rfft(x.astype(accumulator_dtype(x.dtype)))
        return jnp.concatenate([transformed.real, transformed.imag], -1)

    def _composed(self, x: Array, z: Array) -> Array:
        if self.composition == "sub":
            return x - z
        if self.composition == "mult":
            return x * z
        a, b = jnp.split(x, 2, -1)
        c, d = jnp.split(z, 2, -1)
        return jnp.concatenate([a * c + b * d, a * d - b * c], -1)  # of x the conjugate

    def _decoded(self, x: Array, dtype: Any) -> Array:
        if self.composition != "corr":
            return x
        real, imaginary = jnp.split(x, 2, -1)
        y = jnp.fft.irfft(jax.lax.complex(real, imaginary), self.in_features)
        return y.astype(dtype)

    def _times(self, x: Array, kernel: Array) -> Array:
        return product(x, kernel, self.precision)


def _by_direction(graph: RelationalGraph) -> Graph:
    """Edges from pairs to twice the nodes: a row for what a node gets over edges, one for inverse.

    By destination, edges are in the order of their relations, so that rows ascend.
    """
    edges, pairs = graph.from_pairs, graph.pair_src
    assert edges is not None and pairs is not None
    half = graph.num_relations // 2
    inverse = (graph.edge_types >= half).astype(edges.rows.dtype)
    rows = jnp.where(edges.rows < 0, edges.rows, 2 * edges.rows + inverse)
    from_inverse = (edges.t_rows >= pairs.sizes[:half].sum(dtype=rows.dtype)).astype(rows.dtype)
    t_cols = jnp.where(edges.t_cols < 0, edges.t_cols, 2 * edges.t_cols + from_inverse)
    ascending = jnp.where(rows < 0, 2 * graph.num_dst, rows)
    indptr = row_starts(ascending, 2 * graph.num_dst).astype(edges.indptr.dtype)
    return replace(edges, indptr=indptr, rows=rows, t_cols=t_cols)


class CompGCN(TwoLayerStack):
    """Composition-based network: two `CompGCNConv`, or another number, of nodes and relations.

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

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: ArrayLike,
        relations: ArrayLike,
        edge_weight: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> tuple[Array, Array]:
        """Computes one row of outputs per node, and one per relation.

        Args:
            graph: The graph, see `CompGCNConv`. Of a `HeteroGraph`, x and what becomes of nodes may
                be by type.
            x: Node features, ``(num_nodes, *batch, in_features)``.
            relations: Embeddings of the relations, ``(num_relations, in_features)``.
            edge_weight: ``(num_edges,)``, see `CompGCNConv`.
            deterministic: See `Stack`.
            rngs: Likewise.

        Returns:
            ``(num_nodes, *batch, out_features)`` and ``(num_relations, out_features)``.

        Raises:
            ValueError: A shape or the graph does not fit a layer.
        """
        dropout = dropout_arguments(deterministic, rngs)
        if edge_weight is None:
            edge_weight = self.convolutions[0].factors(graph)
        y: Any = self._input(x, **dropout)
        z: Any = relations
        for number, conv in enumerate(self.convolutions, start=1):
            y, z = conv(graph, y, z, edge_weight)
            if number < self.num_layers:
                y = self.dropout(jax.nn.relu(y), **dropout)
        return y, z
