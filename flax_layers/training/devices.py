"""Trainings and predictions over several devices, each with a part of the graph or the batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.models import RECIPES, Recipe, Structure, command_name
from flax_layers.training.processes import processes_of
from flax_layers.training.types import Method, PyTree
from jax_gnn.datasets import HypergraphDataset
from jax_gnn.extend import check_integer
from jax_gnn.sharding import shard_graph

AXIS = "nodes"
REPLICATED: Any = PartitionSpec()


def check_devices(config: TrainConfig, devices: int) -> None:
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
    if not takes_parts(recipe):
        models = (
            name
            for name, candidate in RECIPES.items()
            if candidate.dataset is recipe.dataset and takes_parts(candidate)
        )
        obstacle = f"takes no part of a hypergraph, as {', '.join(models)} do"
    elif getattr(config, "edge_time", False):
        obstacle = "samples edges up to each node's time"
    elif (recipe.structure is None or getattr(config, "batch_size", None)) and (
        len(processes_of(devices)) > 1
    ):
        obstacle = "takes batches on devices of one process"
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
    sharded = shard_graph(graph, mesh_of(devices), AXIS, cast(Any, method))
    x, *weights = inputs
    x = None if x is None else sharded.shard(x)
    return sharded, x, *map(sharded.shard_edges, weights)


def mesh_of(devices: int) -> Mesh:
    """Return the mesh of the first devices, with the axis `AXIS`."""
    return Mesh(np.array(jax.devices()[:devices]), (AXIS,))


def merge_devices(rows: Array) -> Array:
    """Merge the axes of devices and of each device's rows."""
    merged: Array = rows.reshape(-1, *rows.shape[2:])
    return merged


def deal_groups(tree: PyTree, mesh: Mesh) -> PyTree:
    """Deal groups of graphs, the first axis of all arrays, out to the devices of a mesh.

    The arrays become ``(groups / devices, devices, …)``, split over the second axis.
    """
    spec: Any = PartitionSpec
    sharding, count = NamedSharding(mesh, spec(None, AXIS)), mesh.size

    def deal(array: Array) -> PyTree:
        return jax.device_put(array.reshape(-1, count, *array.shape[1:]), sharding)

    return jax.tree.map(deal, tree)


def replicated(data: PyTree) -> NamedSharding | None:
    """Return the sharding of arrays that all devices of the data's mesh hold, None without mesh."""
    shardings = (getattr(array, "sharding", None) for array in jax.tree.leaves(data))
    meshes = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    mesh = next(meshes, None)
    return None if mesh is None else NamedSharding(mesh, REPLICATED)


def replicate(tree: PyTree, data: PyTree) -> PyTree:
    """Return arrays that all processes have, on all devices of the data's mesh; else unchanged."""
    sharding = replicated(data)
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
