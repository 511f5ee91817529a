"""Fuzzer of edge regions: random functions of edges against plain JAX in float64.

``python tests/fuzz/regions.py --functions N --seed S --implementation cuda``

A function has 3 to 12 steps on rows of a few shapes: functions of numbers, products, reductions,
softmaxes, concatenations, slices, moves of axes, small products with shared arrays. Results are by
edge, sums and maxima by row, by column and over all. Values and all gradients are compared, except
those of maxima that rounding may give to another entry.

A failure names the function and lists its steps: ``--only FUNCTION`` with the same seed repeats it.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

sys.path.insert(0, str(Path(__file__).parents[1]))
import emulation  # noqa: F401  (installs emulated kernels if asked to)
from op_spec import SCENARIOS, setting
from region_cases import Edges, Model

from jax_gnn._ops.edge_region import cuda, walks
from jax_gnn._ops.edge_region.cuda_codegen import kernel_of
from jax_gnn._ops.edge_region.cuda_text import Infeasible
from jax_gnn._ops.edge_region.region import Sink
from jax_gnn._ops.edge_region.row_program import Access
from jax_gnn._ops.edge_region.tile_kernel import generate_tiles

TOLERANCE = {"float64": 1e-9, "float32": 2e-4}
NEAR = {"float64": 1e-12, "float32": 1e-5}
"""Relative distance from a maximum within which an entry may attain it once rounded."""
UNARY: dict[str, Callable[[Array], Array]] = {
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
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "plus": jnp.add,
    "minus": jnp.subtract,
    "times": jnp.multiply,
    "larger": jnp.maximum,
}


class Steps:
    """A random function of edges, step by step.

    Attributes:
        rows: Access and shape of each argument.
        steps: Description of each step, and its function of the values before it.
    """

    def __init__(self, rng):
        self.rng = rng
        self.depth = int(rng.choice([1, 2, 3, 4, 5, 8, 12, 16, 24, 33, 64]))
        self.heads = int(rng.choice([2, 3, 4]))
        shapes = [(), (self.depth,), (self.heads,), (self.heads, self.depth)]
        self.rows: list[tuple[Access, tuple[int, ...]]] = []
        for access in ("row", "col", "edge", "shared"):
            for _ in range(int(rng.integers(1, 3))):
                self.rows.append((access, shapes[int(rng.integers(len(shapes)))]))
        self.steps: list[tuple[str, Callable[[list[Array]], Array]]] = []
        self.has_product = False

    def run(self, arguments):
        """Return the arguments and the value of each step."""
        values = list(arguments)
        for _, step in self.steps:
            values.append(step(values))
        return values

    def shapes(self):
        """Return the shapes of all values."""
        rows = [jax.ShapeDtypeStruct(shape, np.float32) for _, shape in self.rows]
        return [x.shape for x in jax.eval_shape(lambda *x: self.run(x), *rows)]

    def add(self, name, function, *operands):
        """Append a step, a function of the values with these indices."""
        self.steps.append((name, lambda values: function(*(values[i] for i in operands))))

    def extend(self):
        """Append a random step, if the drawn operands allow one."""
        rng, shapes = self.rng, self.shapes()
        i, j = (int(rng.integers(len(shapes))) for _ in range(2))
        a, b = shapes[i], shapes[j]
        choice = rng.random()
        if choice < 0.35:
            name = str(rng.choice(list(UNARY)))
            self.add(f"{name}({i})", UNARY[name], i)
        elif choice < 0.65:
            name = str(rng.choice(list(BINARY)))
            function = BINARY[name]
            if len(a) == 2 and len(b) == 1 and b[0] == a[0] and a[0] != a[1]:
                self.add(f"{name}({i}, {j}[:, None])", lambda x, y: function(x, y[:, None]), i, j)
            elif len(a) == 1 and len(b) == 1 and a != b:
                self.add(f"outer({i}, {j})", jnp.outer, i, j)
            elif _broadcasts(a, b):
                self.add(f"{name}({i}, {j})", function, i, j)
        elif choice < 0.77 and a:
            reduce = (jnp.sum, jnp.max, jnp.mean)[int(rng.integers(3))]
            axis = int(rng.integers(len(a)))
            self.add(f"{reduce.__name__}({i}, {axis})", lambda x: reduce(x, axis), i)
        elif choice < 0.83 and a:
            self.add(f"softmax({i})", jax.nn.softmax, i)
        elif choice < 0.88 and a:
            self.add(f"reverse({i})", lambda x: x[..., ::-1], i)
        elif choice < 0.93 and len(a) == 1 and len(b) == 1:
            size = max(a[0], b[0])
            name = f"concatenate({i}, {j})[:{size}]"
            self.add(name, lambda x, y: jnp.concatenate([x, y])[:size], i, j)
        elif len(a) == 2:
            self.add(f"transpose({i})", lambda x: x.T[: x.shape[0]].sum(0), i)
        elif len(a) == 1 and a[0] <= 16 and not self.has_product:
            self._multiply(i, a[0])

    def _multiply(self, i, size):
        """Append a product with a new argument, before which the other steps do not see it."""
        index = len(self.rows)
        self.steps = [(name, _without_argument(step, index)) for name, step in self.steps]
        self.rows.append(("shared", (size, self.heads)))
        self.has_product = True
        i = i if i < index else i + 1
        self.add(f"product({i})", jnp.matmul, i, index)


def _broadcasts(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def _without_argument(step, index):
    return lambda values: step(values[:index] + values[index + 1 :])


def random_model(rng):
    """Draw a function of edges; returns it with a description of its steps."""
    steps = Steps(rng)
    for _ in range(int(rng.integers(3, 13))):
        steps.extend()
    count = len(steps.shapes())
    outputs: list[Sink] = []
    values = []
    for _ in range(int(rng.integers(1, 5))):
        dest = str(rng.choice(["row", "row", "col", "edge", "all"]))
        reduce = "none" if dest == "edge" else str(rng.choice(["sum", "sum", "sum", "max", "min"]))
        outputs.append((dest, reduce))
        values.append(count - 1 - int(rng.integers(min(4, count))))
    model = Model(lambda *x: [steps.run(x)[i] for i in values], steps.rows, outputs)
    results = ", ".join(
        f"{reduce} of {i} into {dest}" for i, (dest, reduce) in zip(values, outputs, strict=True)
    )
    arguments = ", ".join(f"{access} {shape}" for access, shape in steps.rows)
    names = [name for name, _ in steps.steps]
    return model, [f"arguments: {arguments}", *names, f"results: {results}"]


def loss(function, stable):
    """Return a scalar nonlinear in the stable elements of results."""

    def scalar(*arrays):
        results = zip(function(*arrays), stable, strict=True)
        return sum(jnp.sum(jnp.sin(jnp.where(mask, x, 0))) for x, mask in results)

    return scalar


def stable_elements(model, edges, arrays, tolerance):
    """Return, for each result, where its gradient goes to the same entries after rounding.

    A maximum of no entries has no gradient. In another precision, a maximum may be attained by
    another entry that comes near to it.
    """
    singly = model._replace(outputs=[("edge", "none")] * len(model.outputs))
    stable = []
    for x, y, (dest, reduce) in zip(
        edges.plain(singly, arrays), edges.plain(model, arrays), model.outputs, strict=True
    ):
        if reduce not in ("max", "min"):
            stable.append(np.asarray(True))
            continue
        ids = {"row": edges.rows, "col": edges.cols, "all": np.zeros(len(edges.rows), int)}[dest]
        extremes = np.asarray(y[None] if dest == "all" else y)
        gaps = np.abs(np.asarray(x)[: len(edges.rows)] - extremes[ids])
        rivals = (gaps > 0) & (gaps < tolerance * (1 + np.abs(extremes[ids])))
        is_open = np.zeros(extremes.shape, bool)
        np.logical_or.at(is_open, ids, rivals)
        stable.append((np.isfinite(extremes) & ~is_open).reshape(y.shape))
    return stable


def relative_error(got, want):
    """Return the largest error, relative to the largest element of each array."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        finite = np.isfinite(y)
        if not np.array_equal(np.where(finite, 0, x), np.where(finite, 0, y), equal_nan=True):
            return np.inf
        x, y = np.where(finite, x, 0), np.where(finite, y, 0)
        worst = max(worst, np.max(np.abs(x - y), initial=0) / np.max(np.abs(y), initial=1e-2))
    return float(worst)


