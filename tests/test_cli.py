"""The command ``jax-gnn``: training, predictions, data, information, and errors in one line."""

import argparse
import csv
import dataclasses
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

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from test_training import make_dataset, make_graph_dataset, save

import jax_gnn
from flax_layers import GCN
from flax_layers.training import (
    RECIPES,
    GCNConfig,
    TrainedModel,
    load_checkpoint,
    predict,
    report,
    run,
    save_checkpoint,
    sources,
)
from flax_layers.training.data import Fingerprint, check_dataset, fingerprint
from flax_layers.training.link_models import LINK_RECIPES
from flax_layers.training.link_tasks import check_links
from flax_layers.training.models import command_name
from flax_layers.training.options import settings_of
from jax_gnn import cli
from jax_gnn._core import ffi
from jax_gnn.datasets import digits_graph, load_any, load_graph, random_split
from jax_gnn.sharding import load_parts


@pytest.fixture
def data(tmp_path):
    """A hypergraph of two classes in the library's own .npz schema."""
    return Path(save(tmp_path / "tiny.npz", make_dataset()))


@pytest.fixture
def featureless(tmp_path):
    return Path(save(tmp_path / "featureless.npz", make_dataset(x=None)))


@pytest.fixture
def planetoid(tmp_path):
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


def small(data, *options, model="hgnn"):
    size = ["--splits", "2", "--epochs", "10", "--hidden-features", "8"]
    return ["train", model, "--data", str(data), *size, *options]


