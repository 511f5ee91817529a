"""The rule that chooses schedules: measured on a GPU, fitted to that, written as Python.

``measure`` makes the performance database: times of the segment kernels under all schedules worth
trying, over graphs, widths and dtypes. ``fit`` grows a decision tree that predicts for a shape how
much slower than the best each schedule is (in logarithms), takes the least in every leaf, and emits
``jax_gnn/_schedule_rules.py``. How far it is from exhaustive search is told by cross-validation: on
graphs that the tree has not seen.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.workloads import PlainGraph, plain_graphs, power_law

SCHEMA = 1
SLOWEST = float(np.log(4))
"""Slowdowns beyond this are alike: nobody would choose them."""

Losses = dict[str, float]

FEATURES = (
    *("softmax", "gather", "count", "num_rows", "width", "itemsize"),
    *("average_degree", "max_degree", "num_bytes"),
)
"""What the tree may ask: the rule's arguments, and what it computes first. ``max_degree`` may be
unknown; the tree is grown on all rows with it and on all without.
"""


# --- The database --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Times of one call in microseconds, by index of the choice."""

    graph: str
    softmax: bool
    gather: bool
    count: int
    num_rows: int
    width: int
    itemsize: int
    max_degree: int
    times: tuple[float | None, ...]

    def features(self, hint: bool) -> list[float]:
        """In the order of `FEATURES`; without the hint NaN for the largest degree."""
        values = {
            **self.__dict__,
            "average_degree": self.count / self.num_rows,
            "max_degree": self.max_degree if hint else np.nan,
            "num_bytes": self.count * self.width * self.itemsize,
        }
        return [float(values[name]) for name in FEATURES]


@dataclass(frozen=True)
class Database:
    """What was measured: rows of times for a list of choices (see ``tuning.segment.Choice``)."""

    device: str
    versions: dict[str, str]
    commit: str | None
    date: str
    choices: list[tuple[bool, int, int, int]]
    rows: list[Row]


def write(database: Database, path: Path) -> None:
    """One line for each row, numbers to four digits."""
    head = {"schema": SCHEMA, **database.__dict__, "rows": [], "fields": list(Row.__annotations__)}
    lines = [json.dumps([*list(row.__dict__.values())[:-1], _short(row)]) for row in database.rows]
    text = json.dumps(head, indent=None).replace('"rows": []', '"rows": [\n%s\n]')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text % ",\n".join(lines) + "\n")


def _short(row: Row) -> list[float | None]:
    return [time and float(f"{time:.4g}") for time in row.times]


def read(path: Path) -> Database:
    """Reads what `write` wrote.

    Raises:
        ValueError: The file is something else.
    """
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise ValueError(f"{path} is not a database of schedules of schema {SCHEMA}")
    fields, rows = document.pop("fields"), document.pop("rows")
    document["choices"] = [tuple(choice) for choice in document["choices"]]
    rows = [Row(**dict(zip(fields, row, strict=True))) for row in rows]
    return Database(**document, rows=rows)


# --- Measuring -----------------------------------------------------------------------------------

GPU_WIDTHS = {"float32": (4, 8, 16, 32, 64, 128), "bfloat16": (16, 64, 128)}


def graphs(data: Path | None, seed: int = 0) -> dict[str, PlainGraph]:
    """Real graphs and twins by name, and random ones over the sizes and degrees that there are.

    They come in random order, the largest twins last, so that a run that is cut short has seen
    something of everything else.
    """
    found = {name: work.load() for name, work in plain_graphs(data).items() if name != "tiny"}
    rng = np.random.default_rng(seed)
    for index in range(28):
        num_edges = int(10 ** rng.uniform(3.5, 6.5))
        average = 10 ** rng.uniform(0, 2.5)
        exponent = (0.0, 0.3, 0.6, 0.9)[index % 4]
        num_nodes = max(int(num_edges / average), 16)
        found[f"random-{index}"] = power_law(num_nodes, num_edges, exponent, seed=index)
    names = rng.permutation(list(found)).tolist()
    names.sort(key=lambda name: name.startswith("reddit2"))
    return {name: found[name] for name in names}


def measure(data: Path | None, seconds: float, quick: bool = False) -> Database:
    """Measures on this machine's GPU until all is done or the time is up.

    Raises:
        RuntimeError: There is no GPU.
    """
    import jax

    from jax_gnn.tuning import segment
    from jax_gnn.tuning.timing import ProfilerTimer

    begin = time.monotonic()
    timer = ProfilerTimer(flushes=4)
    choices = list(dict.fromkeys(choice for op in segment.OPS for choice in segment.choices(op)))
    rows: list[Row] = []
    for name, graph in graphs(data).items():
        if quick and graph.num_edges > 20_000:
            continue
        edges = segment.Edges(graph.rows, graph.cols, graph.num_nodes, graph.num_nodes)
        calls = list(_calls(edges, quick))
        for row in _measure_graph(name, calls, choices, timer):
            rows.append(row)
        spent = time.monotonic() - begin
        print(f"{spent:6.0f} s: {name}, {len(calls)} calls", file=sys.stderr, flush=True)
        if spent > seconds:
            break
    versions = {"jax": jax.__version__, "driver": report.driver() or ""}
    return Database(
        device=jax.devices()[0].device_kind,
        versions=versions,
        commit=report.commit(),
        date=report.now(),
        choices=[(*choice,) for choice in choices],
        rows=rows,
    )


