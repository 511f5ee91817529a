"""Command ``jax-gnn partition``: split a dataset, and count the costs of the split on the host."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn.datasets import (
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    load_any,
)
from jax_gnn.graph import Graph, host_arrays
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph, edges_of
from jax_gnn.sharding._exchange import Exchange
from jax_gnn.sharding._files import write_parts
from jax_gnn.sharding._partition import (
    Adjacency,
    Method,
    PartitionCosts,
    SplitArgs,
    Splittable,
    compare,
    warn_of_no_gain,
)
from jax_gnn.sharding._parts import (
    HypergraphPart,
    Part,
    RelationalPart,
    edges_into_nodes,
    exchanges_of,
    graphs_of,
)
from jax_gnn.sharding._split import Piece, split_graph


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source", metavar="FILE|FOLDER", help="the data, as of jax-gnn train, or 'digits'"
    )
    parser.add_argument(
        "--parts", type=_positive, required=True, metavar="N", help="number of parts, or devices"
    )
    parser.add_argument(
        "--method", choices=get_args(Method), default="auto", help="how nodes are dealt out"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE|FOLDER",
        help="an .npz file to write, for jax-gnn train --partition; or a folder, for load_parts",
    )
    parser.add_argument(
        "--width", type=_positive, default=128, metavar="N", help="numbers in a row that travels"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16", "float64"), default="float32"
    )


def run(args: argparse.Namespace) -> list[list[str]]:
    """Split the dataset that the command names, and return the rows of the table to print."""
    datasets = [data for data in load_any(args.source) if not isinstance(data, GraphsDataset)]
    if not datasets:
        raise ValueError(f"{args.source} holds many graphs, which are batched, not split")
    # Some files are both a graph and a hypergraph: the graph has priority.
    dataset: Any = min(datasets, key=lambda data: isinstance(data, HypergraphDataset))
    if args.parts > dataset.num_nodes:
        raise ValueError(
            f"--parts must be at most num_nodes = {dataset.num_nodes} of {dataset.name}, got "
            f"{args.parts}"
        )
    to_file = args.output is not None and args.output.suffix == ".npz"
    with host_arrays():
        is_hypergraph = isinstance(dataset, HypergraphDataset)
        graph = dataset.hypergraph() if is_hypergraph else dataset.graph()
        compared: dict[Method, tuple[np.ndarray, PartitionCosts]] = {}
        if args.method == "auto" and not isinstance(graph, Hypergraph):
            compared = compare(Adjacency.of(edges_of(graph)), args.parts)
            warn_of_no_gain([costs for _, costs in compared.values()])
        parts = next((parts for parts, _ in compared.values()), args.method)
        split = SplitArgs.parse(graph, args.parts, parts)
        if to_file and is_hypergraph:
            # A file has the parts of nodes alone, by which hyperedges are placed.
            split = SplitArgs.parse(graph, args.parts, split.node_parts)
        pieces, places = split_graph(split, "")
    rows = [
        ["data", f"{dataset.name} ({type(dataset).__name__})"],
        ["parts", f"{args.parts}, by {args.method}"],
        *([f"by {name}", _summary(costs)] for name, (_, costs) in compared.items()),
        *_cost_rows(pieces, bytes_of(pieces, places), args.width, jnp.dtype(args.dtype)),
    ]
    if args.output is not None:
        if to_file:
            with args.output.open("wb") as file:
                parts = np.asarray(split.node_parts, np.int32)
                np.savez(file, parts=parts, num_parts=args.parts)
        else:
            nodes, edges = _values(dataset, graph)
            write_parts(args.output, graph, pieces, places, nodes, edges)
        rows.append(["output", str(args.output)])
    return rows


def _values(
    dataset: NodeDataset, graph: Splittable
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the values of nodes and of edges by name; the split of the nodes as masks."""
    # Each field that has a row for each node is saved with the parts.
    nodes = {name: getattr(dataset, name, None) for name in ("x", "y", "y_multilabel")}
    is_typed = isinstance(graph, RelationalGraph) and graph.node_type_sizes is not None
    if nodes["x"] is None and is_typed:
        nodes["x"] = getattr(dataset, "x_by_type", None)
    for part in ("train", "val", "test"):
        ids = getattr(dataset, f"{part}_idx")
        if ids is not None:
            nodes[part] = np.isin(np.arange(dataset.num_nodes), ids)
    edges = {}
    weight = getattr(dataset, "edge_weight", None)
    if weight is not None and isinstance(graph, Graph):
        edges["edge_weight"] = np.asarray(graph.edge_values(weight))
    return {name: values for name, values in nodes.items() if values is not None}, edges


