"""Calls of ops and containers that work, and how each of their arguments can be wrong.

`test_arguments.py` spoils every argument in every way; the fuzzer, under all modes and transforms
of JAX, some at random. A new function, or a new argument, gets its line here.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

import jax_gnn
import jax_gnn.sampling
import jax_gnn.sharding
from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, SegmentIndex, TypePlan


def ones(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


# --- How an argument can be wrong ----------------------------------------------------------------

Bad = tuple[str, Callable[[Any], Any]]  # what is wrong, and a wrong argument made of a right one


def _without(kinds: list[Bad], *names: str) -> list[Bad]:
    return [kind for kind in kinds if kind[0] not in names]


NONE: list[Bad] = [("None", lambda x: None)]
OBJECTS: list[Bad] = [  # which no argument takes, but for the exceptions in `_TAKEN`
    ("a string", lambda x: "text"),
    ("a dict", lambda x: {"a": 1}),
    ("a set", lambda x: {1}),
    ("an object", lambda x: object()),
    ("a ragged list", lambda x: [[1, 2], [3]]),
    ("strings", lambda x: np.array(["a", "b"])),
    ("objects", lambda x: np.array([None, {}, "a"], object)),
    ("dates", lambda x: np.zeros(2, "datetime64[s]")),
    ("a complex number", lambda x: np.array([1j])),
]
COMPLEX: list[Bad] = [("complex numbers", lambda x: np.asarray(x).astype(np.complex64))]
TRUTH: list[Bad] = [("truth values", lambda x: np.asarray(x) > 0)]
SHAPES: list[Bad] = [
    ("a row more", lambda x: np.concatenate([x, x[:1]])),
    ("a row less", lambda x: x[:-1]),
]
SCALAR: list[Bad] = [("a scalar", lambda x: 1.5)]
DATA = [*SCALAR, *SHAPES]
FLOATS_ANY_ROWS: list[Bad] = [
    *SCALAR,
    *COMPLEX,
    *TRUTH,
    ("integers", lambda x: x.astype(np.int32)),
    # A dtype that segmented products take, and sums do not.
    ("float8", lambda x: jnp.asarray(x, jnp.float8_e4m3fn)),
]
FLOATS = [*FLOATS_ANY_ROWS, *SHAPES]
REAL_ANY_ROWS = _without(FLOATS_ANY_ROWS, "integers", "float8")
REALS = [*REAL_ANY_ROWS, *SHAPES]
IDS_ANY_ROWS: list[Bad] = [
    *TRUTH,
    *COMPLEX,
    ("a scalar", lambda x: 1),
    ("floats", lambda x: x.astype(np.float32)),
    ("a matrix", lambda x: x[:, None]),
]
IDS = [*IDS_ANY_ROWS, *SHAPES]
# Ids on the host are checked by value, traced ones are padding.
HOST_IDS = [*IDS, ("-1", lambda x: x * 0 - 1), ("2³¹", lambda x: np.full(len(x), 2**31))]
OFFSET = [
    *_without(IDS_ANY_ROWS, "a scalar"),
    ("two", lambda x: np.array([0, 1])),
    ("1.5", lambda x: 1.5),
]
INDPTR = [*IDS_ANY_ROWS, ("no element", lambda x: x[:0])]
INTEGER: list[Bad] = [
    ("1.5", lambda x: 1.5),
    ("a float", lambda x: np.float32(3)),
    ("nan", lambda x: float("nan")),
    ("a list", lambda x: [3]),
    ("an array", lambda x: np.array([3, 4])),
    # Beyond 64 bits, of which the error must be no OverflowError.
    ("2⁷⁰", lambda x: 2**70),
]
SIZE = [*INTEGER, ("-1", lambda x: -1), ("-2⁷⁰", lambda x: -(2**70))]
VECTOR: list[Bad] = [
    *TRUTH,
    *COMPLEX,
    *SHAPES,
    ("three axes", lambda x: np.zeros((*np.shape(x), 1, 1), np.float32)),
]
BIAS = [*COMPLEX, *SHAPES]
CHOICE: list[Bad] = [
    ("another word", lambda x: "bogus"),
    ("an empty word", lambda x: ""),
    ("a number", lambda x: 3),
    ("a list", lambda x: ["sum"]),
    ("an array", lambda x: np.zeros(2)),
]
MATRIX: list[Bad] = [
    *SCALAR,
    *TRUTH,
    ("a vector", lambda x: x[0]),
    ("an axis more", lambda x: x[None]),
]
VALUES: list[Bad] = SCALAR
FILL: list[Bad] = [("two", lambda x: np.ones(7))]
DTYPE: list[Bad] = [
    ("another word", lambda x: "bogus"),
    ("truth values", lambda x: "bool"),
    ("an integer type", lambda x: np.int32),
    ("a string type", lambda x: "U4"),
]
ARRAYS: list[Bad] = [("arrays", lambda x: (x, x))]
FEW: list[Bad] = [("too few", lambda x: 0)]
FLAG = [*_without(CHOICE, "a number"), ("1.0", lambda x: 1.0)]

# --- Right arguments -----------------------------------------------------------------------------

SRC, DST = np.array([0, 1, 1, 3], np.int32), np.array([0, 0, 1, 1], np.int32)
GRAPH = Graph.from_edges(SRC, DST, num_src=4, num_dst=3)
TYPED = RelationalGraph.from_triples(
    *(np.array(ids, np.int32) for ids in ([0, 1, 2], [0, 1, 1], [1, 0, 0])), num_nodes=3
)
BIPARTITE = RelationalGraph.from_triples(SRC, DST, DST, num_src=4, num_dst=3)
WITHOUT_PARTS = RelationalGraph.from_triples([0, 1], [0, 1], [1, 0], num_nodes=3, parts=())
HYPERGRAPH = Hypergraph.from_incidence([0, 1, 1, 2], [0, 0, 1, 1], num_nodes=4, num_hyperedges=3)
SPLIT = HYPERGRAPH.graph.split
DIRECTED = Hypergraph.from_directed(SRC, DST, SRC, DST, num_nodes=4, num_hyperedges=3)
INDEX = SegmentIndex.from_ids(SRC, 4)
PLAN = TypePlan.from_types(DST, 2)
NODES, KEY = Graph.from_edges(SRC, DST, num_nodes=4), jax.random.key(0)
TYPES = HeteroGraph.from_edges({("a", "r", "b"): np.stack([SRC, DST])}, {"a": 4, "b": 3})
SPARSE = scipy.sparse.coo_array((np.ones(2), (np.array([0, 2]), np.array([1, 0]))), shape=(4, 3))
X, Y = ones(4, 2), ones(3, 2)  # of sources or nodes, of destinations or hyperedges
OF_DST, OF_SRC, OF_EDGES = ones(3), ones(4), ones(4)
# All sizes differ, so that a transposed operand never fits by chance.
HEADS_DST, HEADS_SRC, HEADS = ones(3, 2, 5), ones(4, 2, 5), ones(2, 5)
LHS, RHS = ones(6, 3), ones(2, 3, 4)
SIZES, PLACES = np.array([2, 3], np.int32), np.arange(6, dtype=np.int32)
XLA = {"implementation": "xla"}
SEGMENTS = {"data": X, "segment_ids": DST, "num_segments": 3}
PRODUCT = {
    **{"lhs": LHS, "rhs": RHS, "group_sizes": SIZES, "precision": None},
    **{"preferred_element_type": None, **XLA},
}
OUTER = PRODUCT | {"rhs": LHS}
AFTER = {"bias": ones(2, 4), "residual": ones(6, 4), "activation": "relu"}
ATTENTION = {
    **{"graph": GRAPH, "edge_bias": X, "edge_scale": X, "edge_features": HEADS_SRC},
    **{"return_lse": False, **XLA},
}
SLOPE = {"negative_slope": 0.1}
RGAT = jax_gnn.RGATWeights.of(ones(2, 2, 10), ones(2, 2, 5), ones(2, 2, 5))
HGT, HGT_ROWS = jax_gnn.HGTWeights.of(ones(2, 2, 5, 5), ones(2, 2, 5, 5)), ones(3, 10)
TRIPLES = {"src": SRC, "rel": DST, "dst": DST, "num_relations": 3, "parts": ("to_pairs",)}
ON_HYPERGRAPH = {"hypergraph": HYPERGRAPH, **XLA}
SCALES = {
    **{"hypergraph": DIRECTED, "incidence_weight": OF_EDGES, "head_weight": OF_EDGES},
    **{"hyperedge_weight": OF_DST, **XLA},
}


class Call(NamedTuple):
    """A call that works.

    Attributes:
        function: what is called.
        arguments: that it takes.
        spoilt: which are wrong in more ways than `OBJECTS`; all where it is empty.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any]
    spoilt: tuple[str, ...] = ()


