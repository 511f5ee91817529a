"""Hypergraph datasets: loaders for the formats that people have, splits, stand-in features.

Every dataset is a :class:`HypergraphDataset`, whatever it was read from; duplicate incidences are
removed. A loader raises ``FileNotFoundError`` for what is not there and ``ValueError``, with the
file and the culprit in its message, for what cannot be read. No file can execute code.
"""

from jax_gnn.datasets._dataset import HypergraphDataset
from jax_gnn.datasets._digits import digits
from jax_gnn.datasets._features import with_noisy_label_features, with_random_features
from jax_gnn.datasets._hypergcn import load_hypergcn
from jax_gnn.datasets._load import load_hypergraph
from jax_gnn.datasets._npz import load_npz
from jax_gnn.datasets._pickle import PickleFormatError
from jax_gnn.datasets._split import Split, random_split
from jax_gnn.datasets._text import load_allset, load_cornell

__all__ = [
    "HypergraphDataset",
    "PickleFormatError",
    "Split",
    "digits",
    "load_allset",
    "load_cornell",
    "load_hypergcn",
    "load_hypergraph",
    "load_npz",
    "random_split",
    "with_noisy_label_features",
    "with_random_features",
]
