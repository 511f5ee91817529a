"""Formulas of layers in numpy, the check of gradients against their slopes, and all layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from op_spec import random_like, slope

import flax_layers as layers
from jax_gnn import Batch, Edge, Graph, HeteroGraph, Hypergraph, Node, RelationalGraph
from jax_gnn.sampling import sample_neighbors


def features(width: int, *batch: int, rows: int = 9) -> jax.Array:
    return jax.random.normal(jax.random.key(width), (rows, *batch, width))


def double(array) -> np.ndarray:
    """An array or a parameter in float64, or complex numbers as they are."""
    array = np.asarray(array[...])
    return array.astype(np.result_type(array, np.float64))


def linear(layer: nnx.Linear, x: np.ndarray) -> np.ndarray:
    return x @ double(layer.kernel) + (0 if layer.bias is None else double(layer.bias))


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x.real > 0, x, 0)


def inverse(x: np.ndarray) -> np.ndarray:
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def unit(x: np.ndarray) -> np.ndarray:
    return x * inverse(np.sqrt((x**2).sum(-1, keepdims=True)))


def awkward_edges(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return edges of 9 nodes with a self-loop and a duplicate; node 3 has none."""
    src, dst = rng.choice([0, 1, 2, 4, 5, 6, 7, 8], (2, 20))
    return np.append(src, [src[0], 5]), np.append(dst, [dst[0], 5])


def awkward_triples(
    rng: np.random.Generator, num_nodes: int = 9, relations: Any = (0, 1, 3), count: int = 30
) -> tuple[np.ndarray, ...]:
    """Return triples with a duplicate; node 3 has none."""
    src, dst = rng.choice([i for i in range(num_nodes) if i != 3], (2, count))
    rel = rng.choice(relations, count)
    src[1], rel[1], dst[1] = src[0], rel[0], dst[0]
    return src, rel, dst


def made_of_rows(jaxpr, rows: int) -> list[str]:
    """Return the primitives that make arrays of `rows` rows and several features, in order."""
    names = []
    for equation in jaxpr.eqns:
        jaxprs = [param.jaxpr for param in equation.params.values() if hasattr(param, "jaxpr")]
        shape = equation.outvars[0].aval.shape
        if jaxprs:
            names += [name for param in jaxprs for name in made_of_rows(param, rows)]
        elif len(shape) == 2 and shape[0] == rows and shape[1] > 1:
            names.append(equation.primitive.name)
    return names


def check_gradient(
    rng: np.random.Generator,
    layer: nnx.Module,
    call: Callable[..., jax.Array],
    formula: Callable[..., np.ndarray],
    *arrays,
) -> None:
    """Compares gradients to float64 parameters and arrays with the slope of the layer's formula.

    Both are functions of (layer, *arrays). The slope is by complex step, exact to rounding, along
    random directions, so that neither the size of a step nor a kink nearby matters: the formula
    must take complex numbers, and order them by their real part.
    """
    # Only parameters and arrays are differentiated; dropouts and their keys are constants.
    graphdef, params, static = nnx.split(layer, nnx.Param, ...)
    values = jax.tree.map(double, (params, *arrays))
    (probe,) = random_like(rng, [formula(layer, *values[1:])], "float64")

    @jax.jit
    def gradient(*values) -> Any:
        def loss(params, *arrays) -> jax.Array:
            return jnp.vdot(call(nnx.merge(graphdef, params, static), *arrays), probe)

        return jax.grad(loss, argnums=tuple(range(len(values))))(*values)

    def plain_loss(params, *arrays) -> np.ndarray:
        return np.sum(formula(nnx.merge(graphdef, params, static), *arrays) * probe)

    # One slope of the formula for each direction, however many parameters there are.
    leaves, structure = jax.tree.flatten(values)
    gradients = jax.tree.leaves(gradient(*values))
    for _ in range(3):
        directions = random_like(rng, leaves, "float64")
        expected = slope(plain_loss, values, structure.unflatten(directions))
        # The error is relative to the sum of all terms, which may cancel each other.
        terms = [np.ravel(g * d) for g, d in zip(gradients, directions, strict=True)]
        terms = np.concatenate(terms)
        assert abs(terms.sum() - expected) <= 1e-11 * np.abs(terms).sum(), (terms.sum(), expected)


# --- All public layers, in few settings ----------------------------------------------------------


