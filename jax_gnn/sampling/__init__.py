"""Mini-batches at static shapes: sampled neighbourhoods as a bipartite graph for each layer."""

from jax_gnn.sampling._blocks import Blocks
from jax_gnn.sampling._neighbors import sample_neighbors

__all__ = ["Blocks", "sample_neighbors"]
