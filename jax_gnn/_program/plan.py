"""Plans: a program rewritten for given sizes, with its patterns, regions and costs."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.typing import ArrayLike

from jax_gnn._program.backend import backend
from jax_gnn._program.cost import Costs
from jax_gnn._program.derivatives import differentiated_as
from jax_gnn._program.lower import Lowering
from jax_gnn._program.match import Matcher, needed_rows
from jax_gnn._program.matrices import Matrices, Structure
from jax_gnn._program.passes import FOR_REGIONS, run
from jax_gnn._program.passes.cse import content_of
from jax_gnn._program.passes.inline_pairs import is_inlinable
from jax_gnn._program.regions import Candidates, EdgeRegion, choose_regions
from jax_gnn._program.rows import Input, Row, Softmax, count_uses, topological_order
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Parts, Space
from jax_gnn._program.trace import Traced

# Attention with scores and values of edges reads and writes more arrays of edges than is counted:
# measured for DeeperGCN beside a region.
_TIME_OF_EDGE_ATTENTION = 1.3
# Share of the time of the best plan with gradients below which another plan runs without them:
# counts of regions are right within 15 %.
_MAX_SHARE = 0.85
# What makes products in regions preferable: they need no arrays of edges.
_TIME_OF_EDGE_ARRAYS = 1.2
# Times the best plan's time, up to which another plan may be better once its kernels are generated.
_PROMISING = 1.2
_ALWAYS = ("cse", "factor_scales")  # passes that only gain
_MAX_PLANS = 4  # whose kernels are generated to choose one for gradients


@dataclass(frozen=True, eq=False)
class Plan:
    """A program after its passes.

    Attributes:
        traced: The program as written.
        parts: The spaces of the graph.
        passes: The passes that are applied.
        linear_maps: Whether edge regions may contain linear maps.
        requested: The passes that the program asks for.
        has_kernels: Whether edge regions are those alone that a GPU has kernels for.
        trained: The plan that takes less with gradients, if there is another.
        variants: Rewritten results by passes and by content, and their costs, which plans of one
            program share: most sets of passes make one of a few equal programs.
    """

    traced: Traced
    parts: Parts
    passes: tuple[str, ...]
    linear_maps: bool = True
    requested: tuple[str, ...] = ()
    has_kernels: bool = False
    trained: Plan | None = None
    variants: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def results(self) -> list[Row]:
        """The rewritten results."""
        if self.passes not in self.variants:
            new = run(self.traced.results, self.passes, self.parts, self.variants)
            self.variants[self.passes] = self.variants.setdefault(content_of(new), new)
        results: list[Row] = self.variants[self.passes]
        return results

    @property
    def matcher(self) -> Matcher:
        """The patterns and regions."""
        return self.costs.matcher

    @functools.cached_property
    def sides(self) -> Sides:
        """Sides of nodes' rows."""
        return Sides(self.results)

    @functools.cached_property
    def costs(self) -> Costs:
        """Costs of rows."""
        options = self.linear_maps, self.has_kernels
        key = id(self.results), "compact_pairs" in self.passes, *options
        if key not in self.variants:
            if self.has_kernels:
                regions = replace(self, has_kernels=False).matcher.regions
                regions = {row: region for row, region in regions.items() if region.has_kernels()}
                matcher = _with_regions(_matcher(self.results, self.parts, self.passes), regions)
            else:
                matcher = match_regions(self.results, self.parts, self.passes, self.linear_maps)
            self.variants[key] = Costs(matcher, self.results)
        costs: Costs = self.variants[key]
        return costs

    @functools.cached_property
    def time(self) -> float:
        """Estimated microseconds of all rows."""
        return self.costs.total(self.results)

    @functools.cached_property
    def time_in_kernels(self) -> float:
        """`time` as kernels of regions take it on a GPU."""
        is_cuda = backend() == "cuda"
        return self.time + sum(map(self.costs.time_of_walks, self.regions) if is_cuda else ())

    @functools.cached_property
    def training_time(self) -> float:
        """Estimated microseconds of all rows and of their gradients."""
        return self.costs.training()

    @property
    def regions(self) -> list[EdgeRegion]:
        """The edge regions."""
        return list(dict.fromkeys(self.matcher.regions.values()))

    def time_saved(self, region: EdgeRegion) -> float:
        """Return the microseconds that a region saves over ops, gradients included."""
        regions = self.matcher.regions
        return self._extra_time({row: x for row, x in regions.items() if x is not region})

    @functools.cached_property
    def left_to_ops(self) -> dict[Row, float]:
        """Reductions in no region, with the microseconds that a region would add."""
        if backend() == "cpu":
            return {}
        candidates = Candidates(self.results, self.matcher, self.linear_maps)
        chosen = [row for region in self.regions for row in region.results]
        chosen += candidates.stored
        extended = {push: candidates.regions([*chosen, push]) for push in candidates.pushes}
        return {
            push: self._extra_time(regions)
            for push, regions in extended.items()
            if push not in chosen and push in regions
        }

    def _extra_time(self, regions: Mapping[Row, EdgeRegion]) -> float:
        matcher = _matcher(self.results, self.parts, self.passes)
        matcher.regions = regions
        return Costs(matcher, self.results).training() - self.training_time

    @functools.cached_property
    def _matcher_of_kernels(self) -> Matcher:
        """The matcher without regions of nodes that a GPU has no kernels for, which ops make."""
        regions = {
            row: region
            for row, region in self.matcher.regions.items()
            if region.space is not Space.NODE
            or math.isfinite(region.flops() + region.gradient_flops())
        }
        if len(regions) == len(self.matcher.regions):
            return self.matcher
        matcher = _matcher(self.results, self.parts, self.passes)
        matcher.regions, matcher.softmaxes = regions, self.matcher.softmaxes
        return matcher

    @property
    def materialized(self) -> list[Row]:
        """The rows that are made, each after the rows that it takes."""
        return needed_rows(self.results, self.matcher)

    @property
    def has_linear_maps(self) -> bool:
        """Whether regions multiply rows of edges with matrices, on a GPU."""
        return backend() == "cuda" and any(region.linear_maps for region in self.regions)

    @functools.cached_property
    def differentiated(self) -> Plan:
        """The plan that runs under differentiation, whose gradients have kernels on a GPU."""
        if self.trained is not None:
            return self.trained.differentiated
        if not self.has_linear_maps:
            return self
        plans = _with_fewer_passes(replace(self, passes=self.requested))
        without_maps = min(
            (replace(plan, linear_maps=False) for plan in plans), key=lambda x: x.training_time
        )
        best: Plan | None = None
        num_feasible = 0
        for plan in sorted(_different([self, *plans]), key=lambda plan: plan.training_time):
            if best is not None and plan.training_time > _PROMISING * best._time_in_kernels:
                break
            time = plan._time_in_kernels
            num_feasible += math.isfinite(time)
            best = plan if best is None or time < best._time_in_kernels else best
            if num_feasible == _MAX_PLANS:
                break
        assert best is not None
        arrays_time = _TIME_OF_EDGE_ARRAYS * without_maps._time_in_kernels
        return without_maps if arrays_time < best._time_in_kernels else best

    @functools.cached_property
    def _time_in_kernels(self) -> float:
        """`training_time` as kernels take it."""
        return self.training_time + sum(map(self.costs.gradient_of_walks, self.regions))

    def run(self, graph: Structure, inputs: Sequence[ArrayLike]) -> Any:
        """Run the program."""
        if self.trained is None and not self.has_linear_maps:
            return self._run(graph, inputs)

        def differentiated(*operands: Any) -> Any:  # planned only where it is needed
            return self.differentiated._run(*operands)

        return differentiated_as(self._run, differentiated)(graph, list(inputs))

    def _run(self, graph: Structure, inputs: Sequence[ArrayLike]) -> Any:
        with jax.named_scope(self.traced.name):
            lowering = Lowering(Matrices(graph), self._matcher_of_kernels, self.sides, inputs)
            return jax.tree.unflatten(self.traced.tree, lowering.results(self.results))

    @functools.cached_property
    def compiled(self) -> Callable[[Structure, Sequence[ArrayLike]], Any]:
        """The program as one compiled call."""
        return jax.jit(self.run)


