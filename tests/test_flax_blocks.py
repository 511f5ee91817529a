"""Models on sampled blocks: the whole graph's numbers, and derivatives against formulas by edge."""

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
from jax_gnn import Graph, RelationalGraph
from jax_gnn.extend import take
from jax_gnn.sampling import Blocks, sample_neighbors

NUM_NODES, RELATIONS, WIDTH, CLASSES = 15, 3, 4, 5
TYPES = {"author": 6, "paper": 5, "venue": 4}
ENDS = [("author", "paper"), ("paper", "author"), ("paper", "venue")]
WIDTHS = {"author": 3, "paper": 8, "venue": 2}


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


class Case(NamedTuple):
    """A model, and what its call takes.

    Attributes:
        model: Its class.
        options: Of its construction.
        edges: The name of its values of edges, or None.
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
    "GCN-sum": Case(layers.GCN, {"normalize": False}, "edge_weight"),
    "GIN": Case(layers.GIN, {"learn_eps": True, "eps": 0.3}, "edge_weight"),
    "SAGE": Case(layers.SAGE, {}, "edge_weight"),
    "SAGE-max": Case(layers.SAGE, {"aggregation": "max", "project": True}),
    "GAT": Case(layers.GAT, {"heads": 2, "edge_features": 3}, "edge_attr"),
    "GATv2": Case(layers.GATv2, {"heads": 2, "edge_features": 3}, "edge_attr"),
    "GATv2-shared": Case(layers.GATv2, {"share_weights": True}),
    "GraphTransformer": Case(layers.GraphTransformer, {"heads": 2, "gated": True}),
    "RGCN": Case(layers.RGCN, OF_RELATIONS),
    "RGCN-blocks": Case(layers.RGCN, OF_RELATIONS | {"num_blocks": 1}, "edge_weight"),
    "RGAT": Case(layers.RGAT, OF_RELATIONS | {"heads": 2, "edge_features": 3}, "edge_attr"),
    "RGAT-rows": Case(layers.RGAT, OF_RELATIONS | {"method": "source_pairs"}),
    "RGAT-pairs": Case(layers.RGAT, OF_RELATIONS | {"method": "destination_pairs"}),
    "RGAT-within": Case(layers.RGAT, OF_RELATIONS | {"softmax": "within", "heads": 2}),
    "HGT": Case(layers.HGT, OF_RELATIONS | {"heads": 2, "method": "source_pairs"}),
    "HGT-types": Case(layers.HGT, OF_TYPES | {"method": "source_pairs"}, None, True),
    "HGT-pairs": Case(layers.HGT, OF_TYPES | {"method": "destination_pairs"}, None, True),
    "HGT-widths": Case(layers.HGT, OF_TYPES | {"in_features": WIDTHS}, None, True),
}


def make(case: Case, **changes: Any) -> Any:
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
def whole(rng) -> Graph:
    """Edges in any order, one of them a self-loop and one there twice; none enters or leaves 3."""
    nodes = np.delete(np.arange(NUM_NODES), 3)
    src, dst = rng.choice(nodes, (2, 40))
    src, dst = np.append(src, [src[0], 5]), np.append(dst, [dst[0], 5])
    return Graph.from_edges(src, dst, num_nodes=NUM_NODES)


@pytest.fixture
def related(whole, rng) -> RelationalGraph:
    relations = rng.integers(0, RELATIONS, whole.num_edges)
    return RelationalGraph.from_triples(whole.cols, relations, whole.rows, NUM_NODES, RELATIONS)


@pytest.fixture
def typed(rng) -> RelationalGraph:
    edges = {
        (src, str(i), dst): np.stack([rng.integers(0, TYPES[of], 14) for of in (src, dst)])
        for i, (src, dst) in enumerate(ENDS)
    }
    return RelationalGraph.from_edge_dict(edges, TYPES)


def graph_of(case: Case, request: Any) -> Any:
    name = "typed" if case.typed else "related" if is_relational(case) else "whole"
    return request.getfixturevalue(name)


def sampled(graph: Any, seeds: Any, fanouts: Any, seed: int = 0, **options: Any) -> Blocks:
    """Blocks of any graph; of relations by those of its nodes."""
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    blocks = sample_neighbors(nodes, jnp.asarray(seeds), fanouts, jax.random.key(seed), **options)
    if isinstance(graph, Graph):
        return blocks
    return replace(blocks, graphs=tuple(with_relations(graph, block) for block in blocks.graphs))


def with_relations(whole: RelationalGraph, block: Graph) -> RelationalGraph:
    types = jnp.where(block.edge_ids < 0, -1, whole.edge_types[block.edge_ids])
    sizes = {"num_src": block.num_src, "num_dst": block.num_dst, "num_relations": RELATIONS}
    found = RelationalGraph.from_triples(block.cols, types, block.rows, **sizes, validate=False)
    own = found.nodes.edge_ids
    ids = jnp.where(own < 0, -1, block.edge_ids[own])
    nodes = replace(found.nodes, edge_ids=ids, num_input_edges=block.num_input_edges)
    return replace(found, nodes=nodes)


def features(case: Case, rng: Any, rows: int = NUM_NODES) -> Any:
    widths = case.options.get("in_features")
    if widths is None:
        return jnp.asarray(rng.normal(size=(rows, WIDTH)))
    return {name: jnp.asarray(rng.normal(size=(TYPES[name], widths[name]))) for name in widths}


def node_types(ids: jax.Array) -> jax.Array:
    stops = np.cumsum([*TYPES.values()])
    return jnp.where(ids < 0, -1, jnp.searchsorted(stops, ids, side="right"))


def gathered(x: Any, ids: jax.Array, fill: float = 0.0) -> Any:
    """Rows of sources; by type, a row for each source, which counts where it is of the type."""
    if not isinstance(x, dict):
        return x.at[jnp.where(ids < 0, len(x), ids)].get(mode="fill", fill_value=fill)
    starts = dict(zip(TYPES, np.cumsum([0, *TYPES.values()]), strict=False))
    own = {name: ids - starts[name] for name in x}
    return {
        name: gathered(rows, jnp.where(own[name] < 0, -1, own[name])) for name, rows in x.items()
    }


def edge_values(case: Case, graph: Any, rng: Any) -> dict[str, jax.Array]:
    shape = {"edge_weight": (), "edge_attr": (3,)}.get(case.edges or "")
    if shape is None:
        return {}
    return {str(case.edges): jnp.asarray(rng.uniform(0.5, 2, (graph.num_edges, *shape)))}


def given_to(case: Case, graph: Any, blocks: Blocks, values: dict[str, Any]) -> dict[str, Any]:
    """What a call takes beside blocks and x: values of the whole graph, and of its nodes."""
    given = dict(values)
    if case.typed:
        given["node_types"] = node_types(blocks.node_ids)
    if case.model is layers.GCN and case.options.get("normalize", True):
        loops = case.options.get("add_self_loops", True)
        scale = gcn_norm(graph, values.get("edge_weight"), add_self_loops=loops)
        given["node_scale"] = take(scale, blocks.node_ids)
    return given


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    def check(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(check, actual, expected)


# --- The whole graph's numbers -------------------------------------------------------------------


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_of_all_edges_logits_are_the_whole_graphs(name, tree, request, rng):
    """With fanouts of the largest degree; padding has garbage, and seeds come twice."""
    case = CASES[name]
    graph, model = graph_of(case, request), make(case)
    x, values = features(case, rng), edge_values(case, graph, rng)
    nodes = graph if isinstance(graph, Graph) else graph.nodes
    seeds = np.append(rng.choice(NUM_NODES, 5), [3, -1, -2, NUM_NODES, 3])
    largest = int(nodes.in_degrees().max())
    blocks = sampled(graph, seeds, (largest, largest), tree=tree)
    expected = model(graph, x, **values)
    if isinstance(expected, dict):
        expected = jnp.concatenate([*expected.values()])
    given = given_to(case, graph, blocks, values)
    y = nnx.jit(model)(blocks, gathered(x, blocks.node_ids, fill=1e30), **given)
    assert y.shape == (len(seeds), CLASSES)
    there = (seeds >= 0) & (seeds < NUM_NODES)
    assert_close(y[there], expected[seeds[there]])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.edges])
def test_values_of_edges_by_block(name, request, rng):
    """A tuple has them for each block; an array is in the whole graph's order."""
    case = CASES[name]
    graph, model = graph_of(case, request), make(case)
    values = edge_values(case, graph, rng)
    blocks = sampled(graph, [4, 0], (2, 3))
    given = given_to(case, graph, blocks, values)
    x = gathered(features(case, rng), blocks.node_ids)
    of_each = tuple(block.edge_values(values[case.edges]) for block in blocks.graphs)
    assert_close(model(blocks, x, **given | {case.edges: of_each}), model(blocks, x, **given))
    with pytest.raises(ValueError, match=f"{case.edges} must be one for each of 2 blocks, got 1"):
        model(blocks, x, **given | {case.edges: of_each[:1]})


