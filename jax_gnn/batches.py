"""Many small graphs as one, of which each node knows its graph; built on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.export
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.arrays import summarize_fields
from jax_gnn._core.ids import PADDING, index_dtype, is_traced, on_host, to_device
from jax_gnn._core.public import public
from jax_gnn.graph import Graph
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import PARTS, RelationalGraph

G = TypeVar("G", Graph, Hypergraph, RelationalGraph)

# What a budget may name, by the kind of container; bipartite graphs have no batches.
SIZES: dict[type, tuple[str, ...]] = {
    Graph: ("num_nodes", "num_edges"),
    Hypergraph: ("num_nodes", "num_hyperedges", "num_incidences", "num_head_incidences"),
    RelationalGraph: ("num_nodes", "num_edges", "num_src_pairs", "num_dst_pairs"),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Batch(Generic[G]):
    """Several graphs without common nodes as one, and which of them each node belongs to.

    Every op and layer takes ``graph``. All sizes are shapes, so that batches of equal capacities
    share one compiled program. Build one with :func:`jax_gnn.batch` or :meth:`from_edges`.

    Attributes:
        graph: all graphs as one, nodes and edges in their order.
        graph_ids: ``(num_nodes,)``, the graph of each node, ascending; -1 for padding, at the end.
        num_nodes: ``(num_graphs,)``, how many nodes each graph has; 0 for padding.
        num_inputs: ``(num_graphs, sides)``, how many edges or incidences each was built from; of
            directed hypergraphs there are two sides, else there is one.
        hyperedge_ids: ``(num_hyperedges,)``, the graph of each hyperedge, likewise; None for graphs
            without.
        count: ``()``, how many graphs there are; the rest are padding.

    Example:
        >>> pair, triangle = [(0, 1)], [(0, 1), (1, 2), (2, 0)]
        >>> made = batch([Graph.from_edges(pair), Graph.from_edges(triangle)], num_nodes=6)
        >>> made.graph, made.num_graphs
        (Graph(num_nodes=6, num_edges=4), 2)
        >>> made.graph_ids
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
        """``(num_graphs,)``, which graphs are there; for losses, which leave out the rest."""
        return self.count > np.arange(self.num_graphs)

    @property
    def node_mask(self) -> Array:
        """``(num_nodes,)``, which nodes are there."""
        return self.graph_ids >= 0

    @classmethod
    def from_edges(
        cls,
        edges: Sequence[Any],
        sizes: Sequence[int],
        *,
        num_nodes: int | None = None,
        num_edges: int | None = None,
        num_graphs: int | None = None,
        validate: bool = True,
    ) -> Batch[Graph]:
        """Builds a batch from the edges of each graph, sorted all at once. Host only.

        It takes a tenth of the time of a :class:`Graph` for each, and :func:`jax_gnn.batch`.

        Args:
            edges: of each graph ``(2, num_edges)`` integers, sources first.
            sizes: ``(graphs,)``, how many nodes each has.
            num_nodes: capacity in nodes; None for as many as there are.
            num_edges: capacity in edges, likewise.
            num_graphs: capacity in graphs, likewise.
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
        ends: list[Any] = [each if type(each) is np.ndarray else np.asarray(each) for each in edges]
        for i, each in enumerate(ends):
            if each.ndim != 2 or len(each) != 2:
                raise ValueError(
                    f"edges[{i}] must be (2, num_edges), sources and destinations, got "
                    f"{arguments.described(each)}"
                )
        counts = np.array([each.shape[1] for each in ends], np.int64)
        joined = [each for each in ends if each.size] or [np.zeros((2, 0), np.int64)]
        src, dst = np.concatenate(joined, axis=1)
        src, dst = arguments.check_pairs("edges[:][0]", src, "edges[:][1]", dst)
        limit, start = np.repeat(nodes, counts), np.repeat(_starts(nodes), counts)
        inside = (np.minimum(src, dst) >= 0) & (np.maximum(src, dst) < limit)
        if validate and not inside.all():
            place = int(np.argmin(inside))
            number = int(np.searchsorted(np.cumsum(counts), place, "right"))
            raise ValueError(
                f"edges[{number}] must have ids in [0, sizes[{number}]={nodes[number]}), got "
                f"({src[place]}, {dst[place]})"
            )
        src, dst = (np.where(inside, ids + start, PADDING) for ids in (src, dst))
        with on_host(True):
            graph = Graph.from_edges(src, dst, num_nodes=int(nodes.sum()), validate=False)
        capacities = {"num_nodes": num_nodes, "num_edges": num_edges, "num_graphs": num_graphs}
        return to_device(_finished(graph, nodes, counts[:, None], None, capacities))

    def join_nodes(self, values: Sequence[Any]) -> Array:
        """What the nodes of all graphs have, as one array. Host only.

        Args:
            values: of each graph ``(its nodes, *features)``, of equal features and dtypes.

        Returns:
            ``(num_nodes, *features)``, zeros for padding.

        Raises:
            TypeError: values are not numbers.
            ValueError: there is not one array for each graph, or its rows are not the nodes.
        """
        room = self.graph_ids.shape[0]
        return to_device(self._joined("values", values, np.asarray(self.num_nodes), room))

    def join_edges(self, values: Sequence[Any], fill_value: Any = 0) -> Array:
        """What the edges of all graphs have, as one array in the order of ``graph``. Host only.

        Args:
            values: of each graph, in the order of its input, ``(its edges, *features)``: weights
                of edges, or of incidences.
            fill_value: what padding gets, and edges that were not in the input.

        Returns:
            ``(num_edges, *features)``, as :meth:`Graph.edge_values`.

        Raises:
            TypeError: values are not numbers.
            ValueError: there is not one array for each graph, or its rows are not its edges.
        """
        rows = self._joined("values", values, np.asarray(self.num_inputs)[:, 0])
        made = self.graph
        if isinstance(made, Hypergraph):
            return made.incidence_values(rows, fill_value)
        return made.edge_values(rows, fill_value)

    def _joined(
        self, name: str, values: Sequence[Any], sizes: np.ndarray, room: int | None = None
    ) -> np.ndarray:
        """One after another, and zeros for the room that is left."""
        count = int(self.count)
        if len(values) != count:
            raise ValueError(f"{name} must be those of {count} graphs, got {len(values)}")
        arrays = [
            each if type(each) is np.ndarray else arguments.to_numpy(f"{name}[{i}]", each)
            for i, each in enumerate(values)
        ]
        features: tuple[int, ...] = arrays[0].shape[1:] if arrays else ()
        shapes = [(size, *features) for size in sizes[:count].tolist()]
        for i in [] if [each.shape for each in arrays] == shapes else range(count):
            if arrays[i].shape != shapes[i]:
                raise ValueError(f"{name}[{i}] must be {shapes[i]}, got shape {arrays[i].shape}")
        more = 0 if room is None else room - int(sizes[:count].sum())
        like: Any = arrays[0] if arrays else np.zeros(0, np.float32)
        arrays.append(np.zeros((more, *like.shape[1:]), like.dtype))
        return arguments.as_numbers(name, np.concatenate(arrays), np)

    def split_nodes(self, values: Any) -> list[np.ndarray]:
        """What the nodes of each graph have, as arrays of the host.

        Args:
            values: ``(num_nodes, *features)``.

        Raises:
            ValueError: it has another number of rows.
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
    """Joins graphs to one without common nodes, padded to capacities. Host only.

    Nothing is compiled. Graphs with arrays on a device are copied from there: build those that
    are batched inside :func:`jax_gnn.host_arrays`. What is padding in them is dropped, but nodes
    count, whether they are padding or not.

    Args:
        graphs: all :class:`Graph`, not bipartite, all :class:`Hypergraph`, or all
            :class:`RelationalGraph` with the same relations and parts, and without types of nodes.
        num_nodes: capacity in nodes; None for as many as there are.
        num_edges: capacity in edges of graphs, likewise.
        num_graphs: capacity in graphs, likewise.
        num_hyperedges: capacity in hyperedges, likewise.
        num_incidences: capacity in incidences of hypergraphs, likewise.
        num_head_incidences: capacity in those of the heads of directed hypergraphs, likewise.
        num_src_pairs: capacity in (source, relation) pairs of relational graphs, likewise.
        num_dst_pairs: capacity in (destination, relation) pairs, likewise.

    Raises:
        TypeError: graphs are no such graphs or not of one kind, or called inside ``jax.jit``.
        ValueError: there are no graphs, they do not fit together, or a capacity is too small or is
            none of such graphs.

    Example:
        >>> graphs = [Graph.from_edges([(0, 1), (1, 0)]), Graph.from_edges([(0, 0)])]
        >>> made = batch(graphs, num_nodes=4, num_edges=8, num_graphs=3)
        >>> x = made.join_nodes([[[1.0], [2.0]], [[3.0]]])
        >>> segment_sum(spmm(made.graph, x), made.graph_ids, made.num_graphs)[:, 0]
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
    first: Any = members[0]
    nodes = np.array([graph.num_nodes for graph in members], np.int64)
    hyperedges = None
    if isinstance(first, Hypergraph):
        hyperedges = np.array([graph.num_hyperedges for graph in members], np.int64)
    sides = list(zip(*map(_sides, members), strict=True))
    inputs = np.array([[_num_inputs(graph) for graph in side] for side in sides], np.int64).T
    joined = [_join(side, number) for side, number in zip(sides, inputs.T, strict=True)]
    made: Any = joined[0]
    if isinstance(first, Hypergraph):
        made = Hypergraph(*joined)
    elif isinstance(first, RelationalGraph):
        types = [graph.edge_types[: graph.nodes.indptr[-1]] for graph in members]
        made = _with_pairs_of(first, made, np.concatenate(types).astype(made.rows.dtype))
    return to_device(_finished(made, nodes, inputs, hyperedges, capacities))


def _check_graphs(graphs: Any) -> list[Any]:
    if isinstance(graphs, Graph | Hypergraph | RelationalGraph) or not hasattr(graphs, "__iter__"):
        raise TypeError(f"graphs must be a sequence of graphs, got {type(graphs).__name__}")
    graphs = list(graphs)
    if not graphs:
        raise ValueError("graphs must hold one graph at least, got none")
    first = graphs[0]
    kind = next((kind for kind in SIZES if isinstance(first, kind)), Graph)
    for i, graph in enumerate(graphs):
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
    return graphs


def _relations(graph: RelationalGraph) -> tuple[Any, ...]:
    parts = tuple(part for part in PARTS if getattr(graph, part) is not None)
    return graph.num_relations, graph.relation_names, graph.self_relation, parts


def _sides(graph: Any) -> tuple[Graph, ...]:
    if isinstance(graph, Hypergraph):
        return (graph.graph,) if graph.head is None else (graph.graph, graph.head)
    return (graph.nodes,) if isinstance(graph, RelationalGraph) else (graph,)


def _num_inputs(graph: Graph) -> int:
    count = graph.num_input_edges
    return int(graph.edge_ids.max(initial=-1)) + 1 if count is None else int(count)


def _moved(ids: Any, by: Any, dtype: Any) -> Any:
    return np.where(ids < 0, PADDING, ids + by).astype(dtype)


def _scalar(count: Any, dtype: Any) -> Any:
    return np.array(count, dtype)


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where each begins, of what stands one after another."""
    return np.cumsum(sizes) - sizes


