"""Random calls of all public functions, with references for their results.

A *case* fixes what is static about a call: shapes, dtypes, options. Many sets of values are drawn
for each, so that compiled programs are used again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from balls import Ball, Dual, rounded, rounding, tiny, unit

import jax_gnn

HALVES = ("float16", "bfloat16")
COUNTS = (0, 1, 7, 24, 40)  # entries
SIZES = (0, 1, 4, 9)  # rows
FEATURES = ((), (1,), (3,), (4,), (2, 3), (0,), (2, 0), (0, 2), (1, 2, 3), (33,))
ID_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


# --- Draws ---------------------------------------------------------------------------------------


class Random:
    """A generator of arguments."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def choice(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def count(self) -> int:
        """How many entries; at times enough for several threads."""
        return self.choice(COUNTS) if self.chance(0.96) else 3000

    def size(self) -> int:
        """How many rows, likewise."""
        return self.choice(SIZES) if self.chance(0.96) else 300

    def integer(self, low: int, high: int) -> int:
        """Up to but without ``high``."""
        return int(self.rng.integers(low, high))

    def numbers(self, shape: Sequence[int], dtype: Any, positive: bool = False) -> np.ndarray:
        """Numbers of a dtype; half of the time on a grid, where sums and products are exact."""
        shape = tuple(shape)
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        if dtype.kind in "iu" and dtype.name != "bfloat16":
            info = np.iinfo(dtype)
            low, high = (max(info.min, -9), 9) if self.chance(0.7) else (info.min, info.max)
            return self.rng.integers(low, high, shape, dtype=dtype, endpoint=True)
        kind = self.integer(0, 4)
        if kind < 2:
            values = self.rng.integers(-8, 9, shape) / 4
        elif kind == 2:
            values = self.rng.normal(size=shape)
        else:
            values = self.rng.normal(size=shape) * np.exp(self.rng.normal(size=shape))
        if positive:
            values = np.abs(values) + 0.25
        if dtype.kind == "c":
            values = values + 1j * self.rng.integers(-8, 9, shape) / 4
        return values.astype(dtype)

    def ids(self, count: int, size: int, dtype: Any, wide: bool, padding: float = 0.3) -> Any:
        """Ids, with some out of range: within the dtype, and within 32 bits unless ``wide``."""
        info = np.iinfo(dtype)
        ids = self.rng.integers(0, max(min(size, int(info.max) + 1), 1), count)
        pool = [-1, size, size + 1, 2**15, 2**31 - 1, -(2**31), 2**31, 2**32 - 1]
        pool += [int(info.min), int(info.max)]
        if wide:
            pool += [2**32, 2**32 + 1, -(2**32), 2**62, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]
        if not wide and np.dtype(dtype).itemsize == 8:
            pool = [p for p in pool if -(2**31) <= p < 2**31]
        pool = [p for p in pool if info.min <= p <= info.max and not 0 <= p < size]
        result = ids.astype(object)
        if (self.chance(0.6) and pool) or size == 0:
            where = self.rng.random(count) < (padding if size else 1)
            result[where] = [self.choice(pool) for _ in range(int(where.sum()))]
        return result.astype(dtype) if count else np.zeros(0, dtype)


def in_range(ids: np.ndarray, size: int) -> np.ndarray:
    return (ids >= 0) & (ids < size) if ids.dtype.kind == "i" else ids < np.uint64(size)


def clean(ids: np.ndarray, size: int) -> np.ndarray:
    """Ids in int64, -1 where they are out of range."""
    return np.where(in_range(ids, size), ids.astype(np.int64), -1)


def poison(random: Random, values: np.ndarray, unread: np.ndarray) -> np.ndarray:
    """NaN and infinity in rows that must not be read."""
    values = values.copy()
    if values.dtype.kind not in "iub" and random.chance(0.8):
        values[unread] = random.choice([np.nan, np.inf, -np.inf])
    return values


