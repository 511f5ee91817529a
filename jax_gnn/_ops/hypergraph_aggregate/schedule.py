"""Schedules of the kernels of the hypergraph aggregation."""

from __future__ import annotations

from typing import Any, NamedTuple

from jax_gnn._core.csr import SLOT_SIZE
from jax_gnn._core.schedule import MANY, THREADS, Family, define_family
from jax_gnn._ops.hypergraph_aggregate import rule
from jax_gnn._ops.segment_reduce.schedule import covering_lanes, word_features

_MULTIPROCESSORS = 132
_RESIDENT_THREADS = 768


class HypergraphSchedule(NamedTuple):
    """How the two sums of a hypergraph aggregation deal out slots of eight incidences.

    Attributes:
        threads: Threads of a block, which add up among them what they share of a row.
        rounds: Slots of a team, one after another: in which sums nodes over hyperedges.
        next_rounds: The same where hyperedges are summed over nodes.
    """

    threads: int
    rounds: int
    next_rounds: int


def _from_rule(
    op: str, *, incidences: int, nodes: int, hyperedges: int, width: int, itemsize: int
) -> HypergraphSchedule:
    """The fitted rule.

    Args:
        op: ``"hypergraph_aggregate"``.
        incidences: Number of (node, hyperedge) pairs, of either stage at most.
        nodes: Number of nodes.
        hyperedges: Number of hyperedges.
        width: Number of features.
        itemsize: Bytes of a feature.
    """
    del op
    into = stage_features(incidences, hyperedges, width, itemsize)
    back = stage_features(incidences, nodes, width, max(itemsize, 4))  # of the accumulator type
    sums: list[dict[str, Any]] = [{"to_nodes": False, **into}, {"to_nodes": True, **back}]
    rounds, next_rounds = (
        rule.choose(**{name: features[name] for name in rule.FEATURES}) for features in sums
    )
    return HypergraphSchedule(rule.THREADS, rounds, next_rounds)


FAMILY = define_family(
    Family(
        schedule=HypergraphSchedule,
        allowed=(THREADS, MANY, MANY),
        ops=("hypergraph_aggregate",),
        exact=("width", "itemsize"),
        sizes=("incidences", "nodes", "hyperedges"),
        rule=_from_rule,
        describe=lambda s: f"{s.threads} threads, {s.rounds} and {s.next_rounds} rounds",
    )
)


def stage_features(incidences: int, rows: int, width: int, itemsize: int) -> dict[str, Any]:
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
    tiles = max(-(-width // (lanes * word_features(width, itemsize))), 1)
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
