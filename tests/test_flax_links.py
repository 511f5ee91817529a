"""Decoders of edges, losses, and filtered ranks, compared with slow references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_cases import double
from op_spec import strict

import flax_layers
from flax_layers import (
    RGCN,
    CompGCN,
    ComplEx,
    ConvE,
    DistMult,
    LinkPredictor,
    LinkRanking,
    link_metrics,
    negative_sampling_loss,
    one_vs_all_loss,
)
from jax_gnn import RelationalGraph

pytestmark = pytest.mark.usefixtures("exact_products")

NODES, RELATIONS, FEATURES = 11, 3, 6


def test_decoders(rng):
    s, r, o = (rng.normal(size=(4, FEATURES)) for _ in range(3))
    scores = np.sum(np.asarray(DistMult()(s, r)) * o, 1)
    np.testing.assert_allclose(scores, (s * r * o).sum(1), rtol=1e-6, atol=1e-5)
    # The first half is real, the second imaginary.
    a, b, c = (x[:, :3] + 1j * x[:, 3:] for x in (s, r, o))
    scores = np.sum(np.asarray(ComplEx()(jnp.asarray(s), jnp.asarray(r))) * o, 1)
    np.testing.assert_allclose(scores, (a * b * c.conj()).sum(1).real, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="features must be even, real and imaginary, got 5"):
        ComplEx()(jnp.ones(5), jnp.ones(5))


def test_conve(rng):
    decoder = ConvE(12, height=3, filters=2, kernel_size=3, rngs=nnx.Rngs(0))
    s, r = (rng.normal(size=(5, 12)).astype("f") for _ in range(2))
    image = np.concatenate([double(s).reshape(5, 3, 4), double(r).reshape(5, 3, 4)], 1)
    kernel = double(decoder.convolution.kernel)[:, :, 0]
    y = np.zeros((5, 4, 2, 2))
    # A convolution without padding.
    for i, j in np.ndindex(4, 2):
        y[:, i, j] = np.einsum("bij,ijf->bf", image[:, i : i + 3, j : j + 3], kernel)

    def layer_norm(y):
        return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)

    y = np.maximum(layer_norm(y), 0).reshape(5, -1)
    y = y @ double(decoder.output.kernel) + double(decoder.output.bias)
    queries = decoder(s, r, deterministic=True)
    # Flax's normalisation takes a variance as a difference of two means, in float32.
    np.testing.assert_allclose(queries, np.maximum(layer_norm(y), 0), rtol=1e-2, atol=1e-2)
    dropped = decoder(s, r, deterministic=False, rngs=nnx.Rngs(dropout=1))
    assert not np.array_equal(queries, dropped)
    with pytest.raises(ValueError, match="height must divide features = 12 into an image of at"):
        ConvE(12, height=5, kernel_size=2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="of at least kernel_size = 7 rows and columns, got 3"):
        ConvE(12, height=3, rngs=nnx.Rngs(0))


def entropy(scores: np.ndarray, target: np.ndarray) -> np.ndarray:
    top = scores.max(1, keepdims=True)
    log_share = scores - top - np.log(np.exp(scores - top).sum(1, keepdims=True))
    return -(target * log_share).sum(1)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_one_vs_all_losses(rng, smoothing):
    scores = rng.normal(size=(3, NODES))
    rows, objects = np.array([0, 0, 2, -1]), np.array([4, 1, 7, 3])
    options = {"label_smoothing": smoothing}
    loss = one_vs_all_loss(scores.astype("f"), rows, objects, **options)
    # Softmax: a target for each answer.
    target = (1 - smoothing) * np.eye(NODES)[objects[:3]] + smoothing / NODES
    np.testing.assert_allclose(loss, entropy(scores[rows[:3]], target).mean(), rtol=1e-5, atol=1e-5)
    loss = one_vs_all_loss(scores.astype("f"), rows, objects, kind="sigmoid", **options)
    # Sigmoid: a row of labels for each query that has an answer.
    labels = np.zeros(scores.shape)
    labels[rows[:3], objects[:3]] = 1
    target = (1 - smoothing) * labels + smoothing / NODES
    losses = np.log1p(np.exp(scores)) - target * scores
    np.testing.assert_allclose(loss, losses[[0, 2]].mean(), 1e-5)


@pytest.mark.parametrize(("kind", "by_hand"), [("softmax", 1.2101759), ("sigmoid", 0.6630630)])
def test_smoothed_losses_by_hand(kind, by_hand):
    """Targets are 0.85 and 0.05; repeating a batch does not change its loss."""
    scores = np.array([[0, np.log(3), 0, 0], [0, 0, 0, 0]], "f")
    rows, objects = np.array([0, 1, 1]), np.array([1, 0, 2])
    options = {"kind": kind, "label_smoothing": 0.2}
    # (log 6 - 0.85 log 3 + 2 log 4) / 3, and (7 log 2 + log 4 - 0.85 log 3) / 8
    np.testing.assert_allclose(one_vs_all_loss(scores, rows, objects, **options), by_hand, 1e-6)
    twice = np.tile(scores, (2, 1)), np.append(rows, rows + 2), np.tile(objects, 2)
    np.testing.assert_allclose(one_vs_all_loss(*twice, **options), by_hand, 1e-6)
    if kind == "sigmoid":  # for which repeated answers count once
        loss = one_vs_all_loss(scores, np.tile(rows, 2), np.tile(objects, 2), **options)
        np.testing.assert_allclose(loss, by_hand, 1e-6)


def test_negative_sampling_loss(rng):
    right, wrong = rng.normal(size=4), rng.normal(size=(4, 3))
    loss = negative_sampling_loss(right.astype("f"), wrong.astype("f"))
    expected = (np.log1p(np.exp(-right)).sum() + np.log1p(np.exp(wrong)).sum()) / 16
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)


def test_bad_losses():
    with pytest.raises(ValueError, match=r"scores must be \(batch, num_nodes\), rows and objects"):
        one_vs_all_loss(jnp.ones((2, 3)), jnp.array([0]), jnp.array([0, 1]))
    with pytest.raises(ValueError, match="kind must be one of 'softmax', 'sigmoid', got 'hinge'"):
        one_vs_all_loss(jnp.ones((2, 3)), jnp.array([0]), jnp.array([0]), kind="hinge")
    with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\], got 2"):
        one_vs_all_loss(jnp.ones((2, 3)), jnp.array([0]), jnp.array([0]), label_smoothing=2)
    with pytest.raises(
        ValueError,
        match=r"positive_scores must be \(num_facts,\) and negative_scores \(num_facts, num",
    ):
        negative_sampling_loss(jnp.ones(2), jnp.ones((3, 2)))


# --- Ranks ---------------------------------------------------------------------------------------


def reference(facts, known_facts, nodes, relations) -> np.ndarray:
    """Return ranks of DistMult, by loops over facts and candidates."""
    true = {tuple(fact) for fact in np.stack(known_facts, 1).tolist()}
    result = []
    for s, r, o in zip(*facts, strict=True):
        ranks = []
        # The object of (s, r), then the subject of (r, o).
        for subject, relation, answer, is_object in ((s, r, o, 1), (o, r + RELATIONS, s, 0)):
            query = nodes[subject] * relations[relation]
            answer_score = query @ nodes[answer]
            rank, equal = 1, 0
            for candidate in range(len(nodes)):
                fact = (subject, r, candidate) if is_object else (candidate, r, subject)
                # Filtered: other true facts do not count.
                if candidate == answer or fact in true:
                    continue
                score = query @ nodes[candidate]
                rank += score > answer_score
                equal += score == answer_score
            ranks.append(rank + equal / 2)
        result.append(ranks)
    return np.array(result)


def random_facts(rng, count: int) -> tuple[np.ndarray, ...]:
    return tuple(rng.integers(0, size, count) for size in (NODES, RELATIONS, NODES))


@pytest.mark.parametrize("chunk_size", [1, 5, 100])
def test_ranks(rng, chunk_size):
    """Small integers give many equal scores; facts are repeated, or not among the known."""
    known_facts = random_facts(rng, 60)
    facts = tuple(
        np.append(column[:13], extra) for column, extra in zip(known_facts, (2, 1, 3), strict=True)
    )
    nodes = rng.integers(-1, 2, (NODES, 3)).astype("f")
    relations = rng.integers(-1, 2, (2 * RELATIONS, 3)).astype("f")
    ranking = LinkRanking.from_facts(
        *facts, known_facts, num_nodes=NODES, num_relations=RELATIONS, chunk_size=chunk_size
    )
    assert ranking.subjects.shape == (-(-28 // chunk_size), chunk_size)
    ranks = ranking.ranks(DistMult(), nodes, relations)
    expected = reference(facts, known_facts, nodes, relations)
    # There are equal scores.
    assert np.any(expected % 1 == 0.5)
    np.testing.assert_array_equal(ranks, expected)
    metrics = link_metrics(ranks)
    assert metrics["mrr"] == pytest.approx((1 / expected).mean())
    for k in (1, 3, 10):
        assert metrics[f"hits@{k}"] == (expected <= k).mean()


def test_ranks_of_scores_that_are_not_finite():
    """Object 1 is ranked among nodes 0 to 5; 2 and 3 are filtered, as they are known objects."""
    ranking = LinkRanking.from_facts(
        [0], [0], [1], ([0] * 3, [0] * 3, [1, 2, 3]), num_nodes=6, num_relations=1
    )

    @jax.jit
    def rank(scores):
        return ranking.ranks(DistMult(), jnp.append(1, scores)[:, None], jnp.ones((2, 1)))[0, 0]

    with strict():
        for answer, candidate, expected in (
            (np.nan, 0.0, 4),
            (np.inf, 0.0, 4),
            (-np.inf, 0.0, 4),
            (-np.inf, -np.inf, 4),
            (0.0, np.nan, 2 + 1),  # after node 0, whose score is 1, and this node
            (0.0, np.inf, 2 + 1),
            (0.0, -np.inf, 2),
        ):
            for filtered in (np.nan, np.inf, -np.inf, 0.0):
                scores = jnp.array([answer, filtered, filtered, candidate, -1.0], jnp.float32)
                assert rank(scores) == expected, (answer, candidate, filtered)


def test_ranks_need_memory_for_one_chunk(rng):
    """No array is larger than a chunk's scores, whatever the number of facts."""
    facts = random_facts(rng, 200)
    ranking = LinkRanking.from_facts(
        *facts, facts, num_nodes=NODES, num_relations=RELATIONS, chunk_size=8
    )
    nodes, relations = jnp.ones((NODES, 3)), jnp.ones((2 * RELATIONS, 3))
    compiled = jax.jit(lambda r, x, z: r.ranks(DistMult(), x, z)).lower(ranking, nodes, relations)
    # 20 kB would not hold all scores, 400 queries of float64.
    used = compiled.compile().memory_analysis().temp_size_in_bytes
    assert used < 20_000 < 400 * NODES * 8


