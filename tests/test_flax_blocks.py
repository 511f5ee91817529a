"""Models on sampled blocks, compared with the whole graph and with formulas by edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import flax_layers as layers
from flax_layers import gcn_norm
from jax_gnn import Graph, RelationalGraph, host_arrays
from jax_gnn.extend import take
from jax_gnn.sampling import Blocks, sample_neighbors

pytestmark = pytest.mark.usefixtures("float64")

NUM_NODES, RELATIONS, WIDTH, CLASSES = 15, 3, 4, 5
TYPES = {"author": 6, "paper": 5, "venue": 4}
ENDS = [("author", "paper"), ("paper", "author"), ("paper", "venue")]
WIDTHS = {"author": 3, "paper": 8, "venue": 2}


class Case(NamedTuple):
    """A model, and the arguments of its call.

    Attributes:
        model: Class of the model.
        options: Arguments of the constructor.
        edges: Name of the argument with values of edges, or None.
        typed: Whether nodes have types.
    """

    model: Any
    options: dict[str, Any]
    edges: str | None = None
    typed: bool = False


OF_RELATIONS = {"num_relations": RELATIONS}
OF_TYPES = OF_RELATIONS | {"node_types": tuple(TYPES), "relation_ends": ENDS, "heads": 2}
CASES = {
    "GCN": Case(layers.GCN, {}, "edge_weight"),
    "GCN-alone": Case(layers.GCN, {"add_self_loops": False}),
    "GCN-sum": Case(layers.GCN, {"normalization": None}, "edge_weight"),
    "GIN": Case(layers.GIN, {"learn_eps": True, "eps": 0.3}, "edge_weight"),
    "SAGE": Case(layers.SAGE, {}, "edge_weight"),
    "SAGE-max": Case(layers.SAGE, {"reduce": "max", "project": True}),
    "GAT": Case(layers.GAT, {"heads": 2, "edge_in_features": 3}, "edge_features"),
    "GATv2": Case(layers.GATv2, {"heads": 2, "edge_in_features": 3}, "edge_features"),
    "GINE": Case(layers.GINE, {"edge_in_features": 3}, "edge_features"),
    "PNA": Case(layers.PNA, {"degree_histogram": (2, 3, 1)}),
    "HEAT": Case(
        layers.HEAT, OF_RELATIONS | {"num_node_types": len(TYPES), "heads": 2}, None, True
    ),
    "GATv2-shared": Case(layers.GATv2, {"share_weights": True}),
    "GraphTransformer": Case(layers.GraphTransformer, {"heads": 2, "gated": True}),
    "RGCN": Case(layers.RGCN, OF_RELATIONS),
    "RGCN-blocks": Case(layers.RGCN, OF_RELATIONS | {"num_blocks": 1}, "edge_weight"),
    "RGAT": Case(layers.RGAT, OF_RELATIONS | {"heads": 2, "edge_in_features": 3}, "edge_features"),
    "RGAT-rows": Case(layers.RGAT, OF_RELATIONS | {"method": "source_pairs"}),
    "RGAT-pairs": Case(layers.RGAT, OF_RELATIONS | {"method": "destination_pairs"}),
    "RGAT-within": Case(layers.RGAT, OF_RELATIONS | {"softmax": "within", "heads": 2}),
    "HGT": Case(layers.HGT, OF_RELATIONS | {"heads": 2, "method": "source_pairs"}),
    "HGT-types": Case(layers.HGT, OF_TYPES | {"method": "source_pairs"}, None, True),
    "HGT-pairs": Case(layers.HGT, OF_TYPES | {"method": "destination_pairs"}, None, True),
    "HGT-widths": Case(layers.HGT, OF_TYPES | {"in_features": WIDTHS}, None, True),
}


def make(case: Case, **changes):
    sizes = {"in_features": WIDTH, "hidden_features": 8, "out_features": CLASSES, "num_layers": 2}
    options = sizes | {
        "bias_init": jax.random.normal,
        "param_dtype": jnp.float64,
        "dropout_rate": 0.0,
    }
    return case.model(**options | case.options | changes, rngs=nnx.Rngs(0))


def is_relational(case: Case) -> bool:
    return case.model.convolution.structure is RelationalGraph


@pytest.fixture
def plain(rng) -> Graph:
    """Unsorted edges with a self-loop and a repeated edge; node 3 has no edges."""
    nodes = np.delete(np.arange(NUM_NODES), 3)
    src, dst = rng.choice(nodes, (2, 40))
    # Repeats the first edge, and adds a self-loop.
    src, dst = np.append(src, [src[0], 5]), np.append(dst, [dst[0], 5])
    return Graph.from_edges(src, dst, num_nodes=NUM_NODES)


@pytest.fixture
def related(plain, rng) -> RelationalGraph:
    relations = rng.integers(0, RELATIONS, plain.num_edges)
    return RelationalGraph.from_triples(plain.cols, relations, plain.rows, NUM_NODES, RELATIONS)


@pytest.fixture
def typed(rng) -> RelationalGraph:
    edges = {
        (src, str(i), dst): np.stack([rng.integers(0, TYPES[of], 14) for of in (src, dst)])
        for i, (src, dst) in enumerate(ENDS)
    }
    return RelationalGraph.from_edge_dict(edges, TYPES)


def graph_of(case: Case, request):
    name = "typed" if case.typed else "related" if is_relational(case) else "plain"
    return request.getfixturevalue(name)


def sampled(graph, seeds, fanouts, seed: int = 0, **options) -> Blocks:
    """Return blocks of a graph; relations are added to blocks of the plain graph."""
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    blocks = sample_neighbors(nodes, jnp.asarray(seeds), fanouts, jax.random.key(seed), **options)
    if isinstance(graph, Graph):
        return blocks
    return replace(blocks, graphs=tuple(with_relations(graph, block) for block in blocks.graphs))


def with_relations(graph: RelationalGraph, block: Graph) -> RelationalGraph:
    # Relations of a block's edges are read from the whole graph.
    types = jnp.where(block.edge_ids < 0, -1, graph.edge_types[block.edge_ids])
    sizes = {"num_src": block.num_src, "num_dst": block.num_dst, "num_relations": RELATIONS}
    result = RelationalGraph.from_triples(block.cols, types, block.rows, **sizes, validate=False)
    places = result.nodes.edge_ids
    ids = jnp.where(places < 0, -1, block.edge_ids[places])
    nodes = replace(result.nodes, edge_ids=ids, num_input_edges=block.num_input_edges)
    return replace(result, nodes=nodes)


def features(case: Case, rng, rows: int = NUM_NODES):
    widths = case.options.get("in_features")
    if widths is None:
        return jnp.asarray(rng.normal(size=(rows, WIDTH)))
    return {name: jnp.asarray(rng.normal(size=(TYPES[name], widths[name]))) for name in widths}


def node_types(ids: jax.Array) -> jax.Array:
    stops = np.cumsum([*TYPES.values()])
    return jnp.where(ids < 0, -1, jnp.searchsorted(stops, ids, side="right"))


def gathered(x, ids: jax.Array, fill: float = 0.0):
    """Return rows of sources; by type, one row for each source, valid if it is of the type."""
    if not isinstance(x, dict):
        return x.at[jnp.where(ids < 0, len(x), ids)].get(mode="fill", fill_value=fill)
    # Ids of a type are consecutive.
    starts = dict(zip(TYPES, np.cumsum([0, *TYPES.values()]), strict=False))
    type_ids = {name: ids - starts[name] for name in x}
    return {
        name: gathered(rows, jnp.where(type_ids[name] < 0, -1, type_ids[name]))
        for name, rows in x.items()
    }


def edge_values(case: Case, graph, rng) -> dict[str, jax.Array]:
    shape = {"edge_weight": (), "edge_features": (3,)}.get(case.edges or "")
    if shape is None:
        return {}
    return {str(case.edges): jnp.asarray(rng.uniform(0.5, 2, (graph.num_edges, *shape)))}


def call_arguments(case: Case, graph, blocks: Blocks, values):
    """Return the arguments of a call beside blocks and x: values of edges and of nodes."""
    kwargs = dict(values)
    if case.typed:
        kwargs["node_types"] = node_types(blocks.node_ids)
    if case.model is layers.GCN and case.options.get("normalization", "symmetric"):
        # A GCN's scales need the degrees of the whole graph.
        loops = case.options.get("add_self_loops", True)
        scale = gcn_norm(graph, values.get("edge_weight"), add_self_loops=loops)
        kwargs["node_scale"] = take(scale, blocks.node_ids)
    return kwargs


def assert_close(actual, expected, tolerance: float = 1e-10) -> None:
    def check(a, b) -> None:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(check, actual, expected)


# --- The whole graph's numbers -------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("name", ["GCN", "SAGE-max", "GAT", "PNA", "RGCN", "RGAT", "HGT-widths"])
def test_large_fanouts_give_the_whole_graphs_logits(name, tree, request, rng):
    """Fanouts are the largest degree; padding holds garbage, and seeds repeat.

    All models are compared with their layers, block by block, in `test_a_sampled_step`.
    """
    case = CASES[name]
    graph, model = graph_of(case, request), make(case)
    x, values = features(case, rng), edge_values(case, graph, rng)
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    seeds = np.append(rng.choice(NUM_NODES, 5), [3, -1, -2, NUM_NODES, 3])
    # All edges are drawn, so that results are exact.
    largest = int(nodes.in_degrees().max())
    blocks = sampled(graph, seeds, (largest, largest), tree=tree)
    expected = nnx.jit(model)(graph, x, **values)
    if isinstance(expected, dict):
        expected = jnp.concatenate([*expected.values()])
    kwargs = call_arguments(case, graph, blocks, values)
    y = nnx.jit(model)(blocks, gathered(x, blocks.node_ids, fill=1e30), **kwargs)
    assert y.shape == (len(seeds), CLASSES)
    # Rows of padding seeds are arbitrary.
    valid = (seeds >= 0) & (seeds < NUM_NODES)
    assert_close(y[valid], expected[seeds[valid]])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.edges])
def test_values_of_edges_by_block(name, request, rng):
    """Values are a tuple by block, or an array in the whole graph's order."""
    case = CASES[name]
    graph, model = graph_of(case, request), make(case)
    values = edge_values(case, graph, rng)
    blocks = sampled(graph, [4, 0], (2, 3))
    kwargs = call_arguments(case, graph, blocks, values)
    x = gathered(features(case, rng), blocks.node_ids)
    of_each = tuple(block.edge_values(values[case.edges]) for block in blocks.graphs)
    call = nnx.jit(model)
    assert_close(call(blocks, x, **kwargs | {case.edges: of_each}), call(blocks, x, **kwargs))
    with pytest.raises(ValueError, match=f"{case.edges} must be one for each of 2 blocks, got 1"):
        model(blocks, x, **kwargs | {case.edges: of_each[:1]})


