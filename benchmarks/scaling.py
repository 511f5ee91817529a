"""Training over several devices: what a step takes on all of them, and on one.

``python -m benchmarks scaling`` trains a GCN of three layers, of width 128. Of weak scaling each
device has as many nodes and edges, ``--scale`` of a million and of 25 million, and needs of others
a quarter as many rows as it has; one device alone has a graph of that size to itself. Of strong
scaling they share a twin of Reddit2, split by each method. On GPUs rows are also sent by the copy
engines, and those of named models in bfloat16. Peers are the same model over a mesh that splits
arrays of nodes and edges, which JAX's partitioner makes of it, here and in plain JAX.
Losses must be the same. Steps take turns; several are one program, as in training. The case
``layers``, which is run if it is asked for, is weak scaling of GCN, GraphSAGE, GAT and R-GCN of
width 256 over hidden communities, one for each device, with a tenth of the edges between them, from
a tenth of the nodes: `shard_graph` finds the parts.

Of wide features, the same model has these on the devices or on the host, by `HostRows`. The case
``large`` needs `LARGE` times what one GPU has; it is run if it is asked for, and wants twice that
of the host, and ``XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB`` for page-locked memory.

Two cases have no graph to split. Small graphs are those of `benchmarks.epochs`, in batches that are
on the devices already: each device takes its share of a step's batches, and gradients are summed.
Experts are the groups of a `segment_matmul`, split over the devices, beside JAX's ``ragged_dot``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from benchmarks import epochs
from benchmarks.definition import Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.timing import WallTimer
from benchmarks.worker import probe
from benchmarks.workloads import TWINS, power_law

WIDTH, CLASSES, LAYERS, STEPS = 128, 40, 3, 5
NODES, EDGES, HALO, CROSSING = 1_000_000, 25_000_000, 0.25, 0.2
METHODS = "auto", "hash"
GRAPHS, BATCHES = 10_000, 24
ROWS, FEATURES, EXPERTS = 131_072, 512, 32
LAYER_WIDTH, BETWEEN, RELATIONS = 256, 0.1, 4
MODELS = "gcn", "sage", "gat", "rgcn"
WIDE, DEGREE, LARGE = 512, 4, 1.6
CASES = "weak", "strong", "host", "graphs", "experts"
ON_REQUEST = ("large", "layers")
RAGGED_DOT, ON_HOST = "ragged_dot", ", features on the host"
COPIES, HALF = f"{OURS}, copy engines", f"{OURS}, rows sent in bfloat16"
ONE, AUTOMATIC, PLAIN = "one device", "split arrays", "split arrays, plain jax"


class _Problem(NamedTuple):
    """A graph on the host, and who has its nodes.

    Attributes:
        graph: the graph.
        parts: for each node its device, or a method that finds it.
    """

    graph: Any
    parts: Any


def run(
    platform: str, scale: float, rounds: int, devices: int | None, names: tuple[str, ...] = CASES
) -> Document:
    """Times these cases over so many devices, or all that there are."""
    import jax

    machine = probe(Settings(platform=platform))
    count = devices or jax.device_count()
    if not 2 <= count <= jax.device_count():
        raise ValueError(f"scaling takes 2 devices or more, {jax.device_count()} are there")
    known = (*CASES, *ON_REQUEST)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no case is called {unknown[0]!r}: {', '.join(known)}")
    graphs = _weak_cases, _strong_cases, _wide_features
    makers = dict(zip(known, (*graphs, _small_graphs, _experts, _large, _layers), strict=True))
    cases = [each for name in names for each in makers[name](count, rounds, scale)]
    about = (
        f"A GCN of {LAYERS} layers, width {WIDTH}, or the named model, width {LAYER_WIDTH}; "
        "float32. Times of a training step."
    )
    title = f"Training over {count} devices"
    return document("scaling", title, machine, cases, about=about, baseline=ONE)


def _weak_cases(count: int, rounds: int, scale: float) -> Iterator[Row]:
    nodes, edges = (max(round(size * scale) // 8 * 8, 64) for size in (NODES, EDGES))
    problem, alone = _halos(count, nodes, edges), _halos(1, nodes, edges)
    yield _case(f"weak, {nodes:,} nodes and {edges:,} edges each", count, rounds, problem, alone)


def _strong_cases(count: int, rounds: int, scale: float) -> Iterator[Row]:
    nodes, edges, exponent = TWINS["reddit2"]
    nodes, edges = (round(scale * size) // count * count for size in (nodes, edges))
    whole = power_law(nodes, edges, exponent)
    shared = _graph_of(whole.cols, whole.rows, whole.num_nodes)
    for method in METHODS:
        yield _case(
            f"strong, Reddit2's twin, {method}", count, rounds, _Problem(shared, method), None
        )


def _graph_of(src: Any, dst: Any, num_nodes: int) -> Any:
    from jax_gnn import Graph, host_arrays

    with host_arrays():
        return Graph.from_edges(src, dst, num_nodes=num_nodes)


def _halos(count: int, nodes: int, edges: int) -> _Problem:
    """Each device's nodes one after another; some of its edges come from a few nodes of others."""
    rng = np.random.default_rng(count)
    own = np.arange(count)[:, None] * nodes
    src = rng.integers(0, nodes, (count, edges)) + own
    dst = rng.integers(0, nodes, (count, edges)) + own
    crossing = round(CROSSING * edges) if count > 1 else 0
    for device in range(count if crossing else 0):
        others = rng.choice((count - 1) * nodes, round(HALO * nodes), replace=False)
        others += nodes * (others >= device * nodes)
        src[device, :crossing] = rng.choice(others, crossing)
    parts = np.repeat(np.arange(count, dtype=np.int32), nodes)
    return _Problem(_graph_of(src.ravel(), dst.ravel(), count * nodes), parts)


