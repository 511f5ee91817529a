"""What kernels do by the counters of Nsight Compute's ``ncu``.

Calls run in one process, which ``ncu`` profiles. A kernel of another kind marks where each begins.

* Bytes of hypergraph aggregations, of this library, of two cuSPARSE products and of HyperGef's
  kernel: each call begins with a cold second-level cache, which its own kernels then share, as in
  use.
* Throughput of typed layers by kernel (Hector, figure 12), each with a cold cache, as ``ncu``
  repeats a kernel for more counters than it has at once.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.definition import Case, Settings
from benchmarks.worker import probe

METRICS = {
    "dram__bytes_read.sum": "read MB",
    "dram__bytes_write.sum": "written MB",
    "lts__t_bytes.sum": "through L2 MB",
    "gpu__time_duration.sum": "",
}
"""Counters of a kernel, and their columns in millions of bytes; the last one is nanoseconds."""

THROUGHPUT = {
    "gpu__time_duration.sum": "µs",
    "dram__bytes_read.sum": "read GB/s",
    "dram__bytes_write.sum": "written GB/s",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM %",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "L2 %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM %",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor %",
}
"""Counters of a kernel, and the columns of `throughput`; % are shares of the peak."""

_NAME = "Kernel Name"
_MARK = "erfinv"
"""In the name of the marking kernel, and of no other."""

_CALL = "call "
"""Begins a line of the profiled process that names a call."""


def run(settings: Settings, width: int) -> report.Document:
    """Profiles hypergraphs and returns a report, whose times are those of kernels under ``ncu``.

    Raises:
        RuntimeError: ``ncu`` is missing or failed.
    """
    calls = _profile("hypergraphs", METRICS, "none", settings, width)
    cases: dict[str, list[Any]] = {}
    for (graph, name), kernels in calls:
        nanoseconds = sum(kernel["gpu__time_duration.sum"] for kernel in kernels)
        details: dict[str, Any] = {
            column: sum(kernel[metric] for kernel in kernels) / 1e6
            for metric, column in METRICS.items()
            if column
        }
        family = report.OURS if name == report.OURS else "peer"
        row = report.candidate(
            name,
            [nanoseconds * 1e-9],
            family=family,
            details={"kernels": len(kernels), **details},
        )
        cases.setdefault(graph, []).append(row)
    rows = [report.case(graph, f"{width} float32 fwd", of) for graph, of in cases.items()]
    about = "Counters by ncu; the cache is cold before a call, and shared by its kernels."
    title = "Bytes that a hypergraph aggregation moves"
    return report.document("hypergraph_bytes", title, probe(settings), rows, about=about)


def throughput(settings: Settings, width: int) -> Iterator[str]:
    """Yields tables of the kernels of typed layers, which settings' modes and patterns name.

    Raises:
        RuntimeError: ``ncu`` is missing or failed.
    """
    columns = [*THROUGHPUT.values(), "share %"]
    machine = probe(settings)
    versions = ", ".join(f"{name} {of}" for name, of in machine["versions"].items())
    yield f"# Counters of typed layers\n\n{machine['device']}; {versions}; commit "
    yield f"{report.commit()}; {report.now()}. Kernels with a cold cache, by ncu.\n"
    for (graph, mode), kernels in _profile("layers", THROUGHPUT, "all", settings, width):
        total = sum(kernel["gpu__time_duration.sum"] for kernel in kernels)
        yield f"\n{graph}, {mode}, {width} features: {total / 1000:.1f} µs in kernels\n\n"
        yield f"| kernel | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}\n"
        for kernel in kernels:
            time = kernel["gpu__time_duration.sum"]
            values = [
                kernel[metric] / (1000 if column == "µs" else time if "GB/s" in column else 1)
                for metric, column in THROUGHPUT.items()
            ]
            name = re.sub(r"^void |<unnamed>::|\(anonymous namespace\)::", "", kernel[_NAME])
            name = re.sub(r"[<(].*", "", name).removeprefix("jax_gnn::cuda::")[:48]
            cells = [f"{value:.3g}" for value in [*values, 100 * time / total]]
            yield f"| `{name}` | {' | '.join(cells)} |\n"


def _profile(
    subject: str, metrics: dict[str, str], cache: str, settings: Settings, width: int
) -> list[tuple[list[str], list[dict[str, Any]]]]:
    """What names each call of a subject, and counters of its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        options = (
            f"--csv --print-units base --cache-control {cache} --clock-control none "
            f"--log-file {log}"
        )
        folders = str(settings.data or ""), str(settings.published or "")
        values = *folders, str(width), ",".join(settings.modes)
        command = [
            *("ncu", "--profile-from-start", "off", "--metrics", ",".join(metrics)),
            *options.split(),
            *(sys.executable, "-P", "-m", "benchmarks.dram", subject, *values, *settings.patterns),
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment
            )
        except FileNotFoundError:
            raise RuntimeError("ncu, NVIDIA's Nsight Compute, is not installed") from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"ncu failed: {(error.stdout + error.stderr)[-2000:]}") from None
        lines = done.stdout.splitlines()
        calls = [json.loads(line[len(_CALL) :]) for line in lines if line.startswith(_CALL)]
        text = log.read_text()
    return list(zip(calls, kernels_of_calls(text), strict=True))


