"""Ops under a mesh: bytes that they move between devices, and shapes of each device's kernels.

`test_sharding_calls` compares values and gradients of all ops with those of one device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from op_spec import assert_close, setting
from op_suite import KERNELS

import jax_gnn
from jax_gnn import Graph, Hypergraph
from jax_gnn._core import sharding
from jax_gnn._core.sharding import Piece, Sharding, reshape
from jax_gnn._ops.edge_region.primitive import edge_region

COUNT = 4
NODES, ROWS, EDGES, HEADS, WIDTH, GROUPS = 64, 48, 512, 4, 8, 4
KINDS = [AxisType.Auto, AxisType.Explicit]
COLLECTIVES = "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"

pytestmark = pytest.mark.skipif("cpu" not in KERNELS, reason="CPU devices count what is moved")


def mesh(kind: AxisType) -> Mesh:
    return Mesh(np.array(jax.devices("cpu")[:COUNT]), ("d",), axis_types=(kind,))


class Moved(NamedTuple):
    """Collectives of a program: kinds and bytes of results; and shapes of kernels' results."""

    kinds: set[str]
    num_bytes: int
    kernels: list[tuple[str, tuple[int, ...]]]


def moved(text: str) -> Moved:
    counted: Counter[str] = Counter()
    kernels = []
    # A line has the shapes of the result before the name of the operation.
    for line in text.splitlines():
        instruction = re.search(r" = (.*?) ([\w-]+)\(", line)
        if instruction is None:
            continue
        shapes = re.findall(r"([a-z]+)(\d+)\[([\d,]*)\]", instruction[1])
        sizes = [tuple(int(n) for n in dims.split(",") if n) for _, _, dims in shapes]
        name = instruction[2].removesuffix("-start")
        if name in COLLECTIVES:
            arrays = zip(shapes, sizes, strict=True)
            counted[name] += sum(
                int(bits) // 8 * int(np.prod(size)) for (_, bits, _), size in arrays
            )
        if target := re.search(r'custom_call_target="jax_gnn\.?/?(\w+)"', line):
            kernels.append((target[1].removeprefix("_"), sizes[0]))
    return Moved(set(counted), sum(counted.values()), kernels)


class Case(NamedTuple):
    """Call of a function, and the split of its arguments.

    Attributes:
        function: the function.
        arrays: arguments of the function.
        specs: partition of each array.
        kinds: kinds of collectives that the program may use.
        floats: largest number of floats that these may bring to a device.
    """

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    specs: tuple[P, ...]
    kinds: frozenset[str] = frozenset()
    floats: int = 0


def graph_of(rng: np.random.Generator) -> Graph:
    return Graph.from_edges(
        rng.integers(0, NODES, EDGES), rng.integers(0, ROWS, EDGES), num_src=NODES, num_dst=ROWS
    )