def test_train(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(small(data)) == 0
    out, err = capsys.readouterr()
    folder = Path("runs") / "hgnn-tiny"
    results = read_results(folder)
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


def read_results(folder):
    return json.loads((folder / "results.json").read_text())


def output_rows(capsys):
    """Return the printed lines, with single blanks between the columns of tables."""
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def check_prediction(capsys, folder, data, nodes):
    """Check that `jax-gnn predict` and Python repeat what training recorded, to the bit."""
    results = read_results(folder)
    split = results["checkpoint_split"] - 1
    run = results["jax_gnn"]
    loaded = load_checkpoint(folder / "checkpoint")
    dataset = loaded.recipe.load(str(data))
    accuracies = loaded.accuracies(dataset, loaded.predict(dataset))
    assert accuracies["valid"] == run["valid_accuracy"][split]
    assert accuracies["test"] == run["test_accuracy"][split]
    table = folder / "new" / "predictions.csv"
    arguments = [str(folder / "checkpoint"), "--data", str(data), "--output", str(table)]
    assert cli.main(["predict", *arguments]) == 0
    rows = output_rows(capsys)
    names = ("training", "validation", "test")
    for name, accuracy, count in zip(names, accuracies.values(), nodes, strict=True):
        assert f"{name} accuracy {100 * accuracy:.2f} % ({count} nodes)" in rows
    assert f"data {dataset.name} (as in training)" in rows
    assert f"predictions {table}" in rows
    labels = np.loadtxt(table, delimiter=",", skiprows=1)[:, 1]
    np.testing.assert_array_equal(labels, np.asarray(loaded.predict(dataset)).argmax(axis=1))


@pytest.mark.usefixtures("exact_products")
# Four of the models: test_training.py trains all of them, and --help reads all their options.
@pytest.mark.parametrize(
    ("model", "source", "option", "nodes"),
    [
        ("gcn", "planetoid", ("--layers", "3"), (8, 22, 10)),
        ("gat", "planetoid", ("--layers", "3"), (8, 22, 10)),
        ("unigcnii", "data", ("--feature-normalization", "row"), (20, 10, 10)),
        ("allsettransformer", "data", ("--feature-normalization", "row"), (20, 10, 10)),
    ],
)
def test_train_and_predict(request, model, source, option, nodes, tmp_path, capsys):
    path, folder = request.getfixturevalue(source), tmp_path / "out"
    assert cli.main(small(path, *option, "--output", str(folder), model=model)) == 0
    out, results = capsys.readouterr().out, read_results(folder)
    assert "same predictions" in out
    if source == "planetoid":
        sizes = {"num_nodes": 40, "num_edges": 80, "num_features": 6, "num_classes": 2}
        assert results["dataset"] == {"name": "rings", **sizes}
        assert "rings: 40 nodes, 80 edges, 6 features, 2 classes" in out
    run, plain = results["jax_gnn"], results["plain_jax"]
    assert run["test_accuracy_mean"] == pytest.approx(plain["test_accuracy_mean"], abs=0.11)
    assert [round(10 * a, 5) % 1 for a in run["test_accuracy"]] == [0, 0]  # the ten test nodes
    loaded = load_checkpoint(folder / "checkpoint").model
    assert type(loaded) is RECIPES[model].model
    assert loaded.num_layers == (3 if source == "planetoid" else 1)
    check_prediction(capsys, folder, path, nodes)


def test_defaults_of_planetoid_and_what_does_not_count(planetoid, tmp_path, capsys):
    # A table gets other settings than Planetoid's files, and a line for what is left out.
    parts = ["train"] * 5 + [""] * 15
    nodes = "".join(f"n{i},{1000 + i},{i % 2},{part}\n" for i, part in enumerate(parts))
    nodes = "id,income,label,split\n" + nodes
    (tmp_path / "nodes.csv").write_text(nodes)
    edges = "".join(f"n{i},n{(i + 2) % 20},{i}\n" for i in range(20))
    (tmp_path / "edges.csv").write_text("src,dst,weight\n" + edges + "n0,n2,1\n")
    run = ["train", "gcn", "--epochs", "1", "--splits", "1", "--no-baseline", "--output"]
    outcomes = []
    for source, options in (
        (planetoid, ()),
        (tmp_path, ()),
        (tmp_path, ("--edge-weight", "--feature-normalization", "none")),
        (planetoid, ("--hidden-features", "64", "--standardize")),
    ):
        folder = tmp_path / f"out{len(outcomes)}"
        assert cli.main([*run, str(folder), "--data", str(source), *options]) == 0
        config = read_results(folder)["config"]
        fields = "hidden_features", "input_dropout_rate", "feature_normalization", "edge_weight"
        lines = capsys.readouterr().err.splitlines()
        notes = [line for line in lines if not line.startswith("split ") and "reverse" not in line]
        outcomes.append(([config[name] for name in fields], notes))
    once = "jax-gnn: 1 repeated edges count once, with the sum of their weights"
    lacks = "jax-gnn: the split of the data lacks validation and test nodes: another is drawn"
    roles = "id: names; income: number; label: 2 classes; split: parts of the data; "
    roles += "src of edges.csv: ids; "
    roles += "dst of edges.csv: ids; weight of edges.csv: edge weights"
    columns = f"jax-gnn: columns: {roles}"
    assert outcomes == [
        ([16, 0.5, "row", False], []),
        (
            [64, 0.0, "standardize", False],
            [
                once,
                "jax-gnn: weights of edges are not used (--edge-weight uses them)",
                lacks,
                columns,
                "jax-gnn: --feature-normalization auto is standardize here",
            ],
        ),
        ([64, 0.0, "none", True], [once, lacks, columns]),
        ([64, 0.5, "standardize", False], []),
    ]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("data", ["--model", "gcn"], "HypergraphDataset, which gcn does not take; jax-gnn data "),
        ("data", ["--split", "published"], "'tiny' has no published split"),
        ("featureless", [], "'featureless' has no node features; .*noisy-label"),
        ("data", ["--output", "{}/below"], "--output .*/tiny.npz/below"),
    ],
)
def test_data_that_lack_something(request, source, options, message, capsys):
    path = request.getfixturevalue(source)
    model = {}
    if options[:1] == ["--model"]:
        options, model = [], {"model": options[1]}
    options = [option.format(path) for option in options]
    assert re.search(message, user_error(capsys, small(path, *options, **model)))


