"""Attention over a graph's edges, Y[v] = Σ softmax(score e) value[u], and with all gradients.

Scores are GAT's, LeakyReLU(dst[v] + src[u]), of numbers a head; GATv2's, ⟨a, LeakyReLU(dst[v] +
src[u])⟩, whose values are src; or dot products of dst and src. Projections are made beforehand. A
mode names kind and heads, a case's width is that of a head. ``spmm`` is the yardstick: this
library's product with given weights, of as many heads, with gradients to rows and weights; ``spmm
of both`` has rows twice as wide, as an edge reads two. Published fused kernels need checkouts.

The floor counts rows that are gathered for every edge, once for each array that they are from
(forward: the values, of dot products the keys too; backward, of sums over either end's edges, what
is read of the other), and a sector of 32 bytes for GAT's scores; the rest once. Of graphs that a
cache holds a time can beat it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import published
from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.peers import (
    bounded,
    checkout_family,
    int64,
    jax_candidate,
    jax_gnn_graph,
    skipped,
    torch_candidate,
)
from benchmarks.problems import (
    CHECKED_NUMBERS,
    Expected,
    Repeated,
    Sample,
    features,
    numpy_dtype,
    reduce_sample,
    sample_segments,
    whole_segments,
)
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, plain_graphs

INPUTS = {
    "gat": ("dst", "src", "value"),
    "gatv2": ("dst", "src", "attention"),
    "dot": ("dst", "src", "value"),
}
"""Differentiable arguments of each kind; dst and src are queries and keys of dot products."""

WIDTHS = {1: (64,), 4: (16,), 8: (8, 64)}
"""Widths of a head by the number of heads."""

SLOPE = 0.2

GATHERED = {"gat": (1, 2), "gatv2": (1, 4), "dot": (2, 5)}
"""Rows that an edge reads: forward, and with gradients, which read further ones: the cotangent's,
of dst and of src where scores are of those."""


def workloads(data: Path | None) -> dict[str, Workload]:
    """Four real graphs or their twins, twins of larger ones, and one with a hub."""
    real = "cora", "pubmed", "amazon_photo", "amazon_computers"
    twins = tuple(f"{name}-twin" for name in (*real, "flickr", "ogbn-arxiv", "reddit2"))
    found = plain_graphs(data).values()
    return {w.name: replace(w, on_request=w.name not in (*real, *twins, "hub")) for w in found}


def _parts(case: Case) -> tuple[str, int, bool]:
    """Kind, number of heads, and whether gradients are wanted."""
    kind, heads, direction = case.mode.split(" ")
    return kind, int(heads[1:]), direction == "fwd+bwd"


# The definition in float64, some edges at a time.


def problem(graph: PlainGraph, case: Case) -> Problem:
    """Some rows of the result and of the gradients. Inputs have a node's heads in one row."""
    kind, heads, backward = _parts(case)
    n, row, dtype = graph.num_nodes, heads * case.width, case.dtype
    side = heads if kind == "gat" else row
    inputs: dict[str, Any] = {name: features(name, n, side, dtype) for name in ("dst", "src")}
    if kind == "gatv2":
        vector = features("attention", heads, case.width, dtype).whole()
        inputs["attention"] = (vector / np.sqrt(case.width)).astype(vector.dtype)
    else:
        inputs["value"] = features("value", n, row, dtype)
    if backward:
        inputs["cotangent"] = features("cotangent", n, row, dtype)
    expected = _Attention(graph, kind, heads, inputs).expected()
    inputs |= {"cols": graph.cols, "indptr": graph.indptr}
    gathered = GATHERED[kind][backward] * row * numpy_dtype(dtype).itemsize
    if kind == "gat":
        gathered += 32 * (1 + backward)
    once = sum(array.nbytes for name, array in inputs.items() if name not in ("src", "value"))
    read = gathered * graph.num_edges + once
    return Problem(inputs, tuple(expected), numpy_dtype(dtype), read=read)


