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
    GATLinkConfig,
    GCNConfig,
    GCNLinkConfig,
    LinkReport,
    LinkResult,
    RGCNLinkConfig,
    SAGELinkConfig,
    TrainedLinks,
    load_checkpoint,
    save_checkpoint,
    train_links,
)
from flax_layers.training.link_models import make_link_model
from flax_layers.training.link_tasks import _Batches, _loss, _Queries, link_graph
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


# --- Queries -------------------------------------------------------------------------------------


def test_queries_give_the_ranks(result: LinkResult) -> None:
    """Of each test edge, both ways: the place of the answer among those that are not known."""
    dataset, trained = make_dataset(), result.trained
    columns = dataset.src, dataset.rel, dataset.dst
    facts = {*zip(*(column.tolist() for column in columns), strict=True)}
    assert dataset.test_edges is not None
    for edge, ranks in zip(
        dataset.test_edges[:12], np.asarray(trained.ranks(dataset))[:12], strict=True
    ):
        s, r, d = (int(column[edge]) for column in columns)
        for rank, answer, given in ((ranks[0], d, {"src": s}), (ranks[1], s, {"dst": d})):
            found = trained.query(**given, rel=r, k=100, filtered=False)  # type: ignore[arg-type]
            assert len(found.nodes) == NODES and (np.diff(found.scores) <= 0).all()
            known = {o for _, q, o in facts if (_, q) == (s, r)}
            if "dst" in given:
                known = {o for o, q, end in facts if (q, end) == (r, d)}
            place = dict(zip(found.nodes.tolist(), found.scores.tolist(), strict=True))
            others = [score for node, score in place.items() if node not in known]
            better = sum(score > place[answer] for score in others)
            ties = sum(score == place[answer] for score in others)
            assert rank == pytest.approx(1 + better + ties / 2)
            new = trained.query(**given, rel=r, k=100)  # type: ignore[arg-type]
            assert {*new.nodes.tolist()} == {*range(NODES)} - known


def test_queries_go_by_name(result: LinkResult, tmp_path: Any) -> None:
    trained = result.trained
    save_checkpoint(tmp_path / "model", trained)
    loaded = load_checkpoint(tmp_path / "model")
    by_number = trained.query(src=3, rel=1, k=4)
    assert by_number.names == tuple(f"node {i}" for i in by_number.nodes)
    for found in (
        loaded.query(src="node 3", rel="one", k=4),
        loaded.ask("node 3,one,?", k=4),
        loaded.ask("3,1,?", k=4),
        loaded.ask(' node 3 , "one" , ? ', k=4),
    ):
        assert found.names == by_number.names
        np.testing.assert_array_equal(found.scores, by_number.scores)
    found, back = loaded.ask("?,two,node 5"), trained.query(rel="two", dst="node 5")
    np.testing.assert_array_equal(found.nodes, back.nodes)
    old = dataclasses.replace(trained, index=None)
    bare = dataclasses.replace(trained, numbering=None)
    assert bare.query(src=3, rel=1, k=4).names is None
    for error, ask, message in (
        (ValueError, lambda: loaded.query(src="nod 3", rel=1), "no node has the name 'nod 3'; clo"),
        (ValueError, lambda: loaded.query(src=NODES, rel=1), "src must be from 0 to 23, got 24"),
        (ValueError, lambda: loaded.query(src=0, rel=3), "rel must be from 0 to 2, got 3"),
        (TypeError, lambda: loaded.query(src=0.5, rel=1), "src must be a name or a number, got fl"),
        (TypeError, lambda: loaded.query(src=0), "rel: one must be given, got None"),
        (TypeError, lambda: loaded.query(rel=0), "one of src and dst must be given"),
        (TypeError, lambda: loaded.query(src=0, rel=0, dst=1), "one of src and dst must be given"),
        (ValueError, lambda: loaded.query(src=0, rel=0, k=0), "k must be positive, got 0"),
        (ValueError, lambda: old.query(src=0, rel=0), "the checkpoint is of an older version"),
        (ValueError, lambda: bare.query(src="node 3", rel=1), "src must be a number from 0 to 23"),
        (ValueError, lambda: loaded.ask("node 3,?"), r"expected SRC,REL,\? or \?,REL,DST, got 'no"),
        (ValueError, lambda: loaded.ask("?,one,?"), r"expected SRC,REL,\?"),
        (ValueError, lambda: loaded.ask("?,?,node 3"), r"expected SRC,REL,\?"),
        (ValueError, lambda: loaded.ask("", 1), "got ''"),
    ):
        with pytest.raises(error, match=message):
            ask()  # type: ignore[no-untyped-call]


