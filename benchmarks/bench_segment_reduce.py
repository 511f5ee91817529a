"""Segment reduction by sorted ids: Y[s] = reduction of the X[e] with id s; softmax within segments.

The floor reads X and the ids once, 4 bytes each, also where a candidate needs only row pointers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import published
from benchmarks.cusparse import SPMM_ALGORITHMS, prepared
from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.peers import (
    checkout_family,
    int64,
    jax_candidate,
    skipped,
    torch_candidate,
    torch_csr,
)
from benchmarks.problems import (
    Expected,
    Sample,
    features,
    numpy_dtype,
    once,
    reduce_sample,
    sample_segments,
)
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, plain_graphs

LARGE_TWINS = ("flickr-twin", "ogbn-arxiv-twin", "ogbl-collab-twin", "reddit2-twin")

SOFTMAX_WIDTHS = (4, 16, 32)
"""Softmax is used on attention logits: a number for each head."""


def workloads(data: Path | None) -> dict[str, Workload]:
    """Plain graphs: an edge's id is its destination. Small ones run when they are named."""
    found = plain_graphs(data).values()
    return {w.name: replace(w, on_request=w.name not in LARGE_TWINS) for w in found}


def problem(graph: PlainGraph, case: Case) -> Problem:
    """X, the ids and, for the backward pass, the cotangent."""
    inputs: dict[str, Any] = {
        "x": features("x", graph.num_edges, case.width, case.dtype),
        "ids": graph.rows,
    }
    reduction, _, backward = case.mode.partition(" ")
    sample = sample_segments(graph.indptr, case.width)
    x = inputs["x"].rows(sample.entries)
    dtype = numpy_dtype(case.dtype)
    if reduction != "softmax":
        shape = graph.num_nodes, case.width
        values = REDUCTIONS[reduction].reference(sample, x)
        return Problem(inputs, (Expected(values, shape, sample.segments),), dtype)
    outputs = [_softmax(sample, x)]
    if backward:
        inputs["cotangent"] = features("cotangent", graph.num_edges, case.width, case.dtype)
        products = outputs[0] * inputs["cotangent"].rows(sample.entries)
        sums = reduce_sample(sample, products, np.add)[sample.segment_of_entry]
        outputs.append(products - outputs[0] * sums)
    shape = inputs["x"].shape
    return Problem(inputs, tuple(Expected(y, shape, sample.entries) for y in outputs), dtype)


def _mean(sample: Sample, x: np.ndarray) -> np.ndarray:
    return reduce_sample(sample, x, np.add) / np.diff(sample.indptr)[:, None]


def _logsumexp(sample: Sample, x: np.ndarray) -> np.ndarray:
    return np.log(reduce_sample(sample, np.exp(x), np.add))


def _softmax(sample: Sample, x: np.ndarray) -> np.ndarray:
    segment = sample.segment_of_entry
    powers = np.exp(x - reduce_sample(sample, x, np.maximum)[segment])
    return powers / reduce_sample(sample, powers, np.add)[segment]


# This library.


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op as users call it, and by row pointers."""
    import jax_gnn

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    reduce = getattr(jax_gnn, f"segment_{case.mode.partition(' ')[0]}")

    def by_ids(x: Any, ids: Any) -> Any:
        return reduce(x, ids, graph.num_nodes, indices_are_sorted=True)

    def by_indptr(x: Any, indptr: Any) -> Any:
        return reduce(x, indptr=indptr)

    yield jax_candidate(OURS, by_ids, problem, (graph.rows,))
    yield jax_candidate(f"{OURS}, indptr", by_indptr, problem, (graph.indptr,))


# Plain JAX.

SORTED, UNSORTED = "jax.ops, sorted", "jax.ops, unsorted"


def plain_jax_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library, with and without the word that ids are sorted."""
    forward = REDUCTIONS[case.mode.partition(" ")[0]].plain_jax
    for name, is_sorted in ((SORTED, True), (UNSORTED, False)):
        options = {"num_segments": graph.num_nodes, "indices_are_sorted": is_sorted}
        yield jax_candidate(name, partial(forward, options), problem, (graph.rows,))


