"""Performance databases of sums over edges and of attention: what decision trees are fitted to.

Each kind of call has a list of leaves, as a tree may have them. On seeded graphs of all sizes and
degree laws, calls of random widths and dtypes are timed under all leaves and under the rule by
hand, with a cold L2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.schedule_times import SPREAD, Database, Loaders, Row, describe, timed_graphs
from benchmarks.workloads import plain_graphs
from jax_gnn import Graph, additive_attention, dot_attention, gatv2_attention
from jax_gnn._core.csr import Csr, SparseMatrix
from jax_gnn._ops.attention import schedule as attention
from jax_gnn._ops.attention.leaky import leaky_sum
from jax_gnn._ops.segment_reduce import schedule as segments
from jax_gnn._ops.segment_reduce.primitive import segment_reduce, segment_reduce_vjp
from jax_gnn._tuning import measure
from jax_gnn._tuning.measure import compile_all, numbers
from jax_gnn._tuning.segment import Edges

_WALKS = ("walk 0 64 1056", "walk 0 128 528", "walk 0 256 264", "walk 1 128 528")
_GATHERS = ("gather 0 128 660", "gather 0 128 1320", "gather 1 128 660", "gather 1 128 1320")

LEAVES: dict[str, tuple[str, ...]] = {
    "segment_sum": (
        *("step tile", *_WALKS, "walk 0 64 1584"),
        *("walk 0 128 1056", "walk 0 256 528", "walk 1 256 264"),
    ),
    "spmm": ("step tile", *_WALKS, *_GATHERS, "gather 2 128 660"),
    "spmm_vjp": ("step tile", "step row", *_WALKS, *_GATHERS),
    "attention": ("walk", "step"),
    "attention_vjp": ("walk", "step"),
    "leaky_sum": ("walk", "gather"),
}
"""Leaves that are tried for each kind of call: `segments.from_leaf`, `attention.AttentionSchedule`.

