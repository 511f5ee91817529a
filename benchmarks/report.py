"""What a run found: plain data for JSON, tables in Markdown, a plot."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1

OURS = "jax_gnn"
"""Name of this library's family of candidates, and in it of the op as users call it."""

Document = dict[str, Any]
Row = Mapping[str, Any]


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
    peers = [row for row in timed(case).values() if row["family"] != OURS]
    return min(peers, key=lambda row: row["median_us"], default=None)


def speedup(case: Row, peer: Row | None) -> float | None:
    """Peer's median over ours; None where one of them has no time."""
    ours = timed(case).get(OURS)
    return peer["median_us"] / ours["median_us"] if ours and peer else None


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
    """Writes the JSON and, beside it, the plot."""
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
    lines = [
        f"# {document['title']}",
        "",
        f"{machine['device']}, {machine['cores']} CPU cores ({machine['cpu']}); "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"commit {document['commit'] or 'unknown'}; {document['date']}.",
        f"Copy bandwidth {machine['copy_bytes_per_second'] / 1e9:.1f} GB/s (read + written), "
        f"{_rates(machine)}measured in this run; "
        f"load average before it {machine['load_average']:.1f}. "
        "Times in µs, median; ± half of the interquartile range.",
        "",
        *_comparison(document),
        "",
        *_means(document),
        "",
        "All medians (µs):",
        "",
        *_medians(document),
    ]
    if failures := _failures(document):
        lines += ["", "Not timed:", "", *failures]
    return "\n".join(lines) + "\n"


def _rates(machine: Row) -> str:
    """Rates of large products; older reports do not have them."""
    rates = machine.get("flops_per_second", {})
    return "".join(f"{dtype} products {rate / 1e12:.3g} TFLOP/s, " for dtype, rate in rates.items())


def case_line(case: Row) -> str:
    """A case in one line, for the log of a run."""
    times = ", ".join(f"{name} {_us(row['median_us'])}" for name, row in timed(case).items())
    return f"{case['name']}: floor {_us(case['floor_us'])} µs; {times or 'nothing timed'}"


def _comparison(document: Document) -> list[str]:
    baseline = document["baseline"]
    ours_header = [OURS, "±", "floor / time", "error", "scratch %"]
    header = ["case", "floor", *ours_header, "best peer", "its time", "speedup"]
    rows = []
    for case in document["cases"]:
        ours, peer, plain = timed(case).get(OURS), best_peer(case), timed(case).get(baseline)
        rows.append(
            [
                case["name"],
                _us(case["floor_us"]),
                _median(ours),
                _us((ours["q3_us"] - ours["q1_us"]) / 2 if ours else None),
                _times(ours["floor_fraction"] if ours else None),
                f"{ours['error']:.0e}" if ours else "-",
                _scratch(case, ours),
                peer["name"] if peer else "-",
                _median(peer),
                _times(speedup(case, peer)),
                _median(plain),
                _times(speedup(case, plain)),
            ]
        )
    return _table([*header, baseline, "speedup"], rows)


def _means(document: Document) -> list[str]:
    means = summary(document)
    if not means:
        return [f"{OURS} was not timed."]
    modes = list(dict.fromkeys(case["mode"] for case in document["cases"]))
    rows = [[name, *(_times(of.get(mode)) for mode in modes)] for name, of in means.items()]
    fractions = [_times(_floor_fraction(document, mode)) for mode in modes]
    rows.append(["the floor (floor / time)", *fractions])
    return _table([f"speedup of {OURS} (geometric mean) over", *modes], rows)


def _floor_fraction(document: Document, mode: str) -> float | None:
    """Geometric mean over the cases of a mode in which this library was timed."""
    ours = [timed(case).get(OURS) for case in document["cases"] if case["mode"] == mode]
    fractions = [row["floor_fraction"] for row in ours if row]
    return geometric_mean(fractions) if fractions else None


def _medians(document: Document) -> list[str]:
    names = _candidate_names(document)
    rows = [
        [case["name"], *map(_median, map(timed(case).get, names))] for case in document["cases"]
    ]
    return _table(["case", *names], rows)


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


def _median(row: Row | None) -> str:
    return _us(row["median_us"] if row else None)


