"""Wrong types: every argument of every public function refuses them by its name, untraced.

A row of the table is a call that works. Each of its arguments is then replaced by values that no
argument takes, and some by values that only others take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
from flax import nnx

import flax_layers
import jax_gnn
from jax_gnn import (
    Graph,
    HeteroGraph,
    Hypergraph,
    RelationalGraph,
    SegmentIndex,
    TypePlan,
    datasets,
)

N, E, F = 6, 5, 4
SRC, DST = np.array([0, 1, 2, 3, 3]), np.array([0, 1, 2, 3, 5])
GRAPH = Graph.from_edges(SRC, DST, num_nodes=N)
HYPERGRAPH = Hypergraph.from_incidence(SRC, DST, num_nodes=N, num_hyperedges=N)
DIRECTED = Hypergraph.from_directed(SRC, DST, DST, SRC, num_nodes=N, num_hyperedges=N)
RELATIONAL = RelationalGraph.from_triples(SRC, DST % 2, DST, num_nodes=N, num_relations=2)
INDEX = SegmentIndex.from_ids(DST, N)
PLAN = TypePlan.from_types([1, 0, 1, 1, 0], 2)
X, ON_EDGES, OF_EDGES, OF_NODES = (
    np.ones(shape, np.float32) for shape in ((N, F), (E, F), (E,), (N,))
)
SPARSE = scipy.sparse.coo_array((OF_EDGES, (SRC, DST)), (N, N))
DATASET = datasets.GraphDataset(name="d", num_nodes=N, y=SRC[[0, 1, 2, 3, 4, 0]], src=SRC, dst=DST)

SEGMENTS = {
    "data": ON_EDGES,
    "segment_ids": DST,
    "num_segments": N,
    "indices_are_sorted": True,
    "unique_indices": False,
    "bucket_size": None,
    "mode": None,
    "implementation": "xla",
}
MATMUL = {
    "lhs": ON_EDGES,
    "rhs": np.ones((2, F, 3), np.float32),
    "group_sizes": [2, 3],
    "precision": None,
    "preferred_element_type": None,
    "group_offset": [0],
}
SCALES = {"hyperedge_weight": OF_NODES, "incidence_weight": OF_EDGES, "head_weight": OF_EDGES}
OF_CONV = {"in_features": F, "out_features": 2}
OF_STACK = OF_CONV | {
    "hidden_features": 4,
    "num_layers": 1,
    "dropout_rate": 0.5,
    "input_dropout_rate": 0.5,
}
ON_GRAPH = {"graph": GRAPH, "x": X}
ON_HYPERGRAPH = {"hypergraph": HYPERGRAPH, "x": X}
HEADS = {"heads": 1, "negative_slope": 0.1, "attention_dropout_rate": 0.5}
PER_HEAD, BY_HEADS = np.ones((N, 2), np.float32), np.ones((N, 2, 3), np.float32)
ATTENTION = {
    "graph": GRAPH,
    "negative_slope": 0.1,
    "edge_bias": np.ones((len(SRC), 2)),
    "edge_scale": np.ones((len(SRC), 2)),
    "edge_features": np.ones((len(SRC), 2, 3), np.float32),
    "dst_ids": np.zeros(len(SRC), np.int32),
    "sum_ids": np.zeros(len(SRC), np.int32),
    "num_sums": N,
    "return_lse": False,
    "implementation": "xla",
}
MODELS: list[tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        flax_layers.GCNConv,
        OF_CONV,
        {},
        ON_GRAPH | {"edge_weight": OF_EDGES, "node_scale": OF_NODES},
    ),
    (
        flax_layers.GINConv,
        OF_CONV,
        {"mlp_features": 2, "eps": 0.0},
        ON_GRAPH | {"edge_weight": OF_EDGES},
    ),
    (flax_layers.SAGEConv, OF_CONV, {"aggregation": "max"}, ON_GRAPH | {"edge_weight": OF_EDGES}),
    *(
        (layer, OF_CONV, HEADS | options, ON_GRAPH)
        for layer, options in (
            (flax_layers.GATConv, {"add_self_loops": True}),
            (flax_layers.GATv2Conv, {"share_weights": False, "add_self_loops": True}),
        )
    ),
    (
        flax_layers.TransformerConv,
        OF_CONV,
        {"heads": 1, "gated": True, "root_weight": True, "attention_dropout_rate": 0.5},
        ON_GRAPH,
    ),
    (
        flax_layers.HGNNConv,
        OF_CONV,
        {"normalization": "row"},
        ON_HYPERGRAPH | {"hyperedge_weight": OF_NODES, "incidence_weight": OF_EDGES},
    ),
    (
        flax_layers.HGNNPConv,
        OF_CONV,
        {"num_hyperedges": N},
        ON_HYPERGRAPH | {"hyperedge_weight": OF_NODES},
    ),
    (
        flax_layers.HypergraphAttentionConv,
        OF_CONV,
        HEADS | {"softmax_by": "node", "degrees": "ones"},
        ON_HYPERGRAPH | {"hyperedge_weight": OF_NODES, "hyperedge_attr": X},
    ),
    (flax_layers.UniGINConv, OF_CONV, {"hyperedge_reduce": "max", "eps": 0.0}, ON_HYPERGRAPH),
    (
        flax_layers.UniSAGEConv,
        OF_CONV,
        {"hyperedge_reduce": "max", "node_reduce": "sum"},
        ON_HYPERGRAPH,
    ),
    (flax_layers.UniGATConv, OF_CONV, HEADS, ON_HYPERGRAPH),
    (
        flax_layers.UniGCNIIConv,
        {"features": F},
        {"alpha": 0.1, "lamda": 0.5, "layer": 1},
        ON_HYPERGRAPH | {"x0": X},
    ),
    (
        flax_layers.AllDeepSetsConv,
        OF_CONV,
        {"aggregation": "sum", "mlp_layers": 1, "dropout_rate": 0.1},
        ON_HYPERGRAPH,
    ),
    (
        flax_layers.AllSetTransformerConv,
        OF_CONV,
        {"heads": 1, "mlp_layers": 1, "negative_slope": 0.1, "dropout_rate": 0.1},
        ON_HYPERGRAPH,
    ),
    (
        flax_layers.TypedLinear,
        OF_CONV | {"num_types": 2},
        {},
        {"x": ON_EDGES, "types": [0, 1, 1, 0, 1]},
    ),
    (
        flax_layers.RGCNConv,
        OF_CONV | {"num_relations": 2},
        {"norm": "sum", "num_bases": 2, "num_blocks": None},
        {"graph": RELATIONAL, "x": X, "edge_weight": OF_EDGES, "x_dst": X},
    ),
    (
        flax_layers.RGATConv,
        OF_CONV | {"num_relations": 2, "edge_features": F},
        HEADS
        | {"attention": "multiplicative", "softmax": "within", "num_bases": 2}
        | {"num_blocks": None, "method": "auto"},
        {"graph": RELATIONAL, "x": X, "edge_attr": ON_EDGES},
    ),
    (
        flax_layers.HGTConv,
        OF_CONV | {"num_relations": 2},
        {"heads": 1, "node_types": 1, "method": "auto"},
        {"graph": RELATIONAL, "x": X},
    ),
    *(
        (model, OF_STACK | {"num_relations": 2}, {}, {"graph": RELATIONAL, "x": X})
        for model in (flax_layers.RGCN, flax_layers.RGAT, flax_layers.HGT)
    ),
    *(
        (model, OF_STACK, {}, ON_GRAPH)
        for model in (
            *(flax_layers.GCN, flax_layers.GIN, flax_layers.SAGE),
            *(flax_layers.GAT, flax_layers.GATv2, flax_layers.GraphTransformer),
        )
    ),
    *(
        (model, OF_STACK, {}, {"graph": HYPERGRAPH, "x": X})
        for model in (
            flax_layers.HGNN,
            flax_layers.HGNNP,
            flax_layers.HypergraphAttention,
            flax_layers.UniGIN,
            flax_layers.UniSAGE,
            flax_layers.UniGAT,
            flax_layers.UniGCNII,
            flax_layers.AllDeepSets,
            flax_layers.AllSetTransformer,
        )
    ),
]


INVERSE = RelationalGraph.from_triples(SRC, DST % 2, DST, N, 2, inverse=True)
OF_RELATIONS = np.ones((4, F), np.float32)
MODELS += [
    (model, sizes | {"num_relations": 4}, {"composition": "sub"} | options, call)
    for call in ({"graph": INVERSE, "x": X, "relations": OF_RELATIONS},)
    for model, sizes, options in (
        (flax_layers.CompGCNConv, OF_CONV, {"norm": "mean"}),
        (flax_layers.CompGCN, OF_STACK, {}),
    )
]

# Dicts by type, and links.
KEYS = ("a", "r", "b"), ("b", "s", "b")
EDGES, BY_TYPE = {key: np.stack([SRC, DST]) for key in KEYS}, {"a": X, "b": X}
HETERO = HeteroGraph.from_edges(EDGES, {"a": N, "b": N}).with_graphs()
QUERIES = {"subjects": ON_EDGES, "relations": ON_EDGES}
FACTS = SRC, DST % 2, DST
OF_LINKS = {"decoder": flax_layers.DistMult(), "nodes": X, "relations": OF_RELATIONS}


def convolutions() -> Any:
    rngs = nnx.Rngs(0)
    return dict(
        zip(
            KEYS,
            (flax_layers.SAGEConv((F, F), 2, rngs=rngs), flax_layers.GATConv(F, 2, rngs=rngs)),
            strict=True,
        )
    )


def predictor() -> flax_layers.LinkPredictor:
    return flax_layers.LinkPredictor(N, 4, F, F, None, OF_LINKS["decoder"], rngs=nnx.Rngs(0))


RANKING = flax_layers.LinkRanking.from_facts(*FACTS, FACTS, num_nodes=N, num_relations=2)


def made(model: Any) -> Callable[..., Any]:
    return lambda **arguments: model(**arguments, rngs=nnx.Rngs(0))


def called(model: Any, sizes: dict[str, Any]) -> Callable[..., Any]:
    def apply(arguments: dict[str, Any]) -> Any:
        layer = model(**sizes, rngs=nnx.Rngs(0))
        layer.eval()
        return layer(**arguments)

    return lambda **arguments: jax.eval_shape(lambda: apply(arguments))  # traced, not computed


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{
        name: (
            getattr(jax_gnn, name),
            SEGMENTS | ({"ddof": 1} if name[-3:] in ("var", "std") else {}),
        )
        for name in jax_gnn.__all__
        if name.startswith("segment_") and name not in ("segment_matmul", "segment_outer")
    },
    "segment_sum by indptr": (jax_gnn.segment_sum, {"data": ON_EDGES, "indptr": [0, 2, 5]}),
    "segment_matmul": (
        jax_gnn.segment_matmul,
        MATMUL
        | {
            "bias": np.ones((2, 3)),
            "activation": "relu",
            "transpose_rhs": False,
            "implementation": "xla",
        },
    ),
    "segment_outer": (
        jax_gnn.segment_outer,
        MATMUL | {"rhs": ON_EDGES, "num_groups": 2, "deterministic": True, "implementation": "xla"},
    ),
    "spmm": (
        jax_gnn.spmm,
        {"graph": GRAPH, "x": X, "weight": OF_EDGES, "reduce": "sum", "implementation": "xla"},
    ),
    "additive_attention": (
        jax_gnn.additive_attention,
        ATTENTION | {"dst_score": PER_HEAD, "src_score": PER_HEAD, "value": BY_HEADS},
    ),
    "gatv2_attention": (
        jax_gnn.gatv2_attention,
        ATTENTION | {"dst": BY_HEADS, "src": BY_HEADS, "attention": BY_HEADS[0]},
    ),
    "dot_attention": (
        jax_gnn.dot_attention,
        {name: each for name, each in ATTENTION.items() if name != "negative_slope"}
        | {"query": BY_HEADS, "key": BY_HEADS, "value": BY_HEADS, "scale": 0.5},
    ),
    "relational_aggregate": (
        jax_gnn.relational_aggregate,
        {
            "graph": RELATIONAL,
            "x": X,
            "rhs": np.ones((2, F, 3), np.float32),
            "weight": OF_EDGES,
            "transpose_rhs": False,
            "method": "edges",
            "precision": None,
            "implementation": "xla",
        },
    ),
    "relational_lookup": (
        jax_gnn.relational_lookup,
        {
            "graph": RELATIONAL,
            "table": np.ones((2, N, 3), np.float32),
            "weight": OF_EDGES,
            "implementation": "xla",
        },
    ),
    "sddmm": (
        jax_gnn.sddmm,
        {"graph": GRAPH, "a": X, "b": X, "op": "dot", "implementation": "xla"},
    ),
    "index_segment_reduce": (
        jax_gnn.index_segment_reduce,
        {
            "x": X,
            "index": SRC,
            "segment_ids": DST,
            "num_segments": N,
            "weight": OF_EDGES,
            "reduce": "sum",
            "implementation": "xla",
        },
    ),
    "hypergraph_aggregate": (
        jax_gnn.hypergraph_aggregate,
        SCALES
        | {
            "hypergraph": DIRECTED,
            "x": X,
            "node_scale_in": OF_NODES,
            "node_scale_out": OF_NODES,
            "hyperedge_scale": OF_NODES,
            "own_scale": 1.0,
            "normalization": None,
            "hyperedge_reduce": "mean",
            "node_reduce": "sum",
            "implementation": "xla",
        },
    ),
    "hypergraph_norm": (
        jax_gnn.hypergraph_norm,
        SCALES | {"hypergraph": DIRECTED, "normalization": "row", "implementation": "xla"},
    ),
    "node_to_hyperedge": (
        jax_gnn.node_to_hyperedge,
        {
            "hypergraph": HYPERGRAPH,
            "x": X,
            "incidence_weight": OF_EDGES,
            "reduce": "sum",
            "implementation": "xla",
        },
    ),
    "hyperedge_to_node": (
        jax_gnn.hyperedge_to_node,
        {
            "hypergraph": HYPERGRAPH,
            "h": X,
            "incidence_weight": OF_EDGES,
            "reduce": "sum",
            "implementation": "xla",
        },
    ),
    "incidence_softmax": (
        jax_gnn.incidence_softmax,
        {"hypergraph": HYPERGRAPH, "scores": OF_EDGES, "by": "node", "implementation": "xla"},
    ),
    "implementation": (
        lambda implementation: jax_gnn.implementation(implementation),
        {"implementation": "xla"},
    ),
    # Containers.
    "Graph.from_edges": (
        Graph.from_edges,
        {"src": SRC, "dst": DST, "num_src": N, "num_dst": N, "validate": True},
    ),
    "Graph.from_edges of nodes": (Graph.from_edges, {"src": SRC, "dst": DST, "num_nodes": N}),
    "Graph.from_scipy": (Graph.from_scipy, {"matrix": SPARSE}),
    "Graph.edge_values": (GRAPH.edge_values, {"values": OF_EDGES, "fill_value": 0}),
    "Graph.pad": (GRAPH.pad, {"num_src": 9, "num_dst": 9, "num_edges": 9}),
    "Graph.pad of nodes": (GRAPH.pad, {"num_nodes": 9}),
    "Hypergraph.from_incidence": (
        Hypergraph.from_incidence,
        {
            "node_idx": SRC,
            "hyperedge_idx": DST,
            "num_nodes": N,
            "num_hyperedges": N,
            "validate": True,
        },
    ),
    "Hypergraph.from_directed": (
        Hypergraph.from_directed,
        {
            "tail_nodes": SRC,
            "tail_hyperedges": DST,
            "head_nodes": SRC,
            "head_hyperedges": DST,
            "num_nodes": N,
            "num_hyperedges": N,
            "validate": True,
        },
    ),
    "Hypergraph.from_hyperedges": (
        Hypergraph.from_hyperedges,
        {"hyperedges": [[0, 1], [2]], "num_nodes": 3},
    ),
    "Hypergraph.from_scipy": (Hypergraph.from_scipy, {"incidence": SPARSE}),
    "Hypergraph.from_knn": (Hypergraph.from_knn, {"features": X, "k": 2}),
    "Hypergraph.with_self_loops": (HYPERGRAPH.with_self_loops, {"nodes": "all"}),
    "Hypergraph.pad": (
        DIRECTED.pad,
        {"num_nodes": 9, "num_hyperedges": 9, "num_incidences": 9, "num_head_incidences": 9},
    ),
    "Hypergraph.incidence_values": (
        HYPERGRAPH.incidence_values,
        {"values": OF_EDGES, "fill_value": 0},
    ),
    "SegmentIndex.from_ids": (SegmentIndex.from_ids, {"ids": DST, "num_segments": N}),
    "SegmentIndex.gather": (INDEX.gather, {"x": X, "implementation": "xla"}),
    "SegmentIndex.segment_sum": (INDEX.segment_sum, {"data": ON_EDGES, "implementation": "xla"}),
    "TypePlan.from_types": (TypePlan.from_types, {"types": [0, 1], "num_types": 2}),
    "TypePlan.from_sizes": (TypePlan.from_sizes, {"group_sizes": [1, 2]}),
    "TypePlan.sort": (PLAN.sort, {"x": ON_EDGES}),
    "TypePlan.unsort": (PLAN.unsort, {"x": ON_EDGES}),
    # Layers: an argument of nnx.Linear's is left to that.
    "gcn_norm": (flax_layers.gcn_norm, {"graph": GRAPH, "edge_weight": OF_EDGES}),
    "unigcn_norm": (flax_layers.unigcn_norm, {"hypergraph": HYPERGRAPH}),
    **{
        f"{model.__name__} made": (made(model), sizes | of_model)
        for model, sizes, of_model, _ in MODELS
    },
    **{
        f"{model.__name__} called": (called(model, sizes), call) for model, sizes, _, call in MODELS
    },
    # Dicts by type.
    "HeteroGraph.from_edges": (
        HeteroGraph.from_edges,
        {
            "edges": EDGES,
            "num_nodes": {"a": N, "b": N},
            "inverse": True,
            "self_relation": False,
            "parts": ("to_pairs",),
            "validate": True,
        },
    ),
    "HeteroGraph.join": (HETERO.join, {"x_dict": BY_TYPE}),
    "HeteroGraph.split": (HETERO.split, {"x": np.ones((2 * N, F), np.float32)}),
    "HeteroGraph.with_graphs": (HETERO.with_graphs, {"edge_types": KEYS[:1]}),
    "HeteroGraph.graph": (HETERO.graph, {"edge_type": KEYS[0]}),
    "HeteroGraph.relation": (HETERO.relation, {"edge_type": KEYS[0]}),
    "HeteroConv made": (
        flax_layers.HeteroConv,
        {"convolutions": convolutions(), "aggregation": "sum"},
    ),
    "HeteroConv called": (
        flax_layers.HeteroConv(convolutions()),
        {"graph": HETERO, "x_dict": BY_TYPE, "arguments": {KEYS[0]: {}}},
    ),
    "HeteroLinear made": (
        made(flax_layers.HeteroLinear),
        {"in_features": {"b": F}, "out_features": 2},
    ),
    "HeteroLinear called": (
        flax_layers.HeteroLinear({"b": F}, 2, rngs=nnx.Rngs(0)),
        {"x_dict": {"b": X}},
    ),
    "HeteroModel made": (
        made(flax_layers.HeteroModel),
        {"in_features": {"b": F}, "model": convolutions()[KEYS[1]]},
    ),
    # Links.
    "DistMult": (OF_LINKS["decoder"], QUERIES),
    "ComplEx": (flax_layers.ComplEx(), QUERIES),
    "ConvE": (flax_layers.ConvE(F, height=2, filters=1, kernel_size=1, rngs=nnx.Rngs(0)), QUERIES),
    "LinkPredictor made": (
        made(flax_layers.LinkPredictor),
        {
            "num_nodes": N,
            "num_relations": 4,
            "in_features": F,
            "relation_features": F,
            "encoder": None,
            "decoder": OF_LINKS["decoder"],
            "dropout_rate": 0.5,
        },
    ),
    "LinkPredictor.scores": (
        predictor().scores,
        {"nodes": X, "relations": OF_RELATIONS, "subjects": SRC, "relation_ids": DST % 2},
    ),
    "LinkRanking.from_facts": (
        flax_layers.LinkRanking.from_facts,
        {
            **dict(zip(("subjects", "relations", "objects"), FACTS, strict=True)),
            "known": FACTS,
            "num_nodes": N,
            "num_relations": 2,
            "chunk_size": 4,
        },
    ),
    "LinkRanking.ranks": (RANKING.ranks, OF_LINKS),
    "link_metrics": (flax_layers.link_metrics, {"ranks": np.ones((3, 2))}),
    "one_vs_all_loss": (
        flax_layers.one_vs_all_loss,
        {
            "scores": np.ones((5, N), np.float32),
            "rows": np.arange(5),
            "objects": DST,
            "kind": "softmax",
            "label_smoothing": 0.1,
        },
    ),
    "negative_sampling_loss": (
        flax_layers.negative_sampling_loss,
        {"right": OF_EDGES, "wrong": ON_EDGES},
    ),
    # Datasets.
    "random_split": (
        datasets.random_split,
        {"y": [0, 1, 0, 1], "train": 0.5, "valid": 0.25, "seed": 0},
    ),
    "with_noisy_label_features": (
        datasets.with_noisy_label_features,
        {"dataset": DATASET, "num_features": 8, "noise": 1.0, "seed": 0},
    ),
    "with_random_features": (
        datasets.with_random_features,
        {"dataset": DATASET, "num_features": 8, "seed": 0},
    ),
}
WRONG: dict[str, Any] = {
    "None": None,
    "string": "text",
    "dict": {"a": 1},
    "set": {1},
    "object": object(),
    "ragged": [[1, 2], [3]],
    "strings": np.array(["a", "b"]),
    "objects": np.array(["a", None], object),
    "complex": np.array([1j]),
}
# Arguments that take such a value, beside those that are optional.
TAKEN = {
    ("segment_sum by indptr", "data", "complex"),
    ("Graph.edge_values", "values", "complex"),
    ("Hypergraph.incidence_values", "values", "complex"),
    ("Hypergraph.from_hyperedges", "hyperedges", "ragged"),
    ("HeteroLinear made", "in_features", "dict"),
    ("HeteroModel made", "in_features", "dict"),
}
OPTIONAL = {
    *("num_segments", "bucket_size", "mode", "implementation", "precision", "bias", "activation"),
    *("preferred_element_type", "group_offset", "num_groups", "weight", "incidence_weight"),
    *("hyperedge_weight", "head_weight", "node_scale_in", "node_scale_out", "hyperedge_scale"),
    *("own_scale", "normalization", "num_src", "num_dst", "num_nodes", "num_edges"),
    *("num_hyperedges", "num_incidences", "num_head_incidences", "edge_weight", "node_scale"),
    *("hyperedge_attr", "mlp_features", "method", "num_bases", "num_blocks", "x_dst"),
    *("edge_bias", "edge_scale", "edge_features", "dst_ids", "scale"),
    *("edge_types", "arguments", "encoder"),
}
REQUIRED = {
    ("index_segment_reduce", "num_segments"),
    ("SegmentIndex.from_ids", "num_segments"),
    ("hypergraph_norm", "normalization"),
    ("HGNNConv made", "normalization"),
}


def cases() -> Iterator[Any]:
    for name, (_, arguments) in CALLS.items():
        for argument in arguments:
            optional = argument in OPTIONAL and (name, argument) not in REQUIRED
            wrong = [
                kind
                for kind in WRONG
                if (name, argument, kind) not in TAKEN and not (kind == "None" and optional)
            ]
            yield pytest.param(name, argument, wrong, id=f"{name}-{argument}")


@pytest.mark.parametrize("name", CALLS)
def test_calls_work(name: str) -> None:
    function, arguments = CALLS[name]
    function(**arguments)


@pytest.mark.parametrize(("name", "argument", "wrong"), list(cases()))
def test_wrong_types_are_named(name: str, argument: str, wrong: list[str]) -> None:
    function, arguments = CALLS[name]
    for kind in wrong:
        with pytest.raises((TypeError, ValueError)) as caught:
            function(**arguments | {argument: WRONG[kind]})
        message = str(caught.value)
        assert re.search(rf"\b{argument}\b", message), f"{kind}: {message}"
        assert re.search(r"\b(got|found|is outside)\b", message), f"{kind}: {message}"


def test_all_functions_are_here() -> None:
    functions = {name for name in jax_gnn.__all__ if callable(getattr(jax_gnn, name))}
    containers = {"Graph", "Hypergraph", "HypergraphNorm", "SegmentIndex", "TypePlan"}
    containers |= {"HeteroGraph", "RelationalGraph", "host_arrays"}
    assert functions - containers <= CALLS.keys()
    called = {re.split(r"[ .]", name)[0] for name in CALLS}
    assert set(flax_layers.__all__) - {"AttentionOptions", "LinearOptions", "Stack"} <= called


# --- No ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("none", [[], np.zeros(0), np.zeros((2, 0))[0]], ids=["[]", "0", "2, 0"])
def test_no_ids_are_integers(none: Any) -> None:
    """Whatever dtype numpy gives to arrays without elements."""
    sizes = {"num_nodes": N, "num_hyperedges": N}
    assert Graph.from_edges(none, none, num_nodes=N).num_edges == 0
    assert Hypergraph.from_incidence(none, none, **sizes).num_incidences == 0
    assert Hypergraph.from_directed(none, none, SRC, DST, **sizes).num_incidences == 0
    assert Hypergraph.from_hyperedges([none, [0]], num_nodes=N).num_incidences == 1
    assert RelationalGraph.from_triples(none, none, none, N, 2).num_edges == 0
    assert SegmentIndex.from_ids(none, N).ids.shape == (0,)
    assert TypePlan.from_types(none, 2).num_rows == TypePlan.from_sizes(none).num_types == 0
    assert jax_gnn.segment_sum(np.zeros((0, 2)), none, N).shape == (N, 2)
    data = datasets.GraphDataset(name="d", num_nodes=1, y=[0], src=none, dst=none, train_idx=none)
    assert data.src.dtype == np.int32
    for pair in ([], [[], []], np.zeros((2, 0)), (none, none)):
        edges = {("a", "r", "b"): pair, ("b", "s", "b"): [[0], [1]]}
        assert HeteroGraph.from_edges(edges, {"a": 1, "b": 2}).relational.num_edges == 1
    with pytest.raises(TypeError, match="src must be an array of integers, got float64"):
        Graph.from_edges(np.ones(1), [0])
