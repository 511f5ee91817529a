"""Index arrays: what the containers share in building and checking them."""

from __future__ import annotations

import contextlib
import numbers
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import Array

from jax_gnn import _ffi

PADDING = -1  # out of range whatever the sizes are
SLOT_SIZE = 8


class Entries(NamedTuple):
    """Pairs (row, column) sorted by row, then column, with padding last.

    Attributes:
        indptr: ``(num_rows + 1,)``, where each row starts.
        rows: ``(entries,)``, ascending; padding is -1, here and in the following.
        cols: ``(entries,)``, ascending within each row.
        order: ``(entries,)``, where each pair was before. Equal pairs keep their order.
    """

    indptr: Any
    rows: Any
    cols: Any
    order: Any


class EdgeSplit(NamedTuple):
    """The rows of a CSR matrix cut into slots of 8 entries: even work, whatever the rows' lengths.

    HyperGef's fusion-workload-aware format: a slot is a partition of its, the place has the group's
    key and workload. An empty row has one slot. There are ``entries // 8 + num_rows + 1``, which
    always suffice; at least one is surplus, at the end.

    Attributes:
        ids: ``(num_slots, 8)``, the columns; -1 where a row's last slot is filled up, and in
            surplus slots.
        places: ``(num_slots, 2)``, the row, and twice the slot's place in its row, plus 1 in the
            row's last slot; (-1, 1) for surplus slots. Kernels pass over what follows a row of -1.
    """

    ids: Any
    places: Any


def sort_both_ways(
    rows: Any, cols: Any, num_rows: int, num_cols: int
) -> tuple[Entries, Entries, Any]:
    """Sorts pairs by row, and by column; pairs with an id out of range are padding.

    Works on numpy arrays of int64, natively, and on traced arrays.

    Returns:
        The pairs by row, the swapped pairs by column, and where each of the latter stands among the
        former. ``order`` of both refers to the arguments.
    """
    dtype = index_dtype(num_rows, num_cols, rows.shape[0])
    if not isinstance(rows, jax.Array):
        by_row, by_col = (
            Entries(np.empty(size + 1, dtype), *(np.empty(len(rows), dtype) for _ in range(3)))
            for size in (num_rows, num_cols)
        )
        places = np.empty(len(rows), dtype)
        contiguous = map(np.ascontiguousarray, (rows, cols))
        _ffi.host_function("sort_pairs")(*contiguous, *by_row, *by_col, places)
        return by_row, by_col, places
    valid = (rows >= 0) & (rows < num_rows) & (cols >= 0) & (cols < num_cols)
    rows = jnp.where(valid, rows, num_rows)
    cols = jnp.where(valid, cols, num_cols)

    def entries(rows: Array, cols: Array, order: Array, num_rows: int) -> Entries:
        indptr = row_starts(rows, num_rows)
        padding = jnp.arange(rows.shape[0], dtype=indptr.dtype) >= indptr[-1]
        columns = (jnp.where(padding, PADDING, ids).astype(dtype) for ids in (rows, cols, order))
        return Entries(indptr.astype(dtype), *columns)

    order = jnp.argsort(cols, stable=True)
    order = order[jnp.argsort(rows[order], stable=True)]
    rows, cols = rows[order], cols[order]
    back = jnp.argsort(cols, stable=True)
    by_row = entries(rows, cols, order, num_rows)
    by_col = entries(cols[back], rows[back], order[back], num_cols)
    return by_row, by_col, jnp.where(by_col.rows == PADDING, PADDING, back).astype(dtype)


def at_most(size: int, limit: int) -> bool:
    """Whether a size is no larger than that; of a symbolic one, whether that is certain."""
    try:
        return bool(size <= limit)
    except jax.errors.InconclusiveDimensionOperation:
        return False


def row_starts(rows: Array, num_rows: int) -> Array:
    """``(num_rows + 1,)``, where each row starts among sorted ids, and where the last one ends."""
    if not jax.export.is_symbolic_dim(rows.shape[0]):
        return jnp.searchsorted(rows, jnp.arange(num_rows + 1, dtype=rows.dtype))
    # A search must know among how many.
    counts = jnp.zeros(num_rows + 1, rows.dtype).at[rows + 1].add(1, mode="drop")
    return jnp.cumsum(counts, dtype=rows.dtype)


