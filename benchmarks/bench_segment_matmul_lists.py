"""Segmented products whose rows are read, or whose results are written, by ids.

``gathered`` reads row i at a random place of all, ``scattered`` writes it at a random place of its
group. ``in order`` is the same product of rows that lie in order already, for which nothing is
counted: what lists cost is the difference. Plain JAX gathers or scatters in a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import bench_segment_matmul as in_order
from benchmarks.definition import Candidate, Case, Family, Problem
from benchmarks.peers import bounded, jax_candidate
from benchmarks.problems import once
from benchmarks.report import OURS
from benchmarks.workloads import Groups

IN_ORDER = "in order"


def problem(groups: Groups, case: Case) -> Problem:
    """That of the product in order, and one id for each row."""
    whole = in_order.problem(groups, replace(case, mode="fwd"))
    return replace(whole, inputs={**whole.inputs, "ids": _ids(groups, case.mode)})


@once
def _ids(groups: Groups, mode: str) -> np.ndarray:
    """A permutation of all rows, or of those of each group."""
    rng = np.random.default_rng(groups.num_rows)
    ids = rng.permutation(groups.num_rows).astype(np.int32)
    return ids if mode == "gathered" else ids[np.argsort(groups.ids[ids], kind="stable")]


@once
def _moved(groups: Groups, mode: str, x: Any) -> np.ndarray:
    """Rows from which the ids, or to which the results' ids, lead back to x."""
    ids = _ids(groups, mode)
    if mode == "scattered":
        return x.whole()[ids]
    moved = np.empty_like(x.whole())
    moved[ids] = x.whole()
    return moved


def _by_ids(groups: Groups, case: Case, problem: Problem, name: str, function: Any) -> Candidate:
    """``function(lhs, rhs, sizes, ids)`` of rows that lie elsewhere."""
    lhs = _moved(groups, case.mode, problem.inputs["lhs"])
    moved = replace(problem, inputs={**problem.inputs, "lhs": lhs})
    operands = groups.sizes, problem.inputs["ids"]
    return jax_candidate(name, function, moved, operands, in_order.INPUTS)


def jax_gnn_candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """By ids, and in order."""
    import jax_gnn

    name = "lhs_rows" if case.mode == "gathered" else "out_rows"

    def product(lhs: Any, rhs: Any, sizes: Any, ids: Any) -> Any:
        return jax_gnn.segment_matmul(lhs, rhs, sizes, **{name: ids})

    yield _by_ids(groups, case, problem, OURS, product)
    yield jax_candidate(
        IN_ORDER, in_order.product("fwd"), problem, (groups.sizes,), in_order.INPUTS
    )


def plain_jax_candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """Rows are gathered, or results scattered, beside ``ragged_dot`` and gathered weights."""
    import jax.numpy as jnp

    ragged, gathered = in_order.PLAIN_JAX["fwd"][1:]
    row_bytes = groups.num_rows * case.width * problem.output_dtype.itemsize

    def by_ids(product: Any, *more: Any) -> Any:
        def function(lhs: Any, rhs: Any, sizes: Any, ids: Any) -> Any:
            if case.mode == "gathered":
                return product(lhs[ids], rhs, sizes, *more)
            result = product(lhs, rhs, sizes, *more)
            return jnp.zeros_like(result).at[ids].set(result, unique_indices=True)

        return function

    for name, function, num_bytes in (
        (in_order.RAGGED_DOT, by_ids(ragged), groups.num_groups * row_bytes),
        ("gathered einsum", by_ids(gathered, groups.ids), case.width * row_bytes),
    ):
        yield bounded(_by_ids(groups, case, problem, name, function), num_bytes, in_order.ON)


OP = replace(
    in_order.OP,
    name="segment_matmul_lists",
    title="Segmented products of rows, and with results, that are named by ids",
    modes={"gathered": (), "scattered": ()},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
    ),
)
