"""A training epoch over small graphs, with all that it takes: batches, copies, steps.

``python -m benchmarks epochs`` trains GIN with batch norms (Xu et al., ICLR 2019) to tell molecules
with a ring from those without. Every candidate has the same graphs, layers, sizes of batches and
optimiser, in a process of its own; epochs take turns, and wall times are compared. A candidate that
does not learn is wrong. What is built *ahead* is built by a thread of `grain`, and a call takes
several steps: so docs/batches.md has it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.definition import Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.worker import Process, probe, reason, set_environment, version

FEATURES, HIDDEN, LAYERS, CLASSES = 16, 64, 4, 2
LEARNING_RATE = 0.01
STEPS = 8  # of a call, where batches are built ahead
LEARNT = 0.9  # what the last epoch gets right at least, else a candidate is wrong


class Molecule(NamedTuple):
    """Sources and destinations, both directions; one-hot features; whether it has a ring."""

    edges: np.ndarray
    x: np.ndarray
    label: int


class Took(NamedTuple):
    """Seconds of an epoch; of these, in which batches were waited for, and in calls of steps."""

    seconds: float
    batches: float
    calls: float
    right: float  # share of the graphs


Epoch = Callable[[np.ndarray], Took]
"""Trains on graphs in this order."""


def molecules(count: int, seed: int = 0) -> list[Molecule]:
    """Trees of 10 to 40 nodes with short branches, and rings closed in half of them."""
    rng = np.random.default_rng(seed)
    made = []
    for size in rng.integers(10, 41, count):
        nodes = np.arange(1, size)
        parents = nodes - np.minimum(rng.integers(1, 4, size - 1), nodes)
        label = int(rng.integers(2))
        closed = rng.choice(np.arange(6, size), min(3, size - 6), replace=False) if label else ()
        ends = np.concatenate([nodes, np.asarray(closed, int)])
        others = np.concatenate([parents, np.asarray(closed, int) - 6])
        edges = np.stack([np.concatenate([ends, others]), np.concatenate([others, ends])])
        x = np.eye(FEATURES, dtype=np.float32)[rng.integers(FEATURES, size=size)]
        made.append(Molecule(edges.astype(np.int32), x, label))
    return made


class Graphs(NamedTuple):
    """What each graph has, and what a batch may have."""

    sizes: dict[str, np.ndarray]
    budget: Any

    @classmethod
    def of(cls, graphs: list[Molecule], size: int) -> Graphs:
        """Room for about that many graphs."""
        import jax_gnn

        sizes = {
            "num_nodes": np.array([len(g.x) for g in graphs]),
            "num_edges": np.array([g.edges.shape[1] for g in graphs]),
        }
        return cls(sizes, jax_gnn.batch_budget(sizes, num_graphs=size))


# Candidates in JAX.


Build = Callable[[np.ndarray], Any]
"""Makes a batch of the graphs of these numbers, in arrays of the host."""


def _jax_epoch(
    model: Any, build: Build, parts: Callable[[Any], Any], graphs: Graphs, ahead: bool
) -> Epoch:
    """Trains on what is built; its `parts` are labels, a mask of graphs, and the model's inputs.

    Steps are jitted functions of arrays, which spares `nnx.jit`'s work at every call. Parameters
    are one vector: Adam is one kernel then, and calls have few arguments.
    """
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax.flatten_util import ravel_pytree

    import jax_gnn

    split: Any = nnx.split(model, nnx.Param, ...)
    definition, parameters, others = split
    vector, unravel = ravel_pytree(parameters)
    optimizer = optax.adam(LEARNING_RATE)

    def step(state: Any, batch: Any) -> tuple[Any, None]:
        vector, others, moments, right = state
        y, mask, *inputs = parts(batch)

        def loss_fn(vector: Any) -> tuple[Any, Any]:
            model = nnx.merge(definition, unravel(vector), others, copy=True)
            logits = model(*inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            found = jnp.where(mask, logits.argmax(1) == y, False).sum()
            changed = nnx.state(model, nnx.Not(nnx.Param))
            return jnp.where(mask, losses, 0).sum() / mask.sum(), (changed, right + found)

        gradient, (others, right) = jax.grad(loss_fn, has_aux=True)(vector)
        updates, moments = optimizer.update(gradient, moments)
        return (optax.apply_updates(vector, updates), others, moments, right), None

    one = jax.jit(lambda state, batch: step(state, batch)[0], donate_argnums=0)
    many = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches)[0], donate_argnums=0)
    state: Any = vector, others, optimizer.init(vector), jnp.zeros((), jnp.int32)

    def epoch(order: np.ndarray) -> Took:
        nonlocal state
        clock = _Clock()
        state = (*state[:3], jnp.zeros((), jnp.int32))
        sizes = {name: each[order] for name, each in graphs.sizes.items()}
        numbers = [order[places] for places in jax_gnn.pack(sizes, graphs.budget)]
        for batch, several in _built_ahead(build, numbers) if ahead else _built(build, numbers):
            clock.lap("batches")
            state = (many if several else one)(state, batch)
            clock.lap("calls")
        return clock.took(int(state[3]) / len(order))

    return epoch


def _built(build: Build, numbers: list[np.ndarray]) -> Iterator[tuple[Any, bool]]:
    """Batches one by one."""
    for each in numbers:
        yield build(each), False


def _built_ahead(build: Build, numbers: list[np.ndarray]) -> Iterator[tuple[Any, bool]]:
    """Batches built and sent by a thread, so many of them stacked, and the rest one by one."""
    import grain
    import jax

    whole = len(numbers) // STEPS * STEPS
    groups = [numbers[i : i + STEPS] for i in range(0, whole, STEPS)]
    groups += [[each] for each in numbers[whole:]]

    def sent(group: list[np.ndarray]) -> Any:
        batches = [build(each) for each in group]
        stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *batches)
        return jax.device_put(stacked if len(group) == STEPS else batches[0])

    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    source: Any = groups
    loader = grain.MapDataset.source(source).map(sent).to_iter_dataset(options)
    return zip(loader, [len(group) == STEPS for group in groups], strict=True)


class _Clock:
    """What an epoch waits for."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()
        self.spent = {"batches": 0.0, "calls": 0.0}

    def lap(self, what: str) -> None:
        """The time since the last one."""
        now = time.perf_counter()
        self.spent[what] += now - self.last
        self.last = now

    def took(self, right: float) -> Took:
        return Took(time.perf_counter() - self.start, **self.spent, right=right)


