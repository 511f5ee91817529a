"""What the commands tell while they run: progress, errors that name an option, cells of tables."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flax_layers.training import (
    EpochReport,
    LinkConfig,
)
from flax_layers.training.checkpoint import CHECKPOINT, STATE
from flax_layers.training.plot import METRICS
from jax_gnn.cli import UserError

ERRORS = {"mae": "MAE", "rmse": "RMSE", "r2": "R2"}


@contextlib.contextmanager
def blame_data() -> Iterator[None]:
    """Names the option in errors about data."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"--data: {error}") from error


@contextlib.contextmanager
def blame_output(path: Path) -> Iterator[None]:
    """Likewise about what is written."""
    try:
        yield
    except BrokenPipeError:  # of what is printed
        raise
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror or error}") from error


def make_folder(args: argparse.Namespace, name: str) -> tuple[Path, Path]:
    """Makes the folder of a run's results, by default ``runs/NAME``.

    Returns:
        The folder, and the file in it for the state of the training.

    Raises:
        UserError: The folder has the results of a run, or the state of an interrupted one, and the
            options say neither to replace them nor to go on.
    """
    path: Path = args.output or Path("runs") / name
    state = path / STATE
    with blame_output(path):
        path.mkdir(parents=True, exist_ok=True)
        taken = (path / CHECKPOINT).exists() or (path / "results.json").exists()
        if args.overwrite and not args.resume:
            state.unlink(missing_ok=True)
    if state.exists() and not args.resume:
        raise UserError(
            f"{path} has the state of an interrupted run: --resume goes on with it, --overwrite "
            "starts anew, --output DIR writes elsewhere"
        )
    if taken and not args.overwrite:
        raise UserError(
            f"{path} has the results of a run: --overwrite replaces them, --output DIR writes "
            "elsewhere"
        )
    return path, state


@contextlib.contextmanager
def tell_resume(args: argparse.Namespace, state: Path) -> Iterator[None]:
    """Adds to an interruption the command that goes on, if there is a state to go on from."""
    try:
        yield
    except KeyboardInterrupt:
        if not state.exists():
            raise
        words = args.words if args.resume else [*args.words, "--resume"]
        raise KeyboardInterrupt(f"to go on: {shlex.join(['jax-gnn', *words])}") from None


class Progress:
    """A bar on a terminal, one line per split elsewhere; on stderr, apart from the result."""

    def __init__(
        self, splits: int, epochs: int, measure: str = "accuracy", what: str = "split"
    ) -> None:
        self._splits, self._epochs, self._measure, self._what = splits, epochs, measure, what
        self._bar: Any = None
        self._best = 0.0

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._splits * self._epochs, unit="epoch")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, report: EpochReport) -> None:
        """Tells an epoch."""
        self._best = (
            max(self._best, report.valid_accuracy) if report.epoch else report.valid_accuracy
        )
        split = f"{self._what} {report.split + 1}/{self._splits}"
        best = f"{self._best:.1%}" if self._measure == "accuracy" else f"{self._best:.3f}"
        validation = f"best validation {self._measure} {best}"
        if report.seeds_per_second is not None:
            validation += f", {report.seeds_per_second:,.0f} seeds/s"
        if self._bar is not None:
            self._bar.set_description(split, refresh=False)
            self._bar.set_postfix_str(validation, refresh=False)
            self._bar.update()
        elif report.epoch + 1 == self._epochs:
            print(f"{split}: {validation}", file=sys.stderr, flush=True)


class LinkProgress(Progress):
    """Of a training for link prediction: on no terminal there is a line for each validation."""

    def __init__(self, config: LinkConfig, best_by: str) -> None:
        super().__init__(1, config.epochs)
        self._best_by = best_by

    def __call__(self, report: Any) -> None:
        """Tells an epoch."""
        loss, text = f"loss {report.loss:.4f}", ""
        if report.valid is not None:
            value = report.valid[self._best_by]
            self._best = max(self._best, value)
            text = f"validation {METRICS[self._best_by]} {value:.4f}"
        if self._bar is not None:
            best = f"best validation {METRICS[self._best_by]} {self._best:.4f}"
            self._bar.set_description(loss, refresh=False)
            self._bar.set_postfix_str(best, refresh=False)
            self._bar.update()
        elif text:
            number = f"epoch {report.epoch + 1}/{self._epochs}"
            print(f"{number}: {loss}, {text}", file=sys.stderr, flush=True)


def percent(metrics: dict[str, float]) -> list[str]:
    """Cells of a table."""
    return [f"{100 * metrics[name]:.2f} %" for name in METRICS if name in metrics]


def metric_names(metrics: dict[str, float]) -> list[str]:
    """Their heads."""
    return [text for name, text in METRICS.items() if name in metrics]
