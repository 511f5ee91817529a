"""Draws random functions of edges, and compares edge regions of them with plain JAX in float64.

``python tests/fuzz/regions.py --functions N --seed S --implementation cuda``

A function has 3 to 12 steps on rows of a few shapes: functions of numbers, products, reductions,
softmaxes, concatenations, slices, moves of axes, small products with shared arrays. Results are by
edge, sums and maxima by row, by column and over all. Values are compared, and all gradients, but
for those of maxima that rounding may give to another entry.

A failure names the function and lists its steps: ``--only FUNCTION`` with the same seed repeats it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import emulation  # noqa: F401  (installs emulated kernels where they are wanted)
from op_spec import SCENARIOS, setting
from region_cases import Edges, Model

from jax_gnn._ops.edge_region.primitive import edge_region

TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
NEAR = {"float64": 1e-12, "float32": 1e-5}
"""Entries this near to a maximum may attain it once they are rounded."""
UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "square": jnp.square,
    "cosine": jnp.cos,
    "expm1": lambda x: jnp.expm1(-(x**2)),
    "inverse": lambda x: 1 / (1 + x**2),
    "root": lambda x: jnp.sqrt(1 + x**2),
    "bump": lambda x: jnp.exp(-(x**2)),
    "cut": lambda x: jnp.where(x > 0, x, -0.1 * x),
    "cut at 0": lambda x: jnp.where(x >= 0, x, 0.2 * x),
    "abs": jnp.abs,
    "maximum of 0": lambda x: jnp.maximum(x, 0),
    "clip": lambda x: jnp.clip(x, -1, 1),
    "third": lambda x: x / 3,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "plus": jnp.add,
    "minus": jnp.subtract,
    "times": jnp.multiply,
    "larger": jnp.maximum,
}


def random_model(rng: np.random.Generator) -> tuple[Model, list[str]]:
    """A function of edges and a list of its steps."""
    depth = int(rng.choice([1, 2, 3, 4, 5, 8, 12, 16, 24, 33, 64]))
    heads = int(rng.choice([2, 3, 4]))
    shapes = [(), (depth,), (heads,), (heads, depth)]
    rows = []
    for read in ("row", "col", "edge", "shared"):
        for _ in range(int(rng.integers(1, 3))):
            rows.append((read, shapes[int(rng.integers(len(shapes)))]))
    steps: list[tuple[str, Callable[[list[Any]], Any]]] = []

    def add(name: str, function: Callable[[list[Any]], Any]) -> None:
        steps.append((name, function))

    count = len(rows)

    def shapes_now() -> list[tuple[int, ...]]:
        values = [jax.ShapeDtypeStruct(shape, np.float32) for _, shape in rows]
        return [x.shape for x in jax.eval_shape(lambda *x: _run(steps, x), *values)]

    for _ in range(int(rng.integers(3, 13))):
        known = shapes_now()
        i, j = (int(rng.integers(len(known))) for _ in range(2))
        a, b = known[i], known[j]
        choice = rng.random()
        if choice < 0.35:
            name = str(rng.choice(list(UNARY)))
            add(f"{name}({i})", lambda v, i=i, name=name: UNARY[name](v[i]))
        elif choice < 0.65:
            name = str(rng.choice(list(BINARY)))
            if len(a) == 2 and len(b) == 1 and b[0] == a[0] and a[0] != a[1]:
                add(
                    f"{name}({i}, {j}[:, None])",
                    lambda v, i=i, j=j, name=name: BINARY[name](v[i], v[j][:, None]),
                )
            elif len(a) == 1 and len(b) == 1 and a != b:
                add(f"outer({i}, {j})", lambda v, i=i, j=j: jnp.outer(v[i], v[j]))
            else:
                try:
                    np.broadcast_shapes(a, b)
                except ValueError:
                    continue
                add(f"{name}({i}, {j})", lambda v, i=i, j=j, name=name: BINARY[name](v[i], v[j]))
        elif choice < 0.77 and a:
            reduce = (jnp.sum, jnp.max, jnp.mean)[int(rng.integers(3))]
            axis = int(rng.integers(len(a)))
            add(
                f"{reduce.__name__}({i}, {axis})",
                lambda v, i=i, axis=axis, reduce=reduce: reduce(v[i], axis),
            )
        elif choice < 0.83 and a:
            add(f"softmax({i})", lambda v, i=i: jax.nn.softmax(v[i]))
        elif choice < 0.88 and a:
            add(f"reverse({i})", lambda v, i=i: v[i][..., ::-1])
        elif choice < 0.93 and len(a) == 1 and len(b) == 1:
            size = max(a[0], b[0])
            add(
                f"concatenate({i}, {j})[:{size}]",
                lambda v, i=i, j=j, size=size: jnp.concatenate([v[i], v[j]])[:size],
            )
        elif len(a) == 2:
            add(f"transpose({i})", lambda v, i=i: v[i].T[: v[i].shape[0]].sum(0))
        elif len(a) == 1 and a[0] <= 16:
            rows_of_weights = ("shared", (a[0], heads))
            place = len(rows)
            if count == len(rows):  # one product a function: arguments come before steps
                steps[:] = [(name, _shifted(step, place)) for name, step in steps]
                rows.append(rows_of_weights)
                at = i if i < place else i + 1
                add(f"product({at})", lambda v, i=at, place=place: v[i] @ v[place])
    known = shapes_now()
    outputs, values = [], []
    for _ in range(int(rng.integers(1, 5))):
        into = str(rng.choice(["row", "row", "col", "edge", "all"]))
        how = "none" if into == "edge" else str(rng.choice(["sum", "sum", "sum", "max", "min"]))
        outputs.append((into, how))
        values.append(len(known) - 1 - int(rng.integers(min(4, len(known)))))
    model = Model(lambda *x: [_run(steps, x)[i] for i in values], rows, outputs)
    made = ", ".join(
        f"{how} of {i} into {into}" for i, (into, how) in zip(values, outputs, strict=True)
    )
    arguments = ", ".join(f"{read} {shape}" for read, shape in rows)
    return model, [f"arguments: {arguments}", *(name for name, _ in steps), f"results: {made}"]


def _run(steps: Any, arguments: Any) -> list[Any]:
    values = list(arguments)
    for _, step in steps:
        values.append(step(values))
    return values


def _shifted(step: Callable[[list[Any]], Any], place: int) -> Callable[[list[Any]], Any]:
    """A step that does not see the argument at a place."""
    return lambda values: step(values[:place] + values[place + 1 :])


def total(function: Callable[..., Any], counted: Any) -> Callable[..., Any]:
    """Nonlinear in the results that count."""

    def scalar(*arrays: Any) -> Any:
        results = zip(function(*arrays), counted, strict=True)
        return sum(jnp.sum(jnp.sin(jnp.where(keep, x, 0))) for x, keep in results)

    return scalar


def settled(model: Model, edges: Edges, arrays: Any, near: float) -> list[Any]:
    """Of each result, where its gradient is that of the same entries however these are rounded.

    A maximum of nothing has none. One that other entries come near to may be any of theirs in
    another precision: where a function is flat at its top, roots of roundings apart.
    """
    singly = model._replace(outputs=[("edge", "none")] * len(model.outputs))
    found: list[Any] = []
    for x, y, (into, how) in zip(
        edges.plain(singly, arrays), edges.plain(model, arrays), model.outputs, strict=True
    ):
        if how in ("max", "min"):
            ids = {"row": edges.rows, "col": edges.cols, "all": np.zeros(len(edges.rows), int)}
            tops = np.asarray(y[None] if into == "all" else y)
            gaps = np.abs(np.asarray(x)[: len(edges.rows)] - tops[ids[into]])
            others = (gaps > 0) & (gaps < near * (1 + np.abs(tops[ids[into]])))
            open_ = np.zeros(tops.shape, bool)
            np.logical_or.at(open_, ids[into], others)
            found.append((np.isfinite(tops) & ~open_).reshape(y.shape))
        else:
            found.append(True)
    return found


def error(got: Any, want: Any) -> float:
    """The largest, relative to the largest value of each array."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        finite = np.isfinite(y)
        if not np.array_equal(np.where(finite, 0, x), np.where(finite, 0, y), equal_nan=True):
            return np.inf
        x, y = np.where(finite, x, 0), np.where(finite, y, 0)
        worst = max(worst, np.max(np.abs(x - y), initial=0) / np.max(np.abs(y), initial=1e-2))
    return float(worst)


