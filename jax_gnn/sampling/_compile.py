"""A decorator that compiles a function and keeps its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import jax

F = TypeVar("F", bound=Callable[..., object])


def jit(*static: str) -> Callable[[F], F]:
    """Return `jax.jit` as a decorator; the arguments named `static` are compile-time constants."""

    def decorate(function: F) -> F:
        return cast(F, jax.jit(function, static_argnames=static))

    return decorate
