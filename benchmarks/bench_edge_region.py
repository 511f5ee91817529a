"""Ten message-passing models as programs beside plain JAX: forward, and with gradients.

`edge_models` has the models; a program (`jax_gnn.program`) and plain JAX run the same functions.
Gradients are those of all arrays and parameters, in plain JAX also under `jax.checkpoint`.

Results are compared with float64 at some destinations, on the subgraph of the edges into them.
Gradients are compared at these edges, and at the destinations whose edges out are in the subgraph,
too; some are chosen for this. Gradients to parameters are sums over all edges. They are compared
on graphs that are small enough to be checked whole, as ``tiny`` is, and not compared on others.

nn_conv has a quarter of the width as features, on molecules half: 16 and 32 at width 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.definition import TF32_TOLERANCE, TOLERANCE, Candidate, Case, Family, Op, Problem
from benchmarks.peers import bounded, jax_gnn_graph
from benchmarks.problems import (
    CHECKED_NUMBERS,
    Expected,
    Repeated,
    features,
    numpy_dtype,
    once,
    sample_segments,
    whole_segments,
)
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, molecules, plain_graphs, plain_relational

PLAIN = "plain jax"
MODELS = (
    *("gated_gcn", "cg_conv", "schnet", "painn", "edge_conv"),
    *("pna", "egnn", "nn_conv", "gat", "deeper_gcn", "gatv2", "transformer"),
)
EDGE_RESULTS = {("gated_gcn", 1)}
"""Models, and which of their results have rows of edges; all others have rows of nodes."""

DEFAULT_GRAPHS = "flickr", "ogbn-arxiv", "flickr-twin", "ogbn-arxiv-twin"

WITH_KINKS = {"gated_gcn", "edge_conv", "pna", "nn_conv", "gat", "deeper_gcn", "gatv2"}
"""Models with ReLUs, leaky ReLUs or extremes."""

KINK_TOLERANCE = {"float32": 0.1, "float16": 0.1, "bfloat16": 0.2}
"""Largest relative error, in norm, with which their gradients count as right.

Rounding moves some numbers over a kink, and changes which edges attain a maximum; the derivative is
another one there. On a CPU products rounded to TF32 gave errors up to 0.03, bfloat16 up to 0.07.
"""


# --- Problems ------------------------------------------------------------------------------------


@once
def draw_rows(role: str, num_rows: int, shape: tuple[int, ...], dtype: str) -> Repeated:
    """Draw rows of nodes or edges; equal calls share one array, which is on the device once."""
    x = features(role, num_rows, int(np.prod(shape, dtype=int)), dtype)
    return Repeated(x.pool.reshape(-1, *shape), num_rows)


def draw_parameter(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Draw a matrix that keeps the scale of features, or a vector."""
    rng = np.random.default_rng([*name.encode(), *shape])
    scale = shape[0] ** -0.5 if len(shape) > 1 else 1.0
    return (scale * rng.standard_normal(shape, np.float32)).astype(numpy_dtype(dtype))


