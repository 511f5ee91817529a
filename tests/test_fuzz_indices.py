"""Index arrays may hold anything: a few hundred calls of the fuzzer, and what it once found."""

from __future__ import annotations

from pathlib import Path

import emulation
import jax
import pytest
from processes import run_fuzzer, run_python

PLATFORM = "cuda" if emulation.WANTED or jax.default_backend() == "gpu" else "cpu"
CALLS, PROGRAMS = (60, 8) if emulation.WANTED else (400, 12)  # emulated: a thread at a time


def test_garbage_in_every_index_array(request: pytest.FixtureRequest) -> None:
    output = run_fuzzer(
        "indices",
        calls=CALLS,
        programs=PROGRAMS,
        seed=request.config.option.seed,
        implementation=PLATFORM,
    )
    assert f" {CALLS} calls" in output


UNSORTED_ROWS = """
import jax, numpy as np, jax_gnn
rows = np.array([899, -2147483648, 0, 899, 899], np.int32)
cols = np.array([2, 1, -2147483648, 2147483647, 0], np.int32)
graph = jax_gnn.Graph(
    *(np.zeros(901, np.int32), rows, cols),
    *(np.zeros(4, np.int32), cols, rows, rows, rows),
)
weight = np.ones(5, np.float16)

def loss(x):
    return jax_gnn.spmm(graph, x, weight, reduce="max", implementation="{}").sum()

gradient = jax.jit(jax.grad(loss))
for _ in range(200):
    gradient(np.ones((3, 1), np.float16)).block_until_ready()
"""

# Large enough for several tasks, whose rows then go backward.
ROWS_OF_TASKS = """
import jax, numpy as np, jax_gnn
rng = np.random.default_rng(0)
data, size = np.ones((60_000, 8), np.float32), 60_000
reduce = jax.jit(lambda ids: jax_gnn.segment_sum(data, ids, size, True, implementation="{}"))
for _ in range(20):
    ids = np.sort(rng.integers(0, size, len(data)))
    ids[len(ids) // 3 : len(ids) // 2] = rng.choice([0, size - 1, -1, size])
    ids = ids.astype(np.int32)
    first = np.asarray(reduce(ids))
    assert "{}" == "cuda" or first.tobytes() == np.asarray(reduce(ids)).tobytes()
"""


@pytest.mark.parametrize("program", [UNSORTED_ROWS, ROWS_OF_TASKS], ids=["select", "tasks"])
def test_ids_that_are_not_sorted(program: str) -> None:
    imports = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import emulation\n"
    if emulation.WANTED:
        program = program.replace("60_000", "600").replace("range(200)", "range(3)")
    run_python("-c", imports + program.replace("{}", PLATFORM))
