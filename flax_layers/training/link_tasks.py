"""Tasks of link prediction: edges with relations (facts), and edges without.

A task reads the data of a training, draws its batches, and computes its loss and metrics. A
*query* is a node and a relation, whose answers are the nodes that its edges lead to.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from flax_layers import (
    GAE,
    LinkPredictor,
    LinkRanking,
    edge_metrics,
    link_metrics,
    negative_sampling_loss,
    one_vs_all_loss,
)
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.data import data_error, node_features, settled, settled_direction
from flax_layers.training.devices import SplitEncoder, deal_rows, replicate, shard_inputs
from flax_layers.training.link_models import LINK_RECIPES
from flax_layers.training.models import check_kind, graph_of
from flax_layers.training.resume import write_arrays
from flax_layers.training.types import Method, PyTree
from jax_gnn import RelationalGraph
from jax_gnn.datasets import (
    GraphDataset,
    NodeDataset,
    RelationalDataset,
    split_edges,
    with_split_edges,
)
from jax_gnn.sharding import ShardedGraph

PARTS = ("train", "val", "test")
_ARRAYS = ("nodes", "relations", "known")  # of the file of an index, by field


class LinkIndex(NamedTuple):
    """Data that queries are answered from, which a checkpoint holds beside the parameters."""

    nodes: Array  # encoded nodes, (num_nodes, features)
    relations: Array  # encoded relations, (2 * num_relations, features); no rows without relations
    # Source, relation and destination of all edges of the data, (3, num_edges) int32. The relation
    # is 0 without relations; an undirected graph has both directions.
    facts: np.ndarray

    def write(self, path: Path) -> None:
        """Write the index to an ``.npz`` file."""
        write_arrays(path, dict(zip(_ARRAYS, self, strict=True)))

    @classmethod
    def read(cls, path: Path) -> LinkIndex:
        """Read a file of `write`."""
        with np.load(path, allow_pickle=False) as arrays:
            nodes, relations, facts = (arrays[name] for name in _ARRAYS)
        return cls(jnp.asarray(nodes), jnp.asarray(relations), facts)


def link_task(dataset: NodeDataset, config: LinkConfig) -> FactTask | EdgeTask:
    """Return the task of predicting a dataset's edges; errors are those of `check_links`."""
    recipe = LINK_RECIPES.get(getattr(config, "model", ""))
    if recipe is None:
        expected = "such as GCNLinkConfig or RGCNLinkConfig"
        raise TypeError(f"config must be {expected}, got {type(config).__name__}")
    check_kind(config, dataset, recipe.dataset)
    if isinstance(dataset, RelationalDataset):
        return FactTask(dataset, config)
    assert isinstance(dataset, GraphDataset)
    return EdgeTask(dataset, config)


def check_links(dataset: NodeDataset, config: LinkConfig) -> None:
    """Check that settings can train on a dataset to predict its edges.

    Raises:
        TypeError: The settings are of no model, or it takes other datasets.
        ValueError: A part of the split is missing or empty, the data are too few to split, or edges
            have no relations and nodes no features.
    """
    link_task(dataset, config)


def has_edge_split(dataset: NodeDataset) -> bool:
    """Return whether a dataset has a split of its edges, or a part of one."""
    return any(getattr(dataset, f"{part}_edges", None) is not None for part in PARTS)


def splits_by_time(dataset: NodeDataset, config: LinkConfig) -> bool:
    """Return whether edges are split by their times, and not at random."""
    choice = getattr(config, "edge_split", "random")
    has_time = getattr(dataset, "edge_time", None) is not None
    return bool(choice == "time" or (choice == "auto" and has_time))


def link_graph(dataset: RelationalDataset) -> RelationalGraph:
    """Return the graph of the training edges and their inverses."""
    edges = dataset.train_edges
    return RelationalGraph.from_triples(
        dataset.src[edges],
        dataset.rel[edges],
        dataset.dst[edges],
        num_nodes=dataset.num_nodes,
        num_relations=dataset.num_relations,
        inverse=True,
    )


