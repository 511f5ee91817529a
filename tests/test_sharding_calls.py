"""Values and joint gradients of all ops, with every axis of every array split over a mesh.

CPU devices take the sharding rules that GPUs take. `calls` must trace every op that has a rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from op_spec import assert_close
from op_suite import KERNELS, PLATFORM
from segment_cases import REDUCTIONS

import jax_gnn
from jax_gnn import Edge, Graph, Hypergraph, Node, RelationalGraph, program
from jax_gnn._core import ffi
from jax_gnn._core.op import OPS
from jax_gnn._core.sharding import reshard_like

# All different, so that a size tells what an axis is of.
NODES, ROWS, EDGES, HEADS, WIDTH, OUT, RELATIONS, GROUPS = 20, 14, 32, 2, 8, 6, 4, 10
KINDS = [AxisType.Auto, AxisType.Explicit]
pytestmark = [
    pytest.mark.skipif(not KERNELS, reason=f"jax_gnn has no kernels for {PLATFORM} here"),
    pytest.mark.usefixtures("exact_products"),
]
by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


class Call(NamedTuple):
    """A call of a public function.

    Attributes:
        function: function of the index and, by name, of the arrays.
        index: pytree of index arrays, such as a graph.
        arrays: float operands by name; the gradients to all of them are computed together.
    """

    function: Callable[..., Any]
    index: Any
    arrays: dict[str, Any]


def calls(rng: np.random.Generator) -> dict[str, Call]:
    """Return a call of each public function on graphs with padding and a hub, by name."""

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    # Row 0 has half of the edges, and the last row has none.
    src = rng.integers(-1, NODES, EDGES)
    dst = rng.integers(0, ROWS - 1, EDGES) * rng.integers(0, 2, EDGES)
    relation = rng.integers(0, RELATIONS, EDGES)
    with jax_gnn.host_arrays():
        graph = Graph.from_edges(src, dst, num_src=NODES, num_dst=ROWS, validate=False)
        square = Graph.from_edges(src, dst, num_nodes=NODES, validate=False)
        sizes = {"num_nodes": NODES, "num_hyperedges": ROWS}
        # Builders with validation take no ids of -1; graphs above have them as padding.
        src = np.abs(src)
        hypergraph = Hypergraph.from_incidence(src, dst, **sizes)
        directed = Hypergraph.from_directed(src, dst, dst, src % ROWS, **sizes)
        relations = RelationalGraph.from_triples(
            src, relation, dst, num_nodes=NODES, num_relations=RELATIONS
        )
    ids = np.sort(dst).astype(np.int32)
    # Rows are left over, which belong to no group.
    group_sizes = np.full(GROUPS, EDGES // GROUPS - 1, np.int32)
    x, rows = normal(NODES, WIDTH), normal(ROWS, WIDTH)
    x_heads, key, rows_heads = (normal(n, HEADS, WIDTH) for n in (NODES, NODES, ROWS))
    per_edge, per_head = normal(EDGES), normal(EDGES, HEADS)
    edge_features = normal(EDGES, HEADS, WIDTH)
    scales = {"edge_bias": per_head, "edge_scale": normal(EDGES, HEADS)}
    collected: dict[str, Call] = {}

    def add(name: str, function, index, **arrays) -> None:
        collected[name] = Call(function, index, arrays)

    def segments(reduce: str, indices_are_sorted: bool) -> Callable[..., Any]:
        reduction = getattr(jax_gnn, f"segment_{reduce}")
        options = {"indices_are_sorted": indices_are_sorted}
        return lambda ids, data: reduction(data, ids, ROWS, **options)

    for reduce in (name for name in REDUCTIONS if name != "argmax"):
        data = normal(EDGES, WIDTH)
        add(f"segment_{reduce}, sorted", segments(reduce, True), ids, data=data)
        shuffled = rng.permutation(ids)
        add(f"segment_{reduce}, unsorted", segments(reduce, False), shuffled, data=data)
    for reduce in ("sum", "mean", "max"):
        function = functools.partial(jax_gnn.spmm, reduce=reduce)
        add(f"spmm, {reduce}", function, graph, x=x, weight=per_edge)
    add("spmm, without weights", jax_gnn.spmm, graph, x=x)
    add("spmm, heads", jax_gnn.spmm, graph, x=x_heads, weight=per_head)
    add(
        "spmm, epilogue",
        functools.partial(jax_gnn.spmm, activation="relu"),
        square,
        **{"x": x, "weight": per_edge, "self_scale": normal(NODES), "out_scale": normal(NODES)},
        **{"bias": normal(WIDTH), "residual": normal(NODES, WIDTH), "result_scale": normal(NODES)},
    )
    add("sddmm", jax_gnn.sddmm, graph, a=rows, b=x)
    add("sddmm, heads", jax_gnn.sddmm, graph, a=rows_heads, b=x_heads)
    add(
        "index_segment_reduce",
        lambda index, x, weight: jax_gnn.index_segment_reduce(x, *index, ROWS, weight),
        (src, ids),
        **{"x": x, "weight": per_edge},
    )

    scores = {"dst_score": normal(ROWS, HEADS), "src_score": normal(NODES, HEADS)}
    with_lse = functools.partial(jax_gnn.additive_attention, return_lse=True)
    add("additive_attention", with_lse, graph, value=x_heads, **scores, **scales)
    dots = {"query": rows_heads, "key": key, "value": x_heads}
    add("dot_attention", jax_gnn.dot_attention, graph, **dots, **scales)
    add("dot_attention, keys are values", same_values, graph, query=rows_heads, key=key)
    dots |= {"edge_features": edge_features}
    add("dot_attention, edge features", jax_gnn.dot_attention, graph, **dots)
    leaky = {"dst": rows_heads, "src": x_heads, "attention": normal(HEADS, WIDTH)}
    add("gatv2_attention", jax_gnn.gatv2_attention, graph, **leaky, **scales)
    leaky |= {"edge_features": edge_features}
    add("gatv2_attention, edge features", jax_gnn.gatv2_attention, graph, **leaky)

    for kind, index in (("undirected", hypergraph), ("directed", directed)):
        add(
            f"hypergraph_aggregate, {kind}",
            functools.partial(jax_gnn.hypergraph_aggregate, normalization="symmetric"),
            index,
            # Degrees are sums of these weights, and their roots are taken.
            **{"x": x, "hyperedge_weight": np.abs(normal(ROWS))},
        )
        weights = {"incidence_weight": per_edge}
        add(f"node_to_hyperedge, {kind}", jax_gnn.node_to_hyperedge, index, x=x, **weights)
        add(f"hyperedge_to_node, {kind}", jax_gnn.hyperedge_to_node, index, h=rows, **weights)
    add(
        "hypergraph_aggregate, incidences",
        functools.partial(jax_gnn.hypergraph_aggregate, hyperedge_reduce="mean"),
        hypergraph,
        **{"x": x, "incidence_weight": per_edge},
    )
    add(
        "hypergraph_aggregate, epilogue",
        functools.partial(jax_gnn.hypergraph_aggregate, activation="relu"),
        hypergraph,
        **{"x": x, "node_scale_in": normal(NODES), "node_scale_out": normal(NODES)},
        **{"hyperedge_scale": normal(ROWS), "self_scale": normal(NODES)},
        **{"residual": normal(NODES, WIDTH), "bias": normal(WIDTH)},
    )
    softmax = functools.partial(jax_gnn.incidence_softmax, by="node")
    add("incidence_softmax", softmax, hypergraph, scores=per_edge)

    def matmul(sizes, lhs, rhs, **options):
        return jax_gnn.segment_matmul(lhs, rhs, sizes, **options)

    rhs = normal(GROUPS, WIDTH, OUT)
    factors = {"lhs": normal(EDGES, WIDTH), "rhs": rhs}
    add("segment_matmul", matmul, group_sizes, **factors)
    add(
        "segment_matmul, epilogue",
        functools.partial(matmul, activation="relu"),
        group_sizes,
        **{**factors, "bias": normal(GROUPS, OUT), "scale": normal(EDGES)},
        **{"residual": normal(EDGES, OUT)},
    )
    lists = rng.integers(0, NODES, EDGES).astype(np.int32), rng.permutation(EDGES).astype(np.int32)
    add(
        "segment_matmul, rows",
        lambda i, lhs, rhs: jax_gnn.segment_matmul(lhs, rhs, i[0], lhs_rows=i[1], out_rows=i[2]),
        (group_sizes, *lists),
        **{"lhs": x, "rhs": rhs},
    )
    add(
        "segment_outer",
        lambda sizes, lhs, rhs: jax_gnn.segment_outer(lhs, rhs, sizes),
        group_sizes,
        **{"lhs": factors["lhs"], "rhs": normal(EDGES, OUT)},
    )

    maps = {"rhs": normal(RELATIONS, WIDTH, OUT), "weight": per_edge}
    add("relational_aggregate", jax_gnn.relational_aggregate, relations, x=x, **maps)
    table = {"table": normal(RELATIONS, NODES, WIDTH), "weight": per_edge}
    add("relational_lookup", jax_gnn.relational_lookup, relations, **table)
    kernel = normal(RELATIONS, WIDTH, HEADS * OUT)
    vectors = {"src": normal(RELATIONS, HEADS, OUT), "dst": normal(RELATIONS, HEADS, OUT)}
    of_relation = {name: normal(RELATIONS, HEADS, WIDTH, WIDTH) for name in ("keys", "values")}
    flat = {name: normal(NODES, HEADS * WIDTH) for name in ("query", "key", "value")}
    for method in ("source_pairs", "destination_pairs"):
        function = functools.partial(rgat, method=method)
        add(f"rgat_attention, {method}", function, relations, x=x, kernel=kernel, **vectors)
        function = functools.partial(hgt, method=method)
        add(f"hgt_attention, {method}", function, relations, **flat, **of_relation)

    edge_rows = normal(EDGES, WIDTH)
    add("program, region", gated, square, x=x, e=edge_rows)
    add("program, sources", into_sources, square, x=x, e=edge_rows)
    return collected


def same_values(graph, query, key):
    return jax_gnn.dot_attention(graph, query, key, key)


def rgat(graph, x, kernel, src, dst, method: str):
    weights = jax_gnn.RGATWeights.of(kernel, src, dst)
    return jax_gnn.rgat_attention(graph, x, weights, method=method)


def hgt(graph, query, key, value, keys, values, method: str):
    weights = jax_gnn.HGTWeights.of(keys, values)
    return jax_gnn.hgt_attention(graph, query, key, value, weights, heads=HEADS, method=method)


@program
def gated(g, x: Node, e: Edge):
    gate = jax.nn.sigmoid(g.src(x) * e)
    return g.sum(gate * g.dst(x)), g.max(gate), gate


@program
def into_sources(g, x: Node, e: Edge):
    y = g.sum(jnp.tanh(g.src(x) + e))
    return g.mean(jnp.exp(g.dst(y) * g.src(x)))


NAMES = list(calls(np.random.default_rng(0)))


def devices() -> list[jax.Device]:
    """Return the devices of the mesh: GPUs if there are two, else CPUs."""
    return jax.devices() if len(jax.devices()) > 1 else jax.devices("cpu")


def mesh_of_two_axes(kind: AxisType) -> Mesh:
    if len(devices()) < 4:
        pytest.skip("a mesh of two axes takes four devices")
    return Mesh(np.array(devices()[:4]).reshape(2, 2), ("a", "b"), axis_types=(kind,) * 2)


def split_leaves(call: Call) -> Iterator[tuple[int, int, str]]:
    """Yield index, axis and name of each array and axis that two devices can split."""
    leaves = jax.tree_util.tree_leaves_with_path((call.index, call.arrays))
    for i, (path, leaf) in enumerate(leaves):
        for axis, size in enumerate(np.shape(leaf)):
            if size and size % 2 == 0:
                yield i, axis, f"{jax.tree_util.keystr(path)}, axis {axis}"


class Checked:
    """A call, and its value and joint gradients on one device."""

    def __init__(self, call: Call, rng: np.random.Generator) -> None:
        self.call = call
        self.leaves, self.tree = jax.tree.flatten((call.index, call.arrays))
        like_value = jax.eval_shape(lambda i, a: call.function(i, **a), call.index, call.arrays)
        self.cotangent = jax.tree.map(
            lambda x: rng.normal(size=x.shape).astype(x.dtype), like_value
        )
        # Computed once: each test compares several splits of the same arrays.
        self.want = jax.jit(self.value_and_gradients)(call.index, call.arrays, self.cotangent)

    def value_and_gradients(self, index, arrays, cotangent):
        value, pull = jax.vjp(lambda arrays: self.call.function(index, **arrays), arrays)
        cotangent = jax.tree.map(lambda ct, x: reshard_like(ct, jax.typeof(x)), cotangent, value)
        return value, pull(cotangent)[0]

    def check(self, mesh: Mesh, specs: dict[int, P], message: str, closed_over: bool) -> None:
        """Compare with the call whose arrays are split by `specs`, from their positions."""
        placed = [
            jax.device_put(x, NamedSharding(mesh, specs.get(i, P())))
            for i, x in enumerate(self.leaves)
        ]
        index, arrays = self.tree.unflatten(placed)
        with jax.set_mesh(mesh):
            if closed_over:
                # Constants of a program have no sharding, so that rules must not expect one.
                index, _ = self.tree.unflatten(self.leaves)
                function = functools.partial(self.value_and_gradients, index)
                got = jax.jit(function)(arrays, self.cotangent)
            else:
                got = jax.jit(self.value_and_gradients)(index, arrays, self.cotangent)
        got_leaves = jax.tree_util.tree_leaves_with_path(got)
        for (path, x), y in zip(got_leaves, jax.tree.leaves(self.want), strict=True):
            assert_close(x, y, 1e-4, f"{message}: result {jax.tree_util.keystr(path)}")


@by_kind
@pytest.mark.parametrize("name", NAMES)
def test_one_axis(name, kind, rng):
    """One axis of an array is split, every one of the floats, and one of the index arrays."""
    mesh = Mesh(np.array(devices()[:2]), ("d",), axis_types=(kind,))
    call = calls(rng)[name]
    checked, num_index = Checked(call, rng), len(jax.tree.leaves(call.index))
    splits = list(split_leaves(call))
    of_index = [split for split in splits if split[0] < num_index]
    of_arrays = splits[len(of_index) :]
    # All index arrays would take minutes; another seed takes another.
    some = [of_index[rng.integers(len(of_index))]] if of_index else []
    for i, axis, message in [*of_arrays, *some]:
        checked.check(mesh, {i: P(*[None] * axis, "d")}, message, closed_over=False)
    i, axis, message = of_arrays[rng.integers(len(of_arrays))]
    specs = {i: P(*[None] * axis, "d")}
    checked.check(mesh, specs, f"{message}, the index closed over", closed_over=True)
    by_entry = {i: P("d") for i, axis, _ in splits if np.shape(checked.leaves[i])[0] == EDGES}
    checked.check(mesh, by_entry, "all that lies along the edges", closed_over=False)


@pytest.mark.parametrize("name", NAMES)
def test_axes_of_two_sizes(name, rng):
    """Explicit axes: where sizes are equal, arrays are split alike, as JAX's own operations ask."""
    call = calls(rng)[name]
    checked = Checked(call, rng)
    sizes = sorted({np.shape(checked.leaves[i])[axis] for i, axis, _ in split_leaves(call)})
    mesh = mesh_of_two_axes(AxisType.Explicit)
    # Axes of one size are split over one axis of the mesh, of another size over the other.
    pair, specs = rng.permutation(sizes)[:2].tolist(), {}
    for i, leaf in enumerate(checked.leaves):
        entries = [dict(zip(pair, "ab", strict=False)).get(size) for size in np.shape(leaf)]
        repeated = [entry in entries[:axis] for axis, entry in enumerate(entries)]
        specs[i] = P(*np.where(repeated, None, entries).tolist())
    checked.check(mesh, specs, f"sizes {pair}", closed_over=False)


