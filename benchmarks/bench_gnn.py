"""Three-layer GCN, GIN and GraphSAGE: inference, and a training step (plain gradient descent).

Features, hidden features and classes are as many: the case's width. Degrees and normalised
adjacency matrices are prepared beforehand where the candidate's interface allows it. Products of
dense matrices may use TF32 in every family. The floor reads the graph, features and parameters
once and writes the result once, although three layers depend on each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from benchmarks.peers import jax_gnn_graph, torch_csr
from benchmarks.problems import Expected, features, once
from benchmarks.report import OURS
from benchmarks.workloads import PlainGraph, Workload, plain_graphs

LAYERS = 3

PARAMETERS = {
    "gcn": ("kernel", "bias"),
    "gin": ("kernel_1", "bias_1", "kernel_2", "bias_2"),
    "sage": ("neighbors", "bias", "self"),
}
"""Parameters of a layer, in this order; matrices are (inputs, outputs)."""


def workloads(data: Path | None) -> dict[str, Workload]:
    """Graphs of Flickr's and ogbn-arxiv's size; all others when they are named."""
    chosen = ("flickr-twin", "ogbn-arxiv-twin")
    found = plain_graphs(data).values()
    return {w.name: replace(w, on_request=w.name not in chosen) for w in found}


def problem(graph: PlainGraph, case: Case) -> Problem:
    """See `model_problem`."""
    return model_problem(graph, ("cols", "indptr"), case, parameters, reference)


@once
def parameters(model: str, width: int) -> Layers:
    """Of each layer in the order of the network."""
    rng = np.random.default_rng([width, *model.encode()])
    return [random_layer(rng, width, PARAMETERS[model]) for _ in range(LAYERS)]


# The models in float64.


@once
def reference(graph: PlainGraph, model: str, width: int) -> tuple[np.ndarray, Layers]:
    """Logits, and the parameters after a step."""
    layers, operator = parameters(model, width), adjacency(graph, model)
    forward, backward = _REFERENCES[model]
    h = features("x", graph.num_nodes, width, "float32").whole().astype(np.float64)
    saved = []
    for index, layer in enumerate(layers):
        if index:
            h = np.maximum(h, 0)
        message = operator @ h
        saved.append((layer, h, message))
        h = forward(layer, h, message)
    logits = h
    cotangent = loss_gradient(logits)
    updated = []
    for layer, h, message in reversed(saved):
        gradients, to_h, to_message = backward(layer, h, message, cotangent)
        updated.append({n: layer[n] - LEARNING_RATE * gradients[n] for n in layer})
        cotangent = (to_h + operator.T @ to_message) * (h > 0)
    return logits, updated[::-1]


@once
def adjacency(graph: PlainGraph, model: str) -> Any:
    """What a layer multiplies features by."""
    shape = graph.num_nodes, graph.num_nodes
    a = scipy.sparse.csr_array((np.ones(graph.num_edges), graph.cols, graph.indptr), shape=shape)
    if model == "sage":
        return scipy.sparse.diags_array(1 / np.maximum(np.diff(graph.indptr), 1)) @ a
    a = a + scipy.sparse.eye_array(graph.num_nodes)
    if model == "gin":
        return a.tocsr()
    scale = scipy.sparse.diags_array(a.sum(1) ** -0.5)
    return (scale @ a @ scale).tocsr()


def _gcn(layer: Any, h: Any, message: Any) -> Any:
    return message @ layer["kernel"] + layer["bias"]


def _gcn_back(layer: Any, h: Any, message: Any, g: Any) -> Any:
    return {"kernel": message.T @ g, "bias": g.sum(0)}, 0, g @ layer["kernel"].T


def _gin(layer: Any, h: Any, message: Any) -> Any:
    hidden = np.maximum(message @ layer["kernel_1"] + layer["bias_1"], 0)
    return hidden @ layer["kernel_2"] + layer["bias_2"]


def _gin_back(layer: Any, h: Any, message: Any, g: Any) -> Any:
    hidden = np.maximum(message @ layer["kernel_1"] + layer["bias_1"], 0)
    to_hidden = (g @ layer["kernel_2"].T) * (hidden > 0)
    gradients = {"kernel_1": message.T @ to_hidden, "bias_1": to_hidden.sum(0)}
    gradients |= {"kernel_2": hidden.T @ g, "bias_2": g.sum(0)}
    return gradients, 0, to_hidden @ layer["kernel_1"].T


def _sage(layer: Any, h: Any, message: Any) -> Any:
    return message @ layer["neighbors"] + layer["bias"] + h @ layer["self"]


def _sage_back(layer: Any, h: Any, message: Any, g: Any) -> Any:
    gradients = {"neighbors": message.T @ g, "bias": g.sum(0), "self": h.T @ g}
    return gradients, g @ layer["self"].T, g @ layer["neighbors"].T


_REFERENCES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "gcn": (_gcn, _gcn_back),
    "gin": (_gin, _gin_back),
    "sage": (_sage, _sage_back),
}


# This library.

_PLACES = {
    "kernel": ("kernel",),
    "kernel_1": ("kernel",),
    "bias": ("bias",),
    "bias_1": ("bias",),
    "kernel_2": ("output", "kernel"),
    "bias_2": ("output", "bias"),
    "neighbors": ("kernel",),
    "self": ("root", "kernel"),
}
"""Where ``flax_layers`` has a layer's parameters."""


