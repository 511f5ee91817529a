"""Node regions: which maps of nodes' rows one kernel makes, and its values and gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import setting
from op_suite import KERNELS
from program_cases import Sizes, random_graph

import jax_gnn
from jax_gnn import Graph, Node, program
from jax_gnn._ops.edge_region import cuda_compile
from jax_gnn._program import node_regions, plan, region_rows

IMPLEMENTATIONS = [None, *(["cuda"] if "cuda" in KERNELS else [])]


@pytest.fixture(params=IMPLEMENTATIONS)
def regions(request, monkeypatch):
    """Form the regions that a GPU would, whatever is counted; plain XLA computes them on a CPU."""
    formed = []

    def gains(region, matcher, results):
        formed.append(region)
        return True

    monkeypatch.setattr(node_regions, "_gains", gains)
    monkeypatch.setattr(cuda_compile, "supports_linear_maps", lambda: True)
    if request.param is None:
        for module in (plan, region_rows):
            monkeypatch.setattr(module, "backend", lambda: "cuda")
        yield formed
    else:
        with setting(implementation=request.param):
            yield formed


def gated(g, x: Node, a, b, c, bias):
    """Three maps of the same rows, two of which edges read."""
    gate = jax.nn.sigmoid(g.dst(x @ a + bias) + g.src(x @ b))
    return x @ c + g.sum(gate * g.src(x))


def perceptron(g, x: Node, a, b, c, bias):
    """Two maps in turn after a sum, and an elementwise function of nodes that is stored, too."""
    y = x + g.sum(g.src(x))
    hidden = jax.nn.silu(y @ a + bias)
    return hidden @ b + y, jnp.tanh(hidden)


def concatenated(g, x: Node, a, b, c, bias):
    """A map of two rows side by side, which a pass moves from edges to both of their ends."""
    pair = jnp.concatenate([g.dst(x), g.src(x)])
    return g.mean(jnp.tanh(pair @ jnp.concatenate([a, b]) + bias)) + (x @ c) @ a


def extremes(g, x: Node, a, b, c, bias):
    """Kinks, at which rounding decides the gradient: full precision alone is compared."""
    return g.max(jax.nn.relu(g.dst(x @ a + bias) + g.src(x @ b))) + (x @ c) @ a


SMOOTH = [gated, perceptron, concatenated]
HALF = ["bfloat16", "float16"]
CASES = [*itertools.product(SMOOTH, ["float32", *HALF]), (extremes, "float32")]


def arguments(rng, graph, width=12, dtype="float32"):
    shapes = [(graph.num_nodes, width), *[(width, width)] * 3, (width,)]
    return [jnp.asarray(rng.normal(size=shape) / 4, dtype) for shape in shapes]


def all_of(run, graph, arrays):
    """Return results, gradients, and gradients of a function of the first gradient."""

    def loss(*arrays):
        results = jax.tree.leaves(run(graph, *arrays))
        return sum(jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, 0))) for y in results), results

    numbers = tuple(range(len(arrays)))
    (_, results), gradients = jax.value_and_grad(loss, numbers, has_aux=True)(*arrays)
    second = jax.grad(lambda *x: jnp.sum(jax.grad(loss, has_aux=True)(*x)[0] ** 2), numbers)
    return [*results, *gradients, *second(*arrays)]


def assert_close(got, want, tolerance=3e-3):
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        a, b = np.asarray(a, np.float64), np.asarray(b)
        np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), str(i))
        a, b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
        assert np.linalg.norm(a - b) <= tolerance * max(np.linalg.norm(b), 1e-3), i


@pytest.mark.parametrize("padding", [0, 7, 300])
@pytest.mark.parametrize("width", [12, 33])
@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_values_and_gradients(function, width, padding, dtype, regions, rng):
    graph = random_graph(rng, Sizes(40, 300, padding=padding))
    arrays = arguments(rng, graph, width, dtype)
    with jax.default_matmul_precision(None if dtype in HALF else "highest"):
        got = jax.jit(lambda *x: all_of(program(function), graph, x))(*arrays)
    assert regions
    with jax.enable_x64(True):
        exact = [jnp.asarray(np.asarray(x, np.float64)) for x in arrays]
        want = jax.jit(lambda *x: all_of(program(function).reference, graph, x))(*exact)
    assert_close(got, want, 6e-2 if dtype in HALF else 1e-5)


def test_rows_that_no_edge_reads_do_not_count(regions, rng):
    """A map that a pass moved to nodes has no gradient of a node that is no source, even of NaN."""

    def moved(g, x: Node, w):
        return g.sum(jnp.tanh((g.src(x) * g.dst(x)) @ w) + jnp.sin(g.src(x) @ w) + g.src(x) @ w.T)

    graph = Graph.from_edges(*rng.integers(3, size=(2, 90)), num_nodes=5)
    x, w = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 12), (12, 12)))
    x[3] = np.nan
    gradient = jax.grad(lambda w: jnp.sum(program(moved)(graph, x, w)))(w)
    assert regions and np.isfinite(gradient).all()


def test_graphs_of_two_sides_and_batches(regions, rng):
    """Sources and destinations have numbers of rows of their own; `vmap` maps features."""

    def two_sides(g, x_src: Node, x_dst: Node, a, b):
        gate = g.src(jnp.tanh(x_src @ a) @ b) * g.dst(jnp.tanh(x_dst @ b) @ a)
        return g.sum(gate)

    ends = rng.integers([[50], [20]], size=(2, 200))
    graph = Graph.from_edges(*ends, num_src=50, num_dst=20)
    shapes = (3, 50, 12), (3, 20, 12), (12, 12), (12, 12)
    arrays = [jnp.asarray(rng.normal(size=shape) / 4, jnp.float32) for shape in shapes]

    def run(function, *arrays):
        mapped = jax.vmap(lambda x, y, *w: function(graph, x, y, *w), (0, 0, None, None))
        return jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(mapped(*x))), (0, 1, 2, 3))(*arrays)

    got = run(program(two_sides), *arrays)
    assert {region.space.value for region in regions} == {"node"} and len(set(regions)) >= 2
    want = run(program(two_sides).reference, *arrays)
    assert_close(jax.tree.leaves(got), jax.tree.leaves(want))


def test_what_a_region_of_nodes_has(regions, rng):
    """Maps on both sides of a sum are not in one region, nor is one map alone."""
    graph = random_graph(rng, Sizes(40, 300))
    arrays = arguments(rng, graph)

    def both_sides(g, x: Node, a, b, c, bias):
        y = g.sum(g.src(x @ a) * g.src(x @ b))
        return jnp.tanh(y @ c) @ a + x @ b

    text = program(both_sides).explain(graph, *arrays)
    assert "for each node" in text and "by node" in text
    maps = {frozenset(map(id, region.members)): region for region in regions}.values()
    assert {len(region.linear_maps) for region in maps} <= {2}
    regions.clear()

    def one_map(g, x: Node, a, b, c, bias):
        return g.sum(g.src(x)) @ a

    program(one_map).explain(graph, *arrays)
    assert not regions


def test_regions_are_formed_where_they_gain(monkeypatch, rng):
    monkeypatch.setattr(cuda_compile, "missing", lambda: None)
    graph = Graph.from_edges(*rng.integers(60_000, size=(2, 120_000)), num_nodes=60_000)
    rows = (60_000, 64), *[(64, 64)] * 3, (64,)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in rows]
    with jax_gnn.implementation("cuda"):
        assert "for each node" in program(gated).explain(graph, *shapes)
    assert "for each node" not in program(gated).explain(graph, *shapes)
