"""Spaces: the sets that arrays have rows for, and the ways by which their rows read others.

The rows of a *space* are edges, nodes, relations or types of nodes, or the one row that all share.
Each edge has a source, a destination and perhaps a relation; each node may have a type. Such a map
is a *way*: a row of edges that reads a row of nodes by the way ``"src"`` holds, at each edge, what
its source holds.

A function of the source and the relation alone is the same for all edges of that (source, relation)
pair. Pairs are therefore spaces, too, which programs do not name. `HOMES` lists the smaller spaces
that suffice for functions of some ways.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from jax_gnn._core.schedule import concrete_size


class Space(enum.Enum):
    """The set that an array has a row for."""

    SHARED = "shared"
    GRAPH = "graph"
    TYPE = "node type"
    RELATION = "relation"
    NODE = "node"
    SOURCE_PAIR = "(source, relation) pair"
    DESTINATION_PAIR = "(destination, relation) pair"
    EDGE = "edge"


_TYPES = {"src_type": Space.TYPE, "dst_type": Space.TYPE}
_RELATION_OF_PAIR = {"relation": Space.RELATION, **_TYPES}

READS: dict[Space, dict[str, Space]] = {
    Space.SHARED: {},
    Space.GRAPH: {},
    Space.TYPE: {},
    Space.RELATION: _TYPES,
    Space.NODE: {"type": Space.TYPE, "graph": Space.GRAPH},
    Space.SOURCE_PAIR: {"src": Space.NODE, **_RELATION_OF_PAIR},
    Space.DESTINATION_PAIR: {"dst": Space.NODE, **_RELATION_OF_PAIR},
    Space.EDGE: {
        "src": Space.NODE,
        "dst": Space.NODE,
        **_RELATION_OF_PAIR,
        "src_pair": Space.SOURCE_PAIR,
        "dst_pair": Space.DESTINATION_PAIR,
    },
}
"""For each space, its ways and the spaces that they read."""


class Home(NamedTuple):
    """A smaller space that suffices for functions of some ways of another space.

    Attributes:
        space: The smaller space.
        way: The way by which rows of the other space read it.
        ways: For each sufficient way of the other space, the way of this one; "" is `way` itself.
    """

    space: Space
    way: str
    ways: dict[str, str]


_SAME_TYPES = {way: way for way in _TYPES}
_TYPE_HOMES = tuple(Home(Space.TYPE, way, {way: ""}) for way in _TYPES)
_RELATION_HOME = Home(Space.RELATION, "relation", {"relation": "", **_SAME_TYPES})
_SOURCE_HOME = Home(Space.NODE, "src", {"src": "", "src_type": "type"})
_DESTINATION_HOME = Home(Space.NODE, "dst", {"dst": "", "dst_type": "type"})
_SAME_IN_PAIR = {"relation": "relation", **_SAME_TYPES}

HOMES: dict[Space, tuple[Home, ...]] = {
    Space.SHARED: (),
    Space.GRAPH: (),
    Space.TYPE: (),
    Space.NODE: tuple(Home(READS[Space.NODE][way], way, {way: ""}) for way in READS[Space.NODE]),
    Space.RELATION: _TYPE_HOMES,
    Space.SOURCE_PAIR: (*_TYPE_HOMES, _RELATION_HOME, _SOURCE_HOME),
    Space.DESTINATION_PAIR: (*_TYPE_HOMES, _RELATION_HOME, _DESTINATION_HOME),
    Space.EDGE: (
        *_TYPE_HOMES,
        _RELATION_HOME,
        _SOURCE_HOME,
        _DESTINATION_HOME,
        Home(Space.SOURCE_PAIR, "src_pair", {"src_pair": "", "src": "src", **_SAME_IN_PAIR}),
        Home(Space.DESTINATION_PAIR, "dst_pair", {"dst_pair": "", "dst": "dst", **_SAME_IN_PAIR}),
    ),
}
"""For each space, the homes of its functions, smaller spaces first."""


class Parts(NamedTuple):
    """The spaces of a graph.

    Attributes:
        rows: Number of rows of each space that the graph has.
        num_src: Number of sources.
        num_dst: Number of destinations.
        ends_known: Whether each relation has one node type at either end.
    """

    rows: dict[Space, int]
    num_src: int
    num_dst: int
    ends_known: bool

    def home(self, space: Space, ways: Iterable[str]) -> Home | None:
        """Return the smallest space that suffices for ways of a space; None if it is the space."""
        needed = set(ways)
        for home in HOMES[space]:
            if (
                needed <= home.ways.keys()
                and home.space in self.rows
                and self._knows_types(home, needed)
                and concrete_size(self.rows[home.space]) <= concrete_size(self.rows[space])
            ):
                return home
        return None

    def _knows_types(self, home: Home, ways: set[str]) -> bool:
        """Whether a home can read the types at the ends that it needs."""
        types = {way for way in ways if home.ways[way] in _TYPES}
        readable = {Space.SOURCE_PAIR: {"src_type"}, Space.DESTINATION_PAIR: {"dst_type"}}
        return self.ends_known or types <= readable.get(home.space, set())
