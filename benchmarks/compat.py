"""Models of others as they are, with `jax_gnn.compat` in the place of what they import, and lifted.

``python -m benchmarks compat`` trains each for 20 steps, all ways, and compares outputs, losses and
parameters; XLA with `jax.checkpoint` around the model is one of the ways. Then they take turns.
Times are of the host's clock, around calls that are queued and waited for once; on a CPU they are
of the process's CPU time. Memory is what XLA counts beside inputs and results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any, NamedTuple

import numpy as np

from benchmarks.definition import Settings
from benchmarks.report import OURS, Document, Row, candidate, case, document
from benchmarks.worker import Process, probe, reason, set_environment

STEPS, RATE = 20, 1e-3
THEIRS, LIFTED, RECOMPUTED = "original", "jax_gnn.lift", "original, jax.checkpoint"
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
_TURN = 0.15  # seconds at least


def _models(settings: Settings, scale: float, is_traced: bool) -> tuple[Any, Any]:
    """Of a `Process`: it measures models in turn, each when it is asked for."""
    set_environment(settings.platform)
    import jax

    jax.config.update("jax_enable_x64", "float64" in settings.dtypes)
    models = _all_models()

    def measured(name: str) -> list[Row]:
        jax.clear_caches()
        return _measured(name, models[name], settings, scale, is_traced)

    return None, measured


def _all_models() -> dict[str, Any]:
    from benchmarks import compat_atoms, compat_models

    return {**compat_models.MODELS, **compat_atoms.MODELS}


def _measured(name: str, make: Any, settings: Settings, scale: float, is_traced: bool) -> list[Row]:
    """Return two cases of a model, its forward pass and a step, each in all ways."""
    import jax
    import jax.numpy as jnp

    from jax_gnn import compat, lift

    def cast(x: Any) -> Any:
        x = np.asarray(x)
        return jnp.asarray(x, settings.dtypes[0] if x.dtype.kind == "f" else x.dtype)

    made = make(scale, np.random.default_rng(0), settings.published)
    parameters, inputs = jax.tree.map(cast, (made.parameters, made.inputs))
    target = jnp.cos(jnp.arange(7.0, dtype=settings.dtypes[0]))

    def programs(precision: str | None, transform: Any = None) -> Any:
        """Return the forward pass and a step: new functions, since traces are kept."""

        def as_it_is(p: Any, inputs: Any) -> Any:
            return made.output(p, inputs)

        output = transform(as_it_is) if transform else as_it_is

        def loss(p: Any, inputs: Any) -> Any:
            y = output(p, inputs).ravel()
            return jnp.mean(jnp.square(y - jnp.resize(target, y.shape)))

        def forward(p: Any, inputs: Any) -> Any:
            return output(p, inputs)

        def step(p: Any, inputs: Any) -> Any:
            value, slopes = jax.value_and_grad(loss)(p, inputs)
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(slopes)))
            rate = RATE / jnp.maximum(norm, 1)  # so that weights stay bounded
            return jax.tree.map(lambda w, g: w - rate * g, p, slopes), value

        def compiled(function: Any) -> _Program:
            start = time.perf_counter()
            arguments = (inputs,) if is_traced else ()
            entry = function if is_traced else lambda p: function(p, inputs)
            with jax.default_matmul_precision(precision):
                program = jax.jit(entry).lower(parameters, *arguments).compile()
            seconds = time.perf_counter() - start
            memory: Any = program.memory_analysis()
            return _Program(lambda p: program(p, *arguments), seconds, memory.temp_size_in_bytes)

        return compiled(forward), compiled(step)

    def ways(precision: str | None) -> Any:
        others = [programs(precision, transform) for transform in (lift, jax.checkpoint, None)]
        replaced = compat.install()
        try:
            return (programs(precision), *others), replaced
        finally:
            compat.uninstall()

    of_ways, replaced = ways("highest")
    *results, expected = [_trained(parameters, *way) for way in of_ways]
    largest = [max(np.abs(a).max(initial=0), 1e-30) for a in expected]

    def accuracy(result: list[np.ndarray]) -> dict[str, Any]:
        pairs = zip(result, expected, largest, strict=True)
        deviation = float(max(np.abs(a - b).max(initial=0) / most for a, b, most in pairs))
        right = deviation <= TOLERANCE[settings.dtypes[0]]
        return {"error": deviation, "wrong": "" if right else f"deviation {deviation:.1e}"}

    if settings.platform != "cpu":  # there, products are rounded unless somebody asks
        of_ways, replaced = ways(None)
    cases = []
    for mode, *functions in zip(("forward", "step"), *of_ways, strict=True):
        calls = [program.call for program in functions]
        seconds = _turns(calls, parameters, mode == "step", settings)
        counts = [
            {"compile s": round(program.compile_seconds, 2), "MB": round(program.memory / 1e6, 1)}
            for program in functions
        ]
        names = {OURS: {"replaced": len(replaced)}, LIFTED: {}, RECOMPUTED: {}, THEIRS: {}}
        rows = [
            candidate(
                way,
                seconds[i],
                family=OURS if i < 2 else way,
                details=more | counts[i],
                **(accuracy(results[i]) if way != THEIRS else {}),
            )
            for i, (way, more) in enumerate(names.items())
        ]
        cases.append(case(name, mode, rows))
    return cases


class _Program(NamedTuple):
    """A compiled function of the parameters, and what XLA says of it."""

    call: Callable[[Any], Any]
    compile_seconds: float
    memory: int  # bytes of temporary arrays


def _trained(parameters: Any, forward: _Program, step: _Program) -> list[np.ndarray]:
    """Return the output, the losses of `STEPS` steps and the parameters after them."""
    import jax

    p, losses = parameters, []
    first = forward.call(p)
    for _ in range(STEPS):
        p, value = step.call(p)
        losses.append(value)
    return [np.asarray(x, np.float64) for x in jax.tree.leaves((first, losses, p))]


def _turns(programs: Any, parameters: Any, is_chain: bool, settings: Settings) -> Any:
    """Return the seconds of each program, the last of which is the original."""
    import jax

    clock = time.process_time if settings.platform == "cpu" else time.perf_counter

    def run(program: Any, count: int) -> float:
        start = clock()
        made = program(parameters)
        for _ in range(count - 1):
            made = program(made[0] if is_chain else parameters)
        jax.block_until_ready(made)
        return (clock() - start) / count

    for program in programs:
        run(program, 2)
    count = int(np.clip(_TURN / max(run(programs[-1], 3), 1e-6), 3, 300))
    times = []
    for turn in range(settings.rounds):
        seconds = [run(program, count) for program in programs[:: -1 if turn % 2 else 1]]
        times.append(seconds[:: -1 if turn % 2 else 1])
    return list(zip(*times, strict=True))


def run(settings: Settings, scale: float, is_traced: bool) -> Document:
    """Measures the models that are asked for, in one process."""
    models = _all_models()
    patterns = settings.patterns or ("*",)
    names = [n for n in models if any(fnmatch(n.lower(), p.lower()) for p in patterns)]
    if not names:
        raise ValueError(f"no model is called {patterns[0]!r}; there are {', '.join(models)}")
    machine = probe(settings)
    process = Process(_models, settings, scale, is_traced)
    process.receive()
    cases = []
    for name in names:
        process.send(name)
        try:
            cases += process.receive()
        except (RuntimeError, EOFError) as error:
            row = candidate(OURS, status="absent", reason=reason(error))
            cases.append(case(name, "step", [row]))
    process.stop()
    about = (
        f"{settings.dtypes[0]}, sizes × {scale:g}; graphs are "
        f"{'arguments of' if is_traced else 'held by'} programs."
    )
    title = "Others' models, with this library's functions in them"
    return document("compat", title, machine, cases, about=about, baseline=THEIRS)
