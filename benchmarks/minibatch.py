"""Training on sampled neighbourhoods: what of a step is the model, and an epoch beside peers.

``python -m benchmarks minibatch`` trains GraphSAGE on a twin of Reddit2 and R-GCN on one of mag, a
tenth of their nodes and edges on a CPU (``--scale``), hidden 128, batches of 1,024, fanouts 15, 10,
with the room for sources that `block_capacity` finds. The peer in plain JAX is the same model by
``jax.ops.segment_sum``, on the same blocks, sampled by this library; its first loss must be the
same. Epochs take turns. With a GPU there are batches, too, whose features, or graph and features,
stay on the host, sent ahead by ``fetch_ahead``, beside what its link carries. PyG's
``NeighborLoader`` runs where it has what it samples with.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.definition import Settings
from benchmarks.worker import probe
from benchmarks.workloads import RELATIONAL_TWINS, TWINS, power_law, typed_edges

FEATURES, HIDDEN, CLASSES, LAYERS = 128, 128, 41, 2
BATCH, FANOUTS = 1024, (15, 10)
TRAINING = 0.1  # share of the nodes


def run(platform: str, scale: float, rounds: int) -> dict[str, Any]:
    """Times both models; a document for JSON."""
    machine = probe(Settings(platform=platform))
    rows = [_measured(name, scale, rounds) for name in ("sage", "rgcn")]
    rows += [_hosted(scale, rounds), _pyg(scale, rounds)]
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "machine": machine, "scale": scale, "rows": rows}


def _graph(name: str, scale: float) -> Any:
    """A twin's edges, of which each node's to itself are left out."""
    if name == "sage":
        nodes, edges, exponent = TWINS["reddit2"]
        return power_law(round(nodes * scale), round(edges * scale), exponent)
    sizes: Any = RELATIONAL_TWINS["mag"]
    nodes, edges, *rest = sizes
    return typed_edges(round(nodes * scale), round(edges * scale), *rest)


def _measured(name: str, scale: float, rounds: int) -> dict[str, Any]:
    """A model here, and in plain JAX on the same blocks."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import flax_layers
    from flax_layers.training.epochs import adam
    from jax_gnn import Graph, RelationalGraph
    from jax_gnn.sampling import block_capacity, sample_neighbors

    edges = _graph(name, scale)
    num_nodes = edges.num_nodes
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(num_nodes, FEATURES)), jnp.float32)
    y = jnp.asarray(rng.integers(0, CLASSES, num_nodes), jnp.int32)
    ids = rng.permutation(num_nodes)[: max(1, round(num_nodes * TRAINING))]
    steps = -(-len(ids) // BATCH)
    padding = np.full(steps * BATCH - len(ids), -1)
    seeds = np.append(ids, padding).astype(np.int32).reshape(steps, BATCH)
    sizes: Any = (FEATURES, HIDDEN, CLASSES)
    options: Any = {"num_layers": LAYERS, "dropout_rate": 0.0, "rngs": nnx.Rngs(0)}
    graph: Any
    if name == "sage":
        graph = Graph.from_edges(edges.cols, edges.rows, num_nodes=num_nodes)
        model: Any = flax_layers.SAGE(*sizes, **options)
    else:
        kept = edges.rel < edges.num_relations - 1
        columns = edges.src[kept], edges.rel[kept], edges.dst[kept]
        count = edges.num_relations - 1
        graph = RelationalGraph.from_triples(*columns, num_nodes=num_nodes, num_relations=count)
        model = flax_layers.RGCN(*sizes, num_relations=count, **options)
    capacity = block_capacity(graph, seeds[:2], FANOUTS, jax.random.key(1))
    definition, *states = nnx.split(model, nnx.Param, ...)
    params, rest = states
    optimizer = adam(0.01)

    def here(params: Any, blocks: Any, x: Any) -> Any:
        return nnx.merge(definition, params, rest)(blocks, x, deterministic=True)

    def plain(params: Any, blocks: Any, x: Any) -> Any:
        for number, block in enumerate(blocks.graphs, start=1):
            layer = nnx.to_pure_dict(params)[f"conv{number}"]
            x = (_plain_sage if name == "sage" else _plain_rgcn)(layer, block, x)
            x = jax.nn.relu(x) if number < LAYERS else x
        return x

    def sampled(seeds: Any, key: Any, graph: Any, features: Any) -> Any:
        blocks = sample_neighbors(graph, seeds, FANOUTS, key, capacity=capacity)
        return blocks, blocks.node_values(features)

    def trained(of: Any, state: Any, seeds: Any, blocks: Any, x: Any, y: Any) -> Any:
        params, moments = state

        def loss_of(params: Any) -> Any:
            logits = of(params, blocks, x)
            own = jnp.take_along_axis(jax.nn.log_softmax(logits), y[seeds][:, None], 1)[:, 0]
            there = seeds >= 0
            return -jnp.sum(jnp.where(there, own, 0)) / jnp.maximum(there.sum(), 1)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (jax.tree.map(jnp.add, params, updates), moments), loss

    def step(of: Any) -> Any:
        def whole(state: Any, seeds: Any, key: Any, graph: Any, features: Any, y: Any) -> Any:
            blocks, x = sampled(seeds, key, graph, features)
            return trained(of, state, seeds, blocks, x, y)

        return jax.jit(whole)

    keys = jax.random.split(jax.random.key(0), steps)
    start = params, optimizer.init(params)
    whole = {"here": step(here), "plain": step(plain)}
    sample = jax.jit(sampled)
    alone = {
        kind: jax.jit(functools.partial(trained, of))
        for kind, of in (("here", here), ("plain", plain))
    }
    data = graph, features, y
    first = {kind: float(run(start, seeds[0], keys[0], *data)[1]) for kind, run in whole.items()}

    def epoch(run: Any) -> float:
        state, begun = start, time.perf_counter()
        for i in range(steps):
            state, loss = run(state, seeds[i], keys[i], *data)
        jax.block_until_ready((state, loss))
        return (time.perf_counter() - begun) / steps

    drawn = jax.block_until_ready(sample(seeds[0], keys[0], graph, features))
    drawn_of = (sample(seeds[i], keys[i], graph, features)[0] for i in range(steps))
    overflows = sum(bool(blocks.overflow) for blocks in drawn_of)
    memory = whole["here"].lower(start, seeds[0], keys[0], *data).compile().memory_analysis()

    def once(call: Callable[[], Any], repeats: int = 5) -> float:
        begun = time.perf_counter()
        for _ in range(repeats):
            jax.block_until_ready(call())
        return (time.perf_counter() - begun) / repeats

    times: dict[str, list[float]] = {}
    for each in range(rounds + 1):
        found = {f"step {kind}": epoch(run) for kind, run in whole.items()}
        found |= {
            f"model {kind}": once(functools.partial(run, start, seeds[0], *drawn, y))
            for kind, run in alone.items()
        }
        found["sample"] = once(lambda: sample(seeds[0], keys[0], graph, features))
        if each:  # the first compiles
            for what, seconds in found.items():
                times.setdefault(what, []).append(seconds)
    status = "timed" if abs(first["here"] - first["plain"]) < 1e-3 else "wrong"
    return {
        **{"name": name, "status": status, "nodes": num_nodes, "edges": int(graph.num_edges)},
        **{"steps": steps, "losses": first, "times": times, "capacity": capacity},
        **{"overflows": overflows, "megabytes": _megabytes(memory, drawn, data)},
        "medians": {what: statistics.median(all_) for what, all_ in times.items()},
    }


def _megabytes(memory: Any, drawn: Any, data: Any) -> dict[str, float]:
    """What a step has at once beside graph and features, and what of it must be there."""
    import jax

    def size(tree: Any) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))

    blocks, x = drawn
    # What a layer keeps for its gradient: sums, results and their gradient, of its destinations.
    widths = FEATURES + 2 * HIDDEN
    activations = sum(4 * widths * block.num_dst for block in blocks.graphs)
    peak = memory.temp_size_in_bytes + memory.output_size_in_bytes
    named = {"step": peak, "blocks": size(blocks), "features": size(x), "activations": activations}
    return {name: bytes_ / 1e6 for name, bytes_ in named.items()} | {"whole": size(data) / 1e6}


