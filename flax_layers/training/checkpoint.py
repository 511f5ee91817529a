"""Checkpoints of models, through Orbax.

A checkpoint has the parameters, a *description* in JSON from which the model is made again, and
sums of all files. The description names a class of `flax_layers` and its arguments, or a recipe
and its settings. No other name in a file is looked up.
"""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.experimental.multihost_utils import sync_global_devices

import flax_layers
from flax_layers import HeteroModel
from flax_layers._base import Named
from flax_layers.training.data import Fingerprint, Numbering
from flax_layers.training.link_models import LINK_RECIPES, make_link_model
from flax_layers.training.link_tasks import LinkIndex
from flax_layers.training.links import TrainedLinks
from flax_layers.training.models import RECIPES
from flax_layers.training.predictor import ColumnsLike, Predictor, Preprocessing, leaves_by_path
from flax_layers.training.trained import TrainedModel, stack_of
from jax_gnn import __version__
from jax_gnn.datasets import Split

CHECKPOINT, STATE = "checkpoint", "state.npz"  # in the folder of a run of ``jax-gnn train``
INDEX = "index.npz"  # of models that predict edges
SUMS = "SHA256SUMS"  # in the format of the command sha256sum
VARIABLES = nnx.Not(nnx.RngState)  # the variables that a checkpoint has
INITIAL = {"self", "rngs", "kernel_init", "bias_init", "embedding_init", "options"}
"""Parameters of ``__init__`` that a loaded model does not need: its variables are replaced."""

Description = dict[str, Any]  # JSON values
Factory = nnx.Module | Callable[..., object] | None  # argument `model` of `jax_gnn.load`


def save_checkpoint(
    path: str | os.PathLike[str],
    trained: Predictor | nnx.Module,
    *,
    arguments: Mapping[str, object] | None = None,
    mean: ColumnsLike = None,
    std: ColumnsLike = None,
    rows: Literal["none", "row"] = "none",
) -> None:
    """Write a model; an earlier checkpoint is replaced at the end, and stays whole on an error.

    Of several processes (`jax.distributed`) all call it, with one folder that all of them see. Each
    writes its parts of arrays that are split between processes; other arrays are written once.

    The model is one such as `TrainResult.trained`, `LinkResult.trained`, or any module. Other
    arguments and errors: as in `jax_gnn.save`.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    # All errors of the arguments come before anything is written.
    predictor = _predictor(trained, mean, std, rows)
    description = _description(predictor, arguments)
    index = trained.index if isinstance(trained, TrainedLinks) else None
    # An earlier checkpoint is replaced at the end, when all files of this one are on the disk.
    work = path.with_name(f"{path.name}.new")
    if jax.process_index() == 0:  # a process that was killed may have left both
        if not path.exists() and (work / "replaced").exists():
            os.replace(work / "replaced", path)
        shutil.rmtree(work, ignore_errors=True)
    sync_global_devices(str(work.name))
    try:
        _write(work / CHECKPOINT, predictor.model, description, index)
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
    sync_global_devices(CHECKPOINT)  # no process loads before


def _write(
    path: Path, model: nnx.Module, description: Description, index: LinkIndex | None
) -> None:
    import orbax.checkpoint as ocp  # takes seconds to import

    params = jax.tree.map(_global_array, nnx.to_pure_dict(nnx.state(model, VARIABLES)))
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
        # Sums of all files find changes that storage does not notice.
        files = sorted(file for file in path.rglob("*") if file.is_file())
        sums = (f"{_sha256(file)}  {file.relative_to(path).as_posix()}\n" for file in files)
        (path / SUMS).write_text("".join(sums))
    sync_global_devices(SUMS)


def _os_error_code(error: BaseException) -> int | None:
    """Return the system's number of an error, also where storage has it in a long text."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"(?:os_error_code='|OS error )(\d+)", str(error))
    return int(code[1]) if code else None


def _global_array(array: Array) -> Array | np.ndarray:
    """Convert an array that every process has to numpy: Orbax takes no array of one process."""
    if jax.process_count() == 1:
        return array
    split = not (array.is_fully_addressable or array.is_fully_replicated)
    return array if split else np.asarray(array)


