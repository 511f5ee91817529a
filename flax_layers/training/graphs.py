"""Batches of one shape for training on many graphs, and for all predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_layers.training.config import GraphsConfig
from jax_gnn import Batch, batch_budget, host_arrays, pack
from jax_gnn.datasets import GraphsDataset


def graph_sizes(dataset: GraphsDataset) -> dict[str, np.ndarray]:
    """How many nodes and edges each graph has."""
    graph_of = np.repeat(np.arange(dataset.num_graphs), dataset.sizes)
    edges = np.bincount(graph_of[dataset.dst], minlength=dataset.num_graphs)
    return {"num_nodes": dataset.sizes, "num_edges": edges}


def stacked(
    dataset: GraphsDataset, x: np.ndarray, groups: Sequence[Any], budget: dict[str, int]
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Batches of some graphs each, one behind another along a first axis, in arrays of the host.

    Returns:
        The batches; features of their nodes, ``(batches, num_nodes, features)``; and the graphs'
        numbers, ``(batches, num_graphs)``, -1 for padding.
    """
    with host_arrays():
        made = [dataset.batch(np.asarray(group, np.int64), **budget) for group in groups]
    batches = jax.tree.map(lambda *arrays: np.stack(arrays), *made)
    rows = np.zeros((len(groups), budget["num_nodes"], x.shape[1]), x.dtype)
    for i, group in enumerate(groups):
        nodes = dataset.nodes_of(np.asarray(group, np.int64))
        rows[i, : len(nodes)] = x[nodes]
    return batches, rows, numbered(groups, budget)


def numbered(groups: Sequence[Any], budget: dict[str, int]) -> np.ndarray:
    """The graphs' numbers, ``(batches, num_graphs)``, -1 for padding."""
    numbers = np.full((len(groups), budget["num_graphs"]), -1)
    for i, group in enumerate(groups):
        numbers[i, : len(group)] = group
    return numbers


def all_groups(dataset: GraphsDataset, config: GraphsConfig) -> tuple[list[Any], dict[str, int]]:
    """All graphs in their order, in as few batches as the budget allows; and the budget."""
    sizes = graph_sizes(dataset)
    budget = batch_budget(sizes, max(4 * config.batch_size, 1))
    return [*pack(sizes, budget)], budget


def picked(values: Any, numbers: Any, fill: Any) -> Any:
    """What graphs of `stacked` have, by their numbers; a value for padding."""
    there = np.reshape(numbers >= 0, (*numbers.shape, *[1] * (values.ndim - 1)))
    return np.where(there, values[np.maximum(numbers, 0)], fill).astype(values.dtype)


class Sampler:
    """Draws the batches of an epoch, all of one shape.

    A batch has as many graphs as the settings say, unless these are larger than the budget holds,
    which is that of the mean and two deviations.

    Args:
        dataset: The graphs.
        x: Features of their nodes.
        count: How many graphs are drawn from, at most: it decides the shapes.
        config: The settings.

    Attributes:
        steps: How many batches an epoch has.
    """

    def __init__(
        self, dataset: GraphsDataset, x: np.ndarray, count: int, config: GraphsConfig
    ) -> None:
        self._dataset, self._x = dataset, x
        self._sizes = graph_sizes(dataset)
        self._budget = batch_budget(self._sizes, min(config.batch_size, count))
        self.steps = config.steps or -(-count // config.batch_size)
        self._once = not config.steps

    def epoch(
        self, ids: np.ndarray, rng: np.random.Generator
    ) -> tuple[Batch, np.ndarray, np.ndarray]:
        """Batches of some of the graphs, as of `stacked`."""
        count = self._budget["num_graphs"]
        drawn = (rng.permutation(ids)[:count] for _ in range(self.steps))
        groups = []
        for chosen in np.array_split(rng.permutation(ids), self.steps) if self._once else drawn:
            fits = np.ones(len(chosen), bool)
            for name, sizes in self._sizes.items():
                fits &= np.cumsum(sizes[chosen]) <= self._budget[name]
            groups.append(chosen[fits])
        return stacked(self._dataset, self._x, groups, self._budget)


def device(tree: Any) -> Any:
    """The same on the device."""
    return jax.tree.map(jnp.asarray, tree)
