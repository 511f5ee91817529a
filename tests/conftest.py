"""Set-up common to all tests: devices, memory, and the seed of the random inputs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import re
import resource
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

# Before numpy is there: threads of its products of small matrices wait for each other, and spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax._src.lru_cache
import jaxlib
import numpy as np
import pytest

MOST_MEMORY = 2 << 30
"""Bytes of a process above which compiled programs are dropped between two tests."""

# All before any backend starts. Processes that tests start inherit the environment.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers share a GPU
jax.config.update("jax_num_cpu_devices", 8)  # for shard_map
# Most of the tests' time is XLA's, compiling for CPUs what runs for microseconds. It takes half of
# it without MLIR; what an environment says of the flag goes first. XLA ends the process on a flag
# that it does not know, as jaxlib 0.11 this one.
_FLAG = "--xla_cpu_use_fusion_emitters"
if jax.__version_info__ < (0, 11) and _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=false"

pytest.register_assert_rewrite("attention_cases", "op_spec", "op_suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=0, help="seed of the random inputs and of the selection; 0"
    )
    parser.addoption("--fuzz", action="store_true", help="draws a new seed")
    parser.addoption("--examples", type=int, default=60, help="of each property by Hypothesis")
    parser.addoption(
        "--seeds", type=int, default=1, help="runs tests of random inputs for that many seeds"
    )
    parser.addoption(
        "--each",
        action="store_true",
        help="every test with all values of each of its parameters; else with a fifth of them",
    )
    parser.addoption(
        "--all", action="store_true", help="every case, also what plain XLA does without any kernel"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: the seed of the main process
        config.option.seed = config.workerinput["seed"]
    elif config.option.fuzz:
        config.option.seed = random.SystemRandom().randrange(2**32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """All tests take all cores; what is named runs in this process, without its start-up."""
    if _named(config):
        return 0
    fitting = _free_memory() // (MOST_MEMORY + MOST_MEMORY // 2)
    return max(1, min(len(os.sched_getaffinity(0)), 16, fitting))


def _free_memory() -> int:
    """Bytes that are free, of those that this process may have."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError):
        kilobytes = re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())
        free = 1024 * int(kilobytes[1]) if kilobytes else free
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, most - used)
    return free


def _named(config: pytest.Config) -> bool:
    return bool(config.option.file_or_dir or config.option.keyword)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if jax.default_backend() == "cpu":
        if "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ:  # XLA's: kernels stay as built
            jax.config.update("jax_disable_most_optimizations", True)
        _keep_programs(config)
    if config.option.all:
        return
    # Kernels or not, rules and transformations are the same, and XLA's own code is JAX's to test.
    with_kernels = {_test(item) for item in items if _implementation(item) not in (None, "xla")}
    left_out = [
        item
        for item in items
        if _implementation(item) == "xla"
        and _test(item) in with_kernels
        and _test(item)[1] not in ("test_value", "test_gradient")
    ]
    if (config.option.each or not _named(config)) and config.option.seeds == 1:
        candidates = set(items) - set(left_out)
        share = 1 if config.option.each else 0.2
        left_out += _combinations(config, [item for item in items if item in candidates], share)
    left_out_ones = set(left_out)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out_ones]


_CLASSES = "classes"


def _combinations(
    config: pytest.Config, items: list[pytest.Item], share: float
) -> list[pytest.Item]:
    """Return the items to deselect, so that each test keeps a share of its parameters' values.

    The seed chooses the values and their combinations. Classes, such as layers, are all kept.
    Variants of an op count as one more parameter of their tests.
    """
    tests: dict[Any, list[tuple[pytest.Item, set[Any]]]] = {}
    for item in items:
        (suite, name), values = _test(item), set(_values(item))
        if getattr(item.cls, "is_variant", False):
            values.add(("variant", suite))
            suite = item.path
        tests.setdefault((suite, name), []).append((item, values))
    left_out = []
    for (_, name), cases in tests.items():
        missing = set().union(*(values for _, values in cases))
        allowed = len(missing) * (1 - share)  # to be missing in the end
        random.Random(f"{config.option.seed} {name}").shuffle(cases)
        while missing:
            needed = {value for value in missing if value[0] == _CLASSES}
            best = max(cases, key=lambda case: (len(case[1] & needed), len(case[1] & missing)))
            missing -= best[1]
            cases.remove(best)
            if len(missing) <= allowed and not needed - best[1]:
                break
        if cases and cases[0][1]:
            left_out += [item for item, _ in cases]
    return left_out


