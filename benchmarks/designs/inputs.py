"""Writes hypergraphs for the designs of hypergraph.cu: ``python -m benchmarks.designs.inputs``.

The file is little-endian: ``HGRAPH01``, the number of hypergraphs, and for each its name (length,
then bytes), nodes, hyperedges and incidences, and both directions as compressed rows: (indptr,
nodes) by hyperedge, then (indptr, hyperedges) by node. All numbers are int32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.workloads import Incidence, hypergraphs, row_pointers


def _numbers(values: object) -> bytes:
    return np.ascontiguousarray(values, "<i4").tobytes()


def encode(name: str, graph: Incidence) -> bytes:
    """One hypergraph."""
    nodes, hyperedges = graph.by_node
    parts = [
        _numbers([len(name)]),
        name.encode(),
        _numbers([graph.num_nodes, graph.num_hyperedges, len(graph.node_idx)]),
        _numbers(row_pointers(graph.hyperedge_degrees)),
        _numbers(graph.node_idx),
        _numbers(row_pointers(graph.node_degrees)),
        _numbers(hyperedges),
    ]
    assert (np.diff(nodes) >= 0).all() and (np.diff(graph.hyperedge_idx) >= 0).all()
    return b"".join(parts)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with hypergraph/*.npz; without it: twins")
    parser.add_argument("--yelp-twin", action="store_true", help="append the largest twin")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    graphs = {
        name: workload
        for name, workload in hypergraphs(options.data).items()
        if not workload.on_request or (options.yelp_twin and name == "yelp-twin")
    }
    encoded = [encode(name, workload.load()) for name, workload in graphs.items()]
    encoded.sort(key=len)
    options.output.write_bytes(b"HGRAPH01" + _numbers([len(encoded)]) + b"".join(encoded))
    print(f"{len(encoded)} hypergraphs, {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