@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize("name", ["RGCN", "RGAT", "HGT-types"])
def test_models_of_any_features(name, hosted, typed, rng):
    """Models with maps by type read the types of blocks; venues have no features."""
    case = CASES[name]
    widths = {"author": 3, "paper": WIDTH, "venue": TYPES["venue"]}
    stack = make(case._replace(options={k: v for k, v in case.options.items() if "edge" not in k}))
    options = {"bias_init": jax.random.normal, "param_dtype": jnp.float64}
    model = layers.HeteroModel(widths, stack, rngs=nnx.Rngs(1), **options)
    features = {kind: rng.normal(size=(TYPES[kind], widths[kind])) for kind in TYPES}
    x = jax.tree.map(jnp.asarray, features) | {"venue": None}
    expected = nnx.jit(model)(typed, x)
    seeds = np.append(rng.choice(NUM_NODES, 5), [-1, NUM_NODES])
    largest = int(typed.nodes.in_degrees().max())
    blocks = sample_neighbors(typed, seeds, (largest, largest), jax.random.key(0))
    of_host = jax.tree.map(np.asarray, blocks)
    rows = of_host.node_values(features | {"venue": None}) if hosted else blocks.node_values(x)
    y = nnx.jit(model)(blocks, rows)
    assert_close(y[:5], expected[seeds[:5]])
    message = r"values\['author'\] must have .* \d+ sources, or of 6 nodes, .* got 1"
    with pytest.raises(ValueError, match=message):
        model(blocks, x | {"author": x["author"][:1]})
    graphs = tuple(replace(block, node_type_names=("a", "b", "c")) for block in blocks.graphs)
    with pytest.raises(
        ValueError, match=r"graph must have the node types .* got \('a', 'b', 'c'\)"
    ):
        model(replace(blocks, graphs=graphs), rows)
    with pytest.raises(ValueError, match=r"graph must have the node types .* got 1 types"):
        graphs = tuple(replace(block, node_type_names=None) for block in blocks.graphs)
        model(replace(blocks, graphs=graphs, node_type_sizes=None), rows)


