"""Layouts of folders of tables, by the names of their files."""

from __future__ import annotations

import re
from pathlib import Path

from jax_gnn.datasets._check import locate

SUFFIXES = "csv", "csv.gz", "csv.zst", "tsv", "tsv.gz", "tsv.zst", "parquet", "arrow", "feather"
_SUFFIX = rf"\.({'|'.join(map(re.escape, SUFFIXES))})"
_TABLE = re.compile(rf"(?P<name>.*?)(?P<part>nodes|hyperedges|edges|graphs){_SUFFIX}").fullmatch
_TYPE = re.compile(rf"(?P<type>.+?){_SUFFIX}").fullmatch


def layout_of(path: Path) -> str:
    """Return "graph", "hypergraph", "graphs", "types", or "edges" for edges alone; "" elsewhere.

    Raises:
        ValueError: A folder has tables of two layouts.
    """
    parts = {match["part"]: match.string for match in _tables(path)}
    if path.is_dir() and any((path / part).is_dir() for part in ("nodes", "edges")):
        parts |= {"types": "the folders nodes and edges"}
    elif path.is_dir() and "nodes" in parts and (lists := sorted(path.glob("*.hgr"))):
        parts.setdefault("hyperedges", lists[0].name)
    layouts = {"types": "types", "hyperedges": "hypergraph", "graphs": "graphs"}
    part = next((part for part in layouts if part in parts), "")
    beside = {"types": (), "hyperedges": ("nodes",)}.get(part, (*parts,))
    if surplus := [name for other, name in parts.items() if other not in (part, *beside)]:
        raise ValueError(
            f"{path} has {parts[part]}, and beside it {surplus[0]}, which is another layout of "
            "tables: separate them"
        )
    is_alone = [*parts] == ["edges"] or (path.is_file() and not parts and _TYPE(path.name))
    return "edges" if is_alone else layouts.get(part, "graph" * bool(parts))


def _tables(path: Path) -> list[re.Match[str]]:
    """Return matches of the names of the tables in a folder, or beside one of them."""
    if path.is_dir():
        return [match for file in sorted(path.iterdir()) if (match := _TABLE(file.name))]
    this = _TABLE(path.name)
    if this is None or not path.parent.is_dir():
        return []
    return [match for match in _tables(path.parent) if match["name"] == this["name"]]


def locate_tables(path: Path, *parts: str) -> list[Path]:
    """Return the tables of the parts of a graph, from their folder or one of them."""
    matches, folder = _tables(path), path if path.is_dir() else path.parent
    if [*parts] == ["edges"]:
        return [folder / matches[0].string if matches else path]
    files = {match["part"]: folder / match.string for match in matches}
    is_one = len({match["name"] for match in matches}) == 1 and len(files) == len(matches)
    if "hyperedges" in {*parts} - files.keys() and path.is_dir():
        lists = sorted(path.glob("*.hgr"))
        if len(lists) > 1:
            raise ValueError(f"{path} has {lists[0].name} and {lists[1].name}: keep one")
        files |= dict(zip(["hyperedges"], lists, strict=False))
    if not is_one or not {*parts} <= files.keys():
        # Errors of this function say what is wrong.
        return locate(path, *(("", f"{part}.csv") for part in parts))
    return [files[part] for part in parts]


def type_tables(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder with a file for each type, by type."""
    tables: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _TYPE(file.name)
        if match and (other := tables.setdefault(match["type"], file)) != file:
            raise ValueError(f"{folder} has {other.name} and {file.name}: keep one")
    if not tables:
        raise ValueError(f"{folder.parent} has no tables by type, {folder.name}/TYPE.csv")
    return tables


def dataset_name(path: Path, table: Path) -> str:
    """Return the name of a dataset: that before "nodes" in the table's, or that of the folder."""
    match, folder = _TABLE(table.name), path if path.is_dir() else path.parent
    stem = match["name"].rstrip("-_.") if match else table.name.partition(".")[0]
    return stem or folder.absolute().name