@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize("name", ["RGCN", "RGAT", "HGT-types"])
def test_models_of_any_features(name, hosted, typed, rng):
    """Maps by type, and types of nodes, which blocks know; venues have no features."""
    case = CASES[name]
    widths = {"author": 3, "paper": WIDTH, "venue": TYPES["venue"]}
    stack = make(case._replace(options={k: v for k, v in case.options.items() if "edge" not in k}))
    options: Any = {"bias_init": jax.random.normal, "param_dtype": jnp.float64}
    model = layers.HeteroModel(widths, stack, rngs=nnx.Rngs(1), **options)
    features = {kind: rng.normal(size=(TYPES[kind], widths[kind])) for kind in TYPES}
    x = jax.tree.map(jnp.asarray, features) | {"venue": None}
    expected = model(typed, x)
    seeds = np.append(rng.choice(NUM_NODES, 5), [-1, NUM_NODES])
    most = int(typed.nodes.in_degrees().max())
    blocks = sample_neighbors(typed, seeds, (most, most), jax.random.key(0))
    of_host = jax.tree.map(np.asarray, blocks)
    rows = of_host.node_values(features | {"venue": None}) if hosted else blocks.node_values(x)
    y = nnx.jit(model)(blocks, rows)
    assert_close(y[:5], expected[seeds[:5]])
    message = r"values\['author'\] must have .* \d+ sources, or of 6 nodes, .* got 1"
    with pytest.raises(ValueError, match=message):
        model(blocks, x | {"author": x["author"][:1]})
    graphs = tuple(replace(of, node_type_names=("a", "b", "c")) for of in blocks.graphs)
    with pytest.raises(
        ValueError, match=r"graph must have the node types .* got \('a', 'b', 'c'\)"
    ):
        model(replace(blocks, graphs=graphs), rows)
    with pytest.raises(ValueError, match=r"graph must have the node types .* got 1 types"):
        graphs = tuple(replace(of, node_type_names=None) for of in blocks.graphs)
        model(replace(blocks, graphs=graphs, node_type_sizes=None), rows)


