"""Training for link prediction, and what a trained model answers."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

import jax_gnn
from flax_layers import GAE, link_metrics
from flax_layers.training.config import LinkConfig
from flax_layers.training.data import (
    Fingerprint,
    Numbering,
    Renumbered,
    fingerprint,
    preprocessing_of,
    renumbered,
)
from flax_layers.training.epochs import adam
from flax_layers.training.link_models import LINK_RECIPES, LinkRecipe, make_link_model
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
from jax_gnn import __version__
from jax_gnn.datasets import NodeDataset, RelationalDataset

__all__ = [
    "LINK_RECIPES",
    "PARTS",
    "Answers",
    "LinkIndex",
    "LinkRecipe",
    "LinkReport",
    "LinkResult",
    "TrainedLinks",
    "check_links",
    "make_link_model",
    "train_links",
]


class Answers(NamedTuple):
    """Nodes that a query asked for, the best first.

    Attributes:
        names: Of the nodes; None where they have none.
        nodes: ``(k,)`` int32, their numbers.
        scores: ``(k,)`` float32.
    """

    names: tuple[str, ...] | None
    nodes: np.ndarray
    scores: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedLinks(Predictor):
    """A model for link prediction and how it was trained, which is what a checkpoint holds.

    Attributes:
        model: The model, in evaluation mode: a `LinkPredictor`, or a `GAE` of edges without
            relations.
        config: Settings of the training.
        data: What the dataset of the training is recognised by.
        num_relations: Of the dataset, inverse ones not included; 0 where edges have none.
        version: Of the library that trained it.
        numbering: What the numbers of relations and nodes of its dataset stand for; None of a
            checkpoint of an older version.
        index: What queries are answered from; likewise.
    """

    config: LinkConfig
    data: Fingerprint
    num_relations: int
    version: str | None = __version__
    numbering: Numbering | None = None
    index: LinkIndex | None = None

    def __post_init__(self) -> None:
        if self.preprocessing is None:
            plain = not isinstance(self.model, GAE)
            kept = Preprocessing() if plain else preprocessing_of(self.config)
            object.__setattr__(self, "preprocessing", kept)

    @property
    def sizes(self) -> dict[str, int]:
        """What `make_link_model` takes."""
        if isinstance(self.model, GAE):
            features = self.model.encoder.in_features
            return {"num_nodes": self.data.num_nodes, "num_relations": 0, "in_features": features}
        return {"num_nodes": len(self.model.nodes[...]), "num_relations": self.num_relations}

    # --- Metrics ----------------------------------------------------------------------------------

    def ranks(self, dataset: NodeDataset, part: str = "test") -> Array:
        """Filtered ranks of a part of a dataset, ``(num_facts, 2)``: see `LinkRanking`.

        Nodes and relations are those of the training with the same names, whatever their numbers.
        Without names numbers count, and a warning says so where the data are not those of the
        training. Data without a split of their edges are split as in training.

        Raises:
            TypeError: The dataset is of another kind, or its edges have no relations.
            ValueError: It lacks a part, or has other nodes or relations than that of the training.
        """
        dataset = self.with_split(dataset)
        own, task = self._task(dataset)
        if not isinstance(task, FactTask):
            raise TypeError("ranks are of edges with relations; evaluate() takes others")
        ranks = task.ranks(self.model, part)
        if own.dataset is dataset:
            return ranks
        ranked, given = (getattr(each, f"{part}_edges") for each in (own.dataset, dataset))
        order = np.argsort(ranked)
        return ranks[order[np.searchsorted(ranked, own.edges[given], sorter=order)]]

    def evaluate(self, dataset: NodeDataset, part: str = "test") -> dict[str, float]:
        """Metrics of a part of a dataset, "val" or "test", as in training.

        Returns:
            Of edges with relations those of `link_metrics` of the `ranks`, of others those of
            `edge_metrics`.
        """
        if self.num_relations:
            return link_metrics(self.ranks(dataset, part))
        return self._task(dataset)[1].metrics(self.model, part)

    def table(self, dataset: NodeDataset) -> dict[str, np.ndarray]:
        """What is predicted of the test edges, as columns.

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
        own, task = self._task(dataset)
        assert isinstance(task, EdgeTask)
        right, wrong = map(np.asarray, task.scores(self.model, "test"))
        pairs = np.concatenate([task.split.test, task.split.test_negatives], 1)
        src, dst = own.order[pairs]
        edge = np.repeat([1, 0], [len(right), len(wrong)])
        probability = np.asarray(jax.nn.sigmoid(np.concatenate([right, wrong])))
        return {"src": src, "dst": dst, "edge": edge, "probability": probability}

    def with_split(self, dataset: NodeDataset) -> Any:
        """The dataset with the split of its edges: its own, or that of the training's settings."""
        if not isinstance(dataset, RelationalDataset) or has_edge_split(dataset):
            return dataset
        own = self.renumbered(dataset)
        split = FactTask(own.dataset, self.config).dataset
        places = np.argsort(own.edges)
        names = [f"{part}_edges" for part in PARTS]
        parts: dict[str, Any] = {name: places[getattr(split, name)] for name in names}
        return dataclasses.replace(dataset, **parts)

    def differences(self, dataset: NodeDataset) -> tuple[str, ...]:
        """As of `TrainedModel`."""
        with contextlib.suppress(ValueError):  # other names, hence another structure
            dataset = self.renumbered(self.with_split(dataset)).dataset
        return self.data.differences(fingerprint(dataset))

    def renumbered(self, dataset: NodeDataset) -> Renumbered:
        """As of `TrainedModel`."""
        fixed = ("node",) if self.num_relations else ()
        return renumbered(dataset, self.numbering or Numbering(), fixed)

    def _task(self, dataset: NodeDataset) -> tuple[Renumbered, FactTask | EdgeTask]:
        """The task of a dataset in the model's numbers."""
        link_task(dataset, self.config)
        own = self.renumbered(dataset)
        task = link_task(own.dataset, self.config)
        given = own.dataset
        wanted = self.sizes
        if isinstance(task, FactTask):
            expected = wanted["num_nodes"], wanted["num_relations"]
            if (given.num_nodes, given.num_relations) != expected:
                raise ValueError(
                    f"dataset {dataset.name!r} has {given.num_nodes} nodes and "
                    f"{given.num_relations} relations, the model {expected[0]} and {expected[1]}"
                )
            if (
                own.unnamed
                and self.numbering is not None
                and "structure" in self.differences(dataset)
            ):
                own.warn()
        elif task.sizes["in_features"] != wanted["in_features"]:
            raise ValueError(
                f"dataset {dataset.name!r} has {task.sizes['in_features']} features, the model "
                f"takes {wanted['in_features']}"
            )
        return own, task

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
        """The nodes that an edge most likely leads to, or comes from.

        The graph is that of the test: of edges with relations the training edges, of others the
        validation edges, too.

        Args:
            src: Name or number of the source, where destinations are asked for.
            rel: Name or number of the relation, where edges have one.
            dst: Name or number of the destination, where sources are asked for.
            k: How many nodes; there may be fewer.
            filtered: Whether to leave out the answers that are known: those of all edges of the
                data, validation and test edges included, and, where edges have no relations, the
                node itself.

        Returns:
            Names, numbers and scores, which descend; of equal scores the lower number is first.

        Raises:
            TypeError: Not one of `src` and `dst` is given, or `rel` where edges have none; or an
                argument is neither a name nor a number.
            ValueError: A name or number is unknown, `k` is not positive, or the checkpoint is of an
                older version, which kept no graph.
        """
        if self.index is None:
            raise ValueError("the checkpoint is of an older version, which kept no graph; train it")
        if (src is None) == (dst is None):
            raise TypeError(
                f"one of src and dst must be given, and the other is asked for, got {src=}, {dst=}"
            )
        if (rel is None) == bool(self.num_relations):
            have = "one must be given" if self.num_relations else "edges have none"
            raise TypeError(f"rel: {have}, got {rel!r}")
        if operator.index(k) < 1:
            raise ValueError(f"k must be positive, got {k}")
        names = self.numbering or Numbering()
        node_names, num_nodes = names.nodes[0], len(self.index.nodes)
        end, given = ("src", src) if dst is None else ("dst", dst)
        node = _number(end, given, "nodes", node_names, num_nodes)
        relation = 0
        if self.num_relations:
            relation = _number("rel", rel, "relations", names.relations, self.num_relations)
        asked = relation + (self.num_relations if end == "dst" else 0)
        nodes, relations, known = self.index
        if self.num_relations:
            split = nnx.split(self.model.decoder)
            scores = np.array(_scores(*split, nodes, relations, node, asked))
        else:
            scores = np.array(_products(nodes, node))
        candidates = np.ones(num_nodes, bool)
        if filtered:
            ends = known if end == "src" else known[::-1]
            candidates[ends[2, (ends[0] == node) & (ends[1] == relation)]] = False
            if not self.num_relations:
                candidates[node] = False
        ids = np.flatnonzero(candidates)
        order = np.argsort(-scores[ids], kind="stable")[:k]  # NaN is last
        found = ids[order].astype(np.int32)
        named = None if node_names is None else tuple(node_names[i] for i in found.tolist())
        return Answers(named, found, scores[found])

    def ask(self, text: str, k: int = 10, filtered: bool = True) -> Answers:
        """A query as text.

        Args:
            text: Source, relation and destination, or source and destination where edges have no
                relations, separated by commas, and ``?`` for the one that is asked for: such as
                ``"Bern, capital of, ?"``, where blanks around names do not count. A name with a
                comma is quoted as in CSV files. What is no name is a number.
            k: As of :meth:`query`.
            filtered: Likewise.

        Raises:
            ValueError: The text is none such, or a name is unknown.
        """
        parts = ("src", "rel", "dst") if self.num_relations else ("src", "dst")
        known = self.numbering or Numbering()
        names = {part: known.nodes[0] or () for part in parts} | {"rel": known.relations or ()}
        cells = next(csv.reader([text], skipinitialspace=True), [])
        fields = {
            part: cell if cell in names[part] else cell.strip()
            for part, cell in zip(parts, cells, strict=False)
        }
        asked = [part for part, field in fields.items() if field == "?"]
        if "?" in names["rel"]:  # a name like any other
            asked = [part for part in asked if part != "rel"]
        if len(cells) != len(parts) or asked not in (["src"], ["dst"]):
            wanted = "SRC,REL,? or ?,REL,DST" if self.num_relations else "NODE,? or ?,NODE"
            raise ValueError(f"expected {wanted}, got {text!r:.80}")
        given: dict[str, str | int] = {}
        for part, field in fields.items():
            if part not in asked:
                number = field.isascii() and field.isdigit() and field not in names[part]
                given[part] = int(field) if number else field
        return self.query(**given, k=k, filtered=filtered)


