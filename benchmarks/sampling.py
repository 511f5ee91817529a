"""Neighbours of seeds and the graphs built of them, beside simpler ways to build these.

``python -m benchmarks sampling`` samples 1,024 seeds of twins of large graphs. All candidates are
compiled functions of one process, and take turns; on a CPU wall times are compared, on a GPU what
the profiler says of kernels.

* ``tree`` and ``distinct`` are what :func:`jax_gnn.sampling.sample_neighbors` gives; ``, host`` of
  arrays of numpy, without JAX; ``, jax.numpy`` without this library's kernels; ``, by relation``
  with a fanout for each of them;
* ``draw`` only draws edges of a tree, and finds where they come from;
* ``… + from_edges`` builds each block by :meth:`jax_gnn.Graph.from_edges`, which sorts edges;
* ``weighted``, ``in time`` and ``disjoint`` are other draws of the same neighbourhoods, and
  ``walks``, ``node2vec``, ``negatives`` and ``negatives, no edges`` are other batches of as many;
* ``PyG`` is its ``NeighborLoader`` on the host, where it has what it samples with.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.definition import Settings
from benchmarks.timing import FLUSHES, WallTimer
from benchmarks.worker import probe
from benchmarks.workloads import plain_graphs, relational_graphs

SEEDS = 1024
FANOUTS = ((15, 10), (10, 10, 10))
GRAPHS = ("ogbn-arxiv-twin", "reddit2-twin", "mag-twin")
PLAIN, BY_SORTS = "draw", "distinct + from_edges"
"""What trees, and what distinct nodes, are compared with."""
STEPS, NEGATIVES = 20, 10
"""Steps of a walk, and negatives of an edge."""


def _simple(graph: Any, seeds: Any, key: Any, fanouts: Sequence[int], build: str) -> Any:
    """Draws; and builds blocks of trees or of distinct nodes by sorts, if it is to build any."""
    import jax.numpy as jnp

    from jax_gnn import Graph
    from jax_gnn.sampling._native import uniform
    from jax_gnn.sampling._random import key_words
    from jax_gnn.sampling._rows import row_bounds
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


# --- Candidates ----------------------------------------------------------------------------------

Function = Callable[..., Any]
"""Of ``data``, a dictionary with the graph and what was prepared for it, of seeds and a key."""


def neighbors(graph: Any, fanouts: tuple[int, ...]) -> dict[str, Function]:
    """Blocks, and simpler ways to build them where the graph has no relations."""
    from jax_gnn.sampling import sample_neighbors

    def sample(data: Any, seeds: Any, key: Any, fanouts: Any, tree: bool) -> Any:
        return sample_neighbors(data["graph"], seeds, fanouts, key, tree=tree)

    def simple(data: Any, seeds: Any, key: Any, build: str) -> Any:
        return _simple(data["graph"], seeds, key, fanouts, build)

    found: dict[str, Function] = {}
    relations = getattr(graph, "num_relations", None)
    for name in ("tree", "distinct"):
        tree = name == "tree"
        found[name] = functools.partial(sample, fanouts=fanouts, tree=tree)
        if relations is None:
            found[f"{name} + from_edges"] = functools.partial(simple, build=name)
        else:
            each = [dict.fromkeys(range(relations), -(-f // relations)) for f in fanouts]
            found[f"{name}, by relation"] = functools.partial(sample, fanouts=each, tree=tree)
    if relations is None:
        found[PLAIN] = functools.partial(simple, build="")
    return found


def others(graph: Any, fanouts: tuple[int, ...]) -> dict[str, Function]:
    """Other draws of neighbours, and other batches where the graph has no relations."""
    import jax.numpy as jnp

    from jax_gnn.sampling import corrupted_edges, random_walk, sample_neighbors

    def sample(data: Any, seeds: Any, key: Any, **names: str) -> Any:
        options = {option: data[name] for option, name in names.items()}
        return sample_neighbors(data["graph"], seeds, fanouts, key, **options)

    def disjoint(data: Any, seeds: Any, key: Any) -> Any:
        return sample_neighbors(data["graph"], seeds, fanouts, key, disjoint=True)

    def walks(data: Any, seeds: Any, key: Any, **options: Any) -> Any:
        return random_walk(data["graph"], seeds, STEPS, key, **options)

    def negatives(data: Any, seeds: Any, key: Any, **options: Any) -> Any:
        ends = seeds, jnp.roll(seeds, 1)
        return corrupted_edges(data["graph"], *ends, NEGATIVES, key, **options)

    found: dict[str, Function] = {
        "weighted": functools.partial(sample, edge_probability="chances"),
        "in time": functools.partial(sample, edge_time="times", seed_time="limits"),
        "disjoint": disjoint,
    }
    if hasattr(graph, "num_relations"):
        return found
    return found | {
        "walks": walks,
        "node2vec": functools.partial(walks, p=0.5, q=2.0),
        "negatives": negatives,
        "negatives, no edges": functools.partial(negatives, exclude_edges=True),
    }


def _prepared(graph: Any) -> dict[str, Any]:
    """A graph with weights and times of its edges, and times of seeds."""
    from jax_gnn.sampling import EdgeProbability, EdgeTime

    rng = np.random.default_rng(1)
    weights = rng.random(graph.num_edges, np.float32)
    times = rng.integers(0, 1000, graph.num_edges, np.int32)
    return {
        "graph": graph,
        "chances": EdgeProbability.from_weights(graph, weights),
        "times": EdgeTime.from_times(graph, times),
        "limits": np.full(SEEDS, 500, np.int32),
    }


def _pyg(graph: Any, seeds: np.ndarray, fanouts: tuple[int, ...]) -> Callable[[], Any]:
    """PyG's loader, a batch at a time.

    Raises:
        ImportError: PyG, or what it samples with, is not installed.
    """
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    ends = np.stack([np.asarray(ids, np.int64) for ids in (graph.cols, graph.rows)])
    data = Data(edge_index=torch.from_numpy(ends), num_nodes=graph.num_nodes)
    nodes = torch.from_numpy(seeds.ravel().astype(np.int64))
    loader = NeighborLoader(data, [*fanouts], nodes, batch_size=SEEDS)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return lambda: next(batches)


# --- Times ---------------------------------------------------------------------------------------


def _compiled(
    data: Any, functions: Mapping[str, Function], batches: Sequence[Any], platform: str
) -> dict[str, Callable[[], Any]]:
    """Calls of compiled functions, each with the next batch; compiled in threads."""
    import jax

    import jax_gnn

    lowered = {}
    for name, function in functions.items():
        lowered[name] = jax.jit(function).lower(data, *batches[0])
        if platform == "cpu" and name in ("tree", "distinct"):
            with jax_gnn.implementation("xla"):
                lowered[f"{name}, jax.numpy"] = jax.jit(function).lower(data, *batches[0])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = [*pool.map(lambda program: program.compile(), lowered.values())]

    def call(program: Any) -> Callable[[], Any]:
        following = itertools.cycle(batches)
        return lambda: program(data, *next(following))

    return {name: call(program) for name, program in zip(lowered, compiled, strict=True)}


def _on_host(
    data: Any, functions: Mapping[str, Function], batches: Sequence[Any]
) -> dict[str, Callable[[], Any]]:
    def call(function: Function) -> Callable[[], Any]:
        following = itertools.cycle(batches)
        return lambda: function(data, *next(following))

    return {f"{name}, host": call(function) for name, function in functions.items()}


def _measured(platform: str, calls: dict[str, Any], on_host: dict[str, Any], rounds: int) -> Any:
    """For each name seconds of all rounds, and how many kernels, copies and fills there are."""
    import jax

    for call in calls.values():
        jax.block_until_ready(call())
    timer = WallTimer(jax.block_until_ready)
    if platform == "cpu":
        return {name: (s, None) for name, s in timer.measure(calls | on_host, rounds).items()}
    from jax_gnn._tuning.timing import ProfilerTimer, span

    kernels = ProfilerTimer(FLUSHES).kernels(calls, rounds)
    found: Any = {name: ([*map(span, k)], len(k[0])) for name, k in kernels.items()}
    return found | {name: (s, None) for name, s in timer.measure(on_host, rounds).items()}


def _host_graph(name: str) -> Any:
    """A twin in numpy; of relations without those from each node to itself."""
    import jax_gnn

    plain, relational = plain_graphs(None), relational_graphs(None)
    with jax_gnn.host_arrays():
        if name in plain:
            edges = plain[name].load()
            src, dst = np.asarray(edges.cols), np.asarray(edges.rows)
            if name.startswith("ogbn-arxiv"):  # citations go both ways, as is usual
                src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
            return jax_gnn.Graph.from_edges(src, dst, num_nodes=edges.num_nodes)
        triples = relational[name].load()
        count = triples.num_relations - 1
        kept = triples.rel < count
        columns = triples.src[kept], triples.rel[kept], triples.dst[kept]
        sizes: Any = {"num_nodes": triples.num_nodes, "num_relations": count}
        return jax_gnn.RelationalGraph.from_triples(*columns, **sizes, parts=())


def run(platform: str, names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Times each candidate so often, in turns; a document for JSON."""
    import jax

    import jax_gnn

    machine = probe(Settings(platform=platform))
    rows = []
    for name in names:
        host = _host_graph(name)
        order = np.random.default_rng(0).permutation(host.num_nodes).astype(np.int32)
        seeds = order[: len(order) // SEEDS * SEEDS].reshape(-1, SEEDS)[: rounds + 1]
        words = [np.array([0, number], np.uint32) for number in range(len(seeds))]
        data = _prepared(jax.device_put(host))
        batches = jax.device_put([*zip(seeds, words, strict=True)])
        for fanouts in FANOUTS:
            functions = neighbors(host, fanouts)
            shown = {n: f for n, f in functions.items() if n.startswith(("tree", "distinct"))}
            shown = {n: f for n, f in shown.items() if not n.endswith("from_edges")}
            if fanouts == FANOUTS[0]:
                more = others(host, fanouts)
                functions |= more
            on_host = _on_host({"graph": host}, shown, [*zip(seeds, words, strict=True)])
            if isinstance(host, jax_gnn.Graph):
                try:
                    on_host["PyG"] = _pyg(host, seeds, fanouts)
                    on_host["PyG"]()
                except (ImportError, OSError) as error:
                    on_host.pop("PyG", None)
                    print(f"PyG is absent: {str(error).splitlines()[0]}")
            calls = _compiled(data, functions, batches, platform)
            for each, (seconds, kernels) in _measured(platform, calls, on_host, rounds).items():
                row = {"graph": name, "edges": host.num_edges, "fanouts": fanouts, "name": each}
                median, least = statistics.median(seconds), min(seconds)
                row |= {"median": median, "least": least, "kernels": kernels}
                rows.append(row | {"all": seconds})
    date = datetime.now(UTC).date().isoformat()
    versions = {"jax": jax.__version__, "jax_gnn": jax_gnn.__version__}
    return {"date": date, "machine": machine, "versions": versions, "rows": rows}


# --- Tables and plots ----------------------------------------------------------------------------


def markdown(document: dict[str, Any]) -> str:
    """The tables of a run, one for each graph and fanouts."""
    versions = ", ".join(f"{k} {v}" for k, v in document["versions"].items())
    lines = [
        f"# Sampling {SEEDS:,} seeds",
        "",
        f"{document['machine']['device']}, {document['date']}; {versions}. The least and the "
        "median of all rounds, graphs included. Building a tree is what it takes beyond the draw. "
        f"Walks have {STEPS} steps; there are {NEGATIVES} negatives for each of as many edges.",
    ]
    for key, rows in _groups(document).items():
        graph, edges, fanouts = key
        least = {row["name"]: row["least"] for row in rows}
        lines += ["", f"## {graph}, {edges:,} edges, fanouts {', '.join(map(str, fanouts))}", ""]
        lines += ["| | least, ms | median, ms | kernels | × |", "|---|--:|--:|--:|---|"]
        for row in rows:
            of = BY_SORTS if row["name"].startswith("distinct") else PLAIN
            known = of in least and row["name"].startswith(("distinct", "tree"))
            share = f"{row['least'] / least[of]:.2f} of {of}" if known else ""
            cells = [f"{1e3 * row[what]:.3g}" for what in ("least", "median")]
            cells += ["" if row["kernels"] is None else str(row["kernels"]), share]
            lines.append(f"| {row['name']} | {' | '.join(cells)} |")
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
    heights = [0.25 * len(rows) + 0.6 for rows in groups.values()]
    figure, grid = plt.subplots(
        len(groups),
        figsize=(7, sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axes, ((graph, _, fanouts), rows) in zip(grid[:, 0], groups.items(), strict=True):
        names = [row["name"] for row in rows][::-1]
        simple = ("from_edges", "jax.numpy", PLAIN, "PyG")
        colors = ["tab:gray" if name.endswith(simple) else "tab:blue" for name in names]
        bars = axes.barh(names, [1e3 * row["least"] for row in rows][::-1], color=colors)
        axes.bar_label(bars, fmt="%.3g ms", padding=3)
        axes.margins(x=0.15)
        axes.set_title(f"{graph}, fanouts {', '.join(map(str, fanouts))}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(document: dict[str, Any], path: Path) -> None:
    """The JSON, and the plot beside it."""
    path.write_text(json.dumps(document, indent=1) + "\n")
    plot(document, path.with_suffix(".png"))
