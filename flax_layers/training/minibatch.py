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
from flax_layers.training.config.nodes import SampledConfig, TrainConfig
from flax_layers.training.epochs import Data, evaluation_data
from flax_layers.training.trained import model_inputs, stack_of
from flax_layers.training.types import Model, PyTree
from jax_gnn import Graph
from jax_gnn.datasets import NodeDataset, Split
from jax_gnn.extend import take
from jax_gnn.sampling import Blocks, block_capacity, node_chunks, sample_neighbors

CHUNK_EDGES = 2**20  # of an evaluation: a graph of fewer is evaluated at once
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

    A node's sum over sampled edges is multiplied by the number of its edges for each sampled one,
    so that its mean is the sum over all edges; and the scales of a GCN are those of the whole
    graph. So with fanouts that suffice for all edges a step's logits are those of the whole graph.
    Evaluations see all edges.
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
        # All edges of a node are as many as any node has.
        edges: Graph = getattr(self.graph, "nodes", self.graph)  # of all relations
        most = int(np.diff(np.asarray(edges.indptr)).max(initial=1))
        self._fanouts = tuple(most if n < 0 else n for n in config.layer_fanouts)
        # Options of the model that have a value for each edge, or for each node.
        edge_options = {"edge_weight": weights[0]} if weights else {}
        node_options: dict[str, Any] = {}
        if config.model == "gcn":
            node_options["node_scale"] = gcn_norm(self.graph, *weights)
        self.inputs = x, edge_options, node_options
        aggregation = getattr(config, "reduce", "")
        self._sums = config.model in ("gcn", "gin") or aggregation == "sum"
        self._chunks = node_chunks(self.graph, CHUNK_EDGES)
        longest = max(len(split.train) for split in splits)
        self._batch_size = min(config.batch_size or longest, longest)
        self.steps_per_epoch = -(-longest // self._batch_size)
        self._capacity = self._estimate_capacity(splits[0])

    def _estimate_capacity(self, split: Split) -> tuple[int, ...] | None:
        """Return the capacity of a few batches' blocks; None if it is near the largest possible."""
        batches = seeds_of_epoch(split.train, self._batch_size, self._config.seed, 0)[:_BATCHES]
        fanouts, key = self._fanouts, jax.random.key(self._config.seed)
        draw = functools.partial(self._draw, self.graph, batches[0], key)
        # Shapes for the worst case, in which no neighbourhoods overlap, need no sampling.
        largest = jax.eval_shape(draw).graphs[0].num_src
        if largest < _SMALL or self._config.disjoint:
            return None
        capacity = block_capacity(self.graph, batches, fanouts, key)
        return capacity if 5 * capacity[-1] < 4 * largest else None

    def _draw(self, graph: Any, seeds: Any, key: Array, **options: Any) -> Blocks:
        disjoint = self._config.disjoint
        return sample_neighbors(graph, seeds, self._fanouts, key, disjoint=disjoint, **options)

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
        graph, (x, edge_options, node_options) = data.graph, data.inputs
        blocks = self._draw(graph, seeds, key, capacity=capacity)
        ids = blocks.node_ids
        edges = {
            name: tuple(block.edge_values(values) for block in blocks.graphs)
            for name, values in edge_options.items()
        }
        if self._sums:
            factors = tuple(sampling_factors(graph, block, ids) for block in blocks.graphs)
            weights: Any = edges.get("edge_weight", (1,) * len(factors))
            edges["edge_weight"] = tuple(a * b for a, b in zip(weights, factors, strict=True))
        nodes = {name: values[jnp.maximum(ids, 0)] for name, values in node_options.items()}
        inputs = blocks.node_values(x), edges, nodes
        return Data(blocks, inputs, data.y[jnp.maximum(seeds, 0)], (seeds >= 0,))

    def logits(self, model: Model, graph: PyTree, inputs: PyTree, key: Array | None) -> Array:
        """See `Feed`."""
        x, edge_options, node_options = inputs
        dropout = {"deterministic": key is None, "rngs": key}
        # Steps are on blocks; evaluations on the whole graph, by layers if it is large.
        if isinstance(graph, Blocks):
            return model(graph, x, **edge_options, **node_options, **dropout)
        if len(self._chunks) == 1:
            return model(graph, x, **edge_options, **dropout)
        x = model.joined(graph, x) if isinstance(model, HeteroModel) else x
        chunks = dataclasses.replace(self._chunks, graph=graph)
        return by_layer(stack_of(model), chunks, x, edge_options)


def sampling_factors(graph: PyTree, block: PyTree, ids: Array) -> Array:
    """Return the number of edges into a node for each sampled one, ``(num_edges,)``."""
    nodes = jnp.maximum(ids[: block.num_dst], 0)
    degrees = (graph.indptr[nodes + 1] - graph.indptr[nodes]).astype(float)
    factors = degrees / jnp.maximum(block.in_degrees(), 1).astype(float)
    return take(factors, block.rows)
