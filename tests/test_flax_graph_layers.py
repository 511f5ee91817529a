"""GCN, GIN and GraphSAGE against dense formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import (
    awkward_edges,
    check_gradient,
    double,
    features,
    inverse,
    linear,
    made_of_rows,
    relu,
    unit,
)
from op_spec import assert_close as assert_near

from flax_layers import GCN, GIN, SAGE, GCNConv, GINConv, SAGEConv, gcn_norm
from jax_gnn import Graph
from jax_gnn._ops.segment_matmul import api

pytestmark = pytest.mark.usefixtures("exact_products")

NUM_NODES = 9
# Widening, narrowing and square maps aggregate on different sides.
SIZES = [(3, 6), (6, 3), (4, 4)]
CONVOLUTIONS = [GCNConv, GINConv, SAGEConv]


@pytest.fixture
def edges(rng) -> tuple[np.ndarray, np.ndarray]:
    return awkward_edges(rng)


@pytest.fixture
def graph(edges) -> Graph:
    return Graph.from_edges(*edges, num_nodes=NUM_NODES)


@pytest.fixture
def weight(graph, rng) -> jax.Array:
    return jnp.asarray(rng.uniform(0.5, 2, graph.num_edges), jnp.float32)


def adjacency(graph: Graph, weight: jax.Array | None = None) -> np.ndarray:
    """Return the dense matrix, with the edges into node i in row i."""
    values = np.ones(graph.num_edges) if weight is None else double(weight)
    matrix = np.zeros((NUM_NODES, NUM_NODES), values.dtype)
    np.add.at(matrix, (np.asarray(graph.rows), np.asarray(graph.cols)), values)
    return matrix


def make(layer, *sizes, **options):
    return layer(*sizes, bias_init=jax.random.normal, rngs=nnx.Rngs(0), **options)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


# GCN


def gcn_operator(matrix: np.ndarray, *, normalize: bool = True, loops: bool = True) -> np.ndarray:
    matrix = matrix + np.eye(NUM_NODES) * loops
    degree = matrix.sum(axis=1)
    scale = inverse(np.sqrt(degree))
    return scale[:, None] * matrix * scale if normalize else matrix


def reference_gcn(conv: GCNConv, graph: Graph, x, weight=None) -> np.ndarray:
    options = {"normalize": bool(conv.normalization), "loops": conv.add_self_loops}
    operator = gcn_operator(adjacency(graph, weight), **options)
    return operator @ double(x) @ double(conv.kernel) + double(conv.bias)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_gcn_conv_equals_the_formula(graph, weight, sizes, loops, normalize):
    normalization = "symmetric" if normalize else None
    conv = make(GCNConv, *sizes, normalization=normalization, add_self_loops=loops)
    x = features(sizes[0])
    for edge_weight in (None, weight):
        expected = reference_gcn(conv, graph, x, edge_weight)
        assert_close(conv(graph, x, edge_weight), expected)
        assert_close(nnx.jit(conv)(graph, x, edge_weight), expected)
        if normalize:
            # Scales are applied on both sides, so that twice the scale gives four times the sums.
            scale = gcn_norm(graph, edge_weight, add_self_loops=loops)
            assert_close(conv(graph, x, edge_weight, scale), expected)
            assert_close(
                conv(graph, x, edge_weight, 2 * scale) - double(conv.bias),
                4 * (expected - double(conv.bias)),
            )


def test_gcn_norm(graph, weight):
    for edge_weight in (None, weight):
        degree = adjacency(graph, edge_weight).sum(axis=1)
        assert_close(gcn_norm(graph, edge_weight), (degree + 1) ** -0.5)
        # Node 3 has no edges, hence degree 0 without self-loops.
        expected = inverse(np.sqrt(degree))
        assert expected[3] == 0
        assert_close(gcn_norm(graph, edge_weight, add_self_loops=False), expected)
    assert gcn_norm(graph).dtype == jnp.float32


def test_gcn_computes_the_scales_once(graph, weight):
    model = make(GCN, 4, 8, 3)
    # Scales have the only inverse roots of the model.
    jaxpr = str(
        jax.make_jaxpr(lambda x, w: model(graph, x, w, deterministic=True))(features(4), weight)
    )
    assert jaxpr.count("rsqrt") == 1
    scale = gcn_norm(graph, weight)
    with_scale = str(
        jax.make_jaxpr(lambda x, w, s: model(graph, x, w, s, deterministic=True))(
            features(4), weight, scale
        )
    )
    assert "rsqrt" not in with_scale
    x = features(4)
    assert_close(
        model(graph, x, weight, scale, deterministic=True),
        model(graph, x, edge_weight=weight, deterministic=True),
    )


# GIN


def reference_gin(conv: GINConv, graph: Graph, x, weight=None) -> np.ndarray:
    eps = conv.eps if conv.learned_eps is None else double(conv.learned_eps)
    operator = adjacency(graph, weight) + (1 + eps) * np.eye(NUM_NODES)
    hidden = operator @ double(x) @ double(conv.kernel) + double(conv.bias)
    return linear(conv.output, relu(hidden))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "options", [{}, {"eps": 0.3}, {"eps": 0.3, "learn_eps": True}, {"mlp_features": 5}]
)
def test_gin_conv_equals_the_formula(graph, weight, sizes, options):
    conv = make(GINConv, *sizes, **options)
    assert conv.kernel.shape[1] == options.get("mlp_features", sizes[1])
    assert conv.eps == options.get("eps", 0)
    assert isinstance(conv.learned_eps, nnx.Param if "learn_eps" in options else type(None))
    x = features(sizes[0])
    for edge_weight in (None, weight):
        assert_close(conv(graph, x, edge_weight), reference_gin(conv, graph, x, edge_weight))


def reference_sage(conv: SAGEConv, graph: Graph, x, weight=None) -> np.ndarray:
    x = double(x)
    messages = x if conv.projection is None else relu(linear(conv.projection, x))
    # Edge by edge: gather, weigh, reduce at the destinations; nodes without edges get 0.
    sent = messages[np.asarray(graph.cols)]
    sent = sent if weight is None else sent * double(weight)[:, None]
    reduce = {"mean": np.mean, "max": np.max, "sum": np.sum}[conv.reduce]
    rows = np.asarray(graph.rows)
    received = [
        reduce(sent[rows == i], axis=0) if (rows == i).any() else np.zeros(x.shape[1])
        for i in range(NUM_NODES)
    ]
    y = np.stack(received) @ double(conv.kernel) + double(conv.bias)
    y = y if conv.root is None else y + linear(conv.root, x)
    return unit(y) if conv.l2_normalize else y


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
@pytest.mark.parametrize(
    "options", [{}, {"self_weight": False}, {"project": True}, {"l2_normalize": True}]
)
def test_sage_conv_equals_the_formula(graph, weight, sizes, reduce, options):
    conv = make(SAGEConv, *sizes, reduce=reduce, **options)
    assert (conv.projection is None) == ("project" not in options)
    assert (conv.root is None) == ("self_weight" in options)
    assert conv.root is None or conv.root.bias is None
    x = features(sizes[0])
    for edge_weight in (None, weight):
        assert_close(conv(graph, x, edge_weight), reference_sage(conv, graph, x, edge_weight))


def test_normalized_zeros_are_zeros_and_have_gradients(graph):
    conv = SAGEConv(4, 3, l2_normalize=True, rngs=nnx.Rngs(0))
    x = jnp.zeros((NUM_NODES, 4))
    np.testing.assert_array_equal(conv(graph, x), np.zeros((NUM_NODES, 3)))
    assert np.isfinite(jax.grad(lambda x: conv(graph, x).sum())(x)).all()


# All layers


def reduced_widths(layer, graph: Graph, width: int) -> list[int]:
    jaxpr = jax.make_jaxpr(lambda x: layer(graph, x))(features(width))
    return [e.outvars[0].aval.shape[1] for e in jaxpr.eqns if "segment_reduce" in e.primitive.name]


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_the_narrower_side_is_aggregated(layer, graph):
    for sizes in SIZES:
        assert reduced_widths(make(layer, *sizes), graph, sizes[0]) == [min(sizes)]
    if layer is SAGEConv:  # the maximum is not linear
        assert reduced_widths(make(layer, 6, 3, reduce="max"), graph, 6) == [6]


@pytest.mark.parametrize(
    ("model_class", "primitives"),
    [
        (GCN, ["product", "mul", "sum", "product", "sum"]),
        (GIN, ["product", "sum", "product", "add", "max", "product", "sum", "product", "add"]),
        (SAGE, ["product", "product", "sum", "product", "product", "sum"]),
    ],
)
def test_no_operation_between_product_and_sum(model_class, primitives, graph):
    """A product comes right before its sum, except for the scales of a GCN's first input."""
    model = make(model_class, 8, 6, 4, num_layers=2)
    jaxpr = jax.make_jaxpr(lambda x: model(graph, x, deterministic=True))(features(8))
    names = made_of_rows(jaxpr.jaxpr, NUM_NODES)
    labels = {"dot_general": "product", "jax_gnn_segment_reduce": "sum"}
    ignored = {"broadcast_in_dim", "optimization_barrier"}
    assert [labels.get(name, name) for name in names if name not in ignored] == primitives