def check(rng: np.random.Generator, implementation: str, dtype: str, gradients: bool) -> list[str]:
    """What is wrong with a random function: nothing, or its steps."""
    model, steps = random_model(rng)
    edges = Edges.random(rng, str(rng.choice(list(SCENARIOS))))
    arrays = edges.arrays(rng, model, dtype)
    if rng.random() < 0.3:  # kinks are met exactly
        arrays = [np.where(rng.random(x.shape) < 0.3, np.zeros((), x.dtype), x) for x in arrays]
    every = tuple(range(len(arrays)))
    wide = [np.asarray(x, np.float64) for x in arrays]
    with setting("xla", "float64"):
        counted = settled(model, edges, wide, NEAR[dtype]) if gradients else None

    def both(function: Callable[..., Any]) -> Any:
        if not gradients:
            return jax.jit(function)
        return jax.jit(lambda *x: (function(*x), jax.grad(total(function, counted), every)(*x)))

    def ours(*x: Any) -> Any:
        return edge_region(model.function, x, model.reads, model.outputs, edges.matrix)

    try:
        with setting(implementation, dtype):
            got = jax.device_get(both(ours)(*arrays))
    except Exception as failure:
        return [*steps, f"{type(failure).__name__}: {failure}"]
    with setting("xla", "float64"):
        want = jax.device_get(both(lambda *x: edges.plain(model, x))(*wide))
    found = error(got, want)
    return [] if found < TOLERANCE[dtype] else [*steps, f"error {found:.1e}"]


def main() -> None:
    """Ends the process with a count of failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--implementation", default="xla")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCE)
    parser.add_argument("--values", action="store_true", help="no gradients")
    args = parser.parse_args()
    failures = 0
    for number in range(args.functions) if args.only is None else [args.only]:
        rng = np.random.default_rng([args.seed, number])
        wrong = check(rng, args.implementation, args.dtype, not args.values)
        failures += bool(wrong)
        if wrong:
            print(f"function {number} of seed {args.seed}:", *wrong, sep="\n  ", flush=True)
    print(f"{args.functions if args.only is None else 1} functions, {failures} failures")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
