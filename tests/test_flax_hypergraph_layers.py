"""Hypergraph layers against formulas over dense incidence matrices in float64."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import check_gradient, double, features, inverse, linear, made_of_rows, relu, unit

from flax_layers import (
    HGNN,
    HGNNP,
    AllDeepSets,
    AllDeepSetsConv,
    AllSetTransformer,
    AllSetTransformerConv,
    HGNNConv,
    HGNNPConv,
    HypergraphAttention,
    HypergraphAttentionConv,
    UniGATConv,
    UniGCNII,
    UniGCNIIConv,
    UniGIN,
    UniGINConv,
    UniSAGE,
    UniSAGEConv,
    unigcn_norm,
)
from jax_gnn import Hypergraph, hypergraph_norm

pytestmark = pytest.mark.usefixtures("exact_products")

NUM_NODES, NUM_HYPEREDGES = 9, 6
# Widening, narrowing and square maps aggregate on different sides.
SIZES = [(3, 6), (6, 4), (4, 4)]


@pytest.fixture
def incidence(rng) -> np.ndarray:
    matrix = (rng.random((NUM_NODES, NUM_HYPEREDGES)) < 0.4).astype(float)
    matrix[:, 1] = 1  # a hyperedge of all nodes
    matrix[3] = 0  # but one, which is in no hyperedge
    matrix[:, 2] = 0  # an empty hyperedge
    return matrix


def from_dense(incidence: np.ndarray) -> Hypergraph:
    num_nodes, num_hyperedges = incidence.shape
    return Hypergraph.from_incidence(
        *np.nonzero(incidence), num_nodes=num_nodes, num_hyperedges=num_hyperedges
    )


@pytest.fixture
def hypergraph(incidence) -> Hypergraph:
    return from_dense(incidence)


# --- References ----------------------------------------------------------------------------------


def leaky(x: np.ndarray, slope: float = 0.2) -> np.ndarray:
    return np.where(x.real > 0, x, slope * x)


def layer_norm(layer: nnx.LayerNorm, x: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * double(layer.scale) + double(layer.bias)


def softmax(scores: np.ndarray, mask: np.ndarray, axis: int) -> np.ndarray:
    """Over an axis of a dense matrix, where the mask has ones; zeros elsewhere."""
    # Scores are small here, so that no maximum is subtracted: complex steps pass through.
    exponentials = np.exp(scores) * mask
    return exponentials * inverse(exponentials.sum(axis=axis, keepdims=True))


def reduced(matrix: np.ndarray, x: np.ndarray, reduce: str) -> np.ndarray:
    """Rows of x, reduced over the ones of each row of a matrix; 0 where there are none."""
    function = getattr(np, reduce)
    return np.stack(
        [function(x[row > 0], axis=0) if row.any() else np.zeros(x.shape[1:]) for row in matrix]
    )


def hgnn_operator(
    incidence: np.ndarray, normalization: str, weight: np.ndarray | None = None
) -> np.ndarray:
    """G of Feng et al. 2019, equation 10, as a dense float64 matrix; 1 / 0 counts as 0."""
    weight = np.ones(incidence.shape[1]) if weight is None else double(weight)
    node = inverse(incidence @ weight)
    dst, src = (node**0.5, node**0.5) if normalization == "symmetric" else (node, node**0)
    hyperedge = weight * inverse(incidence.sum(axis=0))
    return dst[:, None] * (incidence * hyperedge @ incidence.T) * src


def reference_hgnn(
    conv: HGNNConv, h: np.ndarray, x: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    weight = conv.hyperedge_weight if weight is None else weight
    y = x @ double(conv.kernel) + (0 if conv.bias is None else double(conv.bias))
    return hgnn_operator(h, conv.normalization, weight) @ y


def reference_unigin(conv: UniGINConv, h: np.ndarray, x: np.ndarray) -> np.ndarray:
    eps = conv.eps if conv.learned_eps is None else double(conv.learned_eps)
    y = x @ double(conv.kernel)
    hyperedges = reduced(h.T, y, conv.hyperedge_reduce)
    y = (1 + eps) * y + h @ hyperedges + double(conv.bias)
    return unit(y) if conv.l2_normalize else y


def reference_unisage(conv: UniSAGEConv, h: np.ndarray, x: np.ndarray) -> np.ndarray:
    y = x @ double(conv.kernel)
    hyperedges = reduced(h.T, y, conv.hyperedge_reduce)
    # An empty hyperedge has 0, but nobody belongs to it.
    y = y + reduced(h, hyperedges, conv.node_reduce) + double(conv.bias)
    return unit(y) if conv.l2_normalize else y


def heads_of(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(len(x), heads, -1)


def joined(y: np.ndarray, concat: bool) -> np.ndarray:
    return y.reshape(len(y), -1) if concat else y.mean(axis=1)


def reference_unigat(conv: UniGATConv, h: np.ndarray, x: np.ndarray) -> np.ndarray:
    nodes = heads_of(x @ double(conv.kernel), conv.heads)
    hyperedges = reduced(h.T, nodes, "mean")
    scores = leaky((hyperedges * double(conv.attention)).sum(-1), conv.negative_slope)
    weights = softmax(scores[None], h[:, :, None], axis=1)
    y = joined(np.einsum("veh,ehc->vhc", weights, hyperedges), conv.concat)
    y = unit(y) if conv.l2_normalize else y
    return y + conv.residual * joined(nodes, conv.concat) + double(conv.bias)


def reference_unigcnii(
    conv: UniGCNIIConv, h: np.ndarray, x: np.ndarray, x0: np.ndarray | None = None
) -> np.ndarray:
    # G is the mean over each hyperedge, scaled by its mean degree, then by each node's degree.
    degree = h.sum(axis=1)
    mean_degree = reduced(h.T, degree, "mean")
    y = reduced(h.T, x, "mean") * (inverse(mean_degree) ** 0.5)[:, None]
    y = (h @ y) * (inverse(degree) ** 0.5)[:, None]
    z = (1 - conv.alpha) * y + conv.alpha * (np.cos(x) if x0 is None else x0)
    beta = math.log(conv.lamda / conv.layer + 1)
    bias = 0 if conv.bias is None else double(conv.bias)
    return (1 - beta) * z + beta * (z @ double(conv.kernel) + bias)


def reference_attention(
    conv: HypergraphAttentionConv,
    h: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None = None,
    attr: np.ndarray | None = None,
) -> np.ndarray:
    weight = np.ones(h.shape[1]) if weight is None else weight
    attr = reduced(h.T, x, "mean") if attr is None else attr
    nodes, hyperedges = (heads_of(rows @ double(conv.kernel), conv.heads) for rows in (x, attr))
    node_scores = (nodes * double(conv.node_attention)).sum(-1)
    hyperedge_scores = (hyperedges * double(conv.hyperedge_attention)).sum(-1)
    scores = leaky(node_scores[:, None] + hyperedge_scores[None], conv.negative_slope)
    attention = softmax(scores, h[:, :, None], axis={"node": 1, "hyperedge": 0}[conv.softmax_by])
    # De and Dv are sums of H, or of the attention in its place.
    degrees = attention if conv.degrees == "attention" else h[:, :, None]
    messages = np.einsum("veh,vhc->ehc", attention, nodes)
    messages *= weight[:, None, None] * inverse(degrees.sum(axis=0))[:, :, None]
    y = np.einsum("veh,ehc->vhc", attention, messages)
    y *= inverse(np.einsum("veh,e->vh", degrees, weight))[:, :, None]
    return joined(y, conv.concat) + double(conv.bias)


def reference_mlp(mlp, x: np.ndarray) -> np.ndarray:
    for number in range(1, mlp.num_layers + 1):
        x = relu(x) if number > 1 else x
        x = layer_norm(getattr(mlp, f"norm{number}"), x) if mlp.normalize else x
        x = linear(getattr(mlp, f"linear{number}"), x)
    return x


def reference_alldeepsets(conv: AllDeepSetsConv, h: np.ndarray, x: np.ndarray) -> np.ndarray:
    # Two functions of multisets: nodes of a hyperedge, then hyperedges of a node.
    for half, matrix in ((conv.to_hyperedges, h.T), (conv.to_nodes, h)):
        x = reduced(matrix, relu(reference_mlp(half.encoder, x)), conv.reduce)
        x = relu(reference_mlp(half.decoder, x))
    return x


def reference_allsettransformer(
    conv: AllSetTransformerConv, h: np.ndarray, x: np.ndarray
) -> np.ndarray:
    for half, matrix in ((conv.to_hyperedges, h.T), (conv.to_nodes, h)):
        seed = double(half.seed)
        keys, values = (heads_of(linear(layer, x), conv.heads) for layer in (half.key, half.value))
        scores = leaky((keys * seed).sum(-1), conv.negative_slope)
        weights = softmax(scores[None], matrix[:, :, None], axis=1)
        y = (np.einsum("rsh,shc->rhc", weights, values) + seed).reshape(len(matrix), -1)
        y = layer_norm(half.norm1, y)
        y = layer_norm(half.norm2, y + relu(reference_mlp(half.mlp, y)))
        x = relu(y) if half is conv.to_hyperedges else y
    return x


# --- The convolutions ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution with options, and how it is called."""

    layer: type
    reference: object
    options: tuple = ()

    def __str__(self) -> str:
        return "-".join([self.layer.__name__, *(f"{name}={value}" for name, value in self.options)])

    def make(self, in_features: int, out_features: int, **changes):
        sizes = (in_features, out_features)
        if self.layer is UniGCNIIConv:
            sizes = (in_features,)
        conv = self.layer(*sizes, rngs=nnx.Rngs(0), **dict(self.options) | changes)
        # Parameters that are 0 or 1 at first get values that show where they enter.
        state = nnx.state(conv, nnx.Param)
        key = jax.random.key(7)
        for i, (path, parameter) in enumerate(nnx.to_flat_state(state)):
            if path[-1] in ("bias", "scale", "learned_eps", "hyperedge_weight"):
                noise = 0.5 * jax.random.uniform(jax.random.fold_in(key, i), parameter.shape)
                parameter[...] = (parameter[...] + noise).astype(parameter.dtype)
        nnx.update(conv, state)
        return conv

    def call(self, conv, hypergraph, x, **changes):
        extra = (jnp.cos(x),) if self.layer is UniGCNIIConv else ()
        return conv(hypergraph, x, *extra, **changes)

    def expected(self, conv, incidence: np.ndarray, x) -> np.ndarray:
        return self.reference(conv, incidence, double(x))

    def out_features(self, sizes: tuple[int, int]) -> int:
        return sizes[0] if self.layer is UniGCNIIConv else sizes[1]


