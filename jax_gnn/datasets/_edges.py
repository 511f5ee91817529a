"""Edges to predict: random splits of them, and pairs of nodes without one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from jax_gnn._core.arguments import check_flag, check_instance, check_integer, check_number
from jax_gnn.datasets._check import random_generator
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.graph import Graph


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """Edges to train, validate and test on, and pairs without an edge for the last two.

    All pairs are int32, sources first; of an undirected graph each is there once.

    Attributes:
        train: ``(2, n)``, the training edges.
        valid: ``(2, k)``, the validation edges.
        test: ``(2, m)``, the test edges.
        valid_negatives: ``(2, k)``, pairs of different nodes without an edge.
        test_negatives: ``(2, m)``, others.
        train_graph: what a model sees in training and validation: the training edges, of an
            undirected graph in both directions, and the self-loops of the graph.
        test_graph: what it sees in the test: the validation edges, too.
        undirected: whether an edge has no direction.
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
        """Draws pairs of different nodes without a training edge, as many as there are such edges.

        Validation and test edges may be among them, as nobody knows those in training, and a pair
        may come twice.

        Args:
            rng: such as ``numpy.random.default_rng(seed)``; each call draws others.

        Returns:
            ``(2, n)`` int32.

        Raises:
            TypeError: ``rng`` is no such generator.
            ValueError: all pairs have an edge.
        """
        check_instance("rng", rng, np.random.Generator)
        pairs, edges = self._pairs
        return pairs.others(edges, edges.size, rng, again=True)


def split_edges(
    graph: Graph,
    *,
    valid: float = 0.05,
    test: float = 0.1,
    seed: int,
    undirected: bool | None = None,
) -> EdgeSplit:
    """Splits the edges of a graph at random, as Kipf and Welling do (arXiv 1611.07308).

    Of n edges ``int(n * valid)`` validate and ``int(n * test)`` test; for each there is a pair of
    different nodes without an edge. Repeated edges count once. Self-loops are not to be predicted:
    they stay in the graphs. Works on the host.

    Args:
        graph: its sources are its destinations.
        valid: share of the validation edges.
        test: share of the test edges.
        seed: of edges and pairs; the same seed gives the same split.
        undirected: whether both directions of an edge are one edge, so that no direction tells of
            the other; by default where each edge has its reverse.

    Raises:
        TypeError: the graph is none, or traced; a share or the seed is not a number.
        ValueError: the graph is bipartite; a share is below 0, or both leave no edge to train on; a
            share above 0 is less than an edge; there are too few pairs without an edge; or the
            graph is undirected, and an edge lacks its reverse.

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
    shuffled = pairs.ends(rng.permutation(edges))
    parts = np.split(shuffled, np.cumsum(counts), axis=1)
    negatives = np.split(pairs.others(edges, sum(counts), rng), [counts[0]], axis=1)

    def graph_of(*parts: np.ndarray) -> Graph:
        ends = np.concatenate([*parts, *(part[::-1] for part in parts if pairs.undirected)], 1)
        src, dst = np.concatenate([ends, np.stack([loops, loops])], 1)
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
    """Draws pairs of different nodes without an edge: all are as likely, and none comes twice.

    Args:
        graph: its sources are its destinations.
        num_edges: how many pairs.
        seed: the same seed gives the same pairs.
        undirected: whether a pair has no direction, and so comes once; by default where each edge
            has its reverse.

    Returns:
        ``(2, num_edges)`` int32, sources first.

    Raises:
        TypeError: the graph is none, or traced; a number is no integer.
        ValueError: the graph is bipartite or has fewer such pairs, or ``num_edges`` is negative; or
            the graph is undirected, and an edge lacks its reverse.

    Example:
        >>> negative_edges(Graph.from_edges([0, 1, 2], [1, 2, 0]), 3, seed=0).shape
        (2, 3)
    """
    pairs, edges, _ = _edges_of(graph, undirected)
    if check_integer("num_edges", num_edges) < 0:
        raise ValueError(f"num_edges must not be negative, got {num_edges}")
    return pairs.others(edges, num_edges, random_generator(seed))


@dataclass(frozen=True)
class Pairs:
    """The pairs of different nodes, numbered from 0.

    Attributes:
        num_nodes: how many nodes there are.
        undirected: whether (u, v) and (v, u) are one pair; then u < v.
    """

    num_nodes: int
    undirected: bool

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return self.num_nodes * (self.num_nodes - 1) // (2 if self.undirected else 1)

    def numbers(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """The numbers of pairs, int64."""
        if self.undirected:
            low, high = np.minimum(src, dst), np.maximum(src, dst)
            return high * (high - 1) // 2 + low
        return src * (self.num_nodes - 1) + dst - (dst > src)

    def ends(self, numbers: np.ndarray) -> np.ndarray:
        """The pairs of numbers, ``(2, n)`` int32."""
        if self.undirected:
            high = ((1 + np.sqrt(8.0 * numbers + 1)) / 2).astype(np.int64)
            high -= high * (high - 1) // 2 > numbers  # the root may be rounded
            high += high * (high + 1) // 2 <= numbers
            return np.stack([numbers - high * (high - 1) // 2, high]).astype(np.int32)
        src, dst = np.divmod(numbers, max(self.num_nodes - 1, 1))
        return np.stack([src, dst + (dst >= src)]).astype(np.int32)

    def others(
        self, edges: np.ndarray, size: int, rng: np.random.Generator, *, again: bool = False
    ) -> np.ndarray:
        """Random pairs that are no edges, ``(2, size)`` int32.

        Args:
            edges: the numbers of those that are, ascending.
            size: how many to draw.
            rng: where they are drawn from.
            again: whether a pair may be drawn again.
        """
        free = self.count - edges.size
        if size > (free if not again else size * min(free, 1)):
            raise ValueError(
                f"graph has {free} pairs of different nodes without an edge, and {size} are wanted"
            )
        drawn = rng.integers(0, max(free, 1), size) if again else rng.choice(free, size, False)
        # Below the i-th edge there are as many pairs without one as its number exceeds i.
        return self.ends(drawn + np.searchsorted(edges - np.arange(edges.size), drawn, "right"))


def _edges_of(graph: Graph, undirected: bool | None) -> tuple[Pairs, np.ndarray, np.ndarray]:
    """How pairs of a graph are numbered, its edges' numbers, each once, and nodes with loops."""
    check_instance("graph", graph, Graph)
    if undirected is not None:
        undirected = check_flag("undirected", undirected)
    src, dst = graph.edges()
    loops = np.unique(src[src == dst])
    directed = Pairs(graph.num_nodes, False)
    there = np.unique(directed.numbers(src[src != dst], dst[src != dst]))
    if undirected is False:
        return directed, there, loops
    src, dst = directed.ends(there).astype(np.int64)
    back = np.sort(directed.numbers(dst, src))
    if not np.array_equal(there, back):
        if undirected is None:
            return directed, there, loops
        u, v = directed.ends(np.setdiff1d(there, back)[:1])[:, 0].tolist()
        raise ValueError(
            f"undirected must be False where an edge, as that from {u} to {v}, has no reverse, "
            "which graph.symmetrized() adds, got True"
        )
    pairs = Pairs(graph.num_nodes, True)
    return pairs, np.sort(pairs.numbers(src[src < dst], dst[src < dst])), loops


