"""What the steps of an epoch are given: one whole graph, or batches of nodes or of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from flax_layers.training.config import GraphsConfig, SampledConfig, TrainConfig
from flax_layers.training.data import (
    node_features,
    node_mask,
    preprocessing_of,
    scaled_labels,
)
from flax_layers.training.devices import over_devices
from flax_layers.training.epochs import Data, Sample
from flax_layers.training.graphs import Sampler, all_groups, device, numbered, picked
from flax_layers.training.minibatch import SampledNodes
from flax_layers.training.predictor import preprocessed
from flax_layers.training.trained import model_inputs, raw_inputs
from jax_gnn import host_arrays
from jax_gnn.datasets import GraphsDataset, NodeDataset, Split


class Feed(Protocol):
    """Where a training's data come from.

    Attributes:
        graph: The graph; of many graphs stacked batches.
        inputs: Features after the preprocessing, and perhaps weights of edges.
        epochs_per_call: How many epochs are one compiled call.
        steps_per_epoch: How many steps of the optimizer.
    """

    graph: Any
    inputs: tuple[Any, ...]
    epochs_per_call: int
    steps_per_epoch: int

    @property
    def sample(self) -> Sample | None:
        """Calls a step on what it is trained on, of the whole data, its seeds and its key.

        None where the steps' data are that.
        """
        return None

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """Begins a split, and returns what its epochs are evaluated on."""

    def epochs(self) -> Data | None:
        """The batches of a call's epochs and steps; None if each is a step on the whole graph."""

    def logits(self, model: Any, graph: Any, inputs: Any, key: Array | None) -> Array:
        """What a model makes of a step's or an evaluation's data, of which there is no key."""
        y: Array = model(graph, *inputs, deterministic=key is None, rngs=key)
        return y


class WholeGraph(Feed):
    """A graph, on all of which each step is: see `Feed`."""

    epochs_per_call = 10
    steps_per_epoch = 1

    def __init__(self, dataset: NodeDataset, config: TrainConfig) -> None:
        self._dataset = dataset
        self.graph, *inputs = model_inputs(dataset, config)
        self.inputs = tuple(inputs)

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        y = jnp.asarray(scaled_labels(self._dataset, config))
        masks = (jnp.asarray(node_mask(self._dataset, ids)) for ids in _parts(split))
        return Data(self.graph, self.inputs, y, tuple(masks))

    def epochs(self) -> None:
        """See `Feed`."""


class SplitGraph(WholeGraph):
    """A graph over several devices, on all of which each step is: see `Feed`.

    Rows of nodes are those of all devices one after another, with padding that no mask selects.
    """

    def __init__(
        self, dataset: NodeDataset, config: TrainConfig, devices: int, method: Any
    ) -> None:
        self._dataset = dataset
        with host_arrays():
            self.graph, *inputs = raw_inputs(dataset, config)
        self._sharded, x, *weights = over_devices(self.graph, inputs, devices, method)
        self.inputs = preprocessed(preprocessing_of(config), x), *weights

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        y, *masks = (
            _joined(self._sharded.shard(each))
            for each in (
                scaled_labels(self._dataset, config),
                *(node_mask(self._dataset, ids) for ids in _parts(split)),
            )
        )
        return Data(self._sharded, self.inputs, y, tuple(masks))

    def logits(self, model: Any, graph: Any, inputs: Any, key: Array | None) -> Array:
        """See `Feed`."""

        def of_part(part: Any, *inputs: Any) -> Array:
            own = None if key is None else jax.random.fold_in(key, jax.lax.axis_index(graph.axis))
            y: Array = model(part, *inputs, deterministic=key is None, rngs=own)
            return y

        return _joined(graph.apply(of_part, *inputs))


def _joined(rows: Array) -> Array:
    """Those of all devices one after another."""
    return rows.reshape(-1, *rows.shape[2:])


class ManyGraphs(Feed):
    """Batches of graphs, which are drawn anew for each epoch: see `Feed`."""

    epochs_per_call = 1

    def __init__(
        self, dataset: GraphsDataset, config: GraphsConfig, splits: Sequence[Split]
    ) -> None:
        self._dataset = dataset
        self.graph, *inputs = model_inputs(dataset, config)
        self.inputs = tuple(inputs)
        self._numbers = numbered(*all_groups(dataset, config))
        features: Any = node_features(dataset, config)
        count = max(len(split.train) for split in splits)
        self._sampler = Sampler(dataset, features, count, config)
        self.steps_per_epoch = self._sampler.steps

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        self._known = scaled_labels(self._dataset, config)
        self._ids, self._rng = split.train, np.random.default_rng([seed, 2])
        masks = (node_mask(self._dataset, ids) for ids in _parts(split))
        found = tuple(jnp.asarray(picked(mask, self._numbers, False)) for mask in masks)
        return Data(self.graph, self.inputs, self._labels(self._numbers), found)

    def epochs(self) -> Data:
        """See `Feed`."""
        batches, rows, chosen = self._sampler.epoch(self._ids, self._rng)
        there, y = jnp.asarray(chosen >= 0), self._labels(chosen)
        steps = Data(device(batches), (jnp.asarray(rows),), y, (there,))
        return jax.tree.map(lambda array: array[None], steps)

    def _labels(self, numbers: np.ndarray) -> jax.Array:
        fill = np.nan if self._dataset.regresses else 0
        return jnp.asarray(picked(self._known, numbers, fill))


def _parts(split: Split) -> tuple[np.ndarray, ...]:
    return split.train, split.valid, split.test


def feed_of(
    dataset: NodeDataset,
    config: TrainConfig,
    splits: Sequence[Split],
    devices: int,
    method: Any,
) -> Feed:
    """That of a dataset and settings, for all the splits that will start."""
    if devices > 1:
        return SplitGraph(dataset, config, devices, method)
    if isinstance(dataset, GraphsDataset):
        assert isinstance(config, GraphsConfig)
        return ManyGraphs(dataset, config, splits)
    if isinstance(config, SampledConfig) and config.batch_size:
        return SampledNodes(dataset, config, splits)
    return WholeGraph(dataset, config)
