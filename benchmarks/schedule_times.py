"""A performance database: times of hypergraph aggregations under all schedules worth trying.

Each of the two sums is a row, since a sum has rounds of its own; both are measured in one call, in
which they have the same rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.workloads import Incidence, hypergraphs, skewed

SCHEMA = 1
SUBJECT = "hypergraph"
WIDTHS = {"float32": (4, 8, 16, 32, 64, 128, 256), "bfloat16": (16, 64, 128)}
THREADS = (64, 128, 256)
ROUNDS = (1, 2, 3, 4, 6, 8, 16)

FEATURES = ("to_nodes", "waves", "average_degree", "row_bytes")
"""What the tree may ask: the rule's arguments, and what it computes first."""

Choice = tuple[int, int]
"""Threads and rounds."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Times of a sum in microseconds, by index of the choice.

    Attributes:
        to_nodes: Whether it is the second.
        itemsize: Bytes of a feature that it reads.
    """

    graph: str
    to_nodes: bool
    incidences: int
    num_rows: int
    width: int
    itemsize: int
    times: tuple[float, ...]

    @property
    def kernel(self) -> str:
        """What the row measures."""
        return "to nodes" if self.to_nodes else "to hyperedges"

    def values(self) -> dict[str, Any]:
        """`FEATURES` by name."""
        from jax_gnn._ops.hypergraph_aggregate.schedule import stage_features

        shape = self.incidences, self.num_rows, self.width, self.itemsize
        return {"to_nodes": self.to_nodes, **stage_features(*shape)}

    def features(self) -> list[float]:
        """The values in the order of `FEATURES`."""
        values = self.values()
        return [float(values[name]) for name in FEATURES]


# --- The database --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Database:
    """What was measured: rows of times for a list of choices."""

    device: str
    versions: dict[str, str]
    commit: str | None
    date: str
    choices: list[Choice]
    rows: Sequence[Row]


def write(database: Database, path: Path) -> None:
    """One line for each row, numbers to four digits."""
    rows = [{**row.__dict__, "times": _short(row.times)} for row in database.rows]
    fields = list(rows[0]) if rows else []
    head = {"schema": SCHEMA, "subject": SUBJECT, **database.__dict__, "rows": [], "fields": fields}
    lines = [json.dumps(list(row.values())) for row in rows]
    text = json.dumps(head, indent=None).replace('"rows": []', '"rows": [\n%s\n]')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text % ",\n".join(lines) + "\n")


def _short(times: Sequence[float]) -> list[float]:
    return [float(f"{time:.4g}") for time in times]


def read(path: Path) -> Database:
    """Reads what `write` wrote.

    Raises:
        ValueError: The file is something else.
    """
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is not a database of schedules of schema {SCHEMA}")
    subject = document.pop("subject", None)
    if subject != SUBJECT:
        raise ValueError(f"{path} is a database of {subject!r}, not of {SUBJECT!r}")
    fields, rows = document.pop("fields"), document.pop("rows")
    document["choices"] = [tuple(choice) for choice in document["choices"]]
    rows = [Row(**dict(zip(fields, row, strict=True))) for row in rows]
    return Database(**document, rows=rows)


# --- Measuring -----------------------------------------------------------------------------------


def measure(data: Path | None, seconds: float, quick: bool = False) -> Database:
    """Measures on this machine's GPU until all is done or the time is up.

    A graph that fails is left out, with a message.

    Raises:
        RuntimeError: There is no GPU, or all graphs failed.
    """
    import jax

    from jax_gnn._tuning.timing import ProfilerTimer

    begin = time.monotonic()
    timer = ProfilerTimer(flushes=4)
    rows: list[Row] = []
    for name, load in graphs(data).items():
        try:
            found = measured_rows(name, load(), timer, quick)
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
    return Database(
        device=jax.devices()[0].device_kind,
        versions={"jax": jax.__version__, "driver": report.driver() or ""},
        commit=report.commit(),
        date=report.now(),
        choices=choices(),
        rows=rows,
    )


Loaders = dict[str, Callable[[], Incidence]]


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
            row = Row(
                graph=name,
                to_nodes=bool(stage),
                incidences=incidences,
                num_rows=num_rows,
                width=call.width,
                itemsize=itemsize,
                times=tuple(float(times[index, choice][stage]) for choice in choices()),
            )
            rows.append(row)
    return rows