def _join(graphs: Sequence[Graph], num_inputs: np.ndarray) -> Graph:
    """Graphs of host arrays, one after another; padding of edges is dropped."""
    src = np.array([graph.t_indptr.shape[0] - 1 for graph in graphs], np.int64)
    dst = np.array([graph.indptr.shape[0] - 1 for graph in graphs], np.int64)
    counts = np.array([graph.indptr[-1] for graph in graphs], np.int64)
    dtype = index_dtype(int(src.sum()), int(dst.sum()), int(counts.sum()), int(num_inputs.sum()))

    def shifted(get: Callable[[Graph], Any], by: np.ndarray, sizes: np.ndarray) -> Any:
        parts = [get(graph)[:size] for graph, size in zip(graphs, sizes.tolist(), strict=True)]
        return (np.concatenate(parts) + np.repeat(_starts(by), sizes)).astype(dtype, copy=False)

    def pointers(get: Callable[[Graph], Any], sizes: np.ndarray) -> Any:
        starts = shifted(get, counts, sizes)
        return np.concatenate([starts, np.full(1, counts.sum(), dtype)])

    ids: Any = np.concatenate(
        [g.edge_ids[:n] for g, n in zip(graphs, counts.tolist(), strict=True)]
    )
    starts = np.repeat(_starts(num_inputs), counts)
    made = Graph(
        indptr=pointers(lambda graph: graph.indptr, dst),
        rows=shifted(lambda graph: graph.rows, dst, counts),
        cols=shifted(lambda graph: graph.cols, src, counts),
        t_indptr=pointers(lambda graph: graph.t_indptr, src),
        t_rows=shifted(lambda graph: graph.t_rows, src, counts),
        t_cols=shifted(lambda graph: graph.t_cols, dst, counts),
        t_order=shifted(lambda graph: graph.t_order, counts, counts),
        edge_ids=_moved(ids, starts, dtype),
        num_input_edges=_scalar(num_inputs.sum(), dtype),
    )
    return made if graphs[0].split is None else made.with_edge_split()


