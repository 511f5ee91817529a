"""What candidates of several ops share: differentiation, plain JAX's ways to add up rows, torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.definition import Candidate, Family, Problem
from benchmarks.problems import numpy_dtype, once
from benchmarks.workloads import Incidence, PlainGraph


@once
def edge_weights(graph: PlainGraph, dtype: str) -> np.ndarray:
    """Normal numbers, one for each edge: the same object for the same graph."""
    rng = np.random.default_rng([graph.num_nodes, graph.num_edges])
    return rng.standard_normal(graph.num_edges, np.float32).astype(numpy_dtype(dtype))


LARGEST = {"cpu": 2.5e9, "cuda": 50e9}
"""Bytes that a peer's arrays beyond inputs and outputs may have: more are out of memory, of which a
process with JAX may take 0.4 on a GPU."""


def bounded(candidate: Candidate, num_bytes: float, device: str = "") -> Candidate:
    """The candidate, or that it is skipped, whose arrays have so many bytes, by default in JAX."""
    if not device:
        import jax

        device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if num_bytes <= LARGEST[device]:
        return candidate
    reason = f"out of memory: arrays of more than {LARGEST[device] / 1e9:.3g} GB"
    return replace(candidate, skip=reason)


# JAX.


def jax_candidate(
    name: str,
    forward: Callable[..., Any],
    problem: Problem,
    operands: tuple[Any, ...],
    inputs: tuple[str, ...] = ("x",),
) -> Candidate:
    """``forward(*inputs, *operands)``, or it and its gradients to the inputs.

    The gradients are wanted where the problem has an input called "cotangent".
    """
    import jax

    arguments = tuple(problem.inputs[name] for name in inputs)
    cotangent = problem.inputs.get("cotangent")
    if cotangent is None:
        return Candidate(name, lambda *all_: (forward(*all_),), (*arguments, *operands))

    def forward_backward(cotangent: Any, *rest: Any) -> tuple[Any, ...]:
        primals, operands = rest[: len(inputs)], rest[len(inputs) :]
        y, pullback = jax.vjp(lambda *primals: forward(*primals, *operands), *primals)
        return y, *pullback(cotangent)

    return Candidate(name, forward_backward, (cotangent, *arguments, *operands))


@once
def jax_gnn_graph(graph: PlainGraph) -> Any:
    """The same graph as this library's container."""
    import jax_gnn

    return jax_gnn.Graph.from_edges(graph.cols, graph.rows, num_nodes=graph.num_nodes)


class Order(NamedTuple):
    """Incidence pairs or edges in one order: rows to gather and segments to add them to."""

    gather: np.ndarray
    segment: np.ndarray


def gather_sum(num_segments: int, is_sorted: bool = True) -> Callable[..., Any]:
    """Differentiated by JAX, whose transpose adds in the order of the gather, unsorted."""
    import jax

    def gather_sum(x: Any, order: Order, opposite: Order) -> Any:
        return jax.ops.segment_sum(
            x[order.gather], order.segment, num_segments, indices_are_sorted=is_sorted
        )

    return gather_sum


def bcoo(
    values: Any, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], unique: bool = True
) -> Any:
    """A sparse matrix whose entries are sorted by row."""
    import jax.numpy as jnp
    from jax.experimental import sparse

    indices = jnp.stack([jnp.asarray(rows), jnp.asarray(cols)], axis=1)
    return sparse.BCOO(
        (jnp.asarray(values), indices), shape=shape, indices_sorted=True, unique_indices=unique
    )


# torch.


def torch_candidate(
    name: str,
    forward: Callable[..., Any],
    problem: Problem,
    operands: tuple[Any, ...],
    inputs: tuple[str, ...] = ("x",),
) -> Candidate:
    """As `jax_candidate`, with autograd."""
    import torch

    arguments = tuple(problem.inputs[name] for name in inputs)
    cotangent = problem.inputs.get("cotangent")

    def forward_only(*all_: Any) -> tuple[Any]:
        trains = any(torch.is_tensor(value) and value.requires_grad for value in all_)
        with torch.set_grad_enabled(trains and torch.is_grad_enabled()):
            return (forward(*all_),)

    def forward_backward(cotangent: Any, *rest: Any) -> tuple[Any, ...]:
        primals = [tensor.detach().requires_grad_() for tensor in rest[: len(inputs)]]
        y = forward(*primals, *rest[len(inputs) :])
        return y.detach(), *torch.autograd.grad(y, primals, cotangent)

    if cotangent is None:
        return Candidate(name, forward_only, (*arguments, *operands))
    return Candidate(name, forward_backward, (cotangent, *arguments, *operands))


def torch_csr(indptr: np.ndarray, cols: np.ndarray, values: Any, num_cols: int, dtype: str) -> Any:
    """A sparse matrix on torch's default device."""
    import torch

    return torch.sparse_csr_tensor(
        torch.tensor(indptr),
        torch.tensor(cols),
        torch.tensor(np.asarray(values, np.float64)).to(getattr(torch, dtype)),
        size=(len(indptr) - 1, num_cols),
        check_invariants=False,
    )


@once
def int64(graph: Any, name: str) -> np.ndarray:
    """An index array of a graph, as PyG and torch's scatters want it."""
    return getattr(graph, name).astype(np.int64)


def hypergraph_conv(width: int, num_hyperedges: int) -> Callable[..., Any]:
    """PyG's ``HypergraphConv`` with symmetric normalisation, without weights.

    The layer divides by the degree of a node after both sums. Scaling its input and its output
    gives Dv^-1/2 H De^-1 Hᵀ Dv^-1/2 X: it is called with features, the incidence pairs (2, pairs),
    Dv^-1/2 and Dv^1/2, each (nodes, 1).
    """
    import torch
    from torch_geometric.nn import HypergraphConv

    conv = HypergraphConv(width, width, bias=False)
    conv.lin = torch.nn.Identity()

    def forward(x: Any, pairs: Any, scale: Any, root: Any) -> Any:
        return conv(x * scale, pairs, num_edges=num_hyperedges) * root

    return forward


@once
def hypergraph_conv_operands(graph: Incidence, dtype: str) -> tuple[np.ndarray, ...]:
    """What `hypergraph_conv` is called with beside features."""
    degrees = graph.node_degrees[:, None].astype(numpy_dtype(dtype))
    scale = np.where(degrees > 0, np.maximum(degrees, 1) ** -0.5, 0).astype(degrees.dtype)
    pairs = np.stack([int64(graph, "node_idx"), int64(graph, "hyperedge_idx")])
    return pairs, scale, degrees**0.5


# Published kernels.


def checkout_family(
    name: str, candidates: Callable[..., Iterator[Candidate]], checkout: str
) -> Family:
    """Candidates that need a checkout, on a GPU by torch."""
    return Family(name, "torch", ("torch",), candidates, ("gpu",), checkout)


def skipped(name: str, reason: str) -> Candidate:
    """A candidate that says why it is not run."""
    return Candidate(name, tuple, (), skip=reason)
