"""Declaration of layers by typed fields, which are the arguments of their constructors.

A layer lists its options as annotated class attributes, as a dataclass does::

    class GCNConv(Convolution):
        add_self_loops: bool = True

The constructor, its signature and documentation, checkpoints and type checkers read these fields.
A class inherits the fields of its bases, and may declare one again with another default.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import InitVar, field
from types import NoneType, SimpleNamespace
from typing import (
    Any,
    Literal,
    NamedTuple,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from jax_gnn.extend import check_choice, check_finite, check_flag, check_integer, check_number

default_kernel_init = nnx.initializers.lecun_normal()
default_bias_init = nnx.initializers.zeros_init()
glorot_init = nnx.initializers.glorot_uniform()


class Signature:
    """Descriptor of the constructor's signature, which the metaclass of modules hides."""

    def __get__(self, instance: object, owner: type[nnx.Module]) -> inspect.Signature:
        """Return the constructor's signature; an instance keeps that of its call."""
        if instance is not None:
            raise AttributeError("__signature__")
        parameters = [*inspect.signature(owner.__init__).parameters.values()]
        return inspect.Signature(parameters[1:])  # without self


# Name and description, whose further lines are indented.
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


@functools.cache
def _documented_attributes(cls: type) -> Mapping[str, str]:
    """Return what the docstring of a class says of each of its attributes."""
    section = inspect.cleandoc(vars(cls).get("__doc__") or "").partition("\nAttributes:\n")[2]
    return dict(_ATTRIBUTE.findall(re.split(r"\n(?=\S)", section)[0]))


def _plain(annotation: object) -> object:
    """Return the type that an `InitVar` stands for, any other annotation as it is."""
    if isinstance(annotation, str):
        is_argument = annotation.startswith("InitVar[")
        return annotation[len("InitVar[") : -1] if is_argument else annotation
    return annotation.type if isinstance(annotation, InitVar) else annotation


def _document(cls: type[nnx.Module]) -> None:
    """Give the constructor a docstring, a line for each argument, and plain annotations."""
    documentation: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        # A class that declares a field again may describe it anew.
        documentation |= _documented_attributes(base)
    constructor: Any = cls.__init__
    annotations = constructor.__annotations__
    constructor.__annotations__ = {
        name: _plain(annotation) for name, annotation in annotations.items()
    }
    arguments = [
        f"    {name}: {documentation[name]}"
        for name in constructor.__annotations__
        if name in documentation
    ]
    constructor.__doc__ = "\n".join(["Make the parameters.", "", "Args:", *arguments])


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class Layer(nnx.Module):
    """Base of modules that are declared by their fields.

    Fields are keyword-only, unless declared with ``field(kw_only=False)``. A class that defines
    ``__init__`` keeps it.
    """

    def __init_subclass__(cls, **options: bool) -> None:
        """Make the constructor of a subclass from its fields."""
        super().__init_subclass__(**options)
        # Classes of options alone are never made. A constructor costs a millisecond of the import.
        maker = getattr(cls, "_make_parameters", None)
        is_made = maker is None or maker.__module__ != __name__
        init = is_made and "__init__" not in vars(cls)
        # Modules are compared by identity, and NNX prints them.
        dataclasses.dataclass(kw_only=True, init=init, eq=False, repr=False)(cls)
        if init:
            _document(cls)


class ParameterLayer(Layer):
    """Base of layers whose parameters have a dtype, and no other options of `nnx.Linear`.

    Attributes:
        param_dtype: Dtype of the parameters.
        rngs: Source of the keys, stream "params" and, for dropout, stream "dropout".
    """

    param_dtype: DTypeLike = jnp.float32
    rngs: InitVar[nnx.Rngs]

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        """Check the options and make the parameters, once all fields are set."""
        check_options(self)
        options = True, None, self.param_dtype, None, default_kernel_init, default_bias_init
        self._make_parameters(ParameterFactory(rngs, *options))

    def _make_parameters(self, factory: ParameterFactory) -> None:
        raise NotImplementedError


class LinearOptions(Layer):
    """Options of every convolution and model, which mean what they mean in `nnx.Linear`.

    Attributes:
        use_bias: Whether to add biases.
        dtype: Dtype of the computation; None infers it from inputs and parameters.
        param_dtype: Dtype of the parameters.
        precision: Precision of the matrix products, see `jax.lax.Precision`.
        rngs: Source of the keys, stream "params" and, for dropout, stream "dropout".
        kernel_init: Initializer of the kernels.
        bias_init: Initializer of the biases.
    """

    use_bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None
    # Arguments of the constructor alone: initializers are often closures, which no pickle takes.
    rngs: InitVar[nnx.Rngs]
    kernel_init: InitVar[nnx.Initializer] = default_kernel_init
    bias_init: InitVar[nnx.Initializer] = default_bias_init

    def __post_init__(
        self, rngs: nnx.Rngs, kernel_init: nnx.Initializer, bias_init: nnx.Initializer
    ) -> None:
        """Check the options and make the parameters, once all fields are set."""
        check_options(self)
        for option in option_values(self):
            setattr(self, option, _hashable(getattr(self, option)))
        options = self.use_bias, self.dtype, self.param_dtype, self.precision
        self._make_parameters(ParameterFactory(rngs, *options, kernel_init, bias_init))

    def _make_parameters(self, factory: ParameterFactory) -> None:
        raise NotImplementedError


