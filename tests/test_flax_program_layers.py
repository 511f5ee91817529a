"""Layers made of programs: PyG's layers with the same weights, and layers of a user's program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import flax_layers as layers
from flax_layers.gps import attention_within_graphs
from jax_gnn import Batch, Graph, HeteroGraph, RelationalGraph

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric.nn")
schnet = pytest.importorskip("torch_geometric.nn.models.schnet")

# --- PyG's layers --------------------------------------------------------------------------------


class Peer(NamedTuple):
    """A layer and PyG's.

    Attributes:
        ours: Function of the features of sources and destinations that makes the layer.
        theirs: The same for PyG's.
        names: Their parameter or module for each of ours.
        edges: Features per edge.
        ends: Features of sources and of destinations.
        is_bipartite: Whether PyG's takes a pair.
        relations: Number of relations of the edges; 0 for a plain graph.
        has_lengths: Whether edges have lengths.
        dimensions: Coordinates of the nodes' positions; 0 without.
    """

    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    names: dict[str, Any]
    edges: int = 0
    ends: tuple[int, int] = (4, 6)
    is_bipartite: bool = True
    relations: int = 0
    has_lengths: bool = False
    dimensions: int = 0


def peer(kind: str, options: dict[str, Any], theirs: Callable[[Any], Any], **fields: Any) -> Peer:
    """Return the case of a layer of 8 output features."""
    width = fields.pop("width", 8)
    edges = options.get("edge_in_features", 0)

    def make(ends: Any) -> Any:
        return getattr(layers, kind)(
            ends, width, **options, param_dtype=jnp.float64, rngs=nnx.Rngs(0)
        )

    return Peer(make, theirs, **{"edges": edges, **fields})


def mlp(*sizes: int, between: Any = torch.nn.ReLU) -> Any:
    """Return a perceptron of PyTorch."""
    parts = [part for pair in pairwise(sizes) for part in (torch.nn.Linear(*pair), between())]
    return torch.nn.Sequential(*parts[:-1])


EDGES = {"edge_in_features": 3}
SAME = {"ends": (4, 4)}
DEGREES = [1, 2, 0, 3, 1]
PNA_PEER = {"aggregators": ["mean", "min", "max", "std"], "deg": torch.tensor(DEGREES)}
PNA_NAMES = {"pre": "pre_nns", "post": "post_nns", "output": "lin"}
SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
GATES = {"key": "lin_key", "query": "lin_query", "value": "lin_value"}
GAUSSIANS = {"kernel": "g", "mean": "mu", "deviation": "sigma"}  # not transposed
PEERS = {
    "GINEConv": peer(
        "GINEConv",
        EDGES | {"eps": 0.3, "learn_eps": True, "mlp_features": 5},
        lambda ends: pyg.GINEConv(mlp(4, 5, 8), eps=0.3, train_eps=True, edge_dim=3),
        names={"edge": "lin", "built_mlp.layers": "nn", "learned_eps": "eps"},
        **SAME,
    ),
    "GINEConv-wide": peer(
        "GINEConv",
        {"edge_in_features": 4, "edge_map": False},
        lambda ends: pyg.GINEConv(mlp(4, 8, 8)),
        names={"built_mlp.layers": "nn"},
        **SAME,
    ),
    "ResGatedGraphConv": peer(
        "ResGatedGraphConv",
        EDGES,
        lambda ends: pyg.ResGatedGraphConv(ends, 8, edge_dim=3),
        names=GATES | {"root": "lin_skip.weight", "bias": "bias"},
    ),
    "ResGatedGraphConv-alone": peer(
        "ResGatedGraphConv",
        {"self_weight": False},
        lambda ends: pyg.ResGatedGraphConv(ends, 8, root_weight=False),
        names=GATES | {"bias": "bias"},
    ),
    "CGConv": peer(
        "CGConv",
        EDGES | {"reduce": "mean"},
        lambda ends: pyg.CGConv(ends, 3, aggr="mean"),
        names={"gate": "lin_f", "core": "lin_s"},
        width=6,
        ends=(4, 6),
    ),
    "EdgeConv": peer(
        "EdgeConv", {}, lambda ends: pyg.EdgeConv(mlp(8, 8, 8)), names={"mlp": "nn"}, **SAME
    ),
    "NNConv": peer(
        "NNConv",
        EDGES | {"mlp_features": 5},
        lambda ends: pyg.NNConv(ends, 8, mlp(3, 5, ends[0] * 8)),
        names={"mlp": "nn", "root": "lin.weight", "bias": "bias"},
    ),
    "PNAConv": peer(
        "PNAConv",
        {"degree_histogram": DEGREES} | EDGES,
        lambda ends: pyg.PNAConv(4, 8, scalers=SCALERS[:3], edge_dim=3, **PNA_PEER),
        names=PNA_NAMES | {"edge": "edge_encoder"},
        is_bipartite=False,
        **SAME,
    ),
    "PNAConv-towers": peer(
        "PNAConv",
        {"degree_histogram": DEGREES, "scalers": SCALERS[1:], "towers": 2, "divide_input": True}
        | {"pre_layers": 2, "post_layers": 2},
        lambda ends: pyg.PNAConv(
            *(4, 8),
            **{"scalers": SCALERS[1:], "towers": 2, "divide_input": True, **PNA_PEER},
            **{"pre_layers": 2, "post_layers": 2},
        ),
        names=PNA_NAMES,
        is_bipartite=False,
        **SAME,
    ),
    "GENConv": peer(
        "GENConv",
        EDGES | {"t": 0.7, "learn_t": True, "mlp_norm": None, "mlp_layers": 3},
        lambda ends: pyg.GENConv(ends, 8, t=0.7, learn_t=True, norm=None, num_layers=3, edge_dim=3),
        names={"source": "lin_src", "root": "lin_dst", "edge": "lin_edge"}
        | {"built_mlp.layers": "mlp", "learned_t": "aggr_module.t"},
    ),
    "GENConv-power": peer(
        "GENConv",
        {"reduce": "power", "p": 1.5, "learn_p": True, "msg_norm": True, "mlp_norm": None}
        | {"learn_msg_scale": True, "use_bias": True},
        lambda ends: pyg.GENConv(
            *(ends, 8, "powermean"),
            **{"p": 1.5, "learn_p": True, "msg_norm": True, "learn_msg_scale": True},
            **{"norm": None, "bias": True},
        ),
        names={"source": "lin_src", "root": "lin_dst", "built_mlp.layers": "mlp"}
        | {"learned_p": "aggr_module.p", "learned_scale": "msg_norm.scale"},
    ),
    "CFConv": peer(
        "CFConv",
        EDGES | {"mlp_features": 5, "cutoff": 2.0},
        lambda ends: schnet.CFConv(4, 8, 5, mlp(3, 5, 5, between=schnet.ShiftedSoftplus), 2.0),
        names={"kernel": "lin1.weight", "filters": "nn", "output": "lin2"},
        is_bipartite=False,
        has_lengths=True,
        **SAME,
    ),
    "AGNNConv": peer(
        "AGNNConv",
        {},
        lambda ends: pyg.AGNNConv(),
        names={"beta": "beta"},
        width=4,
        is_bipartite=False,
        **SAME,
    ),
    **{
        f"SuperGATConv-{kind}": peer(
            "SuperGATConv",
            {"attention_type": kind, "heads": 2, "add_self_loops": kind == "MX"},
            lambda ends, kind=kind: pyg.SuperGATConv(
                *(4, 4, 2), attention_type=kind, add_self_loops=kind == "MX"
            ),
            names={"kernel": "lin.weight", "bias": "bias"}
            | ({"src_attention": "att_l", "dst_attention": "att_r"} if kind == "MX" else {}),
            is_bipartite=False,
            **SAME,
        )
        for kind in ("MX", "SD")
    },
    "GMMConv": peer(
        "GMMConv",
        EDGES | {"kernel_size": 2},
        lambda ends: pyg.GMMConv(ends, 8, 3, 2),
        names={name: lambda m, n=n: (getattr(m, n),) for name, n in GAUSSIANS.items()}
        | {"root": "root.weight", "bias": "bias"},
    ),
    **{
        f"PDNConv-{normalization}": peer(
            "PDNConv",
            EDGES | {"mlp_features": 5, "normalization": normalization},
            lambda ends, is_scaled=normalization is not None: pyg.PDNConv(
                4, 8, 3, 5, normalize=is_scaled
            ),
            names={"kernel": "lin.weight", "mlp": "mlp", "bias": "bias"},
            is_bipartite=False,
            **SAME,
        )
        for normalization in ("symmetric", None)
    },
    **{
        f"PointNetConv-{loops}": peer(
            "PointNetConv",
            {"mlp_features": 5, "dimensions": 2, "add_self_loops": loops},
            lambda ends, loops=loops: pyg.PointNetConv(
                mlp(ends[0] + 2, 5, 5), torch.nn.Linear(5, 8), add_self_loops=loops
            ),
            names={"local": "local_nn", "output": "global_nn"},
            dimensions=2,
            is_bipartite=not loops,
        )
        for loops in (True, False)
    },
    **{
        f"PointTransformerConv-{loops}": peer(
            "PointTransformerConv",
            {"attention_mlp": loops, "add_self_loops": loops, "mlp_features": 5},
            lambda ends, loops=loops: pyg.PointTransformerConv(
                ends, 8, attn_nn=mlp(8, 5, 8) if loops else None, add_self_loops=loops
            ),
            names={"value": "lin.weight", "key": "lin_src.weight", "query": "lin_dst.weight"}
            | {"position": "pos_nn"}
            | ({"attention": "attn_nn"} if loops else {}),
            dimensions=3,
            is_bipartite=not loops,
        )
        for loops in (True, False)
    },
    **{
        f"FiLMConv-{reduce}": peer(
            "FiLMConv",
            {"num_relations": 3, "reduce": reduce},
            lambda ends, aggr=aggr: pyg.FiLMConv(ends, 8, num_relations=3, aggr=aggr),
            names={
                "kernel": lambda theirs: [lin.weight for lin in theirs.lins],
                "film": lambda theirs: [lin.weight for lin in theirs.films],
                "film_bias": lambda theirs: [lin.bias for lin in theirs.films],
                "root": "lin_skip.weight",
                "root_film": "film_skip.weight",
            },
            relations=3,
        )
        for reduce, aggr in (("mean", "mean"), ("sum", "add"))
    },
}


def parameters(ours: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield our parameters, and PyG's with the axes of ours."""
    if isinstance(theirs, torch.nn.Module):
        parts = [m for m in theirs.children() if [*m.parameters()]]
        maps = ours if isinstance(ours, nnx.List) else [ours]
        if parts:
            for part, other in zip(maps, parts, strict=True):
                yield from parameters(part, other)
        elif isinstance(ours, nnx.List):
            yield from parameters(ours[0], theirs)
        else:
            yield ours.kernel, theirs.weight
            if theirs.bias is not None:
                yield ours.bias, theirs.bias
    else:
        yield ours, theirs


def attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


def pairs(case: Peer, ours: Any, theirs: Any) -> Iterator[tuple[Any, Any]]:
    for name, other in case.names.items():
        part = other(theirs) if callable(other) else attribute(theirs, other)
        yield from parameters(attribute(ours, name), part)


def array(parameter: Any, like: Any) -> np.ndarray:
    """Return numbers of PyTorch in the shape of ours.

    Matrices are transposed, unless they are in a tuple. Of a list each one is a part of ours.
    """
    if isinstance(parameter, tuple):
        return parameter[0].detach().numpy().reshape(like.shape)
    if isinstance(parameter, list):
        return np.stack([array(part, one) for part, one in zip(parameter, like, strict=True)])
    numbers = parameter.detach().numpy()
    numbers = numbers.T if numbers.ndim == 2 and numbers.shape[0] != 1 else numbers
    return numbers.reshape(like.shape)


def gradient(parameter: Any) -> Any:
    if isinstance(parameter, list | tuple):
        return type(parameter)(p.grad for p in parameter)
    return parameter.grad


def close(actual: Any, expected: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-7 * scale)


@pytest.mark.parametrize("is_bipartite", [False, True])
@pytest.mark.parametrize("name", PEERS)
def test_equals_pyg(rng: np.random.Generator, name: str, is_bipartite: bool) -> None:
    """Values, and gradients to features and parameters; the last destination has no edges."""
    with jax.enable_x64(True):
        check_peer(rng, name, is_bipartite)


