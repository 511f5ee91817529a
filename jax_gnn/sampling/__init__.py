"""Mini-batches at static shapes: sampled neighbourhoods, links, walks and subgraphs."""

from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._budget import hgt_subgraph
from jax_gnn.sampling._chunks import NodeChunks, node_chunks
from jax_gnn.sampling._links import link_blocks
from jax_gnn.sampling._loader import FeatureCache, SeedBatch, neighbor_batches
from jax_gnn.sampling._negatives import corrupted_edges, negative_edges
from jax_gnn.sampling._neighbors import block_capacity, sample_neighbors
from jax_gnn.sampling._prefetch import fetch_ahead
from jax_gnn.sampling._rows import fetch_rows
from jax_gnn.sampling._subgraphs import (
    Subgraph,
    cluster_batch,
    induced_subgraph,
    saint_norms,
    saint_subgraph,
)
from jax_gnn.sampling._time import EdgeTime
from jax_gnn.sampling._walks import random_walk
from jax_gnn.sampling._weights import EdgeProbability

__all__ = [
    "Blocks",
    "EdgeProbability",
    "EdgeTime",
    "FeatureCache",
    "NodeChunks",
    "SeedBatch",
    "Subgraph",
    "block_capacity",
    "cluster_batch",
    "corrupted_edges",
    "fetch_ahead",
    "fetch_rows",
    "hgt_subgraph",
    "induced_subgraph",
    "link_blocks",
    "negative_edges",
    "neighbor_batches",
    "node_chunks",
    "random_walk",
    "saint_norms",
    "saint_subgraph",
    "sample_neighbors",
]
