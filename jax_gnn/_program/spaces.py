"""Where rows live, and which rows a row can read.

A program has arrays of rows: one for each edge, node, relation or type of nodes, or one that all
share. Each edge has a source, a destination and perhaps a relation; each node may have a type. Such
a map is called a *way* here: a row of edges that reads a row of nodes by the way ``"src"`` has, at
each edge, what its source has.

Whatever an edge computes of its source and its relation alone is the same for all edges of that
(source, relation) pair: pairs are spaces, too, which a program does not name. `HOMES` says which
space suffices for what is read by given ways.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from jax_gnn._core.schedule import concrete_size


class Space(enum.Enum):
    """What an array has a row for."""

    SHARED = "shared"
    TYPE = "node type"
    RELATION = "relation"
    NODE = "node"
    SOURCE_PAIR = "(source, relation) pair"
    DESTINATION_PAIR = "(destination, relation) pair"
    EDGE = "edge"


_ENDS = {"src_type": Space.TYPE, "dst_type": Space.TYPE}
_OF_EDGES = {"src": Space.NODE, "dst": Space.NODE, "relation": Space.RELATION, **_ENDS}

READS: dict[Space, dict[str, Space]] = {
    Space.SHARED: {},
    Space.TYPE: {},
    Space.RELATION: _ENDS,
    Space.NODE: {"type": Space.TYPE},
    Space.SOURCE_PAIR: {"src": Space.NODE, "relation": Space.RELATION, **_ENDS},
    Space.DESTINATION_PAIR: {"dst": Space.NODE, "relation": Space.RELATION, **_ENDS},
    Space.EDGE: {
        **_OF_EDGES,
        "src_pair": Space.SOURCE_PAIR,
        "dst_pair": Space.DESTINATION_PAIR,
    },
}
"""For each space the ways of its rows, and what they lead to."""


class Home(NamedTuple):
    """A space that suffices for some ways of another one.

    Attributes:
        space: Which.
        way: How the other one's rows read its rows.
        ways: Of ways of the other space what they are called here; "" is `way` itself.
    """

    space: Space
    way: str
    ways: dict[str, str]


_AT_ENDS = {way: way for way in _ENDS}

HOMES: dict[Space, tuple[Home, ...]] = {
    Space.SHARED: (),
    Space.TYPE: (),
    Space.NODE: (Home(Space.TYPE, "type", {"type": ""}),),
    Space.RELATION: tuple(Home(Space.TYPE, way, {way: ""}) for way in _ENDS),
    Space.SOURCE_PAIR: (
        *(Home(Space.TYPE, way, {way: ""}) for way in _ENDS),
        Home(Space.RELATION, "relation", {"relation": "", **_AT_ENDS}),
        Home(Space.NODE, "src", {"src": "", "src_type": "type"}),
    ),
    Space.DESTINATION_PAIR: (
        *(Home(Space.TYPE, way, {way: ""}) for way in _ENDS),
        Home(Space.RELATION, "relation", {"relation": "", **_AT_ENDS}),
        Home(Space.NODE, "dst", {"dst": "", "dst_type": "type"}),
    ),
    Space.EDGE: (
        *(Home(Space.TYPE, way, {way: ""}) for way in _ENDS),
        Home(Space.RELATION, "relation", {"relation": "", **_AT_ENDS}),
        Home(Space.NODE, "src", {"src": "", "src_type": "type"}),
        Home(Space.NODE, "dst", {"dst": "", "dst_type": "type"}),
        Home(
            Space.SOURCE_PAIR,
            "src_pair",
            {"src_pair": "", "src": "src", "relation": "relation", **_AT_ENDS},
        ),
        Home(
            Space.DESTINATION_PAIR,
            "dst_pair",
            {"dst_pair": "", "dst": "dst", "relation": "relation", **_AT_ENDS},
        ),
    ),
}
"""For each space those that suffice for some of its ways, smaller ones first."""


class Parts(NamedTuple):
    """What a graph has, of what spaces need.

    Attributes:
        rows: How many rows each space has; those that it lacks are not there.
        num_src: Number of sources.
        num_dst: Number of destinations.
        ends_known: Whether each relation has one type at either end.
    """

    rows: dict[Space, int]
    num_src: int
    num_dst: int
    ends_known: bool

    def home(self, space: Space, ways: Iterable[str]) -> Home | None:
        """The smallest space that suffices for these ways of a space, or None: it itself."""
        needed = set(ways)
        for home in HOMES[space]:
            fits = needed <= home.ways.keys() and home.space in self.rows
            if fits and self._known(home, needed) and self._fewer(home.space, space):
                return home
        return None

    def _fewer(self, space: Space, than: Space) -> bool:
        """Whether a space has no more rows than another one."""
        return concrete_size(self.rows[space]) <= concrete_size(self.rows[than])

    def _known(self, home: Home, needed: set[str]) -> bool:
        """Whether the types at ends, if needed, can be seen from there."""
        kept = {way for way in needed if home.ways[way] in _ENDS}
        own = {Space.SOURCE_PAIR: {"src_type"}, Space.DESTINATION_PAIR: {"dst_type"}}
        return self.ends_known or kept <= own.get(home.space, set())
