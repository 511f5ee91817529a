"""Feeds of a training's steps: one whole graph, or batches of nodes or of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from flax_layers.training.config.graphs import GraphsConfig
from flax_layers.training.config.nodes import SampledConfig, TrainConfig
from flax_layers.training.data import node_features, node_mask, preprocessing_of, scaled_labels
from flax_layers.training.devices import shard_inputs
from flax_layers.training.epochs import Data, Sample, evaluation_data
from flax_layers.training.graphs import Sampler, all_groups, padded_ids, take_padded, to_device
from flax_layers.training.minibatch import SampledNodes
from flax_layers.training.predictor import preprocessed
from flax_layers.training.trained import model_inputs, raw_inputs
from flax_layers.training.types import Method, Model, PyTree
from jax_gnn import host_arrays
from jax_gnn.datasets import GraphsDataset, NodeDataset, Split


class Feed(Protocol):
    """Source of a training's data."""

    graph: Any  # the graph; for many graphs stacked batches
    inputs: tuple[Any, ...]  # features after the preprocessing, and perhaps weights of edges
    epochs_per_call: int  # number of epochs in one compiled call
    steps_per_epoch: int  # number of steps of the optimizer

    @property
    def sample(self) -> Sample | None:
        """Function that samples the data of a step; None where the feed has the data of steps."""
        return None

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """Begin a split, and return the data of its evaluations."""

    def epochs(self) -> Data | None:
        """Return the data of a call's epochs and steps; None if each is one step on all data."""

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """Apply the model to the data of a step, or without a key to those of an evaluation."""
        return model(graph, *inputs, deterministic=key is None, rngs=key)


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
        return evaluation_data(self.graph, self.inputs, self._dataset, config, split)

    def epochs(self) -> None:
        """See `Feed`."""


class SplitGraph(WholeGraph):
    """A graph over several devices, on all of which each step is: see `Feed`.

    Rows of nodes are those of all devices one after another, with padding that no mask selects.
    """

    def __init__(
        self, dataset: NodeDataset, config: TrainConfig, devices: int, method: Method
    ) -> None:
        # The whole graph stays on the host, and only its parts are placed on devices.
        self._dataset = dataset
        with host_arrays():
            self.graph, *inputs = raw_inputs(dataset, config)
        self._sharded, x, *weights = shard_inputs(self.graph, inputs, devices, method)
        self.inputs = preprocessed(preprocessing_of(config), x), *weights

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        convert = self._shard_rows
        return evaluation_data(self._sharded, self.inputs, self._dataset, config, split, convert)

    def _shard_rows(self, rows: np.ndarray) -> Array:
        return _merge_devices(self._sharded.shard(rows))

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """See `Feed`."""
        return _merge_devices(graph.apply(model, *inputs, deterministic=key is None, rngs=key))


def _merge_devices(rows: Array) -> Array:
    """Merge the axes of devices and of each device's rows."""
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
        self._ids = padded_ids(*all_groups(dataset, config))
        features: Any = node_features(dataset, config)
        count = max(len(split.train) for split in splits)
        self._sampler = Sampler(dataset, features, count, config)
        self.steps_per_epoch = self._sampler.steps

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        self._y = scaled_labels(self._dataset, config)
        self._train_ids, self._rng = split.train, np.random.default_rng([seed, 2])
        masks = (node_mask(self._dataset, ids) for ids in vars(split).values())
        padded = tuple(jnp.asarray(take_padded(mask, self._ids, False)) for mask in masks)
        return Data(self.graph, self.inputs, self._labels(self._ids), padded)

    def epochs(self) -> Data:
        """See `Feed`."""
        batches, rows, ids = self._sampler.epoch(self._train_ids, self._rng)
        valid, y = jnp.asarray(ids >= 0), self._labels(ids)
        # A call is one epoch: the leading axes are of epochs and steps.
        steps = Data(to_device(batches), to_device(rows), y, (valid,))
        one_epoch: Data = jax.tree.map(lambda array: array[None], steps)
        return one_epoch

    def _labels(self, ids: np.ndarray) -> Array:
        fill = np.nan if self._dataset.regresses else 0
        return jnp.asarray(take_padded(self._y, ids, fill))


def feed_of(
    dataset: NodeDataset, config: TrainConfig, splits: Sequence[Split], devices: int, method: Method
) -> Feed:
    """Return the feed of a dataset and settings, for all the splits that will start."""
    if devices > 1:
        return SplitGraph(dataset, config, devices, method)
    if isinstance(dataset, GraphsDataset):
        assert isinstance(config, GraphsConfig)
        return ManyGraphs(dataset, config, splits)
    if isinstance(config, SampledConfig) and config.batch_size:
        return SampledNodes(dataset, config, splits)
    return WholeGraph(dataset, config)
