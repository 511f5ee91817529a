"""Compact materialization: functions move to the smallest space that suffices for them.

A function of what edges read of their sources alone becomes one of nodes; of sources and
relations, one of (source, relation) pairs; and so on. Edges then read its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_gnn._program.match import Matcher, at_home
from jax_gnn._program.normal import settle
from jax_gnn._program.patterns import RelationalSum
from jax_gnn._program.rows import (
    Apply,
    Contract,
    Push,
    Row,
    count_uses,
    rewrite,
    topological_order,
)
from jax_gnn._program.spaces import Parts


def compact_pairs(results: Sequence[Row], parts: Parts) -> list[Row]:
    """Return the program with each function and product in the smallest sufficient space."""
    matcher = Matcher(count_uses(results), parts)
    rows = topological_order(results)
    pinned = {row for push in rows for row in _products_inside(push, matcher)}
    new: dict[Row, Row] = {}
    for row in rows:
        moved = row.with_operands([new[operand] for operand in row.operands])
        is_movable = isinstance(row.op, Apply | Contract) and row not in pinned
        new[row] = at_home(moved, parts) if is_movable else moved
    return rewrite([new[row] for row in results], settle)


def _products_inside(push: Row, matcher: Matcher) -> list[Row]:
    """Return the products inside a sum that ``relational_aggregate`` computes."""
    if not isinstance(push.op, Push) or not isinstance(matcher(push), RelationalSum):
        return []
    products, stack = [], [push.operands[0]]
    while stack:
        row = stack.pop()
        if isinstance(row.op, Contract):
            products.append(row)
            stack += row.operands
    return products