def inputs_of(graph: PlainGraph, case: Case) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays of a model, and whose rows each has: "node", "edge" or "shared"."""
    from benchmarks.edge_models import MODELS, row_shapes
    from jax_gnn._program.trace import annotated_spaces

    model = case.mode.split(" ")[0]
    nn_width = max(case.width // (2 if case.workload == "molecules" else 4), 1)
    num_rows = {"node": graph.num_nodes, "edge": graph.num_edges}
    inputs: dict[str, Any] = {}
    spaces = {name: space.value for name, space in annotated_spaces(MODELS[model]).items()}
    for name, shape in row_shapes(model, case.width, nn_width).items():
        is_half = numpy_dtype(case.dtype).itemsize < 4
        dtype = "float32" if name == "pos" and is_half else case.dtype
        if spaces[name] == "shared":
            inputs[name] = draw_parameter(name, shape, dtype)
        else:
            inputs[name] = draw_rows(spaces[name], num_rows[spaces[name]], shape, dtype)
    return inputs, {name: spaces[name] for name in inputs}


@dataclass(frozen=True)
class CheckedRows:
    """The rows of nodes or of edges in a subgraph.

    Attributes:
        num_rows: Number of rows in the whole graph.
        ids: Rows of the graph that are in the subgraph, ascending.
        results: Which of these have the results of the whole graph, as positions in `ids`.
        gradients: Which have the gradients of the whole graph, likewise.
    """

    num_rows: int
    ids: np.ndarray
    results: np.ndarray
    gradients: np.ndarray

    def of(self, values: np.ndarray, checked: np.ndarray) -> Expected:
        """Return an output that is checked at some positions."""
        return Expected(values[checked], (self.num_rows, *values.shape[1:]), self.ids[checked])


@dataclass(frozen=True)
class Subgraph:
    """The edges into some destinations.

    Attributes:
        spaces: The rows of nodes and of edges.
        dst: Destination of each edge, as a position among the nodes.
        src: Its source, likewise.
        is_whole: Whether it is all of the graph.
    """

    spaces: dict[str, CheckedRows]
    dst: np.ndarray
    src: np.ndarray
    is_whole: bool


@once
def subgraph(graph: PlainGraph, width: int) -> Subgraph:
    """Choose the largest destination, others at random, and nodes with the ends of their edges."""
    numbers = 32 * width  # of an edge, in all arrays of it
    budget = CHECKED_NUMBERS // numbers
    degrees, out = np.diff(graph.indptr).astype(np.int64), graph.transposed
    is_chosen = np.zeros(graph.num_nodes, bool)
    is_chosen[sample_segments(graph.indptr, numbers).segments] = True
    for node in np.random.default_rng(1).permutation(graph.num_nodes)[:10_000]:
        needed = np.unique(np.append(out.cols[out.indptr[node] : out.indptr[node + 1]], node))
        needed = needed[~is_chosen[needed]]
        if degrees[needed].sum() <= budget:
            budget -= degrees[needed].sum()
            is_chosen[needed] = True
    sample = whole_segments(graph.indptr, np.flatnonzero(is_chosen))
    sources = graph.cols[sample.entries]
    nodes = np.union1d(sample.segments, sources)
    src, results = np.searchsorted(nodes, sources), np.searchsorted(nodes, sample.segments)
    is_closed = np.bincount(src, minlength=len(nodes)) == np.diff(out.indptr)[nodes]
    edges = np.arange(len(src))
    spaces = {
        "node": CheckedRows(graph.num_nodes, nodes, results, results[is_closed[results]]),
        "edge": CheckedRows(graph.num_edges, sample.entries, edges, edges),
    }
    is_whole = len(results) == graph.num_nodes
    return Subgraph(spaces, results[sample.segment_of_entry], src, is_whole)


def problem(graph: PlainGraph, case: Case) -> Problem:
    """Return the inputs of a model, and in float64 the rows of results and gradients to check."""
    from benchmarks.edge_models import MODELS, PlainView

    model, kind = case.mode.split(" ")
    inputs, space_of = inputs_of(graph, case)
    part = subgraph(graph, case.width)

    def run(*arrays: Any) -> Any:
        view = PlainView(part.dst, part.src, len(part.spaces["node"].ids))
        return MODELS[model](view, *arrays)

    edges = {i for name, i in EDGE_RESULTS if name == model}
    expected = expect(part, inputs, space_of, run, edges, case.dtype, kind == "gradients")
    inputs |= {"src": graph.cols, "dst": graph.rows}
    tolerance = TF32_TOLERANCE if case.dtype == "float32" else TOLERANCE[case.dtype]
    if kind == "gradients":
        rounding = 2 * tolerance  # there and back
        tolerance = KINK_TOLERANCE.get(case.dtype, rounding) if model in WITH_KINKS else rounding
    return Problem(inputs, tuple(expected), numpy_dtype(case.dtype), tolerance)


def expect(
    part: Subgraph,
    inputs: dict[str, Any],
    space_of: dict[str, str],
    function: Callable[..., Any],
    edge_results: set[int],
    dtype: str,
    has_gradients: bool,
) -> list[Expected]:
    """Return the checked rows of a function's results, and of gradients, in float64.

    Args:
        part: Subgraph whose rows `function` takes.
        inputs: Its arguments on the whole graph; cotangents of the results are added.
        space_of: Whose rows each argument has: "node", "edge" or "shared".
        function: Function of the arguments, in order.
        edge_results: Numbers of the results that have rows of edges; others have rows of nodes.
        dtype: Dtype of the cotangents.
        has_gradients: Whether gradients to all arguments follow the results.
    """
    import jax

    spaces = part.spaces
    arrays = [
        x.astype(np.float64) if space_of[name] == "shared" else x.rows(spaces[space_of[name]].ids)
        for name, x in inputs.items()
    ]
    with jax.enable_x64(True):
        function = results_of(function)
        shapes = [x.shape for x in jax.eval_shape(function, *arrays)]
        result_spaces = [
            spaces["edge" if i in edge_results else "node"] for i in range(len(shapes))
        ]
        if has_gradients:
            cotangents = []
            for i, (rows, shape) in enumerate(zip(result_spaces, shapes, strict=True)):
                x = draw_rows("cotangent", rows.num_rows, shape[1:], dtype)
                inputs[f"cotangent {i}"] = x
                # Nodes that are sources alone lack edges: their results must not count.
                cotangents.append(np.zeros(shape))
                cotangents[-1][rows.results] = x.rows(rows.ids[rows.results])
            outputs = jax.jit(with_gradients(function, len(arrays)))(cotangents, *arrays)
        else:
            outputs = jax.jit(function)(*arrays)
        outputs = [np.asarray(y) for y in outputs]
    expected = [rows.of(y, rows.results) for rows, y in zip(result_spaces, outputs, strict=False)]
    gradients = outputs[len(shapes) :]
    largest = max(map(np.linalg.norm, gradients), default=0)
    for name, y in zip(space_of, gradients, strict=False):
        if space_of[name] != "shared":
            expected.append(spaces[space_of[name]].of(y, spaces[space_of[name]].gradients))
        elif part.is_whole and np.linalg.norm(y) > 1e-9 * largest:  # else 0 but for rounding
            expected.append(Expected.whole(y))
        else:
            expected.append(Expected(y[:0], y.shape, np.zeros(0, np.int64)))
    return expected


def results_of(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """Return a function whose results are always a tuple."""

    def results(*arrays: Any) -> tuple[Any, ...]:
        y = function(*arrays)
        return y if isinstance(y, tuple) else (y,)

    return results


def with_gradients(function: Callable[..., Any], count: int) -> Callable[..., tuple[Any, ...]]:
    """Return a function of cotangents and arguments: results, gradients to ``count`` arguments."""
    import jax

    def results_and_gradients(cotangents: Any, *arguments: Any) -> tuple[Any, ...]:
        arrays, operands = arguments[:count], arguments[count:]
        results, pull = jax.vjp(lambda *arrays: function(*arrays, *operands), *arrays)
        cast = [c.astype(y.dtype) for c, y in zip(cotangents, results, strict=True)]
        return *results, *pull(tuple(cast))

    return results_and_gradients


# --- Candidates ----------------------------------------------------------------------------------


def _candidate(
    name: str, function: Callable[..., Any], case: Case, problem: Problem, *operands: Any
) -> Candidate:
    """Return a candidate of a function of a model's arrays and operands."""
    from benchmarks.edge_models import array_names

    arrays = [problem.inputs[key] for key in array_names(case.mode.split(" ")[0])]
    if case.mode.endswith("forward"):
        return Candidate(name, results_of(function), (*arrays, *operands))
    cotangents = [x for key, x in problem.inputs.items() if key.startswith("cotangent")]
    differentiated = with_gradients(results_of(function), len(arrays))

    def flat(*arguments: Any) -> tuple[Any, ...]:
        return differentiated(arguments[: len(cotangents)], *arguments[len(cotangents) :])

    return Candidate(name, flat, (*cotangents, *arrays, *operands))


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Yield the program."""
    from benchmarks.edge_models import MODELS
    from jax_gnn import program

    run = program(MODELS[case.mode.split(" ")[0]])

    def ours(*arguments: Any) -> Any:
        *arrays, container = arguments
        return run(container, *arrays)

    yield _candidate(OURS, ours, case, problem, jax_gnn_graph(graph))


def plain_jax_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Yield the function of all edges, and for gradients also where it keeps no residuals."""
    import jax

    from benchmarks.edge_models import MODELS, PlainView, array_names

    model = case.mode.split(" ")[0]

    def plain(*arguments: Any) -> Any:
        *arrays, dst, src = arguments
        return MODELS[model](PlainView(dst, src, graph.num_nodes), *arrays)

    functions = {PLAIN: plain}
    if case.mode.endswith("gradients"):
        functions["jax.checkpoint"] = jax.checkpoint(plain)
    # About four arrays of edges, as wide as the widest parameter.
    parameters = [problem.inputs[key] for key in array_names(model)]
    widest = max(x.shape[-1] for x in parameters if isinstance(x, np.ndarray))
    num_bytes = 4.0 * graph.num_edges * widest * problem.output_dtype.itemsize
    for name, function in functions.items():
        candidate = _candidate(name, function, case, problem, graph.rows, graph.cols)
        yield bounded(candidate, num_bytes)


def graphs(data: Path | None) -> dict[str, Workload]:
    """Return Flickr and ogbn-arxiv or their twins, 2,000 molecules, with ``data`` MUTAG.

    Other plain graphs run on request.
    """
    known = [
        replace(workload, on_request=workload.name not in DEFAULT_GRAPHS)
        for workload in plain_graphs(data).values()
    ]
    batch = Workload("molecules", partial(molecules, 2_000))
    known += [batch, *plain_relational(data, "mutag")]
    return {workload.name: workload for workload in known}


OP = Op(
    name="edge_region",
    title="Message-passing models as programs: values, and values and gradients",
    workloads=graphs,
    modes={f"{model} {kind}": () for model in MODELS for kind in ("forward", "gradients")},
    widths={"cpu": (64,), "gpu": (64,)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family(PLAIN, "jax", ("jax",), plain_jax_candidates),
    ),
    baseline=PLAIN,
)
