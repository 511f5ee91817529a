"""Nonlinear functions of edges beside plain JAX: forward, and with gradients to all arrays.

A model is what edges make between gathers and reductions, of arrays that are there. Each is a
program of messages (`jax_gnn.program`), and the same function in plain JAX, as it is and under
`jax.checkpoint`. Results are checked at some destinations; gradients where nothing but these
destinations and their edges reads an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.definition import TF32_TOLERANCE, Candidate, Case, Family, Op, Problem
from benchmarks.peers import jax_gnn_graph
from benchmarks.problems import Expected, Repeated, features, numpy_dtype, once, sample_segments
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, molecules, plain_graphs, plain_relational

PLAIN = "plain jax"

# --- Models --------------------------------------------------------------------------------------

READS: dict[str, dict[str, str]] = {
    "gated_gcn": {"a": "dst", "b": "src", "v": "src", "e": "edge"},
    "cg_conv": {"a": "dst 2", "b": "src 2", "e": "edge 2"},
    "cf_conv": {"v": "src", "e": "edge", "distance": "number", "w": "shared"},
    "painn": {"a": "src 3", "b": "src 3", "e": "edge 3", "direction": "vector"},
    "edge_conv": {"a": "src", "b": "dst"},
    "pna": {"a": "dst", "b": "src", "e": "edge"},
}
"""The arrays of each model: whose row an edge reads, and of how many groups of features."""


def functions() -> dict[str, Callable[..., tuple[Any, ...]]]:
    """The models, of a view of a graph and arrays: of a row of each, or of rows of all edges."""
    import jax
    import jax.numpy as jnp

    def gated_gcn(g: Any, a: Any, b: Any, v: Any, e: Any) -> tuple[Any, ...]:
        z = g.dst(a) + g.src(b) + e
        gate = jax.nn.sigmoid(z)
        return g.sum(gate * g.src(v)), g.sum(gate), z

    def cg_conv(g: Any, a: Any, b: Any, e: Any) -> tuple[Any, ...]:
        z = g.dst(a) + g.src(b) + e
        return (g.sum(jax.nn.sigmoid(z[..., 0, :]) * jax.nn.softplus(z[..., 1, :])),)

    def cf_conv(g: Any, v: Any, e: Any, distance: Any, w: Any) -> tuple[Any, ...]:
        filters = jax.nn.softplus(e) @ w - float(np.log(2.0))
        near = 0.5 * (jnp.cos(float(np.pi) * distance) + 1)
        return (g.sum(g.src(v) * filters * near[..., None]),)

    def painn(g: Any, a: Any, b: Any, e: Any, direction: Any) -> tuple[Any, ...]:
        gates = e * g.src(a)
        turned = gates[..., 2:, :] * direction[..., None]
        return g.sum(gates[..., 0, :]), g.sum(g.src(b) * gates[..., 1:2, :] + turned)

    def edge_conv(g: Any, a: Any, b: Any) -> tuple[Any, ...]:
        return (g.max(jax.nn.relu(g.src(a) - g.dst(b))),)

    def pna(g: Any, a: Any, b: Any, e: Any) -> tuple[Any, ...]:
        m = jax.nn.relu(g.dst(a) + g.src(b) + e)
        return g.mean(m), g.max(m), g.min(m), g.mean(m * m)

    return {each.__name__: each for each in (gated_gcn, cg_conv, cf_conv, painn, edge_conv, pna)}


def _shape(read: str, graph: PlainGraph, width: int) -> tuple[int, ...]:
    """Of an array."""
    kind, *groups = read.split(" ")
    if kind == "shared":
        return width, width
    rows = graph.num_nodes if kind in ("src", "dst") else graph.num_edges
    return rows, *{"number": (), "vector": (3,)}.get(kind, (*map(int, groups), width))


class View:
    """What a model calls, on arrays of all edges: plain JAX as one writes it."""

    def __init__(self, rows: Any, cols: Any, num_dst: int) -> None:
        self._rows, self._cols, self._num_dst = rows, cols, num_dst

    def src(self, x: Any) -> Any:
        """What edges read at their sources."""
        return x[self._cols]

    def dst(self, x: Any) -> Any:
        """Likewise at their destinations."""
        return x[self._rows]

    def _reduced(self, name: str, x: Any) -> Any:
        import jax

        reduce = getattr(jax.ops, f"segment_{name}")
        return reduce(x, self._rows, self._num_dst, indices_are_sorted=True)

    def sum(self, x: Any) -> Any:
        """Sums at destinations."""
        return self._reduced("sum", x)

    def max(self, x: Any) -> Any:
        """Maxima."""
        return self._reduced("max", x)

    def min(self, x: Any) -> Any:
        """Minima."""
        return self._reduced("min", x)

    def mean(self, x: Any) -> Any:
        """Means, 0 of nothing."""
        import jax.numpy as jnp

        counts = self.sum(jnp.ones(len(x), x.dtype))
        return self.sum(x) / jnp.maximum(counts, 1)[:, None]


def with_gradients(function: Callable[..., Any], count: int) -> Callable[..., tuple[Any, ...]]:
    """Results, and gradients to ``count`` arrays; cotangents come first."""
    import jax

    def both(cotangents: Any, *rest: Any) -> tuple[Any, ...]:
        arrays, more = rest[:count], rest[count:]
        results, pull = jax.vjp(lambda *arrays: function(*arrays, *more), *arrays)
        return *results, *pull(tuple(cotangents))

    return both


# --- Problems ------------------------------------------------------------------------------------


@once
def _array(role: str, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Repeated:
    """Random numbers: the same object for the same call, which is on the device once."""
    x = features(role, shape[0], int(np.prod(shape[1:], dtype=int)), dtype)
    pool = x.pool if scale == 1 else (x.pool * scale).astype(x.pool.dtype)
    return Repeated(pool.reshape(-1, *shape[1:]), x.num_rows)


def problem(graph: PlainGraph, case: Case) -> Problem:
    """Results by plain JAX in float64, on the edges of some destinations."""
    import jax

    model, kind = case.mode.split(" ")
    width, dtype = case.width, case.dtype
    inputs: dict[str, Any] = {}
    for name, read in READS[model].items():
        scale = width**-0.5 if read == "shared" else 1.0
        inputs[name] = _array(name, _shape(read, graph, width), dtype, scale)
    sample = sample_segments(graph.indptr, 16 * width)
    kept = {"src": graph.cols[sample.entries], "dst": sample.segments}
    rows = {
        name: kept.get(read.split(" ")[0], sample.entries) for name, read in READS[model].items()
    }
    rows |= {name: np.arange(width) for name, read in READS[model].items() if read == "shared"}
    count, function = len(inputs), functions()[model]
    view = View(sample.segment_of_entry, np.arange(len(sample.entries)), len(sample.segments))
    with jax.enable_x64(True):
        arrays = [jax.numpy.asarray(inputs[name].rows(rows[name])) for name in inputs]
        of_arrays = partial(function, view)
        shapes = [x.shape for x in jax.eval_shape(of_arrays, *arrays)]
        # Of edges, of destinations: which rows there are, and which are checked.
        spaces = [(graph.num_edges, sample.entries), (graph.num_nodes, sample.segments)]
        of = [spaces[shape[0] == len(sample.segments)] for shape in shapes]
        if kind == "gradients":
            for i, ((size, _), shape) in enumerate(zip(of, shapes, strict=True)):
                inputs[f"cotangent {i}"] = _array("cotangent", (size, *shape[1:]), dtype)
            given = [inputs[f"cotangent {i}"].rows(some) for i, (_, some) in enumerate(of)]
            results = jax.jit(with_gradients(of_arrays, count))(given, *arrays)
        else:
            results = jax.jit(of_arrays)(*arrays)
    expected = [
        Expected(np.asarray(y), (size, *y.shape[1:]), some)
        for y, (size, some) in zip(results, of, strict=False)
    ]
    for (name, read), y in zip(READS[model].items(), results[len(of) :], strict=False):
        whole = read.split(" ")[0] not in ("src", "shared")  # others have edges that are left out
        some = rows[name] if whole else np.zeros(0, np.int64)
        expected.append(Expected(np.asarray(y)[: len(some)], _shape(read, graph, width), some))
    return Problem(inputs, tuple(expected), numpy_dtype(dtype), TF32_TOLERANCE)


# --- Candidates ----------------------------------------------------------------------------------


def _candidate(
    name: str, function: Callable[..., Any], case: Case, problem: Problem, *operands: Any
) -> Candidate:
    """A function of arrays and operands."""
    model, kind = case.mode.split(" ")
    arrays = [problem.inputs[each] for each in READS[model]]
    if kind == "forward":
        return Candidate(name, function, (*arrays, *operands))
    cotangents = [x for each, x in problem.inputs.items() if each.startswith("cotangent")]
    both = with_gradients(function, len(arrays))

    def flat(*all_: Any) -> tuple[Any, ...]:
        return both(all_[: len(cotangents)], *all_[len(cotangents) :])

    return Candidate(name, flat, (*cotangents, *arrays, *operands))


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The program."""
    from jax_gnn import Edge, Node, program

    model = case.mode.split(" ")[0]
    function, spaces = functions()[model], {"src": Node, "dst": Node, "shared": Any}
    function.__annotations__ = {
        name: spaces.get(read.split(" ")[0], Edge) for name, read in READS[model].items()
    }
    run = program(function)

    def ours(*arrays: Any) -> Any:
        return run(arrays[-1], *arrays[:-1])

    yield _candidate(OURS, ours, case, problem, jax_gnn_graph(graph))


