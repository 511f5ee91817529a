"""Public signatures use the terms of docs/terms.md, with their defaults, structure first."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "terms.md"
MODULES = (
    *("jax_gnn", "jax_gnn.datasets", "jax_gnn.convert", "jax_gnn.transforms", "jax_gnn.sampling"),
    *("jax_gnn.sharding", "jax_gnn.insight", "flax_layers", "flax_layers.training"),
)
STRUCTURES = ("graph", "hypergraph", "batch")
# Names that say nothing of the argument.
VAGUE = {"given", "found", "made", "kept", "told", "own", "other", "last", "right", "wrong", "both"}


def rows() -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield terms, default and refused names of each row of the table."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            yield re.findall(r"`(\w+)`", cells[0]), cells[2], re.findall(r"`(\w+)`", cells[3])


def signatures() -> dict[str, inspect.Signature]:
    """Return the signatures of all public functions, constructors and public methods."""
    results = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            members = {name: value} if callable(value) else {}
            if inspect.isclass(value) and value.__module__.startswith(("jax_gnn", "flax_layers")):
                members |= {
                    f"{name}.{key}": getattr(value, key)
                    for key, member in vars(value).items()
                    if key == "__call__" or not key.startswith("_")
                    if callable(member) or isinstance(member, classmethod | staticmethod)
                }
            for key, member in members.items():
                try:
                    results[f"{module.__name__}.{key}"] = inspect.signature(member)
                except ValueError:  # of a type that C defines
                    continue
    return results


SIGNATURES = signatures()


def test_the_table_is_read():
    terms = [term for names, _, _ in rows() for term in names]
    assert len(terms) > 20 and len(set(terms)) == len(terms)
    assert len(SIGNATURES) > 300


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0][0])
def test_one_name_and_one_default(row):
    terms, default, refused = row
    for name, signature in SIGNATURES.items():
        for parameter in signature.parameters.values():
            assert parameter.name not in refused, f"{name}: {parameter.name} is {terms[0]}"
            if (
                parameter.name in terms
                and default != "-"
                and parameter.default is not parameter.empty
            ):
                shown = re.sub("'", '"', repr(parameter.default))
                assert shown == default, f"{name}: {parameter}"


def test_names_say_what_arguments_are():
    for name, signature in SIGNATURES.items():
        assert not VAGUE & signature.parameters.keys(), name


def test_structure_comes_first():
    for name, signature in SIGNATURES.items():
        names = [key for key in signature.parameters if key not in ("self", "args")]
        for structure in set(names) & set(STRUCTURES):
            is_required = signature.parameters[structure].default is inspect.Parameter.empty
            if is_required and "x" in names:
                assert names.index(structure) < names.index("x"), f"{name}{signature}"