def check_peer(rng: np.random.Generator, name: str, is_bipartite: bool) -> None:
    case = PEERS[name]
    if is_bipartite and not case.is_bipartite:
        pytest.skip("PyG's layer takes no pair")
    ends = case.ends if is_bipartite else (case.ends[1],) * 2
    sizes = (7, 5) if is_bipartite and not case.relations else (6, 6)
    src, dst = rng.integers(sizes[0], size=20), rng.integers(sizes[1] - 1, size=20)
    src = np.where(src == dst, (src + 1) % sizes[0], src)
    graph: Any = Graph.from_edges(src, dst, num_src=sizes[0], num_dst=sizes[1])
    rel = rng.integers(max(case.relations, 1), size=20)
    if case.relations:
        graph = RelationalGraph.from_triples(src, rel, dst, 6, case.relations)
    elif not is_bipartite:
        graph = Graph.from_edges(src, dst, num_nodes=6)
    lengths = rng.uniform(0.5, 2, size=20)
    torch.manual_seed(int(rng.integers(1 << 30)))
    ours, theirs = case.ours(ends if is_bipartite else ends[0]), case.theirs(ends).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.3)
    for param, other in pairs(case, ours, theirs):
        param[...] = array(other, param)
    assert sum(p.size for p in jax.tree.leaves(nnx.state(ours, nnx.Param))) == sum(
        p.numel() for p in theirs.parameters()
    )
    x = [rng.normal(size=(n, k)) for n, k in zip(sizes, ends, strict=True)]
    e = rng.normal(size=(20, case.edges))
    their_x = [torch.tensor(rows, requires_grad=True) for rows in x]
    their_e = torch.tensor(e, requires_grad=True)
    edge_index = torch.tensor(np.stack([src, dst]))
    features = tuple(their_x) if is_bipartite else their_x[0]
    pos = [rng.normal(size=(n, case.dimensions)) for n in sizes]
    points = tuple(pos) if is_bipartite else pos[0]
    their_points = [jax.tree.map(torch.tensor, points)] * (case.dimensions > 0)
    arrays = (
        their_points + [torch.tensor(lengths)] * case.has_lengths + [their_e] * (case.edges > 0)
    )
    arrays += [torch.tensor(rel)] * (case.relations > 0)
    before, after = arrays[: len(their_points)], arrays[len(their_points) :]
    expected = theirs(features, *before, edge_index, *after)
    probe = rng.normal(size=expected.shape)
    (expected * torch.tensor(probe)).sum().backward()

    def loss(layer: Any, x: Any, e: Any) -> Any:
        rows = tuple(x) if is_bipartite else x[0]
        named = {"distance": graph.edge_values(lengths)} if case.has_lengths else {}
        named |= {"pos": points} if case.dimensions else {}
        y = layer(graph, rows, *([graph.edge_values(e)] if case.edges else []), **named)
        return jnp.vdot(y, probe), y

    (_, y), (gradients, dx, de) = nnx.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(
        ours, x, e
    )
    close(y, expected.detach().numpy())
    for actual, other in zip(dx[: 1 + is_bipartite], their_x, strict=False):
        close(actual, np.zeros(other.shape) if other.grad is None else other.grad.numpy())
    if case.edges:
        close(de, their_e.grad.numpy())
    graphdef, _, rest = nnx.split(ours, nnx.Param, ...)
    for param, other in pairs(case, nnx.merge(graphdef, gradients, rest), theirs):
        close(param[...], array(gradient(other), param))


