"""Graphs split over devices of several processes."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import run_together

from jax_gnn import Graph
from jax_gnn.sharding import save_parts

PROCESS = """
import dataclasses
import os
import shutil
import sys
from pathlib import Path
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax_layers import GCN
from flax_layers.training import GCNConfig
from flax_layers.training.data import Fingerprint
from flax_layers.training.resume import SplitsState
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import NamedSharding, PartitionSpec
from jax_gnn import Graph, RelationalGraph, load, save, spmm
from jax_gnn.sharding import load_parts, save_edge_parts, save_parts, shard_graph

rank, port, seed = map(int, sys.argv[1:4])
checkpoint, folder = (f"{sys.argv[4]}/{name}" for name in ("checkpoint", "parts"))
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, rank, initialization_timeout=60)
print("joined", flush=True)
rng = np.random.default_rng(seed)
graph = Graph.from_edges(*rng.integers(0, 50, (2, 300)), num_nodes=50)
x, weights = rng.normal(size=(50, 4)).astype(np.float32), rng.random(300, np.float32)
definition, params, state = nnx.split(GCN(4, 8, 3, rngs=nnx.Rngs(0)), nnx.Param, ...)

def loss(params, run, x):
    y = run(nnx.merge(definition, params, state), x)
    return (y**2).sum(), y

(_, expected), gradients = jax.value_and_grad(loss, has_aux=True)(
    params, lambda model, x: model(graph, x, deterministic=True), jnp.asarray(x)
)
mesh = jax.make_mesh((4,), ("nodes",))
sharded = shard_graph(graph, mesh, "nodes")
assert not sharded.node_ids.is_fully_addressable

@jax.jit
def step(params, sharded, x):
    def run(model, x):
        return sharded.apply(model, x, deterministic=True)

    (_, y), gradients = jax.value_and_grad(loss, has_aux=True)(params, run, x)
    return sharded.unshard(y), gradients

result = step(params, sharded, sharded.shard(x))
close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4 * (1 + np.abs(b).max()))
jax.tree.map(close, result, (expected, gradients))
sums = jax.jit(lambda sharded, w: sharded.apply(lambda _, w: w.sum(), w).sum())
close(sums(sharded, sharded.shard_edges(weights)), weights.sum())
close(sharded.unshard(sharded.shard(x)), x)

@jax.jit
def sums_of_neighbours(sharded, x, batch):
    def local(part, x, batch):
        blocks, seeds, x, *_ = batch.sample(part, x=x)
        for block in blocks.graphs:
            x = spmm(block, x)
        return jnp.where(seeds[:, None] < 0, 0, x).sum(0)

    return sharded.apply(local, x, batch).sum(0)

epoch = sharded.neighbor_batches(np.arange(50), 7, (-1, -1))
sampled = sum(sums_of_neighbours(sharded, sharded.shard(x), batch) for batch in epoch)
close(sampled, spmm(graph, spmm(graph, x)).sum(0))
cached = sharded.cached(epoch[0], sharded.shard(x), 5)
sampled = sum(sums_of_neighbours(sharded, cached, batch) for batch in epoch)
close(sampled, spmm(graph, spmm(graph, x)).sum(0))

def on_all(leaf):
    return jax.make_array_from_callback(
        leaf.shape, NamedSharding(mesh, PartitionSpec()), lambda index: np.asarray(leaf)[index]
    )

for values in (params, jax.tree.map(on_all, params)):  # local arrays, then global ones
    save(checkpoint, nnx.merge(definition, values, state))
    again = nnx.state(load(checkpoint).model, nnx.Param)
    jax.tree.map(np.testing.assert_array_equal, again, params)

if rank == 0:
    save_parts(folder, graph, 4, nodes={"x": x}, edges={"weights": weights})
sync_global_devices("written")
local = f"{folder}-{rank}"  # a process needs the plan and the parts of its devices
os.mkdir(local)
for name in ("plan", 2 * rank, 2 * rank + 1):
    shutil.copy(f"{folder}/{name}.npz", local)

