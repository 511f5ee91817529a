"""Segmented matrix multiplication: Y[r] = X[r] W[g] for the rows r of group g, and its gradients.

W is (groups, width, width). ``dX`` multiplies by the transposed weights, ``dW`` sums outer products
of rows. float32 may be multiplied as TF32 in every family. The floor is bytes over bandwidth or
flops over the rate of a large dense product, whichever takes longer. Who needs sizes of groups on
the host (torch's loops and padding) has them for nothing.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import published
from benchmarks.definition import TF32_TOLERANCE, Candidate, Case, Family, Op, Problem
from benchmarks.peers import (
    bounded,
    checkout_family,
    int64,
    jax_candidate,
    skipped,
    torch_candidate,
)
from benchmarks.problems import (
    CHECKED_NUMBERS,
    Expected,
    features,
    numpy_dtype,
    once,
    sample_segments,
)
from benchmarks.report import OURS
from benchmarks.workloads import Groups, row_groups

INPUTS = ("lhs", "rhs")
MODES = ("fwd", "dX", "dW")

ON = "cpu"
"""Where arrays have more than `peers.LARGEST` there, a peer moves far more than the others, takes
seconds on a CPU, and leaves them no memory on a GPU."""


def problem(groups: Groups, case: Case) -> Problem:
    """Rows and weights, or for ``dW`` two matrices of rows; the sizes; some rows of the result."""
    rows, width, dtype = groups.num_rows, case.width, case.dtype
    x = features("x", rows, width, dtype)
    cotangent = features("cotangent", rows, width, dtype)
    inputs: dict[str, Any]
    weights = _weights(groups.num_groups, width, dtype)
    if case.mode == "dW":
        inputs = {"lhs": x, "rhs": cotangent}
        sample = sample_segments(groups.indptr, width)
        factors = (matrix.rows(sample.entries) for matrix in (x, cotangent))
        pairs = zip(*(np.split(rows, sample.indptr[1:-1]) for rows in factors), strict=True)
        values = np.stack([left.T @ right for left, right in pairs])
        expected = Expected(values, weights.shape, sample.segments)
    else:
        lhs = cotangent if case.mode == "dX" else x
        inputs = {"lhs": lhs, "rhs": weights}
        checked = _sample_rows(groups, CHECKED_NUMBERS // width**2)
        chosen = weights[groups.ids[checked]].astype(np.float64)
        equation = "rk,rnk->rn" if case.mode == "dX" else "rk,rkn->rn"
        values = np.einsum(equation, lhs.rows(checked), chosen, optimize=True)
        expected = Expected(values, (rows, width), checked)
    return Problem(
        inputs={**inputs, "sizes": groups.sizes},
        expected=(expected,),
        output_dtype=numpy_dtype(dtype),
        tolerance=TF32_TOLERANCE if dtype == "float32" else None,
        flops=_flops(groups, width, case.mode),
    )


def _flops(groups: Groups, width: int, mode: str) -> int:
    """As the records of the ops count."""
    import jax

    from jax_gnn._ops.segment_matmul.primitive import Factors, Rows, segment_matmul, segment_outer

    rows = jax.ShapeDtypeStruct((groups.num_rows, width), np.float32)
    if mode == "dW":
        return segment_outer.flops(Factors(rows, rows, None, None, None))
    weights = jax.ShapeDtypeStruct((groups.num_groups, width, width), np.float32)
    return segment_matmul.flops(
        Rows(rows, weights, None, None, None, None, None), transposed=mode == "dX"
    )


@once
def _weights(num_groups: int, width: int, dtype: str) -> np.ndarray:
    return features("w", num_groups * width, width, dtype).whole().reshape(-1, width, width)


def _sample_rows(groups: Groups, most: int) -> np.ndarray:
    """Rows on both sides of the borders between groups, and any others."""
    rng = np.random.default_rng(0)
    borders = np.unique(np.concatenate([groups.indptr[1:-1], groups.indptr[1:-1] - 1]))
    borders = borders[(borders >= 0) & (borders < groups.num_rows)]
    borders = rng.permutation(borders)[: most // 2]
    others = rng.integers(groups.num_rows, size=most // 2)
    return np.unique(np.concatenate([borders, others]))


# This library.


def product(mode: str, **options: Any) -> Callable[..., Any]:
    """The op of a mode as users call it: ``(lhs, rhs, sizes)``."""
    import jax_gnn

    warnings.filterwarnings("error", message=".*Using plain XLA instead")
    if mode == "dW":
        return lambda *operands: jax_gnn.segment_outer(*operands, **options)
    transposed = mode == "dX"
    return lambda *operands: jax_gnn.segment_matmul(*operands, transpose_rhs=transposed, **options)


def jax_gnn_candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """The op as users call it, and ``dW`` added in any order."""
    yield jax_candidate(OURS, product(case.mode), problem, (groups.sizes,), INPUTS)
    if case.mode == "dW":
        any_order = product(case.mode, deterministic=False)
        yield jax_candidate(f"{OURS}, any order", any_order, problem, (groups.sizes,), INPUTS)


# Plain JAX.

RAGGED_DOT = "ragged_dot"


def plain_jax_candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """``ragged_dot``, weights gathered for every row, and one product where there is one group."""
    itemsize = numpy_dtype(case.dtype).itemsize
    row_bytes = groups.num_rows * case.width * itemsize
    # On a GPU it masks a copy of the rows for each group.
    copies = 2 if case.mode == "dW" else 1
    ragged_bytes = copies * groups.num_groups * row_bytes
    dense, ragged, gathered = PLAIN_JAX[case.mode]
    candidate = jax_candidate(RAGGED_DOT, ragged, problem, (groups.sizes,), INPUTS)
    yield bounded(candidate, ragged_bytes, ON)
    by_row = groups.sizes, groups.ids
    candidate = jax_candidate("gathered einsum", gathered, problem, by_row, INPUTS)
    # Outer products are added up in float32, whatever the rows are.
    product_bytes = groups.num_rows * case.width * (4 if case.mode == "dW" else itemsize)
    yield bounded(candidate, product_bytes * case.width, ON)
    if groups.num_groups == 1:
        yield jax_candidate("dense product", dense, problem, (), INPUTS)


def _ragged_dot(lhs: Any, rhs: Any, sizes: Any, contracted: tuple[int, int]) -> Any:
    import jax

    numbers = jax.lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(([contracted[0]], [contracted[1]]), ([], [])),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0] if rhs.ndim == 3 else [],
    )
    return jax.lax.ragged_dot_general(lhs, rhs, sizes, numbers)


def _gathered(lhs: Any, weights: Any, sizes: Any, ids: Any, equation: str) -> Any:
    import jax.numpy as jnp

    return jnp.einsum(equation, lhs, weights[ids])


def _summed(lhs: Any, rhs: Any, sizes: Any, ids: Any) -> Any:
    import jax
    import jax.numpy as jnp

    outer = jnp.einsum("rk,rn->rkn", lhs, rhs, preferred_element_type=jnp.float32)
    sums = jax.ops.segment_sum(outer, ids, len(sizes), indices_are_sorted=True)
    return sums.astype(lhs.dtype)


PLAIN_JAX: dict[str, tuple[Callable[..., Any], ...]] = {
    "fwd": (
        lambda x, w: x @ w[0],
        partial(_ragged_dot, contracted=(1, 1)),
        partial(_gathered, equation="rk,rkn->rn"),
    ),
    "dX": (
        lambda dy, w: dy @ w[0].T,
        partial(_ragged_dot, contracted=(1, 2)),
        partial(_gathered, equation="rk,rnk->rn"),
    ),
    "dW": (
        lambda x, dy: (x.T @ dy)[None],
        partial(_ragged_dot, contracted=(0, 0)),
        _summed,
    ),
}


# NumPy.


def numpy_candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """A product for each group, into its place."""
    slices = _slices(groups)
    out = np.empty(problem.expected[0].shape, problem.output_dtype)

    def loop(lhs: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray]:
        for group, rows in enumerate(slices):
            if case.mode == "dW":
                np.matmul(lhs[rows].T, rhs[rows], out=out[group])
            else:
                weight = rhs[group].T if case.mode == "dX" else rhs[group]
                np.matmul(lhs[rows], weight, out=out[rows])
        return (out,)

    if case.dtype in ("float32", "float64"):  # no BLAS knows the others
        yield Candidate("numpy loop", loop, tuple(problem.inputs[name] for name in INPUTS))


# torch.


def torch_candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """A loop of cuBLAS, one batched product of padded groups, ``_grouped_mm`` for bfloat16."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    mode = case.mode
    slices = _slices(groups)
    longest = int(groups.sizes.max())
    (shape,) = (expected.shape for expected in problem.expected)

    def transposed(lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """The factors as the mode wants them."""
        return {"fwd": (lhs, rhs), "dX": (lhs, rhs.mT), "dW": (lhs.mT, rhs)}[mode]

    def loop(lhs: Any, rhs: Any) -> Any:
        left, right = transposed(lhs, rhs)
        out = lhs.new_empty(shape)
        for group, rows in enumerate(slices):
            if mode == "dW":
                torch.mm(left[:, rows], right[rows], out=out[group])
            elif rows.start < rows.stop:
                torch.mm(left[rows], right[group], out=out[rows])
        return out

    def padded(lhs: Any, rhs: Any, places: Any) -> Any:
        def pad(rows: Any) -> Any:
            empty = rows.new_zeros(groups.num_groups * longest, rows.shape[1])
            return empty.index_copy_(0, places, rows).view(-1, longest, rows.shape[1])

        if mode == "dW":
            return torch.bmm(*transposed(pad(lhs), pad(rhs)))
        product = torch.bmm(*transposed(pad(lhs), rhs))
        return product.view(-1, product.shape[2]).index_select(0, places)

    def grouped(lhs: Any, rhs: Any, ends: Any) -> Any:
        return torch._grouped_mm(*transposed(lhs, rhs), offs=ends)

    yield torch_candidate("torch loop of mm", loop, problem, (), INPUTS)
    padded_rows = 2 * groups.num_groups * longest
    yield bounded(
        torch_candidate("torch padded bmm", padded, problem, (_places(groups),), INPUTS),
        padded_rows * case.width * problem.output_dtype.itemsize,
        ON,
    )
    if case.dtype == "bfloat16" and hasattr(torch, "_grouped_mm"):
        ends = _ends(groups)
        yield torch_candidate("torch grouped_mm", grouped, problem, (ends,), INPUTS)


def _slices(groups: Groups) -> list[slice]:
    return [slice(*pair) for pair in itertools.pairwise(groups.indptr.tolist())]


@once
def _places(groups: Groups) -> np.ndarray:
    """Where each row is when all groups are padded to the size of the largest."""
    within = np.arange(groups.num_rows) - groups.indptr[groups.ids]
    return groups.ids.astype(np.int64) * int(groups.sizes.max()) + within


@once
def _ends(groups: Groups) -> np.ndarray:
    return groups.indptr[1:].copy()


# Published kernels.


def fasten_candidates(
    checkout: Path, groups: Groups, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """FASTEN's kernels, which multiply as TF32."""
    if case.dtype not in ("float32", "float16"):
        yield skipped("FASTEN", "no kernel for this dtype")
        return
    factors = tuple(problem.inputs[name] for name in INPUTS)
    yield Candidate("FASTEN", published.Fasten(checkout, case.mode, groups.sizes), factors)
    if case.mode == "dW":
        in_order = published.Fasten(checkout, case.mode, groups.sizes, (True,))
        yield Candidate("FASTEN, deterministic", in_order, factors)


def pyg_lib_candidates(
    checkout: Path, groups: Groups, case: Case, problem: Problem
) -> Iterator[Candidate]:
    """pyg-lib's grouped product of CUTLASS; its ``dW`` is the loop of torch's family."""
    import torch

    if case.dtype != "float32" or case.mode == "dW":
        yield skipped("pyg-lib", "no kernel for this dtype or mode")
        return
    torch.set_float32_matmul_precision("high")
    function = published.pyg_lib(checkout, "matmul")

    def run(rows: Any, weights: Any, indptr: Any) -> tuple[Any]:
        return (function(rows, indptr, weights.mT if case.mode == "dX" else weights),)

    factors = [problem.inputs[name] for name in INPUTS]
    yield Candidate("pyg-lib", run, (*factors, int64(groups, "indptr")))


OP = Op(
    name="segment_matmul",
    title="Segmented matrix multiplication and its gradients",
    workloads=row_groups,
    modes=dict.fromkeys(MODES, ()),
    widths={"cpu": (32, 64, 128), "gpu": (32, 64, 128)},
    problem=problem,
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("plain jax", "jax", ("jax",), plain_jax_candidates),
        Family("torch", "torch", ("torch",), torch_candidates),
        Family("numpy", "numpy", ("numpy",), numpy_candidates, platforms=("cpu",)),
        Family("fasten", "torch", ("torch", "triton"), fasten_candidates, ("gpu",), "fasten"),
        checkout_family("pyg-lib", pyg_lib_candidates, "pyg-lib"),
    ),
    baseline=RAGGED_DOT,
)
