"""Formulas of layers in numpy, and the check of gradients against their slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from op_spec import random_like, slope


def double(array: Any) -> np.ndarray:
    """An array or a parameter in float64, or complex numbers as they are."""
    array = np.asarray(array[...])
    return array.astype(np.result_type(array, np.float64))


def linear(layer: nnx.Linear, x: np.ndarray) -> np.ndarray:
    return x @ double(layer.kernel) + (0 if layer.bias is None else double(layer.bias))


def relu(x: np.ndarray) -> np.ndarray:
    return np.where(x.real > 0, x, 0)


def inverse(x: np.ndarray) -> np.ndarray:
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def unit(x: np.ndarray) -> np.ndarray:
    return x * inverse(np.sqrt((x**2).sum(-1, keepdims=True)))


def made_of_rows(jaxpr: Any, rows: int) -> list[str]:
    """What makes arrays of so many rows, of several features, in order."""
    found = []
    for equation in jaxpr.eqns:
        inner = [each.jaxpr for each in equation.params.values() if hasattr(each, "jaxpr")]
        shape = equation.outvars[0].aval.shape
        if inner:
            found += [name for each in inner for name in made_of_rows(each, rows)]
        elif len(shape) == 2 and shape[0] == rows and shape[1] > 1:
            found.append(equation.primitive.name)
    return found


def check_gradient(
    rng: np.random.Generator,
    layer: nnx.Module,
    call: Callable[..., jax.Array],
    formula: Callable[..., np.ndarray],
    *arrays: Any,
) -> None:
    """Compares gradients to float64 parameters and arrays with the slope of the layer's formula.

    Both are functions of (layer, *arrays). The slope is by complex step, exact to rounding, along
    random directions, so that neither the size of a step nor a kink nearby matters: the formula
    must take complex numbers, and order them by their real part.
    """
    graphdef, params, rest = nnx.split(layer, nnx.Param, ...)
    values = jax.tree.map(double, (params, *arrays))
    (probe,) = random_like(rng, [formula(layer, *values[1:])], "float64")

    @jax.jit
    def gradient(*values: Any) -> Any:
        def loss(params: Any, *arrays: Any) -> jax.Array:
            return jnp.vdot(call(nnx.merge(graphdef, params, rest), *arrays), probe)

        return jax.grad(loss, argnums=tuple(range(len(values))))(*values)

    def plain_loss(params: Any, *arrays: Any) -> np.ndarray:
        return np.sum(formula(nnx.merge(graphdef, params, rest), *arrays) * probe)

    leaves, structure = jax.tree.flatten(values)
    gradients = jax.tree.leaves(gradient(*values))
    for _ in range(3):
        directions = random_like(rng, leaves, "float64")
        want = slope(plain_loss, values, structure.unflatten(directions))
        terms = [np.ravel(g * d) for g, d in zip(gradients, directions, strict=True)]
        terms = np.concatenate(terms)
        assert abs(terms.sum() - want) <= 1e-11 * np.abs(terms).sum(), (terms.sum(), want)
