"""State of a training in one file, from which an interrupted training continues."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import time
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from flax_layers.training.config.settings import Config, settings
from flax_layers.training.data import Fingerprint
from flax_layers.training.epochs import Runner
from flax_layers.training.processes import check_same, processes_of
from flax_layers.training.types import PyTree

EVERY = 5.0  # seconds between two writes


class Best(NamedTuple):
    """The best of the finished splits: its validation accuracy, variables and number."""

    valid: float = -np.inf
    variables: Any = None
    number: int = -1


class StateFile:
    """Arrays from which a training continues, in a file that is written every few seconds.

    Order and samples of batches follow from seed and epoch, so they are no part of it. At the end
    of a ``with`` block, also by an interruption, the latest state is written; `remove` removes it.

    Where the devices are of several processes, all read the file, and the first writes it.

    Args:
        path: The file; None writes no file.
        config: Settings of the training.
        data: Identity of its dataset.
        resume: Whether to continue from the file.
        devices: Number of devices that train together, the first of `jax.devices()`.

    Attributes:
        arrays: State that was read, by name; empty at the start of a training.

    Raises:
        ValueError: The file exists and `resume` is not set; or it holds a training with other
            settings or data, or none; or settings or data differ between processes.
    """

    def __init__(
        self,
        path: Path | None,
        config: Config,
        data: Fingerprint,
        *,
        resume: bool,
        devices: int = 1,
    ) -> None:
        self._path = path
        self._is_shared = len(processes_of(devices)) > 1
        self._is_writer = path is not None and not (self._is_shared and jax.process_index())
        self._pending: dict[str, object] | None = None
        self._written_at = time.monotonic()
        self.arrays: dict[str, np.ndarray] = {}
        # Fields with an option are settings; the others, such as scalings, follow from the data.
        fields, options = dataclasses.asdict(config), settings(type(config))
        chosen = {"model": config.model} | {name: fields.pop(name) for name in options}
        self._identity = json.dumps({"settings": chosen, "data": {**data._asdict(), **fields}})
        if path is not None and path.exists():
            self._read(path, resume)
        if self._is_shared:
            check_same(
                "settings and data must be the same in all processes",
                zlib.crc32(self._identity.encode()),
            )

    def _read(self, path: Path, resume: bool) -> None:
        if not resume:
            raise ValueError(
                f"{path} has the state of an interrupted training: go on with it by resume=True, "
                "or remove it to start anew"
            )
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                self.arrays = dict(file)
            saved = json.loads(str(self.arrays["identity"]))
            differences = _differences(saved, json.loads(self._identity))
        except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} holds no training to go on with") from error
        if differences:
            raise ValueError(f"{path} is of a training with {differences}")

    def check_progress(self, *numbers: int) -> None:
        """Raise a ValueError on every process if what they have read ends at other epochs."""
        if self._is_shared:
            check_same(
                f"state {self._path} must be one file that all processes see, with one epoch",
                *numbers,
            )

    def keep(self, arrays: Mapping[str, object]) -> None:
        """Store arrays, numbers, text and dictionaries, which are written as JSON.

        The state is written now or later, so nothing of it may change afterwards.
        """
        if not self._is_writer:
            return
        self._pending = {"identity": self._identity, **arrays}
        if time.monotonic() >= self._written_at + EVERY:
            self._write()

    def _write(self) -> None:
        """Replace the file as a whole, or leave it as it is.

        Raises:
            OSError: The disk is full, or the folder cannot be written to.
        """
        # The file is replaced by a complete one, so that a full disk leaves the earlier state.
        arrays, self._pending = self._pending, None
        if self._path is None or arrays is None:
            return
        new = self._path.with_name(self._path.name + ".new")
        try:
            texts = {k: json.dumps(v) for k, v in arrays.items() if isinstance(v, dict)}
            write_arrays(new, arrays | texts)
            os.replace(new, self._path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        finally:
            new.unlink(missing_ok=True)
        self._written_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()

    def remove(self) -> None:
        """Remove the file of a training whose results are kept elsewhere."""
        if self._path is not None and self._is_writer:
            self._path.unlink(missing_ok=True)


class SplitsState(StateFile):
    """State of a training on several splits.

    It has the number of the split and its next epoch, each runner's parameters, moments, best
    variables and curves, and the best of the earlier splits.
    """

    @property
    def split(self) -> int:
        """Split to continue with; 0 for a new training."""
        return int(self.arrays.get("split", 0))

    @property
    def epoch(self) -> int:
        """Next epoch of that split."""
        return int(self.arrays.get("epoch", 0))

    def restore(self, runners: Sequence[Runner], variables: PyTree) -> Best:
        """Give runners, whose split has begun, their state, and return the best split.

        Its variables have the structure of `variables`.
        """
        if not self.arrays:
            return Best()
        # Curves are of all splits, states of the current one.
        for i, runner in enumerate(runners):
            curves = [self.arrays[f"{i}/curves/{split}"] for split in range(self.split + 1)]
            costs = json.loads(str(self.arrays[f"{i}/costs"]))
            runner.restore(fill(runner.state, self.arrays, f"{i}/state"), curves, costs)
        number = int(self.arrays["best"])
        if number < 0:
            return Best()
        best = fill(variables, self.arrays, "best/variables")
        return Best(float(self.arrays["best/valid"]), best, number)

    def errors(self) -> list[dict[str, float]]:
        """Return the regression errors of the finished splits."""
        return json.loads(str(self.arrays["errors"])) if self.arrays else []

    def keep_splits(
        self,
        split: int,
        epoch: int,
        runners: Sequence[Runner],
        best: Best,
        errors: list[dict[str, float]],
    ) -> None:
        """Store the state before an epoch."""
        arrays: dict[str, Any] = {
            "split": split,
            "epoch": epoch,
            "errors": json.dumps(errors),
            "best": best.number,
            "best/valid": best.valid,
            **leaves(best.variables, "best/variables"),
        }
        for i, runner in enumerate(runners):
            arrays |= leaves(runner.state, f"{i}/state")
            arrays |= {f"{i}/curves/{n}": curves for n, curves in enumerate(runner.curves())}
            arrays[f"{i}/costs"] = runner.costs()
        self.keep(arrays)


def _differences(saved: dict[str, Any], current: dict[str, Any]) -> str:
    """Return the settings and parts of the data that differ, old and new, as text; "" if none."""
    old, new = saved["settings"], current["settings"]
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changes = ", ".join(f"{name}={old.get(name)!r} (now {new.get(name)!r})" for name in names)
    data = [name for name, value in saved["data"].items() if value != current["data"].get(name)]
    parts = []
    for name in data:  # sums and statistics are too long to show
        values = saved["data"][name], current["data"].get(name)
        is_short = name in ("name", "num_nodes")
        parts.append(f"{name}={values[0]!r} (now {values[1]!r})" if is_short else f"another {name}")
    differences = [f"other settings: {changes}"] if names else []
    return "; ".join(differences + ([f"other data: {', '.join(parts)}"] if parts else []))


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an ``.npz`` file, made in memory.

    On a disk that is full, the archive of `numpy.savez` complains again when it is collected.
    """
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    path.write_bytes(buffer.getbuffer())


def leaves(tree: PyTree, name: str) -> dict[str, Any]:
    """Return the leaves of a tree by name, as `StateFile.keep` takes them."""
    return {f"{name}/{i}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def fill(template: PyTree, arrays: Mapping[str, np.ndarray], name: str) -> PyTree:
    """Return a tree like the template, with `leaves` that were read."""
    templates, structure = jax.tree.flatten(template)
    values = [jax.numpy.asarray(arrays[f"{name}/{i}"], x.dtype) for i, x in enumerate(templates)]
    return jax.tree.unflatten(structure, values)
