"""GAT, GATv2 and graph transformers: against their formulas, and against PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import awkward_edges, check_gradient, double, features, linear

from flax_layers import GATConv, GATv2Conv, TransformerConv
from jax_gnn import Graph

pytestmark = pytest.mark.usefixtures("exact_products")

NUM_NODES = 9
EDGE_FEATURES = 3
CONVOLUTIONS = [GATConv, GATv2Conv, TransformerConv]


@pytest.fixture
def edges(rng) -> tuple[np.ndarray, np.ndarray]:
    return awkward_edges(rng)


@pytest.fixture
def graph(edges) -> Graph:
    return Graph.from_edges(*edges, num_nodes=NUM_NODES)


def make(layer, *sizes, **options):
    return layer(*sizes, bias_init=jax.random.normal, rngs=nnx.Rngs(0), **options)


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


# --- The formulas --------------------------------------------------------------------------------


def leaky(z: np.ndarray, slope: float) -> np.ndarray:
    return np.where(z.real > 0, z, slope * z)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.real.max(0))
    return powers / powers.sum(0)


def split(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(len(x), heads, -1)


def join(conv, y: np.ndarray) -> np.ndarray:
    return y.reshape(len(y), -1) if conv.concat else y.mean(1)


def neighbours(conv, graph: Graph, is_square: bool) -> list[tuple[list[int], list[int]]]:
    """Return the edges of each destination and their sources; -1 is a self-loop."""
    rows, cols = np.asarray(graph.rows), np.asarray(graph.cols)
    # A self-loop is added for one array of features, not for a pair.
    has_loops = is_square and getattr(conv, "add_self_loops", False)
    lists = []
    for row in range(graph.num_dst):
        edges = [int(e) for e in np.flatnonzero(rows == row)]
        sources = [int(cols[e]) for e in edges]
        lists.append((edges + [-1] * has_loops, sources + [row] * has_loops))
    return lists


def with_means(attr: np.ndarray | None, edges: list[int]) -> np.ndarray | None:
    """Return the features of a destination's edges; a self-loop has the mean of the others."""
    if attr is None:
        return None
    values = [attr[e] for e in edges if e >= 0]
    mean = np.mean(values, axis=0) if values else np.zeros(attr.shape[1:])
    return np.array([mean if e < 0 else attr[e] for e in edges]).reshape(-1, *attr.shape[1:])


def reference_gat(conv: GATConv, graph: Graph, src, dst=None, attr=None) -> Any:
    is_square = dst is None
    src, dst = double(src), double(src if dst is None else dst)
    value = split(src @ double(conv.kernel), conv.heads)
    kernel = conv.kernel if conv.dst_kernel is None else conv.dst_kernel
    dst_value = split(dst @ double(kernel), conv.heads)
    if attr is not None:
        attr = split(double(attr) @ double(conv.edge_kernel), conv.heads)
        attr = (attr * double(conv.edge_attention)).sum(-1)
    rows = []
    for row, (edges, sources) in enumerate(neighbours(conv, graph, is_square)):
        z = (value[sources] * double(conv.src_attention)).sum(-1)
        z = z + (dst_value[row] * double(conv.dst_attention)).sum(-1)
        z = z if attr is None else z + with_means(attr, edges)
        weight = softmax(leaky(z, conv.negative_slope)) if edges else np.zeros((0, conv.heads))
        rows.append((weight[..., None] * value[sources]).sum(0))
    return join(conv, np.array(rows)) + double(conv.bias)


def reference_gatv2(conv: GATv2Conv, graph: Graph, src, dst=None, attr: Any = None) -> Any:
    is_square = dst is None
    src, dst = double(src), double(src if dst is None else dst)
    src_value = split(src @ double(conv.kernel) + double(conv.src_bias), conv.heads)
    kernel, bias = conv.dst_kernel, conv.dst_bias
    if conv.share_weights:
        kernel, bias = conv.kernel, conv.src_bias
    dst_value = split(dst @ double(kernel) + double(bias), conv.heads)
    attr = None if attr is None else split(double(attr) @ double(conv.edge_kernel), conv.heads)
    rows = []
    for row, (edges, sources) in enumerate(neighbours(conv, graph, is_square)):
        z = dst_value[row] + src_value[sources]
        z = z if attr is None else z + with_means(attr, edges)
        scores = (double(conv.attention) * leaky(z, conv.negative_slope)).sum(-1)
        weight = softmax(scores) if edges else np.zeros((0, conv.heads))
        rows.append((weight[..., None] * src_value[sources]).sum(0))
    return join(conv, np.array(rows)) + double(conv.bias)


