"""Edge prediction: random splits of edges, and negatives, which are pairs without an edge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import ArrayLike

from jax_gnn._core.arguments import check_flag, check_instance, check_integer, check_number
from jax_gnn.datasets._check import random_generator
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.graph import Graph


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """Edges to train, validate and test on, and negatives for validation and test.

    All pairs are int32, sources first; undirected edges occur once.

    Attributes:
        train: ``(2, n)``, the training edges.
        valid: ``(2, k)``, the validation edges.
        test: ``(2, m)``, the test edges.
        valid_negatives: ``(2, k)``, pairs of different nodes without an edge.
        test_negatives: ``(2, m)``, further such pairs.
        train_graph: graph for training and validation: the training edges, in both directions if
            undirected, and the self-loops of the whole graph.
        test_graph: graph for the test: ``train_graph`` and the validation edges.
        undirected: whether edges have no direction.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    valid_negatives: np.ndarray
    test_negatives: np.ndarray
    train_graph: Graph
    test_graph: Graph
    undirected: bool

    @cached_property
    def _pairs(self) -> tuple[Pairs, np.ndarray]:
        pairs = Pairs(self.train_graph.num_nodes, self.undirected)
        return pairs, np.sort(pairs.numbers(*self.train.astype(np.int64)))

    def train_negatives(self, rng: np.random.Generator) -> np.ndarray:
        """Draw pairs of different nodes without a training edge, one for each training edge.

        Validation and test edges may be among them, as training must not know these; pairs may
        repeat.

        Args:
            rng: generator, such as ``numpy.random.default_rng(seed)``, which each call advances.

        Returns:
            ``(2, n)`` int32.

        Raises:
            TypeError: ``rng`` is not a generator.
            ValueError: all pairs have an edge.
        """
        check_instance("rng", rng, np.random.Generator)
        pairs, edges = self._pairs
        return pairs.negatives(edges, edges.size, rng, replace=True)


def split_edges(
    graph: Graph,
    *,
    valid: float = 0.05,
    test: float = 0.1,
    seed: int,
    undirected: bool | None = None,
    edge_time: ArrayLike | None = None,
) -> EdgeSplit:
    """Split the edges of a graph at random, as Kipf and Welling do (arXiv 1611.07308), or by time.

    Of n edges ``int(n * valid)`` validate and ``int(n * test)`` test; each of these has a negative,
    a pair of different nodes without an edge. Repeated edges count once. Self-loops are not to be
    predicted: they stay in the graphs. An edge and its reverse are in the same part, so that
    neither reveals the other; if the graph is directed, a part may have one edge more for that.
    Works on the host.

    Args:
        graph: the graph, which is not bipartite.
        valid: share of the validation edges.
        test: share of the test edges.
        seed: seed of the split and the negatives; the same seed gives the same split.
        undirected: whether both directions of an edge are one edge; by default true if each edge
            has its reverse.
        edge_time: ``(num_edges,)`` numbers in the graph's order. The last edges then test, those
            before them validate; the time of an edge given twice is the earliest, and edges of one
            time are in random order.

    Raises:
        TypeError: the graph is not a `Graph`, or traced; a share or the seed is not a number.
        ValueError: the graph is bipartite; ``edge_time`` is of another length; a share is below
            0, or leaves no edge to train on; a share above 0 is less than an edge; there are too
            few pairs without an edge; or the graph is undirected, and an edge lacks its reverse.

    Example:
        >>> ring = Graph.from_edges(np.arange(20), (np.arange(20) + 1) % 20).symmetrized()
        >>> split = split_edges(ring, seed=0)
        >>> split.train.shape, split.valid.shape, split.test_negatives.shape
        ((2, 17), (2, 1), (2, 2))
        >>> split.train_graph.num_edges
        34
    """
    pairs, edges, loops = _edges_of(graph, undirected)
    counts = _counts(f"graph has {edges.size} edges", edges.size, valid, test)
    rng = random_generator(seed)
    # Validation edges come first in the permutation, then test edges, then training edges.
    permutation = rng.permutation(edges)
    if edge_time is not None:
        # By time, test edges come first, as they are the last, then validation edges.
        times = _times_of(graph, pairs, edges, edge_time)[np.searchsorted(edges, permutation)]
        permutation = permutation[np.argsort(-times, kind="stable")]
        counts = counts[::-1]
    shuffled = pairs.nodes(permutation)
    # An edge and its reverse become neighbours, in the place of the first, and no cut parts them.
    unordered = Pairs(pairs.num_nodes, True).numbers(*shuffled.astype(np.int64))
    first, groups = np.unique(unordered, return_index=True, return_inverse=True)[1:]
    order = np.argsort(first[groups], kind="stable")
    shuffled, groups = shuffled[:, order], groups[order]
    cuts = [0]
    for count in counts:
        cut = cuts[-1] + count
        cuts.append(cut + bool(0 < cut < groups.size and groups[cut] == groups[cut - 1]))
    parts = np.split(shuffled, cuts[1:], axis=1)
    negatives = np.split(pairs.negatives(edges, cuts[2], rng), cuts[1:2], axis=1)
    if edge_time is not None:
        parts[:2], negatives = parts[1::-1], negatives[::-1]

    def graph_of(*parts: np.ndarray) -> Graph:
        reverses = [part[::-1] for part in parts if pairs.undirected]
        src, dst = np.concatenate([*parts, *reverses, np.stack([loops, loops])], axis=1)
        return Graph.from_edges(src, dst, num_nodes=pairs.num_nodes)

    return EdgeSplit(
        train=parts[2],
        valid=parts[0],
        test=parts[1],
        valid_negatives=negatives[0],
        test_negatives=negatives[1],
        train_graph=graph_of(parts[2]),
        test_graph=graph_of(parts[2], parts[0]),
        undirected=pairs.undirected,
    )


