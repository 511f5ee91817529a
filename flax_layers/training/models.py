"""Recipes of the models of nodes and of graphs: all that a training needs to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import numpy as np
from flax import nnx

import flax_layers
from flax_layers.readout import Layers
from flax_layers.training.config import graphs, hypergraphs, relations
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.config.settings import Config, settings
from jax_gnn import Graph, Hypergraph, RelationalGraph
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

Structure = Graph | Hypergraph | RelationalGraph
# Arguments of a model's convolutions, from the settings and the structure.
Options = Callable[[Any, Any], dict[str, object]]


class Recipe(NamedTuple):
    """Description of how to train a model.

    Attributes:
        model: Class of the model.
        config: Class of the settings.
        dataset: Class of the datasets that the model takes.
        load: Reader of such a dataset.
        sizes: Attributes of the structure that tell its size.
        structure: Function of a dataset and settings that returns the graph or hypergraph; None for
            models of many graphs.
        options: Function of settings and structure that returns the arguments of the convolutions.
    """

    model: type[nnx.Module]
    config: type[TrainConfig]
    dataset: type[NodeDataset]
    load: Callable[[str], NodeDataset]
    sizes: tuple[str, ...]
    structure: Callable[[Any, Any], Structure] | None
    options: Options


# Settings that are arguments of every model.
_SIZES = {"num_layers", "hidden_features", "dropout_rate", "input_dropout_rate"}


def _options(config: TrainConfig, structure: Structure | None) -> dict[str, object]:
    """Return the arguments of a model's convolutions that are settings of the same name."""
    names = (name for name, setting in settings(type(config)).items() if setting.group == "model")
    return {name: getattr(config, name) for name in names if name not in _SIZES}


def _hgnn_options(config: hypergraphs.HGNNPConfig, hypergraph: Hypergraph) -> dict[str, object]:
    """Return options of convolutions whose hyperedges may have learnable weights."""
    options = _options(config, hypergraph)
    learnable = options.pop("learnable_hyperedge_weights")
    return options | {"num_hyperedges": hypergraph.num_hyperedges if learnable else None}


def _unigin_options(config: hypergraphs.UniGINConfig, structure: Hypergraph) -> dict[str, object]:
    return _options(config, structure) | {"learn_eps": True}  # as in the authors' code


def _relational_options(
    config: relations.RGCNConfig | relations.RGATConfig, graph: RelationalGraph
) -> dict[str, object]:
    # R-GCN adds the relation of nodes to themselves, RGAT counts it among the others.
    added = graph.self_relation and isinstance(config, relations.RGCNConfig)
    sizes = {"num_relations": graph.num_relations - added, "num_bases": config.num_bases or None}
    return _options(config, graph) | sizes


def _pna_options(config: graphs.PNAConfig, graph: Graph) -> dict[str, object]:
    degrees = np.asarray(graph.in_degrees())
    return _options(config, graph) | {"degree_histogram": np.bincount(degrees).tolist()}


def _edge_options(config: TrainConfig, structure: Structure | None) -> dict[str, object]:
    return _options(config, structure) | {"edge_in_features": config.edge_in_features}


def _typed_options(config: relations.RelationalConfig, graph: RelationalGraph) -> dict[str, object]:
    options = _options(config, graph) | {"num_relations": graph.num_relations}
    if graph.node_type_names is None or not isinstance(config, relations.HGTConfig):
        return options
    types = {"node_types": graph.node_type_names, "relation_ends": _relation_ends(graph)}
    return options | types


def _classifier_options(config: TrainConfig, batches: Any) -> dict[str, object]:
    """Return options of a `GraphClassifier`, whose layers are the first word of the model."""
    layers = {name.lower(): name for name in get_args(Layers)}[config.model.partition("-")[0]]
    options = (_edge_options if config.edge_input else _options)(config, None)
    if layers == "PNA":
        degrees = np.asarray(batches.graph.in_degrees())[np.asarray(batches.graph_ids) >= 0]
        options["degree_histogram"] = np.bincount(degrees).tolist()
    return options | {"layers": layers}


def _relation_ends(graph: RelationalGraph) -> tuple[tuple[str, str], ...]:
    """Return the types of nodes that each relation runs from and to.

    A relation without edges gets the first type.

    Raises:
        ValueError: A relation runs between nodes of several types.
    """
    # Nodes are numbered type by type, so a node's type is the first that ends after it.
    names, rel = graph.node_type_names, np.asarray(graph.edge_types)
    assert names is not None
    stops = [part.stop for part in graph.node_slices]
    sides = []
    for ids, side in ((graph.nodes.cols, "from"), (graph.nodes.rows, "to")):
        types = np.searchsorted(stops, np.asarray(ids), side="right")
        # The least and the greatest type of each relation are equal unless types are mixed.
        lowest = np.full(graph.num_relations, len(names) - 1)
        highest = np.zeros(graph.num_relations, int)
        np.minimum.at(lowest, rel, types)
        np.maximum.at(highest, rel, types)
        mixed = np.flatnonzero(lowest < highest)
        if mixed.size:
            kinds = f"{names[lowest[mixed[0]]]!r} and {names[highest[mixed[0]]]!r}"
            raise ValueError(f"relation {mixed[0]} runs {side} nodes of the types {kinds}")
        sides.append([names[kind] for kind in np.minimum(lowest, highest)])
    return tuple(zip(*sides, strict=True))


def graph_of(dataset: GraphDataset, config: TrainConfig | LinkConfig) -> Graph:
    """Return the graph of a dataset, with the reverse of each edge if the settings say so."""
    graph = dataset.graph()
    return graph.symmetrized() if getattr(config, "direction", "") == "undirected" else graph


