"""The installation: modules, versions, and the messages if they do not fit together."""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import pytest

import jax_gnn
from flax_layers import _installation
from jax_gnn import _cpu, cli
from jax_gnn._core import ffi, refusal

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CUDA_PROJECT = tomllib.loads((ROOT / "packaging" / "cuda13" / "pyproject.toml").read_text())
OLDEST_FFI = (0, 3)  # jaxlib 0.10's


# --- Versions ------------------------------------------------------------------------------------


def test_built_with_the_oldest_headers() -> None:
    """Handlers built with newer headers are refused by older jaxlibs that pip accepts."""
    oldest = ".".join(map(str, refusal.OLDEST_JAX))
    assert f"jax>={oldest}" in PROJECT["project"]["dependencies"]
    for build in (PROJECT, CUDA_PROJECT):
        names = [requirement.partition(";")[0] for requirement in build["build-system"]["requires"]]
        assert f"jaxlib=={oldest}.0" in names
    assert _cpu.ffi_version == OLDEST_FFI


def test_one_version_for_all() -> None:
    version = jax_gnn.__version__
    extra = PROJECT["project"]["optional-dependencies"]["cuda13"]
    assert extra == [f"{ffi.CUDA_PACKAGE}=={version}", "jax[cuda13]>=0.10"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert PROJECT["tool"]["scikit-build"]["wheel"] == {
        "packages": ["jax_gnn", "flax_layers"],
        **{"py-api": CUDA_PROJECT["tool"]["scikit-build"]["wheel"]["py-api"]},
    }


def test_wheels_of_all_supported_pythons() -> None:
    """The workflow builds and tests both distributions with each Python."""
    for build in (PROJECT, CUDA_PROJECT):
        assert build["project"]["requires-python"] == ">=3.11"
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text()
    assert 'python: ["3.11", "3.12"]' in workflow
    step = re.search(r"- if: (.*)\n +run: \.ci/wheel wheels cuda13", workflow)
    assert step is not None and "python" not in step[1]
    assert "jax_gnn_kernels_cuda13-*" in (ROOT / ".ci/test").read_text()


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ({}, ""),
        ({"CMAKE_HOST_WIN32": "ON"}, "not for Windows: install it in WSL 2"),
        ({"CMAKE_HOST_APPLE": "ON", "JAX_GNN_PROCESSOR": "x86_64"}, "not for macOS on x86_64"),
        ({"CMAKE_HOST_APPLE": "ON", "JAX_GNN_PROCESSOR": "arm64"}, ""),
        ({"musl": "ON"}, "not for musl"),
    ],
    ids=str,
)
def test_unsupported_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: dict[str, str], message: str
) -> None:
    cmake = shutil.which("cmake")
    if cmake is None or sys.platform != "linux":
        pytest.skip("needs cmake, on Linux")
    if "musl" in system:
        (tmp_path / "getconf").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "getconf").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
    # The script runs without a project, on made-up variables of the host.
    variables = [f"-D{name}={value}" for name, value in system.items()]
    run = [cmake, *variables, "-P", str(ROOT / "cmake/platform.cmake")]
    process = subprocess.run(run, capture_output=True, text=True)
    assert (process.returncode == 0) is (message == "")
    assert message in " ".join(process.stderr.split())


@pytest.mark.parametrize("version", ["0.9.2", "0.10.0", "1.0.0.dev3"])
def test_old_jax_is_refused(version: str) -> None:
    if version != "0.9.2":
        return refusal.refuse_old_jax(version)
    with pytest.raises(ImportError, match=r"^jax_gnn needs jax 0\.10 or later, not 0\.9\.2; run: "):
        refusal.refuse_old_jax(version)


NEWER_FFI = "its handlers are of XLA's FFI 99.1, and jaxlib [0-9.]+ has 0.[0-9]+"


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_handlers_newer_than_jaxlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], platform
) -> None:
    """JAX takes them until a backend starts, which then fails with everything else on it."""
    module = types.SimpleNamespace(ffi_version=(99, 1))  # no targets: asking for them fails
    status = ffi._register(module, platform, "by a compiler")
    assert (status.available, status.targets) == (False, ())
    assert re.fullmatch(NEWER_FFI, status.reason or "")
    monkeypatch.setitem(ffi.STATUS, platform, status)
    assert cli.main(["info"]) == 0
    assert re.search(f"{platform} is missing: {NEWER_FFI}", capsys.readouterr().out)
    if platform == jax.default_backend():
        with pytest.warns(RuntimeWarning, match=NEWER_FFI):
            jax.jit(lambda x: jax_gnn.segment_sum(x, jax.numpy.zeros(5, int), 1))(jax.numpy.ones(5))