@dataclass
class Mode:
    """How calls are made: chosen for a case before its options.

    Attributes:
        x64: whether 64-bit types are enabled.
        strict: whether promotion of dtypes and ranks is refused.
        transform: what the call is wrapped in.
        implementation: of the ops.
        by_context: whether that is given by the context in place of the argument.
        platform: where computations run.
    """

    x64: bool
    strict: bool
    transform: str
    implementation: str | None
    by_context: bool
    platform: str

    @property
    def jitted(self) -> bool:
        return self.transform != "eager" and not self.transform.startswith("eager")

    @property
    def derives(self) -> bool:
        return "vjp" in self.transform or "jvp" in self.transform

    @property
    def keywords(self) -> dict[str, Any]:
        given = {} if self.by_context or self.implementation is None else {"x": 0}
        return {"implementation": self.implementation} if given else {}

    def contexts(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(jax.enable_x64(self.x64))
        if self.strict:
            stack.enter_context(jax.numpy_dtype_promotion("strict"))
            stack.enter_context(jax.numpy_rank_promotion("raise"))
        if self.by_context:
            stack.enter_context(jax_gnn.implementation(self.implementation))
        return stack

    def floats(self, random: Random) -> str:
        names = ["float32"] * 3 + list(HALVES) + ["float64"] * 2 * self.x64
        return random.choice(names)

    def id_dtype(self, random: Random) -> str:
        if random.chance(0.4):
            return "int32"
        names = [n for n in ID_DTYPES if self.x64 or not n.endswith("64") or not self.jitted]
        return random.choice(names)

    @property
    def wide_ids(self) -> bool:
        """Whether ids of 64 bits reach the library as they are."""
        return self.x64 or not self.jitted


@dataclass
class Case:
    """A call with static options.

    Attributes:
        function: its name.
        options: what a report says of it.
        call: the function of the operands.
        indices: draws the operands that are not differentiated, and what the reference and
            ``values`` must know of them.
        values: draws those that are.
        reference: maps values (:class:`Dual` arrays, or numpy arrays of integers), indices and
            what is known of them to the result: a Dual, an array that must be equal, or a function
            that gives what is wrong with a result, or None. Of several results, a list.
        dtype: of the result, where it is a Dual.
        accumulator: dtype in which the function computes.
        product_unit: relative error of the factors of its matrix products.
        differentiable: whether derivatives are defined.
        vmappable: whether calls can be batched.
        lists: whether operands may be given as Python lists.
        raw: whether the reference takes integers as they are, in place of Dual arrays.
    """

    function: str
    options: dict[str, Any]
    call: Callable[..., Any]
    indices: Callable[[Random], tuple[dict[str, Any], Any]]
    values: Callable[[Random, dict[str, Any], Any], dict[str, np.ndarray]]
    reference: Callable[[Mapping[str, Any], dict[str, Any], Any], Any]
    dtype: Any
    accumulator: Any = np.float32
    product_unit: float = 0.0
    differentiable: bool = True
    vmappable: bool = True
    lists: bool = True
    raw: bool = False
    state: dict[str, Any] = field(default_factory=dict)


def accumulator(dtype: Any) -> Any:
    return np.float32 if str(np.dtype(dtype)) in HALVES else np.dtype(dtype)


def seen(mode: Mode, dtype: Any) -> np.dtype:
    """What JAX makes of a dtype."""
    with jax.enable_x64(mode.x64):
        return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


# --- Segments ------------------------------------------------------------------------------------

REDUCTIONS = (
    "segment_sum",
    "segment_mean",
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_var",
    "segment_std",
    "segment_logsumexp",
    "segment_softmax",
    "segment_argmax",
)
_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def segments(random: Random, mode: Mode) -> Case:
    name = random.choice(REDUCTIONS)
    short = name.removeprefix("segment_")
    dtype = mode.floats(random)
    if not mode.derives and random.chance(0.35):
        dtype = random.choice(_INTS)
        if short not in ("sum", "prod") and random.chance(0.2):
            dtype = "bool"
    elif short in ("sum", "mean", "prod") and random.chance(0.2):
        dtype = "complex128" if mode.x64 and random.chance(0.5) else "complex64"
    if dtype.endswith("64") and dtype[0] in "iuf" and not mode.x64 and mode.jitted:
        dtype = "int32"
    dtype_seen = seen(mode, dtype)
    count, size, features = random.count(), random.size(), random.choice(FEATURES)
    given_sorted, by_indptr = random.chance(0.4), random.chance(0.15)
    unique = random.chance(0.1) and not by_indptr
    id_dtype = mode.id_dtype(random)
    clip = random.chance(0.1) and not by_indptr
    modes = [None, None, None, "drop", "fill", jax.lax.GatherScatterMode.FILL_OR_DROP]
    scatter_mode = "clip" if clip else random.choice(modes)
    infer = mode.transform == "eager" and not by_indptr and random.chance(0.15)
    keywords: dict[str, Any] = {**mode.keywords}
    if by_indptr:
        given_sorted = True
        if random.chance(0.5):
            keywords["num_segments"] = size
    else:
        keywords["mode"] = scatter_mode
        if not infer:
            keywords["num_segments"] = random.choice([size, np.int64(size), np.int16(size)])
        keywords["indices_are_sorted"] = given_sorted
        if short in ("sum", "prod", "max", "min"):
            keywords["unique_indices"] = unique
    if short in ("sum", "prod", "max", "min") and random.chance(0.1):
        keywords["bucket_size"] = random.choice([1, 3, 100])
    ddof = 0
    if short in ("var", "std"):
        ddof = random.choice([0, 0, 1, 2])
        keywords["ddof"] = ddof
    if np.iinfo(id_dtype).max < count:
        unique = False
        keywords.pop("unique_indices", None)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        if by_indptr:
            ptr = np.sort(random.rng.integers(0, count + 1, size + 1))
            if random.chance(0.5):
                ptr[0], ptr[-1] = 0, count if size else 0
            top = min(int(np.iinfo(id_dtype).max), count)
            ptr = np.minimum(ptr, top).astype(id_dtype)
            starts = ptr.astype(np.int64)
            ids = np.searchsorted(starts, np.arange(count), side="right") - 1
            return {"indptr": ptr}, (np.where(ids < size, ids, -1), size)
        ids = random.ids(count, size, id_dtype, mode.wide_ids)
        if unique:
            ids = random.rng.permutation(max(size, count))[:count].astype(id_dtype)
        n = size
        if infer:
            ids = np.where(in_range(ids, size), ids, 0).astype(id_dtype) if size else ids
            if not size:
                ids = np.zeros(count, id_dtype)
            n = max((int(i) for i in ids), default=-1) + 1
        if given_sorted:
            ids = np.sort(ids)
        meant = ids
        if clip:
            meant = np.array([min(max(int(i), 0), max(n - 1, 0)) for i in ids], np.int64)
        return {"segment_ids": ids}, (clean(meant, n), n)

    def values(random: Random, ids: dict[str, Any], known: Any) -> dict[str, np.ndarray]:
        data = random.numbers((count, *features), dtype)
        if short == "prod" and data.dtype.kind == "f":
            data = np.clip(data, -2, 2)
        rows, _ = known
        special = short in ("sum", "max", "min", "mean", "argmax", "logsumexp")
        if special and not mode.derives and data.dtype.kind not in "iubc" and random.chance(0.1):
            where = random.rng.random(data.shape) < 0.1
            data[where] = random.choice([np.nan, np.inf, -np.inf])
        return {"data": poison(random, data, rows < 0)}

    def reference(values: Mapping[str, Any], ids: dict[str, Any], known: Any) -> Any:
        rows, n = known
        return reduce_segments(short, values["data"], rows, n, dtype_seen, ddof)

    # JAX's own products have no gradient, and its buckets others where there are ties.
    plain = dtype_seen.kind != "c" and "bucket_size" not in keywords
    kept = short in ("sum", "prod", "max", "min") or dtype_seen.kind == "c"
    floating = dtype_seen.kind == "f" or str(dtype_seen) == "bfloat16"
    result = dtype_seen if kept or floating else np.dtype(np.float32)
    acc = accumulator(result) if not kept or floating or dtype_seen.kind == "c" else np.float32
    if floating and "bucket_size" in keywords:
        acc = result  # JAX adds half types up in themselves
    return Case(
        name,
        {"shape": (count, *features), "dtype": dtype, **keywords, "id_dtype": id_dtype},
        functools.partial(_data_first, getattr(jax_gnn, name), keywords),
        indices,
        values,
        reference,
        result,
        acc,
        differentiable=short != "argmax" and (short in ("sum", "mean") or plain),
        vmappable=not infer,
        raw=True,
    )


def _data_first(function: Any, keywords: dict[str, Any], **operands: Any) -> Any:
    return function(operands.pop("data"), **operands, **keywords)


def reduce_segments(
    reduce: str, data: Any, rows: np.ndarray, size: int, dtype: np.dtype, ddof: int = 0
) -> Any:
    """Segment reductions; ids of -1 are padding."""
    if not isinstance(data, Dual):
        data = data.astype(dtype)  # as JAX takes them: 64 bits become 32 where they are not enabled
    valid = np.flatnonzero(rows >= 0)
    ids = rows[valid]
    if reduce == "argmax":
        return functools.partial(_check_argmax, data, valid, ids, size)
    if not isinstance(data, Dual):
        if reduce in ("sum", "prod", "max", "min"):
            return _reduce_integers(reduce, data[valid], ids, size, dtype)
        wide = data.astype(np.float64)
        inexact = wide.astype(np.float32) != wide
        data = Dual(wide, np.where(inexact, unit(np.float32) * np.abs(wide), 0))
    x = data[valid]
    ndim = len(x.shape) - 1
    counts = np.bincount(ids, minlength=size).reshape(size, *[1] * ndim).astype(float)
    if reduce == "sum":
        return x.sum_at(ids, size)
    if reduce in ("max", "min"):
        return (x.max_at(ids, size)) if reduce == "max" else -((-x).max_at(ids, size))
    if reduce == "prod":
        return x.prod_at(ids, size)
    mean = x.sum_at(ids, size) * Dual(np.maximum(counts, 1)).inverse()
    if reduce == "mean":
        return mean
    if reduce in ("var", "std"):
        differences = x - mean[ids]
        squares = (differences * differences).sum_at(ids, size)
        variance = squares * Dual(np.maximum(counts - ddof, 1)).inverse()
        variance = variance.where(np.broadcast_to(counts > ddof, variance.shape))
        if reduce == "var":
            return variance
        positive = variance.value > 0
        root = variance.where(positive, 1.0).sqrt().where(positive)
        zero = np.abs(variance.value) <= variance.ball.radius
        root = root.unsure(zero & (variance.ball.radius > 0))
        root.ball.radius[zero] = np.sqrt(2 * variance.ball.radius[zero])
        return root
    top = np.full((size, *x.shape[1:]), -np.inf)
    np.maximum.at(top, ids, x.value)
    shift = np.where(np.isfinite(top), top, 0)
    exps = (x - Dual(shift[ids])).exp()
    total = exps.sum_at(ids, size)
    if reduce == "logsumexp":
        some = np.broadcast_to(counts > 0, total.shape)
        return (total.where(some, 1.0).log() + Dual(shift)).where(some, -np.inf)
    y = exps * total[ids].inverse()
    return spread(y, valid, len(rows))


def spread(x: Dual, places: np.ndarray, size: int) -> Dual:
    """Rows at their places, zeros elsewhere."""

    def put(values: np.ndarray) -> np.ndarray:
        out = np.zeros((size, *values.shape[1:]), values.dtype)
        out[places] = values
        return out

    return x.linear(put)


def _check_argmax(data: Any, valid: Any, ids: Any, size: int, actual: Any) -> str | None:
    values = data.value if isinstance(data, Dual) else data
    want = np.full((size, *values.shape[1:]), -1, np.int64)
    for e, row in zip(valid, ids, strict=True):
        for f in np.ndindex(values.shape[1:]):
            best = want[(row, *f)]
            now, then = values[(e, *f)], None if best < 0 else values[(best, *f)]
            if best < 0 or (then == then and (now > then or now != now)):
                want[(row, *f)] = e
    actual = np.asarray(actual)
    if actual.dtype not in (np.int32, np.int64):
        return f"dtype {actual.dtype}, want integers"
    if actual.shape != want.shape:
        return f"shape {actual.shape}, want {want.shape}"
    bad = np.argwhere(actual != want)
    return (
        f"at {tuple(bad[0])}: {actual[tuple(bad[0])]}, want {want[tuple(bad[0])]}"
        if len(bad)
        else None
    )


def _reduce_integers(
    reduce: str, data: np.ndarray, ids: np.ndarray, size: int, dtype: np.dtype
) -> np.ndarray:
    if reduce in ("sum", "prod"):
        out = np.full((size, *data.shape[1:]), reduce == "prod", dtype)
        with np.errstate(over="ignore"):
            (np.add if reduce == "sum" else np.multiply).at(out, ids, data)
        return out
    if dtype.kind == "b":
        low, high = False, True
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    out = np.full((size, *data.shape[1:]), low if reduce == "max" else high, dtype)
    (np.maximum if reduce == "max" else np.minimum).at(out, ids, data)
    return out


def segment_index(random: Random, mode: Mode) -> Case:
    gathers = random.chance(0.5)
    dtype = mode.floats(random)
    if not mode.derives and random.chance(0.3):
        dtype = random.choice(["int32", "int64"] if mode.x64 else ["int32"])
    count, size, features = random.count(), random.size(), random.choice(FEATURES)
    id_dtype = random.choice(ID_DTYPES)
    ordered = random.chance(0.3)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        ids = random.ids(count, size, id_dtype, True)
        ids = np.sort(ids) if ordered else ids
        given = random.choice([ids, list(ids) if count else ids])
        index = jax_gnn.SegmentIndex.from_ids(given, size)
        return {"index": index}, clean(ids, size)

    def values(random: Random, ids: dict[str, Any], rows: Any) -> dict[str, np.ndarray]:
        x = random.numbers((size if gathers else count, *features), dtype)
        unread = ~np.isin(np.arange(size), rows) if gathers else rows < 0
        return {"x": poison(random, x, unread)}

    def call(index: Any, x: Any) -> Any:
        method = index.gather if gathers else index.segment_sum
        return method(x, **mode.keywords)

    def reference(values: Mapping[str, Any], ids: dict[str, Any], rows: Any) -> Any:
        x, valid = values["x"], np.flatnonzero(rows >= 0)
        if gathers:
            if isinstance(x, Dual):
                return spread(x[rows[valid]], valid, count)
            out = np.zeros((count, *features), x.dtype)
            out[valid] = x[rows[valid]]
            return out
        return reduce_segments("sum", x, rows, size, np.dtype(dtype))

    return Case(
        "SegmentIndex." + ("gather" if gathers else "segment_sum"),
        {"count": count, "size": size, "features": features, "dtype": dtype, "ids": id_dtype},
        call,
        indices,
        values,
        reference,
        np.dtype(dtype),
        accumulator(dtype) if dtype[0] != "i" else np.float32,
        raw=True,
        vmappable=False,  # sorted and unsorted ids make trees of two kinds
    )


# --- Graphs --------------------------------------------------------------------------------------


@dataclass
class Model:
    """A graph, plainly: the pairs (row, column, place in the input), sorted, and the sizes."""

    num_dst: int
    num_src: int
    edges: list[tuple[int, int, int]]
    capacity: int
    split: bool = False

    @classmethod
    def of(cls, dst: Any, src: Any, num_dst: int, num_src: int) -> Model:
        edges = [
            (int(i), int(j), e)
            for e, (i, j) in enumerate(zip(dst, src, strict=True))
            if 0 <= int(i) < num_dst and 0 <= int(j) < num_src
        ]
        return cls(num_dst, num_src, sorted(edges), len(dst))

    @functools.cached_property
    def rows(self) -> np.ndarray:
        return np.array([i for i, _, _ in self.edges], np.int64)

    @functools.cached_property
    def cols(self) -> np.ndarray:
        return np.array([j for _, j, _ in self.edges], np.int64)

    def transposed_order(self) -> list[int]:
        """The edges by column, then row; equal ones stay in order."""
        return sorted(range(len(self.edges)), key=lambda e: (self.edges[e][1], self.edges[e][0]))

    def transpose(self) -> Model:
        order = self.transposed_order()
        edges = [(self.edges[e][1], self.edges[e][0], self.edges[e][2]) for e in order]
        return Model(self.num_src, self.num_dst, edges, self.capacity, self.split)

    def with_edges(self, new: list[tuple[int, int, int]], num_dst: int) -> Model:
        edges = sorted([*self.edges, *new], key=lambda edge: edge[:2])
        return Model(num_dst, self.num_src, edges, len(edges), self.split)

    def with_self_loops(self) -> Model:
        have = {i for i, j, _ in self.edges if i == j}
        new = [(i, i, -1) for i in range(self.num_dst) if i not in have]
        return self.with_edges(new, self.num_dst)

    def symmetrized(self) -> Model:
        times: dict[tuple[int, int], int] = {}
        for i, j, _ in self.edges:
            times[i, j] = times.get((i, j), 0) + 1
        copies: dict[tuple[int, int], int] = {}
        new = []
        for i, j, e in self.edges:
            before = copies.get((i, j), 0)
            copies[i, j] = before + 1
            if before >= times.get((j, i), 0):
                new.append((j, i, e))
        return self.with_edges(new, self.num_dst)

    def pad(self, num_dst: int, num_src: int, capacity: int) -> Model:
        return Model(num_dst, num_src, self.edges, capacity, self.split)

    def slots(self) -> dict[str, np.ndarray]:
        ids, places = [], []
        for row in range(self.num_dst):
            cols = list(self.cols[self.rows == row])
            pieces = [cols[at : at + 8] for at in range(0, len(cols), 8)] or [[]]
            for k, piece in enumerate(pieces):
                ids.append(piece + [-1] * (8 - len(piece)))
                places.append((row, 2 * k + (k == len(pieces) - 1)))
        surplus = self.capacity // 8 + self.num_dst + 1 - len(ids)
        ids += [[-1] * 8] * surplus
        places += [(-1, 1)] * surplus
        return {"ids": np.array(ids).reshape(-1, 8), "places": np.array(places).reshape(-1, 2)}

    def arrays(self) -> dict[str, np.ndarray]:
        def padded(values: Any) -> np.ndarray:
            return np.array([*values, *[-1] * (self.capacity - len(self.edges))], np.int64)

        def starts(ids: Any, size: int) -> np.ndarray:
            counts = [0] + [sum(1 for i in ids if i == row) for row in range(size)]
            return np.cumsum(counts)

        order = self.transposed_order()
        back = self.transpose()
        result = {
            "indptr": starts(self.rows, self.num_dst),
            "rows": padded(self.rows),
            "cols": padded(self.cols),
            "t_indptr": starts(self.cols, self.num_src),
            "t_rows": padded(back.rows),
            "t_cols": padded(back.cols),
            "t_order": padded(order),
            "edge_ids": padded([e for _, _, e in self.edges]),
        }
        if self.split:
            for name, model in (("split", self), ("t_split", back)):
                result |= {f"{name}.{field}": x for field, x in model.slots().items()}
        return result


def graph_arrays(graph: Any) -> dict[str, Any]:
    names = ["indptr", "rows", "cols", "t_indptr", "t_rows", "t_cols", "t_order", "edge_ids"]
    result = {name: getattr(graph, name) for name in names}
    for name in ("split", "t_split"):
        split = getattr(graph, name)
        if split is not None:
            result |= {f"{name}.ids": split.ids, f"{name}.places": split.places}
    return result


def differing(want: dict[str, np.ndarray], actual: dict[str, Any], prefix: str = "") -> str | None:
    if set(want) != set(actual):
        return f"{prefix}fields {sorted(actual)}, want {sorted(want)}"
    for name, array in want.items():
        got = np.asarray(actual[name])
        if got.dtype not in (np.int32, np.int64):
            return f"{prefix}{name} has dtype {got.dtype}"
        if got.shape != array.shape or (got != array).any():
            return f"{prefix}{name} is {got.tolist()}, want {array.tolist()}"
    return None


@dataclass(frozen=True)
class _Sizes:
    dst: int
    src: int
    count: int
    extra: int = 0

    @classmethod
    def draw(cls, random: Random) -> _Sizes:
        extra = random.choice([0, 0, 0, 5])
        return cls(random.size(), random.size(), random.count(), extra)

    def graph(self, random: Random, wide: bool = False) -> tuple[Any, Model]:
        dst = random.ids(self.count, self.dst, "int64", True, 0.2)
        src = random.ids(self.count, self.src, "int64", True, 0.2)
        sizes = {"num_src": self.src, "num_dst": self.dst}
        graph = jax_gnn.Graph.from_edges(src, dst, **sizes, validate=False)
        model = Model.of(dst, src, self.dst, self.src)
        if self.extra:
            graph = graph.pad(num_edges=self.count + self.extra)
            model = model.pad(self.dst, self.src, self.count + self.extra)
        if wide:
            graph = jax.tree.map(lambda ids: ids.astype(jnp.int64), graph)
        return graph, model


def weights_shape(random: Random, features: tuple[int, ...], count: int) -> Any:
    """None, or a shape of weights; heads where there is an axis for them."""
    if random.chance(0.35):
        return None
    if features and random.chance(0.4):
        return (count, features[0])
    return (count,)


def message_sum(
    reduce: str, x: Dual, weight: Dual | None, rows: Any, cols: Any, size: int, places: Any
) -> Dual:
    """Reduces weighted rows; ``places`` are those of the entries among the weights."""
    messages = x[cols]
    ndim = len(x.shape)
    if weight is not None:
        w = weight[places]
        w = w.reshape(*w.shape, *[1] * (ndim - len(w.shape)))
        messages = messages * w
    if reduce == "max":
        return messages.max_at(rows, size)
    if reduce == "min":
        return -((-messages).max_at(rows, size))
    total = messages.sum_at(rows, size)
    if reduce == "mean":
        counts = np.bincount(rows, minlength=size).reshape(size, *[1] * (ndim - 1))
        total = total * Dual(np.maximum(counts, 1)).inverse()
    return total


def weight_dtype(random: Random, mode: Mode) -> str:
    """Weights are converted to the accumulator's type; they may be integers."""
    if not mode.derives and random.chance(0.1):
        return random.choice(["int32", "uint8"])
    return random.choice(["float32", "float32", mode.floats(random)])


def spmm(random: Random, mode: Mode) -> Case:
    sizes, dtype = _Sizes.draw(random), mode.floats(random)
    if random.chance(0.3):
        sizes = replace(sizes, src=sizes.dst)
    features = random.choice(FEATURES)
    count = sizes.count + sizes.extra
    shape = weights_shape(random, features, count)
    w_dtype = weight_dtype(random, mode)
    reduce = random.choice(["sum", "mean", "max", "min"])
    wide = mode.x64 and random.chance(0.2)
    last: dict[str, tuple[int, ...]] = {}
    activation = None
    if reduce in ("sum", "mean") and accumulator(dtype) == dtype and random.chance(0.5):
        scale = random.choice([(), (sizes.dst,)])
        last = {"out_scale": scale, "residual": (sizes.dst, *features), "bias": features}
        last |= {"result_scale": scale}
        last |= {"own_scale": scale} if sizes.src == sizes.dst else {}
        last = {name: each for name, each in last.items() if random.chance(0.5)}
        activation = random.choice([None, "relu", "silu"])

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        graph, model = sizes.graph(random, wide)
        return {"graph": graph}, model

    def values(random: Random, ids: dict[str, Any], model: Model) -> dict[str, np.ndarray]:
        x = random.numbers((sizes.src, *features), dtype)
        unread = ~np.isin(np.arange(sizes.src), model.cols)
        result = {"x": x if "own_scale" in last else poison(random, x, unread)}
        result |= {name: random.numbers(each, dtype) for name, each in last.items()}
        if shape is not None:
            weight = random.numbers(shape, w_dtype)
            result["weight"] = poison(random, weight, np.arange(count) >= len(model.rows))
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], model: Model) -> Any:
        places = np.arange(len(model.rows))
        weight = to_accumulator(values.get("weight"), dtype)
        args = (values["x"], weight, model.rows, model.cols, sizes.dst, places)
        y = message_sum(reduce, *args)
        ones = [1] * len(features)
        given = {name: values[name] for name in last}
        for name in ("own_scale", "out_scale", "result_scale"):
            if name in given:
                given[name] = given[name].reshape(*(given[name].shape or (1,)), *ones)
        y = y + values["x"] * given["own_scale"] if "own_scale" in given else y
        y = y * given["out_scale"] if "out_scale" in given else y
        for name in ("residual", "bias"):
            y = y + given[name] if name in given else y
        y = _activate(y, activation)
        return y * given["result_scale"] if "result_scale" in given else y

    return Case(
        "spmm",
        {
            **{"sizes": sizes, "features": features, "dtype": dtype, "weight": shape},
            **{"reduce": reduce, "last": last, "activation": activation},
        },
        lambda graph, x, **rest: jax_gnn.spmm(
            graph, x, reduce=reduce, activation=activation, **rest, **mode.keywords
        ),
        indices,
        values,
        reference,
        np.dtype(dtype),
        accumulator(dtype),
    )


