"""Checks of attention against definitions in plain JAX, with all their derivatives.

Two functions of (form, graph, operands by name) describe an op of attention: the op, and its
definition in plain JAX. A *form* holds the static options. :func:`check_derivatives` compares all
derivatives. It compiles a program for each form and set of differentiated operands and one for each
definition, and none for another graph of the same shapes.
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
    for i, (a, b) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert_close(a, b, tolerance, f"{what}, {i}")


def softmax(score, valid, rows, size) -> tuple[Any, Any]:
    """Return the softmax within each row, and the logarithms of denominators, 0 for empty rows.

    Args:
        score: ``(entries, heads)`` scores.
        valid: ``(entries, heads)``, False for entries that are left out.
        rows: ``(entries,)`` rows; any number for entries that are left out.
        size: number of rows.
    """
    # Entries of no row are summed in a row behind the last.
    at = jnp.where((rows >= 0) & (rows < size), rows, size)
    tops = jax.ops.segment_max(jnp.where(valid, score, -jnp.inf), at, size + 1)
    tops = jax.lax.stop_gradient(jnp.where(jnp.isfinite(tops), tops, 0))
    powers = jnp.where(valid, jnp.exp(jnp.where(valid, score - tops[at], 0)), 0)
    sums = jax.ops.segment_sum(powers, at, size + 1)
    # Empty rows have logarithm 0 in place of -inf, which would spoil gradients.
    sums, tops = jnp.where(sums > 0, sums, 1), jnp.where(sums > 0, tops, 0)
    return powers / sums[at], (jnp.log(sums) + tops)[:size]


def picked(x, ids):
    """Return rows of x, zeros where an id is out of range."""
    valid = (ids >= 0) & (ids < len(x))
    rows = jnp.asarray(x)[jnp.where(valid, ids, 0)]
    return jnp.where(valid.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


# --- Derivatives ---------------------------------------------------------------------------------


def loss(results):
    return sum(jnp.sum(jnp.sin(x + i)) for i, x in enumerate(results))


def _moving(attend, form, graph, operands) -> Callable[[Any], Any]:
    """Return a function of the differentiated operands."""
    return lambda moving: attend(form, graph, {**operands, **moving})


def _dot(a, b):
    return sum(jnp.vdot(a[name], b[name]) for name in a)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def first(attend, form, to, graph, operands, directions):
    """Return results, tangents, and gradients of the loss, in the operands named by ``to``."""
    function = _moving(attend, form, graph, operands)
    primals, tangents_in = (
        {name: arrays[name] for name in to} for arrays in (operands, directions)
    )
    results, tangents = jax.jvp(function, (primals,), (tangents_in,))
    return results, tangents, jax.grad(lambda x: loss(function(x)))(primals)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def second(attend, form, to, graph, operands, directions):
    """Return the derivatives of these gradients in all operands, forward and in reverse."""

    def gradients(operands):
        moving = {name: operands[name] for name in to}
        return jax.grad(lambda x: loss(_moving(attend, form, graph, operands)(x)))(moving)

    forward = jax.jvp(gradients, (operands,), (directions,))[1]
    return forward, jax.grad(lambda x: _dot(gradients(x), directions))(operands)


def definition(attend, form, graph, operands, directions):
    """Return results, tangents, gradients, and the derivative of these along directions."""
    with setting("xla", "float64"):  # one program for all implementations
        return _definition(attend, form, graph, operands, directions)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _definition(attend, form, graph, operands, directions):
    function = functools.partial(attend, form, graph)
    gradients, second_order = jax.jvp(
        jax.grad(lambda x: loss(function(x))), *(({**x},) for x in (operands, directions))
    )
    return *jax.jvp(function, (operands,), (directions,)), gradients, second_order


def check_derivatives(
    ours, plain, form, graph, operands, directions, subsets, *, of_gradients=True
):
    """Compare derivatives in subsets of the operands."""
    second_order = definition(plain, form, graph, operands, directions)[3]
    for names in subsets:
        to = tuple(names)
        partial = {name: x if name in to else np.zeros_like(x) for name, x in directions.items()}
        results, tangents, gradients, second_partial = definition(
            plain, form, graph, operands, partial
        )
        want = results, tangents, {name: gradients[name] for name in to}
        compare(first(ours, form, to, graph, operands, directions), want, f"{to}")
        if of_gradients:
            want = {name: second_order[name] for name in to}, second_partial
            compare(second(ours, form, to, graph, operands, directions), want, f"gradients to {to}")


def check_batch(ours, plain, form, graphs, operands, batched, to, *, graph_axis=None):
    """Compare results and gradients of a batch, of operands or also graphs, with single calls."""
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
