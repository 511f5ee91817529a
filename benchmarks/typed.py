"""Training of two typed layers, end to end: R-GCN, RGAT and HGT beside PyG's layers.

``python -m benchmarks typed`` takes steps of Adam on the cross-entropy of two layers, a ReLU after
each, and a linear map to the classes. The layers are those of ``relational`` and
``relational_attention``, without biases; weights begin alike in all families. A step is timed from
outside, with what the host does. Losses of the first steps are compared with this library's before
anything is timed. With ``--epochs``, families train on labels that the graph determines, in the
default precision and in float32, and the report has the loss and the accuracy at the end instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from benchmarks import bench_program
from benchmarks.bench_relational import INPUTS as RGCN_INPUTS
from benchmarks.bench_relational_attention import INPUTS
from benchmarks.definition import Candidate, Case, Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.worker import Process, probe, reason, set_environment, version
from benchmarks.workloads import Triples, relational_graphs, row_pointers

CASES = ("am-twin rgcn", "am-twin rgat", "freebase-twin hgt")
"""Graphs and models of the trainings, those of FASTEN's paper. "rgat h4" has four heads."""

CLASSES = 11
LEARNING_RATE = 0.01
CHECKED_STEPS, LOSS_TOLERANCE = 3, 0.02
"""Steps whose losses are compared; factors are rounded to TF32, and so are sums of gradients."""

TRAIN_SHARE = 0.8
FAMILIES = {"jax_gnn": "layer", "plain jax": "plain_jax", "pyg": "pyg"}


class Trained(NamedTuple):
    """Losses and seconds of steps, and the final accuracy on held-out labels, as `right`."""

    losses: list[float]
    seconds: list[float]
    right: float


class _Problem(NamedTuple):
    """Data of a training: features, weights of two layers by name and of a map, labels, a mask."""

    x: Any
    layers: list[dict[str, np.ndarray]]
    head: np.ndarray
    labels: np.ndarray
    is_train: np.ndarray


def _problem(graph: Triples, model: str, width: int) -> tuple[Case, Any, _Problem]:
    """Draw data whose labels are the largest of random maps of the summed neighbours' features."""
    kind, _, heads = model.partition(" ")
    case = Case("", width, "float32", f"{kind} {heads or 'h1'} inference")
    of_layer = bench_program.problem(graph, case)
    rng = np.random.default_rng(width)
    names = (RGCN_INPUTS if kind == "rgcn" else INPUTS[kind])[1:]
    first = {name: np.asarray(of_layer.inputs[name]) for name in names}
    second = {name: rng.permutation(first[name]) for name in names}
    head = (rng.standard_normal((width, CLASSES)) / np.sqrt(width)).astype(np.float32)
    x = of_layer.inputs["x"].whole()
    scores = x @ rng.standard_normal(head.shape).astype(np.float32)
    starts = row_pointers(np.bincount(graph.dst))[:-1]  # each node has an edge to itself
    sums = np.add.reduceat(scores[graph.src], starts)
    is_train = rng.random(graph.num_nodes) < TRAIN_SHARE
    return case, of_layer, _Problem(x, [first, second], head, sums.argmax(1), is_train)


def _layers(family: str, graph: Triples, case: Case, problem: Any) -> Iterator[Candidate]:
    """Yield a family's candidates of a layer: functions of features, weights and operands."""
    yield from getattr(bench_program, f"{FAMILIES[family]}_candidates")(graph, case, problem)


def _jax_step(layer: Candidate, problem: _Problem) -> Callable[[int], Trained]:
    """Return a function that trains in JAX from the initial weights for a number of steps."""
    import jax
    import jax.numpy as jnp
    import optax

    count = 1 + len(problem.layers[0])
    operands = jax.device_put(layer.arguments[count:])
    x, y, mask = jax.device_put((problem.x, problem.labels, problem.is_train))
    optimizer = optax.adam(LEARNING_RATE)
    weights = jax.device_put(([list(of.values()) for of in problem.layers], problem.head))

    def logits(weights: Any, x: Any, operands: Any) -> Any:
        for of in weights[0]:
            (x,) = layer.function(x, *of, *operands)
            x = jax.nn.relu(x)
        return x @ weights[1]

    def loss_of(weights: Any, x: Any, y: Any, mask: Any, operands: Any) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits(weights, x, operands), y)
        return jnp.where(mask, losses, 0).sum() / mask.sum()

    @jax.jit
    def step(state: Any, *data: Any) -> tuple[Any, Any]:
        weights, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(weights, *data)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(weights, updates), moments), loss

    @jax.jit
    def right(weights: Any, x: Any, y: Any, mask: Any, operands: Any) -> Any:
        hits = logits(weights, x, operands).argmax(1) == y
        return jnp.where(mask, False, hits).sum() / (~mask).sum()

    data = x, y, mask, operands

    def train(steps: int) -> Trained:
        state, losses, seconds = (weights, optimizer.init(weights)), [], []
        for _ in range(steps):
            start = time.perf_counter()
            state, loss = step(state, *data)
            losses.append(float(loss))
            seconds.append(time.perf_counter() - start)
        return Trained(losses, seconds, float(right(state[0], *data)))

    return train


