"""Neighbours of seeds and the graphs built of them, beside simpler ways to build these.

``python -m benchmarks sampling`` samples 1,024 seeds of twins of large graphs. All candidates are
compiled functions of one process, and take turns; wall times are compared.

* ``tree`` and ``distinct`` are what :func:`jax_gnn.sampling.sample_neighbors` gives; ``, host`` of
  arrays of numpy, without JAX; ``, jax.numpy`` without this library's kernels;
* ``draw`` only draws edges of a tree, and finds where they come from;
* ``… + from_edges`` builds each block by :meth:`jax_gnn.Graph.from_edges`, which sorts edges.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.definition import Settings
from benchmarks.worker import probe
from benchmarks.workloads import plain_graphs

SEEDS = 1024
FANOUTS = ((15, 10), (10, 10, 10))
GRAPHS = ("ogbn-arxiv-twin", "reddit2-twin")
PLAIN, BY_SORTS = "draw", "distinct + from_edges"
"""What trees, and what distinct nodes, are compared with."""


def _simple(graph: Any, seeds: Any, key: Any, fanouts: Sequence[int], build: str) -> Any:
    """Draws; and builds blocks of trees or of distinct nodes by sorts, if it is to build any."""
    import jax.numpy as jnp

    from jax_gnn import Graph
    from jax_gnn.sampling._native import uniform
    from jax_gnn.sampling._neighbors import row_bounds
    from jax_gnn.sampling._random import key_words
    from jax_gnn.sampling._search import distinct

    nodes, words = seeds, key_words("key", key)
    found: list[Any] = []
    for layer, fanout in enumerate(fanouts):
        starts, degrees = row_bounds(graph.indptr, nodes, graph.num_edges)
        offsets, counts = uniform(degrees, fanout, words, layer, replace=False)
        there = jnp.arange(fanout) < counts[:, None]
        places = jnp.where(there, starts[:, None] + offsets, 0)
        drawn = jnp.where(there, graph.cols[places], -1).ravel()
        num_dst, ends = nodes.shape[0], jnp.arange(nodes.shape[0])
        rows = jnp.where(there, ends[:, None], -1).ravel()
        ids = jnp.concatenate([nodes, drawn])
        sources = num_dst + jnp.arange(drawn.shape[0])
        if build == "distinct":
            room = min(ids.shape[0], graph.num_src)
            ids, all_sources = distinct(ids, room)
            sources = all_sources[num_dst:]
        if build:
            num_src = ids.shape[0]
            block = Graph.from_edges(sources, rows, num_src=num_src, num_dst=num_dst)
            found.append((block, places))
        else:
            found.append((offsets, places))
        nodes = ids
    return found, nodes


def candidates(graph: Any, host: Any, fanouts: tuple[int, ...]) -> dict[str, Callable[..., Any]]:
    """Functions of seeds, which are of numpy, and of a number."""
    import jax

    import jax_gnn
    from jax_gnn.sampling import sample_neighbors

    found: dict[str, Callable[..., Any]] = {}

    def add(name: str, function: Callable[..., Any], implementation: Any = None) -> None:
        compiled = jax.jit(lambda graph, seeds, key: function(graph, seeds, key))

        def call(seeds: np.ndarray, number: int) -> Any:
            with jax_gnn.implementation(implementation):
                return compiled(graph, seeds.astype(np.int32), jax.random.key(number))

        found[name] = call

    for name in ("tree", "distinct"):
        options: Any = {"tree": name == "tree"}

        def sample(graph: Any, seeds: Any, key: Any, options: Any = options) -> Any:
            return sample_neighbors(graph, seeds, fanouts, key, **options)

        def on_host(seeds: np.ndarray, number: int, options: Any = options) -> Any:
            words = np.array([0, number], np.uint32)
            return sample_neighbors(host, seeds, fanouts, words, **options)

        def by_sorts(graph: Any, seeds: Any, key: Any, name: str = name) -> Any:
            return _simple(graph, seeds, key, fanouts, name)

        add(name, sample)
        found[f"{name}, host"] = on_host
        add(f"{name}, jax.numpy", sample, "xla")
        add(f"{name} + from_edges", by_sorts)
    add(PLAIN, lambda graph, seeds, key: _simple(graph, seeds, key, fanouts, ""))
    return found


def run(platform: str, names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Times each candidate so often, in turns; a document for JSON."""
    import jax

    import jax_gnn

    workloads = plain_graphs(None)
    machine = probe(Settings(platform=platform))
    rows = []
    for name in names:
        plain = workloads[name].load()
        src, dst = np.asarray(plain.cols), np.asarray(plain.rows)
        if name.startswith("ogbn-arxiv"):  # citations go both ways, as is usual
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        with jax_gnn.host_arrays():
            host: Any = jax_gnn.Graph.from_edges(src, dst, num_nodes=plain.num_nodes)
        graph = jax.device_put(host)
        order = np.random.default_rng(0).permutation(plain.num_nodes)
        for fanouts in FANOUTS:
            calls = candidates(graph, host, fanouts)
            times: dict[str, list[float]] = {each: [] for each in calls}
            for i in range(1 + rounds):  # the first compiles
                seeds = np.roll(order, -SEEDS * i)[:SEEDS]
                for each, call in calls.items():
                    start = time.perf_counter()
                    jax.block_until_ready(call(seeds, i))
                    times[each].append(time.perf_counter() - start)
            for each, seconds in times.items():
                row = {"graph": name, "edges": len(src), "fanouts": fanouts, "name": each}
                median, least = statistics.median(seconds[1:]), min(seconds[1:])
                rows.append(row | {"median": median, "least": least, "all": seconds[1:]})
    date = datetime.now(UTC).date().isoformat()
    versions = {"jax": jax.__version__, "jax_gnn": jax_gnn.__version__}
    return {"date": date, "machine": machine, "versions": versions, "rows": rows}