def attention(random: Random, mode: Mode) -> Case:
    """Additive scores and dot products, of edges that scores do not leave out."""
    sizes, dtype = _Sizes.draw(random), mode.floats(random)
    if (
        mode.derives and dtype in HALVES
    ):  # gradients of scores go through results, which are rounded
        dtype = "float32"
    heads, features = random.choice([1, 2, 3]), random.choice([(), (1,), (4,), (2, 3), (0,), (33,)])
    kind = random.choice(["additive", "dot"])
    count, width = sizes.count + sizes.extra, int(np.prod(features))
    has_bias, has_scale = (random.chance(0.4) for _ in range(2))
    wide = mode.x64 and random.chance(0.2)
    acc = accumulator(dtype)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        graph, model = sizes.graph(random, wide)
        return {"graph": graph}, model

    def values(random: Random, ids: dict[str, Any], model: Model) -> dict[str, np.ndarray]:
        of_dst, of_src = (sizes.dst, heads), (sizes.src, heads)
        names = {"dst_score": of_dst, "src_score": of_src}
        if kind == "dot":
            names = {"query": (*of_dst, *features), "key": (*of_src, *features)}
        unread = [~np.isin(np.arange(sizes.dst), model.rows)]
        unread += [~np.isin(np.arange(sizes.src), model.cols)]
        result = {
            name: poison(random, random.numbers(shape, dtype), where)
            for (name, shape), where in zip(names.items(), unread, strict=True)
        }
        value = random.numbers((*of_src, *features), dtype)
        result["value"] = poison(random, value, unread[1])
        padding = np.arange(count) >= len(model.rows)
        for name, given in (("edge_bias", has_bias), ("edge_scale", has_scale)):
            if given:
                of_edges = random.numbers((count, heads), dtype)
                result[name] = poison(random, of_edges, padding)
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], model: Model) -> Any:
        rows, cols = model.rows, model.cols
        places = np.arange(len(rows))
        with rounding(acc, acc):
            if kind == "additive":
                score = values["dst_score"][rows] + values["src_score"][cols]
                score = score + values["edge_bias"][places] if has_bias else score
                score = _leaky(score, 0.25)
            else:
                flat = len(rows), heads, width
                products = values["query"][rows].reshape(*flat) * values["key"][cols].reshape(*flat)
                score = products.sum_last() * Dual(np.full((1, 1), max(width, 1) ** -0.5))
                score = score + values["edge_bias"][places] if has_bias else score
            weight = reduce_segments("softmax", score, rows, sizes.dst, np.dtype(acc))
            weight = weight * values["edge_scale"][places] if has_scale else weight
        weight = weight.reshape(len(rows), heads, *[1] * len(features))
        messages = values["value"][cols] * weight
        return messages.sum_at(rows, sizes.dst)

    names = ("dst_score", "src_score", "value") if kind == "additive" else ("query", "key", "value")
    function = getattr(jax_gnn, f"{kind}_attention")
    slope = {"negative_slope": 0.25} if kind == "additive" else {}
    return Case(
        f"{kind}_attention",
        {
            **{"sizes": sizes, "heads": heads, "features": features, "dtype": dtype},
            **{"bias": has_bias, "scale": has_scale},
        },
        functools.partial(_call, function, ("graph", *names), mode.keywords | slope),
        *(indices, values, reference, np.dtype(dtype), acc),
    )


def _leaky(x: Dual, slope: float) -> Dual:
    """A LeakyReLU whose slope is a power of two, with derivative 1 at 0."""
    above = x.value >= 0
    below = (x * Dual(np.full(x.shape, slope))).where(~above)
    unsure = (np.abs(x.value) <= x.ball.radius) & (x.ball.radius > 0)
    return (x.where(above) + below).unsure(unsure)


def to_accumulator(weight: Dual | None, features: Any) -> Dual | None:
    """Weights are rounded to the type in which features are added."""
    if weight is None:
        return None
    v, r = weight.ball
    return Dual.of(rounded(v, r, accumulator(features)), weight.tangent)


def sddmm(random: Random, mode: Mode) -> Case:
    sizes = _Sizes.draw(random)
    dtype = mode.floats(random)
    other = dtype if mode.strict or random.chance(0.7) else mode.floats(random)
    op = random.choice(["dot", "dot", "add", "sub", "mul"])
    features = random.choice([f for f in FEATURES if op != "dot" or len(f) in (1, 2)])
    count = sizes.count + sizes.extra
    wide = mode.x64 and random.chance(0.2)
    result = np.dtype(jnp.promote_types(dtype, other)) if dtype != other else np.dtype(dtype)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        graph, model = sizes.graph(random, wide)
        return {"graph": graph}, model

    def values(random: Random, ids: dict[str, Any], model: Model) -> dict[str, np.ndarray]:
        a = random.numbers((sizes.dst, *features), dtype)
        b = random.numbers((sizes.src, *features), other)
        return {
            "a": poison(random, a, ~np.isin(np.arange(sizes.dst), model.rows)),
            "b": poison(random, b, ~np.isin(np.arange(sizes.src), model.cols)),
        }

    def reference(values: Mapping[str, Any], ids: dict[str, Any], model: Model) -> Any:
        a, b = values["a"][model.rows], values["b"][model.cols]
        if op == "dot":
            edges = (a * b).sum_last()
        else:
            edges = {"add": a + b, "sub": a - b, "mul": a * b}[op] if op != "mul" else a * b
        return spread(edges, np.arange(len(model.rows)), count)

    options = {"sizes": sizes, "features": features, "dtypes": (dtype, other), "op": op}
    call = functools.partial(_call, jax_gnn.sddmm, ("graph", "a", "b"), mode.keywords | {"op": op})
    return Case(
        *("sddmm", options, call, indices, values, reference, result),
        accumulator(result),
    )


