"""Checkpoints of trained models, through Orbax."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import textwrap
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_layers import AttentionOptions, HeteroModel, LinearOptions, Stack
from flax_layers._attention import AttentionConvolution
from flax_layers.training.data import Fingerprint, Numbering
from flax_layers.training.links import LINK_RECIPES, LinkIndex, TrainedLinks, make_link_model
from flax_layers.training.models import RECIPES, Recipe
from flax_layers.training.trained import TrainedModel, stack_of
from jax_gnn.datasets import RelationalDataset, Split

INDEX = "index.npz"  # of models that predict edges
SUMS = "SHA256SUMS"  # in the format of the command sha256sum
KEPT = nnx.Not(nnx.RngState)  # the variables that a checkpoint has


def save_checkpoint(path: str | os.PathLike[str], trained: TrainedModel | TrainedLinks) -> None:
    """Writes a trained model; replaces a checkpoint that is there.

    Args:
        path: Folder of the checkpoint.
        trained: Such as `TrainResult.trained` or `LinkResult.trained`.

    Raises:
        ValueError: The model's precision is not a `jax.lax.Precision` or the name of one.
    """
    import orbax.checkpoint as ocp  # takes seconds to import

    path = Path(path).absolute()
    params = nnx.to_pure_dict(nnx.state(trained.model, KEPT))
    describe: Any = _link_description if isinstance(trained, TrainedLinks) else _description
    description = describe(trained)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(
            path,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params), config=ocp.args.JsonSave(description)
            ),
            force=True,
        )
    if isinstance(trained, TrainedLinks) and trained.index is not None:
        trained.index.write(path / INDEX)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    sums = (f"{_sum(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
    (path / SUMS).write_text("".join(sums))


def load_checkpoint(path: str | os.PathLike[str]) -> Any:
    """Reads a model that `save_checkpoint` wrote.

    Args:
        path: Folder of the checkpoint.

    Returns:
        A `TrainedModel`, ready to predict, on the default device; of link prediction a
        `TrainedLinks`. Of a checkpoint of an older version it lacks what that did not keep, and a
        warning says so.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder holds no checkpoint of a model, or a file of it is missing or is not
            what was written.
    """
    path = Path(path).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint folder {path}")
    try:
        trained, missing = _load(path)
    # Orbax, its storage, JAX and the models raise all kinds of errors for what they cannot read.
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        reason = textwrap.shorten(f"{kind}{error}", 300)
        raise ValueError(f"{path} holds no checkpoint of a model: {reason}") from error
    if missing:
        warnings.warn(
            f"{path} was written by an older version and lacks {', '.join(missing)}", stacklevel=2
        )
    return trained


def _load(path: Path) -> tuple[TrainedModel | TrainedLinks, list[str]]:
    """Reads a checkpoint; also returns what it lacks."""
    import orbax.checkpoint as ocp

    # Storage does not notice all changes, and what it notices it reports on stderr, too.
    if (path / SUMS).exists():
        _check_sums(path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        description = checkpointer.restore(
            path, args=ocp.args.Composite(config=ocp.args.JsonRestore())
        ).config
        name = description["model"]
        if name not in RECIPES and name not in LINK_RECIPES:
            known = ", ".join([*RECIPES, *LINK_RECIPES])
            raise ValueError(f"its model is {name!r:.80}, which is none of {known}")

        def make_model() -> Any:
            if name in LINK_RECIPES:
                config = LINK_RECIPES[name].config(**description["training"])
                names = "num_nodes", "num_relations", "in_features"
                return make_link_model(config, *map(description.get, names))
            arguments = {key: _tuples(given) for key, given in description["arguments"].items()}
            model = RECIPES[name].model(**arguments, rngs=nnx.Rngs(0))
            sizes = description.get("inputs")
            return HeteroModel(sizes, model, rngs=nnx.Rngs(0)) if sizes else model

        # Nothing is allocated before it is known that the parameters have these shapes.
        abstract = nnx.to_pure_dict(nnx.state(nnx.eval_shape(make_model), KEPT))
        # Maps of node types were once kept by name.
        names = None if "numbering" in description else description.get("inputs")
        if names:
            members = abstract["input"]["layers"]["members"]
            abstract["input"]["layers"] = {name: members[i] for i, name in enumerate(names)}
        device = jnp.zeros(()).sharding
        expected = jax.tree.map(
            lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=device), abstract
        )
        params = checkpointer.restore(
            path, args=ocp.args.Composite(params=ocp.args.StandardRestore(expected))
        ).params
    if names:
        maps = params["input"]["layers"]
        params["input"]["layers"] = {"members": {i: maps[name] for i, name in enumerate(names)}}
    model = make_model()
    state = nnx.state(model, KEPT)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    model.eval()
    if "version" not in description:
        return _older(description, RECIPES[name], model)
    if not (path / SUMS).exists():
        raise ValueError(f"{SUMS} is missing")
    if name in LINK_RECIPES:
        return _trained_links(description, model, path / INDEX), _unnamed(description)
    return _trained(description, RECIPES[name], model), _unnamed(description)


def _unnamed(description: dict[str, Any]) -> list[str]:
    """What was not kept once, of models whose parameters have rows for what has names."""
    recipe = RECIPES.get(description["model"])
    if "numbering" in description or (recipe and recipe.dataset is not RelationalDataset):
        return []
    return ["the names of relations and nodes, which are taken by number"]


def _tuples(value: Any) -> Any:
    """Lists, as which JSON keeps tuples, as such: models have nothing else."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _sum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_sums(path: Path) -> None:
    for line in (path / SUMS).read_text().splitlines():
        expected, _, name = line.partition("  ")
        if not name:
            raise ValueError(f"{SUMS} is not what was written")
        if not (path / name).is_file():
            raise ValueError(f"{name} is missing")
        if _sum(path / name) != expected:
            raise ValueError(f"{name} is not what was written")


