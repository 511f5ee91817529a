"""Batches: several graphs joined into one without common nodes, built on the host.

A *capacity* is a size that a batch is padded to. A *side* of a container is a graph that its edges
are in: one for graphs, two for directed hypergraphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import summarize_fields
from jax_gnn._core.ids import PADDING, index_dtype, is_traced, on_host, to_device
from jax_gnn._core.public import public
from jax_gnn.graph import Graph, register_serialization
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph

G = TypeVar("G", Graph, Hypergraph, RelationalGraph)
Sizes = Sequence[Graph | Hypergraph | RelationalGraph] | Mapping[str, ArrayLike]

# Sizes that a budget may name, by the kind of container; bipartite graphs have no batches.
SIZES: dict[type, tuple[str, ...]] = {
    Graph: ("num_nodes", "num_edges"),
    Hypergraph: ("num_nodes", "num_hyperedges", "num_incidences", "num_head_incidences"),
    RelationalGraph: ("num_nodes", "num_edges", "num_src_pairs", "num_dst_pairs"),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Batch(Generic[G]):
    """Several graphs as one graph without common nodes, with the graph of each node.

    Every op and layer takes ``graph``. All sizes are shapes, so that batches of equal capacities
    share one compiled program. Build one with :func:`jax_gnn.batch` or :meth:`from_edges`.

    Attributes:
        graph: all graphs as one, nodes and edges in their order.
        graph_ids: ``(num_nodes,)``, the graph of each node, ascending; -1 for padding, at the end.
        num_nodes: ``(num_graphs,)``, the number of nodes of each graph; 0 for padding.
        num_inputs: ``(num_graphs, sides)``, the number of edges or incidences in the input of each
            graph; two sides for directed hypergraphs, else one.
        hyperedge_ids: ``(num_hyperedges,)``, the graph of each hyperedge, ascending, -1 for
            padding; None for graphs without hyperedges.
        count: ``()``, the number of graphs without padding.

    Example:
        >>> pair, triangle = [(0, 1)], [(0, 1), (1, 2), (2, 0)]
        >>> joined = batch([Graph.from_edges(pair), Graph.from_edges(triangle)], num_nodes=6)
        >>> joined.graph, joined.num_graphs
        (Graph(num_nodes=6, num_edges=4), 2)
        >>> joined.graph_ids
        Array([ 0,  0,  1,  1,  1, -1], dtype=int32)
    """

    graph: G
    graph_ids: Array
    num_nodes: Array
    num_inputs: Array
    hyperedge_ids: Array | None
    count: Array

    def __repr__(self) -> str:
        return summarize_fields(self)

    @property
    def num_graphs(self) -> int:
        """Number of graphs, padding included."""
        return self.num_nodes.shape[0]

    @property
    def mask(self) -> Array:
        """``(num_graphs,)``, False for padding, which losses leave out."""
        return self.count > np.arange(self.num_graphs)

    @property
    def node_mask(self) -> Array:
        """``(num_nodes,)``, False for padding."""
        return self.graph_ids >= 0

    @classmethod
    def from_edges(
        cls,
        edges: Sequence[ArrayLike],
        sizes: Sequence[int],
        *,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        num_graphs: int | None = None,
        validate: bool = True,
    ) -> Batch[Graph]:
        """Build a batch from the edges of each graph, sorted all at once. Host only.

        It takes a tenth of the time of building each :class:`Graph` and calling
        :func:`jax_gnn.batch`. A capacity of None leaves a size as it is.

        Args:
            edges: for each graph ``(2, num_edges)`` integers, sources first.
            sizes: ``(graphs,)``, the number of nodes of each graph.
            num_nodes: capacity in nodes.
            num_edges: capacity in edges.
            num_graphs: capacity in graphs.
            validate: whether ids out of range are an error; else those edges are dropped.

        Raises:
            TypeError: edges are not integers, or a size is not an integer.
            ValueError: shapes are wrong, an id is out of range, or a capacity is too small.
        """
        validate = arguments.check_flag("validate", validate)
        nodes = arguments.check_ids("sizes", sizes)
        if len(edges) != len(nodes):
            raise ValueError(
                f"edges and sizes must have the same length, got {len(edges)} and {len(nodes)}"
            )
        if nodes.min(initial=0) < 0:
            raise ValueError(f"sizes must not be negative, got {nodes.min()}")
        pairs = [x if type(x) is np.ndarray else np.asarray(x) for x in edges]
        for i, pair in enumerate(pairs):
            if pair.ndim != 2 or len(pair) != 2:
                raise ValueError(
                    f"edges[{i}] must be (2, num_edges), sources and destinations, got "
                    f"{arguments.described(pair)}"
                )
        counts = np.array([pair.shape[1] for pair in pairs], np.int64)
        # Empty lists are arrays of floats, which would make all edges floats.
        joined = [pair for pair in pairs if pair.size] or [np.zeros((2, 0), np.int64)]
        src, dst = np.concatenate(joined, axis=1)
        src, dst = arguments.check_pairs("edges[:][0]", src, "edges[:][1]", dst)
        limit, start = np.repeat(nodes, counts), np.repeat(_starts(nodes), counts)
        is_valid = (np.minimum(src, dst) >= 0) & (np.maximum(src, dst) < limit)
        if validate and not is_valid.all():
            edge = int(np.argmin(is_valid))
            i = int(np.searchsorted(np.cumsum(counts), edge, "right"))
            raise ValueError(
                f"edges[{i}] must have ids in [0, sizes[{i}]={nodes[i]}), got "
                f"({src[edge]}, {dst[edge]})"
            )
        src, dst = (np.where(is_valid, ids + start, PADDING) for ids in (src, dst))
        with on_host(True):
            graph = Graph.from_edges(src, dst, num_nodes=int(nodes.sum()), validate=False)
        capacities = {"num_nodes": num_nodes, "num_edges": num_edges, "num_graphs": num_graphs}
        return _padded_batch(graph, nodes, counts[:, None], None, capacities)

    def join_nodes(self, values: Sequence[ArrayLike]) -> Array:
        """Join values of the nodes of all graphs to one array. Host only.

        Args:
            values: for each graph ``(its nodes, *features)``, of equal features and dtypes.

        Returns:
            ``(num_nodes, *features)``, zeros for padding.

        Raises:
            TypeError: values are not numbers.
            ValueError: there is not one array for each graph, or its rows are not the nodes.
        """
        size = self.graph_ids.shape[0]
        return cast(Array, to_device(self._joined(values, np.asarray(self.num_nodes), size)))

    def join_edges(self, values: Sequence[ArrayLike], fill_value: ArrayLike = 0) -> Array:
        """Join values of the edges of all graphs to one array in the order of ``graph``. Host only.

        Args:
            values: for each graph, in the order of its input, ``(its edges, *features)``: weights
                of edges, or of incidences.
            fill_value: value of padding, and of edges that were not in the input.

        Returns:
            ``(num_edges, *features)``, see :meth:`Graph.edge_values`.

        Raises:
            TypeError: values are not numbers.
            ValueError: there is not one array for each graph, or its rows are not its edges.
        """
        rows = self._joined(values, np.asarray(self.num_inputs)[:, 0])
        if isinstance(self.graph, Hypergraph):
            return self.graph.incidence_values(rows, fill_value)
        return self.graph.edge_values(rows, fill_value)

    def _joined(
        self, values: Sequence[ArrayLike], sizes: np.ndarray, capacity: int | None = None
    ) -> np.ndarray:
        """Concatenate values, with zeros up to a capacity."""
        count = int(self.count)
        if len(values) != count:
            raise ValueError(f"values must be those of {count} graphs, got {len(values)}")
        arrays = [
            x if type(x) is np.ndarray else arguments.to_numpy(f"values[{i}]", x)
            for i, x in enumerate(values)
        ]
        features: tuple[int, ...] = arrays[0].shape[1:] if arrays else ()
        # One comparison of all shapes; the loop runs only to find the first wrong one.
        shapes = [(size, *features) for size in sizes[:count].tolist()]
        for i in [] if [array.shape for array in arrays] == shapes else range(count):
            if arrays[i].shape != shapes[i]:
                raise ValueError(f"values[{i}] must be {shapes[i]}, got shape {arrays[i].shape}")
        padding = 0 if capacity is None else capacity - int(sizes[:count].sum())
        dtype = arrays[0].dtype if arrays else np.dtype(np.float32)
        arrays.append(np.zeros((padding, *features), dtype))
        return cast(np.ndarray, arguments.as_numbers("values", np.concatenate(arrays), np))

    def split_nodes(self, values: ArrayLike) -> list[np.ndarray]:
        """Split values of nodes into those of each graph, as arrays of the host.

        Args:
            values: ``(num_nodes, *features)``.

        Raises:
            ValueError: ``values`` has another number of rows.
        """
        values = np.asarray(values)
        if values.shape[:1] != self.graph_ids.shape:
            raise ValueError(
                f"values must be (num_nodes={self.graph_ids.shape[0]}, *features), got shape "
                f"{values.shape}"
            )
        return np.split(values, np.cumsum(self.num_nodes))[: int(self.count)]


@public
def batch(
    graphs: Sequence[G],
    *,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    num_graphs: int | None = None,
    num_hyperedges: int | None = None,
    num_incidences: int | None = None,
    num_head_incidences: int | None = None,
    num_src_pairs: int | None = None,
    num_dst_pairs: int | None = None,
) -> Batch[G]:
    """Join graphs to one graph without common nodes, padded to capacities. Host only.

    Nothing is compiled. Arrays on a device are copied from there: build graphs for batches inside
    :func:`jax_gnn.host_arrays`. Padding edges are dropped, but all nodes count, whether they are
    padding or not. A capacity of None leaves a size as it is.

    Args:
        graphs: all :class:`Graph`, not bipartite, all :class:`Hypergraph`, or all
            :class:`RelationalGraph` with the same relations and parts, and without types of nodes.
        num_nodes: capacity in nodes.
        num_edges: capacity in edges of graphs.
        num_graphs: capacity in graphs.
        num_hyperedges: capacity in hyperedges.
        num_incidences: capacity in incidences of hypergraphs.
        num_head_incidences: capacity in incidences of the heads of directed hypergraphs.
        num_src_pairs: capacity in (source, relation) pairs of relational graphs.
        num_dst_pairs: capacity in (destination, relation) pairs of relational graphs.

    Raises:
        TypeError: graphs are of another kind or of several, or called inside ``jax.jit``.
        ValueError: there are no graphs, they do not fit together, or a capacity is too small or is
            that of another kind of graphs.

    Example:
        >>> graphs = [Graph.from_edges([(0, 1), (1, 0)]), Graph.from_edges([(0, 0)])]
        >>> joined = batch(graphs, num_nodes=4, num_edges=8, num_graphs=3)
        >>> x = joined.join_nodes([[[1.0], [2.0]], [[3.0]]])
        >>> segment_sum(spmm(joined.graph, x), joined.graph_ids, joined.num_graphs)[:, 0]
        Array([3., 3., 0.], dtype=float32)
    """
    capacities = {
        "num_nodes": num_nodes,
        "num_edges": num_edges,
        "num_graphs": num_graphs,
        "num_hyperedges": num_hyperedges,
        "num_incidences": num_incidences,
        "num_head_incidences": num_head_incidences,
        "num_src_pairs": num_src_pairs,
        "num_dst_pairs": num_dst_pairs,
    }
    members = _check_graphs(graphs)
    arrays = jax.tree.leaves(members)
    if is_traced(*arrays):
        raise TypeError("batch works on the host only: call it before jax.jit")
    if not all(type(array) is np.ndarray for array in arrays):
        members = jax.device_get(members)
    first = members[0]
    nodes = np.array([graph.num_nodes for graph in members], np.int64)
    # Each side is joined as a graph; hyperedges and relations are put around it afterwards.
    sides = list(zip(*map(_sides, members), strict=True))

    def num_inputs(graph: Graph) -> int:
        count = graph.num_input_edges
        return int(graph.edge_ids.max(initial=-1)) + 1 if count is None else int(count)

    inputs = np.array([[num_inputs(graph) for graph in side] for side in sides], np.int64).T
    joined = [_join(side, counts) for side, counts in zip(sides, inputs.T, strict=True)]
    graph: Any = joined[0]
    hyperedges = None
    if isinstance(first, Hypergraph):
        hyperedges = np.array([member.num_hyperedges for member in members], np.int64)
        graph = Hypergraph(*joined)
    elif isinstance(first, RelationalGraph):
        types = [member.edge_types[: member.nodes.indptr[-1]] for member in members]
        graph = first._with_edges(graph, np.concatenate(types).astype(graph.rows.dtype))
    return _padded_batch(graph, nodes, inputs, hyperedges, capacities)


def _check_graphs(graphs: object) -> list[Any]:
    if isinstance(graphs, Graph | Hypergraph | RelationalGraph) or not hasattr(graphs, "__iter__"):
        raise TypeError(f"graphs must be a sequence of graphs, got {type(graphs).__name__}")
    members = list(graphs)
    if not members:
        raise ValueError("graphs must hold one graph at least, got none")
    first = members[0]
    kind = next((kind for kind in SIZES if isinstance(first, kind)), Graph)
    for i, graph in enumerate(members):
        arguments.check_instance(f"graphs[{i}]", graph, kind)
        if isinstance(graph, Hypergraph) and len(_sides(graph)) != len(_sides(first)):
            raise ValueError(
                f"graphs must be all directed hypergraphs or none, but graphs[{i}] and graphs[0] "
                "differ"
            )
        if not isinstance(graph, Hypergraph) and graph.num_src != graph.num_dst:
            raise ValueError(f"graphs[{i}] must not be bipartite, got {graph}")
        if isinstance(graph, RelationalGraph) and isinstance(first, RelationalGraph):
            if graph.node_type_sizes is not None:
                raise ValueError(
                    f"graphs[{i}] must not have types of nodes, which are numbered type by type, "
                    f"got {graph.node_type_names}"
                )
            if _relations(graph) != _relations(first):
                raise ValueError(
                    f"graphs[{i}] must have the relations and parts of graphs[0], "
                    f"{_relations(first)}, got {_relations(graph)}"
                )
    return members


def _relations(graph: RelationalGraph) -> tuple[object, ...]:
    return graph.num_relations, graph.relation_names, graph.self_relation, graph._parts


def _sides(graph: Graph | Hypergraph | RelationalGraph) -> tuple[Graph, ...]:
    if isinstance(graph, Hypergraph):
        return (graph.graph,) if graph.head is None else (graph.graph, graph.head)
    return (graph.nodes,) if isinstance(graph, RelationalGraph) else (graph,)


def _shifted(ids: Any, offset: Any, dtype: DTypeLike) -> Any:
    return np.where(ids < 0, PADDING, ids + offset).astype(dtype)


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Return the start of each of several consecutive ranges."""
    return cast(np.ndarray, np.cumsum(sizes) - sizes)


