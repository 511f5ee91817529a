"""Schedules: chosen, tuned, kept in a cache file, measured, fitted and written down."""

import errno
import functools
import io
import itertools
import json
import multiprocessing
import os
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import on_cuda

from jax_gnn import RelationalGraph, cli, schedules
from jax_gnn._core import schedule as core_schedule
from jax_gnn._core import schedule_cache
from jax_gnn._core.schedule import Family, leaf
from jax_gnn._core.schedule_cache import Tuned
from jax_gnn._ops import use_implementation
from jax_gnn._ops.attention.schedule import FAMILY as ATTENTION_FAMILY
from jax_gnn._ops.hypergraph_aggregate import schedule as hypergraph_schedule
from jax_gnn._ops.hypergraph_aggregate.schedule import FAMILY as HYPERGRAPH
from jax_gnn._ops.hypergraph_aggregate.schedule import stage_features
from jax_gnn._ops.relational_aggregate.api import counts_of
from jax_gnn._ops.relational_aggregate.schedule import FAMILY as RELATIONAL
from jax_gnn._ops.relational_aggregate.schedule import chosen
from jax_gnn._ops.segment_matmul.schedule import FAMILY as MATMUL
from jax_gnn._ops.segment_reduce import schedule as segments
from jax_gnn._ops.segment_reduce.schedule import FAMILY as SEGMENT
from jax_gnn._ops.segment_reduce.schedule import covering_lanes
from jax_gnn._tuning import command, matmul, segment
from jax_gnn._tuning.measure import measure
from jax_gnn._tuning.timing import Kernel
from jax_gnn.schedules import HypergraphSchedule, MatmulSchedule, Schedule

# The benchmarks belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import schedule_times, segment_times
from benchmarks import schedules as rules
from benchmarks.__main__ import main as benchmark
from benchmarks.schedule_times import Database, Row
from benchmarks.workloads import uniform

SHAPE = {
    "op": "segment_reduce",
    "entries": 900_000,
    "rows": 90_000,
    "width": 64,
    "itemsize": 4,
    "gather": False,
}
RESULTS = Path(rules.__file__).parent / "results"
TUNED = Tuned(("walk", 4, 128, 77), 10.0, 15.0)

PRODUCT = {"op": "segment_matmul", "rows": 900_000, "groups": 90, "k": 32, "n": 64, "itemsize": 4}
TUNED_PRODUCT = Tuned(("persistent", 64, 0, 77), 10.0, 15.0)
# Tests replace these.
DEVICE_KIND = schedule_cache.device_kind.__wrapped__
CAPABILITY = schedule_cache.compute_capability.__wrapped__


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Set up an empty cache, on a machine with a GPU called "gpu"."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(schedule_cache, "device_kind", lambda: "gpu")
    monkeypatch.setattr(schedule_cache, "compute_capability", lambda: None)
    clear_process_caches()
    yield schedule_cache.path()
    clear_process_caches()


def clear_process_caches():
    # Both caches live as long as the process, so clearing them stands for a new process.
    schedule_cache._cached.cache_clear()
    schedule_cache._shipped.cache_clear()


class CountingTimer:
    """The n-th call took n seconds; every call is run."""

    def measure(self, calls, repeats):
        for call in calls.values():
            jax.block_until_ready(call())
        return {key: [float(n)] * repeats for n, key in enumerate(calls, start=1)}


def edges(num_edges=2_000, num_nodes=40):
    return command.power_law_edges(num_nodes, num_edges)


# The choice.


def shapes():
    # Sizes include empty operands and sizes beyond 32 bits, which overflow if computed in int32.
    ops = "segment_reduce", "segment_reduce_vjp", "segment_select", "softmax"
    sizes = (0, 1, 1_000, 10**6, 10**10)
    for op, entries, rows, width, itemsize, gather in itertools.product(
        ops, sizes, sizes, (1, 4, 33, 128), (2, 4, 8), (False, True)
    ):
        yield {
            "op": op,
            "entries": entries,
            "rows": rows,
            "width": width,
            "itemsize": itemsize,
            "gather": gather,
        }


def test_every_shape_has_a_valid_schedule():
    for shape in shapes():
        schedule = SEGMENT.choose(**shape)
        assert isinstance(schedule, Schedule)
        assert schedule == SEGMENT.choose(**shape)
        assert schedule.lanes in (1, 2, 4, 8, 16, 32)
        assert schedule.threads in (64, 128, 256)
        assert schedule.blocks >= 1
        assert schedule.kernel in ("walk", "gather", "step")


def test_teams_of_both_gradients_hold_a_row():
    small = {"entries": 10_000, "rows": 2_700, "itemsize": 4, "gather": True}
    large = small | {"entries": 10**6, "rows": 10**5}

    def choose(**call):
        return SEGMENT.choose("segment_reduce_vjp", **call)

    # The kernel of one step: 2,048 entries and lanes a block.
    assert choose(**small, width=4) == Schedule("step", 8, 256, 40)
    assert choose(**small, width=64) == Schedule("step", 16, 256, 79)
    assert choose(**small, width=128) == Schedule("step", 32, 256, 157)
    # The walk of each team by itself, in float32, and through an order where rows stay in L2.
    each_team = Schedule("gather", 16, 128, 660)
    assert choose(**large, width=64) == each_team
    assert choose(**large, width=64, ordered=True, cols=50_000) == each_team
    for shape in (
        large | {"width": 64, "ordered": True},
        large | {"width": 32, "ordered": True, "cols": 1_000},
        large | {"width": 64, "itemsize": 2},
        large | {"width": 64, "gather": False},
        large | {"width": 64, "depth": 1},  # a team would need 64 lanes
        large | {"width": 256},
        small | {"width": 256},
    ):
        assert choose(**shape) == SEGMENT.choose("segment_reduce", **shape, sums=False)


def test_small_sums_get_the_step_kernel():
    small = {"entries": 10_000, "rows": 2_700, "width": 64, "itemsize": 4, "gather": True}
    # The step kernel has a block for 2,048 entries times lanes: 10,000 * 8 / 2,048 are 40 blocks.
    one_step = SEGMENT.choose("segment_reduce", **small, sums=True)
    assert one_step == Schedule("step", 8, 256, 40)
    for call in (
        small | {"sums": False},
        small | {"sums": True, "entries": 10**6},
        small | {"sums": True, "width": 63 * 64},
    ):
        assert SEGMENT.choose("segment_reduce", **call)[1:3] != one_step[1:3]
    medium = small | {"sums": True, "entries": 90_000, "width": 128}
    assert SEGMENT.choose("segment_reduce", **medium)[1:3] != one_step[1:3]
    assert SEGMENT.choose("segment_reduce", **medium, epilogue=True)[1:3] == one_step[1:3]


def test_large_gathered_sums_get_the_gather_kernel():
    large = {"entries": 900_000, "rows": 90_000, "width": 64, "itemsize": 4, "gather": True}
    assert SEGMENT.choose("segment_reduce", **large, sums=True).kernel == "gather"
    for call in (
        large | {"sums": False},
        large | {"sums": True, "entries": 90_000, "width": 128},  # a handful for each team
        large | {"sums": True, "width": 16},
        large | {"sums": True, "width": 63},
        large | {"sums": True, "entries": 150_000, "width": 32},
        large | {"sums": True, "gather": False},
    ):
        assert SEGMENT.choose("segment_reduce", **call).kernel != "gather"