The kernel of ``sddmm`` alone deals out its work in one way; ``spmm_vjp`` takes its products
together with those of the transposed ``spmm``.
"""

WIDTHS = (1, 2, 3, 4, 8, 12, 16, 24, 32, 33, 48, 64, 96, 100, 128, 160, 192, 256)
WORD_WIDTHS = (8, 16, 32, 64, 128, 256)
"""Widths of attention: heads of whole words, without which it has a single kernel."""

HEADS = (1, 1, 1, 4, 8)
CASES = {
    **{"segment_sum": 3, "spmm": 4, "spmm_vjp": 3},
    **{"attention": 2, "attention_vjp": 2, "leaky_sum": 1},
}
"""Calls of each kind that are drawn for a graph."""

REPEATS = 7
MAX_BYTES = 2**32
"""Most bytes of gathered or of contiguous rows of a call."""

# Most entries of attention and of one step: about four times the limits by hand.
_MAX_ATTENTION, _MAX_GRADIENTS, _MAX_SLOPES = 2**18, 2**17, 2**20


# --- Calls ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Call(measure.Call[Any]):
    """A call of a kind of `LEAVES` on some edges.

    Attributes:
        keys: arrays from which scores of attention are computed: 0 of GAT, 1 of GATv2, 2 of dot
            products.
        weighted: whether edges have weights.
        epilogue: whether a bias and a ReLU follow the sum.
    """

    kind: str
    edges: Edges
    width: int
    dtype: str
    heads: int = 1
    keys: int = 0
    weighted: bool = False
    epilogue: bool = False

    @property
    def family(self) -> Any:  # type: ignore[override]
        """The family of schedules."""
        return (
            segments.FAMILY
            if self.kind in ("segment_sum", "spmm", "spmm_vjp")
            else attention.FAMILY
        )

    @property
    def kernel(self) -> str:
        """Name of the op in the cache."""
        sums = {"segment_sum": "segment_reduce", "spmm": "segment_reduce"}
        return {**sums, "spmm_vjp": "segment_reduce_vjp"}.get(self.kind, self.kind)

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments by which the family chooses a schedule."""
        count = len(self.edges.rows)
        gather = self.kind != "segment_sum"
        shape: dict[str, Any] = {
            "entries": count,
            "rows": self.edges.num_rows,
            "cols": self.edges.num_cols if gather else count,
            "width": self.width,
            "itemsize": self.itemsize,
        }
        if self.family is attention.FAMILY:
            return {**shape, "heads": self.heads, "keys": self.keys}
        is_vjp = self.kind == "spmm_vjp"
        return {
            **shape,
            "gather": gather,
            "sums": not is_vjp,
            "depth": self.width // self.heads,
            "epilogue": self.epilogue,
            "ordered": False,
            "weights": count * self.heads if self.weighted else None,
        }

    def by_hand(self) -> Any:
        """Return the schedule of the rule by hand."""
        module = segments if self.family is segments.FAMILY else attention
        return self.effective(module.by_hand(self.kernel, **self.shape))

    def schedules(self) -> dict[str, Any]:
        """Return the schedule of each leaf that kernels can do."""
        schedules = {}
        for leaf in LEAVES[self.kind]:
            if self.family is attention.FAMILY:
                schedules[leaf] = attention.AttentionSchedule(leaf)  # type: ignore[arg-type]
                continue
            schedule = segments.from_leaf(leaf, **self.shape)
            is_large = (
                schedule.kernel == "step" and len(self.edges.rows) > segments.MAX_MEASURED_STEP
            )
            if not is_large and super().effective(schedule) == schedule:
                schedules[leaf] = self.effective(schedule)
        return schedules

    def candidates(self) -> list[Any]:
        """Return the schedules to measure."""
        return [*self.schedules().values(), self.by_hand()]

    def effective(self, schedule: Any) -> Any:
        """Limit the blocks so that there are no more teams than entries."""
        schedule = super().effective(schedule)
        if self.family is attention.FAMILY:
            return schedule
        teams = max(schedule.threads // schedule.lanes, 1)
        most = max(1, -(-len(self.edges.rows) // teams))
        return schedule._replace(blocks=min(schedule.blocks, most))

    def operands(self) -> tuple[Any, ...]:
        """Return features and ids; of a backward pass, what it reads of the forward pass."""
        dtype, (rows, cols) = jnp.dtype(self.dtype), self.edges.on_device
        acc, count, width = jnp.promote_types(dtype, jnp.float32), len(rows), self.width
        of_rows, of_cols = (self.edges.num_rows, width), (self.edges.num_cols, width)
        weight = _numbers((count, self.heads), acc) if self.weighted else None
        bias = _numbers((width,), acc) if self.epilogue else None
        if self.kind == "segment_sum":
            return _numbers((count, width), dtype), rows, None, weight, bias
        if self.kind == "spmm":
            return _numbers(of_cols, dtype), rows, cols, weight, bias
        if self.kind == "spmm_vjp":
            return _numbers(of_rows, dtype), _numbers(of_cols, dtype), rows, cols, weight
        if self.kind == "leaky_sum":
            factors = _numbers((count, self.heads), acc), _numbers((width,), acc)
            return _numbers(of_rows, dtype), _numbers(of_cols, dtype), rows, cols, *factors
        graph, depth = _graph(self.edges), (self.heads, width // self.heads)
        # GAT: scores and values. GATv2: keys and the vector. Dot products: query, key and value.
        parts: dict[int, list[tuple[int, ...]]] = {
            0: [(graph.num_dst, depth[0]), (graph.num_src, depth[0]), (graph.num_src, *depth)],
            1: [(graph.num_dst, *depth), (graph.num_src, *depth), depth],
            2: [(graph.num_dst, *depth), (graph.num_src, *depth), (graph.num_src, *depth)],
        }
        arrays = [_numbers(shape, dtype) for shape in parts[self.keys]]
        if self.kind == "attention":
            return graph, *arrays
        forward = jax.jit(lambda graph, *arrays: jax.vjp(partial(self._attend, graph), *arrays))
        y, pullback = forward(graph, *arrays)
        return pullback, _numbers(y.shape, dtype)

    def _attend(self, graph: Graph, *arrays: jax.Array) -> jax.Array:
        op = (additive_attention, gatv2_attention, dot_attention)[self.keys]
        result: jax.Array = op(graph, *arrays)
        return result

    def function(self, *operands: Any) -> Any:
        """Apply the op to the operands."""
        if self.kind == "attention":
            return self._attend(*operands)
        if self.kind == "attention_vjp":
            pullback, ct = operands
            return pullback(ct)
        if self.kind == "spmm_vjp":
            x, ct, rows, cols, weight = operands
            by_col = Csr(rows, cols, num_rows=x.shape[0])
            return segment_reduce_vjp(x, weight, ct, SparseMatrix(by_col, by_col))
        if self.kind == "leaky_sum":
            row_key, col_key, rows, cols, factor, vector = operands
            by_row = Csr(rows, cols, num_rows=row_key.shape[0])
            matrix = SparseMatrix(by_row, by_row)
            operands = row_key, col_key, factor, vector, matrix
            return leaky_sum(*operands, heads=self.heads, slope=0.2)
        x, rows, cols, weight, bias = operands
        by_row = Csr(rows, cols, num_rows=self.edges.num_rows)
        matrix = SparseMatrix(by_row, by_row)  # the transpose is never read
        operands = x, weight, matrix, None, None, None, bias
        return segment_reduce(*operands, reduce="sum", heads=self.heads, relu=self.epilogue)


@functools.cache
def _pool() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, 2**24).astype(np.float32)


def _numbers(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Return numbers from -1 to 1; few ones from the host, where nothing is compiled for them."""
    size = math.prod(shape)
    if size > _pool().size:
        return numbers(shape, dtype)
    return jnp.asarray(_pool()[:size].reshape(shape).astype(dtype))


@functools.lru_cache(maxsize=1)
def _graph(edges: Edges) -> Graph:
    sizes = edges.num_cols, edges.num_rows
    graph = Graph.from_edges(edges.cols, edges.rows, num_src=sizes[0], num_dst=sizes[1])
    return jax.device_put(graph)


def draw_calls(edges: Edges, seed: int, quick: bool = False) -> list[Call]:
    """Draw calls of each kind that trees choose for, with random widths, dtypes and options."""
    rng = np.random.default_rng(seed)
    calls = []
    for kind, num_cases in CASES.items():
        of_attention = kind in ("attention", "attention_vjp", "leaky_sum")
        for _ in range(1 if quick else num_cases):
            width = int(rng.choice(WORD_WIDTHS if of_attention else WIDTHS))
            dtype = str(rng.choice(("float32", "float32", "bfloat16")))
            heads, keys = int(rng.choice(HEADS)), int(rng.integers(3))
            weighted, epilogue = map(bool, rng.random(2) < (0.7, 0.5))
            row_bytes = width * jnp.dtype(dtype).itemsize
            # Heads of attention are of 1 to 16 words of 16 bytes: all its kernels can do these.
            if width % heads or (of_attention and row_bytes < 16 * heads):
                heads = 1
            if of_attention:
                heads = max(heads, row_bytes // 256)
            count = len(edges.rows)
            limits = {
                "attention": _MAX_ATTENTION,
                "attention_vjp": _MAX_GRADIENTS // max(row_bytes // 256, 1),
                "leaky_sum": _MAX_SLOPES,
            }
            if count * row_bytes > MAX_BYTES or count > limits.get(kind, count):
                continue
            options: dict[str, Any] = {}
            if of_attention:
                options = {"heads": heads, "keys": 2 if kind == "leaky_sum" else keys}
            elif kind == "spmm_vjp" or (kind == "spmm" and weighted):
                options = {"heads": heads, "weighted": True}
            options["epilogue"] = kind == "spmm" and epilogue
            call = Call(kind, edges, width, dtype, **options)
            if of_attention or segments.tree_of(call.kernel, **call.shape):
                calls.append(call)
    return calls


# --- Graphs --------------------------------------------------------------------------------------

LAWS = ("uniform", "power law", "hubs", "regular", "empty rows", "local")


def draw_edges(law: str, entries: int, mean_length: float, skew: float, seed: int = 0) -> Edges:
    """Draw edges into about ``entries / mean_length`` rows, columns ascending in each row.

    Args:
        law: one of `LAWS`. Lengths of rows are uniform; or fall as rank to the power of ``-skew``;
            or half of the entries are in at most 8 rows; or all lengths are equal; or 9 of 10 rows
            are empty; or they are uniform and columns are near the row.
        entries: number of edges.
        mean_length: mean number of edges of a row.
        skew: exponent, too, of the power law of columns for half of the seeds.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    num_rows = max(int(entries / mean_length), 2)
    num_cols = num_rows if rng.random() < 0.7 else max(int(num_rows * 10 ** rng.uniform(-1, 1)), 2)
    popularity: np.ndarray = np.ones(num_rows)
    if law == "power law":
        popularity = rng.permutation(np.arange(1, num_rows + 1) ** -skew)
    elif law == "hubs":
        popularity[rng.integers(num_rows, size=rng.integers(1, 9))] = num_rows / 4
    elif law == "empty rows":
        popularity = (rng.random(num_rows) < 0.1) + 1e-9
    if law == "regular":
        rows = np.arange(entries) * num_rows // entries
    else:
        lengths = rng.multinomial(entries, popularity / popularity.sum())
        rows = np.repeat(np.arange(num_rows), lengths)
    if law == "local":
        cols = rows * num_cols // num_rows + rng.normal(0, 50, entries).astype(np.int64)
    elif rng.random() < 0.5:
        cols = rng.integers(num_cols, size=entries)
    else:  # the inverse of the distribution function of ranks
        ranks = num_cols * rng.random(entries) ** (1 / (1 - min(skew, 0.95)))
        cols = rng.permutation(num_cols)[np.minimum(ranks.astype(np.int64), num_cols - 1)]
    keys = np.sort(rows.astype(np.int64) * num_cols + cols % num_cols)
    row_ids, col_ids = (ids.astype(np.int32) for ids in np.divmod(keys, num_cols))
    return Edges(row_ids, col_ids, num_rows, num_cols)


def graphs(count: int = 96, seed: int = 0) -> Loaders:
    """Seeded graphs of 10³ to 10⁷ edges, and twins of published ones, in random order."""
    rng = np.random.default_rng(seed)
    found: Loaders = {}
    for index, size in enumerate(rng.permutation(np.linspace(3, 7, count)), start=1000 * seed):
        law = LAWS[index % len(LAWS)]
        mean_length = 10 ** rng.uniform(0, min(2.5, size - 1))
        options = int(10**size), mean_length, rng.uniform(0.3, 0.95)
        found[f"{law} {index}"] = partial(draw_edges, law, *options, seed=index)
    for name, workload in plain_graphs(None).items():
        if not workload.on_request and not workload.large:
            found[name] = partial(_edges_of, workload.load)
    return {name: found[name] for name in rng.permutation(list(found)).tolist()}


def _edges_of(load: Callable[[], Any]) -> Edges:
    graph = load()
    return Edges(graph.rows, graph.cols, graph.num_nodes, graph.num_nodes)


def spread(edges: Edges) -> dict[str, float]:
    """Return the sizes of `SPREAD`, to three digits."""
    lengths = np.bincount(edges.rows, minlength=edges.num_rows)
    mean = max(lengths.mean(), 1e-9)
    values = lengths.std() / mean, lengths.max() / mean
    return {name: float(f"{value:.3g}") for name, value in zip(SPREAD, values, strict=True)}


# --- Measuring -----------------------------------------------------------------------------------


def measure_all(seconds: float, quick: bool = False, seed: int = 0) -> list[Database]:
    """Measure on this machine's GPU until all graphs are done or the time is up.

    A graph that fails is left out, with a message.

    Raises:
        RuntimeError: There is no GPU, or all graphs failed.
    """
    from jax_gnn._tuning.timing import ProfilerTimer

    timer = ProfilerTimer(flushes=4)
    rows = timed_graphs(
        graphs(seed=seed), partial(measured_rows, timer=timer, quick=quick), seconds
    )
    databases = []
    for kind, leaves in LEAVES.items():
        of_kind = [row for row_kind, row in rows if row_kind == kind]
        if of_kind:
            databases.append(describe(kind, list(leaves), of_kind))
    return databases


def measured_rows(name: str, edges: Edges, timer: Any, quick: bool) -> list[tuple[str, Row]]:
    """Return kind and row of each call that is drawn for a graph."""
    if quick and len(edges.rows) > 20_000:
        return []
    calls = draw_calls(edges, seed=len(edges.rows), quick=quick)
    compiled = compile_all(calls, lambda call: call.candidates())
    samples = timer.measure(compiled, REPEATS)
    rows, lengths = [], spread(edges)
    for index, call in enumerate(calls):
        schedules = call.schedules()

        def time_of(schedule: Any, index: int = index) -> float:
            return 1e6 * median(samples[index, schedule]) if schedule else math.inf

        times = tuple(time_of(schedules.get(leaf)) for leaf in LEAVES[call.kind])
        shape = {**call.shape, **lengths}
        row = Row(graph=name, times=times, by_hand=time_of(call.by_hand()), shape=shape)
        rows.append((call.kind, row))
    return rows