def jax_gnn_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The models of ``flax_layers``."""
    from flax import nnx

    import flax_layers

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    model = case.mode.split(" ")[0]
    edges = jax_gnn_graph(graph)
    network = getattr(flax_layers, model.upper())(
        case.width, case.width, case.width, dropout_rate=0.0, rngs=nnx.Rngs(0)
    )
    definition, state = nnx.split(network)
    scale = (_node_scale(graph, model)[:, 0],) if model == "gcn" else ()

    def logits(tree: Layers, x: Any, edges: Any, *scale: Any) -> Any:
        values = dict(nnx.to_flat_state(state))
        for index, layer in enumerate(tree, start=1):
            for parameter, array in layer.items():
                path = f"conv{index}", *_PLACES[parameter]
                values[path] = values[path].replace(array)
        network = nnx.merge(definition, nnx.from_flat_state(values))
        return network(edges, x, *(None, *scale) if scale else ())

    yield jax_model(OURS, logits, parameters(model, case.width), problem, edges, *scale)
    if case.mode == "gcn inference":
        yield _sums_alone(graph, case, edges)


SUMS = "its sums alone"
"""As many sums over neighbours as GCN's layers have, and nothing else: a yardstick of how much of
the model's time they are."""


def _sums_alone(graph: PlainGraph, case: Case, edges: Any) -> Candidate:
    import jax_gnn

    def sums(x: Any, edges: Any) -> tuple[Any]:
        for _ in range(LAYERS):
            x = jax_gnn.spmm(edges, x)
        return (x,)

    shape, ones = (graph.num_nodes, graph.num_nodes), np.ones(graph.num_edges)
    matrix = scipy.sparse.csr_array((ones, graph.cols, graph.indptr), shape=shape)
    x = features("x", graph.num_nodes, case.width, case.dtype)
    values = x.whole().astype(np.float64)
    for _ in range(LAYERS):
        values = matrix @ values
    return Candidate(SUMS, sums, (x, edges), expected=(Expected.whole(values),))


# JAX.


def _jax_layers(model: str, aggregate: Callable[[Any], Any]) -> Callable[[Layers, Any], Any]:
    """The layers of a model in plain JAX, given the product with `adjacency`."""
    import jax.numpy as jnp

    def apply(layer: Any, h: Any) -> Any:
        if model == "gcn":  # the order that adds up no more features than there are outputs
            return aggregate(h @ layer["kernel"]) + layer["bias"]
        message = aggregate(h)
        if model == "sage":
            return message @ layer["neighbors"] + layer["bias"] + h @ layer["self"]
        hidden = jnp.maximum(message @ layer["kernel_1"] + layer["bias_1"], 0)
        return hidden @ layer["kernel_2"] + layer["bias_2"]

    def logits(tree: Layers, h: Any) -> Any:
        for index, layer in enumerate(tree):
            h = apply(layer, jnp.maximum(h, 0) if index else h)
        return h

    return logits


SORTED = "segment_sum sorted"
WEIGHTED = "weighted edges, sorted"


def plain_jax_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """What a user writes without this library, scaling nodes, or edges (own ones included)."""
    import jax

    model = case.mode.split(" ")[0]
    tree, num_nodes = parameters(model, case.width), graph.num_nodes

    def add_up(messages: Any, rows: Any, is_sorted: bool) -> Any:
        return jax.ops.segment_sum(messages, rows, num_nodes, indices_are_sorted=is_sorted)

    scale = _node_scale(graph, model)
    for name, is_sorted in ((SORTED, True), ("segment_sum unsorted", False)):

        def logits(
            tree: Layers, x: Any, cols: Any, rows: Any, scale: Any, is_sorted: bool = is_sorted
        ) -> Any:
            def aggregate(h: Any) -> Any:
                if model == "gin":
                    return add_up(h[cols], rows, is_sorted) + h
                if model == "sage":
                    return add_up(h[cols], rows, is_sorted) * scale
                h = h * scale
                return (add_up(h[cols], rows, is_sorted) + h) * scale

            return _jax_layers(model, aggregate)(tree, x)

        yield jax_model(name, logits, tree, problem, graph.cols, graph.rows, scale)

    def weighted(tree: Layers, x: Any, cols: Any, rows: Any, weight: Any) -> Any:
        aggregate = _jax_layers(model, lambda h: add_up(h[cols] * weight, rows, True))
        return aggregate(tree, x)

    yield jax_model(WEIGHTED, weighted, tree, problem, *_weighted_edges(graph, model))


