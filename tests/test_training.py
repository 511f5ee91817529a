"""Training on one graph or hypergraph: results, settings, checkpoints, other data."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_training_graphs
from flax import nnx

import flax_layers
import jax_gnn
from flax_layers import GCN, GIN, HeteroModel, HGNNConv
from flax_layers.training import (
    RECIPES,
    AllDeepSetsConfig,
    GCNConfig,
    GCNLinkConfig,
    GINConfig,
    HGNNConfig,
    HGTConfig,
    RGATConfig,
    RGCNConfig,
    SAGEConfig,
    SimpleHGNConfig,
    TrainConfig,
    TrainedModel,
    UniGCNIIConfig,
    load_checkpoint,
    node_features,
    plot_learning_curves,
    save_checkpoint,
    train,
)
from flax_layers.training import checkpoint as checkpoints
from flax_layers.training.data import (
    Numbering,
    check_dataset,
    fingerprint,
    settled,
    split_of,
    sum_size,
)
from flax_layers.training.epochs import MIN_HYPEREDGE_WEIGHT, divided
from flax_layers.training.trained import accuracy, make_model, model_inputs
from jax_gnn.datasets import GraphDataset, GraphsDataset, HypergraphDataset, RelationalDataset

pytestmark = pytest.mark.usefixtures("strict_promotion")

# --- Datasets -------------------------------------------------------------------------------------


def make_dataset(**changes):
    """Two classes of 20 nodes each, hyperedges inside the classes, one node in no hyperedge."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 20).astype(np.int32)
    members = [20 * (i % 2) + rng.choice(19, 4, replace=False) for i in range(12)]
    dataset = HypergraphDataset(
        name="tiny",
        node_idx=np.concatenate(members).astype(np.int32),
        hyperedge_idx=np.repeat(np.arange(12), 4).astype(np.int32),
        num_nodes=40,
        num_hyperedges=12,
        x=(rng.normal(size=(40, 6)) + y[:, None]).astype(np.float32),
        y=y,
    )
    return dataclasses.replace(dataset, **changes)


def make_graph_dataset(**changes):
    """The same nodes with edges inside the classes, both ways; node 19 has none."""
    nodes = make_dataset()
    rng = np.random.default_rng(1)
    pairs = [20 * (i % 2) + rng.choice(19, 2, replace=False) for i in range(60)]
    src, dst = np.concatenate(pairs).reshape(-1, 2).T
    dataset = GraphDataset(
        name="tiny",
        src=np.concatenate([src, dst]),
        dst=np.concatenate([dst, src]),
        edge_features=np.tile(rng.normal(size=(60, 2)), (2, 1)),
        num_nodes=40,
        x=nodes.x,
        y=nodes.y,
    )
    return dataclasses.replace(dataset, **changes)


def make_relational_dataset(**changes):
    """The same edges, with random relations; the first 30 nodes train, five test."""
    edges = make_graph_dataset()
    dataset = RelationalDataset(
        name="tiny",
        src=edges.src,
        rel=np.random.default_rng(2).integers(0, 3, edges.src.size),
        dst=edges.dst,
        num_relations=3,
        num_nodes=40,
        x=edges.x,
        y=edges.y,
        train_idx=np.arange(5, 35),
        test_idx=np.array([0, 1, 2, 38, 39]),
    )
    return dataclasses.replace(dataset, **changes)


