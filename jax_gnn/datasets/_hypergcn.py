"""Folders of pickles as published with HyperGCN."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from jax_gnn._core.files import ID_BYTES, Memory, as_path, errors_in, require_file
from jax_gnn.datasets._check import MAX_SIZE, check_features, check_ids
from jax_gnn.datasets._dataset import HypergraphDataset
from jax_gnn.datasets._pickle import flat, load_matrix, load_value

_WHAT = "HyperGCN's hypergraph.pickle, labels.pickle, features.pickle, splits/N.pickle"


def load_hypergcn(path: str | os.PathLike[str]) -> HypergraphDataset:
    """Read a folder of pickles as published with HyperGCN (arXiv 1809.02589).

    ``hypergraph.pickle`` is a dictionary from a hyperedge's name to its nodes, ``labels.pickle``
    the class of each node. ``features.pickle`` is a scipy CSR matrix or an array; without it, ``x``
    is None. Each of ``splits/*.pickle`` has training and test nodes: the training nodes of all, in
    numerical order, become ``train_splits``, the first split also ``train_idx`` and ``test_idx``.
    Hyperedges keep the order of the dictionary; duplicate incidences are removed; sparse features
    become dense float32.

    Args:
        path: the folder. Pickles are read without executing anything: see
            :class:`PickleFormatError`.
    """
    folder = as_path("path", path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; expected the folder of {_WHAT}")
    files = {
        name: require_file(folder / f"{name}.pickle", _WHAT) for name in ("hypergraph", "labels")
    }
    features = folder / "features.pickle"
    # In numerical order: 2.pickle comes before 10.pickle.
    splits = sorted(
        (folder / "splits").glob("*.pickle"), key=lambda file: (len(file.stem), file.stem)
    )
    has_features = features.exists()
    memory = Memory(*files.values(), *splits, *([features] if has_features else []))
    labels = load_value(files["labels"])
    with errors_in(files["labels"]):
        labels = check_ids("labels", flat("labels", labels), MAX_SIZE, start=-1)
        num_nodes = labels.size
    node_idx, hyperedge_idx, num_hyperedges = _incidences(files["hypergraph"], num_nodes, memory)
    train, test = _splits(splits, num_nodes)
    x = None
    if has_features:
        matrix = load_matrix(features, memory)
        with errors_in(features):
            x = check_features("features", matrix, num_nodes)
    with errors_in(folder):
        return HypergraphDataset(
            name=folder.resolve().name,
            node_idx=node_idx,
            hyperedge_idx=hyperedge_idx,
            num_nodes=num_nodes,
            num_hyperedges=num_hyperedges,
            x=x,
            y=labels,
            train_splits=np.stack(train) if train else None,
            train_idx=train[0] if train else None,
            test_idx=test[0] if test else None,
        )


def _incidences(path: Path, num_nodes: int, memory: Memory) -> tuple[np.ndarray, np.ndarray, int]:
    hypergraph = load_value(path)
    with errors_in(path):
        if not isinstance(hypergraph, dict):
            raise ValueError(
                f"expected a dictionary of hyperedges, got {type(hypergraph).__name__}"
            )
        members = [np.zeros(0, np.int32)]
        for name, nodes in hypergraph.items():
            field = f"hyperedge {name!r:.80}"
            members.append(check_ids(field, flat(field, nodes), num_nodes))
            memory.claim(field, members[-1].size * ID_BYTES)  # a pickle may repeat one list
        sizes = [ids.size for ids in members[1:]]
        return np.concatenate(members), np.repeat(np.arange(len(sizes)), sizes), len(sizes)


def _splits(paths: list[Path], num_nodes: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for path in paths:
        split = load_value(path)
        with errors_in(path):
            if not isinstance(split, dict) or not {"train", "test"} <= split.keys():
                raise ValueError("expected a dictionary with 'train' and 'test'")
            for key, parts in (("train", train), ("test", test)):
                parts.append(np.sort(check_ids(key, flat(key, split[key]), num_nodes)))
            shared = np.intersect1d(train[-1], test[-1])
            if shared.size:
                raise ValueError(f"test: node {shared[0]} is in train, too")
            # All splits are rows of one matrix.
            if train[-1].size != train[0].size:
                raise ValueError(
                    f"train: {train[-1].size} nodes, but the first split has {train[0].size}"
                )
    return train, test
