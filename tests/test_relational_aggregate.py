"""Products by relation summed at destinations: all methods, derivatives, and their choice."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_spec import Case, OpSpec, assert_close, setting
from op_suite import KERNELS, CoreChecks, OpSuite
from relational_cases import (
    RELATIONS,
    Triples,
    aggregate_reference,
    graph_of,
    lookup_reference,
    random_triples,
)

from jax_gnn import RelationalGraph, relational_aggregate, relational_lookup, schedules
from jax_gnn._ops.relational_aggregate.schedule import (
    METHODS,
    Counts,
    chosen,
    expected,
    expected_in_training,
)

EXACT = jax.lax.Precision.HIGHEST  # float32 on every platform
K = 4


def unread(triples: Triples, *features: int) -> np.ndarray:
    """Mask the rows of sources that no edge reads, with the axes of ``features``."""
    used = np.isin(np.arange(triples.num_src), triples.src[triples.valid])
    return np.broadcast_to(~used.reshape(-1, *[1] * len(features)), (len(used), *features))


def make_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
    triples = random_triples(rng, scenario)
    n = int(np.prod(features))
    operands = (
        rng.normal(size=(triples.num_src, K)),
        rng.normal(size=(RELATIONS, K, n)),
        rng.normal(size=len(triples.src)),
    )
    padding = unread(triples, K), None, ~triples.valid
    return Case(graph_of(triples), triples, operands, padding)


def make_lookup_case(rng: np.random.Generator, scenario: str, features: tuple[int, ...]) -> Case:
    triples = random_triples(rng, scenario)
    n = int(np.prod(features))
    table = rng.normal(size=(RELATIONS, triples.num_src, n))
    unused = np.ones(table.shape[:2], bool)
    unused[triples.rel[triples.valid], triples.src[triples.valid]] = False
    operands = table, rng.normal(size=len(triples.src))
    padding = np.broadcast_to(unused[:, :, None], table.shape), ~triples.valid
    return Case(graph_of(triples), triples, operands, padding)


def aggregate_spec(method="auto", **options) -> OpSpec:
    return OpSpec(
        function=lambda graph, x, rhs, weight: relational_aggregate(
            graph, x, rhs, weight, method=method, precision=EXACT
        ),
        reference=aggregate_reference,
        make_case=make_case,
        operands=("x", "rhs", "weight"),
        linear=("x", "rhs", "weight"),
        feature_axis=(None, 2, None),
        result_axis=1,
        composed=True,
        **options,
    )


TRIPLES = np.array([0, 1, 2]), np.array([0, 1, 1]), np.array([1, 0, 0])
GRAPH = RelationalGraph.from_triples(*TRIPLES, num_nodes=3)
X, RHS = np.ones((3, 4)), np.ones((2, 4, 5))


class TestRelationalAggregate(OpSuite):
    spec = aggregate_spec()


class TestByEdge(CoreChecks):
    spec = aggregate_spec("edges")


class TestBySourcePair(CoreChecks):
    spec = aggregate_spec("source_pairs")


class TestByDestinationPair(CoreChecks):
    spec = aggregate_spec("destination_pairs")


class TestRelationalLookup(OpSuite):
    spec = OpSpec(
        function=relational_lookup,
        reference=lookup_reference,
        make_case=make_lookup_case,
        operands=("table", "weight"),
        linear=("table", "weight"),
        feature_axis=(2, None),
        result_axis=1,
    )


PARTS: Sequence[tuple[str, ...]] = ((), ("from_pairs",), ("to_pairs",))


@pytest.mark.parametrize("parts", PARTS, ids=repr)
@pytest.mark.parametrize("method", ["auto", "edges"])
def test_graphs_with_few_parts(rng, parts, method):
    """Values and gradients, with transposed weights and edges without weights."""
    triples = random_triples(rng, "padding")
    graph = graph_of(triples, parts=parts)
    x, rhs = rng.normal(size=(triples.num_src, K)), rng.normal(size=(RELATIONS, K, 3))
    weight, ct = rng.normal(size=len(triples.src)), rng.normal(size=(triples.num_dst, 3))

    @jax.jit
    def both(graph, x, rhs, weight):
        def function(x, rhs, weight):
            y = relational_aggregate(
                graph,
                x,
                rhs.swapaxes(1, 2),
                weight,
                method=method,
                transpose_rhs=True,
                precision=EXACT,
            )
            unweighted = relational_aggregate(graph, x, rhs, method=method, precision=EXACT)
            return (
                y + unweighted + relational_lookup(graph, jnp.tanh(rhs[:, :1] * x[:, :1]), weight)
            )

        y, vjp = jax.vjp(function, x, rhs, weight)
        return y, vjp(ct)

    def reference(x, rhs, weight):
        src, rel, dst = (jnp.asarray(ids[triples.valid]) for ids in triples[:3])
        w = weight[triples.valid][:, None]
        table = jnp.tanh(rhs[:, :1] * x[:, :1])
        messages = (w + 1) * jnp.einsum("ek,ekn->en", x[src], rhs[rel]) + w * table[rel, src]
        return jnp.zeros((triples.num_dst, 3)).at[dst].add(messages)

    with setting(None, "float64"):
        got, gradients = both(graph, x, rhs, weight)
        want, vjp = jax.vjp(reference, x, rhs, weight)
        assert_close(got, want, 1e-12, "value")
        for name, a, b in zip(("x", "rhs", "weight"), gradients, vjp(ct), strict=True):
            assert_close(a, b, 1e-12, name)


def test_method_needs_its_part():
    graph = RelationalGraph.from_triples(*TRIPLES, num_nodes=3, parts=("to_pairs",))
    with pytest.raises(ValueError, match=r"method='source_pairs' goes through 'from_pairs', which"):
        relational_aggregate(graph, X, RHS, method="source_pairs")


# --- The choice ----------------------------------------------------------------------------------


def counts(*sizes: int, source_pairs: int, destination_pairs: int, width: int = 64) -> Counts:
    num_nodes, edges, relations = sizes
    return Counts(
        num_src=num_nodes,
        num_dst=num_nodes,
        edges=edges,
        relations=relations,
        source_pairs=source_pairs,
        destination_pairs=destination_pairs,
        k=width,
        n=width,
        itemsize=4,
    )


# Nodes, edges with self-loops, relations and pairs of public graphs with inverse relations.
AIFB = counts(8285, 66371, 91, source_pairs=34710, destination_pairs=34710)
FB15K = counts(14541, 634773, 475, source_pairs=176463, destination_pairs=176463)
# Edges from many sources by few relations: few destination pairs.
FEW_DESTINATIONS = counts(
    1_000_000, 20_000_000, 4, source_pairs=9_000_000, destination_pairs=500_000
)


def test_choice():
    assert chosen(AIFB) == chosen(FB15K) == "source_pairs"
    assert chosen(FEW_DESTINATIONS) == "destination_pairs"
    assert chosen(FEW_DESTINATIONS.T) == "source_pairs"
    # A method that is faster in inference, but slower with gradients by more, is not chosen.
    wide = counts(93773, 4856451, 52, source_pairs=808174, destination_pairs=855801, width=128)
    times, in_training = expected(wide), expected_in_training(wide)
    assert times["destination_pairs"] < times["source_pairs"]
    assert in_training["destination_pairs"] > in_training["source_pairs"]
    assert chosen(wide) == "source_pairs"
    without = FB15K._replace(source_pairs=0, destination_pairs=0)
    assert chosen(without) == "edges"


def test_expected_times():
    """Time of FB15k-237 by hand: a launch takes 1.7 µs, and 4 µs more if it waits for another."""
    times = expected(FB15K)
    assert tuple(times) == METHODS
    mb = 1e-6 * 256
    products = (2 * 176463 * mb + 475 * 64 * 0.256 * 1e-3 + 176463 * 4e-6) / 9
    sums = (634773 * (mb + 12e-6) + 14541 * mb) / 9
    assert times["source_pairs"] == pytest.approx(products + sums + 2 * 1.7 + 4, rel=1e-3)


def test_method_of_a_schedule():
    def programs(schedule) -> str:
        def function(x):
            return relational_aggregate(GRAPH, x, RHS)

        with schedules.use(schedule):
            return jax.jit(function).lower(X).as_text()

    by_source, by_destination = (
        programs(schedules.RelationalSchedule(way)) for way in ("source_pairs", "destination_pairs")
    )
    assert by_source != by_destination
    assert by_source == programs(None)


@pytest.mark.parametrize("implementation", KERNELS)
def test_training_computes_shared_sums_once(rng, implementation):
    """The compiled program sums cotangents by source pair once for both gradients."""
    graph = graph_of(random_triples(rng, "random"))
    x, rhs = np.ones((graph.num_src, K), np.float32), np.ones((RELATIONS, K, 3), np.float32)

    def loss(x, rhs):
        return jnp.sin(relational_aggregate(graph, x, rhs, method="source_pairs")).sum()

    with setting(implementation):
        program = jax.jit(jax.grad(loss, (0, 1))).lower(x, rhs).compile().as_text()
    calls = collections.Counter(re.findall(r'custom_call_target="jax_gnn_(\w+)"', program))
    assert calls == {"segment_matmul": 2, "segment_outer": 1, "segment_reduce": 3}


def test_method_of_a_block():
    """Blocks with few destinations sum into destination pairs first; full graphs do not."""
    sizes = {"edges": 80_000, "relations": 4, "k": 128, "n": 128, "itemsize": 4}
    block = Counts(36_000, 8_000, source_pairs=80_000, destination_pairs=32_000, **sizes)
    assert chosen(block) == "destination_pairs"
    full = Counts(20_000, 20_000, source_pairs=60_000, destination_pairs=60_000, **sizes)
    assert chosen(full) == "source_pairs"
