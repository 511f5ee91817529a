"""Neighbours by relation: the edges of one relation into a node stand side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, namespace, take_ids
from jax_gnn._core.triples import max_pairs
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import Part, RelationalGraph
from jax_gnn.sampling._random import threefry
from jax_gnn.sampling._rows import first_place, values_at

Fanout = int | tuple[int, ...]
Draw = Callable[[Array, Array, int, tuple[Any, Any]], tuple[Array, Array]]


class Relations(NamedTuple):
    """What blocks have of a relational graph beside its nodes' ends: static, and hashable."""

    num_relations: int
    names: tuple[Any, ...] | None
    node_types: tuple[str, ...] | None
    type_sizes: tuple[int, ...] | None
    self_relation: bool
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, graph: RelationalGraph) -> Relations:
        """Those of a graph."""
        parts: list[Part] = []
        if graph.pair_src is not None:
            parts.append("from_pairs")
        if graph.pair_dst is not None:
            parts.append("to_pairs")
        names = None if graph.relation_names is None else tuple(graph.relation_names)
        types = graph.node_type_names, graph.node_type_sizes
        return cls(graph.num_relations, names, *types, graph.self_relation, tuple(parts))

    @property
    def own(self) -> int | None:
        """The relation of nodes to themselves, if there is one: the last."""
        return self.num_relations - 1 if self.self_relation else None

    def block(self, graph: Graph, types: Array) -> RelationalGraph:
        """A block as a relational graph.

        Args:
            graph: the block; edges into a node ascend by relation.
            types: ``(num_edges,)``, their relations.
        """
        xp = namespace(types, graph.rows)
        found = RelationalGraph(
            graph,
            xp.where(in_range(types, self.num_relations), types, PADDING).astype(graph.rows.dtype),
            num_relations=self.num_relations,
            node_type_names=self.node_types,
            relation_names=self.names,
            self_relation=self.self_relation,
        )
        if not self.parts:
            return found
        found = found.with_parts(*self.parts)
        if xp is np:  # as many pairs as where they are not known
            sides = {"from_pairs": ("src", graph.num_src), "to_pairs": ("dst", graph.num_dst)}
            rooms = {}
            for end, size in (sides[part] for part in self.parts):
                room = max_pairs(found.num_edges, size, self.num_relations)
                rooms[f"num_{end}_pairs"] = room
            found = found.pad(**rooms)
        return found


# --- Arguments -----------------------------------------------------------------------------------


def joined_seeds(graph: HeteroGraph, seeds: Any) -> Any:
    """Seeds by type as nodes of all types, in the order in which they are given.

    Raises:
        TypeError: they are no mapping, or not of integers.
        ValueError: a type is none of the graph's, or ids are not one-dimensional.
    """
    if not isinstance(seeds, Mapping):
        raise TypeError(
            "seeds must be a mapping by node type, such as {'paper': [0, 1]}, got "
            f"{arguments.described(seeds)}"
        )
    joined = []
    for name, ids in seeds.items():
        if name not in graph.slices:
            known = ", ".join(map(repr, graph.slices))
            raise ValueError(
                f"seeds has the node type {name!r}, which is none of the graph's: {known}, got "
                f"{', '.join(map(repr, seeds))}"
            )
        rows, label = graph.slices[name], f"seeds[{name!r}]"
        ids = arguments.to_array(label, ids)
        ids = arguments.check_ids(label, ids, traced=isinstance(ids, jax.Array))
        there = (ids >= 0) & (ids < rows.stop - rows.start)
        joined.append(namespace(ids).where(there, ids + rows.start, PADDING))
    return namespace(*joined).concatenate(joined) if joined else np.zeros(0, np.int32)


def is_sequence(given: Any) -> bool:
    """Whether there is one thing for each layer, in an order."""
    return hasattr(given, "__iter__") and not isinstance(given, str | Mapping | Set)


def check_relation_fanouts(name: str, fanouts: Any, graph: RelationalGraph) -> tuple[Fanout, ...]:
    """For each layer a positive integer over all relations, or one from 0 for each of them."""
    wanted = (
        f"{name} must be a sequence with a positive integer for each layer, or a mapping by "
        "relation"
    )
    if not is_sequence(fanouts):
        raise TypeError(f"{wanted}, got {arguments.described(fanouts)}")
    checked = [_fanout(f"{name}[{i}]", fanout, graph) for i, fanout in enumerate(fanouts)]
    if not checked or any(total(fanout) < 1 for fanout in checked):
        raise ValueError(f"{wanted}, not all of them 0, got {fanouts!r}")
    return tuple(checked)


