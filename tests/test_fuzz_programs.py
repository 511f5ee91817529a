"""A few random programs of messages; the fuzzer runs as many as it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / "fuzz" / "programs.py"
PROGRAMS = 12


def test_random_programs_are_their_reference(request: pytest.FixtureRequest) -> None:
    options = f"--programs={PROGRAMS}", f"--seed={request.config.option.seed}"
    done = subprocess.run(
        [sys.executable, "-P", str(FUZZER), *options], capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}"
    assert f" {PROGRAMS} programs" in done.stdout
