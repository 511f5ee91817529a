"""One layer of R-GCN, Y[v] = Σ w[e] X[u] W[rel e], and with its gradients to X and W.

Weights of edges make means over each relation, and are prepared beforehand; a node's own weight is
one relation more, of an edge from each node to itself. W is (relations, width, width). float32 may
be multiplied as TF32 in every family. The floor reads features, weights and 12 bytes for each edge
once and writes the result once; it knows nothing of what a way moves in between, which the family
``counted`` says: what launches are expected to take by counts, those of gradients included.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.definition import TF32_TOLERANCE, Candidate, Case, Family, Op, Problem
from benchmarks.peers import bounded, jax_candidate, torch_candidate
from benchmarks.problems import CHECKED_NUMBERS, Expected, features, numpy_dtype, once
from benchmarks.report import OURS
from benchmarks.workloads import Triples, relational_graphs

INPUTS = ("x", "rhs")
METHODS = ("edges", "source_pairs", "destination_pairs")


def problem(graph: Triples, case: Case) -> Problem:
    """Some rows of the result and of the gradient to x, and that to some relations' weights."""
    width, dtype = case.width, case.dtype
    x = features("x", graph.num_nodes, width, dtype)
    rhs = _weights(graph.num_relations, width, dtype)
    inputs: dict[str, Any] = {"x": x, "rhs": rhs, "src": graph.src, "dst": graph.dst}
    expected = [_sums(graph, graph.src, graph.dst, x, rhs)]
    if case.mode == "training":
        ct = features("cotangent", graph.num_nodes, width, dtype)
        inputs["cotangent"] = ct
        transposed = rhs.swapaxes(1, 2)
        expected += [
            _sums(graph, graph.dst, graph.src, ct, transposed),
            _outer(graph, x, ct, rhs.shape),
        ]
    return Problem(
        inputs={**inputs, "weight": graph.mean},
        expected=tuple(expected),
        output_dtype=numpy_dtype(dtype),
        tolerance=TF32_TOLERANCE if dtype == "float32" else None,
        flops=_flops(graph, case),
    )


def _flops(graph: Triples, case: Case) -> int:
    """Of a product for each pair at the end where there are fewer, and of as many for gradients."""
    pairs = min(_num_pairs(graph, end) for end in ("src", "dst"))
    return (3 if case.mode == "training" else 1) * 2 * pairs * case.width**2


@once
def _weights(num_relations: int, width: int, dtype: str) -> np.ndarray:
    return features("w", num_relations * width, width, dtype).whole().reshape(-1, width, width)


@once
def _num_pairs(graph: Triples, end: str) -> int:
    """Pairs of relation and node at one end.

    They are sorted, as ``np.unique`` hashes, which takes ten times as long for millions.
    """
    pairs = np.sort(graph.rel.astype(np.int64) * graph.num_nodes + getattr(graph, end))
    return int(np.count_nonzero(np.diff(pairs, prepend=-1)))


