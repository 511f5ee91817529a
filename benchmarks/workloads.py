"""The graphs that the benchmarks run on: real ones by path, and seeded synthetic twins.

Nothing is stored here. ``hypergraphs(data)`` names what can be had; an entry is loaded or drawn
only when a benchmark asks for it, and every process that asks gets the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Workload:
    """A named graph that is loaded when it is needed."""

    name: str
    load: Callable[[], Incidence]
    real: bool
    on_request: bool = False
    """Left out unless asked for by name, because of its size (or its smallness)."""


def hypergraphs(data: Path | None) -> dict[str, Workload]:
    """All hypergraphs by name: ``data/hypergraph/*.npz`` if ``data`` is given, and the twins.

    Raises:
        FileNotFoundError: ``data`` holds no ``hypergraph/*.npz``.
    """
    found: list[Workload] = []
    if data is not None:
        paths = sorted((data / "hypergraph").glob("*.npz"))
        if not paths:
            raise FileNotFoundError(f"no hypergraph/*.npz under {data}")
        found += [Workload(path.stem, partial(_load_npz, path), real=True) for path in paths]
    # The first three have the counts of DBLP co-authorship.
    dblp = {"num_nodes": 41_302, "num_hyperedges": 22_363}
    found += [
        Workload("uniform", partial(uniform, **dblp, mean_size=4.5), real=False),
        Workload("zipf", partial(long_tail, **dblp, max_size=202, exponent=1.3), real=False),
        Workload("giant", partial(giant, **dblp, mean_size=4.5), real=False),
        Workload("tiny", partial(uniform, 200, 100, mean_size=4.0), real=False, on_request=True),
        Workload(
            "yelp-twin",
            partial(long_tail, 50_758, 679_302, max_size=2_838, exponent=1.39),
            real=False,
            on_request=True,
        ),
    ]
    return {workload.name: workload for workload in found}


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


def _load_npz(path: Path) -> Incidence:
    with np.load(path, allow_pickle=False) as arrays:
        node_idx, hyperedge_idx = arrays["node_idx"], arrays["hyperedge_idx"]
        num_nodes, num_hyperedges = int(arrays["num_nodes"]), int(arrays["num_hyperedges"])
    order = np.lexsort((node_idx, hyperedge_idx))
    return Incidence(num_nodes, num_hyperedges, node_idx[order], hyperedge_idx[order])
