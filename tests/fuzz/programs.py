"""Writes random programs of messages, and compares each with its reference in all ways to rewrite.

``python tests/fuzz/programs.py --programs N --seed S --implementation xla``

With an implementation, edge regions are formed as on a GPU: in plain XLA, or as emulated kernels.

A program has 5 to 30 steps of all kinds that programs are made of: rows of nodes, edges, relations,
types and shared ones, products, functions, reductions, softmaxes; constants that are made inside,
kinks, exact zeros, quotients. Its graph has a relation without edges, edges that are there twice,
perhaps padding, where arrays of edges hold NaN, and perhaps not all parts. Some arguments hold NaN
where no edge reads them.

Most programs are in float64. Values are compared under all passes and some combinations that are
drawn, a `jax.vmap` under all passes; gradients and the JVP of gradients under one of these. A
third of the programs is in float32, bfloat16 or float16, with features near 1,000 in some: the
errors of values and gradients, against the reference in float64, are compared with those of the
reference in the same dtype. Numbers that this has finite must be finite. Gradients through
softmaxes of features near 1,000 are left out: they are differences of large dot products, which
cancel exactly only in the reference's order of sums.

A failure names the program and lists its steps: ``--only PROGRAM`` with the same seed repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # programs are many
import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import emulation
from program_cases import (
    Sizes,
    all_passes,
    largest_difference,
    random_graph,
    rows_of,
    with_derivatives,
)

from jax_gnn import Edge, Node, NodeType, Relation, implementation, program
from jax_gnn._program.cost import Costs
from jax_gnn._program.explain import explain, kernels, table_of_rows
from jax_gnn._program.passes import PASSES
from jax_gnn._program.plan import Plan
from jax_gnn._program.spaces import Space

if jax.__version_info__ < (0, 11):  # later ones do not know it
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

TOLERANCE = 1e-10
ROUNDED = 1000  # times what one nudge of 2^-50 changes: there are as many operations
DTYPES = *["float64"] * 6, "float32", "bfloat16", "float16"
NUDGES = 4
COMBINATIONS = 1 if emulation.WANTED else 4  # a compiler takes seconds for a kernel
D, H = 3, 2
SHAPES = (), (D,), (H,), (H, D), (D, D)
ANNOTATIONS: dict[Space, Any] = {
    Space.NODE: Node,
    Space.EDGE: Edge,
    Space.RELATION: Relation,
    Space.TYPE: NodeType,
}


def _number(x, value):
    return jnp.asarray(value, x.dtype)


def _averaged(x):
    weights = jnp.ones(x.shape[-1:], x.dtype)
    return x - jnp.average(x, -1, weights=weights, keepdims=True) if x.ndim else x


def _averaged_where(x):
    mask = jnp.arange(x.shape[-1]) != 1 if x.ndim else None
    return x + jnp.mean(x, -1, where=mask, keepdims=True) if x.ndim else x


def _quotient(a, b):
    return a / jnp.where(b == 0, _number(b, 1), b)


KINKS: dict[str, Callable[[Any], Any]] = {
    "where >": lambda x: jnp.where(x > 0, x, _number(x, 0.2) * x),
    "where >=": lambda x: jnp.where(x >= 0, x, _number(x, 0.2) * x),
    "abs": jnp.abs,
    "maximum of 0": lambda x: jnp.maximum(x, 0),
    "clip": lambda x: jnp.clip(x, -1, 1),
    "average": _averaged,
    "average where": _averaged_where,
    "by ones": lambda x: x / jnp.ones_like(x).sum(),
    "third": lambda x: x / 3,
    "iota": lambda x: x * jnp.arange(x.shape[-1], dtype=x.dtype) if x.ndim else x,
    "array": lambda x: x + np.linspace(0, 1, x.shape[-1]).astype(x.dtype) if x.ndim else x,
    "indexed": lambda x: x[..., np.array([0, 1, 1, 0])[: x.shape[-1]]] if x.ndim else x,
    "x / x": lambda x: jnp.where(_quotient(x, x) >= 1, x, 2 * x),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    **KINKS,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "leaky_relu": functools.partial(jax.nn.leaky_relu, negative_slope=0.2),
    "log1p_square": lambda x: jnp.log1p(x**2),
    "inverse": lambda x: 1 / (1 + x**2),
    "not finite at 0": lambda x: jnp.log(jnp.abs(x) + 1e-2) * jax.lax.rsqrt(x**2 + 1e-3),
    "negative": lambda x: -x,
    "half": lambda x: x / 2,
    "loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, h: jnp.tanh(h + x), x),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(x) * x),
    "tanh per number": lambda x: jnp.vectorize(jnp.tanh)(x),
}
COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / (_number(b, 1.5) + jnp.sin(b)),
    "quotient": _quotient,
    "maximum": lambda a, b: jnp.maximum(*jnp.broadcast_arrays(a, b)),
    "where >": lambda a, b: jnp.where(a > 0, a, b),
    # Numbers that are equal but for rounding must be on one side.
    "where": lambda a, b: jnp.where(a > b + _number(b, 0.123), a, 2 * b),
}
REDUCED = "sum", "sum", "sum", "mean", "max", "min", "softmax"
REDUCED += "reverse.sum", "reverse.max", "reverse.softmax"


class Step(NamedTuple):
    """One step of a program.

    Attributes:
        name: Name of the operation.
        operands: Indices of the rows that it takes.
        function: Function of the edge `g` and the operands.
    """

    name: str
    operands: tuple[int, ...]
    function: Callable[..., Any]


class Kind(NamedTuple):
    """Space and shape of a row."""

    space: Space
    shape: tuple[int, ...]


class Written(NamedTuple):
    """A random program.

    Attributes:
        inputs: Kinds of the arguments.
        steps: Steps, each of which appends a row.
        results: Indices of the rows that are returned.
    """

    inputs: tuple[Kind, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def function(self):
        """Return the program as a function with annotated spaces."""

        def written(g, *rows):
            values = list(rows)
            for _, operands, function in self.steps:
                values.append(function(g, *(values[i] for i in operands)))
            return [values[i] for i in self.results]

        names = [f"x{i}" for i in range(len(self.inputs))]
        scope = {"written": written}
        exec(f"def fuzzed(g, {', '.join(names)}): return written(g, {', '.join(names)})", scope)
        fuzzed: Any = scope["fuzzed"]
        fuzzed.__annotations__ = {
            name: ANNOTATIONS[kind.space]
            for name, kind in zip(names, self.inputs, strict=True)
            if kind.space in ANNOTATIONS
        }
        return fuzzed

    def __str__(self):
        lines = [f"x{i}: {kind.space.value} {kind.shape}" for i, kind in enumerate(self.inputs)]
        first = len(self.inputs)
        lines += [
            f"x{first + i} = {name}({', '.join(f'x{j}' for j in operands)})"
            for i, (name, operands, _) in enumerate(self.steps)
        ]
        return "\n".join([*lines, f"results: {', '.join(f'x{i}' for i in self.results)}"])


class Writer:
    """Writes a program, step by step."""

    def __init__(self, rng):
        self.rng = rng
        spaces = [Space.NODE, Space.NODE, Space.EDGE, Space.RELATION, Space.RELATION, Space.SHARED]
        spaces += [Space.TYPE, Space.SHARED]
        self.kinds = [
            Kind(Space.NODE, (D,)),
            Kind(Space.RELATION, (D, D)),
            Kind(Space.SHARED, (D, D)),
        ]
        for _ in range(rng.integers(2, 6)):
            shape = SHAPES[rng.integers(len(SHAPES))]
            self.kinds.append(Kind(spaces[rng.integers(len(spaces))], shape))
        # These hold NaN where no edge reads them, and only edges may.
        self.unread_inputs = len(self.kinds), len(self.kinds) + 1
        self.kinds += [Kind(Space.NODE, (D,)), Kind(Space.RELATION, (D,))]
        self.inputs = tuple(self.kinds)
        self.steps: list[Step] = []

    def write(self):
        """Write a program whose results are its last unused rows."""
        count = self.rng.integers(5, 31)
        ways = [self.read, self.reduce, self.unary, self.combine, self.spread, self.multiply]
        ways += [self.dots, self.reshape, self.weighted, self.attend, self.multiply, self.read]
        ways += [self.concatenate, self.attend_by_relation, self.disturb, self.by_degree]
        ways += [self.unread, self.combine, self.unary, self.difference]
        while len(self.steps) < count:
            ways[self.rng.integers(len(ways))]()
        used = {i for step in self.steps for i in step.operands}
        first = len(self.inputs)
        unused = [i for i in range(first, len(self.kinds)) if i not in used][-4:]
        return Written(self.inputs, tuple(self.steps), tuple(unused))

    # --- Choosing ------------------------------------------------------------------------------

    def any(self, *, late=True, **fields):
        """Draw a row of the wanted kind, preferably a late one; None if there is none."""
        rows = [
            i
            for i, kind in enumerate(self.kinds)
            if i not in self.unread_inputs
            and all(getattr(kind, name) in values for name, values in fields.items())
        ]
        if not rows:
            return None
        if late and self.rng.random() < 0.7:
            rows = rows[-4:]
        return rows[self.rng.integers(len(rows))]

    def fitting(self, row, **fields):
        """Draw a row of the same space, or a shared one."""
        return self.any(space=(self.kinds[row].space, Space.SHARED), **fields)

    def add(self, name, operands, function, kind):
        self.steps.append(Step(name, tuple(operands), function))
        self.kinds.append(kind)

    def space_of(self, *rows):
        spaces = {self.kinds[row].space for row in rows} - {Space.SHARED}
        return spaces.pop() if spaces else Space.SHARED

    # --- Steps ---------------------------------------------------------------------------------

    def read(self):
        row = self.any(space=(Space.NODE, Space.RELATION, Space.TYPE))
        if row is None:
            return
        kind = self.kinds[row]
        names = {
            Space.NODE: ("src", "src", "dst"),
            Space.RELATION: ("relation",),
            Space.TYPE: ("node_type", "src_type", "dst_type"),
        }[kind.space]
        name = names[self.rng.integers(len(names))]
        space = Space.NODE if name == "node_type" else Space.EDGE
        self.add(f"g.{name}", [row], lambda g, x: getattr(g, name)(x), Kind(space, kind.shape))

    def reduce(self):
        row = self.any(space=(Space.EDGE,))
        if row is None:
            return
        name = REDUCED[self.rng.integers(len(REDUCED))]
        space = Space.EDGE if "softmax" in name else Space.NODE

        def function(g, x):
            y = operator.attrgetter(name)(g)(x)  # infinite without edges
            return jnp.where(jnp.isfinite(y), y, 0) if name[-3:] in ("max", "min") else y

        self.add(f"g.{name}", [row], function, Kind(space, self.kinds[row].shape))

    def unary(self):
        row = self.any()
        assert row is not None
        name = list(UNARY)[self.rng.integers(len(UNARY))]
        self.add(name, [row], lambda g, x: UNARY[name](x), self.kinds[row])

    def disturb(self):
        """Replace some numbers of edges by random ones."""
        row = self.any(space=(Space.EDGE,))
        if row is None:
            return

        def function(g, x):
            key = g.key(jax.random.key(0))
            mask = jax.random.bernoulli(key, 0.7, x.shape)
            return jnp.where(mask, x, jax.random.normal(key, x.shape, x.dtype) / 2)

        self.add("random", [row], function, self.kinds[row])

    def by_degree(self):
        """Divide a row of edges by the degree of the destination, which may be 0."""
        row = self.any(space=(Space.EDGE,))
        if row is None:
            return

        def function(g, x):
            return x * g.dst(1 / g.sum(jnp.ones((), x.dtype)))

        self.add("by degree", [row], function, self.kinds[row])

    def unread(self):
        """Read arguments that hold NaN in rows that no edge reads."""
        x, v = self.unread_inputs
        weight = self.any(space=(Space.SHARED,), shape=((D, D),), late=False)
        partner = self.any(space=(Space.NODE,), shape=((D,),))
        assert weight is not None and partner is not None
        choice = int(self.rng.integers(4))

        def function(g, x, v, w, y):
            return (
                lambda: g.src(x) @ w / 2,
                lambda: g.src(x) * g.src(y),
                lambda: jnp.tanh(g.src(x)) * g.relation(v),
                lambda: (g.relation(v) * g.src(y)) @ w / 2,
            )[choice]()

        kind = Kind(Space.EDGE, (D,))
        self.add(f"unread {choice}", [x, v, weight, partner], function, kind)

    def difference(self):
        """Multiply the difference of an edge's end rows, and perhaps reduce it."""
        row = self.any(space=(Space.NODE,), shape=((D,), (H, D)))
        weight = self.any(space=(Space.SHARED,), shape=((D, D),), late=False)
        if row is None or weight is None:
            return
        name = ("sum", "max", "")[self.rng.integers(3)]

        def function(g, x, w):
            y = (g.src(x) - g.dst(x)) @ w
            y = getattr(g, name)(y) if name else y
            return jnp.where(jnp.isfinite(y), y, 0) if name == "max" else y

        kind = Kind(Space.NODE if name else Space.EDGE, self.kinds[row].shape)
        self.add(f"difference {name}", [row, weight], function, kind)

    def combine(self):
        row = self.any()
        assert row is not None
        partner = self.fitting(row, shape=(self.kinds[row].shape, ()))
        if partner is None:
            return
        name = list(COMBINED)[self.rng.integers(len(COMBINED))]
        kind = Kind(self.space_of(row, partner), self.kinds[row].shape)
        self.add(name, [row, partner], lambda g, a, b: COMBINED[name](a, b), kind)

    def spread(self):
        """Multiply a number per head with a row per head."""
        row = self.any(shape=((H, D),))
        partner = None if row is None else self.fitting(row, shape=((H,),))
        if row is None or partner is None:
            return
        kind = Kind(self.space_of(row, partner), (H, D))
        self.add("per head", [row, partner], lambda g, a, b: b[:, None] * a, kind)

    def multiply(self):
        row = self.any(shape=((D,), (H, D), (D, D)))
        partner = None if row is None else self.fitting(row, shape=((D, D),))
        if row is None or partner is None:
            return
        kind = Kind(self.space_of(row, partner), self.kinds[row].shape)
        self.add("matmul", [row, partner], lambda g, a, b: a @ b / 2, kind)

    def dots(self):
        row = self.any(shape=((D,), (H, D), (D, D)))
        partner = None if row is None else self.fitting(row, shape=(self.kinds[row].shape,))
        if row is None or partner is None:
            return
        kind = Kind(self.space_of(row, partner), self.kinds[row].shape[:-1])
        self.add("dots", [row, partner], lambda g, a, b: jnp.sum(a * b, -1) / 2, kind)

    def reshape(self):
        row = self.any(shape=((D,), (H, D), (D, D)))
        assert row is not None
        kind, choice = self.kinds[row], self.rng.integers(4)
        if choice == 0:
            self.add(
                "sum of axis", [row], lambda g, x: x.sum(-1), Kind(kind.space, kind.shape[:-1])
            )
        elif choice == 1 and kind.shape == (D, D):
            self.add("transpose", [row], lambda g, x: x.T, kind)
        elif choice == 2 and kind.shape == (D,):
            self.add("to heads", [row], lambda g, x: jnp.tile(x, (H, 1)), Kind(kind.space, (H, D)))
        elif choice == 3 and kind.shape == (H, D):
            self.add("one head", [row], lambda g, x: x[1], Kind(kind.space, (D,)))

    def concatenate(self):
        row = self.any(shape=((D,),))
        partner = None if row is None else self.fitting(row, shape=((D,),))
        weight = self.any(space=(Space.SHARED,), shape=((D, D),))
        if row is None or partner is None or weight is None:
            return

        def function(g, a, b, w):
            return jnp.concatenate([a, b]) @ jnp.concatenate([w, w.T]) / 2

        kind = Kind(self.space_of(row, partner), (D,))
        self.add("concatenate", [row, partner, weight], function, kind)

    def weighted(self):
        """A weighted sum over edges."""
        row = self.any(space=(Space.EDGE,))
        weight = None if row is None else self.any(space=(Space.EDGE,), shape=((),))
        if row is None or weight is None:
            return
        kind = Kind(Space.NODE, self.kinds[row].shape)
        self.add("weighted sum", [row, weight], lambda g, a, w: g.sum(w * a), kind)

    def attend(self):
        """A sum under the softmax of scores."""
        row = self.any(space=(Space.EDGE,), shape=((D,), (H, D)))
        if row is None:
            return
        heads = self.kinds[row].shape[:-1]
        score = self.any(space=(Space.EDGE,), shape=(heads, ()))
        if score is None:
            return

        def function(g, a, s):
            shares = g.softmax(s)
            return g.sum((shares[:, None] if shares.ndim else shares) * a)

        self.add("attention", [row, score], function, Kind(Space.NODE, self.kinds[row].shape))

    def attend_by_relation(self):
        """Attend as RGAT or HGT do, perhaps with heads and numbers of edges."""
        x, w = self.any(space=(Space.NODE,), shape=((D,),)), self._of_relations()
        key_map, number = self._of_relations(), self.any(space=(Space.EDGE,), shape=((),))
        assert x is not None
        by_keys, scaled, by_head, shared = self.rng.random(4) < 0.5
        operands = [x, w, key_map, *([] if number is None else [number])]

        def function(g, x, w, key_map, *numbers):
            maps, key_maps = (
                jnp.stack([matrix, matrix.T], 1) if by_head else matrix[:, None]
                for matrix in (g.relation(w), g.relation(key_map))
            )
            values = [jnp.einsum("k,khd->hd", x_end, maps) / 2 for x_end in (g.src(x), g.dst(x))]
            if by_keys:
                keys = jnp.einsum("k,khd->hd", g.src(x), key_maps) / 2
                queries = jnp.stack([x, 2 * x]) if by_head else x[None]
                score = (g.dst(queries) * keys).sum(-1)
            else:
                vectors = (jnp.cos(jnp.arange(D) + 1.0) if shared else key_maps[0]), key_maps[-1]
                s, t = ((y * vector).sum(-1) for y, vector in zip(values, vectors, strict=True))
                score = jax.nn.leaky_relu(sum([s, t, *([] if scaled else numbers)]), 0.2)
            shares = g.softmax(score)
            for number in numbers if scaled else ():
                shares *= number
            y = g.sum(shares[:, None] * values[0])
            return y if by_head else y[0]

        kind = Kind(Space.NODE, (H, D) if by_head else (D,))
        self.add(f"{'hgt' if by_keys else 'rgat'} attention", operands, function, kind)

    def _of_relations(self):
        row = self.any(space=(Space.RELATION,), shape=((D, D),), late=False)
        assert row is not None
        return row


