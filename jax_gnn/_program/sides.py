"""Sides of nodes' rows: sources or destinations, which differ in bipartite graphs."""

from __future__ import annotations

from collections.abc import Sequence

from jax_gnn._program.rows import DisjointSets, Input, Pull, Push, Row, topological_order
from jax_gnn._program.spaces import Space


class Sides:
    """The side of each row of nodes: "src" or "dst".

    Rows that ``g.src`` reads, and reductions along reverse edges, are of sources. Rows that
    ``g.dst`` reads, and other reductions, are of destinations. Rows that are combined have the same
    side.
    """

    def __init__(self, results: Sequence[Row], name: str = "", *, bipartite: bool = False) -> None:
        """Infer the sides.

        Args:
            results: The program.
            name: Name of the program in errors.
            bipartite: Whether sources and destinations are different nodes.

        Raises:
            ValueError: A row would have both sides in a bipartite graph.
        """
        # Rows that are combined, and the side of each set of them.
        self._sets = DisjointSets()
        self._sides: dict[Row, str] = {}
        rows = topological_order(results)
        for row in rows:
            if row.space is Space.NODE and not isinstance(row.op, Push):
                for operand in row.operands:
                    if operand.space is Space.NODE:
                        self._sets.join(row, operand)
        for row in rows:
            sides = {}
            if isinstance(row.op, Push) and row.space is Space.NODE:
                sides[row] = row.op.way
            if isinstance(row.op, Pull) and row.op.way in ("src", "dst"):
                sides[row.operands[0]] = row.op.way
            for node_row, side in sides.items():
                if self._sides.setdefault(self._sets.of(node_row), side) != side and bipartite:
                    is_input = isinstance(node_row.op, Input)
                    what = node_row.op.name if is_input else node_row.line or "a row"  # type: ignore[union-attr]
                    raise ValueError(
                        f"program {name}: {what} would be of sources and of destinations, which "
                        f"are apart in a bipartite graph: {row.line} takes it as the other"
                    )

    def of(self, row: Row) -> str:
        """Return "src" or "dst"; "dst" for rows that nothing reads."""
        return self._sides.get(self._sets.of(row), "dst")