class _Attention:
    """Attention of a kind, from its definition."""

    def __init__(self, graph: PlainGraph, kind: str, heads: int, inputs: dict[str, Any]) -> None:
        self.graph, self.kind, self.heads, self.inputs = graph, kind, heads, inputs
        self.value = "src" if kind == "gatv2" else "value"
        self.row = inputs[self.value].shape[1]
        if kind == "gatv2":
            self.vector = inputs["attention"].astype(np.float64)

    def expected(self) -> Iterator[Expected]:
        """The result and, if there is a cotangent, the gradients to `INPUTS`."""
        graph, row = self.graph, self.row
        shapes = {name: self.inputs[name].shape for name in INPUTS[self.kind]}
        into = sample_segments(graph.indptr, 4 * row)
        backward = "cotangent" in self.inputs
        out, outgoing = self.sources() if backward else (into, into.entries)
        nodes = np.union1d(into.segments, graph.rows[outgoing])
        closed = whole_segments(graph.indptr, nodes)
        shares, to_scores = self.edges(closed)

        def of(values: np.ndarray, entries: np.ndarray) -> np.ndarray:
            return values[np.searchsorted(closed.entries, entries)]

        def result(part: np.ndarray) -> np.ndarray:
            edges = into.entries[part]
            return of(shares, edges)[:, :, None] * self.rows(self.value, graph.cols[edges])

        yield Expected(_sums(into, row, result), (graph.num_nodes, row), into.segments)
        if not backward:
            return

        def to_dst(part: np.ndarray) -> np.ndarray:
            edges = into.entries[part]
            return self.to_end("src", edges, of(to_scores, edges))

        def to_src(part: np.ndarray) -> np.ndarray:
            edges = outgoing[part]
            return self.to_end("dst", edges, of(to_scores, edges))

        def to_value(part: np.ndarray) -> np.ndarray:
            edges = outgoing[part]
            return of(shares, edges)[:, :, None] * self.rows("cotangent", graph.rows[edges])

        width = shapes["dst"][1]
        yield Expected(_sums(into, width, to_dst), shapes["dst"], into.segments)
        values, carried = _sums(out, width, to_src), _sums(out, row, to_value)
        if self.kind == "gatv2":
            yield Expected(values + carried, shapes["src"], out.segments)
            yield self.to_vector()
        else:
            yield Expected(values, shapes["src"], out.segments)
            yield Expected(carried, shapes["value"], out.segments)

    def rows(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Some nodes' numbers, (ids, heads, ...)."""
        return self.inputs[name].rows(ids).reshape(len(ids), self.heads, -1)

    def summed(self, entries: np.ndarray) -> np.ndarray:
        """What edges' ends add up to before the LeakyReLU."""
        return self.rows("dst", self.graph.rows[entries]) + self.rows(
            "src", self.graph.cols[entries]
        )

    def scores(self, entries: np.ndarray) -> np.ndarray:
        """Of edges, (entries, heads)."""
        if self.kind == "dot":
            query, key = self.graph.rows[entries], self.graph.cols[entries]
            dots = np.einsum("ehd,ehd->eh", self.rows("dst", query), self.rows("src", key))
            return dots / np.sqrt(self.row // self.heads)
        z = self.summed(entries)
        z = np.where(z > 0, z, SLOPE * z)
        return z[:, :, 0] if self.kind == "gat" else np.einsum("ehd,hd->eh", z, self.vector)

    def dots(self, entries: np.ndarray) -> np.ndarray:
        """Products of the cotangent with values, (entries, heads)."""
        ct = self.rows("cotangent", self.graph.rows[entries])
        return np.einsum("ehd,ehd->eh", ct, self.rows(self.value, self.graph.cols[entries]))

    def edges(self, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
        """Of edges into some nodes the softmax, and the gradient to their scores."""

        def of_edges(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
            parts = _parts_of(len(sample.entries), self.row)
            return np.concatenate([function(sample.entries[part]) for part in parts])

        def of_segment(values: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
            return reduce_sample(sample, values, ufunc)[sample.segment_of_entry]

        score = of_edges(self.scores)
        share = np.exp(score - of_segment(score, np.maximum))
        share /= of_segment(share, np.add)
        if "cotangent" not in self.inputs:
            return share, share
        dots = of_edges(self.dots)
        return share, share * (dots - of_segment(share * dots, np.add))

    def to_end(self, other: str, entries: np.ndarray, to_score: np.ndarray) -> np.ndarray:
        """What edges add to the gradient to one end, of which ``other`` is the opposite."""
        if self.kind == "dot":
            ids = self.graph.cols if other == "src" else self.graph.rows
            scale = 1 / np.sqrt(self.row // self.heads)
            return scale * to_score[:, :, None] * self.rows(other, ids[entries])
        slope = np.where(self.summed(entries) > 0, 1, SLOPE)
        slope = slope if self.kind == "gat" else slope * self.vector
        return to_score[:, :, None] * slope

    def sources(self) -> tuple[Sample, np.ndarray]:
        """Some sources, and their edges; those into all their neighbours can be afforded."""
        graph = self.graph
        opposite, counts = graph.transposed, np.diff(graph.indptr)
        order = np.nonzero(np.diff(opposite.indptr))[0]
        order = np.random.default_rng(0).permutation(order)
        affordable = 2 * CHECKED_NUMBERS // self.row + counts.max()
        number = 0
        sample = whole_segments(opposite.indptr, order[:1])
        while number < len(order):
            number = max(2 * number, 1)
            more = whole_segments(opposite.indptr, np.sort(order[:number]))
            if counts[np.unique(opposite.cols[more.entries])].sum() > affordable:
                break
            sample = more
        return sample, graph.order[sample.entries]

    def to_vector(self) -> Expected:
        """The gradient to the first head's vector, in which all edges are; of large graphs none."""
        width = self.row // self.heads
        shape = self.vector.shape
        if self.graph.num_edges * width > 8 * CHECKED_NUMBERS:
            return Expected(np.zeros((0, width)), shape, np.zeros(0, np.int64))
        first = {
            name: Repeated(self.inputs[name].pool[:, :width], self.graph.num_nodes)
            for name in ("dst", "src", "cotangent")
        }
        head = _Attention(
            self.graph, "gatv2", 1, {**first, "attention": self.inputs["attention"][:1]}
        )
        every = whole_segments(self.graph.indptr, np.nonzero(np.diff(self.graph.indptr))[0])
        _, to_score = head.edges(every)
        total = np.zeros((1, width))
        for part in _parts_of(self.graph.num_edges, width):
            z = head.summed(part)
            total += np.einsum("eh,ehd->hd", to_score[part], np.where(z > 0, z, SLOPE * z))
        return Expected(total, shape, np.zeros(1, np.int64))


def _parts_of(count: int, width: int) -> list[np.ndarray]:
    """Positions, in parts that a cache holds the rows of."""
    return np.array_split(np.arange(count), count * width // 2**18 + 1)


def _sums(sample: Sample, width: int, terms: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Sums of terms in each segment; ``terms`` are those of some entries' positions."""
    segment = sample.segment_of_entry
    sums = np.zeros((len(sample.segments), width))
    for part in _parts_of(len(segment), width):
        starts = np.flatnonzero(np.diff(segment[part], prepend=-1))
        values = terms(part).reshape(len(part), width)
        sums[segment[part[starts]]] += np.add.reduceat(values, starts, axis=0)
    return sums


def yardstick(graph: PlainGraph, case: Case, width: int) -> Problem:
    """The product with given weights and, if wanted, its gradients to rows and weights."""
    _, heads, backward = _parts(case)
    row = heads * width
    weight = features("weight", graph.num_edges, heads, case.dtype)
    x = features("value", graph.num_nodes, row, case.dtype)
    inputs: dict[str, Any] = {"x": x, "weight": weight}

    def product(of: Repeated, cols: np.ndarray, entries: np.ndarray) -> Any:
        def terms(part: np.ndarray) -> np.ndarray:
            rows = of.rows(cols[part]).reshape(len(part), heads, width)
            return weight.rows(entries[part])[:, :, None] * rows

        return terms

    into = sample_segments(graph.indptr, 4 * row)
    cols, entries = graph.cols[into.entries], into.entries
    expected = [Expected(_sums(into, row, product(x, cols, entries)), x.shape, into.segments)]
    if backward:
        ct = features("cotangent", graph.num_nodes, row, case.dtype)
        inputs["cotangent"] = ct
        opposite = graph.transposed
        out = sample_segments(opposite.indptr, 4 * row)
        terms = product(ct, opposite.cols[out.entries], graph.order[out.entries])
        expected.append(Expected(_sums(out, row, terms), x.shape, out.segments))
        some = entries[: CHECKED_NUMBERS // (4 * row) + 1]
        products = x.rows(graph.cols[some]) * ct.rows(graph.rows[some])
        dots = products.reshape(len(some), heads, width).sum(2)
        expected.append(Expected(dots, weight.shape, some))
    return Problem(inputs, tuple(expected), numpy_dtype(case.dtype))


def _row_bytes(graph: PlainGraph, case: Case) -> int:
    """Of an array with a row for each edge."""
    return graph.num_edges * _parts(case)[1] * case.width * numpy_dtype(case.dtype).itemsize


# This library.


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op, what it was made of before, and products that gather as many rows."""
    import jax.numpy as jnp

    import jax_gnn

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    kind, heads, backward = _parts(case)
    n = graph.num_nodes

    def split(x: Any) -> Any:
        return x.reshape(n, heads, -1)

    def fused(dst: Any, src: Any, third: Any, graph: Any) -> Any:
        if kind == "gat":
            y = jax_gnn.additive_attention(graph, dst, src, split(third))
        elif kind == "gatv2":
            y = jax_gnn.gatv2_attention(graph, split(dst), split(src), third)
        else:
            y = jax_gnn.dot_attention(graph, split(dst), split(src), split(third))
        return y.reshape(n, -1)

    def unfused(dst: Any, src: Any, third: Any, graph: Any) -> Any:
        value = split(src if kind == "gatv2" else third)
        if kind == "dot":
            score = jax_gnn.sddmm(graph, split(dst), split(src)) / np.sqrt(case.width)
        else:
            left, right = (split(x).astype(jnp.float32) for x in (dst, src))
            z = _leaky(jax_gnn.sddmm(graph, left, right, op="add"))
            score = z[:, :, 0] if kind == "gat" else (z * third).sum(2)
        weight = jax_gnn.segment_softmax(
            score.astype(jnp.float32), graph.rows, n, indices_are_sorted=True
        )
        return jax_gnn.spmm(graph, value, weight).reshape(n, -1)

    def spmm(x: Any, weight: Any, graph: Any) -> Any:
        return jax_gnn.spmm(graph, split(x), weight).reshape(n, -1)

    edges = (jax_gnn_graph(graph),)
    yield jax_candidate(OURS, fused, problem, edges, INPUTS[kind])
    candidate = jax_candidate("unfused", unfused, problem, edges, INPUTS[kind])
    arrays = 1 + backward if kind == "gatv2" else 0
    yield bounded(candidate, arrays * _row_bytes(graph, case))
    yardsticks = {"spmm": case.width}
    if kind != "gat":
        yardsticks["spmm of both"] = 2 * case.width
    for name, width in yardsticks.items():
        other = yardstick(graph, case, width)
        candidate = jax_candidate(name, spmm, other, edges, ("x", "weight"))
        yield replace(candidate, expected=other.expected)


def _leaky(z: Any) -> Any:
    """As torch and the definition have it: of JAX the slope at 0, not rare in half types, is 1."""
    import jax.numpy as jnp

    return jnp.where(z > 0, z, SLOPE * z)


# Plain JAX.

PLAIN = "segment_max, segment_sum"


def plain_jax_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library: in float32, or with messages in the half type.

    Half types are converted before they are gathered, so that gradients are sums in float32, too.
    """
    _, _, backward = _parts(case)
    operands = graph.cols, graph.rows
    names = {PLAIN: "float32"}
    if case.dtype in ("bfloat16", "float16"):
        names[f"{PLAIN} of half"] = case.dtype
    for name, messages in names.items():
        forward = _plain_attention(graph, case, messages)
        candidate = jax_candidate(name, forward, problem, operands, INPUTS[_parts(case)[0]])
        yield bounded(candidate, (1 + backward) * _row_bytes(graph, case))


def _plain_attention(graph: PlainGraph, case: Case, dtype: str) -> Callable[..., Any]:
    """Differentiated by JAX; ``dtype`` is that of messages and their sums."""
    import jax
    import jax.numpy as jnp

    kind, heads, _ = _parts(case)
    n = graph.num_nodes

    def split(x: Any, dtype: str = "float32") -> Any:
        return x.reshape(n, heads, -1).astype(dtype)

    def attention(dst: Any, src: Any, third: Any, cols: Any, rows: Any) -> Any:
        def sums(values: Any) -> Any:
            return jax.ops.segment_sum(values, rows, n, indices_are_sorted=True)

        left, right = split(dst)[rows], split(src)[cols]
        if kind == "dot":
            score = (left * right).sum(2) / np.sqrt(case.width)
        else:
            z = _leaky(left + right)
            score = z[:, :, 0] if kind == "gat" else (z * third).sum(2)
        top = jax.ops.segment_max(score, rows, n, indices_are_sorted=True)
        powers = jnp.exp(score - jax.lax.stop_gradient(top)[rows])
        weight = (powers / sums(powers)[rows]).astype(dtype)
        value = split(src if kind == "gatv2" else third, dtype)
        y = sums(weight[:, :, None] * value[cols])
        return y.reshape(n, -1).astype(src.dtype)

    return attention


# PyG.

PYG_ARRAYS = {"gat": (2, 4), "gatv2": (4, 7), "dot": (3, 6)}
"""Arrays of rows for edges that are there at once, forward and with gradients."""


def pyg_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What GATConv, GATv2Conv and TransformerConv do with projected features."""
    import torch
    from torch_geometric.utils import scatter, softmax

    kind, heads, backward = _parts(case)
    n = graph.num_nodes

    def forward(dst: Any, src: Any, third: Any, cols: Any, rows: Any) -> Any:
        x_i = dst.view(n, heads, -1).index_select(0, rows)
        x_j = src.view(n, heads, -1).index_select(0, cols)
        if kind == "dot":
            score = (x_i * x_j).sum(-1) / np.sqrt(case.width)
        else:
            z = torch.nn.functional.leaky_relu(x_i + x_j, SLOPE)
            score = z[:, :, 0] if kind == "gat" else (z * third).sum(-1)
        weight = softmax(score, rows, num_nodes=n)
        if kind != "gatv2":
            x_j = third.view(n, heads, -1).index_select(0, cols)
        return scatter(weight.unsqueeze(-1) * x_j, rows, 0, n, reduce="sum").view(n, -1)

    operands = int64(graph, "cols"), int64(graph, "rows")
    candidate = torch_candidate("PyG", forward, problem, operands, INPUTS[kind])
    num_bytes = PYG_ARRAYS[kind][backward] * _row_bytes(graph, case)
    yield bounded(candidate, num_bytes, torch.get_default_device().type)


# Published kernels.


def _published(
    graph: PlainGraph, case: Case, problem: Problem
) -> tuple[tuple[Any, ...], tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Inputs with the cotangent, and the edges by destination and by source."""
    kind, _, backward = _parts(case)
    names = (*INPUTS[kind], "cotangent") if backward else INPUTS[kind]
    opposite = graph.transposed
    return (
        tuple(problem.inputs[name] for name in names),
        (graph.indptr, graph.cols),
        (opposite.indptr, opposite.cols),
    )


def turbo_gnn_candidates(
    checkout: Path, graph: PlainGraph, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """GATv2 and dot products."""
    kind, _, _ = _parts(case)
    if kind == "gat":
        return
    if case.width not in published.TURBO_GNN_WIDTHS or case.dtype not in published.TURBO_GNN_TYPES:
        yield skipped("Turbo-GNN", "no kernel for this width of a head or dtype")
        return
    factor = SLOPE if kind == "gatv2" else case.width**-0.5
    call = published.TurboGnn(checkout, graph, kind, case.dtype, case.width, factor)
    inputs, *edges = _published(graph, case, problem)
    yield Candidate("Turbo-GNN", call, (*inputs, *edges[0], *edges[1]))


def dgnn_candidates(
    checkout: Path, graph: PlainGraph, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """GAT."""
    kind, heads, backward = _parts(case)
    if kind != "gat":
        return
    if case.dtype != "float32":
        yield skipped("dgNN", "no kernel for this dtype")
        return
    inputs, into, out_of = _published(graph, case, problem)
    if backward:
        ones = np.ones((graph.num_edges, heads), np.float32)
        operands = *into, *out_of, graph.order, ones
        yield Candidate("dgNN", published.dgnn(checkout, SLOPE), (*inputs, *operands))
        return
    for name, kernel in published.DGNN_INFERENCE.items():
        function = published.dgnn_inference(checkout, kernel, SLOPE)
        yield Candidate(name, function, (*inputs, *into))


def df_gnn_candidates(
    checkout: Path, graph: PlainGraph, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """Dot products."""
    kind, _, backward = _parts(case)
    if kind != "dot":
        return
    inputs, into, out_of = _published(graph, case, problem)
    factors = np.full(graph.num_edges, case.width**-0.5, np.float32)
    for way in ("hyper",) if backward else published.DF_GNN_ROWS:
        name = f"DF-GNN {way}"
        if case.dtype != "float32":
            yield skipped(name, "no kernel for this dtype")
        elif published.df_gnn_scores(graph, way) > published.DF_GNN_SCORES:
            yield skipped(name, "more edges than a block's shared memory has scores")
        elif backward:
            operands = *into, graph.rows, factors, *out_of, graph.order
            function = published.df_gnn(checkout, graph, case.width)
            yield Candidate(name, function, (*inputs, *operands))
        else:
            operands = *into, *([graph.rows] if way == "hyper" else []), factors
            function = published.df_gnn_inference(checkout, graph, way, case.width)
            yield Candidate(name, function, (*inputs, *operands))


OP = Op(
    name="edge_attention",
    title="Attention over edges of GAT, GATv2, graph transformers; backward to all arguments",
    workloads=workloads,
    modes={
        f"{kind} h{heads} {direction}": widths
        for direction in ("fwd", "fwd+bwd")
        for kind in INPUTS
        for heads, widths in WIDTHS.items()
    },
    widths={"cpu": (8, 16, 64), "gpu": (8, 16, 64)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
        checkout_family("turbo_gnn", turbo_gnn_candidates, "Turbo-GNN"),
        checkout_family("dgnn", dgnn_candidates, "dgNN"),
        checkout_family("df_gnn", df_gnn_candidates, "DF-GNN"),
    ),
    baseline=PLAIN,
)
