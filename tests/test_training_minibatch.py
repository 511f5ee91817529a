"""Training on batches of nodes: inputs of a step, repeated and resumed runs, the command."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_training import make_graph_dataset, make_relational_dataset, make_typed_dataset, save

from flax_layers.training import (
    RECIPES,
    GATConfig,
    GATv2Config,
    GCNConfig,
    GINConfig,
    GINEConfig,
    GINGraphConfig,
    GraphTransformerConfig,
    HGTConfig,
    PNAConfig,
    RGATConfig,
    RGCNConfig,
    SAGEConfig,
    SimpleHGNConfig,
    feeds,
    load_checkpoint,
    neighborhoods,
    report,
    resume,
    save_checkpoint,
    train,
)
from flax_layers.training.data import splits_by_time
from flax_layers.training.epochs import Runner
from flax_layers.training.feeds import SampledNodes, seeds_of_epoch
from flax_layers.training.models import graph_of
from flax_layers.training.trained import TrainedModel, make_model
from jax_gnn import Graph, cli
from jax_gnn.datasets import GraphDataset, Split
from jax_gnn.sampling import sample_neighbors

pytestmark = pytest.mark.usefixtures("strict_promotion")

SMALL = {"splits": 1, "epochs": 3, "hidden_features": 8, "dropout_rate": 0.0}
ALL = {"batch_size": 7, "fanouts": (99, 99)}  # more than any node has
MODELS = [
    (GCNConfig, make_graph_dataset),
    (GINConfig, make_graph_dataset),
    (SAGEConfig, make_graph_dataset),
    (GATConfig, make_graph_dataset),
    (PNAConfig, make_graph_dataset),
    (GINEConfig, make_graph_dataset),
    (RGCNConfig, make_relational_dataset),
    (RGATConfig, make_relational_dataset),
    (HGTConfig, make_relational_dataset),
    (RGCNConfig, make_typed_dataset),
    (HGTConfig, make_typed_dataset),
    (SimpleHGNConfig, make_typed_dataset),
]


def settings(config, **changes):
    native = {"features": "native"} if config is RGCNConfig else {}
    return config(**SMALL | native | changes)


def started(dataset, config, split, rng):
    """Return a training's feed, data and model of two classes; seeds, and a batch of them."""
    feed = SampledNodes(dataset, config, [split])
    data = feed.start(config, split, 0)
    model = make_model(config, feed.graph, feed.inputs[0], 2, int(rng.integers(100)))
    seeds = jnp.array([3, -1, *rng.integers(0, 40, 5)], jnp.int32)  # the second is padding
    return feed, data, model, seeds, feed.batch(data, seeds, jax.random.key(int(rng.integers(100))))


def assert_same_curves(actual, expected, epochs=None):
    """Check that runs have the same bits, up to a number of epochs of the expected one."""
    for name in ("train_loss", "train_accuracy", "valid_accuracy", "test_accuracy"):
        curves = getattr(actual, name), getattr(expected, name)[:, :epochs]
        np.testing.assert_array_equal(*curves, err_msg=name)


