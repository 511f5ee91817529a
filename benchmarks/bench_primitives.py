"""Each primitive of the library by its name, beside plain XLA of the same operands.

A mode is a primitive: ``python -m benchmarks primitives --modes sddmm_select``. Operands are what
the public functions pass for a plain graph: its matrix, features and weights of edges; eight
relations in turn, destinations as groups and hyperedges, and 1,024 seeds of which ten edges each
are drawn. Results are compared with those of plain XLA. The floor counts each array of a call once
(`Op.cost`); samples can beat it, as they read few of the graph's edges. Where a platform has no
kernel of a primitive, both candidates are the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.peers import edge_weights, jax_gnn_graph
from benchmarks.problems import Expected, features, numpy_dtype, once
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, plain_graphs

PLAIN = "plain XLA"
GRAPHS = ("flickr-twin", "ogbn-arxiv-twin")
RELATIONS, SEEDS, FANOUT = 8, 1024, 10

PRIMITIVES = (
    "attention",
    "attention_vjp",
    "edge_region",
    "edge_walk",
    "gather_rows",
    "hypergraph_aggregate",
    "leaky_scores",
    "leaky_sum",
    "relation_pairs",
    "sample_block",
    "sample_distinct",
    "sample_uniform",
    "sample_weighted",
    "sddmm",
    "sddmm_select",
    "segment_matmul",
    "segment_order",
    "segment_outer",
    "segment_reduce",
    "segment_reduce_vjp",
    "segment_scatter",
    "segment_select",
    "segment_softmax",
    "segment_softmax_tangent",
)


class Call(NamedTuple):
    """Operands and attributes of a primitive."""

    operands: tuple[Any, ...]
    attributes: Mapping[str, Any] = MappingProxyType({})


def workloads(data: Path | None) -> dict[str, Workload]:
    """Plain graphs; two twins unless others are named."""
    graphs = plain_graphs(data).values()
    return {w.name: replace(w, on_request=w.name not in GRAPHS) for w in graphs}


@once
def calls(graph: PlainGraph, width: int, dtype: str) -> dict[str, Call]:
    """The call of each primitive, by name."""
    import jax.numpy as jnp

    from jax_gnn._core.arrays import accumulator_dtype

    n, acc = graph.num_nodes, accumulator_dtype(jnp.dtype(dtype))
    matrix = jax_gnn_graph(graph).matrix(weighted=True)
    operands = Operands(
        graph=graph,
        matrix=matrix,
        rows=jnp.asarray(features("rows", n, width, dtype).whole()),
        cols=jnp.asarray(features("cols", n, width, dtype).whole()),
        weights=jnp.asarray(edge_weights(graph, dtype), acc)[:, None],
        vector=jnp.ones((1, width), acc),
        acc=np.dtype(acc),
    )
    groups = (_reductions, _attention, _regions, _products, _sampling)
    return {name: call for group in groups for name, call in group(operands).items()}


class Operands(NamedTuple):
    """What the calls of a graph share.

    Attributes:
        graph: The graph in numpy.
        matrix: Its matrix, by destination.
        rows: A row for each destination.
        cols: A row for each source.
        weights: ``(num_edges, 1)``.
        vector: Attention's, ``(1, width)``.
        acc: The accumulator's dtype.
    """

    graph: PlainGraph
    matrix: Any
    rows: Any
    cols: Any
    weights: Any
    vector: Any
    acc: np.dtype


def _reductions(o: Operands) -> dict[str, Call]:
    import jax.numpy as jnp

    from jax_gnn import Hypergraph
    from jax_gnn._core.csr import segments

    ids, n = jnp.asarray(o.graph.rows), o.graph.num_nodes
    scores, of_edges = o.weights, segments(ids, n)
    selected = {"weight_on_row": False, "heads": 1}
    hypergraph = Hypergraph.from_incidence(
        o.graph.cols, o.graph.rows, num_nodes=n, num_hyperedges=n
    )
    stage = hypergraph.graph.matrix(slots=True)
    ones = jnp.ones(1, o.acc)
    return {
        "segment_reduce": Call((o.cols, o.weights, o.matrix), {"reduce": "sum", "heads": 1}),
        "segment_reduce_vjp": Call((o.cols, o.weights, o.rows, o.matrix)),
        "segment_select": Call((o.rows, o.cols, o.cols, None, o.weights, o.matrix), selected),
        "sddmm": Call((o.rows, o.cols, o.matrix), {"heads": 1}),
        "sddmm_select": Call((o.rows, o.cols, o.rows, o.cols, None, o.matrix), selected),
        "segment_scatter": Call((o.cols[o.graph.cols], ids), {"num_rows": n, "reduce": "sum"}),
        "gather_rows": Call((o.cols, jnp.asarray(o.graph.cols))),
        "segment_softmax": Call((scores, of_edges)),
        "segment_softmax_tangent": Call((scores, scores, of_edges)),
        "segment_order": Call((jnp.asarray(o.graph.cols),), {"num_segments": n}),
        "hypergraph_aggregate": Call(
            (o.cols, ones, ones, ones, None, stage, stage.T, None, None), {"relu": False}
        ),
    }


def _attention(o: Operands) -> dict[str, Call]:
    import jax.numpy as jnp

    from jax_gnn._ops.attention.primitive import attend
    from jax_gnn._ops.attention.scores import AdditiveScores

    options: dict[str, Any] = {"heads": 1, "slope": 0.2}
    of_rows, of_cols = (x[:, :1].astype(o.acc) for x in (o.rows, o.cols))
    attended = o.cols, AdditiveScores(of_rows, of_cols), None
    results = attend(*attended, o.matrix, **options)
    raw = jnp.zeros((0, 1), o.acc)
    keys = o.rows, o.cols
    return {
        "attention": Call((*attended, o.matrix), {**options, "keeps_raw": False}),
        "attention_vjp": Call(
            (*attended, *results, raw, o.rows, None, o.matrix), {**options, "with_row": False}
        ),
        "leaky_scores": Call((*keys, o.vector, o.matrix), options),
        "leaky_sum": Call((*keys, o.weights, o.vector, o.matrix), options),
    }


def _regions(o: Operands) -> dict[str, Call]:
    """A gate and its products; a walk is the region's kernel on a GPU."""
    import jax
    import jax.numpy as jnp

    from jax_gnn._core.csr import Csr
    from jax_gnn._ops.edge_region import cuda
    from jax_gnn._ops.edge_region.region import Region

    row = jax.ShapeDtypeStruct(o.cols.shape[1:], o.cols.dtype)
    region = Region.of(
        lambda x, y: [jnp.tanh(x * y) * y], [row, row], ("row", "col"), (("row", "sum"),)
    )
    (walk,) = cuda.region_walks(region, o.matrix)
    by_row, by_col = o.matrix
    csr = Csr(by_row.rows, by_row.cols, num_rows=by_row.num_rows)
    arrays = o.rows, o.cols
    return {
        "edge_region": Call((arrays, o.matrix), {"region": region}),
        "edge_walk": Call(
            (tuple(arrays[i] for i in walk.used), csr),
            {"program": walk.program, "num_cols": by_col.num_rows},
        ),
    }


