"""Training for link prediction: losses, batches, ranks, queries, checkpoints."""

from __future__ import annotations

import dataclasses

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
    RGCNLinkConfig,
    SAGELinkConfig,
    TrainedLinks,
    load_checkpoint,
    save_checkpoint,
    train_links,
)
from flax_layers.training.data import Numbering
from flax_layers.training.link_models import make_link_model
from flax_layers.training.link_tasks import _Batches, _loss, _Queries, link_graph
from jax_gnn.datasets import GraphDataset, RelationalDataset

pytestmark = pytest.mark.usefixtures("strict_promotion")

NODES, RELATIONS = 24, 3
SMALL = {
    "epochs": 30,
    "batch_size": 40,
    "evaluate_every": 10,
    "embedding_features": 16,
    "hidden_features": 16,
    "learning_rate": 0.02,
}


def make_dataset(**changes):
    """Four groups of six nodes; relation r leads from each node to all of the (r + 1)-th next."""
    src, member, rel = (a.ravel() for a in np.indices((NODES, 6, RELATIONS)))
    dst = (6 * (src // 6 + rel + 1) + member) % NODES
    order = np.random.default_rng(0).permutation(src.size)
    parts = np.split(order, [330, 380])
    names = "train_edges", "val_edges", "test_edges"
    dataset = RelationalDataset(
        name="groups",
        num_nodes=NODES,
        num_relations=RELATIONS,
        src=src,
        rel=rel,
        dst=dst,
        y=np.full(NODES, -1),
        node_names=tuple(f"node {i}" for i in range(NODES)),
        relation_names=("none", "one", "two"),
        **dict(zip(names, parts, strict=True)),
    )
    return dataclasses.replace(dataset, **changes)


@pytest.fixture(scope="module")
def reports():
    return []


@pytest.fixture(scope="module")
def result(reports):
    return train_links(make_dataset(), CompGCNLinkConfig(**SMALL), on_epoch=reports.append)


def test_learns(result, reports):
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
def test_other_settings_learn(config):
    epochs = 3 if config.decoder == "conve" else 30
    result = train_links(make_dataset(), dataclasses.replace(config, epochs=epochs))
    assert result.losses[-1] < result.losses[0]
    if config.decoder != "conve":
        assert result.test["mrr"] > 0.4  # of nodes at random, 0.19


def test_batches_ask_each_query_once():
    graph = link_graph(make_dataset())
    queries = _Queries.of(graph)
    batches = queries.epoch(np.random.default_rng(0), 40)
    assert sorted(batches.queries[batches.queries >= 0]) == [*range(graph.num_src_pairs)]
    facts = []
    for ids, rows, objects in zip(*batches, strict=True):
        valid = rows >= 0
        query = ids[rows[valid]]
        columns = queries.subjects[query], queries.relations[query], objects[valid]
        facts += zip(*columns, strict=True)
    columns = graph.nodes.cols, graph.edge_types, graph.nodes.rows
    edges = zip(*(column.tolist() for column in columns), strict=True)
    assert sorted(facts) == sorted(edges)


def test_edges_that_are_asked_for_are_left_out():
    # The loss is that of a graph without the answers of the batch, and their inverses.
    dataset = make_dataset()
    config = CompGCNLinkConfig(**SMALL, leave_out=True, dropout_rate=0.0)
    graph = link_graph(dataset)
    queries = _Queries.of(graph)
    model = make_link_model(config, NODES, RELATIONS)
    weight = model.encoder.convolutions[0].factors(graph)
    # The first query, as whose number padding is read; its answers and their inverses are hidden.
    number = 0
    subject, relation = queries.subjects[number], queries.relations[number]
    answers = queries.answers[queries.starts[number] : queries.starts[number + 1]]
    batch = _Batches(np.array([number, -1]), np.zeros(len(answers), int), answers)
    src, rel, dst = (np.asarray(a) for a in (graph.nodes.cols, graph.edge_types, graph.nodes.rows))
    inverse = (relation + RELATIONS) % (2 * RELATIONS)
    excluded = (src == subject) & (rel == relation) | (dst == subject) & (rel == inverse)
    assert excluded.sum() == 2 * len(answers)
    key = jax.random.key(0)
    loss = _loss(config, model, (graph, queries, weight), batch, key)
    remaining = np.where(excluded, 0, weight)
    full = dataclasses.replace(config, leave_out=False)
    expected = _loss(full, model, (graph, queries, remaining), batch, key)
    np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-5)
    assert loss != _loss(full, model, (graph, queries, weight), batch, key)


def test_ranks_are_filtered_by_all_edges(result):
    dataset = make_dataset()
    model = result.trained.model
    nodes, relations = model.encode(link_graph(dataset), deterministic=True)
    facts = dataset.src, dataset.rel, dataset.dst
    ranking = LinkRanking.from_facts(
        *(column[dataset.test_edges] for column in facts),
        facts,
        num_nodes=NODES,
        num_relations=RELATIONS,
    )
    expected = ranking.ranks(DistMult(), nodes, relations)
    np.testing.assert_array_equal(result.trained.ranks(dataset), expected)
    assert link_metrics(expected) == pytest.approx(result.test)


def test_checkpoint(result, tmp_path):
    save_checkpoint(tmp_path / "model", result.trained)
    loaded = load_checkpoint(tmp_path / "model")
    assert isinstance(loaded, TrainedLinks)
    assert (loaded.config, loaded.data) == (result.trained.config, result.trained.data)
    dataset = make_dataset()
    np.testing.assert_array_equal(loaded.ranks(dataset), result.trained.ranks(dataset))
    split = make_dataset(test_edges=dataset.test_edges[:5])
    assert loaded.data.differences(type(loaded.data)(*loaded.data)) == ()
    assert loaded.ranks(split).shape == (5, 2)
    with pytest.raises(ValueError, match="has 25 nodes and 3 relations, the model 24 and 3"):
        loaded.ranks(make_dataset(num_nodes=25, y=np.full(25, -1), node_names=None))


def test_ranks_go_by_name(result, rng):
    # The same bits whatever the numbers of nodes and relations.
    dataset, trained = make_dataset(), result.trained
    # Numbers change, and names with them.
    nodes, relations = rng.permutation(NODES), rng.permutation(RELATIONS)
    names = [np.argsort(nodes), np.argsort(relations)]
    renumbered = dataclasses.replace(
        dataset,
        src=nodes[dataset.src],
        dst=nodes[dataset.dst],
        rel=relations[dataset.rel],
        node_names=tuple(dataset.node_names[i] for i in names[0]),
        relation_names=tuple(dataset.relation_names[i] for i in names[1]),
    )

    def by_name(data):
        edges, ranks = data.test_edges, np.asarray(trained.ranks(data))
        nodes = [[data.node_names[i] for i in ids[edges]] for ids in (data.src, data.dst)]
        kinds = [data.relation_names[i] for i in data.rel[edges]]
        return dict(zip(zip(*nodes, kinds, strict=True), ranks.tolist(), strict=True))

    assert by_name(renumbered) == by_name(dataset)
    assert trained.differences(renumbered) == ()
    for field, plural in (("node_names", "nodes"), ("relation_names", "relations")):
        message = f"'groups' has the {plural} 'new', which the model lacks, and lacks the "
        with pytest.raises(ValueError, match=message):
            trained.ranks(make_dataset(**{field: ("new", *getattr(dataset, field)[1:])}))
    bare = dataclasses.replace(dataset, node_names=None, rel=(dataset.rel + 1) % RELATIONS)
    with pytest.warns(UserWarning, match="'groups' is not that .* its nodes are taken by number"):
        trained.ranks(bare)


# --- Queries -------------------------------------------------------------------------------------


def test_queries_give_the_ranks(result):
    # A rank is the place of the answer among the nodes that are not known, in both directions.
    dataset, trained = make_dataset(), result.trained
    columns = dataset.src, dataset.rel, dataset.dst
    facts = {*zip(*(column.tolist() for column in columns), strict=True)}
    edges, all_ranks = dataset.test_edges[:12], np.asarray(trained.ranks(dataset))[:12]
    for edge, ranks in zip(edges, all_ranks, strict=True):
        s, r, d = (int(column[edge]) for column in columns)
        objects = {dst for src, rel, dst in facts if (src, rel) == (s, r)}
        subjects = {src for src, rel, dst in facts if (rel, dst) == (r, d)}
        for rank, answer, query, facts_of_query in (
            (ranks[0], d, {"src": s}, objects),
            (ranks[1], s, {"dst": d}, subjects),
        ):
            answers = trained.query(**query, rel=r, k=100, filtered=False)
            assert len(answers.nodes) == NODES and (np.diff(answers.scores) <= 0).all()
            scores = dict(zip(answers.nodes.tolist(), answers.scores.tolist(), strict=True))
            rivals = [score for node, score in scores.items() if node not in facts_of_query]
            better = sum(score > scores[answer] for score in rivals)
            ties = sum(score == scores[answer] for score in rivals)
            assert rank == pytest.approx(1 + better + ties / 2)
            new = trained.query(**query, rel=r, k=100)
            assert {*new.nodes.tolist()} == {*range(NODES)} - facts_of_query


def test_queries_go_by_name(result, tmp_path):
    trained = result.trained
    save_checkpoint(tmp_path / "model", trained)
    loaded = load_checkpoint(tmp_path / "model")
    by_number = trained.query(src=3, rel=1, k=4)
    assert by_number.names == tuple(f"node {i}" for i in by_number.nodes)
    for answers in (
        loaded.query(src="node 3", rel="one", k=4),
        loaded.ask("node 3,one,?", k=4),
        loaded.ask("3,1,?", k=4),
        loaded.ask(' node 3 , "one" , ? ', k=4),
    ):
        assert answers.names == by_number.names
        np.testing.assert_array_equal(answers.scores, by_number.scores)
    sources, expected = loaded.ask("?,two,node 5"), trained.query(rel="two", dst="node 5")
    np.testing.assert_array_equal(sources.nodes, expected.nodes)
    old = dataclasses.replace(trained, index=None)
    bare = dataclasses.replace(trained, numbering=Numbering())
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
        (ValueError, lambda: old.query(src=0, rel=0), "the model has no index"),
        (ValueError, lambda: bare.query(src="node 3", rel=1), "src must be a number from 0 to 23"),
        (ValueError, lambda: loaded.ask("node 3,?"), r"expected SRC,REL,\? or \?,REL,DST, got 'no"),
        (ValueError, lambda: loaded.ask("?,one,?"), r"expected SRC,REL,\?"),
        (ValueError, lambda: loaded.ask("?,?,node 3"), r"expected SRC,REL,\?"),
        (ValueError, lambda: loaded.ask("", 1), "got ''"),
    ):
        with pytest.raises(error, match=message):
            ask()