def _call(function: Any, order: Sequence[str], keywords: dict[str, Any], **operands: Any) -> Any:
    first = [operands.pop(name) for name in order]
    return function(*first, **operands, **keywords)


def index_segment_reduce(random: Random, mode: Mode) -> Case:
    rows, size, count = random.size(), random.size(), random.count()
    dtype, features = mode.floats(random), random.choice(FEATURES)
    shape = weights_shape(random, features, count)
    w_dtype = weight_dtype(random, mode)
    reduce = random.choice(["sum", "mean", "max", "min"])
    index_dtype, ids_dtype = mode.id_dtype(random), mode.id_dtype(random)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        index = random.ids(count, rows, index_dtype, mode.wide_ids)
        ids = np.sort(random.ids(count, size, ids_dtype, mode.wide_ids))
        return {"index": index, "segment_ids": ids}, in_range(index, rows) & in_range(ids, size)

    def values(random: Random, ids: dict[str, Any], valid: Any) -> dict[str, np.ndarray]:
        x = random.numbers((rows, *features), dtype)
        read = ids["index"][valid].astype(np.int64)
        result = {"x": poison(random, x, ~np.isin(np.arange(rows), read))}
        if shape is not None:
            result["weight"] = poison(random, random.numbers(shape, w_dtype), ~valid)
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], valid: Any) -> Any:
        cols, at = (ids[n][valid].astype(np.int64) for n in ("index", "segment_ids"))
        weight = to_accumulator(values.get("weight"), dtype)
        return message_sum(reduce, values["x"], weight, at, cols, size, np.flatnonzero(valid))

    def call(x: Any, index: Any, segment_ids: Any, weight: Any = None) -> Any:
        return jax_gnn.index_segment_reduce(
            x, index, segment_ids, size, weight, reduce, **mode.keywords
        )

    return Case(
        "index_segment_reduce",
        {
            "x": (rows, *features),
            "count": count,
            "num_segments": size,
            "dtype": dtype,
            "weight": shape,
            "reduce": reduce,
            "ids": (index_dtype, ids_dtype),
        },
        *(call, indices, values, reference, np.dtype(dtype), accumulator(dtype)),
    )


_OPERATIONS = (
    "pad",
    "transpose",
    "with_self_loops",
    "symmetrized",
    "with_edge_split",
    "edge_values",
    "repr",
)


def graph(random: Random, mode: Mode) -> Case:
    """Construction and a chain of methods; all arrays are compared."""
    traced = mode.jitted
    square = random.chance(0.5)
    num_dst, count = random.choice(SIZES), random.choice(COUNTS)
    num_src = num_dst if square else random.choice(SIZES)
    infer = not traced and random.chance(0.2)
    pool = _OPERATIONS
    if traced:
        pool = ("pad", "transpose", "with_edge_split", "edge_values")
    if not square:
        pool = tuple(o for o in pool if o not in ("with_self_loops", "symmetrized"))
    steps = [random.choice(pool) for _ in range(random.integer(0, 5))]
    grow = [random.choice([None, 0, 3]) for _ in range(3)]
    id_dtype = mode.id_dtype(random) if traced else random.choice(ID_DTYPES)
    by_scipy = not traced and not infer and random.chance(0.2)
    value_dtype = random.choice(["float32", "int32", "bool", "float16", "complex64"])
    fill = random.choice([0, 1, -1]) if value_dtype != "bool" else random.choice([True, False])
    features = random.choice(FEATURES)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        dst = random.ids(count, num_dst, id_dtype, mode.wide_ids)
        src = random.ids(count, num_src, id_dtype, mode.wide_ids)
        if infer or by_scipy:
            dst, src = (
                np.where(in_range(ids, size), ids, 0).astype(id_dtype)
                for ids, size in ((dst, num_dst), (src, num_src))
            )
        values = random.numbers((count, *features), value_dtype)
        return {"src": src, "dst": dst, "values": values}, (dst, src)

    def call(src: Any, dst: Any, values: Any) -> Any:
        if by_scipy and num_dst and num_src:
            entries = np.ones(count), (np.asarray(dst, np.int64), np.asarray(src, np.int64))
            graph = jax_gnn.Graph.from_scipy(
                scipy.sparse.coo_array(entries, shape=(num_dst, num_src))
            )
        elif infer:
            graph = jax_gnn.Graph.from_edges(src, dst)
        elif square:
            graph = jax_gnn.Graph.from_edges(src, dst, num_nodes=num_dst, validate=False)
        else:
            sizes = {"num_src": num_src, "num_dst": num_dst}
            graph = jax_gnn.Graph.from_edges(src, dst, **sizes, validate=False)
        taken = []
        for step in steps:
            if step == "pad":
                graph = graph.pad(**_capacities(graph.num_src, graph.num_dst, graph.num_edges))
            elif step == "edge_values":
                taken.append(graph.edge_values(values, fill))
            elif step == "repr":
                assert repr(graph).startswith("Graph(num_")
            else:
                graph = getattr(graph, step)()
        degrees = graph.in_degrees(), graph.out_degrees()
        return graph_arrays(graph), taken, degrees

    def _capacities(num_src: int, num_dst: int, num_edges: int) -> dict[str, int]:
        sizes = {"num_edges": num_edges}
        sizes |= {"num_nodes": num_dst} if square else {"num_src": num_src, "num_dst": num_dst}
        return {
            name: size + more
            for (name, size), more in zip(sizes.items(), grow, strict=False)
            if more is not None
        }

    def reference(values: Mapping[str, Any], ids: dict[str, Any], known: Any) -> Any:
        dst, src = known
        sizes = num_dst, num_src
        if infer:
            n = max((int(i) for i in itertools.chain(dst, src)), default=-1) + 1
            sizes = n, n
        model = Model.of(dst, src, *sizes)
        if by_scipy and num_dst and num_src:
            model = Model.of(dst, src, num_dst, num_src)
        taken = []
        for step in steps:
            if step == "pad":
                wanted = _capacities(model.num_src, model.num_dst, model.capacity)
                nodes = wanted.get("num_nodes")
                model = model.pad(
                    nodes if nodes is not None else wanted.get("num_dst", model.num_dst),
                    nodes if nodes is not None else wanted.get("num_src", model.num_src),
                    wanted.get("num_edges", model.capacity),
                )
            elif step == "edge_values":
                places = [e for _, _, e in model.edges]
                places += [-1] * (model.capacity - len(places))
                filler = np.full(ids["values"].shape[1:], fill, ids["values"].dtype)
                rows = [filler if e < 0 else ids["values"][e] for e in places]
                taken.append(np.array(rows, ids["values"].dtype).reshape(len(rows), *features))
            elif step == "with_edge_split":
                model = Model(model.num_dst, model.num_src, model.edges, model.capacity, split=True)
            elif step in ("transpose", "with_self_loops", "symmetrized"):
                model = getattr(model, step)()
        want = model.arrays()

        def check(actual: Any) -> str | None:
            arrays, got, degrees = actual
            wrong = differing(want, arrays)
            if wrong:
                return wrong
            for a, b in zip(got, taken, strict=True):
                if a.dtype != b.dtype or a.shape != b.shape or (np.asarray(a) != b).any():
                    return f"edge_values {np.asarray(a).tolist()}, want {b.tolist()}"
            if (np.asarray(degrees[0]) != np.diff(want["indptr"])).any():
                return "in_degrees"
            if (np.asarray(degrees[1]) != np.diff(want["t_indptr"])).any():
                return "out_degrees"
            return None

        return check

    options = {
        "sizes": (num_dst, num_src, count),
        "steps": steps,
        "grow": grow,
        "ids": id_dtype,
        "infer": infer,
        "scipy": by_scipy,
        "values": value_dtype,
        "fill": fill,
    }
    return Case(
        *("Graph", options, call, indices, lambda *_: {}, reference, None),
        differentiable=False,
        vmappable=False,
        lists=False,
    )


# --- Hypergraphs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _HyperSizes:
    nodes: int
    hyperedges: int
    count: int
    head_count: int | None
    extra: int

    @classmethod
    def draw(cls, random: Random) -> _HyperSizes:
        head = random.count() if random.chance(0.35) else None
        sizes = random.size(), random.size(), random.count()
        return cls(*sizes, head, random.choice([0, 0, 4]))

    @property
    def incidences(self) -> int:
        return self.count + self.extra

    @property
    def receiving(self) -> int:
        return self.incidences if self.head_count is None else self.head_count + self.extra

    def draw_hypergraph(self, random: Random, wide: bool = False) -> tuple[Any, Any]:
        pairs = []
        models = []
        for count in (self.count, self.head_count):
            if count is None:
                continue
            nodes = random.ids(count, self.nodes, "int64", True, 0.2)
            hyperedges = random.ids(count, self.hyperedges, "int64", True, 0.2)
            pairs += [nodes, hyperedges]
            model = Model.of(hyperedges, nodes, self.hyperedges, self.nodes)
            models.append(model.pad(self.hyperedges, self.nodes, count + self.extra))
        make = jax_gnn.Hypergraph.from_incidence
        if self.head_count is not None:
            make = jax_gnn.Hypergraph.from_directed
        sizes = {"num_nodes": self.nodes, "num_hyperedges": self.hyperedges}
        hypergraph = make(*pairs, **sizes, validate=False)
        if self.extra:
            capacities = {"num_incidences": self.incidences}
            if self.head_count is not None:
                capacities["num_head_incidences"] = self.receiving
            hypergraph = hypergraph.pad(**capacities)
        if wide:
            hypergraph = jax.tree.map(lambda ids: ids.astype(jnp.int64), hypergraph)
        return hypergraph, (models[0], models[-1])


def node_scale(random: Random, size: int, dtype: str, positive: bool = False) -> np.ndarray:
    return random.numbers((size,), dtype, positive)


def _column(scale: Dual, ndim: int) -> Dual:
    """``(rows,)`` or ``(rows, heads)``, with as many axes as features have."""
    rows, *heads = scale.shape
    return scale.reshape(rows, *[*heads, *[1] * ndim][: ndim - 1])


def _power(degrees: Dual, exponent: float) -> Dual:
    positive = degrees.value > 0
    y = degrees.where(positive, 1.0).power(exponent).where(positive)
    unsure = (degrees.ball.radius > 0) & (np.abs(degrees.value) <= degrees.ball.radius)
    result = y.unsure(unsure)
    result.ball.radius[unsure] = np.inf
    return result


def _degree(
    weight: Dual | None, other: Dual | None, ids: Any, others: Any, size: int, heads: int
) -> Dual:
    """``(size, heads)`` sums of weights of entries, times what the other side has."""
    values = Dual(np.ones((len(ids), heads)))
    if weight is not None:
        values = weight[np.arange(len(ids))]
        values = values.reshape(len(ids), *weight.shape[1:] or (1,))
    if other is not None:
        values = values * other[others].reshape(len(ids), 1)
    return values.sum_at(ids, size)


