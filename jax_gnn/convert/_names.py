"""Columns that name nodes, edges, labels and parts: which they are, and the numbers of names.

The *word* of a column is its name in lower case without blanks, ``_`` and other signs. A column
whose name is the documented one is always taken; else one by a known word, if there is exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from jax_gnn.convert._columns import Column, encode

_SOURCES = "src source from head source source sender senders follower citing subject"
_DESTINATIONS = "dst target to tail destination dest receiver receivers followee cited object"
ENDS = (*zip(_SOURCES.split(), _DESTINATIONS.split(), strict=True),)
"""Words of the source and the destination of an edge; the first pair is the documented one."""
_LESS_CLEAR = (*zip("uia1", "vjb2", strict=True), ("start", "end"), ("origin", "destination"))
HYPEREDGES = "hyperedges"
"""Type of the second ends of incidences."""
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


def end_words(src: str, dst: str) -> tuple[tuple[str, str], ...]:
    """Return the words of the ends of edges between two types, whose names will do."""
    return MEMBERS if dst == HYPEREDGES else (*ENDS, *[(word_of(src), word_of(dst))] * (src != dst))


def find_ends(
    columns: Collection[str],
    words: Sequence[tuple[str, str]] = ENDS,
    src: str | None = None,
    dst: str | None = None,
) -> tuple[str, str]:
    """Return the columns of the two ends of edges by their words, the documented ones first.

    `src` and `dst` are the columns that are known.

    Raises:
        ValueError: No pair of columns may be meant, or several.
    """
    if src is not None and dst is not None:
        return src, dst
    for documented in (words[0], ENDS[0]):
        if src is None and dst is None and {*documented} <= {*columns}:
            return documented

    def pairs_of(words: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        pairs = (
            (first, second)
            for pair in words
            for first in ([src] if src is not None else _with_word(columns, pair[0]))
            for second in ([dst] if dst is not None else _with_word(columns, pair[1]))
            if first != second
        )
        return [*dict.fromkeys(pairs)]

    pairs = pairs_of(words) or pairs_of(_LESS_CLEAR)
    if len(pairs) == 1:
        return pairs[0]
    if pairs:
        listed = " or ".join(f"{first!r}, {second!r}" for first, second in pairs)
        raise ValueError(
            f"the columns {listed} may be meant: call the right ones {words[0][0]} and "
            f"{words[0][1]}, and the others otherwise"
        )
    others = ", ".join(f"{first} and {second}" for first, second in words[1:4])
    raise ValueError(
        f"expected the columns {words[0][0]} and {words[0][1]}, got {', '.join(columns)}; {others} "
        "will do, too, or name yours by src and dst (--src, --dst)"
    )


def _with_word(columns: Collection[str], word: str) -> list[str]:
    return [name for name in columns if word in (_end_word(name), word_of(name))]


def find_id(columns: Collection[str], kind: str = "") -> str:
    """Return the column that names the rows of a table of nodes of a type, which may be its name.

    Raises:
        ValueError: There is no such column, or there are several.
    """
    word = word_of(kind)
    for words in (_ID_WORDS[0], (word, word + "id") if word else (), *_ID_WORDS[1:]):
        if name := find(columns, words, _ID):
            return name
    raise ValueError(
        f"expected the column id, got {', '.join(columns)}; call the column that names the nodes "
        "so, or name it by node (--node)"
    )


def find(columns: Collection[str], words: Collection[str], documented: str) -> str:
    """Return the column by the documented name, or else the only one by one of the words; or "".

    Raises:
        ValueError: There are several.
    """
    if documented in columns:
        return documented
    names = [name for name in columns if word_of(name) in words]
    if len(names) > 1:
        raise ValueError(
            f"each of the columns {', '.join(map(repr, names[:_LISTED]))} may be meant: call the "
            f"right one {documented!r}, and the others otherwise"
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
    name = names[0] if names else find(columns, words, "label")
    return name, LABELS[word_of(name)] if name else ""


def taken_as(title: str, roles: Mapping[str, str]) -> list[str]:
    """Describe the columns that were taken for those of the documented names, if any, in a line."""
    others = [f"{name!r} for {role}" for role, name in roles.items() if name and name != role]
    return [f"{title}: took the column {', '.join(others)}"] if others else []


def shared_names(ends: Sequence[str], ids: Sequence[np.ndarray]) -> list[str]:
    """Describe names in columns such as "user_id" and "movie_id", if any are in both, in a line."""
    is_known = (*map(_end_word, ends),) in (*ENDS, *_LESS_CLEAR)
    if is_known or not all(_SUFFIX.search(word_of(name)) for name in ends):
        return []
    count, listed = np.intersect1d(ids[0], ids[1]).size, " and of ".join(map(repr, ends))
    return [f"{count:,} names are of {listed}, one node each; tables by type part them"][:count]


# --- Numbers of names -----------------------------------------------------------------------------


def encode_names(columns: Mapping[str, Column]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Number the names in some columns together, as `encode` does; they are text or integers."""
    names, codes = encode(columns)
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
        raise ValueError(f"{title} must have a name in each row, got none in {place(row)}")
    counts = np.bincount(rows, minlength=1)
    if counts.max() > 1:
        number = int(counts.argmax())
        places = " and ".join(map(place, np.flatnonzero(rows == number)[:2].tolist()))
        raise ValueError(
            f"{title} must have each name once, got {names.tolist()[number]!r} {counts.max()} "
            f"times, in {places}"
        )
    number_of = np.full(len(names) + 1, -1)  # -1 picks the last element
    number_of[rows] = np.arange(len(rows))
    return names[rows], number_of
