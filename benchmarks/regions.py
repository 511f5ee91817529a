"""Functions of edges beside plain JAX: times and memory, forward and with gradients.

``python -m benchmarks.regions [--data DIR] [--graphs …] [--models …] [--width W]``

A model is what edges make between gathers and reductions, of arrays that are there. Each is a
program of messages (`jax_gnn.program`), and the same function in plain JAX, as it is and under
`jax.checkpoint`. Memory is the scratch of the compiled program. Results are compared first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_gnn
from benchmarks.peers import jax_gnn_graph
from benchmarks.workloads import plain_graphs
from jax_gnn import Edge, Graph, Node

# --- Models --------------------------------------------------------------------------------------


def gated_gcn(g: Any, a: Node, b: Node, v: Node, e: Edge) -> Any:
    """GatedGCN with features of edges."""
    z = g.dst(a) + g.src(b) + e
    gate = jax.nn.sigmoid(z)
    return g.sum(gate * g.src(v)), g.sum(gate), z


def cg_conv(g: Any, a2: Node, b2: Node, e2: Edge) -> Any:
    """CGConv."""
    z = g.dst(a2) + g.src(b2) + e2
    return g.sum(jax.nn.sigmoid(z[0]) * jax.nn.softplus(z[1]))


def cf_conv(g: Any, v: Node, e: Edge, distance: Edge, w: Any) -> Any:
    """SchNet's continuous-filter convolution."""
    filters = jax.nn.softplus(e) @ w - jnp.log(2.0)
    near = 0.5 * (jnp.cos(jnp.pi * distance) + 1)
    return g.sum(g.src(v) * filters * near)


def painn(g: Any, a3: Node, b3: Node, e3: Edge, direction: Edge) -> Any:
    """PaiNN's message."""
    gates = e3 * g.src(a3)
    turned = gates[2] * direction[:, None]
    return g.sum(gates[0]), g.sum(g.src(b3) * gates[1] + turned)


def edge_conv(g: Any, a: Node, b: Node) -> Any:
    """EdgeConv."""
    return g.max(jax.nn.relu(g.src(a) - g.dst(b)))


def pna(g: Any, a: Node, b: Node, e: Edge) -> Any:
    """PNA's aggregators."""
    m = jax.nn.relu(g.dst(a) + g.src(b) + e)
    return g.mean(m), g.max(m), g.min(m), g.mean(m * m)


MODELS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (gated_gcn, cg_conv, cf_conv, painn, edge_conv, pna)
}
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    **{name: ("node", ()) for name in "abv"},
    **{name: ("node", (int(name[1]),)) for name in ("a2", "b2", "a3", "b3")},
    "e": ("edge", ()),
    **{name: ("edge", (int(name[1]),)) for name in ("e2", "e3")},
}
"""Of a row of each argument the axes before that of features; and who has one."""


def arguments(model: str, graph: Graph, width: int) -> list[jax.Array]:
    """Random arrays."""
    rng = np.random.default_rng(width)
    code = MODELS[model].__code__
    found = []
    for name in code.co_varnames[1 : code.co_argcount]:
        edges = graph.num_edges
        if name == "w":
            x = rng.normal(size=(width, width)) / width**0.5
        elif name == "distance":
            x = rng.uniform(size=edges)
        elif name == "direction":
            x = rng.normal(size=(edges, 3))
        else:
            space, lead = SHAPES[name]
            rows = edges if space == "edge" else graph.num_nodes
            x = rng.normal(size=(rows, *lead, width))
        found.append(jnp.asarray(x, jnp.float32))
    return found


