"""What a run found: plain data for JSON, tables in Markdown, a picture.

A report is a list of cases, each with the candidates that computed it. `harness` makes those of an
op; commands of another kind make theirs by `candidate`, `case` and `document`.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1

OURS = "jax_gnn"
"""Name of this library's family of candidates, and in it of the op as users call it.

A family whose name starts so has other candidates of this library, which are no peers either.
"""

Document = dict[str, Any]
Row = Mapping[str, Any]


def candidate(
    name: str, seconds: Iterable[float] = (), *, family: str = OURS, wrong: str = "", **more: Any
) -> Row:
    """A way to compute a case, and its samples.

    Args:
        name: Of the candidate; `OURS` is what others are compared with.
        seconds: The samples; none where it could not run, and ``status`` and ``reason`` say why.
        family: Of others than `OURS`, candidates are peers.
        wrong: Why its result is not right; empty if it is.
        more: Further fields: ``error``, or ``details``, which is numbers and strings by name.
    """
    row = {"name": name, "family": family, "status": "wrong" if wrong else "timed", "reason": wrong}
    samples = list(seconds)
    return row | (statistics_us(samples) if samples else {}) | more


def case(workload: str, mode: str, candidates: list[Row]) -> Row:
    """A problem that has neither widths nor a floor."""
    name = f"{workload} {mode}"
    of_all = {"dtype": "", "width": "", "floor_us": None}
    return {"name": name, "workload": workload, "mode": mode, **of_all, "candidates": candidates}


def document(
    name: str, title: str, machine: Row, cases: list[Any], *, about: str = "", **more: Any
) -> Document:
    """The report of a run.

    Args:
        name: Of the op or command.
        title: A line.
        machine: What `benchmarks.worker.probe` says.
        cases: Of an op, or made by `case`.
        about: A paragraph above the tables.
        more: ``families``, ``baseline``, ``settings``.
    """
    head = {"schema": SCHEMA, "op": name, "title": title, "about": about, "date": now()}
    defaults = {"commit": commit(), "machine": machine, "baseline": "", "families": {}}
    return head | defaults | {"cases": cases} | more


def statistics_us(seconds: Iterable[float]) -> dict[str, Any]:
    """Median, quartiles and least value in microseconds, and how many samples there were."""
    microseconds = np.asarray(list(seconds)) * 1e6
    low, median, high = np.percentile(microseconds, [25, 50, 75])
    return {
        "median_us": float(median),
        "q1_us": float(low),
        "q3_us": float(high),
        "min_us": float(microseconds.min()),
        "samples": len(microseconds),
    }


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive values.

    Raises:
        ValueError: There is no value, or one that is not positive.
    """
    logarithms = [math.log(value) for value in values]
    if not logarithms:
        raise ValueError("the geometric mean of nothing is not defined")
    return math.exp(sum(logarithms) / len(logarithms))


def timed(case: Row) -> dict[str, Row]:
    """The candidates of a case that were right and have a time, by name."""
    return {row["name"]: row for row in case["candidates"] if row["status"] == "timed"}


def best_peer(case: Row) -> Row | None:
    """The fastest candidate that is not this library's."""
    peers = [row for row in timed(case).values() if not row["family"].startswith(OURS)]
    return min(peers, key=lambda row: row["median_us"], default=None)


def speedup(case: Row, peer: Row | None) -> float | None:
    """Peer's median over ours; None where one of them has no time."""
    return _ratio(peer, timed(case).get(OURS))


def _ratio(row: Row | None, reference: Row | None) -> float | None:
    return row["median_us"] / reference["median_us"] if row and reference else None


def summary(document: Document) -> dict[str, dict[str, float]]:
    """Geometric means of our speedup over each peer: {peer: {mode: mean}}.

    Each is taken over the cases in which both have a time; "best peer" may be another in each case.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for case in document["cases"]:
        peers = {"best peer": best_peer(case), **timed(case)}
        for name, peer in peers.items():
            ratio = speedup(case, peer)
            if ratio and name != OURS:
                found.setdefault(name, {}).setdefault(case["mode"], []).append(ratio)
    return {
        name: {mode: geometric_mean(ratios) for mode, ratios in modes.items()}
        for name, modes in found.items()
    }


def write(document: Document, path: Path) -> None:
    """Writes the JSON and, beside it, the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    plot(document, path.with_suffix(".png"))


