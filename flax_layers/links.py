"""Prediction of edges: decoders of embeddings, losses, and ranks among all nodes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from flax_layers._base import (
    Stack,
    check_model,
    check_positive,
    check_rates,
    dropout_arguments,
    normalized,
)
from flax_layers.compgcn import CompGCN
from jax_gnn.extend import (
    STATIC,
    as_ids,
    check_callable,
    check_choice,
    check_columns,
    check_range,
    check_real,
    described,
    is_real,
    to_numpy,
)

embedding_init = nnx.initializers.glorot_normal()


class DistMult(nnx.Module):
    """DistMult: the score of (s, r, o) is ``⟨x_s z_r, x_o⟩``.

    Yang et al., "Embedding entities and relations for learning and inference in knowledge bases",
    ICLR 2015. Like all decoders here, it makes a query of subject and relation, whose dot product
    with the features of an object is the score: with those of all nodes in one product.

    Example:
        >>> decoder = DistMult()
        >>> decoder(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])) @ jnp.array([1.0, 1.0])
        Array(11., dtype=float32)
    """

    def __call__(self, subjects: Array, relations: Array, **dropout: Any) -> Array:
        """Queries.

        Args:
            subjects: ``(*batch, features)``.
            relations: ``(*batch, features)``.
            **dropout: Not used here.

        Returns:
            ``(*batch, features)``.
        """
        subjects, relations = _pair(subjects, relations)
        return subjects * relations


class ComplEx(nnx.Module):
    """ComplEx: the score of (s, r, o) is ``Re Σ x_s z_r conj(x_o)``.

    Trouillon et al., "Complex embeddings for simple link prediction", ICML 2016. The first half of
    the features are real parts, the second half imaginary ones. A decoder as `DistMult`.

    Example:
        >>> ComplEx()(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]))  # (1 + 2i) (3 + 4i)
        Array([-5., 10.], dtype=float32)
    """

    def __call__(self, subjects: Array, relations: Array, **dropout: Any) -> Array:
        """Queries.

        Args:
            subjects: ``(*batch, features)``, an even number.
            relations: ``(*batch, features)``.
            **dropout: Not used here.

        Returns:
            ``(*batch, features)``.

        Raises:
            ValueError: The number of features is odd.
        """
        subjects, relations = _pair(subjects, relations)
        if subjects.shape[-1] % 2:
            raise ValueError(
                "subjects and relations: features must be even, real and imaginary, got "
                f"{subjects.shape[-1]}"
            )
        a, b = jnp.split(subjects, 2, -1)
        c, d = jnp.split(relations, 2, -1)
        return jnp.concatenate([a * c - b * d, a * d + b * c], -1)


class ConvE(nnx.Module):
    """ConvE: subject and relation as an image, a convolution and a linear map make the query.

    Dettmers et al., "Convolutional 2D knowledge graph embeddings", AAAI 2018, with layer norms
    for batch norms and no biases of entities. A decoder as `DistMult`.

    Attributes:
        convolution: Its filters.
        output: The map back to features.

    Example:
        >>> decoder = ConvE(20, height=4, filters=8, kernel_size=3, rngs=nnx.Rngs(0))
        >>> decoder(jnp.ones((5, 20)), jnp.ones((5, 20)), deterministic=True).shape
        (5, 20)
    """

    def __init__(
        self,
        features: int,
        *,
        height: int = 10,
        filters: int = 200,
        kernel_size: int = 7,
        dropout_rate: float = 0.3,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
    ) -> None:
        """Initialises the parameters.

        Args:
            features: Features per node and relation.
            height: Rows of the image of either; divides the features.
            filters: How many.
            kernel_size: Their height and width.
            dropout_rate: Share of filters' results, and of the query, dropped in training.
            rngs: Source of the keys, streams "params" and "dropout".
            param_dtype: Of the parameters.

        Raises:
            ValueError: A size is not positive, the height does not divide the features, or the
                kernel is larger than the image.
        """
        check_positive(features=features, height=height, filters=filters, kernel_size=kernel_size)
        check_rates(dropout_rate=dropout_rate)
        width = features // height
        if features % height or kernel_size > min(2 * height, width):
            raise ValueError(
                f"height must divide features = {features} into an image of at least kernel_size = "
                f"{kernel_size} rows and columns, got {height}"
            )
        size = kernel_size, kernel_size
        options: Any = {"param_dtype": param_dtype, "rngs": rngs}
        self.convolution = nnx.Conv(1, filters, size, padding="VALID", use_bias=False, **options)
        places = (2 * height - kernel_size + 1) * (width - kernel_size + 1)
        self.norm1 = nnx.LayerNorm(filters, **options)
        self.norm2 = nnx.LayerNorm(features, **options)
        self.output = nnx.Linear(places * filters, features, **options)
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.features = features
        self.height = height
        self.filters = filters
        self.kernel_size = kernel_size
        self.dropout_rate = dropout_rate
        self.param_dtype = param_dtype

    def __call__(
        self,
        subjects: Array,
        relations: Array,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Queries.

        Args:
            subjects: ``(*batch, features)``.
            relations: ``(*batch, features)``.
            deterministic: Switches dropout off (True) or on (False).
            rngs: Randomness of the dropout.

        Returns:
            ``(*batch, features)``.
        """
        dropout = dropout_arguments(deterministic, rngs)
        subjects, relations = _pair(subjects, relations, self.features)
        batch = subjects.shape[:-1]
        image = jnp.stack([subjects, relations], -2)
        image = image.reshape(*batch, 2 * self.height, self.features // self.height, 1)
        y = jax.nn.relu(normalized(self.norm1, self.convolution(image)))
        y = self.dropout(y, **dropout).reshape(*batch, self.output.in_features)
        return jax.nn.relu(normalized(self.norm2, self.dropout(self.output(y), **dropout)))


class LinkPredictor(nnx.Module):
    """Embeddings of nodes and relations, an encoder that sees the graph, and a decoder.

    Attributes:
        encoder: A model that takes a graph and features of nodes, such as `RGCN`, or such as
            `CompGCN` also embeddings of relations; None: the embeddings are what is decoded.
        decoder: `DistMult`, `ComplEx`, `ConvE`, or what is called likewise.
        nodes: ``(num_nodes, in_features)``.
        relations: ``(num_relations, features)``, inverse ones in the second half.

    Example:
        >>> triples = [0, 1, 2], [0, 1, 1], [1, 0, 0]
        >>> graph = RelationalGraph.from_triples(*triples, num_nodes=3, inverse=True)
        >>> encoder = CompGCN(4, 8, 8, num_relations=4, rngs=nnx.Rngs(0))
        >>> model = LinkPredictor(3, 4, 4, 4, encoder, DistMult(), rngs=nnx.Rngs(0))
        >>> nodes, relations = model.encode(graph, deterministic=True)
        >>> model.scores(nodes, relations, jnp.array([0, 2]), jnp.array([1, 3])).shape
        (2, 3)
    """

    def __init__(
        self,
        num_nodes: int,
        num_relations: int,
        in_features: int,
        relation_features: int,
        encoder: Any,
        decoder: Any,
        *,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: nnx.Initializer = embedding_init,
    ) -> None:
        """Initialises the embeddings.

        Args:
            num_nodes: Number of nodes.
            num_relations: Number of relations, inverse ones included.
            in_features: Features of the nodes' embeddings.
            relation_features: Features of the relations' embeddings: those that the decoder takes,
                or the `CompGCN`.
            encoder: See the class.
            decoder: See the class.
            dropout_rate: Share of the encoded nodes' features dropped in training, in [0, 1].
            rngs: Source of the keys, streams "params" and "dropout".
            param_dtype: Of the parameters.
            embedding_init: Initialiser of the embeddings.

        Raises:
            TypeError: Encoder or decoder is none, as where they change places.
            ValueError: A size is not positive, or the rate is outside [0, 1].
        """
        check_rates(dropout_rate=dropout_rate)
        if encoder is not None:
            check_model("encoder", encoder)
        check_model("decoder", decoder)
        if isinstance(decoder, Stack) or isinstance(encoder, DistMult | ComplEx | ConvE):
            raise TypeError(
                "encoder must be a model of graphs, and decoder one of pairs, as DistMult is, got "
                f"{type(encoder).__name__} and {type(decoder).__name__}"
            )
        check_positive(
            num_nodes=num_nodes,
            num_relations=num_relations,
            in_features=in_features,
            relation_features=relation_features,
        )

        def table(rows: int, features: int) -> nnx.Param[Array]:
            return nnx.Param(embedding_init(rngs.params(), (rows, features), param_dtype))

        self.nodes = table(num_nodes, in_features)
        self.relations = table(num_relations, relation_features)
        self.encoder = encoder
        self.decoder = decoder
        self.dropout = nnx.Dropout(dropout_rate, rngs=rngs)
        self.num_nodes = num_nodes
        self.num_relations = num_relations
        self.in_features = in_features
        self.relation_features = relation_features
        self.dropout_rate = dropout_rate
        self.param_dtype = param_dtype

    def encode(
        self,
        graph: Any,
        edge_weight: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> tuple[Array, Array]:
        """What the decoder takes, of all nodes and relations.

        Args:
            graph: What the encoder takes.
            edge_weight: Likewise, or None.
            deterministic: Switches dropout off (True) or on (False).
            rngs: Randomness of the dropout.

        Returns:
            ``(num_nodes, features)`` and ``(num_relations, features)``.
        """
        dropout = dropout_arguments(deterministic, rngs)
        nodes, relations = self.nodes[...], self.relations[...]
        if self.encoder is not None:
            more = dropout if edge_weight is None else dropout | {"edge_weight": edge_weight}
            if isinstance(self.encoder, CompGCN):
                nodes, relations = self.encoder(graph, nodes, relations, **more)
            else:
                nodes = self.encoder(graph, nodes, **more)
        return self.dropout(nodes, **dropout), relations

    def __call__(
        self,
        graph: Any,
        queries: tuple[Array, Array],
        edge_weight: ArrayLike | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
    ) -> Array:
        """Scores of all nodes as objects: :meth:`encode`, then :meth:`scores`.

        Args:
            graph: What the encoder takes.
            queries: Subjects and relations, ``(batch,)`` integers each.
            edge_weight: See :meth:`encode`.
            deterministic: Likewise.
            rngs: Likewise, and of the decoder.

        Returns:
            ``(batch, num_nodes)``.
        """
        dropout = dropout_arguments(deterministic, rngs)
        nodes, relations = self.encode(graph, edge_weight, **dropout)
        subjects, relation_ids = queries
        return self.scores(nodes, relations, subjects, relation_ids, **dropout)

    def scores(
        self, nodes: Array, relations: Array, subjects: Array, relation_ids: Array, **dropout: Any
    ) -> Array:
        """Scores of all nodes as objects of given subjects and relations.

        Args:
            nodes: What :meth:`encode` gives.
            relations: Likewise.
            subjects: ``(batch,)`` integers.
            relation_ids: ``(batch,)`` integers; of an inverse relation, the nodes are subjects of
                the relation itself.
            **dropout: `deterministic` and `rngs` of the decoder.

        Returns:
            ``(batch, num_nodes)``.
        """
        nodes, relations = _table("nodes", nodes), _table("relations", relations)
        ids = as_ids("subjects", subjects), as_ids("relation_ids", relation_ids)
        if ids[0].shape != ids[1].shape:
            raise ValueError(
                "subjects and relation_ids must be of one length, got shapes "
                f"{ids[0].shape} and {ids[1].shape}"
            )
        return self.decoder(nodes[ids[0]], relations[ids[1]], **dropout) @ nodes.T


def _pair(subjects: Any, relations: Any, features: int | None = None) -> tuple[Array, Array]:
    """What a decoder takes: arrays of one shape, perhaps of so many features."""
    subjects, relations = check_real("subjects", subjects), check_real("relations", relations)
    shape = subjects.shape
    if relations.shape != shape or not shape or features not in (None, shape[-1]):
        wanted = "features" if features is None else f"features={features}"
        raise ValueError(
            f"subjects and relations must both be (*batch, {wanted}), got shapes {shape} and "
            f"{relations.shape}"
        )
    return subjects, relations


def _table(name: str, rows: Any) -> Array:
    """Features of all nodes or relations."""
    rows = check_real(name, rows)
    if rows.ndim != 2 or not rows.shape[0]:
        raise ValueError(f"{name} must be a matrix with a row for each, got shape {rows.shape}")
    return rows


# --- Losses --------------------------------------------------------------------------------------

OneVsAll = Literal["softmax", "sigmoid"]


def one_vs_all_loss(
    scores: ArrayLike,
    rows: ArrayLike,
    objects: ArrayLike,
    *,
    kind: OneVsAll = "softmax",
    label_smoothing: float = 0.0,
) -> Array:
    """The mean loss of queries whose answers are known, every node being a candidate.

    Args:
        scores: ``(batch, num_nodes)``, see `LinkPredictor.scores`.
        rows: ``(num_answers,)`` integers, which query each answer is of; -1 is padding.
        objects: ``(num_answers,)`` integers, the answers.
        kind: "softmax": cross-entropy, the mean over answers (Lacroix et al., ICML 2018), of which
            one that is given twice counts twice; "sigmoid": binary cross-entropy, the mean over
            all candidates (ConvE, arXiv 1707.01476), which are answers or not.
        label_smoothing: ε of targets ``(1 - ε) y + ε / num_nodes``. Of "softmax" y is one-hot for
            each answer; of "sigmoid" it is each query's row of labels, as ConvE smooths them
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
    given = rows >= 0
    if kind == "sigmoid":
        rows = jnp.where(given, rows, len(scores))  # -1 would be the last one
        labels = jnp.zeros_like(scores).at[rows, objects].set(1, mode="drop")
        target = (1 - label_smoothing) * labels + label_smoothing / scores.shape[1]
        return jnp.mean(jax.nn.softplus(scores) - target * scores)
    right = jnp.where(given, scores[rows, objects], 0)
    total = jax.nn.logsumexp(scores, 1)
    mean = scores.mean(1)
    target = (1 - label_smoothing) * right + jnp.where(given, label_smoothing * mean[rows], 0)
    losses = jnp.where(given, total[rows], 0) - target
    return losses.sum() / jnp.maximum(given.sum(), 1).astype(scores.dtype)


def negative_sampling_loss(right: ArrayLike, wrong: ArrayLike) -> Array:
    """Binary cross-entropy of facts and of triples that are taken for none.

    Args:
        right: ``(num_facts,)`` scores.
        wrong: ``(num_facts, num_negatives)`` scores of corrupted triples.

    Returns:
        ``()``, the mean over all of them (R-GCN, equation 7).

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> negative_sampling_loss(jnp.zeros(2), jnp.zeros((2, 3)))  # log 2
        Array(0.6931472, dtype=float32)
    """
    right, wrong = check_real("right", right), check_real("wrong", wrong)
    if right.ndim != 1 or wrong.ndim != 2 or len(right) != len(wrong):
        raise ValueError(
            "right must be (num_facts,) and wrong (num_facts, num_negatives), got "
            f"{right.shape} and {wrong.shape}"
        )
    total = jax.nn.softplus(-right) + jax.nn.softplus(wrong).sum(1)
    return total.mean() / (1 + wrong.shape[1])


# --- Evaluation ----------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LinkRanking:
    """Facts to be ranked among all others, which their objects or subjects could be part of.

    The protocol of Bordes et al., NeurIPS 2013, "filtered": of a fact (s, r, o) the object is
    ranked by its score among all nodes but those that are known to be objects of (s, r), too, and
    the subject likewise. A rank is the mean of those that equal scores leave open; where the score
    of the answer is not finite, it is the last. Facts are ranked in chunks: memory is that of the
    scores of one, whatever their number, in one compiled program.

    Attributes:
        subjects: ``(chunks, chunk_size)``, those of queries, both directions; padding is 0.
        relations: Likewise; of the second direction the inverse relation.
        objects: Likewise, the answers to be ranked.
        known_rows: ``(chunks, size)``, which query of the chunk has a further answer; padding is
            `chunk_size`.
        known_objects: Likewise, that answer.
        places: ``(num_facts, 2)``, where the queries for each fact's object and subject are.
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
    num_nodes: int = field(kw_only=True, metadata=STATIC)

    @classmethod
    def from_facts(
        cls,
        subjects: Any,
        relations: Any,
        objects: Any,
        known: tuple[Any, Any, Any],
        *,
        num_nodes: int,
        num_relations: int,
        chunk_size: int = 512,
    ) -> LinkRanking:
        """Prepares facts, on the host.

        Args:
            subjects: ``(num_facts,)`` integers, of the facts to be ranked.
            relations: Likewise.
            objects: Likewise.
            known: Subjects, relations and objects of all known facts: of training, validation and
                test. Those to be ranked need not be among them.
            num_nodes: Number of nodes.
            num_relations: Number of relations, without inverse ones: of relation r that is
                ``num_relations + r``.
            chunk_size: Queries that are scored at a time.

        Raises:
            TypeError: Ids are no integers.
            ValueError: A size is not positive, lengths differ or an id is out of range.
        """
        check_positive(num_nodes=num_nodes, num_relations=num_relations, chunk_size=chunk_size)

        def both_ways(name: str, src: Any, rel: Any, dst: Any) -> list[np.ndarray]:
            names = [f"{name}{part}" for part in ("subjects", "relations", "objects")]
            columns = check_columns(dict(zip(names, (src, rel, dst), strict=True)))
            sizes = {"num_nodes": num_nodes, "num_relations": num_relations}
            for column, ids in zip(names, columns, strict=True):
                size = "num_relations" if column.endswith("relations") else "num_nodes"
                check_range(column, ids, size, sizes[size])
            src, rel, dst = columns
            pairs = (src, dst), (rel, rel + num_relations), (dst, src)
            return [np.concatenate(pair) for pair in pairs]

        src, rel, dst = both_ways("", subjects, relations, objects)
        if not isinstance(known, tuple | list) or len(known) != 3:
            raise TypeError(
                f"known must be subjects, relations and objects, got {described(known)}"
            )
        known_src, known_rel, known_dst = both_ways("known ", *known)
        keys = known_src * (2 * num_relations) + known_rel
        order = np.argsort(keys, kind="stable")
        keys, answers = keys[order], known_dst[order]
        queries = src * (2 * num_relations) + rel
        first, last = (np.searchsorted(keys, queries, side) for side in ("left", "right"))
        # Queries of many answers are dealt out, so that all chunks have about as many.
        count = len(queries)
        chunks = max(-(-count // chunk_size), 1)
        sizes = last - first
        dealt = np.argsort(-sizes, kind="stable")
        places = np.empty(count, np.int64)
        rank = np.arange(count)
        places[dealt] = rank % chunks * chunk_size + rank // chunks

        rows = np.repeat(np.arange(count), sizes)
        starts = np.repeat(first - np.cumsum(sizes) + sizes, sizes)
        others = answers[starts + np.arange(len(rows))]
        wanted = others != dst[rows]
        rows, others = places[rows[wanted]], others[wanted]
        by_chunk = np.argsort(rows // chunk_size, kind="stable")
        rows, others = rows[by_chunk], others[by_chunk]
        totals = np.bincount(rows // chunk_size, minlength=chunks)
        slots = np.arange(len(rows)) - np.repeat(np.cumsum(totals) - totals, totals)

        def padded(fill: int, size: int, at: Any, values: np.ndarray) -> Array:
            array = np.full((chunks, size), fill, np.int32)
            array[at] = values
            return jnp.asarray(array)

        at = np.divmod(places, chunk_size)
        known_at = rows // chunk_size, slots
        size = int(totals.max(initial=1))
        return cls(
            subjects=padded(0, chunk_size, at, src),
            relations=padded(0, chunk_size, at, rel),
            objects=padded(0, chunk_size, at, dst),
            known_rows=padded(chunk_size, size, known_at, rows % chunk_size),
            known_objects=padded(0, size, known_at, others),
            places=jnp.asarray(places.reshape(2, -1).T, jnp.int32),
            num_nodes=num_nodes,
        )

    def ranks(self, decoder: Any, nodes: ArrayLike, relations: ArrayLike) -> Array:
        """Ranks of the facts.

        Args:
            decoder: Such as `DistMult`; it is called with ``deterministic=True``.
            nodes: ``(num_nodes, features)``, see `LinkPredictor.encode`.
            relations: ``(2 * num_relations, features)``.

        Returns:
            ``(num_facts, 2)`` float32, from 1: of each fact's object and of its subject. An answer
            whose score is not finite ranks last of the nodes that are not filtered; of others, NaN
            and inf rank before all finite scores.

        Raises:
            ValueError: Nodes have another number of rows.
        """
        nodes = check_real("nodes", nodes)
        if nodes.ndim != 2 or len(nodes) != self.num_nodes:
            raise ValueError(
                f"nodes must be (num_nodes={self.num_nodes}, features), got {nodes.shape}"
            )
        check_callable("decoder", decoder)
        relations = _table("relations", relations)
        return _ranks(*nnx.split(decoder), self, nodes, relations)


@functools.partial(jax.jit, static_argnums=0)
def _ranks(graphdef: Any, state: Any, ranking: LinkRanking, nodes: Array, relations: Array) -> Any:
    def of_chunk(chunk: Any) -> Array:
        subjects, relation_ids, objects, known_rows, known_objects = chunk
        decoder = nnx.merge(graphdef, state)
        queries = decoder(nodes[subjects], relations[relation_ids], deterministic=True)
        scores = queries @ nodes.T
        right = jnp.take_along_axis(scores, objects[:, None], 1)
        counts = jnp.ones_like(scores, bool).at[known_rows, known_objects].set(False, mode="drop")
        better, ties, last = (
            jnp.sum(counts & which, 1, dtype=jnp.int32)
            for which in (~(scores <= right), scores == right, True)
        )
        ranks = (2 * better + ties + 1).astype(jnp.float32) / 2
        return jnp.where(jnp.isfinite(right[:, 0]), ranks, last.astype(jnp.float32))

    fields = "subjects", "relations", "objects", "known_rows", "known_objects"
    ranks = jax.lax.map(of_chunk, tuple(getattr(ranking, name) for name in fields))
    return ranks.ravel()[ranking.places]


def edge_metrics(right: ArrayLike, wrong: ArrayLike) -> dict[str, float]:
    """How well scores tell edges from pairs without one.

    An edge's rank, from which the last four metrics are, is that among all of the pairs; of equal
    scores it is the mean. A score of an edge that is NaN counts as the least, of a pair as the
    greatest.

    Args:
        right: ``(num_edges,)`` scores of edges.
        wrong: ``(num_negatives,)`` scores of pairs.

    Returns:
        "auc", the area under the ROC curve; "ap", the average precision, as scikit-learn has it;
        and those of `link_metrics`: shares from 0 to 1, NaN where one of the two is empty.

    Raises:
        TypeError: Scores are no real numbers.
        ValueError: They are not one-dimensional.

    Example:
        >>> edge_metrics([2.0, 1.0], [0.0, 1.5])
        {'auc': 0.75, 'ap': 0.8333333333333333, 'mrr': 0.75, 'hits@1': 0.5, 'hits@3': 1.0, \
'hits@10': 1.0}
    """
    scores = []
    for name, given in (("right", right), ("wrong", wrong)):
        array = to_numpy(name, given)
        if not is_real(array.dtype):
            raise TypeError(f"{name} must be real numbers, got {described(array)}")
        if array.ndim != 1:
            raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
        worst = -math.inf if name == "right" else math.inf
        array = array.astype(np.float64)
        scores.append(np.sort(np.where(np.isnan(array), worst, array)))
    edges, pairs = scores
    if not edges.size or not pairs.size:
        return {"auc": math.nan, "ap": math.nan, **link_metrics(edges[:0])}
    above = pairs.size - np.searchsorted(pairs, edges, "right")
    level = pairs.size - np.searchsorted(pairs, edges, "left")  # those of the same score, too
    ranks = 1 + (above + level) / 2
    found = edges.size - np.searchsorted(edges, edges, "left")
    return {
        "auc": float(1 - (ranks.mean() - 1) / pairs.size),
        "ap": float((found / (found + level)).mean()),
        **link_metrics(ranks),
    }


def link_metrics(ranks: ArrayLike) -> dict[str, float]:
    """Mean reciprocal rank and hits of ranks, such as `LinkRanking.ranks` gives.

    Returns:
        "mrr", "hits@1", "hits@3", "hits@10": shares from 0 to 1; NaN without ranks.

    Example:
        >>> link_metrics([1, 2, 5, 20])
        {'mrr': 0.4375, 'hits@1': 0.25, 'hits@3': 0.5, 'hits@10': 0.75}
    """
    ranks = to_numpy("ranks", ranks)
    if not is_real(ranks.dtype):
        raise TypeError(f"ranks must be real numbers, got {described(ranks)}")
    found = ranks.astype(np.float64).ravel()
    if not found.size:
        return dict.fromkeys(("mrr", "hits@1", "hits@3", "hits@10"), math.nan)
    hits = {f"hits@{k}": float((found <= k).mean()) for k in (1, 3, 10)}
    return {"mrr": float((1 / found).mean()), **hits}
