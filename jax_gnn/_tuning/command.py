"""The command ``jax-gnn tune``."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn._core import schedule_cache
from jax_gnn._core.files import read_npz
from jax_gnn._core.ids import MAX_SIZE
from jax_gnn._core.schedule import describe
from jax_gnn._core.schedule_cache import Tuned
from jax_gnn._tuning import hypergraph, matmul, relational, segment
from jax_gnn._tuning.measure import AnySchedule, Call, Timer, measure
from jax_gnn._tuning.timing import ProfilerTimer
from jax_gnn.hypergraph import Hypergraph
from jax_gnn.relational import RelationalGraph

DTYPES = ("float32", "bfloat16", "float16", "float64")
_FLUSHES = 4
_REPEATS = 7
_NODES = "src", "dst", "node_idx"  # arrays of ids of nodes in files
_NOISE = 0.03  # minimum gain of a schedule over that of the rule

FAMILIES = {
    "segment": segment,
    "matmul": matmul,
    "hypergraph": hypergraph,
    "relational": relational,
}
"""Modules with the ops and the calls of each family."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "what", nargs="?", choices=tuple(FAMILIES), help="the family of ops to tune"
    )
    parser.add_argument("--show", action="store_true", help="print the tuned schedules")
    parser.add_argument("--clear", action="store_true", help="remove the tuned schedules")
    graph = parser.add_argument_group("graph of segment or relational, or hypergraph")
    graph.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="an .npz with the arrays src and dst, and num_nodes if the last nodes have no edges; "
        "of a relational graph with rel, too; of a hypergraph, with node_idx and hyperedge_idx",
    )
    for name, description in (
        ("nodes", "of a synthetic graph"),
        ("edges", "of a synthetic graph; of hypergraphs incidences"),
        ("hyperedges", "of a synthetic hypergraph"),
        ("relations", "of a synthetic relational graph"),
    ):
        graph.add_argument(f"--{name}", type=_count, metavar="N", help=description)
    groups = parser.add_argument_group("groups of matmul")
    groups.add_argument(
        "--sizes", type=Path, metavar="FILE", help="an .npy with the number of rows of each group"
    )
    groups.add_argument("--rows", type=_count, metavar="N", help="of groups of like sizes")
    groups.add_argument("--groups", type=_count, metavar="N", help="number of groups")
    calls = parser.add_argument_group("calls")
    calls.add_argument(
        "--ops",
        type=_names(tuple(op for family in FAMILIES.values() for op in family.OPS)),
        metavar="OP,...",
        help="of sum (all segment reductions), spmm, softmax; of "
        "segment_matmul, segment_outer; of hypergraph_aggregate; of relational_aggregate (default: "
        "all of the family)",
    )
    calls.add_argument(
        "--widths",
        type=_counts,
        default="32,64,128",
        metavar="N,...",
        help="numbers of features of a row; of matmul both k and n",
    )
    calls.add_argument("--k", type=_count, metavar="N", help="of matmul, if it is not n")
    calls.add_argument("--n", type=_count, metavar="N", help="of matmul, if it is not k")
    calls.add_argument(
        "--dtypes",
        type=_names(DTYPES),
        default="float32",
        metavar="NAME,...",
        help=f"of {', '.join(DTYPES)}",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command, and return its exit code.

    Raises:
        ValueError: The arguments, or this machine, do not allow it.
        OSError: The cache cannot be written or removed.
    """
    if sum((args.what is not None, args.show, args.clear)) != 1:
        raise ValueError(f"tune wants one of: {', '.join(FAMILIES)}, --show, --clear")
    if args.show:
        print(_listing(schedule_cache.read()), end="")
    elif args.clear:
        removed = schedule_cache.clear()
        print(f"{schedule_cache.path()}: {'removed' if removed else 'there was none'}")
    else:
        _tune(args)
    return 0


def _tune(args: argparse.Namespace) -> None:
    # Arguments are read first, so that mistakes in them show on machines without a GPU, too.
    calls = _calls(args)
    if jax.default_backend() != "gpu":
        raise ValueError(
            "there is nothing to tune on a CPU: schedules are those of the CUDA kernels, and JAX "
            f"runs on {jax.default_backend()} here"
        )
    device = schedule_cache.device_kind()
    if device is None:
        raise ValueError(
            "JAX's GPUs are no CUDA devices, or of several kinds: let it see one kind, by "
            "CUDA_VISIBLE_DEVICES"
        )
    if "float64" in args.dtypes and jnp.result_type(float) != "float64":
        raise ValueError("--dtypes: float64 needs JAX_ENABLE_X64=1")
    timer = ProfilerTimer(_FLUSHES)
    # Each result is stored at once: an interrupted run keeps what it has measured.
    for call in calls:
        tuned = tune_call(call, timer)
        schedule_cache.store(device, {call.key: tuned})
        print(_line(call.key, tuned), flush=True)
    print(f"written: {schedule_cache.path()}")


def tune_call(call: Call[AnySchedule], timer: Timer) -> Tuned:
    """Return the fastest schedule of a call, or that of the rule if it is hardly slower."""
    # Noise would favour one of many schedules: the rule's stays unless another gains clearly.
    rule = call.effective(call.rule())
    schedules = [call.rule(), *call.candidates()]
    (times,) = measure([call], lambda _: schedules, timer, _REPEATS)
    best = min(times, key=lambda schedule: times[schedule])
    if times[best] > (1 - _NOISE) * times[rule]:
        best = rule
    return Tuned((*best,), times[best] * 1e6, times[rule] * 1e6)


def _calls(args: argparse.Namespace) -> list[Call[Any]]:
    """Return the calls to tune: all ops, dtypes and widths that are asked for."""
    ops = FAMILIES[args.what].OPS
    if invalid := [op for op in args.ops or () if op not in ops]:
        raise ValueError(f"--ops: tune {args.what} knows {', '.join(ops)}, not {invalid[0]}")
    cases = list(itertools.product(args.ops or ops, args.dtypes, args.widths))
    if args.what == "segment":
        edges = _edges(args)
        return [segment.Call(op, edges, width, dtype) for op, dtype, width in cases]
    if args.what == "hypergraph":
        structure = _hypergraph(args)
        return [hypergraph.Call(structure, width, dtype) for _, dtype, width in cases]
    if args.what == "relational":
        graph = _relational(args)
        return [relational.Call(graph, width, dtype) for _, dtype, width in cases]
    sizes = _group_sizes(args)
    if args.k or args.n:  # in place of the widths
        k, n = args.k or args.n, args.n or args.k
        pairs = itertools.product(args.ops or ops, args.dtypes)
        return [matmul.Call(op, sizes, k, n, dtype) for op, dtype in pairs]
    return [matmul.Call(op, sizes, width, width, dtype) for op, dtype, width in cases]


# --- Graphs, hypergraphs and groups --------------------------------------------------------------


def _edges(args: argparse.Namespace) -> segment.Edges:
    if _is_synthetic(args, "nodes", "edges"):
        return power_law_edges(args.nodes, args.edges)
    return _read_edges(args.data)


def _read_edges(path: Path) -> segment.Edges:
    (src, dst), num_nodes = _read_ids(path, "src", "dst")
    order = np.argsort(dst, kind="stable")
    return segment.Edges(dst[order], src[order], num_nodes, num_nodes)


def _hypergraph(args: argparse.Namespace) -> Hypergraph:
    if not _is_synthetic(args, "nodes", "edges", "hyperedges"):
        ids, num_nodes = _read_ids(args.data, "node_idx", "hyperedge_idx")
        return Hypergraph.from_incidence(*ids, num_nodes=num_nodes)
    nodes = power_law_edges(args.nodes, args.edges).rows
    hyperedges = np.random.default_rng(1).integers(args.hyperedges, size=args.edges)
    return Hypergraph.from_incidence(
        nodes, hyperedges, num_nodes=args.nodes, num_hyperedges=args.hyperedges
    )


def _relational(args: argparse.Namespace) -> RelationalGraph:
    if not _is_synthetic(args, "nodes", "edges", "relations"):
        (src, rel, dst), num_nodes = _read_ids(args.data, "src", "rel", "dst")
        return RelationalGraph.from_triples(src, rel, dst, num_nodes)
    edges = power_law_edges(args.nodes, args.edges)
    types = np.random.default_rng(1).integers(args.relations, size=args.edges)
    return RelationalGraph.from_triples(edges.cols, types, edges.rows, args.nodes, args.relations)


def _is_synthetic(args: argparse.Namespace, *sizes: str) -> bool:
    """Return whether to make a graph of the given sizes, instead of reading that of --data."""
    options = [f"--{name}" for name in sizes]
    values = [getattr(args, name) for name in sizes]
    if args.data is not None:
        if any(values):
            raise ValueError(f"--data goes without {_listed(options)}")
        return False
    if None in values:
        needed = _listed([f"{option} N" for option in options])
        raise ValueError(f"tune {args.what} wants --data FILE, or {needed}")
    return True


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _group_sizes(args: argparse.Namespace) -> np.ndarray:
    if args.sizes is not None:
        if args.rows or args.groups:
            raise ValueError("--sizes goes without --rows and --groups")
        with _blame("--sizes", args.sizes), args.sizes.open("rb") as file:
            sizes = np.lib.format.read_array(file, allow_pickle=False)
            return _whole_numbers("the sizes", sizes).astype(np.int64)
    if args.rows is None or args.groups is None:
        raise ValueError("tune matmul wants --sizes FILE, or --rows N and --groups N")
    rng = np.random.default_rng(0)
    return rng.multinomial(args.rows, np.full(args.groups, 1 / args.groups))


def _read_ids(path: Path, *names: str) -> tuple[list[np.ndarray], int]:
    """Read arrays of ids of one length, and the number of nodes: more than the largest id."""
    with _blame("--data", path):
        arrays = read_npz(path, "an .npz file", (*names, "num_nodes"))
        columns = [_whole_numbers(name, arrays[name]) for name in names]
        count = arrays.get("num_nodes", np.array(0))
        if count.size != 1:
            raise ValueError(f"expected num_nodes to be one number, got shape {count.shape}")
        (num_nodes,) = _whole_numbers("num_nodes", count.reshape(1)).tolist()
        if len({ids.shape for ids in columns}) > 1 or not columns[0].size:
            shapes = ", ".join(str(ids.shape) for ids in columns)
            raise ValueError(f"{' and '.join(names)} must be as many ids, got shapes {shapes}")
    largest = max(ids.max() for name, ids in zip(names, columns, strict=True) if name in _NODES)
    return columns, max(num_nodes, int(largest) + 1)


def _whole_numbers(name: str, values: np.ndarray) -> np.ndarray:
    """Check a vector of sizes or ids, and return it as int32.

    The largest int32 is refused, since the size of a largest id is one more.
    """
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(
            f"expected {name} to be a vector of whole numbers, got shape {values.shape}, "
            f"{values.dtype}"
        )
    limit = np.iinfo(np.int32).max
    invalid = values[(values < 0) | (values >= limit)]
    if invalid.size:
        raise ValueError(
            f"expected {name} to be whole numbers from 0 to {limit - 1}, got {invalid[0]}"
        )
    return values.astype(np.int32)


@contextlib.contextmanager
def _blame(option: str, path: Path) -> Iterator[None]:
    """Name the file in errors of a block."""
    try:
        yield
    except Exception as error:  # zipfile, zlib and numpy raise many types for damaged files
        raise ValueError(f"{option} {path}: {error}") from error


def power_law_edges(num_nodes: int, num_edges: int) -> segment.Edges:
    """Draw edges with in-degrees of one over the root of their rank, and uniform sources."""
    rng = np.random.default_rng(0)
    # Destinations have the degrees of a power law in random order; sources are uniform.
    popularity = rng.permutation(np.arange(1, num_nodes + 1) ** -0.5)
    degrees = rng.multinomial(num_edges, popularity / popularity.sum())
    rows = np.repeat(np.arange(num_nodes, dtype=np.int32), degrees)
    cols = rng.integers(num_nodes, size=num_edges, dtype=np.int32)
    return segment.Edges(rows, cols, num_nodes, num_nodes)


def _listing(entries: schedule_cache.Entries) -> str:
    if not entries:
        return f"nothing tuned yet: {schedule_cache.path()} is not there\n"
    lines = [str(schedule_cache.path())]
    for device, schedules in sorted(entries.items()):
        lines.append(f"\n{device}")
        lines += [_line(key, tuned) for key, tuned in sorted(schedules.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, tuned: Tuned) -> str:
    gain = tuned.rule_microseconds / tuned.microseconds
    head = f"  {key}: {tuned.microseconds:.1f} µs, {gain:.2f} times as fast as the rule's schedule"
    return f"{head} ({describe(key, tuned.schedule)})"


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SIZE:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to {MAX_SIZE}, got {text!r}"
        )
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _names(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if invalid := [name for name in names if name not in choices]:
            raise argparse.ArgumentTypeError(f"{invalid[0]!r} is none of {', '.join(choices)}")
        return names

    return parse