def _relational_graph(dataset: RelationalDataset, config: relations.RelationalConfig) -> Structure:
    # HGT adds a node's own row by a skip connection, so no relation leads from nodes to themselves.
    self_relation = not isinstance(config, relations.HGTConfig)
    return dataset.graph(inverse=config.direction != "directed", self_relation=self_relation)


def _hypergraph(dataset: HypergraphDataset, config: hypergraphs.HypergraphConfig) -> Structure:
    return dataset.hypergraph(self_loops=config.self_loops)


# Options beside settings of the same name; functions have names, as recipes are pickled.
_OPTIONS: dict[type[nnx.Module], Options] = {
    flax_layers.HGNN: _hgnn_options,
    flax_layers.HGNNP: _hgnn_options,
    flax_layers.UniGIN: _unigin_options,
    flax_layers.RGCN: _relational_options,
    flax_layers.RGAT: _relational_options,
    flax_layers.HGT: _typed_options,
    flax_layers.PNA: _pna_options,
    flax_layers.GINE: _edge_options,
    flax_layers.GatedGCN: _edge_options,
    flax_layers.SimpleHGN: _typed_options,
    flax_layers.GraphClassifier: _classifier_options,
}


def _recipes(
    models: Mapping[type[TrainConfig], type[nnx.Module]],
    dataset: type[NodeDataset],
    load: Callable[[str], NodeDataset],
    sizes: tuple[str, ...],
    structure: Callable[[Any, Any], Structure] | None,
) -> dict[str, Recipe]:
    """Return recipes by name of the model, for models of one kind of data by settings."""
    return {
        config.model: Recipe(
            model, config, dataset, load, sizes, structure, _OPTIONS.get(model, _options)
        )
        for config, model in models.items()
    }


# One call for each kind of data, whose models share loader, sizes and structure.
RECIPES = (
    _recipes(
        {
            hypergraphs.HGNNConfig: flax_layers.HGNN,
            hypergraphs.HGNNPConfig: flax_layers.HGNNP,
            hypergraphs.UniGINConfig: flax_layers.UniGIN,
            hypergraphs.UniSAGEConfig: flax_layers.UniSAGE,
            hypergraphs.UniGATConfig: flax_layers.UniGAT,
            hypergraphs.UniGCNIIConfig: flax_layers.UniGCNII,
            hypergraphs.HypergraphAttentionConfig: flax_layers.HypergraphAttention,
            hypergraphs.AllDeepSetsConfig: flax_layers.AllDeepSets,
            hypergraphs.AllSetTransformerConfig: flax_layers.AllSetTransformer,
        },
        HypergraphDataset,
        load_hypergraph,
        ("num_nodes", "num_hyperedges", "num_incidences"),
        _hypergraph,
    )
    | _recipes(
        {
            graphs.GCNConfig: flax_layers.GCN,
            graphs.GINConfig: flax_layers.GIN,
            graphs.SAGEConfig: flax_layers.SAGE,
            graphs.GATConfig: flax_layers.GAT,
            graphs.GATv2Config: flax_layers.GATv2,
            graphs.GraphTransformerConfig: flax_layers.GraphTransformer,
            graphs.PNAConfig: flax_layers.PNA,
            graphs.GINEConfig: flax_layers.GINE,
            graphs.GatedGCNConfig: flax_layers.GatedGCN,
        },
        GraphDataset,
        load_graph,
        ("num_nodes", "num_edges"),
        graph_of,
    )
    | _recipes(
        {
            graphs.GINGraphConfig: flax_layers.GINClassifier,
            graphs.GCNGraphConfig: flax_layers.GraphClassifier,
            graphs.SAGEGraphConfig: flax_layers.GraphClassifier,
            graphs.GATGraphConfig: flax_layers.GraphClassifier,
            graphs.GINEGraphConfig: flax_layers.GraphClassifier,
            graphs.GatedGCNGraphConfig: flax_layers.GraphClassifier,
            graphs.PNAGraphConfig: flax_layers.GraphClassifier,
            graphs.SchNetConfig: flax_layers.SchNet,
        },
        GraphsDataset,
        load_graphs,
        ("num_graphs", "num_nodes", "num_edges"),
        None,
    )
    | _recipes(
        {
            relations.RGCNConfig: flax_layers.RGCN,
            relations.RGATConfig: flax_layers.RGAT,
            relations.HGTConfig: flax_layers.HGT,
            relations.SimpleHGNConfig: flax_layers.SimpleHGN,
        },
        RelationalDataset,
        load_relational,
        ("num_nodes", "num_edges", "num_relations"),
        _relational_graph,
    )
)
"""Recipes of the models of nodes and of graphs, by name of the model."""
TASKS = ("graph", "link")  # the names of their recipes end with the task; those of nodes do not


def recipe_of(config: TrainConfig, dataset: NodeDataset) -> Recipe:
    """Return the recipe of a configuration.

    Raises:
        TypeError: The configuration is of no model, or its model takes other datasets.
    """
    recipe = RECIPES.get(getattr(config, "model", ""))
    if recipe is None:
        got = type(config).__name__
        raise TypeError(f"config must be of a model, such as GCNConfig, got {got}")
    check_kind(config, dataset, recipe.dataset)
    return recipe


def check_kind(config: Config, dataset: NodeDataset, kind: type[NodeDataset]) -> None:
    """Check that a dataset is of the kind that the model takes.

    Raises:
        TypeError: It is of another kind.
    """
    if not isinstance(dataset, kind):
        got = type(dataset).__name__
        raise TypeError(f"{config.model} takes a {kind.__name__}, got a {got}")


def command_name(name: str) -> str:
    """Return the name of a recipe in the command: its model, and its task if it is not of nodes."""
    model, _, task = name.rpartition("-")
    return f"{model} --task {task}" if task in TASKS else name
