"""The graphs that the benchmarks run on: real ones by path, and seeded synthetic twins.

Nothing is stored here. ``hypergraphs(data)`` names what can be had; an entry is loaded or drawn
only when a benchmark asks for it, and every process that asks gets the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse


@dataclass(frozen=True, eq=False)
class Incidence:
    """A hypergraph's incidence pairs, sorted by hyperedge and then by node, without duplicates."""

    num_nodes: int
    num_hyperedges: int
    node_idx: np.ndarray
    hyperedge_idx: np.ndarray

    @property
    def by_node(self) -> tuple[np.ndarray, np.ndarray]:
        """The same pairs ``(node_idx, hyperedge_idx)`` sorted by node and then by hyperedge."""
        order = np.argsort(self.node_idx, kind="stable")
        return self.node_idx[order], self.hyperedge_idx[order]

    @property
    def node_degrees(self) -> np.ndarray:
        """Number of hyperedges of each node: (num_nodes,)."""
        return np.bincount(self.node_idx, minlength=self.num_nodes)

    @property
    def hyperedge_degrees(self) -> np.ndarray:
        """Number of nodes of each hyperedge: (num_hyperedges,)."""
        return np.bincount(self.hyperedge_idx, minlength=self.num_hyperedges)


@dataclass(frozen=True, eq=False)
class PlainGraph:
    """A graph's edges, sorted by destination and then by source.

    Attributes:
        num_nodes: Sources and destinations alike.
        indptr: First edge of each destination: (num_nodes + 1,).
        rows: Destination of each edge: (num_edges,).
        cols: Source of each edge: (num_edges,).
        sizes: Number of nodes of each graph of a batch; None for a graph that is no batch.
    """

    num_nodes: int
    indptr: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    sizes: np.ndarray | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.rows)

    @cached_property
    def transposed(self) -> PlainGraph:
        """The reversed edges, sorted by the source of the original ones."""
        return PlainGraph(
            self.num_nodes,
            self._csc.indptr,
            np.repeat(np.arange(self.num_nodes, dtype=np.int32), np.diff(self._csc.indptr)),
            self._csc.indices,
        )

    @property
    def order(self) -> np.ndarray:
        """Which edge of this graph an edge of `transposed` is: (num_edges,)."""
        return self._csc.data

    @cached_property
    def _csc(self) -> Any:
        edges = np.arange(self.num_edges, dtype=np.int32)
        shape = self.num_nodes, self.num_nodes
        return scipy.sparse.csr_array((edges, self.cols, self.indptr), shape=shape).tocsc()


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows sorted by group.

    Attributes:
        sizes: How many rows each group has: (num_groups,).
    """

    sizes: np.ndarray

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.sizes.sum())

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    @cached_property
    def indptr(self) -> np.ndarray:
        """First row of each group: (num_groups + 1,)."""
        return row_pointers(self.sizes)

    @cached_property
    def ids(self) -> np.ndarray:
        """Group of each row: (num_rows,)."""
        return np.repeat(np.arange(self.num_groups, dtype=np.int32), self.sizes)


@dataclass(frozen=True, eq=False)
class Triples:
    """Edges with a relation each, sorted by destination, relation and source.

    The last relation is that of an edge from each node to itself.

    Attributes:
        num_nodes: Sources and destinations alike.
        num_relations: With that of nodes to themselves.
        src: Source of each edge: (num_edges,).
        rel: Its relation.
        dst: Its destination.
    """

    num_nodes: int
    num_relations: int
    src: np.ndarray
    rel: np.ndarray
    dst: np.ndarray

    @property
    def num_edges(self) -> int:
        """Number of edges, those of nodes to themselves included."""
        return len(self.src)

    @cached_property
    def mean(self) -> np.ndarray:
        """1 / the number of edges into a destination by the same relation, for each edge."""
        new = np.r_[True, (np.diff(self.dst) != 0) | (np.diff(self.rel) != 0)]
        starts = np.flatnonzero(new)
        counts = np.diff(np.r_[starts, self.num_edges])
        return np.repeat(1 / counts, counts).astype(np.float32)

    @cached_property
    def graph(self) -> Any:
        """The same edges as this library's container, which sorts them alike."""
        import jax_gnn

        return jax_gnn.RelationalGraph.from_triples(
            self.src, self.rel, self.dst, self.num_nodes, self.num_relations
        )

    def by(self, ids: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The order that sorts edges by ids, and where each id's edges begin."""
        return np.argsort(ids, kind="stable"), row_pointers(np.bincount(ids, minlength=size))


@dataclass(frozen=True)
class Workload:
    """A named graph that is loaded when it is needed.

    Attributes:
        name: As in the tables.
        load: Reads or draws it.
        on_request: Left out unless asked for by name.
        on_cpu: Whether it runs on a CPU without being asked for by name.
        large: Not on a CPU either; on a GPU one width is held at a time.
    """

    name: str
    load: Callable[[], Any]
    on_request: bool = False
    on_cpu: bool = True
    large: bool = False


def hypergraphs(data: Path | None) -> dict[str, Workload]:
    """All hypergraphs by name: ``data/hypergraph/*.npz`` if ``data`` is given, and the twins.

    Raises:
        FileNotFoundError: ``data`` holds no ``hypergraph/*.npz``.
    """
    real = _real(data, "hypergraph", _load_incidence)
    twins = partial(Workload, on_request=bool(real))
    # The first three have the counts of DBLP co-authorship.
    dblp = {"num_nodes": 41_302, "num_hyperedges": 22_363}
    found = [
        *real,
        twins("uniform", partial(uniform, **dblp, mean_size=4.5)),
        twins("zipf", partial(long_tail, **dblp, max_size=202, exponent=1.3)),
        twins("giant", partial(giant, **dblp, mean_size=4.5)),
        Workload("tiny", partial(uniform, 200, 100, mean_size=4.0), on_request=True),
        Workload(
            "yelp-twin",
            partial(long_tail, 50_758, 679_302, max_size=2_838, exponent=1.39),
            on_request=True,
        ),
    ]
    return {workload.name: workload for workload in found}


# Nodes, edges, relations, the shares of edges that have a (source, relation) and a (destination,
# relation) pair of their own, and the exponent by which relations fall in size.
RELATIONAL_TWINS = {
    "bgs": (333_845, 1_832_398, 206, 0.39, 0.37, 1.0),
    "am": (1_666_764, 11_976_642, 266, 0.59, 0.56, 1.0),
    "biokg": (93_773, 4_762_678, 51, 0.15, 0.16, 0.5),
    "mag": (1_939_743, 21_111_007, 4, 0.10, 0.07, 0.2),
    "wikikg2": (2_500_604, 16_109_182, 535, 0.87, 0.87, 1.0),
}
FREEBASE = 180_098, 1_057_688, 36, 0.5, 0.5
"""Sizes of HGB's Freebase; its shares are assumed."""


def relational_graphs(data: Path | None) -> dict[str, Workload]:
    """AIFB, MUTAG and FB15k-237 with inverses, if ``data`` is given, and twins of larger ones.

    Raises:
        FileNotFoundError: ``data`` holds no ``relational/*.npz``.
    """
    published = "aifb", "mutag", "fb15k237"
    found = [w for w in _real(data, "relational", _load_triples) if w.name in published]
    found.append(Workload("tiny", partial(typed_edges, 100, 500, 5, 0.6, 0.5), on_request=True))
    for name, sizes in RELATIONAL_TWINS.items():
        large = sizes[1] > 2_000_000
        found.append(
            Workload(f"{name}-twin", partial(typed_edges, *sizes), on_cpu=False, large=large)
        )
    freebase = partial(typed_edges, *FREEBASE)
    found.append(Workload("freebase-twin", freebase, on_request=True, on_cpu=False))
    return {workload.name: workload for workload in found}


def typed_edges(
    num_nodes: int,
    num_edges: int,
    num_relations: int,
    source_share: float,
    destination_share: float,
    exponent: float = 1.0,
    seed: int = 0,
) -> Triples:
    """Relations fall in size as rank to the power of ``-exponent``; edges of nodes to themselves.

    Each relation has its share of pairs at either end, whose nodes lie in a range of four times as
    many, as those of a type do; each pair has an edge, and few of them have most of the rest.
    """
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, num_relations + 1) ** -exponent
    sizes = rng.multinomial(num_edges, popularity / popularity.sum())

    def ends(size: int, share: float) -> np.ndarray:
        count = max(1, min(num_nodes, round(size * share)))
        width = min(num_nodes, 4 * count)
        nodes = rng.integers(num_nodes - width + 1) + rng.permutation(width)[:count]
        again = nodes[(count * rng.random(max(size - count, 0)) ** 2).astype(np.int64)]
        return rng.permutation(np.concatenate([nodes, again])[:size])

    src = np.concatenate([ends(size, source_share) for size in sizes])
    dst = np.concatenate([ends(size, destination_share) for size in sizes])
    return _sorted_triples(
        num_nodes, num_relations, src, np.repeat(np.arange(len(sizes)), sizes), dst
    )


