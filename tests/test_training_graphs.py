"""Training on many graphs, and on labels that are numbers."""

import dataclasses
import json

import numpy as np
import pytest

from flax_layers import training
from flax_layers.training.data import split_of
from flax_layers.training.graphs import Sampler
from jax_gnn import cli
from jax_gnn.datasets import GraphDataset, GraphsDataset


def rings_and_trees(rng, count=60):
    """Rings, and trees of as many nodes, without features that tell."""
    sizes, y = rng.integers(5, 12, count), np.arange(count) % 2
    pairs = []
    for size, label, first in zip(sizes, y, np.cumsum(sizes) - sizes, strict=True):
        ids = np.arange(1, size)
        # A ring is a path that is closed; a tree hangs each node on any before it.
        parents = ids - 1 if label else (rng.random(size - 1) * ids).astype(int)
        edges = np.stack([ids, parents], 1)
        pairs.append(first + (np.append(edges, [[0, size - 1]], 0) if label else edges))
    edges = np.concatenate(pairs).T
    src, dst = np.concatenate([edges, edges[::-1]], 1)
    nodes = int(sizes.sum())
    features = {"x": np.ones((nodes, 1)), "edge_features": np.ones((src.size, 2))}
    return GraphsDataset(
        name="shapes", num_nodes=nodes, sizes=sizes, src=src, dst=dst, y=y, **features
    )


SMALL = {"hidden_features": 16, "num_layers": 3, "batch_size": 16}


@pytest.fixture(scope="module")
def shapes():
    dataset = rings_and_trees(np.random.default_rng(0), 160)
    config = training.GINGraphConfig(**SMALL, epochs=25, splits=1, steps=8, dropout_rate=0.0)
    return dataset, training.train(dataset, config)


def test_rings_against_trees(shapes, tmp_path):
    dataset, result = shapes
    assert result.run.accuracy_mean >= 0.99
    assert f"(gin-graph, accuracy_mean={result.run.accuracy_mean:.4f}, " in repr(result)
    training.save_checkpoint(tmp_path / "model", result.trained)
    loaded = training.load_checkpoint(tmp_path / "model")
    logits = result.trained.predict(dataset)
    np.testing.assert_array_equal(loaded.predict(dataset), logits)
    test_accuracy = loaded.accuracies(dataset, logits)["test"]
    assert test_accuracy == result.run.best_test_accuracy[0]
    unseen = rings_and_trees(np.random.default_rng(1), 50)
    hits = np.asarray(loaded.predict(unseen)).argmax(1) == unseen.y
    assert hits.mean() >= 0.95


def test_batches_of_one_shape_hold_graphs_of_the_split(rng):
    dataset = rings_and_trees(rng)
    ids = rng.permutation(60)[:40]
    config = training.GINGraphConfig(**SMALL, steps=5)
    # Graphs that exceed the budget are left out, so that a batch may have less than 16.
    sampler = Sampler(dataset, dataset.x, 40, config)
    shapes = set()
    for _ in range(3):
        batches, rows, numbers = sampler.epoch(ids, rng)
        assert np.isin(numbers[numbers >= 0], ids).all()
        assert len(numbers) == sampler.steps == 5
        shapes.add((batches.graph_ids.shape, batches.graph.rows.shape, rows[0].shape))
        for i in range(5):
            graphs = numbers[i][numbers[i] >= 0]
            sizes = dataset.sizes[graphs]
            assert np.unique(graphs).size == graphs.size >= 12
            np.testing.assert_array_equal(batches.num_nodes[i][: graphs.size], sizes)
            assert rows[0][i].sum() == sizes.sum()
    assert len(shapes) == 1
    once = Sampler(dataset, dataset.x, 40, dataclasses.replace(config, steps=0))
    _, _, numbers = once.epoch(ids, rng)
    assert numbers.shape == (3, 16) and (numbers >= 0).sum() >= 36


