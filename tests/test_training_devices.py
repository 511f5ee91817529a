"""Trainings over several devices: what comes of them, and what only one device does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_training import dataset_for, make_graph_dataset, make_typed_dataset
from test_training_minibatch import save

from flax_layers.training import (
    RECIPES,
    GCNConfig,
    GINGraphConfig,
    UniGATConfig,
    load_checkpoint,
    save_checkpoint,
    train,
)
from flax_layers.training.devices import takes_parts
from flax_layers.training.epochs import Runner
from flax_layers.training.feeds import SplitGraph
from flax_layers.training.trained import make_model
from jax_gnn import cli
from jax_gnn.datasets import random_split
from jax_gnn.sharding import ShardedGraph

SPLIT = [name for name, recipe in RECIPES.items() if recipe.structure and takes_parts(recipe)]
MOST = min(4, jax.device_count())
SMALL: Any = {"splits": 1, "epochs": 3, "hidden_features": 8, "dropout_rate": 0.0}

pytestmark = pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """GPUs round factors to ten bits by default, and then not alike where rows differ a little."""
    with jax.default_matmul_precision("highest"):
        yield


def settings(model: str, **changes: Any) -> Any:
    """Without dropout, which differs by device."""
    kind = RECIPES[model].config
    rates = [f.name for f in dataclasses.fields(kind) if f.name.endswith("dropout_rate")]
    return kind(**SMALL | dict.fromkeys(rates, 0.0) | changes)


def assert_alike(found: Any, wanted: Any, dataset: Any) -> None:
    np.testing.assert_allclose(found.run.train_loss, wanted.run.train_loss, 1e-3, 1e-4)
    np.testing.assert_allclose(found.run.valid_accuracy, wanted.run.valid_accuracy, atol=1e-6)
    logits = (each.trained.predict(dataset) for each in (found, wanted))
    np.testing.assert_allclose(*logits, 1e-2, 2e-3)


@pytest.mark.parametrize("model", SPLIT)
def test_same_results_as_on_one_device(model: str, rng: np.random.Generator) -> None:
    count = min(3, MOST)
    config, method = settings(model), rng.integers(0, count, 40)
    dataset = dataset_for(type(config))
    alone = train(dataset, config)
    split = train(dataset, config, devices=count, method=method)
    assert_alike(split, alone, dataset)
    assert isinstance(split.graph, ShardedGraph) and split.sizes == alone.sizes


class Stopped(Exception):
    """In place of what ends a process."""


def test_types_of_nodes(rng: np.random.Generator) -> None:
    """Features of two widths, and embeddings of the third type."""
    dataset, config = make_typed_dataset(), settings("hgt")
    alone = train(dataset, config)
    split = train(dataset, config, devices=2, method=rng.integers(0, 2, 54))
    assert_alike(split, alone, dataset)


def test_weights_and_numbers(rng: np.random.Generator) -> None:
    """Edges with weights, and a regression, whose errors are found on the devices, too."""
    dataset = make_graph_dataset()
    weight = rng.uniform(0.5, 2, dataset.src.size).astype(np.float32)
    y = rng.normal(size=(40, 2)).astype(np.float32)
    y[::7] = np.nan
    dataset = dataclasses.replace(dataset, edge_weight=weight, y=y)
    config = settings("gcn", edge_weight=True, splits=2)
    alone, split = (train(dataset, config, devices=devices) for devices in (1, 2))
    np.testing.assert_allclose(split.run.train_loss, alone.run.train_loss, 1e-4)
    assert alone.errors is not None and split.errors is not None
    for name, errors in alone.errors.items():
        np.testing.assert_allclose(split.errors[name], errors, 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("model", "before", "after"), [("gcn", 1, 2), ("gcn", 2, 2), ("hgt", 2, 1), ("hgt", 2, MOST)]
)
def test_other_devices(
    model: str, before: int, after: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    """A run goes on over others with the same losses, and so predicts its checkpoint.

    Of "hgt" nodes of one type have embeddings, with their moments.
    """
    dataset = make_graph_dataset() if model == "gcn" else make_typed_dataset()
    config = settings(model, epochs=12)
    wanted, file = train(dataset, config), tmp_path / "state.npz"

    def halt(report: Any) -> None:
        if report.epoch == 9:
            raise Stopped

    with pytest.raises(Stopped):
        train(dataset, config, devices=before, on_epoch=halt, state=file)
    method = rng.integers(0, after, dataset.num_nodes)
    found = train(dataset, config, devices=after, method=method, state=file, resume=True)
    assert_alike(found, wanted, dataset)
    save_checkpoint(tmp_path / "checkpoint", found.trained)
    again = load_checkpoint(tmp_path / "checkpoint")
    alone, *split = (again.predict(dataset, devices=devices) for devices in (1, 2, MOST))
    for logits in split:
        np.testing.assert_allclose(logits, alone, 1e-5, 1e-6)


def test_resumed_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted on two devices, it ends on others as on one."""
    data = save(tmp_path / "easy.npz", make_graph_dataset())
    size = ["--splits", "1", "--epochs", "24", "--hidden-features", "8", "--dropout", "0"]

    def run(name: str, *more: str) -> int:
        folder = ["--output", str(tmp_path / name)]
        code = cli.main(["train", "gcn", "--data", data, *size, *folder, *more])
        capsys.readouterr()
        return code

    assert run("one", "--no-baseline") == 0
    advance, calls = Runner.advance, []

    def stops(self: Runner, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return advance(self, *arguments)

    monkeypatch.setattr(Runner, "advance", stops)
    assert run("other", "--devices", "2") == 130
    assert run("other", "--devices", str(MOST), "--partition", "hash", "--resume") == 0
    one, other = (
        json.loads((tmp_path / name / "results.json").read_text()) for name in ("one", "other")
    )
    assert other["devices_used"] == MOST and len(calls) > 2
    for name in ("test_accuracy", "valid_accuracy", "best_epoch"):
        assert one["jax_gnn"][name] == other["jax_gnn"][name]


def test_dropout_differs_by_device() -> None:
    """Each of two parts that are alike drops others of its rows."""
    half = np.arange(20)
    dataset = dataclasses.replace(
        make_graph_dataset(),
        **{"src": np.r_[half, half + 20], "dst": np.r_[half, half + 20], "x": np.ones((40, 6))},
    )
    config = settings("gcn", dropout_rate=0.5)
    feed = SplitGraph(dataset, config, 2, np.repeat([0, 1], 20))
    model = make_model(config, feed.graph, feed.inputs[0], 2, 0)
    data = feed.start(config, random_split(dataset.y, seed=0), 0)
    logits = jax.jit(lambda key: feed.logits(model, data.graph, data.inputs, key))
    for key in (jax.random.key(0), None):
        first, second = np.split(np.asarray(logits(key)), 2)
        assert np.array_equal(first, second) == (key is None)


@pytest.mark.parametrize(
    ("config", "devices", "message"),
    [
        (GCNConfig(), 0, "devices must be a number from 1, got 0"),
        (GCNConfig(), 99, r"at most \d+, the \w+ devices that there are.*, got 99"),
        (GCNConfig(batch_size=4), 2, "devices must be 1: gcn is trained on batches of nodes"),
        (GINGraphConfig(), 2, "must be 1: gin --task graph is trained on batches of graphs; got 2"),
        (UniGATConfig(), 2, "must be 1: unigat takes no part of a hypergraph, as hgnn, hgnnp, uni"),
    ],
)
def test_what_one_device_does(config: Any, devices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(dataset_for(type(config)), config, devices=devices)


def test_parts_that_do_not_fit() -> None:
    dataset = make_graph_dataset()
    for method, message in (
        ("ring", "method must be one of .*, got 'ring'"),
        (np.zeros(3, int), r"method must be .* shape \(40,\), got shape \(3,\)"),
        (np.arange(40), r"method\[2\] = 2 is outside"),
    ):
        with pytest.raises(ValueError, match=message):
            train(dataset, settings("gcn"), devices=2, method=method)