@pytest.mark.parametrize("fanouts", [(1, 1), (2, 1), (9, 9)])
@pytest.mark.parametrize("name", ["RGCN", "HGT-types", "HGT-widths"])
def test_features_of_types_with_few_nodes(name, fanouts, typed, rng):
    """Mapping all nodes of a small type equals mapping a row for each source."""
    case = CASES[name]
    model = make(case._replace(options={k: v for k, v in case.options.items() if "edge" not in k}))
    widths = WIDTHS if name == "HGT-widths" else {kind: i + 2 for i, kind in enumerate(TYPES)}
    if name != "HGT-widths":
        model = layers.HeteroModel(widths, model, rngs=nnx.Rngs(1), param_dtype=jnp.float64)
    x = {kind: jnp.asarray(rng.normal(size=(TYPES[kind], widths[kind]))) for kind in TYPES}
    blocks = sample_neighbors(typed, rng.choice(NUM_NODES, 2), fanouts, jax.random.key(0))
    sources, values = blocks.graphs[0].num_src, blocks.node_values(x)
    # A type with few nodes is passed whole.
    for kind, rows in values.items():
        assert len(rows) == min(sources, TYPES[kind])
    by_source = gathered(x, blocks.node_ids)
    items = zip(blocks.source_rows(values).items(), blocks.places_of_types(), strict=True)
    for (kind, rows), places in items:
        np.testing.assert_array_equal(rows, jnp.where(places[:, None] < 0, 0, by_source[kind]))

    @nnx.jit
    @nnx.value_and_grad
    def gradients(model, x):
        return (model(blocks, x) ** 2).sum()

    actual, expected = (gradients(model, rows) for rows in (values, by_source))
    assert_close(actual, expected)