# This library.


def _ours(graphs: list[Molecule], size: int, at_once: bool = True, ahead: bool = False) -> Epoch:
    """Batches of `Graph`s, or of lists of edges at once."""
    from flax import nnx

    import jax_gnn
    from flax_layers import GINClassifier

    sample = Graphs.of(graphs, size)
    with jax_gnn.host_arrays():
        alone = [] if at_once else graphs
        built = [jax_gnn.Graph.from_edges(g.edges, num_nodes=len(g.x)) for g in alone]
    labels = np.array([g.label for g in graphs])

    def build(numbers: np.ndarray) -> Any:
        with jax_gnn.host_arrays():
            if at_once:
                edges, counts = [graphs[i].edges for i in numbers], sample.sizes["num_nodes"]
                made = jax_gnn.Batch.from_edges(edges, counts[numbers], **sample.budget)
            else:
                made = jax_gnn.batch([built[i] for i in numbers], **sample.budget)
            x = made.join_nodes([graphs[i].x for i in numbers])
        y = np.zeros(made.num_graphs, np.int32)
        y[: len(numbers)] = labels[numbers]
        return y, made, x

    def parts(batch: Any) -> Any:
        y, made, x = batch
        return y, made.mask, made, x

    model = GINClassifier(
        FEATURES, HIDDEN, CLASSES, num_layers=LAYERS, dropout_rate=0.0, rngs=nnx.Rngs(0)
    )
    return _jax_epoch(model, build, parts, sample, ahead)


# jraph.