def test_every_seed_once_an_epoch(rng):
    ids = rng.choice(1000, rng.integers(1, 60), replace=False)
    size, seed = int(rng.integers(1, 70)), int(rng.integers(2**31))
    # Epochs differ in their order, which depends on seed and epoch alone.
    epochs = [seeds_of_epoch(ids, size, seed, epoch) for epoch in range(3)]
    for seeds in epochs:
        assert seeds.shape == (-(-len(ids) // size), size)
        np.testing.assert_array_equal(np.sort(seeds[seeds >= 0]), np.sort(ids))
        assert (seeds.ravel()[: len(ids)] >= 0).all()
    np.testing.assert_array_equal(epochs[1], seeds_of_epoch(ids, size, seed, 1))
    if len(ids) > 10:
        assert (epochs[0] != epochs[1]).any()
        assert (epochs[0] != seeds_of_epoch(ids, size, seed + 1, 0)).any()


@pytest.mark.parametrize(("config", "make"), MODELS)
def test_of_all_edges_a_step_is_that_of_the_whole_graph(config, make, rng):
    # Logits of seeds, padding among them, with fanouts for all edges.
    with jax.enable_x64(True):
        dataset, small = make(), settings(config, **ALL)
        split = Split(*np.split(np.arange(40), [20, 30]))
        feed, data, model, seeds, batch = started(dataset, small, split, rng)
        logits = feed.logits(model, batch.graph, batch.inputs, None)
        expected = feed.logits(model, feed.graph, feed.inputs, None)
        valid = np.asarray(seeds) >= 0
        np.testing.assert_array_equal(batch.masks[0], valid)
        np.testing.assert_allclose(logits[valid], expected[seeds[valid]], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(batch.y[valid], data.y[seeds[valid]])


@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"feature_normalization": "none"}])
def test_features_of_edges_are_standardized(options, tmp_path):
    scaled = make_graph_dataset()
    edges = scaled.edge_features
    scaled = dataclasses.replace(scaled, edge_features=(edges - edges.mean(0)) / edges.std(0))
    raw = dataclasses.replace(scaled, edge_features=scaled.edge_features * [2, 3e4] + [0, 1e5])
    results = [train(dataset, settings(GINEConfig, **options)) for dataset in (raw, scaled)]
    logits = [
        result.trained.predict(dataset)
        for result, dataset in zip(results, (raw, scaled), strict=True)
    ]
    if "feature_normalization" in options:
        assert results[0].trained.preprocessing.edges is None
        assert not np.allclose(*logits, atol=1)
        return
    losses = [result.run.train_loss for result in results]
    np.testing.assert_allclose(*losses, rtol=2e-3)
    np.testing.assert_allclose(*logits, rtol=2e-2, atol=2e-2)
    save_checkpoint(tmp_path / "model", results[0].trained)
    loaded = load_checkpoint(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(raw), logits[0])
    graph = graph_of(raw, loaded.config)
    values = graph.edge_values(raw.edge_features)
    np.testing.assert_array_equal(loaded(graph, raw.x, edge_features=values), logits[0])


@pytest.mark.parametrize("kind", [GINConfig, GINEConfig])
def test_sums_are_those_of_all_edges_on_average(kind, rng):
    # The mean of sampled sums of weights is the sum over all edges.
    dataset = make_graph_dataset()
    weight = rng.uniform(1, 2, len(dataset.src)).astype(np.float32)
    dataset = dataclasses.replace(dataset, edge_weight=weight)
    options = {"edge_weight": True} if kind is GINConfig else {}
    config = settings(kind, batch_size=40, fanouts=(2,), num_layers=1, **options)
    split = Split(*np.split(np.arange(40), [20, 30]))
    feed = SampledNodes(dataset, config, [split])
    data = feed.start(config, split, 0)

    @jax.jit
    def sums(key):
        batch = feed.batch(data, jnp.arange(40, dtype=jnp.int32), key)
        (block,) = batch.graph.graphs
        (values,) = batch.inputs[1]["edge_weight"]
        return jax.ops.segment_sum(values, block.rows, 40)

    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 2000)
    samples = np.asarray(jax.lax.map(sums, keys, batch_size=100), np.float64)
    weights = np.ones(feed.graph.num_edges)
    if kind is GINConfig:
        weights = np.asarray(feed.inputs[1]["edge_weight"], np.float64)
    expected = np.bincount(np.asarray(feed.graph.rows), weights, 40)
    # Six standard errors of the mean: a false alarm in 10^8 runs.
    error = samples.std(0) / np.sqrt(len(keys))
    assert (np.abs(samples.mean(0) - expected) <= 6 * error + 1e-4).all()