def cases(rng: np.random.Generator) -> dict[str, Case]:
    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    reduced = frozenset({"all-reduce"})
    ids = np.sort(rng.integers(0, ROWS, EDGES)).astype(np.int32)
    data, x, y = normal(EDGES, WIDTH), normal(NODES, WIDTH), normal(ROWS, WIDTH)
    weight = normal(EDGES)
    graph = graph_of(rng)
    heads_x, heads_y = normal(NODES, HEADS, WIDTH), normal(ROWS, HEADS, WIDTH)
    scores_x, scores_y = normal(NODES, HEADS), normal(ROWS, HEADS)
    graphs = jax.tree.map(lambda *leaves: np.stack(leaves), *(graph_of(rng) for _ in range(COUNT)))
    hypergraph = Hypergraph.from_incidence(
        rng.integers(0, NODES, EDGES), rng.integers(0, ROWS, EDGES), num_nodes=NODES
    )
    # The last rows belong to no group.
    sizes = np.full(GROUPS, EDGES // GROUPS - 3, np.int32)
    kernel = normal(GROUPS, WIDTH, 2 * WIDTH)
    entries = P("d")
    replicated, by_feature, middle, inner = (
        P(),
        P(None, "d"),
        P(None, "d", None),
        P(None, None, "d"),
    )

    def of_edges(leaf) -> P:
        return entries if np.shape(leaf)[:1] == (EDGES,) else replicated

    by_entry = jax.tree.map(of_edges, graph)
    by_head = jax.tree.map(lambda _: replicated, graph)
    of_hypergraph = jax.tree.map(lambda _: replicated, hypergraph)
    by_graph = jax.tree.map(lambda _: entries, graphs)

    def total(data, ids):
        return jax_gnn.segment_sum(data, ids, ROWS, indices_are_sorted=True)

    def unsorted(data, ids):
        return jax_gnn.segment_sum(data, ids, ROWS)

    def mean(data, ids):
        return jax_gnn.segment_mean(data, ids, ROWS, indices_are_sorted=True)

    def softmax(data, ids):
        return jax_gnn.segment_softmax(data, ids, ROWS, indices_are_sorted=True)

    def maximum(data, ids):
        return jax_gnn.segment_max(data, ids, ROWS, indices_are_sorted=True)

    def dots(graph, y, x):
        return jax_gnn.sddmm(graph, y, x)

    def region(graph, y, x):
        def function(y, x):
            return [jnp.tanh(y * x), y - x]

        reads, outputs = ["row", "col"], [("row", "sum"), ("edge", "none")]
        return edge_region(function, (y, x), reads, outputs, graph.matrix(weighted=True))

    rows = ROWS * WIDTH
    named_cases = {
        "segment_sum, features": Case(total, (data, ids), (by_feature, replicated)),
        "segment_sum, entries": Case(total, (data, ids), (entries, entries), reduced, rows),
        "segment_sum, unsorted entries": Case(
            unsorted, (data, rng.permutation(ids)), (entries, entries), reduced, rows
        ),
        "segment_mean, entries": Case(mean, (data, ids), (entries, entries), reduced, rows + ROWS),
        "segment_max, entries": Case(maximum, (data, ids), (entries, entries), reduced, rows),
        "segment_softmax, features": Case(softmax, (data, ids), (by_feature, replicated)),
        "segment_softmax, entries": Case(
            softmax, (data, ids), (entries, entries), reduced, 2 * rows
        ),
        "spmm, features": Case(jax_gnn.spmm, (graph, x, weight), (by_head, by_feature, replicated)),
        "spmm, entries": Case(
            jax_gnn.spmm, (graph, x, weight), (by_entry, replicated, entries), reduced, rows
        ),
        "spmm, graphs": Case(
            jax.vmap(jax_gnn.spmm), (graphs, normal(COUNT, NODES, WIDTH)), (by_graph, entries)
        ),
        "spmm, features by vmap": Case(
            jax.vmap(jax_gnn.spmm, (None, 0)),
            (graph, normal(COUNT, NODES, WIDTH)),
            (by_head, entries),
        ),
        "spmm, split features under vmap": Case(
            jax.vmap(jax_gnn.spmm, (None, 0)),
            (graph, normal(COUNT, NODES, WIDTH)),
            (by_head, inner),
        ),
        "hypergraph_aggregate, split features under vmap": Case(
            jax.vmap(jax_gnn.hypergraph_aggregate, (None, 0)),
            (hypergraph, normal(COUNT, NODES, WIDTH)),
            (of_hypergraph, inner),
        ),
        "segment_softmax, batch": Case(
            jax.vmap(softmax),
            (normal(COUNT, EDGES, WIDTH), np.stack([ids] * COUNT)),
            (entries,) * 2,
        ),
        "dot_attention, edge features by edges": Case(
            lambda graph, q, k, v, features: jax_gnn.dot_attention(
                graph, q, k, v, edge_features=features
            ),
            (graph, heads_y, heads_x, heads_x, normal(EDGES, HEADS, WIDTH)),
            (by_entry, replicated, replicated, replicated, entries),
            reduced,
            HEADS * (2 * rows + 2 * ROWS),
        ),
        "sddmm, features": Case(
            dots, (graph, y, x), (by_head, by_feature, by_feature), reduced, EDGES
        ),
        "sddmm, entries": Case(dots, (graph, y, x), (by_entry, replicated, replicated)),
        "additive_attention, heads": Case(
            jax_gnn.additive_attention,
            (graph, scores_y, scores_x, heads_x),
            (by_head, by_feature, by_feature, middle),
        ),
        "additive_attention, entries": Case(
            jax_gnn.additive_attention,
            (graph, scores_y, scores_x, heads_x),
            (by_entry, replicated, replicated, replicated),
            reduced,
            HEADS * rows + 2 * HEADS * ROWS,
        ),
        "dot_attention, heads": Case(
            jax_gnn.dot_attention,
            (graph, heads_y, heads_x, heads_x),
            (by_head, middle, middle, middle),
        ),
        "dot_attention, graphs": Case(
            jax.vmap(jax_gnn.dot_attention),
            (graphs, normal(COUNT, ROWS, WIDTH), *[normal(COUNT, NODES, WIDTH)] * 2),
            (by_graph, entries, entries, entries),
        ),
        "edge_region, entries": Case(
            region, (graph, y, x), (by_entry, replicated, replicated), reduced, rows
        ),
        "edge_region, graphs": Case(
            jax.vmap(region),
            (graphs, normal(COUNT, ROWS, WIDTH), normal(COUNT, NODES, WIDTH)),
            (by_graph, entries, entries),
        ),
        "hypergraph_aggregate, features": Case(
            jax_gnn.hypergraph_aggregate, (hypergraph, x), (of_hypergraph, by_feature)
        ),
        "segment_matmul, rows": Case(
            jax_gnn.segment_matmul, (data, kernel, sizes), (entries, replicated, replicated)
        ),
        "segment_matmul, output features": Case(
            jax_gnn.segment_matmul,
            (data, kernel, sizes),
            (replicated, P(None, None, "d"), replicated),
        ),
        "segment_matmul, groups": Case(
            jax_gnn.segment_matmul,
            (data, kernel, sizes),
            (replicated, entries, replicated),
            reduced,
            EDGES * 2 * WIDTH,
        ),
    }
    for name in (
        "segment_sum, features",
        "spmm, features",
        "spmm, split features under vmap",
        "hypergraph_aggregate, split features under vmap",
        "segment_softmax, batch",
        "spmm, graphs",
        "edge_region, graphs",
        "segment_matmul, rows",
    ):
        case = named_cases[name]
        named_cases[f"{name}, gradients"] = case._replace(function=gradient_of(case.function))
    # Each device has a part of the gradient to the weights, which are all-reduced.
    product = named_cases["segment_matmul, rows, gradients"]
    named_cases["segment_matmul, rows, gradients"] = product._replace(
        kinds=reduced, floats=GROUPS * WIDTH * 2 * WIDTH
    )
    attended = named_cases["additive_attention, entries"]
    named_cases["additive_attention, entries, gradients"] = attended._replace(
        function=gradient_of(attended.function), floats=5 * HEADS * (NODES + 2 * ROWS) * WIDTH
    )
    # Split features leave a partial dot product of each edge on a device.
    weighted = named_cases["spmm, features, gradients"]
    named_cases["spmm, features, gradients"] = weighted._replace(kinds=reduced, floats=EDGES)
    return named_cases


def gradient_of(function) -> Callable[..., Any]:
    """Return a function that computes all gradients, with the result itself as the cotangent."""

    def gradients(*arrays):
        differentiable = [
            i for i, x in enumerate(arrays) if jnp.result_type(*jax.tree.leaves(x)) == "f4"
        ]

        def of(*values):
            operands = list(arrays)
            for i, value in zip(differentiable, values, strict=True):
                operands[i] = value
            return function(*operands)

        value, pull = jax.vjp(of, *(arrays[i] for i in differentiable))
        return pull(value)

    return gradients


NAMES = list(cases(np.random.default_rng(0)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_moved(name, kind, rng):
    case = cases(rng)[name]
    devices = mesh(kind)
    specs = jax.tree.leaves(case.specs, is_leaf=lambda x: isinstance(x, P))
    leaves, tree = jax.tree.flatten(case.arrays)
    placed = tree.unflatten(
        [jax.device_put(x, NamedSharding(devices, s)) for x, s in zip(leaves, specs, strict=True)]
    )
    with (
        setting("cpu"),
        jax.set_mesh(devices) if kind is AxisType.Explicit else contextlib.nullcontext(),
    ):
        expected = jax.jit(case.function)(*case.arrays) if kind is AxisType.Auto else None
        compiled = jax.jit(case.function).lower(*placed).compile()
        actual = compiled(*placed)
    # Values are compared once, as programs of both kinds of axes are equal.
    if expected is not None:
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            assert_close(a, b, 2e-5, name)
    counts = moved(compiled.as_text())
    assert counts.kinds <= case.kinds, counts
    assert counts.num_bytes <= 4 * case.floats, counts
    # A split program still has the kernels of a single device.
    single = moved(jax.jit(case.function).lower(*case.arrays).compile().as_text())
    assert counts.kernels or not single.kernels


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "logsumexp", "attention"])
def test_rows_that_are_split_like_edges_are_scattered(reduce, rng):
    """Each device adds up its own rows of results and of gradients, and has their epilogue."""
    size = 4 * COUNT
    graph = jax_gnn.Graph.from_edges(*rng.integers(size, size=(2, 8 * size)), num_nodes=size)
    split = NamedSharding(mesh(AxisType.Auto), P("d"))
    x, scale = (rng.normal(size=shape).astype(np.float32) for shape in ((size, WIDTH), (size,)))

    def loss(x, scale, graph):
        if reduce == "attention":
            scores = x.sum(1)[:, None]
            y = jax_gnn.additive_attention(graph, scores, scores, x[:, None])[:, 0]
        elif reduce in ("sum", "mean"):
            y = jax_gnn.spmm(
                graph, x, reduce=reduce, self_scale=scale, residual=x, activation="relu"
            )
        else:
            reduced = getattr(jax_gnn, f"segment_{reduce}")
            y = reduced(x[graph.cols], graph.rows, size, indices_are_sorted=True)
        y = jax.lax.with_sharding_constraint(y, split) if of_devices else y
        return jnp.sum(jnp.tanh(y) * scale[:, None])

    of_devices = False
    expected = jax.value_and_grad(loss, (0, 1))(x, scale, graph)
    of_devices = True
    every = NamedSharding(split.mesh, P())
    placed = jax.tree.map(
        lambda x: jax.device_put(x, every if np.size(x) % COUNT or not np.shape(x) else split),
        (x, scale, graph),
    )
    with setting("cpu"):
        function = jax.jit(jax.value_and_grad(loss, (0, 1)), out_shardings=(every, split))
        compiled = function.lower(*placed).compile()
    for a, b in zip(*map(jax.tree.leaves, (compiled(*placed), expected)), strict=True):
        assert_close(a, b, 2e-5, reduce)
    text = compiled.as_text()
    assert "reduce-scatter" in text
    if reduce in ("sum", "mean", "attention"):  # the others have maxima of all rows
        assert not re.search(rf"f32\[{size},{WIDTH}\].* all-reduce\(", text)


def test_warning_of_whole_rows(monkeypatch, rng):
    monkeypatch.setattr(sharding, "LARGE", 1)
    sharding._warn_of_whole_rows.cache_clear()
    graph = graph_of(rng)
    split = NamedSharding(mesh(AxisType.Auto), P("d"))
    placed = jax.tree.map(lambda x: jax.device_put(x, split) if x.shape == (EDGES,) else x, graph)
    x = rng.normal(size=(NODES, WIDTH)).astype(np.float32)
    with pytest.warns(UserWarning, match="sharding.shard_graph exchanges only"):
        jax.jit(jax_gnn.spmm).lower(placed, x).compile()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_model(kind, rng):
    """The second derivative of a model is right on a split graph."""
    graph = graph_of(rng)
    devices = mesh(kind)
    x = rng.normal(size=(NODES, WIDTH)).astype(np.float32)
    ct = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)

    def loss(x, graph):
        return jnp.sum(jnp.tanh(jax_gnn.spmm(graph, x, reduce="mean")) * ct)

    def second_derivative(x, graph):
        return jax.jvp(jax.grad(loss), (x, graph), (x, jax.tree.map(tangent, graph)))

    def tangent(leaf):
        return np.zeros(np.shape(leaf), jax.dtypes.float0)

    expected = jax.jit(second_derivative)(x, graph)
    spread = jax.tree.map(
        lambda leaf: jax.device_put(
            leaf, NamedSharding(devices, P("d") if np.shape(leaf)[:1] == (EDGES,) else P())
        ),
        graph,
    )
    context = jax.set_mesh(devices) if kind is AxisType.Explicit else contextlib.nullcontext()
    with context:
        actual = jax.jit(second_derivative)(jax.device_put(x, NamedSharding(devices, P())), spread)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, 2e-5, "second derivative")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_nothing_reads_may_be_split(kind, rng):
    """A sum into rows does not read the order by column, so that its split moves nothing."""
    graph, devices = graph_of(rng), mesh(kind)
    x = rng.normal(size=(NODES, WIDTH)).astype(np.float32)
    split = NamedSharding(devices, P("d"))
    replicated = jax.device_put(graph, NamedSharding(devices, P()))
    names = "t_rows", "t_cols", "t_order"
    placed = {name: jax.device_put(getattr(graph, name), split) for name in names}
    with jax.set_mesh(devices) if kind is AxisType.Explicit else contextlib.nullcontext():
        call = jax.jit(jax_gnn.spmm).lower(dataclasses.replace(replicated, **placed), x).compile()
        result = call(dataclasses.replace(replicated, **placed), x)
    assert not moved(call.as_text()).kinds
    assert_close(result, jax_gnn.spmm(graph, x), 2e-5, "sum")