def test_options_arrive(data, tmp_path, capsys):
    options = (
        "--normalization row --learnable-hyperedge-weights --self-loops all --features noisy-label "
        "--feature-noise 0.5 --feature-normalization row --learning-rate 0.02 --weight-decay 0 "
        "--weight-decay-layers first --dropout 0.3 --input-dropout 0.2 --layers 3 --seed 5 "
        "--schedule step --halve-every 5 --warmup 2 --early-stopping 9 --class-weight balanced "
        "--split random --implementation xla --no-baseline --output"
    )
    assert cli.main(small(data, *options.split(), str(tmp_path / "out"))) == 0
    results = read_results(tmp_path / "out")
    assert results["config"] == {
        **{"splits": 2, "split": "random", "epochs": 10, "hidden_features": 8, "num_layers": 3},
        **{"learning_rate": 0.02, "weight_decay": 0.0, "weight_decay_layers": "first", "seed": 5},
        **{"schedule": "step", "halve_every": 5, "warmup": 2, "class_weight": "balanced"},
        **{"dropout_rate": 0.3, "input_dropout_rate": 0.2, "early_stopping": 9},
        **{"learnable_hyperedge_weights": True, "self_loops": "all", "features": "noisy-label"},
        **{"normalization": "row", "feature_normalization": "row", "implementation": "xla"},
        "feature_noise": 0.5,
    }
    assert results["dataset"]["num_hyperedges"] == 52
    assert results["dataset"]["num_features"] == 100
    assert results["plain_jax"] is results["speedup"] is None
    assert results["jax_gnn"]["custom_calls"] == []
    out = capsys.readouterr().out
    assert "plain XLA" in out and "without kernels" not in out


def test_checkpoint_that_predicts_otherwise(data, tmp_path, monkeypatch, capsys):
    def load_spoilt(path):
        trained = load_checkpoint(path)
        trained.model.conv2.bias[...] += 1
        return trained

    monkeypatch.setattr(report, "load_checkpoint", load_spoilt)
    assert cli.main(small(data, "--no-baseline", "--output", str(tmp_path / "out"))) == 1
    assert "predicts otherwise than the trained model" in capsys.readouterr().err


@pytest.fixture(scope="module")
def digits_checkpoint(tmp_path_factory):
    """A checkpoint as of a training on the built-in digits, without the training."""
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


def save_graph(path, **changes):
    """Three nodes with the digits' features and names of their own."""
    arrays = {"num_nodes": 3, "src": [0, 1], "dst": [1, 0], "y": [3, -1, 4]}
    arrays |= {"x": np.eye(3, 64, dtype=np.float32), "node_names": ["a", "b", "c, d"]}
    arrays |= changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_predict_on_the_digits(digits_checkpoint, tmp_path, capsys):
    table = tmp_path / "predictions.npz"
    assert cli.main(["predict", str(digits_checkpoint), "--output", str(table)]) == 0
    rows = output_rows(capsys)
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
    rows = output_rows(capsys)
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
    # A column that the model does not know is added after the training.
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
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jax-gnn: warning: ") and line.endswith("which do not count: more")


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
    # Predictions are the same without labels.
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
    for data, expected in (
        (None, "the checkpoint does not say what it was trained on"),
        (Fingerprint("cora", 3, "", "", ""), "the model was trained on 'cora'"),
    ):
        trained = dataclasses.replace(load_checkpoint(digits_checkpoint), data=data)
        monkeypatch.setattr(predict, "load_checkpoint", lambda _, trained=trained: trained)
        message = user_error(capsys, ["predict", str(digits_checkpoint)])
        assert f"--data is needed: {expected}" in message


def test_labels_of_another_kind(digits_checkpoint):
    """Neither are errors of logits taken for those of numbers, nor numbers for classes."""
    trained, dataset = load_checkpoint(digits_checkpoint), load_graph("digits")
    logits = trained.predict(dataset)
    numbers = dataclasses.replace(dataset, y=dataset.y / 2, label_names=None)
    one, two = ([[0.0] * n, [1.0] * n] for n in (1, 2))
    cases = ((numbers, None, False), (numbers, two, False), (dataset, one, False))
    for data, scaling, multilabel in (*cases, (dataset, None, True)):
        config = dataclasses.replace(trained.config, target_scaling=scaling, multilabel=multilabel)
        model = dataclasses.replace(trained, config=config, data=None)
        rows = [*predict._accuracy_rows(model, data, logits)]
        assert rows == [["accuracy", "unknown", "(labels are of another kind)"]]


