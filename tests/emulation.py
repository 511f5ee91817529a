"""CUDA kernels on a machine without a GPU: those of ``cpp/emulator``, in place of the CPU's.

With ``JAX_GNN_EMULATE_CUDA=1`` in the environment, and a build with
``-C cmake.define.JAX_GNN_EMULATE_CUDA=ON``, ``implementation="cuda"`` runs them inside programs for
the CPU: what JAX is told, handlers and kernels are those of a GPU; only time is another.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from typing import Any

import jax
from jax.interpreters import mlir

from jax_gnn._core import ffi, op
from jax_gnn._ops.edge_region import cuda_compile, primitive  # noqa: F401  (defines its ops)

WANTED = os.environ.get("JAX_GNN_EMULATE_CUDA") == "1"


def target(name: str) -> str:
    """Return the target of a CUDA kernel, emulated or not."""
    return f"{ffi.TARGET_PREFIX}{'emulated_' if WANTED else ''}{name}"


def _install() -> None:
    """Make ``implementation="cuda"`` mean the emulated kernels."""
    module = importlib.import_module("jax_gnn._cuda_emulated")
    targets = module.targets()
    names = {name: f"emulated_{name}" for name in targets}
    for name, handler in targets.items():
        target = ffi.TARGET_PREFIX + names[name]
        jax.ffi.register_ffi_target(target, handler, platform="cpu")
    ffi.shared_memory = module.shared_memory
    cuda_compile.compiler = _host_compiler
    cuda_compile.missing = lambda: None
    cuda_compile.architecture = lambda: "host"
    ffi.STATUS["cuda"] = ffi.PlatformStatus("cuda", True, tuple(names.values()))
    # The same primitives get a lowering that passes the platform "cuda" on a CPU.
    for record in op.OPS.values():
        emulated = copy.copy(record)  # of the same primitive: construction would make another
        object.__setattr__(emulated, "name", names.get(record.name, record.name))
        lower = functools.partial(_lower, record, emulated)
        mlir.register_lowering(record.primitive, lower, platform="cpu")


def _host_compiler(text: str, arch: str, fma: bool) -> cuda_compile.Binary:
    """A shared object in place of a cubin, which the emulator's `cudaLibraryLoadData` opens."""
    del arch, fma
    root = pathlib.Path(__file__).parents[1] / "cpp"
    source = '#include "region_text.h"\n' + cuda_compile.source_of(text)
    source += f"JAX_GNN_REGION(region, {cuda_compile.kernel_name(text)})\n"
    # Cache by source and headers, as a compilation takes seconds.
    key = hashlib.sha256(source.encode())
    for path in sorted([*root.glob("kernels/cuda/*.cuh"), *root.glob("emulator/*")]):
        key.update(path.read_bytes())
    library = (
        pathlib.Path.home() / ".cache" / "jax_gnn" / "tests" / f"region-{key.hexdigest()[:32]}.so"
    )
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            path = pathlib.Path(folder)
            (path / "text.cc").write_text(source)
            command = [
                *shlex.split(os.environ.get("CXX", "c++")),
                "-std=c++17",
                "-O0",
                "-w",
                "-shared",
                "-fPIC",
                "-fvisibility=hidden",
                "-s",
                "-DJAX_GNN_EMULATED",
                f"-I{root / 'emulator'}",
                f"-I{root / 'kernels' / 'cuda'}",
                str(path / "text.cc"),
                "-o",
                str(path / "text.so"),
            ]
            process = subprocess.run(command, capture_output=True, text=True)
            if process.returncode:
                raise cuda_compile.CompilerError(process.stderr)
            os.replace(path / "text.so", library)
    code = library.read_bytes()
    return cuda_compile.Binary(len(code).to_bytes(8, sys.byteorder) + code, "region")


def _lower(of_cpu: op.Op, emulated: op.Op, *operands, implementation, **params) -> Any:
    chosen, platform = (emulated, "cuda") if implementation == "cuda" else (of_cpu, "cpu")
    return op.lower(chosen, platform, *operands, implementation=implementation, **params)


if WANTED:
    _install()
