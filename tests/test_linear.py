"""Functions that are linear in some operands: rules that follow from them and their transposes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import setting
from op_suite import IMPLEMENTATIONS
from primitive_cases import LINEAR_SAMPLES, TYPED, floats

import jax_gnn
from jax_gnn._core.linear import LINEARS, PRIMITIVE, Linear
from jax_gnn._ops.relational_attention import pair_attention

TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}
PRECISION = {"precision": jax.lax.Precision.HIGHEST}


@pytest.fixture(params=[*LINEAR_SAMPLES, pair_attention.pair_attention_jvp.name])
def case(request: pytest.FixtureRequest, rng: np.random.Generator) -> Any:
    """A function, its known operands, those that move, and its attributes; random in float64."""
    record = LINEARS[request.param.split(",")[0]]
    with setting(None, "float64"):
        if record is pair_attention.pair_attention_jvp:
            known, moving, attributes = pair_sample(rng)
        else:
            *operands, attributes = LINEAR_SAMPLES[request.param]
            known, moving = fresh(operands, rng)
        yield record, known, moving, attributes


def fresh(operands: Any, rng: np.random.Generator) -> Any:
    """Random numbers in place of all that are no ids."""
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape) if np.issubdtype(x.dtype, np.floating) else x, operands
    )


def plain_of(record: Linear) -> Any:
    """Its function alone, whose operands are traced, as they are within the primitive."""

    def plain(known: Any, moving: Any, **attributes: Any) -> Any:
        return jax.jit(functools.partial(record.function, **attributes))(known, moving)

    return plain


def pair_sample(rng: np.random.Generator) -> Any:
    """What is known of it includes results, which its transpose relies on."""
    each = floats(5, 4), floats(5, 4), floats(4, 4), floats(2, 4, 4), floats(2, 4), floats(4, 1)
    operands, moving = fresh(each, rng), pair_attention.Operands(*fresh(each, rng), None)
    attributes = {"heads": 1, **PRECISION}
    held = pair_attention.Operands(*operands, TYPED)
    known = pair_attention.Residuals(held, *pair_attention._steps(held, **attributes))
    return known, moving, attributes


def subsets(moving: Sequence[Any]) -> list[Any]:
    """All that moves, and each alone."""
    given = [i for i, each in enumerate(moving) if each is not None]
    kind = getattr(type(moving), "_make", tuple)
    alone = [kind(x if i == only else None for i, x in enumerate(moving)) for only in given]
    return [moving, *alone] if len(given) > 1 else alone


def ones_like(results: Any, rng: np.random.Generator) -> list[Any]:
    return [jnp.asarray(rng.normal(size=each.shape), each.dtype) for each in results]


def assert_close(got: Any, want: Any) -> None:
    jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_transposes_are_those_of_the_function(case: Any, implementation: str, rng: Any) -> None:
    record, known, moving, attributes = case

    def ours(moving: Any) -> Any:
        return record(known, moving, implementation=implementation, **attributes)

    def plain(moving: Any) -> Any:
        with jax_gnn.implementation(implementation):
            return plain_of(record)(known, moving, **attributes)

    for part in subsets(moving):
        assert_close(ours(part), plain(part))
        shapes = jax.eval_shape(plain, part)
        assert [(x.shape, x.dtype) for x in record.result(known, part, **attributes)] == [
            (x.shape, x.dtype) for x in shapes
        ]
        cts = ones_like(shapes, rng)
        got = jax.jit(jax.linear_transpose(ours, part))(cts)
        assert_close(got, jax.jit(jax.linear_transpose(plain, part))(cts))


def test_derivatives_in_what_is_known(case: Any, rng: np.random.Generator) -> None:
    record, known, moving, attributes = case
    leaves, tree = jax.tree.flatten(known)
    floating = [i for i, x in enumerate(leaves) if np.issubdtype(x.dtype, np.floating)]
    along = fresh([leaves[i] for i in floating], rng), fresh(moving, rng)

    def of(function: Any) -> Any:
        def moved(values: Any, moving: Any) -> Any:
            every = list(leaves)
            for i, value in zip(floating, values, strict=True):
                every[i] = value
            return function(tree.unflatten(every), moving, **attributes)

        at = [leaves[i] for i in floating], moving
        value, tangent = jax.jit(lambda: jax.jvp(moved, at, along))()
        return value, tangent, jax.jit(jax.grad(lambda *x: total(moved(*x)), (0, 1)))(*at)

    assert_close(of(record), of(plain_of(record)))


def total(results: Sequence[Any]) -> Any:
    return sum(jnp.sum(jnp.sin(x)) for x in results)


@pytest.mark.parametrize("batched", ["known", "moving", "both", "nested"])
def test_batches(case: Any, batched: str, rng: np.random.Generator) -> None:
    """Values and gradients, to operands with a batch and without."""
    record, known, moving, attributes = case
    size = 3

    def of_batch(x: Any) -> Any:
        many = np.broadcast_to(x, (size, *x.shape))
        return many * rng.normal(size=(size, *[1] * x.ndim)) if is_float(x) else x

    def axes(operands: Any, there: bool) -> Any:
        return jax.tree.map(lambda x: 0 if there and is_float(x) else None, operands)

    in_known, in_moving = batched != "moving", batched != "known"
    known_axes, moving_axes = axes(known, in_known), axes(moving, in_moving)
    if in_known and isinstance(known, pair_attention.Residuals):
        operands = pair_attention.Operands(*jax.tree.map(of_batch, known.operands[:6]), TYPED)
        steps = functools.partial(pair_attention._steps, **attributes)
        found = jax.vmap(steps, (pair_attention.Operands(*[0] * 6, None),))(operands)
        known = pair_attention.Residuals(operands, *found)
        known_axes = pair_attention.Residuals(pair_attention.Operands(*[0] * 6, None), *[0] * 4)
    elif in_known:
        known = jax.tree.map(of_batch, known)
    moving = jax.tree.map(of_batch, moving) if in_moving else moving

    def of(function: Any) -> Any:
        def each(known: Any, moving: Any) -> Any:
            return function(known, moving, **attributes)

        many = jax.vmap(each, (known_axes, moving_axes))
        if batched == "nested":
            inner = many

            def many(known: Any, moving: Any) -> Any:
                return jax.vmap(lambda factor: inner(known, scaled(moving, factor)))(
                    jnp.arange(2.0)
                )

        def value(moving: Any) -> Any:
            return many(known, moving)

        return value(moving), jax.grad(lambda moving: total(value(moving)))(moving)

    got, want = (jax.jit(lambda f=f: of(f))() for f in (record, plain_of(record)))
    assert_close(got, want)


def is_float(x: Any) -> bool:
    return np.issubdtype(x.dtype, np.floating)


def scaled(operands: Any, factor: Any) -> Any:
    return jax.tree.map(lambda x: (1 + factor) * x, operands)


# --- The machinery, with a function of its own ----------------------------------------------------


def product(known: Any, moving: Any) -> Any:
    a, (x, y) = known, moving
    return [*([a @ x] if x is not None else []), *([jnp.sum(a) * y] if y is not None else [])]


def result(known: Any, moving: Any) -> Any:
    return jax.eval_shape(product, known, moving)


def wrong(known: Any, moving: Any, cts: Any) -> Any:
    """Twice the transpose: to see that it is asked."""
    by_x = 0 if moving[0] is None else 1
    return [
        None if moving[0] is None else 2 * known.T @ cts[0],
        None if moving[1] is None else 2 * jnp.sum(known) * cts[by_x],
    ]


@pytest.fixture
def twice() -> Any:
    record = Linear(name="twice", result=result, function=product, transpose=wrong)
    yield record
    del LINEARS["twice"]


def test_the_transpose_given_is_used_in_batches_too(twice: Linear) -> None:
    a, x, y = floats(2, 3), floats(3), floats(4)
    plain = jax.grad(lambda x, y: total_of(product(a, (x, y))), (0, 1))
    ours = jax.grad(lambda x, y: total_of(twice(a, (x, y))), (0, 1))
    double = functools.partial(jax.tree.map, lambda g: 2 * g)
    jax.tree.map(np.testing.assert_allclose, ours(x, y), double(plain(x, y)))
    xs = np.stack([x, -x])
    by_batch = [jax.vmap(function, (0, None))(xs, y) for function in (ours, plain)]
    jax.tree.map(np.testing.assert_allclose, by_batch[0], double(by_batch[1]))

    def summed(function: Any) -> Any:
        many = jax.vmap(lambda x, y: total_of(function(a, (x, y))), (0, None))
        return jax.grad(lambda x, y: jnp.sum(many(x, y)), (0, 1))(xs, y)

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        summed(twice),
        double(summed(product)),
    )


def test_one_that_stands_still_is_left_out(twice: Linear) -> None:
    """Of a tangent only; and a batch that only it has stays."""
    a, x, y = floats(2, 3), floats(3), floats(4)
    (only,) = jax.make_jaxpr(lambda: twice(a, (None, y)))().eqns[-1:]
    assert only.primitive is PRIMITIVE and len(only.invars) == 2
    ys = np.stack([y, -y])

    def moved(x: Any) -> Any:
        return jax.vmap(lambda y: twice(a, (x, y))[0])(ys)

    got = jax.jvp(moved, (x,), (x,))[1]
    np.testing.assert_allclose(got, np.stack([a @ x] * 2), rtol=1e-6)


def total_of(results: Sequence[Any]) -> Any:
    return sum(jnp.sum(x) for x in results)


def test_wrong_implementations(twice: Linear) -> None:
    with pytest.raises(ValueError, match="implementation"):
        twice(floats(2, 3), (floats(3), None), implementation="gpu")


def test_sharded_operands(twice: Linear) -> None:
    """A replicated operand of a sharded computation gets the sum of all gradients."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    a, x = floats(2, 3), floats(3)
    rows, everywhere = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()

    def each(a: Any, x: Any) -> Any:
        return twice(a, (x, None))[0]

    split = jax.shard_map(each, mesh=mesh, in_specs=(rows, everywhere), out_specs=rows)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(split(a, x))))(x)
    np.testing.assert_allclose(gradient, 2 * a.sum(0), rtol=1e-6)
