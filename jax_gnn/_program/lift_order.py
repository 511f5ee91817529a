"""The order of the edges in `jax_gnn.lift`: id arrays sorted into a `Graph`, once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arguments import check_ids
from jax_gnn._core.arrays import FLOATS, take
from jax_gnn._core.csr import Csr, SparseMatrix, inverse_permutation
from jax_gnn._core.ids import in_range, is_traced
from jax_gnn._ops.segment_reduce.primitive import reduce_messages, total
from jax_gnn._program.backend import backend
from jax_gnn._program.lift_find import EdgeSpace
from jax_gnn._program.lift_ids import Use
from jax_gnn._program.matrices import FullGraph
from jax_gnn.graph import Graph, host_arrays

NUM_GHOSTS = 2
_MAX_GRAPHS = 16


class EdgeOrder(NamedTuple):
    """The edges of a space in the order in which programs process them.

    Attributes:
        graph: The edges.
        edge_ids: ``(graph.num_edges,)``, the place of each edge in the input; None if it is equal.
        places: ``(edges,)``, the place in the graph of each edge of the input, -1 if it is dropped.
        senders: ``(edges,)`` ids in the order of the input; None if all are in range.
        receivers: Likewise; None also if edges with others are padding.
        has_ghosts: Whether senders, and receivers, have two more rows, for ids that are too large
            and too small. A mask would take a pass over the edges, and keep products there.
    """

    graph: Graph
    edge_ids: Any
    places: Any
    senders: Any = None
    receivers: Any = None
    has_ghosts: tuple[bool, bool] = (False, False)

    def from_input(self, x: Array) -> Array:
        """Return rows in the order of the input in that of the graph."""
        is_full = isinstance(self.graph, FullGraph)
        return x if self.edge_ids is None else _permuted(x, self.edge_ids, self.places, is_full)

    def to_input(self, x: Array) -> Array:
        """Return rows in the order of the graph in that of the input."""
        if self.edge_ids is None:
            return x
        # In a gather, XLA on a CPU would compute x another time, element by element.
        is_full = isinstance(self.graph, FullGraph)
        return _permuted(x, self.places, self.edge_ids, is_full, by_kernel=backend() == "cpu")

    def has_mask(self, use: Use, is_receivers: bool, wraps: bool) -> bool:
        """Return whether a use drops negative ids that others take."""
        ids = self.receivers if is_receivers else self.senders
        return ids is not None and wraps and not use.wraps

    def mask(self, is_receivers: bool) -> Array:
        """Return ``(graph.num_edges,)``, which ids are not negative."""
        is_valid = jnp.asarray((self.receivers if is_receivers else self.senders) >= 0)
        return is_valid if self.edge_ids is None else take(is_valid, self.edge_ids)

    def with_ghosts(self, x: Array, use: Use, is_receivers: bool, fill: Any) -> Array:
        """Return rows of nodes with those that a gather reads out of range.

        Args:
            x: The rows.
            use: The gather.
            is_receivers: Whether it is by receivers.
            fill: What it reads out of range; None if that is the next row.
        """
        if not self.has_ghosts[is_receivers]:
            return x
        ghosts = (
            x[jnp.array([-1, 0])] if fill is None else jnp.broadcast_to(fill, (2, *x.shape[1:]))
        )
        if use.mode != "clip":
            ghosts = jax.lax.stop_gradient(ghosts)
        return jnp.concatenate([x, ghosts])

    def sum_at_senders(self, x: Array, reduce: str) -> Array:
        """Reduce rows in the order of the graph into senders."""
        y = reduce_messages(x, None, self.graph.ends()[1], reduce)
        return y[:-NUM_GHOSTS] if self.has_ghosts[0] else y


class Context:
    """The state of one run.

    Attributes:
        graph: A graph that the caller has sorted, or None.
        orders: Order of the edges by their id arrays or spaces; that of an outer run is read, too.
        deterministic: Whether edges are lifted that are counted to take longer.
        explanations: Texts of the programs that ran; None if nobody wants them.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        deterministic: bool = False,
        explanations: list[str] | None = None,
    ) -> None:
        self.graph = graph
        self.deterministic = deterministic
        self.explanations = explanations
        self.orders: dict[Any, tuple[Any, EdgeOrder]] = {}

    def inner(self) -> Context:
        """Return a context for the body of a loop, whose arrays do not outlive it."""
        context = Context(self.graph, self.deterministic, self.explanations)
        context.orders.update(self.orders)
        return context