# --- Splits at random ----------------------------------------------------------------------------

WITHOUT_SPLIT = dict.fromkeys(("train_edges", "val_edges", "test_edges"))


def test_random_split(rng: np.random.Generator) -> None:
    """Predictions split as training did, whatever the numbers of nodes and relations are."""
    dataset = make_dataset(**WITHOUT_SPLIT)
    config = CompGCNLinkConfig(**SMALL | {"epochs": 1}, valid_share=0.2, test_share=0.1)
    result = train_links(dataset, config)
    trained = result.trained
    split = trained.with_split(dataset)
    assert [len(split.val_edges), len(split.test_edges)] == [86, 44]  # pairs of inverses
    assert trained.evaluate(dataset) == trained.evaluate(split) == result.test
    assert trained.differences(dataset) == ()
    order = rng.permutation(NODES)
    assert dataset.node_names
    other = dataclasses.replace(
        dataset,
        src=np.argsort(order)[dataset.src],
        dst=np.argsort(order)[dataset.dst],
        node_names=tuple(dataset.node_names[i] for i in order),
    )
    assert trained.evaluate(other) == pytest.approx(result.test)
    assert trained.differences(other) == ()


# --- Edges without relations ---------------------------------------------------------------------


def make_graph(**changes: Any) -> GraphDataset:
    """Edges within groups of eight, of which features tell."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(4), 8)
    src, dst = np.nonzero((group[:, None] == group) & np.triu(rng.random((32, 32)) < 0.8, 1))
    fields: dict[str, Any] = {
        "name": "groups",
        "num_nodes": 32,
        "src": np.append(src, dst),
        "dst": np.append(dst, src),
        "x": np.eye(4)[group] + rng.normal(size=(32, 4)) / 10,
        "y": np.full(32, -1),
        "node_names": tuple(f"node {i}" for i in range(32)),
    }
    return GraphDataset(**fields | changes)


@pytest.mark.parametrize(
    "config",
    [
        GCNLinkConfig(epochs=60),
        GCNLinkConfig(epochs=60, variational=True),
        SAGELinkConfig(epochs=60),
        GATLinkConfig(epochs=60),
    ],
    ids=lambda config: f"{config.model}-{config.variational}",
)
def test_autoencoders_learn(config: Any, tmp_path: Any) -> None:
    dataset = make_graph()
    config = dataclasses.replace(config, valid_share=0.1)
    result = train_links(dataset, config)
    assert result.losses[-1] < result.losses[0] and result.best_by == "auc"
    assert f"test: auc={result.test['auc']:.4f}, " in repr(result)
    assert result.test["auc"] > 0.75  # of 8 edges and 8 pairs; by chance, 0.5
    save_checkpoint(tmp_path / "model", result.trained)
    loaded = load_checkpoint(tmp_path / "model")
    assert loaded.evaluate(dataset) == result.test
    assert loaded.evaluate(dataset, "val") == result.valid[result.best]
    names = [f"node {i}" for i in range(1, 8)]
    found = loaded.query(src="node 0", k=len(names), filtered=False)
    assert len({*found.names} & {*names, "node 0"}) >= 6
    new = loaded.ask("?,node 0", k=32)
    known = {*dataset.src[dataset.dst == 0].tolist(), 0}
    assert {*new.nodes.tolist()} == {*range(32)} - known
    with pytest.raises(TypeError, match="rel: edges have none, got 0"):
        loaded.query(src=0, rel=0)
    with pytest.raises(TypeError, match="ranks are of edges with relations"):
        loaded.ranks(dataset)
    with pytest.raises(ValueError, match="'groups' has 3 features, the model takes 4"):
        loaded.evaluate(make_graph(x=np.ones((32, 3))))


def test_autoencoder_on_other_numbers(rng: np.random.Generator) -> None:
    """Test edges are the same, as nodes have names."""
    dataset = make_graph()
    result = train_links(dataset, GCNLinkConfig(epochs=1, valid_share=0.1))
    order = rng.permutation(32)
    places = np.argsort(order)
    assert dataset.node_names and dataset.x is not None
    other = make_graph(
        src=places[dataset.src],
        dst=places[dataset.dst],
        x=dataset.x[order],
        node_names=tuple(dataset.node_names[i] for i in order),
    )
    assert result.trained.differences(other) == ()
    before, after = result.trained.table(dataset), result.trained.table(other)
    for end in ("src", "dst"):
        np.testing.assert_array_equal(order[after[end]], before[end])
    np.testing.assert_array_equal(after["probability"], before["probability"])


@pytest.mark.parametrize("config", [CompGCNLinkConfig, GCNLinkConfig])
def test_resumed_runs_have_the_same_bits(
    config: Any, tmp_path: Any, rng: np.random.Generator
) -> None:
    """Wherever they were interrupted, twice."""
    relational = config is CompGCNLinkConfig
    dataset: Any = make_dataset() if relational else make_graph()
    small = {name: SMALL[name] for name in ("embedding_features", "hidden_features")}
    small |= {"batch_size": 40} if relational else {}
    given = config(**small, epochs=7, evaluate_every=3)
    want, file = train_links(dataset, given), tmp_path / "state.npz"
    stops = np.sort(rng.choice(7, 2, replace=False))
    for stop in stops:

        def halt(report: LinkReport, stop: int = stop) -> None:
            if report.epoch == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_links(dataset, given, on_epoch=halt, state=file, resume=True)
    with pytest.raises(ValueError, match="has the state of an interrupted training"):
        train_links(dataset, given, state=file)
    with pytest.raises(ValueError, match=r"other settings: seed=0 \(now 1\)$"):
        train_links(dataset, dataclasses.replace(given, seed=1), state=file, resume=True)
    reports: list[LinkReport] = []
    found = train_links(dataset, given, on_epoch=reports.append, state=file, resume=True)
    assert len(reports) == 6 - stops[-1] and not file.exists()
    np.testing.assert_array_equal(found.losses, want.losses)
    assert (found.epochs, found.valid, found.test) == (want.epochs, want.valid, want.test)
    assert found.step_seconds.shape == (7,)


def test_what_cannot_be_trained() -> None:
    with pytest.raises(
        TypeError, match="config must be such as GCNLinkConfig or RGCNLinkConfig, got GCNConfig"
    ):
        train_links(make_dataset(), GCNConfig())  # type: ignore[arg-type]
    ids = np.zeros(1, int)
    graph = GraphDataset(name="g", num_nodes=1, y=ids, src=ids, dst=ids)
    config = CompGCNLinkConfig()
    with pytest.raises(
        TypeError, match="compgcn-link takes a RelationalDataset, got a GraphDataset"
    ):
        train_links(graph, config)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataset 'groups' has no test_edges to predict links"):
        train_links(make_dataset(test_edges=None), config)
    with pytest.raises(ValueError, match=r"'groups' has no node features; .*--features random"):
        train_links(make_graph(x=None), GCNLinkConfig())
    with pytest.raises(
        ValueError, match="'groups' cannot be split: graph has 86 edges, of which v"
    ):
        train_links(make_graph(), GCNLinkConfig(valid_share=0.001))
    with pytest.raises(ValueError, match=r"valid_share must be a number between 0 and 1, got 1.5"):
        GCNLinkConfig(valid_share=1.5)
    with pytest.raises(ValueError, match=r"decoder must be one of .* got 'dot'"):
        CompGCNLinkConfig(decoder="dot")  # type: ignore[arg-type]


def test_model_is_in_evaluation_mode(result: LinkResult) -> None:
    model = result.trained.model
    assert isinstance(model.dropout, nnx.Dropout)
    graph = link_graph(make_dataset())
    np.testing.assert_array_equal(
        model.encode(graph)[0], model.encode(graph, deterministic=True)[0]
    )