def _hosted(scale: float, rounds: int) -> dict[str, Any]:
    """Batches of GraphSAGE whose features are on the host, beside what its link carries."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import flax_layers
    from jax_gnn import Graph, host_arrays
    from jax_gnn.sampling import block_capacity, fetch_ahead, sample_neighbors

    name, device = "sage, features on the host", jax.devices()[0]
    if device.platform == "cpu":
        return {"name": name, "status": "absent: a CPU has no link to its memory"}
    edges = _graph("sage", scale)
    with host_arrays():
        graph = Graph.from_edges(edges.cols, edges.rows, num_nodes=edges.num_nodes)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(edges.num_nodes, FEATURES)).astype(np.float32)
    batches = rng.integers(0, edges.num_nodes, (64, BATCH)).astype(np.int32)
    capacity = block_capacity(graph, batches[:2], FANOUTS, jax.random.key(1))
    model = flax_layers.SAGE(FEATURES, HIDDEN, CLASSES, num_layers=LAYERS, rngs=nnx.Rngs(0))

    def sampled(number: int, graph: Any) -> Any:
        key = np.array([0, number], np.uint32)
        return sample_neighbors(graph, batches[number], FANOUTS, key, capacity=capacity)

    @jax.jit
    def of_device(seeds: Any, key: Any, graph: Any) -> Any:
        return sample_neighbors(graph, seeds, FANOUTS, key, capacity=capacity)

    @nnx.jit
    def step(model: Any, blocks: Any, x: Any) -> Any:
        def loss(model: Any) -> Any:
            return jnp.square(model(blocks, x, deterministic=True)).mean()

        return nnx.value_and_grad(loss)(model)

    placed = jax.device_put(graph, device)
    seeds, keys = jnp.asarray(batches), jax.random.split(jax.random.key(0), len(batches))
    drawn = {
        "graph on the device": lambda: map(lambda *own: of_device(*own, placed), seeds, keys),
        "graph on the host": lambda: (sampled(number, graph) for number in range(len(batches))),
    }

    def fed(drawn: Any, use: Any) -> float:
        """Seconds of a batch, the first eight left out."""
        for number, (blocks, x) in enumerate(fetch_ahead(drawn, features, device=device)):
            if number == 8:
                begun = time.perf_counter()
            found = use(blocks, x)
        jax.block_until_ready(found)
        return (time.perf_counter() - begun) / (len(batches) - 8)

    x = jnp.zeros((of_device(seeds[0], keys[0], placed).graphs[0].num_src, FEATURES))
    links: dict[str, Any] = {"link": np.zeros(x.shape, x.dtype)}
    shardings = {
        kind: jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
        for kind in ("device", "pinned_host")
    }
    links["link, page-locked"] = jax.device_put(links["link"], shardings["pinned_host"])

    def sent(rows: Any) -> float:
        """Seconds of a batch's features over the link alone."""
        jax.block_until_ready(jax.device_put(rows, shardings["device"]))
        begun = time.perf_counter()
        jax.block_until_ready([jax.device_put(rows, shardings["device"]) for _ in range(8)])
        return (time.perf_counter() - begun) / 8

    blocks = of_device(seeds[0], keys[0], placed)

    def stepped() -> float:
        jax.block_until_ready(step(model, blocks, x))
        begun = time.perf_counter()
        jax.block_until_ready([step(model, blocks, x) for _ in range(8)])
        return (time.perf_counter() - begun) / 8

    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("step alone", []).append(stepped())
        for where, make in drawn.items():
            found.setdefault(where, []).append(fed(make(), lambda _, x: x))
            found.setdefault(f"{where}, with steps", []).append(
                fed(make(), lambda blocks, x: step(model, blocks, x))
            )
        for what, rows in links.items():
            found.setdefault(what, []).append(sent(rows))
    medians = {what: statistics.median(all_) for what, all_ in found.items()}
    return {
        **{"name": name, "status": "timed", "times": found},
        **{"medians": medians, "gigabytes": x.nbytes / 1e9},
    }


