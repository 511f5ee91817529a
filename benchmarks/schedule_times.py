"""Performance databases: times of kernels under all schedules worth trying.

A database is of segment kernels or of hypergraph aggregations, over graphs, widths and dtypes. Of
an aggregation each of the two sums is a row, since a sum has rounds of its own; both are measured
in one call, in which they have the same rounds.
"""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks import report
from benchmarks.workloads import Incidence, PlainGraph, hypergraphs, plain_graphs, power_law, skewed

SCHEMA = 1
WIDTHS = {"float32": (4, 8, 16, 32, 64, 128), "bfloat16": (16, 64, 128)}
HYPERGRAPH_WIDTHS = {"float32": (*WIDTHS["float32"], 256), "bfloat16": WIDTHS["bfloat16"]}
THREADS = (64, 128, 256)
ROUNDS = (1, 2, 3, 4, 6, 8, 16)

Choice = tuple[Any, ...]


# --- Rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """Times of one kernel in microseconds, by index of the choice.

    Attributes:
        FEATURES: What the tree may ask: the rule's arguments, and what it computes first.
        FLAGS: Those that are true or false.
    """

    FEATURES: ClassVar[tuple[str, ...]]
    FLAGS: ClassVar[tuple[str, ...]]

    graph: str
    times: tuple[float | None, ...]

    @property
    @abstractmethod
    def kernel(self) -> str:
        """What the row measures."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """`FEATURES` by name."""

    def features(self) -> list[float]:
        """The values in the order of `FEATURES`."""
        values = self.values()
        return [float(values[name]) for name in self.FEATURES]


@dataclass(frozen=True, kw_only=True)
class SegmentRow(Row):
    """Of a segment kernel; its choices are those of ``tuning.segment.Choice``."""

    FEATURES = (
        *("softmax", "gather", "count", "num_rows", "width", "itemsize"),
        *("average_degree", "num_bytes"),
    )
    FLAGS = ("softmax", "gather")

    softmax: bool
    gather: bool
    count: int
    num_rows: int
    width: int
    itemsize: int

    @property
    def kernel(self) -> str:
        """What the row measures."""
        return "softmax" if self.softmax else "spmm" if self.gather else "sum"

    def values(self) -> dict[str, Any]:
        """See the base class."""
        return {
            **self.__dict__,
            "average_degree": self.count / self.num_rows,
            "num_bytes": self.count * self.width * self.itemsize,
        }


@dataclass(frozen=True, kw_only=True)
class StageRow(Row):
    """Of a sum of a hypergraph aggregation; a choice is threads and rounds.

    Attributes:
        to_nodes: Whether it is the second.
        itemsize: Bytes of a feature that it reads.
    """

    FEATURES = ("to_nodes", "waves", "average_degree", "row_bytes")
    FLAGS = ("to_nodes",)

    to_nodes: bool
    incidences: int
    num_rows: int
    width: int
    itemsize: int

    @property
    def kernel(self) -> str:
        """What the row measures."""
        return "to nodes" if self.to_nodes else "to hyperedges"

    def values(self) -> dict[str, Any]:
        """See the base class."""
        from jax_gnn._ops.hypergraph_aggregate.schedule import stage_features

        shape = self.incidences, self.num_rows, self.width, self.itemsize
        return {"to_nodes": self.to_nodes, **stage_features(*shape)}


# --- The database --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Database:
    """What was measured: rows of times for a list of choices."""

    subject: str
    device: str
    versions: dict[str, str]
    commit: str | None
    date: str
    choices: list[Choice]
    rows: Sequence[Row]

    @property
    def row_type(self) -> type[Row]:
        """Of all rows."""
        return SUBJECTS[self.subject].row_type


def write(database: Database, path: Path) -> None:
    """One line for each row, numbers to four digits."""
    rows = [{**row.__dict__, "times": _short(row.times)} for row in database.rows]
    fields = list(rows[0]) if rows else []
    head = {"schema": SCHEMA, **database.__dict__, "rows": [], "fields": fields}
    lines = [json.dumps(list(row.values())) for row in rows]
    text = json.dumps(head, indent=None).replace('"rows": []', '"rows": [\n%s\n]')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text % ",\n".join(lines) + "\n")


def _short(times: Sequence[float | None]) -> list[float | None]:
    return [time and float(f"{time:.4g}") for time in times]


def read(path: Path) -> Database:
    """Reads what `write` wrote.

    Raises:
        ValueError: The file is something else.
    """
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is not a database of schedules of schema {SCHEMA}")
    subject = document.pop("subject", "segment")  # the first of which there were no others
    if subject not in SUBJECTS:
        raise ValueError(f"{path} is a database of {subject!r}, not of {', '.join(SUBJECTS)}")
    fields, rows = document.pop("fields"), document.pop("rows")
    document["choices"] = [tuple(choice) for choice in document["choices"]]
    row_type = SUBJECTS[subject].row_type
    rows = [row_type(**dict(zip(fields, row, strict=True))) for row in rows]
    return Database(subject, **document, rows=rows)


# --- Measuring -----------------------------------------------------------------------------------


def measure(subject: str, data: Path | None, seconds: float, quick: bool = False) -> Database:
    """Measures on this machine's GPU until all is done or the time is up.

    A graph that fails is left out, with a message.

    Raises:
        RuntimeError: There is no GPU, or all graphs failed.
    """
    import jax

    from jax_gnn._tuning.timing import ProfilerTimer

    begin = time.monotonic()
    timer = ProfilerTimer(flushes=4)
    of = SUBJECTS[subject]
    choices = of.choices()
    rows: list[Row] = []
    for name, load in of.graphs(data).items():
        try:
            found = of.rows(name, load(), choices, timer, quick)
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
        subject=subject,
        device=jax.devices()[0].device_kind,
        versions={"jax": jax.__version__, "driver": report.driver() or ""},
        commit=report.commit(),
        date=report.now(),
        choices=choices,
        rows=rows,
    )


Loaders = dict[str, Callable[[], Any]]


def _shuffled(found: Loaders, last: str, rng: np.random.Generator) -> Loaders:
    """In random order, the largest last: a run that is cut short has seen some of all else."""
    names = rng.permutation(list(found)).tolist()
    names.sort(key=lambda name: name.startswith(last))
    return {name: found[name] for name in names}


def segment_choices() -> list[Choice]:
    """Of all ops."""
    from jax_gnn._tuning import segment

    found = dict.fromkeys(choice for op in segment.OPS for choice in segment.choices(op))
    return [(*choice,) for choice in found]


def segment_graphs(data: Path | None, seed: int = 0) -> Loaders:
    """Real graphs and twins, and random ones over the sizes and degrees that there are."""
    found: Loaders = {n: work.load for n, work in plain_graphs(data).items() if n != "tiny"}
    rng = np.random.default_rng(seed)
    for index in range(28):
        num_edges = int(10 ** rng.uniform(3.5, 6.5))
        average = 10 ** rng.uniform(0, 2.5)
        exponent = (0.0, 0.3, 0.6, 0.9)[index % 4]
        num_nodes = max(int(num_edges / average), 16)
        found[f"random-{index}"] = partial(power_law, num_nodes, num_edges, exponent, seed=index)
    return _shuffled(found, "reddit2", rng)


def segment_rows(
    name: str, graph: PlainGraph, choices: Sequence[Choice], timer: Any, quick: bool
) -> list[Row]:
    """A row for each op, width and dtype."""
    from jax_gnn._tuning import segment
    from jax_gnn._tuning.measure import measure as measure_calls

    if quick and graph.num_edges > 20_000:
        return []
    edges = segment.Edges(graph.rows, graph.cols, graph.num_nodes, graph.num_nodes)
    calls = list(_segment_calls(edges, quick))

    def schedule(call: Any, choice: Any) -> Any:
        found = segment.Choice(*choice).schedule(call.width, call.shape["itemsize"])
        return call.effective(found)

    def schedules(call: Any) -> list[Any]:
        return [schedule(call, choice) for choice in segment.choices(call.op)]

    repeats = 3 if graph.num_edges > 4_000_000 else 5
    rows: list[Row] = []
    for call, times in zip(calls, measure_calls(calls, schedules, timer, repeats), strict=True):
        shape = call.shape
        sizes = {"count": shape.pop("entries"), "num_rows": shape.pop("rows")}
        possible = set(segment.choices(call.op))
        found = tuple(
            times[schedule(call, choice)] * 1e6 if choice in possible else None
            for choice in choices
        )
        kind = {"softmax": call.op == "softmax"}
        rows.append(SegmentRow(graph=name, **kind, **sizes, **shape, times=found))
    return rows


def _segment_calls(edges: Any, quick: bool) -> Iterator[Any]:
    from jax_gnn._tuning.segment import Call

    for dtype, widths in WIDTHS.items():
        for width in widths[:1] if quick else widths:
            yield Call("sum", edges, width, dtype)
            if width >= 16:
                yield Call("spmm", edges, width, dtype)
            if width <= 32 and dtype == "float32":
                yield Call("softmax", edges, width, dtype)


def hypergraph_choices() -> list[Choice]:
    """Threads and rounds."""
    return [(threads, rounds) for threads in THREADS for rounds in ROUNDS]


def hypergraph_graphs(data: Path | None, seed: int = 0) -> Loaders:
    """Real hypergraphs or twins, Yelp's, and random ones over sizes, degrees and their tails."""
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
    return _shuffled(found, large, rng)


