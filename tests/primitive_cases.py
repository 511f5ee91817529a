"""Operands of every primitive, for the modules that test the machinery and the custom calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_suite import KERNELS, PLATFORM

from jax_gnn import Hypergraph
from jax_gnn._hypergraph_fused import Sorted, Stage
from jax_gnn._index import edge_split
from jax_gnn.segments import segment_views
from jax_gnn.views import View, Views

needs_kernels = pytest.mark.skipif(
    not KERNELS, reason=f"jax_gnn has no kernels for {PLATFORM} here"
)


def incidence_arrays(num_nodes: int, num_hyperedges: int, size: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    hypergraph = Hypergraph.from_incidence(
        rng.integers(0, num_nodes, size),
        rng.integers(0, num_hyperedges, size),
        num_nodes=num_nodes,
        num_hyperedges=num_hyperedges,
    )
    graph = hypergraph.graph
    arrays = (graph.indptr, graph.rows, graph.cols, graph.t_indptr, graph.t_rows, graph.t_cols)
    return [np.asarray(array) for array in arrays]


def stages(num_nodes: int, num_hyperedges: int, size: int) -> tuple[Stage, Stage]:
    """To the hyperedges and back."""
    arrays = incidence_arrays(num_nodes, num_hyperedges, size)
    sides = arrays[:3], arrays[3:]
    stage = Stage(*(Sorted(*side, edge_split(side[0], side[2])) for side in sides))
    return stage, stage.swapped


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


VIEWS = Views(  # four edges of five rows and three columns
    View(ids(0, 0, 1, 4), ids(2, 0, 0, -1), None, 5),
    View(ids(-1, 0, 0, 2), ids(4, 0, 1, 0), ids(3, 1, 2, 0), 3),
)
KEYS = (floats(5, 2), floats(3, 2))  # of rows, of columns

# Operands for every primitive. A new primitive gets a line here.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "hypergraph_aggregate": (
        *(floats(5, 2), floats(5), floats(3), floats(5), floats(5)),
        *stages(5, 3, 8),
    ),
    "segment_reduce": (floats(3, 2), floats(4, 1), VIEWS),
    "segment_reduce_jvp": (floats(3, 2), floats(4, 1), floats(3, 2), floats(4, 1), VIEWS),
    "segment_reduce_vjp": (floats(3, 2), floats(4, 1), floats(5, 2), VIEWS),
    "segment_select": (*KEYS, floats(3, 2), floats(4, 1), floats(4, 1), VIEWS),
    "sddmm": (floats(5, 2), floats(3, 2), VIEWS),
    "sddmm_select": (floats(5, 2), floats(3, 2), *KEYS, floats(4, 1), VIEWS),
    "segment_softmax": (floats(4, 2), segment_views(ids(0, 0, 1, 4), 5, True)),
    "segment_softmax_tangent": (
        *(floats(4, 2), floats(4, 2)),
        segment_views(ids(0, 0, 1, 4), 5, True),
    ),
    "segment_order": (ids(3, -1, 0, 3),),
    "segment_matmul": (floats(5, 2), floats(3, 2, 4), floats(3, 4), ids(2, 0, 2), ids(0)),
    "segment_outer": (floats(5, 2), floats(5, 4), ids(2, 0, 2), ids(0)),
}
