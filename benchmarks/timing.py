"""Timers, one for each place where time is spent.

A timer's ``measure(calls, repeats)`` runs the calls in turn (A, B, C, A, B, C, ...), so that a
drift of the machine meets all of them alike, and returns the samples of each in seconds. Calls only
start the work; on a GPU every timed call begins with a cold L2 and with its launch hidden behind
earlier work.

Why not simply a loop? Inside ``jit`` a loop over the same inputs is optimised away, barriers or
not; outside of it a GPU is timed at the speed of Python. See README.md.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], Any]

FLUSH_BYTES = 256 * 2**20
"""More than the L2 of any GPU: overwriting it leaves nothing of a call's operands in the cache."""

FLUSHES = 4
"""Overwrites before a timed call. One cools the cache; all last about 0.5 ms on an H200, longer
than the host needs to queue the call that follows."""

TURN = 0.02
"""Seconds of timed calls that a candidate gets at a time on a CPU."""


class Timer(Protocol):
    """Measures calls in turn."""

    method: str

    def measure(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[float]]:
        """Seconds of each call, ``repeats`` samples or more."""


class WallTimer:
    """Host clock around calls that are waited for (CPU).

    At every turn one untimed call comes first, which brings the candidate's own arrays and threads
    back after the others.
    """

    method = "wall clock"

    def __init__(self, wait: Callable[[Any], Any]) -> None:
        self._wait = wait

    def measure(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[float]]:
        """See `Timer`."""
        samples: dict[Key, list[float]] = {key: [] for key in calls}
        for _ in range(repeats):
            for key, call in calls.items():
                rough = self._seconds(call)
                turns = min(max(int(TURN / rough), 1), 10)
                samples[key] += [self._seconds(call) for _ in range(turns)]
        return samples

    def _seconds(self, call: Call) -> float:
        begin = time.perf_counter()
        self._wait(call())
        return time.perf_counter() - begin


class Kernel(NamedTuple):
    """One record of a GPU's activity: a kernel, copy or fill; times in nanoseconds."""

    name: str
    begin: float
    end: float


