"""Functions that are linear in some operands: rules that follow from them and their transposes."""

from __future__ import annotations

import functools
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
def case(request, rng) -> Any:
    """Yield a function, residuals, moving operands and attributes, random in float64."""
    record = LINEARS[request.param.split(",")[0]]
    with setting(None, "float64"):
        if record is pair_attention.pair_attention_jvp:
            residuals, moving, attributes = pair_sample(rng)
        else:
            *operands, attributes = LINEAR_SAMPLES[request.param]
            residuals, moving = fresh(operands, rng)
        yield record, residuals, moving, attributes


def fresh(operands, rng) -> Any:
    """Replace all floating-point arrays by random numbers."""
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape) if np.issubdtype(x.dtype, np.floating) else x, operands
    )


def plain_of(record) -> Any:
    """Return the function of a record, with operands traced as within the primitive."""

    def plain(residuals, moving, **attributes) -> Any:
        return jax.jit(functools.partial(record.function, **attributes))(residuals, moving)

    return plain


def pair_sample(rng) -> Any:
    """Return operands whose residuals include results, which the transpose relies on."""
    samples = floats(5, 4), floats(5, 4), floats(4, 4), floats(2, 4, 4), floats(2, 4), floats(4, 1)
    operands, moving = fresh(samples, rng), pair_attention.Operands(*fresh(samples, rng), None)
    attributes = {"heads": 1, **PRECISION}
    held = pair_attention.Operands(*operands, TYPED)
    residuals = pair_attention.Residuals(held, *pair_attention._steps(held, **attributes))
    return residuals, moving, attributes


def subsets(moving) -> list[Any]:
    """Return all moving operands, and each alone."""
    present = [i for i, operand in enumerate(moving) if operand is not None]
    kind = getattr(type(moving), "_make", tuple)
    alone = [kind(x if i == only else None for i, x in enumerate(moving)) for only in present]
    return [moving, *alone] if len(present) > 1 else alone


def ones_like(results, rng) -> list[Any]:
    return [jnp.asarray(rng.normal(size=result.shape), result.dtype) for result in results]


def assert_close(got, want) -> None:
    jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_transposes_are_those_of_the_function(case, implementation, rng) -> None:
    record, residuals, moving, attributes = case

    def ours(moving) -> Any:
        return record(residuals, moving, implementation=implementation, **attributes)

    def plain(moving) -> Any:
        with jax_gnn.implementation(implementation):
            return plain_of(record)(residuals, moving, **attributes)

    # JAX transposes the plain function equation by equation: the reference.
    def results(function, part, cts) -> Any:
        both = jax.jit(lambda x, cts: (function(x), jax.linear_transpose(function, x)(cts)))
        return both(part, cts)

    for part in subsets(moving):
        shapes = jax.eval_shape(plain, part)
        assert [(x.shape, x.dtype) for x in record.result(residuals, part, **attributes)] == [
            (x.shape, x.dtype) for x in shapes
        ]
        cts = ones_like(shapes, rng)
        assert_close(results(ours, part, cts), results(plain, part, cts))


def test_derivatives_in_what_is_known(case, rng) -> None:
    record, residuals, moving, attributes = case
    leaves, tree = jax.tree.flatten(residuals)
    floating = [i for i, x in enumerate(leaves) if np.issubdtype(x.dtype, np.floating)]
    along = fresh([leaves[i] for i in floating], rng), fresh(moving, rng)

    def of(function) -> Any:
        def moved(values, moving) -> Any:
            every = list(leaves)
            for i, value in zip(floating, values, strict=True):
                every[i] = value
            return function(tree.unflatten(every), moving, **attributes)

        gradient = jax.grad(lambda *x: total(moved(*x)), (0, 1))
        at = [leaves[i] for i in floating], moving
        return jax.jit(lambda *at: (jax.jvp(moved, at, along), gradient(*at)))(*at)

    assert_close(of(record), of(plain_of(record)))


def total(results) -> Any:
    return sum(jnp.sum(jnp.sin(x)) for x in results)


