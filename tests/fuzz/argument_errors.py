"""Calls with one wrong argument: each must raise an error that names it, and what was given."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from argument_cases import Mode, Random

import jax_gnn

Bad = tuple[str, Callable[[Any], Any]]  # what is wrong, and a wrong argument made of a right one


def _longer(x: Any) -> Any:
    return np.concatenate([x, x[:1]])


_OBJECTS: list[Bad] = [
    ("a string", lambda x: "abc"),
    ("an object", lambda x: object()),
    ("a dict", lambda x: {"a": 1}),
    ("a ragged list", lambda x: [[1.0], [1.0, 2.0]]),
    ("strings", lambda x: np.array(["a", "b"])),
    ("objects", lambda x: np.array([None, {}], object)),
    ("dates", lambda x: np.zeros(np.shape(x), "datetime64[s]")),
]
_NONE: list[Bad] = [("None", lambda x: None)]
_SHAPES: list[Bad] = [
    ("a row more", _longer),
    ("a row less", lambda x: x[:-1]),
]
DATA = [*_OBJECTS, *_NONE, ("a scalar", lambda x: 1.5), *_SHAPES]
REAL_DATA = [*DATA, ("complex numbers", lambda x: x.astype(np.complex64))]
ADDABLE = [*DATA, ("truth values", lambda x: x > 0)]
FLOATS_ANY_ROWS: list[Bad] = [
    *_OBJECTS,
    *_NONE,
    ("a scalar", lambda x: 1.5),
    ("complex numbers", lambda x: x.astype(np.complex64)),
    ("integers", lambda x: x.astype(np.int32)),
    ("truth values", lambda x: x > 0),
    ("float8", lambda x: jnp.asarray(x, jnp.float8_e4m3fn)),
]
FLOATS = [*FLOATS_ANY_ROWS, *_SHAPES]
KERNEL_DATA = [b for b in FLOATS if b[0] != "integers"]
IDS_ANY_ROWS: list[Bad] = [
    *_OBJECTS,
    *_NONE,
    ("a scalar", lambda x: 1),
    ("floats", lambda x: x.astype(np.float32)),
    ("truth values", lambda x: x > 0),
    ("complex numbers", lambda x: x.astype(np.complex64)),
    ("a matrix", lambda x: x[:, None]),
]
IDS = [*IDS_ANY_ROWS, *_SHAPES]
HOST_IDS = [*IDS, ("-1", lambda x: x * 0 - 1), ("2³¹", lambda x: np.full(len(x), 2**31))]
OPTIONAL_IDS = [b for b in IDS if b[0] != "None"]
SIZE_OR_NONE: list[Bad] = [
    ("-1", lambda x: -1),
    ("1.5", lambda x: 1.5),
    ("a string", lambda x: "3"),
    ("a float", lambda x: np.float32(3)),
    ("nan", lambda x: float("nan")),
    ("a list", lambda x: [3]),
    ("an array", lambda x: np.array([3, 4])),
    ("an object", lambda x: object()),
    ("-2⁷⁰", lambda x: -(2**70)),
    ("2⁷⁰", lambda x: 2**70),
]
SIZE = [*SIZE_OR_NONE, *_NONE]
SIZE_ONLY_TYPE = [b for b in SIZE_OR_NONE if "⁷" not in b[0]]
INTEGER = [b for b in SIZE_OR_NONE if not b[0].startswith("-")]
REAL: list[Bad] = [
    *_OBJECTS,
    ("truth values", lambda x: np.asarray(x) > 0),
    ("complex numbers", lambda x: np.asarray(x).astype(np.complex64)),
    ("three axes", lambda x: np.zeros((*np.shape(x), 1, 1), np.float32)),
]
VECTOR = [*REAL, *_SHAPES]
CHOICE_OR_NONE: list[Bad] = [
    ("another word", lambda x: "bogus"),
    ("an empty word", lambda x: ""),
    ("a number", lambda x: 3),
    ("a list", lambda x: ["sum"]),
    ("an array", lambda x: np.zeros(2)),
    ("an object", lambda x: object()),
]
CHOICE = [*CHOICE_OR_NONE, *_NONE]
MATRIX = [*FLOATS_ANY_ROWS[:9], ("a vector", lambda x: x[0]), ("an axis more", lambda x: x[None])]
MATRIX = [b for b in MATRIX if b[0] not in ("complex numbers", "integers")]
BIAS = [*_OBJECTS, ("complex numbers", lambda x: x.astype(np.complex64)), *_SHAPES]
SPARSE: list[Bad] = [*_OBJECTS, *_NONE, ("an array", lambda x: x.toarray())]
DTYPE: list[Bad] = [
    ("another word", lambda x: "bogus"),
    ("truth values", lambda x: "bool"),
    ("a narrower type", lambda x: "float16"),
    ("an integer type", lambda x: np.int32),
    ("an object", lambda x: object()),
    ("a string type", lambda x: "U4"),
]
GRAPHS: list[Bad] = [*_OBJECTS, *_NONE, ("arrays", lambda x: (x, x))]


class Valid:
    """Arguments that are right, small, and the same for every function."""

    def __init__(self, random: Random) -> None:
        rng = random.rng
        self.ids = np.sort(rng.integers(0, 3, 6)).astype(np.int32)
        self.data = rng.normal(size=(6, 2)).astype(np.float32)
        self.x = rng.normal(size=(4, 2)).astype(np.float32)
        self.y = rng.normal(size=(3, 2)).astype(np.float32)
        self.src = rng.integers(0, 4, 6).astype(np.int32)
        self.weight = rng.random(6).astype(np.float32)
        sizes = {"num_src": 4, "num_dst": 3}
        self.graph = jax_gnn.Graph.from_edges(self.src, self.ids, **sizes)
        self.relational = jax_gnn.RelationalGraph.from_triples(
            self.src, self.ids, self.ids, **sizes
        )
        sizes = {"num_nodes": 4, "num_hyperedges": 3}
        self.hypergraph = jax_gnn.Hypergraph.from_incidence(self.src, self.ids, **sizes)
        self.sparse = scipy.sparse.coo_array(
            (np.ones(2), (np.array([0, 2]), np.array([1, 0]))), shape=(4, 3)
        )


Call = tuple[str, Callable[..., Any], dict[str, Any], dict[str, list[Bad]]]


def calls(v: Valid) -> list[Call]:
    """Each function with right arguments, and how each of them can be wrong."""
    result: list[Call] = []

    def add(of: str, call: Any, arguments: dict[str, Any], /, **bad: list[Bad]) -> None:
        result.append((of, call, arguments, bad))

    implementation = {"implementation": CHOICE_OR_NONE}
    for name in dir(jax_gnn):
        if not name.startswith("segment_") or name in ("segment_matmul", "segment_outer"):
            continue
        function = getattr(jax_gnn, name)
        if not callable(function):
            continue
        data = ADDABLE if name in ("segment_sum", "segment_prod") else REAL_DATA
        if name in ("segment_mean", "segment_max", "segment_min"):
            data = DATA  # jax.ops orders complex numbers too
        arguments = {"data": v.data, "segment_ids": v.ids, "num_segments": 3}
        options = {"mode": CHOICE_OR_NONE, **implementation}
        if name in ("segment_sum", "segment_max", "segment_min", "segment_prod"):
            options["bucket_size"] = [*INTEGER, ("0", lambda x: 0), ("-1", lambda x: -1)]
        if name in ("segment_var", "segment_std"):
            options["ddof"] = INTEGER
        add(name, function, arguments, data=data, segment_ids=IDS, num_segments=SIZE_OR_NONE,
            **options)  # fmt: skip
        indptr = {"data": v.data, "indptr": np.array([0, 2, 6], np.int32), "num_segments": 2}
        bad_indptr = [b for b in OPTIONAL_IDS if b[0] not in ("a row more", "a row less")]
        bad_indptr += [("no element", lambda x: x[:0]), ("None", lambda x: None)]
        wrong = [*SIZE_OR_NONE, ("another number", lambda x: 3)]
        add(name, function, indptr, indptr=bad_indptr, num_segments=wrong)

    index = jax_gnn.SegmentIndex.from_ids(v.src, 4)
    from_ids = {"ids": v.src, "num_segments": 4}
    make = jax_gnn.SegmentIndex.from_ids
    add("SegmentIndex.from_ids", make, from_ids, ids=IDS_ANY_ROWS, num_segments=SIZE)
    add("SegmentIndex.gather", index.gather, {"x": v.x}, x=KERNEL_DATA, **implementation)
    data = {"data": v.data}
    method = index.segment_sum
    add("SegmentIndex.segment_sum", method, data, data=KERNEL_DATA, **implementation)

    edges = {"graph": v.graph, "x": v.x, "weight": v.weight}
    graphs = [*GRAPHS, ("a hypergraph", lambda x: v.hypergraph)]
    add("spmm", jax_gnn.spmm, edges, graph=graphs, x=FLOATS, weight=VECTOR, reduce=CHOICE,
        **implementation)  # fmt: skip
    finished = {"graph": v.graph, "x": v.x, "residual": v.y, "bias": v.y[0],
                "out_scale": v.y[:, 0], "result_scale": v.y[:, 0]}  # fmt: skip
    residuals = [b for b in FLOATS if b[0] != "None"]
    add("spmm", jax_gnn.spmm, finished, bias=BIAS, out_scale=BIAS, result_scale=BIAS,
        activation=CHOICE_OR_NONE, residual=residuals)  # fmt: skip
    ab = {"graph": v.graph, "a": v.y, "b": v.x}
    add("sddmm", jax_gnn.sddmm, ab, graph=graphs, a=FLOATS, b=FLOATS, op=CHOICE, **implementation)
    of_edges = np.ones((6, 2), np.float32)
    attention = {"graph": v.graph, "value": v.x[..., None], "edge_bias": of_edges,
                 "edge_scale": of_edges, "dst_ids": v.ids, "sum_ids": v.ids.copy(),
                 "num_sums": 3}  # fmt: skip
    real = [b for b in FLOATS if b[0] not in ("integers", "float8")]
    optional = [b for b in real if b[0] != "None"]
    scores = {"dst_score": real, "src_score": real, "value": FLOATS, "edge_bias": optional,
              "edge_scale": optional, "dst_ids": OPTIONAL_IDS, "sum_ids": IDS,
              "num_sums": SIZE}  # fmt: skip
    scores["dst_score"] = [b for b in real if b not in _SHAPES]  # any rows, by dst_ids
    additive = attention | {"dst_score": v.y, "src_score": v.x}
    add("additive_attention", jax_gnn.additive_attention, additive, graph=graphs, **scores,
        **implementation)  # fmt: skip
    del scores["dst_score"], scores["src_score"]
    rows = [b for b in FLOATS if b not in _SHAPES]
    dots = attention | {"query": v.y[..., None], "key": v.x[..., None]}
    add("dot_attention", jax_gnn.dot_attention, dots, graph=graphs, query=rows, key=FLOATS,
        **scores, **implementation)  # fmt: skip
    del scores["value"], attention["value"]
    pairs = {"dst": v.y[..., None], "src": v.x[..., None], "attention": np.ones((2, 1))}
    add("gatv2_attention", jax_gnn.gatv2_attention, attention | pairs, graph=graphs, dst=rows,
        src=FLOATS, attention=real, **scores, **implementation)  # fmt: skip
    bare = {"x": v.x, "index": v.src, "segment_ids": v.ids, "num_segments": 3, "weight": v.weight}
    add("index_segment_reduce", jax_gnn.index_segment_reduce, bare, x=FLOATS_ANY_ROWS, index=IDS,
        segment_ids=IDS, num_segments=SIZE, weight=VECTOR, reduce=CHOICE,
        **implementation)  # fmt: skip

    sizes = np.array([2, 3, 0], np.int32)
    w = np.ones((3, 2, 5), np.float32)
    product = {"lhs": v.data, "rhs": w, "group_sizes": sizes, "bias": np.ones((3, 5), np.float32),
               "residual": np.ones((len(v.data), 5), np.float32)}  # fmt: skip
    offset = [b for b in IDS_ANY_ROWS if b[0] not in ("a scalar", "None")]
    offset += [("two", lambda x: np.array([0, 1])), ("1.5", lambda x: 1.5)]
    options = {"precision": CHOICE_OR_NONE[:1] + CHOICE_OR_NONE[2:],
               "preferred_element_type": DTYPE, **implementation}  # fmt: skip
    add("segment_matmul", jax_gnn.segment_matmul, product, lhs=MATRIX, rhs=[*MATRIX, *_SHAPES],
        group_sizes=IDS, bias=BIAS, residual=BIAS, activation=CHOICE_OR_NONE,
        **options)  # fmt: skip
    places = np.arange(len(v.data))
    listed = {**product, "lhs_rows": places, "out_rows": places, "scale": v.data[:, 0]}
    lists = [b for b in IDS_ANY_ROWS if b[0] != "None"]
    add("segment_matmul", jax_gnn.segment_matmul, listed, lhs_rows=[*lists, *_SHAPES],
        out_rows=[*lists, *_SHAPES], scale=BIAS)  # fmt: skip
    shifted = {**product, "group_offset": np.zeros(1, np.int32)}
    add("segment_matmul", jax_gnn.segment_matmul, shifted, group_offset=offset)
    outer = {"lhs": v.data, "rhs": v.data, "group_sizes": sizes}
    add("segment_outer", jax_gnn.segment_outer, outer, lhs=[*MATRIX, *_SHAPES],
        rhs=[*MATRIX, *_SHAPES], group_sizes=IDS_ANY_ROWS, num_groups=SIZE_ONLY_TYPE,
        **options)  # fmt: skip
    listed = {**outer, "lhs_rows": places, "rhs_rows": places, "scale": v.data[:, 0]}
    add("segment_outer", jax_gnn.segment_outer, listed, lhs_rows=[*lists, *_SHAPES],
        rhs_rows=[*lists, *_SHAPES], scale=BIAS)  # fmt: skip
    shifted = {**outer, "group_offset": np.zeros(1, np.int32)}
    add("segment_outer", jax_gnn.segment_outer, shifted, group_offset=offset)

    plan = jax_gnn.TypePlan.from_types(v.ids, 3)
    add("TypePlan.from_types", jax_gnn.TypePlan.from_types, {"types": v.ids, "num_types": 3},
        types=IDS_ANY_ROWS, num_types=SIZE)  # fmt: skip
    add("TypePlan.from_sizes", jax_gnn.TypePlan.from_sizes, {"group_sizes": sizes},
        group_sizes=IDS_ANY_ROWS)  # fmt: skip
    rows = [*_OBJECTS, *_NONE, ("a scalar", lambda x: 1.5), *_SHAPES]
    add("TypePlan.sort", plan.sort, {"x": v.data}, x=rows)
    add("TypePlan.unsort", plan.unsort, {"x": v.data}, x=rows)

    pairs = {"src": v.src, "dst": v.ids, "num_src": 4, "num_dst": 3}
    add("Graph.from_edges", jax_gnn.Graph.from_edges, pairs, src=HOST_IDS, dst=HOST_IDS,
        num_src=SIZE_OR_NONE, num_dst=SIZE_OR_NONE)  # fmt: skip
    one = {"src": v.src, "dst": v.ids, "num_nodes": 4}
    add("Graph.from_edges", jax_gnn.Graph.from_edges, one, src=HOST_IDS, dst=HOST_IDS,
        num_nodes=[*SIZE_OR_NONE, ("too few", lambda x: 0)])  # fmt: skip
    add("Graph.from_scipy", jax_gnn.Graph.from_scipy, {"matrix": v.sparse}, matrix=SPARSE)
    add("Graph.edge_values", v.graph.edge_values, {"values": v.data, "fill_value": 0},
        values=[*_OBJECTS, *_NONE, ("a scalar", lambda x: 1.0)],
        fill_value=[*_OBJECTS, *_NONE, ("two", lambda x: np.ones(7))])  # fmt: skip
    capacities: dict[str, Any] = {"num_src": 5, "num_dst": 5, "num_edges": 9}
    capacity = [*SIZE_OR_NONE, ("too few", lambda x: 2)]
    add("Graph.pad", v.graph.pad, capacities, **dict.fromkeys(capacities, capacity))

    relational = jax_gnn.RelationalGraph
    sized = {"src": v.src, "rel": v.ids, "dst": v.ids}
    parts: list[Bad] = [*CHOICE, ("an unknown part", lambda x: ("nodes",))]
    parts += [("a part", lambda x: "to_pairs"), ("numbers", lambda x: (1, 2))]
    for sizes, names in (
        ({"num_nodes": 4}, ["num_nodes"]),
        ({"num_src": 4, "num_dst": 3}, ["num_src", "num_dst"]),
    ):
        add("RelationalGraph.from_triples", relational.from_triples,
            {**sized, **sizes, "num_relations": 3, "parts": ("to_pairs",)}, parts=parts,
            num_relations=SIZE_OR_NONE, **dict.fromkeys(sized, HOST_IDS),
            **dict.fromkeys(names, SIZE_OR_NONE))  # fmt: skip
    edges = {("a", "r", "b"): np.stack([v.src, v.ids])}
    mappings: list[Bad] = [*GRAPHS, ("names", lambda x: ["a", "b"])]
    add("RelationalGraph.from_edge_dict", relational.from_edge_dict,
        {"edges": edges, "num_nodes": {"a": 4, "b": 3}, "inverse": True, "inverse_prefix": "rev_"},
        inverse_prefix=[*_NONE, ("a number", lambda x: 3)],
        edges=[*mappings, ("another type", lambda x: {("a", "r", "c"): x["a", "r", "b"]}),
               ("two names", lambda x: {("a", "r"): x["a", "r", "b"]}),
               ("three rows", lambda x: {("a", "r", "b"): np.zeros((3, 2), int)}),
               ("a vector", lambda x: {("a", "r", "b"): np.zeros(2, int)}),
               ("a number", lambda x: {("a", "r", "b"): 2}),
               ("floats", lambda x: {("a", "r", "b"): np.zeros((2, 2))}),
               ("too large", lambda x: {("a", "r", "b"): x["a", "r", "b"] + 4})],
        num_nodes=[*mappings, ("too few", lambda x: {"a": 4}),
                   ("a number as a name", lambda x: {1: 4, **x}),
                   *((name, lambda x, bad=bad: {**x, "a": bad(4)}) for name, bad in SIZE)],
    )  # fmt: skip
    typed = v.relational
    add("RelationalGraph.edge_values", typed.edge_values, {"values": v.data, "fill_value": 0},
        values=[*_OBJECTS, *_NONE, ("a scalar", lambda x: 1.0)],
        fill_value=[*_OBJECTS, *_NONE, ("two", lambda x: np.ones(7))])  # fmt: skip
    few = [*SIZE_OR_NONE, ("too few", lambda x: 0)]
    capacities = {"num_src": 5, "num_dst": 5, "num_edges": 9, "num_src_pairs": 9,
                  "num_dst_pairs": 9}  # fmt: skip
    add("RelationalGraph.pad", typed.pad, capacities,
        **dict.fromkeys(capacities, few))  # fmt: skip
    bad_dtypes = [b for b in DTYPE if b[0] != "a narrower type"]
    add("RelationalGraph.norm", typed.norm, {"kind": "mean", "dtype": "float32"},
        kind=CHOICE, dtype=bad_dtypes)  # fmt: skip

    h = jax_gnn.Hypergraph
    pairs = {"node_idx": v.src, "hyperedge_idx": v.ids, "num_nodes": 4, "num_hyperedges": 3}
    add("Hypergraph.from_incidence", h.from_incidence, pairs, node_idx=HOST_IDS,
        hyperedge_idx=HOST_IDS, num_nodes=SIZE_OR_NONE, num_hyperedges=SIZE_OR_NONE)  # fmt: skip
    pairs = {"tail_nodes": v.src, "tail_hyperedges": v.ids, "head_nodes": v.src,
             "head_hyperedges": v.ids, "num_nodes": 4, "num_hyperedges": 3}  # fmt: skip
    add("Hypergraph.from_directed", h.from_directed, pairs,
        **dict.fromkeys(list(pairs)[:4], HOST_IDS),
        num_nodes=SIZE_OR_NONE, num_hyperedges=SIZE_OR_NONE)  # fmt: skip
    members: list[Bad] = [
        ("a number", lambda x: 3),
        ("None", lambda x: None),
        ("numbers", lambda x: [1, 2]),
        ("floats", lambda x: [[0.5, 1.0]]),
        ("strings", lambda x: [["a"], ["b"]]),
        ("nested", lambda x: [[[0]], [[1]]]),
        ("negative", lambda x: [[-1]]),
        ("too large", lambda x: [[4]]),
        ("None inside", lambda x: [[0], None]),
        ("truth values", lambda x: [[True, False]]),
    ]
    add("Hypergraph.from_hyperedges", h.from_hyperedges,
        {"hyperedges": [[0, 1], [], [3]], "num_nodes": 4}, hyperedges=members,
        num_nodes=SIZE_OR_NONE)  # fmt: skip
    add("Hypergraph.from_scipy", h.from_scipy, {"incidence": v.sparse},
        incidence=[*SPARSE, ("twos", lambda x: x * 2), ("nan", lambda x: x * np.nan)])  # fmt: skip
    points: list[Bad] = [
        *_OBJECTS,
        *_NONE,
        ("complex numbers", lambda x: x.astype(np.complex64)),
        ("a vector", lambda x: x[0]),
        ("nan", lambda x: x * np.nan),
        ("infinity", lambda x: x * np.inf),
    ]
    too_many = [*SIZE, ("0", lambda x: 0), ("too many", lambda x: 5)]
    add("Hypergraph.from_knn", h.from_knn, {"features": v.x, "k": 2}, features=points, k=too_many)
    add("Hypergraph.with_self_loops", v.hypergraph.with_self_loops, {"nodes": "all"}, nodes=CHOICE)
    capacities = {"num_nodes": 5, "num_hyperedges": 5, "num_incidences": 9}
    capacity = [*SIZE_OR_NONE, ("too few", lambda x: 2)]
    add("Hypergraph.pad", v.hypergraph.pad, capacities, **dict.fromkeys(capacities, capacity),
        num_head_incidences=[("given", lambda x: 9)])  # fmt: skip
    add("Hypergraph.incidence_values", v.hypergraph.incidence_values, {"values": v.data},
        values=[*_OBJECTS, *_NONE, ("a scalar", lambda x: 1.0)])  # fmt: skip

    relationals: list[Bad] = [
        *(*GRAPHS, ("a graph", lambda x: v.graph)),
        ("a type less", lambda x: replace(x, edge_types=x.edge_types[:-1])),
        ("a relation more", lambda x: replace(x, num_relations=x.num_relations + 1)),
        ("pairs only", lambda x: replace(x, out_of_pairs=None)),
        ("pairs of the other end", lambda x: replace(x, pair_dst=x.pair_src)),
        ("other tiles", lambda x: replace(x, tiles=x.nodes)),
    ]
    flags: list[Bad] = [b for b in CHOICE if b[0] != "a number"] + [("1.0", lambda x: 1.0)]
    rhs = np.ones((typed.num_relations, 2, 3), np.float32)
    summed = {"graph": typed, "x": v.x, "rhs": rhs, "weight": v.weight, "transpose_rhs": False}
    widths: list[Bad] = [("an axis more", lambda x: x[None]), ("an axis less", lambda x: x[0])]
    ways = [*CHOICE_OR_NONE, ("without its part", lambda x: "tiles")]
    add("relational_aggregate", jax_gnn.relational_aggregate, {**summed, "method": "edges"},
        graph=relationals, x=[*FLOATS, *widths, ("a column less", lambda x: x[:, 1:])],
        rhs=[*FLOATS, *widths, ("transposed", lambda x: np.swapaxes(x, 1, 2))], weight=VECTOR,
        transpose_rhs=flags, method=ways, precision=options["precision"],
        **implementation)  # fmt: skip
    table = np.ones((typed.num_relations, 4, 3), np.float32)
    add("relational_lookup", jax_gnn.relational_lookup,
        {"graph": typed, "table": table, "weight": v.weight}, graph=relationals,
        table=[*FLOATS, *widths, ("a source less", lambda x: x[:, 1:])], weight=VECTOR,
        **implementation)  # fmt: skip

    hypergraphs = [*GRAPHS, ("a graph", lambda x: v.graph)]
    edge_scale, scale = v.weight[:3], v.weight[:4]
    every = {
        "hypergraph": v.hypergraph,
        "x": v.x,
        "hyperedge_weight": edge_scale,
        "incidence_weight": v.weight,
        "head_weight": v.weight,
        "node_scale_in": scale,
        "node_scale_out": scale,
        "hyperedge_scale": edge_scale,
        "own_scale": scale,
    }
    vectors = dict.fromkeys(list(every)[2:], VECTOR)
    last = {"residual": v.x, "bias": v.x[0], "activation": "relu"}
    choices = dict.fromkeys(("hyperedge_reduce", "node_reduce"), CHOICE)
    add("hypergraph_aggregate", jax_gnn.hypergraph_aggregate, every | last,
        hypergraph=hypergraphs, x=FLOATS, **vectors, **choices, normalization=CHOICE_OR_NONE,
        residual=residuals, bias=BIAS, activation=CHOICE_OR_NONE,
        **implementation)  # fmt: skip
    few = {name: every[name] for name in ("hypergraph", *list(every)[2:5])}
    add("hypergraph_norm", jax_gnn.hypergraph_norm, few, hypergraph=hypergraphs,
        hyperedge_weight=VECTOR, incidence_weight=VECTOR, head_weight=VECTOR,
        normalization=CHOICE, **implementation)  # fmt: skip
    weighted = {"hypergraph": v.hypergraph, "x": v.x, "incidence_weight": v.weight}
    add("node_to_hyperedge", jax_gnn.node_to_hyperedge, weighted, hypergraph=hypergraphs,
        x=FLOATS, incidence_weight=VECTOR, reduce=CHOICE, **implementation)  # fmt: skip
    weighted = {"hypergraph": v.hypergraph, "h": v.y, "incidence_weight": v.weight}
    add("hyperedge_to_node", jax_gnn.hyperedge_to_node, weighted, hypergraph=hypergraphs,
        h=FLOATS, incidence_weight=VECTOR, reduce=CHOICE, **implementation)  # fmt: skip
    add("incidence_softmax", jax_gnn.incidence_softmax,
        {"hypergraph": v.hypergraph, "scores": v.weight, "by": "node"},
        hypergraph=hypergraphs, scores=FLOATS, by=CHOICE, **implementation)  # fmt: skip
    add("implementation", lambda name: jax_gnn.implementation(name).__enter__(), {"name": None},
        name=CHOICE_OR_NONE)  # fmt: skip
    return result


@functools.cache
def _calls() -> list[Call]:
    return calls(Valid(Random(0)))


# Arguments whose shapes belong together: an error may name either.
_TOGETHER = {
    "data": ("data", "segment_ids"),
    "index": ("index", "segment_ids"),
    "segment_ids": ("index", "segment_ids"),
    "group_sizes": ("group_sizes", "rhs"),
    "lhs_rows": ("lhs_rows", "out_rows", "rhs_rows"),
    "a": ("a", "b"),
    "b": ("a", "b"),
    "src": ("src", "dst"),
    "dst": ("src", "dst"),
    "node_idx": ("node_idx", "hyperedge_idx"),
    "hyperedge_idx": ("node_idx", "hyperedge_idx"),
    "tail_nodes": ("tail_nodes", "tail_hyperedges"),
    "tail_hyperedges": ("tail_nodes", "tail_hyperedges"),
    "head_nodes": ("head_nodes", "head_hyperedges"),
    "head_hyperedges": ("head_nodes", "head_hyperedges"),
    "lhs": ("lhs", "rhs"),
    "rhs": ("lhs", "rhs"),
    "name": ("implementation",),
}


def wrong_call(random: Random, mode: Mode) -> tuple[str, str | None]:
    """Makes one: what it is, and what is wrong with how it ends; None if nothing is."""
    name, function, arguments, bad = random.choice(_calls())
    argument = random.choice(list(bad))
    what, spoil = random.choice(bad[argument])
    with mode.contexts():
        value = spoil(arguments.get(argument))
        given = {**arguments, argument: value}
        traced = {
            key: x
            for key, x in given.items()
            if isinstance(x, np.ndarray | jax.Array) and x.dtype.kind in "iufcb"
        }
        under_jit = mode.jitted and (argument in traced or random.chance(0.3))
        containers = ("SegmentIndex", "Graph", "RelationalGraph", "Hypergraph")
        host_only = name.startswith((*containers, "implementation"))
        under_jit = under_jit and not host_only
        text = f"{name}({argument}={_show(value)}: {what}{', traced' if under_jit else ''})"
        try:
            if under_jit:
                rest = {key: x for key, x in given.items() if key not in traced}
                result = jax.eval_shape(lambda arrays: function(**rest, **arrays), traced)
            else:
                result = function(**given)
        except (TypeError, ValueError) as error:
            message = str(error)
            names = (argument, *_TOGETHER.get(argument, ()))
            kind = type(error).__name__
            if not any(re.search(rf"\b{n}\b", message) for n in names):
                return text, f"{kind} does not name {argument}: {message.splitlines()[0][:160]}"
            if not re.search(r"\b(got|found|is outside)\b", message):
                return text, f"{kind} does not say what was given: {message[:160]}"
            return text, None
        except Exception as error:
            return text, f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return text, f"no error, but {str(result)[:120]}"


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)[:60]
