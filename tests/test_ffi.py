"""The machinery: registry of primitives, platforms, choice of the implementation."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad
from op_suite import PLATFORM
from primitive_cases import ATTRIBUTES, SAMPLES, bind, floats, needs_kernels

import jax_gnn
from jax_gnn import Hypergraph, hypergraph_aggregate
from jax_gnn._core import ffi
from jax_gnn._core.op import OPS, Op

OTHER_PLATFORM = "cuda" if PLATFORM == "cpu" else "cpu"
HYPERGRAPH = Hypergraph.from_incidence([0, 1, 1, 2], [0, 0, 1, 1], num_nodes=4, num_hyperedges=3)
X = floats(4, 2)


# --- The registry --------------------------------------------------------------------------------


def lowered(function, operands, platform) -> str:
    return jax.jit(function).trace(*operands).lower(lowering_platforms=(platform,)).as_text()


INNER = {"edge_walk", "gather_rows", "segment_scatter"}
"""Ops that occur only when other ops are lowered, and are never transformed."""


INTEGERS = {
    "relation_pairs",
    "segment_order",
    "sample_block",
    "sample_distinct",
    "sample_uniform",
    "sample_weighted",
}
"""Ops without derivatives, and without arithmetic that counts."""


def faults(registry, statuses, samples) -> list[str]:
    """Return the faults of the primitives of a registry."""
    problems = [
        f"{status.platform} target {target} belongs to no primitive"
        for status in statuses
        for target in status.targets
        if target not in registry
    ]
    problems += [
        f"{status.platform}: no kernels and no reason"
        for status in statuses
        if not status.available and not (status.reason and status.hint)
    ]
    for name, op in registry.items():
        if name in INNER:
            continue
        if name in samples:
            problems += lowering_faults(op, statuses, samples[name])
            for i, sample in enumerate(samples[name]):
                if sample is not None:  # absent
                    problems += rule_faults(op, samples[name], i)
            problems += cost_faults(op, samples[name])
        else:
            problems.append(f"{name}: no sample operands")
        if not op.transpose and op.jvp is None and name not in INTEGERS:
            problems.append(f"{name}: linear in nothing")
    return problems


def attempt(problems, what, function, *arguments) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        problems.append(f"{what} ({type(error).__name__})")


def lowering_faults(op, statuses, operands) -> list[str]:
    problems: list[str] = []
    name, default, plain = op.name, bind(op), bind(op, "xla")
    for status in statuses:
        platform = status.platform
        if not status.available or platform not in op.platforms:
            continue
        if name not in status.targets:
            problems.append(f"{name}: no {platform} kernel")
        elif f"@jax_gnn_{name}(" not in lowered(default, operands, platform):
            problems.append(f"{name}: kernel not used on {platform}")
    for function, platform in ((default, "tpu"), (plain, "cpu"), (plain, "cuda")):
        what = f"{name}: no XLA lowering on {platform}"
        if "custom_call" in (attempt(problems, what, lowered, function, operands, platform) or ""):
            problems.append(f"{name}: custom calls in plain XLA on {platform}")
    return problems


def traced(function, *arguments) -> Any:
    return jax.eval_shape(function, *arguments)


def rule_faults(op, operands, i) -> list[str]:
    problems: list[str] = []

    def function(x) -> Any:
        return bind(op)(*operands[:i], x, *operands[i + 1 :])

    x, name = operands[i], op.name
    batch = jax.tree.map(lambda array: array[None], x)
    # Traced, not run: values are those of the ops' own tests.
    attempt(problems, f"{name}: no batching in operand {i}", traced, jax.vmap(function), batch)
    if np.issubdtype(jax.tree.leaves(x)[0].dtype, np.floating):
        tangent = functools.partial(jax.jvp, function)
        attempt(problems, f"{name}: no jvp in operand {i}", traced, tangent, (x,), (x,))
        gradient = jax.grad(lambda x: sum(map(jnp.sum, jax.tree.leaves(function(x)))))
        attempt(problems, f"{name}: no reverse mode in operand {i}", traced, gradient, x)
    # Linear operands must have a transpose that linear_transpose finds.
    operand = op.operands(*operands)._fields[i]
    if any(operand in (key if isinstance(key, tuple) else (key,)) for key in op.transpose):
        cotangent = jax.eval_shape(function, x)
        transposed = jax.linear_transpose(function, x)
        attempt(problems, f"{name}: no transpose in operand {i}", traced, transposed, cotangent)
    return problems


def cost_faults(op, operands) -> list[str]:
    """No call reads less than its first operand, nor gives less than its result."""
    attributes = ATTRIBUTES.get(op.name, {})
    shapes = jax.eval_shape(bind(op), *operands)
    # Bounds of the bytes: first operand and results, and all operands.
    least = sum(x.nbytes for x in jax.tree.leaves(operands[0])) + sum(
        math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes)
    )
    most = least + sum(x.nbytes for x in jax.tree.leaves(operands[1:]))
    cost = op.cost(*operands, **attributes)
    fits = least <= cost.bytes <= most and (cost.flops > 0 or op.name in INTEGERS)
    return [] if fits else [f"{op.name}: its cost is {cost}"]


def test_every_primitive_is_complete() -> None:
    problems = faults(OPS, ffi.status(), SAMPLES)
    assert problems == [], "\n".join(problems)


def test_the_cost_of_a_call() -> None:
    """Four edges, of 4 + 4 bytes of ids, and two features of five nodes."""
    x, weight, matrix, *epilogue = SAMPLES["segment_reduce"]
    attributes = ATTRIBUTES["segment_reduce"]
    # Edges have a row and a column of 4 bytes; nodes have two features of 4 bytes.
    ids, num_read, written = 4 * 8, 5 * 2 * 4, 5 * 2 * 4
    cost = OPS["segment_reduce"].cost(x, None, matrix, **attributes)
    assert cost == (ids + num_read + written, 4 * 2)
    cost = OPS["segment_reduce"].cost(x, weight, matrix, **attributes)
    assert cost == (ids + num_read + 4 * 4 + written, 2 * 4 * 2)
    cost = OPS["segment_reduce"].cost(x, None, matrix, *epilogue, **attributes)
    of_epilogue = 4 * (5 + 1 + 5 * 2 + 2)
    assert cost == (ids + num_read + of_epilogue + written, 4 * 2 + 5 * 5 * 2)
    lhs, rhs, bias, _, _, sizes, offset, *_ = SAMPLES["segment_matmul"]
    operands = lhs, rhs, bias, None, None, sizes, offset, None, None
    cost = OPS["segment_matmul"].cost(*operands, **ATTRIBUTES["segment_matmul"])
    assert cost == (4 * (4 * 2 + 3 * 2 * 4 + 3 * 4 + 3 + 1 + 4 * 4), 2 * 4 * 2 * 4)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (ad.primitive_jvps, "no jvp in operand 0"),
        (ad.primitive_transposes, "no reverse mode in operand 0"),
        (ad.primitive_transposes, "no transpose in operand 2"),
    ],
)
def test_missing_rule_is_found(monkeypatch, rules, message) -> None:
    registry = {"hypergraph_aggregate": OPS["hypergraph_aggregate"]}
    monkeypatch.delitem(rules, registry["hypergraph_aggregate"].primitive)
    assert any(message in fault for fault in faults(registry, [], SAMPLES))


def test_missing_transpose_of_one_operand_is_found(monkeypatch) -> None:
    registry = {"hypergraph_aggregate": OPS["hypergraph_aggregate"]}
    monkeypatch.delitem(registry["hypergraph_aggregate"].transpose, "hyperedge_scale")
    problems = faults(registry, [], SAMPLES)
    assert "hypergraph_aggregate: no reverse mode in operand 2 (KeyError)" in problems


def test_bare_primitive_is_found() -> None:
    class X(NamedTuple):
        x: Any

    bare = Op(
        name="bare",
        operands=X,
        result=lambda operands: operands.x,
        xla=lambda x: x,
        transpose={},
        batch=lambda *_: None,
    )
    del OPS["bare"]  # which its construction has added
    # A primitive with abstract evaluation alone lacks all other rules.
    primitive = Primitive("jax_gnn_bare")
    primitive.def_abstract_eval(lambda x, *, implementation, tree, devices: x)
    object.__setattr__(bare, "primitive", primitive)
    status = ffi.PlatformStatus("cpu", True, ("other",))
    silent = ffi.PlatformStatus("cuda", False, ())
    problems = faults({"bare": bare, "unknown": bare}, [status, silent], {"bare": (floats(3),)})
    for part in (
        "cpu target other belongs to no primitive",
        "bare: no cpu kernel",
        "cuda: no kernels and no reason",
        "bare: no XLA lowering on tpu",
        "bare: no batching in operand 0",
        "bare: no jvp in operand 0",
        "bare: linear in nothing",
        "unknown: no sample operands",
    ):
        assert any(fault.startswith(part) for fault in problems), (part, problems)


# --- Platforms -----------------------------------------------------------------------------------


def test_status_says_what_there_is() -> None:
    statuses = {status.platform: status for status in ffi.status()}
    assert list(statuses) == ["cpu", "cuda"]
    assert statuses["cpu"].available
    for status in statuses.values():
        if status.available:
            kernels = {op.name for op in OPS.values() if status.platform in op.platforms}
            assert set(status.targets) == kernels
            assert status.build
            assert status.reason is None
            assert status.hint is None
        else:
            assert status.targets == ()
            assert status.reason
            assert status.hint


def without_kernels(monkeypatch, platform) -> None:
    status = ffi.PlatformStatus(platform, False, (), "never built", "build it")
    monkeypatch.setitem(ffi.STATUS, platform, status)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_platform_without_kernel_warns_and_uses_xla(monkeypatch, platform) -> None:
    without_kernels(monkeypatch, platform)
    with pytest.warns(
        RuntimeWarning, match=rf"no {platform} kernel here: never built\. .*build it"
    ):
        text = lowered(hypergraph_aggregate, (HYPERGRAPH, X), platform)
    assert "jax_gnn" not in text


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_platform_without_kernel_refuses_what_was_demanded(monkeypatch, platform) -> None:
    without_kernels(monkeypatch, platform)
    with (
        jax_gnn.implementation(platform),
        pytest.raises(ValueError, match=rf"no {platform} kernel here: never built.*build it"),
    ):
        lowered(lambda h, x: hypergraph_aggregate(h, x), (HYPERGRAPH, X), platform)


@needs_kernels
def test_fallback_computes_the_same(monkeypatch) -> None:
    want = hypergraph_aggregate(HYPERGRAPH, X)
    without_kernels(monkeypatch, PLATFORM)
    with pytest.warns(RuntimeWarning, match="Using plain XLA instead"):
        got = jax.jit(lambda h, x: hypergraph_aggregate(h, x))(HYPERGRAPH, X)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# --- Choice of the implementation ----------------------------------------------------------------


def implementations_in(function, *operands) -> set[str]:
    """Return the implementations that the primitives of a function demand."""
    names = set()

    # Inner programs are parameters of equations.
    def walk(jaxpr) -> None:
        for equation in jaxpr.eqns:
            if "implementation" in equation.params:
                names.add(str(equation.params["implementation"]))
            for inner in jax.tree.leaves(list(equation.params.values())):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    walk(getattr(inner, "jaxpr", inner))

    walk(jax.make_jaxpr(function)(*operands).jaxpr)
    return names


def test_context_retraces_what_was_jitted() -> None:
    seen = []

    @jax.jit
    def function(x) -> Any:
        seen.append(ffi.chosen_implementation.value)
        return hypergraph_aggregate(HYPERGRAPH, x)

    # Each implementation is traced once, and then found in the cache.
    want = function(X)
    for name in ("xla", None, "xla", None):
        with jax_gnn.implementation(name):
            np.testing.assert_allclose(function(X), want, rtol=1e-5, atol=1e-5)
    assert seen == [None, "xla"]


def test_contexts_nest() -> None:
    def asked() -> set[str]:
        return implementations_in(lambda x: hypergraph_aggregate(HYPERGRAPH, x), X)

    assert asked() == {"None"}
    with jax_gnn.implementation("xla"):
        assert asked() == {"xla"}
        with jax_gnn.implementation("cpu"):
            assert asked() == {"cpu"}
            with jax_gnn.implementation(None):
                assert asked() == {"None"}
        assert asked() == {"xla"}
        with pytest.raises(ZeroDivisionError), jax_gnn.implementation("cuda"):
            raise ZeroDivisionError
        assert asked() == {"xla"}
    assert asked() == {"None"}


def test_argument_goes_before_context() -> None:
    with jax_gnn.implementation("cpu"):
        function = functools.partial(hypergraph_aggregate, HYPERGRAPH, implementation="xla")
        assert implementations_in(function, X) == {"xla"}


def test_derivatives_and_batches_keep_the_implementation() -> None:
    def energy(x, weight) -> Any:
        y = hypergraph_aggregate(
            HYPERGRAPH, x, weight, normalization="symmetric", implementation="xla"
        )
        return jnp.sum(y**2)

    gradient = jax.grad(energy, argnums=(0, 1))
    assert implementations_in(gradient, X, floats(3)) == {"xla"}
    assert implementations_in(jax.vmap(gradient), floats(2, 4, 2), floats(2, 3)) == {"xla"}
    with jax_gnn.implementation("xla"):
        _, vjp = jax.vjp(lambda w: hypergraph_aggregate(HYPERGRAPH, X, w), floats(3))
    assert implementations_in(vjp, X) == {"xla"}


@pytest.mark.parametrize("name", ["gpu", "CPU", "", 3])
def test_unknown_implementation(name) -> None:
    with pytest.raises(ValueError, match=r"None or one of \('cuda', 'cpu', 'xla'\), got"):
        jax_gnn.implementation(name)
    with pytest.raises(ValueError, match=r"None or one of \('cuda', 'cpu', 'xla'\), got"):
        hypergraph_aggregate(HYPERGRAPH, X, implementation=name)


def test_implementation_of_another_platform() -> None:
    compiled_for = "cpu" if PLATFORM == "cpu" else "cuda|gpu"
    message = rf"implementation='{OTHER_PLATFORM}' was asked for, .*compiled for ({compiled_for})"
    with pytest.raises(ValueError, match=message):
        hypergraph_aggregate(HYPERGRAPH, X, implementation=OTHER_PLATFORM)
    with jax_gnn.implementation(OTHER_PLATFORM), pytest.raises(ValueError, match=message):
        jax.jit(lambda x: hypergraph_aggregate(HYPERGRAPH, x))(X)
