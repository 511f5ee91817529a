"""Runs of Python and of the fuzzers in processes of their own, which may crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path


def run_python(*command: str) -> str:
    """Return what Python prints; a failure shows the end of its output."""
    process = subprocess.run(
        [sys.executable, "-P", *command], capture_output=True, text=True, timeout=1200
    )
    assert process.returncode == 0, (
        f"{process.returncode}: {process.stdout[-6000:]}{process.stderr[-6000:]}"
    )
    return process.stdout


def run_together(
    commands: Iterable[Sequence[object]], environments: Iterable[dict[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    """Run Python with several commands at the same time; outputs have both streams."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", *map(str, command)],
            env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        texts = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    ends = zip(processes, texts, strict=True)
    return [subprocess.CompletedProcess([], end.returncode, text) for end, text in ends]


def run_fuzzer(name: str, **options: object) -> str:
    """Return what the fuzzer ``tests/fuzz/{name}.py`` prints, with options that are not None."""
    chosen = (f"--{key}={value}" for key, value in options.items() if value is not None)
    return run_python(str(Path(__file__).parent / "fuzz" / f"{name}.py"), *chosen)
