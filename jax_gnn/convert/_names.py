"""Columns that name nodes, edges, labels and parts: which they are, and the numbers of names.

The *word* of a column is its name in lower case without blanks, ``_`` and other signs. A column
whose name is the documented one is always taken; else one by a known word, if there is exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from jax_gnn.convert._columns import Column, encode

ENDS = (
    ("src", "dst"),
    ("source", "target"),
    ("from", "to"),
    ("head", "tail"),
    ("source", "destination"),
    ("source", "dest"),
    ("sender", "receiver"),
    ("senders", "receivers"),
    ("follower", "followee"),
    ("citing", "cited"),
    ("subject", "object"),
)
"""Words of the source and the destination of an edge; the first pair is the documented one."""
_LESS_CLEAR = (*zip("uia1", "vjb2", strict=True), ("start", "end"), ("origin", "destination"))
MEMBERS = ("node", "hyperedge"), ("node", "edge"), ("node", "group"), ("member", "group"), *ENDS
"""Words of the node and the hyperedge of an incidence."""
LABELS = {"label": "label", "labels": "label", "class": "label", "y": "y"}
LABELS |= {"target": "target", "targets": "target"}
"""Documented name of a column of labels by its word; "y" is either of both, by its values."""
_ID, _ID_WORDS = "id", (("id",), ("node", "nodeid", "vertex", "vertexid"), ("name", "nodename"))
_SUFFIX = re.compile(r"(?<=.)(id|idx|index|name)$")
_NODE = re.compile(r"(?<=.)(node|vertex)$|^(node|vertex|id)(?=.)")
_LISTED = 8


def word_of(name: str) -> str:
    """Return the word of a column."""
    return re.sub(r"[\W_]+", "", name).casefold()


def _end_word(name: str) -> str:
    """Return the word of a column without what only says that it names nodes: "from_node_id"."""
    return _NODE.sub("", _SUFFIX.sub("", word_of(name)))


def ends_of_types(src: str, dst: str) -> tuple[tuple[str, str], ...]:
    """Return the words of the ends of edges between nodes of two types, whose names will do."""
    return (*ENDS, *[(word_of(src), word_of(dst))] * (src != dst))


def find_ends(
    title: str,
    columns: Collection[str],
    words: Sequence[tuple[str, str]] = ENDS,
    src: str | None = None,
    dst: str | None = None,
) -> tuple[str, str]:
    """Return the columns of the two ends of edges, or of nodes and hyperedges.

    Args:
        title: Name of the table in errors; "" where they name the file.
        columns: Names of the columns.
        words: Words of the two ends, the documented ones first.
        src: Column of the first end, if it is known.
        dst: Column of the second end, if it is known.

    Raises:
        ValueError: No pair of columns may be meant, or several.
    """
    if src is not None and dst is not None:
        return src, dst
    for documented in (words[0], ENDS[0]):
        if src is None and dst is None and {*documented} <= {*columns}:
            return documented

    def pairs_of(words: Sequence[tuple[str, str]]) -> dict[tuple[str, str], None]:
        return {
            (first, second): None
            for pair in words
            for first in ([src] if src is not None else _with_word(columns, pair[0]))
            for second in ([dst] if dst is not None else _with_word(columns, pair[1]))
            if first != second
        }

    pairs = pairs_of(words) or pairs_of(_LESS_CLEAR)
    if len(pairs) > 1:
        found = " or ".join(f"{first!r}, {second!r}" for first, second in pairs)
        raise ValueError(
            f"{_at(title)}the columns {found} may be meant: call the right ones {words[0][0]} and "
            f"{words[0][1]}, and the others otherwise"
        )
    for pair in pairs:
        return pair
    others = ", ".join(f"{first} and {second}" for first, second in words[1:4])
    raise ValueError(
        f"{_at(title)}expected the columns {words[0][0]} and {words[0][1]}, got "
        f"{', '.join(columns)}; {others} will do, too"
    )


def _at(title: str) -> str:
    return f"{title}: " if title else ""


def _with_word(columns: Collection[str], word: str) -> list[str]:
    return [name for name in columns if word in (_end_word(name), word_of(name))]


def find_id(title: str, columns: Collection[str], kind: str = "") -> str:
    """Return the column that names the rows of a table of nodes.

    Args:
        title: Name of the table in errors; "" where they name the file.
        columns: Names of the columns.
        kind: Type of the nodes, whose name a column may have.

    Raises:
        ValueError: There is no such column, or there are several.
    """
    word = word_of(kind)
    for words in (_ID_WORDS[0], (word, word + "id") if word else (), *_ID_WORDS[1:]):
        if name := find(title, columns, words, _ID):
            return name
    raise ValueError(
        f"{_at(title)}expected the column id, got {', '.join(columns)}; call the column that names "
        "the nodes id"
    )


def find(title: str, columns: Collection[str], words: Collection[str], documented: str) -> str:
    """Return the column by the documented name, or else the only one by one of the words; or "".

    Raises:
        ValueError: There are several.
    """
    if documented in columns:
        return documented
    names = [name for name in columns if word_of(name) in words]
    if len(names) > 1:
        raise ValueError(
            f"{_at(title)}each of the columns {', '.join(map(repr, names[:_LISTED]))} may be "
            f"meant: call the right one {documented!r}, and the others otherwise"
        )
    return names[0] if names else ""


def find_label(columns: Collection[str]) -> tuple[str, str]:
    """Return the column of labels, and whether it is a "label", a "target" or "y"; or "", "".

    Raises:
        ValueError: There are several.
    """
    names = [name for name in ("label", "target") if name in columns]
    if len(names) > 1:
        raise ValueError("column 'target': expected what to regress on, and not 'label' beside it")
    # Beside a column x, y is a coordinate.
    words = {*LABELS} - ({"y"} if any(word_of(name) == "x" for name in columns) else set())
    name = names[0] if names else find("", columns, words, "label")
    return name, LABELS[word_of(name)] if name else ""


def taken_as(title: str, roles: Mapping[str, str]) -> list[str]:
    """Describe the columns that were taken for those of the documented names, if any, in a line."""
    others = [f"{name!r} for {role}" for role, name in roles.items() if name and name != role]
    return [f"{title}: took the column {', '.join(others)}"] if others else []


# --- Numbers of names -----------------------------------------------------------------------------


def as_integers(values: Column) -> Column:
    """Convert floats without fractions to integers, with None for NaN: names as pandas has them."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return values
    is_finite = np.isfinite(values)
    finite = values[is_finite]
    if (finite != np.floor(finite)).any() or (np.abs(finite) >= 2**53).any():
        return values
    # pandas writes integers as floats in a column with empty cells.
    integers = np.where(is_finite, values, 0).astype(np.int64).astype(object)
    integers[~is_finite] = None
    return integers


