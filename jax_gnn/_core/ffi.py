"""The compiled modules, whose handlers are XLA custom-call targets, and the choice among them."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import sys
import sysconfig
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast, get_args

import jax
import jaxlib

from jax_gnn._core.public import (
    Implementation,
    check_implementation,
    chosen_implementation,
    public,
)
from jax_gnn._core.refusal import refuse
from jax_gnn._version import __version__

Platform = Literal["cuda", "cpu"]

TARGET_PREFIX = "jax_gnn_"
_XLA_PLATFORM = {"cuda": "CUDA", "cpu": "cpu"}  # names in jax.ffi.register_ffi_target


# --- Compiled modules ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlatformStatus:
    """The targets of a platform; if it has none, the reason, and a hint what to do."""

    platform: Platform
    available: bool
    targets: tuple[str, ...]
    reason: str | None = None
    hint: str | None = None
    build: str | None = None


CUDA_PACKAGE = "jax-gnn-kernels-cuda13"
"""The distribution whose entry point of the group ``jax_gnn.cuda`` is the CUDA module."""

_FOLDER = Path(__file__).parents[1]


def package_copies() -> list[Path]:
    """Return the folders of this package on the path, the folder in use first."""
    folders = (Path(root, "jax_gnn").resolve() for root in sys.path)
    return list(dict.fromkeys([_FOLDER, *(f for f in folders if (f / "__init__.py").is_file())]))


def _why_missing(name: str, error: ImportError) -> str:
    """Return why a compiled module of this package cannot be imported, and what to do."""
    mend = "python -m pip install --force-reinstall --no-deps jax-gnn-kernels"
    if files := sorted(_FOLDER.glob(f"{name}.*")):
        platform = f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"
        origin = f"another Python or processor than {platform}"
        if isinstance(error, ModuleNotFoundError):
            return f"{files[0]} is of {origin}: {mend}"
        return f"{files[0]} is damaged, or of {origin} ({error}): {mend}"
    if built := [folder for folder in package_copies() if any(folder.glob(f"{name}.*"))]:
        before = f"goes before {built[0]} on the path"
        return f"{_FOLDER} is not built, and {before}: start Python elsewhere"
    if (_FOLDER.parent / "CMakeLists.txt").exists():
        mend = f"pip install {_FOLDER.parent}, and start Python elsewhere"
        return f"{_FOLDER} is a source folder: {mend}"
    return f"{_FOLDER} has no compiled module {name}: {mend}"


def _load(name: str) -> types.ModuleType:
    return importlib.import_module(f"jax_gnn.{name}")


@functools.cache
def _module(platform: Platform) -> types.ModuleType:
    """Return the compiled module of a platform; for CUDA perhaps of another distribution."""
    if platform == "cpu":
        return _load("_cpu")
    if not _module("cpu").cuda_build:
        return _load("_cuda")
    # Both distributions must have one version, as handlers and their callers change together.
    package = metadata.distribution(CUDA_PACKAGE)
    try:
        version = package.version
        if version != __version__:
            version = version or "of an unknown version"
            raise ImportError(f"{CUDA_PACKAGE} is {version}, jax-gnn-kernels {__version__}")
        (entry_point,) = package.entry_points.select(group="jax_gnn.cuda")
        return cast(types.ModuleType, entry_point.load())
    except ImportError:
        raise
    except Exception as error:  # files of its metadata are missing or truncated
        raise ImportError(f"{CUDA_PACKAGE} is damaged: {type(error).__name__}: {error}") from error


def _ffi_version() -> tuple[int, ...]:
    """Return jaxlib's version of the FFI, which takes handlers of older versions; () if unknown."""
    header = Path(jaxlib.__file__).parent / "include" / "xla" / "ffi" / "api" / "c_api.h"
    try:
        numbers = re.findall(r"define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text())
    except OSError:
        return ()
    return tuple(int(number) for _, number in sorted(numbers))


def _register(module: types.ModuleType, platform: Platform, build: str) -> PlatformStatus:
    """Register all handlers, or none: backends do not start with a handler that JAX refuses."""
    version, jaxlib_version = module.ffi_version, _ffi_version()
    if jaxlib_version and version > jaxlib_version:
        return PlatformStatus(
            platform,
            False,
            (),
            reason=f"its handlers are of XLA's FFI {version[0]}.{version[1]}, and jaxlib "
            f"{jaxlib.version.__version__} has {jaxlib_version[0]}.{jaxlib_version[1]}",
            hint="pip install --upgrade jax jaxlib",
            build=build,
        )
    targets = module.targets()
    for name, handler in targets.items():
        jax.ffi.register_ffi_target(TARGET_PREFIX + name, handler, platform=_XLA_PLATFORM[platform])
    return PlatformStatus(platform, True, tuple(sorted(targets)), build=build)


def _load_cpu() -> PlatformStatus:
    try:
        module = _module("cpu")
    except ImportError as error:
        reason = _why_missing("_cpu", error)
    else:
        return _register(module, "cpu", module.compiler)
    refuse(f"jax_gnn cannot be used: {reason}")


def _load_cuda() -> PlatformStatus:
    try:
        module = _module("cuda")
    except metadata.PackageNotFoundError:
        hint = (
            "pip install 'jax-gnn-kernels[cuda13]'; or build from source: put nvcc on the PATH, or "
            "get a compiler from PyPI with pip install 'jax-gnn-kernels[cuda-compiler]', and "
            "reinstall on the machine with the GPU, or with "
            "-C cmake.define.JAX_GNN_CUDA_ARCHITECTURES=90a (docs/install.md)"
        )
        return PlatformStatus("cuda", False, (), reason=_module("cpu").cuda_build, hint=hint)
    except ImportError as error:
        hint = f"pip install --force-reinstall --no-deps jax-gnn-kernels=={__version__}"
        if _module("cpu").cuda_build:
            hint += f" {CUDA_PACKAGE}=={__version__}"
        return PlatformStatus("cuda", False, (), reason=str(error), hint=hint)
    return _register(module, "cuda", f"{module.compiler}, architectures {module.architectures}")


def why_no_gpu() -> str | None:
    """Return why JAX has no GPU for the CUDA kernels; None if it has one."""
    try:
        if any(device.platform == "gpu" for device in jax.devices()):
            return None
    except RuntimeError:  # JAX_PLATFORMS names a platform that cannot start
        pass
    # Look for the cause from the top: plugin, driver, device, configuration.
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return "JAX is a build for CPUs: pip install 'jax[cuda13]'"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1): install one, or run where there is one"
    if not _module("cuda").shared_memory():
        return "the driver finds no GPU: see what nvidia-smi lists, and CUDA_VISIBLE_DEVICES"
    return "JAX does not use the GPU: see what it warned of, and JAX_PLATFORMS"


