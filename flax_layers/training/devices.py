"""Trainings and predictions over several devices, each with a part of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_layers.training.config import TrainConfig
from flax_layers.training.models import RECIPES, Recipe, spelled
from jax_gnn.datasets import HypergraphDataset
from jax_gnn.extend import check_integer
from jax_gnn.sharding import ShardedGraph, shard_graph

AXIS = "nodes"


def check_devices(config: TrainConfig, devices: int, *, training: bool = True) -> None:
    """Checks that there are so many devices, and that they can share a training or a prediction.

    Raises:
        TypeError: `devices` is no integer.
        ValueError: There are fewer, or the model or a setting has no parts.
    """
    if check_integer("devices", devices) < 1:
        raise ValueError(f"devices must be a number from 1, got {devices}")
    if devices == 1:
        return
    recipe = RECIPES[config.model]
    lacking = ""
    if recipe.structure is None:
        lacking = "is trained on batches of graphs"
    elif not takes_parts(recipe):
        able = [name for name, each in RECIPES.items() if _is_alike(each, recipe)]
        lacking = f"takes no part of a hypergraph, as {', '.join(able)} do"
    elif training and getattr(config, "batch_size", None):
        lacking = "is trained on batches of nodes where batch_size is given"
    if lacking:
        raise ValueError(f"devices must be 1: {spelled(config.model)} {lacking}; got {devices}")
    found = jax.devices()
    if devices > len(found):
        kind = found[0].platform
        more = f" (JAX_NUM_CPU_DEVICES={devices} makes more)" if kind == "cpu" else ""
        raise ValueError(
            f"devices must be at most {len(found)}, the {kind} devices that there are{more}, got "
            f"{devices}"
        )


def takes_parts(recipe: Recipe) -> bool:
    """Whether the model's layers take a device's part of what they are trained on."""
    of_graphs = recipe.dataset is not HypergraphDataset
    return of_graphs or getattr(recipe.model.convolution, "takes_parts", False)


def _is_alike(one: Recipe, other: Recipe) -> bool:
    """Whether one takes parts of what the other is trained on."""
    return one.dataset is other.dataset and takes_parts(one)


def over_devices(graph: Any, inputs: Iterable[Any], devices: int, method: Any) -> tuple[Any, ...]:
    """A graph over the first devices, and its features and weights of edges, both perhaps None.

    Args:
        graph: The whole graph, on the host.
        inputs: Features, and perhaps weights of edges.
        devices: How many.
        method: See `jax_gnn.sharding.shard_graph`.
    """
    sharded = shard_graph(graph, Mesh(np.array(jax.devices()[:devices]), (AXIS,)), AXIS, method)
    x, *weights = inputs
    x = None if x is None else sharded.shard(x)
    return sharded, x, *map(sharded.shard_edges, weights)


def everywhere(graph: Any) -> NamedSharding | None:
    """Where arrays are that all devices of a sharded graph have; None of any other graph."""
    return NamedSharding(graph.mesh, PartitionSpec()) if isinstance(graph, ShardedGraph) else None
