"""Ids of rows: integers of any type; ids out of range are padding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.sharding import replicate
from jax_gnn._core.types import DType, IdArray, PyTree

try:
    from jax.errors import InconclusiveDimensionOperation
except ImportError:  # JAX 0.10.0
    from jax._src.core import InconclusiveDimensionOperation

F = TypeVar("F", bound=Callable[..., Any])

UnknownSize = InconclusiveDimensionOperation
"""The error of a comparison of symbolic sizes that has no answer."""

PADDING = -1  # out of range whatever the sizes are
MAX_SIZE = 2**31 - 1  # kernels take int32 ids
_UNROLLED_STEPS = 8  # of a search between two tests whether all have ended: a GPU syncs at each


def in_range(ids: IdArray, size: int) -> Any:
    """Return whether each id is in ``[0, size)``, and so not padding."""
    return (ids >= 0) & (ids < size)


def index_dtype(*sizes: int) -> Any:
    """Return int32, or int64 if a size does not fit it; symbolic sizes are assumed to fit."""
    concrete = (size for size in sizes if type(size) is int or not jax.export.is_symbolic_dim(size))
    if all(size < 2**31 for size in concrete):
        return np.int32
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(f"sizes {sizes} need 64-bit indices: enable jax_enable_x64")
    return np.int64


def at_most(size: int, limit: int) -> bool:
    """Whether a size is at most the limit; for a symbolic size, whether that is certain."""
    try:
        return bool(size <= limit)
    except UnknownSize:
        return False


def is_traced(*arrays: object) -> bool:
    """Whether a value is unknown, as inside ``jax.jit``."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


# --- Arrays of the host --------------------------------------------------------------------------