def _us(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def _scratch(case: Row, row: Row | None) -> str:
    """Memory beside inputs and outputs, in percent of them; older reports do not know."""
    scratch = row.get("scratch_bytes") if row else None
    return "-" if scratch is None else f"{100 * scratch / case['bytes']:.1f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(header), line(rule), *map(line, rows)]


def plot(document: Document, path: Path) -> None:
    """Draws every candidate's median beside the floor: graphs down, time across.

    One panel for each width (across) and for each mode and dtype (down).
    """
    from matplotlib.figure import Figure

    cases = document["cases"]
    names = _candidate_names(document)
    graphs = list(dict.fromkeys(case["workload"] for case in cases))
    widths = list(dict.fromkeys(case["width"] for case in cases))
    kinds = list(dict.fromkeys((case["mode"], case["dtype"]) for case in cases))
    # The largest graphs first, which the floor orders.
    rank = {graph: max(c["floor_us"] for c in cases if c["workload"] == graph) for graph in graphs}
    graphs.sort(key=rank.__getitem__)

    most = max(len(timed(case)) for case in cases)
    height = max(0.42, 0.065 * most) * len(graphs) + 0.9
    inches = max(2.2 + 3.6 * len(widths), 0.1 * len(document["title"]), 7.0)
    figure = Figure(figsize=(inches, 1.5 + height * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(widths), sharex="row", sharey=True, squeeze=False)
    for row, (mode, dtype) in enumerate(kinds):
        for column, width in enumerate(widths):
            panel = [
                c for c in cases if (c["mode"], c["dtype"], c["width"]) == (mode, dtype, width)
            ]
            _draw_panel(axes[row, column], panel, graphs, names)
            axes[row, column].set_title(f"{mode}, {dtype}, width {width}", fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("time (µs)")
    machine = document["machine"]
    figure.suptitle(f"{document['title']}\n{machine['device']}", fontsize=12)
    labelled = [axis.get_legend_handles_labels() for axis in axes.flat]
    handles = {name: handle for pair in labelled for handle, name in zip(*pair, strict=True)}
    labels = [name for name in ("floor", *names) if name in handles]
    figure.legend(
        [handles[name] for name in labels],
        labels,
        loc="outside lower center",
        ncols=min(4, int(inches // 2.3), len(labels)),
        frameon=False,
    )
    figure.savefig(path, dpi=130)


_MARKERS = "osD^vP*Xh<>"
_COLORS = [f"C{number}" for number in (4, 5, 6, 7, 8, 9, 0, 1, 2)]  # without red, which is ours


def _draw_panel(axis: Any, cases: list[Row], graphs: list[str], names: list[str]) -> None:
    axis.set_xscale("log")
    axis.set_yticks(range(len(graphs)), graphs)
    axis.set_ylim(-0.6, len(graphs) - 0.4)
    axis.grid(axis="x", which="major", alpha=0.35)
    axis.grid(axis="y", alpha=0.15)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    floors = [(case["floor_us"], graphs.index(case["workload"])) for case in cases]
    axis.scatter(*zip(*floors, strict=True), marker="|", s=160, color="black", label="floor")
    drawn = [name for name in names if any(name in timed(case) for case in cases)]
    for place, name in enumerate(drawn):
        # Markers of one graph stand below each other, so that equal times do not hide.
        shift = 0.35 - 0.7 * place / max(len(drawn) - 1, 1)
        points = [
            (row["median_us"], graphs.index(case["workload"]) + shift)
            for case in cases
            if (row := timed(case).get(name))
        ]
        ours, index = name == OURS, names.index(name)
        axis.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            marker=_MARKERS[index % len(_MARKERS)],
            s=64 if ours else 34,
            color="tab:red" if ours else _COLORS[index % len(_COLORS)],
            alpha=0.9,
            linewidths=0,
            zorder=4 if ours else 3,
            label=name,
        )


def commit() -> str | None:
    """The checked-out commit, with "+" after it where files differ from it."""
    here = Path(__file__).parent
    head = _output(["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"])
    changed = _output(["git", "-C", str(here), "status", "--porcelain", "--untracked-files=no"])
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