def _norm(tails: Model, heads: Model, w: Any, hw: Any, edge_weight: Any, kind: str) -> Any:
    """(node_in or None, hyperedge, node_out), each ``(rows, heads)``."""
    nodes, hyperedges = tails.num_src, tails.num_dst
    hyperedge = _power(_degree(w, None, tails.rows, tails.cols, hyperedges, 1), -1.0)
    received = _degree(hw, edge_weight, heads.cols, heads.rows, nodes, 1)
    if kind == "row":
        return None, hyperedge, _power(received, -1.0)
    sent = _degree(w, edge_weight, tails.cols, tails.rows, nodes, 1)
    return _power(sent, -0.5), hyperedge, _power(received, -0.5)


def _scaled(x: Dual, scale: Dual | None, used: np.ndarray) -> Dual:
    """Scales by head; rows that are not used are zero, whatever they hold."""
    if scale is None:
        return x
    x, scale = x.where(used), scale.where(used)
    return x * _column(scale, len(x.shape))


def _used(ids: np.ndarray, size: int) -> np.ndarray:
    return np.isin(np.arange(size), ids)


def _finite_reduce(reduce: str, x: Dual, w: Any, rows: Any, cols: Any, size: int) -> Dual:
    """As :func:`message_sum`, but 0 of nothing."""
    result = message_sum(reduce, x, w, rows, cols, size, np.arange(len(rows)))
    return result.where(_used(rows, size))


def aggregate(random: Random, mode: Mode) -> Case:
    sizes, dtype, features = _HyperSizes.draw(random), mode.floats(random), random.choice(FEATURES)
    w_dtype = weight_dtype(random, mode)
    directed = sizes.head_count is not None
    normalization = random.choice([None, None, "symmetric", "row"])
    reduces = ("sum", "sum")
    if normalization is None:
        reduces = tuple(random.choice(["sum", "sum", "mean", "max", "min"]) for _ in range(2))
    shapes: dict[str, tuple[int, ...]] = {}
    if random.chance(0.4):
        w_shape = weights_shape(random, features, sizes.incidences)
        if w_shape is not None:
            shapes["incidence_weight"] = w_shape
    if random.chance(0.3):
        w_shape = weights_shape(random, features, sizes.receiving)
        if w_shape is not None:
            shapes["head_weight"] = w_shape
    for name, size in (
        ("hyperedge_weight", sizes.hyperedges),
        ("node_scale_in", sizes.nodes),
        ("node_scale_out", sizes.nodes),
        ("hyperedge_scale", sizes.hyperedges),
    ):
        if random.chance(0.3):
            shapes[name] = (size,)
    if random.chance(0.3):
        shapes["own_scale"] = random.choice([(), (sizes.nodes,)])
    if random.chance(0.2):
        shapes["residual"] = (sizes.nodes, *features)
    if random.chance(0.2):
        shapes["bias"] = features
    wide = mode.x64 and random.chance(0.2)
    signed = random.chance(0.3)
    acc = accumulator(dtype)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        hypergraph, models = sizes.draw_hypergraph(random, wide)
        return {"hypergraph": hypergraph}, models

    def values(random: Random, ids: dict[str, Any], models: Any) -> dict[str, np.ndarray]:
        tails, heads = models
        used_in, used_out = _used(tails.cols, sizes.nodes), _used(heads.cols, sizes.nodes)
        used_edge = _used(tails.rows, sizes.hyperedges) & _used(heads.rows, sizes.hyperedges)
        x = random.numbers((sizes.nodes, *features), dtype)
        result = {"x": x if "own_scale" in shapes else poison(random, x, ~used_in)}
        positive = normalization is not None and not signed
        unread = {
            "incidence_weight": np.arange(sizes.incidences) >= len(tails.rows),
            "head_weight": np.arange(sizes.receiving) >= len(heads.rows),
            "node_scale_in": ~used_in,
            "node_scale_out": ~used_out,
            "hyperedge_scale": ~used_edge,
            "hyperedge_weight": ~used_edge if normalization is None else None,
        }
        for name, shape in shapes.items():
            array = random.numbers(shape, dtype if name == "residual" else w_dtype, positive)
            where = unread.get(name)
            result[name] = array if where is None else poison(random, array, where)
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], models: Any) -> Any:
        tails, heads = models
        given = {n: to_accumulator(v, dtype) for n, v in values.items() if n != "x"}
        x, w, hw = values["x"], given.get("incidence_weight"), given.get("head_weight")
        if hw is None and not directed:
            hw = w
        used_in, used_out = _used(tails.cols, sizes.nodes), _used(heads.cols, sizes.nodes)
        used_edge = _used(tails.rows, sizes.hyperedges) & _used(heads.rows, sizes.hyperedges)
        ins = [given.get("node_scale_in")]
        edges = [given.get("hyperedge_weight"), given.get("hyperedge_scale")]
        outs = [given.get("node_scale_out")]
        if normalization is not None:
            norm = _norm(tails, heads, w, hw, given.get("hyperedge_weight"), normalization)
            ins, edges, outs = [*ins, norm[0]], [*edges, norm[1]], [*outs, norm[2]]
        h = x
        for scale in ins:
            h = _scaled(h, scale, used_in)
        h = _finite_reduce(reduces[0], h, w, tails.rows, tails.cols, sizes.hyperedges)
        for scale in edges:
            h = _scaled(h, scale, used_edge)
        y = _finite_reduce(reduces[1], h, hw, heads.cols, heads.rows, sizes.nodes)
        for scale in outs:
            y = _scaled(y, scale, used_out)
        if "own_scale" in given:
            own = given["own_scale"]
            y = y + x * own.reshape(*(own.shape or (1,)), *[1] * len(features))
        for name in ("residual", "bias"):
            y = y + given[name] if name in given else y
        return y

    def call(hypergraph: Any, x: Any, **rest: Any) -> Any:
        return jax_gnn.hypergraph_aggregate(
            hypergraph,
            x,
            **rest,
            normalization=normalization,
            hyperedge_reduce=reduces[0],
            node_reduce=reduces[1],
            **mode.keywords,
        )

    options = {
        "sizes": sizes,
        "features": features,
        "dtype": dtype,
        "given": sorted(shapes),
        "weights": w_dtype,
        "normalization": normalization,
        "reduces": reduces,
    }
    return Case(
        *("hypergraph_aggregate", options, call, indices, values, reference, np.dtype(dtype), acc),
    )


def norm(random: Random, mode: Mode) -> Case:
    sizes = _HyperSizes.draw(random)
    kind = random.choice(["symmetric", "row"])
    shapes = {}
    if random.chance(0.5):
        shapes["incidence_weight"] = random.choice([(sizes.incidences,), (sizes.incidences, 1)])
    if random.chance(0.4):
        shapes["head_weight"] = random.choice([(sizes.receiving,), (sizes.receiving, 1)])
    if random.chance(0.5):
        shapes["hyperedge_weight"] = (sizes.hyperedges,)
    w_dtype = weight_dtype(random, mode)
    acc = np.dtype(np.float64 if mode.x64 else np.float32)
    signed = random.chance(0.3)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        hypergraph, models = sizes.draw_hypergraph(random)
        return {"hypergraph": hypergraph}, models

    def values(random: Random, ids: dict[str, Any], models: Any) -> dict[str, np.ndarray]:
        unread = {
            "incidence_weight": np.arange(sizes.incidences) >= len(models[0].rows),
            "head_weight": np.arange(sizes.receiving) >= len(models[1].rows),
        }
        result = {}
        for name, shape in shapes.items():
            array = random.numbers(shape, w_dtype, not signed)
            result[name] = poison(random, array, unread[name]) if name in unread else array
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], models: Any) -> Any:
        tails, heads = models
        w, hw = values.get("incidence_weight"), values.get("head_weight")
        if hw is None and sizes.head_count is None:
            hw = w
        edge_weight = values.get("hyperedge_weight")
        node_in, hyperedge, node_out = _norm(tails, heads, w, hw, edge_weight, kind)
        hyperedge = hyperedge.reshape(sizes.hyperedges)
        if edge_weight is not None:
            used = _used(tails.rows, sizes.hyperedges) & _used(heads.rows, sizes.hyperedges)
            hyperedge = hyperedge.where(used) * edge_weight.where(used)
        results = [hyperedge, node_out.reshape(sizes.nodes)]
        return results if node_in is None else [node_in.reshape(sizes.nodes), *results]

    def call(hypergraph: Any, **rest: Any) -> Any:
        result = jax_gnn.hypergraph_norm(hypergraph, **rest, normalization=kind, **mode.keywords)
        assert isinstance(result, jax_gnn.HypergraphNorm)
        assert set(result.scales) == {"node_scale_in", "hyperedge_scale", "node_scale_out"}
        return [factor for factor in result if factor is not None]

    options = {"sizes": sizes, "given": sorted(shapes), "dtype": w_dtype, "normalization": kind}
    return Case(*("hypergraph_norm", options, call, indices, values, reference, acc, acc))


def stage(random: Random, mode: Mode) -> Case:
    to_nodes = random.chance(0.5)
    sizes, dtype, features = _HyperSizes.draw(random), mode.floats(random), random.choice(FEATURES)
    w_dtype = weight_dtype(random, mode)
    reduce = random.choice(["sum", "mean", "max", "min"])
    count = sizes.receiving if to_nodes else sizes.incidences
    shape = weights_shape(random, features, count)
    senders = sizes.hyperedges if to_nodes else sizes.nodes

    def side(models: Any) -> tuple[Any, Any, int]:
        model = models[1] if to_nodes else models[0]
        if to_nodes:
            return model.cols, model.rows, sizes.nodes
        return model.rows, model.cols, sizes.hyperedges

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        hypergraph, models = sizes.draw_hypergraph(random)
        return {"hypergraph": hypergraph}, models

    def values(random: Random, ids: dict[str, Any], models: Any) -> dict[str, np.ndarray]:
        rows, cols, _ = side(models)
        x = random.numbers((senders, *features), dtype)
        result = {"x": poison(random, x, ~_used(cols, senders))}
        if shape is not None:
            weight = random.numbers(shape, w_dtype)
            result["weight"] = poison(random, weight, np.arange(count) >= len(rows))
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], models: Any) -> Any:
        rows, cols, size = side(models)
        weight = to_accumulator(values.get("weight"), dtype)
        return _finite_reduce(reduce, values["x"], weight, rows, cols, size)

    function = jax_gnn.hyperedge_to_node if to_nodes else jax_gnn.node_to_hyperedge

    def call(hypergraph: Any, x: Any, weight: Any = None) -> Any:
        return function(hypergraph, x, weight, reduce=reduce, **mode.keywords)

    options = {"sizes": sizes, "features": features, "dtype": dtype, "weight": (shape, w_dtype)}
    options |= {"reduce": reduce}
    return Case(
        *(function.__name__, options, call, indices, values, reference, np.dtype(dtype)),
        accumulator(dtype),
    )


def softmax(random: Random, mode: Mode) -> Case:
    sizes, dtype, features = _HyperSizes.draw(random), mode.floats(random), random.choice(FEATURES)
    by = random.choice(["node", "hyperedge"])
    count = sizes.receiving if by == "node" else sizes.incidences

    def ids_of(models: Any) -> tuple[np.ndarray, int]:
        ids = models[1].cols if by == "node" else models[0].rows
        padded = np.concatenate([ids, np.full(count - len(ids), -1, np.int64)])
        return padded, sizes.nodes if by == "node" else sizes.hyperedges

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        hypergraph, models = sizes.draw_hypergraph(random)
        return {"hypergraph": hypergraph}, models

    def values(random: Random, ids: dict[str, Any], models: Any) -> dict[str, np.ndarray]:
        scores = random.numbers((count, *features), dtype)
        return {"scores": poison(random, scores, ids_of(models)[0] < 0)}

    def reference(values: Mapping[str, Any], ids: dict[str, Any], models: Any) -> Any:
        rows, size = ids_of(models)
        return reduce_segments("softmax", values["scores"], rows, size, np.dtype(dtype))

    def call(hypergraph: Any, scores: Any) -> Any:
        return jax_gnn.incidence_softmax(hypergraph, scores, by, **mode.keywords)

    options = {"sizes": sizes, "features": features, "dtype": dtype, "by": by}
    return Case(
        *("incidence_softmax", options, call, indices, values, reference, np.dtype(dtype)),
        accumulator(dtype),
    )


