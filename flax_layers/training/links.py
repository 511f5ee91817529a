"""Training for link prediction, and the trained model's ranks, metrics and answers to queries."""

from __future__ import annotations

import contextlib
import copy
import csv
import dataclasses
import difflib
import functools
import json
import operator
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from flax_layers import GAE, link_metrics
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.data import (
    Fingerprint,
    Numbering,
    Renumbered,
    data_error,
    fingerprint,
    preprocessing_of,
    renumbered,
    settled_direction,
    warn,
)
from flax_layers.training.devices import check_devices, replicate, replicated
from flax_layers.training.epochs import adam, implementation_context
from flax_layers.training.link_models import make_link_model
from flax_layers.training.link_tasks import (
    PARTS,
    EdgeTask,
    FactTask,
    LinkIndex,
    check_links,
    has_edge_split,
    link_task,
)
from flax_layers.training.predictor import Predictor, Preprocessing
from flax_layers.training.resume import StateFile, fill, leaves
from flax_layers.training.types import Method, PyTree
from jax_gnn import __version__
from jax_gnn.datasets import NodeDataset, RelationalDataset


class Answers(NamedTuple):
    """Nodes that a query asked for, the best first.

    Attributes:
        names: Names of the nodes; None where they have none.
        nodes: Numbers of the nodes, ``(k,)`` int32.
        scores: Scores of the nodes, ``(k,)`` float32.
    """

    names: tuple[str, ...] | None
    nodes: np.ndarray
    scores: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedLinks(Predictor):
    """A model for link prediction and its training, the contents of a checkpoint.

    Attributes:
        model: The model, in evaluation mode: a `LinkPredictor`, or a `GAE` of edges without
            relations.
        config: Settings of the training.
        data: Identity of the dataset of the training.
        num_relations: Number of its relations, inverse ones not included; 0 without relations.
        version: Version of the library that trained it.
        numbering: Names behind the numbers of relations and nodes of its dataset.
        index: Data that queries are answered from, or None.
    """

    config: LinkConfig
    data: Fingerprint
    num_relations: int
    version: str = __version__
    numbering: Numbering = dataclasses.field(default_factory=Numbering)
    index: LinkIndex | None = None

    def __post_init__(self) -> None:
        if self.preprocessing is None:
            features = isinstance(self.model, GAE)
            preprocessing = preprocessing_of(self.config) if features else Preprocessing()
            object.__setattr__(self, "preprocessing", preprocessing)

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of `make_link_model`."""
        if isinstance(self.model, GAE):
            features = self.model.encoder.in_features
            return {"num_nodes": self.data.num_nodes, "num_relations": 0, "in_features": features}
        return {"num_nodes": len(self.model.nodes[...]), "num_relations": self.num_relations}

    # --- Metrics ----------------------------------------------------------------------------------

    def ranks(self, dataset: NodeDataset, part: str = "test") -> Array:
        """Return filtered ranks of a part of a dataset, ``(num_facts, 2)``: see `LinkRanking`.

        Nodes and relations are those of the training with the same names, whatever their numbers.
        Without names numbers count, and a warning says so where the data are not those of the
        training. Data without a split of their edges are split as in training.

        Raises:
            TypeError: The dataset is of another kind, or its edges have no relations.
            ValueError: It lacks a part, or has other nodes or relations than that of the training.
        """
        dataset = self.with_split(dataset)
        match, task = self._task(dataset)
        if not isinstance(task, FactTask):
            raise TypeError("ranks are of edges with relations; evaluate() takes others")
        ranks = task.ranks(self.model, part)
        if match.dataset is dataset:
            return ranks
        # Edges have other numbers there: ranks are in the order of the renumbered dataset's part.
        ranked, edges = (getattr(data, f"{part}_edges") for data in (match.dataset, dataset))
        order = np.argsort(ranked)
        return ranks[order[np.searchsorted(ranked, match.edges[edges], sorter=order)]]

    def evaluate(self, dataset: NodeDataset, part: str = "test") -> dict[str, float]:
        """Return metrics of a part of a dataset, "val" or "test", as in training.

        Returns:
            `link_metrics` of the `ranks` if edges have relations, else `edge_metrics`.
        """
        if self.num_relations:
            return link_metrics(self.ranks(dataset, part))
        return self._task(dataset)[1].metrics(self.model, part)

    def table(self, dataset: NodeDataset) -> dict[str, np.ndarray]:
        """Return predictions for the test edges as columns.

        Returns:
            "src", "dst" and, where edges have relations, "rel", "dst_rank" and "src_rank". Where
            they have none there are as many pairs without an edge; "edge" says which is which, and
            "probability" is the model's that there is one.
        """
        if self.num_relations:
            dataset = self.with_split(dataset)
            assert isinstance(dataset, RelationalDataset)
            dst_rank, src_rank = np.asarray(self.ranks(dataset)).T
            edges = dataset.test_edges
            columns = {name: getattr(dataset, name)[edges] for name in ("src", "rel", "dst")}
            return columns | {"dst_rank": dst_rank, "src_rank": src_rank}
        match, task = self._task(dataset)
        assert isinstance(task, EdgeTask)
        # Pairs have the model's numbers of nodes, and get those of the dataset.
        logits = [np.asarray(scores) for scores in task.scores(self.model, "test")]
        pairs = np.concatenate([task.split.test, task.split.test_negatives], 1)
        src, dst = match.order[pairs]
        edge = np.repeat([1, 0], [len(scores) for scores in logits])
        probability = np.asarray(jax.nn.sigmoid(np.concatenate(logits)))
        return {"src": src, "dst": dst, "edge": edge, "probability": probability}

    def with_split(self, dataset: NodeDataset) -> Any:
        """Return the dataset with the split of its edges: its own, or that of the settings."""
        if not isinstance(dataset, RelationalDataset) or has_edge_split(dataset):
            return dataset
        match = self.renumbered(dataset)
        split = FactTask(match.dataset, self.config).dataset
        original = np.argsort(match.edges)
        names = [f"{part}_edges" for part in PARTS]
        parts: dict[str, Any] = {name: original[getattr(split, name)] for name in names}
        return dataclasses.replace(dataset, **parts)

    def differences(self, dataset: NodeDataset) -> tuple[str, ...]:
        """See `TrainedModel`."""
        with contextlib.suppress(ValueError):  # other names, hence another structure
            dataset = self.renumbered(self.with_split(dataset)).dataset
        return self.data.differences(fingerprint(dataset))

    def renumbered(self, dataset: NodeDataset) -> Renumbered:
        """See `TrainedModel`."""
        fixed = ("node",) if self.num_relations else ()
        return renumbered(dataset, self.numbering, fixed)

    def _task(self, dataset: NodeDataset) -> tuple[Renumbered, FactTask | EdgeTask]:
        """Return the task of a dataset in the model's numbers."""
        check_links(dataset, self.config)
        match = self.renumbered(dataset)
        task = link_task(match.dataset, self.config)
        sizes, data = self.sizes, match.dataset
        if isinstance(task, FactTask):
            expected = sizes["num_nodes"], sizes["num_relations"]
            if (data.num_nodes, data.num_relations) != expected:
                raise data_error(
                    dataset,
                    f"has {data.num_nodes} nodes and {data.num_relations} relations, the model "
                    f"{expected[0]} and {expected[1]}",
                )
            if match.unnamed and "structure" in self.differences(dataset):
                match.warn()
        elif task.sizes["in_features"] != sizes["in_features"]:
            raise data_error(
                dataset,
                f"has {task.sizes['in_features']} features, the model takes {sizes['in_features']}",
            )
        return match, task

    # --- Queries ----------------------------------------------------------------------------------

    def query(
        self,
        *,
        src: str | int | None = None,
        rel: str | int | None = None,
        dst: str | int | None = None,
        k: int = 10,
        filtered: bool = True,
    ) -> Answers:
        """Return the nodes that an edge most likely leads to, or comes from.

        The graph is that of the test: for edges with relations the training edges, for others the
        validation edges, too.

        Args:
            src: Name or number of the source, where destinations are asked for.
            rel: Name or number of the relation, where edges have one.
            dst: Name or number of the destination, where sources are asked for.
            k: Largest number of answers.
            filtered: Whether to leave out the known answers: those of all edges of the data,
                validation and test edges included, and, where edges have no relations, the node
                itself.

        Returns:
            Names, numbers and scores, which descend; of equal scores the lower number is first.

        Raises:
            TypeError: Not one of `src` and `dst` is given, or `rel` where edges have none; or an
                argument is neither a name nor a number.
            ValueError: A name or number is unknown, `k` is not positive, or there is no index.
        """
        if self.index is None:
            raise ValueError("the model has no index to answer queries from")
        if (src is None) == (dst is None):
            raise TypeError(
                f"one of src and dst must be given, and the other is asked for, got {src=}, {dst=}"
            )
        if (rel is None) == bool(self.num_relations):
            problem = "one must be given" if self.num_relations else "edges have none"
            raise TypeError(f"rel: {problem}, got {rel!r}")
        if operator.index(k) < 1:
            raise ValueError(f"k must be positive, got {k}")
        names = self.numbering
        nodes, relations, facts = self.index
        node_names = names.nodes[0]
        side, name = ("src", src) if dst is None else ("dst", dst)
        node = _number(side, name, "nodes", node_names, len(nodes))
        relation = 0
        if self.num_relations:
            relation = _number("rel", rel, "relations", names.relations, self.num_relations)
            # Relations in the second half are inverse: they lead from destinations to sources.
            query = relation + (self.num_relations if side == "dst" else 0)
            graphdef, state = nnx.split(self.model.decoder)
            scores = np.array(_scores(graphdef, state, nodes, relations, node, query))
        else:
            scores = np.array(_products(nodes, node))
        # Scores descend over the candidates; the sort is stable, so lower numbers come first.
        candidates = np.ones(len(nodes), bool)
        if filtered:
            sources, rel_ids, answers = facts if side == "src" else facts[::-1]
            candidates[answers[(sources == node) & (rel_ids == relation)]] = False
            if not self.num_relations:
                candidates[node] = False
        ids = np.flatnonzero(candidates)
        order = np.argsort(-scores[ids], kind="stable")[:k]  # NaN is last
        best = ids[order].astype(np.int32)
        best_names = None if node_names is None else tuple(node_names[i] for i in best.tolist())
        return Answers(best_names, best, scores[best])

    def ask(self, text: str, k: int = 10, filtered: bool = True) -> Answers:
        """Answer a query in the form of text.

        Args:
            text: Source, relation and destination, or source and destination where edges have no
                relations, separated by commas, and ``?`` for the one that is asked for: such as
                ``"Bern, capital of, ?"``, where blanks around names do not count. A name with a
                comma is quoted as in CSV files. A word that is no name is a number.
            k: Largest number of answers, as in :meth:`query`.
            filtered: Whether to leave out the known answers, as in :meth:`query`.

        Raises:
            ValueError: The text is no query, or a name is unknown.
        """
        # A name may end with blanks, or be "?": names take precedence.
        parts = ("src", "rel", "dst") if self.num_relations else ("src", "dst")
        numbering = self.numbering
        names = dict.fromkeys(parts, numbering.nodes[0] or ()) | {"rel": numbering.relations or ()}
        cells = next(csv.reader([text], skipinitialspace=True), [])
        fields = {
            part: cell if cell in names[part] else cell.strip()
            for part, cell in zip(parts, cells, strict=False)
        }
        targets = [part for part, field in fields.items() if field == "?"]
        if "?" in names["rel"]:  # a name like any other
            targets = [part for part in targets if part != "rel"]
        if len(cells) != len(parts) or targets not in (["src"], ["dst"]):
            expected = "SRC,REL,? or ?,REL,DST" if self.num_relations else "NODE,? or ?,NODE"
            raise ValueError(f"expected {expected}, got {text!r:.80}")
        arguments: dict[str, Any] = {}
        for part, field in fields.items():
            if part not in targets:
                is_number = field.isascii() and field.isdigit() and field not in names[part]
                arguments[part] = int(field) if is_number else field
        return self.query(**arguments, k=k, filtered=filtered)