def _predictor(
    trained: Predictor | nnx.Module,
    mean: ColumnsLike,
    std: ColumnsLike,
    rows: Literal["none", "row"],
) -> Predictor:
    """Return a model with the preprocessing of its features."""
    if isinstance(trained, Predictor):
        options = {"mean": mean, "std": std, "rows": None if rows == "none" else rows}
        for name, value in options.items():
            if value is not None:
                raise ValueError(f"{name} must not be given of a model that has its preprocessing")
        return trained
    if not isinstance(trained, nnx.Module):
        raise TypeError(
            f"model must be a flax.nnx.Module, or what jax_gnn.load or a training returns, got "
            f"{type(trained).__name__}"
        )
    return Predictor(trained, preprocessing=Preprocessing.of(mean, std, rows))


# --- Loading --------------------------------------------------------------------------------------


class _MismatchError(ValueError):
    """The checkpoint holds another model than the caller asks for."""


def load_checkpoint(path: str | os.PathLike[str], model: Factory = None) -> Any:
    """Read a model that `save_checkpoint` wrote; arguments and errors: as in `jax_gnn.load`.

    Returns:
        A `Predictor`, on the default device: a `TrainedModel` for a training of nodes or graphs, a
        `TrainedLinks` for one of link prediction.
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
        return _load(path, model)
    except _MismatchError as error:
        raise ValueError(f"{path} {error}") from None
    # Orbax, its storage, JAX and the models raise all kinds of errors for what they cannot read.
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        reason = textwrap.shorten(f"{kind}{error}", 300)
        raise ValueError(f"{path} holds no checkpoint of a model: {reason}") from error


def _load(path: Path, factory: Factory) -> Predictor:
    import orbax.checkpoint as ocp

    # Storage does not notice all changes, and prints those that it notices on stderr, too.
    _check_sums(path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        description = checkpointer.restore(
            path, args=ocp.args.Composite(config=ocp.args.JsonRestore())
        ).config
        make_model = _model_factory(description, factory)
        # Shapes are checked before memory is allocated for the parameters.
        shapes = nnx.eval_shape(make_model)
        abstract = nnx.to_pure_dict(nnx.state(shapes, VARIABLES))
        if "class" in description:
            _check_variables(description, shapes)
        device = jnp.zeros(()).sharding
        expected = jax.tree.map(
            lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=device), abstract
        )
        params = checkpointer.restore(
            path, args=ocp.args.Composite(params=ocp.args.StandardRestore(expected))
        ).params
    # Parameters of the new model are arbitrary, and replaced by the saved ones.
    model: Any = make_model()
    state = nnx.state(model, VARIABLES)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    model.eval()
    if "class" in description:
        return Predictor(model, preprocessing=Preprocessing.of(**description["preprocessing"]))
    return _trained_model(description, model, path / INDEX)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _check_sums(path: Path) -> None:
    if not (path / SUMS).exists():
        raise ValueError(f"{SUMS} is missing")
    for line in (path / SUMS).read_text().splitlines():
        expected, _, name = line.partition("  ")
        if not name:
            raise ValueError(f"{SUMS} is not what was written")
        if not (path / name).is_file():
            raise ValueError(f"{name} is missing")
        if _sha256(path / name) != expected:
            raise ValueError(f"{name} is not what was written")


def _model_factory(description: Description, factory: Factory) -> Callable[[], nnx.Module]:
    """Return a function that makes the model of a checkpoint, with arbitrary parameters.

    A name in a file names classes of this package alone.
    """
    if "class" in description:
        name, arguments = description["class"], description["arguments"]
        if name == "own":
            if factory is None:
                raise _MismatchError(
                    f"holds a {description['type']}, a class that this package does not know: "
                    "load it with jax_gnn.load(path, model), where model is what makes one"
                )
            return functools.partial(_make_with, factory, arguments or {})
        if factory is None:
            return functools.partial(_make, name, arguments)
    else:
        name = description["model"]
        if name not in RECIPES and name not in LINK_RECIPES:
            models = ", ".join([*RECIPES, *LINK_RECIPES])
            raise ValueError(f"its model is {name!r:.80}, which is none of {models}")
    if factory is not None:
        text = f"holds a {name}, which is made without model; got model={_name(factory)}"
        raise _MismatchError(text)
    if name in LINK_RECIPES:
        config = LINK_RECIPES[name].config(**description["training"])
        names = ("num_nodes", "num_relations", "in_features")
        sizes: list[Any] = [description.get(name) for name in names]
        return functools.partial(make_link_model, config, *sizes)
    arguments, inputs = description["arguments"], description.get("inputs")
    name = RECIPES[name].model.__name__
    if inputs:
        inner = {"class": name, "arguments": arguments}
        name, arguments = "HeteroModel", {"in_features": inputs, "model": inner}
    return functools.partial(_make, name, arguments)


def _make(name: str, arguments: Mapping[str, object]) -> Any:
    """Make a model of this package from JSON values."""
    kind: Any = getattr(flax_layers, name) if name in flax_layers.__all__ else None
    # Classes of options are modules, too, but nobody can call them.
    is_module = isinstance(kind, type) and issubclass(kind, nnx.Module)
    if not (is_module and any("__call__" in vars(base) for base in kind.__mro__)):
        raise ValueError(f"its class is {name!r:.80}, which is no model of flax_layers")

    def from_json(value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("class"), str):  # no size of a type
            return _make(value["class"], value["arguments"])
        if isinstance(value, dict) and isinstance(value.get("by key"), list):
            return {_tuples(key): from_json(item) for key, item in value["by key"]}
        return _tuples(value)

    make: Callable[..., nnx.Module] = kind
    values = {key: from_json(value) for key, value in arguments.items()}
    return make(**values | ({"rngs": nnx.Rngs(0)} if "rngs" in _parameters(kind) else {}))


def _make_with(factory: Factory, arguments: Mapping[str, object]) -> nnx.Module:
    if isinstance(factory, nnx.Module):
        return nnx.clone(factory)
    mismatch = f"needs a model that is or makes a flax.nnx.Module, got {_name(factory)}"
    if not callable(factory):
        raise _MismatchError(mismatch)
    try:
        # Classes of modules hide the signature of their initialisation.
        is_class = isinstance(factory, type)
        function: Any = inspect.getattr_static(factory, "__init__") if is_class else factory
        takes_rngs = "rngs" in inspect.signature(function).parameters
        model = factory(**arguments, **({"rngs": nnx.Rngs(0)} if takes_rngs else {}))
    except Exception as error:  # the caller's code
        raise _MismatchError(
            f"was saved with the arguments {arguments}, of which model={_name(factory)} makes "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nnx.Module):
        raise _MismatchError(mismatch)
    return model


def _name(factory: Factory) -> str:
    return getattr(factory, "__qualname__", type(factory).__name__)


def _variables(model: nnx.Module) -> dict[str, str]:
    state = nnx.to_pure_dict(nnx.state(model, VARIABLES))
    return {path: f"{x.dtype}{[*x.shape]}" for path, x in leaves_by_path(state).items()}


def _check_variables(description: Description, model: nnx.Module) -> None:
    """Check that a model has the saved variables."""
    saved, current = description["variables"], _variables(model)
    if saved == current and description["type"] == type(model).__qualname__:
        return
    # The first variable that differs is named; one that is missing differs, too.
    different = [name for name in {**saved, **current} if saved.get(name) != current.get(name)]
    text = ""
    if different:
        old, new = (shapes.get(different[0], "nothing") for shapes in (saved, current))
        text = f": {different[0]} is {old} in the checkpoint, {new} in the model"
    raise _MismatchError(f"holds a {description['type']}, got a {type(model).__qualname__}{text}")


def _tuples(value: object) -> Any:
    """Convert lists to tuples, which JSON has none of; models take no lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _trained_model(
    description: Description, model: nnx.Module, index: Path
) -> TrainedModel | TrainedLinks:
    """Return the trained model of a description, and of its index of links, if there is one."""
    name, version, data = (description[key] for key in ("model", "version", "data"))
    numbering: Any = description["numbering"]
    if numbering:
        numbering = Numbering(**{key: _tuples(value) for key, value in numbering.items()})
    data = data and Fingerprint(**data)
    if name in LINK_RECIPES:
        return TrainedLinks(
            model,
            LINK_RECIPES[name].config(**description["training"]),
            data,
            description["num_relations"],
            version=version,
            numbering=numbering,
            index=LinkIndex.read(index) if index.is_file() else None,
        )
    split, names = description["split"], description["label_names"]
    return TrainedModel(
        model,
        RECIPES[name].config(**description["training"]),
        data=data,
        label_names=None if names is None else tuple(names),
        split=split and Split(**{part: np.array(ids, np.int32) for part, ids in split.items()}),
        seed=description["seed"],
        version=version,
        numbering=numbering,
    )