CALLS: dict[str, Call] = {}


def function_of(name: str) -> str:
    """The function of a call of this name."""
    return name.split(" ")[0]


def _add(name: str, *spoilt: str, of=jax_gnn, **arguments) -> None:
    """A call of a function of the package, or of a method of an object."""
    path = function_of(name) if of is jax_gnn else function_of(name).split(".")[1]
    CALLS[name] = Call(operator.attrgetter(path)(of), arguments, spoilt)


# fmt: off
for _name in jax_gnn.__all__:
    if _name.startswith("segment_") and _name not in ("segment_matmul", "segment_outer"):
        _of_jax = hasattr(jax.ops, _name)
        _add(_name, **SEGMENTS, indices_are_sorted=True, mode=None, **XLA,
             **({"unique_indices": False, "bucket_size": None} if _of_jax else {}),
             **({"ddof": 1} if _name[-3:] in ("var", "std") else {}))
        _add(f"{_name} by indptr", "indptr", "num_segments",
             data=X, indptr=np.array([0, 2, 4], np.int32), num_segments=2)
_add("segment_matmul", **PRODUCT, **AFTER, transpose_rhs=False)
_add("segment_matmul of listed rows", "lhs_rows", "out_rows", "scale",
     **PRODUCT, **AFTER, lhs_rows=PLACES, out_rows=PLACES, scale=ones(6))
_add("segment_outer", **OUTER, num_groups=2, deterministic=True)
_add("segment_outer of listed rows", "lhs_rows", "rhs_rows", "scale",
     **OUTER, lhs_rows=PLACES, rhs_rows=PLACES, scale=ones(6))
for _name, _given in (("segment_matmul", PRODUCT), ("segment_outer", OUTER)):
    _add(f"{_name} of some groups", "group_offset", **_given, group_offset=np.zeros(1, np.int32))
_add("spmm", graph=GRAPH, x=X, weight=OF_EDGES, reduce="sum", **XLA)
_add("spmm with an epilogue", "residual", "bias", "out_scale", "result_scale", "activation",
     graph=GRAPH, x=X, residual=Y, bias=ones(2), out_scale=OF_DST, result_scale=OF_DST,
     activation="relu")
_add("sddmm", graph=GRAPH, a=Y, b=X, op="dot", **XLA)
_add("additive_attention", **ATTENTION, **SLOPE, dst_score=Y, src_score=X, value=HEADS_SRC)
_add("gatv2_attention", **ATTENTION, **SLOPE, dst=HEADS_DST, src=HEADS_SRC, attention=HEADS)
_add("dot_attention", **ATTENTION, scale=0.5, query=HEADS_DST, key=HEADS_SRC, value=HEADS_SRC)
_METHOD = {"method": "source_pairs", "precision": None, **XLA}
_add("rgat_attention", graph=TYPED, x=Y, weights=RGAT, x_dst=Y, **SLOPE, multiplicative=False,
     within_relations=False, edge_bias=ones(3, 2), edge_scale=ones(3, 2), **_METHOD)
_add("hgt_attention", graph=TYPED, query=HGT_ROWS, key=HGT_ROWS, value=HGT_ROWS.copy(),
     weights=HGT, heads=2, pair_query=HGT_ROWS, fold_query_into_key=False, **_METHOD)
_add("RGATWeights.of", of=jax_gnn.RGATWeights,
     kernel=ones(2, 2, 10), dst=ones(2, 2, 5), src=ones(2, 2, 5))
_add("HGTWeights.of", of=jax_gnn.HGTWeights,
     attention=ones(2, 2, 5, 5), message=ones(2, 2, 5, 5), prior=ones(2, 2))
_add("index_segment_reduce",
     x=X, index=SRC, segment_ids=DST, num_segments=3, weight=OF_EDGES, reduce="sum", **XLA)
_add("relational_aggregate", graph=TYPED, x=ones(3, 4), rhs=ones(2, 4, 5), weight=ones(3),
     transpose_rhs=False, method="edges", precision=None, **XLA)
_add("relational_aggregate of bases", graph=TYPED, x=ones(3, 4), rhs=ones(6, 4, 5),
     coefficients=ones(2, 6))
_add("relational_lookup", graph=TYPED, table=ones(2, 3, 5), weight=ones(3), precision=None, **XLA)
_add("relational_lookup of bases", graph=TYPED, table=ones(6, 3, 5), coefficients=ones(2, 6))
_add("hypergraph_aggregate", **SCALES, x=X, node_scale_in=OF_SRC, node_scale_out=OF_SRC,
     hyperedge_scale=OF_DST, self_scale=OF_SRC, normalization=None, hyperedge_reduce="mean",
     node_reduce="sum", residual=X, bias=ones(2), activation="relu")
_add("hypergraph_norm", **SCALES, normalization="row")
_add("node_to_hyperedge", **ON_HYPERGRAPH, incidence_weight=OF_EDGES, x=X, reduce="sum")
_add("hyperedge_to_node", **ON_HYPERGRAPH, incidence_weight=OF_EDGES, h=Y, reduce="sum")
_add("incidence_softmax", **ON_HYPERGRAPH, scores=OF_EDGES, by="node")
CALLS["implementation"] = Call(lambda implementation=None: jax_gnn.implementation(implementation),
                               XLA)

