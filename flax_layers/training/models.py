"""The models that can be trained: one entry each, of all that the training has to know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from jax import Array

from flax_layers import (
    GAT,
    GCN,
    GIN,
    HGNN,
    HGNNP,
    HGT,
    RGAT,
    RGCN,
    SAGE,
    AllDeepSets,
    AllSetTransformer,
    GATv2,
    GINClassifier,
    GraphClassifier,
    GraphTransformer,
    HypergraphAttention,
    UniGAT,
    UniGCNII,
    UniGIN,
    UniSAGE,
)
from flax_layers.training import plain
from flax_layers.training.config import (
    AllDeepSetsConfig,
    AllSetTransformerConfig,
    GATConfig,
    GATGraphConfig,
    GATv2Config,
    GCNConfig,
    GCNGraphConfig,
    GINConfig,
    GINGraphConfig,
    GraphTransformerConfig,
    HGNNConfig,
    HGNNPConfig,
    HGTConfig,
    HypergraphAttentionConfig,
    RGATConfig,
    RGCNConfig,
    SAGEConfig,
    SAGEGraphConfig,
    TrainConfig,
    UniGATConfig,
    UniGCNIIConfig,
    UniGINConfig,
    UniSAGEConfig,
)
from jax_gnn import RelationalGraph
from jax_gnn.datasets import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    load_graph,
    load_graphs,
    load_hypergraph,
    load_relational,
)


class Recipe(NamedTuple):
    """How to train a model.

    Attributes:
        title: What the model is.
        model: Its class.
        config: The class of its settings.
        dataset: The class of the datasets that it takes.
        load: Reads such a dataset.
        sizes: The attributes of the structure that tell its size.
        structure: From a dataset and settings to the graph or hypergraph; None of many graphs.
        options: From settings and structure to the arguments of the convolutions.
        plain_structure: From the structure, and perhaps weights of edges, to that of the plain-JAX
            twin.
        plain_model: The twin, from settings, parameters, structure, features and dropout key; None
            where there is none.
    """

    title: str
    model: type[Any]
    config: type[TrainConfig]
    dataset: type[NodeDataset]
    load: Callable[[str], NodeDataset]
    sizes: tuple[str, ...]
    structure: Callable[[Any, Any], Any] | None
    options: Callable[[Any, Any], dict[str, Any]]
    plain_structure: Callable[..., Any] | None
    plain_model: Callable[..., Array] | None


def _stack(
    convolution: plain.PlainConvolution, activation: Literal["relu", "elu"] = "relu"
) -> Callable[..., Array]:
    return functools.partial(plain.stack, convolution, activation)


def _typed(model: Callable[..., Array]) -> Callable[..., Array]:
    return functools.partial(plain.behind_types, model)


def _settings(names: tuple[str, ...], config: Any, structure: Any) -> dict[str, Any]:
    """Options of a convolution that are settings of the same name."""
    del structure
    return {name: getattr(config, name) for name in names}


def _fields(*names: str) -> Callable[[Any, Any], dict[str, Any]]:
    return functools.partial(_settings, names)


def _classifier_options(
    layers: str, names: tuple[str, ...], config: Any, structure: Any
) -> dict[str, Any]:
    """Options of a classifier of graphs with these layers."""
    return {"layers": layers} | _settings(names, config, structure)


def _layers(layers: str, *names: str) -> Callable[[Any, Any], dict[str, Any]]:
    return functools.partial(_classifier_options, layers, names)


def _weighted_options(
    names: tuple[str, ...], config: HGNNPConfig, hypergraph: Any
) -> dict[str, Any]:
    """Options of a convolution whose hyperedges may have learnable weights."""
    learnable = config.learnable_hyperedge_weights
    weights = {"num_hyperedges": hypergraph.num_hyperedges if learnable else None}
    return _settings(names, config, hypergraph) | weights


def _hgnn_options(*names: str) -> Callable[[Any, Any], dict[str, Any]]:
    return functools.partial(_weighted_options, names)


def _rgcn_options(config: RGCNConfig, graph: Any) -> dict[str, Any]:
    num_relations = graph.num_relations - graph.self_relation
    bases = config.num_bases or None
    return {"num_relations": num_relations, "norm": config.norm, "num_bases": bases}


def _rgat_options(config: RGATConfig, graph: Any) -> dict[str, Any]:
    fields = "heads", "attention_dropout_rate", "attention", "softmax"
    bases = config.num_bases or None
    named = {"num_relations": graph.num_relations, "num_bases": bases}
    return _fields(*fields)(config, graph) | named


def _hgt_options(config: HGTConfig, graph: Any) -> dict[str, Any]:
    named = {"heads": config.heads, "num_relations": graph.num_relations}
    if graph.node_type_names is None:
        return named
    return named | {"node_types": graph.node_type_names, "relation_ends": _ends(graph)}


def _ends(graph: RelationalGraph) -> tuple[tuple[str, str], ...]:
    """The types of nodes that each relation runs from and to: of one without edges the first.

    Raises:
        ValueError: A relation runs between nodes of several types.
    """
    names, rel = graph.node_type_names, np.asarray(graph.edge_types)
    assert names is not None
    stops = [part.stop for part in graph.node_slices]
    found = []
    for ids, side in ((graph.nodes.cols, "from"), (graph.nodes.rows, "to")):
        types = np.searchsorted(stops, np.asarray(ids), side="right")
        least = np.full(graph.num_relations, len(names) - 1)
        most = np.zeros(graph.num_relations, int)
        np.minimum.at(least, rel, types)
        np.maximum.at(most, rel, types)
        mixed = np.flatnonzero(least < most)
        if mixed.size:
            kinds = f"{names[least[mixed[0]]]!r} and {names[most[mixed[0]]]!r}"
            raise ValueError(f"relation {mixed[0]} runs {side} nodes of the types {kinds}")
        found.append([names[kind] for kind in np.minimum(least, most)])
    return tuple(zip(*found, strict=True))


# Functions with a name, as recipes are pickled.
def _graph(dataset: Any, config: Any) -> Any:
    del config
    return dataset.graph()


def _graph_without_self_relation(dataset: Any, config: Any) -> Any:
    del config
    return dataset.graph(self_relation=False)


def _hypergraph(dataset: Any, config: Any) -> Any:
    return dataset.hypergraph(self_loops=config.self_loops)


_ON_GRAPHS: dict[str, Any] = {
    "dataset": GraphDataset,
    "load": load_graph,
    "sizes": ("num_nodes", "num_edges"),
    "structure": _graph,
    "plain_structure": plain.CooGraph.from_graph,
}
_ON_HYPERGRAPHS: dict[str, Any] = {
    "dataset": HypergraphDataset,
    "load": load_hypergraph,
    "sizes": ("num_nodes", "num_hyperedges", "num_incidences"),
    "structure": _hypergraph,
    "plain_structure": plain.CooHypergraph.from_hypergraph,
}
_ON_RELATIONS: dict[str, Any] = {
    "dataset": RelationalDataset,
    "load": load_relational,
    "sizes": ("num_nodes", "num_edges", "num_relations"),
}
_ON_MANY_GRAPHS: dict[str, Any] = {
    "dataset": GraphsDataset,
    "load": load_graphs,
    "sizes": ("num_graphs", "num_nodes", "num_edges"),
    "structure": None,
    "plain_structure": None,
    "plain_model": None,
}
_RECIPES = (
    Recipe(
        "hypergraph neural network (HGNN, Feng et al. 2019)",
        *(HGNN, HGNNConfig),
        options=_hgnn_options("normalization"),
        plain_model=_stack(plain.hgnn_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "general hypergraph neural network (HGNN+, Gao et al. 2022)",
        *(HGNNP, HGNNPConfig),
        options=_hgnn_options(),
        plain_model=_stack(plain.hgnn_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "UniGIN (Huang and Yang 2021)",
        *(UniGIN, UniGINConfig),
        options=_fields("normalize"),
        plain_model=_stack(plain.unisage_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "UniSAGE (Huang and Yang 2021)",
        *(UniSAGE, UniSAGEConfig),
        options=_fields("node_reduce", "normalize"),
        plain_model=_stack(plain.unisage_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "UniGAT (Huang and Yang 2021)",
        *(UniGAT, UniGATConfig),
        options=_fields("heads", "attention_dropout_rate", "normalize"),
        plain_model=_stack(plain.unigat_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "UniGCNII (Huang and Yang 2021)",
        *(UniGCNII, UniGCNIIConfig),
        options=_fields("alpha", "lamda"),
        plain_model=plain.unigcnii,
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "hypergraph attention network (Bai et al. 2021)",
        *(HypergraphAttention, HypergraphAttentionConfig),
        options=_fields("heads", "attention_dropout_rate", "degrees"),
        plain_model=_stack(plain.hypergraph_attention_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "deep-sets hypergraph network (AllDeepSets, Chien et al. 2022)",
        *(AllDeepSets, AllDeepSetsConfig),
        options=_fields("mlp_layers"),
        plain_model=_stack(plain.alldeepsets_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "set-transformer hypergraph network (AllSetTransformer, Chien et al. 2022)",
        *(AllSetTransformer, AllSetTransformerConfig),
        options=_fields("heads", "mlp_layers"),
        plain_model=_stack(plain.allsettransformer_convolution),
        **_ON_HYPERGRAPHS,
    ),
    Recipe(
        "graph convolutional network (GCN, Kipf and Welling 2017)",
        *(GCN, GCNConfig),
        options=_fields(),
        plain_model=_stack(plain.gcn_convolution),
        **_ON_GRAPHS,
    ),
    Recipe(
        "graph isomorphism network (GIN, Xu et al. 2019)",
        *(GIN, GINConfig),
        options=_fields("learn_eps"),
        plain_model=_stack(plain.gin_convolution),
        **_ON_GRAPHS,
    ),
    Recipe(
        "GraphSAGE over all neighbours (Hamilton et al. 2017)",
        *(SAGE, SAGEConfig),
        options=_fields("aggregation", "project"),
        plain_model=_stack(plain.sage_convolution),
        **_ON_GRAPHS,
    ),
    Recipe(
        "graph attention network (GAT, Veličković et al. 2018)",
        *(GAT, GATConfig),
        options=_fields("heads", "attention_dropout_rate"),
        plain_model=_stack(plain.gat_convolution, "elu"),
        **_ON_GRAPHS,
    ),
    Recipe(
        "graph attention network with dynamic scores (GATv2, Brody et al. 2022)",
        *(GATv2, GATv2Config),
        options=_fields("heads", "attention_dropout_rate", "share_weights"),
        plain_model=_stack(plain.gatv2_convolution, "elu"),
        **_ON_GRAPHS,
    ),
    Recipe(
        "graph transformer (Shi et al. 2021)",
        *(GraphTransformer, GraphTransformerConfig),
        options=_fields("heads", "attention_dropout_rate", "gated"),
        plain_model=_stack(plain.transformer_convolution),
        **_ON_GRAPHS,
    ),
    Recipe(
        "graph isomorphism network with batch norms (GIN, Xu et al. 2019)",
        *(GINClassifier, GINGraphConfig),
        options=_fields("learn_eps", "readout"),
        **_ON_MANY_GRAPHS,
    ),
    Recipe(
        "graph convolutional network (GCN, Kipf and Welling 2017) and a readout",
        *(GraphClassifier, GCNGraphConfig),
        options=_layers("GCN", "readout"),
        **_ON_MANY_GRAPHS,
    ),
    Recipe(
        "GraphSAGE over all neighbours (Hamilton et al. 2017) and a readout",
        *(GraphClassifier, SAGEGraphConfig),
        options=_layers("SAGE", "readout", "aggregation"),
        **_ON_MANY_GRAPHS,
    ),
    Recipe(
        "graph attention network (GAT, Veličković et al. 2018) and a readout",
        *(GraphClassifier, GATGraphConfig),
        options=_layers("GAT", "readout", "heads"),
        **_ON_MANY_GRAPHS,
    ),
    Recipe(
        "relational graph convolutional network (R-GCN, Schlichtkrull et al. 2018)",
        *(RGCN, RGCNConfig),
        structure=_graph,
        options=_rgcn_options,
        plain_structure=plain.CooTriples.from_graph,
        plain_model=_typed(_stack(plain.rgcn_convolution)),
        **_ON_RELATIONS,
    ),
    Recipe(
        "relational graph attention network (RGAT, Busbridge et al. 2019)",
        *(RGAT, RGATConfig),
        structure=_graph,
        options=_rgat_options,
        plain_structure=plain.CooTriples.from_graph,
        plain_model=_typed(_stack(plain.rgat_convolution)),
        **_ON_RELATIONS,
    ),
    Recipe(
        "heterogeneous graph transformer (HGT, Hu et al. 2020)",
        *(HGT, HGTConfig),
        structure=_graph_without_self_relation,
        options=_hgt_options,
        plain_structure=plain.CooTyped.from_graph,
        plain_model=_typed(plain.hgt),
        **_ON_RELATIONS,
    ),
)
RECIPES = {recipe.config.model: recipe for recipe in _RECIPES}
"""How the models of nodes and of graphs are made, by name of the model."""
TASKS = "graph", "link"  # beside that of nodes; names of their recipes end so


def recipe_of(config: TrainConfig, dataset: NodeDataset) -> Recipe:
    """The recipe of a configuration.

    Raises:
        TypeError: The configuration is of no model, or its model takes other datasets.
    """
    return recipe_among(RECIPES, config, dataset, "of a model, such as GCNConfig")


def recipe_among(recipes: Mapping[str, Any], config: Any, dataset: Any, wanted: str) -> Any:
    """The recipe of a configuration, whose model takes the dataset; likewise.

    Args:
        recipes: By the name of their model.
        config: The configuration.
        dataset: The dataset.
        wanted: What an error says that the configuration must be.
    """
    recipe = recipes.get(getattr(config, "model", ""))
    if recipe is None:
        raise TypeError(f"config must be {wanted}, got {type(config).__name__}")
    if not isinstance(dataset, recipe.dataset):
        raise TypeError(
            f"{config.model} takes a {recipe.dataset.__name__}, got a {type(dataset).__name__}"
        )
    return recipe


def spelled(name: str) -> str:
    """How the command line calls a recipe: by its model, and the task if it is not of nodes."""
    model, _, task = name.rpartition("-")
    return f"{model} --task {task}" if task in TASKS else name