def _finished(
    graph: Any,
    nodes: np.ndarray,
    num_inputs: np.ndarray,
    hyperedges: np.ndarray | None,
    capacities: Mapping[str, int | None],
) -> Batch[Any]:
    """A padded batch of host arrays; sizes are those of each graph."""
    given = {name: size for name, size in capacities.items() if size is not None}
    num_graphs = len(nodes) + arguments.added_size(
        "num_graphs", given.pop("num_graphs", None), len(nodes)
    )
    names = SIZES[type(graph)]
    for name, size in given.items():
        if name not in names:
            raise ValueError(f"{name} is none of a {type(graph).__name__}'s sizes, got {size}")
    graph = graph.pad(**given)
    dtype = index_dtype(num_graphs, graph.num_nodes)

    def ids(sizes: np.ndarray, capacity: int) -> np.ndarray:
        found = np.full(capacity, PADDING, dtype)
        found[: sizes.sum()] = np.repeat(np.arange(len(sizes)), sizes)
        return found

    def padded(sizes: np.ndarray) -> np.ndarray:
        more = np.zeros((num_graphs - len(sizes), *sizes.shape[1:]), dtype)
        return np.concatenate([sizes.astype(dtype), more])

    made: Any = (
        graph,
        ids(nodes, graph.num_nodes),
        padded(nodes),
        padded(num_inputs),
        None if hyperedges is None else ids(hyperedges, graph.num_hyperedges),
        np.array(len(nodes), dtype),
    )
    return Batch(*made)


