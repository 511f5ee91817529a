"""RGAT and HGT: every method against formulas, their derivatives, and PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import awkward_triples, double

from flax_layers import HGT, HGTConv, RGATConv
from jax_gnn import RelationalGraph
from jax_gnn._ops.relational_aggregate.schedule import Counts
from jax_gnn._ops.relational_attention import schedule

pytestmark = pytest.mark.usefixtures("float64")

NUM_NODES, RELATIONS, EDGE_FEATURES = 9, 4, 3
METHODS = schedule.METHODS
TYPES = {"author": 4, "paper": 5, "venue": 0, "topic": 3}
EDGES = {
    ("author", "writes", "paper"): ([0, 1, 1, 2, 0], [0, 0, 1, 4, 4]),
    ("paper", "cites", "paper"): ([0, 1, 2, 3, 2], [1, 0, 0, 4, 4]),
    ("paper", "about", "topic"): ([0, 4, 1], [0, 0, 2]),
    ("venue", "hosts", "paper"): ([], []),
}
ENDS = [*EDGES, *((dst, f"rev_{name}", src) for src, name, dst in EDGES)]
# Papers are as wide as the output, so that they alone have a skip connection.
WIDTHS = {"author": 3, "paper": 8, "venue": 2, "topic": 5}


@pytest.fixture
def triples(rng) -> tuple[np.ndarray, ...]:
    return awkward_triples(rng)


@pytest.fixture
def graph(triples) -> RelationalGraph:
    return RelationalGraph.from_triples(*triples, NUM_NODES, RELATIONS)


@pytest.fixture
def typed() -> RelationalGraph:
    edges = {key: np.array(ids, np.int64).reshape(2, -1) for key, ids in EDGES.items()}
    return RelationalGraph.from_edge_dict(edges, TYPES, inverse=True)


def features(width: int, *batch: int, rows: int = NUM_NODES) -> jax.Array:
    return jax.random.normal(jax.random.key(width + rows), (rows, *batch, width), jnp.float64)


def make(layer, *sizes, **options):
    options = {"num_relations": RELATIONS, "bias_init": jax.random.normal} | options
    conv = layer(*sizes, rngs=nnx.Rngs(0), param_dtype=jnp.float64, **options)
    key = jax.random.key(1)
    for name in ("prior", "skip"):  # ones at first
        if hasattr(conv, name):
            param = getattr(conv, name)
            param[...] = jax.random.normal(key, param.shape, jnp.float64)
    return conv


def make_typed(in_features=8, **options):
    named = {"node_types": tuple(TYPES), "num_relations": len(ENDS), "relation_ends": ENDS}
    return make(HGTConv, in_features, 8, **named | options)


def typed_features(widths=None) -> dict[str, jax.Array]:
    widths = dict.fromkeys(TYPES, 8) if widths is None else widths
    return {name: features(widths[name], rows=size) for name, size in TYPES.items() if size}


def assert_close(actual, expected, tolerance: float = 1e-10) -> None:
    def check(a, b):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(check, actual, expected)


# --- The formulas, edge by edge ------------------------------------------------------------------


def softmax(scores: jax.Array, segment: jax.Array, size: int) -> jax.Array:
    powers = jnp.exp(scores - jax.ops.segment_max(scores, segment, size)[segment])
    return powers / jax.ops.segment_sum(powers, segment, size)[segment]


def block_diagonal(blocks: jax.Array) -> jax.Array:
    return jnp.stack([jax.scipy.linalg.block_diag(*of_relation) for of_relation in blocks])


def split(x: jax.Array, heads: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], heads, -1)


def reference_rgat(conv: RGATConv, graph: RelationalGraph, x, attr=None) -> jax.Array:
    rel, src, dst = graph.edge_types, graph.nodes.cols, graph.nodes.rows
    kernel = conv.kernel[...]
    if conv.num_bases:
        kernel = jnp.einsum("rb,bkn->rkn", conv.coefficients[...], kernel)
    if conv.num_blocks:
        kernel = block_diagonal(kernel)
    dst_value = split(jnp.einsum("ek,ekn->en", x[dst], kernel[rel]), conv.heads)
    src_value = split(jnp.einsum("ek,ekn->en", x[src], kernel[rel]), conv.heads)
    query = jnp.sum(dst_value * conv.dst_attention[...][rel], -1)
    key = jnp.sum(src_value * conv.src_attention[...][rel], -1)
    edge_scores = None
    if attr is not None:
        edge_scores = split(attr @ conv.edge_kernel[...], conv.heads)
        edge_scores = jnp.sum(edge_scores * conv.edge_attention[...], -1)
    if conv.attention == "additive":
        z = query + key + (0 if edge_scores is None else edge_scores)
        score = jnp.where(z > 0, z, conv.negative_slope * z)
    else:
        score = query * key * (1 if edge_scores is None else edge_scores)
    # The softmax runs over edges into a node, or over those of one relation.
    size, segment = graph.num_nodes, dst
    if conv.softmax == "within":
        size, segment = size * graph.num_relations, dst * graph.num_relations + rel
    weight = softmax(score, segment, size)
    y = jax.ops.segment_sum(weight[..., None] * src_value, dst, graph.num_nodes)
    y = y.reshape(len(y), -1) if conv.concat else y.mean(1)
    return y if conv.bias is None else y + conv.bias[...]


def reference_hgt(conv: HGTConv, graph: RelationalGraph, x) -> Any:
    if not isinstance(x, dict):
        # An array has the nodes type by type.
        stops = np.cumsum(conv.sizes(graph))[:-1]
        parts = dict(zip(conv.type_names, jnp.split(x, stops), strict=True))
        parts = reference_hgt(conv, graph, parts)
        return jnp.concatenate([parts[role] for role in conv.type_names])
    rel, src, dst = graph.edge_types, graph.nodes.cols, graph.nodes.rows
    sizes = conv.sizes(graph)

    def map_nodes(role: str) -> jax.Array:
        parts = []
        for i, name in enumerate(conv.type_names):
            kernel = getattr(conv, role)
            kernel = kernel[name][...] if isinstance(kernel, nnx.Dict) else kernel[...][i]
            bias = getattr(conv, f"{role}_bias")
            if sizes[i]:
                parts.append(x[name] @ kernel + (0 if bias is None else bias[...][i]))
        return split(jnp.concatenate(parts), conv.heads)

    query, key, value = map_nodes("query")[dst], map_nodes("key")[src], map_nodes("value")[src]
    key = jnp.einsum("ehd,ehdf->ehf", key, conv.attention[...][rel])
    value = jnp.einsum("ehd,ehdf->ehf", value, conv.message[...][rel])
    score = (query * key).sum(-1) * conv.prior[...][rel] / np.sqrt(query.shape[-1])
    weight = softmax(score, dst, graph.num_nodes)
    y = jax.ops.segment_sum(weight[..., None] * value, dst, graph.num_nodes)
    y = jax.nn.gelu(y.reshape(len(y), -1), approximate=False)
    results, start = {}, 0
    for i, name in enumerate(conv.type_names):
        if not sizes[i]:
            results[name] = jnp.zeros((0, conv.out_features))
            continue
        rows = y[start : start + sizes[i]] @ conv.output[...][i]
        rows = rows + (0 if conv.output_bias is None else conv.output_bias[...][i])
        if x[name].shape[1] == conv.out_features:
            gate = jax.nn.sigmoid(conv.skip[...][i])
            rows = gate * rows + (1 - gate) * x[name]
        results[name] = rows
        start += sizes[i]
    return results


RGAT_FORMS: list[dict[str, Any]] = [
    {},
    {"heads": 2},
    {"heads": 2, "concat": False},
    {"attention": "multiplicative", "heads": 2},
    {"softmax": "within", "heads": 2},
    {"softmax": "within", "attention": "multiplicative"},
    {"num_bases": 2},
    {"num_blocks": 2, "heads": 2},
    {"negative_slope": 0.5, "use_bias": False},
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", RGAT_FORMS, ids=repr)
def test_rgat_equals_the_formula(graph, form, method):
    conv = make(RGATConv, 4, 8, method=method, **form)
    x = features(4)
    assert_close(nnx.jit(conv)(graph, x), nnx.jit(reference_rgat)(conv, graph, x))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_rgat_with_features_of_edges(graph, method, attention, dense, monkeypatch):
    """Scores of endpoints come from a product of all nodes, or of pairs."""
    function = "jax_gnn._ops.relational_attention.methods.dense_scores_pay"
    monkeypatch.setattr(function, lambda *_: dense)
    options = {"attention": attention, "heads": 2, "edge_in_features": EDGE_FEATURES}
    conv = make(RGATConv, 4, 8, method=method, **options)
    x, attr = features(4), features(EDGE_FEATURES, rows=graph.num_edges)
    assert_close(nnx.jit(conv)(graph, x, attr), nnx.jit(reference_rgat)(conv, graph, x, attr))


HGT_FORMS: list[dict[str, Any]] = [{}, {"heads": 2}, {"heads": 4, "use_bias": False}]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", HGT_FORMS, ids=repr)
def test_hgt_equals_the_formula(graph, typed, form, method):
    reference = nnx.jit(reference_hgt)
    for width in (8, 5):
        conv, x = make(HGTConv, width, 8, method=method, **form), features(width)
        assert_close(nnx.jit(conv)(graph, x), reference(conv, graph, x))
    for widths in (None, WIDTHS):
        conv = make_typed(widths or 8, method=method, **form)
        of_types = typed_features(widths)
        expected = reference(conv, typed, of_types)
        assert_close(nnx.jit(conv)(typed, of_types), expected)
        if widths is None:
            joined = jnp.concatenate(list(of_types.values()))
            expected = jnp.concatenate(list(expected.values()))
            assert_close(nnx.jit(conv)(typed, joined), expected)


# --- Derivatives, batches ------------------------------------------------------------------------


def cases(graph, typed) -> list[tuple[Any, Any, Any, RelationalGraph, Any]]:
    options = {"heads": 2, "edge_in_features": EDGE_FEATURES}
    attr = features(EDGE_FEATURES, rows=graph.num_edges)

    def rgat(conv, graph, x):
        return conv(graph, x, attr)

    def rgat_by_formula(conv, graph, x):
        return reference_rgat(conv, graph, x, attr)

    def plain(conv, graph, x):
        return conv(graph, x)

    return [
        (lambda **way: make(RGATConv, 4, 8, **options, **way), rgat, rgat_by_formula, graph, 4),
        (
            lambda **way: make(RGATConv, 4, 8, softmax="within", num_bases=2, **way),
            plain,
            reference_rgat,
            graph,
            4,
        ),
        (lambda **way: make(HGTConv, 8, 8, heads=2, **way), plain, reference_hgt, graph, 8),
        (lambda **way: make_typed(heads=2, **way), plain, reference_hgt, typed, None),
        (lambda **way: make_typed(WIDTHS, **way), plain, reference_hgt, typed, WIDTHS),
    ]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", range(5))
def test_derivatives(graph, typed, case, method):
    construct, call, formula, graph, width = cases(graph, typed)[case]
    x = features(width) if isinstance(width, int) else typed_features(width)
    check_derivatives(construct(method=method), call, formula, graph, x)


@pytest.mark.parametrize("form", ["rows", "pairs", "nodes"])
@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
@pytest.mark.parametrize("sizes", [(1, 4, 6), (1, 6, 4), (1, 4, 4), (2, 4, 6), (2, 3, 4)])
def test_forms_of_scores(graph, sizes, attention, form, monkeypatch):
    """Edges read rows of their endpoints, or scores of pairs, or of all nodes and relations."""
    module = "jax_gnn._ops.relational_attention.methods"
    monkeypatch.setattr(f"{module}.scores_by_edge_pay", lambda *_: form == "rows")
    monkeypatch.setattr(f"{module}.dense_scores_pay", lambda *_: form == "nodes")
    heads, *widths = sizes
    options = {"heads": heads, "attention": attention, "method": "source_pairs"}
    conv, x = make(RGATConv, *widths, **options), features(widths[0])

    def call(conv, graph, x):
        return conv(graph, x)

    check_derivatives(conv, call, reference_rgat, graph, x)
    padded = graph.pad(num_nodes=12, num_edges=40, num_src_pairs=50, num_dst_pairs=45)
    dirty = jnp.pad(x, ((0, 3), (0, 0)), constant_values=jnp.nan)
    assert_close(nnx.jit(conv)(padded, dirty)[:NUM_NODES], nnx.jit(conv)(graph, x))

    # Batched by `vmap`, values and gradients are those of separate calls.
    def loss(x):
        y = conv(graph, x)
        return jnp.sum(jnp.sin(y)), y

    batch, gradient = jnp.stack([x, 2 * x]), jax.jit(jax.grad(loss, has_aux=True))
    expected = jax.tree.map(lambda *rows: jnp.stack(rows), *map(gradient, batch))
    assert_close(jax.jit(jax.vmap(gradient))(batch), expected)


def check_derivatives(conv, call, formula, graph, x):
    """Compare gradients, and their derivatives along a direction, with those of a formula."""
    graphdef, params, static = nnx.split(conv, nnx.Param, ...)

    def gradient(function):
        def loss(params, x):
            y = function(nnx.merge(graphdef, params, static), graph, x)
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(y))

        def value_and_gradient(values):
            return jax.value_and_grad(loss, (0, 1))(*values)

        # Second derivatives along a fixed direction cost one more pass.
        direction = jax.tree.map(jnp.cos, (params, x))
        jvp = jax.jit(lambda values: jax.jvp(value_and_gradient, (values,), (direction,)))
        return jvp((params, x))

    assert_close(gradient(call), gradient(formula), 1e-9)


@pytest.mark.parametrize("layer", [RGATConv, HGTConv])
@pytest.mark.parametrize("method", METHODS)
def test_same_bits_and_large_scores(graph, layer, method):
    conv = make(layer, 8, 8, heads=2, method=method)
    # Scores of this size overflow `exp` without a maximum subtracted.
    x = 1e3 * features(8)
    first = nnx.jit(conv)(graph, x)
    assert np.isfinite(first).all()
    for _ in range(3):
        np.testing.assert_array_equal(nnx.jit(conv)(graph, x), first)


@pytest.mark.parametrize("layer", [RGATConv, HGTConv])
def test_weights_are_multiplied_once(graph, typed, layer):
    conv = make(layer, 8, 8, heads=2)
    folded = conv.folded()
    x = features(8)
    assert_close(nnx.jit(conv)(graph, x, folded=folded), nnx.jit(conv)(graph, x))
    if layer is HGTConv:
        conv, x = make_typed(WIDTHS), typed_features(WIDTHS)
        folded = nnx.jit(lambda conv, x: conv(typed, x, folded=conv.folded()))(conv, x)
        assert_close(folded, nnx.jit(conv)(typed, x))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [8, 5])
def test_queries_folded_into_keys(graph, typed, width, method):
    """Folded weights of one head without biases have the queries' maps in those of the keys."""
    options: Any = {"use_bias": False, "method": method}
    for conv, structure, x in (
        (make(HGTConv, width, 8, **options), graph, features(width)),
        (make_typed(width, **options), typed, features(width, 2, rows=sum(TYPES.values()))),
    ):

        def total(conv, structure, x, folds):
            y = conv(structure, x, folded=conv.folded() if folds else None)
            return jnp.sum(jnp.sin(y)), y

        gradients = nnx.jit(nnx.grad(total, argnums=(0, 2), has_aux=True), static_argnums=3)
        assert_close(gradients(conv, structure, x, True), gradients(conv, structure, x, False))