def markdown(document: dict[str, Any]) -> str:
    """The tables of a run, one for each graph and fanouts."""
    versions = ", ".join(f"{k} {v}" for k, v in document["versions"].items())
    lines = [
        f"# Sampling {SEEDS:,} seeds",
        "",
        f"{document['machine']['device']}, {document['date']}; {versions}. The least and the "
        "median of all rounds, graphs included. Building a tree is what it takes beyond the draw.",
    ]
    for key, rows in _groups(document).items():
        graph, edges, fanouts = key
        least = {row["name"]: row["least"] for row in rows}
        lines += ["", f"## {graph}, {edges:,} edges, fanouts {', '.join(map(str, fanouts))}", ""]
        lines += ["| | least, ms | median, ms | × |", "|---|--:|--:|---|"]
        for row in rows:
            of = BY_SORTS if row["name"].startswith("distinct") else PLAIN
            share = f"{row['least'] / least[of]:.2f} of {of}"
            cells = f"{1e3 * row['least']:.2f} | {1e3 * row['median']:.2f} | {share}"
            lines.append(f"| {row['name']} | {cells} |")
    return "\n".join([*lines, ""])


def _groups(document: dict[str, Any]) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in document["rows"]:
        groups.setdefault((row["graph"], row["edges"], tuple(row["fanouts"])), []).append(row)
    return groups


def plot(document: dict[str, Any], path: Path) -> None:
    """Bars: milliseconds of a batch."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    groups = _groups(document)
    figure, grid = plt.subplots(
        len(groups), figsize=(7, 2.6 * len(groups)), layout="constrained", squeeze=False
    )
    for axes, ((graph, _, fanouts), rows) in zip(grid[:, 0], groups.items(), strict=True):
        names = [row["name"] for row in rows][::-1]
        ours = {"tree", "distinct", "tree, host", "distinct, host"}
        colors = ["tab:blue" if name in ours else "tab:gray" for name in names]
        bars = axes.barh(names, [1e3 * row["least"] for row in rows][::-1], color=colors)
        axes.bar_label(bars, fmt="%.1f ms", padding=3)
        axes.margins(x=0.15)
        axes.set_title(f"{graph}, fanouts {', '.join(map(str, fanouts))}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(document: dict[str, Any], path: Path) -> None:
    """The JSON, and the plot beside it."""
    path.write_text(json.dumps(document, indent=1) + "\n")
    plot(document, path.with_suffix(".png"))
