"""Each primitive by its name: its folder, test module and benchmark, and values of its kernel."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import emulation
import jax
import numpy as np
import pytest
from op_suite import KERNELS
from primitive_cases import SAMPLES, bind

# The benchmarks belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

import jax_gnn
from benchmarks.bench_primitives import PRIMITIVES
from jax_gnn._core.op import OPS

PACKAGE = Path(jax_gnn.__file__).parent


def records() -> dict[str, Path]:
    """Return for each record the file that defines it."""
    files: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        calls = (
            node.value
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        )
        for call in calls:
            if ast.unparse(call.func) in ("Op", "_SamplingOp", "_define"):
                constants = (x.value for x in ast.walk(call) if isinstance(x, ast.Constant))
                files |= {name: path.relative_to(PACKAGE) for name in constants if name in OPS}
    return files


def test_every_primitive_is_named_and_has_a_folder_and_a_test_module():
    files = records()
    assert files.keys() == OPS.keys() == SAMPLES.keys() == {*PRIMITIVES}
    for path in files.values():
        floor, folder, *_ = path.parts
        assert floor == "_ops"
        assert (Path(__file__).parent / f"test_{folder}.py").exists()


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("name", sorted(OPS))
def test_kernel_as_plain_xla(name, implementation):
    """Values of a small call; modules of the ops compare more calls with their references."""
    if emulation.WANTED and name in ("edge_region", "edge_walk"):
        pytest.skip("its kernels are compiled for a GPU")
    results, expected = (
        jax.tree.leaves(jax.jit(bind(OPS[name], choice))(*SAMPLES[name]))
        for choice in (implementation, "xla")
    )
    if name == "attention":  # only the sum of a row's two statistics is determined
        results, expected = ([y, stats.sum(-1)] for y, stats, _ in (results, expected))
    for result, plain in zip(results, expected, strict=True):
        assert result.dtype == plain.dtype
        np.testing.assert_allclose(result, plain, rtol=1e-5, atol=1e-6)
