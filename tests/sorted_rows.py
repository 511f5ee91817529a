"""Looks into a program for what kernels rely on: rows of a matrix ascend, but for padding.

A kernel may give right sums of rows that do not, by luck of size and platform; no value shows it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import ffi, linear, op
from jax_gnn._core.csr import Csr
from jax_gnn._core.ids import in_range

INNER = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")


def unsorted_ops(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Names of the ops that get rows in another order, in the function and in what ops are made of.

    Only rows are computed: all else is dead code.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments)
    names: list[str] = []

    def flags(*leaves: Any) -> list[Array]:
        names.clear()
        found: list[tuple[str, Array]] = []
        _evaluate(jaxpr, leaves, found)
        names.extend(name for name, _ in found)
        return [flag for _, flag in found]

    kept = jax.jit(flags)(*jax.tree.leaves(arguments))
    assert names, "no op has rows"
    return sorted({name for name, flag in zip(names, kept, strict=True) if not flag})


def _evaluate(jaxpr: Any, values: Any, found: list[tuple[str, Array]]) -> list[Any]:
    inner = jaxpr.jaxpr
    known = dict(zip(inner.constvars, jaxpr.consts, strict=True))
    known |= zip(inner.invars, values, strict=True)

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, jax.extend.core.Literal) else known[atom]

    for equation in inner.eqns:
        operands = [value(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        made_of = next((params[k] for k in ("jaxpr", "call_jaxpr") if k in params), None)
        if equation.primitive is linear.PRIMITIVE:
            inner_ones = jax.make_jaxpr(functools.partial(linear.apply_equation, **params))(
                *operands
            )
            results = _evaluate(inner_ones, operands, found)
        elif name.startswith(ffi.TARGET_PREFIX):
            record = op.OPS[name.removeprefix(ffi.TARGET_PREFIX)]
            results = _op(record, operands, found, **params)
        elif name in INNER and made_of is not None:
            closed = made_of if hasattr(made_of, "consts") else _closed(made_of)
            results = _evaluate(closed, operands, found)
        else:
            results = _one(inner, equation, operands)
        known |= zip(equation.outvars, results, strict=True)
    return [value(atom) for atom in inner.outvars]


def _one(inner: Any, equation: Any, operands: list[Any]) -> list[Any]:
    """Of an equation of a jaxpr that is applied as it is."""
    literal = [isinstance(atom, jax.extend.core.Literal) for atom in equation.invars]
    names = [v for v, fixed in zip(equation.invars, literal, strict=True) if not fixed]
    values = [v for v, fixed in zip(operands, literal, strict=True) if not fixed]
    alone = inner.replace(
        constvars=[],
        invars=names,
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=inner.debug_info.with_unknown_names(),
    )
    return jax.extend.core.jaxpr_as_fun(_closed(alone))(*values)


def _closed(jaxpr: Any) -> Any:
    return jax.extend.core.ClosedJaxpr(jaxpr, ())


def _op(
    record: Any,
    leaves: list[Any],
    found: list[tuple[str, Array]],
    *,
    tree: Any,
    implementation: str | None,
    devices: Any,
    **attributes: Any,
) -> list[Any]:
    del implementation, devices

    def plain(*leaves: Any) -> Any:
        return record.xla(**tree.unflatten(leaves)._asdict(), **attributes)

    for part in jax.tree.leaves(tree.unflatten(leaves), is_leaf=lambda part: isinstance(part, Csr)):
        if isinstance(part, Csr) and part.rows is not None:
            found.append((record.name, _ascend(part.rows, part.num_rows)))
    return _evaluate(jax.make_jaxpr(plain)(*leaves), leaves, found)


def _ascend(rows: Array, num_rows: int) -> Array:
    """Padding stands at the ends, and what is between ascends."""
    valid = in_range(rows, num_rows)
    both = valid[1:] & valid[:-1]
    starts = jnp.count_nonzero(valid[1:] & ~valid[:-1]) + jnp.count_nonzero(valid[:1])
    return (starts <= 1) & jnp.all(~both | (rows[1:] >= rows[:-1]))
