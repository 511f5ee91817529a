"""The format of the Heterogeneous Graph Benchmark (HGB)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in, require_file
from jax_gnn.datasets._check import MAX_SIZE
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.datasets._lines import integers, read_lines, rows_of


def load_hgb(path: str | os.PathLike[str]) -> RelationalDataset:
    """Read a folder of the Heterogeneous Graph Benchmark (Lv et al. 2021, arXiv 2112.14936).

    Files are tables separated by tabs. A line of ``node.dat`` is a node: its id, name, type and
    optional features; ids are 0, 1, … in any order. A line of ``link.dat`` is an edge: source,
    destination, relation, weight. Lines of ``label.dat`` and ``label.dat.test`` are the training
    and the test nodes: id, name, type, and classes separated by commas. ``info.dat`` is JSON with
    names of types, relations and classes, also of unused ones. Names, weights and features of nodes
    are not read. Relations are those of the file, which mostly include the inverses.

    Without ``node.dat``, the number of nodes is the largest id of an edge or a label plus one, and
    their types are those of labels, or else of the ends of relations in ``info.dat``; -1 is none.

    Args:
        path: the folder, or ``link.dat`` in it.
    """
    path = as_path("path", path)
    folder = path.parent if path.name == "link.dat" and not path.is_dir() else path
    if not folder.is_dir():
        require_file(folder, "a folder with link.dat, or that file")
        raise ValueError(f"{folder} is a file; expected a folder with link.dat, or that file")
    links_path = require_file(folder / "link.dat", "link.dat")
    nodes_path, info_path = folder / "node.dat", folder / "info.dat"
    label_paths = [
        file for name in ("label.dat", "label.dat.test") if (file := folder / name).is_file()
    ]
    optional_paths = [file for file in (nodes_path, info_path) if file.is_file()]
    memory = Memory(links_path, *label_paths, *optional_paths)
    types = _types(nodes_path) if nodes_path in optional_paths else None
    node, stop = ("a node", MAX_SIZE) if types is None else ("a node of node.dat", types.size)
    with errors_in(links_path):
        # Weights, the last column, are not read.
        links = np.array(
            [
                (*integers(number, node, row[:2], 0, stop), *_ids(number, "a relation", row[2]))
                for number, row in rows_of(read_lines(links_path), 4)
            ],
            np.int64,
        ).reshape(-1, 3)
    # By node: the file with its label, its type, its classes.
    labelled: dict[int, tuple[str, int, list[int]]] = {}
    for file in label_paths:
        with errors_in(file):
            for number, row in rows_of(read_lines(file), 4):
                (i,) = integers(number, node, row[:1], 0, stop)
                (kind,) = _ids(number, "a type", row[2])
                classes = _ids(number, "classes", *row[3].split(","))
                if i in labelled:
                    raise ValueError(f"line {number}: node {i} is in {labelled[i][0]} too")
                if types is not None and kind != types[i]:
                    raise ValueError(
                        f"line {number}: node {i} has type {kind} here and {types[i]} in node.dat"
                    )
                labelled[i] = file.name, kind, classes
    info = _info(info_path)
    with errors_in(folder):
        # Without node.dat, types are those of relations, then those of labels.
        if types is None:
            num_nodes = max(int(links[:, :2].max(initial=-1)), max(labelled, default=-1)) + 1
            memory.claim(f"{num_nodes} nodes", num_nodes * ID_BYTES)
            types = np.full(num_nodes, -1, np.int32)
            for relation, (src_type, dst_type) in info["ends"].items():
                edges = links[links[:, 2] == relation]
                types[edges[:, 0]], types[edges[:, 1]] = src_type, dst_type
            for i, (_, kind, _) in labelled.items():
                types[i] = kind
        names = {}
        for what, used in (
            ("types", types.max(initial=-1)),
            ("relations", links[:, 2].max(initial=-1)),
            ("classes", max((max(classes) for *_, classes in labelled.values()), default=-1)),
        ):
            # Names without uses count too, and uses without names are named by number.
            size = max(int(used), *info[what], -1) + 1
            memory.claim(f"{size} {what}", size * 2 * ID_BYTES)
            names[what] = tuple(info[what].get(i, str(i)) for i in range(size))
        y = np.full(types.size, -1, np.int32)
        multilabel = None
        # One node with several classes makes the whole dataset multi-label.
        if any(len(classes) > 1 for *_, classes in labelled.values()):
            memory.claim("the labels", 2 * types.size * len(names["classes"]))
            multilabel = np.zeros((types.size, len(names["classes"])), bool)
        for i, (*_, classes) in labelled.items():
            if multilabel is None:
                y[i] = classes[0]
            else:
                multilabel[i, classes] = True
        splits: dict[str, Any] = {
            part: np.array(sorted(i for i, (file, *_) in labelled.items() if file == name))
            for part, name in (("train_idx", "label.dat"), ("test_idx", "label.dat.test"))
            if folder / name in label_paths
        }
        return RelationalDataset(
            name=folder.resolve().name,
            num_nodes=types.size,
            num_relations=len(names["relations"]),
            src=links[:, 0],
            dst=links[:, 1],
            rel=links[:, 2],
            node_type=types,
            node_type_names=names["types"],
            relation_names=names["relations"],
            label_names=names["classes"],
            y=y,
            y_multilabel=multilabel,
            **splits,
        )


def _types(path: Path) -> np.ndarray:
    """Read the type of each node."""
    with errors_in(path):
        types: dict[int, int] = {}
        for number, row in rows_of(read_lines(path), 3, 4):
            (node,) = _ids(number, "a node", row[0])
            if node in types:
                raise ValueError(f"line {number}: node {node} is there twice")
            (types[node],) = _ids(number, "a type", row[2])
        # Ids must be all of 0, 1, … without gaps.
        if types and max(types) >= len(types):
            missing = next(node for node in range(len(types)) if node not in types)
            raise ValueError(f"node {missing} has no line, but node {max(types)} has one")
        return np.array([types[node] for node in range(len(types))], np.int32)


def _ids(number: int, what: str, *fields: str) -> list[int]:
    return integers(number, what, fields, 0, MAX_SIZE)


def _info(path: Path) -> dict[str, Any]:
    """Read names of types, relations and classes, and the types of each relation's ends, by id."""
    names: dict[str, dict[int, Any]] = {"types": {}, "relations": {}, "classes": {}, "ends": {}}
    if not path.is_file():
        return names
    with errors_in(path):
        try:
            info = json.loads(path.read_text("utf-8-sig"))
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        names["types"] = _by_number(_table(info, "node.dat", "node type"), str)
        links = _by_number(_table(info, "link.dat", "link type"), dict)
        for number, link in links.items():
            type_ids = link.get("start"), link.get("end")
            if all(type(i) is int and 0 <= i <= MAX_SIZE for i in type_ids):
                names["ends"][number] = type_ids
            if isinstance(link.get("meaning"), str):
                names["relations"][number] = link["meaning"]
        for classes in _by_number(_table(info, "label.dat", "node type"), dict).values():
            names["classes"] |= _by_number(classes, str)
        return names


def _table(info: object, *keys: str) -> dict[str, Any]:
    """Return the dictionary at a path of keys, empty if the file has none."""
    for key in keys:
        info = info.get(key, {}) if isinstance(info, dict) else {}
    return info if isinstance(info, dict) else {}


def _by_number(table: dict[str, Any], kind: type) -> dict[int, Any]:
    """Return the values of a type whose keys are numbers."""
    return {
        int(key): value
        for key, value in table.items()
        if key.isascii() and key.isdigit() and len(key) < 10 and isinstance(value, kind)
    }