# --- Descriptions ---------------------------------------------------------------------------------


def _description(trained: Predictor, arguments: Mapping[str, object] | None = None) -> Description:
    """Return all but the parameters, as JSON values."""
    if isinstance(trained, TrainedModel | TrainedLinks):
        if arguments is not None:
            raise ValueError("arguments must not be given of a model that was trained by a recipe")
        return _training_description(trained)
    return {
        "version": __version__,
        **_class_description(trained.model, arguments),
        "type": type(trained.model).__qualname__,
        "variables": _variables(trained.model),
        "preprocessing": (trained.preprocessing or Preprocessing()).as_json(),
    }


def _class_description(model: nnx.Module, arguments: Mapping[str, object] | None) -> Description:
    with contextlib.suppress(_UnknownModuleError):
        return _module_description(model)
    values = None if arguments is None else dict(arguments)
    try:
        if json.loads(json.dumps(values)) != values:
            raise TypeError("lists and text as keys are what JSON has")
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"arguments must be what JSON has, got {arguments!r:.200}: {error}"
        ) from None
    return {"class": "own", "arguments": values}


class _UnknownModuleError(Exception):
    """A module is not of this package, or one of its arguments is not."""


def _module_description(module: nnx.Module) -> Description:
    name = type(module).__name__
    if name not in flax_layers.__all__ or getattr(flax_layers, name) is not type(module):
        raise _UnknownModuleError
    return {"class": name, "arguments": _arguments(module)}


