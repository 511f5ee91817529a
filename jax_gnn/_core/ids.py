"""Ids of rows: integers of any type, of which those out of range are padding."""

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

try:
    from jax.errors import InconclusiveDimensionOperation as UnknownSize
except ImportError:  # JAX 0.10.0
    from jax._src.core import InconclusiveDimensionOperation as UnknownSize

F = TypeVar("F", bound=Callable[..., Any])

PADDING = -1  # out of range whatever the sizes are
MAX_SIZE = 2**31 - 1  # kernels take int32 ids


def in_range(ids: Any, size: int) -> Any:
    """Which ids are not padding."""
    return (ids >= 0) & (ids < size)


def index_dtype(*sizes: int) -> Any:
    """int32, or int64 where a size does not fit; of symbolic sizes it is taken that they do."""
    known = (size for size in sizes if type(size) is int or not jax.export.is_symbolic_dim(size))
    if all(size < 2**31 for size in known):
        return np.int32
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(f"sizes {sizes} need 64-bit indices: enable jax_enable_x64")
    return np.int64


def at_most(size: int, limit: int) -> bool:
    """Whether a size is no larger than that; of a symbolic one, whether that is certain."""
    try:
        return bool(size <= limit)
    except UnknownSize:
        return False


def is_traced(*arrays: Any) -> bool:
    """Whether values are unknown, as inside ``jax.jit``."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


# --- Arrays of the host --------------------------------------------------------------------------


def namespace(*arrays: Any) -> Any:
    """numpy, if all arrays are of it, else ``jax.numpy``: arrays of the host stay there."""
    return np if all(isinstance(array, np.ndarray) for array in arrays) else jnp


on_host = jax.make_user_context(default_value=False)


def to_device(tree: Any, device: Any = None) -> Any:
    """What was built on the host, as arrays of JAX, all at once, and uncopied where that may be.

    Inside :func:`jax_gnn.host_arrays` it stays as it is, and JAX is not asked.
    """
    if on_host.value:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    moved = iter(jax.device_put([x for x in leaves if isinstance(x, np.ndarray)], device))
    placed = [next(moved) if isinstance(x, np.ndarray) else x for x in leaves]
    return jax.tree.unflatten(structure, placed)


def device_of(*arrays: Any) -> Any:
    """The device that arrays of JAX are bound to; None for arrays of the host, and unbound ones."""
    bound = [x for x in arrays if isinstance(x, jax.Array) and not is_traced(x) and x.committed]
    return next((device for x in bound for device in x.devices()), None)


def run_on_host(*fields: str) -> Callable[[F], F]:
    """Runs a method of a container in numpy, which compiles nothing, where no array is traced.

    Arrays of JAX, of the container or among the arguments, are copied to the host, all at once; new
    ones go to the device of these. Arrays that are on several devices stay there, as do results.

    Args:
        fields: names of those that the method computes with; all where none is named.
    """

    def decorator(method: F) -> F:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            own = jax.tree.leaves([getattr(self, name) for name in fields] if fields else self)
            given = [*own, *args, *kwargs.values()]
            given += [x for each in given if isinstance(each, Mapping) for x in each.values()]
            arrays = [x for x in given if isinstance(x, jax.Array)]
            if not arrays or is_traced(*arrays) or not _on_one_device(arrays):
                return method(self, *args, **kwargs)
            copies = dict(zip(map(id, arrays), jax.device_get(arrays), strict=True))
            originals = {id(copies[id(x)]): x for x in arrays}

            def fetched(x: Any) -> Any:
                if isinstance(x, Mapping):
                    return {key: fetched(each) for key, each in x.items()}
                return copies.get(id(x), x)

            self = jax.tree.map(fetched, self)
            result = method(self, *map(fetched, args), **{k: fetched(x) for k, x in kwargs.items()})
            result = jax.tree.map(lambda x: originals.get(id(x), x), result)
            return to_device(result, device_of(*arrays))

        return call  # type: ignore[return-value]

    return decorator


def _on_one_device(arrays: list[Array]) -> bool:
    devices = set().union(*(x.devices() for x in arrays))
    return len(devices) == 1 and all(x.is_fully_addressable for x in arrays)


# --- Ids of any integer type ---------------------------------------------------------------------

# JAX narrows integers modulo a power of two, so that ids far out of range would come back into it:
# host arrays where 64 bits are not enabled, unsigned types, and whatever indexes an array of less
# than 2³¹ rows. These two come first.


def as_signed(ids: Any) -> Array:
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


def clip_ids(ids: Any, size: int) -> Array:
    """Ids to index with: of 64 bits, those out of range become -1 or ``size``, in order."""
    ids = as_signed(ids)
    return jnp.clip(ids, -1, size) if ids.dtype.itemsize == 8 else ids


def take_ids(ids: Any, order: Any) -> Any:
    """``ids[order]``, padding where ``order`` is padding; None takes all."""
    if order is None:
        return ids
    xp = namespace(ids, order)
    if ids.shape[0] == 0:  # a gather wants one row at least
        return xp.full(order.shape, PADDING, ids.dtype)
    if xp is np:
        valid = in_range(order, len(ids))
        return np.where(valid, ids[np.where(valid, order, 0)], PADDING).astype(ids.dtype)
    if jax.export.is_symbolic_dim(ids.shape[0]):  # perhaps of no rows
        ids = pad_ids(ids, 1)
    at = replicate(jnp.asarray(ids), 1).at[replicate(clip_ids(order, ids.shape[0]))]
    return at.get(mode="fill", fill_value=PADDING, wrap_negative_indices=False)


def id_count(ids: Any, dtype: Any) -> Any:
    """How many ids there are, as a scalar array: of numpy, if that many are known."""
    count = ids.shape[0]
    return (jnp if jax.export.is_symbolic_dim(count) else np).asarray(count, dtype)


# --- Rows as ids and as pointers -----------------------------------------------------------------


def row_starts(rows: Array, num_rows: int) -> Array:
    """``(num_rows + 1,)``, where each row starts among sorted ids, and where the last one ends."""
    if jax.export.is_symbolic_dim(rows.shape[0]):  # a search must know among how many
        counts = jnp.zeros(num_rows + 1, rows.dtype).at[rows + 1].add(1, mode="drop")
        return jnp.cumsum(counts, dtype=rows.dtype)

    def search(method: str) -> Callable[[Array], Array]:
        ids = jnp.arange(num_rows + 1, dtype=rows.dtype)
        return lambda rows: jnp.searchsorted(rows, ids, method=method)

    # A GPU starts kernels for each step of a loop; a CPU computes again what steps share.
    return jax.lax.platform_dependent(rows, cpu=search("scan"), default=search("scan_unrolled"))


def host_row_starts(rows: np.ndarray, num_rows: int) -> Any:
    """The same of ids in numpy, none of which is padding."""
    starts = np.zeros(num_rows + 1, rows.dtype)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=starts[1:])
    return starts


def row_ids(indptr: Array, num_entries: int) -> Array:
    """The row of each entry of a CSR matrix: ``(num_entries,)``, -1 outside all rows."""
    # Counts the row starts up to each entry: several times as fast as a search in indptr.
    starts = jnp.zeros(num_entries, indptr.dtype).at[indptr].add(1, mode="drop")
    rows = jnp.cumsum(starts, dtype=indptr.dtype) - 1
    return jnp.where(rows < indptr.shape[0] - 1, rows, PADDING)


def compaction_targets(keep: Array) -> Array:
    """Where each of the entries that are kept goes, one behind the other; past the end of others.

    :func:`moved` brings ids there.
    """
    count = keep.shape[0]
    before = jnp.cumsum(keep, dtype=index_dtype(count)) - 1
    return jnp.where(keep, before, count)


def scatter_ids(ids: Array, target: Array) -> Array:
    """Ids at their new places, as many as before; padding where there are none."""
    return jnp.full_like(ids, PADDING).at[target].set(ids, mode="drop")


def pad_ids(ids: Any, new: int) -> Any:
    """Appends padding."""
    if isinstance(ids, np.ndarray):  # several times as fast as numpy's own
        return np.concatenate([ids, np.full(new, PADDING, ids.dtype)])
    return jnp.pad(ids, (0, new), constant_values=PADDING)


def pad_indptr(indptr: Any, new: int) -> Any:
    """Appends empty rows."""
    if isinstance(indptr, np.ndarray):
        return np.concatenate([indptr, np.full(new, indptr[-1], indptr.dtype)])
    return jnp.pad(indptr, (0, new), mode="edge")
