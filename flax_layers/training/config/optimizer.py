"""Settings of the optimizer, which trainings of nodes, graphs and links share."""

from __future__ import annotations

from typing import Any, Literal

from flax_layers.training.config.settings import POSITIVE, WHOLE, Config, setting


class OptimizerConfig(Config):
    """Settings of Adam's learning rate over the epochs, and of the end of a training."""

    learning_rate: float = setting(0.01, "training", "learning rate of Adam", POSITIVE)
    schedule: Literal["constant", "cosine", "step"] = setting(
        "constant", "training", "learning rate: constant, along a cosine to 0, or halved in steps"
    )
    halve_every: int = setting(
        50, "training", "with --schedule step: epochs until the rate halves; 0: never", WHOLE
    )
    warmup: int = setting(0, "training", "first epochs, in which the rate rises linearly", WHOLE)
    early_stopping: int = setting(
        0,
        "training",
        "epochs without a better validation after which a training ends; 0: it has all epochs",
        WHOLE,
        metavar="PATIENCE",
    )

    def rates(self, steps: int) -> Any:
        """Return the learning rate, or a function of the step, for so many steps per epoch."""
        import optax  # part of the extra "train"

        rate: Any = self.learning_rate
        warmup, epochs = self.warmup * steps, getattr(self, "epochs", 0)
        schedule = rate
        if self.schedule == "cosine":
            schedule = optax.cosine_decay_schedule(rate, max(epochs * steps - warmup, 1))
        elif self.schedule == "step" and self.halve_every:
            schedule = optax.exponential_decay(rate, self.halve_every * steps, 0.5, staircase=True)
        if not warmup:
            return schedule
        rising = optax.linear_schedule(rate / (warmup + 1), rate, warmup)
        later = schedule if callable(schedule) else optax.constant_schedule(rate)
        return optax.join_schedules([rising, later], [warmup])
