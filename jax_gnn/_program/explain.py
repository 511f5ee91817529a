"""What becomes of a program, for people to read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import is_traced
from jax_gnn._ops.edge_region.cuda import sources as texts
from jax_gnn._ops.edge_region.region import Region
from jax_gnn._ops.edge_region.row_program import RowProgram, Unsupported
from jax_gnn._program.cost import Costs
from jax_gnn._program.maps import Maps, Structure
from jax_gnn._program.passes import DISTRIBUTE, PASSES, steps
from jax_gnn._program.patterns import Einsum, Sum, is_read
from jax_gnn._program.plan import Plan, planned, with_regions
from jax_gnn._program.regions import EdgeRegion, missing
from jax_gnn._program.rows import (
    Apply,
    Constant,
    Contract,
    Given,
    Pull,
    Row,
    in_order,
    title,
)
from jax_gnn._program.spaces import Space
from jax_gnn.relational import RelationalGraph

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def explained(plan: Plan, graph: Structure, wanted: Sequence[str] = PASSES) -> str:
    """The rows of a program as written, after each pass that changed them, and as ops.

    Args:
        plan: The program.
        graph: The graph.
        wanted: The passes that might have been taken.
    """
    lines = [f"program {plan.traced.name} on {graph}"]
    before = ""
    written = [("as written", list(plan.traced.results))]
    for name, results in itertools.chain(
        written, steps(plan.traced.results, plan.passes, plan.parts)
    ):
        table = listed(results, plan, lines=name == "as written")
        if table != before:
            lines += ["", _heading(name, results, plan), table]
        before = table
    lines += ["", "ops", _ops(plan)]
    left_out = ", ".join(repr(each) for each in wanted if each not in plan.passes)
    if left_out:
        lines.append(f"  without {left_out}, with which edge regions are counted to gain less")
    if DISTRIBUTE not in wanted:
        other = planned(plan.traced, plan.parts, (*wanted, DISTRIBUTE), plan.maps)
        if other.training < plan.training:
            lines.append(
                f"  the pass {DISTRIBUTE!r} would spare {plan.training - other.training:.1f} µs, "
                "gradients included; it loses digits where terms cancel"
            )
    lines += _regions(plan, graph) + _fallen_back(plan) + _missing_parts(plan, graph)
    return "\n".join(lines)


def _heading(name: str, results: Sequence[Row], plan: Plan) -> str:
    if name == "as written":
        return name
    costs = Costs(plan.parts, with_regions(results, plan.parts, plan.passes))
    return f"after {name!r}, counted {costs.total(results):.1f} µs"


def _names(rows: Iterable[Row]) -> dict[Row, str]:
    number = itertools.count()
    return {
        row: title(row.op) if isinstance(row.op, Given | Constant) else f"%{next(number)}"
        for row in rows
        if not isinstance(row.op, Pull)
    }


def _read(row: Row, names: Mapping[Row, str]) -> str:
    """An operand, and how it is read."""
    if isinstance(row.op, Pull):
        return f"{row.op.way}({_read(row.operands[0], names)})"
    return names.get(row, "?")


def _made(row: Row, names: Mapping[Row, str]) -> str:
    """How a row is made."""
    operands = ", ".join(_read(each, names) for each in row.operands)
    if isinstance(row.op, Contract):
        labels = {i: next_ for i, next_ in zip(_labels(row.op), itertools.cycle(_LETTERS))}
        terms = ",".join("".join(labels[i] for i in term) for term in row.op.terms)
        return f"einsum {terms}->{''.join(labels[i] for i in row.op.out)} ({operands})"
    return f"{title(row.op)}({operands})"


def _labels(op: Contract) -> list[int]:
    return list(dict.fromkeys(i for term in (*op.terms, op.out) for i in term))


def listed(results: Sequence[Row], plan: Plan, *, lines: bool = False) -> str:
    """The rows of a program, arguments and constants apart, perhaps with the user's lines."""
    rows = in_order(results)
    names = _names(rows)
    shown = [
        [
            names[row],
            _made(row, names),
            row.space.value,
            f"{plan.parts.rows.get(row.space, 1)}",
            f"{row.shape}",
            _size(_bytes(row, plan)),
            *([row.line.partition(",")[0]] if lines else []),  # without the code
        ]
        for row in rows
        if not isinstance(row.op, Given | Constant | Pull)
    ]
    given = ", ".join(_read(row, names) for row in results)
    heads = ["", "value", "space", "rows", "row", "bytes", *(["line"] if lines else [])]
    return _table(heads, shown, f"result: {given}")


