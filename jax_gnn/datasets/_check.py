"""Checks that the loaders and the container share; their errors name the culprit."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jax_gnn._core.arguments import check_compressed, check_distinct, check_integer

MAX_SIZE = np.iinfo(np.int32).max  # ids are int32
MEMORY_FACTOR = 4096
ID_BYTES = 64  # what an id takes while a dataset is built
_READING_FACTOR = 1024  # what becomes of files' bytes whatever they hold: an empty set of one byte
_SMALL_FILE = 2**16
_FEATURE_BYTES = 8


class Memory:
    """What reading a dataset may take: bytes in proportion to those of its files.

    Readers claim beforehand what is not in proportion by itself: arrays that are compressed, sizes
    that are a mere number in the file, and what the file holds once and the dataset often.

    Attributes:
        limit: the bytes that may be taken in all.
    """

    def __init__(self, *files: Path) -> None:
        size = max(sum(file.stat().st_size for file in files), _SMALL_FILE)
        self.limit = MEMORY_FACTOR * size
        self._left = self.limit - _READING_FACTOR * size

    def claim(self, what: str, num_bytes: int) -> None:
        """Raises ``ValueError`` where the claims exceed what is there."""
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError(
                f"{what} would take {num_bytes:,} bytes of memory, which with all else is more "
                f"than {MEMORY_FACTOR:,} for each byte of the files"
            )


@contextmanager
def blame(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of whatever its contents make fail."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: {error}") from error


def as_path(name: str, path: Any) -> Path:
    """An argument that is the path of a file or folder."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file or folder, got {path!r:.80}")
    if not os.fspath(path):  # for pathlib the working directory
        raise ValueError(f"{name} must be the path of a file or folder, got {path!r}")
    return Path(path)


def require_file(path: Path, what: str) -> Path:
    """The path itself if it is a file, else an error that says what was expected there."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected {what}")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ValueError(f"{path} is {kind}; expected {what}")
    return path


def locate(path: Path, *patterns: tuple[str, str]) -> list[Path]:
    """The files ``PREFIX + NAME + SUFFIX`` of one dataset, from its folder or one of them."""
    what = " and ".join(f"{prefix}NAME{suffix}" for prefix, suffix in patterns)
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        names = {
            file.name[len(prefix) : -len(suffix)]
            for prefix, suffix in patterns
            for file in path.glob(f"{prefix}*{suffix}")
        }
    else:
        require_file(path, what)
        names = {
            path.name[len(prefix) : -len(suffix)]
            for prefix, suffix in patterns
            if path.name.startswith(prefix) and path.name.endswith(suffix)
        }
        if not names:
            raise ValueError(f"{path} is not one of {what}")
    if not names:
        raise FileNotFoundError(f"{path} has no {what}")
    if len(names) > 1:
        raise ValueError(f"{path} holds several datasets ({', '.join(sorted(names))}); name a file")
    (name,) = names
    return [
        require_file(folder / f"{prefix}{name}{suffix}", f"{what} together")
        for prefix, suffix in patterns
    ]


def check_size(field: str, value: Any) -> int:
    """A count: an integer in [0, 2³¹)."""
    try:
        size = operator.index(value)
    except TypeError as error:
        raise ValueError(f"{field}: expected an integer, got {value!r:.80}") from error
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"{field}: expected a number from 0 to {MAX_SIZE}, got {size}")
    return size


def random_generator(seed: Any) -> np.random.Generator:
    """Random numbers that a seed determines."""
    seed = check_integer("seed", seed)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return np.random.default_rng(seed)


def check_array(field: str, value: Any, kinds: str, what: str, ndim: int) -> np.ndarray:
    """An array whose dtype is of one of the kinds (numpy's letters), with ndim axes."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of uneven lengths
        raise ValueError(f"{field}: expected {what}, got {reprlib.repr(value)}") from error
    is_nothing = array.size == 0 and array.dtype.kind == "f"  # numpy makes floats of []
    if array.dtype.kind not in kinds and not is_nothing:
        raise ValueError(f"{field}: expected {what}, got dtype {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{field}: expected {ndim} axes, got shape {array.shape}")
    return array


def check_ids(field: str, value: Any, stop: int, *, start: int = 0, ndim: int = 1) -> np.ndarray:
    """Integers in [start, stop), as int32."""
    ids = check_array(field, value, "iu", "integers", ndim)
    bad = np.argwhere((ids < start) | (ids >= stop))
    if bad.size:
        where = ", ".join(map(str, bad[0]))
        raise ValueError(f"{field}[{where}] = {ids[tuple(bad[0])]} is outside [{start}, {stop})")
    return ids.astype(np.int32)


def check_features(
    field: str, value: Any, num_nodes: int | None = None, what: str = "nodes"
) -> np.ndarray:
    """Finite real numbers ``(num_nodes, features)``, as float32."""
    features = check_array(field, value, "fiub", "real numbers", 2)
    if num_nodes not in (None, features.shape[0]):
        raise ValueError(
            f"{field}: expected one row for each of {num_nodes} {what}, got shape {features.shape}"
        )
    with np.errstate(over="ignore"):  # too large becomes inf, which is refused below
        features = features.astype(np.float32, copy=False)
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(f"{field}: row {np.argmin(finite)} is not finite in float32")
    return features


def check_names(field: str, value: Any, *, repeated: bool = False) -> tuple[str, ...]:
    """A sequence of strings, as a tuple; perhaps the same again."""
    is_object = isinstance(value, np.ndarray) and value.dtype == object  # as names of a table
    given = value.tolist() if is_object else value
    if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        names = tuple(given)  # an array would give each the length of the longest
    else:
        array = check_array(field, value, "U", "strings", 1)
        try:
            names = tuple(array.tolist())
        except SystemError as error:  # numpy looks at no character before
            raise ValueError(f"{field}: expected strings, got what is not Unicode") from error
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:  # a surrogate: it could not be written
            raise ValueError(f"{field}: {name!r:.80} is not Unicode: {error.reason}") from error
    if not repeated:
        check_distinct(field, names)
    return names


def dense_from_csr(
    field: str, data: Any, indices: Any, indptr: Any, shape: Any, memory: Memory
) -> np.ndarray:
    """The dense float32 matrix of CSR parts that nobody has checked yet."""
    rows_cols = check_array(f"{field}_shape", shape, "iu", "two integers", 1)
    if rows_cols.shape != (2,):
        raise ValueError(f"{field}_shape: expected two integers, got {rows_cols.tolist()}")
    num_rows, num_cols = (check_size(f"{field}_shape", size) for size in rows_cols.tolist())
    memory.claim(field, num_rows * num_cols * _FEATURE_BYTES)
    values = check_array(f"{field}_data", data, "fiub", "real numbers", 1)
    for part, array in (("indices", indices), ("indptr", indptr)):
        check_array(f"{field}_{part}", array, "iu", "integers", 1)
    try:
        parts = check_compressed(values, indices, indptr, num_rows, num_cols)
    except ValueError as error:
        raise ValueError(f"{field}: not a valid CSR matrix: {error}") from error
    with np.errstate(over="ignore"):  # too large becomes inf, which is refused later
        values = parts[0].astype(np.float32)
    return scipy.sparse.csr_matrix((values, *parts[1:]), shape=(num_rows, num_cols)).toarray()
