"""Trainings and predictions over several devices, each with a part of the graph or the batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_layers.training.config.optimizer import OptimizerConfig
from flax_layers.training.models import RECIPES, Recipe, Structure, command_name
from flax_layers.training.types import Method, PyTree
from jax_gnn.datasets import HypergraphDataset
from jax_gnn.extend import check_integer
from jax_gnn.sharding import ShardedGraph, shard_graph

AXIS = "nodes"
REPLICATED: Any = PartitionSpec()


def check_devices(config: OptimizerConfig, devices: int) -> None:
    """Check that there are enough devices, and that they can share a training or a prediction.

    Raises:
        TypeError: `devices` is no integer.
        ValueError: Fewer devices exist, or the model or a setting is for one device alone.
    """
    if check_integer("devices", devices) < 1:
        raise ValueError(f"devices must be a number from 1, got {devices}")
    if devices == 1:
        return
    recipe = RECIPES.get(config.model)  # none for links, all of whose encoders take parts
    obstacle = ""
    if recipe is not None and not takes_parts(recipe):
        models = (
            name
            for name, candidate in RECIPES.items()
            if candidate.dataset is recipe.dataset and takes_parts(candidate)
        )
        obstacle = f"takes no part of a hypergraph, as {', '.join(models)} do"
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
    sharded = shard_graph(graph, mesh_of(devices), AXIS, cast(Any, method))
    x, *weights = inputs
    x = None if x is None else sharded.shard(x)
    return sharded, x, *map(sharded.shard_edges, weights)


def mesh_of(devices: int) -> Mesh:
    """Return the mesh of the first devices, with the axis `AXIS`."""
    return Mesh(np.array(jax.devices()[:devices]), (AXIS,))


def merge_devices(rows: Array) -> Array:
    """Merge the axes of devices and of each device's rows."""
    return rows.reshape(-1, *rows.shape[2:])


def deal_groups(tree: PyTree, mesh: Mesh) -> PyTree:
    """Deal groups of graphs, the first axis of all arrays, out to the devices of a mesh.

    The arrays become ``(groups / devices, devices, …)``, split over the second axis.
    """
    spec: Any = PartitionSpec
    sharding, count = NamedSharding(mesh, spec(None, AXIS)), mesh.size

    def deal(array: Array) -> Array:
        return array.reshape(-1, count, *array.shape[1:])

    return place(jax.tree.map(deal, tree), sharding)


def replicated(data: PyTree) -> NamedSharding | None:
    """Return the sharding of arrays that all devices of the data's mesh hold, None without mesh."""
    shardings = (getattr(array, "sharding", None) for array in jax.tree.leaves(data))
    meshes = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    mesh = next(meshes, None)
    return None if mesh is None else NamedSharding(mesh, REPLICATED)


def replicate(tree: PyTree, data: PyTree) -> PyTree:
    """Return arrays that all processes have, on all devices of the data's mesh; else unchanged."""
    return place(tree, replicated(data))


def place(tree: PyTree, sharding: NamedSharding | None) -> PyTree:
    """Put arrays that all processes have on the devices of a sharding, or of None, the default.

    Each process puts the pieces of its own devices there, and compares nothing with the others.
    """
    if sharding is None or sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)

    def put(array: Any) -> Any:
        if getattr(array, "sharding", None) == sharding:
            return array
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(array)
            return jax.random.wrap_key_data(put(jax.random.key_data(array)), impl=implementation)
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)

    return jax.tree.map(put, tree)


class SplitEncoder(nnx.Module):
    """Encoder of a split graph whose results are those of the whole graph, on all devices.

    Its calls take a `ShardedGraph`, features of nodes as of its `shard` or of the whole graph,
    perhaps embeddings of relations, and perhaps weights of the whole graph's edges.
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self.takes_relations = getattr(encoder, "takes_relations", False)

    def __call__(
        self,
        graph: ShardedGraph,
        x: Array,
        *relations: Array,
        edge_weight: Array | None = None,
        **dropout: Any,
    ) -> Any:
        """Return the rows of all nodes, and perhaps of all relations."""
        rows = x if x.shape[:2] == graph.node_ids.shape else graph.shard(x)
        copies = [jnp.broadcast_to(z, (graph.num_parts, *z.shape)) for z in relations]
        weights = () if edge_weight is None else (graph.shard_edges(edge_weight),)
        results = graph.apply(self.encoder, rows, *copies, *weights, **dropout)
        nodes, *copies = results if self.takes_relations else (results,)
        # One all-gather, then each device brings the rows into the order of the graph.
        whole = NamedSharding(graph.mesh, REPLICATED)
        places = jax.lax.with_sharding_constraint(graph.places.ravel(), whole)
        nodes = jax.lax.with_sharding_constraint(merge_devices(nodes), whole)
        nodes = nodes[places[: graph.num_nodes]]
        return (nodes, copies[0][0]) if self.takes_relations else nodes


def deal_rows(graph: Any, array: Array, axis: int = 0) -> Array:
    """Split an axis over the devices of a split graph; return the array as it is for others.

    It is a constraint on what each device computes, and not on the length of the axis.
    """
    if not isinstance(graph, ShardedGraph):
        return array
    spec: Any = PartitionSpec
    sharding = NamedSharding(graph.mesh, spec(*[None] * axis, AXIS))
    return jax.lax.with_sharding_constraint(array, sharding)


def gather(array: Array) -> Array:
    """Return an array whose rows this process has all, whichever processes have them."""
    if array.is_fully_addressable:
        return array
    return jnp.asarray(process_allgather(array, tiled=True))
