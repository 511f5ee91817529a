"""HyperGef's techniques on and off (its figures 8 to 10), on this library's own kernels.

A schedule is forced for each stage; ``jax_gnn`` is what the rule chooses.

* ``two spmm``: no fusion, two calls of this library's sparse product and scales between them;
* ``by rows``: fused, a hyperedge or a node to a team of threads, as before the edge split;
* ``edge split, N blocks``: fused, equal parts of the incidences. The more blocks, the smaller the
  part of a team (the paper's group size), and the fewer partial sums meet in shared memory before
  they are written (its grouping): the last stage leaves a team a batch of eight.

On a CPU, which has no schedules, all but the first are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.bench_hypergraph_aggregate import OP as WHOLE
from benchmarks.bench_hypergraph_aggregate import aggregate, containers, jax_gnn_candidates
from benchmarks.harness import Candidate, Case, Family, Problem
from benchmarks.peers import jax_candidate
from benchmarks.report import OURS
from benchmarks.workloads import Incidence

UNFUSED = "two spmm"
BLOCKS = tuple(132 * factor for factor in (1, 2, 4, 8, 32))


def candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """A candidate for each stage."""
    from jax_gnn import hyperedge_to_node, node_to_hyperedge
    from jax_gnn.schedules import HypergraphSchedule

    operands = containers(graph, problem)

    def unfused(x: Any, hypergraph: Any, node_scale: Any, edge_scale: Any) -> Any:
        h = node_to_hyperedge(hypergraph, x * node_scale[:, None]) * edge_scale[:, None]
        return hyperedge_to_node(hypergraph, h) * node_scale[:, None]

    yield jax_candidate(UNFUSED, unfused, problem, operands)
    stages = {"by rows": HypergraphSchedule(True, 128, 528)}
    stages |= {f"edge split, {n} blocks": HypergraphSchedule(False, 128, n) for n in BLOCKS}
    for name, schedule in stages.items():
        yield replace(jax_candidate(name, aggregate, problem, operands), schedule=schedule)


OP = replace(
    WHOLE,
    name="hypergraph_ablation",
    title="Hypergraph aggregation with fusion and edge split on and off",
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("schedules", "jax", ("jax_gnn",), candidates),
    ),
    baseline=UNFUSED,
)