def _products(o: Operands) -> dict[str, Call]:
    import jax
    import jax.numpy as jnp

    from jax_gnn import RelationalGraph

    graph, width, dtype = o.graph, o.cols.shape[1], o.cols.dtype
    relations = np.arange(graph.num_edges, dtype=np.int32) % RELATIONS
    typed = RelationalGraph.from_triples(
        graph.cols, relations, graph.rows, num_nodes=graph.num_nodes, num_relations=RELATIONS
    )
    kernels = jnp.asarray(features("kernels", RELATIONS * width, width, dtype.name).whole())
    kernels = kernels.reshape(RELATIONS, width, width) / width
    sizes = np.bincount(np.arange(graph.num_nodes) % RELATIONS, minlength=RELATIONS)
    of_groups = jnp.asarray(sizes, jnp.int32), jnp.zeros(1, jnp.int32)
    precision: dict[str, Any] = {"precision": jax.lax.Precision.HIGHEST}
    return {
        "relation_pairs": Call(
            (typed.nodes.rows, typed.edge_types),
            {"num_relations": RELATIONS, "num_pairs": typed.num_dst_pairs},
        ),
        "segment_matmul": Call(
            (o.cols, kernels, None, None, None, *of_groups),
            {"transposed": False, "activation": None, "dtype": np.dtype(dtype), **precision},
        ),
        "segment_outer": Call(
            (o.cols, o.rows, None, *of_groups),
            {
                "num_groups": RELATIONS,
                "deterministic": True,
                "dtype": np.dtype(dtype),
                **precision,
            },
        ),
    }


