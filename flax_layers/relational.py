"""Relational graph neural networks in Flax NNX: R-GCN."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._base import (
    Ends,
    TwoLayerStack,
    check_among_sources,
    check_ends,
    check_features,
    check_positive,
    check_vector,
    default_bias_init,
    finished,
    num_rows,
    of_destinations,
    of_sources,
    product,
)
from flax_layers.graph import glorot_init
from jax_gnn import HeteroGraph, RelationalGraph, relational_aggregate, relational_lookup, spmm
from jax_gnn.extend import (
    accumulator_dtype,
    blocks_pay,
    check_choice,
    check_instance,
    counts_of,
    of_relations,
    sums_by_basis_pay,
    take,
)
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import RelationalPart

Norm = Literal["mean", "sum"]


def takes_hetero(call: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the call of a layer of relations take a `HeteroGraph`, too, and x by type of nodes.

    The layer gets the graph with relations, and one array of all nodes. What it makes of these is
    by type where x was.
    """

    @functools.wraps(call)
    def of_names(self: Any, graph: Any, x: Any = None, *arguments: Any, **named: Any) -> Any:
        if not isinstance(graph, HeteroGraph):
            return call(self, graph, x, *arguments, **named)
        if not isinstance(x, Mapping):
            return call(self, graph.relational, x, *arguments, **named)
        y = call(self, graph.relational, graph.join(x), *arguments, **named)
        return (graph.split(y[0]), *y[1:]) if isinstance(y, tuple) else graph.split(y)

    return of_names


