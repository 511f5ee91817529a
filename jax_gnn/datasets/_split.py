"""Splits of labelled nodes into training, validation and test nodes, at random or by time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jax_gnn._core.arguments import check_number
from jax_gnn.datasets._check import MAX_SIZE, check_ids, check_times, random_generator


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint sets of labelled nodes.

    Attributes:
        train: int32 node ids to fit on.
        valid: int32 node ids to choose the epoch or hyperparameters by.
        test: int32 node ids to report on.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


def random_folds(y: np.ndarray, folds: int, *, seed: int) -> np.ndarray:
    """Deal labelled examples out to the folds of a cross-validation, class by class.

    Args:
        y: ``(n,)`` integer classes; -1 is unlabelled.
        folds: number of folds.
        seed: seed of the order; the same seed gives the same folds.

    Returns:
        ``(n,)`` integers, the fold that holds out each example; -1 without a label.

    Raises:
        ValueError: ``y`` is not one axis of integers from -1, or has fewer labels than folds.
    """
    y = check_ids("y", y, MAX_SIZE, start=-1)
    order = random_generator(seed).permutation(y.size)
    # A stable sort by class keeps the random order within each class.
    order = order[np.argsort(y[order], kind="stable")]
    order = order[y[order] >= 0]
    if not 2 <= folds <= order.size:
        raise ValueError(f"folds must be from 2 to the {order.size} labels, got {folds}")
    fold_ids = np.full(y.size, -1)
    fold_ids[order] = np.arange(order.size) % folds
    return fold_ids


def random_split(y: np.ndarray, *, train: float = 0.5, valid: float = 0.25, seed: int) -> Split:
    """Split the labelled nodes at random, as AllSet does (arXiv 2106.13264).

    Of a random permutation of the n labelled nodes, the first ``int(n * train)`` train, the next
    ``int(n * valid)`` validate, the others test. Classes are not balanced.

    Args:
        y: ``(num_nodes,)`` integer classes; -1 is unlabelled.
        train: share of the training nodes.
        valid: share of the validation nodes.
        seed: seed of the permutation; the same seed gives the same split.

    Raises:
        TypeError: ``train``, ``valid`` or ``seed`` is not a number.
        ValueError: ``y`` is not one axis of integers from -1; ``train`` is not above 0, ``valid``
            is below 0, or they exceed 1 together; or no node is left to train on.
    """
    return Split(*np.split(*_shuffled(y, train, valid, seed)))


def time_split(
    y: np.ndarray, node_time: ArrayLike, *, train: float = 0.5, valid: float = 0.25, seed: int
) -> Split:
    """Split the labelled nodes by time: the earliest train, the next validate, the last test.

    Numbers of nodes are those of :func:`random_split`. Nodes of one time are in random order.

    Args:
        y: ``(num_nodes,)`` integer classes; -1 is unlabelled.
        node_time: ``(num_nodes,)`` integers, the times of the nodes.
        train: share of the training nodes.
        valid: share of the validation nodes.
        seed: seed of the order of nodes of one time.

    Raises:
        TypeError: ``train``, ``valid`` or ``seed`` is not a number.
        ValueError: ``node_time`` is not as many integers as ``y`` has; or as of `random_split`.

    Example:
        >>> time_split(np.array([0, 1, 0, 1, -1]), [2021, 2019, 2022, 2020, 2018], seed=0).train
        array([1, 3], dtype=int32)
    """
    ids, cuts = _shuffled(y, train, valid, seed)
    times = check_times("node_time", node_time, len(y))
    return Split(*np.split(ids[np.argsort(times[ids], kind="stable")], cuts))


def _shuffled(
    y: np.ndarray, train: float, valid: float, seed: int
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the labelled nodes in random order, and the ends of the first two parts."""
    labelled = np.flatnonzero(check_ids("y", y, MAX_SIZE, start=-1) >= 0).astype(np.int32)
    check_number("train", train)
    check_number("valid", valid)
    if not (train > 0 and valid >= 0 and train + valid <= 1):
        raise ValueError(
            "train must be above 0, valid at least 0 and their sum at most 1, "
            f"got train={train}, valid={valid}"
        )
    num_train, num_valid = int(labelled.size * train), int(labelled.size * valid)
    if num_train == 0:
        raise ValueError(
            f"y has {labelled.size} labelled nodes, of which train={train} leaves none to train on"
        )
    return random_generator(seed).permutation(labelled), (num_train, num_train + num_valid)