def make_typed_dataset(**changes):
    """Two classes of 20 nodes; their edges lead to 12 others by class, and from there to two."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1], 20)
    src = np.repeat(np.arange(40), 4)
    middle = 40 + 6 * y[src] + rng.integers(0, 6, src.size)
    dataset = RelationalDataset(
        name="typed",
        src=np.append(src, np.arange(40, 52)),
        rel=np.repeat([0, 1], [src.size, 12]),
        dst=np.append(middle, 52 + np.arange(12) // 6),
        num_relations=2,
        num_nodes=54,
        node_type=np.repeat([0, 1, 2], [40, 12, 2]),
        node_type_names=("z", "other", "a"),  # not in the order of their names
        x_by_type={"z": rng.normal(size=(40, 5)), "a": np.eye(2)},
        y=np.append(y, np.full(14, -1)),
        train_idx=np.arange(5, 35),
        test_idx=np.array([0, 1, 2, 38, 39]),
    )
    return dataclasses.replace(dataset, **changes)


def dataset_for(config):
    """Return a small dataset of the kind that a class of settings takes."""
    recipe = RECIPES[config.model]
    if recipe.dataset is GraphsDataset:
        return test_training_graphs.rings_and_trees(np.random.default_rng(0))
    makers = {GraphDataset: make_graph_dataset, RelationalDataset: make_relational_dataset}
    return makers.get(recipe.dataset, make_dataset)()


def save(path, dataset):
    """Write the arrays and sizes of a dataset to an .npz file, and return its path as text."""
    fields = {f.name: getattr(dataset, f.name) for f in dataclasses.fields(dataset)}
    np.savez(path, **{k: v for k, v in fields.items() if isinstance(v, np.ndarray | int)})
    return str(path)


SMALL = {"splits": 2, "epochs": 10, "hidden_features": 8}
ONE = {"splits": 1, "epochs": 1, "hidden_features": 4, "split": "random", "num_layers": 1}


def small(**changes):
    return HGNNConfig(**SMALL | changes)


@pytest.fixture(scope="module")
def result():
    return train(make_dataset(), small(epochs=23), baseline=True)


# --- Runs -----------------------------------------------------------------------------------------


def test_training_learns(result):
    # Losses are under dropout, so they fall but for noise.
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
    scores = recorded(result)
    expected = np.dot([20, 10, 10], [scores[part] for part in ("train", "valid", "test")])
    predicted = result.model(result.graph, result.x).argmax(axis=1)
    assert (predicted == make_dataset().y).sum() == round(float(expected))


def test_times(result):
    # 23 epochs are calls of 10, 10 and 3, for two splits.
    for run in (result.run, result.baseline):
        assert run.epoch_seconds.shape == (6,)
        assert (run.epoch_seconds > 0).all() and run.compile_seconds > 0
    ratio = result.baseline.median_epoch_seconds / result.run.median_epoch_seconds
    assert result.speedup == pytest.approx(ratio)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="names the CPU's custom call")
def test_custom_calls(result):
    assert "jax_gnn_hypergraph_aggregate" in result.run.custom_calls
    assert result.baseline.custom_calls == ()
    plain = train(make_dataset(), small(splits=1, epochs=1, implementation="xla"))
    assert plain.run.custom_calls == ()
    assert plain.baseline is plain.speedup is None
    with jax_gnn.implementation("xla"):
        inherited = train(make_dataset(), small(splits=1, epochs=1))
    assert inherited.run.custom_calls == ()


def assert_same_losses(result, epochs=10, tolerance=1e-3):
    """Check that the first epochs have the same losses without kernels."""
    losses = (run.train_loss[:, :epochs] for run in (result.run, result.baseline))
    np.testing.assert_allclose(*losses, rtol=tolerance, atol=tolerance)
    assert result.baseline.custom_calls == ()


ONE_STRUCTURE = [
    recipe.config
    for recipe in RECIPES.values()
    if recipe.dataset in (GraphDataset, HypergraphDataset)
]


@pytest.mark.parametrize("config", ONE_STRUCTURE, ids=lambda config: config.model)
def test_models_learn_as_without_kernels(config):
    # Little dropout, as rounding grows with each step, and a small model learns late under more.
    rates = {field.name for field in dataclasses.fields(config) if "dropout_rate" in field.name}
    settings = SMALL | {"splits": 1, "epochs": 60, "hidden_features": 16, "learning_rate": 0.02}
    result = train(
        dataset_for(config), config(**settings | dict.fromkeys(rates, 0.1)), baseline=True
    )
    assert type(result.model) is RECIPES[config.model].model
    assert result.run.train_loss[0, -10:].mean() < 0.9 * result.run.train_loss[0, 0]
    if jax.default_backend() == "cpu":
        assert any(name.startswith("jax_gnn_") for name in result.run.custom_calls)
    assert_same_losses(result, tolerance=5e-3)


def test_curves_without_kernels_are_the_same(result):
    for name in ("train_loss", "train_accuracy", "valid_accuracy", "test_accuracy"):
        curves = getattr(result.run, name), getattr(result.baseline, name)
        np.testing.assert_allclose(*curves, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"features": "native"}], ids=repr)
def test_relational_models_learn(tmp_path, options):
    # Without features a model predicts for the nodes of the training only.
    settings = SMALL | {"splits": 1, "epochs": 40, "hidden_features": 16}
    dataset = make_relational_dataset()
    result = train(dataset, RGCNConfig(**settings, **options), baseline=True)
    assert (result.x is None) == ("features" not in options)
    assert result.run.train_accuracy[0, -1] > 0.9
    assert_same_losses(result)
    split = result.trained.split
    assert (len(split.train), len(split.valid), len(split.test)) == (24, 6, 5)
    loaded = check_checkpoint(tmp_path, result, dataset)
    assert loaded.differences(make_relational_dataset(rel=dataset.rel[::-1])) == ("structure",)
    if "features" not in options:
        larger = make_relational_dataset(num_nodes=41, x=None, y=np.append(dataset.y, -1))
        with pytest.raises(ValueError, match="has 41 nodes, the model takes 40"):
            loaded.predict(larger)


def recorded(result):
    """Return the accuracies that training recorded of the model that it returns."""
    run, split = result.run, result.run.best_valid_accuracy.argmax()
    curves = {"train": run.train_accuracy, "valid": run.valid_accuracy, "test": run.test_accuracy}
    return {part: curve[split, run.best_epoch[split]] for part, curve in curves.items()}


def check_checkpoint(path, result, dataset):
    """Check that a checkpoint predicts as the model, and return what was loaded."""
    save_checkpoint(path / "model", result.trained)
    loaded = load_checkpoint(path / "model")
    logits = loaded.predict(dataset)
    np.testing.assert_array_equal(logits, result.trained.predict(dataset))
    assert loaded.accuracies(dataset, logits) == recorded(result)
    return loaded


TYPED = {"hidden_features": 8, "splits": 1, "epochs": 40, "learning_rate": 0.02}


@pytest.mark.parametrize(
    "config",
    [
        RGCNConfig(**TYPED, features="native", dropout_rate=0.2),
        RGATConfig(**TYPED, heads=2),
        RGATConfig(**TYPED, heads=2, attention="multiplicative", softmax="within", num_bases=2),
        RGATConfig(**TYPED, heads=2, features="none"),
        SimpleHGNConfig(**TYPED, heads=2, l2_normalize=True),
        HGTConfig(**TYPED, heads=2, feature_normalization="row"),
        HGTConfig(**TYPED, heads=2, features="random"),
    ],
    ids=str,
)
def test_typed_models_learn(tmp_path, config):
    # Types without features have embeddings, which checkpoints hold.
    dataset = make_typed_dataset()
    result = train(dataset, config, baseline=True)
    if config.features == "random":
        assert isinstance(result.model, RECIPES[config.model].model)
    else:
        assert isinstance(result.model, HeteroModel)
        widths = {"z": 5, "other": 12, "a": 2} if config.features == "native" else {}
        assert result.model.in_features == ({"z": 40, "other": 12, "a": 2} | widths)
    assert result.run.train_accuracy[0, -1] > 0.9
    assert_same_losses(result)
    loaded = check_checkpoint(tmp_path, result, dataset)
    changed = make_typed_dataset(x_by_type={"z": np.ones((40, 5)), "a": np.eye(2)})
    assert loaded.differences(changed) == ("features",)


def test_types_that_do_not_fit():
    trained = train(make_typed_dataset(), HGTConfig(**TYPED | {"epochs": 1}, heads=2)).trained
    widths = r"has \{'z': 6, 'other': 12, 'a': 2\} features, the model"
    with pytest.raises(ValueError, match=widths):
        trained.predict(make_typed_dataset(x_by_type={"z": np.ones((40, 6)), "a": np.eye(2)}))
    # Nodes of the second type lie around those of the first.
    swapped = np.repeat([1, 0, 2], [20, 32, 2])
    assert make_typed_dataset(node_type=swapped, x_by_type=None).node_type_sizes is None
    with pytest.raises(ValueError, match="has features by type, and nodes of a type are not"):
        x = {"other": np.ones((20, 3))}
        train(make_typed_dataset(node_type=swapped, x_by_type=x), HGTConfig(**TYPED, heads=2))
    # The 40th node is of the second type now, and has edges like those of the first.
    types = np.repeat([0, 1, 2], [39, 13, 2])
    with pytest.raises(ValueError, match="relation 0 runs from nodes of the types 'z' and 'other'"):
        train(make_typed_dataset(node_type=types, x_by_type=None), HGTConfig(**TYPED, heads=2))


def f1_score(predicted, flags):
    return 2 * (predicted & flags).sum() / (predicted.sum() + flags.sum())


def test_nodes_of_several_classes():
    # Accuracies are micro-F1, and classes are compared by name.
    y = np.arange(54) < 20
    flags = np.stack([y, ~y, np.arange(54) % 2 == 0], 1)
    flags[40:] = False
    names = ("left", "right", "even")
    unlabelled = np.full(54, -1)
    dataset = make_typed_dataset(y=unlabelled, y_multilabel=flags, label_names=names)
    result = train(dataset, RGATConfig(**TYPED | {"epochs": 60}, heads=2), baseline=True)
    assert_same_losses(result)
    assert result.run.train_accuracy[0, -1] > 0.7
    trained = result.trained
    logits = jnp.asarray(trained.predict(dataset))
    predicted = np.asarray(logits) > 0
    for part, ids in trained.parts(dataset).items():
        f1 = f1_score(predicted[ids], flags[ids])
        assert trained.accuracies(dataset, logits)[part] == pytest.approx(f1)
    # Classes in another order, and a new one, whose nodes count as mistakes.
    order = [2, 0, 1]
    reordered = make_typed_dataset(
        y=unlabelled,
        y_multilabel=np.append(flags[:, order], flags[:, :1], 1),
        label_names=(*(names[i] for i in order), "new"),
    )
    assert trained.differences(reordered) == ("labels",)
    f1 = f1_score(np.pad(predicted, ((0, 0), (0, 1)))[:40], np.append(flags, flags[:, :1], 1)[:40])
    assert trained.accuracies(reordered, logits) == {"labelled": pytest.approx(f1)}
    # One class alone: predictions of the others are mistakes.
    single = make_typed_dataset(
        y=unlabelled, y_multilabel=flags[:, :1], label_names=names[:1], train_idx=[0], test_idx=[1]
    )
    f1 = f1_score(predicted[:20], np.pad(flags[:20, :1], ((0, 0), (0, 2))))
    assert trained.accuracies(single, logits) == {"labelled": pytest.approx(f1)}


def test_learnable_hyperedge_weights_learn_and_stay_positive():
    config = small(splits=1, epochs=30, learnable_hyperedge_weights=True, learning_rate=0.2)
    result = train(make_dataset(), config, baseline=True)
    for conv in (result.model.conv1, result.model.conv2):
        weight = np.asarray(conv.hyperedge_weight[...])
        assert weight.shape == (result.graph.num_hyperedges,)
        assert weight.min() >= MIN_HYPEREDGE_WEIGHT
        assert np.ptp(weight) > 0.01
    assert np.isfinite(result.run.train_loss).all()
    assert_same_losses(result, 5)


def test_same_seed_same_numbers_other_seed_other_numbers(result):
    again = train(make_dataset(), small(epochs=23))
    np.testing.assert_array_equal(again.run.train_loss, result.run.train_loss)
    shifted = train(make_dataset(), small(splits=1, epochs=23, seed=1))
    np.testing.assert_array_equal(shifted.run.train_loss[0], result.run.train_loss[1])
    assert not np.array_equal(shifted.run.train_loss[0], result.run.train_loss[0])


def test_progress_reports():
    reports = []
    run = train(make_dataset(), small(epochs=11), on_epoch=reports.append).run
    assert [(r.split, r.epoch) for r in reports] == [(s, e) for s in range(2) for e in range(11)]
    assert [r.train_loss for r in reports] == pytest.approx(run.train_loss.ravel().tolist())
    assert [r.valid_accuracy for r in reports] == pytest.approx(run.valid_accuracy.ravel().tolist())


def test_unlabelled_nodes_take_no_part():
    y = make_dataset().y.copy()
    y[::2] = -1
    run = train(make_dataset(y=y), small(splits=1)).run
    for count, share in ((10, run.train_accuracy), (5, run.test_accuracy)):
        np.testing.assert_allclose(share * count, np.round(share * count), atol=1e-5)


def test_logits_that_are_no_numbers_are_mistakes():
    logits = jnp.array([[np.nan, np.nan], [0.0, np.nan], [np.inf, 0.0], [-np.inf, -1.0]])
    assert accuracy(logits, jnp.array([0, 0, 0, 1]), jnp.ones(4, bool)) == 0.5


@pytest.mark.parametrize("layers", ["all", "first"])
def test_weight_decay_by_layer(layers):
    def norms(weight_decay):
        decay = {"weight_decay": weight_decay, "weight_decay_layers": layers}
        config = GCNConfig(**SMALL | {"splits": 1}, **decay, learning_rate=0.1)
        model = train(make_graph_dataset(), config).model
        return [float(jnp.sum(conv.kernel[...] ** 2)) for conv in model.convolutions]

    decayed, free = norms(1.0), norms(0.0)
    assert decayed[0] < 0.9 * free[0]
    assert (decayed[1] < 0.9 * free[1]) == (layers == "all")


def test_weight_decay_of_the_maps():
    def norms(weight_decay, map_weight_decay):
        decay = {"weight_decay": weight_decay, "map_weight_decay": map_weight_decay}
        config = UniGCNIIConfig(**SMALL | {"splits": 1, "epochs": 5}, learning_rate=0.1, **decay)
        model = train(make_dataset(), config).model
        layers = model.input, model.conv1, model.output
        return [float(jnp.sum(layer.kernel[...] ** 2)) for layer in layers]

    free, maps, convolutions = norms(0.0, 0.0), norms(0.0, 1.0), norms(1.0, 0.0)
    assert maps[0] < 0.9 * free[0] and maps[2] < 0.9 * free[2]
    assert convolutions[1] < 0.9 * free[1] and convolutions[0] > 0.9 * free[0]


# --- Data and settings ----------------------------------------------------------------------------


def test_published_splits():
    parts = {"train_idx": [0, 20], "val_idx": [1, 2, 21], "test_idx": np.arange(25, 40)}
    published = make_graph_dataset(**parts)
    expected = [list(ids) for ids in parts.values()]
    for split in ("auto", "published"):
        for seed in (0, 1):
            chosen = split_of(published, GCNConfig(split=split), seed)
            assert [ids.tolist() for ids in vars(chosen).values()] == expected
    for dataset, split in ((published, "random"), (make_graph_dataset(), "auto")):
        first, second = (split_of(dataset, GCNConfig(split=split), seed) for seed in (0, 1))
        assert [len(ids) for ids in vars(first).values()] == [20, 10, 10]
        assert not np.array_equal(first.train, second.train)
    run = train(published, GCNConfig(**SMALL)).run
    np.testing.assert_allclose(run.test_accuracy * 15, np.round(run.test_accuracy * 15), atol=1e-5)
    assert not np.array_equal(run.train_loss[0], run.train_loss[1])
    with pytest.raises(ValueError, match="'tiny' has no published split"):
        train(make_graph_dataset(), GCNConfig(**SMALL, split="published"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_idx": []}, "'typed' has a published split without training nodes"),
        ({"val_idx": []}, "'typed' has a published split without validation nodes"),
        ({"test_idx": []}, "'typed' has a published split without test nodes"),
        ({"y_multilabel": np.zeros((54, 0), bool)}, "'typed' has no classes"),
        ({"src": [], "rel": [], "dst": [], "num_relations": 0}, "'typed' has no relations"),
    ],
)
def test_data_that_cannot_be_trained_on(changes, message):
    with pytest.raises(ValueError, match=message):
        check_dataset(make_typed_dataset(**changes), RGATConfig())


def test_mismatched_datasets_and_settings():
    with pytest.raises(TypeError, match="gcn takes a GraphDataset, got a HypergraphDataset"):
        train(make_dataset(), GCNConfig(**SMALL))
    with pytest.raises(TypeError, match=r"config must be of a model, .* got TrainConfig"):
        train(make_dataset(), TrainConfig(**SMALL))
    y = np.full(40, -1, np.int32)
    y[:3] = 0
    with pytest.raises(ValueError, match="'tiny' has 3 labelled nodes; splits need at least 4"):
        train(make_dataset(y=y), small())
    with pytest.raises(TypeError, match=r"model must be one of those .*HGNNConv"):
        TrainedModel(HGNNConv(2, 2, rngs=nnx.Rngs(0)), small())
    with pytest.raises(TypeError, match="config must be of a GCN, got HGNNConfig"):
        TrainedModel(GCN(2, 2, 2, rngs=nnx.Rngs(0)), small())


def test_features():
    dataset = make_dataset()
    np.testing.assert_array_equal(node_features(dataset, small()), dataset.x)
    rows = node_features(dataset, small(feature_normalization="row"))
    np.testing.assert_allclose(np.abs(rows).sum(axis=1), 1, rtol=1e-6)
    zeros = make_dataset(x=np.zeros((40, 6), np.float32))
    assert (node_features(zeros, small(feature_normalization="row")) == 0).all()
    empty = np.zeros((40, 0))
    for x in ({"x": np.zeros((54, 0)), "x_by_type": None}, {"x_by_type": {"z": empty}}):
        embedded = {"z": None, "other": None, "a": None}
        assert node_features(make_typed_dataset(**x), RGATConfig()) == embedded


def test_generated_features():
    dataset = make_dataset(x=None)
    exact = node_features(dataset, small(features="noisy-label", feature_noise=0.0))
    np.testing.assert_array_equal(exact, np.eye(100, dtype=np.float32)[dataset.y])
    noisy = node_features(dataset, small(features="noisy-label", feature_noise=0.5))
    assert (noisy - exact).std() == pytest.approx(0.5, rel=0.1)
    random = node_features(dataset, small(features="random"))
    assert random.shape == (40, 100)
    assert not np.array_equal(random, node_features(dataset, small(features="random", seed=1)))
    with pytest.raises(ValueError, match=r"'tiny' has no node features; .*noisy-label"):
        node_features(dataset, small())


def make_table_dataset(**changes):
    """Two columns of other scales, one of which tells the class, and one of zeros and ones."""
    base = make_graph_dataset()
    rng = np.random.default_rng(4)
    flags = rng.integers(0, 2, 40)
    x = np.stack([1e4 + rng.normal(size=40), 1e-3 * base.y + 5e-4 * rng.normal(size=40), flags], 1)
    return dataclasses.replace(base, x=x, **changes)


def test_normalization_of_features():
    dataset = make_table_dataset()
    x = node_features(dataset, GCNConfig())
    np.testing.assert_allclose(x[:, :2].mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(x[:, :2].std(0), 1, rtol=1e-3)
    np.testing.assert_array_equal(x[:, 2], dataset.x[:, 2])
    assert set(settled(dataset, GCNLinkConfig()).scaling) == {""}
    # Of numbers whose differences float32 loses, a constant no larger than 1 is left.
    large = dataclasses.replace(dataset, x=np.stack([np.full(40, -5e9), np.full(40, 0.5)], 1))
    np.testing.assert_array_equal(node_features(large, GCNConfig()), np.full((40, 2), [-1, 0.5]))
    # Words of a document are scaled by rows, but flags stay as they are for links.
    words = dataclasses.replace(dataset, x=np.eye(40))
    counts = dataclasses.replace(dataset, x=3 * np.eye(40))
    for data, kinds in (
        (dataset, ("standardize", "standardize")),
        (words, ("row", "none")),
        (counts, ("row", "row")),
    ):
        for config, kind in zip((GCNConfig(), GCNLinkConfig()), kinds, strict=True):
            assert settled(data, config).feature_normalization == kind
    with pytest.raises(ValueError, match="'tiny' has 40 features, the model takes 3"):
        node_features(words, settled(dataset, GCNConfig()))


def test_sums_of_many_neighbours():
    # Maps of sums begin and move as if these were means; other parameters do not.
    dataset = make_table_dataset()
    graph = dataset.graph()
    size = sum_size(dataset, settled(dataset, GINConfig()), graph)
    assert size == pytest.approx(1 + dataset.num_edges / dataset.num_nodes)
    assert sum_size(dataset, GINConfig(feature_normalization="row"), graph) == 1
    assert sum_size(dataset, GCNConfig(), graph) == 1
    weighted = dataclasses.replace(dataset, edge_weight=np.full(dataset.num_edges, 3.0))
    weights = GINConfig(edge_weight=True, feature_normalization="none")
    weighted_size = sum_size(weighted, weights, graph)
    assert weighted_size - 1 == pytest.approx(3 * (size - 1))
    # The second map of a GIN's perceptron is of no sum.
    params = nnx.state(GIN(3, 4, 2, num_layers=2, rngs=nnx.Rngs(0)), nnx.Param)
    smaller = divided(params, 4.0)
    for name in ("conv1", "conv2"):
        kernels = smaller[name]["kernel"][...], params[name]["kernel"][...] / 4
        np.testing.assert_allclose(*kernels)
        for field in ("kernel", "bias"):
            before, after = (state[name]["output"][field][...] for state in (params, smaller))
            np.testing.assert_array_equal(before, after)


COUNT, WHOLE = "a whole number from 1 to 2147483647", "a whole number from 0 to 2147483647"


@pytest.mark.parametrize(
    ("config", "setting", "value", "expected"),
    [
        (HGNNConfig, "splits", 0, COUNT),
        (HGNNConfig, "epochs", -1, COUNT),
        (HGNNConfig, "num_layers", 0, COUNT),
        (HGNNConfig, "seed", -1, WHOLE),
        (HGNNConfig, "learning_rate", 0.0, "a positive number"),
        (HGNNConfig, "learning_rate", float("nan"), "a positive number"),
        (HGNNConfig, "weight_decay", -0.1, "a number from 0"),
        (HGNNConfig, "feature_noise", float("inf"), "a number from 0"),
        (HGNNConfig, "dropout_rate", 1.0, "a number from 0 to below 1"),
        (HGNNConfig, "split", "none", "one of .*"),
        (HGNNConfig, "implementation", "gpu", "one of .*"),
        # Fields of the model, or with another default than that of the base.
        (HGNNConfig, "normalization", "none", "one of .*"),
        (AllDeepSetsConfig, "hidden_features", 0, COUNT),
        (GCNConfig, "feature_normalization", "l2", "one of .*"),
        (SAGEConfig, "reduce", "median", "one of .*"),
    ],
)
def test_bad_settings(config, setting, value, expected):
    with pytest.raises(ValueError, match=f"{setting} must be {expected}, got {value!r}"):
        config(**{setting: value})


# --- Checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        # Dtypes, precision and biases are arguments of all convolutions.
        ("HGNN", {"normalization": "row", "use_bias": False, "dropout_rate": 0.25}),
        ("HGNN", {"num_hyperedges": 12, "param_dtype": jnp.bfloat16, "precision": "highest"}),
        ("HGNN", {"dtype": jnp.bfloat16, "precision": jax.lax.Precision.HIGH, "num_layers": 1}),
        # Options of single models.
        ("GCN", {"normalization": None, "add_self_loops": False, "input_dropout_rate": 0.5}),
        ("GIN", {"mlp_features": 5, "eps": 0.5}),
        ("GIN", {"learn_eps": True, "num_layers": 2}),
        ("SAGE", {"reduce": "max", "project": True, "l2_normalize": True}),
        ("SAGE", {"self_weight": False}),
        ("GAT", {"heads": 2, "negative_slope": 0.5, "concat": False, "add_self_loops": False}),
        ("GATv2", {"heads": 4, "share_weights": True, "use_bias": False}),
        ("GraphTransformer", {"heads": 2, "gated": True, "attention_dropout_rate": 0.3}),
        ("GraphTransformer", {"self_weight": False, "dtype": jnp.bfloat16, "num_layers": 1}),
        ("UniGIN", {"eps": 0.5, "hyperedge_reduce": "max"}),
        ("UniSAGE", {"node_reduce": "mean", "l2_normalize": True}),
        ("UniGAT", {"heads": 2, "negative_slope": 0.5, "residual": True, "concat": False}),
        ("UniGCNII", {"alpha": 0.3, "lamda": 1.5, "num_layers": 3, "use_bias": False}),
        ("HypergraphAttention", {"heads": 4, "softmax_by": "hyperedge", "use_bias": False}),
        ("AllDeepSets", {"reduce": "mean", "mlp_layers": 1, "dropout_rate": 0.3}),
        ("AllSetTransformer", {"heads": 4, "num_layers": 2, "use_bias": False}),
        ("RGCN", {"num_relations": 6, "num_bases": 2, "normalization": "sum"}),
        ("RGCN", {"num_relations": 6, "num_blocks": 2, "use_bias": False}),
    ],
)
def test_checkpoint_round_trip(tmp_path, name, options):
    config = next(r.config for r in RECIPES.values() if r.model.__name__ == name)
    dataset = dataset_for(config)
    hyper = isinstance(dataset, HypergraphDataset)
    graph = dataset.hypergraph(self_loops="none") if hyper else dataset.graph()
    x = make_dataset().x.astype(options.get("param_dtype", "float32"))
    kind, bias_init = getattr(flax_layers, name), nnx.initializers.normal(1.0)
    model = kind(6, 8, 2, bias_init=bias_init, **options, rngs=nnx.Rngs(0))
    save_checkpoint(tmp_path / "model", TrainedModel(model, config()))
    loaded = load_checkpoint(tmp_path / "model").model
    assert type(loaded) is kind
    expected = nnx.jit(lambda model: model(graph, x, deterministic=True))(model)
    predicted = nnx.jit(lambda loaded: loaded(graph, x))(loaded)
    assert predicted.dtype == expected.dtype
    np.testing.assert_array_equal(predicted, expected)
    for field in ("use_bias", "in_features", "out_features", "heads", *options):
        if hasattr(model.conv1, field) and "dtype" not in field and field != "precision":
            assert getattr(loaded.conv1, field) == getattr(model.conv1, field)
    assert loaded.dropout.rate == model.dropout.rate
    assert loaded.input_dropout.rate == model.input_dropout.rate
    assert checkpoints._variables(loaded) == checkpoints._variables(model)


def make_scaled_dataset():
    """Rows of all lengths, from which nothing can be told unless they are normalised."""
    x = make_dataset().x * 10 ** np.random.default_rng(2).uniform(-3, 3, (40, 1))
    return make_graph_dataset(x=x, label_names=("left", "right"))


@pytest.fixture(scope="module")
def scaled():
    with jax.default_matmul_precision("highest"):
        changes = {"splits": 3, "epochs": 20, **GCNConfig.published["planetoid"]}
        result = train(make_scaled_dataset(), GCNConfig(**changes | {"hidden_features": 8}))
    # Not the first, whose split and seed are those of the settings.
    assert result.run.best_valid_accuracy.argmax() > 0
    return result


@pytest.fixture(scope="module")
def checkpoint(scaled, tmp_path_factory):
    path = tmp_path_factory.mktemp("scaled") / "checkpoint"
    save_checkpoint(path, scaled.trained)
    return path


def test_checkpoint_holds_preprocessing_labels_and_split(scaled, checkpoint):
    dataset, config = make_scaled_dataset(), scaled.trained.config
    # All that a prediction needs is in the checkpoint, so nothing is given but the path.
    loaded = load_checkpoint(checkpoint)
    assert loaded.config == config
    assert loaded.label_names == ("left", "right")
    assert loaded.version == jax_gnn.__version__
    assert loaded.seed == scaled.run.best_valid_accuracy.argmax()
    assert loaded.data == scaled.trained.data and loaded.data.name == "tiny"
    assert loaded.differences(dataset) == ()
    expected = vars(split_of(dataset, config, loaded.seed))
    assert loaded.parts(dataset).keys() == expected.keys()
    for part, ids in loaded.parts(dataset).items():
        np.testing.assert_array_equal(ids, expected[part])


@pytest.mark.usefixtures("exact_products")
def test_checkpoint_predicts_what_training_recorded(scaled, tmp_path):
    dataset = make_scaled_dataset()
    loaded = check_checkpoint(tmp_path, scaled, dataset)
    without_preprocessing = loaded.model(dataset.graph(), dataset.x)
    assert loaded.accuracies(dataset, without_preprocessing) != recorded(scaled)


def test_scaling_and_weights_of_edges_in_a_checkpoint(tmp_path):
    # Predictions take the statistics of the training, and weights of edges.
    base = make_table_dataset()
    weight = np.random.default_rng(5).uniform(0.5, 2, base.num_edges)
    dataset = make_table_dataset(edge_weight=weight)
    config = GCNConfig(**SMALL, edge_weight=True)
    result = train(dataset, config, baseline=True)
    assert_same_losses(result, tolerance=1e-4)
    save_checkpoint(tmp_path / "model", result.trained)
    loaded = load_checkpoint(tmp_path / "model")
    assert loaded.config == result.trained.config
    for data in (dataset, dataclasses.replace(dataset, x=dataset.x[::-1] * 3)):
        np.testing.assert_array_equal(loaded.predict(data), result.trained.predict(data))
    doubled = loaded.predict(dataclasses.replace(dataset, edge_weight=2 * dataset.edge_weight))
    assert np.abs(doubled - loaded.predict(dataset)).max() > 1e-4
    with pytest.raises(ValueError, match="'tiny' has no edge_weight"):
        loaded.predict(base)
    with pytest.raises(ValueError, match="'tiny' has no edge_weight to weigh edges by"):
        train(base, config)


def test_no_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint folder .*absent"):
        load_checkpoint(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(ValueError, match="empty holds no checkpoint of a model"):
        load_checkpoint(tmp_path / "empty")


def test_damaged_checkpoint(checkpoint, tmp_path):
    # Each file is missing, cut off, or has another bit.
    checkpoint = shutil.copytree(checkpoint, tmp_path / "damaged")
    sums = checkpoint / "SHA256SUMS"
    files = [path for path in checkpoint.rglob("*") if path.is_file() and path != sums]
    assert len(files) > 5

    def check(message):
        with pytest.raises(ValueError, match=f"{checkpoint} holds no .*: {message}"):
            load_checkpoint(checkpoint)

    for file in files:
        contents, name = file.read_bytes(), file.relative_to(checkpoint).as_posix()
        half = len(contents) // 2
        changed = bytes([*contents[:half], contents[half] ^ 1, *contents[half + 1 :]])
        file.unlink()
        check(f"{name} is missing")
        for damaged in (contents[:half], changed):
            file.write_bytes(damaged)
            check(f"{name} is not what was written")
        file.write_bytes(contents)
    load_checkpoint(checkpoint)
    sums.write_text("nothing")
    check("SHA256SUMS is not what was written")
    sums.unlink()
    check("SHA256SUMS is missing")


# A description of GCN(6, 8, 2, num_layers=2) and GCNConfig(hidden_features=8, seed=3).
SAVED = {
    **dict.fromkeys(("version", "data", "numbering", "split", "label_names", "seed")),
    "model": "gcn",
    "arguments": {
        **{"in_features": 6, "hidden_features": 8, "out_features": 2, "num_layers": 2},
        **{"dropout_rate": 0.5, "input_dropout_rate": 0.0, "use_bias": True, "dtype": None},
        **{"param_dtype": "float32", "precision": None},
        **{"normalization": "symmetric", "add_self_loops": True},
    },
    "training": {
        **{"splits": 10, "split": "auto", "epochs": 200, "learning_rate": 0.01, "seed": 3},
        **{"weight_decay": 0.0005, "weight_decay_layers": "first", "num_layers": 2},
        **{"hidden_features": 8, "dropout_rate": 0.5, "input_dropout_rate": 0.5},
        **{"features": "native", "feature_noise": 1.0, "feature_normalization": "row"},
        **{"implementation": None},
    },
}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ([], "TypeError: "),
        ({"model": {"size": 3}}, "TypeError: "),
        (SAVED | {"model": "lstm"}, "its model is 'lstm', which is none of hgnn, "),
        (SAVED | {"model": "hgnn"}, "TypeError: .* unexpected keyword argument"),
        ({"model": "gcn"}, "KeyError: 'arguments'"),
        (SAVED | {"arguments": {}}, "TypeError: .* missing 3 required positional arguments"),
        (SAVED | {"arguments": SAVED["arguments"] | {"in_features": "6"}}, "TypeError: "),
        (SAVED | {"arguments": SAVED["arguments"] | {"hidden_features": 10**9}}, "hape"),
        (SAVED | {"arguments": SAVED["arguments"] | {"num_layers": 3}}, "conv3"),
        (SAVED | {"training": SAVED["training"] | {"epochs": "many"}}, "TypeError: "),
    ],
    ids=range(10),
)
# Orbax leaves coroutines behind that it started before it saw a wrong shape.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_checkpoint_of_something_else(tmp_path, description, message):
    model = GCN(6, 8, 2, num_layers=2, rngs=nnx.Rngs(0))
    checkpoints._write(tmp_path / "model", model, description, None)
    with pytest.raises(ValueError, match=f"model holds no checkpoint of a model: .*{message}"):
        load_checkpoint(tmp_path / "model")


# --- Predictions on other data --------------------------------------------------------------------


def test_prediction_on_other_data(checkpoint):
    loaded, dataset = load_checkpoint(checkpoint), make_scaled_dataset()
    # Two copies of the graph, the second without labels, have the same logits twice.
    twice = dataclasses.replace(
        dataset,
        src=np.concatenate([dataset.src, 40 + dataset.src]),
        dst=np.concatenate([dataset.dst, 40 + dataset.dst]),
        edge_features=np.concatenate([dataset.edge_features] * 2),
        num_nodes=80,
        x=np.concatenate([dataset.x, dataset.x]),
        y=np.concatenate([dataset.y, np.full(40, -1)]),
    )
    assert loaded.differences(twice) == ("structure", "features", "labels")
    logits, doubled = loaded.predict(dataset), loaded.predict(twice)
    np.testing.assert_allclose(doubled, np.concatenate([logits, logits]), rtol=1e-5, atol=1e-5)
    parts = {part: ids.tolist() for part, ids in loaded.parts(twice).items()}
    assert parts == {"labelled": list(range(40))}
    hits = np.asarray(doubled).argmax(axis=1)[:40] == dataset.y
    share = np.float32(hits.sum()) / np.float32(40)
    assert loaded.accuracies(twice, doubled) == {"labelled": share}
    # Labels matter for accuracies alone, and features for the parts of the split.
    unlabelled = dataclasses.replace(dataset, y=np.full(40, -1))
    assert loaded.differences(unlabelled) == ("labels",)
    np.testing.assert_array_equal(loaded.predict(unlabelled), logits)
    assert loaded.accuracies(unlabelled, logits) == {}
    shifted = dataclasses.replace(dataset, x=dataset.x + 1)
    assert loaded.differences(shifted) == ("features",)
    assert loaded.parts(shifted).keys() == {"labelled"}
    # Data that do not fit.
    for changes, message in (
        ({"x": dataset.x[:, :5]}, "'tiny' has 5 features, the model takes 6"),
        ({"x": None}, "'tiny' has no node features"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded.predict(dataclasses.replace(dataset, **changes))
    with pytest.raises(TypeError, match="gcn takes a GraphDataset, got a HypergraphDataset"):
        loaded.predict(make_dataset())


def test_classes_are_compared_by_name(checkpoint):
    loaded, dataset = load_checkpoint(checkpoint), make_scaled_dataset()
    logits = loaded.predict(dataset)
    hits = np.asarray(logits).argmax(axis=1) == dataset.y
    # The same classes in another order, then behind a class that the model does not know.
    swapped = dataclasses.replace(dataset, y=1 - dataset.y, label_names=("right", "left"))
    np.testing.assert_array_equal(loaded.predict(swapped), logits)
    assert loaded.differences(swapped) == ("labels",)
    assert loaded.accuracies(swapped, logits)["labelled"] == pytest.approx(hits.mean())
    y = np.where(np.arange(40) < 10, -1, 2 - dataset.y)
    strange = dataclasses.replace(dataset, y=y, label_names=("up", "right", "left"))
    assert loaded.accuracies(strange, logits)["labelled"] == pytest.approx(hits[10:].mean())
    unknown = dataclasses.replace(strange, y=np.where(y == 1, 0, y))
    share = np.mean(hits[10:] & (dataset.y[10:] == 0))
    assert loaded.accuracies(unknown, logits)["labelled"] == pytest.approx(share)


def with_names(dataset):
    """Give nodes, classes and relations names."""
    changes = {"node_names": tuple(f"node {i}" for i in range(dataset.num_nodes))}
    if isinstance(dataset, RelationalDataset):
        changes["relation_names"] = ("r", "s", "t")[: dataset.num_relations]
    return dataclasses.replace(dataset, label_names=("a", "b"), **changes)


def shuffled(dataset, rng, *, classes=True):
    """Return the data with other numbers of all that has names, and each node's new number."""
    fields = {name: value for name, value in vars(dataset).items() if value is not None}

    def renumber(names, *ids):
        """Permute a field of names, and the numbers in other fields accordingly."""
        new = rng.permutation(len(fields[names]))
        fields[names] = tuple(fields[names][i] for i in np.argsort(new))
        for name in ids:
            fields[name] = np.append(new, -1)[fields[name]] if name in fields else None
        return new

    typed = "node_type" in fields
    kinds = fields["node_type"] if typed else np.zeros(dataset.num_nodes, int)
    if typed:
        renumber("node_type_names", "node_type")
    if "relation_names" in fields:
        renumber("relation_names", "rel")
    if classes:
        new = renumber("label_names", "y")
        if "y_multilabel" in fields:
            fields["y_multilabel"] = fields["y_multilabel"][:, np.argsort(new)]
    # Nodes of a type stay one after another.
    order = rng.permutation(dataset.num_nodes)
    if typed:
        order = order[np.argsort(fields["node_type"][order], kind="stable")]
    for name in ("x", "y", "y_multilabel", "node_type"):
        if name in fields:
            fields[name] = fields[name][order]
    fields["node_names"] = tuple(fields["node_names"][i] for i in order)
    for name, rows in fields.get("x_by_type", {}).items():
        kind = dataset.node_type_names.index(name)
        members = np.flatnonzero(kinds == kind).tolist()
        rank = [members.index(i) for i in order if kinds[i] == kind]
        fields["x_by_type"] = fields["x_by_type"] | {name: rows[rank]}
    places = np.argsort(order)
    ids = "src", "dst", "node_idx", "train_idx", "val_idx", "test_idx", "train_splits"
    fields |= {name: places[fields[name]] for name in ids if name in fields}
    return type(dataset)(**fields), places