def plain_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The function of all edges, and where nothing of edges is kept for the gradients."""
    import jax

    function = functions()[case.mode.split(" ")[0]]

    def plain(*arrays: Any) -> Any:
        *given, rows, cols = arrays
        return function(View(rows, cols, graph.num_nodes), *given)

    yield _candidate(PLAIN, plain, case, problem, graph.rows, graph.cols)
    if case.mode.endswith("gradients"):
        again = jax.checkpoint(plain)
        yield _candidate("jax.checkpoint", again, case, problem, graph.rows, graph.cols)


def graphs(data: Path | None) -> dict[str, Workload]:
    """Twins of Flickr and ogbn-arxiv, a batch of molecules, and with ``data`` MUTAG."""
    found = [
        replace(each, on_request=each.name not in ("flickr-twin", "arxiv-twin"))
        for each in plain_graphs(data).values()
    ]
    found += [Workload("molecules", molecules), *plain_relational(data, "mutag")]
    return {each.name: each for each in found}


OP = Op(
    name="edge_region",
    title="Nonlinear functions of edges: values, and values and gradients",
    workloads=graphs,
    modes={f"{model} {kind}": () for model in READS for kind in ("forward", "gradients")},
    widths={"cpu": (64,), "gpu": (64,)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family(PLAIN, "jax", ("jax",), plain_candidates),
    ),
    baseline=PLAIN,
)
