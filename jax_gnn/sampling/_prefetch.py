"""Feature rows of the host, sent to a device while earlier batches are used there."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.public import public
from jax_gnn.sampling._rows import check_positive, fetch_rows

B = TypeVar("B")
R = TypeVar("R")


@public
def fetch_ahead(
    batches: Iterable[B], rows: np.ndarray, *, ahead: int = 2, device: jax.Device | None = None
) -> Iterator[tuple[B, Array]]:
    """Yield each batch with its feature rows on the device, fetched while earlier ones are used.

    Threads gather the rows into page-locked buffers, which are reused, and send them. So a step
    takes the longest of three times, not their sum: its own work, the gather, the transfer.

    Batches are taken from the iterator `ahead` of their use. If each is sampled when it is taken, a
    device does that before the steps of the batches in between, and its ids arrive in time.

    Args:
        batches: :class:`Blocks`, or other objects with ``node_ids``, the rows to fetch; a
            :class:`SeedBatch`, for the rows of its blocks; or ids, ``(count,)`` integers. All may
            be on the host or on the device. -1 is padding.
        rows: ``(num_rows, *features)``, an array of numpy, such as a memory map.
        ahead: number of batches on their way; the device holds as many more arrays of rows.
        device: device of the rows; by default where JAX puts arrays.

    Returns:
        An iterator over the batches, in their order, and ``(count, *features)``, zeros where an id
        is out of range.

    Raises:
        TypeError: An argument, or ids when their batch is taken, is of another type.
        ValueError: ``rows`` is a scalar, ``ahead`` is below 1, or ``device`` is several.

    Example:
        >>> import numpy as np
        >>> features = np.array([[1.0], [2.0], [3.0]], np.float32)
        >>> for ids, x in fetch_ahead([np.array([2, 0]), np.array([1, -1])], features):
        ...     print(ids, x.ravel())
        [2 0] [3. 1.]
        [ 1 -1] [2. 0.]
    """
    fetch_rows(rows, np.zeros(0, np.int32))  # checks rows
    return prefetch(iter(batches), _Sender(rows, device), check_positive("ahead", ahead))


def prefetch(batches: Iterable[B], sender: Callable[[B], R], depth: int) -> Iterator[R]:
    """Yield the results of ``sender``, which threads call for later batches while one is used."""
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(depth, "jax_gnn_fetch") as threads:
        for batch in batches:
            pending.append(threads.submit(sender, batch))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class _Sender:
    """Copies batches and their rows to a device."""

    def __init__(self, rows: np.ndarray, device: jax.Device | None) -> None:
        devices = jax.numpy.zeros(0, device=device).devices()
        if len(devices) > 1:
            raise ValueError(f"device must be one device, got {device}")
        self._rows, (self._device,), self._buffers = rows, devices, PinnedBuffers()

    def __call__(self, batch: B) -> tuple[B, Array]:
        blocks = getattr(batch, "blocks", batch)
        ids = arguments.check_ids("ids", np.asarray(getattr(blocks, "node_ids", blocks)))
        sent: B = jax.device_put(batch, self._device)
        spec = jax.ShapeDtypeStruct((len(ids), *self._rows.shape[1:]), self._rows.dtype)
        fetch = functools.partial(fetch_rows, self._rows, ids)
        x = self._buffers.send("rows", lambda out: fetch(out=out), spec, self._device)
        return sent, x.block_until_ready()


class PinnedBuffers:
    """Page-locked buffers of the host, which each thread reuses."""

    def __init__(self) -> None:
        self._local = threading.local()
        # One gather at a time, which uses all cores, while other threads send.
        self._gather_lock = threading.Lock()

    def send(
        self,
        name: Hashable,
        gather: Callable[[np.ndarray | None], np.ndarray],
        spec: jax.ShapeDtypeStruct,
        device: jax.Device,
    ) -> Array:
        """Send gathered rows to a device.

        Args:
            name: the result must be ready before its thread sends others of this name to `device`.
            gather: function of an array to write to, None for a new one, which returns the rows.
            spec: shape and dtype of the rows.
            device: the device.
        """
        buffers: dict[Any, Any] = self._local.__dict__.setdefault("buffers", {})
        key = name, device
        if key not in buffers or buffers[key][0] != spec:
            buffers[key] = spec, _pinned_buffer(device, spec.dtype, spec.shape)
        buffer, view = buffers[key][1] or (None, None)
        with self._gather_lock:
            rows = gather(view)
        if buffer is None:
            return cast(Array, jax.device_put(rows, device))
        sharding = jax.sharding.SingleDeviceSharding(device)
        return cast(Array, jax.device_put(buffer, sharding, may_alias=False))


def _pinned_buffer(
    device: jax.Device, dtype: np.dtype, shape: tuple[int, ...]
) -> tuple[Array, np.ndarray] | None:
    """Return an array in host memory that the device reads by itself, and numpy's view of it.

    None where the platform has no such memory, or JAX no such dtype.
    """
    kinds = [memory.kind for memory in device.addressable_memories()]
    if "pinned_host" not in kinds or jax.dtypes.canonicalize_dtype(dtype) != dtype:
        return None
    sharding = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    buffer = jax.device_put(np.zeros(shape, dtype), sharding).block_until_ready()
    address = buffer.unsafe_buffer_pointer()
    # If numpy sees a copy, writing to the address would not change what it sees.
    if not buffer.nbytes or np.asarray(buffer).ctypes.data != address:
        return None
    view = np.ctypeslib.as_array((ctypes.c_byte * buffer.nbytes).from_address(address))
    return buffer, view.view(dtype).reshape(shape)
