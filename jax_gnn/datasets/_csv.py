"""Graphs, hypergraphs, graphs with types and many graphs in tables: CSV, Parquet, Arrow."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_gnn._core.direction import MIN_REVERSED_SHARE, reversed_share
from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in
from jax_gnn.convert._columns import Column, place_of
from jax_gnn.convert._kinds import as_words
from jax_gnn.convert._names import MEMBERS, as_integers, encode_names, ends_of_types, node_order
from jax_gnn.datasets._dataset import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    RelationalDataset,
)
from jax_gnn.datasets._graphs import one_hot_columns
from jax_gnn.datasets._layouts import dataset_name, locate_tables, type_tables
from jax_gnn.datasets._table_files import (
    EdgeTable,
    NodeTable,
    TableOptions,
    finished,
    number_ends,
)


def load_csv(
    path: str | os.PathLike[str],
    *,
    fill_missing: Literal["mean", "median", "zero", "indicator"] = "mean",
    text: Literal["drop", "hash"] = "drop",
    ignore: Sequence[str] = (),
    recipe: str | None = None,
) -> GraphDataset:
    """Read ``NAMEnodes.csv`` and ``NAMEedges.csv``, where NAME is often empty.

    Both are CSV files with a header, which may end with ``.gz`` or ``.zst``; or TSV, Parquet or
    Arrow files. Nodes have a column ``id``, text or integers. Optional columns are ``label``, a
    class or empty, or ``target``, a number to regress on, and ``split``, one of ``train``, ``val``,
    ``test`` or empty. All other columns are features: numbers as they are, dates and times in days,
    text of at most 256 values one-hot. Columns that only number or name the rows, and free text,
    are left out. Edges have the columns ``src`` and ``dst``, which are ids, and optionally
    ``weight`` and ``time``, a date or a whole number; their other columns are left out, and
    repeated edges are removed. A column ``time`` of nodes is a feature, and their time.
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
    """
    options = TableOptions(fill_missing, text, ignore, recipe)
    path = as_path("path", path)
    nodes_path, edges_path = locate_tables(path, "nodes", "edges")
    # Edges are read first, so that a missing column is reported before any conversion.
    edges = EdgeTable.read(edges_path, options, uses=("weight", "time"))
    nodes = NodeTable.read(nodes_path, Memory(nodes_path, edges_path), options, recipe)
    names, ((src, dst),) = number_ends({"": nodes}, [(edges, "", "")])
    with errors_in(nodes_path):
        dataset = GraphDataset(
            name=dataset_name(path, nodes_path),
            num_nodes=len(nodes.y),
            src=src,
            dst=dst,
            edge_weight=edges.weight,
            edge_time=edges.time,
            node_time=nodes.time,
            **_node_fields(nodes, names[""]),
        )
    notices = []
    if all("graph" in table.details for table in (nodes, edges)):
        notices = ["column 'graph': beside graphs.csv, with a row for each, these are many graphs"]
    return finished(dataset, {"": nodes}, [edges], options, nodes.features.recipe, notices)


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
    edges = EdgeTable.read(edges_path, settings, MEMBERS)
    memory = Memory(nodes_path, edges_path)
    counted = edges_path.suffix == ".hgr"
    nodes = NodeTable.read(nodes_path, memory, settings, settings.recipe, counted=counted)
    names, ((node_idx, hyperedge_idx),) = number_ends({"": nodes}, [(edges, "", "hyperedge")])
    with errors_in(nodes_path):
        dataset = HypergraphDataset(
            name=dataset_name(path, nodes_path),
            num_nodes=len(nodes.y),
            num_hyperedges=len(names["hyperedge"]),
            node_idx=node_idx,
            hyperedge_idx=hyperedge_idx,
            format="tables" if nodes.features.parts else "",
            **_node_fields(nodes, names[""]),
        )
    return finished(dataset, {"": nodes}, [edges], settings, nodes.features.recipe)


def load_relational_csv(path: str | os.PathLike[str], **options: Any) -> RelationalDataset:
    """Read a folder with a table for each type: ``nodes/TYPE.csv``, ``edges/SRC-RELATION-DST.csv``.

    Tables are as of :func:`load_csv`, each with columns of its own; ids are of their type. One type
    has labels. Relations are called as the files of their edges, whose columns may have the names
    of the two types.

    Args:
        path: the folder.
        **options: arguments of :func:`load_csv`.
    """
    settings, folder = TableOptions(**options), as_path("path", path)
    plan: dict[str, Any] = json.loads(settings.recipe) if settings.recipe else {}
    recipes = plan.get("types", {})
    files, edge_files = type_tables(folder / "nodes"), type_tables(folder / "edges")
    memory = Memory(*files.values(), *edge_files.values())
    edges = []
    for stem, file in edge_files.items():
        src, dst = _ends_of(folder, stem, [*files])
        edges.append((EdgeTable.read(file, settings, ends_of_types(src, dst)), src, dst))
    nodes = {
        kind: NodeTable.read(
            file,
            memory,
            settings,
            json.dumps(recipes[kind]) if kind in recipes else None,
            kind=kind,
        )
        for kind, file in files.items()
    }
    labelled = [kind for kind, table in nodes.items() if table.label]
    if len(labelled) > 1:
        raise ValueError(
            f"{folder} has labels of {' and '.join(labelled)}: call those of all but one otherwise"
        )
    names, pairs = number_ends(nodes, edges)
    sizes = [len(table.y) for table in nodes.values()]
    starts = dict(zip(nodes, (np.cumsum(sizes) - sizes).tolist(), strict=True))
    target = nodes[labelled[0]] if labelled else None
    labels: dict[str, Any] = {"y": np.full(sum(sizes), -1)}
    x_by_type = {kind: x for kind, table in nodes.items() if (x := table.features.x) is not None}
    with errors_in(folder):
        memory.claim("nodes", sum(sizes) * ID_BYTES)
        if target is not None:
            first = starts[labelled[0]]
            is_class = target.label_names is not None
            labels["y"] = np.full(sum(sizes), -1 if is_class else np.nan)
            labels["y"] = labels["y"].astype(target.y.dtype)
            labels["y"][first : first + len(target.y)] = target.y
            labels |= {"label_names": target.label_names}
            labels |= target.split_fields(names[labelled[0]].tolist(), first)
        ends = [
            (src + starts[kinds[0]], dst + starts[kinds[1]])
            for (src, dst), (_, *kinds) in zip(pairs, edges, strict=True)
        ]
        dataset = RelationalDataset(
            name=folder.absolute().name,
            num_nodes=sum(sizes),
            num_relations=len(edges),
            src=np.concatenate([src for src, _ in ends]),
            dst=np.concatenate([dst for _, dst in ends]),
            rel=np.repeat(np.arange(len(edges)), [len(src) for src, _ in ends]),
            relation_names=tuple(edge_files),
            node_type=np.repeat(np.arange(len(nodes)), sizes),
            node_type_names=tuple(nodes),
            node_names=tuple(str(name) for kind in nodes for name in names[kind].tolist()),
            x_by_type=x_by_type,
            format="tables" if x_by_type else "",
            **labels,
        )
    kind = plan.get("predicted", labelled[0] if labelled else None)
    if kind in nodes:
        dataset._set("predicted", starts[kind] + np.arange(len(nodes[kind].y)))
    types = {kind: json.loads(table.features.recipe) for kind, table in nodes.items()}
    recipe = json.dumps({"types": types, "predicted": kind})
    return finished(dataset, nodes, [table for table, *_ in edges], settings, recipe)


def _ends_of(folder: Path, stem: str, types: Sequence[str]) -> tuple[str, str]:
    """Return the types that edges of a file join, which its name begins and ends with."""
    ends = ((src, dst) for src in types for dst in types)
    pairs = [pair for pair in ends if re.fullmatch("-.+-".join(map(re.escape, pair)), stem)]
    if len(pairs) == 1:
        return pairs[0]
    found = " or ".join("-…-".join(pair) for pair in pairs)
    problem = f"may be {found}" if pairs else "joins no two types"
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
    edges = EdgeTable.read(files[1], settings, uses=("graph",))
    nodes = NodeTable.read(files[0], memory, settings, settings.recipe, of_graphs=True)
    graphs = NodeTable.read(files[2], memory, settings, None, kind="graph")
    columns = {f"id of {files[2].name}": graphs.ids, f"graph of {files[0].name}": nodes.graph}
    with errors_in(files[2]):
        names, (graph_codes, node_codes) = encode_names(columns)
        names, row_of = node_order("graphs", names, graph_codes, partial(place_of, files[2]))
    graph_of = row_of[node_codes]
    if (graph_of < 0).any():
        where = place_of(files[0], int(np.argmin(graph_of)))
        raise ValueError(f"{files[0]}: {where} has a graph that is not in {files[2].name}")
    if edges.graph is not None:
        nodes.ids = _in_graph(nodes.ids, nodes.graph)
        edges.ends = {name: _in_graph(ids, edges.graph) for name, ids in edges.ends.items()}
    _, ((src, dst),) = number_ends({"": nodes}, [(edges, "", "")])
    if (across := np.flatnonzero(graph_of[src] != graph_of[dst])).size:
        where = place_of(files[1], across[0])
        raise ValueError(f"{files[1]}: {where} joins nodes of two graphs")
    # Nodes are numbered graph by graph.
    order = np.argsort(graph_of, kind="stable")
    position = np.argsort(order)
    src, dst = position[src], position[dst]
    notices = []
    share = reversed_share(src, dst, len(order))
    # Tables to predict on get reverses if those of the training did.
    plan: dict[str, Any] = json.loads(settings.recipe or "{}")
    if adds_reverses := plan.get("adds_reverses", share < MIN_REVERSED_SHARE):
        notices = [f"{share:.1%} of the edges have their reverse: the others are added"]
        src, dst = np.unique(np.stack([[src, dst], [dst, src]], 1).reshape(2, -1), axis=1)
    x, feature_names = nodes.features.x, nodes.features.feature_names
    with errors_in(files[0]):
        if x is None:
            degrees = np.bincount(dst, minlength=len(order))
            one_hot = one_hot_columns("degree", degrees[:, None], memory)
            x, feature_names = np.stack([*one_hot.values()], 1), tuple(one_hot)
        else:
            x = x[order]
        dataset = GraphsDataset(
            name=dataset_name(path, files[0]),
            num_nodes=len(order),
            sizes=np.bincount(graph_of, minlength=len(graphs.y)),
            src=src,
            dst=dst,
            x=x,
            feature_names=feature_names,
            y=graphs.y,
            label_names=graphs.label_names,
            graph_names=tuple(map(str, names.tolist())),
            **graphs.split_fields(names.tolist()),
        )
    tables = {"": nodes, files[2].name: graphs}
    recipe = json.dumps({**json.loads(nodes.features.recipe), "adds_reverses": bool(adds_reverses)})
    return finished(dataset, tables, [edges], settings, recipe, notices)


def _in_graph(ids: Column, graphs: Column) -> np.ndarray:
    """Return names of nodes that tell their graphs apart; None if one of both is missing."""
    pairs = zip(*(as_words(as_integers(column)).tolist() for column in (ids, graphs)), strict=True)
    names = [None if None in pair else "{} of {}".format(*pair) for pair in pairs]
    return np.array(names, object)


def _node_fields(nodes: NodeTable, names: np.ndarray) -> dict[str, Any]:
    """Return the fields of a dataset that are of its nodes."""
    return {
        "x": nodes.features.x,
        "feature_names": nodes.features.feature_names,
        "y": nodes.y,
        "label_names": nodes.label_names,
        "node_names": tuple(map(str, names.tolist())),
        **nodes.split_fields(names.tolist()),
    }
