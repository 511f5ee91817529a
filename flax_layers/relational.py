"""Relational graph neural networks in Flax NNX: R-GCN."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import InitVar, field
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.export
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike

from flax_layers import _base as base
from flax_layers._declaration import LinearOptions, ParameterFactory, glorot_init
from jax_gnn import HeteroGraph, RelationalGraph, relational_aggregate, relational_lookup
from jax_gnn.extend import check_instance, take
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import RelationalPart

Norm = Literal["mean", "sum"]


def takes_hetero(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let the call of a layer of relations take a `HeteroGraph`, too, and x by node type.

    The layer gets the graph with relations, and one array of all nodes. Its result is split by node
    type if x was by node type.
    """

    @functools.wraps(call)
    def hetero_call(
        self: nnx.Module, graph: object, x: object = None, *arguments: object, **named: object
    ) -> Any:
        if not isinstance(graph, HeteroGraph):
            return call(self, graph, x, *arguments, **named)
        if not isinstance(x, Mapping):
            return call(self, graph.relational, x, *arguments, **named)
        y = call(self, graph.relational, graph.join(x), *arguments, **named)
        return (graph.split(y[0]), *y[1:]) if isinstance(y, tuple) else graph.split(y)

    return hetero_call


class RelationOptions(LinearOptions):
    """Options of convolutions with a weight for each relation.

    Attributes:
        num_relations: Number of relations, inverse relations included.
        num_bases: Number of bases that the weights of relations are mixed from; None for
            independent weights.
        num_blocks: Number of blocks of block-diagonal weights, which divides the features of input
            and output; None for full weights.
        kernel_init: Initializer of each weight, basis or block, Glorot's by default.
    """

    num_relations: int
    num_bases: int | None = None
    num_blocks: int | None = None
    kernel_init: InitVar[nnx.Initializer] = glorot_init

    def _kernel_shape(self, in_features: int, out_features: int) -> tuple[int, ...]:
        """Return the shape of the weights of relations, bases or blocks: a matrix in the last axes.

        Raises:
            ValueError: A number is not positive, there are bases and blocks, or blocks do not
                divide the features.
        """
        shape, num_bases, num_blocks = (in_features, out_features), self.num_bases, self.num_blocks
        if num_bases is not None:
            if num_blocks is not None:
                raise ValueError(
                    "num_bases and num_blocks exclude each other: give one of them, got "
                    f"{num_bases=} and {num_blocks=}"
                )
            return (num_bases, *shape)
        if num_blocks is None:
            return (self.num_relations, *shape)
        if in_features % num_blocks or out_features % num_blocks:
            raise ValueError(
                f"num_blocks must divide in_features and out_features, {shape}, got {num_blocks}"
            )
        return self.num_relations, num_blocks, in_features // num_blocks, out_features // num_blocks


class RGCNOptions(RelationOptions):
    """Options of `RGCNConv`, and of `RGCN` for its convolutions.

    Attributes:
        num_relations: Number of relations, inverse relations included, a graph's relation of nodes
            to themselves excluded.
        normalization: "mean" divides by the number of edges into a node by the same relation,
            "sum" by nothing.
        self_weight: Whether a node's own features count, by a separate weight.
    """

    normalization: Norm = "mean"
    self_weight: bool = True


