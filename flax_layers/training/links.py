"""Training for link prediction: embeddings of nodes and relations by a graph's encoder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

import jax_gnn
from flax_layers import (
    RGCN,
    CompGCN,
    ComplEx,
    ConvE,
    DistMult,
    LinkPredictor,
    LinkRanking,
    link_metrics,
    negative_sampling_loss,
    one_vs_all_loss,
)
from flax_layers.training.config import CompGCNLinkConfig, LinkConfig, RGCNLinkConfig
from flax_layers.training.data import (
    Fingerprint,
    Numbering,
    Renumbered,
    fingerprint,
    renumbered,
)
from flax_layers.training.loop import adam
from flax_layers.training.predictor import Predictor
from jax_gnn import RelationalGraph, __version__
from jax_gnn.datasets import RelationalDataset

PARTS = ("train", "val", "test")


class LinkRecipe(NamedTuple):
    """How to train an encoder for link prediction.

    Attributes:
        title: What it is.
        config: The class of its settings.
        encoder: From settings, the number of relations and rngs.
    """

    title: str
    config: type[LinkConfig]
    encoder: Callable[[Any, int, nnx.Rngs], Any]


def _rgcn(config: RGCNLinkConfig, num_relations: int, rngs: nnx.Rngs) -> RGCN:
    shared = {"num_bases": config.num_bases} if config.num_bases else {}
    return RGCN(
        *(config.embedding_features, config.hidden_features, config.hidden_features),
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        num_relations=num_relations,
        rngs=rngs,
        **shared or {"num_blocks": config.num_blocks},
    )


def _compgcn(config: CompGCNLinkConfig, num_relations: int, rngs: nnx.Rngs) -> CompGCN:
    return CompGCN(
        *(config.embedding_features, config.hidden_features, config.hidden_features),
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        num_relations=num_relations,
        composition=config.composition,
        rngs=rngs,
    )


_RECIPES = (
    LinkRecipe(
        "relational graph convolutional network (R-GCN, Schlichtkrull et al. 2018)",
        *(RGCNLinkConfig, _rgcn),
    ),
    LinkRecipe(
        "composition-based network (CompGCN, Vashishth et al. 2020)",
        *(CompGCNLinkConfig, _compgcn),
    ),
)
LINK_RECIPES = {recipe.config.model: recipe for recipe in _RECIPES}
DECODERS: dict[str, Callable[[LinkConfig, nnx.Rngs], Any]] = {
    "distmult": lambda config, rngs: DistMult(),
    "complex": lambda config, rngs: ComplEx(),
    "conve": lambda config, rngs: ConvE(
        config.hidden_features, dropout_rate=config.decoder_dropout_rate, rngs=rngs
    ),
}


def make_link_model(config: LinkConfig, num_nodes: int, num_relations: int) -> LinkPredictor:
    """The model of settings, with parameters of their seed.

    Args:
        config: The settings.
        num_nodes: Of the dataset.
        num_relations: Of the dataset, inverse ones not included.
    """
    rngs = nnx.Rngs(config.seed)
    count = 2 * num_relations
    encoder = LINK_RECIPES[config.model].encoder(config, count, rngs)
    # A CompGCN makes what the decoder takes of the relations, too.
    before = isinstance(encoder, CompGCN)
    return LinkPredictor(
        *(num_nodes, count, config.embedding_features),
        config.embedding_features if before else config.hidden_features,
        encoder,
        DECODERS[config.decoder](config, rngs),
        dropout_rate=config.dropout_rate,
        rngs=rngs,
    )


def check_links(dataset: RelationalDataset) -> None:
    """Checks that a dataset has edges to train on and others to validate and test on.

    Raises:
        TypeError: It is no relational dataset.
        ValueError: It lacks a part of the split, or a part is empty.
    """
    if not isinstance(dataset, RelationalDataset):
        raise TypeError(f"links are of a RelationalDataset, got a {type(dataset).__name__}")
    for part in PARTS:
        edges = getattr(dataset, f"{part}_edges")
        if edges is None or not edges.size:
            raise ValueError(f"dataset {dataset.name!r} has no {part}_edges to predict links")


def link_graph(dataset: RelationalDataset) -> RelationalGraph:
    """The training edges and their inverses."""
    edges = dataset.train_edges
    return RelationalGraph.from_triples(
        *(dataset.src[edges], dataset.rel[edges], dataset.dst[edges]),
        num_nodes=dataset.num_nodes,
        num_relations=dataset.num_relations,
        inverse=True,
    )


def link_ranking(dataset: RelationalDataset, part: str, chunk_size: int = 512) -> LinkRanking:
    """The facts of a part, "train", "val" or "test", to be ranked; all edges are known."""
    edges = getattr(dataset, f"{part}_edges")
    return LinkRanking.from_facts(
        *(dataset.src[edges], dataset.rel[edges], dataset.dst[edges]),
        (dataset.src, dataset.rel, dataset.dst),
        num_nodes=dataset.num_nodes,
        num_relations=dataset.num_relations,
        chunk_size=chunk_size,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedLinks(Predictor):
    """A model for link prediction and how it was trained, which is what a checkpoint holds.

    Attributes:
        model: The model, in evaluation mode.
        config: Settings of the training.
        data: What the dataset of the training is recognised by.
        num_relations: Of the dataset, inverse ones not included.
        version: Of the library that trained it.
        numbering: What the numbers of relations and nodes of its dataset stand for; None of a
            checkpoint of an older version.
    """

    config: LinkConfig
    data: Fingerprint
    num_relations: int
    version: str | None = __version__
    numbering: Numbering | None = None

    def ranks(self, dataset: RelationalDataset, part: str = "test") -> Array:
        """Filtered ranks of a part of a dataset, ``(num_facts, 2)``: see `LinkRanking`.

        Nodes and relations are those of the training with the same names, whatever their numbers.
        Without names numbers count, and a warning says so where the data are not those of the
        training.

        Raises:
            TypeError: The dataset is no relational one.
            ValueError: It lacks a part, or has other nodes or relations than that of the training.
        """
        check_links(dataset)
        own = self.renumbered(dataset)
        expected = len(self.model.nodes[...]), self.num_relations
        if (dataset.num_nodes, dataset.num_relations) != expected:
            raise ValueError(
                f"dataset {dataset.name!r} has {dataset.num_nodes} nodes and "
                f"{dataset.num_relations} relations, the model {expected[0]} and {expected[1]}"
            )
        if own.unnamed and self.numbering is not None and "structure" in self.differences(dataset):
            own.warn()
        nodes, relations = _encode(*nnx.split(self.model), link_graph(own.dataset))
        ranks = link_ranking(own.dataset, part).ranks(self.model.decoder, nodes, relations)
        if own.dataset is dataset:
            return ranks
        ranked, given = (getattr(each, f"{part}_edges") for each in (own.dataset, dataset))
        order = np.argsort(ranked)
        return ranks[order[np.searchsorted(ranked, own.edges[given], sorter=order)]]

    def differences(self, dataset: RelationalDataset) -> tuple[str, ...]:
        """As of `TrainedModel`."""
        with contextlib.suppress(ValueError):  # other names, hence another structure
            dataset = self.renumbered(dataset).dataset
        return self.data.differences(fingerprint(dataset))

    def renumbered(self, dataset: RelationalDataset) -> Renumbered:
        """As of `TrainedModel`."""
        return renumbered(dataset, self.numbering or Numbering(), ("node",))

    def evaluate(self, dataset: RelationalDataset, part: str = "test") -> dict[str, float]:
        """MRR and hits of those ranks; see `link_metrics`."""
        return link_metrics(self.ranks(dataset, part))


@dataclasses.dataclass(frozen=True)
class LinkResult:
    """Outcome of `train_links`.

    Attributes:
        trained: The model of the best validation.
        losses: Of each epoch, ``(epochs,)``.
        epochs: After how many epochs the model was validated.
        valid: The filtered metrics of each validation.
        test: Those of the best model on the test edges.
        step_seconds: Measured seconds per step, one entry per epoch, without compilation.
        compile_seconds: Tracing and compilation of the step.
        evaluation_seconds: The shortest validation.
    """

    trained: TrainedLinks
    losses: np.ndarray
    epochs: tuple[int, ...]
    valid: tuple[dict[str, float], ...]
    test: dict[str, float]
    step_seconds: np.ndarray
    compile_seconds: float
    evaluation_seconds: float

    @property
    def best(self) -> int:
        """Which validation had the highest MRR."""
        return int(np.argmax([metrics["mrr"] for metrics in self.valid]))


class LinkReport(NamedTuple):
    """What `on_epoch` is told: the epoch from 0, its loss, and metrics if it was validated."""

    epoch: int
    loss: float
    valid: dict[str, float] | None


@functools.partial(jax.jit, static_argnums=0)
def _encode(graphdef: Any, state: Any, graph: RelationalGraph) -> tuple[Array, Array]:
    model = nnx.merge(graphdef, state)
    return model.encode(graph, deterministic=True)


class _Queries(NamedTuple):
    """The (source, relation) pairs of the training graph, which all are asked for their objects.

    Attributes:
        subjects: ``(num_queries,)``.
        relations: Likewise.
        starts: ``(num_queries + 1,)``, where the answers of each are.
        answers: ``(num_edges,)``.
        asked_by: ``(num_edges, 2)``, in the order of the graph: the queries that an edge answers,
            and that its inverse does.
    """

    subjects: np.ndarray
    relations: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    asked_by: np.ndarray

    @classmethod
    def of(cls, graph: RelationalGraph) -> _Queries:
        pairs, edges = graph.pair_src, graph.from_pairs
        assert pairs is not None and edges is not None
        count = graph.num_relations
        subjects = np.asarray(pairs.nodes)
        relations = np.repeat(np.arange(count), np.asarray(pairs.sizes))
        types = (np.asarray(graph.edge_types) + count // 2) % count
        inverse = types.astype(np.int64) * graph.num_nodes + np.asarray(graph.nodes.rows)
        keys = relations.astype(np.int64) * graph.num_nodes + subjects  # they ascend
        asked_by = np.stack([np.asarray(edges.cols), np.searchsorted(keys, inverse)], 1)
        columns = subjects, relations, edges.t_indptr, edges.t_cols, asked_by
        return cls(*(np.asarray(column, np.int32) for column in columns))

    def epoch(self, rng: np.random.Generator, batch_size: int) -> _Batches:
        """Batches of equal size with about as many answers each: long queries are dealt out."""
        count = len(self.subjects)
        steps = -(-count // batch_size)
        order = rng.permutation(count)
        sizes = np.diff(self.starts)
        order = order[np.argsort(-sizes[order], kind="stable")]
        order = np.append(order, np.full(steps * batch_size - count, -1))
        queries = order.reshape(batch_size, steps).T
        queries = queries[rng.permutation(steps)]
        lengths = np.where(queries < 0, 0, sizes[queries])
        totals = lengths.sum(1)
        width = -(-int(totals.max()) // 1024) * 1024
        flat = lengths.ravel()
        rows = np.repeat(np.arange(flat.size), flat)
        first = np.repeat(self.starts[queries.ravel()] - np.cumsum(flat) + flat, flat)
        answers = self.answers[first + np.arange(len(rows))]
        step = rows // batch_size
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(totals) - totals, totals)
        padded = np.full((2, steps, width), -1, np.int32)
        padded[0, step, slots] = rows % batch_size
        padded[1, step, slots] = answers
        return _Batches(queries.astype(np.int32), *padded)


class _Batches(NamedTuple):
    """Queries of steps, ``(steps, batch)``, and their answers, ``(steps, size)``; -1: padding."""

    queries: Any
    rows: Any
    objects: Any


def _loss(config: LinkConfig, model: LinkPredictor, data: Any, batch: _Batches, key: Array) -> Any:
    graph, queries, edge_weight = data
    asked = jnp.maximum(batch.queries, 0)
    encode_key, decode_key, negative_key = jax.random.split(key, 3)
    if config.leave_out:
        asked_for = jnp.zeros(len(queries.subjects), bool).at[asked].set(batch.queries >= 0)
        kept = ~asked_for[queries.asked_by].any(1)
        edge_weight = jnp.where(kept, 1.0 if edge_weight is None else edge_weight, 0)
    nodes, relations = model.encode(graph, edge_weight, deterministic=False, rngs=encode_key)
    decoder = functools.partial(
        model.decoder, deterministic=False, rngs=nnx.Rngs(dropout=decode_key)
    )
    wanted = decoder(nodes[queries.subjects[asked]], relations[queries.relations[asked]])
    if config.loss != "negatives":
        return one_vs_all_loss(
            wanted @ nodes.T,
            batch.rows,
            batch.objects,
            kind=config.loss,
            label_smoothing=config.label_smoothing,
        )
    given = (batch.rows >= 0)[:, None]
    size = len(batch.rows), config.num_negatives
    candidates = jax.random.randint(negative_key, size, 0, len(nodes))
    candidates = jnp.concatenate([batch.objects[:, None], candidates], 1)
    scores = jnp.einsum("af,anf->an", wanted[batch.rows], nodes[candidates])
    # What stands for no fact is as good as certain: its loss is 0.
    certain = jnp.array([[jnp.inf] + [-jnp.inf] * config.num_negatives], scores.dtype)
    scores = jnp.where(given, scores, certain)
    share = given.shape[0] / jnp.maximum(given.sum(), 1).astype(scores.dtype)
    return negative_sampling_loss(scores[:, 0], scores[:, 1:]) * share


def train_links(
    dataset: RelationalDataset,
    config: LinkConfig,
    *,
    on_epoch: Callable[[LinkReport], None] | None = None,
) -> LinkResult:
    """Trains a model to predict edges, and ranks test edges by that of the best validation.

    The graph has the training edges and their inverses. Each step encodes it whole, and asks for
    the objects of a batch of its (source, relation) pairs. Ranks are filtered by all edges of the
    dataset, of objects and of subjects.

    Args:
        dataset: With a split of its edges.
        config: Settings; their class says which encoder.
        on_epoch: Called after each epoch.

    Returns:
        Losses, metrics, times and the best model.

    Raises:
        TypeError: The dataset or the configuration is of another kind.
        ValueError: The dataset lacks a part of the split.
    """
    import optax  # part of the extra "train"

    if not isinstance(config, LinkConfig) or config.model not in LINK_RECIPES:
        raise TypeError(f"config must be such as RGCNLinkConfig, got {type(config).__name__}")
    check_links(dataset)
    graph = link_graph(dataset)
    queries = _Queries.of(graph)
    model = make_link_model(config, dataset.num_nodes, dataset.num_relations)
    rankings = {part: link_ranking(dataset, part) for part in PARTS[1:]}
    graphdef, *states = nnx.split(model, nnx.Param, ...)
    params, rest = states
    optimizer = adam(config.learning_rate)

    @jax.jit
    def run_epoch(state: Any, batches: _Batches, keys: Array, data: Any) -> tuple[Any, Array]:
        def step(state: Any, given: tuple[_Batches, Array]) -> tuple[Any, Array]:
            def loss_of(params: Any) -> Array:
                return _loss(config, nnx.merge(graphdef, params, rest), data, *given)

            params, moments = state
            loss, gradients = jax.value_and_grad(loss_of)(params)
            updates, moments = optimizer.update(gradients, moments, params)
            return (optax.apply_updates(params, updates), moments), loss

        return jax.lax.scan(step, state, (batches, keys))

    def evaluate(params: Any, part: str) -> dict[str, float]:
        nodes, relations = _encode(graphdef, nnx.merge_state(params, rest), graph)
        decoder = nnx.merge(graphdef, params, rest).decoder
        return link_metrics(rankings[part].ranks(decoder, nodes, relations))

    chosen = config.implementation
    context = jax_gnn.implementation(chosen) if chosen else contextlib.nullcontext()
    # Factors of edges do not change, nor do queries: all that a step reads, on the device once.
    weight = model.encoder.convolutions[0].factors(graph)
    data = jax.device_put((graph, queries, weight))
    state = params, optimizer.init(params)
    rng = np.random.default_rng(config.seed)
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    losses, seconds, validated, valid, evaluations = [], [], [], [], []
    compiled: dict[Any, Any] = {}
    compile_seconds, best, best_params = 0.0, -1.0, params
    with context:
        for epoch in range(config.epochs):
            batches = queries.epoch(rng, config.batch_size)
            steps = len(batches.queries)
            keys = jax.random.split(jax.random.fold_in(key, epoch), steps)
            given = state, _Batches(*map(jnp.asarray, batches)), keys, data
            start = time.perf_counter()
            if (shape := batches.rows.shape) not in compiled:
                compiled[shape] = run_epoch.lower(*given).compile()
                compile_seconds += time.perf_counter() - start
                start = time.perf_counter()
            state, loss = jax.block_until_ready(compiled[shape](*given))
            seconds.append((time.perf_counter() - start) / steps)
            losses.append(float(loss.mean()))
            metrics = None
            if (epoch + 1) % config.evaluate_every == 0 or epoch + 1 == config.epochs:
                start = time.perf_counter()
                metrics = evaluate(state[0], "val")
                evaluations.append(time.perf_counter() - start)
                validated.append(epoch + 1)
                valid.append(metrics)
                if metrics["mrr"] > best:
                    best, best_params = metrics["mrr"], state[0]
            if on_epoch is not None:
                on_epoch(LinkReport(epoch, losses[-1], metrics))
        test = evaluate(best_params, "test")
    nnx.update(model, best_params)
    model.eval()
    trained = TrainedLinks(
        *(model, config, fingerprint(dataset), dataset.num_relations),
        numbering=Numbering.of(dataset),
    )
    return LinkResult(
        trained,
        np.array(losses),
        tuple(validated),
        tuple(valid),
        test,
        np.array(seconds),
        compile_seconds,
        min(evaluations),
    )