@pytest.mark.parametrize(
    ("schedule", "able", "unable"),
    [
        (Schedule("step", 8, 256, 1), {}, {"sums": False}),
        (Schedule("step", 8, 256, 1), {"entries": 2**30}, {"entries": 2**30 + 1}),
        (Schedule("step", 8, 256, 1), {"weights": 2**32}, {"weights": 2**32 + 1}),
        (Schedule("step", 16, 256, 1), {"op": "segment_reduce_vjp"}, {}),
        (Schedule("step", 16, 256, 1), {"op": "segment_reduce_vjp"}, {"op": "segment_select"}),
        (Schedule("gather", 8, 128, 9), {}, {"sums": False}),
        (Schedule("gather", 8, 128, 9), {"width": 64}, {"width": 63}),
        (Schedule("gather", 8, 128, 9), {"gather": False, "weights": 9}, {"gather": False}),
        (
            Schedule("gather", 16, 128, 9),
            {"op": "segment_reduce_vjp"},
            {"op": "segment_reduce_vjp", "itemsize": 2},
        ),
    ],
)
def test_walk_kernel_is_the_fallback(schedule, able, unable):
    # A forced schedule keeps its lanes, threads and blocks; only the kernel is replaced.
    call = SHAPE | {"gather": True}
    with schedules.use(schedule):
        assert SEGMENT.choose(**call | able) == schedule
        assert SEGMENT.choose(**call | unable) == schedule._replace(kernel="walk")


def test_narrow_contiguous_rows_fill_the_device_once():
    narrow = {"entries": 900_000, "rows": 90_000, "itemsize": 4, "gather": False}
    # 1,584 blocks are 12 for each of the 132 multiprocessors of an H200. Rows below 16 bytes take
    # half of the registers, and two rounds of blocks.
    for width, lanes in ((1, 1), (2, 1), (4, 1), (8, 2), (12, 4), (16, 4)):
        for sums in (True, False):
            schedule = SEGMENT.choose("segment_reduce", **narrow, width=width, sums=sums)
            assert schedule == Schedule("walk", lanes, 64, 4224 if width <= 2 else 1584)
    for shape in (
        narrow | {"width": 32},
        narrow | {"width": 6},  # loads of one feature
        narrow | {"width": 16, "gather": True},
        narrow | {"width": 16, "entries": 100_000},  # the step kernel
    ):
        assert SEGMENT.choose("segment_reduce", **shape, sums=True).threads > 64


def test_symbolic_sizes_count_as_typical_sizes():
    many, few, width = jax.export.symbolic_shape("many, few, width")
    # `jax.export` traces with symbolic sizes, which no rule can compare with numbers.
    typical = {"entries": 2**16, "rows": 2**16, "width": 64}
    symbolic = SHAPE | {"entries": many, "rows": few, "width": width}
    assert SEGMENT.choose(**symbolic) == SEGMENT.choose(**SHAPE | typical)
    assert MATMUL.choose(**PRODUCT | {"rows": many}) == MATMUL.choose(**PRODUCT | {"rows": 2**16})


def test_forced_schedule_takes_precedence_and_retraces():
    forced = Schedule("walk", 8, 128, 3)
    schedule_cache.store("gpu", {SEGMENT.key(**SHAPE): TUNED})
    traces = []  # a retrace happens only if the schedule is in the key of the compiled function

    @jax.jit
    def function(x):
        traces.append(SEGMENT.choose(**SHAPE))
        return x

    with schedules.use(forced):
        assert SEGMENT.choose(**SHAPE) == forced
        function(1.0)
        function(2.0)
        with schedules.use(None):
            assert SEGMENT.choose(**SHAPE) == Schedule(*TUNED.schedule)
    function(3.0)
    assert traces == [forced, Schedule(*TUNED.schedule)]


def test_every_product_has_a_valid_schedule():
    sizes = (0, 1, 300, 10**6, 2**31)
    widths = [(width, 64) for width in (0, 1, 17, 64, 1000)] + [(0, 0), (0, 1000), (1000, 0)]
    for op, rows, groups, (k, n), itemsize in itertools.product(
        matmul.OPS, sizes, (0, 1, 100, 10**4), widths, (2, 4, 8)
    ):
        shape = {"rows": rows, "groups": groups, "k": k, "n": n, "itemsize": itemsize}
        schedule = MATMUL.choose(op, **shape)
        assert isinstance(schedule, MatmulSchedule)
        assert schedule == MATMUL.choose(op, **shape)
        assert schedule.tile in (64, 128)
        assert schedule.chunk >= 0
        assert schedule.blocks >= 1


def test_products_of_few_tiles_get_the_single_kernel():
    few = {"rows": 25_000, "groups": 90, "k": 64, "n": 64, "itemsize": 4}  # 482 tiles

    def kernel(**call):
        return MATMUL.choose("segment_matmul", **few | call).kernel

    assert kernel() == kernel(itemsize=2, exact=True) == kernel(rows=100_000, gathers=True)
    assert kernel() == kernel(groups=1025, sizes=3) == "single"
    for options in (
        {"rows": 100_000},
        {"n": 128},
        {"sizes": 1025},
        {"k": 65},
        {"k": 33},
        {"k": 0},
        {"itemsize": 8},
        {"exact": True},
        {"widens": True},
    ):
        assert kernel(**options) == "persistent"
    assert MATMUL.choose("segment_outer", **few).kernel == "persistent"
    with schedules.use(MatmulSchedule("single", 64, 0, 1)):
        assert kernel(rows=100_000) == "single"
        assert kernel(k=65) == "persistent"


def test_forced_schedule_applies_to_its_family():
    of_segments, of_products = Schedule("walk", 8, 128, 3), MatmulSchedule("persistent", 64, 4, 9)
    chosen = SEGMENT.choose(**SHAPE), MATMUL.choose(**PRODUCT)
    assert of_segments not in chosen
    assert of_products not in chosen
    with schedules.use(of_segments):
        assert SEGMENT.choose(**SHAPE) == of_segments
        assert MATMUL.choose(**PRODUCT) == chosen[1]
    schedule_cache.store("gpu", {MATMUL.key(**PRODUCT): TUNED_PRODUCT})
    with schedules.use(of_products):
        assert SEGMENT.choose(**SHAPE) == chosen[0]
        assert MATMUL.choose(**PRODUCT) == of_products


def test_every_hypergraph_has_a_valid_schedule():
    sizes = (0, 1, 300, 10**5, 2**31)
    for incidences, nodes, hyperedges, width, itemsize in itertools.product(
        sizes, sizes, sizes, (0, 1, 17, 64, 1000), (2, 4, 8)
    ):
        shape = {"incidences": incidences, "nodes": nodes, "hyperedges": hyperedges}
        schedule = HYPERGRAPH.choose(*HYPERGRAPH.ops, **shape, width=width, itemsize=itemsize)
        assert isinstance(schedule, HypergraphSchedule)
        assert schedule.threads in schedule_times.THREADS
        assert {schedule.rounds, schedule.next_rounds} <= set(schedule_times.ROUNDS)


def test_hypergraph_rule_chooses_for_each_sum(monkeypatch):
    queries = []
    monkeypatch.setattr(
        hypergraph_schedule, "leaf", lambda _, features: queries.append(features) or len(queries)
    )
    shape = {"incidences": 80_000, "nodes": 9_000, "hyperedges": 2_000, "width": 64, "itemsize": 2}
    schedule = HYPERGRAPH.rule(*HYPERGRAPH.ops, **shape)
    assert schedule == HypergraphSchedule(128, 1, 2)
    # Of 2 and then 4 bytes: teams of 8 and of 16 lanes, of which 12,672 and 6,336 run at once.
    assert queries == [
        {"to_nodes": False, "waves": 11_000 / 12_672, "average_degree": 40.0, "row_bytes": 128},
        {"to_nodes": True, "waves": 14_500 / 6_336, "average_degree": 80 / 9, "row_bytes": 256},
    ]


