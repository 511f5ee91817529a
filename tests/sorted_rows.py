"""A check of programs that the rows of matrices ascend, but for padding, as kernels require.

Values do not show it: by luck of size and platform, a kernel may sum unsorted rows rightly.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
from jax import Array

from jax_gnn._core import ffi, linear, op
from jax_gnn._core.csr import Csr
from jax_gnn._core.ids import in_range

INNER = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")


def unsorted_ops(function, *arguments) -> list[str]:
    """Return the names of the ops, also those within other ops, that get unsorted rows.

    Only rows are computed: all other results are dead code.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments)
    names: list[str] = []

    # The flags are computed in one jitted program; names are collected while it is traced.
    def flags(*leaves) -> list[Array]:
        names.clear()
        checks: list[tuple[str, Array]] = []
        _evaluate(jaxpr, leaves, checks)
        names.extend(name for name, _ in checks)
        return [flag for _, flag in checks]

    are_sorted = jax.jit(flags)(*jax.tree.leaves(arguments))
    assert names, "no op has rows"
    return sorted({name for name, flag in zip(names, are_sorted, strict=True) if not flag})


def _evaluate(jaxpr, values, checks: list[tuple[str, Array]]) -> list[Any]:
    inner = jaxpr.jaxpr
    values_by_var = dict(zip(inner.constvars, jaxpr.consts, strict=True))
    values_by_var |= zip(inner.invars, values, strict=True)

    def value(atom) -> Any:
        return atom.val if isinstance(atom, jax.extend.core.Literal) else values_by_var[atom]

    for equation in inner.eqns:
        operands = [value(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        inner_jaxpr = next((params[k] for k in ("jaxpr", "call_jaxpr") if k in params), None)
        if equation.primitive is linear.PRIMITIVE:
            linear_jaxpr = jax.make_jaxpr(functools.partial(linear.apply_equation, **params))(
                *operands
            )
            results = _evaluate(linear_jaxpr, operands, checks)
        elif name.startswith(ffi.TARGET_PREFIX):
            record = op.OPS[name.removeprefix(ffi.TARGET_PREFIX)]
            results = _op(record, operands, checks, **params)
        elif name in INNER and inner_jaxpr is not None:
            closed = inner_jaxpr if hasattr(inner_jaxpr, "consts") else _closed(inner_jaxpr)
            results = _evaluate(closed, operands, checks)
        else:
            results = _apply_equation(inner, equation, operands)
        values_by_var |= zip(equation.outvars, results, strict=True)
    return [value(atom) for atom in inner.outvars]


def _apply_equation(inner, equation, operands) -> list[Any]:
    """Return the results of an equation that is no op."""
    literal = [isinstance(atom, jax.extend.core.Literal) for atom in equation.invars]
    names = [v for v, is_literal in zip(equation.invars, literal, strict=True) if not is_literal]
    values = [v for v, is_literal in zip(operands, literal, strict=True) if not is_literal]
    single = inner.replace(
        constvars=[],
        invars=names,
        outvars=equation.outvars,
        eqns=[equation],
        debug_info=inner.debug_info.with_unknown_names(),
    )
    return jax.extend.core.jaxpr_as_fun(_closed(single))(*values)


def _closed(jaxpr) -> Any:
    return jax.extend.core.ClosedJaxpr(jaxpr, ())


def _op(
    record,
    leaves,
    checks: list[tuple[str, Array]],
    *,
    tree,
    implementation: str | None,
    devices,
    **attributes,
) -> list[Any]:
    del implementation, devices

    def plain(*leaves) -> Any:
        return record.xla(**tree.unflatten(leaves)._asdict(), **attributes)

    # Check the rows of the op itself, then look into its plain version.
    for csr in jax.tree.leaves(tree.unflatten(leaves), is_leaf=lambda csr: isinstance(csr, Csr)):
        if isinstance(csr, Csr) and csr.rows is not None:
            checks.append((record.name, _ascend(csr.rows, csr.num_rows)))
    return _evaluate(jax.make_jaxpr(plain)(*leaves), leaves, checks)


def _ascend(rows: Array, num_rows: int) -> Array:
    """Whether padding is at both ends, and ids between ascend."""
    valid = in_range(rows, num_rows)
    both_valid = valid[1:] & valid[:-1]
    starts = jnp.count_nonzero(valid[1:] & ~valid[:-1]) + jnp.count_nonzero(valid[:1])
    return (starts <= 1) & jnp.all(~both_valid | (rows[1:] >= rows[:-1]))
