"""Datasets: loaders for published formats, splits, artificial features.

Every loader returns a :class:`HypergraphDataset`, a :class:`GraphDataset`, a :class:`GraphsDataset`
of many graphs or a :class:`RelationalDataset`; repeated incidences and edges are removed. All
loaders raise ``FileNotFoundError`` for a missing file, ``TypeError`` if the argument is not a path,
and ``ValueError`` for contents that are not in the format, for names or ids that are missing or
repeated, and for a folder of several datasets; the message names the file, and the line of text.

Text is UTF-8, with or without a byte order mark; its lines end with LF, CR LF or CR alone. No file
can execute code, nor take more than 4,096 bytes of memory for each byte of the dataset's files,
which count as 64 KiB at least: sparse features that are too large as a dense array are refused.
"""

from jax_gnn._core.direction import MIN_REVERSED_SHARE, reversed_share
from jax_gnn.datasets._csv import (
    load_csv,
    load_graphs_csv,
    load_hypergraph_csv,
    load_relational_csv,
)
from jax_gnn.datasets._dataset import (
    GraphDataset,
    GraphsDataset,
    HypergraphDataset,
    NodeDataset,
    RelationalDataset,
)
from jax_gnn.datasets._digits import digits, digits_graph
from jax_gnn.datasets._edge_files import load_hmetis, load_matrix_market, load_snap
from jax_gnn.datasets._edges import EdgeSplit, negative_edges, split_edges, with_split_edges
from jax_gnn.datasets._features import with_noisy_label_features, with_random_features
from jax_gnn.datasets._graphs import load_gin, load_ogb_graphs, load_ogb_nodes, load_tu
from jax_gnn.datasets._hgb import load_hgb
from jax_gnn.datasets._hypergcn import load_hypergcn
from jax_gnn.datasets._load import (
    known_formats,
    load_any,
    load_graph,
    load_graphs,
    load_hypergraph,
    load_relational,
)
from jax_gnn.datasets._molecules import ATOM_FEATURES, load_molecules, load_xyz
from jax_gnn.datasets._npz import load_graph_npz, load_npz, load_relational_npz
from jax_gnn.datasets._pickle import PickleFormatError
from jax_gnn.datasets._planetoid import load_planetoid
from jax_gnn.datasets._rdf import load_rdf
from jax_gnn.datasets._split import Split, random_folds, random_split, time_split
from jax_gnn.datasets._text import load_allset, load_cornell
from jax_gnn.datasets._triples import load_triples

__all__ = [
    "ATOM_FEATURES",
    "MIN_REVERSED_SHARE",
    "EdgeSplit",
    "GraphDataset",
    "GraphsDataset",
    "HypergraphDataset",
    "NodeDataset",
    "PickleFormatError",
    "RelationalDataset",
    "Split",
    "digits",
    "digits_graph",
    "known_formats",
    "load_allset",
    "load_any",
    "load_cornell",
    "load_csv",
    "load_gin",
    "load_graph",
    "load_graph_npz",
    "load_graphs",
    "load_graphs_csv",
    "load_hgb",
    "load_hmetis",
    "load_hypergcn",
    "load_hypergraph",
    "load_hypergraph_csv",
    "load_matrix_market",
    "load_molecules",
    "load_npz",
    "load_ogb_graphs",
    "load_ogb_nodes",
    "load_planetoid",
    "load_rdf",
    "load_relational",
    "load_relational_csv",
    "load_relational_npz",
    "load_snap",
    "load_triples",
    "load_tu",
    "load_xyz",
    "negative_edges",
    "random_folds",
    "random_split",
    "reversed_share",
    "split_edges",
    "time_split",
    "with_noisy_label_features",
    "with_random_features",
    "with_split_edges",
]
