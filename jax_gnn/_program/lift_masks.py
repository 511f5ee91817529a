"""Ids that a mask sends out of range: ``where(mask, senders, num_nodes)``, as mlip has them.

Where a function also indexes by ``senders`` themselves, edges would have more than two ends. So
such a gather becomes one by ``senders`` with a mask of its rows, and a scatter likewise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_gnn._program.lift_ids import CLIPS, NEUTRAL, Flat, Indexing, Use, fill_value, flatten
from jax_gnn._program.lift_rows import Equation, is_var, needed_equations


def with_masks(flat: Flat) -> Flat:
    """Return a jaxpr with masks of rows in the place of masked ids; the same one without these."""
    indexing = Indexing(flat)
    keys = {use.key for use in indexing.uses.values()}
    eqns: list[Equation] = []
    for eqn in flat.eqns:
        use = indexing.uses.get(id(eqn))
        ids, masks = (None, []) if use is None else _masked_ids(indexing, use)
        if use is None or not masks or indexing.key(ids, use.end.num_nodes) not in keys:
            eqns.append(eqn)
            continue
        operands = [*eqn.invars[:1], ids, *eqn.invars[2:], *(mask for mask, _ in masks)]
        eqns += inlined(_masked(use, [keeps for _, keeps in masks]), eqn, operands)
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


def _masked_ids(indexing: Indexing, use: Use) -> tuple[Any, list[tuple[Any, bool]]]:
    """Return ids, and the masks that send some out of range, with what a mask is where it does not.

    There are no masks if ids are others, or if a scatter clips them.
    """
    ids, num_nodes = use.end.root, use.end.num_nodes
    masks: list[tuple[Any, bool]] = []
    while (eqn := indexing.producers.get(ids)) is not None and eqn.primitive.name == "select_n":
        mask, *cases = eqn.invars
        if len(cases) != 2 or mask.aval.shape != ids.aval.shape:
            break
        is_large = [(indexing.constant(case) or 0) >= num_nodes for case in cases]
        if sum(is_large) != 1 or (use.reduce and use.mode in CLIPS):
            break
        masks.append((mask, is_large[0]))
        ids = cases[is_large.index(False)]
    return ids, masks if is_var(ids) else []


def _masked(use: Use, keeps: list[bool]) -> Callable[..., Array]:
    """Return the gather or scatter of rows by ids, with masks of rows."""
    eqn = use.eqn
    dtype, num_nodes = eqn.invars[1].aval.dtype, use.end.num_nodes

    def function(x: Array, ids: Array, *operands: Array) -> Array:
        masks = operands[-len(keeps) :]
        ids = ids.astype(dtype)
        if use.wraps:
            ids = jnp.where(ids < 0, ids + num_nodes, ids)
        is_kept = functools.reduce(
            jnp.logical_and,
            (mask if keep else ~mask for mask, keep in zip(masks, keeps, strict=True)),
        )

        def select(rows: Array, other: Any) -> Array:
            shape = (-1,) + (1,) * (rows.ndim - 1)
            return jnp.where(is_kept.reshape(shape), rows, other)

        if use.reduce:
            rows = select(operands[0], jnp.asarray(NEUTRAL[use.reduce], x.dtype))
            y: Array = eqn.primitive.bind(x, ids[:, None], rows, **eqn.params)
            return y
        fill = fill_value(use, x.dtype)
        if fill is None:
            fill = x[-1] if use.mode == "clip" else jax.lax.stop_gradient(x[-1])
        return select(eqn.primitive.bind(x, ids[:, None], **eqn.params), fill)

    return function