def read(path: Path) -> Document:
    """Reads what `write` wrote.

    Raises:
        ValueError: The file is something else.
    """
    document = json.loads(path.read_text())
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a benchmark report of schema {SCHEMA}")
    return document


def markdown(document: Document) -> str:
    """The report as Markdown: machine, our op beside its peers, means, all medians, failures."""
    machine, versions = document["machine"], _versions(document)
    unit, size = _unit(document)
    shown = partial(_us, size=size)
    about = [document["about"], ""] if document.get("about") else []
    lines = [
        f"# {document['title']}",
        "",
        f"{machine['device']}, {machine['cores']} CPU cores ({machine['cpu']}); "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"commit {document['commit'] or 'unknown'}; {document['date']}.",
        f"Copy bandwidth {machine['copy_bytes_per_second'] / 1e9:.1f} GB/s (read + written), "
        f"{_rates(machine)}measured in this run; "
        f"load average before it {machine['load_average']:.1f}. "
        f"Times in {unit}, median; ± half of the interquartile range.",
        "",
        *about,
        *_comparison(document, shown),
        "",
        *_means(document),
        "",
        f"All medians ({unit}):",
        "",
        *_medians(document, shown),
    ]
    if details := _details(document):
        lines += ["", *details]
    if failures := _failures(document):
        lines += ["", "Not timed:", "", *failures]
    return "\n".join(lines) + "\n"


def _unit(document: Document) -> tuple[str, float]:
    """In which all times are told, and its microseconds."""
    times = [row["median_us"] for case in document["cases"] for row in timed(case).values()]
    return ("µs", 1.0) if min(times, default=0.0) < 10_000 else ("ms", 1000.0)


def _rates(machine: Row) -> str:
    """Rates of large products; older reports do not have them."""
    rates = machine.get("flops_per_second", {})
    return "".join(f"{dtype} products {rate / 1e12:.3g} TFLOP/s, " for dtype, rate in rates.items())


def case_line(case: Row) -> str:
    """A case in one line, for the log of a run."""
    times = ", ".join(f"{name} {_us(row['median_us'])}" for name, row in timed(case).items())
    return f"{case['name']}: floor {_us(case['floor_us'])} µs; {times or 'nothing timed'}"


def _comparison(document: Document, shown: Callable[..., str]) -> list[str]:
    baseline = document["baseline"]
    ours_header = [OURS, "±", "floor / time", "error", "scratch %"]
    header = ["case", "floor", *ours_header, "best peer", "its time", "speedup"]
    rows = []
    for case in document["cases"]:
        ours, peer, plain = timed(case).get(OURS), best_peer(case), timed(case).get(baseline)
        spread = (ours["q3_us"] - ours["q1_us"]) / 2 if ours else None
        error = ours.get("error") if ours else None
        rows.append(
            [
                case["name"],
                shown(case["floor_us"]),
                shown(_median(ours)),
                shown(spread),
                _times(ours.get("floor_fraction") if ours else None),
                "-" if error is None else f"{error:.0e}",
                _scratch(case, ours),
                peer["name"] if peer else "-",
                shown(_median(peer)),
                _times(speedup(case, peer)),
                shown(_median(plain)),
                _times(speedup(case, plain)),
            ]
        )
    return table([*header, baseline, "speedup"], rows)


def _means(document: Document) -> list[str]:
    means = summary(document)
    if not means:
        return [f"There is no case in which {OURS} and a peer were timed."]
    modes = list(dict.fromkeys(case["mode"] for case in document["cases"]))
    rows = [[name, *(_times(of.get(mode)) for mode in modes)] for name, of in means.items()]
    fractions = [_times(_floor_fraction(document, mode)) for mode in modes]
    if any(fraction != "-" for fraction in fractions):
        rows.append(["the floor (floor / time)", *fractions])
    return table([f"speedup of {OURS} (geometric mean) over", *modes], rows)


