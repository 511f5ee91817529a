"""Graphs split over the devices of a mesh: parts, and the exchange of rows between them."""

from jax_gnn.sharding._exchange import Exchange
from jax_gnn.sharding._partition import Method, partition
from jax_gnn.sharding._sharded import Part, ShardedGraph, shard_graph

__all__ = ["Exchange", "Method", "Part", "ShardedGraph", "partition", "shard_graph"]
