"""Programs of a `HeteroGraph`: a run for each edge type, and sums by type of nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_gnn._program.rows import Row
from jax_gnn._program.sides import Sides
from jax_gnn._program.spaces import Space
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import EdgeType

_ENDS = {"src": 0, "dst": 2}


def run_by_edge_type(
    name: str,
    spaces: Mapping[str, Space],
    bound: inspect.BoundArguments,
    graph: HeteroGraph,
    run: Callable[..., Any],
) -> dict[EdgeType, Any]:
    """Return what `run` makes of the graph and the arguments of each edge type.

    Args:
        name: Name of the program in errors.
        spaces: Annotated space of each argument.
        bound: The arguments of the call, after that of the edge.
        graph: The graph.
        run: Function of a graph and arguments.
    """
    first, *names = bound.arguments
    results = {}
    for key in graph.edge_types:
        values: dict[str, Any] = {first: None}
        for argument in names:
            space, value = spaces.get(argument, Space.SHARED), bound.arguments[argument]
            values[argument] = _of_type(f"program {name}: {argument}", space, value, graph, key)
        call = inspect.BoundArguments(bound.signature, {**values})
        results[key] = run(graph.graph(key), *call.args[1:], **call.kwargs)
    return results


def _of_type(name: str, space: Space, value: Any, graph: HeteroGraph, key: EdgeType) -> Any:
    """Return an argument of the run of one edge type."""
    part: Any = key
    if space is Space.NODE:
        end = name.rpartition("_")[2]
        if end not in _ENDS:
            raise ValueError(
                f"{name} must be named …_src or …_dst, as the ends of edges of a HeteroGraph have "
                "types of their own"
            )
        part = key[_ENDS[end]]
    elif space is Space.SHARED:
        if not (isinstance(value, Mapping) and value and {*value} <= {*graph.edge_types}):
            return value
    elif space is not Space.EDGE:
        raise ValueError(
            f"{name} has rows of each {space.value}, and the program runs once for each edge type: "
            "leave out the annotation and pass a dict by edge type, or pass graph.relational"
        )
    if not isinstance(value, Mapping) or part not in value:
        kind = "edge type" if part is key else "type of nodes"
        got = list(value) if isinstance(value, Mapping) else type(value).__name__
        raise ValueError(f"{name} must be a mapping by {kind} that has {part!r}, got {got}")
    return value[part]


def joined_results(runs: Mapping[EdgeType, tuple[Any, Sequence[Row]]]) -> Any:
    """Return results by type: nodes' summed by type of nodes, others by edge type.

    Args:
        runs: The results of each edge type's run, and their rows in the program, flattened.
    """
    first, first_rows = next(iter(runs.values()))
    joined: list[dict[Any, Any]] = [{} for _ in first_rows]
    for key, (result, rows) in runs.items():
        sides = Sides(rows)
        for values, row, y in zip(joined, rows, jax.tree.leaves(result), strict=True):
            part = key[_ENDS[sides.of(row)]] if row.space is Space.NODE else key
            values[part] = values[part] + y if part in values else y
    return jax.tree.unflatten(jax.tree.structure(first), joined)
