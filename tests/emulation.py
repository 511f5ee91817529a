"""CUDA kernels on a machine without a GPU: those of ``cpp/emulator``, in place of the CPU's.

With ``JAX_GNN_EMULATE_CUDA=1`` in the environment, and a build with
``-C cmake.define.JAX_GNN_EMULATE_CUDA=ON``, ``implementation="cuda"`` runs them inside programs for
the CPU: what JAX is told, handlers and kernels are those of a GPU; only time is another.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import jax
from jax.interpreters import mlir

from jax_gnn import _ffi

WANTED = os.environ.get("JAX_GNN_EMULATE_CUDA") == "1"


def _install() -> None:
    """Makes ``implementation="cuda"`` mean the emulated kernels."""
    targets = importlib.import_module("jax_gnn._cuda_emulated").targets()
    names = {name: f"emulated_{name}" for name in targets}
    for name, handler in targets.items():
        target = _ffi._TARGET_PREFIX + names[name]
        jax.ffi.register_ffi_target(target, handler, platform="cpu")
    _ffi._STATUS["cuda"] = _ffi.PlatformStatus("cuda", True, tuple(names.values()))
    for name, (primitive, rules) in _ffi.PRIMITIVES.items():
        lower = functools.partial(_lower, name, names.get(name, name), rules)
        mlir.register_lowering(primitive, lower, platform="cpu")


def _lower(
    name: str, emulated: str, rules: Any, ctx: Any, *values: Any, implementation: Any, **rest: Any
) -> Any:
    cuda = implementation == "cuda"
    target, platform = (emulated, "cuda") if cuda else (name, "cpu")
    return _ffi._lower(target, rules, platform, ctx, *values, implementation=implementation, **rest)


if WANTED:
    _install()