def make_multilabel_dataset():
    flags = np.eye(2, dtype=bool)[np.arange(54) % 2] | (np.arange(54) % 3 == 0)[:, None]
    return make_typed_dataset(y=np.full(54, -1), y_multilabel=flags)


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (make_dataset, HGNNConfig(**ONE)),
        (make_graph_dataset, GCNConfig(**ONE)),
        (make_graph_dataset, GCNConfig(**ONE, features="random")),  # drawn by number
        (make_relational_dataset, RGCNConfig(**ONE)),
        (make_multilabel_dataset, HGTConfig(**ONE, heads=2, features="none")),
        (make_typed_dataset, RGATConfig(**ONE, heads=2)),
    ],
)
def test_same_bits_whatever_the_numbers(tmp_path, rng, make, config):
    # Relations, types, classes and nodes are matched by their names, which checkpoints hold.
    dataset = with_names(make())
    trained = train(dataset, config).trained
    by_type = config.model in ("hgt", "rgat")
    assert trained.numbering == Numbering.of(dataset, by_type=by_type)
    save_checkpoint(tmp_path / "model", trained)
    trained = load_checkpoint(tmp_path / "model")
    expected = np.asarray(trained.predict(dataset))
    renumbered, places = shuffled(dataset, rng)
    np.testing.assert_array_equal(np.asarray(trained.predict(renumbered))[places], expected)
    renumbered, places = shuffled(dataset, rng, classes=False)
    assert trained.differences(renumbered) == ()
    for part, ids in trained.parts(dataset).items():
        np.testing.assert_array_equal(trained.parts(renumbered)[part], places[ids])


