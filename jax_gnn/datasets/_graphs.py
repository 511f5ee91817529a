"""Collections of graphs in the formats of TUDataset, GIN's code and OGB; OGB's single graphs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in, require_file
from jax_gnn.datasets._check import MAX_SIZE, locate
from jax_gnn.datasets._dataset import GraphDataset, GraphsDataset
from jax_gnn.datasets._lines import read_lines

_MAX_VALUES = 512  # of a column of integers that becomes one-hot
_PARTS = {"train": "train_idx", "valid": "val_idx", "test": "test_idx"}


def load_tu(path: str | os.PathLike[str]) -> GraphsDataset:
    """Read graphs in the format of TUDataset (Morris et al. 2020, arXiv 2007.08663).

    ``NAME_A.txt`` has two nodes, an edge, on each line and ``NAME_graph_indicator.txt`` the graph
    of each node, both counted from 1. ``NAME_graph_labels.txt`` are classes; if it is missing,
    ``NAME_graph_attributes.txt`` are numbers to regress on. Features are the one-hot
    ``NAME_node_labels.txt`` and ``NAME_node_attributes.txt``; without either, one-hot degrees.
    Features of edges are likewise ``NAME_edge_labels.txt`` and ``NAME_edge_attributes.txt``.

    Args:
        path: the folder, or one of the files of the first two names.
    """
    edges_path, nodes_path = locate(
        as_path("path", path), ("", "_A.txt"), ("", "_graph_indicator.txt")
    )
    name = edges_path.name.removesuffix("_A.txt")
    kinds = [f"{of}_{kind}s" for of in ("node", "edge", "graph") for kind in ("label", "attribute")]
    files = {what: edges_path.with_name(f"{name}_{what}.txt") for what in kinds}
    present = {what: file for what, file in files.items() if file.exists()}
    if not present.keys() & {"graph_labels", "graph_attributes"}:
        raise FileNotFoundError(f"{files['graph_labels']} does not exist; it has the labels")
    memory = Memory(edges_path, nodes_path, *present.values())
    # Ids count from 1 in these files.
    graph_of = _numbers(nodes_path, "iu", 1)[:, 0] - 1
    with errors_in(nodes_path):
        if graph_of.min(initial=0) < 0 or (np.diff(graph_of) < 0).any():
            raise ValueError("expected graphs from 1, one after another")
    pairs = _numbers(edges_path, "iu", 2) - 1
    tables = {what: _numbers(file, "iuf") for what, file in present.items()}
    labels, attributes = tables.get("graph_labels"), tables.get("graph_attributes")
    num_graphs = len(labels if labels is not None else attributes)  # type: ignore[arg-type]
    with errors_in(nodes_path):
        # Graphs without nodes are allowed, nodes without a graph are not.
        if graph_of.max(initial=-1) >= num_graphs:
            raise ValueError(f"node of graph {graph_of.max() + 1}, but {num_graphs} have labels")
    columns: dict[str, dict[str, np.ndarray]] = {"node": {}, "edge": {}}
    for of, count in (("node", graph_of.size), ("edge", len(pairs))):
        for kind in ("label", "attribute"):
            if (table := tables.get(what := f"{of}_{kind}s")) is None:
                continue
            with errors_in(files[what]):
                if len(table) != count:
                    raise ValueError(f"expected {count} lines, one for each {of}, got {len(table)}")
                is_label = kind == "label"
                columns[of] |= (
                    one_hot_columns(kind, table, memory) if is_label else _numbered(kind, table)
                )
    with errors_in(edges_path.parent):
        y: Any
        if labels is not None and labels.shape[1] != 1:
            raise ValueError(
                f"{files['graph_labels'].name}: expected one class on a line, got "
                f"{labels.shape[1]} numbers; numbers to regress on are "
                f"{files['graph_attributes'].name}"
            )
        # Classes have priority over numbers to regress on.
        y, names = (attributes, None) if labels is None else _classes(labels[:, 0])
        if y.ndim == 2:
            y = (y[:, 0] if y.shape[1] == 1 else y).astype(np.float32)
        has_both = labels is not None and attributes is not None
        return _dataset(
            name,
            np.bincount(graph_of, minlength=num_graphs),
            pairs.T,
            columns["node"],
            memory,
            columns["edge"],
            y=y,
            label_names=names,
            unused=(files["graph_attributes"].name,) * has_both,
        )


def load_gin(path: str | os.PathLike[str]) -> GraphsDataset:
    """Read graphs in the format of the code of GIN (Xu et al. 2019, arXiv 1810.00826).

    The first line is the number of graphs. A graph has a line with its number of nodes and its
    label, then a line for each node: its tag, its number of neighbours, their numbers in the graph
    from 0, and optional attributes. Edges count both ways. Features are one-hot tags and
    attributes, or one-hot degrees if all nodes have the same tag and no attributes. A folder
    ``10fold_idx`` next to the file, with ``test_idx-1.txt`` and so on, has the folds of the
    cross-validation.

    Args:
        path: the ``.txt`` file, or a folder with one.
    """
    path = as_path("path", path)
    if path.is_dir():
        (path,) = locate(path, ("", ".txt"))
    require_file(path, "a .txt file of graphs")
    memory = Memory(path)
    sizes, labels, tags, attributes, src, dst = [], [], [], [], [], []
    with errors_in(path):
        # Lines are consumed in order: the header of each graph says how many follow.
        lines = ((number, line.split()) for number, line in read_lines(path))
        (count,) = _integers(lines, 1)
        start = 0
        for _ in range(count):
            size, label = _integers(lines, 2)
            sizes.append(size)
            labels.append(label)
            for node in range(size):
                place, fields = _next_line(lines)
                try:
                    tag, degree = int(fields[0]), int(fields[1])
                    neighbors = [*map(int, fields[2 : 2 + degree])]
                    attributes.append([*map(float, fields[2 + degree :])])
                except (IndexError, ValueError) as error:
                    raise ValueError(
                        f"{place}: expected a node: its tag, its number of neighbours, and these, "
                        f"got {' '.join(fields)!r:.80}"
                    ) from error
                if len(neighbors) != degree or not all(0 <= i < size for i in neighbors):
                    raise ValueError(
                        f"{place}: expected {degree} neighbours below {size}, got {neighbors}"
                    )
                tags.append(tag)
                src += [start + neighbor for neighbor in neighbors]
                dst += [start + node] * degree
            start += size
        if next(lines, None) is not None:
            raise ValueError(f"expected {count} graphs, got more lines")
        columns = {}
        # Equal tags carry no information.
        if len({*tags}) > 1:
            columns = one_hot_columns("label", np.array(tags, np.int64)[:, None], memory)
        if attributes and attributes[0]:
            if len({*map(len, attributes)}) > 1:
                raise ValueError("expected as many attributes of each node")
            columns |= _numbered("attribute", np.array(attributes))
        y, names = _classes(np.array(labels, np.int64))
        edges = np.array([src, dst], np.int64).reshape(2, -1)
        return _dataset(
            path.stem,
            np.array(sizes, np.int64),
            np.concatenate([edges, edges[::-1]], axis=1),
            columns,
            memory,
            y=y,
            label_names=names,
            folds=_folds(path.parent / "10fold_idx", count),
        )


def _next_line(lines: Iterator[tuple[int, list[str]]]) -> tuple[str, list[str]]:
    """Return the place of the next line, for errors, and its fields."""
    number, fields = next(lines, (0, []))
    return f"line {number}" if number else "the file ends too early", fields


def _integers(lines: Iterator[tuple[int, list[str]]], count: int) -> list[int]:
    """Read a line of one integer, the number of graphs, or two: a graph's size and label."""
    place, fields = _next_line(lines)
    try:
        values = [*map(int, fields)]
    except ValueError:
        values = []
    if len(values) != count or min(values) < -(2**31) or (count > 1 and values[0] < 0):
        what = "the number of graphs" if count == 1 else "the nodes of a graph and its label"
        raise ValueError(f"{place}: expected {what}, got {' '.join(fields)!r:.80}")
    return values


