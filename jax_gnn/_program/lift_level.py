"""The program of one level of edge values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._ops.edge_region.xla import NEUTRAL
from jax_gnn._program.api import Program
from jax_gnn._program.backend import backend
from jax_gnn._program.lift_find import Analysis, EdgeSpace, EdgeValue
from jax_gnn._program.lift_ids import SOFTMAX, Use, fill_value
from jax_gnn._program.lift_order import NUM_GHOSTS, EdgeOrder
from jax_gnn._program.lift_rows import Equation, is_var, literal
from jax_gnn._program.passes import PASSES
from jax_gnn._program.plan import Plan
from jax_gnn._program.trace import Edge, EdgeView, Node


class LevelProgram:
    """The edge values of a space and a level.

    Attributes:
        space: The edges.
        scatters: The reductions that the program computes.
        stored: The edge values that others read.
        nodes: The nodes' arrays that it reads: variable, end, and what ids out of range read.
        edges: The arrays of edges that it reads, in the order of the input, with the edges' axis.
        earlier: The edge values of earlier levels that it reads.
        shared: The arrays that it reads as a whole.
    """

    def __init__(
        self,
        analysis: Analysis,
        space: EdgeSpace,
        scatters: Sequence[Equation],
        stored: Sequence[Any],
        is_computed: Callable[[Any], bool],
        name: str,
    ) -> None:
        self.space = space
        self.scatters = scatters
        self.stored = stored
        self._analysis = analysis
        nodes: dict[Any, Use] = {}
        edges: dict[Any, None] = {}
        earlier: dict[Any, None] = {}
        shared: dict[Any, None] = {}
        self._eqns: list[EdgeValue] = []
        needed = set(stored)

        def need(var: Any, axis: int | None) -> None:
            if var not in analysis.edges:
                edges[var, axis] = None
            elif is_computed(var):
                needed.add(var)
            else:
                earlier[var] = None

        for eqn in scatters:
            need(eqn.invars[2], 0)
        for eqn in reversed(analysis.flat.eqns):
            if not any(var in needed for var in eqn.outvars):
                continue
            edge = analysis.edges[eqn.outvars[0]]
            self._eqns.insert(0, edge)
            if edge.use is not None:
                nodes[self._node_key(edge)] = edge.use
                continue
            for var, axis in zip(eqn.invars, edge.axes, strict=True):
                if is_var(var) and axis is None:
                    shared[var] = None
                elif is_var(var):
                    need(var, axis)
        self.nodes, self.edges, self.earlier = nodes, [*edges], [*earlier]
        constants = analysis.constants
        self._constants = {var: constants[var] for var in shared if var in constants}
        self.shared = [var for var in shared if var not in self._constants]
        self.uses = [edge.use for edge in self._eqns if edge.use is not None]
        self.uses += [analysis.scatters[id(eqn)][1] for eqn in scatters]
        self.program = Program(self._function(name), PASSES, has_constants=True)

    def _way(self, use: Use) -> str:
        end = self._analysis.end_of(use, self.space)
        return "dst" if end is self.space.receivers else "src"

    def _node_key(self, edge: EdgeValue) -> tuple[Any, str, str, Any]:
        use = edge.use
        assert use is not None
        return edge.eqn.invars[0], self._way(use), use.mode, edge.eqn.params["fill_value"]

    def _function(self, name: str) -> Callable[..., Any]:
        """Return the function of one edge."""

        def edge_function(g: EdgeView, nodes: Node, edges: Edge, masks: Edge, shared: Any) -> Any:
            rows: dict[Any, Any] = dict(zip([*self.earlier, *self.edges], edges, strict=True))

            def mask(use: Use, row: Any, fill: Any) -> Any:
                key = str(self.uses.index(use))
                return jnp.where(masks[key], row, fill) if key in masks else row

            arrays = {**self._constants, **dict(zip(self.shared, shared, strict=True))}
            of_nodes = dict(zip(self.nodes, nodes, strict=True))
            for edge in self._eqns:
                eqn, use = edge.eqn, edge.use
                if use is not None:
                    row = getattr(g, self._way(use))(of_nodes[self._node_key(edge)])
                    rows[eqn.outvars[0]] = mask(use, row, fill_value(use, row.dtype))
                    continue
                assert edge.row is not None
                operands = [
                    literal(v)
                    if not is_var(v)
                    else arrays[v]
                    if axis is None
                    else rows[v if v in rows else (v, axis)]
                    for v, axis in zip(eqn.invars, edge.axes, strict=True)
                ]
                is_softmax = eqn.primitive is SOFTMAX
                outs = [g.softmax(*operands)] if is_softmax else edge.row.function(*operands)
                rows.update(zip(eqn.outvars, outs, strict=True))
            results = []
            for eqn in self.scatters:
                use, var = self._analysis.scatters[id(eqn)][1], eqn.invars[2]
                row = rows[var if var in rows else (var, 0)]
                row = mask(use, row, jnp.asarray(NEUTRAL[use.reduce], row.dtype))
                results.append(getattr(g, use.reduce)(row))
            return results, [rows[var] for var in self.stored]

        edge_function.__name__ = edge_function.__qualname__ = name
        return edge_function

    def planned(self, order: EdgeOrder) -> Plan:
        """Return the plan of a run with an abstract order."""

        def rows(size: int, aval: Any, axis: int) -> jax.ShapeDtypeStruct:
            shape = [length for i, length in enumerate(aval.shape) if i != axis]
            return jax.ShapeDtypeStruct((size, *shape), aval.dtype)

        analysis, graph = self._analysis, order.graph
        sizes = {"src": graph.num_src, "dst": graph.num_dst}
        earlier = [(var, analysis.edges[var].axis) for var in self.earlier]
        return self.program.planned(
            graph,
            [rows(sizes[way], var.aval, 0) for var, way, *_ in self.nodes],
            [rows(graph.num_edges, var.aval, axis) for var, axis in (*earlier, *self.edges)],
            self._masks(order, lambda *_: jax.ShapeDtypeStruct((graph.num_edges,), np.bool_)),
            [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in self.shared],
        )

    def _masks(self, order: EdgeOrder, mask: Callable[[Use, bool], Any]) -> dict[str, Any]:
        """Return the masks of uses that drop negative ids, which others take."""
        masks = {}
        for i, use in enumerate(self.uses):
            is_receivers = self._way(use) == "dst"
            wraps = self.space.wraps[self._analysis.end_of(use, self.space)]
            if order.has_mask(use, is_receivers, wraps):
                masks[str(i)] = mask(use, is_receivers)
        return masks

    def run(self, values: dict[Any, Any], order: EdgeOrder, texts: list[str] | None) -> Any:
        """Return the reductions and the stored values, these in the graph's order."""
        nodes = [
            order.with_ghosts(values[var], use, way == "dst", fill_value(use, values[var].dtype))
            for (var, way, _, _), use in self.nodes.items()
        ]
        arguments = (
            order.graph,
            nodes,
            [values["stored", var] for var in self.earlier]
            + [self._from_input(var, axis, values, order) for var, axis in self.edges],
            self._masks(order, lambda _, is_receivers: order.mask(is_receivers)),
            [values[var] for var in self.shared],
        )
        if texts is not None:
            texts.append(self.program.explain(*arguments))
        reduced, stored = self._checkpointed(arguments)(*arguments)
        # Rows that all edges share come without the axis of edges.
        stored = [
            jnp.broadcast_to(y, (order.graph.num_edges, *y.shape)) if y.ndim < var.aval.ndim else y
            for var, y in zip(self.stored, stored, strict=True)
        ]
        return [y[:-NUM_GHOSTS] if order.has_ghosts[1] else y for y in reduced], stored

    def _checkpointed(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the program, which makes its values again for gradients if all results were so.

        Programs with regions do so anyway.
        """
        results = [*(eqn.outvars[0] for eqn in self.scatters), *self.stored]
        checkpoints = self._analysis.flat.checkpoints
        if not all(var in checkpoints for var in results):
            return self.program
        if backend() != "cpu" and self.program.planned(*arguments).regions:
            return self.program
        options = checkpoints[results[0]]
        policy, prevent_cse = options["policy"], options["prevent_cse"]
        return jax.checkpoint(self.program, policy=policy, prevent_cse=prevent_cse)

    def _from_input(self, var: Any, axis: int, values: dict[Any, Any], order: EdgeOrder) -> Array:
        """Return an array of edges in the graph's order, permuted once for all levels."""
        key = "sorted", var, axis, self.space
        if key not in values:
            values[key] = order.from_input(jnp.moveaxis(values[var], axis, 0))
        result: Array = values[key]
        return result
