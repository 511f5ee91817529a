"""The command ``jax-gnn partition``: what a split costs, counted on the host."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._any_data import load_any
from jax_gnn.datasets import GraphsDataset, HypergraphDataset, NodeDataset
from jax_gnn.graph import host_arrays
from jax_gnn.sharding._exchange import Exchange
from jax_gnn.sharding._files import write
from jax_gnn.sharding._partition import Method
from jax_gnn.sharding._parts import HypergraphPart, edges_of
from jax_gnn.sharding._sharded import parts_of
from jax_gnn.sharding._split import Piece, pieces_of


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "source", metavar="FILE|FOLDER", help="the data, as of jax-gnn train, or 'digits'"
    )
    parser.add_argument(
        "--parts", type=_count, required=True, metavar="N", help="how many, one for each device"
    )
    parser.add_argument(
        "--method", choices=get_args(Method), default="stream", help="how nodes are dealt out"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE|FOLDER",
        help="an .npz file to write, for jax-gnn train --partition; or a folder, for load_parts",
    )
    parser.add_argument(
        "--width", type=_count, default=128, metavar="N", help="numbers in a row that travels"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16", "float64"), default="float32"
    )


def run(args: argparse.Namespace) -> list[list[str]]:
    """Splits what the command names, and returns the rows of its table."""
    found = [each for each in load_any(args.source) if not isinstance(each, GraphsDataset)]
    if not found:
        raise ValueError(f"{args.source} holds many graphs, which are batched, not split")
    dataset = min(found, key=lambda each: isinstance(each, HypergraphDataset))
    if args.parts > dataset.num_nodes:
        raise ValueError(
            f"--parts must be at most num_nodes = {dataset.num_nodes} of {dataset.name}, got "
            f"{args.parts}"
        )
    with host_arrays():
        given: Any = dataset
        graph = given.hypergraph() if isinstance(dataset, HypergraphDataset) else given.graph()
        parts = parts_of(graph, args.parts, args.method)
        if _is_file(args.output):  # which has nodes alone
            parts = parts_of(graph, args.parts, parts[0])
        pieces, places = pieces_of(graph, args.parts, "", *parts)
    head = [
        ["data", f"{dataset.name} ({type(dataset).__name__})"],
        ["parts", f"{args.parts}, by {args.method}"],
    ]
    costs = Costs.of(pieces, places)
    rows = [*head, *costs.told(args.width, jnp.dtype(args.dtype))]
    if args.output is not None:
        if _is_file(args.output):
            with args.output.open("wb") as file:
                np.savez(file, parts=np.asarray(parts[0], np.int32), num_parts=args.parts)
        else:
            write(args.output, graph, pieces, places, *_values(dataset, graph))
        rows.append(["output", str(args.output)])
    return rows


def _is_file(output: Path | None) -> bool:
    return output is not None and output.suffix == ".npz"


def _values(dataset: NodeDataset, graph: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a dataset has of nodes and of edges, by name; parts of its split are masks."""
    names = ("x", "y", "y_multilabel")
    nodes = {name: getattr(dataset, name, None) for name in names}
    if nodes["x"] is None and getattr(graph, "node_type_sizes", None) is not None:
        nodes["x"] = getattr(dataset, "x_by_type", None)
    for part in ("train", "val", "test"):
        ids = getattr(dataset, f"{part}_idx")
        if ids is not None:
            nodes[part] = np.isin(np.arange(dataset.num_nodes), ids)
    weight = getattr(dataset, "edge_weight", None)
    edges = {} if weight is None else {"edge_weight": graph.edge_values(weight)}
    return {name: each for name, each in nodes.items() if each is not None}, edges


class ExchangeCosts(NamedTuple):
    """How many rows there are, are wanted by other devices, and travel, padding included.

    Also by how many collectives, and how many would travel if all devices got all rows.
    """

    own: int
    needed: int
    sent: int
    rounds: int
    gathered: int

    @classmethod
    def of(cls, exchanges: Sequence[Exchange], own: int) -> ExchangeCosts:
        """Those of the parts' exchanges."""
        count, rounds = len(exchanges), exchanges[0].rounds
        return cls(
            own,
            sum(int((each.send >= 0).sum()) for each in exchanges),
            sum(one.rows(count) for one in rounds),
            len(rounds),
            count * (count - 1) * exchanges[0].num_own,
        )


class Costs(NamedTuple):
    """What a split costs.

    Attributes:
        nodes: ``(num_parts,)``, nodes of each part.
        edges: ``(num_parts,)``, edges of each, of a hypergraph incidences into its nodes.
        exchanges: before an aggregation; of a hypergraph two.
        bytes: of all arrays of indices that a device has.
    """

    nodes: np.ndarray
    edges: np.ndarray
    exchanges: list[ExchangeCosts]
    bytes: int

    @classmethod
    def of(cls, pieces: Sequence[Piece], places: Any) -> Costs:
        """Those of what `pieces_of` returns."""
        parts: Any = [piece.part for piece in pieces]
        halves = [parts]
        if isinstance(parts[0], HypergraphPart):
            halves = [[part.into for part in parts], [part.back for part in parts]]
        of_nodes = [edges_of(part) for part in halves[-1]]
        nodes = np.array([int((piece.node_ids >= 0).sum()) for piece in pieces])
        own = int(nodes.sum()), getattr(parts[0], "num_whole_hyperedges", 0)
        edges = np.array([int(graph.indptr[-1]) for graph in of_nodes])
        costs = [
            ExchangeCosts.of([part.exchange for part in half], count)
            for half, count in zip(halves, own, strict=False)
        ]
        first = jax.tree.leaves(pieces[0])  # all have the same sizes
        return cls(nodes, edges, costs, sum(leaf.nbytes for leaf in first) + places.nbytes)

    def told(self, width: int, dtype: Any) -> Iterator[list[str]]:
        """Rows of a table, for rows of a width and dtype."""
        row = width * dtype.itemsize
        own, needed, sent, rounds, gathered = map(sum, zip(*self.exchanges, strict=True))
        yield ["nodes", f"{_over(self.nodes)}, largest over mean"]
        yield ["edges", f"{_over(self.edges)}, likewise"]
        yield ["halo", f"{needed / own:.2f} of own rows"]
        ratio = f" ({sent / needed:.2f} of these)" if needed else ""
        times = f"in {rounds} round{'s' * (rounds != 1)}"
        yield ["rows of a layer", f"{needed:,} needed, {sent:,} sent{ratio}, {times}"]
        told = f"of {width} numbers of {dtype.name}; as many go back for gradients"
        yield ["sent for a layer", f"{_size(sent * row)} {told}"]
        yield ["all-gather", f"{_size(gathered * row)} in its place"]
        features = _size(self.nodes.max() * row)
        yield [
            "a device's memory",
            f"{_size(self.bytes)} of indices, {features} of features (counted)",
        ]


def _over(sizes: np.ndarray) -> str:
    return f"{sizes.max() / sizes.mean():.2f}" if sizes.any() else "1.00"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB" if count < 1000 else f"{count:,.0f} GiB"