def negative_edges(
    graph: Graph, num_edges: int, *, seed: int, undirected: bool | None = None
) -> np.ndarray:
    """Draw pairs of different nodes without an edge, uniformly and without repetition.

    Args:
        graph: the graph, which is not bipartite.
        num_edges: number of pairs.
        seed: seed of the pairs; the same seed gives the same pairs.
        undirected: whether pairs have no direction; by default true if each edge has its reverse.

    Returns:
        ``(2, num_edges)`` int32, sources first.

    Raises:
        TypeError: the graph is not a `Graph`, or traced; a number is not an integer.
        ValueError: the graph is bipartite or has fewer such pairs, or ``num_edges`` is negative; or
            the graph is undirected, and an edge lacks its reverse.

    Example:
        >>> negative_edges(Graph.from_edges([0, 1, 2], [1, 2, 0]), 3, seed=0).shape
        (2, 3)
    """
    pairs, edges, _ = _edges_of(graph, undirected)
    if check_integer("num_edges", num_edges) < 0:
        raise ValueError(f"num_edges must not be negative, got {num_edges}")
    return pairs.negatives(edges, num_edges, random_generator(seed))


@dataclass(frozen=True)
class Pairs:
    """Numbering of the pairs of different nodes, from 0.

    Attributes:
        num_nodes: number of nodes.
        undirected: whether (u, v) and (v, u) are one pair; then u < v.
    """

    num_nodes: int
    undirected: bool

    @property
    def count(self) -> int:
        """Number of pairs."""
        return self.num_nodes * (self.num_nodes - 1) // (2 if self.undirected else 1)

    def numbers(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Return the numbers of pairs, int64."""
        if self.undirected:
            low, high = np.minimum(src, dst), np.maximum(src, dst)
            return np.asarray(high * (high - 1) // 2 + low)
        return np.asarray(src * (self.num_nodes - 1) + dst - (dst > src))

    def nodes(self, numbers: np.ndarray) -> np.ndarray:
        """Return the pairs with these numbers, ``(2, n)`` int32."""
        if self.undirected:
            # The inverse of high * (high - 1) / 2, corrected below.
            high = ((1 + np.sqrt(8.0 * numbers + 1)) / 2).astype(np.int64)
            high -= high * (high - 1) // 2 > numbers  # the root is rounded
            high += high * (high + 1) // 2 <= numbers
            return np.stack([numbers - high * (high - 1) // 2, high]).astype(np.int32)
        src, dst = np.divmod(numbers, max(self.num_nodes - 1, 1))
        return np.stack([src, dst + (dst >= src)]).astype(np.int32)

    def negatives(
        self, edges: np.ndarray, size: int, rng: np.random.Generator, *, replace: bool = False
    ) -> np.ndarray:
        """Draw pairs without an edge, ``(2, size)`` int32.

        Args:
            edges: numbers of the pairs with an edge, ascending.
            size: number of pairs to draw.
            rng: generator of random numbers.
            replace: whether pairs may repeat.
        """
        free = self.count - edges.size
        if size > (free if not replace else size * min(free, 1)):
            raise ValueError(
                f"graph has {free} pairs of different nodes without an edge, and {size} are wanted"
            )
        ranks = rng.integers(0, max(free, 1), size) if replace else rng.choice(free, size, False)
        # The rank of a negative is its number less the number of edges below. The i-th edge has
        # edges[i] - i negatives below it.
        edges_below = np.searchsorted(edges - np.arange(edges.size), ranks, "right")
        return self.nodes(ranks + edges_below)


def _edges_of(graph: Graph, undirected: bool | None) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """Return the numbering of pairs, the numbers of the edges without repetitions, self-loops."""
    check_instance("graph", graph, Graph)
    if undirected is not None:
        undirected = check_flag("undirected", undirected)
    src, dst = graph.edges()
    loops = np.unique(src[src == dst])
    directed = Pairs(graph.num_nodes, False)
    # Repeated edges count once, and self-loops are handled apart.
    edges = np.unique(directed.numbers(src[src != dst], dst[src != dst]))
    if undirected is False:
        return directed, edges, loops
    src, dst = directed.nodes(edges).astype(np.int64)
    reverses = np.sort(directed.numbers(dst, src))
    if not np.array_equal(edges, reverses):
        if undirected is None:
            return directed, edges, loops
        u, v = directed.nodes(np.setdiff1d(edges, reverses)[:1])[:, 0].tolist()
        raise ValueError(
            f"undirected must be False where an edge, as that from {u} to {v}, has no reverse, "
            "which graph.symmetrized() adds, got True"
        )
    pairs = Pairs(graph.num_nodes, True)
    return pairs, np.sort(pairs.numbers(src[src < dst], dst[src < dst])), loops


def _times_of(graph: Graph, pairs: Pairs, edges: np.ndarray, edge_time: ArrayLike) -> np.ndarray:
    """Return the rank of the earliest time of each pair of `edges`."""
    src, dst, _ = graph._host_edges("edge_time")
    times = np.asarray(edge_time)
    if times.shape != (graph.num_edges,):
        raise ValueError(f"edge_time must be ({graph.num_edges},), got shape {times.shape}")
    ranks = np.unique(times[: src.size], return_inverse=True)[1]  # without padding
    is_edge = src != dst
    numbers = pairs.numbers(src[is_edge].astype(np.int64), dst[is_edge].astype(np.int64))
    earliest = np.full(edges.size, len(ranks))
    np.minimum.at(earliest, np.searchsorted(edges, numbers), ranks[is_edge])
    return earliest


def _counts(what: str, size: int, valid: float, test: float) -> list[int]:
    """Return the numbers of validation and test edges."""
    check_number("valid", valid)
    check_number("test", test)
    if not (valid >= 0 and test >= 0 and valid + test < 1):
        raise ValueError(
            f"valid and test must be from 0 and their sum below 1, got valid={valid}, test={test}"
        )
    counts = [int(size * valid), int(size * test)]
    for name, share, count in zip(("valid", "test"), (valid, test), counts, strict=True):
        if share > 0 and not count:
            raise ValueError(f"{what}, of which {name}={share} takes none")
    if not size:
        raise ValueError(f"{what}, and so none to train on")
    return counts


def with_split_edges(
    dataset: RelationalDataset, *, valid: float = 0.1, test: float = 0.1, seed: int
) -> RelationalDataset:
    """Split the edges of a dataset at random, to predict validation and test edges.

    Of n edges about ``n * valid`` validate and ``n * test`` test. Both edges of a fact that the
    data states twice, by a relation and its inverse, are in the same part. If possible, each node
    and each relation keeps a training edge.

    Args:
        dataset: the dataset, whose split of edges, if it has one, is replaced.
        valid: share of the validation edges.
        test: share of the test edges.
        seed: seed of the split; the same seed gives the same split.

    Returns:
        The dataset with ``train_edges``, ``val_edges`` and ``test_edges``.

    Raises:
        TypeError: the dataset is not relational; a share or the seed is not a number.
        ValueError: a share is below 0, or leaves no edge to train on; or a share above 0 is less
            than an edge.

    Example:
        >>> src, dst = np.arange(20), (np.arange(20) + 1) % 20
        >>> ring = RelationalDataset(name="ring", num_nodes=20, num_relations=1, src=src,
        ...                          rel=0 * src, dst=dst, y=0 * src)
        >>> with_split_edges(ring, seed=0).test_edges.shape
        (2,)
    """
    check_instance("dataset", dataset, RelationalDataset)
    size, rng = dataset.num_edges, random_generator(seed)
    what = f"dataset {dataset.name!r} has {size} edges"
    counts = _counts(what, size, valid, test)
    facts = _facts(dataset)
    sizes = np.bincount(facts)
    order = rng.permutation(sizes.size)
    by_rank = np.argsort(np.argsort(order)[facts], kind="stable")
    # The first fact of each node and relation goes to the end of the order, where training is.
    is_needed = np.zeros(sizes.size, bool)
    for ids in (dataset.src, dataset.dst, dataset.rel):
        first = np.unique(ids[by_rank], return_index=True)[1]
        is_needed[facts[by_rank[first]]] = True
    order = np.concatenate([order[~is_needed[order]], order[is_needed[order]]])
    num_edges = np.concatenate([[0], np.cumsum(sizes[order])])
    parts = np.split(order, np.searchsorted(num_edges, np.cumsum(counts)))
    if any(not part.size for part, count in zip(parts, (*counts, 1), strict=True) if count):
        raise ValueError(f"{what}, which are too few facts for valid={valid} and test={test}")
    names = "val_edges", "test_edges", "train_edges"
    edges = (np.flatnonzero(np.isin(facts, part)) for part in parts)
    split: dict[str, Any] = dict(zip(names, edges, strict=True))
    return replace(dataset, **split)


def _facts(dataset: RelationalDataset) -> np.ndarray:
    """Return the number of the fact that each edge states; inverse edges state the same fact.

    Two relations are inverse if the edges of one are the reversed edges of the other.
    """
    size = dataset.num_edges
    src, dst = dataset.src.astype(np.int64), dataset.dst.astype(np.int64)
    keys, reverse_keys = src * dataset.num_nodes + dst, dst * dataset.num_nodes + src
    starts = np.searchsorted(dataset.rel, np.arange(dataset.num_relations + 1))
    edges = [np.arange(start, stop) for start, stop in pairwise(starts)]
    relation_of_keys = {}
    for ids in edges:
        ids = ids[np.argsort(keys[ids])]
        relation_of_keys[keys[ids].tobytes()] = ids
    inverse = np.arange(size)
    for ids in edges:  # sorted by destination, then source, so that reverse_keys ascend
        inverse[ids] = relation_of_keys.get(reverse_keys[ids].tobytes(), ids)
    links = scipy.sparse.coo_array((np.ones(size, bool), (np.arange(size), inverse)), (size, size))
    return np.asarray(scipy.sparse.csgraph.connected_components(links, directed=False)[1])