class LayerCase(NamedTuple):
    """A layer and a call of it.

    Attributes:
        make: Function from the dtype of the parameters to the layer.
        call: Function of the layer, the operands and the named operands.
        operands: Features and other floating-point operands, in float64; pytrees.
        named: Operands by name.
        kind: The class of a layer that takes a graph and features.
        structure: Graph of the call.
        options: Arguments of the layer's constructor, sizes included.
    """

    make: Callable[[Any], Any]
    call: Callable[..., Any]
    operands: tuple[Any, ...]
    named: dict[str, Any]
    kind: Any = None
    structure: Any = None
    options: Any = None


SIZE, WIDTH = 6, 4
SRC, DST = np.array([0, 1, 2, 3, 3, 4, 5]), np.array([1, 0, 0, 0, 3, 3, 2])  # 1 / 3 is rounded
TRIPLES = SRC, np.array([0, 1, 1, 1, 0, 0, 1]), DST, SIZE, 2
GRAPH = Graph.from_edges(SRC, DST, num_nodes=SIZE)
BATCH = Batch.from_edges([[SRC, DST]], [SIZE])
# Graphs of every kind that layers take, over the same few edges.
BIPARTITE = Graph.from_edges(SRC, DST, num_src=SIZE, num_dst=SIZE + 1)
HYPERGRAPH = Hypergraph.from_incidence(SRC, DST, num_nodes=SIZE, num_hyperedges=SIZE)
DIRECTED = Hypergraph.from_directed(SRC, DST, DST, SRC, num_nodes=SIZE, num_hyperedges=SIZE)
RELATIONAL = RelationalGraph.from_triples(*TRIPLES)
WITH_INVERSE = RelationalGraph.from_triples(*TRIPLES, inverse=True, self_relation=False)
WITH_SELF = RelationalGraph.from_triples(*TRIPLES, self_relation=True)
HETERO = HeteroGraph.from_edges(
    {("a", "r", "b"): [[0, 1, 2, 0], [0, 1, 1, 1]], ("a", "s", "b"): [[1, 1, 2], [0, 2, 2]]},
    {"a": 3, "b": 3},
    inverse=True,
).with_graphs()


def numbers(*shape: int) -> np.ndarray:
    """Return positive numbers that float32 cannot represent."""
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape)


X, OF_EDGES, OF_HYPEREDGES = numbers(SIZE, WIDTH), numbers(len(SRC)), numbers(SIZE)
ENDS, ATTR = (numbers(SIZE, WIDTH), numbers(SIZE + 1, WIDTH)), numbers(len(SRC), 3)
BY_TYPE = {"a": numbers(3, WIDTH), "b": numbers(3, WIDTH)}


def layer_case(
    kind, structure, x=X, options: dict[str, Any] | None = None, **named: Any
) -> LayerCase:
    """Return the case of a layer that takes a graph, features and named operands."""
    sizes = {"in_features": WIDTH, "out_features": 2 * WIDTH}
    if issubclass(kind, layers.Stack):
        # A hidden width equal to the input keeps skip connections in use.
        sizes = {"in_features": WIDTH, "hidden_features": WIDTH, "out_features": 3}
    arguments = sizes | (options or {})

    def make(dtype) -> Any:
        return kind(**arguments, param_dtype=dtype, rngs=nnx.Rngs(0))

    def call(layer, x, **named) -> Any:
        return layer(structure, x, **named)

    return LayerCase(make, call, (x,), named, kind, structure, arguments)