def _floor_fraction(document: Document, mode: str) -> float | None:
    """Geometric mean over the cases of a mode in which this library was timed."""
    ours = [timed(case).get(OURS) for case in document["cases"] if case["mode"] == mode]
    fractions = [row["floor_fraction"] for row in ours if row and "floor_fraction" in row]
    return geometric_mean(fractions) if fractions else None


def _medians(document: Document, shown: Callable[..., str]) -> list[str]:
    names = _candidate_names(document)
    rows = [
        [case["name"], *(_outcome(rows_of_case.get(name), shown) for name in names)]
        for case in document["cases"]
        for rows_of_case in [{row["name"]: row for row in case["candidates"]}]
    ]
    return table(["case", *names], rows)


MEMORY = "out of memory"
"""In messages of JAX and torch, and in our reasons; a word of the tables."""


def _outcome(row: Row | None, shown: Callable[..., str]) -> str:
    """A candidate's median, or in a word why it has none."""
    if row is None or row["status"] == "timed":
        return shown(_median(row))
    if row["status"] == "wrong":
        return "wrong"
    return MEMORY if MEMORY in row["reason"].lower() else "-"


def _details(document: Document) -> list[str]:
    """What else is known of a candidate."""
    pairs = [(case, row) for case in document["cases"] for row in case["candidates"]]
    found = [(case, row, row["details"]) for case, row in pairs if row.get("details")]
    names = list(dict.fromkeys(name for *_, details in found for name in details))
    rows = [
        [case["name"], row["name"], *(_detail(details.get(name)) for name in names)]
        for case, row, details in found
    ]
    return table(["case", "candidate", *names], rows) if rows else []


