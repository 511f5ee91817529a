"""The command ``jax-gnn tune``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_gnn import _schedule_cache
from jax_gnn._schedule_cache import Tuned
from jax_gnn.schedules import Schedule
from jax_gnn.tuning import segment
from jax_gnn.tuning.timing import ProfilerTimer

DTYPES = ("float32", "bfloat16", "float16", "float64")
_FLUSHES = 4
_REPEATS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("what", nargs="?", choices=("segment",), help="the family of ops to tune")
    parser.add_argument("--show", action="store_true", help="print what was found so far")
    parser.add_argument("--clear", action="store_true", help="remove what was found so far")
    graph = parser.add_argument_group("graph")
    graph.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="an .npz with the arrays src and dst, and num_nodes if the last nodes have no edges",
    )
    graph.add_argument("--nodes", type=_count, metavar="N", help="of a synthetic graph")
    graph.add_argument("--edges", type=_count, metavar="N", help="of a synthetic graph")
    calls = parser.add_argument_group("calls")
    calls.add_argument(
        "--ops",
        type=_names(segment.OPS),
        default=",".join(segment.OPS),
        metavar="OP,...",
        help="of sum (all segment reductions), spmm, softmax",
    )
    calls.add_argument(
        "--widths",
        type=_counts,
        default="32,64,128",
        metavar="N,...",
        help="numbers of features of a row",
    )
    calls.add_argument(
        "--dtypes",
        type=_names(DTYPES),
        default="float32",
        metavar="NAME,...",
        help=f"of {', '.join(DTYPES)}",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ValueError: The arguments, or this machine, do not allow it.
    """
    if sum((args.what is not None, args.show, args.clear)) != 1:
        raise ValueError("tune wants one of: segment, --show, --clear")
    if args.show:
        print(_listing(_schedule_cache.read()), end="")
    elif args.clear:
        removed = _schedule_cache.clear()
        print(f"{_schedule_cache.path()}: {'removed' if removed else 'there was none'}")
    else:
        _tune(args)
    return 0


def _tune(args: argparse.Namespace) -> None:
    edges = _edges(args)
    if jax.default_backend() != "gpu":
        raise ValueError(
            "there is nothing to tune on a CPU: schedules are those of the CUDA kernels, and JAX "
            f"runs on {jax.default_backend()} here"
        )
    device = _schedule_cache.device_kind()
    if device is None:
        raise ValueError("JAX's GPU is no CUDA device")
    if "float64" in args.dtypes and jnp.result_type(float) != "float64":
        raise ValueError("--dtypes: float64 needs JAX_ENABLE_X64=1")
    timer = ProfilerTimer(_FLUSHES)
    for op in args.ops:
        for dtype in args.dtypes:
            for width in args.widths:
                call = segment.Call(op, edges, width, dtype)
                key, tuned = tune_call(call, timer)
                _schedule_cache.store(device, {key: tuned})
                print(_line(key, tuned), flush=True)
    print(f"written: {_schedule_cache.path()}")


def tune_call(call: segment.Call, timer: segment.Timer) -> tuple[str, Tuned]:
    """Measures all schedules of a call; its key in the cache and the fastest one."""
    itemsize = jnp.dtype(call.dtype).itemsize
    rule = call.effective(call.rule())
    candidates = [choice.schedule(call.width, itemsize) for choice in segment.choices(call.op)]
    (times,) = segment.measure([call], lambda _: [rule, *candidates], timer, _REPEATS)
    best = min(times, key=times.__getitem__)
    key = _schedule_cache.key(**call.shape)
    return key, Tuned((*best,), times[best] * 1e6, times[rule] * 1e6)


def _edges(args: argparse.Namespace) -> segment.Edges:
    if args.data is not None:
        if args.nodes or args.edges:
            raise ValueError("--data goes without --nodes and --edges")
        return _read_edges(args.data)
    if args.nodes is None or args.edges is None:
        raise ValueError("tune segment wants --data FILE, or --nodes N and --edges N")
    return power_law_edges(args.nodes, args.edges)


def _read_edges(path: Path) -> segment.Edges:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            src, dst = arrays["src"].astype(np.int32), arrays["dst"].astype(np.int32)
            num_nodes = int(arrays["num_nodes"]) if "num_nodes" in arrays else 0
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"--data {path}: {error}") from error
    if src.shape != dst.shape or src.ndim != 1 or not src.size:
        raise ValueError(
            f"--data {path}: src and dst must be as many ids, got shapes {src.shape}, {dst.shape}"
        )
    num_nodes = max(num_nodes, int(src.max()) + 1, int(dst.max()) + 1)
    order = np.argsort(dst, kind="stable")
    return segment.Edges(dst[order], src[order], num_nodes, num_nodes)


def power_law_edges(num_nodes: int, num_edges: int, exponent: float = 0.5) -> segment.Edges:
    """In-degrees that fall as rank to the power of ``-exponent``; uniform sources."""
    rng = np.random.default_rng(0)
    popularity = rng.permutation(np.arange(1, num_nodes + 1) ** -exponent)
    degrees = rng.multinomial(num_edges, popularity / popularity.sum())
    rows = np.repeat(np.arange(num_nodes, dtype=np.int32), degrees)
    cols = rng.integers(num_nodes, size=num_edges, dtype=np.int32)
    return segment.Edges(rows, cols, num_nodes, num_nodes)


def _listing(entries: _schedule_cache.Entries) -> str:
    if not entries:
        return f"nothing tuned yet: {_schedule_cache.path()} is not there\n"
    lines = [str(_schedule_cache.path())]
    for device, found in sorted(entries.items()):
        lines.append(f"\n{device}")
        lines += [_line(key, tuned) for key, tuned in sorted(found.items())]
    return "\n".join(lines) + "\n"


def _line(key: str, tuned: Tuned) -> str:
    schedule = Schedule(*tuned.schedule)
    gain = tuned.rule_microseconds / tuned.microseconds
    kind = "parallel" if schedule.parallel else "sequential"
    return (
        f"  {key}: {tuned.microseconds:.1f} µs, {gain:.2f} times as fast as the rule's schedule "
        f"({kind}, {schedule.lanes} lanes, {schedule.threads} threads, {schedule.blocks} blocks)"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _names(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
        return names

    return parse