_add("Graph.from_edges", src=SRC, dst=DST, num_src=4, num_dst=3, validate=True)
_add("Graph.from_edges of nodes", src=SRC, dst=DST, num_nodes=4)
_add("Graph.from_scipy", matrix=SPARSE)
_add("Graph.edge_values", of=GRAPH, values=X, fill_value=0)
_add("Graph.to_input_order", of=GRAPH, values=X, fill_value=0)
_add("Graph.pad", of=GRAPH, num_src=9, num_dst=9, num_edges=9)
_add("Graph.pad of nodes", of=Graph.from_edges(SRC, DST, num_nodes=4), num_nodes=9)
_add("RelationalGraph.from_triples", **TRIPLES, num_src=4, num_dst=3)
_add("RelationalGraph.from_triples of nodes", **TRIPLES, num_nodes=4)
_add("RelationalGraph.from_edge_dict", edges={("a", "r", "b"): np.stack([SRC, DST])},
     num_nodes={"a": 4, "b": 3}, inverse=True, inverse_prefix="rev_")
_add("RelationalGraph.edge_values", of=TYPED, values=ones(3, 2), fill_value=0)
_add("RelationalGraph.to_input_order", of=TYPED, values=ones(3, 2), fill_value=0)
_add("RelationalGraph.pad", of=TYPED,
     num_src=9, num_dst=9, num_edges=9, num_src_pairs=9, num_dst_pairs=9)
_add("RelationalGraph.norm", of=TYPED, kind="mean", dtype="float32")
_add("Hypergraph.from_incidence",
     node_idx=SRC, hyperedge_idx=DST, num_nodes=4, num_hyperedges=3, validate=True)
_add("Hypergraph.from_directed", tail_nodes=SRC, tail_hyperedges=DST, head_nodes=SRC,
     head_hyperedges=DST, num_nodes=4, num_hyperedges=3, validate=True)
_add("Hypergraph.from_hyperedges", hyperedges=[[0, 1], [], [3]], num_nodes=4)
_add("Hypergraph.from_scipy", incidence=SPARSE)
_add("Hypergraph.from_knn", features=X, k=2)
_add("Hypergraph.with_self_loops", of=HYPERGRAPH, nodes="all")
_add("Hypergraph.pad", of=DIRECTED,
     num_nodes=9, num_hyperedges=9, num_incidences=9, num_head_incidences=9)
_add("Hypergraph.pad of one graph", of=HYPERGRAPH, num_head_incidences=None)
_add("Hypergraph.incidence_values", of=HYPERGRAPH, values=X, fill_value=0)
_add("Hypergraph.to_input_order", of=HYPERGRAPH, values=X, fill_value=0)
_add("SegmentIndex.from_ids", ids=SRC, num_segments=4)
_add("SegmentIndex.gather", of=INDEX, x=X, **XLA)
_add("SegmentIndex.segment_sum", of=INDEX, data=X, **XLA)
_add("TypePlan.from_types", types=DST, num_types=3)
_add("TypePlan.from_sizes", group_sizes=SIZES)
_add("TypePlan.sort", of=PLAN, x=X)
_add("TypePlan.unsort", of=PLAN, x=X)

_SAMPLED = {"graph": NODES, "seeds": SRC, "fanouts": (2, 1), "key": KEY}
_LINKS = {"graph": NODES, "src": SRC, "dst": DST}
_DRAWN = {"num": 2, "key": KEY, "degree_power": 0.5, "exclude_edges": False, "num_nodes": 4}
_add("sampling.sample_neighbors", **_SAMPLED, replace=False, edge_probability=X[:, 0],
     tree=False, disjoint=False, capacity=(9, 9))
_add("sampling.sample_neighbors in time", "edge_time", "seed_time",
     **_SAMPLED, edge_time=DST, seed_time=DST)
_add("sampling.sample_neighbors of relations", "graph", "fanouts",
     **_SAMPLED | {"graph": TYPED, "fanouts": (2, {0: 1})})
_add("sampling.sample_neighbors of types", "seeds", "fanouts",
     **_SAMPLED | {"graph": TYPES, "seeds": {"a": SRC}, "fanouts": ({("a", "r", "b"): 1}, 2)})
_add("sampling.block_capacity", **_SAMPLED | {"seeds": [SRC, DST]}, slack=0.1)
_add("sampling.link_blocks", **_LINKS, fanouts=(2,), key=KEY, exclude="both", replace=False,
     capacity=9)
_add("sampling.link_blocks of relations", "graph", "rel", "fanouts",
     **_LINKS | {"graph": TYPED}, rel=DST, fanouts=({1: 2},), key=KEY)
_add("sampling.negative_edges", graph=NODES, **_DRAWN)
_add("sampling.corrupted_edges", **_LINKS, **_DRAWN, side="src")
_add("sampling.corrupted_edges of relations", "graph", "rel",
     **_LINKS | {"graph": TYPED}, rel=DST, num=2, key=KEY)
_add("sampling.random_walk", graph=NODES, starts=SRC, length=2, key=KEY, p=0.5, q=2.0, reverse=True)
_add("sampling.induced_subgraph", graph=NODES, nodes=SRC, num_edges=4)
_add("sampling.saint_subgraph",
     graph=NODES, num=2, key=KEY, method="walk", walk_length=2, num_edges=4)
_add("sampling.cluster_batch",
     graph=NODES, parts=SRC, chosen=DST, num_nodes=4, num_edges=4)
_add("sampling.hgt_subgraph",
     graph=TYPES, seeds={"a": SRC}, num_nodes=(2, {"b": 1}), key=KEY, num_edges=9)
_add("sampling.node_chunks", graph=NODES, num_edges=4)
_add("sampling.fetch_rows", rows=X, ids=SRC, out=X.copy())
_add("sampling.EdgeProbability.from_weights", graph=NODES, weights=X[:, 0])
_add("sampling.EdgeTime.from_times", graph=NODES, times=X[:, 0])
_add("EdgeTime.in_degrees",
     of=jax_gnn.sampling.EdgeTime.from_times(NODES, X[:, 0]), graph=NODES, nodes=SRC, times=X[:, 0])
_add("sharding.partition", graph=NODES, num_parts=2, method="hash")
# fmt: on

# --- What is wrong with which --------------------------------------------------------------------

_CAPACITY = [*SIZE, ("too few", lambda x: 2)]
_WIDTHS: list[Bad] = [("an axis more", lambda x: x[None]), ("an axis less", lambda x: x[0])]
_ROWS = [*SCALAR, *SHAPES]
_GRAPHS: list[Bad] = [*ARRAYS, ("a hypergraph", lambda x: HYPERGRAPH)]
_HYPERGRAPHS: list[Bad] = [*ARRAYS, ("a graph", lambda x: GRAPH)]
_RELATIONALS: list[Bad] = [
    *ARRAYS,
    ("a graph", lambda x: GRAPH),
    ("a type less", lambda x: replace(x, edge_types=x.edge_types[:-1])),
    ("a relation more", lambda x: replace(x, num_relations=x.num_relations + 1)),
    ("pairs only", lambda x: replace(x, out_of_pairs=None)),
    ("pairs of the other end", lambda x: replace(x, pair_dst=x.pair_src)),
]
_MAPPING: list[Bad] = [*ARRAYS, ("names", lambda x: ["a", "b"])]