def _plain(name: str) -> Callable[..., Any]:
    def reduce(options: dict[str, Any], x: Any, ids: Any) -> Any:
        import jax

        return getattr(jax.ops, f"segment_{name}")(x, ids, **options)

    return reduce


def _plain_mean(options: dict[str, Any], x: Any, ids: Any) -> Any:
    import jax.numpy as jnp

    counts = _plain("sum")(options, jnp.ones(len(ids), x.dtype), ids)
    return _plain("sum")(options, x, ids) / jnp.maximum(counts, 1)[:, None]


def _plain_powers(options: dict[str, Any], x: Any, ids: Any) -> tuple[Any, Any, Any]:
    import jax
    import jax.numpy as jnp

    largest = jax.lax.stop_gradient(_plain("max")(options, x, ids))
    powers = jnp.exp(x - largest[ids])
    return largest, powers, _plain("sum")(options, powers, ids)


def _plain_logsumexp(options: dict[str, Any], x: Any, ids: Any) -> Any:
    import jax.numpy as jnp

    largest, _, sums = _plain_powers(options, x, ids)
    return jnp.log(sums) + largest


def _plain_softmax(options: dict[str, Any], x: Any, ids: Any) -> Any:
    _, powers, sums = _plain_powers(options, x, ids)
    return powers / sums[ids]


# torch.


def _torch_softmax(scatter: Callable[..., Any], x: Any, ids: Any) -> Any:
    powers = (x - scatter(x.detach(), ids, "amax").index_select(0, ids)).exp()
    return powers / scatter(powers, ids, "sum").index_select(0, ids)


def _torch_logsumexp(scatter: Callable[..., Any], x: Any, ids: Any) -> Any:
    largest = scatter(x.detach(), ids, "amax")
    return scatter((x - largest.index_select(0, ids)).exp(), ids, "sum").log() + largest


def torch_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``scatter_reduce``, ``segment_reduce``, ``index_add`` and a sparse matrix of ones."""
    import torch

    reduction = case.mode.partition(" ")[0]
    ids, num_nodes = int64(graph, "rows"), graph.num_nodes

    def scatter(x: Any, ids: Any, reduce: str) -> Any:
        start = {"amax": -torch.inf, "amin": torch.inf}.get(reduce, 0.0)
        out = x.new_full((num_nodes, x.shape[1]), start)
        # A mean must not count the zero that it starts from; the others may.
        include = reduce != "mean"
        return out.scatter_reduce(0, ids[:, None].expand_as(x), x, reduce, include_self=include)

    def index_add(x: Any, ids: Any) -> Any:
        return x.new_zeros(num_nodes, x.shape[1]).index_add(0, ids, x)

    def segments(x: Any, indptr: Any) -> Any:
        start = {"sum": 0.0, "mean": 0.0}.get(reduction)
        return torch.segment_reduce(x, reduction, offsets=indptr, initial=start, unsafe=True)

    torch_reduction = REDUCTIONS[reduction].torch
    if isinstance(torch_reduction, str):
        how = partial(scatter, reduce=torch_reduction)
        yield torch_candidate("torch scatter_reduce", how, problem, (ids,))
        yield torch_candidate("torch segment_reduce", segments, problem, (int64(graph, "indptr"),))
    else:
        composed = partial(torch_reduction, scatter)
        yield torch_candidate("torch scatter_reduce", composed, problem, (ids,))
    if reduction == "sum":
        yield torch_candidate("torch index_add", index_add, problem, (ids,))
        matrix = _ones(graph, case.dtype)
        yield torch_candidate("torch CSR of ones", lambda x, ones: ones @ x, problem, (matrix,))


def pyg_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``torch_geometric.utils.scatter`` and ``softmax``."""
    from torch_geometric.utils import scatter, softmax

    reduction = case.mode.partition(" ")[0]
    operands = (int64(graph, "rows"),)
    if reduction == "softmax":

        def by_ids(x: Any, ids: Any) -> Any:
            return softmax(x, ids, num_nodes=graph.num_nodes)

        yield torch_candidate("PyG softmax", by_ids, problem, operands)
    elif isinstance(REDUCTIONS[reduction].torch, str):

        def reduce(x: Any, ids: Any) -> Any:
            return scatter(x, ids, 0, graph.num_nodes, reduce=reduction)

        yield torch_candidate("PyG scatter", reduce, problem, operands)