@pytest.mark.parametrize(
    ("width", "itemsize", "lanes"),
    [(1, 4, 1), (4, 4, 1), (5, 4, 8), (16, 4, 4), (64, 4, 16), (64, 2, 8), (512, 4, 32), (3, 2, 4)],
)
def test_lanes_cover_a_row(width, itemsize, lanes):
    assert covering_lanes(width, itemsize) == lanes
    call = segment.Call("spmm", edges(), width, {2: "float16", 4: "float32"}[itemsize])
    tried = {schedule.lanes for schedule in call.candidates() if schedule.kernel == "walk"}
    assert tried == {max(lanes // parts, 1) for parts in (1, 2, 4)}


# Trees.


@pytest.fixture
def trees(monkeypatch, tmp_path):
    """Return a function that puts trees of compute capability 1.2 in place of the library's."""

    def install(**trees):
        path = tmp_path / "trees.json"
        path.write_text(json.dumps({"trees": {"1.2": trees}}))
        monkeypatch.setattr(core_schedule, "TREES", path)
        monkeypatch.setattr(schedule_cache, "compute_capability", lambda: "1.2")
        core_schedule._trees.cache_clear()

    yield install
    core_schedule._trees.cache_clear()


GATHERED = SHAPE | {"gather": True}
CONTIGUOUS = "walk", 16, 64, 7
ATTENTION = {"op": "attention", "entries": 10**6, "rows": 9, "cols": 9, "width": 64, "itemsize": 4}
ATTENTION |= {"heads": 1, "keys": 0}


def test_trees_of_the_gpu_come_before_the_rule_by_hand(trees, monkeypatch):
    trees(
        segment_sum="walk 0 64 7",
        spmm=["entries", 1e6, ["mean_length", 9.5, "by hand", "gather 1 32 5"], "step tile"],
        spmm_vjp="step row",
        attention=["work", 1.6e7, "step", "walk"],
    )
    assert SEGMENT.choose(**SHAPE) == CONTIGUOUS
    assert SEGMENT.choose(**GATHERED) == Schedule("gather", 8, 32, 5)
    assert SEGMENT.choose(**GATHERED | {"entries": 1_000_001}) == segments.one_step(1_000_001)
    assert ATTENTION_FAMILY.choose(**ATTENTION).kernel == "step"
    assert ATTENTION_FAMILY.choose(**ATTENTION | {"width": 65}).kernel == "walk"
    by_hand = [
        GATHERED | {"rows": 100_000},  # by the tree
        GATHERED | {"sums": False},
        GATHERED | {"op": "segment_reduce_vjp", "width": 256},  # no team holds a row
        GATHERED | {"width": 63},  # no words for the kernel "gather"
        SHAPE | {"op": "softmax"},
        SHAPE | {"itemsize": 8},
    ]
    for call in by_hand:
        assert SEGMENT.choose(**call) == SEGMENT.possible(segments.by_hand(**call), **call)
    schedule_cache.store("gpu", {SEGMENT.key(**SHAPE): TUNED})
    assert SEGMENT.choose(**SHAPE) == Schedule(*TUNED.schedule)
    with schedules.use(Schedule("walk", 8, 128, 3)):
        assert SEGMENT.choose(**SHAPE) == Schedule("walk", 8, 128, 3)
    for capability in ("9.9", None):
        monkeypatch.setattr(schedule_cache, "compute_capability", lambda kind=capability: kind)
        assert SEGMENT.choose(**GATHERED) == segments.by_hand(**GATHERED)
        assert ATTENTION_FAMILY.choose(**ATTENTION).kernel == "walk"


@on_cuda
@pytest.mark.parametrize("kind", segment_times.LEAVES)
def test_results_do_not_depend_on_the_leaf(kind, trees, monkeypatch):
    """Kernels can do every leaf, for calls as they are drawn, whose shape is that of the rule."""
    shapes, choose = [], Family.choose
    monkeypatch.setattr(
        Family, "choose", lambda self, op, **call: shapes.append(call) or choose(self, op, **call)
    )
    edges = segment_times.draw_edges("hubs", 700, 5.0, 0.5)
    drawn = (segment_times.draw_calls(edges, seed) for seed in range(9))
    calls = [call for calls in drawn for call in calls if call.kind == kind]
    for call in [*calls[:2], next(call for call in calls if call.dtype == "float32")]:
        operands, outputs = call.operands(), []
        for name in segment_times.LEAVES[kind]:
            trees(**{kind: name})
            shapes.clear()
            with use_implementation("cuda"):
                outputs.append(jax.jit(lambda *x, call=call: call.function(*x))(*operands))
            assert call.shape in shapes
        tolerance = 2e-2 if call.dtype == "bfloat16" else 1e-4
        for output in outputs[1:]:
            for array, expected in zip(*map(jax.tree.leaves, (output, outputs[0])), strict=True):
                atol = tolerance * max(float(jnp.abs(expected).max()), 1)
                pair = (np.asarray(x, np.float64) for x in (array, expected))
                np.testing.assert_allclose(*pair, atol=atol, err_msg=str(call))


# The cache.


@pytest.mark.parametrize(
    ("family", "shape", "tuned", "similar", "changes"),
    [
        (
            SEGMENT,
            SHAPE,
            TUNED,
            {"entries": 950_000},
            {"entries": 4_000_000, "rows": 1_000_000, "width": 32, "itemsize": 2}
            | {"gather": True, "op": "softmax"},
        ),
        (
            MATMUL,
            PRODUCT,
            TUNED_PRODUCT,
            {"rows": 950_000, "groups": 80},
            {"rows": 4_000_000, "groups": 40, "k": 64, "n": 32, "itemsize": 2}
            | {"op": "segment_outer"},
        ),
    ],
    ids=["segment", "matmul"],
)
def test_tuned_schedules_serve_similar_shapes_of_later_processes(
    family, shape, tuned, similar, changes
):
    before = family.choose(**shape)
    schedule_cache.store("gpu", {family.key(**shape): tuned})
    clear_process_caches()
    for call in (shape, shape | similar):
        assert family.choose(**call) == tuned.schedule != before
    # A change of any one size or flag by a factor of two or more leaves the tuned class.
    for name, value in changes.items():
        call = shape | {name: value}
        assert family.choose(**call) == family.rule(**call)


def test_user_schedules_override_shipped_schedules(tmp_path, monkeypatch):
    shipped = tmp_path / "shipped.json"
    monkeypatch.setattr(schedule_cache, "SHIPPED", shipped)
    key = MATMUL.key(**PRODUCT)
    tuned = Tuned(("persistent", 128, 32, 5), 1.0, 2.0)
    document = {"version": schedule_cache.VERSION, "devices": {"gpu": {key: TUNED_PRODUCT}}}
    shipped.write_text(json.dumps(document))
    assert MATMUL.choose(**PRODUCT) == MatmulSchedule(*TUNED_PRODUCT.schedule)
    schedule_cache.store("gpu", {key: tuned})
    assert MATMUL.choose(**PRODUCT) == MatmulSchedule(*tuned.schedule)


def test_shipped_schedules_are_faster_than_the_rule(monkeypatch):
    # Shipped schedules are for one device, which the test stands in for.
    (entries,) = schedule_cache._shipped().values()
    monkeypatch.setattr(schedule_cache, "device_kind", lambda: "NVIDIA H200")
    for key, tuned in entries.items():
        assert tuned.microseconds < tuned.rule_microseconds
        assert schedule_cache.lookup(key) == tuned.schedule


def test_schedules_of_another_device_are_not_used(monkeypatch):
    schedule_cache.store("another gpu", {SEGMENT.key(**SHAPE): TUNED})
    assert SEGMENT.choose(**SHAPE) != Schedule(*TUNED.schedule)
    monkeypatch.setattr(schedule_cache, "device_kind", lambda: None)
    assert SEGMENT.choose(**SHAPE) != Schedule(*TUNED.schedule)


@pytest.mark.parametrize(
    ("kinds", "want"), [(["a", "a"], "a"), (["a", "b"], None), ([], None)], ids=str
)
def test_kind_and_capability_of_mixed_devices(monkeypatch, kinds, want):
    devices = [types.SimpleNamespace(device_kind=k, compute_capability=k) for k in kinds]
    monkeypatch.setattr(jax, "local_devices", lambda backend: devices)
    assert DEVICE_KIND() == CAPABILITY() == want


SEGMENT_KEY = SEGMENT.key(**SHAPE)


def document(schedule, *times, key=SEGMENT_KEY):
    """Return the text of a cache with one schedule."""
    devices = {"gpu": {key: [schedule, *(times or (3, 4))]}}
    return json.dumps({"version": schedule_cache.VERSION, "devices": devices})


AGGREGATION = {"incidences": 1000, "nodes": 100, "hyperedges": 100, "width": 64, "itemsize": 4}
PRODUCT_KEY = MATMUL.key(**PRODUCT)
HYPERGRAPH_KEY = HYPERGRAPH.key(*HYPERGRAPH.ops, **AGGREGATION)
# Values that would crash a kernel, or that a schedule of another family has, are refused.
BROKEN_CACHES = {
    "empty": "",
    "cut off": "{",
    "a list": "[]",
    "version": json.dumps({"version": schedule_cache.VERSION + 1, "devices": {}}),
    "no devices": json.dumps({"version": schedule_cache.VERSION}),
    "devices": json.dumps({"version": schedule_cache.VERSION, "devices": [[]]}),
    "entries": json.dumps({"version": schedule_cache.VERSION, "devices": {"gpu": [1]}}),
    "not UTF-8": "\xff",
    "nested": "[" * 100_000,
    "nested schedule": document(["gather", 4, 128, 1]).replace('"gather"', "[" * 900 + "]" * 900),
    "short": document([1, 2]),
    "long": document(["gather", 4, 128, 1, 1]),
    "number": document(3),
    "text": document("True"),
    "one time": document(["gather", 4, 128, 1], 3),
    "three times": document(["gather", 4, 128, 1], 3, 4, 5),
    "no time": document(["gather", 4, 128, 1], 3, None),
    "time in words": document(["gather", 4, 128, 1], 3, "4"),
    "time nan": document(["gather", 4, 128, 1], 3, float("nan")),
    "time inf": document(["gather", 4, 128, 1], 3, float("inf")),
    "time 0": document(["gather", 4, 128, 1], 0, 4),
    "time of 400 digits": document(["gather", 4, 128, 1], 3, 10**400),
    "time of 5000 digits": document(["gather", 4, 128, 1]).replace("4]", "4" * 5000 + "]"),
    "blocks -1": document(["gather", 4, 128, -1]),
    "blocks 0": document(["gather", 4, 128, 0]),
    "blocks 2^40": document(["gather", 4, 128, 2**40]),
    "blocks 2^64": document(["gather", 4, 128, 2**64]),
    "blocks 1.0": document(["gather", 4, 128, 1.0]),
    "blocks true": document(["gather", 4, 128, True]),
    "kernel 1": document([1, 4, 128, 1]),
    "kernel true": document([True, 4, 128, 1]),
    "another kernel": document(["warp", 4, 128, 1]),
    "3 lanes": document(["walk", 3, 128, 1]),
    "64 lanes": document(["walk", 64, 128, 1]),
    "2048 threads": document(["walk", 4, 2048, 1]),
    "100 threads": document(["walk", 4, 100, 1]),
    "0 threads": document(["walk", 4, 0, 1]),
    "of segments, for a product": document(TUNED.schedule, key=PRODUCT_KEY),
    "kernel of segments": document(["walk", 64, 0, 8], key=PRODUCT_KEY),
    "tile 96": document(["persistent", 96, 0, 8], key=PRODUCT_KEY),
    "chunk -1": document(["persistent", 64, -1, 8], key=PRODUCT_KEY),
    "chunk 2^31": document(["persistent", 64, 2**31, 8], key=PRODUCT_KEY),
    "2^20 blocks of a product": document(["persistent", 64, 0, 2**20], key=PRODUCT_KEY),
    "2048 threads of a hypergraph": document([2048, 1, 1], key=HYPERGRAPH_KEY),
    "no rounds": document([128, 0, 1], key=HYPERGRAPH_KEY),
    "2^63 rounds": document([128, 1, 2**63], key=HYPERGRAPH_KEY),
}


def test_ops_of_other_versions_are_kept_and_shown(cache, capsys):
    """Entries of a newer version stay in the file, and the known entries are used."""
    # The writer keeps unknown entries, so two versions can share the file.
    cache.parent.mkdir()
    cache.write_text(document((7, 8), key="new_op width 4"))
    schedule_cache.store("gpu", {SEGMENT.key(**SHAPE): TUNED})
    clear_process_caches()
    assert SEGMENT.choose(**SHAPE) == Schedule(*TUNED.schedule)
    assert schedule_cache.read()["gpu"]["new_op width 4"] == Tuned((7, 8), 3.0, 4.0)
    assert tune("--show") == 0
    assert "of an op that this version does not know: (7, 8)" in capsys.readouterr().out


@pytest.mark.parametrize("text", BROKEN_CACHES.values(), ids=BROKEN_CACHES)
def test_a_broken_cache_is_ignored_with_a_warning_and_replaced(cache, text):
    cache.parent.mkdir()
    cache.write_bytes(text.encode("latin-1"))  # "\xff" becomes a byte that UTF-8 cannot have
    with pytest.warns(RuntimeWarning, match="ignoring the tuned schedules in .*--clear"):
        schedule = SEGMENT.choose(**SHAPE)
    assert schedule == SEGMENT.choose(**SHAPE)  # warned once
    schedule_cache.store("gpu", {SEGMENT.key(**SHAPE): TUNED})
    clear_process_caches()
    assert SEGMENT.choose(**SHAPE) == Schedule(*TUNED.schedule)


@pytest.mark.parametrize("key", [SEGMENT_KEY, PRODUCT_KEY, HYPERGRAPH_KEY])
def test_extreme_schedules_are_read(cache, key):
    """The least and the most of what is read, since what is broken is broken by one step."""
    fields = {PRODUCT_KEY: ("persistent", 64, 0, 1), HYPERGRAPH_KEY: (32, 1, 1)}.get(
        key, ("walk", 1, 32, 1)
    )
    most = {
        PRODUCT_KEY: ("single", 128, 2**16 - 1, 2**13 - 1),
        HYPERGRAPH_KEY: (1024, *[2**16 - 1] * 2),
    }
    cache.parent.mkdir()
    for schedule in (fields, most.get(key, ("step", 32, 1024, 2**16 - 1))):
        cache.write_text(document(schedule, key=key))
        assert schedule_cache.read() == {"gpu": {key: Tuned(schedule, 3.0, 4.0)}}


@pytest.mark.parametrize("what", ["folder", "below a file", "unreadable"])
def test_unreadable_cache_is_ignored_with_a_warning(cache, what, monkeypatch):
    if what == "folder":
        cache.mkdir(parents=True)
    elif what == "below a file":
        cache.parent.write_text("")
    else:

        def refuse(file, *encoding):
            if file == cache:
                raise PermissionError(errno.EACCES, "Permission denied")
            return read_text(file, *encoding)

        read_text = Path.read_text
        monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.warns(RuntimeWarning, match="ignoring the tuned schedules in"):
        assert SEGMENT.choose(**SHAPE) != Schedule(*TUNED.schedule)
    if what != "unreadable":
        before = sorted(cache.parent.parent.rglob("*.json*"))
        with pytest.raises(OSError, match=str(cache.parent)):
            schedule_cache.store("gpu", {SEGMENT.key(**SHAPE): TUNED})
        assert sorted(cache.parent.parent.rglob("*.json*")) == before


def test_missing_home_folder(monkeypatch, capsys):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert SEGMENT.choose(**SHAPE) != Schedule(*TUNED.schedule)
    with pytest.raises(OSError, match="no folder for tuned schedules: Could not determine"):
        schedule_cache.store("gpu", {SEGMENT.key(**SHAPE): TUNED})
    assert cli.main(["tune", "--clear"]) == 2
    assert "error: no folder for tuned schedules" in capsys.readouterr().err


class FullDisk(io.StringIO):
    """A file whose contents do not reach the disk."""

    def close(self):
        if not self.closed:
            super().close()
            raise_full()


def raise_full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["json.dump", "os.fdopen", "os.replace"])
def test_full_disk_keeps_the_old_cache(cache, monkeypatch, where):
    # The new file is written beside the old one and renamed, so each step may fail alone.
    schedule_cache.store("gpu", {"before": TUNED})
    before = cache.read_bytes()
    full = raise_full
    if where == "os.fdopen":

        def full(handle, _):
            os.close(handle)
            return FullDisk()

    with monkeypatch.context() as patched:
        patched.setattr(where, full)
        with pytest.raises(OSError, match="No space left"):
            schedule_cache.store("gpu", {"after": TUNED})
    assert cache.read_bytes() == before
    assert {path.name for path in cache.parent.iterdir()} == {"schedules.json", "schedules.lock"}


def _store(name, folder):
    import os

    os.environ["XDG_CACHE_HOME"] = folder
    for number in range(5):
        schedule_cache.store("gpu", {f"{name} {number}": TUNED})


def test_processes_that_write_at_once_lose_nothing(cache, tmp_path):
    # Spawned processes share no lock or descriptor with this one, as users' processes do not.
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_store, args=(n, str(tmp_path))) for n in ("a", "b")]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        schedule_cache.read()  # never half a file: a warning is an error here
    assert [process.exitcode for process in processes] == [0, 0]
    assert set(schedule_cache.read()["gpu"]) == {f"{n} {i}" for n in "ab" for i in range(5)}
    assert {path.name for path in cache.parent.iterdir()} == {"schedules.json", "schedules.lock"}