# By argument, of all calls; then by call and argument.
_KINDS: dict[str, list[Bad]] = {
    **dict.fromkeys(("data", "a", "b", "x", "h", "scores", "value", "key", "src"), FLOATS),
    **dict.fromkeys(("query", "dst"), FLOATS_ANY_ROWS),
    **dict.fromkeys(("src_score", "edge_bias", "edge_scale", "attention"), REALS),
    **{"dst_score": REAL_ANY_ROWS, "residual": FLOATS, "bias": BIAS},
    **dict.fromkeys(("out_scale", "result_scale", "scale"), BIAS),
    **dict.fromkeys(("segment_ids", "index", "group_sizes"), IDS),
    **dict.fromkeys(("lhs_rows", "out_rows", "rhs_rows"), IDS),
    **dict.fromkeys(("ids", "types"), IDS_ANY_ROWS),
    **{"indptr": INDPTR, "group_offset": OFFSET},
    **dict.fromkeys(("num_segments", "num_types", "num_src", "num_dst"), SIZE),
    **dict.fromkeys(("num_nodes", "num_hyperedges", "num_relations"), SIZE),
    **{"num_groups": [b for b in SIZE if "⁷" not in b[0]], "ddof": INTEGER},
    **dict.fromkeys(("weight", "incidence_weight", "head_weight", "hyperedge_weight"), VECTOR),
    **dict.fromkeys(("node_scale_in", "node_scale_out", "hyperedge_scale", "self_scale"), VECTOR),
    **dict.fromkeys(("implementation", "mode", "reduce", "op", "activation", "by"), CHOICE),
    **dict.fromkeys(("normalization", "hyperedge_reduce", "node_reduce", "kind", "nodes"), CHOICE),
    **{"method": CHOICE, "precision": _without(CHOICE, "an empty word"), "transpose_rhs": FLAG},
    "preferred_element_type": [*DTYPE, ("a narrower type", lambda x: "float16")],
    **{"dtype": DTYPE, "values": VALUES, "fill_value": FILL},
    **{"graph": _GRAPHS, "hypergraph": _HYPERGRAPHS},
    **{"lhs": [*MATRIX, *SHAPES], "rhs": [*MATRIX, *SHAPES]},
    **{"rel": HOST_IDS, "matrix": [("an array", lambda x: x.toarray())]},
    "parts": [
        *CHOICE,
        ("an unknown part", lambda x: ("nodes",)),
        ("a part", lambda x: "to_pairs"),
        ("numbers", lambda x: (1, 2)),
    ],
    **dict.fromkeys(("node_idx", "hyperedge_idx", "tail_nodes", "tail_hyperedges"), HOST_IDS),
    **dict.fromkeys(("head_nodes", "head_hyperedges"), HOST_IDS),
}
_KINDS_OF: dict[tuple[str, str], list[Bad]] = {
    **{
        (f"segment_{name}", "bucket_size"): [*INTEGER, ("0", lambda x: 0), ("-1", lambda x: -1)]
        for name in ("sum", "max", "min", "prod")
    },
    **{(name, "data"): [*DATA, *COMPLEX] for name in CALLS if name.startswith("segment_")},
    **{(f"segment_{name}", "data"): [*DATA, *TRUTH] for name in ("sum", "prod")},
    # jax.ops orders complex numbers too.
    **{(f"segment_{name}", "data"): DATA for name in ("mean", "max", "min")},
    **{
        (f"{name} by indptr", "num_segments"): [*SIZE, ("another number", lambda x: 3)]
        for name in CALLS
    },
    ("SegmentIndex.gather", "x"): _without(FLOATS, "integers"),
    ("SegmentIndex.segment_sum", "data"): _without(FLOATS, "integers"),
    ("index_segment_reduce", "x"): FLOATS_ANY_ROWS,
    ("segment_matmul", "lhs"): MATRIX,
    ("segment_matmul", "residual"): BIAS,
    ("segment_outer", "group_sizes"): IDS_ANY_ROWS,
    ("TypePlan.from_sizes", "group_sizes"): IDS_ANY_ROWS,
    ("TypePlan.sort", "x"): _ROWS,
    ("TypePlan.unsort", "x"): _ROWS,
    **{
        (name, argument): HOST_IDS
        for name in CALLS
        if ".from_" in name
        for argument in ("src", "dst")
    },
    ("Graph.from_edges of nodes", "num_nodes"): [*SIZE, *FEW],
    **{
        (name, size): _CAPACITY
        for name in ("Graph.pad", "Hypergraph.pad")
        for size in CALLS[name].arguments
    },
    **{
        ("RelationalGraph.pad", size): [*SIZE, *FEW]
        for size in CALLS["RelationalGraph.pad"].arguments
    },
    ("Hypergraph.pad of one graph", "num_head_incidences"): [("given", lambda x: 9)],
    ("RelationalGraph.from_edge_dict", "inverse_prefix"): [("a number", lambda x: 3)],
    ("RelationalGraph.from_edge_dict", "edges"): [
        *_MAPPING,
        ("another type", lambda x: {("a", "r", "c"): x["a", "r", "b"]}),
        ("two names", lambda x: {("a", "r"): x["a", "r", "b"]}),
        ("three rows", lambda x: {("a", "r", "b"): np.zeros((3, 2), int)}),
        ("a vector", lambda x: {("a", "r", "b"): np.zeros(2, int)}),
        ("a number", lambda x: {("a", "r", "b"): 2}),
        ("floats", lambda x: {("a", "r", "b"): np.zeros((2, 2))}),
        ("too large", lambda x: {("a", "r", "b"): x["a", "r", "b"] + 4}),
    ],
    ("RelationalGraph.from_edge_dict", "num_nodes"): [
        *_MAPPING,
        ("too few", lambda x: {"a": 4}),
        ("a number as a name", lambda x: {1: 4, **x}),
        *((name, lambda x, bad=bad: {**x, "a": bad(4)}) for name, bad in SIZE),
    ],
    ("Hypergraph.from_hyperedges", "hyperedges"): [
        ("a number", lambda x: 3),
        ("numbers", lambda x: [1, 2]),
        ("floats", lambda x: [[0.5, 1.0]]),
        ("lists of strings", lambda x: [["a"], ["b"]]),
        ("nested", lambda x: [[[0]], [[1]]]),
        ("negative", lambda x: [[-1]]),
        ("too large", lambda x: [[4]]),
        ("None inside", lambda x: [[0], None]),
        ("truth values", lambda x: [[True, False]]),
    ],
    ("Hypergraph.from_scipy", "incidence"): [
        ("an array", lambda x: x.toarray()),
        ("twos", lambda x: x * 2),
        ("nan", lambda x: x * np.nan),
    ],
    ("Hypergraph.from_knn", "features"): [
        *COMPLEX,
        ("a vector", lambda x: x[0]),
        ("nan", lambda x: x * np.nan),
        ("infinity", lambda x: x * np.inf),
    ],
    ("Hypergraph.from_knn", "k"): [*SIZE, ("0", lambda x: 0), ("too many", lambda x: 5)],
    ("dot_attention", "scale"): [],
    **{(name, "graph"): _RELATIONALS for name in ("relational_aggregate", "relational_lookup")},
    ("relational_aggregate", "x"): [*FLOATS, *_WIDTHS, ("a column less", lambda x: x[:, 1:])],
    ("relational_aggregate", "rhs"): [
        *FLOATS,
        *_WIDTHS,
        ("transposed", lambda x: np.swapaxes(x, 1, 2)),
    ],
    ("relational_lookup", "table"): [*FLOATS, *_WIDTHS, ("a source less", lambda x: x[:, 1:])],
}

