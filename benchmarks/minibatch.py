"""Training on sampled neighbourhoods: what of a step is the model, and an epoch beside peers.

``python -m benchmarks minibatch`` trains GraphSAGE on a twin of Reddit2 and R-GCN on one of mag, a
tenth of their nodes and edges on a CPU (``--scale``), hidden 128, batches of 1,024, fanouts 15, 10,
with the room for sources that `block_capacity` finds. The peer in plain JAX is the same model by
``jax.ops.segment_sum``, on the same blocks, sampled by this library; its first loss must be the
same. Epochs take turns. With a GPU there are batches, too, whose features, or graph and features,
stay on the host, sent ahead by ``fetch_ahead``, beside what its link carries. Where there are
several devices, seeds are split over them. PyG's ``NeighborLoader`` runs where it has what it
samples with.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.definition import Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.timing import WallTimer
from benchmarks.worker import probe
from benchmarks.workloads import RELATIONAL_TWINS, TWINS, power_law, typed_edges

FEATURES, HIDDEN, CLASSES, LAYERS = 128, 128, 41, 2
BATCH, FANOUTS = 1024, (15, 10)
TRAINING = 0.1  # share of the nodes


PLAIN, PYG = "plain jax", "PyG NeighborLoader"


def run(platform: str, scale: float, rounds: int) -> Document:
    """Times both models."""
    import jax

    machine = probe(Settings(platform=platform))
    cases = [*_measured("sage", scale, rounds), *_measured("rgcn", scale, rounds)]
    cases[0]["candidates"].append(_pyg(scale, rounds))
    if platform == "gpu":  # a CPU has no link to its memory
        cases.append(_hosted(scale, rounds))
        if len(jax.devices()) > 1:
            cases += [_spread(scale, rounds, batch) for batch in (1024, 8192, 32768)]
    about = (
        f"Twins of Reddit2 (GraphSAGE) and mag (R-GCN), {scale:g} × their nodes and edges; "
        f"{FEATURES} features, hidden {HIDDEN}, batches of {BATCH:,}, fanouts "
        f"{', '.join(map(str, FANOUTS))}. Times of a step, means of an epoch."
    )
    title = "Training on sampled neighbourhoods"
    return document("minibatch", title, machine, cases, about=about, baseline=PLAIN)


def _graph(name: str, scale: float) -> Any:
    """A twin's edges, of which each node's to itself are left out."""
    if name == "sage":
        nodes, edges, exponent = TWINS["reddit2"]
        return power_law(round(nodes * scale), round(edges * scale), exponent)
    sizes: Any = RELATIONAL_TWINS["mag"]
    nodes, edges, *rest = sizes
    return typed_edges(round(nodes * scale), round(edges * scale), *rest)


class _Task(NamedTuple):
    """A model to be trained on batches.

    Attributes:
        graph: of a twin.
        features: ``(num_nodes, FEATURES)``.
        y: ``(num_nodes,)``, classes.
        ids: nodes to train with.
        start: parameters, and the moments of their means.
        optimizer: of them.
        logits: by name, functions of parameters, blocks and rows: the model here, and in plain JAX.
    """

    graph: Any
    features: Any
    y: Any
    ids: np.ndarray
    start: Any
    optimizer: Any
    logits: dict[str, Callable[..., Any]]

    def capacity(self, batch: int) -> Any:
        """Room for the sources of so many seeds."""
        import jax

        from jax_gnn.sampling import block_capacity

        seeds = np.resize(self.ids, (2, batch))
        return block_capacity(self.graph, seeds, FANOUTS, jax.random.key(1))

    def batches(self, batch: int) -> np.ndarray:
        """All ids once, filled up with -1."""
        steps = -(-len(self.ids) // batch)
        padding = np.full(steps * batch - len(self.ids), -1)
        return np.append(self.ids, padding).astype(np.int32).reshape(steps, batch)

    def step(self, of: str, state: Any, seeds: Any, drawn: Any, y: Any, mean: Any = None) -> Any:
        """State and loss after a step with blocks and rows; gradients go through ``mean``."""
        import jax
        import jax.numpy as jnp

        params, moments = state

        def loss_of(params: Any) -> Any:
            logits = self.logits[of](params, *drawn)
            own = jnp.take_along_axis(jax.nn.log_softmax(logits), y[seeds][:, None], 1)[:, 0]
            there = seeds >= 0
            return -jnp.sum(jnp.where(there, own, 0)) / jnp.maximum(there.sum(), 1)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        gradients = mean(gradients) if mean else gradients
        updates, moments = self.optimizer.update(gradients, moments, params)
        return (jax.tree.map(jnp.add, params, updates), moments), loss


def _task(name: str, scale: float) -> _Task:
    import jax.numpy as jnp
    from flax import nnx

    import flax_layers
    from flax_layers.training.epochs import adam
    from jax_gnn import Graph, RelationalGraph

    edges = _graph(name, scale)
    num_nodes = edges.num_nodes
    rng = np.random.default_rng(0)
    features = jnp.asarray(rng.normal(size=(num_nodes, FEATURES)), jnp.float32)
    y = jnp.asarray(rng.integers(0, CLASSES, num_nodes), jnp.int32)
    ids = rng.permutation(num_nodes)[: max(1, round(num_nodes * TRAINING))]
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
    definition, *states = nnx.split(model, nnx.Param, ...)
    params, rest = states
    optimizer = adam(0.01)

    def here(params: Any, blocks: Any, x: Any) -> Any:
        return nnx.merge(definition, params, rest)(blocks, x, deterministic=True)

    def plain(params: Any, blocks: Any, x: Any) -> Any:
        import jax

        for number, block in enumerate(blocks.graphs, start=1):
            layer = nnx.to_pure_dict(params)[f"conv{number}"]
            x = (_plain_sage if name == "sage" else _plain_rgcn)(layer, block, x)
            x = jax.nn.relu(x) if number < LAYERS else x
        return x

    start = params, optimizer.init(params)
    logits = {OURS: here, PLAIN: plain}
    return _Task(graph, features, y, ids, start, optimizer, logits)


def _measured(name: str, scale: float, rounds: int) -> list[Any]:
    """Steps with a model here, and in plain JAX on the same blocks; and the models alone.

    The steps of an epoch are one program, as in training; those of the model alone have the same
    blocks again and again.
    """
    import jax

    from jax_gnn.sampling import sample_neighbors

    task = _task(name, scale)
    seeds, capacity = task.batches(BATCH), task.capacity(BATCH)
    keys = jax.random.split(jax.random.key(0), len(seeds))
    data = task.graph, task.features, task.y

    @jax.jit
    def sample(seeds: Any, key: Any, graph: Any, features: Any) -> Any:
        blocks = sample_neighbors(graph, seeds, FANOUTS, key, capacity=capacity)
        return blocks, blocks.node_values(features)

    def epoch(of: str) -> Any:
        def whole(state: Any, seeds: Any, keys: Any, graph: Any, features: Any, y: Any) -> Any:
            def step(state: Any, own: Any) -> Any:
                return task.step(of, state, own[0], sample(*own, graph, features), y)

            return jax.lax.scan(step, state, (seeds, keys))

        return jax.jit(whole)

    def alone(of: str) -> Any:
        def whole(state: Any, seeds: Any, drawn: Any, y: Any) -> Any:
            def step(state: Any, own: Any) -> Any:
                state, given = jax.lax.optimization_barrier((state, drawn))  # made at each step
                return task.step(of, state, own, given, y)

            return jax.lax.scan(step, state, seeds)

        return jax.jit(whole)

    epochs, models = {of: epoch(of) for of in task.logits}, {of: alone(of) for of in task.logits}
    drawn = jax.block_until_ready(sample(seeds[0], keys[0], *data[:2]))
    repeated = np.broadcast_to(seeds[0], seeds.shape)
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for of in task.logits:
        step = functools.partial(epochs[of], task.start, seeds, keys, *data)
        calls["step", of] = step
        calls["model", of] = functools.partial(models[of], task.start, repeated, drawn, task.y)
    losses = {of: float(calls["step", of]()[1][0]) for of in task.logits}
    wrong = {OURS: "", PLAIN: ""}
    if not abs(losses[OURS] - losses[PLAIN]) < 1e-3:
        wrong[OURS] = f"its first loss is {losses[OURS]:.4f}, in plain JAX {losses[PLAIN]:.4f}"
    drawn_of = (sample(each, key, *data[:2])[0] for each, key in zip(seeds, keys, strict=True))
    overflows = sum(bool(blocks.overflow) for blocks in drawn_of)
    memory = epochs[OURS].lower(task.start, seeds, keys, *data).compile().memory_analysis()
    details = {
        "nodes": f"{len(task.y):,}",
        "edges": f"{int(data[0].num_edges):,}",
        "room for sources": " ".join(map(str, capacity)),
        "batches that need more": f"{overflows} of {len(seeds)}",
        **_megabytes(memory, drawn, data),
    }
    times = _seconds(calls, rounds, len(seeds))
    return [
        case(
            name,
            mode,
            [
                candidate(
                    of,
                    times[mode, of],
                    family=of,
                    wrong=wrong[of],
                    details=details if (mode, of) == ("step", OURS) else {},
                )
                for of in task.logits
            ],
        )
        for mode in ("step", "model")
    ]


def _seconds(
    calls: dict[Any, Callable[[], Any]], rounds: int, steps: int
) -> dict[Any, list[float]]:
    """Of a step, where each call makes so many."""
    import jax

    samples = WallTimer(jax.block_until_ready).measure(calls, rounds)
    return {key: [seconds / steps for seconds in each] for key, each in samples.items()}


def _spread(scale: float, rounds: int, batch: int, steps: int = 40) -> Row:
    """Seeds split over the devices, the graph whole on each: GraphSAGE, steps in one program.

    One device after the other is what a single one would take for as many seeds.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jax_gnn.sampling import sample_neighbors

    task = _task("sage", scale)
    capacity = task.capacity(batch)
    seeds = np.resize(task.ids, (len(jax.devices()), steps, batch)).astype(np.int32)
    numbers = np.arange(steps, dtype=np.int32)

    def blocks_of(seeds: Any, number: Any, device: Any, graph: Any) -> Any:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), number), device)
        return sample_neighbors(graph, seeds, FANOUTS, key, capacity=capacity)

    def spread(count: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        mesh = Mesh(np.array(jax.devices()[:count]), ("seeds",))
        whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("seeds"))
        on_all = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)

        def trained(state: Any, seeds: Any, graph: Any, features: Any, y: Any) -> Any:
            def step(state: Any, own: Any) -> Any:
                seeds, number = own
                blocks = blocks_of(seeds, number, jax.lax.axis_index("seeds"), graph)
                drawn = blocks, blocks.node_values(features)
                mean = functools.partial(jax.lax.pmean, axis_name="seeds")
                return task.step(OURS, state, seeds, drawn, y, mean)

            return jax.lax.scan(step, state, (seeds[0], numbers))[0]

        def first(seeds: Any, graph: Any) -> Any:
            drawn = blocks_of(seeds[0, 0], 0, jax.lax.axis_index("seeds"), graph)
            return jax.tree.map(lambda leaf: leaf[None], drawn)

        specs = P(), P("seeds"), P(), P(), P()
        train = jax.jit(on_all(trained, in_specs=specs, out_specs=P()))
        draw = jax.jit(on_all(first, in_specs=(P("seeds"), P()), out_specs=P("seeds")))
        state, data = jax.device_put((task.start, (task.graph, task.features, task.y)), whole)
        own = jax.device_put(seeds[:count], split)
        return lambda: train(state, own, *data), lambda: draw(own, data[0])

    counts = 1, len(jax.devices())
    programs = {count: spread(count) for count in counts}
    found = jax.device_get(programs[counts[1]][1]())
    same = True
    for device in range(counts[1]):
        one = jax.device_get(jax.jit(blocks_of)(seeds[device, 0], 0, device, task.graph))
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True)
        same = same and all(np.array_equal(a[device], b) for a, b in pairs)
    trained = {count: train for count, (train, _) in programs.items()}
    one, several = _seconds(trained, rounds, steps).values()
    wrong = "" if same else "other blocks than on one device"
    single = candidate("one device", [counts[1] * each for each in one], family="one device")
    rows = [candidate(OURS, several, wrong=wrong), single]
    return case(f"sage, {batch:,} seeds a device", f"{counts[1]} devices", rows)


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
    named |= {"whole": size(data)}
    return {f"{name}, MB": bytes_ / 1e6 for name, bytes_ in named.items()}


