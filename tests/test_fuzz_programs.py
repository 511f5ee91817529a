"""A few random programs of messages; the fuzzer runs as many as it is told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FUZZER = Path(__file__).parent / "fuzz" / "programs.py"
PROGRAMS = 12


def test_random_programs_are_their_reference(request):
    options = f"--programs={PROGRAMS}", f"--seed={request.config.option.seed}"
    process = subprocess.run(
        [sys.executable, "-P", str(FUZZER), *options], capture_output=True, text=True, timeout=1200
    )
    assert process.returncode == 0, f"{process.stdout[-2000:]}{process.stderr[-6000:]}"
    assert f" {PROGRAMS} programs" in process.stdout