def _folds(folder: Path, count: int) -> np.ndarray | None:
    """Read the fold that holds out each graph, -1 for none; None without files."""
    if not folder.is_dir():
        return None
    folds = np.full(count, -1)
    for number in range(10):
        ids = _numbers(folder / f"test_idx-{number + 1}.txt", "iu", 1)[:, 0]
        with errors_in(folder):
            # Folds are disjoint: each graph is held out once at most.
            if ids.size and not (ids.min() >= 0 and ids.max() < count):
                raise ValueError(f"fold {number + 1} has graphs outside [0, {count})")
            if (folds[ids] >= 0).any():
                graph = ids[folds[ids] >= 0][0]
                raise ValueError(f"graph {graph} is in folds {folds[graph] + 1} and {number + 1}")
        folds[ids] = number
    return folds


def load_ogb_graphs(path: str | os.PathLike[str]) -> GraphsDataset:
    """Read graphs in the raw format of the Open Graph Benchmark (arXiv 2005.00687).

    A folder ``raw`` has ``edge.csv.gz``, ``num-node-list.csv.gz``, ``num-edge-list.csv.gz``,
    ``graph-label.csv.gz`` and optionally ``node-feat.csv.gz``; next to it, ``split/NAME`` may have
    ``train.csv.gz``, ``valid.csv.gz`` and ``test.csv.gz``. Edges count both ways. Labels are
    classes if all are integers, else numbers to regress on. ``edge-feat.csv.gz`` are features of
    edges, of both directions.

    Args:
        path: the folder of the dataset, or ``raw``.
    """
    folder = _raw(as_path("path", path))
    names = "edge", "num-node-list", "num-edge-list", "graph-label"
    files = [require_file(folder / f"{name}.csv.gz", "OGB's raw files") for name in names]
    memory = Memory(*files)
    pairs, nodes, edges, labels = (_numbers(file, "iuf") for file in files)
    with errors_in(files[1]):
        sizes, counts = nodes[:, 0].astype(np.int64), edges[:, 0].astype(np.int64)
        if sizes.size != counts.size or counts.sum() != len(pairs) or sizes.min(initial=0) < 0:
            raise ValueError(f"expected {sizes.size} graphs with {len(pairs)} edges together")
        # Ids in the file count from 0 in each graph; here they count over all graphs.
        starts = np.repeat(np.cumsum(sizes) - sizes, counts)
        limit = np.repeat(sizes, counts)[:, None]
        pairs = pairs.astype(np.int64)
        if pairs.shape[1:] != (2,) or not ((pairs >= 0) & (pairs < limit)).all():
            raise ValueError("an edge has an end outside its graph")
    with errors_in(files[3]):
        if labels.shape[1:] != (1,):
            raise ValueError(f"expected one label for a graph, got {labels.shape[1]} tasks")
        are_classes = ((labels == labels.round()) | np.isnan(labels)).all()
        y, label_names = _classes(labels[:, 0]) if are_classes else (labels[:, 0], None)
    pairs = pairs.T + starts
    of_edges = _columns(folder / "edge-feat.csv.gz", memory)
    return _dataset(
        folder.parent.name,
        sizes,
        np.concatenate([pairs, pairs[::-1]], axis=1),
        _columns(folder / "node-feat.csv.gz", memory),
        memory,
        {name: np.concatenate([column, column]) for name, column in of_edges.items()},
        y=y,
        label_names=label_names,
        **_split(folder),
    )


