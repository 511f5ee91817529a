"""Inputs and references of products by relation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from op_spec import OUT_OF_RANGE, Incidence

from jax_gnn import RelationalGraph

RELATIONS = 5


class Triples(NamedTuple):
    """Edges for references, in the order of a graph; edges with an id out of range come last."""

    src: np.ndarray
    rel: np.ndarray
    dst: np.ndarray
    num_src: int
    num_dst: int

    @property
    def valid(self) -> np.ndarray:
        sizes = (self.src, self.num_src), (self.rel, RELATIONS), (self.dst, self.num_dst)
        return np.logical_and.reduce([(ids >= 0) & (ids < size) for ids, size in sizes])


def random_triples(rng: np.random.Generator, scenario: str) -> Triples:
    """Draw edges: two relations, the last one included, have none; in "giant" one has all."""
    incidence = Incidence.random(rng, scenario)
    size = len(incidence.left)
    rel = rng.permutation(RELATIONS - 1)[: RELATIONS - 2][rng.integers(0, RELATIONS - 2, size)]
    if scenario == "giant":
        rel[:] = rng.integers(RELATIONS)
    if scenario == "duplicates":
        rel[size // 2 :] = rel[: size // 2]
    # An edge is padding if any of its three ids is out of range.
    if scenario == "padding":
        where = rng.choice(size, size // 8, replace=False)
        rel[where] = rng.choice([*OUT_OF_RANGE, RELATIONS], len(where))
    sizes = incidence.num_left, incidence.num_right
    triples = Triples(incidence.left, rel, incidence.right, *sizes)
    # The order of the container, so that edge weights of references need no permutation.
    order = np.lexsort((triples.src, triples.rel, triples.dst, ~triples.valid))
    return Triples(triples.src[order], rel[order], triples.dst[order], *sizes)


def graph_of(triples, parts=("from_pairs", "to_pairs")) -> RelationalGraph:
    """Build a graph with a pair for each edge, so that graphs of equal sizes can be stacked."""
    src, rel, dst, num_src, num_dst = triples
    sizes = {"num_src": num_src, "num_dst": num_dst, "num_relations": RELATIONS}
    graph = RelationalGraph.from_triples(src, rel, dst, **sizes, parts=parts, validate=False)
    pairs = ("num_src_pairs", "num_dst_pairs")
    room = {name: len(src) for name in pairs if getattr(graph, name) is not None}
    return graph.pad(**room)


def aggregate_reference(
    triples: Triples, x: np.ndarray, rhs: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Sum the products of one relation after another."""
    weight = np.ones(len(triples.src)) if weight is None else weight
    result = np.zeros((triples.num_dst, rhs.shape[2]), np.result_type(x, rhs, weight))
    for relation in np.unique(triples.rel[triples.valid]):
        edges = np.flatnonzero(triples.valid & (triples.rel == relation))
        products = weight[edges, None] * (x[triples.src[edges]] @ rhs[relation])
        np.add.at(result, triples.dst[edges], products)
    return result


def lookup_reference(
    triples: Triples, table: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Sum the rows of all edges."""
    weight = np.ones(len(triples.src)) if weight is None else weight
    result = np.zeros((triples.num_dst, table.shape[2]), np.result_type(table, weight))
    edges = np.flatnonzero(triples.valid)
    rows = weight[edges, None] * table[triples.rel[edges], triples.src[edges]]
    np.add.at(result, triples.dst[edges], rows)
    return result