def test_one_device_traces_as_before(monkeypatch):
    """On one device no partitioner is traced: with it, JAX lowers no mesh without devices."""

    def traced(width: int) -> str:
        x = np.ones((3, width), np.float32)
        return str(jax.make_jaxpr(lambda x: jax_gnn.segment_sum(x, np.arange(3), 3))(x))

    assert "custom_partitioning" in traced(2)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    assert "custom_partitioning" not in traced(3)


@pytest.mark.parametrize("kind", AxisType, ids=str)
def test_a_mesh_without_devices(kind):
    """Programs within ``jax.shard_map`` are lowered for such a mesh; JAX refuses others."""
    manual = kind == AxisType.Manual
    devices = AbstractMesh((2,), ("d",), axis_types=(AxisType.Auto if manual else kind,))
    spec = P(None, "d")

    def call(x):
        return jax_gnn.segment_sum(x, np.arange(3), 3)

    if manual:
        call = jax.shard_map(call, mesh=devices, in_specs=spec, out_specs=spec)
    x = jax.ShapeDtypeStruct((3, 8), np.float32, sharding=NamedSharding(devices, spec))
    with jax.sharding.use_abstract_mesh(devices):
        traced = jax.jit(call).trace(x)
    if manual:
        assert "mesh" in traced.lower(lowering_platforms=("cpu",)).as_text()
    else:
        with pytest.raises(ValueError, match="AbstractMesh"):
            traced.lower(lowering_platforms=("cpu",))


