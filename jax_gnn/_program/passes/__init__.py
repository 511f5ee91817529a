"""Passes: functions from a program to an equal one, each of which may be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jax_gnn._program.normal import normal
from jax_gnn._program.passes.compact import compact
from jax_gnn._program.passes.equal import equal
from jax_gnn._program.passes.order import order
from jax_gnn._program.passes.sums import sums
from jax_gnn._program.rows import Row
from jax_gnn._program.spaces import Parts

PASSES = ("equal", "sums", "order", "compact")


def steps(
    results: Sequence[Row], passes: Sequence[str], parts: Parts
) -> Iterator[tuple[str, list[Row]]]:
    """The program after each step: the normal form, and the passes that are wanted."""
    found = normal(results)
    yield "normal form", found
    wanted = [("equal", "sums", "equal", "compact", "order", "compact", "equal")]
    for name in wanted[0]:
        if name not in passes:
            continue
        if name == "equal":
            found = equal(found)
        elif name == "sums":
            found = sums(found, parts)
        elif name == "compact":
            found = compact(found, parts)
        else:
            found = order(found, parts, compact="compact" in passes)
        yield name, found


def run(results: Sequence[Row], passes: Sequence[str], parts: Parts) -> list[Row]:
    """The program after all of them."""
    return [found for _, found in steps(results, passes, parts)][-1]
