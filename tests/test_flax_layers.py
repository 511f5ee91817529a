import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import check_dropout, check_gradient, double, inverse

from flax_layers import HGNN, HGNNConv
from jax_gnn import Hypergraph

pytestmark = pytest.mark.usefixtures("exact_products")

NUM_NODES, NUM_HYPEREDGES = 9, 5


@pytest.fixture
def incidence() -> np.ndarray:
    matrix = (np.random.default_rng(0).random((NUM_NODES, NUM_HYPEREDGES)) < 0.4).astype(float)
    matrix[3] = 0  # a node in no hyperedge
    matrix[:, 2] = 0  # an empty hyperedge
    return matrix


@pytest.fixture
def hypergraph(incidence: np.ndarray) -> Hypergraph:
    return Hypergraph.from_incidence(
        *np.nonzero(incidence), num_nodes=NUM_NODES, num_hyperedges=NUM_HYPEREDGES
    )


def features(width: int, *batch: int) -> jax.Array:
    return jax.random.normal(jax.random.key(width), (NUM_NODES, *batch, width))


def reference_operator(
    incidence: np.ndarray, normalization: str, weight: np.ndarray | None = None
) -> np.ndarray:
    """G of Feng et al. 2019, equation 10, as a dense float64 matrix; 1 / 0 counts as 0."""
    weight = np.ones(incidence.shape[1]) if weight is None else double(weight)
    node = inverse(incidence @ weight)
    left, right = (node**0.5, node**0.5) if normalization == "symmetric" else (node, node**0)
    hyperedge = weight * inverse(incidence.sum(axis=0))
    return left[:, None] * (incidence * hyperedge @ incidence.T) * right