def test_no_facts():
    ranking = LinkRanking.from_facts(
        *[np.zeros(0, int)] * 3, ([0], [0], [1]), num_nodes=3, num_relations=1
    )
    ranks = ranking.ranks(DistMult(), jnp.ones((3, 2)), jnp.ones((2, 2)))
    assert ranks.shape == (0, 2)
    assert all(np.isnan(value) for value in link_metrics(ranks).values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subjects": [3]}, r"subjects\[0\] = 3 is outside \[0, num_nodes=3\)"),
        ({"relations": [1]}, r"relations\[0\] = 1 is outside \[0, num_relations=1\)"),
        ({"objects": [0, 1]}, "objects must have the same length, got 1, 1 and 2"),
        ({"known": ([0], [0], [-1])}, r"known objects\[0\] = -1 is outside"),
        ({"chunk_size": 0}, "chunk_size must be positive, got 0"),
    ],
)
def test_bad_facts(change, message):
    facts = {"subjects": [0], "relations": [0], "objects": [1], "known": ([0], [0], [1])}
    with pytest.raises(ValueError, match=message):
        LinkRanking.from_facts(**facts | {"num_nodes": 3, "num_relations": 1} | change)


def test_bad_nodes():
    facts = [0], [0], [1]
    ranking = LinkRanking.from_facts(*facts, facts, num_nodes=3, num_relations=1)
    with pytest.raises(ValueError, match=r"nodes must be \(num_nodes=3, features\), got \(2, 2\)"):
        ranking.ranks(DistMult(), jnp.ones((2, 2)), jnp.ones((2, 2)))