@functools.lru_cache(maxsize=256)
def tiles_if_feasible(program):
    """Generate a kernel with edge tiles, which only programs with products have by themselves."""
    try:
        return generate_tiles(program)
    except Infeasible:
        return kernel_of(program)


def check(rng, implementation, dtype, gradients):
    """Compare a random function; returns its steps and the problem, or nothing."""
    model, steps = random_model(rng)
    edges = Edges.random(rng, str(rng.choice(list(SCENARIOS))))
    arrays = edges.arrays(rng, model, dtype)
    if rng.random() < 0.3:  # arguments at kinks
        arrays = [np.where(rng.random(x.shape) < 0.3, np.zeros((), x.dtype), x) for x in arrays]
    every = tuple(range(len(arrays)))
    wide = [np.asarray(x, np.float64) for x in arrays]
    with setting("xla", "float64"):
        stable = stable_elements(model, edges, wide, NEAR[dtype]) if gradients else []

    def with_gradients(function):
        if not gradients:
            return jax.jit(function)
        return jax.jit(lambda *x: (function(*x), jax.grad(loss(function, stable), every)(*x)))

    try:
        with setting(implementation, dtype):
            got = jax.device_get(with_gradients(edges.region(model))(*arrays))
    except Exception as failure:
        return [*steps, f"{type(failure).__name__}: {failure}"]
    with setting("xla", "float64"):
        want = jax.device_get(with_gradients(lambda *x: edges.plain(model, x))(*wide))
    error = relative_error(got, want)
    return [] if error < TOLERANCE[dtype] else [*steps, f"error {error:.1e}"]


def main():
    """Run the fuzzer; exits with 1 if a function fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--functions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--implementation", default="xla")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCE)
    parser.add_argument("--values", action="store_true", help="no gradients")
    parser.add_argument("--tiles", action="store_true", help="edge tiles for all functions")
    args = parser.parse_args()
    if args.tiles:
        cuda.kernel_of = walks.kernel_of = tiles_if_feasible
    numbers = range(args.functions) if args.only is None else [args.only]
    failures = 0
    for number in numbers:
        rng = np.random.default_rng([args.seed, number])
        problem = check(rng, args.implementation, args.dtype, not args.values)
        failures += bool(problem)
        if problem:
            print(f"function {number} of seed {args.seed}:", *problem, sep="\n  ", flush=True)
    print(f"{len(numbers)} functions, {failures} failures")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