def _layers(count: int, rounds: int, scale: float) -> Iterator[Row]:
    """A community alone on one device, and as many communities as devices, hidden by their ids."""
    from jax_gnn import RelationalGraph, host_arrays
    from jax_gnn.sharding import partition

    nodes, edges = (max(round(size * scale) // 8 * 8, 64) for size in (NODES, EDGES))
    problems: list[dict[str, _Problem]] = []
    for number in (count, 1):
        rng = np.random.default_rng(number)
        home = np.arange(number)[:, None] * nodes
        src, dst = (rng.integers(0, nodes, (number, edges)) + home for _ in range(2))
        leaves = rng.random((number, edges)) < BETWEEN * (number > 1)
        border = rng.integers(0, max(round(BETWEEN * nodes), 1), leaves.sum())
        src[leaves] = border + nodes * rng.integers(0, number, leaves.sum())
        ids = rng.permutation(number * nodes)
        src, dst = ids[src.ravel()], ids[dst.ravel()]
        graph = _graph_of(src, dst, number * nodes)
        parts = partition(graph, number) if number > 1 else None
        relation = rng.integers(0, RELATIONS, src.size)
        sizes: Any = {"num_nodes": number * nodes, "num_relations": RELATIONS}
        with host_arrays():
            typed = RelationalGraph.from_triples(src, relation, dst, **sizes)
        graphs = {model: typed if model == "rgcn" else graph for model in MODELS}
        problems.append({model: _Problem(each, parts) for model, each in graphs.items()})
    for model in MODELS:
        name = f"{model}, a community of {nodes:,} nodes and {edges:,} edges each"
        yield _case(name, count, rounds, problems[0][model], problems[1][model], model)


def _case(
    name: str,
    count: int,
    rounds: int,
    problem: _Problem,
    alone: _Problem | None,
    model: str | None = None,
) -> Row:
    """A problem over several devices, and one alone: another, or the same.

    Without the name of a model it is a GCN of width `WIDTH`, and plain JAX is a peer.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jax_gnn.sharding import shard_graph

    mesh = Mesh(np.array(jax.devices()[:count]), ("nodes",))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("nodes"))
    width = LAYER_WIDTH if model else WIDTH
    here, plain, start, optimizer = _model(width, model or "gcn", width)
    graph, *rows = whole = _data(problem.graph, width)
    single = _data(alone.graph, width) if alone else whole
    options: list[dict[str, Any]] = [{}, {"copy_engines": True}, {"wire_dtype": "bfloat16"}]
    sharded, copying, rounding = (
        shard_graph(graph, mesh, "nodes", method=problem.parts, **named) for named in options
    )

    def at_parts(params: Any, sharded: Any, x: Any) -> Any:
        return sharded.apply(lambda part, x, params: here(params, part, x), x, params=params)

    def placed(leaf: Any) -> Any:  # arrays of nodes and of edges
        wanted = np.shape(leaf)[:1] in ((graph.num_nodes,), (graph.num_edges,))
        return jax.device_put(leaf, split if wanted else everywhere)

    arrays = jax.tree.map(placed, whole)
    over_all = jax.device_put(start, everywhere)
    calls: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        OURS: (at_parts, over_all, (sharded, *map(sharded.shard, rows))),
        COPIES: (at_parts, over_all, (copying, *map(sharded.shard, rows))),
        HALF: (at_parts, over_all, (rounding, *map(sharded.shard, rows))),
        AUTOMATIC: (here, over_all, arrays),
        PLAIN: (plain, over_all, arrays),
        ONE: (here, *jax.device_put((start, single), jax.devices()[0])),
    }
    if jax.devices()[0].platform != "gpu":
        del calls[COPIES]
    if model:
        del calls[PLAIN]
    else:
        del calls[HALF]
    trained, memory = {}, {}
    with ThreadPoolExecutor(len(calls)) as threads:
        compiled = {
            of: threads.submit(
                _compiled,
                functools.partial(_steps, function, optimizer),
                *(state, *data),
                options=copying.compiler_options if of == COPIES else None,
            )
            for of, (function, state, data) in calls.items()
        }
    for of, (_, state, data) in calls.items():
        call, memory[of] = compiled[of].result()
        trained[of] = functools.partial(call, state, *data)
    peer = AUTOMATIC if model else PLAIN
    losses = {of: float(call()[1][0]) for of, call in trained.items()}
    times = WallTimer(jax.block_until_ready).measure(trained, rounds)
    candidates = []
    for of, seconds in times.items():
        off = abs(losses[of] - losses[peer]) > 1e-3 and (of != ONE or alone is None)
        wrong = f"its first loss is {losses[of]:.4f}, of {peer} {losses[peer]:.4f}" if off else ""
        details = {"MB a device": memory[of]}
        if of == OURS:
            details["rows moved"] = sharded.rows_moved
        steps = [each / STEPS for each in seconds]
        candidates.append(candidate(of, steps, family=of, wrong=wrong, details=details))
    return case(name, f"{count} devices", candidates)


def _wide_features(count: int, rounds: int, scale: float) -> Iterator[Row]:
    yield _placed("wide features", count, rounds, max(round(NODES * scale) // count, 64))


def _large(count: int, rounds: int, scale: float) -> Iterator[Row]:
    """Of which one device needs `LARGE` times what it has, but for ``scale``."""
    import jax

    of_node = 4 * (WIDE + 4 * WIDTH) + 16 * DEGREE  # of one device, as its program says
    memory = (jax.devices()[0].memory_stats() or {"bytes_limit": 2**36})["bytes_limit"]
    nodes = round(scale * LARGE * memory / of_node / count) // 2**14 * 2**14
    yield _placed("larger than a device", count, rounds, max(nodes, 64))


def _placed(name: str, count: int, rounds: int, nodes: int) -> Row:
    """Features on the devices and on the host, over all of them and on one, one after another."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jax_gnn.sharding import HostRows, shard_graph

    here, _, start, optimizer = _model(WIDE)
    problem = _halos(count, nodes, DEGREE * nodes)
    graph, x, *rows = _data(problem.graph, WIDE)
    mesh, device = Mesh(np.array(jax.devices()[:count]), ("nodes",)), jax.devices()[0]
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("nodes"))
    sharded = shard_graph(graph, mesh, "nodes", method=problem.parts)
    alone = jax.device_put((graph, *rows), device)
    parts = (sharded, *map(sharded.shard, rows))
    limit = (device.memory_stats() or {"bytes_limit": np.inf})["bytes_limit"] / 1e6

    def at_parts(params: Any, sharded: Any, x: Any) -> Any:
        return sharded.apply(lambda part, x, params: here(params, part, x), x, params=params)

    def like(shape: tuple[int, ...], sharding: Any) -> Any:  # so as to compile what does not fit
        return jax.ShapeDtypeStruct((*shape, WIDE), x.dtype, sharding=sharding)

    def on_devices() -> Any:
        return sharded.shard(x)

    single = jax.sharding.SingleDeviceSharding(device)
    ways: dict[str, tuple[Any, ...]] = {
        ONE: (here, device, alone, like(x.shape[:1], single), lambda: jax.device_put(x, device)),
        ONE + ON_HOST: (here, device, alone, None, lambda: HostRows.put(x, device=device)),
        OURS: (at_parts, everywhere, parts, like(sharded.node_ids.shape, split), on_devices),
        OURS + ON_HOST: (at_parts, everywhere, parts, None, lambda: sharded.host_rows(x)),
    }
    candidates: list[Row] = []
    memory: dict[str, float] = {}
    losses = None
    for of, (function, where, (graph, *rows), shape, put) in ways.items():
        state = jax.device_put(start, where)
        placed = put() if shape is None else shape
        several = functools.partial(_steps, function, optimizer)
        given = (state, graph, placed, *rows)
        # XLA tries its kernels on arrays, which must fit then.
        _, memory[of] = _compiled(several, *given, options={"xla_gpu_autotune_level": 0})
        details: dict[str, Any] = {"MB a device": memory[of]}
        if of.startswith(OURS):
            share = memory[of.replace(OURS, ONE)] / count
            details["of one device's share"] = memory[of] / share
        if memory[of] > limit:
            why = f"it takes {memory[of]:,.0f} MB of {limit:,.0f}"
            row = candidate(of, family=of, status="absent", reason=why, details=details)
        else:
            call, _ = _compiled(several, *given)
            placed = placed if shape is None else put()
            run = functools.partial(call, state, graph, placed, *rows)
            found = np.asarray(run()[1])
            losses = found if losses is None else losses
            off = float(np.abs(found - losses).max())
            (seconds,) = WallTimer(jax.block_until_ready).measure({of: run}, rounds).values()
            row = candidate(
                of,
                [each / STEPS for each in seconds],
                family=of,
                wrong=f"losses differ by {off:.1e}" if off > 1e-3 else "",
                details=details,
            )
            del run, placed
        candidates.append(row)
    return case(f"{name}, {x.shape[0]:,} nodes, {WIDE} features", f"{count} devices", candidates)


def _compiled(function: Any, *data: Any, options: Any = None) -> tuple[Any, float]:
    """The compiled function, and what a device has for it in MB."""
    import jax

    call = jax.jit(function).lower(*data).compile(options)
    found: Any = call.memory_analysis()
    return call, (found.temp_size_in_bytes + found.argument_size_in_bytes) / 1e6


def _data(graph: Any, features: int) -> tuple[Any, ...]:
    """The graph, features and classes of its nodes, and ones; features repeat, to be made soon."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2**14, features)).astype(np.float32)
    x = np.tile(x, (-(-graph.num_nodes // len(x)), 1))[: graph.num_nodes]
    y = rng.integers(0, CLASSES, graph.num_nodes).astype(np.int32)
    return graph, x, y, np.ones(graph.num_nodes, np.float32)


def _model(features: int, name: str = "gcn", width: int | None = None) -> tuple[Any, ...]:
    """Logits of parameters, graph and features, here and in plain JAX; a start, an optimizer.

    In plain JAX only of a GCN.
    """
    import jax
    from flax import nnx

    from flax_layers import GAT, GCN, SAGE, RGCNConv
    from flax_layers.training.epochs import adam

    class RGCN(nnx.Module):
        """As many layers as the others have; flax_layers.RGCN has two."""

        def __init__(self, *sizes: int, num_layers: int, rngs: nnx.Rngs, **_: Any) -> None:
            first, hidden, last = sizes
            widths = [first, *[hidden] * (num_layers - 1), last]
            convs = itertools.pairwise(widths)
            self.convs = nnx.List(
                [RGCNConv(*sizes, num_relations=RELATIONS, rngs=rngs) for sizes in convs]
            )

        def __call__(self, graph: Any, x: Any, *, deterministic: bool) -> Any:
            for conv in self.convs[:-1]:
                x = jax.nn.relu(conv(graph, x))
            return self.convs[-1](graph, x)

    options: Any = {"num_layers": LAYERS, "dropout_rate": 0.0, "rngs": nnx.Rngs(0)}
    made = {"gcn": GCN, "sage": SAGE, "gat": GAT, "rgcn": RGCN}[name]
    model = made(features, width or WIDTH, CLASSES, **options)
    definition, *states = nnx.split(model, nnx.Param, ...)
    params, rest = states
    optimizer = adam(0.01)

    def here(params: Any, graph: Any, x: Any) -> Any:
        return nnx.merge(definition, params, rest)(graph, x, deterministic=True)

    def plain(params: Any, graph: Any, x: Any) -> Any:
        scale = jax.lax.rsqrt(graph.in_degrees() + 1.0)[:, None]
        for number in range(1, LAYERS + 1):
            layer = nnx.to_pure_dict(params)[f"conv{number}"]
            scaled = x @ layer["kernel"] * scale
            sums = jax.ops.segment_sum(
                scaled[graph.cols], graph.rows, graph.num_nodes, indices_are_sorted=True
            )
            x = (sums + scaled) * scale + layer["bias"]
            x = jax.nn.relu(x) if number < LAYERS else x
        return x

    return here, plain, (params, optimizer.init(params)), optimizer


def _steps(
    logits: Callable[..., Any], optimizer: Any, state: Any, graph: Any, x: Any, y: Any, real: Any
) -> Any:
    """State and losses after `STEPS` steps; ``real`` is 0 where a row is padding."""
    import jax
    import jax.numpy as jnp

    def loss_of(params: Any) -> Any:
        own = jax.nn.log_softmax(logits(params, graph, x)) * jax.nn.one_hot(y, CLASSES)
        return -(own.sum(-1) * real).sum() / real.sum()

    def step(state: Any, _: Any) -> Any:
        params, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (jax.tree.map(jnp.add, params, updates), moments), loss

    return jax.lax.scan(step, state, length=STEPS)


def _small_graphs(count: int, rounds: int, scale: float) -> Iterator[Row]:
    """An epoch, with as many batches in a step as there are devices; on one it adds them up."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax.flatten_util import ravel_pytree
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from flax_layers import GINClassifier
    from jax_gnn import Batch, host_arrays

    size, steps = max(round(GRAPHS * scale) // BATCHES, 2), max(BATCHES // count, 1)
    graphs = epochs.molecules(size * steps * count)
    chunks = [graphs[start : start + size] for start in range(0, len(graphs), size)]
    room = {
        "num_nodes": max(sum(len(each.x) for each in chunk) for chunk in chunks),
        "num_edges": max(sum(each.edges.shape[1] for each in chunk) for chunk in chunks),
    }
    with host_arrays():
        batches = []
        for chunk in chunks:
            nodes = [len(each.x) for each in chunk]
            made = Batch.from_edges([each.edges for each in chunk], nodes, num_graphs=size, **room)
            labels = np.array([each.label for each in chunk])
            batches.append((made, made.join_nodes([each.x for each in chunk]), labels))
    data = jax.tree.map(
        lambda *leaves: np.stack(leaves).reshape(steps, count, *leaves[0].shape), *batches
    )
    model: Any = GINClassifier(
        *(epochs.FEATURES, epochs.HIDDEN, epochs.CLASSES),
        num_layers=epochs.LAYERS,
        dropout_rate=0.0,
        rngs=nnx.Rngs(0),
    )
    split: Any = nnx.split(model, nnx.Param, ...)
    definition, parameters, others = split
    vector, unravel = ravel_pytree(parameters)
    optimizer = optax.adam(epochs.LEARNING_RATE)

    def loss_of(vector: Any, others: Any, batch: Any) -> tuple[Any, Any]:
        made, x, y = batch
        model = nnx.merge(definition, unravel(vector), others, copy=True)
        losses = optax.softmax_cross_entropy_with_integer_labels(model(made, x), y)
        return losses.mean(), nnx.state(model, nnx.Not(nnx.Param))

    def step(state: Any, batches: Any) -> tuple[Any, Any]:
        vector, moments, others = state
        here = jax.lax.pcast(vector, "devices", to="varying")

        def add(state: Any, batch: Any) -> tuple[Any, Any]:
            others, total = state
            (loss, others), gradient = jax.value_and_grad(loss_of, has_aux=True)(
                here, others, batch
            )
            return (others, total + gradient), loss

        (others, total), losses = jax.lax.scan(add, (others, jnp.zeros_like(here)), batches)
        gradient = jax.lax.psum(total, "devices") / count
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(vector, updates), moments, others), losses

    def epoch(state: Any, others: Any, data: Any) -> tuple[Any, Any]:
        others = jax.tree.map(lambda leaf: leaf[0], others)  # of batch norms, not shared
        (vector, *_), losses = jax.lax.scan(step, (*state, others), data)
        return vector, losses

    trained, memory, found = {}, {}, {}
    for of, number in ((OURS, count), (ONE, 1)):
        mesh = Mesh(np.array(jax.devices()[:number]), ("devices",))
        specs: Any = P(), P("devices"), P(None, "devices")
        call = jax.shard_map(epoch, mesh=mesh, in_specs=specs, out_specs=(P(), specs[2]))
        start = (vector, optimizer.init(vector))
        norms = jax.tree.map(lambda leaf, n=number: jnp.stack([leaf] * n), others)
        placed = [
            jax.device_put(each, NamedSharding(mesh, spec))
            for each, spec in zip((start, norms, data), specs, strict=True)
        ]
        compiled, memory[of] = _compiled(call, *placed)
        trained[of] = functools.partial(compiled, *placed)
        found[of] = np.asarray(trained[of]()[1])
    off = float(np.abs(found[OURS] - found[ONE]).max())
    times = WallTimer(jax.block_until_ready).measure(trained, rounds)
    alone = float(np.median(times[ONE]))
    yield case(
        f"{len(graphs):,} small graphs, {size} in a batch",
        "epoch",
        [
            candidate(
                of,
                seconds,
                family=of,
                wrong=f"losses differ by {off:.1e}" if off > 0.02 and of == OURS else "",
                details={
                    "MB a device": memory[of],
                    "graphs a second": len(graphs) / float(np.median(seconds)),
                    "of perfect scaling": alone / float(np.median(seconds)) / (count, 1)[of == ONE],
                },
            )
            for of, seconds in times.items()
        ],
    )


def _experts(count: int, rounds: int, scale: float) -> Iterator[Row]:
    """Rows that all devices have, times the matrices of groups, of which each has some."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jax_gnn import segment_matmul

    rng = np.random.default_rng(0)
    rows, groups = max(round(ROWS * scale), 64), -(-EXPERTS // count) * count
    x, ct = rng.normal(size=(2, rows, FEATURES)).astype(np.float32)
    kernel = rng.normal(size=(groups, FEATURES, FEATURES)).astype(np.float32) / FEATURES**0.5
    sizes = rng.multinomial(rows, rng.dirichlet(np.full(groups, 4.0))).astype(np.int32)
    mesh = Mesh(np.array(jax.devices()[:count]), ("experts",))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("experts"))
    here = jax.devices()[0]

    def gradients(product: Any) -> Any:
        def both(x: Any, kernel: Any, sizes: Any, ct: Any) -> Any:
            return jax.vjp(lambda *each: product(*each, sizes), x, kernel)[1](ct)

        return both

    ways: dict[str, Any] = {OURS: segment_matmul, RAGGED_DOT: jax.lax.ragged_dot}
    for mode in ("forward", "gradients"):
        given = (x, kernel, sizes, ct)[: 3 if mode == "forward" else 4]
        places = {"": (whole, split, whole, whole)[: len(given)], f", {ONE}": (here,) * len(given)}
        calls, memory, errors = {}, {}, {}
        for where, shardings in places.items():
            arrays = [jax.device_put(*each) for each in zip(given, shardings, strict=True)]
            for of, way in ways.items():
                function = way if mode == "forward" else gradients(way)
                call, memory[of + where] = _compiled(function, *arrays)
                calls[of + where] = functools.partial(call, *arrays)
        with jax.default_matmul_precision("highest"):
            function = ways[RAGGED_DOT] if mode == "forward" else gradients(ways[RAGGED_DOT])
            exact = jax.tree.map(np.asarray, jax.jit(function)(*given))
        for of, call in calls.items():
            pairs = zip(*map(jax.tree.leaves, (call(), exact)), strict=True)
            errors[of] = max(
                float(np.abs(got - ref).max() / np.abs(ref).max()) for got, ref in pairs
            )
        times = WallTimer(jax.block_until_ready).measure(calls, rounds)
        yield case(
            f"{groups} experts, {rows:,} rows of {FEATURES}",
            mode,
            [
                candidate(
                    of,
                    seconds,
                    family=OURS if of == OURS else of,
                    wrong="" if errors[of] < 5e-3 else "its result is another",
                    error=errors[of],
                    details={"MB a device": memory[of]},
                )
                for of, seconds in times.items()
            ],
        )
