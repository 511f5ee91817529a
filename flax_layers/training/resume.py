"""What a training that was interrupted goes on from: one file, written every few seconds."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from flax_layers.training.config import TrainConfig
from flax_layers.training.data import Fingerprint
from flax_layers.training.epochs import Runner

EVERY = 5.0  # seconds between two writes


class Best(NamedTuple):
    """The best of the splits that have ended."""

    valid: float = -np.inf
    variables: Any = None
    number: int = -1  # of the split


class Kept:
    """The state of a training in a file.

    Order and samples of batches follow from seed and epoch. So what is to be kept is the number of
    the split, that of its next epoch, each runner's parameters, moments, best and curves, and the
    best split before. Inside a ``with`` block that ends by an exception, as an interruption is one,
    the last state is written; at any other end the file is removed.

    Attributes:
        split: The split to go on with; 0 of a new training.
        epoch: Its next epoch.
    """

    def __init__(
        self, path: Path | None, config: TrainConfig, data: Fingerprint, *, resume: bool
    ) -> None:
        """Reads the file, if it is there and is to be gone on from.

        Args:
            path: Of the file; None keeps nothing.
            config: Of the training.
            data: What its dataset is recognised by.
            resume: Whether to go on.

        Raises:
            ValueError: The file is of a training with other settings or data, or is none.
        """
        self._path = path
        self._unwritten: Callable[[], dict[str, Any]] | None = None
        self._written = time.monotonic()
        self._found: dict[str, np.ndarray] = {}
        self._of = json.dumps([repr(config), repr(data)])
        if path is not None and resume and path.exists():
            try:
                with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                    self._found = dict(file)
                of = str(self._found["of"])
            except (KeyError, OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
                raise ValueError(f"{path} holds no training to go on with") from error
            if of != self._of:
                raise ValueError(f"{path} is of a training with other settings or other data")
        self.split, self.epoch = (int(self._found.get(name, 0)) for name in ("split", "epoch"))

    def restored(self, runners: Sequence[Runner], variables: Any) -> Best:
        """Gives runners, whose split has begun, the state that was kept, and returns the best.

        Args:
            runners: As many as were kept.
            variables: Of the structure of those of the best split.
        """
        if not self._found:
            return Best()
        for i, runner in enumerate(runners):
            runner.restore(_filled(runner.state, self._found, f"{i}/state"), self._curves(i))
        number = int(self._found["best"])
        if number < 0:
            return Best()
        best = _filled(variables, self._found, "best/variables")
        return Best(float(self._found["best/valid"]), best, number)

    def errors(self) -> list[dict[str, float]]:
        """Those of the splits that have ended."""
        return json.loads(str(self._found["errors"])) if self._found else []

    def _curves(self, runner: int) -> list[np.ndarray]:
        return [self._found[f"{runner}/curves/{split}"] for split in range(self.split + 1)]

    def keep(
        self,
        split: int,
        epoch: int,
        runners: Sequence[Runner],
        best: Best,
        errors: list[dict[str, float]],
    ) -> None:
        """Keeps the state before an epoch, to be written now or later."""
        if self._path is None:
            return
        of_splits = json.dumps(errors)
        states, curves = zip(*[(runner.state, runner.curves()) for runner in runners], strict=True)

        def arrays() -> dict[str, Any]:
            found: dict[str, Any] = {
                **{"of": self._of, "split": split, "epoch": epoch, "errors": of_splits},
                **{"best": best.number, "best/valid": best.valid},
                **_leaves(best.variables, "best/variables"),
            }
            for i, (state, own) in enumerate(zip(states, curves, strict=True)):
                found |= _leaves(state, f"{i}/state")
                found |= {f"{i}/curves/{n}": each for n, each in enumerate(own)}
            return found

        self._unwritten = arrays
        if time.monotonic() >= self._written + EVERY:
            self._write()

    def _write(self) -> None:
        """The file is there as a whole or as it was."""
        if self._path is None or self._unwritten is None:
            return
        written = self._path.with_name(self._path.name + ".new")
        with written.open("wb") as file:
            np.savez(file, **self._unwritten())
        os.replace(written, self._path)
        self._unwritten, self._written = None, time.monotonic()

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._write()
        elif self._path is not None:
            self._path.unlink(missing_ok=True)


def _leaves(tree: Any, name: str) -> dict[str, np.ndarray]:
    return {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _filled(like: Any, found: dict[str, np.ndarray], name: str) -> Any:
    """A tree like another one, of leaves that were kept."""
    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(
        tree, [jax.numpy.asarray(found[f"{name}/{i}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    )
