"""Which nodes a node's row is of where sources and destinations are apart."""

from __future__ import annotations

from collections.abc import Sequence

from jax_gnn._program.rows import Given, Pull, Push, Row, in_order
from jax_gnn._program.spaces import Space


class Sides:
    """For each node's row whether it is of sources or of destinations.

    What ``g.src`` reads is of sources; what ``g.dst`` reads or a reduction makes, of destinations;
    and whatever is combined is of the same. On a graph that is not bipartite both are the same.
    """

    def __init__(self, results: Sequence[Row], name: str = "", *, apart: bool = False) -> None:
        """Finds them.

        Args:
            results: The program.
            name: What errors call it.
            apart: Whether the graph is bipartite.

        Raises:
            ValueError: a row would be of both, and these are apart.
        """
        self._leaders: dict[Row, Row] = {}
        self._sides: dict[Row, str] = {}
        for row in in_order(results):
            if row.space is Space.NODE and not isinstance(row.op, Push):
                for each in row.operands:
                    if each.space is Space.NODE:
                        self._join(row, each)
        for row in in_order(results):
            wanted = {}
            if isinstance(row.op, Push) and row.space is Space.NODE:
                wanted[row] = "dst"
            if isinstance(row.op, Pull) and row.op.way in ("src", "dst"):
                wanted[row.operands[0]] = row.op.way
            for each, side in wanted.items():
                leader = self._leader(each)
                if apart and self._sides.setdefault(leader, side) != side:
                    what = each.op.name if isinstance(each.op, Given) else each.line or "a row"
                    raise ValueError(
                        f"program {name}: {what} would be of sources and of destinations, which "
                        f"are apart in a bipartite graph: {row.line} reads it as the other"
                    )
                self._sides.setdefault(leader, side)

    def of(self, row: Row) -> str:
        """Either "src" or "dst"."""
        return self._sides.get(self._leader(row), "dst")

    def _leader(self, row: Row) -> Row:
        while row in self._leaders:
            row = self._leaders[row]
        return row

    def _join(self, a: Row, b: Row) -> None:
        a, b = self._leader(a), self._leader(b)
        if a is not b:
            self._leaders[a] = b