@pytest.mark.parametrize("fanouts", [(1, 1), (2, 1), (9, 9)])
@pytest.mark.parametrize("name", ["RGCN", "HGT-types", "HGT-widths"])
def test_features_of_types_with_few_nodes(name, fanouts, typed, rng):
    """A type with fewer nodes than sources is mapped whole: the same as a row for each source."""
    case = CASES[name]
    model = make(case._replace(options={k: v for k, v in case.options.items() if "edge" not in k}))
    widths = WIDTHS if name == "HGT-widths" else {kind: i + 2 for i, kind in enumerate(TYPES)}
    if name != "HGT-widths":
        model = layers.HeteroModel(widths, model, rngs=nnx.Rngs(1), param_dtype=jnp.float64)
    x = {kind: jnp.asarray(rng.normal(size=(TYPES[kind], widths[kind]))) for kind in TYPES}
    blocks = sample_neighbors(typed, rng.choice(NUM_NODES, 2), fanouts, jax.random.key(0))
    sources, given = blocks.graphs[0].num_src, blocks.node_values(x)
    for kind, rows in given.items():
        assert len(rows) == min(sources, TYPES[kind])
    by_source = gathered(x, blocks.node_ids)
    each = zip(blocks.source_rows(given).items(), blocks.places_of_types(), strict=True)
    for (kind, rows), own in each:
        np.testing.assert_array_equal(rows, jnp.where(own[:, None] < 0, 0, by_source[kind]))

    def loss(model: Any, x: Any) -> Any:
        return (model(blocks, x) ** 2).sum()

    actual, expected = (nnx.value_and_grad(loss)(model, rows) for rows in (given, by_source))
    assert_close(actual, expected)


