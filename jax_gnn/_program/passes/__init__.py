"""Passes: functions from a program to an equal one."""

from __future__ import annotations

from collections.abc import Sequence

from jax_gnn._program.passes.normal import normal
from jax_gnn._program.rows import Row
from jax_gnn._program.spaces import Parts

PASSES = ("equal", "sums", "order", "compact")


def run(results: Sequence[Row], passes: Sequence[str], parts: Parts) -> list[Row]:
    """The program after the normal form and these passes."""
    found = normal(results)
    return found