class RGCNConv(RGCNOptions):
    """R-GCN convolution: ``y_i = Σ_r 1 / |N_r(i)| Σ_(j in N_r(i)) x_j W_r + x_i W_0 + b``.

    Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018,
    equation 2. The weights of relations may be mixed from a few bases (equation 3) or
    block-diagonal (equation 4). If the graph has a ``self_relation``, ``W_0`` is the weight of that
    relation, and needs no product or sum of its own.

    Nodes without features are one-hot: the layer sums rows of its weights.

    Attributes:
        in_features: Features per node of the input; without features, the number of nodes.
        out_features: Features per node of the output.
        kernel: Weights, ``(num_relations, in_features, out_features)``, or the bases,
            ``(num_bases, …)``, and ``W_0``, if there is one, as a last matrix. With blocks
            ``(num_relations, num_blocks, in_features / num_blocks, out_features / num_blocks)``.
        coefficients: Shares of bases in relations, ``(num_relations, num_bases)``; None without
            bases.
        own: ``W_0`` beside blocks, ``(in_features, out_features)``; else None.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, self_relation=True)
        >>> RGCNConv(4, 8, num_relations=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    in_features: int = field(kw_only=False)
    out_features: int = field(kw_only=False)

    def _make_parameters(self, factory: ParameterFactory) -> None:
        shape = self._kernel_shape(self.in_features, self.out_features)
        if self.num_blocks is None:
            shape = (shape[0] + self.self_weight, *shape[1:])
        self.kernel = factory.kernel(*shape)
        self.coefficients = factory.kernel(self.num_relations, self.num_bases)
        is_beside_blocks = self.self_weight and self.num_blocks is not None
        self.own = factory.kernel(self.in_features, self.out_features, when=is_beside_blocks)
        self.bias = factory.bias(self.out_features)

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: base.NodeFeatures | None = None,
        edge_weight: ArrayLike | None = None,
    ) -> Array:
        """Return the new node features, ``(num_dst, *batch, out_features)`` in `dtype`.

        Args:
            graph: Graph with the relations of the layer and perhaps a relation of nodes to
                themselves. With a `HeteroGraph`, x and the result may be by node type.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``,
                which ``W_0`` multiplies; None means nodes without features.
            edge_weight: Weights, ``(num_edges,)``, in the graph's order, in place of the norm's
                factors; for a graph that does not change, those of :meth:`factors`, computed once.
        """
        self._check_graph(graph)
        weight = base.check_edge_weight(graph, edge_weight)
        if edge_weight is None:
            weight = self.factors(graph)
        # Rows of the destinations, for W_0.
        dst = None
        if isinstance(x, tuple) or (x is not None and self.self_weight):
            sizes = self.in_features, self.in_features
            x, dst = base.check_endpoint_features(graph, x, *sizes, with_halo=False)
        elif x is not None:
            x = base.check_features(x, base.num_rows(graph), self.in_features, rows_name="num_src")
        else:  # one-hot features are as wide as the whole graph has nodes
            sources = graph.num_src
            if isinstance(graph, RelationalPart):
                sources = graph.num_whole_nodes
            if sources != self.in_features:
                raise ValueError(
                    f"graph must have in_features = {self.in_features} sources where there is no "
                    f"x, got {sources}"
                )
            if self.self_weight:
                base.check_destinations_are_sources(graph)
        if x is None and self.num_blocks is not None:
            raise ValueError("x must be given for block-diagonal weights, got None")
        params = self.kernel, self.coefficients, self.own, self.bias
        operands: Any = (x, dst, *map(base.parameter_value, params))
        src, dst, kernel, coefficients, self_kernel, bias = dtypes.promote_dtype(
            operands, dtype=self.dtype
        )
        if x is None and isinstance(graph, RelationalPart):  # all devices have all weights
            kernel = jax.vmap(take, (0, None))(kernel, graph.node_ids)
        in_blocks = self.num_blocks is not None
        if in_blocks and not keeps_blocks(graph, self.in_features, self.out_features):
            in_blocks, kernel = False, block_diagonal(kernel)
            if self_kernel is not None:
                kernel = jnp.concatenate([kernel, self_kernel[None]])
        if in_blocks:
            y = self._sum_by_blocks(graph, src, weight, kernel)
        else:
            # The last matrix is W_0, which a self_relation of the graph takes as its weight.
            if self.self_weight:
                self_kernel = kernel[-1]
                kernel = kernel if graph.self_relation else kernel[:-1]
            y = self._sum_over_edges(graph, src, weight, kernel, coefficients)
        if self_kernel is not None and (in_blocks or not graph.self_relation):
            if x is None:  # one-hot features select rows
                y = y + base.destination_rows(graph, self_kernel)
            else:
                y = y + base.product(dst, self_kernel, self.precision)
        return base.finished(y, bias)

    def _check_graph(self, graph: RelationalGraph) -> None:
        """Raise ValueError for a graph with other relations than the layer's."""
        check_relations(graph, self.num_relations, beside_self=True)
        if graph.self_relation and not self.self_weight:
            raise ValueError(
                "graph has a self_relation, and the layer has self_weight=False, got "
                f"{graph.num_relations} relations"
            )

    def factors(self, graph: RelationalGraph) -> Array | None:
        """Return the normalization's factors of edges, `RelationalGraph.norm`; None for ones."""
        return None if self.normalization == "sum" else graph.norm(self.normalization)

    def _sum_over_edges(
        self,
        graph: RelationalGraph,
        x: Array | None,
        weight: Array | None,
        kernel: Array,
        coefficients: Array | None,
    ) -> Array:
        """Sum messages by full weights or bases; the last weight is that of a self_relation."""
        if coefficients is not None and graph.self_relation:
            # W_0 is a basis of its own, with share 1 in the self_relation.
            coefficients = jnp.pad(coefficients, ((0, 1), (0, 1))).at[-1, -1].set(1)
        options: Any = {"coefficients": coefficients, "precision": self.precision}
        if x is None:
            return relational_lookup(graph, kernel, weight, **options)
        if isinstance(graph, RelationalPart) and x.shape[0] == graph.num_dst:
            return graph.aggregate(x, kernel, weight, **options)
        return relational_aggregate(graph, x, kernel, weight, **options)

    def _sum_by_blocks(
        self, graph: RelationalGraph, x: Array, weight: Array | None, kernel: Array
    ) -> Array:
        """Sum messages by block-diagonal weights, whose blocks are a batch of products."""
        if graph.self_relation:  # its weight is not block-diagonal, and is added afterwards
            kernel = jnp.pad(kernel, ((0, 1), (0, 0), (0, 0), (0, 0)))
        x, count = base.source_rows(graph, x), kernel.shape[1]

        def aggregate_block(x: Array, kernel: Array) -> Array:
            return relational_aggregate(graph, x, kernel, weight, precision=self.precision)

        def aggregate(x: Array) -> Array:
            blocks = x.reshape(x.shape[0], count, self.in_features // count)
            y = jax.vmap(aggregate_block, (1, 1), 1)(blocks, kernel)
            return y.reshape(len(y), self.out_features)

        return over_batch(aggregate, x)


def keeps_blocks(graph: RelationalGraph, in_features: int, out_features: int) -> bool:
    """Return whether block-diagonal weights stay in blocks, whose products are narrow.

    Blocks take 2 to 7 times as long as full weights (a CPU, MUTAG, 2 to 20 blocks of 5 to 32
    features), so weights stay in blocks only if in full they have more numbers than all rows.
    """
    # Rows are multiplied for each pair at one end of the edges; without pairs, for each edge.
    sizes = graph.num_src_pairs, graph.num_dst_pairs
    pairs = [size for size in sizes if size is not None] or [graph.num_edges]
    if any(map(jax.export.is_symbolic_dim, pairs)):
        return False
    full_size = (graph.num_relations - graph.self_relation) * in_features * out_features
    return full_size > 2 * max(min(pairs), 1) * (in_features + out_features)


def check_relations(
    graph: RelationalGraph, num_relations: int, *, beside_self: bool = False
) -> None:
    """Raise ValueError for a graph with another number of relations than a layer.

    A self_relation is one of them, or comes beside them.
    """
    check_instance("graph", graph, RelationalGraph)
    count = graph.num_relations - int(beside_self and graph.self_relation)
    if count != num_relations:
        note = " beside a self_relation" if beside_self else ""
        raise ValueError(
            f"graph must have num_relations = {num_relations}{note}, inverse ones included, got "
            f"{count}"
        )


def block_diagonal(blocks: Array) -> Array:
    """Return full weights, ``(relations, k, n)``, from their blocks.

    Args:
        blocks: Blocks, ``(relations, num_blocks, k / num_blocks, n / num_blocks)``.
    """
    relations, count, k, n = blocks.shape
    on_diagonal = jnp.eye(count, dtype=bool)[:, None, :, None]
    full = jnp.where(on_diagonal, blocks[:, :, :, None, :], 0)
    return full.reshape(relations, count * k, count * n)


def over_batch(function: Callable[..., Array], *arrays: Array) -> Array:
    """Apply a function of matrices ``(rows, features)`` to ``(rows, *batch, features)``."""
    if arrays[0].ndim == 2:
        return function(*arrays)
    batch = arrays[0].shape[1:-1]
    flat = (x.reshape(len(x), math.prod(batch), x.shape[-1]) for x in arrays)
    y = jax.vmap(function, 1, 1)(*flat)
    return y.reshape(y.shape[0], *batch, y.shape[-1])


class RGCN(RGCNOptions, base.TwoLayerStack):
    """Relational graph convolutional network: two `RGCNConv` by default.

    Its call takes the arguments of `RGCNConv`'s; factors of edges are computed once. For nodes
    without features, ``in_features`` is their number.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, self_relation=True)
        >>> RGCN(3, 16, 2, num_relations=2, rngs=nnx.Rngs(0))(graph).shape
        (3, 2)
    """

    convolution = RGCNConv

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph | Blocks,
        x: ArrayLike | None = None,
        edge_weight: ArrayLike | tuple[ArrayLike, ...] | None = None,
        **dropout: Unpack[base.DropoutCall],
    ) -> Array:
        """Compute one row of outputs (logits) per node.

        Args:
            graph: The graph, or blocks, see `Stack`. With a `HeteroGraph`, x and the result may be
                by node type.
            x: Node features, ``(num_nodes, *batch, in_features)``; None means nodes without
                features.
            edge_weight: Weights, ``(num_edges,)``, see `RGCNConv`.
            **dropout: `deterministic` and `rngs`, see `Stack`.
        """
        if not isinstance(graph, Blocks):
            check_instance("graph", graph, RelationalGraph)
            if edge_weight is None:
                edge_weight = self.convolutions[0].factors(graph)
        return super().__call__(graph, x, edge_weight, **dropout)

    def _input(self, x: ArrayLike | None, **dropout: Unpack[base.DropoutCall]) -> Array | None:
        return None if x is None else super()._input(x, **dropout)