def test_relative_cache_home_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert schedule_cache.path() == Path.home() / ".cache" / "jax_gnn" / "schedules.json"


# The tuner.


@pytest.mark.parametrize("op", segment.OPS)
def test_fastest_schedule_of_a_call_is_stored(op, monkeypatch):
    monkeypatch.setattr(segment, "_BLOCKS", (1, 5))
    call = segment.Call(op, edges(), 8, "float32")
    tuned = command.tune_call(call, CountingTimer())
    # The timer likes the first call best, which is the rule's.
    assert Schedule(*tuned.schedule) == call.effective(call.rule())
    assert tuned.microseconds == tuned.rule_microseconds == 1e6

    compiled = []
    choose = Family.choose
    monkeypatch.setattr(Family, "choose", lambda *a, **k: compiled.append(choose(*a, **k)))
    with pytest.raises(AttributeError):  # the schedule is what kernels are compiled with
        measure([call], lambda _: [Schedule("walk", 2, 64, 7)], CountingTimer(), 1)
    assert compiled == [Schedule("walk", 2, 64, 7)]


def test_results_do_not_depend_on_the_schedule():
    for op in segment.OPS:
        call = segment.Call(op, edges(), 8, "float32")
        operands = call.operands()
        assert all(jnp.std(x) > 0 for x in operands)
        outputs = []
        for schedule in (Schedule("walk", 2, 128, 1), Schedule("gather", 1, 256, 132)):
            with schedules.use(schedule):
                outputs.append(np.asarray(jax.jit(call.function)(*operands)))
        np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)


