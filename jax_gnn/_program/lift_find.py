"""The analysis of `jax_gnn.lift`: which values of a jaxpr have a row for each edge.

A gather of rows by an array of ids makes edges of nodes, and a scatter makes nodes of edges. Both
are *uses* of the ids. Id arrays of one length whose rows meet in an equation are the ends of one
*edge space*. Each edge value has a *level*: the number of reductions between it and the arguments.
All edge values of a space and a level are computed by one program (`lift_run`).
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jax_gnn._core.arrays import FLOATS
from jax_gnn._program.lift_ids import CLIPS, End, Flat, Indexing, Use, has_indexing
from jax_gnn._program.lift_rows import (
    Equation,
    RowEquation,
    choices,
    is_var,
    row_equation,
    uniform_row,
)
from jax_gnn._program.rows import DisjointSets
from jax_gnn._program.trace import inner_jaxprs, line_of


@dataclass(eq=False)
class EdgeSpace:
    """The edges between two ends.

    Attributes:
        num_edges: Number of edges.
        receivers: The end of the reductions.
        senders: The other end; `receivers` if there is none.
        key: The keys of uses of both.
        wraps: For each end, whether negative ids count from the end.
        fills: Whether a gather by senders has a value of its own for ids out of range.
    """

    num_edges: int
    receivers: End
    senders: End
    key: Any
    wraps: dict[End, bool] = field(default_factory=dict)
    fills: bool = False

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends."""
        return self.senders, self.receivers


class EdgeValue(NamedTuple):
    """A value with a row for each edge.

    Attributes:
        space: The edges.
        axis: Their axis.
        use: The gather that makes it; None for other equations.
        row: The equation for one edge; None for a gather.
        eqn: The equation.
        axes: Axis of the edges in each operand.
    """

    space: EdgeSpace
    axis: int
    use: Use | None
    row: RowEquation | None
    eqn: Equation
    axes: tuple[int | None, ...]


