"""Numbers, tables and pictures of pages, from the tables of results.

A page holds ``<!--= FIELD; FIELD; … -->text<!-- -->``, and the text is what the fields ask for:

- ``mean; TABLE; PEERS; CASES; OURS``: the geometric mean of the fastest peer's time over ours;
- ``least; …``, ``most; …``: the smallest and the largest of these, and its case;
- ``below; …``: the cases in which the peer is faster by 0.5 % or more, each with its ratio;
- ``count; …``: in how many cases both have a time;
- ``time; TABLE; CANDIDATES; CASE``: the fastest one's time with its unit;
- ``range; TABLE; CANDIDATES; CASES``: the least and the largest of such times;
- ``table; TABLE; CASES; CANDIDATES; …``: times of the fastest of each group of candidates, and from
  the second group on also over those of the first. A group may be followed by ``= title``;
- ``detail; TABLE; CASES; COLUMN; CANDIDATES; …``: a column of the table of details;
- ``of steps; TABLE; CASES; COLUMN; NUMBER; TABLE``: the mean and the largest share, in percent,
  of a column in ms in the sum of it and of so many of our times, those of the second table;
- ``counted; TABLE; COLUMN; CASES``: our time over a column in µs: median, quartiles, extremes;
- ``lines; FUNCTIONS``: how many lines programs of `bench_program` have together;
- ``typed layers; TABLES; TABLES; …``: R-GCN, RGAT and HGT on each graph: our times of the first
  group that has them, peers' fastest of all groups, marked by the group's place;
- ``source; TABLE``: a link to the table with its machine, versions, commit and date.

TABLE is a file of ``results`` without its end. PEERS, CASES, CANDIDATES and OURS are names with
wildcards, of which " or " separates several, and a "!" excludes. CASES and OURS may be missing:
all, and the op as users call it.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import OURS, geometric_mean, table

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "README.md", ROOT / "docs" / "papers.md", ROOT / "docs" / "speed.md"
_RESULTS = Path(__file__).parent / "results"
_DEVICE = "-nvidia-h200"
NOT_RUN = "not run"
"""Where there is no table, or no candidate of it has a time."""

_FIELDS = re.compile(r"<!--= (.+?) -->(.*?)<!-- -->", re.DOTALL)


@dataclass(frozen=True)
class Results:
    """A table of results.

    Attributes:
        path: Of the file.
        machine: Its line of device, versions, commit and date.
        unit: Of times.
        times: By case and candidate: a number, or a word that says why there is none.
        details: By case and candidate, the columns of its table of details.
    """

    path: Path
    machine: str
    unit: str
    times: dict[str, dict[str, float | str]]
    details: dict[str, dict[str, dict[str, str]]]

    def fastest(self, case: str, candidates: str) -> tuple[str, float | str]:
        """Name and time of the fastest of some candidates, or why none of them has a time."""
        found = {n: t for n, t in self.times[case].items() if _fits(n, candidates)}
        timed = {name: time for name, time in found.items() if not isinstance(time, str)}
        if timed:
            name = min(timed, key=lambda name: timed[name])
            return name, timed[name]
        words = [str(time) for time in found.values() if time != "-"]
        return candidates, words[0] if words else "-"

    def ratios(self, peers: str, cases: str = "*", ours: str = OURS) -> dict[str, float]:
        """The fastest peer's time over ours, of the cases in which both have one."""
        found = {}
        for case in self.times:
            times = [self.fastest(case, names)[1] for names in (peers, ours)]
            if _fits(case, cases) and not any(isinstance(time, str) for time in times):
                found[case] = float(times[0]) / float(times[1])
        return found


@cache
def read(name: str) -> Results:
    """Reads a table that `report.markdown` wrote.

    Raises:
        FileNotFoundError: It is not among the results.
        ValueError: It has no medians.
    """
    path = _RESULTS / f"{name if '-' in name else name + _DEVICE}.md"
    text = path.read_text()
    found = re.search(
        r"^All medians \((.+?)\):\n\n(.*?)\n\n", text + "\n\n", re.DOTALL | re.MULTILINE
    )
    if not found:
        raise ValueError(f"{path} has no medians")
    times = {
        row["case"]: {n: _number(t) for n, t in row.items() if n != "case"}
        for row in _rows(found[2])
    }
    details: dict[str, dict[str, dict[str, str]]] = {}
    if match := re.search(r"^\| case +\| +candidate.*?(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE):
        for row in _rows(match[0]):
            details.setdefault(row.pop("case"), {})[row.pop("candidate")] = row
    return Results(path, text.splitlines()[2], found[1], times, details)


def _rows(text: str) -> Iterator[dict[str, str]]:
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines()
    ]
    for line in lines[2:]:
        yield dict(zip(lines[0], line, strict=True))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _fits(name: str, patterns: str) -> bool:
    parts = [pattern.strip() for pattern in patterns.split(" or ")]
    excluded = [part[1:] for part in parts if part.startswith("!")]
    included = [part for part in parts if not part.startswith("!")] or ["*"]
    return any(fnmatchcase(name, part) for part in included) and not any(
        fnmatchcase(name, part) for part in excluded
    )


