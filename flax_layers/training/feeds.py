"""Feeds of a training's steps: one whole graph, or batches of nodes or of graphs.

Neighbourhoods of batches of nodes are sampled inside the compiled step.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding

from flax_layers import HeteroModel
from flax_layers.layerwise import by_layer
from flax_layers.training.config.graphs import GraphsConfig
from flax_layers.training.config.nodes import SampledConfig, TrainConfig
from flax_layers.training.data import (
    node_features,
    node_mask,
    preprocessing_of,
    scaled_inputs,
    scaled_labels,
    with_scaled_edges,
)
from flax_layers.training.devices import (
    AXIS,
    REPLICATED,
    deal_groups,
    merge_devices,
    mesh_of,
    place,
    shard_inputs,
)
from flax_layers.training.epochs import Data, Sample, evaluation_data
from flax_layers.training.graphs import (
    Sampler,
    all_groups,
    connected,
    padded_ids,
    padded_rows,
    take_padded,
    to_device,
)
from flax_layers.training.neighborhoods import CHUNK_EDGES, Inputs, Neighborhoods, inputs_of
from flax_layers.training.trained import model_inputs, raw_inputs, stack_of
from flax_layers.training.types import Method, Model, PyTree
from jax_gnn import host_arrays
from jax_gnn.datasets import GraphsDataset, NodeDataset, Split
from jax_gnn.sampling import Blocks, block_capacity, node_chunks
from jax_gnn.sharding import apply_on_devices

_SMALL = 2**13  # sources of a batch: of fewer, compiling a step twice takes longer than it saves
_BATCHES = 4  # from which the capacity of blocks is estimated


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
        self._sharded, *inputs = shard_inputs(self.graph, inputs, devices, method)
        self.inputs = scaled_inputs(preprocessing_of(config), *inputs)

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        data = self._sharded, self.inputs, self._dataset, config, split
        return evaluation_data(*data, lambda rows: merge_devices(self._sharded.shard(rows)))

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """See `Feed`."""
        return merge_devices(graph.apply(model, *inputs, deterministic=key is None, rngs=key))


class ManyGraphs(Feed):
    """Batches of graphs, which are drawn anew for each epoch: see `Feed`.

    The graphs of a batch are dealt out to the devices. Arrays of several devices have an axis of
    devices after that of steps, or of the groups of an evaluation; labels and masks have the rows
    of all devices.
    """

    epochs_per_call = 1

    def __init__(
        self,
        dataset: GraphsDataset,
        config: GraphsConfig,
        splits: Sequence[Split],
        devices: int = 1,
    ) -> None:
        dataset = self._dataset = connected(dataset, config)
        self._mesh = mesh_of(devices) if devices > 1 else None
        self.graph, *inputs = self._place_groups(model_inputs(dataset, config, devices))
        self.inputs = tuple(inputs)
        self._ids = padded_ids(*all_groups(dataset, config, devices))
        features: Any = node_features(dataset, config)
        dataset = with_scaled_edges(dataset, config)
        count = max(len(split.train) for split in splits)
        self._sampling = dataset, features, count, config, devices
        self.steps_per_epoch = Sampler(*self._sampling).steps

    def start(self, config: TrainConfig, split: Split, seed: int) -> Data:
        """See `Feed`."""
        # Shapes of several devices may grow, in each split anew, wherever a resumed run begins.
        self._sampler = Sampler(*self._sampling)
        self._y = scaled_labels(self._dataset, config)
        self._forces = None
        if self._dataset.forces is not None and getattr(config, "force_weight", 0.0) > 0:
            assert config.target_scaling is not None
            self._forces = self._dataset.forces / np.array(config.target_scaling[1], np.float32)
        self._train_ids, self._rng = split.train, np.random.default_rng([seed, 2])
        masks = (node_mask(self._dataset, ids) for ids in vars(split).values())
        padded = tuple(self._place_rows(take_padded(mask, self._ids, False)) for mask in masks)
        return Data(self.graph, self.inputs, self._labels(self._ids), padded)

    def epochs(self) -> Data:
        """See `Feed`."""
        batches, rows, ids = self._sampler.epoch(self._train_ids, self._rng)
        valid, y = self._place_rows(ids >= 0), self._labels(ids)
        # A call is one epoch: the leading axes are of epochs and steps.
        forces = None
        if self._forces is not None:
            groups, size = [group[group >= 0] for group in ids], rows[0].shape[1]
            padded = padded_rows(self._dataset, self._forces, groups, size, np.nan)
            forces = self._place_groups(padded)
        graphs, inputs = self._place_groups((batches, rows))
        steps = Data(graphs, inputs, y, (valid,), forces=forces)
        return jax.tree.map(lambda array: array[None], steps)

    def _labels(self, ids: np.ndarray) -> Array:
        fill = np.nan if self._dataset.regresses else 0
        return self._place_rows(take_padded(self._y, ids, fill))

    def _place_groups(self, groups: PyTree) -> PyTree:
        """Place arrays with a first axis of groups of graphs, of which each device has some."""
        return to_device(groups) if self._mesh is None else deal_groups(groups, self._mesh)

    def _place_rows(self, rows: np.ndarray) -> Array:
        """Place rows of graphs, ``(groups, num_graphs, …)``, of which all devices have all."""
        if self._mesh is None:
            return jnp.asarray(rows)
        rows = rows.reshape(-1, self._mesh.size * rows.shape[1], *rows.shape[2:])
        return place(rows, NamedSharding(self._mesh, REPLICATED))

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """See `Feed`."""
        if self._mesh is None:
            return super().logits(model, graph, inputs, key)
        dropout: dict[str, Any] = {"deterministic": key is None, "rngs": key}
        return merge_devices(apply_on_devices(model, self._mesh, AXIS, (graph, *inputs), **dropout))


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

    All of several devices have the whole graph. Each draws the neighbourhoods of its share of the
    seeds, by a key of its own; blocks have a leading axis of devices. All compute the same
    evaluations.
    """

    epochs_per_call = 1
    inputs: tuple[Any, ...]

    def __init__(
        self, dataset: NodeDataset, config: SampledConfig, splits: Sequence[Split], devices: int = 1
    ) -> None:
        self._dataset, self._config = dataset, config
        self._mesh = mesh_of(devices) if devices > 1 else None
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
        self._device_batch = -(-self._batch_size // devices)
        self.steps_per_epoch = -(-longest // self._batch_size)
        self._capacity = self._estimate_capacity(splits[0])
        self._place = jnp.asarray
        if self._mesh is not None:
            replicated = NamedSharding(self._mesh, REPLICATED)
            self._place = functools.partial(place, sharding=replicated)
            self.graph, self.inputs = self._place((self.graph, self.inputs))

    def _estimate_capacity(self, split: Split) -> tuple[int, ...] | None:
        """Return the capacity of a few batches' blocks; None if it is near the largest possible."""
        if self._config.disjoint or self._is_timed:
            return None
        batches = seeds_of_epoch(split.train, self._device_batch, self._config.seed, 0)[:_BATCHES]
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
        data = self.graph, self.inputs, self._dataset, config, split
        return evaluation_data(*data, self._place)

    def epochs(self) -> Data:
        """See `Feed`."""
        seeds = seeds_of_epoch(self._ids, self._batch_size, self._seed, self._epoch)
        missing = self.steps_per_epoch - len(seeds)  # of a split with fewer training nodes
        devices = 1 if self._mesh is None else self._mesh.size
        padding = devices * self._device_batch - self._batch_size
        seeds = np.pad(seeds, ((0, missing), (0, padding)), constant_values=-1)
        self._epoch += 1
        return Data(None, (), self._place(seeds[None]), ())

    def sample(
        self, data: Data, seeds: Array, key: Array, step: Callable[[Data], PyTree]
    ) -> PyTree:
        """Return the result of a step on the `batch` of its seeds."""
        batch = self.batch(data, seeds, key, self._capacity)
        if self._capacity is None:
            return step(batch)
        # A batch that exceeds the capacity is drawn again, from the same key, with room for all.
        return jax.lax.cond(
            batch.graph.overflow.any(),
            lambda: step(self.batch(data, seeds, key)),
            lambda: step(batch),
        )

    def batch(
        self, data: Data, seeds: Array, key: Array, capacity: tuple[int, ...] | None = None
    ) -> Data:
        """Sample the neighbourhoods of seeds, ``(batch_size,)``, -1 for padding, in all data.

        The capacity of blocks is that of `jax_gnn.sampling.sample_neighbors`.
        """
        arguments = {"graph": data.graph, "inputs": Inputs(*data.inputs), "key": key}

        def draw(seeds: Array, graph: PyTree, inputs: Inputs, key: Array) -> tuple[Blocks, Inputs]:
            blocks = self._neighborhoods.draw(graph, seeds, key, inputs.past, capacity=capacity)
            return blocks, self._neighborhoods.inputs(graph, blocks, seeds, inputs)

        if self._mesh is None:
            blocks, drawn = draw(seeds, **arguments)
        else:
            shares = seeds.reshape(self._mesh.size, -1)
            blocks, drawn = apply_on_devices(draw, self._mesh, AXIS, (shares,), **arguments)
        return Data(blocks, drawn, data.y[jnp.maximum(seeds, 0)], (seeds >= 0,))

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """See `Feed`."""
        x, edge_options, node_options, past = inputs
        dropout = {"deterministic": key is None, "rngs": key}
        # Steps are on blocks; evaluations on the whole graph, by layers if it is large.
        if isinstance(graph, Blocks) and self._mesh is not None:
            named = edge_options | node_options
            return merge_devices(
                apply_on_devices(model, self._mesh, AXIS, (graph, x), named, **dropout)
            )
        if isinstance(graph, Blocks):
            return model(graph, x, **edge_options, **node_options, **dropout)
        if past is not None:
            return self._evaluating.past_logits(model, graph, inputs)
        if len(self._chunks) == 1:
            return model(graph, x, **edge_options, **dropout)
        x = model.joined(graph, x) if isinstance(model, HeteroModel) else x
        chunks = dataclasses.replace(self._chunks, graph=graph)
        return by_layer(stack_of(model), chunks, x, edge_options)


def feed_of(
    dataset: NodeDataset, config: TrainConfig, splits: Sequence[Split], devices: int, method: Method
) -> Feed:
    """Return the feed of a dataset and settings, for all the splits that will start."""
    if isinstance(dataset, GraphsDataset):
        assert isinstance(config, GraphsConfig)
        return ManyGraphs(dataset, config, splits, devices)
    if isinstance(config, SampledConfig) and config.batch_size:
        return SampledNodes(dataset, config, splits, devices)
    if devices > 1:
        return SplitGraph(dataset, config, devices, method)
    return WholeGraph(dataset, config)