@pytest.mark.parametrize("method", METHODS)
def test_attention_dropout(graph, method):
    conv = make(RGATConv, 4, 8, heads=2, attention_dropout_rate=0.5, method=method)
    x, key = features(4), jax.random.key(1)
    first = nnx.jit(conv)(graph, x, rngs=key)
    by_source = make(RGATConv, 4, 8, heads=2, attention_dropout_rate=0.5, method="source_pairs")
    assert_close(first, nnx.jit(by_source)(graph, x, rngs=key))  # every method has the same mask
    conv.eval()
    assert_close(nnx.jit(conv)(graph, x), nnx.jit(reference_rgat)(conv, graph, x))


# --- The models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [8, WIDTHS], ids=["one width", "widths"])
def test_hgt_stacks_convolutions(typed, widths):
    named = {"node_types": tuple(TYPES), "num_relations": len(ENDS), "relation_ends": ENDS}
    model = HGT(widths, 8, 3, heads=2, rngs=nnx.Rngs(0), **named)
    x = typed_features(widths if isinstance(widths, dict) else None)
    y = nnx.jit(lambda model, graph, x: model(graph, x, deterministic=True))(model, typed, x)
    reference = nnx.jit(reference_hgt)
    hidden = reference(model.conv2, typed, reference(model.conv1, typed, x))
    kernel, bias = model.output.kernel[...], model.output.bias[...]
    expected = {name: rows @ kernel + bias for name, rows in hidden.items()}
    assert_close(y, expected, 1e-5)
    assert set(y) == set(TYPES)


