"""Properties of all containers: transformations in any order, donation, identity, host arrays.

Layers are only traced, not compiled.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from flax import nnx
from layer_cases import DST, GRAPH, HYPERGRAPH, LAYERS, RELATIONAL, SIZE, SRC, TRIPLES, WIDTH
from op_spec import programs

import flax_layers
import jax_gnn
from jax_gnn import Graph, HeteroGraph, Hypergraph, RelationalGraph, SegmentIndex, TypePlan

KEYS = (("a", "r", "b"), ("b", "s", "b"), ("b", "t", "b"))
EDGES = {key: np.stack([SRC, DST]) for key in KEYS}
X = np.ones((SIZE, WIDTH), np.float32)
REL, EDGE_WEIGHT = TRIPLES[1], np.arange(float(len(SRC)))


def directed() -> Hypergraph:
    return Hypergraph.from_directed(SRC, DST, DST, SRC, num_nodes=SIZE, num_hyperedges=SIZE)


def relational() -> RelationalGraph:
    return RelationalGraph.from_triples(SRC, REL, DST, SIZE, 2)


# Containers of host arrays, and what their methods build.
BUILDERS: dict[str, Callable[[], Any]] = {
    "Graph": lambda: Graph.from_edges(SRC, DST, num_nodes=SIZE),
    "Hypergraph": lambda: Hypergraph.from_incidence(SRC, DST, num_nodes=SIZE, num_hyperedges=SIZE),
    "RelationalGraph": relational,
    "HeteroGraph": lambda: HeteroGraph.from_edges(EDGES, {"a": SIZE, "b": SIZE}).with_graphs(),
    "SegmentIndex": lambda: SegmentIndex.from_ids(DST, SIZE),
    "TypePlan": lambda: TypePlan.from_types(REL, 2),
}
DERIVED: dict[str, Callable[[], Any]] = {
    "graph with slots": lambda: BUILDERS["Graph"]().transpose().with_edge_split(),
    "graph with more edges": lambda: BUILDERS["Graph"]().symmetrized().with_self_loops(),
    "padded graph": lambda: BUILDERS["Graph"]().pad(num_nodes=8, num_edges=9),
    "directed hypergraph": lambda: directed().with_self_loops().dual.pad(num_incidences=30),
    "nearest neighbours": lambda: Hypergraph.from_knn([[0.0], [1.0], [3.0]], 2),
    "padded relational graph": lambda: relational().pad(num_nodes=8, num_src_pairs=9),
    "sorted index": lambda: SegmentIndex.from_ids(np.sort(DST), SIZE),
    "plan of sizes": lambda: TypePlan.from_sizes([2, 3]),
    "values of edges": lambda: BUILDERS["Graph"]().pad(num_edges=9).edge_values(EDGE_WEIGHT, -1),
    "values of relations": lambda: relational().edge_values(SRC),
    "values in the input's order": lambda: relational().to_input_order(SRC),
    "values by type": lambda: BUILDERS["HeteroGraph"]().edge_values(
        dict.fromkeys(KEYS, EDGE_WEIGHT)
    ),
    "values of incidences": lambda: directed().incidence_values(EDGE_WEIGHT[:, None]),
    "degrees": lambda: (BUILDERS["Graph"]().in_degrees(), BUILDERS["Graph"]().out_degrees()),
}
ALL = BUILDERS | DERIVED


# --- Transformations in all orders ---------------------------------------------------------------

Call = Callable[[Any, Any], Any]  # takes a container and weights


def layer_case(make: Callable[[], Any], x=X, arguments=None) -> Callable[[], tuple[Call, Any]]:
    """Return a function that returns a layer's call and the shapes of its weights."""

    def case() -> tuple[Call, Any]:
        layer = nnx.eval_shape(make)
        definition, weights, state = nnx.split(layer, nnx.Param, ...)
        named = {n: np.asarray(v, np.float32) for n, v in (arguments or {}).items()}
        if isinstance(layer, flax_layers.Stack) and not isinstance(layer, flax_layers.CompGCN):
            named["deterministic"] = True

        def call(graph, weights) -> Any:
            zeros = jax.tree.map(lambda r: jnp.zeros(r.shape, r.dtype), state)
            return nnx.merge(definition, weights, zeros)(graph, x, **named)

        return call, weights

    return case


def hetero_layer() -> nnx.Module:
    rngs, sizes = nnx.Rngs(0), (WIDTH, WIDTH)
    convs: dict[Any, Any] = {key: flax_layers.SAGEConv(sizes, 4, rngs=rngs) for key in KEYS[:2]}
    return flax_layers.HeteroConv(convs | {KEYS[2]: flax_layers.GATConv(WIDTH, 4, rngs=rngs)})


