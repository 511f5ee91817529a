"""Trainings and predictions over several devices, each with a part of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.models import RECIPES, Recipe, Structure, command_name
from flax_layers.training.types import Method, PyTree
from jax_gnn.datasets import HypergraphDataset
from jax_gnn.extend import check_integer
from jax_gnn.sharding import ShardedGraph, shard_graph

AXIS = "nodes"


def check_devices(config: TrainConfig, devices: int, *, training: bool = True) -> None:
    """Check that there are enough devices, and that they can share a training or a prediction.

    Raises:
        TypeError: `devices` is no integer.
        ValueError: Fewer devices exist, or the model or a setting is for one device alone.
    """
    if check_integer("devices", devices) < 1:
        raise ValueError(f"devices must be a number from 1, got {devices}")
    if devices == 1:
        return
    recipe = RECIPES[config.model]
    obstacle = ""
    if recipe.structure is None:
        obstacle = "is trained on batches of graphs"
    elif not takes_parts(recipe):
        models = (
            name
            for name, candidate in RECIPES.items()
            if candidate.dataset is recipe.dataset and takes_parts(candidate)
        )
        obstacle = f"takes no part of a hypergraph, as {', '.join(models)} do"
    elif training and getattr(config, "batch_size", None):
        obstacle = "is trained on batches of nodes where batch_size is given"
    elif getattr(config, "edge_time", False):
        obstacle = "samples edges up to each node's time"
    if obstacle:
        raise ValueError(
            f"devices must be 1: {command_name(config.model)} {obstacle}; got {devices}"
        )
    # On CPUs JAX makes as many devices as an environment variable says.
    available = jax.devices()
    if devices > len(available):
        kind = available[0].platform
        advice = f" (JAX_NUM_CPU_DEVICES={devices} makes more)" if kind == "cpu" else ""
        raise ValueError(
            f"devices must be at most {len(available)}, the {kind} devices that there are{advice}, "
            f"got {devices}"
        )


def takes_parts(recipe: Recipe) -> bool:
    """Return whether the model's layers take one device's part of their structure."""
    # All layers of graphs take parts; a layer of hypergraphs says whether it does.
    if recipe.dataset is not HypergraphDataset:
        return True
    return getattr(getattr(recipe.model, "convolution", None), "takes_parts", False)


def shard_inputs(
    graph: Structure, inputs: Iterable[PyTree], devices: int, method: Method
) -> tuple[PyTree, ...]:
    """Split a graph of the host, its features, or None, and weights of edges over devices."""
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    sharded = shard_graph(graph, mesh, AXIS, cast(Any, method))
    x, *weights = inputs
    x = None if x is None else sharded.shard(x)
    return sharded, x, *map(sharded.shard_edges, weights)


def replicated(graph: PyTree) -> NamedSharding | None:
    """Return the sharding of arrays that all devices of a sharded graph hold, else None."""
    if not isinstance(graph, ShardedGraph):
        return None
    every_axis: Any = PartitionSpec
    return NamedSharding(graph.mesh, every_axis())


def replicate(tree: PyTree, graph: PyTree) -> PyTree:
    """Return arrays that all processes have, on all devices of a sharded graph; else unchanged."""
    sharding = replicated(graph)
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def place(array: Any) -> Any:
        if getattr(array, "sharding", None) == sharding:
            return array
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(array)
            return jax.random.wrap_key_data(place(jax.random.key_data(array)), impl=implementation)
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)

    return jax.tree.map(place, tree)