def batch_case(kind, *sizes: int, **options) -> LayerCase:
    """Return the case of a layer that takes a batch of graphs and features."""

    def make(dtype) -> Any:
        arguments = {} if kind is layers.PairNorm else {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
        return kind(WIDTH, *sizes, **arguments, **options)

    return LayerCase(make, lambda layer, x: layer(BATCH, x), (X,), {})


def hetero_case(across: str, **options) -> LayerCase:
    """Return the case of a `HeteroConv` with equal convolutions."""

    def make(dtype) -> Any:
        arguments = options | {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
        convs = {key: layers.SAGEConv(WIDTH, WIDTH, **arguments) for key in HETERO.edge_types}
        return layers.HeteroConv(convs, reduce=across)

    return LayerCase(make, lambda layer, x: layer(HETERO, x), (BY_TYPE,), {})


def of_types(dtype) -> Any:
    """Return a model after maps by type."""
    options: Any = {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
    model = layers.RGCN(WIDTH, WIDTH, 3, num_relations=4, **options)
    return layers.HeteroModel({"a": WIDTH, "b": WIDTH}, model, **options)


def link_predictor(dtype) -> Any:
    """Return a `LinkPredictor` whose decoder has parameters."""
    options: Any = {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
    decoder = layers.ConvE(16, height=4, filters=2, kernel_size=3, **options)
    encoder = layers.CompGCN(WIDTH, WIDTH, 16, num_relations=4, **options)
    return layers.LinkPredictor(SIZE, 4, WIDTH, WIDTH, encoder, decoder, **options)


def link_scores(model, edge_weight) -> Any:
    """Return the scores of a `LinkPredictor`."""
    ids = np.array([2, 0, 3])
    return model.scores(*model.encode(WITH_INVERSE, edge_weight), ids, ids)


def autoencoder(kind) -> LayerCase:
    """Return the case of an autoencoder's loss."""

    def make(dtype) -> Any:
        options: Any = {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
        encoder = layers.GCN(WIDTH, WIDTH, 4, **options)
        return kind(encoder) if kind is layers.GAE else kind(encoder, rngs=nnx.Rngs(0))

    def call(model, x, edge_weight) -> Any:
        edges = np.array([[0, 1, 2], [1, 2, 0]])
        return model.loss(GRAPH, x, edges, edges[::-1], edge_weight=edge_weight)

    return LayerCase(make, call, (X, OF_EDGES), {})


BLOCKS = sample_neighbors(HETERO, {"a": [0, 1]}, (2, 2), jax.random.key(0))


def database_model(dtype) -> Any:
    """Return a `DatabaseModel` of the tables "a" and "b"."""
    options: Any = {"param_dtype": dtype, "rngs": nnx.Rngs(0)}
    encoder = {"numbers": ((1.0, 2.0),) * WIDTH} | options
    encoders = {name: layers.TableEncoder(WIDTH, **encoder) for name in BY_TYPE}
    model = layers.RGCN(WIDTH, WIDTH, 3, num_relations=4, **options)
    return layers.DatabaseModel(encoders, model, rngs=nnx.Rngs(0))


def queries(decoder, subjects, relations) -> Any:
    return decoder(subjects, relations)


def attention(
    g: Any,
    x_src: Node,
    x_dst: Node,
    edge_features: Edge,
    *,
    key: Any = layers.dense("src", "heads"),
    value: Any = layers.axes("src", "out"),
    edge_kernel: Any = layers.axes("edge", "heads"),
    dropout: Any,
) -> Any:
    """Program of a user: attention of as many heads as features."""
    score = g.src(key(x_src)) + jnp.tanh(g.dst(x_dst)).sum(-1) + edge_features @ edge_kernel
    return g.sum(dropout(g, g.softmax(score)).sum(-1) * g.src(x_src @ value))


# One case or more for each public layer, with options that take other paths in kernels.
DROPS = {"attention_dropout_rate": 0.5}
OF_RELATIONS, WITH_ATTR = {"num_relations": 2}, {"edge_in_features": 3}
EPS = {"learn_eps": True, "eps": 0.3}
METHODS = ("source_pairs", "destination_pairs")
LAYERS = {
    "GCN": layer_case(layers.GCN, GRAPH),
    "GCN-weights": layer_case(layers.GCN, GRAPH, edge_weight=OF_EDGES),
    "GIN": layer_case(layers.GIN, GRAPH, options=EPS, edge_weight=OF_EDGES),
    "GIN-batch": layer_case(layers.GIN, GRAPH, numbers(SIZE, 2, WIDTH)),
    "GIN-norm": layer_case(layers.GIN, GRAPH, options=EPS | {"mlp_norm": "batch_norm"}),
    "SAGE": layer_case(layers.SAGE, GRAPH, options={"l2_normalize": True}),
    "SAGE-max": layer_case(
        layers.SAGE, GRAPH, options={"reduce": "max", "project": True}, edge_weight=OF_EDGES
    ),
    "SAGEConv-sum": layer_case(layers.SAGEConv, BIPARTITE, ENDS, {"reduce": "sum"}),
    "GAT": layer_case(layers.GAT, GRAPH, options={"heads": 2, **DROPS}),
    "GAT-attr": layer_case(layers.GAT, GRAPH, options=WITH_ATTR, edge_features=ATTR),
    "GATConv-ends": layer_case(
        layers.GATConv, BIPARTITE, ENDS, {"in_features": (WIDTH, WIDTH), "heads": 2}
    ),
    "GATv2": layer_case(layers.GATv2, GRAPH, options={"heads": 2, "share_weights": True}),
    "GATv2-attr": layer_case(layers.GATv2, GRAPH, options=WITH_ATTR, edge_features=ATTR),
    "GraphTransformer": layer_case(
        layers.GraphTransformer, GRAPH, options={"heads": 2, "gated": True}
    ),
    "GraphTransformer-attr": layer_case(
        layers.GraphTransformer, GRAPH, options=WITH_ATTR, edge_features=ATTR
    ),
    "ProgramModel": layer_case(
        layers.ProgramModel,
        GRAPH,
        options={"function": attention, "widths": {"heads": 2}, "edge_dropout_rate": 0.5}
        | WITH_ATTR,
        edge_features=ATTR,
    ),
    "GINE": layer_case(
        layers.GINE, GRAPH, options=EPS | WITH_ATTR | {"mlp_features": 16}, edge_features=ATTR
    ),
    "GINE-norm": layer_case(
        layers.GINE, GRAPH, options={"mlp_norm": "batch_norm", **WITH_ATTR}, edge_features=ATTR
    ),
    "GatedGCN": layer_case(layers.GatedGCN, GRAPH, options=WITH_ATTR, edge_features=ATTR),
    "PNA": layer_case(layers.PNA, GRAPH, options={"degree_histogram": (2, 3, 1), "towers": 1}),
    "PNA-attr": layer_case(
        layers.PNA, GRAPH, options={"degree_histogram": (2, 3, 1), **WITH_ATTR}, edge_features=ATTR
    ),
    **{
        name: layer_case(getattr(layers, name), GRAPH, options=options, **named)
        for name, options, named in (
            ("ResGatedGraphConv", WITH_ATTR, {"edge_features": ATTR}),
            ("EdgeConv", {"mlp_features": 3}, {}),
            ("NNConv", WITH_ATTR, {"edge_features": ATTR}),
            ("CGConv", {"out_features": WIDTH, **WITH_ATTR}, {"edge_features": ATTR}),
            ("GENConv", WITH_ATTR, {"edge_features": ATTR}),
        )
    },
    "SimpleHGN": layer_case(
        layers.SimpleHGN, RELATIONAL, options=OF_RELATIONS | DROPS | {"heads": 2, "num_layers": 3}
    ),
    "HEAT": layer_case(
        layers.HEAT,
        HETERO.relational,
        options={"num_node_types": 2, "num_relations": 4, "edge_map_features": 3}
        | WITH_ATTR
        | DROPS,
        edge_features=numbers(HETERO.relational.num_edges, 3),
    ),
    "FiLMConv": layer_case(layers.FiLMConv, RELATIONAL, options=OF_RELATIONS),
    "RGINConv": layer_case(layers.RGINConv, RELATIONAL, options=OF_RELATIONS),
    "CFConv": layer_case(
        layers.CFConv, GRAPH, options=WITH_ATTR, edge_features=ATTR, distance=OF_EDGES
    ),
    "EGNNConv": layer_case(
        layers.EGNNConv, GRAPH, options=WITH_ATTR, edge_features=ATTR, pos=numbers(SIZE, 3)
    ),
    "PaiNNConv": layer_case(
        layers.PaiNNConv,
        GRAPH,
        options={"out_features": WIDTH},
        vectors=numbers(SIZE, 3, WIDTH),
        pos=np.random.default_rng(0).normal(size=(SIZE, 3)),
    ),
    "AGNNConv": layer_case(layers.AGNNConv, GRAPH, options={"out_features": WIDTH}),
    "FAConv": layer_case(
        layers.FAConv, GRAPH, options={"out_features": WIDTH, **DROPS}, x0=numbers(SIZE, WIDTH)
    ),
    "GMMConv": layer_case(
        layers.GMMConv, GRAPH, options={"kernel_size": 2, **WITH_ATTR}, edge_features=ATTR
    ),
    "PDNConv": layer_case(layers.PDNConv, GRAPH, options=WITH_ATTR, edge_features=ATTR),
    **{
        f"SuperGATConv-{kind}": layer_case(
            layers.SuperGATConv, GRAPH, options={"attention_type": kind, "heads": 2, **DROPS}
        )
        for kind in ("MX", "SD")
    },
    **{
        kind.__name__: layer_case(
            kind, GRAPH, options={"add_self_loops": True}, pos=numbers(SIZE, 3)
        )
        for kind in (layers.PointNetConv, layers.PointTransformerConv)
    },
    "HGNN": layer_case(
        layers.HGNN, HYPERGRAPH, options={"num_hyperedges": SIZE}, hyperedge_weight=OF_HYPEREDGES
    ),
    "HGNN-narrow": layer_case(
        layers.HGNN, HYPERGRAPH, options={"use_bias": False}, incidence_weight=OF_EDGES
    ),
    "HGNNP": layer_case(layers.HGNNP, DIRECTED),
    "HypergraphAttention": layer_case(
        layers.HypergraphAttention,
        HYPERGRAPH,
        options={"heads": 2, "softmax_by": "hyperedge", **DROPS},
        hyperedge_weight=OF_HYPEREDGES,
    ),
    "HypergraphAttention-attr": layer_case(
        layers.HypergraphAttention,
        HYPERGRAPH,
        options={"heads": 2, "concat": False, "degrees": "attention"},
        hyperedge_features=X,
    ),
    "UniGIN": layer_case(layers.UniGIN, HYPERGRAPH, options=EPS),
    "UniGIN-max": layer_case(
        layers.UniGIN, HYPERGRAPH, options={"hyperedge_reduce": "max", "learn_eps": False}
    ),
    "UniSAGE": layer_case(layers.UniSAGE, HYPERGRAPH, options={"l2_normalize": True}),
    "UniSAGE-min": layer_case(layers.UniSAGE, HYPERGRAPH, options={"node_reduce": "min"}),
    "UniGAT": layer_case(layers.UniGAT, HYPERGRAPH, options={"heads": 2, **DROPS}),
    "UniGAT-skip": layer_case(
        layers.UniGAT,
        HYPERGRAPH,
        options={"heads": 2, "concat": False, "residual": True, "l2_normalize": True},
    ),
    "UniGCNII": layer_case(layers.UniGCNII, HYPERGRAPH),
    "AllDeepSets": layer_case(layers.AllDeepSets, HYPERGRAPH, options={"reduce": "mean"}),
    "AllSetTransformer": layer_case(layers.AllSetTransformer, HYPERGRAPH, options={"heads": 2}),
    "RGCN": layer_case(layers.RGCN, WITH_SELF, options=OF_RELATIONS),
    "RGCN-bases": layer_case(layers.RGCN, RELATIONAL, options=OF_RELATIONS | {"num_bases": 1}),
    "RGCNConv-blocks": layer_case(
        layers.RGCNConv, RELATIONAL, options=OF_RELATIONS | {"num_blocks": 2}, edge_weight=OF_EDGES
    ),
    **{
        f"{kind.__name__}-{way}": layer_case(
            kind, RELATIONAL, options=OF_RELATIONS | {"heads": 2, "method": way}
        )
        for kind in (layers.RGAT, layers.HGT)
        for way in METHODS
    },
    "RGAT-attr": layer_case(
        layers.RGAT,
        RELATIONAL,
        options=OF_RELATIONS
        | {"attention": "multiplicative", "softmax": "within", "num_bases": 2}
        | WITH_ATTR
        | DROPS,
        edge_features=ATTR,
    ),
    "HGT-widths": layer_case(
        layers.HGT,
        HETERO.relational,
        {"a": numbers(3, WIDTH), "b": numbers(3, WIDTH + 1)},
        {
            "in_features": {"a": WIDTH, "b": WIDTH + 1},
            "node_types": ("a", "b"),
            "num_relations": 4,
            "relation_ends": HETERO.edge_types,
        },
    ),
    **{
        f"CompGCN-{composition}": layer_case(
            layers.CompGCN,
            WITH_INVERSE,
            options={"num_relations": 4, "composition": composition},
            relations=numbers(4, WIDTH),
        )
        for composition in ("sub", "mult", "corr")
    },
    "HeteroConv-sum": hetero_case("sum"),
    "HeteroConv-max": hetero_case("max", reduce="sum"),
    "HeteroConv-alone": hetero_case("mean", l2_normalize=True, self_weight=False),
    "HeteroStack": LayerCase(
        lambda dtype: layers.to_hetero(
            layers.GAT(1, WIDTH, 3, heads=2, param_dtype=dtype, rngs=nnx.Rngs(0)),
            *(HETERO, {"a": WIDTH, "b": WIDTH}),
            rngs=nnx.Rngs(0),
        ),
        lambda layer, x: layer(HETERO, x),
        (BY_TYPE,),
        {},
    ),
    "HeteroModel": LayerCase(of_types, lambda layer, x: layer(HETERO, x), (BY_TYPE,), {}),
    "HAN": LayerCase(
        lambda dtype: layers.HAN(
            *({"a": WIDTH, "b": WIDTH}, WIDTH, 3),
            **{"edge_types": HETERO.edge_types, "heads": 2},
            **{"param_dtype": dtype, "rngs": nnx.Rngs(0)},
        ),
        lambda layer, x: layer(HETERO, x),
        (BY_TYPE,),
        {},
    ),
    "GPSConv": LayerCase(
        lambda dtype: layers.GPSConv(
            *(WIDTH, layers.GINEConv(WIDTH, WIDTH, param_dtype=dtype, rngs=nnx.Rngs(0))),
            **{"heads": 2, "param_dtype": dtype, "rngs": nnx.Rngs(0)},
        ),
        lambda layer, x: layer(BATCH, x),
        (X,),
        {},
    ),
    "AttentionReadout": batch_case(layers.AttentionReadout),
    "Set2Set": batch_case(layers.Set2Set, num_steps=2),
    "TopKReadout": batch_case(layers.TopKReadout, k=2),
    "GraphLayerNorm": batch_case(layers.GraphLayerNorm),
    "GraphNorm": batch_case(layers.GraphNorm),
    "PairNorm": batch_case(layers.PairNorm, scale=2.0, individually=True),
    "GINClassifier": batch_case(layers.GINClassifier, WIDTH, 3, num_layers=2, learn_eps=True),
    "SchNet": batch_case(
        layers.SchNet, 8, 1, num_layers=2, num_filters=6, num_gaussians=5, cutoff=4.0
    ),
    "GraphClassifier": batch_case(layers.GraphClassifier, WIDTH, 3, num_layers=2, layers="GCN"),
    "MLP": LayerCase(
        lambda dtype: layers.MLP([WIDTH, WIDTH, 3], param_dtype=dtype, rngs=nnx.Rngs(0)),
        lambda layer, x: layer(x),
        (X,),
        {},
    ),
    "TableEncoder": LayerCase(
        lambda dtype: layers.TableEncoder(
            3,
            **{"numbers": ((1.0, 2.0),) * WIDTH, "num_categories": (2,), "num_cycles": 1},
            **{"param_dtype": dtype, "rngs": nnx.Rngs(0)},
        ),
        lambda layer, x, c: layer({"numbers": x, "categories": TRIPLES[1][:6, None], "cycles": c}),
        (X, numbers(SIZE, 1, 6)),
        {},
    ),
    "DatabaseModel": LayerCase(
        database_model,
        lambda model, x: model(BLOCKS, {name: {"numbers": rows} for name, rows in x.items()}),
        (BY_TYPE,),
        {},
    ),
    "TypedLinear": LayerCase(
        lambda dtype: layers.TypedLinear(3, WIDTH, 2 * WIDTH, param_dtype=dtype, rngs=nnx.Rngs(0)),
        lambda layer, x: layer(x, np.array([2, 0, 1, 1, 0, 2])),
        (X,),
        {},
    ),
    "GAE": autoencoder(layers.GAE),
    "VGAE": autoencoder(layers.VGAE),
    "DistMult": LayerCase(lambda dtype: layers.DistMult(), queries, (X, X), {}),
    "ComplEx": LayerCase(lambda dtype: layers.ComplEx(), queries, (X, X), {}),
    "InnerProductDecoder": LayerCase(
        lambda dtype: layers.InnerProductDecoder(), queries, (X, X), {}
    ),
    "MLPDecoder": LayerCase(
        lambda dtype: layers.MLPDecoder(WIDTH, 3, param_dtype=dtype, rngs=nnx.Rngs(0)),
        queries,
        (X, X),
        {},
    ),
    "ConvE": LayerCase(
        lambda dtype: layers.ConvE(
            16, height=4, filters=2, kernel_size=3, param_dtype=dtype, rngs=nnx.Rngs(0)
        ),
        queries,
        (numbers(3, 16), numbers(3, 16)),
        {},
    ),
    "LinkPredictor": LayerCase(link_predictor, link_scores, (numbers(WITH_INVERSE.num_edges),), {}),
}