def reference_transformer(
    conv: TransformerConv, graph: Graph, src, dst=None, attr: Any = None
) -> Any:
    src, dst = double(src), double(src if dst is None else dst)
    # Features of edges are added to keys and values, edge by edge.
    query, key, value = (
        split(linear(layer, x), conv.heads)
        for layer, x in ((conv.query, dst), (conv.key, src), (conv.value, src))
    )
    attr = None if attr is None else split(double(attr) @ double(conv.edge.kernel), conv.heads)
    rows = []
    for row, (edges, sources) in enumerate(neighbours(conv, graph, False)):
        extra = 0 if attr is None else attr[edges]
        scores = (query[row] * (key[sources] + extra)).sum(-1) / np.sqrt(key.shape[-1])
        weight = softmax(scores) if edges else np.zeros((0, conv.heads))
        rows.append((weight[..., None] * (value[sources] + extra)).sum(0))
    y = join(conv, np.array(rows))
    if conv.root is None:
        return y
    skipped = linear(conv.root, dst)
    if conv.gate is None:
        return y + skipped
    z = np.concatenate([y, skipped, y - skipped], 1) @ double(conv.gate.kernel)
    gate = 1 / (1 + np.exp(-z))
    return gate * skipped + (1 - gate) * y


REFERENCES = {
    GATConv: reference_gat,
    GATv2Conv: reference_gatv2,
    TransformerConv: reference_transformer,
}
OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *((layer, {}) for layer in CONVOLUTIONS),
    *((layer, {"heads": 2}) for layer in CONVOLUTIONS),
    *((layer, {"heads": 3, "concat": False}) for layer in CONVOLUTIONS),
    *((layer, {"add_self_loops": False, "heads": 2}) for layer in CONVOLUTIONS[:2]),
    *((layer, {"negative_slope": 0.5}) for layer in CONVOLUTIONS[:2]),
    (GATv2Conv, {"share_weights": True, "heads": 2}),
    (TransformerConv, {"gated": True, "heads": 2}),
    (TransformerConv, {"self_weight": False}),
]


@pytest.mark.parametrize(("layer", "options"), OPTIONS)
@pytest.mark.parametrize("has_attr", [False, True])
def test_equals_the_formula(layer, options, has_attr, graph):
    x = features(4)
    attr = features(EDGE_FEATURES, rows=graph.num_edges) if has_attr else None
    conv = make(layer, 4, 6, edge_in_features=EDGE_FEATURES if has_attr else None, **options)
    assert_close(nnx.jit(conv)(graph, x, attr), REFERENCES[layer](conv, graph, x, attr=attr))


@pytest.mark.parametrize(("layer", "options"), OPTIONS)
def test_gradients_are_slopes(layer, options, graph, rng):
    with jax.enable_x64(True):
        check_gradient(
            rng,
            make(layer, 4, 6, edge_in_features=3, param_dtype=jnp.float64, **options),
            lambda conv, x, attr: conv(graph, x, attr),
            lambda conv, x, attr: REFERENCES[layer](conv, graph, x, attr=attr),
            *(rng.normal(size=(rows, width)) for rows, width in ((9, 4), (graph.num_edges, 3))),
        )


