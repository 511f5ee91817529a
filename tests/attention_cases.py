"""What the tests of attention compare with: plain JAX for derivatives, plain numpy for kernels.

An op of attention is described by two functions of (form, graph, operands by name), where a form
says what is static: the op, and its definition in plain JAX. :func:`check_derivatives` compares all
derivatives. It compiles one program for each form and for what is differentiated, one more for
each form's definition, and none for another graph of the same shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import assert_close, setting, wide
from op_suite import KERNELS

from jax_gnn import Graph

Attend = Callable[[Any, Any, Mapping[str, Any]], tuple[Any, ...]]
SLOPE = 0.2

on_cuda = pytest.mark.skipif(
    "cuda" not in KERNELS, reason="CUDA kernels are neither emulated nor on a GPU here"
)


def compare(got: Any, want: Any, what: str, tolerance: float = 1e-11) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want), what
    for i, (one, other) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        assert_close(one, other, tolerance, f"{what}, {i}")


# --- Derivatives ---------------------------------------------------------------------------------


def loss(results: Iterable[Any]) -> Any:
    return sum(jnp.sum(jnp.sin(x + i)) for i, x in enumerate(results))


def _moving(attend: Attend, form: Any, graph: Any, operands: Any) -> Callable[[Any], Any]:
    """A function of those operands that have derivatives."""
    return lambda moving: attend(form, graph, {**operands, **moving})


def _dot(one: Any, other: Any) -> Any:
    return sum(jnp.vdot(one[name], other[name]) for name in one)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def first(attend: Attend, form: Any, to: Any, graph: Any, operands: Any, moved: Any) -> Any:
    """Results, their tangents, and the loss's gradients: in some operands, the others constant."""
    function = _moving(attend, form, graph, operands)
    moving, along = ({name: each[name] for name in to} for each in (operands, moved))
    results, tangents = jax.jvp(function, (moving,), (along,))
    return results, tangents, jax.grad(lambda x: loss(function(x)))(moving)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def second(attend: Attend, form: Any, to: Any, graph: Any, operands: Any, moved: Any) -> Any:
    """Of these gradients forward along all operands, and in reverse to all."""

    def gradients(operands: Any) -> Any:
        moving = {name: operands[name] for name in to}
        return jax.grad(lambda x: loss(_moving(attend, form, graph, operands)(x)))(moving)

    forward = jax.jvp(gradients, (operands,), (moved,))[1]
    return forward, jax.grad(lambda x: _dot(gradients(x), moved))(operands)


def definition(attend: Attend, form: Any, graph: Any, operands: Any, moved: Any) -> Any:
    """Results, tangents, gradients, and the derivative of these along what is moved."""
    with setting("xla", "float64"):  # one program for all implementations
        return _definition(attend, form, graph, operands, moved)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _definition(attend: Attend, form: Any, graph: Any, operands: Any, moved: Any) -> Any:
    function = functools.partial(attend, form, graph)
    gradients, change = jax.jvp(
        jax.grad(lambda x: loss(function(x))), *(({**x},) for x in (operands, moved))
    )
    return *jax.jvp(function, (operands,), (moved,)), gradients, change


def check_derivatives(
    ours: Attend,
    plain: Attend,
    form: Any,
    graph: Any,
    operands: Mapping[str, Any],
    moved: Mapping[str, Any],
    subsets: Iterable[Iterable[str]],
    *,
    of_gradients: bool = True,
) -> None:
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


def check_batch(
    ours: Attend,
    plain: Attend,
    form: Any,
    graphs: Any,
    operands: Mapping[str, Any],
    batched: Iterable[str],
    to: Iterable[str],
    *,
    graph_axis: int | None = None,
) -> None:
    """Compares results and gradients of a batch, of operands and maybe of graphs, one by one."""
    axes = {name: 0 if name in batched else None for name in operands}
    names = tuple(to)

    def run(graph: Any, operands: Any) -> Any:
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


