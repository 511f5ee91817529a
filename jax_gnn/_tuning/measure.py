"""Measurement of calls under many schedules."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jax_gnn import schedules
from jax_gnn._core.schedule import Family
from jax_gnn._tuning.timing import wait

Key = TypeVar("Key", bound=Hashable)
AnySchedule = TypeVar("AnySchedule", bound=tuple[Any, ...])


class Timer(Protocol):
    """Timer of calls, such as ``jax_gnn._tuning.timing.ProfilerTimer``."""

    def measure(
        self, calls: Mapping[Key, Callable[[], object]], repeats: int
    ) -> dict[Key, list[float]]:
        """Return ``repeats`` samples, in seconds, for each call."""


class Call(abc.ABC, Generic[AnySchedule]):
    """Call that is tuned: an op on operands of given sizes and dtype."""

    family: ClassVar[Family[Any]]  # schedules of the op
    dtype: str  # name of the dtype of the features

    @property
    @abc.abstractmethod
    def kernel(self) -> str:
        """Name of the op in the cache."""

    @property
    @abc.abstractmethod
    def shape(self) -> dict[str, Any]:
        """Arguments by which the family chooses a schedule."""

    @abc.abstractmethod
    def candidates(self) -> list[AnySchedule]:
        """Return the schedules to measure."""

    @abc.abstractmethod
    def operands(self) -> tuple[Any, ...]:
        """Return operands, not zeros, on which a GPU is faster than on real data."""

    @abc.abstractmethod
    def function(self, *operands: Any) -> jax.Array:
        """Apply the op to the operands; this is what is timed."""

    @property
    def itemsize(self) -> int:
        """Bytes of a feature."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def key(self) -> str:
        """Key of the call in the cache."""
        return self.family.key(self.kernel, **self.shape)

    def rule(self) -> AnySchedule:
        """Return the schedule of the rule, regardless of the cache."""
        return cast(AnySchedule, self.family.rule(self.kernel, **self.shape))

    def effective(self, schedule: AnySchedule) -> AnySchedule:
        """Map schedules with the same effect on this call to one of them."""
        return cast(AnySchedule, self.family.possible(schedule, self.kernel, **self.shape))


@jax.jit(static_argnums=(0, 1))
def numbers(shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Return numbers from -1 to 1 without a pattern."""
    # Multiplicative hashing of the indices, by primes near 2³² / φ.
    hashes = jnp.zeros(shape, jnp.uint32)
    for axis, factor in zip(range(len(shape)), (2_654_435_761, 2_246_822_519), strict=False):
        hashes += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(factor)
    return (hashes.astype(jnp.int32).astype(jnp.float32) / 2.0**31).astype(dtype)


def measure(
    calls: Sequence[Call[AnySchedule]],
    schedules_of: Callable[[Call[AnySchedule]], Iterable[AnySchedule]],
    timer: Timer,
    repeats: int,
) -> list[dict[AnySchedule, float]]:
    """Return the median seconds of each call under each of its schedules.

    Everything is compiled first, and then timed in turn.
    """
    medians: list[dict[AnySchedule, float]] = [{} for _ in calls]
    compiled = compile_all(calls, schedules_of)
    for (index, schedule), seconds in timer.measure(compiled, repeats).items():
        medians[index][schedule] = median(seconds)
    return medians


def compile_all(
    calls: Sequence[Call[AnySchedule]],
    schedules_of: Callable[[Call[AnySchedule]], Iterable[AnySchedule]],
) -> Mapping[tuple[int, AnySchedule], Callable[[], Any]]:
    """Compile calls, by index, under each of their schedules, in threads; run each once.

    The operands of all calls are on the device at once.
    """
    # Schedules with the same effect are measured once.
    jobs = dict.fromkeys(
        (index, call.effective(schedule))
        for index, call in enumerate(calls)
        for schedule in schedules_of(call)
    )
    operands = [call.operands() for call in calls]
    traced = [
        jax.jit(call.function).trace(*arrays) for call, arrays in zip(calls, operands, strict=True)
    ]

    # XLA compiles without Python's lock. The schedule of a thread is read while it lowers.
    def compile_job(job: tuple[int, AnySchedule]) -> Callable[..., Any]:
        index, schedule = job
        with schedules.use(schedule):
            return cast(Callable[..., Any], traced[index].lower().compile())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        executables = zip(jobs, pool.map(compile_job, jobs), strict=True)
        compiled = {job: partial(function, *operands[job[0]]) for job, function in executables}
    for run in compiled.values():
        wait(run())
    return compiled
