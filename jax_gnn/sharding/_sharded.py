"""A graph whose nodes are split over the devices of a mesh, each with the edges into its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, take
from jax_gnn._core.ids import PADDING, count_of, ids_at, in_range, is_traced, pad_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import PARTS, RelationalGraph
from jax_gnn.sharding._exchange import Exchange, Round, rounds_of, shares_of
from jax_gnn.sharding._partition import Method, partition


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
        own = self.exchange.send.num_src
        if x.ndim == 0 or x.shape[0] != own:
            raise ValueError(f"x must have num_dst = {own} rows, got shape {x.shape}")
        return jnp.concatenate([x, self.exchange(x)])


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

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> x = sharded.shard(jnp.array([1.0, 2.0, 3.0]))
        >>> sharded.apply(lambda part, x: spmm(part, part.with_halo(x)), x)
        Array([[5., 1., 0.]], dtype=float32)
    """


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class RelationalPart(RelationalGraph, _HasHalo):
    """What one device has of a sharded graph with relations: as :class:`Part`, with relations.

    It has all edges into its own nodes, and so each (destination, relation) pair of the whole graph
    is in one part; a (source, relation) pair is in each part that it has edges to.

    Attributes:
        exchange: what fetches rows from other devices.
        node_ids: ``(num_src,)``, which node of the whole graph each source is; -1 is padding.
        node_types: ``(num_dst,)``, the type of each own node, likewise; None where nodes have no
            types. Nodes of a part are not numbered type by type.
        num_node_types: number of types of nodes.
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
    num_node_types: int = field(default=0, kw_only=True, metadata=STATIC)
    num_whole_nodes: int = field(kw_only=True, metadata=STATIC)


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class ShardedGraph:
    """A graph split over the devices of a mesh: each has some nodes, and all edges into them.

    All arrays have a leading axis of devices, and so has what :meth:`shard` and :meth:`apply` give.
    Parts are padded to equal sizes.

    Attributes:
        part: what each device has; :meth:`apply` gives a device its own :class:`Part`, or of a
            graph with relations its :class:`RelationalPart`.
        node_ids: ``(devices, capacity)``, which node of the whole graph each row is; -1 is padding.
        places: ``(num_nodes,)``, where each node of the whole graph is in the rows of all devices.
        mesh: the devices, by automatic axes: `jax.shard_map` takes models of arrays on no others.
        axis: the axis of the mesh that nodes are split over.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
        >>> sharded
        ShardedGraph(num_nodes=3, num_parts=1)
        >>> model = GCN(4, 8, 2, rngs=nnx.Rngs(0))
        >>> y = sharded.apply(model, sharded.shard(jnp.ones((3, 4))), deterministic=True)
        >>> y.shape, sharded.unshard(y).shape
        ((1, 3, 2), (3, 2))
    """

    part: Part | RelationalPart
    node_ids: Array
    places: Array
    mesh: Mesh = field(metadata=STATIC)
    axis: str = field(metadata=STATIC)

    @property
    def num_parts(self) -> int:
        """Number of devices that nodes are split over."""
        return self.node_ids.shape[0]

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph."""
        return self.places.shape[0]

    @property
    def rows_moved(self) -> int:
        """Rows that travel in one exchange between all devices, padding included."""
        return sum(each.rows(self.num_parts) for each in self.part.exchange.rounds)

    def __repr__(self) -> str:
        if not getattr(self.node_ids, "shape", None):  # a pytree of something else than arrays
            return f"ShardedGraph({self.part!r}, {self.node_ids}, {self.places})"
        return f"ShardedGraph(num_nodes={self.num_nodes}, num_parts={self.num_parts})"

    def shard(self, values: Any) -> Array:
        """Rows of nodes, such as features, labels or masks, on the devices that own these.

        Args:
            values: ``(num_nodes, *features)``, in the order of the whole graph.

        Returns:
            ``(devices, capacity, *features)`` in the dtype of ``values``, zeros for padding.

        Raises:
            ValueError: ``values`` has another number of rows.
        """
        return self._shard(values, "num_nodes", self.num_nodes, self.node_ids)

    def shard_edges(self, values: Any) -> Array:
        """Values of edges, such as weights, on the devices that own these.

        Args:
            values: ``(num_edges, *features)``, in the whole graph's order
                (``edge_values`` brings them there).

        Returns:
            ``(devices, edges, *features)`` in the dtype of ``values``, zeros for padding.

        Raises:
            ValueError: ``values`` has another number of rows.
        """
        edges = _edges_of(self.part)
        count: Any = edges.num_input_edges
        count = None if is_traced(count) else int(np.asarray(count)[0])
        return self._shard(values, "num_edges", count, edges.edge_ids)

    def _shard(self, values: Any, size_name: str, size: int | None, ids: Array) -> Array:
        shape = np.shape(values)
        if not shape or shape[0] != (shape[0] if size is None else size):
            size_name += "" if size is None else f" = {size}"
            raise ValueError(f"values must be ({size_name}, ...), got shape {shape}")
        if is_traced(values, ids):
            values = jnp.asarray(values)
            spec = PartitionSpec(self.axis)
            own = jax.shard_map(
                lambda values, ids: take(values, ids),
                mesh=self.mesh,
                in_specs=(PartitionSpec(), spec),
                out_specs=spec,
            )
            return own(values, ids)
        host, places = np.asarray(values), np.asarray(ids)
        found = np.zeros((*places.shape, *shape[1:]), host.dtype)
        found[places >= 0] = host[places[places >= 0]]
        return jax.device_put(found, self._sharding)

    def unshard(self, rows: Any) -> Array:
        """Rows of nodes in the order of the whole graph: the way back from :meth:`shard`.

        Args:
            rows: ``(devices, capacity, *features)``.

        Returns:
            ``(num_nodes, *features)`` in the dtype of ``rows``.

        Raises:
            ValueError: ``rows`` has other leading axes.
        """
        rows = jnp.asarray(rows)
        self._check_rows("rows", rows, self.node_ids.shape)
        rows = jax.sharding.reshard(rows, NamedSharding(self.mesh, PartitionSpec()))
        return rows.reshape(-1, *rows.shape[2:])[self.places]

    def apply(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Calls a function, such as a model, on each device with its part.

        Args:
            function: called with the device's part, then ``values`` and ``named``. A model of
                `flax_layers`, or one made of its convolutions, as it is.
            *values: pytrees of arrays with a leading axis of devices, of which each gets its own,
                without that axis: what :meth:`shard` and :meth:`shard_edges` give.
            **named: further arguments, which all devices get alike.

        Returns:
            What the function returns, each array with a leading axis of devices.

        Raises:
            ValueError: an array of ``values`` has no axis of the devices.
        """
        arguments.check_callable("function", function)
        for array in jax.tree.leaves(values):
            self._check_rows("values", array, (self.num_parts,))

        def local(part: Any, values: Any) -> Any:
            part, values = jax.tree.map(lambda leaf: leaf[0], (part, values))
            return jax.tree.map(lambda leaf: leaf[None], function(part, *values, **named))

        spec = PartitionSpec(self.axis)
        run = jax.shard_map(local, mesh=self.mesh, in_specs=spec, out_specs=spec)
        return run(self.part, values)

    def _check_rows(self, name: str, array: Any, lead: tuple[int, ...]) -> None:
        if np.shape(array)[: len(lead)] != lead:
            axes = ", ".join(map(str, lead))
            raise ValueError(
                f"{name} must have the shape ({axes}, ...), as shard gives, got {np.shape(array)}"
            )

    @property
    def _sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.axis))


@public
def shard_graph(
    graph: Graph | RelationalGraph | HeteroGraph,
    mesh: Mesh,
    axis: str,
    method: Method | Any = "stream",
) -> ShardedGraph:
    """Splits a graph over the devices of a mesh. Host only.

    Args:
        graph: the graph, which is not bipartite. A `HeteroGraph` counts as its ``relational``.
        mesh: the devices.
        axis: the axis of the mesh that nodes are split over.
        method: how, see :func:`partition`; or ``(num_nodes,)`` integers, the place in the axis of
            the device that each node goes to.

    Raises:
        TypeError: called inside ``jax.jit``, or an argument is of another type.
        ValueError: the graph is bipartite or has fewer nodes than the axis has devices, the mesh
            has no such axis, the method is another, or an array of parts does not fit.
        ImportError: the method is "metis", and `pymetis` is not installed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes", "contiguous").node_ids
        Array([[0, 1, 2]], dtype=int32)
    """
    graph = graph.relational if isinstance(graph, HeteroGraph) else graph
    if not isinstance(graph, RelationalGraph):
        arguments.check_instance("graph", graph, Graph)
    graph.check_arrays()
    if is_traced(_edges_of(graph).indptr):
        raise TypeError("graph must be sharded before jax.jit")
    arguments.check_instance("mesh", mesh, Mesh)
    arguments.check_choice("axis", axis, mesh.axis_names)
    num_nodes, num_parts = graph.num_nodes, mesh.shape[axis]
    if num_nodes < num_parts:
        raise ValueError(
            f"graph must have a node for each of {num_parts} devices of axis {axis!r}, got "
            f"num_nodes = {num_nodes}"
        )
    parts: Any
    if isinstance(method, str):
        parts = partition(_edges_of(graph), num_parts, cast(Method, method))
    else:
        parts = arguments.check_ids("method", method)
        if parts.shape != (num_nodes,):
            raise ValueError(
                f"method must be one of {get_args(Method)}, or parts of shape ({num_nodes},), got "
                f"shape {parts.shape}"
            )
        arguments.check_range("method", parts, "devices", num_parts)
    mesh = Mesh(mesh.devices, mesh.axis_names)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    with host_arrays():
        made, rounds, places = split_arrays(jax.device_get(graph), parts, num_parts)

    def stacked(*of_parts: Any) -> Array:  # each goes to its device from where it is
        def part(index: Any) -> Any:
            return of_parts[index[0].start or 0][None]

        return jax.make_array_from_callback((num_parts, *of_parts[0].shape), sharding, part)

    graphs, sends, sources = jax.tree.map(stacked, *made)
    capacity = sends.num_src
    node_ids = stacked(*(ids[:capacity] for *_, ids in made))
    kept = {each.name: getattr(graphs, each.name) for each in fields(graphs)}
    kept["exchange"] = Exchange(sends, rounds, axis)
    whole: Part | RelationalPart
    if isinstance(graph, RelationalGraph):
        sizes = graph.node_type_sizes
        if sizes is not None:
            types = np.repeat(np.arange(len(sizes), dtype=node_ids.dtype), sizes)
            types = pad_ids(types, num_nodes - len(types))
            kept["node_types"] = stacked(*(ids_at(types, ids[:capacity]) for *_, ids in made))
            kept["num_node_types"] = len(sizes)
        whole = RelationalPart(**kept, node_ids=sources, num_whole_nodes=num_nodes)
    else:
        whole = Part(**kept)
    places = jax.device_put(places, NamedSharding(mesh, PartitionSpec()))
    return ShardedGraph(whole, node_ids, places, mesh, axis)


def split_arrays(
    whole: Graph | RelationalGraph, parts: Any, num_parts: int
) -> tuple[list[Any], tuple[Round, ...], Any]:
    """For each part its graph, what it sends, and its sources; the rounds; the places of all nodes.

    All in numpy.
    """
    graph = _edges_of(whole)
    num_nodes, dtype = graph.num_nodes, graph.indptr.dtype
    sizes = np.bincount(parts, minlength=num_parts)
    capacity = int(sizes.max(initial=0))
    own = np.split(np.argsort(parts, kind="stable"), np.cumsum(sizes)[:-1])
    local = np.empty(num_nodes, dtype)  # the row of each node, at its owner
    for ids in own:
        local[ids] = np.arange(len(ids))
    halos = [_halo(graph, ids, parts) for ids in own]
    wanted = np.stack([np.bincount(parts[halo], minlength=num_parts) for halo in halos], 1)
    rounds = rounds_of(wanted)
    slots = sum(each.slots(num_parts) for each in rounds)
    send = np.full((num_parts, slots), PADDING, dtype)
    sources = np.full((num_parts, capacity + slots), PADDING, dtype)
    degrees = graph.in_degrees()
    most_edges = int(max(degrees[ids].sum() for ids in own))
    place, graphs = local.copy(), []  # of each node, where it is a source
    for reader, halo in enumerate(halos):
        sources[reader, : len(own[reader])] = own[reader]
        starts = np.concatenate([[0], np.cumsum(wanted[:, reader])])
        for owner in np.flatnonzero(wanted[:, reader]).tolist():
            ids = halo[starts[owner] : starts[owner + 1]]
            for share in shares_of(rounds, num_parts, owner, reader, len(ids)):
                sent, count = ids[share.start : share.stop], share.stop - share.start
                send[owner, share.sender : share.sender + count] = local[sent]
                place[sent] = capacity + share.receiver + np.arange(count)
                sources[reader, place[sent]] = sent
        edges = _edges_into(graph, own[reader])
        src, dst = place[graph.cols[edges]], local[graph.rows[edges]]
        place[halo] = local[halo]
        src, dst, edges = (pad_ids(ids, most_edges - len(edges)) for ids in (src, dst, edges))
        graphs.append(_with_edges(whole, edges, src, dst, (capacity + slots, capacity)))
    if isinstance(whole, RelationalGraph):  # parts have as many pairs as the one with most
        most = {
            name: max(getattr(each, name) for each in graphs)
            for name in ("num_src_pairs", "num_dst_pairs")
            if getattr(whole, name) is not None
        }
        graphs = [each.pad(**most) for each in graphs]
    sends = [
        Graph.from_edges(row, np.arange(slots), num_src=capacity, num_dst=slots, validate=False)
        for row in send
    ]
    places = (parts * capacity + local).astype(dtype)
    return list(zip(graphs, sends, sources, strict=True)), rounds, places


def _edges_of(graph: Graph | RelationalGraph) -> Graph:
    """The edges without their relations."""
    return graph.nodes if isinstance(graph, RelationalGraph) else graph


def _with_edges(whole: Any, edges: Any, src: Any, dst: Any, sizes: tuple[int, int]) -> Any:
    """Some edges of a graph, which have other ends now, as a bipartite graph of its kind.

    Its ``edge_ids`` are the places that these had.
    """
    ends: Any = {"num_src": sizes[0], "num_dst": sizes[1], "validate": False}

    def named(made: Graph) -> Graph:
        count = count_of(_edges_of(whole).rows, made.rows.dtype)
        return replace(made, edge_ids=ids_at(edges, made.edge_ids), num_input_edges=count)

    if isinstance(whole, Graph):
        return named(Graph.from_edges(src, dst, **ends))
    made = RelationalGraph.from_triples(
        *(src, ids_at(whole.edge_types, edges), dst),
        num_relations=whole.num_relations,
        parts=tuple(part for part in PARTS if getattr(whole, part) is not None),
        **ends,
    )
    return replace(
        made,
        nodes=named(made.nodes),
        node_type_names=whole.node_type_names,
        relation_names=whole.relation_names,
        self_relation=whole.self_relation,
    )


def _edges_into(graph: Any, nodes: Any) -> Any:
    """The places of the edges into some nodes, in the graph's order."""
    starts, degrees = graph.indptr[nodes], np.diff(graph.indptr)[nodes]
    places = np.repeat(starts - (np.cumsum(degrees, dtype=degrees.dtype) - degrees), degrees)
    places += np.arange(len(places), dtype=places.dtype)
    is_edge = in_range(graph.cols[places], graph.num_nodes)
    return places if is_edge.all() else places[is_edge]


def _halo(graph: Any, own: Any, parts: Any) -> Any:
    """The nodes of other parts with an edge to some nodes, by part."""
    is_source = np.zeros(graph.num_nodes, bool)
    is_source[graph.cols[_edges_into(graph, own)]] = True
    is_source[own] = False
    halo = np.flatnonzero(is_source)
    return halo[np.argsort(parts[halo], kind="stable")]
