"""Running a lifted function: one program for the edges of each space and level, all else as it was.

Equations on nodes run level by level. A program follows the equations of its level: its reductions
are read by the next level only.
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import row_wise, take
from jax_gnn._core.ids import is_traced
from jax_gnn._ops.edge_region.xla import NEUTRAL
from jax_gnn._program.backend import backend
from jax_gnn._program.lift_cost import (
    Times,
    pays,
    permutation_times,
    program_times,
    sort_times,
    sum_pays,
    sum_times,
)
from jax_gnn._program.lift_find import Analysis, EdgeSpace
from jax_gnn._program.lift_ids import SOFTMAX, Flat, Segment, Use, flatten
from jax_gnn._program.lift_level import LevelProgram
from jax_gnn._program.lift_masks import with_masks
from jax_gnn._program.lift_order import (
    Context,
    EdgeOrder,
    abstract_order,
    order_edges,
    order_of_graph,
)
from jax_gnn._program.lift_rows import Equation, is_var, literal, needed_equations
from jax_gnn._program.lift_softmax import with_softmaxes
from jax_gnn._program.lift_sums import look_up, segments_of, sum_gains, sum_rows, with_sums
from jax_gnn._program.trace import function_of, scan_sizes


class Plan:
    """A jaxpr and its programs.

    Attributes:
        analysis: The edge spaces and values.
    """

    def __init__(self, flat: Flat, name: str, refused: Mapping[Any, str]) -> None:
        """Make a plan.

        Args:
            flat: The jaxpr.
            name: Name of the function.
            refused: Why edges are not lifted, by `EdgeSpace.key`.
        """
        self.flat = flat
        self._written = flat  # where softmaxes are as they are written
        self.analysis = Analysis(self.flat, refused)
        self._name = name
        self._refused = refused
        self._settled: dict[Any, Plan] = {}
        self._loops: dict[int, dict[str, Any]] = {}
        for eqn in self.flat.eqns:
            if eqn.primitive.name in ("scan", "while", "cond"):
                plans = {
                    key: [Plan.of(x, name) for x in (v if isinstance(v, tuple) else (v,))]
                    for key, v in eqn.params.items()
                    if key in ("jaxpr", "body_jaxpr", "cond_jaxpr", "branches")
                }
                if any(plan.is_lifted for group in plans.values() for plan in group):
                    self._loops[id(eqn)] = plans
        self._sender_sums: dict[int, list[Equation]] = defaultdict(list)
        self._programs = self._make_programs()
        self._sums = self.analysis.other_sums() | self.analysis.lookups()
        self._lifted_sums = {*self._sums}
        self._steps = self._make_steps()
        self._drops = {space: self._dropping_use(space) for space in self.analysis.spaces}

    @classmethod
    def of(cls, closed: jex.ClosedJaxpr, name: str) -> Plan:
        """Return the plan that lifts all edges."""
        written = with_sums(with_masks(flatten(closed)))
        flat = with_softmaxes(written)
        plan = cls(flat, name, {})
        if flat is not written:
            plan._written = written
            if not all(map(plan._is_softmax_of_edges, flat.eqns)):
                plan = cls(written, name, {})
        return plan

    def _is_softmax_of_edges(self, eqn: Equation) -> bool:
        """Whether an equation is no softmax, or one of edges that drop ids out of range."""
        edge = self.analysis.edges.get(eqn.outvars[0]) if eqn.outvars else None
        return eqn.primitive is not SOFTMAX or (
            edge is not None and self._drops[edge.space] is not None
        )

    @property
    def is_lifted(self) -> bool:
        """Whether there is a program or a sum, perhaps in a loop."""
        edges = self._programs or self._sender_sums
        return bool(edges or self._loops or self._lifted_sums)

    def _without_sums(self) -> Plan:
        """Return the plan with sums and lookups by ids left to JAX, but for those that gain."""
        plan = copy.copy(self)
        plan._lifted_sums = {
            key
            for key, use in self._sums.items()
            if use.eqn.outvars[0] in self.flat.products
            or sum_pays(use.num_edges, use.end.num_nodes, use.moved)
        }
        return plan

    # --- Counts --------------------------------------------------------------------------------

    def settled(self, arguments: Sequence[Any], context: Context) -> Plan:
        """Return the plan that lifts the edges whose programs are counted to gain time.

        Args:
            arguments: The first arguments, all of them or those that each iteration of a loop
                reads: edges whose ids are functions of these alone are sorted before.
            context: The context of the run.
        """
        if context.deterministic or not (self.analysis.spaces or self._sums):
            return self
        values = {**self.flat.consts, **dict(zip(self.flat.invars, arguments, strict=False))}
        is_loop = len(arguments) < len(self.flat.invars)
        free = {var for var, x in values.items() if is_loop or not is_traced(x)}
        is_sorted = tuple(
            context.graph is not None or all(self._leaves(end.root) <= free for end in space.ends)
            for space in self.analysis.spaces
        )
        key = is_sorted, backend()
        if key not in self._settled:
            refused = {}
            for space, is_free in zip(self.analysis.spaces, is_sorted, strict=True):
                lifted, plain = self._times(space, is_free)
                if not pays(lifted, plain):
                    refused[space.key] = (
                        f"its edges are counted to take {lifted} as programs; and {plain} as they "
                        "are"
                    )
            refused = {**self._refused, **refused}
            is_self = refused == self._refused
            plan = self if is_self else Plan(self._written, self._name, refused)
            self._settled[key] = plan._without_sums()
        return self._settled[key]

    def _times(self, space: EdgeSpace, is_sorted: bool) -> tuple[Times, Times]:
        """Return the counted times of a space's programs and orders, and of its equations."""
        num_edges = space.num_edges
        lifted, plain = Times() if is_sorted else sort_times(num_edges), Times()
        order = abstract_order(space, self._drops[space], is_sorted)
        permuted: dict[Any, Any] = {}
        for program in (x for level in self._programs.values() for x in level if x.space is space):
            times = program_times(program.planned(order))
            lifted, plain = lifted.plus(times[0]), plain.plus(times[1])
            permuted |= {key: key[0].aval for key in program.edges}
            permuted |= {var: var.aval for var in program.stored if var in self.escaping}
        for eqn in (eqn for level in self._sender_sums.values() for eqn in level):
            its_space, use = self.analysis.scatters[id(eqn)]
            if its_space is space and not self.analysis.is_third(use):
                times = sum_times(num_edges, eqn.invars[2].aval)
                lifted, plain = lifted.plus(times[0]), plain.plus(times[1])
        return lifted.plus(permutation_times(num_edges, permuted.values())), plain

    # --- Plan ----------------------------------------------------------------------------------

    def _edge_level(self, var: Any) -> int:
        return self.analysis.levels[id(self.analysis.edges[var].eqn)]

    @functools.cached_property
    def _is_view(self) -> dict[Any, bool]:
        """Whether each edge value is read off gathered rows or arguments, and is not stored."""
        views: dict[Any, bool] = {}
        for eqn in self.flat.eqns:
            edge = self.analysis.edges.get(eqn.outvars[0]) if eqn.outvars else None
            if edge is not None:
                reads_views = all(views.get(v, True) for v in filter(is_var, eqn.invars))
                is_view = edge.row is None or (edge.row.is_view and reads_views)
                views |= dict.fromkeys(eqn.outvars, is_view)
        return views

    def _make_programs(self) -> dict[int, list[LevelProgram]]:
        """Return the programs of each level."""
        analysis = self.analysis
        scatters: dict[Any, list[Equation]] = defaultdict(list)
        stored: dict[Any, dict[Any, None]] = defaultdict(dict)
        self.escaping: dict[Any, None] = {}
        for eqn in self.flat.eqns:
            if id(eqn) in analysis.scatters:
                space, level = analysis.scatters[id(eqn)][0], analysis.levels[id(eqn)]
                if analysis.is_reduction(eqn):
                    scatters[space, level].append(eqn)
                else:
                    self._sender_sums[level].append(eqn)
            for var in filter(is_var, eqn.invars):
                if var not in analysis.edges:
                    continue
                edge, level = analysis.edges[var], self._edge_level(var)
                is_whole = sum(v is var for v in eqn.invars) > sum(
                    v is var for v, _, _ in analysis.wanted_axes(eqn)
                )
                is_later = analysis.levels[id(eqn)] > level and not self._is_view[var]
                is_sender_sum = id(eqn) in analysis.scatters and not analysis.is_reduction(eqn)
                if is_whole:
                    self.escaping[var] = None
                if is_whole or is_later or is_sender_sum:
                    stored[edge.space, level][var] = None
        for var in filter(is_var, self.flat.outvars):
            if var in analysis.edges:
                self.escaping[var] = None
                stored[analysis.edges[var].space, self._edge_level(var)][var] = None
        programs: dict[int, list[LevelProgram]] = defaultdict(list)
        for space, level in dict.fromkeys((*scatters, *stored)):

            def is_computed(var: Any, level: int = level) -> bool:
                return self._is_view[var] or self._edge_level(var) == level

            key = space, level
            programs[level].append(
                LevelProgram(
                    analysis, space, scatters[key], [*stored[key]], is_computed, self._name
                )
            )
        return dict(programs)

    def _dropping_use(self, space: EdgeSpace) -> Use | None:
        """Return a reduction that drops edges of which nothing else is read, or None."""
        uses = [use for its_space, use in self.analysis.scatters.values() if its_space is space]
        escapes = any(self.analysis.edges[var].space is space for var in self.escaping)
        is_one = len({(use.key, use.wraps, use.mode) for use in uses}) == 1
        if escapes or not is_one or uses[0].mode != "drop":
            return None
        gathers = [edge.use for edge in self.analysis.edges.values() if edge.space is space]
        if uses[0].wraps and any(use is not None and not use.wraps for use in gathers):
            return None  # negative ids are no padding, and out of range of a gather
        return uses[0] if self.analysis.is_reduction(uses[0].eqn) else None

    def _make_steps(self) -> dict[int, list[Segment | Equation]]:
        """Return the equations that run as they were, by level."""
        analysis, needed = self.analysis, set(filter(is_var, self.flat.outvars))
        for programs in self._programs.values():
            for program in programs:
                needed |= {var for var, *_ in (*program.nodes, *program.edges)} | {*program.shared}
        for space in analysis.spaces:
            needed |= {space.senders.root, space.receivers.root}
        kept = []
        for eqn in reversed(self.flat.eqns):
            if id(eqn) in analysis.scatters:
                is_third = analysis.is_third(analysis.scatters[id(eqn)][1])
                needed |= set(filter(is_var, eqn.invars[: 1 + is_third]))
                needed |= {v for v in eqn.invars[2:] if is_var(v) and v not in analysis.edges}
            elif not any(v in analysis.edges for v in eqn.outvars) and (
                any(v in needed for v in eqn.outvars)
            ):
                kept.append(eqn)
                needed |= set(filter(is_var, eqn.invars))
        steps: dict[int, list[Any]] = defaultdict(list)
        for eqn in reversed(kept):
            group = steps[max(analysis.levels[v] for v in eqn.outvars)]
            if id(eqn) in self._loops or id(eqn) in self._sums:
                group.append(eqn)
            elif group and isinstance(group[-1], list):
                group[-1].append(eqn)
            else:
                group.append([eqn])
        return {
            level: [self.flat.segment(x, needed) if isinstance(x, list) else x for x in group]
            for level, group in steps.items()
        }

    # --- Run -----------------------------------------------------------------------------------

    def run(self, arguments: Sequence[Any], context: Context) -> list[Any]:
        """Return the results of the jaxpr, with the edges lifted where that gains time."""
        return self.settled(arguments, context).evaluate(arguments, context)

    def evaluate(self, arguments: Sequence[Any], context: Context) -> list[Any]:
        """Return the results of the jaxpr, with all edges of the plan lifted."""
        values: dict[Any, Any] = {**self.flat.consts}
        values.update(zip(self.flat.invars, arguments, strict=True))
        known = {var: x for var, x in values.items() if not is_traced(x)}
        for level in sorted({*self._steps, *self._programs, *self._sender_sums}):
            for step in self._steps.get(level, ()):
                if isinstance(step, Segment):
                    outs = step.function(*(values[v] for v in step.inputs))
                    values.update(zip(step.outputs, outs, strict=True))
                elif id(step) in self._sums:
                    self._sum(step, values, known)
                else:
                    values.update(zip(step.outvars, self._loop(step, values, context), strict=True))
            for program in self._programs.get(level, ()):
                self._run_program(program, values, known, context)
            for eqn in self._sender_sums.get(level, ()):
                self._sum_at_senders(eqn, values, known, context)
        return [values[v] if is_var(v) else literal(v) for v in self.flat.outvars]

    def _run_program(
        self, program: LevelProgram, values: dict[Any, Any], known: dict[Any, Any], context: Context
    ) -> None:
        analysis, space = self.analysis, program.space
        order = self._order(space, values, known, context)
        reduced, stored = program.run(values, order, context.explanations)
        for eqn, y in zip(program.scatters, reduced, strict=True):
            self._assign(eqn, y, values)
        for var, y in zip(program.stored, stored, strict=True):
            values["stored", var] = y
            if var in self.escaping:
                values[var] = jnp.moveaxis(order.to_input(y), 0, analysis.edges[var].axis)

    def _sum_at_senders(
        self, eqn: Equation, values: dict[Any, Any], known: dict[Any, Any], context: Context
    ) -> None:
        """Run a scatter by the other end, or a third one, of rows in the order of the edges."""
        space, use = self.analysis.scatters[id(eqn)]
        order, var = self._order(space, values, known, context), eqn.invars[2]
        y = values["stored", var] if var in self.analysis.edges else order.from_input(values[var])
        if self.analysis.is_third(use):
            ids = values[eqn.invars[1]]
            if order.edge_ids is not None:
                is_edge = order.edge_ids[:, None] >= 0
                ids = jnp.where(is_edge, take(ids, order.edge_ids), use.end.num_nodes)
            is_lifted = context.deterministic or eqn.outvars[0] in self.flat.products
            if is_lifted and use.reduce == "sum" and use.mode == "drop":
                self._assign(eqn, sum_rows(y, segments_of(use, ids)), values)
                return
            values[eqn.outvars[0]] = self._original(eqn, values[eqn.invars[0]], ids, y)
            return
        if order.has_mask(use, False, space.wraps[space.senders]):
            y = jnp.where(
                row_wise(order.mask(False), y), y, jnp.asarray(NEUTRAL[use.reduce], y.dtype)
            )
        self._assign(eqn, order.sum_at_senders(y, use.reduce), values)

    def _sum(self, eqn: Equation, values: dict[Any, Any], known: dict[Any, Any]) -> None:
        """Run a sum or lookup by ids that is of no lifted edges."""
        use = self._sums[id(eqn)]
        operands = [values[v] if is_var(v) else literal(v) for v in eqn.invars]
        is_known = self._leaves(use.end.root) <= known.keys()
        is_sorted = is_known and sum_gains(use, self._ids(use.end.root, values, known))
        if not is_sorted and id(eqn) not in self._lifted_sums:
            values[eqn.outvars[0]] = self._original(eqn, *operands)
            return
        key = "segments", use.key, use.wraps, use.mode == "clip", is_sorted
        if key not in values:  # sorted once for all uses of the ids
            values[key] = segments_of(use, operands[1], is_sorted)
        if use.reduce:
            self._assign(eqn, sum_rows(operands[2], values[key]), values)
        else:
            values[eqn.outvars[0]] = look_up(use, operands[0], operands[1], values[key])

    def _original(self, eqn: Equation, *operands: Any) -> Any:
        return function_of(eqn, self.flat.template)[0](*operands)[0]

    def _assign(self, eqn: Equation, y: Array, values: dict[Any, Any]) -> None:
        """Set the result of a scatter: the initial values with the reduction."""
        initial, out = eqn.invars[0], eqn.outvars[0]
        use = self.analysis.uses[id(eqn)]
        is_neutral = self.analysis.constant(initial) == NEUTRAL[use.reduce]
        values[out] = y.astype(out.aval.dtype) if is_neutral else values[initial] + y

    # --- Orders --------------------------------------------------------------------------------

    def _order(
        self, space: EdgeSpace, values: dict[Any, Any], known: dict[Any, Any], context: Context
    ) -> EdgeOrder:
        """Return the order of a space's edges, which is made once."""
        if space in context.orders:
            return context.orders[space][1]
        ends = space.ends
        ids = [self._ids(end.root, values, known) for end in ends]
        drop = self._drops[space]
        key: Any = tuple(
            (id(x), end.num_nodes, space.wraps.get(end)) for x, end in zip(ids, ends, strict=True)
        )
        key += (None if drop is None else drop.wraps, space.fills)
        if key not in context.orders:
            order = None
            if context.graph is not None:
                order = order_of_graph(space, context.graph, ids[0], ids[1], drop is not None)
            context.orders[key] = ids, order or order_edges(space, drop, *ids)
        context.orders[space] = context.orders[key]
        return context.orders[key][1]

    def _ids(self, var: Any, values: dict[Any, Any], known: dict[Any, Any]) -> Any:
        """Return ids, computed outside of a trace if what they come from is known."""
        if var in known:
            return known[var]
        eqns = self._origin(var)
        if not eqns or not self._leaves(var) <= known.keys():
            return values[var]
        with jax.ensure_compile_time_eval():
            segment = self.flat.segment(eqns, {var})
            known[var] = segment.function(*(known[v] for v in segment.inputs))[0]
        return known[var]

    def _origin(self, var: Any) -> list[Equation]:
        """Return the equations that make a variable of the arguments, in order."""
        return needed_equations(self.flat.eqns, [var])

    def _leaves(self, var: Any) -> set[Any]:
        """Return the arguments that a variable is made of."""
        eqns = self._origin(var)
        leaves = {var, *(v for eqn in eqns for v in eqn.invars if is_var(v))}
        return leaves - {v for eqn in eqns for v in eqn.outvars}

    def _hoist(self, operands: Sequence[Any], context: Context) -> None:
        """Sort the edges whose ids a loop does not change, before it.

        Args:
            operands: The first arguments, which each iteration reads.
            context: The context of the body.
        """
        values = {**self.flat.consts, **dict(zip(self.flat.invars, operands, strict=False))}
        known = {var: x for var, x in values.items() if not is_traced(x)}
        for space in self.analysis.spaces:
            for end in dict.fromkeys(space.ends):
                eqns, leaves = self._origin(end.root), self._leaves(end.root)
                if not leaves <= values.keys():
                    break
                if eqns and leaves <= known.keys():
                    self._ids(end.root, values, known)
                elif eqns:
                    segment = self.flat.segment(eqns, {end.root})
                    (values[end.root],) = segment.function(*(values[v] for v in segment.inputs))
            else:
                self._order(space, values, known, context)

    # --- Loops ---------------------------------------------------------------------------------

    def _loop(self, eqn: Equation, values: dict[Any, Any], context: Context) -> Sequence[Any]:
        """Run a loop or branch with its body lifted."""
        operands = [values[v] if is_var(v) else literal(v) for v in eqn.invars]
        params, plans = eqn.params, self._loops[id(eqn)]
        if eqn.primitive.name == "cond":
            branches = [
                functools.partial(lambda plan: tuple(plan.run(operands[1:], context.inner())), plan)
                for plan in plans["branches"]
            ]
            index = operands[0]
            results: Sequence[Any] = jax.lax.switch(index.astype(jnp.int32), branches)
            return results
        if eqn.primitive.name == "while":
            num_cond = params["cond_nconsts"]
            num_consts = num_cond + params["body_nconsts"]
            (condition,), (body,) = plans["cond_jaxpr"], plans["body_jaxpr"]
            consts = operands[num_cond:num_consts]
            outer = context.inner()
            body = body.settled(consts, outer)
            body._hoist(consts, outer)
            return jax.lax.while_loop(
                lambda carry: condition.run([*operands[:num_cond], *carry], context.inner())[0],
                lambda carry: tuple(body.evaluate([*consts, *carry], outer.inner())),
                tuple(operands[num_consts:]),
            )
        (body,), (num_consts, num_carry) = plans["jaxpr"], scan_sizes(eqn)
        consts, carry = operands[:num_consts], operands[num_consts:][:num_carry]
        outer = context.inner()
        body = body.settled(consts, outer)
        body._hoist(consts, outer)

        def step(carry: Any, xs: Any) -> Any:
            outs = body.evaluate([*consts, *carry, *xs], outer.inner())
            return tuple(outs[:num_carry]), tuple(outs[num_carry:])

        options = {key: params[key] for key in ("length", "reverse", "unroll")}
        xs = tuple(operands[num_consts + num_carry :])
        final, ys = jax.lax.scan(step, tuple(carry), xs, **options)
        return [*final, *ys]

    # --- Explanations --------------------------------------------------------------------------

    def explanations(self) -> list[str]:
        """Return a line for each gather and scatter that stays, also in loops that ran."""
        lines = self.analysis.explanations(self._lifted_sums)
        for plans in self._loops.values():
            for plan in (plan for group in plans.values() for plan in group):
                last = [plan, *plan._settled.values()][-1]
                lines += last.explanations()
        return lines
