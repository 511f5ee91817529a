"""Training over several devices: what a step takes on all of them, and on one.

``python -m benchmarks scaling`` trains a GCN of three layers, of width 128. Of weak scaling each
device has as many nodes and edges, ``--scale`` of a million and of 25 million, and needs of others
a quarter as many rows as it has; one device alone has a graph of that size to itself. Of strong
scaling they share a twin of Reddit2, split by each method. Peers are the same model over a mesh
that splits arrays of nodes and edges, which JAX's partitioner makes of it, here and in plain JAX.
Losses must be the same. Steps take turns; several are one program, as in training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.definition import Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.timing import WallTimer
from benchmarks.worker import probe
from benchmarks.workloads import TWINS, power_law

WIDTH, CLASSES, LAYERS, STEPS = 128, 40, 3, 5
NODES, EDGES, HALO, CROSSING = 1_000_000, 25_000_000, 0.25, 0.2
METHODS = "stream", "hash"
ONE, AUTOMATIC, PLAIN = "one device", "split arrays", "split arrays, plain jax"


class _Problem(NamedTuple):
    """A graph on the host, and who has its nodes.

    Attributes:
        graph: the graph.
        parts: for each node its device, or a method that finds it.
    """

    graph: Any
    parts: Any


def run(platform: str, scale: float, rounds: int, devices: int | None) -> Document:
    """Times both kinds of scaling, over so many devices or all that there are."""
    import jax

    machine = probe(Settings(platform=platform))
    count = devices or jax.device_count()
    if not 2 <= count <= jax.device_count():
        raise ValueError(f"scaling takes 2 devices or more, {jax.device_count()} are there")
    nodes, edges, exponent = TWINS["reddit2"]
    nodes, edges = (round(scale * size) // count * count for size in (nodes, edges))
    whole = power_law(nodes, edges, exponent)
    shared = _graph_of(whole.cols, whole.rows, whole.num_nodes)
    alone = _weak(1, scale)
    cases = [
        _case(
            f"weak, {alone.graph.num_nodes:,} nodes each", count, rounds, _weak(count, scale), alone
        )
    ]
    cases += [
        _case(f"strong, Reddit2's twin, {method}", count, rounds, _Problem(shared, method), None)
        for method in METHODS
    ]
    about = (
        f"A GCN of {LAYERS} layers, width {WIDTH}, float32. Times of a training step. Weak: "
        f"{alone.graph.num_edges:,} edges a device. Strong: {shared.num_nodes:,} nodes and "
        f"{shared.num_edges:,} edges in all."
    )
    title = f"Training over {count} devices"
    return document("scaling", title, machine, cases, about=about, baseline=ONE)


def _graph_of(src: Any, dst: Any, num_nodes: int) -> Any:
    from jax_gnn import Graph, host_arrays

    with host_arrays():
        return Graph.from_edges(src, dst, num_nodes=num_nodes)


def _weak(count: int, scale: float) -> _Problem:
    """Each device's nodes one after another; some of its edges come from a few nodes of others."""
    rng = np.random.default_rng(count)
    nodes, edges = (max(round(size * scale) // 8 * 8, 64) for size in (NODES, EDGES))
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


def _case(name: str, count: int, rounds: int, problem: _Problem, alone: _Problem | None) -> Row:
    """A problem over several devices, and one alone: another, or the same."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jax_gnn.sharding import shard_graph

    mesh = Mesh(np.array(jax.devices()[:count]), ("nodes",))
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("nodes"))
    here, plain, start, optimizer = _model()
    graph, *rows = whole = _data(problem.graph)
    single = _data(alone.graph) if alone else whole
    sharded = shard_graph(graph, mesh, "nodes", method=problem.parts)

    def at_parts(params: Any, sharded: Any, x: Any) -> Any:
        return sharded.apply(lambda part, x, params: here(params, part, x), x, params=params)

    def placed(leaf: Any) -> Any:  # arrays of nodes and of edges
        wanted = np.shape(leaf)[:1] in ((graph.num_nodes,), (graph.num_edges,))
        return jax.device_put(leaf, split if wanted else everywhere)

    arrays = jax.tree.map(placed, whole)
    over_all = jax.device_put(start, everywhere)
    calls: dict[str, tuple[Callable[..., Any], Any, Any]] = {
        OURS: (at_parts, over_all, (sharded, *map(sharded.shard, rows))),
        AUTOMATIC: (here, over_all, arrays),
        PLAIN: (plain, over_all, arrays),
        ONE: (here, *jax.device_put((start, single), jax.devices()[0])),
    }
    trained, memory = {}, {}
    for of, (function, state, data) in calls.items():
        call = jax.jit(functools.partial(_steps, function, optimizer)).lower(state, *data).compile()
        trained[of] = functools.partial(call, state, *data)
        found: Any = call.memory_analysis()
        memory[of] = (found.temp_size_in_bytes + found.argument_size_in_bytes) / 1e6
    losses = {of: float(call()[1][0]) for of, call in trained.items()}
    times = WallTimer(jax.block_until_ready).measure(trained, rounds)
    candidates = []
    for of, seconds in times.items():
        off = abs(losses[of] - losses[PLAIN]) > 1e-3 and (of != ONE or alone is None)
        wrong = (
            f"its first loss is {losses[of]:.4f}, in plain JAX {losses[PLAIN]:.4f}" if off else ""
        )
        details = {"MB a device": memory[of]}
        if of == OURS:
            details["rows moved"] = sharded.rows_moved
        steps = [each / STEPS for each in seconds]
        candidates.append(candidate(of, steps, family=of, wrong=wrong, details=details))
    return case(name, f"{count} devices", candidates)


def _data(graph: Any) -> tuple[Any, ...]:
    """The graph, features and classes of its nodes, and ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(graph.num_nodes, WIDTH)).astype(np.float32)
    y = rng.integers(0, CLASSES, graph.num_nodes).astype(np.int32)
    return graph, x, y, np.ones(graph.num_nodes, np.float32)


def _model() -> tuple[Any, ...]:
    """Logits of parameters, graph and features, here and in plain JAX; a start, an optimizer."""
    import jax
    from flax import nnx

    from flax_layers import GCN
    from flax_layers.training.epochs import adam

    options: Any = {"num_layers": LAYERS, "dropout_rate": 0.0, "rngs": nnx.Rngs(0)}
    definition, *states = nnx.split(GCN(WIDTH, WIDTH, CLASSES, **options), nnx.Param, ...)
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
