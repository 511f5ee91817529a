"""Times an op beside its peers, shows a report again, or makes the rule for schedules."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import (
    compat,
    dram,
    epochs,
    minibatch,
    papers,
    report,
    sampling,
    scaling,
    schedule_times,
    schedules,
    sharding,
    typed,
)
from benchmarks.bench_program import MODELS
from benchmarks.definition import Settings, available_ops, load_op
from benchmarks.harness import run, select_workloads

RESULTS = Path(__file__).parent / "results"
_LIBRARY = Path(__file__).parents[1] / "jax_gnn"
_RULE = _LIBRARY / "_ops" / "hypergraph_aggregate" / "rule.json"
_TREES = _LIBRARY / "_core" / "schedule_trees.json"


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
        return options.run(options)
    except (OSError, ValueError, RuntimeError) as error:
        of_file = f"{options.file}: " if isinstance(error, json.JSONDecodeError) else ""
        print(f"error: {of_file}{error}", file=sys.stderr)
        return 2


def _parser(ops: dict[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="list the ops and exit")
    commands = parser.add_subparsers(dest="command", metavar="OP | render")

    def command(
        name: str, title: str, run: Callable[[argparse.Namespace], int]
    ) -> Callable[..., Any]:
        made = commands.add_parser(name, help=title, description=title)
        made.set_defaults(run=run)
        return made.add_argument

    def reported(
        name: str, title: str, run: Callable[[argparse.Namespace], Iterable[report.Document]]
    ) -> Callable[..., Any]:
        def run_and_report(options: argparse.Namespace) -> int:
            _require_committed(options)
            return _report(run(options), options)

        add = command(name, title, run_and_report)
        add(
            "--platform",
            choices=("cpu", "gpu"),
            default="gpu" if shutil.which("nvidia-smi") else "cpu",
            help="default: gpu where there is an NVIDIA driver",
        )
        add("--out", type=Path, help="report to write; the plot goes beside it")
        return add

    add = command("render", "print the tables of a report, draw its plot again", _render)
    add("file", type=Path)
    title = "write the numbers, tables and pictures of README and docs/papers.md"
    add = command("papers", title, lambda options: papers.run(options.check))
    add("--check", action="store_true", help="change nothing; 1 if a page differs from the results")
    title = "time calls under all schedules, on a GPU"
    add = command("measure-schedules", title, _measure_schedules)
    add("--subject", choices=("hypergraph", "segment"), default="hypergraph")
    add("--data", type=Path, help="folder with real graphs")
    add("--seconds", type=_positive, default=300, help="when to stop")
    add("--seed", type=int, default=0, help="of the graphs of segments")
    add("--quick", action="store_true", help="small graphs, a width each")
    add("--out", type=Path, help="default: SUBJECT_schedules-DEVICE.json in results")
    add = command("fit-schedules", "fit the rule to these times and write it", _fit_schedules)
    add("file", type=Path, help="what measure-schedules wrote")
    add("--out", type=Path, help="the rule (default: the library's)")
    add = reported(
        "epochs",
        "time training over small graphs beside peers",
        lambda o: [epochs.run(o.platform, o.graphs, o.batch, o.rounds)],
    )
    add("--graphs", type=_positive, default=10_000)
    add("--batch", type=_positive, default=128, help="graphs of a batch")
    add("--rounds", type=_positive, default=5, help="epochs that are timed")
    add = reported("compat", "time others' models with this library in them", _compat)
    add("--published", type=Path, help="folder with checkouts, for more models")
    add("--cases", type=_names, default=(), help="models, as in jraph*,moe*")
    add("--scale", type=float, help="of sizes (default: 1, on a GPU 16)")
    add("--traced", action="store_true", help="graphs are arguments of programs")
    add("--dtypes", type=_dtypes, default=("float32",), help="one of them")
    add("--rounds", type=_positive, default=5, help="turns of both")
    add = reported(
        "hypergraph_bytes",
        "count bytes of hypergraph aggregations by ncu, on a GPU",
        lambda o: [dram.run(Settings("gpu", o.data, o.published, o.cases), o.width)],
    )
    add("--data", type=Path, help="folder with real graphs")
    add("--published", type=Path, help="folder with checkouts of published code")
    add("--cases", type=_names, default=(), help="graphs, as in dblp*,walmart*")
    add("--width", type=_positive, default=64, help="features")
    add = command("counters", "count throughput of typed layers by ncu, on a GPU", _counters)
    add("--data", type=Path, help="folder with real graphs")
    add("--cases", type=_names, default=("fb15k237",), help="graphs, as in aifb,am-twin")
    modes = [f"{model} h1 {mode}" for model in MODELS for mode in ("inference", "training")]
    add("--modes", type=_names, default=modes[:6], help=", ".join(modes))
    add("--width", type=_positive, default=64, help="features")
    add("--out", type=Path, required=True, help="file of tables to write")
    add = reported(
        "minibatch",
        "time training on sampled neighbourhoods",
        lambda o: [minibatch.run(o.platform, o.scale, o.rounds)],
    )
    add("--scale", type=float, default=0.1, help="of the twins of large graphs")
    add("--rounds", type=_positive, default=3, help="turns of every candidate")
    add = reported(
        "sampling",
        "time sampled neighbourhoods beside simpler ways",
        lambda o: [sampling.run(o.platform, o.graphs, o.rounds)],
    )
    add("--graphs", type=_names, default=sampling.GRAPHS, help="names of graphs")
    add("--rounds", type=_positive, default=10, help="batches that are timed")
    add = reported(
        "scaling",
        "time training over several devices",
        lambda o: [scaling.run(o.platform, o.scale, o.rounds, o.devices, o.cases)],
    )
    add("--scale", type=float, default=1.0, help="of nodes and edges")
    add("--rounds", type=_positive, default=5, help="turns of every candidate")
    add("--devices", type=_positive, help="default: all")
    add(
        "--cases",
        type=_names,
        default=scaling.CASES,
        help=", ".join((*scaling.CASES, *scaling.ON_REQUEST)),
    )
    add = reported(
        "typed",
        "time training of two typed layers beside PyG",
        lambda o: [typed.run(_typed_settings(o), o.steps, o.epochs)],
    )
    add("--data", type=Path, help="folder with real graphs")
    add("--cases", type=_names, default=typed.CASES, help="graphs and models, as in 'aifb rgat'")
    add("--widths", type=_integers, default=(16, 64), help="features of a layer")
    add("--families", type=_names, default=(), help=", ".join(typed.FAMILIES))
    add("--steps", type=_positive, default=10, help="steps that are timed")
    add("--epochs", type=_positive, default=0, help="train so long in two precisions instead")
    add = command("sharding", "count what travels between parts of graphs", _sharding)
    add("--data", type=Path, help="folder with real graphs")
    add("--graphs", type=_names, default=sharding.GRAPHS, help="names of plain graphs")
    add("--parts", type=_positive, default=8)
    add("--out", type=Path, help="JSON to write")
    for name, title in ops.items():
        add = reported(name, title, _benchmark)
        add("--data", type=Path, help="folder with real graphs; without it the twins run")
        add(
            "--published",
            type=Path,
            help="folder with checkouts of published code, named as on GitHub, for more peers",
        )
        add("--cases", type=_names, default=(), help="graphs, as in dblp*,walmart*,zipf")
        add("--modes", type=_names, default=(), help="only these modes")
        add("--widths", type=_integers, default=(), help="feature widths, as in 32,64")
        add("--dtypes", type=_dtypes, default=("float32",), help="as in float32,bfloat16")
        add("--families", type=_names, default=(), help="only these families of peers")
        add("--rounds", type=_positive, help="turns of every candidate")
        add(
            "--timer",
            choices=("profiler", "queue"),
            default="profiler",
            help="how JAX is timed on a GPU: kernels in the profile, or queued calls as a check",
        )
        add("--quick", action="store_true", help="a tiny graph, width 8, 2 rounds, unless given")
    return parser


def _require_committed(options: argparse.Namespace) -> None:
    """Checks that a report among the results can be made again from its commit.

    Raises:
        ValueError: Files differ from the commit, and no other file is named for the report.
    """
    if options.out is None and (report.commit() or "").endswith("+"):
        raise ValueError(
            "files differ from the commit, so nobody could make this report again: commit them, or "
            "name a file for it by --out"
        )


def _report(documents: Iterable[report.Document], options: argparse.Namespace) -> int:
    for document in documents:  # written after each graph, should the run be cut off
        name = f"{options.command}-{_slug(document['machine']['device'])}.json"
        path = options.out or RESULTS / name
        report.write(document, path)
    print(report.markdown(document))
    print(f"written: {path} and {path.with_suffix('.png').name}")
    statuses = {row["status"] for case in document["cases"] for row in case["candidates"]}
    return 1 if "wrong" in statuses else 0


def _render(options: argparse.Namespace) -> int:
    document = report.read(options.file)
    report.plot(document, options.file.with_suffix(".png"))
    print(report.markdown(document))
    return 0


def _counters(options: argparse.Namespace) -> int:
    settings = Settings("gpu", options.data, patterns=options.cases, modes=tuple(options.modes))
    options.out.write_text(table := "".join(dram.throughput(settings, options.width)))
    print(table)
    return 0


def _sharding(options: argparse.Namespace) -> int:
    document = sharding.run(options.data, options.graphs, options.parts)
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(sharding.markdown(document))
    return 0


def _compat(options: argparse.Namespace) -> list[report.Document]:
    settings = Settings(
        platform=options.platform,
        published=options.published,
        patterns=options.cases,
        dtypes=options.dtypes[:1],
        rounds=options.rounds,
    )
    scale = options.scale or (16 if options.platform == "gpu" else 1)
    return [compat.run(settings, scale, options.traced)]


def _typed_settings(options: argparse.Namespace) -> Settings:
    return Settings(
        platform=options.platform,
        data=options.data,
        patterns=options.cases,
        widths=options.widths,
        families=options.families,
    )


def _measure_schedules(options: argparse.Namespace) -> int:
    _require_committed(options)
    if options.subject == "segment":
        from benchmarks import segment_times

        databases = segment_times.measure_all(options.seconds, options.quick, options.seed)
    else:
        databases = schedule_times.measure(options.data, options.seconds, options.quick)
    name = f"{options.subject}_schedules-{_slug(databases[0].device)}.json"
    path = options.out or RESULTS / name
    schedule_times.write(databases, path)
    print(f"written: {path}")
    return 0


def _fit_schedules(options: argparse.Namespace) -> int:
    databases = schedule_times.read(options.file)
    if databases[0].subject == schedule_times.HYPERGRAPH:
        databases = [schedules.with_best_threads(database) for database in databases]
        table, rule = schedules.markdown(databases), schedules.emit_rule(databases[0])
    else:
        table, rule = schedules.markdown(databases), schedules.emit(databases)
    out = options.out or (_TREES, _RULE)[databases[0].subject == schedule_times.HYPERGRAPH]
    options.file.with_suffix(".md").write_text(table)
    out.write_text(rule)
    print(f"{table}\nwritten: {out}, {options.file.with_suffix('.md')}")
    return 0


def _benchmark(options: argparse.Namespace) -> Iterable[report.Document]:
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
    return run(op, settings)


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
