"""What came of a training on nodes or graphs."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np

from flax_layers.training.trained import (
    TrainedModel,
)


class Metrics(NamedTuple):
    """Training loss under dropout and accuracies without; scalars, or one entry per epoch."""

    train_loss: Any
    train_accuracy: Any
    valid_accuracy: Any
    test_accuracy: Any


class EpochReport(NamedTuple):
    """What `on_epoch` is told: indices from 0, and the library run's figures.

    Of batches of nodes also how many of these an epoch trained on in a second, evaluation included.
    """

    split: int
    epoch: int
    train_loss: float
    train_accuracy: float
    valid_accuracy: float
    seeds_per_second: float | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of one implementation over all splits.

    Attributes:
        train_loss: Mean cross-entropy of the training nodes under dropout, ``(splits, epochs)``.
        train_accuracy: Without dropout, after the epoch's step, ``(splits, epochs)``; micro-F1
            where nodes have several classes. So are the next two.
        valid_accuracy: ``(splits, epochs)``.
        test_accuracy: ``(splits, epochs)``.
        epoch_seconds: Measured seconds per epoch, one entry per timed call, without compilation.
        compile_seconds: Tracing and compilation.
        custom_calls: Names of this library's XLA custom calls in the compiled program.
        over: What a row is of: "splits", "seeds" of one split, or "folds", of which all have one
            best epoch.
    """

    train_loss: np.ndarray
    train_accuracy: np.ndarray
    valid_accuracy: np.ndarray
    test_accuracy: np.ndarray
    epoch_seconds: np.ndarray
    compile_seconds: float
    custom_calls: tuple[str, ...]
    over: Literal["splits", "seeds", "folds"] = "splits"

    @property
    def best_epoch(self) -> np.ndarray:
        """First epoch of the highest validation accuracy in each split, ``(splits,)``.

        Of a cross-validation that of the highest mean over the folds, for all of them.
        """
        valid = self.valid_accuracy
        if self.over == "folds":
            valid = np.broadcast_to(valid.mean(axis=0), valid.shape)
        return valid.argmax(axis=1)

    @property
    def best_valid_accuracy(self) -> np.ndarray:
        """Validation accuracy at `best_epoch`, ``(splits,)``."""
        return self.valid_accuracy[np.arange(len(self.valid_accuracy)), self.best_epoch]

    @property
    def best_test_accuracy(self) -> np.ndarray:
        """Test accuracy at `best_epoch`, ``(splits,)``."""
        return self.test_accuracy[np.arange(len(self.test_accuracy)), self.best_epoch]

    @property
    def accuracy_mean(self) -> float:
        """Mean of `best_test_accuracy`."""
        return float(self.best_test_accuracy.mean())

    @property
    def accuracy_std(self) -> float:
        """Sample standard deviation of `best_test_accuracy`; 0 for one split."""
        values = self.best_test_accuracy
        return float(values.std(ddof=1)) if len(values) > 1 else 0.0

    @property
    def median_epoch_seconds(self) -> float:
        """Median of `epoch_seconds`."""
        return float(np.median(self.epoch_seconds))


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Outcome of `train`.

    Attributes:
        trained: The best split's model at its best validation epoch, ready to predict. Splits, too,
            are compared by validation accuracy; of equal ones the first is the best.
        graph: The graph or hypergraph that it was trained on, added self-loops included; over
            several devices a `jax_gnn.sharding.ShardedGraph`.
        x: What it was trained on, see `node_features`; over several devices rows of these.
        run: The library's run.
        baseline: The plain-JAX run from the same initial parameters and dropout keys, if asked for.
        sizes: Of the graph, by name, such as "num_nodes".
        errors: Of a regression "mae", "rmse" and "r2" of the test examples, one for each split, by
            its best model.
    """

    trained: TrainedModel
    graph: Any
    x: Any
    run: Run
    baseline: Run | None
    sizes: dict[str, int]
    errors: dict[str, np.ndarray] | None = None

    def __repr__(self) -> str:
        found = {name: f"{values.mean():.4g}" for name, values in (self.errors or {}).items()}
        if self.errors is None:
            names = "accuracy_mean", "accuracy_std"
            found = {name: f"{getattr(self.run, name):.4f}" for name in names}
        told = ", ".join(f"{name}={value}" for name, value in found.items())
        return f"TrainResult({self.trained.config.model}, {told})"

    @property
    def model(self) -> Any:
        """The model alone, in evaluation mode: `graph` and `x` are what it takes."""
        return self.trained.model

    @property
    def speedup(self) -> float | None:
        """Plain JAX's median time per epoch over the library's."""
        if self.baseline is None:
            return None
        return self.baseline.median_epoch_seconds / self.run.median_epoch_seconds


def mean_and_std(mean: float, std: float, count: int, form: str) -> str:
    """A mean as text, with the deviation where there are several numbers."""
    return f"{mean:{form}} ± {std:{form}}" if count > 1 else f"{mean:{form}}"
