"""What users call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax

F = TypeVar("F", bound=Callable[..., object])


def public(function: F) -> F:
    """A public function or class: its module is the package's.

    Of a function, profiles show what it does under its name. Its signature stays.
    """
    if not isinstance(function, type):
        function = jax.named_scope(function.__name__)(function)
    function.__module__ = "jax_gnn"
    return function