def hypergraph(random: Random, mode: Mode) -> Case:
    """Construction and a chain of methods; all arrays are compared."""
    traced = mode.jitted
    sizes = _HyperSizes.draw(random)
    directed = sizes.head_count is not None
    infer = not traced and random.chance(0.2)
    kinds = ["from_incidence"] * 3 + ["from_hyperedges", "from_scipy", "from_knn"] * (not traced)
    kind = "from_directed" if directed else random.choice(kinds)
    pool = ["pad", "dual", "incidence_values", "repr"]
    if not traced:
        pool += ["isolated", "all"]
    steps = [random.choice(pool) for _ in range(random.integer(0, 4))]
    grow = [random.choice([None, 0, 3]) for _ in range(4)]
    id_dtype = mode.id_dtype(random) if traced else random.choice(ID_DTYPES)
    k, width = random.integer(1, 5), random.integer(0, 4)
    whole = infer or kind in ("from_hyperedges", "from_scipy")

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        operands: dict[str, Any] = {}
        models = []
        if kind == "from_knn":
            n = max(sizes.nodes, k)
            points = random.rng.integers(-3, 4, (n, width)).astype(random.choice([float, int]))
            pairs = []
            for i in range(n):
                distances = [
                    (-1.0 if j == i else float(((points[i] - points[j]) ** 2).sum()), j)
                    for j in range(n)
                ]
                pairs += [(i, j) for _, j in sorted(distances)[:k]]
            rows, cols = ([p[s] for p in pairs] for s in range(2))
            model = Model.of(rows, cols, n, n)
            # The input had each hyperedge's nodes by distance: that is the order of edge_ids.
            return {"points": points}, [model]
        for name, count in (("tail", sizes.count), ("head", sizes.head_count)):
            if count is None:
                continue
            nodes = random.ids(count, sizes.nodes, id_dtype, mode.wide_ids)
            hyperedges = random.ids(count, sizes.hyperedges, id_dtype, mode.wide_ids)
            if whole:
                keep = in_range(nodes, sizes.nodes) & in_range(hyperedges, sizes.hyperedges)
                nodes, hyperedges = nodes[keep], hyperedges[keep]
            if kind == "from_scipy":
                both = np.unique(np.stack([nodes, hyperedges]).astype(np.int64), axis=1)
                nodes, hyperedges = both.astype(id_dtype)
            if kind == "from_hyperedges":
                order = np.argsort(hyperedges, kind="stable")
                nodes, hyperedges = nodes[order], hyperedges[order]
            operands |= {f"{name}_nodes": nodes, f"{name}_hyperedges": hyperedges}
        n, m = sizes.nodes, sizes.hyperedges
        if infer and kind != "from_scipy":
            every = [int(i) for name, ids in operands.items() if "nodes" in name for i in ids]
            n = max(every, default=-1) + 1
            every = [int(i) for name, ids in operands.items() if "hyper" in name for i in ids]
            m = max(every, default=-1) + 1 if kind != "from_hyperedges" else m
        for name in ("tail", "head"):
            if f"{name}_nodes" in operands:
                pair = operands[f"{name}_hyperedges"], operands[f"{name}_nodes"]
                models.append(Model.of(*pair, m, n))
        return operands, models

    def call(**arrays: Any) -> Any:
        pairs = [
            arrays[f"{side}_{name}"]
            for side in ("tail", "head")
            for name in ("nodes", "hyperedges")
            if f"{side}_{name}" in arrays
        ]
        given = {} if infer else {"num_nodes": sizes.nodes, "num_hyperedges": sizes.hyperedges}
        made = jax_gnn.Hypergraph
        if kind == "from_knn":
            graph = made.from_knn(arrays["points"], k)
        elif kind == "from_hyperedges":
            nodes, owners = np.asarray(arrays["tail_nodes"]), np.asarray(arrays["tail_hyperedges"])
            members = [nodes[owners == e].tolist() for e in range(sizes.hyperedges)]
            graph = made.from_hyperedges(members, num_nodes=None if infer else sizes.nodes)
        elif kind == "from_scipy":
            places = tuple(np.asarray(ids, np.int64) for ids in pairs)
            entries = np.ones(len(places[0])), places
            shape = sizes.nodes, sizes.hyperedges
            graph = made.from_scipy(scipy.sparse.coo_array(entries, shape=shape))
        elif directed:
            graph = made.from_directed(*pairs, **given, validate=False)
        else:
            graph = made.from_incidence(*pairs, **given, validate=False)
        lengths = [len(ids) for ids in pairs[::2]] or [max(sizes.nodes, k) * k]
        taken = []
        for step in steps:
            if step == "pad":
                now = [graph.num_nodes, graph.num_hyperedges, graph.num_incidences]
                head = [] if graph.head is None else [graph.head.num_edges]
                graph = graph.pad(**_capacities([*now, *head]))
            elif step == "dual":
                graph = graph.dual
                lengths.reverse()
            elif step in ("isolated", "all"):
                graph = graph.with_self_loops(step)
            elif step == "incidence_values":
                taken.append(graph.incidence_values(jnp.arange(lengths[0])))
            else:
                assert repr(graph).startswith("Hypergraph(num_nodes=")
        named = {
            "hyperedge_indptr": graph.hyperedge_indptr,
            "hyperedge_nodes": graph.hyperedge_nodes,
            "node_indptr": graph.node_indptr,
            "node_hyperedges": graph.node_hyperedges,
            "incidence": graph.incidence(),
            "node_degrees": graph.node_degrees(),
            "hyperedge_degrees": graph.hyperedge_degrees(),
        }
        graphs = [graph.graph] if graph.head is None else [graph.graph, graph.head]
        return [graph_arrays(each) for each in graphs], taken, named

    def _capacities(now: list[int]) -> dict[str, int]:
        names = ("num_nodes", "num_hyperedges", "num_incidences", "num_head_incidences")
        return {
            name: size + more
            for name, size, more in zip(names, now, grow, strict=False)
            if more is not None
        }

    def reference(values: Mapping[str, Any], ids: dict[str, Any], models: Any) -> Any:
        models = [Model(m.num_dst, m.num_src, m.edges, m.capacity, True) for m in models]
        taken = []
        for step in steps:
            first = models[0]
            if step == "pad":
                wanted = _capacities(
                    [first.num_src, first.num_dst, *(model.capacity for model in models)]
                )
                names = ("num_incidences", "num_head_incidences")
                models = [
                    model.pad(
                        wanted.get("num_hyperedges", first.num_dst),
                        wanted.get("num_nodes", first.num_src),
                        wanted.get(name, model.capacity),
                    )
                    for name, model in zip(names, models, strict=False)
                ]
            elif step == "dual":
                models = [model.transpose() for model in reversed(models)]
            elif step in ("isolated", "all"):
                if step == "isolated":
                    have = {j for model in models for _, j, _ in model.edges}
                else:
                    owners = []
                    for model in models:
                        members: dict[int, list[int]] = {}
                        for i, j, _ in model.edges:
                            members.setdefault(i, []).append(j)
                        owners.append({(i, m[0]) for i, m in members.items() if len(m) == 1})
                    have = {j for _, j in owners[0] & owners[-1]}
                loops = [j for j in range(first.num_src) if j not in have]
                new = [(first.num_dst + i, j, -1) for i, j in enumerate(loops)]
                models = [model.with_edges(new, first.num_dst + len(new)) for model in models]
            elif step == "incidence_values":
                places = [e for _, _, e in first.edges]
                taken.append([*(max(e, 0) for e in places), *[0] * (first.capacity - len(places))])
        want = [model.arrays() for model in models]

        def check(actual: Any) -> str | None:
            graphs, got, named = actual
            for array, reference in zip(graphs, want, strict=True):
                if kind == "from_knn":  # edge_ids are by distance
                    for each in (array, reference):
                        each.pop("edge_ids", None)
                wrong = differing(reference, array)
                if wrong:
                    return wrong
            for a, b in zip(got, taken, strict=True):
                a = np.asarray(a).tolist()
                if kind != "from_knn" and a != b:
                    return f"incidence_values {a}, want {b}"
            first = want[0]
            same = {
                "hyperedge_indptr": first["indptr"],
                "hyperedge_nodes": first["cols"],
                "node_indptr": first["t_indptr"],
                "node_hyperedges": first["t_cols"],
                "incidence": np.stack([first["cols"], first["rows"]]),
                "node_degrees": np.diff(first["t_indptr"]),
                "hyperedge_degrees": np.diff(first["indptr"]),
            }
            for name, array in same.items():
                if not np.array_equal(np.asarray(named[name]), array):
                    return f"{name} is {named[name]}, want {array}"
            return None

        return check

    options = {"kind": kind, "sizes": sizes, "steps": steps, "grow": grow, "ids": id_dtype}
    options |= {"infer": infer, "k": k, "width": width}
    return Case(
        *("Hypergraph", options, call, indices, lambda *_: {}, reference, None),
        differentiable=False,
        vmappable=False,
        lists=False,
    )


# --- Products ------------------------------------------------------------------------------------


def _bounds(sizes: np.ndarray, offset: int, num_groups: int, rows: int) -> list[range]:
    """The rows of each group."""
    starts = [0]
    for size in sizes:
        starts.append(min(starts[-1] + max(int(size), 0), rows))
    result = []
    for g in range(offset, offset + num_groups):
        inside = 0 <= g < len(sizes)
        result.append(range(starts[g], starts[g + 1]) if inside else range(0))
    return result


def _activate(x: Dual, activation: str | None) -> Dual:
    if activation is None:
        return x
    one, shape = Dual(np.ones(x.shape)), x.shape

    def constant(c: float) -> Dual:
        return Dual(np.full(shape, c))

    if activation == "relu":
        unsure = np.abs(x.value) <= x.ball.radius
        return x.where(x.value > 0).unsure(unsure & (x.ball.radius > 0))
    if activation == "tanh":
        return x.tanh()
    if activation == "silu":
        return x * (one + (-x).exp()).inverse()
    inner = constant(float(np.sqrt(2 / np.pi))) * (x + constant(0.044715) * x * x * x)
    return constant(0.5) * x * (one + inner.tanh())