def _join(graphs: Sequence[Graph], num_inputs: np.ndarray) -> Graph:
    """Join graphs of host arrays; padding edges are dropped."""
    src = np.array([graph.t_indptr.shape[0] - 1 for graph in graphs], np.int64)
    dst = np.array([graph.indptr.shape[0] - 1 for graph in graphs], np.int64)
    counts = np.array([graph.indptr[-1] for graph in graphs], np.int64)
    dtype = index_dtype(int(src.sum()), int(dst.sum()), int(counts.sum()), int(num_inputs.sum()))

    def joined(name: str, sizes: np.ndarray) -> np.ndarray:
        pairs = zip(graphs, sizes.tolist(), strict=True)
        return np.concatenate([getattr(graph, name)[:size] for graph, size in pairs])

    def shifted(name: str, ranges: np.ndarray, sizes: np.ndarray) -> Any:
        ids = joined(name, sizes) + np.repeat(_starts(ranges), sizes)
        return ids.astype(dtype, copy=False)

    # Row pointers shift by the number of edges before a graph, ids by that of nodes.
    num_edges = np.full(1, counts.sum(), dtype)
    starts: dict[str, Any] = {"indptr": (counts, dst), "t_indptr": (counts, src)}
    arrays: Any = {
        name: np.concatenate([shifted(name, *starts[name]), num_edges]) for name in starts
    }
    ranges = {"rows": dst, "cols": src, "t_rows": src, "t_cols": dst, "t_order": counts}
    arrays |= {name: shifted(name, sizes, counts) for name, sizes in ranges.items()}
    input_starts = np.repeat(_starts(num_inputs), counts)
    arrays["edge_ids"] = _shifted(joined("edge_ids", counts), input_starts, dtype)
    arrays["num_input_edges"] = np.array(num_inputs.sum(), dtype)
    return Graph(**arrays)._split_like(graphs[0])