def _matcher(results: Sequence[Row], parts: Parts, passes: Sequence[str]) -> Matcher:
    return Matcher(count_uses(results), parts, "compact_pairs" in passes)


def match_regions(
    results: Sequence[Row],
    parts: Parts,
    passes: Sequence[str],
    linear_maps: bool = True,
) -> Matcher:
    """Return the patterns of a program, with the regions that gain time."""
    matcher = _matcher(results, parts, passes)
    if backend() == "cpu":  # XLA fuses functions of edges, and stores what gradients need
        return matcher

    def training_time(regions: Mapping[Row, EdgeRegion]) -> float:
        matcher.regions = regions
        return Costs(matcher, results).training()

    candidates = Candidates(results, matcher, linear_maps)
    _with_regions(matcher, choose_regions(candidates, training_time))
    if linear_maps and backend() == "cuda":
        # Most programs never need this module.
        from jax_gnn._program.node_regions import node_regions

        matcher.regions = {**matcher.regions, **node_regions(results, matcher)}
    return matcher


def _with_regions(matcher: Matcher, regions: Mapping[Row, EdgeRegion]) -> Matcher:
    """Give a matcher its regions, and the pairs of these that one walk computes."""
    # Machines without regions never need this module.
    from jax_gnn._program.online_softmax import online_softmaxes

    matcher.regions = regions
    matcher.softmaxes = online_softmaxes(regions.values(), matcher.uses)
    return matcher