_SAMPLED_IDS = _without(IDS_ANY_ROWS, "a scalar")
_ONE_KIND: list[Bad] = [*_GRAPHS, ("two kinds of nodes", lambda x: GRAPH)]
_FANOUTS: list[Bad] = [
    ("0", lambda x: (2, 0)),
    ("-2", lambda x: (-2,)),
    ("1.5", lambda x: (1.5,)),
    ("a number", lambda x: 3),
    ("none", lambda x: ()),
    ("nan", lambda x: (float("nan"),)),
    ("2⁷⁰", lambda x: (2**70,)),
]
_RELATION_FANOUTS: list[Bad] = [
    *_FANOUTS,
    ("an unknown relation", lambda x: ({9: 1},)),
    ("an unknown name", lambda x: ({"likes": 1},)),
    ("a negative one", lambda x: ({0: -1},)),
    ("0 of each", lambda x: ({0: 0},)),
    ("a fraction of one", lambda x: ({0: 0.5},)),
]
_KEYS: list[Bad] = [
    ("a number", lambda x: 3),
    ("keys", lambda x: jax.random.split(x)),
    ("floats", lambda x: np.zeros(2, np.float32)),
    ("three words", lambda x: np.zeros(3, np.uint32)),
]
_WEIGHTS: list[Bad] = [
    *SHAPES,
    *COMPLEX,
    *TRUTH,
    ("negative", lambda x: -x),
    ("nan", lambda x: x * np.nan),
    ("infinity", lambda x: x * np.inf),
    ("a matrix", lambda x: x[:, None]),
]
_TIMES: list[Bad] = [*SHAPES, *COMPLEX, *TRUTH, ("nan", lambda x: x * np.nan)]
_ROOM: list[Bad] = [*INTEGER, ("-1", lambda x: -1)]
_POSITIVE: list[Bad] = [("0", lambda x: 0), ("-1", lambda x: -1), ("nan", lambda x: float("nan"))]
_SAMPLING: dict[str, list[Bad]] = {
    **{"graph": _ONE_KIND, "fanouts": _FANOUTS, "key": _KEYS},
    **dict.fromkeys(("seeds", "src", "dst", "rel", "starts", "chosen", "ids"), _SAMPLED_IDS),
    "nodes": _SAMPLED_IDS,
    "parts": [*_SAMPLED_IDS, *SHAPES],
    **dict.fromkeys(("replace", "tree", "disjoint", "reverse", "exclude_edges"), FLAG),
    "capacity": [
        *_without(_ROOM, "a list", "an array"),
        ("too few", lambda x: 1),
        *(
            (what, lambda x, value=value: (9, value, 9)[: 2 + (value == 9)])
            for what, value in (("a float inside", 1.5), ("a word inside", "a"), ("three", 9))
        ),
    ],
    "edge_probability": _WEIGHTS,
    "weights": _WEIGHTS,
    **dict.fromkeys(("edge_time", "times"), _TIMES),
    "seed_time": [*_TIMES, ("floats", lambda x: x.astype(np.float32))],
    **dict.fromkeys(("exclude", "side", "method"), CHOICE),
    **dict.fromkeys(("num", "length", "walk_length", "num_edges", "num_nodes"), _ROOM),
    "degree_power": [("2", lambda x: 2), ("-1", lambda x: -1), ("nan", lambda x: float("nan"))],
    **dict.fromkeys(("p", "q"), _POSITIVE),
    "rows": [("a list", lambda x: [1.0]), ("a scalar", lambda x: np.float32(1))],
    "out": [*SHAPES, ("integers", lambda x: x.astype(np.int32)), ("a list", lambda x: [1.0])],
}
_KINDS_OF |= {
    (name, argument): _SAMPLING.get(argument, [])
    for name, call in CALLS.items()
    if name.startswith("sampling.")
    for argument in call.arguments
}
_KINDS_OF |= {
    **{
        (f"sampling.{name} of relations", "graph"): [*ARRAYS, ("two kinds", lambda x: BIPARTITE)]
        for name in ("sample_neighbors", "link_blocks")
    },
    ("sampling.corrupted_edges of relations", "graph"): ARRAYS,
    ("sharding.partition", "graph"): ARRAYS,
    ("sharding.partition", "num_parts"): _ROOM,
    ("sharding.partition", "method"): CHOICE,
    ("sampling.sample_neighbors of relations", "fanouts"): _RELATION_FANOUTS,
    ("sampling.link_blocks of relations", "fanouts"): _RELATION_FANOUTS,
    ("sampling.sample_neighbors of types", "fanouts"): _RELATION_FANOUTS,
    ("sampling.block_capacity", "seeds"): [
        ("ids", lambda x: SRC),
        ("a number", lambda x: 3),
        ("two lengths", lambda x: [SRC, SRC[1:]]),
        ("none", lambda x: []),
    ],
    ("sampling.block_capacity", "slack"): [("-1", lambda x: -1), ("nan", lambda x: float("nan"))],
    ("sampling.sample_neighbors of types", "seeds"): [
        ("ids", lambda x: SRC),
        ("another type", lambda x: {"c": SRC}),
        ("floats", lambda x: {"a": [0.5]}),
        ("a number", lambda x: {"a": 3}),
    ],
    ("sampling.hgt_subgraph", "graph"): _GRAPHS,
    ("sampling.hgt_subgraph", "seeds"): [("ids", lambda x: SRC), ("c", lambda x: {"c": SRC})],
    ("sampling.hgt_subgraph", "num_nodes"): [
        ("a number", lambda x: 3),
        ("another type", lambda x: ({"c": 1},)),
        ("-1", lambda x: (-1,)),
        ("1.5", lambda x: (1.5,)),
    ],
    **{
        (f"sampling.{name}", "graph"): ARRAYS
        for name in (
            "negative_edges",
            "corrupted_edges",
            "EdgeProbability.from_weights",
            "EdgeTime.from_times",
        )
    },
}
# Arguments that take what others refuse, beside None where it is the default; and those whose
# default, None, does not go with the call's other arguments.
_TAKEN = {
    *(
        (f"segment_{name} by indptr", "data", "a complex number")
        for name in ("sum", "mean", "max", "min", "prod")
    ),
    *((name, "values", "a complex number") for name in CALLS if name.endswith("_values")),
    ("RelationalGraph.from_edge_dict", "inverse_prefix", "a string"),
    ("sampling.link_blocks", "exclude", "None"),
    ("Hypergraph.from_hyperedges", "hyperedges", "a ragged list"),
}
_NEEDED = ("segment_ids", "indptr")
# Arguments whose shapes belong together: an error may name either.
_TOGETHER = {
    **dict.fromkeys(("index", "segment_ids"), ("index", "segment_ids")),
    **{"data": ("segment_ids",), "rows": ("out",)},
    "group_sizes": ("rhs",),
    "lhs_rows": ("out_rows", "rhs_rows"),
    **dict.fromkeys(("a", "b"), ("a", "b")),
    **dict.fromkeys(("src", "dst"), ("src", "dst")),
    **dict.fromkeys(("node_idx", "hyperedge_idx"), ("node_idx", "hyperedge_idx")),
    **dict.fromkeys(("tail_nodes", "tail_hyperedges"), ("tail_nodes", "tail_hyperedges")),
    **dict.fromkeys(("head_nodes", "head_hyperedges"), ("head_nodes", "head_hyperedges")),
    **dict.fromkeys(("lhs", "rhs"), ("lhs", "rhs")),
}


