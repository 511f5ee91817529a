"""Planetoid's citation graphs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from jax_gnn.datasets._check import (
    ID_BYTES,
    MAX_SIZE,
    Memory,
    as_path,
    blame,
    check_array,
    check_features,
    check_ids,
    locate,
)
from jax_gnn.datasets._dataset import GraphDataset
from jax_gnn.datasets._lines import integers, read_lines
from jax_gnn.datasets._pickle import flat, load_matrix, load_value

_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_NUM_VALIDATION = 500


def load_planetoid(path: str | os.PathLike[str]) -> GraphDataset:
    """Reads a graph as published with Planetoid (Yang et al. 2016, arXiv 1603.08861).

    The eight files are called ``ind.NAME.PART``. ``allx`` and ``ally`` are features and one-hot
    labels of the first nodes, of which ``x`` and ``y``, for training, are the foremost; ``tx`` and
    ``ty`` those of the test nodes, whose ids are the lines of ``test.index``; ``graph`` is a
    dictionary from a node to its neighbours. The split is that of the paper: 500 nodes after those
    for training (fewer, if ``allx`` has no more) validate. Nodes between the test nodes that the
    files say nothing about, as in Citeseer, are unlabelled and have features 0. Edges count in both
    directions; self-loops are left out.

    Args:
        path: the folder, or one of the files. The pickles are read without executing anything: see
            :class:`PickleFormatError`.

    Raises:
        FileNotFoundError: a file is not there.
        PickleFormatError: a file is damaged, or names something that these files do not need.
        ValueError: the contents are not as above, take too much memory (see
            :mod:`jax_gnn.datasets`), a field is not as :class:`GraphDataset` wants it, or a folder
            holds several datasets.
    """
    files = locate(as_path("path", path), *(("ind.", f".{part}") for part in _PARTS))
    paths = dict(zip(_PARTS, files, strict=True))
    memory = Memory(*paths.values())
    x, tx, allx = (_features(paths[part], memory) for part in ("x", "tx", "allx"))
    y, ty, ally = (_labels(paths[part], memory) for part in ("y", "ty", "ally"))
    test = _test_ids(paths["test.index"], len(allx))
    for part, rows, expected in (
        ("ally", ally, len(allx)),
        ("y", y, len(x)),
        ("ty", ty, len(tx)),
        ("test.index", test, len(tx)),
    ):
        if len(rows) != expected:
            raise ValueError(f"{paths[part]}: expected {expected} nodes, got {len(rows)}")
    for part, rows in (("y", y), ("ty", ty)):
        if rows.min(initial=0) < 0:
            raise ValueError(f"{paths[part]}: row {rows.argmin()} has no label")
    for part in ("tx", "x"):
        width = {"tx": tx, "x": x}[part].shape[1]
        if width != allx.shape[1]:
            raise ValueError(f"{paths[part]}: {width} features, but allx has {allx.shape[1]}")
    if not (np.array_equal(x, allx[: len(x)]) and np.array_equal(y, ally[: len(y)])):
        raise ValueError(f"{paths['x']}: x and y are not the first rows of allx and ally")

    src, dst, reached = _edges(paths["graph"], memory)
    num_nodes = max(len(allx), int(test.max(initial=-1)) + 1)
    with blame(paths["test.index" if reached <= num_nodes else "graph"]):
        num_nodes = max(num_nodes, reached)
        memory.claim(f"{num_nodes} nodes", num_nodes * (ID_BYTES + 8 * allx.shape[1]))
    features = np.zeros((num_nodes, allx.shape[1]), np.float32)
    features[: len(allx)], features[test] = allx, tx
    classes = np.full(num_nodes, -1, np.int32)
    classes[: len(ally)], classes[test] = ally, ty
    with blame(paths["graph"].parent):
        return GraphDataset(
            name=paths["x"].name.removeprefix("ind.").removesuffix(".x"),
            num_nodes=num_nodes,
            src=src,
            dst=dst,
            x=features,
            y=classes,
            train_idx=np.arange(len(x)),
            val_idx=np.arange(len(x), min(len(x) + _NUM_VALIDATION, len(allx))),
            test_idx=np.sort(test),
            format="planetoid",
        )


def _features(path: Path, memory: Memory) -> np.ndarray:
    matrix = load_matrix(path, memory)
    with blame(path):
        return check_features("features", matrix)


def _labels(path: Path, memory: Memory) -> np.ndarray:
    one_hot = load_matrix(path, memory)
    with blame(path):
        one_hot = check_array("labels", one_hot, "fiub", "one-hot rows", 2)
        total = one_hot.sum(axis=1)
        if not (np.isin(one_hot, (0, 1)).all() and (total <= 1).all()):
            raise ValueError("labels: expected one-hot rows")
    labels = np.argmax(one_hot, axis=1) if one_hot.shape[1] else np.zeros(len(one_hot), int)
    return np.where(total == 1, labels, -1)


def _test_ids(path: Path, start: int) -> np.ndarray:
    with blame(path):
        ids: dict[int, None] = {}
        for number, line in read_lines(path):
            for field in line.split():
                (node,) = integers(number, "a test node", [field], start, MAX_SIZE)
                if node in ids:
                    raise ValueError(f"line {number}: test node {node} is there twice")
                ids[node] = None
        return np.array(list(ids), np.int32)


def _edges(path: Path, memory: Memory) -> tuple[np.ndarray, np.ndarray, int]:
    """The ends of edges in both directions, and how many nodes there must be."""
    graph = load_value(path)
    with blame(path):
        if not isinstance(graph, dict):
            raise ValueError(f"expected a dictionary of neighbours, got {type(graph).__name__}")
        nodes = check_ids("node", flat("node", list(graph)), MAX_SIZE)
        neighbours = [np.zeros(0, np.int32)]
        for node, ids in graph.items():
            field = f"neighbours of {node}"
            neighbours.append(check_ids(field, flat(field, ids), MAX_SIZE))
            # Both directions; the list may be another node's too.
            memory.claim(field, 2 * neighbours[-1].size * ID_BYTES)
    src = np.concatenate(neighbours)
    dst = np.repeat(nodes, [len(ids) for ids in neighbours[1:]])
    reached = int(max(src.max(initial=-1), nodes.max(initial=-1))) + 1
    src, dst = src[src != dst], dst[src != dst]
    # Most are in the lists of both ends.
    pairs = np.unique(np.stack([np.concatenate([src, dst]), np.concatenate([dst, src])]), axis=1)
    return pairs[0], pairs[1], reached
