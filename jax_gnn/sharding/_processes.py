"""Agreement of all processes of a program on its arguments, and what each has of arrays."""

from __future__ import annotations

import hashlib

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike

SAMPLE_BYTES = 1 << 24


def largest(mesh: Mesh, sizes: np.ndarray) -> np.ndarray:
    """Return the largest of each size over the processes; all call this after `check_same`."""
    if len({device.process_index for device in mesh.devices.flat}) == 1:
        return sizes
    from jax.experimental.multihost_utils import process_allgather

    gathered: np.ndarray = process_allgather(sizes)
    return np.asarray(gathered.max(0))


def check_same(mesh: Mesh, **arguments: object) -> None:
    """Raise a ValueError on every process if an argument differs between processes.

    This must come before arrays are made of the arguments, and before errors that only some
    processes see. All processes must call, unless the mesh has devices of one process only; it may
    not lack devices of some. Arguments are pytrees of arrays in numpy, strings and numbers.
    """
    # Programs of one process, the usual case, must not communicate here.
    devices = [(device.process_index, device.id) for device in mesh.devices.flat]
    processes, count = {process for process, _ in devices}, jax.process_count()
    if len(processes) == 1:
        return
    if len(processes) < count:
        raise ValueError(
            f"mesh must have devices of one process or of all {count}, got those of "
            f"{sorted(processes)}"
        )
    from jax.experimental.multihost_utils import process_allgather

    arguments["mesh"] = (mesh.devices.shape, mesh.axis_names, devices)
    # Digests are compared instead of values, which may be large.
    digests = process_allgather(np.stack([digest(value) for value in arguments.values()]))
    for column, name in enumerate(arguments):
        differing = np.flatnonzero((digests[:, column] != digests[0, column]).any(1))
        if differing.size:
            raise ValueError(
                f"{name} must be the same on all processes, got another on process {differing[0]} "
                "than on process 0"
            )


def sample(array: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """Return shape and rows for `check_same`: all rows, or evenly spaced ones of 16 MiB.

    The check then takes milliseconds, and reads little of a memory map.
    """
    if not array.ndim or array.nbytes <= SAMPLE_BYTES:
        return array.shape, array
    count = max(1, SAMPLE_BYTES // (array.nbytes // len(array)))
    return array.shape, array[np.linspace(0, len(array) - 1, count).astype(int)]


def local_rows(array: ArrayLike) -> dict[int, np.ndarray]:
    """Return the rows that this process has of an array, by their index on its first axis."""
    # A graph that was copied to the host has arrays in numpy.
    if not isinstance(array, jax.Array):
        return dict(enumerate(np.asarray(array)))
    rows: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        rows |= dict(enumerate(np.asarray(shard.data), shard.index[0].start or 0))
    return rows


def digest(tree: object) -> np.ndarray:
    """Return a hash of a pytree of 16 bytes, as uint32, which JAX does not narrow."""
    leaves, structure = jax.tree.flatten(tree)
    digest = hashlib.blake2b(str(structure).encode(), digest_size=16)
    for leaf in leaves:
        array = np.asarray(leaf, order="C")
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return np.frombuffer(digest.digest(), np.uint32)