def hypergraph_rows(
    name: str, graph: Incidence, choices: Sequence[Choice], timer: Any, quick: bool
) -> list[Row]:
    """Two rows for each width and dtype."""
    import jax.numpy as jnp

    from jax_gnn._tuning.hypergraph import Call, stage_seconds
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
        for dtype, widths in HYPERGRAPH_WIDTHS.items()
        for width in (widths[:1] if quick else widths)
    ]
    schedules = {HypergraphSchedule(t, rounds, rounds): (t, rounds) for t, rounds in choices}
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
            row = StageRow(
                graph=name,
                to_nodes=bool(stage),
                incidences=incidences,
                num_rows=num_rows,
                width=call.width,
                itemsize=itemsize,
                times=tuple(float(times[index, choice][stage]) for choice in choices),
            )
            rows.append(row)
    return rows


@dataclass(frozen=True)
class Subject:
    """Kernels that have a database and a rule of their own.

    Attributes:
        row_type: What the database consists of.
        choices: What there is to choose from.
        graphs: How to get each, given a folder with real ones.
        rows: Measures a graph, given its name, the choices and a timer; nothing of a larger graph,
            and fewer widths, if it is to be quick.
    """

    row_type: type[Row]
    choices: Callable[[], list[Choice]]
    graphs: Callable[[Path | None], Loaders]
    rows: Callable[[str, Any, Sequence[Choice], Any, bool], list[Row]]


SUBJECTS = {
    "segment": Subject(SegmentRow, segment_choices, segment_graphs, segment_rows),
    "hypergraph": Subject(StageRow, hypergraph_choices, hypergraph_graphs, hypergraph_rows),
}