# --- PyTorch Geometric ---------------------------------------------------------------------------


def of_torch(torch, array) -> Any:
    return torch.tensor(double(jnp.asarray(array)), requires_grad=True)


PYG_RGAT = [form for form in RGAT_FORMS if "use_bias" not in form]


@pytest.mark.parametrize("has_attr", [False, True])
@pytest.mark.parametrize("form", PYG_RGAT, ids=repr)
def test_rgat_equals_pytorch_geometric(graph, form, has_attr):
    """PyTorch Geometric shares attention vectors among relations, and mixes heads in scores."""
    geometric = pytest.importorskip("torch_geometric.nn")
    torch = pytest.importorskip("torch")
    options = form | {"edge_in_features": EDGE_FEATURES if has_attr else None}
    conv = make(RGATConv, 4, 8, **options)
    heads, width = conv.heads, conv.dst_attention.shape[2]
    for vector in (conv.dst_attention, conv.src_attention):
        vector[...] = jnp.broadcast_to(vector[...][:1], vector.shape)
    torch_conv = geometric.RGATConv(
        *(4, width, RELATIONS),
        num_bases=conv.num_bases,
        num_blocks=conv.num_blocks,
        attention_mechanism=f"{conv.softmax}-relation",
        attention_mode=f"{conv.attention}-self-attention",
        heads=heads,
        concat=conv.concat,
        negative_slope=conv.negative_slope,
        edge_dim=conv.edge_in_features,
    ).double()

    def spread(vectors) -> np.ndarray:
        blocks = np.zeros((heads, width, heads))
        blocks[np.arange(heads), :, np.arange(heads)] = vectors
        return blocks.reshape(heads * width, heads)

    def head_blocks(blocks) -> np.ndarray:
        return blocks.reshape(heads, width, heads)[np.arange(heads), :, np.arange(heads)]

    pairs = {"q": spread(double(conv.dst_attention)[0]), "k": spread(double(conv.src_attention)[0])}
    pairs |= {"bias": double(conv.bias)}
    if conv.num_bases:
        pairs |= {"att": double(conv.coefficients), "basis": double(conv.kernel)}
    else:
        pairs["weight"] = double(conv.kernel)
    if has_attr:
        pairs["e"] = spread(double(conv.edge_attention))
        pairs["lin_edge.weight"] = double(conv.edge_kernel).T
    state = {name: torch.tensor(array) for name, array in pairs.items()}
    torch_conv.load_state_dict(state, strict=False)
    x, attr = features(4), features(EDGE_FEATURES, rows=graph.num_edges) if has_attr else None
    ids = torch.tensor(np.stack([graph.nodes.cols, graph.nodes.rows]).astype(np.int64))
    types = torch.tensor(np.asarray(graph.edge_types).astype(np.int64))
    torch_x = of_torch(torch, x)
    y = torch_conv(torch_x, ids, types, None if attr is None else of_torch(torch, attr))
    y.sin().sum().backward()

    def loss(conv, x):
        y = conv(graph, x, attr)
        return jnp.sum(jnp.sin(y)), y

    gradient = nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, ours), (grads, to_x) = gradient(conv, x)
    assert_close(ours, y.detach().numpy(), 1e-9)
    assert_close(to_x, torch_x.grad.numpy(), 1e-9)
    theirs = {
        name: param.grad.numpy() for name, param in torch_conv.named_parameters() if name in pairs
    }
    assert_close(grads["dst_attention"][...].sum(0), head_blocks(theirs["q"]), 1e-9)
    assert_close(grads["src_attention"][...].sum(0), head_blocks(theirs["k"]), 1e-9)
    assert_close(grads["bias"][...], theirs["bias"], 1e-9)
    if conv.num_bases:
        assert_close(grads["coefficients"][...], theirs["att"], 1e-9)
    assert_close(grads["kernel"][...], theirs["basis" if conv.num_bases else "weight"], 1e-9)
    if has_attr:
        assert_close(grads["edge_attention"][...], head_blocks(theirs["e"]), 1e-9)
        assert_close(grads["edge_kernel"][...], theirs["lin_edge.weight"].T, 1e-9)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("widths", [None, WIDTHS], ids=["one width", "widths"])