@pytest.mark.parametrize("loops", [True, False])
def test_fa_equals_pyg(rng: np.random.Generator, loops: bool) -> None:
    """PyG's takes the first features before the edges."""
    src, dst = rng.integers(6, size=20), rng.integers(5, size=20)
    src = np.where(src == dst, (src + 1) % 6, src)
    graph, edge_index = Graph.from_edges(src, dst, num_nodes=6), torch.tensor(np.stack([src, dst]))
    x, x0 = rng.normal(size=(2, 6, 4)).astype(np.float32)
    ours = layers.FAConv(4, 4, eps=0.3, add_self_loops=loops, rngs=nnx.Rngs(0))
    theirs = pyg.FAConv(4, eps=0.3, add_self_loops=loops)
    for param, other in ((ours.src_attention, theirs.att_l), (ours.dst_attention, theirs.att_r)):
        param[...] = other.weight.detach().numpy().T
    expected = theirs(torch.tensor(x), torch.tensor(x0), edge_index).detach().numpy()
    np.testing.assert_allclose(ours(graph, x, x0), expected, rtol=1e-5, atol=1e-6)
    scale = layers.gcn_norm(graph, add_self_loops=loops)
    np.testing.assert_allclose(ours(graph, x, x0, scale), expected, rtol=1e-5, atol=1e-6)


