"""Graphs split into parts: how equal these are, and how many rows travel between them.

``python -m benchmarks sharding --data DIR`` splits ``DIR/homogeneous/*.npz`` in each way. All that
it counts holds on any device; times are of this machine's CPU.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from benchmarks.definition import Settings
from benchmarks.worker import probe
from benchmarks.workloads import plain_graphs

GRAPHS = ("pubmed", "coauthor_physics", "amazon_computers")


def run(data: Path | None, graphs: Sequence[str], num_parts: int) -> dict[str, Any]:
    """Splits the graphs; a document for JSON."""
    from jax_gnn.sharding._partition import Method

    known = plain_graphs(data)
    missing = [name for name in graphs if name not in known]
    if missing:
        raise ValueError(f"no graphs are called {', '.join(missing)}; --data names their folder")
    methods = [m for m in get_args(Method) if m != "auto"]
    if not importlib.util.find_spec("pymetis"):
        methods.remove("metis")
    rows = [_split(known[name].load(), name, m, num_parts) for name in graphs for m in methods]
    date = datetime.now(UTC).date().isoformat()
    machine = probe(Settings(platform="cpu"))
    return {"date": date, "machine": machine, "parts": num_parts, "rows": rows}


def _split(given: Any, name: str, method: Any, num_parts: int) -> dict[str, Any]:
    """One graph in one way."""
    from jax_gnn import Graph, host_arrays
    from jax_gnn.sharding import partition
    from jax_gnn.sharding._command import costs_of
    from jax_gnn.sharding._partition import SplitArgs
    from jax_gnn.sharding._split import split_graph

    with host_arrays():
        graph = Graph.from_edges(given.cols, given.rows, num_nodes=given.num_nodes)
        start = time.perf_counter()
        parts = partition(graph, num_parts, method)
        parted = time.perf_counter()
        pieces, _ = split_graph(SplitArgs(graph, num_parts, parts), "")
        (nodes, edges, halo), (exchange,) = costs_of(pieces)
        stop = time.perf_counter()
    needed = int(halo.sum())
    return {
        "graph": name,
        "method": method,
        "edges": graph.num_edges,
        "edges_max_over_mean": float(edges.max() / edges.mean()),
        "nodes_max_over_mean": float(nodes.max() / nodes.mean()),
        "halo_over_own": needed / exchange.num_own,
        "sent_over_wanted": exchange.sent / max(needed, 1),
        "rounds": exchange.rounds,
        "seconds_partition": parted - start,
        "seconds_plan": stop - parted,
    }


def markdown(document: dict[str, Any]) -> str:
    """A table of a run."""
    lines = [
        f"# Graphs in {document['parts']} parts",
        "",
        f"{document['machine']['device']}, {document['date']}. Edges and nodes: of the largest "
        "part over the mean. Halo: rows that devices want of others, over their own. Sent: rows "
        "that travel, padding included, over those that are wanted.",
        "",
        "| graph | edges | method | edges, × | nodes, × | halo | sent, × | rounds | parts, s "
        "| plan, s |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in document["rows"]:
        cells = [row["graph"], f"{row['edges']:,}", row["method"]]
        cells += [f"{row[f'{what}_max_over_mean']:.2f}" for what in ("edges", "nodes")]
        cells += [f"{row['halo_over_own']:.2f}", f"{row['sent_over_wanted']:.2f}"]
        cells += [str(row["rounds"])]
        cells += [f"{row[f'seconds_{what}']:.2g}" for what in ("partition", "plan")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
