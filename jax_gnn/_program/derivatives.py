"""Functions of arrays that are differentiated as other functions of equal values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_gnn._core.op import replace_items


def differentiated_as(
    function: Callable[..., Any], derivative: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function of pytrees that is differentiated as another function of equal values."""

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

            return jax.jvp(partial, [primals[i] for i in active], [tangents[i] for i in active])

        values.defjvp(jvp, symbolic_zeros=True)
        return values(*leaves)

    return call
