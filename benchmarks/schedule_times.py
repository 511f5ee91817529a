"""Performance databases: times of calls under all schedules worth trying.

Those of hypergraph aggregations are measured here, those of sums over edges in ``segment_times``.
Each of the two sums of a hypergraph aggregation is a row, since a sum has rounds of its own; both
are measured in one call, in which they have the same rounds.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.workloads import Incidence, hypergraphs, skewed

SCHEMA = 1
HYPERGRAPH = "hypergraph"
WIDTHS = {"float32": (4, 8, 16, 32, 64, 128, 256), "bfloat16": (16, 64, 128)}
THREADS = (64, 128, 256)
ROUNDS = (1, 2, 3, 4, 6, 8, 16)

SPREAD = ("length_cv", "longest")
"""Sizes that shapes do not have: deviation and maximum of the rows' lengths, over their mean."""

Choice = Any
"""Threads and rounds of a hypergraph aggregation; of other subjects the leaf of a tree."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Times of a call under each choice.

    Attributes:
        graph: name of the graph.
        times: microseconds by index of the choice; infinite where no kernel can do the call.
        by_hand: microseconds of the schedule of the rule by hand, or None.
        shape: sizes of the call, by name.
    """

    graph: str
    times: tuple[float, ...]
    by_hand: float | None = None
    shape: dict[str, Any]


# --- The database --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Database:
    """What was measured: rows of times for a list of choices.

    Attributes:
        subject: ``"hypergraph"``, or a kind of call of ``segment_times``.
        capability: compute capability of the device.
        knows_spread: whether trees may ask for `SPREAD`; not written.
        threads: threads of the blocks of hypergraph aggregations that trees may choose; not
            written.
    """

    subject: str
    device: str
    capability: str = field(default="", kw_only=True)
    knows_spread: bool = field(default=False, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)
    versions: dict[str, str]
    commit: str | None
    date: str
    choices: list[Choice]
    rows: Sequence[Row]


def write(databases: Sequence[Database], path: Path) -> None:
    """Writes one line for each row, numbers to four digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(map(_text, databases)) + "\n]\n")


def _text(database: Database) -> str:
    rows = [
        {
            "graph": row.graph,
            "times": [_short(time) for time in row.times],
            **({} if row.by_hand is None else {"by_hand": _short(row.by_hand)}),
            **row.shape,
        }
        for row in database.rows
    ]
    fields = list(rows[0]) if rows else []
    head = {"schema": SCHEMA, **database.__dict__, "rows": [], "fields": fields}
    del head["knows_spread"], head["threads"]
    lines = [json.dumps(list(row.values())) for row in rows]
    text = json.dumps(head, indent=None).replace('"rows": []', '"rows": [\n%s\n]')
    return text % ",\n".join(lines)


def _short(time: float) -> float | None:
    """Returns a time to four digits; None, as JSON has no infinity, for one that is infinite."""
    return float(f"{time:.4g}") if math.isfinite(time) else None


def read(path: Path) -> list[Database]:
    """Reads what `write` wrote, or a file with a single database.

    Raises:
        ValueError: The file is something else.
    """
    documents = json.loads(path.read_text())
    return [
        _parse(path, document)
        for document in (documents if isinstance(documents, list) else [documents])
    ]


def _parse(path: Path, document: Any) -> Database:
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is not a database of schedules of schema {SCHEMA}")
    fields, rows = document.pop("fields"), []
    for values in document.pop("rows"):
        shape = dict(zip(fields, values, strict=True))
        times = tuple(math.inf if time is None else time for time in shape.pop("times"))
        graph, by_hand = shape.pop("graph"), shape.pop("by_hand", None)
        rows.append(Row(graph=graph, times=times, by_hand=by_hand, shape=shape))
    choices = [tuple(c) if isinstance(c, list) else c for c in document.pop("choices")]
    return Database(**document, choices=choices, rows=rows)


# --- Measuring -----------------------------------------------------------------------------------


def measure(data: Path | None, seconds: float, quick: bool = False) -> list[Database]:
    """Measures hypergraph aggregations on this machine's GPU."""
    from jax_gnn._tuning.timing import ProfilerTimer

    timer = ProfilerTimer(flushes=4)
    measured = partial(measured_rows, timer=timer, quick=quick)
    rows = timed_graphs(graphs(data), measured, seconds)
    return [describe(HYPERGRAPH, choices(), rows)]


def timed_graphs(
    graphs: Loaders, measured: Callable[[str, Any], list[Any]], seconds: float
) -> list[Any]:
    """Measures graphs until all are done or the time is up.

    A graph that fails is left out, with a message.

    Raises:
        RuntimeError: All graphs failed.
    """
    begin, rows = time.monotonic(), []
    for name, load in graphs.items():
        try:
            found = measured(name, load())
        except RuntimeError as error:  # the profile has gaps, or memory is short
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
            continue
        rows += found
        spent = time.monotonic() - begin
        print(f"{spent:6.0f} s: {name}, {len(found)} rows", file=sys.stderr, flush=True)
        if spent > seconds:
            break
    if not rows:
        raise RuntimeError("nothing was measured")
    return rows


