"""Which module imports which: no arrow runs back up, and none in a circle."""

from __future__ import annotations

import ast
import graphlib
import importlib
from pathlib import Path

import pytest

import flax_layers
import jax_gnn

# From the ground up; the benchmarks belong to the checkout, not to the installed packages.
FLOORS = (
    *(
        "jax_gnn._version",
        "jax_gnn._core",
        "jax_gnn.graph",
        "jax_gnn.hypergraph",
        "jax_gnn.relational",
        "jax_gnn.hetero",
        "jax_gnn.batches",
        "jax_gnn._ops",
        "jax_gnn._program",
    ),
    *("jax_gnn", "flax_layers", "flax_layers.training", "benchmarks"),
)
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


def imports(module: str) -> set[str]:
    """The modules of this project that one imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} has an import of a relative name"
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in FILES else str(node.module) for name in names}
    return found & FILES.keys()


def floor(module: str) -> int:
    """Of the longest of the names that begin the module's."""
    return FLOORS.index(max((s for s in FLOORS if f"{module}.".startswith(f"{s}.")), key=len))


def test_no_import_runs_back_up():
    assert {floor(module) for module in FILES} == {*range(len(FLOORS))}
    arrows = {(module, name) for module in FILES for name in imports(module)}
    assert ("flax_layers.training.models", "flax_layers") in arrows
    assert not [arrow for arrow in sorted(arrows) if floor(arrow[0]) < floor(arrow[1])]


def test_layers_import_public_names_alone():
    """Of `jax_gnn`, whose internal modules begin with an underscore, or are in such a folder."""
    layers = [module for module in FILES if module.startswith("flax_layers")]
    private = {
        (module, name)
        for module in layers
        for name in imports(module)
        if name.startswith("jax_gnn") and "._" in name
    }
    assert len(layers) > 20 and not private


@pytest.mark.parametrize("package", ROOTS)
def test_no_modules_import_each_other(package):
    modules = [module for module in FILES if module.partition(".")[0] == package]
    graphlib.TopologicalSorter({module: imports(module) for module in modules}).prepare()


def test_a_name_from_before_says_where_it_is():
    with pytest.raises(ImportError, match=r"jax_gnn\.training is flax_layers\.training now"):
        importlib.import_module("jax_gnn.training")


def test_scipy_is_imported_where_it_is_used():
    """It takes as long as the rest of this library: whoever never meets its matrices waits less."""
    below = FLOORS.index("jax_gnn._program")
    for module in FILES:
        if floor(module) <= below:
            body = ast.parse(FILES[module].read_text()).body
            names = {n.name for x in body if isinstance(x, ast.Import) for n in x.names}
            names |= {str(x.module) for x in body if isinstance(x, ast.ImportFrom)}
            assert not {name for name in names if name.split(".")[0] == "scipy"}, module