def load_ogb_nodes(path: str | os.PathLike[str]) -> GraphDataset:
    """Read a graph with labelled nodes in the raw format of the Open Graph Benchmark.

    The files are those of :func:`load_ogb_graphs` for one graph, with ``node-label.csv.gz``. Edges
    count both ways.

    Args:
        path: the folder of the dataset, or ``raw``.
    """
    folder = _raw(as_path("path", path))
    files = [folder / f"{name}.csv.gz" for name in ("edge", "node-label")]
    for file in files:
        require_file(file, "OGB's raw files")
    pairs, labels = _numbers(files[0], "iu", 2).T, _numbers(files[1], "iuf", 1)[:, 0]
    y = np.where(np.isnan(labels), -1, labels)
    with errors_in(files[1]):
        if (y != y.round()).any():
            raise ValueError("expected classes, got numbers that are not whole")
    file = folder / "node-feat.csv.gz"
    x = _numbers(file, "iuf") if file.exists() else None
    with errors_in(folder):
        pairs, _ = _distinct(np.concatenate([pairs, pairs[::-1]], axis=1), labels.size)
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
    """Return the folder of the raw files, from a path in or around it."""
    if path.exists() and not path.is_dir() and not path.name.endswith(".csv.gz"):
        raise ValueError(f"{path} is no folder; expected OGB's raw files")
    path = path if path.is_dir() else path.parent
    return path / "raw" if (path / "raw").is_dir() else path.absolute()