def _calls(edges: Any, quick: bool) -> Iterator[Any]:
    from jax_gnn.tuning.segment import Call

    for dtype, widths in GPU_WIDTHS.items():
        for width in widths[:1] if quick else widths:
            yield Call("sum", edges, width, dtype)
            if width >= 16:
                yield Call("spmm", edges, width, dtype)
            if width <= 32 and dtype == "float32":
                yield Call("softmax", edges, width, dtype)


def _measure_graph(
    name: str, calls: Sequence[Any], choices: Sequence[Any], timer: Any
) -> Iterator[Row]:
    from jax_gnn.tuning import segment
    from jax_gnn.tuning.measure import measure as measure_calls

    def schedule(call: Any, choice: Any) -> Any:
        return call.effective(choice.schedule(call.width, call.shape["itemsize"]))

    def schedules(call: Any) -> list[Any]:
        return [schedule(call, choice) for choice in segment.choices(call.op)]

    repeats = 3 if calls[0].shape["count"] > 4_000_000 else 5
    measured = measure_calls(calls, schedules, timer, repeats)
    for call, times in zip(calls, measured, strict=True):
        shape = call.shape
        softmax = shape.pop("op") == "softmax"
        possible = set(segment.choices(call.op))
        found = tuple(
            times[schedule(call, choice)] * 1e6 if choice in possible else None
            for choice in choices
        )
        yield Row(name, softmax, **shape, max_degree=call.edges.max_degree, times=found)


# --- Fitting -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A tree, and what it loses against exhaustive search on graphs that it has not seen.

    Attributes:
        tree: Grown on all rows.
        options: Its size, as scikit-learn calls it.
        log_losses: For each row the logarithm of chosen over best time, by a tree that was grown
            without the row's graph and is not told its largest degree.
        hinted: The same where it is told.
    """

    tree: Any
    options: dict[str, int]
    log_losses: np.ndarray
    hinted: np.ndarray


def slowdowns(database: Database) -> np.ndarray:
    """Logarithms of time over the row's best: (rows, choices), `SLOWEST` at most."""
    times = np.array([row.times for row in database.rows], dtype=float)
    logs = np.log(times / np.nanmin(times, axis=1, keepdims=True))
    return np.where(np.isnan(logs), SLOWEST, np.minimum(logs, SLOWEST))


def graph_family(row: Row) -> str:
    """Rows of one family are left out together: those of a graph, its twin and the twin's twin."""
    return row.graph.removesuffix("-cols").removesuffix("-twin")


def kernel(row: Row) -> str:
    """What the row measures."""
    return "softmax" if row.softmax else "spmm" if row.gather else "sum"


def fit(database: Database) -> Fit:
    """Chooses the tree's size by cross-validation and grows it on all rows."""
    tried = [
        {"max_leaf_nodes": leaves, "min_samples_leaf": least}
        for leaves in (4, 8, 16, 24, 32, 48)
        for least in (1, 3, 6)
    ]
    scored = [(cross_validate(database, options), options) for options in tried]
    losses, options = min(scored, key=lambda pair: pair[0].mean())
    tree = _grow(options, database, np.full(len(database.rows), True))
    return Fit(tree, options, *losses)


def cross_validate(database: Database, options: dict[str, int]) -> np.ndarray:
    """Log losses of all rows, each by a tree that was grown without its family of graphs.

    Returns:
        (2, rows): where the largest degree is unknown, and where it is known.
    """
    families = np.array([graph_family(row) for row in database.rows])
    losses = np.zeros((2, len(families)))
    for family in np.unique(families):
        out = families == family
        tree = _grow(options, database, ~out)
        losses[:, out] = [_lost(tree, database, hint)[out] for hint in (False, True)]
    return losses


def losses_by(database: Database, log_losses: np.ndarray, group: Callable[[Row], str]) -> Losses:
    """Geometric means of chosen over best time, less one, for groups of rows."""
    groups = np.array([group(row) for row in database.rows])
    return {str(g): float(np.expm1(log_losses[groups == g].mean())) for g in np.unique(groups)}


def _features(database: Database, hint: bool) -> np.ndarray:
    return np.array([row.features(hint) for row in database.rows])


def _grow(options: dict[str, int], database: Database, chosen: np.ndarray) -> Any:
    """A tree on the chosen rows, with and without the hint."""
    from sklearn.tree import DecisionTreeRegressor

    features = [_features(database, hint)[chosen] for hint in (False, True)]
    targets = slowdowns(database)[chosen]
    tree = DecisionTreeRegressor(**options, random_state=0)
    return tree.fit(np.concatenate(features), np.concatenate([targets, targets]))


