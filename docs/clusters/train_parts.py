"""Train a GCN on the parts of a graph in a folder, in each process of a job."""

import os
import sys
import traceback

import jax
import optax
from flax import nnx

from flax_layers import GCN
from jax_gnn.sharding import load_parts


def main(folder, **cluster):
    """Train for 20 epochs, and return the last loss; arguments as of jax.distributed.initialize."""
    jax.distributed.initialize(**cluster)
    mesh = jax.make_mesh((jax.device_count(),), ("nodes",))
    sharded, values = load_parts(folder, mesh, "nodes")
    x, y, train = values["x"], values["y"], values["train"]
    model = GCN(x.shape[-1], 64, 3, num_layers=2, rngs=nnx.Rngs(0))
    definition, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(0.01)

    def loss_fn(params, sharded, x, y, train, key):
        logits = sharded.apply(nnx.merge(definition, params, rest), x, rngs=key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return (losses * train).sum() / train.sum()

    @jax.jit
    def step(params, state, *arrays):
        loss, gradients = jax.value_and_grad(loss_fn)(params, *arrays)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    state = optimizer.init(params)
    for epoch in range(20):
        key = jax.random.key(epoch)  # the same in all processes: each device gets its own of it
        params, state, loss = step(params, state, sharded, x, y, train, key)
    if jax.process_index() == 0:
        print(f"{jax.process_count()} processes, {jax.device_count()} devices, loss {loss:.4f}")
    return float(loss)


def leave(*error):
    """Print an exception and end the process, so that the others end, too, and do not wait."""
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    sys.excepthook = leave
    cluster = {}
    if "JOB_COMPLETION_INDEX" in os.environ:  # of Kubernetes
        cluster["coordinator_address"] = os.environ["COORDINATOR"]
        cluster["num_processes"] = int(os.environ["PROCESSES"])
        cluster["process_id"] = int(os.environ["JOB_COMPLETION_INDEX"])
    main(sys.argv[1], **cluster)