@once
def _ones(graph: PlainGraph, dtype: str) -> Any:
    """A matrix with a one in row s and column e for each element e of segment s."""
    columns = np.arange(graph.num_edges, dtype=np.int32)
    return torch_csr(graph.indptr, columns, np.ones(graph.num_edges), graph.num_edges, dtype)


def cusparse_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The same product, with everything that can be done beforehand."""
    if case.mode == "sum":
        operands = _ones(graph, case.dtype), problem.inputs["x"]
        for algorithm in SPMM_ALGORITHMS:
            yield Candidate(f"cuSPARSE {algorithm} of ones", prepared(algorithm), operands)


def geot_candidates(
    checkout: Path, graph: PlainGraph, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """GeoT's sum by ids."""
    if case.mode != "sum":
        return
    if case.dtype != "float32":
        yield skipped("GeoT", "no kernel for this dtype")
        return
    function = published.geot_sum(checkout, graph.num_nodes)
    yield Candidate("GeoT", function, (problem.inputs["x"], int64(graph, "rows")))


def pyg_lib_candidates(
    checkout: Path, graph: PlainGraph, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """``segment_coo`` of pyg-lib."""
    if case.mode == "sum":
        function = published.pyg_lib(checkout, "sum")

        def run(x: Any, ids: Any) -> tuple[Any]:
            return (function(x, ids, graph.num_nodes),)

        yield Candidate("pyg-lib segment_coo", run, (problem.inputs["x"], int64(graph, "rows")))


class Reduction(NamedTuple):
    """How a reduction is computed without this library.

    Attributes:
        reference: function of a sample of the segments and of their rows, in numpy.
        plain_jax: function of options of ``jax.ops``, rows and ids.
        torch: name in ``scatter_reduce``, or a function of ``scatter_reduce``, rows and ids.
        widths: widths that are measured, all those of the op if empty.
    """

    reference: Callable[[Sample, np.ndarray], np.ndarray]
    plain_jax: Callable[..., Any]
    torch: str | Callable[..., Any]
    widths: tuple[int, ...] = ()


REDUCTIONS = {
    "sum": Reduction(partial(reduce_sample, ufunc=np.add), _plain("sum"), "sum"),
    "mean": Reduction(_mean, _plain_mean, "mean"),
    "max": Reduction(partial(reduce_sample, ufunc=np.maximum), _plain("max"), "amax"),
    "min": Reduction(partial(reduce_sample, ufunc=np.minimum), _plain("min"), "amin"),
    "logsumexp": Reduction(_logsumexp, _plain_logsumexp, _torch_logsumexp, SOFTMAX_WIDTHS),
    "softmax": Reduction(_softmax, _plain_softmax, _torch_softmax, SOFTMAX_WIDTHS),
}

OP = Op(
    name="segment_reduce",
    title="Segment reduction by sorted ids",
    workloads=workloads,
    modes={
        **{name: reduction.widths for name, reduction in REDUCTIONS.items()},
        "softmax fwd+bwd": SOFTMAX_WIDTHS,
    },
    widths={"cpu": (4, 16, 32, 64, 128), "gpu": (4, 16, 32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("torch", "torch", ("torch",), torch_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
        Family("cusparse", "torch", ("torch",), cusparse_candidates, platforms=("gpu",)),
        checkout_family("geot", geot_candidates, "GeoT"),
        checkout_family("pyg-lib", pyg_lib_candidates, "pyg-lib"),
    ),
    baseline=SORTED,
)