class RGCNConv(nnx.Module):
    """R-GCN convolution: ``y_i = Σ_r 1 / |N_r(i)| Σ_(j in N_r(i)) x_j W_r + x_i W_0 + b``.

    Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018,
    equation 2. The weights of relations may be mixed from a few bases (equation 3) or
    block-diagonal (equation 4). Of a graph with a ``self_relation``, the own weight ``W_0`` is that
    of this relation: no product or sum beside the others.

    Without features, nodes are one-hot: the layer sums rows of its weights.

    Attributes:
        kernel: ``(num_relations, in_features, out_features)``, or the bases, ``(num_bases, …)``;
            the own weight, if there is one, is a last row more. Of blocks
            ``(num_relations, num_blocks, in_features / num_blocks, out_features / num_blocks)``.
        coefficients: How much of each basis relations have, ``(num_relations, num_bases)``; None
            without bases.
        own: The own weight beside blocks, ``(in_features, out_features)``; else None.
        bias: ``(out_features,)``, or None without a bias.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, self_relation=True)
        >>> RGCNConv(4, 8, num_relations=2, rngs=nnx.Rngs(0))(graph, jnp.ones((3, 4))).shape
        (3, 8)
    """

    structure: ClassVar[type[RelationalGraph]] = RelationalGraph

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_relations: int,
        norm: Norm = "mean",
        own_weight: bool = True,
        num_bases: int | None = None,
        num_blocks: int | None = None,
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
            in_features: Features per node of the input; without features, the number of nodes.
            out_features: Features per node of the output.
            num_relations: Number of relations, inverse ones included, a graph's own relation of
                nodes to themselves not.
            norm: "mean" divides by the number of edges into a node by the same relation; "sum".
            own_weight: Whether a node's own features count, by a weight of their own.
            num_bases: How many bases the weights of relations are mixed from; None for weights of
                their own.
            num_blocks: Number of blocks of block-diagonal weights, which divides both numbers of
                features; None for full ones.
            rngs: Source of the keys for initialisation (stream "params").
            use_bias: See `LinearOptions`; so for all that follow.
            dtype: Of the computation.
            param_dtype: Of the parameters.
            precision: Of the products.
            kernel_init: Initialiser of each weight, basis or block.
            bias_init: Initialiser of the biases.

        Raises:
            ValueError: A size is not positive, the norm is unknown, there are bases and blocks, or
                blocks do not divide the features.
        """
        check_positive(
            in_features=in_features, out_features=out_features, num_relations=num_relations
        )
        check_choice("norm", norm, get_args(Norm))
        lead, shape = kernel_shape(num_relations, in_features, out_features, num_bases, num_blocks)
        if num_blocks is None:
            lead = (lead[0] + own_weight,)
        self.kernel = nnx.Param(each_of(kernel_init, rngs, lead, shape, param_dtype))
        self.coefficients: nnx.Param[Array] | None = nnx.data(None)
        if num_bases is not None:
            mixture = kernel_init(rngs.params(), (num_relations, num_bases), param_dtype)
            self.coefficients = nnx.Param(mixture)
        self.own: nnx.Param[Array] | None = nnx.data(None)
        if own_weight and num_blocks is not None:
            own = kernel_init(rngs.params(), (in_features, out_features), param_dtype)
            self.own = nnx.Param(own)
        self.bias: nnx.Param[Array] | None = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype))
        self.in_features = in_features
        self.out_features = out_features
        self.num_relations = num_relations
        self.norm: Norm = norm
        self.own_weight = own_weight
        self.num_bases = num_bases
        self.num_blocks = num_blocks
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision

    @takes_hetero
    def __call__(
        self,
        graph: RelationalGraph,
        x: Ends | None = None,
        edge_weight: ArrayLike | None = None,
    ) -> Array:
        """Applies the convolution.

        Args:
            graph: The graph, whose relations are those of the layer and perhaps the one of nodes to
                themselves. Of a `HeteroGraph`, x and the result may be by type of nodes.
            x: Features of the sources, ``(num_src, *batch, in_features)``, of which the first are
                the destinations, or a pair with those of destinations, ``(num_dst, *batch, …)``,
                which the own weight is for; None: nodes without features.
            edge_weight: ``(num_edges,)``, in the graph's order, in the place of the norm's factors:
                for what does not change, :meth:`factors` can be computed once and passed here.

        Returns:
            ``(num_dst, *batch, out_features)`` in `dtype`.

        Raises:
            ValueError: A shape or the graph's relations do not fit the layer.
        """
        check_instance("graph", graph, RelationalGraph)
        own_relation = int(graph.self_relation)
        if graph.num_relations != self.num_relations + own_relation:
            raise ValueError(
                f"graph must have num_relations = {self.num_relations} beside a self_relation, got "
                f"{graph.num_relations - own_relation}"
            )
        if graph.self_relation and not self.own_weight:
            raise ValueError(
                "graph has a self_relation, and the layer has own_weight=False, got "
                f"{graph.num_relations} relations"
            )
        if edge_weight is not None:
            edge_weight = check_vector("edge_weight", edge_weight, "num_edges", graph.num_edges)
        else:
            edge_weight = self.factors(graph)
        own = None
        if isinstance(x, tuple) or (x is not None and self.own_weight):
            x, own = check_ends(graph, x, self.in_features, self.in_features)
        elif x is not None:
            x = check_features(x, num_rows(graph), self.in_features, rows_name="num_src")
            x = of_sources(graph, x)
        elif (sources := _num_one_hot(graph)) != self.in_features:
            raise ValueError(
                f"graph must have in_features = {self.in_features} sources where there is no x, "
                f"got {sources}"
            )
        elif self.own_weight:
            check_among_sources(graph)
        params = self.kernel, self.coefficients, self.own, self.bias
        values: Any = (None if param is None else param[...] for param in params)
        values = dtypes.promote_dtype((x, own, *values), dtype=self.dtype)
        features, own, kernel, mixture, own_kernel, bias = values
        if x is None and isinstance(graph, RelationalPart):  # all devices have all weights
            kernel = jax.vmap(take, (0, None))(kernel, graph.node_ids)
        apart = False
        if self.num_blocks is not None:
            if x is None:
                raise ValueError("x must be given for block-diagonal weights, got None")
            apart = blocks_pay(counts_of(graph, self._full(kernel)))
            if not apart:
                kernel = block_diagonal(kernel)
                if own_kernel is not None:
                    kernel = jnp.concatenate([kernel, own_kernel[None]])
        if apart:
            y = self._of_blocks(graph, features, edge_weight, kernel)
        else:
            if self.own_weight:
                own_kernel = kernel[-1]
                kernel = kernel if graph.self_relation else kernel[:-1]
            y = self._of_relations(graph, features, edge_weight, kernel, mixture)
        if own_kernel is not None and (apart or not graph.self_relation):
            y = y + (
                of_destinations(graph, own_kernel) if x is None else self._times(own, own_kernel)
            )
        return finished(y, bias)

    def _full(self, kernel: Array) -> jax.ShapeDtypeStruct:
        """What block-diagonal weights are in full."""
        shape = self.num_relations, self.in_features, self.out_features
        return jax.ShapeDtypeStruct(shape, kernel.dtype)

    def factors(self, graph: RelationalGraph) -> Array | None:
        """The norm's factors of edges, `RelationalGraph.norm`; None for ones."""
        return None if self.norm == "sum" else graph.norm(self.norm)

    def _of_relations(
        self, graph: RelationalGraph, x: Array | None, weight: Any, kernel: Array, mixture: Any
    ) -> Array:
        """What comes over edges by full weights or bases, those of a self-relation last."""
        if mixture is not None:
            if graph.self_relation:
                mixture = jnp.pad(mixture, ((0, 1), (0, 1))).at[-1, -1].set(1)
            mixed = jax.ShapeDtypeStruct((len(mixture), *kernel.shape[1:]), kernel.dtype)
            counts = counts_of(graph, mixed)
            if sums_by_basis_pay(counts, len(kernel), lookup=x is None):
                return self._of_bases(graph, x, weight, kernel, mixture)
            kernel = jnp.tensordot(mixture, kernel, 1, precision=self.precision)
        if x is None:
            return relational_lookup(graph, kernel, weight)

        def aggregate(x: Array) -> Array:
            return relational_aggregate(graph, x, kernel, weight, precision=self.precision)

        return over_batch(aggregate, x)

    def _of_bases(
        self, graph: RelationalGraph, x: Array | None, weight: Any, kernel: Array, mixture: Array
    ) -> Array:
        """What comes over edges as one sum for each basis, of edges weighted by their relation."""
        shares = of_relations(graph, mixture)
        if weight is not None:
            dtype = accumulator_dtype(shares.dtype)
            shares = shares.astype(dtype) * weight.astype(dtype)[:, None]
        if x is None:
            z = kernel.swapaxes(0, 1)
        else:
            z = jnp.einsum("n...k,bkm->nb...m", x, kernel, precision=self.precision)
        return spmm(graph.nodes, z, shares).sum(1)

    def _of_blocks(self, graph: RelationalGraph, x: Array, weight: Any, kernel: Array) -> Array:
        """What comes over edges by block-diagonal weights: blocks are a batch of products."""
        if graph.self_relation:  # whose weight is no block
            kernel = jnp.pad(kernel, ((0, 1), (0, 0), (0, 0), (0, 0)))
        count = kernel.shape[1]

        def of_block(x: Array, kernel: Array) -> Array:
            return relational_aggregate(graph, x, kernel, weight, precision=self.precision)

        def aggregate(x: Array) -> Array:
            blocks = x.reshape(x.shape[0], count, self.in_features // count)
            y = jax.vmap(of_block, (1, 1), 1)(blocks, kernel)
            return y.reshape(len(y), self.out_features)

        return over_batch(aggregate, x)

    def _times(self, x: Array, kernel: Array) -> Array:
        return product(x, kernel, self.precision)


def _num_one_hot(graph: RelationalGraph) -> int:
    """How many features nodes without features have."""
    return graph.num_whole_nodes if isinstance(graph, RelationalPart) else graph.num_src


def kernel_shape(
    num_relations: int,
    in_features: int,
    out_features: int,
    num_bases: int | None,
    num_blocks: int | None,
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """How many weights there are for relations, bases or blocks, and the shape of each.

    Raises:
        ValueError: A number is not positive, there are both, or blocks do not divide the features.
    """
    shape = in_features, out_features
    if num_bases is not None:
        check_positive(num_bases=num_bases)
        if num_blocks is not None:
            raise ValueError(
                "num_bases and num_blocks exclude each other: give one of them, got "
                f"{num_bases=} and {num_blocks=}"
            )
        return (num_bases,), shape
    if num_blocks is None:
        return (num_relations,), shape
    check_positive(num_blocks=num_blocks)
    if in_features % num_blocks or out_features % num_blocks:
        raise ValueError(
            f"num_blocks must divide in_features and out_features, {shape}, got {num_blocks}"
        )
    return (num_relations, num_blocks), (in_features // num_blocks, out_features // num_blocks)


def each_of(
    init: nnx.Initializer, rngs: nnx.Rngs, lead: tuple[int, ...], shape: tuple[int, ...], dtype: Any
) -> Array:
    """``(*lead, *shape)``, each initialised for itself."""
    keys = jax.random.split(rngs.params(), math.prod(lead))
    return jax.vmap(lambda key: init(key, shape, dtype))(keys).reshape(*lead, *shape)


def block_diagonal(blocks: Array) -> Array:
    """Full weights, ``(relations, k, n)``, of ``(relations, blocks, k / blocks, n / blocks)``."""
    relations, count, k, n = blocks.shape
    where = jnp.eye(count, dtype=bool)[:, None, :, None]
    full = jnp.where(where, blocks[:, :, :, None, :], 0)
    return full.reshape(relations, count * k, count * n)


def over_batch(function: Any, *arrays: Array) -> Array:
    """Applies a function of matrices ``(rows, features)`` to ``(rows, *batch, features)``."""
    if arrays[0].ndim == 2:
        return function(*arrays)
    batch = arrays[0].shape[1:-1]
    rows = (each.reshape(len(each), math.prod(batch), each.shape[-1]) for each in arrays)
    y = jax.vmap(function, 1, 1)(*rows)
    return y.reshape(y.shape[0], *batch, y.shape[-1])


class RGCN(TwoLayerStack):
    """Relational graph convolutional network: two `RGCNConv`, or another number.

    Its call takes the arguments of `RGCNConv`'s; factors of edges are computed once. Where nodes
    have no features, ``in_features`` is their number.

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
        edge_weight: Any = None,
        **dropout: Any,
    ) -> Array:
        """Computes one row of outputs (logits) per node.

        Args:
            graph: The graph, or blocks, see `Stack`. Of a `HeteroGraph`, x and the result may be by
                type of nodes.
            x: Node features, ``(num_nodes, *batch, in_features)``; None: nodes without features.
            edge_weight: ``(num_edges,)``, see `RGCNConv`.
            **dropout: `deterministic` and `rngs`, see `Stack`.

        Returns:
            ``(num_nodes, *batch, out_features)``; of blocks, for the seeds.

        Raises:
            ValueError: A shape or the graph's relations do not fit a layer.
        """
        if not isinstance(graph, Blocks):
            check_instance("graph", graph, RelationalGraph)
        if edge_weight is None and not isinstance(graph, Blocks):
            edge_weight = self.convolutions[0].factors(graph)
        return super().__call__(graph, x, edge_weight, **dropout)

    def _input(self, x: ArrayLike | None, **dropout: Any) -> Array | None:
        return None if x is None else super()._input(x, **dropout)