def _plain_sage(layer: Any, block: Any, x: Any) -> Any:
    """A layer of GraphSAGE; padding adds nothing, as its row is out of range."""
    import jax
    import jax.numpy as jnp

    rows = jnp.where(block.rows < 0, block.num_dst, block.rows)
    sums = jax.ops.segment_sum(x[block.cols], rows, block.num_dst)
    mean = sums / jnp.maximum(block.in_degrees(), 1)[:, None]
    root = x[: block.num_dst] @ layer["root"]["kernel"]
    return mean @ layer["kernel"] + layer["bias"] + root


def _plain_rgcn(layer: Any, block: Any, x: Any) -> Any:
    """A layer of R-GCN, a sum for each relation, as PyG's ``RGCNConv``."""
    import jax
    import jax.numpy as jnp

    nodes = block.nodes
    sources = x[nodes.cols]
    y = x[: block.num_dst] @ layer["kernel"][-1] + layer["bias"]
    for relation in range(block.num_relations):
        own = (block.edge_types == relation) & (nodes.rows >= 0)
        rows = jnp.where(own, nodes.rows, block.num_dst)
        sums = jax.ops.segment_sum(sources, rows, block.num_dst)
        count = jax.ops.segment_sum(own.astype(x.dtype), rows, block.num_dst)
        y = y + (sums / jnp.maximum(count, 1)[:, None]) @ layer["kernel"][relation]
    return y


