"""Hypergraph aggregation of HGNN: Y = Dv^-1/2 H De^-1 Hᵀ Dv^-1/2 X (arXiv 1809.09401, eq. 10).

The degree scalings are computed beforehand. The operator is symmetric, so that the gradient to X
is the operator itself applied to the cotangent; no candidate makes use of that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse

from benchmarks.harness import Candidate, Case, Family, Op, Problem
from benchmarks.report import OURS
from benchmarks.workloads import Incidence, hypergraphs


def problem(graph: Incidence, case: Case) -> Problem:
    """Both sorted orders as CSR, the scalings, X and, for the backward pass, its cotangent."""
    dtype = _numpy_dtype(case.dtype)
    rng = np.random.default_rng(case.seed)
    with np.errstate(divide="ignore"):
        node_scale = np.where(graph.node_degrees > 0, graph.node_degrees**-0.5, 0).astype(dtype)
        edge_scale = np.where(graph.hyperedge_degrees > 0, 1 / graph.hyperedge_degrees, 0)
    edge_scale = edge_scale.astype(dtype)
    inputs = {
        "hyperedge_indptr": _indptr(graph.hyperedge_degrees),
        "hyperedge_nodes": graph.node_idx,
        "node_indptr": _indptr(graph.node_degrees),
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
    return Problem(inputs, tuple(map(operator, dense)), dtype)


# This library.


def jax_gnn_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op as users call it, and its plain-XLA implementation."""
    import jax_gnn

    inputs = problem.inputs
    hypergraph = jax_gnn.Hypergraph.from_incidence(
        graph.node_idx,
        graph.hyperedge_idx,
        num_nodes=graph.num_nodes,
        num_hyperedges=graph.num_hyperedges,
    )
    operands = (hypergraph, inputs["node_scale"], inputs["hyperedge_scale"])
    # Where the platform's kernel is missing the op warns and takes its plain XLA: not what we time.
    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    implementations: dict[str, Literal["xla"] | None] = {OURS: None, f"{OURS}, xla": "xla"}
    for name, implementation in implementations.items():

        def forward(
            x: Any,
            hypergraph: Any,
            node_scale: Any,
            edge_scale: Any,
            implementation: Literal["xla"] | None = implementation,
        ) -> Any:
            return jax_gnn.hypergraph_aggregate(
                hypergraph,
                x,
                node_scale_in=node_scale,
                node_scale_out=node_scale,
                hyperedge_scale=edge_scale,
                implementation=implementation,
            )

        yield _jax_candidate(name, forward, problem, operands)


# Plain JAX.

TWO_SEGMENT_SUMS = "two segment_sum, sorted"


class Order(NamedTuple):
    """Incidence pairs in one order: the rows to gather and the segments to add them to."""

    gather: np.ndarray
    segment: np.ndarray


