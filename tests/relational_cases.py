"""Inputs and references of products by relation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from op_spec import OUT_OF_RANGE, Incidence

from jax_gnn import Graph, RelationalGraph
from jax_gnn._core.relations import Pairs

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


# --- Relational graphs ----------------------------------------------------------------------------


def skewed_triples(
    rng: np.random.Generator, count: int, num_src: int, num_dst: int, num_relations: int
) -> Any:
    """Random (src, rel, dst) with repetitions, empty relations and nodes without edges."""
    # Cubes of uniform numbers are skewed to small ids.
    sizes = (num_src, num_relations, num_dst)
    return tuple((size * rng.random(count) ** 3).astype(np.int64) for size in sizes)


def check_graph(graph: Graph, rows, cols, ids) -> None:
    """Check both halves of a graph against its entries, by destination and by source."""
    count = len(rows)
    for array, expected in ((graph.rows, rows), (graph.cols, cols), (graph.edge_ids, ids)):
        np.testing.assert_array_equal(array[:count], expected)
        assert (array[count:] == -1).all()
    # By source, edges keep their order by destination.
    order = np.lexsort((np.arange(count), cols))
    for array, expected in (
        (graph.t_rows, np.asarray(cols)[order]),
        (graph.t_cols, np.asarray(rows)[order]),
        (graph.t_order, order),
    ):
        np.testing.assert_array_equal(array[:count], expected)
        assert (array[count:] == -1).all()
    for node_ids, size, indptr in (
        (rows, graph.num_dst, graph.indptr),
        (cols, graph.num_src, graph.t_indptr),
    ):
        starts = np.searchsorted(np.sort(node_ids), np.arange(size + 1))
        np.testing.assert_array_equal(indptr, starts)


def check_pairs(pairs: Pairs, by_relation: np.ndarray, num_nodes: int, num_relations: int) -> None:
    """Check pairs against the sorted (relation, node) pairs."""
    rel, nodes = by_relation
    count, size = len(nodes), pairs.num_pairs
    # Pairs are numbered by relation, and sorted_nodes lists them by node.
    by_node = np.lexsort((rel, nodes))
    order = np.concatenate([by_node, np.arange(count, size)])  # padding is at its own place
    padding = np.full(size - count, -1)
    np.testing.assert_array_equal(pairs.nodes, np.concatenate([nodes, padding]))
    np.testing.assert_array_equal(pairs.sorted_nodes, np.concatenate([nodes[by_node], padding]))
    np.testing.assert_array_equal(pairs.order, order)
    np.testing.assert_array_equal(pairs.places, np.argsort(order))
    np.testing.assert_array_equal(pairs.sizes, np.bincount(rel, minlength=num_relations))
    assert (pairs.num_nodes, pairs.num_relations) == (num_nodes, num_relations)


def check_relational(graph: RelationalGraph, src, rel, dst, ids) -> None:
    """Check a graph and its parts against valid triples in any order."""
    num_relations = graph.num_relations
    # Edges are sorted by destination, then relation, then source.
    order = np.lexsort((src, rel, dst))  # stable
    src, rel, dst, ids = (np.asarray(part)[order] for part in (src, rel, dst, ids))
    np.testing.assert_array_equal(graph.edge_types[: len(rel)], rel)
    assert (graph.edge_types[len(rel) :] == -1).all()
    check_graph(graph.nodes, dst, src, ids)
    if graph.from_pairs is not None and graph.pair_src is not None:
        distinct, pair_ids = np.unique(np.stack([rel, src]), axis=1, return_inverse=True)
        check_pairs(graph.pair_src, distinct, graph.num_src, num_relations)
        assert (graph.pair_src.num_pairs, False) == (graph.num_src_pairs, graph.pair_src.by_node)
        check_graph(graph.from_pairs, dst, pair_ids.ravel(), ids)
    if graph.to_pairs is not None and graph.pair_dst is not None:
        distinct = np.unique(np.stack([rel, dst]), axis=1)
        check_pairs(graph.pair_dst, distinct, graph.num_dst, num_relations)
        assert (graph.pair_dst.num_pairs, True) == (graph.num_dst_pairs, graph.pair_dst.by_node)
        pair_ids = np.unique(np.stack([dst, rel]), axis=1, return_inverse=True)[1]
        check_graph(graph.to_pairs, pair_ids.ravel(), src, ids)
    graph.check()
