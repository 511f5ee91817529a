"""Baselines of a training: constants, and linear models of the features and of neighbours' means.

They say what the graph network adds. All are chosen and tested on the splits of the training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
from jax import Array

from flax_layers import edge_metrics
from flax_layers.training.config.nodes import TrainConfig
from flax_layers.training.data import labels, node_features, node_mask, split_of
from flax_layers.training.link_tasks import EdgeTask
from flax_layers.training.models import graph_of
from flax_layers.training.trained import accuracy, losses, regression_errors
from jax_gnn.datasets import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
    Split,
)

STRENGTHS = (1e-2, 1e-3, 1e-4)  # of the L2 penalty; validation chooses one
MAX_STEPS = 30  # of L-BFGS for each strength
MAX_ROWS = 2**15  # rows that linear models are fitted to
MAX_ENTRIES = 2**27  # entries of the features and means; wider features are projected
MAX_COLUMNS = 1024  # columns of projected features
ROUNDS = 2  # of means of neighbours

Predict = Callable[[np.ndarray], Any]  # results of rows of features


def baseline_scores(dataset: NodeDataset, config: TrainConfig) -> dict[str, np.ndarray]:
    """Return test scores of models without layers, on the splits of a training.

    The scores are accuracies (micro-F1 where nodes have several classes), or R2 of numbers. The
    linear models are logistic regressions, or ridge regressions, whose penalty is chosen by the
    validation score. They have the features of the settings, scaled as by "auto"; the second also
    has means of neighbours, and means of these.

    Args:
        dataset: The data of the training.
        config: Settings of the training, with a direction.

    Returns:
        A score for each split, ``(splits,)``, by name of the baseline. Data without features have
        no linear models.
    """
    seeds = range(config.seed, config.seed + (getattr(config, "folds", 0) or config.splits))
    splits = [split_of(dataset, config, seed) for seed in seeds]
    y = dataset.y.reshape(len(dataset.y), -1) if dataset.regresses else labels(dataset)

    def score(results: Any, ids: np.ndarray) -> float:
        if dataset.regresses:
            return regression_errors(dataset, results, ids)["r2"]
        mask = jnp.asarray(node_mask(dataset, ids))
        return float(accuracy(jnp.asarray(results), jnp.asarray(y), mask))

    def constant(split: Split) -> float:
        mean = y[split.train].mean(0)
        if y.ndim == 1:
            mean = np.bincount(y[split.train], minlength=dataset.num_classes)
        elif not dataset.regresses:  # flags of more than half of the nodes
            mean = mean - 0.5
        results = np.broadcast_to(np.float32(mean), (len(y), mean.size))
        return score(results, split.test)

    def linear(z: np.ndarray) -> Callable[[Split], float]:
        def test_score(split: Split) -> float:
            rows = split.train
            if rows.size > MAX_ROWS:
                rows = np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False)
            fit = ridge_models if dataset.regresses else logistic_models
            models = fit(z[rows], y[rows], 0 if y.ndim > 1 else dataset.num_classes)
            results = [predict(z) for predict in models]
            valid = [score(values, split.valid) for values in results]
            return score(results[int(np.argmax(np.nan_to_num(valid, nan=-np.inf)))], split.test)

        return test_score

    kind = "ridge regression" if dataset.regresses else "logistic regression"
    models: dict[str, Callable[[Split], float]] = {}
    models["mean" if dataset.regresses else "majority class"] = constant
    for name, z in _inputs(dataset, config).items():
        models[f"{kind} on {name}"] = linear(z)
    # Seeds may share a split.
    keys = [b"".join(ids.tobytes() for ids in vars(split).values()) for split in splits]
    different = dict(zip(keys, splits, strict=True))
    scores = {}
    for name, model in models.items():
        by_key = {key: model(split) for key, split in different.items()}
        scores[name] = np.array([by_key[key] for key in keys])
    return scores


def link_baselines(task: EdgeTask) -> dict[str, dict[str, float]]:
    """Return test metrics of logistic regressions that tell edges from pairs without one.

    Their features are products of the features of both ends, or of these and of means of
    neighbours. As in the training, the test sees validation edges in its graph.

    Returns:
        `edge_metrics` by name of the baseline.
    """
    split, rng = task.split, np.random.default_rng(task.config.seed)
    pairs = np.concatenate([split.train, split.train_negatives(rng)], axis=1)
    is_edge = np.arange(pairs.shape[1]) < split.train.shape[1]
    if is_edge.size > MAX_ROWS:
        rows = rng.choice(is_edge.size, MAX_ROWS, replace=False)
        pairs, is_edge = pairs[:, rows], is_edge[rows]
    train, test = (
        with_means(task.x, _mean_matrix(*graph.edges(), graph.num_nodes), is_edge.size)
        for graph in (split.train_graph, split.test_graph)
    )
    metrics = {}
    for name in train:
        products = [
            z[name][ends[0]] * z[name][ends[1]]
            for z, ends in (
                (train, pairs),
                (train, split.valid),
                (train, split.valid_negatives),
                (test, split.test),
                (test, split.test_negatives),
            )
        ]
        models = logistic_models(products[0], is_edge[:, None])
        scores = [[jnp.asarray(model(z)[:, 0]) for z in products[1:]] for model in models]
        best = max(scores, key=lambda parts: edge_metrics(*parts[:2])["auc"])
        metrics[f"logistic regression on products of {name}"] = edge_metrics(*best[2:])
    return metrics


# --- Features -------------------------------------------------------------------------------------


def _inputs(dataset: NodeDataset, config: TrainConfig) -> dict[str, np.ndarray]:
    """Return the rows of features of each example, by name; none without features."""
    changes: Any = {"feature_normalization": "auto", "scaling": None}
    x: Any = node_features(dataset, dataclasses.replace(config, **changes))
    if isinstance(x, dict):  # by type: columns of each, zero for nodes of the others
        sizes = getattr(dataset, "node_type_sizes", None) or {"node": dataset.num_nodes}
        blocks = [np.zeros((n, 0), np.float32) if x[t] is None else x[t] for t, n in sizes.items()]
        x = scipy.sparse.block_diag(blocks, format="csr").toarray()
    if x is None or not x.shape[1]:
        return {}
    if isinstance(dataset, HypergraphDataset):
        incidence = dataset.node_idx, dataset.hyperedge_idx
        shape = dataset.num_nodes, dataset.num_hyperedges
        from_nodes = _mean_matrix(*incidence, shape[1], shape[0])
        means = _mean_matrix(*incidence[::-1], *shape) @ from_nodes
    elif isinstance(dataset, GraphsDataset):
        means = _mean_matrix(dataset.src, dataset.dst, dataset.num_nodes)
    else:
        src, dst = _edges(dataset, config)
        means = _mean_matrix(src, dst, dataset.num_nodes)
    inputs = with_means(x, means, dataset.num_nodes)
    if isinstance(dataset, GraphsDataset):  # a graph has the mean of its nodes
        graph_ids = np.repeat(np.arange(dataset.num_graphs), dataset.sizes)
        ends = np.arange(dataset.num_nodes), graph_ids
        pool = _mean_matrix(*ends, dataset.num_graphs, dataset.num_nodes)
        inputs = {name: pool @ z for name, z in inputs.items()}
    return inputs


def _edges(dataset: NodeDataset, config: TrainConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return sources and destinations, of edges in the past if the settings ask for times."""
    times: Any
    if isinstance(dataset, RelationalDataset):
        src, dst, times = dataset.src, dataset.dst, dataset.edge_time
        if getattr(config, "direction", "") != "directed":
            src, dst = np.append(src, dst), np.append(dst, src)
            times = None if times is None else np.append(times, times)
    else:
        assert isinstance(dataset, GraphDataset)
        graph, times = graph_of(dataset, config), dataset.edge_time
        src, dst = np.asarray(graph.cols), np.asarray(graph.rows)
        times = None if times is None else times[np.asarray(graph.edge_ids)]
    if not getattr(config, "edge_time", False):
        return src, dst
    # Sources no later than their edge's destination keep means of means in its past, too.
    node_time = cast(np.ndarray, dataset.node_time)
    is_past = np.maximum(times, node_time[src]) <= node_time[dst]
    return src[is_past], dst[is_past]


