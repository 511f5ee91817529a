"""Checks of values that loaders and datasets share; errors name the field."""

from __future__ import annotations

import operator
import reprlib
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from jax_gnn._core.arguments import check_compressed, check_distinct, check_integer
from jax_gnn._core.files import Memory, require_file

MAX_SIZE = np.iinfo(np.int32).max  # ids are int32
_FEATURE_BYTES = 8


def locate(path: Path, *patterns: tuple[str, str]) -> list[Path]:
    """Return the files ``PREFIX + NAME + SUFFIX`` of a dataset, from its folder or one of them."""
    what = " and ".join(f"{prefix}NAME{suffix}" for prefix, suffix in patterns)
    folder = path if path.is_dir() else path.parent
    files = list(path.iterdir()) if path.is_dir() else [require_file(path, what)]
    names = {
        file.name[len(prefix) : -len(suffix)]
        for prefix, suffix in patterns
        for file in files
        if file.name.startswith(prefix) and file.name.endswith(suffix)
    }
    if not names and path.is_file():
        raise ValueError(f"{path} is not one of {what}")
    if not names:
        others = sorted(file.name for file in files)
        listed = f"; it has {', '.join(others[:5])}{', …' * (len(others) > 5)}" * bool(others)
        raise FileNotFoundError(f"{path} has no {what}{listed}")
    if len(names) > 1:
        raise ValueError(f"{path} holds several datasets ({', '.join(sorted(names))}); name a file")
    (name,) = names
    return [
        require_file(folder / f"{prefix}{name}{suffix}", f"{what} together")
        for prefix, suffix in patterns
    ]


def check_size(field: str, value: object) -> int:
    """Return a number of elements: an integer in [0, 2³¹)."""
    try:
        size = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{field}: expected an integer, got {value!r:.80}") from error
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"{field}: expected a number from 0 to {MAX_SIZE}, got {size}")
    return size


def random_generator(seed: int) -> np.random.Generator:
    """Return a generator of random numbers, after a check of the seed."""
    seed = check_integer("seed", seed)
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return np.random.default_rng(seed)


def check_array(field: str, value: object, kinds: str, what: str, ndim: int) -> np.ndarray:
    """Return an array in numpy, of one of the ``kinds`` of dtypes, which ``what`` describes."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of uneven lengths
        raise ValueError(f"{field}: expected {what}, got {reprlib.repr(value)}") from error
    is_empty_list = array.size == 0 and array.dtype.kind == "f"  # numpy makes floats of []
    if array.dtype.kind not in kinds and not is_empty_list:
        raise ValueError(f"{field}: expected {what}, got dtype {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{field}: expected {ndim} axes, got shape {array.shape}")
    return array


def check_ids(field: str, value: object, stop: int, *, start: int = 0, ndim: int = 1) -> np.ndarray:
    """Return integers in [start, stop) as int32."""
    ids = check_array(field, value, "iu", "integers", ndim)
    outside = np.argwhere((ids < start) | (ids >= stop))
    if outside.size:
        index = tuple(outside[0].tolist())
        raise ValueError(
            f"{field}[{', '.join(map(str, index))}] = {ids[index]} is outside [{start}, {stop})"
        )
    return ids.astype(np.int32)


def check_features(
    field: str, value: object, num_rows: int | None = None, what: str = "nodes"
) -> np.ndarray:
    """Return finite real numbers ``(num_rows, features)`` as float32."""
    features = check_array(field, value, "fiub", "real numbers", 2)
    if num_rows not in (None, features.shape[0]):
        raise ValueError(
            f"{field}: expected one row for each of {num_rows} {what}, got shape {features.shape}"
        )
    with np.errstate(over="ignore"):  # large numbers become inf, which is refused below
        features = features.astype(np.float32, copy=False)
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(f"{field}: row {np.argmin(finite)} is not finite in float32")
    return features


def check_names(field: str, value: object, *, repeated: bool = False) -> tuple[str, ...]:
    """Return strings as a tuple; unless ``repeated``, they must differ from each other."""
    items = value
    if isinstance(value, np.ndarray) and value.dtype == object:  # such as from a table
        items = value.tolist()
    if isinstance(items, list | tuple) and all(isinstance(name, str) for name in items):
        names = tuple(items)  # an array would give each the length of the longest
    else:
        array = check_array(field, value, "U", "strings", 1)
        try:
            names = tuple(array.tolist())
        except SystemError as error:  # numpy checks characters only here
            raise ValueError(f"{field}: expected strings, got what is not Unicode") from error
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:  # a surrogate, which cannot be written
            raise ValueError(f"{field}: {name!r:.80} is not Unicode: {error.reason}") from error
    if not repeated:
        check_distinct(field, names)
    return names


def dense_from_csr(
    field: str, data: object, indices: object, indptr: object, shape: object, memory: Memory
) -> np.ndarray:
    """Return the dense float32 matrix of unchecked arrays of a CSR matrix."""
    rows_cols = check_array(f"{field}_shape", shape, "iu", "two integers", 1)
    if rows_cols.shape != (2,):
        raise ValueError(f"{field}_shape: expected two integers, got {rows_cols.tolist()}")
    num_rows, num_cols = (check_size(f"{field}_shape", size) for size in rows_cols.tolist())
    memory.claim(field, num_rows * num_cols * _FEATURE_BYTES)
    values = check_array(f"{field}_data", data, "fiub", "real numbers", 1)
    for part, array in (("indices", indices), ("indptr", indptr)):
        check_array(f"{field}_{part}", array, "iu", "integers", 1)
    try:
        starts, columns = np.asarray(indptr), np.asarray(indices)
        parts = check_compressed(values, columns, starts, num_rows, num_cols)
    except ValueError as error:
        raise ValueError(f"{field}: not a valid CSR matrix: {error}") from error
    with np.errstate(over="ignore"):  # large numbers become inf, which is refused later
        values = parts[0].astype(np.float32)
    matrix = scipy.sparse.csr_matrix((values, parts[1], parts[2]), shape=(num_rows, num_cols))
    return np.asarray(matrix.toarray())


def check_labels(y: ArrayLike) -> np.ndarray:
    """Return classes as int32, or numbers to regress on as float32."""
    if getattr(y, "dtype", np.dtype(int)).kind != "f":
        return check_ids("y", y, MAX_SIZE, start=-1)
    values = np.asarray(y, np.float32)
    if values.ndim not in (1, 2) or np.isinf(values).any():
        raise ValueError(
            f"y: expected finite numbers or NaN in 1 or 2 axes, got shape {values.shape}"
        )
    return values


def check_times(field: str, value: object, count: int) -> np.ndarray:
    """Return integers ``(count,)`` as int64."""
    times = check_array(field, value, "iu", "integers", 1)
    if len(times) != count:
        raise ValueError(f"{field}: expected {count} entries, got {len(times)}")
    return times.astype(np.int64)