def test_attention_loss_equals_pyg(rng: np.random.Generator) -> None:
    src, dst, no_src, no_dst = rng.integers(6, size=(4, 9))
    graph, negative = (
        Graph.from_edges(*ends, num_nodes=6) for ends in ((src, dst), (no_src, no_dst))
    )
    x = rng.normal(size=(6, 4)).astype(np.float32)
    for kind in ("MX", "SD"):
        ours = layers.SuperGATConv(4, 8, heads=2, attention_type=kind, rngs=nnx.Rngs(0))
        theirs = pyg.SuperGATConv(4, 4, 2, attention_type=kind, add_self_loops=False)
        ours.kernel[...] = theirs.lin.weight.detach().numpy().T
        edges, no_edges = (torch.tensor(np.stack(ends)) for ends in ((src, dst), (no_src, no_dst)))
        theirs(torch.tensor(x), edges, neg_edge_index=no_edges)
        expected = float(theirs.get_attention_loss().detach())
        actual = ours.attention_loss(graph, negative.pad(num_nodes=6, num_edges=12), x)
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


# --- Layers of other containers -------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"param_dtype": jnp.float64, "rngs": nnx.Rngs(0)}


def check_equal(ours: Any, theirs: Any, names: dict[str, Any], ours_call: Any, call: Any, x: Any):
    """Copy parameters, and compare results and gradients to parameters and to x, by a pytree."""
    theirs = theirs.double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, 0.5, 0.3)
    case = Peer(None, None, names)  # type: ignore[arg-type]
    for param, other in pairs(case, ours, theirs):
        param[...] = array(other, param)
    their_x = jax.tree.map(lambda rows: torch.tensor(rows, requires_grad=True), x)
    expected = call(theirs, their_x)
    probes = [np.cos(np.arange(y.numel())).reshape(y.shape) for y in jax.tree.leaves(expected)]
    terms = zip(jax.tree.leaves(expected), probes, strict=True)
    sum((y * torch.tensor(probe)).sum() for y, probe in terms).backward()

    def loss(layer: Any, x: Any) -> Any:
        y = ours_call(layer, x)
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(y), probes, strict=True)), y

    (_, y), (gradients, dx) = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(ours, x)
    for actual, other in zip(jax.tree.leaves(y), jax.tree.leaves(expected), strict=True):
        close(actual, other.detach().numpy())
    for actual, other in zip(jax.tree.leaves(dx), jax.tree.leaves(their_x), strict=True):
        close(actual, other.grad.numpy())
    graphdef, _, rest = nnx.split(ours, nnx.Param, ...)
    for param, other in pairs(case, nnx.merge(graphdef, gradients, rest), theirs):
        close(param[...], array(gradient(other), param))


