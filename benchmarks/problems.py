"""What the problems of all ops are made of: features, and results that are checked in part.

The features of the largest cases would take minutes to draw and tens of gigabytes to hold in every
process: a pool of rows is drawn, which repeats. Their results are checked on some rows only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from benchmarks.workloads import row_pointers

Result = TypeVar("Result")

POOL_ROWS = 131_071  # a prime: no pattern in the ids falls in step with it
CHECKED_NUMBERS = 2**23
"""How many numbers may enter the check of a result."""


def once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Keeps the latest results, and makes threads that want the same one wait for it."""
    lock = threading.Lock()
    cached = lru_cache(maxsize=16)(function)

    @wraps(function)
    def call(*arguments: Any) -> Result:
        with lock:
            return cached(*arguments)

    return call


@dataclass(frozen=True, eq=False)
class Repeated:
    """A matrix of which row i is row ``i % len(pool)`` of the pool; the device gets all of it."""

    pool: np.ndarray
    num_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole matrix."""
        return (self.num_rows, *self.pool.shape[1:])

    @property
    def nbytes(self) -> int:
        """Of the whole matrix."""
        return self.num_rows * self.pool[0].nbytes

    @property
    def repeats(self) -> int:
        """How many pools have at least all rows."""
        return -(-self.num_rows // len(self.pool))

    def whole(self) -> np.ndarray:
        """All rows, on the host."""
        return np.resize(self.pool, self.shape)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Some rows in float64."""
        return self.pool[ids % len(self.pool)].astype(np.float64)


@once
def features(role: str, num_rows: int, width: int, dtype: str) -> Repeated:
    """Normal numbers: the same object, and the same numbers in every process, for the same call."""
    rng = np.random.default_rng([*role.encode(), num_rows, width])
    shape = min(num_rows, POOL_ROWS), width
    return Repeated(rng.standard_normal(shape, np.float32).astype(numpy_dtype(dtype)), num_rows)


@dataclass(frozen=True)
class Expected:
    """An output in float64.

    Attributes:
        values: All rows of the output, or those that are checked.
        shape: Of the whole output.
        rows: Which rows ``values`` holds; None for all.
    """

    values: np.ndarray
    shape: tuple[int, ...]
    rows: np.ndarray | None = None

    @classmethod
    def whole(cls, values: np.ndarray) -> Expected:
        """An output that is checked everywhere."""
        return cls(values, values.shape)

    @property
    def size(self) -> int:
        """How many numbers the output has."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Sample:
    """Some segments and their entries.

    Attributes:
        segments: Their ids, ascending.
        entries: Positions of their entries, segment by segment.
        indptr: Where each segment's entries begin among ``entries``, and their number.
    """

    segments: np.ndarray
    entries: np.ndarray
    indptr: np.ndarray

    @property
    def segment_of_entry(self) -> np.ndarray:
        """Index into ``segments`` of every entry."""
        return np.repeat(np.arange(len(self.segments)), np.diff(self.indptr))


def sample_segments(indptr: np.ndarray, width: int) -> Sample:
    """The largest segment, and as many others as the check can afford.

    None of them is empty: libraries differ in what they make of those.
    """
    counts = np.diff(indptr).astype(np.int64)
    order = np.random.default_rng(0).permutation(np.nonzero(counts)[0])
    order = np.concatenate([[counts.argmax()], order[order != counts.argmax()]])
    affordable = (np.cumsum(counts[order]) - counts.max()) * width <= CHECKED_NUMBERS
    return whole_segments(indptr, np.sort(order[affordable]))


def whole_segments(indptr: np.ndarray, segments: np.ndarray) -> Sample:
    """All entries of some segments, whose ids ascend."""
    counts = np.diff(indptr)[segments].astype(np.int64)
    inner = row_pointers(counts)
    offsets = np.repeat(indptr[segments] - inner[:-1], counts)
    return Sample(segments, offsets + np.arange(inner[-1]), inner)


def reduce_sample(sample: Sample, values: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
    """Reduces the sample's entries, ``values (len(sample.entries), ...)``, segment by segment."""
    return ufunc.reduceat(values, sample.indptr[:-1], axis=0)


def numpy_dtype(name: str) -> np.dtype:
    """The dtype of that name, bfloat16 included."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