def test_export_of_a_split_program(rng):
    """Exported programs contain no partitioner of this process."""
    devices = mesh(AxisType.Auto)
    data = rng.normal(size=(EDGES, 32)).astype(np.float32)
    ids = np.sort(rng.integers(0, ROWS, EDGES)).astype(np.int32)
    call = jax.jit(
        lambda x: jax_gnn.segment_sum(x, ids, ROWS, indices_are_sorted=True),
        in_shardings=NamedSharding(devices, P(None, "d")),
    )
    exported = jax.export.export(call, disabled_checks=jax_gnn.EXPORT_CHECKS)(data)
    assert "CustomSPMDPartitioning" not in exported.mlir_module()
    placed = jax.device_put(data, NamedSharding(devices, P(None, "d")))
    loaded = jax.export.deserialize(exported.serialize())
    assert_close(jax.jit(loaded.call)(placed), call(placed), 2e-5, "exported")


# --- Rules ---------------------------------------------------------------------------------------


def rule(*texts: str, **sizes: int) -> Sharding:
    *operands, result = texts
    return Sharding(operands, [result], lambda bind, operands, pieces: operands, sizes)


def pieces_of(split: Sharding, shapes, specs) -> dict[str, tuple[str, ...]]:
    axes = {"a": 2, "b": 4}
    devices = type("Mesh", (), {"shape": axes})
    return {name: piece.axes for name, piece in split.pieces(devices, shapes, specs).items()}