class PlainView:
    """What a program calls, on arrays of all edges: plain JAX as one writes it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def src(self, x: Any) -> Any:
        """What edges read at their sources."""
        return x[self._graph.cols]

    def dst(self, x: Any) -> Any:
        """Likewise at their destinations."""
        return x[self._graph.rows]

    def _reduced(self, name: str, x: Any) -> Any:
        reduce = getattr(jax.ops, f"segment_{name}")
        return reduce(x, self._graph.rows, self._graph.num_dst, indices_are_sorted=True)

    def sum(self, x: Any) -> Any:
        """Sums at destinations."""
        return self._reduced("sum", x)

    def max(self, x: Any) -> Any:
        """Maxima."""
        return self._reduced("max", x)

    def min(self, x: Any) -> Any:
        """Minima."""
        return self._reduced("min", x)

    def mean(self, x: Any) -> Any:
        """Means, 0 of nothing."""
        counts = jnp.maximum(self._graph.in_degrees(), 1).astype(x.dtype)
        return self.sum(x) / counts[:, None]


def plain(model: str) -> Callable[..., Any]:
    """The model in plain JAX."""

    def of_edges(view: PlainView, *arrays: Any) -> Any:
        if model == "cg_conv":
            a, b, e = arrays
            z = view.dst(a) + view.src(b) + e
            return view.sum(jax.nn.sigmoid(z[:, 0]) * jax.nn.softplus(z[:, 1]))
        if model == "cf_conv":
            v, e, distance, w = arrays
            filters = jax.nn.softplus(e) @ w - jnp.log(2.0)
            near = 0.5 * (jnp.cos(jnp.pi * distance) + 1)
            return view.sum(view.src(v) * filters * near[:, None])
        if model == "painn":
            a, b, e, direction = arrays
            gates = e * view.src(a)
            turned = gates[:, 2, None] * direction[:, :, None]
            return view.sum(gates[:, 0]), view.sum(view.src(b) * gates[:, 1, None] + turned)
        return MODELS[model](view, *arrays)

    return lambda graph, *arrays: of_edges(PlainView(graph), *arrays)


# --- Measuring -----------------------------------------------------------------------------------


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Results, and gradients to all arrays."""

    def both(graph: Graph, *arrays: Any) -> Any:
        results, pull = jax.vjp(lambda *arrays: function(graph, *arrays), *arrays)
        return results, pull(jax.tree.map(_cotangent, results))

    return both


def _cotangent(y: Any) -> Any:
    """Numbers that do not depend on the result, whose rounding differs."""
    return jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)


def measured(functions: dict[str, Any], given: list[Any], seconds: float) -> dict[str, Any]:
    """Milliseconds of a call, calls taking turns, and megabytes of scratch."""
    compiled = {name: jax.jit(each).lower(*given).compile() for name, each in functions.items()}
    results = {name: jax.block_until_ready(run(*given)) for name, run in compiled.items()}
    for name in results:
        for x, y in zip(
            *(jax.tree.leaves(results[each]) for each in (name, "plain JAX")), strict=True
        ):
            finite = np.isfinite(y)
            error = np.max(np.abs(np.where(finite, x - y, 0)), initial=0)
            if error > 1e-3 * np.max(np.abs(np.where(finite, y, 1)), initial=1):
                print(f"    {name} differs from plain JAX by {error:.2g}")
    times: dict[str, list[float]] = {name: [] for name in compiled}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["plain JAX"]) < 3:
        for name, run in compiled.items():
            start = time.perf_counter()
            jax.block_until_ready(run(*given))
            times[name].append(time.perf_counter() - start)
    return {
        name: (
            1e3 * float(np.median(times[name])),
            compiled[name].memory_analysis().temp_size_in_bytes / 1e6,  # type: ignore[union-attr]
        )
        for name in compiled
    }


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regions", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with real graphs")
    parser.add_argument("--graphs", nargs="*", help="names of workloads; default: a random graph")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=40_000, help="of the random graph")
    parser.add_argument("--edges", type=int, default=300_000, help="likewise")
    parser.add_argument("--seconds", type=float, default=3, help="for a line")
    parser.add_argument("--implementation", choices=("cuda", "cpu", "xla"), help="of ours")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    graphs: dict[str, Graph] = {}
    for name in options.graphs or ():
        graphs[name] = jax_gnn_graph(plain_graphs(options.data)[name].load())
    if not graphs:
        src, dst = rng.integers(0, options.nodes, (2, options.edges))
        graphs["random"] = Graph.from_edges(src, dst, num_nodes=options.nodes)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, width {options.width}, float32")
    print("milliseconds (megabytes of scratch)")
    names = "ours", "plain JAX", "jax.checkpoint"
    print(f"{'':34}" + "".join(f"{name:>18}" for name in names) + f"{'faster by':>11}")
    for graph_name, graph in graphs.items():
        for model in options.models:
            ours, other = jax_gnn.program(MODELS[model]), plain(model)
            functions = dict(zip(names, (ours, other, jax.checkpoint(other)), strict=True))
            given = [graph, *arguments(model, graph, options.width)]
            for kind in ("forward", "gradients"):
                wrap = with_gradients if kind == "gradients" else lambda each: each
                with jax_gnn.implementation(options.implementation):
                    found = measured(
                        {name: wrap(each) for name, each in functions.items()},
                        given,
                        options.seconds,
                    )
                cells = "".join(f"{found[name][0]:9.1f} ({found[name][1]:6.0f})" for name in names)
                faster = min(found[name][0] for name in names[1:]) / found["ours"][0]
                print(f"{graph_name:12}{model:11}{kind:11}{cells}{faster:10.2f}x", flush=True)


if __name__ == "__main__":
    main()
