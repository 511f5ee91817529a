"""Checkpoints of trained models, through Orbax."""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from flax_layers import AttentionOptions, LinearOptions, Stack
from flax_layers._attention import AttentionConvolution
from jax_gnn.training.config import TrainConfig
from jax_gnn.training.models import RECIPES


def save_checkpoint(path: str | os.PathLike[str], model: Stack, config: TrainConfig) -> None:
    """Writes a model and the settings of its training; replaces a checkpoint that is there.

    Args:
        path: Folder of the checkpoint.
        model: The model.
        config: Kept as JSON, for the reader of the checkpoint.

    Raises:
        TypeError: The model is none that can be trained.
        ValueError: The model's precision is not a `jax.lax.Precision` or the name of one.
    """
    import orbax.checkpoint as ocp  # takes seconds to import

    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    name = next((name for name, recipe in RECIPES.items() if type(model) is recipe.model), None)
    if name is None:
        raise TypeError(f"model must be one of those that can be trained, got {type(model)}")
    description = {
        "model": name,
        "arguments": _arguments(model),
        "training": dataclasses.asdict(config),
    }
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            Path(path).absolute(),
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params), config=ocp.args.JsonSave(description)
            ),
            force=True,
        )


def load_checkpoint(path: str | os.PathLike[str]) -> Stack:
    """Reads a model that `save_checkpoint` wrote.

    Args:
        path: Folder of the checkpoint.

    Returns:
        The model in evaluation mode, ready to predict, on the default device.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder holds no checkpoint of a model.
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
            model_class = RECIPES[restored.config["model"]].model
            model = model_class(**restored.config["arguments"], rngs=nnx.Rngs(0))
        except (AttributeError, FileNotFoundError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no checkpoint of a model") from error
        state = nnx.state(model, nnx.Param)
        expected = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.to_pure_dict(state))
        params = checkpointer.restore(
            path, args=ocp.args.Composite(params=ocp.args.StandardRestore(expected))
        ).params
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    model.eval()
    return model


def _arguments(model: Stack) -> dict[str, Any]:
    """The model's arguments as JSON values, without those that matter only at initialisation."""
    convolution = model.convolutions[0]
    signatures = (Stack.__init__, type(model).__init__, type(convolution).__init__)
    names = {name for init in signatures for name in inspect.signature(init).parameters}
    names |= {*LinearOptions.__annotations__}
    if isinstance(convolution, AttentionConvolution):
        names |= {*AttentionOptions.__annotations__}
    names -= {"self", "rngs", "options", "kernel_init", "bias_init"}
    names -= {"features", "layer"}  # those of a convolution that its model chooses
    # A model keeps each of its arguments as an attribute, or else its convolutions do.
    arguments = {
        name: getattr(model, name) if hasattr(model, name) else getattr(convolution, name)
        for name in names
    }
    for name in ("dtype", "param_dtype"):
        if arguments[name] is not None:
            arguments[name] = jnp.dtype(arguments[name]).name
    if arguments["precision"] is not None:
        arguments["precision"] = jax.lax.Precision(arguments["precision"]).name.lower()
    return arguments