def _place(graph: Any, x: Any, whole: PyTree, devices: int, method: Method) -> tuple[Any, ...]:
    """Place a graph, the features of its nodes, or None, and arrays that all devices have whole."""
    if devices == 1:
        return jax.device_put((graph, x, whole))
    sharded, x = shard_inputs(graph, [x], devices, method)
    return sharded, x, replicate(whole, sharded)


# --- Edges with relations -------------------------------------------------------------------------


class _Queries(NamedTuple):
    """Queries of the training graph: its (source, relation) pairs."""

    subjects: np.ndarray  # source of each query, (num_queries,)
    relations: np.ndarray  # relation of each query, (num_queries,)
    starts: np.ndarray  # start of each query's answers, (num_queries + 1,)
    answers: np.ndarray  # answers, query by query, (num_edges,)
    # (num_edges, 2), in the order of the graph: the queries that an edge and its inverse answer.
    edge_queries: np.ndarray

    @classmethod
    def of(cls, graph: RelationalGraph) -> _Queries:
        pairs, edges = graph.pair_src, graph.from_pairs
        assert pairs is not None and edges is not None
        count = graph.num_relations
        subjects = np.asarray(pairs.nodes)
        relations = np.repeat(np.arange(count), np.asarray(pairs.sizes))
        # The inverse of an edge leads from its destination, by a relation `count // 2` away.
        types = (np.asarray(graph.edge_types) + count // 2) % count
        inverse = types.astype(np.int64) * graph.num_nodes + np.asarray(graph.nodes.rows)
        keys = relations.astype(np.int64) * graph.num_nodes + subjects  # they ascend
        edge_queries = np.stack([np.asarray(edges.cols), np.searchsorted(keys, inverse)], 1)
        columns = subjects, relations, edges.t_indptr, edges.t_cols, edge_queries
        return cls(*(np.asarray(column, np.int32) for column in columns))

    def epoch(self, rng: np.random.Generator, batch_size: int) -> _Batches:
        """Return batches of equal size with about as many answers each."""
        count = len(self.subjects)
        steps = -(-count // batch_size)
        order = rng.permutation(count)
        sizes = np.diff(self.starts)
        # The queries with most answers are dealt out to the steps like cards.
        order = order[np.argsort(-sizes[order], kind="stable")]
        order = np.append(order, np.full(steps * batch_size - count, -1))
        queries = order.reshape(batch_size, steps).T
        queries = queries[rng.permutation(steps)]
        # Answers of a step lie one after another, in arrays of the width of the longest step.
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


def _loss(
    config: LinkConfig, model: LinkPredictor, data: PyTree, batch: _Batches, key: Array
) -> Array:
    """Return the loss of a step: the graph is encoded whole, and queries are decoded."""
    settings: Any = config
    graph, queries, edge_weight = data
    ids = jnp.maximum(batch.queries, 0)
    encode_key, decode_key, negative_key = jax.random.split(key, 3)
    if settings.leave_out:
        # An edge is hidden if it, or its inverse, answers a query of the batch.
        in_batch = jnp.zeros(len(queries.subjects), bool).at[ids].max(batch.queries >= 0)
        visible = ~in_batch[queries.edge_queries].any(1)
        edge_weight = jnp.where(visible, 1.0 if edge_weight is None else edge_weight, 0)
    nodes, relations = model.encode(graph, edge_weight, deterministic=False, rngs=encode_key)
    decoded = model.decoder(
        nodes[queries.subjects[ids]],
        relations[queries.relations[ids]],
        deterministic=False,
        rngs=nnx.Rngs(dropout=decode_key),
    )
    if settings.loss != "negatives":
        return one_vs_all_loss(
            deal_rows(graph, decoded) @ nodes.T,
            batch.rows,
            batch.objects,
            kind=settings.loss,
            label_smoothing=settings.label_smoothing,
        )
    valid = (batch.rows >= 0)[:, None]
    size = len(batch.rows), settings.num_negatives
    candidates = jax.random.randint(negative_key, size, 0, len(nodes))
    candidates = deal_rows(graph, jnp.concatenate([batch.objects[:, None], candidates], 1))
    scores = jnp.einsum("af,anf->an", decoded[deal_rows(graph, batch.rows)], nodes[candidates])
    # Padding gets the scores of a certain fact, whose loss is 0, and the mean is over valid rows.
    certain = jnp.array([[jnp.inf] + [-jnp.inf] * settings.num_negatives], scores.dtype)
    scores = jnp.where(valid, scores, certain)
    share = valid.shape[0] / jnp.maximum(valid.sum(), 1).astype(scores.dtype)
    return negative_sampling_loss(scores[:, 0], scores[:, 1:]) * share


@functools.partial(jax.jit, static_argnums=0)
def _encode(graphdef: nnx.GraphDef[Any], state: PyTree, *inputs: PyTree) -> PyTree:
    return nnx.merge(graphdef, state).encode(*inputs, deterministic=True)


class FactTask:
    """Edges with relations: filtered ranks of objects and subjects.

    The graph has the training edges and their inverses. Each step encodes it whole, and asks for
    the objects of a batch of its (source, relation) pairs. Ranks are filtered by all edges.

    Attributes:
        config: Settings of the training.
        dataset: Data with a split of its edges: its own, or a random one.
    """

    best_by: ClassVar[str] = "mrr"

    def __init__(self, dataset: RelationalDataset, config: LinkConfig) -> None:
        self.config = config
        if not has_edge_split(dataset):
            shares = {"valid": config.valid_share, "test": config.test_share}
            dataset = with_split_edges(dataset, seed=config.seed, **shares)
        for part in PARTS:
            edges = getattr(dataset, f"{part}_edges")
            if edges is None or not edges.size:
                raise data_error(dataset, f"has no {part}_edges to predict links")
        self.dataset = dataset
        self._rankings: dict[str, LinkRanking] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of `make_link_model`."""
        data = self.dataset
        return {"num_nodes": data.num_nodes, "num_relations": data.num_relations}

    @property
    def part_sizes(self) -> list[int]:
        """Numbers of edges that are trained on, validate and test."""
        return [len(getattr(self.dataset, f"{part}_edges")) for part in PARTS]

    @functools.cached_property
    def graph(self) -> RelationalGraph:
        """Graph of the training edges and their inverses."""
        return link_graph(self.dataset)

    def data(self, model: LinkPredictor, devices: int = 1, method: Method = "auto") -> PyTree:
        """Return all inputs of a step beside its batch, on devices that each have a part."""
        # The factors of edges follow from degrees alone, and are computed once.
        self._queries = _Queries.of(self.graph)
        weight = model.encoder.convolutions[0].factors(self.graph)
        graph, _, whole = _place(self.graph, None, (self._queries, weight), devices, method)
        return graph, *whole

    @property
    def steps(self) -> int:
        """Number of steps of an epoch, after `data`."""
        settings: Any = self.config
        return -(-len(self._queries.subjects) // int(settings.batch_size))

    def batches(self, rng: np.random.Generator) -> _Batches:
        """Return the batches of an epoch, one for each step."""
        settings: Any = self.config
        return self._queries.epoch(rng, settings.batch_size)

    def loss(self, model: LinkPredictor, data: PyTree, batch: _Batches, key: Array) -> Array:
        """Return the loss of a step."""
        if isinstance(data[0], ShardedGraph):
            model.encoder = SplitEncoder(model.encoder)
        return _loss(self.config, model, data, batch, key)

    def ranks(self, model: LinkPredictor, part: str) -> Array:
        """Return the ranks of the facts of a part, ``(num_facts, 2)``: see `LinkRanking`."""
        if part not in self._rankings:
            # All edges of the data are known answers, of whatever part.
            data = self.dataset
            edges, facts = getattr(data, f"{part}_edges"), (data.src, data.rel, data.dst)
            src, rel, dst = (column[edges] for column in facts)
            self._rankings[part] = LinkRanking.from_facts(
                src, rel, dst, facts, **self.sizes, chunk_size=512
            )
        nodes, relations = _encode(*nnx.split(model), self.graph)
        return self._rankings[part].ranks(model.decoder, nodes, relations)

    def metrics(self, model: LinkPredictor, part: str) -> dict[str, float]:
        """Return the metrics of a part: see `link_metrics`."""
        return link_metrics(self.ranks(model, part))

    def index(self, model: LinkPredictor) -> LinkIndex:
        """Return the data that queries are answered from."""
        nodes, relations = _encode(*nnx.split(model), self.graph)
        data = self.dataset
        return LinkIndex(nodes, relations, np.stack([data.src, data.rel, data.dst]))


# --- Edges without relations ----------------------------------------------------------------------


class EdgeTask:
    """Edges without relations, as Kipf and Welling predict them (arXiv 1611.07308).

    Each epoch is a step on all training edges and as many fresh pairs without one. Validation
    scores edges by the graph of the training edges, the test by that of validation edges, too.
    Methods are those of `FactTask`.

    Attributes:
        config: Settings of the training, with all that the data decide.
        dataset: The data.
        graph: Graph of all its edges, in the direction of the settings.
        x: Features of its nodes.
        split: Random split of its edges.
    """

    best_by: ClassVar[str] = "auc"
    steps: ClassVar[int] = 1

    def __init__(self, dataset: GraphDataset, config: LinkConfig) -> None:
        self.dataset = dataset
        if getattr(config, "features", "") == "native" and not dataset.num_features:
            raise data_error(
                dataset,
                "has no node features; generate them with features 'random' (--features random)",
            )
        self.config = config = settled(dataset, settled_direction(dataset, config))
        self.graph = graph_of(dataset, config)
        self.x = np.asarray(node_features(dataset, config))
        valid, test, edge_time = config.valid_share, config.test_share, None
        if splits_by_time(dataset, config):
            if dataset.edge_time is None:
                raise data_error(dataset, "has no times of edges to split them by")
            # Ranks have 32 bits, as arrays of JAX.
            ranks = np.unique(dataset.edge_time, return_inverse=True)[1].astype(np.int32)
            edge_time = np.asarray(self.graph.edge_values(ranks))
        try:
            self.split = split_edges(
                self.graph, valid=valid, test=test, seed=config.seed, edge_time=edge_time
            )
        except ValueError as error:
            raise data_error(dataset, f"cannot be split: {error}") from error

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of `make_link_model`."""
        sizes = {"num_nodes": self.dataset.num_nodes, "num_relations": 0}
        return sizes | {"in_features": self.x.shape[1]}

    @property
    def part_sizes(self) -> list[int]:
        """Numbers of edges that are trained on, validate and test."""
        return [ids.shape[1] for ids in (self.split.train, self.split.valid, self.split.test)]

    def data(self, model: GAE, devices: int = 1, method: Method = "auto") -> PyTree:
        """Return all inputs of a step beside its batch, on devices that each have a part."""
        return _place(self.split.train_graph, self.x, self.split.train, devices, method)

    def batches(self, rng: np.random.Generator) -> np.ndarray:
        """Return the pairs without an edge of an epoch, which is one step."""
        return self.split.train_negatives(rng)[None]

    def loss(self, model: GAE, data: PyTree, batch: Array, key: Array) -> Array:
        """Return the loss of a step."""
        graph, x, edges = data
        if isinstance(graph, ShardedGraph):
            model.encoder = SplitEncoder(model.encoder)
        pairs = (deal_rows(graph, ids, 1) for ids in (edges, batch))
        return model.loss(graph, x, *pairs, deterministic=False, rngs=key)

    def _embeddings(self, model: GAE, part: str) -> Array:
        graph = self.split.test_graph if part == "test" else self.split.train_graph
        return _encode(*nnx.split(model), graph, self.x)

    def scores(self, model: GAE, part: str) -> tuple[Array, Array]:
        """Return the logits of the edges of "val" or "test", and of as many pairs without one."""
        z, split = self._embeddings(model, part), self.split
        if part == "test":
            pairs = split.test, split.test_negatives
        else:
            pairs = split.valid, split.valid_negatives
        return model.scores(z, pairs[0]), model.scores(z, pairs[1])

    def metrics(self, model: GAE, part: str) -> dict[str, float]:
        """Return the metrics of a part: see `edge_metrics`."""
        positive, negative = self.scores(model, part)
        return edge_metrics(positive, negative)

    def index(self, model: GAE) -> LinkIndex:
        """Return the data that queries are answered from, as in the test."""
        z = self._embeddings(model, "test")
        src, dst = (ids.astype(np.int32) for ids in self.graph.edges())
        return LinkIndex(z, z[:0], np.stack([src, 0 * src, dst]))
