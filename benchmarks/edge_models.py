"""Message-passing models as programs; plain JAX runs the same functions on arrays of all edges.

A model's first argument `g` is the view of `jax_gnn.program`, or a `PlainView`. Positions and
distances stay in float32 where features are of a half type: sines of them need its digits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn import Edge, Node

HEADS = 4
BASIS = 32
WAVES = 20
EDGE_FEATURES = 16


class PlainView:
    """What a model calls, on arrays of all edges: gathers, and segment ops of sorted edges.

    Half types are summed in float32, of gathers' gradients too.

    Args:
        dst: Destination of each edge, sorted: (num_edges,).
        src: Source of each edge: (num_edges,).
        num_nodes: Number of nodes.
    """

    def __init__(self, dst: Any, src: Any, num_nodes: int) -> None:
        self._dst, self._src, self._num_nodes = dst, src, num_nodes

    def src(self, x: Any) -> Any:
        """Gather rows of nodes at the sources of edges."""
        return _wide(x)[self._src].astype(x.dtype)

    def dst(self, x: Any) -> Any:
        """Gather rows of nodes at the destinations of edges."""
        return _wide(x)[self._dst].astype(x.dtype)

    def _reduced(self, name: str, x: Any) -> Any:
        reduce = getattr(jax.ops, f"segment_{name}")
        y = reduce(_wide(x), self._dst, self._num_nodes, indices_are_sorted=True)
        return y.astype(x.dtype)

    def sum(self, x: Any) -> Any:
        """Sum rows of edges by destination."""
        return self._reduced("sum", x)

    def max(self, x: Any) -> Any:
        """Return the maxima by destination, -inf of no edges."""
        return self._reduced("max", x)

    def min(self, x: Any) -> Any:
        """Return the minima by destination, inf of no edges."""
        return self._reduced("min", x)

    def mean(self, x: Any) -> Any:
        """Return the means by destination, 0 of no edges."""
        counts = self._reduced("sum", jnp.ones((len(x), *[1] * (x.ndim - 1)), _wide(x).dtype))
        return (self.sum(_wide(x)) / jnp.maximum(counts, 1)).astype(x.dtype)

    def softmax(self, x: Any) -> Any:
        """Normalise the scores of edges into each destination."""
        powers = jnp.exp(x - self.dst(jax.lax.stop_gradient(self.max(x))))
        return powers / self.dst(self.sum(powers))


def _wide(x: Any) -> Any:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _concatenated(*rows: Any) -> Any:
    return jnp.concatenate(rows, -1)


def _finite(x: Any) -> Any:
    """Replace extremes of no edges by 0."""
    return jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x))


def _shifted_softplus(x: Any) -> Any:
    return jax.nn.softplus(x) - float(np.log(2.0))


def gated_gcn(g: Any, x: Node, e: Edge, a: Any, b: Any, c: Any, u: Any, v: Any) -> Any:
    """Gates from both ends and the edge normalise each sum; edges have new features."""
    z = g.dst(x @ a) + g.src(x @ b) + e @ c
    gate = jax.nn.sigmoid(z)
    mean = g.sum(gate * g.src(x @ v)) / (g.sum(gate) + 1e-6)
    return jax.nn.relu(x @ u + mean), jax.nn.relu(z)


def cg_conv(g: Any, x: Node, e: Edge, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    """Sum gated functions of both ends' and the edge's features."""
    z = _concatenated(g.dst(x), g.src(x), e)
    return x + g.sum(jax.nn.sigmoid(z @ w1 + b1) * jax.nn.softplus(z @ w2 + b2))


def schnet(g: Any, x: Node, pos: Node, w1: Any, b1: Any, w2: Any, b2: Any, w: Any) -> Any:
    """Filter sources by a network of radial functions of the distance."""
    distance = jnp.sqrt(jnp.sum((g.src(pos) - g.dst(pos)) ** 2, -1) + 1e-3)[..., None]
    centres = np.linspace(0, 5, BASIS).astype(pos.dtype)
    basis = jnp.exp(-2.0 * (distance - centres) ** 2).astype(x.dtype)
    near = (0.5 * (jnp.cos(distance * float(np.pi / 6)) + 1.0)).astype(x.dtype)
    return g.sum(g.src(x @ w) * (_shifted_softplus(basis @ w1 + b1) @ w2 + b2) * near)


def painn(g: Any, x: Node, v: Node, pos: Node, w1: Any, w2: Any, w: Any, b: Any) -> Any:
    """Sum messages to scalars and to vectors, which turn with the edge's direction."""
    hidden = jax.nn.silu(x @ w1) @ w2
    difference = g.src(pos) - g.dst(pos)
    distance = jnp.sqrt(jnp.sum(difference**2, -1, keepdims=True) + 1e-3)
    frequencies = (np.arange(1, WAVES + 1) * (np.pi / 5)).astype(pos.dtype)
    waves = (jnp.sin(frequencies * distance) / distance).astype(x.dtype)
    direction = (difference / distance).astype(x.dtype)[..., None]
    to_x, scale, turned = jnp.split(g.src(hidden) * (waves @ w + b), 3, -1)
    to_v = g.src(v) * scale[..., None, :] + direction * turned[..., None, :]
    return x + g.sum(to_x), v + g.sum(to_v)