# Each process writes parts of the edges of both.
shares = np.array_split(np.stack([graph.cols, graph.rows]), 2, 1)
chunk = (*shares[rank], {"weights": np.array_split(weights, 2)[rank]})
named = {"nodes": {"x": x}, "edge_values": ["weights"]}
save_edge_parts(f"{folder}-shares", [chunk], 50, 4, np.load(f"{folder}/plan.npz")["parts"], **named)

def check_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        for shard, other_shard in zip(a.addressable_shards, b.addressable_shards, strict=True):
            np.testing.assert_array_equal(shard.data, other_shard.data)

def check_refused(message, call, *arguments, kind=ValueError):
    try:
        call(*arguments)
    except kind as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

def check_loaded(folder, sharded):
    loaded = load_parts(folder, mesh, "nodes")
    check_same(loaded, (sharded, {"x": sharded.shard(x), "weights": sharded.shard_edges(weights)}))

check_loaded(local, sharded)
check_loaded(f"{folder}-shares", sharded)
loaded, values = load_parts(local, mesh, "nodes", on_disk=["x"])
own, device_x = np.zeros_like(x), sharded.shard(x)
for shard in sharded.node_ids.addressable_shards:  # a process needs rows of its own nodes only
    ids = np.asarray(shard.data)[0]
    own[ids[ids >= 0]] = x[ids[ids >= 0]]
sample = jax.jit(lambda *args: args[0].apply(lambda part, b, x: b.sample(part, x=x), *args[1:]))
few = epoch.map(lambda batch: dataclasses.replace(batch, expected=(0, 0, 0)))  # several rounds
host_x = own, loaded.host_rows(x), values["x"]
for batch, fetched in zip(few, loaded.fetch_ahead(few, x=host_x), strict=True):
    check_same(tuple(fetched), tuple(sample(loaded, batch, (device_x,) * 3)))

# Seven parts on four devices: pairs are padded to the largest number of all processes.
(src, dst), types = rng.integers(0, 50, (2, 300)), rng.integers(0, 9, 300)
typed = RelationalGraph.from_triples(src, types, dst, num_nodes=50).with_parts()
parts = rng.integers(0, 7, 50)
if rank == 0:
    save_parts(f"{folder}-7", typed, 7, parts, nodes={"x": x}, edges={"weights": weights})
