"""Imports between modules: none from a higher floor, none in a circle, none hidden in a string."""

from __future__ import annotations

import ast
import graphlib
import importlib
from pathlib import Path

import pytest

import flax_layers
import jax_gnn
import jax_gnn.extend

# From the ground up; the benchmarks belong to the checkout, not to the installed packages.
FLOORS = (
    "jax_gnn._version",
    "jax_gnn._core",
    "jax_gnn._ops.segment_order",
    "jax_gnn._ops.relation_pairs",
    "jax_gnn.graph",
    "jax_gnn.hypergraph",
    "jax_gnn.relational",
    "jax_gnn.hetero",
    "jax_gnn.batches",
    "jax_gnn._ops",
    "jax_gnn._program",
    "jax_gnn",
    "flax_layers",
    "flax_layers.training",
    "benchmarks",
)
# Functions that import a module by its name.
DYNAMIC = {"import_module", "__import__", "resolve_name"}
# Modules that import what is no Python of this project: compiled modules, optional packages.
OTHERS = {"jax_gnn._core.ffi", "jax_gnn.convert._data"}
ROOTS = {
    "jax_gnn": Path(jax_gnn.__file__).parent,
    "flax_layers": Path(flax_layers.__file__).parent,
    "benchmarks": Path(__file__).parents[1] / "benchmarks",
}


