"""Writes random functions of gathers, maps and scatters, and compares each with itself lifted.

``python tests/fuzz/lift.py --functions N --seed S``

A function has 3 to 10 steps. Some are message passing: rows of nodes are gathered by senders or
receivers, mapped, and reduced. Others almost are: ids that are changed in between, negative ones or
such out of range, edges of another length, gathers of edges by edges, integer rows, masks, loops,
branches, derivatives inside. All is in float64: values, and gradients of a random sum, of known ids
in odd functions, of traced ones in others. A failure names the function and lists its steps:
``--only FUNCTION`` with the same seed repeats it.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # functions are many
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jax_gnn

TOLERANCE = 1e-10
NODES, EDGES, FEW, GRAPHS = 6, 17, 13, 3
WIDTHS = 3, 4

State = dict[str, list[Any]]
Step = Callable[[State, dict[str, Array]], None]


@jax.custom_vjp
def scaled_gradient(x: Array) -> Array:
    """Return x, with twice its gradient where x is positive."""
    return jnp.sin(x)


scaled_gradient.defvjp(
    lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.where(x > 0, 2 * ct, ct) * jnp.cos(x),)
)

MAPS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "relu": lambda x: jax.nn.relu(x - 0.1),
    "softplus": jax.nn.softplus,
    "norm": lambda x: x / jnp.sqrt(1 + jnp.sum(x * x, -1, keepdims=True)),
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "reverse": lambda x: x[:, ::-1],
    "cumsum": lambda x: jnp.cumsum(x, -1) / 3,
    "take": lambda x: x[:, jnp.array([1, 0, 2, 3])[: x.shape[1]]],
    "outer": lambda x: jnp.einsum("ei,ej->eij", x, x[:, :2]).sum(2),
    "maximum": lambda x: jnp.maximum(x, x.mean(-1, keepdims=True) + 0.01),
    "sort": lambda x: jnp.sort(x, -1),
    "vmapped": jax.vmap(lambda row: row * jnp.sin(row[0])),
    "custom": scaled_gradient,
    "checkpoint": jax.checkpoint(lambda x: jnp.cos(x) * x),
    "set": lambda x: x.at[:, 0].set(x[:, 1]),
    "pad": lambda x: jnp.pad(x, ((0, 0), (0, 1)))[:, :-1],
    "transposed": lambda x: jnp.tanh(x.T).T,
    "over edges": lambda x: x - x.mean(0),
    "clip": lambda x: jnp.clip(x, -0.9, 1.3),
}
IDS: dict[str, Callable[[Array], Array]] = {
    "mod": lambda ids: ids % NODES,
    "clip": lambda ids: jnp.clip(ids, 0, NODES - 1),
    "where": lambda ids: jnp.where(jnp.arange(len(ids)) % 5 < 4, ids, NODES),
    "reverse": lambda ids: ids[::-1],
    "shift": lambda ids: ids - 1,
    "row": lambda ids: jnp.stack([ids[::-1], ids])[1],
    "narrow": lambda ids: ids.astype(jnp.int16),
}


STEPS = """
    gather gather pair map map matmul sum sum extreme node ids few by-edge integers mask softmax
    mean add graphs third scan cond while forces fill dropout arange
