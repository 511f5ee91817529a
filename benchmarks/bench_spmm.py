"""SpMM: Y[v] = sum over the edges e into v of w[e] X[src e]; backward to X and w.

The floor reads X, w, the sources and the row pointers once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import published
from benchmarks.cusparse import SPMM_ALGORITHMS, prepared
from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.peers import (
    bcoo,
    checkout_family,
    edge_weights,
    int64,
    jax_candidate,
    jax_gnn_graph,
    skipped,
    torch_candidate,
    torch_csr,
)
from benchmarks.problems import (
    Expected,
    features,
    numpy_dtype,
    once,
    reduce_sample,
    sample_segments,
)
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, plain_graphs

INPUTS = ("x", "weight")


def problem(graph: PlainGraph, case: Case) -> Problem:
    """X, the weights, the sources, the row pointers and, for the backward pass, the cotangent."""
    weight = edge_weights(graph, case.dtype)
    inputs: dict[str, Any] = {
        "x": features("x", graph.num_nodes, case.width, case.dtype),
        "weight": weight,
        "cols": graph.cols,
        "indptr": graph.indptr,
    }
    sample = sample_segments(graph.indptr, case.width)
    messages = inputs["x"].rows(graph.cols[sample.entries])
    scaled = messages * weight[sample.entries, None].astype(np.float64)
    y = reduce_sample(sample, scaled, np.add)
    shape = graph.num_nodes, case.width
    expected = [Expected(y, shape, sample.segments)]
    if case.mode == "fwd+bwd":
        cotangent = features("cotangent", graph.num_nodes, case.width, case.dtype)
        inputs["cotangent"] = cotangent
        opposite = graph.transposed
        back = sample_segments(opposite.indptr, case.width)
        scaled = cotangent.rows(opposite.cols[back.entries])
        scaled *= weight[graph.order[back.entries], None].astype(np.float64)
        expected.append(Expected(reduce_sample(back, scaled, np.add), shape, back.segments))
        products = messages * cotangent.rows(graph.rows[sample.entries])
        expected.append(Expected(products.sum(1), weight.shape, sample.entries))
    return Problem(inputs, tuple(expected), numpy_dtype(case.dtype))


# This library.


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op as users call it, and by bare ids."""
    import jax_gnn

    warnings.filterwarnings("error", message=".*Using plain XLA instead")

    def spmm(x: Any, weight: Any, graph: Any) -> Any:
        return jax_gnn.spmm(graph, x, weight)

    def by_ids(x: Any, weight: Any, cols: Any, rows: Any) -> Any:
        return jax_gnn.index_segment_reduce(x, cols, rows, graph.num_nodes, weight)

    yield jax_candidate(OURS, spmm, problem, (jax_gnn_graph(graph),), INPUTS)
    yield jax_candidate(f"{OURS}, bare ids", by_ids, problem, (graph.cols, graph.rows), INPUTS)


# Plain JAX.

SORTED = "gather, segment_sum sorted"


class Edges(NamedTuple):
    """Edges in one order: rows to gather, segments to add them to."""

    cols: np.ndarray
    rows: np.ndarray


def plain_jax_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library."""
    num_nodes = graph.num_nodes
    edges = Edges(graph.cols, graph.rows)
    candidates: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        SORTED: (_gather_sum(num_nodes, is_sorted=True), (edges,)),
        "gather, segment_sum unsorted": (_gather_sum(num_nodes, is_sorted=False), (edges,)),
    }
    if case.mode == "fwd+bwd":
        opposite = Edges(graph.transposed.cols, graph.transposed.rows)
        paired = _paired(num_nodes), (edges, opposite, graph.order)
        candidates["gather, segment_sum paired"] = paired
    candidates["BCOO"] = _bcoo_product, (_matrix(graph, case.dtype),)
    for name, (forward, operands) in candidates.items():
        yield jax_candidate(name, forward, problem, operands, INPUTS)


def _gather_sum(num_nodes: int, is_sorted: bool) -> Callable[..., Any]:
    """Differentiated by JAX, whose transpose adds in the order of the gather, unsorted."""
    import jax

    def gather_sum(x: Any, weight: Any, edges: Edges) -> Any:
        messages = x[edges.cols] * weight[:, None]
        return jax.ops.segment_sum(messages, edges.rows, num_nodes, indices_are_sorted=is_sorted)

    return gather_sum


def _paired(num_nodes: int) -> Callable[..., Any]:
    """The gradient to X is a sorted sum too, over the transposed graph."""
    import jax

    gather_sum = _gather_sum(num_nodes, is_sorted=True)

    @jax.custom_vjp
    def paired(x: Any, weight: Any, edges: Edges, opposite: Edges, order: Any) -> Any:
        return gather_sum(x, weight, edges)

    def forward(x: Any, weight: Any, edges: Edges, opposite: Edges, order: Any) -> Any:
        return gather_sum(x, weight, edges), (x, weight, edges, opposite, order)

    def backward(saved: tuple[Any, ...], cotangent: Any) -> Any:
        x, weight, edges, opposite, order = saved
        to_x = gather_sum(cotangent, weight[order], opposite)
        to_weight = (cotangent[edges.rows] * x[edges.cols]).sum(1)
        return to_x, to_weight, None, None, None

    paired.defvjp(forward, backward)
    return paired


def _bcoo_product(x: Any, weight: Any, matrix: Any) -> Any:
    from jax.experimental import sparse

    return (
        sparse.BCOO(
            (weight, matrix.indices), shape=matrix.shape, indices_sorted=True, unique_indices=False
        )
        @ x
    )


@once
def _matrix(graph: PlainGraph, dtype: str) -> Any:
    shape = graph.num_nodes, graph.num_nodes
    return bcoo(edge_weights(graph, dtype), graph.rows, graph.cols, shape, unique=False)


# torch.


def torch_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``torch.sparse``: products with the matrix and its stored transpose, ``sampled_addmm``."""
    import torch

    matrix = _torch_matrix(graph, case.dtype)
    inputs = problem.inputs
    if case.mode == "fwd":
        yield Candidate("torch CSR", lambda x, matrix: (matrix @ x,), (inputs["x"], matrix))
        return

    def forward_backward(
        x: Any, cotangent: Any, matrix: Any, transposed: Any, pattern: Any
    ) -> tuple[Any, ...]:
        to_weight = torch.sparse.sampled_addmm(pattern, cotangent, x.T, beta=0.0)
        return matrix @ x, transposed @ cotangent, to_weight.values()

    matrices = matrix, _torch_transposed(graph, case.dtype), matrix
    yield Candidate("torch CSR", forward_backward, (inputs["x"], inputs["cotangent"], *matrices))


