"""What benchmarks of whole models share: inference, and a step of gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.definition import TF32_TOLERANCE, Candidate, Case, Problem
from benchmarks.problems import Expected, features, once

LEARNING_RATE = 100.0  # so large that an update shows a wrong gradient

Layers = list[dict[str, np.ndarray]]


def random_layer(
    rng: np.random.Generator, width: int, names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Matrices that keep the scale of features, as (inputs, outputs); small biases."""
    return {
        name: rng.standard_normal((width,) if "bias" in name else (width, width)).astype("f4")
        * np.float32(0.1 if "bias" in name else width**-0.5)
        for name in names
    }


def model_problem(
    graph: Any,
    structure: tuple[str, ...],
    case: Case,
    parameters: Callable[[str, int], Layers],
    reference: Callable[[Any, str, int], tuple[np.ndarray, Layers]],
) -> Problem:
    """The arrays of the structure, X, the parameters and, for training, the labels."""
    of = case.mode.split(" ")[0], case.width
    layers, (logits, updated) = parameters(*of), reference(graph, *of)
    inputs: dict[str, Any] = {
        "x": features("x", graph.num_nodes, case.width, "float32"),
        **{name: getattr(graph, name) for name in structure},
        **{f"{i} {name}": array for i, of in enumerate(layers) for name, array in of.items()},
    }
    outputs, tolerance = [logits], TF32_TOLERANCE
    if case.mode.endswith(" training"):  # errors add up on the way back
        tolerance *= 3
        inputs["labels"] = labels(graph.num_nodes, case.width)
        outputs = [array for layer in updated for array in layer.values()]
    return Problem(inputs, tuple(map(Expected.whole, outputs)), np.dtype("float32"), tolerance)


@once
def labels(num_nodes: int, width: int) -> np.ndarray:
    """A class for each node."""
    return np.random.default_rng(0).integers(width, size=num_nodes, dtype=np.int32)


def loss_gradient(logits: np.ndarray) -> np.ndarray:
    """Of the mean cross entropy against `labels`."""
    powers = np.exp(logits - logits.max(1, keepdims=True))
    gradient = powers / powers.sum(1, keepdims=True)
    gradient[np.arange(len(logits)), labels(*logits.shape)] -= 1
    return gradient / len(logits)


def jax_model(
    name: str,
    logits: Callable[..., Any],
    layers: Layers,
    problem: Problem,
    *operands: Any,
) -> Candidate:
    """``logits(layers, x, *operands)``, or the parameters after a step of gradient descent.

    The step is wanted where the problem has an input called "labels".
    """
    import jax
    import jax.numpy as jnp

    x, targets = problem.inputs["x"], problem.inputs.get("labels")
    if targets is None:
        return Candidate(name, lambda *all_: (logits(*all_),), (layers, x, *operands))
    order = [list(layer) for layer in layers]  # JAX sorts a dictionary's keys

    def step(layers: Any, targets: Any, x: Any, *operands: Any) -> Any:
        def loss(layers: Any) -> Any:
            log_probabilities = jax.nn.log_softmax(logits(layers, x, *operands))
            return -jnp.take_along_axis(log_probabilities, targets[:, None], 1).mean()

        gradients = jax.grad(loss)(layers)
        return [
            layer[name] - LEARNING_RATE * of[name]
            for layer, of, names in zip(layers, gradients, order, strict=True)
            for name in names
        ]

    return Candidate(name, step, (layers, targets, x, *operands))