@public
def unbatch(batch: Batch[Any]) -> list[Any]:
    """The graphs of a batch, without padding, as they were before. Host only.

    Args:
        batch: of :func:`jax_gnn.batch`. Its arrays may be on a device.

    Returns:
        Graphs of host arrays; ``jax.device_put`` brings them to a device.

    Raises:
        TypeError: it is no batch, or called inside ``jax.jit``.

    Example:
        >>> unbatch(batch([Graph.from_edges([(0, 1)]), Graph.from_edges([(0, 0)])], num_nodes=9))
        [Graph(num_nodes=2, num_edges=1), Graph(num_nodes=1, num_edges=1)]
    """
    arguments.check_instance("batch", batch, Batch)
    if is_traced(*jax.tree.leaves(batch)):
        raise TypeError("unbatch works on the host only: call it before jax.jit")
    batch = jax.device_get(batch)
    count, made = int(batch.count), batch.graph
    nodes = np.asarray(batch.num_nodes[:count], np.int64)
    inputs = np.asarray(batch.num_inputs[:count], np.int64)
    dst, owners = nodes, batch.hyperedge_ids
    if owners is not None:
        dst = np.bincount(np.asarray(owners[owners >= 0]), minlength=count)[:count]
    sides = [
        _part(graph, nodes, dst, number)
        for graph, number in zip(_sides(made), inputs.T, strict=True)
    ]
    if isinstance(made, Hypergraph):
        return [Hypergraph(*graphs) for graphs in zip(*sides, strict=True)]
    if not isinstance(made, RelationalGraph):
        return sides[0]
    ends = np.cumsum([graph.num_edges for graph in sides[0]], dtype=int)
    types = np.split(made.edge_types, ends)
    return [_with_pairs_of(made, *each) for each in zip(sides[0], types, strict=False)]