def row_ids(indptr: Array, num_entries: int) -> Array:
    """The row of each entry of a CSR matrix: ``(num_entries,)``, -1 outside all rows."""
    # Counts the row starts up to each entry: several times as fast as a search in indptr.
    starts = jnp.zeros(num_entries, indptr.dtype).at[indptr].add(1, mode="drop")
    rows = jnp.cumsum(starts, dtype=indptr.dtype) - 1
    return jnp.where(rows < indptr.shape[0] - 1, rows, PADDING)


def num_slots(num_rows: int, num_entries: int) -> int:
    """How many slots an :class:`EdgeSplit` has."""
    return num_entries // SLOT_SIZE + num_rows + 1


def edge_split(indptr: Any, cols: Any) -> EdgeSplit:
    """Cuts the rows of a CSR matrix into slots: natively, or in ``jax.numpy`` if traced.

    A row that ``indptr`` starts out of range, or before the end of the row ahead, starts at the
    nearest place that is neither.

    Args:
        indptr: ``(num_rows + 1,)``, int32 or int64.
        cols: ``(entries,)`` in the same dtype. Entries past the last row belong to none.

    Returns:
        numpy arrays for numpy arrays, else arrays of JAX, in the same dtype.
    """
    dtype, num_rows, count = indptr.dtype, indptr.shape[0] - 1, cols.shape[0]
    size = num_slots(num_rows, count)
    if not is_traced(indptr, cols):
        split = EdgeSplit(np.empty((size, SLOT_SIZE), dtype), np.empty((size, 2), dtype))
        contiguous = map(np.ascontiguousarray, (indptr, cols))
        _ffi.host_function("edge_split")(*contiguous, *split)
        return EdgeSplit(*map(jnp.asarray, split)) if isinstance(indptr, jax.Array) else split
    starts = jax.lax.cummax(jnp.clip(jnp.asarray(indptr), 0, count))
    slots = jnp.maximum(-(-jnp.diff(starts) // SLOT_SIZE), 1)  # of each row
    first = jnp.pad(jnp.cumsum(slots, dtype=dtype), (1, 0))
    rows = row_ids(first, size)
    place = jnp.arange(size, dtype=dtype) - first[rows]
    begin = starts[rows] + SLOT_SIZE * place
    left = jnp.where(rows == PADDING, 0, starts[rows + 1] - begin)
    lanes = jnp.arange(SLOT_SIZE, dtype=dtype)
    entries = jnp.where(lanes < left[:, None], begin[:, None] + lanes, count)
    place = jnp.where(rows == PADDING, 1, 2 * place + (left <= SLOT_SIZE).astype(dtype))
    return EdgeSplit(pad_ids(jnp.asarray(cols), 1)[entries], jnp.stack([rows, place], 1))


def pad_ids(ids: Array, new: int) -> Array:
    """Appends padding."""
    return jnp.pad(ids, (0, new), constant_values=PADDING)


def pad_indptr(indptr: Array, new: int) -> Array:
    """Appends empty rows."""
    return jnp.pad(indptr, (0, new), mode="edge")


def growth(name: str, wanted: int | None, size: int) -> int:
    """How much a size must grow to reach a wanted capacity, which is checked; None leaves it."""
    if wanted is None:
        return 0
    wanted = check_integer(name, wanted)
    if wanted < size:
        raise ValueError(f"{name} must be at least the present {size}, got {wanted}")
    return wanted - size


def index_dtype(*sizes: int) -> Any:
    """int32, or int64 where a size does not fit; of symbolic sizes it is taken that they do."""
    if all(jax.export.is_symbolic_dim(size) or size < 2**31 for size in sizes):
        return np.int32
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(f"sizes {sizes} need 64-bit indices: enable jax_enable_x64")
    return np.int64


# --- Ids of any integer type ---------------------------------------------------------------------

# JAX narrows integers modulo a power of two, so that ids far out of range would come back into it:
# host arrays where 64 bits are not enabled, unsigned types, and whatever indexes an array of less
# than 2³¹ rows. These two come first.


def signed(ids: Any) -> Array:
    """Integers as int32 or, if their type holds more, int64; in JAX.

    What that cannot hold becomes its largest or smallest number: still out of range, in order.
    """
    if isinstance(ids, jax.Array) and ids.dtype == np.int32:
        return ids
    fits = np.can_cast(ids.dtype, np.int32)
    dtype = jax.dtypes.canonicalize_dtype(np.int32 if fits else np.int64)
    if not fits and ids.dtype != dtype:
        if not is_traced(ids) and jax.dtypes.canonicalize_dtype(ids.dtype) != ids.dtype:
            ids = np.asarray(ids)  # where 64 bits are no longer enabled, JAX would drop half
        given, limits = np.iinfo(ids.dtype), np.iinfo(dtype)
        clip = jnp.clip if isinstance(ids, jax.Array) else np.clip
        ids = clip(ids, max(given.min, limits.min), min(given.max, limits.max))
    return jnp.asarray(ids, dtype)


def bounded(ids: Any, size: int) -> Array:
    """Ids to index with: of 64 bits, those out of range become -1 or ``size``, in order."""
    ids = signed(ids)
    return jnp.clip(ids, -1, size) if ids.dtype.itemsize == 8 else ids


# --- Arguments -----------------------------------------------------------------------------------


def is_traced(*arrays: Any) -> bool:
    """Whether values are unknown, as inside ``jax.jit``."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def check_pairs(first_name: str, first: Any, second_name: str, second: Any) -> tuple[Any, Any]:
    """Two ids arrays of one length: both int64 in numpy, or both traced."""
    traced = is_traced(first, second)
    first = check_ids(first_name, first, traced)
    second = check_ids(second_name, second, traced)
    if first.shape != second.shape:
        raise ValueError(
            f"{first_name} and {second_name} must have the same length, got "
            f"{first.shape[0]} and {second.shape[0]}"
        )
    return first, second


def check_ids(name: str, ids: Any, traced: bool = False) -> Any:
    """A one-dimensional array of integers: int64 in numpy, or int32 or int64 in JAX if traced."""
    given = ids
    ids = to_array(name, ids) if traced else to_numpy(name, ids)
    if not jnp.issubdtype(ids.dtype, np.integer) and isinstance(given, list | tuple):
        ids = _exact(given, ids)
    if not jnp.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"{name} must be an array of integers, got {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {ids.shape}")
    if traced:
        return signed(ids)
    if ids.dtype == np.uint64:  # what int64 does not hold is out of range as its largest number
        ids = np.minimum(ids, np.iinfo(np.int64).max)
    return ids.astype(np.int64)


def _exact(given: Any, ids: Any) -> Any:
    """Integers of which numpy made other numbers, as none of its types holds them all."""
    exact = np.array(given, object)
    if not exact.size or not all(type(i) is int or isinstance(i, np.integer) for i in exact.flat):
        return ids
    limits = np.iinfo(np.int64)
    return np.clip(exact, limits.min, limits.max).astype(np.int64)


def check_size(name: str, size: Any, *ids: Any) -> Any:
    """A size, by default the largest of the ids plus one."""
    if size is None and ids:
        if is_traced(*ids):
            raise TypeError(
                f"{name} must be given inside jax.jit, where it cannot be read off the ids"
            )
        size = max(int(array.max(initial=-1)) for array in ids) + 1
    if jax.export.is_symbolic_dim(size):
        return size
    size = check_integer(name, size)
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {size}")
    index_dtype(size)  # there must be an id for padding
    return size


def check_concrete(name: str, size: int, reason: str) -> None:
    """A size that may not be a symbolic dimension of :mod:`jax.export`."""
    if jax.export.is_symbolic_dim(size):
        raise ValueError(f"{name} must be concrete, got the symbolic {size}: {reason}")


def check_range(name: str, ids: np.ndarray, size_name: str, size: int) -> None:
    """Raises an error where ids are out of range."""
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if bad.size:
        raise ValueError(
            f"{name}[{bad[0]}] = {ids[bad[0]]} is outside [0, {size_name}={size}) "
            f"({bad.size} such ids)"
        )


def check_integer(name: str, value: Any) -> int:
    """An integer of 64 bits."""
    try:
        value = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}") from error
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must fit 64 bits, got {value}")
    return value


def check_sparse(name: str, matrix: Any, shape: str) -> Any:
    """A copy of a scipy sparse matrix of any format, in coordinates.

    scipy's conversions write where the index arrays say, and those are its user's to change: hence
    what decides over how much is written is checked before.
    """
    if not scipy.sparse.issparse(matrix):
        raise TypeError(
            f"{name} must be a scipy sparse matrix or array, got {type(matrix).__name__}"
        )
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be {shape}, got shape {matrix.shape}")
    try:
        return _sound(matrix).tocoo()
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError) as error:
        raise ValueError(f"{name} is not a valid {matrix.format} matrix: {error}") from error


def _sound(matrix: Any) -> Any:
    """The matrix, or one like it, if scipy can convert it without leaving its arrays."""
    num_rows, num_cols = matrix.shape
    if matrix.format in ("csr", "csc", "bsr"):
        data = np.asarray(matrix.data)
        if data.ndim != (3 if matrix.format == "bsr" else 1) or 0 in data.shape[1:]:
            raise ValueError(f"data has shape {data.shape}")
        sizes = num_cols, num_rows
        if matrix.format != "csc":
            block = data.shape[1:] or (1, 1)
            if num_rows % block[0] or num_cols % block[1]:
                raise ValueError(f"blocks of shape {block} do not divide {matrix.shape}")
            sizes = num_rows // block[0], num_cols // block[1]
        parts = check_compressed(data, matrix.indices, matrix.indptr, *sizes)
        return type(matrix)(parts, shape=matrix.shape)
    if matrix.format == "coo":  # these are checked when a matrix is made
        return type(matrix)((matrix.data, (matrix.row, matrix.col)), shape=matrix.shape)
    if matrix.format == "lil":
        for part in (matrix.rows, matrix.data):
            _check_lengths("rows", len(part), num_rows)
        for i, (cols, values) in enumerate(zip(matrix.rows, matrix.data, strict=True)):
            _check_lengths(f"rows[{i}]", len(cols), len(values))
    if matrix.format == "dia":
        _check_lengths("offsets", matrix.offsets.size, matrix.data.shape[0])
        if not ((matrix.offsets >= -num_rows) & (matrix.offsets <= num_cols)).all():
            raise ValueError("offsets name a diagonal outside")
    return matrix


def check_compressed(
    values: np.ndarray, indices: Any, indptr: Any, num_rows: int, num_cols: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts of a CSR matrix that nobody has checked yet, less what no row has.

    scipy's own check passes over all indices if ``indptr`` ends at 0, and over decreases that do
    not fit 32 bits.

    Raises:
        ValueError: they are not the parts of a matrix of this size.
    """
    for part, array in (("indices", indices), ("indptr", indptr)):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"{part} must be a one-dimensional array of integers")
    _check_lengths("indptr", indptr.size, num_rows + 1)
    if indptr[0] != 0 or (indptr[1:] < indptr[:-1]).any():
        raise ValueError("indptr must start at 0 and never decrease")
    _check_lengths("indices", indices.size, len(values))
    count = int(indptr[-1])
    if count > indices.size:
        raise ValueError(f"indptr ends at {count}, but there are {indices.size} indices")
    indices = indices[:count]
    if count and not 0 <= indices.min() <= indices.max() < num_cols:
        raise ValueError(f"indices must be in [0, {num_cols})")
    if not {indices.dtype, indptr.dtype} <= {np.dtype(np.int32), np.dtype(np.int64)}:
        indices, indptr = indices.astype(np.int64), indptr.astype(np.int64)
    return values[:count], indices, indptr


def _check_lengths(part: str, size: int, wanted: int) -> None:
    if size != wanted:
        raise ValueError(f"{part} has {size} entries in place of {wanted}")


def to_array(name: str, values: Any) -> Any:
    """An array of numbers: of JAX where it is one or traced, else of numpy, as it was given."""
    if isinstance(values, jax.Array):
        return values
    if hasattr(values, "__jax_array__") or is_traced(*jax.tree.leaves(values)):
        return as_array(name, values)
    return to_numpy(name, values)


def to_numpy(name: str, values: Any) -> np.ndarray:
    """An array of numbers, of whatever type."""
    with blame(name, "an array of numbers"):
        return np.asarray(values)


def as_array(name: str, values: Any) -> Array:
    """An array of JAX."""
    with blame(name, "an array of numbers"):
        return jnp.asarray(values)


def is_real(dtype: Any) -> bool:
    """Whether a dtype is of integers or floating-point numbers."""
    return jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)


@contextlib.contextmanager
def blame(name: str, what: str) -> Iterator[None]:
    """Says of errors of JAX and numpy which argument is to blame, and what it must be."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} must be {what}: {error}") from error


def check_number(name: str, value: Any) -> None:
    """A real number."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}")


def check_flag(name: str, value: Any) -> bool:
    """True or False, static."""
    if not isinstance(value, bool | int | np.bool_):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")
    return bool(value)


def check_instance(name: str, value: Any, kind: type) -> None:
    """An object of a class of this library."""
    if not isinstance(value, kind):
        wanted = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        raise TypeError(f"{name} must be a {wanted}, got {type(value).__name__}")