_graphs: OrderedDict[Any, EdgeOrder] = OrderedDict()


def order_edges(space: EdgeSpace, drop: Use | None, senders: Any, receivers: Any) -> EdgeOrder:
    """Sort the edges of a space.

    Known ids are sorted on the host, once for arrays of equal content.

    Args:
        space: The edges.
        drop: The reduction that drops edges with a receiver out of range, if nothing else reads
            these edges. They become padding. Traced senders are then believed to be in range.
        senders: ``(edges,)`` ids.
        receivers: ``(edges,)`` ids.
    """
    if is_traced(senders, receivers):
        return _sorted(space, drop, senders, receivers, is_clean=False)
    senders, receivers = np.asarray(senders), np.asarray(receivers)
    sizes = space.senders.num_nodes, space.receivers.num_nodes
    ids = (senders, receivers)
    is_clean = all(in_range(x, size).all() for x, size in zip(ids, sizes, strict=True))
    key: Any = (*map(_digest, ids), sizes)
    if not is_clean:
        wraps = (space.wraps.get(end) for end in space.ends)
        key += (drop and drop.wraps, space.fills, *wraps)
    graph_order = _graphs.pop(key, None)
    if graph_order is None:
        with host_arrays():
            order = _sorted(space, drop, senders, receivers, is_clean)
        with jax.ensure_compile_time_eval():
            graph, edge_ids, places = jax.device_put(order[:3])
        graph_order = EdgeOrder(graph, edge_ids, places, has_ghosts=order.has_ghosts)
    _graphs[key] = graph_order  # the last one; other threads may call, too
    if len(_graphs) > _MAX_GRAPHS:
        _graphs.popitem(last=False)
    return graph_order if is_clean else _with_ids(graph_order, drop, senders, receivers)


def order_of_graph(
    space: EdgeSpace, graph: Graph, senders: Any, receivers: Any, is_one_way: bool
) -> EdgeOrder | None:
    """Return the order of a graph that the caller has sorted; None if its edges are others.

    Edges that are known are compared. Others are believed to be the graph's if their number is, and
    if the only reductions are into receivers.
    """
    if is_traced(senders, receivers, graph.rows):
        sizes = space.senders.num_nodes, space.receivers.num_nodes
        if sizes != (graph.num_src, graph.num_dst) or not is_one_way:
            return None
    else:
        edge_ids = np.asarray(graph.edge_ids)
        is_edge = edge_ids >= 0
        if np.count_nonzero(is_edge) != space.num_edges or edge_ids.max() >= space.num_edges:
            return None
        ends = [np.asarray(x)[edge_ids[is_edge]] for x in (senders, receivers)]
        columns = [np.asarray(x)[is_edge] for x in (graph.cols, graph.rows)]
        if not all(map(np.array_equal, ends, columns)):
            if not all(map(np.array_equal, ends, columns[::-1])):
                return None
            graph = graph.transpose()
    places = inverse_permutation(jnp.asarray(graph.edge_ids))
    missing = max(space.num_edges - graph.num_edges, 0)
    places = jnp.pad(places, (0, missing), constant_values=-1)[: space.num_edges]
    return EdgeOrder(graph, graph.edge_ids, places)


