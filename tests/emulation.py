"""CUDA kernels on a machine without a GPU: those of ``cpp/emulator``, in place of the CPU's.

With ``JAX_GNN_EMULATE_CUDA=1`` in the environment, and a build with
``-C cmake.define.JAX_GNN_EMULATE_CUDA=ON``, ``implementation="cuda"`` runs them inside programs for
the CPU: what JAX is told, handlers and kernels are those of a GPU; only time is another.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
from typing import Any

import jax
from jax.interpreters import mlir

from jax_gnn._core import ffi, op

WANTED = os.environ.get("JAX_GNN_EMULATE_CUDA") == "1"


def target(name: str) -> str:
    """Of the custom call of a CUDA kernel, emulated or not."""
    return f"{ffi.TARGET_PREFIX}{'emulated_' if WANTED else ''}{name}"


def _install() -> None:
    """Makes ``implementation="cuda"`` mean the emulated kernels."""
    module = importlib.import_module("jax_gnn._cuda_emulated")
    targets = module.targets()
    names = {name: f"emulated_{name}" for name in targets}
    for name, handler in targets.items():
        target = ffi.TARGET_PREFIX + names[name]
        jax.ffi.register_ffi_target(target, handler, platform="cpu")
    ffi.shared_memory = module.shared_memory
    ffi.STATUS["cuda"] = ffi.PlatformStatus("cuda", True, tuple(names.values()))
    for each in op.OPS.values():
        emulated = dataclasses.replace(each, name=names.get(each.name, each.name))
        lower = functools.partial(_lower, each, emulated)
        mlir.register_lowering(each.primitive, lower, platform="cpu")


def _lower(of_cpu: op.Op, emulated: op.Op, *operands: Any, implementation: Any, **rest: Any) -> Any:
    chosen, platform = (emulated, "cuda") if implementation == "cuda" else (of_cpu, "cpu")
    return op.lower(chosen, platform, *operands, implementation=implementation, **rest)


if WANTED:
    _install()