def _values(item) -> Iterator[Any]:
    """Yield the parameters of a test with their values; those of one mark are one value."""
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    for value in parameters.values():
        if isinstance(value, type):
            yield _CLASSES, value
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = tuple(names.replace(" ", "").split(",") if isinstance(names, str) else names)
        yield names, tuple(id(parameters.pop(name)) for name in names)
    yield from ((name, id(value)) for name, value in parameters.items())


def _implementation(item) -> str | None:
    return item.callspec.params.get("implementation") if hasattr(item, "callspec") else None


def _test(item) -> tuple[str, str]:
    return item.parent.nodeid, item.originalname


def pytest_report_header(config: pytest.Config) -> str:
    return f"random inputs: --seed {config.option.seed}"


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    option = config.option
    if not (option.all or option.each or _named(config) or hasattr(config, "workerinput")):
        terminalreporter.write_line(
            f"A fifth of all settings, chosen by --seed {option.seed}; --each and --all run more."
        )


# --- Compiled programs ---------------------------------------------------------------------------


def _keep_programs(config: pytest.Config) -> None:
    """Lets this run begin with the programs of those before, in the user's folder for caches.

    JAX names programs by all that they depend on. An environment that has a folder of its own for
    them, JAX_COMPILATION_CACHE_DIR, goes first; an empty one means none.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "jax_gnn" / "tests" / f"jaxlib-{jaxlib.__version__}-{_instructions():08x}"
    if sys.version_info >= (3, 14):  # JAX compresses by Python's own zstd there, under equal names
        folder = folder.with_name(f"{folder.name}-zstd")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not hasattr(config, "workerinput"):
            _prune(folder)
    except OSError:  # as where there is no home
        return
    jax._src.lru_cache.LRUCache.put = _put
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _instructions() -> int:
    """A number for what this CPU's instructions are: programs are compiled for all of them."""
    with contextlib.suppress(OSError):
        flags = re.search(r"^(?:flags|Features)\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
        return zlib.crc32(flags[1].encode()) if flags else 0
    return 0


def _prune(folder: Path, days: int = 14) -> None:
    for entry in os.scandir(folder):
        if time.time() - entry.stat().st_mtime > days * 86400:
            os.unlink(entry)


def _put(self, key: str, value: bytes) -> None:
    """Store a program atomically, as other processes may read it."""
    path = Path(str(self.path), f"{key}-cache")
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        part.write_bytes(value)
        part.replace(path)


_kept = MOST_MEMORY  # bytes above which programs are dropped: more where what is left takes as much


def pytest_runtest_teardown() -> None:
    """Drops compiled programs where they have come to take much memory."""
    global _kept
    if _resident() > _kept:
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(AttributeError):  # of another C library
            ctypes.CDLL(None).malloc_trim(0)
        _kept = max(MOST_MEMORY, _resident() + MOST_MEMORY // 4)


def _resident() -> int:
    """Bytes of memory that this process takes; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat tests of random inputs for the seeds of ``--seeds N``, which share programs."""
    options = metafunc.config.option
    if "rng" in metafunc.fixturenames and options.seeds > 1:
        seeds = range(options.seed, options.seed + options.seeds)
        metafunc.parametrize("rng", seeds, indirect=True, ids=map(_seed_id, seeds))


def _seed_id(seed: int) -> str:
    return f"seed{seed}"


def _seed_of(item) -> int:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return parameters.get("rng", item.config.option.seed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        report.sections.append(("Random inputs", f"repeat with --seed {_seed_of(item)}"))
    return report


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the seed and on the test, not on the tests run before."""
    seed = _seed_of(request.node)
    name = [part for part in re.split(r"[][-]+", request.node.name) if part != _seed_id(seed)]
    return np.random.default_rng([seed, zlib.crc32(" ".join(name).strip().encode())])


@pytest.fixture(autouse=True)
def optimized(request: pytest.FixtureRequest) -> Iterator[None]:
    """XLA's optimizations, which round otherwise, for tests of equal bits."""
    option = "jax_disable_most_optimizations"
    before = jax.config.values[option]
    jax.config.update(option, before and "same_bits" not in request.node.name)
    yield
    jax.config.update(option, before)


@pytest.fixture
def exact_products() -> Iterator[None]:
    """A GPU rounds the factors of float32 products to 10 bits, unless it is told not to."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def small_files() -> Callable[[int], AbstractContextManager[None]]:
    """A context in which no file may have more bytes, as on a disk that is full."""

    @contextmanager
    def limited(most: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture(scope="module")
def strict_promotion() -> Iterator[None]:
    """Neither dtypes nor ranks are promoted, in no test of a module."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def taking_less_than() -> Callable[[int], AbstractContextManager[None]]:
    """Limit the memory that a block may allocate at any time, in bytes."""

    @contextmanager
    def limit(num_bytes: int) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < num_bytes
        finally:
            tracemalloc.stop()

    return limit