@pytest.mark.parametrize("concat", [True, False])
def test_heat_equals_pyg(rng: np.random.Generator, concat: bool) -> None:
    src, dst, rel = rng.integers(6, size=20), rng.integers(5, size=20), rng.integers(3, size=20)
    types = rng.integers(2, size=6)
    x = {"x": rng.normal(size=(6, 4)), "e": rng.normal(size=(20, 3))}
    sizes = {"heads": 2, "concat": concat, "negative_slope": 0.3}
    edges, rest = torch.tensor(np.stack([src, dst])), (torch.tensor(types), torch.tensor(rel))
    with jax.enable_x64(True):
        graph = RelationalGraph.from_triples(src, rel, dst, 6, 3)
        features = {"relation_features": 5, "edge_in_features": 3, "edge_map_features": 2}
        kinds: Any = {"num_node_types": 2, "num_relations": 3}
        ours = layers.HEATConv(4, 8, **kinds, **features, **sizes, **OPTIONS)
        names: dict[str, Any] = {
            "types.kernel": lambda m: (m.hetero_lin.weight,),
            "types.bias": lambda m: (m.hetero_lin.bias,),
            "embedding": lambda m: (m.edge_type_emb.weight,),
            "edge": "edge_attr_emb",
            "attention": "att.weight",
            "value": "lin",
        }
        check_equal(
            *(ours, pyg.HEATConv(4, 4 if concat else 8, 2, 3, 5, 3, 2, **sizes), names),
            lambda m, x: m(graph, x["x"], graph.edge_values(x["e"]), node_types=types),
            lambda m, x: m(x["x"], edges, *rest, x["e"]),
            x,
        )


def test_han_equals_pyg(rng: np.random.Generator) -> None:
    """Two types of edges run into one type of nodes; one of them is within it."""
    sizes, widths = {"a": 5, "b": 4}, {"a": 3, "b": 6}
    keys = ("a", "to", "b"), ("b", "back", "a"), ("a", "near", "a"), ("a", "far", "a")
    edges = {
        key: np.stack([rng.integers(sizes[key[0]], size=9), rng.integers(sizes[key[2]], size=9)])
        for key in keys
    }
    x = {name: rng.normal(size=(sizes[name], width)) for name, width in widths.items()}
    with jax.enable_x64(True):
        graph = HeteroGraph.from_edges(edges, sizes).with_graphs()
        ours = layers.HANConv(widths, 8, edge_types=keys, heads=2, **OPTIONS)
        theirs = pyg.HANConv(widths, 8, ([*sizes], [*keys]), heads=2)
        names: dict[str, Any] = {"semantic": "k_lin", "query": lambda m: (m.q,)}
        for (i, key), end in itertools.product(enumerate(keys), ("src", "dst")):
            names[f"{end}_attention.members.{i}"] = lambda m, key=key, end=end: (
                getattr(m, f"lin_{end}")["__".join(key)],
            )
        names |= {f"input.layers.members.{i}": f"proj.{name}" for i, name in enumerate(widths)}
        tensors = {key: torch.tensor(ids) for key, ids in edges.items()}
        check_equal(
            *(ours, theirs, names),
            lambda m, x: m(graph, x, return_attention=True),
            lambda m, x: m(x, tensors, return_semantic_attention_weights=True),
            x,
        )


