"""Training on batches of nodes: what a step sees, what is repeated, what the command takes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_training import make_graph_dataset, make_relational_dataset, make_typed_dataset

from flax_layers.training import (
    RECIPES,
    GATConfig,
    GCNConfig,
    GINConfig,
    HGTConfig,
    RGATConfig,
    RGCNConfig,
    SAGEConfig,
    load_checkpoint,
    minibatch,
    resume,
    save_checkpoint,
    train,
)
from flax_layers.training.epochs import Runner
from flax_layers.training.minibatch import SampledNodes, seeds_of_epoch
from flax_layers.training.trained import make_model
from jax_gnn import cli
from jax_gnn.datasets import GraphDataset, Split

pytestmark = pytest.mark.usefixtures("strict_promotion")

SMALL = {"splits": 1, "epochs": 3, "hidden_features": 8, "dropout_rate": 0.0}
ALL = {"batch_size": 7, "fanouts": (99, 99)}  # more than there are
MODELS = [
    (GCNConfig, make_graph_dataset),
    (GINConfig, make_graph_dataset),
    (SAGEConfig, make_graph_dataset),
    (GATConfig, make_graph_dataset),
    (RGCNConfig, make_relational_dataset),
    (RGATConfig, make_relational_dataset),
    (HGTConfig, make_relational_dataset),
    (RGCNConfig, make_typed_dataset),
    (HGTConfig, make_typed_dataset),
]


def settings(config, **given):
    native = {"features": "native"} if config is RGCNConfig else {}
    return config(**SMALL | native | given)


def test_every_seed_once_an_epoch(rng):
    ids = rng.choice(1000, rng.integers(1, 60), replace=False)
    size, seed = int(rng.integers(1, 70)), int(rng.integers(2**31))
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
    """Logits of seeds, padding among them, with fanouts for all edges."""
    with jax.enable_x64(True):
        dataset, given = make(), settings(config, **ALL)
        split = Split(*np.split(np.arange(40), [20, 30]))
        feed = SampledNodes(dataset, given, [split])
        whole = feed.start(given, split, 0)
        model = make_model(given, feed.graph, feed.inputs[0], 2, int(rng.integers(100)))
        seeds = jnp.array([3, -1, *rng.integers(0, 40, 5)], jnp.int32)
        batch = feed.batch(whole, seeds, jax.random.key(int(rng.integers(100))))
        found = feed.logits(model, batch.graph, batch.inputs, None)
        want = feed.logits(model, feed.graph, feed.inputs, None)
        there = np.asarray(seeds) >= 0
        np.testing.assert_array_equal(batch.masks[0], there)
        np.testing.assert_allclose(found[there], want[seeds[there]], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(batch.y[there], whole.y[seeds[there]])


def test_sums_are_those_of_all_edges_on_average(rng):
    """Of a GCN's and a GIN's aggregation, with weights of edges."""
    dataset = make_graph_dataset()
    weight = rng.uniform(1, 2, len(dataset.src)).astype(np.float32)
    dataset = dataclasses.replace(dataset, edge_weight=weight)
    given = settings(GINConfig, batch_size=40, fanouts=(2,), num_layers=1, edge_weight=True)
    split = Split(*np.split(np.arange(40), [20, 30]))
    feed = SampledNodes(dataset, given, [split])
    whole = feed.start(given, split, 0)

    @jax.jit
    def sums(key):
        batch = feed.batch(whole, jnp.arange(40, dtype=jnp.int32), key)
        (block,) = batch.graph.graphs
        (values,) = batch.inputs[1]["edge_weight"]
        return jax.ops.segment_sum(values, block.rows, 40)

    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), 2000)
    found = np.asarray(jax.lax.map(sums, keys, batch_size=100), np.float64)
    weights = np.asarray(feed.inputs[1]["edge_weight"], np.float64)
    want = np.bincount(np.asarray(feed.graph.rows), weights, 40)
    error = found.std(0) / np.sqrt(len(keys))
    assert (np.abs(found.mean(0) - want) <= 6 * error + 1e-4).all()


@pytest.mark.parametrize(("config", "make"), MODELS)
def test_one_trace_of_a_step_and_the_same_bits_again(config, make, monkeypatch):
    """Of a run with several splits, short last batches and evaluations; and of a longer run."""
    dataset, traces = make(), []
    batch, compiled = SampledNodes.batch, []

    def counted(self, *arguments):
        traces.append(1)
        return batch(self, *arguments)

    monkeypatch.setattr(SampledNodes, "batch", counted)
    advance = Runner.advance

    def watched(self, *arguments):
        found = advance(self, *arguments)
        compiled.append(len(self._compiled))
        return found

    monkeypatch.setattr(Runner, "advance", watched)
    given = settings(config, batch_size=7, fanouts=(3, 2), splits=2)
    first = train(dataset, given)
    assert len(traces) == 1  # of steps and epochs alike
    assert compiled == [1] * 6
    again = train(dataset, dataclasses.replace(given, epochs=4))
    for name in ("train_loss", "valid_accuracy", "test_accuracy"):
        values = getattr(first.run, name), getattr(again.run, name)[:, :3]
        np.testing.assert_array_equal(*values)
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


@pytest.mark.parametrize("config", [GCNConfig, SAGEConfig])
def test_learns(config, rng):
    """What neighbours tell: 12 of them, of which six are drawn, leave few mistakes."""
    given = config(splits=1, epochs=15, hidden_features=16, batch_size=32, fanouts=(6, 6))
    assert train(easy(rng), given).run.accuracy_mean > 0.9


def test_evaluation_by_layer(monkeypatch, rng):
    """In chunks the curves are those of an evaluation at once."""
    dataset = easy(rng, 120)
    given = settings(SAGEConfig, batch_size=16, fanouts=(3, 2))
    at_once = train(dataset, given).run
    monkeypatch.setattr(minibatch, "CHUNK_EDGES", 100)
    by_layer = train(dataset, given).run
    for name in ("train_accuracy", "valid_accuracy", "test_accuracy"):
        a, b = getattr(at_once, name), getattr(by_layer, name)
        np.testing.assert_allclose(a, b, atol=1.5 / 30)  # ties of logits that round otherwise


def test_checkpoint(tmp_path):
    dataset = make_graph_dataset()
    trained = train(dataset, settings(SAGEConfig, batch_size=7, fanouts=(3, 2))).trained
    save_checkpoint(tmp_path / "it", trained)
    loaded = load_checkpoint(tmp_path / "it")
    assert loaded.config == trained.config
    assert loaded.config.fanouts == (3, 2)
    np.testing.assert_array_equal(loaded.predict(dataset), trained.predict(dataset))


def save(path, dataset):
    np.savez(
        path,
        **{k: v for k, v in vars(dataset).items() if isinstance(v, np.ndarray)},
        num_nodes=dataset.num_nodes,
    )
    return str(path)


def test_command(tmp_path, capsys):
    data, folder = save(tmp_path / "easy.npz", make_graph_dataset()), tmp_path / "run"
    small = ["--splits", "2", "--epochs", "3", "--hidden-features", "8", "--output", str(folder)]
    batches = ["--batch-size", "7", "--fanouts", "3,2"]
    assert cli.main(["train", "sage", "--data", data, *small, *batches]) == 0
    out, err = capsys.readouterr()
    assert "seeds per second" in out
    assert err.count("seeds/s") == 2
    results = json.loads((folder / "results.json").read_text())
    assert results["config"]["fanouts"] == [3, 2]
    assert results["plain_jax"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--batch-size", "8", "--fanouts", "5"], "fanouts must be one for each of num_layers = 2"),
        (["--fanouts", "5,5"], "fanouts need a batch_size, the nodes of a step, got"),
        (["--batch-size", "8", "--fanouts", "5,0"], "argument --fanouts: expected whole numbers"),
        (["--batch-size", "8", "--fanouts", "5,x"], "argument --fanouts: expected whole numbers"),
        (["--batch-size", "8", "--fanouts", "1.5"], "argument --fanouts: expected whole numbers"),
        (["--batch-size", "-1"], "argument --batch-size: expected a whole number"),
        (["--batch-size", "0"], "argument --batch-size: expected a whole number"),
        (["--batch-size", "2.5"], "argument --batch-size: expected a whole number"),
    ],
)
def test_bad_options(options, told, tmp_path, capsys):
    data = save(tmp_path / "easy.npz", make_graph_dataset())
    try:
        code = cli.main(["train", "sage", "--data", data, *options])
    except SystemExit as error:
        code = error.code
    assert code == 2
    out, err = capsys.readouterr()
    assert not out
    assert told in err.splitlines()[-1]


def test_bad_settings():
    with pytest.raises(ValueError, match="fanouts need a batch_size"):
        SAGEConfig(fanouts=(5, 5))
    with pytest.raises(ValueError, match="fanouts must be whole numbers"):
        SAGEConfig(batch_size=3, fanouts=(5, 0))
    with pytest.raises(ValueError, match="fanouts must be whole numbers"):
        SAGEConfig(batch_size=3, fanouts=7)
    with pytest.raises(ValueError, match="batch_size is for nodes with features"):
        train(make_relational_dataset(), RGCNConfig(**SMALL, batch_size=3))
    assert {name for name, each in RECIPES.items() if hasattr(each.config, "fanouts")} == {
        *("gcn", "gin", "sage", "gat", "gatv2", "transformer", "rgcn", "rgat", "hgt")
    }


# --- Interrupted runs ----------------------------------------------------------------------------


class Stopped(Exception):
    """In place of what ends a process."""


@pytest.mark.parametrize("config", [SAGEConfig, RGCNConfig])
def test_resumed_runs_have_the_same_bits(config, tmp_path, rng):
    """Wherever they were interrupted, twice, and with splits that had ended before."""
    dataset = make_graph_dataset() if config is SAGEConfig else make_typed_dataset()
    given = settings(config, batch_size=7, fanouts=(3, 2), splits=2, dropout_rate=0.5)
    want, file = train(dataset, given), tmp_path / "state.npz"
    stops = np.sort(rng.choice(6, 2, replace=False))
    for stop in stops:

        def halt(report, stop=stop):
            if 3 * report.split + report.epoch == stop:
                raise Stopped

        with pytest.raises(Stopped):
            train(dataset, given, on_epoch=halt, state=file, resume=True)
    reports = []
    found = train(dataset, given, on_epoch=reports.append, state=file, resume=True)
    assert len(reports) == 5 - stops[-1]
    assert not file.exists()
    for name in ("train_loss", "train_accuracy", "valid_accuracy", "test_accuracy"):
        np.testing.assert_array_equal(getattr(found.run, name), getattr(want.run, name))
    assert found.trained.seed == want.trained.seed
    np.testing.assert_array_equal(found.trained.predict(dataset), want.trained.predict(dataset))


def test_the_state_is_written_now_and_then(tmp_path, monkeypatch):
    """For a process that ends without an exception; and no more often than is told."""
    dataset, file = make_graph_dataset(), tmp_path / "state.npz"
    given = settings(SAGEConfig, batch_size=7, fanouts=(3, 2))
    for every, wanted in ((0.0, [True] * 3), (1e9, [False] * 3)):
        monkeypatch.setattr(resume, "EVERY", every)
        there = []
        train(dataset, given, on_epoch=lambda _: there.append(file.exists()), state=file)  # noqa: B023
        assert there == wanted and not file.exists()


def test_resumed_runs_on_the_whole_graph(tmp_path):
    """Of ten epochs a call, beside the twin in plain JAX."""
    dataset, file = make_graph_dataset(), tmp_path / "state.npz"
    given = GCNConfig(**SMALL | {"epochs": 12})
    want = train(dataset, given, baseline=True)

    def halt(report):
        if report.epoch == 9:
            raise Stopped

    with pytest.raises(Stopped):
        train(dataset, given, baseline=True, on_epoch=halt, state=file)
    found = train(dataset, given, baseline=True, state=file, resume=True)
    for run, other in ((found.run, want.run), (found.baseline, want.baseline)):
        np.testing.assert_array_equal(run.train_loss, other.train_loss)
        np.testing.assert_array_equal(run.test_accuracy, other.test_accuracy)


def test_what_cannot_be_resumed(tmp_path):
    dataset, given = make_graph_dataset(), settings(SAGEConfig, batch_size=7, fanouts=(3, 2))
    file = tmp_path / "state.npz"

    def halt(_):
        raise Stopped

    with pytest.raises(Stopped):
        train(dataset, given, on_epoch=halt, state=file)
    whole = file.read_bytes()
    other = dataclasses.replace(given, epochs=4, fanouts=(2, 2))
    changes = r"epochs=3 \(now 4\), fanouts=\[3, 2\] \(now \[2, 2\]\)"
    with pytest.raises(ValueError, match=f"is of a training with other settings: {changes}$"):
        train(dataset, other, state=file, resume=True)
    renamed = dataclasses.replace(dataset, name="other", x=dataset.x + 1)
    with pytest.raises(ValueError, match=r"with other data: another name, features, scaling$"):
        train(renamed, given, state=file, resume=True)
    with pytest.raises(ValueError, match=r"has the state of an interrupted training: .*=True"):
        train(dataset, given, state=file)
    assert file.read_bytes() == whole
    for damaged in (b"PK", b"", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="holds no training to go on with"):
            train(dataset, given, state=file, resume=True)


def test_full_disk_leaves_the_state_before(tmp_path, monkeypatch, small_files):
    dataset, given = make_graph_dataset(), settings(SAGEConfig, batch_size=7, fanouts=(3, 2))
    want, file = train(dataset, given), tmp_path / "state.npz"
    monkeypatch.setattr(resume, "EVERY", 0.0)
    with contextlib.ExitStack() as stack:

        def fill_the_disk(_):
            stack.enter_context(small_files(2000))

        with pytest.raises(OSError, match=f"File too large: '{file}'"):
            train(dataset, given, on_epoch=fill_the_disk, state=file)
    assert [*tmp_path.iterdir()] == [file]
    found = train(dataset, given, state=file, resume=True)
    np.testing.assert_array_equal(found.run.train_loss, want.run.train_loss)


def test_resumed_command(tmp_path, capsys, monkeypatch):
    data = save(tmp_path / "easy.npz", make_graph_dataset())
    batches = ["--batch-size", "7", "--fanouts", "3,2", "--splits", "1", "--epochs", "3"]

    def words(name, *more):
        return ["train", "sage", "--data", data, *batches, "--output", str(tmp_path / name), *more]

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
    other, folder = words("other"), tmp_path / "other"
    line = f"jax-gnn: interrupted; to go on: jax-gnn {shlex.join(other)} --resume"
    assert run(*other) == (130, line)
    state = (folder / "state.npz").read_bytes()
    for arguments, message in (
        (other, f"{folder} has the state of an interrupted run: --resume goes on with it, --over"),
        ([*other, "--resume", "--learning-rate", "0.5"], "learning_rate=0.01 (now 0.5)"),
        (["predict", str(folder)], f"{folder} has no checkpoint yet, as its training was interr"),
    ):
        code, line = run(*arguments)
        assert code == 2 and message in line
    assert (folder / "state.npz").read_bytes() == state
    assert run(*other, "--resume")[0] == 0
    assert len(calls) == 4
    first, again = (
        json.loads((tmp_path / name / "results.json").read_text())["jax_gnn"]["test_accuracy"]
        for name in ("whole", "other")
    )
    assert first == again
    assert run("predict", str(folder), "--data", data)[0] == 0  # the folder of a run
    calls[:] = [1]
    assert run(*other, "--overwrite")[0] == 130
    assert (folder / "state.npz").exists()
    assert run(*other, "--overwrite")[0] == 0  # anew
    assert len(calls) == 6


# --- Room for sources ----------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [False, True])
def test_a_step_does_not_depend_on_the_room(fits, monkeypatch, rng):
    """Of a batch that needs more than others, all is drawn again."""
    dataset = easy(rng, 200)
    given = settings(SAGEConfig, batch_size=16, fanouts=(3, 2))
    want = train(dataset, given).run
    rooms = []

    def room(graph, batches, fanouts, key):
        seeds = batches.shape[1]
        most = jax.eval_shape(lambda: minibatch.sample_neighbors(graph, batches[0], fanouts, key))
        last = most.graphs[0].num_src
        rooms.append((seeds + 40, last * 3 // 4) if fits else (seeds + 2, seeds + 4))
        return rooms[-1]

    monkeypatch.setattr(minibatch, "_SMALL", 0)
    monkeypatch.setattr(minibatch, "block_capacity", room)
    found = train(dataset, given).run
    assert len(rooms) == 1
    np.testing.assert_allclose(found.train_loss, want.train_loss, rtol=1e-4)
