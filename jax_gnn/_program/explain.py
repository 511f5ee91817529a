"""Explanations of plans: tables of rows after each pass, ops, regions and fallbacks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import is_traced
from jax_gnn._ops.edge_region.cuda import sources
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import RowProgram, Unsupported
from jax_gnn._program.cost import Costs
from jax_gnn._program.matrices import Matrices, Structure
from jax_gnn._program.passes import DISTRIBUTE, FOR_REGIONS, PASSES, steps
from jax_gnn._program.patterns import Einsum, Sum
from jax_gnn._program.plan import Plan, make_plan, match_regions
from jax_gnn._program.region_rows import unsupported_reason
from jax_gnn._program.regions import EdgeRegion
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Input,
    Pull,
    Row,
    title,
    topological_order,
)
from jax_gnn._program.spaces import Space
from jax_gnn.relational import RelationalGraph

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Names = Mapping[Row, str]


def explain(plan: Plan, graph: Structure, passes: Sequence[str] = PASSES) -> str:
    """Return the rows of a program as written, after each pass that changed them, and its ops.

    Args:
        plan: The plan.
        graph: The graph.
        passes: The passes that the program asks for.
    """
    lines = [f"program {plan.traced.name} on {graph}"]
    previous = ""
    written = ("as written", list(plan.traced.results))
    for name, results in (written, *steps(plan.traced.results, plan.passes, plan.parts, {})):
        table = table_of_rows(results, plan, lines=name == "as written")
        if table != previous:
            lines += ["", _heading(name, results, plan), table]
        previous = table
    lines += ["", "ops", _table_of_ops(plan)]
    omitted = [name for name in passes if name not in (*plan.passes, *FOR_REGIONS)]
    if omitted:
        names = ", ".join(map(repr, omitted))
        lines.append(f"  without {names}, with which edge regions are counted to gain less")
    if DISTRIBUTE not in passes:
        trial = make_plan(plan.traced, plan.parts, (*passes, DISTRIBUTE), plan.linear_maps)
        if trial.training_time < plan.training_time:
            lines.append(
                f"  the pass {DISTRIBUTE!r} would spare "
                f"{plan.training_time - trial.training_time:.1f} µs, "
                "gradients included; it loses digits where terms cancel"
            )
    lines += _regions(plan, graph) + _fallbacks(plan) + _missing_parts(plan, graph)
    return "\n".join(lines)


def _heading(name: str, results: Sequence[Row], plan: Plan) -> str:
    if name == "as written":
        return name
    costs = Costs(match_regions(results, plan.parts, plan.passes), results)
    return f"after {name!r}, counted {costs.total(results):.1f} µs"


# --- Tables --------------------------------------------------------------------------------------


def _names(rows: Iterable[Row]) -> Names:
    numbers = itertools.count()
    return {
        row: title(row.op) if isinstance(row.op, Input | Constant) else f"%{next(numbers)}"
        for row in rows
        if not isinstance(row.op, Pull)
    }


def _plan_names(plan: Plan) -> Names:
    return _names(dict.fromkeys([*topological_order(plan.results), *plan.materialized]))


def _operand(row: Row, names: Names) -> str:
    """Return an operand, with the ways by which it is read."""
    if isinstance(row.op, Pull):
        return f"{row.op.way}({_operand(row.operands[0], names)})"
    return names.get(row, "?")


def _definition(row: Row, names: Names) -> str:
    operands = ", ".join(_operand(operand, names) for operand in row.operands)
    if isinstance(row.op, Contract):
        labels = dict.fromkeys(i for term in (*row.op.terms, row.op.out) for i in term)
        letters = dict(zip(labels, itertools.cycle(_LETTERS), strict=False))
        terms = ",".join("".join(letters[i] for i in term) for term in row.op.terms)
        return f"einsum {terms}->{''.join(letters[i] for i in row.op.out)} ({operands})"
    return f"{title(row.op)}({operands})"


def table_of_rows(results: Sequence[Row], plan: Plan, *, lines: bool = False) -> str:
    """Return the table of a program's rows, with the user's lines if `lines`."""
    rows = topological_order(results)
    names = _names(rows)
    cells = [
        [
            names[row],
            _definition(row, names),
            *_sizes(row, plan),
            *([row.line.partition(",")[0]] if lines else []),  # without the code
        ]
        for row in rows
        if not isinstance(row.op, Input | Constant | Pull)
    ]
    heads = ["", "value", "space", "rows", "row", "bytes", *(["line"] if lines else [])]
    return _table(heads, cells, f"result: {', '.join(_operand(row, names) for row in results)}")


def _table_of_ops(plan: Plan) -> str:
    names = _plan_names(plan)
    cells = []
    for row in plan.materialized:
        if not isinstance(row.op, Input | Constant):
            cost = plan.costs.of(row)
            name = _operand(row, names)
            cells.append([name, cost.op, *_sizes(row, plan), f"{cost.time:.1f} µs"])
    heads = ["", "op", "space", "rows", "row", "bytes", "time"]
    return _table(heads, cells, f"counted {plan.time:.1f} µs on an H200")


def _sizes(row: Row, plan: Plan) -> list[str]:
    """Return the cells of space, rows, shape and bytes."""
    rows = plan.parts.rows.get(row.space, 1)
    num_bytes = rows * max(row.size, 1) * int(row.dtype.itemsize)
    return [row.space.value, f"{rows}", f"{row.shape}", _format_bytes(num_bytes)]


def _format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], footer: str) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (heads, *rows)
    ]
    return "\n".join([line.rstrip() for line in lines] + [f"  {footer}"])


# --- Regions -------------------------------------------------------------------------------------


def _regions(plan: Plan, graph: Structure) -> list[str]:
    """Return the regions: functions, reads, cost and savings."""
    names = _plan_names(plan)
    lines = []
    for region in plan.regions:
        results = ", ".join(names[row] for row in region.results)
        functions = dict.fromkeys(
            "einsum" if isinstance(row.op, Contract) else title(row.op) for row in region.members
        )
        forward, gradient = plan.costs.of(region.results[0]), plan.costs.gradient(region.results[0])
        if plan.differentiated is not plan:
            training = "where the program is differentiated, another plan takes less"
        else:
            training = (
                f"with gradients {forward.time + gradient.time:.1f} µs, "
                f"{_format_bytes(forward.bytes + gradient.bytes)}, where ops take "
                f"{plan.time_saved(region):.1f} µs more"
            )
        lines += [
            f"  {results}: of {', '.join(functions)} for each {region.space.value}; gradients make "
            "again what no result keeps",
            f"    reads {_reads(region, names)}",
            f"    counted {forward.time:.1f} µs, {_format_bytes(forward.bytes)}; {training}",
        ]
        try:
            sources(region.region, region.matrix(Matrices(graph)))
        except Unsupported as error:
            lines.append(f"    by plain XLA on a GPU: {error.reason}")
    for push, time in plan.left_to_ops.items():
        reason = f"is counted to take {time:.1f} µs more than ops, gradients included"
        if plan.has_kernels and time < 0:
            reason = "has no kernel for GPUs"
        lines.append(f"  {names[push]}: no region, which {reason}")
    kinds = [region.space.value for region in plan.regions]
    kind = "node" if kinds and "edge" not in kinds else "edge"
    return ["", f"{kind} regions", *lines] if lines else []


def _reads(region: EdgeRegion, names: Names) -> str:
    column = "(source, relation) pair" if region.columns is Space.SOURCE_PAIR else "source"
    row = "destination" if region.rows is Space.NODE else "(destination, relation) pair"
    column, row = (row, column) if region.way == "src" else (column, row)
    groups = {"col": column, "row": row, "edge": region.space.value, "shared": "all"}
    texts = []
    for access, group in groups.items():
        rows = [_operand(row, names) for row, x in region.inputs if x == access]
        if rows:
            texts.append(f"{', '.join(rows)} by {group}")
    return "; ".join(texts)


def kernels(plan: Plan, graph: Structure) -> str:
    """Return the instructions of edge regions, and the generated source of their CUDA kernels."""
    if plan.differentiated is not plan:
        return "\n\n".join([*_kernels(plan, graph, False), kernels(plan.differentiated, graph)])
    return "\n\n".join(_kernels(plan, graph, True))


def _kernels(plan: Plan, graph: Structure, gradients: bool) -> Iterator[str]:
    names = _plan_names(plan)
    for edge_region in plan.regions:
        region = edge_region.region
        regions = {"": region}
        if gradients:
            offset = len(region.accesses) - len(edge_region.accesses)  # closed-over arrays
            active = tuple(
                offset + i for i, row in enumerate(edge_region.input_rows) if row.dtype in FLOATS
            )
            results = tuple(range(len(region.outputs)))
            regions[", gradients"] = region.cheapest_cotangent(active, results)[0]
        results_text = ", ".join(names[row] for row in edge_region.results)
        for suffix, region in regions.items():
            yield f"{results_text}{suffix}"
            yield _instructions(region.program)
            yield from _sources(region, edge_region.matrix(Matrices(graph)))


def _instructions(program: RowProgram | Unsupported) -> str:
    """Return a row program, a value on each line."""
    if isinstance(program, Unsupported):
        return f"no instructions: {program.reason}"
    lines = [f"%{i} = {x.access} of {x.dtype}[{x.width}]" for i, x in enumerate(program.inputs)]
    for i, step in enumerate(program.instructions, len(program.inputs)):
        operands = [f"%{operand}" for operand in step.operands]
        params = [str(param) for param in step.params[:8]] + ["…"] * (len(step.params) > 8)
        text = " ".join([step.name, *operands, *params])
        lines.append(f"%{i} = {text} of {step.dtype}[{step.width}]")
    lines += [f"%{output.value} to {output.dest}, {output.reduce}" for output in program.outputs]
    return "\n".join(lines)


def _sources(region: Region, matrix: SparseMatrix) -> list[str]:
    try:
        return sources(region, matrix)
    except Unsupported as error:
        return [f"no kernel for GPUs: {error.reason}"]


# --- Hints ---------------------------------------------------------------------------------------


def _fallbacks(plan: Plan) -> list[str]:
    """Return the rows of edges that no op of the library makes, and why."""
    names = _plan_names(plan)
    lines = []
    for row in plan.materialized:
        if row.space is not Space.EDGE or row in plan.matcher.regions:
            continue
        pattern = plan.matcher(row)
        if isinstance(row.op, Apply):
            reason = unsupported_reason(row)
            suffix = f", as {reason}" if reason else ""
            text = f"{row.op.name} is a function of edges, by jax.vmap{suffix}"
        elif isinstance(pattern, Einsum):
            if sum(not factor.row.is_shared for factor in pattern.factors) < 2:
                continue  # a product with a matrix
            ways = ", ".join(sorted({factor.way or "edges" for factor in pattern.factors}))
            text = f"no op has a product of rows read by {ways}"
        elif isinstance(pattern, Sum) and not pattern.source[1]:
            text = "what is reduced is stored for each edge"
        else:
            continue
        lines.append(f"  {names[row]}: {text}")
    return ["", "fell back", *lines] if lines else []


def _missing_parts(plan: Plan, graph: Structure) -> list[str]:
    """Return the time that parts would save which the graph lacks."""
    if not isinstance(graph, RelationalGraph) or is_traced(graph.edge_types):
        return []
    edges = graph.nodes
    valid = np.asarray(edges.rows) >= 0
    types = np.asarray(graph.edge_types)[valid].astype(np.int64)
    lines = []
    for part, space, ids in (
        ("from_pairs", Space.SOURCE_PAIR, edges.cols),
        ("to_pairs", Space.DESTINATION_PAIR, edges.rows),
    ):
        if space in plan.parts.rows:
            continue
        nodes = np.asarray(ids)[valid].astype(np.int64)
        num_pairs = len(np.unique(nodes * graph.num_relations + types))
        parts = plan.parts._replace(rows={**plan.parts.rows, space: num_pairs})
        gain = plan.time - make_plan(plan.traced, parts, plan.passes).time
        lines.append(
            f'the graph lacks its part "{part}", with which {max(gain, 0):.1f} µs of '
            f"{plan.time:.1f} would be spared: graph.with_parts({part!r})"
        )
    return ["", *lines] if lines else []
