"""Checkpoints of trained models, through Orbax."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import inspect
import json
import logging
import os
import re
import shutil
import textwrap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.multihost_utils import sync_global_devices

import flax_layers
from flax_layers import HeteroModel, Stack
from flax_layers._base import Named
from flax_layers.training.data import Fingerprint, Numbering
from flax_layers.training.links import LINK_RECIPES, LinkIndex, TrainedLinks, make_link_model
from flax_layers.training.models import RECIPES, Recipe
from flax_layers.training.predictor import Predictor, Preprocessing
from flax_layers.training.trained import TrainedModel, stack_of
from jax_gnn import __version__
from jax_gnn.datasets import RelationalDataset, Split

CHECKPOINT, STATE = "checkpoint", "state.npz"  # in the folder of a run of ``jax-gnn train``
INDEX = "index.npz"  # of models that predict edges
SUMS = "SHA256SUMS"  # in the format of the command sha256sum
KEPT = nnx.Not(nnx.RngState)  # the variables that a checkpoint has
INITIAL = {"self", "rngs", "kernel_init", "bias_init", "embedding_init", "options"}
"""Parameters of ``__init__`` that a loaded model does not need: its variables are replaced."""


def save_checkpoint(
    path: str | os.PathLike[str],
    trained: Predictor | nnx.Module,
    *,
    arguments: Mapping[str, Any] | None = None,
    mean: Any = None,
    std: Any = None,
    rows: str = "none",
) -> None:
    """Writes a model; replaces an earlier checkpoint at the end, which an error leaves whole.

    Of several processes (`jax.distributed`) all call it, with one folder that all of them see. What
    is split between them, each writes its own of; what all have is written once.

    Args:
        path: Folder of the checkpoint.
        trained: Such as `TrainResult.trained`, `LinkResult.trained`, or any module.
        arguments: See `jax_gnn.save`, which this is; so for all that follow.
        mean: Of the columns of features.
        std: Likewise.
        rows: What becomes of their rows.

    Raises:
        TypeError: `trained` is no model, or `arguments` are not what JSON has.
        ValueError: The model's precision is not a `jax.lax.Precision` or the name of one, the
            preprocessing is not as it should be, or given of what has one.
        OSError: The disk is full, or the folder cannot be written to.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    predictor = _predictor(trained, mean, std, rows)
    description = _description(predictor, arguments)
    index = trained.index if isinstance(trained, TrainedLinks) else None
    # What an earlier save wrote is replaced at the end, when all of this one is on the disk.
    work = path.with_name(f"{path.name}.new")
    try:
        _write(work / CHECKPOINT, predictor, description, index)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        if (code := _os_error_code(error)) is not None:
            raise OSError(code, os.strerror(code), str(path)) from error
        raise
    if jax.process_index() == 0:
        if path.exists():
            os.replace(path, work / "replaced")
        os.replace(work / CHECKPOINT, path)
        shutil.rmtree(work)
    sync_global_devices(CHECKPOINT)  # nobody loads before