def test_predict_with_unknown_training_data(digits_checkpoint, tmp_path, monkeypatch, capsys):
    trained = load_checkpoint(digits_checkpoint)
    old = TrainedModel(trained.model, trained.config)

    def load_old(path):
        warnings.warn(f"{path} lacks the split", stacklevel=2)
        return old

    monkeypatch.setattr(predict, "load_checkpoint", load_old)
    data = save_graph(tmp_path / "new.npz")
    assert cli.main(["predict", "old", "--data", str(data)]) == 0
    out, err = capsys.readouterr()
    assert err == "jax-gnn: warning: old lacks the split\n"
    assert "data new (not known to be those of the training)" in " ".join(out.split())
    assert "(all 2 labelled nodes)" in out


def user_error(capsys, arguments):
    """Return the one line that a command prints for an error of the user."""
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


NO_OPTION = "jax-gnn: error: cora.npz has no option; for data it is: jax-gnn train"
USAGE_ERRORS = [
    # Data without the name of the option, or none where none is built in.
    ("train gcn cora.npz", f"{NO_OPTION} gcn --data cora.npz\n"),
    ("train rgcn --seed 1 cora.npz", f"{NO_OPTION} rgcn --data cora.npz\n"),
    ("train rgcn-link cora.npz", f"{NO_OPTION} rgcn --task link --data cora.npz\n"),
    ("train rgat", "--data is needed: jax-gnn train rgat --data FILE|FOLDER"),
    # Options of other tasks, and words that are spelled otherwise.
    ("train gin --task graph --no-baseline --data x", "gin --task graph has no option --no-base"),
    ("train gcn --epoch=3 --hiden 4 --data x", "gcn has no option --hiden; close are --hidden"),
    ("train gnc", "argument WHAT: unknown 'gnc'; did you mean gcn"),
    ("trian gcn", "argument COMMAND: unknown 'trian'; did you mean train?"),
    ("train xyzzy", "argument WHAT: invalid choice: 'xyzzy'"),
    ("train hgnn --task graph", "argument --task: invalid choice: 'graph'"),
    # Values out of range.
    ("train hgnn --splits 0", "argument --splits: expected a whole number from 1 to 2147483647, g"),
    ("train hgnn --layers 1.5", "argument --layers: expected a whole number from 1 to 2147483647,"),
    ("train hgnn --seed -1", "argument --seed: expected a whole number from 0 to 2147483647, got"),
    ("train hgnn --learning-rate nan", "argument --learning-rate: expected a positive number, got"),
    ("train sage --reduce maxx", "argument --reduce: invalid choice: 'maxx'"),
    ("train sage --fanouts 5,0", "argument --fanouts: expected whole numbers"),
    ("train sage --fanouts 5,x", "argument --fanouts: expected whole numbers"),
    ("train sage --batch-size 2.5", "argument --batch-size: expected a whole number"),
    ("train hgnn --implementation gpu", "argument --implementation: invalid choice: 'gpu'"),
    # Required words.
    ("", "required"),
    ("train", "required"),
    ("predict", "required"),
]


@pytest.mark.parametrize(("words", "message"), USAGE_ERRORS)
def test_usage_errors(words, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words.split())
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_implementation_of_another_platform(data, monkeypatch, capsys):
    # CUDA is missing first, then it is the platform of JAX.
    missing = ffi.PlatformStatus("cuda", False, (), "no compiler was found", hint="get nvcc")
    monkeypatch.setitem(ffi.STATUS, "cuda", missing)
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    message = user_error(capsys, small(data, "--implementation", "cuda"))
    assert "--implementation cuda: " in message and "no compiler was found (get nvcc)" in message
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    message = user_error(capsys, small(data, "--implementation", "cpu"))
    assert "--implementation cpu: JAX runs on cuda here" in message


