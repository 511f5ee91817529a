"""How kernels deal out their work: chosen when a computation is compiled, from shapes alone.

A schedule that is forced goes first, then what ``jax-gnn tune`` found for this device and shape,
here or before it was shipped, then the rule fitted to measurements on an H200. Which one it is
changes the order of additions, not what is computed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

import jax
import jax.export

from jax_gnn import _hypergraph_rules, _schedule_cache, _schedule_rules
from jax_gnn._index import SLOT_SIZE


class Schedule(NamedTuple):
    """How a kernel deals out entries and features to its threads (GeoT, table I).

    Attributes:
        parallel: Whether the entries of a warp's step lie side by side in its teams, rather than
            one behind another.
        lanes: Threads of a team, which holds a tile of the features; a power of two up to 32.
        threads: Threads of a block.
        blocks: Largest number of blocks that share the entries.
    """

    parallel: bool
    lanes: int
    threads: int
    blocks: int


class MatmulSchedule(NamedTuple):
    """How the kernels of segmented matrix products deal out rows.

    Attributes:
        tile: Largest number of rows of a tile, 64 or 128.
        chunk: How many neighbouring tiles a block takes of every ``chunk * blocks``, so that all
            blocks work in the same part of memory; 0: one contiguous range for each. For
            ``"segment_outer"``: 0, or 1 where no two blocks may share a group.
        blocks: Number of blocks that share the rows, for ``"segment_matmul"`` at most.
    """

    tile: int
    chunk: int
    blocks: int


class HypergraphSchedule(NamedTuple):
    """How the two sums of a hypergraph aggregation deal out slots of eight incidences.

    Attributes:
        threads: Threads of a block, which add up among them what they share of a row.
        rounds: Slots of a team, one behind another: in which sums nodes over hyperedges.
        next_rounds: The same where hyperedges are summed over nodes.
    """

    threads: int
    rounds: int
    next_rounds: int


# What a symbolic dimension of `jax.export` counts as: a schedule fits one size, and serves all.
_SYMBOLIC_SIZE = 2**16
_SYMBOLIC_WIDTH = 64

_MULTIPROCESSORS = 132
_RESIDENT_THREADS = 768

AnySchedule = Schedule | MatmulSchedule | HypergraphSchedule

# A user context is part of the keys of JAX's caches: a change compiles anew.
_forced = jax.make_user_context(default_value=None)


def use(schedule: AnySchedule | None) -> AbstractContextManager[None]:
    """Makes all that is compiled inside a ``with`` block use one schedule; None chooses again.

    A schedule is one of segments, of products or of hypergraph aggregations, and leaves kernels of
    the other kinds alone.
    """
    return _forced(schedule)


def choose(
    op: str,
    *,
    count: int,
    num_rows: int,
    width: int,
    itemsize: int,
    gather: bool,
    average_degree: float | None = None,
    max_degree: int | None = None,
) -> Schedule:
    """The schedule for a call of a kernel, a pure function of shapes and static hints.

    Args:
        op: ``"segment_reduce"``, ``"segment_select"`` or ``"softmax"``.
        count: Number of entries.
        num_rows: Number of rows that entries are reduced into.
        width: Number of features.
        itemsize: Bytes of a feature.
        gather: Whether entries name the row that they read.
        average_degree: Entries of a row on average; by default ``count / num_rows``.
        max_degree: Entries of the longest row, where known.
    """
    if isinstance(_forced.value, Schedule):
        return _forced.value
    (count, num_rows), (width,) = _known(count, num_rows), _known(width, of=_SYMBOLIC_WIDTH)
    key = _schedule_cache.key(op, count, num_rows, width, itemsize, gather)
    if tuned := _schedule_cache.lookup(key):
        return Schedule(*tuned)
    if average_degree is None:
        average_degree = count / max(num_rows, 1)
    return from_rule(op, count, num_rows, width, itemsize, gather, average_degree, max_degree)


def _known(*sizes: int, of: int = _SYMBOLIC_SIZE) -> list[int]:
    return [of if jax.export.is_symbolic_dim(size) else size for size in sizes]


def from_rule(
    op: str,
    count: int,
    num_rows: int,
    width: int,
    itemsize: int,
    gather: bool,
    average_degree: float,
    max_degree: int | None,
) -> Schedule:
    """The fitted rule, whatever is forced or tuned; arguments as of `choose`."""
    parallel, narrowing, threads, blocks = _schedule_rules.choose(
        softmax=op == "softmax",
        gather=gather,
        count=count,
        num_rows=num_rows,
        width=width,
        itemsize=itemsize,
        average_degree=average_degree,
        max_degree=max_degree,
    )
    return Schedule(parallel, max(covering_lanes(width, itemsize) >> narrowing, 1), threads, blocks)


def covering_lanes(width: int, itemsize: int) -> int:
    """Lanes of a team that holds all features of a row, as far as a warp goes.

    A lane reads 16 bytes where rows are aligned to that, else one feature.
    """
    (width,) = _known(width, of=_SYMBOLIC_WIDTH)
    features = _word_features(width, itemsize)
    lanes = 1
    while lanes < 32 and lanes * features < width:
        lanes *= 2
    return lanes


def _word_features(width: int, itemsize: int) -> int:
    """Features that a lane reads at once."""
    return 16 // itemsize if width * itemsize % 16 == 0 else 1


def choose_matmul(
    op: str, *, rows: int, groups: int, k: int, n: int, itemsize: int
) -> MatmulSchedule:
    """The schedule for a segmented matrix product, a pure function of shapes.

    Args:
        op: ``"segment_matmul"`` or ``"segment_outer"``.
        rows: Number of rows.
        groups: Number of weights.
        k: Features of the left factor.
        n: Features of the right factor.
        itemsize: Bytes of a feature.
    """
    if isinstance(_forced.value, MatmulSchedule):
        return _forced.value
    (rows, groups), (k, n) = _known(rows, groups), _known(k, n, of=_SYMBOLIC_WIDTH)
    key = _schedule_cache.matmul_key(op, rows, groups, k, n, itemsize)
    if tuned := _schedule_cache.lookup(key):
        return MatmulSchedule(*tuned)
    return matmul_from_rule(op, rows, groups, k, n, itemsize)


def matmul_from_rule(
    op: str, rows: int, groups: int, k: int, n: int, itemsize: int
) -> MatmulSchedule:
    """The rule, fitted by hand to an H200, whatever is forced or tuned; see `choose_matmul`."""
    larger = max(k, n)
    if op == "segment_outer":
        blocks = 264 if rows >= 200_000 else 132
        if larger > 64:  # tiles of 128 by 128 of a weight have blocks of their own
            blocks = -(-132 // max(1, -(-k // 128) * -(-n // 128)))
        return MatmulSchedule(64, 0, max(1, min(blocks, rows // 128)))
    scattered = rows * (k + n) * itemsize > 1.2e9 and rows > 4096 * groups
    return MatmulSchedule(128 if rows > 100_000 else 64, 16 if scattered else 0, 4096)


def choose_hypergraph(
    *, incidences: int, nodes: int, hyperedges: int, width: int, itemsize: int
) -> HypergraphSchedule:
    """The schedule for a hypergraph aggregation, a pure function of shapes.

    Args:
        incidences: Number of (node, hyperedge) pairs, of either stage at most.
        nodes: Number of nodes.
        hyperedges: Number of hyperedges.
        width: Number of features.
        itemsize: Bytes of a feature.
    """
    if isinstance(_forced.value, HypergraphSchedule):
        return _forced.value
    incidences, nodes, hyperedges = _known(incidences, nodes, hyperedges)
    (width,) = _known(width, of=_SYMBOLIC_WIDTH)
    key = _schedule_cache.hypergraph_key(incidences, nodes, hyperedges, width, itemsize)
    if tuned := _schedule_cache.lookup(key):
        return HypergraphSchedule(*tuned)
    return hypergraph_from_rule(incidences, nodes, hyperedges, width, itemsize)


def hypergraph_from_rule(
    incidences: int, nodes: int, hyperedges: int, width: int, itemsize: int
) -> HypergraphSchedule:
    """The fitted rule, whatever is forced or tuned; see `choose_hypergraph`."""
    into = stage_features(incidences, hyperedges, width, itemsize)
    back = stage_features(incidences, nodes, width, max(itemsize, 4))  # of the accumulator type
    threads, rounds = _hypergraph_rules.choose(to_nodes=False, **into)
    _, next_rounds = _hypergraph_rules.choose(to_nodes=True, **back)
    return HypergraphSchedule(threads, rounds, next_rounds)


def stage_features(incidences: int, rows: int, width: int, itemsize: int) -> dict[str, float]:
    """What a rule may look at of one of the two sums of a hypergraph aggregation.

    Args:
        incidences: That are summed up.
        rows: Into so many.
        width: Number of features.
        itemsize: Bytes of a feature that is read.

    Returns:
        ``waves``, how often all slots, one a team, fill the multiprocessors of an H200;
        ``average_degree`` of the rows; and ``row_bytes``, of a row that is read.
    """
    lanes = team_lanes(width, itemsize)
    tiles = max(-(-width // (lanes * _word_features(width, itemsize))), 1)
    at_once = max(_MULTIPROCESSORS * _RESIDENT_THREADS // (lanes * tiles), 1)
    slots = max(rows, incidences // SLOT_SIZE + rows // 2)  # of a row's last one half is empty
    return {
        "waves": slots / at_once,
        "average_degree": incidences / max(rows, 1),
        "row_bytes": width * itemsize,
    }


def team_lanes(width: int, itemsize: int) -> int:
    """Lanes of a team that takes slots: at least one for each incidence."""
    return max(covering_lanes(width, itemsize), SLOT_SIZE)
