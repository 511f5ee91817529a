"""Citation graphs in the format of Planetoid."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in
from jax_gnn.datasets._check import MAX_SIZE, check_array, check_features, check_ids, locate
from jax_gnn.datasets._dataset import GraphDataset
from jax_gnn.datasets._lines import integers, read_lines
from jax_gnn.datasets._pickle import flat, load_matrix, load_value

_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_NUM_VALIDATION = 500


def load_planetoid(path: str | os.PathLike[str]) -> GraphDataset:
    """Read a graph as published with Planetoid (Yang et al. 2016, arXiv 1603.08861).

    The eight files are called ``ind.NAME.PART``. ``allx`` and ``ally`` are features and one-hot
    labels of the first nodes, which start with the training nodes ``x`` and ``y``; ``tx`` and
    ``ty`` are those of the test nodes, whose ids are the lines of ``test.index``; ``graph`` is a
    dictionary from a node to its neighbours. The split is that of the paper: the 500 nodes after
    the training nodes (fewer, if ``allx`` has no more) validate. Nodes between the test nodes that
    the files omit, as in Citeseer, are unlabelled and have features 0. Edges count in both
    directions; self-loops are left out.

    Args:
        path: the folder, or one of the files. Pickles are read without executing anything: see
            :class:`PickleFormatError`.
    """
    files = locate(as_path("path", path), *(("ind.", f".{part}") for part in _PARTS))
    paths = dict(zip(_PARTS, files, strict=True))
    memory = Memory(*paths.values())
    x, tx, allx = (_features(paths[part], memory) for part in ("x", "tx", "allx"))
    y, ty, ally = (_labels(paths[part], memory) for part in ("y", "ty", "ally"))
    test = _test_ids(paths["test.index"], len(allx))
    # The files must agree on the numbers of nodes and features.
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
    num_features = allx.shape[1]
    for part, rows in (("tx", tx), ("x", x)):
        if rows.shape[1] != num_features:
            raise ValueError(
                f"{paths[part]}: {rows.shape[1]} features, but allx has {num_features}"
            )
    if not (np.array_equal(x, allx[: len(x)]) and np.array_equal(y, ally[: len(y)])):
        raise ValueError(f"{paths['x']}: x and y are not the first rows of allx and ally")

    src, dst, num_linked = _edges(paths["graph"], memory)
    num_nodes = max(len(allx), int(test.max(initial=-1)) + 1)
    # The file with the largest id is to blame if there are too many nodes.
    with errors_in(paths["test.index" if num_linked <= num_nodes else "graph"]):
        num_nodes = max(num_nodes, num_linked)
        memory.claim(f"{num_nodes} nodes", num_nodes * (ID_BYTES + 8 * num_features))
    # Ids that the files omit stay rows of zeros without a label.
    features = np.zeros((num_nodes, num_features), np.float32)
    features[: len(allx)], features[test] = allx, tx
    classes = np.full(num_nodes, -1, np.int32)
    classes[: len(ally)], classes[test] = ally, ty
    with errors_in(paths["graph"].parent):
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
    with errors_in(path):
        return check_features("features", matrix)


def _labels(path: Path, memory: Memory) -> np.ndarray:
    one_hot = load_matrix(path, memory)
    with errors_in(path):
        one_hot = check_array("labels", one_hot, "fiub", "one-hot rows", 2)
        total = one_hot.sum(axis=1)
        if not (np.isin(one_hot, (0, 1)).all() and (total <= 1).all()):
            raise ValueError("labels: expected one-hot rows")
    labels = np.argmax(one_hot, axis=1) if one_hot.shape[1] else np.zeros(len(one_hot), int)
    return np.where(total == 1, labels, -1)


def _test_ids(path: Path, start: int) -> np.ndarray:
    with errors_in(path):
        ids: dict[int, None] = {}
        for number, line in read_lines(path):
            for field in line.split():
                (node,) = integers(number, "a test node", [field], start, MAX_SIZE)
                if node in ids:
                    raise ValueError(f"line {number}: test node {node} is there twice")
                ids[node] = None
        return np.array(list(ids), np.int32)


def _edges(path: Path, memory: Memory) -> tuple[np.ndarray, np.ndarray, int]:
    """Return sources and destinations in both directions, and the largest id plus one."""
    graph = load_value(path)
    with errors_in(path):
        if not isinstance(graph, dict):
            raise ValueError(f"expected a dictionary of neighbours, got {type(graph).__name__}")
        nodes = check_ids("node", flat("node", list(graph)), MAX_SIZE)
        neighbours = [np.zeros(0, np.int32)]
        for node, ids in graph.items():
            field = f"neighbours of {node}"
            neighbours.append(check_ids(field, flat(field, ids), MAX_SIZE))
            # Both directions; a pickle may repeat one list.
            memory.claim(field, 2 * neighbours[-1].size * ID_BYTES)
    src = np.concatenate(neighbours)
    dst = np.repeat(nodes, [len(ids) for ids in neighbours[1:]])
    num_linked = int(max(src.max(initial=-1), nodes.max(initial=-1))) + 1
    pairs = np.stack([src, dst])[:, src != dst]
    # Most edges are in the lists of both of their nodes.
    pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    return pairs[0], pairs[1], num_linked