def _number(
    argument: str, value: object, plural: str, names: tuple[str, ...] | None, count: int
) -> int:
    """Return the number of a node or relation, from its name or the number itself."""
    if isinstance(value, str):
        if names is None:
            raise ValueError(
                f"{argument} must be a number from 0 to {count - 1}, as the {plural} of the "
                f"training have no names, or two have one, got {value!r:.80}"
            )
        if value not in names:
            close = difflib.get_close_matches(value, names[:100_000], 3)
            hint = f"; close are {', '.join(map(repr, close))}" if close else ""
            raise ValueError(f"{argument}: no {plural[:-1]} has the name {value!r:.80}{hint}")
        return names.index(value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(
            f"{argument} must be a name or a number, got {type(value).__name__}"
        ) from error
    if not 0 <= number < count:
        raise ValueError(f"{argument} must be from 0 to {count - 1}, got {number}")
    return number


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    graphdef: nnx.GraphDef[Any],
    state: PyTree,
    nodes: Array,
    relations: Array,
    node: int,
    relation: int,
) -> Array:
    # Several rows, as a product of one is rounded otherwise than those of a `LinkRanking`.
    rows = jnp.zeros(8, jnp.int32)
    decoder = nnx.merge(graphdef, state)
    query = decoder(nodes[rows + node], relations[rows + relation], deterministic=True)
    return (query @ nodes.T)[0]