@pytest.mark.parametrize("name", ["GCN", "GIN", "SAGE"])
def test_sums_come_first_where_destinations_are_few(name, whole, rng):
    """Through a map to fewer features only destinations of a block go, but all of a graph."""
    conv = getattr(layers, f"{name}Conv")(7, 2, rngs=nnx.Rngs(0))
    block = sampled(whole, [1, 2], (3,), tree=True).graphs[0]
    for graph, rows in ((block, block.num_dst), (whole, whole.num_src)):
        x = jnp.asarray(rng.normal(size=(graph.num_src, 7)), jnp.float32)
        jaxpr = str(jax.make_jaxpr(conv)(graph, x))
        assert f"f32[{rows},2] = dot_general" in jaxpr
        assert rows == graph.num_src or f"f32[{graph.num_src},2]" not in jaxpr


# --- Formulas, edge by edge ----------------------------------------------------------------------


class Edges(NamedTuple):
    """A block's edges without padding, and its sizes."""

    src: Any
    dst: Any
    types: Any
    places: Any
    num_src: int
    num_dst: int

    @classmethod
    def of(cls, graph: Any) -> Edges:
        nodes = graph if isinstance(graph, Graph) else graph.nodes
        there = np.flatnonzero(np.asarray(nodes.rows) >= 0)
        types = None if isinstance(graph, Graph) else graph.edge_types[there]
        ends = nodes.cols[there], nodes.rows[there]
        return cls(*ends, types, there, graph.num_src, graph.num_dst)

    def sum(self, x: Any) -> Any:
        return jax.ops.segment_sum(x, self.dst, self.num_dst)

    def softmax(self, scores: Any, segment: Any, size: int) -> Any:
        powers = jnp.exp(scores - jax.ops.segment_max(scores, segment, size)[segment])
        return powers / jax.ops.segment_sum(powers, segment, size)[segment]


def heads_of(conv: Any, x: jax.Array) -> jax.Array:
    return x.reshape(len(x), conv.heads, -1)


def column(x: Any) -> Any:
    return x.reshape(-1, 1)


def gcn(conv: Any, e: Edges, src: Any, dst: Any, weight: Any, scale: Any = None) -> Any:
    weight = jnp.ones(len(e.src)) if weight is None else weight
    own = float(conv.add_self_loops)
    if not conv.normalize:
        at_src, at_dst = jnp.ones(e.num_src), jnp.ones(e.num_dst)
    elif scale is not None:
        at_src, at_dst = scale, scale[: e.num_dst]
    else:
        out_of = jax.ops.segment_sum(weight, e.src, e.num_src).at[: e.num_dst].add(own)
        both = out_of, e.sum(weight) + own
        at_src, at_dst = (jnp.where(d > 0, jnp.where(d > 0, d, 1) ** -0.5, 0) for d in both)
    z = column(at_src) * (src @ conv.kernel[...])
    y = e.sum(column(weight) * z[e.src]) + own * z[: e.num_dst]
    return column(at_dst) * y + conv.bias[...]