@once
def _torch_matrix(graph: PlainGraph, dtype: str) -> Any:
    values = edge_weights(graph, dtype)
    return torch_csr(graph.indptr, graph.cols, values, graph.num_nodes, dtype)


@once
def _torch_transposed(graph: PlainGraph, dtype: str) -> Any:
    values, opposite = edge_weights(graph, dtype)[graph.order], graph.transposed
    return torch_csr(opposite.indptr, opposite.cols, values, graph.num_nodes, dtype)


def cusparse_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Everything that can be is done beforehand, by each of the library's algorithms."""
    operands = [_torch_matrix(graph, case.dtype), problem.inputs["x"]]
    backward = case.mode == "fwd+bwd"
    if backward:
        operands += [_torch_transposed(graph, case.dtype), problem.inputs["cotangent"]]
    for algorithm in SPMM_ALGORITHMS:
        function = prepared(algorithm, sampled=backward)
        yield Candidate(f"cuSPARSE {algorithm}", function, tuple(operands))


def geot_candidates(
    checkout: Path, graph: PlainGraph, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """GeoT's weighted sums by ids and by row pointers, and its dot products."""
    if case.dtype != "float32":
        yield skipped("GeoT", "no kernel for this dtype")
        return
    x, weight = (problem.inputs[name] for name in INPUTS)
    opposite = graph.transposed
    transposed_weight = edge_weights(graph, case.dtype)[graph.order]
    for name, kernel in published.GEOT_PRODUCTS.items():
        by_ids = kernel == "product"
        matrices = [
            (int64(each, "cols"), int64(each, "rows")) if by_ids else (each.cols, each.indptr)
            for each in (graph, opposite)
        ]
        operands: tuple[Any, ...] = (x, weight, *matrices[0])
        if case.mode == "fwd+bwd":
            back = problem.inputs["cotangent"], transposed_weight, *matrices[1]
            operands = *operands, *back, graph.rows, graph.cols
        function = published.geot_product(checkout, kernel, graph.num_nodes)
        yield Candidate(name, function, operands)


def pyg_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Message passing as PyG's layers do it, by scatter and, over sorted edges, by segments."""
    import torch
    from torch_geometric.utils import scatter

    def by_scatter(x: Any, weight: Any, cols: Any, rows: Any) -> Any:
        messages = x.index_select(0, cols) * weight[:, None]
        return scatter(messages, rows, 0, graph.num_nodes, reduce="sum")

    def by_segments(x: Any, weight: Any, cols: Any, indptr: Any) -> Any:
        messages = x.index_select(0, cols) * weight[:, None]
        return torch.segment_reduce(messages, "sum", offsets=indptr, initial=0.0, unsafe=True)

    cols, rows, indptr = (int64(graph, name) for name in ("cols", "rows", "indptr"))
    yield torch_candidate("PyG scatter", by_scatter, problem, (cols, rows), INPUTS)
    yield torch_candidate("PyG segments", by_segments, problem, (cols, indptr), INPUTS)


OP = Op(
    name="spmm",
    title="SpMM with edge weights; backward to features and weights",
    workloads=plain_graphs,
    modes={"fwd": (), "fwd+bwd": ()},
    widths={"cpu": (32, 64, 128), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("torch", "torch", ("torch",), torch_candidates),
        Family("cusparse", "torch", ("torch",), cusparse_candidates, platforms=("gpu",)),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
        checkout_family("geot", geot_candidates, "GeoT"),
    ),
    baseline=SORTED,
)