def _ops(plan: Plan) -> str:
    """What makes each row that is made."""
    rows = plan.lowered
    names = _names(dict.fromkeys([*in_order(plan.results), *plan.lowered]))
    shown = []
    for row in rows:
        if isinstance(row.op, Given | Constant):
            continue
        cost = plan.costs.of(row)
        shown.append(
            [
                _read(row, names),
                cost.op,
                row.space.value,
                f"{plan.parts.rows.get(row.space, 1)}",
                f"{row.shape}",
                _size(_bytes(row, plan)),
                f"{cost.time:.1f} µs",
            ]
        )
    total = f"counted {plan.counted:.1f} µs on an H200"
    return _table(["", "op", "space", "rows", "row", "bytes", "time"], shown, total)


def _bytes(row: Row, plan: Plan) -> int:
    return plan.parts.rows.get(row.space, 1) * max(row.size, 1) * int(row.dtype.itemsize)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], last: str) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  " + "  ".join(f"{each:<{width}}" for each, width in zip(row, widths, strict=True))
        for row in (heads, *rows)
    ]
    return "\n".join([line.rstrip() for line in lines] + [f"  {last}"])


def _regions(plan: Plan, graph: Structure) -> list[str]:
    """What edges make in one pass: of what, what that takes, and what it spares."""
    names = _names(dict.fromkeys([*in_order(plan.results), *plan.lowered]))
    found = []
    for region in plan.regions:
        made = ", ".join(names[row] for row in region.results)
        functions = ", ".join(
            dict.fromkeys(
                "einsum" if isinstance(row.op, Contract) else title(row.op)
                for row in region.members
            )
        )
        forward, gradient = plan.costs.of(region.results[0]), plan.costs.gradient(region.results[0])
        found += [
            f"  {made}: of {functions} for each edge; gradients make again what no result keeps",
            f"    reads {_reads(region, names)}",
            f"    counted {forward.time:.1f} µs, {_size(forward.bytes)}; "
            + (
                "where it is differentiated, ops make its linear maps"
                if region.maps and plan.differentiated is not plan
                else f"with gradients {forward.time + gradient.time:.1f} µs, "
                f"{_size(forward.bytes + gradient.bytes)}, where ops take "
                f"{plan.spared(region):.1f} µs more"
            ),
            *(f"    by plain XLA on a {where}: {why}" for where, why in _unmade(region, graph)),
        ]
    found += [
        f"  {names[push]}: no region, which is counted to take {more:.1f} µs more than ops, "
        "gradients included"
        for push, more in plan.left_to_ops.items()
    ]
    return ["", "edge regions", *found] if found else []


def _reads(region: EdgeRegion, names: Mapping[Row, str]) -> str:
    """What edges read, and by what."""
    by = {"col": "source", "row": "destination", "edge": "edge", "shared": "all"}
    if region.sources is Space.SOURCE_PAIR:
        by["col"] = "(source, relation) pair"
    found = [
        f"{', '.join(_read(row, names) for row, each in region.inputs if each == read)} by {way}"
        for read, way in by.items()
        if any(each == read for _, each in region.inputs)
    ]
    return "; ".join(found)


def _unmade(region: EdgeRegion, graph: Structure) -> Iterator[tuple[str, str]]:
    """Where kernels have not what a region needs, and what that is."""
    try:
        texts(region.region, region.matrix(Maps(graph)))
    except Unsupported as error:
        yield "GPU", error.reason


def kernels(plan: Plan, graph: Structure) -> str:
    """The instructions of edge regions, and the text of their kernels for GPUs."""
    if plan.differentiated is not plan:
        return "\n\n".join([*_kernels(plan, graph, False), kernels(plan.differentiated, graph)])
    return "\n\n".join(_kernels(plan, graph, True))