# --- The model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "rgcn", "compgcn"])
def test_predictor(rng, kind):
    graph = RelationalGraph.from_triples(*random_facts(rng, 30), NODES, RELATIONS, inverse=True)
    options = {"num_relations": 2 * RELATIONS, "rngs": nnx.Rngs(0)}
    encoder = {
        "none": lambda: None,
        "rgcn": lambda: RGCN(FEATURES, 8, FEATURES, **options),
        "compgcn": lambda: CompGCN(FEATURES, 8, FEATURES, **options),
    }[kind]()
    model = LinkPredictor(
        NODES,
        2 * RELATIONS,
        FEATURES,
        FEATURES,
        encoder,
        ComplEx(),
        dropout_rate=0.5,
        rngs=nnx.Rngs(0),
    )
    nodes, relations = model.encode(graph, deterministic=True)
    expected = model.nodes[...], model.relations[...]
    # An RGCN encodes nodes alone, a CompGCN also relations.
    if kind == "rgcn":
        expected = encoder(graph, expected[0], deterministic=True), expected[1]
    if kind == "compgcn":
        expected = encoder(graph, *expected, deterministic=True)
    np.testing.assert_array_equal(nodes, expected[0])
    np.testing.assert_array_equal(relations, expected[1])
    subjects, ids = np.array([3, 0, 3]), np.array([5, 0, 1])
    scores = model.scores(nodes, relations, subjects, ids)
    for i in range(3):
        query = ComplEx()(nodes[subjects[i]], relations[ids[i]])
        np.testing.assert_allclose(scores[i], nodes @ query, rtol=1e-4, atol=1e-6)
    key = jax.random.key(0)
    dropped, _ = model.encode(graph, deterministic=False, rngs=key)
    assert np.mean(np.asarray(dropped) == 0) > 0.2


