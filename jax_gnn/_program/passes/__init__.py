"""Passes: functions from a program to an equal one, each of which may be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jax_gnn._program.normal import normal
from jax_gnn._program.passes.compact import compact
from jax_gnn._program.passes.equal import equal
from jax_gnn._program.passes.order import order
from jax_gnn._program.passes.sums import distribute, sums
from jax_gnn._program.rows import Row
from jax_gnn._program.spaces import Parts

PASSES = ("equal", "sums", "order", "compact")
DISTRIBUTE = "distribute"
"""A pass that programs have to ask for: it may lose digits where terms cancel."""

# Products are ordered between compact rows: what edges read says what an order costs.
_SEQUENCE = ("equal", "sums", DISTRIBUTE, "equal", "compact", "order", "compact", "equal")


def steps(
    results: Sequence[Row], passes: Sequence[str], parts: Parts
) -> Iterator[tuple[str, list[Row]]]:
    """The program after each step: the normal form, and the passes that are wanted."""
    found = normal(results)
    yield "normal form", found
    for name in _SEQUENCE:
        if name in passes:
            found = apply(name, found, parts, passes)
            yield name, found


def apply(name: str, results: Sequence[Row], parts: Parts, passes: Sequence[str]) -> list[Row]:
    """The program after one pass, of those that are wanted."""
    if name == "equal":
        return equal(results)
    if name in ("sums", DISTRIBUTE):
        return (sums if name == "sums" else distribute)(results, parts)
    if name == "compact":
        return compact(results, parts)
    return order(results, parts, compact="compact" in passes)


def run(results: Sequence[Row], passes: Sequence[str], parts: Parts) -> list[Row]:
    """The program after all of them."""
    return [found for _, found in steps(results, passes, parts)][-1]