@pytest.mark.parametrize(("config", "make"), MODELS)
def test_one_trace_of_a_step_and_the_same_bits_again(config, make, monkeypatch):
    # Splits, short last batches and evaluations share a trace; a longer run has the same bits.
    dataset, traces = make(), []
    batch, compiled = SampledNodes.batch, []

    def counted(self, *arguments):
        traces.append(1)
        return batch(self, *arguments)

    monkeypatch.setattr(SampledNodes, "batch", counted)
    advance = Runner.advance

    def watched(self, *arguments):
        metrics = advance(self, *arguments)
        compiled.append(len(self._compiled))
        return metrics

    monkeypatch.setattr(Runner, "advance", watched)
    small = settings(config, batch_size=7, fanouts=(3, 2), splits=2)
    first = train(dataset, small)
    assert len(traces) == 1  # of steps and epochs alike
    assert compiled == [1] * 6
    again = train(dataset, dataclasses.replace(small, epochs=4))
    assert_same_curves(first.run, again.run, epochs=3)
    assert np.isfinite(first.run.train_loss).all()
    assert first.baseline is None


def easy(rng, num_nodes=400) -> GraphDataset:
    """Two classes, whose nodes' neighbours tell them, and not their own features."""
    y = rng.integers(0, 2, num_nodes).astype(np.int32)
    groups = [np.flatnonzero(y == c) for c in (0, 1)]
    dst = np.repeat(np.arange(num_nodes), 12)
    src = np.stack([rng.choice(groups[c], 12) for c in y]).ravel()
    x = (rng.normal(size=(num_nodes, 4)) + y[:, None]).astype(np.float32)
    return GraphDataset(name="easy", src=src, dst=dst, num_nodes=num_nodes, x=x, y=y)


# --- Times of edges -------------------------------------------------------------------------------