@pytest.mark.parametrize("model_class", [GCN, GIN, SAGE])
def test_gradients_of_weights_of_tall_products(model_class, graph, monkeypatch):
    """Values and gradients are the same where many rows are multiplied."""
    x = features(6)
    model = make(model_class, 6, 6, 6, num_layers=2)

    def loss(model, x):
        return jnp.sum(model(graph, x, deterministic=True) ** 2)

    want = nnx.value_and_grad(loss, argnums=(0, 1))(model, x)
    monkeypatch.setitem(api.MIN_ROWS, jax.default_backend(), NUM_NODES)
    monkeypatch.setitem(api._MIN_FEATURES, jax.default_backend(), 6)
    got = nnx.value_and_grad(loss, argnums=(0, 1))(model, x)
    jax.tree.map(lambda a, b: assert_near(a, b, 1e-5, model_class.__name__), got, want)
    jaxpr = jax.make_jaxpr(lambda x: model(graph, x, deterministic=True))(x)
    assert "jax_gnn_linear" in made_of_rows(jaxpr.jaxpr, NUM_NODES)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("normalize", [True, False])
def test_scales_between_layers(normalize, sizes, graph, weight):
    conv = make(GCNConv, *sizes, normalization="symmetric" if normalize else None)
    x = features(sizes[0], 2)
    # A layer may take scaled features, and scale its result for the next layer.
    scale = gcn_norm(graph, weight)[:, None, None] if normalize else 1
    plain = conv(graph, x, weight, activation="relu")
    options = {"is_scaled": True, "scales_result": True, "activation": "relu"}
    assert_close(conv(graph, scale * x, weight, **options), scale * plain)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (GCNConv, {}),
        *((SAGEConv, {"reduce": name}) for name in ("mean", "max", "sum")),
        (SAGEConv, {"l2_normalize": True}),
    ],
)
def test_fused_relu(layer, options, sizes, graph, weight):
    conv = make(layer, *sizes, **options)
    x = features(sizes[0], 2)
    plain = conv(graph, x, weight)
    assert (plain < 0).any()
    assert_close(conv(graph, x, weight, activation="relu"), jax.nn.relu(plain))