def _jraph(graphs: list[Molecule], size: int, ahead: bool = False) -> Epoch:
    """`jraph.dynamically_batch`, and the model in plain JAX as its examples have it."""
    import jax
    import jax.numpy as jnp
    import jraph
    from flax import nnx

    def tuple_of(graph: Molecule) -> Any:
        (senders, receivers), label = graph.edges, np.array([graph.label], np.int32)
        counts = np.array([len(graph.x)]), np.array([len(senders)])
        return jraph.GraphsTuple(graph.x, None, receivers, senders, label, *counts)

    class Norm(nnx.Module):
        """Batch norm of the nodes that are no padding."""

        def __init__(self, width: int) -> None:
            self.scale, self.bias = nnx.Param(jnp.ones(width)), nnx.Param(jnp.zeros(width))
            self.mean, self.var = nnx.BatchStat(jnp.zeros(width)), nnx.BatchStat(jnp.ones(width))

        def __call__(self, x: Any, mask: Any) -> Any:
            count = mask.sum()
            mean = jnp.where(mask, x, 0).sum(0) / count
            var = jnp.where(mask, jnp.square(x - mean), 0).sum(0) / count
            for kept, new in ((self.mean, mean), (self.var, var)):
                kept[...] = 0.9 * kept[...] + 0.1 * jax.lax.stop_gradient(new)
            return (x - mean) * jax.lax.rsqrt(var + 1e-5) * self.scale[...] + self.bias[...]

    class GIN(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            widths = [FEATURES, *[HIDDEN] * LAYERS]
            linears = [
                [nnx.Linear(n, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, HIDDEN, rngs=rngs)]
                for n in widths[:-1]
            ]
            self.linears = nnx.List([nnx.List(pair) for pair in linears])
            self.norms = nnx.List([nnx.List([Norm(HIDDEN), Norm(HIDDEN)]) for _ in range(LAYERS)])
            self.heads = nnx.List([nnx.Linear(n, CLASSES, rngs=rngs) for n in widths])

        def __call__(self, graph: Any) -> Any:
            count, num_graphs = graph.nodes.shape[0], graph.n_node.shape[0]
            mask = jraph.get_node_padding_mask(graph)[:, None]
            ids = jnp.repeat(jnp.arange(num_graphs), graph.n_node, total_repeat_length=count)

            def read(x: Any, head: Any) -> Any:
                return head(jraph.segment_sum(x, ids, num_graphs, indices_are_sorted=True))

            x = graph.nodes
            out = read(x, self.heads[0])
            for linears, norms, head in zip(self.linears, self.norms, self.heads[1:], strict=True):
                x = x + jraph.segment_sum(x[graph.senders], graph.receivers, count)
                for linear, norm in zip(linears, norms, strict=True):
                    x = jax.nn.relu(norm(linear(x), mask))
                out = out + read(x, head)
            return out

    tuples, sample = [tuple_of(graph) for graph in graphs], Graphs.of(graphs, size)
    nodes, edges = sample.budget["num_nodes"], sample.budget["num_edges"]

    def build(numbers: np.ndarray) -> Any:  # a padding graph has a node
        chosen = (tuples[i] for i in numbers)
        (made,) = jraph.dynamically_batch(chosen, nodes + 1, edges, size + 1)
        return made

    def parts(made: Any) -> Any:
        return made.globals, jraph.get_graph_padding_mask(made), made._replace(globals=None)

    return _jax_epoch(GIN(nnx.Rngs(0)), build, parts, sample, ahead)


# PyG.


def _pyg(graphs: list[Molecule], size: int, workers: int) -> Epoch:
    """`DataLoader`, and `GINConv` over what it gives."""
    import torch
    from torch import nn
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")

    class GIN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [FEATURES, *[HIDDEN] * LAYERS]
            self.convs = nn.ModuleList(
                [
                    GINConv(
                        nn.Sequential(
                            nn.Linear(n, HIDDEN),
                            nn.BatchNorm1d(HIDDEN),
                            nn.ReLU(),
                            nn.Linear(HIDDEN, HIDDEN),
                            nn.BatchNorm1d(HIDDEN),
                            nn.ReLU(),
                        )
                    )
                    for n in widths[:-1]
                ]
            )
            self.heads = nn.ModuleList([nn.Linear(n, CLASSES) for n in widths])

        def forward(self, made: Any) -> Any:
            x, count = made.x, made.num_graphs
            out = self.heads[0](global_add_pool(x, made.batch, count))
            for conv, head in zip(self.convs, self.heads[1:], strict=True):
                x = conv(x, made.edge_index)
                out = out + head(global_add_pool(x, made.batch, count))
            return out

    data = [
        Data(torch.from_numpy(g.x), torch.from_numpy(g.edges.astype(np.int64)), y=g.label)
        for g in graphs
    ]
    model = GIN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=device == "cuda" or None)
    options: dict[str, Any] = {}
    if workers:  # forked, as spawned ones get tensors by more files than may be open
        options = {"num_workers": workers, "persistent_workers": True}
        options["multiprocessing_context"] = "fork"
    loader = DataLoader(data, size, shuffle=True, pin_memory=device == "cuda", **options)

    def epoch(order: np.ndarray) -> Took:
        clock = _Clock()
        right = torch.zeros((), dtype=torch.int64, device=device)
        for made in loader:  # which shuffles by itself
            made = made.to(device, non_blocking=True)
            clock.lap("batches")
            logits = model(made)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, made.y).backward()
            optimizer.step()
            right += (logits.detach().argmax(1) == made.y).sum()
            clock.lap("calls")
        return clock.took(int(right) / len(order))

    return epoch