def _hosted(scale: float, rounds: int) -> Row:
    """Batches of GraphSAGE whose features are on the host, beside what its link carries."""
    import jax
    import jax.numpy as jnp

    from jax_gnn.sampling import fetch_ahead, sample_neighbors

    device = jax.devices()[0]
    task = _task("sage", scale)
    graph, features = jax.tree.map(np.asarray, (task.graph, task.features))
    batches = np.resize(task.ids, (64, BATCH)).astype(np.int32)
    capacity = task.capacity(BATCH)

    def sampled(number: int, graph: Any) -> Any:
        key = np.array([0, number], np.uint32)
        return sample_neighbors(graph, batches[number], FANOUTS, key, capacity=capacity)

    @jax.jit
    def of_device(seeds: Any, key: Any, graph: Any) -> Any:
        return sample_neighbors(graph, seeds, FANOUTS, key, capacity=capacity)

    @jax.jit
    def step(state: Any, blocks: Any, x: Any, y: Any) -> Any:
        return task.step(OURS, state, blocks.node_ids[:BATCH], (blocks, x), y)

    placed = jax.device_put(graph, device)
    seeds, keys = jnp.asarray(batches), jax.random.split(jax.random.key(0), len(batches))
    drawn: dict[str, Callable[[], Iterable[Any]]] = {
        OURS: lambda: map(lambda *own: of_device(*own, placed), seeds, keys),
        "graph on the host": lambda: (sampled(number, graph) for number in range(len(batches))),
    }

    def fed(make: Any, use: Any) -> float:
        """Seconds of a batch, the first eight left out."""
        for number, (blocks, x) in enumerate(fetch_ahead(make(), features, device=device)):
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

    blocks = of_device(seeds[0], keys[0], placed)

    def trained(blocks: Any, x: Any) -> Any:
        return step(task.start, blocks, x, task.y)

    def repeated(call: Callable[[], Any]) -> float:
        """Seconds of one of eight that are queued."""
        jax.block_until_ready(call())
        begun = time.perf_counter()
        jax.block_until_ready([call() for _ in range(8)])
        return (time.perf_counter() - begun) / 8

    calls: dict[str, Callable[[], float]] = {}
    for where, make in drawn.items():
        both = "" if where == OURS else f"{where}, "
        calls[where] = functools.partial(fed, make, trained)
        calls[f"{both}no steps"] = functools.partial(fed, make, lambda _, x: x)
    calls["step alone"] = lambda: repeated(lambda: trained(blocks, x))
    for what, rows in links.items():
        sent = functools.partial(jax.device_put, rows, shardings["device"])
        calls[what] = functools.partial(repeated, sent)
    found = [{what: call() for what, call in calls.items()} for _ in range(rounds)]
    candidates = []
    for what in calls:
        seconds = [each[what] for each in found]
        details = {"GB of features / s": x.nbytes / 1e9 / statistics.median(seconds)}
        candidates.append(candidate(what, seconds, details=details))
    return case("sage", "host features", candidates)


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


def _pyg(scale: float, rounds: int) -> Row:
    """An epoch of GraphSAGE with PyG's own loader."""
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
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        return candidate(PYG, family=PYG, status="absent", reason=reason)
    return candidate(PYG, seconds[1:], family=PYG)
