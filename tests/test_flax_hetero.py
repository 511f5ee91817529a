"""Layers over dicts by type: against separate convolutions, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import double, linear

from flax_layers import (
    HGT,
    RGAT,
    RGCN,
    CompGCN,
    GATConv,
    GATv2Conv,
    GCNConv,
    HeteroConv,
    HeteroLinear,
    HeteroModel,
    HGTConv,
    SAGEConv,
)
from jax_gnn import Graph, HeteroGraph

pytestmark = pytest.mark.usefixtures("exact_products")

SIZES = {"author": 4, "paper": 5, "nobody": 0, "tag": 3}
WRITES, CITES, HAS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has", "tag"),
)
NOTHING = ("nobody", "wants", "tag")


@pytest.fixture
def graph(rng) -> HeteroGraph:
    """Graph with inverse relations, and a graph for each edge type."""
    edges = {
        key: rng.integers(0, [[SIZES[key[0]]], [SIZES[key[2]]]], (2, 9))
        for key in (WRITES, CITES, HAS)
    }
    edges[NOTHING] = np.zeros((2, 0), int)
    return HeteroGraph.from_edges(edges, SIZES, inverse=True).with_graphs()


def features(rng, width: int = 6, *batch: int) -> dict[str, jax.Array]:
    return {name: jnp.asarray(rng.normal(size=(n, *batch, width))) for name, n in SIZES.items()}


def sage(rngs, **options):
    options |= {"rngs": rngs, "param_dtype": jnp.float64, "bias_init": nnx.initializers.normal()}
    return SAGEConv((6, 6), 4, **options)


def separately(conv: HeteroConv, graph, x) -> dict[str, jax.Array]:
    return conv(graph, x, {key: {} for key in conv.edge_types})


@pytest.mark.parametrize("across", ["sum", "mean", "max", "min", "concat", "stack"])
@pytest.mark.parametrize("options", [{}, {"reduce": "sum"}, {"self_weight": False}], ids=repr)
def test_joint_convolutions(graph, rng, across, options):
    """Values and gradients of joint convolutions are those of separate calls."""
    with jax.enable_x64(True):
        rngs = nnx.Rngs(0)
        convs = {key: sage(rngs, **options) for key in graph.edge_types}
        # Convolutions of other classes run beside the joint ones.
        convs[CITES] = GCNConv(6, 4, rngs=rngs, param_dtype=jnp.float64)
        convs[("tag", "rev_has", "paper")] = GATConv((6, 6), 4, rngs=rngs, param_dtype=jnp.float64)
        conv = HeteroConv(convs, reduce=across)
        x = features(rng)
        # Relations are one segmented product.
        text = str(jax.make_jaxpr(lambda x: conv(graph, x))(x))
        assert text.count("jax_gnn_segment_matmul[") == 1

        @nnx.jit
        def results_of_both(conv, x):
            def value_and_gradient(call):
                def loss(conv, x):
                    return sum(jnp.sum(jnp.sin(y)) for y in call(conv, graph, x).values())

                return call(conv, graph, x), nnx.grad(loss, argnums=(0, 1))(conv, x)

            joint = value_and_gradient(lambda conv, graph, x: conv(graph, x))
            return joint, value_and_gradient(separately)

        joint, reference = (jax.tree.leaves(results) for results in results_of_both(conv, x))
        for a, b in zip(joint, reference, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_batches_and_padding(graph, rng):
    with jax.enable_x64(True):
        convs = {key: sage(nnx.Rngs(0)) for key in (WRITES, HAS)}
        x = features(rng, 6, 2)
        for across in ("sum", "max"):
            conv = HeteroConv(convs, reduce=across)
            y, expected = conv(graph, x), separately(conv, graph, x)
            assert [*y] == ["paper", "tag"]
            for name in y:
                np.testing.assert_allclose(y[name], expected[name], rtol=0, atol=1e-10)


def test_unequal_convolutions_run_separately(graph, rng):
    """Convolutions of other widths, options or classes are not joined."""
    rngs = nnx.Rngs(0)
    convs = {
        WRITES: SAGEConv((6, 6), 4, rngs=rngs),
        CITES: SAGEConv((6, 6), 4, project=True, rngs=rngs),
        HAS: SAGEConv((6, 6), 2, rngs=rngs),
    }
    conv = HeteroConv(convs)
    x = jax.tree.map(lambda rows: rows.astype(jnp.float32), features(rng))
    assert "jax_gnn_segment_matmul" not in str(jax.make_jaxpr(lambda x: conv(graph, x))(x))
    y = conv(graph, x)
    expected = convs[WRITES](graph.graph(WRITES), (x["author"], x["paper"]))
    expected += convs[CITES](graph.graph(CITES), x["paper"])
    np.testing.assert_allclose(y["paper"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
def test_nodes_of_one_type_attend_to_themselves(rng, layer):
    """Nodes attend to themselves, as in PyG, also with separate kernels for both endpoints."""
    key = ("paper", "cites", "paper")
    src, dst = rng.integers(0, 4, 9), rng.integers(4, 8, 9)
    graph = HeteroGraph.from_edges({key: [src, dst]}, {"paper": 8}).with_graphs()
    x = jnp.asarray(rng.normal(size=(8, 6)), jnp.float32)
    conv = layer((6, 6), 4, heads=2, rngs=nnx.Rngs(0))
    y = HeteroConv({key: conv})(graph, {"paper": x})["paper"]
    # Explicit self-loops, and a pair of features for which the layer adds none.
    conv.add_self_loops = False
    expected = conv(graph.graph(key).with_self_loops(), (x, x + 0))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", ["mean", "max", "sum"])
@pytest.mark.parametrize("width", [3, 8])
def test_sage_of_a_bipartite_graph(rng, reduce, width):
    src, dst = rng.integers(0, 5, 12), rng.integers(0, 4, 12)
    graph = Graph.from_edges(src, dst, num_src=5, num_dst=4)
    conv = SAGEConv((width, 2), 4, reduce=reduce, rngs=nnx.Rngs(0))
    x, y = rng.normal(size=(5, width)).astype("f"), rng.normal(size=(4, 2)).astype("f")
    summed = np.zeros((4, width))
    for i in range(4):
        rows = double(x)[src[dst == i]]
        if len(rows):
            summed[i] = getattr(np, reduce)(rows, 0)
    expected = summed @ double(conv.kernel) + double(y) @ double(conv.root.kernel)
    np.testing.assert_allclose(conv(graph, (x, y)), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="x must be a pair"):
        conv(graph, x)


def test_arbitrary_names(rng):
    """Types and relations may have names with separators, or names of module attributes."""
    names = ["a", "a__b", "b__c", "eval", "__class__", "_pytree__x", "", "x.y/z", "rev_"]
    edges = {("a", "b__c", name): rng.integers(0, 3, (2, 4)) for name in names}
    edges |= {("a__b", "c", name): rng.integers(0, 3, (2, 4)) for name in names}
    graph = HeteroGraph.from_edges(edges, dict.fromkeys(names, 3), inverse=True).with_graphs()
    rngs = nnx.Rngs(0)
    conv = HeteroConv({key: GCNConv(2, 2, rngs=rngs) for key in edges if key[0] == key[2]})
    # Names that look alike when joined must not share parameters.
    kernels = {id(conv.convolutions[key].kernel) for key in conv.edge_types}
    assert len(kernels) == len(conv.edge_types) == len(conv.convolutions) == 2
    linear = HeteroLinear(dict.fromkeys(names, 2), 2, rngs=rngs)
    convs = {key: SAGEConv((2, 2), 2, rngs=rngs) for key in graph.edge_types}
    pairs = [(key, convs[key].kernel) for key in graph.edge_types]
    conv = HeteroConv(convs)
    for module in (linear, conv):
        module.eval()
        assert len(jax.tree.leaves(nnx.state(module, nnx.Param))) > len(names)
    assert all(conv.convolutions[key].kernel is kernel for key, kernel in pairs)
    assert [*conv.convolutions.items()] == [*convs.items()]
    x = {name: jnp.asarray(rng.normal(size=(3, 2)), jnp.float32) for name in names}
    y, expected = nnx.jit(lambda c, x: (c(graph, x), separately(c, graph, x)))(conv, linear(x))
    for name in names:
        np.testing.assert_allclose(y[name], expected[name], rtol=1e-4, atol=1e-4)
    hgt = HGTConv(
        dict(zip(names, range(1, 10), strict=True)),
        2,
        node_types=names,
        num_relations=len(graph.edge_types),
        relation_ends=graph.edge_types,
        rngs=rngs,
    )
    assert hgt.sizes(graph.relational) == (3,) * 9
    assert hgt.key["__class__"].shape[0] == 5


def test_models_of_graphs_in_another_order(rng):
    """A reordered graph gives the same bits after steps of training."""
    edges = {("u", name, "v"): rng.integers(0, 4, (2, 6)) for name in ("p", "q", "r")}
    edges[("v", "s", "u")] = rng.integers(0, 4, (2, 6))
    graph = HeteroGraph.from_edges(edges, {"u": 4, "v": 5}, inverse=True)
    types = [*edges][::-1]
    reordered = HeteroGraph.from_edges(
        {key: edges[key] for key in types}, {"v": 5, "u": 4}, inverse=True
    )
    rngs = nnx.Rngs(0)
    rgcn = RGCN(4, 4, 2, num_relations=8, rngs=rngs)
    model = HeteroModel({"u": 3, "v": 5}, rgcn, edge_types=graph.edge_types, rngs=rngs)
    x = {"u": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32), "v": None}

    @nnx.jit
    def step(model, graph):
        def loss(model):
            y = model(graph, x, deterministic=True)
            return jnp.sum(y["u"] ** 2) + jnp.sum(y["v"]), y

        (_, y), gradients = nnx.value_and_grad(loss, has_aux=True)(model)
        nnx.update(
            model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients)
        )
        return y

    restored = reordered.in_order(graph.node_types, graph.edge_types)
    # Two steps, as an error in gradients shows after the first.
    twin = nnx.clone(model)
    for _ in range(2):
        y, twin_y = step(model, graph), step(twin, restored)
        for name in y:
            np.testing.assert_array_equal(twin_y[name], y[name])
    with pytest.raises(
        ValueError, match=r"graph must have the node types \('u', 'v'\) in that ord"
    ):
        model(reordered, x)
    with pytest.raises(
        ValueError, match=r"graph must have the edge types .* in that order, as graph"
    ):
        model(reordered.in_order(graph.node_types), x)
    types_of_relations = {
        "node_types": ("u", "v"),
        "num_relations": 8,
        "relation_ends": graph.edge_types,
    }
    hgt = HGTConv(4, 4, **types_of_relations, rngs=rngs)
    with pytest.raises(
        ValueError, match=r"relations of relation_ends in that order, got .*'r', 'v'"
    ):
        hgt.sizes(reordered.in_order(graph.node_types, [types[i] for i in (1, 2, 3, 0)]).relational)


def test_heterolinear():
    layer = HeteroLinear({"a": 3, "b": 2}, 4, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(0))
    x = np.arange(15.0, dtype=np.float32).reshape(5, 3)
    y = layer({"b": None, "a": x})
    np.testing.assert_allclose(y["a"], linear(layer.layers["a"], x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(y["b"], linear(layer.layers["b"], np.eye(2)), rtol=1e-5, atol=1e-5)
    for x_dict, message in (
        ({"a": x}, "x_dict lacks the type 'b'; None stands for no features"),
        ({"a": x, "b": None, "c": x}, "x_dict has the key 'c', none of the types 'a', 'b"),
        ({"a": x[:, :2], "b": None}, r"x_dict\['a'\] must have shape .* got \(5, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(x_dict)
    with pytest.raises(TypeError, match="x_dict must be a mapping by type, got list"):
        layer([x])
    with pytest.raises(ValueError, match=r"in_features\['a'\] must be a number from 0, got -1"):
        HeteroLinear({"a": -1}, 4, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"\['a'\] must be a number, of a type .*, got None"):
        HeteroLinear({"a": None}, 4, rngs=nnx.Rngs(0))  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="in_features must be a mapping by type, got int"):
        HeteroLinear(3, 4, rngs=nnx.Rngs(0))


def test_heteromodel(graph, rng):
    sizes = {"author": 6, "paper": 2, "nobody": 0, "tag": 3}  # tags have no features
    rngs = nnx.Rngs(0)
    rgcn = RGCN(8, 8, 2, num_relations=len(graph.edge_types), rngs=rngs)
    model = HeteroModel(sizes, rgcn, rngs=rngs)
    assert model.in_features == sizes
    x = {"author": jnp.ones((4, 6)), "paper": jnp.ones((5, 2)), "tag": None}
    x["nobody"] = jnp.ones((0, 0))
    y = model(graph, x, deterministic=True)
    # The model sees one array, ReLU of the mapped features of all types.
    rows = {name: np.maximum(part, 0) for name, part in model.input(x).items()}
    expected = rgcn(graph.relational, graph.join(rows), deterministic=True)
    for name, part in graph.split(expected).items():
        np.testing.assert_allclose(y[name], part, rtol=1e-5, atol=1e-6)
    y_of_relational = model(graph.relational, x, deterministic=True)
    np.testing.assert_allclose(y_of_relational, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"x_dict\['paper'\] must have a row for each of 5 nodes"):
        model(graph, x | {"paper": jnp.ones((4, 2))})
    reversed_model = HeteroModel(dict(reversed(sizes.items())), rgcn, rngs=rngs)
    with pytest.raises(ValueError, match=r"graph must have the node types \('tag', 'nobody'"):
        reversed_model(graph, x)


def test_bad_construction():
    with pytest.raises(ValueError, match="convolutions must not be empty"):
        HeteroConv({})
    with pytest.raises(TypeError, match=r"by \(source type, relation, destination type\), got 'a'"):
        HeteroConv({"a": SAGEConv(6, 4, rngs=nnx.Rngs(0))})
    with pytest.raises(ValueError, match="reduce must be one of 'sum', 'mean'"):
        HeteroConv({WRITES: SAGEConv(6, 4, rngs=nnx.Rngs(0))}, reduce="cat")


def test_bad_calls(graph, rng):
    rngs = nnx.Rngs(0)
    conv = HeteroConv({key: SAGEConv((6, 6), 4, rngs=rngs) for key in (WRITES, HAS)})
    x = features(rng)
    without = {name: rows for name, rows in x.items() if name != "author"}
    with pytest.raises(ValueError, match=r"x_dict lacks the type 'author', which .*'writes'"):
        conv(graph, without)
    with pytest.raises(ValueError, match="x_dict has the key 'writer', which is none of"):
        conv(graph, x | {"writer": x["author"]})
    with pytest.raises(ValueError, match=r"x_dict\['author'\] must have shape .* got \(4, 3\)"):
        conv(graph, x | {"author": x["author"][:, :3]})
    with pytest.raises(ValueError, match=r"arguments has \('paper', 'cites', 'paper'\)"):
        conv(graph, x, {CITES: {}})
    unknown = HeteroConv({("paper", "likes", "tag"): SAGEConv((6, 6), 4, rngs=rngs)})
    with pytest.raises(ValueError, match=r"edge type \('paper', 'likes', 'tag'\) is none of"):
        unknown(graph, x)
    single = HeteroConv({CITES: GATConv(6, 4, rngs=rngs)})
    small = HeteroGraph.from_edges({CITES: [[0], [1]]}, {"paper": 5})
    with pytest.raises(ValueError, match="have no graph of their own: call with_graphs"):
        single(small, {"paper": x["paper"]})
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.HeteroGraph"):
        conv(graph.relational, x)


# --- Relational layers ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RGCN, RGAT, HGT, CompGCN])
def test_relational_layers_take_names(graph, rng, kind):
    """Graphs and features by name give the same results as by number."""
    options = {"num_relations": 8, "rngs": nnx.Rngs(0)}
    if kind is HGT:
        options |= {"node_types": tuple(SIZES), "relation_ends": graph.edge_types}
    model = kind(6, 8, 4, **options)
    x = features(rng)
    relations = (jnp.asarray(rng.normal(size=(8, 6))),) if kind is CompGCN else ()

    def nodes(y):
        return y[0] if kind is CompGCN else y

    reference = graph.split(
        nodes(model(graph.relational, graph.join(x), *relations, deterministic=True))
    )
    joined = nodes(model(graph, graph.join(x), *relations, deterministic=True))
    by_type = nodes(model(graph, x, *relations, deterministic=True))
    assert list(by_type) == list(SIZES)
    for name, expected in reference.items():
        np.testing.assert_allclose(by_type[name], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(graph.split(joined)[name], expected, rtol=1e-5, atol=1e-6)


def test_relational_layers_reject_names(graph, rng):
    x, rngs = features(rng), {"rngs": nnx.Rngs(0)}
    rgcn = RGCN(6, 8, 4, num_relations=8, **rngs)
    hgt = HGT(
        6, 8, 4, num_relations=8, node_types=tuple(SIZES), relation_ends=graph.edge_types, **rngs
    )
    for model, x_dict, error, message in (
        (rgcn, x | {"venue": x["tag"]}, ValueError, "x_dict has the key 'venue'"),
        (rgcn, {"tag": x["tag"]}, ValueError, "x_dict lacks the type 'author'"),
        (hgt, x | {"venue": x["tag"]}, ValueError, "x has the key 'venue'"),
        (hgt, x | {"tag": None}, ValueError, r"x\['tag'\] must be an array of numbers, got None"),
        (rgcn, x | {"tag": None}, ValueError, r"x_dict\['tag'\] must be an array of numbers"),
    ):
        with pytest.raises(error, match=message):
            model(graph, x_dict, deterministic=True)
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.RelationalGraph, got Graph"):
        rgcn(graph.graph(WRITES), x)
