"""Graphs, hypergraphs, graphs with types and many graphs in tables: CSV, Parquet, Arrow."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_gnn._core.direction import MIN_REVERSED_SHARE, reversed_share
from jax_gnn._core.files import Memory, as_path, errors_in, require_file
from jax_gnn.convert._columns import Column, encode
from jax_gnn.convert._kinds import as_words
from jax_gnn.convert._names import HYPEREDGES, encode_names, node_order, shared_names
from jax_gnn.datasets._dataset import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    RelationalDataset,
)
from jax_gnn.datasets._graphs import one_hot_columns
from jax_gnn.datasets._layouts import dataset_name, layout_of, locate_tables, type_tables
from jax_gnn.datasets._table_files import (
    D,
    EdgeTable,
    NodeTable,
    TableOptions,
    finished,
    number_ends,
)

_ALWAYS = np.iinfo(np.int64).min  # time of nodes and edges without times beside others


def load_csv(
    path: str | os.PathLike[str],
    *,
    fill_missing: Literal["mean", "median", "zero", "indicator"] = "mean",
    text: Literal["drop", "hash"] = "drop",
    ignore: Sequence[str] = (),
    recipe: str | None = None,
    src: str | None = None,
    dst: str | None = None,
    node: str | None = None,
    label: str | None = None,
    target: str | None = None,
    time: str | None = None,
    weight: str | None = None,
) -> GraphDataset:
    """Read ``NAMEnodes.csv`` and ``NAMEedges.csv``, where NAME is often empty.

    Both are CSV files with a header, which may end with ``.gz`` or ``.zst``; or TSV, Parquet or
    Arrow files. Nodes have a column ``id``, text or integers. Optional columns are ``label``, a
    class or empty, or ``target``, a number to regress on, and ``split``, one of ``train``, ``val``,
    ``test`` or empty. All other columns are features: numbers as they are, dates and times in days,
    text of at most 256 values one-hot. Columns that only number or name the rows, and free text,
    are left out. Edges have the columns ``src`` and ``dst``, which are ids, and optionally
    ``weight`` and ``time``, a date or a whole number; other columns are features of edges, in the
    order of their names, made as those of nodes, where categories have at most 32 values. Without a
    table of nodes, nodes are the names that edges have. Repeated edges are removed. A column
    ``time`` of nodes is a feature, and their time. In place of ``split``, nodes may have masks such
    as ``train_mask`` and ``test_mask``, where one at most is true in a row.
    Columns may be called otherwise, such as ``source`` and ``target``, ``node_id``, ``class``, in
    any case: a notice tells. :func:`jax_gnn.convert.from_table`, which reads all other tables, says
    how cells are read.

    The ``notices`` of the dataset say what was missing, filled or not understood, and
    ``columns`` what each column was taken for.

    Args:
        path: the folder, or one of the two files.
        fill_missing: number that takes the place of a missing one: the "mean" or "median" of the
            column, "zero", or by "indicator" the mean, beside a feature of zeros and ones that says
            which.
        text: "hash" makes 64 features of the words of a column of free text, by their hashes.
        ignore: columns that are left out.
        recipe: ``table_recipe`` of the dataset of a training: columns then become the same
            features, and other settings do not count.
        src: column of edges with the id of the source, if it is called otherwise.
        dst: column of edges with the id of the destination.
        node: column of nodes with their ids.
        label: column of nodes with their classes.
        target: column of nodes with numbers to regress on, instead.
        time: column of edges, of nodes, or of both with times.
        weight: column of edges with their weights.
    """
    roles = src, dst, node, label, target, time, weight
    options = TableOptions(fill_missing, text, ignore, recipe, *roles)
    path = as_path("path", path)
    if layout_of(path) == "edges":
        return edges_alone(path, options, GraphDataset)
    nodes_path, edges_path = locate_tables(path, "nodes", "edges")
    # Edges are read first, so that a missing column is reported before any conversion.
    edges = EdgeTable.read(edges_path, options, ("weight", "time"))
    memory = Memory(nodes_path, edges_path)
    nodes = NodeTable.read(nodes_path, memory, options, options.plan, unit=edges.unit)
    names, (ends,) = number_ends({"": nodes}, [edges])
    with errors_in(nodes_path):
        dataset = GraphDataset(
            name=dataset_name(path, nodes_path),
            src=ends[0],
            dst=ends[1],
            edge_weight=edges.weight,
            edge_features=edges.features,
            edge_time=edges.time,
            **nodes.fields(names[""]),
        )
    notice = "column 'graph': beside graphs.csv, with a row for each, these are many graphs"
    notices = [notice] * ("graph" in nodes.details and "graph" in edges.details)
    tables = {"": nodes, edges.title: edges}
    return finished(dataset, tables, options, nodes.features.recipe, notices)


def edges_alone(path: Path, options: TableOptions, kind: type[D]) -> D:
    """Read a table of edges without one of nodes, which are the names that edges have."""
    (file,), is_typed = locate_tables(path, "edges"), kind is RelationalDataset
    table = EdgeTable.read(file, options, ("relation", "time") if is_typed else ("weight", "time"))
    names, ((src, dst),) = number_ends({}, [table])
    ends: dict[str, Any] = {"src": src, "dst": dst, "edge_time": table.time}
    fields: dict[str, Any] = {"edge_weight": table.weight, "edge_features": table.features}
    with errors_in(file):
        if not src.size:
            raise ValueError("expected a row for each edge, got none")
        if is_typed:
            if not (name := table.roles.get("relation", "")):
                raise ValueError(f"expected the column relation, got {', '.join(table.columns)}")
            relations, (rel,) = encode({name: table.columns[name]})
            if (rel < 0).any():
                raise ValueError(f"{table.place(int(rel.argmin()))} has no {name}")
            fields = {"rel": rel[table.is_kept], "num_relations": len(relations)}
            fields["relation_names"] = tuple(map(str, relations.tolist()))
        dataset = kind(
            name=dataset_name(path, file),
            num_nodes=len(names[""]),
            y=np.full(len(names[""]), -1),
            node_names=tuple(map(str, names[""].tolist())),
            **ends,
            **fields,
        )
    table.notices += shared_names([*table.roles.values()][:2], (src, dst))
    return finished(dataset, {table.title: table}, options, {})


def load_hypergraph_csv(path: str | os.PathLike[str], **options: Any) -> HypergraphDataset:
    """Read ``nodes.csv`` and ``hyperedges.csv``, or ``NAME.hgr`` beside ``nodes.csv``.

    Nodes are as of :func:`load_csv`. A row of the other table says that a ``node`` is in a
    ``hyperedge``. In hMETIS's files nodes are numbered from 1: these are the ids, which may be
    missing where rows are in this order.

    Args:
        path: the folder, or one of the two tables.
        **options: arguments of :func:`load_csv`.
    """
    settings, path = TableOptions(**options), as_path("path", path)
    nodes_path, edges_path = locate_tables(path, "nodes", "hyperedges")
    edges = EdgeTable.read(edges_path, settings, ends=("", HYPEREDGES))
    memory, counted = Memory(nodes_path, edges_path), edges_path.suffix == ".hgr"
    nodes = NodeTable.read(nodes_path, memory, settings, settings.plan, counted=counted)
    names, ((node_idx, hyperedge_idx),) = number_ends({"": nodes}, [edges])
    with errors_in(nodes_path):
        dataset = HypergraphDataset(
            name=dataset_name(path, nodes_path),
            num_hyperedges=len(names[HYPEREDGES]),
            node_idx=node_idx,
            hyperedge_idx=hyperedge_idx,
            format="tables" if nodes.features.parts else "",
            **nodes.fields(names[""]),
        )
    return finished(dataset, {"": nodes, edges.title: edges}, settings, nodes.features.recipe)


def load_relational_csv(path: str | os.PathLike[str], **options: Any) -> RelationalDataset:
    """Read a folder with a table for each type: ``nodes/TYPE.csv``, ``edges/SRC-RELATION-DST.csv``.

    Tables are as of :func:`load_csv`, each with columns of its own; ids are of their type. One type
    has labels. Relations are called as the files of their edges, whose columns may have the names
    of the two types. Or read one table of edges alone, which has a column ``relation``.

    Args:
        path: the folder.
        **options: arguments of :func:`load_csv`.
    """
    settings, folder = TableOptions(**options), as_path("path", path)
    if folder.exists() and layout_of(folder) == "edges":
        return edges_alone(folder, settings, RelationalDataset)
    if not folder.is_dir():
        require_file(folder, "a folder with nodes/TYPE.csv and edges/SRC-RELATION-DST.csv")
        raise ValueError(f"{folder} is a file, expected a folder with nodes/TYPE.csv")
    recipes = settings.plan.get("types", {})
    files, edge_files = type_tables(folder / "nodes"), type_tables(folder / "edges")
    memory = Memory(*files.values(), *edge_files.values())
    edges, unit = list[EdgeTable](), ""
    for stem, file in edge_files.items():
        ends = _ends_of(folder, stem, [*files])
        edges.append(EdgeTable.read(file, settings, ("time",), ends, unit))
        unit = unit or edges[-1].unit
    nodes = {
        kind: NodeTable.read(file, memory, settings, recipes.get(kind), kind=kind, unit=unit)
        for kind, file in files.items()
    }
    labelled = [kind for kind, table in nodes.items() if not table.is_unlabelled.all()]
    if len(labelled) > 1:
        raise ValueError(
            f"{folder} has labels of {' and '.join(labelled)}: call those of all but one otherwise"
        )
    names, pairs = number_ends(nodes, edges)
    rows, counts = [*zip(edges, pairs, strict=True)], [len(ids[0]) for ids in pairs]
    sizes = [len(table.y) for table in nodes.values()]
    first = dict(zip(nodes, (np.cumsum(sizes) - sizes).tolist(), strict=True))
    x_by_type = {kind: x for kind, table in nodes.items() if (x := table.features.x) is not None}
    target = nodes[labelled[0]] if labelled else None
    predicted, node_time = settings.plan.get("predicted", labelled[0] if labelled else None), None
    if predicted in nodes and (times := nodes[predicted].time) is not None:
        node_time = np.full(sum(sizes), _ALWAYS)
        node_time[first[predicted] : first[predicted] + len(times)] = times
    timed = [table for table in edges if "time" in table.roles]
    edge_time = None
    if timed and all(table.time is not None for table in timed):
        edge_time = np.full(sum(counts), _ALWAYS)
        starts = np.cumsum([0, *counts])
        for start, edge_table in zip(starts, edges, strict=False):
            if edge_table.time is None:
                edge_table.notices.append("edges without times count as before all others")
            else:
                edge_time[start : start + len(edge_table.time)] = edge_table.time
    missing = -1 if target is None or target.label_names is not None else np.nan
    with errors_in(folder):
        splits: dict[str, Any] = {}
        for kind, table in nodes.items():
            splits |= table.split_fields(names[kind].tolist(), first[kind])
        src, dst = (
            np.concatenate([ids[side] + first[table.key[2 * side]] for table, ids in rows])
            for side in (0, 1)
        )
        dataset = RelationalDataset(
            name=folder.absolute().name,
            num_nodes=sum(sizes),
            num_relations=len(edges),
            src=src,
            dst=dst,
            rel=np.repeat(np.arange(len(edges)), counts),
            relation_names=tuple(edge_files),
            edge_time=edge_time,
            node_type=np.repeat(np.arange(len(nodes)), sizes),
            node_type_names=tuple(nodes),
            node_names=tuple(str(name) for kind in nodes for name in names[kind].tolist()),
            x_by_type=x_by_type,
            format="tables" if x_by_type else "",
            y=np.concatenate([np.where(t.is_unlabelled, missing, t.y) for t in nodes.values()]),
            label_names=target.label_names if target else None,
            node_time=node_time,
            **splits,
        )
    if predicted in nodes:
        dataset._set("predicted", first[predicted] + np.arange(len(nodes[predicted].y)))
    types = {kind: table.features.recipe for kind, table in nodes.items()}
    tables = nodes | {table.title: table for table in edges}
    return finished(dataset, tables, settings, {"types": types, "predicted": predicted})


def _ends_of(folder: Path, stem: str, types: Sequence[str]) -> tuple[str, str]:
    """Return the types that edges of a file join, which its name begins and ends with."""
    ends = ((src, dst) for src in types for dst in types)
    pairs = [pair for pair in ends if re.fullmatch("-.+-".join(map(re.escape, pair)), stem)]
    if len(pairs) == 1:
        return pairs[0]
    listed = " or ".join("-…-".join(pair) for pair in pairs)
    problem = f"may be {listed}" if pairs else "joins no two types"
    raise ValueError(
        f"{folder / 'edges' / stem} {problem}; types of nodes are {', '.join(types)}: call it "
        "SOURCE-RELATION-DESTINATION.csv, as author-writes-paper.csv"
    )


def load_graphs_csv(path: str | os.PathLike[str], **options: Any) -> GraphsDataset:
    """Read many graphs: ``nodes.csv`` and ``edges.csv`` with a column ``graph``, ``graphs.csv``.

    Graphs have a column ``id``, and may have ``label`` or ``target`` and ``split``. Nodes are as of
    :func:`load_csv`, without these. Ids of nodes are of their graph; edges need no column ``graph``
    if no two nodes have one id. Where less than 10 % of the edges have their reverse, the others
    are added. Nodes without features have one-hot degrees.

    Args:
        path: the folder, or one of the three tables.
        **options: arguments of :func:`load_csv`.
    """
    settings, path = TableOptions(**options), as_path("path", path)
    files = locate_tables(path, "nodes", "edges", "graphs")
    memory = Memory(*files)
    edges = EdgeTable.read(files[1], settings, ("graph",))
    nodes = NodeTable.read(files[0], memory, settings, settings.plan, uses=("graph",))
    graphs = NodeTable.read(files[2], memory, settings, None, kind="graph", of_graphs=True)
    of_graph = {f"graph of {nodes.title}": nodes.columns[nodes.roles["graph"]]}
    with errors_in(path):
        names, (graph_codes, node_codes) = encode_names(graphs.ids | of_graph)
        names, row_of = node_order(graphs.title, names, graph_codes, graphs.place)
    graph_of = row_of[node_codes]
    if (graph_of < 0).any():
        where = nodes.place(int(np.argmin(graph_of)))
        raise ValueError(f"{files[0]}: {where} has a graph that is not in {graphs.title}")
    if "graph" in edges.roles:
        for table in (nodes, edges):
            graph = table.columns[table.roles["graph"]]
            table.ids = {name: _in_graph(ids, graph) for name, ids in table.ids.items()}
        _, ((src, dst),) = number_ends({"": nodes}, [edges])
    else:
        with errors_in(f"{edges.title} has no column graph"):
            _, ((src, dst),) = number_ends({"": nodes}, [edges])
    if (across := np.flatnonzero(graph_of[src] != graph_of[dst])).size:
        raise ValueError(f"{files[1]}: {edges.place(across[0])} joins nodes of two graphs")
    # Nodes are numbered graph by graph.
    order = np.argsort(graph_of, kind="stable")
    position = np.argsort(order)
    src, dst, features = position[src], position[dst], edges.features
    notices = []
    share = reversed_share(src, dst, len(order))
    # Tables to predict on get reverses if those of the training did.
    adds_reverses = bool(settings.plan.get("adds_reverses", share < MIN_REVERSED_SHARE))
    if adds_reverses and share < 1:
        notices = [f"{share:.1%} of the edges have their reverse: the others are added"]
        both = np.stack([[src, dst], [dst, src]], 1).reshape(2, -1)
        (src, dst), rows = np.unique(both, axis=1, return_index=True)
        if features is not None:
            features = np.concatenate([features, features])[rows]
    with errors_in(files[0]):
        x, feature_names = nodes.features.x, nodes.features.feature_names
        if x is None:
            degrees = np.bincount(dst, minlength=len(order))
            columns = one_hot_columns("degree", degrees[:, None], memory)
            x, feature_names = np.stack([*columns.values()], 1), tuple(columns)
        else:
            x = x[order]
        dataset = GraphsDataset(
            name=dataset_name(path, files[0]),
            num_nodes=len(order),
            sizes=np.bincount(graph_of, minlength=len(graphs.y)),
            src=src,
            dst=dst,
            edge_features=features,
            x=x,
            feature_names=feature_names,
            y=graphs.y,
            node_time=graphs.time,
            label_names=graphs.label_names,
            graph_names=tuple(map(str, names.tolist())),
            **graphs.split_fields(names.tolist()),
        )
    tables = {"": nodes, graphs.title: graphs, edges.title: edges}
    recipe = nodes.features.recipe | {"adds_reverses": adds_reverses}
    return finished(dataset, tables, settings, recipe, notices)


def _in_graph(ids: Column, graphs: Column) -> np.ndarray:
    """Return names of nodes that tell their graphs apart; None if one of both is missing."""
    pairs = zip(as_words(ids).tolist(), as_words(graphs).tolist(), strict=True)
    names = [None if None in pair else "{} of {}".format(*pair) for pair in pairs]
    return np.array(names, object)
