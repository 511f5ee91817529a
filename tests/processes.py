"""Runs of Python and of the fuzzers in processes of their own, which may crash."""

from __future__ import annotations

import subprocess
import sys
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


def run_fuzzer(name: str, **options: object) -> str:
    """Return what the fuzzer ``tests/fuzz/{name}.py`` prints, with options that are not None."""
    chosen = (f"--{key}={value}" for key, value in options.items() if value is not None)
    return run_python(str(Path(__file__).parent / "fuzz" / f"{name}.py"), *chosen)
