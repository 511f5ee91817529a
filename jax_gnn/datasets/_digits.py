"""An offline dataset: scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np

from jax_gnn.datasets._dataset import HypergraphDataset
from jax_gnn.hypergraph import Hypergraph


def digits(k: int = 10) -> HypergraphDataset:
    """The 1,797 8x8 handwritten digits that scikit-learn bundles, with a k-NN hypergraph.

    A node is an image: 64 grey values in [0, 1], 10 classes. Its hyperedge joins it with its
    ``k - 1`` nearest others by Euclidean distance, as HGNN does for visual objects (Feng et al.
    2019, arXiv 1809.09401, section 3.1); among equals the smaller id wins.

    Args:
        k: size of each hyperedge, from 1 to 1797.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: ``k`` is out of range.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: "
            "pip install 'jax-gnn[train]'"
        ) from error
    images = load_digits()
    x = (images.data / 16).astype(np.float32)
    node_idx, hyperedge_idx = Hypergraph.from_knn(x, k).incidence()
    return HypergraphDataset(
        name="digits",
        node_idx=np.asarray(node_idx),
        hyperedge_idx=np.asarray(hyperedge_idx),
        num_nodes=len(x),
        num_hyperedges=len(x),
        x=x,
        y=images.target,
        label_names=tuple(map(str, images.target_names)),
    )
