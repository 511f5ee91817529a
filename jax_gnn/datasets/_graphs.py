"""Many small graphs in the formats of TUDataset, of GIN's code and of OGB, and OGB's nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn.datasets._check import ID_BYTES, MAX_SIZE, Memory, as_path, blame, locate, require_file
from jax_gnn.datasets._dataset import GraphDataset, GraphsDataset
from jax_gnn.datasets._lines import read_lines

_MOST_VALUES = 512  # of a column of whole numbers that becomes a column for each
_PARTS = {"train": "train_idx", "valid": "val_idx", "test": "test_idx"}


def load_tu(path: str | os.PathLike[str]) -> GraphsDataset:
    """Reads graphs in the format of TUDataset (Morris et al. 2020, arXiv 2007.08663).

    ``NAME_A.txt`` has the ends of an edge on each line and ``NAME_graph_indicator.txt`` the graph
    of each node, both counted from 1. ``NAME_graph_labels.txt`` are classes; where it is missing,
    ``NAME_graph_attributes.txt`` are numbers to regress on. Features are the one-hot
    ``NAME_node_labels.txt`` and ``NAME_node_attributes.txt``; without either, one-hot degrees.
    Labels and attributes of edges are left out.

    Args:
        path: the folder, or one of the files of the first two names.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: the contents are not as above, take too much memory (see
            :mod:`jax_gnn.datasets`), or a folder holds several datasets.
    """
    edges_path, nodes_path = locate(
        as_path("path", path), ("", "_A.txt"), ("", "_graph_indicator.txt")
    )
    name = edges_path.name.removesuffix("_A.txt")
    files = {
        what: edges_path.with_name(f"{name}_{what}.txt")
        for what in ("graph_labels", "graph_attributes", "node_labels", "node_attributes")
    }
    there = {what: file for what, file in files.items() if file.exists()}
    if not there.keys() & {"graph_labels", "graph_attributes"}:
        raise FileNotFoundError(f"{files['graph_labels']} does not exist; it has the labels")
    memory = Memory(edges_path, nodes_path, *there.values())
    graph_of = _numbers(nodes_path, "iu", 1)[:, 0] - 1
    with blame(nodes_path):
        if graph_of.min(initial=0) < 0 or (np.diff(graph_of) < 0).any():
            raise ValueError("expected graphs from 1, one after another")
    ends = _numbers(edges_path, "iu", 2) - 1
    tables = {what: _numbers(file, "iuf") for what, file in there.items()}
    labels, attributes = tables.get("graph_labels"), tables.get("graph_attributes")
    num_graphs = len(labels if labels is not None else attributes)  # type: ignore[arg-type]
    with blame(nodes_path):
        if graph_of.max(initial=-1) >= num_graphs:
            raise ValueError(f"node of graph {graph_of.max() + 1}, but {num_graphs} have labels")
    columns: dict[str, np.ndarray] = {}
    if "node_labels" in tables:
        with blame(files["node_labels"]):
            columns |= _one_hot_columns("label", tables["node_labels"], memory)
    if "node_attributes" in tables:
        columns |= _numbered("attribute", tables["node_attributes"])
    with blame(edges_path.parent):
        for what in ("node_labels", "node_attributes"):
            if what in tables and len(tables[what]) != graph_of.size:
                raise ValueError(
                    f"{files[what].name}: expected {graph_of.size} lines, one for each node, got "
                    f"{len(tables[what])}"
                )
        y: Any
        if labels is not None and labels.shape[1] != 1:
            raise ValueError(
                f"{files['graph_labels'].name}: expected one class on a line, got "
                f"{labels.shape[1]} numbers; numbers to regress on are "
                f"{files['graph_attributes'].name}"
            )
        y, names = (attributes, None) if labels is None else _classes(labels[:, 0])
        if y.ndim == 2:
            y = (y[:, 0] if y.shape[1] == 1 else y).astype(np.float32)
        unused = [*edges_path.parent.glob(f"{name}_edge_*.txt")]
        unused += (
            [files["graph_attributes"]] if labels is not None and attributes is not None else []
        )
        return _dataset(
            *(name, np.bincount(graph_of, minlength=num_graphs), ends.T, columns, memory),
            y=y,
            label_names=names,
            unused=tuple(sorted(file.name for file in unused)),
        )


def load_gin(path: str | os.PathLike[str]) -> GraphsDataset:
    """Reads graphs in the format of the code of GIN (Xu et al. 2019, arXiv 1810.00826).

    The first line is the number of graphs. Each has a line with its number of nodes and its label,
    then a line for each node: its tag, how many neighbours it has, their numbers in the graph from
    0, and perhaps attributes. Edges count both ways. Features are one-hot tags and attributes;
    where all nodes have the same tag and no attributes, one-hot degrees. A folder ``10fold_idx``
    beside it, with ``test_idx-1.txt`` and so on, has the folds of the cross-validation.

    Args:
        path: the ``.txt`` file, or a folder with one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the contents are not as above, or take too much memory (see
            :mod:`jax_gnn.datasets`).
    """
    path = as_path("path", path)
    if path.is_dir():
        (path,) = locate(path, ("", ".txt"))
    require_file(path, "a .txt file of graphs")
    memory = Memory(path)
    sizes, labels, tags, attributes, src, dst = [], [], [], [], [], []
    with blame(path):
        lines = ((number, line.split()) for number, line in read_lines(path))
        (count,) = _integers(lines, 1)
        start = 0
        for _ in range(count):
            size, label = _integers(lines, 2)
            sizes.append(size)
            labels.append(label)
            for node in range(size):
                where, fields = _next_line(lines)
                try:
                    tag, degree = int(fields[0]), int(fields[1])
                    near = [*map(int, fields[2 : 2 + degree])]
                    attributes.append([*map(float, fields[2 + degree :])])
                except (IndexError, ValueError) as error:
                    raise ValueError(
                        f"{where}: expected a node: its tag, its number of neighbours, and these, "
                        f"got {' '.join(fields)!r:.80}"
                    ) from error
                if len(near) != degree or not all(0 <= other < size for other in near):
                    raise ValueError(
                        f"{where}: expected {degree} neighbours below {size}, got {near}"
                    )
                tags.append(tag)
                src += [start + other for other in near]
                dst += [start + node] * degree
            start += size
        if next(lines, None) is not None:
            raise ValueError(f"expected {count} graphs, got more lines")
        columns = {}
        if len({*tags}) > 1:
            columns = _one_hot_columns("label", np.array(tags, np.int64)[:, None], memory)
        if attributes and attributes[0]:
            if len({*map(len, attributes)}) > 1:
                raise ValueError("expected as many attributes of each node")
            columns |= _numbered("attribute", np.array(attributes))
        y, names = _classes(np.array(labels, np.int64))
        ends = np.array([src, dst], np.int64).reshape(2, -1)
        return _dataset(
            *(path.stem, np.array(sizes, np.int64), np.concatenate([ends, ends[::-1]], 1)),
            *(columns, memory),
            y=y,
            label_names=names,
            folds=_folds(path.parent / "10fold_idx", count),
        )


def _next_line(lines: Any) -> tuple[str, list[str]]:
    """Where it is, as errors say it, and its fields."""
    number, fields = next(lines, (0, []))
    return f"line {number}" if number else "the file ends too early", fields


def _integers(lines: Any, count: int) -> list[int]:
    where, fields = _next_line(lines)
    try:
        values = [*map(int, fields)]
    except ValueError:
        values = []
    if len(values) != count or min(values) < -(2**31) or (count > 1 and values[0] < 0):
        what = "the number of graphs" if count == 1 else "the nodes of a graph and its label"
        raise ValueError(f"{where}: expected {what}, got {' '.join(fields)!r:.80}")
    return values


def _folds(folder: Path, count: int) -> np.ndarray | None:
    """The fold that each graph is held out in, -1 for none, where files say it."""
    if not folder.is_dir():
        return None
    folds = np.full(count, -1)
    for number in range(10):
        ids = _numbers(folder / f"test_idx-{number + 1}.txt", "iu", 1)[:, 0]
        with blame(folder):
            if ids.size and not (ids.min() >= 0 and ids.max() < count):
                raise ValueError(f"fold {number + 1} has graphs outside [0, {count})")
            if (folds[ids] >= 0).any():
                graph = ids[folds[ids] >= 0][0]
                raise ValueError(f"graph {graph} is in folds {folds[graph] + 1} and {number + 1}")
        folds[ids] = number
    return folds


def load_ogb_graphs(path: str | os.PathLike[str]) -> GraphsDataset:
    """Reads graphs in the raw format of the Open Graph Benchmark (arXiv 2005.00687).

    A folder ``raw`` with ``edge.csv.gz``, ``num-node-list.csv.gz``, ``num-edge-list.csv.gz``,
    ``graph-label.csv.gz`` and, mostly, ``node-feat.csv.gz``; beside it perhaps ``split/NAME`` with
    ``train.csv.gz``, ``valid.csv.gz`` and ``test.csv.gz``. Edges count both ways. Labels that are
    whole numbers are classes, others are regressed on. Features of edges are left out.

    Args:
        path: the folder of the dataset, or ``raw``.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: the contents are not as above, take too much memory (see
            :mod:`jax_gnn.datasets`), or there are several labels for a graph.
    """
    folder = _raw(as_path("path", path))
    names = "edge", "num-node-list", "num-edge-list", "graph-label"
    files = [require_file(folder / f"{name}.csv.gz", "OGB's raw files") for name in names]
    memory = Memory(*files)
    ends, nodes, edges, labels = (_numbers(file, "iuf") for file in files)
    with blame(files[1]):
        sizes, counts = nodes[:, 0].astype(np.int64), edges[:, 0].astype(np.int64)
        if sizes.size != counts.size or counts.sum() != len(ends) or sizes.min(initial=0) < 0:
            raise ValueError(f"expected {sizes.size} graphs with {len(ends)} edges together")
        starts = np.repeat(np.cumsum(sizes) - sizes, counts)
        limit = np.repeat(sizes, counts)[:, None]
        ends = ends.astype(np.int64)
        if ends.shape[1:] != (2,) or not ((ends >= 0) & (ends < limit)).all():
            raise ValueError("an edge has an end outside its graph")
    with blame(files[3]):
        if labels.shape[1:] != (1,):
            raise ValueError(f"expected one label for a graph, got {labels.shape[1]} tasks")
        whole = ((labels == labels.round()) | np.isnan(labels)).all()
        y, label_names = _classes(labels[:, 0]) if whole else (labels[:, 0], None)
    ends = ends.T + starts
    features = [file for file in (folder / "edge-feat.csv.gz",) if file.exists()]
    return _dataset(
        *(folder.parent.name, sizes, np.concatenate([ends, ends[::-1]], 1)),
        *(_node_features(folder, memory), memory),
        y=y,
        label_names=label_names,
        unused=tuple(file.name for file in features),
        **_split(folder),
    )


def load_ogb_nodes(path: str | os.PathLike[str]) -> GraphDataset:
    """Reads a graph with labelled nodes in the raw format of the Open Graph Benchmark.

    As :func:`load_ogb_graphs`, with one graph and ``node-label.csv.gz``. Edges count both ways.

    Args:
        path: the folder of the dataset, or ``raw``.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: the contents are not as above, or take too much memory (see
            :mod:`jax_gnn.datasets`).
    """
    folder = _raw(as_path("path", path))
    files = [folder / f"{name}.csv.gz" for name in ("edge", "node-label")]
    for file in files:
        require_file(file, "OGB's raw files")
    ends, labels = _numbers(files[0], "iu", 2).T, _numbers(files[1], "iuf", 1)[:, 0]
    y = np.where(np.isnan(labels), -1, labels)
    with blame(files[1]):
        if (y != y.round()).any():
            raise ValueError("expected classes, got numbers that are not whole")
    x = _read_features(folder)
    with blame(folder):
        pairs = _distinct(np.concatenate([ends, ends[::-1]], 1), labels.size)
        return GraphDataset(
            name=folder.parent.name,
            num_nodes=labels.size,
            src=pairs[0],
            dst=pairs[1],
            x=x,
            y=y.astype(np.int64),
            **_split(folder),
        )


def _raw(path: Path) -> Path:
    if path.exists() and not path.is_dir() and not path.name.endswith(".csv.gz"):
        raise ValueError(f"{path} is no folder; expected OGB's raw files")
    path = path if path.is_dir() else path.parent
    return path / "raw" if (path / "raw").is_dir() else path.absolute()


def _read_features(folder: Path) -> np.ndarray | None:
    file = folder / "node-feat.csv.gz"
    return _numbers(file, "iuf") if file.exists() else None


def _node_features(folder: Path, memory: Memory) -> dict[str, np.ndarray]:
    """Categories, as atoms have, become columns of zeros and ones."""
    x = _read_features(folder)
    if x is None:
        return {}
    if x.dtype.kind == "f" or x.max(initial=0) >= _MOST_VALUES:
        return _numbered("feature", x)
    with blame(folder):
        return _one_hot_columns("feature", x, memory)


def _split(folder: Path) -> dict[str, Any]:
    """The split, where there is one only."""
    found = [*(folder.parent / "split").glob("*/train.csv.gz")]
    if len(found) != 1:
        return {}
    return {
        field: _numbers(found[0].with_name(f"{part}.csv.gz"), "iu", 1)[:, 0]
        for part, field in _PARTS.items()
    }


def _numbers(path: Path, kinds: str, width: int | None = None) -> np.ndarray:
    """A table of numbers between commas, whole ones where it has no others."""
    require_file(path, "numbers")
    with blame(path):
        lines = [line for _, line in read_lines(path) if line.strip() or "f" in kinds]
        if not lines:
            return np.zeros((0, width or 1), np.int64)
        try:
            table = np.loadtxt(lines, np.int64, delimiter=",", ndmin=2)
        except ValueError:
            if "f" not in kinds:
                raise
            lines = [line if line.strip() else "nan" for line in lines]
            table = np.loadtxt(lines, np.float64, delimiter=",", ndmin=2)
        if width is not None and table.shape[1] != width:
            raise ValueError(f"expected {width} numbers on a line, got {table.shape[1]}")
    return table


def _classes(labels: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Classes by number, -1 where the label is NaN, and their names."""
    known = ~np.isnan(labels)
    names, numbers = np.unique(labels[known], return_inverse=True)
    y = np.full(len(labels), -1)
    y[known] = numbers
    names = names.astype(np.int64) if (names == names.round()).all() else names
    return y, tuple(map(str, names.tolist()))


