"""Saving and loading of models, by functions that the layers' package registers as entry points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from jax.typing import ArrayLike

from jax_gnn._core.public import public

# Layers stand above this package, so it names none of their modules: their distribution declares
# `save` and `load` in this group, as it declares subcommands in "jax_gnn.commands".
_ENTRY_POINTS = "jax_gnn.checkpoints"


def _checkpoint_function(name: str) -> Any:
    entry_points = metadata.entry_points(group=_ENTRY_POINTS, name=name)
    if not entry_points:
        raise ImportError(
            f"jax_gnn.{name} needs a package with the entry point {name!r} of {_ENTRY_POINTS}, "
            "such as flax_layers: install jax-gnn-kernels[train] again"
        )
    return next(iter(entry_points)).load()


@public
def save(
    path: str | os.PathLike[str],
    model: object,
    *,
    arguments: Mapping[str, object] | None = None,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    rows: str = "none",
) -> None:
    """Write a model with the preprocessing of its features; replaces an earlier checkpoint.

    An error leaves the earlier checkpoint intact. Needs the extra ``jax-gnn-kernels[train]``.

    Args:
        path: folder of the checkpoint.
        model: any `flax.nnx.Module` that is called with a graph and features; or a predictor of
            `load`, or the trained model of `flax_layers.training`, each with all that it has.
        arguments: JSON-serializable arguments from which a class of your own is rebuilt; see
            `load`.
        mean: ``(features,)``, subtracted from the columns of features; None: nothing is.
        std: ``(features,)``, by which columns are then divided; None: by nothing.
        rows: ``"row"`` then divides each row by the sum of its absolute values.

    Raises:
        TypeError: `model` is no model, or `arguments` are not JSON-serializable.
        ValueError: the preprocessing is not as described, or given for a model that has one.
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
    write = _checkpoint_function("save")
    write(path, model, arguments=arguments, mean=mean, std=std, rows=rows)


@public
def load(path: str | os.PathLike[str], model: object = None) -> Any:
    """Read a model that `save` or ``jax-gnn train`` wrote; runs no code from the files.

    Args:
        path: folder of the checkpoint, or of the run of ``jax-gnn train`` that wrote it.
        model: for a model whose class is not in `flax_layers`: the class, which is called with the
            saved `arguments`, another function of these, or a module with the same shapes. A
            parameter ``rngs`` gets random keys. None for classes of `flax_layers`.

    Returns:
        A predictor: ``predictor(graph, x)`` preprocesses features and applies the model, and
        ``predictor.export`` writes both as a program. The module alone is ``predictor.model``. A
        model of a training also predicts on datasets, or answers queries: see
        `flax_layers.training`.

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
    return _checkpoint_function("load")(path, model)
