"""The benchmark of message-passing models: its models and what it checks. No time is asserted."""

import sys
from pathlib import Path

import pytest

# The benchmarks belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import bench_edge_region, edge_models, problems, report
from benchmarks.definition import Case, Settings
from benchmarks.harness import select_workloads
from benchmarks.worker import _Jax, _Session

WIDTH = 8


def errors(mode: str, dtype: str = "float32") -> dict[str, float]:
    """Return the error of each candidate of a mode on the graph ``tiny``."""
    settings = Settings("cpu", widths=(WIDTH,), dtypes=(dtype,))
    found = {}
    for family in bench_edge_region.OP.families:
        session = _Session(bench_edge_region.OP, family, settings, _Jax(settings))
        (rows,) = session.prepare([Case("tiny", WIDTH, dtype, mode)])["candidates"].values()
        assert not [row["reason"] for row in rows if row["status"] != "timed"]
        found |= {row["name"]: row["error"] for row in rows}
    return found


@pytest.mark.parametrize("model", ["gated_gcn", "pna", "egnn", "gat"])
def test_a_subgraph_has_the_results_and_gradients_of_the_graph(model, monkeypatch) -> None:
    for module in (bench_edge_region, problems):
        monkeypatch.setattr(module, "CHECKED_NUMBERS", 150 * 32 * WIDTH)  # 150 edges, twice
    graph = bench_edge_region.graphs(None)["tiny"].load()
    part = bench_edge_region.subgraph(graph, WIDTH)
    nodes = part.spaces["node"]
    assert not part.is_whole
    assert 5 <= len(nodes.gradients) < len(nodes.results) < graph.num_nodes
    found = errors(f"{model} gradients")
    assert found.keys() == {report.OURS, bench_edge_region.PLAIN, "jax.checkpoint"}
    assert max(found.values()) < 2e-4


@pytest.mark.parametrize("model", ["painn", "egnn"])
def test_positions_keep_their_digits_beside_half_types(model) -> None:
    assert max(errors(f"{model} gradients", "bfloat16").values()) < 2e-2


def test_a_small_graph_is_checked_whole() -> None:
    graph = bench_edge_region.graphs(None)["tiny"].load()
    case = Case("tiny", WIDTH, "float32", "edge_conv gradients")
    for output in bench_edge_region.problem(graph, case).expected:
        assert output.values.shape == output.shape
        assert output.values.any()


def test_models_graphs_and_shapes_are_named_alike() -> None:
    assert tuple(edge_models.MODELS) == bench_edge_region.MODELS
    for model in edge_models.MODELS:
        shapes = edge_models.row_shapes(model, WIDTH, 2)
        assert tuple(shapes) == edge_models.array_names(model)
    chosen = select_workloads(bench_edge_region.OP, Settings("gpu"))
    assert [w.name for w in chosen] == ["flickr-twin", "ogbn-arxiv-twin", "molecules"]
