"""Facts of knowledge graphs as text: ``train.txt``, ``valid.txt`` and ``test.txt``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn._core.files import as_path, errors_in, require_file
from jax_gnn.datasets._check import MAX_SIZE
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.datasets._lines import integers, is_blank, read_lines

TRIPLES = {"train": "train.txt", "val": "valid.txt", "test": "test.txt"}
_NUMBERED = {"nodes": "entities.dict", "relations": "relations.dict"}  # number, name
_NAMED = {"nodes": "entity2id.txt", "relations": "relation2id.txt"}  # name, number


def load_triples(path: str | os.PathLike[str]) -> RelationalDataset:
    """Read facts in the format of published knowledge graphs: WN18RR, FB15k-237, Nations.

    ``train.txt``, ``valid.txt`` and ``test.txt`` have a fact a line, the names of source, relation
    and destination, separated by tabs; the files are the split of edges. The last two may be
    missing together: then the edges have no split. Nodes and relations are numbered in the order of
    their first mention, or by dictionaries, which may also name nodes without facts: RotatE's
    ``entities.dict`` and ``relations.dict``, lines of number and name, or OpenKE's
    ``entity2id.txt`` and ``relation2id.txt``, a line with their number, then lines of name and
    number. A fact that is repeated within a file counts once.

    Args:
        path: the folder, or one of the files of facts.
    """
    path = as_path("path", path)
    folder = path if path.is_dir() else path.parent
    files = {part: folder / name for part, name in TRIPLES.items()}
    if path not in (folder, *files.values()):
        require_file(path, "a folder with train.txt, or that file")
        raise ValueError(f"{path} is none of {', '.join(TRIPLES.values())}, or their folder")
    require_file(files["train"], "train.txt")
    present = {part: file for part, file in files.items() if file.exists()}
    if len(present) == 2:
        missing = next(file for part, file in files.items() if part not in present)
        require_file(missing, "valid.txt and test.txt together")
    numbers = {what: _dictionary(folder, what) for what in _NUMBERED}
    # Names are fixed if a dictionary lists them; otherwise files add new ones.
    fixed = {what for what, names in numbers.items() if names}
    facts: dict[str, np.ndarray] = {}
    for part, file in present.items():
        with errors_in(file):
            facts[part] = _facts(file, numbers, fixed)
    src, rel, dst = np.concatenate(list(facts.values())).T
    stops = np.cumsum([len(rows) for rows in facts.values()])[:-1]
    edges = np.split(np.arange(src.size), stops)
    split: dict[str, Any] = {f"{part}_edges": ids for part, ids in zip(facts, edges, strict=True)}
    with errors_in(folder):
        return RelationalDataset(
            name=folder.resolve().name,
            num_nodes=len(numbers["nodes"]),
            num_relations=len(numbers["relations"]),
            src=src,
            rel=rel,
            dst=dst,
            y=np.full(len(numbers["nodes"]), -1),
            node_names=tuple(numbers["nodes"]),
            relation_names=tuple(numbers["relations"]),
            **(split if len(present) > 1 else {}),
        )


def _facts(path: Path, numbers: dict[str, dict[str, int]], fixed: set[str]) -> np.ndarray:
    """Read the ids of source, relation and destination of each line.

    New names get the next of the ``numbers``, but of kinds that are ``fixed`` by a dictionary.
    """
    rows = []
    for number, line in read_lines(path):
        if is_blank(line):
            continue
        names = line.split("\t")
        if len(names) != 3 or any(map(is_blank, names)):
            raise ValueError(
                f"line {number}: expected source, relation and destination, separated by tabs, "
                f"got {line!r:.80}"
            )
        row = []
        for name, what in zip(names, ("nodes", "relations", "nodes"), strict=True):
            ids = numbers[what]
            if what in fixed and name not in ids:
                raise ValueError(f"line {number}: {name!r:.80} is not in the dictionary of {what}")
            row.append(ids.setdefault(name, len(ids)))
        rows.append(row)
    if not rows:
        raise ValueError("the file has no facts")
    return np.array(rows, np.int32)


def _dictionary(folder: Path, what: str) -> dict[str, int]:
    """Read the id of each name, ascending; empty without a file."""
    paths = [folder / files[what] for files in (_NUMBERED, _NAMED)]
    column = next((i for i, path in enumerate(paths) if path.is_file()), None)
    if column is None:
        return {}
    path = paths[column]
    with errors_in(path):
        names: dict[int, str] = {}
        for number, line in read_lines(path):
            row = line.split("\t")
            is_count = column == 1 and number == 1 and len(row) == 1
            if is_blank(line) or is_count:
                continue
            if len(row) != 2:
                raise ValueError(f"line {number}: expected a name and its number, got {line!r:.80}")
            (key,) = integers(number, "a number", [row[column]], 0, MAX_SIZE)
            if key in names:
                raise ValueError(f"line {number}: number {key} is there twice")
            names[key] = row[1 - column]
        if names and max(names) >= len(names):
            missing = next(key for key in range(len(names)) if key not in names)
            raise ValueError(f"number {missing} has no name, but number {max(names)} has one")
        ids = {names[key]: key for key in range(len(names))}
        if len(ids) < len(names):
            key = next(key for key in names if ids[names[key]] != key)
            raise ValueError(f"the name {names[key]!r:.80} is there twice")
        return ids