def _fanout(name: str, fanout: Any, graph: RelationalGraph) -> Fanout:
    if not isinstance(fanout, Mapping):
        return arguments.check_integer(name, fanout)
    own = [0] * graph.num_relations
    known = graph.relation_names or ()
    for relation, count in fanout.items():
        if relation in known:
            number = known.index(relation)
        elif isinstance(relation, int | np.integer) and 0 <= relation < len(own):
            number = int(relation)
        else:
            names = ", ".join(map(str, known)) or f"numbers below {len(own)}"
            raise ValueError(
                f"{name} has the relation {relation!r}, which is none of the graph's: {names}, "
                f"got {dict(fanout)!r}"
            )
        own[number] = arguments.check_integer(f"{name}[{relation!r}]", count)
        if own[number] < 0:
            raise ValueError(f"{name}[{relation!r}] must be at least 0, got {count}")
    return tuple(own)


def total(fanout: Fanout, relations: Relations | None = None) -> int:
    """How many edges are drawn into a node at most."""
    own = int(relations is not None and relations.self_relation)  # beside a number of others
    return fanout + own if isinstance(fanout, int) else sum(fanout)


# --- Draws ---------------------------------------------------------------------------------------


def by_relation(
    draw: Draw,
    types: Array,
    starts: Array,
    degrees: Array,
    fanout: Fanout,
    key: tuple[Any, Any],
    own: int | None,
) -> tuple[Array, Array]:
    """Draws of each row, by relation or of all, in any order.

    Args:
        draw: of starts and degrees of rows, a fanout and a key gives places in these rows, and how
            many count.
        types: ``(num_whole,)``, the relation of each edge; they ascend in each row.
        starts: ``(rows,)``, where rows start.
        degrees: ``(rows,)``, how many edges they have.
        fanout: how many are wanted, of each relation, or of all.
        key: two words.
        own: the last relation, if it is that of nodes to themselves, whose edge is the row's last
            one: there beside a number of others.

    Returns:
        ``(rows, total)`` places in the row, and how many of them count.
    """
    xp = namespace(types, starts)
    if isinstance(fanout, int) and own is None:
        return draw(starts, degrees, fanout, key)
    if isinstance(fanout, int):
        last = xp.where(degrees > 0, starts + degrees - 1, PADDING)
        there = (take_ids(types, last) == own).astype(degrees.dtype)
        places, found = draw(starts, degrees - there, fanout, key)
        # Behind those that count, which may be all.
        steps = xp.arange(fanout + 1, dtype=degrees.dtype)[None]
        places = xp.concatenate([places, places[:, -1:]], axis=1)
        return xp.where(steps == found[:, None], degrees[:, None] - 1, places), found + there
    offsets: list[Array] = []
    counts: list[Array] = []
    for size in sorted({*fanout} - {0}):
        relations = xp.asarray([r for r, f in enumerate(fanout) if f == size], types.dtype)
        shape = starts.shape[0], relations.shape[0]
        first, last = (xp.broadcast_to(x[:, None], shape).ravel() for x in (starts, degrees))
        last = first + last
        wanted = xp.broadcast_to(relations, shape).ravel()
        begin = first_of(types, first, last, wanted)
        end = first_of(types, begin, last, wanted + 1)
        # Other numbers for each: no draw of a layer has a counter whose second word is all ones.
        with np.errstate(over="ignore"):  # numpy would warn of sums of scalars modulo 2³²
            words = threefry(key, np.uint32(size), np.uint32(2**32 - 1))
        places, found = draw(begin, end - begin, size, words)
        offsets.append((places + (begin - first)[:, None]).reshape(*shape, size))
        counts.append(found.reshape(shape))
    return _counted_first(offsets, counts, degrees)


def first_of(types: Array, starts: Array, ends: Array, relations: Array) -> Array:
    """Where edges of a relation, or of larger ones, start in each row."""
    return first_place(starts, ends, lambda place: values_at(types, place) >= relations)


def _counted_first(
    offsets: list[Array], counts: list[Array], degrees: Array
) -> tuple[Array, Array]:
    """What counts comes first in each row, ascending.

    Args:
        offsets: ``(rows, *parts, fanout)``, of which in each part the first ones count.
        counts: ``(rows, *parts)``, how many.
        degrees: ``(rows,)``, places are below.
    """
    rows, most = degrees.shape[0], np.iinfo(degrees.dtype).max
    xp = namespace(degrees)
    columns = []
    for places, count in zip(offsets, counts, strict=True):
        steps, width = xp.arange(places.shape[-1], dtype=count.dtype), math.prod(places.shape[1:])
        steps = xp.broadcast_to(steps, places.shape)
        columns.append(xp.where(steps < count[..., None], places, most).reshape(rows, width))
    found = xp.sort(xp.concatenate(columns, axis=1), axis=1)
    total = sum(count.sum(axis=tuple(range(1, count.ndim)), dtype=count.dtype) for count in counts)
    return xp.where(found == most, 0, found), xp.asarray(total, degrees.dtype)