def _number(argument: str, given: Any, what: str, names: tuple[str, ...] | None, count: int) -> int:
    """The number of a node or relation, of which a name or the number itself is given."""
    if isinstance(given, str):
        if names is None:
            raise ValueError(
                f"{argument} must be a number from 0 to {count - 1}, as the {what} of the training "
                f"have no names, or two have one, got {given!r:.80}"
            )
        if given not in names:
            close = difflib.get_close_matches(given, names[:100_000], 3)
            hint = f"; close are {', '.join(map(repr, close))}" if close else ""
            raise ValueError(f"{argument}: no {what[:-1]} has the name {given!r:.80}{hint}")
        return names.index(given)
    try:
        number = operator.index(given)
    except TypeError as error:
        raise TypeError(
            f"{argument} must be a name or a number, got {type(given).__name__}"
        ) from error
    if not 0 <= number < count:
        raise ValueError(f"{argument} must be from 0 to {count - 1}, got {number}")
    return number


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    graphdef: Any, state: Any, nodes: Array, relations: Array, node: Any, relation: Any
) -> Array:
    # Several rows, as a product of one is rounded otherwise than those of a `LinkRanking`.
    rows = jnp.zeros(8, jnp.int32)
    query = nnx.merge(graphdef, state)(
        nodes[rows + node], relations[rows + relation], deterministic=True
    )
    return (query @ nodes.T)[0]