def abstract_order(space: EdgeSpace, drop: Use | None, is_clean: bool) -> EdgeOrder:
    """Return the order of a space with abstract arrays; ids may be known to be in range."""
    orders: list[EdgeOrder] = []
    ids = [jax.ShapeDtypeStruct((space.num_edges,), end.root.aval.dtype) for end in space.ends]

    def make(senders: Any, receivers: Any) -> Graph:
        orders.append(_sorted(space, drop, senders, receivers, is_clean))
        return orders[0].graph

    graph = jax.eval_shape(make, *ids)
    return orders[0]._replace(graph=graph)


def _sorted(
    space: EdgeSpace, drop: Use | None, senders: Any, receivers: Any, is_clean: bool
) -> EdgeOrder:
    xp: Any = np if isinstance(senders, np.ndarray) and isinstance(receivers, np.ndarray) else jnp
    ends = space.ends
    arrays = [senders, receivers]
    sizes = [end.num_nodes for end in ends]
    has_ghosts = [False, False]
    # Masks of padding keep XLA from vectorizing functions on a CPU.
    by_ghosts = drop is None or (backend() == "cpu" and xp is jnp)
    if not is_clean:
        has_ghosts = [by_ghosts or space.fills or xp is np, by_ghosts]
        for i, end in enumerate(ends):
            ids = check_ids("ids", arrays[i], traced=xp is jnp)
            is_dropped = drop is not None and i == 1
            wraps = drop.wraps if drop is not None and i == 1 else space.wraps.get(end, True)
            ids = xp.where(ids < 0, ids + end.num_nodes, ids) if wraps else ids
            if is_dropped and not by_ghosts:
                ids = xp.where((ids >= 0) & (ids < end.num_nodes), ids, -1)
            elif has_ghosts[i]:
                ids = xp.where(ids < 0, end.num_nodes + 1, xp.minimum(ids, end.num_nodes))
                sizes[i] += NUM_GHOSTS
            else:
                ids = xp.clip(ids, 0, end.num_nodes - 1)
            arrays[i] = ids
    graph = Graph.from_edges(*arrays, num_src=sizes[0], num_dst=sizes[1], validate=False)
    if is_clean or by_ghosts:
        graph = FullGraph.of(graph)
    edge_ids = graph.edge_ids
    if xp is np and np.array_equal(edge_ids, np.arange(space.num_edges)):
        order = EdgeOrder(graph, None, None, has_ghosts=(has_ghosts[0], has_ghosts[1]))
    else:
        places = inverse_permutation(edge_ids)
        order = EdgeOrder(graph, edge_ids, places, has_ghosts=(has_ghosts[0], has_ghosts[1]))
    return order if is_clean else _with_ids(order, drop, senders, receivers)


def _with_ids(order: EdgeOrder, drop: Use | None, senders: Any, receivers: Any) -> EdgeOrder:
    return order._replace(senders=senders, receivers=receivers if drop is None else None)


def _digest(ids: np.ndarray) -> tuple[str, bytes]:
    data = np.ascontiguousarray(ids)
    return str(ids.dtype), hashlib.blake2b(data.tobytes(), digest_size=16).digest()


def _permuted(x: Array, order: Any, inverse: Any, is_full: bool, by_kernel: bool = False) -> Array:
    """Return rows in another order; zeros where there is none.

    Args:
        x: The rows.
        order: The place in x of each row of the result.
        inverse: The place in the result of each row of x.
        is_full: Whether all places are in range.
        by_kernel: Whether to sum rows of one entry each by a kernel, which XLA fuses with nothing.
    """
    if x.dtype not in FLOATS:
        result: Array = take(x, order)
        return result
    ids = order, inverse
    rows, cols = (jnp.arange(len(x), dtype=x.dtype) if by_kernel else None for x in ids)
    by_col = Csr(cols, inverse, num_rows=x.shape[0], in_range=is_full)
    by_row = Csr(rows, order, num_rows=order.shape[0], in_range=is_full)
    return total(x, SparseMatrix(by_row, by_col))
