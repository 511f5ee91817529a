"""Models of others, whose imports `jax_gnn.compat` replaces; each with a loss and its parameters.

A model is a function of a size: ``make(scale, rng, checkouts)`` gives parameters, inputs and
``output(parameters, inputs)``. Inputs are what a program may hold, or take as an argument.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 64


class Model(NamedTuple):
    """Parameters, inputs, and the function of both that is trained."""

    parameters: Any
    inputs: Any
    output: Callable[[Any, Any], Any]


class Inputs(NamedTuple):
    """Features, sources and destinations of edges, numbers of nodes and edges."""

    x: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray

    def tuple(self, nodes: Any, edges: Any = None) -> Any:
        """As jraph has it, one graph."""
        import jraph

        counts = np.array([len(self.x)]), np.array([len(self.senders)])
        zeros = jnp.zeros((1, 1), jnp.asarray(self.x).dtype)
        return jraph.GraphsTuple(nodes, edges, self.receivers, self.senders, zeros, *counts)


def _graph(rng: np.random.Generator, nodes: int, edges: int, width: int = WIDTH) -> Inputs:
    x = rng.normal(size=(nodes, width))
    return Inputs(x, *rng.integers(nodes, size=(2, edges)).astype(np.int32))


def _linear(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape) / np.sqrt(shape[-2])


def _mixture(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    """Experts by two ragged products, the best two of each token."""
    tokens, experts, top, width, hidden = int(2048 * scale), 8, 2, 128, 256
    parameters = {
        "gate": _linear(rng, width, experts),
        "in": _linear(rng, experts, width, hidden),
        "out": _linear(rng, experts, hidden, width),
    }

    def output(p: Any, x: Any) -> Any:
        weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ p["gate"]), top)
        order = jnp.argsort(chosen.ravel(), stable=True)
        sizes = jnp.bincount(chosen.ravel(), length=experts).astype(jnp.int32)
        rows = x[order // top]
        rows = jax.nn.gelu(jax.lax.ragged_dot(rows, p["in"], sizes))
        rows = jax.lax.ragged_dot(rows, p["out"], sizes)
        places = jnp.argsort(order)
        return (rows[places].reshape(len(x), top, width) * weights[..., None]).sum(1)

    return Model(parameters, rng.normal(size=(tokens, width)), output)


def _segments(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    """Reductions of jraph of edges: normalize, mean, variance, maximum."""
    import jraph

    inputs = _graph(rng, int(1500 * scale), int(15000 * scale))
    parameters = [_linear(rng, WIDTH, WIDTH) for _ in range(2)]

    def output(p: Any, g: Inputs) -> Any:
        n, ids = len(g.x), g.receivers
        messages = jraph.segment_normalize((jnp.asarray(g.x) @ p[0])[g.senders], ids, n)
        mean, variance = (f(messages, ids, n) for f in (jraph.segment_mean, jraph.segment_variance))
        most = jraph.segment_max_or_constant(messages, ids, n)
        return (mean + variance + most) @ p[1]

    return Model(parameters, inputs, output)


def _convolution(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    import jraph

    inputs = _graph(rng, int(20000 * scale), int(100000 * scale))

    def output(p: Any, g: Inputs) -> Any:
        x = jnp.asarray(g.x)
        for w in p:
            x = jraph.GraphConvolution(lambda n, w=w: jax.nn.relu(n @ w))(g.tuple(x)).nodes
        return x

    return Model([_linear(rng, WIDTH, WIDTH) for _ in range(2)], inputs, output)


def _gat(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    import jraph

    inputs = _graph(rng, int(1500 * scale), int(15000 * scale))
    parameters = [(_linear(rng, WIDTH, WIDTH), _linear(rng, 2 * WIDTH, 1)) for _ in range(2)]

    def output(p: Any, g: Inputs) -> Any:
        x = jnp.asarray(g.x)
        for w, a in p:

            def logits(sent: Any, received: Any, _: Any, a: Any = a) -> Any:
                return jax.nn.leaky_relu(jnp.concatenate([sent, received], 1) @ a)

            x = jraph.GAT(lambda n, w=w: n @ w, logits, jax.nn.elu)(g.tuple(x)).nodes
        return x

    return Model(parameters, inputs, output)


def _network(attention: bool, scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    import jraph

    inputs = _graph(rng, int(1500 * scale), int(15000 * scale))
    widths = {"edge": 3 * WIDTH + 1, "node": 3 * WIDTH + 1, "global": 2 * WIDTH + 1}
    parameters = {key: _linear(rng, width, WIDTH) for key, width in widths.items()}
    parameters |= {"global": _linear(rng, widths["global"], 1), "score": _linear(rng, WIDTH, 1)}

    def output(p: Any, g: Inputs) -> Any:
        def apply(key: str) -> Callable[..., Any]:
            return lambda *a: jax.nn.relu(jnp.concatenate(a, 1) @ p[key])

        scores: dict[str, Any] = {}
        if attention:
            scores = {
                "attention_logit_fn": lambda e, *_: e @ p["score"],
                "attention_reduce_fn": lambda e, w: e * w,
            }
        layer = jraph.GraphNetwork(apply("edge"), apply("node"), apply("global"), **scores)
        made = g.tuple(jnp.asarray(g.x), jnp.zeros((len(g.senders), WIDTH), jnp.asarray(g.x).dtype))
        for _ in range(2):
            made = layer(made)
        return made.nodes

    return Model(parameters, inputs, output)


def _interaction(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    import jraph

    inputs = _graph(rng, int(1500 * scale), int(15000 * scale))
    parameters = {"edge": _linear(rng, 3 * WIDTH, WIDTH), "node": _linear(rng, 2 * WIDTH, WIDTH)}

    def output(p: Any, g: Inputs) -> Any:
        def apply(key: str) -> Callable[..., Any]:
            return lambda *a: jax.nn.relu(jnp.concatenate(a, 1) @ p[key])

        edges = jnp.zeros((len(g.senders), WIDTH), jnp.asarray(g.x).dtype)
        layer = jraph.InteractionNetwork(apply("edge"), apply("node"))
        return layer(g.tuple(jnp.asarray(g.x), edges)).nodes

    return Model(parameters, inputs, output)


def _weather(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """WeatherNext's typed graph network on a mesh, three interactions."""
    _package("weathernext", checkout(checkouts, "graphcast") / "weathernext")
    typed: Any = importlib.import_module("weathernext.utils.typed_graph")
    net: Any = importlib.import_module("weathernext.utils.typed_graph_net")
    width = 128
    inputs = _graph(rng, int(642 * scale), int(5120 * scale), width)
    layers = [(_linear(rng, 3 * width, width), _linear(rng, 2 * width, width)) for _ in range(3)]

    def output(p: Any, g: Inputs) -> Any:
        key = typed.EdgeSetKey("mesh", ("nodes", "nodes"))
        one = np.ones(1, np.int32)
        x = jnp.asarray(g.x)
        made = typed.TypedGraph(
            typed.Context(one, ()),
            {"nodes": typed.NodeSet(one * len(g.x), x)},
            {
                key: typed.EdgeSet(
                    one * len(g.senders),
                    typed.EdgesIndices(g.senders, g.receivers),
                    jnp.zeros((len(g.senders), width), x.dtype),
                )
            },
        )
        for w, v in p:

            def edge(e: Any, sent: Any, received: Any, w: Any = w) -> Any:
                return jax.nn.silu(jnp.concatenate([e, sent, received], 1) @ w)

            def node(n: Any, received: Any, v: Any = v) -> Any:
                return n + jnp.concatenate([n, received["mesh"]], 1) @ v

            made = net.InteractionNetwork({"mesh": edge}, {"nodes": node})(made)
        return made.nodes["nodes"].features

    return Model(layers, inputs, output)


