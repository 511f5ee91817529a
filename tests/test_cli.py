import argparse
import csv
import dataclasses
import errno
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_gnn
from flax_layers import GCN
from flax_layers.training import (
    LINK_RECIPES,
    RECIPES,
    GCNConfig,
    TrainedModel,
    load_checkpoint,
    predict,
    run_nodes,
    save_checkpoint,
    sources,
)
from flax_layers.training.data import Fingerprint, fingerprint
from flax_layers.training.report import LinkProgress
from jax_gnn import cli
from jax_gnn._core import ffi
from jax_gnn.datasets import HypergraphDataset, digits_graph, load_graph, random_split
from jax_gnn.extend import load_any
from jax_gnn.sharding import load_parts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset of two classes in the library's own .npz schema."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 20).astype(np.int32)
    hyperedge_idx = np.repeat(np.arange(12), 4).astype(np.int32)
    node_idx = np.concatenate(
        [np.sort(20 * (i % 2) + rng.choice(20, 4, replace=False)) for i in range(12)]
    ).astype(np.int32)
    path = tmp_path / "tiny.npz"
    np.savez(
        path,
        num_nodes=40,
        num_hyperedges=12,
        node_idx=node_idx,
        hyperedge_idx=hyperedge_idx,
        x=(rng.normal(size=(40, 6)) + y[:, None]).astype(np.float32),
        y=y,
    )
    return path


@pytest.fixture
def featureless(data: Path) -> Path:
    with np.load(data) as arrays:
        kept = {name: arrays[name] for name in arrays.files if name != "x"}
    path = data.with_name("featureless.npz")
    np.savez(path, **kept)
    return path


@pytest.fixture
def planetoid(tmp_path: Path) -> Path:
    """A graph of two classes in Planetoid's format, each class a ring."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.normal(size=(40, 6)) + 2 * y[:, None]).astype(np.float32)
    one_hot = np.eye(2)[y]
    folder = tmp_path / "planetoid"
    folder.mkdir()
    graph = {i: [(i + 2) % 40, (i - 2) % 40] for i in range(40)}
    nodes = {"": slice(0, 8), "all": slice(0, 30), "t": slice(30, 40)}
    values = {f"{part}x": x[rows] for part, rows in nodes.items()}
    values |= {f"{part}y": one_hot[rows] for part, rows in nodes.items()}
    for part, value in (values | {"graph": graph}).items():
        (folder / f"ind.rings.{part}").write_bytes(pickle.dumps(value, 4))
    (folder / "ind.rings.test.index").write_text("\n".join(map(str, range(30, 40))))
    return folder


def small(data: Path, *options: str, model: str = "hgnn") -> list[str]:
    size = ["--splits", "2", "--epochs", "10", "--hidden-features", "8"]
    return ["train", model, "--data", str(data), *size, *options]


def test_train(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(small(data)) == 0
    out, err = capsys.readouterr()
    folder = Path("runs") / "hgnn-tiny"
    results = json.loads((folder / "results.json").read_text())
    run, plain = results["jax_gnn"], results["plain_jax"]
    assert run["test_accuracy_mean"] == pytest.approx(plain["test_accuracy_mean"], abs=0.11)
    assert len(run["test_accuracy"]) == len(run["best_epoch"]) == 2
    assert results["config"]["epochs"] == 10
    assert results["dataset"]["num_nodes"] == 40
    assert results["versions"]["jax_gnn"] == jax_gnn.__version__
    assert f"{100 * run['test_accuracy_mean']:.2f} ± {100 * run['test_accuracy_std']:.2f} %" in out
    assert f"{1e3 * plain['median_epoch_seconds']:.3g} ms" in out
    assert f"{results['speedup']:.2f} times as fast as without kernels" in out
    assert "same predictions" in out
    assert (folder / "learning_curves.png").stat().st_size > 10_000
    assert load_checkpoint(folder / "checkpoint").model.conv1.in_features == 6
    split = results["checkpoint_split"] - 1
    assert run["valid_accuracy"][split] == max(run["valid_accuracy"])
    assert f"of split {split + 1}, test accuracy {100 * run['test_accuracy'][split]:.2f} %" in out
    # Without a terminal, one line per split and no bar.
    assert [line.split(":")[0] for line in err.splitlines()] == ["split 1/2", "split 2/2"]


def check_prediction(
    capsys: pytest.CaptureFixture[str], folder: Path, data: Path, nodes: tuple[int, ...]
) -> None:
    """That `jax-gnn predict` and Python find what training recorded, to the bit."""
    results = json.loads((folder / "results.json").read_text())
    split = results["checkpoint_split"] - 1
    run = results["jax_gnn"]
    loaded = load_checkpoint(folder / "checkpoint")
    dataset = loaded.recipe.load(str(data))
    found = loaded.accuracies(dataset, loaded.predict(dataset))
    assert found["valid"] == run["valid_accuracy"][split]
    assert found["test"] == run["test_accuracy"][split]
    table = folder / "new" / "predictions.csv"
    arguments = [str(folder / "checkpoint"), "--data", str(data), "--output", str(table)]
    assert cli.main(["predict", *arguments]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for name, accuracy, count in zip(
        ("training", "validation", "test"), found.values(), nodes, strict=True
    ):
        assert f"{name} accuracy {100 * accuracy:.2f} % ({count} nodes)" in rows
    assert f"data {dataset.name} (as in training)" in rows
    assert f"predictions {table}" in rows
    labels = np.loadtxt(table, delimiter=",", skiprows=1)[:, 1]
    np.testing.assert_array_equal(labels, np.asarray(loaded.predict(dataset)).argmax(axis=1))


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("model", ["gcn", "gin", "sage", "gat", "gatv2", "transformer"])
def test_train_on_a_graph(model, planetoid, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(small(planetoid, "--layers", "3", model=model)) == 0
    out = capsys.readouterr().out
    folder = Path("runs") / f"{model}-rings"
    results = json.loads((folder / "results.json").read_text())
    assert results["dataset"] == {
        "name": "rings",
        "num_nodes": 40,
        "num_edges": 80,
        "num_features": 6,
        "num_classes": 2,
    }
    assert "rings: 40 nodes, 80 edges, 6 features, 2 classes" in out
    assert "same predictions" in out
    run, plain = results["jax_gnn"], results["plain_jax"]
    assert run["test_accuracy_mean"] == pytest.approx(plain["test_accuracy_mean"], abs=0.11)
    assert [round(10 * a, 5) % 1 for a in run["test_accuracy"]] == [0, 0]  # the ten test nodes
    assert load_checkpoint(folder / "checkpoint").model.num_layers == 3
    assert (folder / "learning_curves.png").stat().st_size > 10_000
    check_prediction(capsys, folder, planetoid, (8, 22, 10))


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize(
    "model",
    [name for name, recipe in RECIPES.items() if recipe.dataset is HypergraphDataset],
)
def test_train_on_a_hypergraph(model, data, tmp_path, capsys):
    folder = tmp_path / "out"
    options = ("--epochs", "3", "--splits", "1", "--output", str(folder))
    options += ("--feature-normalization", "row")
    assert cli.main(small(data, *options, model=model)) == 0
    assert "same predictions" in capsys.readouterr().out
    results = json.loads((folder / "results.json").read_text())
    assert results["config"]["hidden_features"] == 8
    assert len(results["plain_jax"]["test_accuracy"]) == 1
    assert type(load_checkpoint(folder / "checkpoint").model) is RECIPES[model].model
    check_prediction(capsys, folder, data, (20, 10, 10))


def test_defaults_of_planetoid_and_what_does_not_count(planetoid, tmp_path, capsys):
    """A table gets other settings than Planetoid's files, and a line for what is left out."""
    nodes = "id,income,label\n" + "".join(f"n{i},{1000 + i},{i % 2}\n" for i in range(20))
    (tmp_path / "nodes.csv").write_text(nodes)
    edges = "".join(f"n{i},n{(i + 2) % 20},{i}\n" for i in range(20))
    (tmp_path / "edges.csv").write_text("src,dst,weight\n" + edges + "n0,n2,1\n")
    run = ["train", "gcn", "--epochs", "1", "--splits", "1", "--no-baseline", "--output"]
    found = {}
    for source, options in (
        (planetoid, ()),
        (tmp_path, ()),
        (tmp_path, ("--edge-weight", "--feature-normalization", "none")),
        (planetoid, ("--hidden-features", "64", "--standardize")),
    ):
        folder = tmp_path / f"out{len(found)}"
        assert cli.main([*run, str(folder), "--data", str(source), *options]) == 0
        config = json.loads((folder / "results.json").read_text())["config"]
        kept = "hidden_features", "input_dropout_rate", "feature_normalization", "edge_weight"
        told = capsys.readouterr().err.splitlines()[1:]
        found[source, options] = [config[name] for name in kept], told
    once = "jax-gnn: 1 repeated edges count once, with the sum of their weights"
    taken = "id as names; income as numbers; label as classes; weight as edge weights"
    columns = f"jax-gnn: columns: {taken}"
    assert [*found.values()] == [
        ([16, 0.5, "row", False], []),
        (
            [64, 0.0, "standardize", False],
            [
                once,
                "jax-gnn: weights of edges are not used (--edge-weight uses them)",
                columns,
                "jax-gnn: --feature-normalization auto is standardize here",
            ],
        ),
        ([64, 0.0, "none", True], [once, columns]),
        ([64, 0.5, "standardize", False], []),
    ]


