"""Times an op beside its peers, shows a report again, or makes the rule for schedules."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from benchmarks import (
    compat,
    epochs,
    minibatch,
    report,
    sampling,
    schedule_times,
    schedules,
    sharding,
)
from benchmarks.definition import Settings, available_ops, load_op
from benchmarks.harness import run, select_workloads

RESULTS = Path(__file__).parent / "results"
_RULE = Path(__file__).parents[1] / "jax_gnn" / "_ops" / "hypergraph_aggregate" / "rule.py"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit code is 1 where a candidate gave a wrong result."""
    ops = available_ops()
    parser = _parser(ops)
    options = parser.parse_args(arguments)
    if options.list:
        for name, title in ops.items():
            print(f"{name:24} {title}")
        return 0
    if options.command is None:
        parser.error("name an op, or render; --list shows the ops")
    try:
        if options.command == "render":
            document = report.read(options.file)
            report.plot(document, options.file.with_suffix(".png"))
            print(report.markdown(document))
            return 0
        if options.command == "epochs":
            return _epochs(options)
        if options.command == "compat":
            return _compat(options)
        if options.command == "minibatch":
            return _minibatch(options)
        if options.command == "sampling":
            return _sampling(options)
        if options.command == "sharding":
            return _sharding(options)
        if options.command == "measure-schedules":
            return _measure_schedules(options)
        if options.command == "fit-schedules":
            return _fit_schedules(options)
        return _benchmark(options)
    except (OSError, ValueError, RuntimeError) as error:
        of_file = f"{options.file}: " if isinstance(error, json.JSONDecodeError) else ""
        print(f"error: {of_file}{error}", file=sys.stderr)
        return 2