class Analysis(Indexing):
    """The edge spaces, edge values and levels of a jaxpr.

    Attributes:
        edges: The edge values.
        scatters: The reductions of edges, by equation, with their space.
        spaces: The edge spaces.
        levels: Level of each variable that is not an edge value, and of each edge equation.
    """

    def __init__(self, flat: Flat, refused: Mapping[Any, str]) -> None:
        """Analyse a jaxpr.

        Args:
            flat: The jaxpr.
            refused: Why spaces are not lifted, by `EdgeSpace.key`.
        """
        super().__init__(flat)
        self._refused = refused
        self.edges: dict[Any, EdgeValue] = {}
        self.scatters: dict[int, tuple[EdgeSpace, Use]] = {}
        self._third_ends: dict[Use, EdgeSpace] = {}
        self._space_of = self._find_spaces()
        self.spaces = list(dict.fromkeys(self._space_of.values()))
        if self.spaces:
            spaces = self._space_of | self._third_ends
            self._find_edges(lambda use: spaces.get(use), None)
            self._close_backwards()
            self._demote()
        self.levels = self._find_levels()

    # --- Spaces --------------------------------------------------------------------------------

    def _find_spaces(self) -> dict[Use, EdgeSpace]:
        """Return the space of each use that is lifted."""
        groups = DisjointSets()
        self._find_edges(lambda use: groups.of((use.key, use.num_edges)), groups)
        by_group: dict[Any, list[Use]] = defaultdict(list)
        for use in self.uses.values():
            by_group[groups.of((use.key, use.num_edges))].append(use)
        chosen = {group: _choose_ends(uses) for group, uses in by_group.items()}
        edges = self.edges
        self.edges = {}
        by_edge = {*edges}  # and all that is computed from edges
        for eqn in self.flat.eqns:
            if any(v in by_edge for v in eqn.invars if is_var(v)):
                by_edge.update(eqn.outvars)
        # Nodes that are summed by graph have one end, too. They stay nodes.
        two_ends = [ends for ends in chosen.values() if ends[0] != ends[1]]
        node_counts = {key[1] for ends in two_ends for key in ends}
        result = {}
        for group, uses in by_group.items():
            receivers, senders = chosen[group]
            reason = self._refused.get((receivers, senders), "")
            if receivers == senders and uses[0].num_edges in node_counts:
                reason = "its rows are nodes, which have one id each"
            elif any(use.end.root in by_edge for use in uses if use.key in (receivers, senders)):
                reason = "its ids are computed from rows of edges"
            elif self._is_trivial(uses, edges):
                reason = "nothing is computed between gathers and scatters"
            first: dict[Any, End] = {}
            for use in uses:
                first.setdefault(use.key, use.end)
            key = receivers, senders
            space = EdgeSpace(uses[0].num_edges, first[receivers], first[senders], key)
            for use in uses:
                if use.key not in (receivers, senders):
                    self.left[id(use.eqn)] = use.eqn, "the edges have two other ends"
                    is_plain = use.end.root not in by_edge
                    if use.reduce not in ("", "softmax") and is_plain and not reason:
                        self._third_ends[use] = space
                elif reason:
                    self.left[id(use.eqn)] = use.eqn, reason
                else:
                    result[use] = space
        return self._with_one_wrap(result)

    def _with_one_wrap(self, spaces: dict[Use, EdgeSpace]) -> dict[Use, EdgeSpace]:
        """Set whether negative ids count from the end: if any use says so.

        Other uses that drop them are masked. Those that clip them read other rows, and are left.
        """
        for use, space in spaces.items():
            end = self.end_of(use, space)
            space.wraps[end] = use.wraps or space.wraps.get(end, False)
            space.fills |= use.mode == "fill" and end is space.senders
        result = {}
        for use, space in spaces.items():
            if use.mode in CLIPS and use.wraps != space.wraps[self.end_of(use, space)]:
                self.left[id(use.eqn)] = use.eqn, "it takes negative ids unlike other indices"
            else:
                result[use] = space
        return result

    def end_of(self, use: Use, space: EdgeSpace) -> End:
        """Return the end of a space that a use reads or writes."""
        receivers = self.number(space.receivers.root), space.receivers.num_nodes
        return space.receivers if use.key == receivers else space.senders

    def _is_trivial(self, uses: Sequence[Use], edges: dict[Any, EdgeValue]) -> bool:
        """Whether nothing is reduced, and gathered rows meet in no equation."""
        if any(use.reduce for use in uses):
            return False
        gathered = {use.eqn.outvars[0] for use in uses}
        return not any(
            sum(v in gathered for v in edge.eqn.invars if is_var(v)) > 1
            for edge in edges.values()
            if edge.row is not None
        )

    # --- Edge values ---------------------------------------------------------------------------

    def _find_edges(self, space_of: Callable[[Use], Any], groups: DisjointSets | None) -> None:
        """Find the edge values behind gathers; joins the groups of ids that meet, if not None."""
        edges = self.edges
        for eqn in self.flat.eqns:
            use = self.uses.get(id(eqn))
            space = None if use is None else space_of(use)
            if use is not None and space is not None:
                if use.reduce == "softmax":
                    self._add_softmax(use, space, groups)
                elif use.reduce:
                    update = edges.get(eqn.invars[2])
                    if groups is not None:
                        if update is not None and update.axis == 0:
                            groups.join(update.space, (use.key, use.num_edges))
                    elif (update is None and use not in self._third_ends) or (
                        update is not None and update.axis == 0 and update.space is space
                    ):
                        self.scatters[id(eqn)] = space, use
                else:
                    edges[eqn.outvars[0]] = EdgeValue(space, 0, use, None, eqn, ())
                continue
            present = [edges[v] for v in eqn.invars if is_var(v) and v in edges]
            if not present or eqn.effects:
                continue
            num_edges = {
                v.aval.shape[edges[v].axis] for v in filter(is_var, eqn.invars) if v in edges
            }
            spaces = {id(edge.space): edge.space for edge in present}
            if len(num_edges) > 1 or (groups is None and len(spaces) > 1):
                continue
            self._add(eqn, present[0].space, num_edges.pop(), groups)

    def _add_softmax(self, use: Use, space: Any, groups: DisjointSets | None) -> None:
        """Make a softmax over the edges of each receiver one of edges."""
        score = self.edges.get(use.eqn.invars[0])
        if groups is not None:
            space = groups.of((use.key, use.num_edges))
            if score is not None:
                groups.join(score.space, space)
        elif self.end_of(use, space) is not space.receivers:
            return
        if score is None or (score.axis == 0 and (groups is not None or score.space is space)):
            self._set(use.eqn, space, RowEquation((0,), lambda x: [x]), (0,))

    def _add(self, eqn: Equation, space: Any, size: int, groups: DisjointSets | None) -> bool:
        """Make an equation one of edges, if there is a rule for it."""
        known = [self.edges[v].axis if is_var(v) and v in self.edges else None for v in eqn.invars]
        for axes in choices(eqn, known, size):
            row = row_equation(eqn, axes, size)
            if row is not None:
                self._set(eqn, space, row, axes)
                if groups is not None:
                    for var in filter(is_var, eqn.invars):
                        if var in self.edges:
                            groups.join(self.edges[var].space, space)
                return True
        return False

    def _set(self, eqn: Equation, space: Any, row: RowEquation, axes: Sequence[int | None]) -> None:
        for var, axis in zip(eqn.outvars, row.axes, strict=True):
            self.edges[var] = EdgeValue(space, axis, None, row, eqn, tuple(axes))

    def wanted_axes(self, eqn: Equation) -> Iterable[tuple[Any, EdgeSpace, int]]:
        """Yield the operands of an equation that it takes by edge, with space and axis."""
        if id(eqn) in self.scatters:
            yield eqn.invars[2], self.scatters[id(eqn)][0], 0
        edge = self.edges.get(eqn.outvars[0]) if eqn.outvars else None
        if edge is not None and edge.row is not None:
            for var, axis in zip(eqn.invars, edge.axes, strict=True):
                if axis is not None and is_var(var):
                    yield var, edge.space, axis

    def _close_backwards(self) -> None:
        """Make equations edge equations whose results nothing but edge equations reads."""
        for eqn in reversed(self.flat.eqns):
            if len(eqn.outvars) != 1 or eqn.outvars[0] in self.edges or eqn.effects:
                continue
            var = eqn.outvars[0]
            if id(eqn) in self.uses and self.uses[id(eqn)] in self._space_of:
                continue
            wanted: set[Any] = set()
            for user in self.readers[var]:
                if user is None:
                    wanted.add(None)
                    break
                places = [(s, a) for v, s, a in self.wanted_axes(user) if v is var]
                shared = sum(v is var for v in user.invars) > len(places)
                wanted |= {None} if shared else set(places)
            if len(wanted) != 1 or None in wanted:
                continue
            space, axis = wanted.pop()
            if space is None:
                continue
            row = uniform_row(eqn, axis)
            if row is not None:
                self._set(eqn, space, row, (None,) * len(eqn.invars))
                continue
            known = [None] * len(eqn.invars)
            for axes in choices(eqn, known, space.num_edges):
                if all(x is None for x in axes):
                    continue
                row = row_equation(eqn, axes, space.num_edges)
                if row is not None and row.axes == (axis,):
                    self._set(eqn, space, row, axes)
                    break

    def _demote(self) -> None:
        """Leave gathers that no edge equation reads."""
        for eqn in self.flat.eqns:
            use = self.uses.get(id(eqn))
            if use is None or use.reduce or use not in self._space_of:
                continue
            var = eqn.outvars[0]
            users = [user for user in self.readers[var] if user is not None]
            if not any(v is var for user in users for v, _, _ in self.wanted_axes(user)):
                del self.edges[var], self._space_of[use]
                self.left[id(eqn)] = eqn, "nothing is computed from it for each edge"

    @functools.cached_property
    def constants(self) -> dict[Any, np.ndarray]:
        """The constants that are part of programs, of the arrays that edges read as a whole."""
        return self.known_arrays(
            var
            for edge in self.edges.values()
            for var, axis in zip(edge.eqn.invars, edge.axes, strict=False)
            if is_var(var) and axis is None and edge.row is not None
        )

    # --- Levels --------------------------------------------------------------------------------

    def _find_levels(self) -> dict[Any, int]:
        """Return the level of each variable of no edges, and of each edge equation, by its id."""
        levels: dict[Any, int] = defaultdict(int)

        def level_of(var: Any, by_edge: bool) -> int:
            edge = self.edges.get(var) if is_var(var) else None
            if edge is None:
                return levels[var] if is_var(var) else 0
            return levels[id(edge.eqn)] + (not by_edge)

        for eqn in self.flat.eqns:
            by_edge = {v for v, _, _ in self.wanted_axes(eqn)}
            if eqn.outvars and eqn.outvars[0] in self.edges:
                levels[id(eqn)] = max(
                    (level_of(v, is_var(v) and v in by_edge) for v in eqn.invars), default=0
                )
                continue
            if id(eqn) in self.scatters:
                ids = max(level_of(v, False) for v in eqn.invars[1:2])
                levels[id(eqn)] = max(level_of(eqn.invars[2], True), ids)
                level = max(levels[id(eqn)] + 1, level_of(eqn.invars[0], False))
            else:
                level = max((level_of(v, False) for v in eqn.invars), default=0)
            levels.update(dict.fromkeys(eqn.outvars, level))
        self._sink(levels)
        return levels

    def _sink(self, levels: dict[Any, int]) -> None:
        """Move edge equations to the first level that reads them, so that less is stored."""
        for eqn in reversed(self.flat.eqns):
            if not eqn.outvars or eqn.outvars[0] not in self.edges:
                continue
            readers = []
            for var in eqn.outvars:
                for user in self.readers[var]:
                    is_edge = user is not None and any(
                        v is var for v, _, _ in self.wanted_axes(user)
                    )
                    if not is_edge or (id(user) in self.scatters and not self.is_reduction(user)):
                        readers.append(levels[id(eqn)])  # it is stored anyway
                    else:
                        readers.append(levels[id(user)])
            levels[id(eqn)] = max(levels[id(eqn)], min(readers, default=levels[id(eqn)]))

    def is_reduction(self, eqn: Equation | None) -> bool:
        """Whether an equation is a reduction into receivers."""
        entry = None if eqn is None else self.scatters.get(id(eqn))
        return (
            entry is not None
            and not self.is_third(entry[1])
            and self.end_of(entry[1], entry[0]) is entry[0].receivers
        )

    def is_third(self, use: Use) -> bool:
        """Whether a scatter is by a third array of ids, such as the graph of each edge."""
        return use in self._third_ends

    def other_sums(self) -> dict[int, Use]:
        """Return the sums by ids that are of no lifted edges and drop ids out of range."""
        return {
            key: use
            for key, use in self.uses.items()
            if use.reduce == "sum" and use.mode == "drop" and key not in self.scatters
        }

    def lookups(self) -> dict[int, Use]:
        """Return the gathers of rows of floats that are no edges, such as those of embeddings."""
        return {
            key: use
            for key, use in self.uses.items()
            if not use.reduce and use.moved.dtype in FLOATS and use.eqn.outvars[0] not in self.edges
        }

    def explanations(self, lifted: Collection[int] = ()) -> list[str]:
        """Return a line for each gather and scatter that stays, but for those by other ids."""
        lines = []
        for key, (eqn, reason) in self.left.items():
            if key in lifted or eqn.outvars[0] in self.edges:
                continue
            where = line_of(eqn) or "a line of a library"
            lines.append(f"{where}: {eqn.primitive.name} is left to JAX: {reason}")
        for eqn in self.flat.eqns:
            if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call") and any(
                map(has_indexing, inner_jaxprs(eqn.params.values()))
            ):
                lines.append(
                    f"{line_of(eqn)}: {eqn.primitive.name} is left to JAX: it has a derivative "
                    "rule, and gathers or scatters"
                )
        return list(dict.fromkeys(lines))


def _choose_ends(uses: Sequence[Use]) -> tuple[Any, Any]:
    """Return the keys of the receivers and of the senders: the ends with most elements."""
    scattered: Counter[Any] = Counter()
    total: Counter[Any] = Counter()
    for use in uses:
        scattered[use.key] += use.moved.size if use.reduce else 0
        total[use.key] += use.moved.size
    receivers = (scattered if any(scattered.values()) else total).most_common(1)[0][0]
    others = [key for key, _ in total.most_common() if key != receivers]
    return receivers, (others or [receivers])[0]