def module_name(package: str, file: Path) -> str:
    parts = file.relative_to(ROOTS[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


FILES = {
    module_name(package, file): file
    for package, root in ROOTS.items()
    for file in root.rglob("*.py")
}


def imports(module: str, *, for_types: bool = True) -> set[str]:
    """Return the project's modules that a module imports anywhere, in functions and by name too.

    Imports under ``if TYPE_CHECKING:`` count unless ``for_types`` is False, as they never run.
    """
    names = set()
    tree = ast.parse(FILES[module].read_text())
    if not for_types:
        tree.body = [
            statement
            for statement in tree.body
            if not (
                isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
            )
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has an import of a relative name"
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {member if member in FILES else str(node.module) for member in members}
        elif isinstance(node, ast.Call) and called_name(node) in DYNAMIC:
            # The name must be a literal, so that this test sees what is imported.
            literals = [x.value for x in node.args if isinstance(x, ast.Constant)]
            is_seen = literals or module in OTHERS or module.startswith("benchmarks")
            assert is_seen, f"{module}:{node.lineno} imports a module whose name is computed"
            names |= {value for value in literals if isinstance(value, str)}
        elif isinstance(node, ast.Subscript | ast.Call) and "sys.modules" in ast.unparse(node):
            names |= {x.value for x in ast.walk(node) if isinstance(x, ast.Constant)}
    return names & FILES.keys()


def called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def floor(module: str) -> int:
    """Return the index of the longest name in `FLOORS` that is a prefix of the module's."""
    return FLOORS.index(max((s for s in FLOORS if f"{module}.".startswith(f"{s}.")), key=len))


def test_no_import_from_a_higher_floor():
    assert {floor(module) for module in FILES} == {*range(len(FLOORS))}
    arrows = {(module, name) for module in FILES for name in imports(module)}
    assert ("flax_layers.training.models", "flax_layers") in arrows
    assert not [arrow for arrow in sorted(arrows) if floor(arrow[0]) < floor(arrow[1])]
    # Ops on ids, a floor below containers, run the file of the package of all ops.
    assert {floor(name) for name in imports("jax_gnn._ops")} == {FLOORS.index("jax_gnn._core")}


def test_dynamic_imports_are_seen(tmp_path, monkeypatch):
    source = tmp_path / "module.py"
    monkeypatch.setitem(FILES, "jax_gnn.module", source)
    source.write_text('import importlib\nimportlib.import_module("flax_layers.training").save')
    assert imports("jax_gnn.module") == {"flax_layers.training"}
    source.write_text('import sys\nsys.modules["flax_layers.training"].save')
    assert imports("jax_gnn.module") == {"flax_layers.training"}
    source.write_text("from importlib import import_module\nimport_module(name)")
    with pytest.raises(AssertionError, match="whose name is computed"):
        imports("jax_gnn.module")


# Names of `jax_gnn.extend` that one module here takes for all layers, and layers outside may use.
FOR_OUTSIDE_LAYERS = {"row_matmul", "source_pair_rows", "check_finite", "check_number"}


def test_extend_has_what_several_layers_need():
    """Each name of `jax_gnn.extend` is used in two modules, or documented for layers outside."""
    uses = dict.fromkeys(jax_gnn.extend.__all__, 0)
    for module, file in FILES.items():
        for node in ast.walk(ast.parse(file.read_text())) if "flax_layers" in module else ():
            if isinstance(node, ast.ImportFrom) and node.module == "jax_gnn.extend":
                for alias in node.names:
                    uses[alias.name] += 1
    assert {name for name, count in uses.items() if count < 2} == FOR_OUTSIDE_LAYERS
    text = (ROOTS["benchmarks"].parent / "docs" / "own-layer.md").read_text()
    assert all(f"`{name}`" in text for name in FOR_OUTSIDE_LAYERS)
    assert len(uses) <= 20


def test_layers_import_public_names_alone():
    """Modules of `jax_gnn` are internal if a part of their name begins with an underscore."""
    layers = [module for module in FILES if module.startswith("flax_layers")]
    private = {
        (module, name)
        for module in layers
        for name in imports(module)
        if name.startswith("jax_gnn") and "._" in name
    }
    assert len(layers) > 20 and not private


def test_packages_of_one_floor_import_public_names_alone():
    """Subpackages above programs take no internal module of each other."""
    packages = {name for name in FILES if floor(name) == FLOORS.index("jax_gnn") and "." in name}
    packages = {".".join(name.split(".")[:2]) for name in packages}
    private = {
        (module, name)
        for module in FILES
        for name in imports(module)
        if (package := ".".join(name.split(".")[:2])) in packages - {"jax_gnn._tuning"}
        and not f"{module}.".startswith(f"{package}.")
        and "._" in name.removeprefix(package)
        and not module.startswith("benchmarks")
    }
    # The command has subcommands of packages, loaders read tables of any kind, parts are sampled.
    assert private == {
        ("jax_gnn.cli", "jax_gnn.sharding._command"),
        ("jax_gnn.datasets._edge_files", "jax_gnn.convert._columns"),
    } | {
        (f"jax_gnn.{module}", f"jax_gnn.{name}")
        for module, names in {
            "datasets._csv": ("convert._columns", "convert._kinds", "convert._names"),
            "datasets._table_features": ("convert._columns", "convert._kinds"),
            "datasets._table_files": (
                *("convert._columns", "convert._kinds", "convert._names", "convert._table"),
            ),
            "sharding._cached_rows": ("sampling._neighbors", "sampling._relational"),
            "sharding._host_samples": ("sampling._prefetch", "sampling._rows"),
            "sharding._samples": (
                *("sampling._loader", "sampling._neighbors", "sampling._relational"),
                "sampling._rows",
            ),
        }.items()
        for name in names
    }


@pytest.mark.parametrize("package", ROOTS)
def test_no_modules_import_each_other(package):
    modules = [module for module in FILES if module.partition(".")[0] == package]
    arrows = {module: imports(module, for_types=False) for module in modules}
    graphlib.TopologicalSorter(arrows).prepare()


def test_a_name_from_before_says_where_it_is():
    with pytest.raises(ImportError, match=r"jax_gnn\.training is flax_layers\.training now"):
        importlib.import_module("jax_gnn.training")


def test_scipy_is_imported_where_it_is_used():
    """scipy takes as long to import as this library, so that lower floors import it when called."""
    highest = FLOORS.index("jax_gnn._program")
    for module in FILES:
        if floor(module) <= highest:
            body = ast.parse(FILES[module].read_text()).body
            names = {n.name for x in body if isinstance(x, ast.Import) for n in x.names}
            names |= {str(x.module) for x in body if isinstance(x, ast.ImportFrom)}
            assert not {name for name in names if name.split(".")[0] == "scipy"}, module
