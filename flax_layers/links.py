"""Link prediction: decoders of embeddings, losses, and ranks among all nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers import _base as base
from flax_layers._declaration import (
    Layer,
    ParameterFactory,
    ParameterLayer,
    check_options,
    check_positive,
    check_rates,
)
from jax_gnn.extend import as_ids, check_callable, check_choice, check_real, described

Ids = ArrayLike | Sequence[int]
ModuleDef = nnx.GraphDef[Any]
ModuleState = nnx.State[Any, Any]

embedding_init = nnx.initializers.glorot_normal()


class DistMult(nnx.Module):
    """DistMult: the score of (s, r, o) is ``⟨x_s z_r, x_o⟩``.

    Yang et al., "Embedding entities and relations for learning and inference in knowledge bases",
    ICLR 2015. All decoders here compute a query from subject and relation; its dot product with
    the features of an object is the score, so that one product scores all nodes.

    Example:
        >>> decoder = DistMult()
        >>> decoder(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])) @ jnp.array([1.0, 1.0])
        Array(11., dtype=float32)
    """

    def __call__(
        self, subjects: ArrayLike, relations: ArrayLike, **dropout: Unpack[base.DropoutCall]
    ) -> Array:
        """Return queries, of the shape of subjects and relations; `dropout` is ignored."""
        subjects, relations = _check_pair(subjects, relations)
        return subjects * relations


class ComplEx(nnx.Module):
    """ComplEx: the score of (s, r, o) is ``Re Σ x_s z_r conj(x_o)``.

    Trouillon et al., "Complex embeddings for simple link prediction", ICML 2016. The first half of
    the features are real parts, the second half imaginary parts. A decoder like `DistMult`.

    Example:
        >>> ComplEx()(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))  # (1 + 2i) (3 + 4i)
        Array([-5., 10.], dtype=float32)
    """

    def __call__(
        self, subjects: ArrayLike, relations: ArrayLike, **dropout: Unpack[base.DropoutCall]
    ) -> Array:
        """Return queries, of the shape of subjects and relations; features must be even."""
        subjects, relations = _check_pair(subjects, relations)
        if subjects.shape[-1] % 2:
            raise ValueError(
                "subjects and relations: features must be even, real and imaginary, got "
                f"{subjects.shape[-1]}"
            )
        # (a + bi) (c + di), and the dot product with an object conjugates that.
        a, b = jnp.split(subjects, 2, -1)
        c, d = jnp.split(relations, 2, -1)
        return jnp.concatenate([a * c - b * d, a * d + b * c], -1)


class ConvE(ParameterLayer):
    """ConvE: queries by a convolution over an image of subject and relation, and a linear map.

    Dettmers et al., "Convolutional 2D knowledge graph embeddings", AAAI 2018, with layer norms
    in place of batch norms and no biases of entities. A decoder like `DistMult`.

    Attributes:
        features: Features per node and relation.
        height: Rows of the image of subject or relation; divides the features.
        filters: Number of filters.
        kernel_size: Height and width of the filters.
        dropout_rate: Share of filters' results, and of the query, dropped in training.
        convolution: The filters.
        output: Linear map of the filters' results to features.

    Example:
        >>> decoder = ConvE(20, height=4, filters=8, kernel_size=3, rngs=nnx.Rngs(0))
        >>> decoder(jnp.ones((5, 20)), jnp.ones((5, 20)), deterministic=True).shape
        (5, 20)
    """

    features: int = field(kw_only=False)
    height: int = 10
    filters: int = 200
    kernel_size: int = 7
    dropout_rate: float = 0.3

    def _make_parameters(self, factory: ParameterFactory) -> None:
        features, height, filters, size = self.features, self.height, self.filters, self.kernel_size
        width = features // height
        if features % height or size > min(2 * height, width):
            raise ValueError(
                f"height must divide features = {features} into an image of at least kernel_size = "
                f"{size} rows and columns, got {height}"
            )
        options: Any = {"param_dtype": self.param_dtype, "rngs": factory.rngs}
        self.convolution = nnx.Conv(
            1, filters, (size, size), padding="VALID", use_bias=False, **options
        )
        pixels = (2 * height - size + 1) * (width - size + 1)
        self.norm1 = nnx.LayerNorm(filters, **options)
        self.norm2 = nnx.LayerNorm(features, **options)
        self.output = factory.linear(pixels * filters, features)
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=factory.rngs)

    def __call__(
        self, subjects: ArrayLike, relations: ArrayLike, **dropout: Unpack[base.DropoutCall]
    ) -> Array:
        """Return queries.

        Args:
            subjects: ``(*batch, features)``.
            relations: ``(*batch, features)``.
            **dropout: `deterministic` and `rngs`.

        Returns:
            ``(*batch, features)``.
        """
        dropout = base.dropout_arguments(**dropout)
        subjects, relations = _check_pair(subjects, relations, self.features)
        batch = subjects.shape[:-1]
        # Rows of the subject's image, then those of the relation's, as one channel.
        image = jnp.stack([subjects, relations], -2)
        image = image.reshape(*batch, 2 * self.height, self.features // self.height, 1)
        y = jax.nn.relu(base.normalized(self.norm1, self.convolution(image)))
        y = self.dropout(y, **dropout).reshape(*batch, self.output.in_features)
        return jax.nn.relu(base.normalized(self.norm2, self.dropout(self.output(y), **dropout)))


class LinkPredictor(Layer):
    """Embeddings of nodes and relations, an encoder that reads the graph, and a decoder.

    Attributes:
        num_nodes: Number of nodes.
        num_relations: Number of relations, inverse ones included.
        in_features: Features of the nodes' embeddings.
        relation_features: Features of the relations' embeddings, as the decoder takes them, or the
            `CompGCN`.
        encoder: Model of a graph and features of nodes, such as `RGCN`, or also of embeddings of
            relations, such as `CompGCN`; None: the embeddings themselves are decoded.
        decoder: `DistMult`, `ComplEx`, `ConvE`, or another function of the same arguments.
        dropout_rate: Share of the encoded nodes' features dropped in training, in [0, 1].
        rngs: Source of the keys, streams "params" and "dropout".
        param_dtype: Dtype of the parameters.
        embedding_init: Initialiser of the embeddings.
        nodes: Embeddings of nodes, ``(num_nodes, in_features)``.
        relations: Embeddings of relations, ``(num_relations, relation_features)``; inverse ones in
            the second half.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, inverse=True)
        >>> encoder = CompGCN(4, 8, 8, num_relations=4, rngs=nnx.Rngs(0))
        >>> model = LinkPredictor(3, 4, 4, 4, encoder, DistMult(), rngs=nnx.Rngs(0))
        >>> nodes, relations = model.encode(graph, deterministic=True)
        >>> model.scores(nodes, relations, jnp.array([0, 2]), jnp.array([1, 3])).shape
        (2, 3)
    """

    num_nodes: int = field(kw_only=False)
    num_relations: int = field(kw_only=False)
    in_features: int = field(kw_only=False)
    relation_features: int = field(kw_only=False)
    encoder: Any = field(kw_only=False)
    decoder: Any = field(kw_only=False)
    dropout_rate: float = 0.0
    rngs: InitVar[nnx.Rngs]
    param_dtype: DTypeLike = jnp.float32
    embedding_init: InitVar[nnx.Initializer] = embedding_init

    def __post_init__(self, rngs: nnx.Rngs, embedding_init: nnx.Initializer) -> None:
        check_options(self)
        encoder, decoder = self.encoder, self.decoder
        if encoder is not None:
            base.check_model("encoder", encoder)
        base.check_model("decoder", decoder)
        # Both are callable modules, so that only their classes tell a swap.
        if isinstance(decoder, base.Stack) or isinstance(encoder, DistMult | ComplEx | ConvE):
            raise TypeError(
                "encoder must be a model of graphs, and decoder one of pairs, as DistMult is, got "
                f"{type(encoder).__name__} and {type(decoder).__name__}"
            )

        def embeddings(num_rows: int, features: int) -> nnx.Param[Array]:
            return nnx.Param(embedding_init(rngs.params(), (num_rows, features), self.param_dtype))

        self.nodes = embeddings(self.num_nodes, self.in_features)
        self.relations = embeddings(self.num_relations, self.relation_features)
        self.dropout = nnx.Dropout(self.dropout_rate, rngs=rngs)

    def encode(
        self,
        graph: object,
        edge_weight: ArrayLike | None = None,
        **dropout: Unpack[base.DropoutCall],
    ) -> tuple[Array, Array]:
        """Return the decoder's features of all nodes and relations.

        Args:
            graph: The graph, as the encoder takes it.
            edge_weight: Weights of edges, as the encoder takes them, or None.
            **dropout: `deterministic` and `rngs`.

        Returns:
            ``(num_nodes, features)`` and ``(num_relations, features)``.
        """
        dropout = base.dropout_arguments(**dropout)
        nodes, relations = self.nodes[...], self.relations[...]
        if self.encoder is not None:
            options: dict[str, Any] = {**dropout}
            if edge_weight is not None:
                options["edge_weight"] = edge_weight
            # A CompGCN also updates the relations.
            if getattr(self.encoder, "takes_relations", False):
                nodes, relations = self.encoder(graph, nodes, relations, **options)
            else:
                nodes = self.encoder(graph, nodes, **options)
        return self.dropout(nodes, **dropout), relations

    def __call__(
        self,
        graph: object,
        queries: tuple[Ids, Ids],
        edge_weight: ArrayLike | None = None,
        **dropout: Unpack[base.DropoutCall],
    ) -> Array:
        """Return scores of all nodes as objects: :meth:`encode`, then :meth:`scores`.

        Args:
            graph: The graph, as the encoder takes it.
            queries: Subjects and relations, ``(batch,)`` integers each.
            edge_weight: Weights of edges, as the encoder takes them, or None.
            **dropout: `deterministic` and `rngs`, also of the decoder.

        Returns:
            ``(batch, num_nodes)``.
        """
        dropout = base.dropout_arguments(**dropout)
        nodes, relations = self.encode(graph, edge_weight, **dropout)
        subjects, relation_ids = queries
        return self.scores(nodes, relations, subjects, relation_ids, **dropout)

    def scores(
        self,
        nodes: ArrayLike,
        relations: ArrayLike,
        subjects: Ids,
        relation_ids: Ids,
        **dropout: Unpack[base.DropoutCall],
    ) -> Array:
        """Return scores of all nodes as objects of given subjects and relations.

        Args:
            nodes: Features of all nodes, of :meth:`encode`.
            relations: Features of all relations, of :meth:`encode`.
            subjects: ``(batch,)`` integers.
            relation_ids: ``(batch,)`` integers; for an inverse relation, the nodes are scored as
                subjects of the relation itself.
            **dropout: `deterministic` and `rngs` of the decoder.

        Returns:
            ``(batch, num_nodes)``.
        """
        nodes, relations = _check_matrix("nodes", nodes), _check_matrix("relations", relations)
        ids = as_ids("subjects", subjects), as_ids("relation_ids", relation_ids)
        if ids[0].shape != ids[1].shape:
            raise ValueError(
                "subjects and relation_ids must be of one length, got shapes "
                f"{ids[0].shape} and {ids[1].shape}"
            )
        queries: Array = self.decoder(nodes[ids[0]], relations[ids[1]], **dropout)
        return queries @ nodes.T


def _check_pair(
    subjects: ArrayLike, relations: ArrayLike, features: int | None = None
) -> tuple[Array, Array]:
    """Return arrays of one shape, whose features must be as many as given, if they are."""
    x, z = check_real("subjects", subjects), check_real("relations", relations)
    if z.shape != x.shape or not x.shape or features not in (None, x.shape[-1]):
        expected = "features" if features is None else f"features={features}"
        raise ValueError(
            f"subjects and relations must both be (*batch, {expected}), got shapes {x.shape} and "
            f"{z.shape}"
        )
    return x, z


def _check_matrix(name: str, rows: ArrayLike) -> Array:
    """Return features of all nodes or relations."""
    matrix = check_real(name, rows)
    if matrix.ndim != 2 or not matrix.shape[0]:
        raise ValueError(f"{name} must be a matrix with a row for each, got shape {matrix.shape}")
    return matrix


# --- Losses --------------------------------------------------------------------------------------

OneVsAll = Literal["softmax", "sigmoid"]


def one_vs_all_loss(
    scores: ArrayLike,
    rows: Ids,
    objects: Ids,
    *,
    kind: OneVsAll = "softmax",
    label_smoothing: float = 0.0,
) -> Array:
    """Return the mean loss of queries whose answers are known; every node is a candidate.

    Args:
        scores: ``(batch, num_nodes)``, see `LinkPredictor.scores`.
        rows: ``(num_answers,)`` integers, the query of each answer; -1 is padding.
        objects: ``(num_answers,)`` integers, the answers.
        kind: "softmax": cross-entropy, the mean over answers (Lacroix et al., ICML 2018); repeated
            answers count repeatedly. "sigmoid": binary cross-entropy, the mean over all candidates
            (ConvE, arXiv 1707.01476) of queries that have an answer.
        label_smoothing: ε of targets ``(1 - ε) y + ε / num_nodes``. For "softmax" y is one-hot for
            each answer; for "sigmoid" it is each query's row of labels, as ConvE smooths them
            (whose code adds ``1 / num_nodes``, whatever ε is).

    Returns:
        ``()``, in the dtype of the scores.

    Raises:
        ValueError: A shape does not fit, or the kind is unknown.

    Example:
        >>> scores = jnp.zeros((2, 4))
        >>> one_vs_all_loss(scores, jnp.array([0, 1, 1]), jnp.array([3, 0, 2]))  # log 4
        Array(1.3862944, dtype=float32)
    """
    scores = check_real("scores", scores)
    rows, objects = as_ids("rows", rows), as_ids("objects", objects)
    check_choice("kind", kind, get_args(OneVsAll))
    check_rates(label_smoothing=label_smoothing)
    if scores.ndim != 2 or rows.ndim != 1 or rows.shape != objects.shape:
        raise ValueError(
            "scores must be (batch, num_nodes), rows and objects (num_answers,), got "
            f"{scores.shape}, {rows.shape} and {objects.shape}"
        )
    is_answer = rows >= 0
    if kind == "sigmoid":
        rows = jnp.where(is_answer, rows, len(scores))  # -1 would index the final row
        labels = jnp.zeros_like(scores).at[rows, objects].set(1, mode="drop")
        target = (1 - label_smoothing) * labels + label_smoothing / scores.shape[1]
        # Queries without answers are padding of a batch.
        losses = jnp.where(labels.any(1), (jax.nn.softplus(scores) - target * scores).mean(1), 0)
        return losses.sum() / jnp.maximum(labels.any(1).sum(), 1).astype(scores.dtype)
    answer_scores = jnp.where(is_answer, scores[rows, objects], 0)
    # Cross-entropy with smoothed targets needs the answer's score and the mean score alone.
    logsumexp, mean = jax.nn.logsumexp(scores, 1), scores.mean(1)
    smoothing = jnp.where(is_answer, label_smoothing * mean[rows], 0)
    target = (1 - label_smoothing) * answer_scores + smoothing
    losses = jnp.where(is_answer, logsumexp[rows], 0) - target
    return losses.sum() / jnp.maximum(is_answer.sum(), 1).astype(scores.dtype)


def negative_sampling_loss(positive_scores: ArrayLike, negative_scores: ArrayLike) -> Array:
    """Return the binary cross-entropy of facts and of corrupted triples, taken for false.

    Args:
        positive_scores: ``(num_facts,)`` scores.
        negative_scores: ``(num_facts, num_negatives)`` scores of corrupted triples.

    Returns:
        ``()``, the mean over all scores (R-GCN, equation 7).

    Example:
        >>> negative_sampling_loss(jnp.zeros(2), jnp.zeros((2, 3)))  # log 2
        Array(0.6931472, dtype=float32)
    """
    positive = check_real("positive_scores", positive_scores)
    negative = check_real("negative_scores", negative_scores)
    if positive.ndim != 1 or negative.ndim != 2 or len(positive) != len(negative):
        raise ValueError(
            "positive_scores must be (num_facts,) and negative_scores (num_facts, num_negatives), "
            f"got {positive.shape} and {negative.shape}"
        )
    # The mean over facts of sums over a fact and its negatives.
    total = jax.nn.softplus(-positive) + jax.nn.softplus(negative).sum(1)
    return total.mean() / (1 + negative.shape[1])


# --- Evaluation ----------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LinkRanking:
    """Facts whose objects and subjects are ranked among all nodes.

    The "filtered" protocol of Bordes et al., NeurIPS 2013: the object of a fact (s, r, o) is ranked
    by its score among all nodes except other known objects of (s, r), and the subject among all
    nodes except other known subjects of (r, o). Equal scores share their mean rank; an answer whose
    score is not finite ranks last. Facts are ranked in chunks, in one compiled program, so that
    memory is that of one chunk's scores.

    Attributes:
        subjects: ``(chunks, chunk_size)``, subjects of the queries in both directions; padding is
            0.
        relations: ``(chunks, chunk_size)``, relations of the queries; inverse relations for those
            that ask for a subject.
        objects: ``(chunks, chunk_size)``, answers to be ranked.
        known_rows: ``(chunks, size)``, number in its chunk of the query that a known answer is
            filtered from; padding is `chunk_size`.
        known_objects: ``(chunks, size)``, the filtered answers.
        places: ``(num_facts, 2)``, places of the queries for each fact's object and subject.
        num_nodes: Number of nodes.

    Example:
        >>> facts = [0, 1], [0, 0], [1, 2]  # subjects, relations, objects
        >>> ranking = LinkRanking.from_facts(*facts, facts, num_nodes=3, num_relations=1)
        >>> ranks = ranking.ranks(DistMult(), jnp.eye(3), jnp.zeros((2, 3)))
        >>> ranks  # all scores are equal
        Array([[2., 2.],
               [2., 2.]], dtype=float32)
        >>> link_metrics(ranks)["mrr"]
        0.5
    """

    subjects: Array
    relations: Array
    objects: Array
    known_rows: Array
    known_objects: Array
    places: Array
    num_nodes: int = field(kw_only=True, metadata={"static": True})

    @classmethod
    def from_facts(
        cls,
        subjects: Ids,
        relations: Ids,
        objects: Ids,
        known: tuple[Ids, Ids, Ids],
        *,
        num_nodes: int,
        num_relations: int,
        chunk_size: int = 512,
    ) -> LinkRanking:
        """Prepare facts, on the host.

        Args:
            subjects: ``(num_facts,)`` integers, of the facts to be ranked.
            relations: ``(num_facts,)`` integers, of the facts to be ranked.
            objects: ``(num_facts,)`` integers, of the facts to be ranked.
            known: Subjects, relations and objects of all known facts: of training, validation and
                test. The facts to be ranked need not be among them.
            num_nodes: Number of nodes.
            num_relations: Number of relations, without inverse ones: that of relation r is
                ``num_relations + r``.
            chunk_size: Number of queries that are scored at a time.

        Raises:
            TypeError: Ids are no integers.
            ValueError: A size is not positive, lengths differ or an id is out of range.
        """
        check_positive(num_nodes=num_nodes, num_relations=num_relations, chunk_size=chunk_size)

        def both_directions(prefix: str, facts: Sequence[Ids]) -> list[np.ndarray]:
            src = _ids_below(f"{prefix}subjects", facts[0], "num_nodes", num_nodes)
            rel = _ids_below(f"{prefix}relations", facts[1], "num_relations", num_relations)
            dst = _ids_below(f"{prefix}objects", facts[2], "num_nodes", num_nodes)
            if not len(src) == len(rel) == len(dst):
                raise ValueError(
                    f"{prefix}subjects, relations and objects must have the same length, got "
                    f"{len(src)}, {len(rel)} and {len(dst)}"
                )
            # Queries for objects, then queries for subjects by the inverse relation.
            pairs = (src, dst), (rel, rel + num_relations), (dst, src)
            return [np.concatenate(pair) for pair in pairs]

        src, rel, dst = both_directions("", (subjects, relations, objects))
        if not isinstance(known, tuple | list) or len(known) != 3:
            raise TypeError(
                f"known must be subjects, relations and objects, got {described(known)}"
            )
        known_src, known_rel, known_dst = both_directions("known ", known)
        # Known answers of each query are a range of the known facts sorted by (subject, relation).
        keys = known_src * (2 * num_relations) + known_rel
        order = np.argsort(keys, kind="stable")
        keys, answers = keys[order], known_dst[order]
        queries = src * (2 * num_relations) + rel
        starts = np.searchsorted(keys, queries, "left")
        sizes = np.searchsorted(keys, queries, "right") - starts
        # Queries are dealt to chunks by falling number of answers, so that chunks have about as
        # many.
        count = len(queries)
        chunks = max(-(-count // chunk_size), 1)
        # The query of rank i goes to chunk i mod chunks.
        rank = np.arange(count)
        places = np.empty(count, np.int64)
        places[np.argsort(-sizes, kind="stable")] = rank % chunks * chunk_size + rank // chunks

        # (query, known answer) pairs, without the answer that is ranked, sorted by chunk.
        rows = np.repeat(np.arange(count), sizes)
        offsets = np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        filtered = answers[offsets + np.arange(len(rows))]
        is_filtered = filtered != dst[rows]
        rows, filtered = places[rows[is_filtered]], filtered[is_filtered]
        by_chunk = np.argsort(rows // chunk_size, kind="stable")
        rows, filtered = rows[by_chunk], filtered[by_chunk]
        totals = np.bincount(rows // chunk_size, minlength=chunks)
        columns = np.arange(len(rows)) - np.repeat(np.cumsum(totals) - totals, totals)

        def padded(
            fill: int, size: int, index: tuple[np.ndarray, np.ndarray], values: np.ndarray
        ) -> Array:
            array = np.full((chunks, size), fill, np.int32)
            array[index] = values
            return jnp.asarray(array)

        query_index = places // chunk_size, places % chunk_size
        known_index = rows // chunk_size, columns
        size = int(totals.max(initial=1))
        return cls(
            subjects=padded(0, chunk_size, query_index, src),
            relations=padded(0, chunk_size, query_index, rel),
            objects=padded(0, chunk_size, query_index, dst),
            known_rows=padded(chunk_size, size, known_index, rows % chunk_size),
            known_objects=padded(0, size, known_index, filtered),
            places=jnp.asarray(places.reshape(2, -1).T, jnp.int32),
            num_nodes=num_nodes,
        )

    def ranks(self, decoder: nnx.Module, nodes: ArrayLike, relations: ArrayLike) -> Array:
        """Return the ranks of the facts.

        Args:
            decoder: Decoder such as `DistMult`; it is called with ``deterministic=True``.
            nodes: ``(num_nodes, features)``, see `LinkPredictor.encode`.
            relations: ``(2 * num_relations, features)``.

        Returns:
            ``(num_facts, 2)`` float32, from 1: ranks of each fact's object and subject. An answer
            whose score is not finite ranks last of the nodes that are not filtered; NaN and inf of
            other nodes rank before all finite scores.

        Raises:
            ValueError: The number of nodes does not fit.
        """
        nodes = check_real("nodes", nodes)
        if nodes.ndim != 2 or len(nodes) != self.num_nodes:
            raise ValueError(
                f"nodes must be (num_nodes={self.num_nodes}, features), got {nodes.shape}"
            )
        check_callable("decoder", decoder)
        relations = _check_matrix("relations", relations)
        graphdef, state = nnx.split(decoder)
        return jnp.asarray(_ranks(graphdef, state, self, nodes, relations))


@functools.partial(jax.jit, static_argnums=0)
def _ranks(
    graphdef: ModuleDef, state: ModuleState, ranking: LinkRanking, nodes: Array, relations: Array
) -> Array:
    def rank_chunk(chunk: tuple[Array, ...]) -> Array:
        subjects, relation_ids, objects, known_rows, known_objects = chunk
        decoder: Any = nnx.merge(graphdef, state)
        queries = decoder(nodes[subjects], relations[relation_ids], deterministic=True)
        scores = queries @ nodes.T
        answer = jnp.take_along_axis(scores, objects[:, None], 1)
        # Nodes that count: all but filtered answers.
        counts = jnp.ones_like(scores, bool).at[known_rows, known_objects].set(False, mode="drop")
        # NaN of other nodes counts as better.
        better, equal, total = (
            jnp.sum(counts & mask, 1, dtype=jnp.int32)
            for mask in (~(scores <= answer), scores == answer, True)
        )
        ranks = (2 * better + equal + 1).astype(jnp.float32) / 2
        return jnp.where(jnp.isfinite(answer[:, 0]), ranks, total.astype(jnp.float32))

    # Chunks are ranked one after another, by one compiled body.
    queries = ranking.subjects, ranking.relations, ranking.objects
    ranks: Array = jax.lax.map(rank_chunk, (*queries, ranking.known_rows, ranking.known_objects))
    return ranks.ravel()[ranking.places]


def edge_metrics(positive_scores: ArrayLike, negative_scores: ArrayLike) -> dict[str, float]:
    """Return metrics of scores that should tell edges from pairs without one.

    The final four metrics are of an edge's rank among all pairs; equal scores share their mean
    rank. NaN counts as the least score of an edge, and as the greatest of a pair.

    Args:
        positive_scores: ``(num_edges,)`` scores of edges.
        negative_scores: ``(num_negatives,)`` scores of pairs.

    Returns:
        "auc", the area under the ROC curve; "ap", the average precision, as in scikit-learn; and
        those of `link_metrics`: shares from 0 to 1, NaN if there are no edges or no pairs.

    Raises:
        TypeError: Scores are no real numbers.
        ValueError: Scores are not one-dimensional.

    Example:
        >>> edge_metrics([2.0, 1.0], [0.0, 1.5])
        {'auc': 0.75, 'ap': 0.8333333333333333, 'mrr': 0.75, 'hits@1': 0.5, 'hits@3': 1.0, \
'hits@10': 1.0}
    """
    edges = _sorted_scores("positive_scores", positive_scores, -math.inf)
    pairs = _sorted_scores("negative_scores", negative_scores, math.inf)
    if not edges.size or not pairs.size:
        return {"auc": math.nan, "ap": math.nan, **link_metrics(edges[:0])}
    # Both arrays are sorted: counts are binary searches.
    greater = pairs.size - np.searchsorted(pairs, edges, "right")
    at_least = pairs.size - np.searchsorted(pairs, edges, "left")
    ranks = 1 + (greater + at_least) / 2
    true_positives = edges.size - np.searchsorted(edges, edges, "left")
    return {
        "auc": float(1 - (ranks.mean() - 1) / pairs.size),
        "ap": float((true_positives / (true_positives + at_least)).mean()),
        **link_metrics(ranks),
    }


def _ids_below(name: str, ids: Ids, size_name: str, size: int) -> np.ndarray:
    """Return ids on the host, in int64; raise ValueError for one outside ``[0, size)``."""
    # Keys of (subject, relation) pairs may need 64 bits, which JAX may not have.
    array = np.asarray(as_ids(name, ids)).astype(np.int64)
    outside = np.flatnonzero((array < 0) | (array >= size))
    if outside.size:
        place = outside[0]
        raise ValueError(f"{name}[{place}] = {array[place]} is outside [0, {size_name}={size})")
    return array


def _real_numbers(name: str, values: ArrayLike) -> np.ndarray:
    """Return real numbers on the host, in float64."""
    check_real(name, values)  # an array of JAX, which may have fewer bits
    return np.asarray(values, np.float64)


def _sorted_scores(name: str, scores: ArrayLike, nan: float) -> np.ndarray:
    """Return scores in float64, ascending, with `nan` in place of NaN."""
    array = _real_numbers(name, scores)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    return np.sort(np.where(np.isnan(array), nan, array))


def link_metrics(ranks: ArrayLike) -> dict[str, float]:
    """Return mean reciprocal rank and hits of ranks, such as of `LinkRanking.ranks`.

    Returns:
        "mrr", "hits@1", "hits@3", "hits@10": shares from 0 to 1; NaN without ranks.

    Example:
        >>> link_metrics([1, 2, 5, 20])
        {'mrr': 0.4375, 'hits@1': 0.25, 'hits@3': 0.5, 'hits@10': 0.75}
    """
    values = _real_numbers("ranks", ranks).ravel()
    if not values.size:
        return dict.fromkeys(("mrr", "hits@1", "hits@3", "hits@10"), math.nan)
    hits = {f"hits@{k}": float((values <= k).mean()) for k in (1, 3, 10)}
    return {"mrr": float((1 / values).mean()), **hits}
