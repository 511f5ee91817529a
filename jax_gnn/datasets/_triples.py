"""Facts as text: a folder with ``train.txt``, ``valid.txt`` and ``test.txt``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.datasets._check import MAX_SIZE, as_path, blame, require_file
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.datasets._lines import integers, is_blank, read_lines

TRIPLES = {"train": "train.txt", "val": "valid.txt", "test": "test.txt"}
_NUMBERED = {"nodes": "entities.dict", "relations": "relations.dict"}  # number, name
_NAMED = {"nodes": "entity2id.txt", "relations": "relation2id.txt"}  # name, number


def load_triples(path: str | os.PathLike[str]) -> RelationalDataset:
    """Reads facts as knowledge graphs are published: WN18RR, FB15k-237, Nations.

    ``train.txt``, ``valid.txt`` and ``test.txt`` have a fact a line, the names of source, relation
    and destination, separated by tabs; the files are the split of edges. The last two may be
    missing together: then there is none. Nodes and relations count in the order of their first
    mention. Dictionaries say otherwise, which may also name nodes without facts: RotatE's
    ``entities.dict`` and ``relations.dict``, lines of number and name, or OpenKE's
    ``entity2id.txt`` and ``relation2id.txt``, which begin with how many there are and have name and
    number. A fact that is repeated within a file counts once.

    Args:
        path: the folder, or ``train.txt`` in it.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is not as above, which its number says; a dictionary lacks a name or a
            number, or has one twice; a file has no fact; or a fact is in two files.
    """
    path = as_path("path", path)
    folder = path if path.is_dir() else path.parent
    first = folder / TRIPLES["train"]
    if path not in (folder, *(folder / name for name in TRIPLES.values())):
        require_file(path, "a folder with train.txt, or that file")
        raise ValueError(f"{path} is none of {', '.join(TRIPLES.values())}, or their folder")
    require_file(first, "train.txt")
    present = {part: folder / name for part, name in TRIPLES.items() if (folder / name).exists()}
    if len(present) == 2:
        missing = next(name for part, name in TRIPLES.items() if part not in present)
        require_file(folder / missing, "valid.txt and test.txt together")
    numbers = {what: _dictionary(folder, what) for what in _NUMBERED}
    fixed = {what for what, names in numbers.items() if names}
    facts: dict[str, np.ndarray] = {}
    for part, file in present.items():
        with blame(file):
            facts[part] = _facts(file, numbers, fixed)
    src, rel, dst = np.concatenate(list(facts.values())).T
    ends = np.cumsum([len(found) for found in facts.values()])[:-1]
    places = np.split(np.arange(src.size), ends)
    split: dict[str, Any] = {f"{part}_edges": ids for part, ids in zip(facts, places, strict=True)}
    with blame(folder):
        _check_apart(facts, numbers)
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
    """Numbers of source, relation and destination of each line; new names get the next ones."""
    nodes, relations = numbers["nodes"], numbers["relations"]
    found = []
    for number, line in read_lines(path):
        if is_blank(line):
            continue
        names = line.split("\t")
        if len(names) != 3 or any(map(is_blank, names)):
            raise ValueError(
                f"line {number}: expected source, relation and destination, separated by tabs, "
                f"got {line!r:.80}"
            )
        columns = (nodes, "nodes"), (relations, "relations"), (nodes, "nodes")
        for name, (known, what) in zip(names, columns, strict=True):
            if what in fixed and name not in known:
                raise ValueError(f"line {number}: {name!r:.80} is not in the dictionary of {what}")
        src, rel, dst = names
        found.append(
            (
                nodes.setdefault(src, len(nodes)),
                relations.setdefault(rel, len(relations)),
                nodes.setdefault(dst, len(nodes)),
            )
        )
    if not found:
        raise ValueError("the file has no facts")
    return np.array(found, np.int32)


def _dictionary(folder: Path, what: str) -> dict[str, int]:
    """The number of each name, ascending; nothing where there is no file."""
    paths = [folder / files[what] for files in (_NUMBERED, _NAMED)]
    at = next((i for i, path in enumerate(paths) if path.is_file()), None)
    if at is None:
        return {}
    path = paths[at]
    with blame(path):
        names: dict[int, str] = {}
        for number, line in read_lines(path):
            row = line.split("\t")
            if is_blank(line) or (at == 1 and number == 1 and len(row) == 1):  # their count
                continue
            if len(row) != 2:
                raise ValueError(f"line {number}: expected a name and its number, got {line!r:.80}")
            (key,) = integers(number, "a number", [row[at]], 0, MAX_SIZE)
            if key in names:
                raise ValueError(f"line {number}: number {key} is there twice")
            names[key] = row[1 - at]
        if names and max(names) >= len(names):
            missing = next(key for key in range(len(names)) if key not in names)
            raise ValueError(f"number {missing} has no name, but number {max(names)} has one")
        found = {names[key]: key for key in range(len(names))}
        if len(found) < len(names):
            key = next(key for key in names if found[names[key]] != key)
            raise ValueError(f"the name {names[key]!r:.80} is there twice")
        return found


def _check_apart(facts: dict[str, np.ndarray], numbers: dict[str, dict[str, int]]) -> None:
    """Raises an error that names a fact of two files."""
    rows = np.concatenate(list(facts.values()))
    file = np.repeat([TRIPLES[part] for part in facts], [len(found) for found in facts.values()])
    order = np.lexsort(rows.T)
    rows, file = rows[order], file[order]
    twice = (rows[1:] == rows[:-1]).all(1) & (file[1:] != file[:-1])
    if twice.any():
        at = int(np.argmax(twice))
        nodes, relations = (tuple(numbers[what]) for what in ("nodes", "relations"))
        src, rel, dst = rows[at].tolist()
        raise ValueError(
            f"the fact {nodes[src]!r:.40}, {relations[rel]!r:.40}, {nodes[dst]!r:.40} is in "
            f"{file[at]} and in {file[at + 1]}"
        )