def test_ffi_version_of_jaxlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert OLDEST_FFI <= ffi._ffi_version() < (99, 0)
    monkeypatch.setattr(ffi.jaxlib, "__file__", str(tmp_path / "__init__.py"))
    assert ffi._ffi_version() == ()  # without headers all handlers are registered


# --- Modules of another Python, processor or folder ----------------------------------------------


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a folder without modules in the place of the package, first on the path."""
    package = tmp_path / "jax_gnn"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(ffi, "_FOLDER", package.resolve())
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    ffi._module.cache_clear()
    yield package.resolve()
    ffi._module.cache_clear()


def import_failure(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> str:
    def load(name: str) -> Any:
        raise error

    monkeypatch.setattr(ffi, "_load", load)
    with pytest.raises(ImportError) as raised:
        ffi._load_cpu()
    message = str(raised.value)
    assert message.startswith("jax_gnn cannot be used: ") and "\n" not in message
    return message.removeprefix("jax_gnn cannot be used: ")


def test_missing_module(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    message = import_failure(monkeypatch, ModuleNotFoundError("no jax_gnn._cpu"))
    assert message.startswith(f"{folder} has no compiled module _cpu: python -m pip install ")


def test_source_folder(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").touch()
    message = import_failure(monkeypatch, ModuleNotFoundError("no jax_gnn._cpu"))
    assert message == (
        f"{folder} is a source folder: pip install {folder.parent}, and start Python elsewhere"
    )


def test_source_folder_before_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "CMakeLists.txt").touch()
    installed = tmp_path / "site-packages" / "jax_gnn"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / "_cpu.abi3.so").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed.parent)])
    message = import_failure(monkeypatch, ModuleNotFoundError("no jax_gnn._cpu"))
    assert message == (
        f"{folder} is not built, and goes before {installed.resolve()} on the path: "
        "start Python elsewhere"
    )


def test_module_of_another_python(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "_cpu.cpython-39-x86_64-linux-gnu.so").touch()
    message = import_failure(monkeypatch, ModuleNotFoundError("no jax_gnn._cpu"))
    of = f"of another Python or processor than {sys.implementation.cache_tag} on "
    assert message.startswith(f"{folder}/_cpu.cpython-39-x86_64-linux-gnu.so is {of}")
    assert "pip install --force-reinstall" in message


def test_damaged_module(folder: Path) -> None:
    """Python's own loader refuses a file that is no module for this processor."""
    file = folder / "_cpu.abi3.so"
    file.write_bytes(b"\x7fELF of another processor")
    # The loader of Python must run, so a module that was loaded before is forgotten.
    sys.modules.pop("_cpu", None)
    finder = importlib.machinery.PathFinder.find_spec("_cpu", [str(folder)])
    with pytest.raises(ImportError) as raised:
        importlib.util.module_from_spec(finder)
    message = ffi._why_missing("_cpu", raised.value)
    assert message.startswith(f"{file} is damaged, or of another Python or processor than ")
    assert "pip install --force-reinstall" in message and "\n" not in message