def _sorted_triples(
    num_nodes: int, num_relations: int, src: np.ndarray, rel: np.ndarray, dst: np.ndarray
) -> Triples:
    """Adds the edges of nodes to themselves."""
    nodes = np.arange(num_nodes)
    own = np.full(num_nodes, num_relations)
    src, rel, dst = (
        np.concatenate(pair).astype(np.int32) for pair in ((src, nodes), (rel, own), (dst, nodes))
    )
    order = np.lexsort((src, rel, dst))
    return Triples(num_nodes, num_relations + 1, src[order], rel[order], dst[order])


# Nodes, edges and the exponent of the degree law, with which the largest degree comes near to the
# published graph's, where it is known.
TWINS = {
    "cora": (2_708, 10_556, 0.5),
    "citeseer": (3_327, 9_104, 0.5),
    "pubmed": (19_717, 88_648, 0.55),
    "amazon_photo": (7_650, 238_162, 0.55),
    "flickr": (89_250, 899_756, 0.65),
    "ogbn-arxiv": (169_343, 1_166_243, 0.75),
    "ogbl-collab": (235_868, 1_285_465, 0.43),
    "reddit2": (232_965, 23_213_838, 0.4),
}


def plain_graphs(data: Path | None) -> dict[str, Workload]:
    """All plain graphs by name: ``data/homogeneous/*.npz`` if ``data`` is given, and the twins.

    A twin's degrees have their long tail among the destinations (rows), or, if its name ends in
    ``-cols``, among the sources (columns).

    Args:
        data: Folder with real graphs; the twins of these are then left out.

    Raises:
        FileNotFoundError: ``data`` holds no ``homogeneous/*.npz``.
    """
    real = _real(data, "homogeneous", _load_plain)
    # Real graphs without a published benchmark are there for the tuner.
    found = [Workload(w.name, w.load, on_request=w.name not in TWINS) for w in real]
    names = {workload.name for workload in found}
    for name, (num_nodes, num_edges, exponent) in TWINS.items():
        large = num_edges > 10_000_000
        twin = partial(power_law, num_nodes, num_edges, exponent)
        if name not in names:
            found.append(Workload(f"{name}-twin", twin, large=large))
            if num_edges > 500_000:
                found.append(
                    Workload(f"{name}-twin-cols", partial(twin, in_columns=True), large=large)
                )
    found.append(Workload("hub", partial(hub, 200_000), on_request=True))
    # Of ogbn-arxiv's size.
    found.append(Workload("even", partial(even, 169_344, 7, 0.75), on_request=True))
    with_hub = partial(even, 169_344, 7, 0.75, with_hub=True)
    found.append(Workload("even-hub", with_hub, on_request=True))
    found.append(Workload("tiny", partial(power_law, 200, 900, 0.5), on_request=True))
    return {workload.name: workload for workload in found}


