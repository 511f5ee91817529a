"""A program for graphs and arrays of given sizes: rewritten, and ready to run."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jax_gnn._program.cost import Costs
from jax_gnn._program.lower import Lowering, derived_from
from jax_gnn._program.maps import Maps, Structure
from jax_gnn._program.match import Matcher, needed
from jax_gnn._program.passes import DISTRIBUTE, PASSES, run
from jax_gnn._program.regions import Candidates, EdgeRegion, chosen, makers
from jax_gnn._program.rows import Row, uses_of
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Parts
from jax_gnn._program.trace import Traced


@dataclass(frozen=True, eq=False)
class Plan:
    """A program after its passes.

    Attributes:
        traced: As it was written.
        parts: What the graph has.
        passes: Those that it went through.
        maps: Whether edge regions may have linear maps.
    """

    traced: Traced
    parts: Parts
    passes: tuple[str, ...]
    maps: bool = True

    @functools.cached_property
    def results(self) -> list[Row]:
        """The results, rewritten."""
        return run(self.traced.results, self.passes, self.parts)

    @functools.cached_property
    def matcher(self) -> Matcher:
        """Finds the op of each row."""
        return with_regions(self.results, self.parts, self.passes, self.maps)

    @functools.cached_property
    def sides(self) -> Sides:
        """Which nodes rows are of."""
        return Sides(self.results)

    @functools.cached_property
    def costs(self) -> Costs:
        """What rows take."""
        return Costs(self.parts, self.matcher)

    @functools.cached_property
    def counted(self) -> float:
        """Microseconds of all rows."""
        return self.costs.total(self.results)

    @functools.cached_property
    def training(self) -> float:
        """Microseconds of all rows and of their gradients."""
        return self.costs.training(self.results)

    @property
    def regions(self) -> list[EdgeRegion]:
        """What edges make in one pass."""
        return list(dict.fromkeys(self.matcher.regions.values()))

    def spared(self, region: EdgeRegion) -> float:
        """Microseconds more that ops would take in the place of a region, gradients included."""
        found = self.matcher.regions
        return self._training({row: found[row] for row in found if found[row] is not region})

    @functools.cached_property
    def left_to_ops(self) -> dict[Row, float]:
        """Reductions in no region, and how many microseconds more they would take in one."""
        if makers() == "cpu":
            return {}
        candidates = Candidates(self.results, self.matcher, self.maps)
        given = [push for region in self.regions for push in region.pushes]
        others = {push: candidates.found([*given, push]) for push in candidates.pushes}
        return {
            push: self._training(found)
            for push, found in others.items()
            if push not in given and push in found
        }

    def _training(self, regions: Mapping[Row, EdgeRegion]) -> float:
        """Microseconds more with other regions."""
        matcher = Matcher(uses_of(self.results), self.parts, "compact" in self.passes)
        matcher.regions = regions
        return Costs(self.parts, matcher).training(self.results) - self.training

    @property
    def lowered(self) -> list[Row]:
        """The rows that are made, each after what it takes."""
        return needed(self.results, self.matcher)

    @functools.cached_property
    def differentiated(self) -> Plan:
        """What runs in its place where it is differentiated.

        On a GPU XLA makes gradients of linear maps sooner than edge regions do.
        """
        if makers() != "cuda" or not any(region.maps for region in self.regions):
            return self
        return planned(self.traced, self.parts, self.passes, maps=False)

    def run(self, graph: Structure, given: Sequence[Any]) -> Any:
        """What the program gives."""
        if self.differentiated is self:
            return self._run(graph, given)
        return derived_from(self._run, self.differentiated._run)(graph, list(given))

    def _run(self, graph: Structure, given: Sequence[Any]) -> Any:
        with jax.named_scope(self.traced.name):
            lowering = Lowering(Maps(graph), self.matcher, self.sides, given)
            return jax.tree.unflatten(self.traced.tree, lowering.results(self.results))

    @functools.cached_property
    def compiled(self) -> Callable[[Structure, Sequence[Any]], Any]:
        """The same as one compiled call."""
        return jax.jit(self.run)


def with_regions(
    results: Sequence[Row], parts: Parts, passes: Sequence[str], maps: bool = True
) -> Matcher:
    """What finds the op of each row of a program, and the regions that pay."""
    matcher = Matcher(uses_of(results), parts, "compact" in passes)
    if makers() == "cpu":  # XLA fuses functions of edges, and keeps what gradients need
        return matcher
    costs = Costs(parts, matcher)

    def count(regions: Mapping[Row, EdgeRegion]) -> float:
        matcher.regions = regions
        return costs.training(results)

    matcher.regions = chosen(Candidates(results, matcher, maps), count)
    return matcher


def planned(traced: Traced, parts: Parts, passes: tuple[str, ...], maps: bool = True) -> Plan:
    """The program after these passes; without those that regions gain more without.

    Passes count what ops take. Where edges make more in one pass before a linear map is moved or a
    product is made elsewhere, fewer passes are better.
    """
    plan = Plan(traced, parts, passes, maps)
    if not Plan(traced, parts, (), maps).matcher.regions:
        return plan
    return min([plan, *_fewer(plan)], key=lambda each: each.training)


def _fewer(plan: Plan) -> list[Plan]:
    """The same with some of its passes, but for "equal", which costs nothing."""
    others = [name for name in (*PASSES, DISTRIBUTE) if name != "equal" and name in plan.passes]
    choices = [
        tuple(name for name in plan.passes if name not in left_out)
        for count in range(1, len(others) + 1)
        for left_out in itertools.combinations(others, count)
    ]
    return [replace(plan, passes=passes) for passes in dict.fromkeys(choices)]


def tuned(plan: Plan, graph: Structure, given: Sequence[Any]) -> Plan:
    """Of the three plans of a program that are counted to take least, the one that does."""
    plans = [plan, *_fewer(plan)]
    different = list({round(each.counted, 3): each for each in reversed(plans)}.values())
    best = sorted(different, key=lambda each: each.counted)[:3]
    return min(best, key=lambda each: _measured(each, graph, given))


def _measured(plan: Plan, graph: Structure, given: Sequence[Any]) -> float:
    """Seconds of a call."""
    jax.block_until_ready(plan.compiled(graph, given))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(plan.compiled(graph, given))
        times.append(time.perf_counter() - start)
    return min(times)