def takes_none(function: Callable[..., Any], argument: str) -> bool:
    """Whether None is its default, which goes with any other arguments."""
    like = function.__init__ if inspect.isclass(function) else function
    parameter = inspect.signature(like).parameters.get(argument)
    return parameter is not None and parameter.default is None and argument not in _NEEDED


def ways(name: str, argument: str) -> list[Bad]:
    """Return the ways in which an argument of a call of `CALLS` can be wrong."""
    function, _, spoilt = CALLS[name]
    faults = [*OBJECTS, *([] if takes_none(function, argument) else NONE)]
    if not spoilt or argument in spoilt:
        at = function_of(name), argument
        faults += _KINDS_OF.get((name, argument), _KINDS_OF.get(at, _KINDS.get(argument, [])))
    return [bad for bad in faults if (name, argument, bad[0]) not in _TAKEN]


def fault(error: Exception, argument: str) -> str | None:
    """Return what the message of an error lacks, the argument or its value; None if nothing."""
    message, kind = str(error), type(error).__name__
    if not isinstance(error, TypeError | ValueError):
        return f"{kind}: {message.splitlines()[:1]}"
    names = argument, *_TOGETHER.get(argument, ())
    if not any(re.search(rf"\b{name}\b", message) for name in names):
        return f"{kind} does not name {argument}: {message.splitlines()[0][:160]}"
    if not re.search(r"\b(got|found|is outside)\b", message):
        return f"{kind} does not say what was given: {message[:160]}"
    return None


# --- What errors say -----------------------------------------------------------------------------


def bad(message: str, error: type[Exception] = ValueError, **changes) -> Any:
    """Return an expected error, its message, the arguments that cause it; dots match anything."""
    return error, re.escape(message).replace(r"\.\.\.", ".*"), changes


def with_arrays(**arrays) -> Hypergraph:
    return Hypergraph(replace(HYPERGRAPH.graph, **arrays))


