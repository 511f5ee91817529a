"""HGNN, UniGIN and UniGCNII of two convolutions: inference, and a training step (plain descent).

Features, hidden features and classes are as many: the case's width. Scales of nodes and hyperedges
are computed beforehand in every family. Products of dense matrices may use TF32 in every family.
The floor reads hypergraph, features and parameters once and writes the result once.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from benchmarks.definition import Candidate, Case, Family, Op, Problem
from benchmarks.models import (
    LEARNING_RATE,
    Layers,
    jax_model,
    loss_gradient,
    model_problem,
    random_layer,
)
from benchmarks.peers import hypergraph_conv, hypergraph_conv_operands, int64, torch_csr
from benchmarks.problems import features, once
from benchmarks.report import OURS
from benchmarks.workloads import Incidence, hypergraphs

MODELS = ("hgnn", "unigin", "unigcnii")
CONVOLUTIONS = 2
ALPHA, LAMDA = 0.1, 0.5  # of UniGCNII


class Scales(NamedTuple):
    """What nodes and hyperedges are multiplied by around the two sums; None means ones."""

    node_in: np.ndarray | None
    hyperedge: np.ndarray
    node_out: np.ndarray | None


def problem(graph: Incidence, case: Case) -> Problem:
    """See `model_problem`."""
    return model_problem(graph, ("node_idx", "hyperedge_idx"), case, parameters, reference)


@once
def parameters(model: str, width: int) -> Layers:
    """Of each layer in the order of the network."""
    layer = partial(random_layer, np.random.default_rng([width, *model.encode()]), width)
    if model == "unigcnii":
        maps = [layer(["kernel", "bias"]) for _ in range(2)]
        return [maps[0], *(layer(["kernel"]) for _ in range(CONVOLUTIONS)), maps[1]]
    return [layer(["kernel", "bias"]) for _ in range(CONVOLUTIONS)]


@once
def scales(graph: Incidence, model: str) -> Scales:
    """Those of HGNN (symmetric), UniGIN (means over hyperedges) and UniGCN."""

    def power(degrees: np.ndarray, exponent: float) -> np.ndarray:
        positive = np.maximum(degrees, 1e-30)
        return np.where(degrees > 0, positive**exponent, 0).astype(np.float32)

    node, mean = power(graph.node_degrees, -0.5), power(graph.hyperedge_degrees, -1.0)
    if model == "hgnn":
        return Scales(node, mean, node)
    if model == "unigin":
        return Scales(None, mean, None)
    sums = np.bincount(
        graph.hyperedge_idx,
        graph.node_degrees[graph.node_idx].astype(float),
        minlength=graph.num_hyperedges,
    )
    return Scales(None, mean * power(sums * mean, -0.5), node)


def beta(layer: int) -> float:
    """UniGCNII's share of the map, by the convolution's number from 1."""
    return math.log(LAMDA / layer + 1)


def network(
    model: str, layers: Any, x: Any, aggregate: Callable[[Any], Any], relu: Callable[[Any], Any]
) -> Any:
    """The logits, in any library of arrays."""
    if model == "unigcnii":
        first, *convolutions, last = layers
        start = h = relu(x @ first["kernel"] + first["bias"])
        for number, layer in enumerate(convolutions, start=1):
            z = (1 - ALPHA) * aggregate(h) + ALPHA * start
            h = relu((1 - beta(number)) * z + beta(number) * (z @ layer["kernel"]))
        return h @ last["kernel"] + last["bias"]
    h = x
    for index, layer in enumerate(layers):
        h = relu(h) if index else h
        if model == "hgnn":
            h = aggregate(h @ layer["kernel"] + layer["bias"])
        else:
            mapped = h @ layer["kernel"]
            h = mapped + aggregate(mapped) + layer["bias"]
    return h


# The models in float64.


@once
def operator(graph: Incidence, model: str) -> Any:
    """The aggregation as a sparse matrix times a sparse matrix: applied in turn."""
    shape = graph.num_nodes, graph.num_hyperedges
    ones = np.ones(len(graph.node_idx))
    incidence = scipy.sparse.csr_array((ones, (graph.node_idx, graph.hyperedge_idx)), shape=shape)
    of = scales(graph, model)

    def diagonal(scale: np.ndarray | None, size: int) -> Any:
        return scipy.sparse.diags_array(np.ones(size) if scale is None else scale.astype(float))

    nodes, hyperedges = shape
    to_hyperedges = diagonal(of.hyperedge, hyperedges) @ incidence.T @ diagonal(of.node_in, nodes)
    to_nodes = diagonal(of.node_out, nodes) @ incidence
    return to_hyperedges.tocsr(), to_nodes.tocsr()


@once
def reference(graph: Incidence, model: str, width: int) -> tuple[np.ndarray, Layers]:
    """Logits, and the parameters after a step."""
    layers = parameters(model, width)
    to_hyperedges, to_nodes = operator(graph, model)
    x = features("x", graph.num_nodes, width, "float32").whole().astype(np.float64)

    def forward(h: np.ndarray) -> np.ndarray:
        return to_nodes @ (to_hyperedges @ h)

    def backward(g: np.ndarray) -> np.ndarray:
        return to_hyperedges.T @ (to_nodes.T @ g)

    def relu(h: np.ndarray) -> np.ndarray:
        return np.maximum(h, 0)

    logits = network(model, layers, x, forward, relu)
    g = loss_gradient(logits)
    gradients = (_unigcnii_back if model == "unigcnii" else _stack_back)(
        model, layers, x, g, forward, backward
    )
    updated = [
        {name: layer[name] - LEARNING_RATE * of[name] for name in layer}
        for layer, of in zip(layers, gradients, strict=True)
    ]
    return logits, updated


def _stack_back(
    model: str, layers: Layers, x: np.ndarray, g: np.ndarray, forward: Any, backward: Any
) -> list[dict[str, Any]]:
    inputs = [x]
    for depth in range(1, len(layers)):
        h = network(model, layers[:depth], x, forward, lambda h: np.maximum(h, 0))
        inputs.append(np.maximum(h, 0))
    gradients = []
    for layer, h in zip(layers[::-1], inputs[::-1], strict=True):
        to_mapped = backward(g) if model == "hgnn" else g + backward(g)
        to_bias = to_mapped if model == "hgnn" else g
        gradients.append({"kernel": h.T @ to_mapped, "bias": to_bias.sum(0)})
        g = (to_mapped @ layer["kernel"].T) * (h > 0)
    return gradients[::-1]


def _unigcnii_back(
    model: str, layers: Layers, x: np.ndarray, g: np.ndarray, forward: Any, backward: Any
) -> list[dict[str, Any]]:
    first, *convolutions, last = layers
    start = h = np.maximum(x @ first["kernel"] + first["bias"], 0)
    saved = []
    for number, layer in enumerate(convolutions, start=1):
        z = (1 - ALPHA) * forward(h) + ALPHA * start
        h = np.maximum((1 - beta(number)) * z + beta(number) * (z @ layer["kernel"]), 0)
        saved.append((number, layer, z, h))
    gradients: list[dict[str, Any]] = [{"kernel": h.T @ g, "bias": g.sum(0)}]
    g = g @ last["kernel"].T
    to_start = np.zeros_like(start)
    for number, layer, z, h in saved[::-1]:
        g = g * (h > 0)
        gradients.append({"kernel": beta(number) * (z.T @ g)})
        to_z = (1 - beta(number)) * g + beta(number) * (g @ layer["kernel"].T)
        to_start += ALPHA * to_z
        g = (1 - ALPHA) * backward(to_z)
    g = (g + to_start) * (start > 0)
    gradients.append({"kernel": x.T @ g, "bias": g.sum(0)})
    return gradients[::-1]


# This library.


def jax_gnn_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The models of ``flax_layers``."""
    import jax
    from flax import nnx

    import flax_layers
    import jax_gnn

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    model = case.mode.split(" ")[0]
    seconds = []
    for _ in range(3):  # the first one compiles
        start = time.perf_counter()
        hypergraph = jax_gnn.Hypergraph.from_incidence(
            graph.node_idx,
            graph.hyperedge_idx,
            num_nodes=graph.num_nodes,
            num_hyperedges=graph.num_hyperedges,
        )
        jax.block_until_ready(hypergraph)
        seconds.append(time.perf_counter() - start)
    details = {"container, ms": min(seconds) * 1e3}
    name = {"hgnn": "HGNN", "unigin": "UniGIN", "unigcnii": "UniGCNII"}[model]
    options: dict[str, Any] = {"dropout_rate": 0.0, "rngs": nnx.Rngs(0)}
    options |= {"learn_eps": False} if model == "unigin" else {}
    options |= {"input_dropout_rate": 0.0} if model == "unigcnii" else {}
    made = getattr(flax_layers, name)(case.width, case.width, case.width, **options)
    definition, state = nnx.split(made)
    convolutions = [f"conv{number}" for number in range(1, CONVOLUTIONS + 1)]
    places = ["input", *convolutions, "output"] if model == "unigcnii" else convolutions
    norms = {"hgnn": jax_gnn.hypergraph_norm, "unigcnii": flax_layers.unigcn_norm}
    given = {"hypergraph_norm": norms[model](hypergraph)} if model in norms else {}

    def logits(tree: Layers, x: Any, hypergraph: Any, given: Any) -> Any:
        values = dict(nnx.to_flat_state(state))
        for place, layer in zip(places, tree, strict=True):
            for parameter, array in layer.items():
                values[place, parameter] = values[place, parameter].replace(array)
        return nnx.merge(definition, nnx.from_flat_state(values))(hypergraph, x, **given)

    made = jax_model(OURS, logits, parameters(model, case.width), problem, hypergraph, given)
    yield replace(made, details=details)