CANDIDATES: dict[str, tuple[tuple[str, ...], Callable[..., Epoch]]] = {
    OURS: (("jax", "flax"), _ours),
    f"{OURS}, ahead": (("jax", "flax", "grain"), partial(_ours, ahead=True)),
    f"{OURS} batch": (("jax", "flax"), partial(_ours, at_once=False)),
    "jraph dynamically_batch": (("jax", "jraph"), _jraph),
    "jraph dynamically_batch, ahead": (("jax", "jraph", "grain"), partial(_jraph, ahead=True)),
    "PyG DataLoader": (("torch", "torch_geometric"), partial(_pyg, workers=0)),
    "PyG DataLoader, 4 workers": (("torch", "torch_geometric"), partial(_pyg, workers=4)),
}


# A run.


def _trained(name: str, platform: str, count: int, size: int) -> tuple[Any, Callable[[], Took]]:
    """Of a `Process`: a candidate's versions; and an epoch, whenever it is asked."""
    set_environment(platform)
    modules, make = CANDIDATES[name]
    epoch, rng = make(molecules(count), size), np.random.default_rng(0)
    return {module: version(module) for module in modules}, lambda: epoch(rng.permutation(count))


def run(platform: str, count: int, size: int, rounds: int) -> Document:
    """Trains each candidate for so many epochs and one ahead, in turns."""
    machine = probe(Settings(platform=platform))
    processes: dict[str, Process] = {}
    families: dict[str, dict[str, Any]] = {}
    took: dict[str, list[Took]] = {}
    for turn in range(2 + rounds):
        for name in [name for name in CANDIDATES if turn == 0 or name in processes]:
            try:
                if turn:
                    processes[name].send()
                    took.setdefault(name, []).append(processes[name].receive())
                    continue
                # A loader's workers are processes of this one.
                processes[name] = Process(_trained, name, platform, count, size, daemon=False)
                versions = processes[name].receive()
                families[name] = {"status": "timed", "reason": "", "versions": versions}
            except (RuntimeError, EOFError) as error:
                processes.pop(name).stop()
                status = "failed" if turn else "absent"
                families[name] = {"status": status, "reason": reason(error), "versions": {}}
    for process in processes.values():
        process.stop()
    about = (
        f"Batches of {size} graphs; GIN of {LAYERS} layers, {HIDDEN} wide. An epoch waits for "
        "batches, for calls of steps to return, and in the end for the device."
    )
    rows = [_row(name, took[name]) for name in processes]
    cases = [case(f"{count:,} small graphs", "epoch", rows)]
    title = "Training over small graphs"
    return document("epochs", title, machine, cases, about=about, families=families)


def _row(name: str, took: list[Took]) -> Row:
    first, *timed = took  # the first compiles
    seconds, batches, calls, right = zip(*timed, strict=True)
    details = {
        "for batches, s": statistics.median(batches),
        "for calls, s": statistics.median(calls),
        "the first, s": first.seconds,
        "right": f"{right[-1]:.1%}",
    }
    family = OURS if name.startswith(OURS) else name
    wrong = "" if right[-1] >= LEARNT else f"{right[-1]:.1%} are right"
    return candidate(name, seconds, family=family, wrong=wrong, details=details)
