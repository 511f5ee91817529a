"""`to_hetero` against PyTorch Geometric's, and against its convolutions one by one."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import nnx

import jax_gnn
from flax_layers import GAT, GCN, SAGE, GATConv, HeteroConv, HeteroStack, SAGEConv, to_hetero
from jax_gnn import HeteroGraph

NODES = {"a": 5, "p": 7}
WIDTHS = {"a": 4, "p": 6}
TYPES = ("a", "writes", "p"), ("p", "by", "a"), ("p", "cites", "p")


@pytest.fixture
def edges(rng):
    return {key: rng.integers(0, [[NODES[key[0]]], [NODES[key[2]]]], (2, 12)) for key in TYPES}


@pytest.fixture
def x(rng):
    return {k: rng.normal(size=(n, WIDTHS[k])).astype(np.float32) for k, n in NODES.items()}


def homogeneous(name: str):
    options = {"num_layers": 2, "dropout_rate": 0.5, "rngs": nnx.Rngs(0)}
    return SAGE(1, 8, 5, **options) if name == "SAGE" else GAT(1, 8, 5, heads=2, **options)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", ["SAGE", "GAT"])
def test_equals_pytorch_geometric(edges, x, name, reduce):
    pyg, torch = pytest.importorskip("torch_geometric.nn"), pytest.importorskip("torch")

    class Homogeneous(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            loops, sizes = {"add_self_loops": False}, (-1, -1)
            if name == "SAGE":
                self.conv1, self.conv2 = pyg.SAGEConv(sizes, 8), pyg.SAGEConv(sizes, 5)
            else:
                self.conv1 = pyg.GATConv(sizes, 4, heads=2, **loops)
                self.conv2 = pyg.GATConv(sizes, 5, **loops)
            self.act = torch.nn.ReLU() if name == "SAGE" else torch.nn.ELU()

        def forward(self, x, edge_index):
            return self.conv2(self.act(self.conv1(x, edge_index)), edge_index)

    theirs = pyg.to_hetero(Homogeneous(), ([*NODES], [*edges]), aggr=reduce)
    arguments = [{k: torch.tensor(v) for k, v in values.items()} for values in (x, edges)]
    theirs(*arguments)  # makes the parameters
    model = SAGE if name == "SAGE" else GAT
    options = {} if name == "SAGE" else {"heads": 2, "add_self_loops": False}
    template = model(1, 8, 5, num_layers=2, rngs=nnx.Rngs(0), **options)
    graph = HeteroGraph.from_edges(edges, NODES).with_graphs()
    ours = to_hetero(template, graph.edge_types, WIDTHS, reduce=reduce, rngs=nnx.Rngs(0))
    for layer in ours.layers:
        for key in TYPES:
            state = getattr(theirs, layer)["__".join(key)].state_dict()
            names = {"kernel": "lin_l.weight", "bias": "lin_l.bias", "root.kernel": "lin_r.weight"}
            if name == "GAT":
                names = {"kernel": "lin_src.weight", "dst_kernel": "lin_dst.weight", "bias": "bias"}
                names |= {"src_attention": "att_src", "dst_attention": "att_dst"}
            for own, other in names.items():
                owner, _, attribute = own.rpartition(".")
                conv = ours.layers[layer].convolutions[key]
                param = getattr(getattr(conv, owner) if owner else conv, attribute)
                value = state[other].numpy()
                param[...] = (value.T if other.endswith("weight") else value).reshape(param.shape)
    want, got = theirs(*arguments), ours(graph, x, deterministic=True)
    assert got.keys() == want.keys()
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["SAGE", "GAT"])
def test_layers_dropout_and_checkpoints(tmp_path, edges, x, name):
    """A type without incoming edges takes part in the first layer alone."""
    edges |= {("v", "hosts", "p"): np.array([[0, 1, 2], [6, 0, 0]])}
    graph = HeteroGraph.from_edges(edges, NODES | {"v": 3}).with_graphs()
    x["v"] = np.ones((3, 2), np.float32)
    model = to_hetero(homogeneous(name), graph, x, rngs=nnx.Rngs(0))
    first, second = (model.layers[f"conv{i}"] for i in (1, 2))
    assert (len(first.edge_types), len(second.edge_types)) == (4, 3)
    activate = jax.nn.relu if name == "SAGE" else jax.nn.elu
    fixed = {"deterministic": True} if name == "GAT" else {}
    hidden = first(graph, x, {key: fixed for key in first.edge_types})
    want = second(graph, jax.tree.map(activate, hidden), {key: fixed for key in second.edge_types})
    got = model(graph, x, deterministic=True)
    assert not np.allclose(model(graph, x)["p"], got["p"])  # with dropout
    jax_gnn.save(tmp_path / "model", model)
    loaded = jax_gnn.load(tmp_path / "model")(graph, x)
    for key in ("a", "p"):
        np.testing.assert_allclose(got[key], want[key], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(loaded[key], want[key], rtol=1e-5, atol=1e-6)
    loops = {key: conv.add_self_loops for key, conv in conv_items(first) if name == "GAT"}
    assert all(loops[key] == (key[0] == key[2]) for key in loops)


def conv_items(layer: HeteroConv):
    return [(key, layer.convolutions[key]) for key in layer.edge_types]


def test_one_convolution(edges, x):
    graph = HeteroGraph.from_edges(edges, NODES).with_graphs()
    conv = GATConv(1, 8, heads=2, rngs=nnx.Rngs(0))
    y = to_hetero(conv, graph, x, rngs=nnx.Rngs(0))(graph, x)
    assert {key: rows.shape for key, rows in y.items()} == {"a": (5, 8), "p": (7, 8)}
    stack = to_hetero(conv, TYPES, {k: np.int64(n) for k, n in WIDTHS.items()}, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"arguments must be by edge types .* got \('a', 'w'"):
        stack(graph, x, {("a", "w", "p"): {}})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: to_hetero(GCN(1, 8, 5, rngs=r), TYPES, WIDTHS, rngs=r), "got GCN"),
        (lambda r: to_hetero(SAGE, TYPES, WIDTHS, rngs=r), "must be a SAGE, GAT"),
        (lambda r: to_hetero(SAGEConv(1, 8, rngs=r), TYPES, {"a": 4}, rngs=r), "lacks the type 'p"),
        (lambda r: to_hetero(SAGEConv(1, 8, rngs=r), TYPES, 4, rngs=r), "in_features must be"),
        (
            lambda r: to_hetero(SAGEConv(1, 8, rngs=r), "ap", WIDTHS, rngs=r),
            "edge types .* got 'a'",
        ),
        (lambda r: to_hetero(SAGE(1, 8, 5, rngs=r), TYPES[:1], WIDTHS, rngs=r), "for layer 2, got"),
        (
            lambda r: to_hetero(SAGEConv(1, 8, rngs=r), TYPES, WIDTHS, reduce="concat", rngs=r),
            "reduce must be",
        ),
        (lambda r: HeteroStack({"a": SAGEConv(1, 8, rngs=r)}, rngs=r), r"layers\['a'\] must be"),
    ],
)
def test_errors(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(nnx.Rngs(0))
