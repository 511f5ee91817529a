"""Views of entries: the index structure of segment reductions and sparse products."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn import _index

# Dtypes that kernels take, as weighted features or without weights.
FLOATS = (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64)
DTYPES = (*FLOATS, jnp.int32, jnp.int64)

# What plain XLA sums, bound here: users may put this library's functions in their place.
JAX_OPS = {name: getattr(jax.ops, f"segment_{name}") for name in ("sum", "prod", "max", "min")}

# Metadata of fields of pytrees that are not arrays.
STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class View:
    """Entries sorted by the row that they are reduced into.

    Ids out of range, of rows or of columns, make an entry padding: it is dropped, and what it
    points to is not read.

    Attributes:
        rows: ``(entries,)``, ascending, padding at the ends; None: entry e is all of row e.
        cols: ``(entries,)``, which row of the input an entry reads; None: entry e reads row e.
        order: ``(entries,)``, which weight an entry has; None: entry e has weight e.
        num_rows: number of rows.
        max_degree: entries of the longest row, where known: a hint to the choice of schedules.
        resorted: whether ids were sorted for it at run time: plain XLA spares the sort, see
            :attr:`Views.unsorted`.
    """

    rows: Array | None
    cols: Array | None
    order: Array | None
    num_rows: int = field(metadata=STATIC)
    max_degree: int | None = field(default=None, metadata=STATIC)
    resorted: bool = field(default=False, metadata=STATIC)

    @property
    def count(self) -> int:
        """Number of entries, padding included."""
        return next(ids.shape[0] for ids in (self.rows, self.cols) if ids is not None)

    def valid(self, num_cols: int) -> Array:
        """``(entries,)``, which are not padding."""
        checks = [
            in_range(ids, size)
            for ids, size in (
                (self.rows, self.num_rows),
                (self.cols, num_cols),
                (self.order, self.count),
            )
            if ids is not None
        ]
        return functools.reduce(operator.and_, checks)


class Views(NamedTuple):
    """The same entries sorted by the row they go to and by the row they come from."""

    forward: View
    backward: View

    @property
    def swapped(self) -> Views:
        """For the transpose."""
        return Views(self.backward, self.forward)

    @property
    def unsorted(self) -> View | None:
        """The forward view with entries in the order of its columns, where that spares a sort."""
        forward, backward = self
        if forward.resorted and forward.cols is not None and backward.rows is None:
            return View(backward.cols, None, None, forward.num_rows)
        return None


def entrywise(a: Any, b: Any, views: Views) -> tuple[Any, Any, Views]:
    """What belongs to rows, to columns and the views, swapped if that puts entries into order."""
    if views.forward.order is None and views.forward.rows is not None:
        return a, b, views
    return b, a, views.swapped


def in_range(ids: Array, size: int) -> Array:
    """Which ids are not padding."""
    return (ids >= 0) & (ids < size)


def as_ids(name: str, ids: Any) -> Array:
    """Checks an argument that is a vector of ids, and makes it int32 or int64."""
    return _index.check_ids(name, ids, traced=True)


def take(x: Array, ids: Array | None) -> Array:
    """``x[ids]``, zeros where an id is out of range; None takes all of x."""
    if ids is None:
        return x
    if x.shape[0] == 0:  # a gather wants one row at least
        return jnp.zeros((*ids.shape, *x.shape[1:]), x.dtype)
    # jnp.take would wrap -1 around.
    ids = _index.bounded(ids, x.shape[0])
    return x.at[ids].get(mode="fill", fill_value=0, wrap_negative_indices=False)


def flat(x: Array) -> Array:
    """``(rows, *features)`` as a matrix."""
    return x.reshape(x.shape[0], row_width(x))


def row_width(x: Any) -> int:
    """The numbers in a row of ``(rows, *features)``."""
    return math.prod(x.shape[1:])


def accumulator_dtype(dtype: Any) -> Any:
    """What kernels add in: float32 for half types, else the dtype itself."""
    if jnp.issubdtype(dtype, jnp.floating):
        return promoted(dtype, jnp.float32)
    return dtype


def promoted(*dtypes: Any) -> Any:
    """What dtypes promote to by JAX's standard rules, also where promotion is set to be strict."""
    with jax.numpy_dtype_promotion("standard"):
        return functools.reduce(jnp.promote_types, dtypes)


def spread(values: Array, x: Array) -> Array:
    """Adds axes to a vector of rows, to work with ``(rows, *features)``."""
    return jnp.expand_dims(values, tuple(range(1, x.ndim)))


def column(mask: Array) -> Array:
    """A vector as a matrix, to work with features."""
    return mask[:, None]