@functools.partial(nnx.jit, static_argnums=0)
def run(case: Case, conv, hypergraph: Hypergraph, x):
    """The call as one program, which compiles sooner than its operations one by one."""
    return case.call(conv, hypergraph, x)


def case(layer, reference, /, **options) -> Case:
    return Case(layer, reference, tuple(options.items()))


CASES = [
    case(HGNNConv, reference_hgnn, num_hyperedges=NUM_HYPEREDGES),
    case(HGNNConv, reference_hgnn, normalization="row", num_hyperedges=NUM_HYPEREDGES),
    case(HGNNConv, reference_hgnn),
    case(HGNNConv, reference_hgnn, use_bias=False),
    case(HGNNPConv, reference_hgnn),
    case(UniGINConv, reference_unigin),
    case(UniGINConv, reference_unigin, learn_eps=False, eps=0.3, hyperedge_reduce="sum"),
    case(UniGINConv, reference_unigin, hyperedge_reduce="max", l2_normalize=True),
    case(UniSAGEConv, reference_unisage),
    case(UniSAGEConv, reference_unisage, hyperedge_reduce="sum", node_reduce="mean"),
    case(UniSAGEConv, reference_unisage, node_reduce="max", l2_normalize=True),
    case(UniSAGEConv, reference_unisage, hyperedge_reduce="min"),
    case(UniGATConv, reference_unigat),
    case(UniGATConv, reference_unigat, heads=2, residual=True, l2_normalize=True),
    case(UniGATConv, reference_unigat, heads=3, concat=False, residual=True, negative_slope=0.5),
    case(UniGCNIIConv, reference_unigcnii),
    case(UniGCNIIConv, reference_unigcnii, alpha=0.4, lamda=1.5, layer=3, use_bias=True),
    case(HypergraphAttentionConv, reference_attention),
    case(HypergraphAttentionConv, reference_attention, heads=2, negative_slope=0.5),
    case(HypergraphAttentionConv, reference_attention, heads=3, concat=False),
    case(HypergraphAttentionConv, reference_attention, heads=2, softmax_by="hyperedge"),
    case(HypergraphAttentionConv, reference_attention, heads=2, degrees="attention"),
    case(AllDeepSetsConv, reference_alldeepsets),
    case(AllDeepSetsConv, reference_alldeepsets, reduce="mean", mlp_layers=1),
    case(AllSetTransformerConv, reference_allsettransformer),
    case(AllSetTransformerConv, reference_allsettransformer, heads=2, mlp_layers=3),
]


