"""Decorators of public functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax

from jax_gnn._core.ids import is_traced

F = TypeVar("F", bound=Callable[..., object])


def public(function: F) -> F:
    """Mark a function or class as public, exported by the nearest package without an underscore.

    ``__module__`` becomes that package, where `pickle` and documentation look the name up.
    Operations of a function appear under its name in profiles. Its signature does not change.
    """
    package = function.__module__.rpartition(".")[0].partition("._")[0]
    if not isinstance(function, type):
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
