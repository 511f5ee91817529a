"""Neighbours of seeds and the graphs built of them, beside simpler ways to build these.

``python -m benchmarks sampling`` samples 1,024 seeds of twins of large graphs. All candidates are
compiled functions of one process, and take turns; on a CPU wall times are compared, on a GPU what
the profiler says of kernels.

* ``tree`` and ``distinct`` are what :func:`jax_gnn.sampling.sample_neighbors` gives, ``by
  relation`` with a fanout for each of them. ``on the host`` is of arrays of numpy, without JAX;
  ``jax.numpy`` without this library's kernels;
* ``draw alone`` only draws edges of a tree, and finds where they come from;
* ``from_edges`` builds each block by :meth:`jax_gnn.Graph.from_edges`, which sorts edges;
* ``weighted``, ``in time`` and ``disjoint`` are other draws of the same neighbourhoods, and
  ``walks``, ``node2vec``, ``negatives`` and ``negatives, no edges`` are other batches of as many;
* ``PyG`` is its ``NeighborLoader`` on the host, where it has what it samples with.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.definition import Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.timing import FLUSHES, WallTimer
from benchmarks.worker import probe
from benchmarks.workloads import plain_graphs, relational_graphs

SEEDS = 1024
FANOUTS = ((15, 10), (10, 10, 10))
GRAPHS = ("ogbn-arxiv-twin", "reddit2-twin", "mag-twin")
DRAW, XLA, HOST, SORTED, PYG = "draw alone", "jax.numpy", "on the host", "from_edges", "PyG"
PEERS = (XLA, SORTED, PYG)
STEPS, NEGATIVES = 20, 10
"""Steps of a walk, and negatives of an edge."""


def _simple(graph: Any, seeds: Any, key: Any, fanouts: Sequence[int], build: str) -> Any:
    """Draws; and builds blocks of trees or of distinct nodes by sorts, if it is to build any."""
    import jax.numpy as jnp

    from jax_gnn import Graph
    from jax_gnn._core.random_bits import key_words
    from jax_gnn._ops.sample_block.api import uniform
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

Key = tuple[str, str]
"""What is made, and the candidate that makes it."""


def neighbors(graph: Any, fanouts: tuple[int, ...]) -> dict[Key, Function]:
    """Blocks, and simpler ways to build them where the graph has no relations."""
    from jax_gnn.sampling import sample_neighbors

    def sample(data: Any, seeds: Any, key: Any, fanouts: Any, tree: bool) -> Any:
        return sample_neighbors(data["graph"], seeds, fanouts, key, tree=tree)

    def simple(data: Any, seeds: Any, key: Any, build: str) -> Any:
        return _simple(data["graph"], seeds, key, fanouts, build)

    found: dict[Key, Function] = {}
    relations = getattr(graph, "num_relations", None)
    for mode in ("tree", "distinct"):
        tree = mode == "tree"
        found[mode, OURS] = functools.partial(sample, fanouts=fanouts, tree=tree)
        if relations is None:
            found[mode, SORTED] = functools.partial(simple, build=mode)
        else:
            each = [dict.fromkeys(range(relations), -(-f // relations)) for f in fanouts]
            by_relation = functools.partial(sample, fanouts=each, tree=tree)
            found[f"{mode}, by relation", OURS] = by_relation
    if relations is None:
        found["tree", DRAW] = functools.partial(simple, build="")
    return found


def others(graph: Any, fanouts: tuple[int, ...]) -> dict[Key, Function]:
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
    if not hasattr(graph, "num_relations"):
        found |= {
            "walks": walks,
            "node2vec": functools.partial(walks, p=0.5, q=2.0),
            "negatives": negatives,
            "negatives, no edges": functools.partial(negatives, exclude_edges=True),
        }
    return {(mode, OURS): function for mode, function in found.items()}


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
    data: Any, functions: Mapping[Key, Function], batches: Sequence[Any], platform: str
) -> dict[Key, Callable[[], Any]]:
    """Calls of compiled functions, each with the next batch; compiled in threads."""
    import jax

    import jax_gnn

    lowered = {}
    for (mode, name), function in functions.items():
        lowered[mode, name] = jax.jit(function).lower(data, *batches[0])
        if platform == "cpu" and name == OURS and mode in ("tree", "distinct"):
            with jax_gnn.implementation("xla"):
                lowered[mode, XLA] = jax.jit(function).lower(data, *batches[0])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(lambda program: program.compile(), lowered.values())
        programs = dict(zip(lowered, compiled, strict=True))
    return {key: _next(program, data, batches) for key, program in programs.items()}


def _next(function: Function, data: Any, batches: Sequence[Any]) -> Callable[[], Any]:
    """Calls with one batch after the other."""
    following = itertools.cycle(batches)
    return lambda: function(data, *next(following))


def _measured(
    platform: str, calls: dict[Key, Any], on_host: dict[Key, Any], rounds: int
) -> dict[Key, Row]:
    """Candidates, with how many kernels, copies and fills there are."""
    import jax

    for call in calls.values():
        jax.block_until_ready(call())
    timer = WallTimer(jax.block_until_ready)
    counts: dict[Key, int] = {}
    if platform == "cpu":
        seconds = timer.measure(calls | on_host, rounds)
    else:
        from jax_gnn._tuning.timing import ProfilerTimer, span

        kernels = ProfilerTimer(FLUSHES).kernels(calls, rounds)
        counts = {key: len(each[0]) for key, each in kernels.items()}
        seconds = {key: [*map(span, each)] for key, each in kernels.items()}
        seconds |= timer.measure(on_host, rounds)
    return {
        (mode, name): candidate(
            name,
            of,
            family=name if name in PEERS else OURS,
            details={"kernels": counts[mode, name]} if (mode, name) in counts else {},
        )
        for (mode, name), of in seconds.items()
    }


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


def run(platform: str, names: Sequence[str], rounds: int) -> Document:
    """Times each candidate so often, in turns."""
    import jax

    import jax_gnn

    machine = probe(Settings(platform=platform))
    cases = []
    for name in names:
        host = _host_graph(name)
        order = np.random.default_rng(0).permutation(host.num_nodes).astype(np.int32)
        seeds = order[: len(order) // SEEDS * SEEDS].reshape(-1, SEEDS)[: rounds + 1]
        words = [np.array([0, number], np.uint32) for number in range(len(seeds))]
        data = _prepared(jax.device_put(host))
        batches = [*zip(seeds, words, strict=True)]
        on_device = jax.device_put(batches)
        for fanouts in FANOUTS:
            functions = neighbors(host, fanouts)
            on_host = {
                (mode, HOST): _next(function, {"graph": host}, batches)
                for (mode, which), function in functions.items()
                if which == OURS
            }
            if fanouts == FANOUTS[0]:
                functions |= others(host, fanouts)
            absent = {}
            if isinstance(host, jax_gnn.Graph):
                try:
                    call = _pyg(host, seeds, fanouts)
                    call()
                    on_host["distinct", PYG] = call
                except (ImportError, OSError) as error:
                    why = str(error).splitlines()[0]
                    row = candidate(PYG, family=PYG, status="absent", reason=why)
                    absent["distinct", PYG] = row
            calls = _compiled(data, functions, on_device, platform)
            rows = _measured(platform, calls, on_host, rounds) | absent
            graph = f"{name} {','.join(map(str, fanouts))}"
            for mode in dict.fromkeys(mode for mode, _ in rows):
                of_mode = [row for key, row in rows.items() if key[0] == mode]
                cases.append(case(graph, mode, of_mode))
    about = (
        "A case is a graph, fanouts and what is made. Building a tree is what it takes beyond the "
        f"draw. Walks have {STEPS} steps; there are {NEGATIVES} negatives for each edge."
    )
    title = f"Sampling {SEEDS:,} seeds"
    return document("sampling", title, machine, cases, about=about, baseline=SORTED)
