"""Early stopping, learning-rate schedules, class weights and options of batches."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from test_training import make_graph_dataset, make_typed_dataset
from test_training_minibatch import assert_same_curves, interrupt

from flax_layers import GAT, GCN, GIN, GatedGCNConv, gcn_norm
from flax_layers.training import (
    RECIPES,
    GCNConfig,
    GCNLinkConfig,
    GINGraphConfig,
    RGATConfig,
    SAGEConfig,
    plot,
    train,
    train_links,
)
from flax_layers.training.data import class_weights
from flax_layers.training.feeds import SampledNodes
from flax_layers.training.link_models import LINK_RECIPES
from flax_layers.training.models import command_name
from flax_layers.training.predictor import Predictor, apply_model
from jax_gnn import Graph, cli
from jax_gnn.extend import take
from jax_gnn.sampling import sample_neighbors

pytestmark = pytest.mark.usefixtures("strict_promotion")

SMALL = {"hidden_features": 8, "dropout_rate": 0.0, "splits": 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0.1] * 12),
        ({"schedule": "step", "halve_every": 2}, [0.1] * 4 + [0.05] * 4 + [0.025] * 4),
        ({"schedule": "step", "halve_every": 0}, [0.1] * 12),
        ({"schedule": "cosine"}, 0.05 * (1 + np.cos(np.pi * np.arange(12) / 12))),
        ({"warmup": 2}, [0.02, 0.04, 0.06, 0.08] + [0.1] * 8),
        (
            {"schedule": "cosine", "warmup": 1},
            [0.1 / 3, 0.2 / 3, *(0.05 * (1 + np.cos(np.pi * np.arange(10) / 10)))],
        ),
    ],
)
def test_learning_rates(changes, expected):
    # Two steps in each of six epochs.
    rates = GCNConfig(learning_rate=0.1, epochs=6, **changes).rates(2)
    rate = rates if callable(rates) else optax.constant_schedule(rates)
    with jax.numpy_dtype_promotion("standard"):
        values = [float(rate(jnp.asarray(i))) for i in range(12)]
    np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_early_stopping_ends_splits_and_resumes_to_equal_bits(tmp_path):
    dataset = make_graph_dataset()
    config = GCNConfig(
        **SMALL | {"splits": 2}, epochs=80, early_stopping=12, class_weight="balanced"
    )
    config = dataclasses.replace(config, schedule="cosine", warmup=3)
    reports, file = [], tmp_path / "state.npz"
    expected = train(dataset, config, on_epoch=reports.append)
    valid = expected.run.valid_accuracy
    lengths = np.count_nonzero(~np.isnan(valid), axis=1)
    whole = train(dataset, dataclasses.replace(config, early_stopping=0)).run
    for row, length, every in zip(valid, lengths, whole.valid_accuracy, strict=True):
        # Calls have ten epochs; the split ends with the first call that the patience is over at.
        np.testing.assert_array_equal(row[:length], every[:length])
        waits = [n for n in range(10, 81, 10) if n - 1 - every[:n].argmax() >= 12]
        assert length == min(waits, default=80) and np.isnan(row[length:]).all()
    assert lengths.min() < 80 and [r.epoch + 1 for r in reports if r.is_last] == [*lengths]
    for report in reports:
        if report.is_last:
            stop = config.epochs * report.split + report.epoch
            interrupt(dataset, config, stop, state=file, resume=True)
    resumed = train(dataset, config, state=file, resume=True)
    assert_same_curves(resumed.run, expected.run)
    logits = [result.trained.predict(dataset) for result in (resumed, expected)]
    np.testing.assert_array_equal(*logits)


def test_early_stopping_of_links():
    dataset = make_graph_dataset()
    config = GCNLinkConfig(epochs=60, evaluate_every=2, early_stopping=6, hidden_features=8)
    result = train_links(dataset, config)
    auc = [metrics["auc"] for metrics in result.valid]
    assert len(result.losses) == result.epochs[-1] == result.epochs[int(np.argmax(auc))] + 6 < 60
    with pytest.raises(ValueError, match="early_stopping must be 0 with folds"):
        GINGraphConfig(folds=3, early_stopping=5)


def test_class_weights():
    dataset = make_graph_dataset()
    config = GCNConfig(class_weight="balanced", **SMALL)
    ids = np.flatnonzero(dataset.has_label())
    weights, counts = class_weights(dataset, config, ids), np.bincount(dataset.y[ids])
    np.testing.assert_allclose(weights * counts, len(ids) / len(counts), rtol=1e-6)
    # The first loss is the mean of each class's mean cross-entropy.
    result = train(dataset, dataclasses.replace(config, epochs=1, learning_rate=1e-30))
    logits = np.asarray(result.trained.predict(dataset), np.float64)
    entropies = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), dataset.y]
    train_ids = result.trained.split.train
    by_class = [entropies[train_ids[dataset.y[train_ids] == c]] for c in range(len(counts))]
    means = [values.mean() for values in by_class if values.size]
    np.testing.assert_allclose(result.run.train_loss[0, 0], np.mean(means), rtol=1e-5)
    numbers = dataclasses.replace(dataset, y=dataset.y.astype(np.float32))
    with pytest.raises(ValueError, match="no single class for each example"):
        train(numbers, config)


@pytest.mark.parametrize(
    ("config", "make"), [(SAGEConfig, make_graph_dataset), (RGATConfig, make_typed_dataset)]
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_all_neighbours(config, make, disjoint):
    dataset = make()
    rates = (
        {"input_dropout_rate": 0.0, "attention_dropout_rate": 0.0} if config is RGATConfig else {}
    )
    kind = config(batch_size=7, fanouts=(-1, -1), disjoint=disjoint, epochs=2, **SMALL, **rates)
    losses = train(dataset, kind).run.train_loss
    many = dataclasses.replace(kind, fanouts=(99, 99), disjoint=False)
    np.testing.assert_allclose(losses, train(dataset, many).run.train_loss, rtol=1e-4)
    if config is SAGEConfig:
        split = train(dataset, kind).trained.split
        feed = SampledNodes(dataset, kind, [split])
        data = feed.start(kind, split, 0)
        batch = feed.batch(data, jnp.asarray(split.train[:7]), jax.random.key(0))
        assert (batch.graph.seed_ids is not None) == disjoint
    with pytest.raises(ValueError, match="disjoint needs a batch_size"):
        config(disjoint=True)


def test_legends_are_no_wider_than_their_axes(tmp_path, monkeypatch):
    result = train(make_graph_dataset(), GCNConfig(epochs=11, **SMALL | {"splits": 2}))
    baselines = {
        name: np.array([0.999999]) for name in ("majority class", "a on b", "c on neighbours")
    }
    figures = []
    monkeypatch.setattr(plot, "_save", lambda figure, path: figures.append(figure))
    worst = np.full((2, 11), -np.inf)  # R2 of a training that diverged
    run = dataclasses.replace(result.run, valid_accuracy=worst, test_accuracy=worst)
    diverged = dataclasses.replace(result, run=run, errors={"r2": worst[:, 0]})
    with np.errstate(invalid="ignore"):
        plot.plot_learning_curves(diverged, tmp_path / "p.png", title="t")
    assert figures.pop().axes[1].get_ylim()[0] == pytest.approx(-1.02)
    plot.plot_learning_curves(result, tmp_path / "p.png", title="a$b_$", baselines=baselines)
    (figure,) = figures
    figure.savefig(tmp_path / "p.png")  # which lays it out
    labels = {line.get_label() for line in figure.axes[1].lines}
    assert {"training", "validation"} < labels and any(x.startswith("majority: ") for x in labels)
    for axes in figure.axes:
        box, legend = axes.get_window_extent(), axes.get_legend().get_window_extent()
        assert box.x0 <= legend.x0 and legend.x1 <= box.x1 and legend.y0 >= box.y1
        assert not axes.yaxis.get_offset_text().get_text()


def test_models_have_one_name(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    for name in (*RECIPES, *LINK_RECIPES):
        model, _, task = command_name(name).partition(" --task ")
        assert f"\n    {model} " in text or f"\n    {model}\n" in text
        if task:
            assert name not in text
        # The recipe's name is understood, too, and answered by the other.
        for words in ([name], command_name(name).split()):
            with pytest.raises(SystemExit):
                cli.main(["train", *words, "--help"])
            out = capsys.readouterr().out
            assert out.startswith(f"usage: jax-gnn train {command_name(name)} [")
            assert "--resume" in out and out.endswith("partition wrote (default: auto)\n")


@pytest.mark.parametrize("model", [GCN, GIN, GAT])
def test_predictors_pad_graphs_of_other_sizes(model, rng):
    options = {"heads": 1} if model is GAT else {}
    predict = Predictor(model(5, 8, 3, num_layers=2, rngs=nnx.Rngs(0), **options))
    predict.model.eval()
    weighted, before = model is not GAT, apply_model._cache_size()
    for size in range(70, 110):
        src, dst = rng.integers(size, size=(2, 300 + size))
        dst[:150] = 3  # a giant row, and rows without edges
        graph = Graph.from_edges(src, dst % (size - 5), num_nodes=size)
        x = rng.normal(size=(size, 5)).astype(np.float32)
        weight = rng.random(300 + size).astype(np.float32)
        named = {"edge_weight": weight} if weighted else {}
        y = predict(graph, x, **named)
        assert y.shape == (size, 3)
        if size % 13 == 0:
            exact = jax.jit(predict.model)(graph, x, **named)
            np.testing.assert_allclose(y, exact, rtol=2e-5, atol=2e-6)
    # The first size has a program of its own, others have one: nodes to 128, edges to 512.
    assert apply_model._cache_size() - before == 2
    if model is GCN:
        scaled = predict(graph, x, node_scale=gcn_norm(graph, weight), **named)
        np.testing.assert_allclose(scaled, y, rtol=2e-5, atol=2e-6)
    gradient = jax.grad(lambda x: predict(graph, x, **named).sum())(x)  # traced: as it is
    exact = jax.grad(lambda x: predict(graph, x, pad=False, **named).sum())(x)
    np.testing.assert_array_equal(gradient, exact)


def test_padding_of_own_models(rng):
    class Net(nnx.Module):
        def __call__(self, graph, x):
            return x - x.mean(axis=0, keepdims=True)

    predict, x = Predictor(Net()), rng.normal(size=(6, 2)).astype(np.float32)
    for size in (3, 5, 6):  # never padded by default
        graph = Graph.from_edges([0, 1], [1, 2], num_nodes=size)
        expected = x[:size] - x[:size].mean(axis=0)
        np.testing.assert_allclose(predict(graph, x[:size]), expected, atol=1e-6)
    assert predict(graph, x, pad=True).shape == (6, 2)
    # Results of edges have rows of their own, also where nodes are padded to as many.
    predict = Predictor(GatedGCNConv(2, 4, edge_in_features=2, rngs=nnx.Rngs(0)))
    edges = rng.normal(size=(8, 2)).astype(np.float32)
    for size in (3, 4, 6):
        graph = Graph.from_edges(*rng.integers(size, size=(2, 8)), num_nodes=size)
        calls = [predict(graph, x[:size], edge_features=edges, pad=pad) for pad in (None, False)]
        for results in zip(*calls, strict=True):
            np.testing.assert_allclose(*results, rtol=2e-5, atol=2e-6)
    with pytest.raises(TypeError, match=r"pad must be of a jax_gnn\.Graph and .* got scale"):
        predict(graph, x, pad=True, scale=x)
    with pytest.raises(TypeError, match="got dict"):
        predict({}, x, pad=True)


def test_gcn_warns_of_blocks_without_scales(rng):
    graph = Graph.from_edges(*rng.integers(9, size=(2, 40)), num_nodes=9)
    model, x = GCN(5, 8, 3, rngs=nnx.Rngs(0)), rng.normal(size=(9, 5)).astype(np.float32)
    model.eval()
    blocks = sample_neighbors(graph, jnp.arange(9), (99, 99, 99), jax.random.key(0))
    rows = blocks.node_values(x)
    with pytest.warns(UserWarning, match=r"pass node_scale=take\(gcn_norm\(graph\), blocks.node_"):
        model(blocks, rows)
    y = model(blocks, rows, node_scale=take(gcn_norm(graph), blocks.node_ids))
    np.testing.assert_allclose(y, model(graph, x), rtol=1e-5, atol=1e-6)
