"""How kernels deal out their work: chosen when a computation is compiled, from shapes alone.

A schedule that is forced goes first, then what ``jax-gnn tune`` found for this device and shape,
here or before it was shipped, then the rule made of measurements on an H200. Where the kernel that
it names cannot do the call, another does. Which one it is changes the order of additions, not what
is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.export

from jax_gnn._core import schedule_cache

S = TypeVar("S", bound=tuple[Any, ...])

# What fields of schedules may be: threads of a block as `is_schedule` in segments.h has them, and
# counts of whatever has a workspace.
THREADS = range(32, 1025, 32)
MANY = range(1, 2**16)

L2_BYTES = 50_000_000
"""What the L2 of an H200, on which rules were made, holds of arrays."""

# What a symbolic dimension of `jax.export` counts as: a schedule fits one size, and serves all.
_SYMBOLIC_SIZE = 2**16
_SYMBOLIC_WIDTH = 64

# A user context is part of the keys of JAX's caches: a change compiles again.
_forced = jax.make_user_context(default_value=None)


def use(schedule: Any) -> AbstractContextManager[None]:
    """Makes all that is compiled inside a ``with`` block use one schedule; None chooses again.

    A schedule is one of segments, of products, of hypergraph aggregations or of typed edges, and
    leaves kernels of the other kinds alone.

    Raises:
        TypeError: the schedule is none of these.
        ValueError: one of its fields is what no kernel has.
    """
    if schedule is None:
        return _forced(None)
    families = schedule_cache.FAMILIES.values()
    family = next((each for each in families if type(schedule) is each.schedule), None)
    if family is None:
        raise TypeError(f"schedule must be one of jax_gnn.schedules, got {schedule!r}")
    for name, value, allowed in zip(schedule._fields, schedule, family.allowed, strict=True):
        if value not in allowed:
            most = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else allowed
            raise ValueError(
                f"{name} of a {type(schedule).__name__} must be of {most}, got {value!r}"
            )
    return _forced(schedule)


@dataclass(frozen=True)
class Family(Generic[S]):
    """Schedules of one kind: what they are, which calls they are for, and what chooses them.

    A call is described by keyword arguments: all of ``exact`` and ``sizes``, and what else the
    rule asks for.

    Attributes:
        schedule: their type, a named tuple.
        allowed: what each of its fields may be.
        ops: what they are for: the first word of a key.
        exact: of a call, what a key holds as it is. Truth values are there by name where they hold.
        sizes: of a call, what a key holds to the nearest power of two.
        rule: from op and call to the schedule, a pure function.
        possible: from a schedule, op and call to what kernels can do of it, of which the C++ side
            refuses all else.
        describe: a schedule in words.
    """

    schedule: Callable[..., S]
    allowed: tuple[Collection[Any], ...]
    ops: tuple[str, ...]
    exact: tuple[str, ...]
    sizes: tuple[str, ...]
    rule: Callable[..., S]
    describe: Callable[[S], str]
    possible: Callable[..., S] = lambda schedule, op, **call: schedule

    def choose(self, op: str, **call: Any) -> S:
        """The schedule for a call of a kernel, a pure function of shapes."""
        call = self.known(**call)
        if type(_forced.value) is self.schedule:
            found = _forced.value
        elif tuned := schedule_cache.lookup(self.key(op, **call)):
            found = self.schedule(*tuned)
        else:
            found = self.rule(op, **call)
        return self.possible(found, op, **call)

    def key(self, op: str, **call: Any) -> str:
        """The bucket of a call: sizes to the nearest power of two, what is exact as it is."""
        words = [op]
        for name in self.exact:
            value = call[name]
            words += ([name] if value else []) if isinstance(value, bool) else [f"{name} {value}"]
        sizes = (f"{name} 2^{round(math.log2(max(call[name], 1)))}" for name in self.sizes)
        return " ".join([*words, *sizes])

    def known(self, **call: Any) -> dict[str, Any]:
        """The call with typical numbers in the place of symbolic ones."""
        return {
            name: concrete_size(value) if name in self.sizes else concrete_width(value)
            for name, value in call.items()
        }


def concrete_size(size: Any) -> int:
    """A number of rows, a typical one where it is symbolic."""
    return _SYMBOLIC_SIZE if jax.export.is_symbolic_dim(size) else size


def concrete_width(width: Any) -> int:
    """A number of features, a typical one where it is symbolic."""
    return _SYMBOLIC_WIDTH if jax.export.is_symbolic_dim(width) else width


def define_family(family: Family[S]) -> Family[S]:
    """Makes a family known by its ops, so that files of tuned schedules can be read."""
    schedule_cache.FAMILIES.update(dict.fromkeys(family.ops, family))
    return family


def describe(key: str, fields: tuple[Any, ...]) -> str:
    """In words, the schedule that was found for a key."""
    family = schedule_cache.family_of(key)
    if family is None:
        return f"of an op that this version does not know: {fields}"
    return family.describe(family.schedule(*fields))
