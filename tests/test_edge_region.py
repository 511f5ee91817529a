"""Edge regions against plain JAX: values, derivatives of any order, batches, padding."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import op_suite
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from op_spec import SCENARIOS, setting
from region_cases import MODELS, Edges, Model

from jax_gnn._ops.edge_region import row_program
from jax_gnn._ops.edge_region.region import Region

TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}
# CPUs have no kernel of regions.
IMPLEMENTATIONS = [name for name in op_suite.IMPLEMENTATIONS if name != "cpu"]
KERNELS = [name for name in op_suite.KERNELS if name != "cpu"]
MESH_KINDS = AxisType.Auto, AxisType.Explicit


def plain(model, edges):
    return lambda *arrays: edges.plain(model, arrays)


def loss(function):
    """Return a scalar nonlinear in all results; maxima of no entries do not count."""

    def scalar(*arrays):
        finite = [jnp.where(jnp.abs(x) < 1e30, x, 0) for x in function(*arrays)]
        return sum(jnp.sum(jnp.sin(x) + 0.1 * x**2) for x in finite)

    return scalar


def with_gradients(function):
    def run(*arrays):
        return function(*arrays), jax.grad(loss(function), tuple(range(len(arrays))))(*arrays)

    return run


def assert_close(got, want, **tolerance):
    compare = functools.partial(np.testing.assert_allclose, **(tolerance or TOLERANCE))
    jax.tree.map(compare, got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradients(name, scenario, implementation, rng):
    model, edges = MODELS[name], Edges.random(rng, scenario)
    arrays = edges.arrays(rng, model, "float64")
    with setting(implementation, "float64"):
        got = jax.jit(with_gradients(edges.region(model)))(*arrays)
        want = jax.jit(with_gradients(plain(model, edges)))(*arrays)
    assert_close(got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_tangents_and_second_derivatives(name, implementation, rng):
    model, edges = MODELS[name], Edges.random(rng, "random")
    arrays, tangents = (tuple(edges.arrays(rng, model, "float64")) for _ in range(2))
    every = tuple(range(len(arrays)))

    def derivatives(function, *arrays):
        gradients = jax.grad(loss(function), every)
        forward = jax.jvp(gradients, arrays, tangents)[1]
        backward = jax.grad(lambda *x: sum(map(jnp.vdot, gradients(*x), tangents)), every)(*arrays)
        return jax.jvp(function, arrays, tangents), forward, backward

    with setting(implementation, "float64"):
        got, want = (
            jax.jit(functools.partial(derivatives, function))(*arrays)
            for function in (edges.region(model), plain(model, edges))
        )
    assert_close(got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
@pytest.mark.parametrize("name", MODELS)
def test_batches(name, implementation, rng):
    """Batches of a random choice of arrays, and of matrices."""
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

    def one(matrix, *arrays):
        return with_gradients(edges._replace(matrix=matrix).region(model))(*arrays)

    stacked = jax.tree.map(lambda *x: np.stack(x), *(edges.matrix for edges in several))
    with setting(implementation, "float64"):
        for matrix, axis in ((edges.matrix, None), (stacked, 0)):
            got = jax.jit(jax.vmap(one, (axis, *axes)))(matrix, *arrays)
            for i in range(size):
                matrix_i = matrix if axis is None else several[i].matrix
                arrays_i = [x if a is None else x[i] for x, a in zip(arrays, axes, strict=True)]
                want = jax.jit(one)(matrix_i, *arrays_i)
                assert_close(jax.tree.map(lambda x, i=i: x[i], got), want)


@pytest.mark.parametrize(
    ("split", "kind"),
    [
        *itertools.product(("edges", "graphs"), MESH_KINDS),
        ("anyhow", AxisType.Auto),  # JAX rejects an array split twice over an explicit axis
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("name", MODELS)
def test_split_over_devices(name, split, kind, rng):
    """Edges of one graph, or several graphs, over devices."""
    model, count = MODELS[name], 4
    several = [Edges.random(rng, "padding") for _ in range(count)]
    if split != "graphs":
        several = several[:1]
    operands = [
        (edges.matrix, *map(np.nan_to_num, edges.arrays(rng, model, "float64")))
        for edges in several
    ]
    matrix, *arrays = (
        jax.tree.map(lambda *x: np.stack(x), *operands) if split == "graphs" else operands[0]
    )
    devices = jax.devices() if jax.device_count() >= count else jax.devices("cpu")
    mesh = Mesh(np.array(devices[:count]), ("d",), axis_types=(kind,))

    def place(x):
        divisible = [i for i, size in enumerate(np.shape(x)) if size and size % count == 0]
        axis = rng.choice([None, *divisible]) if split == "anyhow" else 0
        if split == "edges" and np.shape(x)[:1] != (several[0].count,):
            axis = None
        spec = [] if axis is None or axis not in divisible else [*[None] * axis, "d"]
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    def one(matrix, *arrays):
        return with_gradients(several[0]._replace(matrix=matrix).region(model))(*arrays)

    run = jax.jit(jax.vmap(one) if split == "graphs" else one)
    # The default follows the op's sharding rule, too; implementation="xla" leaves splits to XLA.
    has_kernels = KERNELS and jax.device_count() >= count
    with setting(KERNELS[0] if has_kernels else None, "float64"):
        want = run(matrix, *arrays)
        with jax.set_mesh(mesh) if kind is AxisType.Explicit else contextlib.nullcontext():
            got = run(*jax.tree.map(place, (matrix, *arrays)))
    assert_close(got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_narrow_dtypes(name, dtype, implementation, rng):
    model, edges = MODELS[name], Edges.random(rng, "padding")
    arrays = edges.arrays(rng, model, dtype)
    with setting(implementation, dtype):
        got = jax.jit(edges.region(model))(*arrays)
    with setting("xla", "float64"):
        want = jax.jit(plain(model, edges))(*(x.astype(np.float64) for x in arrays))
    for x, y in zip(got, want, strict=True):
        assert x.dtype == dtype
        largest = np.max(np.abs(y), initial=1e-3, where=np.isfinite(y))
        error = {"float32": 1e-5, "bfloat16": 0.1, "float16": 0.02}[dtype]
        assert_close(np.asarray(x, np.float64), y, rtol=0, atol=error * largest)


@pytest.mark.parametrize("implementation", KERNELS)
def test_same_bits_in_large_and_repeated_runs(implementation, rng):
    model, edges = MODELS["pna"], Edges.random(rng, "large")
    arrays = edges.arrays(rng, model, "float32")
    with setting(implementation):
        compiled = jax.jit(with_gradients(edges.region(model)))
        first = compiled(*arrays)
        for _ in range(10):
            jax.tree.map(np.testing.assert_array_equal, compiled(*arrays), first)
    with setting("xla", "float64"):
        want = plain(model, edges)(*(x.astype(np.float64) for x in arrays))
    assert_close(first[0], want, rtol=1e-3, atol=1e-4)


def test_equal_regions_compile_once(rng):
    model, edges = MODELS["gated_gcn"], Edges.random(rng, "random")
    jaxprs = [
        jax.make_jaxpr(edges.region(model))(*edges.arrays(rng, model, "float32")) for _ in "ab"
    ]
    a, b = (jaxpr.eqns[-1].params["region"] for jaxpr in jaxprs)
    assert a == b and hash(a) == hash(b) and a.jaxpr is not b.jaxpr
    assert a != a.ties and "none→edge" in repr(a)


@pytest.mark.parametrize(("name", "num_walks"), [("pna", 2), ("sums_to_sources", 3)])
def test_gradients_count_ties_where_extremes_are_found(name, num_walks, rng):
    """But for an extreme over all entries, whose blocks know no extreme of all."""
    model, edges = MODELS[name], Edges.random(rng, "random")
    arrays = edges.arrays(rng, model, "float32")
    jaxpr = jax.make_jaxpr(jax.grad(loss(edges.region(model))))(*arrays)
    regions = [eqn.params["region"] for eqn in jaxpr.eqns if "region" in eqn.params]
    assert len(regions) == num_walks
    assert regions[0].num_ties == (2 if num_walks == 2 else 0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_function_without_instructions_is_plain_xla(rng):
    model = Model(lambda x: [jnp.sort(x) * jnp.cumsum(x)], [("col", (3,))], [("row", "max")])
    edges = Edges.random(rng, "random")
    arrays = edges.arrays(rng, model, "float64")
    with setting(None, "float64"):
        got = jax.jit(with_gradients(edges.region(model)))(*arrays)
        want = jax.jit(with_gradients(plain(model, edges)))(*arrays)
    assert_close(got, want)


# --- Row programs --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_instructions_are_the_function_and_its_gradient(name, rng):
    check_instructions(MODELS[name], rng)


def test_a_batch_of_one_product_is_a_product_of_rows(rng):
    rows = [("row", (1, 2, 3)), ("col", (1, 2, 4))]
    products = Model(lambda a, b: [jnp.einsum("bij,bik->bjk", a, b)], rows, [("row", "sum")])
    check_instructions(products, rng)


def check_instructions(model, rng):
    """Compare a function, and its gradient, with their instructions."""
    rows = [rng.normal(size=shape) for _, shape in model.rows]

    def gradient(*rows):
        results, pullback = jax.vjp(model.function, *rows)
        return pullback(results)

    with setting("xla", "float64"):
        for function in (model.function, gradient):
            want = jax.tree.leaves(jax.jit(function)(*rows))
            outputs = [("row", "sum")] * len(want)
            region = Region.of(function, [jnp.asarray(x) for x in rows], model.accesses, outputs)
            evaluate = jax.jit(functools.partial(row_program.evaluate, region.program))
            got = evaluate([x.ravel() for x in rows])
            assert_close(got, [np.ravel(x) for x in want])


def test_equal_values_are_merged_and_dead_ones_dropped():
    def function(x, y):
        jnp.exp(y)
        return [jnp.tanh(x + y), jnp.tanh(x + y) * jnp.sum(jnp.arange(3.0))]

    rows = [jax.ShapeDtypeStruct((3,), "float32")] * 2
    program = Region.of(function, rows, ["row", "col"], [("row", "sum")] * 2).program
    names = [instruction.name for instruction in program.instructions]
    assert sorted(names) == ["add", "constant", "mul", "tanh"]
    assert program.only([0]).instructions == program.instructions[:2]


@pytest.mark.parametrize("function", [jnp.cumsum, jnp.sort, jnp.argmax])
def test_equation_without_instruction_is_named(function):
    rows = [jax.ShapeDtypeStruct((3,), "float32")]
    program = Region.of(lambda x: [function(x) * 1.0], rows, ["row"], [("row", "sum")]).program
    assert isinstance(program, row_program.Unsupported)
    assert "no instruction" in str(program) and program.equation is not None


def test_gradients_read_residuals_where_that_is_less(rng):
    model = MODELS["gated_gcn"]
    region = model.region()
    assert region.residuals == (2,)
    active, stored = (0, 1, 2, 3), (0, 1, 2)
    cotangent, residuals = region.cheapest_cotangent(active, stored)
    assert residuals == (2,)
    assert cotangent.program.used == (3, *range(4, 8))  # v, the residual, and three cotangents
    values = [rng.normal(size=5).astype(np.float32) for _ in range(7)]
    z = model.function(*values[:4])[2]
    want = region.cotangent(active, stored)(*values)
    got = cotangent(*values[:4], z, *values[4:])
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
