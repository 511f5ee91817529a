"""Graph autoencoders, and metrics of their scores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from op_spec import strict

from flax_layers import GAE, GCN, VGAE, edge_metrics
from jax_gnn import Graph
from jax_gnn.datasets import negative_edges, split_edges

pytestmark = pytest.mark.usefixtures("exact_products")

NODES, FEATURES = 30, 5


@pytest.fixture
def graph(rng: np.random.Generator) -> Graph:
    return Graph.from_edges(*rng.integers(0, NODES, (2, 80)), num_nodes=NODES).symmetrized()


def encoder(out_features: int) -> GCN:
    return GCN(FEATURES, 8, out_features, num_layers=2, dropout_rate=0.0, rngs=nnx.Rngs(0))


def entropy(z: np.ndarray, edges: np.ndarray, negatives: np.ndarray) -> float:
    right, wrong = ((z[src] * z[dst]).sum(1) for src, dst in (edges, negatives))
    return float(np.log1p(np.exp(-right)).mean() + np.log1p(np.exp(wrong)).mean())


def test_gae(graph, rng):
    split = split_edges(graph, seed=0)
    x = rng.normal(size=(NODES, FEATURES)).astype("f")
    negatives = negative_edges(graph, split.train.shape[1], seed=0)
    model = GAE(encoder(4))
    arguments = split.train_graph, x, split.train, negatives
    with strict():
        z = model(*arguments[:2], deterministic=True)
        np.testing.assert_allclose(z, model.encoder(*arguments[:2], deterministic=True))
        z = np.asarray(z, np.float64)
        loss = model.loss(*arguments, deterministic=True)
        np.testing.assert_allclose(loss, entropy(z, split.train, negatives), rtol=1e-4)
        scores = model.scores(z.astype("f"), split.valid)
    np.testing.assert_allclose(scores, (z[split.valid[0]] * z[split.valid[1]]).sum(1), 1e-4, 1e-5)


def test_vgae(graph, rng):
    x = rng.normal(size=(NODES, FEATURES)).astype("f")
    edges, negatives = rng.integers(0, NODES, (2, 2, 20))
    model = VGAE(encoder(8), rngs=nnx.Rngs(1))
    y = np.asarray(model.encoder(graph, x, deterministic=True), np.float64)
    mean, log_std = y[:, :4], y[:, 4:]
    np.testing.assert_allclose(model.encode(graph, x, deterministic=True), mean, 1e-4, 1e-5)
    # The formula of the paper, for means and logarithms of deviations.
    divergence = -0.5 * (1 + 2 * log_std - mean**2 - np.exp(log_std) ** 2).sum(1).mean() / NODES
    loss = model.loss(graph, x, edges, negatives, deterministic=True)
    np.testing.assert_allclose(loss, entropy(mean, edges, negatives) + divergence, rtol=1e-4)
    key = jax.random.key(3)
    drawn, repeated, redrawn = (
        np.asarray(model.encode(graph, x, deterministic=False, rngs=k))
        for k in (key, key, jax.random.key(4))
    )
    np.testing.assert_array_equal(drawn, repeated)
    assert not np.array_equal(drawn, redrawn)
    # The noise is standard normal.
    noise = (drawn - mean) / np.exp(log_std)
    assert abs(noise.mean()) < 0.5 and 0.7 < noise.std() < 1.3  # of 120 numbers
    model.eval()
    np.testing.assert_array_equal(model.encode(graph, x), model.encode(graph, x))
    model.train()
    assert not np.array_equal(model.encode(graph, x), model.encode(graph, x))
    with pytest.raises(ValueError, match=r"means and deviations, \(num_nodes, an even number\)"):
        VGAE(encoder(3), rngs=nnx.Rngs(1)).encode(graph, x)


def test_bad_arguments(graph):
    with pytest.raises(TypeError, match="encoder must be callable, got 'gcn'"):
        GAE("gcn")
    with pytest.raises(TypeError, match="encoder must be a model, got the class GCN; make one"):
        GAE(GCN)
    model = GAE(encoder(4))
    message = r"z must be \(num_nodes, features\) and edges \(2, num_edges\), got shapes \(3, 4\)"
    for edges in (jnp.zeros((3, 2), int), jnp.zeros(2, int)):
        with pytest.raises(ValueError, match=message):
            model.scores(jnp.ones((3, 4)), edges)


def test_edge_metrics(rng):
    metrics = pytest.importorskip("sklearn.metrics")
    for size in (1, 7, 200):
        right, wrong = rng.integers(0, 20, size) + 3.0, rng.integers(0, 20, 150).astype(float)
        result = edge_metrics(right, wrong)
        y, scores = np.repeat([1, 0], [size, 150]), np.concatenate([right, wrong])
        assert result["auc"] == pytest.approx(metrics.roc_auc_score(y, scores))
        assert result["ap"] == pytest.approx(metrics.average_precision_score(y, scores))
        better, equal = wrong > right[:, None], wrong == right[:, None]
        # The mean rank among equal scores.
        ranks = 1 + better.sum(1) + equal.sum(1) / 2
        assert result["mrr"] == pytest.approx((1 / ranks).mean())
        assert result["hits@3"] == pytest.approx((ranks <= 3).mean())


def test_edge_metrics_of_nan_and_bad_scores():
    assert edge_metrics([np.nan], [0.0, 1.0])["auc"] == 0
    assert edge_metrics([5.0, 4.0], [np.nan, 1.0])["auc"] == 0.5
    assert np.isnan(edge_metrics([], [1.0])["ap"])
    with pytest.raises(
        ValueError, match=r"negative_scores must be one-dimensional, got .*\(1, 1\)"
    ):
        edge_metrics([1.0], [[1.0]])
    with pytest.raises(TypeError, match="positive_scores must be an array of numbers"):
        edge_metrics(["one"], [1.0])