def assert_close(actual, expected, tolerance: float = 3e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_conv_equals_the_formula(case, sizes, hypergraph, incidence):
    conv = case.make(*sizes)
    x = features(sizes[0])
    expected = case.expected(conv, incidence, x)
    assert expected.shape == (NUM_NODES, case.out_features(sizes))
    assert_close(run(case, conv, hypergraph, x), expected)


@pytest.mark.parametrize("degrees", ["ones", "attention"])
def test_hypergraph_attention_with_weights_and_features(degrees, hypergraph, incidence, rng):
    weight = rng.uniform(0.5, 2, NUM_HYPEREDGES)
    attr = rng.normal(size=(NUM_HYPEREDGES, 4))
    conv = case(HypergraphAttentionConv, None, heads=2, degrees=degrees).make(4, 6)
    x = features(4)
    for operands in [(weight, None), (None, attr), (weight, attr)]:
        expected = reference_attention(conv, incidence, np.asarray(x, np.float64), *operands)
        assert_close(conv(hypergraph, x, *operands), expected)
    integers = np.arange(1, NUM_HYPEREDGES + 1)
    np.testing.assert_array_equal(
        conv(hypergraph, x, integers), conv(hypergraph, x, 1.0 * integers)
    )
    batched = conv(hypergraph, features(4, 2), weight, np.stack([attr, -attr], axis=1))
    for i, sign in enumerate((1, -1)):
        assert_close(batched[:, i], conv(hypergraph, features(4, 2)[:, i], weight, sign * attr))


def test_unigcnii_norm_can_be_given(hypergraph):
    norm = unigcn_norm(hypergraph)
    assert norm.node_in is None
    assert norm.node_out.shape == (NUM_NODES,)
    assert norm.hyperedge.shape == (NUM_HYPEREDGES,)
    conv = case(UniGCNIIConv, None).make(4, 4)
    x = features(4)
    np.testing.assert_array_equal(conv(hypergraph, x, x, norm), conv(hypergraph, x, x))
    doubled = norm._replace(node_out=2 * norm.node_out)
    assert not np.allclose(conv(hypergraph, x, x, doubled), conv(hypergraph, x, x))
    model = UniGCNII(4, 8, 3, rngs=nnx.Rngs(0))
    model.eval()
    np.testing.assert_array_equal(model(hypergraph, x, norm), model(hypergraph, x))


def test_hgnnp_is_hgnn_with_row_normalization(hypergraph):
    x, weight = features(4), jnp.linspace(0.5, 2, NUM_HYPEREDGES)
    plus = HGNNPConv(4, 3, num_hyperedges=NUM_HYPEREDGES, rngs=nnx.Rngs(0))
    hgnn = HGNNConv(4, 3, num_hyperedges=NUM_HYPEREDGES, normalization="row", rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(plus(hypergraph, x, weight), hgnn(hypergraph, x, weight))


@pytest.mark.parametrize("model", [HGNN, HGNNP])
def test_hgnn_with_a_norm_that_was_computed_before(hypergraph, model):
    x, weight = features(4), jnp.linspace(0.5, 2, NUM_HYPEREDGES)
    hgnn = model(4, 8, 3, rngs=nnx.Rngs(0))
    hgnn.eval()
    norm = hypergraph_norm(hypergraph, weight, normalization=hgnn.conv1.normalization)
    np.testing.assert_allclose(
        hgnn(hypergraph, x, hypergraph_norm=norm), hgnn(hypergraph, x, weight), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ValueError, match="hypergraph_norm holds the weights"):
        hgnn(hypergraph, x, weight, hypergraph_norm=norm)


def widths_at(primitive: str, case: Case, sizes: tuple[int, int], hypergraph) -> list[int]:
    conv = case.make(*sizes, **{"use_bias": False} if issubclass(case.layer, HGNNConv) else {})
    jaxpr = jax.make_jaxpr(lambda x: case.call(conv, hypergraph, x))(features(sizes[0]))
    return [
        equation.outvars[0].aval.shape[1]
        for equation in jaxpr.eqns
        if primitive in equation.primitive.name
    ]


def test_the_narrower_side_is_aggregated(hypergraph):
    for number in (2, 4, 5, 6, 8, 9):  # cases of linear aggregations
        for sizes in SIZES:
            widths = widths_at("hypergraph_aggregate", CASES[number], sizes, hypergraph)
            assert widths == [min(sizes)], CASES[number]
    gat = case(UniGATConv, None)
    assert widths_at("segment_reduce", gat, (3, 6), hypergraph)[0] == 3
    assert widths_at("segment_reduce", gat, (6, 4), hypergraph)[0] == 4


def test_attention_forms_no_messages(hypergraph):
    for layer in (UniGATConv, HypergraphAttentionConv, AllSetTransformerConv):
        conv = layer(4, 64, heads=2, rngs=nnx.Rngs(0))
        gradient = jax.grad(lambda x, conv=conv: conv(hypergraph, x).sum())
        text = str(jax.make_jaxpr(gradient)(features(4)))
        # Arrays by incidence have a number per head at most, never a row of features.
        count = hypergraph.num_incidences
        assert f"[{count},2]" in text
        assert f"[{count},64]" not in text
        assert f"[{count},2,32]" not in text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_slopes(case, hypergraph, incidence, rng):
    with jax.enable_x64(True):
        check_gradient(
            rng,
            case.make(4, 6, param_dtype=jnp.float64),
            lambda conv, x: case.call(conv, hypergraph, x),
            lambda conv, x: case.expected(conv, incidence, x),
            rng.normal(size=(NUM_NODES, 4)),
        )


def test_bad_call_of_one_layer(hypergraph):
    x = features(4)
    conv = HypergraphAttentionConv(4, 6, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="hyperedge_features and x must have the same batch axes"):
        conv(hypergraph, x, None, jnp.ones((6, 2, 4)))
    directed = Hypergraph.from_directed([0], [0], [1], [0], num_nodes=9, num_hyperedges=6)
    with pytest.raises(ValueError, match="hypergraph must not be directed"):
        conv(directed, x)
    conv = UniGCNIIConv(4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"x0 must have the shape \(9, 2, 4\) of x, got \(9, 4\)"):
        conv(hypergraph, features(4, 2), x)


@pytest.mark.parametrize("layer", [UniGATConv, HypergraphAttentionConv, AllSetTransformerConv])
def test_heads_divide_the_features(layer):
    message = "heads must divide out_features, .* heads=4 and out_features=6"
    with pytest.raises(ValueError, match=message):
        layer(6, 6, heads=4, rngs=nnx.Rngs(0))
    if layer is not AllSetTransformerConv:  # which has no mean over heads
        with pytest.raises(ValueError, match="heads must be positive, got 0"):
            layer(6, 6, heads=0, concat=False, rngs=nnx.Rngs(0))


def test_directed_hypergraphs():
    # 0 and 1 send to hyperedge 0, which 2 hears; 2 sends to hyperedge 1, which 0 and 3 hear.
    directed = Hypergraph.from_directed(
        [0, 1, 2], [0, 0, 1], [2, 0, 3], [0, 1, 1], num_nodes=4, num_hyperedges=2
    )
    tails = np.array([[1, 0], [1, 0], [0, 1], [0, 0]], float)
    heads = np.array([[0, 1], [0, 0], [1, 0], [0, 1]], float)
    x = features(4, rows=4)
    conv = case(UniGATConv, None, heads=2).make(4, 6)
    nodes = heads_of(np.asarray(x, np.float64) @ double(conv.kernel), 2)
    hyperedges = reduced(tails.T, nodes, "mean")
    # Each node hears one hyperedge or none, so that all weights are 1.
    expected = np.einsum("ve,ehc->vhc", heads, hyperedges).reshape(4, 6) + double(conv.bias)
    assert_close(conv(directed, x), expected)
    gcn = case(UniGCNIIConv, None, alpha=0.0).make(4, 4)
    scale = inverse(reduced(tails.T, tails.sum(axis=1), "mean")) ** 0.5
    z = heads @ (reduced(tails.T, np.asarray(x, np.float64), "mean") * scale[:, None])
    z = z * (inverse(heads.sum(axis=1)) ** 0.5)[:, None]
    beta = math.log(1.5)
    assert_close(gcn(directed, x, x), (1 - beta) * z + beta * z @ double(gcn.kernel))


# --- Dropout -------------------------------------------------------------------------------------


def test_attention_dropout_drops_incidences(incidence):
    # One head and equal scores: a node's result is the mean of its hyperedges, less what is dropped
    # of them, and never more than the rest scaled up.
    conv = UniGATConv(1, 1, attention_dropout_rate=0.5, use_bias=False, rngs=nnx.Rngs(0))
    conv.kernel[...], conv.attention[...] = jnp.ones((1, 1)), jnp.zeros((1, 1))
    alone = Hypergraph.from_hyperedges([[i] for i in range(200)])
    y = np.asarray(conv(alone, jnp.ones((200, 1)), rngs=jax.random.key(0)))
    assert set(np.unique(y)) == {0.0, 2.0}
    assert 0.35 < (y > 0).mean() < 0.65


# --- The models ----------------------------------------------------------------------------------


def test_unigcnii_stacks_convolutions(hypergraph):
    x = features(4)
    for depth in (1, 3):
        model = UniGCNII(4, 8, 3, num_layers=depth, rngs=nnx.Rngs(0))
        assert [conv.layer for conv in model.convolutions] == [*range(1, depth + 1)]
        y = x0 = jax.nn.relu(model.input(x))
        for conv in model.convolutions:
            y = jax.nn.relu(conv(hypergraph, y, x0))
        assert_close(model(hypergraph, x, deterministic=True), model.output(y))


def test_dropout_of_allset_reaches_its_convolutions():
    for model_class in (AllDeepSets, AllSetTransformer):
        assert model_class(4, 8, 3, dropout_rate=0.3, rngs=nnx.Rngs(0)).conv1.dropout.rate == 0.3


def test_hypergraph_attention_takes_the_arguments_of_its_convolution(hypergraph, rng):
    model = HypergraphAttention(4, 8, 3, rngs=nnx.Rngs(0))
    x, weight = features(4), jnp.asarray(rng.uniform(0.5, 2, NUM_HYPEREDGES), jnp.float32)
    attr = jnp.asarray(rng.normal(size=(NUM_HYPEREDGES, 4)), jnp.float32)
    y = jax.nn.relu(model.conv1(hypergraph, x, weight, attr))
    expected = model.conv2(hypergraph, y, weight)
    assert_close(model(hypergraph, x, weight, attr, deterministic=True), expected)


# --- HGNN ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_hyperedge_weights(hypergraph, incidence, normalization, rng):
    # Weights of the call and of the layer are multiplied.
    learnable, fixed = rng.uniform(0.5, 2, (2, NUM_HYPEREDGES))
    x = features(4)
    plain = HGNNConv(4, 3, normalization=normalization, rngs=nnx.Rngs(0))
    options = {"normalization": normalization, "num_hyperedges": NUM_HYPEREDGES}
    conv = HGNNConv(4, 3, rngs=nnx.Rngs(0), **options)
    np.testing.assert_array_equal(conv.hyperedge_weight[...], np.ones(NUM_HYPEREDGES))
    assert_close(conv(hypergraph, x), plain(hypergraph, x))
    conv.hyperedge_weight[...] = jnp.asarray(learnable, jnp.float32)
    for layer, argument, weight in [
        (plain, fixed, fixed),
        (conv, None, learnable),
        (conv, fixed, learnable * fixed),
    ]:
        expected = reference_hgnn(layer, incidence, double(x), weight)
        assert_close(layer(hypergraph, x, argument), expected)


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_incidence_weights(hypergraph, incidence, normalization, rng):
    """Entries of H may be degrees of membership."""
    members = rng.uniform(0.2, 1, incidence.shape) * incidence
    weight = hypergraph.incidence_values(members[np.nonzero(incidence)])
    conv = HGNNConv(4, 3, normalization=normalization, rngs=nnx.Rngs(0))
    actual = conv(hypergraph, features(4), incidence_weight=weight)
    assert_close(actual, reference_hgnn(conv, members, double(features(4))))


def test_hgnn_of_directed_hypergraphs(incidence):
    tails, heads = incidence, np.roll(incidence, 1, 0)
    hypergraph = Hypergraph.from_directed(
        *np.nonzero(tails), *np.nonzero(heads), num_nodes=NUM_NODES, num_hyperedges=NUM_HYPEREDGES
    )
    conv = HGNNConv(4, 3, normalization="row", rngs=nnx.Rngs(0))
    operator = heads / np.maximum(heads.sum(1, keepdims=True), 1)
    operator = operator @ (tails / np.maximum(tails.sum(0), 1)).T
    expected = operator @ double(features(4)) @ double(conv.kernel)
    assert_close(conv(hypergraph, features(4)), expected)


def test_weights_are_of_as_many_hyperedges(hypergraph):
    conv = HGNNConv(4, 3, num_hyperedges=7, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"hypergraph has 6 hyperedges, .*num_hyperedges=7"):
        conv(hypergraph, features(4))


# --- Fused operations ----------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (HGNNConv, {}),
        (HGNNConv, {"use_bias": False}),
        (HGNNPConv, {}),
        (UniGINConv, {}),
        (UniGINConv, {"hyperedge_reduce": "max"}),
        (UniSAGEConv, {"l2_normalize": True}),
    ],
)
def test_fused_relu(layer, options, sizes, hypergraph):
    conv = layer(*sizes, rngs=nnx.Rngs(0), **options)
    if conv.bias is not None:
        conv.bias[...] = jax.random.normal(jax.random.key(1), conv.bias.shape)
    x = features(sizes[0], 2)
    plain = conv(hypergraph, x)
    assert (plain < 0).any()
    got = conv(hypergraph, x, activation="relu")
    np.testing.assert_allclose(got, jax.nn.relu(plain), rtol=2e-5, atol=2e-5)


# Of UniGCNII: the maps into it and out of it, and in each layer X0's share, a call, and a product
# beside the identity's share of it.
LINEAR = ["dot_general", "add"]
DEEP = ["mul", "call", "dot_general", "mul", "mul", "add", "max"]


@pytest.mark.parametrize(
    ("model_class", "primitives"),
    [
        (HGNN, [*LINEAR, "call", *LINEAR, "call"]),
        (UniGIN, ["dot_general", "call", "dot_general", "call"]),
        (UniSAGE, ["dot_general", "call", "dot_general", "call"]),
        (UniGCNII, [*LINEAR, "max", *DEEP, *DEEP, *LINEAR]),
    ],
)
def test_no_operation_between_product_and_sum(model_class, primitives, hypergraph):
    """A product comes right before its aggregation."""
    model = model_class(8, 8, 4, num_layers=2, rngs=nnx.Rngs(0))
    jaxpr = jax.make_jaxpr(lambda x: model(hypergraph, x, deterministic=True))(features(8))
    names = [
        "call" if name == "jax_gnn_hypergraph_aggregate" else name
        for name in made_of_rows(jaxpr.jaxpr, NUM_NODES)
        if name != "broadcast_in_dim"
    ]
    assert names == primitives
