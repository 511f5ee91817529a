"""Set-up common to all tests: devices, memory, and the seed of the random inputs."""

from __future__ import annotations

import os
import random
import re
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # workers share a GPU
jax.config.update("jax_num_cpu_devices", 4)  # for shard_map; before any backend starts

pytest.register_assert_rewrite("op_spec", "op_suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="seed of the random inputs; fresh on every run")
    parser.addoption(
        "--seeds", type=int, default=1, help="runs tests of random inputs for that many seeds"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist: the seed of the main process
        config.option.seed = config.workerinput["seed"]
    elif config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"random inputs: --seed {config.option.seed}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With ``--seeds N``, tests of random inputs run for N seeds, and share what they compile."""
    options = metafunc.config.option
    if "rng" in metafunc.fixturenames and options.seeds > 1:
        seeds = range(options.seed, options.seed + options.seeds)
        metafunc.parametrize("rng", seeds, indirect=True, ids=map(_seed_id, seeds))


def _seed_id(seed: int) -> str:
    return f"seed{seed}"


def _seed_of(item: Any) -> int:
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


@pytest.fixture
def exact_products() -> Iterator[None]:
    """A GPU rounds the factors of float32 products to 10 bits, unless it is told not to."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def taking_less_than() -> Callable[[int], AbstractContextManager[None]]:
    """What limits the memory that a block takes at any time, in bytes."""

    @contextmanager
    def limit(num_bytes: int) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < num_bytes
        finally:
            tracemalloc.stop()

    return limit