def test_hgt_equals_pytorch_geometric(typed, heads, widths):
    """Types that have nodes and receive messages are compared."""
    geometric = pytest.importorskip("torch_geometric.nn")
    torch = pytest.importorskip("torch")
    conv = make_typed(widths or 8, heads=heads)
    kinds = [name for name, size in TYPES.items() if size]
    relations = [(src, name, dst) for src, name, dst in ENDS if src in kinds and dst in kinds]
    named = {name: (widths or dict.fromkeys(TYPES, 8))[name] for name in kinds}
    torch_conv = geometric.HGTConv(named, 8, (kinds, relations), heads=heads).double()
    numbers = [ENDS.index(relation) for relation in relations]
    order = ("key", "query", "value")

    def of_kind(name: str, i: int, kind: str) -> np.ndarray:
        kernel = getattr(conv, name)
        return double(kernel[kind] if widths else kernel)[() if widths else i]

    state = {}
    for i, kind in enumerate(TYPES):
        if kind in kinds:
            kernel = np.concatenate([of_kind(name, i, kind) for name in order], 1)
            state[f"kqv_lin.lins.{kind}.weight"] = kernel.T
            biases = [double(getattr(conv, f"{name}_bias"))[i] for name in order]
            state[f"kqv_lin.lins.{kind}.bias"] = np.concatenate(biases)
            state[f"out_lin.lins.{kind}.weight"] = double(conv.output)[i].T
            state[f"out_lin.lins.{kind}.bias"] = double(conv.output_bias)[i]
            state[f"skip.{kind}"] = double(conv.skip)[i : i + 1]
    for name, maps_of_relations in (("k_rel", conv.attention), ("v_rel", conv.message)):
        maps = double(maps_of_relations)[numbers].swapaxes(0, 1)
        state[f"{name}.weight"] = maps.reshape(-1, *maps.shape[2:])
    for number, relation in zip(numbers, relations, strict=True):
        state["p_rel." + "__".join(relation)] = double(conv.prior)[number][None]
    state = {name: torch.tensor(np.ascontiguousarray(a)) for name, a in state.items()}
    torch_conv.load_state_dict(state)
    edges = {key: torch.tensor(np.array(ids)) for key, ids in EDGES.items() if key[0] in kinds}
    edges |= {(dst, f"rev_{name}", src): ids.flip(0) for (src, name, dst), ids in edges.items()}
    edges = {relation: edges[relation] for relation in relations}
    x = typed_features(widths)
    torch_x = {name: of_torch(torch, rows) for name, rows in x.items()}
    y = torch_conv(torch_x, edges)
    sum(rows.sin().sum() for rows in y.values()).backward()

    def loss(conv, x):
        y_of_types = conv(typed, x)
        return sum(jnp.sum(jnp.sin(y_of_types[name])) for name in y), y_of_types

    gradient = nnx.jit(nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, ours), (grads, to_x) = gradient(conv, x)
    assert_close({name: ours[name] for name in y}, {n: e.detach().numpy() for n, e in y.items()})
    assert_close(to_x, {name: rows.grad.numpy() for name, rows in torch_x.items()}, 1e-9)
    theirs = {  # gates are for inputs as wide as the output
        name: 0 if param.grad is None else param.grad.numpy()
        for name, param in torch_conv.named_parameters()
    }
    for i, kind in enumerate(TYPES):
        if kind not in kinds:
            continue
        parts = np.split(theirs[f"kqv_lin.lins.{kind}.weight"].T, 3, 1)
        biases = np.split(theirs[f"kqv_lin.lins.{kind}.bias"], 3)
        for name, kernel, bias in zip(order, parts, biases, strict=True):
            gradient = grads[name]["members"][i] if widths else grads[name]
            assert_close(gradient[...] if widths else gradient[...][i], kernel, 1e-9)
            assert_close(grads[f"{name}_bias"][...][i], bias, 1e-9)
        assert_close(grads["output"][...][i], theirs[f"out_lin.lins.{kind}.weight"].T, 1e-9)
        assert_close(grads["skip"][...][i : i + 1], theirs[f"skip.{kind}"], 1e-9)
    for name, maps_of_relations in (("k_rel", "attention"), ("v_rel", "message")):
        maps = grads[maps_of_relations][...][np.array(numbers)].swapaxes(0, 1)
        assert_close(maps.reshape(-1, *maps.shape[2:]), theirs[f"{name}.weight"], 1e-9)
    for number, relation in zip(numbers, relations, strict=True):
        maps_of_relations = theirs["p_rel." + "__".join(relation)]
        assert_close(grads["prior"][...][number][None], maps_of_relations, 1e-9)


