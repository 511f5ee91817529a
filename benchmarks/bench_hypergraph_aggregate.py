"""Hypergraph aggregation of HGNN: Y = Dv^-1/2 H De^-1 Hᵀ Dv^-1/2 X (arXiv 1809.09401, eq. 10).

The degree scalings are computed beforehand. The operator is symmetric, so that the gradient to X
is the operator itself applied to the cotangent; no candidate makes use of that.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse

from benchmarks import published
from benchmarks.cusparse import SPMM_ALGORITHMS, prepared, prepared_pair
from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.peers import (
    Order,
    bcoo,
    checkout_family,
    gather_sum,
    hypergraph_conv,
    hypergraph_conv_operands,
    int64,
    jax_candidate,
    skipped,
    torch_candidate,
    torch_csr,
)
from benchmarks.problems import Expected, numpy_dtype, once
from benchmarks.report import OURS
from benchmarks.workloads import Incidence, hypergraphs, row_pointers


def problem(graph: Incidence, case: Case) -> Problem:
    """Both sorted orders as CSR, the scalings, X and, for the backward pass, its cotangent."""
    dtype = numpy_dtype(case.dtype)
    rng = np.random.default_rng(case.seed)
    with np.errstate(divide="ignore"):
        node_scale = np.where(graph.node_degrees > 0, graph.node_degrees**-0.5, 0).astype(dtype)
        edge_scale = np.where(graph.hyperedge_degrees > 0, 1 / graph.hyperedge_degrees, 0)
    edge_scale = edge_scale.astype(dtype)
    inputs = {
        "hyperedge_indptr": row_pointers(graph.hyperedge_degrees),
        "hyperedge_nodes": graph.node_idx,
        "node_indptr": row_pointers(graph.node_degrees),
        "node_hyperedges": graph.by_node[1],
        "node_scale": node_scale,
        "hyperedge_scale": edge_scale,
        "x": rng.standard_normal((graph.num_nodes, case.width)).astype(dtype),
    }
    if case.mode == "fwd+bwd":
        inputs["cotangent"] = rng.standard_normal((graph.num_nodes, case.width)).astype(dtype)

    shape = graph.num_nodes, graph.num_hyperedges
    ones = np.ones(len(graph.node_idx))
    incidence = scipy.sparse.csr_array((ones, (graph.node_idx, graph.hyperedge_idx)), shape=shape)
    outer, inner = node_scale.astype(float)[:, None], edge_scale.astype(float)[:, None]

    def operator(features: np.ndarray) -> np.ndarray:
        return outer * (incidence @ (inner * (incidence.T @ (outer * features.astype(float)))))

    dense = [inputs[name] for name in ("x", "cotangent") if name in inputs]
    return Problem(inputs, tuple(Expected.whole(operator(each)) for each in dense), dtype)


# This library.


def containers(graph: Incidence, problem: Problem) -> tuple[Any, ...]:
    """The hypergraph as this library's container, and the scales."""
    import jax_gnn

    inputs = problem.inputs
    hypergraph = jax_gnn.Hypergraph.from_incidence(
        graph.node_idx,
        graph.hyperedge_idx,
        num_nodes=graph.num_nodes,
        num_hyperedges=graph.num_hyperedges,
    )
    return hypergraph, inputs["node_scale"], inputs["hyperedge_scale"]


def aggregate(
    x: Any,
    hypergraph: Any,
    node_scale: Any,
    edge_scale: Any,
    implementation: Literal["xla"] | None = None,
) -> Any:
    """The op as users call it."""
    import jax_gnn

    return jax_gnn.hypergraph_aggregate(
        hypergraph,
        x,
        node_scale_in=node_scale,
        node_scale_out=node_scale,
        hyperedge_scale=edge_scale,
        implementation=implementation,
    )


