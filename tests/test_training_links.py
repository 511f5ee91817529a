"""Training for link prediction: what is learned, its batches, and checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from flax_layers import DistMult, LinkRanking, link_metrics
from flax_layers.training import (
    CompGCNLinkConfig,
    GCNConfig,
    LinkReport,
    LinkResult,
    RGCNLinkConfig,
    TrainedLinks,
    load_checkpoint,
    save_checkpoint,
    train_links,
)
from flax_layers.training.links import _Batches, _loss, _Queries, link_graph, make_link_model
from jax_gnn.datasets import GraphDataset, RelationalDataset

pytestmark = pytest.mark.usefixtures("strict_promotion")

NODES, RELATIONS = 24, 3
SMALL: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 40,
    "evaluate_every": 10,
    "embedding_features": 16,
    "hidden_features": 16,
    "learning_rate": 0.02,
}


def make_dataset(**changes: Any) -> RelationalDataset:
    """The nodes are four groups of six; relation r leads from each node to all of the r-th next."""
    src, member, rel = (a.ravel() for a in np.indices((NODES, 6, RELATIONS)))
    dst = (6 * (src // 6 + rel + 1) + member) % NODES
    order = np.random.default_rng(0).permutation(src.size)
    parts = np.split(order, [330, 380])
    names = "train_edges", "val_edges", "test_edges"
    dataset = RelationalDataset(
        name="groups",
        **{"num_nodes": NODES, "num_relations": RELATIONS, "src": src, "rel": rel, "dst": dst},
        y=np.full(NODES, -1),
        node_names=tuple(f"node {i}" for i in range(NODES)),
        relation_names=("none", "one", "two"),
        **dict(zip(names, parts, strict=True)),
    )
    return dataclasses.replace(dataset, **changes)


@pytest.fixture(scope="module")
def reports() -> list[LinkReport]:
    return []


@pytest.fixture(scope="module")
def result(reports: list[LinkReport]) -> LinkResult:
    return train_links(make_dataset(), CompGCNLinkConfig(**SMALL), on_epoch=reports.append)


def test_learns(result: LinkResult, reports: list[LinkReport]) -> None:
    assert result.losses.shape == result.step_seconds.shape == (30,)
    assert result.losses[-1] < result.losses[0]
    assert result.epochs == (10, 20, 30)
    assert result.test["mrr"] > 0.45  # of nodes at random, 0.19
    assert [report.epoch for report in reports] == [*range(30)]
    assert [r.valid for r in reports if r.valid is not None] == [*result.valid]
    mrr = [metrics["mrr"] for metrics in result.valid]
    assert result.trained.evaluate(make_dataset(), "val")["mrr"] == pytest.approx(max(mrr))
    assert mrr[result.best] == max(mrr)


@pytest.mark.parametrize(
    "config",
    [
        RGCNLinkConfig(**SMALL, num_blocks=4),
        RGCNLinkConfig(**SMALL, num_bases=2, decoder="complex", loss="sigmoid"),
        CompGCNLinkConfig(**SMALL, composition="corr", loss="negatives", leave_out=True),
        CompGCNLinkConfig(**SMALL | {"hidden_features": 80}, composition="sub", decoder="conve"),
    ],
    ids=lambda config: f"{config.model}-{config.decoder}-{config.loss}",
)
def test_other_settings_learn(config: Any) -> None:
    epochs = 3 if config.decoder == "conve" else 30
    result = train_links(make_dataset(), dataclasses.replace(config, epochs=epochs))
    assert result.losses[-1] < result.losses[0]
    if config.decoder != "conve":
        assert result.test["mrr"] > 0.4  # of nodes at random, 0.19


def test_same_seed_same_model(result: LinkResult) -> None:
    config = CompGCNLinkConfig(**SMALL | {"epochs": 2})
    first, again = (train_links(make_dataset(), config) for _ in range(2))
    np.testing.assert_array_equal(first.losses, again.losses)
    np.testing.assert_array_equal(first.losses, result.losses[:2])


def test_batches_ask_each_query_once() -> None:
    graph = link_graph(make_dataset())
    queries = _Queries.of(graph)
    batches = queries.epoch(np.random.default_rng(0), 40)
    asked = batches.queries[batches.queries >= 0]
    assert sorted(asked) == [*range(graph.num_src_pairs or 0)]
    found = []
    for asked, rows, objects in zip(*batches, strict=True):
        given = rows >= 0
        query = asked[rows[given]]
        found += zip(
            *(queries.subjects[query], queries.relations[query], objects[given]), strict=True
        )
    columns = graph.nodes.cols, graph.edge_types, graph.nodes.rows
    edges = zip(*(column.tolist() for column in columns), strict=True)
    assert sorted(found) == sorted(edges)


def test_edges_that_are_asked_for_are_left_out() -> None:
    """Then the loss is that of a graph without them, and of their inverses."""
    dataset = make_dataset()
    config = CompGCNLinkConfig(**SMALL, leave_out=True, dropout_rate=0.0)
    graph = link_graph(dataset)
    queries = _Queries.of(graph)
    model = make_link_model(config, NODES, RELATIONS)
    weight = model.encoder.convolutions[0].factors(graph)
    number = 7
    subject, relation = queries.subjects[number], queries.relations[number]
    answers = queries.answers[queries.starts[number] : queries.starts[number + 1]]
    batch = _Batches(np.array([number, -1]), np.zeros(len(answers), int), answers)
    src, rel, dst = (np.asarray(a) for a in (graph.nodes.cols, graph.edge_types, graph.nodes.rows))
    inverse = (relation + RELATIONS) % (2 * RELATIONS)
    gone = (src == subject) & (rel == relation) | (dst == subject) & (rel == inverse)
    assert gone.sum() == 2 * len(answers)
    key = jax.random.key(0)
    found = _loss(config, model, (graph, queries, weight), batch, key)
    kept = np.where(gone, 0, weight)
    whole = dataclasses.replace(config, leave_out=False)
    expected = _loss(whole, model, (graph, queries, kept), batch, key)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
    assert found != _loss(whole, model, (graph, queries, weight), batch, key)


def test_ranks_are_filtered_by_all_edges(result: LinkResult) -> None:
    dataset = make_dataset()
    model = result.trained.model
    nodes, relations = model.encode(link_graph(dataset), deterministic=True)
    edges = dataset.test_edges
    assert edges is not None
    facts = dataset.src[edges], dataset.rel[edges], dataset.dst[edges]
    ranking = LinkRanking.from_facts(
        *facts,
        (dataset.src, dataset.rel, dataset.dst),
        num_nodes=NODES,
        num_relations=RELATIONS,
    )
    expected = ranking.ranks(DistMult(), nodes, relations)
    np.testing.assert_array_equal(result.trained.ranks(dataset), expected)
    assert link_metrics(expected) == pytest.approx(result.test)


def test_checkpoint(result: LinkResult, tmp_path: Any) -> None:
    save_checkpoint(tmp_path / "model", result.trained)
    loaded = load_checkpoint(tmp_path / "model")
    assert isinstance(loaded, TrainedLinks)
    assert (loaded.config, loaded.data) == (result.trained.config, result.trained.data)
    np.testing.assert_array_equal(
        loaded.ranks(make_dataset()), result.trained.ranks(make_dataset())
    )
    dataset = make_dataset()
    split = make_dataset(test_edges=dataset.test_edges[:5])  # type: ignore[index]
    assert loaded.data.differences(type(loaded.data)(*loaded.data)) == ()
    assert loaded.ranks(split).shape == (5, 2)
    with pytest.raises(ValueError, match="has 25 nodes and 3 relations, the model 24 and 3"):
        loaded.ranks(make_dataset(num_nodes=25, y=np.full(25, -1), node_names=None))
    (tmp_path / "model" / "config" / "metadata").write_text("{}")
    with pytest.raises(ValueError, match="holds no checkpoint of a model: config/metadata is not"):
        load_checkpoint(tmp_path / "model")


def test_ranks_go_by_name(result: LinkResult, rng: np.random.Generator) -> None:
    """The same bits whatever the numbers of nodes and relations."""
    dataset, trained = make_dataset(), result.trained
    assert trained.numbering is not None and dataset.node_names and dataset.relation_names
    nodes, relations = rng.permutation(NODES), rng.permutation(RELATIONS)
    names = [np.argsort(nodes), np.argsort(relations)]
    changes: dict[str, Any] = {
        **{"src": nodes[dataset.src], "dst": nodes[dataset.dst], "rel": relations[dataset.rel]},
        "node_names": tuple(dataset.node_names[i] for i in names[0]),
        "relation_names": tuple(dataset.relation_names[i] for i in names[1]),
    }
    other = dataclasses.replace(dataset, **changes)

    def by_name(data: RelationalDataset) -> dict[Any, list[float]]:
        edges, ranks = data.test_edges, np.asarray(trained.ranks(data))
        assert data.node_names and data.relation_names and edges is not None
        ends = [[data.node_names[i] for i in ids[edges]] for ids in (data.src, data.dst)]
        kinds = [data.relation_names[i] for i in data.rel[edges]]
        return dict(zip(zip(*ends, kinds, strict=True), ranks.tolist(), strict=True))

    assert by_name(other) == by_name(dataset)
    assert trained.differences(other) == ()
    for field, name, message in (
        (
            "node_names",
            "new",
            "'groups' has the nodes 'new', which the model lacks, and lacks the ",
        ),
        (
            "relation_names",
            "new",
            "'groups' has the relations 'new', which the model lacks, and la",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            trained.ranks(make_dataset(**{field: (name, *getattr(dataset, field)[1:])}))
    bare = dataclasses.replace(dataset, node_names=None, rel=(dataset.rel + 1) % RELATIONS)
    with pytest.warns(UserWarning, match="'groups' is not that .* its nodes are taken by number"):
        trained.ranks(bare)


def test_what_cannot_be_trained() -> None:
    with pytest.raises(TypeError, match="config must be such as RGCNLinkConfig, got GCNConfig"):
        train_links(make_dataset(), GCNConfig())  # type: ignore[arg-type]
    ids = np.zeros(1, int)
    graph = GraphDataset(name="g", num_nodes=1, y=ids, src=ids, dst=ids)
    config = CompGCNLinkConfig()
    with pytest.raises(TypeError, match="links are of a RelationalDataset, got a GraphDataset"):
        train_links(graph, config)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataset 'groups' has no test_edges to predict links"):
        train_links(make_dataset(test_edges=None), config)
    with pytest.raises(ValueError, match=r"decoder must be one of .* got 'dot'"):
        CompGCNLinkConfig(decoder="dot")  # type: ignore[arg-type]


def test_model_is_in_evaluation_mode(result: LinkResult) -> None:
    model = result.trained.model
    assert isinstance(model.dropout, nnx.Dropout)
    graph = link_graph(make_dataset())
    np.testing.assert_array_equal(
        model.encode(graph)[0], model.encode(graph, deterministic=True)[0]
    )