def test_another_copy_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    duplicate = tmp_path.resolve() / "jax_gnn"
    duplicate.mkdir()
    (duplicate / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert ffi.package_copies()[0] == Path(jax_gnn.__file__).resolve().parent
    assert ffi.package_copies()[-1] == duplicate
    assert cli.main(["info"]) == 0
    assert f"{duplicate} is another copy, unused: remove one" in capsys.readouterr().out


@pytest.mark.parametrize("file", [*map(str, refusal.STRANGERS_FILES), "__init__.py", "graph.py"])
def test_files_of_another_package_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    """PyPI's jax-gnn, whose import package has the same name, and what its removal leaves."""
    if file != "__init__.py":
        (tmp_path / "__init__.py").touch()
    if file == "graph.py":  # a file of this package
        return refusal.refuse_stranger(tmp_path)
    problem = "has no __init__.py: "
    if file != "__init__.py":
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
        problem = "has files of another package, jax-gnn on PyPI"
    line = re.escape(f"{tmp_path} {problem}") + ".*pip install"
    monkeypatch.setattr(sys, "argv", ["python"])
    with pytest.raises(ImportError, match=line):
        refusal.refuse_stranger(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/jax-gnn"])
    with pytest.raises(SystemExit, match=f"^jax-gnn: error: {line}"):
        refusal.refuse_stranger(tmp_path)
    package = Path(jax_gnn.__file__).parent
    assert not any((package / name).exists() for name in refusal.STRANGERS_FILES)


INSTALLATION = str(Path(_installation.__file__))


@pytest.mark.parametrize("installed_last", ["jax-gnn-kernels", "jax-gnn", None])
@pytest.mark.parametrize("is_editable", [False, True])
def test_layers_and_command_check_before_they_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_editable: bool, installed_last: str | None
) -> None:
    """`jax_gnn` belongs to another project, or is a folder without __init__.py."""
    # The checks themselves are imported from the real package.
    (tmp_path / "_core").symlink_to(Path(jax_gnn.__file__).parent / "_core")
    if installed_last == "jax-gnn":
        (tmp_path / "nn/conv").mkdir(parents=True)
        (tmp_path / refusal.STRANGERS_FILES[0]).touch()
    if installed_last is not None:
        (tmp_path / "__init__.py").write_text("raise SystemError('never imported')")
    # Compiled modules alone lie in the first folder of an editable installation.
    (tmp_path / "site-packages/include").mkdir(parents=True)
    (tmp_path / "site-packages/_cpu.abi3.so").touch()
    locations = [str(tmp_path)]
    if is_editable:
        locations.insert(0, str(tmp_path / "site-packages"))
    spec = types.SimpleNamespace(submodule_search_locations=locations)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    if installed_last == "jax-gnn-kernels":
        assert runpy.run_path(INSTALLATION)["nnx"] is _installation.nnx
        return
    with pytest.raises(ImportError, match=re.escape(str(tmp_path))):
        runpy.run_path(INSTALLATION)
    assert PROJECT["project"]["scripts"] == {"jax-gnn": "flax_layers._installation:main"}


@pytest.mark.parametrize("error", ["AttributeError", "ImportError", "ModuleNotFoundError"])
def test_old_flax_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str) -> None:
    """Flax bounds JAX from below alone, and its import fails with a JAX that is newer."""
    (tmp_path / "flax.py").write_text(f"raise {error}('jax has no HiPrimitive')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flax")
    line = "^jax has no HiPrimitive"
    if error != "ModuleNotFoundError":  # ModuleNotFoundError: a requirement of Flax
        line = r"^flax [\d.]+ cannot be imported with jax .*Hi.*; run: pip install --upgrade flax"
    with pytest.raises(ImportError, match=line):
        runpy.run_path(INSTALLATION)