@pytest.mark.parametrize("layer", CONVOLUTIONS)
@pytest.mark.parametrize("has_attr", [False, True])
def test_bipartite(layer, has_attr, edges):
    graph = Graph.from_edges(*edges, num_src=NUM_NODES, num_dst=11)
    src, dst = features(4), features(5, rows=11)
    attr = features(EDGE_FEATURES, rows=graph.num_edges) if has_attr else None
    conv = make(layer, (4, 5), 6, heads=2, edge_in_features=EDGE_FEATURES if has_attr else None)
    assert_close(conv(graph, (src, dst), attr), REFERENCES[layer](conv, graph, src, dst, attr))


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_attention_dropout(layer, graph):
    conv = make(layer, 4, 6, heads=2, attention_dropout_rate=0.5)
    x = features(4)
    evaluated = conv(graph, x, deterministic=True)
    assert_close(evaluated, REFERENCES[layer](conv, graph, x))
    # The mean over masks is the result without dropout, within six standard errors.
    keys = jax.random.split(jax.random.key(0), 400)

    @jax.jit
    def draw(keys):
        return jax.lax.map(lambda key: conv(graph, x, deterministic=False, rngs=key), keys)

    draws = np.asarray(draw(keys), np.float64)
    spread = np.std(draws, axis=0) / 20
    assert (np.abs(np.mean(draws, axis=0) - evaluated) < 6 * spread + 1e-5).all()


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        *((layer, {"heads": 4}, "heads must divide out_features") for layer in CONVOLUTIONS),
        *(
            (layer, {"in_features": (2, 2, 2)}, "in_features must be a number or a pair")
            for layer in CONVOLUTIONS
        ),
        (GATv2Conv, {"in_features": (2, 3), "share_weights": True}, "share_weights needs"),
        (TransformerConv, {"gated": True, "self_weight": False}, "gated needs the skip connection"),
    ],
)
def test_bad_construction(layer, arguments, message):
    with pytest.raises(ValueError, match=message):
        layer(**{"in_features": 2, "out_features": 2} | arguments, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("layer", CONVOLUTIONS)
def test_bad_call(layer, graph):
    conv = make(layer, 4, 6)
    with pytest.raises(ValueError, match=r"x\[1\] must have shape \(num_dst, .*got \(8, 4\)"):
        conv(graph, (features(4), jnp.ones((8, 4))))
    with pytest.raises(ValueError, match="edge_features must be given if edge_in_features is"):
        conv(graph, features(4), jnp.ones((graph.num_edges, 2)))
    with pytest.raises(ValueError, match="x must be a pair"):
        make(layer, (4, 5), 6)(graph, features(4))
    with pytest.raises(ValueError, match="graph must have its destinations among its sources"):
        conv(Graph.from_edges([0], [0], num_src=2, num_dst=3), jnp.ones((2, 4)))


# --- PyTorch Geometric, where it is installed ----------------------------------------------------


def torch_state(conv) -> dict[str, Any]:
    """Return a layer's arrays by their names in PyTorch Geometric, which transposes maps."""
    arrays: dict[str, Any] = {}
    if isinstance(conv, TransformerConv):
        names = {"query": "lin_query", "key": "lin_key", "value": "lin_value", "edge": "lin_edge"}
        names |= {"root": "lin_skip", "gate": "lin_beta"}
        for name, torch_name in names.items():
            layer = getattr(conv, name)
            if layer is not None:
                arrays[f"{torch_name}.weight"] = double(layer.kernel).T
                if layer.bias is not None:
                    arrays[f"{torch_name}.bias"] = double(layer.bias)
        return arrays
    arrays["bias"] = double(conv.bias)
    if isinstance(conv, GATv2Conv):
        arrays["lin_l.weight"], arrays["lin_l.bias"] = double(conv.kernel).T, double(conv.src_bias)
        kernel, bias = conv.kernel, conv.src_bias
        if not conv.share_weights:
            kernel, bias = conv.dst_kernel, conv.dst_bias
        arrays["lin_r.weight"], arrays["lin_r.bias"] = double(kernel).T, double(bias)
        arrays["att"] = double(conv.attention)[None]
    else:
        src_name = "lin" if conv.dst_kernel is None else "lin_src"
        arrays[f"{src_name}.weight"] = double(conv.kernel).T
        if conv.dst_kernel is not None:
            arrays["lin_dst.weight"] = double(conv.dst_kernel).T
        arrays["att_src"] = double(conv.src_attention)[None]
        arrays["att_dst"] = double(conv.dst_attention)[None]
        if conv.edge_kernel is not None:
            arrays["att_edge"] = double(conv.edge_attention)[None]
    if conv.edge_kernel is not None:
        arrays["lin_edge.weight"] = double(conv.edge_kernel).T
    return arrays


@pytest.mark.parametrize(("layer", "options"), OPTIONS)
@pytest.mark.parametrize("has_attr", [False, True])
@pytest.mark.parametrize("is_bipartite", [False, True])
def test_equals_pytorch_geometric(layer, options, has_attr, is_bipartite, edges):
    geometric = pytest.importorskip("torch_geometric.nn")
    torch = pytest.importorskip("torch")
    # Endpoints of different widths cannot share weights.
    if options.get("share_weights") and is_bipartite:
        options = {**options, "share_weights": False}
    src, dst = edges
    is_loop = src == dst  # which PyTorch Geometric replaces by its own
    src, dst = src[~is_loop], dst[~is_loop]
    sizes = {"num_src": NUM_NODES, "num_dst": 11} if is_bipartite else {"num_nodes": NUM_NODES}
    graph = Graph.from_edges(src, dst, **sizes)
    in_features = (4, 5) if is_bipartite else 4
    edge_in_features = EDGE_FEATURES if has_attr else None
    conv = make(layer, in_features, 6, edge_in_features=edge_in_features, **options)
    heads, concat = options.get("heads", 1), options.get("concat", True)
    named = {"heads": heads, "concat": concat, "edge_dim": edge_in_features}
    if layer is TransformerConv:
        named |= {
            "beta": options.get("gated", False),
            "root_weight": options.get("self_weight", True),
        }
    else:
        named |= {"negative_slope": conv.negative_slope}
        named |= {"add_self_loops": conv.add_self_loops and not is_bipartite}
    if layer is GATv2Conv:
        named |= {"share_weights": conv.share_weights}
    torch_conv = getattr(geometric, layer.__name__)(
        in_features, 6 // heads if concat else 6, **named
    )
    state = {name: torch.tensor(array) for name, array in torch_state(conv).items()}
    has_all = named.get("root_weight", True)  # it keeps a map that it does not use
    torch_conv.double().load_state_dict(state, strict=has_all)
    x = features(4), features(5, rows=11)
    attr = features(EDGE_FEATURES, rows=graph.num_edges) if has_attr else None
    ids = torch.tensor(np.stack([graph.cols, graph.rows]).astype(np.int64))
    torch_x = tuple(torch.tensor(double(rows)) for rows in x)
    edge_attr = None if attr is None else torch.tensor(double(attr))
    with torch.no_grad():
        expected = torch_conv(torch_x if is_bipartite else torch_x[0], ids, edge_attr).numpy()
    assert_close(nnx.jit(conv)(graph, x if is_bipartite else x[0], attr), expected)
