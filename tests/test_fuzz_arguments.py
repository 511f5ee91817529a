"""A short run of the fuzzer of arguments; see ``fuzz/arguments.py`` for longer ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).parent / "fuzz" / "arguments.py"


def test_arguments() -> None:
    # Of a fixed seed: what new ones find is for a long run, not for the change at hand.
    # A child of this process of few cases: most of the time goes into compiling them.
    command = [sys.executable, str(FUZZER), "--sets", "300", "--cases", "25", "--seed", "2"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