def _with_pairs_of(like: RelationalGraph, nodes: Graph, types: Any) -> RelationalGraph:
    """Edges with relations, in the parts of another graph."""
    made = RelationalGraph(
        *(nodes, types.copy()),
        num_relations=like.num_relations,
        relation_names=like.relation_names,
        self_relation=like.self_relation,
    )
    return made._with_parts(_relations(like)[-1])


def _part(graph: Graph, src: np.ndarray, dst: np.ndarray, num_inputs: np.ndarray) -> list[Graph]:
    """The graphs that were joined, whose sizes these are."""
    graphs = []
    for u, m, v, n, e, count in zip(
        *(_starts(src).tolist(), src.tolist(), _starts(dst).tolist(), dst.tolist()),
        *(_starts(num_inputs).tolist(), num_inputs.tolist()),
        strict=True,
    ):
        first, last = int(graph.indptr[v]), int(graph.indptr[v + n])
        edges = slice(first, last)
        own = Graph(
            indptr=graph.indptr[v : v + n + 1] - first,
            rows=graph.rows[edges] - v,
            cols=graph.cols[edges] - u,
            t_indptr=graph.t_indptr[u : u + m + 1] - first,
            t_rows=graph.t_rows[edges] - u,
            t_cols=graph.t_cols[edges] - v,
            t_order=graph.t_order[edges] - first,
            edge_ids=_moved(graph.edge_ids[edges], -e, graph.edge_ids.dtype),
            num_input_edges=_scalar(count, graph.edge_ids.dtype),
        )
        graphs.append(own if graph.split is None else own.with_edge_split())
    return graphs


# --- Capacities ----------------------------------------------------------------------------------


def _sizes(graphs: Any) -> dict[str, np.ndarray]:
    """What each graph has of all that a budget may name."""
    if isinstance(graphs, Mapping):
        sizes = {name: arguments.check_ids(f"sizes[{name!r}]", ids) for name, ids in graphs.items()}
        if len({each.shape for each in sizes.values()}) != 1:
            raise ValueError(f"sizes must have one length, got {[*map(len, sizes.values())]}")
        for name, each in sizes.items():
            if each.min(initial=0) < 0:
                raise ValueError(f"sizes[{name!r}] must not be negative, got {each.min()}")
        return sizes
    graphs = _check_graphs(graphs)
    found = {name: [_size(graph, name) for graph in graphs] for name in SIZES[type(graphs[0])]}
    return {name: np.array(each, np.int64) for name, each in found.items() if None not in each}


def _size(graph: Any, name: str) -> int | None:
    if name == "num_head_incidences":
        return None if graph.head is None else graph.head.num_edges
    return getattr(graph, name)