# --- Comparing -----------------------------------------------------------------------------------

BOTH = ("from_pairs", "to_pairs")
GRAPHS = (
    (Sizes(7, 18, 4), BOTH),
    (Sizes(7, 18, 4, padding=2), BOTH),
    (Sizes(7, 18, 4), ("to_pairs",)),
    (Sizes(7, 18, 4, padding=2), ()),
    (Sizes(16, 9, 4), BOTH),  # more nodes than edges
)


@functools.cache
def _graph(number):
    """Return one of a few graphs, so that JAX compiles single operations once."""
    rng = np.random.default_rng(number)
    sizes, parts = GRAPHS[number]
    return random_graph(rng, sizes, parts=parts)


def check(seed, number):
    """Compare a random program with its reference.

    Returns:
        The listing of the program, or "" if its numbers are too large to compare.

    Raises:
        AssertionError: The program differs from its reference.
    """
    rng = np.random.default_rng([seed, number])
    writer = Writer(rng)
    written = writer.write()
    graph = _graph(int(rng.integers(len(GRAPHS))))
    dtype = DTYPES[int(rng.integers(len(DTYPES)))]
    offset = {"float64": 0.0, "float16": 100.0}.get(dtype, 1000.0) * float(rng.random() < 0.5)
    is_whole = dtype == "float64" and rng.random() < 0.3
    arguments = {}
    for i, kind in enumerate(written.inputs):
        x = _array(rng, graph, kind)
        x = np.round(x) if is_whole else x
        x = x + offset if kind.space is Space.NODE else x
        if i in writer.unread_inputs:
            x[_unread(graph, kind.space)] = np.nan
        arguments[f"x{i}"] = jnp.asarray(x, dtype)
    function = written.function()
    compiled = program(function)
    call = compiled._call(graph, (), arguments)
    drawn_regions = mock.patch.object(Costs, "training", lambda costs: float(rng.random()))
    with drawn_regions if rng.random() < 0.7 else contextlib.nullcontext():
        full, _ = compiled._plan(call)
        plans = {
            table_of_rows((plan := Plan(full.traced, full.parts, passes)).results, plan): plan
            for passes in all_passes()
        }
        some = rng.permutation(list(plans))[:COMBINATIONS]
        plans = {text: plans[text] for text in some}
        for plan in (full, *plans.values()):
            assert plan.matcher  # cached before the patch of costs ends
    num_regions = len(full.differentiated.regions)
    assert explain(full, graph) and kernels(full, graph).count("gradients") == num_regions
    drawn = full if rng.random() < 0.5 else list(plans.values())[rng.integers(len(plans))]

    def run(plan):
        return lambda graph, **arguments: plan.run(
            graph, [*(arguments[name] for name in call.names), *plan.traced.closed_over]
        )

    described = f"program {number} in {dtype} near {offset:.0f}", str(written)
    runs = {plan.passes: run(plan) for plan in (*plans.values(), full)}
    if dtype != "float64":
        by_softmax = any("softmax" in name or "attention" in name for name, *_ in written.steps)
        derived = None if offset and by_softmax else drawn.passes
        is_compared = _compare_errors(
            compiled, {**runs, drawn.passes: run(drawn)}, derived, graph, arguments, rng, described
        )
        return str(written) if is_compared else ""
    batch = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), arguments)

    @jax.jit
    def run_all(graph, arguments):
        reference = with_derivatives(compiled.reference, graph, arguments, number)
        values = [run_plan(graph, **arguments) for run_plan in runs.values()]
        derived = with_derivatives(run(drawn), graph, arguments, number)
        batched = jax.vmap(lambda row: run(full)(graph, **row))(batch)
        half = compiled.reference(graph, **jax.tree.map(lambda x: 0.5 * x, arguments))
        return reference, values, derived, jax.tree.map(lambda y: y[1], batched), half

    def pairs(arguments):
        reference, values, derived, batched, half = run_all(graph, arguments)
        passes_and_values = [(passes, y) for passes, y in zip(runs, values, strict=True)]
        orders = zip(("values", "gradients", "second"), derived, reference, strict=True)
        return [
            *((passes, "values", y, reference[0]) for passes, y in passes_and_values),
            *((drawn.passes, name, a, b) for name, a, b in orders),
            (PASSES, "vmap", batched, half),
        ]

    compared = pairs(arguments)
    for array in jax.tree.leaves([want for *_, want in compared]):
        x = np.asarray(array)
        if np.isnan(x).any() or np.abs(x[np.isfinite(x)]).max(initial=0) > 1e6:
            return ""  # nothing to compare
    for i, (passes, what, got, want) in enumerate(compared):
        worst = largest_difference(got, want)
        if worst >= TOLERANCE:
            # Divisions by small numbers amplify rounding: compare with the effect of nudges.
            nudges = [
                {k: x * (1 + 2.0**-50 * rng.normal(size=x.shape)) for k, x in arguments.items()}
                for _ in range(NUDGES)
            ]
            limit = ROUNDED * max(
                largest_difference(pairs(nudged)[i][3], want) for nudged in nudges
            )
            assert worst < limit, (
                f"{described[0]}: {what} differ by {worst:.1e}, by rounding {limit:.1e}, after "
                f"{', '.join(passes) or 'no'} passes\n{described[1]}"
            )
    return str(written)


