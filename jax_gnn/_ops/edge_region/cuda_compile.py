"""Compiles texts at run time: NVRTC by way of ``cuda-core``, which also keeps what was compiled.

Needs the extra ``jax-gnn-kernels[program]``, and no GPU. Compiled texts are in
``$XDG_CACHE_HOME/jax_gnn/kernels`` (``~/.cache/...``), at most 256 MiB of them. Each file begins
with a digest of the rest: a damaged one is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jax_gnn._core import schedule_cache

_CACHE_BYTES = 256 << 20
_DIGEST_BYTES = 32
_NAMESPACE = "jax_gnn::cuda"


class CompilerError(Exception):
    """A text that the compiler refuses; its message is the compiler's."""


@dataclass(frozen=True)
class Binary:
    """A compiled text.

    Attributes:
        code: a cubin.
        name: of its kernel.
    """

    code: bytes
    name: str

    @property
    def digest(self) -> str:
        """What tells it from all others."""
        return hashlib.sha256(self.code).hexdigest()


@functools.cache
def missing() -> str | None:
    """Why there is no compiler, if so."""
    try:
        core = importlib.import_module("cuda.core")
        importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except Exception as error:  # libraries that cannot be loaded raise all kinds
        return f"no runtime compiler ({error}); pip install 'jax-gnn-kernels[program]'"
    return None if hasattr(core, "Program") else "cuda-core is too old, 1.0 is needed"


def architecture() -> str | None:
    """What kernels are compiled for, as ``"90"``: JAX's first GPU; None if there is none."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
    return str(device.compute_capability).replace(".", "")


def takes_maps() -> bool:
    """Whether kernels have linear maps: there is a compiler, and tensor cores take float32."""
    arch = architecture() or "90"  # without a GPU, what one would do
    return missing() is None and (not arch.isdigit() or int(arch) >= 80)


def source_of(text: str) -> str:
    """All that is compiled."""
    includes = '#include "edge_region.cuh"'
    return f"{includes}\nnamespace {_NAMESPACE} {{\nnamespace {{\n{text}}}\n}}\n"


@functools.cache
def headers() -> Path:
    """Where the headers are that texts include: installed, or in the source folder."""
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


def compile_text(text: str, arch: str, *, fma: bool) -> Binary:
    """Compiles the text of a message for an architecture, or finds it compiled.

    Args:
        text: see :mod:`jax_gnn._ops.edge_region.cuda_text`.
        arch: as of :func:`architecture`.
        fma: whether products may be contracted with sums, here so and there otherwise.

    Raises:
        CompilerError: the compiler refuses it.
    """
    key = text, arch, fma
    if key not in _binaries:  # two threads may both compile it, to the same bytes
        _binaries[key] = compiler(text, arch, fma)
    return _binaries[key]


def _nvrtc(text: str, arch: str, fma: bool) -> Binary:
    core = importlib.import_module("cuda.core")
    root, source = headers(), source_of(text)
    options = core.ProgramOptions(
        std="c++17",
        arch=f"sm_{arch}",
        include_path=[str(root / "kernels" / "cuda"), str(root / "rtc")],
        device_as_default_execution_space=True,
        fma=fma,
        prec_div=False,
        prec_sqrt=False,
        frandom_seed=hashlib.sha256(source.encode()).hexdigest()[:16],  # of names, else the time
    )
    message, op, rows = (
        f"{_NAMESPACE}::{name}<{_NAMESPACE}::Text>"
        for name in ("RegionMessage", "RegionOp", "RegionRows")
    )
    kernel = f"{_NAMESPACE}::reduce_kernel<{message}, {op}, {rows}>"

    def build() -> bytes:
        try:
            program = core.Program(source, "c++", options)
            return bytes(program.compile("cubin", name_expressions=(kernel,)).code)
        except Exception as error:
            raise CompilerError(str(error)) from error

    code = _kept(source, options, build)
    names = set(re.findall(rb"\.nv\.constant0\.([\w$.]+)\0", code))
    if len(names) != 1:
        raise CompilerError("the compiled text has no kernel")
    return Binary(code, names.pop().decode())


def _kept(source: str, options: Any, build: Callable[[], bytes]) -> bytes:
    """What is in the cache, or what is built and put there."""
    utils = importlib.import_module("cuda.core.utils")
    if not hasattr(utils, "FileStreamProgramCache"):  # before 1.0
        return build()
    try:
        folder = schedule_cache.path().parent / "kernels"
        cache = utils.FileStreamProgramCache(folder, max_size_bytes=_CACHE_BYTES)
    except OSError as error:
        warnings.warn(f"kernels are compiled, but not kept: {error}", RuntimeWarning, stacklevel=2)
        return build()
    key = utils.make_program_cache_key(
        code=source,
        code_type="c++",
        options=options,
        target_type="cubin",
        extra_digest=_headers_digest(),
    )
    with cache:
        found = bytes(cache.get(key, b""))
        digest, code = found[:_DIGEST_BYTES], found[_DIGEST_BYTES:]
        if code and hashlib.sha256(code).digest() == digest:
            return code
        code = build()
        try:
            cache[key] = hashlib.sha256(code).digest() + code
        except OSError as error:
            warnings.warn(f"a kernel cannot be kept: {error}", RuntimeWarning, stacklevel=2)
        return code


# What compiles, and its results of this process. Tests put another compiler here.
compiler: Callable[[str, str, bool], Binary] = _nvrtc
_binaries: dict[tuple[str, str, bool], Binary] = {}
