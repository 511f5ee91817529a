"""The kernels' own checks: wrong buffers, corrupt indices, memory held.

What a kernel is given here never comes from the library's own builders: raw custom calls with wrong
shapes and dtypes must end in errors, and whatever index arrays hold, nothing may be read or written
out of bounds (run under AddressSanitizer or compute-sanitizer, these tests say so).
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import Incidence, stack
from op_suite import IMPLEMENTATIONS, KERNELS, PLATFORM
from primitive_cases import SAMPLES, floats, incidence_arrays, needs_kernels

import jax_gnn
from jax_gnn import Graph, Hypergraph, hypergraph_aggregate, schedules
from jax_gnn._core.csr import EdgeSplit, edge_split
from jax_gnn._core.op import OPS
from jax_gnn._ops.segment_reduce import schedule as segment_schedule

# --- Raw custom calls ----------------------------------------------------------------------------

# The result, the sums of the hyperedges, and what blocks leave to others.
WORKSPACES = (((1, 96), "uint8"), ((1, 96), "uint8"))
AGGREGATE_RESULTS = (((5, 2), "float32"), ((3, 2), "float32"), *WORKSPACES)
AGGREGATE_ATTRIBUTES = {
    "threads": np.int64(128),
    **dict.fromkeys(("has_own", "has_residual", "has_bias"), np.bool_(True)),
    "relu": np.bool_(False),
}


def raw_operands() -> list[Any]:
    """Return the kernel's operands for the primitive's operands."""
    *values, to_hyperedges, to_nodes, residual, bias = SAMPLES["hypergraph_aggregate"]
    values += residual, bias
    for stage in (to_hyperedges.by_row, to_nodes.by_row):
        values += stage.slots if PLATFORM == "cuda" else (stage.indptr, stage.cols)
    return values


def call(target, operands, results, attributes=AGGREGATE_ATTRIBUTES) -> Any:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in results]
    raw = jax.ffi.ffi_call(f"jax_gnn_{target}", shapes)
    return jax.block_until_ready(raw(*operands, **attributes))


@needs_kernels
def test_raw_call() -> None:
    target = "hypergraph_aggregate"
    want = jax.jit(OPS[target].xla)(*SAMPLES[target])
    got = call(target, raw_operands(), AGGREGATE_RESULTS)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def zeros(*shape, dtype="int32") -> np.ndarray:
    return np.zeros(shape, dtype)


# By position of the operand of hypergraph_aggregate: values that the handler must refuse.
WRONG_OPERANDS = {
    0: [
        *(zeros(*shape, dtype="float32") for shape in ((5,), (5, 2, 1), (4, 2), (6, 2))),
        *(zeros(5, 2, dtype=dtype) for dtype in ("int32", "complex64", "float16")),
    ],
    1: [floats(4), floats(5, 1), floats(0), zeros(5)],
    2: [floats(5), zeros(3, dtype="float16")],
    3: [floats(3), floats(), zeros(5)],
    4: [floats(), floats(4), floats(5, 2), zeros(5, dtype="float16")],
    5: [floats(5), floats(5, 3), zeros(5, 2, dtype="float16")],
    6: [floats(), floats(3), zeros(2, dtype="float16")],
}
WRONG_INDICES = {
    7: [
        *(zeros(*shape) for shape in ((0,), (7,), (4, 1))),
        *(zeros(4, dtype=dtype) for dtype in ("int8", "uint32", "float32")),
    ],
    8: [zeros(2, 4), zeros(8, dtype="int16")],
    9: [zeros(5), zeros(7), zeros(0), zeros(6, dtype="float32")],
    10: [zeros(), zeros(8, dtype="float32")],
}
WRONG_SLOTS = {
    7: [zeros(8), zeros(0, 8), zeros(3, 8), zeros(5, 4), zeros(5, 8, dtype="int16")],
    8: [zeros(5, 3), zeros(3, 2)],
    9: [zeros(7, 9), zeros(7, 8, dtype="float32")],
    10: [zeros(), zeros(7, 2, dtype="int16")],
}
WRONG_OPERANDS |= WRONG_SLOTS if PLATFORM == "cuda" else WRONG_INDICES


@needs_kernels
@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(i, value, id=f"{i}-{value.dtype}{list(value.shape)}")
        for i, values in WRONG_OPERANDS.items()
        for value in values
    ],
)
def test_raw_call_with_wrong_operand(position, value) -> None:
    operands = raw_operands()
    operands[position] = value
    with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: "):
        call("hypergraph_aggregate", operands, AGGREGATE_RESULTS)


RESULT, WORKSPACE = (
    r"jax_gnn: .* result has the wrong shape",
    "jax_gnn: the workspace must be bytes",
)


@needs_kernels
@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        *((0, wrong, RESULT) for wrong in (((5, 3), "float32"), ((5, 2), "float16"))),
        *((1, wrong, RESULT) for wrong in (((3, 2), "float16"), ((6,), "float32"))),
        *(
            (position, wrong, WORKSPACE)
            for position in (2, 3)
            for wrong in (((0, 96), "uint8"), ((1, 80), "uint8"), ((1, 96), "int8"))
        ),
    ],
)
def test_raw_call_with_wrong_result(position, wrong, message) -> None:
    results = list(AGGREGATE_RESULTS)
    results[position] = wrong
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call("hypergraph_aggregate", raw_operands(), results)


@needs_kernels
@pytest.mark.parametrize("threads", [0, 16, 100, 2048])
def test_raw_call_with_wrong_schedule(threads) -> None:
    attributes = {**AGGREGATE_ATTRIBUTES, "threads": np.int64(threads)}
    with pytest.raises(jax.errors.JaxRuntimeError, match="jax_gnn: the schedule is wrong"):
        call("hypergraph_aggregate", raw_operands(), AGGREGATE_RESULTS, attributes)


@pytest.mark.skipif("cuda" not in KERNELS, reason="schedules are those of the CUDA kernels")
@pytest.mark.parametrize(
    ("schedule", "reduce", "message"),
    [
        (("step", 8, 256, 1), "max", 'the kernel "step" of 8 lanes and 256 threads cannot do this'),
        (("step", 16, 256, 1), "sum", 'the kernel "step" of 16 lanes'),
        (("step", 8, 128, 1), "sum", 'the kernel "step" of 8 lanes and 128 threads'),
        (("gather", 8, 128, 1), "max", 'the kernel "gather"'),
        (("stride", 8, 128, 1), "sum", "the schedule is wrong"),
        (("walk", 3, 128, 1), "sum", "the schedule is wrong"),
    ],
)
def test_kernels_that_cannot_do_a_call_are_refused(schedule, reduce, message, monkeypatch) -> None:
    """The fallback to a walk, in Python, is disabled."""
    forced = schedules.Schedule(*schedule)
    family = replace(segment_schedule.FAMILY, possible=lambda chosen, op, **call: forced)
    monkeypatch.setattr(segment_schedule, "FAMILY", family)
    graph = Graph.from_edges([0, 1, 2], [1, 1, 0], num_nodes=3)
    jax.clear_caches()  # the family is no part of their keys
    with (
        jax_gnn.implementation("cuda"),
        pytest.raises(jax.errors.JaxRuntimeError, match=f"jax_gnn: {message}"),
    ):
        jax.block_until_ready(jax_gnn.spmm(graph, floats(3, 8), reduce=reduce))
    jax.clear_caches()


@needs_kernels
def test_raw_call_with_wrong_number_of_buffers() -> None:
    operands = raw_operands()
    for wrong, results in (
        (operands[:-1], AGGREGATE_RESULTS),
        ((*operands, operands[-1]), AGGREGATE_RESULTS),
        (operands, AGGREGATE_RESULTS[:1]),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="Wrong number of"):
            call("hypergraph_aggregate", wrong, results)


@pytest.mark.skipif(PLATFORM != "cpu", reason="kernels of a CPU")
@pytest.mark.parametrize(
    ("target", "operands", "result", "message"),
    [
        ("gather_rows", (floats(5, 2), np.zeros(3, np.int32)), ((4, 2), "float32"), "the ids or"),
        ("gather_rows", (floats(5, 2), np.zeros(3, np.int32)), ((3, 3), "float32"), "the ids or"),
        ("gather_rows", (floats(5, 2), np.zeros(3, np.int32)), ((3, 2), "int32"), "the ids or"),
        ("gather_rows", (floats(5, 2), floats(3)), ((3, 2), "float32"), "the ids or"),
        ("gather_rows", (floats(), np.zeros(3, np.int32)), ((3, 2), "float32"), "the input and"),
        ("segment_scatter", (floats(3, 2), np.zeros(4, np.int32)), ((4, 2), "float32"), "the ids"),
        ("segment_scatter", (floats(3, 2), np.zeros(3, np.int32)), ((4, 1), "float32"), "the ids"),
        ("segment_scatter", (floats(3, 2), floats(3)), ((4, 2), "float32"), "the ids"),
        ("segment_scatter", (floats(), np.zeros(0, np.int32)), ((4,), "float32"), "the input and"),
        (
            "segment_scatter",
            (floats(3, 2).astype(np.float16), np.zeros(3, np.int32)),
            ((4, 2), "float16"),
            "half types",
        ),
        ("segment_scatter", (floats(3), np.zeros(3, np.int32), 5), ((4,), "float32"), "no such"),
    ],
)
def test_raw_calls_by_ids_in_any_order(target, operands, result, message) -> None:
    arrays, reduce = operands[:2], operands[2] if len(operands) > 2 else 0
    attributes = {"reduce": np.int64(reduce)} if target == "segment_scatter" else {}
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"jax_gnn: .*{message}"):
        call(target, arrays, [result], attributes)


# --- Corrupt indices -----------------------------------------------------------------------------


def corrupt(rng, size, array) -> np.ndarray:
    """Overwrite some entries by arbitrary ids."""
    # Extremes of the type, ids next to the range, and ids in range at wrong places.
    limits = np.iinfo(np.int32)
    values = rng.choice(
        [limits.min, limits.max, -1, 0, 1, size, size + 1, -size], array.shape
    ).astype(np.int32)
    values = np.where(rng.random(array.shape) < 0.5, values, rng.integers(0, size, array.shape))
    where = rng.random(array.shape) < rng.choice([0.05, 0.5, 1.0])
    return np.where(where, values, array).astype(np.int32)


def corrupted(rng, arrays) -> Hypergraph:
    """Return a hypergraph of corrupt index arrays."""
    size = len(arrays[1])
    ids = rng.choice(size, size).astype(np.int32)
    graph = Graph(*(corrupt(rng, size, array) for array in arrays), t_order=ids, edge_ids=ids)
    return Hypergraph(graph.with_edge_split())


def value_and_gradients(hypergraph, x, weight) -> Any:
    y, vjp = jax.vjp(functools.partial(hypergraph_aggregate, hypergraph), x, weight)
    return y, vjp(jnp.ones_like(y))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("num_nodes", "num_hyperedges", "size", "runs"), [(7, 5, 24, 40), (900, 400, 6000, 4)]
)
def test_corrupt_indices_stay_in_bounds(
    rng, num_nodes, num_hyperedges, size, runs, implementation
) -> None:
    arrays = incidence_arrays(num_nodes, num_hyperedges, size)
    x, weight = np.ones((num_nodes, 20), np.float32), np.ones(num_hyperedges, np.float32)
    jitted = jax.jit(value_and_gradients)
    with jax_gnn.implementation(implementation):
        for _ in range(runs):
            results = jitted(corrupted(rng, arrays), x, weight)
            # Results are anything, but computed from operands of ones, not from other memory.
            for array in jax.tree.leaves(results):
                assert np.isfinite(array).all()
                assert np.abs(array).max() <= 20.0 * size**2


@needs_kernels
@pytest.mark.parametrize("rounds", [(1, 1), (2, 3)])
def test_corrupt_slots_stay_in_bounds(rng, rounds) -> None:
    """Results may be anything, but no kernel waits for ever, or leaves its arrays."""
    num_nodes, num_hyperedges, size = 900, 40, 6000
    arrays = incidence_arrays(num_nodes, num_hyperedges, size)
    x, weight = np.ones((num_nodes, 20), np.float32), np.ones(num_hyperedges, np.float32)
    jitted = jax.jit(value_and_gradients)
    graph = Graph(*arrays, t_order=arrays[5], edge_ids=arrays[5])
    # Two kernels wait for other blocks: corrupt slots must not make them wait for ever.
    splits = [edge_split(arrays[i], arrays[i + 2]) for i in (0, 3)]
    with schedules.use(schedules.HypergraphSchedule(64, *rounds)):
        for _ in range(10):
            split, t_split = (
                EdgeSplit(*(corrupt(rng, size, array) for array in part)) for part in splits
            )
            jax.block_until_ready(
                jitted(Hypergraph(replace(graph, split=split, t_split=t_split)), x, weight)
            )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_corrupt_indices_under_vmap(rng, implementation) -> None:
    arrays = incidence_arrays(7, 5, 24)
    x, weight = np.ones((7, 3), np.float32), np.ones(5, np.float32)
    mapped = jax.jit(jax.vmap(value_and_gradients, in_axes=(0, None, None)))
    with jax_gnn.implementation(implementation):
        for _ in range(10):
            hypergraphs = stack([corrupted(rng, arrays) for _ in range(4)])
            for array in jax.tree.leaves(mapped(hypergraphs, x, weight)):
                assert np.isfinite(array).all()
                assert np.abs(array).max() <= 3.0 * (4 * 24) ** 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_directions_of_different_lengths(implementation) -> None:
    forward, backward = incidence_arrays(7, 5, 24)[:3], incidence_arrays(7, 5, 24)[3:]
    x, weight = np.ones((7, 3), np.float32), np.ones(5, np.float32)
    with jax_gnn.implementation(implementation):
        for num_forward, num_backward in ((3, 24), (24, 0)):
            sides = (forward[0], *(ids[:num_forward] for ids in forward[1:]))
            sides += (backward[0], *(ids[:num_backward] for ids in backward[1:]))
            hypergraph = Hypergraph(Graph(*sides, t_order=sides[-1], edge_ids=sides[2]))
            for array in jax.tree.leaves(value_and_gradients(hypergraph, x, weight)):
                assert np.isfinite(array).all()


# --- Memory --------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("normalization", [None, "symmetric", "row"])
def test_intermediates(rng, normalization) -> None:
    """Forward and forward with backward hold one (num_hyperedges, features) array beside results,
    and two more where the gradient to the hyperedges' weights is asked for.

    With many more hyperedges than nodes, everything else is small: vectors over the hyperedges, and
    node features.
    """
    num_nodes, num_hyperedges, features = 50, 8000, 32
    incidence = Incidence(
        num_nodes,
        num_hyperedges,
        rng.integers(0, num_nodes, 2 * num_hyperedges),
        rng.integers(0, num_hyperedges, 2 * num_hyperedges),
    )
    hypergraph = Hypergraph.from_incidence(
        incidence.left, incidence.right, num_nodes=num_nodes, num_hyperedges=num_hyperedges
    )
    x, weight = floats(num_nodes, features), floats(num_hyperedges)

    def energy(hypergraph, x, weight) -> Any:
        y = hypergraph_aggregate(hypergraph, x, weight, normalization=normalization)
        return jnp.sum(y**2)

    # Bytes of the one large array, and a bound of all others.
    intermediate = 4 * num_hyperedges * features
    small = 4 * (4 * num_hyperedges + 8 * num_nodes * features)
    assert small < intermediate / 4
    tails = 0
    if jax.default_backend() == "gpu":  # what blocks leave to others; one has 16 slots at least
        slots = (incidence.left.size // 8 + rows + 1 for rows in (num_nodes, num_hyperedges))
        tails = sum(-(-num_slots // 16) * (64 + 16 * features) for num_slots in slots)
    for function, count in (
        (energy, 1),
        (jax.value_and_grad(energy, argnums=1), 1),
        (jax.value_and_grad(energy, argnums=(1, 2)), 3),
    ):
        compiled = jax.jit(function).lower(hypergraph, x, weight).compile()
        held = compiled.memory_analysis().temp_size_in_bytes
        assert intermediate <= held <= count * (intermediate + tails) + small
