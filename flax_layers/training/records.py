"""Results of a training on nodes or graphs."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import numpy as np
from jax import Array

from flax_layers.training.trained import TrainedModel


class Metrics(NamedTuple):
    """Training loss under dropout and accuracies without; scalars, or one entry per epoch."""

    train_loss: Array | np.ndarray
    train_accuracy: Array | np.ndarray
    valid_accuracy: Array | np.ndarray
    test_accuracy: Array | np.ndarray


class EpochReport(NamedTuple):
    """Argument of `on_epoch`: indices from 0, and the figures of the library's run.

    For batches of nodes also the number of seed nodes that an epoch trained on in a second,
    evaluation included; and whether the split ends with the epoch.
    """

    split: int
    epoch: int
    train_loss: float
    train_accuracy: float
    valid_accuracy: float
    seeds_per_second: float | None = None
    is_last: bool = False


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of one implementation over all splits.

    Rows of splits that stopped early end with NaN.

    Attributes:
        train_loss: Mean cross-entropy of the training nodes under dropout, ``(splits, epochs)``.
        train_accuracy: Accuracy of the training nodes without dropout, after the epoch's step,
            ``(splits, epochs)``; micro-F1 where nodes have several classes.
        valid_accuracy: Accuracy of the validation nodes, ``(splits, epochs)``.
        test_accuracy: Accuracy of the test nodes, ``(splits, epochs)``.
        epoch_seconds: Measured seconds per epoch, one entry per timed call, without compilation.
        compile_seconds: Seconds of tracing and compilation.
        custom_calls: Names of this library's XLA custom calls in the compiled program.
        over: Meaning of a row: "splits", "seeds" of one split, or "folds", which share one best
            epoch.
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

        Folds of a cross-validation share the epoch of the highest mean over the folds.
        """
        valid = np.where(np.isnan(self.valid_accuracy), -np.inf, self.valid_accuracy)
        if self.over == "folds":
            valid = np.broadcast_to(valid.mean(axis=0), valid.shape)
        return valid.argmax(axis=1)

    @property
    def best_valid_accuracy(self) -> np.ndarray:
        """Validation accuracy at `best_epoch`, ``(splits,)``."""
        return np.take_along_axis(self.valid_accuracy, self.best_epoch[:, None], 1)[:, 0]

    @property
    def best_test_accuracy(self) -> np.ndarray:
        """Test accuracy at `best_epoch`, ``(splits,)``."""
        return np.take_along_axis(self.test_accuracy, self.best_epoch[:, None], 1)[:, 0]

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
            are compared by validation accuracy; the first of equal ones is the best.
        graph: Graph or hypergraph of the training, added self-loops included; over several devices
            a `jax_gnn.sharding.ShardedGraph`.
        x: Features of the training, see `node_features`; over several devices rows of these.
        run: The library's run.
        baseline: Run of the same model in plain XLA, without this library's kernels, from the same
            initial parameters and dropout keys, if asked for.
        sizes: Sizes of the graph by name, such as "num_nodes".
        errors: For a regression "mae", "rmse" and "r2" of the test examples, one for each split, by
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
        scores = {name: f"{values.mean():.4g}" for name, values in (self.errors or {}).items()}
        if self.errors is None:
            names = "accuracy_mean", "accuracy_std"
            scores = {name: f"{getattr(self.run, name):.4f}" for name in names}
        text = ", ".join(f"{name}={value}" for name, value in scores.items())
        return f"TrainResult({self.trained.config.model}, {text})"

    @property
    def model(self) -> Any:
        """The model alone, in evaluation mode, which takes `graph` and `x`."""
        return self.trained.model

    @property
    def speedup(self) -> float | None:
        """Plain XLA's median time per epoch over the library's."""
        if self.baseline is None:
            return None
        return self.baseline.median_epoch_seconds / self.run.median_epoch_seconds


def mean_and_std(mean: float, std: float, count: int, form: str) -> str:
    """Return a mean as text, with the deviation where there are several numbers."""
    return f"{mean:{form}} ± {std:{form}}" if count > 1 else f"{mean:{form}}"
