"""The graph container: edges sorted by destination and by source, as a pytree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

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
from jax_gnn._core.sort import sorted_ids
from jax_gnn._core.triples import sort_by_source, sort_triples


@public
def host_arrays() -> AbstractContextManager[None]:
    """Containers that are built inside a ``with`` block hold numpy arrays, and no device is asked.

    For data workers: a process that was forked after its parent used JAX hangs once it makes an
    array of JAX. What is built of host arrays here, may be pickled, and goes to the device where
    it is used: an argument of a jitted function at each call, or once, by ``jax.device_put``.
    Methods that build containers, :meth:`Graph.pad` among them, and :meth:`Graph.edge_values` give
    numpy arrays for numpy arrays, inside such a block and outside.

    Example:
        >>> with host_arrays():
        ...     graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> graph.rows, jax.device_put(graph).rows
        (array([0, 0, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return on_host(True)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph or a bipartite one: its edges by destination and by source.

    The two halves are the sparse adjacency matrix A, ``(num_dst, num_src)``, and its transpose:
    messages run from sources to destinations, ``A @ x``. All sizes are shapes, so that graphs of
    equal sizes share one compiled program; :meth:`pad` makes sizes equal. Build one with a
    ``from_…`` method. The arrays are int32, or int64 where 32 bits do not suffice.

    Outside ``jax.jit``, building and the methods here compile nothing, whatever the sizes: they
    work in numpy. Arrays on a device are copied to the host for it, and results go to that device:
    of many small graphs, build all inside :func:`host_arrays`.

    Whatever ops take or give for each edge is in the graph's order: by destination, then source;
    equal edges in the order of the input. :meth:`edge_values` brings values there, and
    :meth:`to_input_order` back. The graphs in a :class:`jax_gnn.RelationalGraph` have another order
    for each destination, of which ops ask nothing.

    Attributes:
        indptr: ``(num_dst + 1,)``, where each destination starts in ``rows`` and ``cols``.
        rows: ``(num_edges,)``, the destination of each edge, ascending.
        cols: ``(num_edges,)``, the source of each edge, which a ``from_…`` method makes ascend for
            each destination.
        t_indptr: ``(num_src + 1,)``, where each source starts in ``t_rows`` and ``t_cols``.
        t_rows: ``(num_edges,)``, the sources of the edges by source, ascending.
        t_cols: ``(num_edges,)``, their destinations, ascending for each source.
        t_order: ``(num_edges,)``, where each of those edges is in ``rows`` and ``cols``.
        edge_ids: ``(num_edges,)``, where each edge is in what the graph was built from; -1 for
            edges which are not there.
        split: ``cols`` cut into slots of 8 for kernels that give each the same work, or None; see
            :meth:`with_edge_split`. An ``EdgeSplit`` of two arrays, ``num_slots = num_edges // 8 +
            num_dst + 1``: ``ids``, ``(num_slots, 8)``, the columns, each row's last slot filled up
            with -1 (an empty row has one slot), and ``places``, ``(num_slots, 2)``, the row, and
            twice the slot's place in it, plus 1 in its last. Surplus slots, at the end, have
            columns -1 and places (-1, 1).
        t_split: likewise for ``t_cols``.
        num_input_edges: ``()``, how many edges the graph was built from, dropped ones included:
            as an array it makes no program of its own for each number. None where arrays were put
            together by hand.

    Edges past ``indptr[-1]`` are padding and hold -1 in all arrays. An edge given twice counts
    twice.

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
        """Number of nodes, padding included, of a graph that is not bipartite.

        Raises:
            ValueError: there are not as many sources as destinations.
        """
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
            parts = arrays  # a pytree of something else than arrays
        elif self.num_src == self.num_dst:
            parts = {"num_nodes": self.num_nodes, "num_edges": self.num_edges}
        else:
            names = ("num_src", "num_dst", "num_edges")
            parts = {name: getattr(self, name) for name in names}
        return f"Graph({', '.join(f'{name}={part!r}' for name, part in parts.items())})"

    @classmethod
    def from_edges(
        cls,
        src: Any,
        dst: Any = None,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        validate: bool = True,
    ) -> Graph:
        """Builds a graph from edges in any order, which it sorts.

        Arrays with a value for each edge, in the order of ``src``, are not in the order that ops
        take: :meth:`edge_values` brings them there.

        Works on host arrays, which are checked, and on traced arrays inside ``jax.jit``, which
        cannot be: there, and with ``validate=False``, edges with an id out of range are padding and
        are dropped.

        Args:
            src: ``(num_edges,)`` integers, where each edge starts. Or all edges, where ``dst`` is
                not given: ``(2, num_edges)`` integers, sources first, as PyG's ``edge_index``; or a
                list, or whatever can be iterated over, of tuples (source, destination).
            dst: ``(num_edges,)`` integers, where each edge ends.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_src: number of sources of a bipartite graph, likewise the largest id plus one if
                only ``num_dst`` is given.
            num_dst: number of destinations of a bipartite graph, likewise.
            validate: whether ids out of range in host arrays are an error.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array has another shape, lengths differ, a size is negative, an id is out
                of range, or ``num_nodes`` is given beside the other sizes.
        """
        device = device_of(src, dst)
        if dst is None:
            src, dst = arguments.split_edge_pairs("src", src)
        src, dst = arguments.check_pairs("src", src, "dst", dst)
        names, num_src, num_dst = _sizes(src, dst, num_nodes, num_src, num_dst)
        validate = arguments.check_flag("validate", validate) and not is_traced(src)
        edges = sort_triples(src, None, dst, num_src=num_src, num_dst=num_dst)
        if validate and edges.dropped():
            arguments.check_range("src", src, names[0], num_src)
            arguments.check_range("dst", dst, names[1], num_dst)
        count = id_count(src, edges.indptr.dtype)
        graph = cls(*edges[:-1], None, None, count)  # types are None, and splits
        return to_device(graph, device)

    @classmethod
    def from_sorted(
        cls,
        src: Any,
        dst: Any,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        t_order: Any = None,
        validate: bool = True,
    ) -> Graph:
        """Builds a graph from edges whose destinations ascend, and keeps their order.

        This spares the sort by destination; by source there is one sort, or none where ``t_order``
        is given. As :meth:`from_edges`, it works on host arrays, which are checked, and inside
        ``jax.jit``, where they cannot be: there, and with ``validate=False``, edges with an id out
        of range are dropped wherever they stand, and of edges out of order the result is another
        graph.

        Args:
            src: ``(num_edges,)`` integers, where each edge starts.
            dst: ``(num_edges,)`` integers, where each edge ends, ascending.
            num_nodes: number of nodes; by default the largest id plus one (host arrays only).
            num_src: number of sources of a bipartite graph, as in :meth:`from_edges`.
            num_dst: number of destinations of a bipartite graph, likewise.
            t_order: ``(num_edges,)`` integers, the places of the edges by source, then destination,
                where that order is known; ids out of range are left out.
            validate: whether ids out of range in host arrays, and arrays out of order, are errors.

        Raises:
            TypeError: an array is not of integers, or a size is missing or not an integer.
            ValueError: an array has another shape, lengths differ, a size is negative, an id is out
                of range, ``dst`` does not ascend, ``t_order`` is another order, or ``num_nodes``
                is given beside the other sizes.

        Example:
            >>> Graph.from_sorted([2, 1, 0], [0, 0, 1], num_nodes=3).cols
            Array([2, 1, 0], dtype=int32)
        """
        device = device_of(src, dst)
        columns = {"src": src, "dst": dst}
        if t_order is not None:
            columns["t_order"] = t_order
        src, dst, *order = arguments.check_columns(columns)
        names, num_src, num_dst = _sizes(src, dst, num_nodes, num_src, num_dst)
        validate = arguments.check_flag("validate", validate)
        build = _sorted_traced if is_traced(src) else _sorted_on_host
        given = names if validate else None
        graph = build(src, dst, order[0] if order else None, num_src, num_dst, given)
        return to_device(graph, device)

    @classmethod
    def from_scipy(cls, matrix: Any) -> Graph:
        """Builds a graph from a sparse adjacency matrix.

        Every stored entry is an edge, whatever its value; ``edge_values(matrix.tocoo().data)`` are
        the values.

        Args:
            matrix: ``(num_dst, num_src)`` scipy sparse matrix or array, so that aggregation is
                ``matrix @ x``.

        Raises:
            TypeError: it is not a scipy sparse matrix or array.
            ValueError: it is not two-dimensional, or its index arrays are not those of a matrix of
                its shape.
        """
        coo = arguments.check_sparse("matrix", matrix, "(num_dst, num_src)")
        return cls.from_edges(coo.col, coo.row, num_src=coo.shape[1], num_dst=coo.shape[0])

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The edges that the graph was built from, in that order, then those added. Host only.

        A reversed edge that :meth:`symmetrized` added stands beside its own. What is padding, or
        was dropped as an id was out of range, is left out.

        Returns:
            Sources and destinations, ``(edges,)`` int64 each.

        Raises:
            TypeError: called inside ``jax.jit``.

        Example:
            >>> Graph.from_edges([(0, 2), (2, 1), (1, 0)]).edges()
            (array([0, 2, 1]), array([2, 1, 0]))
        """
        src, dst, edge_ids = self._host_edges("edges")
        order = given_first(edge_ids)
        return src[order], dst[order]

    def edge_values(self, values: Any, fill_value: Any = 0) -> Array:
        """Brings values, such as weights, from the order of the input to the graph's order.

        Args:
            values: ``(num_input_edges, *features)``, one for each edge that the graph was built
                from.
            fill_value: what edges get that were not there: self-loops that were added, and padding.

        Returns:
            ``(num_edges, *features)`` in the dtype of ``values``. Of a graph that was passed to
            ``jax.jit`` it is not known how many values there must be: where there are too few, the
            rest are NaN (of integers, the extreme value).

        Raises:
            TypeError: ``values`` are not numbers, or ``fill_value`` is none.
            ValueError: ``values`` has not one row for each edge that the graph was built from.
        """
        return self._values(values, fill_value, "num_input_edges")

    def to_input_order(self, values: Any, fill_value: Any = 0) -> Array:
        """Brings values from the graph's order back to that of the input: undoes `edge_values`.

        Args:
            values: ``(num_edges, *features)``, such as scores of edges. Those of self-loops that
                were added, and of padding, are left out.
            fill_value: value of edges of the input that the graph lacks, such as those dropped
                because an id was out of range.

        Returns:
            ``(num_input_edges, *features)`` in the dtype of ``values``.

        Raises:
            TypeError: the graph is an argument of a function under ``jax.jit``, where the number of
                rows is not known; or ``values`` are not numbers, or ``fill_value`` is none.
            ValueError: ``values`` has not one row for each edge, or an edge of the input has two in
                the graph, as :meth:`symmetrized` makes them.
        """
        return self._to_input_order(values, fill_value, "num_edges")

    def _to_input_order(
        self, values: Any, fill_value: Any, rows: str, edge_types: Any = None
    ) -> Array:
        """Same as `to_input_order`; of edges with one id, that of the lowest type was the input's.

        Args:
            values: as there.
            fill_value: as there.
            rows: name of the number of edges in errors.
            edge_types: ``(num_edges,)``, type of each edge; inverse types come after all others.
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
        order = np.lexsort((keys, ids))[np.count_nonzero(ids < 0) :]
        again = ids[order[1:]] == ids[order[:-1]]
        if (again & (keys[order[1:]] == keys[order[:-1]])).any():
            raise ValueError(
                "to_input_order needs a graph with one edge for each edge of the input, such as "
                "that before symmetrized, got one in which symmetrized added "
                f"{np.count_nonzero(again)}"
            )
        first = order[np.append(True, ~again)[: len(order)]]
        places = np.full(count, PADDING, ids.dtype)
        places[ids[first]] = first
        arrays: Any = places, np.asarray(len(ids), ids.dtype)
        if namespace(self.edge_ids) is not np:
            arrays = to_device(arrays, device_of(self.edge_ids))
        inverse = replace(self, edge_ids=arrays[0], num_input_edges=arrays[1])
        return inverse._values(values, fill_value, rows)

    def _renumbered(self, edge_ids: Any, num_input_edges: Any) -> Graph:
        """Same graph, host arrays, whose i-th edge of the input is number ``edge_ids[i]``."""
        ids = take_ids(edge_ids, self.edge_ids).astype(self.edge_ids.dtype)
        return replace(self, edge_ids=ids, num_input_edges=jax.device_get(num_input_edges))

    @run_on_host("edge_ids", "num_input_edges")
    def _values(self, values: Any, fill_value: Any, rows: str) -> Array:
        """Same as `edge_values`; errors call the number of rows ``rows``."""
        xp = namespace(self.edge_ids)
        if xp is np:
            xp = namespace(arguments.to_array("values", values))
        values = arguments.as_numbers("values", values, xp)
        if values.ndim == 0:
            raise ValueError(f"values must be ({rows}, *features), got a scalar")
        count, given = self.num_input_edges, values.shape[0]
        if (
            not (count is None or is_traced(count) or count.ndim)
            and not jax.export.is_symbolic_dim(given)
            and given != int(count)
        ):
            raise ValueError(
                f"values must be ({rows}={count}, *features), got shape {values.shape}"
            )
        fill = arguments.as_numbers("fill_value", fill_value, xp)
        if jnp.iscomplexobj(fill) and not jnp.iscomplexobj(values):
            raise TypeError(f"fill_value must be a real number like values, got {fill.dtype}")
        wanted = f"a scalar or of the features {values.shape[1:]} of values"
        with arguments.argument_errors("fill_value", wanted, fill):
            fill = xp.broadcast_to(fill.astype(values.dtype), (1, *values.shape[1:]))
        if xp is np:
            last = np.full_like(fill, arguments.fill_value(values.dtype))
            places = np.clip(self.edge_ids, PADDING, len(values)) + 1
            return np.concatenate([fill, values, last])[places]
        edge_ids = clip_ids(self.edge_ids, values.shape[0])
        return jnp.concatenate([fill, values]).at[edge_ids + 1].get(mode="fill")

    @run_on_host("rows", "cols", "edge_ids", "t_order")
    def transpose(self) -> Graph:
        """The graph with all edges reversed.

        The two halves change places, and so the order of the edges changes: values in the order of
        this graph become ``values[graph.t_order]``. Where ``cols`` do not ascend for each
        destination, as those of a :class:`jax_gnn.RelationalGraph`, the new half by source is
        sorted, as functions that look edges up want it. Inside ``jax.jit`` that is not known, and
        nothing is sorted.
        """
        rows, cols, t_order = self.rows, self.cols, inverse_permutation(self.t_order)
        split = self.split
        if namespace(rows, cols) is np and not _ascend(rows, cols):
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
        """Adds an edge from each node to itself where there is none. Host only.

        The new edges were not in the input: :meth:`edge_values` gives them its ``fill_value``.
        Padding is dropped.

        Raises:
            ValueError: the graph is bipartite.
            TypeError: called inside ``jax.jit``.
        """
        num_nodes = self.num_nodes
        src, dst, _ = self._host_edges("with_self_loops")
        loops = np.setdiff1d(np.arange(num_nodes), src[src == dst])
        return self._with_edges(loops, loops, np.full(len(loops), PADDING))

    def symmetrized(self) -> Graph:
        """Adds the reverse of each edge that has none, so that A becomes max(A, Aᵀ). Host only.

        A new edge has the values of the one that it reverses. Padding is dropped.

        Raises:
            ValueError: the graph is bipartite.
            TypeError: called inside ``jax.jit``.
        """
        num_nodes = self.num_nodes
        src, dst, edge_ids = self._host_edges("symmetrized")
        order = np.lexsort((src, dst))  # which a graph need not have for each destination
        src, dst, edge_ids = src[order], dst[order], edge_ids[order]
        pairs, reverse = dst * num_nodes + src, src * num_nodes + dst  # pairs ascend
        copies_before = np.arange(len(pairs)) - np.searchsorted(pairs, pairs)
        reverses = np.searchsorted(pairs, reverse, "right") - np.searchsorted(pairs, reverse)
        alone = copies_before >= reverses
        return self._with_edges(dst[alone], src[alone], edge_ids[alone])

    def _host_edges(self, caller: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sources, destinations and ``edge_ids`` without padding."""
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
        """Adds edges that have the given ``edge_ids``, and destinations up to ``num_dst``.

        The result is split into slots if this graph is.
        """
        old = self._host_edges("adding edges")
        src, dst, edge_ids = map(np.concatenate, zip(old, (src, dst, edge_ids), strict=True))
        num_dst = self.num_dst if num_dst is None else num_dst
        with on_host(True):
            graph = Graph.from_edges(src, dst, num_src=self.num_src, num_dst=num_dst)
        graph = graph._renumbered(edge_ids, self.num_input_edges)
        graph = graph if self.split is None else graph.with_edge_split()
        return graph if namespace(self.rows) is np else to_device(graph, device_of(self.rows))

    def with_edge_split(self) -> Graph:
        """Adds ``split`` and ``t_split``, in linear time, where they are not there yet.

        They are for the kernels of :func:`jax_gnn.hypergraph_aggregate`; the graphs of a
        :class:`jax_gnn.Hypergraph` have them from the start. Works on the host and inside
        ``jax.jit``. The methods of the graph keep them up to date; whoever replaces arrays by hand
        must set both to None, and call this.
        """
        if self.split is not None and self.t_split is not None:
            return self
        return _split(self)

    @run_on_host()
    def pad(
        self,
        *,
        num_nodes: int | None = None,
        num_src: int | None = None,
        num_dst: int | None = None,
        num_edges: int | None = None,
    ) -> Graph:
        """Pads to given capacities, so that differing graphs share one compiled program.

        The new nodes have no edges: their degree is 0.

        Args:
            num_nodes: capacity in nodes; None leaves it.
            num_src: capacity in sources of a bipartite graph; None leaves it.
            num_dst: capacity in destinations of a bipartite graph; None leaves it.
            num_edges: capacity in edges; None leaves it.

        Raises:
            TypeError: a capacity is not an integer.
            ValueError: a capacity is smaller than what is there, or ``num_nodes`` is given beside
                ``num_src`` or ``num_dst``, or for a bipartite graph.
        """
        if num_nodes is not None:
            if (num_src, num_dst) != (None, None):
                raise ValueError(arguments.num_nodes_conflict(num_nodes, num_src, num_dst))
            new_src = new_dst = arguments.added_size("num_nodes", num_nodes, self.num_nodes)
        else:
            new_src = arguments.added_size("num_src", num_src, self.num_src)
            new_dst = arguments.added_size("num_dst", num_dst, self.num_dst)
        new_edges = arguments.added_size("num_edges", num_edges, self.num_edges)

        def pad(ids: Array) -> Array:
            return pad_ids(ids, new_edges)

        graph = replace(  # a part of a sharded graph stays one
            self,
            indptr=pad_indptr(self.indptr, new_dst),
            rows=pad(self.rows),
            cols=pad(self.cols),
            t_indptr=pad_indptr(self.t_indptr, new_src),
            t_rows=pad(self.t_rows),
            t_cols=pad(self.t_cols),
            t_order=pad(self.t_order),
            edge_ids=pad(self.edge_ids),
            split=None,
            t_split=None,
        )
        return graph if self.split is None else graph.with_edge_split()

    def check(self, name: str = "graph") -> Graph:
        """The graph, if its arrays are such as ops take; what they hold is not looked at.

        Args:
            name: what errors call it.

        Raises:
            TypeError: an array is not of int32 or int64, or they are not all of one type.
            ValueError: an array is not one-dimensional, or lengths do not fit each other.
        """
        self.check_arrays(name)
        return jax.tree.map(as_signed, self)

    def check_arrays(self, name: str = "graph") -> None:
        """The same check alone: arrays of the host stay there."""
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
        """The adjacency matrix as the primitives take it, by destination and by source.

        Args:
            weighted: whether there are weights of edges, whose order is wanted then.
            slots: whether row pointers and slots are wanted.
        """
        graph = self.with_edge_split() if slots else self  # traced, dead code if no kernel reads it
        return SparseMatrix(
            Csr(
                *(graph.rows, graph.cols, None),
                *((graph.indptr, graph.split) if slots else ()),
                num_rows=graph.num_dst,
            ),
            Csr(
                *(graph.t_rows, graph.t_cols, graph.t_order if weighted else None),
                *((graph.t_indptr, graph.t_split) if slots else ()),
                num_rows=graph.num_src,
            ),
        )

    def ends(self) -> tuple[SparseMatrix, SparseMatrix]:
        """What sums edges at their destinations, and at their sources; the transposes gather."""
        at_src = SparseMatrix(
            Csr(self.t_rows, self.t_order, num_rows=self.num_src),
            Csr(None, self.cols, num_rows=self.num_edges),
        )
        return segments(self.rows, self.num_dst), at_src

    # What `jax_gnn.insight` has other graphs do, whose messages have factors.

    def _gated(self, weight: Any, dtype: Any, heads: int = 1) -> tuple[Graph, Any]:
        """What ops work with in place of this graph and weights, ``(num_edges, heads)``."""
        return self, weight

    @property
    def _plain(self) -> Graph:
        """The graph itself, whose messages have no factors."""
        return self

    def _same_edges(self, graph: Graph) -> Graph:
        """Another graph of the same edges in the same order, with their factors."""
        return graph

    def _note(self, name: str, value: Callable[[], Array]) -> None:
        """Told by attention what its weights are; nothing is computed of it here."""

    @run_on_host("indptr")
    def in_degrees(self) -> Array:
        """Number of edges into each destination: ``(num_dst,)`` integers."""
        return namespace(self.indptr).diff(self.indptr)

    @run_on_host("t_indptr")
    def out_degrees(self) -> Array:
        """Number of edges out of each source: ``(num_src,)`` integers."""
        return namespace(self.t_indptr).diff(self.t_indptr)


def _sizes(
    src: Any, dst: Any, num_nodes: Any, num_src: Any, num_dst: Any
) -> tuple[tuple[str, str], Any, Any]:
    """What the numbers of sources and of destinations were called, and these."""
    if num_src is None and num_dst is None:
        size = arguments.check_size("num_nodes", num_nodes, src, dst)
        return ("num_nodes", "num_nodes"), size, size
    if num_nodes is not None:
        raise ValueError(arguments.num_nodes_conflict(num_nodes, num_src, num_dst))
    num_src = arguments.check_size("num_src", num_src, src)
    return ("num_src", "num_dst"), num_src, arguments.check_size("num_dst", num_dst, dst)


def _sorted_on_host(
    src: Any,
    dst: Any,
    t_order: Any,
    num_src: int,
    num_dst: int,
    names: tuple[str, str] | None,
) -> Graph:
    """Of edges by destination, in numpy; ``names`` of the sizes, where all is to be checked."""
    count, places, given = len(src), np.arange(len(src)), src
    if names is None:
        t_order = None  # it would have to be looked at
    else:
        arguments.check_range("src", src, names[0], num_src)
        arguments.check_range("dst", dst, names[1], num_dst)
        down = np.flatnonzero(np.diff(dst) < 0)
        if down.size:
            i = down[0]
            raise ValueError(
                f"dst must ascend, got dst[{i}] = {dst[i]} before dst[{i + 1}] = {dst[i + 1]}; "
                "Graph.from_edges sorts"
            )
        if t_order is not None:
            arguments.check_range("t_order", t_order, "num_edges", count)
            by_src, then = np.diff(src[t_order]), np.diff(dst[t_order])
            ascends = (by_src > 0) | (by_src == 0) & (then >= 0)
            if not ascends.all() or (np.bincount(t_order, minlength=count) != 1).any():
                raise ValueError("t_order must have each edge once, by source, then destination")
    keep = in_range(src, num_src) & in_range(dst, num_dst)
    if not keep.all():
        places, src, dst, t_order = places[keep], src[keep], dst[keep], None
    dtype = index_dtype(num_src, num_dst, count)
    valid, new = len(src), count - len(src)
    rows, cols, edge_ids = (pad_ids(ids.astype(dtype), new) for ids in (dst, src, places))
    if t_order is None:
        transposed = sort_by_source(rows, cols, valid, num_src)
    else:
        t_order = t_order.astype(dtype)
        transposed = (host_row_starts(cols, num_src), cols[t_order], rows[t_order], t_order)
    return Graph(
        *(host_row_starts(rows[:valid], num_dst), rows, cols, *transposed, edge_ids),
        num_input_edges=id_count(given, dtype),
    )


def _sorted_traced(
    src: Array,
    dst: Array,
    t_order: Array | None,
    num_src: int,
    num_dst: int,
    names: tuple[str, str] | None,
) -> Graph:
    del names  # values are unknown
    dtype = index_dtype(num_src, num_dst, src.shape[0])
    keep = in_range(src, num_src) & in_range(dst, num_dst)
    target, places = compaction_targets(keep), jnp.arange(src.shape[0], dtype=dtype)
    rows, cols, edge_ids = (scatter_ids(ids.astype(dtype), target) for ids in (dst, src, places))
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


def given_first(edge_ids: np.ndarray) -> np.ndarray:
    """An order in which the edges of the input come as they did there, then those added."""
    return np.argsort(edge_ids.view(f"u{edge_ids.itemsize}"), kind="stable")  # -1 is the largest


def check_one_dtype(name: str, dtypes: dict[str, Any]) -> None:
    """Refuses arrays, by name, of several dtypes."""
    if len(set(dtypes.values())) > 1:
        given = ", ".join(f"{part}: {dtype}" for part, dtype in dtypes.items())
        raise TypeError(f"the arrays of {name} must have one dtype, got {given}")


def check_index(name: str, array: Any, is_pointer: bool = False) -> Any:
    """Refuses what is no vector of int32 or int64; gives the dtype."""
    if not isinstance(array, jax.Array | np.ndarray) or array.dtype not in (np.int32, np.int64):
        kind = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} must be an int32 or int64 array, got {kind}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if is_pointer and array.shape[0] == 0:
        raise ValueError(f"{name} must have at least one element, got shape {array.shape}")
    return array.dtype


def _ascend(rows: Any, cols: Any) -> bool:
    """Whether columns ascend within each row."""
    return bool(((cols[1:] >= cols[:-1]) | (rows[1:] != rows[:-1])).all())


def _check_split(name: str, split: Any, indptr: Array, cols: Array) -> None:
    if split is None:
        return
    size = num_slots(indptr.shape[0] - 1, cols.shape[0])
    want = {"ids": (size, SLOT_SIZE), "places": (size, 2)}
    for part, shape in want.items():
        array = getattr(split, part, None)
        given = getattr(array, "shape", None), getattr(array, "dtype", type(array).__name__)
        if given != (shape, indptr.dtype):
            raise ValueError(
                f"{name}.{part} must be {shape} {indptr.dtype}, got {given[0]} {given[1]}: it "
                "belongs to other arrays; set split and t_split to None, and call "
                "with_edge_split() on the graph"
            )


# Exported functions that take graphs can be serialized.
jax.export.register_pytree_node_serialization(
    Graph,
    serialized_name="jax_gnn.Graph",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: (),  # older versions wrote bounds on degrees
)
jax.export.register_namedtuple_serialization(EdgeSplit, serialized_name="jax_gnn.EdgeSplit")