def _numbered(what: str, x: np.ndarray) -> dict[str, np.ndarray]:
    return {what if x.shape[1] == 1 else f"{what}{i}": column for i, column in enumerate(x.T)}


def _one_hot_columns(what: str, x: np.ndarray, memory: Memory) -> dict[str, np.ndarray]:
    """A column of zeros and ones for each value of each column, by ``WHAT=VALUE``."""
    made: dict[str, np.ndarray] = {}
    for name, column in _numbered(what, x).items():
        values, codes = np.unique(column, return_inverse=True)
        memory.claim("one-hot features", 8 * codes.size * values.size)
        rows = np.eye(len(values), dtype=np.float32)[codes].T
        made |= {f"{name}={value}": row for value, row in zip(values, rows, strict=True)}
    return made


def _distinct(ends: np.ndarray, num_nodes: int) -> np.ndarray:
    """Edges once; that both directions are given often is none of the user's repetitions."""
    if ends.size and not 0 <= ends.min() <= ends.max() < min(num_nodes, MAX_SIZE):
        raise ValueError(f"an edge has an end outside {num_nodes} nodes")
    keys = np.unique(ends[1].astype(np.int64) * num_nodes + ends[0])
    return np.stack(np.divmod(keys, max(num_nodes, 1))[::-1])


def _dataset(
    name: str,
    sizes: np.ndarray,
    ends: np.ndarray,
    columns: dict[str, np.ndarray],
    memory: Memory,
    *,
    unused: Sequence[str] = (),
    **fields: Any,
) -> GraphsDataset:
    """The dataset, where features are degrees if there are none."""
    memory.claim("edges", ends.shape[1] * ID_BYTES)
    num_nodes = int(sizes.sum())
    ends = _distinct(ends, num_nodes)
    if not columns:
        degrees = np.bincount(ends[1], minlength=num_nodes)
        columns = _one_hot_columns("degree", degrees[:, None], memory)
    made = GraphsDataset(
        **{"name": name, "num_nodes": num_nodes, "sizes": sizes, "src": ends[0], "dst": ends[1]},
        x=np.stack([*columns.values()], 1),
        feature_names=tuple(columns),
        **fields,
    )
    if unused:
        object.__setattr__(made, "unused", tuple(unused))
    return made
