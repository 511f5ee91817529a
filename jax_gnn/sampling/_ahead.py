"""Rows of the host on their way to a device, while earlier ones are used there."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.public import public
from jax_gnn.sampling._rows import fetch_rows

B = TypeVar("B")


@public
def fetch_ahead(
    batches: Iterable[B], rows: np.ndarray, *, ahead: int = 2, device: Any = None
) -> Iterator[tuple[B, Array]]:
    """Each batch and its rows of the host, on the device, fetched while earlier ones are used.

    Threads gather the rows into page-locked buffers, which are used again, and send them. So what a
    step waits for is the longest of three, not their sum: its own work, the gather, the link.

    Batches are taken `ahead` of what is done with them. Where each is sampled when it is taken, a
    device does that before the steps of those in between, and its ids are there in time.

    Args:
        batches: :class:`Blocks`, or what else has ``node_ids``, rows of which are wanted; a
            :class:`SeedBatch`, rows of whose blocks are; or ids, ``(count,)`` integers. All may be
            of the host or of the device. -1 is padding.
        rows: ``(num_rows, *features)``, an array of numpy, such as a memory map.
        ahead: how many batches are on their way; so many more arrays of rows are on the device.
        device: where rows go; by default where JAX puts arrays.

    Returns:
        An iterator over the batches, in their order, and ``(count, *features)``, zeros where an id
        is out of range.

    Raises:
        TypeError: ``rows`` is no array of numpy of numbers, or ``ahead`` no integer; when a batch
            is taken, its ids are no integers.
        ValueError: ``rows`` is a scalar, ``ahead`` is below 1, or ``device`` is several.

    Example:
        >>> import numpy as np
        >>> features = np.array([[1.0], [2.0], [3.0]], np.float32)
        >>> for ids, x in fetch_ahead([np.array([2, 0]), np.array([1, -1])], features):
        ...     print(ids, x.ravel())
        [2 0] [3. 1.]
        [ 1 -1] [2. 0.]
    """
    fetch_rows(rows, np.zeros(0, np.int32))  # raises what it does for rows
    if arguments.check_integer("ahead", ahead) < 1:
        raise ValueError(f"ahead must be positive, got {ahead}")
    return _fetched(iter(batches), _Sender(rows, device), ahead)


def _fetched(batches: Iterator[B], sender: _Sender, ahead: int) -> Iterator[tuple[B, Array]]:
    waiting: deque[Future[tuple[B, Array]]] = deque()
    with ThreadPoolExecutor(ahead, "jax_gnn_fetch") as threads:
        for batch in batches:
            waiting.append(threads.submit(sender, batch))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Sender:
    """Sends batches and their rows; each thread has a buffer of its own."""

    def __init__(self, rows: np.ndarray, device: Any) -> None:
        devices = jax.numpy.zeros(0, device=device).devices()
        if len(devices) > 1:
            raise ValueError(f"device must be one device, got {device}")
        self._rows, (self._device,) = rows, devices
        self._own = threading.local()
        self._gathering = threading.Lock()  # by one, which has all cores, while others send

    def __call__(self, batch: B) -> tuple[B, Array]:
        blocks = getattr(batch, "blocks", batch)
        ids = arguments.check_ids("ids", np.asarray(getattr(blocks, "node_ids", blocks)))
        sent: B = jax.device_put(batch, self._device)
        shape = (len(ids), *self._rows.shape[1:])
        if getattr(self._own, "shape", None) != shape:
            self._own.shape, self._own.buffer = shape, _page_locked(self._device, self._rows, shape)
        buffer, view = self._own.buffer
        with self._gathering:
            found = fetch_rows(self._rows, ids, out=view)
        if buffer is None:
            return sent, jax.device_put(found, self._device)
        memory = jax.sharding.SingleDeviceSharding(self._device)
        x = jax.device_put(buffer, memory, may_alias=False)
        return sent, jax.block_until_ready(x)  # until these rows have left it, no others may come


def _page_locked(device: Any, rows: np.ndarray, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """An array of JAX in memory of the host that the device reads by itself, and numpy's view.

    Both None where there is no such memory, or JAX has no such dtype.
    """
    kinds = [memory.kind for memory in device.addressable_memories()]
    if "pinned_host" not in kinds or jax.dtypes.canonicalize_dtype(rows.dtype) != rows.dtype:
        return None, None
    memory = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    buffer = jax.block_until_ready(jax.device_put(np.zeros(shape, rows.dtype), memory))
    place = buffer.unsafe_buffer_pointer()
    if not buffer.nbytes or np.asarray(buffer).ctypes.data != place:  # a copy: no place to write to
        return None, None
    view = np.ctypeslib.as_array((ctypes.c_byte * buffer.nbytes).from_address(place))
    return buffer, view.view(rows.dtype).reshape(shape)