@jax.jit
def _products(nodes: Array, node: int) -> Array:
    return nodes @ nodes[node]


@dataclasses.dataclass(frozen=True)
class LinkResult:
    """Outcome of `train_links`.

    Attributes:
        trained: Model of the best validation.
        losses: Loss of each epoch, ``(epochs,)``.
        epochs: Numbers of epochs after which the model was validated.
        valid: Metrics of each validation: `link_metrics` of filtered ranks, or `edge_metrics`.
        test: Metrics of the best model on the test edges.
        step_seconds: Measured seconds per step, one entry per epoch, without compilation.
        compile_seconds: Seconds of tracing and compilation of the step.
        evaluation_seconds: Seconds of the shortest validation.
        best_by: Metric by which the best validation is chosen.
    """

    trained: TrainedLinks
    losses: np.ndarray
    epochs: tuple[int, ...]
    valid: tuple[dict[str, float], ...]
    test: dict[str, float]
    step_seconds: np.ndarray
    compile_seconds: float
    evaluation_seconds: float
    best_by: str

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value:.4f}" for name, value in self.test.items())
        model, epoch = self.trained.config.model, self.epochs[self.best]
        return f"LinkResult({model}, best epoch {epoch}, test: {metrics})"

    @property
    def best(self) -> int:
        """Index of the validation with the highest MRR, or AUC: the first of equal ones."""
        return int(np.argmax([metrics[self.best_by] for metrics in self.valid]))


