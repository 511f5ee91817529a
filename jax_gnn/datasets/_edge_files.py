"""Graphs in files of edges alone: SNAP's lists, MatrixMarket, hMETIS."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in, require_file
from jax_gnn.convert._columns import numbered_fields, opened, read_columns
from jax_gnn.datasets._csv import edges_alone
from jax_gnn.datasets._dataset import GraphDataset, HypergraphDataset
from jax_gnn.datasets._table_files import TableOptions


def load_snap(path: str | os.PathLike[str]) -> GraphDataset:
    """Read a list of edges in SNAP's format, as :func:`jax_gnn.convert.from_table` does.

    The file begins with ``#``, and each line that does not has the names of source and destination.
    Nodes have neither labels nor features.

    Args:
        path: the file, such as ``web-Google.txt`` or ``web-Google.txt.gz``.
    """
    file = require_file(as_path("path", path), "NAME.txt")
    with opened(file, "latin-1") as lines:
        try:
            is_list = lines.read(1) == "#"
        except (OSError, EOFError, zlib.error):
            is_list = False
    if not is_list:
        raise ValueError(f"{file} must begin with # as SNAP's lists of edges do")
    return edges_alone(file, TableOptions(), GraphDataset)


def load_matrix_market(path: str | os.PathLike[str]) -> GraphDataset:
    """Read a square sparse matrix in MatrixMarket's format, whose entry (i, j) is an edge i to j.

    The values are the weights of edges, unless the file has none. A symmetric matrix has both
    directions. Nodes are numbered from 1 in the file; they have neither labels nor features.

    Args:
        path: the file, such as ``cora.mtx`` or ``cora.mtx.gz``.
    """
    file = require_file(as_path("path", path), "NAME.mtx")
    with errors_in(file):
        table = read_columns("edges", file)
        num_rows, num_cols = _sizes(file)
        if num_rows != num_cols:
            raise ValueError(f"expected a square matrix, got {num_rows} x {num_cols}")
        Memory(file).claim(f"{num_rows} nodes", num_rows * ID_BYTES)
        return GraphDataset(
            name=file.name.partition(".")[0],
            num_nodes=num_rows,
            src=table["src"] - 1,
            dst=table["dst"] - 1,
            edge_weight=table.get("weight"),
            y=np.full(num_rows, -1),
        )


def load_hmetis(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Read a hypergraph in hMETIS's format: a line of numbers of nodes for each hyperedge.

    Nodes are numbered from 1 in the file; they have neither labels nor features. Weights of
    hyperedges and of nodes are left out.

    Args:
        path: the file, such as ``ibm01.hgr``.
    """
    file = require_file(as_path("path", path), "NAME.hgr")
    with errors_in(file):
        table = read_columns("edges", file)
        num_hyperedges, num_nodes = _sizes(file)
        sizes = f"{num_nodes} nodes and {num_hyperedges} hyperedges"
        Memory(file).claim(sizes, (num_nodes + num_hyperedges) * ID_BYTES)
        return HypergraphDataset(
            name=file.name.partition(".")[0],
            num_nodes=num_nodes,
            num_hyperedges=num_hyperedges,
            node_idx=table["src"] - 1,
            hyperedge_idx=table["dst"] - 1,
            y=np.full(num_nodes, -1),
        )


def _sizes(path: Path) -> list[int]:
    """Return the first two numbers of a file after its comments."""
    return [int(field) for field in next(numbered_fields(path))[1][:2]]