def test_parts(data, tmp_path, monkeypatch, capsys):
    # A file of ``jax-gnn partition`` splits a training, whose checkpoint predicts without it.
    # First the file of parts, then a training and predictions that use it.
    parts, folder = tmp_path / "parts.npz", tmp_path / "out"
    assert cli.main(["partition", str(data), "--parts", "2", "--output", str(parts)]) == 0
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert " data tiny (HypergraphDataset)\n parts 2, by auto\n nodes 1.0" in out
    assert " sent for a layer " in out and f" output {parts}\n" in out
    over = ["--devices", "2", "--partition", str(parts)]
    assert cli.main(small(data, *over, "--splits", "1", "--output", str(folder))) == 0
    out = capsys.readouterr().out
    assert "same predictions" in out and "without kernels" not in out
    check_prediction(capsys, folder, data, (20, 10, 10))
    predict = ["predict", str(folder / "checkpoint"), "--data", str(data)]
    outputs = []
    for options in ([], ["--devices", "3"], over):
        assert cli.main([*predict, *options]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
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
    assert cli.main(["partition", str(data), "--parts", "5", "--output", str(folder)]) == 0
    assert f" output {folder}\n" in re.sub(" +", " ", capsys.readouterr().out)
    # A folder of parts is read back on fewer devices, and its plan takes the place of the file.
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("nodes",))
    split, values = load_parts(folder, mesh, "nodes")
    with np.load(data) as arrays:
        for name in ("x", "y"):
            np.testing.assert_array_equal(split.unshard(values[name]), arrays[name])
    for count in ("1", "2", "5"):
        plan = ["--devices", count, "--partition", str(folder / "plan.npz")]
        assert cli.main([*predict, *plan]) == 0
        assert capsys.readouterr().out == outputs[0]
    many = user_error(capsys, ["partition", str(data), "--parts", "41"])
    assert "--parts must be at most num_nodes = 40 of tiny, got 41" in many


def test_missing_train_extra(data, monkeypatch, capsys):
    monkeypatch.setattr("flax_layers.training.options.TRAIN_EXTRA", ("optax", "no_such_package"))
    message = user_error(capsys, small(data))
    assert "training needs no_such_package; run: pip install 'jax-gnn-kernels[train]'" in message


def raising(error):
    """Return a function of any arguments that raises an error."""

    def function(*_, **__):
        raise error

    return function


def test_any_error_is_one_line(data, tmp_path, monkeypatch, capsys):
    arguments = small(data, "--output", str(tmp_path / "out"))
    # A message of two lines must be printed as one.
    monkeypatch.setattr(run, "train", raising(KeyError("one\nother")))
    assert user_error(capsys, arguments) == "jax-gnn: error: KeyError: 'one\\nother'\n"
    with monkeypatch.context() as context, pytest.raises(KeyError):
        context.setenv("JAX_TRACEBACK_FILTERING", "off")
        cli.main(arguments)
    monkeypatch.setattr(run, "train", raising(KeyboardInterrupt))
    assert cli.main(arguments) == 130
    line = f"jax-gnn: interrupted; to go on: {shlex.join(['jax-gnn', *arguments])} --resume\n"
    assert capsys.readouterr().err == line


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
    monkeypatch.setattr(run, "train", lambda *_, **__: reached.append(1) or 1 / 0)
    assert "ZeroDivisionError" in user_error(capsys, [*arguments, "--overwrite"])
    assert reached


def test_nearest_format(tmp_path):
    (tmp_path / "edge.csv").touch()
    with pytest.raises(ValueError, match=r"nearest is a folder with nodes.csv and edges.csv; "):
        load_any(str(tmp_path))
    (tmp_path / "edge.csv").rename(tmp_path / "customers.csv")
    for source, message in ((tmp_path, "are named nodes"), (tmp_path / "customers.csv", "header")):
        with pytest.raises(ValueError, match=message):
            load_any(str(source))


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
    cuda = ffi.PlatformStatus("cuda", True, ("sddmm",), build="a compiler")
    monkeypatch.setattr(ffi, "status", lambda: [cuda])  # kernels that may be used or not
    monkeypatch.setattr("jax.devices", raising(RuntimeError("Unable to initialize backend")))
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "none: Unable to initialize backend" in out
    assert "not used: " in out


def data_output(source, capsys):
    """Return what ``jax-gnn data`` prints, with single blanks between columns."""
    parser = argparse.ArgumentParser()
    sources.add_data(parser.add_subparsers())
    args = parser.parse_args(["data", str(source)])
    assert args.run(args) == 0
    return re.sub(" +", " ", capsys.readouterr().out)


def test_data(data, featureless, planetoid, capsys):
    out = data_output(data, capsys)
    assert " data tiny (HypergraphDataset)\n nodes 40\n hyperedges 12\n incidences 48\n" in out
    assert " features 6\n labels 2 classes, 40 labelled nodes\n models hgnn, hgnnp, " in out
    out = data_output(featureless, capsys)
    assert "has no node features" in out and "models" not in out
    out = data_output(planetoid, capsys)
    assert " models gcn, gin, " in out and "hgnn" not in out
    with pytest.raises(ValueError, match=r"nowhere does not exist; jax-gnn data --help"):
        data_output("nowhere", capsys)