def encode_names(columns: Mapping[str, Column]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Number the names in some columns together, as `encode` does; they are text or integers."""
    names, codes = encode({title: as_integers(values) for title, values in columns.items()})
    types = set() if names.dtype.kind in "iu" else {*map(type, names.tolist())}
    if not types <= {str} and types != {int}:
        described = " and ".join(sorted(cls.__name__ for cls in types))
        raise TypeError(
            f"{', '.join(columns)} must be text or integers, as names are, got {described}"
        )
    return names, codes


def node_order(
    title: str, names: np.ndarray, rows: np.ndarray, place: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the names in the order of a table of nodes, and for each name its row, or -1.

    ``rows`` has for each row the number of its name among all ``names``, -1 if it is missing.
    """
    if (rows < 0).any():
        row = int(np.flatnonzero(rows < 0)[0])
        raise ValueError(f"{title} must have a name for each node, got none in {place(row)}")
    counts = np.bincount(rows, minlength=1)
    if counts.max() > 1:
        number = int(counts.argmax())
        places = " and ".join(map(place, np.flatnonzero(rows == number)[:2].tolist()))
        raise ValueError(
            f"{title} must name each node once, got {names.tolist()[number]!r} {counts.max()} "
            f"times, in {places}"
        )
    number_of = np.full(len(names) + 1, -1)  # -1 picks the last element
    number_of[rows] = np.arange(len(rows))
    return names[rows], number_of
