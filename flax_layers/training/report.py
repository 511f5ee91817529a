"""Progress of the commands, their errors that name an option, and cells of their tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Self

import jax
import numpy as np
from jax.experimental.multihost_utils import sync_global_devices

from flax_layers.training.checkpoint import CHECKPOINT, STATE, load_checkpoint, save_checkpoint
from flax_layers.training.config.links import LinkConfig
from flax_layers.training.links import LinkReport
from flax_layers.training.plot import METRICS
from flax_layers.training.predictor import Predictor
from flax_layers.training.records import EpochReport
from jax_gnn.cli import UserError, table

PLOT, RESULTS = "learning_curves.png", "results.json"
ERRORS = {"mae": "MAE", "rmse": "RMSE", "r2": "R2", "force_mae": "MAE of forces"}


@contextlib.contextmanager
def blame_data() -> Iterator[None]:
    """Name the option ``--data`` in errors about data."""
    try:
        yield
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"--data: {error}") from error


@contextlib.contextmanager
def blame_output(path: Path) -> Iterator[None]:
    """Name the option ``--output`` in errors about files to write."""
    try:
        yield
    except BrokenPipeError:  # of standard output
        raise
    except OSError as error:
        raise UserError(f"--output {path}: {error.strerror or error}") from error


def make_folder(args: argparse.Namespace, name: str) -> tuple[Path, Path]:
    """Make the folder of a run's results, by default ``runs/NAME``; also return its state file.

    Of several processes, which all call this, the first makes it.

    Raises:
        UserError: The folder has the results of a run, or the state of an interrupted one, and the
            options say neither to replace them nor to go on.
    """
    path: Path = args.output or Path("runs") / name
    state = path / STATE
    if jax.process_index() == 0:
        _make_folder(args, path, state)
    sync_global_devices("folder")  # no process looks for the state before
    if not path.is_dir():
        raise UserError(
            f"--output {path}: the first process made it, process "
            f"{jax.process_index()} does not see it; they need one file system"
        )
    return path, state


def _make_folder(args: argparse.Namespace, path: Path, state: Path) -> None:
    with blame_output(path):
        path.mkdir(parents=True, exist_ok=True)
        has_results = (path / CHECKPOINT).exists() or (path / RESULTS).exists()
        if args.overwrite and not args.resume:
            state.unlink(missing_ok=True)
    if state.exists() and not args.resume:
        raise UserError(
            f"{path} has the state of an interrupted run: --resume goes on with it, --overwrite "
            "starts anew, --output DIR writes elsewhere"
        )
    # A run that was interrupted while it wrote its results has both.
    if has_results and not args.overwrite and not state.exists():
        raise UserError(
            f"{path} has the results of a run: --overwrite replaces them, --output DIR writes "
            "elsewhere"
        )


def write_run(
    folder: Path,
    trained: Predictor,
    outputs: Callable[[Any], Iterable[np.ndarray]],
    document: Mapping[str, object],
    draw: Callable[[Path], None],
) -> bool:
    """Write checkpoint, plot and results; return whether the checkpoint gives the same outputs.

    Of several processes, which all call this, the first writes plot and results.

    Args:
        folder: Folder of the run.
        trained: Model of the run.
        outputs: Function that returns predictions of a model.
        document: Contents of results.json.
        draw: Function that draws the plot into a file.
    """
    # The checkpoint is written first: a full disk then costs the plot, and not the model.
    with blame_output(folder):
        save_checkpoint(folder / CHECKPOINT, trained)
    # Each run ends with a check that its checkpoint predicts to the same bits.
    pairs = zip(outputs(trained), outputs(load_checkpoint(folder / CHECKPOINT)), strict=True)
    is_same = all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
    if jax.process_index():
        return is_same
    with blame_output(folder):
        draw(folder / PLOT)
        (folder / RESULTS).write_text(json.dumps(document, indent=2) + "\n")
        (folder / STATE).unlink(missing_ok=True)  # from now on nothing depends on it
    return is_same


def print_files(folder: Path, is_same: bool, note: str = "") -> int:
    """Print the files of `write_run`, and return the exit code of the command."""
    if not is_same:
        checkpoint = folder / CHECKPOINT
        print(f"jax-gnn: {checkpoint} predicts otherwise than the trained model", file=sys.stderr)
        return 1
    notes = {CHECKPOINT: f"({note}loaded again: same predictions)"}
    files = {"checkpoint": CHECKPOINT, "plot": PLOT, "results": RESULTS}
    print(table([[kind, str(folder / name), notes.get(name, "")] for kind, name in files.items()]))
    return 0


@contextlib.contextmanager
def suggest_resume(args: argparse.Namespace) -> Iterator[None]:
    """Add to an interruption, or to an error about files, the command that continues."""
    try:
        yield
    except (KeyboardInterrupt, UserError) as error:
        words = args.words if args.resume else [*args.words, "--resume"]
        line = f"to go on: {shlex.join(['jax-gnn', *words])}"
        if isinstance(error, UserError):
            raise UserError(f"{error}; {line}") from error
        raise KeyboardInterrupt(line) from None


class _Progress:
    """A bar on a terminal, single lines elsewhere; on stderr, apart from the result.

    Python drops a Ctrl-C that arrives in a callback of the garbage collector, as JAX has one that
    runs often while programs are compiled. It is remembered, and raised after the epoch.
    """

    def __init__(self, num_splits: int, epochs: int) -> None:
        self._num_splits, self._epochs = num_splits, epochs
        self._bar: Any = None
        self._best = 0.0
        self._handler = signal.getsignal(signal.SIGINT)
        self._interrupted = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        assert callable(self._handler)
        self._handler(number, frame)

    def __enter__(self) -> Self:
        if callable(self._handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._interrupt)
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._num_splits * self._epochs, unit="epoch")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, self._handler)
        if self._interrupted and kind is None:
            raise KeyboardInterrupt

    def _show(self, title: str, text: str, line: str) -> None:
        """Update the bar; without a terminal, print the line, if there is one."""
        if self._interrupted:
            raise KeyboardInterrupt
        if self._bar is not None:
            self._bar.set_description(title, refresh=False)
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        elif line:
            print(line, file=sys.stderr, flush=True)


class Progress(_Progress):
    """Progress of a training on nodes or graphs, with a line for each split."""

    def __init__(
        self, num_splits: int, epochs: int, measure: str = "accuracy", row: str = "split"
    ) -> None:
        super().__init__(num_splits, epochs)
        self._measure, self._row = measure, row

    def __call__(self, report: EpochReport) -> None:
        """Show an epoch."""
        valid = report.valid_accuracy
        self._best = max(self._best, valid) if report.epoch else valid
        title = f"{self._row} {report.split + 1}/{self._num_splits}"
        best = f"{self._best:.1%}" if self._measure == "accuracy" else f"{self._best:.3f}"
        text = f"best validation {self._measure} {best}"
        if report.seeds_per_second is not None:
            text += f", {report.seeds_per_second:,.0f} seeds/s"
        self._show(title, text, f"{title}: {text}" if report.is_last else "")


class LinkProgress(_Progress):
    """Progress of a training for link prediction, with a line for each validation."""

    def __init__(self, config: LinkConfig, best_by: str) -> None:
        super().__init__(1, config.epochs)
        self._best_by = best_by

    def __call__(self, report: LinkReport) -> None:
        """Show an epoch."""
        title, line = f"loss {report.loss:.4f}", ""
        if report.valid is not None:
            value = report.valid[self._best_by]
            self._best = max(self._best, value)
            validation = f"validation {METRICS[self._best_by]} {value:.4f}"
            line = f"epoch {report.epoch + 1}/{self._epochs}: {title}, {validation}"
        self._show(title, f"best validation {METRICS[self._best_by]} {self._best:.4f}", line)


def metric_table(rows: Mapping[str, Mapping[str, float]], notes: Mapping[str, str]) -> str:
    """Return a table of metrics in percent by the title of a row, with a note after some rows."""
    names = [name for name in METRICS if name in next(iter(rows.values()))]
    cells = [["", *(METRICS[name] for name in names), *[""] * bool(notes)]]
    for title, metrics in rows.items():
        values = (f"{100 * metrics[name]:.2f} %" for name in names)
        cells.append([title, *values, *[notes.get(title, "")] * bool(notes)])
    return table(cells)
