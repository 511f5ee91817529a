"""Compilation of generated CUDA source at run time: NVRTC by way of ``cuda-core``.

Needs the extra ``jax-gnn-kernels[program]``, and no GPU. Binaries are cached in
``$XDG_CACHE_HOME/jax_gnn/kernels`` (``~/.cache/...``), at most 256 MiB. Each file begins with a
digest of its content, and a damaged one is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax

from jax_gnn._core import schedule_cache

_CACHE_BYTES = 256 << 20
_DIGEST_BYTES = 32
_NAMESPACE = "jax_gnn::cuda"
_MAX_COMPILERS = 8  # that run at once; each keeps a core busy for seconds


class CompilerError(Exception):
    """A source that the compiler rejects; holds the compiler's message."""


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        code: The cubin.
        name: Mangled name of the kernel.
    """

    code: bytes
    name: str

    @property
    def digest(self) -> str:
        """Hash of the code, by which the handler caches loaded kernels."""
        return hashlib.sha256(self.code).hexdigest()


def missing() -> str | None:
    """Return why there is no compiler; None if there is one."""
    with _lock:  # of two threads that import a package, one may see it without its attributes
        return _missing()


@functools.cache
def _missing() -> str | None:
    try:
        core = importlib.import_module("cuda.core")
        importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except Exception as error:  # a library that fails to load raises any exception
        return f"no runtime compiler ({error}); pip install 'jax-gnn-kernels[program]'"
    return None if hasattr(core, "Program") else "cuda-core is too old, 1.0 is needed"


def architecture() -> str | None:
    """Return the compute capability of JAX's first GPU, such as ``"90"``; None without a GPU."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
    return str(device.compute_capability).replace(".", "")


def supports_linear_maps() -> bool:
    """Whether kernels multiply with matrices: a compiler, and tensor cores for float32."""
    arch = architecture() or "90"  # without a GPU, plan as for an H100
    return missing() is None and (not arch.isdigit() or int(arch) >= 80)


def kernel_name(definition: str) -> str:
    """Return the C++ name of the kernel of a struct ``Text``: walks of tiles have their own."""
    for member, name in (("kStages", "tile_kernel"), ("kChannelWords", "channel_kernel")):
        if member in definition:
            return f"{_NAMESPACE}::{name}<{_NAMESPACE}::Text>"
    types = ("RegionMessage", "RegionOp", "RegionRows")
    arguments = (f"{_NAMESPACE}::{name}<{_NAMESPACE}::Text>" for name in types)
    return f"{_NAMESPACE}::reduce_kernel<{', '.join(arguments)}>"


def source_of(definition: str) -> str:
    """Return the translation unit with the definition of the struct ``Text``."""
    includes = '#include "edge_channel_walk.cuh"\n#include "edge_tile_walk.cuh"'
    return f"{includes}\nnamespace {_NAMESPACE} {{\nnamespace {{\n{definition}}}\n}}\n"


@functools.cache
def headers() -> Path:
    """Return the folder of the device headers: installed, or in the source tree."""
    package = Path(__file__).parents[2]
    installed = package / "include"
    return installed if installed.is_dir() else package.parent / "cpp"


@functools.cache
def _headers_digest() -> bytes:
    root, digest = headers(), hashlib.sha256()
    for path in sorted([*root.glob("kernels/*.h"), *root.glob("kernels/cuda/*.cuh")]):
        digest.update(path.read_bytes())
    for path in sorted(root.glob("rtc/*")):
        digest.update(path.read_bytes())
    return digest.digest()


@functools.cache
def _compilers(pid: int) -> ThreadPoolExecutor:
    """Return the threads of a process: a fork has none of its parent's."""
    del pid
    return ThreadPoolExecutor(_MAX_COMPILERS, "jax_gnn compiler")


def start_compiler(definition: str, arch: str, *, fma: bool) -> Future[Binary]:
    """Start to compile a kernel in a thread, unless this process has done so.

    Args:
        definition: The struct ``Text``, see :mod:`jax_gnn._ops.edge_region.cuda_codegen`.
        arch: As from :func:`architecture`.
        fma: Whether multiplications and additions may be contracted.

    Returns:
        The future binary, or a `CompilerError` if the compiler rejects the source.
    """
    key = definition, arch, fma
    with _lock:
        binary = _binaries.get(key)
        if binary is None or (binary.done() and binary.exception() is not None):
            binary = _binaries[key] = _compilers(os.getpid()).submit(compiler, *key)
        return binary


def _nvrtc(definition: str, arch: str, fma: bool) -> Binary:
    core = importlib.import_module("cuda.core")
    root, source = headers(), source_of(definition)
    options = core.ProgramOptions(
        std="c++17",
        arch=f"sm_{arch}",
        include_path=[str(root / "kernels" / "cuda"), str(root / "rtc")],
        device_as_default_execution_space=True,
        fma=fma,
        prec_div=False,
        prec_sqrt=False,
        # The seed of generated names; the default is the time.
        frandom_seed=hashlib.sha256(source.encode()).hexdigest()[:16],
    )
    kernel = kernel_name(definition)

    def build() -> bytes:
        try:
            program = core.Program(source, "c++", options)
            return bytes(program.compile("cubin", name_expressions=(kernel,)).code)
        except Exception as error:
            raise CompilerError(str(error)) from error

    code = _cached(source, options, build)
    names = set(re.findall(rb"\.nv\.constant0\.([\w$.]+)\0", code))
    if len(names) != 1:
        raise CompilerError("the compiled source has no kernel")
    return Binary(code, names.pop().decode())


def _cached(source: str, options: object, build: Callable[[], bytes]) -> bytes:
    """Return the cubin from the cache, or build it and store it there."""
    utils = importlib.import_module("cuda.core.utils")
    if not hasattr(utils, "FileStreamProgramCache"):  # before 1.0
        return build()
    try:
        folder = schedule_cache.path().parent / "kernels"
        cache = utils.FileStreamProgramCache(folder, max_size_bytes=_CACHE_BYTES)
    except OSError as error:
        message = f"compiled kernels are not cached: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return build()
    key = utils.make_program_cache_key(
        code=source,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=_headers_digest(),
    )
    with cache:
        content = bytes(cache.get(key, b""))
        digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if code and hashlib.sha256(code).digest() == digest:
            return code
        code = build()
        try:
            cache[key] = hashlib.sha256(code).digest() + code
        except OSError as error:
            warnings.warn(f"a kernel is not cached: {error}", RuntimeWarning, stacklevel=2)
        return code


# The compiler, and its results of this process. Tests replace both.
compiler: Callable[[str, str, bool], Binary] = _nvrtc
_binaries: dict[tuple[str, str, bool], Future[Binary]] = {}
_lock = threading.Lock()