def test_data_of_tables(tmp_path, capsys):
    # The use of columns, the unused column, and the names that labels would have.
    lines = "".join(f"n{i},{i},{'ab'[i % 2]},{i % 3}\n" for i in range(6))
    (tmp_path / "nodes.csv").write_text("id,age,city,team\n" + lines)
    (tmp_path / "edges.csv").write_text("src,dst,weight,since\nn0,n1,2,2010\n")
    out = data_output(tmp_path, capsys)
    assert " columns id: names\n age: number, 0 to 5\n city: category of 2 values (a, b)\n" in out
    assert " weight of edges.csv: edge weights\n since of edges.csv: feature of edges: " in out
    assert "0 labelled nodes; splits need at least 4; labels are the column 'label' or" in out
    (tmp_path / "nodes.csv").write_text("id,age,city,label\n" + lines)
    assert " label: 3 classes, 6 of 6 known\n" in data_output(tmp_path, capsys)


def test_data_names_the_nearest_kind(tmp_path, capsys):
    # A file that has all arrays of a graph is not called a damaged hypergraph.
    np.savez(tmp_path / "a.npz", num_nodes=3, src=[0], dst=[1], y=[0, 1, 1], foo=[1])
    with pytest.raises(ValueError) as caught:
        data_output(tmp_path / "a.npz", capsys)
    assert "has the key 'foo', which is none of a graph dataset" in str(caught.value)
    assert "hypergraph" not in str(caught.value)


def test_data_of_triples(tmp_path, capsys):
    # The parts are of edges, as there are no labels.
    parts = {"train_idx": [0], "val_idx": [1], "test_idx": [2]}
    facts = {"src": [0, 1, 2], "rel": [0, 0, 0], "dst": [1, 2, 0]}
    numbers = {"num_nodes": 3, "num_relations": 1}
    np.savez(tmp_path / "facts.npz", **parts, **facts, **numbers)
    out = data_output(tmp_path / "facts.npz", capsys)
    assert " split of edges 1 train, 1 val, 1 test\n" in out
    assert " models rgcn --task link, compgcn --task link\n" in out
    assert re.search(r" lacking .* has 0 labelled nodes.* \(rgcn, rgat, hgt, simplehgn\)\n", out)


PRINTED = {
    "--version": f"jax-gnn {jax_gnn.__version__}\n",
    "--help": "example: jax-gnn train hgnn\n",
    "predict --help": "partition wrote (default: auto)\n",
}


@pytest.mark.parametrize("words", PRINTED)
def test_arguments_that_only_print(words, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words.split())
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.endswith(PRINTED[words])


def test_typed_nodes_of_several_classes(tmp_path, capsys):
    # Features by type become a table with a probability for each class.
    write_typed(path := tmp_path / "typed.npz")
    folder = tmp_path / "out"
    options = ["--splits", "1", "--epochs", "3", "--hidden-features", "8", "--heads", "2"]
    assert cli.main(["train", "hgt", "--data", str(path), *options, "--output", str(folder)]) == 0
    out, _ = capsys.readouterr()
    assert "same predictions" in out and "3/0 features, 2 classes" in out
    table = tmp_path / "table.csv"
    arguments = [str(folder / "checkpoint"), "--data", str(path), "--output", str(table)]
    assert cli.main(["predict", *arguments]) == 0
    results = read_results(folder)
    assert results["dataset"]["num_features"] == "3/0"
    test = 100 * results["jax_gnn"]["test_accuracy"][0]
    rows = output_rows(capsys)
    assert f"test accuracy {test:.2f} % (6 nodes)" in rows
    assert table.read_text().splitlines()[0] == "node,left,right"
    shares = np.loadtxt(table, delimiter=",", skiprows=1)
    assert shares.shape == (30, 3) and ((shares[:, 1:] > 0) & (shares[:, 1:] < 1)).all()


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
def test_classes_with_names_of_columns(tmp_path, suffix):
    # Classes may have the names of columns, and of arguments of numpy.savez.
    arrow = pytest.importorskip("pyarrow.parquet") if suffix == "parquet" else None
    names = ("file", "node", "allow_pickle")
    config = types.SimpleNamespace(target_scaling=None, multilabel=True)
    trained = types.SimpleNamespace(label_names=names, config=config)
    sizes = {"num_examples": 2, "example": "node"}
    dataset = types.SimpleNamespace(node_names=None, predicted=None, **sizes)  # without labels
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