def _padded_batch(
    graph: Any,
    nodes: np.ndarray,
    num_inputs: np.ndarray,
    hyperedges: np.ndarray | None,
    capacities: Mapping[str, int | None],
) -> Batch[Any]:
    """Pad a joined graph to capacities; the arrays are sizes of each of its graphs."""
    limits = {name: size for name, size in capacities.items() if size is not None}
    num_graphs = len(nodes) + arguments.added_size(
        "num_graphs", limits.pop("num_graphs", None), len(nodes)
    )
    for name, size in limits.items():
        if name not in SIZES[type(graph)]:
            raise ValueError(f"{name} is none of a {type(graph).__name__}'s sizes, got {size}")
    graph = graph.pad(**limits)
    dtype = index_dtype(num_graphs, graph.num_nodes)

    def graph_ids(sizes: np.ndarray, capacity: int) -> Any:
        ids = np.full(capacity, PADDING, dtype)
        ids[: sizes.sum()] = np.repeat(np.arange(len(sizes)), sizes)
        return ids

    def padded(sizes: np.ndarray) -> Any:
        zeros = np.zeros((num_graphs - len(sizes), *sizes.shape[1:]), dtype)
        return np.concatenate([sizes.astype(dtype), zeros])

    host_batch: Batch[Any] = Batch(
        graph=graph,
        graph_ids=graph_ids(nodes, graph.num_nodes),
        num_nodes=padded(nodes),
        num_inputs=padded(num_inputs),
        hyperedge_ids=None if hyperedges is None else graph_ids(hyperedges, graph.num_hyperedges),
        count=np.array(len(nodes), dtype),  # type: ignore[arg-type]
    )
    return cast(Batch[Any], to_device(host_batch))