@pytest.mark.parametrize(
    ("layer", "reference", "options"),
    [
        (GCNConv, reference_gcn, {}),
        (GINConv, reference_gin, {"learn_eps": True}),
        *(
            (SAGEConv, reference_sage, {"reduce": aggregation, "l2_normalize": True})
            for aggregation in ("mean", "max", "sum")
        ),
    ],
)
def test_gradients_are_slopes(layer, reference, options, graph, weight, rng):
    with jax.enable_x64(True):
        check_gradient(
            rng,
            make(layer, 4, 3, param_dtype=jnp.float64, **options),
            lambda conv, x, weight: conv(graph, x, weight),
            lambda conv, x, weight: reference(conv, graph, x, weight),
            rng.normal(size=(NUM_NODES, 4)),
            weight,
        )


def test_each_dropout_draws_its_own_mask(graph):
    identity = {"normalization": None, "add_self_loops": False, "use_bias": False}
    x, loops = jnp.ones((NUM_NODES, 64)), np.arange(NUM_NODES)
    model = GCN(
        64,
        64,
        64,
        num_layers=3,
        input_dropout_rate=0.5,
        kernel_init=lambda key, shape, dtype: jnp.eye(*shape, dtype=dtype),
        rngs=nnx.Rngs(0),
        **identity,
    )
    y = model(Graph.from_edges(loops, loops), x, rngs=jax.random.key(0))
    share = np.mean(np.asarray(y) > 0)
    # Three dropouts of rate 1/2 scale by 8 what all of them keep.
    assert set(np.unique(y)) == {0.0, 8.0}
    assert 0.06 < share < 0.2  # an eighth, but a half were the masks equal
