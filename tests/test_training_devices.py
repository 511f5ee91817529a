"""Trainings over several devices: the results of one device, and settings for one alone."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from test_schnet import springs, write_xyz
from test_training import dataset_for, make_graph_dataset, make_typed_dataset
from test_training_graphs import rings_and_trees
from test_training_links import make_dataset as make_links
from test_training_minibatch import interrupt

from flax_layers import CompGCNConv
from flax_layers.training import (
    RECIPES,
    CompGCNLinkConfig,
    GATLinkConfig,
    GCNConfig,
    GCNLinkConfig,
    RGCNLinkConfig,
    SAGEConfig,
    SAGELinkConfig,
    UniGATConfig,
    feeds,
    graphs,
    load_checkpoint,
    save_checkpoint,
    train,
    train_links,
)
from flax_layers.training.devices import replicate, takes_parts
from flax_layers.training.feeds import SplitGraph
from flax_layers.training.link_models import make_link_model
from flax_layers.training.link_tasks import link_graph, link_task
from flax_layers.training.trained import make_model
from jax_gnn import batch_budget
from jax_gnn.datasets import load_xyz, random_split
from jax_gnn.sharding import ShardedGraph, apply_on_devices, shard_graph

SPLIT = [name for name, recipe in RECIPES.items() if recipe.structure and takes_parts(recipe)]
# Their recipes have nothing of their own; test_sharded_graph.py compares models and gradients.
LIKE_OTHERS = {"hgnnp", "unigin", "unisage", "gin", "sage", "gat", "gatv2", "transformer", "rgat"}
MOST = min(4, jax.device_count())
WIDTHS = {"embedding_features": 8, "hidden_features": 8}
SMALL = {"splits": 1, "epochs": 3, "hidden_features": 8, "dropout_rate": 0.0}

pytestmark = [
    pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices"),
    pytest.mark.usefixtures("exact_products"),
]


def settings(model, **changes):
    """Return settings without dropout, which differs by device."""
    kind = RECIPES[model].config
    rates = [f.name for f in dataclasses.fields(kind) if f.name.endswith("dropout_rate")]
    return kind(**SMALL | dict.fromkeys(rates, 0.0) | changes)


def assert_alike(split, alone, dataset):
    """Check that results on several devices are those of one, to rounding."""
    np.testing.assert_allclose(split.run.train_loss, alone.run.train_loss, 1e-3, 1e-4)
    np.testing.assert_allclose(split.run.valid_accuracy, alone.run.valid_accuracy, atol=1e-6)
    logits = (result.trained.predict(dataset) for result in (split, alone))
    np.testing.assert_allclose(*logits, 1e-2, 2e-3)


@pytest.mark.parametrize("model", [name for name in SPLIT if name not in LIKE_OTHERS])
def test_same_results_as_on_one_device(model, rng):
    count = min(3, MOST)
    config, method = settings(model), rng.integers(0, count, 40)
    dataset = dataset_for(type(config))
    alone = train(dataset, config)
    split = train(dataset, config, devices=count, method=method)
    assert_alike(split, alone, dataset)
    assert isinstance(split.graph, ShardedGraph) and split.sizes == alone.sizes


def test_types_of_nodes(rng):
    # Features of two widths, and embeddings of the third type.
    dataset, config = make_typed_dataset(), settings("hgt")
    alone = train(dataset, config)
    split = train(dataset, config, devices=2, method=rng.integers(0, 2, 54))
    assert_alike(split, alone, dataset)


def test_weights_and_numbers(rng):
    # Edges have weights, and errors of a regression are computed on the devices, too.
    dataset = make_graph_dataset()
    weight = rng.uniform(0.5, 2, dataset.src.size).astype(np.float32)
    y = rng.normal(size=(40, 2)).astype(np.float32)
    y[::7] = np.nan
    dataset = dataclasses.replace(dataset, edge_weight=weight, y=y)
    config = settings("gcn", edge_weight=True, splits=2)
    alone, split = (train(dataset, config, devices=devices) for devices in (1, 2))
    np.testing.assert_allclose(split.run.train_loss, alone.run.train_loss, 1e-4)
    for name, errors in alone.errors.items():
        np.testing.assert_allclose(split.errors[name], errors, 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("model", "before", "after"), [("gcn", 1, 2), ("gcn", 2, 2), ("hgt", 2, 1), ("hgt", 2, MOST)]
)
def test_other_devices(model, before, after, tmp_path, rng):
    # A run continues on other devices with the same losses, and so predicts its checkpoint.
    # Nodes of one type have embeddings in "hgt", with their moments.
    dataset = make_graph_dataset() if model == "gcn" else make_typed_dataset()
    config = settings(model, epochs=12)
    uninterrupted, file = train(dataset, config), tmp_path / "state.npz"
    interrupt(dataset, config, 9, state=file, devices=before)
    method = rng.integers(0, after, dataset.num_nodes)
    resumed = train(dataset, config, devices=after, method=method, state=file, resume=True)
    assert_alike(resumed, uninterrupted, dataset)
    save_checkpoint(tmp_path / "checkpoint", resumed.trained)
    again = load_checkpoint(tmp_path / "checkpoint")
    alone, *split = (again.predict(dataset, devices=devices) for devices in (1, 2, MOST))
    for logits in split:
        np.testing.assert_allclose(logits, alone, 1e-5, 1e-6)


def test_dropout_differs_by_device():
    # Each of two parts that are alike drops others of its rows.
    half = np.arange(20)
    dataset = dataclasses.replace(
        make_graph_dataset(),
        src=np.r_[half, half + 20],
        dst=np.r_[half, half + 20],
        x=np.ones((40, 6)),
        edge_features=None,
    )
    config = settings("gcn", dropout_rate=0.5)
    feed = SplitGraph(dataset, config, 2, np.repeat([0, 1], 20))
    model = make_model(config, feed.graph, feed.inputs[0], 2, 0)
    data = feed.start(config, random_split(dataset.y, seed=0), 0)
    logits = jax.jit(lambda key: feed.logits(model, data.graph, data.inputs, key))
    for key in (jax.random.key(0), None):
        first, second = np.split(np.asarray(logits(key)), 2)
        assert np.array_equal(first, second) == (key is None)


def test_batches_of_graphs(tmp_path, monkeypatch, rng):
    # Each fold has batches of 15 or 16 graphs and a batch norm of all devices' nodes.
    dataset, size = rings_and_trees(rng), 17
    config = settings("gin-graph", num_layers=1, folds=2, class_weight="balanced", batch_size=size)
    alone, file = train(dataset, config), tmp_path / "state.npz"

    def budget(sizes, num_graphs):
        """Return capacities that the share of two devices exceeds."""
        capacities = batch_budget(sizes, num_graphs)
        largest = {name: int(column.max()) for name, column in sizes.items()}
        return capacities | largest if num_graphs == -(-size // 2) else capacities

    monkeypatch.setattr(graphs, "batch_budget", budget)
    interrupt(dataset, config, 4, state=file, devices=2)
    split = train(dataset, config, devices=min(3, MOST), state=file, resume=True)
    for curve in ("train_loss", "train_accuracy", "valid_accuracy"):
        curves = (getattr(result.run, curve) for result in (split, alone))
        np.testing.assert_allclose(*curves, 1e-4, 1e-5, err_msg=curve)
    logits = (alone.trained.predict(dataset, devices=devices) for devices in (1, MOST))
    np.testing.assert_allclose(*logits, 1e-4, 1e-4)


def test_batches_of_molecules(tmp_path, rng):
    # Forces are gradients through the devices; the last batches have an odd number of molecules.
    dataset = load_xyz(write_xyz(tmp_path / "m.xyz", springs(rng, 30)))
    config = settings("schnet", num_layers=1, num_filters=8, num_gaussians=4, batch_size=5)
    alone, split = (train(dataset, config, devices=devices) for devices in (1, 2))
    assert_alike(split, alone, dataset)
    for name, errors in alone.errors.items():
        np.testing.assert_allclose(split.errors[name], errors, 1e-3, err_msg=name)


@pytest.mark.parametrize(("model", "capacity"), [("gcn", False), ("gcn", True), ("hgt", False)])
def test_batches_of_nodes(model, capacity, tmp_path, monkeypatch):
    # 20 seeds in batches of 7 make a last one of 6, which leaves padding on each device.
    if capacity:  # so small that all devices draw most batches again
        monkeypatch.setattr(feeds.SampledNodes, "_estimate_capacity", lambda *_: (8, 9))
    dataset = make_graph_dataset() if model == "gcn" else make_typed_dataset()
    config = settings(model, batch_size=7, fanouts=(99, 99), class_weight="balanced")
    alone, file = train(dataset, config), tmp_path / "state.npz"
    interrupt(dataset, config, 1, state=file, devices=2)
    split = train(dataset, config, devices=min(3, MOST), state=file, resume=True)
    assert_alike(split, alone, dataset)


LINKS = {
    "gcn": GCNLinkConfig(variational=True),
    "sage": SAGELinkConfig(),
    "gat": GATLinkConfig(),
    "rgcn": RGCNLinkConfig(num_blocks=4, leave_out=True),
    "rgcn, random nodes": RGCNLinkConfig(num_bases=2, loss="negatives", batch_size=41),
    "compgcn": CompGCNLinkConfig(loss="sigmoid", composition="corr", batch_size=41),
}


@pytest.mark.parametrize("name", LINKS)
def test_links(name, tmp_path, rng):
    # Noise and random nodes are those of one device. Two devices begin the GCN, three go on.
    small = WIDTHS | {"epochs": 3, "evaluate_every": 1, "dropout_rate": 0.0}
    config = dataclasses.replace(LINKS[name], **small)
    dataset = make_links() if hasattr(config, "decoder") else make_graph_dataset()
    alone, file = train_links(dataset, config), tmp_path / "state.npz"

    def halt(report):
        raise KeyboardInterrupt

    if name == "gcn":
        with pytest.raises(KeyboardInterrupt):
            train_links(dataset, config, devices=2, on_epoch=halt, state=file)
    count = min(3, MOST)
    method = rng.integers(0, count, dataset.num_nodes)
    split = train_links(dataset, config, devices=count, method=method, state=file, resume=True)
    np.testing.assert_allclose(split.losses, alone.losses, 2e-6)
    assert split.test == pytest.approx(alone.test, abs=0.02)


def test_scores_of_links_are_split():
    # Each of two devices scores half of the queries, against all nodes.
    dataset, config = make_links(), RGCNLinkConfig(num_blocks=4, batch_size=38, **WIDTHS)
    task = link_task(dataset, config)
    model = make_link_model(config, **task.sizes)
    data = task.data(model, 2)
    batch = jax.tree.map(lambda rows: rows[0], task.batches(np.random.default_rng(0)))
    args = replicate((nnx.split(model)[1], batch, jax.random.key(0)), data)
    definition = nnx.graphdef(model)

    def loss(state, *args):
        return task.loss(nnx.merge(definition, state), *args)

    text = jax.jit(loss).lower(args[0], data, *args[1:]).compile().as_text()
    assert "f32[19,24]" in text and "f32[38,24]" not in text


def test_compositions_on_parts(rng):
    graph, x = link_graph(make_links()), rng.normal(size=(24, 4)).astype(np.float32)
    options = {"num_relations": 6, "rngs": nnx.Rngs(0)}
    z = rng.normal(size=(2, 6, 4)).astype(np.float32)
    z[1] = z[0]
    sharded = shard_graph(graph, jax.make_mesh((2,), ("nodes",)), "nodes")
    layer = CompGCNConv(4, 3, normalization="mean", **options)
    run = jax.jit(lambda layer, sharded, *values: sharded.apply(layer, *values))
    y, relations = run(layer, sharded, sharded.shard(x), z)
    expected = jax.jit(layer)(graph, x, z[0])
    np.testing.assert_allclose(sharded.unshard(y), expected[0], 1e-5, 1e-5)
    np.testing.assert_allclose(relations[1], expected[1], 1e-6)
    with pytest.raises(ValueError, match="edge_weight must be given for a part of a graph"):
        run(CompGCNConv(4, 3, **options), sharded, sharded.shard(x), z)


def test_batches_that_fit_no_mesh():
    mesh = jax.make_mesh((2,), ("batch",))
    for axis, rows, message in (
        ("nodes", 2, "axis must be one of 'batch', got 'nodes'"),
        ("batch", 3, r"leading axis of the 2 devices of 'batch', got shape \(3, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            apply_on_devices(np.sum, mesh, axis, (np.ones((rows, 4)),))


def test_batch_norm_of_batches_on_devices(rng):
    # A norm without a mask counts all rows of all devices.
    x = rng.normal(size=(2, 5, 3)).astype(np.float32)
    norms = [nnx.BatchNorm(3, rngs=nnx.Rngs(0)) for _ in range(2)]
    split = apply_on_devices(norms[0], jax.make_mesh((2,), ("batch",)), "batch", (x,))
    np.testing.assert_allclose(split.reshape(10, 3), norms[1](x.reshape(10, 3)), 1e-5, 1e-6)
    np.testing.assert_allclose(norms[0].var[...], norms[1].var[...], 1e-6)


def test_devices_draw_other_neighbours():
    # Two devices have the same seeds, and draw one of three edges into each.
    src, dst = np.arange(40).repeat(3), np.arange(40).repeat(3)
    src = (src + np.tile([1, 2, 3], 40)) % 40
    dataset = dataclasses.replace(make_graph_dataset(), src=src, dst=dst, edge_features=None)
    config = settings("sage", batch_size=40, fanouts=(1, 1))
    split = random_split(dataset.y, seed=0)
    feed = feeds.SampledNodes(dataset, config, [split], 2)
    data, seeds = feed.start(config, split, 0), np.tile(np.arange(20, dtype=np.int32), 2)
    blocks = jax.jit(lambda key: feed.batch(data, seeds, key).graph)(jax.random.key(0))
    first, second = np.asarray(blocks.node_ids)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first[:20], second[:20])


@pytest.mark.parametrize(
    ("config", "devices", "message"),
    [
        (GCNConfig(), 0, "devices must be a number from 1, got 0"),
        (GCNConfig(), 99, r"at most \d+, the \w+ devices that there are.*, got 99"),
        (SAGEConfig(batch_size=4, edge_time=True), 2, "must be 1: sage samples edges up to each"),
        (UniGATConfig(), 2, "must be 1: unigat takes no part of a hypergraph, as hgnn, hgnnp, uni"),
    ],
)
def test_what_one_device_does(config, devices, message):
    with pytest.raises(ValueError, match=message):
        train(dataset_for(type(config)), config, devices=devices)


def test_parts_that_do_not_fit():
    dataset = make_graph_dataset()
    for method, message in (
        ("ring", "method must be one of .*, got 'ring'"),
        (np.zeros(3, int), r"method must be .* shape \(40,\), got shape \(3,\)"),
        (np.arange(40), r"method\[2\] = 2 is outside"),
    ):
        with pytest.raises(ValueError, match=message):
            train(dataset, settings("gcn"), devices=2, method=method)
