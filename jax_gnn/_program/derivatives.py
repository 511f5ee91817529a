"""Functions of arrays whose derivatives are those of other functions of equal values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core.linear import Linear
from jax_gnn._core.op import replace_items
from jax_gnn._core.sharding import replicate
from jax_gnn._program.reference import is_empty, spread

# Rows that do not count have no cotangents, which are passed on as they are.
_zero_uncounted = Linear(
    name="zero_uncounted",
    result=lambda counted, moving: list(moving),
    function=lambda counted, moving: [
        jnp.where(spread(counted, x), x, jnp.zeros((), x.dtype)) for x in moving
    ],
    transpose=lambda counted, moving, cts: cts,
)


def zero_where_uncounted(x: Array, counted: Array | None) -> Array:
    """Zero rows that do not count: their content is arbitrary."""
    if counted is None or is_empty(x):
        return x
    zeroed: Array = _zero_uncounted(counted, (replicate(x),))[0]
    return zeroed


def differentiated_as(
    function: Callable[..., Any], derivative: Callable[..., Any], *, keeps_values: bool = False
) -> Callable[..., Any]:
    """Return a function of pytrees that is differentiated as another function of equal values.

    Args:
        function: The function.
        derivative: The function that is differentiated.
        keeps_values: Whether the function makes the values under differentiation, too.
    """

    def call(*operands: Array) -> Any:
        leaves, tree = jax.tree.flatten(operands)

        @jax.custom_jvp
        def values(*leaves: Array) -> Any:
            return function(*jax.tree.unflatten(tree, leaves))

        def jvp(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Any, Any]:
            active = [i for i, x in enumerate(tangents) if not isinstance(x, SymbolicZero)]

            def partial(*some: Array) -> Any:
                leaves = replace_items(list(primals), active, some)
                return derivative(*jax.tree.unflatten(tree, leaves))

            xs, directions = ([leaves[i] for i in active] for leaves in (primals, tangents))
            y, tangent = jax.jvp(partial, xs, directions)
            return values(*primals) if keeps_values else y, tangent

        values.defjvp(jvp, symbolic_zeros=True)
        return values(*leaves)

    return call