@pytest.mark.parametrize("name", NAMES)
def test_any_axes(name, rng):
    """Automatic axes: each array is split on axes of its own."""
    call = calls(rng)[name]
    checked = Checked(call, rng)
    mesh = mesh_of_two_axes(AxisType.Auto)
    choices: dict[int, list[int]] = {}
    for i, axis, _ in split_leaves(call):
        choices.setdefault(i, []).append(axis)
    specs = {}
    for i, axes in choices.items():
        spec: list[str | None] = [None] * np.ndim(checked.leaves[i])
        count = rng.integers(0, 1 + min(len(axes), 2))
        chosen = zip(rng.permutation(axes)[:count], rng.permutation(["a", "b"]), strict=False)
        for axis, mesh_axis in chosen:
            spec[axis] = str(mesh_axis)
        specs[i] = P(*spec)
    checked.check(mesh, specs, str(specs), closed_over=False)


@by_kind
@pytest.mark.parametrize("name", NAMES)
def test_batch(name, kind, rng):
    """Each device has elements of a batch of calls."""
    elements = [calls(rng)[name] for _ in range(2)]
    shapes = [jax.tree.map(np.shape, element.index) for element in elements]
    if shapes[0] != shapes[1]:  # graphs differ in their number of pairs
        elements[1] = elements[1]._replace(index=elements[0].index)

    def batched(index, **arrays):
        return jax.vmap(lambda index, arrays: elements[0].function(index, **arrays))(index, arrays)

    stacked = [
        jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
        for parts in zip(*((element.index, element.arrays) for element in elements), strict=True)
    ]
    checked = Checked(Call(batched, *stacked), rng)
    mesh = Mesh(np.array(devices()[:2]), ("d",), axis_types=(kind,))
    checked.check(mesh, dict.fromkeys(range(len(checked.leaves)), P("d")), "batch", False)


def test_all_ops_with_rules_are_called():
    rng = np.random.default_rng(0)
    names: set[str] = set()

    def collect(jaxpr) -> None:
        for equation in jaxpr.eqns:
            names.add(equation.primitive.name)
            for inner in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
            ):
                if hasattr(inner, "eqns"):
                    collect(inner)

    for name, call in calls(rng).items():
        checked = Checked(call, rng)
        # Programs form regions by default only where a GPU has kernels for them.
        with jax_gnn.implementation("xla" if name.startswith("program") else None):
            collect(jax.make_jaxpr(checked.value_and_gradients)(*call[1:], checked.cotangent))
    with_rules = {ffi.TARGET_PREFIX + name for name, op in OPS.items() if op.sharding is not None}
    assert with_rules - names == set()
