"""The schedules that ``jax-gnn tune`` measured on this machine, in a file for later processes.

``$XDG_CACHE_HOME/jax_gnn/schedules.json`` (``~/.cache/...``) has, for each kind of device and each
bucket of shapes, a schedule, its time and the time of the rule's schedule. A file that cannot be
read, or that has values which no kernel has, is ignored with a warning. A file of the same form
beside this module is shipped with the library, and serves keys that the user's file lacks.
"""

from __future__ import annotations

import fcntl
import functools
import json
import math
import os
import reprlib
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

VERSION = 2  # schedules of segments name their kernel
SHIPPED = Path(__file__).with_name("shipped_schedules.json")

Fields = tuple[Any, ...]
"""Fields of a schedule."""

FAMILIES: dict[str, Any] = {}
"""The `schedule.Family` of each op, the first word of a key; filled in by that module."""


class Tuned(NamedTuple):
    """The fastest schedule of a key, its time, and the time of the rule's schedule."""

    schedule: Fields
    microseconds: float
    rule_microseconds: float


Entries = dict[str, dict[str, Tuned]]
"""Tuned schedules by kind of device and key."""


def path() -> Path:
    """Return the path of the file."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    except RuntimeError as error:
        raise FileNotFoundError(f"no folder for tuned schedules: {error}") from error
    return folder / "jax_gnn" / "schedules.json"


def family_of(key: str) -> Any:
    """Return the family of a key; None for an op of another version."""
    return FAMILIES.get(key.partition(" ")[0])


def lookup(key: str) -> Fields | None:
    """Return the tuned schedule of a key for this process's GPUs; None if there is none."""
    for entries in (_cached(), _shipped()):
        if entries and (tuned := entries.get(device_kind() or "", {}).get(key)):
            return tuned.schedule
    return None


@functools.cache
def device_kind() -> str | None:
    """Return JAX's name of this process's GPUs; None without GPUs, and for several kinds.

    A computation is lowered once and may run on any of them, so that no kind can be chosen.
    """
    return _of_all_gpus("device_kind")


@functools.cache
def compute_capability() -> str | None:
    """Return the compute capability of this process's GPUs, such as "9.0"; None as above."""
    return _of_all_gpus("compute_capability")


def _of_all_gpus(attribute: str) -> str | None:
    try:
        values = {getattr(device, attribute) for device in jax.local_devices(backend="cuda")}
    except RuntimeError:
        return None
    return values.pop() if len(values) == 1 else None


@functools.cache
def _cached() -> Entries:
    """Return the content of the file, read once, and again after this process has written it."""
    return read()


@functools.cache
def _shipped() -> Entries:
    return _parse(json.loads(SHIPPED.read_text())) if SHIPPED.exists() else {}


def read() -> Entries:
    """Read the file; a broken file, or one of another version, gives nothing and a warning."""
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


def store(device: str, tuned: Mapping[str, Tuned]) -> None:
    """Add schedules to the file, atomically and without losing those of other processes."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file unlocks it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a broken file is replaced
            entries = read()
        entries.setdefault(device, {}).update(tuned)
        document = {"version": VERSION, "devices": entries}
        # A rename is atomic: readers see the old file or the new one.
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "w") as out:
                json.dump(document, out, indent=1)
            os.replace(temporary, file)
        except BaseException:
            os.unlink(temporary)  # a full disk should not get fuller
            raise
    _cached.cache_clear()


def clear() -> bool:
    """Remove the file, and return whether there was one."""
    existed = path().exists()
    path().unlink(missing_ok=True)
    _cached.cache_clear()
    return existed


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
    # Values must have the type of the allowed ones, too: True is none of the numbers.
    if family is not None and (
        len(schedule) != len(family.allowed)
        or any(
            type(value) is not type(next(iter(allowed))) or value not in allowed
            for value, allowed in zip(schedule, family.allowed, strict=True)
        )
    ):
        raise ValueError(f"it is damaged ({reprlib.repr(schedule)} is no schedule)")
    times = microseconds, rule_microseconds
    for time in times:
        if type(time) not in (int, float) or not 0 < float(time) < math.inf:
            raise ValueError(f"it is damaged ({reprlib.repr(time)} is no time)")
    return Tuned(tuple(schedule), *map(float, times))
