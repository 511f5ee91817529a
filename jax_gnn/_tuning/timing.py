"""Device time of JAX calls on a GPU, from records of JAX's profiler.

A Python loop would time the dispatch, and a loop inside ``jit`` is optimised away, barriers or not.
"""

from __future__ import annotations

import functools
import math
import random
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], Any]

FLUSH_BYTES = 256 * 2**20
"""More than the L2 of any GPU: reading as much evicts a call's operands from the cache."""


class Kernel(NamedTuple):
    """Record of a GPU's activity: a kernel, copy or fill; times in nanoseconds."""

    name: str
    begin: float
    end: float


def profiled_kernels(profile: Any) -> list[Kernel]:
    """Return the device activity in a ``jax.profiler.ProfileData``, in order of time.

    XLA writes one plane per GPU with one line per stream, named ``Stream #ID(TYPES)``. Lines with
    other names are the profiler's overhead, or groups of kernels.

    Raises:
        RuntimeError: The profile has no such line.
    """
    planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU:")]
    lines = [line for plane in planes for line in plane.lines]
    kernels = [
        Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)
        for line in lines
        if line.name.startswith("Stream #")
        for event in line.events
    ]
    if not kernels:
        names = [plane.name for plane in profile.planes], [line.name for line in lines]
        raise RuntimeError(f"no GPU activity in the profile; its planes and lines: {names}")
    return sorted(kernels, key=lambda kernel: kernel.begin)


def call_kernels(
    kernels: Iterable[Kernel], markers: Mapping[str, float], flushes: int, calls: int
) -> list[list[Kernel]]:
    """Assign the activity to calls.

    Args:
        kernels: Activity in order of time: for each call the overwrites and the read of its
            `Flush`, then its own kernels.
        markers: Kernel names of an overwrite, and its minimum duration in nanoseconds.
        flushes: Number of overwrites before each call.
        calls: Number of calls.

    Raises:
        RuntimeError: The activity does not have this form, so that calls cannot be told apart.
    """
    # A group starts at the first of its overwrites, and has all kernels up to the next flush.
    groups: list[list[Kernel]] = []
    num_overwrites = 0
    for kernel in kernels:
        if kernel.end - kernel.begin >= markers.get(kernel.name, math.inf):
            if num_overwrites % flushes == 0:
                groups.append([])
            num_overwrites += 1
        elif groups:
            groups[-1].append(kernel)
    groups = [group[1:] for group in groups]  # without the read
    if num_overwrites != flushes * calls or not all(groups):
        empty = sum(not group for group in groups)
        raise RuntimeError(
            f"expected {calls} calls behind {flushes} flushes each; the profile shows "
            f"{num_overwrites} flushes and {empty} calls without a kernel"
        )
    return groups


def wait(outputs: object) -> None:
    """Wait until all arrays in a pytree are computed."""
    jax.tree.map(lambda x: x.block_until_ready(), outputs)


def span(kernels: list[Kernel]) -> float:
    """Return the seconds from the start of the first kernel to the end of the last one."""
    return (max(kernel.end for kernel in kernels) - kernels[0].begin) * 1e-9


class Flush:
    """Cache flush, which overwrites a buffer larger than the L2, and reads it.

    No GNN op has the overwriting kernel (an xor), so that it marks calls in a profile. The read
    leaves nothing to write back: otherwise a call would pay for up to a whole L2 of dirty lines of
    its predecessor, 12 µs on an H200.
    """

    def __init__(self, num_bytes: int = FLUSH_BYTES) -> None:
        self._overwrite = jax.jit(lambda buffer: buffer ^ jnp.uint32(0x5A5A5A5A), donate_argnums=0)
        self._read = jax.jit(lambda buffer: jnp.max(buffer, axis=1))
        self._buffer = jnp.ones((num_bytes // 4096, 1024), jnp.uint32)
        self(1)

    def overwrite(self) -> None:
        """Queue one overwrite."""
        self._buffer = self._overwrite(self._buffer)

    def __call__(self, overwrites: int = 1) -> None:
        """Queue some overwrites and the read."""
        for _ in range(overwrites):
            self.overwrite()
        self.output = self._read(self._buffer)


class ProfilerTimer:
    """Timer that takes the span of a call's kernels in a profile of ``jax.profiler``.

    Args:
        flushes: Overwrites before each call. One flushes the cache; together they last longer than
            the host needs to queue the call, so that its launch is hidden.
        flush_bytes: Size of the buffer that is overwritten.

    Raises:
        RuntimeError: The profile shows no activity of a GPU.
    """

    method = "kernel span"

    def __init__(self, flushes: int, flush_bytes: int = FLUSH_BYTES) -> None:
        self._flush, self._flushes = Flush(flush_bytes), flushes
        overwrites = profiled_kernels(self._profile([self._flush.overwrite] * 3))
        # Other kernels may have these names, but none takes half the time.
        self._markers = {kernel.name: (kernel.end - kernel.begin) / 2 for kernel in overwrites}

    def measure(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[float]]:
        """Return ``repeats`` samples of the seconds of each call, in a new random order each time.

        A kernel is faster right after one with the same code, which is still in the
        multiprocessors' caches: a fixed order would favour some of the calls.
        """
        samples = self.kernels(calls, repeats)
        return {key: [span(kernels) for kernels in runs] for key, runs in samples.items()}

    def kernels(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[list[Kernel]]]:
        """Return the kernels of each sample."""
        rng = random.Random(0)
        keys = [key for _ in range(repeats) for key in rng.sample(list(calls), len(calls))]
        if not keys:
            return {}
        flush = functools.partial(self._flush, self._flushes)
        queue = [step for key in keys for step in (flush, calls[key])]
        kernels = profiled_kernels(self._profile(queue))
        samples: dict[Key, list[list[Kernel]]] = {key: [] for key in calls}
        groups = call_kernels(kernels, self._markers, self._flushes, len(keys))
        for key, group in zip(keys, groups, strict=True):
            samples[key].append(group)
        return samples

    def _profile(self, queue: list[Call]) -> Any:
        wait(self._flush.output)
        # Records of the host would fill the profile, and slow the launches that are timed.
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = 0
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                outputs = None
                for step in queue:
                    outputs = step()
                wait((outputs, self._flush.output))
            (record,) = Path(folder).rglob("*.xplane.pb")
            return jax.profiler.ProfileData.from_file(str(record))
