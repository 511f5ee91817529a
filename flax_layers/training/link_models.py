"""The models that can be trained to predict edges: one entry each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from flax_layers import GAE, GAT, GCN, RGCN, SAGE, VGAE, CompGCN, ComplEx, ConvE, DistMult
from flax_layers.links import LinkPredictor
from flax_layers.training.config import (
    CompGCNLinkConfig,
    GATLinkConfig,
    GCNLinkConfig,
    LinkConfig,
    RGCNLinkConfig,
    SAGELinkConfig,
)
from jax_gnn.datasets import (
    GraphDataset,
    NodeDataset,
    RelationalDataset,
    load_graph,
    load_relational,
)


class LinkRecipe(NamedTuple):
    """How to train an encoder for link prediction.

    Attributes:
        title: What it is.
        config: The class of its settings.
        encoder: From settings, a size and rngs: of edges with relations the number of relations,
            of others that of features.
        dataset: The class of the datasets that it takes.
        load: Reads such a dataset.
    """

    title: str
    config: type[LinkConfig]
    encoder: Callable[[Any, int, nnx.Rngs], Any]
    dataset: type[NodeDataset] = RelationalDataset
    load: Callable[[str], NodeDataset] = load_relational


def _rgcn(config: RGCNLinkConfig, num_relations: int, rngs: nnx.Rngs) -> RGCN:
    shared: dict[str, Any] = {"num_bases": config.num_bases} if config.num_bases else {}
    return RGCN(
        *(config.embedding_features, config.hidden_features, config.hidden_features),
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        num_relations=num_relations,
        rngs=rngs,
        **shared or {"num_blocks": config.num_blocks},
    )


def _compgcn(config: CompGCNLinkConfig, num_relations: int, rngs: nnx.Rngs) -> CompGCN:
    return CompGCN(
        *(config.embedding_features, config.hidden_features, config.hidden_features),
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        num_relations=num_relations,
        composition=config.composition,
        rngs=rngs,
    )


def _graph_encoder(
    model: type[Any], fields: tuple[str, ...], config: Any, in_features: int, rngs: nnx.Rngs
) -> Any:
    """An encoder whose further arguments are settings of the same name."""
    options = {name: getattr(config, name) for name in fields}
    width = config.embedding_features
    if config.variational:
        options["kernel_init"] = _glorot_of_halves(2 * width)
    return model(
        *(in_features, config.hidden_features),
        2 * width if config.variational else width,
        num_layers=config.num_layers,
        dropout_rate=config.dropout_rate,
        rngs=rngs,
        **options,
    )


def _of_graphs(model: type[Any], *fields: str) -> Callable[[Any, int, nnx.Rngs], Any]:
    return functools.partial(_graph_encoder, model, fields)


def _glorot_of_halves(width: int) -> nnx.Initializer:
    """Glorot's, where maps of so many features are two: of means, and of deviations.

    By the width of both they would begin smaller than published, and learn later.
    """
    glorot = nnx.initializers.glorot_uniform()

    def init(key: Any, shape: Any, *given: Any, **named: Any) -> Any:
        if shape[-1] != width:
            return glorot(key, shape, *given, **named)
        half = (*shape[:-1], width // 2)
        return jnp.concatenate(
            [glorot(k, half, *given, **named) for k in jax.random.split(key)], -1
        )

    return init


_RECIPES = (
    LinkRecipe(
        "graph autoencoder of a graph convolutional network (GAE, Kipf and Welling 2016)",
        *(GCNLinkConfig, _of_graphs(GCN), GraphDataset, load_graph),
    ),
    LinkRecipe(
        "graph autoencoder of GraphSAGE",
        *(SAGELinkConfig, _of_graphs(SAGE, "aggregation"), GraphDataset, load_graph),
    ),
    LinkRecipe(
        "graph autoencoder of a graph attention network",
        *(GATLinkConfig, _of_graphs(GAT, "heads"), GraphDataset, load_graph),
    ),
    LinkRecipe(
        "relational graph convolutional network (R-GCN, Schlichtkrull et al. 2018)",
        *(RGCNLinkConfig, _rgcn),
    ),
    LinkRecipe(
        "composition-based network (CompGCN, Vashishth et al. 2020)",
        *(CompGCNLinkConfig, _compgcn),
    ),
)
LINK_RECIPES = {recipe.config.model: recipe for recipe in _RECIPES}
"""How the models that predict edges are made, by name of the model."""
DECODERS: dict[str, Callable[[Any, nnx.Rngs], Any]] = {
    "distmult": lambda config, rngs: DistMult(),
    "complex": lambda config, rngs: ComplEx(),
    "conve": lambda config, rngs: ConvE(
        config.hidden_features, dropout_rate=config.decoder_dropout_rate, rngs=rngs
    ),
}


def make_link_model(
    config: Any, num_nodes: int, num_relations: int, in_features: int | None = None
) -> Any:
    """The model of settings, with parameters of their seed.

    Args:
        config: The settings.
        num_nodes: Of the dataset.
        num_relations: Of the dataset, inverse ones not included; 0 where edges have none.
        in_features: Features of the dataset's nodes, where edges have no relations.

    Returns:
        A `LinkPredictor`, or a `GAE` where edges have no relations.
    """
    rngs, make = nnx.Rngs(config.seed), LINK_RECIPES[config.model].encoder
    if in_features is not None:
        encoder = make(config, in_features, rngs)
        return VGAE(encoder, rngs=rngs) if config.variational else GAE(encoder)
    count = 2 * num_relations
    encoder = make(config, count, rngs)
    # A CompGCN makes what the decoder takes of the relations, too.
    before = isinstance(encoder, CompGCN)
    return LinkPredictor(
        *(num_nodes, count, config.embedding_features),
        config.embedding_features if before else config.hidden_features,
        encoder,
        DECODERS[config.decoder](config, rngs),
        dropout_rate=config.dropout_rate,
        rngs=rngs,
    )
