import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_gnn
from flax_layers import HGNN
from jax_gnn import Hypergraph
from jax_gnn.datasets import HypergraphDataset
from jax_gnn.training import (
    EpochReport,
    TrainConfig,
    TrainResult,
    load_checkpoint,
    node_features,
    plot_learning_curves,
    save_checkpoint,
    train_hgnn,
)
from jax_gnn.training.hgnn import MIN_HYPEREDGE_WEIGHT
from jax_gnn.training.plain import CooHypergraph, plain_hgnn


def make_dataset(**changes: object) -> HypergraphDataset:
    """Two classes of 20 nodes each, hyperedges inside the classes, one node in no hyperedge."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 20).astype(np.int32)
    hyperedge_idx = np.repeat(np.arange(12), 4).astype(np.int32)
    node_idx = np.concatenate(
        [20 * (i % 2) + rng.choice(19, 4, replace=False) for i in range(12)]
    ).astype(np.int32)
    x = (rng.normal(size=(40, 6)) + y[:, None]).astype(np.float32)
    dataset = HypergraphDataset(
        name="tiny",
        node_idx=node_idx,
        hyperedge_idx=hyperedge_idx,
        num_nodes=40,
        num_hyperedges=12,
        x=x,
        y=y,
    )
    return dataclasses.replace(dataset, **changes)


def small(**changes: object) -> TrainConfig:
    return TrainConfig(**{"splits": 2, "epochs": 10, "hidden_features": 8} | changes)


@pytest.fixture(scope="module")
def result() -> TrainResult:
    return train_hgnn(make_dataset(), small(epochs=23), baseline=True)


def test_training_learns(result):
    run = result.run
    assert run.train_loss.shape == run.train_accuracy.shape == (2, 23)
    assert (run.train_loss[:, -5:].mean(axis=1) < 0.7 * run.train_loss[:, 0]).all()
    assert (run.train_accuracy[:, -1] > 0.8).all()
    assert run.accuracy_mean == pytest.approx(run.best_test_accuracy.mean())
    assert run.accuracy_std == pytest.approx(run.best_test_accuracy.std(ddof=1))


def test_choice_of_epoch_sees_only_validation(result):
    run = result.run
    for split in range(2):
        best = max(range(23), key=lambda epoch: run.valid_accuracy[split, epoch])
        assert run.best_epoch[split] == best
        assert run.best_test_accuracy[split] == run.test_accuracy[split, best]


def test_model_is_that_of_the_best_epoch_and_split(result):
    # Over all labelled nodes the three parts weigh 20, 10 and 10.
    run, split = result.run, result.run.best_valid_accuracy.argmax()
    epoch = run.best_epoch[split]
    accuracies = (run.train_accuracy, run.valid_accuracy, run.test_accuracy)
    expected = np.dot([20, 10, 10], [a[split, epoch] for a in accuracies])
    predicted = result.model(result.hypergraph, result.x).argmax(axis=1)
    assert (predicted == make_dataset().y).sum() == round(float(expected))


def test_times_and_custom_calls(result):
    # 23 epochs in calls of 10, 10 and 3, for two splits.
    for run in (result.run, result.baseline):
        assert run.epoch_seconds.shape == (6,)
        assert (run.epoch_seconds > 0).all()
        assert run.compile_seconds > 0
    assert result.speedup == pytest.approx(
        result.baseline.median_epoch_seconds / result.run.median_epoch_seconds
    )
    assert result.baseline.custom_calls == ()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="names the CPU's custom call")
def test_library_run_goes_through_the_custom_call(result):
    assert "jax_gnn_hypergraph_aggregate" in result.run.custom_calls
    plain = train_hgnn(make_dataset(), small(splits=1, epochs=1, implementation="xla"))
    assert plain.run.custom_calls == ()
    assert plain.baseline is plain.speedup is None
    with jax_gnn.implementation("xla"):
        inherited = train_hgnn(make_dataset(), small(splits=1, epochs=1))
    assert inherited.run.custom_calls == ()


def test_plain_jax_trains_the_same(result):
    for name in ("train_loss", "train_accuracy", "valid_accuracy", "test_accuracy"):
        np.testing.assert_allclose(
            getattr(result.run, name), getattr(result.baseline, name), atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize("normalization", ["symmetric", "row"])
@pytest.mark.parametrize("learnable", [False, True])
def test_plain_model_equals_the_layers(normalization, learnable):
    hypergraph = make_dataset().hypergraph(self_loops="none")
    model = HGNN(
        6,
        8,
        2,
        normalization=normalization,
        num_hyperedges=12 if learnable else None,
        bias_init=nnx.initializers.normal(1.0),
        rngs=nnx.Rngs(0),
    )
    if learnable:
        model.conv1.hyperedge_weight[...] = jnp.linspace(0.2, 3, 12)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    x = jnp.asarray(make_dataset().x)
    graph = CooHypergraph.from_hypergraph(hypergraph)
    for key in (None, jax.random.key(3)):
        expected = model(hypergraph, x, deterministic=key is None, rngs=key)
        y = plain_hgnn(params, graph, x, key, dropout_rate=0.5, normalization=normalization)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_learnable_hyperedge_weights_learn_and_stay_positive():
    config = small(splits=1, epochs=30, learnable_hyperedge_weights=True, learning_rate=0.2)
    result = train_hgnn(make_dataset(), config, baseline=True)
    for conv in (result.model.conv1, result.model.conv2):
        weight = np.asarray(conv.hyperedge_weight[...])
        assert weight.shape == (result.hypergraph.num_hyperedges,)
        assert weight.min() >= MIN_HYPEREDGE_WEIGHT
        assert np.ptp(weight) > 0.01
    assert np.isfinite(result.run.train_loss).all()
    np.testing.assert_allclose(
        result.run.train_loss[:, :5], result.baseline.train_loss[:, :5], atol=1e-3
    )


def test_same_seed_same_numbers_other_seed_other_numbers(result):
    again = train_hgnn(make_dataset(), small(epochs=23))
    np.testing.assert_array_equal(again.run.train_loss, result.run.train_loss)
    shifted = train_hgnn(make_dataset(), small(splits=1, epochs=23, seed=1))
    np.testing.assert_array_equal(shifted.run.train_loss[0], result.run.train_loss[1])
    assert not np.array_equal(shifted.run.train_loss[0], result.run.train_loss[0])


def test_progress_reports():
    reports: list[EpochReport] = []
    config = small(epochs=11)
    run = train_hgnn(make_dataset(), config, on_epoch=reports.append).run
    assert [(r.split, r.epoch) for r in reports] == [(s, e) for s in range(2) for e in range(11)]
    assert [r.train_loss for r in reports] == pytest.approx(run.train_loss.ravel().tolist())
    assert [r.valid_accuracy for r in reports] == pytest.approx(run.valid_accuracy.ravel().tolist())


def test_unlabelled_nodes_take_no_part():
    y = make_dataset().y.copy()
    y[::2] = -1
    changed = make_dataset().x.copy()
    result = train_hgnn(make_dataset(y=y, x=changed), small(splits=1))
    counts = {10: result.run.train_accuracy, 5: result.run.test_accuracy}
    for count, accuracy in counts.items():
        np.testing.assert_allclose(accuracy * count, np.round(accuracy * count), atol=1e-5)


def test_weight_decay_shrinks_parameters():
    def norm(weight_decay: float) -> float:
        config = small(splits=1, weight_decay=weight_decay)
        params = nnx.state(train_hgnn(make_dataset(), config).model.conv1, nnx.Param)
        return float(sum(jnp.sum(p**2) for p in jax.tree.leaves(params)))

    assert norm(0.3) < norm(0.0)


def test_features():
    dataset = make_dataset()
    np.testing.assert_array_equal(node_features(dataset, small()), dataset.x)
    rows = node_features(dataset, small(feature_normalization="row"))
    np.testing.assert_allclose(np.abs(rows).sum(axis=1), 1, rtol=1e-6)
    zeros = make_dataset(x=np.zeros((40, 6), np.float32))
    assert (node_features(zeros, small(feature_normalization="row")) == 0).all()


def test_generated_features():
    y = make_dataset().y.copy()
    y[0] = -1
    dataset = make_dataset(x=None, y=y)
    exact = node_features(dataset, small(features="noisy-label", feature_noise=0.0))
    assert exact.shape == (40, 100)
    assert exact.dtype == np.float32
    np.testing.assert_array_equal(exact[1:].argmax(axis=1), y[1:])
    np.testing.assert_array_equal(exact.sum(axis=1), y >= 0)
    noisy = node_features(dataset, small(features="noisy-label", feature_noise=0.5))
    assert (noisy - exact).std() == pytest.approx(0.5, rel=0.1)
    random = node_features(dataset, small(features="random"))
    assert random.shape == (40, 100)
    assert random.std() == pytest.approx(1, rel=0.1)
    assert not np.array_equal(random, node_features(dataset, small(features="random", seed=1)))
    with pytest.raises(ValueError, match=r"'tiny' has no node features; .*noisy-label"):
        node_features(dataset, small())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"splits": 0}, "splits must be at least 1, got 0"),
        ({"epochs": -1}, "epochs must be at least 1, got -1"),
        ({"hidden_features": 0}, "hidden_features must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be finite and positive, got 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite and positive, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be finite and not negative, got -0.1"),
        ({"feature_noise": float("inf")}, "feature_noise must be finite and not negative, got inf"),
        ({"seed": -1}, "seed must be finite and not negative, got -1"),
        ({"dropout_rate": 1.0}, r"dropout_rate must lie in \[0, 1\), got 1.0"),
        ({"normalization": "none"}, "normalization must be one of .* got 'none'"),
        ({"self_loops": "some"}, "self_loops must be one of .* got 'some'"),
        ({"features": "own"}, "features must be one of .* got 'own'"),
        ({"feature_normalization": "l2"}, "feature_normalization must be one of .* got 'l2'"),
        ({"implementation": "gpu"}, "implementation must be one of .* got 'gpu'"),
    ],
)
def test_bad_settings(setting, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**setting)


def test_too_few_labelled_nodes():
    y = np.full(40, -1, np.int32)
    y[:3] = 0
    with pytest.raises(ValueError, match="'tiny' has 3 labelled nodes; splits need at least 4"):
        train_hgnn(make_dataset(y=y), small())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization": "row", "use_bias": False, "dropout_rate": 0.25},
        {"num_hyperedges": 12, "param_dtype": jnp.bfloat16, "precision": "highest"},
        {"dtype": jnp.bfloat16, "precision": jax.lax.Precision.HIGH},
    ],
)
def test_checkpoint_round_trip(tmp_path, options):
    hypergraph = make_dataset().hypergraph(self_loops="none")
    x = make_dataset().x
    model = HGNN(6, 8, 2, bias_init=nnx.initializers.normal(1.0), **options, rngs=nnx.Rngs(0))
    save_checkpoint(tmp_path / "model", model, small())
    loaded = load_checkpoint(tmp_path / "model")
    expected = model(hypergraph, x, deterministic=True)
    predicted = loaded(hypergraph, x)
    assert predicted.dtype == expected.dtype
    np.testing.assert_array_equal(predicted, expected)
    for name in ("normalization", "use_bias", "num_hyperedges", "in_features", "out_features"):
        assert getattr(loaded.conv1, name) == getattr(model.conv1, name)
    assert loaded.dropout.rate == model.dropout.rate
    assert jax.tree.map(lambda p: p.dtype, nnx.to_pure_dict(nnx.state(loaded, nnx.Param))) == (
        jax.tree.map(lambda p: p.dtype, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    )


def test_checkpoint_replaces_an_older_one(tmp_path):
    first, second = (HGNN(6, width, 2, rngs=nnx.Rngs(0)) for width in (3, 5))
    save_checkpoint(tmp_path / "model", first, small())
    save_checkpoint(tmp_path / "model", second, small())
    assert load_checkpoint(tmp_path / "model").conv1.out_features == 5


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint folder .*absent"):
        load_checkpoint(tmp_path / "absent")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(ValueError, match="other holds no checkpoint of an HGNN"):
        load_checkpoint(tmp_path / "other")


def test_damaged_checkpoint(tmp_path):
    path = tmp_path / "model"
    save_checkpoint(path, HGNN(6, 3, 2, rngs=nnx.Rngs(0)), small())
    (path / "config" / "metadata").write_text('{"model": {"size": 3}}')
    with pytest.raises(ValueError, match="model holds no checkpoint of an HGNN"):
        load_checkpoint(path)


@pytest.mark.parametrize("epochs", [1, 23])
def test_plot(tmp_path, result, epochs):
    cut = {
        name: getattr(result.run, name)[:, :epochs]
        for name in ("train_loss", "train_accuracy", "valid_accuracy", "test_accuracy")
    }
    shown = dataclasses.replace(result, run=dataclasses.replace(result.run, **cut))
    plot_learning_curves(shown, tmp_path / "new" / "curves.png", title="HGNN on tiny")
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_coo_hypergraph_is_sorted_both_ways():
    hypergraph = Hypergraph.from_hyperedges([[2, 0], [1, 2]], num_nodes=4)
    graph = CooHypergraph.from_hypergraph(hypergraph)
    assert graph.hyperedge.tolist() == [0, 0, 1, 1]
    assert graph.member.tolist() == [0, 2, 1, 2]
    assert graph.node.tolist() == [0, 1, 2, 2]
    assert graph.incident.tolist() == [0, 1, 0, 1]
    assert graph.node_degree.tolist() == [1, 1, 2, 0]
    assert graph.hyperedge_degree.tolist() == [2, 2]