def namespace(*arrays: object) -> Any:
    """Return numpy if all arrays are of numpy, else ``jax.numpy``: host arrays stay on the host."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


on_host = jax.make_user_context(default_value=False)


def to_device(tree: PyTree, device: jax.Device | None = None) -> Any:
    """Convert all arrays of numpy to JAX at once, without copies where possible.

    Inside :func:`jax_gnn.host_arrays` the tree stays as it is, and JAX is not called.
    """
    if on_host.value:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    arrays = iter(jax.device_put([x for x in leaves if isinstance(x, np.ndarray)], device))
    leaves = [next(arrays) if isinstance(x, np.ndarray) else x for x in leaves]
    return jax.tree.unflatten(structure, leaves)


def device_of(*arrays: object) -> Any:
    """Return the device to which arrays of JAX are committed, or None if none is."""
    committed = [x for x in arrays if isinstance(x, jax.Array) and not is_traced(x) and x.committed]
    return next((device for x in committed for device in x.devices()), None)


def run_on_host(*fields: str) -> Callable[[F], F]:
    """Decorate a method of a container, so that it runs in numpy if no array is traced.

    Numpy compiles nothing. Arrays of JAX in the container and among the arguments are copied to the
    host at once, and new arrays to their device. Arrays on several devices stay there, as do
    results.

    Args:
        fields: names of the fields that the method reads; all by default.
    """

    def decorator(method: F) -> F:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            used = jax.tree.leaves([getattr(self, name) for name in fields] if fields else self)
            values = [*used, *args, *kwargs.values()]
            values += [x for value in values if isinstance(value, Mapping) for x in value.values()]
            arrays = [x for x in values if isinstance(x, jax.Array)]
            if not arrays or is_traced(*arrays):
                return method(self, *args, **kwargs)
            devices = set().union(*(x.devices() for x in arrays))
            if len(devices) > 1 or not all(x.is_fully_addressable for x in arrays):
                return method(self, *args, **kwargs)
            # Results that are arguments again, unchanged, are returned as the original arrays.
            copies = dict(zip(map(id, arrays), jax.device_get(arrays), strict=True))
            originals = {id(copies[id(x)]): x for x in arrays}

            def fetch(x: Any) -> Any:
                if isinstance(x, Mapping):
                    return {key: fetch(value) for key, value in x.items()}
                return copies.get(id(x), x)

            self = jax.tree.map(fetch, self)
            result = method(self, *map(fetch, args), **{k: fetch(x) for k, x in kwargs.items()})
            result = jax.tree.map(lambda x: originals.get(id(x), x), result)
            return to_device(result, device_of(*arrays))

        return call  # type: ignore[return-value]

    return decorator


# --- Ids of any integer type ---------------------------------------------------------------------

# JAX narrows integers modulo a power of two, which would bring ids far out of range back into it:
# arrays of the host where 64 bits are not enabled, unsigned types, and all ids that index an array
# of less than 2³¹ rows. Call `as_signed` and `clip_ids` before.


def as_signed(ids: IdArray) -> Array:
    """Return integers as int32 or, if their type holds more, int64, in JAX.

    Numbers that do not fit become the largest or smallest: still out of range, in order.
    """
    if isinstance(ids, jax.Array) and ids.dtype == np.int32:
        return ids
    fits = np.can_cast(ids.dtype, np.int32)
    dtype = jax.dtypes.canonicalize_dtype(np.int32 if fits else np.int64)
    if not fits and ids.dtype != dtype:
        if not is_traced(ids) and jax.dtypes.canonicalize_dtype(ids.dtype) != ids.dtype:
            ids = np.asarray(ids)  # JAX drops half the bits once 64 bits are disabled
        source, limits = np.iinfo(ids.dtype), np.iinfo(dtype)
        # Clip before narrowing: ids out of range stay out of range.
        clip = jnp.clip if isinstance(ids, jax.Array) else np.clip
        ids = clip(ids, max(source.min, limits.min), min(source.max, limits.max))
    return jnp.asarray(ids, dtype)


def clip_ids(ids: IdArray, size: int) -> Array:
    """Return ids to index with: 64-bit ids out of range become -1 or ``size``, in order."""
    ids = as_signed(ids)
    return jnp.clip(ids, -1, size) if ids.dtype.itemsize == 8 else ids


def take_ids(ids: IdArray, order: Any) -> Any:
    """Return ``ids[order]``, padding where ``order`` is padding; all ids for None."""
    if order is None:
        return ids
    xp = namespace(ids, order)
    if ids.shape[0] == 0:  # a gather needs at least one row
        return xp.full(order.shape, PADDING, ids.dtype)
    if xp is np:
        valid = in_range(order, len(ids))
        return np.where(valid, ids[np.where(valid, order, 0)], PADDING).astype(ids.dtype)
    if jax.export.is_symbolic_dim(ids.shape[0]):  # the size may be 0
        ids = pad_ids(ids, 1)
    at = replicate(jnp.asarray(ids), 1).at[replicate(clip_ids(order, ids.shape[0]))]
    return at.get(mode="fill", fill_value=PADDING, wrap_negative_indices=False)


def id_count(ids: IdArray, dtype: DType) -> Any:
    """Return the number of ids as a scalar array: of numpy unless it is symbolic."""
    count = ids.shape[0]
    return (jnp if jax.export.is_symbolic_dim(count) else np).asarray(count, dtype)


# --- Rows as ids and as pointers -----------------------------------------------------------------


def row_starts(rows: Array, num_rows: int) -> Array:
    """Return the row pointers ``(num_rows + 1,)`` of sorted ids."""
    if jax.export.is_symbolic_dim(rows.shape[0]):  # a search needs a concrete size
        counts = jnp.zeros(num_rows + 1, rows.dtype).at[rows + 1].add(1, mode="drop")
        return jnp.cumsum(counts, dtype=rows.dtype)

    def search(method: str) -> Callable[[Array], Array]:
        ids = jnp.arange(num_rows + 1, dtype=rows.dtype)
        return lambda rows: jnp.searchsorted(rows, ids, method=method)

    # A loop starts kernels for each step on a GPU; unrolled, a CPU repeats what steps share.
    result: Array = jax.lax.platform_dependent(
        rows, cpu=search("scan"), default=search("scan_unrolled")
    )
    return result


def host_row_starts(rows: np.ndarray, num_rows: int) -> Any:
    """Return the row pointers of ids in numpy without padding."""
    starts = np.zeros(num_rows + 1, rows.dtype)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=starts[1:])
    return starts


def row_ids(indptr: Array, num_entries: int) -> Array:
    """Return the row of each entry of a CSR matrix, ``(num_entries,)``; -1 outside all rows."""
    # Counting the row starts up to each entry is several times as fast as a search in indptr, on
    # CPUs, and on an H200 for 10 million entries.
    starts = jnp.zeros(num_entries, indptr.dtype).at[indptr].add(1, mode="drop")
    rows = jnp.cumsum(starts, dtype=indptr.dtype) - 1
    return jnp.where(rows < indptr.shape[0] - 1, rows, PADDING)


def search_rows(starts: Array, stops: Array, predicate: Callable[[Array], Array]) -> Array:
    """Return the first place in each row at which a predicate is true, or the row's stop.

    ``predicate`` maps places, ``(rows,)``, to bool; once true in a row, it stays true.
    """
    xp = namespace(starts, stops)

    # Invariant of the binary search: the result is in [low, high]. Finished rows look at place 0.
    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        active = low < high
        middle = xp.where(active, low + (high - low) // 2, 0)
        holds = predicate(middle)
        return (xp.where(active & ~holds, middle + 1, low), xp.where(active & holds, middle, high))

    if xp is np:
        bounds = starts, stops
        while (bounds[0] < bounds[1]).any():
            bounds = halve(bounds)
        return bounds[0]

    def unrolled(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        for _ in range(_UNROLLED_STEPS):
            bounds = halve(bounds)
        return bounds

    low, _ = jax.lax.while_loop(
        lambda bounds: (bounds[0] < bounds[1]).any(), unrolled, (starts, stops)
    )
    return low


def compaction_targets(keep: Array) -> Array:
    """Return consecutive positions for the entries to keep, and a position past the end for others.

    :func:`scatter_ids` moves ids there.
    """
    count = keep.shape[0]
    positions = jnp.cumsum(keep, dtype=index_dtype(count)) - 1
    return jnp.where(keep, positions, count)


def scatter_ids(ids: Array, target: Array) -> Array:
    """Return as many ids, at their target positions; padding elsewhere."""
    return jnp.full_like(ids, PADDING).at[target].set(ids, mode="drop")


def pad_ids(ids: IdArray, new: int) -> Any:
    """Append padding."""
    if isinstance(ids, np.ndarray):  # several times as fast as np.pad
        return np.concatenate([ids, np.full(new, PADDING, ids.dtype)])
    return jnp.pad(ids, (0, new), constant_values=PADDING)


def pad_indptr(indptr: IdArray, new: int) -> Any:
    """Append empty rows."""
    if isinstance(indptr, np.ndarray):
        return np.concatenate([indptr, np.full(new, indptr[-1], indptr.dtype)])
    return jnp.pad(indptr, (0, new), mode="edge")