def _counts(what: str, size: int, valid: float, test: float) -> list[int]:
    """How many validate, and how many test."""
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
    """Splits the edges of a dataset at random, to predict some from the others.

    Of n edges about ``n * valid`` validate and ``n * test`` test. A fact that the data hold twice
    is in one part: a relation that is another's inverse, or its own, goes with it. As long as there
    are others, no edge is taken from training that is a node's or a relation's only one there.

    Args:
        dataset: its split of edges, if it has one, is replaced.
        valid: share of the validation edges.
        test: share of the test edges.
        seed: the same seed gives the same split.

    Returns:
        The dataset with ``train_edges``, ``val_edges`` and ``test_edges``.

    Raises:
        TypeError: the dataset is no relational one; a share or the seed is not a number.
        ValueError: a share is below 0, or both leave no edge to train on; or a share above 0 is
            less than an edge.

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
    kept = np.zeros(sizes.size, bool)
    for ids in (dataset.src, dataset.dst, dataset.rel):
        first = np.unique(ids[by_rank], return_index=True)[1]
        kept[facts[by_rank[first]]] = True
    order = np.concatenate([order[~kept[order]], order[kept[order]]])
    left = np.concatenate([[0], np.cumsum(sizes[order])])
    parts = np.split(order, np.searchsorted(left, np.cumsum(counts)))
    if any(not part.size for part, count in zip(parts, (*counts, 1), strict=True) if count):
        raise ValueError(f"{what}, which are too few facts for valid={valid} and test={test}")
    names = "val_edges", "test_edges", "train_edges"
    edges = (np.flatnonzero(np.isin(facts, part)) for part in parts)
    split: dict[str, Any] = dict(zip(names, edges, strict=True))
    return replace(dataset, **split)


def _facts(dataset: RelationalDataset) -> np.ndarray:
    """The number of the fact that each edge states: those of two inverse relations state it twice.

    Relations are inverse if all edges are.
    """
    size = dataset.num_edges
    src, dst = dataset.src.astype(np.int64), dataset.dst.astype(np.int64)
    there, back = src * dataset.num_nodes + dst, dst * dataset.num_nodes + src
    starts = np.searchsorted(dataset.rel, np.arange(dataset.num_relations + 1))
    edges = [np.arange(*span) for span in pairwise(starts)]
    by_ends = {}
    for ids in edges:
        ids = ids[np.argsort(there[ids])]
        by_ends[there[ids].tobytes()] = ids
    inverse = np.arange(size)
    for ids in edges:  # these ascend by destination, then source
        inverse[ids] = by_ends.get(back[ids].tobytes(), ids)
    links = scipy.sparse.coo_array((np.ones(size, bool), (np.arange(size), inverse)), (size, size))
    return scipy.sparse.csgraph.connected_components(links, directed=False)[1]