@pytest.mark.parametrize("batched", ["known", "moving", "both", "nested"])
def test_batches(case, batched, rng) -> None:
    """Values and gradients, to operands with a batch and without."""
    record, residuals, moving, attributes = case
    size = 3

    def of_batch(x) -> Any:
        many = np.broadcast_to(x, (size, *x.shape))
        return many * rng.normal(size=(size, *[1] * x.ndim)) if is_float(x) else x

    def axes(operands, is_batched) -> Any:
        return jax.tree.map(lambda x: 0 if is_batched and is_float(x) else None, operands)

    in_known, in_moving = batched != "moving", batched != "known"
    known_axes, moving_axes = axes(residuals, in_known), axes(moving, in_moving)
    if in_known and isinstance(residuals, pair_attention.Residuals):
        operands = pair_attention.Operands(*jax.tree.map(of_batch, residuals.operands[:6]), TYPED)
        # Residuals that are results must belong to the batched operands.
        steps = functools.partial(pair_attention._steps, **attributes)
        steps_of_batch = jax.vmap(steps, (pair_attention.Operands(*[0] * 6, None),))(operands)
        residuals = pair_attention.Residuals(operands, *steps_of_batch)
        known_axes = pair_attention.Residuals(pair_attention.Operands(*[0] * 6, None), *[0] * 4)
    elif in_known:
        residuals = jax.tree.map(of_batch, residuals)
    moving = jax.tree.map(of_batch, moving) if in_moving else moving

    def of(function) -> Any:
        def each(residuals, moving) -> Any:
            return function(residuals, moving, **attributes)

        many = jax.vmap(each, (known_axes, moving_axes))
        if batched == "nested":
            inner = many

            def many(residuals, moving) -> Any:
                return jax.vmap(lambda factor: inner(residuals, scaled(moving, factor)))(
                    jnp.arange(2.0)
                )

        def value(moving) -> Any:
            return many(residuals, moving)

        return value(moving), jax.grad(lambda moving: total(value(moving)))(moving)

    got, want = (jax.jit(lambda f=f: of(f))() for f in (record, plain_of(record)))
    assert_close(got, want)


def is_float(x) -> bool:
    return np.issubdtype(x.dtype, np.floating)


def scaled(operands, factor) -> Any:
    return jax.tree.map(lambda x: (1 + factor) * x, operands)


# --- The machinery, with a function of its own ----------------------------------------------------


def product(residuals, moving) -> Any:
    a, (x, y) = residuals, moving
    return [*([a @ x] if x is not None else []), *([jnp.sum(a) * y] if y is not None else [])]


def result(residuals, moving) -> Any:
    return jax.eval_shape(product, residuals, moving)


def wrong(residuals, moving, cts) -> Any:
    """Return twice the transpose, so that results show its use."""
    by_x = 0 if moving[0] is None else 1
    return [
        None if moving[0] is None else 2 * residuals.T @ cts[0],
        None if moving[1] is None else 2 * jnp.sum(residuals) * cts[by_x],
    ]


@pytest.fixture
def twice() -> Any:
    record = Linear(name="twice", result=result, function=product, transpose=wrong)
    yield record
    del LINEARS["twice"]


def test_the_transpose_given_is_used_in_batches_too(twice) -> None:
    a, x, y = floats(2, 3), floats(3), floats(4)
    plain = jax.grad(lambda x, y: total_of(product(a, (x, y))), (0, 1))
    ours = jax.grad(lambda x, y: total_of(twice(a, (x, y))), (0, 1))
    double = functools.partial(jax.tree.map, lambda g: 2 * g)
    jax.tree.map(np.testing.assert_allclose, ours(x, y), double(plain(x, y)))
    xs = np.stack([x, -x])
    by_batch = [jax.vmap(function, (0, None))(xs, y) for function in (ours, plain)]
    jax.tree.map(np.testing.assert_allclose, by_batch[0], double(by_batch[1]))

    def summed(function) -> Any:
        many = jax.vmap(lambda x, y: total_of(function(a, (x, y))), (0, None))
        return jax.grad(lambda x, y: jnp.sum(many(x, y)), (0, 1))(xs, y)

    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        summed(twice),
        double(summed(product)),
    )


def test_zero_tangents_are_dropped(twice) -> None:
    """A zero tangent is dropped, but for an operand that alone has a batch."""
    a, x, y = floats(2, 3), floats(3), floats(4)
    (only,) = jax.make_jaxpr(lambda: twice(a, (None, y)))().eqns[-1:]
    assert only.primitive is PRIMITIVE and len(only.invars) == 2
    ys = np.stack([y, -y])

    def moved(x) -> Any:
        return jax.vmap(lambda y: twice(a, (x, y))[0])(ys)

    got = jax.jvp(moved, (x,), (x,))[1]
    np.testing.assert_allclose(got, np.stack([a @ x] * 2), rtol=1e-6)


def total_of(results) -> Any:
    return sum(jnp.sum(x) for x in results)


def test_wrong_implementations(twice) -> None:
    with pytest.raises(ValueError, match="implementation"):
        twice(floats(2, 3), (floats(3), None), implementation="gpu")


def test_sharded_operands(twice) -> None:
    """A replicated operand of a sharded computation gets the sum of all gradients."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    a, x = floats(2, 3), floats(3)
    rows, everywhere = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()

    def each(a, x) -> Any:
        return twice(a, (x, None))[0]

    split = jax.shard_map(each, mesh=mesh, in_specs=(rows, everywhere), out_specs=rows)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(split(a, x))))(x)
    np.testing.assert_allclose(gradient, 2 * a.sum(0), rtol=1e-6)
