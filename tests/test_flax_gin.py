"""`GINConv` with perceptrons of the user and with batch norms: padding, blocks, parts, PyG."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_gnn
from flax_layers import GIN, MLP, GINConv, MLPDecoder
from jax_gnn import Graph
from jax_gnn.sampling import sample_neighbors
from jax_gnn.sharding import shard_graph

SIZE, WIDTH = 9, 5


def own_mlp(in_features: int, out_features: int, rngs: nnx.Rngs) -> MLP:
    return MLP([in_features, 7, out_features], rngs=rngs)


def batch_norm(size: int) -> nnx.BatchNorm:
    return nnx.BatchNorm(size, rngs=nnx.Rngs(0))


@pytest.fixture
def edges(rng):
    return rng.integers(0, SIZE, (2, 30))


@pytest.fixture
def graph(edges) -> Graph:
    return Graph.from_edges(*edges, num_nodes=SIZE)


@pytest.fixture
def x(rng):
    return rng.normal(size=(SIZE, WIDTH)).astype(np.float32)


OPTIONS = [{"mlp_norm": "batch_norm", "mlp_features": 7}, {"mlp": own_mlp}]


@pytest.mark.parametrize("options", OPTIONS, ids=["norm", "mlp"])
def test_equals_pytorch_geometric(edges, graph, x, options):
    pyg, torch = pytest.importorskip("torch_geometric.nn"), pytest.importorskip("torch")
    theirs = pyg.GINConv(pyg.MLP([WIDTH, 7, 4]), eps=0.3, train_eps=True)
    ours = GINConv(WIDTH, 4, eps=0.3, learn_eps=True, rngs=nnx.Rngs(0), **options)
    first, second, norm = ours, ours.output, ours.batch_norm
    if ours.mlp is not None:
        (first, second), (norm,) = ours.mlp.layers, ours.mlp.norms
    for layer, linear in zip((first, second), theirs.nn.lins, strict=True):
        layer.kernel[...] = linear.weight.detach().numpy().T
        layer.bias[...] = linear.bias.detach().numpy()
    arguments = torch.tensor(x), torch.tensor(edges)
    np.testing.assert_allclose(ours(graph, x), theirs(*arguments).detach(), rtol=1e-5, atol=1e-5)
    theirs.eval()
    statistics = theirs.nn.norms[0].module
    norm.mean[...], norm.var[...] = statistics.running_mean.numpy(), statistics.running_var.numpy()
    want = theirs(*arguments).detach()
    np.testing.assert_allclose(ours(graph, x, deterministic=True), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=["norm", "mlp"])
def test_padding_does_not_count(graph, x, options):
    """Results, gradients and running statistics equal those without padding."""
    padded = graph.pad(num_nodes=12, num_edges=40)
    larger, mask = np.pad(x, ((0, 3), (0, 0)), constant_values=50), np.arange(12) < SIZE

    def run(graph, x, **mask):
        model = GIN(WIDTH, 6, 3, dropout_rate=0.0, rngs=nnx.Rngs(0), **options)

        def loss(model):
            y = model(graph, x, **mask)[:SIZE]
            return jnp.sum(jnp.sin(y)), y

        (_, y), gradient = nnx.value_and_grad(loss, has_aux=True)(model)
        return y, gradient, nnx.state(model, nnx.BatchStat)

    want, got = run(graph, x), run(padded, larger, node_mask=mask)
    for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not np.allclose(run(padded, larger)[0], want[0], atol=1e-2)  # without a mask


def test_padding_of_blocks_does_not_count(graph, x):
    blocks = [
        sample_neighbors(graph, jnp.arange(-1, 8)[first:], (99, 99), jax.random.key(0))
        for first in (0, 1)
    ]
    model = GIN(
        WIDTH, 6, 3, num_layers=2, mlp_norm="batch_norm", dropout_rate=0.0, rngs=nnx.Rngs(0)
    )
    with_padding, without = (model(b, b.node_values(x)) for b in blocks)
    np.testing.assert_allclose(with_padding[1:], without, rtol=1e-4, atol=1e-5)
    plain, (block, _) = GIN(WIDTH, 6, 3, num_layers=2, rngs=nnx.Rngs(0)), blocks
    rows = block.node_values(x)
    masked = plain(block, rows, node_mask=block.node_ids >= 0, deterministic=True)
    np.testing.assert_array_equal(masked, plain(block, rows, deterministic=True))


def test_wrong_statistics_are_refused(graph, x):
    mlp = nnx.Sequential(nnx.Linear(WIDTH, 4, rngs=nnx.Rngs(0)), batch_norm(4))
    conv, mask = GINConv(WIDTH, 4, mlp=mlp, rngs=nnx.Rngs(0)), np.ones(SIZE, bool)
    with pytest.raises(ValueError, match=r"mlp whose call has no mask, .*Sequential"):
        conv(graph, x, node_mask=mask)
    conv.eval()
    assert conv(graph, x, node_mask=mask).shape == (SIZE, 4)
    mesh = jax.make_mesh((1,), ("nodes",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded, model = (
        shard_graph(graph, mesh, "nodes"),
        GIN(WIDTH, 6, 3, mlp_norm="batch_norm", rngs=nnx.Rngs(0)),
    )

    rows = sharded.shard(x)
    with pytest.raises(ValueError, match=r"batch norms must use running .*part"):
        sharded.apply(lambda part, x: model(part, x, deterministic=False), rows)
    got = sharded.unshard(sharded.apply(model, rows, deterministic=True))
    np.testing.assert_allclose(got, model(graph, x, deterministic=True), rtol=1e-5, atol=1e-5)


def one_node(conv):
    return conv(Graph.from_edges([0], [0], num_nodes=1), jnp.ones((1, 4)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: GINConv(4, 8, mlp_norm="batch", rngs=r), "mlp_norm must be"),
        (lambda r: GINConv(4, 8, mlp=3, rngs=r), "mlp must be"),
        (
            lambda r: GINConv(4, 8, mlp=own_mlp, mlp_norm="batch_norm", rngs=r),
            "mlp_norm must be None",
        ),
        (lambda r: GINConv(4, 8, mlp=lambda i, o, r: 3, rngs=r), "must be a .*Module"),
        (
            lambda r: one_node(GINConv(4, 8, mlp=own_mlp(4, 5, r), rngs=r)),
            "return out_features = 8",
        ),
        (lambda r: GIN(4, 8, 2, mlp=own_mlp(4, 8, r), rngs=r), "a MLP, which the layers"),
        (lambda r: MLP([4], rngs=r), "features must be sizes"),
        (lambda r: MLP([4, 0], rngs=r), r"features\[1\] must be positive"),
        (lambda r: MLP([4, 2], rngs=r)(jnp.ones((3, 5))), r"x must be \(rows, ..., 4\)"),
        (lambda r: MLP([4, 3, 2], rngs=r)(jnp.ones((3, 4)), mask=jnp.ones(3)), "of bool"),
        (lambda r: MLPDecoder(4, 0, rngs=r), "hidden_features must be positive"),
        (
            lambda r: MLPDecoder(4, 2, rngs=r)(jnp.ones((3, 4)), jnp.ones((2, 4))),
            "src and dst must",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(nnx.Rngs(0))


def test_checkpoints(tmp_path, graph, x):
    """Statistics are kept; a model with the user's function is loaded with its class."""
    model = GIN(WIDTH, 6, 3, mlp_norm="batch_norm", rngs=nnx.Rngs(0))
    model(graph, x)
    jax_gnn.save(tmp_path / "norm", model)
    want = model(graph, x, deterministic=True)
    np.testing.assert_array_equal(jax_gnn.load(tmp_path / "norm")(graph, x), want)

    def make() -> GIN:
        return GIN(WIDTH, 6, 3, mlp=own_mlp, rngs=nnx.Rngs(0))

    jax_gnn.save(tmp_path / "mlp", own := make())
    want = own(graph, x, deterministic=True)
    np.testing.assert_array_equal(jax_gnn.load(tmp_path / "mlp", make)(graph, x), want)
    jax_gnn.save(tmp_path / "conv", GINConv(WIDTH, 6, mlp=own_mlp, rngs=nnx.Rngs(0)))
    assert jax_gnn.load(tmp_path / "conv").model.mlp.features == (WIDTH, 7, 6)