# --- The choice ----------------------------------------------------------------------------------


def counts(num_nodes: int, edges: int, relations: int, sources: int, destinations: int) -> Counts:
    pairs = sources, destinations
    return Counts(num_nodes, num_nodes, edges, relations, *pairs, 64, 64, 4)


# With edges of nodes to themselves; of twins by the shares of edges that are the first of a pair.
GRAPHS = {
    "aifb": counts(8285, 66371, 91, 34710, 34710),
    "fb15k": counts(14541, 634773, 475, 176463, 176463),
    "bgs": counts(333845, 2166243, 207, 1048480, 1011832),
    "am": counts(1666764, 13643406, 267, 8732983, 8373683),
    "biokg": counts(93773, 4856451, 52, 808174, 855801),
    "mag": counts(1939743, 23050750, 5, 4050843, 3417513),
    "wikikg2": counts(2500604, 18609786, 536, 16515592, 16515592),
}
# Microseconds without those of launches, counted for kernels that have scores in the product's
# epilogue: RGAT and HGT by source pair, with weights multiplied first, and by destination pair.
COUNTED = {
    "aifb": ((5.0, 7.3), (10, 11)),
    "fb15k": ((38, 52), (66, 66)),
    "bgs": ((192, 259), (406, 353)),
    "am": ((2020, 3140), (3340, 3810)),
    "biokg": ((293, 344), (608, 360)),
    "mag": ((1650, 1830), (3600, 2220)),
    "wikikg2": ((3610, 6060), (5440, 7310)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_counted_times(name, monkeypatch):
    """The cost model gives times counted by hand, and the same choice."""
    base = "jax_gnn._ops.relational_aggregate.schedule"
    chosen = {dots: schedule.chosen(GRAPHS[name], 1, dots=dots) for dots in (False, True)}
    monkeypatch.setattr(f"{base}._LAUNCH", 0.0)
    monkeypatch.setattr(f"{base}._WAIT", 0.0)
    for dots, by_hand in zip((False, True), COUNTED[name], strict=True):
        times = schedule.expected(GRAPHS[name], 1, dots=dots)
        for time, counted in zip(times.values(), by_hand, strict=True):
            assert 0.75 < time / counted < (1.3 if dots else 1.6)
        if max(by_hand) > 1.1 * min(by_hand):
            assert chosen[dots] == list(times)[by_hand.index(min(by_hand))]


def test_choice_among_available_parts(graph, triples):
    x = features(8)
    for layer in (RGATConv, HGTConv):
        conv = make(layer, 8, 8)
        call = nnx.jit(conv)
        expected = call(graph, x)
        for part in ("from_pairs", "to_pairs"):
            lacking = RelationalGraph.from_triples(*triples, NUM_NODES, RELATIONS, parts=(part,))
            if layer is HGTConv:
                assert_close(call(lacking, x), expected)
            else:
                with pytest.raises(ValueError, match=r"goes through '(from|to)_pairs', which the"):
                    call(lacking, x)
    # More heads sum more rows of nodes, but multiply as much.
    times = [schedule.expected(GRAPHS["biokg"], heads, dots=True) for heads in (1, 8)]
    assert times[0]["destination_pairs"] < times[0]["source_pairs"]
    assert times[1]["destination_pairs"] > times[1]["source_pairs"]


# --- Bad arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (RGATConv, {"heads": 3}, "heads must divide out_features"),
        (RGATConv, {"num_bases": 2, "num_blocks": 2}, "num_bases and num_blocks exclude"),
        (RGATConv, {"num_blocks": 3}, "num_blocks must divide in_features and out_features"),
        (HGTConv, {"heads": 3}, "heads must divide out_features"),
        (HGTConv, {"node_types": 2}, "relation_ends must be given where there are 2 node types"),
        (HGTConv, {"node_types": ("a", "a")}, "node_types must differ from each other, got .*a"),
        (
            HGTConv,
            {"node_types": ("a", "b"), "relation_ends": [("a", "b")]},
            "relation_ends must be those of num_relations = 4, got 1",
        ),
        (
            HGTConv,
            {"node_types": ("a", "b"), "relation_ends": [("a", "b"), ("a", "c")] * 2},
            r"relation_ends\[1\] must be node types, of \('a', 'b'\), got \('a', 'c'\)",
        ),
    ],
)
def test_bad_construction(layer, arguments, message):
    with pytest.raises(ValueError, match=message):
        layer(4, 8, **{"num_relations": 4} | arguments, rngs=nnx.Rngs(0))


