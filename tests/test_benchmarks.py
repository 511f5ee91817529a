"""The benchmark harness: what it measures with and what it reports. No time is asserted."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# The benchmarks belong to the checkout, not to the installed package.
sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import bench_hypergraph_aggregate, report, timing
from benchmarks.__main__ import main
from benchmarks.harness import Candidate, Case, Family, Problem, Settings
from benchmarks.worker import _Session, relative_error
from benchmarks.workloads import giant, hypergraphs, long_tail

STATISTICS = {"method", "median_us", "q1_us", "q3_us", "min_us", "samples", "floor_fraction"}


def run_quick(tmp_path: Path, *arguments: str) -> dict:
    path = tmp_path / "report.json"
    command = ["hypergraph_aggregate", "--platform", "cpu", "--quick", "--out", str(path)]
    assert main([*command, *arguments]) == 0
    return json.loads(path.read_text())


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
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


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
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    assert main(["hypergraph_aggregate", "--platform", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err


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


def test_gradient_of_every_plain_candidate_is_checked_against_the_reference():
    graph = hypergraphs(None)["tiny"].load()
    case = Case("tiny", 3, "float32", "fwd+bwd")
    problem = bench_hypergraph_aggregate.problem(graph, case)
    assert isinstance(problem, Problem)
    incidence = np.zeros((graph.num_nodes, graph.num_hyperedges))
    incidence[graph.node_idx, graph.hyperedge_idx] = 1
    scale, edge = (problem.inputs[n].astype(float) for n in ("node_scale", "hyperedge_scale"))
    operator = (scale[:, None] * incidence * edge) @ (incidence.T * scale)
    for features, expected in zip(("x", "cotangent"), problem.expected, strict=True):
        np.testing.assert_allclose(operator @ problem.inputs[features], expected, rtol=1e-10)
    candidates = bench_hypergraph_aggregate.plain_jax_candidates(graph, case, problem)
    for candidate in candidates:
        assert isinstance(candidate, Candidate)
        outputs = jax.jit(candidate.function)(*candidate.arguments)
        for output, expected in zip(outputs, problem.expected, strict=True):
            assert relative_error(np.asarray(output), expected) < 1e-6, candidate.name


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
        f"events {{ metadata_id: {kind} offset_ps: {begin}000 duration_ps: {end - begin}000 }}"
        for kind, begin, end in spans
    )


def profile(compute: str, copies: str = "", overhead: str = "") -> jax.profiler.ProfileData:
    text = PROFILE.format(compute=compute, copies=copies, overhead=overhead)
    return jax.profiler.ProfileData.from_text_proto(text)


def flushes(begin: int) -> list[tuple[int, int, int]]:
    return [(1, begin + 10 * i, begin + 10 * i + 9) for i in range(timing.FLUSHES)]


def test_span_of_a_call_is_from_its_first_kernel_to_its_last():
    compute = [*flushes(0), (2, 50, 60), (2, 70, 75), *flushes(100), (2, 200, 203)]
    record = profile(events(*compute), events((3, 62, 90)), events((2, 0, 9000)))
    kernels = timing.profiled_kernels(record)
    assert len(kernels) == len(compute) + 1
    assert [k.begin for k in kernels] == sorted(k.begin for k in kernels)
    spans = timing.call_spans(kernels, {"loop_xor_fusion"}, calls=2)
    assert spans == pytest.approx([40e-9, 3e-9])


@pytest.mark.parametrize(
    "compute",
    [
        [*flushes(0), (2, 50, 60), *flushes(100)],  # the second call left no kernel
        [*flushes(0), (2, 50, 60), *flushes(100)[1:], (2, 200, 203)],  # a flush is missing
        [*flushes(0), (2, 50, 60), (1, 70, 80), *flushes(100), (2, 200, 203)],  # a call has an xor
    ],
)
def test_a_profile_that_does_not_fit_is_an_error(compute):
    kernels = timing.profiled_kernels(profile(events(*compute)))
    with pytest.raises(RuntimeError, match="expected 2 calls"):
        timing.call_spans(kernels, {"loop_xor_fusion"}, calls=2)


def test_profiler_timer_reads_the_profile_that_jax_writes(monkeypatch):
    # A CPU has no GPU streams: the real record is found and read, and refused by its content.
    monkeypatch.setattr(timing, "FLUSH_BYTES", 4096)
    with pytest.raises(RuntimeError, match=r"no GPU activity in the profile.*/host:CPU"):
        timing.ProfilerTimer()


def test_timers_run_the_calls_in_turn(monkeypatch):
    order: list[str] = []
    monkeypatch.setattr(timing, "TURN", 0.0)
    timer = timing.WallTimer(lambda name: order.append(name))
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


# Checking before timing.


class HostRuntime:
    """Stands for JAX or torch: runs a candidate as it is."""

    compile_threads, repeats, timer = 2, 1, timing.WallTimer(lambda outputs: outputs)

    def enter_thread(self) -> None:
        pass

    def prepare(self, candidate):
        return candidate.function(), {"host": candidate.function}

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
        problem=lambda graph, case: Problem({}, (reference,), np.dtype("float32")),
    )
    session = _Session(op, family, Settings("cpu"), HostRuntime())
    cases = [Case("tiny", width, "float32", "fwd") for width in (1, 2)]
    answer = session.prepare("tiny", cases)
    assert set(answer["num_bytes"].values()) == {reference.size * 4}
    for case in cases:
        rows = {row["name"]: row for row in answer["candidates"][case.name]}
        statuses = [rows[name]["status"] for name in functions]
        assert statuses == ["timed", "wrong", "wrong", "failed", "failed"]
        assert "1.0e-03 exceeds 1e-05" in rows["wrong"]["reason"]
        assert rows["failing"]["reason"] == "MemoryError: not enough"
    assert list(session.measure([cases[1].name])) == [(cases[1].name, "right", "host")]