def edge_conv(g: Any, x: Node, w1: Any, b1: Any, w2: Any) -> Any:
    """Take the maximum of a network of the destination and the difference to it."""
    z = _concatenated(g.dst(x), g.src(x) - g.dst(x))
    return _finite(g.max(jax.nn.relu(z @ w1 + b1) @ w2))


def pna(g: Any, x: Node, e: Edge, w1: Any, w2: Any) -> Any:
    """Aggregate in four ways, each scaled in three ways by the degree."""
    m = jax.nn.relu(_concatenated(g.dst(x), g.src(x), e) @ w1)
    mean = g.mean(m)
    deviation = jnp.sqrt(jax.nn.relu(g.mean(m * m) - mean**2) + 1e-5)
    y = _concatenated(mean, _finite(g.max(m)), _finite(g.min(m)), deviation)
    degree = jnp.log(g.sum(jnp.ones_like(g.dst(x[..., :1]))) + 1)
    scaled = y * (degree / 1.5), y * (1.5 / jnp.maximum(degree, 1.0))
    return _concatenated(x, y, *scaled) @ w2


def egnn(
    g: Any, x: Node, pos: Node, e: Edge, w1: Any, w2: Any, p1: Any, p2: Any, n1: Any, n2: Any
) -> Any:
    """Update features and positions by messages that know the distance."""
    difference = g.dst(pos) - g.src(pos)
    square = jnp.sum(difference**2, -1, keepdims=True).astype(x.dtype)
    z = _concatenated(g.dst(x), g.src(x), square, e)
    m = jax.nn.silu(jax.nn.silu(z @ w1) @ w2)
    y = x + jax.nn.silu(_concatenated(x, g.sum(m)) @ n1) @ n2
    return y, pos + g.mean(difference * (jax.nn.silu(m @ p1) @ p2))


def nn_conv(g: Any, x: Node, e: Edge, w1: Any, w2: Any, w: Any) -> Any:
    """Multiply each source by a matrix that a network makes of the edge's features."""
    matrix = jax.nn.relu(e @ w1) @ w2
    matrix = matrix.reshape(*matrix.shape[:-1], *w.shape)
    return g.mean((g.src(x)[..., None, :] @ matrix)[..., 0, :]) + x @ w


def gat(g: Any, x: Node, e: Edge, w: Any, w_e: Any, a_src: Any, a_dst: Any, a_e: Any) -> Any:
    """Attend to sources by scores of both ends and of the edge's features."""
    z, ze = _split_heads(x @ w), _split_heads(e @ w_e)
    score = g.src((z * a_src).sum(-1)) + g.dst((z * a_dst).sum(-1)) + (ze * a_e).sum(-1)
    y = g.sum(g.softmax(jax.nn.leaky_relu(score, 0.2))[..., None] * g.src(z))
    return y.reshape(*y.shape[:-2], -1)


def deeper_gcn(g: Any, x: Node, e: Edge, t: Any, w1: Any, w2: Any) -> Any:
    """Aggregate by a softmax of each feature with a learnt temperature."""
    m = jax.nn.relu(g.src(x) + e) + 1e-7
    return jax.nn.relu((x + g.sum(g.softmax(t[0] * m) * m)) @ w1) @ w2


