"""Operands of every primitive, for the modules that test the machinery and the custom calls."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_suite import KERNELS, PLATFORM

from jax_gnn import Hypergraph, RelationalGraph
from jax_gnn._core.csr import Csr, SparseMatrix, edge_split, permutation, segments
from jax_gnn._core.op import Op
from jax_gnn._ops.attention import leaky
from jax_gnn._ops.attention.primitive import Residuals
from jax_gnn._ops.attention.scores import (
    AdditiveScores,
    DotScores,
    EntryScores,
    GATv2Scores,
    Scores,
    Tangents,
    TypedScores,
)
from jax_gnn._ops.edge_region.cuda import region_walks
from jax_gnn._ops.edge_region.primitive import LinearizationPoint
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.relational_aggregate.xla import PairFactors
from jax_gnn._ops.relational_attention import primitive as typed

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


def stages(num_nodes: int, num_hyperedges: int, size: int) -> tuple[SparseMatrix, SparseMatrix]:
    """To the hyperedges and back."""
    indptr, *arrays = incidence_arrays(num_nodes, num_hyperedges, size)
    sides = (indptr, *arrays[:2]), arrays[2:]
    matrix = SparseMatrix(
        *(
            Csr(rows, cols, None, start, edge_split(start, cols), num_rows=len(start) - 1)
            for start, rows, cols in sides
        )
    )
    return matrix, matrix.T


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


# The matrices have padding, an empty row and a row of two entries.
MATRIX = SparseMatrix(  # four edges of five rows and three columns
    Csr(ids(0, 0, 1, 4), ids(2, 0, 0, -1), num_rows=5),
    Csr(ids(-1, 0, 0, 2), ids(4, 0, 1, 0), ids(3, 1, 2, 0), num_rows=3),
)
SQUARE = SparseMatrix(  # four edges of five rows and five columns
    Csr(ids(0, 0, 1, 4), ids(2, 0, 0, -1), num_rows=5),
    Csr(ids(-1, 0, 0, 2), ids(4, 0, 1, 0), ids(3, 1, 2, 0), num_rows=5),
)
KEYS = (floats(5, 2), floats(3, 2))  # of rows, of columns
ATTENDED = (floats(5, 4), floats(5, 1, 2))  # results of attention

# Scores of one head of four features.
OF_KIND: dict[str, Scores] = {
    "given": EntryScores(floats(4, 1)),
    "ends": AdditiveScores(floats(5, 1), floats(3, 1)),
    "dots": DotScores(floats(5, 4), floats(3, 4), floats(1, 1)),
    "dots of values": DotScores(floats(5, 4), None, floats(1, 1)),
    "leaky": GATv2Scores(floats(5, 4), floats(3, 4), floats(1, 4)),
    "leaky of values": GATv2Scores(floats(5, 4), None, floats(1, 4)),
    "typed": TypedScores(floats(2, 4), floats(4, 1), None, None, ids(0, 1, 1, 0), ids(1, 0, 0)),
    "typed of rows": TypedScores(
        floats(2, 4), floats(4, 1), floats(5, 4), floats(2, 1, 4), ids(0, 1, 1, 0), ids(1, 0, 0)
    ),
}

GATHER = SparseMatrix(  # five rows of four
    Csr(None, ids(3, 0, 3, -1, 1), num_rows=5),
    Csr(ids(0, 1, 3, 3, 4), ids(1, 4, 0, 2, 3), num_rows=4),
)

# Five nodes at either end, with four pairs of sources and of destinations.
TYPED = RelationalGraph.from_triples(
    ids(0, 1, 1, 2), ids(0, 1, 0, 1), ids(2, 4, 0, 0), num_nodes=5, num_relations=2
).matrix(weighted=True)


def region(dtype, *, nonlinear: bool) -> Region:
    # A region keeps the dtypes that its function is traced with.
    with jax.enable_x64(dtype == np.float64):
        return Region.of(
            lambda x, y, w: [jnp.tanh(x * y) * w if nonlinear else x + w, x - 3 * y],
            [jax.ShapeDtypeStruct((2,), dtype)] * 3,
            ("row", "col", "edge"),
            (("row", "sum"), ("col", "sum")),
        )


REGION = region(np.float32, nonlinear=False)
(WALK,) = region_walks(
    Region.of(
        lambda x, y: [x * y],
        [jax.ShapeDtypeStruct((2,), np.float32)] * 2,
        ("row", "col"),
        (("row", "sum"),),
    ),
    MATRIX,
)

# Operands for every primitive. A new primitive gets a line here.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "hypergraph_aggregate": (
        floats(5, 2),
        floats(5),
        floats(3),
        floats(5),
        floats(5),
        *stages(5, 3, 8),
        floats(5, 2),
        floats(2),
    ),
    "segment_reduce": (
        floats(5, 2),
        floats(4, 1),
        SQUARE,
        floats(5),
        floats(1),
        floats(5, 2),
        floats(2),
    ),
    "segment_reduce_vjp": (floats(3, 2), floats(4, 1), floats(5, 2), MATRIX),
    "segment_select": (*KEYS, floats(3, 2), floats(4, 1), floats(4, 1), MATRIX),
    "sddmm": (floats(5, 2), floats(3, 2), MATRIX),
    "sddmm_select": (floats(5, 2), floats(3, 2), *KEYS, floats(4, 1), MATRIX),
    "segment_softmax": (floats(4, 2), segments(ids(0, 0, 1, 4), 5)),
    "segment_softmax_tangent": (floats(4, 2), floats(4, 2), segments(ids(0, 0, 1, 4), 5)),
    "attention": (floats(3, 4), OF_KIND["leaky"], floats(4, 1), MATRIX),
    "attention_vjp": (
        floats(3, 4),
        OF_KIND["ends"],
        floats(4, 1),
        *ATTENDED,
        floats(0, 1),
        floats(5, 4),
        floats(5, 1),
        MATRIX,
    ),
    "leaky_scores": (*KEYS, floats(1, 2), MATRIX),
    "leaky_sum": (*KEYS, floats(4, 1), floats(1, 2), MATRIX),
    "edge_region": ((floats(5, 2), floats(3, 2), floats(4, 2)), MATRIX),
    "edge_walk": ((floats(5, 2), floats(3, 2)), MATRIX.by_row),
    "gather_rows": (floats(4, 2), ids(3, 0, -1)),
    "segment_scatter": (floats(4, 2), ids(2, 0, 2, -1)),
    "segment_order": (ids(3, -1, 0, 3),),
    "relation_pairs": (ids(0, 0, 2, -1), ids(1, 1, 0, -1)),
    "sample_uniform": (ids(3, 0, 2), jnp.array([1, 2], jnp.uint32)),
    "sample_weighted": (
        jnp.array([0, 1, 4, 4, 6], jnp.uint32),
        ids(0, 2),
        ids(2, 2),
        jnp.array([1, 2], jnp.uint32),
    ),
    "sample_block": (
        ids(2, 0),
        ids(0, 2),
        jnp.array([[0, 1], [1, 0]], jnp.int32),
        ids(2, 1),
        ids(1, 3, 0, 2, 2),
        ids(0, 1),
    ),
    "sample_distinct": (
        ids(2, 0),
        ids(0, 2, 3),
        ids(0, 0, 1, -1),
        ids(0, 1, 4, -1),
        ids(0, 1, 2, 2, 3, 4).astype(np.uint32),
        ids(1, 2, 0, 4, 3, 5),
    ),
    "segment_matmul": (
        floats(4, 2),
        floats(3, 2, 4),
        floats(3, 4),
        floats(5, 4),
        floats(5),
        ids(2, 0, 2),
        ids(0),
        GATHER,
        permutation(ids(1, 0, 3, -1, 4), ids(1, 0, -1, 2, 4)),
    ),
    "segment_outer": (
        floats(4, 2),
        floats(5, 4),
        floats(5),
        ids(2, 0, 2),
        ids(0),
        GATHER,
        permutation(ids(1, 0, 3, -1, 4), ids(1, 0, -1, 2, 4)),
    ),
}

# Static attributes of the primitives that have any.
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "hypergraph_aggregate": {"relu": False},
    "segment_reduce": {"reduce": "sum", "heads": 1},
    "segment_select": {"weight_on_row": False, "heads": 1},
    "sddmm": {"heads": 1},
    "sddmm_select": {"weight_on_row": False, "heads": 1},
    **{name: {"heads": 1, "slope": 0.2} for name in ("leaky_scores", "leaky_sum")},
    "attention": {"heads": 1, "slope": 0.2, "keeps_raw": False},
    "attention_vjp": {"heads": 1, "slope": 0.2, "with_row": False},
    "edge_region": {"region": REGION},
    "edge_walk": {"program": WALK.program, "num_cols": 3},
    "segment_scatter": {"num_rows": 3, "reduce": "sum"},
    "segment_order": {"num_segments": 4},
    "relation_pairs": {"num_relations": 2, "num_pairs": 3},
    "sample_uniform": {"fanout": 2, "stream": 1, "replace": False},
    "sample_weighted": {"fanout": 2, "stream": 1, "replace": False},
    "sample_block": {
        **{"num_nodes": 4, "num_edges": 4, "num_src": 5},
        **{"is_tree": False, "ascending": False},
    },
    "sample_distinct": {"num_nodes": 4, "num_src": 5},
    "segment_matmul": {
        "transposed": False,
        "precision": jax.lax.Precision.DEFAULT,
        "activation": None,
        "dtype": np.dtype(np.float32),
    },
    "segment_outer": {
        "num_groups": 3,
        "precision": jax.lax.Precision.DEFAULT,
        "deterministic": True,
        "dtype": np.dtype(np.float32),
    },
}


def bind(op: Op, implementation: str | None = None) -> Any:
    """The op as a function of its operands."""
    return functools.partial(op, **ATTRIBUTES.get(op.name, {}), implementation=implementation)


OF_HEADS: dict[str, Any] = {"heads": 1, "slope": 0.2}
OF_PRODUCTS: dict[str, Any] = {"precision": jax.lax.Precision.HIGHEST}

# Residuals, moving operands and attributes of each `Linear`, by its name and a kind.
LINEAR_SAMPLES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "segment_reduce_jvp": (
        (floats(3, 2), floats(4, 1), MATRIX),
        (floats(3, 2), floats(4, 1)),
        {"reduce": "mean", "heads": 1},
    ),
    "edge_region_jvp": (
        LinearizationPoint((floats(5, 2), floats(3, 2), floats(4, 2)), (), (), MATRIX),
        (floats(5, 2), floats(3, 2), floats(4, 2)),
        {"region": region(np.float64, nonlinear=True)},
    ),
    "leaky_dots": (leaky.Keys(*KEYS, None, MATRIX), KEYS, OF_HEADS),
    "summed_products_jvp": (
        (PairFactors(floats(4, 4), floats(2, 4, 2)), TYPED.pair_dst),
        PairFactors(floats(4, 4), floats(2, 4, 2)),
        {"transposed": False, **OF_PRODUCTS},
    ),
    "typed_values": (
        typed.Projections(floats(2, 2, 4), floats(2, 1, 2), TYPED),
        (floats(5, 2),),
        OF_PRODUCTS,
    ),
    **{
        f"attention_jvp, {kind}": (
            Residuals(
                floats(3, 4), scores, floats(4, 1), *ATTENDED, floats(4, 1), None, None, MATRIX
            ),
            Tangents(
                floats(3, 4),
                **({"score": floats(4, 1)} if scores.keys == 0 else {})
                | {name: getattr(scores, field) for name, field in scores.tangent_fields.items()},
            ),
            OF_HEADS,
        )
        for kind, scores in OF_KIND.items()
    },
}
