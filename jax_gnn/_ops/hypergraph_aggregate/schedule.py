"""Schedules of the kernels of the hypergraph aggregation."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

from jax_gnn._core.csr import SLOT_SIZE
from jax_gnn._core.schedule import MANY, THREADS, Family, Tree, leaf
from jax_gnn._ops.segment_reduce.schedule import covering_lanes, word_features

# Multiprocessors of an H200, and the threads of this kernel that one of them holds.
_MULTIPROCESSORS = 132
_RESIDENT_THREADS = 768


RULE = Path(__file__).with_name("rule.json")
"""Decision tree fitted to measurements: threads of a block, and rounds by features of a stage."""


@functools.cache
def _rule() -> tuple[int, Tree]:
    rule = json.loads(RULE.read_text())
    return rule["threads"], rule["rounds"]


class HypergraphSchedule(NamedTuple):
    """Work of threads and blocks in the two sums over slots of eight incidences.

    Attributes:
        threads: Threads of a block, which combine their partial sums of a row.
        rounds: Slots that a team takes in turn where it sums nodes over hyperedges.
        next_rounds: Slots that a team takes in turn where it sums hyperedges over nodes.
    """

    threads: int
    rounds: int
    next_rounds: int


def _from_rule(
    op: str, *, incidences: int, nodes: int, hyperedges: int, width: int, itemsize: int
) -> HypergraphSchedule:
    """Return the schedule of the fitted rule; ``incidences`` are those of the larger stage."""
    # The second stage reads the first one's sums, which are in the accumulator type.
    to_hyperedges = stage_features(incidences, hyperedges, width, itemsize)
    to_nodes = stage_features(incidences, nodes, width, max(itemsize, 4))
    stages = {"to_nodes": False, **to_hyperedges}, {"to_nodes": True, **to_nodes}
    threads, tree = _rule()
    return HypergraphSchedule(threads, *(leaf(tree, stage) for stage in stages))


FAMILY = Family(
    schedule=HypergraphSchedule,
    allowed=(THREADS, MANY, MANY),
    ops=("hypergraph_aggregate",),
    exact=("width", "itemsize"),
    sizes=("incidences", "nodes", "hyperedges"),
    rule=_from_rule,
    describe=lambda s: f"{s.threads} threads, {s.rounds} and {s.next_rounds} rounds",
)


def stage_features(incidences: int, rows: int, width: int, itemsize: int) -> dict[str, float]:
    """Return the inputs of the rule for one of the two sums of a hypergraph aggregation.

    They are ``waves``, the number of times that all slots, one for each team, fill the
    multiprocessors of an H200; ``average_degree`` of the output rows; and ``row_bytes`` of an input
    row.
    """
    lanes = team_lanes(width, itemsize)
    tiles = max(-(-width // (lanes * word_features(width, itemsize))), 1)
    resident_teams = max(_MULTIPROCESSORS * _RESIDENT_THREADS // (lanes * tiles), 1)
    slots = max(rows, incidences // SLOT_SIZE + rows // 2)  # half of a row's last slot is empty
    return {
        "waves": slots / resident_teams,
        "average_degree": incidences / max(rows, 1),
        "row_bytes": width * itemsize,
    }


def team_lanes(width: int, itemsize: int) -> int:
    """Return the lanes of a team, at least one for each incidence of a slot."""
    return max(covering_lanes(width, itemsize), SLOT_SIZE)