def test_types_without_nodes():
    """A type without nodes changes nothing, and has finite gradients."""
    key, empty = ("a", "to", "b"), ("b", "none", "c")
    x = {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 4)), "c": jnp.ones((0, 5))}
    conv = layers.HANConv(
        {"a": 3, "b": 4, "c": 5}, 8, edge_types=[key, empty], heads=2, rngs=nnx.Rngs(0)
    )
    edges = {key: ([0, 1], [1, 1]), empty: ([], [])}
    graph = HeteroGraph.from_edges(edges, {"a": 2, "b": 2, "c": 0}).with_graphs()
    gradients = nnx.grad(lambda conv: sum(jnp.sum(y) for y in conv(graph, x).values()))(conv)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert conv(graph, x)["c"].shape == (0, 8)
    attention = layers.GPSConv(4, heads=2, rngs=nnx.Rngs(0))
    none = Batch.from_edges([[[], []]], [0])
    assert attention(none, jnp.ones((0, 4))).shape == (0, 4)


def test_weights_of_messages(rng):
    """A message of weight 2 is that of two edges."""
    (src, dst), weight = rng.integers(9, size=(2, 20)), rng.integers(1, 4, 20)
    ids = np.repeat(np.arange(20), weight)
    conv = layers.GINEConv(4, 8, edge_in_features=3, rngs=nnx.Rngs(0))
    x, attr = (rng.normal(size=shape).astype(np.float32) for shape in ((9, 4), (20, 3)))
    once = Graph.from_edges(src, dst, num_nodes=9)
    repeated = Graph.from_edges(src[ids], dst[ids], num_nodes=9)
    weights = once.edge_values(weight.astype(np.float32))
    y = conv(once, x, once.edge_values(attr), edge_weight=weights)
    want = conv(repeated, x, repeated.edge_values(attr[ids]))
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(TypeError, match="edge_weight must be an input of the program"):
        layers.GENConv(4, 8, rngs=nnx.Rngs(0))(once, x, edge_weight=weights)
    with pytest.raises(ValueError, match=r"edge_weight must have shape \(num_edges, ..., \) = "):
        conv(once, x, once.edge_values(attr), edge_weight=weights[:3])