class LinkReport(NamedTuple):
    """Argument of `on_epoch`: the epoch from 0, its loss, and metrics if it was validated."""

    epoch: int
    loss: float
    valid: dict[str, float] | None


def train_links(
    dataset: NodeDataset,
    config: LinkConfig,
    *,
    devices: int = 1,
    method: Method = "auto",
    on_epoch: Callable[[LinkReport], None] | None = None,
    state: str | os.PathLike[str] | None = None,
    resume: bool = False,
    keep_state: bool = False,
) -> LinkResult:
    """Train a model to predict edges, and test the model of the best validation.

    Edges with relations: the graph has the training edges and their inverses. Each step encodes it
    whole, and asks for the objects of a batch of its (source, relation) pairs. Ranks are filtered
    by all edges of the dataset, of objects and of subjects; the best validation has the highest
    mean reciprocal rank.

    Edges without: a graph autoencoder (arXiv 1611.07308), whose epochs are one step each, on all
    training edges and as many fresh pairs without one. The best validation has the highest AUC.
    The test sees validation edges in its graph, too, as in PyTorch Geometric.

    Args:
        dataset: A `RelationalDataset`, whose split of edges is used if it has one, or a
            `GraphDataset`. Else the split is random, of the settings' shares and seed: see
            `jax_gnn.datasets.with_split_edges` and `split_edges`.
        config: Settings; their class says which encoder.
        devices: Number of devices that share the training graph, each with a part of it, and the
            scores of a step: the first of `jax.devices()`. But for dropout, which differs, losses
            are those of one device to rounding. Each process validates and tests on one device.
        method: Assignment of nodes to devices, see `jax_gnn.sharding.shard_graph`.
        on_epoch: Called after each epoch.
        state: File for the state of the training, as of `train`.
        resume: Whether to continue from that file, as of `train`; times are those of all epochs.
        keep_state: Whether the file stays at the end, as of `train`.

    Returns:
        Losses, metrics, times and the best model.

    Raises:
        TypeError: The dataset or the configuration is of another kind.
        ValueError: The dataset lacks a part of the split, or features, or is too small to split; or
            the state is of other settings or data, or exists without `resume`; or there are fewer
            devices.
        OSError: The state cannot be written, as the disk is full; an earlier state stays whole.
    """
    import optax  # part of the extra "train"

    task: Any = link_task(dataset, settled_direction(dataset, config, warn))
    check_devices(config, devices)
    model = make_link_model(config, **task.sizes)
    graphdef, *states = nnx.split(model, nnx.Param, ...)
    params, constants = states
    data = task.data(model, devices, method)  # on the devices once
    optimizer = adam(config.rates(task.steps))

    @functools.partial(jax.jit, out_shardings=replicated(data))
    def run_epoch(
        state: PyTree, batches: PyTree, keys: Array, data: PyTree
    ) -> tuple[PyTree, Array]:
        def step(state: PyTree, inputs: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            batch, key = inputs

            def loss_of(params: PyTree) -> PyTree:
                return task.loss(nnx.merge(graphdef, params, constants), data, batch, key)

            params, moments = state
            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, moments = optimizer.update(gradients, moments, params)
            return (optax.apply_updates(params, updates), moments), loss

        return jax.lax.scan(step, state, (batches, keys))

    def on_one(params: PyTree) -> PyTree:
        """Return parameters on the default device."""
        return params if devices == 1 else jax.tree.map(jnp.asarray, jax.device_get(params))

    # Parameters and moments of the latest step, and the parameters of the best validation.
    learned = params, optimizer.init(params), params
    rng = np.random.default_rng(config.seed)
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    # The records are JSON values, which a state file holds.
    records: dict[str, Any] = {"losses": [], "seconds": [], "validations": [], "evaluations": []}
    records |= {"compile_seconds": 0.0, "best": -1.0, "rng": rng.bit_generator.state}
    compiled: dict[Any, Any] = {}
    path = None if state is None else Path(state)
    progress = StateFile(
        path, task.config, fingerprint(task.dataset), resume=resume, devices=devices
    )
    if progress.arrays:
        records = json.loads(str(progress.arrays["records"]))
        rng.bit_generator.state = records["rng"]
        learned = fill(learned, progress.arrays, "learned")
    progress.check_progress(len(records["losses"]))
    with implementation_context(config.implementation), progress:
        for epoch in range(len(records["losses"]), config.epochs):
            if _has_stopped(records["validations"], task.best_by, config.early_stopping):
                break
            batches = jax.tree.map(jnp.asarray, task.batches(rng))
            # Epochs whose longest step differs have arrays of another width, hence a program.
            shapes = tuple(array.shape for array in jax.tree.leaves(batches))
            steps = shapes[0][0]
            keys = jax.random.split(jax.random.fold_in(key, epoch), steps)
            params, moments, best_params = learned
            arguments = (*replicate(((params, moments), batches, keys), data), data)
            start = time.perf_counter()
            if shapes not in compiled:
                compiled[shapes] = run_epoch.lower(*arguments).compile()
                records["compile_seconds"] += time.perf_counter() - start
                start = time.perf_counter()
            (params, moments), loss = jax.block_until_ready(compiled[shapes](*arguments))
            records["seconds"].append((time.perf_counter() - start) / steps)
            records["losses"].append(float(loss.mean()))
            metrics = None
            if (epoch + 1) % config.evaluate_every == 0 or epoch + 1 == config.epochs:
                start = time.perf_counter()
                metrics = task.metrics(nnx.merge(graphdef, on_one(params), constants), "val")
                records["evaluations"].append(time.perf_counter() - start)
                records["validations"].append((epoch + 1, metrics))
                if metrics[task.best_by] > records["best"]:
                    records["best"], best_params = metrics[task.best_by], params
            # Records go on changing while the state waits to be written, so it has copies.
            learned = params, moments, best_params
            records["rng"] = rng.bit_generator.state
            snapshot = {name: copy.copy(values) for name, values in records.items()}
            progress.keep({"records": snapshot, **leaves(learned, "learned")})
            if on_epoch is not None:
                on_epoch(LinkReport(epoch, records["losses"][-1], metrics))
        nnx.update(model, on_one(learned[2]))
        test, index = task.metrics(model, "test"), task.index(model)
    model.eval()
    numbering = Numbering.of(dataset)
    if getattr(config, "features", "native") != "native":
        numbering = numbering._replace(features=None)
    trained = TrainedLinks(
        model,
        task.config,
        fingerprint(task.dataset),
        task.sizes["num_relations"],
        numbering=numbering,
        index=index,
    )
    epochs, validations = zip(*records["validations"], strict=True)
    result = LinkResult(
        trained,
        np.array(records["losses"]),
        epochs,
        validations,
        test,
        np.array(records["seconds"]),
        records["compile_seconds"],
        min(records["evaluations"]),
        task.best_by,
    )
    if not keep_state:
        progress.remove()
    return result


def _has_stopped(validations: Sequence[Any], best_by: str, patience: int) -> bool:
    """Return whether validations were no better for so many epochs; never for 0."""
    if not (patience and validations):
        return False
    best = int(np.argmax([metrics[best_by] for _, metrics in validations]))
    return bool(validations[-1][0] - validations[best][0] >= patience)
