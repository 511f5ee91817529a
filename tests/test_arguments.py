"""Values that each argument of each public function refuses, and the words of the errors.

Each argument of a call that works is replaced by all that `argument_calls.ways` has for it, and of
layers and datasets by objects that no argument takes. The error names the argument and shows the
value. A table lists the messages for frequent mistakes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import argument_calls as ops
import jax
import numpy as np
import pytest
from argument_calls import OBJECTS, WORDED, Bad, Call, fault, takes_none, ways
from flax import nnx

import flax_layers
import jax_gnn
from jax_gnn import (
    Batch,
    Graph,
    HeteroGraph,
    Hypergraph,
    RelationalGraph,
    SegmentIndex,
    TypePlan,
    datasets,
    sampling,
)

# --- Layers and datasets -------------------------------------------------------------------------

N, E, F = 6, 5, 4
SRC, DST = np.array([0, 1, 2, 3, 3]), np.array([0, 1, 2, 3, 5])
GRAPH = Graph.from_edges(SRC, DST, num_nodes=N)
HYPERGRAPH = Hypergraph.from_incidence(SRC, DST, num_nodes=N, num_hyperedges=N)
RELATIONAL = RelationalGraph.from_triples(SRC, DST % 2, DST, num_nodes=N, num_relations=2)
X, EDGE_FEATURES, EDGE_WEIGHT, NODE_WEIGHT = (
    np.ones(shape, np.float32) for shape in ((N, F), (E, F), (E,), (N,))
)
DATASET = datasets.GraphDataset(name="d", num_nodes=N, y=SRC[[0, 1, 2, 3, 4, 0]], src=SRC, dst=DST)

CONV_SIZES = {"in_features": F, "out_features": 2}
MODEL_SIZES = CONV_SIZES | {
    "hidden_features": 4,
    "num_layers": 1,
    "dropout_rate": 0.5,
    "input_dropout_rate": 0.5,
}
GRAPH_CALL = {"graph": GRAPH, "x": X}
HYPERGRAPH_CALL = {"hypergraph": HYPERGRAPH, "x": X}
EDGE_SIZE = {"edge_in_features": F}
ATTENTION_SIZES = CONV_SIZES | EDGE_SIZE
ATTENTION_CALL = GRAPH_CALL | {"edge_features": EDGE_FEATURES}
FUSED_CALL = HYPERGRAPH_CALL | {"activation": "relu"}
HEADS = {"heads": 1, "negative_slope": 0.1, "attention_dropout_rate": 0.5}
# By layer: arguments of the sizes, options, and arguments of the call.
MODELS: list[tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        flax_layers.GCNConv,
        CONV_SIZES,
        {},
        GRAPH_CALL | {"edge_weight": EDGE_WEIGHT, "node_scale": NODE_WEIGHT, "activation": "relu"},
    ),
    (
        flax_layers.GINConv,
        CONV_SIZES,
        {"mlp_features": 2, "eps": 0.0},
        GRAPH_CALL | {"edge_weight": EDGE_WEIGHT},
    ),
    (
        flax_layers.SAGEConv,
        CONV_SIZES,
        {"reduce": "max"},
        GRAPH_CALL | {"edge_weight": EDGE_WEIGHT, "activation": "relu"},
    ),
    *(
        (layer, ATTENTION_SIZES, HEADS | options, ATTENTION_CALL)
        for layer, options in (
            (flax_layers.GATConv, {"add_self_loops": True}),
            (flax_layers.GATv2Conv, {"share_weights": False, "add_self_loops": True}),
        )
    ),
    (
        flax_layers.TransformerConv,
        ATTENTION_SIZES,
        {"heads": 1, "gated": True, "self_weight": True, "attention_dropout_rate": 0.5},
        ATTENTION_CALL,
    ),
    (
        flax_layers.HGNNConv,
        CONV_SIZES,
        {"normalization": "row"},
        HYPERGRAPH_CALL
        | {"hyperedge_weight": NODE_WEIGHT, "incidence_weight": EDGE_WEIGHT}
        | {"activation": "relu"},
    ),
    (
        flax_layers.HGNNPConv,
        CONV_SIZES,
        {"num_hyperedges": N},
        HYPERGRAPH_CALL | {"hyperedge_weight": NODE_WEIGHT},
    ),
    (
        flax_layers.HypergraphAttentionConv,
        CONV_SIZES,
        HEADS | {"softmax_by": "node", "degrees": "ones"},
        HYPERGRAPH_CALL | {"hyperedge_weight": NODE_WEIGHT, "hyperedge_features": X},
    ),
    (flax_layers.UniGINConv, CONV_SIZES, {"hyperedge_reduce": "max", "eps": 0.0}, FUSED_CALL),
    (
        flax_layers.UniSAGEConv,
        CONV_SIZES,
        {"hyperedge_reduce": "max", "node_reduce": "sum"},
        FUSED_CALL,
    ),
    (flax_layers.UniGATConv, CONV_SIZES, HEADS, HYPERGRAPH_CALL),
    (
        flax_layers.UniGCNIIConv,
        {"features": F},
        {"alpha": 0.1, "lamda": 0.5, "layer": 1},
        HYPERGRAPH_CALL | {"x0": X},
    ),
    (
        flax_layers.AllDeepSetsConv,
        CONV_SIZES,
        {"reduce": "sum", "mlp_layers": 1, "dropout_rate": 0.1},
        HYPERGRAPH_CALL,
    ),
    (
        flax_layers.AllSetTransformerConv,
        CONV_SIZES,
        {"heads": 1, "mlp_layers": 1, "negative_slope": 0.1, "dropout_rate": 0.1},
        HYPERGRAPH_CALL,
    ),
    (
        flax_layers.TypedLinear,
        CONV_SIZES | {"num_types": 2},
        {},
        {"x": EDGE_FEATURES, "types": [0, 1, 1, 0, 1]},
    ),
    (
        flax_layers.RGCNConv,
        CONV_SIZES | {"num_relations": 2},
        {"normalization": "sum", "num_bases": 2, "num_blocks": None},
        {"graph": RELATIONAL, "x": X, "edge_weight": EDGE_WEIGHT},
    ),
    (
        flax_layers.RGATConv,
        CONV_SIZES | {"num_relations": 2, "edge_in_features": F},
        HEADS
        | {"attention": "multiplicative", "softmax": "within", "num_bases": 2}
        | {"num_blocks": None, "method": "auto"},
        {"graph": RELATIONAL, "x": X, "edge_features": EDGE_FEATURES},
    ),
    (
        flax_layers.HGTConv,
        CONV_SIZES | {"num_relations": 2},
        {"heads": 1, "node_types": 1, "method": "auto"},
        {"graph": RELATIONAL, "x": X, "node_types": [0] * len(X)},
    ),
    *(
        (model, MODEL_SIZES | {"num_relations": 2}, {}, {"graph": RELATIONAL, "x": X})
        for model in (flax_layers.RGCN, flax_layers.RGAT, flax_layers.HGT)
    ),
    *(
        (model, MODEL_SIZES, {}, GRAPH_CALL)
        for model in (
            flax_layers.GCN,
            flax_layers.GIN,
            flax_layers.SAGE,
            flax_layers.GAT,
            flax_layers.GATv2,
            flax_layers.GraphTransformer,
        )
    ),
    *(
        (model, MODEL_SIZES, {}, {"graph": HYPERGRAPH, "x": X})
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
RELATION_FEATURES = np.ones((4, F), np.float32)
MODELS += [
    (model, sizes | {"num_relations": 4}, {"composition": "sub"} | options, call)
    for call in ({"graph": INVERSE, "x": X, "relations": RELATION_FEATURES},)
    for model, sizes, options in (
        (flax_layers.CompGCNConv, CONV_SIZES, {"normalization": "mean"}),
        (flax_layers.CompGCN, MODEL_SIZES, {}),
    )
]


def mean(g: Any, x_src: jax_gnn.Node, edge_features: jax_gnn.Edge, *, w: Any = None) -> Any:
    return g.mean(g.src(x_src).sum() + edge_features)


# Layers of programs.
PROGRAM = {"function": mean, "widths": {"hidden": 3}, "edge_dropout_rate": 0.5}
HISTOGRAM = {"degree_histogram": [1, 2]}
PNA_OPTIONS = {"reductions": ("std", "sum"), "scalers": ("linear",), "towers": 1}
PNA_OPTIONS |= {"divide_input": False, "pre_layers": 1, "post_layers": 1}
GATES: dict[str, Any] = {"reduce": "max", "mlp_features": 3, "self_weight": True}
LENGTHS = ATTENTION_CALL | {"distance": EDGE_WEIGHT}
GEN = {"reduce": "softmax", "t": 1.0, "p": 1.0, "learn_t": True, "learn_p": False}
GEN |= {"msg_norm": True, "learn_msg_scale": True, "mlp_layers": 1, "expansion": 1, "eps": 1e-7}
MODELS += [
    (getattr(flax_layers, name), sizes | EDGE_SIZE, options, ATTENTION_CALL)
    for name, sizes, options in (
        ("ProgramConv", CONV_SIZES | PROGRAM, {}),
        ("ProgramModel", MODEL_SIZES | PROGRAM, {}),
        ("GINEConv", CONV_SIZES, {"mlp_features": 2, "eps": 0.0, "edge_map": True}),
        ("GINE", MODEL_SIZES, {}),
        ("ResGatedGraphConv", CONV_SIZES, {"self_weight": True}),
        ("GatedGCNConv", CONV_SIZES, {"residual": True}),
        ("GatedGCN", MODEL_SIZES, {"residual": True}),
        ("NNConv", CONV_SIZES, GATES),
        ("CGConv", CONV_SIZES | {"out_features": F}, {"reduce": "max"}),
        ("PNAConv", CONV_SIZES | HISTOGRAM, PNA_OPTIONS),
        ("PNA", MODEL_SIZES | HISTOGRAM, {}),
        ("GENConv", CONV_SIZES, GEN),
    )
]
POINTS = np.ones((N, 3), np.float32)
LOOPS = {"add_self_loops": True}
SAME = CONV_SIZES | {"out_features": F}
OF_RELATIONS = {"num_relations": 2}
HGN = HEADS | {"beta": 0.1, "residual": True, "relation_features": 2}
MODELS += [
    (flax_layers.CFConv, CONV_SIZES | EDGE_SIZE, {"mlp_features": 3, "cutoff": 1.0}, LENGTHS),
    (
        flax_layers.EGNNConv,
        CONV_SIZES | EDGE_SIZE,
        {"mlp_features": 3, "dimensions": 3, "residual": True, "unit_differences": True},
        ATTENTION_CALL | {"pos": POINTS},
    ),
    (
        flax_layers.PaiNNConv,
        CONV_SIZES | {"out_features": F},
        {"num_basis": 3, "cutoff": 1.0},
        GRAPH_CALL | {"vectors": np.ones((N, 3, F), np.float32), "pos": POINTS},
    ),
    *(
        (getattr(flax_layers, name), sizes | OF_RELATIONS, options, {"graph": RELATIONAL, "x": X})
        for name, sizes, options in (
            ("SimpleHGNConv", CONV_SIZES, HGN),
            ("SimpleHGN", MODEL_SIZES, {"l2_normalize": True}),
            ("FiLMConv", CONV_SIZES, {"reduce": "sum"}),
            ("RGINConv", CONV_SIZES, {"mlp_features": 3, "self_weight": True}),
        )
    ),
]
POINT = LOOPS | {"mlp_features": 3, "dimensions": 3}
MODELS += [
    (getattr(flax_layers, name), sizes, options, call)
    for name, sizes, options, call in (
        ("AGNNConv", SAME, LOOPS | {"learn_beta": True}, GRAPH_CALL),
        ("SuperGATConv", CONV_SIZES, HEADS | LOOPS | {"attention_type": "SD"}, GRAPH_CALL),
        ("FAConv", SAME, LOOPS | {"eps": 0.1}, GRAPH_CALL | {"x0": X, "node_scale": NODE_WEIGHT}),
        (
            "GMMConv",
            ATTENTION_SIZES | {"kernel_size": 2},
            {"reduce": "sum", "self_weight": True},
            ATTENTION_CALL,
        ),
        (
            "PDNConv",
            ATTENTION_SIZES,
            LOOPS | {"mlp_features": 3, "normalization": None},
            ATTENTION_CALL,
        ),
        ("PointNetConv", CONV_SIZES, POINT, GRAPH_CALL | {"pos": POINTS}),
        (
            "PointTransformerConv",
            CONV_SIZES,
            POINT | {"attention_mlp": True},
            GRAPH_CALL | {"pos": POINTS},
        ),
    )
]
MODELS.append((flax_layers.EdgeConv, CONV_SIZES, {"reduce": "max", "mlp_features": 3}, GRAPH_CALL))

NODE_FEATURES, IN_FEATURES = {"num_features": F}, {"in_features": F}
BATCH_CALL = {"batch": Batch.from_edges([[SRC, DST]], [N]), "x": X}
RATE = {"dropout_rate": 0.5}
GRAPHS = {"hidden_features": 4, "num_layers": 2, "layers": "GCN"}
ATOMS = {"hidden_features": 4, "num_layers": 1, "num_filters": 3, "num_gaussians": 4}
MODELS += [
    (model, sizes, options, BATCH_CALL)
    for model, sizes, options in (
        (flax_layers.NodeBatchNorm, NODE_FEATURES, {"momentum": 0.9, "epsilon": 1e-5}),
        (flax_layers.GraphLayerNorm, NODE_FEATURES, {"epsilon": 1e-5}),
        (flax_layers.GraphNorm, NODE_FEATURES, {}),
        (flax_layers.PairNorm, NODE_FEATURES, {"scale": 1.0, "epsilon": 1e-5}),
        (flax_layers.AttentionReadout, IN_FEATURES, {}),
        (flax_layers.Set2Set, IN_FEATURES | {"num_steps": 1}, {}),
        (flax_layers.TopKReadout, IN_FEATURES | {"k": 2}, {}),
        (flax_layers.GINBlock, CONV_SIZES, {"eps": 0.0}),
        (flax_layers.GINClassifier, CONV_SIZES | {"hidden_features": 4, "num_layers": 1}, RATE),
        (flax_layers.GraphClassifier, CONV_SIZES | GRAPHS, RATE),
        (flax_layers.SchNet, CONV_SIZES | ATOMS, RATE | {"graph_reduce": "sum", "cutoff": 2.0}),
    )
]

# Dicts by type, and links.
HEAT = HEADS | {"relation_features": 2, "edge_map_features": 2, "self_weight": True}
MODELS += [
    (
        getattr(flax_layers, name),
        sizes | OF_RELATIONS | EDGE_SIZE | {"num_node_types": 2},
        options,
        {
            "graph": RELATIONAL,
            "x": X,
            "edge_features": EDGE_FEATURES,
            "node_types": np.arange(N) % 2,
        },
    )
    for name, sizes, options in (("HEATConv", CONV_SIZES, HEAT), ("HEAT", MODEL_SIZES, {}))
]
MODELS.append(
    (
        flax_layers.GPSConv,
        {"in_features": F, "conv": flax_layers.SAGEConv(F, F, rngs=nnx.Rngs(0))},
        {"heads": 1, "mlp_activation": "gelu", "node_norm": "graph_norm", **RATE},
        BATCH_CALL | {"max_nodes": N},
    )
)
KEYS = ("a", "r", "b"), ("b", "s", "b")
EDGES, BY_TYPE = {key: np.stack([SRC, DST]) for key in KEYS}, {"a": X, "b": X}
HETERO = HeteroGraph.from_edges(EDGES, {"a": N, "b": N}).with_graphs()
QUERIES = {"subjects": EDGE_FEATURES, "relations": EDGE_FEATURES}
FACTS = SRC, DST % 2, DST
LINK_CALL = {"decoder": flax_layers.DistMult(), "nodes": X, "relations": RELATION_FEATURES}


def convolutions() -> Any:
    rngs = nnx.Rngs(0)
    return dict(
        zip(
            KEYS,
            (flax_layers.SAGEConv((F, F), 2, rngs=rngs), flax_layers.GATConv(F, 2, rngs=rngs)),
            strict=True,
        )
    )


def han(kind: Any) -> Any:
    sizes = ({"a": F, "b": F}, 2, 2)[: 2 + (kind is flax_layers.HAN)]
    return kind(*sizes, edge_types=KEYS, rngs=nnx.Rngs(0))


def predictor() -> flax_layers.LinkPredictor:
    return flax_layers.LinkPredictor(N, 4, F, F, None, LINK_CALL["decoder"], rngs=nnx.Rngs(0))


RING = Graph.from_edges(np.arange(9), (np.arange(9) + 1) % 9)
RELATIONAL_DATASET = datasets.RelationalDataset(
    **{"name": "d", "num_nodes": 9, "num_relations": 1, "rel": np.zeros(9, int)},
    **{"src": np.arange(9), "dst": (np.arange(9) + 1) % 9, "y": np.full(9, -1)},
)
ENCODER = flax_layers.GCN(F, 4, 4, rngs=nnx.Rngs(0))
RANKING = flax_layers.LinkRanking.from_facts(*FACTS, FACTS, num_nodes=N, num_relations=2)


def signed(function, like) -> Callable[..., Any]:
    """Return the function with the signature of another one."""
    # Wrappers take **arguments; `takes_none` reads defaults from the signature.
    function.__signature__ = inspect.signature(like)
    return function


def constructor(model) -> Callable[..., Any]:
    def make(**arguments) -> Any:
        return model(**arguments, rngs=nnx.Rngs(0))

    return signed(make, model.__init__)


def traced_call(model, sizes: dict[str, Any]) -> Callable[..., Any]:
    def apply(arguments: dict[str, Any]) -> Any:
        layer = model(**sizes, rngs=nnx.Rngs(0))
        layer.eval()
        return layer(**arguments)

    def traced(**arguments) -> Any:  # not computed
        # Checks of arguments are those of tracing; layers compute nothing here.
        return jax.eval_shape(lambda: apply(arguments))

    return signed(traced, model.__call__)


# An argument of nnx.Linear's is left to that.
LAYERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gcn_norm": (flax_layers.gcn_norm, {"graph": GRAPH, "edge_weight": EDGE_WEIGHT}),
    "readout": (flax_layers.readout, BATCH_CALL | {"reduce": "max"}),
    "jumping_knowledge": (flax_layers.jumping_knowledge, {"layers": [X, X], "mode": "max"}),
    "unigcn_norm": (flax_layers.unigcn_norm, {"hypergraph": HYPERGRAPH}),
    **{
        f"{model.__name__} made": (constructor(model), sizes | of_model)
        for model, sizes, of_model, _ in MODELS
    },
    **{
        f"{model.__name__} called": (traced_call(model, sizes), call)
        for model, sizes, _, call in MODELS
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
    "HeteroConv made": (flax_layers.HeteroConv, {"convolutions": convolutions(), "reduce": "sum"}),
    "HeteroConv called": (
        flax_layers.HeteroConv(convolutions()),
        {"graph": HETERO, "x_dict": BY_TYPE, "arguments": {KEYS[0]: {}}},
    ),
    "HeteroLinear made": (
        constructor(flax_layers.HeteroLinear),
        {"in_features": {"b": F}, "out_features": 2},
    ),
    "HeteroLinear called": (
        flax_layers.HeteroLinear({"b": F}, 2, rngs=nnx.Rngs(0)),
        {"x_dict": {"b": X}},
    ),
    "HANConv made": (
        constructor(flax_layers.HANConv),
        {"in_features": {"a": F, "b": F}, "out_features": 2, "edge_types": KEYS, **HEADS},
    ),
    "HANConv called": (han(flax_layers.HANConv), {"graph": HETERO, "x_dict": BY_TYPE}),
    "HAN made": (
        constructor(flax_layers.HAN),
        {"in_features": {"a": F, "b": F}, "hidden_features": 2, "edge_types": KEYS}
        | {"out_features": 2, **HEADS, **RATE},
    ),
    "HAN called": (han(flax_layers.HAN), {"graph": HETERO, "x_dict": BY_TYPE}),
    "HeteroModel made": (
        constructor(flax_layers.HeteroModel),
        {"in_features": {"b": F}, "model": convolutions()[KEYS[1]]},
    ),
    # Links.
    "DistMult": (LINK_CALL["decoder"], QUERIES),
    "ComplEx": (flax_layers.ComplEx(), QUERIES),
    "ConvE": (flax_layers.ConvE(F, height=2, filters=1, kernel_size=1, rngs=nnx.Rngs(0)), QUERIES),
    "LinkPredictor made": (
        constructor(flax_layers.LinkPredictor),
        {
            "num_nodes": N,
            "num_relations": 4,
            "in_features": F,
            "relation_features": F,
            "encoder": None,
            "decoder": LINK_CALL["decoder"],
            "dropout_rate": 0.5,
        },
    ),
    "LinkPredictor.scores": (
        predictor().scores,
        {"nodes": X, "relations": RELATION_FEATURES, "subjects": SRC, "relation_ids": DST % 2},
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
    "LinkRanking.ranks": (RANKING.ranks, LINK_CALL),
    "GAE made": (flax_layers.GAE, {"encoder": ENCODER}),
    "GAE.scores": (flax_layers.GAE(ENCODER).scores, {"z": X, "edges": np.stack([SRC, DST])}),
    "VGAE made": (constructor(flax_layers.VGAE), {"encoder": ENCODER}),
    "edge_metrics": (
        flax_layers.edge_metrics,
        {"positive_scores": np.ones(3), "negative_scores": np.ones(2)},
    ),
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
    "layerwise_inference": (
        flax_layers.layerwise_inference,
        {
            "model": flax_layers.SAGE(4, 4, 2, rngs=nnx.Rngs(0)),
            "graph": GRAPH,
            "x": X,
            "chunk_edges": 3,
        },
    ),
    "negative_sampling_loss": (
        flax_layers.negative_sampling_loss,
        {"positive_scores": EDGE_WEIGHT, "negative_scores": EDGE_FEATURES},
    ),
    # Datasets.
    "random_split": (
        datasets.random_split,
        {"y": [0, 1, 0, 1], "train": 0.5, "valid": 0.25, "seed": 0},
    ),
    "time_split": (
        datasets.time_split,
        {"y": [0, 1, 0, 1], "node_time": [3, 1, 2, 0], "train": 0.5, "valid": 0.25, "seed": 0},
    ),
    "split_edges": (
        datasets.split_edges,
        {"graph": RING, "valid": 0.2, "test": 0.2, "seed": 0, "undirected": False},
    ),
    "negative_edges": (
        datasets.negative_edges,
        {"graph": RING, "num_edges": 2, "seed": 0, "undirected": False},
    ),
    "EdgeSplit.train_negatives": (
        datasets.split_edges(RING, valid=0.2, test=0.2, seed=0).train_negatives,
        {"rng": np.random.default_rng(0)},
    ),
    "with_split_edges": (
        datasets.with_split_edges,
        {"dataset": RELATIONAL_DATASET, "valid": 0.2, "test": 0.2, "seed": 0},
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

CALLS = {**ops.CALLS, **{name: Call(*call) for name, call in LAYERS.items()}}
# Objects that these arguments do take.
TAKEN = {
    *((f"{name} made", "widths", "a dict") for name in ("ProgramConv", "ProgramModel")),
    *((f"{name} made", "in_features", "a dict") for name in ("HeteroLinear", "HANConv", "HAN")),
    *(("GPSConv made", name, "None") for name in ("conv", "node_norm")),
    ("HeteroModel made", "in_features", "a dict"),
    ("LinkPredictor made", "encoder", "None"),
    ("PDNConv made", "normalization", "None"),
    ("NodeBatchNorm called", "batch", "None"),
}
WITH_EDGES = "ProgramConv", "GINEConv", "ResGatedGraphConv", "GatedGCNConv", "NNConv", "CGConv"
WITH_EDGES += "PNAConv", "GENConv", "CFConv", "EGNNConv", "HEATConv"
# Arguments that this layer needs, though their default is None.
NEEDED = {
    *((f"{name} called", "x") for name in ("RGCNConv", "RGCN")),
    *(
        (f"{name} called", "edge_features")
        for name in ("GATConv", "GATv2Conv", "TransformerConv", "RGATConv")
    ),
    *((f"{name} called", "edge_features") for name in WITH_EDGES),
}
# Faults of layers' options and operands, beside objects.
SIZE_FAULTS: list[Bad] = [("0", lambda x: 0), ("-1", lambda x: -1)]
RATE_FAULTS: list[Bad] = [("1.5", lambda x: 1.5), ("-0.5", lambda x: -0.5)]
WORD_FAULTS: list[Bad] = [("another word", lambda x: "median")]
SLOPE_FAULTS: list[Bad] = [("infinity", lambda x: np.inf), ("nan", lambda x: np.nan)]
ROW_FAULTS: list[Bad] = [("a row less", lambda x: np.asarray(x)[:-1])]
WEIGHT_FAULTS = [*ROW_FAULTS, ("a matrix", lambda x: x[:, None])]
FEATURE_FAULTS = [
    *ROW_FAULTS,
    ("a column less", lambda x: x[:, 1:]),
    ("a vector", lambda x: x[:, 0]),
]
LAYER_FAULTS: dict[str, list[Bad]] = {
    **dict.fromkeys(("in_features", "out_features", "hidden_features", "features"), SIZE_FAULTS),
    **dict.fromkeys(("num_layers", "num_relations", "num_types", "num_bases"), SIZE_FAULTS),
    **dict.fromkeys(("mlp_features", "mlp_layers", "num_hyperedges", "num_steps"), SIZE_FAULTS),
    **dict.fromkeys(("heads", "edge_in_features", "layer", "k", "num_features"), SIZE_FAULTS),
    **dict.fromkeys(("dropout_rate", "input_dropout_rate", "attention_dropout_rate"), RATE_FAULTS),
    **dict.fromkeys(("reduce", "hyperedge_reduce", "node_reduce", "normalization"), WORD_FAULTS),
    **dict.fromkeys(("softmax_by", "degrees", "attention", "softmax", "method"), WORD_FAULTS),
    **{"composition": WORD_FAULTS, "activation": WORD_FAULTS, "negative_slope": SLOPE_FAULTS},
    **dict.fromkeys(("edge_weight", "hyperedge_weight", "node_scale"), WEIGHT_FAULTS),
    **{"incidence_weight": ROW_FAULTS, "lamda": SIZE_FAULTS, "alpha": RATE_FAULTS},
    **dict.fromkeys(
        ("x", "x0", "pos", "edge_features", "hyperedge_features", "relations"), FEATURE_FAULTS
    ),
}


def faulty_values(name: str, argument: str) -> list[Bad]:
    if name in ops.CALLS:
        return ways(name, argument)
    needed = (name, argument) in NEEDED or not takes_none(CALLS[name].function, argument)
    faulty = OBJECTS + ops.NONE * needed
    if name.split(" ")[0] in {model.__name__ for model, *_ in MODELS}:
        faulty += LAYER_FAULTS.get(argument, [])
    return [bad for bad in faulty if (name, argument, bad[0]) not in TAKEN]


@pytest.mark.parametrize("name", CALLS)
def test_calls_work(name: str) -> None:
    function, arguments, _ = CALLS[name]
    function(**arguments)


PAIRS = [(name, argument) for name, call in CALLS.items() for argument in call.arguments]


@pytest.mark.parametrize(("name", "argument"), PAIRS)
def test_wrong_arguments_are_named(name: str, argument: str) -> None:
    function, arguments, _ = CALLS[name]
    for what, spoil in faulty_values(name, argument):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(**arguments | {argument: spoil(arguments[argument])})
        assert fault(caught.value, argument) is None, what


def test_all_public_functions_are_covered() -> None:
    functions = {name for name in jax_gnn.__all__ if callable(getattr(jax_gnn, name))}
    containers = {"Graph", "Hypergraph", "HypergraphNorm", "SegmentIndex", "TypePlan"}
    containers |= {"HeteroGraph", "RelationalGraph", "RGATWeights", "HGTWeights", "host_arrays"}
    containers |= {"RelationMaps"}
    containers |= {"load", "save", "shared_library"}  # see test_predictor.py
    programs = {"program", "Program", "Node", "Edge", "Relation", "NodeType", "Global"}
    containers |= programs | {"lift", "Lifted"}  # test_lift.py
    containers |= {"Batch", "batch", "batch_budget", "pack", "unbatch"}  # test_batches.py
    assert functions - containers <= CALLS.keys()
    subjects = {re.split(r"[ .]", name)[0] for name in CALLS}
    # The names left out are in test_sampling_subgraphs.py and test_sampling_loader.py.
    of_sampling = set(sampling.__all__) - {"Blocks", "NodeChunks", "SeedBatch", "Subgraph"}
    of_sampling -= {"FeatureCache", "fetch_ahead", "neighbor_batches", "saint_norms"}
    assert of_sampling <= {name.split(".")[1] for name in CALLS if name.startswith("sampling.")}
    # See test_flax_gin.py, test_flax_to_hetero.py, test_flax_links.py and test_flax_databases.py.
    of_layers = {"AttentionOptions", "LinearOptions", "Stack", "MLP", "to_hetero", "HeteroStack"}
    of_layers |= {"MLPDecoder", "InnerProductDecoder", "TableEncoder", "DatabaseModel"}
    of_layers |= {"axes", "dense"}  # see test_flax_program_layers.py
    assert set(flax_layers.__all__) - of_layers <= subjects


# --- Words ---------------------------------------------------------------------------------------


def right_arguments(name: str) -> dict[str, Any]:
    """Return required arguments, and ids of segments."""
    if "data" in CALLS[name].arguments:
        return ops.SEGMENTS
    function, arguments, _ = CALLS[name]
    parameters = inspect.signature(function).parameters
    return {part: x for part, x in arguments.items() if parameters[part].default is inspect._empty}


@pytest.mark.parametrize(
    ("name", "row"), [(n, row) for n in WORDED for row in range(len(WORDED[n]))]
)
def test_words_of_errors(name: str, row: int) -> None:
    error, message, changes = WORDED[name][row]
    function, arguments = CALLS[name].function, right_arguments(name) | changes
    with pytest.raises(error, match=message):
        function(**arguments)
    if ".from_" in name:
        return  # traced ids are not looked at
    with pytest.raises(error, match=message):
        jax.jit(lambda: function(**arguments))()
    if name.endswith("_attention") and "weights" not in arguments:
        # Values that are traced are checked by shape and dtype alone.
        traced = right_arguments(name).keys() - {"graph"}
        arrays = {part: x for part, x in arguments.items() if part in traced}
        with pytest.raises(error, match=message):
            jax.jit(lambda arrays: function(**arguments | arrays))(arrays)


# --- No ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[], np.zeros(0), np.zeros((2, 0))[0]], ids=["[]", "0", "2, 0"])
def test_empty_ids(empty) -> None:
    """Empty arrays may have any dtype that numpy gives them."""
    sizes = {"num_nodes": N, "num_hyperedges": N}
    assert Graph.from_edges(empty, empty, num_nodes=N).num_edges == 0
    assert Hypergraph.from_incidence(empty, empty, **sizes).num_incidences == 0
    assert Hypergraph.from_directed(empty, empty, SRC, DST, **sizes).num_incidences == 0
    assert Hypergraph.from_hyperedges([empty, [0]], num_nodes=N).num_incidences == 1
    assert RelationalGraph.from_triples(empty, empty, empty, N, 2).num_edges == 0
    assert SegmentIndex.from_ids(empty, N).ids.shape == (0,)
    assert TypePlan.from_types(empty, 2).num_rows == TypePlan.from_sizes(empty).num_types == 0
    assert jax_gnn.segment_sum(np.zeros((0, 2)), empty, N).shape == (N, 2)
    data = datasets.GraphDataset(
        name="d", num_nodes=1, y=[0], src=empty, dst=empty, train_idx=empty
    )
    assert data.src.dtype == np.int32
    for pair in ([], [[], []], np.zeros((2, 0)), (empty, empty)):
        edges = {("a", "r", "b"): pair, ("b", "s", "b"): [[0], [1]]}
        assert HeteroGraph.from_edges(edges, {"a": 1, "b": 2}).relational.num_edges == 1
    with pytest.raises(TypeError, match="src must be an array of integers, got float64"):
        Graph.from_edges(np.ones(1), [0])
