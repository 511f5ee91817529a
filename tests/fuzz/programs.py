"""Writes random programs of messages, and compares each with its reference in all ways to rewrite.

``python tests/fuzz/programs.py --programs N --seed S``

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
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # programs are many
import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from program_cases import (
    Sizes,
    all_passes,
    everything,
    largest_difference,
    random_graph,
    rows_of,
)

from jax_gnn import Edge, Node, NodeType, Relation, program
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
COMBINATIONS = 4
D, H = 3, 2
SHAPES = (), (D,), (H,), (H, D), (D, D)
ANNOTATIONS: dict[Space, Any] = {
    Space.NODE: Node,
    Space.EDGE: Edge,
    Space.RELATION: Relation,
    Space.TYPE: NodeType,
}


def _number(x: Any, value: float) -> Any:
    return jnp.asarray(value, x.dtype)


def _averaged(x: Any) -> Any:
    ones = jnp.ones(x.shape[-1:], x.dtype)
    return x - jnp.average(x, -1, weights=ones, keepdims=True) if x.ndim else x


def _averaged_where(x: Any) -> Any:
    kept = jnp.arange(x.shape[-1]) != 1 if x.ndim else None
    return x + jnp.mean(x, -1, where=kept, keepdims=True) if x.ndim else x


def _quotient(a: Any, b: Any) -> Any:
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


class Step(NamedTuple):
    """One step of a program.

    Attributes:
        name: What is done.
        operands: To which rows, by number.
        function: How.
    """

    name: str
    operands: tuple[int, ...]
    function: Callable[..., Any]


class Kind(NamedTuple):
    """Where a row lives, and its shape."""

    space: Space
    shape: tuple[int, ...]


class Written(NamedTuple):
    """A random program.

    Attributes:
        inputs: What it takes.
        steps: What it does, each making one row more.
        results: Which rows it gives.
    """

    inputs: tuple[Kind, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def function(self) -> Callable[..., Any]:
        """It as a function, which says where its arguments live."""

        def written(g: Any, *rows: Any) -> list[Any]:
            found = list(rows)
            for _, operands, function in self.steps:
                found.append(function(g, *(found[i] for i in operands)))
            return [found[i] for i in self.results]

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

    def __str__(self) -> str:
        lines = [f"x{i}: {kind.space.value} {kind.shape}" for i, kind in enumerate(self.inputs)]
        first = len(self.inputs)
        lines += [
            f"x{first + i} = {name}({', '.join(f'x{j}' for j in operands)})"
            for i, (name, operands, _) in enumerate(self.steps)
        ]
        return "\n".join([*lines, f"results: {', '.join(f'x{i}' for i in self.results)}"])


class Writer:
    """Writes a program, step by step."""

    def __init__(self, rng: np.random.Generator) -> None:
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

    def write(self) -> Written:
        """A program whose results are its last rows of edges and nodes."""
        count = self.rng.integers(5, 31)
        ways = [self.read, self.reduce, self.unary, self.combine, self.spread, self.multiply]
        ways += [self.dots, self.reshape, self.weighted, self.attend, self.multiply, self.read]
        ways += [self.concatenate, self.attend_by_relation, self.disturb, self.by_degree]
        ways += [self.unread, self.combine, self.unary, self.difference]
        while len(self.steps) < count:
            ways[self.rng.integers(len(ways))]()
        used = {i for step in self.steps for i in step.operands}
        first = len(self.inputs)
        last = [i for i in range(first, len(self.kinds)) if i not in used][-4:]
        return Written(self.inputs, tuple(self.steps), tuple(last))

    # --- Choosing ------------------------------------------------------------------------------

    def any(self, *, late: bool = True, **wanted: Any) -> int | None:
        """A row of a kind, of late ones rather."""
        found = [
            i
            for i, kind in enumerate(self.kinds)
            if i not in self.unread_inputs
            and all(getattr(kind, name) in values for name, values in wanted.items())
        ]
        if not found:
            return None
        if late and self.rng.random() < 0.7:
            found = found[-4:]
        return found[self.rng.integers(len(found))]

    def fitting(self, row: int, **wanted: Any) -> int | None:
        """A row of the same space, or a shared one."""
        return self.any(space=(self.kinds[row].space, Space.SHARED), **wanted)

    def add(self, name: str, operands: Sequence[int], function: Any, kind: Kind) -> None:
        self.steps.append(Step(name, tuple(operands), function))
        self.kinds.append(kind)

    def space_of(self, *rows: int) -> Space:
        spaces = {self.kinds[row].space for row in rows} - {Space.SHARED}
        return spaces.pop() if spaces else Space.SHARED

    # --- Steps ---------------------------------------------------------------------------------

    def read(self) -> None:
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

    def reduce(self) -> None:
        row = self.any(space=(Space.EDGE,))
        if row is None:
            return
        name = REDUCED[self.rng.integers(len(REDUCED))]
        space = Space.EDGE if name == "softmax" else Space.NODE

        def function(g: Any, x: Any) -> Any:
            y = getattr(g, name)(x)  # of no edges infinite
            return jnp.where(jnp.isfinite(y), y, 0) if name in ("max", "min") else y

        self.add(f"g.{name}", [row], function, Kind(space, self.kinds[row].shape))

    def unary(self) -> None:
        row = self.any()
        assert row is not None
        name = list(UNARY)[self.rng.integers(len(UNARY))]
        self.add(name, [row], lambda g, x: UNARY[name](x), self.kinds[row])

    def disturb(self) -> None:
        """Some numbers of edges are others, which are drawn."""
        row = self.any(space=(Space.EDGE,))
        if row is None:
            return

        def function(g: Any, x: Any) -> Any:
            key = g.key(jax.random.key(0))
            kept = jax.random.bernoulli(key, 0.7, x.shape)
            return jnp.where(kept, x, jax.random.normal(key, x.shape, x.dtype) / 2)

        self.add("random", [row], function, self.kinds[row])

    def by_degree(self) -> None:
        """A row of edges by the degree of the destination, whose reciprocal may be infinite."""
        row = self.any(space=(Space.EDGE,))
        if row is None:
            return

        def function(g: Any, x: Any) -> Any:
            return x * g.dst(1 / g.sum(jnp.ones((), x.dtype)))

        self.add("by degree", [row], function, self.kinds[row])

    def unread(self) -> None:
        """A function of what edges read of arguments that hold NaN elsewhere."""
        x, v = self.unread_inputs
        weight = self.any(space=(Space.SHARED,), shape=((D, D),), late=False)
        other = self.any(space=(Space.NODE,), shape=((D,),))
        assert weight is not None and other is not None
        choice = int(self.rng.integers(4))

        def function(g: Any, x: Any, v: Any, w: Any, y: Any) -> Any:
            return (
                lambda: g.src(x) @ w / 2,
                lambda: g.src(x) * g.src(y),
                lambda: jnp.tanh(g.src(x)) * g.relation(v),
                lambda: (g.relation(v) * g.src(y)) @ w / 2,
            )[choice]()

        kind = Kind(Space.EDGE, (D,))
        self.add(f"unread {choice}", [x, v, weight, other], function, kind)

    def difference(self) -> None:
        """A product with the difference of the rows of both ends, and its sum."""
        row = self.any(space=(Space.NODE,), shape=((D,), (H, D)))
        weight = self.any(space=(Space.SHARED,), shape=((D, D),), late=False)
        if row is None or weight is None:
            return
        name = ("sum", "max", "")[self.rng.integers(3)]

        def function(g: Any, x: Any, w: Any) -> Any:
            y = (g.src(x) - g.dst(x)) @ w
            y = getattr(g, name)(y) if name else y
            return jnp.where(jnp.isfinite(y), y, 0) if name == "max" else y

        kind = Kind(Space.NODE if name else Space.EDGE, self.kinds[row].shape)
        self.add(f"difference {name}", [row, weight], function, kind)

    def combine(self) -> None:
        row = self.any()
        assert row is not None
        other = self.fitting(row, shape=(self.kinds[row].shape, ()))
        if other is None:
            return
        name = list(COMBINED)[self.rng.integers(len(COMBINED))]
        kind = Kind(self.space_of(row, other), self.kinds[row].shape)
        self.add(name, [row, other], lambda g, a, b: COMBINED[name](a, b), kind)

    def spread(self) -> None:
        """Numbers of heads times rows of heads."""
        row = self.any(shape=((H, D),))
        other = None if row is None else self.fitting(row, shape=((H,),))
        if row is None or other is None:
            return
        kind = Kind(self.space_of(row, other), (H, D))
        self.add("per head", [row, other], lambda g, a, b: b[:, None] * a, kind)

    def multiply(self) -> None:
        row = self.any(shape=((D,), (H, D), (D, D)))
        other = None if row is None else self.fitting(row, shape=((D, D),))
        if row is None or other is None:
            return
        kind = Kind(self.space_of(row, other), self.kinds[row].shape)
        self.add("matmul", [row, other], lambda g, a, b: a @ b / 2, kind)

    def dots(self) -> None:
        row = self.any(shape=((D,), (H, D), (D, D)))
        other = None if row is None else self.fitting(row, shape=(self.kinds[row].shape,))
        if row is None or other is None:
            return
        kind = Kind(self.space_of(row, other), self.kinds[row].shape[:-1])
        self.add("dots", [row, other], lambda g, a, b: jnp.sum(a * b, -1) / 2, kind)

    def reshape(self) -> None:
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

    def concatenate(self) -> None:
        row = self.any(shape=((D,),))
        other = None if row is None else self.fitting(row, shape=((D,),))
        weight = self.any(space=(Space.SHARED,), shape=((D, D),))
        if row is None or other is None or weight is None:
            return

        def function(g: Any, a: Any, b: Any, w: Any) -> Any:
            return jnp.concatenate([a, b]) @ jnp.concatenate([w, w.T]) / 2

        kind = Kind(self.space_of(row, other), (D,))
        self.add("concatenate", [row, other, weight], function, kind)

    def weighted(self) -> None:
        """A weighted sum over edges."""
        row = self.any(space=(Space.EDGE,))
        weight = None if row is None else self.any(space=(Space.EDGE,), shape=((),))
        if row is None or weight is None:
            return
        kind = Kind(Space.NODE, self.kinds[row].shape)
        self.add("weighted sum", [row, weight], lambda g, a, w: g.sum(w * a), kind)

    def attend(self) -> None:
        """A sum under the softmax of scores."""
        row = self.any(space=(Space.EDGE,), shape=((D,), (H, D)))
        if row is None:
            return
        heads = self.kinds[row].shape[:-1]
        score = self.any(space=(Space.EDGE,), shape=(heads, ()))
        if score is None:
            return

        def function(g: Any, a: Any, s: Any) -> Any:
            shares = g.softmax(s)
            return g.sum((shares[:, None] if shares.ndim else shares) * a)

        self.add("attention", [row, score], function, Kind(Space.NODE, self.kinds[row].shape))

    def attend_by_relation(self) -> None:
        """RGAT's or HGT's attention, perhaps of heads, and with numbers of edges."""
        x, w = self.any(space=(Space.NODE,), shape=((D,),)), self._of_relations()
        other, number = self._of_relations(), self.any(space=(Space.EDGE,), shape=((),))
        assert x is not None
        by_keys, scaled, by_head, shared = self.rng.random(4) < 0.5
        operands = [x, w, other, *([] if number is None else [number])]

        def function(g: Any, x: Any, w: Any, other: Any, *number: Any) -> Any:
            maps, others = (
                jnp.stack([each, each.T], 1) if by_head else each[:, None]
                for each in (g.relation(w), g.relation(other))
            )
            ends = [jnp.einsum("k,khd->hd", end(x), maps) / 2 for end in (g.src, g.dst)]
            if by_keys:
                keys = jnp.einsum("k,khd->hd", g.src(x), others) / 2
                queries = jnp.stack([x, 2 * x]) if by_head else x[None]
                score = (g.dst(queries) * keys).sum(-1)
            else:
                vectors = (jnp.cos(jnp.arange(D) + 1.0) if shared else others[0]), others[-1]
                s, t = ((end * vector).sum(-1) for end, vector in zip(ends, vectors, strict=True))
                score = jax.nn.leaky_relu(sum([s, t, *([] if scaled else number)]), 0.2)
            shares = g.softmax(score)
            for each in number if scaled else ():
                shares *= each
            y = g.sum(shares[:, None] * ends[0])
            return y if by_head else y[0]

        kind = Kind(Space.NODE, (H, D) if by_head else (D,))
        self.add(f"{'hgt' if by_keys else 'rgat'} attention", operands, function, kind)

    def _of_relations(self) -> int:
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
def _graph(number: int) -> Any:
    """One of a few graphs, so that what JAX compiles of single operations is used again."""
    rng = np.random.default_rng(number)
    sizes, parts = GRAPHS[number]
    return random_graph(rng, sizes, parts=parts)


def check(seed: int, number: int) -> str:
    """The program of a number, or what is wrong with it.

    Raises:
        AssertionError: it is not what its reference is.
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
    made = program(function)
    call = made._call(graph, (), arguments)
    drawn_regions = mock.patch.object(Costs, "training", lambda costs, rows: float(rng.random()))
    with drawn_regions if rng.random() < 0.7 else contextlib.nullcontext():
        whole, _ = made._plan(call)
        plans = {
            table_of_rows((plan := Plan(whole.traced, whole.parts, passes)).results, plan): plan
            for passes in all_passes()
        }
        some = rng.permutation(list(plans))[:COMBINATIONS]
        plans = {text: plans[text] for text in some}
        for plan in (whole, *plans.values()):
            assert plan.matcher  # is found, and kept
    assert explain(whole, graph) and kernels(whole, graph).count("gradients") == len(whole.regions)
    drawn = whole if rng.random() < 0.5 else list(plans.values())[rng.integers(len(plans))]

    def run(plan: Plan) -> Callable[..., Any]:
        return lambda graph, **arguments: plan.run(
            graph, [*(arguments[name] for name in call.names), *plan.traced.closed_over]
        )

    described = f"program {number} in {dtype} near {offset:.0f}", str(written)
    runs = {plan.passes: run(plan) for plan in (*plans.values(), whole)}
    if dtype != "float64":
        by_softmax = any("softmax" in name or "attention" in name for name, *_ in written.steps)
        derived = None if offset and by_softmax else drawn.passes
        is_compared = _compare_errors(
            made, {**runs, drawn.passes: run(drawn)}, derived, graph, arguments, rng, described
        )
        return str(written) if is_compared else ""
    batch = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), arguments)

    @jax.jit
    def found(graph: Any, arguments: Any) -> Any:
        reference = everything(made.reference, graph, arguments, number)
        values = [run_plan(graph, **arguments) for run_plan in runs.values()]
        derived = everything(run(drawn), graph, arguments, number)
        batched = jax.vmap(lambda each: run(whole)(graph, **each))(batch)
        half = made.reference(graph, **jax.tree.map(lambda x: 0.5 * x, arguments))
        return reference, values, derived, jax.tree.map(lambda y: y[1], batched), half

    def pairs(arguments: Any) -> list[tuple[Sequence[str], str, Any, Any]]:
        reference, values, derived, batched, half = found(graph, arguments)
        each = [(passes, y) for passes, y in zip(runs, values, strict=True)]
        orders = zip(("values", "gradients", "second"), derived, reference, strict=True)
        return [
            *((passes, "values", y, reference[0]) for passes, y in each),
            *((drawn.passes, name, a, b) for name, a, b in orders),
            (PASSES, "vmap", batched, half),
        ]

    compared = pairs(arguments)
    for each in jax.tree.leaves([wanted for *_, wanted in compared]):
        each = np.asarray(each)
        if np.isnan(each).any() or np.abs(each[np.isfinite(each)]).max(initial=0) > 1e6:
            return ""  # nothing to compare
    for i, (passes, what, mine, wanted) in enumerate(compared):
        worst = largest_difference(mine, wanted)
        if (
            worst >= TOLERANCE
        ):  # as much as rounding makes of it, where small numbers are divided by
            nudges = [
                {k: x * (1 + 2.0**-50 * rng.normal(size=x.shape)) for k, x in arguments.items()}
                for _ in range(NUDGES)
            ]
            limit = ROUNDED * max(
                largest_difference(pairs(nudged)[i][3], wanted) for nudged in nudges
            )
            assert worst < limit, (
                f"{described[0]}: {what} differ by {worst:.1e}, by rounding {limit:.1e}, after "
                f"{', '.join(passes) or 'no'} passes\n{described[1]}"
            )
    return str(written)