def _mean_matrix(
    src: np.ndarray, dst: np.ndarray, num_dst: int, num_src: int | None = None
) -> scipy.sparse.csr_array:
    """Return the matrix of means over the sources of edges, ``(num_dst, num_src)``."""
    shape = num_dst, num_dst if num_src is None else num_src
    degrees = np.bincount(dst, minlength=num_dst)
    return scipy.sparse.csr_array((np.float32(1 / degrees[dst]), (dst, src)), shape=shape)


def with_means(
    x: np.ndarray, means: scipy.sparse.csr_array, num_rows: int
) -> dict[str, np.ndarray]:
    """Return features, and features beside means of neighbours, by name.

    Each part is divided by the root mean square of the lengths of its rows. Very large features are
    projected at random, for `num_rows` rows in the end.
    """
    if num_rows * x.shape[1] * (1 + ROUNDS) > MAX_ENTRIES and x.shape[1] > MAX_COLUMNS:
        shape = x.shape[1], MAX_COLUMNS
        x = x @ np.random.default_rng(0).normal(size=shape).astype(np.float32)
    parts = [x]
    for _ in range(ROUNDS):
        parts.append(means @ parts[-1])
    parts = [part / max(float(np.sqrt((part**2).sum(1).mean())), 1e-30) for part in parts]
    return {"features": parts[0], "features and means of neighbours": np.concatenate(parts, axis=1)}