@public
def unbatch(batch: Batch[G]) -> list[G]:
    """Split a batch into its graphs, without padding. Host only.

    Args:
        batch: a batch of :func:`jax_gnn.batch`. Its arrays may be on a device.

    Returns:
        Graphs of host arrays; ``jax.device_put`` brings them to a device.

    Raises:
        TypeError: ``batch`` is no batch, or called inside ``jax.jit``.

    Example:
        >>> unbatch(batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_nodes=9))
        [Graph(num_nodes=2, num_edges=1), Graph(num_nodes=1, num_edges=1)]
    """
    arguments.check_instance("batch", batch, Batch)
    if is_traced(*jax.tree.leaves(batch)):
        raise TypeError("unbatch works on the host only: call it before jax.jit")
    batch = jax.device_get(batch)
    count, joined = int(batch.count), batch.graph
    nodes = np.asarray(batch.num_nodes[:count], np.int64)
    inputs = np.asarray(batch.num_inputs[:count], np.int64)
    dst, hyperedge_ids = nodes, batch.hyperedge_ids
    if hyperedge_ids is not None:
        dst = np.bincount(np.asarray(hyperedge_ids[hyperedge_ids >= 0]), minlength=count)[:count]
    sides = [
        _members(graph, nodes, dst, counts)
        for graph, counts in zip(_sides(joined), inputs.T, strict=True)
    ]
    graphs: list[Any] = sides[0]
    if isinstance(joined, Hypergraph):
        graphs = [Hypergraph(*members) for members in zip(*sides, strict=True)]
    elif isinstance(joined, RelationalGraph):
        stops = np.cumsum([graph.num_edges for graph in graphs], dtype=int)
        types = np.split(np.asarray(joined.edge_types), stops)
        # A further piece of types is that of padding.
        pairs = zip(graphs, types, strict=False)
        graphs = [joined._with_edges(nodes, edge_types.copy()) for nodes, edge_types in pairs]
    return graphs