def reference_conv(
    conv: HGNNConv, operator: np.ndarray, x: np.ndarray, *, bias: bool = True
) -> np.ndarray:
    y = double(x) @ double(conv.kernel)
    return operator @ (y + double(conv.bias) if bias else y)


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
@pytest.mark.parametrize(("wide", "narrow"), [(3, 6), (6, 3)])
def test_conv_equals_the_formula(hypergraph, incidence, normalization, wide, narrow):
    conv = HGNNConv(
        wide, narrow, normalization=normalization, bias_init=jax.random.normal, rngs=nnx.Rngs(0)
    )
    x = features(wide)
    expected = reference_conv(conv, reference_operator(incidence, normalization), x)
    np.testing.assert_allclose(conv(hypergraph, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("in_features", "out_features"), [(3, 6), (6, 3)])
def test_conv_without_bias(hypergraph, incidence, in_features, out_features):
    conv = HGNNConv(in_features, out_features, use_bias=False, rngs=nnx.Rngs(0))
    assert conv.bias is None
    x = features(in_features)
    operator = reference_operator(incidence, "symmetric")
    expected = reference_conv(conv, operator, x, bias=False)
    np.testing.assert_allclose(conv(hypergraph, x), expected, rtol=1e-5, atol=1e-5)


def aggregated_width(conv: HGNNConv, hypergraph: Hypergraph) -> int:
    jaxpr = jax.make_jaxpr(lambda x: conv(hypergraph, x))(features(conv.in_features))
    (equation,) = (e for e in jaxpr.eqns if e.primitive.name == "jax_gnn_hypergraph_aggregate")
    return equation.outvars[0].aval.shape[1]


def test_conv_without_bias_aggregates_the_narrower_side(hypergraph):
    for sizes in [(3, 6), (6, 3)]:
        assert aggregated_width(HGNNConv(*sizes, use_bias=False, rngs=nnx.Rngs(0)), hypergraph) == 3
        assert aggregated_width(HGNNConv(*sizes, rngs=nnx.Rngs(0)), hypergraph) == sizes[1]


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_hyperedge_weights(hypergraph, incidence, normalization):
    learned, given = np.random.default_rng(1).uniform(0.5, 2, (2, NUM_HYPEREDGES))
    x = features(4)
    fixed = HGNNConv(4, 3, normalization=normalization, rngs=nnx.Rngs(0))
    learning = HGNNConv(
        4, 3, normalization=normalization, num_hyperedges=NUM_HYPEREDGES, rngs=nnx.Rngs(0)
    )
    np.testing.assert_array_equal(learning.hyperedge_weight[...], np.ones(NUM_HYPEREDGES))
    np.testing.assert_allclose(learning(hypergraph, x), fixed(hypergraph, x), rtol=1e-5, atol=1e-6)
    learning.hyperedge_weight[...] = jnp.asarray(learned, jnp.float32)
    for conv, call_weight, weight in [
        (fixed, given, given),
        (learning, None, learned),
        (learning, given, learned * given),
    ]:
        expected = reference_conv(conv, reference_operator(incidence, normalization, weight), x)
        np.testing.assert_allclose(conv(hypergraph, x, call_weight), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_incidence_weights(hypergraph, incidence, normalization):
    """Members of a degree: the entries of H are real numbers, and so its sums."""
    members = np.random.default_rng(1).uniform(0.2, 1, incidence.shape) * incidence
    weight = hypergraph.incidence_values(members[np.nonzero(incidence)])
    conv = HGNNConv(4, 3, normalization=normalization, rngs=nnx.Rngs(0))
    expected = reference_conv(conv, reference_operator(members, normalization), features(4))
    got = conv(hypergraph, features(4), incidence_weight=weight)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"incidence_weight must have shape .*got \(3, 4\)"):
        conv(hypergraph, features(4), incidence_weight=jnp.ones((3, 4)))


def test_directed(incidence):
    tails, heads = incidence, np.roll(incidence, 1, 0)
    hypergraph = Hypergraph.from_directed(
        *np.nonzero(tails), *np.nonzero(heads), num_nodes=NUM_NODES, num_hyperedges=NUM_HYPEREDGES
    )
    conv = HGNNConv(4, 3, normalization="row", rngs=nnx.Rngs(0))
    degrees = np.maximum(heads.sum(1, keepdims=True), 1)
    operator = heads / degrees @ (tails / np.maximum(tails.sum(0), 1)).T
    expected = reference_conv(conv, operator, features(4))
    np.testing.assert_allclose(conv(hypergraph, features(4)), expected, rtol=1e-5, atol=1e-5)


def test_batch_axes_and_vmap(hypergraph):
    conv = HGNNConv(4, 3, bias_init=jax.random.normal, rngs=nnx.Rngs(0))
    x = features(4, 2)
    expected = np.stack([conv(hypergraph, x[:, i]) for i in range(2)], axis=1)
    np.testing.assert_allclose(conv(hypergraph, x), expected, rtol=1e-5, atol=1e-6)
    mapped = jax.vmap(lambda x: conv(hypergraph, x), in_axes=1, out_axes=1)(x)
    np.testing.assert_allclose(mapped, expected, rtol=1e-5, atol=1e-6)


def test_dtypes(hypergraph):
    x = features(4)
    single = HGNN(4, 8, 3, rngs=nnx.Rngs(0))
    half = HGNN(4, 8, 3, num_hyperedges=NUM_HYPEREDGES, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert {p.dtype for p in jax.tree.leaves(nnx.state(half, nnx.Param))} == {jnp.dtype("float32")}
    y = half(hypergraph, x, deterministic=True)
    assert y.dtype == jnp.bfloat16
    expected = single(hypergraph, x, deterministic=True)
    assert expected.dtype == jnp.float32
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=0.05, atol=0.05)
    stored = HGNNConv(4, 3, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    assert stored.kernel.dtype == stored.bias.dtype == jnp.float16
    assert stored(hypergraph, x).dtype == jnp.float32
    assert stored(hypergraph, x.astype(jnp.float16)).dtype == jnp.float16
    assert single.conv1(hypergraph, jnp.ones((NUM_NODES, 4), jnp.int32)).dtype == jnp.float32


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_model_equals_two_convolutions(hypergraph, incidence, normalization):
    model = HGNN(
        4, 8, 3, normalization=normalization, bias_init=jax.random.normal, rngs=nnx.Rngs(0)
    )
    model.eval()
    x = features(4)
    operator = reference_operator(incidence, normalization)
    hidden = np.maximum(reference_conv(model.conv1, operator, x), 0)
    expected = reference_conv(model.conv2, operator, hidden)
    np.testing.assert_allclose(model(hypergraph, x), expected, rtol=1e-5, atol=1e-5)


def test_dropout(hypergraph):
    model = HGNN(4, 64, 3, dropout_rate=0.5, rngs=nnx.Rngs(0))
    x = features(4)
    check_dropout(model, hypergraph, x)


def test_gradients_reach_all_parameters(hypergraph):
    model = HGNN(4, 8, 3, num_hyperedges=NUM_HYPEREDGES, rngs=nnx.Rngs(0))
    model.eval()
    x = features(4)

    def loss(model: HGNN, hypergraph: Hypergraph, x: jax.Array) -> jax.Array:
        return jnp.mean(model(hypergraph, x) ** 2)

    grads = nnx.jit(nnx.grad(loss))(model, hypergraph, x)
    flat = nnx.to_pure_dict(grads)
    for conv in ("conv1", "conv2"):
        for name in ("kernel", "bias", "hyperedge_weight"):
            assert np.abs(flat[conv][name]).max() > 1e-5, (conv, name)
    # Nobody belongs to hyperedge 2.
    assert flat["conv1"]["hyperedge_weight"][2] == 0


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
def test_gradients_are_slopes(hypergraph, incidence, normalization, rng):
    def formula(conv: HGNNConv, x: np.ndarray) -> np.ndarray:
        operator = reference_operator(incidence, normalization, conv.hyperedge_weight)
        return reference_conv(conv, operator, x)

    with jax.enable_x64(True):
        options = {"normalization": normalization, "param_dtype": jnp.float64}
        conv = HGNNConv(4, 3, num_hyperedges=NUM_HYPEREDGES, rngs=nnx.Rngs(0), **options)
        conv.hyperedge_weight[...] = jnp.asarray(rng.uniform(0.5, 2, NUM_HYPEREDGES))
        check_gradient(
            *(rng, conv, lambda conv, x: conv(hypergraph, x), formula),
            rng.normal(size=(NUM_NODES, 4)),
        )


def test_one_trace_for_equal_shapes(hypergraph, incidence):
    conv = HGNNConv(4, 3, rngs=nnx.Rngs(0))
    traces = []

    @jax.jit
    def apply(hypergraph: Hypergraph, x: jax.Array) -> jax.Array:
        traces.append(None)
        return conv(hypergraph, x)

    node_idx, hyperedge_idx = np.nonzero(incidence)
    other = Hypergraph.from_incidence(
        NUM_NODES - 1 - node_idx, hyperedge_idx, num_nodes=NUM_NODES, num_hyperedges=NUM_HYPEREDGES
    )
    first, second = apply(hypergraph, features(4)), apply(other, features(4)[::-1])
    assert len(traces) == 1
    np.testing.assert_allclose(first, second[::-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_features": 0}, "in_features must be positive, got 0"),
        ({"out_features": -1}, "out_features must be positive, got -1"),
        ({"num_hyperedges": 0}, "num_hyperedges must be positive, got 0"),
        ({"normalization": "both"}, "normalization must be .*'symmetric', 'row'.*got 'both'"),
    ],
)
def test_bad_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        HGNNConv(**{"in_features": 2, "out_features": 2} | arguments, rngs=nnx.Rngs(0))


def test_bad_model_construction():
    with pytest.raises(ValueError, match="hidden_features must be positive, got 0"):
        HGNN(2, 0, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"dropout_rate must lie in \[0, 1\], got 1.5"):
        HGNN(2, 2, 2, dropout_rate=1.5, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        ((9, 5), None, r"x must have shape .*\(9, ..., 4\), got \(9, 5\)"),
        ((8, 4), None, r"x must have shape .*\(9, ..., 4\), got \(8, 4\)"),
        ((4,), None, r"x must have shape .*\(9, ..., 4\), got \(4,\)"),
        ((9, 4), (4,), r"hyperedge_weight must have shape .*\(5,\), got \(4,\)"),
        ((9, 4), (5, 1), r"hyperedge_weight must have shape .*\(5,\), got \(5, 1\)"),
    ],
)
def test_bad_call(hypergraph, x, weight, message):
    conv = HGNNConv(4, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=message):
        conv(hypergraph, jnp.ones(x), None if weight is None else jnp.ones(weight))


def test_learnable_weights_of_another_hypergraph(hypergraph):
    conv = HGNNConv(4, 3, num_hyperedges=6, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"hypergraph has 5 hyperedges, .*num_hyperedges=6"):
        conv(hypergraph, features(4))