def _torch_step(layer: Candidate, problem: _Problem) -> Callable[[int], Trained]:
    """Return a function that trains in torch from the initial weights for a number of steps."""
    import torch

    device = torch.get_default_device()

    def put(array: Any) -> Any:
        return torch.from_numpy(array).to(device) if isinstance(array, np.ndarray) else array

    count = 1 + len(problem.layers[0])
    operands = [put(array) for array in layer.arguments[count:]]
    x, y = put(problem.x), put(problem.labels)
    is_train = put(problem.is_train)

    def train(steps: int) -> Trained:
        layers = [[put(w.copy()).requires_grad_() for w in of.values()] for of in problem.layers]
        head = put(problem.head.copy()).requires_grad_()
        parameters = [head, *layers[0], *layers[1]]
        optimizer = torch.optim.Adam(parameters, LEARNING_RATE, fused=device.type == "cuda" or None)

        def logits() -> Any:
            rows = x
            for of in layers:
                (rows,) = layer.function(rows, *of, *operands)
                rows = rows.relu()
            return rows @ head

        losses, seconds = [], []
        for _ in range(steps):
            start = time.perf_counter()
            optimizer.zero_grad()
            all_losses = torch.nn.functional.cross_entropy(logits(), y, reduction="none")
            loss = torch.where(is_train, all_losses, 0).sum() / is_train.sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        with torch.no_grad():
            hits = (logits().argmax(1) == y)[~is_train]
        return Trained(losses, seconds, float(hits.float().mean()))

    return train


def _trainer(family: str, workload: str, settings: Settings) -> tuple[Any, Callable[..., Any]]:
    """Return the versions of a family, and a function that trains its candidates; for `Process`."""
    set_environment(settings.platform)
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.9"  # one process at a time has the GPU
    modules = ("torch", "torch_geometric") if family == "pyg" else ("jax", "flax", "optax")
    versions = {module: version(module) for module in modules}
    if family == "pyg":
        import torch

        torch.set_default_device("cuda" if settings.platform == "gpu" else "cpu")
    graph = relational_graphs(settings.data)[workload].load()

    def train(model: str, width: int, steps: int, precision: str) -> dict[str, Any]:
        case, of_layer, problem = _problem(graph, model, width)
        results = {}
        for layer in _layers(family, graph, case, of_layer):
            name = OURS if family == OURS else layer.name
            results[name] = _attempt(family, layer, problem, steps, precision)
        return results

    return versions, train


def _attempt(
    family: str, layer: Candidate, problem: _Problem, steps: int, precision: str
) -> Trained | str:
    """Train a candidate, or return why it cannot be trained."""
    if layer.skip:
        return layer.skip
    try:
        if family == "pyg":
            import torch

            torch.set_float32_matmul_precision(precision)
            return _torch_step(layer, problem)(steps)
        import jax

        with jax.default_matmul_precision({"highest": "highest"}.get(precision)):
            return _jax_step(layer, problem)(steps)
    except Exception as error:
        return reason(error)


def run(settings: Settings, steps: int, epochs: int) -> Document:
    """Train each model by each family, one after the other.

    Args:
        settings: ``patterns`` are cases as in `CASES`, ``widths`` those of the layers.
        steps: Steps that are timed.
        epochs: Steps that are trained in both precisions instead, unless 0.
    """
    machine = probe(settings)
    precisions = ("high", "highest") if epochs else ("high",)
    rows: dict[tuple[str, str], list[Row]] = {}
    versions: dict[str, Any] = {}
    patterns = settings.patterns or CASES
    named = [name.split(" ", 1) for name in patterns]
    for workload in dict.fromkeys(graph for graph, _ in named):
        models = [model for graph, model in named if graph == workload]
        families = [name for name in FAMILIES if name in (settings.families or FAMILIES)]
        # All read the graph at once; then each trains in its turn, and ends.
        processes = {name: Process(_trainer, name, workload, settings) for name in families}
        for family, process in processes.items():
            try:
                hello = process.receive()
                versions[family] = {"status": "timed", "reason": "", "versions": hello}
                for model, width, precision in product(models, settings.widths, precisions):
                    process.send(model, width, epochs or CHECKED_STEPS + steps, precision)
                    mode = f"{model} {width}" + (f" {precision}" if epochs else "")
                    of_case = rows.setdefault((workload, mode), [])
                    of_case += _rows(family, process.receive(), of_case, bool(epochs))
            except (RuntimeError, EOFError) as error:
                status = {"status": "absent", "reason": reason(error), "versions": {}}
                versions.setdefault(family, status)
            process.stop()
    about = (
        f"Two layers, a ReLU after each, and a map to {CLASSES} classes; a step of Adam. "
        "Times are of the host's clock."
    )
    cases = [case(workload, mode, of) for (workload, mode), of in rows.items()]
    title = "Training of two typed layers"
    return document("typed", title, machine, cases, about=about, families=versions)


def _rows(
    family: str, results: dict[str, Trained | str], ours: list[Row], is_learning: bool
) -> list[Row]:
    """Return rows of a family's candidates; losses are compared with those of rows before."""
    rows: list[Row] = []
    for name, trained in results.items():
        if isinstance(trained, str):
            failed = {"status": "failed", "reason": trained, "details": {}}
            rows.append({**candidate(name, family=family), **failed})
            continue
        losses = trained.losses
        expected = [row["details"]["loss"] for row in ours if "loss" in row["details"]]
        checked = losses[CHECKED_STEPS - 1]
        is_wrong = expected and not abs(checked - expected[0]) <= LOSS_TOLERANCE * abs(expected[0])
        wrong = f"loss {checked:.4f} in place of {expected[0]:.4f}" if is_wrong else ""
        details: dict[str, Any] = {"first loss": losses[0], "loss": checked}
        if is_learning:
            details |= {"last loss": losses[-1], "right": f"{trained.right:.1%}"}
        seconds = trained.seconds[CHECKED_STEPS:]
        rows.append(candidate(name, seconds, family=family, wrong=wrong, details=details))
    return rows
