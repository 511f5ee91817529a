"""Models of others as they are, and with `jax_gnn.compat` in the place of what they import.

``python -m benchmarks compat`` trains each for 20 steps, both ways, and compares outputs, losses
and parameters. Then both take turns. Times are of the host's clock, around calls that are queued
and waited for once; on a CPU they are of the process's CPU time.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.definition import Settings
from benchmarks.worker import _receive, _start, probe, set_environment

STEPS, RATE = 20, 1e-3
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
_TURN = 0.15  # seconds at least


def _serve(connection: Any, settings: Settings, options: dict[str, Any]) -> None:
    """Measures models in turn, each when it is asked for."""
    set_environment(settings.platform)
    import jax

    jax.config.update("jax_enable_x64", "float64" in settings.dtypes)
    from benchmarks.compat_models import MODELS

    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("", _measured(MODELS[name], settings, **options)))
        except Exception as error:
            text = str(error).splitlines()[:1]
            connection.send((f"{type(error).__name__}: {''.join(text)[:200]}", None))
        jax.clear_caches()


def _measured(make: Any, settings: Settings, scale: float, is_traced: bool) -> dict[str, Any]:
    """Times and deviations of a model."""
    import jax
    import jax.numpy as jnp

    from jax_gnn import compat

    def cast(x: Any) -> Any:
        x = np.asarray(x)
        return jnp.asarray(x, settings.dtypes[0] if x.dtype.kind == "f" else x.dtype)

    made = make(scale, np.random.default_rng(0), settings.published)
    parameters, inputs = jax.tree.map(cast, (made.parameters, made.inputs))
    target = jnp.cos(jnp.arange(7.0, dtype=settings.dtypes[0]))

    def programs(precision: str | None) -> Any:
        """Forward and a step, new functions each time: what is traced stays as it is."""

        def loss(p: Any, inputs: Any) -> Any:
            y = made.output(p, inputs).ravel()
            return jnp.mean(jnp.square(y - jnp.resize(target, y.shape)))

        def forward(p: Any, inputs: Any) -> Any:
            return made.output(p, inputs)

        def step(p: Any, inputs: Any) -> Any:
            value, slopes = jax.value_and_grad(loss)(p, inputs)
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(slopes)))
            rate = RATE / jnp.maximum(norm, 1)  # so that weights stay bounded
            return jax.tree.map(lambda w, g: w - rate * g, p, slopes), value

        def compiled(function: Any) -> Callable[[Any], Any]:
            with jax.default_matmul_precision(precision):
                if is_traced:
                    program = jax.jit(function).lower(parameters, inputs).compile()
                    return lambda p: program(p, inputs)
                return jax.jit(lambda p: function(p, inputs)).lower(parameters).compile()

        return compiled(forward), compiled(step)

    def both(precision: str | None) -> Any:
        theirs = programs(precision)
        replaced = compat.install()
        try:
            return theirs, programs(precision), replaced
        finally:
            compat.uninstall()

    def trained(forward: Any, step: Any) -> list[np.ndarray]:
        p, losses = parameters, []
        first = forward(p)
        for _ in range(STEPS):
            p, value = step(p)
            losses.append(value)
        return [np.asarray(x, np.float64) for x in jax.tree.leaves((first, losses, p))]

    theirs, ours, replaced = both("highest")
    results = trained(*theirs), trained(*ours)
    largest = [max(np.abs(a).max(initial=0), 1e-30) for a in results[0]]
    deviation = max(
        np.abs(a - b).max(initial=0) / most for a, b, most in zip(*results, largest, strict=True)
    )
    if settings.platform != "cpu":  # there, products are rounded unless somebody asks
        theirs, ours, replaced = both(None)
    forward = _turns(theirs[0], ours[0], lambda f: f(parameters), False, settings)
    step = _turns(theirs[1], ours[1], lambda f: f(parameters), True, settings)
    wrong = not deviation <= TOLERANCE[settings.dtypes[0]]
    return {
        "replaced": len(replaced),
        "deviation": float(deviation),
        "forward": forward,
        "step": step,
        "status": "wrong" if wrong else "timed",
    }


def _turns(theirs: Any, ours: Any, call: Any, is_chain: bool, settings: Settings) -> Any:
    """Medians of both, in seconds, and of their ratio: how many times as fast."""
    import jax

    clock = time.process_time if settings.platform == "cpu" else time.perf_counter

    def run(function: Any, count: int) -> float:
        start = clock()
        made = call(function)
        for _ in range(count - 1):
            made = function(made[0]) if is_chain else call(function)
        jax.block_until_ready(made)
        return (clock() - start) / count

    run(ours, 2)
    run(theirs, 2)
    count = int(np.clip(_TURN / max(run(theirs, 3), 1e-6), 3, 300))
    times = []
    for i in range(settings.rounds):
        pair = (theirs, ours) if i % 2 else (ours, theirs)
        seconds = [run(function, count) for function in pair]
        times.append(seconds if i % 2 else seconds[::-1])
    return {
        "theirs": statistics.median(a for a, _ in times),
        "ours": statistics.median(b for _, b in times),
        "times": statistics.median(a / b for a, b in times),
    }


def run(settings: Settings, scale: float, is_traced: bool) -> dict[str, Any]:
    """Measures the models that are asked for, in one process; a document for JSON."""
    from benchmarks.compat_models import MODELS

    patterns = settings.patterns or ("*",)
    names = [n for n in MODELS if any(fnmatch(n.lower(), p.lower()) for p in patterns)]
    if not names:
        raise ValueError(f"no model is called {patterns[0]!r}; there are {', '.join(MODELS)}")
    machine = probe(settings)
    process, connection = _start(_serve, settings, {"scale": scale, "is_traced": is_traced})
    rows = []
    for name in names:
        connection.send(name)
        try:
            rows.append({"name": name, **_receive(connection)})
        except RuntimeError as error:
            rows.append({"name": name, "status": f"absent: {error}"})
    connection.close()
    process.join(timeout=10)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "dtype": settings.dtypes[0],
        "scale": scale,
        "traced": is_traced,
        "rows": rows,
    }


def markdown(document: dict[str, Any]) -> str:
    """The table of a run."""
    rows = [row for row in document["rows"] if "step" in row]
    ids = "arguments of" if document["traced"] else "held by"
    lines = [
        "# Others' models, with this library's functions in them",
        "",
        f"{document['machine']['device']}, {document['date']}; jax "
        f"{document['machine']['versions']['jax']}, {document['dtype']}, sizes × "
        f"{document['scale']:g}; graphs are {ids} programs.",
        "",
        "| model | theirs: forward, step, ms | times as fast: forward, step | deviation |",
        "|---|--:|--:|--:|",
    ]
    for row in document["rows"]:
        if "step" in row:
            wrong = "" if row["status"] == "timed" else " **wrong**"
            theirs = ", ".join(f"{1e3 * row[k]['theirs']:.2f}" for k in ("forward", "step"))
            times = ", ".join(f"{row[k]['times']:.2f}" for k in ("forward", "step"))
            lines.append(f"| {row['name']}{wrong} | {theirs} | {times} | {row['deviation']:.0e} |")
        else:
            lines.append(f"| {row['name']} | {row['status']} | | |")
    if rows:
        means = [
            f"{statistics.geometric_mean(row[k]['times'] for row in rows):.2f}"
            for k in ("forward", "step")
        ]
        lines.append(f"| geometric mean | | {', '.join(means)} | |")
    return "\n".join([*lines, ""])


def write(document: dict[str, Any], path: Path) -> None:
    """The JSON, and a plot beside it: how many times as fast a step is."""
    path.write_text(json.dumps(document, indent=1) + "\n")
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = [row for row in document["rows"] if "step" in row][::-1]
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 1.2), layout="constrained")
    bars = axes.barh(
        [r["name"] for r in rows], [r["step"]["times"] for r in rows], color="tab:blue"
    )
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.margins(x=0.15)
    axes.set_xlabel("a training step: times as fast")
    axes.set_title(document["machine"]["device"], fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path.with_suffix(".png"), dpi=120)
    plt.close(figure)