def gatv2(g: Any, x: Node, w_src: Any, w_dst: Any, a: Any) -> Any:
    """Attend to sources by scores that a function of both ends makes."""
    z, t = (_split_heads(x @ w) for w in (w_src, w_dst))
    score = (jax.nn.leaky_relu(g.src(z) + g.dst(t), 0.2) * a).sum(-1)
    y = g.sum(g.softmax(score)[..., None] * g.src(z))
    return y.reshape(*y.shape[:-2], -1)


def transformer(
    g: Any, x: Node, e: Edge, w_query: Any, w_key: Any, w_value: Any, w_e: Any, w: Any
) -> Any:
    """Attend by dot products to keys and values that know the edge's features."""
    query, key, value = (_split_heads(x @ w) for w in (w_query, w_key, w_value))
    ze = _split_heads(e @ w_e)
    score = (g.dst(query) * (g.src(key) + ze)).sum(-1) * float(query.shape[-1] ** -0.5)
    y = g.sum(g.softmax(score)[..., None] * (g.src(value) + ze))
    return y.reshape(*y.shape[:-2], -1) + x @ w


def _split_heads(x: Any) -> Any:
    return x.reshape(*x.shape[:-1], HEADS, -1)


_ALL: tuple[Callable[..., Any], ...] = (
    *(gated_gcn, cg_conv, schnet, painn, edge_conv),
    *(pna, egnn, nn_conv, gat, deeper_gcn),
    *(gatv2, transformer),
)
MODELS = {model.__name__: model for model in _ALL}


def array_names(model: str) -> tuple[str, ...]:
    """Return the names of a model's arguments after the view, in order."""
    return tuple(inspect.signature(MODELS[model]).parameters)[1:]


def row_shapes(model: str, width: int, nn_width: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array: of a row, or of what all edges share.

    Args:
        model: A name of `MODELS`.
        width: Number of features.
        nn_width: The same for nn_conv, which has a square matrix of them for each edge.
    """
    d, k, square = width, nn_width, (width, width)
    pair = 2 * d + EDGE_FEATURES, d
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "gated_gcn": {"x": (d,), "e": (d,), **dict.fromkeys("abcuv", square)},
        "cg_conv": {"x": (d,), "e": (EDGE_FEATURES,), "w1": pair, "b1": (d,)}
        | {"w2": pair, "b2": (d,)},
        "schnet": {"x": (d,), "pos": (3,), "w1": (BASIS, d), "b1": (d,), "w2": square}
        | {"b2": (d,), "w": square},
        "painn": {"x": (d,), "v": (3, d), "pos": (3,), "w1": square, "w2": (d, 3 * d)}
        | {"w": (WAVES, 3 * d), "b": (3 * d,)},
        "edge_conv": {"x": (d,), "w1": (2 * d, d), "b1": (d,), "w2": square},
        "pna": {"x": (d,), "e": (d,), "w1": (3 * d, d), "w2": (13 * d, d)},
        "egnn": {"x": (d,), "pos": (3,), "e": (4,), "w1": (2 * d + 5, d), "w2": square}
        | {"p1": square, "p2": (d, 1), "n1": (2 * d, d), "n2": square},
        "nn_conv": {"x": (k,), "e": (EDGE_FEATURES,), "w1": (EDGE_FEATURES, 32)}
        | {"w2": (32, k * k), "w": (k, k)},
        "gat": {"x": (d,), "e": (EDGE_FEATURES,), "w": square, "w_e": (EDGE_FEATURES, d)}
        | dict.fromkeys(("a_src", "a_dst", "a_e"), (HEADS, d // HEADS)),
        "gatv2": {"x": (d,), "a": (HEADS, d // HEADS)} | dict.fromkeys(("w_src", "w_dst"), square),
        "transformer": {"x": (d,), "e": (EDGE_FEATURES,), "w_e": (EDGE_FEATURES, d)}
        | dict.fromkeys(("w_query", "w_key", "w_value", "w"), square),
        "deeper_gcn": {"x": (d,), "e": (d,), "t": (1,), "w1": (d, 2 * d), "w2": (2 * d, d)},
    }
    return {name: shapes[model][name] for name in array_names(model)}
