"""Checkpoints of trained models, through Orbax."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from flax_layers import HGNN
from jax_gnn.training.config import TrainConfig


def save_checkpoint(path: str | os.PathLike[str], model: HGNN, config: TrainConfig) -> None:
    """Writes a model and the settings of its training; replaces a checkpoint that is there.

    Args:
        path: Folder of the checkpoint.
        model: The model.
        config: Kept as JSON, for the reader of the checkpoint.

    Raises:
        ValueError: The model's precision is not a `jax.lax.Precision` or the name of one.
    """
    import orbax.checkpoint as ocp  # takes seconds to import

    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    description = {"model": _architecture(model), "training": dataclasses.asdict(config)}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            Path(path).absolute(),
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params), config=ocp.args.JsonSave(description)
            ),
            force=True,
        )


def load_checkpoint(path: str | os.PathLike[str]) -> HGNN:
    """Reads a model that `save_checkpoint` wrote.

    Args:
        path: Folder of the checkpoint.

    Returns:
        The model in evaluation mode, ready to predict, on the default device.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder holds no checkpoint of an HGNN.
    """
    import orbax.checkpoint as ocp

    path = Path(path).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint folder {path}")
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        try:
            restored = checkpointer.restore(
                path, args=ocp.args.Composite(config=ocp.args.JsonRestore())
            )
            model = HGNN(**restored.config["model"], rngs=nnx.Rngs(0))
        except (AttributeError, FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no checkpoint of an HGNN") from error
        state = nnx.state(model, nnx.Param)
        expected = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.to_pure_dict(state))
        params = checkpointer.restore(
            path, args=ocp.args.Composite(params=ocp.args.StandardRestore(expected))
        ).params
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    model.eval()
    return model


def _architecture(model: HGNN) -> dict[str, Any]:
    """Returns HGNN's arguments as JSON values, without those that matter only at initialisation."""
    first, second = model.conv1, model.conv2
    precision = first.precision
    return {
        "in_features": first.in_features,
        "hidden_features": first.out_features,
        "out_features": second.out_features,
        "dropout_rate": model.dropout.rate,
        "normalization": first.normalization,
        "use_bias": first.use_bias,
        "num_hyperedges": first.num_hyperedges,
        "dtype": None if first.dtype is None else jnp.dtype(first.dtype).name,
        "param_dtype": jnp.dtype(first.param_dtype).name,
        "precision": None if precision is None else jax.lax.Precision(precision).name.lower(),
    }