def test_equivalent_schedules_are_measured_once():
    call = segment.Call("sum", edges(num_edges=64), 8, "float32")
    # More blocks than work is clipped, so the four schedules are one after clipping.
    many = [Schedule("walk", 2, 128, blocks) for blocks in (1, 2, 132, 264)]
    (times,) = measure([call], lambda _: many, CountingTimer(), 1)
    assert [schedule.blocks for schedule in times] == [1]  # 64 teams of a block have an edge each


def product(op="segment_matmul", sizes=(300, 0, 41, 900), width=8):
    return matmul.Call(op, np.array(sizes), width, width, "float32")


@pytest.mark.parametrize("op", matmul.OPS)
def test_schedules_of_a_product_are_run(op):
    call = product(op)
    tuned = command.tune_call(call, CountingTimer())
    assert MatmulSchedule(*tuned.schedule) == call.effective(call.rule())
    assert tuned.microseconds == tuned.rule_microseconds == 1e6
    lhs, rhs, sizes = call.operands()
    assert lhs.shape == (1241, 8)
    assert rhs.shape == ((1241, 8) if op == "segment_outer" else (4, 8, 8))
    assert sizes.tolist() == [300, 0, 41, 900]
    outputs = []
    for schedule in call.candidates()[:2]:
        with schedules.use(schedule):
            outputs.append(np.asarray(jax.jit(call.function)(lhs, rhs, sizes)))
    assert all(output.any() for output in outputs)
    np.testing.assert_allclose(outputs[0], outputs[-1], rtol=1e-5, atol=1e-4)


def test_chunks_larger_than_the_work_are_not_measured():
    # With fewer tiles than a chunk for each block, some blocks would get none: chunk becomes 0.
    few, many = product(sizes=[1_000] * 100), product(sizes=[10_000] * 100)
    for chunk, effective_chunk in ((0, 0), (4, 4), (16, 0)):
        schedule = MatmulSchedule("persistent", 128, chunk, 4096)
        assert few.effective(schedule) == schedule._replace(chunk=effective_chunk)
        assert many.effective(schedule) == schedule


def test_consecutive_measurements_use_different_kernels():
    # A kernel that runs right after itself finds its code in the instruction cache.
    kernels = [(choice.kernel, choice.tile) for choice in product().candidates()]
    assert all(kernel != following for kernel, following in itertools.pairwise(kernels))


