"""The process in which a family of candidates is compiled, checked and timed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import multiprocessing
import os
import platform
import statistics
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks import report, timing
from benchmarks.definition import TOLERANCE, Candidate, Case, Family, Problem, Settings, load_op
from benchmarks.problems import Expected, Repeated, features

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_WARM_UPS = 3
_LARGE = 2**30
_LARGEST_GRAPH = 2**32


class Process:
    """A process of its own, which answers messages.

    Args:
        make: There, of the arguments, what the process says first, and the function of messages.
        arguments: Of it.
        daemon: Whether it dies with this one; if so it can have no processes itself.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, daemon: bool = True) -> None:
        # Families define results at once, by products whose threads would wait for each other.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        given = theirs, make, *arguments
        self._process = context.Process(target=_serve, args=given, daemon=daemon)
        self._process.start()
        theirs.close()  # so that the death of the process ends our waiting

    def send(self, *message: Any) -> None:
        """Sends arguments of the function. A dead process shows when its answer is awaited."""
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def receive(self) -> Any:
        """The answer to the earliest message that has none yet; the first is what `make` says.

        Raises:
            RuntimeError: It failed; the message is the process's traceback.
            EOFError: The process has died.
        """
        try:
            error, answer = self._connection.recv()
        except (EOFError, OSError):
            raise EOFError("the process died") from None
        if error:
            raise RuntimeError(error)
        return answer

    def stop(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _serve(connection: Connection, make: Callable[..., Any], *arguments: Any) -> None:
    """Answers messages until the parent hangs up."""

    def attempt(function: Callable[..., Any], given: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            return "", function(*given)
        except Exception:
            return traceback.format_exc(), None

    error, made = attempt(make, arguments)
    connection.send((error, made and made[0]))
    with contextlib.suppress(EOFError):
        while made:
            connection.send(attempt(made[1], connection.recv()))


def reason(error: Exception) -> str:
    """Why a process has failed: a traceback's last line."""
    return str(error).strip().splitlines()[-1][:300]


def probe(settings: Settings) -> dict[str, Any]:
    """Device, versions and copy bandwidth of this machine, from a process of its own."""
    process = Process(_machine, settings)
    try:
        return process.receive()
    finally:
        process.stop()


def _machine(settings: Settings) -> tuple[dict[str, Any], None]:
    driver = report.driver() if settings.platform == "gpu" else None
    return _Jax(settings).machine() | {"driver": driver}, None


def set_environment(platform: str) -> None:
    """Variables for JAX and torch, before either is imported."""
    if platform == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["JAX_PLATFORMS"] = "cuda" if platform == "gpu" else "cpu"
    # Processes share one GPU, and JAX gives back nothing of what it has taken.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.4"


def family_session(op_name: str, family_name: str, settings: Settings) -> tuple[Any, Any]:
    """Of a `Process`: whether a family can run here, and the answers to the parent's commands."""
    op = load_op(op_name)
    family = next(family for family in op.families if family.name == family_name)
    try:
        runtime = _runtime(family, settings)
        versions = {name: version(name) for name in family.modules}
        versions |= {path.name: report.commit(path) for path in _checkout(family, settings)}
    except Exception as error:
        return {"status": "absent", "reason": f"{type(error).__name__}: {error}"}, None
    session = _Session(op, family, settings, runtime)
    hello = {"status": "timed", "versions": versions}
    return hello, lambda command, *arguments: getattr(session, command)(*arguments)


class _Session:
    """Commands of the parent. Between "prepare" and "forget" a graph's candidates are held."""

    def __init__(self, op: Any, family: Family, settings: Settings, runtime: _Runtime) -> None:
        self._op, self._family, self._settings, self._runtime = op, family, settings, runtime
        self._calls: dict[tuple[str, str, str], timing.Call] = {}
        self._graph: tuple[str, Any] = "", None

    def prepare(self, cases: list[Case]) -> dict[str, Any]:
        """Compiles, runs and checks every candidate of the cases, which share a graph."""
        workload = cases[0].workload
        if self._graph[0] != workload:
            self._graph = workload, self._op.workloads(self._settings.data)[workload].load()
        graph = self._graph[1]
        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
            problems = list(pool.map(partial(self._op.problem, graph), cases))
        threads = self._runtime.compile_threads
        with ThreadPoolExecutor(threads, initializer=self._runtime.enter_thread) as pool:
            prepared = list(pool.map(partial(self._prepare_case, graph), cases, problems))
        names = [case.name for case in cases]
        return {
            "work": dict(zip(names, (work for work, _ in prepared), strict=True)),
            "candidates": dict(zip(names, (rows for _, rows in prepared), strict=True)),
        }

    def measure(self, case_names: list[str]) -> dict[tuple[str, str, str], list[float]]:
        """Samples in seconds of every right candidate of the cases, by each way to call it."""
        calls = {key: call for key, call in self._calls.items() if key[0] in case_names}
        return self._runtime.timer.measure(calls, self._runtime.repeats)

    def forget(self) -> str:
        """Drops the candidates."""
        self._calls.clear()
        self._runtime.forget()
        return "forgotten"

    def _prepare_case(
        self, graph: Any, case: Case, problem: Problem
    ) -> tuple[dict[str, int], list[dict[str, Any]]]:
        work = {"bytes": problem.num_bytes, "flops": problem.flops}
        try:
            checkout = _checkout(self._family, self._settings)
            candidates = list(self._family.candidates(*checkout, graph, case, problem))
        except Exception as error:
            row = {"name": self._family.name, "status": "failed", "error": None}
            return work, [row | {"reason": _first_line(error)}]
        rows = [self._prepare_one(case, problem, candidate) for candidate in candidates]
        return work, rows

    def _prepare_one(self, case: Case, problem: Problem, candidate: Candidate) -> dict[str, Any]:
        tolerance = problem.tolerance or TOLERANCE[case.dtype]
        row: dict[str, Any] = {"name": candidate.name, "status": "timed", "error": None}
        row["details"] = dict(candidate.details)
        if candidate.skip:
            return row | {"status": "skipped", "reason": candidate.skip}
        try:
            outputs, calls, scratch = self._runtime.prepare(candidate)
            error = max(
                self._error(output, reference)
                for output, reference in zip(
                    outputs, candidate.expected or problem.expected, strict=True
                )
            )
        except Exception as failure:
            return row | {"status": "failed", "reason": _first_line(failure)}
        # NaN must not pass, hence not the comparison the other way round.
        if not error <= tolerance:
            reason = f"relative error {error:.1e} exceeds {tolerance:.0e}"
            return row | {"status": "wrong", "error": float(error), "reason": reason}
        for method, call in calls.items():
            self._calls[case.name, candidate.name, method] = call
        return row | {"error": float(error), "scratch_bytes": scratch, "reason": ""}

    def _error(self, output: Any, expected: Expected) -> float:
        if tuple(output.shape) != expected.shape:
            return float("inf")
        checked = output if expected.rows is None else self._runtime.take(output, expected.rows)
        return relative_error(self._runtime.to_numpy(checked), expected.values)


def relative_error(output: np.ndarray, reference: np.ndarray) -> float:
    """‖output - reference‖ / ‖reference‖; infinite where the shapes differ."""
    if output.shape != reference.shape:
        return float("inf")
    scale = float(np.linalg.norm(reference)) or 1.0
    return float(np.linalg.norm(output - reference)) / scale


class _Memo:
    """Results of a function by the identity of its argument, which threads share."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._lock = function, threading.Lock()
        self._known: dict[int, tuple[Any, Any]] = {}

    def __getitem__(self, key: Any) -> Any:
        with self._lock:
            if id(key) not in self._known:  # the key is kept, so that nothing takes its id
                self._known[id(key)] = key, self._function(key)
            return self._known[id(key)][1]

    def clear(self) -> None:
        """Forgets all."""
        self._known.clear()


class Prepared(NamedTuple):
    """What a runtime makes of a candidate.

    Attributes:
        outputs: Of a call.
        calls: The ways to call it, by name.
        scratch_bytes: What a call holds beside inputs and outputs; None where that is unknown.
    """

    outputs: tuple[Any, ...]
    calls: dict[str, timing.Call]
    scratch_bytes: int | None = None


class _Jax:
    """JAX on the chosen platform."""

    def __init__(self, settings: Settings) -> None:
        on_gpu = settings.platform == "gpu"
        set_environment(settings.platform)
        import jax

        jax.config.update("jax_enable_x64", "float64" in settings.dtypes)
        self._jax, self._on_gpu, self._dtypes = jax, on_gpu, settings.dtypes
        self._devices = _Memo(self._put)
        jax.devices()  # without the platform: an error, and the family is absent
        self.compile_threads = min(os.cpu_count() or 1, 8)
        self.repeats = settings.repeats if on_gpu else 1
        self.timer: timing.Timer
        if not on_gpu:
            self.timer = timing.WallTimer(jax.block_until_ready)
        elif settings.timer == "queue":
            self.timer = timing.QueueTimer()
        else:
            from jax_gnn._tuning.timing import ProfilerTimer

            self.timer = ProfilerTimer(timing.FLUSHES, timing.FLUSH_BYTES)

    def enter_thread(self) -> None:
        """Nothing in JAX is particular to a thread."""

    def prepare(self, candidate: Candidate) -> Prepared:
        """Compiles and warms up."""
        from jax_gnn import schedules

        arguments = self._jax.tree.map(lambda leaf: self._devices[leaf], candidate.arguments)
        with schedules.use(candidate.schedule):
            function = self._jax.jit(candidate.function).lower(*arguments).compile()
        call = partial(function, *arguments)
        for _ in range(_WARM_UPS):
            outputs = self._jax.block_until_ready(call())
        memory = function.memory_analysis()
        scratch = memory.temp_size_in_bytes if memory else None
        return Prepared(outputs, {self.timer.method: call}, scratch)

    def take(self, output: Any, rows: np.ndarray) -> Any:
        """Some rows of an output."""
        if output.nbytes > _LARGE:
            return output[rows]
        return np.asarray(output)[rows]  # a copy is sooner there than a gather is compiled

    def to_numpy(self, output: Any) -> np.ndarray:
        """On the host in float64."""
        return np.asarray(output).astype(np.float64)

    def forget(self) -> None:
        """Frees compiled programs and what they hold: both die with the candidates."""
        self._devices.clear()
        gc.collect()

    def _put(self, leaf: Any) -> Any:
        if not isinstance(leaf, Repeated):
            return self._jax.device_put(leaf)
        if not self._on_gpu:
            return self._jax.device_put(leaf.whole())

        def whole(pool: Any) -> Any:
            repeated = self._jax.numpy.broadcast_to(pool, (leaf.repeats, *pool.shape))
            return repeated.reshape(-1, *pool.shape[1:])[: leaf.num_rows]

        return self._jax.jit(whole)(leaf.pool)

    def machine(self) -> dict[str, Any]:
        """Names, counts, versions and the copy bandwidth."""
        load_average = os.getloadavg()[0]
        size = 2**30 if self._on_gpu else 2**27
        device = self._jax.devices()[0]
        return {
            "device": device.device_kind if self._on_gpu else _cpu_name(),
            "cpu": _cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
            "load_average": load_average,
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
            },
            "copy_bytes_per_second": timing.copy_bandwidth(self.timer, self._copies(size), size),
            "flops_per_second": self._flops_per_second(8192 if self._on_gpu else 1024),
        }

    def _flops_per_second(self, side: int) -> dict[str, float]:
        """Rate of a large matrix product in each dtype, at JAX's default precision."""
        jax = self._jax
        calls = {}
        for dtype in self._dtypes:
            # Not zeros or ones, on which a GPU is faster than on real data.
            numbers = features("square", side, side, dtype).whole()
            calls[dtype] = partial(jax.jit(jax.numpy.matmul), *[jax.device_put(numbers)] * 2)
            jax.block_until_ready(calls[dtype]())
        samples = self.timer.measure(calls, repeats=5)
        return {dtype: 2 * side**3 / statistics.median(of) for dtype, of in samples.items()}

    def _copies(self, num_bytes: int) -> dict[str, timing.Call]:
        jax = self._jax
        source = jax.device_put(np.arange(num_bytes // 4, dtype=np.uint32))
        copies: dict[str, timing.Call] = {
            "copy": partial(jax.jit(jax.numpy.copy), source),
            "kernel": partial(jax.jit(lambda array: array + np.uint32(1)), source),
        }
        if not self._on_gpu:
            copies["threads"] = _threaded_copy(np.asarray(source))
        for call in copies.values():
            jax.block_until_ready(call())
        return copies


class _Torch:
    """torch on the chosen platform."""

    compile_threads = 1

    def __init__(self, settings: Settings) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"  # of problems that are defined by JAX
        import torch

        self._torch, self._on_gpu = torch, settings.platform == "gpu"
        if self._on_gpu and not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self.enter_thread()
        self._devices = _Memo(self._put)
        self.repeats = settings.repeats if self._on_gpu else 1
        self.timer: timing.Timer = (
            timing.EventTimer() if self._on_gpu else timing.WallTimer(lambda outputs: outputs)
        )

    def enter_thread(self) -> None:
        """Chooses the device, which torch does per thread."""
        self._torch.set_default_device("cuda" if self._on_gpu else "cpu")

    def prepare(self, candidate: Candidate) -> Prepared:
        """Warms up. A candidate is called as is, and as a CUDA graph if it can be one."""
        call = partial(candidate.function, *map(self._devices.__getitem__, candidate.arguments))
        for _ in range(_WARM_UPS - 1):
            call()
        if self._on_gpu:
            self._torch.cuda.reset_peak_memory_stats()
            held = self._torch.cuda.memory_allocated()
        outputs = call()
        calls: dict[str, timing.Call] = {self.timer.method: call}
        if not self._on_gpu:
            return Prepared(outputs, calls)
        results = sum(output.numel() * output.element_size() for output in outputs)
        scratch = self._torch.cuda.max_memory_allocated() - held - results
        # A graph keeps what its call holds.
        if scratch <= _LARGEST_GRAPH and (replay := self._graph(call, outputs)):
            calls["graph replay"] = replay
        return Prepared(outputs, calls, scratch)

    def _graph(self, call: timing.Call, outputs: tuple[Any, ...]) -> timing.Call | None:
        """Replays the call, or None if that does not do what the call does."""
        torch = self._torch
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an empty graph: the comparison finds those
                with torch.cuda.graph(graph):
                    replayed = call()
            for output in replayed:
                output.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
        except RuntimeError:  # the call synchronises or allocates outside of torch's pool
            # A capture that has failed leaves the generator capturing: random numbers are errors
            # from then on, those of a layer's first weights too.
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            return None
        close = partial(torch.allclose, rtol=1e-2, atol=1e-2)  # atomics reorder sums
        return graph.replay if all(map(close, replayed, outputs)) else None

    def take(self, output: Any, rows: np.ndarray) -> Any:
        """Some rows of an output."""
        return output[self._torch.tensor(rows)]

    def to_numpy(self, output: Any) -> np.ndarray:
        """On the host in float64."""
        return output.detach().to("cpu", self._torch.float64).numpy()

    def forget(self) -> None:
        """Frees the memory pools."""
        self._devices.clear()
        gc.collect()
        if self._on_gpu:
            self._torch.cuda.empty_cache()

    def _put(self, argument: Any) -> Any:
        if isinstance(argument, Repeated):
            pool = self._put(argument.pool)
            return pool.repeat(argument.repeats, *[1] * (pool.ndim - 1))[: argument.num_rows]
        if not isinstance(argument, np.ndarray):
            return argument
        if argument.dtype.name == "bfloat16":
            return self._torch.tensor(argument.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.tensor(argument)


class _NumPy:
    """NumPy on the host."""

    compile_threads, repeats = 1, 1

    def __init__(self, settings: Settings) -> None:
        del settings
        self.timer: timing.Timer = timing.WallTimer(lambda outputs: outputs)
        self._wholes = _Memo(self._put)

    def enter_thread(self) -> None:
        """Nothing in NumPy is particular to a thread."""

    def prepare(self, candidate: Candidate) -> Prepared:
        """Runs it once."""
        call = partial(candidate.function, *map(self._wholes.__getitem__, candidate.arguments))
        return Prepared(call(), {self.timer.method: call})

    def take(self, output: Any, rows: np.ndarray) -> Any:
        """Some rows of an output."""
        return output[rows]

    def to_numpy(self, output: Any) -> np.ndarray:
        """In float64."""
        return output.astype(np.float64)

    def forget(self) -> None:
        """Frees the arguments."""
        self._wholes.clear()

    def _put(self, argument: Any) -> Any:
        return argument.whole() if isinstance(argument, Repeated) else argument


_Runtime = _Jax | _Torch | _NumPy
_RUNTIMES: dict[str, Callable[[Settings], _Runtime]] = {
    "jax": _Jax,
    "torch": _Torch,
    "numpy": _NumPy,
}


def _runtime(family: Family, settings: Settings) -> _Runtime:
    if settings.platform not in family.platforms:
        raise ValueError(f"{family.name} runs on {' and '.join(family.platforms)} only")
    _checkout(family, settings)
    runtime = _RUNTIMES[family.runtime](settings)
    for module in family.modules:
        importlib.import_module(module)
    return runtime


def _checkout(family: Family, settings: Settings) -> tuple[Path, ...]:
    """Where the family's repository is; nothing if it needs none.

    Raises:
        FileNotFoundError: It is not there.
    """
    if not family.checkout:
        return ()
    checkout = settings.published and settings.published / family.checkout
    if not (checkout and checkout.is_dir()):
        raise FileNotFoundError(f"no checkout {family.checkout} in the folder --published")
    return (checkout.resolve(),)


def _threaded_copy(source: np.ndarray) -> timing.Call:
    target = np.empty_like(source)
    threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(threads)
    targets, sources = np.array_split(target, threads), np.array_split(source, threads)
    return lambda: list(pool.map(np.copyto, targets, sources))


def version(module: str) -> str | None:
    """Of a distribution, or else of the module."""
    try:
        return importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return getattr(importlib.import_module(module), "__version__", None)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
