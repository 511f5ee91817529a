"""R-GCN: the layer in all its forms against its formula, and the stack of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import awkward_triples, check_gradient, double, features, relu

from flax_layers import RGCN, RGCNConv
from flax_layers.relational import keeps_blocks
from jax_gnn import RelationalGraph
from jax_gnn._ops.relational_aggregate import schedule

pytestmark = pytest.mark.usefixtures("exact_products")

NUM_NODES, RELATIONS = 9, 4
FORMS = [{}, {"num_bases": 2}, {"num_blocks": 2}, {"self_weight": False}]


@pytest.fixture
def triples(rng) -> tuple[np.ndarray, ...]:
    return awkward_triples(rng)


def graph_of(triples, self_relation: bool = False) -> RelationalGraph:
    return RelationalGraph.from_triples(*triples, NUM_NODES, RELATIONS, self_relation=self_relation)


def make(layer, *sizes, **options):
    options |= {"num_relations": RELATIONS, "bias_init": jax.random.normal}
    return layer(*sizes, rngs=nnx.Rngs(0), **options)


def weights(conv: RGCNConv) -> tuple[np.ndarray, np.ndarray | float]:
    """Return the full weights of relations, and the weight of a node's own features."""
    kernel, self_kernel = double(conv.kernel), 0.0
    if conv.num_blocks is not None:
        self_kernel = 0.0 if conv.own is None else double(conv.own)
        # Blocks on the diagonal of full matrices.
        full = np.zeros((RELATIONS, conv.in_features, conv.out_features), kernel.dtype)
        rows, cols = kernel.shape[2:]
        for block in range(conv.num_blocks):
            at = np.s_[:, block * rows : (block + 1) * rows, block * cols : (block + 1) * cols]
            full[at] = kernel[:, block]
        return full, self_kernel
    if conv.self_weight:
        kernel, self_kernel = kernel[:-1], kernel[-1]
    if conv.coefficients is not None:
        kernel = np.einsum("rb,bkn->rkn", double(conv.coefficients), kernel)
    return kernel, self_kernel


def formula(conv: RGCNConv, triples, x, edge_weight=None) -> np.ndarray:
    """Return the result, edge by edge; edge weights are in the order of the triples."""
    src, rel, dst = triples
    kernel, self_kernel = weights(conv)
    if edge_weight is None:
        edge_weight = np.ones(len(src))
        if conv.normalization == "mean":
            # A mean is over the edges of one relation into one destination.
            same_norm = (rel[:, None] == rel) & (dst[:, None] == dst)
            edge_weight = 1 / same_norm.sum(1)
    messages = np.einsum("e,e...k,ekn->e...n", edge_weight, x[src], kernel[rel])
    y = np.zeros((NUM_NODES, *messages.shape[1:]), messages.dtype)
    np.add.at(y, dst, messages)
    y = y + (x @ self_kernel if np.ndim(self_kernel) else 0)
    return y if conv.bias is None else y + double(conv.bias)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@nnx.jit
def outputs(conv, calls):
    """Return the results of several calls, compiled as one program."""
    return [conv(*operands) for operands in calls]


@pytest.mark.parametrize("form", FORMS, ids=repr)
@pytest.mark.parametrize("norm", ["mean", "sum"])
def test_conv_equals_the_formula(triples, rng, form, norm):
    conv = make(RGCNConv, 4, 6, normalization=norm, **form)
    edge_weight = rng.uniform(0.5, 2, 30)
    calls, expected = [], []
    for x in (features(4), features(4, 2)):
        for self_relation in sorted({False, conv.self_weight}):
            graph = graph_of(triples, self_relation)
            weight = graph.edge_values(edge_weight.astype(np.float32), 1)
            calls += [(graph, x), (graph, x, weight)]
            expected += [
                formula(conv, triples, double(x), weights) for weights in (None, edge_weight)
            ]
    for y, reference in zip(outputs(conv, calls), expected, strict=True):
        assert_close(y, reference)


def check_weighted(conv, graph, triples, rng):
    """Compare with the formula, with and without edge weights and a batch axis."""
    edge_weight = rng.uniform(0.5, 2, 30)
    weight = graph.edge_values(edge_weight.astype(np.float32), 1)
    x = features(4), features(4, 2)

    @nnx.jit  # again: what is patched is chosen while tracing
    def outputs(conv, graph, weight):
        return [conv(graph, rows, *weights) for rows in x for weights in ((), (weight,))]

    results = iter(outputs(conv, graph, weight))
    for rows in x:
        for weights in (None, edge_weight):
            assert_close(next(results), formula(conv, triples, double(rows), weights))


@pytest.mark.parametrize("by_basis", [False, True])
@pytest.mark.parametrize("self_relation", [False, True])
def test_bases_mixed_or_summed_one_by_one(triples, rng, monkeypatch, self_relation, by_basis):
    """Bases are mixed first or summed one by one, with features and without."""
    module = "jax_gnn._ops.relational_aggregate.api"
    monkeypatch.setattr(f"{module}.sums_by_basis_pay", lambda *_, **__: by_basis)
    graph = graph_of(triples, self_relation)
    conv = make(RGCNConv, 4, 6, num_bases=2)
    check_weighted(conv, graph, triples, rng)
    # Nodes without features are one-hot.
    # A lookup of rows in place of products.
    conv = make(RGCNConv, NUM_NODES, 6, num_bases=3)
    assert_close(nnx.jit(conv)(graph), formula(conv, triples, np.eye(NUM_NODES)))


