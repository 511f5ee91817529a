"""What fewer rows suffice for is computed there: compact materialization, and more of it.

A function of what edges read of their sources alone is one of nodes; of sources and relations, one
of the (source, relation) pairs; and so on. Edges then read its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_gnn._program.match import Matcher, at_home
from jax_gnn._program.normal import settled
from jax_gnn._program.patterns import RelationalSum
from jax_gnn._program.rows import Apply, Contract, Push, Row, in_order, rewritten, uses_of
from jax_gnn._program.spaces import Parts


def compact(results: Sequence[Row], parts: Parts) -> list[Row]:
    """The same program with each function and product in the smallest space that suffices."""
    matcher = Matcher(uses_of(results), parts)
    left = {row for push in in_order(results) for row in _summed_whole(push, matcher)}
    new: dict[Row, Row] = {}
    for row in in_order(results):
        moved = row.with_operands([new[each] for each in row.operands])
        movable = isinstance(row.op, Apply | Contract) and row not in left
        new[row] = at_home(moved, parts) if movable else moved
    return rewritten([new[row] for row in results], settled)


def _summed_whole(push: Row, matcher: Matcher) -> list[Row]:
    """The products that ``relational_aggregate`` takes apart itself."""
    if not isinstance(push.op, Push) or not isinstance(matcher(push), RelationalSum):
        return []
    found, stack = [], [push.operands[0]]
    while stack:
        row = stack.pop()
        if isinstance(row.op, Contract):
            found.append(row)
            stack += row.operands
    return found