def _members(graph: Graph, src: np.ndarray, dst: np.ndarray, num_inputs: np.ndarray) -> list[Graph]:
    """Split a graph into members with the given numbers of sources, destinations and inputs."""
    members = []
    dtype = graph.edge_ids.dtype
    columns = (_starts(src), src, _starts(dst), dst, _starts(num_inputs), num_inputs)
    for src_start, num_src, dst_start, num_dst, input_start, num_input_edges in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        # Nodes and edges of a graph are consecutive in both orders, as no edge leaves it.
        row_ptr = graph.indptr[dst_start : dst_start + num_dst + 1]
        start, stop = int(row_ptr[0]), int(row_ptr[-1])
        edges = slice(start, stop)
        member = Graph(
            indptr=row_ptr - start,
            rows=graph.rows[edges] - dst_start,
            cols=graph.cols[edges] - src_start,
            t_indptr=graph.t_indptr[src_start : src_start + num_src + 1] - start,
            t_rows=graph.t_rows[edges] - src_start,
            t_cols=graph.t_cols[edges] - dst_start,
            t_order=graph.t_order[edges] - start,
            edge_ids=_shifted(graph.edge_ids[edges], -input_start, dtype),
            num_input_edges=np.array(num_input_edges, dtype),  # type: ignore[arg-type]
        )
        members.append(member._split_like(graph))
    return members


