"""Programs of messages beside the hand-written layers: R-GCN, RGAT, HGT and GATv2, with gradients.

A mode names the model, one head, and whether gradients are wanted. R-GCN is the problem of
``relational``, RGAT and HGT are those of ``relational_attention``; both say how results are
checked. GATv2 has the graph's edges without their relations, and results are checked at some nodes.
The families ``jax_gnn layer``, ``plain jax`` and ``pyg`` are those problems' own, and
``jax_gnn passes`` has the programs with some of their passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import bench_relational as sums
from benchmarks import bench_relational_attention as attention
from benchmarks.definition import TF32_TOLERANCE, Candidate, Case, Family, Op, Problem
from benchmarks.peers import bounded, jax_candidate
from benchmarks.problems import CHECKED_NUMBERS, Expected, features, numpy_dtype
from benchmarks.report import OURS
from benchmarks.workloads import Triples, relational_graphs

MODELS = "rgcn", "rgat", "hgt", "gatv2"
LAYER = "layer"
LARGE = 10_000_000
GATV2 = "x", "kernel", "dst_kernel", "attention"


def _model(case: Case) -> str:
    return case.mode.split(" ")[0]


def _of_sums(case: Case) -> Case:
    """The case of the benchmark ``relational``."""
    return replace(case, mode=case.mode.split(" ")[2])


def problem(graph: Triples, case: Case) -> Problem:
    """That of the model's own benchmark."""
    model = _model(case)
    if model == "rgcn":
        return sums.problem(graph, _of_sums(case))
    if model == "gatv2":
        return _gatv2_problem(graph, case)
    return attention.problem(graph, case)


# --- GATv2 ---------------------------------------------------------------------------------------


def _gatv2_problem(graph: Triples, case: Case) -> Problem:
    """Some rows of the result; of gradients the shapes."""
    width, dtype = case.width, case.dtype
    rng = np.random.default_rng([graph.num_nodes, width])
    shapes = {"kernel": (width, width), "dst_kernel": (width, width), "attention": (1, width)}
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(width)).astype(numpy_dtype(dtype))
        for name, shape in shapes.items()
    }
    inputs: dict[str, Any] = {"x": features("x", graph.num_nodes, width, dtype), **weights}
    expected = [_gatv2(graph, inputs)]
    if case.mode.endswith("training"):
        inputs["cotangent"] = features("cotangent", graph.num_nodes, width, dtype)
        for name in GATV2:
            shape = inputs[name].shape
            empty = np.zeros((0, *shape[1:]))
            expected.append(Expected(empty, shape, np.zeros(0, np.int64)))
    return Problem(
        inputs={**inputs, "src": graph.src, "dst": graph.dst},
        expected=tuple(expected),
        output_dtype=numpy_dtype(dtype),
        tolerance=TF32_TOLERANCE if dtype == "float32" else None,
    )


