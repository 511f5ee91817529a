"""A few random programs of messages; the fuzzer runs as many as it is told to."""

from __future__ import annotations

import pytest
from processes import run_fuzzer

PROGRAMS = 8


@pytest.mark.parametrize("implementation", [None, "xla"], ids=["cpu", "regions"])
def test_random_programs_are_their_reference(request, implementation):
    seed = request.config.option.seed
    output = run_fuzzer("programs", programs=PROGRAMS, seed=seed, implementation=implementation)
    assert f" {PROGRAMS} programs" in output