# Plain JAX.

SORTED = "two segment_sum, sorted"


def plain_jax_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library."""
    import jax

    model = case.mode.split(" ")[0]
    by_node = graph.by_node
    operands = (graph.node_idx, graph.hyperedge_idx, by_node[0], by_node[1], scales(graph, model))
    for name, in_two_orders in ((SORTED, True), ("two segment_sum, one order", False)):

        def logits(
            tree: Layers,
            x: Any,
            nodes: Any,
            hyperedges: Any,
            node_rows: Any,
            node_hyperedges: Any,
            of: Scales,
            in_two_orders: bool = in_two_orders,
        ) -> Any:
            def aggregate(h: Any) -> Any:
                h = h if of.node_in is None else h * of.node_in[:, None]
                sums = jax.ops.segment_sum(
                    h[nodes], hyperedges, graph.num_hyperedges, indices_are_sorted=True
                )
                sums = sums * of.hyperedge[:, None]
                rows, cols = (node_rows, node_hyperedges) if in_two_orders else (nodes, hyperedges)
                y = jax.ops.segment_sum(
                    sums[cols], rows, graph.num_nodes, indices_are_sorted=in_two_orders
                )
                return y if of.node_out is None else y * of.node_out[:, None]

            return network(model, tree, x, aggregate, jax.nn.relu)

        yield jax_model(name, logits, parameters(model, case.width), problem, *operands)


# PyG and torch.


def torch_candidates(graph: Incidence, case: Case, problem: Problem) -> Iterator[Candidate]:
    """PyG's scatters, of HGNN its ``HypergraphConv``, and two products with scaled matrices."""
    import torch
    from torch_geometric.utils import scatter

    torch.set_float32_matmul_precision("high")
    model = case.mode.split(" ")[0]
    of = scales(graph, model)
    to_hyperedges, to_nodes = operator(graph, model)

    def scatters(h: Any, nodes: Any, hyperedges: Any, *given: Any) -> Any:
        node_in, hyperedge, node_out = given
        h = h if node_in is None else h * node_in
        sums = scatter(h.index_select(0, nodes), hyperedges, 0, graph.num_hyperedges, reduce="sum")
        messages = (sums * hyperedge).index_select(0, hyperedges)
        y = scatter(messages, nodes, 0, graph.num_nodes, reduce="sum")
        return y if node_out is None else y * node_out

    class Products(torch.autograd.Function):
        """Both directions with matrices that are built beforehand."""

        @staticmethod
        def forward(ctx: Any, h: Any, *matrices: Any) -> Any:
            ctx.matrices = matrices
            return matrices[1] @ (matrices[0] @ h)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return ctx.matrices[3] @ (ctx.matrices[2] @ g), None, None, None, None

    def matrix(a: Any) -> Any:
        a = a.tocsr()
        a.sort_indices()
        return torch_csr(
            a.indptr.astype(np.int64), a.indices.astype(np.int64), a.data, a.shape[1], "float32"
        )

    given = tuple(None if scale is None else torch.tensor(scale[:, None]) for scale in of)
    matrices = (to_hyperedges, to_nodes, to_nodes.T, to_hyperedges.T)
    pairs = int64(graph, "node_idx"), int64(graph, "hyperedge_idx")
    for name, aggregate, operands in (
        ("PyG two scatters", scatters, (*pairs, *given)),
        ("two torch CSR products", Products.apply, tuple(map(matrix, matrices))),
    ):
        yield _torch_candidate(name, aggregate, operands, case, problem)
    if model == "hgnn":
        conv = hypergraph_conv(case.width, graph.num_hyperedges)
        operands = hypergraph_conv_operands(graph, "float32")
        yield _torch_candidate("PyG HypergraphConv", conv, operands, case, problem)