def test_hypergraph_for_a_model_of_graphs(data, capsys):
    message = user_error(capsys, small(data, model="gcn"))
    assert "holds a HypergraphDataset, which gcn does not take; jax-gnn data " in message


def test_no_published_split(data, capsys):
    message = user_error(capsys, small(data, "--split", "published"))
    assert "'tiny' has no published split" in message


def test_options_arrive(data, tmp_path, capsys):
    options = [
        *("--normalization", "row", "--learnable-hyperedge-weights", "--self-loops", "all"),
        *("--features", "noisy-label", "--feature-noise", "0.5", "--feature-normalization", "row"),
        *("--learning-rate", "0.02", "--weight-decay", "0", "--weight-decay-layers", "first"),
        *("--dropout", "0.3", "--input-dropout", "0.2", "--layers", "3", "--seed", "5"),
        *("--split", "random"),
        *("--implementation", "xla", "--no-baseline", "--output", str(tmp_path / "out")),
    ]
    assert cli.main(small(data, *options)) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["config"] == {
        "splits": 2,
        "split": "random",
        "epochs": 10,
        "hidden_features": 8,
        "num_layers": 3,
        "learning_rate": 0.02,
        "weight_decay": 0.0,
        "weight_decay_layers": "first",
        "dropout_rate": 0.3,
        "input_dropout_rate": 0.2,
        "normalization": "row",
        "learnable_hyperedge_weights": True,
        "self_loops": "all",
        "features": "noisy-label",
        "feature_noise": 0.5,
        "feature_normalization": "row",
        "seed": 5,
        "implementation": "xla",
    }
    assert results["dataset"]["num_hyperedges"] == 52
    assert results["dataset"]["num_features"] == 100
    assert results["plain_jax"] is results["speedup"] is None
    assert results["jax_gnn"]["custom_calls"] == []
    out = capsys.readouterr().out
    assert "plain XLA" in out
    assert "without kernels" not in out


def test_checkpoint_that_predicts_otherwise(data, tmp_path, monkeypatch, capsys):
    def load_spoilt(path: Path) -> object:
        trained = load_checkpoint(path)
        trained.model.conv2.bias[...] += 1
        return trained

    monkeypatch.setattr(run_nodes, "load_checkpoint", load_spoilt)
    assert cli.main(small(data, "--no-baseline", "--output", str(tmp_path / "out"))) == 1
    assert "predicts otherwise than the trained model" in capsys.readouterr().err