def test_bad_in_features():
    for widths, message in (
        ({**WIDTHS, "page": 3}, "in_features has the key 'page', none of"),
        ({"author": 3}, "in_features lacks the type 'paper'"),
        ({**WIDTHS, "topic": 0}, r"in_features\['topic'\] must be positive"),
    ):
        with pytest.raises(ValueError, match=message):
            make_typed(widths)
    with pytest.raises(TypeError, match="node_types must be names, or their number"):
        HGTConv(4, 8, node_types=(1, 2), num_relations=1, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="relation_ends must be pairs of node types, got 'ab'"):
        make_typed(num_relations=2, relation_ends="ab")


def test_bad_calls(graph, typed, triples):
    x = features(8)
    for layer in (RGATConv, HGTConv):
        conv = make(layer, 8, 8)
        with pytest.raises(TypeError, match=r"graph must be a jax_gnn\.RelationalGraph"):
            conv(graph.nodes, x)
        with pytest.raises(ValueError, match=r"x must have shape .*\(9, ..., 8\), got \(9, 3\)"):
            conv(graph, features(3))
        with pytest.raises(ValueError, match="num_relations = 3, inverse ones included, got 4"):
            make(layer, 8, 8, num_relations=3)(graph, x)
        lacking = RelationalGraph.from_triples(*triples, NUM_NODES, RELATIONS, parts=())
        with pytest.raises(ValueError, match=r"method='source_pairs' goes through 'from_pairs', w"):
            make(layer, 8, 8, method="source_pairs")(lacking, x)


