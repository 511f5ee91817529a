"""A graph whose nodes are split over the devices of a mesh, each with the edges into its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, take
from jax_gnn._core.ids import PADDING, is_traced
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sampling._rows import fetch_rows
from jax_gnn.sharding._exchange import COPY_ENGINES, Exchange
from jax_gnn.sharding._host_rows import HostRows, blocks_of, check_rows, in_blocks, on_host
from jax_gnn.sharding._partition import Method, partition
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart, edges_of
from jax_gnn.sharding._processes import check_same, sample
from jax_gnn.sharding._split import Piece, hyperedge_parts, pieces_of, square_of


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class ShardedGraph:
    """A graph split over the devices of a mesh: each has some nodes, and all edges into them.

    All arrays have a leading axis of devices, and so has what :meth:`shard` and :meth:`apply` give.
    Parts are padded to equal sizes.

    Attributes:
        part: what each device has; :meth:`apply` gives a device its own: a :class:`Part`, or of a
            graph with relations a :class:`RelationalPart`, of a hypergraph a
            :class:`HypergraphPart`.
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

    part: Part | RelationalPart | HypergraphPart
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
    def compiler_options(self) -> dict[str, str]:
        """What `jax.jit` is to be told for programs over the parts: of copy engines, if of any.

        Example:
            >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
            >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
            >>> def aggregate(sharded, x):
            ...     return sharded.apply(lambda part, x: part.aggregate(x), x)
            >>> run = jax.jit(aggregate, compiler_options=sharded.compiler_options)
            >>> run(sharded, sharded.shard(jnp.array([1.0, 2.0, 3.0])))
            Array([[5., 1., 0.]], dtype=float32)
        """
        part: Any = self.part
        exchange = part.into.exchange if isinstance(part, HypergraphPart) else part.exchange
        return dict(COPY_ENGINES) if exchange.by_copies else {}

    @property
    def rows_moved(self) -> int:
        """Rows that travel between all devices before one aggregation, padding included."""
        part = self.part
        if isinstance(part, HypergraphPart):
            rounds = part.into.exchange.rounds + part.back.exchange.rounds
        else:
            rounds = part.exchange.rounds
        return sum(each.rows(self.num_parts) for each in rounds)

    def __repr__(self) -> str:
        if not getattr(self.node_ids, "shape", None):  # a pytree of something else than arrays
            return f"ShardedGraph({self.part!r}, {self.node_ids}, {self.places})"
        return f"ShardedGraph(num_nodes={self.num_nodes}, num_parts={self.num_parts})"

    def __reduce__(self) -> Any:
        """Pickle or copy, with devices by id: JAX does not pickle devices and meshes."""
        ids = np.vectorize(lambda device: device.id, otypes=[int])(self.mesh.devices)
        arrays = jax.device_get((self.part, self.node_ids, self.places))
        return _on_devices, (*arrays, ids, self.mesh.axis_names, self.axis)

    def shard(self, values: Any, node_ids: Any = None) -> Any:
        """Rows of nodes, such as features, labels or masks, on the devices that own these.

        Of several processes all call it, with the same values; rows of 16 MiB are compared.

        Args:
            values: ``(num_nodes, *features)``, in the order of the whole graph; or by name of the
                type the rows of its nodes, where None stays None.
            node_ids: of another split, if ``values`` are rows of that, ``(devices, capacity,
                *features)``: its ``node_ids``. So what was saved goes on over other devices.

        Returns:
            ``(devices, capacity, *features)`` in the dtype of ``values``, zeros for padding; by
            name if they were, with zeros for nodes of other types.

        Raises:
            TypeError: ``node_ids`` is no array of integers.
            ValueError: ``values`` has another number of rows, or differs between processes, the
                graph has no such type, or ``node_ids`` does not name each node once.
        """
        if node_ids is not None:
            return jax.tree.map(self._of_split(node_ids), values)
        if isinstance(values, Mapping):
            return {
                name: None if each is None else self.shard(self._of_type(name, each))
                for name, each in values.items()
            }
        return self._shard(values, "num_nodes", self.num_nodes, self.node_ids)

    def _of_split(self, node_ids: Any) -> Callable[[Any], Array]:
        """What brings rows of another split to where their nodes are in this one."""
        given = arguments.to_numpy("node_ids", node_ids)
        ids = arguments.check_ids("node_ids", given.ravel())
        rows = np.flatnonzero(ids != PADDING)
        if given.ndim != 2 or not np.array_equal(np.sort(ids[rows]), np.arange(self.num_nodes)):
            raise ValueError(
                f"node_ids must be (devices, capacity), with each of num_nodes = {self.num_nodes} "
                f"once, and -1 for padding, got another array of shape {given.shape}"
            )
        places = rows[np.argsort(ids[rows])]

        def moved(values: Any) -> Array:
            self._check_rows("values", values, given.shape)
            values = values if is_traced(values) else np.asarray(values)
            return self.shard(values.reshape(-1, *values.shape[2:])[places])

        return moved

    def _of_type(self, name: Any, values: Any) -> Any:
        """Rows of all nodes, of those of one type."""
        part, shape = self.part, np.shape(values)
        names = part.node_type_names or () if isinstance(part, RelationalPart) else ()
        if name not in names:
            raise ValueError(f"values must be by name of types, {names}, got {name!r}")
        assert isinstance(part, RelationalPart)
        number, sizes = names.index(name), part.whole_type_sizes
        start, size = sum(sizes[:number]), sizes[number]
        if shape[:1] != (size,):
            raise ValueError(f"values[{name!r}] must be ({size}, ...), got shape {shape}")
        around = [(start, self.num_nodes - start - size), *[(0, 0)] * (len(shape) - 1)]
        return (jnp if is_traced(values) else np).pad(values, around)

    def shard_edges(self, values: Any) -> Array:
        """Values of edges, such as weights, on the devices that own these; or of hyperedges.

        Args:
            values: ``(num_edges, *features)``, in the whole graph's order
                (``edge_values`` brings them there); of a hypergraph ``(num_hyperedges, …)``.

        Returns:
            ``(devices, edges, *features)`` in the dtype of ``values``, zeros for padding.

        Raises:
            ValueError: ``values`` has another number of rows, or differs between processes.
        """
        if isinstance(self.part, HypergraphPart):
            size, ids = self.part.num_whole_hyperedges, self.part.hyperedge_ids
            return self._shard(values, "num_hyperedges", size, ids)
        edges = edges_of(self.part)
        count: Any = edges.num_input_edges
        count = None if is_traced(count) else int(_rows_here(count).popitem()[1])
        return self._shard(values, "num_edges", count, edges.edge_ids)

    def _shard(self, values: Any, size_name: str, size: int | None, ids: Array) -> Array:
        shape = np.shape(values)
        if not is_traced(values, ids):  # before an error that few may see
            values = np.asarray(values)
            check_same(self.mesh, values=sample(values))
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
        here = _rows_here(ids)

        def of_device(index: Any) -> Any:
            return fetch_rows(values, here[index[0].start or 0])[None]

        return jax.make_array_from_callback((*ids.shape, *shape[1:]), self._sharding, of_device)

    def host_rows(self, values: Any, *, block_rows: int | None = None) -> HostRows:
        """Features of nodes in memory of the hosts, for :meth:`apply`; see :class:`HostRows`.

        Args:
            values: ``(num_nodes, features)`` of floating-point numbers, not traced.
            block_rows: as of :meth:`HostRows.put`.

        Returns:
            Rows as of :meth:`shard`, whose blocks have a leading axis of devices.

        Raises:
            TypeError: ``values`` are no floating-point numbers, or are traced.
            ValueError: ``values`` has another number of rows, or ``block_rows`` is below 1.
        """
        host, here = check_rows(values, block_rows), _rows_here(self.node_ids)
        check_same(self.mesh, values=sample(host))
        if len(host) != self.num_nodes:
            raise ValueError(
                f"values must be (num_nodes = {self.num_nodes}, ...), got shape {host.shape}"
            )
        capacity = self.node_ids.shape[1]
        shape = blocks_of((capacity, host.shape[1]), host.dtype, block_rows)
        sharding = on_host(self._sharding, self.mesh.local_devices[0])

        def of_device(index: Any) -> Any:
            return in_blocks(fetch_rows(host, here[index[0].start or 0]), shape)[None]

        blocks = jax.make_array_from_callback((self.num_parts, *shape), sharding, of_device)
        return HostRows(blocks, capacity, host.dtype)

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
            ValueError: an array of ``values`` has no axis of the devices, or ``part``, ``node_ids``
                and ``mesh`` are not of one split, after a change of some.
        """
        arguments.check_callable("function", function)
        self._check_split()
        for array in jax.tree.leaves(values):
            self._check_rows("values", array, (self.num_parts,))

        def local(part: Any, values: Any) -> Any:
            part, values = jax.tree.map(lambda leaf: leaf[0], (part, values))
            return jax.tree.map(lambda leaf: leaf[None], function(part, *values, **named))

        spec = PartitionSpec(self.axis)
        run = jax.shard_map(local, mesh=self.mesh, in_specs=spec, out_specs=spec)
        return run(self.part, values)

    def _check_split(self) -> None:
        part, (count, capacity) = self.part, self.node_ids.shape
        into = part.back if isinstance(part, HypergraphPart) else edges_of(part)
        if (
            self.mesh.shape.get(self.axis) != count
            or {leaf.shape[0] for leaf in jax.tree.leaves(part)} != {count}
            or into.indptr.shape[1] != capacity + 1
        ):
            raise ValueError(
                f"part, node_ids and mesh must be of one split, got node_ids of {count} devices "
                f"and {capacity} rows, indptr of shape {into.indptr.shape}, and axis {self.axis!r} "
                f"of a mesh of {dict(self.mesh.shape)}"
            )

    def _check_rows(self, name: str, array: Any, lead: tuple[int, ...]) -> None:
        if np.shape(array)[: len(lead)] != lead:
            axes = ", ".join(map(str, lead))
            raise ValueError(
                f"{name} must have the shape ({axes}, ...), as shard gives, got {np.shape(array)}"
            )

    @property
    def _sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(self.axis))


def _on_devices(
    part: Any, node_ids: Any, places: Any, ids: Any, axis_names: tuple[str, ...], axis: str
) -> ShardedGraph:
    """Place a pickled `ShardedGraph` on the devices of this process with the same ids."""
    devices = {device.id: device for device in jax.devices()}
    missing = sorted({*ids.ravel().tolist()} - devices.keys())
    if missing:
        raise ValueError(
            f"ShardedGraph must be unpickled where JAX has its devices, got no devices {missing}: "
            "shard the graph there, by shard_graph or load_parts"
        )
    mesh = Mesh(np.vectorize(devices.get, otypes=[object])(ids), axis_names)
    part, node_ids = jax.device_put((part, node_ids), NamedSharding(mesh, PartitionSpec(axis)))
    places = jax.device_put(places, NamedSharding(mesh, PartitionSpec()))
    return ShardedGraph(part, node_ids, places, mesh, axis)


def _rows_here(array: Any) -> dict[int, Any]:
    """What this process has of an array with an axis of devices, by the place in that axis."""
    if not isinstance(array, jax.Array):
        return dict(enumerate(np.asarray(array)))
    here: dict[int, Any] = {}
    for shard in array.addressable_shards:
        here |= dict(enumerate(np.asarray(shard.data), shard.index[0].start or 0))
    return here


@public
def shard_graph(
    graph: Graph | RelationalGraph | HeteroGraph | Hypergraph,
    mesh: Mesh,
    axis: str,
    method: Method | Any = "stream",
    *,
    copy_engines: bool = False,
) -> ShardedGraph:
    """Splits a graph over the devices of a mesh. Host only.

    The mesh may have devices of several processes (`jax.distributed`): all call this with the same
    whole graph, and each makes the arrays of its own devices.

    Args:
        graph: the graph, which is not bipartite. A `HeteroGraph` counts as its ``relational``. Of a
            hypergraph, which is not directed, "stream" and "metis" deal out nodes and hyperedges at
            once; else hyperedges go where most of their nodes are.
        mesh: the devices.
        axis: the axis of the mesh that nodes are split over.
        method: how, see :func:`partition`; or ``(num_nodes,)`` integers, the place in the axis of
            the device that each node goes to.
        copy_engines: whether rows are sent by the copy engines of GPUs of one host, as programs
            that are compiled with :attr:`ShardedGraph.compiler_options` do. Layers then map rows
            for other devices first.

    Raises:
        TypeError: called inside ``jax.jit``, or an argument is of another type.
        ValueError: the graph is bipartite, a hypergraph directed, there are fewer nodes than the
            axis has devices, the mesh has no such axis, the method is another, or an array of parts
            does not fit; an argument differs between processes, or the mesh lacks some.
        ImportError: the method is "metis", and `pymetis` is not installed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes", "contiguous").node_ids
        Array([[0, 1, 2]], dtype=int32)
    """
    graph = checked_graph(graph)
    arguments.check_instance("mesh", mesh, Mesh)
    arguments.check_choice("axis", axis, mesh.axis_names)
    copy_engines = arguments.check_flag("copy_engines", copy_engines)
    num_nodes, num_parts = graph.num_nodes, mesh.shape[axis]
    # Before an error that few may see.
    check_same(mesh, graph=graph, axis=axis, method=method, copy_engines=copy_engines)
    if num_nodes < num_parts:
        raise ValueError(
            f"graph must have a node for each of {num_parts} devices of axis {axis!r}, got "
            f"num_nodes = {num_nodes}"
        )
    with host_arrays():
        parts = parts_of(graph, num_parts, method)
        check_same(mesh, method=parts)  # as versions of METIS may differ
        pieces, places = pieces_of(graph, num_parts, axis, *parts)
    return assembled(dict(enumerate(pieces)), places, mesh, axis, copy_engines)[0]


def checked_graph(graph: Any) -> Any:
    """A graph that can be split, on the host."""
    graph = graph.relational if isinstance(graph, HeteroGraph) else graph
    if isinstance(graph, Hypergraph):
        graph.check()
        if graph.head is not None:
            raise ValueError(f"graph must not be a directed hypergraph, got {graph}")
    else:
        if not isinstance(graph, RelationalGraph):
            arguments.check_instance("graph", graph, Graph)
        graph.check_arrays()
    if is_traced(*jax.tree.leaves(graph)):
        raise TypeError("graph must be sharded before jax.jit")
    return jax.device_get(graph)


def assembled(
    pieces: Mapping[int, Piece], places: Any, mesh: Mesh, axis: str, copy_engines: bool
) -> tuple[ShardedGraph, Any]:
    """A graph, and the values that came with it, of pieces by their place in the mesh's axis.

    Of each array the pieces of this process's devices suffice.
    """
    mesh = Mesh(mesh.devices, mesh.axis_names)
    sharding = NamedSharding(mesh, PartitionSpec(axis))

    def stacked(*of_pieces: Any) -> Any:  # each goes to its device from where it is
        here = dict(zip(pieces, of_pieces, strict=True))

        def piece(index: Any) -> Any:
            return here[index[0].start or 0][None]

        shape = mesh.shape[axis], *of_pieces[0].shape
        return jax.make_array_from_callback(shape, sharding, piece)

    whole = NamedSharding(mesh, PartitionSpec())
    places = jax.make_array_from_callback(places.shape, whole, lambda index: places[index])

    def told(value: Any) -> Any:
        return replace(value, by_copies=copy_engines) if isinstance(value, Exchange) else value

    part, node_ids, values = jax.tree.map(stacked, *pieces.values())
    part = jax.tree.map(told, part, is_leaf=lambda each: isinstance(each, Exchange))
    return ShardedGraph(part, node_ids, places, mesh, axis), values


def parts_of(graph: Any, num_parts: int, method: Any) -> tuple[Any, Any]:
    """The part of each node, by the method or as given, and of each hyperedge if there are any."""
    num_nodes, joined = graph.num_nodes, False
    if isinstance(method, str):
        joined = isinstance(graph, Hypergraph) and method not in ("contiguous", "hash")
        parts: Any = partition(square_of(graph, joined=joined), num_parts, cast(Method, method))
    else:
        parts = arguments.check_ids("method", method)
        if parts.shape != (num_nodes,):
            raise ValueError(
                f"method must be one of {get_args(Method)}, or parts of shape ({num_nodes},), got "
                f"shape {parts.shape}"
            )
        arguments.check_range("method", parts, "devices", num_parts)
    if not isinstance(graph, Hypergraph):
        return parts, None
    if joined:
        return parts[:num_nodes], parts[num_nodes:]
    return parts, hyperedge_parts(graph, parts, num_parts)