def jax_gnn_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op, and its plain-XLA implementation."""
    # Where the platform's kernel is missing the op warns and takes its plain XLA: not what we time.
    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    operands = containers(graph, problem)
    yield jax_candidate(OURS, aggregate, problem, operands)
    in_xla = functools.partial(aggregate, implementation="xla")
    yield jax_candidate(f"{OURS}, xla", in_xla, problem, operands)
    if skip := _too_many_cliques(graph, 30_000_000):
        yield skipped(CLIQUES, skip)
        return
    import jax_gnn

    matrix = clique_expansion(graph).tocoo()
    expanded = jax_gnn.Graph.from_edges(matrix.col, matrix.row, num_nodes=graph.num_nodes)
    weight = matrix.data.astype(numpy_dtype(case.dtype))  # sorted by row, as the container is

    def product(x: Any, expanded: Any, weight: Any) -> Any:
        return jax_gnn.spmm(expanded, x, weight)

    yield jax_candidate(CLIQUES, product, problem, (expanded, weight))


CLIQUES = "clique expansion"
"""The product H De^-1 Hᵀ with its scales, computed beforehand: one sparse product by this library
or by cuSPARSE."""


def _too_many_cliques(graph: Incidence, most: int) -> str:
    """Why the expansion is not run, whose entries are at most the sum of squares of sizes."""
    entries = int((graph.hyperedge_degrees.astype(np.int64) ** 2).sum())
    pairs = f"beside {len(graph.node_idx):,} incidence pairs"
    return f"{entries:,} pairs of nodes with a hyperedge, {pairs}" if entries > most else ""


@once
def clique_expansion(graph: Incidence) -> Any:
    """Dv^-1/2 H De^-1 Hᵀ Dv^-1/2 in float64, entries sorted by row and then by column."""
    shape = graph.num_nodes, graph.num_hyperedges
    ones = np.ones(len(graph.node_idx))
    incidence = scipy.sparse.csr_array((ones, (graph.node_idx, graph.hyperedge_idx)), shape=shape)
    outer = scipy.sparse.diags_array(np.maximum(graph.node_degrees, 1) ** -0.5)
    inner = scipy.sparse.diags_array(1 / np.maximum(graph.hyperedge_degrees, 1))
    matrix = (outer @ incidence @ inner @ incidence.T @ outer).tocsr()
    matrix.sort_indices()
    return matrix


# Plain JAX.

TWO_SEGMENT_SUMS = "two segment_sum, sorted"


def plain_jax_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library."""
    num_nodes, num_edges = graph.num_nodes, graph.num_hyperedges
    by_edge, by_node = (graph.node_idx, graph.hyperedge_idx), graph.by_node
    to_edges, to_nodes = Order(*by_edge), Order(*by_node[::-1])
    scales = problem.inputs["node_scale"], problem.inputs["hyperedge_scale"]

    to_edges_sum, to_nodes_sum = gather_sum(num_edges), gather_sum(num_nodes)
    yield jax_candidate(
        TWO_SEGMENT_SUMS,
        _two_sums(to_edges_sum, to_nodes_sum),
        problem,
        (to_edges, to_nodes, *scales),
    )
    if case.mode == "fwd+bwd":  # the forward alone is the candidate above
        yield jax_candidate(
            "two segment_sum, paired orders",
            _two_sums(_paired_sum(num_edges, num_nodes), _paired_sum(num_nodes, num_edges)),
            problem,
            (to_edges, to_nodes, *scales),
        )
    yield jax_candidate(
        "two segment_sum, one order",
        _two_sums(to_edges_sum, gather_sum(num_nodes, is_sorted=False)),
        problem,
        (to_edges, Order(*by_edge[::-1]), *scales),
    )
    ones = np.ones(len(graph.node_idx), problem.output_dtype)
    matrices = (
        bcoo(ones, *by_edge[::-1], (num_edges, num_nodes)),
        bcoo(ones, *by_node, (num_nodes, num_edges)),
    )
    yield jax_candidate("two BCOO products", _two_products, problem, (*matrices, *scales))


def _two_sums(to_edges_sum: Callable[..., Any], to_nodes_sum: Callable[..., Any]) -> Any:
    """The aggregate from two functions of (features, order, opposite order)."""

    def forward(x: Any, to_edges: Order, to_nodes: Order, node_scale: Any, edge_scale: Any) -> Any:
        edges = to_edges_sum(x * node_scale[:, None], to_edges, to_nodes)
        nodes = to_nodes_sum(edges * edge_scale[:, None], to_nodes, to_edges)
        return nodes * node_scale[:, None]

    return forward


def _paired_sum(num_segments: int, num_rows: int) -> Callable[..., Any]:
    """The gradient is a sorted sum too, over the opposite order."""
    import jax

    paired = jax.custom_vjp(gather_sum(num_segments))
    transposed = gather_sum(num_rows)

    def forward(x: Any, order: Order, opposite: Order) -> Any:
        return paired(x, order, opposite), (order, opposite)

    def backward(orders: tuple[Order, Order], cotangent: Any) -> Any:
        order, opposite = orders
        return transposed(cotangent, opposite, order), None, None

    paired.defvjp(forward, backward)
    return paired


def _two_products(x: Any, to_edges: Any, to_nodes: Any, node_scale: Any, edge_scale: Any) -> Any:
    edges = to_edges @ (x * node_scale[:, None])
    return (to_nodes @ (edges * edge_scale[:, None])) * node_scale[:, None]


# torch.