def test_bad_types(graph, typed):
    conv, x = make_typed(WIDTHS), typed_features(WIDTHS)
    with pytest.raises(ValueError, match="x must be by type, as in_features="):
        conv(typed, features(8, rows=12))
    with pytest.raises(ValueError, match="x has the key 'page', none of"):
        conv(typed, {**x, "page": x["paper"]})
    with pytest.raises(ValueError, match="x lacks the type 'topic', which has nodes"):
        conv(typed, {name: x[name] for name in ("author", "paper")})
    with pytest.raises(ValueError, match=r"x\['topic'\] must have shape \(nodes of type 'topic'"):
        conv(typed, {**x, "topic": x["topic"][:2]})
    with pytest.raises(ValueError, match="all of x must have the same batch axes"):
        conv(typed, {**x, "topic": x["topic"][:, None]})
    untyped = make_typed(num_relations=4, relation_ends=ENDS[:4])
    with pytest.raises(ValueError, match="graph must have 4 types of nodes, got none"):
        untyped(graph, features(8))
    relation_ends = [*ENDS[:2], ("paper", "about", "author"), *ENDS[3:]]
    with pytest.raises(
        ValueError, match=r"'about', 'topic'\) of the graph must run from 'paper' to 'author'"
    ):
        make_typed(relation_ends=relation_ends)(typed, typed_features())
    # The same sizes under other names.
    renamed = dict(zip([*TYPES][::-1], TYPES.values(), strict=True))
    edges = {("topic", "of", "topic"): ([0], [0])}
    renamed_graph = RelationalGraph.from_edge_dict(edges, renamed)
    with pytest.raises(ValueError, match=r"must have the node types .* got 'topic' for 'author'"):
        make_typed(num_relations=1, relation_ends=ENDS[:1])(renamed_graph, typed_features())
