"""Direction of the edges: as in the data, or both ways."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TypeVar

from flax_layers.training.config.links import LinkConfig
from flax_layers.training.config.nodes import TrainConfig
from jax_gnn import Graph
from jax_gnn.datasets import (
    MIN_REVERSED_SHARE,
    GraphDataset,
    NodeDataset,
    RelationalDataset,
    reversed_share,
)

C = TypeVar("C", bound="TrainConfig | LinkConfig")


def graph_of(dataset: GraphDataset, config: TrainConfig | LinkConfig) -> Graph:
    """Return the graph of a dataset, with the reverse of each edge if the settings say so."""
    graph = dataset.graph()
    return graph.symmetrized() if getattr(config, "direction", "") == "undirected" else graph


def share_of(dataset: GraphDataset) -> float:
    """Return the share of a dataset's edges that have their reverse."""
    return reversed_share(dataset.src, dataset.dst, dataset.num_nodes)


def warn(text: str) -> None:
    """Warn of the direction that a training from Python chose."""
    warnings.warn(f"{text}; direction='directed' keeps those of the data", stacklevel=4)


def settled_direction(
    dataset: NodeDataset, config: C, tell: Callable[[str], None] | None = None
) -> C:
    """Return the settings with a direction in the place of "auto".

    Args:
        dataset: The data, at whose edges the function looks.
        config: The settings.
        tell: Function that is called with a line of text if edges get their reverses.
    """
    if getattr(config, "direction", "") != "auto":
        return config
    direction = "directed"
    if isinstance(dataset, RelationalDataset):  # as in R-GCN's paper
        direction = "undirected"
    elif isinstance(dataset, GraphDataset) and (share := share_of(dataset)) < MIN_REVERSED_SHARE:
        direction = "undirected"
        if tell is not None:
            tell(
                f"{share:.1%} of the edges of {dataset.name} have their reverse: trained on both "
                "directions of all"
            )
    changes = {"direction": direction}
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]