def _sums(graph: Triples, ends: np.ndarray, rows: np.ndarray, x: Any, rhs: np.ndarray) -> Expected:
    """Some rows of the sum over edges from ``ends`` to ``rows``."""
    width = rhs.shape[2]
    order, starts = graph.by(rows, graph.num_nodes)
    counts = np.diff(starts).astype(np.int64)
    chosen = np.random.default_rng(0).permutation(graph.num_nodes)
    chosen = np.sort(chosen[np.cumsum(counts[chosen]) * width <= CHECKED_NUMBERS // 4])
    edges = np.concatenate([order[starts[i] : starts[i + 1]] for i in chosen])
    rel = graph.rel[edges]
    values = x.rows(ends[edges]) * graph.mean[edges, None]
    products = np.empty((len(edges), width))
    for relation in np.unique(rel):
        where = rel == relation
        products[where] = values[where] @ rhs[relation].astype(np.float64)
    sums = np.zeros((len(chosen), width))
    np.add.at(sums, np.repeat(np.arange(len(chosen)), counts[chosen]), products)
    return Expected(sums, (graph.num_nodes, width), chosen)


def _outer(graph: Triples, x: Any, ct: Any, shape: tuple[int, ...]) -> Expected:
    """The gradient to the weights of the smallest relations."""
    order, starts = graph.by(graph.rel, graph.num_relations)
    counts = np.diff(starts)
    by_size = np.argsort(counts, kind="stable")
    affordable = np.cumsum(counts[by_size]) * shape[1] <= 2 * CHECKED_NUMBERS
    affordable[0] = True
    chosen = np.sort(by_size[affordable])
    values = np.zeros((len(chosen), *shape[1:]))
    for place, relation in enumerate(chosen):
        edges = order[starts[relation] : starts[relation + 1]]
        for part in np.array_split(edges, len(edges) // 100_000 + 1):
            scaled = x.rows(graph.src[part]) * graph.mean[part, None]
            values[place] += scaled.T @ ct.rows(graph.dst[part])
    return Expected(values, shape, chosen)


# This library.


def _aggregate(method: Any) -> Callable[..., Any]:
    import jax_gnn

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    return lambda x, rhs, graph, weight: jax_gnn.relational_aggregate(
        graph, x, rhs, weight, method=method
    )


def jax_gnn_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op as users call it, which chooses a method, and each of the methods that it has."""
    for method in ("auto", *METHODS):
        operands = graph.graph, graph.mean
        name = OURS if method == "auto" else method
        yield jax_candidate(name, _aggregate(method), problem, operands, INPUTS)


def counted_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What each way is expected to take, and what is chosen: nothing is run."""
    import jax

    from jax_gnn._ops.relational_aggregate.api import counts_of
    from jax_gnn._ops.relational_aggregate.schedule import (
        chosen,
        expected,
        expected_in_training,
    )

    shape = (graph.num_relations, case.width, case.width)
    counts = counts_of(graph.graph, jax.ShapeDtypeStruct(shape, problem.output_dtype))
    times = (expected_in_training if case.mode == "training" else expected)(counts)
    choice = chosen(counts)
    words = ", ".join(f"{time:.1f} us by {way}" for way, time in times.items())
    yield Candidate("counted", lambda: (), (), skip=f"{words}; chosen: {choice}")


# Plain JAX.

EVERY_RELATION = "products with every relation"


def plain_jax_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Products of all nodes with all relations; sums first; gathered rows and a ragged product."""
    import jax
    import jax.numpy as jnp

    num_nodes, num_relations = graph.num_nodes, graph.num_relations

    def every(x: Any, rhs: Any, src: Any, rel: Any, dst: Any, weight: Any) -> Any:
        products = jnp.einsum("nk,rkm->rnm", x, rhs)
        messages = (products[rel, src] * weight[:, None]).astype(x.dtype)
        return jax.ops.segment_sum(messages, dst, num_nodes, indices_are_sorted=True)

    def sums_first(x: Any, rhs: Any, src: Any, rel: Any, dst: Any, weight: Any) -> Any:
        messages = (x[src] * weight[:, None]).astype(x.dtype)
        sums = jax.ops.segment_sum(messages, dst * num_relations + rel, num_nodes * num_relations)
        return jnp.einsum("nrk,rkm->nm", sums.reshape(num_nodes, num_relations, -1), rhs)

    def ragged(x: Any, rhs: Any, src: Any, dst: Any, weight: Any, sizes: Any) -> Any:
        products = jax.lax.ragged_dot(x[src], rhs, sizes) * weight[:, None]
        return jax.ops.segment_sum(products.astype(x.dtype), dst, num_nodes)

    row = case.width * problem.output_dtype.itemsize
    edges = graph.src, graph.rel, graph.dst, graph.mean
    pairs = num_nodes * num_relations * row
    fits_ids = num_nodes * num_relations < 2**31
    yield bounded(jax_candidate(EVERY_RELATION, every, problem, edges, INPUTS), pairs)
    candidate = jax_candidate("sums for every relation", sums_first, problem, edges, INPUTS)
    yield bounded(candidate, pairs if fits_ids else float("inf"))
    candidate = jax_candidate("gathered ragged_dot", ragged, problem, _by_relation(graph), INPUTS)
    yield bounded(candidate, num_relations * graph.num_edges * row)  # a masked copy for each


@once
def _by_relation(graph: Triples) -> tuple[np.ndarray, ...]:
    order, starts = graph.by(graph.rel, graph.num_relations)
    ends = graph.src[order], graph.dst[order]
    return (*ends, graph.mean[order], np.diff(starts).astype(np.int32))


# PyG.


def pyg_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``RGCNConv`` and ``FastRGCNConv`` with a root weight; means are theirs to compute."""
    import torch
    from torch_geometric import nn

    torch.set_float32_matmul_precision("high")
    edge_index, edge_type = _pyg_edges(graph)
    for layer in (nn.RGCNConv, nn.FastRGCNConv):
        with torch.device("cpu"):  # weights that nobody needs
            conv = layer(case.width, case.width, graph.num_relations - 1, aggr="mean", bias=False)
        conv = conv.to(getattr(torch, case.dtype))
        del conv.weight, conv.root

        def forward(x: Any, rhs: Any, edges: Any, types: Any, conv: Any = conv) -> Any:
            conv.weight, conv.root = rhs[:-1], rhs[-1]
            return conv(x, edges, types)

        edges = edge_index, edge_type
        yield torch_candidate(f"PyG {layer.__name__}", forward, problem, edges, INPUTS)


@once
def _pyg_edges(graph: Triples) -> tuple[np.ndarray, np.ndarray]:
    """Without those of nodes to themselves, sorted by relation."""
    given = np.flatnonzero(graph.rel < graph.num_relations - 1)
    given = given[np.argsort(graph.rel[given], kind="stable")]
    ends = np.stack([graph.src[given], graph.dst[given]]).astype(np.int64)
    return ends, graph.rel[given].astype(np.int64)


OP = Op(
    name="relational",
    title="One R-GCN layer: inference, and value and gradients",
    workloads=relational_graphs,
    modes={"inference": (), "training": ()},
    widths={"cpu": (64,), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("counted", "numpy", ("jax_gnn",), counted_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
    ),
    baseline=EVERY_RELATION,
)
