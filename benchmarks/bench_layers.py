"""Layers made of programs in training, beside plain JAX and PyG: values, and all gradients.

`layers` has the table. Gradients are those of features, of what edges and points have, and of
parameters. Plain JAX runs the program of the same layer on arrays of all edges. PyG's layers have
the same weights, and get int64 edges sorted by destination. Four relations are told by the sum of
both ends; nodes are of two types, and nn_conv is as wide as in `edge_region`.

``gps`` and ``attention``, its part that has no edges, need a batch: of other graphs, 64 rows in
turn count as one graph. ``attention`` is the values and gradients of dot products within graphs
without projections. Peers get rows that are padded to the largest graph, before the time is taken.

Results are compared as in `edge_region`, those of pdn, han, gps and attention on the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bench_edge_region import (
    KINK_TOLERANCE,
    PLAIN,
    CheckedRows,
    Subgraph,
    draw_rows,
    expect,
    results_of,
    subgraph,
    with_gradients,
)
from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.peers import bounded, skipped
from benchmarks.problems import Repeated, numpy_dtype, once
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, molecules, plain_graphs, row_pointers

ATTENTION = "attention"
QUERIES = "query", "key", "value"
NAMES = (
    *("gine", "gated_gcn", "res_gated", "pna", "edge_conv", "nn_conv", "cg_conv", "cf_conv"),
    *("painn", "egnn", "film", "rgin", "simple_hgn", "super_gat", "heat", "han", "gen", "gmm"),
    *("fa", "agnn", "point_transformer", "point_net", "pdn", "gps"),
)


class Setup(NamedTuple):
    """A layer on a graph.

    Attributes:
        graph: The graph, edges in the order of the layer's container.
        relations: Relation of each edge.
        others: Arguments of the layer that are not differentiable, by name.
        max_nodes: Nodes of the largest graph of the batch.
    """

    graph: PlainGraph
    relations: np.ndarray
    others: dict[str, np.ndarray]
    max_nodes: int


@once
def setup(graph: PlainGraph, structure: str) -> Setup:
    """Return what layers of a kind of container share on a graph."""
    from benchmarks.layers import NODE_TYPES, RELATIONS, graph_sizes

    relations = (graph.rows + graph.cols) % RELATIONS
    if structure == "relational":
        order = np.lexsort((graph.cols, relations, graph.rows))
        graph = replace(graph, cols=graph.cols[order])
        relations = relations[order]
    degrees = np.diff(graph.indptr)
    others = {
        "node_types": np.arange(graph.num_nodes, dtype=np.int32) * NODE_TYPES // graph.num_nodes,
        "node_scale": (degrees + 1.0).astype(np.float32) ** -0.5,
    }
    return Setup(graph, relations, others, int(graph_sizes(graph).max()))


@once
def whole(graph: PlainGraph) -> Subgraph:
    """Return a graph as a subgraph of its own, all of whose rows are checked."""
    nodes, edges = np.arange(graph.num_nodes), np.arange(graph.num_edges)
    spaces = {
        "node": CheckedRows(graph.num_nodes, nodes, nodes, nodes),
        "edge": CheckedRows(graph.num_edges, edges, edges, edges),
    }
    return Subgraph(spaces, graph.rows, graph.cols, is_whole=True)


def width_of(case: Case) -> int:
    """Return the width of a case's layer."""
    divisor = 2 if case.workload.startswith("molecules") else 4
    return max(case.width // divisor, 1) if case.mode == "nn_conv" else case.width


def draw_parameter(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Draw matrices that keep the scale of features, vectors, and deviations that are not small."""
    rng = np.random.default_rng([*name.encode(), *shape])
    scale = shape[-2] ** -0.5 if len(shape) > 1 else 0.5
    x = scale * rng.standard_normal(shape or (1,), np.float32)
    return (np.abs(x) + 0.5 if name == "deviation" else x).astype(numpy_dtype(dtype))


def problem(graph: PlainGraph, case: Case) -> Problem:
    """Return the inputs of a layer, and in float64 the rows of results and gradients to check."""
    import jax

    from benchmarks import layers

    tolerance = KINK_TOLERANCE.get(case.dtype)
    if case.mode == ATTENTION:
        known = setup(graph, "batch")
        batch = layers.container("batch", graph, known.relations)
        shape = layers.HEADS, case.width // layers.HEADS
        inputs: dict[str, Any] = {
            name: draw_rows(name, graph.num_nodes, shape, case.dtype) for name in QUERIES
        }
        attend = partial(layers.dense_attention, batch, max_nodes=known.max_nodes)
        spaces = dict.fromkeys(inputs, "node")
        expected = expect(whole(graph), inputs, spaces, attend, set(), case.dtype, True)
        return Problem(inputs, tuple(expected), numpy_dtype(case.dtype), tolerance)
    layer, width = layers.LAYERS[case.mode], width_of(case)
    known = setup(graph, layer.structure)
    with jax.enable_x64(True):
        made = layer.make(width, graph, np.float64)
    space_of = {"x": "node"}
    space_of |= {k: "edge" if k in ("edge_features", "distance") else "node" for k in layer.inputs}
    num_rows = {"node": graph.num_nodes, "edge": graph.num_edges}
    inputs = {
        name: draw_rows(
            name, num_rows[space], layers.row_shape(layer, name, width, vars(made)), case.dtype
        )
        for name, space in space_of.items()
    }
    shapes = layers.parameter_shapes(made)
    inputs |= {name: draw_parameter(name, shape, case.dtype) for name, shape in shapes.items()}
    part = subgraph(known.graph, case.width) if layer.is_local else whole(known.graph)
    nodes, edges = part.spaces["node"].ids, part.spaces["edge"].ids
    indptr = row_pointers(np.bincount(part.dst, minlength=len(nodes)))
    piece = PlainGraph(len(nodes), indptr, part.dst, part.src, graph.sizes)
    structure = layers.container(layer.structure, piece, known.relations[edges])
    others = {name: known.others[name][nodes] for name in layer.others}
    run = function_of(layer, made, known.max_nodes)

    def reference(*arrays: Any) -> Any:
        with layers.plain_jax():
            return run(*arrays, structure, others)

    space_of |= dict.fromkeys(shapes, "shared")
    edge_results = {1} if case.mode == "gated_gcn" else set()
    expected = expect(part, inputs, space_of, reference, edge_results, case.dtype, True)
    return Problem(inputs, tuple(expected), numpy_dtype(case.dtype), tolerance)


def function_of(layer: Any, made: Any, max_nodes: int) -> Callable[..., Any]:
    """Return a layer as a function of inputs, parameters, the graph and other arguments."""
    from benchmarks import layers

    names = "x", *layer.inputs
    merge = layers.with_parameters(made)

    def run(*arguments: Any) -> Any:
        *arrays, structure, others = arguments
        inputs = dict(zip(names, arrays, strict=False))
        return layer(merge(arrays[len(names) :]), structure, max_nodes, **inputs, **others)

    return run


# --- Candidates ----------------------------------------------------------------------------------


def _candidate(
    name: str, function: Callable[..., Any], problem: Problem, *operands: Any
) -> Candidate:
    """Return a candidate of values and gradients to all of the problem's inputs."""
    cotangents = [x for key, x in problem.inputs.items() if key.startswith("cotangent")]
    arrays = [x for key, x in problem.inputs.items() if not key.startswith("cotangent")]
    differentiated = with_gradients(results_of(function), len(arrays))

    def flat(*arguments: Any) -> tuple[Any, ...]:
        return differentiated(arguments[: len(cotangents)], *arguments[len(cotangents) :])

    return Candidate(name, flat, (*cotangents, *arrays, *operands))


def _layer_function(graph: PlainGraph, case: Case) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function of a case, and its operands after the problem's inputs."""
    from benchmarks import layers
    from flax_layers import gps

    structure = "batch" if case.mode == ATTENTION else layers.LAYERS[case.mode].structure
    known = setup(graph, structure)
    operand = layers.container(structure, known.graph, known.relations)
    if case.mode == ATTENTION:

        def attend(query: Any, key: Any, value: Any, batch: Any) -> Any:
            return gps.attention_within_graphs(batch, query, key, value, known.max_nodes)

        return attend, (operand,)
    layer = layers.LAYERS[case.mode]
    made = layer.make(width_of(case), graph, numpy_dtype(case.dtype))
    others = {name: known.others[name] for name in layer.others}
    return function_of(layer, made, known.max_nodes), (operand, others)


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Yield the layer."""
    function, operands = _layer_function(graph, case)
    yield _candidate(OURS, function, problem, *operands)


def plain_jax_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Yield the same layer on arrays of all edges; attention on padded rows."""
    from benchmarks import layers

    if case.mode == ATTENTION:
        yield _padded(PLAIN, graph, problem, "xla")
        return
    function, operands = _layer_function(graph, case)

    def plain(*arguments: Any) -> Any:
        with layers.plain_jax():
            return function(*arguments)

    # About four arrays of edges, as wide as the widest parameter.
    rows = (x.shape[1:] or (1,) for x in problem.inputs.values())
    widest = max(case.width, *(row[-1] for row in rows))
    num_bytes = 4.0 * graph.num_edges * widest * problem.output_dtype.itemsize
    yield bounded(_candidate(PLAIN, plain, problem, *operands), num_bytes)


def cudnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Yield cuDNN's fused attention of padded rows."""
    if case.mode != ATTENTION:
        return
    if problem.output_dtype.itemsize != 2:
        yield skipped("cudnn", "cuDNN takes half types")
        return
    yield _padded("cudnn", graph, problem, "cudnn")


def _padded(name: str, graph: PlainGraph, problem: Problem, implementation: str) -> Candidate:
    """Return attention of rows that are padded beforehand; it is checked in full."""
    from benchmarks.layers import attention_of_padded, graph_sizes

    sizes = graph_sizes(graph)
    places = np.arange(sizes.max()) < sizes[:, None]

    def padded(x: Any) -> np.ndarray:
        """Return rows as (graphs, nodes, heads, width)."""
        rows = x.whole() if isinstance(x, Repeated) else x
        array = np.zeros((*places.shape, *rows.shape[1:]), rows.dtype)
        array[places] = rows
        return array

    arrays = {key: padded(x) for key, x in problem.inputs.items()}
    expected = tuple(type(y).whole(padded(y.values)) for y in problem.expected)

    def attend(query: Any, key: Any, value: Any, sizes: Any = None) -> Any:
        y = attention_of_padded(query, key, value, sizes, implementation)
        if sizes is None:
            return y
        return y * (sizes[:, None] > np.arange(y.shape[1]))[..., None, None]  # else undefined

    lengths = [] if places.all() else [sizes.astype(np.int32)]
    candidate = _candidate(name, attend, replace(problem, inputs=arrays), *lengths)
    return replace(candidate, expected=expected)


def pyg_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Yield PyG's layer."""
    import torch
    from torch_geometric import nn

    from benchmarks import layers

    if case.mode == ATTENTION:
        return
    layer, width = layers.LAYERS[case.mode], width_of(case)
    if layer.theirs is None:
        yield skipped("pyg", f"PyG has no {layer.kind}")
        return
    torch.set_float32_matmul_precision("high")
    dtype = getattr(torch, case.dtype)
    module = layer.theirs(nn, width, graph).to(torch.get_default_device(), dtype)
    cotangents = [x for key, x in problem.inputs.items() if key.startswith("cotangent")]
    inputs = {name: problem.inputs[name] for name in ("x", *layer.inputs)}
    values = {
        key: x
        for key, x in problem.inputs.items()
        if key not in inputs and not key.startswith("cotangent")
    }
    parameters = layers.torch_parameters(layer, module, values)
    for name, value in values.items():
        layers.set_parameter(parameters[name], value)
    weights = [tensor for p in parameters.values() for tensor in layers.tensors_of(p)]
    known = setup(graph, layer.structure)
    edges = torch.tensor(np.stack([known.graph.cols, known.graph.rows]).astype(np.int64))
    relations = torch.tensor(known.relations.astype(np.int64))
    sizes = torch.tensor(layers.graph_sizes(graph).astype(np.int64))
    others: dict[str, Any] = {
        "relations": relations,
        "node_types": torch.tensor(known.others["node_types"].astype(np.int64)),
        "graph_ids": torch.repeat_interleave(sizes),
        "by_type": {key: edges[:, relations == k] for k, key in enumerate(layers.TYPES)},
    }

    def training(*arguments: Any) -> tuple[Any, ...]:
        cotangent, *arrays = arguments
        leaves = [x.detach().requires_grad_() for x in arrays]
        named = dict(zip(inputs, leaves, strict=True)) | others
        if layer.call is None:
            features = [named["edge_features"]] if "edge_features" in inputs else []
            y = module(leaves[0], edges, *features)
        else:
            y = layer.call(module, leaves[0], edges, named)
        gradients = torch.autograd.grad(y, [*leaves, *weights], cotangent)
        of_weights = iter(gradients[len(leaves) :])
        turned = [
            layers.as_ours(p, [next(of_weights) for _ in layers.tensors_of(p)], values[name].shape)
            for name, p in parameters.items()
        ]
        return y.detach(), *gradients[: len(leaves)], *turned

    yield Candidate("pyg", training, (*cotangents, *inputs.values()))


def graphs(data: Path | None) -> dict[str, Workload]:
    """Return ogbn-arxiv or its twin, and 2,000 molecules; others run on request.

    ``molecules-NODES`` are batches of graphs of equal sizes, 64,000 nodes in all.
    """
    known = [
        replace(workload, on_request=workload.name not in ("ogbn-arxiv", "ogbn-arxiv-twin"))
        for workload in plain_graphs(data).values()
    ]
    known.append(Workload("molecules", partial(molecules, 2_000)))
    for size in (32, 128, 512):
        draw = partial(molecules, 64_000 // size, least=size, most=size)
        known.append(Workload(f"molecules-{size}", draw, on_request=True))
    return {workload.name: workload for workload in known}


OP = Op(
    name="layers",
    title="Layers made of programs: values and all gradients",
    workloads=graphs,
    modes=dict.fromkeys((*NAMES, ATTENTION), ()),
    widths={"cpu": (64,), "gpu": (64,)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn", "flax"), jax_gnn_candidates),
        Family(PLAIN, "jax", ("jax", "flax"), plain_jax_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
        Family("cudnn", "jax", ("jax",), cudnn_candidates, ("gpu",)),
    ),
    baseline=PLAIN,
)