STATUS: dict[str, PlatformStatus] = {"cpu": _load_cpu(), "cuda": _load_cuda()}


@functools.cache
def host_function(name: str) -> Callable[..., Any]:
    """Return a compiled function on numpy arrays."""
    return cast(Callable[..., Any], getattr(_module("cpu"), name))


@functools.cache
def shared_memory() -> int:
    """Return the bytes of shared memory of a block on this machine's GPUs.

    Without GPUs, as for an export, it is the least of all GPUs that kernels are built for.
    """
    num_bytes = _module("cuda").shared_memory() if STATUS["cuda"].available else 0
    return num_bytes or 99 << 10


def status() -> list[PlatformStatus]:
    """Return the status of each platform with kernels, for ``jax-gnn info``."""
    return list(STATUS.values())


@public
def shared_library(platform: Platform = "cpu") -> str:
    """Return the file with the kernels of a platform, for processes without this package.

    Each custom call of an exported program is a C symbol of the file, such as
    ``jax_gnn_segment_reduce``, which `jax.ffi.pycapsule` makes a handler: see docs/export.md.

    Args:
        platform: ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: the platform is unknown, or there are no kernels for it here.

    Example:
        >>> import ctypes
        >>> library = ctypes.CDLL(shared_library())
        >>> handler = jax.ffi.pycapsule(library.jax_gnn_segment_reduce)
    """
    if not isinstance(platform, str) or platform not in STATUS:
        raise ValueError(f"platform must be one of {get_args(Platform)}, got {platform!r}")
    state = STATUS[platform]
    if not state.available:
        hint = f" ({state.hint})" if state.hint else ""
        raise ValueError(f"platform {platform!r} has no kernels here: {state.reason}{hint}")
    return str(_module(platform).__file__)


@public
def implementation(name: Implementation | None) -> AbstractContextManager[None]:
    """Select the implementation of all ops called inside a ``with`` block.

    Args:
        name: ``"cuda"`` or ``"cpu"`` demand this library's kernels (compilation for another
            platform then fails), ``"xla"`` selects plain ``jax.numpy``, None (the default) the
            kernels of the current platform where there are any. The ``implementation`` argument of
            an op takes precedence.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> with implementation("xla"):  # plain jax.numpy, as a reference
        ...     segment_sum(jnp.array([1.0, 2.0]), jnp.array([0, 0]), 1)
        Array([3.], dtype=float32)
    """
    check_implementation(name)
    return cast(AbstractContextManager[None], chosen_implementation(name))
