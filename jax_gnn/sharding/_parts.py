"""Parts: the piece of a split graph on one device.

A part's *own* nodes are those of its device. Its *halo* is the nodes of other devices with an edge
to an own node; their rows come last among the sources.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from jax_gnn._core.activation import Activation
from jax_gnn._core.arguments import check_features
from jax_gnn._core.arrays import STATIC, accumulator_dtype, row_wise
from jax_gnn._core.public import public
from jax_gnn._ops.hypergraph_aggregate.api import Normalization, power
from jax_gnn._ops.relational_aggregate.api import Halo, aggregate_with_halo
from jax_gnn._ops.spmm.api import Reduce, spmm, spmm_with_halo
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sharding._exchange import Exchange


@dataclass(frozen=True, eq=False)
class _HasHalo:
    """Base of parts that fetch rows from other devices."""

    exchange: Exchange = field(kw_only=True)

    def with_halo(self, x: Array) -> Array:
        """Return the rows of own nodes, then those of the halo, fetched from other devices.

        Only inside `jax.shard_map`, as within :meth:`ShardedGraph.apply`. The gradient of a row is
        the sum of its gradients on all devices, in a fixed order.

        Args:
            x: ``(num_dst, *features)`` of floating-point numbers, rows of own nodes.

        Returns:
            ``(num_src, *features)`` in the dtype of x.

        Raises:
            TypeError: x is not of floating-point numbers.
            ValueError: x has another number of rows.
        """
        local, halo = self.exchange(self._check_rows(x))
        # Arrays of no rows in a GPU's program over several devices crash XLA of jaxlib 0.11.
        return jnp.concatenate([local, halo]) if self.exchange.rounds else local

    def _check_rows(self, x: ArrayLike) -> Array:
        return check_features("x", x, "num_own", self.exchange.num_own)

    def _check_capacities(self, sizes: dict[str, int | None]) -> None:
        """Raise ValueError for capacities of nodes, as exchanges of other devices name the rows."""
        for name, size in sizes.items():
            if name in ("num_nodes", "num_src", "num_dst") and size is not None:
                raise ValueError(
                    f"{name} must be None for a part, as other devices name its rows: pad the "
                    f"graph before shard_graph, got {size}"
                )


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Part(Graph, _HasHalo):
    """Piece of a sharded graph on one device: a bipartite graph into the device's own nodes.

    The sources are the own nodes, then the halo: nodes of other devices with an edge to an own
    node. The layers and models of `flax_layers` take features of own nodes, ``(num_dst, …)``, and
    fetch the halo's where they need them. Ops take rows of all sources: :meth:`with_halo`.

    Its ``edge_ids`` are positions in the edge order of the whole graph.

    Attributes:
        exchange: the plan by which rows are fetched from other devices.
        num_far: number of edges from the halo, the maximum over all parts.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> x = sharded.shard(jnp.array([1.0, 2.0, 3.0]))
        >>> sharded.apply(lambda part, x: part.aggregate(x), x)
        Array([[5., 1., 0.]], dtype=float32)
        >>> sharded.apply(lambda part, x: spmm(part, part.with_halo(x)), x)
        Array([[5., 1., 0.]], dtype=float32)
    """

    num_far: int = field(kw_only=True, metadata=STATIC)

    def pad(self, **sizes: int | None) -> Part:
        """Pad to ``num_edges``; see `Graph.pad`.

        Raises:
            ValueError: the capacity is smaller than the number of edges, or is one of nodes.
        """
        self._check_capacities(sizes)
        return cast(Part, super().pad(**sizes))

    def out_degrees(self) -> Array:
        """Number of edges out of each source in the whole graph: ``(num_src,)`` integers.

        Only inside `jax.shard_map`, as devices count the edges to their own nodes.

        Raises:
            ValueError: the call is not in `jax.shard_map`.
        """
        exchange, counts = self.exchange, super().out_degrees()
        exchange.check()
        if not exchange.rounds:
            return counts
        # Edges to own nodes are counted here, and counts of the halo sent to its owners.
        local, halo = counts[: exchange.num_own], counts[exchange.num_own :]
        local = exchange.give_back(local, halo)
        return jnp.concatenate([local, exchange.fetch(local)])

    def aggregate(
        self,
        x: Array,
        weight: Array | None = None,
        *,
        reduce: Reduce = "sum",
        self_scale: ArrayLike | None = None,
        out_scale: ArrayLike | None = None,
        residual: ArrayLike | None = None,
        sent: Array | None = None,
        **epilogue: Any,
    ) -> Array:
        """Local rows of `spmm` on the whole graph. Only inside `jax.shard_map`.

        Sums and means read halo rows from the buffer that they arrive in. In the backward pass, the
        gradient of the halo is computed first, and travels while that of own rows is summed.

        Arguments are those of `spmm`, where x, ``(num_dst, *features)``, and ``self_scale`` are of
        own nodes; and ``sent``, rows of x for other devices that are computed early by
        :meth:`ahead`.

        Returns:
            ``(num_dst, *features)`` in the dtype of x.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument has the wrong shape, or the call is not in `jax.shard_map`.
        """
        x = self._check_rows(x)
        # Maxima need all rows in one array, own and halo.
        if self.exchange.rounds and reduce not in ("sum", "mean"):
            if self_scale is not None:
                own_rows = _scaled(_scaled(x, self_scale), out_scale)
                residual = own_rows if residual is None else own_rows + residual
            rows = jnp.concatenate(self.exchange(x, sent))
            return spmm(
                self,
                rows,
                weight,
                reduce=reduce,
                out_scale=out_scale,
                residual=residual,
                **epilogue,
            )
        halo = halo_edges = None
        if self.exchange.rounds:
            # A mean is a sum whose rows are divided by the number of edges.
            if reduce == "mean":
                count = jnp.maximum(self.in_degrees(), 1).astype(accumulator_dtype(x.dtype))
                self_scale = None if self_scale is None else jnp.asarray(self_scale) * count
                out_scale, reduce = _product(1 / count, out_scale), "sum"
            # Edges from the halo are the last ones, sorted by source.
            halo_edges = Halo(self.exchange, self.exchange.num_own, self.num_far).rows_of(self)
            x, halo = self.exchange(x, sent)
        return spmm_with_halo(
            self,
            x,
            weight,
            reduce=reduce,
            self_scale=self_scale,
            out_scale=out_scale,
            residual=residual,
            halo=halo,
            halo_rows=halo_edges,
            **epilogue,
        )

    def ahead(self, function: Callable[..., Array], *rows: Array) -> Array | None:
        """Apply a map of rows to the rows that are sent to other devices, before all others.

        Copy engines then send them while the map runs on all rows. As they are mapped twice, the
        result is None if they are more than half of the rows. It is None, too, if multiprocessors
        send them, which are busy with the map: unless `shard_graph` has ``copy_engines=True``.

        Args:
            function: function of arrays of rows, each row of whose result depends on one row.
            *rows: ``(num_dst, …)``, rows of own nodes.

        Returns:
            ``(slots, *features)``, for :meth:`aggregate` of the same map of all rows; or None.
        """
        exchange, num_sent = self.exchange, self.exchange.send.shape[0]
        is_relayed = any(step.relays for step in exchange.rounds)
        if not exchange.rounds or 2 * num_sent > exchange.num_own or not exchange.by_copies:
            return None
        if is_relayed:  # rows of other devices cannot be mapped early
            return None
        return jax.lax.stop_gradient(function(*map(exchange.gather_sent, rows)))


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class RelationalPart(RelationalGraph, _HasHalo):
    """Piece of a sharded relational graph on one device: a :class:`Part` with relations.

    It has all edges into its own nodes, so each (destination, relation) pair of the whole graph is
    in one part. A (source, relation) pair is in each part that it has edges to; ``out_degrees``
    counts the edges of this part.

    Attributes:
        exchange: the plan by which rows are fetched from other devices.
        num_far: number of edges from the halo, the maximum over all parts.
        node_ids: ``(num_src,)``, id of each source in the whole graph; -1 is padding.
        node_types: ``(num_dst,)``, type of each own node, -1 is padding; None if nodes have no
            types. Nodes of a part are not numbered type by type.
        whole_type_sizes: number of nodes of each type in the whole graph.
        num_whole_nodes: number of nodes of the whole graph.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1, 2], [0, 1, 1], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> x, weights = sharded.shard(jnp.array([[1.0], [2.0], [3.0]])), jnp.array([[[1]], [[10]]])
        >>> def aggregate(part, x):
        ...     return relational_aggregate(part, part.with_halo(x), weights.astype(x.dtype))
        >>> sharded.apply(aggregate, x)[0, :, 0]
        Array([50.,  1.,  0.], dtype=float32)
        >>> sharded.apply(lambda part, x: part.aggregate(x, weights.astype(x.dtype)), x)[0, :, 0]
        Array([50.,  1.,  0.], dtype=float32)
    """

    num_far: int = field(kw_only=True, metadata=STATIC)
    node_ids: Array = field(kw_only=True)
    node_types: Array | None = field(default=None, kw_only=True)
    whole_type_sizes: tuple[int, ...] = field(default=(), kw_only=True, metadata=STATIC)
    num_whole_nodes: int = field(kw_only=True, metadata=STATIC)

    def pad(self, **sizes: int | None) -> RelationalPart:
        """Pad to ``num_edges``, ``num_src_pairs`` and ``num_dst_pairs``; see `RelationalGraph.pad`.

        Raises:
            ValueError: a capacity is smaller than the number that the part has, or is one of nodes.
        """
        self._check_capacities(sizes)
        return cast(RelationalPart, super().pad(**sizes))

    def aggregate(
        self, x: Array, rhs: ArrayLike, weight: ArrayLike | None = None, **options: Any
    ) -> Array:
        """Local rows of `relational_aggregate` on the whole graph. Only inside `jax.shard_map`.

        Where sums into (destination, relation) pairs are no slower in training, they read halo rows
        from the buffer that these arrive in, and no row is multiplied on two devices. The gradient
        of the halo is then computed first, and travels while that of own rows is summed. So it is
        of sums by basis, for which rows travel on the narrower side of the map.

        Arguments are those of `relational_aggregate`, where x is ``(num_dst, *batch, k)``, of own
        nodes.

        Returns:
            ``(num_dst, *batch, n)`` in the dtype that x and rhs promote to.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument has the wrong shape, or the call is not in `jax.shard_map`.
        """
        x, exchange = self._check_rows(x), self.exchange
        exchange.check()
        halo = Halo(exchange, exchange.num_own, self.num_far) if exchange.rounds else None
        return aggregate_with_halo(self, x, rhs, weight, halo=halo, **options)

    def relation_degrees(self) -> Array:
        """Number of edges of each relation in the whole graph: ``(num_relations,)`` integers.

        Only inside `jax.shard_map`.

        Raises:
            ValueError: the call is not in `jax.shard_map`.
        """
        self.exchange.check()
        return cast(Array, jax.lax.psum(super().relation_degrees(), self.exchange.axis))


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class HypergraphPart:
    """Piece of a sharded hypergraph on one device: its own nodes and its own hyperedges.

    Sums run over the nodes of own hyperedges, then over the hyperedges of own nodes; rows of other
    devices are fetched before each. :meth:`aggregate` computes what `hypergraph_aggregate` does,
    for layers and models of `flax_layers`. All methods work inside `jax.shard_map` only.

    Attributes:
        into: edges from own nodes, then those of the halo, to own hyperedges.
        back: edges from own hyperedges, then those of the halo, to own nodes.
        hyperedge_ids: ``(num_hyperedges,)``, id of each own hyperedge in the whole hypergraph; -1
            is padding.
        num_whole_hyperedges: number of hyperedges of the whole hypergraph.

    Example:
        >>> hypergraph = Hypergraph.from_hyperedges([[0, 1, 2], [2, 3]])
        >>> sharded = shard_graph(hypergraph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> x = sharded.shard(jnp.array([1.0, 2.0, 3.0, 4.0]))
        >>> sharded.apply(lambda part, x: part.aggregate(x), x)
        Array([[ 6.,  6., 13.,  7.]], dtype=float32)
    """

    into: Part
    back: Part
    hyperedge_ids: Array
    num_whole_hyperedges: int = field(metadata=STATIC)

    @property
    def num_nodes(self) -> int:
        """Number of own nodes, padding included."""
        return self.back.num_dst

    @property
    def num_hyperedges(self) -> int:
        """Number of own hyperedges, padding included."""
        return self.into.num_dst

    def node_degrees(self) -> Array:
        """Number of hyperedges of each own node: ``(num_nodes,)`` integers."""
        return self.back.in_degrees()

    def hyperedge_degrees(self) -> Array:
        """Number of nodes of each own hyperedge: ``(num_hyperedges,)`` integers."""
        return self.into.in_degrees()

    def to_hyperedges(self, x: Array, *, reduce: Reduce = "sum", **epilogue: Any) -> Array:
        """Reduce the rows of the nodes of each own hyperedge.

        Other arguments: as of :meth:`Part.aggregate`.

        Returns:
            ``(num_hyperedges, *features)`` in the dtype of x, ``(num_nodes, *features)``.
        """
        return self.into.aggregate(x, reduce=reduce, **epilogue)

    def to_nodes(self, h: Array, *, reduce: Reduce = "sum", **epilogue: Any) -> Array:
        """Reduce the rows of the hyperedges of each own node.

        Other arguments: as of :meth:`Part.aggregate`.

        Returns:
            ``(num_nodes, *features)`` in the dtype of h, ``(num_hyperedges, *features)``.
        """
        return self.back.aggregate(h, reduce=reduce, **epilogue)

    def aggregate(
        self,
        x: Array,
        hyperedge_weight: Array | None = None,
        *,
        node_scale_in: Array | None = None,
        node_scale_out: Array | None = None,
        hyperedge_scale: Array | None = None,
        self_scale: ArrayLike | None = None,
        residual: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        activation: Activation | None = None,
        normalization: Normalization | None = None,
        hyperedge_reduce: Reduce = "sum",
        node_reduce: Reduce = "sum",
    ) -> Array:
        """Local rows of `hypergraph_aggregate` on the whole hypergraph.

        Arguments are those of `hypergraph_aggregate`, with rows of own nodes and own hyperedges.
        Rows travel in the dtype of x, to hyperedges and back.

        Returns:
            ``(num_nodes, *features)`` in the dtype of x.
        """
        # Degrees and scales are of the whole hypergraph, so they need exchanges of their own.
        acc = accumulator_dtype(x.dtype)
        scales_in, scales_out = [node_scale_in], [node_scale_out]
        scales_edge = [hyperedge_weight, hyperedge_scale]
        if normalization is not None:
            weight = jnp.ones(self.num_hyperedges) if hyperedge_weight is None else hyperedge_weight
            degree = self.to_nodes(weight.astype(acc))
            scales_edge.append(power(self.hyperedge_degrees().astype(acc), -1.0))
            scales_out.append(power(degree, -1.0 if normalization == "row" else -0.5))
            scales_in += [] if normalization == "row" else [scales_out[-1]]
        # A node's own term does not pass through hyperedges.
        if self_scale is not None:
            own_rows = _scaled(x, self_scale)
            residual = own_rows if residual is None else own_rows + residual
        h = self.to_hyperedges(_scaled(x, *scales_in), reduce=hyperedge_reduce)
        return self.to_nodes(
            _scaled(h, *scales_edge),
            reduce=node_reduce,
            out_scale=_product(*scales_out),
            residual=residual,
            bias=bias,
            activation=activation,
        )


def edges_into_nodes(part: Part | RelationalPart | HypergraphPart) -> Graph:
    """Return the edges into own nodes, from nodes or from hyperedges."""
    return part.back if isinstance(part, HypergraphPart) else edges_of(part)


def graphs_of(part: Part | RelationalPart | HypergraphPart) -> tuple[Graph, ...]:
    """Return the edges of each exchange of `exchanges_of`."""
    return (part.into, part.back) if isinstance(part, HypergraphPart) else (edges_of(part),)


def exchanges_of(part: Part | RelationalPart | HypergraphPart) -> tuple[Exchange, ...]:
    """Return the exchanges of an aggregation: of a hypergraph to its hyperedges, then to nodes."""
    if isinstance(part, HypergraphPart):
        return part.into.exchange, part.back.exchange
    return (part.exchange,)


def _product(*scales: ArrayLike | None) -> Array | None:
    """Multiply the scales that are not None."""
    factors = [cast(Array, scale) for scale in scales if scale is not None]
    return functools.reduce(operator.mul, factors) if factors else None


def _scaled(x: Array, *scales: ArrayLike | None) -> Array:
    """Scale each row of x by numbers or one factor per row, in the dtype of x."""
    scale = _product(*scales)
    if scale is None:
        return x
    scale = jnp.broadcast_to(jnp.asarray(scale, accumulator_dtype(x.dtype)), x.shape[:1])
    return (x * row_wise(scale, x)).astype(x.dtype)