def index_call(index: SegmentIndex, x) -> Any:
    return index.gather(index.segment_sum(x))


def plan_call(plan: TypePlan, weights) -> Any:
    sizes = plan.group_sizes
    x = np.ones((len(REL), WIDTH), np.float32)
    return plan.unsort(jax_gnn.segment_matmul(plan.sort(x), weights, sizes))


def shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, np.float32)


def cases() -> Iterator[tuple[str, tuple[str, Callable[[], tuple[Call, Any]]]]]:
    seen = set()
    for name, case in LAYERS.items():
        plain = any(case.structure is structure for structure in (GRAPH, HYPERGRAPH, RELATIONAL))
        # All variants of attention over relations; one layer of any other kind.
        if plain and (case.structure is RELATIONAL or case.kind not in seen):
            seen.add(case.kind)
            make = functools.partial(case.make, jnp.float32)
            yield name, (type(case.structure).__name__, layer_case(make, X, case.named))
    yield "HeteroConv", ("HeteroGraph", layer_case(hetero_layer, {"a": X, "b": X}))
    yield "SegmentIndex", ("SegmentIndex", lambda: (index_call, shape(len(DST), WIDTH)))
    yield "TypePlan", ("TypePlan", lambda: (plan_call, shape(2, WIDTH, 3)))


CASES = dict(cases())


def gradients(loss: Callable[[Any], jax.Array]) -> dict[str, Callable[[Any], Any]]:
    """Return gradients to weights, or to a batch of weights, by the order of transformations."""

    def batch_loss(batch) -> jax.Array:
        return jax.vmap(jax.jit(loss))(batch).sum()

    return {
        "grad(remat(jit))": lambda w: jax.grad(jax.checkpoint(jax.jit(loss)))(w),
        "jvp(grad(jit))": lambda w: jax.jvp(jax.grad(jax.jit(loss)), (w,), (w,)),
        "grad(vmap(jit))": lambda w: jax.grad(batch_loss)(
            jax.tree.map(lambda a: jnp.stack([a] * 2), w)
        ),
    }


EMPTY: dict[type[Any], Any] = {
    Graph: Graph.from_edges([], [], num_nodes=0),
    Hypergraph: Hypergraph.from_incidence([], [], num_nodes=0, num_hyperedges=0),
    RelationalGraph: RelationalGraph.from_triples([], [], [], num_nodes=0, num_relations=2),
}


@pytest.mark.parametrize("name", [name for name in CASES if name in LAYERS])
def test_layers_of_no_nodes(name: str) -> None:
    case = LAYERS[name]
    if name == "HGNN":  # has a weight for each of its hyperedges
        pytest.skip("made for a number of hyperedges")
    graph, layer = EMPTY[type(case.structure)], case.make(jnp.float32)
    named = {key: jnp.zeros((0, *np.shape(value)[1:])) for key, value in case.named.items()}
    layer.eval()
    y = jax.eval_shape(lambda x: layer(graph, x, **named), shape(0, WIDTH))
    assert jax.tree.leaves(y)[0].shape[0] == 0


@pytest.mark.parametrize("source", ["built inside", "of the host"])
@pytest.mark.parametrize("name", CASES)
def test_orders_of_transformations(name: str, source: str) -> None:
    kind, case = CASES[name]
    call, weights = case()
    with jax_gnn.host_arrays():
        container = BUILDERS[kind]()

    def loss(weights) -> jax.Array:
        # HeteroGraph.with_graphs reads values of the graph, so it cannot run inside jit.
        inside = source == "built inside" and kind != "HeteroGraph"
        results = jax.tree.leaves(call(BUILDERS[kind]() if inside else container, weights))
        return sum((jnp.sum(y**2) for y in results), jnp.zeros(()))

    for order, gradient in gradients(loss).items():
        shapes = jax.eval_shape(gradient, weights)
        assert len(jax.tree.leaves(shapes)) >= len(jax.tree.leaves(weights)), order


# --- Donation and identity -----------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True])
def test_no_array_is_shared(copied: bool) -> None:
    """Donating a buffer twice is an error; all containers are donated to one program."""
    containers = {name: make() for name, make in ALL.items()}
    containers["traced"] = jax.jit(relational)()
    before = jax.tree.map(np.array, containers)
    donated = copy.deepcopy(containers) if copied else containers
    same = jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree), donate_argnums=0)(donated)
    jax.tree.map(np.testing.assert_array_equal, same, before)


@pytest.mark.parametrize("name", BUILDERS)
def test_equality_is_identity(name: str) -> None:
    container, twin = BUILDERS[name](), BUILDERS[name]()
    assert (
        container == container
        and container != twin
        and container in [twin, container]
        and container not in [twin]
    )
    assert len({container, twin, container}) == 2


