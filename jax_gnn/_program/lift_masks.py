"""Ids that a mask sends out of range: ``where(mask, senders, num_nodes)``, as mlip has them.

Where a function also indexes by ``senders`` themselves, edges would have more than two ends. So
such a gather becomes one by ``senders`` with a mask of its rows, and a scatter likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._core.arrays import row_wise
from jax_gnn._ops.edge_region.xla import NEUTRAL
from jax_gnn._program.lift_ids import CLIPS, Flat, Indexing, Use, fill_value, flatten
from jax_gnn._program.lift_rows import Equation, is_var, needed_equations


def with_masks(flat: Flat) -> Flat:
    """Return a jaxpr with masks of rows in the place of masked ids; the same one without these."""
    indexing = Indexing(flat)
    eqns: list[Equation] = []
    for eqn in flat.eqns:
        use = indexing.uses.get(id(eqn))
        select = None if use is None else _mask(indexing, use)
        eqns += [eqn] if use is None or select is None else _masked(use, *select)
    if len(eqns) == len(flat.eqns):
        return flat
    return flat._replace(eqns=needed_equations(eqns, flat.outvars))


def inlined(function: Callable[..., Any], eqn: Equation, operands: list[Any]) -> list[Equation]:
    """Return the equations of a function of `operands`, which make the result of an equation.

    The equations have the line of `eqn`, which is where the user finds them.
    """
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    body = flatten(jax.make_jaxpr(function)(*avals))
    names = dict(zip([*body.invars, *body.outvars], [*operands, *eqn.outvars], strict=True))
    return [
        inner.replace(
            invars=[names.get(v, v) if is_var(v) else v for v in inner.invars],
            outvars=[names.get(v, v) for v in inner.outvars],
            source_info=eqn.source_info,
        )
        for inner in body.eqns
    ]


def _mask(indexing: Indexing, use: Use) -> tuple[Any, Any, bool] | None:
    """Return ids, the mask that sends some out of range, and what it is elsewhere; or None.

    It is None for a scatter that clips ids, and where nothing else is by these ids.
    """
    eqn, num_nodes = indexing.producer(use.end.root), use.end.num_nodes
    if eqn is None or eqn.primitive.name != "select_n" or (use.reduce and use.mode in CLIPS):
        return None
    mask, *cases = eqn.invars
    is_large = [(indexing.constant(case) or 0) >= num_nodes for case in cases]
    if len(cases) != 2 or sum(is_large) != 1 or mask.aval.shape != use.end.root.aval.shape:
        return None
    ids = cases[is_large.index(False)]
    is_used = any(indexing.key(ids, num_nodes) == other.key for other in indexing.uses.values())
    return (ids, mask, is_large[0]) if is_used else None


def _masked(use: Use, ids: Any, mask: Any, keeps: bool) -> list[Equation]:
    """Return the equations of a gather or scatter of rows by ids, with a mask of the rows."""
    eqn, dtype = use.eqn, use.eqn.invars[1].aval.dtype

    def function(x: Array, ids: Array, mask: Array, *updates: Array) -> Array:
        def select(rows: Array, other: Any) -> Array:
            return jnp.where(row_wise(mask if keeps else ~mask, rows), rows, other)

        ids = ids.astype(dtype)
        ids = jnp.where(ids < 0, ids + use.end.num_nodes, ids) if use.wraps else ids
        if use.reduce:
            updates = (select(updates[0], jnp.asarray(NEUTRAL[use.reduce], x.dtype)),)
        y: Array = eqn.primitive.bind(x, ids[:, None], *updates, **eqn.params)
        if use.reduce:
            return y
        fill = fill_value(use, x.dtype)
        if fill is None:
            fill = x[-1] if use.mode == "clip" else jax.lax.stop_gradient(x[-1])
        return select(y, fill)

    return inlined(function, eqn, [eqn.invars[0], ids, mask, *eqn.invars[2:]])