def _gatv2(graph: Triples, inputs: dict[str, Any]) -> Expected:
    width = inputs["kernel"].shape[0]
    order, starts = graph.by(graph.dst, graph.num_nodes)
    counts = np.diff(starts).astype(np.int64)
    chosen = np.random.default_rng(0).permutation(graph.num_nodes)
    chosen = np.sort(chosen[np.cumsum(counts[chosen]) * width <= CHECKED_NUMBERS // 4])
    edges = np.concatenate([order[starts[i] : starts[i + 1]] for i in chosen])
    place = np.repeat(np.arange(len(chosen)), counts[chosen])
    w = {name: inputs[name].astype(np.float64) for name in GATV2[1:]}
    value = inputs["x"].rows(graph.src[edges]) @ w["kernel"]
    summed = value + inputs["x"].rows(graph.dst[edges]) @ w["dst_kernel"]
    score = np.where(summed > 0, summed, attention.SLOPE * summed) @ w["attention"][0]
    top = np.full(len(chosen), -np.inf)
    np.maximum.at(top, place, score)
    power = np.exp(score - top[place])
    total = np.zeros(len(chosen))
    np.add.at(total, place, power)
    y = np.zeros((len(chosen), width))
    np.add.at(y, place, (power / total[place])[:, None] * value)
    return Expected(y, (graph.num_nodes, width), chosen)


# --- Programs ------------------------------------------------------------------------------------


def programs(**options: Any) -> dict[str, Any]:
    """The models, each as a program of its benchmark's arrays, with options."""
    import jax
    import jax.numpy as jnp

    from jax_gnn import Edge, Node, Relation, program

    gate, slope = attention.GATE, attention.SLOPE

    def rgcn(g: Any, x: Node, rhs: Relation, weight: Edge) -> Any:
        return g.sum(weight * (g.src(x) @ g.relation(rhs)))

    def rgat(g: Any, x: Node, w: Relation, to_dst: Any, to_src: Any) -> Any:
        z, t = g.src(x) @ g.relation(w), g.dst(x) @ g.relation(w)
        s = jax.nn.leaky_relu(t @ to_dst[0] + z @ to_src[0], slope)
        return g.sum(g.softmax(s) * z)

    def hgt(
        g: Any, x: Node, key: Any, query: Any, value: Any, a: Relation, m: Relation, out: Any
    ) -> Any:
        k, v = g.src(x @ key) @ g.relation(a)[0], g.src(x @ value) @ g.relation(m)[0]
        s = g.dst(x @ query) @ k / np.sqrt(len(key))
        y = g.sum(g.softmax(s) * v)
        return gate * jax.nn.gelu(y, approximate=False) @ out + (1 - gate) * x

    def gatv2(g: Any, x: Node, kernel: Any, dst_kernel: Any, a: Any) -> Any:
        left, right = x @ kernel, x @ dst_kernel
        s = jax.nn.leaky_relu(g.src(left) + g.dst(right), slope) @ jnp.ravel(a)
        return g.sum(g.softmax(s) * g.src(left))

    return {each.__name__: program(each, **options) for each in (rgcn, rgat, hgt, gatv2)}


def _inputs(model: str) -> tuple[str, ...]:
    return {"rgcn": sums.INPUTS, "gatv2": GATV2}.get(model) or attention.INPUTS[model]


PASSES: dict[str, tuple[str, ...]] = {
    "no passes": (),
    "compact": ("cse", "compact_pairs"),
    "reordered": ("cse", "hoist_linear_maps", "contraction_order"),
    "compact, then reordered": ("cse", "compact_pairs", "contraction_order"),
}
"""What the paper's table 5 compares, by the passes that do it; all of them are the program's."""


def program_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The program as users call it."""
    yield _candidate(OURS, graph, case, problem)


def passes_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The program with some of its passes.

    On the largest graphs only those that store nothing by edge which varies less.
    """
    for name, passes in PASSES.items():
        if "compact_pairs" in passes or graph.num_edges < LARGE:
            yield _candidate(name, graph, case, problem, passes=passes)


def _operands(graph: Triples, case: Case) -> tuple[Any, ...]:
    """What a program gets beside its inputs, the graph first."""
    given = graph.graph
    model = _model(case)
    if model == "rgcn":
        return given, graph.mean
    return ((given.nodes if model == "gatv2" else given),)


def _candidate(
    name: str, graph: Triples, case: Case, problem: Problem, **options: Any
) -> Candidate:
    run, inputs = programs(**options)[_model(case)], _inputs(_model(case))

    def forward(*arrays: Any) -> Any:
        given, rest = arrays[: len(inputs)], arrays[len(inputs) :]
        return run(rest[0], *given, *rest[1:])

    return jax_candidate(name, forward, problem, _operands(graph, case), inputs)


def counted_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What the program is counted to take, with all and with some passes: nothing is run."""
    import jax

    given, *rest = _operands(graph, case)
    arrays = [problem.inputs[name] for name in _inputs(_model(case))]
    shapes = [jax.ShapeDtypeStruct(each.shape, problem.output_dtype) for each in [*arrays, *rest]]
    found = {}
    for name, passes in {"all passes": None, **PASSES}.items():
        options = {} if passes is None else {"passes": passes}
        text = programs(**options)[_model(case)].explain(given, *shapes)
        found[f"{name}, µs"] = float(re.findall(r"counted ([0-9.]+) µs on", text)[-1])
    yield Candidate("counted", lambda: (), (), skip="nothing is run", details=found)


def layer_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What this library has of the model."""
    model = _model(case)
    if model == "gatv2":
        yield jax_candidate(LAYER, _gatv2_layer(case), problem, (graph.graph.nodes,), GATV2)
        return
    if model == "rgcn":
        found = next(sums.jax_gnn_candidates(graph, _of_sums(case), problem))
    else:
        found = next(attention.jax_gnn_candidates(graph, case, problem))
    yield replace(found, name=LAYER)


def _gatv2_layer(case: Case) -> Callable[..., Any]:
    import jax.numpy as jnp
    from flax import nnx

    from flax_layers import GATv2Conv

    options: Any = {
        "add_self_loops": False,
        "use_bias": False,
        "param_dtype": jnp.dtype(case.dtype),
    }
    conv = nnx.eval_shape(lambda: GATv2Conv(case.width, case.width, **options, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(conv)

    def forward(x: Any, *rest: Any) -> Any:
        weights, graph = dict(zip(GATV2[1:], rest, strict=False)), rest[-1]
        new = nnx.State({name: state[name] for name in state})
        nnx.replace_by_pure_dict(new, {**nnx.to_pure_dict(state), **weights})
        conv = nnx.merge(graphdef, new)
        conv.eval()
        return conv(graph, x)

    return forward


def plain_jax_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Those of the model's own benchmark; of GATv2, what the program is by definition."""
    model = _model(case)
    if model == "rgcn":
        yield from sums.plain_jax_candidates(graph, _of_sums(case), problem)
        return
    if model != "gatv2":
        yield from attention.plain_jax_candidates(graph, case, problem)
        return
    run, operands = programs()[model].reference, _operands(graph, case)

    def forward(*arrays: Any) -> Any:
        return run(arrays[-1], *arrays[:-1])

    candidate = jax_candidate("reference", forward, problem, operands, GATV2)
    row = case.width * problem.output_dtype.itemsize
    yield bounded(candidate, 4.0 * graph.num_edges * row)


def pyg_candidates(graph: Triples, case: Case, problem: Problem) -> Iterator[Candidate]:
    """PyG's layers of the model, as in the model's own benchmark; of GATv2 none."""
    model = _model(case)
    if model == "rgcn":
        yield from sums.pyg_candidates(graph, _of_sums(case), problem)
    elif model != "gatv2":
        yield from attention.pyg_candidates(graph, case, problem)


OP = Op(
    name="program",
    title="Programs of messages beside layers: inference, and value and gradients",
    workloads=relational_graphs,
    modes={f"{model} h1 {mode}": () for model in MODELS for mode in ("inference", "training")},
    widths={"cpu": (64,), "gpu": (64,)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), program_candidates),
        Family(f"{OURS} passes", "jax", ("jax_gnn",), passes_candidates),
        Family("counted", "numpy", ("jax_gnn",), counted_candidates),
        Family(f"{OURS} layer", "jax", ("jax_gnn", "flax_layers"), layer_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
    ),
    baseline=sums.EVERY_RELATION,
)