@pytest.mark.parametrize("swapped", ["encoder", "decoder", "both"])
def test_swapped_encoder_and_decoder(swapped):
    encoder = RGCN(4, 4, 4, num_relations=2, rngs=nnx.Rngs(0))
    decoder = DistMult()
    arguments = {"encoder": (decoder, decoder), "decoder": (encoder, encoder)}
    with pytest.raises(TypeError, match="encoder must be a model of graphs, and decoder one of"):
        LinkPredictor(6, 2, 4, 4, *arguments.get(swapped, (decoder, encoder)), rngs=nnx.Rngs(0))


def test_encoders_and_decoders_that_are_no_models():
    for encoder, decoder, message in (
        (None, "distmult", "decoder must be callable, got 'distmult'"),
        (None, DistMult, "decoder must be a model, got the class DistMult; make one of it"),
        (RGCN, DistMult(), "encoder must be a model, got the class RGCN; make one of it"),
    ):
        with pytest.raises(TypeError, match=message):
            LinkPredictor(6, 2, 4, 4, encoder, decoder, rngs=nnx.Rngs(0))


# --- Decoders of pairs ---------------------------------------------------------------------------


def test_decoders_are_their_formulas(rng):
    x, y = rng.normal(size=(2, 6, 4)).astype(np.float32)
    dots = flax_layers.InnerProductDecoder()(x, y)
    np.testing.assert_allclose(dots, (x * y).sum(1), rtol=1e-5, atol=1e-6)
    decoder = flax_layers.MLPDecoder((4, 3), 8, rngs=nnx.Rngs(0))
    first, second = (layer.kernel[...] for layer in decoder.mlp.layers)
    want = np.maximum(np.concatenate([x, y[:, :3]], 1) @ first, 0) @ second
    np.testing.assert_allclose(decoder(x, y[:, :3]), want[:, 0], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"src and dst must be of one shape, got \(6, 4\) and"):
        flax_layers.InnerProductDecoder()(x, y[:3])
    with pytest.raises(ValueError, match=r"must be \(pairs, \(4, 3\)\), got shapes \(6, 4\)"):
        decoder(x, y)
