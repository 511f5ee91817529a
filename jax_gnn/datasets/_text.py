"""Text formats of hypergraphs: AllSet's tables and Cornell's lists of hyperedges."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in
from jax_gnn.datasets._check import MAX_SIZE, locate
from jax_gnn.datasets._dataset import HypergraphDataset
from jax_gnn.datasets._lines import integers, is_blank, read_lines


def load_allset(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Read ``NAME.content`` and ``NAME.edges``, the format of LEGCN and AllSet.

    A line of ``.content`` is ``id feature… label``, numbers separated by blanks; ids are in any
    order, and row i of ``x`` is node i. A line of ``.edges`` is ``node hyperedge``, where
    hyperedges count from ``num_nodes`` on: the smallest is the number of nodes. AllSet's files have
    further lines in ``.content``, which are left out: for hyperedges, with any numbers, and for
    unused ids, with zeros. Classes are numbered from 0 in the order of the labels, which become
    ``label_names``. Duplicate incidences are removed.

    Args:
        path: the folder, or one of the two files.
    """
    content_path, edges_path = locate(as_path("path", path), ("", ".content"), ("", ".edges"))
    content, content_lines = _table(content_path)
    edges, edge_lines = _table(edges_path)
    with errors_in(edges_path):
        if edges.shape[1] != 2:
            raise ValueError(f"expected 2 columns (node, hyperedge), got {edges.shape[1]}")
        node_idx = _integers("node", edges[:, 0], edge_lines)
        hyperedge_idx = _integers("hyperedge", edges[:, 1], edge_lines)
        # Hyperedges count from the number of nodes on, the only place that tells it.
        num_nodes = int(hyperedge_idx.min())
        num_hyperedges = int(hyperedge_idx.max()) - num_nodes + 1
        sizes = f"{num_nodes} nodes and {num_hyperedges} hyperedges"
        Memory(content_path, edges_path).claim(sizes, (num_nodes + num_hyperedges) * ID_BYTES)
        row = int(node_idx.argmax())
        if node_idx[row] >= num_nodes:
            raise ValueError(
                f"line {edge_lines[row]}: node {node_idx[row]} is not below the smallest "
                f"hyperedge, {num_nodes}: hyperedges must count from the number of nodes on"
            )
    with errors_in(content_path):
        if content.shape[1] < 2:
            raise ValueError("expected at least 2 columns (id, features, label), got 1")
        ids = _integers("id", content[:, 0], content_lines)
        # Lines come in any order: sorted, row i is id i.
        order = np.argsort(ids, kind="stable")
        repeated = np.flatnonzero(np.diff(ids[order]) == 0)
        if repeated.size:
            row = order[repeated[0] + 1]
            raise ValueError(f"line {content_lines[row]}: id {ids[row]} is there twice")
        missing = np.setdiff1d(np.arange(num_nodes), ids)
        if missing.size:
            raise ValueError(
                f"node {missing[0]} has no line, though the hyperedges of {edges_path.name} count "
                f"from {num_nodes} on"
            )
        # Then nothing shows whether the largest id is a node without hyperedges.
        if ids.size > num_nodes and node_idx.max() < num_nodes - 1:
            raise ValueError(
                f"id {num_nodes - 1} may be a node or an empty hyperedge: it is not in "
                f"{edges_path.name}, and not only nodes have lines here"
            )
        rows, unused = order[:num_nodes], order[num_nodes:]
        unused = unused[ids[unused] >= num_nodes + num_hyperedges]
        stray = unused[content[unused, 1:].any(axis=1)]
        if stray.size:
            raise ValueError(
                f"line {content_lines[stray[0]]}: id {ids[stray[0]]} is neither a node nor a "
                f"hyperedge of {edges_path.name}, but its line is not all zero"
            )
        lines = [content_lines[row] for row in rows]
        labels, y = np.unique(_integers("label", content[rows, -1], lines), return_inverse=True)
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
    """Read a node-labelled hypergraph of the Cornell collection (Benson et al.).

    ``hyperedges-NAME.txt`` has one hyperedge a line, node numbers from 1 separated by commas;
    ``node-labels-NAME.txt`` one label from 1 a line, for each node. ``label-names-NAME.txt`` and
    ``node-names-NAME.txt``, one name a line, are optional. Nodes and classes count from 0 in the
    result. A node repeated in a hyperedge counts once, as in AllSet. The format has no features:
    ``x`` is None.

    Args:
        path: the folder, or the file of hyperedges.
    """
    hyperedges_path, labels_path = locate(
        as_path("path", path), ("hyperedges-", ".txt"), ("node-labels-", ".txt")
    )
    name = hyperedges_path.stem.removeprefix("hyperedges-")
    labels = _number_lists(labels_path, "a label")
    members = _number_lists(hyperedges_path, "nodes separated by commas")
    for number, label in enumerate(labels, 1):
        if len(label) != 1:
            raise ValueError(f"{labels_path}: line {number}: expected one label, got {len(label)}")
    # Classes and nodes count from 1 in these files.
    y = np.concatenate(labels) - 1
    names_path, num_classes = labels_path.with_name(f"label-names-{name}.txt"), int(y.max()) + 1
    label_names = _names(names_path, "label", num_classes, MAX_SIZE)
    names_path = labels_path.with_name(f"node-names-{name}.txt")
    node_names = _names(names_path, "node", y.size, y.size)
    with errors_in(hyperedges_path):
        for number, hyperedge in enumerate(members, 1):
            if hyperedge.max() > y.size:
                raise ValueError(
                    f"line {number}: node {hyperedge.max()} is beyond the {y.size} nodes of "
                    f"{labels_path.name}"
                )
        return HypergraphDataset(
            name=name,
            node_idx=np.concatenate(members) - 1,
            hyperedge_idx=np.repeat(np.arange(len(members)), list(map(len, members))),
            num_nodes=y.size,
            num_hyperedges=len(members),
            x=None,
            y=y,
            label_names=label_names,
            node_names=node_names,
        )