# One message of each check, and those of checks of one function alone; `fault` reads the others.
# fmt: off
WORDED: dict[str, list[Any]] = {
    "spmm": [
        bad("graph must be a jax_gnn.Graph, got an array", TypeError, graph=ones(3, 4), x=1),
        bad("x must be float16, ...got int32", TypeError, x=ones(4, 2, dtype=np.int32)),
        bad("x must be (num_src=4, *features), got shape (3, 2)", x=Y),
        bad("x must be (num_src=4, ...()", x=np.float32(1)),
        bad("weight must be real numbers, got complex64", TypeError,
            weight=ones(4, dtype=np.complex64)),
        bad("weight must be (num_edges=4,) or (num_edges=4, heads), got shape (3,)",
            weight=ones(3)),
        bad("weight must be ...(4, 2, 1)", weight=ones(4, 2, 1)),
        bad("weight of shape (4, 3) ...x must be (num_src, 3, *features), got ...(4, 2)",
            weight=ones(4, 3)),
        bad("weight of shape (4, 1)", x=ones(4), weight=ones(4, 1)),
        bad("reduce must be one of 'sum', 'mean', 'max', 'min', got 'prod'", reduce="prod"),
        bad("implementation must be None or one of", implementation="fast"),
        bad("self_scale needs a graph that is not bipartite, ...num_src=4 and num_dst=3",
            self_scale=1),
        bad("self_scale must be a scalar or (num_nodes=2,), got shape (1,)",
            graph=Graph.from_edges([0, 1], [1, 0]), x=ones(2, 2), self_scale=ones(1)),
        bad("out_scale must be a scalar or (num_dst=3,), got shape (4,)", out_scale=ones(4)),
        bad("result_scale must be a scalar or (num_dst=3,), got shape (4,)", result_scale=ones(4)),
        bad("bias must have the features (2,) of x, got shape (3,)", bias=ones(3)),
        bad("activation must be one of None, 'relu', ..., got 'swish'", activation="swish"),
        bad("residual must be (num_dst=3, *features), got shape (4, 2)", residual=X),
        bad("residual must be ... with the features (2,) of x, got shape (3, 1)",
            residual=ones(3, 1)),
    ],
    "sddmm": [
        bad("graph must be a jax_gnn.Graph, got tuple", TypeError, graph=(), a=1, b=1),
        bad("a must be (num_dst=3, ...(4, 2)", a=X),
        bad("b must be (num_src=4, ...(3, 2)", b=Y),
        bad("a and b must have equal features, got shapes (3, 2) and (4, 5)", b=ones(4, 5)),
        bad("op='dot' needs a ...got shape (3,)", a=ones(3), b=ones(4)),
        bad("op='dot' needs", a=ones(3, 2, 2, 2), b=ones(4, 2, 2, 2)),
    ],
    "index_segment_reduce": [
        bad("x must be (num_rows, *features)", x=1.0),
        bad("index must be an array of int", TypeError, index=SRC * 1.0),
        bad("segment_ids must be one-dimensional, got shape (1, 4)", segment_ids=DST[None]),
        bad("index and segment_ids must have the same length, got 4 and 3", segment_ids=DST[:3]),
        bad("num_segments must not be negative, got -1", num_segments=-1),
        bad("weight must be (num_edges=4,)", weight=ones(3)),
    ],
    "segment_sum": [
        bad("data must be ...got shape ()", data=1.0),
        bad("segment_ids must be an array of integers...float64", TypeError, segment_ids=DST * 1.0),
        bad("segment_ids must be (num_elements=4,) as data has shape (4, 2)...(3,)",
            segment_ids=DST[:3]),
        bad("exactly one of segment_ids and indptr", TypeError,
            segment_ids=None, num_segments=None),
        bad("exactly one of segment_ids and indptr", TypeError,
            indptr=np.array([0, 4]), num_segments=None),
        bad("indptr must have at least one element",
            indptr=np.zeros(0, int), segment_ids=None, num_segments=None),
        bad("indptr must ascend",
            indptr=np.array([0, 4, 2]), segment_ids=None, num_segments=None),
        bad("num_segments must be 1 as indptr says, got 3",
            segment_ids=None, indptr=np.array([0, 4])),
        bad("mode", mode="nonsense"),
    ],
    "segment_softmax": [
        bad("data must be ...got shape ()", data=1.0, segment_ids=np.zeros(1, int)),
        bad("segment_ids must be (num_elements=4,)", segment_ids=np.zeros(3, int)),
    ],
    "additive_attention": [
        bad("graph must be a jax_gnn", TypeError, graph=3),
        bad("value must be (num_src=4, heads, *features), got shape (3, 2, 5)", value=HEADS_DST),
        bad("value must be (num_src=4, heads, ...got shape (4,)", value=HEADS_SRC[:, 0, 0]),
        bad("dst_score must be (num_dst=3, heads), with 2 heads as value, ...(4, 2)", dst_score=X),
        bad("src_score must be (num_src=4, heads), with 2 heads ...shape (4, 3)",
            src_score=np.ones((4, 3))),
        bad("negative_slope must be finite, got nan", negative_slope=np.nan),
        bad("edge_bias must be (num_edges=4, heads), ...got shape (3, 2)", edge_bias=Y),
        bad("edge_scale must be (num_edges=4, heads), ...got shape (4,)", edge_scale=X[:, 0]),
        bad("edge_features must be (num_edges=4, *features), got shape (2, 5)",
            edge_features=HEADS),
        bad("edge_features must have the features (2, 5) of value, ...(4, 2, 3)",
            edge_features=HEADS_SRC[..., :3]),
        bad("return_lse must be True or False, got str", TypeError, return_lse="yes"),
    ],
    "gatv2_attention": [
        bad("dst must be (num_dst=3, heads, *features), with 2 heads as src, ",
            dst=HEADS_DST[:, :1]),
        bad("src must have the features (2, 3) of dst, got shape (4, 2, 5)",
            dst=HEADS_DST[..., :3]),
        bad("attention must be (heads, *features), (2, 5) as dst has them, got",
            attention=HEADS[0]),
    ],
    "rgat_attention": [
        bad("x_dst must be given for a bipartite graph, got None and", graph=BIPARTITE, x=X,
            x_dst=None),
        bad("x must be (num_src=3, features), got", x=ones(3, 2, 1)),
        bad("x_dst must have the 2 features of x, got shape (3, 3)", x_dst=ones(3, 3)),
        bad("weights must be of num_relations=2 and the 3 features of x", x=ones(3, 3)),
        bad("edge_bias must be (num_edges=3, heads=2), got shape (3, 1)", edge_bias=ones(3, 1)),
        bad("method='destination_pairs' goes through 'from_pairs', which the graph lacks",
            graph=WITHOUT_PARTS, method="destination_pairs", edge_bias=None, edge_scale=None),
    ],
    "hgt_attention": [
        bad("weights must be a jax_gnn.HGTWeights, got RGATWeights", TypeError, weights=RGAT),
        bad("key must have the 5 features that weights.key maps, or those of all heads, got",
            key=ones(3, 4)),
        bad("heads must be positive, got 0", heads=0),
    ],
    "RGATWeights.of": [
        bad("kernel must be (num_relations, k, heads · n), got shape (2, 10)", kernel=ones(2, 10)),
        bad("src must be (num_relations, heads, n), with kernel", src=ones(2, 5, 2)),
    ],
    "HGTWeights.of": [
        bad("attention and message must have one shape, got (2, 2, 5)", attention=ones(2, 2, 5)),
        bad("prior must be (num_relations=2, heads=2), got shape (2,)", prior=ones(2)),
    ],
    "dot_attention": [
        bad("key must be (num_src=4, *features), got shape (3, 2, 5)", key=HEADS_DST),
        bad("key must have the features (2, 5) of query, got shape (4, 2, 3)",
            key=HEADS_SRC[..., :3]),
        bad("scale must be a number, got shape (2,)", scale=[1.0, 2.0]),
    ],
    "hypergraph_aggregate": [
        bad("hypergraph must be ...Hypergraph, got an array", TypeError, hypergraph=ones(4, 4)),
        bad("hypergraph.graph.cols must be an int32 or int64 array, got float32", TypeError,
            hypergraph=with_arrays(cols=ones(4))),
        bad("hypergraph.graph.t_indptr ...got list", TypeError,
            hypergraph=with_arrays(t_indptr=[0, 1, 3, 4, 4])),
        bad("hypergraph.graph.indptr must have at least one element",
            hypergraph=with_arrays(indptr=ones(0, dtype=np.int32))),
        bad("hypergraph.graph must be a jax_gnn.Graph, got Hypergraph", TypeError,
            hypergraph=Hypergraph(HYPERGRAPH)),
        bad("hypergraph.head must be a jax_gnn.Graph, got int", TypeError,
            hypergraph=Hypergraph(HYPERGRAPH.graph, 3)),
        bad("graph and head of the hypergraph must have the same numbers of nodes and hyper",
            hypergraph=Hypergraph(HYPERGRAPH.graph, HYPERGRAPH.graph.pad(num_src=5))),
        bad("hypergraph.graph: rows, cols must have one length",
            hypergraph=with_arrays(rows=ones(3, dtype=np.int32))),
        bad("arrays of hypergraph.graph must have one dtype, ...t_indptr: int64", TypeError,
            hypergraph=with_arrays(t_indptr=np.array([0, 1, 3, 4, 4], np.int64))),
        bad("graph.split.ids must be (4, 8) int32, got (6, 8)...with_edge_split()",
            hypergraph=with_arrays(split=HYPERGRAPH.graph.pad(num_dst=5).split)),
        bad("graph.t_split.ids must be (5, 8) int32, got (6, 8)...with_edge_split()",
            hypergraph=with_arrays(t_split=HYPERGRAPH.graph.pad(num_edges=8).t_split)),
        bad("graph.split.places must be (4, 2) int32, got (4, 2) int64",
            hypergraph=with_arrays(split=SPLIT._replace(places=np.zeros((4, 2), np.int64)))),
        bad("hypergraph.head.t_split.ids must be (5, 8) int32, got None NoneType",
            hypergraph=Hypergraph(HYPERGRAPH.graph, replace(HYPERGRAPH.graph, t_split=(3, 3)))),
        bad("x must be (num_nodes=4, ...got shape (3, 2)", x=Y),
        bad("x must be (num_nodes=4, ...got shape ()", x=np.float32(1)),
        bad("hyperedge_weight must be (num_hyperedges=3,), got shape (4,)",
            hyperedge_weight=ones(4)),
        bad("hyperedge_scale ...got shape (3, 1)", hyperedge_scale=ones(3, 1)),
        bad("node_scale_in must be (num_nodes=4,), got shape (3,)", node_scale_in=ones(3)),
        bad("self_scale must be a scalar or (num_nodes=4,), got shape (1,)", self_scale=ones(1)),
        bad("residual must be (num_nodes=4, *features), got shape (3, 2)", residual=Y),
        bad("residual must be ... with the features (2,) of x, got shape (4, 1)",
            residual=ones(4, 1)),
        bad("bias must have the features (2,) of x, got shape (3,)", bias=ones(3)),
        bad("hyperedge_reduce must be ...'max', 'min', got 'prod'", hyperedge_reduce="prod"),
        bad("normalization='row' divides by the degrees already",
            normalization="row", node_reduce="mean"),
        bad("incidence_weight must be (num_incidences=4,) or ...got shape (3,)",
            incidence_weight=ones(3)),
        bad("incidence_weight ...each of 3 heads: x must be (num_nodes, 3, ...(4, 2)",
            incidence_weight=ones(4, 3)),
        bad("head_weight must be (num_head_incidences=1,) or ...got shape (4,)",
            hypergraph=Hypergraph.from_directed([0, 1], [0, 1], [3], [1]), head_weight=ones(4)),
    ],
    "node_to_hyperedge": [
        bad("x must be (num_nodes=4, ...got shape (3, 2)", x=Y),
    ],
    "hyperedge_to_node": [
        bad("h must be (num_hyperedges=3, ...got shape (4, 2)", h=X),
        bad("h must be (num_hyperedges, 3, *features), got shape (3, 2)",
            h=Y, incidence_weight=ones(4, 3)),
        bad("hypergraph must be", TypeError, hypergraph=HYPERGRAPH.graph),
    ],
    "incidence_softmax": [
        bad("scores must be (num_incidences=4, *features), got shape (3, 2)", scores=Y, by="node"),
    ],
    "relational_aggregate": [
        bad("graph must be a jax_gnn.RelationalGraph, got Graph", TypeError, graph=TYPED.nodes),
        bad("x must be (num_src=3, *batch, k), got shape (3,)", x=ones(3, 4)[:, 0]),
        bad("x must be (num_src=3, *features), got shape (2, 4)", x=ones(3, 4)[:2]),
        bad("rhs must be (num_relations=2, *features), got shape (1, 4, 5)", rhs=ones(2, 4, 5)[:1]),
        bad("rhs must be (num_relations, k, n) ... k = 3 of x, got shape (2, 4, 5)",
            x=ones(3, 4)[:, :3]),
        bad("rhs must be (num_relations, n, k)", transpose_rhs=True),
        bad("weight must be (num_edges=3,), got shape (3, 2)", weight=np.ones((3, 2))),
        bad("precision must be what jax.lax.dot takes, got 'exact'", precision="exact"),
    ],
    "relational_lookup": [
        bad("table must be (num_relations=2, *features), got shape (1, 3, 5)",
            table=ones(2, 3, 5)[:1]),
        bad("table must be (num_relations=2, num_src=3, n), got shape (2, 2, 5)",
            table=ones(2, 3, 5)[:, :2]),
        bad("weight must be (num_edges=3,), got shape (2,)", weight=np.ones(2)),
    ],
    "segment_matmul": [
        bad("lhs must be (rows, k), got shape (3,)", lhs=LHS[0]),
        bad("rhs must be (groups, k, n), got shape (3, 4)", rhs=RHS[0]),
        bad("lhs must be an array of numbers, got bool", TypeError, lhs=LHS > 0),
        bad("rhs must be (groups, k, n) with the k = 2 of lhs, got shape (2, 3, 4)",
            lhs=LHS[:, :2]),
        bad("rhs must be (groups, n, k) with the k = 3 of lhs", transpose_rhs=True),
        bad("rhs must have a weight for each of the 1 group_sizes...group_offset",
            group_sizes=SIZES[:1]),
        bad("bias must be (groups, n) = (2, 4), got shape (6, 3)", bias=LHS),
        bad("bias must be numbers like lhs and rhs, int..., got float32", TypeError,
            lhs=LHS.astype(int), rhs=RHS.astype(int), bias=np.ones((2, 4), np.float32)),
        bad("residual must be (rows, n) = (6, 4), got shape (6, 3)", residual=LHS),
        bad("activation='relu' needs real lhs and rhs, got int", TypeError,
            lhs=LHS.astype(int), rhs=RHS.astype(int), activation="relu"),
        bad("group_offset must be a scalar or (1,), got shape (2,)", group_offset=SIZES),
        bad("preferred_element_type must hold what lhs and rhs, float32, ...got float16", TypeError,
            preferred_element_type=jnp.float16),
        bad("lhs_rows must be an index of the 6 rows of lhs, got one of 4 segments",
            lhs_rows=INDEX),
        bad("out_rows must be (rows,) = (6,), got shape (5,)", out_rows=np.arange(5)),
        bad("out_rows must be (rows,) = (5,), got shape (6,)",
            lhs_rows=np.arange(5), out_rows=np.arange(6)),
        bad("out_rows must be an index of the 5 rows of the result, got ...4 segments",
            lhs=LHS[:5], out_rows=INDEX),
        bad("scale must be (rows,) = (5,), got shape (6,)",
            lhs_rows=np.arange(5), scale=np.ones(6)),
    ],
    "segment_outer": [
        bad("lhs and rhs must have the same rows, got shapes (6, 3) and (4, 3)", rhs=LHS[:4]),
        bad("rhs must be (rows, n), got shape (2, 3, 4)", rhs=RHS),
        bad("lhs_rows and rhs must have as many rows, got 5 and 6", lhs_rows=np.arange(5)),
        bad("lhs_rows and rhs_rows must have as many rows, got 5 and 2",
            lhs_rows=np.arange(5), rhs_rows=SIZES),
        bad("rhs_rows must be an index of the 6 rows of rhs, got one of 4 segments",
            rhs_rows=INDEX),
    ],
    "Graph.from_edges": [
        bad("src[1] = 7 is outside [0, num_nodes=3)", src=[0, 7], dst=[0, 0], num_nodes=3),
        bad("src[0] = -1 is outside", src=[-1], dst=[0]),
        bad("dst[0] = 2 is outside [0, num_dst=2) (2 such ids)",
            src=[0, 0], dst=[2, 5], num_src=1, num_dst=2),
        bad("src[0] = 1 is outside [0, num_src=1)", src=[1], dst=[0], num_src=1, num_dst=2),
        bad("dst[0] = -3 is outside", src=[0], dst=[-3]),
        bad("num_nodes must fit 64 bits, got 9223372036854775808",
            src=np.array([2**64 - 1], np.uint64), dst=[0]),
        bad("src and dst must have the same length, got 2 and 1", src=[0, 1], dst=[0]),
        bad("num_nodes stands for num_src and num_dst: give it or those, not both",
            src=[0], dst=[0], num_nodes=2, num_src=2),
    ],
    "Hypergraph.from_incidence": [
        bad("node_idx[1] = 7 is outside [0, num_nodes=3)",
            node_idx=[0, 7], hyperedge_idx=[0, 0], num_nodes=3),
        bad("node_idx and hyperedge_idx ...same length... 2 and 1",
            node_idx=[0, 1], hyperedge_idx=[0]),
    ],
}
# fmt: on
