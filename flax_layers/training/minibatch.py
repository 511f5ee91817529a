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

from flax_layers import HeteroModel
from flax_layers.layerwise import by_layer
from flax_layers.training.config.nodes import SampledConfig, TrainConfig
from flax_layers.training.epochs import Data, evaluation_data
from flax_layers.training.neighborhoods import (
    CHUNK_EDGES,
    Inputs,
    Neighborhoods,
    inputs_of,
)
from flax_layers.training.trained import model_inputs, stack_of
from flax_layers.training.types import Model, PyTree
from jax_gnn.datasets import NodeDataset, Split
from jax_gnn.sampling import Blocks, block_capacity, node_chunks

_SMALL = 2**13  # sources of a batch: of fewer, compiling a step twice takes longer than it saves
_BATCHES = 4  # from which the capacity of blocks is estimated


def seeds_of_epoch(ids: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Return all ids once, in an order that depends on seed and epoch alone.

    They are int32, ``(steps, batch_size)``; the last step is filled up with -1.
    """
    shuffled = np.random.default_rng([seed, 3, epoch]).permutation(ids)
    steps = -(-len(ids) // batch_size)
    seeds = np.full(steps * batch_size, -1, np.int32)
    seeds[: len(ids)] = shuffled
    return seeds.reshape(steps, batch_size)


class SampledNodes:
    """Batches of training nodes and samples of their neighbourhoods: see `Feed`.

    The scales of a GCN are those of the whole graph, and sums those of all edges on average. So
    with fanouts that suffice for all edges a step's logits are those of the whole graph.
    Evaluations see all edges; with times of edges, those up to each node's time.
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
        self._neighborhoods = Neighborhoods.of(config, self.graph)
        inputs = inputs_of(dataset, config, self.graph, x, *weights, all_nodes=False)
        self.inputs, self._is_timed = inputs, inputs.past is not None
        self._evaluating = self._neighborhoods.evaluating(config, self.graph)
        self._chunks = node_chunks(self.graph, CHUNK_EDGES)
        longest = max(len(split.train) for split in splits)
        self._batch_size = min(config.batch_size or longest, longest)
        self.steps_per_epoch = -(-longest // self._batch_size)
        self._capacity = self._estimate_capacity(splits[0])

    def _estimate_capacity(self, split: Split) -> tuple[int, ...] | None:
        """Return the capacity of a few batches' blocks; None if it is near the largest possible."""
        if self._config.disjoint or self._is_timed:
            return None
        batches = seeds_of_epoch(split.train, self._batch_size, self._config.seed, 0)[:_BATCHES]
        fanouts, key = self._neighborhoods.fanouts, jax.random.key(self._config.seed)
        draw = functools.partial(self._neighborhoods.draw, self.graph, batches[0], key)
        # Shapes for the worst case, in which no neighbourhoods overlap, need no sampling.
        largest = jax.eval_shape(draw).graphs[0].num_src
        if largest < _SMALL:
            return None
        capacity = block_capacity(self.graph, batches, fanouts, key)
        return capacity if 5 * capacity[-1] < 4 * largest else None

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        self._ids, self._seed, self._epoch = split.train, seed, 0
        return evaluation_data(self.graph, self.inputs, self._dataset, config, split)

    def epochs(self) -> Data:
        """See `Feed`."""
        seeds = seeds_of_epoch(self._ids, self._batch_size, self._seed, self._epoch)
        missing = self.steps_per_epoch - len(seeds)  # of a split with fewer training nodes
        seeds = np.pad(seeds, ((0, missing), (0, 0)), constant_values=-1)
        self._epoch += 1
        return Data(None, (), jnp.asarray(seeds)[None], ())

    def sample(
        self, data: Data, seeds: Array, key: Array, step: Callable[[Data], PyTree]
    ) -> PyTree:
        """Return the result of a step on the `batch` of its seeds."""
        batch = self.batch(data, seeds, key, self._capacity)
        if self._capacity is None:
            return step(batch)
        # A batch that exceeds the capacity is drawn again, from the same key, with room for all.
        return jax.lax.cond(
            batch.graph.overflow, lambda: step(self.batch(data, seeds, key)), lambda: step(batch)
        )

    def batch(
        self, data: Data, seeds: Array, key: Array, capacity: tuple[int, ...] | None = None
    ) -> Data:
        """Sample the neighbourhoods of seeds, ``(batch_size,)``, -1 for padding, in all data.

        The capacity of blocks is that of `jax_gnn.sampling.sample_neighbors`.
        """
        graph, inputs = data.graph, Inputs(*data.inputs)
        blocks = self._neighborhoods.draw(graph, seeds, key, inputs.past, capacity=capacity)
        inputs = self._neighborhoods.inputs(graph, blocks, seeds, inputs)
        return Data(blocks, inputs, data.y[jnp.maximum(seeds, 0)], (seeds >= 0,))

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """See `Feed`."""
        x, edge_options, node_options, past = inputs
        dropout = {"deterministic": key is None, "rngs": key}
        # Steps are on blocks; evaluations on the whole graph, by layers if it is large.
        if isinstance(graph, Blocks):
            return model(graph, x, **edge_options, **node_options, **dropout)
        if past is not None:
            return self._evaluating.past_logits(model, graph, inputs)
        if len(self._chunks) == 1:
            return model(graph, x, **edge_options, **dropout)
        x = model.joined(graph, x) if isinstance(model, HeteroModel) else x
        chunks = dataclasses.replace(self._chunks, graph=graph)
        return by_layer(stack_of(model), chunks, x, edge_options)
