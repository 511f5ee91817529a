"""What users call."""

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
    """Makes a function of arrays one compiled call where nothing around it is traced.

    One operation after the other takes several times as long as a small graph's kernel. Only if all
    arguments are arrays of JAX, but for those named, which must be strings: whatever else is given
    is looked at as it is, and refused by its name.

    Args:
        static: names of keyword arguments.
    """

    def decorate(function: F) -> F:
        compiled = jax.jit(function, static_argnames=static)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> object:
            named = [kwargs[name] for name in static if name in kwargs]
            others = [kwargs[name] for name in kwargs if name not in static]
            arrays = jax.tree.leaves((args, others))
            fits = all(isinstance(array, jax.Array) for array in arrays) and all(
                each is None or isinstance(each, str) for each in named
            )
            return (compiled if fits and not is_traced(*arrays) else function)(*args, **kwargs)

        return cast(F, call)

    return decorate