""".split()  # noqa: SIM905 (a list would take a line for each name)


def segment_softmax(x: Array, ids: Array) -> Array:
    """Return the softmax over equal ids, as jraph writes it."""
    maxima = jax.ops.segment_max(x, ids, NODES)
    exp = jnp.exp(x - maxima[ids])
    return exp / jax.ops.segment_sum(exp, ids, NODES)[ids]


def draw_step(rng: np.random.Generator, depth: int = 0) -> tuple[str, Step]:
    """Return a random step and its name; it appends to the lists of nodes or edges."""
    name = str(rng.choice(STEPS))
    pick = int(rng.integers(1 << 30))
    ids = str(rng.choice(["senders", "receivers"], p=[0.4, 0.6]))
    kind = str(rng.choice(list(MAPS)))

    def nodes(state: State) -> Array:
        return state["nodes"][-1 - pick % min(2, len(state["nodes"]))]

    def edges(state: State) -> Array:
        return state["edges"][-1 - pick % min(3, len(state["edges"]))]

    def array(state: State, arrays: dict[str, Array], side: str) -> Array:
        return state[side][-1] if pick % 4 == 0 and state[side] else arrays[side]

    def fitted(x: Array, arrays: dict[str, Array]) -> Array:
        weight = arrays[f"w{x.shape[1]}"]
        return x @ weight

    def gather(state: State, arrays: dict[str, Array]) -> None:
        state["edges"].append(nodes(state)[array(state, arrays, ids)])

    def fill(state: State, arrays: dict[str, Array]) -> None:
        rows = jnp.take(nodes(state), arrays[ids], axis=0, mode=("fill", "clip")[pick % 2])
        state["edges"].append(jnp.where(jnp.isnan(rows), 0.5, rows))

    def dropout(state: State, arrays: dict[str, Array]) -> None:
        x = edges(state)
        keep = jax.random.bernoulli(jax.random.key(pick), 0.7, x.shape)
        state["edges"].append(jnp.where(keep, x, 0))

    def arange(state: State, arrays: dict[str, Array]) -> None:
        x = nodes(state)
        state["nodes"].append(x + x[jnp.arange(NODES)[::-1]])

    def pair(state: State, arrays: dict[str, Array]) -> None:
        x = nodes(state)
        both = x[arrays["senders"]], x[arrays["receivers"]]
        state["edges"].append(both[0] - both[1] if pick % 2 else both[0] * both[1])

    def mapped(state: State, arrays: dict[str, Array]) -> None:
        state["edges"].append(MAPS[kind](edges(state)))

    def matmul(state: State, arrays: dict[str, Array]) -> None:
        joined = jnp.concatenate([fitted(edges(state), arrays), fitted(arrays["e"], arrays)], -1)
        state["edges"].append(joined @ arrays["w2"])

    def summed(state: State, arrays: dict[str, Array]) -> None:
        target = array(state, arrays, ids)
        if pick % 3:
            y = jax.ops.segment_sum(edges(state), target, NODES)
        else:
            y = jnp.ones((NODES, edges(state).shape[1])).at[target].add(edges(state))
        state["nodes"].append(y)

    def extreme(state: State, arrays: dict[str, Array]) -> None:
        reduce = jax.ops.segment_max if pick % 2 else jax.ops.segment_min
        y = reduce(edges(state), arrays[ids], NODES)
        state["nodes"].append(jnp.where(jnp.isinf(y), 0, y))

    def node(state: State, arrays: dict[str, Array]) -> None:
        x = nodes(state)
        state["nodes"].append(
            jnp.tanh(fitted(x, arrays)) + (MAPS[kind](x).sum() if pick % 2 else 0)
        )

    def change_ids(state: State, arrays: dict[str, Array]) -> None:
        state[ids].append(list(IDS.values())[pick % len(IDS)](arrays[ids]))

    def few(state: State, arrays: dict[str, Array]) -> None:
        y = edges(state)[:FEW] * nodes(state)[arrays["few"]].sum(1, keepdims=True)
        state["nodes"].append(jax.ops.segment_sum(y, arrays["few"], NODES))

    def by_edge(state: State, arrays: dict[str, Array]) -> None:
        m = edges(state)
        other = m[arrays["pairs"]] * m[arrays["pairs"][::-1]]
        state["edges"].append(m + jax.ops.segment_sum(other, arrays["pairs"], EDGES))

    def integers(state: State, arrays: dict[str, Array]) -> None:
        charges = arrays["charges"][arrays[ids]]
        count = jax.ops.segment_sum(charges, arrays["receivers"], NODES)
        state["edges"].append(edges(state) * charges[:, None])
        state["nodes"].append(nodes(state) * count[:, None] / 10)

    def mask(state: State, arrays: dict[str, Array]) -> None:
        flags = arrays["senders"] != arrays["receivers"]
        state["edges"].append(jnp.where(flags[:, None], edges(state), 0.25))

    def softmax(state: State, arrays: dict[str, Array]) -> None:
        m = edges(state)
        state["edges"].append(m * segment_softmax(m[:, 0], jnp.abs(arrays[ids]) % NODES)[:, None])

    def mean(state: State, arrays: dict[str, Array]) -> None:
        m, target = edges(state), arrays[ids]
        counts = jax.ops.segment_sum(jnp.ones(len(target)), target, NODES)
        total = jax.ops.segment_sum(m, target, NODES)
        state["nodes"].append(total / jnp.maximum(counts, 1)[:, None])

    def add(state: State, arrays: dict[str, Array]) -> None:
        m = edges(state)
        state["edges"].append(
            fitted(m, arrays) + m[:, :1] * arrays["e"][:, :1] + edges(state).sum()
        )

    def graphs(state: State, arrays: dict[str, Array]) -> None:
        total = jax.ops.segment_sum(nodes(state), arrays["graph_ids"], GRAPHS)
        state["nodes"].append(nodes(state) + total[arrays["graph_ids"]])

    def third(state: State, arrays: dict[str, Array]) -> None:
        total = jax.ops.segment_sum(edges(state), arrays["kinds"], GRAPHS)
        state["edges"].append(edges(state)[:, :1] * total[arrays["kinds"]] + edges(state).mean())

    def layer(x: Array, arrays: dict[str, Array], weight: Any = 1.0) -> Array:
        m = MAPS[kind](x[arrays["senders"]]) * weight * x[arrays["receivers"]][:, :1]
        return jnp.tanh(jax.ops.segment_sum(m, arrays["receivers"], NODES) + x)

    def scan(state: State, arrays: dict[str, Array]) -> None:
        def body(x: Array, weight: Array) -> tuple[Array, Array]:
            y = layer(x, arrays, weight)
            return y, y.sum()

        y, sums = jax.lax.scan(body, nodes(state), arrays["e"][:2, 0])
        state["nodes"].append(y + sums.sum())

    def cond(state: State, arrays: dict[str, Array]) -> None:
        x = nodes(state)
        other = [lambda x: x * 2.0, lambda x: layer(x, arrays, 0.5)][pick % 2]
        state["nodes"].append(jax.lax.cond(x[0, 0] > 0, lambda x: layer(x, arrays), other, x))

    def loop(state: State, arrays: dict[str, Array]) -> None:
        state["nodes"].append(jax.lax.fori_loop(0, 2, lambda i, x: layer(x, arrays), nodes(state)))

    def forces(state: State, arrays: dict[str, Array]) -> None:
        def energy(x: Array) -> Array:
            r = x[arrays["senders"]] - x[arrays["receivers"]]
            e = MAPS[kind if kind != "over edges" else "tanh"](r).sum(-1) * jnp.exp(-(r**2).sum(-1))
            return jax.ops.segment_sum(e, arrays["receivers"], NODES).sum()

        state["nodes"].append(jax.grad(energy)(nodes(state)))

    steps: dict[str, Step] = {
        "gather": gather,
        "fill": fill,
        "dropout": dropout,
        "arange": arange,
        "pair": pair,
        "map": mapped,
        "matmul": matmul,
        "sum": summed,
        "extreme": extreme,
        "node": node,
        "ids": change_ids,
        "few": few,
        "by-edge": by_edge,
        "integers": integers,
        "mask": mask,
        "softmax": softmax,
        "mean": mean,
        "add": add,
        "graphs": graphs,
        "third": third,
        "scan": scan,
        "cond": cond,
        "while": loop,
        "forces": forces,
    }
    return f"{name} ({ids}, {kind}, {pick})", steps[name]


def draw_arrays(rng: np.random.Generator) -> dict[str, Any]:
    """Return arguments: ids are in range in most cases."""
    low, high = ((0, NODES), (0, NODES), (-3, NODES + 2), (-2 * NODES, 2 * NODES))[rng.integers(4)]
    arrays: dict[str, Any] = {
        "x": rng.normal(size=(NODES, 3)),
        "e": rng.normal(size=(EDGES, int(rng.choice(WIDTHS)))),
        **{f"w{width}": rng.normal(size=(width, 4)) / 2 for width in WIDTHS},
        "w2": rng.normal(size=(8, int(rng.choice(WIDTHS)))) / 3,
    }
    arrays |= {
        "senders": rng.integers(low, high, EDGES),
        "receivers": rng.integers(low, high, EDGES),
        "few": rng.integers(NODES, size=FEW),
        "pairs": rng.integers(EDGES, size=2 * EDGES),
        "charges": rng.integers(1, 4, NODES),
        "kinds": rng.integers(GRAPHS, size=EDGES),
        "graph_ids": np.sort(rng.integers(GRAPHS, size=NODES)),
    }
    if rng.random() < 0.3:
        arrays["receivers"] = np.sort(arrays["receivers"])
    dtype = rng.choice([np.int32, np.int64])
    return {k: jnp.asarray(v, dtype if v.dtype.kind == "i" else None) for k, v in arrays.items()}


def run(steps: list[Step], arrays: dict[str, Array]) -> Any:
    """Return the last nodes and edges after all steps."""
    state: State = {"nodes": [arrays["x"]], "edges": [arrays["e"]], "senders": [], "receivers": []}
    for step in steps:
        step(state, arrays)
    return state["nodes"][-2:], state["edges"][-1:]


def check(function: Callable[..., Any], arrays: dict[str, Array], seed: int) -> float:
    """Return the largest difference between a function and itself lifted."""
    lifted = jax_gnn.lift(function, deterministic=True)
    floats = {k: v for k, v in arrays.items() if jnp.issubdtype(v.dtype, jnp.floating)}
    ids = {k: v for k, v in arrays.items() if k not in floats}

    def loss(call: Callable[..., Any], floats: Any, ids: Any) -> tuple[Array, Any]:
        results = call({**floats, **ids})
        signs = np.random.default_rng(seed)
        total = sum(jnp.sum(y * signs.normal(size=y.shape)) for y in jax.tree.leaves(results))
        return total, results

    def results_of(call: Callable[..., Any], floats: Any, ids: Any) -> Any:
        return jax.value_and_grad(functools.partial(loss, call), has_aux=True)(floats, ids)

    expected = results_of(function, floats, ids)
    worst = 0.0
    if seed % 2:
        actual = jax.jit(lambda floats: results_of(lifted, floats, ids))(floats)
    else:
        actual = jax.jit(functools.partial(results_of, lifted))(floats, ids)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape)
        x, y = np.asarray(a), np.asarray(b)
        assert (np.isfinite(x) == np.isfinite(y)).all(), "not finite"
        difference = np.abs(np.where(np.isfinite(x), x - y, 0)).max()
        worst = max(worst, float(difference / (1 + np.abs(y[np.isfinite(y)]).max(initial=0))))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    numbers = range(options.first, options.first + options.functions)
    failures = lifted = 0
    for number in numbers if options.only is None else [options.only]:
        rng = np.random.default_rng([options.seed, number])
        steps = [draw_step(rng) for _ in range(rng.integers(3, 11))]
        arrays = draw_arrays(rng)
        # Plain indexing promises that ids are in range: JAX's derivatives of others contradict each
        # other, and traced ids are believed to be in range.
        has_forces = any(name.startswith("forces") for name, _ in steps)
        for name in (["senders"], [], *[["senders", "receivers"]] * 2)[number % 2 + 2 * has_forces]:
            arrays[name] = jnp.clip(arrays[name], -NODES, NODES - 1)
        function = functools.partial(run, [step for _, step in steps])
        try:
            worst = check(function, arrays, number)
            failed = not worst < TOLERANCE
            reason = f"differs by {worst:.1e}"
            head = jax_gnn.lift(function, deterministic=True).explain(arrays)[:60]
            lifted += " 0 programs" not in head and "runs as it is" not in head
        except Exception:
            failed, reason = True, traceback.format_exc()
        if failed:
            failures += 1
            print(
                f"function {number}: {reason}", *(name for name, _ in steps), sep="\n  ", flush=True
            )
        if number % 50 == 49:
            jax.clear_caches()
    print(f"{failures} failures of {len(numbers)} functions, {lifted} with programs")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
