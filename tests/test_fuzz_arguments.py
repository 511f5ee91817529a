"""Random calls of public functions, drawn by Hypothesis from the specs of other tests.

Right arguments are those of an `OpSpec`: any op, scenario of indices, width, dtype, implementation,
transformation and mode of JAX, with NaN or infinity in rows that must not be read. Results are
compared with the float64 reference. Wrong arguments are those of `argument_calls.CALLS`; the error
must name the argument and say what was passed.

``pytest tests/test_fuzz_arguments.py --fuzz --examples 10000`` is a long run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import op_spec
import pytest
from argument_calls import CALLS, fault, ways
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from op_suite import IMPLEMENTATIONS, TOLERANCE, CoreChecks

WIDTHS = ((), (1,), (3,), (4,), (2, 3), (0,), (33,))
MAX_REFERENCE = 400
"""Numbers in all operands above which the reference has no full set of gradients: it moves one
number at a time."""


def specs() -> dict[str, op_spec.OpSpec]:
    """Return the description of each op and variant that has a suite, by module and class."""
    specs_by_suite = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if "op_suite import" in path.read_text() and path != Path(__file__):
            for suite in vars(importlib.import_module(path.stem)).values():
                is_suite = isinstance(suite, type) and issubclass(suite, CoreChecks)
                if is_suite and isinstance(getattr(suite, "spec", None), op_spec.OpSpec):
                    specs_by_suite[f"{path.stem}.{suite.__name__}"] = suite.spec
    return specs_by_suite


SPECS = specs()


class Call(NamedTuple):
    """A call with right arguments."""

    suite: str
    scenario: str
    width: tuple[int, ...]
    dtype: str
    implementation: str
    transformation: str
    unread: float
    is_strict: bool
    seed: int


RIGHT_CALLS = st.builds(
    Call,
    suite=st.sampled_from(sorted(SPECS)),
    scenario=st.sampled_from(op_spec.SCENARIOS),
    width=st.sampled_from(WIDTHS),
    dtype=st.sampled_from(sorted(TOLERANCE)),
    implementation=st.sampled_from(IMPLEMENTATIONS),
    transformation=st.sampled_from(["eager", "jit", "jvp", "vjp", "vmap"]),
    unread=st.sampled_from([0.0, np.nan, np.inf, -np.inf]),
    is_strict=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)


@contextlib.contextmanager
def modes(call: Call) -> Iterator[None]:
    promotion = op_spec.strict() if call.is_strict else contextlib.nullcontext()
    with op_spec.setting(call.implementation, call.dtype), promotion:
        yield


def check(call: Call) -> None:
    """Compare a call, or its derivatives, with the reference."""
    spec, rng = SPECS[call.suite], np.random.default_rng(call.seed)
    case = spec.make_case(rng, call.scenario, call.width)
    operands = op_spec.typed(case.operands, call.dtype)
    arguments = op_spec.typed(op_spec.padded(case, call.unread), call.dtype)
    tolerance = TOLERANCE[call.dtype]
    value = functools.partial(spec.reference, case.plain, *op_spec.wide(operands))
    if call.transformation == "jvp":
        tangents = op_spec.random_like(rng, operands, call.dtype)
        with modes(call):
            _, tangent = spec.jvp(case.index, arguments, tangents)
        expected = op_spec.reference_tangent(spec, case.plain, operands, tangents)
        op_spec.assert_close(tangent, expected, 4 * tolerance, "tangent")
    elif call.transformation == "vjp":
        if sum(x.size for x in operands) > MAX_REFERENCE:
            return
        with modes(call):
            result = jax.eval_shape(spec.function, case.index, *arguments)
            (cotangent,) = op_spec.random_like(rng, [result], call.dtype)
            gradients = spec.gradient(case.index, cotangent, *arguments)
        expected = op_spec.reference_gradients(spec, case.plain, operands, cotangent)
        for name, gradient, exact in zip(spec.operands, gradients, expected, strict=True):
            assert gradient.dtype == call.dtype
            op_spec.assert_close(gradient, exact, 4 * tolerance, f"gradient to {name}")
    elif call.transformation == "vmap":
        second = spec.make_case(rng, call.scenario, call.width)
        batches = op_spec.typed(op_spec.padded(second, call.unread), call.dtype)
        columns = zip((case.index, *arguments), (second.index, *batches), strict=True)
        with modes(call):
            results = jax.vmap(spec.function)(*map(op_spec.stack, columns))
        op_spec.assert_close(results[0], value(), tolerance, "first of the batch")
        exact = spec.reference(
            second.plain, *op_spec.wide(op_spec.typed(second.operands, call.dtype))
        )
        op_spec.assert_close(results[1], exact, tolerance, "second of the batch")
    else:
        function = spec.jitted if call.transformation == "jit" else spec.function
        with modes(call):
            result = function(case.index, *arguments)
        assert result.dtype == call.dtype
        op_spec.assert_close(result, value(), tolerance, "value")


def run(config: pytest.Config, strategy: st.SearchStrategy[Any], test: Callable[..., None]) -> None:
    """Run a property on as many examples as the command asks for, drawn by its seed."""
    options = settings(
        max_examples=config.option.examples,
        database=None,
        deadline=None,
        # Each example compiles a program, and shrinking would compile hundreds.
        phases=[Phase.generate, Phase.shrink] if config.option.fuzz else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(config.option.seed)(options(given(strategy)(test)))()


def test_right_arguments(pytestconfig: pytest.Config) -> None:
    def matches_its_reference(call: Call) -> None:
        note(str(call))
        check(call)

    run(pytestconfig, RIGHT_CALLS, matches_its_reference)


def described(value: object) -> str:
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)[:60]


def can_be_traced(value: object) -> bool:
    is_array = isinstance(value, np.ndarray | jax.Array)
    return is_array and getattr(value.dtype, "kind", "key") in "iufcb"


@st.composite
def wrong_calls(draw: st.DrawFn) -> tuple[str, str, int, bool, bool, bool]:
    """Draw a call, the argument to spoil, one of the ways, and whether x64, strict, jit."""
    name = draw(st.sampled_from(sorted(CALLS)))
    _, arguments, spoilt = CALLS[name]
    argument = draw(st.sampled_from(sorted(spoilt or arguments)))
    way = draw(st.integers(0, len(ways(name, argument)) - 1))
    return name, argument, way, draw(st.booleans()), draw(st.booleans()), draw(st.booleans())


def test_wrong_arguments(pytestconfig: pytest.Config) -> None:
    def is_refused_by_name(call: tuple[str, str, int, bool, bool, bool]) -> None:
        name, argument, way, x64, is_strict, jitted = call
        function, arguments, _ = CALLS[name]
        what, spoil = ways(name, argument)[way]
        passed = {**arguments, argument: spoil(arguments[argument])}
        note(f"{name}({argument}={described(passed[argument])}): {what}")
        # Methods, and whatever is built on the host, are not called with tracers.
        jitted = jitted and "." not in name and name != "implementation"
        traced = {key: x for key, x in passed.items() if jitted and can_be_traced(x)}
        static = {key: x for key, x in passed.items() if key not in traced}
        promotion = op_spec.strict() if is_strict else contextlib.nullcontext()
        with op_spec.setting(None, "float64" if x64 else "float32"), promotion:
            try:
                if jitted:
                    jax.eval_shape(lambda arrays: function(**static, **arrays), traced)
                else:
                    function(**passed)
            except Exception as error:
                assert fault(error, argument) is None
            else:
                raise AssertionError(f"{name} takes {argument}={described(passed[argument])}")

    run(pytestconfig, wrong_calls(), is_refused_by_name)
