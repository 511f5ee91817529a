"""Settings of models of nodes that can be trained on sampled neighbourhoods."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.config.settings import COUNT, COUNTS, Setting

_SIZE = COUNT._replace(accept=lambda value: value is None or COUNT.accept(value))
_FANOUT = 10  # of each layer, where none are given


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledConfig(TrainConfig):
    """What trainings share whose steps may be on the whole graph, or on batches of seeds.

    Raises:
        ValueError: A value is out of range, or `fanouts` are given without a `batch_size`, or are
            not one for each layer.
    """

    batch_size: Annotated[
        int | None,
        Setting(
            "training",
            "nodes per step, of which an epoch has all training nodes once; none: each step is on "
            "the whole graph",
            _SIZE,
            "N",
        ),
    ] = None
    fanouts: Annotated[
        tuple[int, ...],
        Setting(
            "training",
            "with --batch-size: how many edges into a node are drawn in each layer, that of the "
            f"batch first; none: {_FANOUT} in each",
            COUNTS,
            "N,N",
        ),
    ] = ()

    def __post_init__(self) -> None:
        if isinstance(self.fanouts, list):  # of a checkpoint
            object.__setattr__(self, "fanouts", tuple(self.fanouts))
        super().__post_init__()
        if self.fanouts and not self.batch_size:
            raise ValueError(
                f"fanouts need a batch_size, the nodes of a step, got fanouts={self.fanouts} alone"
            )
        if self.fanouts and len(self.fanouts) != self.num_layers:
            raise ValueError(
                f"fanouts must be one for each of num_layers = {self.num_layers} layers, got "
                f"{self.fanouts}"
            )

    @property
    def drawn(self) -> tuple[int, ...]:
        """How many edges are drawn in each layer, those of the batch first."""
        return self.fanouts or (_FANOUT,) * self.num_layers