def gin(conv: Any, e: Edges, src: Any, dst: Any, weight: Any) -> Any:
    y = e.sum(column(weight) * src[e.src]) + (1 + conv.learned_eps[...]) * dst
    return conv.output(jax.nn.relu(y @ conv.kernel[...] + conv.bias[...]))


def sage(conv: Any, e: Edges, src: Any, dst: Any, weight: Any) -> Any:
    messages = src if conv.projection is None else jax.nn.relu(conv.projection(src))
    messages = messages[e.src] if weight is None else column(weight) * messages[e.src]
    degree = e.sum(jnp.ones(len(e.src)))
    if conv.aggregation == "mean":
        y = e.sum(messages) / column(jnp.maximum(degree, 1))
    else:
        largest = jax.ops.segment_max(messages, e.dst, e.num_dst)
        y = jnp.where(column(degree) > 0, largest, 0)
    return y @ conv.kernel[...] + conv.bias[...] + conv.root(dst)


def with_own(e: Edges, attr: Any, own: bool) -> tuple[Edges, Any]:
    """Edges of destinations to themselves, whose features are the means of their edges'."""
    if not own:
        return e, attr
    loops = jnp.arange(e.num_dst)
    more = e._replace(src=jnp.append(e.src, loops), dst=jnp.append(e.dst, loops))
    if attr is not None:
        degree = jnp.maximum(e.sum(jnp.ones(len(e.src))), 1)
        attr = jnp.concatenate([attr, e.sum(attr) / column(degree)])
    return more, attr


def attended(conv: Any, e: Edges, score: Any, value: Any) -> Any:
    weight = e.softmax(score, e.dst, e.num_dst)
    y = e.sum(weight[..., None] * value)
    y = y.reshape(len(y), -1) if conv.concat else y.mean(1)
    return y if getattr(conv, "bias", None) is None else y + conv.bias[...]


def gat(conv: Any, e: Edges, src: Any, dst: Any, attr: Any) -> Any:
    e, attr = with_own(e, attr, conv.add_self_loops)
    value = heads_of(conv, src @ conv.kernel[...])
    of_dst = heads_of(conv, dst @ conv.kernel[...])
    z = (value * conv.src_attention[...]).sum(-1)[e.src]
    z += (of_dst * conv.dst_attention[...]).sum(-1)[e.dst]
    z += (heads_of(conv, attr @ conv.edge_kernel[...]) * conv.edge_attention[...]).sum(-1)
    return attended(conv, e, jax.nn.leaky_relu(z, conv.negative_slope), value[e.src])


def gatv2(conv: Any, e: Edges, src: Any, dst: Any, attr: Any) -> Any:
    e, attr = with_own(e, attr, conv.add_self_loops)
    right = src @ conv.kernel[...] + conv.src_bias[...]
    shared = conv.kernel[...], conv.src_bias[...]
    kernel, bias = shared if conv.share_weights else (conv.dst_kernel[...], conv.dst_bias[...])
    z = right[e.src] + (dst @ kernel + bias)[e.dst]
    z = z if attr is None else z + attr @ conv.edge_kernel[...]
    z = heads_of(conv, jax.nn.leaky_relu(z, conv.negative_slope)) * conv.attention[...]
    return attended(conv, e, z.sum(-1), heads_of(conv, right)[e.src])


def transformer(conv: Any, e: Edges, src: Any, dst: Any, attr: Any) -> Any:
    query, key, value = (
        heads_of(conv, layer(x))
        for layer, x in ((conv.query, dst), (conv.key, src), (conv.value, src))
    )
    score = (query[e.dst] * key[e.src]).sum(-1) / np.sqrt(query.shape[-1])
    y, own = attended(conv, e, score, value[e.src]), conv.root(dst)
    gate = jax.nn.sigmoid(conv.gate(jnp.concatenate([y, own, y - own], -1)))
    return gate * own + (1 - gate) * y