def _nequip(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """Two layers of nequip-jax over e3nn-jax, 16 channels."""
    import e3nn_jax as e3nn

    sys.path.insert(0, str(checkout(checkouts, "nequip-jax")))
    nequip: Any = importlib.import_module("nequip_jax")
    atoms, edges, channels = int(128 * scale), int(2048 * scale), 16
    g = _graph(rng, atoms, edges, channels)
    vectors = rng.normal(size=(edges, 3))
    layers = [
        nequip.NEQUIPLayerFlax(
            avg_num_neighbors=16.0, output_irreps=channels * e3nn.Irreps("0e + 1o"), max_ell=1
        )
        for _ in range(2)
    ]

    def run(p: Any, inputs: Any, init: bool) -> Any:
        vectors, g = inputs
        x: Any = e3nn.IrrepsArray(f"{channels}x0e", jnp.asarray(g.x))
        arrows = e3nn.IrrepsArray("1o", jnp.asarray(vectors))
        species = jnp.zeros(len(g.x), jnp.int32)
        made = []
        for i, layer in enumerate(layers):
            rest = arrows, x, species, jnp.asarray(g.senders), jnp.asarray(g.receivers)
            if init:
                made.append(layer.init(jax.random.key(i), *rest))
            x = layer.apply(made[-1] if init else p[i], *rest)
        return made if init else x.array

    inputs = vectors, g
    small = vectors[:8], Inputs(g.x[:4], g.senders[:8] % 4, g.receivers[:8] % 4)
    return Model(run(None, small, True), inputs, lambda p, inputs: run(p, inputs, False))


def _aceff(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """Local energies of jax-md's AceFF, with random weights."""
    import equinox

    folder = checkout(checkouts, "jax-md") / "jax_md"
    _package("jax_md", folder)
    _package("jax_md._nn", folder / "_nn")
    module: Any = importlib.import_module("jax_md._nn.aceff.model")
    jax.config.update("jax_default_matmul_precision", None)  # which it sets
    atoms, neighbors = int(256 * scale), 16
    config = {
        "cutoff": 5.0,
        "ev_to_kjmol": 96.5,
        "cutoff_lower": 0.0,
        "alpha": 1.0,
        "group": "O(3)",
        "charge_predictors": True,
        "edge_charge_features": True,
        "total_charge_interaction_scale": True,
        "coulomb_energy": False,
        "coulomb_factor": 1.0,
        "coulomb_damp_cutoff": 5.0,
        "coulomb_cutoff": None,
        "coulomb_epsilon_solvent": 1.0,
        "exp_minus_1": 0.37,
        "neighbor_cell_atom_threshold": 0,
        "neighbor_cell_capacity_multiplier": 1.0,
        "hidden_channels": 64,
        "num_rbf": 32,
        "num_interaction_layers": 2,
        "layernorm_eps": 1e-5,
        "charge_mlp_dims": [64, 32],
        "output_network_dims": [32, 1],
    }
    arrays, rest = equinox.partition(module.AceFF(config), equinox.is_array)
    arrays = jax.tree.map(
        lambda a: rng.normal(size=a.shape) / np.sqrt(a.shape[0] if a.ndim > 1 else 4), arrays
    )
    positions = rng.normal(size=(atoms, 3)) * (atoms / 16) ** (1 / 3) * 2
    sources = np.repeat(np.arange(atoms, dtype=np.int32), neighbors)
    places = np.r_[np.arange(atoms, dtype=np.int32), sources]  # a loop for each atom comes first
    others = (sources + rng.integers(1, min(atoms, 40), len(sources))) % atoms
    ends = np.r_[np.arange(atoms), others].astype(np.int32)
    species = rng.integers(10, size=atoms).astype(np.int32)

    def output(p: Any, inputs: Any) -> Any:
        positions, species, src, dst = inputs
        model, zeros = equinox.combine(p, rest), jnp.zeros((len(src), 3), positions.dtype)
        mask = jnp.ones(len(src), bool)
        made = model.local_node_energies_and_charges(
            jnp.asarray(positions), jnp.asarray(species), src, dst, zeros, mask, 0.0
        )
        return made[0]

    return Model(arrays, (positions, species, places, ends), output)


def checkout(checkouts: Path | None, name: str) -> Path:
    """Return the folder of a checkout."""
    if checkouts is None or not (checkouts / name).is_dir():
        raise FileNotFoundError(f"no checkout {name} in the folder --published")
    return (checkouts / name).resolve()


def _package(name: str, folder: Path) -> None:
    """A package without its ``__init__``, which imports what is not needed here."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package


Make = Callable[[float, np.random.Generator, Path | None], Model]

MODELS: dict[str, Make] = {
    "MoE, two ragged_dot": _mixture,
    "jraph segments": _segments,
    "jraph GraphConvolution": _convolution,
    "jraph GAT": _gat,
    "jraph GraphNetwork": lambda *a: _network(False, *a),
    "jraph GraphNetwork, attention": lambda *a: _network(True, *a),
    "jraph InteractionNetwork": _interaction,
    "WeatherNext typed_graph_net": _weather,
    "nequip-jax over e3nn-jax": _nequip,
    "jax-md AceFF": _aceff,
}