def test_pieces():
    heads = rule("n (h k)", "n h", "n (h k)", h=4, k=6)
    shapes = [(8, 24), (8, 4), (8, 24)]
    assert pieces_of(heads, shapes, [(None, "b"), (), ()]) == {"h": ("b",)}
    assert pieces_of(heads, shapes, [(None, ("a", "b")), (), ()]) == {"h": ("a",)}  # 6 of 4
    assert pieces_of(heads, shapes, [(None, ("b", "a")), (), ()]) == {"h": ("b",), "k": ("a",)}
    # An axis splits one factor: that of the larger array.
    assert pieces_of(heads, shapes, [("b",), (None, "b"), ()]) == {"n": ("b",)}
    # Dimensions without pieces of equal size, or in capitals, are not split.
    assert pieces_of(heads, [(6, 24), (6, 4), (6, 24)], [("b",), (), ()]) == {}
    assert pieces_of(rule("n (h K)", "n (h K)", h=2, K=8), [(8, 16)] * 2, [(None, "b"), ()]) == {}
    assert heads.specs({"h": Piece(("b",), 4), "k": Piece(("a",), 2)})[0] == P(None, ("b", "a"))


@pytest.mark.parametrize(
    ("shape", "axis", "to", "spec"),
    [
        ((8, 3, 4), 0, (24, 4), ("d", None)),
        ((8, 3, 4), 2, (8, 12), (None, None)),
        ((8, 4, 3), 1, (8, 12), (None, "d")),
        ((8, 12), 1, (8, 4, 3), (None, "d", None)),
        ((8, 12), 1, (8, 3, 4), (None, None, None)),
        ((1, 8, 12), 1, (8, 1, 12), ("d", None, None)),
        ((8, 0), 0, (0, 8), (None, None)),
    ],
)
def test_reshape(shape, axis, to, spec):
    devices = mesh(AxisType.Explicit)
    x = np.arange(np.prod(shape)).reshape(shape)
    placed = jax.device_put(x, NamedSharding(devices, P(*[None] * axis, "d")))
    with jax.set_mesh(devices):
        result = jax.jit(lambda x: reshape(x, *to))(placed)
    np.testing.assert_array_equal(result, x.reshape(to))
    assert tuple(jax.typeof(result).sharding.spec) == spec