def _sampling(o: Operands) -> dict[str, Call]:
    import jax.numpy as jnp

    from jax_gnn._ops.sample_block import xla
    from jax_gnn.sampling import EdgeProbability

    n = o.graph.num_nodes
    nodes, cols = jnp.arange(min(SEEDS, n), dtype=jnp.int32), jnp.asarray(o.graph.cols)
    starts = jnp.asarray(o.graph.indptr, jnp.int32)[nodes]
    degrees = jnp.diff(jnp.asarray(o.graph.indptr, jnp.int32))[nodes]
    key = jnp.array([0, 1], jnp.uint32)
    draw: dict[str, Any] = {"fanout": FANOUT, "stream": 0, "replace": False}
    weights = np.abs(np.asarray(o.weights).ravel())
    sums = EdgeProbability.from_weights(jax_gnn_graph(o.graph), weights).sums
    offsets, counts = xla.uniform(degrees, key, **draw)
    num_edges = len(nodes) * FANOUT
    sizes = {"num_nodes": n, "num_src": len(nodes) + num_edges}
    drawn = xla.compact_draws(starts, offsets, counts, cols, n, num_edges, ascending=False)
    return {
        "sample_uniform": Call((degrees, key), draw),
        "sample_weighted": Call((sums, starts, degrees, key), draw),
        "sample_block": Call(
            (nodes, starts, offsets, counts, cols),
            {**sizes, "num_edges": num_edges, "is_tree": False, "ascending": False},
        ),
        "sample_distinct": Call(tuple(xla.sort_sources(nodes, drawn, n)), sizes),
    }


def _function(case: Case, call: Call, implementation: str | None) -> Callable[..., tuple[Any, ...]]:
    import jax

    from jax_gnn._core.op import OPS

    def function(*operands: Any) -> tuple[Any, ...]:
        results = OPS[case.mode](*operands, implementation=implementation, **call.attributes)
        if case.mode == "attention":  # only the sum of a row's two statistics is determined
            return (results[0],)
        return tuple(jax.tree.leaves(results))

    return function


def problem(graph: PlainGraph, case: Case) -> Problem:
    """The results of plain XLA."""
    import jax

    from jax_gnn._core.op import OPS

    call = calls(graph, case.width, case.dtype)[case.mode]
    results = jax.jit(_function(case, call, "xla"))(*call.operands)
    expected = tuple(Expected.whole(np.asarray(x).astype(np.float64)) for x in results)
    platform: Any = "cpu" if jax.default_backend() == "cpu" else "cuda"
    cost = OPS[case.mode].cost(*call.operands, platform=platform, **call.attributes)
    dtype = numpy_dtype(case.dtype)
    written = sum(x.size for x in expected) * dtype.itemsize
    return Problem({}, expected, dtype, flops=cost.flops, read=max(cost.bytes - written, 0))


def candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The primitive as the library chooses its kernel, and in plain XLA."""
    call = calls(graph, case.width, case.dtype)[case.mode]
    for name, implementation in ((OURS, None), (PLAIN, "xla")):
        yield Candidate(name, _function(case, call, implementation), call.operands)


OP = Op(
    name="primitives",
    title="Each primitive beside plain XLA",
    workloads=workloads,
    modes=dict.fromkeys(PRIMITIVES, ()),
    widths={"cpu": (32,), "gpu": (64,)},
    problem=problem,
    families=(Family(OURS, "jax", ("jax_gnn",), candidates),),
    baseline=PLAIN,
)