def make_named_dataset(**changes):
    names = tuple(f"node {i}" for i in range(54))
    return make_typed_dataset(**{"relation_names": ("r", "s"), "node_names": names} | changes)


@pytest.fixture(scope="module")
def named():
    """An untrained model of named types, one of which has embeddings of its nodes."""
    dataset = make_named_dataset()
    config = RGATConfig(**ONE)
    graph, x = model_inputs(dataset, config)
    return TrainedModel(
        make_model(config, graph, x, 2, 0),
        config,
        data=fingerprint(dataset),
        numbering=Numbering.of(dataset, by_type=True),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"relation_names": ("r", "new")},
            "'typed' has the relations 'new', which the model lacks, and lacks the relations 's'",
        ),
        (
            {"relation_names": ("r", "s", "t"), "num_relations": 3},
            "'typed' has the relations 't', which the model lacks$",
        ),
        (
            {"node_type_names": ("z", "b", "a")},
            "has the node types 'b', which the model lacks, and lacks the node types 'other'",
        ),
        ({"node_type": None, "node_type_names": None}, "lacks the node types 'z', 'other', 'a'$"),
        (
            {"node_names": tuple(f"node {i + (i >= 48)}" for i in range(54))},
            "has the nodes of type 'other' 'node 52', which .* lacks .* 'node 48'$",
        ),
    ],
)
def test_names_on_one_side_only(named, changes, message):
    with pytest.raises(ValueError, match=message):
        named.predict(make_named_dataset(x_by_type=None, **changes))


