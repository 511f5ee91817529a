"""Agreement of processes on arguments, their shares of arrays, and their work on one folder."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike

from jax_gnn._core import arguments as checks

SAMPLE_BYTES = 1 << 24

PATIENCE = 300.0
"""Seconds without a sign of life of a process after which the others take it for lost."""


def largest(mesh: Mesh, sizes: np.ndarray) -> np.ndarray:
    """Return the largest of each size over the processes; all call this after `check_same`."""
    if len({device.process_index for device in mesh.devices.flat}) == 1:
        return sizes
    from jax.experimental.multihost_utils import process_allgather

    gathered: np.ndarray = process_allgather(sizes)
    return np.asarray(gathered.max(0))


def check_same(mesh: Mesh, **arguments: object) -> None:
    """Raise a ValueError on every process if an argument differs between processes.

    This must come before arrays are made of the arguments, and before errors that only some
    processes see. All processes must call, unless the mesh has devices of one process only; it may
    not lack devices of some. Arguments are pytrees of arrays in numpy, strings and numbers.
    """
    # Programs of one process, the usual case, must not communicate here.
    devices = [(device.process_index, device.id) for device in mesh.devices.flat]
    processes, count = {process for process, _ in devices}, jax.process_count()
    if len(processes) == 1:
        return
    if len(processes) < count:
        raise ValueError(
            f"mesh must have devices of one process or of all {count}, got those of "
            f"{sorted(processes)}"
        )
    from jax.experimental.multihost_utils import process_allgather

    arguments["mesh"] = (mesh.devices.shape, mesh.axis_names, devices)
    # Digests are compared instead of values, which may be large.
    _compare(process_allgather(_digests(arguments)), arguments)


def _digests(arguments: Mapping[str, object]) -> np.ndarray:
    return np.stack([digest(value) for value in arguments.values()])


def _compare(digests: np.ndarray, names: Iterable[str]) -> None:
    """Raise a ValueError if digests, ``(processes, names, 4)``, differ between processes."""
    for column, name in enumerate(names):
        differing = np.flatnonzero((digests[:, column] != digests[0, column]).any(1))
        if differing.size:
            raise ValueError(
                f"{name} must be the same on all processes, got another on process {differing[0]} "
                "than on process 0"
            )


def sample(array: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Return shape and rows for `check_same`: all rows, or evenly spaced ones of 16 MiB.

    The check then takes milliseconds, and reads little of a memory map.
    """
    if not array.ndim or array.nbytes <= SAMPLE_BYTES:
        return array.shape, array
    count = max(1, SAMPLE_BYTES // (array.nbytes // len(array)))
    return array.shape, array[np.linspace(0, len(array) - 1, count).astype(int)]


def local_rows(array: ArrayLike) -> dict[int, np.ndarray]:
    """Return the rows that this process has of an array, by their index on its first axis."""
    # A graph that was copied to the host has arrays in numpy.
    if not isinstance(array, jax.Array):
        return dict(enumerate(np.asarray(array)))
    rows: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        rows |= dict(enumerate(np.asarray(shard.data), shard.index[0].start or 0))
    return rows


def digest(tree: object) -> np.ndarray:
    """Return a hash of a pytree of 16 bytes, as uint32, which JAX does not narrow."""
    leaves, structure = jax.tree.flatten(tree)
    digest = hashlib.blake2b(str(structure).encode(), digest_size=16)
    for leaf in leaves:
        array = np.asarray(leaf, order="C")
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return np.frombuffer(digest.digest(), np.uint32)


class ProcessGroup:
    """Processes that write one folder together, and exchange arrays by files in it.

    They need a file system in common, but no launcher. An error of one process is raised by all. A
    process whose thread shows no life for `PATIENCE` seconds is an error of the others.

    Attributes:
        index: number of this process, from 0.
        count: number of processes.
        scratch: folder of temporary files for all of them.
    """

    scratch: Path

    def __init__(self, index: int | None, count: int | None) -> None:
        if index is None and count is None:
            in_job = jax.distributed.is_initialized()
            index, count = (jax.process_index(), jax.process_count()) if in_job else (0, 1)
        self.index = checks.check_integer("process_index", index)
        self.count = checks.check_integer("process_count", count)
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"process_index must be below process_count, got {self.index} and {self.count}"
            )
        self._ended, self._step, self._failure = threading.Event(), 0, ""
        self._seen: dict[int, tuple[int, float]] = {}

    @contextlib.contextmanager
    def work_on(self, folder: Path) -> Iterator[None]:
        """Meet the other processes in a folder, and remove the temporary files at the end."""
        folder.mkdir(parents=True, exist_ok=True)
        try:
            tokens = self._meet(folder, secrets.token_hex(8))
            if self.count > 1:
                (self.scratch / f"{self.index}.alive").touch()
                threading.Thread(target=self._show_life, daemon=True).start()
            if len(tokens) != self.count:
                raise ValueError(
                    f"process_count must be the same on all processes, got {self.count} on process "
                    f"{self.index} and {len(tokens)} on process 0"
                )
            yield
        except BaseException as error:
            if self.count > 1 and not self._failure and hasattr(self, "scratch"):
                message = f"{type(error).__name__} on process {self.index}: {error}"
                _write(self.scratch / f"{self.index}.error", message)
            raise
        finally:
            (folder / f"process-{self.index}").unlink(missing_ok=True)
            if hasattr(self, "scratch"):
                self._leave()

    def _meet(self, folder: Path, token: str) -> list[str]:
        """Choose a folder of temporary files, and return the tokens of all processes.

        Process 0 publishes the tokens. A process that finds its own there knows that they are of
        this run, and process 0 that it did by a file in the folder that its own token names.
        """
        published, scratch = folder / "process-0", folder / f"edges-{token}"
        if self.index == 0:
            scratch.mkdir()
        else:
            _write(folder / f"process-{self.index}", token)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            tokens = _read(published).split()
            if self.index and tokens[self.index : self.index + 1] == [token]:
                self.scratch = folder / f"edges-{tokens[0]}"
                return tokens
            if self.index == 0:
                others = range(1, self.count)
                known = [token, *(_read(folder / f"process-{i}") for i in others)]
                if tokens != known and all(known):
                    _write(published, " ".join(known))
                if all((scratch / f"{i}.alive").exists() for i in others):
                    self.scratch = scratch
                    return known
            time.sleep(0.02)
        if self.index == 0:
            shutil.rmtree(scratch, ignore_errors=True)
        raise TimeoutError(
            f"folder {folder} must be used by all {self.count} processes, but process "
            f"{self.index} did not meet the others there in {PATIENCE:g} s"
        )

    def _show_life(self) -> None:
        while not self._ended.wait(1):
            with contextlib.suppress(OSError):
                (self.scratch / f"{self.index}.alive").touch()
                self._read_errors()

    def check(self) -> None:
        """Raise a ValueError if another process has failed."""
        if self._failure:
            raise ValueError(self._failure)

    def share(self, num_parts: int) -> range:
        """Return the numbers of the parts that this process writes."""
        return range(self.index, num_parts, self.count)

    def gather(self, **arrays: Any) -> list[dict[str, np.ndarray]]:
        """Return the arrays of all processes, by name, once all have called this."""
        if self.count == 1:
            return [{name: np.asarray(array) for name, array in arrays.items()}]
        self._step += 1
        path = self.scratch / f"{self._step}-{self.index}.npz"
        with path.with_suffix(".new").open("wb") as file:
            np.savez(file, **arrays)
        path.with_suffix(".new").rename(path)
        gathered = []
        for i in range(self.count):
            path = self.scratch / f"{self._step}-{i}.npz"
            self._wait(i, path.exists)
            with np.load(path) as file:
                gathered.append(dict(file))
        return gathered

    def check_same(self, **arguments: object) -> None:
        """Raise a ValueError on every process if an argument differs between processes."""
        if self.count == 1:
            return
        digests = [arrays["digests"] for arrays in self.gather(digests=_digests(arguments))]
        _compare(np.stack(digests), arguments)

    def _wait(self, process: int, condition: Callable[[], bool], heeds_errors: bool = True) -> None:
        """Wait until a condition holds, which a process brings about."""
        while not condition():
            if heeds_errors:
                self._read_errors()
                self.check()
            life, now = 0, time.monotonic()
            with contextlib.suppress(FileNotFoundError):  # a process may not have come yet
                life = (self.scratch / f"{process}.alive").stat().st_mtime_ns
            if self._seen.setdefault(process, (life, now))[0] != life:
                self._seen[process] = life, now
            elif now - self._seen[process][1] > PATIENCE:
                raise TimeoutError(
                    f"process {process} of {self.count} shows no life for {PATIENCE:g} s"
                )
            time.sleep(0.02)

    def _read_errors(self) -> None:
        for path in self.scratch.glob("*.error"):
            self._failure = _read(path)

    def _leave(self) -> None:
        """End this process's part; process 0 removes the temporary files after all others."""
        for i in range(1, self.count if self.index == 0 else 0):
            ended = self.scratch / f"{i}.ended"
            with contextlib.suppress(TimeoutError):  # a lost process is an error already, or late
                self._wait(i, ended.exists, heeds_errors=False)
        self._ended.set()
        if self.index == 0:
            shutil.rmtree(self.scratch, ignore_errors=True)
        else:
            (self.scratch / f"{self.index}.ended").touch()


def _write(path: Path, text: str) -> None:
    """Write a file that others never see in part."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.rename(path)


def _read(path: Path) -> str:
    """Return the text of a file, or none if it does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