def _parser(ops: dict[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the ops and exit")
    commands = parser.add_subparsers(dest="command", metavar="OP | render")
    render = commands.add_parser("render", help="print the tables of a report, draw its plot again")
    render.add_argument("file", type=Path)
    measure = commands.add_parser(
        "measure-schedules", help="time hypergraph aggregations under all schedules, on a GPU"
    )
    measure.add_argument("--data", type=Path, help="folder with real graphs")
    measure.add_argument("--seconds", type=_positive, default=300, help="when to stop")
    measure.add_argument("--quick", action="store_true", help="small graphs, a width each")
    measure.add_argument(
        "--out", type=Path, help="default: hypergraph_schedules-DEVICE.json in results"
    )
    fit = commands.add_parser("fit-schedules", help="fit the rule to these times and write it")
    fit.add_argument("file", type=Path, help="what measure-schedules wrote")
    fit.add_argument("--out", type=Path, help="the rule (default: the library's)")
    training = commands.add_parser("epochs", help="time training over small graphs beside peers")
    training.add_argument("--graphs", type=_positive, default=10_000)
    training.add_argument("--batch", type=_positive, default=128, help="graphs of a batch")
    training.add_argument("--rounds", type=_positive, default=5, help="epochs that are timed")
    _add_platform(training)
    training.add_argument("--out", type=Path, help="report to write; the plot goes beside it")
    replaced = commands.add_parser("compat", help="time others' models with this library in them")
    replaced.add_argument("--published", type=Path, help="folder with checkouts, for more models")
    replaced.add_argument("--cases", type=_names, default=(), help="models, as in jraph*,moe*")
    replaced.add_argument("--scale", type=float, help="of sizes (default: 1, on a GPU 16)")
    replaced.add_argument("--traced", action="store_true", help="graphs are arguments of programs")
    replaced.add_argument("--dtypes", type=_dtypes, default=("float32",), help="one of them")
    replaced.add_argument("--rounds", type=_positive, default=5, help="turns of both")
    _add_platform(replaced)
    replaced.add_argument("--out", type=Path, help="report to write; the plot goes beside it")
    sampled = commands.add_parser("minibatch", help="time training on sampled neighbourhoods")
    sampled.add_argument("--scale", type=float, default=0.1, help="of the twins of large graphs")
    sampled.add_argument("--rounds", type=_positive, default=3, help="epochs that are timed")
    _add_platform(sampled)
    sampled.add_argument("--out", type=Path, help="report to write; the plot goes beside it")
    parts = commands.add_parser("sharding", help="count what travels between parts of graphs")
    parts.add_argument("--data", type=Path, help="folder with real graphs")
    parts.add_argument("--graphs", default=",".join(sharding.GRAPHS), help="names of plain graphs")
    parts.add_argument("--parts", type=_positive, default=8)
    parts.add_argument("--out", type=Path, help="report to write; the table goes beside it")
    draws = commands.add_parser("sampling", help="time sampled neighbourhoods beside simpler ways")
    draws.add_argument("--graphs", default=",".join(sampling.GRAPHS), help="names of plain graphs")
    draws.add_argument("--rounds", type=_positive, default=10, help="batches that are timed")
    _add_platform(draws)
    draws.add_argument("--out", type=Path, help="report to write; the plot goes beside it")
    for name, title in ops.items():
        op = commands.add_parser(name, help=title, description=title)
        op.add_argument(
            "--data", type=Path, help="folder with real graphs; without it the twins run"
        )
        op.add_argument(
            "--published",
            type=Path,
            help="folder with checkouts of published code, named as on GitHub, for more peers",
        )
        _add_platform(op)
        op.add_argument(
            "--cases", type=_names, default=(), help="graphs, as in dblp*,walmart*,zipf"
        )
        op.add_argument("--modes", type=_names, default=(), help="only these modes")
        op.add_argument("--widths", type=_integers, default=(), help="feature widths, as in 32,64")
        op.add_argument(
            "--dtypes", type=_dtypes, default=("float32",), help="as in float32,bfloat16"
        )
        op.add_argument("--families", type=_names, default=(), help="only these families of peers")
        op.add_argument("--rounds", type=_positive, help="turns of every candidate")
        op.add_argument(
            "--timer",
            choices=("profiler", "queue"),
            default="profiler",
            help="how JAX is timed on a GPU: kernels in the profile, or queued calls as a check",
        )
        op.add_argument("--out", type=Path, help="report to write; the plot goes beside it")
        op.add_argument(
            "--quick", action="store_true", help="a tiny graph, width 8, 2 rounds, unless given"
        )
    return parser


def _add_platform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform",
        choices=("cpu", "gpu"),
        default="gpu" if shutil.which("nvidia-smi") else "cpu",
        help="default: gpu where there is an NVIDIA driver",
    )


def _epochs(options: argparse.Namespace) -> int:
    document = epochs.run(options.platform, options.graphs, options.batch, options.rounds)
    path = options.out or RESULTS / f"epochs-{_slug(document['machine']['device'])}.json"
    epochs.write(document, path)
    print(f"{epochs.markdown(document)}\nwritten: {path} and {path.with_suffix('.png').name}")
    return 1 if any(row["status"] == "wrong" for row in document["rows"]) else 0


def _compat(options: argparse.Namespace) -> int:
    settings = Settings(
        platform=options.platform,
        published=options.published,
        patterns=options.cases,
        dtypes=options.dtypes[:1],
        rounds=options.rounds,
    )
    scale = options.scale or (16 if options.platform == "gpu" else 1)
    document = compat.run(settings, scale, options.traced)
    path = options.out or RESULTS / f"compat-{_slug(document['machine']['device'])}.json"
    compat.write(document, path)
    print(f"{compat.markdown(document)}\nwritten: {path} and {path.with_suffix('.png').name}")
    return 1 if any(row["status"] == "wrong" for row in document["rows"]) else 0


def _minibatch(options: argparse.Namespace) -> int:
    document = minibatch.run(options.platform, options.scale, options.rounds)
    path = options.out or RESULTS / f"minibatch-{_slug(document['machine']['device'])}.json"
    minibatch.write(document, path)
    print(f"{minibatch.markdown(document)}\nwritten: {path} and {path.with_suffix('.png').name}")
    return 1 if any(row["status"] == "wrong" for row in document["rows"]) else 0


def _sampling(options: argparse.Namespace) -> int:
    document = sampling.run(options.platform, options.graphs.split(","), options.rounds)
    path = options.out or RESULTS / f"sampling-{_slug(document['machine']['device'])}.json"
    sampling.write(document, path)
    print(f"{sampling.markdown(document)}\nwritten: {path} and {path.with_suffix('.png').name}")
    return 0


def _sharding(options: argparse.Namespace) -> int:
    document = sharding.run(options.data, options.graphs.split(","), options.parts)
    path = options.out or RESULTS / "sharding.json"
    sharding.write(document, path)
    print(f"{sharding.markdown(document)}\nwritten: {path} and {path.with_suffix('.md').name}")
    return 0


def _measure_schedules(options: argparse.Namespace) -> int:
    database = schedule_times.measure(options.data, options.seconds, options.quick)
    path = options.out or RESULTS / f"hypergraph_schedules-{_slug(database.device)}.json"
    schedule_times.write(database, path)
    print(f"written: {path}")
    return 0


def _fit_schedules(options: argparse.Namespace) -> int:
    database = schedule_times.read(options.file)
    out = options.out or _RULE
    fitted = schedules.fit(database)
    table = schedules.markdown(database, fitted)
    options.file.with_suffix(".md").write_text(table)
    out.write_text(schedules.emit(database, fitted))
    print(f"{table}\nwritten: {out}, {options.file.with_suffix('.md')}")
    return 0


def _benchmark(options: argparse.Namespace) -> int:
    op = load_op(options.command)
    quick = options.quick
    cases = options.cases or (("tiny",) if quick and options.data is None else ())
    default_rounds = 2 if quick else {"cpu": 7, "gpu": 3}[options.platform]
    settings = Settings(
        platform=options.platform,
        data=options.data,
        published=options.published,
        patterns=cases,
        modes=options.modes,
        widths=options.widths or ((8,) if quick else ()),
        dtypes=options.dtypes,
        families=options.families,
        rounds=options.rounds or default_rounds,
        timer=options.timer,
    )
    select_workloads(op, settings)  # a wrong name is an error before anything starts
    for document in run(op, settings):  # written after each graph, should the run be cut off
        path = options.out or RESULTS / f"{op.name}-{_slug(document['machine']['device'])}.json"
        report.write(document, path)
    print(report.markdown(document))
    print(f"written: {path} and {path.with_suffix('.png').name}")
    statuses = {row["status"] for case in document["cases"] for row in case["candidates"]}
    return 1 if "wrong" in statuses else 0


def _slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, _names(text)))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _dtypes(text: str) -> tuple[str, ...]:
    known = ("float32", "float64", "float16", "bfloat16")
    names = _names(text)
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