def torch_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Two sparse products (cuSPARSE or MKL), with the scalings folded into the matrices' values.

    The backward pass multiplies by transposed matrices that are built beforehand, without autograd.
    """

    def two_products(*operands: Any) -> tuple[Any, ...]:
        triples = zip(*(operands[i::3] for i in range(3)), strict=True)
        return tuple(second @ (first @ x) for x, first, second in triples)

    operands = _torch_operands(graph, case, problem)
    yield Candidate("two torch CSR products", two_products, operands)


def cusparse_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The same products, with everything that can be done beforehand."""
    operands = _torch_operands(graph, case, problem)
    for algorithm in SPMM_ALGORITHMS:
        yield Candidate(f"two cuSPARSE {algorithm}", prepared_pair(algorithm), operands)
    if skip := _too_many_cliques(graph, 100_000_000):
        yield skipped(f"cuSPARSE {CLIQUES}", skip)
        return
    matrix = clique_expansion(graph)
    expanded = torch_csr(
        matrix.indptr.astype(np.int32),
        matrix.indices.astype(np.int32),
        matrix.data,
        graph.num_nodes,
        case.dtype,
    )
    features = [problem.inputs[name] for name in ("x", "cotangent") if name in problem.inputs]
    for algorithm in ("CSR_ALG2", "CSR_ALG3"):  # the best on these matrices
        arguments = tuple(itertools.chain(*((expanded, dense) for dense in features)))
        yield Candidate(f"cuSPARSE {algorithm} {CLIQUES}", prepared(algorithm), arguments)


def _torch_operands(graph: Incidence, case: Case, problem: Problem) -> tuple[Any, ...]:
    """X and the two matrices that it is multiplied by, and the same of the cotangent."""
    inputs = problem.inputs
    scale, edge_scale = inputs["node_scale"].astype(float), inputs["hyperedge_scale"].astype(float)
    by_node, by_edge = graph.by_node, (graph.hyperedge_idx, graph.node_idx)
    shape = graph.num_nodes, graph.num_hyperedges

    def matrix(pairs: tuple[np.ndarray, np.ndarray], shape: tuple[int, int], values: Any) -> Any:
        indptr = row_pointers(np.bincount(pairs[0], minlength=shape[0]))
        return torch_csr(indptr, pairs[1], values, shape[1], case.dtype)

    # Dv^-1/2 H and De^-1 Hᵀ Dv^-1/2, and their transposes.
    to_nodes = matrix(by_node, shape, scale[by_node[0]])
    to_edges = matrix(by_edge, shape[::-1], edge_scale[by_edge[0]] * scale[by_edge[1]])
    operands: tuple[Any, ...] = (inputs["x"], to_edges, to_nodes)
    if case.mode == "fwd+bwd":
        from_nodes = matrix(by_edge, shape[::-1], scale[by_edge[1]])
        from_edges = matrix(by_node, shape, edge_scale[by_node[1]] * scale[by_node[0]])
        operands = *operands, inputs["cotangent"], from_nodes, from_edges
    return operands


def hypergef_candidates(
    checkout: Path, graph: Incidence, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """HyperGef's kernel of both sums, whose operator is symmetric."""
    if case.dtype != "float32" or case.width % published.HYPERGEF_WIDTH:
        yield skipped("HyperGef", "no kernel for this dtype or width")
        return
    inputs = problem.inputs
    function = published.HyperGef(checkout, inputs["hyperedge_indptr"])
    ones = np.ones(graph.num_hyperedges, np.float32)
    names = "x", "node_scale", "hyperedge_scale"
    operands = *(inputs[name] for name in names), ones, inputs["hyperedge_nodes"]
    cotangent = [inputs["cotangent"]] if case.mode == "fwd+bwd" else []
    yield Candidate("HyperGef", function, (*operands, *cotangent))


def pyg_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``torch_geometric.nn.HypergraphConv``, and two scatters with degrees known beforehand."""
    from torch_geometric.utils import scatter

    def forward(x: Any, node_idx: Any, edge_idx: Any, node_scale: Any, edge_scale: Any) -> Any:
        messages = (x * node_scale).index_select(0, node_idx)
        edges = scatter(messages, edge_idx, 0, graph.num_hyperedges, reduce="sum") * edge_scale
        messages = edges.index_select(0, edge_idx)
        return scatter(messages, node_idx, 0, graph.num_nodes, reduce="sum") * node_scale

    operands = (
        int64(graph, "node_idx"),
        int64(graph, "hyperedge_idx"),
        problem.inputs["node_scale"][:, None],
        problem.inputs["hyperedge_scale"][:, None],
    )
    yield torch_candidate("PyG two scatters", forward, problem, operands)
    conv = hypergraph_conv(case.width, graph.num_hyperedges)
    layer_operands = hypergraph_conv_operands(graph, case.dtype)
    yield torch_candidate("PyG HypergraphConv", conv, problem, layer_operands)


OP = Op(
    name="hypergraph_aggregate",
    title="Hypergraph aggregation Dv^-1/2 H De^-1 Hᵀ Dv^-1/2 X",
    workloads=hypergraphs,
    modes={"fwd": (), "fwd+bwd": ()},
    widths={"cpu": (32, 64), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("torch", "torch", ("torch",), torch_candidates),
        Family("cusparse", "torch", ("torch",), cusparse_candidates, platforms=("gpu",)),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
        checkout_family("hypergef", hypergef_candidates, "HyperGef"),
    ),
    baseline=TWO_SEGMENT_SUMS,
)
