"""Batches of one shape for training on many graphs, and for all predictions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from flax_layers.training.config.graphs import GraphsConfig
from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.data import check_atoms, data_error
from flax_layers.training.types import PyTree
from jax_gnn import Batch, batch_budget, host_arrays, pack
from jax_gnn.datasets import GraphsDataset, NodeDataset
from jax_gnn.transforms import radius_graph

N = TypeVar("N", bound=NodeDataset)
Batches = tuple[Batch[Any], tuple[np.ndarray, ...], np.ndarray]
"""Batches of graphs, along a first axis; features of their nodes, ``(batches, num_nodes,
features)``, and perhaps of their edges; and the graphs' ids, ``(batches, num_graphs)``, -1 for
padding."""


def connected(dataset: N, config: TrainConfig) -> N:
    """Return a dataset with edges between atoms of a molecule that are within the cutoff.

    Without a cutoff among the settings, it is the dataset itself.
    """
    cutoff = getattr(config, "cutoff", None)
    return dataset if cutoff is None else _with_neighbours(dataset, cutoff)


@functools.lru_cache(maxsize=4)
def _with_neighbours(dataset: Any, cutoff: float) -> Any:
    check_atoms(dataset)
    x = np.asarray(dataset.x)
    molecules = np.repeat(np.arange(dataset.num_graphs), dataset.sizes)
    with host_arrays():
        src, dst = radius_graph(x[:, 1:], cutoff, graph_ids=molecules).edges()
    if (same := (x[src, 1:] == x[dst, 1:]).all(1)).any():
        i = molecules[src[np.argmax(same)]]
        raise data_error(dataset, f"has two atoms at one position, in molecule {i}, counted from 0")
    return dataclasses.replace(dataset, src=src, dst=dst, edge_features=None)


def check_neighbours(dataset: NodeDataset, config: TrainConfig) -> None:
    """Check that atoms of molecules to train on interact, if some molecule has several.

    Raises:
        ValueError: No two are within the cutoff.
    """
    cutoff = getattr(config, "cutoff", None)
    if cutoff is None or not isinstance(dataset, GraphsDataset):
        return
    if not connected(dataset, config).num_edges and (dataset.sizes > 1).any():
        unit = "which is in the unit of the positions"
        raise data_error(dataset, f"has no two atoms within the cutoff of {cutoff}, {unit}")


def graph_sizes(dataset: GraphsDataset) -> dict[str, np.ndarray]:
    """Return the numbers of nodes and edges of each graph."""
    graph_of_node = np.repeat(np.arange(dataset.num_graphs), dataset.sizes)
    edges = np.bincount(graph_of_node[dataset.dst], minlength=dataset.num_graphs)
    return {"num_nodes": dataset.sizes, "num_edges": edges}


def stack_batches(
    dataset: GraphsDataset,
    x: np.ndarray,
    groups: Sequence[np.ndarray],
    budget: dict[str, int],
    *,
    has_edges: bool = False,
) -> Batches:
    """Return batches of groups of graphs, stacked, in arrays of the host.

    `has_edges` adds features of edges.
    """
    groups = [np.asarray(group, np.int64) for group in groups]
    with host_arrays():
        unstacked = [dataset.batch(group, **budget) for group in groups]
        edges: tuple[np.ndarray, ...] = ()
        if has_edges:
            assert dataset.edge_features is not None
            values = [dataset.edge_features[dataset.edges_of(group)] for group in groups]
            pairs = zip(unstacked, values, strict=True)
            edges = (np.stack([batch.graph.edge_values(rows) for batch, rows in pairs]),)
    batches = jax.tree.map(lambda *arrays: np.stack(arrays), *unstacked)
    rows = padded_rows(dataset, x, groups, budget["num_nodes"])
    return batches, (rows, *edges), padded_ids(groups, budget)


def padded_rows(
    dataset: GraphsDataset, x: np.ndarray, groups: Sequence[np.ndarray], size: int, fill: float = 0
) -> np.ndarray:
    """Return the rows of the nodes of each group, before padding, ``(groups, size, features)``."""
    rows = np.full((len(groups), size, x.shape[1]), fill, x.dtype)
    for i, group in enumerate(groups):
        nodes = dataset.nodes_of(group)
        rows[i, : len(nodes)] = x[nodes]
    return rows


def padded_ids(groups: Sequence[np.ndarray], budget: dict[str, int]) -> np.ndarray:
    """Return the ids of the graphs of each group, ``(groups, num_graphs)``, -1 for padding."""
    ids = np.full((len(groups), budget["num_graphs"]), -1)
    for i, group in enumerate(groups):
        ids[i, : len(group)] = group
    return ids


def all_groups(
    dataset: GraphsDataset, config: GraphsConfig, devices: int = 1
) -> tuple[list[np.ndarray], dict[str, int]]:
    """Return groups of all graphs in order, as few as the budget allows, and the budget.

    Empty groups make their number a multiple of the devices'.
    """
    sizes = graph_sizes(dataset)
    budget = batch_budget(sizes, max(4 * config.batch_size // devices, 1))
    groups = [np.array(group) for group in pack(sizes, budget)]
    return groups + [np.zeros(0, int)] * (-len(groups) % devices), budget


def deal(sizes: np.ndarray, devices: int) -> list[np.ndarray]:
    """Deal graphs out to devices, about as many and as large ones to each.

    Args:
        sizes: Sizes of the graphs.
        devices: Number of devices.

    Returns:
        For each device the indices of its graphs, in order.
    """
    # From the largest to the smallest, to all devices in turn, forwards and backwards.
    order = np.pad(
        np.argsort(-sizes, kind="stable"), (0, -len(sizes) % devices), constant_values=-1
    )
    rounds = order.reshape(-1, devices)
    rounds[1::2] = rounds[1::2, ::-1]
    return [np.sort(column[column >= 0]) for column in rounds.T]


def take_padded(values: np.ndarray, ids: np.ndarray, fill: float) -> np.ndarray:
    """Return the values of ids, and `fill` for the id -1 of padding."""
    valid = np.reshape(ids >= 0, (*ids.shape, *[1] * (values.ndim - 1)))
    return np.where(valid, values[np.maximum(ids, 0)], fill).astype(values.dtype)


class Sampler:
    """Sampler of the batches of an epoch, all of one shape.

    A batch has as many graphs as the settings say, unless these are larger than the budget holds,
    which is that of the mean and two deviations. Shapes depend on `count`, the largest number of
    graphs to draw from. The same batches are dealt out to several devices, where one that has more
    nodes or edges than others had enlarges the shapes.

    Attributes:
        steps: Number of batches of an epoch.
    """

    def __init__(
        self,
        dataset: GraphsDataset,
        x: np.ndarray,
        count: int,
        config: GraphsConfig,
        devices: int = 1,
    ) -> None:
        self._dataset, self._x = dataset, x
        self._sizes = graph_sizes(dataset)
        size, self._devices = min(config.batch_size, count), devices
        self._budget = batch_budget(self._sizes, size)
        self._device_budget = batch_budget(self._sizes, -(-size // devices))
        self.steps = config.steps or -(-count // config.batch_size)
        self._once = not config.steps
        self._has_edges = config.edge_in_features is not None

    def epoch(self, ids: np.ndarray, rng: np.random.Generator) -> Batches:
        """Return batches of some of the graphs; of several devices, those of a step in a row."""
        # Either each graph is in one batch of the epoch, or each batch is a sample of all graphs.
        if self._once:
            samples = np.array_split(rng.permutation(ids), self.steps)
        else:
            count = self._budget["num_graphs"]
            samples = [rng.permutation(ids)[:count] for _ in range(self.steps)]
        # A batch ends before the first graph that exceeds the budget of nodes or edges.
        groups = []
        for sample in samples:
            fits = np.ones(len(sample), bool)
            for name, sizes in self._sizes.items():
                fits &= np.cumsum(sizes[sample]) <= self._budget[name]
            group = sample[fits]
            work = sum(sizes[group] / max(sizes.mean(), 1) for sizes in self._sizes.values())
            groups += [group[part] for part in deal(work, self._devices)]
        for name, sizes in self._sizes.items():
            largest = max(int(sizes[group].sum()) for group in groups)
            if largest > self._device_budget[name]:
                self._device_budget[name] = min(largest + largest // 8, self._budget[name])
        options = {"has_edges": self._has_edges}
        return stack_batches(self._dataset, self._x, groups, self._device_budget, **options)


def to_device(tree: PyTree) -> PyTree:
    """Return a tree of arrays on the default device."""
    return jax.tree.map(jnp.asarray, tree)
