"""The run that times an op's benchmark.

Each family of candidates runs in a process of its own, so that memory pools and thread pools do not
meet. Nothing here imports JAX or torch.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any

from benchmarks import report
from benchmarks.definition import Case, Op, Settings
from benchmarks.worker import Process, family_session, probe, reason
from benchmarks.workloads import Workload


def select_workloads(op: Op, settings: Settings) -> list[Workload]:
    """The graphs that the settings ask for.

    Raises:
        ValueError: A pattern fits no graph, or a mode or family is none of the op's.
    """
    for kind, asked, names in (
        ("mode", settings.modes, list(op.modes)),
        ("family", settings.families, [family.name for family in op.families]),
    ):
        if unknown := [name for name in asked if name not in names]:
            raise ValueError(f"no {kind} is called {unknown[0]!r}; there are: {', '.join(names)}")
    known = op.workloads(settings.data)
    if not settings.patterns:
        on_cpu = settings.platform == "cpu"
        return [
            w
            for w in known.values()
            if not w.on_request and not (on_cpu and (w.large or not w.on_cpu))
        ]
    for pattern in settings.patterns:
        if not any(fnmatch(name, pattern) for name in known):
            raise ValueError(f"no graph is called {pattern!r}; there are: {', '.join(known)}")
    return [
        workload
        for name, workload in known.items()
        if any(fnmatch(name, pattern) for pattern in settings.patterns)
    ]


@dataclass
class _Run:
    """The workers of a run and what they have said."""

    op: Op
    settings: Settings
    workers: dict[str, Process] = field(default_factory=dict)
    families: dict[str, dict[str, Any]] = field(default_factory=dict)

    def ask(self, *message: Any) -> dict[str, Any]:
        """Sends a message to all workers at once; answers of those that live."""
        for worker in self.workers.values():
            worker.send(*message)
        return {name: answer for name in list(self.workers) if (answer := self._answer(name))}

    def ask_one(self, name: str, *message: Any) -> Any:
        """Sends a message to one worker and waits for its answer; None if it has died."""
        if name not in self.workers:
            return None
        self.workers[name].send(*message)
        return self._answer(name)

    def reasons(self) -> str:
        """What went wrong, family by family."""
        return "; ".join(f"{name}: {f['reason']}" for name, f in self.families.items())

    def _answer(self, name: str) -> Any:
        try:
            return self.workers[name].receive()
        except (RuntimeError, EOFError) as error:
            if isinstance(error, EOFError):
                self.workers.pop(name).stop()
            self.families[name] |= {"status": "failed", "reason": reason(error)}
            _say(f"{name}: {error}")
            return None


def run(op: Op, settings: Settings) -> Iterator[dict[str, Any]]:
    """Runs an op's benchmark; after each graph the report as `benchmarks.report` has it.

    Raises:
        RuntimeError: no family of candidates can run here, or nothing could be timed.
    """
    workloads = select_workloads(op, settings)
    this = _Run(op, settings)
    chosen = [f for f in op.families if not settings.families or f.name in settings.families]
    for family in chosen:
        this.workers[family.name] = Process(family_session, op.name, family.name, settings)
        this.families[family.name] = {"status": "timed", "reason": "", "versions": {}}
    try:
        for name in list(this.workers):
            hello = this._answer(name)
            if hello:
                this.families[name] |= hello
                if hello["status"] == "absent":
                    this.workers.pop(name).stop()
                    _say(f"{name}: absent, {hello['reason']}")
        if not this.workers:
            raise RuntimeError(f"no family of candidates can run here: {this.reasons()}")
        machine = probe(settings)
        _say(f"{machine['device']}, copy {machine['copy_bytes_per_second'] / 1e9:.1f} GB/s")
        cases: list[dict[str, Any]] = []
        for workload in workloads:
            cases += _run_workload(this, workload, machine)
            if cases:
                yield _document(this, machine, cases)
    finally:
        for worker in this.workers.values():
            worker.stop()
    if not cases:
        raise RuntimeError(f"nothing could be timed: {this.reasons()}")


def _document(this: _Run, machine: dict[str, Any], cases: list[dict[str, Any]]) -> dict[str, Any]:
    op, settings = this.op, this.settings
    return report.document(
        op.name,
        op.title,
        machine,
        cases,
        settings={
            "platform": settings.platform,
            "rounds": settings.rounds,
            "repeats": settings.repeats,
            "timer": settings.timer if settings.platform == "gpu" else "wall",
        },
        baseline=op.baseline,
        families=this.families,
    )


def _run_workload(this: _Run, workload: Workload, machine: dict[str, Any]) -> list[dict[str, Any]]:
    """All cases of a graph; of a large one, one width after another, the largest first."""
    cases = this.op.cases(workload.name, this.settings)
    groups = [cases]
    if workload.large:
        # In this order an allocator's regions for one width serve the next.
        sizes = sorted({(case.width, case.dtype) for case in cases}, reverse=True)
        groups = [[c for c in cases if (c.width, c.dtype) == size] for size in sizes]
    rows = {row["name"]: row for group in groups for row in _run_cases(this, group, machine)}
    return [rows[case.name] for case in cases if case.name in rows]


def _run_cases(this: _Run, cases: list[Case], machine: dict[str, Any]) -> list[dict[str, Any]]:
    """Cases of one graph: compiled and checked side by side, then timed in turn."""
    settings = this.settings
    prepared = this.ask("prepare", cases)
    if not prepared:
        return []
    samples: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for turn in range(settings.rounds):
        # On a GPU a family times all its cases in one profile; on a CPU a turn is one case, so that
        # families meet the same state of the machine. The family that starts changes.
        groups = [cases] if settings.platform == "gpu" else [[case] for case in cases]
        names = [name for name in prepared if name in this.workers]
        for group in groups:
            for name in names[turn % max(len(names), 1) :] + names[: turn % max(len(names), 1)]:
                answer = this.ask_one(name, "measure", [case.name for case in group])
                for (case_name, candidate, method), seconds in (answer or {}).items():
                    methods = samples.setdefault((name, case_name, candidate), {})
                    methods.setdefault(method, []).extend(seconds)
    this.ask("forget")
    rows = []
    for case in cases:
        candidates = []
        work: dict[str, int] = {}
        for name, answer in prepared.items():
            work = answer["work"][case.name]
            for row in answer["candidates"][case.name]:
                methods = samples.get((name, case.name, row["name"]), {})
                if row["status"] == "timed" and not methods:
                    row = row | {"status": "failed", "reason": this.families[name]["reason"]}
                candidates.append({"family": name, **row, **_fastest_method(methods)})
        rows.append(_case_row(case, work, machine, candidates))
        _say(report.case_line(rows[-1]))
    return rows


def _case_row(
    case: Case, work: dict[str, int], machine: dict[str, Any], candidates: list[dict[str, Any]]
) -> dict[str, Any]:
    floor_us = 1e6 * max(
        work["bytes"] / machine["copy_bytes_per_second"],
        work["flops"] / machine["flops_per_second"][case.dtype],
    )
    for candidate in candidates:
        if candidate["status"] == "timed":
            candidate["floor_fraction"] = floor_us / candidate["median_us"]
    row = {"name": case.name, **asdict(case), **work, "floor_us": floor_us}
    return row | {"candidates": candidates}


def _fastest_method(methods: dict[str, list[float]]) -> dict[str, Any]:
    """Statistics of the way to call a candidate that has the least median."""
    if not methods:
        return {}
    method = min(methods, key=lambda name: statistics.median(methods[name]))
    return {"method": method, **report.statistics_us(methods[method])}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
