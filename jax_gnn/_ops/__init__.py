"""Ops: a folder for each, see docs/architecture.md."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from jax_gnn._core import ffi

R = TypeVar("R")


def use_implementation(name: str | None) -> AbstractContextManager[None]:
    """Select the implementation of ops in a ``with`` block; None keeps that of the outer block."""
    result: AbstractContextManager[None] = ffi.chosen_implementation(
        name or ffi.chosen_implementation.value
    )
    return result


def composition(function: Callable[..., R]) -> Callable[..., R]:
    """Add the argument ``implementation``, that of the ops which the function is composed of."""

    @functools.wraps(function)
    def call(*operands: Any, implementation: str | None = None, **attributes: Any) -> R:
        with use_implementation(implementation):
            return function(*operands, **attributes)

    return call