def test_nodes_with_features_may_be_others(named):
    # Embeddings are of known nodes, in any order.
    dataset = make_named_dataset()
    expected = np.asarray(named.predict(dataset))
    names = tuple(f"new {i}" for i in range(40)) + dataset.node_names[40:]
    np.testing.assert_array_equal(named.predict(make_named_dataset(node_names=names)), expected)


def test_nameless_entities_are_matched_by_number_with_a_warning(named):
    expected = np.asarray(named.predict(make_named_dataset()))
    bare = make_named_dataset(relation_names=None, node_names=None)
    np.testing.assert_array_equal(named.predict(bare), expected)  # the same data, by their sums
    changed = dataclasses.replace(bare, node_names=("same",) * 54, rel=bare.rel[::-1])
    message = "'typed' is not that .* its relations and nodes of type 'other' are taken by number"
    with pytest.warns(UserWarning, match=message):
        assert named.predict(changed).shape == (54, 2)


def test_learned_hyperedge_weights_belong_to_their_hyperedges():
    config = small(splits=1, epochs=1, learnable_hyperedge_weights=True)
    trained = train(make_dataset(), config).trained
    shifted = make_dataset(x=make_dataset().x + 1)
    assert trained.predict(shifted).shape == (40, 2)
    changed = dataclasses.replace(shifted, hyperedge_idx=11 - shifted.hyperedge_idx)
    message = "a weight for each hyperedge of 'tiny', and dataset 'tiny'"
    with pytest.raises(ValueError, match=message):
        trained.predict(changed)