def write_typed(path):
    """Write twenty nodes of two flags whose edges lead to ten others, by class."""
    rng = np.random.default_rng(0)
    y = np.arange(20) % 2
    src, dst = np.repeat(np.arange(20), 4), 20 + 2 * rng.integers(0, 5, 80) + np.repeat(y, 4)
    np.savez(
        path,
        num_nodes=30,
        num_relations=1,
        src=src,
        rel=0 * src,
        dst=dst,
        node_type=np.repeat([0, 1], [20, 10]),
        node_type_names=np.array(["a", "b"]),
        x_a=rng.normal(size=(20, 3)),
        class_names=np.array(["left", "right"]),
        hgb_train_idx=np.arange(14),
        hgb_test_idx=np.arange(14, 20),
        y_multilabel=np.stack([y, 1 - y], 1),
    )


def write_links(path, **changes):
    """Write three relations, each a shift of the nodes."""
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
    assert "same predictions" in out
    note, *lines = err.splitlines()
    assert note == "jax-gnn: the data have a split of their edges: --valid and --test do not count"
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert (folder / "learning_curves.png").stat().st_size > 1000
    results = read_results(folder)
    assert len(results["loss"]) == len(results["validations"]) == 2
    assert results["edges"] == {"train": 56, "valid": 8, "test": 8}
    table = tmp_path / "ranks.npz"
    arguments = [str(folder / "checkpoint"), "--data", str(path), "--output", str(table)]
    assert cli.main(["predict", *arguments]) == 0
    out, _ = capsys.readouterr()
    assert "(as in training)" in out and f"{100 * results['test']['mrr']:.2f} %" in out
    with np.load(table) as ranks:
        columns = np.stack([ranks["dst_rank"], ranks["src_rank"]])
        assert (1 / columns).mean() == pytest.approx(results["test"]["mrr"])
        src, dst = (np.array([int(n[5:]) for n in ranks[column]]) for column in ("src", "dst"))
        rel = np.searchsorted(names, ranks["rel"])
        assert ((src + rel + 1) % 24 == dst).all() and set(ranks["rel"]) <= set(names)
        before = dict(ranks)
    # Queries take names, and data that confirm the graph of the training.
    query = ["predict", arguments[0], "--top", "3", "--query", "node 0, a, ?"]
    assert cli.main(query) == 0
    answer = capsys.readouterr().out
    assert answer.count("node ") == 4 and cli.main([*query, "--data", str(path)]) == 0
    assert capsys.readouterr().out == answer
    # Other numbers of relations: by name the ranks are the same, without names there is a warning.
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
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "by number" in line]
    assert line.startswith("jax-gnn: warning: dataset 'shifts' is not that")
    # A node more, which the model has no embedding of.
    write_links(path, num_nodes=25)
    assert cli.main(["predict", *arguments]) == 2
    assert "has 25 nodes and 3 relations, the model 24 and 3" in capsys.readouterr().err
    message = user_error(capsys, [*query, "--data", str(path)])
    assert "leave --data out, which has other structure" in message