@once
def _weighted_edges(graph: PlainGraph, model: str) -> tuple[np.ndarray, ...]:
    """Columns, rows and weights of `adjacency`, by row."""
    matrix = adjacency(graph, model).tocoo()
    return matrix.col, matrix.row, matrix.data.astype(np.float32)[:, None]


@once
def _node_scale(graph: PlainGraph, model: str) -> np.ndarray:
    degrees = np.diff(graph.indptr).astype(np.float32)[:, None]
    return (degrees + 1) ** -0.5 if model == "gcn" else 1 / np.maximum(degrees, 1)


# PyG.


def pyg_candidates(graph: PlainGraph, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``torch_geometric.nn``'s layers on an edge index, and on a sparse CSR matrix."""
    import torch

    torch.set_float32_matmul_precision("high")
    model, mode = case.mode.split(" ")
    for name, edges in (
        ("PyG edge_index", _edge_index(graph)),
        ("PyG sparse CSR", _sparse_matrix(graph)),
    ):
        layers = _pyg_layers(model, case.width)
        weights = [weight for layer in layers for weight in layer.parameters()]

        def logits(x: Any, edges: Any, layers: Any = layers) -> Any:
            for index, layer in enumerate(layers):
                x = layer(x.relu() if index else x, edges)
            return x

        def inference(x: Any, edges: Any, logits: Any = logits) -> tuple[Any]:
            with torch.no_grad():
                return (logits(x, edges),)

        def step(
            x: Any, edges: Any, targets: Any, logits: Any = logits, weights: Any = weights
        ) -> tuple[Any, ...]:
            loss = torch.nn.functional.cross_entropy(logits(x, edges), targets)
            gradients = torch.autograd.grad(loss, weights)
            updated = [
                (weight - LEARNING_RATE * gradient).detach()
                for weight, gradient in zip(weights, gradients, strict=True)
            ]
            return tuple(weight.T for weight in updated)

        x = problem.inputs["x"]
        if mode == "inference":
            yield Candidate(name, inference, (x, edges))
        else:
            targets = torch.tensor(problem.inputs["labels"].astype(np.int64))
            yield Candidate(name, step, (x, edges, targets))


@once
def _edge_index(graph: PlainGraph) -> Any:
    import torch

    return torch.tensor(np.stack([graph.cols, graph.rows]).astype(np.int64))


@once
def _sparse_matrix(graph: PlainGraph) -> Any:
    ones = np.ones(graph.num_edges)
    return torch_csr(
        graph.indptr.astype(np.int64),
        graph.cols.astype(np.int64),
        ones,
        graph.num_nodes,
        "float32",
    )


def _pyg_layers(model: str, width: int) -> Any:
    """Layers whose parameters come in the order of `PARAMETERS`."""
    import torch
    from torch_geometric import nn

    class Gcn(torch.nn.Module):
        """PyG's layer, with its parameters in the other order."""

        def __init__(self) -> None:
            super().__init__()
            conv = nn.GCNConv(width, width, cached=True)
            self.kernel, self.bias = conv.lin.weight, conv.bias
            self.conv = conv

        def forward(self, x: Any, edges: Any) -> Any:
            return self.conv(x, edges)

    def make() -> Any:
        if model == "gcn":
            return Gcn()
        if model == "sage":
            return nn.SAGEConv(width, width)
        linear = torch.nn.Linear
        return nn.GINConv(
            torch.nn.Sequential(linear(width, width), torch.nn.ReLU(), linear(width, width))
        )

    layers = [make() for _ in range(LAYERS)]
    for layer, values in zip(layers, parameters(model, width), strict=True):
        for weight, value in zip(layer.parameters(), values.values(), strict=True):
            weight.data.copy_(torch.tensor(value.T))
    return layers


OP = Op(
    name="gnn",
    title="Three layers of GCN, GIN, GraphSAGE: inference and training step",
    workloads=workloads,
    modes={f"{model} {mode}": () for mode in ("inference", "training") for model in PARAMETERS},
    widths={"cpu": (32, 64), "gpu": (32, 64)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn", "flax"), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("pyg", "torch", ("torch", "torch_geometric"), pyg_candidates),
    ),
    baseline=SORTED,
)