@pytest.mark.parametrize("max_nodes", [17, 24, None])
@pytest.mark.parametrize("others", [5, 60])
def test_attention_within_graphs(rng: np.random.Generator, others: int, max_nodes: Any) -> None:
    """Many small graphs beside a large one are cut into tiles; few are padded."""
    sizes = [*rng.integers(0, 4, others // 2), 17, *rng.integers(1, 4, others // 2)]
    none = [np.zeros((2, 0), int)] * len(sizes)
    count = sum(sizes)
    with jax.enable_x64(True):
        batch = Batch.from_edges(none, sizes, num_nodes=count + 9, num_graphs=len(sizes) + 2)
        rows = jnp.asarray(rng.normal(size=(3, count + 9, 2, 5)))

        def reference(rows: Any) -> Any:
            """Attention of each graph alone."""
            ends, results = np.cumsum(sizes), []
            for start, end in zip(ends - sizes, ends, strict=True):
                query, key, value = rows[:, start:end]
                scores = jnp.einsum("qhd,khd->hqk", query, key) / np.sqrt(5)
                results.append(jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), value))
            return jnp.concatenate(results)

        def attend(rows: Any, max_nodes: Any = max_nodes) -> Any:
            return attention_within_graphs(batch, *rows, max_nodes)

        y, want = attend(rows), reference(rows)
        np.testing.assert_allclose(y[:count], want, rtol=1e-12, atol=1e-12)
        assert jnp.isfinite(y).all()
        grads = (
            jax.grad(lambda rows, f=f: jnp.sum(jnp.sin(f(rows)[:count])))(rows)
            for f in (attend, jax.jit(attend), reference)
        )
        first, second, expected = grads
        np.testing.assert_allclose(first, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(second, expected, rtol=1e-12, atol=1e-12)
        is_large = np.repeat(sizes, sizes) > 16
        cut = attend(rows, 16)[:count]
        assert jnp.isnan(cut[is_large]).all()
        np.testing.assert_allclose(cut[~is_large], want[~is_large], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("nodes", "dtype"), [(80, "bfloat16"), (80, "float32"), (64, "bfloat16")])
def test_attention_of_large_graphs_is_cudnn_s(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, nodes: int, dtype: str
) -> None:
    """On a GPU of half types; here its place is taken by XLA's function of the same arguments."""
    attend, called, factor = jax.nn.dot_product_attention, [], [jnp.nan]

    def by_xla(*rows: Any, implementation: str, **lengths: Any) -> Any:
        called.append(implementation)
        return factor[0] * attend(*rows, implementation="xla", **lengths)

    batch = Batch.from_edges([np.zeros((2, 0), int)] * 2, [nodes, 70], num_nodes=160, num_graphs=3)
    sizes = {"max_nodes": max(nodes, 70)} if nodes == 80 else {"max_nodes": 64}
    rows = jnp.asarray(rng.normal(size=(3, 160, 2, 8)), dtype)
    want = attention_within_graphs(batch, *rows.astype(jnp.float32), **sizes)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    for factor[0] in (jnp.nan, 1):  # a process with GPUs computes on its CPU first
        got = attention_within_graphs(batch, *rows, **sizes).astype(jnp.float32)
        np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)
        monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cuda, default: cuda(*x))
    assert set(called) == ({"cudnn"} if (nodes, dtype) == (80, "bfloat16") else set())


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm", "graph_norm"])
@pytest.mark.parametrize("has_conv", [True, False])
def test_gps_equals_pyg(rng: np.random.Generator, norm: str | None, has_conv: bool) -> None:
    """Graphs of 1 to 17 nodes are in one, two and three tiles; padding counts nowhere."""
    sizes = (3, 17, 1, 9, 4)
    pairs_of = [rng.integers(size, size=(2, 2 * size)) for size in sizes]
    ids = np.repeat(np.arange(5), sizes)
    starts = np.cumsum(sizes) - sizes
    edges = np.concatenate([ends + start for ends, start in zip(pairs_of, starts, strict=True)], 1)
    x = {"x": rng.normal(size=(34, 8)), "e": rng.normal(size=(68, 3))}
    with jax.enable_x64(True):
        batch = Batch.from_edges(pairs_of, sizes, num_nodes=50, num_edges=90, num_graphs=7)
        local = layers.GINEConv(8, 8, edge_in_features=3, **OPTIONS) if has_conv else None
        ours = layers.GPSConv(8, local, heads=2, mlp_activation="gelu", node_norm=norm, **OPTIONS)
        theirs = pyg.GPSConv(
            8, pyg.GINEConv(mlp(8, 8, 8), edge_dim=3) if has_conv else None, heads=2, act="gelu",
            norm=norm, norm_kwargs={"mode": "graph"} if norm == "layer_norm" else None,
        )  # fmt: skip
        theirs.mlp[1] = torch.nn.GELU()
        names: dict[str, Any] = {
            "attention_in.kernel": "attn.in_proj_weight",
            "attention_in.bias": "attn.in_proj_bias",
            "attention_out": "attn.out_proj",
            "mlp": "mlp",
        }
        names |= {"conv.edge": "conv.lin", "conv.built_mlp.layers": "conv.nn"} if has_conv else {}
        used = [i for i in range(3 if norm else 0) if has_conv or i]
        for i in used:
            module = f"norm{i + 1}.module" if norm == "batch_norm" else f"norm{i + 1}"
            names |= {f"norms.{i}.scale": f"{module}.weight", f"norms.{i}.bias": f"{module}.bias"}
            names |= (
                {f"norms.{i}.mean_scale": f"{module}.mean_scale"} if norm == "graph_norm" else {}
            )

        def run(layer: Any, x: Any) -> Any:
            rows = jnp.pad(x["x"], ((0, 16), (0, 0)), constant_values=jnp.nan)
            e = batch.graph.edge_values(x["e"])
            return layer(batch, rows, *([e] if has_conv else []), max_nodes=17)[:34]

        check_equal(
            *(ours, theirs, names, run),
            lambda m, x: (
                m(
                    x["x"],
                    torch.tensor(edges),
                    torch.tensor(ids),
                    **({"edge_attr": x["e"]} if has_conv else {}),
                )
                + 0 * x["e"].sum()
            ),
            x,
        )