def _write(
    path: Path, predictor: Predictor, description: dict[str, Any], index: LinkIndex | None
) -> None:
    """Writes all files of a checkpoint."""
    import orbax.checkpoint as ocp  # takes seconds to import

    params = jax.tree.map(_shared, nnx.to_pure_dict(nnx.state(predictor.model, KEPT)))
    log = logging.getLogger("absl")  # where Orbax writes the tracebacks of errors that it raises
    disabled, log.disabled = log.disabled, True
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(
                path,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params), config=ocp.args.JsonSave(description)
                ),
                force=True,
            )
    finally:
        log.disabled = disabled
    if jax.process_index() == 0:
        if index is not None:
            index.write(path / INDEX)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        sums = (f"{_sum(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
        (path / SUMS).write_text("".join(sums))
    sync_global_devices(SUMS)


def _os_error_code(error: BaseException) -> int | None:
    """Returns the system's number of an error, also where storage tells it in a long text."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"(?:os_error_code='|OS error )(\d+)", str(error))
    return int(code[1]) if code else None


def _shared(array: Any) -> Any:
    """An array that each of several processes has, in numpy: Orbax takes none of one process."""
    if jax.process_count() == 1:
        return array
    spread = not (array.is_fully_addressable or array.is_fully_replicated)
    return array if spread else np.asarray(array)


def _predictor(trained: Any, mean: Any, std: Any, rows: Any) -> Predictor:
    """A model and what becomes of its features."""
    given = {"mean": mean, "std": std, "rows": None if rows == "none" else rows}
    named = [name for name, value in given.items() if value is not None]
    if isinstance(trained, Predictor):
        if named:
            raise ValueError(f"{named[0]} must not be given of a model that has its preprocessing")
        return trained
    if not isinstance(trained, nnx.Module):
        raise TypeError(
            f"model must be a flax.nnx.Module, or what jax_gnn.load or a training returns, got "
            f"{type(trained).__name__}"
        )
    return Predictor(trained, preprocessing=Preprocessing.of(mean, std, rows))


class _Other(ValueError):
    """What a checkpoint holds is not what it is taken for."""


def load_checkpoint(path: str | os.PathLike[str], model: Any = None) -> Any:
    """Reads a model that `save_checkpoint` wrote.

    Args:
        path: Folder of the checkpoint, or of the run of ``jax-gnn train`` that wrote it.
        model: What makes a model of a class that is not this package's: see `jax_gnn.load`.

    Returns:
        A `Predictor`, on the default device: of a training a `TrainedModel`, of one of link
        prediction a `TrainedLinks`. Of a checkpoint of an older version it lacks what that did not
        keep, and a warning says so.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder holds no checkpoint of a model, or one of another, or a file of it is
            missing or is not what was written.
    """
    path = Path(path).absolute()
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint folder {path}")
    if (path / CHECKPOINT).is_dir():
        path /= CHECKPOINT
    elif (path / STATE).is_file():
        raise ValueError(
            f"{path} has no checkpoint yet, as its training was interrupted: the jax-gnn train of "
            "before, with --resume, goes on with it"
        )
    try:
        trained, missing = _load(path, model)
    except _Other as error:
        raise ValueError(f"{path} {error}") from None
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


def _load(path: Path, given: Any) -> tuple[Predictor, list[str]]:
    """Reads a checkpoint; also returns what it lacks."""
    import orbax.checkpoint as ocp

    # Storage does not notice all changes, and what it notices it reports on stderr, too.
    if (path / SUMS).exists():
        _check_sums(path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        description = checkpointer.restore(
            path, args=ocp.args.Composite(config=ocp.args.JsonRestore())
        ).config
        make_model = _maker(description, given)
        # Nothing is allocated before it is known that the parameters have these shapes.
        shapes = nnx.eval_shape(make_model)
        abstract = nnx.to_pure_dict(nnx.state(shapes, KEPT))
        if "class" in description:
            _check_variables(description, shapes)
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
        return _older(description, RECIPES[description["model"]], model)
    if not (path / SUMS).exists():
        raise ValueError(f"{SUMS} is missing")
    if "class" in description:
        return Predictor(model, preprocessing=Preprocessing.of(**description["preprocessing"])), []
    if description["model"] in LINK_RECIPES:
        return _trained_links(description, model, path / INDEX), _unnamed(description)
    return _trained(description, model), _unnamed(description)


def _maker(description: dict[str, Any], given: Any) -> Callable[[], Any]:
    """What makes the model that a checkpoint holds, with parameters that do not matter.

    A name in a file names classes of this package alone.
    """
    if "class" in description:
        name, arguments = description["class"], description["arguments"]
        if name == "own":
            if given is None:
                raise _Other(
                    f"holds a {description['type']}, a class that this package does not know: "
                    "load it with jax_gnn.load(path, model), where model is what makes one"
                )
            return functools.partial(_made_by, given, arguments or {})
        if given is None:
            return functools.partial(_made, name, arguments)
    else:
        name = description["model"]
        if name not in RECIPES and name not in LINK_RECIPES:
            known = ", ".join([*RECIPES, *LINK_RECIPES])
            raise ValueError(f"its model is {name!r:.80}, which is none of {known}")
    if given is not None:
        raise _Other(f"holds a {name}, which is made without model; got model={_name(given)}")
    if name in LINK_RECIPES:
        config = LINK_RECIPES[name].config(**description["training"])
        names = "num_nodes", "num_relations", "in_features"
        sizes: list[Any] = [description.get(name) for name in names]
        return functools.partial(make_link_model, config, *sizes)
    arguments, inputs = description["arguments"], description.get("inputs")
    name = RECIPES[name].model.__name__
    if inputs:
        of_model = {"class": name, "arguments": arguments}
        name, arguments = "HeteroModel", {"in_features": inputs, "model": of_model}
    return functools.partial(_made, name, arguments)


def _made(name: str, arguments: dict[str, Any]) -> Any:
    """A model of this package."""
    kind = getattr(flax_layers, name) if name in flax_layers.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, nnx.Module)):
        raise ValueError(f"its class is {name!r:.80}, which is no model of flax_layers")

    def value(given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("class"), str):  # no size of a type
            return _made(given["class"], given["arguments"])
        if isinstance(given, dict) and isinstance(given.get("by key"), list):
            return {_tuples(key): value(item) for key, item in given["by key"]}
        return _tuples(given)

    make: Callable[..., Any] = kind
    values = {key: value(given) for key, given in arguments.items()}
    return make(**values | ({"rngs": nnx.Rngs(0)} if "rngs" in _parameters(kind) else {}))


def _made_by(given: Any, arguments: dict[str, Any]) -> Any:
    """A model of a class of the caller's."""
    if isinstance(given, nnx.Module):
        return nnx.clone(given)
    if not callable(given):
        raise _Other(f"needs a model that is or makes a flax.nnx.Module, got {_name(given)}")
    try:
        # Classes of modules hide the signature of their initialisation.
        init = inspect.getattr_static(given, "__init__") if isinstance(given, type) else given
        takes_rngs = "rngs" in inspect.signature(init).parameters
        made = given(**arguments, **({"rngs": nnx.Rngs(0)} if takes_rngs else {}))
    except Exception as error:  # the caller's code
        raise _Other(
            f"was saved with the arguments {arguments}, of which model={_name(given)} makes "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, nnx.Module):
        raise _Other(f"needs a model that is or makes a flax.nnx.Module, got {_name(given)}")
    return made


def _name(given: Any) -> str:
    return getattr(given, "__qualname__", type(given).__name__)


def _variables(model: Any) -> dict[str, str]:
    """Shapes and dtypes by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(nnx.state(model, KEPT)))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{x.dtype}{[*x.shape]}"
        for path, x in leaves
    }


def _check_variables(description: dict[str, Any], model: Any) -> None:
    """Compares what was saved with a model that was made."""
    saved, made = description["variables"], _variables(model)
    if saved == made and description["type"] == type(model).__qualname__:
        return
    known = [name for name in saved if saved[name] != made.get(name)]
    name = [*known, *(made.keys() - saved.keys()), None][0]
    what = ""
    if name is not None:
        there, here = (each.get(name, "nothing") for each in (saved, made))
        what = f": {name} is {there} in the checkpoint, {here} in the model"
    raise _Other(f"holds a {description['type']}, got a {type(model).__qualname__}{what}")


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


def _description(trained: Predictor, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All but the parameters, as JSON values."""
    if isinstance(trained, TrainedModel | TrainedLinks):
        if arguments is not None:
            raise ValueError("arguments must not be given of a model that was trained by a recipe")
        describe: Any = _recipe_description
        if isinstance(trained, TrainedLinks):
            describe = _link_description
        return describe(trained)
    return {
        "version": __version__,
        **_class_description(trained.model, arguments),
        "type": type(trained.model).__qualname__,
        "variables": _variables(trained.model),
        "preprocessing": (trained.preprocessing or Preprocessing()).as_json(),
    }


def _class_description(model: Any, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """What makes a model again."""
    with contextlib.suppress(_Unknown):
        return _described(model)
    given = None if arguments is None else dict(arguments)
    try:
        if json.loads(json.dumps(given)) != given:
            raise TypeError("lists and text as keys are what JSON has")
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"arguments must be what JSON has, got {arguments!r:.200}: {error}"
        ) from None
    return {"class": "own", "arguments": given}


class _Unknown(Exception):
    """A module is not of this package, or one of its arguments is not."""


def _described(module: Any) -> dict[str, Any]:
    """Class and arguments of a module of this package."""
    name = type(module).__name__
    if name not in flax_layers.__all__ or getattr(flax_layers, name) is not type(module):
        raise _Unknown
    return {"class": name, "arguments": _arguments(module)}


def _recipe_description(trained: TrainedModel) -> dict[str, Any]:
    """Of a model that was trained by a recipe."""
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


def _trained(description: dict[str, Any], model: Stack) -> TrainedModel:
    """What `_description` was made of."""
    split, data, names = (description[key] for key in ("split", "data", "label_names"))
    return TrainedModel(
        model,
        RECIPES[description["model"]].config(**description["training"]),
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
    preprocessed = {"features", "feature_normalization"}
    if isinstance(training, dict) and preprocessed <= training.keys() <= known:
        config = recipe.config(**training)
    else:
        missing.insert(0, f"the preprocessing (that of {recipe.config.__name__}() is used)")
        config = recipe.config()
    return TrainedModel(model, config, version=None), missing + _unnamed(description)


def _arguments(module: Any) -> dict[str, Any]:
    """The arguments that make a module of this package again, as JSON values.

    A module keeps each of its arguments as an attribute, or a stack's convolutions do, or it keeps
    further ones as ``options``. Initialisers are left out.
    """
    values = dict(getattr(module, "options", ())) | _kept(module)
    if isinstance(module, Stack):
        chosen = {"features", "layer"}  # by the stack, for each convolution
        convolution = _kept(module.convolutions[0])
        values = {k: v for k, v in convolution.items() if k not in chosen} | values
    return {name: _as_json(name, value) for name, value in values.items()}


def _kept(module: Any) -> dict[str, Any]:
    """The arguments that are attributes of a module."""
    names = _parameters(type(module)) - INITIAL
    return {name: getattr(module, name) for name in sorted(names) if hasattr(module, name)}


def _parameters(kind: type[Any]) -> set[str]:
    """Names of the arguments of a class, with those that it takes as ``**options``."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            names |= parameters.keys()
            if "options" not in parameters:
                break
            options = parameters["options"].annotation  # as text: Any, or Unpack of a TypedDict
            if options != "Any":
                unpacked: Any = getattr(flax_layers, options.removeprefix("Unpack[")[:-1])
                return names | unpacked.__optional_keys__
    return names


def _as_json(name: str, value: Any) -> Any:
    if name in ("dtype", "param_dtype"):
        return None if value is None else jnp.dtype(value).name
    if name == "precision":
        return None if value is None else jax.lax.Precision(value).name.lower()
    if isinstance(value, Named):
        return {"by key": [[key, _as_json(name, value[key])] for key in value]}
    return _described(value) if isinstance(value, nnx.Module) else value