def test_columns_are_found_by_their_names():
    # Columns in another order, values that no node has, and values that the model lacks.
    rng = np.random.default_rng(0)
    size = 30
    rows = {"age": rng.random(size), "=": rng.random(size)}
    towns = rng.choice(["Oslo", "Rome", "Wien"], size)
    names = ("age", "town=Oslo", "town=Rome", "town=Wien", "=")
    one_hot = [towns == name for name in ("Oslo", "Rome", "Wien")]
    data = GraphDataset(
        name="towns",
        num_nodes=size,
        src=np.arange(size),
        dst=(np.arange(size) + 1) % size,
        x=np.stack([rows["age"], *one_hot, rows["="]], 1),
        y=rng.integers(2, size=size),
        feature_names=names,
    )

    def select(columns):
        columns_names = tuple(names[i] for i in columns)
        return dataclasses.replace(data, x=data.x[:, columns], feature_names=columns_names)

    options = {"splits": 1, "feature_normalization": "standardize", "direction": "directed"}
    trained = train(data, GCNConfig(**SMALL | options)).trained
    np.testing.assert_array_equal(trained.predict(select([4, 2, 0, 3, 1])), trained.predict(data))
    fewer = select([0, 2, 3, 4])  # nobody is in Oslo
    nobody = dataclasses.replace(data, x=data.x * (np.arange(5) != 1))
    np.testing.assert_array_equal(trained.predict(fewer), trained.predict(nobody))
    strange = dataclasses.replace(fewer, feature_names=("age", "town=Bern", "town=Wien", "="))
    with pytest.warns(UserWarning, match="do not count: town=Bern"):
        trained.predict(strange)
    with pytest.raises(ValueError, match="lacks the features 'age' of the model"):
        trained.predict(select([1, 2, 3, 4]))


# --- Plots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 23])
def test_plot(tmp_path, result, epochs):
    names = ("train_loss", "train_accuracy", "valid_accuracy", "test_accuracy")
    cut = {name: getattr(result.run, name)[:, :epochs] for name in names}
    shown = dataclasses.replace(result, run=dataclasses.replace(result.run, **cut))
    plot_learning_curves(shown, tmp_path / "new" / "curves.png", title="HGNN on tiny")
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_plot_shows_all_of_the_accuracies(result, monkeypatch):
    figures = []
    monkeypatch.setattr("flax_layers.training.plot._save", lambda figure, _: figures.append(figure))
    perfect = np.ones_like(result.run.test_accuracy)
    curves = {"train_accuracy": perfect, "valid_accuracy": perfect, "test_accuracy": perfect / 2}
    shown = dataclasses.replace(result, run=dataclasses.replace(result.run, **curves))
    plot_learning_curves(shown, "curves.png", title="HGNN on tiny")
    assert figures[0].axes[1].get_ylim() == (48, 100)