def make_plan(
    traced: Traced, parts: Parts, passes: tuple[str, ...], linear_maps: bool = True
) -> Plan:
    """Return the plan with these passes, or with fewer if regions then save more.

    Passes are priced by ops. A region may save more if a linear map is not moved out of it. Passes
    `FOR_REGIONS` are among those of the plan only where they gain. The plan is the best one with
    gradients, unless another one takes clearly less without, or the kernels of its products are
    slow; then that one has it as `trained`.
    """
    others = tuple(name for name in passes if name not in FOR_REGIONS)
    plans = [Plan(traced, parts, others, linear_maps, others)]
    if backend() == "cpu":  # where there are no regions
        return plans[0]
    if replace(plans[0], passes=()).matcher.regions:
        plans = _with_fewer_passes(plans[0])
    first = min(plans, key=lambda plan: plan.training_time)
    for added in _subsets(_useful_for_regions(first, passes))[1:]:
        names = tuple(name for name in passes if name in (*others, *added))
        plans += _with_fewer_passes(replace(plans[0], passes=names, requested=names))
    trained = min(plans, key=lambda plan: plan.training_time * _factor(plan))
    if not all(map(EdgeRegion.has_kernels, trained.regions)):
        if linear_maps:
            return make_plan(traced, parts, passes, linear_maps=False)
        return replace(trained, has_kernels=True)
    best = min(plans, key=lambda plan: plan.time * _factor(plan))
    time = best.time_in_kernels * _factor(best)  # infinite without kernels
    is_better = time < _MAX_SHARE * trained.time_in_kernels * _factor(trained)
    plan = replace(best, trained=trained) if is_better else trained
    if plan.has_linear_maps and plan.time_in_kernels > _PROMISING * plan.time:
        # Rows or matrices leave room for few warps.
        without = make_plan(traced, parts, passes, linear_maps=False)
        if _TIME_OF_EDGE_ARRAYS * without.time_in_kernels < plan.time_in_kernels:
            return replace(without, trained=trained)
    return plan


def _factor(plan: Plan) -> float:
    """Return the multiple of the counted time that attention over rows of edges takes."""
    rows = plan.materialized
    has_softmax = any(isinstance(row.op, Softmax) for row in topological_order(plan.results))
    is_wide = any(
        row.space is Space.EDGE and row.size > 8 and not isinstance(row.op, Input) for row in rows
    )
    return _TIME_OF_EDGE_ATTENTION if has_softmax and is_wide else 1


def _useful_for_regions(plan: Plan, passes: Sequence[str]) -> list[str]:
    """Return the passes for regions that change a plan."""
    changes = {
        "split_softmax": _factor(plan) > 1,
        "inline_pairs": any(map(is_inlinable, topological_order(plan.results))),
    }
    return [name for name in passes if changes.get(name, False)]


def _with_fewer_passes(plan: Plan) -> list[Plan]:
    """Return the plans with all or some of the passes.

    `make_plan` compares plans with and without `FOR_REGIONS`.
    """
    optional = [name for name in plan.passes if name not in (*_ALWAYS, *FOR_REGIONS)]
    return [
        replace(plan, passes=tuple(name for name in plan.passes if name not in omitted))
        for omitted in _subsets(optional)
    ]


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all subsets, small ones first."""
    counts = range(len(names) + 1)
    return [subset for count in counts for subset in itertools.combinations(names, count)]


def _different(plans: Sequence[Plan]) -> list[Plan]:
    """Return the first of the plans that are counted to take the same time."""
    return list({round(plan.training_time, 3): plan for plan in reversed(plans)}.values())


def tune_plan(plan: Plan, graph: Structure, inputs: Sequence[ArrayLike]) -> Plan:
    """Return the fastest of the three plans with the least estimated times."""
    candidates = sorted(_different(_with_fewer_passes(plan)), key=lambda plan: plan.time)[:3]
    return min(candidates, key=lambda plan: _measure(plan, graph, inputs))


def _measure(plan: Plan, graph: Structure, inputs: Sequence[ArrayLike]) -> float:
    """Return the seconds of a call."""
    wait: Callable[[Any], Any] = jax.block_until_ready
    wait(plan.compiled(graph, inputs))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        wait(plan.compiled(graph, inputs))
        times.append(time.perf_counter() - start)
    return min(times)
