"""The benchmark of layers made of programs: its layers and what it checks. No time is asserted."""

import re
import sys
from pathlib import Path

import pytest

# The benchmarks belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import bench_layers, layers
from benchmarks.definition import Case, Settings
from benchmarks.worker import _Jax, _Session, _Torch

WIDTH = 8


@pytest.mark.parametrize("mode", ["pna", "heat", "han", "point_transformer", "gps", "attention"])
def test_all_candidates_have_the_results_and_gradients_of_the_reference(mode) -> None:
    pytest.importorskip("torch_geometric")
    settings = Settings("cpu", widths=(WIDTH,))
    errors = {}
    for family in bench_layers.OP.families[:3]:
        runtime = (_Torch if family.runtime == "torch" else _Jax)(settings)
        session = _Session(bench_layers.OP, family, settings, runtime)
        (rows,) = session.prepare([Case("tiny", WIDTH, "float32", mode)])["candidates"].values()
        assert not [row["reason"] for row in rows if row["status"] != "timed"]
        errors |= {row["name"]: row["error"] for row in rows}
    assert len(errors) == 2 + (mode != "attention")
    assert max(errors.values()) < 5e-4


def test_padded_attention_of_equal_graphs_has_no_mask() -> None:
    graph = bench_layers.molecules(4, least=12, most=12)
    case = Case("molecules-12", WIDTH, "float32", "attention")
    problem = bench_layers.problem(graph, case)
    (candidate,) = bench_layers.plain_jax_candidates(graph, case, problem)
    assert [x.shape for x in candidate.arguments] == [(4, 12, 4, 2)] * 4
    assert [y.shape for y in candidate.expected] == [(4, 12, 4, 2)] * 4


def test_every_layer_made_of_a_program_is_timed() -> None:
    assert tuple(layers.LAYERS) == bench_layers.NAMES
    table = (Path(__file__).parents[1] / "docs" / "flax.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", table.split("| `ProgramConv`")[0], re.MULTILINE)
    first = rows.index("GINEConv")
    assert {layer.kind for layer in layers.LAYERS.values()} == {*rows[first:]}
