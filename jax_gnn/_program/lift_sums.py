"""Sums by ids that are no end of lifted edges: of nodes by graph, and products of one-hot rows.

A gather by such ids, as of embeddings by species, has a sum as its derivative.

``one_hot(ids, n).T @ m`` is a sum of rows of `m` by ids, and becomes a scatter before the analysis.
JAX's scatter never computes it, as the order of its additions is not fixed on GPUs.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core.arrays import FLOATS
from jax_gnn._core.csr import SparseMatrix
from jax_gnn._core.ids import as_signed, is_traced
from jax_gnn._ops.segment_reduce.arguments import Segments
from jax_gnn._ops.segment_reduce.primitive import gather, segment_reduce
from jax_gnn._program.backend import backend
from jax_gnn._program.lift_cost import pays, product_times, sort_times, sum_times
from jax_gnn._program.lift_ids import Flat, Indexing, Use
from jax_gnn._program.lift_masks import inlined
from jax_gnn._program.lift_rows import Equation, is_var, needed_equations

_COPIES = frozenset(("convert_element_type", "copy", "copy_p", "stop_gradient"))
# Sorted ids gain on a CPU from so many rows of a segment or bytes of a row on, as in `compat`.
_MANY_ROWS, _WIDE_BYTES = 32, 128


def with_sums(flat: Flat) -> Flat:
    """Return a jaxpr with scatters in the place of products of one-hot rows that take longer."""
    indexing = Indexing(flat)
    eqns: list[Equation] = []
    products = set()
    for eqn in flat.eqns:
        scatter = _scatter(indexing, eqn) if eqn.primitive.name == "dot_general" else []
        products |= {
            v for x in scatter if x.primitive.name.startswith("scatter") for v in x.outvars
        }
        eqns += scatter or [eqn]
    if not products:
        return flat
    eqns = needed_equations(eqns, flat.outvars)
    return flat._replace(eqns=eqns, products=frozenset(products))


def _scatter(indexing: Indexing, eqn: Equation) -> list[Equation]:
    """Return equations that scatter rows in the place of a product of one-hot rows; or none."""
    (contracted, batch), out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    if any(batch) or any(len(axes) != 1 for axes in contracted) or out.dtype not in FLOATS:
        return []
    for side in (0, 1):
        (axis,), (other_axis,) = contracted[side], contracted[1 - side]
        found = _one_hot(indexing, eqn.invars[side], axis)
        x = eqn.invars[1 - side]
        if found is None or not is_var(x) or x.aval.dtype not in FLOATS:
            continue
        ids, num_segments = found
        count = x.aval.shape[other_axis]
        lifted = sum_times(count, x.aval)[0].plus(sort_times(count))
        if not pays(lifted, product_times(count, num_segments, x.aval)):
            continue

        def function(ids: Array, x: Array) -> Array:
            rows = jnp.moveaxis(x, other_axis, 0).astype(out.dtype)  # noqa: B023
            zeros = jnp.zeros((num_segments, *rows.shape[1:]), rows.dtype)  # noqa: B023
            at = zeros.at[ids]
            y = at.add(rows, mode="drop", wrap_negative_indices=False)
            return jnp.moveaxis(y, 0, -1) if side else y  # noqa: B023

        return inlined(function, eqn, [ids, x])
    return []


def _one_hot(indexing: Indexing, var: Any, axis: int) -> tuple[Any, int] | None:
    """Return the ids and the width of one-hot rows along an axis; None for other arrays."""
    while (eqn := indexing.producer(var)) is not None:
        name = eqn.primitive.name
        if name == "transpose":
            axis = eqn.params["permutation"][axis]
        elif name == "eq" and len(eqn.outvars[0].aval.shape) == 2:
            width = eqn.outvars[0].aval.shape[1 - axis]
            for ids, numbers in (eqn.invars, eqn.invars[::-1]):
                root = _broadcast(indexing, ids, axis)
                if root is not None and _is_range(indexing, numbers, 1 - axis):
                    return root, width
            return None
        elif name not in _COPIES or len(var.aval.shape) != 2:
            return None
        var = eqn.invars[0]
    return None


def _broadcast(indexing: Indexing, var: Any, axis: int) -> Any:
    """Return the integers that an array of two axes has along one of them, or None."""
    eqn = indexing.producer(var)
    if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "reshape"):
        return None
    ids = eqn.invars[0]
    size = var.aval.shape[axis]
    is_along = math.prod(var.aval.shape) == size > 1  # the other axis has size 1
    is_integer = jnp.issubdtype(ids.aval.dtype, np.integer)
    is_ids = is_var(ids) and ids.aval.shape == (size,) and is_integer
    return ids if is_along and is_ids else None


def _is_range(indexing: Indexing, var: Any, axis: int) -> bool:
    """Whether an array is 0, 1, 2, … along an axis."""
    while (eqn := indexing.producer(var)) is not None:
        name, params = eqn.primitive.name, eqn.params
        if name == "iota":
            return bool(params["dimension"] == axis)
        if name == "broadcast_in_dim" and axis in params["broadcast_dimensions"]:
            axis = params["broadcast_dimensions"].index(axis)
            if (
                eqn.invars[0].aval.shape[axis]
                != var.aval.shape[params["broadcast_dimensions"][axis]]
            ):
                return False
        elif name not in _COPIES:
            return False
        var = eqn.invars[0]
    return False


def sum_gains(use: Use, ids: Any) -> bool:
    """Whether a sum by ids gains time: known ids ascend from 0 on, and rows are many or wide."""
    if is_traced(ids) or (np.diff(np.asarray(ids), prepend=0) < 0).any():
        return False
    rows = use.moved
    row_bytes = rows.size // rows.shape[0] * rows.dtype.itemsize
    is_large = rows.shape[0] >= _MANY_ROWS * use.end.num_nodes or row_bytes >= _WIDE_BYTES
    return is_large or backend() != "cpu"


def segments_of(use: Use, indices: Array, is_sorted: bool = False) -> SparseMatrix:
    """Return the sorted ids of a sum or lookup, whose indices are ``(ids, 1)``.

    Ids out of range have no sum and no gradient, but for those that a lookup clips.
    """
    ids = as_signed(indices[:, 0])
    ids = jnp.clip(ids, 0, use.end.num_nodes - 1) if use.mode == "clip" else ids
    return Segments(ids, use.end.num_nodes, is_sorted).matrix


def sum_rows(x: Array, segments: SparseMatrix) -> Array:
    """Return the sum of rows by ids, which has one order."""
    y: Array = segment_reduce(x, None, segments, reduce="sum", heads=1)
    return y


def look_up(use: Use, x: Array, indices: Array, segments: SparseMatrix) -> Array:
    """Return the rows that a gather reads, with a derivative that sums them in one order."""

    @jax.custom_jvp
    def rows(x: Array, indices: Array, segments: SparseMatrix) -> Array:
        y: Array = use.eqn.primitive.bind(x, indices, **use.eqn.params)
        return y

    @rows.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
        return rows(*primals), gather(tangents[0], primals[2])

    y: Array = rows(x, indices, segments)
    return y
