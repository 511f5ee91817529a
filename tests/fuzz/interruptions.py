"""Interrupts trainings of the command line, continues them, and compares their results to the bit.

``python tests/fuzz/interruptions.py --moments N``

Each of four tasks (nodes, relations, graphs, links) runs once to its end, and then N times over
that run's folder with an interruption, of these kinds in turn: Ctrl-C, ``kill -9``, and a full
disk, which a limit on the size of files stands for. Moments are spread over the steps that a run
reports: its start, and the begin and end of each write of a state, of the checkpoint, of the
results. So they do not depend on the speed of the machine. After each the earlier checkpoint, or
the new one, must be whole; the command that is printed, or ``--resume``, must continue; and scores
and parameters must be those of the whole run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import matplotlib.figure  # noqa: F401
import numpy as np
import orbax.checkpoint  # noqa: F401
import sklearn.datasets  # noqa: F401

from flax_layers.training import checkpoint, report, resume
from jax_gnn import cli  # imported once: each run is a fork of this process

KINDS = "ctrl-c", "kill", "disk"
TASKS = {
    "nodes": "gcn --data nodes.npz --splits 2 --epochs 100 --no-baseline --schedule cosine"
    " --class-weight balanced",
    "relations": "rgcn --data relations.npz --splits 2 --epochs 100 --no-baseline"
    " --early-stopping 40",
    "graphs": "gin --task graph --data graphs.txt --splits 2 --epochs 8 --steps 4 --layers 2"
    " --hidden-features 8",
    "links": "rgcn --task link --data relations.npz --epochs 30 --batch-size 64"
    " --embedding-features 8 --hidden-features 8 --blocks 2 --evaluate-every 5 --warmup 4",
}
PARAMETERS = "parameters.npz"
IGNORED = "seconds", "speedup"  # parts of the names of results that are times


def write_data() -> None:
    """Write data of each kind into the current folder."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(200, size=(2, 800))
    y = rng.integers(3, size=200)
    x = rng.normal(size=(200, 5)).astype(np.float32) + y[:, None]
    np.savez("nodes.npz", num_nodes=200, src=src, dst=dst, x=x, y=y)
    sizes = {"num_nodes": 200, "num_relations": 3}
    np.savez("relations.npz", src=src, dst=dst, rel=rng.integers(3, size=800), y=y, **sizes)
    lines = ["60"]
    for i in range(60):
        ring = [f"0 2 {(j - 1) % (4 + i % 2)} {(j + 1) % (4 + i % 2)}" for j in range(4 + i % 2)]
        lines += [f"{len(ring)} {i % 2}", *ring]
    Path("graphs.txt").write_text("\n".join(lines) + "\n")


def save(path: Path, trained: Any) -> None:
    """Write a checkpoint, and its parameters into an archive beside the folder of the run."""
    checkpoint.save_checkpoint(path, trained)
    state = checkpoint.nnx.state(trained.model, checkpoint.VARIABLES)
    np.savez(PARAMETERS, **resume.leaves(state, "parameters"))


def reporting(function: Callable[..., None], pipe: int) -> Callable[..., None]:
    """Return a function that also writes a byte before and after each of its calls."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        os.write(pipe, b".")
        function(*args, **options)
        os.write(pipe, b".")

    return run


def start(words: list[str], log: Path) -> tuple[int, int]:
    """Run the command in a fork; return its id, and a pipe with a byte for each of its steps."""
    reader, pipe = os.pipe()
    process = os.fork()
    if process:
        os.close(pipe)
        return process, reader
    code = 1
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
            resume.EVERY = 0.0
            resume.write_arrays = reporting(resume.write_arrays, pipe)
            report.save_checkpoint = reporting(save, pipe)
            Path.write_text = reporting(Path.write_text, pipe)  # type: ignore[method-assign]
            code = cli.main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def finish(words: list[str], log: Path) -> tuple[int, list[float]]:
    """Run the command to its end; return its exit code, and the times at which its steps begin."""
    process, pipe = start(words, log)
    times = [time.monotonic()]
    while os.read(pipe, 1):
        times.append(time.monotonic())
    os.close(pipe)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), [*times, time.monotonic()]


def interrupt(words: list[str], log: Path, kind: str, step: int, seconds: float) -> int:
    """Run the command, and interrupt it some seconds after the begin of a step."""
    process, pipe = start(words, log)
    for _ in range(step):
        os.read(pipe, 1)
    time.sleep(seconds)
    try:
        if kind == "disk":
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(process, resource.RLIMIT_FSIZE, (log.stat().st_size + 500, hard))
        else:
            os.kill(process, signal.SIGINT if kind == "ctrl-c" else signal.SIGKILL)
    except ProcessLookupError:
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(pipe)
    return code


def results(folder: Path) -> dict[str, object]:
    """Return the contents of results.json without times."""

    def without_times(value: object) -> object:
        if not isinstance(value, dict):
            return value
        names = (name for name in value if not any(part in name for part in IGNORED))
        return {name: without_times(value[name]) for name in names}

    return without_times(json.loads((folder / "results.json").read_text()))  # type: ignore[return-value]


def run_task(task: str, moments: int) -> int:
    """Interrupt a task at all moments; return the number of failures."""
    words = ["train", *TASKS[task].split(), "--output", task, "--overwrite"]
    log, folder, failures, states = Path(f"{task}.log"), Path(task), 0, 0
    finish(words, log)  # fills the cache of compiled programs
    code, times = finish(words, log)
    if code:
        raise AssertionError(f"{task}: {log.read_text()}")
    lengths = np.diff(times)
    shutil.copytree(folder, "whole", dirs_exist_ok=True)
    expected, parameters = results(folder), dict(np.load(PARAMETERS))
    for i in range(moments):
        shutil.rmtree(folder)
        shutil.copytree("whole", folder)
        kind = KINDS[i % len(KINDS)]
        share, step = np.modf(len(lengths) * (i + 0.5) / moments)
        try:
            code = interrupt(words, log, kind, int(step), share * lengths[int(step)])
            message = log.read_text().strip().rpartition("\n")[2]
            has_state = (folder / "state.npz").exists()
            checkpoint._check_sums(folder / checkpoint.CHECKPOINT)
            again = [*words, "--resume"]
            if "to go on: " in message:
                again = shlex.split(message.partition("to go on: ")[2])[1:]
            elif kind != "kill" and code and has_state:
                raise AssertionError(f"no command to go on: {log.read_text()}")
            if code and finish(again, log)[0]:
                raise AssertionError(log.read_text())
            resumed = np.load(PARAMETERS)
            for name, value in parameters.items():
                np.testing.assert_array_equal(value, resumed[name])
            assert results(folder) == expected, "other results"
            left = {path.name for path in folder.iterdir()}
            assert left == {"checkpoint", "learning_curves.png", "results.json"}, left
            outcome = "equal"
        except (AssertionError, ValueError) as error:
            failures += 1
            outcome = f"FAILED: {error}"
        text = f"exit code {code}, {'a' if has_state else 'no'} state: {message[:100]}"
        states += has_state
        moment = f"{step + share:.1f} of {len(lengths)} steps"
        print(f"{task}: {kind} at {moment}: {outcome} ({text})", flush=True)
    print(f"{task}: {states} of {moments} moments had a state to go on with", flush=True)
    return failures


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        jax.config.update("jax_compilation_cache_dir", str(Path(folder, "programs")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        write_data()
        failures = sum(run_task(task, args.moments) for task in args.tasks)
    print(f"{failures} failures")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