def rgcn(conv: Any, e: Edges, src: Any, dst: Any, weight: Any) -> Any:
    kernel = conv.kernel[...]
    kernel = kernel[:, 0] if conv.num_blocks else kernel
    own = conv.own[...] if conv.num_blocks else kernel[-1]
    if weight is None:
        pair = e.dst * RELATIONS + e.types
        counts = jax.ops.segment_sum(jnp.ones(len(pair)), pair, e.num_dst * RELATIONS)
        weight = 1 / counts[pair]
    messages = jnp.einsum("ek,ekn->en", src[e.src], kernel[e.types])
    return e.sum(column(weight) * messages) + dst @ own + conv.bias[...]


def rgat(conv: Any, e: Edges, src: Any, dst: Any, attr: Any) -> Any:
    kernel = conv.kernel[...][e.types]
    value = heads_of(conv, jnp.einsum("ek,ekn->en", src[e.src], kernel))
    of_dst = heads_of(conv, jnp.einsum("ek,ekn->en", dst[e.dst], kernel))
    z = (value * conv.src_attention[...][e.types]).sum(-1)
    at_dst = (of_dst * conv.dst_attention[...][e.types]).sum(-1)
    if conv.attention == "multiplicative":
        return attended(conv, e, z * at_dst, value)
    z += at_dst
    if attr is not None:
        z += (heads_of(conv, attr @ conv.edge_kernel[...]) * conv.edge_attention[...]).sum(-1)
    score = jax.nn.leaky_relu(z, conv.negative_slope)
    if conv.softmax == "across":
        return attended(conv, e, score, value)
    weight = e.softmax(score, e.dst * RELATIONS + e.types, e.num_dst * RELATIONS)
    return e.sum(weight[..., None] * value).reshape(e.num_dst, -1) + conv.bias[...]


def hgt(conv: Any, e: Edges, src: Any, dst: Any, types: Any) -> Any:
    types = jnp.zeros(max(e.num_src, e.num_dst), int) if types is None else types

    def of_types(x: Any, kernel: Any, bias: Any) -> Any:
        found = 0.0
        for i, name in enumerate(conv.type_names):
            own = x[name] if isinstance(x, dict) else x
            each = kernel[name][...] if isinstance(kernel, nnx.Dict) else kernel[...][i]
            y = own @ each + bias[...][i]
            found += jnp.where(column(types[: len(y)]) == i, y, 0)
        return found

    query, key, value = (
        heads_of(conv, of_types(x, getattr(conv, name), getattr(conv, f"{name}_bias")))
        for name, x in (("query", dst), ("key", src), ("value", src))
    )
    key = jnp.einsum("ehd,ehdf->ehf", key[e.src], conv.attention[...][e.types])
    value = jnp.einsum("ehd,ehdf->ehf", value[e.src], conv.message[...][e.types])
    score = (query[e.dst] * key).sum(-1) * conv.prior[...][e.types] / np.sqrt(query.shape[-1])
    y = e.sum(e.softmax(score, e.dst, e.num_dst)[..., None] * value)
    y = jax.nn.gelu(y.reshape(len(y), -1), approximate=False)
    y = of_types(y, conv.output, conv.output_bias)
    for i, name in enumerate(conv.type_names):
        own = dst[name] if isinstance(dst, dict) else dst
        if own.shape[1] == conv.out_features:
            gate = jax.nn.sigmoid(conv.skip[...][i])
            y = jnp.where(column(types[: len(y)]) == i, gate * y + (1 - gate) * own, y)
    return y


