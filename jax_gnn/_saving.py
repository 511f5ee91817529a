"""Saving and loading of models, which `flax_layers.training` does: it stands above this package."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

from jax.typing import ArrayLike

from jax_gnn._core.public import public


def _above(name: str) -> Any:
    return getattr(importlib.import_module("flax_layers.training"), name)


@public
def save(
    path: str | os.PathLike[str],
    model: Any,
    *,
    arguments: Mapping[str, Any] | None = None,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    rows: str = "none",
) -> None:
    """Writes a model with the preprocessing of its features; replaces what was saved there.

    An error leaves what was saved there whole.

    Needs the extra ``jax-gnn-kernels[train]``.

    Args:
        path: folder of the checkpoint.
        model: any `flax.nnx.Module` that is called with a graph and features; or what `load`
            returned, or what a training of `flax_layers.training` made, each with all that it has.
        arguments: those that a class of your own is made again with, as JSON has them; see `load`.
        mean: ``(features,)``, subtracted from the columns of features; None: nothing is.
        std: ``(features,)``, what columns are then divided by; None: by nothing.
        rows: ``"row"`` then divides each row by the sum of its absolute values.

    Raises:
        TypeError: `model` is none, or `arguments` are not what JSON has.
        ValueError: the preprocessing is not as described, or given of a model that has one.
        OSError: the disk is full, or the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> from flax_layers import GCN
        >>> folder = tempfile.mkdtemp()
        >>> model = GCN(3, 8, 2, rngs=nnx.Rngs(0))
        >>> save(folder, model, mean=jnp.ones(3))
        >>> predictor = load(folder)
        >>> graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
        >>> predictor(graph, jnp.ones((2, 3))).shape
        (2, 2)
    """
    _above("save_checkpoint")(path, model, arguments=arguments, mean=mean, std=std, rows=rows)


@public
def load(path: str | os.PathLike[str], model: Any = None) -> Any:
    """Reads a model that `save` or ``jax-gnn train`` wrote; runs no code from the files.

    Args:
        path: folder of the checkpoint, or of the run of ``jax-gnn train`` that wrote it.
        model: of a class that is not `flax_layers`', what makes it: the class, which is called with
            the saved `arguments`, another function of these, or a module of the same shapes. Random
            keys are ``rngs`` where it takes these. None of other models.

    Returns:
        A predictor: ``predictor(graph, x)`` preprocesses features and applies the model, and
        ``predictor.export`` writes that as a program. The module alone is ``predictor.model``. Of a
        training it also predicts on datasets, or answers queries: see `flax_layers.training`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder holds no model, another one than `model`, or is damaged.

    Example:
        >>> import tempfile
        >>> class Scaled(nnx.Module):
        ...     def __init__(self, size):
        ...         self.scale = nnx.Param(jnp.ones(size))
        ...
        ...     def __call__(self, graph, x):
        ...         return spmm(graph, x * self.scale)
        >>> folder = tempfile.mkdtemp()
        >>> save(folder, Scaled(3), arguments={"size": 3})
        >>> graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2)
        >>> load(folder, Scaled)(graph, jnp.ones((2, 3))).shape
        (2, 3)
    """
    return _above("load_checkpoint")(path, model)
