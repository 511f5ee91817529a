"""The format of the Heterogeneous Graph Benchmark (HGB)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.datasets._check import ID_BYTES, MAX_SIZE, Memory, blame, require_file
from jax_gnn.datasets._dataset import RelationalDataset


def load_hgb(path: str | os.PathLike[str]) -> RelationalDataset:
    """Reads a folder of the Heterogeneous Graph Benchmark (Lv et al. 2021, arXiv 2112.14936).

    ``link.dat`` has an edge a line, separated by tabs: source, destination, relation, weight.
    ``label.dat`` and ``label.dat.test``, the training and the test nodes, have a node a line: its
    id, name, type, and classes separated by commas. ``info.dat`` is JSON; what it says of names,
    and of the types at the ends of relations, is taken over where it is there. Weights and the
    features of ``node.dat`` are not read. Relations are as in the file: mostly with their inverses.

    Args:
        path: the folder, or ``link.dat`` in it.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is not as above, which its number says, a file takes too much memory (see
            :mod:`jax_gnn.datasets`), or a field is not as :class:`RelationalDataset` wants it.
    """
    path = Path(path)
    folder = path.parent if path.name == "link.dat" and not path.is_dir() else path
    if not folder.is_dir():
        require_file(folder, "a folder with link.dat, or that file")
        raise ValueError(f"{folder} is a file; expected a folder with link.dat, or that file")
    links_path = require_file(folder / "link.dat", "link.dat")
    info_path = folder / "info.dat"
    label_paths = [
        file for name in ("label.dat", "label.dat.test") if (file := folder / name).is_file()
    ]
    memory = Memory(links_path, *label_paths, *([info_path] if info_path.is_file() else []))
    with blame(links_path):
        links = np.array(
            [_integers(number, row[:3]) for number, row in _rows(links_path, 4)], np.int64
        ).reshape(-1, 3)
    labels: dict[str, list[tuple[int, int, list[int]]]] = {}
    for file in label_paths:
        labels[file.name] = []
        with blame(file):
            for number, row in _rows(file, 4):
                node, kind = _integers(number, [row[0], row[2]])
                labels[file.name].append((node, kind, _integers(number, row[3].split(","))))
    labelled = [entry for entries in labels.values() for entry in entries]
    with blame(folder):
        num_nodes = max([int(links[:, :2].max(initial=-1)), *(e[0] for e in labelled)]) + 1
        num_relations = int(links[:, 2].max(initial=-1)) + 1
        num_classes = max((c for e in labelled for c in e[2]), default=-1) + 1
        memory.claim(f"{num_nodes} nodes", num_nodes * ID_BYTES)
        info = _info(info_path)
        y = np.full(num_nodes, -1, np.int32)
        multilabel = None
        if any(len(classes) > 1 for *_, classes in labelled):
            memory.claim("the labels", 2 * num_nodes * num_classes)
            multilabel = np.zeros((num_nodes, num_classes), bool)
        types = np.full(num_nodes, -1, np.int32)
        for relation, (start, end) in info["ends"].items():
            edges = links[links[:, 2] == relation]
            types[edges[:, 0]], types[edges[:, 1]] = start, end
        for node, kind, classes in labelled:
            types[node] = kind
            if multilabel is None:
                y[node] = classes[0]
            else:
                multilabel[node, classes] = True
        num_types = int(types.max(initial=-1)) + 1
        names = []
        for what, size in (
            ("types", num_types),
            ("relations", num_relations),
            ("classes", num_classes),
        ):
            memory.claim(f"{size} {what}", size * 2 * ID_BYTES)
            names.append(tuple(info[what].get(i, str(i)) for i in range(size)))
        splits: dict[str, Any] = {
            part: np.sort([entry[0] for entry in labels[name]]).astype(np.int32)
            for part, name in (("train_idx", "label.dat"), ("test_idx", "label.dat.test"))
            if name in labels
        }
        return RelationalDataset(
            name=folder.resolve().name,
            num_nodes=num_nodes,
            num_relations=num_relations,
            src=links[:, 0],
            dst=links[:, 1],
            rel=links[:, 2],
            node_type=types,
            node_type_names=names[0],
            relation_names=names[1],
            label_names=names[2],
            y=y,
            y_multilabel=multilabel,
            **splits,
        )


def _rows(path: Path, columns: int) -> list[tuple[int, list[str]]]:
    """The lines of a table separated by tabs, with their numbers."""
    rows = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.strip():
            row = line.split("\t")
            if len(row) != columns:
                raise ValueError(f"line {number}: expected {columns} columns, got {len(row)}")
            rows.append((number, row))
    return rows


def _integers(number: int, fields: list[str]) -> list[int]:
    try:
        values = [int(field) for field in fields]
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error
    for value in values:
        if not 0 <= value <= MAX_SIZE:
            raise ValueError(f"line {number}: {value} is outside [0, {MAX_SIZE}]")
    return values


def _info(path: Path) -> dict[str, Any]:
    """Names of types, relations and classes, and the types at each relation's ends, by number."""
    found: dict[str, Any] = {"types": {}, "relations": {}, "classes": {}, "ends": {}}
    if not path.is_file():
        return found
    with blame(path):
        try:
            info = json.loads(path.read_text("utf-8"))
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        found["types"] = _by_number(_table(info, "node.dat", "node type"), str)
        links = _by_number(_table(info, "link.dat", "link type"), dict)
        for number, link in links.items():
            ends = link.get("start"), link.get("end")
            if all(type(end) is int and 0 <= end <= MAX_SIZE for end in ends):
                found["ends"][number] = ends
            if isinstance(link.get("meaning"), str):
                found["relations"][number] = link["meaning"]
        for classes in _by_number(_table(info, "label.dat", "node type"), dict).values():
            found["classes"] |= _by_number(classes, str)
        return found


def _table(info: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        info = info.get(key, {}) if isinstance(info, dict) else {}
    return info if isinstance(info, dict) else {}


def _by_number(table: dict[str, Any], kind: type) -> dict[int, Any]:
    return {
        int(key): value
        for key, value in table.items()
        if key.isascii() and key.isdigit() and len(key) < 10 and isinstance(value, kind)
    }