def tune(*arguments):
    return cli.main(["tune", *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "tune wants one of: segment, matmul, hypergraph, relational, --show, --clear"),
        (("--show", "--clear"), "tune wants one of"),
        (("segment", "--show"), "tune wants one of"),
        (("segment",), "wants --data FILE, or --nodes N and --edges N"),
        (("segment", "--nodes", "4"), "wants --data FILE, or --nodes N and --edges N"),
        (("segment", "--data", "x.npz", "--nodes", "4"), "--data goes without --nodes"),
        (("segment", "--data", "/nonexistent.npz"), "--data /nonexistent.npz"),
        (("segment", "--nodes", "4", "--edges", "4", "--ops", "segment_outer"), "--ops: tune segm"),
        (("hypergraph", "--nodes", "4"), "--edges N and --hyperedges N"),
        (("hypergraph", "--data", "x.npz", "--hyperedges", "4"), "--data goes without --nodes"),
        (("hypergraph", "--data", "/nonexistent.npz"), "--data /nonexistent.npz"),
        (("relational", "--nodes", "4"), "--nodes N, --edges N and --relations N"),
        (("relational", "--data", "x.npz", "--relations", "4"), "--data goes without --nodes"),
        (("relational", "--data", "/nonexistent.npz"), "--data /nonexistent.npz"),
        (("matmul",), "wants --sizes FILE, or --rows N and --groups N"),
        (("matmul", "--rows", "4"), "wants --sizes FILE, or --rows N and --groups N"),
        (("matmul", "--sizes", "x.npy", "--rows", "4"), "--sizes goes without --rows"),
        (("matmul", "--sizes", "/nonexistent.npy"), "--sizes /nonexistent.npy"),
        (("matmul", "--rows", "4", "--groups", "2", "--ops", "sum"), "--ops: tune matmul knows"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    assert tune(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--widths", "4,x"), ("--dtypes", "int8"), ("--ops", "max"), ("--nodes", "0")]
)
def test_wrong_values_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        tune("segment", *arguments)
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is something to tune")
def test_on_a_cpu_there_is_nothing_to_tune(capsys):
    assert tune("segment", "--nodes", "10", "--edges", "20") == 2
    assert "there is nothing to tune on a CPU" in capsys.readouterr().err


@pytest.fixture
def gpu(monkeypatch):
    """Make the backend a GPU on which the n-th call takes n seconds."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(command, "ProfilerTimer", lambda flushes: CountingTimer())


def tune_and_show(capsys, *commands):
    """Tune by several command lines; return the cached entries and the text of ``--show``."""
    for line in commands:
        assert tune(*line.split()) == 0
    written = [line for line in capsys.readouterr().out.splitlines() if "times as fast" in line]
    entries = schedule_cache.read()["gpu"]
    assert len(entries) == len(written)
    assert tune("--show") == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in written)
    return entries, shown


def test_tuning_writes_what_show_prints_and_clear_removes(
    gpu, monkeypatch, capsys, cache, tmp_path
):
    monkeypatch.setattr(segment, "_BLOCKS", (1, 5))
    data = tmp_path / "graph.npz"
    np.savez(data, src=np.array([2, 0, 1, 1]), dst=np.array([1, 1, 0, 2]))
    entries, shown = tune_and_show(capsys, f"segment --data {data} --ops sum,spmm --widths 4,8")
    assert len(entries) == 4 and str(cache) in shown
    call = segment.Call("spmm", command._read_edges(data), 8, "float32")
    assert SEGMENT.choose("segment_reduce", **call.shape) == Schedule(*entries[call.key][0])
    for argument, text in (
        ("--clear", "removed"),
        ("--clear", "there was none"),
        ("--show", "nothing tuned yet"),
    ):
        assert tune(argument) == 0
        assert text in capsys.readouterr().out
        assert not cache.exists()


def test_tuning_of_products(gpu, capsys, tmp_path):
    path = tmp_path / "sizes.npy"
    np.save(path, np.array([70, 0, 200]))
    entries, shown = tune_and_show(
        capsys,
        f"matmul --sizes {path} --k 8 --n 4",
        "matmul --rows 90 --groups 3 --widths 4,8 --dtype float16 --ops segment_outer",
    )
    assert len(entries) == 4
    shape = {"op": "segment_matmul", "rows": 270, "groups": 3, "k": 8, "n": 4, "itemsize": 4}
    assert MATMUL.choose(**shape) == MatmulSchedule(*entries[MATMUL.key(**shape)].schedule)
    assert "tiles of 64, chunks of 0" in shown


def test_tuning_of_hypergraphs(gpu, capsys, tmp_path):
    data = tmp_path / "hypergraph.npz"
    np.savez(data, node_idx=np.array([2, 0, 1, 1]), hyperedge_idx=np.array([1, 1, 0, 2]))
    entries, shown = tune_and_show(
        capsys,
        f"hypergraph --data {data} --widths 4,8",
        "hypergraph --nodes 90 --hyperedges 9 --edges 300 --widths 4 --dtypes bfloat16",
    )
    assert len(entries) == 3
    shape = {"incidences": 4, "nodes": 3, "hyperedges": 3, "width": 8, "itemsize": 4}
    schedule = HYPERGRAPH.choose(*HYPERGRAPH.ops, **shape)
    assert schedule == entries[HYPERGRAPH.key(*HYPERGRAPH.ops, **shape)].schedule
    assert f"{schedule.threads} threads, {schedule.rounds} and " in shown


def test_tuning_of_relational_sums(gpu, capsys, tmp_path):
    data = tmp_path / "triples.npz"
    src, rel, dst = [2, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 2]
    np.savez(data, src=src, rel=rel, dst=dst)
    entries, shown = tune_and_show(
        capsys,
        f"relational --data {data} --widths 4",
        "relational --nodes 90 --edges 300 --relations 3 --widths 8 --dtypes bfloat16",
    )
    assert len(entries) == 2
    graph = RelationalGraph.from_triples(src, rel, dst, 3)
    counts = counts_of(graph, jax.ShapeDtypeStruct((2, 4, 4), jnp.float32))
    (way,) = entries[RELATIONAL.key(*RELATIONAL.ops, **counts._asdict())].schedule
    assert chosen(counts) == way
    assert f"by {way.replace('_', ' ')}" in shown


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[1, 2]], "the sizes to be a vector of whole numbers, got shape (1, 2)"),
        ([1.5], "the sizes to be a vector of whole numbers, got shape (1,), float64"),
        ([-1, 3], "the sizes to be whole numbers from 0 to 2147483646, got -1"),
        ([2**64 - 1], "the sizes to be whole numbers from 0 to 2147483646, got 184467440737"),
        ([{}], "Object arrays cannot be loaded"),
    ],
)
def test_files_that_hold_no_sizes_are_refused(tmp_path, capsys, sizes, message):
    path = tmp_path / "bad.npy"
    np.save(path, np.array(sizes))
    assert tune("matmul", "--sizes", str(path)) == 2
    err = capsys.readouterr().err
    assert f"--sizes {path}: " in err
    assert message in err


def damaged(tmp_path):
    """Yield files that are no .npz or .npy file, truncated files, and corrupt files."""
    archive = tmp_path / "whole.npz"
    np.savez_compressed(archive, src=np.arange(100), dst=np.arange(100))
    content = archive.read_bytes()
    array_file = tmp_path / "one.npy"
    np.save(array_file, np.arange(100))
    contents = {
        "empty": b"",
        "text": b"src,dst\n0,1\n",
        "one": array_file.read_bytes(),
        "half": content[: len(content) // 2],
        "half-one": array_file.read_bytes()[:200],
        "spoilt": content[:60] + bytes(40) + content[100:],
        "no directory": b"PK\x03\x04 and then nothing",
        "no members": b"PK\x05\x06" + bytes(18),  # an archive without src and dst
    }
    for name, data in contents.items():
        path = tmp_path / name
        path.write_bytes(data)
        yield path


def test_damaged_files_are_named(tmp_path, capsys):
    for path in [*damaged(tmp_path), tmp_path, tmp_path / "absent"]:
        for family in ("segment", "hypergraph", "relational"):
            assert tune(family, "--data", str(path)) == 2
            assert f"jax-gnn: error: --data {path}: " in capsys.readouterr().err
        if path.name != "one":
            assert tune("matmul", "--sizes", str(path)) == 2
            assert f"jax-gnn: error: --sizes {path}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src": [0, 2**32 + 1]}, "src to be whole numbers from 0 to 2147483646, got 4294967297"),
        ({"dst": [-1, 1]}, "dst to be whole numbers from 0 to 2147483646, got -1"),
        ({"dst": [0.0, 1.5]}, "dst to be a vector of whole numbers, got shape (2,), float64"),
        ({"dst": [[0, 1]]}, "dst to be a vector of whole numbers, got shape (1, 2)"),
        ({"num_nodes": 2**31}, "num_nodes to be whole numbers from 0 to 2147483646"),
        ({"num_nodes": "many"}, "num_nodes to be a vector of whole numbers"),
        ({"num_nodes": [3, 4]}, "num_nodes to be one number, got shape (2,)"),
        ({"src": [1, 2], "dst": [1]}, ""),
        ({"src": np.zeros(0, np.int32), "dst": np.zeros(0, np.int32)}, ""),
    ],
)
def test_bad_files_of_edges_are_refused(tmp_path, capsys, changes, message):
    path = tmp_path / "bad.npz"
    np.savez(path, **{"src": [0, 1], "dst": [1, 0]} | changes)
    assert tune("segment", "--data", str(path)) == 2
    err = capsys.readouterr().err
    assert f"--data {path}: " in err
    assert message in err


def test_float64_is_tuned_only_where_jax_has_it(gpu, capsys):
    assert tune("segment", "--nodes", "9", "--edges", "9", "--dtypes", "float64") == 2
    assert "JAX_ENABLE_X64" in capsys.readouterr().err


def test_edges_are_sorted_by_destination(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, src=np.array([2, 0, 1]), dst=np.array([1, 0, 1]), num_nodes=7)
    entries = command._read_edges(path)
    assert entries.rows.tolist() == [0, 1, 1]
    assert entries.cols.tolist() == [0, 2, 1]
    assert entries.num_rows == entries.num_cols == 7


# The database and the rule that is fitted to it.


def database(noise=0.0, seed=0):
    """Return timings by a model of costs: a price for each pass over the device and each round.

    Blocks of 128 threads are best but for small ones.
    """
    rng = np.random.default_rng(seed)
    choices, rows = schedule_times.choices(), []
    for graph, width, to_nodes in itertools.product(range(20), (8, 32, 128), (False, True)):
        incidences = int(10 ** rng.uniform(3.5, 6.5))
        num_rows = int(incidences / 10 ** rng.uniform(0, 2))
        waves = stage_features(incidences, num_rows, width, itemsize=4)["waves"]

        def cost(threads, rounds, waves=waves):
            factor = {64: 1.0 if waves < 0.1 else 1.1, 128: 1.02, 256: 1.06}[threads]
            passes = max(waves / rounds, 1)
            return factor * (2 + passes * (0.6 + 0.4 * rounds + 0.02 * rounds**2))

        noisy = np.exp(noise * rng.normal(size=len(choices)))
        times = tuple(float(cost(*c) * n) for c, n in zip(choices, noisy, strict=True))
        rows.append(
            Row(
                graph=f"h{graph // 2}" + ("-twin", "-twin-cols")[graph % 2],
                times=times,
                shape={
                    "to_nodes": to_nodes,
                    "incidences": incidences,
                    "num_rows": num_rows,
                    "width": width,
                    "itemsize": 4,
                },
            )
        )
    date = "2026-01-01T00:00:00"
    return Database("hypergraph", "gpu", {"jax": "1"}, None, date, choices, rows)


def choose(rule, **features):
    return rule["threads"], leaf(rule["rounds"], features)


def test_the_rule_is_near_the_best_with_blocks_of_one_size():
    timings = rules.with_best_threads(database(noise=0.01))
    rule = json.loads(rules.emit_rule(timings))
    assert timings.threads == rule["threads"] == 128
    chosen = [choose(rule, **rules.call_features(timings, row)) for row in timings.rows]
    assert len(set(chosen)) > 2
    slower = [
        row.times[timings.choices.index(choice)] / min(row.times)
        for row, choice in zip(timings.rows, chosen, strict=True)
    ]
    everything = np.full(len(slower), True)
    losses = rules.chosen_losses(timings, rules.fit(timings, everything), everything)
    np.testing.assert_allclose(losses, np.log(slower))
    assert losses.mean() < 0.05
    # What the fit says of itself counts in what one size costs, on graphs left out.
    assert losses.mean() < rules.held_out(timings).mean() < 0.08


def test_trees_are_held_out_from_a_graph_and_its_twins(monkeypatch):
    # Twins of a graph have the same sizes: a tree that saw one twin has seen them all.
    timings = replace(database(), threads=64)
    seen = []

    def fit(database, used):
        seen.append({row.graph for row, inside in zip(database.rows, used, strict=True) if inside})
        return 3

    monkeypatch.setattr(rules, "fit", fit)
    losses = rules.held_out(timings)
    graphs = {row.graph for row in timings.rows}
    families = [[f"h{number}-twin", f"h{number}-twin-cols"] for number in range(10)]
    assert sorted(sorted(graphs - used) for used in seen) == families
    column = timings.choices.index((64, 3))
    slower = [row.times[column] / min(row.times) for row in timings.rows]
    np.testing.assert_allclose(losses, np.minimum(np.log(slower), rules.SLOWEST))


def test_slowdowns_are_bounded():
    logs = rules.slowdowns(database())
    assert logs.min() == 0
    assert logs.max() <= rules.SLOWEST


def test_the_command_writes_rule_and_table(tmp_path, capsys):
    # Times are stored with four digits, so rows are compared within 1e-3 after a round trip.
    timings = database(noise=0.1)
    path, rule = tmp_path / "times.json", tmp_path / "rule.json"
    schedule_times.write([timings], path)
    (again,) = schedule_times.read(path)
    assert again.choices == timings.choices
    for loaded_row, row in zip(again.rows, timings.rows, strict=True):
        assert (loaded_row.graph, loaded_row.shape) == (row.graph, row.shape)
        assert list(loaded_row.times) == pytest.approx(row.times, rel=1e-3)
    assert benchmark(["fit-schedules", str(path), "--out", str(rule)]) == 0
    shown = capsys.readouterr().out
    table = path.with_suffix(".md").read_text()
    assert table in shown
    for line in ("| to hyperedges | 60 |", "| to nodes | 60 |", "| all at once |"):
        assert line in re.sub(" +", " ", table)
    assert rule.read_text() == rules.emit_rule(rules.with_best_threads(again))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 0}', "not a database of schedules"),
        ('[[], {"schema": 1}]', "not a database of schedules"),
    ],
)
def test_bad_database_files(text, message, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text(text)
    assert benchmark(["fit-schedules", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_the_librarys_rule_is_near_the_best_that_was_measured():
    (timings,) = schedule_times.read(RESULTS / "hypergraph_schedules-nvidia-h200.json")
    threads, tree = hypergraph_schedule._rule()
    everything = np.full(len(timings.rows), True)
    losses = rules.chosen_losses(replace(timings, threads=threads), tree, everything)
    assert np.expm1(losses.mean()) < 0.05


class StageTimer:
    """The sums of the n-th call took n and 3 µs, of which the second waited for one."""

    def kernels(self, calls, repeats):
        for call in calls.values():
            jax.block_until_ready(call())
        return {key: [stages(n * 1e3)] * repeats for n, key in enumerate(calls, start=1)}


def stages(first):
    return [
        Kernel("void sum_kernel<float>", 500, 500 + first),
        Kernel("void sum_kernel<float>", 500 + first - 1e3, 500 + first + 3e3),
    ]


def test_sums_of_an_aggregation_are_timed_separately():
    # The second kernel may start before the first ends: the overlap belongs to the first.
    copy = Kernel("memcpy", 0, 100)
    assert schedule_times.stage_seconds([copy, *stages(7e3)]) == pytest.approx((7e-6, 3e-6))
    for kernels in ([copy], stages(7e3)[:1], stages(7e3) * 2):
        with pytest.raises(RuntimeError, match="two sums, the profile shows"):
            schedule_times.stage_seconds(kernels)


def test_measuring_hypergraphs_gives_a_row_for_each_sum(monkeypatch, capsys, tmp_path):
    def broken():
        raise RuntimeError("out of memory")

    monkeypatch.setattr("jax_gnn._tuning.timing.ProfilerTimer", lambda flushes: StageTimer())
    graphs = {"broken": broken, "h": lambda: uniform(50, 30, mean_size=4.0)}
    monkeypatch.setattr(schedule_times, "graphs", lambda data: graphs)
    path = tmp_path / "times.json"
    command = ["measure-schedules", "--quick", "--out", str(path)]
    assert benchmark(command) == 0
    assert "broken is left out: out of memory" in capsys.readouterr().err
    (timings,) = schedule_times.read(path)
    incidences = len(graphs["h"]().node_idx)
    assert [list(rules.call_features(timings, row).values()) for row in timings.rows] == [
        [to_nodes, *stage_features(incidences, size, width, itemsize).values()]
        for width, itemsizes in ((4, (4, 4)), (16, (2, 4)))
        for to_nodes, size, itemsize in zip((False, True), (30, 50), itemsizes, strict=True)
    ]
    count = len(timings.choices)
    assert timings.choices == schedule_times.choices()
    for number, row in enumerate(timings.rows):
        first = number // 2 * count + 1
        expected = [3.0] * count if row.shape["to_nodes"] else list(range(first, first + count))
        assert list(row.times) == pytest.approx(expected)

    # Without any graph that can be measured, no file is written.
    del graphs["h"]
    assert benchmark(command) == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_hypergraphs_are_measured_over_all_sizes():
    graphs = schedule_times.graphs(None)
    assert list(graphs)[-1] == "yelp-twin"
    twins = ("uniform", "zipf", "giant", "yelp-twin")
    assert sorted(graphs) == sorted([*(f"random-{n}" for n in range(16)), *twins])
    small = [graphs[f"random-{n}"]() for n in (0, 2, 4)]
    again = [schedule_times.graphs(None)[f"random-{n}"]() for n in (0, 2, 4)]
    for graph, regenerated in zip(small, again, strict=True):
        np.testing.assert_array_equal(graph.node_idx, regenerated.node_idx)
        keys = graph.hyperedge_idx * graph.num_nodes + graph.node_idx
        assert (np.diff(keys) > 0).all()
        assert graph.node_idx.max() < graph.num_nodes
        assert graph.hyperedge_idx.max() < graph.num_hyperedges


class LimitTimer:
    """The kernel of one step is fast for fewer rows than 500, another one for more, by 50 %."""

    def __init__(self, flushes):
        pass

    def measure(self, calls, repeats):
        return {
            (index, schedule): [1.0 + 0.5 * ((schedule.kernel == "step") != (run.args[0] < 500))]
            for (index, schedule), run in calls.items()
        }


def test_trees_are_fitted_to_measured_sums_and_read(monkeypatch, tmp_path, capsys, trees):
    monkeypatch.setattr("jax_gnn._tuning.timing.ProfilerTimer", LimitTimer)
    monkeypatch.setattr(segment_times, "CASES", {"segment_sum": 3})
    monkeypatch.setattr(rules, "SIMILAR_CALLS", 500)

    def compile_all(calls, schedules_of):
        return {
            (index, schedule): functools.partial(print, call.edges.num_rows)
            for index, call in enumerate(calls)
            for schedule in schedules_of(call)
        }

    monkeypatch.setattr(segment_times, "compile_all", compile_all)
    drawn = {
        f"{count} {rows}": functools.partial(
            segment_times.draw_edges, "regular", count, count / rows, 0.5, rows
        )
        for count in (6_000, 60_000)
        for rows in range(50, 1_000, 90)
    }
    monkeypatch.setattr(segment_times, "graphs", lambda seed: drawn)
    path, written = tmp_path / "times.json", tmp_path / "trees.json"
    assert benchmark(["measure-schedules", "--subject", "segment", "--out", str(path)]) == 0
    (database,) = schedule_times.read(path)
    # Of the calls drawn for 60,000 edges, only those of width 8 are not short rows.
    assert (database.subject, len(database.rows)) == ("segment_sum", 44)
    assert benchmark(["fit-schedules", str(path), "--out", str(written)]) == 0
    table = path.with_suffix(".md").read_text()
    assert table in capsys.readouterr().out
    trees(**json.loads(written.read_text())["trees"][""])
    wrong = 0
    for row in database.rows:
        call = {n: size for n, size in row.shape.items() if n not in schedule_times.SPREAD}
        kernel = SEGMENT.choose("segment_reduce", **call).kernel
        wrong += (kernel == "step") != (call["rows"] < 500)
    assert wrong <= 3  # thresholds are between graphs, which have 50 rows, 140, and so on
    by_hand = rules.slowdowns(database)[:, -1]
    assert rules.is_better(np.zeros(44), by_hand)
    assert not rules.is_better(by_hand, by_hand)


def test_shipped_trees_lose_less_than_the_rule_by_hand_where_they_were_fitted():
    shipped = json.loads(core_schedule.TREES.read_text())["trees"]
    databases = schedule_times.read(RESULTS / "segment_schedules-nvidia-h200.json")
    assert [*shipped] == [databases[0].capability]
    (trees,) = shipped.values()
    assert len(trees) >= 4
    for database in databases:
        if database.subject in trees:
            everything = np.full(len(database.rows), True)
            losses = rules.chosen_losses(database, trees[database.subject], everything)
            by_hand = rules.slowdowns(database)[:, -1]
            assert rules.is_better(losses, by_hand)
            assert losses.mean() < 0.6 * by_hand.mean()


def test_grown_trees_lose_nothing_that_splits_can_avoid():
    """Neither of the first splits gains by itself: the best leaf is an exclusive or."""
    x, y = np.divmod(np.arange(400), 20)
    differ = (x < 10) != (y < 7)
    losses = np.array([differ, ~differ, np.full(400, 0.9)]).T.astype(float)
    tree = rules.grow(["x", "y"], np.array([x, y]).T.astype(float), losses, ["a", "b", "c"], 10)
    chosen = [leaf(tree, {"x": i, "y": j}) for i, j in zip(x, y, strict=True)]
    assert chosen == np.where(differ, "b", "a").tolist()


def test_what_no_kernel_can_do_counts_as_the_rule_by_hand():
    timings = Database(
        "spmm", "gpu", {}, None, "2026", ["step tile", "walk 0 64 9"],
        [Row(graph="g", times=(np.inf, 2.0), by_hand=3.0, shape={})],
    )  # fmt: skip
    np.testing.assert_allclose(rules.slowdowns(timings), np.log([[1.515, 1.0, 1.5]]))


@pytest.mark.parametrize(
    ("schedule", "error", "message"),
    [
        (Schedule(False, 8, 256, 4), ValueError, "kernel of a Schedule must be of"),
        (Schedule("walk", 3, 256, 4), ValueError, "lanes of a Schedule must be of"),
        (Schedule("walk", 8, 256, 0), ValueError, "blocks of a Schedule must be of 1 to"),
        (("walk", 8, 256, 4), TypeError, "schedule must be one of jax_gnn.schedules"),
    ],
    ids=str,
)
def test_invalid_schedules_are_refused(schedule, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        schedules.use(schedule)
