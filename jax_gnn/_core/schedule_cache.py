"""The schedules that ``jax-gnn tune`` found on this machine: a file that later processes read.

``$XDG_CACHE_HOME/jax_gnn/schedules.json`` (``~/.cache/...``) holds for each kind of device a
schedule, what it took and what the rule's took, for each bucket of shapes. A file that cannot be
read, or asks for what no kernel can do, is ignored with a warning: without it, everything works as
before tuning. A file of the same form that lies beside this module is shipped with the library, and
serves what the user's lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import reprlib
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

VERSION = 2  # schedules of segments name their kernel
SHIPPED = Path(__file__).with_name("shipped_schedules.json")

Fields = tuple[Any, ...]
"""Of a schedule."""

FAMILIES: dict[str, Any] = {}
"""By op, the first word of a key, its `schedule.Family`, which that module fills in."""


class Tuned(NamedTuple):
    """What was found for a key."""

    schedule: Fields
    microseconds: float
    rule_microseconds: float


Entries = dict[str, dict[str, Tuned]]
"""By kind of device and key."""


def path() -> Path:
    """Where the file is.

    Raises:
        FileNotFoundError: this user has no home.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(f"no folder for tuned schedules: {error}") from error
    return folder / "jax_gnn" / "schedules.json"


def family_of(key: str) -> Any:
    """Whose key it is; None of an op of another version."""
    return FAMILIES.get(key.partition(" ")[0])


def lookup(wanted: str) -> Fields | None:
    """The schedule of this process's GPUs for a key; None where it was not tuned."""
    for entries in (_known(), _shipped()):
        if entries and (tuned := entries.get(device_kind() or "", {}).get(wanted)):
            return tuned.schedule
    return None


@functools.cache
def device_kind() -> str | None:
    """What JAX calls this process's GPUs; None where there are none, or of several kinds.

    A computation is lowered once and may run on any of them: what was tuned for one kind then
    speaks for none.
    """
    try:
        kinds = {device.device_kind for device in jax.local_devices(backend="cuda")}
    except RuntimeError:
        return None
    return kinds.pop() if len(kinds) == 1 else None


@functools.cache
def _known() -> Entries:
    """The file as this process first saw it, or as it wrote it last."""
    return read()


@functools.cache
def _shipped() -> Entries:
    return _parse(json.loads(SHIPPED.read_text())) if SHIPPED.exists() else {}


def read() -> Entries:
    """All that is in the file; nothing, with a warning, if it is broken or of another version."""
    try:
        file = path()
        return _parse(json.loads(file.read_text("utf-8-sig")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(
            f"ignoring the tuned schedules in {file}: {error}; 'jax-gnn tune --clear' removes them",
            RuntimeWarning,
            stacklevel=2,
        )
        return {}


def store(device: str, found: Mapping[str, Tuned]) -> None:
    """Adds to the file. Other processes see all of it or nothing, and do not lose what they add.

    Raises:
        OSError: it cannot be written, and is as it was.
    """
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is broken is replaced
            entries = read()
        entries.setdefault(device, {}).update(found)
        document = {"version": VERSION, "devices": entries}
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "w") as out:
                json.dump(document, out, indent=1)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)  # a full disk should not get fuller
            raise
    _known.cache_clear()


def clear() -> bool:
    """Removes the file; whether there was one.

    Raises:
        OSError: it cannot be removed.
    """
    existed = path().exists()
    path().unlink(missing_ok=True)
    _known.cache_clear()
    return existed


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file
        yield


def _parse(document: Any) -> Entries:
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    try:
        return {
            device: {name: _parse_tuned(name, *fields) for name, fields in entries.items()}
            for device, entries in document["devices"].items()
        }
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is damaged ({error!r})") from error


def _parse_tuned(name: str, schedule: Any, microseconds: Any, rule_microseconds: Any) -> Tuned:
    family = family_of(name)
    if family is not None and (
        len(schedule) != len(family.allowed) or not all(map(_is_one_of, schedule, family.allowed))
    ):
        raise ValueError(f"it is damaged ({reprlib.repr(schedule)} is no schedule)")
    times = microseconds, rule_microseconds
    for time in times:
        if type(time) not in (int, float) or not 0 < float(time) < math.inf:
            raise ValueError(f"it is damaged ({reprlib.repr(time)} is no time)")
    return Tuned(tuple(schedule), *map(float, times))


def _is_one_of(value: Any, allowed: Collection[int]) -> bool:
    """Whether a value is among those allowed, and is no boolean unless they are."""
    return type(value) is type(next(iter(allowed))) and value in allowed
