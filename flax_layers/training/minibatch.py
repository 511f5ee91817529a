"""Training of nodes in batches: neighbourhoods are sampled inside the compiled step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from flax_layers import HeteroModel, gcn_norm
from flax_layers.layerwise import by_layer
from flax_layers.training.config import SampledConfig, TrainConfig
from flax_layers.training.data import node_mask, scaled_labels
from flax_layers.training.epochs import Data
from flax_layers.training.trained import model_inputs, stack_of
from jax_gnn.datasets import NodeDataset, Split
from jax_gnn.extend import take
from jax_gnn.sampling import Blocks, block_capacity, node_chunks, sample_neighbors

CHUNK_EDGES = 2**20  # of an evaluation: a graph of fewer is evaluated at once
_SMALL = 2**13  # sources of a batch: of fewer, compiling a step twice takes longer than it saves
_BATCHES = 4  # that are looked at to find what room they need


def seeds_of_epoch(ids: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """All ids once, in an order of their own for each epoch, which depends on nothing else.

    Args:
        ids: The training nodes, ``(count,)``.
        batch_size: How many a step has.
        seed: Of the run.
        epoch: From 0.

    Returns:
        ``(steps, batch_size)`` int32; the last step is filled up with -1.
    """
    shuffled = np.random.default_rng([seed, 3, epoch]).permutation(ids)
    steps = -(-len(ids) // batch_size)
    seeds = np.full(steps * batch_size, -1, np.int32)
    seeds[: len(ids)] = shuffled
    return seeds.reshape(steps, batch_size)


class SampledNodes:
    """Batches of training nodes and what is drawn of their neighbourhoods: see `Feed`.

    A node's sum over the edges that were drawn is multiplied by how many there are for each of
    these, so that it is that of all edges on average; and the scales of a GCN are those of the
    whole graph. So with fanouts that suffice for all edges a step's logits are those of the whole
    graph. Evaluations see all edges.
    """

    epochs_per_call = 1
    inputs: tuple[Any, ...]

    def __init__(
        self, dataset: NodeDataset, config: SampledConfig, splits: Sequence[Split]
    ) -> None:
        self._dataset, self._config = dataset, config
        self.graph, x, *weights = model_inputs(dataset, config)
        if x is None:
            raise ValueError(
                f"batch_size is for nodes with features, which {config.model} has only with "
                f"features='native', 'noisy-label' or 'random', got features={config.features!r}"
            )
        of_edges = {"edge_weight": weights[0]} if weights else {}
        of_nodes: dict[str, Any] = {}
        if config.model == "gcn":
            of_nodes["node_scale"] = gcn_norm(self.graph, *weights)
        self.inputs = x, of_edges, of_nodes
        self._chunks = node_chunks(self.graph, CHUNK_EDGES)
        longest = max(len(split.train) for split in splits)
        self._batch_size = min(config.batch_size or longest, longest)
        self.steps_per_epoch = -(-longest // self._batch_size)
        self._capacity = self._room(splits[0])

    def _room(self, split: Split) -> tuple[int, ...] | None:
        """What blocks of a few batches need, where that is much less than they might need."""
        batches = seeds_of_epoch(split.train, self._batch_size, self._config.seed, 0)[:_BATCHES]
        given = batches, self._config.drawn, jax.random.key(self._config.seed)
        draw = functools.partial(sample_neighbors, self.graph, given[0][0], *given[1:])
        most = jax.eval_shape(draw).graphs[0].num_src
        if most < _SMALL:
            return None
        found = block_capacity(self.graph, *given)
        return found if 5 * found[-1] < 4 * most else None

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        self._ids, self._seed, self._epoch = split.train, seed, 0
        y = jnp.asarray(scaled_labels(self._dataset, config))
        parts = split.train, split.valid, split.test
        masks = (jnp.asarray(node_mask(self._dataset, ids)) for ids in parts)
        return Data(self.graph, self.inputs, y, tuple(masks))

    def epochs(self) -> Data:
        """See `Feed`."""
        seeds = seeds_of_epoch(self._ids, self._batch_size, self._seed, self._epoch)
        missing = self.steps_per_epoch - len(seeds)  # of a split with fewer training nodes
        seeds = np.pad(seeds, ((0, missing), (0, 0)), constant_values=-1)
        self._epoch += 1
        return Data(None, (), jnp.asarray(seeds)[None], ())

    def sample(self, whole: Data, seeds: Array, key: Array, step: Callable[[Data], Any]) -> Any:
        """What a step makes of a batch; of one that needs more room than others, with all of it.

        Args:
            whole: Of all nodes.
            seeds: ``(batch_size,)``, -1 is padding.
            key: Of the step.
            step: What to call.
        """
        batch = self.batch(whole, seeds, key, self._capacity)
        if self._capacity is None:
            return step(batch)
        over = batch.graph.overflow
        return jax.lax.cond(over, lambda: step(self.batch(whole, seeds, key)), lambda: step(batch))

    def batch(
        self, whole: Data, seeds: Array, key: Array, capacity: tuple[int, ...] | None = None
    ) -> Data:
        """What is drawn for seeds.

        Args:
            whole: See `sample`.
            seeds: Likewise.
            key: Likewise.
            capacity: See `jax_gnn.sampling.sample_neighbors`.
        """
        graph, (x, of_edges, of_nodes) = whole.graph, whole.inputs
        blocks = sample_neighbors(graph, seeds, self._config.drawn, key, capacity=capacity)
        ids = blocks.node_ids
        edges = {
            name: tuple(block.edge_values(each) for block in blocks.graphs)
            for name, each in of_edges.items()
        }
        if self._sums:
            shares = tuple(share_drawn(graph, block, ids) for block in blocks.graphs)
            given: Any = edges.get("edge_weight", (1,) * len(shares))
            edges["edge_weight"] = tuple(a * b for a, b in zip(given, shares, strict=True))
        nodes = {name: each[jnp.maximum(ids, 0)] for name, each in of_nodes.items()}
        inputs = blocks.node_values(x), edges, nodes
        return Data(blocks, inputs, whole.y[jnp.maximum(seeds, 0)], (seeds >= 0,))

    @property
    def _sums(self) -> bool:
        config = self._config
        return config.model in ("gcn", "gin") or getattr(config, "aggregation", "") == "sum"

    def logits(self, model: Any, graph: Any, inputs: Any, key: Array | None) -> Array:
        """See `Feed`."""
        x, of_edges, of_nodes = inputs
        dropout = {"deterministic": key is None, "rngs": key}
        if isinstance(graph, Blocks):
            return model(graph, x, **of_edges, **of_nodes, **dropout)
        if len(self._chunks) == 1:
            return model(graph, x, **of_edges, **dropout)
        x = model.joined(graph, x) if isinstance(model, HeteroModel) else x
        chunks = dataclasses.replace(self._chunks, graph=graph)
        return by_layer(stack_of(model), chunks, x, of_edges)


def share_drawn(graph: Any, block: Any, ids: Array) -> Array:
    """``(num_edges,)``, how many edges into a node there are for each one that was drawn."""
    places = jnp.maximum(ids[: block.num_dst], 0)
    there = (graph.indptr[places + 1] - graph.indptr[places]).astype(float)
    share = there / jnp.maximum(block.in_degrees(), 1).astype(float)
    return take(share, block.rows)
