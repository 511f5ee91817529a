"""Calls ops with garbage in every index array at once, and watches what becomes of it.

``python tests/fuzz/indices.py --calls N --seed S [--implementation cpu|cuda] [--seconds T]``

Whatever index arrays hold, kernels must not read or write outside their buffers, nor run for ever:
calls run in a process of their own, which must neither crash nor stand still. Build with
``JAX_GNN_SANITIZE`` (``.ci/sanitize``) to have each access checked; ``cuda`` without a GPU runs the
emulated kernels, see ``tests/emulation.py``. Every call takes values, tangents and gradients
together. Where rows are sorted as promised, and other ids are merely out of range, results must be
those of plain XLA. A kernel of the CPU gives the same bits again, whatever it was given.

A failure names the call: ``--only CALL`` with the same seed repeats it alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # programs are many; kernels stay
import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import emulation
from op_spec import setting
from segment_cases import REDUCTIONS

import jax_gnn
from jax_gnn import schedules
from jax_gnn._core import csr
from jax_gnn._core.arrays import take
from jax_gnn._core.csr import Csr, SparseMatrix, segments
from jax_gnn._core.relations import Pairs
from jax_gnn._ops.relation_pairs.triples import IntoPairs, OutOfPairs
from jax_gnn._ops.segment_matmul import primitive as products
from jax_gnn._ops.segment_reduce import primitive, select, unsorted
from jax_gnn._ops.segment_softmax import primitive as softmax

DTYPES = ("float32", "float64", "float16", "bfloat16")
TOLERANCE = {"float64": 1e-11, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
PER_PROCESS = 10_000  # calls, with one selection of compiled programs
STANDSTILL = 300  # seconds
INT32 = np.iinfo(np.int32)

# --- Contents of index arrays --------------------------------------------------------------------


class Draw:
    """Random contents. ``is_consistent``: promises are kept, though ids may be padding."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.is_consistent = bool(rng.random() < 0.3)

    def edges_of(self, size: int) -> np.ndarray:
        """Ids where mistakes would be."""
        near = [-1, -2, 0, size - 1, size, size + 1, 2 * size]
        return np.array([*near, INT32.min, INT32.min + 1, INT32.max, INT32.max - 1, 2**30])

    def anything(self, count: int, size: int) -> np.ndarray:
        """Any mixture of ids, in any order."""
        rng = self.rng
        inside = rng.integers(0, max(size, 1), count)
        edges = rng.choice(self.edges_of(size), count)
        kind = rng.integers(8)
        if kind == 0:
            ids = inside
        elif kind == 1:
            ids = rng.integers(INT32.min, INT32.max, count, endpoint=True)
        elif kind == 2:
            ids = np.full(count, rng.choice(self.edges_of(size)))
        elif kind == 3:  # runs
            lengths = rng.geometric(rng.choice([0.5, 0.1, 0.005]), count)
            ids = np.repeat(np.where(rng.random(count) < 0.5, edges, inside), lengths)[:count]
        else:
            ids = np.where(rng.random(count) < rng.choice([0.02, 0.2, 0.7]), edges, inside)
        if kind in (4, 5):
            ids = np.sort(ids)
        elif kind == 6:
            ids = np.sort(ids)[::-1]
        elif kind == 7 and count:  # sorted, but for a few
            ids = np.sort(ids)
            where = rng.integers(0, count, rng.integers(1, 5))
            ids[where] = rng.choice(self.edges_of(size), len(where))
        return ids.astype(np.int32)

    def rows(self, count: int, size: int) -> np.ndarray:
        """Ids that ought to be sorted, with padding at the ends."""
        if not self.is_consistent:
            return self.anything(count, size)
        rng = self.rng
        ids = np.sort(rng.integers(0, max(size, 1), count) // rng.choice([1, 1, 3]))
        if size == 0:
            ids[:] = -1
        low, high = np.sort(rng.integers(0, count + 1, 2)) if rng.random() < 0.5 else (0, count)
        ids[:low] = rng.choice([-1, INT32.min])
        ids[high:] = rng.choice([-1, size, INT32.max])
        return ids.astype(np.int32)

    def indptr(self, size: int, count: int) -> np.ndarray:
        """Return row pointers, sorted if promises are kept."""
        if not self.is_consistent and self.rng.random() < 0.7:
            return self.anything(size + 1, count)
        starts = np.sort(self.rng.integers(0, count + 1, size + 1)).astype(np.int32)
        if self.is_consistent:
            starts[0], starts[-1] = (0, count) if size else (0, 0)
        return starts

    def split(self, indptr: np.ndarray, cols: np.ndarray, num_cols: int) -> csr.EdgeSplit:
        """The slots of these rows, or of any."""
        rng, num_rows = self.rng, len(indptr) - 1
        ids, places = csr.edge_split(indptr, cols)
        if self.is_consistent:
            return csr.EdgeSplit(ids, places)
        if rng.random() < 0.5:
            ids = self.anything(ids.size, num_cols).reshape(ids.shape)
        kind = rng.integers(4)
        if kind == 0:
            places = self.anything(places.size, num_rows).reshape(places.shape)
        elif kind == 1:  # places within rows that are too large, or too small, or not the last
            some = rng.random(len(places)) < rng.choice([0.05, 0.5])
            places[some, 1] = rng.choice([0, 1, 2, 3, 200, 2**30, INT32.max, INT32.min], some.sum())
        elif kind == 2:
            some = rng.random(len(places)) < rng.choice([0.05, 0.5])
            places[some, 0] = self.anything(some.sum(), num_rows)
        return csr.EdgeSplit(ids, places)

    def graph(self, num_src: int, num_dst: int, count: int, split: bool) -> jax_gnn.Graph:
        """Built from ids of which many are padding, or filled with anything."""
        if self.is_consistent:
            src, dst = self.anything(count, num_src), self.anything(count, num_dst)
            graph = jax_gnn.Graph.from_edges(
                src, dst, num_src=num_src, num_dst=num_dst, validate=False
            )
            return graph.with_edge_split() if split else graph
        indptr, t_indptr = self.indptr(num_dst, count), self.indptr(num_src, count)
        cols, t_cols = self.anything(count, num_src), self.anything(count, num_dst)
        return jax_gnn.Graph(
            indptr,
            self.anything(count, num_dst),
            cols,
            t_indptr,
            self.anything(count, num_src),
            t_cols,
            self.anything(count, count),
            self.anything(count, count),
            split=self.split(indptr, cols, num_src) if split else None,
            t_split=self.split(t_indptr, t_cols, num_dst) if split else None,
        )

    def operand(self, description: str, size: Size, dtype: str) -> np.ndarray:
        """Return the array that a description of `enter` asks for."""
        kind, *axes = description.split()
        sizes = [(axis, getattr(size, axis.rstrip("?"))) for axis in axes]
        shape = [count for axis, count in sizes if count != 1 or not axis.endswith("?")]
        if kind == "factors":  # which have the dtype of sums
            dtype = "float64" if dtype == "float64" else "float32"
        if kind == "integers":
            dtype = "int64" if dtype == "float64" else "int32"
        choices = {"signs": [-1.0, 1.0], "weights": [-1.0, 0.5, 1.0, 2.0]}
        choices["factors"] = choices["weights"]
        # Sums of these are exact in any order.
        return self.rng.choice(choices.get(kind, range(-2, 3)), shape).astype(jnp.dtype(dtype))


# --- Sizes ---------------------------------------------------------------------------------------


class Size(NamedTuple):
    rows: int
    cols: int
    entries: int
    heads: int
    depth: int  # features of a head

    @property
    def width(self) -> int:
        return self.heads * self.depth

    # Sizes of products, which are bounded as these take long, and constants.
    groups = property(lambda self: min(self.cols, 50))
    k = property(lambda self: min(self.width, 40))
    n = property(lambda self: min(self.depth, 50))
    relations = property(lambda self: 3)
    one = property(lambda self: 1)
    four = property(lambda self: 4)


SMALL = (
    Size(3, 5, 17, 1, 1),
    Size(6, 2, 40, 2, 4),
    Size(900, 3, 5, 1, 1),
    Size(31, 40, 300, 1, 7),
    Size(64, 20, 500, 4, 8),
    Size(300, 200, 900, 1, 16),
    Size(5, 9, 700, 1, 33),
    Size(1, 1, 64, 3, 5),
    Size(0, 4, 9, 1, 3),
    Size(4, 0, 9, 1, 3),
    Size(12, 7, 0, 1, 4),
)
LARGE = (  # of several tasks
    Size(600, 400, 6000, 1, 30),
    Size(3000, 50, 5000, 2, 16),
    Size(40, 2500, 8000, 1, 8),
    Size(7, 9, 60, 1, 4100),  # columns are dealt out, too
    Size(2000, 2000, 20000, 1, 4),
)
Program = Callable[..., Any]
Maker = Callable[["Size", str], tuple[Callable[..., Any], Callable[["Draw"], tuple[Any, ...]]]]
# From (size, dtype): a function of (indices, *operands), and one that gives both from a Draw.
OPS: dict[str, Maker] = {}
Indices = Callable[[Draw, Size], Any]


def enter(name: str, function: Callable[..., Any], indices: Indices, *operands: str) -> None:
    """Enter an op.

    Args:
        name: name of the op and its variant.
        function: function of (size, indices, *operands).
        indices: function that draws the indices.
        operands: for each operand its contents and the names of its axes, as in "numbers cols
            width". Axes with a question mark are left out where their size is 1.
    """

    def maker(size: Size, dtype: str) -> Any:
        return functools.partial(function, size), lambda draw: (
            indices(draw, size),
            *(draw.operand(operand, size, dtype) for operand in operands),
        )

    OPS[name] = maker


# --- Indices -------------------------------------------------------------------------------------


def bipartite(draw: Draw, size: Size) -> jax_gnn.Graph:
    return draw.graph(size.cols, size.rows, size.entries, False)


def square(draw: Draw, size: Size) -> jax_gnn.Graph:
    return draw.graph(size.rows, size.rows, size.entries, False)


def sorted_ids(draw: Draw, size: Size) -> np.ndarray:
    return draw.rows(size.entries, size.rows)


def any_ids(draw: Draw, size: Size) -> np.ndarray:
    return draw.anything(size.entries, size.rows)


def row_pointers(draw: Draw, size: Size) -> np.ndarray:
    return draw.indptr(size.rows, size.entries)


def matrix(draw: Draw, size: Size) -> Any:
    """Return both halves of a matrix: consistent, with padding other than -1, or garbage.

    Halves of garbage have nothing to do with each other.
    """
    count = size.entries
    if not draw.is_consistent:
        forward = draw.anything(count, size.rows), draw.anything(count, size.cols), None
        backward = (draw.anything(count, n) for n in (size.cols, size.rows, count))
    else:
        dst, src = (draw.anything(count, n) for n in (size.rows, size.cols))
        with jax_gnn.host_arrays():
            graph = jax_gnn.Graph.from_edges(
                src, dst, num_src=size.cols, num_dst=size.rows, validate=False
            )
        by_row, by_col = graph.matrix(weighted=True)
        padding = by_row.rows < 0  # the last, in either order
        cols = draw.anything(count, size.cols)
        forward = (
            np.where(padding, draw.rng.choice([-1, size.rows, INT32.max]), by_row.rows),
            np.where(padding, cols, by_row.cols),
            None,
        )
        backward = (
            np.where(padding, draw.rng.choice([-1, size.cols, INT32.max]), by_col.rows),
            np.where(padding, cols, by_col.cols),
            np.where(padding, draw.rng.choice([-1, count, INT32.min]), by_col.order),
        )

    def half(num_rows: int, *ids) -> Csr:
        narrow = (None if array is None else array.astype(np.int32) for array in ids)
        return Csr(*narrow, num_rows=num_rows)

    return SparseMatrix(half(size.rows, *forward), half(size.cols, *backward))


def hypergraph(draw: Draw, size: Size, directed: bool = False) -> jax_gnn.Hypergraph:
    counts = [size.entries, size.entries // 2 + 1] if directed else [size.entries]
    return jax_gnn.Hypergraph(*(draw.graph(size.rows, size.cols, n, True) for n in counts))


def sizes_of(draw: Draw, groups: int, rows: int) -> np.ndarray:
    if not draw.is_consistent:
        return draw.anything(groups, rows)
    starts = np.sort(draw.rng.integers(0, rows + 1, groups + 1))
    return np.diff(starts).astype(np.int32)


def groups(draw: Draw, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Return sizes of groups and the number of groups before the first."""
    offset = 0 if draw.is_consistent else draw.rng.choice(draw.edges_of(size.groups))
    return sizes_of(draw, size.groups, size.entries), np.int32(offset)


def groups_of_listed_rows(draw: Draw, size: Size) -> tuple[np.ndarray, ...]:
    """Return groups, rows that are read and rows that are written, each at most once."""
    out_rows = draw.anything(size.entries, size.entries)
    if draw.is_consistent:
        out_rows = draw.rng.permutation(size.entries).astype(np.int32)
        out_rows[draw.rng.random(size.entries) < 0.2] = draw.rng.choice([-1, size.entries])
    lists = draw.anything(size.entries, size.rows), out_rows
    return *groups(draw, size), *lists


def groups_of_listed_pairs(draw: Draw, size: Size) -> tuple[np.ndarray, ...]:
    lists = draw.anything(size.entries, size.rows), draw.anything(size.entries, size.cols)
    return *groups(draw, size), *lists


def relational(draw: Draw, size: Size, parts: tuple[Any, ...]) -> jax_gnn.RelationalGraph:
    """Return a graph built from ids with padding, or of garbage; one pair for each edge."""
    num_src, num_dst, count, relations = size.cols, size.rows, size.entries, size.relations
    nodes_by_part = {"from_pairs": ("src", num_src), "to_pairs": ("dst", num_dst)}
    of_pairs = [part for part in nodes_by_part if part in parts]
    if draw.is_consistent:
        graph = jax_gnn.RelationalGraph.from_triples(
            *(draw.anything(count, n) for n in (num_src, relations, num_dst)),
            num_relations=relations,
            num_src=num_src,
            num_dst=num_dst,
            parts=tuple(of_pairs),
            validate=False,
        )
        return graph.pad(**{f"num_{nodes_by_part[part][0]}_pairs": count for part in of_pairs})
    built: dict[str, Any] = {}
    for part in of_pairs:
        side, num_nodes = nodes_by_part[part]
        sizes = (count, num_dst) if side == "src" else (num_src, count)
        edges = draw.graph(*sizes, count, False)
        kind = OutOfPairs if side == "src" else IntoPairs
        held = [f.name for f in dataclasses.fields(kind) if not f.metadata]
        name = "out_of_pairs" if side == "src" else "into_pairs"
        built[name] = kind(*(getattr(edges, field) for field in held))
        built[f"pair_{side}"] = Pairs(
            draw.anything(count, num_nodes),
            sizes_of(draw, relations, count),
            *(draw.anything(count, n) for n in (num_nodes, count, count)),
            num_nodes=num_nodes,
            by_node=side == "dst",
        )
    return jax_gnn.RelationalGraph(
        draw.graph(num_src, num_dst, count, False),
        draw.anything(count, relations),
        num_relations=relations,
        **built,
    )


# --- Ops of graphs and segments ------------------------------------------------------------------


def spmm(size: Size, graph, x, weight=None, *, reduce: str) -> Any:
    return jax_gnn.spmm(graph, x, weight, reduce=reduce)


def finished_spmm(size: Size, graph, x, *epilogue, reduce: str) -> Any:
    names = "self_scale", "out_scale", "result_scale", "residual", "bias"
    options = dict(zip(names, epilogue, strict=True))
    return jax_gnn.spmm(graph, x, reduce=reduce, activation="relu", **options)


def index_segment_reduce(size: Size, ids, x, weight, *, reduce: str) -> Any:
    return jax_gnn.index_segment_reduce(x, *ids, size.rows, weight, reduce)


for _reduce in ("sum", "mean", "max", "min"):
    _spmm = functools.partial(spmm, reduce=_reduce)
    _weighted = "numbers cols heads? depth", "weights entries heads?"
    enter(f"spmm {_reduce}", _spmm, bipartite, *_weighted)
    enter(f"plain spmm {_reduce}", _spmm, bipartite, "numbers cols width")
for _reduce in ("sum", "mean"):
    enter(
        f"finished spmm {_reduce}",
        functools.partial(finished_spmm, reduce=_reduce),
        square,
        "numbers rows width",
        *["weights rows"] * 3,
        "numbers rows width",
        "numbers width",
    )
for _reduce in ("sum", "max"):
    enter(
        f"index_segment_reduce {_reduce}",
        functools.partial(index_segment_reduce, reduce=_reduce),
        lambda draw, size: (draw.anything(size.entries, size.cols), sorted_ids(draw, size)),
        "numbers cols width",
        "weights entries",
    )
for _op in ("dot", "add"):
    enter(
        f"sddmm {_op}",
        lambda _, graph, a, b, op=_op: jax_gnn.sddmm(graph, a, b, op=op),
        bipartite,
        "numbers rows heads depth",
        "numbers cols heads depth",
    )


def attention(size: Size, graph, row_key, col_key, vector, scale, *, kind: str) -> jax.Array:
    if kind == "additive":
        operands = row_key[..., 0], col_key[..., 0], col_key
    else:
        operands = row_key, col_key, vector[0] if kind == "gatv2" else col_key
    return getattr(jax_gnn, f"{kind}_attention")(graph, *operands, edge_scale=scale)


for _kind in ("additive", "gatv2", "dot"):
    enter(
        f"attention {_kind}",
        functools.partial(attention, kind=_kind),
        bipartite,
        "numbers rows heads depth",
        "numbers cols heads depth",
        "numbers one heads depth",
        "weights entries heads",
    )


def segment(size: Size, ids, data, *, name: str, **options) -> Any:
    function = getattr(jax_gnn, f"segment_{name}")
    return function(data, ids, size.rows, **options)


def indptr_segment(size: Size, indptr, data, *, name: str) -> Any:
    return getattr(jax_gnn, f"segment_{name}")(data, indptr=indptr)


SORTED = {"indices_are_sorted": True}
for _name in (name for name in REDUCTIONS if name not in ("argmax", "std")):
    _data = f"{'signs' if _name == 'prod' else 'numbers'} entries width"
    enter(f"segment {_name}", functools.partial(segment, name=_name, **SORTED), sorted_ids, _data)
    enter(f"unsorted segment {_name}", functools.partial(segment, name=_name), any_ids, _data)
    _by_pointers = functools.partial(indptr_segment, name=_name)
    enter(f"indptr segment {_name}", _by_pointers, row_pointers, _data)
for _name in ("sum", "max", "min", "prod"):
    _segment = functools.partial(segment, name=_name, **SORTED)
    enter(f"integers {_name}", _segment, sorted_ids, "integers entries width")
_argmax = functools.partial(segment, name="argmax", **SORTED)
enter("segment_argmax", _argmax, sorted_ids, "numbers entries width")


def scatter(size: Size, ids, data) -> Any:
    """Call a kernel of large results, without derivatives."""
    wide = data.astype(jnp.promote_types(data.dtype, jnp.float32))
    return unsorted.segment_scatter(
        jax.lax.stop_gradient(wide), ids, num_rows=size.rows, reduce="sum"
    )


def gather(size: Size, ids, x) -> Any:
    return unsorted.gather_rows(jax.lax.stop_gradient(x), ids)


enter("scatter in any order", scatter, any_ids, "numbers entries width")
enter("gather in any order", gather, any_ids, "numbers rows width")


def segment_index(size: Size, ids, nodes, edges) -> Any:
    rows, order, inverse = ids
    index = jax_gnn.SegmentIndex(inverse, rows, order, num_segments=size.rows)
    return index.gather(nodes), index.segment_sum(edges)


def ids_of_index(draw: Draw, size: Size) -> Any:
    order = draw.anything(size.entries, size.entries)
    return sorted_ids(draw, size), order, any_ids(draw, size)


enter("SegmentIndex", segment_index, ids_of_index, "numbers rows width", "numbers entries width")


# --- Primitives ----------------------------------------------------------------------------------


def segment_reduce(size: Size, ids, x, weight) -> Any:
    return [
        primitive.segment_reduce(x, weight, ids, reduce=reduce, heads=size.heads)
        for reduce in ("sum", "mean", "max")
    ]


def segment_select(size: Size, ids, *operands, weighted: bool) -> Any:
    row_key, col_key, value, weight, factor = operands
    operands = row_key, col_key, value, weight if weighted else None, factor
    return [
        select.segment_select(*operands, ids, weight_on_row=on_row, heads=size.heads)
        for on_row in (False, True)
    ]


def sddmm_select(size: Size, ids, *operands) -> Any:
    return select.sddmm_select(*operands, ids, weight_on_row=False, heads=size.heads)


def segment_reduce_vjp(size: Size, ids, x, weight, ct) -> Any:
    return primitive.segment_reduce_vjp(x, weight, ct, ids)


def softmax_tangent(size: Size, ids, y, t) -> Any:
    return softmax.segment_softmax_tangent(y, t, ids)


ROWS, COLS, OF_ENTRIES = "numbers rows width", "numbers cols width", "factors entries heads"
enter("primitive segment_reduce", segment_reduce, matrix, COLS, OF_ENTRIES)
for _weighted in (True, False):
    enter(
        f"primitive segment_select {'weighted' if _weighted else 'plain'}",
        functools.partial(segment_select, weighted=_weighted),
        matrix,
        ROWS,
        COLS,
        COLS,
        OF_ENTRIES,
        OF_ENTRIES,
    )
enter("primitive sddmm_select", sddmm_select, matrix, ROWS, COLS, ROWS, COLS, OF_ENTRIES)
enter("primitive segment_reduce_vjp", segment_reduce_vjp, matrix, COLS, OF_ENTRIES, ROWS)
enter(
    "primitive segment_softmax_tangent",
    softmax_tangent,
    lambda draw, size: segments(sorted_ids(draw, size), size.rows),
    *["numbers entries width"] * 2,
)


# --- Hypergraphs ---------------------------------------------------------------------------------


def hypergraph_aggregate(size: Size, ids, x, weight, scale_in, scale_out, *, epilogue) -> Any:
    options = {"self_scale": 0.5, "residual": x, "activation": "relu"} if epilogue else {}
    scales = {"node_scale_in": scale_in, "node_scale_out": scale_out}
    return jax_gnn.hypergraph_aggregate(ids, x, weight, **scales, **options)


def normalized_aggregate(size: Size, ids, x) -> Any:
    return jax_gnn.hypergraph_aggregate(ids, x, normalization="symmetric")


def hypergraph_stages(size: Size, ids, x, weight) -> Any:
    h = jax_gnn.node_to_hyperedge(ids, x, weight, reduce="max")
    h = jnp.where(jnp.isfinite(h), h, 0)
    y = jax_gnn.hyperedge_to_node(ids, h, weight, reduce="mean")
    return h, y, jax_gnn.incidence_softmax(ids, weight, "node")


for _directed in (False, True):
    enter(
        f"hypergraph_aggregate {'directed' if _directed else 'undirected'}",
        functools.partial(hypergraph_aggregate, epilogue=_directed),
        functools.partial(hypergraph, directed=_directed),
        ROWS,
        "weights cols",
        "weights rows",
        "weights rows",
    )
enter("normalized hypergraph_aggregate", normalized_aggregate, hypergraph, ROWS)
enter("hypergraph stages", hypergraph_stages, hypergraph, ROWS, "weights entries")


# --- Groups of rows ------------------------------------------------------------------------------

EXACT = {"precision": "highest"}


def segment_matmul(size: Size, ids, lhs, rhs, bias, *, activation) -> Any:
    sizes, offset = ids
    options = {"bias": bias, "group_offset": offset, "activation": activation}
    return jax_gnn.segment_matmul(lhs, rhs, sizes, **options, **EXACT)


def segment_outer(size: Size, ids, lhs, rhs) -> Any:
    sizes, offset = ids
    options = {"num_groups": size.groups, "group_offset": offset}
    return jax_gnn.segment_outer(lhs, rhs, sizes, **options, **EXACT)


def listed_matmul(size: Size, ids, lhs, rhs, bias, scale) -> Any:
    sizes, offset, lhs_rows, out_rows = ids
    options = {"lhs_rows": lhs_rows, "out_rows": out_rows, "scale": scale, "bias": bias}
    return jax_gnn.segment_matmul(lhs, rhs, sizes, group_offset=offset, **options, **EXACT)


def listed_outer(size: Size, ids, lhs, rhs, scale) -> Any:
    sizes, offset, lhs_rows, rhs_rows = ids
    options = {"lhs_rows": lhs_rows, "rhs_rows": rhs_rows, "scale": scale}
    options |= {"num_groups": size.groups, "group_offset": offset}
    return jax_gnn.segment_outer(lhs, rhs, sizes, **options, **EXACT)


RHS, BIAS = "numbers groups k n", "numbers groups n"
for _activation in ("none", "gelu"):
    enter(
        f"segment_matmul {_activation}",
        functools.partial(segment_matmul, activation={"none": None}.get(_activation, _activation)),
        groups,
        "numbers entries k",
        RHS,
        BIAS,
    )
enter("segment_outer", segment_outer, groups, "numbers entries k", "numbers entries n")
enter(
    "segment_matmul of listed rows",
    listed_matmul,
    groups_of_listed_rows,
    "numbers rows k",
    RHS,
    BIAS,
    "factors entries",
)
enter(
    "segment_outer of listed rows",
    listed_outer,
    groups_of_listed_pairs,
    "numbers rows k",
    "numbers cols n",
    "factors entries",
)


def primitive_matmul(size: Size, ids, lhs, rhs) -> Any:
    sizes, gather, scatter = ids
    return products.segment_matmul(
        *(lhs, rhs, None, None, None, sizes, jnp.zeros((1,), jnp.int32), gather, scatter),
        transposed=False,
        precision=jax.lax.Precision.HIGHEST,
        activation=None,
        dtype=lhs.dtype,
    )


def lists_of_both_directions(draw: Draw, size: Size) -> Any:
    """Return lists whose halves have nothing to do with each other, unless they are consistent."""
    count = size.entries
    rows, by_col = any_ids(draw, size), any_ids(draw, size)
    order, places, inverse = (draw.anything(count, count) for _ in range(3))
    if draw.is_consistent:
        order = np.argsort(rows, kind="stable").astype(np.int32)
        places = draw.rng.permutation(count).astype(np.int32)
        by_col, inverse = rows[order], np.argsort(places).astype(np.int32)
    gather = SparseMatrix(Csr(None, rows, num_rows=count), Csr(by_col, order, num_rows=size.rows))
    return sizes_of(draw, size.groups, count), gather, csr.permutation(places, inverse)


enter("primitive segment_matmul", primitive_matmul, lists_of_both_directions, "numbers rows k", RHS)


def product_by_type(size: Size, plan, x, rhs) -> Any:
    product = jax_gnn.segment_matmul(plan.sort(x), rhs, plan.group_sizes, **EXACT)
    return plan.unsort(product)


def type_plan(draw: Draw, size: Size) -> jax_gnn.TypePlan:
    count = size.entries
    order, inverse = draw.anything(count, count), draw.anything(count, count)
    if draw.is_consistent:
        order = draw.rng.permutation(count).astype(np.int32)
        inverse = np.argsort(order).astype(np.int32)
    return jax_gnn.TypePlan(sizes_of(draw, size.groups, count), order, inverse)


enter("TypePlan", product_by_type, type_plan, "numbers entries k", "numbers groups k four")


# --- Relations -----------------------------------------------------------------------------------


def relational_aggregate(size: Size, graph, x, rhs, weight, *, method: str) -> Any:
    return jax_gnn.relational_aggregate(graph, x, rhs, weight, method=method, **EXACT)


def relational_lookup(size: Size, graph, table, weight) -> Any:
    return jax_gnn.relational_lookup(graph, table, weight)


PAIRS = ("from_pairs", "to_pairs")
for _way, (_method, _parts) in {
    "by_sorting": ("edges", ()),
    "by_edges": ("edges", PAIRS),
    "by_source_pairs": ("source_pairs", PAIRS),
    "by_destination_pairs": ("destination_pairs", PAIRS),
}.items():
    _graph = functools.partial(relational, parts=_parts)
    enter(
        f"relational_aggregate {_way}",
        functools.partial(relational_aggregate, method=_method),
        _graph,
        "numbers cols k",
        "numbers relations k n",
        "factors entries",
    )
    if _way in ("by_sorting", "by_source_pairs"):
        _table = "numbers relations cols k"
        enter(f"relational_lookup {_way}", relational_lookup, _graph, _table, "factors entries")


# --- Containers, built inside a computation ------------------------------------------------------


def from_edges(size: Size, pairs, x) -> Any:
    graph = jax_gnn.Graph.from_edges(*pairs, num_src=size.cols, num_dst=size.rows)
    return jax_gnn.spmm(graph, x)


def from_triples(size: Size, triples, x) -> Any:
    graph = jax_gnn.RelationalGraph.from_triples(
        *triples, num_src=size.cols, num_dst=size.rows, num_relations=size.relations
    )
    assert graph.pair_src is not None and graph.from_pairs is not None
    rows = take(x, graph.pair_src.nodes)
    return jax_gnn.spmm(graph.from_pairs, rows), jax_gnn.spmm(graph.to_pairs, x)


def ids_below(*names: str) -> Indices:
    return lambda draw, size: tuple(
        draw.anything(size.entries, getattr(size, name)) for name in names
    )


enter("Graph.from_edges", from_edges, ids_below("cols", "rows"), COLS)
enter("RelationalGraph.from_triples", from_triples, ids_below("cols", "relations", "rows"), COLS)


def garbage_without_parts(draw: Draw, size: Size) -> jax_gnn.RelationalGraph:
    """Return a container of garbage: refused on the host, or sorted as it is."""
    nodes = [draw.indptr(size.rows, size.entries)]
    nodes += [draw.anything(size.entries, n) for n in (size.rows, size.cols)]
    nodes += [draw.indptr(size.cols, size.entries)]
    sizes = (size.cols, size.rows, size.entries, size.entries)
    nodes += [draw.anything(size.entries, n) for n in sizes]
    types = draw.anything(size.entries, size.relations)
    graph = jax_gnn.RelationalGraph(jax_gnn.Graph(*nodes), types, num_relations=size.relations)
    with contextlib.suppress(ValueError):
        graph.with_parts()
    return graph


def with_parts(size: Size, graph) -> Any:
    return jax.tree.leaves(graph.with_parts())


enter("RelationalGraph.with_parts", with_parts, garbage_without_parts)


def slots_of_host(draw: Draw, size: Size) -> tuple[np.ndarray, ...]:
    arrays = draw.indptr(size.rows, size.entries), draw.anything(size.entries, size.cols)
    return *arrays, *csr.edge_split(*arrays)


def edge_split(size: Size, arrays) -> Any:
    """Return whether rows are cut into slots inside `jit` as on the host."""
    indptr, cols, ids, places = arrays
    split = csr.edge_split(indptr, cols)
    return (split.ids == ids).all() & (split.places == places).all()


enter("edge_split", edge_split, slots_of_host)


# --- Programs ------------------------------------------------------------------------------------


def is_float(x) -> bool:
    return isinstance(x, np.ndarray | jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)


def with_derivatives(function: Program) -> Program:
    """Value, tangent and gradients, of what has them."""

    def run(ids, *operands) -> Any:
        if not operands or not all(map(is_float, jax.tree.leaves(operands))):
            return function(ids, *operands)
        value, pull = jax.vjp(functools.partial(function, ids), *operands)
        leaves, tree = jax.tree.flatten(value)
        if not leaves or not all(map(is_float, leaves)):
            return value
        _, tangent = jax.jvp(functools.partial(function, ids), operands, operands)
        cts = [(jnp.arange(y.size).reshape(y.shape) % 5 - 2).astype(y.dtype) for y in leaves]
        return value, tangent, pull(tree.unflatten(cts))

    return run


@dataclasses.dataclass
class Compiled:
    """An op at one size and dtype, compiled where it is first called."""

    name: str
    size: Size
    dtype: str
    implementation: str
    schedule: Any
    compares: bool  # with plain XLA, which is another program to compile

    def __post_init__(self) -> None:
        function, self.arguments = OPS[self.name](self.size, self.dtype)
        everything = with_derivatives(function)
        self._kernels, self._plain = jax.jit(everything), jax.jit(lambda *args: everything(*args))

    def __str__(self) -> str:
        return f"{self.name}, {self.dtype}, {self.size}, {self.schedule}"

    def run(self, implementation: str, arguments: Sequence[Any]) -> list[np.ndarray]:
        jitted = self._plain if implementation == "xla" else self._kernels
        with setting(implementation, self.dtype), schedules.use(self.schedule):
            return [np.asarray(leaf) for leaf in jax.tree.leaves(jitted(*arguments))]

    def check(self, rng: np.random.Generator, checks: collections.Counter[str]) -> None:
        """One call."""
        draw = Draw(rng)
        with setting(None, self.dtype):
            arguments = self.arguments(draw)
        results = self.run(self.implementation, arguments)
        checks["calls"] += 1
        if self.name == "edge_split":
            assert results[0], "the slots are not those of the native function"
        if rng.random() < 0.25 and (self.implementation == "cpu" or draw.is_consistent):
            disturb_memory()
            again = self.run(self.implementation, arguments)
            disturb_memory()
            for i, (a, b) in enumerate(zip(results, again, strict=True)):
                assert a.tobytes() == b.tobytes(), f"other bits the second time, in result {i}"
            checks["repeated"] += 1
        if self.compares and draw.is_consistent and rng.random() < 0.5:
            for i, (got, want) in enumerate(zip(results, self.run("xla", arguments), strict=True)):
                self._compare(got, want, f"result {i}")
            checks["compared"] += 1

    def _compare(self, got: np.ndarray, want: np.ndarray, what: str) -> None:
        got, want = got.astype(np.float64), want.astype(np.float64)
        scale = np.abs(want[np.isfinite(want)]).max(initial=1.0)
        np.testing.assert_allclose(
            got, want, rtol=0, atol=TOLERANCE[self.dtype] * scale, err_msg=what
        )


_perturb = 0


def disturb_memory() -> None:
    """Changes what fresh memory holds, so that to read it unwritten shows in results."""
    global _perturb
    _perturb ^= 0x5A
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-6, _perturb)  # M_PERTURB


def selection(options: argparse.Namespace, number: int) -> list[Compiled]:
    """The programs of a process."""
    rng = np.random.default_rng([options.seed, number, 1])
    names = list(OPS)
    programs = []
    for name in np.resize(rng.permutation(names), options.programs):
        # A thread at a time, or a scan by plain XLA: takes long.
        slow = emulation.WANTED or "prod" in name
        sizes = LARGE if rng.random() < 0.3 and not slow else SMALL
        lanes, threads = 2 ** rng.integers(6), 32 * 2 ** rng.integers(4)
        kernel: Any = rng.choice(["walk", "gather", "step"])
        if kernel == "step":
            lanes, threads = rng.choice([8, 16, 32]), 256
        schedule = schedules.Schedule(str(kernel), int(lanes), int(threads), 600)
        if "hypergraph" in name:
            rounds = (int(n) for n in rng.choice([1, 1, 2, 5], 2))
            schedule = schedules.HypergraphSchedule(int(threads), *rounds)
        if rng.random() < 0.3 or options.implementation == "cpu":
            schedule = None
        size, dtype = sizes[rng.integers(len(sizes))], DTYPES[rng.integers(len(DTYPES))]
        compares = bool(rng.random() < 0.4)
        programs.append(
            Compiled(str(name), size, dtype, options.implementation, schedule, compares)
        )
    return programs


# --- Processes -----------------------------------------------------------------------------------


def work(options: argparse.Namespace, first: int, stop: int, progress: Callable[[int], Any]) -> str:
    """Make calls ``first`` to ``stop`` - 1 of one process; return the counts of checks."""
    programs = selection(options, first // PER_PROCESS)
    checks: collections.Counter[str] = collections.Counter()
    for number in range(first, stop):
        progress(number)
        if options.until and time.time() > options.until:
            break
        rng = np.random.default_rng([options.seed, number])
        program = programs[rng.integers(len(programs))]
        try:
            program.check(rng, checks)
        except Exception as error:
            raise RuntimeError(f"call {number}: {program}") from error
    return " ".join(f"{name}={count}" for name, count in sorted(checks.items()))


def ranges(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of calls that share a selection of programs."""
    while first < stop:
        boundary = min(stop, (first // PER_PROCESS + 1) * PER_PROCESS)
        yield first, boundary
        first = boundary


def run_apart(options: argparse.Namespace, first: int, stop: int) -> collections.Counter[str]:
    """Run calls in another process, and stop it if it makes no progress."""
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-P", __file__, f"--worker={first}:{stop}:{file.name}"]
        for name in ("seed", "implementation", "programs", "until"):
            command.append(f"--{name}={getattr(options, name)}")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        seen, waited, code = "", 0, None
        while code is None:
            try:
                code = process.wait(1)
            except subprocess.TimeoutExpired:
                at = Path(file.name).read_text()
                if at != seen:
                    seen, waited = at, 0
                elif (waited := waited + 1) > STANDSTILL:  # no clock: this may be stopped
                    process.kill()
                    process.wait()
                    code = "it stands still"
        at = Path(file.name).read_text().strip() or first
        if code != 0:
            raise SystemExit(
                f"call {at} of --seed {options.seed} --implementation {options.implementation} "
                f"--programs {options.programs} failed: {code}; repeat with --only {at}"
            )
        assert process.stdout is not None
        report = dict(part.split("=") for part in process.stdout.read().split())
        return collections.Counter({name: int(count) for name, count in report.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--implementation", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, help="starts no call after so long")
    parser.add_argument("--programs", type=int, default=48, help="that a process compiles")
    parser.add_argument("--only", type=int, metavar="CALL", help="one call, in this process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seconds:
        options.until = time.time() + options.seconds
    if options.only is not None:
        print(work(options, options.only, options.only + 1, lambda number: None))
        return
    if options.worker:
        first, stop, progress = options.worker.split(":")
        handle = os.open(progress, os.O_WRONLY)
        print(work(options, int(first), int(stop), lambda n: os.pwrite(handle, b"%12d" % n, 0)))
        return
    total: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()
    for first, stop in ranges(0, options.calls):
        total += run_apart(options, first, stop)
        if options.until and time.time() > options.until:
            break
    seconds = time.monotonic() - begun
    counts = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    call = f"--seed {options.seed} --implementation {options.implementation}"
    print(f"{call}: {counts}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
