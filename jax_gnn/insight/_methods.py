"""Methods of attribution, each a function of a call."""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn.insight._call import Call
from jax_gnn.insight._gates import Log, check_edged, edges_of, gated

Mask = dict[str, Array]

# GNNExplainer's weights of the sizes and entropies of the masks in the loss (appendix B of the
# paper, and its program), and the deviation of the initial mask of features.
EDGE_SIZE, EDGE_ENTROPY, FEATURE_SIZE, FEATURE_ENTROPY = 0.005, 1.0, 1.0, 0.1
FEATURE_DEVIATION = 0.1

# Integration: intervals of a compiled call, maximum number of intervals, and nodes and weights of
# the Gauss-Legendre rule in each interval.
INTERVALS, MAX_INTERVALS = 32, 2048
RULE = np.stack(np.polynomial.legendre.leggauss(2), 1)


def _ones(call: Call) -> Array:
    return jnp.where(edges_of(call.graph).rows >= 0, 1, 0).astype(accumulator_dtype(call.x.dtype))


@jax.jit
def _with_gates(call: Call) -> tuple[Array, Array, Array]:
    """Return the output with all gates 0, with all edges removed, and with all edges."""
    keep = jnp.zeros(edges_of(call.graph).num_edges, bool)
    return call.output(gate=keep.astype(call.x.dtype)), call.output(keep=keep), call.output()


