"""The models that can be trained: one entry each, of all that the training has to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flax_layers import GCN, GIN, HGNN, SAGE, Stack
from jax_gnn.datasets import (
    GraphDataset,
    HypergraphDataset,
    NodeDataset,
    load_graph,
    load_hypergraph,
)
from jax_gnn.training import plain
from jax_gnn.training.config import (
    GCNConfig,
    GINConfig,
    HGNNConfig,
    SAGEConfig,
    TrainConfig,
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
        structure: From a dataset and settings to the graph or hypergraph.
        options: From settings and structure to the arguments of the convolutions.
        plain_structure: From the structure to that of the plain-JAX twin.
        plain_convolution: The twin's convolution.
    """

    title: str
    model: type[Stack]
    config: type[TrainConfig]
    dataset: type[NodeDataset]
    load: Callable[[str], NodeDataset]
    sizes: tuple[str, ...]
    structure: Callable[[Any, Any], Any]
    options: Callable[[Any, Any], dict[str, Any]]
    plain_structure: Callable[[Any], Any]
    plain_convolution: plain.PlainConvolution


def _hgnn_options(config: HGNNConfig, hypergraph: Any) -> dict[str, Any]:
    learnable = config.learnable_hyperedge_weights
    return {
        "normalization": config.normalization,
        "num_hyperedges": hypergraph.num_hyperedges if learnable else None,
    }


def _on_graphs(
    model: type[Stack],
    config: type[TrainConfig],
    plain_convolution: plain.PlainConvolution,
    options: tuple[str, ...],
    title: str,
) -> Recipe:
    return Recipe(
        title=title,
        model=model,
        config=config,
        dataset=GraphDataset,
        load=load_graph,
        sizes=("num_nodes", "num_edges"),
        structure=lambda dataset, _: dataset.graph(),
        options=lambda config, _: {name: getattr(config, name) for name in options},
        plain_structure=plain.CooGraph.from_graph,
        plain_convolution=plain_convolution,
    )


_HGNN = Recipe(
    title="hypergraph neural network (HGNN, Feng et al. 2019)",
    model=HGNN,
    config=HGNNConfig,
    dataset=HypergraphDataset,
    load=load_hypergraph,
    sizes=("num_nodes", "num_hyperedges", "num_incidences"),
    structure=lambda dataset, config: dataset.hypergraph(self_loops=config.self_loops),
    options=_hgnn_options,
    plain_structure=plain.CooHypergraph.from_hypergraph,
    plain_convolution=plain.hgnn_convolution,
)
_GCN = _on_graphs(
    GCN,
    GCNConfig,
    plain.gcn_convolution,
    options=(),
    title="graph convolutional network (GCN, Kipf and Welling 2017)",
)
_GIN = _on_graphs(
    GIN,
    GINConfig,
    plain.gin_convolution,
    options=("learn_eps",),
    title="graph isomorphism network (GIN, Xu et al. 2019)",
)
_SAGE = _on_graphs(
    SAGE,
    SAGEConfig,
    plain.sage_convolution,
    options=("aggregation", "project"),
    title="GraphSAGE over all neighbours (Hamilton et al. 2017)",
)
RECIPES = {recipe.config.model: recipe for recipe in (_HGNN, _GCN, _GIN, _SAGE)}


def recipe_of(config: TrainConfig, dataset: NodeDataset) -> Recipe:
    """The recipe of a configuration.

    Raises:
        TypeError: The configuration is of no model, or its model takes other datasets.
    """
    recipe = RECIPES.get(getattr(config, "model", ""))
    if recipe is None:
        raise TypeError(
            f"config must be of a model, such as GCNConfig, got {type(config).__name__}"
        )
    if not isinstance(dataset, recipe.dataset):
        raise TypeError(
            f"{recipe.config.model} takes a {recipe.dataset.__name__}, "
            f"got a {type(dataset).__name__}"
        )
    return recipe