@functools.cache
def _declared_types(cls: type) -> dict[str, tuple[Any, bool]]:
    """Return type of each option that `check_options` checks, and whether it may be None."""
    types: dict[str, tuple[Any, bool]] = {}
    arguments = {option.name for option in dataclasses.fields(cls) if option.init}
    for base in reversed(cls.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            if name not in arguments or "InitVar" in str(annotation):
                continue
            declared = SimpleNamespace(__annotations__={name: annotation})
            kind = get_type_hints(declared, vars(sys.modules[base.__module__]))[name]
            kinds = [part for part in get_args(kind) if part is not NoneType]
            is_optional = NoneType in get_args(kind)
            types[name] = kinds[0] if is_optional and len(kinds) == 1 else kind, is_optional
    return types


def check_options(layer: Layer) -> None:
    """Raise an error for an option of a layer whose value does not fit its declared type.

    Sizes (``int``) are positive, or not negative where 0 is the default. Shares (``float`` with
    "rate" in the name) lie in [0, 1], other numbers are finite. Words are of their ``Literal``.
    """
    for name, (kind, is_optional) in _declared_types(type(layer)).items():
        value = getattr(layer, name)
        if value is None and is_optional:
            continue
        if kind is bool:
            check_flag(name, value)
        elif kind is int and getattr(type(layer), name, 1) == 0:
            if check_integer(name, value) < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        elif kind is int:
            check_positive(**{name: value})
        elif kind is float:
            (check_rates(**{name: value}) if "rate" in name else check_finite(name, value))
        elif get_origin(kind) is Literal:
            check_choice(name, value, (*[None] * is_optional, *get_args(kind)))


def check_rates(**rates: float) -> None:
    """Raise ValueError for a share outside [0, 1], TypeError for a value that is no number."""
    for name, rate in rates.items():
        check_number(name, rate)
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {rate}")


def check_positive(**sizes: int) -> None:
    """Raise ValueError for a size below 1, TypeError for a value that is no integer."""
    for name, size in sizes.items():
        if check_integer(name, size) < 1:
            raise ValueError(f"{name} must be positive, got {size}")


class ParameterFactory(NamedTuple):
    """Maker of parameters, whose fields are the arguments of `nnx.Linear` beside its sizes.

    Without `when`, or where a size is None, methods return None, which modules hold as data.
    """

    rngs: nnx.Rngs
    use_bias: bool
    dtype: DTypeLike | None
    param_dtype: DTypeLike
    precision: jax.lax.PrecisionLike
    kernel_init: nnx.Initializer
    bias_init: nnx.Initializer

    def kernel(
        self, *shape: int | None, init: nnx.Initializer | None = None, when: bool = True
    ) -> Any:
        """Return a parameter; axes before the last two are of independent kernels."""
        return self._drawn(self.kernel_init if init is None else init, shape, 2, when)

    def bias(self, *shape: int) -> Any:
        """Return a parameter, or None without biases; axes before the last are independent."""
        return self._drawn(self.bias_init, shape, 1, self.use_bias)

    def full(self, value: float, *shape: int | None, when: bool = True) -> Any:
        """Return a parameter whose entries are all this value."""
        if not when or None in shape:
            return nnx.data(None)
        return nnx.Param(jnp.full(shape, value, self.param_dtype))

    def linear(
        self,
        in_features: int | None,
        out_features: int,
        *,
        use_bias: bool | None = None,
        when: bool = True,
    ) -> Any:
        """Return a linear map; `use_bias` None means that of the layer."""
        if not when or in_features is None:
            return nnx.data(None)
        factory = self if use_bias is None else self._replace(use_bias=use_bias)
        return nnx.Linear(in_features, out_features, **factory._asdict())

    def _drawn(self, init: nnx.Initializer, shape: tuple[Any, ...], rank: int, when: bool) -> Any:
        """Return a parameter whose slices of the last `rank` axes are initialized independently."""
        if not when or None in shape:
            return nnx.data(None)
        lead, unit = shape[:-rank], shape[-rank:]
        if not lead:
            return nnx.Param(init(self.rngs.params(), unit, self.param_dtype))
        # Initializers take fan-in and fan-out from the shape of one slice, hence a key for each.
        keys = jax.random.split(self.rngs.params(), math.prod(lead))
        slices = jax.vmap(lambda key: init(key, unit, self.param_dtype))(keys)
        return nnx.Param(slices.reshape(shape))


def _hashable(value: Any) -> Any:
    """Return lists and arrays of integers as tuples: `jax.jit` hashes the options of modules."""
    if isinstance(value, np.ndarray | Array) and value.ndim and value.dtype.kind in "iu":
        value = value.tolist()
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value


def option_names(layer: type[nnx.Module]) -> tuple[str, ...]:
    """Return the names of the keyword arguments of a layer's constructor."""
    parameters = inspect.signature(layer.__init__).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def option_values(layer: Layer) -> dict[str, Any]:
    """Return the fields of a layer that are arguments of its constructor, with their values."""
    return {f.name: getattr(layer, f.name) for f in dataclasses.fields(layer) if f.init}  # type: ignore[arg-type]  # classes of Layer are dataclasses