@pytest.mark.parametrize("name", ["GCN", "GIN", "SAGE"])
def test_blocks_aggregate_before_narrowing_maps(name, plain, rng):
    """A map to fewer features is applied to a block's destinations, but to all nodes of a graph."""
    conv = getattr(layers, f"{name}Conv")(7, 2, rngs=nnx.Rngs(0))
    block = sampled(plain, [1, 2], (3,), tree=True).graphs[0]
    for graph, rows in ((block, block.num_dst), (plain, plain.num_src)):
        x = jnp.asarray(rng.normal(size=(graph.num_src, 7)), jnp.float32)
        # The product has the rows of the smaller side.
        jaxpr = str(jax.make_jaxpr(conv)(graph, x))
        assert f"f32[{rows},2] = dot_general" in jaxpr
        assert rows == graph.num_src or f"f32[{graph.num_src},2]" not in jaxpr


# --- Square graphs -------------------------------------------------------------------------------


def square(graph) -> tuple[Any, np.ndarray]:
    """Return a block's edges as a graph whose nodes are its sources, and the edges' places.

    Destinations are the first sources, so a layer gives these the same results on both graphs.
    """
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    valid = np.flatnonzero(np.asarray(nodes.rows) >= 0)
    src, dst = (np.asarray(ids)[valid] for ids in (nodes.cols, nodes.rows))
    with host_arrays():  # of constants, inside jit too
        if isinstance(graph, Graph):
            whole = Graph.from_edges(src, dst, num_nodes=graph.num_src)
            return whole, valid[whole.edge_ids]
        types = np.asarray(graph.edge_types)[valid]
        whole = RelationalGraph.from_triples(src, types, dst, graph.num_src, RELATIONS)
        return whole, valid[whole.nodes.edge_ids]