def _description(trained: TrainedModel) -> dict[str, Any]:
    """All but the parameters, as JSON values."""
    split, data, names = trained.split, trained.data, trained.label_names
    return {
        "version": trained.version,
        "model": trained.config.model,
        "arguments": _arguments(stack_of(trained.model)),
        "inputs": trained.model.in_features if isinstance(trained.model, HeteroModel) else None,
        "training": dataclasses.asdict(trained.config),
        "seed": trained.seed,
        "label_names": None if names is None else list(names),
        "data": None if data is None else data._asdict(),
        "split": split and {part: ids.tolist() for part, ids in vars(split).items()},
        "numbering": trained.numbering and trained.numbering._asdict(),
    }


def _link_description(trained: TrainedLinks) -> dict[str, Any]:
    """The same for link prediction, where settings say which arguments the model has."""
    return {
        "version": trained.version,
        "model": trained.config.model,
        "training": dataclasses.asdict(trained.config),
        "data": trained.data._asdict(),
        **trained.sizes,
        "numbering": trained.numbering and trained.numbering._asdict(),
    }


def _numbering(description: dict[str, Any]) -> Numbering | None:
    kept = description.get("numbering")
    return kept and Numbering(**{name: _tuples(value) for name, value in kept.items()})


def _trained_links(description: dict[str, Any], model: Any, index: Path) -> TrainedLinks:
    """What `_link_description` was made of, and the file of the index, if there is one."""
    return TrainedLinks(
        model,
        LINK_RECIPES[description["model"]].config(**description["training"]),
        Fingerprint(**description["data"]),
        description["num_relations"],
        version=description["version"],
        numbering=_numbering(description),
        index=LinkIndex.read(index) if index.is_file() else None,
    )


def _trained(description: dict[str, Any], recipe: Recipe, model: Stack) -> TrainedModel:
    """What `_description` was made of."""
    split, data, names = (description[key] for key in ("split", "data", "label_names"))
    return TrainedModel(
        model,
        recipe.config(**description["training"]),
        data=data and Fingerprint(**data),
        label_names=None if names is None else tuple(names),
        split=split and Split(**{part: np.array(ids, np.int32) for part, ids in split.items()}),
        seed=description["seed"],
        version=description["version"],
        numbering=_numbering(description),
    )


def _older(
    description: dict[str, Any], recipe: Recipe, model: Stack
) -> tuple[TrainedModel, list[str]]:
    """Reads what was kept before there was a version: the model and the settings, of any model."""
    missing = ["the split", "the names of the labels", "what its data are recognised by"]
    training = description.get("training")
    known = {field.name for field in dataclasses.fields(recipe.config)}
    later = {"edge_weight", "scaling", "target_scaling"}
    if isinstance(training, dict) and known - later <= training.keys() <= known:
        config = recipe.config(**training)
    else:
        missing.insert(0, f"the preprocessing (that of {recipe.config.__name__}() is used)")
        config = recipe.config()
    return TrainedModel(model, config, version=None), missing + _unnamed(description)


def _arguments(model: Stack) -> dict[str, Any]:
    """The model's arguments as JSON values, without those that matter only at initialisation."""
    if not isinstance(model, Stack):  # it keeps all that it is given
        names = {*inspect.signature(type(model).__init__).parameters}
        names -= {"self", "rngs", "param_dtype", "options"}
        return {name: getattr(model, name) for name in names} | dict(getattr(model, "options", ()))
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
