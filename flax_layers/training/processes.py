"""Processes that train together, in a job of `jax.distributed`: ``jax-gnn train --distributed``."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

HEARTBEAT_SECONDS = 30  # after which a process that shows no life ends the others
VARIABLES = (  # address of the first process, number of processes, number of this process
    ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    ("COORDINATOR", "PROCESSES", "JOB_COMPLETION_INDEX"),  # of docs/clusters/kubernetes.yaml
)


@contextlib.contextmanager
def join(args: argparse.Namespace) -> Iterator[None]:
    """Join the processes of a command with ``--distributed``, and set its number of devices.

    This comes before anything that uses a device. Within the context the first process alone
    prints; exceptions are for the caller to print.

    Raises:
        ValueError: The environment describes no job, or a process would have none of the devices.
    """
    if not args.distributed:
        args.devices = args.devices or 1
        yield
        return
    initialize()
    args.devices = args.devices or jax.device_count()
    used, count = len(processes_of(args.devices)), jax.process_count()
    if used < count:
        raise ValueError(
            f"--devices {args.devices} are of {used} of the {count} processes; expected devices of "
            f"each, of the {jax.device_count()} that there are"
        )
    with contextlib.ExitStack() as stack:
        if jax.process_index():
            null = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(null))
            stack.enter_context(contextlib.redirect_stderr(null))
        yield


def initialize() -> None:
    """Call `jax.distributed.initialize` for the job of the environment.

    Raises:
        ValueError: The environment describes no job.
    """
    try:
        jax.distributed.initialize(**_job(), heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except ValueError as error:
        raise ValueError(
            f"--distributed needs a job of SLURM or Open MPI, or {', '.join(VARIABLES[0])}: {error}"
        ) from error


def _job() -> dict[str, Any]:
    """Return the arguments of `jax.distributed.initialize` that JAX does not find by itself."""
    for names in VARIABLES:
        if all(name in os.environ for name in names):
            address, *numbers = (os.environ[name] for name in names)
            count, index = map(int, numbers)
            return {"coordinator_address": address, "num_processes": count, "process_id": index}
    return {}


def processes_of(num_devices: int) -> set[int]:
    """Return the processes of the first devices."""
    return {device.process_index for device in jax.devices()[:num_devices]}


def check_same(message: str, *numbers: int) -> None:
    """Raise a ValueError on every process if numbers, of 32 bits, differ between processes.

    The message is followed by the numbers of each process.
    """
    rows = process_allgather(np.array(numbers, np.uint32))
    if (rows != rows[0]).any():
        values = "; ".join(
            f"{', '.join(map(str, row))} in process {i}" for i, row in enumerate(rows.tolist())
        )
        raise ValueError(f"{message}, got {values}")