def gcn_of_block(conv, graph: Graph, x, weight) -> jax.Array:
    """Return a GCN's formula with degrees of the block, which differ between its two sides."""
    valid = np.flatnonzero(np.asarray(graph.rows) >= 0)
    src, dst, weight = graph.cols[valid], graph.rows[valid], weight[valid][:, None]
    shapes = (src, graph.num_src), (dst, graph.num_dst)
    loops = jnp.arange(graph.num_src)[:, None] < graph.num_dst
    out_degree, in_degree = (jax.ops.segment_sum(weight, *shape) for shape in shapes)
    # The root of 0 has no gradient, so that it is replaced; such sources are padding.
    out_degree += jnp.where(out_degree > 0, loops, 1)
    z = out_degree**-0.5 * (x @ conv.kernel[...])
    y = jax.ops.segment_sum(weight * z[src], dst, graph.num_dst) + z[: graph.num_dst]
    return (in_degree + 1) ** -0.5 * y + conv.bias[...]


def reference(case: Case, model, blocks: Blocks, x, **kwargs) -> jax.Array:
    """Return the results of the model's layers, one after another, on square graphs."""
    between = jax.nn.elu if issubclass(case.model, layers.GAT) else jax.nn.relu
    values = kwargs.pop(case.edges, None)
    by_block_degrees = case.model is layers.GCN and "node_scale" not in kwargs
    by_block_degrees &= "normalization" not in case.options
    for number, graph in enumerate(blocks.graphs):
        conv = model.convolutions[number]
        if by_block_degrees:
            x = gcn_of_block(conv, graph, x, graph.edge_values(values))
        else:
            whole, places = square(graph)
            named = {name: array[: graph.num_src] for name, array in kwargs.items()}
            if values is not None:
                named[case.edges] = graph.edge_values(values)[places]
            x = conv(whole, x, **named)[: graph.num_dst]
        if case.model is not layers.HGT and number + 1 < len(blocks.graphs):
            x = between(x)
    return x if case.model is not layers.HGT else model.output(x)


of_sampled_edges = pytest.mark.filterwarnings("ignore:GCN scales blocks")


@of_sampled_edges
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    ("name", "degrees"),
    # Features of several widths are compared in test_features_of_types_with_few_nodes.
    [*((name, "whole") for name in CASES if name != "HGT-widths"), ("GCN", "block")],
)
def test_a_sampled_step(name, degrees, tree, request, rng):
    """Logits and gradients equal those of layers on square graphs."""
    case = CASES[name]
    graph, model = graph_of(case, request), make(case)
    values = edge_values(case, graph, rng)
    seeds = np.append(rng.choice(NUM_NODES, 4), [-1])
    blocks = sampled(graph, seeds, (2, 3), seed=int(rng.integers(1000)), tree=tree)
    x = gathered(features(case, rng), blocks.node_ids)
    kwargs = call_arguments(case, graph, blocks, values)
    if degrees == "block":
        kwargs.pop("node_scale", None)
    graphdef, params, statistics = nnx.split(model, nnx.Param, ...)
    # Types are integers, which have no gradient.
    fixed = {name: kwargs.pop(name) for name in [*kwargs] if name == "node_types"}

    def gradient(call):
        def loss(params, x, kwargs):
            y = call(nnx.merge(graphdef, params, statistics), x, kwargs | fixed)
            return jnp.sum(jnp.sin(y[:-1])), y[:-1]

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(params, x, kwargs)

    actual = gradient(lambda model, x, kwargs: model(blocks, x, **kwargs))
    expected = gradient(lambda model, x, kwargs: reference(case, model, blocks, x, **kwargs))
    assert_close(actual, expected)
    (_, _), (_, to_x, _) = actual
    # Padding gets no gradient.
    unused = np.asarray(blocks.node_ids) < 0
    assert all(not np.any(leaf[unused]) for leaf in jax.tree.leaves(to_x))