def _table(path: Path) -> tuple[np.ndarray, list[int]]:
    """Read a table of numbers separated by blanks as float64, and the line number of each row."""
    with errors_in(path):
        lines = {number: line for number, line in read_lines(path) if line.strip()}
        if not lines:
            raise ValueError("the file is empty")
        rows: list[list[float]] = []
        for number, line in lines.items():
            try:
                rows.append([*map(float, line.replace("_", "x").split())])  # float() takes 1_0
            except ValueError as error:
                raise ValueError(f"line {number}: expected numbers, got {line!r:.80}") from error
            if len(rows[-1]) != len(rows[0]):
                count = f"{len(rows[0])} columns, as before, got {len(rows[-1])}"
                raise ValueError(f"line {number}: expected {count}")
        return np.array(rows), list(lines)


def _integers(what: str, column: np.ndarray, lines: list[int]) -> np.ndarray:
    # Ids were read as floats, like the whole table.
    valid = (column == np.floor(column)) & (column >= 0) & (column <= MAX_SIZE)
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(
            f"line {lines[row]}: {what} {column[row]:g} is not an integer from 0 to {MAX_SIZE}"
        )
    return column.astype(np.int64)


def _number_lists(path: Path, what: str) -> list[np.ndarray]:
    """Read the numbers from 1 on each line, separated by commas."""
    with errors_in(path):
        lines = _without_blank_end([line for _, line in read_lines(path)])
        if not lines:
            raise ValueError("the file is empty")
        return [
            np.array(integers(number, what, line.split(","), 1, MAX_SIZE + 1), np.int64)
            for number, line in enumerate(lines, 1)
        ]


def _names(path: Path, what: str, min_count: int, max_count: int) -> tuple[str, ...] | None:
    """Read a name a line, which may be empty; None if the file is missing."""
    if not path.exists():
        return None
    with errors_in(path):
        names = _without_blank_end([line for _, line in read_lines(path)], min_count)
        if not min_count <= len(names) <= max_count:
            raise ValueError(f"expected {min_count} names, one for each {what}, got {len(names)}")
        return tuple(names)


def _without_blank_end(lines: list[str], min_count: int = 0) -> list[str]:
    """Remove blank lines at the end while there are more than ``min_count`` lines."""
    while len(lines) > min_count and is_blank(lines[-1]):
        lines.pop()
    return lines