@pytest.fixture(scope="module")
def digits_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What training on the built-in digits leaves, without the training."""
    dataset = digits_graph()
    trained = TrainedModel(
        GCN(64, 4, 10, num_layers=1, rngs=nnx.Rngs(0)),
        GCNConfig(),
        data=fingerprint(dataset),
        label_names=dataset.label_names,
        split=random_split(dataset.y, seed=7),
        seed=7,
    )
    path = tmp_path_factory.mktemp("digits") / "checkpoint"
    save_checkpoint(path, trained)
    return path


def save_graph(path: Path, **changes: object) -> Path:
    """Three nodes with the digits' features and names of their own."""
    arrays = {"num_nodes": 3, "src": [0, 1], "dst": [1, 0], "y": [3, -1, 4]}
    arrays |= {"x": np.eye(3, 64, dtype=np.float32), "node_names": ["a", "b", "c, d"]}
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_predict_on_the_digits(digits_checkpoint, tmp_path, capsys):
    table = tmp_path / "predictions.npz"
    assert cli.main(["predict", str(digits_checkpoint), "--output", str(table)]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == ["model gcn (trained on digits, seed 7)", "data digits (as in training)"]
    assert [row.split("(")[1] for row in rows[2:5]] == ["898 nodes)", "449 nodes)", "450 nodes)"]
    logits = load_checkpoint(digits_checkpoint).predict(digits_graph())
    probability = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    with np.load(table) as arrays:
        assert sorted(arrays.files) == ["label", "node", "probability"]
        np.testing.assert_array_equal(arrays["node"], np.arange(1797))
        assert arrays["label"].tolist() == [str(i) for i in probability.argmax(axis=1)]
        np.testing.assert_allclose(arrays["probability"], probability.max(axis=1), rtol=1e-5)


def test_predict_on_other_data(digits_checkpoint, tmp_path, capsys):
    data, table = save_graph(tmp_path / "new.npz"), tmp_path / "predictions.csv"
    arguments = ["predict", str(digits_checkpoint), "--data", str(data)]
    assert cli.main([*arguments, "--output", str(table)]) == 0
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == "data new (other structure, features, labels than in training)"
    assert rows[2].startswith("accuracy ")
    assert rows[2].endswith(" % (all 2 labelled nodes)")
    with table.open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["node", "label", "probability"]
    assert [line[0] for line in lines] == ["a", "b", "c, d"]
    logits = load_checkpoint(digits_checkpoint).predict(load_graph(data))
    assert [line[1] for line in lines] == [str(i) for i in np.asarray(logits).argmax(axis=1)]
    assert all(0.1 < float(line[2]) <= 1 for line in lines)
    save_graph(data, y=[-1, -1, -1])
    assert cli.main(arguments) == 0
    assert "accuracy unknown (no node has a label)" in " ".join(capsys.readouterr().out.split())


def test_predict_warns_once(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f"n{i},{x:.3f},{'ab'[i % 2]}" for i, x in enumerate(rng.normal(size=40))]
    (tmp_path / "edges.csv").write_text(
        "src,dst\n" + "".join(f"n{i},n{i - 1}\n" for i in range(1, 40))
    )
    (nodes := tmp_path / "nodes.csv").write_text("\n".join(["id,x,label", *lines]))
    options = ["--data", str(tmp_path), "--epochs", "1", "--splits", "1", "--no-baseline"]
    assert cli.main(["train", "gcn", *options, "--output", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    nodes.write_text("\n".join(["id,x,label,more", *(f"{line},1" for line in lines)]))
    assert cli.main(["predict", str(tmp_path / "out/checkpoint"), "--data", str(tmp_path)]) == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("jax-gnn: warning: ") and told.endswith("which do not count: more")


def test_predict_what_is_wrong(digits_checkpoint, tmp_path, monkeypatch, capsys):
    arguments = ["predict", str(digits_checkpoint)]
    message = user_error(capsys, ["predict", str(tmp_path / "absent")])
    assert f"no checkpoint folder {tmp_path / 'absent'}" in message
    message = user_error(capsys, ["predict", str(tmp_path)])
    assert f"{tmp_path} holds no checkpoint of a model" in message
    data = save_graph(tmp_path / "new.npz", x=np.ones((3, 5), np.float32))
    message = user_error(capsys, [*arguments, "--data", str(data)])
    assert "--data: dataset 'new' has 5 features, the model takes 64" in message
    assert "--data: " in user_error(capsys, [*arguments, "--data", str(tmp_path / "absent.npz")])
    below = ["--output", str(data / "below.csv")]
    assert f"--output {data / 'below.csv'}" in user_error(capsys, [*arguments, *below])
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--output", "predictions.json"])
    assert (
        "expected a .csv, .npz or .parquet file, got 'predictions.json'" in capsys.readouterr().err
    )
    monkeypatch.setattr(predict, "PREDICT_EXTRA", ("no_such_package",))
    assert "predicting needs no_such_package; run: pip" in user_error(capsys, arguments)
    with monkeypatch.context() as missing, pytest.raises(SystemExit):
        missing.setattr("importlib.util.find_spec", lambda _: None)
        cli.main([*arguments, "--output", "predictions.parquet"])
    assert "'predictions.parquet' needs pyarrow; run: pip" in capsys.readouterr().err


def test_predict_with_a_model_of_ones_own(digits_checkpoint, tmp_path, capsys):
    jax_gnn.save(tmp_path / "gcn", GCN(6, 8, 2, rngs=nnx.Rngs(0)))
    message = user_error(capsys, ["predict", str(tmp_path / "gcn")])
    assert "holds a GCN that jax_gnn.save wrote" in message and "by jax_gnn.load" in message
    message = user_error(capsys, ["predict", str(digits_checkpoint), "--query", "a,?"])
    assert "--query: " in message and "no model that predicts edges" in message


def test_predict_without_labels(digits_checkpoint, tmp_path, capsys):
    """The same as with labels, which there may be none of."""
    tables = []
    for y in (None, np.zeros(3, np.int32)):
        data, table = save_graph(tmp_path / "new.npz", y=y), tmp_path / "predictions.npz"
        arguments = ["predict", str(digits_checkpoint), "--data", str(data), "--output", str(table)]
        assert cli.main(arguments) == 0
        tables.append(dict(np.load(table)))
        capsys.readouterr()
    np.testing.assert_equal(*tables)
    save_graph(tmp_path / "new.npz", label=np.zeros(3))
    message = user_error(capsys, ["predict", str(digits_checkpoint), "--data", str(data)])
    assert "new.npz: has the key 'label', which is none of a graph dataset" in message


def test_predict_without_data(digits_checkpoint, monkeypatch, capsys):
    for change, expected in (
        ({"data": None}, "the checkpoint does not say what it was trained on"),
        ({"data": ("cora", 3, "", "", "")}, "the model was trained on 'cora'"),
    ):
        data = change["data"] and Fingerprint(*change["data"])
        trained = dataclasses.replace(load_checkpoint(digits_checkpoint), data=data)
        monkeypatch.setattr(predict, "load_checkpoint", lambda _, trained=trained: trained)
        message = user_error(capsys, ["predict", str(digits_checkpoint)])
        assert f"--data is needed: {expected}" in message


def test_predict_with_an_older_checkpoint(digits_checkpoint, tmp_path, monkeypatch, capsys):
    trained = load_checkpoint(digits_checkpoint)
    old = TrainedModel(trained.model, trained.config, version=None)

    def load_older(path: Path) -> TrainedModel:
        warnings.warn(f"{path} lacks the split", stacklevel=2)
        return old

    monkeypatch.setattr(predict, "load_checkpoint", load_older)
    data = save_graph(tmp_path / "new.npz")
    assert cli.main(["predict", "old", "--data", str(data)]) == 0
    out, err = capsys.readouterr()
    assert err == "jax-gnn: warning: old lacks the split\n"
    assert "data new (not known to be those of the training)" in " ".join(out.split())
    assert "(all 2 labelled nodes)" in out


def user_error(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jax-gnn: error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("model", ["gcn", "hgnn", "rgcn", "rgcn-link"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.npz", "absent.npz does not exist; known are "),
        (".", ". is an empty folder; known are "),
        ("", "source must be the path of a file or folder, got ''"),
        ("x" * 300, "File name too long"),
    ],
)
def test_no_data(model, source, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    error = user_error(capsys, ["train", model, "--data", source])
    assert error.startswith("jax-gnn: error: --data: ")
    assert message in error


@pytest.mark.parametrize("model", ["gcn", "rgcn", "rgcn-link"])
def test_data_without_the_option(model, capsys):
    for arguments in (["cora.npz"], ["--seed", "1", "cora.npz"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["train", model, *arguments])
        assert exit_info.value.code == 2
        wanted = f"jax-gnn train {model.replace('-link', ' --task link')} --data cora.npz"
        message = f"jax-gnn: error: cora.npz has no option; for data it is: {wanted}\n"
        assert capsys.readouterr().err == message


def test_options_of_other_tasks(capsys):
    for arguments, told in (
        (
            ["gin", "--task", "graph", "--no-baseline"],
            "gin --task graph has no option --no-baseline",
        ),
        (["gcn", "--epoch=3", "--hiden", "4"], "gcn has no option --hiden; close are --hidden"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["train", *arguments, "--data", "x.npz"])
        assert exit_info.value.code == 2
        assert f"jax-gnn: error: jax-gnn train {told}" in capsys.readouterr().err


def test_data_that_only_paths_name(capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", "rgat"])
    assert exit_info.value.code == 2
    assert "--data is needed: jax-gnn train rgat --data FILE|FOLDER" in capsys.readouterr().err


def test_corrupt_file(tmp_path, capsys):
    path = tmp_path / "corrupt.npz"
    path.write_bytes(b"PK\x03\x04 and then nothing")
    assert "corrupt.npz" in user_error(capsys, small(path))


def test_dataset_without_features(featureless, capsys):
    message = user_error(capsys, small(featureless))
    assert "'featureless' has no node features" in message
    assert "noisy-label" in message


def test_too_few_labels(featureless, tmp_path, capsys):
    with np.load(featureless) as arrays:
        changed = {name: arrays[name] for name in arrays.files}
    changed["y"] = np.where(np.arange(40) < 2, changed["y"], -1).astype(np.int32)
    path = tmp_path / "unlabelled.npz"
    np.savez(path, **changed)
    message = user_error(capsys, small(path, "--features", "random"))
    assert "2 labelled nodes" in message
    changed |= {"train_idx": [0], "val_idx": np.zeros(0, int), "test_idx": [1]}
    np.savez(path, **changed)
    message = user_error(capsys, small(path, "--features", "random"))
    assert "has a published split without validation nodes" in message


def test_output_that_is_a_file(data, capsys):
    message = user_error(capsys, small(data, "--output", str(data / "below")))
    assert f"--output {data / 'below'}" in message


def test_implementation_of_another_platform(data, monkeypatch, capsys):
    statuses = [
        ffi.PlatformStatus("cpu", True, ("hypergraph_aggregate",)),
        ffi.PlatformStatus("cuda", False, (), reason="no compiler was found", hint="get nvcc"),
    ]
    monkeypatch.setattr("flax_layers.training.options.status", lambda: statuses)
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    message = user_error(capsys, small(data, "--implementation", "cuda"))
    assert "--implementation cuda: no compiler was found (get nvcc)" in message
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    message = user_error(capsys, small(data, "--implementation", "cpu"))
    assert "--implementation cpu: JAX runs on cuda here" in message


def test_parts(data, tmp_path, monkeypatch, capsys):
    """What ``jax-gnn partition`` writes splits a training, and its checkpoint predicts alone."""
    parts, folder = tmp_path / "parts.npz", tmp_path / "out"
    assert cli.main(["partition", str(data), "--parts", "2", "--output", str(parts)]) == 0
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert " data tiny (HypergraphDataset)\n parts 2, by stream\n nodes 1.0" in out
    assert " sent for a layer " in out and f" output {parts}\n" in out
    over = ["--devices", "2", "--partition", str(parts)]
    assert cli.main(small(data, *over, "--splits", "1", "--output", str(folder))) == 0
    out = capsys.readouterr().out
    assert "same predictions" in out and "without kernels" not in out
    check_prediction(capsys, folder, data, (20, 10, 10))
    predict = ["predict", str(folder / "checkpoint"), "--data", str(data)]
    found = []
    for options in ([], ["--devices", "3"], over):
        assert cli.main([*predict, *options]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] == found[2]
    for option, message in (
        (["--devices", "3", "--partition", str(parts)], "parts.npz has 2 parts, --devices is 3"),
        (
            ["--devices", "2", "--partition", str(data)],
            f"--partition: {data} is nothing that jax-gnn partition wrote",
        ),
        (["--devices", "2", "--partition", "ring"], "--partition: expected one of .* got 'ring'"),
        (["--partition", "hash"], "--partition hash needs --devices, for more than one"),
        (["--devices", "99"], r"devices must be at most \d+, the .* got 99"),
    ):
        assert re.search(message, user_error(capsys, small(data, *option)))
        assert re.search(message, user_error(capsys, [*predict, *option]))
    assert "unigat takes no part" in user_error(
        capsys, small(data, "--devices", "2", model="unigat")
    )
    assert cli.main(["partition", str(data), "--parts", "2", "--output", str(folder)]) == 0
    assert f" output {folder}\n" in re.sub(" +", " ", capsys.readouterr().out)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("nodes",))
    split, values = load_parts(folder, mesh, "nodes")
    with np.load(data) as arrays:
        for name in ("x", "y"):
            np.testing.assert_array_equal(split.unshard(values[name]), arrays[name])
    assert cli.main([*predict, "--devices", "2", "--partition", str(folder / "plan.npz")]) == 0
    assert capsys.readouterr().out == found[0]
    many = user_error(capsys, ["partition", str(data), "--parts", "41"])
    assert "--parts must be at most num_nodes = 40 of tiny, got 41" in many


def test_missing_train_extra(data, monkeypatch, capsys):
    monkeypatch.setattr(run_nodes, "TRAIN_EXTRA", ("optax", "no_such_package"))
    message = user_error(capsys, small(data))
    assert "training needs no_such_package; run: pip install 'jax-gnn-kernels[train]'" in message


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--splits", "0", "expected a whole number from 1 to 2147483647, got '0'"),
        ("--epochs", "many", "expected a whole number from 1 to 2147483647, got 'many'"),
        ("--hidden-features", "1.5", "expected a whole number from 1 to 2147483647, got '1.5'"),
        ("--seed", "-1", "expected a whole number from 0 to 2147483647, got '-1'"),
        ("--learning-rate", "0", "expected a positive number, got '0'"),
        ("--learning-rate", "nan", "expected a positive number, got 'nan'"),
        ("--weight-decay", "-1", "expected a number from 0, got '-1'"),
        ("--dropout", "1", "expected a number from 0 to below 1, got '1'"),
        ("--normalization", "both", "invalid choice: 'both'"),
        ("--implementation", "gpu", "invalid choice: 'gpu'"),
    ],
)
def test_bad_value(option, value, expected, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", "hgnn", option, value])
    assert exit_info.value.code == 2
    err = capsys.readouterr().err
    assert f"argument {option}" in err
    assert expected in err


def test_settings_that_do_not_fit(tmp_path, capsys):
    """What only a layer knows of."""
    write_links(path := tmp_path / "shifts.npz")
    train = ["train", "rgcn-link", "--data", str(path), "--output", str(tmp_path / "out")]
    message = user_error(capsys, [*train, "--blocks", "7", "--embedding-features", "8"])
    assert message.count("\n") == 1 and re.search("num_blocks.*got.*7", message), message


def test_any_error_is_one_line(data, tmp_path, monkeypatch, capsys):
    def fails(*_: object, **__: object) -> None:
        raise KeyError("one\nother")

    monkeypatch.setattr(run_nodes, "train", fails)
    arguments = small(data, "--output", str(tmp_path / "out"))
    assert user_error(capsys, arguments) == "jax-gnn: error: KeyError: 'one\\nother'\n"
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "off")
    with pytest.raises(KeyError):
        cli.main(arguments)


def test_interrupt(data, tmp_path, monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_nodes, "train", interrupted)
    assert cli.main(small(data, "--output", str(tmp_path / "out"))) == 130
    assert capsys.readouterr().err == "jax-gnn: interrupted\n"


def test_interrupted_process(data, tmp_path):
    # Where the tests run in the background, the signal is ignored, and so in what they start.
    program = """if True:
        import signal
        import sys

        signal.signal(signal.SIGINT, signal.default_int_handler)

        from jax_gnn.cli import main

        sys.exit(main())
    """
    arguments = small(data, "--output", str(tmp_path / "out"))
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, "--splits", "100000"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(jax_gnn.__file__).parents[1],
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("split 1/100000")
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    words = [*arguments, "--splits", "100000", "--resume"]
    assert err.endswith(f"jax-gnn: interrupted; to go on: jax-gnn {shlex.join(words)}\n")
    assert "Traceback" not in err


def test_results_of_a_run_are_kept(data, tmp_path, monkeypatch, capsys):
    (tmp_path / "results.json").write_text("{}")
    arguments = small(data, "--output", str(tmp_path))
    assert f"{tmp_path} has the results of a run: --overwrite" in user_error(capsys, arguments)
    reached = []
    monkeypatch.setattr(run_nodes, "train", lambda *_, **__: reached.append(1) or 1 / 0)
    assert "ZeroDivisionError" in user_error(capsys, [*arguments, "--overwrite"])
    assert reached


def test_full_disk_is_one_line(data, tmp_path, monkeypatch, capsys):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "checkpoint")

    monkeypatch.setattr(run_nodes, "save_checkpoint", full)
    folder = tmp_path / "out"
    assert cli.main(small(data, "--no-baseline", "--output", str(folder))) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"jax-gnn: error: --output {folder}: No space left on device"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train gnc", "argument WHAT: unknown 'gnc'; did you mean gcn"),
        ("trian gcn", "argument COMMAND: unknown 'trian'; did you mean train?"),
        ("train sage --aggregation maxx", "argument --aggregation: invalid choice: 'maxx'"),
        ("train xyzzy", "argument WHAT: invalid choice: 'xyzzy'"),
    ],
)
def test_nearest_words(words, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(words.split())
    assert message in capsys.readouterr().err


def test_nearest_format(tmp_path):
    (tmp_path / "edge.csv").touch()
    with pytest.raises(ValueError, match=r"nearest is a folder with nodes.csv and edges.csv; "):
        load_any(str(tmp_path))


def test_progress_bar_on_a_terminal(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(small(data, "--no-baseline", "--output", str(tmp_path / "out"))) == 0
    err = capsys.readouterr().err
    assert "split 2/2" in err
    assert "20/20" in err
    assert "best validation accuracy" in err


def test_info(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    for name in ("jax_gnn", "jax", "jaxlib", "flax", "python", "devices"):
        assert f"  {name} " in out
    assert jax_gnn.__version__ in out
    assert "hypergraph_aggregate" in out


def test_info_about_what_is_missing(monkeypatch, capsys):
    statuses = [
        ffi.PlatformStatus("cpu", True, ("sddmm", "segment_scatter"), build="a compiler"),
        ffi.PlatformStatus("cuda", False, ("sddmm",), reason="no compiler", hint="get nvcc"),
    ]
    monkeypatch.setattr(ffi, "status", lambda: statuses)
    assert cli.main(["info"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["sddmm", *["custom", "call"] * 2, "plain", "XLA"] in rows
    assert ["segment_scatter", "custom", "call", "not", "needed", "plain", "XLA"] in rows
    assert ["segment_reduce_vjp", "not", "needed", "-", "plain", "XLA"] in rows
    assert ["segment_matmul", "-", "-", "plain", "XLA"] in rows
    assert "linear" not in {row[0] for row in rows if row}  # it has no kernel anywhere
    assert ["cpu:", "a", "compiler"] in rows
    assert ["cuda", "is", "missing:", "no", "compiler"] in rows
    assert ["get", "nvcc"] in rows


def test_info_without_a_working_device(monkeypatch, capsys):
    def fail() -> None:
        raise RuntimeError("Unable to initialize backend")

    cuda = ffi.PlatformStatus("cuda", True, ("sddmm",), build="a compiler")
    monkeypatch.setattr(ffi, "status", lambda: [cuda])  # kernels that may be used or not
    monkeypatch.setattr("jax.devices", fail)
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "none: Unable to initialize backend" in out
    assert "not used: " in out


def told_of(source: object, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``jax-gnn data`` prints, each row's blanks made one."""
    parser = argparse.ArgumentParser()
    sources.add_data(parser.add_subparsers())
    args = parser.parse_args(["data", str(source)])
    assert args.run(args) == 0
    return re.sub(" +", " ", capsys.readouterr().out)


def test_data(data: Path, featureless: Path, planetoid: Path, capsys) -> None:
    out = told_of(data, capsys)
    assert " data tiny (HypergraphDataset)\n nodes 40\n hyperedges 12\n incidences 48\n" in out
    assert " features 6\n labels 2 classes, 40 labelled nodes\n models hgnn, hgnnp, " in out
    out = told_of(featureless, capsys)
    assert "has no node features" in out and "models" not in out
    out = told_of(planetoid, capsys)
    assert " models gcn, gin, " in out and "hgnn" not in out
    with pytest.raises(ValueError, match=r"nowhere does not exist; jax-gnn data --help"):
        told_of("nowhere", capsys)


def test_data_of_tables(tmp_path: Path, capsys) -> None:
    """What columns were taken for, which is left out, and what labels would be called."""
    lines = "".join(f"n{i},{i},{'ab'[i % 2]},{i % 3}\n" for i in range(6))
    (tmp_path / "nodes.csv").write_text("id,age,city,team\n" + lines)
    (tmp_path / "edges.csv").write_text("src,dst,weight,since\nn0,n1,2,2010\n")
    out = told_of(tmp_path, capsys)
    taken = "id as names; age, team as numbers; city (2 values) as one-hot; weight as edge weights"
    assert f" columns {taken}\n not used since of edges.csv\n" in out
    assert "0 labelled nodes; splits need at least 4; labels are the column 'label' or" in out
    (tmp_path / "nodes.csv").write_text("id,age,city,label\n" + lines)
    assert "city (2 values) as one-hot; label as classes; weight as" in told_of(tmp_path, capsys)


def test_data_names_the_nearest_kind(tmp_path: Path, capsys) -> None:
    """Of a file of arrays that lacks nothing of a graph."""
    np.savez(tmp_path / "a.npz", num_nodes=3, src=[0], dst=[1], y=[0, 1, 1], foo=[1])
    with pytest.raises(ValueError) as caught:
        told_of(tmp_path / "a.npz", capsys)
    assert "has the key 'foo', which is none of a graph dataset" in str(caught.value)
    assert "hypergraph" not in str(caught.value)


def test_data_of_triples(tmp_path: Path, capsys) -> None:
    parts = {
        "train_idx": [0],
        "val_idx": [1],
        "test_idx": [2],
    }  # of edges, where there are no labels
    facts = {"src": [0, 1, 2], "rel": [0, 0, 0], "dst": [1, 2, 0]}
    numbers = {"num_nodes": 3, "num_relations": 1}
    np.savez(tmp_path / "facts.npz", **parts, **facts, **numbers)
    out = told_of(tmp_path / "facts.npz", capsys)
    assert " split of edges 1 train, 1 val, 1 test\n" in out
    assert " models rgcn --task link, compgcn --task link\n" in out
    assert re.search(r" lacking .* has 0 labelled nodes.* \(rgcn, rgat, hgt\)\n", out)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--version"], ["--help"], ["predict", "--help"]),
        *(["train", model, "--help"] for model in (*RECIPES, *LINK_RECIPES)),
    ],
)
def test_arguments_that_only_print(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 0
    out = capsys.readouterr().out
    expected = {
        "--version": f"jax-gnn {jax_gnn.__version__}\n",
        "--help": "example: jax-gnn train hgnn\n",
        "predict": "partition wrote (default: stream)\n",
    }
    recipe = RECIPES.get(arguments[-2]) if arguments[0] == "train" else None
    on_devices = recipe is not None and recipe.structure is not None
    last = expected["predict"] if on_devices else "the same results\n"
    assert out.endswith(expected.get(arguments[0], last))
    assert arguments[0] != "train" or "--resume" in out


def test_typed_nodes_of_several_classes(tmp_path, capsys):
    """By path, from features by type to a table with a probability for each class."""
    write_typed(path := tmp_path / "typed.npz", several=True)
    folder = tmp_path / "out"
    options = ["--splits", "1", "--epochs", "3", "--hidden-features", "8", "--heads", "2"]
    assert cli.main(["train", "hgt", "--data", str(path), *options, "--output", str(folder)]) == 0
    out, _ = capsys.readouterr()
    assert "same predictions" in out and "3/0 features, 2 classes" in out
    table = tmp_path / "table.csv"
    arguments = [str(folder / "checkpoint"), "--data", str(path), "--output", str(table)]
    assert cli.main(["predict", *arguments]) == 0
    results = json.loads((folder / "results.json").read_text())
    assert results["dataset"]["num_features"] == "3/0"
    test = 100 * results["jax_gnn"]["test_accuracy"][0]
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"test accuracy {test:.2f} % (6 nodes)" in rows
    assert table.read_text().splitlines()[0] == "node,left,right"
    shares = np.loadtxt(table, delimiter=",", skiprows=1)
    assert shares.shape == (30, 3) and ((shares[:, 1:] > 0) & (shares[:, 1:] < 1)).all()


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_classes_with_names_of_columns(tmp_path, suffix):
    """And of arguments of numpy.savez."""
    arrow = pytest.importorskip("pyarrow.parquet") if suffix == "parquet" else None
    names = ("file", "node", "allow_pickle")
    config = types.SimpleNamespace(target_scaling=None)
    trained = types.SimpleNamespace(label_names=names, config=config)
    sizes = {"num_examples": 2, "example": "node"}
    dataset = types.SimpleNamespace(node_names=None, y_multilabel=True, **sizes)
    logits = jnp.array([[0.0, 1, 2], [3, 4, 5]])
    path = tmp_path / f"table.{suffix}"
    predict.write_predictions(path, trained, dataset, logits)
    table = dict(np.load(path)) if suffix == "npz" else None
    if arrow is not None:
        columns = arrow.read_table(path).to_pydict()
        table = {name: np.array(column) for name, column in columns.items()}
    if table is None:
        header, *rows = csv.reader(path.read_text().splitlines())
        table = dict(zip(header, np.array(rows, float).T, strict=True))
    assert table.keys() == {"node id", *names}
    np.testing.assert_array_equal(table["node id"], [0, 1])
    np.testing.assert_allclose(table["node"], jax.nn.sigmoid(logits[:, 1]), rtol=1e-6)


def write_typed(path: Path, *, several: bool) -> None:
    """Twenty nodes of two classes whose edges lead to ten others, by class."""
    rng = np.random.default_rng(0)
    y = np.arange(20) % 2
    src, dst = np.repeat(np.arange(20), 4), 20 + 2 * rng.integers(0, 5, 80) + np.repeat(y, 4)
    labels = {"y": np.append(y, np.full(10, -1))}
    if several:
        labels = {"y_multilabel": np.stack([y, 1 - y], 1)}
    np.savez(
        path,
        **{"num_nodes": 30, "num_relations": 1, "src": src, "rel": 0 * src, "dst": dst},
        node_type=np.repeat([0, 1], [20, 10]),
        node_type_names=np.array(["a", "b"]),
        x_a=rng.normal(size=(20, 3)),
        class_names=np.array(["left", "right"]),
        hgb_train_idx=np.arange(14),
        hgb_test_idx=np.arange(14, 20),
        **labels,
    )


def write_links(path: Path, **changes: Any) -> None:
    """Three relations, each a shift of the nodes, of which all follows."""
    src = np.tile(np.arange(24), 3)
    rel = np.repeat(np.arange(3), 24)
    dst = (src + rel + 1) % 24
    order = np.random.default_rng(0).permutation(72)
    arrays = {"num_nodes": 24, "num_relations": 3, "src": src, "rel": rel, "dst": dst}
    parts = zip(("train_idx", "val_idx", "test_idx"), np.split(order, [56, 64]), strict=True)
    np.savez(path, **arrays | dict(parts) | changes)


@pytest.mark.parametrize("model", ["rgcn-link", "compgcn-link"])
def test_links(model, tmp_path, capsys):
    names = np.array(["a", "b", "c"])
    nodes = {"node_names": np.array([f"node {i}" for i in range(24)])}
    write_links(path := tmp_path / "shifts.npz", relation_names=names, **nodes)
    folder = tmp_path / "out"
    options = ["--epochs", "2", "--batch-size", "32", "--evaluate-every", "1"]
    options += ["--hidden-features", "8", "--embedding-features", "8"]
    if model == "rgcn-link":
        options += ["--bases", "2"]
    options += ["--valid", "0.3"]
    train = ["train", model, "--data", str(path), *options, "--output", str(folder)]
    assert cli.main(train) == 0
    out, err = capsys.readouterr()
    assert "same ranks" in out
    told, *lines = err.splitlines()
    assert told == "jax-gnn: the data have a split of their edges: --valid and --test do not count"
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert (folder / "learning_curves.png").stat().st_size > 1000
    results = json.loads((folder / "results.json").read_text())
    assert len(results["loss"]) == len(results["validations"]) == 2
    assert results["edges"] == {"train": 56, "valid": 8, "test": 8}
    table = tmp_path / "ranks.npz"
    arguments = [str(folder / "checkpoint"), "--data", str(path), "--output", str(table)]
    assert cli.main(["predict", *arguments]) == 0
    out, _ = capsys.readouterr()
    assert "(as in training)" in out and f"{100 * results['test']['mrr']:.2f} %" in out
    with np.load(table) as ranks:
        found = np.stack([ranks["dst_rank"], ranks["src_rank"]])
        assert (1 / found).mean() == pytest.approx(results["test"]["mrr"])
        src, dst = (np.array([int(each[5:]) for each in ranks[end]]) for end in ("src", "dst"))
        rel = np.searchsorted(names, ranks["rel"])
        assert ((src + rel + 1) % 24 == dst).all() and set(ranks["rel"]) <= set(names)
        before = dict(ranks)
    query = ["predict", arguments[0], "--top", "3", "--query", "node 0, a, ?"]
    assert cli.main(query) == 0
    answer = capsys.readouterr().out
    assert answer.count("node ") == 4 and cli.main([*query, "--data", str(path)]) == 0
    assert capsys.readouterr().out == answer
    rel = np.repeat([2, 0, 1], 24)
    write_links(path, rel=rel, relation_names=names[[1, 2, 0]], **nodes)
    assert cli.main(["predict", *arguments]) == 0
    out, err = capsys.readouterr()
    assert "(as in training, numbers matched by name)" in out and not err
    with np.load(table) as ranks:
        for column in ("dst_rank", "src_rank"):
            np.testing.assert_array_equal(ranks[column], before[column])
    write_links(path, rel=rel, **nodes)
    assert cli.main(["predict", *arguments]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "by number" in line]
    assert len(told) == 1 and told[0].startswith("jax-gnn: warning: dataset 'shifts' is not that")
    write_links(path, num_nodes=25)
    assert cli.main(["predict", *arguments]) == 2
    assert "has 25 nodes and 3 relations, the model 24 and 3" in capsys.readouterr().err
    assert "leave --data out, which has other structure" in user_error(
        capsys, [*query, "--data", str(path)]
    )


@pytest.fixture
def plain_graph(tmp_path: Path) -> Path:
    """An undirected graph without labels."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 40, (2, 200))
    ends = {"src": np.append(src, dst), "dst": np.append(dst, src)}
    features = {"x": rng.normal(size=(40, 5)), "y": np.full(40, -1)}
    np.savez(path := tmp_path / "plain.npz", num_nodes=40, **ends, **features)
    return path


def test_interrupted_links_go_on(plain_graph, tmp_path, monkeypatch, capsys):
    words = ["train", "gcn", "--task", "link", "--data", str(plain_graph), "--epochs", "4"]
    words += ["--output", str(tmp_path / "out")]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LinkProgress, "__call__", interrupt)
        assert cli.main(words) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"jax-gnn: interrupted; to go on: jax-gnn {shlex.join(words)} --resume"
    assert cli.main(words) == 2
    assert "--resume goes on with it" in capsys.readouterr().err
    assert cli.main([*words, "--resume"]) == 0
    assert len(json.loads((tmp_path / "out/results.json").read_text())["loss"]) == 4


def test_edges_of_a_plain_graph(plain_graph, tmp_path, capsys):
    path, folder, table = plain_graph, tmp_path / "out", tmp_path / "edges.csv"
    options = ["--data", str(path), "--epochs", "4", "--evaluate-every", "2", "--variational"]
    assert cli.main(["train", "gcn", "--task", "link", *options, "--output", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "same ranks" in out and "AUC" in out
    told, *lines = err.splitlines()
    assert told.startswith("jax-gnn: edges are split at random: ")
    assert "(--valid 0.05 --test 0.1 --seed 0)" in told
    assert lines.pop(0).startswith("jax-gnn: --feature-normalization auto is ")
    assert [line.split(":")[0] for line in lines] == ["epoch 2/4", "epoch 4/4"]
    assert all("validation AUC 0." in line for line in lines)
    results = json.loads((folder / "results.json").read_text())
    predict = ["predict", str(folder / "checkpoint"), "--data", str(path), "--output", str(table)]
    assert cli.main(predict) == 0
    out, err = capsys.readouterr()
    assert "(as in training)" in out and f"{100 * results['test']['auc']:.2f} %" in out and not err
    header, *rows = csv.reader(table.read_text().splitlines())
    assert header == ["src", "dst", "edge", "probability"]
    right, wrong = ([float(p) for *_, edge, p in rows if edge == kind] for kind in "10")
    pairs = [(a > b) + (a == b) / 2 for a in right for b in wrong]
    assert len(right) == len(wrong) == results["edges"]["test"]
    assert np.mean(pairs) == pytest.approx(results["test"]["auc"])


def test_links_without_a_split(tmp_path, capsys):
    write_links(path := tmp_path / "shifts.npz", val_idx=np.zeros(0, int))
    message = user_error(capsys, ["train", "compgcn-link", "--data", str(path)])
    assert "--data: dataset 'shifts' has no val_edges to predict links" in message
    np.savez(path, num_nodes=2, src=[0], dst=[1], y=[0, 0], x=np.ones((2, 1)))
    message = user_error(capsys, ["train", "gcn-link", "--data", str(path)])
    assert "dataset 'shifts' cannot be split: graph has 1 edges, of which valid=0.05" in message


def test_settings_and_data_that_go_not_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_links(Path("shifts.npz"))
    labels = {"y": np.arange(24) % 2, "train_idx": [0], "val_idx": [1], "test_idx": [2]}
    types = {"node_type": np.repeat([0, 1], 12), "node_type_names": ["a", "b"]}
    write_links(Path("typed.npz"), **labels, **types)
    for arguments, message in (
        (["gat", "--hidden-features", "9"], "heads must divide hidden_features"),
        (["rgcn-link", "--data", "shifts.npz", "--hidden-features", "8"], "num_blocks must divide"),
        (["hgt", "--data", "typed.npz"], "relation 0 runs from nodes of the types 'a' and 'b'"),
    ):
        assert message in user_error(capsys, ["train", *arguments])


def test_help_shows_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "hgnn", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for default in ("digits", "10", "0.01", "symmetric", "isolated", "native", "auto", "0"):
        assert f"(default: {default})" in words
    assert "default: False" not in words
    assert "default: None" not in words


def test_command_is_required(capsys):
    for arguments in ([], ["train"], ["predict"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments)
        assert exit_info.value.code == 2
        assert "required" in capsys.readouterr().err