@pytest.mark.parametrize(
    "conv",
    [
        layers.SAGEConv(4, 6, param_dtype=np.float32, rngs=nnx.Rngs(0)),
        layers.TransformerConv(4, 6, gated=True, rngs=nnx.Rngs(0)),
        layers.RGCNConv(4, 6, num_relations=RELATIONS, rngs=nnx.Rngs(0)),
        layers.RGATConv(4, 6, num_relations=RELATIONS, heads=2, rngs=nnx.Rngs(0)),
        layers.HGTConv(4, 4, num_relations=RELATIONS, heads=2, rngs=nnx.Rngs(0)),
    ],
    ids=lambda conv: type(conv).__name__,
)
def test_bipartite_graphs(conv, rng):
    src, dst, rel = rng.integers(0, 7, 20), rng.integers(0, 9, 20), rng.integers(0, RELATIONS, 20)
    sizes = {"num_src": 7, "num_dst": 9}
    if conv.structure is Graph:
        graph = Graph.from_edges(src, dst, **sizes)
    else:
        graph = RelationalGraph.from_triples(src, rel, dst, **sizes, num_relations=RELATIONS)
    x = jnp.asarray(rng.normal(size=(7, 4))), jnp.asarray(rng.normal(size=(9, 4)))
    # The same edges in a graph of all nodes, destinations first.
    sizes = {"num_nodes": 16}
    if conv.structure is Graph:
        whole = Graph.from_edges(src + 9, dst, **sizes)
    else:
        whole = RelationalGraph.from_triples(src + 9, rel, dst, **sizes, num_relations=RELATIONS)
    expected = nnx.jit(conv)(whole, jnp.concatenate(x[::-1]))[:9]
    assert_close(nnx.jit(conv)(graph, x), expected, 1e-6)
    with pytest.raises(ValueError, match="graph must have its destinations among its sources"):
        conv(graph, x[0])


@pytest.mark.parametrize("form", ["rows", "pairs", "nodes"])
@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
@pytest.mark.parametrize("method", ["source_pairs", "destination_pairs"])
def test_methods_of_scores(method, attention, form, rng, monkeypatch):
    """Scores are computed from rows by edge, by pair, or for all nodes and relations."""
    at = "jax_gnn._ops.relational_attention.methods"
    monkeypatch.setattr(f"{at}.scores_by_edge_pay", lambda *_: form == "rows")
    monkeypatch.setattr(f"{at}.dense_scores_pay", lambda *_: form == "nodes")
    # Sources include the destinations, as in a block.
    src, dst, rel = rng.integers(0, 7, 20), rng.integers(0, 5, 20), rng.integers(0, RELATIONS, 20)
    sizes = {"num_src": 7, "num_dst": 5, "num_relations": RELATIONS}
    graph = RelationalGraph.from_triples(src, rel, dst, **sizes)
    options = {"attention": attention, "method": method, "param_dtype": jnp.float64}
    conv = layers.RGATConv(4, 4, num_relations=RELATIONS, rngs=nnx.Rngs(0), **options)
    x = jnp.asarray(rng.normal(size=(7, 4)))

    def gradient(call):
        return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(call(x))))(x)

    actual = gradient(lambda x: conv(graph, x))
    monkeypatch.undo()
    whole, _ = square(graph)
    assert_close(actual, gradient(lambda x: conv(whole, x)[:5]))