@jax.jit
def _products(nodes: Array, node: Any) -> Array:
    return nodes @ nodes[node]


@dataclasses.dataclass(frozen=True)
class LinkResult:
    """Outcome of `train_links`.

    Attributes:
        trained: The model of the best validation.
        losses: Of each epoch, ``(epochs,)``.
        epochs: After how many epochs the model was validated.
        valid: The metrics of each validation: filtered ones, or those of `edge_metrics`.
        test: Those of the best model on the test edges.
        step_seconds: Measured seconds per step, one entry per epoch, without compilation.
        compile_seconds: Tracing and compilation of the step.
        evaluation_seconds: The shortest validation.
        best_by: The metric by which the best validation is chosen.
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
        told = ", ".join(f"{name}={value:.4f}" for name, value in self.test.items())
        model, epoch = self.trained.config.model, self.epochs[self.best]
        return f"LinkResult({model}, best epoch {epoch}, test: {told})"

    @property
    def best(self) -> int:
        """Which validation had the highest MRR, or AUC: the first of equal ones."""
        return int(np.argmax([metrics[self.best_by] for metrics in self.valid]))


class LinkReport(NamedTuple):
    """What `on_epoch` is told: the epoch from 0, its loss, and metrics if it was validated."""

    epoch: int
    loss: float
    valid: dict[str, float] | None


def train_links(
    dataset: NodeDataset,
    config: LinkConfig,
    *,
    on_epoch: Callable[[LinkReport], None] | None = None,
    state: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> LinkResult:
    """Trains a model to predict edges, and tests that of the best validation.

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
        on_epoch: Called after each epoch.
        state: A file to keep the state of the training in, as of `train`.
        resume: Whether to go on from that file, as of `train`; times are those of all epochs.

    Returns:
        Losses, metrics, times and the best model.

    Raises:
        TypeError: The dataset or the configuration is of another kind.
        ValueError: The dataset lacks a part of the split, or features, or is too small to split; or
            the state is of other settings or data, or exists without `resume`.
        OSError: The state cannot be written, as the disk is full; the one before is left whole.
    """
    import optax  # part of the extra "train"

    task: Any = link_task(dataset, config)
    model = make_link_model(config, **task.sizes)
    graphdef, *states = nnx.split(model, nnx.Param, ...)
    params, rest = states
    optimizer = adam(config.learning_rate)

    @jax.jit
    def run_epoch(state: Any, batches: Any, keys: Array, data: Any) -> tuple[Any, Array]:
        def step(state: Any, given: tuple[Any, Array]) -> tuple[Any, Array]:
            def loss_of(params: Any) -> Array:
                return task.loss(nnx.merge(graphdef, params, rest), data, *given)

            params, moments = state
            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, moments = optimizer.update(gradients, moments, params)
            return (optax.apply_updates(params, updates), moments), loss

        return jax.lax.scan(step, state, (batches, keys))

    def made_of(params: Any) -> Any:
        return nnx.merge(graphdef, params, rest)

    chosen = config.implementation
    context = jax_gnn.implementation(chosen) if chosen else contextlib.nullcontext()
    data = task.data(model)  # on the device once
    learned = params, optimizer.init(params), params  # of the last step, and the best parameters
    rng = np.random.default_rng(config.seed)
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    records: dict[str, Any] = {"losses": [], "seconds": [], "validations": [], "evaluations": []}
    records |= {"compile_seconds": 0.0, "best": -1.0, "rng": rng.bit_generator.state}
    compiled: dict[Any, Any] = {}
    path = None if state is None else Path(state)
    progress = StateFile(path, task.config, fingerprint(task.dataset), resume=resume)
    if progress.arrays:
        records = json.loads(str(progress.arrays["records"]))
        rng.bit_generator.state = records["rng"]
        learned = fill(learned, progress.arrays, "learned")
    with context, progress:
        for epoch in range(len(records["losses"]), config.epochs):
            batches = jax.tree.map(jnp.asarray, task.batches(rng))
            shapes = tuple(array.shape for array in jax.tree.leaves(batches))
            steps = shapes[0][0]
            keys = jax.random.split(jax.random.fold_in(key, epoch), steps)
            *step_state, best_params = learned
            arguments = tuple(step_state), batches, keys, data
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
                metrics = task.metrics(made_of(params), "val")
                records["evaluations"].append(time.perf_counter() - start)
                records["validations"].append((epoch + 1, metrics))
                if metrics[task.best_by] > records["best"]:
                    records["best"], best_params = metrics[task.best_by], params
            learned = params, moments, best_params
            records["rng"] = rng.bit_generator.state
            snapshot = {name: copy.copy(values) for name, values in records.items()}
            progress.keep({"records": snapshot, **leaves(learned, "learned")})
            if on_epoch is not None:
                on_epoch(LinkReport(epoch, records["losses"][-1], metrics))
        nnx.update(model, learned[2])
        test = task.metrics(model, "test")
        index = task.index(model)
    model.eval()
    numbering = Numbering.of(dataset)
    if getattr(config, "features", "native") != "native":
        numbering = numbering._replace(features=None)
    trained = TrainedLinks(
        *(model, task.config, fingerprint(task.dataset), task.sizes["num_relations"]),
        numbering=numbering,
        index=index,
    )
    epochs, metrics = zip(*records["validations"], strict=True)
    return LinkResult(
        trained,
        np.array(records["losses"]),
        epochs,
        metrics,
        test,
        np.array(records["seconds"]),
        records["compile_seconds"],
        min(records["evaluations"]),
        task.best_by,
    )