class ExchangeCosts(NamedTuple):
    """Numbers of rows in an exchange, over all devices."""

    num_own: int  # number of local rows
    sent: int  # number of rows that travel, padding included
    rounds: int  # number of collectives
    gathered: int  # number of rows that would travel if each device got all rows

    @classmethod
    def of(cls, exchanges: Sequence[Exchange], num_own: int) -> ExchangeCosts:
        """Count the rows of an exchange, given the exchange of each part."""
        count, rounds = len(exchanges), exchanges[0].rounds
        return cls(
            num_own,
            sum(step.rows(count) for step in rounds),
            len(rounds),
            count * (count - 1) * exchanges[0].num_own,
        )


def costs_of(pieces: Sequence[Piece]) -> tuple[PartitionCosts, list[ExchangeCosts]]:
    """Count the costs of the result of `split_graph`, and of each exchange of an aggregation.

    Hypergraphs exchange rows of nodes, then rows of hyperedges; a part's halo has both.
    """
    parts = [piece.part for piece in pieces]
    nodes = np.array([int((piece.node_ids >= 0).sum()) for piece in pieces])
    edges = np.array([int(edges_into_nodes(part).indptr[-1]) for part in parts])
    counts = int(nodes.sum()), getattr(parts[0], "num_whole_hyperedges", 0)
    halo, costs = np.array([_num_fetched(part) for part in parts]), []
    for exchanges, count in zip(zip(*map(exchanges_of, parts), strict=True), counts, strict=False):
        costs.append(ExchangeCosts.of(exchanges, count))
    return PartitionCosts(nodes, edges, halo), costs


def _num_fetched(part: Part | RelationalPart | HypergraphPart) -> int:
    """Return the number of nodes and hyperedges of other devices with an edge into a part."""
    return sum(
        int(np.count_nonzero(np.diff(graph.t_indptr)[exchange.num_own :]))
        for graph, exchange in zip(graphs_of(part), exchanges_of(part), strict=True)
    )


def bytes_of(pieces: Sequence[Piece], places: np.ndarray) -> int:
    """Return the bytes of all arrays of indices on a device; all pieces have the same sizes."""
    block = places[: -(-len(places) // len(pieces))]
    return sum(leaf.nbytes for leaf in jax.tree.leaves((pieces[0]._replace(halo_ids=()), block)))


def _cost_rows(
    pieces: Sequence[Piece], num_bytes: int, width: int, dtype: np.dtype
) -> Iterator[list[str]]:
    """Yield the rows of a table, for node rows of a width and dtype, and indices of some bytes."""
    # Counts of rows become bytes for rows of one width.
    row = width * dtype.itemsize
    costs, exchanges = costs_of(pieces)
    num_own, sent, rounds, gathered = map(sum, zip(*exchanges, strict=True))
    needed = int(costs.halo.sum())
    yield ["nodes", f"{_max_over_mean(costs.nodes)}, largest over mean"]
    yield ["edges", f"{_max_over_mean(costs.edges)}, largest over mean"]
    yield ["halo", f"{needed / num_own:.2f} of own rows"]
    ratio = f" ({sent / needed:.2f} of these)" if needed else ""
    times = f"in {rounds} round{'s' * (rounds != 1)}"
    yield ["rows of a layer", f"{needed:,} needed, {sent:,} sent{ratio}, {times}"]
    kind = f"of {width} numbers of {dtype.name}; as many go back for gradients"
    yield ["sent for a layer", f"{_bytes(sent * row)} {kind}"]
    yield ["all-gather", f"{_bytes(gathered * row)} in its place"]
    features = _bytes(costs.nodes.max() * row)
    yield ["a device's memory", f"{_bytes(num_bytes)} of indices, {features} of features (counted)"]


def _summary(costs: PartitionCosts) -> str:
    halo = costs.halo.sum() / costs.nodes.sum()
    nodes, edges = map(_max_over_mean, (costs.nodes, costs.edges))
    return f"halo {halo:.2f} of own rows; largest over mean: nodes {nodes}, edges {edges}"


def _max_over_mean(sizes: np.ndarray) -> str:
    return f"{sizes.max() / sizes.mean():.2f}" if sizes.any() else "1.00"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB" if count < 1000 else f"{count:,.0f} GiB"