# --- Arrays of the host --------------------------------------------------------------------------


def built_on_the_host() -> dict[str, Any]:
    with jax_gnn.host_arrays():
        return {name: make() for name, make in ALL.items()}


def _worker(connection) -> None:
    def refuse(*args, **kwargs) -> Any:
        raise AssertionError("JAX was asked")

    # A forked child must not use JAX, whose threads did not survive the fork.
    jax.extend.core.Primitive.bind = refuse
    try:
        connection.send(built_on_the_host())
    except BaseException as error:
        connection.send(repr(error))


def test_forked_workers_build_equal_arrays() -> None:
    expected = {name: make() for name, make in ALL.items()}  # JAX was used
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_worker, args=(theirs,), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks
        worker.start()
    try:
        assert ours.poll(60), "the worker hangs"
        received = ours.recv()
    finally:
        worker.kill()
        worker.join()
    assert isinstance(received, dict), received
    assert jax.tree.structure(received) == jax.tree.structure(expected)
    for host, device in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
        assert type(host) is np.ndarray and isinstance(device, jax.Array)
        assert host.dtype == device.dtype
        np.testing.assert_array_equal(host, device)


def test_methods_keep_arrays_on_host_or_device() -> None:
    with jax_gnn.host_arrays():
        graph, typed = BUILDERS["Graph"](), relational()
    for derived in (graph.pad(num_edges=9).symmetrized().transpose(), typed.with_parts()):
        assert {type(array) for array in jax.tree.leaves(derived)} == {np.ndarray}
    assert isinstance(graph.edge_values(jnp.asarray(EDGE_WEIGHT)), jax.Array)
    x = np.random.default_rng(0).normal(size=(SIZE, 2)).astype(np.float32)
    of_device = jax_gnn.spmm(jax.device_put(graph), x)
    np.testing.assert_array_equal(jax_gnn.spmm(graph, x), of_device)
    np.testing.assert_array_equal(jax.jit(jax_gnn.spmm)(graph, x), of_device)


# --- Nothing is compiled -------------------------------------------------------------------------


def test_building_compiles_nothing(rng: np.random.Generator) -> None:
    """Methods run on 40 sizes, with arrays of numpy and of JAX."""
    with programs() as seen:
        jax.jit(lambda x: x + 1)(np.ones(5))
    assert seen, "events have other names"
    with programs() as seen:
        # New sizes would need new programs, if any operation on arrays of JAX were left.
        for size in range(3, 43):
            src, rel, dst = rng.integers(0, [[size], [3], [size]], (3, 3 * size), np.int32)
            values = np.ones((3 * size, 2), np.float32)
            if size % 2:
                src, rel, dst, values = jax.device_put((src, rel, dst, values))
            sizes = {"num_nodes": size + 5, "num_edges": 4 * size}
            graph = Graph.from_edges(src, dst, num_nodes=size)
            graph.pad(**sizes).edge_values(values, fill_value=2)
            graph.transpose().symmetrized().with_self_loops().in_degrees()
            Graph.from_scipy(scipy.sparse.eye_array(size))
            hypergraph = Hypergraph.from_incidence(src, dst)
            hypergraph.pad(num_nodes=size + 5, num_incidences=4 * size).incidence_values(values)
            Hypergraph.from_hyperedges([range(size), [0]]).dual.with_self_loops()
            typed = RelationalGraph.from_triples(src, rel, dst, num_nodes=size)
            typed = typed.pad(**sizes, num_src_pairs=3 * size + 1)
            typed.edge_values(values), typed.norm(), typed.relation_degrees()
            hetero = HeteroGraph.from_edges({KEYS[0]: (src, dst)}, {"a": size, "b": size})
            hetero.with_graphs().edge_values({KEYS[0]: values})
    assert not seen


def test_new_arrays_are_on_the_device_of_the_inputs() -> None:
    device = jax.devices()[-1]
    src, dst, values = jax.device_put(
        (SRC.astype(np.int32), DST.astype(np.int32), EDGE_WEIGHT), device
    )
    graph = Graph.from_edges(src, dst, num_nodes=SIZE)
    containers = graph, graph.pad(num_edges=9).symmetrized(), graph.edge_values(values)
    containers = (
        containers,
        Hypergraph.from_incidence(src, dst),
        RelationalGraph.from_triples(src, dst, dst),
    )
    for array in jax.tree.leaves(containers):
        assert array.committed and array.devices() == {device}
    assert not any(
        array.committed for array in jax.tree.leaves(BUILDERS["Graph"]().pad(num_edges=9))
    )