def molecules(
    num_graphs: int = 10_000, seed: int = 0, least: int = 20, most: int = 40
) -> PlainGraph:
    """A batch of graphs of so many nodes: trees of short branches, and a ring for ten nodes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(least, most + 1, num_graphs)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    nodes = np.arange(sizes.sum())
    bonds = nodes - rng.integers(1, 4, len(nodes))
    rings = np.where(rng.random(len(nodes)) < 0.1, nodes - 5, -1)
    ends, others = np.concatenate([nodes, nodes]), np.concatenate([bonds, rings])
    kept = others >= np.concatenate([first, first])
    ends, others = ends[kept], others[kept]
    rows, cols = np.concatenate([ends, others]), np.concatenate([others, ends])
    return replace(_sorted_graph(len(nodes), rows, cols), sizes=sizes)


def row_groups(data: Path | None) -> dict[str, Workload]:
    """Sizes of groups by name: of real graphs' relations if ``data`` is given, and uniform ones.

    Real ones are the row pointers ``NAME_segment_ptr`` in ``data/relational/*segment_sizes.npz``.
    ``uniform-GROUPS`` are a million rows as FASTEN draws them; those with ``-100k`` fit a CPU, and
    ``uniform-1-100k`` is an ordinary dense product.

    Raises:
        FileNotFoundError: ``data`` holds no ``relational/*segment_sizes.npz``.
    """
    paths = sorted((data / "relational").glob("*segment_sizes.npz")) if data else []
    if data and not paths:
        raise FileNotFoundError(f"no relational/*segment_sizes.npz under {data}")
    found = []
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays:
                sizes = np.diff(arrays[key]).astype(np.int32)
                name = key.removesuffix("_segment_ptr")
                on_cpu = sizes.sum() <= 100_000
                found.append(Workload(name, partial(Groups, sizes), on_cpu=on_cpu))
    for num_groups in (100, 700, 1900):
        draw = partial(uniform_groups, num_groups, 1_000_000)
        found.append(Workload(f"uniform-{num_groups}", draw, on_cpu=False))
    for num_groups in (1, 50):
        draw = partial(uniform_groups, num_groups, 100_000)
        found.append(Workload(f"uniform-{num_groups}-100k", draw))
    found.append(Workload("tiny", partial(uniform_groups, 7, 300), on_request=True))
    return {workload.name: workload for workload in found}


def uniform_groups(num_groups: int, num_rows: int, seed: int = 0) -> Groups:
    """Every row belongs to any group with the same probability."""
    rng = np.random.default_rng(seed)
    sizes = rng.multinomial(num_rows, np.full(num_groups, 1 / num_groups))
    return Groups(sizes.astype(np.int32))


def power_law(
    num_nodes: int, num_edges: int, exponent: float, seed: int = 0, in_columns: bool = False
) -> PlainGraph:
    """Expected degrees fall as rank to the power of ``-exponent``; ids are shuffled.

    The other end of each edge is uniform, but not the same. An edge may come twice.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, num_nodes + 1) ** -exponent)
    degrees = rng.multinomial(num_edges, popularity / popularity.sum())
    ends = np.repeat(np.arange(num_nodes), degrees), rng.integers(num_nodes, size=num_edges)
    rows, cols = ends[::-1] if in_columns else ends
    cols = (cols + (cols == rows)) % num_nodes
    return _sorted_graph(num_nodes, rows, cols)


def hub(num_nodes: int, seed: int = 0) -> PlainGraph:
    """Half of all edges are one from each node to node 0; the ends of the others are uniform."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([np.zeros(num_nodes, np.int64), rng.integers(num_nodes, size=num_nodes)])
    cols = np.concatenate([np.arange(num_nodes), rng.integers(num_nodes, size=num_nodes)])
    return _sorted_graph(num_nodes, rows, cols)


def even(
    num_nodes: int, degree: int, exponent: float, seed: int = 0, with_hub: bool = False
) -> PlainGraph:
    """As many edges into each node, from nodes whose degrees have a long tail.

    With a hub every other edge goes to node 0 instead.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, num_nodes + 1) ** -exponent)
    cols = rng.choice(num_nodes, num_nodes * degree, p=popularity / popularity.sum())
    rows = np.repeat(np.arange(num_nodes), degree)
    if with_hub:
        rows[::2] = 0
    return _sorted_graph(num_nodes, rows, cols)


def _sorted_graph(num_nodes: int, rows: np.ndarray, cols: np.ndarray) -> PlainGraph:
    """Edges that are in any order."""
    rows, cols = np.divmod(np.sort(rows.astype(np.int64) * num_nodes + cols), num_nodes)
    indptr = row_pointers(np.bincount(rows, minlength=num_nodes))
    return PlainGraph(num_nodes, indptr, rows.astype(np.int32), cols.astype(np.int32))


def row_pointers(counts: np.ndarray) -> np.ndarray:
    """CSR's ``indptr`` from the number of entries of each row."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def uniform(num_nodes: int, num_hyperedges: int, mean_size: float, seed: int = 0) -> Incidence:
    """Hyperedge sizes 1 + Poisson, nodes drawn uniformly."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(1 + rng.poisson(mean_size - 1, num_hyperedges), num_nodes)
    return _draw(rng, sizes, np.ones(num_nodes))


def long_tail(
    num_nodes: int, num_hyperedges: int, max_size: int, exponent: float, seed: int = 0
) -> Incidence:
    """Pareto hyperedge sizes from 2 to exactly ``max_size``, node degrees falling as a power law.

    With ``exponent`` 1.39 the sizes have Yelp's median 3 and mean near 6.7.
    """
    rng = np.random.default_rng(seed)
    sizes = np.floor(2 * rng.random(num_hyperedges) ** (-1 / exponent))
    sizes = np.minimum(sizes, max_size).astype(np.int64)
    sizes[rng.integers(num_hyperedges)] = max_size
    popularity = rng.permutation(np.arange(1, num_nodes + 1) ** -0.5)
    return _draw(rng, sizes, popularity)


def giant(num_nodes: int, num_hyperedges: int, mean_size: float, seed: int = 0) -> Incidence:
    """As `uniform`, but hyperedge 0 holds every node."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(1 + rng.poisson(mean_size - 1, num_hyperedges), num_nodes)
    sizes[0] = num_nodes
    return _draw(rng, sizes, np.ones(num_nodes))


def skewed(
    num_nodes: int,
    num_hyperedges: int,
    num_incidences: int,
    exponents: tuple[float, float],
    seed: int = 0,
) -> Incidence:
    """Expected degrees of nodes and of hyperedges fall as rank to the power of ``-exponent``.

    An incidence that is drawn twice is there once, so that there are fewer than asked for.
    """
    rng = np.random.default_rng(seed)

    def draw(size: int, exponent: float) -> np.ndarray:
        popularity = rng.permutation(np.arange(1, size + 1) ** -exponent)
        degrees = rng.multinomial(num_incidences, popularity / popularity.sum())
        return rng.permutation(np.repeat(np.arange(size), degrees))

    nodes, hyperedges = map(draw, (num_nodes, num_hyperedges), exponents)
    keys = np.unique(hyperedges * num_nodes + nodes)
    return Incidence(
        num_nodes,
        num_hyperedges,
        node_idx=(keys % num_nodes).astype(np.int32),
        hyperedge_idx=(keys // num_nodes).astype(np.int32),
    )


def _draw(rng: np.random.Generator, sizes: np.ndarray, popularity: np.ndarray) -> Incidence:
    """Draws ``sizes[e]`` distinct nodes for every hyperedge, by popularity."""
    num_nodes = len(popularity)
    full = sizes >= num_nodes
    hyperedge, node = (
        np.nonzero(full)[0].repeat(num_nodes),
        np.tile(np.arange(num_nodes), full.sum()),
    )
    keys = hyperedge * num_nodes + node
    cumulative = np.cumsum(popularity) / np.sum(popularity)
    attempt = 0
    while (missing := sizes - np.bincount(keys // num_nodes, minlength=len(sizes))).any():
        hyperedge = np.repeat(np.arange(len(sizes)), missing)
        if attempt < 8:
            node = np.searchsorted(cumulative, rng.random(len(hyperedge)))
        else:  # the popular nodes are used up in the largest hyperedges
            node = rng.integers(num_nodes, size=len(hyperedge))
        drawn = hyperedge * num_nodes + np.minimum(node, num_nodes - 1)
        keys = np.sort(np.concatenate([keys, drawn]))
        keys = keys[np.diff(keys, prepend=-1) > 0]
        attempt += 1
    return Incidence(
        num_nodes,
        len(sizes),
        node_idx=(keys % num_nodes).astype(np.int32),
        hyperedge_idx=(keys // num_nodes).astype(np.int32),
    )


def _real(data: Path | None, folder: str, load: Callable[[Path], Any]) -> list[Workload]:
    """A workload for each ``data/folder/*.npz``."""
    if data is None:
        return []
    paths = sorted((data / folder).glob("*.npz"))
    if not paths:
        raise FileNotFoundError(f"no {folder}/*.npz under {data}")
    return [Workload(path.stem, partial(load, path)) for path in paths]


def _load_incidence(path: Path) -> Incidence:
    with np.load(path, allow_pickle=False) as arrays:
        node_idx, hyperedge_idx = arrays["node_idx"], arrays["hyperedge_idx"]
        num_nodes, num_hyperedges = int(arrays["num_nodes"]), int(arrays["num_hyperedges"])
    order = np.lexsort((node_idx, hyperedge_idx))
    return Incidence(num_nodes, num_hyperedges, node_idx[order], hyperedge_idx[order])


def _load_plain(path: Path) -> PlainGraph:
    with np.load(path, allow_pickle=False) as arrays:
        num_nodes, src, dst = int(arrays["num_nodes"]), arrays["src"], arrays["dst"]
    return _sorted_graph(num_nodes, dst, src)


def plain_relational(data: Path | None, name: str) -> list[Workload]:
    """A graph of ``data/relational``, with inverses and without its relations, if it is there."""

    def load(path: Path) -> PlainGraph:
        found = _load_triples(path)
        return _sorted_graph(found.num_nodes, found.dst, found.src)

    paths = [data / "relational" / f"{name}.npz"] if data else []
    return [Workload(path.stem, partial(load, path)) for path in paths if path.exists()]


def _load_triples(path: Path) -> Triples:
    """With inverses, which files lack."""
    with np.load(path, allow_pickle=False) as arrays:
        src, rel, dst = (arrays[name].astype(np.int64) for name in ("src", "rel", "dst"))
        num_nodes, num_relations = int(arrays["num_nodes"]), int(arrays["num_relations"])
    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    types = np.concatenate([rel, rel + num_relations])
    return _sorted_triples(num_nodes, 2 * num_relations, ends[0], types, ends[1])
