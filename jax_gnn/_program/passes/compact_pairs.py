"""Compact materialization: functions move to the smallest space that suffices for them.

A function of what edges read of their sources alone becomes one of nodes; of sources and
relations, one of (source, relation) pairs; and so on. Edges then read its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_gnn._program.match import at_home
from jax_gnn._program.normal import settle
from jax_gnn._program.rows import Apply, Contract, Row, rewrite, topological_order
from jax_gnn._program.spaces import Parts


def compact_pairs(results: Sequence[Row], parts: Parts) -> list[Row]:
    """Return the program with each function and product in the smallest sufficient space."""
    new: dict[Row, Row] = {}
    for row in topological_order(results):
        moved = row.with_operands([new[operand] for operand in row.operands])
        new[row] = at_home(moved, parts) if isinstance(row.op, Apply | Contract) else moved
    return rewrite([new[row] for row in results], settle)
