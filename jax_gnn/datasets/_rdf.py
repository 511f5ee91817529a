"""RDF: N-Triples, gzipped or not, with tables of labelled nodes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.datasets._check import ID_BYTES, Memory, as_path, blame, require_file
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.datasets._lines import is_blank, read_lines

_MAX_LINE = 2**20
_TERM_BYTES = 512  # a term as a string and as a key, beside its characters
_SUFFIXES = (".nt", ".nt.gz")
_SPLITS = ("trainingSet.tsv", "testSet.tsv")
_TABLES = ("completeDataset.tsv", *_SPLITS)

# The grammar of RDF 1.1 N-Triples (W3C, 2014), by the names of its productions.
_UCHAR = (  # of a Unicode scalar value: no surrogate, nothing beyond U+10FFFF
    r"\\u(?![Dd][89A-Fa-f])[0-9A-Fa-f]{4}"
    r"|\\U(?!0000[Dd][89A-Fa-f])(?:000[0-9A-Fa-f]|0010)[0-9A-Fa-f]{4}"
)
_ECHAR = r"""\\[tbnrf"'\\]"""
_IRIREF = rf'<(?:[^\x00-\x20<>"{{}}|^`\\]++|{_UCHAR})*+>'
_STRING = rf'"(?:[^"\\\r\n]++|{_ECHAR}|{_UCHAR})*+"'
_LANGTAG = r"@[A-Za-z]+(?:-[A-Za-z0-9]+)*"
_PN_CHARS_U = (  # or a digit
    r"0-9A-Za-z_:\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u02FF\u0370-\u037D\u037F-\u1FFF\u200C\u200D"
    r"\u2070-\u218F\u2C00-\u2FEF\u3001-\uD7FF\uF900-\uFDCF\uFDF0-\uFFFD\U00010000-\U000EFFFF"
)
_PN_CHARS = rf"{_PN_CHARS_U}\-\u00B7\u0300-\u036F\u203F\u2040"
_BLANK_NODE = rf"_:[{_PN_CHARS_U}](?:[{_PN_CHARS}.]*[{_PN_CHARS}])?"
_TRIPLE = re.compile(
    rf"[ \t]*({_IRIREF}|{_BLANK_NODE})[ \t]*({_IRIREF})[ \t]*"
    rf"(?:({_IRIREF}|{_BLANK_NODE})|({_STRING})[ \t]*(?:({_LANGTAG})|\^\^[ \t]*({_IRIREF}))?)"
    r"[ \t]*\.[ \t]*(?:#.*)?"
)
_ESCAPE = re.compile(f"{_UCHAR}|{_ECHAR}")
_CHARACTERS = dict(zip("tbnrf\"'\\", "\t\b\n\r\f\"'\\", strict=True))
_ESCAPED = {"\n": r"\n", "\r": r"\r", '"': r"\"", "\\": r"\\"}  # in canonical N-Triples
_XSD_STRING = "<http://www.w3.org/2001/XMLSchema#string>"


def load_rdf(path: str | os.PathLike[str]) -> RelationalDataset:
    r"""Reads N-Triples (W3C, RDF 1.1), and the labels of nodes from tables beside them.

    ``NAME.nt`` or ``NAME.nt.gz`` has a triple a line; empty lines and comments are passed over. All
    subjects and objects are nodes, literals too, sorted by their N-Triples term, which is their
    name; predicates are relations, the most frequent first, equally frequent ones by name. A triple
    given twice counts once. Where the file is "stripped", the relation that says what is to be
    predicted is left out of it.

    Terms are compared, and named, in canonical form, as what they mean: escapes such as ``\u00E9``
    are the characters that they stand for, but for a line end, ``"`` and ``\``; language tags are
    in lower case; a literal of ``xsd:string`` is one without a type. Nothing else is normalized,
    and relative IRIs are taken as they are.

    ``completeDataset.tsv``, ``trainingSet.tsv`` and ``testSet.tsv`` may be there, tables separated
    by tabs whose first line names the columns: that of the labels begins with ``label``, ``id`` is
    passed over, and the one left is a node's IRI. Classes are the labels, sorted; ``0.0`` is the
    label ``0``.

    Args:
        path: the folder, or the file of triples.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a line is no triple or longer than 1 MiB, a table has other columns, a node that
            is not in the graph, two labels for one node, or a node of both splits, a file is
            damaged or takes too much memory (see :mod:`jax_gnn.datasets`), or a folder holds
            several datasets. The line is named.
    """
    path = as_path("path", path)
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
        for number, line in read_lines(path, _MAX_LINE):
            if is_blank(line) or line.lstrip(" \t").startswith("#"):
                continue
            match = _TRIPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"line {number} is no triple: {line[:80]!r}")
            memory.claim("the triples", 3 * ID_BYTES)
            for term, known, column in zip(
                _terms(match), (nodes, relations, nodes), columns, strict=True
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
    given: dict[str, str] = {}
    split_of: dict[str, str] = {}
    for table in tables:
        with blame(table):
            for number, term, label in _labels(table):
                if term not in nodes:
                    raise ValueError(f"line {number}: {term:.200} is no node of {path.name}")
                if given.setdefault(term, label) != label:
                    raise ValueError(
                        f"line {number}: {term:.200} has the label {label!r:.80} here and "
                        f"{given[term]!r:.80} before"
                    )
                if table.name in _SPLITS and split_of.setdefault(term, table.name) != table.name:
                    raise ValueError(f"line {number}: {term:.200} is in {split_of[term]} too")
    with blame(path):
        classes = sorted(set(given.values()))
        y = np.full(len(names), -1, np.int32)
        for term, label in given.items():
            y[node_ids[nodes[term]]] = classes.index(label)
        splits: dict[str, Any] = {
            part: np.sort([node_ids[nodes[t]] for t, of in split_of.items() if of == name])
            for part, name in zip(("train_idx", "test_idx"), _SPLITS, strict=True)
            if path.with_name(name) in tables
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
            **{part: ids.astype(np.int32) for part, ids in splits.items()},
        )


def _terms(triple: re.Match[str]) -> tuple[str, str, str]:
    """Subject, predicate and object in canonical form."""
    subject, predicate, node, string, language, datatype = map(_unescaped, triple.groups(""))
    if language:
        string += language.lower()
    elif datatype != _XSD_STRING:
        string += datatype and f"^^{datatype}"
    return subject, predicate, node or string


def _unescaped(text: str) -> str:
    """What canonical N-Triples has in place of the escapes."""
    return _ESCAPE.sub(_canonical, text) if "\\" in text else text


def _canonical(escape: re.Match[str]) -> str:
    kind, digits = escape[0][1], escape[0][2:]
    character = chr(int(digits, 16)) if digits else _CHARACTERS[kind]
    return _ESCAPED.get(character, character)


def _renumbered(known: dict[str, int], order: list[str]) -> np.ndarray:
    """Which place in the order each number stands for."""
    places = np.empty(len(order), np.int32)
    places[[known[term] for term in order]] = np.arange(len(order), dtype=np.int32)
    return places


def _labels(path: Path) -> Iterator[tuple[int, str, str]]:
    """The lines of a table: number, node as a term, label."""
    lines = read_lines(path)
    _, header = next(lines, (1, ""))
    columns = header.split("\t")
    label = [i for i, name in enumerate(columns) if name.startswith("label")]
    node = [i for i, name in enumerate(columns) if i not in label and name != "id"]
    if len(label) != 1 or len(node) != 1:
        raise ValueError(
            f"line 1: expected the columns id, a node and label..., got {columns!r:.200}"
        )
    for number, line in lines:
        if is_blank(line):
            continue
        row = line.split("\t")
        if len(row) != len(columns):
            raise ValueError(f"line {number}: expected {len(columns)} columns, got {len(row)}")
        term = f"<{_unescaped(row[node[0]])}>"
        yield number, term, re.sub(r"^([0-9]+)\.0$", r"\1", row[label[0]])
