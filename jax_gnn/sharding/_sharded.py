"""Graphs whose nodes are split over the devices of a mesh, each with the edges into its nodes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, row_wise, take
from jax_gnn._core.ids import PADDING, is_traced, pad_ids
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hetero import HeteroGraph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sampling import fetch_rows
from jax_gnn.sharding._exchange import COPY_ENGINES, Exchange
from jax_gnn.sharding._host_rows import HostRows, block_shape, check_rows, on_host, to_blocks
from jax_gnn.sharding._host_samples import fetch_ahead
from jax_gnn.sharding._partition import Method, SplitArgs, parse_graph
from jax_gnn.sharding._parts import (
    HypergraphPart,
    Part,
    RelationalPart,
    edges_into_nodes,
    exchanges_of,
)
from jax_gnn.sharding._processes import check_same, local_rows, sample
from jax_gnn.sharding._samples import cached, neighbor_batches
from jax_gnn.sharding._split import Piece, split_graph

Result = TypeVar("Result")


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class ShardedGraph:
    """Graph split over the devices of a mesh: each has some nodes, and all edges into them.

    All arrays have a leading axis of devices, as do results of :meth:`shard` and :meth:`apply`.
    Parts are padded to equal sizes.

    Attributes:
        part: the parts of all devices; :meth:`apply` passes a device its part: a :class:`Part`, a
            :class:`RelationalPart` of a graph with relations, a :class:`HypergraphPart` of a
            hypergraph.
        node_ids: ``(devices, capacity)``, id of each row's node in the whole graph; -1 is padding.
        places: ``(devices, block)``, row of each node in the concatenated rows of all devices; a
            device has those of a block of consecutive nodes; -1 is padding.
        mesh: the devices, by automatic axes: `jax.shard_map` takes models of arrays on no others.
        axis: the axis of the mesh that nodes are split over.
        num_nodes: number of nodes of the whole graph.

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
    num_nodes: int = field(metadata=STATIC)

    cached = cached
    fetch_ahead = fetch_ahead
    neighbor_batches = neighbor_batches

    @property
    def num_parts(self) -> int:
        """Number of devices that nodes are split over."""
        return self.node_ids.shape[0]

    @property
    def compiler_options(self) -> dict[str, str]:
        """Compiler options of `jax.jit` for programs over the parts; empty without copy engines.

        Example:
            >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
            >>> sharded = shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes")
            >>> def aggregate(sharded, x):
            ...     return sharded.apply(lambda part, x: part.aggregate(x), x)
            >>> run = jax.jit(aggregate, compiler_options=sharded.compiler_options)
            >>> run(sharded, sharded.shard(jnp.array([1.0, 2.0, 3.0])))
            Array([[5., 1., 0.]], dtype=float32)
        """
        return dict(COPY_ENGINES) if exchanges_of(self.part)[0].by_copies else {}

    @property
    def rows_moved(self) -> int:
        """Number of rows that travel between devices before an aggregation, padding included."""
        rounds = [step for exchange in exchanges_of(self.part) for step in exchange.rounds]
        return sum(step.rows(self.num_parts) for step in rounds)

    def __repr__(self) -> str:
        if not getattr(self.node_ids, "shape", None):  # JAX puts other leaves than arrays here
            return f"ShardedGraph({self.part!r}, {self.node_ids}, {self.places})"
        return f"ShardedGraph(num_nodes={self.num_nodes}, num_parts={self.num_parts})"

    def __reduce__(self) -> tuple[Callable[..., ShardedGraph], tuple[object, ...]]:
        """Pickle or copy, with devices by id: JAX does not pickle devices and meshes."""
        ids = np.vectorize(lambda device: device.id, otypes=[int])(self.mesh.devices)
        part, node_ids, places = jax.device_get((self.part, self.node_ids, self.places))
        names = self.mesh.axis_names
        return _on_devices, (part, node_ids, places, ids, names, self.axis, self.num_nodes)

    def shard(self, values: Any, node_ids: Any = None) -> Any:
        """Put rows of nodes, such as features, labels or masks, on the devices of the nodes.

        With several processes, all call this with the same values; rows of 16 MiB are compared.

        Args:
            values: ``(num_nodes, *features)``, in the order of the whole graph; or by name of a
                type the rows of its nodes, where None stays None.
            node_ids: ``(devices, capacity)``, the ``node_ids`` of another split, if ``values`` are
                its rows, ``(devices, capacity, *features)``. Saved rows can so be used with other
                numbers of devices.

        Returns:
            ``(devices, capacity, *features)`` in the dtype of ``values``, zeros for padding; by
            name if they were, with zeros for nodes of other types.

        Raises:
            TypeError: ``values`` are no numbers, or ``node_ids`` no integers.
            ValueError: ``values`` has another number of rows, or differs between processes, the
                graph has no such type, or ``node_ids`` does not name each node once.
        """
        if node_ids is not None:
            return jax.tree.map(self._from_split(node_ids), values)
        if isinstance(values, Mapping):
            return {
                name: None if rows is None else self.shard(self._pad_type(name, rows))
                for name, rows in values.items()
            }
        return self._shard(values, "num_nodes", self.num_nodes, self.node_ids)

    def _from_split(self, node_ids: ArrayLike) -> Callable[[Array], Array]:
        """Return the function that shards rows of another split."""
        matrix = arguments.to_numpy("node_ids", node_ids)
        ids = arguments.check_ids("node_ids", matrix.ravel())
        rows = np.flatnonzero(ids != PADDING)
        if matrix.ndim != 2 or not np.array_equal(np.sort(ids[rows]), np.arange(self.num_nodes)):
            raise ValueError(
                f"node_ids must be (devices, capacity), with each of num_nodes = {self.num_nodes} "
                f"once, and -1 for padding, got another array of shape {matrix.shape}"
            )
        # The row of each node in the other split.
        places = rows[np.argsort(ids[rows])]

        def reshard(values: Array) -> Array:
            self._check_axes("values", values, matrix.shape)
            array = values if is_traced(values) else np.asarray(values)
            return cast(Array, self.shard(array.reshape(-1, *values.shape[2:])[places]))

        return reshard

    def _pad_type(self, name: str, values: ArrayLike) -> Array | np.ndarray:
        """Extend rows of the nodes of one type to rows of all nodes, by zeros."""
        part, array = self.part, cast(Any, values if is_traced(values) else np.asarray(values))
        names = part.node_type_names or () if isinstance(part, RelationalPart) else ()
        if name not in names:
            raise ValueError(f"values must be by name of types, {names}, got {name!r}")
        assert isinstance(part, RelationalPart)
        number, sizes = names.index(name), part.whole_type_sizes
        start, size = sum(sizes[:number]), sizes[number]
        arguments.check_rows(f"values[{name!r}]", array, "nodes", size)
        padding = [(start, self.num_nodes - start - size), *[(0, 0)] * (array.ndim - 1)]
        return np.pad(array, padding) if isinstance(array, np.ndarray) else jnp.pad(array, padding)

    def shard_edges(self, values: ArrayLike) -> Array:
        """Put values of edges, such as weights, on the devices of the edges; or of hyperedges.

        Args:
            values: ``(num_edges, *features)``, in the edge order of the whole graph (see its
                ``edge_values``); of a hypergraph ``(num_hyperedges, …)``.

        Returns:
            ``(devices, edges, *features)`` in the dtype of ``values``, zeros for padding.

        Raises:
            TypeError: ``values`` are no numbers.
            ValueError: ``values`` has another number of rows, or differs between processes.
        """
        if isinstance(self.part, HypergraphPart):
            size, ids = self.part.num_whole_hyperedges, self.part.hyperedge_ids
            return self._shard(values, "num_hyperedges", size, ids)
        edges = edges_of(self.part)
        counts, num_edges = edges.num_input_edges, None
        if counts is not None and not is_traced(counts):
            num_edges = int(local_rows(counts).popitem()[1])
        return self._shard(values, "num_edges", num_edges, edges.edge_ids)

    def _shard(self, values: ArrayLike, size_name: str, size: int | None, ids: Array) -> Array:
        """Put ``values[ids]`` on the devices; ``size``, if known, is the number of rows."""
        shape, traced = np.shape(values), is_traced(values, ids)
        if not traced:  # processes must agree before one of them raises the next error
            values = np.asarray(values)
            check_same(self.mesh, values=sample(values))
            values = arguments.check_numbers("values", values)
        if not shape or size not in (None, shape[0]):
            size_name += "" if size is None else f" = {size}"
            raise ValueError(f"values must be ({size_name}, ...), got shape {shape}")
        if traced:
            spec = PartitionSpec(self.axis)
            gather: Callable[..., Array] = jax.shard_map(
                lambda values, ids: take(values, ids),
                mesh=self.mesh,
                in_specs=(PartitionSpec(), spec),
                out_specs=spec,
            )
            return gather(jnp.asarray(values), ids)
        rows, local_ids = np.asarray(values), local_rows(ids)
        return _from_rows(
            (*ids.shape, *shape[1:]), self.sharding, lambda i: fetch_rows(rows, local_ids[i])
        )

    def host_rows(self, values: ArrayLike, *, block_rows: int | None = None) -> HostRows:
        """Put features of nodes in memory of the hosts, for :meth:`apply`; see :class:`HostRows`.

        Args:
            values: ``(num_nodes, features)`` of floating-point numbers, not traced.
            block_rows: largest number of rows of a block; None for about 64 MiB.

        Returns:
            Rows as of :meth:`shard`, whose blocks have a leading axis of devices.

        Raises:
            TypeError: ``values`` are not floating-point numbers, or are traced.
            ValueError: ``values`` has another number of rows, or ``block_rows`` is below 1.
        """
        rows, local_ids = check_rows(values, block_rows), local_rows(self.node_ids)
        check_same(self.mesh, values=sample(rows))
        arguments.check_rows("values", rows, "num_nodes", self.num_nodes)
        capacity = self.node_ids.shape[1]
        shape = block_shape((capacity, rows.shape[1]), rows.dtype, block_rows)
        sharding = on_host(self.sharding, self.mesh.local_devices[0])
        blocks = _from_rows(
            (self.num_parts, *shape),
            sharding,
            lambda i: to_blocks(fetch_rows(rows, local_ids[i]), shape),
        )
        return HostRows(blocks, capacity, rows.dtype)

    def unshard(self, rows: ArrayLike) -> Array:
        """Return rows of nodes in the order of the whole graph: the inverse of :meth:`shard`.

        Args:
            rows: ``(devices, capacity, *features)``.

        Returns:
            ``(num_nodes, *features)`` in the dtype of ``rows``, split over devices of one process
            if their number divides that of nodes. No device holds other rows than these and those
            of one part.

        Raises:
            ValueError: ``rows`` has other leading axes.
        """
        array = jnp.asarray(rows)
        self._check_axes("rows", array, self.node_ids.shape)
        return cast(Array, _unshard(array, self.places, self.mesh, self.axis, self.num_nodes))

    def apply(self, function: Callable[..., Result], *values: Any, **named: Any) -> Result:
        """Call a function, such as a model, on each device with its part.

        Args:
            function: called with the device's part, ``values`` and ``named``. A model of
                `flax_layers`, or one made of its convolutions, needs no changes. In training mode,
                batch norms, `nnx.BatchNorm` or those of `flax_layers`, use the statistics of all
                devices' nodes without padding, and update the model's; keys of its `nnx.Rngs` are
                folded with the device's number.
            *values: pytrees of arrays with a leading axis of devices, such as results of
                :meth:`shard` and :meth:`shard_edges`. A device gets its row, without that axis.
            **named: further arguments, the same for all devices; but a key of `jax.random.key` is
                folded with the device's number, so that devices draw different numbers.

        Returns:
            The result of the function, each array with a leading axis of devices.

        Raises:
            ValueError: an array of ``values`` has no axis of the devices, or ``part``, ``node_ids``
                and ``mesh`` are not of one split, after a change of some; the function changes an
                object from outside, as it does if it calls a model in training mode, rather than
                being one; or a batch norm has other rows than those of nodes, without a mask.
        """
        arguments.check_callable("function", function)
        self._check_split()
        for array in jax.tree.leaves(values):
            self._check_axes("values", array, (self.num_parts,))
        values = (self.part, *values)
        return _apply(function, self.mesh, self.axis, self.node_ids, values, {}, named)

    def _check_split(self) -> None:
        part, (count, capacity) = self.part, self.node_ids.shape
        edges = edges_into_nodes(part)
        if (
            self.mesh.shape.get(self.axis) != count
            or {leaf.shape[0] for leaf in jax.tree.leaves(part)} != {count}
            or edges.indptr.shape[1] != capacity + 1
        ):
            raise ValueError(
                f"part, node_ids and mesh must be of one split, got node_ids of {count} devices "
                f"and {capacity} rows, indptr of shape {edges.indptr.shape}, and axis "
                f"{self.axis!r} of a mesh of {dict(self.mesh.shape)}"
            )

    def _check_axes(self, name: str, array: Array | HostRows, shape: tuple[int, ...]) -> None:
        """Raise ValueError unless the leading axes of an array have this shape."""
        if np.shape(array)[: len(shape)] != shape:
            axes = ", ".join(map(str, shape))
            raise ValueError(
                f"{name} must have the shape ({axes}, ...), as shard gives, got {np.shape(array)}"
            )

    @property
    def sharding(self) -> NamedSharding:
        """Sharding of arrays with a leading axis of devices."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))


@public
def apply_on_devices(
    function: Callable[..., Result],
    mesh: Mesh,
    axis: str,
    values: tuple[Any, ...],
    named: Mapping[str, Any] | None = None,
    **shared: Any,
) -> Result:
    """Call a function, such as a model, on each device of a mesh with its batch.

    Batch norms and keys of a model are as in :meth:`ShardedGraph.apply`; norms that are called
    without a mask count all rows.

    Args:
        function: called with ``values``, ``named`` and ``shared``.
        mesh: the devices.
        axis: the axis of the mesh that the batches are split over.
        values: pytrees of arrays with a leading axis of devices, such as a stacked
            :class:`jax_gnn.Batch`. A device gets its row, without that axis.
        named: arguments by name, of such pytrees.
        **shared: further arguments, the same for all devices; but a key of `jax.random.key` is
            folded with the device's number.

    Returns:
        The result of the function, each array with a leading axis of devices.

    Raises:
        TypeError: ``function`` is not callable, or ``mesh`` is no mesh.
        ValueError: the mesh has no such axis, an array has no axis of the devices, or the function
            changes an object from outside.

    Example:
        >>> mesh = jax.make_mesh((1,), ("batch",))
        >>> apply_on_devices(jnp.sum, mesh, "batch", (jnp.array([[1.0, 2.0]]),))
        Array([3.], dtype=float32)
    """
    arguments.check_callable("function", function)
    arguments.check_instance("mesh", mesh, Mesh)
    arguments.check_choice("axis", axis, mesh.axis_names)
    for array in jax.tree.leaves((values, named)):
        if np.shape(array)[:1] != (mesh.shape[axis],):
            raise ValueError(
                f"values and named must have a leading axis of the {mesh.shape[axis]} devices of "
                f"{axis!r}, got shape {np.shape(array)}"
            )
    mesh = Mesh(mesh.devices, mesh.axis_names)  # with automatic axes
    return _apply(function, mesh, axis, None, values, dict(named or {}), shared)


def _apply(
    function: Callable[..., Result],
    mesh: Mesh,
    axis: str,
    node_ids: Array | None,
    values: tuple[Any, ...],
    named: dict[str, Any],
    shared: dict[str, Any],
) -> Result:
    """Return `apply_on_devices`; -1 in node_ids, ``(devices, rows)``, is padding of norms."""
    model: Any = None
    if "flax.nnx" in sys.modules:  # Flax is not imported for functions without it
        from jax_gnn.sharding._models import StatefulModel, update

        model = StatefulModel.of(function)

    # Arrays for all devices are operands, as those from outside would have another mesh's type.
    leaves, tree = jax.tree.flatten(shared)
    arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Array)}

    def call(operands: Any, state: Any, rest: Any, arrays: dict[int, Array]) -> Any:
        node_ids, values, named = jax.tree.map(lambda leaf: leaf[0], operands)
        device = jax.lax.axis_index(axis)
        shared = jax.tree.unflatten(tree, [arrays.get(i, x) for i, x in enumerate(leaves)])
        named |= {name: _own_key(device, value) for name, value in shared.items()}
        try:
            if model is None:
                result = function(*values, **named)
            else:
                is_node = None if node_ids is None else node_ids != PADDING
                local = model._replace(rest=rest)
                result, state = local.call(state, axis, is_node, *values, **named)
        except Exception as error:
            if type(error).__name__ != "TraceContextError":  # Flax's, which is not imported
                raise
            raise ValueError(
                "function must not change objects from outside, as a function does that calls "
                "a model in training mode: pass the model itself to apply, or merge a model of "
                "nnx.split inside the function"
            ) from error
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result), state

    # Leaves have a leading axis of one device inside.
    state, rest = ((), ()) if model is None else (model.state, model.rest)
    split, whole = PartitionSpec(axis), PartitionSpec()
    specs = (split, whole, whole, whole), (split, whole)
    run = jax.shard_map(call, mesh=mesh, in_specs=specs[0], out_specs=specs[1])
    result, state = run((node_ids, values, named), state, rest, arrays)
    if model is not None:
        update(function, state)
    return cast(Result, result)


@functools.partial(jax.jit, static_argnames=("mesh", "axis", "num_nodes"))
def _unshard(rows: Array, places: Array, mesh: Mesh, axis: str, num_nodes: int) -> Array:
    """Return rows in the order of the graph, by a ring: parts pass by, one at a time."""
    count = mesh.shape[axis]

    def call(rows: Array, places: Array) -> Array:
        capacity, device = rows.shape[1], jax.lax.axis_index(axis)
        owners, local = places[0] // capacity, places[0] % capacity

        def step(carry: tuple[Array, Array], i: Array) -> tuple[tuple[Array, Array], None]:
            part, block = carry
            is_here = row_wise(owners == (device + i) % count, block)
            block = jnp.where(is_here, take(part, local), block)
            pairs = [(i, (i - 1) % count) for i in range(count)]
            return (jax.lax.ppermute(part, axis, pairs), block), None

        shape = (places.shape[1], *rows.shape[2:])
        block = jax.lax.pcast(jnp.zeros(shape, rows.dtype), axis, to="varying")
        carry, _ = jax.lax.scan(step, (rows[0], block), jnp.arange(count))
        return cast(Array, carry[1])

    spec = PartitionSpec(axis)
    run = jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec)
    blocks = run(rows, places)[:num_nodes]
    # Devices of other processes cannot be read, and JAX splits axes into equal pieces only.
    is_local = all(device.process_index == jax.process_index() for device in mesh.devices.flat)
    result_spec = spec if is_local and num_nodes % count == 0 else PartitionSpec()
    sharding = NamedSharding(mesh, result_spec)
    return cast(Array, jax.lax.with_sharding_constraint(blocks, sharding))


def _own_key(device: Array, value: Any) -> Any:
    """Return a device's own key in place of a key for all devices, and all else as it is."""
    is_key = isinstance(value, Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return jax.random.fold_in(value, device) if is_key and not value.shape else value


def _on_devices(
    part: Part | RelationalPart | HypergraphPart,
    node_ids: np.ndarray,
    places: np.ndarray,
    ids: np.ndarray,
    axis_names: tuple[str, ...],
    axis: str,
    num_nodes: int,
) -> ShardedGraph:
    """Put a pickled `ShardedGraph` on the devices of this process with the same ids."""
    devices = {device.id: device for device in jax.devices()}
    # Devices of other processes cannot be restored.
    missing = sorted({*ids.ravel().tolist()} - devices.keys())
    if missing:
        raise ValueError(
            f"ShardedGraph must be unpickled where JAX has its devices, got no devices {missing}: "
            "shard the graph there, by shard_graph or load_parts"
        )
    mesh = Mesh(np.vectorize(devices.get, otypes=[object])(ids), axis_names)
    split = NamedSharding(mesh, PartitionSpec(axis))
    part, device_ids, device_places = jax.device_put((part, node_ids, places), split)
    return ShardedGraph(part, device_ids, device_places, mesh, axis, num_nodes)


def _from_rows(
    shape: tuple[int, ...], sharding: NamedSharding, row: Callable[[int], np.ndarray]
) -> Array:
    """Make an array with a row for each device; ``row`` is called for those of this process."""

    def callback(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        return row(index[0].start or 0)[None]

    return jax.make_array_from_callback(shape, sharding, callback)


WireDtype = Literal["bfloat16", "float16"]
"""Dtype in which rows of features travel between devices."""


class Messages(NamedTuple):
    """How devices exchange rows, as of `shard_graph`."""

    copy_engines: bool = False
    wire_dtype: str | None = None

    @classmethod
    def parse(cls, copy_engines: bool, wire_dtype: str | None) -> Messages:
        """Check the arguments of the same names."""
        arguments.check_choice("wire_dtype", wire_dtype, (None, *get_args(WireDtype)))
        return cls(arguments.check_flag("copy_engines", copy_engines), wire_dtype)


@public
def shard_graph(
    graph: Graph | RelationalGraph | HeteroGraph | Hypergraph,
    mesh: Mesh,
    axis: str,
    method: Method | ArrayLike = "auto",
    *,
    copy_engines: bool = False,
    wire_dtype: WireDtype | None = None,
) -> ShardedGraph:
    """Split a graph over the devices of a mesh. Host only.

    The mesh may have devices of several processes (`jax.distributed`): all call this with the same
    whole graph, and each makes the arrays of its own devices.

    Args:
        graph: the graph, which is not bipartite. A `HeteroGraph` counts as its ``relational``. A
            hypergraph, which is not directed, is split by nodes and hyperedges at once with
            "auto", which is "multilevel" here, "multilevel" and "metis"; else hyperedges go to the
            part of most of their nodes.
        mesh: the devices.
        axis: the axis of the mesh that nodes are split over.
        method: name of a method, see :func:`partition`; or ``(num_nodes,)`` integers, the position
            in the axis of each node's device.
        copy_engines: whether copy engines of the GPUs of one host send rows, in programs that are
            compiled with :attr:`ShardedGraph.compiler_options`. Layers then map rows for other
            first.
        wire_dtype: dtype in which features of nodes, and their gradients, travel between devices;
            None for their own. A wider row of the halo is rounded once, and sums are in the dtypes
            that they have otherwise. Vectors, of one number for each node, are not rounded.

    Raises:
        TypeError: called inside ``jax.jit``, or an argument has the wrong type.
        ValueError: the graph is bipartite, a hypergraph directed, there are fewer nodes than the
            axis has devices, the mesh has no such axis, the method is unknown, or an array of parts
            does not fit; an argument differs between processes, or the mesh lacks some processes.
        ImportError: the method is "metis", and `pymetis` is not installed.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> shard_graph(graph, jax.make_mesh((1,), ("nodes",)), "nodes", "contiguous").node_ids
        Array([[0, 1, 2]], dtype=int32)
    """
    host_graph = parse_graph(graph)
    arguments.check_instance("mesh", mesh, Mesh)
    arguments.check_choice("axis", axis, mesh.axis_names)
    messages = Messages.parse(copy_engines, wire_dtype)
    num_nodes, num_parts = host_graph.num_nodes, mesh.shape[axis]
    # Processes must agree before one of them raises the next error.
    check_same(mesh, graph=host_graph, axis=axis, method=method, **messages._asdict())
    if num_nodes < num_parts:
        raise ValueError(
            f"graph must have a node for each of {num_parts} devices of axis {axis!r}, got "
            f"num_nodes = {num_nodes}"
        )
    args = SplitArgs.parse(host_graph, num_parts, method)
    # Versions of METIS may give different parts.
    check_same(mesh, method=(args.node_parts, args.hyperedge_parts))
    with host_arrays():
        pieces, places = split_graph(args, axis)
    return assemble(dict(enumerate(pieces)), places, mesh, axis, messages)[0]


def assemble(
    pieces: Mapping[int, Piece], places: np.ndarray, mesh: Mesh, axis: str, messages: Messages
) -> tuple[ShardedGraph, Any]:
    """Put pieces, by their index in the mesh axis, on the devices of a mesh.

    Other processes' pieces may be missing. Return the graph, and the pieces' values by name.
    """
    # Axes become automatic, whatever their type in the user's mesh.
    mesh = Mesh(mesh.devices, mesh.axis_names)
    sharding, count = NamedSharding(mesh, PartitionSpec(axis)), mesh.shape[axis]

    def stack(*arrays: np.ndarray) -> Array:
        rows = dict(zip(pieces, arrays, strict=True))
        return _from_rows((count, *arrays[0].shape), sharding, rows.__getitem__)

    places_of = pad_ids(places, -len(places) % count).reshape(count, -1)
    node_places = _from_rows(places_of.shape, sharding, places_of.__getitem__)
    # The ids of the halo are only needed where pieces are merged.
    device_pieces = [piece._replace(halo_ids=()) for piece in pieces.values()]
    part, node_ids, _, node_values, edge_values = jax.tree.map(stack, *device_pieces)

    def is_exchange(node: object) -> bool:
        return isinstance(node, Exchange)

    # Files do not say how rows are sent: the caller chooses.
    by_copies, wire_dtype = messages
    options = {"by_copies": by_copies, "wire_dtype": wire_dtype}
    part = jax.tree.map(
        lambda node: replace(node, **options) if is_exchange(node) else node,
        part,
        is_leaf=is_exchange,
    )
    sharded = ShardedGraph(part, node_ids, node_places, mesh, axis, len(places))
    return sharded, {**node_values, **edge_values}