def _short(case: str) -> str:
    return case.replace(" float32", "").replace("_", " ").replace("-twin", "")


def _mean(name: str, *fields: str) -> str:
    ratios = read(name).ratios(*fields)
    return f"{geometric_mean(ratios.values()):.2f}" if ratios else NOT_RUN


def _extreme(choose: Callable[..., str], name: str, *fields: str) -> str:
    ratios = read(name).ratios(*fields)
    if not ratios:
        return NOT_RUN
    case = choose(ratios, key=lambda case: ratios[case])
    return f"{ratios[case]:.2f} ({_short(case)})"


def _below(name: str, *fields: str) -> str:
    ratios = read(name).ratios(*fields)
    slower = sorted((ratio, case) for case, ratio in ratios.items() if ratio < 0.995)
    return ", ".join(f"{_short(case)} {ratio:.2f}" for ratio, case in slower) or "none"


def _count(name: str, *fields: str) -> str:
    return str(len(read(name).ratios(*fields)))


def _time(name: str, candidates: str, case: str) -> str:
    results = read(name)
    time = results.fastest(case, candidates)[1]
    return time if isinstance(time, str) else f"{_shown(time)} {results.unit}"


def _range(name: str, candidates: str, cases: str) -> str:
    results = read(name)
    times = [results.fastest(case, candidates)[1] for case in results.times if _fits(case, cases)]
    numbers = [time for time in times if not isinstance(time, str)]
    return (
        f"{_shown(min(numbers))} to {_shown(max(numbers))} {results.unit}" if numbers else NOT_RUN
    )