def test_edges_of_a_plain_graph(tmp_path, capsys):
    src, dst = np.random.default_rng(0).integers(0, 40, (2, 200))
    edges = {"src": np.append(src, dst), "dst": np.append(dst, src)}
    graph = make_graph_dataset(y=np.full(40, -1), edge_features=None, **edges)
    path = save(tmp_path / "plain.npz", graph)
    folder, table = tmp_path / "out", tmp_path / "edges.csv"
    options = ["--data", str(path), "--epochs", "4", "--evaluate-every", "2", "--variational"]
    assert cli.main(["train", "gcn", "--task", "link", *options, "--output", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "same predictions" in out and "AUC" in out
    note, *lines = err.splitlines()
    assert note.startswith("jax-gnn: edges are split at random: ")
    assert "(--valid 0.05 --test 0.1 --seed 0)" in note
    assert lines.pop(0).startswith("jax-gnn: --feature-normalization auto is ")
    assert [line.split(":")[0] for line in lines] == ["epoch 2/4", "epoch 4/4"]
    assert all("validation AUC 0." in line for line in lines)
    results = read_results(folder)
    predict = ["predict", str(folder / "checkpoint"), "--data", str(path), "--output", str(table)]
    assert cli.main(predict) == 0
    out, err = capsys.readouterr()
    assert "(as in training)" in out and f"{100 * results['test']['auc']:.2f} %" in out and not err
    header, *rows = csv.reader(table.read_text().splitlines())
    assert header == ["src", "dst", "edge", "probability"]
    edges, pairs = ([float(p) for *_, edge, p in rows if edge == kind] for kind in "10")
    # AUC is the share of pairs in which an edge has the higher probability.
    wins = [(a > b) + (a == b) / 2 for a in edges for b in pairs]
    assert len(edges) == len(pairs) == results["edges"]["test"]
    assert np.mean(wins) == pytest.approx(results["test"]["auc"])


def test_links_without_a_split(tmp_path, capsys):
    write_links(path := tmp_path / "shifts.npz", val_idx=np.zeros(0, int))
    message = user_error(capsys, ["train", "compgcn-link", "--data", str(path)])
    assert "--data: dataset 'shifts' has no val_edges to predict links" in message
    np.savez(path, num_nodes=2, src=[0], dst=[1], y=[0, 0], x=np.ones((2, 1)))
    message = user_error(capsys, ["train", "gcn-link", "--data", str(path)])
    assert "dataset 'shifts' cannot be split: graph has 1 edges, of which valid=0.05" in message


def test_incompatible_settings_and_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_links(Path("shifts.npz"))
    labels = {"y": np.arange(24) % 2, "train_idx": [0], "val_idx": [1], "test_idx": [2]}
    types = {"node_type": np.repeat([0, 1], 12), "node_type_names": ["a", "b"]}
    write_links(Path("typed.npz"), **labels, **types)
    for words, message in (
        ("gat --hidden-features 9", "heads must divide hidden_features"),
        ("sage --batch-size 8 --fanouts 5", "fanouts must be one for each of num_layers = 2"),
        ("rgcn-link --data shifts.npz --hidden-features 8", "num_blocks must divide"),
        ("rgcn-link --data shifts.npz --blocks 7 --embedding-features 8", "num_blocks.*got.*7"),
        ("hgt --data typed.npz", "relation 0 runs from nodes of the types 'a' and 'b'"),
    ):
        assert re.search(message, user_error(capsys, ["train", *words.split()]))


@pytest.mark.parametrize("name", [*RECIPES, *LINK_RECIPES])
def test_help_has_examples(name, capsys):
    """The help of each model has examples that parse; of the digits, those that can be trained."""
    parser, words = cli._make_parser(), ["train", *command_name(name).split()]
    with pytest.raises(SystemExit):
        parser.parse_args([*words, "--help"])
    text = capsys.readouterr().out.partition("\n\nexamples:\n")[2].partition("\n\n")[0]
    examples = [line.split() for line in text.splitlines()]
    assert examples and all(line[: 1 + len(words)] == ["jax-gnn", *words] for line in examples)
    for line in examples:
        args = parser.parse_args(line[1:])
        if args.data == "digits":
            recipe = RECIPES.get(name) or LINK_RECIPES[name]
            check = check_dataset if name in RECIPES else check_links
            check(recipe.load("digits"), recipe.config())


def test_help_shows_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "hgnn", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for default in ("digits", "10", "0.01", "symmetric", "isolated", "native", "auto", "0"):
        assert f"(default: {default})" in words
    assert "default: False" not in words
    assert "default: None" not in words


def test_words_for_none():
    """Settings that may be None have a word for it."""
    words = ["train", "gine", "--implementation", "auto", "--mlp-norm", "none"]
    config = settings_of(RECIPES["gine"].config, cli._make_parser().parse_args(words))
    assert config.implementation is config.mlp_norm is None
    assert RECIPES["gine"].config().mlp_norm == "batch_norm"