# --- Linear models --------------------------------------------------------------------------------


def ridge_models(z: np.ndarray, y: np.ndarray, _: int = 0) -> list[Predict]:
    """Return least-squares models, one for each strength of the L2 penalty.

    They minimise the mean squared error plus strength times the squared weights; the intercept has
    no penalty.

    Args:
        z: Features, ``(rows, features)``.
        y: Numbers, ``(rows, targets)``.
    """
    z_mean, y_mean = (values.mean(0, dtype=np.float64) for values in (z, y))
    centred = z - z_mean
    gram, products = (centred.T @ values / len(z) for values in (centred, y - y_mean))

    def model(strength: float) -> Predict:
        weights = np.linalg.solve(gram + strength * np.eye(len(gram)), products)
        return lambda rows: (rows - z_mean) @ weights + y_mean

    return [model(strength) for strength in STRENGTHS]


@jax.jit
def _logistic_loss(weights: Array, z: Array, y: Array, strength: Array) -> tuple[Array, Array]:
    """Return the loss of a logistic regression with its gradient; the last row is the bias."""

    def loss(weights: Array) -> Array:
        entropy = losses(z @ weights[:-1] + weights[-1:], y).mean()
        return entropy + strength / 2 * jnp.sum(weights[:-1] ** 2)

    return jax.value_and_grad(loss)(weights)


def logistic_models(z: np.ndarray, y: np.ndarray, num_classes: int = 0) -> list[Predict]:
    """Return logistic regressions, one for each strength of the L2 penalty.

    They minimise the mean cross-entropy plus half the strength times the squared weights, by L-BFGS
    from the solution of the next stronger penalty; the bias has no penalty.

    Args:
        z: Features, ``(rows, features)``.
        y: Classes, ``(rows,)`` integers, or flags of several classes each, ``(rows, classes)``.
        num_classes: Number of the classes; not used of flags.
    """
    features, targets = jnp.asarray(z, jnp.float32), jnp.asarray(y)
    weights = np.zeros((z.shape[1] + 1, num_classes if y.ndim == 1 else y.shape[1]))
    models = []
    for strength in STRENGTHS:
        weights = _minimise(weights, features, targets, strength)
        models.append(_linear(weights.astype(np.float32)))
    return models


def _minimise(start: np.ndarray, z: Array, y: Array, strength: float) -> np.ndarray:
    """Return the weights of the least logistic loss."""

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = jnp.asarray(flat.reshape(start.shape), jnp.float32)
        value, gradient = _logistic_loss(weights, z, y, jnp.float32(strength))
        return float(value), np.asarray(gradient, np.float64).ravel()

    options = {"maxiter": MAX_STEPS, "ftol": 1e-6}
    flat = scipy.optimize.minimize(
        loss, start.ravel(), jac=True, method="L-BFGS-B", options=options
    ).x
    return flat.reshape(start.shape)


def _linear(weights: np.ndarray) -> Predict:
    """Return the linear map of weights whose last row is the bias."""
    return lambda rows: rows @ weights[:-1] + weights[-1]


# --- Comparison -----------------------------------------------------------------------------------


def best_baseline(scores: Mapping[str, float]) -> tuple[str, float]:
    """Return name and score of the best baseline, the first of equal ones."""
    return max(scores.items(), key=lambda item: item[1])


def verdict(model: str, score: float, scores: Mapping[str, float], unit: str) -> str:
    """Return a sentence that says whether a model or a baseline is best, and by how much."""
    name, best = best_baseline(scores)
    margin = score - best
    form = ".3f" if unit == "R2" else ".2f"
    if np.isnan(margin):
        return f"No {unit} tells which is best, as the labels to test on are equal."
    if margin > 0:
        return f"{model} is {margin:{form}} {unit} above the best baseline, {name}."
    place = f"{-margin:{form}} {unit} above" if margin else "as good as"
    return (
        f"{name.capitalize()} is {place} {model}: "
        "these data do not need the network, or it has not learned yet."
    )
