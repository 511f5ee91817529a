"""Decorators of public functions, and of functions of users."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, Literal, TypeVar, cast, get_args

import jax

from jax_gnn._core.ids import is_traced

F = TypeVar("F", bound=Callable[..., object])

Implementation = Literal["cuda", "cpu", "xla"]
"""The code of an op: the kernel of a platform, or plain JAX."""

# A user context is part of the keys of JAX's caches, so that a change retraces jitted functions.
chosen_implementation = jax.make_user_context(default_value=None)


def check_implementation(name: object) -> None:
    """Raise an error unless the name is that of an implementation, or None."""
    if name is not None and (not isinstance(name, str) or name not in get_args(Implementation)):
        raise ValueError(
            f"implementation must be None or one of {get_args(Implementation)}, got {name!r}"
        )


def use_implementation(name: str | None) -> AbstractContextManager[None]:
    """Select the implementation of ops in a ``with`` block; None keeps that of the outer block."""
    return cast(
        AbstractContextManager[None], chosen_implementation(name or chosen_implementation.value)
    )


def selects_implementation(function: F) -> F:
    """Make the argument ``implementation`` of a function select that of all ops that it calls."""

    @functools.wraps(function)
    def call(*args: Any, implementation: str | None = None, **kwargs: Any) -> object:
        check_implementation(implementation)
        if implementation is None:
            return function(*args, **kwargs)
        with use_implementation(implementation):
            return function(*args, **kwargs)

    return cast(F, call)


def public(function: F) -> F:
    """Mark a function or class as public, exported by the nearest package without an underscore.

    ``__module__`` becomes that package, where `pickle` and documentation look the name up.
    Operations of a function appear under its name in profiles. An argument ``implementation``
    selects that of all ops in it. Its signature does not change.
    """
    package = function.__module__.rpartition(".")[0].partition("._")[0]
    if not isinstance(function, type):
        if "implementation" in inspect.signature(function).parameters:
            function = selects_implementation(function)
        function = jax.named_scope(function.__name__)(function)
    function.__module__ = package
    return function


def one_call(*static: str) -> Callable[[F], F]:
    """Decorate a function of arrays, so that eager calls of it are one compiled call.

    Separate operations take several times as long as a small graph's kernel. Calls with other
    arguments than arrays of JAX, and strings for ``static``, are not compiled: the function checks
    them, and names them in errors.

    Args:
        static: names of keyword arguments that are strings or None.
    """

    def decorate(function: F) -> F:
        compiled = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> object:
            # jax.jit would refuse arguments of other types with a message that does not name them.
            options = [kwargs[name] for name in static if name in kwargs]
            arrays = jax.tree.leaves((args, [kwargs[name] for name in kwargs.keys() - {*static}]))
            compiles = all(isinstance(array, jax.Array) for array in arrays) and all(
                option is None or isinstance(option, str) for option in options
            )
            return (compiled if compiles and not is_traced(*arrays) else function)(*args, **kwargs)

        return cast(F, call)

    return decorate


# --- Functions of users --------------------------------------------------------------------------

_BY_NAME = "_by_name"


class Decorated:
    """A function with options, made by a decorator; its copies are itself, as a function's are."""

    def __init__(self, function: Callable[..., Any], *options: Any) -> None:
        functools.update_wrapper(cast(Any, self), function)
        self._function = function
        self._options = options

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def __reduce__(self) -> Any:
        """Return the function and the options; what is cached is made again.

        The module has this object under the function's name, so that pickle would not find the
        function. It finds `_by_name`.
        """
        name = getattr(self, "__qualname__", "")
        is_named = _at_name(self.__module__, name) is self
        if is_named and not isinstance(self._function, FunctionType):
            return name  # of a function that another decorator has made
        function = self._by_name if is_named else self._function
        return _restored, (type(self), function, *self._options)

    @functools.cached_property
    def _by_name(self) -> FunctionType:
        """A copy of the function that pickle finds: its qualified name is this attribute."""
        original = self._function
        assert isinstance(original, FunctionType)
        copy = FunctionType(
            original.__code__,
            original.__globals__,
            original.__name__,
            original.__defaults__,
            original.__closure__,
        )
        functools.update_wrapper(copy, original).__dict__.pop("__wrapped__")
        copy.__kwdefaults__ = original.__kwdefaults__
        copy.__qualname__ = f"{original.__qualname__}.{_BY_NAME}"
        return copy


def _at_name(module: str, name: str) -> Any:
    """Return the object of a module under a name, or None."""
    try:
        return operator.attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None


def _restored(kind: type[Decorated], function: Callable[..., Any], *options: Any) -> Decorated:
    """Return an unpickled object: that of its module, if there is one."""
    name = getattr(function, "__qualname__", "")
    found = _at_name(function.__module__, name.removesuffix(f".{_BY_NAME}"))
    if isinstance(found, kind) and vars(found).get(_BY_NAME) is function:
        return found
    return kind(function, *options)