def kernels_of_calls(text: str) -> list[list[dict[str, Any]]]:
    """Names and metrics of the kernels between marks, from what ``ncu --csv`` writes.

    Raises:
        ValueError: The text has no table, or a kernel comes before the first mark.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    if not starts:
        raise ValueError(f"ncu profiled no kernel: {text[-500:]}")
    calls: list[list[dict[str, Any]]] = []
    current = None
    for row in csv.DictReader(lines[starts[0] :]):
        if row["ID"] != current:
            current = row["ID"]
            if _MARK in row[_NAME]:
                calls.append([])
            elif not calls:
                raise ValueError(f"kernel {row[_NAME]} comes before the first mark")
            else:
                calls[-1].append({_NAME: row[_NAME]})
        if _MARK not in row[_NAME]:
            calls[-1][-1][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return calls


def _candidates(settings: Settings, width: int) -> Iterator[tuple[str, str, Any]]:
    """Graph, name and call of what is profiled, one graph's at a time."""
    from benchmarks import bench_hypergraph_aggregate as op
    from benchmarks.harness import select_workloads
    from benchmarks.worker import _Jax, _Torch

    runtimes = _Jax(settings), _Torch(settings)
    for workload in select_workloads(op.OP, settings):
        graph, case = workload.load(), Case(workload.name, width, "float32", "fwd")
        problem = op.problem(graph, case)
        found: Iterable[Any] = [(runtimes[0], next(op.jax_gnn_candidates(graph, case, problem)))]
        peers = op.cusparse_candidates(graph, case, problem)
        found = [*found, (runtimes[1], next(c for c in peers if "CSR_ALG2" in c.name))]
        if settings.published:
            checkout = (settings.published / "HyperGef").resolve()
            peers = op.hypergef_candidates(checkout, graph, case, problem)
            found += [(runtimes[1], candidate) for candidate in peers if not candidate.skip]
        for runtime, candidate in found:
            yield (
                workload.name,
                candidate.name,
                next(iter(runtime.prepare(candidate).calls.values())),
            )
        for runtime in runtimes:
            runtime.forget()


def _layers(settings: Settings, width: int) -> Iterator[tuple[str, str, Any]]:
    """Graph, mode and call of each typed layer."""
    from benchmarks import bench_program as op
    from benchmarks.harness import select_workloads
    from benchmarks.worker import _Jax

    runtime = _Jax(settings)
    for workload in select_workloads(op.OP, settings):
        graph = workload.load()
        for mode in settings.modes:
            case = Case(workload.name, width, "float32", mode)
            candidate = next(op.layer_candidates(graph, case, op.problem(graph, case)))
            yield workload.name, mode, next(iter(runtime.prepare(candidate).calls.values()))


_SUBJECTS = {"hypergraphs": _candidates, "layers": _layers}


def _main(subject: str, data: str, published: str, width: str, modes: str, *patterns: str) -> None:
    """Calls every candidate once between marks, and prints their names in this order."""
    settings = Settings(
        "gpu",
        data=Path(data) if data else None,
        published=Path(published) if published else None,
        patterns=patterns,
        modes=tuple(filter(None, modes.split(","))),
        timer="queue",  # JAX's profiler finds no kernels beside ncu
    )
    calls = _SUBJECTS[subject](settings, int(width))
    graph, name, call = next(calls)
    import jax
    import torch

    from benchmarks.timing import FLUSH_BYTES

    cold = torch.ones(FLUSH_BYTES // 4, dtype=torch.int32)
    mark = torch.zeros(32)
    while True:
        cold.bitwise_xor_(1)
        cold.amax()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        torch.erfinv(mark)
        torch.cuda.synchronize()
        jax.block_until_ready(call())
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        print(f"{_CALL}{json.dumps([graph, name])}", flush=True)
        try:
            graph, name, call = next(calls)
        except StopIteration:
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