def _lost(tree: Any, database: Database, hint: bool) -> np.ndarray:
    """Logarithms of chosen over best time for all rows."""
    best = tree.predict(_features(database, hint)).argmin(axis=1)
    return slowdowns(database)[np.arange(len(best)), best]


def markdown(database: Database, fitted: Fit) -> str:
    """What the rule loses against exhaustive search, and what one schedule for all would."""
    targets = slowdowns(database)
    kernels = sorted({kernel(row) for row in database.rows})
    fixed = np.zeros(len(database.rows))
    for name in kernels:
        rows = np.array([kernel(row) == name for row in database.rows])
        fixed[rows] = targets[rows][:, targets[rows].mean(axis=0).argmin()]
    seen = _lost(fitted.tree, database, hint=False)
    versions = ", ".join(f"{name} {version}" for name, version in database.versions.items())
    lines = [
        "# The rule for schedules against exhaustive search",
        "",
        f"{len(database.rows)} calls under {len(database.choices)} schedules on "
        f"{database.device}; {versions}; commit {database.commit or 'unknown'}; {database.date}.",
        f"The tree has {fitted.tree.get_n_leaves()} leaves. Slowdowns are geometric means of "
        "chosen over best time, less one.",
        "",
        "| kernel | calls | graph left out | with its largest degree | worst call | graph seen "
        "| one schedule for all |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in [*kernels, "all"]:
        rows = np.array([name in ("all", kernel(row)) for row in database.rows])
        shown = [
            f"{np.expm1(value):.1%}"
            for value in (
                fitted.log_losses[rows].mean(),
                fitted.hinted[rows].mean(),
                fitted.log_losses[rows].max(),
                seen[rows].mean(),
                fixed[rows].mean(),
            )
        ]
        lines.append(f"| {name} | {rows.sum()} | {' | '.join(shown)} |")
    lines += ["", "| graph left out | slowdown |", "| --- | ---: |"]
    by_graph = losses_by(database, fitted.log_losses, graph_family)
    lines += [f"| {name} | {loss:.1%} |" for name, loss in by_graph.items()]
    return "\n".join(lines) + "\n"


# --- The rule as Python --------------------------------------------------------------------------

_HEAD = '''"""Which schedule fits which shape: a decision tree, fitted to measurements.

Generated by ``python -m benchmarks fit-schedules``; do not edit.
{provenance}
"""

from __future__ import annotations


def choose(
    *,
    softmax: bool,
    gather: bool,
    count: int,
    num_rows: int,
    width: int,
    itemsize: int,
    average_degree: float,
    max_degree: int | None,
) -> tuple[bool, int, int, int]:
    """Returns parallel, halvings of the lanes that cover a row, threads, blocks."""
    num_bytes = count * width * itemsize
'''


def emit(database: Database, fitted: Fit) -> str:
    """The source of ``jax_gnn/_schedule_rules.py``."""
    by_kernel = losses_by(database, fitted.log_losses, kernel)
    losses = ", ".join(f"{name} {loss:.1%}" for name, loss in by_kernel.items())
    provenance = (
        f"{len(database.rows)} calls on {database.device} ({database.date[:10]}).\n"
        f"Slower than exhaustive search on graphs left out (geometric mean):\n{losses}."
    )
    return _HEAD.format(provenance=provenance) + "\n".join(_branches(database, fitted.tree)) + "\n"


def _branches(database: Database, tree: Any) -> list[str]:
    nodes, values = tree.tree_, tree.tree_.value[:, :, 0]

    def best(node: int) -> tuple[bool, int, int, int]:
        return database.choices[int(values[node].argmin())]

    def leaves(node: int) -> set[tuple[bool, int, int, int]]:
        if nodes.children_left[node] < 0:
            return {best(node)}
        return leaves(nodes.children_left[node]) | leaves(nodes.children_right[node])

    def lines(node: int, indent: str) -> Iterator[str]:
        if len(leaves(node)) == 1:  # branches that agree are one
            yield f"{indent}return {', '.join(map(repr, leaves(node).pop()))}"
            return
        left, right = nodes.children_left[node], nodes.children_right[node]
        name, threshold = FEATURES[nodes.feature[node]], nodes.threshold[node]
        if name in ("softmax", "gather"):
            left, right, condition = right, left, name
        elif np.isinf(threshold):  # all that are known to the left
            condition = f"{name} is not None"
        else:
            shown = f"{threshold:.4g}" if name == "average_degree" else int(threshold)
            condition = f"{name} <= {shown}"
            if name == "max_degree":
                unknown = "is None or" if nodes.missing_go_to_left[node] else "is not None and"
                condition = f"{name} {unknown} {condition}"
        yield f"{indent}if {condition}:"
        yield from lines(left, indent + "    ")
        yield from lines(right, indent)

    return list(lines(0, "    "))