def matmul(random: Random, mode: Mode) -> Case:
    outer = random.chance(0.3)
    names = ["float32", "float32", *HALVES] + ["float64"] * mode.x64 * 2
    if random.chance(0.15):
        names = ["complex64", *["complex128"] * mode.x64]
    elif random.chance(0.15) and not mode.derives:
        names = ["int8", "uint8", "int16", "int32", *["int64"] * mode.x64]
    dtype = random.choice(names)
    other = dtype if mode.strict or random.chance(0.8) else random.choice(names)
    with jax.enable_x64(mode.x64):
        common = np.dtype(jnp.promote_types(dtype, other)) if dtype != other else np.dtype(dtype)
    integer = common.kind in "iu"
    preferred = None
    if random.chance(0.25):
        wider = {
            "float16": ["float16", "float32"],
            "bfloat16": ["bfloat16", "float32"],
            "float32": ["float32", *["float64"] * mode.x64],
            "int8": ["int32", "int16", "int8"],
            "uint8": ["uint32", "int32", "uint8"],
            "int16": ["int32"],
        }
        preferred = random.choice(wider.get(common.name, [common.name]))
    result = np.dtype(preferred or common)
    rows, k, n = (random.choice(pool) for pool in ((0, 1, 6, 20), (0, 1, 3, 8), (0, 1, 2, 5)))
    if not mode.derives and random.chance(0.2):
        rows, k, n = (random.choice(pool) for pool in ((5, 150), (17, 33, 64), (16, 65)))
    num_groups, num_sizes = random.choice((0, 1, 3, 5)), random.choice((0, 1, 3, 5))
    offset_kind = random.choice([None, None, "int", "array", "(1,)"])
    if offset_kind is None:
        num_sizes = num_groups
    transposed = random.chance(0.4)
    id_dtype = mode.id_dtype(random)
    kinds = [None, None, "relu", "silu", "gelu", "tanh"]
    activation = None
    if not outer and common.kind not in "iuc":
        activation = random.choice(kinds)
    with_bias = not outer and random.chance(0.4)
    bias_dtype = dtype if random.chance(0.8) else "float32"
    if integer:
        bias_dtype = random.choice([common.name, "int8" if common.kind == "i" else "uint8"])
    elif common.kind == "c":
        bias_dtype = random.choice([common.name, "float32"])
    precisions = [None, None, "highest", jax.lax.Precision.HIGHEST, "high", "default"]
    precisions += [("highest", "highest"), "float32", "tensorfloat32", "F32_F32_F32"]
    precision = random.choice(precisions)
    keywords: dict[str, Any] = {**mode.keywords, "precision": precision}
    if preferred is not None:
        keywords["preferred_element_type"] = random.choice([preferred, result.type])
    if outer:
        given = random.choice([num_groups, None])
        if offset_kind is None:
            given = random.choice([None, num_groups])
        if given is None:
            num_groups = num_sizes
        else:
            keywords["num_groups"] = given
        if random.chance(0.3):
            keywords["deterministic"] = random.chance(0.5)
    else:
        keywords |= {"activation": activation, "transpose_rhs": transposed}
    fixed_offset = random.integer(-2, 7)
    if offset_kind == "int":
        keywords["group_offset"] = fixed_offset

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        top = int(np.iinfo(id_dtype).max)
        sizes = [random.integer(0, max(rows // 2, 2)) for _ in range(num_sizes)]
        if random.chance(0.3) and num_sizes:
            pool = [0, rows, 2 * rows, -1, -5, top, np.iinfo(id_dtype).min]
            if not mode.wide_ids:
                pool = [min(max(p, -(2**31)), 2**31 - 1) for p in pool]
            pool = [p for p in pool if np.iinfo(id_dtype).min <= p <= top]
            sizes[random.integer(0, num_sizes)] = random.choice(pool)
        operands: dict[str, Any] = {"group_sizes": np.array([min(s, top) for s in sizes], id_dtype)}
        offset = 0
        if offset_kind is not None:
            offset = fixed_offset if offset_kind == "int" else random.integer(-2, 7)
        if offset_kind in ("array", "(1,)"):
            shape = () if offset_kind == "array" else (1,)
            operands["group_offset"] = np.full(shape, offset, np.int32)
        return operands, _bounds(operands["group_sizes"], offset, num_groups, rows)

    def values(random: Random, ids: dict[str, Any], groups: Any) -> dict[str, np.ndarray]:
        covered = np.isin(np.arange(rows), [r for group in groups for r in group])
        lhs = poison(random, random.numbers((rows, k), dtype), ~covered)
        if outer:
            rhs = poison(random, random.numbers((rows, n), other), ~covered)
            return {"lhs": lhs, "rhs": rhs}
        shape = (num_groups, n, k) if transposed else (num_groups, k, n)
        result = {"lhs": lhs, "rhs": random.numbers(shape, other)}
        if with_bias:
            result["bias"] = random.numbers((num_groups, n), bias_dtype)
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], groups: Any) -> Any:
        if integer:
            wide = {name: x.astype(np.int64) for name, x in values.items()}
            shape = (num_groups, k, n) if outer else (rows, n)
            out = np.zeros(shape, np.int64)
            with np.errstate(over="ignore"):
                for g, group in enumerate(groups):
                    at = list(group)
                    left = wide["lhs"][at]
                    if outer:
                        out[g] = left.T @ wide["rhs"][at]
                    else:
                        right = wide["rhs"][g].T if transposed else wide["rhs"][g]
                        out[at] = left @ right
                        if with_bias:
                            out[at] += wide["bias"][g]
            return out.astype(result)
        owner = np.concatenate([np.full(len(g), i) for i, g in enumerate(groups)] or [[]])
        owner = owner.astype(np.int64)
        at = np.array([r for group in groups for r in group], np.int64)
        lhs, rhs = values["lhs"].product_factor()[at], values["rhs"].product_factor()
        if outer:
            products = lhs.reshape(len(at), k, 1) * rhs[at].reshape(len(at), 1, n)
            return products.sum_at(owner, num_groups)
        w = rhs[owner]
        if transposed:  # (entries, n, k)
            products = lhs.reshape(len(at), 1, k) * w
        else:
            w = w.linear(lambda x: np.swapaxes(x, 1, 2))
            products = lhs.reshape(len(at), 1, k) * w
        y = products.sum_last()
        if with_bias:
            bias = values["bias"]
            if unit(bias_dtype) < unit(common):
                v, r = bias.ball
                bias = Dual(v, r + unit(common) * np.abs(v), bias.tangent)
            y = y + bias[owner]
        return spread(_activate(y, activation), at, rows)

    function = jax_gnn.segment_outer if outer else jax_gnn.segment_matmul
    exact = mode.platform == "cpu" or mode.implementation == "cpu"
    highest = precision in ("highest", jax.lax.Precision.HIGHEST, ("highest", "highest"))
    highest |= precision in ("float32", "F32_F32_F32")
    coarse = 0.0 if exact or highest or common.name not in ("float32", "complex64") else 2.0**-10
    acc = np.float32 if integer else accumulator(common)
    options = {
        "rows,k,n": (rows, k, n),
        "groups": (num_groups, num_sizes, offset_kind, fixed_offset),
        "dtypes": (dtype, other, bias_dtype if with_bias else None),
        **keywords,
        "ids": id_dtype,
    }
    call = functools.partial(_call, function, ("lhs", "rhs", "group_sizes"), keywords)
    return Case(
        *(function.__name__, options, call, indices, values, reference, result, acc),
        product_unit=coarse,
        raw=True,
    )


def _as_index(random: Random, ids: np.ndarray, size: int, wanted: bool) -> Any:
    """Ids as they are, or sorted beforehand."""
    return jax_gnn.SegmentIndex.from_ids(ids, size) if wanted else ids


def listed_product(random: Random, mode: Mode) -> Case:
    """A product of rows that lists name, of floats."""
    outer = random.chance(0.4)
    dtype = mode.floats(random)
    pools = ((0, 1, 6, 6, 20, 20), (0, 1, 3, 3, 4), (0, 1, 2, 5, 5))
    rows, k, n = (random.choice(pool) for pool in pools)
    if not mode.derives and random.chance(0.2):
        rows, k, n = (random.choice(pool) for pool in ((5, 120), (17, 33, 64), (16, 65)))
    num_groups = random.choice((0, 1, 3, 3, 5))
    second = "rhs_rows" if outer else "out_rows"
    listed = random.choice([("lhs_rows",), (second,), ("lhs_rows", second), ("lhs_rows", second)])
    as_index = {name: random.chance(0.3) for name in listed}
    id_dtype = {
        name: random.choice(ID_DTYPES) if as_index[name] else mode.id_dtype(random)
        for name in listed
    }
    sources = random.choice((0, 1, 4, 9, 9, 30))
    lengths = {
        "lhs_rows": sources if "lhs_rows" in listed else rows,
        "rhs_rows": random.choice((0, 1, 4, 9)) if "rhs_rows" in listed else rows,
        "out_rows": rows,
    }
    scaled = random.chance(0.6)
    scale_dtype = random.choice(["float32", dtype])
    if not mode.derives and random.chance(0.1):
        scale_dtype = "int32"
    with_bias = not outer and random.chance(0.4)
    with_residual = not outer and random.chance(0.4)
    activation = None if outer else random.choice([None, None, "relu", "silu", "gelu", "tanh"])
    transposed = not outer and random.chance(0.4)
    keywords: dict[str, Any] = {**mode.keywords, "precision": "highest"}
    if not outer:
        keywords |= {"activation": activation, "transpose_rhs": transposed}

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        sizes = [random.integer(0, max(rows // 2, 2)) for _ in range(num_groups)]
        operands: dict[str, Any] = {"group_sizes": np.array(sizes, np.int32)}
        groups = _bounds(operands["group_sizes"], 0, num_groups, rows)
        at = np.array([r for group in groups for r in group], np.int64)
        owner = np.repeat(np.arange(num_groups), [len(group) for group in groups])
        known = {name: np.arange(rows) for name in ("lhs_rows", second)}
        for name in listed:
            size, ids_dtype = lengths[name], id_dtype[name]
            ids = random.ids(rows, size, ids_dtype, as_index[name] or mode.wide_ids)
            if name == "out_rows":  # a permutation, but for those out of range
                places = random.rng.permutation(rows).astype(ids_dtype)
                ids = np.where(in_range(ids, size), places, ids)
            operands[name] = _as_index(random, ids, size, as_index[name])
            known[name] = clean(ids, size)
        return operands, (at, owner, known["lhs_rows"], known[second])

    def values(random: Random, ids: dict[str, Any], known: Any) -> dict[str, np.ndarray]:
        at, _, first, other = known
        used = at[(first[at] >= 0) & (other[at] >= 0)]
        if outer:
            rhs = random.numbers((lengths["rhs_rows"], n), dtype)
            rhs = poison(random, rhs, ~_used(other[used], len(rhs)))
        else:
            rhs = random.numbers((num_groups, n, k) if transposed else (num_groups, k, n), dtype)
        lhs = random.numbers((lengths["lhs_rows"], k), dtype)
        result = {"lhs": poison(random, lhs, ~_used(first[used], len(lhs))), "rhs": rhs}
        if scaled:
            scale = random.numbers((rows,), scale_dtype)
            result["scale"] = poison(random, scale, ~_used(used, rows))
        if with_bias:
            result["bias"] = random.numbers((num_groups, n), dtype)
        if with_residual:
            result["residual"] = random.numbers((rows, n), dtype)
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], known: Any) -> Any:
        at, owner, first, other = known
        lhs, rhs = values["lhs"].product_factor(), values["rhs"].product_factor()
        scale = to_accumulator(values.get("scale"), dtype)
        kept = other[at] >= 0
        at, owner = at[kept], owner[kept]
        there = np.flatnonzero(first[at] >= 0)
        read, rows_of = at[there], first[at[there]]
        if outer:
            left = lhs[rows_of].reshape(len(read), k, 1)
            products = left * rhs[other[read]].reshape(len(read), 1, n)
            if scale is not None:
                products = products * scale[read].reshape(len(read), 1, 1)
            return products.sum_at(owner[there], num_groups)
        w = rhs[owner[there]]
        if not transposed:
            w = w.linear(lambda x: np.swapaxes(x, 1, 2))
        y = (lhs[rows_of].reshape(len(read), 1, k) * w).sum_last()
        if scale is not None:
            y = y * scale[read].reshape(len(read), 1)
        y = spread(y, there, len(at))
        if with_bias:
            y = y + values["bias"][owner]
        y = spread(y, other[at], rows)
        if with_residual:
            y = y + values["residual"]
        return _activate(y, activation)

    function = jax_gnn.segment_outer if outer else jax_gnn.segment_matmul
    options = {
        "rows,k,n": (rows, k, n),
        "groups": num_groups,
        "lists": {name: (lengths[name], id_dtype[name], as_index[name]) for name in listed},
        "dtypes": (dtype, scale_dtype if scaled else None),
        "bias": with_bias,
        "residual": with_residual,
        **keywords,
    }
    call = functools.partial(_call, function, ("lhs", "rhs", "group_sizes"), keywords)
    return Case(
        *(f"{function.__name__} of listed rows", options, call, indices, values, reference),
        *(np.dtype(dtype), accumulator(dtype)),
        vmappable=not any(as_index.values()),  # sorted and unsorted ids make trees of two kinds
    )


def type_plan(random: Random, mode: Mode) -> Case:
    rows, num_types = random.count(), random.size()
    dtype, features = mode.floats(random), random.choice(FEATURES)
    id_dtype = mode.id_dtype(random)
    by_sizes = random.chance(0.2)

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        types = random.ids(rows, num_types, id_dtype, mode.wide_ids)
        if by_sizes:
            types = random.rng.integers(0, 9, num_types).astype(id_dtype)
        return {"types": types}, None

    def call(types: Any, x: Any) -> Any:
        make = jax_gnn.TypePlan
        plan = make.from_sizes(types) if by_sizes else make.from_types(types, num_types)
        assert plan.num_types == num_types
        assert plan.num_rows == (None if by_sizes else rows)
        order = () if plan.order is None else (plan.order, plan.inverse)
        if by_sizes:
            assert order == ()
        return plan.sort(x), plan.unsort(x), plan.group_sizes, order

    def reference(values: Mapping[str, Any], ids: dict[str, Any], _: Any) -> Any:
        types, x = ids["types"], values["x"]

        def check(actual: Any) -> str | None:
            a_sorted, unsorted, sizes, order = (jax.tree.map(np.asarray, part) for part in actual)
            if by_sizes:
                if not np.array_equal(sizes, types):
                    return f"group_sizes {sizes}, want {types}"
                want = np.arange(rows)
            else:
                valid = in_range(types, num_types)
                clean = np.where(valid, types, 0).astype(np.int64)
                counts = np.bincount(clean[valid], minlength=num_types)
                if not np.array_equal(sizes, counts):
                    return f"group_sizes {sizes}, want {counts}"
                want = np.argsort(np.where(valid, clean, num_types), kind="stable")
                if not np.array_equal(order[0][: valid.sum()], want[: valid.sum()]):
                    return f"order {order[0]}, want {want}"
                want = order[0]
                if not np.array_equal(np.sort(want), np.arange(rows)):
                    return f"order {want} is no permutation"
                if not np.array_equal(order[1], np.argsort(want)):
                    return f"inverse {order[1]}, want {np.argsort(want)}"
            value = x.value
            for name, got, ids_ in (
                ("sort", a_sorted, want),
                ("unsort", unsorted, np.argsort(want)),
            ):
                if got.shape != value.shape or got.dtype != dtype:
                    return f"{name}: {got.shape} {got.dtype}, want {value.shape} {dtype}"
                if not np.array_equal(got.astype(float), value[ids_], equal_nan=True):
                    return f"{name}: {got}, want {value[ids_]}"
            return None

        return check

    def values(random: Random, ids: dict[str, Any], _: Any) -> dict[str, np.ndarray]:
        return {"x": random.numbers((rows, *features), dtype)}

    options = {"rows": rows, "num_types": num_types, "features": features, "dtype": dtype}
    options |= {"ids": id_dtype, "by_sizes": by_sizes}
    return Case(
        *("TypePlan", options, call, indices, values, reference, np.dtype(dtype)),
        accumulator(dtype),
        differentiable=False,
        vmappable=False,
    )


# --- Relations -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Triples:
    """Sizes of a graph with relations, of which the parts have room for a pair an edge."""

    src: int
    dst: int
    count: int
    relations: int
    extra: int
    inverse: bool
    self_relation: bool
    parts: tuple[Any, ...]

    @classmethod
    def draw(cls, random: Random) -> _Triples:
        src, dst = (random.size() or random.size() for _ in range(2))
        if random.chance(0.3):
            dst = src
        adds = src == dst and random.chance(0.6)
        parts = tuple(p for p in ("from_pairs", "to_pairs") if random.chance(0.6))
        return cls(
            *(src, dst, random.count() or random.count(), random.choice((0, 1, 2, 3, 3, 5))),
            *(
                random.choice([0, 0, 0, 5]),
                adds and random.chance(0.7),
                adds and random.chance(0.7),
            ),
            parts,
        )

    @property
    def num_relations(self) -> int:
        return self.relations * (1 + self.inverse) + self.self_relation

    @property
    def num_edges(self) -> int:
        return self.count * (1 + self.inverse) + self.src * self.self_relation + self.extra

    def graph(self, random: Random, wide: bool) -> tuple[Any, np.ndarray]:
        """With its edges (dst, rel, src) in order, less those out of range: ``(edges, 3)``."""
        few = random.integer(0, self.relations + 1)  # the others have no edges
        sizes = {"src": self.src, "rel": few, "dst": self.dst}
        ids = {n: random.ids(self.count, size, "int64", True, 0.1) for n, size in sizes.items()}
        square = {"num_nodes": self.src, "inverse": self.inverse}
        bipartite = {"num_src": self.src, "num_dst": self.dst}
        adds = self.inverse or self.self_relation
        graph = jax_gnn.RelationalGraph.from_triples(
            **ids,
            **(square if adds else bipartite),
            num_relations=self.relations,
            self_relation=self.self_relation,
            parts=self.parts,
            validate=False,
        )
        pairs = ("num_src_pairs", "num_dst_pairs")
        room = {n: self.num_edges for n in pairs if getattr(graph, n) is not None}
        graph = graph.pad(num_edges=self.num_edges, **room)
        if wide:
            graph = jax.tree.map(lambda ids: ids.astype(jnp.int64), graph)
        sizes["rel"] = self.relations
        valid = np.logical_and.reduce([in_range(ids[n], size) for n, size in sizes.items()])
        columns = [ids[n][valid] for n in ("dst", "rel", "src")]
        edges = np.stack(columns, 1)
        if self.inverse:
            edges = np.concatenate([edges, edges[:, ::-1] + [0, self.relations, 0]])
        if self.self_relation:
            nodes = np.arange(self.src)
            loops = np.stack([nodes, np.full(self.src, self.num_relations - 1), nodes], 1)
            edges = np.concatenate([edges, loops])
        return graph, edges[np.lexsort(edges.T[::-1])]


def relational(random: Random, mode: Mode) -> Case:
    lookup = random.chance(0.35)
    sizes, dtype = _Triples.draw(random), mode.floats(random)
    other = dtype if mode.strict or lookup or random.chance(0.7) else mode.floats(random)
    common = np.dtype(jnp.promote_types(dtype, other)) if dtype != other else np.dtype(dtype)
    k, n = random.choice((0, 1, 3, 3, 8)), random.choice((0, 1, 2, 5, 5))
    weighted = random.chance(0.6)
    w_dtype = weight_dtype(random, mode)
    wide = mode.x64 and random.chance(0.2)
    ways = {"from_pairs": "source_pairs", "to_pairs": "destination_pairs"}
    method = random.choice([None, "edges", *(ways[part] for part in sizes.parts)])
    transposed = random.chance(0.4)
    precision = random.choice([None, "highest"])
    relations = sizes.num_relations
    options = {"sizes": sizes, "dtypes": (dtype, other, w_dtype if weighted else None)}
    keywords: dict[str, Any] = {**mode.keywords}
    if not lookup:
        keywords |= {"method": method, "transpose_rhs": transposed, "precision": precision}

    def indices(random: Random) -> tuple[dict[str, Any], Any]:
        graph, edges = sizes.graph(random, wide)
        return {"graph": graph}, edges

    def values(random: Random, ids: dict[str, Any], edges: Any) -> dict[str, np.ndarray]:
        if lookup:
            unread = ~_used(edges[:, 1] * sizes.src + edges[:, 2], relations * sizes.src)
            table = random.numbers((relations, sizes.src, n), dtype)
            result = {"table": poison(random, table, unread.reshape(table.shape[:2]))}
        else:
            x = random.numbers((sizes.src, k), dtype)
            shape = (relations, n, k) if transposed else (relations, k, n)
            result = {
                "x": poison(random, x, ~_used(edges[:, 2], sizes.src)),
                "rhs": random.numbers(shape, other),
            }
        if weighted:
            weight = random.numbers((sizes.num_edges,), w_dtype)
            result["weight"] = poison(random, weight, np.arange(sizes.num_edges) >= len(edges))
        return result

    def reference(values: Mapping[str, Any], ids: dict[str, Any], edges: Any) -> Any:
        dst, rel, src = edges.T
        if lookup:
            messages = values["table"].reshape(relations * sizes.src, n)[rel * sizes.src + src]
        else:
            x = _stored_on_the_way(values["x"].product_factor(), common)
            w = values["rhs"].product_factor()[rel]
            if not transposed:
                w = w.linear(lambda x: np.swapaxes(x, 1, 2))
            messages = (x[src].reshape(len(edges), 1, k) * w).sum_last()
        weight = to_accumulator(values.get("weight"), common)
        if weight is not None:
            messages = messages * weight[: len(edges)].reshape(len(edges), 1)
        return messages.sum_at(dst, sizes.dst)

    function = jax_gnn.relational_lookup if lookup else jax_gnn.relational_aggregate
    exact = mode.platform == "cpu" or mode.implementation == "cpu" or precision == "highest"
    return Case(
        *(function.__name__, {**options, "k,n": (k, n), **keywords}),
        functools.partial(
            _call, function, ("graph", "table") if lookup else ("graph", "x", "rhs"), keywords
        ),
        *(indices, values, reference, common, accumulator(common)),
        product_unit=0.0 if exact or common.name != "float32" else 2.0**-10,
    )


def _stored_on_the_way(x: Dual, dtype: Any) -> Dual:
    """A factor of results that may be stored twice in a half type before they are added up."""
    if str(np.dtype(dtype)) not in HALVES:
        return x

    def coarse(ball: Ball) -> Ball:
        error = 2 * (unit(dtype) * np.abs(ball.value) + tiny(dtype))
        return Ball(ball.value, ball.radius + np.where(ball.value == 0, 0, error))

    return Dual.of(coarse(x.ball), x.tangent and coarse(x.tangent))


# (function, weight): how often each is drawn
FAMILIES: tuple[tuple[Callable[[Random, Mode], Case], int], ...] = (
    (segments, 8),
    (segment_index, 1),
    (spmm, 3),
    (sddmm, 2),
    (attention, 2),
    (index_segment_reduce, 2),
    (graph, 2),
    (aggregate, 4),
    (norm, 1),
    (stage, 2),
    (softmax, 1),
    (hypergraph, 2),
    (matmul, 4),
    (listed_product, 2),
    (relational, 3),
    (type_plan, 1),
)
