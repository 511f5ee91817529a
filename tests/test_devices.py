"""Several devices of one process give the same bits, one after another and at once.

The devices are GPUs if there are two or more, else CPU devices.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from op_spec import OpSpec, assert_close, random_like, same_bits, setting, typed
from op_suite import TOLERANCE
from program_cases import MODELS, Sizes, random_arguments, random_graph
from sampling_checks import key_of, lumpy_graph

from jax_gnn import program
from jax_gnn.sampling import sample_neighbors

GPUS = jax.devices() if jax.default_backend() == "gpu" else []
DEVICES = GPUS if len(GPUS) > 1 else jax.devices("cpu")[:2]
PLATFORM = "cuda" if len(GPUS) > 1 else "cpu"

# A suite for each kernel, and each way to it.
SUITES = {
    "test_attention_functions": ("TestAdditive", "TestGatv2", "TestDot"),
    "test_hypergraph_aggregate": (
        "TestHypergraphAggregate",
        "TestDirected",
        "TestMeanOfWeightedMaxima",
        "TestSoftmaxByNode",
    ),
    "test_segment_matmul": ("TestSegmentMatmul", "TestSegmentOuter", "TestGelu"),
    "test_segment_reduce": ("TestSum", "TestMax", "TestMeanByIndptr", "TestLogSumExp"),
    "test_segment_softmax": ("TestSoftmax",),
    "test_spmm": ("TestSpmm", "TestSpmmMax", "TestIndexSegmentReduce", "TestSddmm"),
}

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class OnAllDevices:
    """Subclasses have a fixture ``call``: a function, and its arguments."""

    def test_each_and_side_by_side(self, call) -> None:
        function, arguments = call
        copies = [jax.device_put(arguments, device) for device in DEVICES]
        with setting(PLATFORM):
            results = [function(*copy) for copy in copies]
        for device, result in zip(DEVICES, results, strict=True):
            assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(result))
            assert same_bits(result, results[0]), f"other bits on {device}"
        failures: list[Any] = []
        start = threading.Barrier(len(DEVICES))

        def repeat(copy) -> None:
            try:
                with setting(PLATFORM):
                    start.wait()
                    repeats = [function(*copy) for _ in range(5)]
                    failures.extend(r for r in repeats if not same_bits(r, results[0]))
            except Exception as error:
                failures.append(error)
                raise

        # All devices run at once; a barrier starts them together.
        threads = [threading.Thread(target=repeat, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

    def test_sharded(self, call) -> None:
        """All devices do the same, in one program."""
        function, arguments = call
        everywhere, by_device = PartitionSpec(), PartitionSpec("devices")
        mesh = Mesh(np.array(DEVICES), ("devices",))

        def local(arguments) -> Any:
            return jax.tree.map(lambda leaf: leaf[None], function(*arguments))

        sharded = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=everywhere, out_specs=by_device))
        with setting(PLATFORM):
            want = function(*jax.device_put(arguments, DEVICES[0]))
            result = sharded(arguments)
        for expected, sharded_result in zip(*map(jax.tree.leaves, (want, result)), strict=True):
            shards = [np.asarray(shard.data[0]) for shard in sharded_result.addressable_shards]
            assert len(shards) == len(DEVICES)
            assert {shard.tobytes() for shard in shards} == {shards[0].tobytes()}
            # XLA may fuse operations between kernels in another way.
            tolerance = TOLERANCE.get(str(expected.dtype), 0)
            assert_close(shards[0], expected, tolerance, "a device's share")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("suite", [f"{file}.{name}" for file in SUITES for name in SUITES[file]])
class TestOps(OnAllDevices):
    @pytest.fixture
    def call(self, suite, dtype, rng) -> Call:
        """Value and gradients."""
        module, name = suite.split(".")
        spec: OpSpec = getattr(importlib.import_module(module), name).spec
        case = spec.make_case(rng, "large", (32,))
        operands = typed(case.operands, dtype)
        with setting(PLATFORM):
            result = jax.eval_shape(spec.function, case.index, *operands)
        (cotangent,) = random_like(rng, [result], dtype)

        def function(index, cotangent, *operands) -> Any:
            return spec.function(index, *operands), spec.vjp(index, cotangent, *operands)

        return jax.jit(function), (case.index, cotangent, *operands)


@pytest.mark.parametrize("model", ["rgat", "gatv2", "gated", "cf_conv", "painn", "pna"])
class TestPrograms(OnAllDevices):
    @pytest.fixture
    def call(self, model, rng) -> Call:
        """Value and gradients, of which edge regions are a part."""
        graph = random_graph(rng, Sizes(300, 3000, padding=5))
        arguments = random_arguments(rng, MODELS[model], graph)
        arguments = jax.tree.map(lambda x: np.asarray(x, np.float32), arguments)
        run = program(MODELS[model])

        def function(graph, arguments) -> Any:
            def loss(arguments) -> Any:
                results = jax.tree.leaves(run(graph, **arguments))
                return sum(jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, 0))) for y in results)

            return run(graph, **arguments), jax.grad(loss)(arguments)

        return jax.jit(function), (graph, arguments)


@pytest.mark.parametrize("kind", ["tree", "distinct", "weighted"])
class TestDraws(OnAllDevices):
    @pytest.fixture
    def call(self, kind, rng) -> Call:
        """Blocks of neighbours."""
        graph = lumpy_graph(rng, 200, 4000)
        weight = rng.random(graph.num_edges) if kind == "weighted" else None
        seeds = rng.integers(-1, 201, 64).astype(np.int32)

        def function(graph, seeds, key, weight) -> Any:
            options = {"tree": kind == "tree", "edge_probability": weight}
            return sample_neighbors(graph, seeds, (5, 3), key, **options)

        return jax.jit(function), (graph, seeds, key_of(rng), weight)


def test_no_state_of_a_device_is_kept_for_the_process() -> None:
    """Attributes of a device hold for that device alone: no ``static`` variable may keep them.

    Allowed are variables of no device: the counter that tags launches, an entry of the driver, and
    the lock of the table of loaded kernels, whose keys name a device.
    """
    folder = Path(__file__).parents[1] / "cpp"
    variable = re.compile(
        r"^\s*static (?!constexpr|_)(?:thread_local |const )*[\w:<>]+ (\w+)[ ={\[;]", re.M
    )
    files = [*folder.glob("kernels/cuda/*.*"), *folder.glob("ffi/*")]
    assert len(files) > 20
    names = {name for file in files for name in variable.findall(file.read_text())}
    assert names == {"launches", "encode", "loading"}
    asking = [file.name for file in files if "cudaFuncSetAttribute(" in file.read_text()]
    assert asking == ["launch.h"]
