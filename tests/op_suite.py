"""The contract of every op, checked from a description of the op.

A test module describes its op in an :class:`OpSpec` and gets all checks by one class::

    class TestSegmentSum(OpSuite):
        spec = OpSpec(function=..., reference=..., make_case=..., operands=("data",))

:class:`CoreChecks` alone serves for variants of an op that differ in arithmetic only. Every check
runs for each implementation that the default device has. Values are compared with the plain numpy
reference in float64, derivatives with the derivative of that same reference by complex step, which
is exact to rounding: the description needs no derivative. Second derivatives are as exact, by
:class:`op_spec.Dual`. The reference must therefore work on complex numbers (order them by their
real part) and on arrays of objects, and be analytic.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import emulation
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from op_spec import (
    SCENARIOS,
    STACKABLE,
    OpSpec,
    all_pairs,
    assert_close,
    check_second_derivatives,
    on_host,
    padded,
    random_like,
    reference_gradients,
    reference_tangent,
    same_bits,
    setting,
    stack,
    strict,
    typed,
    wide,
)

import jax_gnn
from jax_gnn._core import ffi

PLATFORM = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
KERNELS = tuple(s.platform for s in ffi.status() if s.platform == PLATFORM and s.available)
if emulation.WANTED:
    KERNELS = ("cuda",)
IMPLEMENTATIONS = (*KERNELS, "xla")
# XLA's own scatters are atomic on GPUs.
DETERMINISTIC = IMPLEMENTATIONS if PLATFORM == "cpu" else KERNELS

# Error allowed relative to the largest value, a few roundings of the dtype.
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
FEATURES = ((), (1,), (3,), (7,), (16,), (17,), (33,), (64,), (100,), (130,))

# --- Checks --------------------------------------------------------------------------------------

# Derivatives of derivatives are traced alike for all implementations.
on_first = pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])
on_deterministic = pytest.mark.parametrize("implementation", DETERMINISTIC)


class CoreChecks:
    """Values and derivatives against the reference."""

    spec: ClassVar[OpSpec]
    implementations: ClassVar[Sequence[str]] = IMPLEMENTATIONS[:1]
    is_variant: ClassVar[bool] = True  # see conftest.py

    def pytest_generate_tests(self, metafunc) -> None:
        marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
        if "implementation" in metafunc.fixturenames and "implementation" not in marks:
            metafunc.parametrize("implementation", self.implementations)

    def check_value(self, rng, scenario, features, dtype) -> None:
        case = self.spec.make_case(rng, scenario, features)
        operands = typed(case.operands, dtype)
        result = self.spec.jitted(case.index, *operands)
        assert result.dtype == dtype
        want = self.spec.reference(case.plain, *wide(operands))
        assert_close(result, want, TOLERANCE[dtype], f"{scenario}, features {features}")

    @pytest.mark.parametrize("scenario", SCENARIOS)
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_value(self, rng, scenario, dtype, implementation) -> None:
        with setting(implementation, dtype):
            self.check_value(rng, scenario, (3,), dtype)

    @pytest.mark.parametrize(
        ("dtype", "scenario"),
        [
            *(("float64", scenario) for scenario in SCENARIOS),
            *(("float32", scenario) for scenario in ("random", "padding")),
            *(("float16", scenario) for scenario in ("random", "padding")),
            *(("bfloat16", scenario) for scenario in ("random", "padding")),
        ],
    )
    def test_gradient(self, rng, dtype, scenario, implementation) -> None:
        case = self.spec.make_case(rng, scenario, (3,))
        operands = typed(case.operands, dtype)
        with setting(implementation, dtype):
            result = jax.eval_shape(self.spec.function, case.index, *operands)
            (cotangent,) = random_like(rng, [result], dtype)
            gradients = self.spec.gradient(case.index, cotangent, *operands)
        expected = reference_gradients(self.spec, case.plain, operands, cotangent)
        for name, operand, got, want in zip(
            self.spec.operands, operands, gradients, expected, strict=True
        ):
            assert got.dtype == operand.dtype
            assert_close(got, want, 4 * TOLERANCE[dtype], f"gradient to {name}")

    def test_one_operand_at_a_time(self, rng, implementation) -> None:
        """Derivatives while the other operands are constants, and NaN stands in all padding."""
        case = self.spec.make_case(rng, "padding", (3,))
        clean, dirty = padded(case, 0.0), padded(case, np.nan)
        tangents = random_like(rng, clean, "float64")
        with setting(implementation, "float64"):
            result = jax.eval_shape(self.spec.function, case.index, *clean)
            (cotangent,) = random_like(rng, [result], "float64")
            gradients = self.spec.gradient(case.index, cotangent, *clean)
            for i, name in enumerate(self.spec.operands):

                def function(operand, i=i) -> jax.Array:
                    return self.spec.function(case.index, *dirty[:i], operand, *dirty[i + 1 :])

                # One program for both modes, so that it is compiled once an operand.
                @jax.jit
                def derivatives(operand, tangent, f=function) -> Any:
                    gradient = jax.vjp(f, operand)[1](cotangent)[0]
                    return gradient, jax.jvp(f, (operand,), (tangent,))[1]

                gradient, tangent = derivatives(dirty[i], tangents[i])
                assert_close(gradient, gradients[i], TOLERANCE["float64"], name)
                alone = [np.zeros_like(x) for x in clean]
                alone[i] = tangents[i]
                want = reference_tangent(self.spec, case.plain, clean, alone)
                assert_close(tangent, want, TOLERANCE["float64"], f"tangent of {name}")

    @pytest.mark.parametrize("scenario", ["random", "padding", "no_entries"])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_jvp(self, rng, dtype, scenario, implementation) -> None:
        case = self.spec.make_case(rng, scenario, (3,))
        operands = typed(case.operands, dtype)
        tangents = random_like(rng, operands, dtype)
        with setting(implementation, dtype):
            value, tangent = self.spec.jvp(case.index, operands, tangents)
        want = self.spec.reference(case.plain, *wide(operands))
        assert_close(value, want, TOLERANCE[dtype], "value")
        want = reference_tangent(self.spec, case.plain, operands, tangents)
        assert_close(tangent, want, 4 * TOLERANCE[dtype], "tangent")

    @on_first
    def test_second_order(self, rng, implementation) -> None:
        case = self.spec.make_case(rng, "random", (2,))
        with setting(implementation, "float64"):
            check_second_derivatives(self.spec, rng, case, 4 * TOLERANCE["float64"])

    # With 64 bits and without; bfloat16 is accumulated in float32.
    @pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
    def test_strict_promotion(self, rng, dtype) -> None:
        """Values, derivatives of both orders and maps, of ids of each size; lowered, not run."""
        case = self.spec.make_case(rng, "random", (3,))
        operands = typed(case.operands, dtype)

        def gradient(index, operands) -> Any:
            value, vjp = jax.vjp(functools.partial(self.spec.function, index), *operands)
            return vjp(jnp.ones_like(value))

        def derivatives(index, operands) -> Any:
            along = functools.partial(jax.jvp, primals=(operands,), tangents=(operands,))
            return (
                along(lambda operands: self.spec.function(index, *operands)),
                along(functools.partial(gradient, index)),
            )

        def everything(index, operands) -> Any:
            index_batch, batch = jax.tree.map(lambda x: jnp.stack([x, x]), (index, operands))
            return (
                derivatives(index, operands),
                jax.vmap(gradient, (None, 0))(index, batch),
                jax.vmap(gradient, (0, None))(index_batch, operands),
                jax.vmap(gradient)(index_batch, batch),
            )

        # Lowering alone finds promotions: nothing is compiled.
        wide_index = jax.tree.map(lambda ids: np.asarray(ids, np.int64), case.index)
        indices = [case.index, wide_index] if dtype == "float64" else [case.index]
        for index, implementation in itertools.product(indices, IMPLEMENTATIONS):
            # Derivatives of derivatives are traced alike for all implementations.
            function = everything if implementation == "xla" else derivatives
            with setting(implementation, dtype), strict():
                jax.jit(function).lower(index, operands)

    @pytest.mark.parametrize("padding_value", [np.nan, np.inf])
    def test_padding_is_never_read(self, rng, padding_value, implementation) -> None:
        case = self.spec.make_case(rng, "padding", (3,))
        assert any(mask is not None and mask.any() for mask in case.padding)
        clean, dirty = padded(case, 0.0), padded(case, padding_value)
        tangents = random_like(rng, clean, "float64")
        with setting(implementation, "float64"):
            result = jax.eval_shape(self.spec.function, case.index, *clean)
            (cotangent,) = random_like(rng, [result], "float64")
            want = self.spec.reference(case.plain, *clean)
            value, tangent = self.spec.jvp(case.index, dirty, tangents)
            expected_tangent = self.spec.jvp(case.index, clean, tangents)[1]
            gradients = self.spec.gradient(case.index, cotangent, *dirty)
            expected_gradients = self.spec.gradient(case.index, cotangent, *clean)
            for i, mapped_over in enumerate(self.spec.mapped):
                mapped = mapped_over(case.index, *dirty[:i], dirty[i][None], *dirty[i + 1 :])
                what = f"vmap over {self.spec.operands[i]}"
                assert_close(mapped[0], want, TOLERANCE["float64"], what)
        assert_close(value, want, TOLERANCE["float64"], "value")
        assert_close(tangent, expected_tangent, TOLERANCE["float64"], "tangent")
        for name, mask, got, want in zip(
            self.spec.operands, case.padding, gradients, expected_gradients, strict=True
        ):
            assert_close(got, want, TOLERANCE["float64"], f"gradient to {name}")
            if mask is not None:
                at_padding = np.asarray(got)[np.broadcast_to(mask, got.shape)]
                assert (at_padding == 0).all(), f"gradient to {name} at padding: {at_padding}"


class OpSuite(CoreChecks):
    """The checks of a public op."""

    implementations = IMPLEMENTATIONS
    is_variant = False
    vmaps_every_set: ClassVar[bool] = False

    # --- Values ---

    @pytest.mark.parametrize("dtype", list(TOLERANCE))
    def test_dtypes(self, rng, dtype, implementation) -> None:
        with setting(implementation, dtype):
            self.check_value(rng, "random", (5, 3), dtype)

    @pytest.mark.parametrize("features", FEATURES, ids=str)
    @pytest.mark.parametrize("dtype", list(TOLERANCE))
    @pytest.mark.parametrize("implementation", IMPLEMENTATIONS[:1])  # widths matter to kernels
    def test_features(self, rng, dtype, features, implementation) -> None:
        with setting(implementation, dtype):
            self.check_value(rng, "random", features, dtype)

    @pytest.mark.parametrize("dtype", list(TOLERANCE))
    def test_large(self, rng, dtype, implementation) -> None:
        with setting(implementation, dtype):
            self.check_value(rng, "large", (33,), dtype)

    @pytest.mark.parametrize("scenario", ["random", "padding", "no_entries"])
    def test_int64_indices(self, rng, scenario, implementation) -> None:
        case = self.spec.make_case(rng, scenario, (3,))
        operands = typed(case.operands, "float32")
        with setting(implementation, "int64"):
            index = jax.tree.map(lambda ids: jnp.asarray(ids, jnp.int64), case.index)
            (cotangent,) = random_like(rng, [self.spec.jitted(index, *operands)], "float32")
            for function, arguments in (
                (self.spec.jitted, operands),
                (self.spec.gradient, (cotangent, *operands)),
            ):
                got, want = (function(indices, *arguments) for indices in (index, case.index))
                assert jax.tree.all(
                    jax.tree.map(functools.partial(np.allclose, rtol=1e-5, atol=1e-5), got, want)
                )

    @on_deterministic
    def test_same_bits_every_run(self, rng, implementation) -> None:
        case = self.spec.make_case(rng, "large", (17,))
        operands = typed(case.operands, "float32")
        # Eager, jitted and mapped calls are different programs of the same kernels.
        no_batch = (None,) * len(operands[1:])
        batch_of_one = jax.tree.map(lambda ids: ids[None], case.index)
        with setting(implementation):
            first = self.spec.jitted(case.index, *operands)
            (cotangent,) = random_like(rng, [first], "float32")
            gradients = self.spec.gradient(case.index, cotangent, *operands)
            for _ in range(10):
                assert same_bits(self.spec.jitted(case.index, *operands), first)
                assert same_bits(self.spec.gradient(case.index, cotangent, *operands), gradients)
            alike = same_bits
            if self.spec.composed:
                alike = functools.partial(np.allclose, rtol=1e-5, atol=1e-5)
            eager = self.spec.function(case.index, *operands)
            assert same_bits(self.spec.function(case.index, *operands), eager)
            assert alike(eager, first), "eager"
            mapped = self.spec.mapped[0](case.index, operands[0][None], *operands[1:])
            assert alike(mapped[0], first), "vmap"
            mapped = jax.jit(jax.vmap(self.spec.function, in_axes=(0, None, *no_batch)))
            assert alike(mapped(batch_of_one, *operands)[0], first), "vmap over indices"

    @pytest.mark.skipif(not KERNELS or PLATFORM != "cpu", reason="about the CPU's threads")
    def test_same_bits_on_any_number_of_threads(self, rng) -> None:
        """Here, and in a process with another number of them."""
        seed = int(rng.integers(2**32))
        module = Path(sys.modules[type(self).__module__].__file__ or "")
        code = f"import op_suite; op_suite.print_digest({module.stem!r}, {type(self).__name__!r}, "
        child = subprocess.Popen(
            [sys.executable, "-c", f"{code}{seed})"],
            cwd=module.parent,
            env={
                **os.environ,
                "NPROC": "7" if os.cpu_count() != 7 else "5",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        digest_here = digest(self.spec, seed)
        child_digest = child.communicate()[0]
        assert child.returncode == 0
        assert child_digest.strip() == digest_here

    # --- Derivatives ---

    @pytest.mark.parametrize("dtype", list(TOLERANCE))
    def test_large_gradient(self, rng, dtype, implementation) -> None:
        case = self.spec.make_case(rng, "large", (5,))
        operands = typed(case.operands, dtype)
        with setting(implementation, dtype):
            result = jax.eval_shape(self.spec.function, case.index, *operands)
            (cotangent,) = random_like(rng, [result], dtype)
            gradients = self.spec.gradient(case.index, cotangent, *operands)
        with setting("xla", "float64"):
            expected = self.spec.gradient(case.index, *wide((cotangent, *operands)))
        for name, got, want in zip(self.spec.operands, gradients, expected, strict=True):
            assert_close(got, want, 4 * TOLERANCE[dtype], f"gradient to {name}")

    @on_first
    def test_jacobian_and_hessian(self, rng, implementation) -> None:
        case = self.spec.make_case(rng, "random", (1,))
        every = tuple(range(len(case.operands)))

        def energy(*operands) -> jax.Array:
            return jnp.sum(self.spec.function(case.index, *operands) ** 2)

        with setting(implementation, "float64"):
            function = functools.partial(self.spec.function, case.index)
            forward = jax.jit(jax.jacfwd(function, argnums=every))(*case.operands)
            reverse = jax.jit(jax.jacrev(function, argnums=every))(*case.operands)
            hessian = jax.jit(jax.hessian(energy, argnums=every))(*case.operands)
            tangents = random_like(rng, case.operands, "float64")
            value, linear = jax.linearize(jax.jit(function), *case.operands)
            linearized = linear(*tangents)
        want = self.spec.reference(case.plain, *case.operands)
        assert_close(value, want, TOLERANCE["float64"], "linearize")
        want = reference_tangent(self.spec, case.plain, case.operands, tangents)
        assert_close(linearized, want, TOLERANCE["float64"], "linearize")
        # Contract the Jacobians with the tangents, to compare with one tangent of the reference.
        contracted = sum(
            np.tensordot(block, tangent, np.ndim(tangent))
            for block, tangent in zip(forward, tangents, strict=True)
        )
        assert_close(contracted, want, TOLERANCE["float64"], "jacfwd")
        for name, by_forward, by_reverse in zip(self.spec.operands, forward, reverse, strict=True):
            assert_close(
                by_forward, by_reverse, TOLERANCE["float64"], f"jacfwd and jacrev to {name}"
            )
        # The Hessian along a direction is the derivative of the gradient along it.
        with setting("xla", "float64"):
            gradient = jax.grad(energy, argnums=every)
            derivative = jax.jit(
                lambda operands, tangents: jax.jvp(gradient, operands, tangents)[1]
            )(case.operands, tangents)
        for i, name in enumerate(self.spec.operands):
            product = sum(
                np.tensordot(hessian[i][j], tangents[j], np.ndim(tangents[j])) for j in every
            )
            assert_close(product, derivative[i], 1e-10, f"hessian to {name}")

    def test_linear_transpose(self, rng, implementation) -> None:
        case = self.spec.make_case(rng, "random", (3,))
        operands = typed(case.operands, "float32")
        with setting(implementation):
            result = self.spec.jitted(case.index, *operands)
            (cotangent,) = random_like(rng, [result], "float32")
            gradients = self.spec.gradient(case.index, cotangent, *operands)
            for name in self.spec.linear:
                i = self.spec.operands.index(name)

                def function(operand, i=i) -> jax.Array:
                    arguments = (*operands[:i], operand, *operands[i + 1 :])
                    return self.spec.function(case.index, *arguments)

                (got,) = jax.jit(jax.linear_transpose(function, operands[i]))(cotangent)
                assert_close(got, gradients[i], TOLERANCE["float32"], name)

    # --- Transformations ---

    def columns(self, rng, features) -> list[tuple[Any, ...]]:
        """Three values of equal shapes for each argument: the index, then float32 operands."""
        cases = [self.spec.make_case(rng, name, features) for name in STACKABLE[-3:]]
        rows = [(on_host(case.index), *typed(case.operands, "float32")) for case in cases]
        return list(zip(*rows, strict=True))

    def test_vmap(self, rng, implementation) -> None:
        """Arguments mapped along their first or last axis, or not: all pairs of these."""
        columns = self.columns(rng, (2,))
        sets = all_pairs(rng, list(itertools.product((None, 0, -1), repeat=len(columns))))
        if self.vmaps_every_set:
            sets += itertools.product(*[(None, int(rng.choice([0, -1]))) for _ in columns])
        with setting(implementation):
            for in_axes in sets:
                if any(axis is not None for axis in in_axes):
                    check_vmap(self.spec.function, self.spec.jitted, in_axes, columns)

    @on_first
    def test_vmap_of_gradient(self, rng, implementation) -> None:
        index, *operands = self.columns(rng, (2,))
        with setting(implementation):
            result = self.spec.jitted(*(column[0] for column in (index, *operands)))
            cotangent = tuple(random_like(rng, [result] * len(index), "float32"))
            columns = (index, cotangent, *operands)
            for in_axes in [
                (0, *[None] * (len(columns) - 1)),
                (None, *[0] * (len(columns) - 1)),
                *([rng.choice([None, 0, -1]) for _ in columns] for _ in range(4)),
            ]:
                if any(axis is not None for axis in in_axes):
                    check_vmap(self.spec.vjp, self.spec.gradient, in_axes, columns)

    @on_first
    def test_vmap_of_nothing(self, rng, implementation) -> None:
        arguments = [column[0] for column in self.columns(rng, (2,))]
        empties = [jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), x) for x in arguments]
        with setting(implementation):
            result = self.spec.jitted(*arguments)
            for in_axes in [(0,) * len(empties), *np.where(np.eye(len(empties)), 0, None).tolist()]:
                mixed = [
                    x if axis is None else x_empty
                    for x, x_empty, axis in zip(arguments, empties, in_axes, strict=True)
                ]
                mapped = jax.jit(jax.vmap(self.spec.function, in_axes=tuple(in_axes)))(*mixed)
                for got, want in zip(jax.tree.leaves(mapped), jax.tree.leaves(result), strict=True):
                    assert (got.shape, got.dtype) == ((0, *want.shape), want.dtype)

    @on_first
    def test_vmap_of_vmap(self, rng, implementation) -> None:
        index, first, *columns = self.columns(rng, (2,))
        no_batch = [None] * len(columns)
        constants = [column[0] for column in columns]
        with setting(implementation):
            # Operands are mapped inside, indices outside: a table of all pairs.
            inner = jax.vmap(self.spec.jitted, in_axes=(None, 0, *no_batch))
            outer = jax.vmap(inner, in_axes=(0, None, *no_batch))
            table = outer(stack(index), stack(first), *constants)
            for i, j in np.ndindex(table.shape[:2]):
                want = self.spec.jitted(index[i], first[j], *constants)
                assert_close(table[i, j], want, 4 * TOLERANCE["float32"], f"{i}, {j}")

    def test_one_trace_for_all_contents(self, rng, implementation) -> None:
        traces = 0

        def function(index, *operands) -> jax.Array:
            nonlocal traces
            traces += 1
            return self.spec.function(index, *operands)

        # Indices of other contents but the same shapes must not be traced again.
        jitted = jax.jit(function)
        with setting(implementation):
            for arguments in zip(*self.columns(rng, (2,)), strict=True):
                assert_close(jitted(*arguments), self.spec.jitted(*arguments), 1e-6, "value")
        assert traces == 1

    def test_checkpoint(self, rng, implementation) -> None:
        case = self.spec.make_case(rng, "random", (3,))
        operands = typed(case.operands, "float32")
        every = tuple(range(len(operands)))
        function = functools.partial(self.spec.function, case.index)
        with setting(implementation):
            want, got = (
                jax.jit(jax.grad(lambda *xs, f=f: jnp.sum(jnp.sin(f(*xs))), argnums=every))(
                    *operands
                )
                for f in (function, jax.checkpoint(function))
            )
        for name, gradient, expected in zip(self.spec.operands, got, want, strict=True):
            assert_close(gradient, expected, TOLERANCE["float32"], f"gradient to {name}")

    def test_scan(self, rng, implementation) -> None:
        columns = self.columns(rng, (2,))
        every = tuple(range(len(columns) - 1))

        def scanned(operands, index) -> jax.Array:
            def step(total, arguments) -> tuple[jax.Array, None]:
                return total + jnp.sum(jnp.sin(self.spec.function(*arguments))), None

            return jax.lax.scan(step, jnp.zeros(()), (index, *operands))[0]

        def step_loss(index, *operands) -> jax.Array:
            return jnp.sum(jnp.sin(self.spec.function(index, *operands)))

        index, *operands = (stack(column) for column in columns)
        with setting(implementation):
            total, gradients = jax.jit(jax.value_and_grad(scanned))(operands, index)
            step = jax.jit(jax.value_and_grad(step_loss, argnums=self.spec.positions))
            loop = [step(*arguments) for arguments in zip(*columns, strict=True)]
        assert_close(total, sum(value for value, _ in loop), TOLERANCE["float32"], "value")
        for i, name in zip(every, self.spec.operands, strict=True):
            want = np.stack([gradient[i] for _, gradient in loop])
            assert_close(gradients[i], want, TOLERANCE["float32"], f"gradient to {name}")

    @pytest.mark.skipif(emulation.WANTED, reason="emulated kernels have other names")
    def test_export(self, rng, implementation) -> None:
        case = self.spec.make_case(rng, "random", (3,))
        operands = typed(case.operands, "float32")
        with setting(implementation):
            exported = jax.export.export(
                jax.jit(self.spec.function), disabled_checks=jax_gnn.EXPORT_CHECKS
            )(case.index, *operands)
            loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
            want = self.spec.jitted(case.index, *operands)
            (cotangent,) = random_like(rng, [want], "float32")
            expected = self.spec.gradient(case.index, cotangent, *operands)
            # Neither the Python op nor the context is needed any more.
            value = loaded.call(case.index, *operands)
            gradients = jax.vjp(functools.partial(loaded.call, case.index), *operands)[1](cotangent)
        assert_close(value, want, TOLERANCE["float32"], "value")
        for name, got, want in zip(self.spec.operands, gradients, expected, strict=True):
            assert_close(got, want, TOLERANCE["float32"], f"gradient to {name}")

    # --- Several devices ---

    @staticmethod
    def mesh() -> Mesh:
        devices = jax.devices() if jax.device_count() >= 4 else jax.devices("cpu")
        return Mesh(np.array(devices[:4]), ("devices",))

    def test_sharded_features(self, rng) -> None:
        case = self.spec.make_case(rng, "padding", (8,))
        index, operands = on_host(case.index), typed(case.operands, "float32")

        # The last axis named is split, all axes before it are not.
        def spread(axis) -> PartitionSpec:
            return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "devices")

        operand_specs = tuple(map(spread, self.spec.feature_axis))
        result_spec = spread(self.spec.result_axis)
        sharded = jax.shard_map(
            self.spec.function,
            mesh=self.mesh(),
            in_specs=(PartitionSpec(), *operand_specs),
            out_specs=result_spec,
        )
        inside = jax.shard_map(  # differentiated by each device, rather than from outside
            self.spec.vjp,
            mesh=self.mesh(),
            in_specs=(PartitionSpec(), result_spec, *operand_specs),
            out_specs=operand_specs,
        )

        @jax.jit
        def results(index, cotangent, *operands) -> Any:
            outside = jax.vjp(functools.partial(sharded, index), *operands)[1](cotangent)
            return sharded(index, *operands), outside, inside(index, cotangent, *operands)

        want = self.spec.jitted(index, *operands)
        (cotangent,) = random_like(rng, [want], "float32")
        expected = self.spec.gradient(index, cotangent, *operands)
        value, *both_gradients = results(index, cotangent, *operands)
        assert_close(value, want, TOLERANCE["float32"], "value")
        for gradients in both_gradients:
            for name, got, want in zip(self.spec.operands, gradients, expected, strict=True):
                assert_close(got, want, TOLERANCE["float32"], f"gradient to {name}")

    def test_sharded_indices(self, rng) -> None:
        """Indices are sharded over devices, operands are replicated."""
        cases = [self.spec.make_case(rng, scenario, (3,)) for scenario in STACKABLE[-4:]]
        indices, operands = [on_host(c.index) for c in cases], typed(cases[0].operands, "float32")
        everywhere, split = PartitionSpec(), PartitionSpec("devices")

        def local(index, *operands) -> jax.Array:
            return self.spec.function(jax.tree.map(lambda ids: ids[0], index), *operands)[None]

        sharded = jax.shard_map(
            local,
            mesh=self.mesh(),
            in_specs=(split, *[everywhere] * len(operands)),
            out_specs=split,
        )

        @jax.jit
        def results(index, cotangent, *operands) -> Any:
            value, vjp = jax.vjp(functools.partial(sharded, index), *operands)
            return value, vjp(cotangent)

        want = np.stack([self.spec.jitted(index, *operands) for index in indices])
        (cotangent,) = random_like(rng, [want], "float32")
        parts = [
            self.spec.gradient(index, part, *operands)
            for index, part in zip(indices, cotangent, strict=True)
        ]
        value, gradients = results(stack(indices), cotangent, *operands)
        assert_close(value, want, TOLERANCE["float32"], "value")
        # The operands are shared, so that their gradient sums over devices.
        for i, name in enumerate(self.spec.operands):
            want = sum(np.asarray(part[i]) for part in parts)
            assert_close(gradients[i], want, TOLERANCE["float32"], f"gradient to {name}")


def check_vmap(function, jitted, in_axes, columns, tolerance=4 * TOLERANCE["float32"]) -> None:
    """`jax.vmap` against a loop over values of each argument, of which the first is one for all."""
    pairs = [*zip(columns, in_axes, strict=True)]
    mapped = jax.jit(jax.vmap(function, in_axes=tuple(in_axes)))(
        *(column[0] if axis is None else stack(column, axis) for column, axis in pairs)
    )
    for k in range(len(columns[0])):
        loop = jitted(*(column[0 if axis is None else k] for column, axis in pairs))
        for got, want in zip(jax.tree.leaves(mapped), jax.tree.leaves(loop), strict=True):
            assert_close(got[k], want, tolerance, f"in_axes={in_axes}, {k}")


def print_digest(module, suite, seed) -> None:
    """Print the digest of the suite's op, in a process of its own."""
    print(digest(getattr(importlib.import_module(module), suite).spec, seed))


def digest(spec, seed) -> str:
    """Return the hash of an op's values and gradients on a CPU."""
    rng = np.random.default_rng(seed)
    case = spec.make_case(rng, "large", (33,))
    operands = typed(case.operands, "float32")
    with jax.default_device(jax.devices("cpu")[0]), setting("cpu"):
        result = spec.jitted(case.index, *operands)
        (cotangent,) = random_like(rng, [result], "float32")
        gradients = zip(spec.operands, spec.gradient(case.index, cotangent, *operands), strict=True)
        results = (result, *(gradient for name, gradient in gradients if name not in spec.summed))
    return sha256(b"".join(np.asarray(array).tobytes() for array in results)).hexdigest()
