"""Passes: functions from a program to an equal one, each of which may be omitted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from jax_gnn._program.normal import normal_form
from jax_gnn._program.passes.compact_pairs import compact_pairs
from jax_gnn._program.passes.contraction_order import contraction_order
from jax_gnn._program.passes.cse import cse
from jax_gnn._program.passes.factor_scales import factor_scales
from jax_gnn._program.passes.hoist_linear_maps import distribute, hoist_linear_maps
from jax_gnn._program.passes.inline_pairs import inline_pairs
from jax_gnn._program.passes.split_softmax import split_softmax
from jax_gnn._program.rows import Row
from jax_gnn._program.spaces import Parts

FOR_REGIONS = ("split_softmax", "inline_pairs")
"""Passes that gain only where edge regions take what they make."""
PASSES = (
    "cse",
    "factor_scales",
    "hoist_linear_maps",
    "contraction_order",
    "compact_pairs",
    *FOR_REGIONS,
)
DISTRIBUTE = "distribute"
"""A pass that programs must ask for: it may lose digits where terms cancel."""

# The order of products is chosen between compactions: what edges read decides what it costs.
_SEQUENCE = (
    "cse",
    "factor_scales",
    "split_softmax",
    "hoist_linear_maps",
    DISTRIBUTE,
    "cse",
    "compact_pairs",
    "contraction_order",
    "compact_pairs",
    "inline_pairs",
    "cse",
)


def steps(
    results: Sequence[Row], passes: Sequence[str], parts: Parts, cache: dict[Hashable, Any]
) -> Iterator[tuple[str, list[Row]]]:
    """Yield the program in normal form, and after each of the chosen passes.

    Other choices of passes find what they share with this one in the `cache`.
    """
    program = normal_form(results)
    yield "normal form", program
    for name in _SEQUENCE:
        if name in passes:
            key = name, name == "contraction_order" and "compact_pairs" in passes, *program
            if key not in cache:
                cache[key] = apply(name, program, parts, passes)
            program = cache[key]
            yield name, program


def apply(name: str, results: Sequence[Row], parts: Parts, passes: Sequence[str]) -> list[Row]:
    """Return the program after one pass, of the chosen `passes`."""
    match name:
        case "cse":
            return cse(results)
        case "factor_scales":
            return factor_scales(results)
        case "split_softmax":
            return split_softmax(results)
        case "hoist_linear_maps":
            return hoist_linear_maps(results, parts)
        case "distribute":
            return distribute(results, parts)
        case "compact_pairs":
            return compact_pairs(results, parts)
        case "inline_pairs":
            return inline_pairs(results)
        case "contraction_order":
            return contraction_order(results, parts, compact="compact_pairs" in passes)
    raise ValueError(f"no pass is called {name!r}")


def run(
    results: Sequence[Row], passes: Sequence[str], parts: Parts, cache: dict[Hashable, Any]
) -> list[Row]:
    """Return the program after all chosen passes, see `steps`."""
    return [program for _, program in steps(results, passes, parts, cache)][-1]