def _pyg(scale: float, rounds: int) -> dict[str, Any]:
    """An epoch of GraphSAGE with PyG's own loader."""
    row: dict[str, Any] = {"name": "sage, PyG NeighborLoader"}
    try:
        import torch
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.nn import GraphSAGE

        edges = _graph("sage", scale)
        index = torch.from_numpy(np.stack([edges.cols, edges.rows]).astype(np.int64))
        count = max(1, round(edges.num_nodes * TRAINING))
        rng = np.random.default_rng(0)
        y = torch.from_numpy(rng.integers(0, CLASSES, edges.num_nodes))
        data = Data(torch.randn(edges.num_nodes, FEATURES), index, y=y)
        nodes = torch.from_numpy(rng.permutation(edges.num_nodes)[:count])
        loader = NeighborLoader(data, [*FANOUTS], nodes, batch_size=BATCH, shuffle=True)
        model = GraphSAGE(FEATURES, HIDDEN, LAYERS, CLASSES)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        seconds = []
        for _ in range(rounds + 1):
            begun = time.perf_counter()
            for batch in loader:
                optimizer.zero_grad()
                logits = model(batch.x, batch.edge_index)[: batch.batch_size]
                torch.nn.functional.cross_entropy(logits, batch.y[: batch.batch_size]).backward()
                optimizer.step()
            seconds.append((time.perf_counter() - begun) / len(loader))
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        return row | {"status": f"absent: {type(error).__name__}: {first}"}
    return row | {"status": "timed", "medians": {"step": statistics.median(seconds[1:])}}


def markdown(document: dict[str, Any]) -> str:
    """The table of a run."""
    machine = document["machine"]
    lines = [
        "# Training on sampled neighbourhoods",
        "",
        f"{machine['device']}, {document['date']}. Twins of Reddit2 (GraphSAGE) and mag (R-GCN), "
        f"{document['scale']:g} × their nodes and edges; {FEATURES} features, hidden {HIDDEN}, "
        f"batches of {BATCH:,}, fanouts {', '.join(map(str, FANOUTS))}. Milliseconds of a step, "
        "mean of an epoch.",
        "",
        "| | step | of it the model | sampling and gathers | step, plain JAX | its model | × |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    notes = []
    for row in document["rows"]:
        medians = {what: 1e3 * seconds for what, seconds in row.get("medians", {}).items()}
        if "sample" in medians:
            step, model = medians["step here"], medians["model here"]
            cells = [
                f"{row['name']}, {row['nodes']:,} nodes, {row['edges']:,} edges"
                + ("" if row["status"] == "timed" else " **wrong**"),
                *(f"{step:.1f}", f"{model:.1f} ({model / step:.0%})", f"{medians['sample']:.1f}"),
                *(f"{medians['step plain']:.1f}", f"{medians['model plain']:.1f}"),
                f"{medians['step plain'] / step:.2f}",
            ]
            parts = ", ".join(f"{what} {size:.0f}" for what, size in row["megabytes"].items())
            notes.append(
                f"{row['name']}: room for {row['capacity']} sources, {row['overflows']} of "
                f"{row['steps']} batches needed more. Megabytes: {parts}."
            )
        elif "link" in medians:
            rates = {what: 1e3 * row["gigabytes"] / taken for what, taken in medians.items()}
            told = ", ".join(f"{what} {rate:.1f}" for what, rate in rates.items())
            batch = medians["graph on the device"]
            cells = [row["name"], f"{batch:.1f}, sampled and sent alone", *[""] * 5]
            notes.append(f"{row['name']}: gigabytes of features per second: {told}.")
        elif medians:
            cells = [row["name"], f"{medians['step']:.1f}", *[""] * 5]
        else:
            cells = [row["name"], row["status"], *[""] * 5]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n\n".join(["\n".join(lines), *notes, ""])


def plot(document: dict[str, Any], path: Path) -> None:
    """Bars: milliseconds of a step, and of its parts."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    bars = {
        f"{row['name']}, {what}": 1e3 * seconds
        for row in document["rows"]
        for what, seconds in row.get("medians", {}).items()
    }
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(bars) + 1.2), layout="constrained")
    drawn = axes.barh([*bars][::-1], [*bars.values()][::-1])
    axes.bar_label(drawn, fmt="%.1f", padding=3)
    axes.margins(x=0.15)
    axes.set_xlabel("milliseconds")
    axes.set_title(document["machine"]["device"], fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(document: dict[str, Any], path: Path) -> None:
    """The JSON, and the plot beside it."""
    path.write_text(json.dumps(document, indent=1) + "\n")
    plot(document, path.with_suffix(".png"))