def _unread(graph, space):
    """Return the sources or relations that no edge reads."""
    edges = int(graph.nodes.indptr[-1])
    ids = graph.nodes.cols if space is Space.NODE else graph.matrix(weighted=True).types
    return np.setdiff1d(np.arange(*rows_of(graph, space)), np.asarray(ids)[:edges])


def _compare_errors(compiled, runs, drawn, graph, arguments, rng, described):
    """Compare errors of values and gradients with those of the reference in the same dtype.

    The reference's are the largest of some, at arguments that differ by a rounding: kinks may be on
    either side there. Returns whether there was something to compare.
    """
    shapes = jax.eval_shape(compiled.reference, graph, **arguments)
    weights = [rng.normal(size=xs.shape) for xs in jax.tree.leaves(shapes)]

    def loss(arguments, run, graph):
        results = jax.tree.leaves(run(graph, **arguments))
        finite = (jnp.where(jnp.isfinite(y), y, 0) for y in results)
        return sum(jnp.sum(w * y) for w, y in zip(weights, finite, strict=True))

    def with_gradients(run, graph, arguments):
        return jax.tree.leaves((run(graph, **arguments), jax.grad(loss)(arguments, run, graph)))

    @jax.jit
    def reference(arguments):
        return with_gradients(compiled.reference, graph, arguments)

    @jax.jit
    def ours(graph, arguments):
        return {
            passes: with_gradients(run, graph, arguments)
            if passes == drawn
            else jax.tree.leaves(run(graph, **arguments))
            for passes, run in runs.items()
        }

    wide = {name: x.astype(np.float64) for name, x in arguments.items()}
    limits = jnp.finfo(next(iter(arguments.values())).dtype)
    eps, largest = float(limits.eps), float(limits.max)
    truth = [np.asarray(x) for x in jax.tree.leaves(reference(wide))]
    plain = []
    for i in range(NUDGES):
        near = {
            name: (x * (1 + (i > 0) * eps * rng.uniform(-1, 1, x.shape))).astype(x.dtype)
            for name, x in arguments.items()
        }
        results = jax.tree.leaves(reference(near))
        wide_near = jax.tree.leaves(reference({k: x.astype(np.float64) for k, x in near.items()}))
        plain += [[np.asarray(x, np.float64) for x in xs] for xs in (results, wide_near)]
    is_compared = False
    for passes, values in ours(graph, arguments).items():
        for i, value in enumerate(np.asarray(x, np.float64) for x in values):
            several = np.stack([xs[i] for xs in plain])
            finite = np.isfinite(truth[i]) & np.isfinite(several).all(0)
            if not finite.any():
                continue
            is_compared = True
            want = truth[i][finite]
            errors = np.abs(several[:, finite] - want).max(initial=0)
            scale = np.abs(want).max(initial=0)
            limit = 16 * errors + 16 * eps * scale
            # An overflow counts as the largest number: the limit may reach beyond it.
            within = np.clip(value[finite], -largest, largest)
            worst = np.abs(within - want).max(initial=0)
            assert worst <= limit, (
                f"{described[0]}: result {i} is off by {worst:.1e}, the reference by "
                f"{errors:.1e} of {scale:.1e}, after {', '.join(passes) or 'no'} passes\n"
                f"{described[1]}"
            )
    return is_compared


def _array(rng, graph, kind):
    array = rng.normal(size=(*rows_of(graph, kind.space), *kind.shape))
    if kind.space is Space.EDGE:
        array[int(graph.nodes.indptr[-1]) :] = np.nan
    return array


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--implementation", choices=("xla", "cuda"))
    parser.add_argument("--keep-going", action="store_true", help="report all programs that differ")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    numbers = range(options.programs) if options.only is None else [options.only]
    wrong, compared = [], 0
    for number in numbers:
        try:
            with implementation(options.implementation):
                compared += bool(check(options.seed, number))
        except Exception as error:
            if not options.keep_going:
                print(f"--seed {options.seed} --only {number}")
                raise
            wrong.append(number)
            print(f"program {number}: {type(error).__name__}: {str(error)[:3000]}\n", flush=True)
        if number % 20 == 19:
            print(f"{number + 1} programs", flush=True)
        if number % 100 == 99:
            jax.clear_caches()
    print(f"seed {options.seed}: {len(numbers)} programs, {compared} compared, wrong: {wrong}")
    assert not wrong


if __name__ == "__main__":
    main()
