"""Datasets without files: scikit-learn's handwritten digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_gnn.datasets._dataset import GraphDataset, HypergraphDataset
from jax_gnn.hypergraph import Hypergraph


def digits(k: int = 10) -> HypergraphDataset:
    """Return the 1,797 8x8 handwritten digits that scikit-learn bundles, with a k-NN hypergraph.

    A node is an image: 64 grey values in [0, 1], 10 classes. Its hyperedge joins it with the
    ``k - 1`` other images nearest by Euclidean distance, as HGNN does for visual objects (Feng et
    al. 2019, arXiv 1809.09401, section 3.1); ties go to the smaller id.

    Args:
        k: size of each hyperedge, from 1 to 1797.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: ``k`` is out of range.
    """
    nodes = _images()
    node_idx, hyperedge_idx = _neighbors(nodes["x"], k)
    return HypergraphDataset(
        node_idx=node_idx, hyperedge_idx=hyperedge_idx, num_hyperedges=nodes["num_nodes"], **nodes
    )


def digits_graph(k: int = 10) -> GraphDataset:
    """Return the images of :func:`digits` with edges in place of hyperedges.

    An image has edges from the ``k - 1`` other images that are nearest, and to them.

    Args:
        k: one more than the number of nearest images, from 1 to 1797.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: ``k`` is out of range.
    """
    nodes = _images()
    neighbors, images = _neighbors(nodes["x"], k)
    pairs = np.stack([neighbors, images])[:, neighbors != images]
    # Both directions; images that are each other's neighbours have each edge once.
    src, dst = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    return GraphDataset(src=src, dst=dst, **nodes)


def _images() -> dict[str, Any]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: "
            "pip install 'jax-gnn-kernels[train]'"
        ) from error
    images = load_digits()
    return {
        "name": "digits",
        "num_nodes": len(images.data),
        "x": (images.data / 16).astype(np.float32),
        "y": images.target,
        "label_names": tuple(map(str, images.target_names)),
    }


def _neighbors(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest nodes of each node, which are itself and others, and its id for each."""
    neighbors, nodes = Hypergraph.from_knn(x, k).incidence()
    return np.asarray(neighbors), np.asarray(nodes)