@pytest.mark.parametrize("keeps_blocks", [False, True])
@pytest.mark.parametrize("self_relation", [False, True])
def test_blocks_in_full_or_as_a_batch(triples, rng, monkeypatch, self_relation, keeps_blocks):
    monkeypatch.setattr("flax_layers.relational.keeps_blocks", lambda *_: keeps_blocks)
    check_weighted(
        make(RGCNConv, 4, 6, num_blocks=2), graph_of(triples, self_relation), triples, rng
    )


def test_choice_of_blocks():
    """Hundreds of relations with few edges each and wide features keep their blocks apart."""
    rng = np.random.default_rng(0)
    for num_relations, num_edges, width, is_kept in ((500, 500, 500, True), (50, 5000, 64, False)):
        src, dst = rng.integers(0, 1000, (2, num_edges))
        rel = rng.integers(0, num_relations, num_edges)
        graph = RelationalGraph.from_triples(src, rel, dst, num_nodes=1000)
        assert keeps_blocks(graph, width, width) == is_kept


def test_choice_of_bases():
    """Two bases of a thousand relations of few edges are cheaper apart, thirty of ten are not."""
    counts = schedule.Counts(1000, 1000, 5000, 1000, 4000, 4000, 256, 256, 4)
    assert schedule.sums_by_basis_pay(counts, 2)
    counts = schedule.Counts(10**5, 10**5, 10**7, 10, 10**5, 10**5, 64, 64, 4)
    assert not schedule.sums_by_basis_pay(counts, 30)
    assert not schedule.sums_by_basis_pay(counts, 30, lookup=True)


def test_gradients_are_slopes(triples, rng):
    graph = graph_of(triples, True)
    with jax.enable_x64(True):
        for form in FORMS[:3]:
            conv = make(RGCNConv, 4, 6, param_dtype=jnp.float64, **form)

            def call(conv, x):
                return conv(graph, x)

            def plain(conv, x):
                return formula(conv, triples, x)

            check_gradient(rng, conv, call, plain, features(4))


def test_no_features(triples):
    for self_relation in (False, True):
        conv = make(RGCNConv, NUM_NODES, 6)
        expected = formula(conv, triples, np.eye(NUM_NODES))
        assert_close(nnx.jit(conv)(graph_of(triples, self_relation)), expected)


def test_bipartite(rng):
    # Sources are other nodes than destinations, whose features come second.
    src, dst, rel = rng.integers(0, 5, 20), rng.integers(0, NUM_NODES, 20), rng.integers(0, 4, 20)
    graph = RelationalGraph.from_triples(
        src, rel, dst, num_src=5, num_dst=NUM_NODES, num_relations=RELATIONS
    )
    conv = make(RGCNConv, 4, 6, normalization="sum", use_bias=False)
    x, x_dst = features(4)[:5], features(4)
    kernel, self_kernel = weights(conv)
    expected = double(x_dst) @ self_kernel
    np.add.at(expected, dst, np.einsum("ek,ekn->en", double(x)[src], kernel[rel]))
    assert_close(conv(graph, (x, x_dst)), expected)
    with pytest.raises(ValueError, match="graph must have its destinations among its sources"):
        conv(graph, x)


@pytest.mark.parametrize("featureless", [False, True])
def test_model_equals_two_convolutions(triples, featureless):
    graph = graph_of(triples, True)
    x = np.eye(NUM_NODES) if featureless else double(features(NUM_NODES))
    model = make(RGCN, NUM_NODES, 6, 2, num_bases=2, dropout_rate=0.5)
    model.eval()
    hidden = relu(formula(model.conv1, triples, x))
    expected = formula(model.conv2, triples, hidden)
    assert_close(model(graph, None if featureless else jnp.asarray(x, jnp.float32)), expected)
    # Only factors of edges divide.
    jaxpr = str(jax.make_jaxpr(model)(graph, jnp.ones((NUM_NODES, NUM_NODES))))
    assert jaxpr.count(" = div ") == 1  # factors of edges are computed once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_bases": 2, "num_blocks": 2}, "num_bases and num_blocks exclude each other"),
        (
            {"num_blocks": 3},
            r"num_blocks must divide in_features and out_features, \(4, 6\), got 3",
        ),
    ],
)
def test_bad_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        RGCNConv(4, 6, **{"num_relations": 4} | arguments, rngs=nnx.Rngs(0))


def test_bad_calls(triples):
    graph, x = graph_of(triples, True), features(4)
    with pytest.raises(ValueError, match="graph must have num_relations = 3 beside"):
        RGCNConv(4, 6, num_relations=3, rngs=nnx.Rngs(0))(graph, x)
    with pytest.raises(ValueError, match="graph has a self_relation, and the layer has self_w"):
        make(RGCNConv, 4, 6, self_weight=False)(graph, x)
    conv = make(RGCNConv, 4, 6)
    with pytest.raises(ValueError, match="in_features = 4 sources where there is no x, got 9"):
        conv(graph)
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.RelationalGraph"):
        conv(graph.nodes, x)
    with pytest.raises(ValueError, match="x must be given for block-diagonal weights"):
        make(RGCNConv, NUM_NODES, 9, num_blocks=3)(graph)
