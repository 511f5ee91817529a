"""Graphs split over the devices of a mesh: parts, and the exchange of rows between them."""

from jax_gnn.sharding._cached_rows import CachedRows
from jax_gnn.sharding._edge_chunks import save_edge_parts
from jax_gnn.sharding._files import PartFiles, load_parts, save_parts
from jax_gnn.sharding._host_rows import HostRows
from jax_gnn.sharding._partition import PartitionCosts, partition, partition_costs
from jax_gnn.sharding._parts import HypergraphPart, Part, RelationalPart
from jax_gnn.sharding._samples import ShardedSeeds
from jax_gnn.sharding._sharded import ShardedGraph, apply_on_devices, shard_graph

__all__ = [
    "CachedRows",
    "HostRows",
    "HypergraphPart",
    "Part",
    "PartFiles",
    "PartitionCosts",
    "RelationalPart",
    "ShardedGraph",
    "ShardedSeeds",
    "apply_on_devices",
    "load_parts",
    "partition",
    "partition_costs",
    "save_edge_parts",
    "save_parts",
    "shard_graph",
]