# --- Kernels -------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Attention of edges that are no padding, in numpy. Arrays are ``(…, heads, features)``.

    Scores are those of ``kind``: of "gat" LeakyReLU(left + right), of "gatv2" ⟨factor,
    LeakyReLU(left + right)⟩, of "dot" factor · ⟨left, right⟩.
    """

    kind: str
    rows: np.ndarray
    cols: np.ndarray
    value: np.ndarray
    left: np.ndarray  # of rows; of "gat" without features
    right: np.ndarray  # of columns
    factor: Any
    scale: Any = 1  # (edges, heads)
    bias: Any = 0  # likewise, added to left + right of "gat", or to scores

    def scores(self) -> np.ndarray:
        left, right = self.left[self.rows], self.right[self.cols]
        if self.kind == "dot":
            return self.factor * (left * right).sum(-1) + self.bias
        z = left + right + (self.bias if self.kind == "gat" else 0)
        leaky = np.where(z > 0, z, SLOPE * z)
        return leaky if self.kind == "gat" else (self.factor * leaky).sum(-1) + self.bias

    def results(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What attention gives, the logarithms of what softmaxes are divided by, and softmaxes."""
        score, size = self.scores(), len(self.left)
        top = np.full((size, *score.shape[1:]), -np.inf)
        np.maximum.at(top, self.rows, score)
        top[np.isneginf(top)] = 0
        powers = np.exp(score - top[self.rows])
        sums = summed(powers, self.rows, size)
        weight = powers / np.where(sums > 0, sums, 1)[self.rows]
        terms = (weight * self.scale)[..., None] * self.value[self.cols]
        with np.errstate(divide="ignore"):
            return summed(terms, self.rows, size), np.log(sums) + top, weight

    def gradients(
        self, y: np.ndarray, ct: np.ndarray, lse_ct: Any, sign: Callable[..., Any] = np.positive
    ) -> dict[str, np.ndarray]:
        """Of ⟨ct, y⟩ + ⟨lse_ct, lse⟩, with y as rounded as a kernel gets it.

        With ``sign=np.abs`` what their terms add up to without their signs: what errors are
        relative to, however the terms cancel.
        """
        rows, cols, weight = self.rows, self.cols, self.results()[2]
        value, left, right, factor, ct, y, scale = map(
            sign, (self.value, self.left, self.right, self.factor, ct, y, self.scale)
        )
        of_rows = (ct * y).sum(-1) * (1 if sign is np.abs else -1) + sign(lse_ct)
        scale = np.broadcast_to(scale, weight.shape)
        to_score = weight * (scale * (ct[rows] * value[cols]).sum(-1) + of_rows[rows])
        to_value = summed((weight * scale)[..., None] * ct[rows], cols, len(value))
        z = self.left[rows] + self.right[cols] + (self.bias if self.kind == "gat" else 0)
        slope = np.where(z > 0, 1, SLOPE)
        if self.kind == "gat":
            ends = [to_score * slope] * 2
            to_factor = None
        elif self.kind == "gatv2":
            ends = [to_score[..., None] * slope * factor] * 2
            to_factor = (to_score[..., None] * sign(slope * z)).sum(0)
        else:
            ends = [to_score[..., None] * factor * each for each in (right[cols], left[rows])]
            to_factor = None
        found = {
            "value": to_value,
            "left": summed(ends[0], rows, len(left)),
            "right": summed(ends[1], cols, len(right)),
        }
        return found if to_factor is None else {**found, "factor": to_factor}


def case_of(
    kind: str,
    graph: Graph,
    left: Any,
    right: Any,
    third: Any,
    *,
    value: Any = None,
    edge_scale: Any = 1,
    edge_bias: Any = 0,
) -> Case:
    """Of what the public functions get, without padding; ``third``: the vector, or the values."""
    rows, cols = np.asarray(graph.rows), np.asarray(graph.cols)
    valid = (rows >= 0) & (rows < graph.num_dst) & (cols >= 0) & (cols < graph.num_src)
    left, right, third, scale, bias = wide((left, right, third, edge_scale, edge_bias))
    factor = third if kind == "gatv2" else left.shape[-1] ** -0.5
    if kind == "gatv2":
        third = right if value is None else wide([value])[0]
    scale, bias = (x[valid] if x.ndim else x for x in (scale, bias))
    return Case(kind, rows[valid], cols[valid], third, left, right, factor, scale, bias)


def check_gradients(
    case: Case,
    names: Iterable[str],
    gradients: Iterable[Any],
    y: Any,
    ct: Any,
    tolerance: float,
    lse_ct: Any = None,
    *,
    same: str = "",
) -> None:
    """Compares gradients, with errors relative to the largest sum of terms without their signs.

    Args:
        case: what is computed.
        names: of the gradients, as `Case.gradients` calls them.
        gradients: those of a kernel.
        y: its result, which gradients are made of.
        ct: the cotangent of that.
        tolerance: see above.
        lse_ct: of the logarithms.
        same: which of "value" and "right" has both gradients, where values are columns' keys.
    """
    y, ct = wide((y, ct))
    lse_ct = np.zeros(y.shape[:2]) if lse_ct is None else wide([lse_ct])[0]
    want, bounds = (case.gradients(y, ct, lse_ct, sign) for sign in (np.positive, np.abs))
    if same:
        for each in (want, bounds):
            each[same] = each["right"] + each["value"]
    for name, got in zip(names, gradients, strict=True):
        bound = tolerance * bounds[name].max(initial=1)
        np.testing.assert_allclose(wide([got])[0], want[name], rtol=0, atol=bound, err_msg=name)


def summed(terms: np.ndarray, at: np.ndarray, size: int) -> np.ndarray:
    result = np.zeros((size, *terms.shape[1:]))
    np.add.at(result, at, terms)
    return result