def _unread(graph: Any, space: Space) -> np.ndarray:
    """The rows of sources or relations that no edge reads."""
    edges = int(graph.nodes.indptr[-1])
    read = graph.nodes.cols if space is Space.NODE else graph.matrix(weighted=True).types
    return np.setdiff1d(np.arange(*rows_of(graph, space)), np.asarray(read)[:edges])


def _compare_errors(
    made: Any,
    runs: dict[Any, Callable[..., Any]],
    drawn: Any,
    graph: Any,
    arguments: dict[str, Any],
    rng: np.random.Generator,
    described: tuple[str, str],
) -> bool:
    """Compares errors of values and gradients with those of the reference in the same dtype.

    The reference's are the largest of some, at arguments that differ by a rounding: kinks may be on
    either side there. Returns whether there was something to compare.
    """
    shapes = jax.eval_shape(made.reference, graph, **arguments)
    weights = [rng.normal(size=each.shape) for each in jax.tree.leaves(shapes)]

    def loss(arguments: Any, run: Callable[..., Any], graph: Any) -> Any:
        found = jax.tree.leaves(run(graph, **arguments))
        finite = (jnp.where(jnp.isfinite(y), y, 0) for y in found)
        return sum(jnp.sum(w * y) for w, y in zip(weights, finite, strict=True))

    def both(run: Callable[..., Any], graph: Any, arguments: Any) -> Any:
        return jax.tree.leaves((run(graph, **arguments), jax.grad(loss)(arguments, run, graph)))

    @jax.jit
    def reference(arguments: Any) -> Any:
        return both(made.reference, graph, arguments)

    @jax.jit
    def ours(graph: Any, arguments: Any) -> Any:
        return {
            passes: both(run, graph, arguments)
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
        found = jax.tree.leaves(reference(near))
        wide_near = jax.tree.leaves(reference({k: x.astype(np.float64) for k, x in near.items()}))
        plain += [[np.asarray(x, np.float64) for x in each] for each in (found, wide_near)]
    is_compared = False
    for passes, values in ours(graph, arguments).items():
        for i, mine in enumerate(np.asarray(x, np.float64) for x in values):
            several = np.stack([each[i] for each in plain])
            finite = np.isfinite(truth[i]) & np.isfinite(several).all(0)
            if not finite.any():
                continue
            is_compared = True
            wanted = truth[i][finite]
            errors = np.abs(several[:, finite] - wanted).max(initial=0)
            scale = np.abs(wanted).max(initial=0)
            limit = 16 * errors + 16 * eps * scale
            # An overflow counts as the largest number: the limit may reach beyond it.
            within = np.clip(mine[finite], -largest, largest)
            worst = np.abs(within - wanted).max(initial=0)
            assert worst <= limit, (
                f"{described[0]}: result {i} is off by {worst:.1e}, the reference by "
                f"{errors:.1e} of {scale:.1e}, after {', '.join(passes) or 'no'} passes\n"
                f"{described[1]}"
            )
    return is_compared


def _array(rng: np.random.Generator, graph: Any, kind: Kind) -> np.ndarray:
    array = rng.normal(size=(*rows_of(graph, kind.space), *kind.shape))
    if kind.space is Space.EDGE:
        array[int(graph.nodes.indptr[-1]) :] = np.nan
    return array


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--keep-going", action="store_true", help="report all that are wrong")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    numbers = range(given.programs) if given.only is None else [given.only]
    wrong, compared = [], 0
    for number in numbers:
        try:
            compared += bool(check(given.seed, number))
        except Exception as error:
            if not given.keep_going:
                print(f"--seed {given.seed} --only {number}")
                raise
            wrong.append(number)
            print(f"program {number}: {type(error).__name__}: {str(error)[:3000]}\n", flush=True)
        if number % 20 == 19:
            print(f"{number + 1} programs", flush=True)
        if number % 100 == 99:
            jax.clear_caches()
    print(f"seed {given.seed}: {len(numbers)} programs, {compared} compared, wrong: {wrong}")
    assert not wrong


if __name__ == "__main__":
    main()