# --- Traces, dropout, bad input ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN", "GAT", "RGCN", "HGT-types"])
def test_one_trace(name, request, rng):
    case = CASES[name]
    graph, model, traces = graph_of(case, request), make(case), []
    x, values = features(case, rng), edge_values(case, graph, rng)

    @nnx.jit
    def step(model, graph, x, seeds, key):
        traces.append(1)
        nodes = graph if isinstance(graph, Graph) else graph.nodes
        blocks = sample_neighbors(nodes, seeds, (2, 2), key)
        if nodes is not graph:
            graphs = tuple(with_relations(graph, block) for block in blocks.graphs)
            blocks = replace(blocks, graphs=graphs)
        rows = gathered(x, blocks.node_ids)
        return model(blocks, rows, **call_arguments(case, graph, blocks, values))

    for i in range(3):
        # Other seeds, also padding, use the same program.
        seeds = rng.choice(NUM_NODES, 3) if i < 2 else np.array([4, -1, -1])
        y = step(model, graph, x, jnp.asarray(seeds), jax.random.key(i))
        assert np.isfinite(y).all()
    assert len(traces) == 1


@of_sampled_edges
def test_dropout_and_batch_axes(plain, rng):
    blocks = sampled(plain, [1, 2, -1], (2, 2))
    x = jnp.asarray(rng.normal(size=(blocks.graphs[0].num_src, 2, WIDTH)))
    for name in ("GCN", "SAGE", "GAT"):
        model = make(CASES[name]._replace(edges=None), dropout_rate=0.5)
        if name == "GAT":
            model = make(Case(layers.GAT, {"heads": 2}), dropout_rate=0.5)
        expected = jnp.stack([model(blocks, x[:, i], deterministic=True) for i in range(2)], 1)
        assert_close(model(blocks, x, deterministic=True), expected)
        # Equal keys drop the same elements.
        drawn = [model(blocks, x, rngs=nnx.Rngs(dropout=seed)) for seed in (0, 0, 1)]
        assert_close(drawn[0], drawn[1])
        assert np.any(drawn[0] != drawn[2])


@of_sampled_edges
def test_errors(plain, typed, rng):
    model = make(CASES["GCN"])
    blocks = sampled(plain, [1, 2], (2, 2, 2))
    x = jnp.ones((blocks.graphs[0].num_src, WIDTH))
    with pytest.raises(ValueError, match="graph must be blocks for num_layers = 2, got 3"):
        model(blocks, x)
    blocks = sampled(plain, [1, 2], (2, 2))
    rows = blocks.graphs[0].num_src
    with pytest.raises(
        ValueError, match=rf"x must have shape \(num_src, .*\({rows}, ..., 4\), got"
    ):
        model(blocks, x[:3])
    with pytest.raises(ValueError, match=rf"node_scale must have shape .*\({rows},\), got \(15,\)"):
        model(blocks, x[:rows], None, gcn_norm(plain))
    with pytest.raises(ValueError, match=r"num_input_edges=42"):
        model(blocks, x[:rows], jnp.ones(3))
    with pytest.raises(TypeError, match=r"graph.graphs\[0\] must be a jax_gnn\.RelationalGraph"):
        make(CASES["RGCN"])(blocks, x[:rows])
    with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.Hypergraph, got Blocks"):
        layers.HGNN(WIDTH, 8, 3, num_layers=2, rngs=nnx.Rngs(0))(blocks, x[:rows])
    blocks = sampled(typed, [1, 2], (2, 2))
    x = jnp.ones((blocks.graphs[0].num_src, WIDTH))
    with pytest.raises(ValueError, match="node_types must be given for a bipartite graph of 3 ty"):
        make(CASES["HGT-types"])(blocks, x)
