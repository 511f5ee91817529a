"""The command ``jax-gnn partition``: what a split costs, counted on the host."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._any_data import load_any
from jax_gnn.datasets import GraphsDataset, HypergraphDataset
from jax_gnn.graph import host_arrays
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph
from jax_gnn.sharding._partition import Method
from jax_gnn.sharding._parts import edges_of
from jax_gnn.sharding._sharded import _parts_of
from jax_gnn.sharding._split import split_arrays


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _npz(text: str) -> Path:
    if Path(text).suffix != ".npz":
        raise argparse.ArgumentTypeError(f"expected an .npz file, got {text!r}")
    return Path(text)


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
        type=_npz,
        metavar="FILE",
        help="an .npz file to write, for jax-gnn train --partition",
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
        parts, of_hyperedges = _parts_of(graph, args.parts, args.method)
        if args.output is not None:  # what is written has nodes alone
            parts, of_hyperedges = _parts_of(graph, args.parts, parts)
        costs = Costs.of(graph, args.parts, parts, of_hyperedges)
    head = [
        ["data", f"{dataset.name} ({type(dataset).__name__})"],
        ["parts", f"{args.parts}, by {args.method}"],
    ]
    rows = [*head, *costs.told(args.width, jnp.dtype(args.dtype))]
    if args.output is not None:
        with open(args.output, "wb") as file:
            np.savez(file, parts=np.asarray(parts, np.int32), num_parts=args.parts)
        rows.append(["output", str(args.output)])
    return rows


class ExchangeCosts(NamedTuple):
    """How many rows there are, are wanted by other devices, and travel, padding included.

    Also by how many collectives, and how many would travel if all devices got all rows.
    """

    own: int
    needed: int
    sent: int
    rounds: int
    gathered: int


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
    def of(cls, graph: Any, num_parts: int, parts: Any, of_hyperedges: Any) -> Costs:
        """Those of a graph on the host, whose parts are made for it as `shard_graph` makes them."""
        splits: list[tuple[Any, ...]] = [(graph, parts, num_parts)]
        if isinstance(graph, Hypergraph):
            into, back = graph.graph, graph.graph.transpose()
            splits = [(into, of_hyperedges, num_parts, parts)]
            splits += [(back, parts, num_parts, of_hyperedges)]
        exchanges, size = [], 0
        for each in splits:
            made, rounds, places = split_arrays(*each)
            part, send, remote, ids = made[0]  # all have the same sizes
            exchanges.append(
                ExchangeCosts(
                    len(each[-1]) if isinstance(graph, Hypergraph) else len(parts),
                    sum(int((ids[send.num_src :] >= 0).sum()) for *_, ids in made),
                    sum(one.rows(num_parts) for one in rounds),
                    len(rounds),
                    num_parts * (num_parts - 1) * send.num_src,
                )
            )
            size += sum(leaf.nbytes for leaf in jax.tree.leaves((part, send, remote)))
            size += ids.itemsize * edges_of(part).num_dst  # which node or hyperedge each is
        if isinstance(graph, RelationalGraph):
            size += ids.nbytes
            if graph.node_type_sizes is not None:
                size += ids.itemsize * part.num_dst
        edges = np.array([int(edges_of(part).indptr[-1]) for part, *_ in made])
        nodes = np.bincount(parts, minlength=num_parts)
        return cls(nodes, edges, exchanges, size + places.nbytes)

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
