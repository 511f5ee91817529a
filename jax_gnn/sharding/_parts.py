"""What one device has of a graph that is split over several."""

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
from jax_gnn._core.csr import LastRows
from jax_gnn._core.public import public
from jax_gnn._ops.hypergraph_aggregate.api import Normalization, power
from jax_gnn._ops.spmm.api import Reduce, spmm, spmm_with_halo
from jax_gnn.graph import Graph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sharding._exchange import Exchange


def edges_of(graph: Graph | RelationalGraph) -> Graph:
    """The edges without their relations."""
    return graph.nodes if isinstance(graph, RelationalGraph) else graph


@dataclass(frozen=True, eq=False)
class _HasHalo:
    """What parts of all kinds of graphs have."""

    exchange: Exchange = field(kw_only=True)

    def with_halo(self, x: Array) -> Array:
        """Rows of own nodes, and those of the halo, from the devices that own them.

        Inside `jax.shard_map` alone, as within :meth:`ShardedGraph.apply`. The gradient of a row is
        the sum of those of all devices, in a fixed order.

        Args:
            x: ``(num_dst, *features)`` of floating-point numbers.

        Returns:
            ``(num_src, *features)`` in the dtype of x.

        Raises:
            TypeError: x is not of floating-point numbers.
            ValueError: x has another number of rows.
        """
        own, halo = self.exchange(self._own(x))
        # Arrays of no rows in a GPU's program over several devices crash XLA of jaxlib 0.11.
        return jnp.concatenate([own, halo]) if self.exchange.rounds else own

    def _own(self, x: ArrayLike) -> Array:
        return check_features("x", x, "num_own", self.exchange.num_own)

    def _check_padding(self, **sizes: Any) -> None:
        """Raise ValueError for capacities of nodes, whose rows the exchange names."""
        for name in ("num_nodes", "num_src", "num_dst"):
            if sizes.get(name) is not None:
                raise ValueError(
                    f"{name} must be None for a part, as other devices name its rows: pad the "
                    f"graph before shard_graph, got {sizes[name]}"
                )


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Part(Graph, _HasHalo):
    """What one device has of a sharded graph: a bipartite graph into its own nodes.

    The sources are its own nodes, and behind them the halo: nodes of other devices with an edge to
    one of its own. The layers and models of `flax_layers` take features of own nodes, ``(num_dst,
    …)``, and fetch the halo's where they need them. Ops take rows of all: :meth:`with_halo`.

    Its ``edge_ids`` are places in the whole graph's order.

    Attributes:
        exchange: what fetches rows from other devices.
        num_far: most edges from the halo that a part has.

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

    def pad(self, **sizes: Any) -> Part:
        """Pad to ``num_edges``; see `Graph.pad`.

        Raises:
            ValueError: the capacity is smaller than what is there, or is one of nodes.
        """
        self._check_padding(**sizes)
        return cast(Part, super().pad(**sizes))

    def out_degrees(self) -> Array:
        """Number of edges out of each source in the whole graph: ``(num_src,)`` integers.

        In `jax.shard_map` alone, as edges to nodes of other devices are counted there.

        Raises:
            ValueError: the call is not in `jax.shard_map`.
        """
        exchange, counts = self.exchange, super().out_degrees()
        exchange.check()
        if not exchange.rounds:
            return counts
        own, halo = counts[: exchange.num_own], counts[exchange.num_own :]
        own = exchange.add(own, exchange.travel(halo, back=True))
        return jnp.concatenate([own, exchange.travel(exchange.picked(own))])

    def aggregate(
        self,
        x: Array,
        weight: Array | None = None,
        *,
        reduce: Reduce = "sum",
        own_scale: ArrayLike | None = None,
        out_scale: ArrayLike | None = None,
        residual: ArrayLike | None = None,
        sent: Array | None = None,
        **last: Any,
    ) -> Array:
        """What `spmm` makes of the whole graph, for own nodes; in `jax.shard_map` alone.

        Sums and means read rows of other devices from where they arrive. Backward, the halo's
        gradients come first, and travel while those of own rows are summed up.

        Args:
            x: ``(num_dst, *features)``, of own nodes.
            weight: as there, and so all that follow.
            reduce: likewise.
            own_scale: likewise, where sources are the destinations.
            out_scale: likewise.
            residual: likewise.
            sent: rows of x that are computed ahead, for other devices; see :meth:`ahead`.
            **last: as of `spmm`.

        Returns:
            ``(num_dst, *features)`` in the dtype of x.

        Raises:
            TypeError: an argument has the wrong type or dtype.
            ValueError: an argument has the wrong shape, or the call is not in `jax.shard_map`.
        """
        x = self._own(x)
        scales: dict[str, Any] = {"own_scale": own_scale, "out_scale": out_scale}
        if not self.exchange.rounds:
            return spmm(self, x, weight, reduce=reduce, residual=residual, **scales, **last)
        if reduce not in ("sum", "mean"):
            if own_scale is not None:
                own = _times(_times(x, own_scale), out_scale)
                residual = own if residual is None else own + residual
            rows = jnp.concatenate(self.exchange(x, sent))
            last |= {"out_scale": out_scale, "residual": residual}
            return spmm(self, rows, weight, reduce=reduce, **last)
        if reduce == "mean":
            count = jnp.maximum(self.in_degrees(), 1).astype(accumulator_dtype(x.dtype))
            own_scale = None if own_scale is None else jnp.asarray(own_scale) * count
            scales = {"own_scale": own_scale, "out_scale": _product(1 / count, out_scale)}
        own, halo = self.exchange(x, sent)
        last |= {"halo": halo, "halo_rows": self._far}
        return spmm_with_halo(self, own, weight, residual=residual, **scales, **last)

    def ahead(self, function: Callable[..., Array], *rows: Array) -> Array | None:
        """``function(*rows)``, a map of each row, of those rows that other devices wait for.

        Copy engines then send them while the map goes on with all rows. They are mapped twice, so
        this is None where they are more than half as many. It also is where multiprocessors send
        them, of which the map has all: unless `shard_graph` was told of copy engines.

        Args:
            function: of arrays of rows, to one.
            *rows: ``(num_dst, …)``, of own nodes.

        Returns:
            ``(slots, *features)``, for :meth:`aggregate` of the same map of all rows; or None.
        """
        exchange, num_sent = self.exchange, self.exchange.send.shape[0]
        if not exchange.rounds or 2 * num_sent > exchange.num_own or not exchange.by_copies:
            return None
        return jax.lax.stop_gradient(function(*map(exchange.picked, rows)))

    @property
    def _far(self) -> LastRows:
        """The edges from the halo, by source: the last ones there."""
        by_source, num_own = self.matrix(weighted=True).by_col, self.exchange.num_own
        return LastRows.of(by_source, num_own, self.t_indptr[num_own], self.num_far)


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class RelationalPart(RelationalGraph, _HasHalo):
    """What one device has of a sharded graph with relations: as :class:`Part`, with relations.

    It has all edges into its own nodes, and so each (destination, relation) pair of the whole graph
    is in one part; a (source, relation) pair is in each part that it has edges to, of which
    ``out_degrees`` counts those of this part.

    Attributes:
        exchange: what fetches rows from other devices.
        node_ids: ``(num_src,)``, which node of the whole graph each source is; -1 is padding.
        node_types: ``(num_dst,)``, the type of each own node, likewise; None where nodes have no
            types. Nodes of a part are not numbered type by type.
        whole_type_sizes: how many nodes each type has in the whole graph.
        num_whole_nodes: number of nodes of the whole graph.

    Example:
        >>> graph = RelationalGraph.from_triples([0, 1, 2], [0, 1, 1], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> x, weights = sharded.shard(jnp.array([[1.0], [2.0], [3.0]])), jnp.array([[[1]], [[10]]])
        >>> def aggregate(part, x):
        ...     return relational_aggregate(part, part.with_halo(x), weights.astype(x.dtype))
        >>> sharded.apply(aggregate, x)[0, :, 0]
        Array([50.,  1.,  0.], dtype=float32)
    """

    node_ids: Array = field(kw_only=True)
    node_types: Array | None = field(default=None, kw_only=True)
    whole_type_sizes: tuple[int, ...] = field(default=(), kw_only=True, metadata=STATIC)
    num_whole_nodes: int = field(kw_only=True, metadata=STATIC)

    def pad(self, **sizes: Any) -> RelationalPart:
        """Pad to ``num_edges``, ``num_src_pairs`` and ``num_dst_pairs``; see `RelationalGraph.pad`.

        Raises:
            ValueError: as there, or a capacity is one of nodes.
        """
        self._check_padding(**sizes)
        return cast(RelationalPart, super().pad(**sizes))

    def relation_degrees(self) -> Array:
        """Number of edges of each relation in the whole graph: ``(num_relations,)`` integers.

        In `jax.shard_map` alone.

        Raises:
            ValueError: the call is not in `jax.shard_map`.
        """
        self.exchange.check()
        return jax.lax.psum(super().relation_degrees(), self.exchange.axis)


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class HypergraphPart:
    """What one device has of a sharded hypergraph: some nodes and some hyperedges.

    Sums run over the nodes of own hyperedges, and then over the hyperedges of own nodes; rows of
    other devices are fetched before each. :meth:`aggregate` does what `hypergraph_aggregate` does,
    for layers and models of `flax_layers`. All of it is inside `jax.shard_map` alone.

    Attributes:
        into: from own nodes, and others behind them, to own hyperedges.
        back: from own hyperedges, and others behind them, to own nodes.
        hyperedge_ids: ``(num_hyperedges,)``, which hyperedge of the whole hypergraph each of its
            own is; -1 is padding.
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

    def to_hyperedges(self, x: Array, *, reduce: Reduce = "sum", **last: Any) -> Array:
        """Reduces over each own hyperedge the rows of its nodes.

        Args:
            x: ``(num_nodes, *features)`` of floating-point numbers, of own nodes.
            reduce: "sum", "mean", "max" or "min".
            **last: what comes after, as the arguments of `spmm`.

        Returns:
            ``(num_hyperedges, *features)`` in the dtype of x.
        """
        return self.into.aggregate(x, reduce=reduce, **last)

    def to_nodes(self, h: Array, *, reduce: Reduce = "sum", **last: Any) -> Array:
        """Reduces over each own node the rows of its hyperedges.

        Args:
            h: ``(num_hyperedges, *features)`` of floating-point numbers, of own hyperedges.
            reduce: "sum", "mean", "max" or "min".
            **last: what comes after, as the arguments of `spmm`.

        Returns:
            ``(num_nodes, *features)`` in the dtype of h.
        """
        return self.back.aggregate(h, reduce=reduce, **last)

    def aggregate(
        self,
        x: Array,
        hyperedge_weight: Array | None = None,
        *,
        node_scale_in: Array | None = None,
        node_scale_out: Array | None = None,
        hyperedge_scale: Array | None = None,
        own_scale: ArrayLike | None = None,
        residual: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        activation: Activation | None = None,
        normalization: Normalization | None = None,
        hyperedge_reduce: Reduce = "sum",
        node_reduce: Reduce = "sum",
    ) -> Array:
        """What `hypergraph_aggregate` makes of the whole hypergraph, for own nodes.

        Rows travel in the dtype of x, to hyperedges and back.

        Args:
            x: ``(num_nodes, *features)``, of own nodes.
            hyperedge_weight: ``(num_hyperedges,)``, of own hyperedges.
            node_scale_in: ``(num_nodes,)``, and so all that follow: as there.
            node_scale_out: likewise.
            hyperedge_scale: likewise.
            own_scale: likewise.
            residual: likewise.
            bias: likewise.
            activation: likewise.
            normalization: likewise.
            hyperedge_reduce: likewise.
            node_reduce: likewise.

        Returns:
            ``(num_nodes, *features)`` in the dtype of x.
        """
        acc = accumulator_dtype(x.dtype)
        scales_in, scales_out = [node_scale_in], [node_scale_out]
        scales_edge = [hyperedge_weight, hyperedge_scale]
        if normalization is not None:
            weight = jnp.ones(self.num_hyperedges) if hyperedge_weight is None else hyperedge_weight
            degree = self.to_nodes(weight.astype(acc))
            scales_edge.append(power(self.hyperedge_degrees().astype(acc), -1.0))
            scales_out.append(power(degree, -1.0 if normalization == "row" else -0.5))
            scales_in += [] if normalization == "row" else [scales_out[-1]]
        own = residual
        if own_scale is not None:
            own = _times(x, own_scale)
            own = own if residual is None else own + residual
        h = self.to_hyperedges(_times(x, *scales_in), reduce=hyperedge_reduce)
        return self.to_nodes(
            _times(h, *scales_edge),
            reduce=node_reduce,
            out_scale=_product(*scales_out),
            residual=own,
            bias=bias,
            activation=activation,
        )


def _product(*scales: Any) -> Array | None:
    given = [scale for scale in scales if scale is not None]
    return functools.reduce(operator.mul, given) if given else None


def _times(x: Array, *scales: ArrayLike | None) -> Array:
    """Rows times the product of their factors, or of numbers, in the dtype of x."""
    scale = _product(*scales)
    if scale is None:
        return x
    scale = jnp.broadcast_to(jnp.asarray(scale, accumulator_dtype(x.dtype)), x.shape[:1])
    return (x * row_wise(scale, x)).astype(x.dtype)