def _columns(file: Path, memory: Memory) -> dict[str, np.ndarray]:
    """Read features; small integers, such as those of atoms, become one-hot columns."""
    if not file.exists():
        return {}
    x = _numbers(file, "iuf")
    # Integers of a small range are categories, such as kinds of atoms.
    if x.dtype.kind == "f" or x.max(initial=0) >= _MAX_VALUES:
        return _numbered("feature", x)
    with errors_in(file):
        return one_hot_columns("feature", x, memory)


def _split(folder: Path) -> dict[str, Any]:
    """Read the split, if there is exactly one."""
    files = [*(folder.parent / "split").glob("*/train.csv.gz")]
    if len(files) != 1:
        return {}
    return {
        field: _numbers(files[0].with_name(f"{part}.csv.gz"), "iu", 1)[:, 0]
        for part, field in _PARTS.items()
    }


def _numbers(path: Path, kinds: str, width: int | None = None) -> np.ndarray:
    """Read a table of numbers separated by commas, as integers if all are.

    ``kinds`` is "iuf" if numbers may be floats, where an empty line is NaN; else "iu".
    """
    require_file(path, "numbers")
    with errors_in(path):
        # Empty lines are NaN among floats, and skipped among integers.
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
    """Number the labels; return classes, -1 where the label is NaN, and their names."""
    labelled = ~np.isnan(labels)
    names, numbers = np.unique(labels[labelled], return_inverse=True)
    y = np.full(len(labels), -1)
    y[labelled] = numbers
    names = names.astype(np.int64) if (names == names.round()).all() else names
    return y, tuple(map(str, names.tolist()))


def _numbered(what: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a matrix by name."""
    return {what if x.shape[1] == 1 else f"{what}{i}": column for i, column in enumerate(x.T)}


def one_hot_columns(what: str, x: np.ndarray, memory: Memory) -> dict[str, np.ndarray]:
    """Return a column of zeros and ones for each value of each column, by ``WHAT=VALUE``."""
    one_hot: dict[str, np.ndarray] = {}
    for name, column in _numbered(what, x).items():
        values, codes = np.unique(column, return_inverse=True)
        memory.claim("one-hot features", 8 * codes.size * values.size)
        # A row for each value, as columns are stacked later.
        rows = np.eye(len(values), dtype=np.float32)[codes].T
        one_hot |= {f"{name}={value}": row for value, row in zip(values, rows, strict=True)}
    return one_hot


def _distinct(pairs: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return edges without repetitions, as those due to reversal do not count, and their places."""
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < min(num_nodes, MAX_SIZE):
        raise ValueError(f"an edge has an end outside {num_nodes} nodes")
    keys, places = np.unique(pairs[1].astype(np.int64) * num_nodes + pairs[0], return_index=True)
    return np.stack(np.divmod(keys, max(num_nodes, 1))[::-1]), places


def _dataset(
    name: str,
    sizes: np.ndarray,
    pairs: np.ndarray,
    columns: dict[str, np.ndarray],
    memory: Memory,
    edge_columns: dict[str, np.ndarray] | None = None,
    *,
    unused: Sequence[str] = (),
    **fields: Any,
) -> GraphsDataset:
    """Make a dataset; without columns of features, degrees are its features."""
    memory.claim("edges", pairs.shape[1] * ID_BYTES)
    num_nodes = int(sizes.sum())
    (src, dst), places = _distinct(pairs, num_nodes)
    if edge_columns:
        fields["edge_features"] = np.stack([*edge_columns.values()], 1)[places]
    if not columns:
        # Each degree becomes a column, as in the code of GIN.
        degrees = np.bincount(dst, minlength=num_nodes)
        columns = one_hot_columns("degree", degrees[:, None], memory)
    dataset = GraphsDataset(
        name=name,
        num_nodes=num_nodes,
        sizes=sizes,
        src=src,
        dst=dst,
        x=np.stack([*columns.values()], 1),
        feature_names=tuple(columns),
        **fields,
    )
    dataset._set("unused", tuple(unused))
    return dataset
