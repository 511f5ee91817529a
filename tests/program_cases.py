"""Programs of messages, random arguments for them, and the comparison of two runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn import Edge, Graph, Node, NodeType, Relation, RelationalGraph, program
from jax_gnn._program.passes import FOR_REGIONS, PASSES
from jax_gnn._program.spaces import Space
from jax_gnn._program.trace import annotated_spaces

K, D, H = 3, 4, 2
TYPES = ("a", "b")

# --- Programs ------------------------------------------------------------------------------------


def rgcn(g, x: Node, w: Relation, c: Edge):
    return g.sum(c * (g.src(x) @ g.relation(w)))


def rgcn_of_ones(g, x: Node, w: Relation):
    return g.sum(g.src(x) @ g.relation(w))


def rgat(g, x: Node, w: Relation, a: Relation, b: Relation):
    z, t = g.src(x) @ g.relation(w), g.dst(x) @ g.relation(w)
    s = jax.nn.leaky_relu(z @ g.relation(a) + t @ g.relation(b), 0.2)
    return g.sum(g.softmax(s) * z)


def rgat_of_heads(g, x: Node, w_h: Relation, a_h: Relation, b_h: Relation):
    z, t = (jnp.einsum("k,khd->hd", read_end(x), g.relation(w_h)) for read_end in (g.src, g.dst))
    s = jax.nn.leaky_relu((z * g.relation(a_h)).sum(-1) + (t * g.relation(b_h)).sum(-1), 0.2)
    return g.sum(g.softmax(s)[:, None] * z)


def hgt(g, x: Node, of_type: NodeType, k_r: Relation, m_r: Relation, mu: Relation):
    q, k, v = (jnp.einsum("k,khd->hd", x, w) for w in g.node_type(of_type))
    k = jnp.einsum("hd,hde->he", g.src(k), g.relation(k_r))
    v = jnp.einsum("hd,hde->he", g.src(v), g.relation(m_r))
    s = (g.dst(q) * k).sum(-1) * g.relation(mu) / jnp.sqrt(D)
    return g.sum(g.softmax(s)[:, None] * v)


def gcn(g, x: Node, w_s):
    d = jax.lax.rsqrt(g.sum(1.0) + 1)
    return g.sum(g.src(x * d) @ w_s) * d


def gat(g, x: Node, w_s, a_s, b_s):
    z = x @ w_s
    s = jax.nn.leaky_relu(g.src(z @ a_s) + g.dst(z @ b_s), 0.2)
    return g.sum(g.softmax(s) * g.src(z))


def gat_of_pairs(g, x: Node, w_s, a2_s):
    z = x @ w_s
    features = jnp.concatenate([g.src(z), g.dst(z)])
    return g.sum(g.softmax(jax.nn.leaky_relu(features @ a2_s, 0.2)) * g.src(z))


def gatv2(g, x: Node, w1_sh, w2_sh, a_sh):
    src_features, dst_features = (jnp.einsum("k,khd->hd", x, w) for w in (w1_sh, w2_sh))
    s = (a_sh * jax.nn.leaky_relu(g.src(src_features) + g.dst(dst_features), 0.2)).sum(-1)
    return g.sum(g.softmax(s)[:, None] * g.src(src_features))


def transformer(g, x: Node, w1_sh, w2_sh, w3_sh, c: Edge):
    q, k, v = (jnp.einsum("k,khd->hd", x, w) for w in (w1_sh, w2_sh, w3_sh))
    s = (g.dst(q) * g.src(k)).sum(-1) / D**0.5
    return g.sum((g.softmax(s) * c)[:, None] * g.src(v))


def sage_max(g, x: Node, w_s):
    return jnp.concatenate([x @ w_s, g.max(jax.nn.relu(g.src(x @ w_s)))])


def edge_conv(g, x: Node, w_s):
    return g.max(jax.nn.tanh((g.src(x) - g.dst(x)) @ w_s))


def mean_of_products(g, x: Node, w_s, c: Edge):
    return g.mean(c * (g.src(x) @ w_s)), g.mean(g.src(x)), g.mean(g.dst(x))


def gated(g, x: Node, e: Edge, w1_s, w2_s, w3_s):
    eta = g.src(x @ w1_s) + g.dst(x @ w2_s) + e
    s = jax.nn.sigmoid(eta)
    return g.sum(s * g.src(x @ w3_s)) / (g.sum(s) + 1e-6), eta


def cg_conv(g, x: Node, e: Edge, w1_s, w2_s, w3_s):
    z = g.dst(x @ w1_s) + g.src(x @ w2_s) + e
    return x @ w3_s + g.mean(jax.nn.sigmoid(z) * jax.nn.softplus(z[::-1]))


def cf_conv(g, x: Node, c: Edge, w_s, w_d):
    basis = jnp.exp(-((c[None] - jnp.linspace(0, 1, D, dtype=c.dtype)) ** 2))
    filters = jax.nn.softplus(basis @ w_d) - jnp.log(2.0)
    near = jnp.where(jnp.abs(c) < 1, 0.5 * (jnp.cos(3 * c) + 1), 0)
    return g.sum(g.src(x @ w_s) * filters * near[None])


def painn(g, x: Node, e: Edge, w1_sh, w2_sh):
    s, v = (g.src(jnp.einsum("k,khd->hd", x, w)) for w in (w1_sh, w2_sh))
    size = jnp.sqrt(1 + jnp.sum(e**2))
    return g.sum(jnp.tanh(s) * size), g.sum(v * s + (jnp.sin(e) / size)[None])


def pna(g, x: Node, e: Edge, w1_s, w2_s, w_p):
    m = jax.nn.relu(g.src(x @ w1_s) + g.dst(x @ w2_s) + e)
    a = jnp.concatenate([g.mean(m), g.max(m), g.min(m), g.mean(m**2) - g.mean(m) ** 2])
    a, d = jnp.where(jnp.isfinite(a), a, 0), jnp.log1p(g.sum(1.0))
    return jnp.concatenate([a, jnp.concatenate([x, a, a * d, a / jnp.maximum(d, 1)]) @ w_p])


def regions_in_turn(g, x: Node, e: Edge, w_s, w_d):
    """Two regions that share a gate, of which the second reads what the first gives."""
    gate = jax.nn.sigmoid(g.src(x @ w_s) + e)
    h = g.sum(gate * jnp.tanh(e))
    return g.max(gate * jnp.tanh(g.src(h @ w_d) - g.dst(h))), gate


def stored_rows(g, x: Node, e: Edge, w_s, w_d):
    """Regions that store rows for results, for a later region, and for softmaxes."""
    gate = jax.nn.sigmoid(g.src(x @ w_s) + e)
    share = gate / (g.dst(g.sum(gate)) + 1)
    y = g.sum(share * jnp.tanh(e)), g.max(g.softmax(jnp.cos(gate)) * gate), share
    score = jnp.sin(jnp.sin(gate) @ w_d)
    y = *y, g.sum(g.softmax(score) * jnp.tanh(gate)), jax.nn.relu(gate - 0.4)
    later = e + jax.nn.relu(gate - 0.5)
    return *y, g.max(jnp.sin(later) * later - g.dst(y[0]))


def two_layers(g, x: Node, w: Relation, w_d):
    h = jax.nn.silu(g.sum(g.src(x) @ g.relation(w)))
    return g.sum(g.softmax(g.src(h) @ g.dst(h)) * g.src(h @ w_d))


def many_spaces(g, x: Node, w: Relation, c: Edge, w_s):
    m = jnp.log1p(jnp.exp(g.src(x) @ w_s)) * c
    return {
        "edge": m,
        "softmax": g.softmax(m),
        "min": g.min(m),
        "max of ends": g.max(g.dst(x)),
        "count": g.sum(1),
        "relation": w.sum(0) * 2,
        "shared": w_s @ w_s.T,
        "node": x * 3,
    }


def not_finite_at_zero(g, x: Node, v: Relation, e: Edge, a_s):
    size = 1 / jnp.sqrt(jnp.sum(g.src(x) ** 2) + jnp.sum(e**2))
    return g.sum(size * jnp.log(jnp.abs(g.relation(v))) * a_s)


def chosen_heads(g, x: Node, w1_sh, m_h):
    chosen = jnp.where(m_h[:, None] > 0, jnp.tile(g.src(x), (H, 1)), jnp.tile(g.dst(x), (H, 1)))
    return g.max(jnp.tanh(jnp.einsum("hk,khd->hd", chosen, w1_sh)))


def inside_vmap(g, x: Node, w1_sh):
    per_head = jax.vmap(lambda w: g.sum(g.softmax(g.src(x) @ w) * g.src(x @ w)), 1)
    return per_head(w1_sh)


def reductions(g, x: Node, e: Edge, w_s):
    m = g.src(x @ w_s) * e
    peak = jnp.where(g.degree() > 0, g.logsumexp(m), 0)
    return jnp.concatenate([g.var(m), g.std(m) * g.degree(), peak])


@program
def mean_of_neighbours(g, x: Node):
    return g.mean(g.src(x))


def steps(g, x: Node, w_s, w_d):
    """A loop of programs, whose state, weights and results of the steps are of other spaces."""

    def step(h, w):
        return jnp.tanh(mean_of_neighbours(g, h) @ w) + h, h

    h, earlier = jax.lax.scan(step, x @ w_s, jnp.stack([w_d, w_d.T, w_d]), reverse=True)
    return h + earlier[0] + 2 * earlier[2]


def both_ways(g, x: Node, e: Edge, c: Edge, w_s, w_d):
    """Reductions along edges and reverse edges, by ops and by regions that share a gate."""
    gate, back = jax.nn.sigmoid(g.src(x @ w_s) + g.dst(x @ w_s) + e), g.reverse
    h = g.mean(gate * jnp.tanh(e))
    shares = back.softmax(jnp.sin(gate) @ w_d)
    return (
        h + back.mean(gate * jnp.cos(e)) + back.sum(c * (back.src(x) @ w_s)),
        back.max(gate * jnp.tanh(back.src(h) - e)),
        back.sum(shares * back.src(h)),
        back.sum(back.dst(h) * jnp.tanh(gate)),
        g.sum(g.softmax(gate @ w_d) * g.reverse.softmax(gate) * g.src(h)),
        back.std(gate) * back.degree() + back.min(g.dst(h)),
        mean_of_neighbours(back, x),
        (shares, gate),
    )


def loop(g, x: Node, e: Edge):
    def step(h, row):
        return jnp.tanh(h + row), h

    final, history = jax.lax.scan(step, g.src(x).sum(), e)
    return g.sum(final * history)


RELATIONAL = rgcn, rgcn_of_ones, rgat, rgat_of_heads, hgt, two_layers, many_spaces
RELATIONAL += (not_finite_at_zero,)
PLAIN = gcn, gat, gat_of_pairs, gatv2, transformer, sage_max, edge_conv, mean_of_products, gated
PLAIN += chosen_heads, inside_vmap, loop, cg_conv, cf_conv, painn, pna, regions_in_turn
PLAIN += stored_rows, reductions, steps, both_ways
MODELS: dict[str, Callable[..., Any]] = {model.__name__: model for model in (*RELATIONAL, *PLAIN)}

SHAPES: dict[str, Any] = {
    "x": (K,),
    "c": (),
    "e": (D,),
    "w": (K, D),
    "v": (D,),
    "a": (D,),
    "b": (D,),
    "w_h": (K, H, D),
    "a_h": (H, D),
    "b_h": (H, D),
    "of_type": ((K, H, D),) * 3,
    "k_r": (H, D, D),
    "m_r": (H, D, D),
    "mu": (H,),
    "a_s": (D,),
    "b_s": (D,),
    "a2_s": (2 * D,),
    "w_d": (D, D),
    "w_p": (K + 12 * D, H),
    "a_sh": (H, D),
    "m_h": (H,),
    **{f"w{i}_s": (K, D) for i in ("", 1, 2, 3)},
    **{f"w{i}_sh": (K, H, D) for i in (1, 2, 3)},
}
"""Shape of a row of each argument, by its name."""


# --- Graphs and arrays ---------------------------------------------------------------------------


class Sizes(NamedTuple):
    """Sizes of a random graph."""

    nodes: int = 9
    edges: int = 30
    relations: int = 4
    padding: int = 0


def random_graph(rng, sizes, **options):
    """Return a graph of two node types, a relation without edges, and repeated edges."""
    half = sizes.nodes // 2
    num_nodes = {"a": half, "b": sizes.nodes - half}
    type_pairs = list(itertools.product(TYPES, TYPES))
    edges: dict[tuple[str, str, str], np.ndarray] = {}
    count_per_relation = sizes.edges // max(sizes.relations - 1, 1)
    num_left = sizes.edges
    for i in range(sizes.relations):
        src, dst = type_pairs[rng.integers(len(type_pairs))]
        # The last relation but one gets the remainder, the last one no edges.
        count = count_per_relation if i < sizes.relations - 2 else num_left
        count = 0 if i == sizes.relations - 1 else count
        num_left -= count
        pair = np.stack([rng.integers(num_nodes[end], size=count) for end in (src, dst)])
        pair[:, : count // 4] = pair[:, count // 4 : 2 * (count // 4)]
        edges[src, f"r{i}", dst] = pair
    graph = RelationalGraph.from_edge_dict(edges, num_nodes, **options)
    if not sizes.padding:
        return graph
    room = {
        name: getattr(graph, name) + 2
        for name in ("num_src_pairs", "num_dst_pairs")
        if getattr(graph, name) is not None
    }
    return graph.pad(num_edges=graph.num_edges + sizes.padding, **room)


def rows_of(graph, space):
    """Return the leading shape of rows of a space; () of shared rows."""
    if space is Space.NODE:
        return (graph.num_nodes,)
    if space is Space.EDGE:
        return (graph.num_edges,)
    if space is Space.RELATION:
        return (graph.num_relations,)
    return (len(TYPES),) if space is Space.TYPE else ()


def random_arguments(rng, function, graph):
    """Return random arguments of a program; padded rows of edges hold NaN."""
    spaces = annotated_spaces(function)
    names = list(function.__code__.co_varnames[1 : function.__code__.co_argcount])
    arguments = {}
    for name in names:
        space = spaces.get(name, Space.SHARED)
        rows = rows_of(graph, space)

        def random_array(shape, rows=rows, space=space):
            array = rng.normal(size=(*rows, *shape))
            if space is Space.EDGE:
                edges = graph if isinstance(graph, Graph) else graph.nodes
                array[int(edges.indptr[-1]) :] = np.nan
            return array

        shape = SHAPES[name]
        arguments[name] = (
            [random_array(s) for s in shape]
            if shape and isinstance(shape[0], tuple)
            else random_array(shape)
        )
    return arguments


def all_passes():
    """Yield combinations of passes: all of those that may cost time, and others with all."""
    others = [name for name in PASSES if name not in ("factor_scales", *FOR_REGIONS)]
    for count in range(len(others) + 1):
        yield from itertools.combinations(others, count)
    yield from (("split_softmax",), ("compact_pairs", "inline_pairs"), PASSES)


# --- Comparing -----------------------------------------------------------------------------------


def with_derivatives(run, graph, arguments, seed):
    """Return values, gradients, and the JVP of the gradients."""
    rng = np.random.default_rng(seed)
    results = jax.eval_shape(run, graph, **arguments)
    weights = [rng.normal(size=result.shape) for result in jax.tree.leaves(results)]
    tangents = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), arguments)

    def loss(arguments):
        results = jax.tree.leaves(run(graph, **arguments))
        finite = [jnp.where(jnp.isfinite(y), y, 0) for y in results]
        return sum(jnp.sum(w * jnp.sin(y)) for w, y in zip(weights, finite, strict=True))

    return run(graph, **arguments), *jax.jvp(jax.grad(loss), (arguments,), (tangents,))


def largest_difference(got, want):
    """Return the largest difference, relative to the largest number of each array.

    Infinite numbers must be equal.
    """
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and a.dtype == b.dtype
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite])
        assert np.isfinite(a[finite]).all()
        if finite.any():
            scale = max(1.0, float(np.abs(b[finite]).max()))
            worst = max(worst, float(np.abs(a[finite] - b[finite]).max()) / scale)
    return worst
