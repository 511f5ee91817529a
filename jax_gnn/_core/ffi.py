"""The compiled modules, whose handlers are XLA custom-call targets, and which of them to use."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax

from jax_gnn._core.public import public

Implementation = Literal["cuda", "cpu", "xla"]
"""Whose code runs: a platform's kernel, or plain JAX."""
Platform = Literal["cuda", "cpu"]

TARGET_PREFIX = "jax_gnn_"
_XLA_PLATFORM = {"cuda": "CUDA", "cpu": "cpu"}  # as jax.ffi.register_ffi_target spells them


# --- Compiled modules ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlatformStatus:
    """What a platform offers; ``reason`` and ``hint``: why it offers nothing, what to do."""

    platform: Platform
    available: bool
    targets: tuple[str, ...]
    reason: str | None = None
    hint: str | None = None
    build: str | None = None


def _load(name: str) -> types.ModuleType:
    return importlib.import_module(f"jax_gnn.{name}")


def _register(module: types.ModuleType, platform: Platform) -> tuple[str, ...]:
    targets = module.targets()
    for name, handler in targets.items():
        jax.ffi.register_ffi_target(TARGET_PREFIX + name, handler, platform=_XLA_PLATFORM[platform])
    return tuple(sorted(targets))


def _load_cpu() -> PlatformStatus:
    try:
        module = _load("_cpu")
    except ModuleNotFoundError as error:
        raise ImportError(
            "jax_gnn is not built: its compiled module jax_gnn._cpu is missing. Install the "
            "package with 'pip install .' in its source folder, and do not import it from there."
        ) from error
    return PlatformStatus("cpu", True, _register(module, "cpu"), build=module.compiler)


def _load_cuda() -> PlatformStatus:
    reason = _load("_cpu").cuda_build
    if reason:
        return PlatformStatus(
            "cuda",
            False,
            (),
            reason=reason,
            hint="put nvcc on the PATH, or get a compiler from PyPI with pip install "
            "'jax-gnn-kernels[cuda-compiler]'; then reinstall jax-gnn-kernels from source on the "
            "machine with the GPU, or give -C cmake.define.JAX_GNN_CUDA_ARCHITECTURES=90a (docs/"
            "install.md)",
        )
    try:
        module = _load("_cuda")
    except ImportError as error:
        hint = "reinstall jax-gnn-kernels"
        return PlatformStatus("cuda", False, (), reason=str(error), hint=hint)
    build = f"{module.compiler}, architectures {module.architectures}"
    return PlatformStatus("cuda", True, _register(module, "cuda"), build=build)


STATUS: dict[str, PlatformStatus] = {"cpu": _load_cpu(), "cuda": _load_cuda()}


@functools.cache
def host_function(name: str) -> Callable[..., Any]:
    """A compiled function on numpy arrays."""
    return getattr(_load("_cpu"), name)


@functools.cache
def shared_memory() -> int:
    """Bytes of it that a block of a kernel may have on the GPUs at hand.

    Where there are none, as for an export, those of any that kernels are built for.
    """
    found = _load("_cuda").shared_memory() if STATUS["cuda"].available else 0
    return found or 99 << 10


def status() -> list[PlatformStatus]:
    """What each platform with kernels offers, for ``jax-gnn info``."""
    return list(STATUS.values())


@public
def shared_library(platform: Platform = "cpu") -> str:
    """The file of the kernels of a platform, for processes without this package.

    Each custom call of an exported program is a C symbol of it, ``jax_gnn_segment_reduce`` and the
    like, which `jax.ffi.pycapsule` makes a handler: docs/export.md shows how.

    Args:
        platform: ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: the platform is another one, or there are no kernels for it here.

    Example:
        >>> import ctypes
        >>> library = ctypes.CDLL(shared_library())
        >>> handler = jax.ffi.pycapsule(library.jax_gnn_segment_reduce)
    """
    if not isinstance(platform, str) or platform not in STATUS:
        raise ValueError(f"platform must be one of {get_args(Platform)}, got {platform!r}")
    if not STATUS[platform].available:
        raise ValueError(f"platform {platform!r} has no kernels here: {STATUS[platform].reason}")
    return str(_load(f"_{platform}").__file__)


# --- Choice of the implementation ----------------------------------------------------------------

# A user context is part of the keys of JAX's caches, so that a change retraces what was jitted
# before.
chosen_implementation = jax.make_user_context(default_value=None)


def check_implementation(name: Any) -> None:
    """One of the implementations, or None."""
    if name is not None and (not isinstance(name, str) or name not in get_args(Implementation)):
        raise ValueError(
            f"implementation must be None or one of {get_args(Implementation)}, got {name!r}"
        )


@public
def implementation(name: Implementation | None) -> AbstractContextManager[None]:
    """Selects the implementation of all ops called inside a ``with`` block.

    Args:
        name: ``"cuda"`` or ``"cpu"`` demand this library's kernels (compilation for another
            platform then fails), ``"xla"`` takes the plain ``jax.numpy`` version, None (the
            default) takes the kernels of the platform at hand where there are any. An op's own
            ``implementation`` argument goes first.

    Raises:
        ValueError: the name is none of these.

    Example:
        >>> with implementation("xla"):  # plain jax.numpy, as a reference
        ...     segment_sum(jnp.array([1.0, 2.0]), jnp.array([0, 0]), 1)
        Array([3.], dtype=float32)
    """
    check_implementation(name)
    return chosen_implementation(name)
