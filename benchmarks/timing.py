"""Timers, one for each place where time is spent.

A timer's ``measure(calls, repeats)`` runs the calls in turn (A, B, C, A, B, C, ...), so that a
drift of the machine meets all of them alike, and returns the samples of each in seconds. Calls only
start the work; on a GPU every timed call begins with a cold L2 and with its launch hidden behind
earlier work.

Why not simply a loop? Inside ``jit`` a loop over the same inputs is optimised away, barriers or
not; outside of it a GPU is timed at the speed of Python. See README.md. JAX on a GPU is timed by
``jax_gnn._tuning.timing.ProfilerTimer``, which the tuner uses too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], Any]

FLUSH_BYTES = 256 * 2**20
"""More than the L2 of any GPU: reading it leaves nothing of a call's operands in the cache."""

FLUSHES = 4
"""Overwrites of the buffer before a timed call; a read follows. One cools the cache; all last about
0.5 ms on an H200, longer than the host needs to queue the call that follows."""

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


class QueueTimer:
    """Calls queued behind a long kernel, minus the same queue without them (JAX on a GPU).

    Needs no profiler, but counts the device's own gap between programs, and is as noisy as the
    difference of two milliseconds: a check of the profiler, not a replacement.
    """

    method = "queued calls"
    BLOCK = 4096  # the side of a matrix product that takes some 3 ms on an H200
    QUEUED = 8  # with their flushes 17 programs, fewer than the 32 that XLA keeps in flight

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        from jax_gnn._tuning.timing import Flush

        self._flush = Flush(FLUSH_BYTES)
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
        jax.block_until_ready((outputs, self._flush.output))
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
                self._buffer.amax()
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