def describe(subject: str, choices: list[Choice], rows: Sequence[Row]) -> Database:
    """Returns the database of rows that were measured here and now."""
    import jax

    return Database(
        subject=subject,
        device=jax.devices()[0].device_kind,
        capability=str(getattr(jax.devices()[0], "compute_capability", "")),
        versions={"jax": jax.__version__, "driver": report.driver() or ""},
        commit=report.commit(),
        date=report.now(),
        choices=choices,
        rows=rows,
    )


Loaders = dict[str, Callable[[], Any]]


def choices() -> list[Choice]:
    """All that is tried."""
    return [(threads, rounds) for threads in THREADS for rounds in ROUNDS]


def graphs(data: Path | None, seed: int = 0) -> Loaders:
    """Real hypergraphs or twins, Yelp's, and random ones over sizes, degrees and their tails.

    In random order, the largest last: a run that is cut short has seen some of all else.
    """
    large = "yelp-twin"
    found: Loaders = {
        name: work.load
        for name, work in hypergraphs(data).items()
        if not work.on_request or name == large
    }
    rng = np.random.default_rng(seed)
    exponents = (0.0, 0.3, 0.6, 0.9)
    for index, size in enumerate(rng.permutation(np.linspace(3.5, 6.5, 16))):
        count = int(10**size)
        # Each side's average degree; both sides together have room for all incidences.
        degrees = 10 ** rng.uniform(0.2, min(2.5, (size - 0.6) / 2), 2)
        nodes, hyperedges = (max(int(count / degree), 16) for degree in degrees)
        tails = exponents[index % 4], exponents[index // 4]
        found[f"random-{index}"] = partial(skewed, nodes, hyperedges, count, tails, seed=index)
    names = rng.permutation(list(found)).tolist()
    names.sort(key=lambda name: name == large)
    return {name: found[name] for name in names}


def stage_seconds(kernels: Sequence[Any]) -> tuple[float, float]:
    """Return the seconds of each of the two sums of a call, from its kernels in a profile.

    The second kernel has started, and waits, when the first one ends, so that its time counts from
    there.
    """
    sums = [kernel for kernel in kernels if "sum_kernel" in kernel.name]
    if len(sums) != 2:
        names = [kernel.name for kernel in kernels]
        raise RuntimeError(f"expected the kernels of two sums, the profile shows {names}")
    first, second = sums
    return (first.end - first.begin) * 1e-9, (second.end - first.end) * 1e-9


def measured_rows(name: str, graph: Incidence, timer: Any, quick: bool) -> list[Row]:
    """Two rows for each width and dtype."""
    import jax.numpy as jnp

    from jax_gnn._tuning.hypergraph import Call
    from jax_gnn._tuning.measure import compile_all
    from jax_gnn.hypergraph import Hypergraph
    from jax_gnn.schedules import HypergraphSchedule

    incidences = len(graph.node_idx)
    if quick and incidences > 20_000:
        return []
    hypergraph = Hypergraph.from_incidence(
        graph.node_idx,
        graph.hyperedge_idx,
        num_nodes=graph.num_nodes,
        num_hyperedges=graph.num_hyperedges,
    )
    calls = [
        Call(hypergraph, width, dtype)
        for dtype, widths in WIDTHS.items()
        for width in (widths[:1] if quick else widths)
    ]
    schedules = {HypergraphSchedule(t, rounds, rounds): (t, rounds) for t, rounds in choices()}
    times: dict[tuple[int, Choice], np.ndarray] = {}
    compiled = compile_all(calls, lambda _: schedules)
    for (index, schedule), samples in timer.kernels(compiled, 7).items():
        seconds = np.median([stage_seconds(kernels) for kernels in samples], axis=0)
        times[index, schedules[schedule]] = seconds * 1e6
    rows: list[Row] = []
    for index, call in enumerate(calls):
        of_dtype = jnp.dtype(call.dtype).itemsize
        stages = (graph.num_hyperedges, of_dtype), (graph.num_nodes, max(of_dtype, 4))
        for stage, (num_rows, itemsize) in enumerate(stages):
            shape = {
                "to_nodes": bool(stage),
                "incidences": incidences,
                "num_rows": num_rows,
                "width": call.width,
                "itemsize": itemsize,
            }
            stage_times = tuple(float(times[index, choice][stage]) for choice in choices())
            rows.append(Row(graph=name, times=stage_times, shape=shape))
    return rows