def timed(rng, num_nodes=40, num_edges=300) -> GraphDataset:
    """Edges of weights and times, of which many are equal, and nodes before the first of them."""
    src, dst = rng.integers(num_nodes, size=(2, num_edges))
    y = rng.integers(2, size=num_nodes)
    y[-5:] = -1
    return GraphDataset(
        name="timed",
        num_nodes=num_nodes,
        src=src,
        dst=dst,
        x=rng.normal(size=(num_nodes, 4)),
        y=y,
        edge_weight=rng.uniform(0.5, 2, num_edges),
        edge_time=rng.integers(9, size=num_edges) * 10**12,  # beyond int32
        node_time=rng.integers(-2, 11, num_nodes) * 10**12,
    )


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("config", [GCNConfig, GINConfig, SAGEConfig, GATConfig])
def test_seeds_see_the_edges_up_to_their_time(config, undirected, rng):
    # Steps, evaluations and predictions are those on each seed's graph of the past.
    with jax.enable_x64(True):
        options = {"edge_weight": True} if config is not GATConfig else {}
        options |= {"direction": "undirected" if undirected else "directed", "edge_time": True}
        dataset = timed(rng)
        small = settings(config, **ALL, **options, feature_normalization="none")
        split = Split(*np.split(np.arange(35), [20, 30]))
        feed, _, model, seeds, batch = started(dataset, small, split, rng)
        step = feed.logits(model, batch.graph, batch.inputs, None)
        evaluated = feed.logits(model, feed.graph, feed.inputs, None)
        predicted = TrainedModel(model, small).predict(dataset)
        expected = []
        edges = np.asarray(feed.graph.cols), np.asarray(feed.graph.rows)
        times, weight = (
            values[np.asarray(feed.graph.edge_ids)]
            for values in (dataset.edge_time, dataset.edge_weight)
        )
        for node, time in enumerate(dataset.node_time):
            src, dst = (ids[times <= time] for ids in edges)
            graph = Graph.from_edges(src, dst, num_nodes=40)
            past = {} if config is GATConfig else {"edge_weight": weight[times <= time]}
            logits = model(graph, feed.inputs[0], **past, deterministic=True)
            expected.append(logits[node])
        expected, valid = np.stack(expected), np.asarray(seeds) >= 0
        near = {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(step[valid], expected[seeds[valid]], **near)
        np.testing.assert_allclose(evaluated[:35], expected[:35], **near)
        np.testing.assert_array_equal(evaluated[35:], 0)  # no label, no evaluation
        np.testing.assert_allclose(predicted, expected, **near)


@pytest.mark.parametrize("config", [RGCNConfig, HGTConfig, SimpleHGNConfig])
def test_seeds_see_the_facts_up_to_their_time(config, rng):
    with jax.enable_x64(True):
        dataset = make_typed_dataset()
        times = {"edge_time": rng.integers(9, size=dataset.num_edges) * 10**12}
        times |= {"node_time": rng.integers(-2, 11, dataset.num_nodes) * 10**12}
        dataset = dataclasses.replace(dataset, **times)
        small = settings(config, **ALL, edge_time=True)
        split = Split(*np.split(np.arange(40), [20, 30]))
        feed, _, model, seeds, batch = started(dataset, small, split, rng)
        step = feed.logits(model, batch.graph, batch.inputs, None)
        evaluated = feed.logits(model, feed.graph, feed.inputs, None)
        predicted = TrainedModel(model, small).predict(dataset)
        for seed, logits in zip(np.asarray(seeds).tolist(), step, strict=True):
            if seed < 0:
                continue
            is_past = dataset.edge_time <= dataset.node_time[seed]
            facts = {name: getattr(dataset, name)[is_past] for name in ("src", "rel", "dst")}
            past = dataclasses.replace(dataset, **facts, edge_time=None)
            graph = RECIPES[config.model].structure(past, small)
            expected = model(graph, feed.inputs[0], deterministic=True)[seed]
            for found in (logits, evaluated[seed], predicted[seed]):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def in_time(rng, before: bool, count=600) -> GraphDataset:
    """Classes that the edges of nodes tell, which all come before their time, or after it."""
    dataset, time = easy(rng, count), rng.integers(100, 200, count)
    delay = rng.integers(0, 50, dataset.num_edges)
    edge_time = time[dataset.dst] + np.where(before, -delay, delay + 1)
    x = rng.normal(size=(count, 4)) + 2 * dataset.y[:, None]
    x[time >= 150] = 0  # half have no features, and are told by their neighbours alone
    parts = np.split(np.flatnonzero(time >= 150), [100, 200])
    split = dict(zip(("train_idx", "val_idx", "test_idx"), parts, strict=True))
    return dataclasses.replace(dataset, x=x, edge_time=edge_time, node_time=time, **split)


@pytest.mark.parametrize("fanouts", [(6, 6), (-1, 3)])
@pytest.mark.parametrize("config", [GCNConfig, SAGEConfig, GATConfig])
def test_the_past_tells_and_the_future_does_not(config, fanouts, rng, monkeypatch):
    # Sampled evaluations, too: their bound is below all edges.
    monkeypatch.setattr(neighborhoods, "MAX_EVALUATED", 10)
    monkeypatch.setattr(neighborhoods, "CHUNK_EDGES", 900)
    options = {"splits": 1, "epochs": 25, "hidden_features": 16, "batch_size": 32}
    options |= {"direction": "directed", "fanouts": fanouts, "learning_rate": 0.02}
    accuracies = {}
    for before in (True, False):
        dataset = in_time(rng, before)
        for timed in (True, False):
            run = train(dataset, config(**options, edge_time=timed)).run
            accuracies[before, timed] = run.test_accuracy[0, -1]
    assert min(accuracies[key] for key in ((True, True), (True, False), (False, False))) > 0.85
    # Four standard deviations of chance among 100 or so test nodes.
    assert abs(accuracies[False, True] - 0.5) < 0.2


def test_later_nodes_are_told_by_their_past(rng):
    # All nodes have times, so that the earliest train and each sees its past alone.
    dataset = in_time(rng, True)
    dataset = dataclasses.replace(dataset, train_idx=None, val_idx=None, test_idx=None)
    options = {"splits": 1, "epochs": 25, "hidden_features": 16, "batch_size": 32}
    result = train(dataset, SAGEConfig(**options, direction="directed", edge_time=True))
    times = [dataset.node_time[ids] for ids in vars(result.trained.split).values()]
    assert [*map(len, times)] == [300, 150, 150] and result.run.over == "seeds"
    assert times[0].max() <= times[1].min() <= times[1].max() <= times[2].min()
    assert result.run.best_test_accuracy[0] > 0.85
    for split in ("random", "published"):
        config = SAGEConfig(**options, split=split)
        assert not splits_by_time(dataset, config)
    with pytest.raises(ValueError, match="must not be 'time' with folds"):
        GINGraphConfig(split="time", folds=3)


def test_runs_by_time_go_on_and_load(tmp_path, rng, monkeypatch):
    # Resumed, and loaded, to the same bits, as the evaluations that are drawn have a fixed key.
    monkeypatch.setattr(neighborhoods, "MAX_EVALUATED", 10)
    dataset, file = timed(rng), tmp_path / "state.npz"
    config = settings(GCNConfig, batch_size=7, fanouts=(3, 2), splits=2, edge_time=True)
    expected = train(dataset, config)
    interrupt(dataset, config, int(rng.integers(6)), state=file)
    with pytest.raises(ValueError, match="other data: another structure"):
        later = dataclasses.replace(dataset, node_time=dataset.node_time[::-1])
        train(later, config, state=file, resume=True)
    resumed = train(dataset, config, state=file, resume=True)
    assert_same_curves(resumed.run, expected.run)
    trained = expected.trained
    save_checkpoint(tmp_path / "it", trained)
    loaded, logits = load_checkpoint(tmp_path / "it"), trained.predict(dataset)
    assert loaded.config == trained.config and loaded.config.fanouts == (3, 2)
    np.testing.assert_array_equal(loaded.predict(dataset), logits)
    recorded = expected.run.best_test_accuracy[trained.seed]
    assert trained.accuracies(dataset, logits)["test"] == pytest.approx(recorded)
    # Nodes in another order see the same edges, of which all are taken.
    monkeypatch.undo()
    order = rng.permutation(40)
    places = np.argsort(order)
    rows = {name: getattr(dataset, name)[order] for name in ("x", "y", "node_time")}
    ends = {name: places[getattr(dataset, name)] for name in ("src", "dst")}
    shuffled = dataclasses.replace(dataset, **rows, **ends)
    near = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(trained.predict(shuffled), trained.predict(dataset)[order], **near)
    with pytest.raises(ValueError, match="has no times of edges and of nodes, edge_time and node"):
        trained.predict(dataclasses.replace(dataset, node_time=None))
    with pytest.raises(ValueError, match=r"devices must be 1: gcn samples edges up to each node"):
        trained.predict(dataset, devices=2)
    with pytest.raises(ValueError, match="edge_time needs a batch_size"):
        GCNConfig(edge_time=True)


def test_command(tmp_path, capsys, rng):
    data, folder = save(tmp_path / "timed.npz", timed(rng)), tmp_path / "run"
    words = ["train", "sage", "--data", data, "--splits", "2", "--epochs", "2", "--output"]
    words += [str(folder), "--batch-size", "7", "--fanouts", "3,2"]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "--batch-size N --edge-time: up to their own" in err
    assert "seeds per second" in out and err.count("seeds/s") == 2
    assert cli.main([*words, "--edge-time", "--overwrite"]) == 0
    out, err = capsys.readouterr()
    assert re.search("evaluated on +all edges up to each node's time\n", out)
    assert "times of edges are not used" not in err
    assert cli.main(["predict", str(folder), "--data", data]) == 0
    results = json.loads((folder / "results.json").read_text())
    assert results["config"]["fanouts"] == [3, 2] and results["plain_jax"] is None
    accuracy = results["jax_gnn"]["test_accuracy"][results["checkpoint_split"] - 1]
    out = capsys.readouterr().out
    assert "all edges up to each node's time" in out and f"{100 * accuracy:.2f} %" in out


def test_evaluation_by_layer(monkeypatch, rng):
    # In chunks the curves are those of an evaluation at once.
    dataset = easy(rng, 120)
    config = settings(SAGEConfig, batch_size=16, fanouts=(3, 2))
    at_once = train(dataset, config).run
    # The loss is the mean over all seeds, also where the last step has one seed alone.
    still = {"epochs": 1, "learning_rate": 1e-30, "fanouts": (-1, -1)}
    configs = (dataclasses.replace(config, **still, batch_size=size) for size in (59, 60))
    losses = [train(dataset, other).run.train_loss for other in configs]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    monkeypatch.setattr(feeds, "CHUNK_EDGES", 100)
    by_layer = train(dataset, config).run
    for name in ("train_accuracy", "valid_accuracy", "test_accuracy"):
        a, b = getattr(at_once, name), getattr(by_layer, name)
        np.testing.assert_allclose(a, b, atol=1.5 / 30)  # ties of logits that round otherwise


def test_bad_settings():
    for changes, message in (
        ({"fanouts": (5, 5)}, "fanouts need a batch_size, the nodes of a step, got"),
        ({"batch_size": 3, "fanouts": (5,)}, "fanouts must be one for each of num_layers = 2"),
        ({"batch_size": 3, "fanouts": (5, 0)}, "fanouts must be whole numbers"),
        ({"batch_size": 3, "fanouts": 7}, "fanouts must be whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            SAGEConfig(**changes)
    with pytest.raises(ValueError, match="batch_size is for nodes with features"):
        train(make_relational_dataset(), RGCNConfig(**SMALL, batch_size=3))
    configs = {config for config, _ in MODELS} | {GATv2Config, GraphTransformerConfig}
    assert {r.config for r in RECIPES.values() if hasattr(r.config, "fanouts")} == configs


# --- Interrupted runs ----------------------------------------------------------------------------


def interrupt(dataset, config, epoch, **options):
    """Train, and end by an exception after an epoch, counted over all splits."""

    def halt(report):
        if config.epochs * report.split + report.epoch == epoch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataset, config, on_epoch=halt, **options)


@pytest.mark.parametrize("config", [SAGEConfig, RGCNConfig])
def test_resumed_runs_have_the_same_bits(config, tmp_path, rng):
    # Wherever they were interrupted, twice, and with splits that had ended before.
    dataset = make_graph_dataset() if config is SAGEConfig else make_typed_dataset()
    small = settings(config, batch_size=7, fanouts=(3, 2), splits=2, dropout_rate=0.5)
    expected, file = train(dataset, small), tmp_path / "state.npz"
    # Two splits of three epochs; each interruption is after another of the six.
    stops = np.sort(rng.choice(6, 2, replace=False))
    for stop in stops:
        interrupt(dataset, small, stop, state=file, resume=True)
    reports = []
    resumed = train(dataset, small, on_epoch=reports.append, state=file, resume=True)
    assert len(reports) == 5 - stops[-1]
    assert not file.exists()
    assert_same_curves(resumed.run, expected.run)
    assert resumed.trained.seed == expected.trained.seed
    logits = (result.trained.predict(dataset) for result in (resumed, expected))
    np.testing.assert_array_equal(*logits)


def test_the_state_is_written_now_and_then(tmp_path, monkeypatch):
    # A process that ends without an exception leaves a state, written no more often than set.
    dataset, file = make_graph_dataset(), tmp_path / "state.npz"
    config = settings(SAGEConfig, batch_size=7, fanouts=(3, 2))
    for every, expected in ((0.0, [True] * 3), (1e9, [False] * 3)):
        monkeypatch.setattr(resume, "EVERY", every)
        exists = []
        train(dataset, config, on_epoch=lambda _: exists.append(file.exists()), state=file)  # noqa: B023
        assert exists == expected and not file.exists()


def test_resumed_runs_on_the_whole_graph(tmp_path):
    # A call has ten epochs, and the run without kernels continues, too.
    dataset, file = make_graph_dataset(), tmp_path / "state.npz"
    config = GCNConfig(**SMALL | {"epochs": 12})
    expected = train(dataset, config, baseline=True)
    interrupt(dataset, config, 9, baseline=True, state=file)
    resumed = train(dataset, config, baseline=True, state=file, resume=True)
    assert_same_curves(resumed.run, expected.run)
    assert_same_curves(resumed.baseline, expected.baseline)


def test_what_cannot_be_resumed(tmp_path):
    dataset, config = make_graph_dataset(), settings(SAGEConfig, batch_size=7, fanouts=(3, 2))
    file = tmp_path / "state.npz"
    interrupt(dataset, config, 0, state=file)
    contents = file.read_bytes()
    changed = dataclasses.replace(config, epochs=4, fanouts=(2, 2))
    changes = r"epochs=3 \(now 4\), fanouts=\[3, 2\] \(now \[2, 2\]\)"
    with pytest.raises(ValueError, match=f"is of a training with other settings: {changes}$"):
        train(dataset, changed, state=file, resume=True)
    renamed = dataclasses.replace(dataset, name="other", x=dataset.x + 1)
    names = rf"name={dataset.name!r} \(now 'other'\)"
    with pytest.raises(
        ValueError, match=rf"with other data: {names}, another features, another scal"
    ):
        train(renamed, config, state=file, resume=True)
    with pytest.raises(ValueError, match=r"has the state of an interrupted training: .*=True"):
        train(dataset, config, state=file)
    assert file.read_bytes() == contents
    for damaged in (b"PK", b"", contents[: len(contents) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="holds no training to go on with"):
            train(dataset, config, state=file, resume=True)


def test_full_disk_leaves_the_state_before(tmp_path, monkeypatch, small_files):
    dataset, config = make_graph_dataset(), settings(SAGEConfig, batch_size=7, fanouts=(3, 2))
    expected, file = train(dataset, config), tmp_path / "state.npz"
    monkeypatch.setattr(resume, "EVERY", 0.0)
    with contextlib.ExitStack() as stack:

        def fill_the_disk(_):
            stack.enter_context(small_files(2000))

        with pytest.raises(OSError, match=f"File too large: '{file}'"):
            train(dataset, config, on_epoch=fill_the_disk, state=file)
    assert [*tmp_path.iterdir()] == [file]
    resumed = train(dataset, config, state=file, resume=True)
    np.testing.assert_array_equal(resumed.run.train_loss, expected.run.train_loss)


def test_resumed_command(tmp_path, capsys, monkeypatch):
    data = save(tmp_path / "easy.npz", make_graph_dataset())
    batches = ["--batch-size", "7", "--fanouts", "3,2", "--splits", "1", "--epochs", "3"]

    def words(name):
        return ["train", "sage", "--data", data, *batches, "--output", str(tmp_path / name)]

    def run(*words):
        code = cli.main([*words])
        return code, (capsys.readouterr().err.splitlines() or [""])[-1]

    assert run(*words("whole"))[0] == 0
    advance, calls = Runner.advance, []

    def stops(self, *arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    monkeypatch.setattr(Runner, "advance", stops)
    arguments, folder = words("other"), tmp_path / "other"
    line = f"jax-gnn: interrupted; to go on: jax-gnn {shlex.join(arguments)} --resume"
    assert run(*arguments) == (130, line)
    state = (folder / "state.npz").read_bytes()
    for command, message in (
        (arguments, f"{folder} has the state of an interrupted run: --resume goes on with it"),
        ([*arguments, "--resume", "--learning-rate", "0.5"], "learning_rate=0.01 (now 0.5)"),
        (["predict", str(folder)], f"{folder} has no checkpoint yet, as its training was interr"),
    ):
        code, line = run(*command)
        assert code == 2 and message in line
    assert (folder / "state.npz").read_bytes() == state
    assert run(*arguments, "--resume")[0] == 0
    assert len(calls) == 4
    first, again = (
        json.loads((tmp_path / name / "results.json").read_text())["jax_gnn"]["test_accuracy"]
        for name in ("whole", "other")
    )
    assert first == again
    assert run("predict", str(folder), "--data", data)[0] == 0  # the folder of a run
    # A new run over the results of the old one is interrupted at its second epoch.
    calls[:] = [1]
    assert run(*arguments, "--overwrite")[0] == 130
    assert (folder / "state.npz").exists()
    assert run(*arguments, "--overwrite")[0] == 0  # anew
    assert len(calls) == 6


# --- Capacity of blocks ---------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [False, True])
def test_a_step_does_not_depend_on_the_capacity(fits, monkeypatch, rng):
    # A batch that exceeds the capacity is drawn again with room for all.
    dataset = easy(rng, 200)
    config = settings(SAGEConfig, batch_size=16, fanouts=(3, 2), direction="directed")
    expected = train(dataset, config).run
    capacities = []

    def capacity(graph, batches, fanouts, key):
        seeds = batches.shape[1]
        blocks = jax.eval_shape(lambda: sample_neighbors(graph, batches[0], fanouts, key))
        sources = blocks.graphs[0].num_src
        capacities.append((seeds + 40, sources * 3 // 4) if fits else (seeds + 2, seeds + 4))
        return capacities[-1]

    monkeypatch.setattr(feeds, "_SMALL", 0)
    monkeypatch.setattr(feeds, "block_capacity", capacity)
    run = train(dataset, config).run
    assert len(capacities) == 1
    np.testing.assert_allclose(run.train_loss, expected.train_loss, rtol=1e-4)


@pytest.mark.parametrize("model", ["sage", "gcn --task link"])
def test_a_disk_that_fills_up_where_results_are_written(model, tmp_path, capsys, monkeypatch):
    words = ["train", *model.split(), "--data", save(tmp_path / "data.npz", make_graph_dataset())]
    words += ["--epochs", "3", *["--splits", "1"] * (model == "sage")]
    words += ["--output", str(folder := tmp_path / "run")]
    write, complete = report.save_checkpoint, Path.write_text

    def write_text(path, text):
        if path.name == "results.json":
            raise OSError(28, "No space left on device")
        return complete(path, text)

    def full(path, trained):
        raise OSError(28, "No space left on device")

    # First no checkpoint fits, then no results: the run goes on from its end, to both.
    for attribute, target in (
        ((report, "save_checkpoint"), full),
        ((Path, "write_text"), write_text),
    ):
        again = words if target is full else [*words, "--resume"]
        monkeypatch.setattr(*attribute, target)
        assert cli.main(again) == 2
        monkeypatch.setattr(report, "save_checkpoint", write)
        monkeypatch.setattr(Path, "write_text", complete)
        line = capsys.readouterr().err.splitlines()[-1]
        command = shlex.join(["jax-gnn", *words, "--resume"])
        assert line.endswith(f"run: No space left on device; to go on: {command}")
        assert (folder / "state.npz").exists()
    assert cli.main([*words, "--resume"]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint", "learning_curves.png", "results.json"
    ]  # fmt: skip


def test_an_interruption_that_python_drops(tmp_path, capsys, monkeypatch):
    # In a callback of the garbage collector, as JAX has one, it raises nothing.
    advance = Runner.advance
    monkeypatch.setattr(signal, "getsignal", lambda number: kept[-1])
    kept = [signal.default_int_handler]
    monkeypatch.setattr(signal, "signal", lambda number, handler: kept.append(handler))

    def drops(self, *arguments):
        with contextlib.suppress(KeyboardInterrupt):
            kept[-1](signal.SIGINT, None)
        return advance(self, *arguments)

    monkeypatch.setattr(Runner, "advance", drops)
    data = save(tmp_path / "data.npz", make_graph_dataset())
    words = ["train", "sage", "--data", data, "--splits", "1", "--output", str(tmp_path / "run")]
    assert cli.main(words) == 130
    assert "interrupted; to go on: " in capsys.readouterr().err
    assert kept[-1] is signal.default_int_handler and (tmp_path / "run" / "state.npz").exists()
