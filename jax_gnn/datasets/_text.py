"""Text formats: AllSet's ``.content`` + ``.edges`` and Cornell's lists of hyperedges."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from jax_gnn.datasets._check import ID_BYTES, MAX_SIZE, Memory, blame, locate
from jax_gnn.datasets._dataset import HypergraphDataset


def load_allset(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Reads ``NAME.content`` and ``NAME.edges``, the format of LEGCN and AllSet.

    A line of ``.content`` is ``id feature… label``, numbers separated by blanks; ids are in any
    order and are mapped, so that row i of ``x`` is node i. A line of ``.edges`` is
    ``node hyperedge``, where hyperedges count from ``num_nodes`` on: the smallest one is the number
    of nodes. AllSet's files have further lines in ``.content``: for the hyperedges, filled with
    anything, and for nothing at all, filled with zeros; they are left out. Classes are numbered
    from 0 in the order of the labels, which become ``label_names``. Duplicate incidences are
    removed.

    Args:
        path: the folder, or one of the two files.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is not such a table, an id has no line in ``.content`` or two, a line is
            for nothing but not zero, an id may be a node's or a hyperedge's, or a folder holds
            several datasets.
    """
    content_path, edges_path = locate(Path(path), ("", ".content"), ("", ".edges"))
    content = _table(content_path)
    edges = _table(edges_path)
    with blame(edges_path):
        if edges.shape[1] != 2:
            raise ValueError(f"expected 2 columns (node, hyperedge), got {edges.shape[1]}")
        node_idx = _integers("node", edges[:, 0])
        hyperedge_idx = _integers("hyperedge", edges[:, 1])
        num_nodes = int(hyperedge_idx.min())
        num_hyperedges = int(hyperedge_idx.max()) - num_nodes + 1
        claimed = f"{num_nodes} nodes and {num_hyperedges} hyperedges"
        Memory(content_path, edges_path).claim(claimed, (num_nodes + num_hyperedges) * ID_BYTES)
        if node_idx.max() >= num_nodes:
            raise ValueError(
                f"node {node_idx.max()} is not below the smallest hyperedge, {num_nodes}: "
                "hyperedges must count from the number of nodes on"
            )
    with blame(content_path):
        if content.shape[1] < 2:
            raise ValueError("expected at least 2 columns (id, features, label), got 1")
        ids = _integers("id", content[:, 0])
        order = np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(np.diff(ids[order]) == 0)
        if repeated.size:
            raise ValueError(f"id {ids[order][repeated[0]]} is there twice")
        missing = np.setdiff1d(np.arange(num_nodes), ids)
        if missing.size:
            raise ValueError(
                f"node {missing[0]} has no line, though the hyperedges of {edges_path.name} count "
                f"from {num_nodes} on"
            )
        if ids.size > num_nodes and node_idx.max() < num_nodes - 1:
            raise ValueError(
                f"id {num_nodes - 1} may be a node or an empty hyperedge: it is not in "
                f"{edges_path.name}, and not only nodes have lines here"
            )
        rows, others = order[:num_nodes], order[num_nodes:]
        others = others[ids[others] >= num_nodes + num_hyperedges]
        stray = others[content[others, 1:].any(axis=1)]
        if stray.size:
            raise ValueError(
                f"id {ids[stray[0]]} is neither a node nor a hyperedge of {edges_path.name}, "
                "but its line is not all zero"
            )
        labels, y = np.unique(_integers("label", content[rows, -1]), return_inverse=True)
        return HypergraphDataset(
            name=content_path.stem,
            node_idx=node_idx,
            hyperedge_idx=hyperedge_idx - num_nodes,
            num_nodes=num_nodes,
            num_hyperedges=num_hyperedges,
            x=content[rows, 1:-1] if content.shape[1] > 2 else None,
            y=y,
            label_names=tuple(map(str, labels.tolist())),
        )


def load_cornell(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Reads a node-labelled hypergraph of the Cornell collection (Benson et al.).

    ``hyperedges-NAME.txt`` has one hyperedge a line, node numbers from 1 separated by commas;
    ``node-labels-NAME.txt`` one label from 1 a line, for each node; ``label-names-NAME.txt`` and
    ``node-names-NAME.txt``, one name a line, may be there. Nodes and classes count from 0 in the
    result. A node repeated in a hyperedge counts once, as in AllSet. The format has no features:
    ``x`` is None.

    Args:
        path: the folder, or the file of hyperedges.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is not as above, a number is out of range, the number of node names
            differs, a node has several labels, or a folder holds several datasets.
    """
    hyperedges_path, labels_path = locate(
        Path(path), ("hyperedges-", ".txt"), ("node-labels-", ".txt")
    )
    name = hyperedges_path.stem.removeprefix("hyperedges-")
    labels = _number_lists(labels_path)
    members = _number_lists(hyperedges_path)
    label_names = _names(labels_path.with_name(f"label-names-{name}.txt"))
    node_names = _names(labels_path.with_name(f"node-names-{name}.txt"))
    with blame(labels_path):
        for i, label in enumerate(labels):
            if len(label) != 1:
                raise ValueError(f"line {i + 1}: expected one label, got {len(label)}")
    with blame(hyperedges_path):
        for i, hyperedge in enumerate(members):
            if hyperedge.max() > len(labels):
                raise ValueError(
                    f"line {i + 1}: node {hyperedge.max()} is beyond the {len(labels)} nodes of "
                    f"{labels_path.name}"
                )
        return HypergraphDataset(
            name=name,
            node_idx=np.concatenate(members) - 1,
            hyperedge_idx=np.repeat(np.arange(len(members)), list(map(len, members))),
            num_nodes=len(labels),
            num_hyperedges=len(members),
            x=None,
            y=np.concatenate(labels) - 1,
            label_names=label_names,
            node_names=node_names,
        )


def _lines(path: Path) -> list[str]:
    with blame(path):
        text = path.read_text("utf-8").rstrip("\n")
        if not text.strip():
            raise ValueError("the file is empty")
        return text.split("\n")


def _table(path: Path) -> np.ndarray:
    """A table of numbers separated by blanks, as float64."""
    lines = _lines(path)
    with blame(path):
        return np.loadtxt(lines, comments=None, ndmin=2)


def _integers(what: str, column: np.ndarray) -> np.ndarray:
    good = (column == np.floor(column)) & (column >= 0) & (column <= MAX_SIZE)
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"{what} {column[row]:g} is not an integer from 0 to {MAX_SIZE}")
    return column.astype(np.int64)


def _number_lists(path: Path) -> list[np.ndarray]:
    """The numbers from 1 on each line, separated by commas."""
    lists = []
    for i, line in enumerate(_lines(path)):
        with blame(path):
            try:
                numbers = np.array(list(map(int, line.split(","))), np.int64)
            except (ValueError, OverflowError) as error:
                raise ValueError(
                    f"line {i + 1}: expected integers separated by commas, got {line[:40]!r}"
                ) from error
            if numbers.min() < 1:
                raise ValueError(f"line {i + 1}: {numbers.min()} is below 1, the first number")
            lists.append(numbers)
    return lists


def _names(path: Path) -> tuple[str, ...] | None:
    return tuple(_lines(path)) if path.exists() else None
