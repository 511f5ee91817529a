"""Offline datasets: scikit-learn's handwritten digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_gnn.datasets._dataset import GraphDataset, HypergraphDataset
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
    nodes = _images()
    node_idx, hyperedge_idx = _neighbours(nodes["x"], k)
    return HypergraphDataset(
        node_idx=node_idx, hyperedge_idx=hyperedge_idx, num_hyperedges=nodes["num_nodes"], **nodes
    )


def digits_graph(k: int = 10) -> GraphDataset:
    """The images of :func:`digits` with edges in place of hyperedges.

    An image has edges from its ``k - 1`` nearest others and to them.

    Args:
        k: from 1 to 1797.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: ``k`` is out of range.
    """
    nodes = _images()
    near, image = _neighbours(nodes["x"], k)
    near, image = near[near != image], image[near != image]
    ends = np.stack([np.concatenate([near, image]), np.concatenate([image, near])])
    src, dst = np.unique(ends, axis=1)  # many are each other's neighbours
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


def _neighbours(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids of each node's k nearest nodes, itself among them, and its own beside each."""
    near, node = Hypergraph.from_knn(x, k).incidence()
    return np.asarray(near), np.asarray(node)