def plain_jax_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library."""
    num_nodes, num_edges = graph.num_nodes, graph.num_hyperedges
    by_edge, by_node = (graph.node_idx, graph.hyperedge_idx), graph.by_node
    to_edges, to_nodes = Order(*by_edge), Order(*by_node[::-1])
    scales = problem.inputs["node_scale"], problem.inputs["hyperedge_scale"]

    to_edges_sum, to_nodes_sum = _gather_sum(num_edges), _gather_sum(num_nodes)
    yield _jax_candidate(
        TWO_SEGMENT_SUMS,
        _two_sums(to_edges_sum, to_nodes_sum),
        problem,
        (to_edges, to_nodes, *scales),
    )
    if case.mode == "fwd+bwd":  # the forward alone is the candidate above
        yield _jax_candidate(
            "two segment_sum, paired orders",
            _two_sums(_paired_sum(num_edges, num_nodes), _paired_sum(num_nodes, num_edges)),
            problem,
            (to_edges, to_nodes, *scales),
        )
    yield _jax_candidate(
        "two segment_sum, one order",
        _two_sums(to_edges_sum, _gather_sum(num_nodes, is_sorted=False)),
        problem,
        (to_edges, Order(*by_edge[::-1]), *scales),
    )
    matrices = (
        _bcoo(by_edge[::-1], (num_edges, num_nodes), problem),
        _bcoo(by_node, (num_nodes, num_edges), problem),
    )
    yield _jax_candidate("two BCOO products", _two_products, problem, (*matrices, *scales))


def _two_sums(to_edges_sum: Callable[..., Any], to_nodes_sum: Callable[..., Any]) -> Any:
    """The aggregate from two functions of (features, order, opposite order)."""

    def forward(x: Any, to_edges: Order, to_nodes: Order, node_scale: Any, edge_scale: Any) -> Any:
        edges = to_edges_sum(x * node_scale[:, None], to_edges, to_nodes)
        nodes = to_nodes_sum(edges * edge_scale[:, None], to_nodes, to_edges)
        return nodes * node_scale[:, None]

    return forward


def _gather_sum(num_segments: int, is_sorted: bool = True) -> Callable[..., Any]:
    """Differentiated by JAX, whose transpose adds in the order of the gather, unsorted."""
    import jax

    def gather_sum(x: Any, order: Order, opposite: Order) -> Any:
        return jax.ops.segment_sum(
            x[order.gather], order.segment, num_segments, indices_are_sorted=is_sorted
        )

    return gather_sum


def _paired_sum(num_segments: int, num_rows: int) -> Callable[..., Any]:
    """The gradient is a sorted sum too, over the opposite order."""
    import jax

    paired = jax.custom_vjp(_gather_sum(num_segments))
    transposed = _gather_sum(num_rows)

    def forward(x: Any, order: Order, opposite: Order) -> Any:
        return paired(x, order, opposite), (order, opposite)

    def backward(orders: tuple[Order, Order], cotangent: Any) -> Any:
        order, opposite = orders
        return transposed(cotangent, opposite, order), None, None

    paired.defvjp(forward, backward)
    return paired


def _bcoo(pairs: tuple[np.ndarray, np.ndarray], shape: tuple[int, int], problem: Problem) -> Any:
    """Sparse matrix of ones; ``pairs`` are its rows and columns, sorted by row."""
    import jax.numpy as jnp
    from jax.experimental import sparse

    ones = jnp.ones(len(pairs[0]), problem.output_dtype)
    indices = jnp.asarray(np.stack(pairs, axis=1))
    return sparse.BCOO((ones, indices), shape=shape, indices_sorted=True, unique_indices=True)


def _two_products(x: Any, to_edges: Any, to_nodes: Any, node_scale: Any, edge_scale: Any) -> Any:
    edges = to_edges @ (x * node_scale[:, None])
    return (to_nodes @ (edges * edge_scale[:, None])) * node_scale[:, None]


def _jax_candidate(
    name: str, forward: Callable[..., Any], problem: Problem, operands: tuple[Any, ...]
) -> Candidate:
    """``forward(x, *operands)``, or it and its gradient to x."""
    import jax

    x, cotangent = problem.inputs["x"], problem.inputs.get("cotangent")
    if cotangent is None:
        return Candidate(name, lambda x, *rest: (forward(x, *rest),), (x, *operands))

    def forward_backward(x: Any, cotangent: Any, *rest: Any) -> tuple[Any, Any]:
        y, pullback = jax.vjp(lambda x: forward(x, *rest), x)
        return y, *pullback(cotangent)

    return Candidate(name, forward_backward, (x, cotangent, *operands))


# torch.


def torch_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Two sparse products (cuSPARSE or MKL), with the scalings folded into the matrices' values.

    The backward pass multiplies by transposed matrices that are built beforehand, without autograd.
    """
    inputs = problem.inputs
    scale, edge_scale = inputs["node_scale"].astype(float), inputs["hyperedge_scale"].astype(float)
    by_node, by_edge = graph.by_node, (graph.hyperedge_idx, graph.node_idx)
    shape = graph.num_nodes, graph.num_hyperedges

    def matrix(pairs: tuple[np.ndarray, np.ndarray], shape: tuple[int, int], values: Any) -> Any:
        import torch

        return torch.sparse_csr_tensor(
            torch.tensor(_indptr(np.bincount(pairs[0], minlength=shape[0]))),
            torch.tensor(pairs[1]),
            _torch_tensor(values, case.dtype),
            size=shape,
            check_invariants=False,
        )

    # Forward Dv^-1/2 H and De^-1 Hᵀ Dv^-1/2, then their transposes.
    to_nodes = matrix(by_node, shape, scale[by_node[0]])
    to_edges = matrix(by_edge, shape[::-1], edge_scale[by_edge[0]] * scale[by_edge[1]])
    matrices = [to_nodes, to_edges]
    if case.mode == "fwd+bwd":
        matrices += [
            matrix(by_edge, shape[::-1], scale[by_edge[1]]),
            matrix(by_node, shape, edge_scale[by_node[1]] * scale[by_node[0]]),
        ]

    def forward(x: Any, to_nodes: Any, to_edges: Any) -> tuple[Any]:
        return (to_nodes @ (to_edges @ x),)

    def forward_backward(
        x: Any, cotangent: Any, to_nodes: Any, to_edges: Any, from_nodes: Any, from_edges: Any
    ) -> tuple[Any, Any]:
        return to_nodes @ (to_edges @ x), from_edges @ (from_nodes @ cotangent)

    dense = _torch_features(problem, case)
    function = forward if len(dense) == 1 else forward_backward
    yield Candidate("two torch CSR products", function, (*dense, *matrices))


