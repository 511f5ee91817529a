"""The command ``jax-gnn``: its own subcommands, and those that other packages add.

Other packages add theirs by entry points of the group ``jax_gnn.commands``: each is a function that
takes `Commands` and adds a subcommand with `add_command`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import platform
import sys
import textwrap
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, TypeAlias, cast

import jax

from jax_gnn._core import ffi
from jax_gnn._core.op import OPS, Op
from jax_gnn._ops.edge_region import cuda_compile
from jax_gnn._tuning import command as tuning
from jax_gnn._version import __version__
from jax_gnn.sharding import _command as partitioning

Commands: TypeAlias = "argparse._SubParsersAction[Any]"
"""Result of `argparse.ArgumentParser.add_subparsers`."""


class UserError(Exception):
    """Mistake that the user can correct: shown as one line, exit code 2."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formatter that keeps the examples' line breaks and shows defaults other than None."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, argparse.SUPPRESS) or action.nargs == 0:
            return action.help
        return f"{action.help} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """Parser that answers an unknown command by the nearest ones instead of the long list."""

    def _check_value(self, action: argparse.Action, value: str) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError:
            commands = action.choices if action.nargs == argparse.PARSER else ()
            matches = difflib.get_close_matches(value, commands or ())
            if not matches:
                raise
            matches.sort(key=lambda word: sorted(word) != sorted(value))  # swapped letters first
            hint = f"unknown {value!r}; did you mean {' or '.join(matches)}?"
            raise argparse.ArgumentError(action, hint) from None


def add_command(
    commands: Commands,
    name: str,
    *,
    help: str | None,
    description: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add a subcommand, and return its parser, to which the caller adds arguments.

    Args:
        commands: Subcommands of the command, or of a group of commands.
        name: Word that selects the subcommand.
        help: One line, for the list of commands; None leaves the command out of the list.
        description: Text of ``--help``, shown with its line breaks.
        run: Function that does the work and returns the exit code; may raise `UserError`.
    """
    listed: dict[str, Any] = {} if help is None else {"help": help}
    parser: argparse.ArgumentParser = commands.add_parser(
        name, description=description, formatter_class=_HelpFormatter, **listed
    )
    parser.set_defaults(run=run)
    return parser


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as indented text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def versions() -> dict[str, str]:
    """Return the versions of this package, of the packages that it needs, and of Python."""
    packages = {name: metadata.version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
    return {"jax_gnn": __version__, **packages, "python": platform.python_version()}


def devices() -> str:
    """Describe JAX's devices in one line."""
    try:
        kinds = Counter(f"{device.platform} ({device.device_kind})" for device in jax.devices())
    except RuntimeError as error:  # JAX_PLATFORMS names a platform that cannot start
        return f"none: {error}"
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _run_info(_: argparse.Namespace) -> int:
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    print(table([*versions().items(), ("system", system), ("devices", devices())]))
    statuses = ffi.status()
    rows = [["operation", *(status.platform for status in statuses), "other platforms"]]
    for name, op in sorted(OPS.items()):
        if op.platforms:
            cells = [_kernel(op, status) for status in statuses]
            rows.append([name, *cells, "plain XLA"])
    print("\n" + table(rows))
    for status in statuses:
        if status.build:
            print(f"\n  {status.platform}: {status.build}")
        if status.platform == "cuda" and status.available and (reason := ffi.why_no_gpu()):
            print(f"    not used: {reason}")
        if not status.available:
            print(f"\n  {status.platform} is missing: {status.reason}")
            if status.hint:
                print(textwrap.indent(textwrap.fill(status.hint, 92), " " * 4))
    reason = cuda_compile.missing()
    regions = "compiled at run time, by NVRTC" if reason is None else f"plain XLA: {reason}"
    print(f"\n  edge regions on cuda: {regions}")
    for copy in ffi.package_copies()[1:]:
        print(f"\n  {copy} is another copy, unused: remove one, or change the path")
    return 0


def _kernel(op: Op, status: ffi.PlatformStatus) -> str:
    """Return the cell for an op on a platform; "not needed" where XLA or other ops do it."""
    if op.name in status.targets:
        return "custom call"
    return "-" if status.platform in op.platforms else "not needed"


def _run_tune(args: argparse.Namespace) -> int:
    try:
        return tuning.run(args)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error  # for example, the cache cannot be written


def _run_partition(args: argparse.Namespace) -> int:
    print(table(partitioning.run(args)))
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jax-gnn",
        description="GNN kernels for JAX.",
        epilog="example: jax-gnn train hgnn",
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jax-gnn {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_command(
        commands,
        "info",
        help="versions, devices, and which operations have a custom call on which platform",
        description="Prints versions, devices, and which operations have a custom call on which "
        "platform; for\nwhat is missing, why and what to do.",
        run=_run_info,
    )
    for entry_point in metadata.entry_points(group="jax_gnn.commands"):
        entry_point.load()(commands)
    partition = add_command(
        commands,
        "partition",
        help="split a graph for several devices, and count what that costs",
        description="Deals the nodes of a graph or hypergraph out to parts, one for each device, "
        "and counts\nwhat each has and what travels between them. No device is needed for it.\n\n"
        "examples:\n"
        "  jax-gnn partition graph.npz --parts 8\n"
        "  jax-gnn partition planetoid/ind.cora.x --parts 2 --method metis --output parts.npz",
        run=_run_partition,
    )
    partitioning.add_arguments(partition)
    tune = add_command(
        commands,
        "tune",
        help="find the fastest schedules of kernels on this machine's GPU",
        description="Measures the segment kernels on this machine's GPU under many schedules, on "
        "your graph\nor one of its size, and keeps the best in a cache file. Processes started "
        "later use them\nfor calls of the same kind: same op, width and dtype, about as many "
        "entries and rows.\n\n"
        "examples:\n"
        "  jax-gnn tune segment --data graph.npz --widths 32,64\n"
        "  jax-gnn tune segment --nodes 100000 --edges 2000000 --dtypes float32,bfloat16\n"
        "  jax-gnn tune matmul --rows 1000000 --groups 700 --widths 32,64\n"
        "  jax-gnn tune --show",
        run=_run_tune,
    )
    tuning.add_arguments(tune)
    return parser


@contextlib.contextmanager
def _printed_warnings() -> Iterator[None]:
    """Print each warning once, in a line on stderr."""
    seen = set[str]()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            print(f"jax-gnn: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        Exit code: that of the subcommand (0; 1 if its result is wrong), 2 (an error, shown as one
        line; ``JAX_TRACEBACK_FILTERING=off`` shows where) or 130 (interrupted). Like argparse, the
        function exits by itself after ``--help`` and on unknown arguments. In a job of several
        processes it ends a process that fails, and so the others.
    """
    try:
        code = _run(argv)
    except SystemExit as end:  # of argparse
        if not jax.distributed.is_initialized():
            raise
        code = cast(int, end.code)
    except Exception:
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        code = 1
    if code and jax.distributed.is_initialized():
        # A usual exit waits for the other processes, which wait for rows of this one.
        sys.stdout.flush()
        sys.stderr.flush()
        if jax.process_index() == 0:  # its end aborts the others, which may be about to print
            time.sleep(3)
        os._exit(code)
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = _make_parser().parse_args(argv)
        args.words = sys.argv[1:] if argv is None else [*argv]
        with _printed_warnings():
            return cast(int, args.run(args))
    except KeyboardInterrupt as interrupt:  # a command may say how to resume
        print("; ".join(["jax-gnn: interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("JAX_TRACEBACK_FILTERING") == "off":
            raise
        # These types carry messages for users, such as a layer's refusal of a setting. Any other
        # error, such as a lack of memory, is shown with its type.
        is_clear = isinstance(error, UserError | ValueError | TypeError | OSError) and str(error)
        text = str(error) if is_clear else f"{type(error).__name__}: {error}"
        line = " ".join(text.splitlines())  # numpy and Orbax raise errors of several lines
        print(f"jax-gnn: error: {line}", file=sys.stderr)
        return 2
