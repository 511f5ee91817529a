"""Direction of edges in tables and trainings, and baselines without layers."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
import scipy.optimize
from test_training import make_dataset, make_graph_dataset, make_typed_dataset
from test_training_graphs import rings_and_trees

from flax_layers.training import (
    GCNConfig,
    GCNLinkConfig,
    GINGraphConfig,
    HGNNConfig,
    RGCNConfig,
    load_checkpoint,
    save_checkpoint,
    train,
)
from flax_layers.training.baselines import STRENGTHS, baseline_scores, logistic_models, ridge_models
from flax_layers.training.data import split_of
from flax_layers.training.link_tasks import EdgeTask
from flax_layers.training.trained import model_inputs
from jax_gnn import cli
from jax_gnn._core.direction import reversed_share
from jax_gnn.convert import from_table, to_table
from jax_gnn.datasets import GraphDataset

pytestmark = pytest.mark.usefixtures("strict_promotion")

CHAIN = {"src": ["a", "b", "b"], "dst": ["b", "c", "d"], "weight": [1.0, 2.0, 3.0]}
TYPES = {("a", "r", "b"): {"src": [0], "dst": [1]}}


def one_way(share=0.0, size=60, **changes):
    """Return edges within two classes, of which a share has its reverse; one column says little."""
    rng = np.random.default_rng(0)
    y = np.arange(size) % 2
    src, dst = np.triu_indices(size, 1)
    kept = np.flatnonzero((y[src] == y[dst]) & (rng.random(src.size) < 0.3))
    src, dst = np.where(
        rng.random((1, kept.size)) < 0.5, [src[kept], dst[kept]], [dst[kept], src[kept]]
    )
    count = round(share * kept.size / (2 - share))  # so many edges get their reverse
    fields = {
        "name": "halves",
        "num_nodes": size,
        "src": np.append(src, dst[:count]),
        "dst": np.append(dst, src[:count]),
        "x": rng.normal(size=(size, 2)) + 0.3 * y[:, None],
        "y": y,
    }
    return GraphDataset(**fields | changes)


def test_reversed_share():
    assert reversed_share(np.array([0, 0, 1, 2, 2]), np.array([1, 1, 0, 2, 0]), 3) == 2 / 3
    assert reversed_share(np.zeros(0, int), np.zeros(0, int), 0) == 1
    data = one_way(0.4)
    assert reversed_share(data.src, data.dst, 60) == pytest.approx(0.4, abs=0.01)


def test_direction_of_a_table():
    with pytest.warns(UserWarning, match="edges: 0.0% have their reverse: kept as they are"):
        assert from_table(CHAIN).graph.num_edges == 3
    assert from_table(CHAIN, directed=True).report == ()
    data = from_table(CHAIN, directed=False)
    assert data.graph.num_edges == 6 and data.report == ()
    edges, _ = to_table(data)
    rows = {*zip(*(edges[key].tolist() for key in CHAIN), strict=True)}
    forth = {*zip(*CHAIN.values(), strict=True)}
    assert rows == forth | {(dst, src, weight) for src, dst, weight in forth}
    relations = from_table({**CHAIN, "kind": ["k", "l", "k"]}, relation="kind", directed=False)
    assert relations.graph.relation_names == ("k", "l", "rev_k", "rev_l")
    assert relations.graph.num_edges == 6
    types = from_table(TYPES, directed=False).graph
    assert types.edge_types == (("a", "r", "b"), ("b", "rev_r", "a"))
    with pytest.raises(ValueError, match="directed must be None for a hypergraph, got True"):
        from_table(CHAIN, hypergraph=True, directed=True)


@pytest.mark.parametrize(("share", "direction"), [(0.0, "undirected"), (0.3, "directed")])
def test_training_looks_at_the_edges(share, direction, tmp_path):
    data = one_way(share, edge_weight=None)
    config = GCNConfig(splits=1, epochs=3, hidden_features=4)
    if direction == "undirected":
        with pytest.warns(UserWarning, match="0.0% of the edges of halves have their reverse"):
            result = train(data, config)
    else:
        result = train(data, config)
    count = data.num_edges * (1 + (direction == "undirected"))
    assert result.sizes["num_edges"] == count
    # The checkpoint keeps the direction, whatever the data to predict on.
    save_checkpoint(tmp_path / "model", result.trained)
    loaded = load_checkpoint(tmp_path / "model")
    assert loaded.config.direction == direction
    np.testing.assert_array_equal(loaded.predict(data), result.trained.predict(data))
    graph = model_inputs(one_way(0.9), loaded.config)[0]
    is_symmetric = reversed_share(np.asarray(graph.cols), np.asarray(graph.rows), 60) == 1
    assert is_symmetric == (direction == "undirected")


def test_relations_without_inverses():
    data = make_typed_dataset()
    counts = [
        train(data, RGCNConfig(splits=1, epochs=1, direction=direction)).sizes["num_relations"]
        for direction in ("auto", "directed")
    ]
    assert counts == [2 * data.num_relations + 1, data.num_relations + 1]


@pytest.mark.parametrize(("share", "direction"), [(0, "auto"), (0.5, "auto"), (0.5, "undirected")])
def test_no_reverse_of_a_held_out_edge_is_trained_on(share, direction):
    task = EdgeTask(one_way(share), GCNLinkConfig(direction=direction, valid_share=0.2))
    pairs = [
        {frozenset(pair) for pair in part.T.tolist()}
        for part in (task.split.train, task.split.valid, task.split.test)
    ]
    seen = [
        {frozenset(pair) for pair in zip(*(ids.tolist() for ids in graph.edges()), strict=True)}
        for graph in (task.split.train_graph, task.split.test_graph)
    ]
    assert seen[0] == pairs[0] and not pairs[0] & (pairs[1] | pairs[2])
    assert seen[1] == pairs[0] | pairs[1] and not pairs[1] & pairs[2]
    assert task.split.undirected == (direction == "undirected" or share == 0)


def test_linear_models_are_closed_forms(rng):
    z, weights = rng.normal(size=(80, 3)), rng.normal(size=(3, 2))
    y = z @ weights + 2 + 0.1 * rng.normal(size=(80, 2))
    for strength, model in zip(STRENGTHS, ridge_models(z, y), strict=True):
        # The penalty is further rows, and the intercept a column.
        rows = np.concatenate([np.eye(3), np.zeros((3, 1))], 1) * np.sqrt(80 * strength)
        design = np.concatenate([np.concatenate([z, np.ones((80, 1))], 1), rows])
        solution = np.linalg.lstsq(design, np.concatenate([y, np.zeros((3, 2))]))[0]
        np.testing.assert_allclose(model(z), design[:80] @ solution, rtol=1e-8)
    classes = (z @ weights[:, 0] + rng.normal(size=80) > 0).astype(np.int32)

    def loss(w, strength):
        logits = z @ w[:3] + w[3]
        entropy = np.logaddexp(0, logits) - classes * logits
        return entropy.mean() + strength / 4 * np.sum(w[:3] ** 2)  # halves of two opposite columns

    for strength, model in zip(STRENGTHS, logistic_models(z, classes, 2), strict=True):
        solution = scipy.optimize.minimize(loss, np.zeros(4), args=(strength,), tol=1e-9).x
        logits = model(np.float32(z))
        expected = z @ solution[:3] + solution[3]
        np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected, atol=0.05)


def test_scores_of_baselines():
    data = one_way()
    config = GCNConfig(splits=2, direction="undirected")
    scores = baseline_scores(data, config)
    majority, features, means = (values.mean() for values in scores.values())
    assert majority < 0.7 and means > 0.9 > features
    split = split_of(data, config, 1)
    share = np.bincount(data.y[split.train]).argmax() == data.y[split.test]
    assert scores["majority class"][1] == pytest.approx(share.mean())
    # Numbers that are a column of the features.
    numbers = dataclasses.replace(data, y=3 * data.x[:, 0] + 1)
    scores = baseline_scores(numbers, config)
    assert next(iter(scores)) == "mean" and scores["mean"].max() <= 0
    assert scores["ridge regression on features"].min() > 0.9


@pytest.mark.parametrize(
    ("make", "config", "count"),
    [
        (make_dataset, HGNNConfig(splits=2), 3),
        (lambda: rings_and_trees(np.random.default_rng(0)), GINGraphConfig(splits=2), 3),
        (make_graph_dataset, GCNConfig(splits=2), 3),
        (make_typed_dataset, RGCNConfig(splits=2, features="native"), 3),
        (make_typed_dataset, RGCNConfig(splits=2), 1),
    ],
)
def test_baselines_of_all_kinds_of_data(make, config, count):
    scores = baseline_scores(make(), config)
    assert len(scores) == count and all(values.shape == (2,) for values in scores.values())
    assert all(np.isfinite(values).all() for values in scores.values())


@pytest.mark.parametrize("task", ["node", "link"])
def test_command(task, tmp_path, capsys):
    data = one_way()
    nodes = [f"{i},{u},{v},c{k}" for i, ((u, v), k) in enumerate(zip(data.x, data.y, strict=True))]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,u,v,label", *nodes]))
    edges = [f"{u},{v}" for u, v in zip(data.src, data.dst, strict=True)]
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst", *edges]))
    words = ["train", "gcn", "--task", task, "--data", str(tmp_path), "--epochs", "3"]
    words += ["--splits", "2", "--no-baseline"] * (task == "node")
    for option, note in (([], True), (["--directed"], False), (["--undirected"], False)):
        folder = tmp_path / "-".join(["out", *option])
        assert cli.main([*words, *option, "--output", str(folder)]) == 0
        out, err = capsys.readouterr()
        assert ("0.0% of the edges of" in err) == note
        assert re.search("above the best baseline|above gcn|as good as gcn", out)
        results = json.loads((folder / "results.json").read_text())
        direction = "directed" if option == ["--directed"] else "undirected"
        assert results["config"]["direction"] == direction
        assert len(results["baselines"]) == (3 if task == "node" else 2)
        assert cli.main(["predict", str(folder), "--data", str(tmp_path)]) == 0
        assert "(as in training)" in capsys.readouterr().out
    assert cli.main([*words, "--output", str(folder), "--overwrite"]) == 0