def _kernels(plan: Plan, graph: Structure, gradients: bool) -> list[str]:
    """Those of a plan's regions, of their gradients only if they are wanted."""
    names = _names(dict.fromkeys([*in_order(plan.results), *plan.lowered]))
    found = []
    for region in plan.regions:
        moving = tuple(i for i, row in enumerate(region.taken) if row.dtype in FLOATS)
        forward = region.region
        offset = len(forward.accesses) - len(region.ways)  # of what is closed over
        gradient, _ = forward.cheapest_cotangent(
            tuple(i + offset for i in moving), tuple(range(len(forward.outputs)))
        )
        for name, each in [("", forward), *[(", gradients", gradient)] * gradients]:
            found += [
                f"{', '.join(names[row] for row in region.results)}{name}",
                _instructions(each.program),
                *_texts(each, region.matrix(Maps(graph))),
            ]
    return found


def _instructions(program: RowProgram | Unsupported) -> str:
    """A row program, a value a line."""
    if isinstance(program, Unsupported):
        return f"no instructions: {program.reason}"
    lines = [f"%{i} = {x.access} of {x.dtype}[{x.width}]" for i, x in enumerate(program.inputs)]
    for i, each in enumerate(program.instructions, len(program.inputs)):
        operands = [f"%{operand}" for operand in each.operands]
        params = [str(param) for param in each.params[:8]] + ["…"] * (len(each.params) > 8)
        made = " ".join([each.name, *operands, *params])
        lines.append(f"%{i} = {made} of {each.dtype}[{each.width}]")
    for out in program.outputs:
        lines.append(f"%{out.value} to {out.dest}, {out.reduce}")
    return "\n".join(lines)


def _texts(region: Region, matrix: SparseMatrix) -> list[str]:
    try:
        return texts(region, matrix)
    except Unsupported as error:
        return [f"no text for GPUs: {error.reason}"]


def _fallen_back(plan: Plan) -> list[str]:
    """Rows of edges that no op of the library makes, and why."""
    names = _names(dict.fromkeys([*in_order(plan.results), *plan.lowered]))
    found = []
    for row in plan.lowered:
        if row.space is not Space.EDGE or row in plan.matcher.regions:
            continue
        pattern = plan.matcher(row)
        if isinstance(row.op, Apply):
            why = missing(row)
            found.append(
                f"  {names[row]}: {row.op.name} is a function of edges, by jax.vmap"
                + (f", as {why}" if why else "")
            )
        elif isinstance(pattern, Einsum):
            varying = [each for each in pattern.factors if each.row.space is not Space.SHARED]
            if len(varying) < 2:
                continue  # a product of matrices
            ways = ", ".join(sorted({each.way or "edges" for each in pattern.factors}))
            found.append(f"  {names[row]}: no op has a product of rows read by {ways}")
        elif isinstance(pattern, Sum) and not is_read(pattern.value, pattern.into):
            found.append(f"  {names[row]}: what is reduced is stored for each edge")
    return ["", "fell back", *found] if found else []


def _missing_parts(plan: Plan, graph: Structure) -> list[str]:
    """What parts that a graph lacks would gain."""
    if not isinstance(graph, RelationalGraph) or is_traced(graph.edge_types):
        return []
    edges = graph.nodes
    valid = np.asarray(edges.rows) >= 0
    types = np.asarray(graph.edge_types)[valid].astype(np.int64)
    found = []
    for part, space, ids in (
        ("from_pairs", Space.SOURCE_PAIR, edges.cols),
        ("to_pairs", Space.DESTINATION_PAIR, edges.rows),
    ):
        if space in plan.parts.rows:
            continue
        nodes = np.asarray(ids)[valid].astype(np.int64)
        pairs = len(np.unique(nodes * graph.num_relations + types))
        parts: Any = plan.parts._replace(rows={**plan.parts.rows, space: pairs})
        gain = plan.counted - planned(plan.traced, parts, plan.passes).counted
        found.append(
            f'the graph lacks its part "{part}", with which {max(gain, 0):.1f} µs of '
            f"{plan.counted:.1f} would be spared: graph.with_parts({part!r})"
        )
    return ["", *found] if found else []