# --- The CUDA module, built here or in a distribution of its own ---------------------------------


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Fake the environment of `_load_cuda`: build, error, version of the distribution."""
    environment = types.SimpleNamespace(build="", error=None, version=None, entry_points=1)
    module = types.SimpleNamespace(
        ffi_version=(0, 1), compiler="nvcc", architectures="90", targets=dict
    )

    def load(name: str) -> Any:
        if name == "_cpu":
            return types.SimpleNamespace(cuda_build=environment.build)
        return loaded()

    def loaded() -> Any:
        if environment.error:
            raise environment.error
        return module

    class Points(list):
        def select(self, group: str) -> Any:
            return self if group == "jax_gnn.cuda" else []

    # The distribution is absent unless it has a version.
    def distribution(name: str) -> Any:
        if name != ffi.CUDA_PACKAGE or environment.version is None:
            raise metadata.PackageNotFoundError(name)
        points = Points([types.SimpleNamespace(load=loaded)] * environment.entry_points)
        return types.SimpleNamespace(version=environment.version, entry_points=points)

    monkeypatch.setattr(ffi, "_load", load)
    monkeypatch.setattr(ffi.metadata, "distribution", distribution)
    ffi._module.cache_clear()
    yield environment
    ffi._module.cache_clear()


VERSION = jax_gnn.__version__


@pytest.mark.parametrize(
    ("build", "version", "reason", "hint"),
    [
        ("", None, None, ""),
        ("no compiler", VERSION, None, ""),
        (
            "no compiler",
            None,
            "no compiler",
            "pip install 'jax-gnn-kernels[cuda13]'; or build from",
        ),
        (
            "no compiler",
            "99.0",
            f"jax-gnn-kernels-cuda13 is 99.0, jax-gnn-kernels {VERSION}",
            "pip install --force-reinstall --no-deps "
            f"jax-gnn-kernels=={VERSION} jax-gnn-kernels-cuda13=={VERSION}",
        ),
    ],
    ids=["built", "distribution", "missing", "another version"],
)
def test_cuda_module(
    cuda: types.SimpleNamespace, build: str, version: str | None, reason: str | None, hint: str
) -> None:
    cuda.build, cuda.version = build, version
    status = ffi._load_cuda()
    assert (status.available, status.reason) == (reason is None, reason)
    if status.available:
        assert status.build == "nvcc, architectures 90"
    else:
        assert status.targets == () and hint in str(status.hint)


@pytest.mark.parametrize("problem", ["entry point", "module", "version"])
def test_damaged_cuda_package(cuda: types.SimpleNamespace, problem: str) -> None:
    cuda.build, cuda.version = "no compiler", jax_gnn.__version__
    reason = "is damaged: "
    if problem == "entry point":
        cuda.entry_points = 0
    elif problem == "module":  # an entry point that names none
        cuda.error = AttributeError("'NoneType' object has no attribute 'group'")
    else:
        cuda.version, reason = "", "is of an unknown version, jax-gnn-kernels "
    status = ffi._load_cuda()
    assert status.reason.startswith(f"jax-gnn-kernels-cuda13 {reason}")
    assert status.hint.startswith("pip install --force-reinstall --no-deps jax-gnn-kernels==")


@pytest.mark.parametrize("separate", [False, True])
def test_broken_cuda_module(cuda: types.SimpleNamespace, separate: bool) -> None:
    cuda.error = ImportError("libsomething.so: cannot open shared object file")
    if separate:
        cuda.build, cuda.version = "no compiler", jax_gnn.__version__
    status = ffi._load_cuda()
    assert (status.available, status.targets) == (False, ())
    assert status.reason == "libsomething.so: cannot open shared object file"
    assert ("jax-gnn-kernels-cuda13==" in str(status.hint)) is separate


@pytest.mark.parametrize(
    ("plugin", "driver", "gpu", "reason"),
    [
        (False, False, False, r"JAX is a build for CPUs: pip install 'jax\[cuda13\]'"),
        (True, False, False, r"there is no NVIDIA driver \(libcuda\.so\.1\): install one"),
        (True, True, False, "the driver finds no GPU: see what nvidia-smi lists"),
        (True, True, True, "JAX does not use the GPU: see what it warned of"),
    ],
)
def test_cuda_kernels_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plugin: bool,
    driver: bool,
    gpu: bool,
    reason: str,
) -> None:
    if jax.default_backend() == "gpu":
        return None if ffi.why_no_gpu() is None else pytest.fail(str(ffi.why_no_gpu()))

    def library(name: str) -> None:
        assert name == "libcuda.so.1"
        if not driver:
            raise OSError(name)

    module = types.SimpleNamespace(shared_memory=lambda: 1 << 17 if gpu else 0)
    with monkeypatch.context() as patch:
        patch.setattr(ffi.importlib.util, "find_spec", lambda name: name if plugin else None)
        patch.setattr(ffi.ctypes, "CDLL", library)
        patch.setattr(ffi, "_module", lambda platform: module)
        patch.setitem(ffi.STATUS, "cuda", ffi.PlatformStatus("cuda", True, (), build="nvcc 13"))
        assert re.match(reason, ffi.why_no_gpu() or "")
        assert cli.main(["info"]) == 0
    assert re.search(rf"cuda: nvcc 13\n    not used: {reason}", capsys.readouterr().out)


# --- Import --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "after"),
    [("jax_gnn", "jax, jax.export, jax.extend.core"), ("flax_layers", "jax, flax.nnx, jax_gnn")],
)
def test_imported_modules(package: str, after: str) -> None:
    """Count imported modules: unlike time, they do not depend on the machine."""
    code = (
        f"import sys, {after}; before = set(sys.modules); import {package}; "
        "print(*sorted({m for m in sys.modules if m not in before}))"
    )
    run = [sys.executable, "-P", "-c", code]
    modules = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    allowed = {"jax", "jaxlib", "flax", "jax_gnn", "flax_layers"}
    packages = {name.partition(".")[0] for name in modules} - allowed
    # Imports of packages that neither JAX nor Flax bring would slow every start.
    third_party = packages - sys.stdlib_module_names
    assert third_party <= set(), third_party
    assert len([name for name in modules if name.startswith("jax_gnn")]) < 150
