"""Measures kernels under many schedules."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp

from jax_gnn import schedules

Key = TypeVar("Key", bound=Hashable)
AnySchedule = TypeVar("AnySchedule", bound=tuple[Any, ...])


class Timer(Protocol):
    """Such as ``jax_gnn._tuning.timing.ProfilerTimer``."""

    def measure(
        self, calls: Mapping[Key, Callable[[], Any]], repeats: int
    ) -> dict[Key, list[float]]:
        """Seconds of each call, ``repeats`` samples."""


class Call(Protocol[AnySchedule]):
    """What is measured: an op on operands."""

    @property
    def key(self) -> str:
        """In the cache."""

    def rule(self) -> AnySchedule:
        """What the rule says, whatever is in the cache."""

    def candidates(self) -> list[AnySchedule]:
        """What is worth trying."""

    def effective(self, schedule: AnySchedule) -> AnySchedule:
        """The same for all schedules that come to the same."""

    def operands(self) -> tuple[Any, ...]:
        """Not zeros, on which a GPU is faster than on real data."""

    def function(self, *operands: Any) -> jax.Array:
        """What is timed, of the operands."""


@jax.jit(static_argnums=(0, 1))
def numbers(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Numbers from -1 to 1 without a pattern."""
    hashed = sum(
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(factor)
        for axis, factor in zip(range(len(shape)), (2_654_435_761, 2_246_822_519), strict=False)
    ) + jnp.zeros(shape, jnp.uint32)
    return (hashed.astype(jnp.int32).astype(jnp.float32) / 2.0**31).astype(dtype)


def measure(
    calls: Sequence[Call[AnySchedule]],
    schedules_of: Callable[[Call[AnySchedule]], Iterable[AnySchedule]],
    timer: Timer,
    repeats: int,
) -> list[dict[AnySchedule, float]]:
    """Median seconds of each call under each of its schedules.

    Everything is compiled first, and then timed in turn.
    """
    result: list[dict[AnySchedule, float]] = [{} for _ in calls]
    timed = compile_all(calls, schedules_of)
    for (index, schedule), seconds in timer.measure(timed, repeats).items():
        result[index][schedule] = median(seconds)
    return result


def compile_all(
    calls: Sequence[Call[AnySchedule]],
    schedules_of: Callable[[Call[AnySchedule]], Iterable[AnySchedule]],
) -> Mapping[tuple[int, AnySchedule], Callable[[], Any]]:
    """Calls, by index, under each of their schedules: compiled, in threads, and run once.

    The operands of all calls are on the device at once.
    """
    jobs = dict.fromkeys(
        (index, call.effective(schedule))
        for index, call in enumerate(calls)
        for schedule in schedules_of(call)
    )
    operands = [call.operands() for call in calls]
    traced = [jax.jit(call.function).trace(*of) for call, of in zip(calls, operands, strict=True)]

    def compiled(job: tuple[int, AnySchedule]) -> Callable[..., Any]:
        index, schedule = job
        with schedules.use(schedule):
            return traced[index].lower().compile()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        functions = pool.map(compiled, jobs)
        timed = {
            job: partial(function, *operands[job[0]])
            for job, function in zip(jobs, functions, strict=True)
        }
    for run in timed.values():
        jax.block_until_ready(run())
    return timed
