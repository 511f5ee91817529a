"""``jax-gnn train --distributed``: several processes train together, over loopback."""

from __future__ import annotations

import json
import pickle
import shutil
import sys

import jax
import joint_training
import numpy as np
import pytest
from processes import run_together
from test_sharded_processes import SCRIPT, one_device, run_job
from test_training import make_graph_dataset, save
from test_training_devices import settings
from test_training_graphs import rings_and_trees

from flax_layers.training import GCNLinkConfig, load_checkpoint, processes
from jax_gnn.cli import main

pytest.importorskip("orbax.checkpoint")

# The state is written after each call of ten epochs, before which a process may fail.
PROCESS = """
import sys
from flax_layers.training import epochs, resume
from jax_gnn.cli import main

calls, *words = sys.argv[1:]
resume.EVERY, advance = 0.0, epochs.Runner.advance

def limited(self, *arguments):
    if len(self.costs()["epochs"]) == int(calls):
        raise RuntimeError("failed by the test")
    return advance(self, *arguments)

epochs.Runner.advance = limited
sys.exit(main(words))
"""
OPTIONS = "--epochs 20 --splits 1 --hidden-features 8 --dropout 0 --no-baseline --output"


def run_train(cluster, *options, calls=(-1, -1)):
    """Run the command in two processes, whose last options are given; return their ends."""
    commands = [
        ("-c", PROCESS, count, "train", "gcn", "--distributed", "--data", *words)
        for count, words in zip(calls, options, strict=True)
    ]
    return run_job(cluster, commands)


def results(folder, dataset):
    """Return results.json, and the predictions of the checkpoint."""
    logits = load_checkpoint(folder / "checkpoint").predict(dataset)
    return json.loads((folder / "results.json").read_text()), np.asarray(logits)


def test_two_processes_train_as_one(tmp_path):
    # One process fails before the last ten epochs, which two processes and one then go on with.
    dataset = make_graph_dataset()
    data, (together, alone, once) = (
        save(tmp_path / "tiny", dataset) + ".npz",
        (tmp_path / name for name in ("together", "alone", "once")),
    )
    words = data, *OPTIONS.split(), together
    ends = run_train("slurm", words, words, calls=(-1, 1))
    assert all(end.returncode for end in ends), ends
    assert "jax-gnn: error: RuntimeError: failed by the test" in ends[1].stdout
    assert [path.name for path in together.iterdir()] == ["state.npz"]
    assert np.load(together / "state.npz")["epoch"] == 10
    shutil.copytree(together, alone)

    ends = run_train("kubernetes", (*words, "--resume"), (*words, "--resume"))
    assert [end.returncode for end in ends] == [0, 0], ends
    assert "loaded again: same predictions" in ends[0].stdout
    assert not any(word in ends[1].stdout for word in ("split", "accuracy", "jax-gnn")), ends[1]

    command = ["train", "gcn", "--data", data, *OPTIONS.split()]
    assert main([*command, str(alone), "--resume"]) == 0
    assert main([*command, str(once), "--devices", "2"]) == 0
    (expected, logits), *others = (results(folder, dataset) for folder in (once, together, alone))
    for document, job_size, devices in zip((o[0] for o in others), (2, 1), (2, 1), strict=True):
        assert document["processes"] == job_size and document["devices_used"] == devices
        for name in ("test_accuracy", "valid_accuracy", "best_epoch"):
            np.testing.assert_allclose(document["jax_gnn"][name], expected["jax_gnn"][name])
    for _, other_logits in others:
        np.testing.assert_allclose(other_logits, logits, 1e-2, 2e-3)
    assert sorted(path.name for path in together.iterdir()) == sorted(
        path.name for path in once.iterdir()
    )


def test_batches_and_links_of_two_processes(tmp_path):
    # They have a device each, and the results of one process that has both.
    nodes, graphs = make_graph_dataset(), rings_and_trees(np.random.default_rng(0))
    small = {"num_layers": 1, "epochs": 2}
    links = GCNLinkConfig(**small, evaluate_every=2, embedding_features=8)
    cases = {
        "nodes": (nodes, settings("gcn", batch_size=7, fanouts=(99,), **small)),
        "graphs": (graphs, settings("gcn-graph", batch_size=17, **small)),
        "links": (nodes, links),
    }
    (tmp_path / "cases.pickle").write_bytes(pickle.dumps(cases))
    ends = run_job("slurm", [(joint_training.__file__, tmp_path / "cases.pickle")] * 2)
    assert [end.returncode for end in ends] == [0, 0], ends
    expected = joint_training.train_cases(cases)
    for end in ends:
        results = json.loads(end.stdout.partition("trained ")[2].splitlines()[0])
        for name, (losses, outputs) in expected.items():
            np.testing.assert_allclose(results[name][0], losses, 2e-6, err_msg=name)
            np.testing.assert_allclose(results[name][1], outputs, 1e-4, 1e-4, err_msg=name)


def test_workers_of_ray(tmp_path):
    # The docs' file starts two workers on this host; they train as one process of two devices.
    pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
    dataset = make_graph_dataset()
    words = ["train", "gcn", "--data", save(tmp_path / "tiny", dataset) + ".npz", *OPTIONS.split()]
    together, once = tmp_path / "together", tmp_path / "once"
    command = [sys.executable, "-P", "-m", "jax_gnn", *words, together, "--distributed"]
    on_ray = SCRIPT.with_name("on_ray.py"), 2, 0, *command
    environment = one_device() | {"RAY_AUTH_MODE": "disabled"}  # which writes no token
    (end,) = run_together([on_ray], [environment])
    assert end.returncode == 0 and "loaded again: same predictions" in end.stdout, end
    assert main([*words, str(once), "--devices", "2"]) == 0
    (document, logits), (expected, expected_logits) = (
        results(folder, dataset) for folder in (together, once)
    )
    assert document["processes"] == document["devices_used"] == 2
    for name in ("test_accuracy", "valid_accuracy", "best_epoch"):
        np.testing.assert_allclose(document["jax_gnn"][name], expected["jax_gnn"][name])
    np.testing.assert_allclose(logits, expected_logits, 1e-2, 2e-3)
    # The file ends with an error where a worker's command does.
    (end,) = run_together([(*on_ray[:3], sys.executable, "-c", "exit(3)")], [environment])
    assert end.returncode == 1 and "exit codes of the workers: [3, 3]" in end.stdout, end


def test_no_job(capsys, monkeypatch):
    # JAX gets the variables that it does not read itself; its error names the option.
    for name, value in zip(processes.VARIABLES[0], ("host:1", "3", "2"), strict=True):
        monkeypatch.setenv(name, value)

    def initialize(**arguments):
        del arguments["heartbeat_timeout_seconds"]
        raise ValueError([*arguments.values()])

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    assert main(["train", "gcn", "--data", "digits", "--distributed"]) == 2
    error = capsys.readouterr().err
    assert "--distributed needs a job of SLURM" in error and "['host:1', 3, 2]" in error


def test_wrong_option_in_a_job(capsys, monkeypatch):
    # A process that leaves by argparse joins the others first, so that its end is theirs.
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: calls.append("join"))
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: bool(calls))
    monkeypatch.setattr("os._exit", calls.append)
    monkeypatch.setattr("time.sleep", calls.append)
    assert main(["train", "gcn", "--distributed", "--layers", "x"]) == 2
    assert calls == ["join", 3, 2]
    assert "argument --layers: expected a whole number" in capsys.readouterr().err