FORMULAS: dict[Any, Any] = {
    layers.GCNConv: gcn,
    layers.GINConv: gin,
    layers.SAGEConv: sage,
    layers.GATConv: gat,
    layers.GATv2Conv: gatv2,
    layers.TransformerConv: transformer,
    layers.RGCNConv: rgcn,
    layers.RGATConv: rgat,
    layers.HGTConv: hgt,
}


def reference(case: Case, model: Any, blocks: Blocks, x: Any, **given: Any) -> jax.Array:
    between = jax.nn.elu if issubclass(case.model, layers.GAT) else jax.nn.relu
    formula = FORMULAS[case.model.convolution]
    for number, graph in enumerate(blocks.graphs):
        e = Edges.of(graph)
        values = None if case.edges is None else given[case.edges]
        if values is not None:
            values = graph.edge_values(values)[e.places]
        dst = jax.tree.map(lambda each, rows=e.num_dst: each[:rows], x)
        more = []
        if case.typed:
            values = given["node_types"][: e.num_src]
        if "node_scale" in given:
            more = [given["node_scale"][: e.num_src]]
        x = formula(model.convolutions[number], e, x, dst, values, *more)
        if case.model is not layers.HGT and number + 1 < len(blocks.graphs):
            x = between(x)
    return x if case.model is not layers.HGT else model.output(x)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize(
    ("name", "degrees"), [*((name, "whole") for name in CASES), ("GCN", "block")]
)
def test_a_sampled_step(name, degrees, tree, request, rng):
    """Logits, and gradients to parameters, features and values of edges."""
    case = CASES[name]
    graph, model = graph_of(case, request), make(case)
    values = edge_values(case, graph, rng)
    seeds = np.append(rng.choice(NUM_NODES, 4), [-1])
    blocks = sampled(graph, seeds, (2, 3), seed=int(rng.integers(1000)), tree=tree)
    x = gathered(features(case, rng), blocks.node_ids)
    given = given_to(case, graph, blocks, values)
    if degrees == "block":
        given.pop("node_scale", None)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    fixed = {name: given.pop(name) for name in [*given] if name == "node_types"}

    def gradient(call: Any) -> Any:
        def loss(params: Any, x: Any, given: Any) -> Any:
            y = call(nnx.merge(graphdef, params, rest), x, given | fixed)
            return jnp.sum(jnp.sin(y[:-1])), y[:-1]

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(params, x, given)

    found = gradient(lambda model, x, given: model(blocks, x, **given))
    expected = gradient(lambda model, x, given: reference(case, model, blocks, x, **given))
    assert_close(found, expected)
    (_, _), (_, to_x, _) = found
    unused = np.asarray(blocks.node_ids) < 0
    assert all(not np.any(each[unused]) for each in jax.tree.leaves(to_x))


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
def test_sources_and_destinations_of_two_kinds(conv, rng):
    src, dst, rel = rng.integers(0, 7, 20), rng.integers(0, 9, 20), rng.integers(0, RELATIONS, 20)
    sizes = {"num_src": 7, "num_dst": 9}
    if conv.structure is Graph:
        graph: Any = Graph.from_edges(src, dst, **sizes)
    else:
        graph = RelationalGraph.from_triples(src, rel, dst, **sizes, num_relations=RELATIONS)
    x = jnp.asarray(rng.normal(size=(7, 4))), jnp.asarray(rng.normal(size=(9, 4)))
    expected = FORMULAS[type(conv)](conv, Edges.of(graph), *x, None)
    assert_close(conv(graph, x), expected, 1e-6)
    with pytest.raises(ValueError, match="graph must have its destinations among its sources"):
        conv(graph, x[0])


