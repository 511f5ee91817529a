"""Lines that each package may have. A commit that raises a number says what the lines are worth."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = {"jax_gnn": 57_821, "flax_layers": 20_534, "tests": 52_724, "cpp": 25_698}
SOURCES = {".py", ".cc", ".cu", ".cuh", ".h"}


@pytest.mark.parametrize("package", MAX_LINES)
def test_lines_are_within_the_budget(package):
    files = [path for path in (ROOT / package).rglob("*") if path.suffix in SOURCES]
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert 0 < lines <= MAX_LINES[package]
