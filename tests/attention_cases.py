"""What the tests of attention compare with: definitions in plain JAX, and all their derivatives.

An op of attention is described by two functions of (form, graph, operands by name), where a form
says what is static: the op, and its definition in plain JAX. :func:`check_derivatives` compares all
derivatives. It compiles one program for each form and for what is differentiated, one more for
each form's definition, and none for another graph of the same shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import assert_close, setting
from op_suite import KERNELS

Attend = Callable[[Any, Any, Mapping[str, Any]], tuple[Any, ...]]
SLOPE = 0.2

on_cuda = pytest.mark.skipif(
    "cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU here"
)


def compare(got, want, what, tolerance=1e-11):
    assert jax.tree.structure(got) == jax.tree.structure(want), what
    for i, (one, other) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert_close(one, other, tolerance, f"{what}, {i}")


def softmax(score, valid, rows, size) -> tuple[Any, Any]:
    """Of each entry in its row; and the logarithms of what rows are divided by, 0 where they are 0.

    Args:
        score: ``(entries, heads)``.
        valid: likewise, which entries are not left out.
        rows: the row of each, of those that are left out any.
        size: number of rows.
    """
    at = jnp.where((rows >= 0) & (rows < size), rows, size)
    tops = jax.ops.segment_max(jnp.where(valid, score, -jnp.inf), at, size + 1)
    tops = jax.lax.stop_gradient(jnp.where(jnp.isfinite(tops), tops, 0))
    powers = jnp.where(valid, jnp.exp(jnp.where(valid, score - tops[at], 0)), 0)
    sums = jax.ops.segment_sum(powers, at, size + 1)
    sums, tops = jnp.where(sums > 0, sums, 1), jnp.where(sums > 0, tops, 0)
    return powers / sums[at], (jnp.log(sums) + tops)[:size]


def picked(x, ids):
    """Rows, zeros where an id is out of range."""
    valid = (ids >= 0) & (ids < len(x))
    rows = jnp.asarray(x)[jnp.where(valid, ids, 0)]
    return jnp.where(valid.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


# --- Derivatives ---------------------------------------------------------------------------------


def loss(results):
    return sum(jnp.sum(jnp.sin(x + i)) for i, x in enumerate(results))


def _moving(attend, form, graph, operands) -> Callable[[Any], Any]:
    """A function of those operands that have derivatives."""
    return lambda moving: attend(form, graph, {**operands, **moving})


def _dot(one, other):
    return sum(jnp.vdot(one[name], other[name]) for name in one)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def first(attend, form, to, graph, operands, moved):
    """Results, their tangents, and the loss's gradients: in some operands, the others constant."""
    function = _moving(attend, form, graph, operands)
    moving, along = ({name: each[name] for name in to} for each in (operands, moved))
    results, tangents = jax.jvp(function, (moving,), (along,))
    return results, tangents, jax.grad(lambda x: loss(function(x)))(moving)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def second(attend, form, to, graph, operands, moved):
    """Of these gradients forward along all operands, and in reverse to all."""

    def gradients(operands):
        moving = {name: operands[name] for name in to}
        return jax.grad(lambda x: loss(_moving(attend, form, graph, operands)(x)))(moving)

    forward = jax.jvp(gradients, (operands,), (moved,))[1]
    return forward, jax.grad(lambda x: _dot(gradients(x), moved))(operands)


def definition(attend, form, graph, operands, moved):
    """Results, tangents, gradients, and the derivative of these along what is moved."""
    with setting("xla", "float64"):  # one program for all implementations
        return _definition(attend, form, graph, operands, moved)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _definition(attend, form, graph, operands, moved):
    function = functools.partial(attend, form, graph)
    gradients, change = jax.jvp(
        jax.grad(lambda x: loss(function(x))), *(({**x},) for x in (operands, moved))
    )
    return *jax.jvp(function, (operands,), (moved,)), gradients, change


def check_derivatives(ours, plain, form, graph, operands, moved, subsets, *, of_gradients=True):
    """Compares derivatives in subsets of the operands while the others are constants."""
    change = definition(plain, form, graph, operands, moved)[3]
    for names in subsets:
        to = tuple(names)
        part = {name: x if name in to else np.zeros_like(x) for name, x in moved.items()}
        results, tangents, gradients, part_change = definition(plain, form, graph, operands, part)
        want = results, tangents, {name: gradients[name] for name in to}
        compare(first(ours, form, to, graph, operands, moved), want, f"{to}")
        if of_gradients:
            want = {name: change[name] for name in to}, part_change
            compare(second(ours, form, to, graph, operands, moved), want, f"gradients to {to}")


def check_batch(ours, plain, form, graphs, operands, batched, to, *, graph_axis=None):
    """Compares results and gradients of a batch, of operands and maybe of graphs, one by one."""
    axes = {name: 0 if name in batched else None for name in operands}
    names = tuple(to)

    def run(graph, operands):
        function = _moving(ours, form, graph, operands)
        moving = {name: operands[name] for name in names}
        return function(moving), jax.grad(lambda x: loss(function(x)))(moving)

    got = jax.jit(jax.vmap(run, (graph_axis, axes)))(graphs, operands)
    for i in range(len(jax.tree.leaves(got)[0])):
        at = {name: x[i] if axes[name] == 0 else x for name, x in operands.items()}
        graph = graphs if graph_axis is None else jax.tree.map(lambda x, i=i: x[i], graphs)
        no_tangents = jax.tree.map(np.zeros_like, at)
        results, _, gradients, _ = definition(plain, form, graph, at, no_tangents)
        want = results, {name: gradients[name] for name in names}
        compare(jax.tree.map(lambda x, i=i: x[i], got), want, f"{batched}, {i}")
