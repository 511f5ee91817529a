"""The container `Graph`: edges sorted by destination and by source, as a pytree.

Arrays are checked and sorted by the `from_…` methods, on the host in numpy or traced inside
`jax.jit`. An *edge id* is the position of an edge in these methods' arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.csr import (
    SLOT_SIZE,
    Csr,
    EdgeSplit,
    SparseMatrix,
    edge_split,
    inverse_permutation,
    num_slots,
    segments,
)
from jax_gnn._core.ids import (
    PADDING,
    as_signed,
    clip_ids,
    compaction_targets,
    device_of,
    host_row_starts,
    id_count,
    in_range,
    index_dtype,
    is_traced,
    namespace,
    on_host,
    pad_ids,
    pad_indptr,
    row_starts,
    run_on_host,
    scatter_ids,
    take_ids,
    to_device,
)
from jax_gnn._core.public import public
from jax_gnn._ops.relation_pairs.triples import sort_by_source, sort_triples
from jax_gnn._ops.segment_order.primitive import sorted_ids

T = TypeVar("T")

# Arrays of a graph with a number for each edge.
EDGE_ARRAYS = "rows", "cols", "t_rows", "t_cols", "t_order", "edge_ids"


@public
def host_arrays() -> AbstractContextManager[None]:
    """Make containers that are built inside a ``with`` block hold numpy arrays; use no device.

    For data workers: a process that was forked after its parent used JAX hangs once it makes a JAX
    array. A container of numpy arrays can be pickled, and goes to the device where it is used: as
    an argument of a jitted function at each call, or once, by ``jax.device_put``. Methods that
    build containers, and :meth:`Graph.edge_values`, return numpy arrays for numpy arrays, inside
    such a block and outside.

    Example:
        >>> with host_arrays():
        ...     graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> graph.rows, jax.device_put(graph).rows
        (array([0, 0, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return cast(AbstractContextManager[None], on_host(True))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Graph:
    """Directed or bipartite graph, with its edges sorted by destination and by source.

    The two halves are the sparse adjacency matrix A, ``(num_dst, num_src)``, and its transpose:
    messages run from sources to destinations, ``A @ x``. All sizes are shapes, so that graphs of
    equal sizes share one compiled program; :meth:`pad` makes sizes equal. Build one with a
    ``from_…`` method. The arrays are int32, or int64 where 32 bits do not suffice.

    Outside ``jax.jit``, building and the methods work in numpy and compile nothing. They copy
    arrays on a device to the host, and their results to that device: build many small graphs inside
    :func:`host_arrays`.

    Ops take and return values of edges in the graph's order: by destination, then source; equal
    edges in the order of the input. :meth:`edge_values` brings values there, and
    :meth:`to_input_order` back. The graphs in a :class:`jax_gnn.RelationalGraph` have another order
    for each destination; ops do not depend on it.

    Methods marked *host only* depend on values, and raise a TypeError inside ``jax.jit``.

    Attributes:
        indptr: ``(num_dst + 1,)``, row pointers of the destinations into ``rows`` and ``cols``.
        rows: ``(num_edges,)``, the destination of each edge, ascending.
        cols: ``(num_edges,)``, the source of each edge; the ``from_…`` methods make it ascend for
            each destination.
        t_indptr: ``(num_src + 1,)``, row pointers of the sources into ``t_rows`` and ``t_cols``.
        t_rows: ``(num_edges,)``, the source of each edge in the order by source, ascending.
        t_cols: ``(num_edges,)``, the destination of each edge in the order by source, ascending for
            each source.
        t_order: ``(num_edges,)``, position in ``rows`` and ``cols`` of each edge in the order by
            source.
        edge_ids: ``(num_edges,)``, position of each edge in the input that the graph was built
            from; -1 for edges that were not in the input.
        split: ``cols`` cut into slots of 8, so that kernels give each slot the same work, or None;
            see :meth:`with_edge_split`. An ``EdgeSplit`` of two arrays, with ``num_slots =
            num_edges // 8 + num_dst + 1``: ``ids``, ``(num_slots, 8)``, the columns, with -1 in
            the rest of each row's last slot (an empty row has one slot), and ``places``,
            ``(num_slots, 2)``, the row, and twice the slot's position in it, plus 1 in its last.
            Surplus slots, at the end, have columns -1 and places (-1, 1).
        t_split: ``t_cols`` cut into slots in the same way, or None.
        num_input_edges: ``()``, number of edges of the input, dropped ones included; an array, so
            that graphs with different numbers share a program. None for a graph whose arrays were
            put together by hand.

    Edges past ``indptr[-1]`` are padding and hold -1 in all arrays. A repeated edge counts as often
    as it is repeated.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)  # sources, destinations
        >>> graph
        Graph(num_nodes=3, num_edges=3)
        >>> graph.rows, graph.cols
        (Array([0, 0, 1], dtype=int32), Array([1, 2, 0], dtype=int32))
        >>> weight = graph.edge_values([0.5, 1.0, 2.0])  # from the order of the input
        >>> weight, graph.to_input_order(weight)
        (Array([1. , 2. , 0.5], dtype=float32), Array([0.5, 1. , 2. ], dtype=float32))
    """

    indptr: Array
    rows: Array
    cols: Array
    t_indptr: Array
    t_rows: Array
    t_cols: Array
    t_order: Array
    edge_ids: Array
    split: EdgeSplit | None = None
    t_split: EdgeSplit | None = None
    num_input_edges: Array | None = None

    @property
    def num_src(self) -> int:
        """Number of sources, padding included."""
        return self.t_indptr.shape[-1] - 1

    @property
    def num_dst(self) -> int:
        """Number of destinations, padding included."""
        return self.indptr.shape[-1] - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes, padding included; a bipartite graph raises a ValueError."""
        if self.num_src != self.num_dst:
            raise ValueError(
                f"a bipartite graph has no num_nodes, got num_src={self.num_src} and "
                f"num_dst={self.num_dst}"
            )
        return self.num_dst

    @property
    def num_edges(self) -> int:
        """Number of edges, padding included."""
        return self.rows.shape[-1]

    def __repr__(self) -> str:
        arrays = {f.name: getattr(self, f.name) for f in fields(self)}
        sized = (self.indptr, self.t_indptr, self.rows)
        if any(not getattr(array, "shape", None) for array in sized):
            parts = arrays  # a pytree whose leaves are not arrays, such as shardings
        elif self.num_src == self.num_dst:
            parts = {"num_nodes": self.num_nodes, "num_edges": self.num_edges}
        else:
            names = ("num_src", "num_dst", "num_edges")
            parts = {name: getattr(self, name) for name in names}
        return f"Graph({', '.join(f'{name}={part!r}' for name, part in parts.items())})"

    @classmethod
    def from_edges(
        cls,
        src: ArrayLike | Iterable[Iterable[int]],
        dst: ArrayLike | None = None,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        validate: bool = True,
    ) -> Graph:
        """Build a graph from edges in any order, which it sorts.

        Values of edges in the order of ``src`` are not in the order that ops take:
        :meth:`edge_values` brings them there.

        Host arrays are checked. Traced arrays inside ``jax.jit`` cannot be: there, and with
        ``validate=False``, edges with an id out of range count as padding and are dropped.

        Args:
            src: ``(num_edges,)`` integers, the source of each edge. Without ``dst``, all edges:
                ``(2, num_edges)`` integers, sources first, as PyG's ``edge_index``; or an iterable
                of tuples (source, destination).
            dst: ``(num_edges,)`` integers, the destination of each edge.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_src: number of sources of a bipartite graph; the largest source plus one if only
                ``num_dst`` is given.
            num_dst: number of destinations of a bipartite graph; the largest destination plus one
                if only ``num_src`` is given.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array has another shape, lengths differ, a size is negative, an id is out
                of range, or ``num_nodes`` is given beside the other sizes.
        """
        device = device_of(src, dst)
        columns = arguments.split_edge_pairs("src", src) if dst is None else (src, dst)
        senders, receivers = arguments.check_pairs("src", columns[0], "dst", columns[1])
        names, num_src, num_dst = check_sizes(senders, receivers, num_nodes, num_src, num_dst)
        validate = arguments.check_flag("validate", validate) and not is_traced(senders)
        edges = sort_triples(senders, None, receivers, num_src=num_src, num_dst=num_dst)
        # Sorting drops ids out of range anyway: they are searched for the error alone.
        if validate and edges.dropped():
            arguments.check_range("src", senders, names[0], num_src)
            arguments.check_range("dst", receivers, names[1], num_dst)
        # Sorted triples without types have the fields of a graph up to edge_ids, in its order.
        count = id_count(senders, edges.indptr.dtype)
        return cast(Graph, to_device(cls(*edges[:-1], None, None, count), device))

    @classmethod
    def from_sorted(
        cls,
        src: ArrayLike,
        dst: ArrayLike,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        t_order: ArrayLike | None = None,
        validate: bool = True,
    ) -> Graph:
        """Build a graph from edges whose destinations ascend, and keep their order.

        This saves the sort by destination, and with ``t_order`` also the sort by source. Host
        arrays are checked. Inside ``jax.jit``, and with ``validate=False``, edges with an id out of
        range are dropped wherever they stand, and edges out of order give another graph.

        Args:
            src: ``(num_edges,)`` integers, the source of each edge.
            dst: ``(num_edges,)`` integers, the destination of each edge, ascending.
            num_nodes: number of nodes, as in :meth:`from_edges`.
            num_src: number of sources of a bipartite graph, as in :meth:`from_edges`.
            num_dst: number of destinations of a bipartite graph, as in :meth:`from_edges`.
            t_order: ``(num_edges,)`` integers, the positions of the edges sorted by source, then
                destination, if known; positions out of range are skipped.
            validate: whether ids out of range in host arrays, and arrays out of order, are errors.

        Raises:
            ValueError: ``dst`` does not ascend, or ``t_order`` is another order; others as in
                :meth:`from_edges`.

        Example:
            >>> Graph.from_sorted([2, 1, 0], [0, 0, 1], num_nodes=3).cols
            Array([2, 1, 0], dtype=int32)
        """
        device = device_of(src, dst)
        columns = {"src": src, "dst": dst} | ({} if t_order is None else {"t_order": t_order})
        senders, receivers, *orders = arguments.check_columns(columns)
        order = orders[0] if orders else None
        names, num_src, num_dst = check_sizes(senders, receivers, num_nodes, num_src, num_dst)
        if arguments.check_flag("validate", validate) and not is_traced(senders):
            arguments.check_range("src", senders, names[0], num_src)
            arguments.check_range("dst", receivers, names[1], num_dst)
            for i in np.flatnonzero(np.diff(receivers) < 0)[:1]:
                raise ValueError(
                    f"dst must ascend, got dst[{i}] = {receivers[i]} before dst[{i + 1}] = "
                    f"{receivers[i + 1]}; Graph.from_edges sorts"
                )
            if order is not None:
                arguments.check_range("t_order", order, "num_edges", len(senders))
                src_steps, dst_steps = np.diff(senders[order]), np.diff(receivers[order])
                ascends = (src_steps > 0) | (src_steps == 0) & (dst_steps >= 0)
                counts = np.bincount(order, minlength=len(senders))
                if not ascends.all() or (counts != 1).any():
                    raise ValueError(
                        "t_order must have each edge once, by source, then destination"
                    )
        elif not is_traced(senders):
            order = None  # an unchecked order could index out of bounds; sorting costs no more
        build = _sorted_traced if is_traced(senders) else _sorted_on_host
        return cast(Graph, to_device(build(senders, receivers, order, num_src, num_dst), device))

    @classmethod
    def from_scipy(cls, matrix: object) -> Graph:
        """Build a graph from a sparse adjacency matrix.

        Every stored entry is an edge, whatever its value; ``edge_values(matrix.tocoo().data)`` are
        the values.

        Args:
            matrix: ``(num_dst, num_src)`` scipy sparse matrix or array, so that aggregation is
                ``matrix @ x``.

        Raises:
            TypeError: ``matrix`` is not a scipy sparse matrix or array.
            ValueError: ``matrix`` is not two-dimensional, or its index arrays are not those of a
                matrix of its shape.
        """
        coo = arguments.check_sparse("matrix", matrix, "(num_dst, num_src)")
        return cls.from_edges(coo.col, coo.row, num_src=coo.shape[1], num_dst=coo.shape[0])

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges in the order of the input, then edges added later. Host only.

        A reversed edge that :meth:`symmetrized` added follows the edge that it reverses. Padding
        and dropped edges are left out.

        Returns:
            Sources and destinations, ``(edges,)`` int64 each.

        Example:
            >>> Graph.from_edges([(0, 2), (2, 1), (1, 0)]).edges()
            (array([0, 2, 1]), array([2, 1, 0]))
        """
        src, dst, edge_ids = self._host_edges("edges")
        order = input_order(edge_ids)
        return src[order], dst[order]

    def edge_values(self, values: ArrayLike, fill_value: ArrayLike = 0) -> Array:
        """Bring values, such as weights, from the order of the input to the graph's order.

        Args:
            values: ``(num_input_edges, *features)``, one row for each edge of the input.
            fill_value: value of edges that were not in the input: added self-loops, and padding.

        Returns:
            ``(num_edges, *features)`` in the dtype of ``values``. For a graph that is an argument
            of a jitted function, the number of values cannot be checked: if there are too few, the
            rest are NaN (for integers, the extreme value).

        Raises:
            TypeError: ``values`` or ``fill_value`` are not numbers.
            ValueError: ``values`` does not have one row for each edge of the input.
        """
        return self._values(values, fill_value, "num_input_edges")

    def to_input_order(self, values: ArrayLike, fill_value: ArrayLike = 0) -> Array:
        """Bring values from the graph's order back to that of the input: undo `edge_values`.

        Args:
            values: ``(num_edges, *features)``, such as scores of edges. Values of added self-loops
                and of padding are left out.
            fill_value: value of edges of the input that the graph lacks, such as those dropped
                because an id was out of range.

        Returns:
            ``(num_input_edges, *features)`` in the dtype of ``values``.

        Raises:
            TypeError: the graph is traced, so that the number of rows is not known; or ``values``
                or ``fill_value`` are not numbers.
            ValueError: ``values`` does not have one row for each edge, or an edge of the input
                occurs twice in the graph, as after :meth:`symmetrized`.
        """
        return self._to_input_order(values, fill_value, "num_edges")

    def _to_input_order(
        self, values: ArrayLike, fill_value: ArrayLike, rows: str, edge_types: Array | None = None
    ) -> Array:
        """Implement `to_input_order`; of edges with one id, the one of the lowest type is taken.

        Errors call the number of edges ``rows``. Inverse types come after all others.
        """
        if is_traced(self.edge_ids):
            raise TypeError(
                "to_input_order needs a graph whose arrays are known: call it on what a function "
                "under jax.jit returns, got a traced graph"
            )
        if self.num_input_edges is None:
            raise ValueError("to_input_order needs num_input_edges of the graph, got None")
        ids, count = np.asarray(self.edge_ids), int(self.num_input_edges)
        keys = np.zeros_like(ids) if edge_types is None else np.asarray(edge_types)
        # Sorted by id, then type, the first edge of each id is the input's. A later one of another
        # type is an inverse edge; one of the same type cannot be told apart from it.
        order = np.lexsort((keys, ids))[np.count_nonzero(ids < 0) :]
        is_repeated = ids[order[1:]] == ids[order[:-1]]
        if (is_repeated & (keys[order[1:]] == keys[order[:-1]])).any():
            raise ValueError(
                "to_input_order needs a graph with one edge for each edge of the input, such as "
                "that before symmetrized, got one in which symmetrized added "
                f"{np.count_nonzero(is_repeated)}"
            )
        first = order[np.append(True, ~is_repeated)[: len(order)]]
        positions = np.full(count, PADDING, ids.dtype)
        positions[ids[first]] = first
        # The way back is edge_values of a graph whose "input" are this graph's edges.
        arrays: Any = positions, np.asarray(len(ids), ids.dtype)
        if namespace(self.edge_ids) is not np:
            arrays = to_device(arrays, device_of(self.edge_ids))
        inverse = replace(self, edge_ids=arrays[0], num_input_edges=arrays[1])
        return inverse._values(values, fill_value, rows)

    def _renumbered(self, edge_ids: np.ndarray, num_input_edges: Array | None) -> Graph:
        """Return this graph of host arrays, with ``edge_ids[i]`` as the new id of edge i."""
        ids = take_ids(edge_ids, self.edge_ids).astype(self.edge_ids.dtype)
        return replace(self, edge_ids=ids, num_input_edges=jax.device_get(num_input_edges))

    @run_on_host("edge_ids", "num_input_edges")
    def _values(self, values: ArrayLike, fill_value: ArrayLike, rows: str) -> Array:
        """Implement `edge_values`; errors call the number of rows ``rows``."""
        xp = namespace(self.edge_ids)
        if xp is np:
            xp = namespace(arguments.to_array("values", values))
        array = arguments.as_numbers("values", values, xp)
        if array.ndim == 0:
            raise ValueError(f"values must be ({rows}, *features), got a scalar")
        count, num_values = self.num_input_edges, array.shape[0]
        if (
            not (count is None or is_traced(count) or count.ndim)
            and not jax.export.is_symbolic_dim(num_values)
            and num_values != int(count)
        ):
            raise ValueError(f"values must be ({rows}={count}, *features), got shape {array.shape}")
        fill = arguments.as_numbers("fill_value", fill_value, xp)
        if jnp.iscomplexobj(fill) and not jnp.iscomplexobj(array):
            raise TypeError(f"fill_value must be a real number like values, got {fill.dtype}")
        expected = f"a scalar or of the features {array.shape[1:]} of values"
        with arguments.argument_errors("fill_value", expected, fill):
            fill = xp.broadcast_to(fill.astype(array.dtype), (1, *array.shape[1:]))
        # Row 0 is the fill value, for id -1; ids past the values read NaN.
        result: Array
        if xp is np:
            missing = np.full_like(fill, arguments.fill_value(array.dtype))
            positions = np.clip(self.edge_ids, PADDING, len(array)) + 1
            result = np.concatenate([fill, array, missing])[positions]
        else:
            edge_ids = clip_ids(self.edge_ids, num_values)
            result = jnp.concatenate([fill, array]).at[edge_ids + 1].get(mode="fill")
        return result

    @run_on_host("rows", "cols", "edge_ids", "t_order")
    def transpose(self) -> Graph:
        """Reverse all edges.

        The two halves change places, and so the order of the edges changes: values in the order of
        this graph become ``values[graph.t_order]``. If ``cols`` do not ascend for each destination,
        as in a :class:`jax_gnn.RelationalGraph`, the new half by source is sorted, since functions
        that look edges up need it sorted; inside ``jax.jit`` it stays as it is.
        """
        rows, cols, t_order = self.rows, self.cols, inverse_permutation(self.t_order)
        split = self.split
        if namespace(rows, cols) is np and ((cols[1:] < cols[:-1]) & (rows[1:] == rows[:-1])).any():
            order = np.lexsort((cols, np.where(rows < 0, np.iinfo(rows.dtype).max, rows)))
            cols, t_order, split = cols[order], t_order[order], None
        return Graph(
            indptr=self.t_indptr,
            rows=self.t_rows,
            cols=self.t_cols,
            t_indptr=self.indptr,
            t_rows=rows,
            t_cols=cols,
            t_order=t_order,
            edge_ids=take_ids(self.edge_ids, self.t_order),
            split=self.t_split,
            t_split=split,
            num_input_edges=self.num_input_edges,
        )

    def with_self_loops(self) -> Graph:
        """Add an edge from each node to itself where there is none. Host only.

        The new edges were not in the input: :meth:`edge_values` gives them its ``fill_value``.
        Padding is dropped. A bipartite graph raises a ValueError.
        """
        num_nodes = self.num_nodes
        src, dst, _ = self._host_edges("with_self_loops")
        loops = np.setdiff1d(np.arange(num_nodes), src[src == dst])
        return self._with_edges(loops, loops, np.full(len(loops), PADDING))

    def symmetrized(self) -> Graph:
        """Add the reverse of each edge that has none, so that A becomes max(A, Aᵀ). Host only.

        A new edge has the values of the edge that it reverses. Padding is dropped. A bipartite
        graph raises a ValueError.
        """
        num_nodes = self.num_nodes
        src, dst, edge_ids = self._host_edges("symmetrized")
        order = np.lexsort((src, dst))  # a relational graph's edges are sorted by relation, too
        src, dst, edge_ids = src[order], dst[order], edge_ids[order]
        # The k-th copy of an edge has a reverse if there are more than k copies of the reverse.
        pairs, reverse = dst * num_nodes + src, src * num_nodes + dst  # pairs ascend
        copies_before = np.arange(len(pairs)) - np.searchsorted(pairs, pairs)
        reverses = np.searchsorted(pairs, reverse, "right") - np.searchsorted(pairs, reverse)
        is_single = copies_before >= reverses
        return self._with_edges(dst[is_single], src[is_single], edge_ids[is_single])

    def _host_edges(self, caller: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sources, destinations and ``edge_ids`` in numpy, without padding."""
        if is_traced(self.indptr):
            raise TypeError(
                f"{caller} works on the host only, as the number of edges depends on values; call "
                "it before jax.jit"
            )
        indptr, *arrays = jax.device_get((self.indptr, self.cols, self.rows, self.edge_ids))
        src, dst, edge_ids = (array[: indptr[-1]].astype(np.int64) for array in arrays)
        return src, dst, edge_ids

    def _with_edges(
        self, src: np.ndarray, dst: np.ndarray, edge_ids: np.ndarray, num_dst: int | None = None
    ) -> Graph:
        """Add edges with the ids ``edge_ids``, and destinations up to ``num_dst``.

        The result is split into slots if this graph is.
        """
        present = self._host_edges("adding edges")
        src, dst, edge_ids = map(np.concatenate, zip(present, (src, dst, edge_ids), strict=True))
        num_dst = self.num_dst if num_dst is None else num_dst
        with on_host(True):
            graph = Graph.from_edges(src, dst, num_src=self.num_src, num_dst=num_dst)
        graph = graph._renumbered(edge_ids, self.num_input_edges)
        return placed_like(self.rows, graph._split_like(self))

    def with_edge_split(self) -> Graph:
        """Add ``split`` and ``t_split`` if they are missing, in linear time.

        The kernels of :func:`jax_gnn.hypergraph_aggregate` take them; the graphs of a
        :class:`jax_gnn.Hypergraph` have them from the start. Works on the host and inside
        ``jax.jit``. The methods of the graph update them; code that replaces arrays by hand must
        set both to None, and call this method.
        """
        if self.split is not None and self.t_split is not None:
            return self
        return _split(self)

    def _split_like(self, graph: Graph) -> Graph:
        """Add the slots of :meth:`with_edge_split` if another graph has them."""
        return self if graph.split is None else self.with_edge_split()

    @run_on_host()
    def pad(
        self,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        num_edges: int | None = None,
    ) -> Graph:
        """Pad to capacities, so that graphs of different sizes share one compiled program.

        The new nodes have no edges: their degree is 0. A capacity of None leaves a size as it is.

        Args:
            num_nodes: capacity in nodes.
            num_src: capacity in sources of a bipartite graph.
            num_dst: capacity in destinations of a bipartite graph.
            num_edges: capacity in edges.

        Raises:
            TypeError: a capacity is not an integer.
            ValueError: a capacity is smaller than the present size, or ``num_nodes`` is given
                beside ``num_src`` or ``num_dst``, or for a bipartite graph.
        """
        if num_nodes is not None:
            if (num_src, num_dst) != (None, None):
                raise ValueError(arguments.num_nodes_conflict(num_nodes, num_src, num_dst))
            new_src = new_dst = arguments.added_size("num_nodes", num_nodes, self.num_nodes)
        else:
            new_src = arguments.added_size("num_src", num_src, self.num_src)
            new_dst = arguments.added_size("num_dst", num_dst, self.num_dst)
        new_edges = arguments.added_size("num_edges", num_edges, self.num_edges)
        arrays: Any = {name: pad_ids(getattr(self, name), new_edges) for name in EDGE_ARRAYS}
        arrays["indptr"] = pad_indptr(self.indptr, new_dst)
        arrays["t_indptr"] = pad_indptr(self.t_indptr, new_src)
        # `replace` keeps the class: a part of a sharded graph is a subclass.
        return replace(self, **arrays, split=None, t_split=None)._split_like(self)

    def check(self, name: str = "graph") -> Graph:
        """Check dtypes and shapes of the arrays, not their values; return the graph as JAX arrays.

        Args:
            name: name of the graph in errors.

        Raises:
            TypeError: an array is not of int32 or int64, or dtypes differ.
            ValueError: an array is not one-dimensional, or lengths do not fit each other.
        """
        self.check_arrays(name)
        return cast(Graph, jax.tree.map(as_signed, self))

    def check_arrays(self, name: str = "graph") -> None:
        """Check dtypes and shapes as `check` does, without moving host arrays to a device."""
        dtypes = {}
        edges = ("rows", "cols"), ("t_rows", "t_cols", "t_order")
        for names in (("indptr",), ("t_indptr",), *edges):
            for part in names:
                dtypes[part] = check_index(f"{name}.{part}", getattr(self, part), "ptr" in part)
            if len({getattr(self, part).shape for part in names}) > 1:
                shapes = ", ".join(str(getattr(self, part).shape) for part in names)
                raise ValueError(f"{name}: {', '.join(names)} must have one length, got {shapes}")
        check_one_dtype(name, dtypes)
        _check_split(f"{name}.split", self.split, self.indptr, self.cols)
        _check_split(f"{name}.t_split", self.t_split, self.t_indptr, self.t_cols)

    def matrix(self, *, weighted: bool = False, slots: bool = False) -> SparseMatrix:
        """Return the adjacency matrix as the primitives take it, by destination and by source.

        Args:
            weighted: whether edges have weights, so that their order by source is needed.
            slots: whether to include row pointers and slots.
        """
        graph = self.with_edge_split() if slots else self  # dead code in jit if no kernel reads it
        order = graph.t_order if weighted else None
        by_dst = Csr(graph.rows, graph.cols, None, num_rows=graph.num_dst)
        by_src = Csr(graph.t_rows, graph.t_cols, order, num_rows=graph.num_src)
        if slots:
            by_dst = replace(by_dst, indptr=graph.indptr, slots=graph.split)
            by_src = replace(by_src, indptr=graph.t_indptr, slots=graph.t_split)
        return SparseMatrix(by_dst, by_src)

    def ends(self) -> tuple[SparseMatrix, SparseMatrix]:
        """Return matrices that sum edges by destination, and by source; the transposes gather."""
        at_src = SparseMatrix(
            Csr(self.t_rows, self.t_order, num_rows=self.num_src),
            Csr(None, self.cols, num_rows=self.num_edges),
        )
        return segments(self.rows, self.num_dst), at_src

    @property
    def _arrays(self) -> dict[str, Any]:
        """Arrays by name, without those of subclasses."""
        return {part.name: getattr(self, part.name) for part in fields(Graph)}

    # Hooks that ops call, and that `jax_gnn.insight._gates.GatedGraph` overrides: its messages have
    # factors, to which outputs are attributed.

    def _gated(
        self, weight: Array | None, dtype: DTypeLike, heads: int = 1
    ) -> tuple[Graph, Array | None]:
        """Return the graph and the edge weights, ``(num_edges, heads)``, that an op works with."""
        return self, weight

    @property
    def _plain(self) -> Graph:
        """Graph without factors of messages."""
        return self

    def _same_edges(self, graph: Graph) -> Graph:
        """Give another graph of the same edges, in the same order, the factors of this one."""
        return graph

    def _note(self, name: str, value: Callable[[], Array]) -> None:
        """Record attention weights, which ``value`` computes; a plain graph ignores them."""

    @run_on_host("indptr")
    def in_degrees(self) -> Array:
        """Return the number of edges into each destination: ``(num_dst,)`` integers."""
        return cast(Array, namespace(self.indptr).diff(self.indptr))

    @run_on_host("t_indptr")
    def out_degrees(self) -> Array:
        """Return the number of edges out of each source: ``(num_src,)`` integers."""
        return cast(Array, namespace(self.t_indptr).diff(self.t_indptr))


def placed_like(array: Array, tree: T) -> T:
    """Put host arrays on the device of another array; keep them on the host if it is there."""
    return tree if namespace(array) is np else to_device(tree, device_of(array))


def check_sizes(
    src: np.ndarray | Array,
    dst: np.ndarray | Array,
    num_nodes: int | None,
    num_src: int | None,
    num_dst: int | None,
) -> tuple[tuple[str, str], int, int]:
    """Return the names of the numbers of sources and of destinations, and these numbers."""
    if num_src is None and num_dst is None:
        size = arguments.check_size("num_nodes", num_nodes, src, dst)
        return ("num_nodes", "num_nodes"), size, size
    if num_nodes is not None:
        raise ValueError(arguments.num_nodes_conflict(num_nodes, num_src, num_dst))
    num_src = arguments.check_size("num_src", num_src, src)
    return ("num_src", "num_dst"), num_src, arguments.check_size("num_dst", num_dst, dst)


def _sorted_on_host(
    src: np.ndarray, dst: np.ndarray, t_order: np.ndarray | None, num_src: int, num_dst: int
) -> Graph:
    """Build a graph of edges by destination, in numpy."""
    count, edge_ids = len(src), np.arange(len(src))
    num_input_edges = id_count(src, index_dtype(num_src, num_dst, count))
    keep = in_range(src, num_src) & in_range(dst, num_dst)
    if not keep.all():
        edge_ids, src, dst, t_order = edge_ids[keep], src[keep], dst[keep], None
    dtype = num_input_edges.dtype
    num_valid, num_padding = len(src), count - len(src)
    rows, cols, edge_ids = (pad_ids(ids.astype(dtype), num_padding) for ids in (dst, src, edge_ids))
    if t_order is None:
        transposed = sort_by_source(rows, cols, num_valid, num_src)
    else:
        t_order = t_order.astype(dtype)
        transposed = (host_row_starts(cols, num_src), cols[t_order], rows[t_order], t_order)
    indptr = host_row_starts(rows[:num_valid], num_dst)
    return Graph(indptr, rows, cols, *transposed, edge_ids, num_input_edges=num_input_edges)


def _sorted_traced(
    src: Array, dst: Array, t_order: Array | None, num_src: int, num_dst: int
) -> Graph:
    """Build a graph of edges by destination inside ``jax.jit``, where nothing can be checked."""
    dtype = index_dtype(num_src, num_dst, src.shape[0])
    keep = in_range(src, num_src) & in_range(dst, num_dst)
    # Valid edges move to the front in their order, and leave padding at the end.
    target, edge_ids = compaction_targets(keep), jnp.arange(src.shape[0], dtype=dtype)
    rows, cols, edge_ids = (scatter_ids(ids.astype(dtype), target) for ids in (dst, src, edge_ids))
    if t_order is None:
        t_order = sorted_ids(cols, num_src)[1]
        t_order = jnp.where(take_ids(cols, t_order) < 0, PADDING, t_order)
    else:
        t_order = take_ids(jnp.where(keep, target, PADDING), t_order)
        t_order = scatter_ids(t_order, compaction_targets(t_order >= 0))
    t_rows = take_ids(cols, t_order)
    return Graph(
        indptr=row_starts(jnp.where(rows < 0, num_dst, rows), num_dst),
        rows=rows,
        cols=cols,
        t_indptr=row_starts(jnp.where(t_rows < 0, num_src, t_rows), num_src),
        t_rows=t_rows,
        t_cols=take_ids(rows, t_order),
        t_order=t_order,
        edge_ids=edge_ids,
        num_input_edges=id_count(src, dtype),
    )


@run_on_host("indptr", "cols", "t_indptr", "t_cols")
def _split(graph: Graph) -> Graph:
    split = edge_split(graph.indptr, graph.cols)
    return replace(graph, split=split, t_split=edge_split(graph.t_indptr, graph.t_cols))


def input_order(edge_ids: np.ndarray) -> np.ndarray:
    """Return the permutation to the order of the input, with added edges at the end."""
    # Viewed as unsigned, the -1 of added edges is the largest id.
    return np.argsort(edge_ids.view(f"u{edge_ids.itemsize}"), kind="stable")


def check_one_dtype(name: str, dtypes: dict[str, np.dtype[Any]]) -> None:
    """Raise a TypeError if arrays, named by the keys, have different dtypes."""
    if len(set(dtypes.values())) > 1:
        listing = ", ".join(f"{part}: {dtype}" for part, dtype in dtypes.items())
        raise TypeError(f"the arrays of {name} must have one dtype, got {listing}")


def check_index(name: str, array: object, is_pointer: bool = False) -> np.dtype[Any]:
    """Check that an array is a vector of int32 or int64, and return its dtype."""
    if not isinstance(array, jax.Array | np.ndarray) or array.dtype not in (np.int32, np.int64):
        kind = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} must be an int32 or int64 array, got {kind}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if is_pointer and array.shape[0] == 0:
        raise ValueError(f"{name} must have at least one element, got shape {array.shape}")
    return array.dtype


def _check_split(name: str, split: EdgeSplit | None, indptr: Array, cols: Array) -> None:
    if split is None:
        return
    size = num_slots(indptr.shape[0] - 1, cols.shape[0])
    for part, shape in {"ids": (size, SLOT_SIZE), "places": (size, 2)}.items():
        array = getattr(split, part, None)
        actual = getattr(array, "shape", None), getattr(array, "dtype", type(array).__name__)
        if actual != (shape, indptr.dtype):
            raise ValueError(
                f"{name}.{part} must be {shape} {indptr.dtype}, got {actual[0]} {actual[1]}: it "
                "belongs to other arrays; set split and t_split to None, and call "
                "with_edge_split() on the graph"
            )


def register_serialization(kind: type) -> None:
    """Let exported functions that take a container be serialized; static fields become JSON."""
    has_static_fields = any(field.metadata for field in fields(kind))

    def deserialize(data: bytes) -> object:
        # Older versions wrote bounds on degrees for containers without static fields.
        return _as_tuples(json.loads(bytes(data))) if has_static_fields else ()

    jax.export.register_pytree_node_serialization(
        kind,
        serialized_name=f"jax_gnn.{kind.__name__}",
        serialize_auxdata=lambda static: json.dumps(static).encode() if static else b"",
        deserialize_auxdata=deserialize,
    )


def _as_tuples(value: object) -> object:
    """Turn lists, as which JSON stores tuples, into tuples."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


register_serialization(Graph)
jax.export.register_namedtuple_serialization(EdgeSplit, serialized_name="jax_gnn.EdgeSplit")