def _shown(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def _groups(groups: tuple[str, ...]) -> list[tuple[str, str]]:
    """Candidates and title of each group."""
    pairs = (group.partition("=") for group in groups)
    return [(names.strip(), (title or names).strip()) for names, _, title in pairs]


def _table(name: str, cases: str, *groups: str) -> str:
    results, pairs = read(name), _groups(groups)
    header = [f"{results.unit}", pairs[0][1], *itertools.chain(*((t, "×") for _, t in pairs[1:]))]
    rows = []
    for case in filter(lambda case: _fits(case, cases), results.times):
        ours, *others = (results.fastest(case, names)[1] for names, _ in pairs)
        row = [_short(case), ours if isinstance(ours, str) else _shown(ours)]
        for time in others:
            both = not isinstance(time, str) and not isinstance(ours, str)
            row += [
                time if isinstance(time, str) else _shown(time),
                f"{float(time) / float(ours):.2f}" if both else "-",
            ]
        rows.append(row)
    return "\n" + "\n".join(table(header, rows)) + "\n"


def _detail(name: str, cases: str, column: str, *groups: str) -> str:
    results, pairs = read(name), _groups(groups)
    rows = []
    for case in filter(lambda case: _fits(case, cases), results.details):
        of_case = results.details[case]
        cells = (
            next((d[column] for n, d in of_case.items() if _fits(n, names)), "-")
            for names, _ in pairs
        )
        rows.append([_short(case), *cells])
    return "\n" + "\n".join(table([column, *(title for _, title in pairs)], rows)) + "\n"


def _column(results: Results, case: str, column: str) -> float | None:
    """A number of the table of details, of whichever candidate has it."""
    found = (of.get(column, "-") for of in results.details.get(case, {}).values())
    numbers = [value for value in map(_number, found) if not isinstance(value, str)]
    return numbers[0] if numbers else None


def _of_steps(name: str, cases: str, column: str, number: str, steps: str) -> str:
    results, timed, shares = read(name), read(steps), []
    for case in filter(lambda case: _fits(case, cases), set(results.times) & set(timed.times)):
        once, step = _column(results, case, column), timed.fastest(case, OURS)[1]
        if once is not None and not isinstance(step, str):
            milliseconds = int(number) * step * (1e-3 if timed.unit == "µs" else 1)
            shares.append(100 * once / (once + milliseconds))
    return f"{sum(shares) / len(shares):.1f} % (at most {max(shares):.1f} %)" if shares else NOT_RUN


def _counted(name: str, column: str, cases: str = "*") -> str:
    results, ratios = read(name), []
    for case in filter(lambda case: _fits(case, cases), results.times):
        counted, time = _column(results, case, column), results.fastest(case, OURS)[1]
        if counted and not isinstance(time, str):
            ratios.append(time / counted)
    if not ratios:
        return NOT_RUN
    low, first, middle, third, high = np.percentile(ratios, [0, 25, 50, 75, 100])
    return f"{middle:.2f} (quartiles {first:.2f} and {third:.2f}, {low:.2f} to {high:.2f})"


def _lines(names: str) -> str:
    tree = ast.parse((Path(__file__).parent / "bench_program.py").read_text())
    found = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    nodes = [found[name.strip()] for name in names.split(" or ")]
    return str(sum((node.end_lineno or 0) - node.lineno + 1 for node in nodes))


_GRAPHS = "aifb", "mutag", "fb15k237", "bgs", "am", "biokg", "mag", "wikikg2"
_PLAIN_JAX = "*relation or *ragged_dot*"


def _typed_layers(*groups: str) -> str:
    """Layers by this library, plain JAX and PyG; a peer of another table has a mark."""

    def found(group: str, graph: str, model: str, mode: str, names: str) -> float | str:
        cases = [f"{graph}* 64 float32 {model} h1 {mode}"]
        if model == "rgcn":
            cases.append(f"{graph}* 64 float32 {mode}")
        for results in map(read, group.split()):
            for case in filter(lambda case: _fits(case, " or ".join(cases)), results.times):
                time = results.fastest(case, names)[1]
                if not isinstance(time, str):
                    return time
        return "-"

    def cells(graph: str, model: str, mode: str) -> Iterator[str]:
        for names in (f"layer or {OURS}", _PLAIN_JAX, "PyG*"):
            times = [found(group, graph, model, mode, names) for group in groups]
            places = [i for i, time in enumerate(times) if not isinstance(time, str)] or [0]
            # Not every peer ran in every table: the best of all is shown.
            place = places[0] if OURS in names else min(places, key=lambda i: times[i])
            time = times[place]
            yield time if isinstance(time, str) else _shown(time) + "†" * place

    header = ["µs"]
    for mode in ("inference", "training"):
        header += [mode, "plain JAX", "PyG"]
    rows = [
        [f"{graph}, {title}", *cells(graph, model, "inference"), *cells(graph, model, "training")]
        for graph in _GRAPHS
        for model, title in (("rgcn", "R-GCN"), ("rgat", "RGAT"), ("hgt", "HGT"))
    ]
    return "\n" + "\n".join(table(header, rows)) + "\n"


def _source(name: str) -> str:
    results = read(name)
    return f"[{results.path.stem}](../benchmarks/results/{results.path.name}): {results.machine}"


_ASKED: dict[str, Callable[..., str]] = {
    "mean": _mean,
    "least": lambda *fields: _extreme(min, *fields),
    "most": lambda *fields: _extreme(max, *fields),
    "below": _below,
    "count": _count,
    "time": _time,
    "range": _range,
    "table": _table,
    "detail": _detail,
    "of steps": _of_steps,
    "counted": _counted,
    "lines": _lines,
    "typed layers": _typed_layers,
    "source": _source,
}


def filled(text: str) -> str:
    """Returns a page with every text between marks as its fields ask.

    Raises:
        ValueError: A field is none of the known ones, or its arguments do not fit.
    """

    def fill(match: re.Match[str]) -> str:
        kind, *fields = (field.strip() for field in match[1].split(";"))
        try:
            return f"<!--= {match[1]} -->{_ASKED[kind](*fields)}<!-- -->"
        except FileNotFoundError:
            return f"<!--= {match[1]} -->{NOT_RUN}<!-- -->"
        except (KeyError, TypeError) as error:
            raise ValueError(f"{match[1]!r}: {error!r}") from error

    return _FIELDS.sub(fill, text)


def run(check: bool) -> int:
    """Fills all pages and draws the pictures.

    With ``check`` it changes nothing, and returns 1 if a page differs from the results.
    """
    changed = 0
    for page in PAGES:
        text = page.read_text()
        if (new := filled(text)) != text:
            changed = 1
            print(f"{page}: {'differs from the results' if check else 'written'}")
            if not check:
                page.write_text(new)
    if not check:
        for name, picture in PICTURES.items():
            _draw(ROOT / "docs" / "papers" / f"{name}.svg", **picture)
    return changed if check else 0


# Pictures: bars of speedups over a reference, by case, as the papers have them.

PICTURES: dict[str, dict[str, Any]] = {
    "hypergef": {
        "panels": {
            f"{width} features, over two cuSPARSE products": (
                "hypergraph_aggregate",
                f"* {width} float32 fwd",
                "two cuSPARSE*",
                {"HyperGef": "HyperGef", "this library": OURS},
            )
            for width in (32, 64, 128)
        },
    },
    "geot": {
        "panels": {
            f"{title}, {width} features, over {peer}": (
                name,
                f"* {width} float32 {mode}",
                reference,
                {"GeoT": "GeoT*", "this library": OURS},
            )
            for title, name, widths, mode, peer, reference in (
                ("segment sums", "segment_reduce", (4, 64), "sum", "torch", "torch scatter_*"),
                ("SpMM", "spmm", (32, 128), "fwd", "cuSPARSE", "cuSPARSE*"),
                ("SpMM of small graphs", "spmm_small", (32,), "fwd", "cuSPARSE", "cuSPARSE*"),
            )
            for width in widths
        },
    },
    "fasten": {
        "panels": {
            f"{mode}, 64 features, over a loop of cuBLAS": (
                "segment_matmul_fasten",
                f"* 64 float32 {mode}",
                "torch loop*",
                {
                    "CUTLASS (pyg-lib)": "pyg-lib",
                    "FASTEN": "FASTEN*",
                    "this library": OURS,
                },
            )
            for mode in ("fwd", "dX", "dW")
        },
    },
    "hector": {
        "panels": {
            f"{mode}, over the best plain JAX": (
                "program",
                f"* {mode}",
                _PLAIN_JAX,
                {
                    "PyG": "PyG*",
                    "this library's layer": "layer",
                    "this library's program": OURS,
                },
            )
            for mode in ("inference", "training")
        },
    },
}


def _draw(path: Path, panels: dict[str, tuple[str, str, str, dict[str, str]]]) -> None:
    """Draws the panels that have a number: table, cases, reference and candidates by title."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot

    found = {}
    for title, (name, cases, reference, candidates) in panels.items():
        try:
            results = read(name)
        except FileNotFoundError:
            continue
        bars = {
            label: results.ratios(reference, cases, names) for label, names in candidates.items()
        }
        if any(bars.values()):
            found[title] = bars
    if not found:
        return
    drawn = {label for bars in found.values() for label, ratios in bars.items() if ratios}
    figure, rows = pyplot.subplots(len(found), 1, figsize=(9, 2.1 * len(found)), squeeze=False)
    for axes, (title, of_panel) in zip(rows[:, 0], found.items(), strict=True):
        bars = {label: ratios for label, ratios in of_panel.items() if label in drawn}
        shown = list(dict.fromkeys(itertools.chain(*bars.values())))
        width = 0.8 / len(bars)
        for i, (label, ratios) in enumerate(bars.items()):
            places = [n for n, case in enumerate(shown) if case in ratios]
            heights = [ratios[shown[n]] for n in places]
            axes.bar(
                [n + (i - (len(bars) - 1) / 2) * width for n in places], heights, width, label=label
            )
        axes.axhline(1, color="k", lw=0.5)
        heights = [ratio for ratios in bars.values() for ratio in ratios.values()]
        axes.set_yscale("log" if max(heights) > 20 * min(heights) else "linear")
        graphs = [
            re.sub(r" (\d+|h1|fwd|dX|dW|sum|inference|training)\b", "", _short(case))
            for case in shown
        ]
        axes.set_xticks(range(len(shown)), graphs, rotation=30, ha="right")
        axes.set_title(title, loc="left", size=8)
        axes.set_ylabel("speedup")
        axes.spines[["top", "right"]].set_visible(False)
    rows[0, 0].legend(ncols=len(bars), frameon=False, loc="upper right", bbox_to_anchor=(1, 1.35))
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
