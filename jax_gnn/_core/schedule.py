"""Schedules of kernels: how they deal out their work, chosen from shapes at compile time.

A forced schedule takes precedence, then the schedule that ``jax-gnn tune`` measured for this device
and shape, here or for the library as shipped, then a decision tree for this compute capability,
then the rule written by hand. Trees and rules are made of measurements on an H200. If the kernel of
a schedule cannot do the call, another kernel does it. A schedule changes only the order of
additions.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, cast

import jax
import jax.export

from jax_gnn._core import schedule_cache
from jax_gnn._core.types import Attribute

S = TypeVar("S", bound=tuple[Any, ...])

# Values of fields of schedules: threads of a block, as `is_schedule` in segments.h, and numbers of
# blocks that have a workspace.
THREADS = range(32, 1025, 32)
MANY = range(1, 2**16)

L2_BYTES = 50_000_000
"""Bytes of arrays that the L2 of an H200, on which rules were measured, holds."""

# Values for symbolic dimensions of `jax.export`: one schedule serves all sizes.
_SYMBOLIC_SIZE = 2**16
_SYMBOLIC_WIDTH = 64

TREES = Path(__file__).with_name("schedule_trees.json")
"""Decision trees by compute capability and kind of call, from ``python -m benchmarks``."""
Tree: TypeAlias = "int | str | list[Any]"
"""A leaf; or a feature, a threshold, and the trees of features up to it and above."""
_BY_HAND = "by hand"

# A user context is part of the keys of JAX's caches: a change compiles programs again.
_forced = jax.make_user_context(default_value=None)


def use(schedule: Any) -> AbstractContextManager[None]:
    """Force a schedule on kernels of its kind compiled inside a ``with`` block; None forces none.

    There are schedules of segments, of products, of hypergraph aggregations and of typed edges.

    Raises:
        TypeError: the argument is no schedule.
        ValueError: no kernel has the value of one of its fields.
    """
    if schedule is None:
        return cast(AbstractContextManager[None], _forced(None))
    families = {family.schedule: family for family in schedule_cache.FAMILIES.values()}
    if (family := families.get(type(schedule))) is None:
        raise TypeError(f"schedule must be one of jax_gnn.schedules, got {schedule!r}")
    for name, value, allowed in zip(schedule._fields, schedule, family.allowed, strict=True):
        if value not in allowed:
            values = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else allowed
            owner = type(schedule).__name__
            raise ValueError(f"{name} of a {owner} must be of {values}, got {value!r}")
    return cast(AbstractContextManager[None], _forced(schedule))


@dataclass(frozen=True)
class Family(Generic[S]):
    """The schedules of one kind of kernels, and the rule that chooses them.

    Keyword arguments describe a call: all of ``exact`` and ``sizes``, and further arguments of the
    rule.
    """

    schedule: Callable[..., S]  # the type of the schedules, a named tuple
    allowed: tuple[Collection[Any], ...]  # the values of each of its fields
    ops: tuple[str, ...]  # names of the ops, the first words of keys
    # Arguments that a key contains as they are; a truth value by its name if it is True.
    exact: tuple[str, ...]
    sizes: tuple[str, ...]  # arguments that a key contains rounded to a power of two
    rule: Callable[..., S]  # maps op and call to the schedule, a pure function
    describe: Callable[[S], str]  # maps a schedule to words
    # Maps schedule, op and call to a schedule that kernels can do; the C++ side refuses others.
    possible: Callable[..., S] = lambda schedule, op, **call: schedule

    def __post_init__(self) -> None:
        """Register the family by its ops, so that files of tuned schedules can be read."""
        schedule_cache.FAMILIES.update(dict.fromkeys(self.ops, self))

    def choose(self, op: str, **call: Attribute) -> S:
        """Return the schedule for a call of a kernel, a pure function of shapes."""
        call = self.known(**call)
        if type(_forced.value) is self.schedule:
            schedule = _forced.value
        elif tuned := schedule_cache.lookup(self.key(op, **call)):
            schedule = self.schedule(*tuned)
        else:
            schedule = self.rule(op, **call)
        return self.possible(schedule, op, **call)

    def key(self, op: str, **call: Attribute) -> str:
        """Return the key of all calls whose sizes round to the same powers of two."""
        words = [op]
        for name in self.exact:
            value = call[name]
            words += ([name] if value else []) if isinstance(value, bool) else [f"{name} {value}"]
        sizes = (f"{name} 2^{round(math.log2(max(call[name], 1)))}" for name in self.sizes)
        return " ".join([*words, *sizes])

    def known(self, **call: Attribute) -> dict[str, Any]:
        """Return the call with typical numbers in place of symbolic ones."""
        return {
            name: concrete_size(value) if name in self.sizes else concrete_width(value)
            for name, value in call.items()
        }


def leaf(tree: Tree, features: dict[str, float]) -> Any:
    """Return the leaf of a tree for features."""
    while isinstance(tree, list):
        name, threshold, low, high = tree
        tree = low if features[name] <= threshold else high
    return tree


@functools.cache
def _trees() -> dict[str, dict[str, Tree]]:
    trees: dict[str, dict[str, Tree]] = {}
    return json.loads(TREES.read_text())["trees"] if TREES.exists() else trees


def from_tree(kind: str, features: dict[str, float]) -> str | None:
    """Return the leaf for a kind of call on this process's GPUs, or None for the rule by hand."""
    tree = _trees().get(schedule_cache.compute_capability() or "", {}).get(kind, _BY_HAND)
    schedule: str = leaf(tree, features)
    return None if schedule == _BY_HAND else schedule


def sum_features(
    entries: int, rows: int, cols: int, row_bytes: int, **features: float
) -> dict[str, float]:
    """Return the inputs of trees for sums of ``entries`` rows of ``cols`` rows into ``rows`` rows.

    ``cols_bytes`` are what the L2 holds or not. Further features are those of the kind of call.
    """
    return {
        "entries": entries,
        "rows": rows,
        "mean_length": entries / max(rows, 1),
        "row_bytes": row_bytes,
        "entry_bytes": entries * row_bytes,
        "cols_bytes": cols * row_bytes,
        **features,
    }


def concrete_size(size: int) -> int:
    """Return a number of rows, a typical one if it is symbolic."""
    return _SYMBOLIC_SIZE if jax.export.is_symbolic_dim(size) else size


def concrete_width(width: int) -> int:
    """Return a number of features, a typical one if it is symbolic."""
    return _SYMBOLIC_WIDTH if jax.export.is_symbolic_dim(width) else width


def describe(key: str, fields: tuple[Any, ...]) -> str:
    """Return the schedule of a key in words."""
    family = schedule_cache.family_of(key)
    if family is None:
        return f"of an op that this version does not know: {fields}"
    return cast(str, family.describe(family.schedule(*fields)))
