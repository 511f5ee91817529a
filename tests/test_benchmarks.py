"""The benchmark harness: what it measures with and what it reports. No time is asserted."""

import itertools
import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# The benchmarks belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import (
    bench_edge_attention,
    bench_gnn,
    bench_hypergnn,
    bench_hypergraph_aggregate,
    bench_relational,
    bench_relational_attention,
    bench_spmm,
    compat,
    compat_models,
    dram,
    epochs,
    minibatch,
    papers,
    problems,
    report,
    sampling,
    scaling,
    timing,
)
from benchmarks import bench_segment_matmul as bench_matmul
from benchmarks import bench_segment_matmul_lists as bench_lists
from benchmarks import bench_segment_reduce as bench_segment
from benchmarks.__main__ import main
from benchmarks.definition import (
    TF32_TOLERANCE,
    TOLERANCE,
    Candidate,
    Case,
    Family,
    Problem,
    Settings,
    load_op,
)
from benchmarks.harness import _case_row, select_workloads
from benchmarks.problems import Expected
from benchmarks.published import _pairs
from benchmarks.worker import Prepared, _Jax, _runtime, _Session, relative_error
from benchmarks.workloads import (
    Groups,
    even,
    giant,
    hub,
    hypergraphs,
    long_tail,
    plain_graphs,
    power_law,
    relational_graphs,
    row_groups,
    uniform_groups,
)
from jax_gnn._core import schedule
from jax_gnn._tuning import timing as profiling

FLUSHES = 4
STATISTICS = {"method", "median_us", "q1_us", "q3_us", "min_us", "samples", "floor_fraction"}


def run_quick(tmp_path: Path, *arguments: str) -> dict:
    path = tmp_path / "report.json"
    command = ["hypergraph_aggregate", "--platform", "cpu", "--quick", "--out", str(path)]
    assert main([*command, *arguments]) == 0
    return json.loads(path.read_text())


def assert_fits_a_screen(picture: Path) -> None:
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    assert 400 <= width <= 1600 and 200 <= height <= 1200, picture


