"""What an op's benchmark consists of.

An op's file ``bench_OP.py`` holds one `Op`: which graphs, which modes, the inputs and the float64
result of a case, and the peers, grouped in families. Nothing here imports JAX or torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problems import Expected
from benchmarks.workloads import Workload

TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2}
"""Largest relative error, in norm, with which a result counts as right."""

TF32_TOLERANCE = 3e-3
"""The same for float32 where factors of products may be rounded to TF32."""


@dataclass(frozen=True)
class Case:
    """One problem: a graph, a feature width, a dtype and what is computed."""

    workload: str
    width: int
    dtype: str
    mode: str

    @property
    def name(self) -> str:
        """As in the tables: ``walmart_trips 64 float32 fwd+bwd``."""
        return f"{self.workload} {self.width} {self.dtype} {self.mode}"

    @property
    def seed(self) -> list[int]:
        """A seed that every process derives alike."""
        return list(self.name.encode())


@dataclass(frozen=True)
class Problem:
    """What the op's definition reads (arrays and `Repeated`), and the result in float64.

    Attributes:
        inputs: By name.
        expected: The outputs in order.
        output_dtype: Of all of them.
        tolerance: Largest relative error that counts as right; None for `TOLERANCE`.
        flops: Multiplications and additions of dense products, where they may be the floor.
        read: Bytes that must be read, where that is not every input once.
    """

    inputs: Mapping[str, Any]
    expected: tuple[Expected, ...]
    output_dtype: np.dtype
    tolerance: float | None = None
    flops: int = 0
    read: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that must move: every input read once, every output written once."""
        read = self.read
        if read is None:
            read = sum(array.nbytes for array in self.inputs.values())
        return read + sum(output.size for output in self.expected) * self.output_dtype.itemsize


@dataclass(frozen=True)
class Candidate:
    """One way to compute a case.

    ``function(*arguments)`` returns arrays in the order of `Problem.expected`. In a JAX family it
    is compiled by ``jax.jit``, and the arguments are what its user would pass at every call. NumPy
    arrays and `Repeated` among them are moved to the device; the same object is moved once.

    Attributes:
        name: As in the report.
        function: See above.
        arguments: Likewise.
        schedule: For kernels of this library, while it is compiled; None for the default.
        skip: Why it is not run on this case; empty if it is.
        expected: What it computes, of a yardstick; None for the problem's.
        details: Further numbers and strings of the candidate, by name, for a table of their own.
    """

    name: str
    function: Callable[..., tuple[Any, ...]]
    arguments: tuple[Any, ...]
    schedule: Any = None
    skip: str = ""
    expected: tuple[Expected, ...] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Candidates that share a process.

    Attributes:
        name: As in the report.
        runtime: "jax", "torch" or "numpy".
        modules: What must be importable; a family without them is reported as absent.
        candidates: From the loaded graph, the case and its problem to the candidates.
        platforms: Where it can run.
        checkout: The repository, by its name on GitHub, whose code its candidates run: their first
            argument is then the path; without it the family is reported as absent.
    """

    name: str
    runtime: str
    modules: tuple[str, ...]
    candidates: Callable[..., Iterable[Candidate]]
    platforms: tuple[str, ...] = ("cpu", "gpu")
    checkout: str = ""


@dataclass(frozen=True)
class Op:
    """The benchmark of one op.

    Attributes:
        name: Of the op and of its file.
        title: One line above the table and the plot.
        workloads: From the ``--data`` folder to the graphs by name.
        modes: Such as "fwd" and "fwd+bwd", and the widths of each; empty for all widths.
        widths: Default feature widths per platform.
        problem: Inputs and expected result of a case.
        families: All candidates.
        baseline: Name of the candidate that users have today.
    """

    name: str
    title: str
    workloads: Callable[[Path | None], dict[str, Workload]]
    modes: Mapping[str, tuple[int, ...]]
    widths: Mapping[str, tuple[int, ...]]
    problem: Callable[[Any, Case], Problem]
    families: tuple[Family, ...]
    baseline: str

    def cases(self, workload: str, settings: Settings) -> list[Case]:
        """What the settings ask for on one graph."""
        widths = settings.widths or self.widths[settings.platform]
        return [
            Case(workload, width, dtype, mode)
            for dtype in settings.dtypes
            for width in widths
            for mode, only in self.modes.items()
            if not settings.modes or mode in settings.modes
            if settings.widths or not only or width in only
        ]


@dataclass(frozen=True)
class Settings:
    """What is run and how.

    Attributes:
        platform: "cpu" or "gpu".
        data: Folder with real graphs.
        published: Folder with checkouts of published code.
        patterns: Names of graphs, with wildcards; empty for the op's own choice.
        modes: Names of modes; empty for all.
        widths: Feature widths; empty for the op's own.
        dtypes: Names of dtypes.
        families: Names of families; empty for all.
        rounds: How often all candidates get their turn.
        repeats: Samples in a turn on a GPU.
        timer: For JAX on a GPU: "profiler" or "queue".
    """

    platform: str
    data: Path | None = None
    published: Path | None = None
    patterns: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    families: tuple[str, ...] = ()
    rounds: int = 5
    repeats: int = 7
    timer: str = "profiler"


def available_ops() -> dict[str, str]:
    """Names of the ops with a benchmark, and their titles."""
    names = sorted(path.stem[len("bench_") :] for path in Path(__file__).parent.glob("bench_*.py"))
    return {name: load_op(name).title for name in names}


def load_op(name: str) -> Op:
    """The `Op` of ``bench_NAME.py``."""
    return importlib.import_module(f"benchmarks.bench_{name}").OP
