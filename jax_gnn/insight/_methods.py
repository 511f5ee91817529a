"""The methods of attribution, each a function of a call."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import accumulator_dtype
from jax_gnn.insight._call import Call
from jax_gnn.insight._gates import Edged, Log, edges_of, gated

Tree = Any

# GNNExplainer's: what sizes and entropies of the masks count beside the loss (appendix B of the
# paper, and its program), and the deviation of the initial mask of features.
EDGE_SIZE, EDGE_ENTROPY, FEATURE_SIZE, FEATURE_ENTROPY = 0.005, 1.0, 1.0, 0.1
FEATURE_DEVIATION = 0.1

# Of integrals: how many pieces a call takes, how many there may be, and the rule within one.
PIECES, MOST_PIECES = 32, 2048
RULE = np.stack(np.polynomial.legendre.leggauss(2), 1)


def _ones(call: Call) -> Array:
    return jnp.where(edges_of(call.graph).rows >= 0, 1, 0).astype(accumulator_dtype(call.x.dtype))


@jax.jit
def _with_gates(call: Call) -> tuple[Array, Array, Array]:
    """The output without messages: by gates, and by removal; and with all."""
    none = jnp.zeros(edges_of(call.graph).num_edges, bool)
    gates = none.astype(call.x.dtype)
    return call.output(gate=gates), call.output(keep=none), call.output()


def check_gates(call: Call) -> None:
    """Raises ValueError where edges matter, but factors of messages do not."""
    gated, removed, given = (jax.tree.leaves(each) for each in _with_gates(call))

    def same(first: list[Array], then: list[Array]) -> bool:
        return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, then, strict=True))

    if same(gated, given) and not same(removed, given):
        raise ValueError(
            "no message of the model passes through an op that takes factors: use "
            "method='occlusion', or edges=False for attributions of features alone"
        )


@functools.partial(jax.jit, static_argnames="edges")
def gradients(call: Call, *, edges: bool) -> tuple[Array, Array | None]:
    """Derivatives to features, and to the factors of messages."""
    if not edges:
        return jax.grad(call.value)(call.x), None
    both = jax.grad(lambda x, gate: call.value(x, gate=gate), argnums=(0, 1))
    return both(call.x, _ones(call))


# --- Integrated gradients ------------------------------------------------------------------------


def integrated(call: Call, start: Array, edges: bool) -> tuple[Array, Array | None]:
    """Integrals of derivatives from a baseline, and from no messages."""
    features = _integral(_of_features, call, start, call.x - start)
    ones = _ones(call) if edges else None
    return features, None if ones is None else _integral(_of_gates, call, 0 * ones, ones)


def _of_features(call: Call, x: Array) -> Array:
    return call.value(x)


def _of_gates(call: Call, gate: Array) -> Array:
    return call.value(gate=gate)


def _integral(value: Any, call: Call, start: Array, step: Array) -> Array:
    """``step`` times the mean gradient from ``start`` on, whose sum is what the value changes.

    Pieces of the line for which it is not are halved: at a ReLU's kink gradients jump, which no
    rule of fixed points integrates.
    """
    first, last = (float(value(call, start + t * step)) for t in (0, 1))
    noise = float(jnp.finfo(step.dtype).eps) * max(abs(first), abs(last))
    accuracy = max(5e-5 * abs(last - first), 4 * noise)
    most = max(accuracy / 32, 2 * noise)  # of a piece: errors have both signs
    ends = np.linspace(0, 1, 17)
    begins, ends = ends[:-1], ends[1:]
    done, missing = jnp.zeros_like(step), 0.0
    while True:
        pending, results = jnp.zeros_like(step), []
        for i in range(0, len(begins), PIECES):
            pieces = np.zeros((2, PIECES))
            count = len(begins[i : i + PIECES])
            pieces[:, :count] = begins[i : i + PIECES], ends[i : i + PIECES]
            kept, rest, *found = _pieces(value, call, start, step, jnp.asarray(pieces), most)
            done, pending = done + kept, pending + rest
            results.append(np.asarray(found, np.float64)[:, :count])
        errors, fits = np.concatenate(results, 1)
        good = fits > 0
        missing += errors[good].sum()
        left = abs(missing + errors[~good].sum())
        if left <= accuracy or not 0 < (~good).sum() <= MOST_PIECES or ends[-1] - begins[-1] < 1e-7:
            return done + pending
        a, b = begins[~good], ends[~good]
        begins, ends = np.append(a, (a + b) / 2), np.append((a + b) / 2, b)


@functools.partial(jax.jit, static_argnames="value")
def _pieces(
    value: Any, call: Call, start: Array, step: Array, pieces: Array, most: Any
) -> tuple[Array, Array, Array, Array]:
    """Integrals over the pieces that fit, and over the others; their errors, and which fit."""
    slope = jax.grad(lambda at: value(call, at))

    def add(sums: tuple[Array, Array], ends: Array) -> Any:
        a, b = ends.astype(step.dtype)

        def point(total: Array, rule: Array) -> tuple[Array, None]:
            at, weight = rule.astype(step.dtype)
            return total + weight * slope(start + ((a + b) / 2 + (b - a) / 2 * at) * step), None

        found, _ = jax.lax.scan(point, jnp.zeros_like(step), jnp.asarray(RULE))
        found *= (b - a) / 2 * step
        error = found.sum() - (value(call, start + b * step) - value(call, start + a * step))

        def keep(kept: Array, rest: Array) -> Any:
            return (kept + found, rest), True

        def halve(kept: Array, rest: Array) -> Any:
            return (kept, rest + found), False

        # A branch, as XLA may compute an error near the limit twice, and round it differently.
        sums, fits = jax.lax.cond(jnp.abs(error) <= most, keep, halve, *sums)
        return sums, (error, fits)

    (kept, rest), (errors, fits) = jax.lax.scan(add, (jnp.zeros_like(step),) * 2, pieces.T)
    return kept, rest, errors, fits


# --- Occlusion -----------------------------------------------------------------------------------


@jax.jit
def occluded_edges(call: Call) -> Array:
    """By how much the number falls without each edge."""
    edges = edges_of(call.graph)
    places = jnp.arange(edges.num_edges)
    whole = call.value()

    def fall(edge: Array) -> Array:
        return whole - call.value(keep=places != edge)

    return jnp.where(edges.rows >= 0, jax.lax.map(fall, places), 0)


@jax.jit
def occluded_nodes(call: Call) -> Array:
    """By how much the number falls without the features of each node."""
    whole = call.value()

    def fall(node: Array) -> Array:
        return whole - call.value(call.x.at[node].set(0))

    return jax.lax.map(fall, jnp.arange(call.x.shape[0]))


# --- GNNExplainer --------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("num_steps", "edges"))
def masks(
    call: Call, key: Array, num_steps: int, learning_rate: Any, *, edges: bool
) -> tuple[Array, Array | None]:
    """Masks of features, spread over the nodes that the number depends on, and of edges.

    Only what it depends on at all is masked, as PyG does, which also has the initial masks.
    """
    x, dtype = call.x, accumulator_dtype(call.x.dtype)
    keys = jax.random.split(key, 3)
    size = x.shape[0]
    count = edges_of(call.graph).num_edges if edges else 0
    deviation = jnp.sqrt(jnp.asarray(2.0 / max(size, 1), dtype))  # Glorot's, for a ReLU
    first = {
        "edges": deviation * jax.random.normal(keys[0], (count,), dtype),
        "features": FEATURE_DEVIATION * jax.random.normal(keys[1], x.shape[1:], dtype),
    }

    def masked(mask: dict[str, Array], x: Array) -> Array:
        gate = jax.nn.sigmoid(mask["edges"]) if edges else None
        shown = x * jax.nn.sigmoid(mask["features"]).astype(x.dtype)
        return call.logits(call.output(shown, gate=gate)).astype(dtype)

    # What matters: what any of the numbers has a derivative to.
    output, back = jax.vjp(masked, first, x)
    of_mask, of_x = back(jax.random.normal(keys[2], output.shape, dtype))
    reached = jnp.any(of_x.reshape(size, -1) != 0, 1)
    there = of_mask["edges"] != 0
    before = call.logits(call.output()).astype(dtype)

    def penalty(mask: Array, where: Array, total: float, entropy: float, mean: bool) -> Array:
        m = jax.nn.sigmoid(mask)
        number = jnp.maximum(where.sum(), 1).astype(dtype)
        sums = jnp.where(where, m, 0).sum() / (number if mean else 1)
        bits = -m * jnp.log(m + 1e-15) - (1 - m) * jnp.log(1 - m + 1e-15)
        return total * sums + entropy * jnp.where(where, bits, 0).sum() / number

    def loss(mask: dict[str, Array]) -> Array:
        found = masked(mask, x)
        if found.shape[1] == 1:
            fit = jnp.square(found - before).mean()
        else:
            log_p = jax.nn.log_softmax(found)
            fit = -log_p[jnp.arange(len(found)), call.columns].mean()
        everywhere = jnp.ones(x.shape[1:], bool)
        fit += penalty(mask["features"], everywhere, FEATURE_SIZE, FEATURE_ENTROPY, mean=True)
        return fit + penalty(mask["edges"], there, EDGE_SIZE, EDGE_ENTROPY, mean=False)

    def adam(i: Array, state: tuple[Tree, Tree, Tree]) -> tuple[Tree, Tree, Tree]:
        mask, mean, square = state
        slope = jax.grad(loss)(mask)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, slope)
        n = jnp.asarray(i + 1, dtype)

        def moved(p: Array, m: Array, v: Array) -> Array:
            root = jnp.sqrt(v / (1 - jnp.asarray(0.999, dtype) ** n)) + 1e-8
            step = learning_rate * m / (1 - jnp.asarray(0.9, dtype) ** n) / root
            return (p - step).astype(dtype)

        return jax.tree.map(moved, mask, mean, square), mean, square

    zeros = jax.tree.map(jnp.zeros_like, first)
    mask, *_ = jax.lax.fori_loop(0, num_steps, adam, (first, zeros, zeros))
    shared = jax.nn.sigmoid(mask["features"])
    rows = reached.reshape(-1, *(1,) * (x.ndim - 1))
    features = jnp.where(rows, shared, 0)
    return features, jnp.where(there, jax.nn.sigmoid(mask["edges"]), 0) if edges else None


# --- Attention -----------------------------------------------------------------------------------


def attention(call: Call) -> list[Array]:
    """``(num_edges, heads)`` of each op with attention, in the order that the model calls them."""
    if not isinstance(call.graph, Edged):
        raise TypeError(
            "attention needs a jax_gnn.Graph, RelationalGraph or Hypergraph, got "
            f"{type(call.graph).__name__}"
        )
    graph, log = edges_of(call.graph), Log()
    with jax.disable_jit():  # so that values are known where they are noted
        call.calls(gated(call.graph, _ones(call), log))
    if not log.layers:
        raise ValueError(
            "no op of the model tells attention by edge, as those of GAT, GATv2, TransformerConv, "
            "RGAT and HGT do"
        )
    if any(isinstance(layer, jax.core.Tracer) for layer in log.layers):
        raise TypeError("attention inside of a transformation of JAX, such as scan, is not seen")
    return [jnp.where((graph.rows >= 0)[:, None], layer, 0) for layer in log.layers]
