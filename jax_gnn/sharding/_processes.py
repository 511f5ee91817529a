"""What all processes of a program must have alike."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

SAMPLE_BYTES = 1 << 24


def check_same(mesh: Mesh, **arguments: Any) -> None:
    """Raises on each process if arguments differ between processes, before arrays are made of them.

    Nothing is asked where the mesh is of one process; else all processes must call.

    Args:
        mesh: the devices.
        **arguments: pytrees of arrays in numpy, strings and numbers.

    Raises:
        ValueError: an argument is another on some process, or the mesh lacks processes.
    """
    devices = [(device.process_index, device.id) for device in mesh.devices.flat]
    found, count = {process for process, _ in devices}, jax.process_count()
    if len(found) == 1:
        return
    if len(found) < count:
        raise ValueError(
            f"mesh must have devices of one process or of all {count}, got those of {sorted(found)}"
        )
    from jax.experimental.multihost_utils import process_allgather

    arguments["mesh"] = (mesh.devices.shape, mesh.axis_names, devices)
    digests = process_allgather(np.stack([digest(each) for each in arguments.values()]))
    for place, name in enumerate(arguments):
        others = np.flatnonzero((digests[:, place] != digests[0, place]).any(1))
        if others.size:
            raise ValueError(
                f"{name} must be the same on all processes, got another on process {others[0]} "
                "than on process 0"
            )


def sample(array: np.ndarray) -> tuple[Any, ...]:
    """Shape and rows for `check_same`: all, or evenly spaced ones of 16 MiB.

    So the check costs milliseconds, and reads little of a memory map.
    """
    if not array.ndim or array.nbytes <= SAMPLE_BYTES:
        return array.shape, array
    count = max(1, SAMPLE_BYTES // (array.nbytes // len(array)))
    return array.shape, array[np.linspace(0, len(array) - 1, count).astype(int)]


def digest(tree: Any) -> Any:
    """16 bytes that differ where trees differ, as numbers that JAX does not narrow."""
    leaves, structure = jax.tree.flatten(tree)
    digest = hashlib.blake2b(str(structure).encode(), digest_size=16)
    for leaf in leaves:
        array = np.asarray(leaf, order="C")
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return np.frombuffer(digest.digest(), np.uint32)