def pyg_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Two scatters, as ``torch_geometric.nn.HypergraphConv`` and AllSet's code do."""
    import torch
    from torch_geometric.utils import scatter

    inputs = problem.inputs

    def forward(x: Any, node_idx: Any, edge_idx: Any, node_scale: Any, edge_scale: Any) -> Any:
        messages = (x * node_scale).index_select(0, node_idx)
        edges = scatter(messages, edge_idx, 0, graph.num_hyperedges, reduce="sum") * edge_scale
        messages = edges.index_select(0, edge_idx)
        return scatter(messages, node_idx, 0, graph.num_nodes, reduce="sum") * node_scale

    def forward_only(x: Any, *rest: Any) -> tuple[Any]:
        with torch.no_grad():
            return (forward(x, *rest),)

    def forward_backward(x: Any, cotangent: Any, *rest: Any) -> tuple[Any, Any]:
        y = forward(x, *rest)
        return y.detach(), *torch.autograd.grad(y, x, cotangent)

    dense = _torch_features(problem, case)
    if len(dense) == 2:
        dense[0].requires_grad_()
    rest = (
        torch.tensor(graph.node_idx.astype(np.int64)),
        torch.tensor(graph.hyperedge_idx.astype(np.int64)),
        _torch_tensor(inputs["node_scale"], case.dtype)[:, None],
        _torch_tensor(inputs["hyperedge_scale"], case.dtype)[:, None],
    )
    function = forward_only if len(dense) == 1 else forward_backward
    yield Candidate("PyG two scatters", function, (*dense, *rest))


def _torch_features(problem: Problem, case: Case) -> list[Any]:
    names = [name for name in ("x", "cotangent") if name in problem.inputs]
    return [_torch_tensor(problem.inputs[name], case.dtype) for name in names]


def _torch_tensor(array: np.ndarray, dtype: str) -> Any:
    import torch

    return torch.tensor(array.astype(np.float64)).to(getattr(torch, dtype))


def _indptr(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def _numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


OP = Op(
    name="hypergraph_aggregate",
    title="Hypergraph aggregation Dv^-1/2 H De^-1 Hᵀ Dv^-1/2 X",
    workloads=hypergraphs,
    modes=("fwd", "fwd+bwd"),
    widths={"cpu": (32, 64), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("torch", "torch", ("torch",), torch_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
    ),
    baseline=TWO_SEGMENT_SUMS,
)