# --- Splits at random ----------------------------------------------------------------------------

WITHOUT_SPLIT = dict.fromkeys(("train_edges", "val_edges", "test_edges"))


def test_random_split(rng):
    # Predictions split as training did, whatever the numbers of nodes and relations are.
    dataset = make_dataset(**WITHOUT_SPLIT)
    config = CompGCNLinkConfig(**SMALL | {"epochs": 1}, valid_share=0.2, test_share=0.1)
    result = train_links(dataset, config)
    trained = result.trained
    split = trained.with_split(dataset)
    assert [len(split.val_edges), len(split.test_edges)] == [86, 44]  # pairs of inverses
    assert trained.evaluate(dataset) == trained.evaluate(split) == result.test
    assert trained.differences(dataset) == ()
    order = rng.permutation(NODES)
    renumbered = dataclasses.replace(
        dataset,
        src=np.argsort(order)[dataset.src],
        dst=np.argsort(order)[dataset.dst],
        node_names=tuple(dataset.node_names[i] for i in order),
    )
    assert trained.evaluate(renumbered) == pytest.approx(result.test)
    assert trained.differences(renumbered) == ()


# --- Edges without relations ---------------------------------------------------------------------


def make_graph(**changes):
    """Edges within groups of eight, which the features show."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(4), 8)
    src, dst = np.nonzero((group[:, None] == group) & np.triu(rng.random((32, 32)) < 0.8, 1))
    fields = {
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
def test_autoencoders_learn(config, tmp_path):
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
    answers = loaded.query(src="node 0", k=len(names), filtered=False)
    assert len({*answers.names} & {*names, "node 0"}) >= 6
    new = loaded.ask("?,node 0", k=32)
    neighbours = {*dataset.src[dataset.dst == 0].tolist(), 0}
    assert {*new.nodes.tolist()} == {*range(32)} - neighbours
    with pytest.raises(TypeError, match="rel: edges have none, got 0"):
        loaded.query(src=0, rel=0)
    with pytest.raises(TypeError, match="ranks are of edges with relations"):
        loaded.ranks(dataset)
    with pytest.raises(ValueError, match="'groups' has 3 features, the model takes 4"):
        loaded.evaluate(make_graph(x=np.ones((32, 3))))


def test_autoencoder_on_other_numbers(rng):
    # Test edges are the same, as nodes have names.
    dataset = make_graph()
    result = train_links(dataset, GCNLinkConfig(epochs=1, valid_share=0.1))
    order = rng.permutation(32)
    places = np.argsort(order)
    renumbered = make_graph(
        src=places[dataset.src],
        dst=places[dataset.dst],
        x=dataset.x[order],
        node_names=tuple(dataset.node_names[i] for i in order),
    )
    assert result.trained.differences(renumbered) == ()
    before, after = result.trained.table(dataset), result.trained.table(renumbered)
    for column in ("src", "dst"):
        np.testing.assert_array_equal(order[after[column]], before[column])
    np.testing.assert_array_equal(after["probability"], before["probability"])


@pytest.mark.parametrize("config", [CompGCNLinkConfig, GCNLinkConfig])
def test_resumed_runs_have_the_same_bits(config, tmp_path, rng):
    # Wherever they were interrupted, twice.
    relational = config is CompGCNLinkConfig
    dataset = make_dataset() if relational else make_graph()
    small = {name: SMALL[name] for name in ("embedding_features", "hidden_features")}
    small |= {"batch_size": 40} if relational else {}
    settings = config(**small, epochs=7, evaluate_every=3)
    expected, file = train_links(dataset, settings), tmp_path / "state.npz"
    stops = np.sort(rng.choice(7, 2, replace=False))
    for stop in stops:

        def halt(report, stop=stop):
            if report.epoch == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_links(dataset, settings, on_epoch=halt, state=file, resume=True)
    with pytest.raises(ValueError, match="has the state of an interrupted training"):
        train_links(dataset, settings, state=file)
    with pytest.raises(ValueError, match=r"other settings: seed=0 \(now 1\)$"):
        train_links(dataset, dataclasses.replace(settings, seed=1), state=file, resume=True)
    reports = []
    resumed = train_links(dataset, settings, on_epoch=reports.append, state=file, resume=True)
    assert len(reports) == 6 - stops[-1] and not file.exists()
    np.testing.assert_array_equal(resumed.losses, expected.losses)
    for field in ("epochs", "valid", "test"):
        assert getattr(resumed, field) == getattr(expected, field)
    assert resumed.step_seconds.shape == (7,)


def test_what_cannot_be_trained():
    ids = np.zeros(1, int)
    graph = GraphDataset(name="g", num_nodes=1, y=ids, src=ids, dst=ids)
    relational, edges = CompGCNLinkConfig(), GCNLinkConfig()
    kind = "config must be such as GCNLinkConfig or RGCNLinkConfig, got GCNConfig"
    for error, dataset, config, message in (
        (TypeError, make_dataset(), GCNConfig(), kind),
        (TypeError, graph, relational, "compgcn-link takes a RelationalDataset, got a GraphDatas"),
        (ValueError, make_dataset(test_edges=None), relational, "'groups' has no test_edges to p"),
        (ValueError, make_graph(x=None), edges, "'groups' has no node features; .*--features ran"),
        (
            ValueError,
            make_graph(),
            GCNLinkConfig(valid_share=0.001),
            "'groups' cannot be split: graph has 86 edges, of which v",
        ),
    ):
        with pytest.raises(error, match=message):
            train_links(dataset, config)
    with pytest.raises(ValueError, match=r"valid_share must be a number between 0 and 1, got 1.5"):
        GCNLinkConfig(valid_share=1.5)
    with pytest.raises(ValueError, match=r"decoder must be one of .* got 'dot'"):
        CompGCNLinkConfig(decoder="dot")


def test_model_is_in_evaluation_mode(result):
    model = result.trained.model
    assert isinstance(model.dropout, nnx.Dropout)
    graph = link_graph(make_dataset())
    nodes, expected = model.encode(graph)[0], model.encode(graph, deterministic=True)[0]
    np.testing.assert_array_equal(nodes, expected)