def _training_description(trained: TrainedModel | TrainedLinks) -> Description:
    """Return the training of a model; for links, settings and sizes say which model it is."""
    description: Description = {
        "version": trained.version,
        "model": trained.config.model,
        "training": dataclasses.asdict(trained.config),
        "data": trained.data and trained.data._asdict(),
        "numbering": trained.numbering and trained.numbering._asdict(),
    }
    if isinstance(trained, TrainedLinks):
        return description | trained.sizes
    split, names = trained.split, trained.label_names
    return description | {
        "arguments": _arguments(stack_of(trained.model)),
        "inputs": trained.model.in_features if isinstance(trained.model, HeteroModel) else None,
        "seed": trained.seed,
        "label_names": None if names is None else list(names),
        "split": split and {part: ids.tolist() for part, ids in vars(split).items()},
    }


def _arguments(module: nnx.Module) -> dict[str, object]:
    """Return the arguments that make a module of this package again, as JSON values.

    Each argument is an attribute of the module, or an item of ``options``; initialisers are left
    out.
    """
    names = _parameters(type(module)) - INITIAL
    attributes = {name: getattr(module, name) for name in sorted(names) if hasattr(module, name)}
    values = dict(getattr(module, "options", ())) | attributes
    return {name: _as_json(name, value) for name, value in values.items()}


def _parameters(kind: type[nnx.Module]) -> set[str]:
    return set(inspect.signature(kind).parameters)


def _as_json(name: str, value: Any) -> object:
    if name in ("dtype", "param_dtype"):
        return None if value is None else jnp.dtype(value).name
    if name == "precision":
        return None if value is None else jax.lax.Precision(value).name.lower()
    if inspect.isfunction(value):  # such as one that makes a part of the model
        raise _UnknownModuleError
    if isinstance(value, Named):
        return {"by key": [[key, _as_json(name, value[key])] for key in value]}
    return _module_description(value) if isinstance(value, nnx.Module) else value