def profiled_kernels(profile: Any) -> list[Kernel]:
    """The device activity in a ``jax.profiler.ProfileData``, in order of time.

    XLA writes one plane per GPU with one line per stream, named ``Stream #ID(TYPES)``. Lines of
    other names (the profiler's own overhead, groupings derived from these) are no activity.

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
        seen = [plane.name for plane in profile.planes], [line.name for line in lines]
        raise RuntimeError(f"no GPU activity in the profile; its planes and lines: {seen}")
    return sorted(kernels, key=lambda kernel: kernel.begin)


def call_spans(kernels: Iterable[Kernel], markers: set[str], calls: int) -> list[float]:
    """Seconds from the first kernel's begin to the last kernel's end, for each call.

    Args:
        kernels: Activity in order of time: for each call ``FLUSHES`` markers, then its own kernels.
        markers: Kernel names of a flush.
        calls: How many calls there were.

    Raises:
        RuntimeError: The activity does not have this form, so that it cannot be told whose it is.
    """
    groups: list[list[Kernel]] = []
    flushes = 0
    for kernel in kernels:
        if kernel.name in markers:
            flushes += 1
            if flushes % FLUSHES == 1:
                groups.append([])
        elif groups:
            groups[-1].append(kernel)
    if flushes != FLUSHES * calls or not all(groups):
        empty = sum(not group for group in groups)
        raise RuntimeError(
            f"expected {calls} calls behind {FLUSHES} flushes each; the profile shows {flushes} "
            f"flushes and {empty} calls without a kernel"
        )
    return [(max(k.end for k in group) - group[0].begin) * 1e-9 for group in groups]


class _JaxFlush:
    """Overwrites a buffer larger than the L2; the kernel (an xor) is none that a GNN op has."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self._overwrite = jax.jit(lambda buffer: buffer ^ jnp.uint32(0x5A5A5A5A), donate_argnums=0)
        self.buffer = jnp.ones(FLUSH_BYTES // 4, jnp.uint32)
        self()

    def __call__(self) -> None:
        self.buffer = self._overwrite(self.buffer)


class ProfilerTimer:
    """Span of a call's kernels in the record of ``jax.profiler`` (JAX on a GPU)."""

    method = "kernel span"

    def __init__(self) -> None:
        self._flush = _JaxFlush()
        flush_only = profiled_kernels(self._profile([self._flush] * 3))
        self._markers = {kernel.name for kernel in flush_only}

    def measure(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[float]]:
        """See `Timer`."""
        keys = [key for _ in range(repeats) for key in calls]
        if not keys:
            return {}
        queue = [step for key in keys for step in [self._flush] * FLUSHES + [calls[key]]]
        kernels = profiled_kernels(self._profile(queue))
        samples: dict[Key, list[float]] = {key: [] for key in calls}
        for key, seconds in zip(keys, call_spans(kernels, self._markers, len(keys)), strict=True):
            samples[key].append(seconds)
        return samples

    def _profile(self, queue: list[Call]) -> Any:
        import jax

        jax.block_until_ready(self._flush.buffer)
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = 0
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                outputs = None
                for step in queue:
                    outputs = step()
                jax.block_until_ready((outputs, self._flush.buffer))
            (record,) = Path(folder).rglob("*.xplane.pb")
            return jax.profiler.ProfileData.from_file(str(record))


class QueueTimer:
    """Calls queued behind a long kernel, minus the same queue without them (JAX on a GPU).

    Needs no profiler, but counts the device's own gap between programs, and is as noisy as the
    difference of two milliseconds: a check of `ProfilerTimer`, not a replacement.
    """

    method = "queued calls"
    BLOCK = 4096  # the side of a matrix product that takes some 3 ms on an H200
    QUEUED = 8  # with their flushes 17 programs, fewer than the 32 that XLA keeps in flight

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self._flush = _JaxFlush()
        self._operand = jnp.full((self.BLOCK, self.BLOCK), 1e-3, jnp.float32)
        self._block = jax.jit(lambda a: jnp.matmul(a, a, precision=jax.lax.Precision.HIGHEST))
        self._queue(None)

    def measure(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[float]]:
        """See `Timer`."""
        samples: dict[Key, list[float]] = {key: [] for key in calls}
        for _ in range(repeats):
            empty = self._queue(None)
            for key, call in calls.items():
                samples[key].append(max(self._queue(call) - empty, 0.0) / self.QUEUED)
        return samples

    def _queue(self, call: Call | None) -> float:
        import jax

        outputs = None
        begin = time.perf_counter()
        self._block(self._operand)
        for _ in range(self.QUEUED):
            self._flush()
            outputs = call() if call else None
        jax.block_until_ready((outputs, self._flush.buffer))
        return time.perf_counter() - begin


class EventTimer:
    """CUDA events around a call, minus an empty pair of events (torch on a GPU)."""

    method = "events"

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._buffer = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self.overhead = 0.0
        empty = self.measure({"empty": lambda: None}, 20)["empty"]
        self.overhead = statistics.median(empty)

    def measure(self, calls: Mapping[Key, Call], repeats: int) -> dict[Key, list[float]]:
        """See `Timer`."""
        event = self._torch.cuda.Event
        pairs: list[tuple[Key, Any, Any]] = []
        for _ in range(repeats):
            for key, call in calls.items():
                begin, end = event(enable_timing=True), event(enable_timing=True)
                for _ in range(FLUSHES):
                    self._buffer.bitwise_xor_(1)
                begin.record()
                call()
                end.record()
                pairs.append((key, begin, end))
        self._torch.cuda.synchronize()
        samples: dict[Key, list[float]] = {key: [] for key in calls}
        for key, begin, end in pairs:
            seconds = begin.elapsed_time(end) * 1e-3
            samples[key].append(max(seconds - self.overhead, 0.0))
        return samples


def copy_bandwidth(timer: Timer, copies: Mapping[str, Call], num_bytes: int) -> float:
    """Bytes read plus written per second by the fastest of several ways to copy ``num_bytes``."""
    samples = timer.measure(copies, repeats=10)
    return 2 * num_bytes / min(statistics.median(seconds) for seconds in samples.values())