def _torch_candidate(
    name: str, aggregate: Any, operands: tuple[Any, ...], case: Case, problem: Problem
) -> Candidate:
    import torch

    model, mode = case.mode.split(" ")
    names = [list(layer) for layer in parameters(model, case.width)]
    weights = [torch.tensor(a) for layer in parameters(model, case.width) for a in layer.values()]

    def logits(weights: Any, x: Any, operands: Any) -> Any:
        given = iter(weights)
        layers = [{name: next(given) for name in layer} for layer in names]
        return network(model, layers, x, lambda h: aggregate(h, *operands), torch.relu)

    count = len(weights)

    def inference(x: Any, *rest: Any) -> tuple[Any]:
        with torch.no_grad():
            return (logits(rest[:count], x, rest[count:]),)

    def step(x: Any, targets: Any, *rest: Any) -> tuple[Any, ...]:
        own = [weight.detach().requires_grad_() for weight in rest[:count]]
        loss = torch.nn.functional.cross_entropy(logits(own, x, rest[count:]), targets)
        gradients = torch.autograd.grad(loss, own)
        return tuple(
            (w - LEARNING_RATE * gradient).detach()
            for w, gradient in zip(own, gradients, strict=True)
        )

    x = problem.inputs["x"]
    if mode == "inference":
        return Candidate(name, inference, (x, *weights, *operands))
    targets = torch.tensor(problem.inputs["labels"].astype(np.int64))
    return Candidate(name, step, (x, targets, *weights, *operands))


OP = Op(
    name="hypergnn",
    title="Two convolutions of HGNN, UniGIN, UniGCNII: inference and training step",
    workloads=hypergraphs,
    modes={f"{model} {mode}": () for mode in ("inference", "training") for model in MODELS},
    widths={"cpu": (32, 64), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn", "flax"), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("torch", "torch", ("torch", "torch_geometric"), torch_candidates),
    ),
    baseline=SORTED,
)
