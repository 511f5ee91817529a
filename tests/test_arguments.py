"""Values that each argument of each public function refuses, and the words of the errors.

Each argument of a call that works is replaced by all that `argument_calls.ways` has for it, and of
layers and datasets by objects that no argument takes. The error names the argument and shows the
value. A table lists the messages for frequent mistakes.
"""

from __future__ import annotations

import functools
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
from layer_cases import BATCH, DST, GRAPH, HYPERGRAPH, SIZE, SRC, WIDTH
from layer_cases import LAYERS as LAYER_CASES

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
    sampling,
)

# --- Layers and datasets -------------------------------------------------------------------------

N, E, F = SIZE, len(SRC), WIDTH
X, NODE_WEIGHT, EDGE_WEIGHT, EDGE_FEATURES = (
    np.ones(shape, np.float32) for shape in ((N, F), (N,), (E,), (E, F))
)
DATASET = datasets.GraphDataset(name="d", num_nodes=N, y=[0, 1, 2, 3, 4, 0], src=SRC, dst=DST)
GRAPH_CALL = {"graph": GRAPH, "x": X}
CONV_SIZES = {"in_features": F, "out_features": 2}

# Options that are left to flax, modules of users, and arguments by which layers call each other.
UNCHECKED = {"rngs", "dtype", "param_dtype", "precision", "kernel_init", "bias_init"}
UNCHECKED |= {"deterministic", "gate", "transform"}
UNCHECKED |= {"folded", "is_scaled", "scales_result"}
# Operands of the calls of layers that no case of them has.
OPERANDS: dict[str, Any] = {
    **dict.fromkeys(("edge_weight", "incidence_weight"), EDGE_WEIGHT),
    **dict.fromkeys(("node_scale", "hyperedge_weight"), NODE_WEIGHT),
    **dict.fromkeys(("x0", "hyperedge_features"), X),
    **{"edge_features": EDGE_FEATURES, "node_types": np.arange(N) % 2},
}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method of a layer that this library checks, by name."""
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in UNCHECKED | {"self"}
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def layer_calls() -> dict[Any, tuple[dict[str, Any], dict[str, Any]]]:
    """Return options and arguments of a call of each layer, and of the convolution of a model."""
    sizes = dict.fromkeys(("in_features", "out_features", "features"), F)
    calls = {}
    # The last case of a class has most operands; it is the first one with as many.
    cases = [case for case in reversed(LAYER_CASES.values()) if case.kind is not None]
    for case in sorted(cases, key=lambda case: len(case.named)):
        kinds = case.kind, *filter(None, [getattr(case.kind, "convolution", None)])
        for kind, options in zip(kinds, (case.options, case.options | sizes), strict=False):
            graph, *names = parameters(kind.__call__).values()
            needed = {p.name for p in names if p.default is p.empty} & OPERANDS.keys()
            call = {name: OPERANDS[name] for name in needed} | case.named
            calls[kind] = (
                {name: options[name] for name in parameters(kind.__init__) if name in options},
                {graph.name: case.structure, "x": case.operands[0]} | call,
            )
    return calls


MODELS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (kind, *calls) for kind, calls in layer_calls().items()
]

BATCH_CALL = {"batch": BATCH, "x": X}
GRAPHS = CONV_SIZES | {"hidden_features": 4, "num_layers": 1}
ATOMS = {"hidden_features": 4, "num_layers": 1, "num_filters": 3, "num_gaussians": 4}
MODELS += [
    (
        flax_layers.TypedLinear,
        CONV_SIZES | {"num_types": 2},
        {"x": X, "types": [0, 1, 1, 0, 1, 0]},
    ),
    *(
        (getattr(flax_layers, name), {"num_features": F}, BATCH_CALL)
        for name in ("NodeBatchNorm", "GraphLayerNorm", "GraphNorm", "PairNorm")
    ),
    *(
        (getattr(flax_layers, name), options, BATCH_CALL)
        for name, options in (
            ("AttentionReadout", {"in_features": F}),
            ("Set2Set", {"in_features": F, "num_steps": 1}),
            ("TopKReadout", {"in_features": F, "k": 2}),
            ("GINBlock", CONV_SIZES),
            ("GINClassifier", GRAPHS),
            ("GraphClassifier", GRAPHS | {"layers": "GCN"}),
            ("SchNet", CONV_SIZES | ATOMS),
            ("GPSConv", {"in_features": F, "conv": flax_layers.SAGEConv(F, F, rngs=nnx.Rngs(0))}),
        )
    ),
]

# Dicts by type, and links.
KEYS = ("a", "r", "b"), ("b", "s", "b")
EDGES, BY_TYPE = {key: np.stack([SRC, DST]) for key in KEYS}, {"a": X, "b": X}
HETERO = HeteroGraph.from_edges(EDGES, {"a": N, "b": N}).with_graphs()
OF_TYPES = {"in_features": {"a": F, "b": F}, "out_features": 2, "edge_types": KEYS}
MODELS += [
    (kind, OF_TYPES | sizes, {"graph": HETERO, "x_dict": BY_TYPE})
    for kind, sizes in ((flax_layers.HANConv, {}), (flax_layers.HAN, {"hidden_features": 2}))
]
RELATION_FEATURES = np.ones((4, F), np.float32)
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


def traced_call(model, options: dict[str, Any]) -> Callable[..., Any]:
    @functools.cache
    def layer() -> Any:
        layer = model(**options, rngs=nnx.Rngs(0))
        layer.eval()
        return layer

    def traced(**arguments) -> Any:  # not computed
        # Checks of arguments are those of tracing; layers compute nothing here.
        return jax.eval_shape(lambda: layer()(**arguments))

    return signed(traced, model.__call__)


LAYERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gcn_norm": (flax_layers.gcn_norm, {"graph": GRAPH, "edge_weight": EDGE_WEIGHT}),
    "readout": (flax_layers.readout, BATCH_CALL | {"reduce": "max"}),
    "jumping_knowledge": (flax_layers.jumping_knowledge, {"layers": [X, X], "mode": "max"}),
    "unigcn_norm": (flax_layers.unigcn_norm, {"hypergraph": HYPERGRAPH}),
    **{f"{model.__name__} made": (constructor(model), options) for model, options, _ in MODELS},
    **{
        f"{model.__name__} called": (traced_call(model, options), call)
        for model, options, call in MODELS
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
            "scores": np.ones((E, N), np.float32),
            "rows": np.arange(E),
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
    *((f"{name} made", "normalization", "None") for name in ("GCN", "GCNConv", "PDNConv")),
    ("GENConv made", "mlp_norm", "None"),
    ("GINEConv called", "edge_weight", "a matrix"),
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
    function = CALLS[name].function
    # Models take operands of their convolutions, which are optional, by **named.
    is_passed_on = argument in OPERANDS and argument not in parameters(function)
    needed = (name, argument) in NEEDED or not (is_passed_on or takes_none(function, argument))
    faulty = OBJECTS + ops.NONE * needed
    if name.split(" ")[0] in {model.__name__ for model, *_ in MODELS}:
        faulty += LAYER_FAULTS.get(argument, [])
    return [bad for bad in faulty if (name, argument, bad[0]) not in TAKEN]


@pytest.mark.parametrize("name", CALLS)
def test_calls_work(name: str) -> None:
    function, arguments, _ = CALLS[name]
    function(**arguments)


def arguments_of(name: str) -> dict[str, Any]:
    """Return the arguments of a call; of a layer, all optional ones, too, with values to spoil."""
    function, arguments, _ = CALLS[name]
    if name.split(" ")[0] not in {model.__name__ for model, *_ in MODELS}:
        return arguments
    optional = {part: OPERANDS.get(part, x.default) for part, x in parameters(function).items()}
    if name in ("GINClassifier called", "GraphClassifier called", "SchNet called"):
        del optional["edge_features"]  # which their layers check, or do not read
    return optional | arguments


PAIRS = [(name, argument) for name in CALLS for argument in arguments_of(name)]


@pytest.mark.parametrize(("name", "argument"), PAIRS)
def test_wrong_arguments_are_named(name: str, argument: str) -> None:
    function, arguments, _ = CALLS[name]
    value = arguments_of(name)[argument]
    for what, spoil in faulty_values(name, argument):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(**arguments | {argument: spoil(value)})
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
