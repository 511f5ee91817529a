"""Recipes of the models that predict edges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from flax_layers import GAE, GAT, GCN, RGCN, SAGE, VGAE, CompGCN, ComplEx, ConvE, DistMult
from flax_layers.links import LinkPredictor
from flax_layers.training.config import links
from flax_layers.training.config.links import LinkConfig
from jax_gnn.datasets import (
    GraphDataset,
    NodeDataset,
    RelationalDataset,
    load_graph,
    load_relational,
)


class LinkRecipe(NamedTuple):
    """Description of how to train an encoder for link prediction.

    Attributes:
        config: Class of the settings.
        encoder: Function of settings, a size and rngs that returns the encoder. The size is the
            number of relations, or of features where edges have no relations.
        dataset: Class of the datasets that the model takes.
        load: Reader of such a dataset.
    """

    config: type[LinkConfig]
    encoder: Callable[[Any, int, nnx.Rngs], nnx.Module]
    dataset: type[NodeDataset] = RelationalDataset
    load: Callable[[str], NodeDataset] = load_relational


def _relational_encoder(
    model: Callable[..., nnx.Module],
    config: links.RGCNLinkConfig | links.CompGCNLinkConfig,
    num_relations: int,
    rngs: nnx.Rngs,
) -> nnx.Module:
    if isinstance(config, links.CompGCNLinkConfig):
        options: dict[str, object] = {"composition": config.composition}
    else:  # weights of relations are mixed from bases, or have blocks
        bases = config.num_bases
        options = {"num_bases": bases} if bases else {"num_blocks": config.num_blocks}
    widths = config.embedding_features, config.hidden_features, config.hidden_features
    return model(*widths, num_relations=num_relations, **_common(config, rngs), **options)


def _graph_encoder(
    model: Callable[..., nnx.Module],
    options: tuple[str, ...],
    config: links.GCNLinkConfig,
    in_features: int,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """Return an encoder, some of whose arguments are settings of the same name."""
    arguments = {name: getattr(config, name) for name in options}
    width = config.embedding_features
    if config.variational:
        width *= 2
        arguments["kernel_init"] = _glorot_of_halves(width)
    return model(in_features, config.hidden_features, width, **_common(config, rngs), **arguments)


def _common(config: LinkConfig, rngs: nnx.Rngs) -> dict[str, Any]:
    """Return the arguments that all encoders have."""
    sizes = {"num_layers": config.num_layers, "dropout_rate": config.dropout_rate}
    return {**sizes, "rngs": rngs}


def _glorot_of_halves(width: int) -> nnx.Initializer:
    """Return Glorot's initializer, for which a map of this width is two: means and deviations.

    By the width of both they would begin smaller than published, and learn later.
    """
    glorot = nnx.initializers.glorot_uniform()

    def init(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        if shape[-1] != width:
            return glorot(key, shape, dtype)
        half = (*shape[:-1], width // 2)
        return jnp.concatenate([glorot(k, half, dtype) for k in jax.random.split(key)], -1)

    return init


# Recipes are pickled, so their functions are partials of named ones.
_GRAPHS = GraphDataset, load_graph
_RECIPES = (
    LinkRecipe(links.GCNLinkConfig, partial(_graph_encoder, GCN, ()), *_GRAPHS),
    LinkRecipe(links.SAGELinkConfig, partial(_graph_encoder, SAGE, ("reduce",)), *_GRAPHS),
    LinkRecipe(links.GATLinkConfig, partial(_graph_encoder, GAT, ("heads",)), *_GRAPHS),
    LinkRecipe(links.RGCNLinkConfig, partial(_relational_encoder, RGCN)),
    LinkRecipe(links.CompGCNLinkConfig, partial(_relational_encoder, CompGCN)),
)
LINK_RECIPES = {recipe.config.model: recipe for recipe in _RECIPES}
"""Recipes of the models that predict edges, by name of the model."""


def make_link_model(
    config: LinkConfig, num_nodes: int, num_relations: int, in_features: int | None = None
) -> Any:
    """Return the model of settings, with parameters of their seed.

    It is a `LinkPredictor` for relations, inverse ones not counted, or a `GAE` for edges without
    relations, whose nodes have `in_features` features.
    """
    settings: Any = config
    rngs, make = nnx.Rngs(config.seed), LINK_RECIPES[config.model].encoder
    if in_features is not None:
        encoder = make(config, in_features, rngs)
        return VGAE(encoder, rngs=rngs) if settings.variational else GAE(encoder)
    count = 2 * num_relations
    encoder = make(config, count, rngs)
    if settings.decoder == "conve":
        dropout_rate = settings.decoder_dropout_rate
        decoder: nnx.Module = ConvE(settings.hidden_features, dropout_rate=dropout_rate, rngs=rngs)
    else:
        decoder = DistMult() if settings.decoder == "distmult" else ComplEx()
    # A CompGCN also transforms the relations, from the width of the nodes' embeddings.
    transforms = isinstance(encoder, CompGCN)
    return LinkPredictor(
        num_nodes,
        count,
        settings.embedding_features,
        settings.embedding_features if transforms else settings.hidden_features,
        encoder,
        decoder,
        dropout_rate=config.dropout_rate,
        rngs=rngs,
    )
