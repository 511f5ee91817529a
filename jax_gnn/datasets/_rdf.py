"""RDF graphs: N-Triples, with tables of labelled nodes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in, require_file
from jax_gnn.datasets._dataset import RelationalDataset
from jax_gnn.datasets._lines import is_blank, read_lines, rows_of

_MAX_LINE = 2**20
_TERM_BYTES = 512  # of a term as a string and as a key, in addition to its characters
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
    r"""Read N-Triples (W3C, RDF 1.1), and the labels of nodes from tables in the same folder.

    ``NAME.nt`` or ``NAME.nt.gz`` has a triple a line; empty lines and comments are skipped. All
    subjects and objects are nodes, literals too, sorted by their N-Triples term, which is their
    name; predicates are relations, by descending frequency, then by name. Repeated triples count
    once. "Stripped" files lack the relation that is to be predicted.

    Terms are compared and named in canonical form: escapes such as ``\u00E9`` become characters,
    except line ends, ``"`` and ``\``; language tags are in lower case; a literal of ``xsd:string``
    has no type. Nothing else is normalized; relative IRIs stay relative.

    ``completeDataset.tsv``, ``trainingSet.tsv`` and ``testSet.tsv`` are optional tables separated
    by tabs. Their first line names the columns: the column of labels begins with ``label``, ``id``
    is ignored, and the remaining column has the nodes' IRIs. Classes are the labels, sorted;
    ``0.0`` is the label ``0``.

    Args:
        path: the folder, or the file of triples.
    """
    path = as_path("path", path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise (ValueError if files else FileNotFoundError)(
                f"{path}: expected one file NAME.nt or NAME.nt.gz, got {names}"
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
    with errors_in(path):
        for number, line in read_lines(path, _MAX_LINE):
            if is_blank(line) or line.lstrip(" \t").startswith("#"):
                continue
            match = _TRIPLE.fullmatch(line)
            if match is None:
                raise ValueError(f"line {number} is no triple: {line[:80]!r}")
            memory.claim("the triples", 3 * ID_BYTES)
            for term, numbers, column in zip(
                _terms(match), (nodes, relations, nodes), columns, strict=True
            ):
                if term not in numbers:
                    memory.claim("the terms", 4 * len(term) + _TERM_BYTES)
                    numbers[term] = len(numbers)
                column.append(numbers[term])
        # Terms got numbers in the order of the file; ids are in the order of their names.
        node_names, counts = sorted(nodes), Counter(columns[1])
        by_count = sorted(relations, key=lambda term: (-counts[relations[term]], term))
    node_ids, relation_ids = _ranks(nodes, node_names), _ranks(relations, by_count)
    label_of: dict[str, str] = {}
    split_of: dict[str, str] = {}
    for table in tables:
        with errors_in(table):
            for number, term, label in _labels(table):
                if term not in nodes:
                    raise ValueError(f"line {number}: {term:.200} is no node of {path.name}")
                if label_of.setdefault(term, label) != label:
                    raise ValueError(
                        f"line {number}: {term:.200} has the label {label!r:.80} here and "
                        f"{label_of[term]!r:.80} before"
                    )
                if table.name in _SPLITS and split_of.setdefault(term, table.name) != table.name:
                    raise ValueError(f"line {number}: {term:.200} is in {split_of[term]} too")
    with errors_in(path):
        classes = sorted(set(label_of.values()))
        y = np.full(len(node_names), -1, np.int32)
        for term, label in label_of.items():
            y[node_ids[nodes[term]]] = classes.index(label)
        splits: dict[str, Any] = {
            part: np.sort([node_ids[nodes[t]] for t, table in split_of.items() if table == name])
            for part, name in zip(("train_idx", "test_idx"), _SPLITS, strict=True)
            if path.with_name(name) in tables
        }
        return RelationalDataset(
            name=path.name.removesuffix(".gz").removesuffix(".nt").removesuffix("_stripped"),
            num_nodes=len(node_names),
            num_relations=len(by_count),
            src=node_ids[np.array(columns[0], np.int64)],
            rel=relation_ids[np.array(columns[1], np.int64)],
            dst=node_ids[np.array(columns[2], np.int64)],
            node_names=tuple(node_names),
            relation_names=tuple(term[1:-1] for term in by_count),
            label_names=tuple(classes) if tables else None,
            y=y,
            **{part: ids.astype(np.int32) for part, ids in splits.items()},
        )


def _terms(triple: re.Match[str]) -> tuple[str, str, str]:
    """Return subject, predicate and object in canonical form."""
    subject, predicate, node, string, language, datatype = map(_unescaped, triple.groups(""))
    if language:
        string += language.lower()
    elif datatype != _XSD_STRING:
        string += datatype and f"^^{datatype}"
    return subject, predicate, node or string


def _unescaped(text: str) -> str:
    """Replace escapes by the characters of canonical N-Triples."""
    return _ESCAPE.sub(_canonical, text) if "\\" in text else text


def _canonical(escape: re.Match[str]) -> str:
    kind, digits = escape[0][1], escape[0][2:]
    character = chr(int(digits, 16)) if digits else _CHARACTERS[kind]
    return _ESCAPED.get(character, character)


def _ranks(numbers: dict[str, int], order: list[str]) -> np.ndarray:
    """Return the rank in the order of the term with each number."""
    ranks = np.empty(len(order), np.int32)
    ranks[[numbers[term] for term in order]] = np.arange(len(order), dtype=np.int32)
    return ranks


def _labels(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the lines of a table: number, node as a term, label."""
    lines = read_lines(path)
    _, header = next(lines, (1, ""))
    columns = header.split("\t")
    label = [i for i, name in enumerate(columns) if name.startswith("label")]
    node = [i for i, name in enumerate(columns) if i not in label and name != "id"]
    if len(label) != 1 or len(node) != 1:
        raise ValueError(
            f"line 1: expected the columns id, a node and label..., got {columns!r:.200}"
        )
    for number, row in rows_of(lines, len(columns)):
        term = f"<{_unescaped(row[node[0]])}>"
        yield number, term, re.sub(r"^([0-9]+)\.0$", r"\1", row[label[0]])