sync_global_devices("written again")
check_loaded(f"{folder}-7", shard_graph(typed, mesh, "nodes", parts * 4 // 7))

other_graph = Graph.from_edges([0], [0], num_nodes=int(rng.integers(1, 99)))
ids = np.arange(50)
reversed_mesh = jax.sharding.Mesh(mesh.devices[::-1], "nodes")
for name, arguments in {
    "graph": ((other_graph if rank else graph), mesh, "nodes"),
    "method": (graph, mesh, "nodes", ids % (3 + rank)),
    "mesh": (graph, reversed_mesh if rank else mesh, "nodes"),
}.items():
    check_refused(f"{name} must be the same on all processes", shard_graph, *arguments)

training = GCNConfig(), Fingerprint("tiny", 50, "", "", "")
kept = SplitsState(Path(f"{folder}-state-{rank}.npz"), *training, resume=False, devices=4)
kept.keep({"split": 0, "epoch": 5})
with kept:  # which the first process writes
    pass
read = SplitsState(Path(f"{folder}-state-{rank}.npz"), *training, resume=True, devices=4)
check_refused(
    "with one epoch, got 5 in process 0; 0 in process 1", lambda: read.check_progress(read.epoch)
)
check_refused(
    "settings and data must be the same in all processes",
    lambda: SplitsState(None, GCNConfig(epochs=7 + rank), training[1], resume=True, devices=4),
)

wide = np.zeros((50, 1 << 17), np.float32)  # larger than the sample that is compared
wide[0] = rank
for call in (
    lambda: sharded.shard(x + rank),
    lambda: sharded.shard(x[: 50 - rank]),
    lambda: sharded.shard(wide),
    lambda: sharded.shard_edges(weights * (1 + rank)),
    lambda: sharded.host_rows(x + rank),
):
    check_refused("values must be the same on all processes", call)

message, kind = "folder must be the same on all processes", ValueError
if rank == seed % 2:
    os.remove(f"{local}/{2 * rank + 1}.npz")
    message, kind = "does not exist", FileNotFoundError
check_refused(message, load_parts, local, mesh, "nodes", kind=kind)
save_parts(local, graph, 4, ids % (3 + rank))
check_refused("folder must be the same on all processes", load_parts, local, mesh, "nodes")
print("as one process", flush=True)
"""


def two_processes(seed: int, folder: Path) -> list[str]:
    """Return the output of the processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    commands = [("-c", PROCESS, rank, port, seed, folder) for rank in range(2)]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    return [end.stdout for end in run_together(commands, [flags] * 2)]


def test_two_processes_are_as_one(rng, tmp_path):
    """Processes of two devices each get the same results, and errors for differing arguments."""
    pytest.importorskip("orbax.checkpoint")
    seed, texts = int(rng.integers(1 << 30)), [""]
    for _ in range(3):  # another program may take the port first
        texts = two_processes(seed, tmp_path)
        if all("joined" in text for text in texts):
            break
    assert all("as one process" in text for text in texts), "\n".join(texts)


# --- The script of docs/clusters -----------------------------------------------------------------

SCRIPT = Path(__file__).parents[1] / "docs" / "clusters" / "train_parts.py"
FIRST_PORT = 65535 - 2**12 + 1  # JAX adds the number of SLURM's job, modulo 2**12


def variables(cluster: str, port: int, count: int, number: int) -> dict[str, str]:
    """Return the variables of a process in SLURM or Kubernetes."""
    if cluster == "slurm":
        values = {"JOB_ID": port - FIRST_PORT, "NTASKS": count, "PROCID": number, "LOCALID": number}
        variables = {f"SLURM_{name}": str(value) for name, value in values.items()}
        return variables | {"SLURM_STEP_NODELIST": "localhost"}
    index = {"JOB_COMPLETION_INDEX": str(number), "PROCESSES": str(count)}
    return index | {"COORDINATOR": f"localhost:{port}"}


def one_device() -> dict[str, str]:
    """Return the variables of a process of a job: a device, and programs compiled in less time."""
    flags = (flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag)
    values = {"XLA_FLAGS": " ".join(flags), "JAX_NUM_CPU_DEVICES": "1"}
    return values | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def run_job(
    cluster: str, commands: Sequence[Sequence[object]]
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command in each process of a job, with a device each, and return their ends."""
    count = len(commands)
    pids = np.random.default_rng(os.getpid())
    for port in FIRST_PORT + pids.permutation(2**12)[:50]:
        with socket.socket() as free:
            if free.connect_ex(("localhost", int(port))):  # nobody listens
                break
    environments = [one_device() | variables(cluster, int(port), count, i) for i in range(count)]
    return run_together(commands, environments)


@pytest.mark.parametrize(("cluster", "count"), [("slurm", 2), ("slurm", 4), ("kubernetes", 2)])
def test_jobs_of_clusters(cluster, count, rng, tmp_path, monkeypatch):
    """Processes find each other, and train on four parts as one process with devices does."""
    pytest.importorskip("optax")
    src, dst = rng.integers(0, 90, (2, 400))
    x, train = rng.normal(size=(90, 5)).astype(np.float32), np.float32(rng.random(90) < 0.5)
    rows = {"x": x, "y": rng.integers(0, 3, 90), "train": train}
    folder = tmp_path / "parts"
    save_parts(folder, Graph.from_edges(src, dst, num_nodes=90), 4, nodes=rows)
    monkeypatch.setattr(jax.distributed, "initialize", lambda: None)
    monkeypatch.setattr(jax, "device_count", lambda: count)
    expected = runpy.run_path(str(SCRIPT))["main"](folder)
    ends = run_job(cluster, [(SCRIPT, folder)] * count)
    assert [end.returncode for end in ends] == [0] * count, ends
    line = f"{count} processes, {count} devices, loss "
    loss = float(ends[0].stdout.partition(line)[2].split()[0])
    assert abs(loss - expected) < 1e-3
    if (cluster, count) != ("kubernetes", 2):
        return
    (folder / "0.npz").unlink()
    ends = run_job(cluster, [(SCRIPT, folder)] * count)
    assert all(end.returncode and "0.npz does not exist" in ends[0].stdout for end in ends), ends