# --- Capacities ----------------------------------------------------------------------------------


def _sizes(graphs: Sizes) -> dict[str, np.ndarray]:
    """Return all sizes of each graph that a budget may name."""
    if not isinstance(graphs, Mapping):
        members = _check_graphs(graphs)
        columns = {name: [_size(x, name) for x in members] for name in SIZES[type(members[0])]}
        return {name: np.array(x, np.int64) for name, x in columns.items() if None not in x}
    # Sizes without graphs, such as those of files that are read later.
    sizes = {name: arguments.check_ids(f"sizes[{name!r}]", ids) for name, ids in graphs.items()}
    if len({column.shape for column in sizes.values()}) != 1:
        raise ValueError(f"sizes must have one length, got {[*map(len, sizes.values())]}")
    for name, column in sizes.items():
        if column.min(initial=0) < 0:
            raise ValueError(f"sizes[{name!r}] must not be negative, got {column.min()}")
    return sizes


def _size(graph: Graph | Hypergraph | RelationalGraph, name: str) -> int | None:
    if isinstance(graph, Hypergraph) and name == "num_head_incidences":
        return None if graph.head is None else graph.head.num_edges
    return cast(int | None, getattr(graph, name))


@public
def batch_budget(sizes: Sizes, num_graphs: int, *, multiple: int = 8) -> dict[str, int]:
    """Choose capacities for batches of some number of graphs, from the sizes of a sample.

    They hold the mean and two standard deviations of such a batch, and every graph of the sample
    alone. :func:`pack` then assigns graphs to batches.

    Args:
        sizes: a sample of graphs; or their sizes, a mapping such as ``{"num_nodes": [3, 5],
            "num_edges": [4, 9]}``.
        num_graphs: number of graphs in a batch.
        multiple: divisor of all capacities.

    Returns:
        Arguments of :func:`jax_gnn.batch`, including ``num_graphs``.

    Raises:
        TypeError: ``sizes`` are no graphs of one kind, or not integers.
        ValueError: the sample is empty, or a number is not positive.

    Example:
        >>> batch_budget({"num_nodes": [10, 20, 30], "num_edges": [20, 60, 70]}, 4)
        {'num_nodes': 120, 'num_edges': 288, 'num_graphs': 4}
    """
    columns = _sizes(sizes)
    for name, value in (("num_graphs", num_graphs), ("multiple", multiple)):
        if arguments.check_integer(name, value) < 1:
            raise ValueError(f"{name} must be positive, got {value}")
    # Sums of sizes are about normal: few batches exceed their mean by two standard deviations.
    budget = {}
    for name, column in columns.items():
        if not len(column):
            raise ValueError("sizes must be those of one graph at least, got none")
        capacity = num_graphs * column.mean() + 2 * np.sqrt(num_graphs) * column.std()
        budget[name] = int(-(-max(capacity, column.max()) // multiple) * multiple)
    return budget | {"num_graphs": num_graphs}


@public
def pack(sizes: Sizes, budget: Mapping[str, int]) -> Iterator[list[int]]:
    """Assign graphs to batches in their order, as many as the budget holds.

    Args:
        sizes: the graphs, or their sizes, as for :func:`batch_budget`.
        budget: capacities, such as those of :func:`batch_budget`.

    Yields:
        The numbers of the graphs of a batch.

    Raises:
        TypeError: as :func:`batch_budget`; at the call.
        ValueError: a graph alone is too large, or the budget names a size that the graphs do not
            have; at the call.

    Example:
        >>> list(pack({"num_nodes": [4, 3, 2, 5]}, {"num_nodes": 8, "num_graphs": 2}))
        [[0, 1], [2, 3]]
    """
    columns = _sizes(sizes)
    count = len(next(iter(columns.values())))
    if unknown := set(budget) - {*columns, "num_graphs"}:
        raise ValueError(
            f"budget must be of {', '.join(columns)} and num_graphs, got {sorted(unknown)}"
        )
    names = [name for name in columns if name in budget]
    needed = np.stack([np.ones(count, np.int64), *(columns[name] for name in names)], axis=1)
    capacities = [arguments.check_integer(name, budget[name]) for name in names]
    limits = np.array([budget.get("num_graphs", max(count, 1)), *capacities])
    for i, column in np.argwhere(needed > limits)[:1]:
        name = ["num_graphs", *names][column]
        raise ValueError(
            f"budget holds {name}={limits[column]}, which is too small for graph {i} of "
            f"{needed[i, column]}"
        )
    if needed.sum(axis=0, dtype=float).max(initial=0) > 2**61:  # running sums stay exact
        raise ValueError(f"sizes must add up to 2**61 at most, got {needed.sum(0, dtype=float)}")
    return _packed(np.cumsum(needed, axis=0), np.minimum(limits, 2**61))


def _packed(running_sums: np.ndarray, limits: np.ndarray) -> Iterator[list[int]]:
    """Yield the longest runs of graphs in which no column of sums grows by more than its limit."""
    # A search in the running sums of each column finds the end of a run without a loop over graphs.
    start = 0
    while start < len(running_sums):
        bounds = limits + (running_sums[start - 1] if start else 0)
        columns = zip(running_sums.T, bounds, strict=True)
        stop = min(int(np.searchsorted(column, bound, "right")) for column, bound in columns)
        yield [*range(start, stop)]
        start = stop


register_serialization(Batch)
