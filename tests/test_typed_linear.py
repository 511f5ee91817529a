"""TypedLinear and TypePlan: typed rows in any order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from op_spec import OUT_OF_RANGE, assert_close, same_bits, stack

from flax_layers import TypedLinear
from jax_gnn import TypePlan

ROWS, TYPES, IN, OUT = 40, 5, 6, 3


def layer_of(**options) -> TypedLinear:
    options = {"precision": "highest", "bias_init": jax.random.normal} | options
    return TypedLinear(TYPES, IN, OUT, rngs=nnx.Rngs(0), **options)


@pytest.fixture
def types(rng: np.random.Generator) -> np.ndarray:
    """Types in any order, some out of range; type 3 has no rows."""
    types = rng.choice([0, 1, 2, 4], ROWS)
    types[rng.choice(ROWS, 7, replace=False)] = rng.choice([*OUT_OF_RANGE, TYPES], 7)
    return types.astype(np.int32)


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(ROWS, IN)).astype(np.float32)


def expected(layer, x, types) -> np.ndarray:
    kernel = np.asarray(layer.kernel[...], np.float64)
    result = np.zeros((*x.shape[:-1], layer.out_features))
    for i, t in enumerate(types):
        if 0 <= t < layer.num_types:
            result[i] = x[i] @ kernel[t]
            if layer.bias is not None:
                result[i] += np.asarray(layer.bias[...], np.float64)[t]
    return result


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("batch", [(), (2,), (3, 2)])
def test_equals_the_formula(rng, types, batch, use_bias):
    layer = layer_of(use_bias=use_bias)
    x = rng.normal(size=(ROWS, *batch, IN)).astype(np.float32)
    want = expected(layer, x, types)
    assert_close(layer(x, types), want, 1e-6, "types")
    assert_close(nnx.jit(layer)(x, types), want, 1e-6, "types, inside jit")
    plan = TypePlan.from_types(types, TYPES)
    assert_close(layer(x, plan), want, 1e-6, "plan")
    assert_close(nnx.jit(layer)(x, plan), want, 1e-6, "plan, inside jit")
    # Rows that are sorted already take a plan of sizes alone.
    order = np.asarray(plan.order)
    in_order = layer(x[order], TypePlan.from_sizes(plan.group_sizes))
    assert_close(in_order, want[order], 1e-6, "sorted rows")


def test_gradients(types, x):
    """Gradients of parameters and x equal those of gathered kernels."""
    layer = layer_of()
    valid = (types >= 0) & (types < TYPES)
    graph, parameters = nnx.split(layer)

    def ours(parameters, x):
        return jnp.sum(jnp.sin(nnx.merge(graph, parameters)(x, types)))

    def plain(parameters, x):
        kernel, bias = parameters["kernel"][...], parameters["bias"][...]
        # Types out of range read the first kernel, and their rows are masked.
        at = np.where(valid, types, 0)
        y = jnp.einsum("ri,rio->ro", x, kernel[at], precision="highest") + bias[at]
        return jnp.sum(jnp.sin(jnp.where(valid[:, None], y, 0)))

    got = jax.jit(jax.grad(ours, argnums=(0, 1)))(parameters, x)
    want = jax.grad(plain, argnums=(0, 1))(parameters, x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_close(a, b, 1e-5, "gradient")


def test_backward_pass_gathers(types, x):
    """The transpose of a sort is a gather: there is no scatter."""
    plan = TypePlan.from_types(types, TYPES)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(layer_of()(x, plan) ** 2)))
    assert "stablehlo.gather" in gradient.lower(x).as_text()
    assert "stablehlo.scatter" not in gradient.lower(x).as_text()


def test_untyped_rows_are_not_read(types, x):
    layer = layer_of()
    valid = (types >= 0) & (types < TYPES)
    # A gather of all kernels with a mask behind it would spread the NaN.
    dirty = np.where(valid[:, None], x, np.nan)
    y = layer(dirty, types)
    assert same_bits(y[~valid], np.zeros(((~valid).sum(), OUT), np.float32))
    assert_close(y, expected(layer, x, types), 1e-6, "value")
    gradient = nnx.grad(lambda layer: jnp.sum(layer(dirty, types) ** 2))(layer)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_plan(rng, types, x):
    plan = TypePlan.from_types(types, TYPES)
    valid = types[(types >= 0) & (types < TYPES)]
    assert (plan.num_types, plan.num_rows) == (TYPES, ROWS)
    np.testing.assert_array_equal(plan.group_sizes, np.bincount(valid, minlength=TYPES))
    np.testing.assert_array_equal(types[np.asarray(plan.order)][: len(valid)], np.sort(valid))
    np.testing.assert_array_equal(plan.sort(x), x[np.asarray(plan.order)])
    np.testing.assert_array_equal(plan.unsort(plan.sort(x)), x)
    jitted = jax.jit(TypePlan.from_types, static_argnums=1)(types, TYPES)
    assert same_bits(jitted, plan)
    many = stack([rng.permutation(types) for _ in range(3)])
    mapped = jax.vmap(lambda types, x: TypePlan.from_types(types, TYPES).sort(x), (0, None))
    for row, a in zip(mapped(many, x), many, strict=True):
        np.testing.assert_array_equal(row, TypePlan.from_types(a, TYPES).sort(x))
    # A plan of sizes moves no rows.
    as_sorted = TypePlan.from_sizes(plan.group_sizes)
    assert (as_sorted.num_types, as_sorted.num_rows) == (TYPES, None)
    x = jnp.asarray(x)
    assert as_sorted.sort(x) is x


def test_types_beyond_32_bits(x):
    """Types beyond 32 bits are out of range; sizes of 2³² - 1 count as all rows."""
    # Narrowed to 32 bits, 2³² would be type 0.
    types = np.resize([0, 2**32, 2, -(2**32), 2**31 + 1, 1, -(2**63)], ROWS)
    near = np.clip(types, -1, TYPES).astype(np.int32)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            want = TypePlan.from_types(near, TYPES)
            for types_of_any_kind in (types, types.tolist()):
                plan = TypePlan.from_types(types_of_any_kind, TYPES)
                np.testing.assert_array_equal(plan.group_sizes, want.group_sizes)
                np.testing.assert_array_equal(plan.sort(x), want.sort(x))
            sizes = TypePlan.from_sizes(np.array([2**32 - 1, 0], np.uint32)).group_sizes
            assert (np.asarray(sizes) >= [2**31 - 1, 0]).all()


def test_plan_takes_lists():
    plan = TypePlan.from_types([1, 0, 1], 2)
    np.testing.assert_array_equal(plan.sort([5, 6, 7]), [6, 5, 7])
    np.testing.assert_array_equal(plan.unsort([6, 5, 7]), [5, 6, 7])
    np.testing.assert_array_equal(TypePlan.from_sizes([1, 1]).sort([5, 6]), [5, 6])


def test_one_trace_for_all_types(rng, x):
    layer = layer_of()
    traces = 0

    @nnx.jit
    def apply(layer, x, types):
        nonlocal traces
        traces += 1
        return layer(x, types)

    for _ in range(4):
        types = rng.integers(-1, TYPES + 1, ROWS)
        assert_close(apply(layer, x, types), expected(layer, x, types), 1e-6, "value")
    assert traces == 1


def test_no_rows():
    layer = layer_of()
    assert layer(np.zeros((0, IN), np.float32), np.zeros(0, np.int32)).shape == (0, OUT)


def test_each_type_is_initialised_like_a_linear_layer():
    """The variance does not shrink with the number of types, and no two types are alike."""
    layer = TypedLinear(50, 64, 32, rngs=nnx.Rngs(0))
    kernel = np.asarray(layer.kernel[...])
    assert kernel.shape == (50, 64, 32)
    # An initializer that sees three axes counts the types as inputs.
    assert abs(kernel.std() * np.sqrt(64) - 1) < 0.05
    assert len({weight.tobytes() for weight in kernel}) == 50
    assert layer.bias is not None
    assert (np.asarray(layer.bias[...]) == np.zeros((50, 32))).all()


@pytest.mark.parametrize(
    ("dtype", "param_dtype", "result"),
    [(None, jnp.float32, "float32"), (jnp.bfloat16, jnp.float32, "bfloat16")],
)
def test_dtypes(types, x, dtype, param_dtype, result):
    layer = layer_of(dtype=dtype, param_dtype=param_dtype)
    y = layer(x, types)
    assert y.dtype == result
    assert layer.kernel[...].dtype == param_dtype
    assert_close(y, expected(layer, x, types), 3e-2 if result == "bfloat16" else 1e-6, "value")


def test_plans_have_the_types_of_the_layer(types, x):
    layer = layer_of()
    with pytest.raises(ValueError, match="num_types = 5, got 4"):
        layer(x, TypePlan.from_types(types, 4))