@pytest.fixture
def broken_torch(tmp_path, monkeypatch):
    """A module torch that cannot be imported stands before any that is installed."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this machine')\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_quick_run_reports_every_candidate(tmp_path, capsys, broken_torch):
    document = run_quick(tmp_path, "--families", "plain jax,torch")

    assert {"schema", "op", "title", "date", "commit", "machine", "settings"} <= document.keys()
    assert document["machine"]["copy_bytes_per_second"] > 0
    assert document["families"]["plain jax"]["versions"]["jax"] == jax.__version__
    assert [case["mode"] for case in document["cases"]] == ["fwd", "fwd+bwd"]
    graph = hypergraphs(None)["tiny"].load()
    for case, dense in zip(document["cases"], (2, 4), strict=True):
        indices = 2 * len(graph.node_idx) + graph.num_nodes + graph.num_hyperedges + 2
        scales = graph.num_nodes + graph.num_hyperedges
        numbers = indices + scales + dense * graph.num_nodes * 8
        assert case["bytes"] == 4 * numbers
        for row in case["candidates"]:
            assert row["status"] == "timed", row["reason"]
            assert 0 < row["error"] < 1e-6
            assert row.keys() >= STATISTICS
            assert row["min_us"] <= row["q1_us"] <= row["median_us"] <= row["q3_us"]
    names = {row["name"] for row in document["cases"][1]["candidates"]}
    assert document["baseline"] in names
    assert len(names) == 4

    assert document["families"]["torch"]["status"] == "absent"
    assert "no torch on this machine" in document["families"]["torch"]["reason"]
    shown = capsys.readouterr().out
    assert "no torch on this machine" in shown
    path = tmp_path / "report.json"
    path.with_suffix(".png").unlink()
    assert main(["render", str(path)]) == 0
    assert capsys.readouterr().out.strip() in shown
    assert_fits_a_screen(path.with_suffix(".png"))


def test_a_run_in_which_nothing_can_run_says_why(tmp_path, capsys, broken_torch):
    path = tmp_path / "report.json"
    command = ["hypergraph_aggregate", "--platform", "cpu", "--quick", "--out", str(path)]
    assert main([*command, "--families", "torch"]) == 2
    assert "no torch on this machine" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "nosuch*"], "no graph is called 'nosuch*'"),
        (["--data", "/nonexistent"], "no hypergraph/*.npz under /nonexistent"),
        (["--modes", "fwd,bwd"], "no mode is called 'bwd'; there are: fwd, fwd+bwd"),
        (["--families", "tensorflow"], "no family is called 'tensorflow'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path, capsys):
    command = ["hypergraph_aggregate", "--platform", "cpu", "--out", str(tmp_path / "report.json")]
    assert main([*command, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["hypergraph_aggregate", "epochs", "measure-schedules"])
def test_reports_of_changed_trees_are_refused(command, monkeypatch, capsys):
    monkeypatch.setattr(report, "commit", lambda: "0123456789ab+")
    assert main([command, *["--platform", "cpu"] * (command != "measure-schedules")]) == 2
    assert "files differ from the commit" in capsys.readouterr().err


def test_render_refuses_another_file(tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert main(["render", str(path)]) == 2
    assert "not a benchmark report" in capsys.readouterr().err


def test_list_names_the_ops(capsys):
    assert main(["--list"]) == 0
    assert "hypergraph_aggregate" in capsys.readouterr().out


def example(*candidates: tuple[str, str, float | None]) -> dict:
    rows = [
        {"name": name, "family": family, "status": "timed", "median_us": us}
        if us
        else {"name": name, "family": family, "status": "wrong", "reason": "NaN"}
        for name, family, us in candidates
    ]
    return {"name": "a case", "workload": "g", "mode": "fwd", "candidates": rows}


def test_speedups_are_over_the_fastest_right_peer():
    cases = [
        example((report.OURS, report.OURS, 2.0), ("a", "x", 4.0), ("b", "y", 8.0)),
        example((report.OURS, report.OURS, 1.0), ("a", "x", 9.0), ("b", "y", 4.0)),
        example((report.OURS, report.OURS, 1.0), ("a", "x", 3.0), ("b", "y", None)),
        example(("a", "x", 3.0), ("b", "y", 1.0)),
    ]
    means = report.summary({"cases": cases})
    assert means["best peer"]["fwd"] == pytest.approx((2 * 4 * 3) ** (1 / 3))
    assert means["a"]["fwd"] == pytest.approx((2 * 9 * 3) ** (1 / 3))
    assert means["b"]["fwd"] == pytest.approx((4 * 4) ** (1 / 2))
    assert report.OURS not in means


def large_report() -> dict:
    """Return a report over all graphs and peers, with random times."""
    graphs = [f"graph-{number}-of-a-long-name" for number in range(13)]
    kinds = itertools.product(("fwd", "dX", "dW"), ("float32", "bfloat16"), (32, 64, 128))
    rng = np.random.default_rng(1)

    def row(name: str, dtype: str) -> dict:
        times = dict(zip(("q1_us", "median_us", "q3_us"), sorted(10 + rng.random(3)), strict=True))
        is_timed = name != "peer 7" or dtype == "bfloat16"
        return {
            "name": name,
            "family": name.split()[0],
            "status": "timed" if is_timed else "absent",
            **times,
            "floor_fraction": rng.random(),
        }

    names = (report.OURS, *(f"peer {number}" for number in range(11)))
    cases = [
        {
            "workload": graph,
            "mode": mode,
            "dtype": dtype,
            "width": width,
            "floor_us": rng.random(),
            "candidates": [row(name, dtype) for name in names],
        }
        for graph, (mode, dtype, width) in itertools.product(graphs, kinds)
    ]
    machine = {"device": "a device"}
    return {"title": "Many of all", "machine": machine, "baseline": "peer 0", "cases": cases}


def test_every_picture_fits_a_screen(tmp_path):
    document = large_report()
    document["cases"] = [
        {**case, "mode": f"{case['mode']} {number}", "workload": f"{case['workload']}-{number}"}
        for case in document["cases"]
        for number in range(2)
    ]
    report.plot(document, tmp_path / "twice.png")
    assert_fits_a_screen(tmp_path / "twice.png")


def test_a_picture_shows_what_the_tables_say():
    document = large_report()
    columns = report._columns(document)
    assert len(columns) == 3 * 2 * 3
    means, fastest, floor, times = report._maps(document, columns, report.OURS).values()
    place = columns.index(("dW", "bfloat16", 64))
    case = next(
        case
        for case in document["cases"]
        if (case["mode"], case["dtype"], case["width"]) == columns[place]
    )
    assert fastest[case["workload"]][place] == pytest.approx(
        report.speedup(case, report.best_peer(case))
    )
    ours = report.timed(case)[report.OURS]
    assert floor[case["workload"]][place] == pytest.approx(ours["floor_fraction"])
    assert times[case["workload"]][place] == pytest.approx(ours["median_us"])
    assert means["peer 7"][columns.index(("fwd", "float32", 32))] is None
    # Without other cases, a map has one row.
    document["cases"] = [case]
    columns = report._columns(document)
    *_, floor, _ = report._maps(document, columns, report.OURS).values()
    assert list(floor.values()) == [[pytest.approx(ours["floor_fraction"])]]


def test_geometric_mean():
    assert report.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert report.geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="of nothing"):
        report.geometric_mean([])


def test_relative_error_does_not_pass_nan_or_other_shapes():
    reference = np.ones((2, 3))
    assert relative_error(reference * 1.5, reference) == pytest.approx(0.5)
    assert np.isnan(relative_error(np.full((2, 3), np.nan), reference))
    assert relative_error(np.ones((3, 2)), reference) == np.inf


def check_plain_jax(module, graph, case, problem: Problem) -> None:
    """Every candidate in plain JAX, run as a worker runs it, gives the expected results."""
    runtime = _Jax(Settings("cpu"))
    candidates = list(module.plain_jax_candidates(graph, case, problem))
    assert candidates
    for candidate in candidates:
        assert isinstance(candidate, Candidate)
        outputs, *_ = runtime.prepare(candidate)
        for output, expected in zip(outputs, problem.expected, strict=True):
            assert output.shape == expected.shape
            checked = output if expected.rows is None else runtime.take(output, expected.rows)
            error = relative_error(runtime.to_numpy(checked), expected.values)
            assert error < (problem.tolerance or TOLERANCE[case.dtype]), candidate.name


# Problems, whole and sampled. Neither plain JAX nor this library shares code with their references.


def uneven_groups(_):
    """Groups of few rows and of many, one of which is empty."""
    return {"tiny": SimpleNamespace(load=lambda: Groups(np.array([5, 0, 41, 1, 253], np.int32)))}


# Modules with the graphs and the width of their problems.
PROBLEMS = {
    bench_hypergraph_aggregate: (hypergraphs, 3),
    bench_segment: (plain_graphs, 3),
    bench_spmm: (plain_graphs, 3),
    bench_edge_attention: (plain_graphs, 3),
    bench_matmul: (uneven_groups, 3),
    bench_lists: (uneven_groups, 3),
    bench_relational: (relational_graphs, 3),
    bench_relational_attention: (relational_graphs, 8),
}


@pytest.fixture(params=["all of it", "a part"])
def tiny(request, monkeypatch):
    """A graph whose features come from a pool that repeats; perhaps too large to check whole."""
    # Fewer rows than the graph has nodes.
    monkeypatch.setattr(problems, "POOL_ROWS", 7)
    for module in (problems, *PROBLEMS):
        for name in ("features", "_weights"):
            if hasattr(getattr(module, name, None), "__wrapped__"):  # not kept
                monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
        if request.param == "a part" and hasattr(module, "CHECKED_NUMBERS"):
            monkeypatch.setattr(module, "CHECKED_NUMBERS", 500)
    return plain_graphs(None)["tiny"].load()


@pytest.mark.parametrize(
    ("module", "mode"), [(module, mode) for module in PROBLEMS for mode in module.OP.modes]
)
def test_plain_jax_agrees_with_the_reference(tiny, module, mode):
    graphs, width = PROBLEMS[module]
    graph, case = graphs(None)["tiny"].load(), Case("tiny", width, "float32", mode)
    problem = module.problem(graph, case)
    assert problem.expected[0].values.size > 0
    # A reference of zeros would let any candidate pass that computes nothing.
    assert all(expected.values.any() for expected in problem.expected if expected.values.size)
    check_plain_jax(module, graph, case, problem)


def test_samples_of_segments_have_the_largest_and_no_empty_one(tiny):
    problem = bench_segment.problem(tiny, Case("tiny", 3, "float32", "sum"))
    sizes, segments = np.bincount(tiny.rows), problem.expected[0].rows
    assert sizes.argmax() in segments
    assert (sizes[segments] > 0).all()


def test_the_gradient_to_a_vector_is_not_checked_where_that_takes_too_long(tiny, monkeypatch):
    monkeypatch.setattr(bench_edge_attention, "CHECKED_NUMBERS", 100)
    case = Case("tiny", 3, "float32", "gatv2 h4 fwd+bwd")
    problem = bench_edge_attention.problem(tiny, case)
    *gradients, vector = problem.expected
    assert len(vector.rows) == 0
    assert all(len(e.rows) >= 1 for e in gradients)
    check_plain_jax(bench_edge_attention, tiny, case, problem)


PUBLISHED = {
    "edge_attention": {"turbo_gnn", "dgnn", "df_gnn"},
    "spmm": {"geot"},
    "segment_reduce": {"geot", "pyg-lib"},
    "hypergraph_aggregate": {"hypergef"},
    "segment_matmul": {"fasten", "pyg-lib"},
}


@pytest.mark.parametrize("op", PUBLISHED)
def test_published_kernels_are_absent_without_their_checkout(tmp_path, op):
    families = {f.name: f for f in load_op(op).families if f.checkout}
    assert set(families) == PUBLISHED[op]
    for family in families.values():
        (tmp_path / family.checkout).touch()  # a file is no checkout
        for published in (None, tmp_path):
            with pytest.raises(FileNotFoundError, match=f"no checkout {family.checkout} in"):
                _runtime(family, Settings("gpu", published=published))


def test_candidates_of_a_checkout_get_its_path(tmp_path):
    (tmp_path / "Some").mkdir()
    got = []
    family = Family("some", "jax", (), lambda *a: got.append(a) or [], checkout="Some")
    session = _Session(
        bench_edge_attention.OP, family, Settings("cpu", published=tmp_path), HostRuntime()
    )
    case = Case("tiny", 3, "float32", "gat h1 fwd")
    assert session.prepare([case])["candidates"][case.name] == []
    ((checkout, _, *arguments),) = got
    assert checkout == tmp_path / "Some"
    assert arguments[0] == case


@pytest.mark.parametrize(
    "peer, mode, width, dtype, reasons",
    [
        ("turbo_gnn", "gat h1 fwd", 64, "float32", {}),
        ("turbo_gnn", "gatv2 h8 fwd", 8, "float32", {"Turbo-GNN": "width"}),
        ("turbo_gnn", "dot h1 fwd+bwd", 64, "float64", {"Turbo-GNN": "dtype"}),
        ("dgnn", "dot h1 fwd", 64, "float32", {}),
        ("dgnn", "gat h1 fwd+bwd", 64, "bfloat16", {"dgNN": "dtype"}),
        ("df_gnn", "gatv2 h1 fwd", 64, "float32", {}),
        ("df_gnn", "dot h1 fwd", 64, "float16", {"DF-GNN csr": "dtype", "DF-GNN hyper": "dtype"}),
        ("df_gnn", "dot h1 fwd+bwd", 64, "float32", {"DF-GNN hyper": "shared memory"}),
    ],
)
def test_published_kernels_are_skipped_where_there_is_none(peer, mode, width, dtype, reasons):
    # A row has more edges than scores fit the shared memory of a block.
    graph = hub(20_000)  # more edges of a row than scores fit a block
    (family,) = (f for f in bench_edge_attention.OP.families if f.name == peer)
    case = Case("hub", width, dtype, mode)
    problem = Problem(dict.fromkeys(["dst", "src", "value", "cotangent"]), (), np.dtype(dtype))
    skipped = {c.name: c.skip for c in family.candidates(Path(), graph, case, problem)}
    assert skipped.keys() == reasons.keys()
    assert all(reason in skipped[name] for name, reason in reasons.items())


@pytest.mark.parametrize(
    "op, dtype, width, name",
    [
        ("spmm", "float64", 32, "GeoT"),
        ("segment_reduce", "bfloat16", 32, "GeoT"),
        ("segment_reduce", "float32", 32, None),  # a maximum
        ("hypergraph_aggregate", "float64", 32, "HyperGef"),
        ("hypergraph_aggregate", "float32", 33, "HyperGef"),
        ("segment_matmul", "bfloat16", 32, "FASTEN"),
    ],
)
def test_published_sums_and_products_are_skipped_where_there_is_none(op, dtype, width, name):
    family = next(f for f in load_op(op).families if f.checkout)
    mode = {("segment_reduce", None): "max", ("segment_reduce", "GeoT"): "sum"}.get((op, name))
    case = Case("some", width, dtype, mode or "fwd")
    skipped = list(family.candidates(Path(), None, case, None))
    assert [candidate.name for candidate in skipped] == ([name] if name else [])
    assert all(candidate.skip for candidate in skipped)


@pytest.mark.parametrize("size", [1, 2, 6, 100])
def test_partitions_of_a_hyperedge_are_paired(size):
    """The pairs are those of HyperGef's sequential balancer."""
    indptr = np.array([0, 5, 5, 6, 19], np.int32)
    keys, row, start, ends, first = [], [], [], [], 0
    for hyperedge, (begin, stop) in enumerate(itertools.pairwise(indptr.tolist())):
        keys += range(begin, stop, size)
        count = -(-(stop - begin) // size)
        for written, source in itertools.product(range(first, first + count), repeat=2):
            row.append(hyperedge)
            start.append(source)
            ends.append(written)
        first += count
    pairs = _pairs(indptr, -(-np.diff(indptr) // size), size)
    for got, want in zip(pairs, ([*keys, 19], row, start, ends), strict=True):
        assert got.dtype == np.int32
        assert got.tolist() == want


def test_rows_beside_every_border_are_checked():
    groups = Groups(np.array([0, 5, 0, 4, 6, 0], np.int32))
    checked = bench_matmul._sample_rows(groups, 1000)
    assert set(checked) >= {4, 5, 8, 9}
    assert checked.max() < groups.num_rows


def test_peers_that_need_too_much_memory_are_skipped_and_say_so(tmp_path, monkeypatch):
    groups = uniform_groups(1900, 1_000_000)
    case = Case("g", 64, "float32", "fwd")
    problem = replace(
        bench_matmul.problem(uniform_groups(3, 30), case), inputs={"lhs": None, "rhs": None}
    )
    skipped = {c.name: c.skip for c in bench_matmul.plain_jax_candidates(groups, case, problem)}
    assert set(skipped) == {"ragged_dot", "gathered einsum"}
    assert all("more than 2.5 GB" in reason for reason in skipped.values())

    family = Family("some", "jax", (), lambda *_: [Candidate("a", None, (), skip="too large")])
    session = _Session(bench_matmul.OP, family, Settings("cpu"), HostRuntime())
    case = replace(case, workload="tiny")
    (row,) = session.prepare([case])["candidates"][case.name]
    assert (row["status"], row["reason"]) == ("skipped", "too large")
    assert session.measure([case.name]) == {}


def test_the_ablation_compiles_each_candidate_under_its_schedule(monkeypatch):
    op = load_op("segment_matmul_ablation")
    groups = row_groups(None)["tiny"].load()
    chosen = []
    choose = schedule.Family.choose
    monkeypatch.setattr(
        schedule.Family, "choose", lambda *a, **k: chosen.append(choose(*a, **k)) or chosen[-1]
    )
    runtime = _Jax(Settings("cpu"))
    (family,) = (family for family in op.families if family.name == "schedules")
    for mode in op.modes:
        case = Case("tiny", 4, "float32", mode)
        problem = op.problem(groups, case)
        names = set()
        for candidate in family.candidates(groups, case, problem):
            names.add(candidate.name)
            chosen.clear()
            assert runtime.prepare(candidate).scratch_bytes is not None
            assert set(chosen) == {candidate.schedule}
        assert op.baseline in names
        assert len(names) == {"fwd": 8, "dW": 3}[mode]


MODELS = [
    *((bench_gnn, plain_graphs, model) for model in bench_gnn.PARAMETERS),
    *((bench_hypergnn, hypergraphs, model) for model in bench_hypergnn.MODELS),
]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(("bench", "workloads", "model"), MODELS)
def test_models_in_plain_jax_agree_with_the_reference(bench, workloads, model, mode):
    graph = workloads(None)["tiny"].load()
    case = Case("tiny", 5, "float32", f"{model} {mode}")
    check_plain_jax(bench, graph, case, bench.problem(graph, case))


@pytest.mark.parametrize(("bench", "workloads", "model"), MODELS)
def test_a_training_step_shows_wrong_gradients(bench, workloads, model):
    graph = workloads(None)["tiny"].load()
    _, updated = bench.reference(graph, model, 5)
    for before, after in zip(bench.parameters(model, 5), updated, strict=True):
        for name, value in before.items():
            assert relative_error(value, after[name]) > 10 * TF32_TOLERANCE


@pytest.mark.parametrize(
    "op",
    [
        "segment_reduce",
        "spmm",
        "gnn",
        "hypergnn",
        "segment_matmul",
        "segment_matmul_ablation",
        "segment_matmul_lists",
        "hypergraph_ablation",
        "relational",
        "relational_attention",
        "edge_attention",
        "program",
        "edge_region",
        "primitives",
    ],
)
def test_this_librarys_candidates_are_right(op):
    # In this process, untimed; test_quick_run_reports_every_candidate has a worker and a report.
    definition, settings = load_op(op), Settings("cpu", widths=(8,))
    cases = definition.cases("tiny", settings)
    assert {case.mode for case in cases} == set(definition.modes)
    for family in definition.families:
        if family.name.startswith(report.OURS):
            session = _Session(definition, family, settings, _Jax(settings))
            for rows in session.prepare(cases)["candidates"].values():
                assert rows and not [row["reason"] for row in rows if row["status"] != "timed"]


def test_floors_count_inputs_and_outputs_once():
    graph = plain_graphs(None)["tiny"].load()
    nodes, edges = graph.num_nodes, graph.num_edges
    for op, mode, numbers in (
        ("segment_reduce", "max", edges * 8 + edges + nodes * 8),
        ("segment_reduce", "softmax", 2 * edges * 8 + edges),
        ("segment_reduce", "softmax fwd+bwd", 4 * edges * 8 + edges),
        ("spmm", "fwd", 2 * nodes * 8 + 2 * edges + nodes + 1),
        ("spmm", "fwd+bwd", 4 * nodes * 8 + 3 * edges + nodes + 1),
    ):
        problem = load_op(op).problem(graph, Case("tiny", 8, "float32", mode))
        assert problem.num_bytes == 4 * numbers


def test_floors_of_attention_count_rows_of_edges():
    graph = plain_graphs(None)["tiny"].load()
    nodes, edges, row = graph.num_nodes, graph.num_edges, 4 * 8
    ids = edges + nodes + 1
    for mode, numbers in (
        ("gat h4 fwd", edges * (row + 8) + nodes * (4 + row)),
        ("gat h4 fwd+bwd", 2 * edges * (row + 8) + nodes * (4 + 4 + 4 + 3 * row)),
        ("gatv2 h4 fwd", edges * row + nodes * 2 * row + row),
        ("gatv2 h4 fwd+bwd", 4 * edges * row + nodes * 5 * row + 2 * row),
        ("dot h4 fwd", 2 * edges * row + nodes * 2 * row),
        ("dot h4 fwd+bwd", 5 * edges * row + nodes * 6 * row),
    ):
        problem = bench_edge_attention.problem(graph, Case("tiny", 8, "float32", mode))
        assert problem.num_bytes == 4 * (numbers + ids)


def test_floors_of_products_are_bytes_or_flops():
    groups = row_groups(None)["tiny"].load()
    rows = 300
    for mode in bench_matmul.MODES:
        case = Case("tiny", 8, "float32", mode)
        problem = bench_matmul.problem(groups, case)
        assert problem.num_bytes == 4 * (2 * rows * 8 + 7 * 64 + 7)
        assert problem.flops == 2 * rows * 64
    work = {"bytes": problem.num_bytes, "flops": problem.flops}
    for bandwidth, rate in ((1e9, 1e15), (1e15, 1e9)):
        machine = {"copy_bytes_per_second": bandwidth, "flops_per_second": {"float32": rate}}
        row = _case_row(case, work, machine, [])
        assert row["floor_us"] == pytest.approx(
            max(problem.num_bytes / bandwidth, problem.flops / rate) * 1e6
        )


def test_modes_and_widths_are_chosen():
    op = load_op("segment_reduce")
    cases = op.cases("g", Settings("gpu"))
    assert {case.width for case in cases if case.mode == "sum"} == set(op.widths["gpu"])
    assert {case.width for case in cases if case.mode == "softmax"} == {4, 16, 32}
    cases = op.cases("g", Settings("gpu", widths=(64,), modes=("softmax",)))
    assert [(case.width, case.mode) for case in cases] == [(64, "softmax")]


def test_large_graphs_run_on_a_gpu_or_by_name():
    op = load_op("spmm")
    on_gpu = {w.name for w in select_workloads(op, Settings("gpu"))}
    on_cpu = {w.name for w in select_workloads(op, Settings("cpu"))}
    assert on_gpu - on_cpu == {"reddit2-twin", "reddit2-twin-cols"}
    named = select_workloads(op, Settings("cpu", patterns=("reddit2-twin",)))
    assert [w.name for w in named] == ["reddit2-twin"]


# Timers. The profile of a GPU is written by hand, as XLA writes it.

PROFILE = """
planes {{
  name: "/device:GPU:0"
  lines {{ name: "Stream #7(Compute)" timestamp_ns: 100 {compute} }}
  lines {{ name: "Stream #9(MemcpyD2D)" timestamp_ns: 100 {copies} }}
  lines {{ name: "CUPTI overhead" timestamp_ns: 100 {overhead} }}
  event_metadata {{ key: 1 value {{ id: 1 name: "loop_xor_fusion" }} }}
  event_metadata {{ key: 2 value {{ id: 2 name: "gather" }} }}
  event_metadata {{ key: 3 value {{ id: 3 name: "MemcpyD2D" }} }}
}}
planes {{ name: "/host:CPU" lines {{ name: "Stream #0" {overhead} }} }}
"""


def events(*spans: tuple[int, int, int]) -> str:
    """Events as (metadata id, begin, end) in nanoseconds."""
    return " ".join(
        f"events {{ metadata_id: {kind} offset_ps: {begin}000 duration_ps: {stop - begin}000 }}"
        for kind, begin, stop in spans
    )


def profile(compute: str, copies: str = "", overhead: str = "") -> jax.profiler.ProfileData:
    text = PROFILE.format(compute=compute, copies=copies, overhead=overhead)
    return jax.profiler.ProfileData.from_text_proto(text)


def flushes(begin: int) -> list[tuple[int, int, int]]:
    """Overwrites, and the read after them."""
    overwrites = [(1, begin + 10 * i, begin + 10 * i + 9) for i in range(FLUSHES)]
    return [*overwrites, (2, begin + 10 * FLUSHES, begin + 10 * FLUSHES + 5)]


def test_span_of_a_call_is_from_its_first_kernel_to_its_last():
    # A kernel of a call may have the name of a flush.
    compute = [*flushes(0), (2, 50, 60), (1, 61, 64), (2, 70, 75), *flushes(100), (2, 200, 203)]
    record = profile(events(*compute), events((3, 62, 90)), events((2, 0, 9000)))
    kernels = profiling.profiled_kernels(record)
    assert len(kernels) == len(compute) + 1
    assert [k.begin for k in kernels] == sorted(k.begin for k in kernels)
    calls = profiling.call_kernels(kernels, {"loop_xor_fusion": 4}, FLUSHES, calls=2)
    assert list(map(profiling.span, calls)) == pytest.approx([40e-9, 3e-9])


@pytest.mark.parametrize(
    "compute",
    [
        [*flushes(0), (2, 50, 60), *flushes(100)],  # the second call left no kernel
        [*flushes(0), (2, 50, 60), *flushes(100)[1:], (2, 200, 203)],  # a flush is missing
        [*flushes(0), (2, 50, 60), (1, 70, 80), *flushes(100), (2, 200, 203)],  # a call has an xor
    ],
)
def test_a_profile_that_does_not_fit_is_an_error(compute):
    kernels = profiling.profiled_kernels(profile(events(*compute)))
    with pytest.raises(RuntimeError, match="expected 2 calls"):
        profiling.call_kernels(kernels, {"loop_xor_fusion": 4}, FLUSHES, calls=2)


def test_profiler_timer_reads_the_profile_that_jax_writes():
    # A CPU has no GPU streams: the real record is found and read, and refused by its content.
    with pytest.raises(RuntimeError, match=r"no GPU activity in the profile.*/host:CPU"):
        profiling.ProfilerTimer(flushes=1, flush_bytes=4096)


def test_timers_run_the_calls_in_turn(monkeypatch):
    order: list[str] = []
    monkeypatch.setattr(timing, "TURN", 0.0)
    timer = timing.WallTimer(lambda name: order.append(name))
    # Candidates take turns, so that a slow minute is shared by all.
    samples = timer.measure({"a": lambda: "a", "b": lambda: "b"}, repeats=2)
    assert order == ["a", "a", "b", "b"] * 2
    assert {name: len(of) for name, of in samples.items()} == {"a": 2, "b": 2}


def test_queue_timer_subtracts_the_empty_queue(monkeypatch):
    monkeypatch.setattr(timing, "FLUSH_BYTES", 4096)
    monkeypatch.setattr(timing.QueueTimer, "BLOCK", 64)
    timer = timing.QueueTimer()
    seconds = iter([5.0, 13.0, 4.0, 6.0])
    monkeypatch.setattr(timer, "_queue", lambda call: next(seconds))
    assert timer.measure({"a": lambda: None}, repeats=2) == {"a": [1.0, 0.25]}
    monkeypatch.undo()
    calls = []
    assert timer._queue(lambda: calls.append(1) or jnp.zeros(1)) > 0
    assert len(calls) == timer.QUEUED


# Workloads.


def test_twins_are_repeatable_and_as_described():
    first, second = (long_tail(500, 300, max_size=100, exponent=1.3) for _ in range(2))
    np.testing.assert_array_equal(first.node_idx, second.node_idx)
    assert first.hyperedge_degrees.max() == 100
    assert first.hyperedge_degrees.min() >= 2
    keys = first.hyperedge_idx.astype(np.int64) * first.num_nodes + first.node_idx
    assert (np.diff(keys) > 0).all()
    node_idx, _ = first.by_node
    assert (np.diff(node_idx) >= 0).all()
    assert giant(50, 20, mean_size=3.0).hyperedge_degrees[0] == 50


def test_real_graphs_are_read_by_path(tmp_path):
    folder = tmp_path / "hypergraph"
    folder.mkdir()
    np.savez(
        folder / "toy.npz",
        num_nodes=3,
        num_hyperedges=2,
        node_idx=np.int32([2, 0, 1]),
        hyperedge_idx=np.int32([1, 0, 1]),
    )
    graph = hypergraphs(tmp_path)["toy"].load()
    assert graph.node_idx.tolist() == [0, 1, 2]
    assert graph.hyperedge_idx.tolist() == [0, 1, 1]
    assert graph.node_degrees.tolist() == [1, 1, 1]


@pytest.mark.parametrize("in_columns", [False, True])
def test_plain_twins_are_repeatable_and_as_described(in_columns):
    first, second = (power_law(500, 4_000, 0.6, in_columns=in_columns) for _ in range(2))
    np.testing.assert_array_equal(first.cols, second.cols)
    assert first.num_nodes == 500
    assert first.num_edges == len(first.cols) == 4_000
    assert (np.diff(first.rows * 500 + first.cols) >= 0).all()
    assert (first.rows != first.cols).all()
    opposite = first.transposed
    np.testing.assert_array_equal(opposite.rows, first.cols[first.order])
    np.testing.assert_array_equal(opposite.cols, first.rows[first.order])
    for graph in (first, opposite):
        np.testing.assert_array_equal(np.diff(graph.indptr), np.bincount(graph.rows, minlength=500))
    # Only one side of a power law has large degrees.
    largest = [np.diff(graph.indptr).max() for graph in (first, opposite)]
    assert largest[in_columns] > 100 > 30 > largest[not in_columns]


def test_half_of_all_edges_lead_to_a_hub():
    graph = hub(50)
    assert graph.num_edges == 100
    assert set(graph.cols[graph.rows == 0]) == set(range(50))
    assert np.diff(graph.indptr)[1:].max() < 10
    (workload,) = select_workloads(load_op("edge_attention"), Settings("cpu", patterns=("hub",)))
    assert not workload.on_request


def test_rows_are_even_but_for_a_hub():
    graph, with_hub = (even(300, 6, 0.75, with_hub=hub) for hub in (False, True))
    assert set(np.diff(graph.indptr)) == {6}
    assert np.diff(with_hub.indptr)[0] == 900 + 3
    assert set(np.diff(with_hub.indptr)[1:]) == {3}
    np.testing.assert_array_equal(np.sort(graph.cols), np.sort(with_hub.cols))
    assert np.bincount(graph.cols).max() > 60


def test_real_plain_graphs_replace_their_twins(tmp_path):
    folder = tmp_path / "homogeneous"
    folder.mkdir()
    np.savez(folder / "cora.npz", num_nodes=3, src=np.int32([2, 0, 1]), dst=np.int32([1, 1, 0]))
    graphs = plain_graphs(tmp_path)
    assert "cora-twin" in plain_graphs(None)
    assert "cora-twin" not in graphs
    graph = graphs["cora"].load()
    assert graph.rows.tolist() == [0, 1, 1]
    assert graph.cols.tolist() == [1, 0, 2]
    assert graph.indptr.tolist() == [0, 1, 3, 3]


def test_sizes_of_groups_are_read_and_drawn(tmp_path):
    folder = tmp_path / "relational"
    folder.mkdir()
    bounds = np.array([0, 3, 3, 10])
    np.savez(folder / "some_segment_sizes.npz", toy_segment_ptr=bounds)
    workloads = row_groups(tmp_path)
    groups = workloads["toy"].load()
    assert groups.sizes.tolist() == [3, 0, 7]
    assert groups.indptr.tolist() == bounds.tolist()
    assert groups.ids.tolist() == [0] * 3 + [2] * 7
    first, second = (workloads["uniform-50-100k"].load().sizes for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.sum() == 100_000
    assert 1_500 < first.min() < first.max() < 2_500
    with pytest.raises(FileNotFoundError, match="no relational"):
        row_groups(folder)
    names = {
        platform: {w.name for w in select_workloads(bench_matmul.OP, Settings(platform))}
        for platform in ("cpu", "gpu")
    }
    assert names["gpu"] - names["cpu"] == {"uniform-100", "uniform-700", "uniform-1900"}


# Checking before timing.


class HostRuntime:
    """Stands for JAX or torch: runs a candidate as it is."""

    compile_threads, repeats, timer = 2, 1, timing.WallTimer(lambda outputs: outputs)

    def enter_thread(self) -> None:
        pass

    def prepare(self, candidate):
        return Prepared(candidate.function(), {"host": candidate.function})

    def to_numpy(self, output):
        return output


def test_only_right_candidates_are_timed():
    reference = np.arange(6.0).reshape(2, 3)

    def out_of_memory():
        raise MemoryError("not enough\nmemory")

    functions = {
        "right": lambda: (reference * (1 + 1e-7),),
        "wrong": lambda: (reference * (1 + 1e-3),),
        "nan": lambda: (reference * np.nan,),
        "too few": lambda: (),
        "failing": out_of_memory,
    }
    family = Family(
        "some", "jax", (), lambda *_: [Candidate(n, f, ()) for n, f in functions.items()]
    )
    op = replace(
        bench_hypergraph_aggregate.OP,
        problem=lambda graph, case: Problem({}, (Expected.whole(reference),), np.dtype("float32")),
    )
    session = _Session(op, family, Settings("cpu"), HostRuntime())
    cases = [Case("tiny", width, "float32", "fwd") for width in (1, 2)]
    answer = session.prepare(cases)
    for case in cases:
        assert answer["work"][case.name] == {"bytes": reference.size * 4, "flops": 0}
    for case in cases:
        rows = {row["name"]: row for row in answer["candidates"][case.name]}
        statuses = [rows[name]["status"] for name in functions]
        assert statuses == ["timed", "wrong", "wrong", "failed", "failed"]
        assert "1.0e-03 exceeds 1e-05" in rows["wrong"]["reason"]
        assert rows["failing"]["reason"] == "MemoryError: not enough"
    assert list(session.measure([cases[1].name])) == [(cases[1].name, "right", "host")]


# --- Epochs ---------------------------------------------------------------------------------------


def test_molecules_with_rings_have_more_edges() -> None:
    for edges, x, label in epochs.molecules(50):
        assert (edges.shape[1] > 2 * (len(x) - 1)) == label
        assert sorted(map(tuple, edges.T)) == sorted(map(tuple, edges[::-1].T))
        assert set(edges.ravel()) == set(range(len(x)))


@pytest.mark.parametrize("ahead", [False, True])
def test_an_epoch_takes_every_graph_once(monkeypatch: pytest.MonkeyPatch, ahead: bool) -> None:
    if ahead:
        pytest.importorskip("grain")
    monkeypatch.setattr(epochs, "LAYERS", 1)  # so that it compiles soon
    monkeypatch.setattr(epochs, "STEPS", 2)
    dataset = epochs.molecules(40)
    took = epochs._ours(dataset, 16, ahead=ahead)(np.arange(40))
    assert 0 < took.batches + took.calls <= took.seconds
    assert 0 <= took.right <= 1 and round(took.right * 40, 6).is_integer()


# --- Others' models -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_traced", [False, True])
def test_a_model_gives_the_same_with_this_library_in_it(is_traced: bool) -> None:
    name = "MoE, two ragged_dot"
    settings = Settings(platform="cpu", rounds=1)
    cases = compat._measured(name, compat_models.MODELS[name], settings, 0.01, is_traced)
    assert [case["mode"] for case in cases] == ["forward", "step"]
    for case in cases:
        ours, lifted, recomputed, _ = case["candidates"]
        assert lifted["name"] == "jax_gnn.lift" and lifted["error"] <= 1e-5
        assert ours["error"] <= 1e-5 and ours["details"]["replaced"] >= 5
        assert recomputed["family"] == "original, jax.checkpoint" and recomputed["error"] <= 1e-5
        for row in case["candidates"]:
            assert row["status"] == "timed" and row["median_us"] > 0 and row["samples"] == 1
            assert row["details"]["compile s"] > 0 and row["details"]["MB"] >= 0


# --- Commands of another kind ---------------------------------------------------------------------


def test_report_of_a_command(tmp_path: Path) -> None:
    absent = {"status": "absent", "reason": "no module"}
    steps = [
        report.candidate(report.OURS, [0.02, 0.03, 0.04], error=2e-7, details={"kernels": 3}),
        report.candidate("other", [0.3], family="other", details={"share": 0.12345}),
        report.candidate("wrong", [0.03], family="wrong", wrong="other blocks"),
        report.candidate("missing", family="missing", **absent),
    ]
    cases = [report.case("some graphs", "step", steps), report.case("a graph", "epoch", steps[3:])]
    machine = {"device": "a device", "cores": 2, "cpu": "a CPU", "load_average": 1.0}
    machine |= {"versions": {"jax": "1"}, "driver": None, "copy_bytes_per_second": 1e9}
    document = report.document("some", "Some", machine, cases, about="As it is.", baseline="other")
    path = tmp_path / "report.json"
    report.write(document, path)
    assert report.read(path) == document
    text = report.markdown(document).replace("  ", "").replace("| ", "|").replace(" |", "|")
    assert "Times in ms" in text and "\nAs it is.\n" in text
    assert "|some graphs step|30.0|5.0|2e-07|other|300.0|10.00|300.0|10.00|" in text
    assert "|other|10.00|" in text and "floor" not in text
    assert "|some graphs step|jax_gnn|3|-|" in text and "|other|-|0.123|" in text
    assert "- wrong on some graphs step: wrong, other blocks" in text
    assert "- missing on some graphs step and 1 more cases: absent, no module" in text
    assert_fits_a_screen(path.with_suffix(".png"))


def no_peer(*_: object) -> dict:
    return report.candidate("PyG", family="PyG", status="absent", reason="no module")


def no_module(*_: object) -> None:
    raise ImportError("no module")


@pytest.mark.parametrize(
    ("command", "options", "timed", "constants"),
    [
        (
            "epochs",
            ["--graphs", "40", "--batch", "16", "--rounds", "1"],
            {("epoch", report.OURS)},
            {epochs: {"CANDIDATES": {report.OURS: None}, "LEARNT": 0}},
        ),
        (
            "compat",
            ["--scale", "0.01", "--rounds", "1", "--cases", "moe*"],
            {(mode, name) for mode in ("forward", "step") for name in (report.OURS, "original")},
            {},
        ),
        (
            "minibatch",
            ["--scale", "0.0005", "--rounds", "1"],
            {(mode, name) for mode in ("step", "model") for name in (report.OURS, "plain jax")},
            {minibatch: {"BATCH": 16, "FANOUTS": (2,), "LAYERS": 1, "HIDDEN": 8, "_pyg": no_peer}},
        ),
        (
            "typed",
            ["--cases", "tiny rgat h2", "--widths", "8", "--epochs", "4", "--families", "jax_gnn"],
            {(f"rgat h2 8 {precision}", report.OURS) for precision in ("high", "highest")},
            {},
        ),
        (
            "sampling",
            ["--graphs", "tiny", "--rounds", "1"],
            {("tree", name) for name in (report.OURS, *sampling.PEERS[:2], "draw alone")}
            | {("walks", report.OURS)},
            {sampling: {"SEEDS": 16, "FANOUTS": ((3,),), "STEPS": 2, "_pyg": no_module}},
        ),
        (
            "scaling",
            [
                *("--scale", "0.0001", "--rounds", "1", "--devices", "2"),
                *("--cases", ",".join((*scaling.CASES, "layers"))),
            ],
            {
                ("2 devices", name)
                for name in (report.OURS, scaling.ONE, scaling.AUTOMATIC, scaling.PLAIN)
            }
            | {("2 devices", name + scaling.ON_HOST) for name in (report.OURS, scaling.ONE)}
            | {("epoch", name) for name in (report.OURS, scaling.ONE)}
            | {
                (mode, name)
                for mode in ("forward", "gradients")
                for name in (report.OURS, scaling.RAGGED_DOT)
            },
            {
                scaling: {"WIDTH": 8, "LAYER_WIDTH": 8, "LAYERS": 1, "STEPS": 1}
                | {"MODELS": ("rgcn",), "METHODS": ("auto",)}
                | {"WIDE": 16, "FEATURES": 8, "EXPERTS": 4, "BATCHES": 4},
                epochs: {"LAYERS": 1, "HIDDEN": 8},
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_command(command, options, timed, constants, tmp_path, monkeypatch, capsys) -> None:
    for module, values in constants.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    path = tmp_path / "report.json"
    assert main([command, "--platform", "cpu", "--out", str(path), *options]) == 0
    shown = capsys.readouterr().out
    document = report.read(path)
    timed_rows = {(case["mode"], name) for case in document["cases"] for name in report.timed(case)}
    assert timed <= timed_rows
    assert main(["render", str(path)]) == 0
    assert capsys.readouterr().out.strip() in shown
    assert_fits_a_screen(path.with_suffix(".png"))


def test_a_model_that_is_none_is_named(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compat", "--platform", "cpu", "--out", str(tmp_path / "report.json")]
    assert main([*command, "--cases", "none of"]) == 2
    assert "no model is called 'none of'" in capsys.readouterr().err


def test_counters_of_ncu_are_told_apart_by_marks():
    kernels = [
        ("erfinv_kernel", 9),
        ("sum", 1_000),
        ("scale", 20),
        ("erfinv_kernel", 9),
        ("sum", 7),
    ]
    rows = [
        f'"{i}","1","{name}","{metric}","byte","{value:,}"'
        for i, (name, value) in enumerate(kernels)
        for metric in ("dram__bytes_read.sum", "gpu__time_duration.sum")
    ]
    head = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    table = "\n".join([head, *rows])
    calls = dram.kernels_of_calls(f"==PROF== Connected\n{table}")
    assert [[kernel["dram__bytes_read.sum"] for kernel in call] for call in calls] == [
        [1000, 20],
        [7],
    ]
    with pytest.raises(ValueError, match="sum comes before the first mark"):
        dram.kernels_of_calls("\n".join([head, *rows[2:]]))
    with pytest.raises(ValueError, match="profiled no kernel"):
        dram.kernels_of_calls("==WARNING== No kernels were profiled.")


def test_throughput_of_kernels_by_ncu(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = "erfinv_kernel", "void jax_gnn::cuda::<unnamed>::sums<int>(Csr<int>)", "fusion_1"
    values = 4_000, 8_000, 2_000, 40, 30, 20, 10  # nanoseconds, bytes, shares of the peak
    lines = ['"ID","Kernel Name","Metric Name","Metric Value"'] + [
        f'"{i}","{name}","{metric}","{value}"'
        for i, name in enumerate(kernels)
        for metric, value in zip(dram.THROUGHPUT, values, strict=True)
    ]

    def ncu(command: list[str], **_: object) -> SimpleNamespace:
        Path(command[command.index("--log-file") + 1]).write_text("\n".join(lines))
        return SimpleNamespace(stdout=f'{dram._CALL}["aifb", "rgcn h1 training"]\n')

    monkeypatch.setattr(dram, "subprocess", SimpleNamespace(run=ncu, CalledProcessError=OSError))
    monkeypatch.setattr(dram, "probe", lambda _: {"device": "H200", "versions": {"jax": "1"}})
    assert main(["counters", "--cases", "aifb", "--out", str(tmp_path / "table.md")]) == 0
    table = (tmp_path / "table.md").read_text()
    assert "aifb, rgcn h1 training, 64 features: 8.0 µs in kernels" in table
    for name in ("sums", "fusion_1"):
        assert f"| `{name}` | 4 | 2 | 0.5 | 40 | 30 | 20 | 10 | 50 |" in table


def test_an_exported_tree_names_its_commit(tmp_path):
    assert report.commit(tmp_path) is None
    (tmp_path / ".commit").write_text("0123456789ab\n")
    assert report.commit(tmp_path) == "0123456789ab"


def test_fields_of_a_page_are_filled(tmp_path, monkeypatch):
    def row(name, us, family="peer", **more):
        return report.candidate(name, [us * 1e-6] if us else [], family=family, **more)

    late = {"status": "failed", "reason": "RESOURCE_EXHAUSTED: Out of memory while"}
    once = {"details": {"container, ms": 1.0, "counted, µs": 4.0}}
    rows = {
        "a": [row("jax_gnn", 8.0, report.OURS, **once), row("x 1", 4.0)],
        "b": [row("jax_gnn", 2.0, report.OURS), row("x 2", 16.0)],
        "c": [row("jax_gnn", 2.0, report.OURS), row("x 2", 0, **late)],
    }
    cases = [report.case(name, "8 float32 fwd", of_case) for name, of_case in rows.items()]
    machine = {"device": "T", "cpu": "C", "cores": 1, "driver": None, "versions": {}}
    machine |= {"load_average": 0.0, "copy_bytes_per_second": 1e9}
    text = report.markdown(report.document("t", "T", machine, cases))
    (tmp_path / "t-nvidia-h200.md").write_text(text)
    monkeypatch.setattr(papers, "_RESULTS", tmp_path)
    papers.read.cache_clear()

    def filled(field):
        text = papers.filled(f"<!--= {field} -->old<!-- -->")
        assert papers.filled(text) == text
        return text.split("-->")[1].removesuffix("<!-- ")

    assert filled("mean; t; x*") == "2.00"
    assert filled("mean; t; !jax_gnn; b*") == "8.00"
    assert filled("mean; t; jax_gnn; *; x 1 or x 2") == "0.50"
    assert filled("least; t; x*") == "0.50 (a 8 fwd)"
    assert filled("most; t; x*") == "8.00 (b 8 fwd)"
    assert filled("below; t; x*") == "a 8 fwd 0.50"
    assert filled("count; t; x*") == "2"
    assert filled("count; t; x*; c*") == "0"
    assert filled("mean; t; y") == filled("mean; other; x*") == "not run"
    assert filled("time; t; x*; c 8 float32 fwd") == "out of memory"
    assert filled("range; t; jax_gnn; *") == "2.0 to 8.0 µs"
    assert filled("of steps; t; a*; container, ms; 125; t") == "50.0 % (at most 50.0 %)"
    assert filled("counted; t; counted, µs").startswith("2.00 (")
    assert filled("lines; rgcn") == "2"
    lines = filled("table; t; *; jax_gnn; x* = peer").strip().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["µs", "jax_gnn", "peer", "×"]
    assert cells[2:] == [
        ["a 8 fwd", "8.0", "4.0", "0.50"],
        ["b 8 fwd", "2.0", "16.0", "8.00"],
        ["c 8 fwd", "2.0", "out of memory", "-"],
    ]
    table = filled("detail; t; *; container, ms; jax_gnn = ours")
    assert table.splitlines()[-1] == "| a 8 fwd       |    1 |"
    for field in ("nonsense; t", "mean", "mean; t"):
        with pytest.raises(ValueError, match=field.partition(";")[0]):
            filled(field)
    papers.read.cache_clear()


def test_numbers_of_the_pages_are_of_tables() -> None:
    """README's and those of the page of papers; `python -m benchmarks papers` writes them."""
    assert papers.run(check=True) == 0