@public
def batch_budget(sizes: Any, num_graphs: int, *, multiple: int = 8) -> dict[str, int]:
    """Capacities for batches of about that many graphs, from the sizes of a sample.

    They hold the mean and two standard deviations of such a batch, and every graph of the sample
    alone. :func:`pack` then says which graphs share a batch.

    Args:
        sizes: a sample of graphs; or of their sizes, a mapping such as ``{"num_nodes": [3, 5],
            "num_edges": [4, 9]}``.
        num_graphs: how many graphs a batch shall have.
        multiple: what capacities are multiples of.

    Returns:
        What :func:`jax_gnn.batch` takes, ``num_graphs`` among it.

    Raises:
        TypeError: ``sizes`` are no graphs of one kind, or not integers.
        ValueError: there are none, or a number is not positive.

    Example:
        >>> batch_budget({"num_nodes": [10, 20, 30], "num_edges": [20, 60, 70]}, 4)
        {'num_nodes': 120, 'num_edges': 288, 'num_graphs': 4}
    """
    found = _sizes(sizes)
    for name, value in (("num_graphs", num_graphs), ("multiple", multiple)):
        if arguments.check_integer(name, value) < 1:
            raise ValueError(f"{name} must be positive, got {value}")
    budget = {}
    for name, each in found.items():
        if not len(each):
            raise ValueError("sizes must be those of one graph at least, got none")
        wanted = num_graphs * each.mean() + 2 * np.sqrt(num_graphs) * each.std()
        budget[name] = int(-(-max(wanted, each.max()) // multiple) * multiple)
    return budget | {"num_graphs": num_graphs}


@public
def pack(sizes: Any, budget: Mapping[str, int]) -> Iterator[list[int]]:
    """Which graphs go into each batch: in their order, as many as the budget holds.

    Args:
        sizes: the graphs, or their sizes, as for :func:`batch_budget`.
        budget: capacities, such as :func:`batch_budget` gives.

    Yields:
        The numbers of the graphs of a batch.

    Raises:
        TypeError: as :func:`batch_budget`; at the call.
        ValueError: a graph alone is too large, or the budget names a size that the graphs have not;
            at the call.

    Example:
        >>> list(pack({"num_nodes": [4, 3, 2, 5]}, {"num_nodes": 8, "num_graphs": 2}))
        [[0, 1], [2, 3]]
    """
    found = _sizes(sizes)
    number = len(next(iter(found.values())))
    if unknown := set(budget) - {*found, "num_graphs"}:
        raise ValueError(
            f"budget must be of {', '.join(found)} and num_graphs, got {sorted(unknown)}"
        )
    names = [name for name in found if name in budget]
    needed = np.stack([np.ones(number, np.int64), *(found[name] for name in names)], axis=1)
    limits = [arguments.check_integer(name, budget[name]) for name in names]
    most = np.array([budget.get("num_graphs", max(number, 1)), *limits])
    for i, column in np.argwhere(needed > most)[:1]:
        name = ["num_graphs", *names][column]
        raise ValueError(
            f"budget holds {name}={most[column]}, which is too small for graph {i} of "
            f"{needed[i, column]}"
        )
    if needed.sum(axis=0, dtype=float).max(initial=0) > 2**61:  # running sums stay exact
        raise ValueError(f"sizes must add up to 2**61 at most, got {needed.sum(0, dtype=float)}")
    ends = np.cumsum(needed, axis=0)
    return _packed(ends, np.minimum(most, 2**61))


def _packed(ends: np.ndarray, most: np.ndarray) -> Iterator[list[int]]:
    """Runs of graphs, of whose running sums each column grows by no more than that."""
    start = 0
    while start < len(ends):
        limits = most + (ends[start - 1] if start else 0)
        columns = zip(ends.T, limits, strict=True)
        stop = min(int(np.searchsorted(column, limit, "right")) for column, limit in columns)
        yield [*range(start, stop)]
        start = stop


jax.export.register_pytree_node_serialization(
    Batch,
    serialized_name="jax_gnn.Batch",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: (),
)
