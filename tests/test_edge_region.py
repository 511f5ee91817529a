"""Edge regions against plain JAX: values, derivatives of any order, batches, padding."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import op_suite
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from op_spec import SCENARIOS, setting
from region_cases import MODELS, Edges, Model

from jax_gnn._ops.edge_region import row_program
from jax_gnn._ops.edge_region.primitive import edge_region
from jax_gnn._ops.edge_region.region import Region

TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}
IMPLEMENTATIONS = [name for name in op_suite.IMPLEMENTATIONS if name != "cpu"]
KERNELS = [name for name in op_suite.KERNELS if name != "cpu"]


def op(model: Model, edges: Edges) -> Callable[..., list[Any]]:
    def function(*arrays: Any) -> list[Any]:
        return edge_region(model.function, arrays, model.reads, model.outputs, edges.matrix)

    return function


def plain(model: Model, edges: Edges) -> Callable[..., list[Any]]:
    return lambda *arrays: edges.plain(model, arrays)


def total(function: Callable[..., Any]) -> Callable[..., Any]:
    """Nonlinear in all results; what maxima of nothing are does not count."""

    def scalar(*arrays: Any) -> Any:
        kept = [jnp.where(jnp.abs(x) < 1e30, x, 0) for x in function(*arrays)]
        return sum(jnp.sum(jnp.sin(x) + 0.1 * x**2) for x in kept)

    return scalar


def close(got: Any, want: Any, **tolerance: float) -> None:
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, **(tolerance or TOLERANCE)), got, want
    )


def zeros_for_nan(arrays: Sequence[Any]) -> list[Any]:
    return [np.where(np.isnan(x), 0, x) for x in arrays]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradients(name: str, scenario: str, implementation: str, rng: Any) -> None:
    model, edges = MODELS[name], Edges.random(rng, scenario)
    arrays = edges.arrays(rng, model, "float64")
    every = tuple(range(len(arrays)))
    with setting(implementation, "float64"):
        both = [
            jax.jit(lambda *x, f=f: (f(*x), jax.grad(total(f), every)(*x)))(*arrays)
            for f in (op(model, edges), plain(model, edges))
        ]
    close(*both)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_tangents_and_second_derivatives(name: str, implementation: str, rng: Any) -> None:
    model, edges = MODELS[name], Edges.random(rng, "random")
    arrays = edges.arrays(rng, model, "float64")
    arrays, tangents = tuple(arrays), tuple(edges.arrays(rng, model, "float64"))
    every = tuple(range(len(arrays)))

    def derivatives(function: Callable[..., Any], *arrays: Any) -> Any:
        gradients = jax.grad(total(function), every)
        forward = jax.jvp(gradients, arrays, tangents)[1]
        backward = jax.grad(lambda *x: sum(map(jnp.vdot, gradients(*x), tangents)), every)(*arrays)
        return jax.jvp(function, arrays, tangents), forward, backward

    with setting(implementation, "float64"):
        both = [
            jax.jit(functools.partial(derivatives, f))(*arrays)
            for f in (op(model, edges), plain(model, edges))
        ]
    close(*both)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
@pytest.mark.parametrize("name", MODELS)
def test_batches(name: str, implementation: str, rng: Any) -> None:
    """Of a random choice of arrays, and of matrices."""
    model, size = MODELS[name], 3
    several = [Edges.random(rng, "padding") for _ in range(size)]
    edges = several[0]
    axes = [int(rng.integers(2)) - 1 and None for _ in model.rows]
    if all(axis is None for axis in axes):
        axes[0] = 0
    drawn = [[np.nan_to_num(x) for x in edges.arrays(rng, model, "float64")] for _ in range(size)]
    arrays = [
        x[0] if axis is None else np.stack(x)
        for x, axis in zip(zip(*drawn, strict=True), axes, strict=True)
    ]

    def one(matrix: Any, *arrays: Any) -> Any:
        function = op(model, edges._replace(matrix=matrix))
        return function(*arrays), jax.grad(total(function), tuple(range(len(arrays))))(*arrays)

    stacked = jax.tree.map(lambda *x: np.stack(x), *(each.matrix for each in several))
    with setting(implementation, "float64"):
        for matrix, axis in ((edges.matrix, None), (stacked, 0)):
            got = jax.jit(jax.vmap(one, (axis, *axes)))(matrix, *arrays)
            for i in range(size):
                own = matrix if axis is None else several[i].matrix
                each = [x if axis is None else x[i] for x, axis in zip(arrays, axes, strict=True)]
                close(jax.tree.map(lambda x, i=i: x[i], got), jax.jit(one)(own, *each))


@pytest.mark.parametrize(
    ("split", "kind"),
    [
        *itertools.product(("edges", "graphs"), (AxisType.Auto, AxisType.Explicit)),
        ("anyhow", AxisType.Auto),  # JAX refuses axes of a mesh that meet themselves
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("name", MODELS)
def test_split_over_devices(name: str, split: str, kind: AxisType, rng: Any) -> None:
    """Of a graph each device has some edges, of several graphs its own."""
    model, count = MODELS[name], 4
    several = [Edges.random(rng, "padding") for _ in range(count)]
    if split != "graphs":
        several = several[:1]
    drawn = [map(np.nan_to_num, each.arrays(rng, model, "float64")) for each in several]
    leaves, tree = jax.tree.flatten(
        [(each.matrix, *x) for each, x in zip(several, drawn, strict=True)]
    )
    matrix, *arrays = (
        jax.tree.map(lambda *x: np.stack(x), *tree.unflatten(leaves))
        if split == "graphs"
        else tree.unflatten(leaves)[0]
    )
    devices = jax.devices() if jax.device_count() >= count else jax.devices("cpu")
    mesh = Mesh(np.array(devices[:count]), ("d",), axis_types=(kind,))

    def place(x: Any) -> jax.Array:
        fit = [i for i, size in enumerate(np.shape(x)) if size and size % count == 0]
        axis = rng.choice([None, *fit]) if split == "anyhow" else 0
        if split == "edges" and np.shape(x)[:1] != (several[0].count,):
            axis = None
        spec = [] if axis is None or axis not in fit else [*[None] * axis, "d"]
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    def one(matrix: Any, *arrays: Any) -> Any:
        function = op(model, several[0]._replace(matrix=matrix))
        return function(*arrays), jax.grad(total(function), tuple(range(len(arrays))))(*arrays)

    every = jax.jit(jax.vmap(one) if split == "graphs" else one)
    with setting(KERNELS[0] if KERNELS else "xla", "float64"):
        want = every(matrix, *arrays)
        with jax.set_mesh(mesh) if kind is AxisType.Explicit else contextlib.nullcontext():
            got = every(*jax.tree.map(place, (matrix, *arrays)))
    close(got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_narrow_dtypes(name: str, dtype: str, implementation: str, rng: Any) -> None:
    model, edges = MODELS[name], Edges.random(rng, "padding")
    arrays = edges.arrays(rng, model, dtype)
    with setting(implementation, dtype):
        got = jax.jit(op(model, edges))(*arrays)
    with setting("xla", "float64"):
        want = jax.jit(plain(model, edges))(*(x.astype(np.float64) for x in arrays))
    for x, y in zip(got, want, strict=True):
        assert x.dtype == dtype
        largest = np.max(np.abs(y), initial=1e-3, where=np.isfinite(y))
        error = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}[dtype]
        close(np.asarray(x, np.float64), y, rtol=0, atol=error * largest)


@pytest.mark.parametrize("implementation", KERNELS)
def test_same_bits_in_large_and_repeated_runs(implementation: str, rng: Any) -> None:
    """Of several threads, and rows that many share."""
    model, edges = MODELS["pna"], Edges.random(rng, "large")
    arrays = edges.arrays(rng, model, "float32")
    every = tuple(range(len(arrays)))
    function = op(model, edges)
    with setting(implementation):
        compiled = jax.jit(lambda *x: (function(*x), jax.grad(total(function), every)(*x)))
        first = compiled(*arrays)
        for _ in range(10):
            jax.tree.map(np.testing.assert_array_equal, compiled(*arrays), first)
    with setting("xla", "float64"):
        want = plain(model, edges)(*(x.astype(np.float64) for x in arrays))
    close(first[0], want, rtol=1e-3, atol=1e-4)


def test_equal_regions_compile_once(rng: Any) -> None:
    model, edges = MODELS["gated_gcn"], Edges.random(rng, "random")
    made = [jax.make_jaxpr(op(model, edges))(*edges.arrays(rng, model, "float32")) for _ in "ab"]
    one, two = (each.eqns[-1].params["region"] for each in made)
    assert one == two and hash(one) == hash(two) and one.jaxpr is not two.jaxpr
    assert one != one.ties and "none→edge" in repr(one)


# --- What has no kernel --------------------------------------------------------------------------


def sorted_rows(x: Any) -> list[Any]:
    return [jnp.sort(x) * jnp.cumsum(x)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_function_without_instructions_is_plain_xla(rng: Any) -> None:
    model = Model(sorted_rows, [("col", (3,))], [("row", "max")])
    edges = Edges.random(rng, "random")
    (x,) = edges.arrays(rng, model, "float64")
    with setting(None, "float64"):
        got, want = (
            jax.jit(lambda x, f=f: (f(x), jax.grad(total(f))(x)))(x)
            for f in (op(model, edges), plain(model, edges))
        )
    close(got, want)


# --- Row programs --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_instructions_are_the_function(name: str, rng: Any) -> None:
    """And those of its gradient."""
    model = MODELS[name]
    rows = [rng.normal(size=shape) for _, shape in model.rows]

    def gradient(*rows: Any) -> Any:
        found, pull = jax.vjp(model.function, *rows)
        return pull(found)

    with setting("xla", "float64"):
        for function in (model.function, gradient):
            want = jax.tree.leaves(function(*rows))
            outputs: Any = [("row", "sum")] * len(want)
            region = Region.of(function, [jnp.asarray(x) for x in rows], model.reads, outputs)
            program = region.program
            assert isinstance(program, row_program.RowProgram)
            got = row_program.evaluate(program, [x.ravel() for x in rows])
            close(got, [np.ravel(x) for x in want])


def test_equal_values_are_made_once_and_dead_ones_never(rng: Any) -> None:
    def function(x: Any, y: Any) -> list[Any]:
        jnp.exp(y)
        return [jnp.tanh(x + y), jnp.tanh(x + y) * jnp.sum(jnp.arange(3.0))]

    rows = [jax.ShapeDtypeStruct((3,), "float32")] * 2
    region = Region.of(function, rows, ["row", "col"], [("row", "sum")] * 2)
    program = region.program
    assert isinstance(program, row_program.RowProgram)
    names = [each.name for each in program.instructions]
    assert sorted(names) == ["add", "constant", "mul", "tanh"]
    assert program.only([0]).instructions == program.instructions[:2]


@pytest.mark.parametrize("function", [jnp.cumsum, jnp.sort, jnp.argmax])
def test_equation_without_instruction_is_named(function: Callable[..., Any]) -> None:
    rows = [jax.ShapeDtypeStruct((3,), "float32")]
    found = Region.of(lambda x: [function(x) * 1.0], rows, ["row"], [("row", "sum")]).program
    assert isinstance(found, row_program.Unsupported)
    assert "no instruction" in str(found) and found.equation is not None


def test_gradients_read_what_is_kept(rng: np.random.Generator) -> None:
    """Rather than what it is made of, where that is more; the derivative goes through it."""
    model = MODELS["gated_gcn"]
    rows = [jax.ShapeDtypeStruct(shape, "float32") for _, shape in model.rows]
    region = Region.of(model.function, rows, model.reads, model.outputs)
    assert region.kept == (2,)
    places, given = (0, 1, 2, 3), (0, 1, 2)
    cotangent, kept = region.cheapest_cotangent(places, given)
    assert kept == (2,)
    assert isinstance(cotangent.program, row_program.RowProgram)
    assert cotangent.program.used == (3, *range(4, 8))  # v, the kept one, and three cotangents
    alone = region.cotangent(places, given)
    values = [rng.normal(size=5).astype(np.float32) for _ in range(7)]
    z = model.function(*values[:4])[2]
    want, found = alone(*values), cotangent(*values[:4], z, *values[4:])
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