def check_gates(call: Call) -> None:
    """Raise a ValueError if the output depends on edges, but not on gates."""
    gated, removed, full = (jax.tree.leaves(output) for output in _with_gates(call))

    def is_equal(first: list[Array], second: list[Array]) -> bool:
        pairs = zip(first, second, strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    if is_equal(gated, full) and not is_equal(removed, full):
        raise ValueError(
            "no message of the model passes through an op that takes factors: use "
            "method='occlusion', or edges=False for attributions of features alone"
        )


@functools.partial(jax.jit, static_argnames="edges")
def gradients(call: Call, *, edges: bool) -> tuple[Array, Array | None]:
    """Return the gradients with respect to features, and to gates."""
    if not edges:
        return jax.grad(call.value)(call.x), None
    gradient = jax.grad(lambda x, gate: call.value(x, gate=gate), argnums=(0, 1))
    to_x, to_gate = gradient(call.x, _ones(call))
    return to_x, to_gate


# --- Integrated gradients ------------------------------------------------------------------------


def integrated(call: Call, start: Array, edges: bool) -> tuple[Array, Array | None]:
    """Integrate gradients from a baseline of the features, and from gates of 0."""
    features = _integral("x", call, start, call.x - start)
    if not edges:
        return features, None
    gates = _ones(call)
    return features, _integral("gate", call, 0 * gates, gates)


def _integral(name: str, call: Call, start: Array, step: Array) -> Array:
    """Return ``step`` times the mean gradient on the line from ``start`` to ``start + step``.

    Points of the line are values of an argument of `Call.value`, ``"x"`` or ``"gate"``. The sum of
    the result is the change of the explained value along the line. Intervals in which a sum misses
    that change are halved: at the kink of a ReLU gradients jump, which no rule of fixed points
    integrates.
    """
    y0, y1 = (float(call.value(**{name: start + t * step})) for t in (0, 1))
    noise = float(np.finfo(step.dtype).eps) * max(abs(y0), abs(y1))
    accuracy = max(5e-5 * abs(y1 - y0), 4 * noise)
    max_error = max(accuracy / 32, 2 * noise)  # of an interval; errors of both signs cancel
    points = np.linspace(0, 1, 17)
    starts, stops = points[:-1], points[1:]
    # Sums over accepted intervals are final; the sum over pending ones is recomputed from halves.
    accepted, accepted_error = jnp.zeros_like(step), 0.0
    while True:
        pending, results = jnp.zeros_like(step), []
        for i in range(0, len(starts), INTERVALS):
            # Intervals of length 0 fill up the last call, so that all share a program.
            intervals = np.zeros((2, INTERVALS))
            count = len(starts[i : i + INTERVALS])
            intervals[:, :count] = starts[i : i + INTERVALS], stops[i : i + INTERVALS]
            sums, errors, is_accurate = _integrate(
                name, call, start, step, jnp.asarray(intervals), max_error
            )
            accepted, pending = accepted + sums[0], pending + sums[1]
            results.append(np.asarray([errors, is_accurate], np.float64)[:, :count])
        errors, is_accurate = np.concatenate(results, 1)
        accepted_error += errors[is_accurate > 0].sum()
        halve = is_accurate == 0
        error = abs(accepted_error + errors[halve].sum())
        is_short = stops[-1] - starts[-1] < 1e-7
        if error <= accuracy or not 0 < halve.sum() <= MAX_INTERVALS or is_short:
            return accepted + pending
        a, b = starts[halve], stops[halve]
        starts, stops = np.append(a, (a + b) / 2), np.append((a + b) / 2, b)


@functools.partial(jax.jit, static_argnames="name")
def _integrate(
    name: str, call: Call, start: Array, step: Array, intervals: Array, max_error: float
) -> tuple[tuple[Array, Array], Array, Array]:
    """Integrate over intervals.

    Returns:
        The sums over accurate, and over inaccurate intervals; the error of each interval; and
        whether it is accurate.
    """

    def value(point: Array) -> Array:
        return call.value(**{name: point})

    def add(sums: tuple[Array, Array], interval: Array) -> Any:
        a, b = interval.astype(step.dtype)

        def add_point(total: Array, rule: Array) -> tuple[Array, None]:
            node, weight = rule.astype(step.dtype)
            t = (a + b) / 2 + (b - a) / 2 * node
            return total + weight * jax.grad(value)(start + t * step), None

        integral, _ = jax.lax.scan(add_point, jnp.zeros_like(step), jnp.asarray(RULE))
        integral *= (b - a) / 2 * step
        error = integral.sum() - (value(start + b * step) - value(start + a * step))

        # A branch, as XLA may compute an error near the limit twice, and round it differently.
        return jax.lax.cond(
            jnp.abs(error) <= max_error,
            lambda accepted, pending: ((accepted + integral, pending), (error, True)),
            lambda accepted, pending: ((accepted, pending + integral), (error, False)),
            *sums,
        )

    sums, (errors, is_accurate) = jax.lax.scan(add, (jnp.zeros_like(step),) * 2, intervals.T)
    return sums, errors, is_accurate


# --- Occlusion -----------------------------------------------------------------------------------


@jax.jit
def occluded_edges(call: Call) -> Array:
    """Return the decrease of the explained value without each edge."""
    graph = edges_of(call.graph)
    edges = jnp.arange(graph.num_edges)
    value = call.value()

    def decrease(edge: Array) -> Array:
        return value - call.value(keep=edges != edge)

    return jnp.where(graph.rows >= 0, jax.lax.map(decrease, edges), 0)


@jax.jit
def occluded_nodes(call: Call) -> Array:
    """Return the decrease of the explained value without the features of each node."""
    value = call.value()

    def decrease(node: Array) -> Array:
        return value - call.value(call.x.at[node].set(0))

    return cast(Array, jax.lax.map(decrease, jnp.arange(call.x.shape[0])))


# --- GNNExplainer --------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("num_steps", "edges"))
def masks(
    call: Call, key: Array, num_steps: int, learning_rate: float, *, edges: bool
) -> tuple[Array, Array | None]:
    """Optimise a mask of features, which all nodes share, and a mask of edges.

    The masks are 0 for nodes and edges that the output does not depend on, as in PyG, which also
    has the same initial masks.
    """
    x, dtype = call.x, accumulator_dtype(call.x.dtype)
    keys = jax.random.split(key, 3)
    size = x.shape[0]
    count = edges_of(call.graph).num_edges if edges else 0
    deviation = jnp.sqrt(jnp.asarray(2.0 / max(size, 1), dtype))  # Glorot's, for a ReLU
    initial = {
        "edges": deviation * jax.random.normal(keys[0], (count,), dtype),
        "features": FEATURE_DEVIATION * jax.random.normal(keys[1], x.shape[1:], dtype),
    }

    def masked_logits(mask: Mask, x: Array) -> Array:
        gate = jax.nn.sigmoid(mask["edges"]) if edges else None
        masked_x = x * jax.nn.sigmoid(mask["features"]).astype(x.dtype)
        return call.logits(call.output(masked_x, gate=gate)).astype(dtype)

    # The output depends on nodes and edges with a gradient of a random sum of its entries.
    output, vjp = jax.vjp(masked_logits, initial, x)
    to_mask, to_x = vjp(jax.random.normal(keys[2], output.shape, dtype))
    is_relevant_node = jnp.any(to_x.reshape(size, -1) != 0, 1)
    is_relevant_edge = to_mask["edges"] != 0
    logits = call.logits(call.output()).astype(dtype)

    def penalty(
        mask: Array, relevant: Array, size_weight: float, entropy_weight: float, mean: bool
    ) -> Array:
        m = jax.nn.sigmoid(mask)
        count = jnp.maximum(relevant.sum(), 1).astype(dtype)
        size = jnp.where(relevant, m, 0).sum() / (count if mean else 1)
        entropy = -m * jnp.log(m + 1e-15) - (1 - m) * jnp.log(1 - m + 1e-15)
        mean_entropy = jnp.where(relevant, entropy, 0).sum() / count
        return size_weight * size + entropy_weight * mean_entropy

    def loss(mask: Mask) -> Array:
        predictions = masked_logits(mask, x)
        if predictions.shape[1] == 1:
            error = jnp.square(predictions - logits).mean()
        else:
            log_p = jax.nn.log_softmax(predictions)
            error = -log_p[jnp.arange(len(predictions)), call.columns].mean()
        all_features = jnp.ones(x.shape[1:], bool)
        error += penalty(mask["features"], all_features, FEATURE_SIZE, FEATURE_ENTROPY, mean=True)
        return error + penalty(mask["edges"], is_relevant_edge, EDGE_SIZE, EDGE_ENTROPY, mean=False)

    def adam(i: Array, state: tuple[Mask, Mask, Mask]) -> tuple[Mask, Mask, Mask]:
        mask, mean, square = state
        gradient = jax.grad(loss)(mask)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradient)
        n = jnp.asarray(i + 1, dtype)

        def update(p: Array, m: Array, v: Array) -> Array:
            root = jnp.sqrt(v / (1 - jnp.asarray(0.999, dtype) ** n)) + 1e-8
            step = learning_rate * m / (1 - jnp.asarray(0.9, dtype) ** n) / root
            return (p - step).astype(dtype)

        return jax.tree.map(update, mask, mean, square), mean, square

    zeros = jax.tree.map(jnp.zeros_like, initial)
    mask, *_ = jax.lax.fori_loop(0, num_steps, adam, (initial, zeros, zeros))
    features = jnp.where(
        is_relevant_node.reshape(-1, *(1,) * (x.ndim - 1)), jax.nn.sigmoid(mask["features"]), 0
    )
    edge_mask = jnp.where(is_relevant_edge, jax.nn.sigmoid(mask["edges"]), 0)
    return features, edge_mask if edges else None


# --- Attention -----------------------------------------------------------------------------------


def attention(call: Call) -> list[Array]:
    """Return ``(num_edges, heads)`` for each op with attention, in the order of the calls."""
    check_edged("attention needs", call.graph)
    graph, log = edges_of(call.graph), Log()
    with jax.disable_jit():  # so that the log gets values, not tracers
        call._replace(graph=gated(call.graph, _ones(call), log)).output()
    if not log.layers:
        raise ValueError(
            "no op of the model tells attention by edge, as those of GAT, GATv2, TransformerConv, "
            "RGAT and HGT do"
        )
    if any(isinstance(layer, jax.core.Tracer) for layer in log.layers):
        raise TypeError("attention inside of a transformation of JAX, such as scan, is not seen")
    return [jnp.where((graph.rows >= 0)[:, None], layer, 0) for layer in log.layers]
