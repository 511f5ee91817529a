"""What a training for link prediction reads from data: edges with relations, and without."""

from __future__ import annotations

import functools
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from flax_layers import (
    LinkPredictor,
    LinkRanking,
    edge_metrics,
    link_metrics,
    negative_sampling_loss,
    one_vs_all_loss,
)
from flax_layers.training.data import node_features, settled
from flax_layers.training.link_models import LINK_RECIPES
from flax_layers.training.models import recipe_among
from flax_layers.training.resume import write_arrays
from jax_gnn import RelationalGraph
from jax_gnn.datasets import (
    EdgeSplit,
    GraphDataset,
    NodeDataset,
    RelationalDataset,
    split_edges,
    with_split_edges,
)

PARTS = ("train", "val", "test")


class LinkIndex(NamedTuple):
    """What queries are answered from, which a checkpoint holds beside the parameters.

    Attributes:
        nodes: ``(num_nodes, features)``, encoded.
        relations: ``(2 * num_relations, features)``; without rows where edges have none.
        known: ``(3, num_edges)`` int32, source, relation and destination of all edges of the data:
            without relations that is 0, and of an undirected graph there are both directions.
    """

    nodes: Array
    relations: Array
    known: np.ndarray

    def write(self, path: Path) -> None:
        """Writes it to an ``.npz`` file."""
        write_arrays(path, self._asdict())

    @classmethod
    def read(cls, path: Path) -> LinkIndex:
        """Reads what `write` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            nodes, relations, known = (arrays[name] for name in cls._fields)
        return cls(jnp.asarray(nodes), jnp.asarray(relations), known)


def link_task(dataset: NodeDataset, config: Any) -> FactTask | EdgeTask:
    """The task of predicting a dataset's edges.

    Raises:
        TypeError: The settings are of no model, or it takes other datasets.
        ValueError: A part of the split is missing or empty, the data are too few to split, or edges
            have no relations and nodes no features.
    """
    wanted = "such as GCNLinkConfig or RGCNLinkConfig"
    recipe = recipe_among(LINK_RECIPES, config, dataset, wanted)
    task: Any = FactTask if recipe.dataset is RelationalDataset else EdgeTask
    return task(dataset, config)


def check_links(dataset: NodeDataset, config: Any) -> None:
    """Checks that settings can train on a dataset to predict its edges.

    Raises:
        TypeError: As `link_task`.
        ValueError: Likewise.
    """
    link_task(dataset, config)


def has_edge_split(dataset: NodeDataset) -> bool:
    """Whether a dataset has a split of its edges, or a part of one."""
    return any(getattr(dataset, f"{part}_edges", None) is not None for part in PARTS)


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


def _loss(config: Any, model: LinkPredictor, data: Any, batch: _Batches, key: Array) -> Array:
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


@functools.partial(jax.jit, static_argnums=0)
def _encode(graphdef: Any, state: Any, *data: Any) -> Any:
    return nnx.merge(graphdef, state).encode(*data, deterministic=True)


class FactTask:
    """Edges with relations: filtered ranks of objects and subjects.

    The graph has the training edges and their inverses. Each step encodes it whole, and asks for
    the objects of a batch of its (source, relation) pairs. Ranks are filtered by all edges.

    Attributes:
        dataset: With a split of its edges: its own, or a random one.
    """

    best_by: ClassVar[str] = "mrr"

    def __init__(self, dataset: RelationalDataset, config: Any) -> None:
        self.config = config
        if not has_edge_split(dataset):
            shares = {"valid": config.valid_share, "test": config.test_share}
            dataset = with_split_edges(dataset, seed=config.seed, **shares)
        for part in PARTS:
            edges = getattr(dataset, f"{part}_edges")
            if edges is None or not edges.size:
                raise ValueError(f"dataset {dataset.name!r} has no {part}_edges to predict links")
        self.dataset = dataset
        self._rankings: dict[str, LinkRanking] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """What `make_link_model` takes."""
        names = "num_nodes", "num_relations"
        return {name: getattr(self.dataset, name) for name in names}

    @property
    def part_sizes(self) -> list[int]:
        """How many edges are trained on, validate and test."""
        return [len(getattr(self.dataset, f"{part}_edges")) for part in PARTS]

    @cached_property
    def graph(self) -> RelationalGraph:
        """The training edges and their inverses."""
        return link_graph(self.dataset)

    def data(self, model: LinkPredictor) -> Any:
        """All that a step reads beside its batch: factors of edges do not change."""
        self._queries = _Queries.of(self.graph)
        weight = model.encoder.convolutions[0].factors(self.graph)
        return jax.device_put((self.graph, self._queries, weight))

    def batches(self, rng: np.random.Generator) -> _Batches:
        """Those of an epoch, a step each."""
        return self._queries.epoch(rng, self.config.batch_size)

    def loss(self, model: LinkPredictor, data: Any, batch: _Batches, key: Array) -> Array:
        """Of a step."""
        return _loss(self.config, model, data, batch, key)

    def ranks(self, model: LinkPredictor, part: str) -> Array:
        """Of the facts of a part, ``(num_facts, 2)``: see `LinkRanking`."""
        if part not in self._rankings:
            self._rankings[part] = link_ranking(self.dataset, part)
        nodes, relations = _encode(*nnx.split(model), self.graph)
        return self._rankings[part].ranks(model.decoder, nodes, relations)

    def metrics(self, model: LinkPredictor, part: str) -> dict[str, float]:
        """Of a part: see `link_metrics`."""
        return link_metrics(self.ranks(model, part))

    def index(self, model: LinkPredictor) -> LinkIndex:
        """What queries are answered from."""
        nodes, relations = _encode(*nnx.split(model), self.graph)
        data = self.dataset
        return LinkIndex(nodes, relations, np.stack([data.src, data.rel, data.dst]))


class EdgeTask:
    """Edges without relations, as Kipf and Welling predict them (arXiv 1611.07308).

    Each epoch is a step on all training edges and as many fresh pairs without one. Validation
    scores edges by the graph of the training edges, the test by that of validation edges, too.

    Attributes:
        config: The settings, with what the data decide.
        dataset: The data.
        x: Features of its nodes.
        split: Of its edges, at random.
    """

    best_by: ClassVar[str] = "auc"

    def __init__(self, dataset: GraphDataset, config: Any) -> None:
        self.dataset = dataset
        if config.features == "native" and not dataset.num_features:
            raise ValueError(
                f"dataset {dataset.name!r} has no node features; generate them with features "
                "'random' (--features random)"
            )
        self.config = config = settled(dataset, config)
        self.x = np.asarray(node_features(dataset, config))
        shares = {"valid": config.valid_share, "test": config.test_share}
        try:
            self.split: EdgeSplit = split_edges(dataset.graph(), seed=config.seed, **shares)
        except ValueError as error:
            raise ValueError(f"dataset {dataset.name!r} cannot be split: {error}") from error

    @property
    def sizes(self) -> dict[str, int]:
        """What `make_link_model` takes."""
        sizes = {"num_nodes": self.dataset.num_nodes, "num_relations": 0}
        return sizes | {"in_features": self.x.shape[1]}

    @property
    def part_sizes(self) -> list[int]:
        """How many edges are trained on, validate and test."""
        return [ids.shape[1] for ids in (self.split.train, self.split.valid, self.split.test)]

    def data(self, model: Any) -> Any:
        """All that a step reads beside its batch."""
        return jax.device_put((self.split.train_graph, self.x, self.split.train))

    def batches(self, rng: np.random.Generator) -> np.ndarray:
        """The pairs without an edge of an epoch, which is one step."""
        return self.split.train_negatives(rng)[None]

    def loss(self, model: Any, data: Any, batch: Array, key: Array) -> Array:
        """Of a step."""
        return model.loss(*data, batch, deterministic=False, rngs=key)

    def _embeddings(self, model: Any, part: str) -> Array:
        graph = self.split.test_graph if part == "test" else self.split.train_graph
        return _encode(*nnx.split(model), graph, self.x)

    def scores(self, model: Any, part: str) -> tuple[Array, Array]:
        """Logits of the edges of "val" or "test", and of as many pairs without one."""
        z, split = self._embeddings(model, part), self.split
        pairs = {
            "val": (split.valid, split.valid_negatives),
            "test": (split.test, split.test_negatives),
        }[part]
        right, wrong = (model.scores(z, edges) for edges in pairs)
        return right, wrong

    def metrics(self, model: Any, part: str) -> dict[str, float]:
        """Of a part: see `edge_metrics`."""
        return edge_metrics(*self.scores(model, part))

    def index(self, model: Any) -> LinkIndex:
        """What queries are answered from, as in the test."""
        z, data = self._embeddings(model, "test"), self.dataset
        return LinkIndex(z, z[:0], np.stack([data.src, 0 * data.src, data.dst]))
