"""HyperGef's techniques on and off (its figures 8 to 10), on this library's own kernels.

A schedule is forced for each stage; ``jax_gnn`` is what the rule chooses.

* ``two spmm``: no fusion, two calls of this library's sparse product and scales between them;
* ``group size N, no grouping``: fused, a team takes N incidences (the paper's g_s), and blocks are
  a warp: what teams share of a row goes through memory;
* ``group size N``: with blocks of 128 threads, in whose shared memory partial sums meet first.

On a CPU, which has no schedules, all but the first are alike. The edge split itself cannot be
switched off: hypergraph_designs-nvidia-h200.md has what kernels by rows took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.bench_hypergraph_aggregate import OP as WHOLE
from benchmarks.bench_hypergraph_aggregate import aggregate, containers, jax_gnn_candidates
from benchmarks.definition import Candidate, Case, Family, Problem
from benchmarks.peers import jax_candidate
from benchmarks.report import OURS
from benchmarks.workloads import Incidence

UNFUSED = "two spmm"
ROUNDS = (1, 2, 4, 8, 16)


def candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """A candidate for each stage."""
    from jax_gnn import hyperedge_to_node, node_to_hyperedge
    from jax_gnn._core.csr import SLOT_SIZE
    from jax_gnn.schedules import HypergraphSchedule

    operands = containers(graph, problem)

    def unfused(x: Any, hypergraph: Any, node_scale: Any, edge_scale: Any) -> Any:
        h = node_to_hyperedge(hypergraph, x * node_scale[:, None]) * edge_scale[:, None]
        return hyperedge_to_node(hypergraph, h) * node_scale[:, None]

    yield jax_candidate(UNFUSED, unfused, problem, operands)
    stages = {
        f"group size {SLOT_SIZE * rounds}{name}": HypergraphSchedule(threads, rounds, rounds)
        for threads, name in ((32, ", no grouping"), (128, ""))
        for rounds in ROUNDS
    }
    for name, schedule in stages.items():
        yield replace(jax_candidate(name, aggregate, problem, operands), schedule=schedule)


OP = replace(
    WHOLE,
    name="hypergraph_ablation",
    title="Hypergraph aggregation with fusion and grouping on and off, over group sizes",
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("schedules", "jax", ("jax_gnn",), candidates),
    ),
    baseline=UNFUSED,
)
