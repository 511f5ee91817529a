"""Sampling by relation: the edges of one relation into a node are adjacent in its row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from jax_gnn._core import arguments
from jax_gnn._core.ids import PADDING, in_range, namespace, search_rows, take_ids
from jax_gnn._core.random_bits import KeyWords, threefry
from jax_gnn._ops.relation_pairs.triples import max_pairs
from jax_gnn.graph import Graph
from jax_gnn.hetero import HeteroGraph
from jax_gnn.relational import Part, RelationalGraph
from jax_gnn.sampling._rows import values_at

Fanout = int | tuple[int, ...]
"""Edges to draw into a node: over all relations, or for each relation."""

Draw = Callable[[Array, Array, int, KeyWords], tuple[Array, Array]]
"""Maps starts and degrees of rows, a fanout and a key to offsets and the number of valid ones."""


class Relations(NamedTuple):
    """Static, hashable description of a relational graph, which its blocks share."""

    num_relations: int
    names: tuple[Any, ...] | None
    node_types: tuple[str, ...] | None
    type_sizes: tuple[int, ...] | None
    self_relation: bool
    parts: tuple[Part, ...]

    @classmethod
    def from_graph(cls, graph: RelationalGraph) -> Relations:
        """Return the description of a graph."""
        return cls(
            graph.num_relations,
            None if graph.relation_names is None else tuple(graph.relation_names),
            graph.node_type_names,
            graph.node_type_sizes,
            graph.self_relation,
            graph._parts,
        )

    @property
    def self_relation_id(self) -> int | None:
        """Number of the relation of nodes to themselves, the final one, if there is one."""
        return self.num_relations - 1 if self.self_relation else None

    def block(self, graph: Graph, types: Array) -> RelationalGraph:
        """Return a block, whose edges into a node ascend by relation, as a relational graph."""
        xp = namespace(types, graph.rows)
        result = RelationalGraph(
            graph,
            xp.where(in_range(types, self.num_relations), types, PADDING).astype(graph.rows.dtype),
            num_relations=self.num_relations,
            node_type_names=self.node_types,
            relation_names=self.names,
            self_relation=self.self_relation,
        )
        if not self.parts:
            return result
        result = result.with_parts(*self.parts)
        if xp is np:  # padded to the number of pairs that traced blocks have
            sides = {"from_pairs": ("src", graph.num_src), "to_pairs": ("dst", graph.num_dst)}
            sizes = {
                f"num_{end}_pairs": max_pairs(result.num_edges, size, self.num_relations)
                for end, size in (sides[part] for part in self.parts)
            }
            result = result.pad(**sizes)
        return result


# --- Arguments -----------------------------------------------------------------------------------


def join_seeds(graph: HeteroGraph, seeds: object) -> Any:
    """Return seeds by type as ids of nodes of all types, in the order of the graph's types.

    The order of the mapping does not count: ``jax.jit`` sorts the keys of dicts.
    """
    if not isinstance(seeds, Mapping):
        raise TypeError(
            "seeds must be a mapping by node type, such as {'paper': [0, 1]}, got "
            f"{arguments.described(seeds)}"
        )
    for name in seeds:
        if name not in graph.slices:
            names = ", ".join(map(repr, graph.slices))
            raise ValueError(
                f"seeds has the node type {name!r}, which is none of the graph's: {names}, got "
                f"{', '.join(map(repr, seeds))}"
            )
    joined = []
    for name, rows in graph.slices.items():
        if name not in seeds:
            continue
        label = f"seeds[{name!r}]"
        ids = arguments.to_array(label, seeds[name])
        ids = arguments.check_ids(label, ids, traced=isinstance(ids, jax.Array))
        valid = in_range(ids, rows.stop - rows.start)
        joined.append(namespace(ids).where(valid, ids + rows.start, PADDING))
    return namespace(*joined).concatenate(joined) if joined else np.zeros(0, np.int32)


def is_sequence(value: object) -> bool:
    """Return whether a value may have one element for each layer, in an order."""
    return hasattr(value, "__iter__") and not isinstance(value, str | Mapping | Set)


def check_relation_fanouts(name: str, fanouts: Any, graph: RelationalGraph) -> tuple[Fanout, ...]:
    """Return for each layer a positive fanout over all relations, or one from 0 for each."""
    expected = (
        f"{name} must be a sequence with a positive integer for each layer, or a mapping by "
        "relation"
    )
    if not is_sequence(fanouts):
        raise TypeError(f"{expected}, got {arguments.described(fanouts)}")
    checked = [_check_fanout(f"{name}[{i}]", fanout, graph) for i, fanout in enumerate(fanouts)]
    if not checked or any(total(fanout) < 1 for fanout in checked):
        raise ValueError(f"{expected}, not all of them 0, got {fanouts!r}")
    return tuple(checked)


def _check_fanout(name: str, fanout: object, graph: RelationalGraph) -> Fanout:
    if not isinstance(fanout, Mapping):
        return arguments.check_integer(name, fanout)
    by_relation = [0] * graph.num_relations
    names = graph.relation_names or ()
    for relation, count in fanout.items():
        if relation in names:
            number = names.index(relation)
        elif isinstance(relation, int | np.integer) and 0 <= relation < len(by_relation):
            number = int(relation)
        else:
            choices = ", ".join(map(str, names)) or f"numbers below {len(by_relation)}"
            raise ValueError(
                f"{name} has the relation {relation!r}, which is none of the graph's: {choices}, "
                f"got {dict(fanout)!r}"
            )
        by_relation[number] = arguments.check_integer(f"{name}[{relation!r}]", count)
        if by_relation[number] < 0:
            raise ValueError(f"{name}[{relation!r}] must be at least 0, got {count}")
    return tuple(by_relation)


def total(fanout: Fanout, relations: Relations | None = None) -> int:
    """Return the largest number of edges that are drawn into a node."""
    if isinstance(fanout, tuple):
        return sum(fanout)
    return fanout + int(relations is not None and relations.self_relation)


# --- Draws ---------------------------------------------------------------------------------------


def draw_by_relation(
    draw: Draw,  # draws edges of rows
    types: Array,  # (num_whole,), the relation of each edge, ascending in each row
    starts: Array,  # (rows,), first edge of each row
    degrees: Array,  # (rows,), number of edges of each row
    fanout: Fanout,  # number of edges to draw, for each relation or over all
    key: KeyWords,  # two words
    # The final relation, if it is that of nodes to themselves: its edge is the row's last one, and
    # is taken in addition to a fanout over all relations.
    self_relation_id: int | None,
) -> tuple[Array, Array]:
    """Draw edges of each row, by relation or over all: offsets, and how many are valid."""
    xp = namespace(types, starts)
    if isinstance(fanout, int) and self_relation_id is None:
        return draw(starts, degrees, fanout, key)
    if isinstance(fanout, int):
        final = xp.where(degrees > 0, starts + degrees - 1, PADDING)
        has_self_edge = (take_ids(types, final) == self_relation_id).astype(degrees.dtype)
        offsets, counts = draw(starts, degrees - has_self_edge, fanout, key)
        # The row's last edge goes to the first column after the valid draws.
        columns = xp.arange(fanout + 1, dtype=degrees.dtype)[None]
        offsets = xp.concatenate([offsets, offsets[:, -1:]], axis=1)
        offsets = xp.where(columns == counts[:, None], degrees[:, None] - 1, offsets)
        return offsets, counts + has_self_edge
    # Relations of one fanout are drawn together: a row for each node and relation.
    by_size, num_valid = [], []
    for size in sorted({*fanout} - {0}):
        relations = xp.asarray([r for r, f in enumerate(fanout) if f == size], types.dtype)
        shape = starts.shape[0], relations.shape[0]
        first, degree = (xp.broadcast_to(x[:, None], shape).ravel() for x in (starts, degrees))
        relation = xp.broadcast_to(relations, shape).ravel()
        begin = relation_start(types, first, first + degree, relation)
        stop = relation_start(types, begin, first + degree, relation + 1)
        # A key for each size: no draw of a layer has a counter whose second word is all ones.
        with np.errstate(over="ignore"):  # numpy would warn of scalar sums modulo 2³²
            words = threefry(key, np.uint32(size), np.uint32(2**32 - 1))  # type: ignore[arg-type]
        offsets, counts = draw(begin, stop - begin, size, words)
        by_size.append((offsets + (begin - first)[:, None]).reshape(*shape, size))
        num_valid.append(counts.reshape(shape))
    return _valid_first(by_size, num_valid, degrees)


def relation_start(types: Array, starts: Array, stops: Array, relations: Array) -> Array:
    """Return the first place in each row whose relation is at least a given one."""
    return search_rows(starts, stops, lambda place: values_at(types, place) >= relations)


def _valid_first(offsets: list[Array], counts: list[Array], degrees: Array) -> tuple[Array, Array]:
    """Return the valid offsets of each row first, ascending, and their number.

    Offsets are ``(rows, relations, fanout)`` arrays, of which the first `counts` are valid.
    """
    num_rows, largest = degrees.shape[0], np.iinfo(np.dtype(degrees.dtype)).max
    xp = namespace(degrees)
    columns = []
    for values, count in zip(offsets, counts, strict=True):
        steps = xp.broadcast_to(xp.arange(values.shape[-1], dtype=count.dtype), values.shape)
        masked = xp.where(steps < count[..., None], values, largest)
        columns.append(masked.reshape(num_rows, math.prod(values.shape[1:])))
    result = xp.sort(xp.concatenate(columns, axis=1), axis=1)
    num_valid = sum(count.sum(axis=1, dtype=count.dtype) for count in counts)
    return xp.where(result == largest, 0, result), xp.asarray(num_valid, degrees.dtype)
