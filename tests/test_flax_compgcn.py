"""CompGCN: the layer in all its forms against its formula, and the stack of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import awkward_triples, check_gradient, double, made_of_rows

from flax_layers import CompGCN, CompGCNConv
from jax_gnn import RelationalGraph

pytestmark = pytest.mark.usefixtures("exact_products")

NUM_NODES, RELATIONS, EDGES = 7, 3, 20
COMPOSITIONS = ("sub", "mult", "corr")


@pytest.fixture
def triples(rng) -> tuple[np.ndarray, ...]:
    return awkward_triples(rng, NUM_NODES, [0, 2], EDGES)


def graph_of(triples, **options) -> RelationalGraph:
    return RelationalGraph.from_triples(*triples, NUM_NODES, RELATIONS, inverse=True, **options)


def make(layer, *sizes, **options):
    options |= {"num_relations": 2 * RELATIONS, "bias_init": jax.random.normal}
    return layer(*sizes, rngs=nnx.Rngs(0), **options)


def node_and_relation_features(width: int, *batch: int) -> tuple[jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(width))
    shapes = (NUM_NODES, *batch, width), (2 * RELATIONS, width)
    return tuple(jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))


def composed(composition: str, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    if composition == "sub":
        return x - z
    if composition == "mult":
        return x * z
    # Circular correlation by its definition; the layer uses Fourier transforms.
    shifted = [np.sum(x * np.roll(z, -k, -1), -1) for k in range(x.shape[-1])]
    return np.stack(shifted, -1)


def formula(conv, triples, x, z, edge_weight=None) -> tuple[np.ndarray, np.ndarray]:
    """Return the result, edge by edge; edge weights are in the order of the triples."""
    forward_src, forward_rel, forward_dst = triples
    # Each triple has an inverse edge, of a relation in the second half.
    src, dst = np.append(forward_src, forward_dst), np.append(forward_dst, forward_src)
    rel = np.append(forward_rel, forward_rel + RELATIONS)
    inverse = (rel >= RELATIONS).astype(int)
    same_dst = (dst[:, None] == dst) & (inverse[:, None] == inverse)
    same_src = (src[:, None] == src) & (inverse[:, None] == inverse)
    factor = {
        "symmetric": 1 / np.sqrt(same_dst.sum(1) * same_src.sum(1)),
        "mean": 1 / same_dst.sum(1),
        "sum": np.ones(len(src)),
    }[conv.normalization]
    if edge_weight is not None:
        factor = np.append(edge_weight, edge_weight)
    kernel = double(conv.kernel)
    y = composed(conv.composition, x, double(conv.own_relation)) @ kernel[2]
    for e in range(len(src)):
        message = composed(conv.composition, x[src[e]], z[rel[e]])
        y[dst[e]] += factor[e] * message @ kernel[inverse[e]]
    # Three sums: along edges, against them, and the node itself.
    y = y / 3 + (0 if conv.bias is None else double(conv.bias))
    return y, z @ double(conv.relation_kernel)


def assert_close(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@nnx.jit
def outputs(conv, graph, padded, x, z, edge_weight):
    """Return results on the graph, on the padded graph, and with weights, as one program."""
    return conv(graph, x, z), conv(padded, x, z), conv(graph, x, z, edge_weight)


@pytest.mark.parametrize("composition", COMPOSITIONS)
@pytest.mark.parametrize(("norm", "width"), [("symmetric", 4), ("mean", 5), ("sum", 4)])
def test_conv_equals_the_formula(triples, rng, composition, norm, width):
    graph = graph_of(triples)
    # Nodes keep their number, as features have no padded rows here.
    padded = graph.pad(num_edges=50, num_src_pairs=45)
    weight = rng.uniform(0.5, 2, EDGES)
    conv = make(CompGCNConv, width, 6, composition=composition, normalization=norm)
    x, z = node_and_relation_features(width)
    ordered = graph.edge_values(weight.astype(np.float32))
    plain, of_padded, weighted = outputs(conv, graph, padded, x, z, ordered)
    expected = formula(conv, triples, double(x), double(z))
    assert_close(plain, expected)
    assert_close(of_padded, expected)
    assert_close(weighted, formula(conv, triples, double(x), double(z), weight))


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_gradients_are_slopes(triples, rng, composition):
    graph = graph_of(triples)
    with jax.enable_x64(True):
        conv = make(CompGCNConv, 4, 6, composition=composition, param_dtype=jnp.float64)

        def call(conv, x, z):
            return jnp.concatenate([y.ravel() for y in conv(graph, x, z)])

        def plain(conv, x, z):
            return np.concatenate([y.ravel() for y in formula(conv, triples, x, z)])

        check_gradient(rng, conv, call, plain, *node_and_relation_features(4))


def test_no_row_for_each_edge(rng):
    """Compositions are made by pair, forward and backward."""
    src, dst = rng.integers(0, 4, (2, 200))
    graph = RelationalGraph.from_triples(src, src % RELATIONS, dst, 4, RELATIONS, inverse=True)
    conv = make(CompGCNConv, 4, 6)

    def loss(x, z):
        return sum(jnp.sum(y**2) for y in conv(graph, x, z))

    jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(jnp.ones((4, 4)), jnp.ones((2 * RELATIONS, 4)))
    assert made_of_rows(jaxpr.jaxpr, 400) == []
    assert made_of_rows(jaxpr.jaxpr, graph.num_src_pairs)


def test_model_equals_two_convolutions(triples):
    graph = graph_of(triples)
    model = make(CompGCN, 4, 6, 2, dropout_rate=0.5)
    x, z = node_and_relation_features(4)
    hidden, relations = formula(model.conv1, triples, double(x), double(z))
    expected = formula(model.conv2, triples, np.maximum(hidden, 0), relations)
    assert_close(nnx.jit(lambda m: m(graph, x, z, deterministic=True))(model), expected)
    key = jax.random.key(1)
    assert not np.array_equal(model(graph, x, z, deterministic=False, rngs=key)[0], expected[0])


def test_inverse_relations_make_their_number_even():
    with pytest.raises(ValueError, match=r"num_relations must be even, .* got 3"):
        CompGCNConv(4, 6, num_relations=3, rngs=nnx.Rngs(0))


def test_bad_calls(triples):
    conv, (x, z) = make(CompGCNConv, 4, 6), node_and_relation_features(4)
    with pytest.raises(ValueError, match="num_relations = 6, inverse ones included, got 7"):
        conv(graph_of(triples, self_relation=True), x, z)
    one_way = RelationalGraph.from_triples(*triples, NUM_NODES, RELATIONS)
    with pytest.raises(ValueError, match="num_relations = 6, inverse ones included, got 3"):
        conv(one_way, x, z)
    with pytest.raises(ValueError, match="graph lacks the part 'from_pairs'"):
        conv(graph_of(triples, parts=("to_pairs",)), x, z)
    ends = RelationalGraph.from_triples([4], [0], [1], num_src=5, num_dst=3, num_relations=6)
    with pytest.raises(ValueError, match="graph must not be bipartite"):
        conv.factors(ends)
    graph = graph_of(triples)
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.RelationalGraph"):
        conv(graph.nodes, x, z)