def test_cross_validation_has_one_epoch(rng):
    # Folds of 8 and 9 leave 16 or 17 graphs to train on, which are one or two batches.
    dataset = rings_and_trees(rng, 25)
    config = training.GCNGraphConfig(**SMALL, folds=3, epochs=2)
    result = training.train(dataset, config)
    run = result.run
    assert run.valid_accuracy.shape == (3, 2) and run.over == "folds"
    assert (run.best_epoch == run.valid_accuracy.mean(0).argmax()).all()
    assert run.accuracy_mean == pytest.approx(run.valid_accuracy.mean(0).max())
    held_out = [split_of(dataset, config, seed).test for seed in range(3)]
    np.testing.assert_array_equal(np.sort(np.concatenate(held_out)), np.arange(25))
    # Folds of the data take the place of random ones; graphs without a label test nothing.
    folds, y = np.minimum(np.arange(25) // 8, 2), np.where(np.arange(25) == 9, -1, dataset.y)
    published = dataclasses.replace(dataset, folds=folds, y=y)
    assert split_of(published, config, 1).test.tolist() == [8, *range(10, 16)]
    split = split_of(dataset, config, 1)
    assert not np.intersect1d(split.train, split.test).size
    with pytest.raises(ValueError, match="has 25 labelled graphs; splits need at least 30"):
        training.train(dataset, dataclasses.replace(config, folds=30))


def write_tu(folder, dataset):
    """Write TUDataset's files, with two attributes of each edge, and labels of neither."""
    folder.mkdir()
    ids = np.repeat(np.arange(dataset.num_graphs), dataset.sizes)
    ends = np.stack([dataset.src, dataset.dst], 1)
    attributes = np.stack([dataset.src % 2, dataset.dst % 3], 1) + 0.5
    files = {"A": ends + 1, "graph_indicator": ids + 1, "graph_labels": dataset.y}
    for what, table in (files | {"edge_attributes": attributes}).items():
        np.savetxt(folder / f"shapes_{what}.txt", table, "%g", delimiter=", ")


@pytest.mark.parametrize("model", ["gine-graph", "gatedgcn-graph"])
def test_features_of_edges_decide(rng, model):
    """Graphs are alike, but for a feature that the edges of one class have."""
    dataset = rings_and_trees(rng, 80)
    y = rng.integers(2, size=80)
    ids = np.repeat(np.arange(80), dataset.sizes)
    amounts = 1e4 * rng.normal(10, 1, dataset.num_edges)  # which hide it unless they are scaled
    features = np.stack([y[ids[dataset.dst]], amounts], 1)
    dataset = dataclasses.replace(dataset, y=y, edge_features=features)
    config = training.RECIPES[model].config(**SMALL, epochs=30, splits=1, dropout_rate=0.0)
    result = training.train(dataset, config)
    assert result.run.accuracy_mean >= 0.85
    assert result.trained.config.edge_in_features == 2
    logits = result.trained.predict(dataset)
    assert result.trained.accuracies(dataset, logits)["test"] == result.run.best_test_accuracy[0]
    without = dataclasses.replace(dataset, edge_features=None)
    if model == "gatedgcn-graph":
        with pytest.raises(ValueError, match="dataset 'shapes' has no edge_features, features of"):
            training.train(without, config)
    with pytest.raises(ValueError, match="edge_features"):
        result.trained.predict(without)


@pytest.mark.parametrize("model", [name for name in training.RECIPES if name.endswith("-graph")])
def test_graphs_by_command(model, rng, tmp_path, capsys):
    dataset = rings_and_trees(rng, 12)
    data = ["--data", str(tmp_path / "shapes.txt")]
    if training.RECIPES[model].config.edge_input:
        write_tu(tmp_path / "shapes", dataset)
        data = ["--data", str(tmp_path / "shapes")]
    # The format of GIN's code: the label of a graph, then the neighbours of each node.
    lines = ["12"]
    for number, size in enumerate(dataset.sizes):
        graph = dataset.batch([number]).graph
        lines.append(f"{size} {dataset.y[number]}")
        src, dst = np.asarray(graph.cols), np.asarray(graph.rows)
        neighbours = [src[dst == node] for node in range(size)]
        lines += [f"0 {len(ids)} {' '.join(map(str, ids))}" for ids in neighbours]
    (tmp_path / "shapes.txt").write_text("\n".join(lines))
    folder = tmp_path / "out"
    options = ["--epochs", "1", "--folds", "2", "--output", str(folder)]
    options += ["--hidden-features", "8", "--layers", "1"]
    options += ["--devices", "2"] * (model == "gcn-graph")
    name = model.removesuffix("-graph")
    assert cli.main(["train", name, "--task", "graph", *data, *options]) == 0
    out = capsys.readouterr().out
    assert "shapes: 12 graphs, " in out and "accuracy of 2 folds" in out
    if model == "gcn-graph":
        partition = ["--partition", "hash", "--overwrite"]
        assert cli.main(["train", name, "--task", "graph", *data, *options, *partition]) != 0
        assert "--partition is for the nodes of one graph" in capsys.readouterr().err
    assert "same predictions" in out
    results = json.loads((folder / "results.json").read_text())
    assert results["plain_jax"] is None and "features" not in results["config"]
    assert (folder / "learning_curves.png").stat().st_size > 10_000
    assert cli.main(["predict", str(folder / "checkpoint"), *data]) == 0
    out = capsys.readouterr().out
    assert out.count("fold accuracy") == 1 and "test" not in out and "validation" not in out


def test_data_of_another_task(tmp_path, capsys):
    (tmp_path / "shapes.txt").write_text("1\n2 0\n0 1 1\n0 1 0\n")
    edges = {"num_nodes": 2, "src": [0], "dst": [1], "y": [0, 1]}
    np.savez(tmp_path / "pair.npz", **edges)
    for model, name, task in (("gcn", "shapes.txt", "graph"), ("gin-graph", "pair.npz", "node")):
        assert cli.main(["train", model, "--data", str(tmp_path / name)]) == 2
        message = f"jax-gnn: error: --data: {tmp_path / name} is for --task {task}\n"
        assert capsys.readouterr().err == message


def numbers_of_nodes():
    """A ring whose nodes have the mean of their neighbours' feature, in large numbers."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(80, 3))
    src = np.concatenate([np.arange(80), np.arange(80)])
    dst = np.concatenate([np.arange(1, 81) % 80, np.arange(-1, 79) % 80])
    y = 1000 + 50 * (np.roll(x[:, 0], 1) + np.roll(x[:, 0], -1))
    y[:4] = np.nan
    return GraphDataset(name="ring", num_nodes=80, x=x, src=src, dst=dst, y=y)


def test_regression_of_nodes(tmp_path):
    dataset = numbers_of_nodes()
    rates = {"dropout_rate": 0.0, "weight_decay": 0.0}
    config = training.SAGEConfig(epochs=100, splits=2, hidden_features=16, **rates)
    result = training.train(dataset, config, baseline=True)
    np.testing.assert_allclose(result.run.train_loss, result.baseline.train_loss, atol=1e-2)
    assert result.errors["r2"].min() > 0.5
    assert f", r2={result.errors['r2'].mean():.4g})" in repr(result)
    assert (result.errors["mae"] <= result.errors["rmse"]).all()
    training.save_checkpoint(tmp_path / "model", result.trained)
    loaded = training.load_checkpoint(tmp_path / "model")
    predictions = np.asarray(loaded.predict(dataset))
    np.testing.assert_array_equal(predictions, result.trained.predict(dataset))
    test = loaded.parts(dataset)["test"]
    assert predictions.shape == (80, 1)
    split = loaded.seed
    mae = np.abs(predictions[test, 0].astype(np.float64) - dataset.y[test]).mean()
    assert mae == result.errors["mae"][split]
    r2 = loaded.accuracies(dataset, predictions)["test"]
    assert r2 == pytest.approx(result.errors["r2"][split], abs=1e-3)


def test_regression_of_graphs_on_several_numbers():
    dataset = rings_and_trees(np.random.default_rng(3), 40)
    edges = np.bincount(np.repeat(np.arange(40), dataset.sizes)[dataset.dst])
    y = np.stack([dataset.sizes * 3.0, -2.0 * edges], 1)
    changes = {"num_layers": 1, "learning_rate": 0.03, "dropout_rate": 0.0, "graph_reduce": "sum"}
    config = training.GCNGraphConfig(**SMALL | changes, epochs=80, splits=1)
    with pytest.raises(ValueError, match="has numbers to regress on; folds are of classes"):
        training.train(dataclasses.replace(dataset, y=y), dataclasses.replace(config, folds=2))
    result = training.train(dataclasses.replace(dataset, y=y), config)
    assert result.trained.predict(dataset).shape == (40, 2)
    assert result.errors["r2"][0] > 0.3


def test_numbers_by_command(tmp_path, capsys):
    dataset, data = numbers_of_nodes(), str(tmp_path / "ring.npz")
    np.savez(
        data, **{name: getattr(dataset, name) for name in ("num_nodes", "src", "dst", "x", "y")}
    )
    run = ["train", "gcn", "--data", data, "--epochs", "3", "--splits", "2"]
    assert cli.main([*run, "--no-baseline", "--output", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    mae = np.array(results["test_errors"]["mae"])
    words = " ".join(out.split())
    assert f"test MAE {mae.mean():.4g} ± {mae.std(ddof=1):.2g}" in words
    assert "test RMSE" in words and "test R2" in words and "1 targets" in words
    assert "best validation R2" in err
    table, model = tmp_path / "found.csv", str(tmp_path / "out" / "checkpoint")
    assert cli.main(["predict", model, "--data", data, "--output", str(table)]) == 0
    mae = results["test_errors"]["mae"][results["checkpoint_split"] - 1]
    assert f" test MAE {mae:.4g}, RMSE " in " ".join(capsys.readouterr().out.split())
    assert table.read_text().startswith("node,prediction\n0,")