@pytest.mark.parametrize("form", ["rows", "pairs", "nodes"])
@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
@pytest.mark.parametrize("method", ["source_pairs", "destination_pairs"])
def test_scores_of_rows_and_of_numbers(method, attention, form, rng, monkeypatch):
    """Edges read rows at their ends, or numbers of pairs, or of all nodes and relations."""
    at = "jax_gnn._ops.relational_attention.methods"
    monkeypatch.setattr(f"{at}.scores_by_edge_pay", lambda *_: form == "rows")
    monkeypatch.setattr(f"{at}.dense_scores_pay", lambda *_: form == "nodes")
    src, dst, rel = rng.integers(0, 7, 20), rng.integers(0, 5, 20), rng.integers(0, RELATIONS, 20)
    sizes = {"num_src": 7, "num_dst": 5, "num_relations": RELATIONS}
    graph = RelationalGraph.from_triples(src, rel, dst, **sizes)
    options: Any = {"attention": attention, "method": method, "param_dtype": jnp.float64}
    conv = layers.RGATConv(4, 4, num_relations=RELATIONS, rngs=nnx.Rngs(0), **options)
    x = jnp.asarray(rng.normal(size=(7, 4)))

    def gradient(call: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sum(jnp.sin(call(x))))(x)

    found = gradient(lambda x: conv(graph, x))
    e = Edges.of(graph)
    assert_close(found, gradient(lambda x: rgat(conv, e, x, x[:5], None)))


# --- Around it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GCN", "GAT", "RGCN", "HGT-types"])
def test_one_trace(name, request, rng):
    case = CASES[name]
    graph, model, traces = graph_of(case, request), make(case), []
    x, values = features(case, rng), edge_values(case, graph, rng)

    @nnx.jit
    def step(model: Any, graph: Any, x: Any, seeds: Any, key: Any) -> Any:
        traces.append(1)
        nodes = graph if isinstance(graph, Graph) else graph.nodes
        blocks = sample_neighbors(nodes, seeds, (2, 2), key)
        if nodes is not graph:
            graphs = tuple(with_relations(graph, block) for block in blocks.graphs)
            blocks = replace(blocks, graphs=graphs)
        rows = gathered(x, blocks.node_ids)
        return model(blocks, rows, **given_to(case, graph, blocks, values))

    for i in range(3):
        seeds = rng.choice(NUM_NODES, 3) if i < 2 else np.array([4, -1, -1])
        y = step(model, graph, x, jnp.asarray(seeds), jax.random.key(i))
        assert np.isfinite(y).all()
    assert len(traces) == 1


def test_dropout_and_batch_axes(whole, rng):
    blocks = sampled(whole, [1, 2, -1], (2, 2))
    x = jnp.asarray(rng.normal(size=(blocks.graphs[0].num_src, 2, WIDTH)))
    for name in ("GCN", "SAGE", "GAT"):
        model = make(CASES[name]._replace(edges=None), dropout_rate=0.5)
        if name == "GAT":
            model = make(Case(layers.GAT, {"heads": 2}), dropout_rate=0.5)
        expected = jnp.stack([model(blocks, x[:, i], deterministic=True) for i in range(2)], 1)
        assert_close(model(blocks, x, deterministic=True), expected)
        drawn = [model(blocks, x, rngs=nnx.Rngs(dropout=seed)) for seed in (0, 0, 1)]
        assert_close(drawn[0], drawn[1])
        assert np.any(drawn[0] != drawn[2])


def test_errors(whole, typed, rng):
    model = make(CASES["GCN"])
    blocks = sampled(whole, [1, 2], (2, 2, 2))
    x = jnp.ones((blocks.graphs[0].num_src, WIDTH))
    with pytest.raises(ValueError, match="graph must be blocks for num_layers = 2, got 3"):
        model(blocks, x)
    blocks = sampled(whole, [1, 2], (2, 2))
    rows = blocks.graphs[0].num_src
    with pytest.raises(
        ValueError, match=rf"x must have shape \(num_src, .*\({rows}, ..., 4\), got"
    ):
        model(blocks, x[:3])
    with pytest.raises(ValueError, match=rf"node_scale must have shape .*\({rows},\), got \(15,\)"):
        model(blocks, x[:rows], None, gcn_norm(whole))
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
