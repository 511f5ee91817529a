"""Types that annotations of the training share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jax import Array

from flax_layers.training.models import Structure
from jax_gnn import Batch
from jax_gnn.sampling import Blocks
from jax_gnn.sharding import ShardedGraph

PyTree: TypeAlias = Any
"""A nested container of arrays, see `jax.tree`."""
AnyStructure = Structure | Batch[Any] | Blocks | ShardedGraph
"""A structure that a model is called with: a graph, a batch, or a sample or part of a graph."""
ArrayByType: TypeAlias = "Array | np.ndarray | OrderedDict[str, Array | np.ndarray | None] | None"
"""Features of nodes: one array, an array for each type of nodes, or none."""
Method: TypeAlias = "str | np.ndarray"
"""Assignment of nodes to devices, see `jax_gnn.sharding.shard_graph`."""
Model: TypeAlias = Callable[..., Array]
"""A model of `flax_layers`, or another `flax.nnx.Module` that is called alike."""
