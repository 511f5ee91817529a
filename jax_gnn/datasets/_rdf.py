"""RDF: N-Triples, gzipped or not, with tables of labelled nodes."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.datasets._check import ID_BYTES, Memory, blame, require_file
from jax_gnn.datasets._dataset import RelationalDataset

_MAX_LINE = 2**20
_TERM_BYTES = 512  # a term as a string and as a key, beside its characters
_SUFFIXES = (".nt", ".nt.gz")
_TABLES = ("completeDataset.tsv", "trainingSet.tsv", "testSet.tsv")
_IRI = r'<[^\x00-\x20<>"{}|^`]*>'
_BLANK = r'_:[^\s<>"]+'
_LITERAL = rf'"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^{_IRI})?'
_TRIPLE = re.compile(
    rf"[ \t]*({_IRI}|{_BLANK})[ \t]*({_IRI})[ \t]*({_IRI}|{_BLANK}|{_LITERAL})"
    r"[ \t]*\.[ \t]*(?:#.*)?"
)


def load_rdf(path: str | os.PathLike[str]) -> RelationalDataset:
    """Reads N-Triples, and the labels of nodes from tables beside them.

    ``NAME.nt`` or ``NAME.nt.gz`` has a triple a line; empty lines and comments are passed over. All
    subjects and objects are nodes, literals too, sorted by their N-Triples term, which is their
    name; predicates are relations, the most frequent first, equally frequent ones by name. A triple
    given twice counts once. Where the file is "stripped", the relation that says what is to be
    predicted is left out of it.

    ``completeDataset.tsv``, ``trainingSet.tsv`` and ``testSet.tsv`` may be there, tables separated
    by tabs whose first line names the columns: that of the labels begins with ``label``, ``id`` is
    passed over, and the one left is a node's IRI. Classes are the labels, sorted; ``0.0`` is the
    label ``0``.

    Args:
        path: the folder, or the file of triples.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is no triple or longer than 1 MiB, a table has other columns or a node
            that is not in the graph, a file is damaged or takes too much memory (see
            :mod:`jax_gnn.datasets`), or a folder holds several datasets. The line is named.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
        if len(files) != 1:
            found = ", ".join(file.name for file in files) or "none"
            raise (ValueError if files else FileNotFoundError)(
                f"{path}: expected one file NAME.nt or NAME.nt.gz, got {found}"
            )
        (path,) = files
    require_file(path, "NAME.nt or NAME.nt.gz")
    if not path.name.endswith(_SUFFIXES):
        raise ValueError(f"{path} is not one of NAME.nt and NAME.nt.gz")
    tables = [table for name in _TABLES if (table := path.with_name(name)).is_file()]
    memory = Memory(path, *tables)
    nodes: dict[str, int] = {}
    relations: dict[str, int] = {}
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    with blame(path):
        for number, line in _lines(path):
            match = _TRIPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"line {number} is no triple: {line[:80]!r}")
            memory.claim("the triples", 3 * ID_BYTES)
            for term, known, column in zip(
                match.groups(), (nodes, relations, nodes), columns, strict=True
            ):
                if term not in known:
                    memory.claim("the terms", 4 * len(term) + _TERM_BYTES)
                    known[term] = len(known)
                column.append(known[term])
        names = sorted(nodes)
        counts = Counter(columns[1])
        by_count = sorted(relations, key=lambda term: (-counts[relations[term]], term))
    node_ids, relation_ids = (
        _renumbered(known, order) for known, order in ((nodes, names), (relations, by_count))
    )
    labels = {table.name: _labels(table, nodes) for table in tables}
    with blame(path):
        given = dict(pair for table in labels.values() for pair in table)
        classes = sorted(set(given.values()))
        y = np.full(len(names), -1, np.int32)
        for node, label in given.items():
            y[node_ids[nodes[node]]] = classes.index(label)
        splits: dict[str, Any] = {
            part: np.sort([node_ids[nodes[node]] for node, _ in labels[table]]).astype(np.int32)
            for part, table in (("train_idx", _TABLES[1]), ("test_idx", _TABLES[2]))
            if table in labels
        }
        return RelationalDataset(
            name=path.name.removesuffix(".gz").removesuffix(".nt").removesuffix("_stripped"),
            num_nodes=len(names),
            num_relations=len(by_count),
            src=node_ids[np.array(columns[0], np.int64)],
            rel=relation_ids[np.array(columns[1], np.int64)],
            dst=node_ids[np.array(columns[2], np.int64)],
            node_names=tuple(names),
            relation_names=tuple(term[1:-1] for term in by_count),
            label_names=tuple(classes) if tables else None,
            y=y,
            **splits,
        )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that may be triples, with their numbers."""
    number = 0
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            while line := file.readline(_MAX_LINE + 1):
                number += 1
                if len(line) > _MAX_LINE:
                    raise ValueError(f"line {number} is longer than {_MAX_LINE:,} bytes")
                text = line.rstrip(b"\r\n").decode("utf-8")
                if text.strip() and not text.lstrip().startswith("#"):
                    yield number, text
    except UnicodeDecodeError as error:
        raise ValueError(f"line {number} is not UTF-8: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"damaged after line {number}: {error}") from error


def _renumbered(known: dict[str, int], order: list[str]) -> np.ndarray:
    """Which place in the order each number stands for."""
    places = np.empty(len(order), np.int32)
    places[[known[term] for term in order]] = np.arange(len(order), dtype=np.int32)
    return places


def _labels(path: Path, nodes: dict[str, int]) -> list[tuple[str, str]]:
    """The nodes of a table, as terms, and their labels."""
    with blame(path):
        rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
        header = rows[0] if rows else []
        label = [i for i, name in enumerate(header) if name.startswith("label")]
        node = [i for i, name in enumerate(header) if i not in label and name != "id"]
        if len(label) != 1 or len(node) != 1:
            raise ValueError(
                f"line 1: expected the columns id, a node and label..., got {header!r:.200}"
            )
        found = []
        for number, row in enumerate(rows[1:], 2):
            if len(row) != len(header):
                raise ValueError(f"line {number}: expected {len(header)} columns, got {len(row)}")
            term = f"<{row[node[0]]}>"
            if term not in nodes:
                raise ValueError(f"line {number}: {term:.200} is no node of the triples")
            found.append((term, _plain(row[label[0]])))
        return found


def _plain(label: str) -> str:
    """A label that is a whole number, without a point."""
    return label[:-2] if re.fullmatch(r"\d+\.0", label) else label