def _detail(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _failures(document: Document) -> list[str]:
    lines = [
        f"- {name}: {family['status']}, {family['reason']}"
        for name, family in document["families"].items()
        if family["status"] != "timed"
    ]
    cases: dict[tuple[str, str, str], list[str]] = {}
    for case in document["cases"]:
        for row in case["candidates"]:
            if row["status"] != "timed":
                cases.setdefault((row["name"], row["status"], row["reason"]), []).append(
                    case["name"]
                )
    for (name, status, reason), where in cases.items():
        others = f" and {len(where) - 1} more cases" if len(where) > 1 else ""
        lines.append(f"- {name} on {where[0]}{others}: {status}, {reason}")
    return lines


def _candidate_names(document: Document) -> list[str]:
    names = (row["name"] for case in document["cases"] for row in case["candidates"])
    return list(dict.fromkeys(names))


def _versions(document: Document) -> dict[str, str]:
    versions = dict(document["machine"]["versions"])
    for family in document["families"].values():
        versions |= family["versions"]
    versions["driver"] = document["machine"]["driver"]
    return {name: version for name, version in versions.items() if version}


def _median(row: Row | None) -> float | None:
    return row["median_us"] if row else None


def _us(value: float | None, size: float = 1.0) -> str:
    if value is None:
        return "-"
    return f"{value / size:.{0 if value >= 1000 * size else 1}f}"


def _scratch(case: Row, row: Row | None) -> str:
    """Memory beside inputs and outputs, in percent of them; older reports do not know."""
    scratch = row.get("scratch_bytes") if row else None
    return "-" if scratch is None else f"{100 * scratch / case['bytes']:.1f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A table without its empty columns."""
    there = [any(cell != "-" for cell in column) for column in zip(*rows, strict=True)]
    header, *rows = [list(itertools.compress(line, there)) for line in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(header), line(rule), *map(line, rows)]


Column = tuple[str, str, int | str]  # mode, dtype, width
Map = dict[str, list[float | None]]  # by row, a number for each column

_SCREEN = 16.0, 12.0  # the largest picture, in inches of 100 pixels
_CELL = 0.6, 0.26
_MARGIN, _TOP, _TITLE = 0.2, 1.3, 0.4
_TIME = "median time"


def plot(document: Document, path: Path) -> None:
    """Draws speedups as numbers on colours: a column for each mode, dtype and width.

    Maps below each other: our speedup over each other candidate, the geometric mean over graphs;
    over the fastest peer, by graph; how near we are to the floor; and our time. It fits a screen.
    """
    from matplotlib.figure import Figure

    columns = _columns(document)
    is_there = any(OURS in timed(case) for case in document["cases"])
    reference = OURS if is_there else document["baseline"]
    maps = _maps(document, columns, reference)
    names = [name for rows in maps.values() for name in rows]
    left = 0.4 + 0.075 * max(map(len, names), default=0)
    space = _TOP + _TITLE * len(maps) + _MARGIN
    dtypes = list(dict.fromkeys(dtype for _, dtype, _ in columns))
    heads = {
        (mode, dtype): [*mode.split(), *([dtype] if len(dtypes) > 1 else [])]
        for mode, dtype, _ in columns
    }
    places = {kind: [column[:2] == kind for column in columns] for kind in heads}
    # Inches that the longest word takes in letters of size 9.
    word = max(0.105 * max(map(len, words)) / sum(places[kind]) for kind, words in heads.items())
    roomy = max(_CELL[0], min(4.2 / len(columns), 1.2), word)
    cell = (
        min(roomy, (_SCREEN[0] - left - _MARGIN) / len(columns)),
        min(_CELL[1], (_SCREEN[1] - space) / max(len(names), 1)),
    )
    letter = min(9.0, 60 * cell[1])
    about = ", ".join(filter(None, [document["machine"]["device"], *dtypes[: len(dtypes) == 1]]))
    about += f". {reference}: blue where it is faster, red where slower."
    letters = 0.09 * max(map(len, [document["title"], about, *maps]))
    width = max(left + cell[0] * len(columns), _MARGIN + letters) + _MARGIN
    height = space + cell[1] * len(names)
    figure = Figure(figsize=(width, height))

    def write(x: float, y: float, text: str, **style: Any) -> None:  # inches from the top left
        figure.text(x / width, 1 - y / height, text, **style)

    write(_MARGIN, 0.32, document["title"], size=12)
    write(_MARGIN, 0.55, about, size=9.5)
    style = {"size": 9 * min(1, cell[0] / word), "ha": "center", "linespacing": 1.1}
    for kind, words in heads.items():
        center = left + cell[0] * (places[kind].index(True) + sum(places[kind]) / 2)
        write(center, _TOP - 0.18, "\n".join(words), **style)
    for place, (*_, features) in enumerate(columns):
        write(left + cell[0] * (place + 0.5), _TOP, str(features), size=9, ha="center")
    if any(width for *_, width in columns):
        write(left - 0.05, _TOP, "width", size=9, ha="right")
    top = _TOP
    for title, rows in maps.items():
        top += _TITLE
        shape = cell[0] * len(columns), cell[1] * len(rows)
        axes = figure.add_axes(
            (left / width, 1 - (top + shape[1]) / height, shape[0] / width, shape[1] / height)
        )
        _draw_map(axes, title, rows, columns, letter)
        write(_MARGIN, top - 0.08, title, size=10, weight="bold")
        top += shape[1]
    figure.savefig(path, dpi=100)


def _columns(document: Document) -> list[Column]:
    cases = document["cases"]
    kinds = dict.fromkeys((case["mode"], case["dtype"]) for case in cases)
    found = {(case["mode"], case["dtype"], case["width"]) for case in cases}
    return [column for kind in kinds for column in sorted(found) if column[:2] == kind]


def _maps(document: Document, columns: list[Column], reference: str) -> dict[str, Map]:
    """The maps by title, without rows that have no number."""
    cases = document["cases"]
    # The largest graphs first, which the floor orders.
    by_size = sorted(cases, key=lambda case: case["floor_us"] or 0, reverse=True)
    graphs = list(dict.fromkeys(case["workload"] for case in by_size))
    others = [name for name in _candidate_names(document) if name != reference]

    def means(ratio: Callable[[Row], float | None], graph: str | None = None) -> list[float | None]:
        found: dict[Column, list[float]] = {column: [] for column in columns}
        for case in cases:
            value = ratio(case) if graph in (None, case["workload"]) else None
            if value is not None:
                found[case["mode"], case["dtype"], case["width"]].append(value)
        return [geometric_mean(ratios) if ratios else None for ratios in found.values()]

    def over(name: str) -> Callable[[Row], float | None]:
        return lambda case: _ratio(timed(case).get(name), timed(case).get(reference))

    def over_fastest(case: Row) -> float | None:
        return _ratio(best_peer(case), timed(case).get(reference))

    def over_floor(case: Row) -> float | None:
        return timed(case).get(reference, {}).get("floor_fraction")

    unit, size = _unit(document)

    def time(case: Row) -> float | None:
        found = timed(case).get(reference)
        return found["median_us"] / size if found else None

    maps = {
        f"time of each other candidate / {reference}, mean over the graphs": {
            name: means(over(name)) for name in others
        },
        f"time of the fastest peer / {reference}": {
            graph: means(over_fastest, graph) for graph in graphs
        },
        f"floor / time of {reference}": {graph: means(over_floor, graph) for graph in graphs},
        f"{_TIME} of {reference}, {unit}": {graph: means(time, graph) for graph in graphs},
    }
    kept = {
        title: {name: values for name, values in rows.items() if any(values)}
        for title, rows in maps.items()
    }
    return {title: rows for title, rows in kept.items() if rows}


def _draw_map(axes: Any, title: str, rows: Map, columns: list[Column], letter: float) -> None:
    from matplotlib import colormaps

    values = np.array(list(rows.values()), float)  # None becomes NaN
    if title.startswith("floor"):
        shades = colormaps["Greens"](np.clip(values, 0, 1) * 0.8)
    elif title.startswith(_TIME):
        shades = np.ones((*values.shape, 4))
    else:  # twice as fast as far from white as half as fast; from a factor of 4 the same
        shades = colormaps["RdBu"](0.5 + np.clip(np.log2(values), -2, 2) / 5)
    shades[np.isnan(values)] = 1
    axes.imshow(shades, aspect="auto", interpolation="none")
    for (y, x), value in np.ndenumerate(values):
        dark = shades[y, x, :3].mean() < 0.55
        digits = next(n for n, above in enumerate((100, 10, 0.01, 0)) if not value < above)
        text = "-" if np.isnan(value) else f"{value:.{digits}f}"
        style = {"ha": "center", "va": "center_baseline", "size": letter}
        axes.text(x, y, text, color="w" if dark else "k", **style)
    axes.set_yticks(range(len(rows)), rows, size=letter)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for x in range(1, len(columns)):
        apart = columns[x - 1][:2] != columns[x][:2]
        axes.axvline(x - 0.5, color="w", lw=4 if apart else 1)
    for y in range(1, len(rows)):
        axes.axhline(y - 0.5, color="w", lw=1)
    axes.spines[:].set_visible(False)


def commit(checkout: Path = Path(__file__).parents[1]) -> str | None:
    """The checked-out commit, with "+" after it where files differ from it.

    An exported tree, which has no ``.git``, names its commit in a file ``.commit``.
    """
    if not (checkout / ".git").exists():  # git would look above
        exported = checkout / ".commit"
        return exported.read_text().strip() if exported.is_file() else None
    head = _output(["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"])
    changed = _output(["git", "-C", str(checkout), "status", "--porcelain", "--untracked-files=no"])
    return f"{head}{'+' if changed else ''}" if head else None


def driver() -> str | None:
    """Version of the NVIDIA driver."""
    return _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"])


def now() -> str:
    """Date and time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
